"""`ark-jax completion SHELL`: a script that completes verbs, flags and fields of a config."""

import re
import shlex

from ark_jax.cli import verbs
from ark_jax.cli.config_flags import FIELDS
from ark_jax.cli.flags import Flags, flag, specs
from ark_jax.runtime.log import show

BASH = """\
# ark-jax completion bash: put `source <(ark-jax completion bash)` into ~/.bashrc
_ark_jax() {{
  local known
  if ((COMP_CWORD == 1)); then
    known='{verbs}'
  else
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
  fi
  [[ ${{COMP_WORDS[COMP_CWORD]}} == --config.* ]] && known='{fields}'
  # shellcheck disable=SC2207  # macOS has bash 3.2, without mapfile and compopt
  COMPREPLY=($(compgen -W "$known" -- "${{COMP_WORDS[COMP_CWORD]}}"))
  [[ ${{COMPREPLY[0]}} == *[=.] ]] && compopt -o nospace 2>/dev/null
}}
complete -o default -F _ark_jax ark-jax
"""
ZSH = """\
# ark-jax completion zsh: put `source <(ark-jax completion zsh)` into ~/.zshrc, after compinit
_ark_jax() {{
  local known
  if ((CURRENT == 2)); then
    compadd {verbs}
    return
  fi
  case $words[2] in
{cases}
  esac
  [[ $PREFIX == --config.* ]] && known='{fields}'
  if [[ $PREFIX == -* ]]; then compadd -S '' -- ${{=known}}; else _files; fi
}}
compdef _ark_jax ark-jax
"""
FISH = """\
# ark-jax completion fish: put `ark-jax completion fish | source` into ~/.config/fish/config.fish
"""
SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


class Completion(Flags):
    """Prints the script of a shell."""

    shells: tuple[str, ...] = flag("bash|zsh|fish", "the shell", ())

    example = "ark-jax completion bash"
    needed = ("shells",)
    remarks = "The script says in its first line where it belongs."

    def run(self) -> int:
        if len(self.shells) != 1 or self.shells[0] not in SHELLS:
            raise ValueError(f"give one shell: ark-jax completion {'|'.join(SHELLS)}")
        (shell,) = self.shells
        show(_fish_script() if shell == "fish" else _fill_template(SHELLS[shell]))
        return 0


def flags_of(name: str) -> list[str]:
    """The flags that the help of a verb shows; those with a value end in `=`."""
    labels = (spec.label for spec in specs(verbs.class_of(name), name).values() if spec.is_flag)
    return sorted(re.match("--[a-z0-9-]+=?", label)[0] for label in labels if label != FIELDS)


def field_flags() -> list[str]:
    """`--config.FIELD=` of all fields of all recipes."""
    from ark_jax import config, schema

    names = {spec.name for recipe in config.SCHEMAS.values() for spec in schema.fields(recipe)}
    return [f"--config.{name}=" for name in sorted(names)]


def _fill_template(template: str) -> str:
    """The script of bash or zsh: the template with all verbs, fields and flags of each verb."""
    known = {name: flags_of(name) for name in verbs.VERBS}
    for flags in known.values():
        if "--config=" in flags:
            flags.append("--config.")
    cases = (f"      {name}) known='{' '.join(flags)}' ;;" for name, flags in known.items())
    return template.format(
        verbs=" ".join(known), cases="\n".join(cases), fields=" ".join(field_flags())
    )


def _fish_script() -> str:
    """The script of fish: a line for each verb, flag and field."""
    lines, with_config = [], []
    for name, (_, summary) in verbs.VERBS.items():
        line = f"complete -c ark-jax -n __fish_use_subcommand -a {name} -d {shlex.quote(summary)}"
        lines.append(line)
        flags = flags_of(name)
        with_config += [name] * ("--config=" in flags)
        lines += (_fish_line(name, flag) for flag in flags)
    lines += (_fish_line(" ".join(with_config), flag) for flag in field_flags())
    return FISH + "\n".join(lines) + "\n"


def _fish_line(names: str, flag: str) -> str:
    """A line of the script: completes a flag after these verbs, which are separated by blanks."""
    value = " -r" if flag.endswith("=") else ""
    condition = f"-n '__fish_seen_subcommand_from {names}'"
    return f"complete -c ark-jax {condition} -l {flag.strip('-=')}{value}"
