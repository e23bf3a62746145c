"""`ark-jax completion SHELL`: a script that completes verbs, flags and fields of a config."""

import re
import shlex

from ark_jax.cli import verbs
from ark_jax.runtime.log import show

FLAG = re.compile(r"(?<![\w`])(--[a-z][\w-]*+=?)(?!\.)")  # in the help of a verb
SHELLS = ("bash", "zsh", "fish")
BASH_CASE = "      {name}) words='{words}' ;;"
BASH = """\
# ark-jax completion bash: put `source <(ark-jax completion bash)` into ~/.bashrc
_ark_jax() {{
  local words
  if ((COMP_CWORD == 1)); then
    words='{verbs}'
  else
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
  fi
  [[ ${{COMP_WORDS[COMP_CWORD]}} == --config.* ]] && words='{fields}'
  # shellcheck disable=SC2207  # macOS has bash 3.2, without mapfile and compopt
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
  [[ ${{COMPREPLY[0]}} == *[=.] ]] && compopt -o nospace 2>/dev/null
}}
complete -o default -F _ark_jax ark-jax
"""
ZSH_CASE = "    {name}) words_of_verb=({words}) ;;"
ZSH = """\
# ark-jax completion zsh: put `source <(ark-jax completion zsh)` into ~/.zshrc, after compinit
_ark_jax() {{
  local -a words_of_verb
  if ((CURRENT == 2)); then
    compadd {verbs}
    return
  fi
  case $words[2] in
{cases}
  esac
  [[ $PREFIX == --config.* ]] && words_of_verb=({fields})
  if [[ $PREFIX == -* ]]; then compadd -S '' -- $words_of_verb; else _files; fi
}}
compdef _ark_jax ark-jax
"""
FISH = """\
# ark-jax completion fish: put `ark-jax completion fish | source` into ~/.config/fish/config.fish
"""


def completion(verb: str, args: list[str]) -> int:
    """Prints the script of a shell."""
    if len(args) != 1 or args[0] not in SHELLS:
        raise ValueError(f"give one shell: ark-jax completion {'|'.join(SHELLS)}")
    scripts = {"bash": (BASH, BASH_CASE), "zsh": (ZSH, ZSH_CASE)}
    shell = args[0]
    show(_fill(*scripts[shell]) if shell in scripts else _fish())
    return 0


def flags_of(name: str) -> list[str]:
    """The flags that the help of a verb lists; those with a value end in `=`."""
    verb = verbs.VERBS[name]
    return sorted(set(FLAG.findall(f"{verb.usage}\n{verb.details}")))


def field_flags() -> list[str]:
    """`--config.FIELD=` of all fields of all recipes."""
    from ark_jax import config, schema

    names = {
        spec.name
        for recipe_schema in config.SCHEMAS.values()
        for spec in schema.fields(recipe_schema)
    }
    return [f"--config.{name}=" for name in sorted(names)]


def _of_verbs() -> dict[str, list[str]]:
    """What may follow each verb: flags, and `--config.` where it takes fields."""
    known = {name: flags_of(name) for name in verbs.VERBS}
    takes_fields = lambda flags: ["--config."] if "--config=" in flags else []
    return {name: [*flags, *takes_fields(flags)] for name, flags in known.items()}


def _fill(script: str, case: str) -> str:
    """Puts verbs, fields and the words of each verb into the script of a shell.

    Args:
        case: a line of its `case`, from `name` of a verb and `words`.
    """
    cases = [case.format(name=name, words=" ".join(words)) for name, words in _of_verbs().items()]
    return script.format(
        verbs=" ".join(verbs.VERBS), cases="\n".join(cases), fields=" ".join(field_flags())
    )


def _fish() -> str:
    lines = []
    for name, verb in verbs.VERBS.items():
        summary = shlex.quote(verb.summary)
        lines.append(f"complete -c ark-jax -n __fish_use_subcommand -a {name} -d {summary}")
        for flag in flags_of(name):
            value = " -r" if flag.endswith("=") else ""
            lines.append(
                f"complete -c ark-jax -n '__fish_seen_subcommand_from {name}' "
                f"-l {flag.strip('-=')}{value}"
            )
    with_config = " ".join(name for name in verbs.VERBS if "--config=" in flags_of(name))
    when = f"-n '__fish_seen_subcommand_from {with_config}'"
    fields = (flag.strip("-=") for flag in field_flags())
    lines += [f"complete -c ark-jax {when} -l {field} -r" for field in fields]
    return FISH + "\n".join(lines) + "\n"
