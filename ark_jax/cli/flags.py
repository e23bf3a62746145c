"""The flags of verbs that work on a config."""

import dataclasses
import re
from pathlib import Path

DOCUMENTS_ONLY = "--documents-only"  # of the demo
CONFIG_FLAG = re.compile(r"--?config(=|$)")


@dataclasses.dataclass(frozen=True)
class Request:
    """What the flags of a command ask for.

    Attributes:
        config: None if no config was given.
        store: the folder where the runs of a sweep share finished stages.
        verify: whether `status` and `run` read every file of every finished stage.
        format: of `ark-jax export --format=NAME`.
    """

    config: object
    workdir: Path | None
    store: Path | None
    verify: bool
    format: str


def parse(verb: str, args: list[str]) -> Request:
    """The config and folders that the flags of a verb name.

    Raises:
        ValueError: a flag that is unknown or has a bad value, or a config file that fails.
    """
    from absl import flags
    from ml_collections import ConfigDict

    from ark_jax.recipes.common import default_models

    values = flags.FlagValues()
    workdir = None
    if verb == "demo":
        workdir = "_".join(["ark_demo", *filter(None, _demo_words(args))])
        written = "let training questions be written from the documents"
        flags.DEFINE_bool(DOCUMENTS_ONLY.lstrip("-"), False, written, flag_values=values)
        flags.DEFINE_string("recipe", "ark", "the method to show", flag_values=values)
    flags.DEFINE_string("workdir", workdir, "where results go", flag_values=values)
    flags.DEFINE_float("max-cost", None, "config.llm.max_cost", flag_values=values)
    store = "where the runs of a sweep share finished stages (launch/sweep.py)"
    flags.DEFINE_string("store", "", store, flag_values=values)
    check = "read all files of finished stages, and make damaged stages again (status, run)"
    flags.DEFINE_bool("verify", False, check, flag_values=values)
    if verb == "export":
        format = "the trainer whose JSONL is written"
        flags.DEFINE_string("format", "", format, flag_values=values)
    holder = _define_config(verb, args, values)
    try:
        rest = values(["ark-jax", *_last_of_repeated(args)])[1:]
        getattr(holder.value, "recipe", None)  # raises what ml_collections kept of an OSError
    except (flags.Error, KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            f"bad flag: {_flag_message(error)}; `ark-jax {verb} --help` shows how it is used"
        ) from None
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"the config file fails ({reason}); correct it") from None
    if rest:
        raise ValueError(
            f"unexpected {rest[0]!r}; fields of the config are written --config.name=value"
        )
    if not isinstance(holder.value, ConfigDict | None):
        raise ValueError(
            f"the config file gives {type(holder.value).__name__}, not a ConfigDict; let "
            "get_config() return a config of ark_jax.config"
        )
    if holder.value is not None and values["max-cost"].value is not None:
        if "llm" not in holder.value:
            raise ValueError("--max-cost: this recipe asks no paid model; leave the flag out")
        holder.value.llm.max_cost = values["max-cost"].value
    if holder.value is not None:
        default_models.name_models(holder.value)
    if "://" in (values.workdir or ""):
        raise ValueError(
            f"--workdir={values.workdir}: a workdir needs locks and renames, which a bucket lacks; "
            "give a folder that all hosts share (NFS, Filestore). Data and models may lie in a "
            "bucket"
        )
    absolute = lambda path: Path(path).expanduser().absolute() if path else None
    format = values.format if verb == "export" else ""
    return Request(
        holder.value, absolute(values.workdir), absolute(values.store), values.verify, format
    )


def _define_config(verb: str, args: list[str], values):
    """Defines --config and its fields; for the demo it is the packaged config if none is given."""
    from ml_collections import config_flags

    given = [arg for arg in args if CONFIG_FLAG.match(arg)]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)}: give one --config")
    named = re.search(r"(?:^|\n)--?config[=\n]([^:\n]*)", "\n".join(args))
    if named and not Path(named[1]).is_file():
        raise ValueError(
            f"--config={named[1]}: no such file; the presets are in configs/ of the repository"
        )
    if verb == "demo" and not named:
        from ark_jax import config

        made = config.demo(*_demo_words(args))
        return config_flags.DEFINE_config_dict("config", made, flag_values=values)
    return config_flags.DEFINE_config_file("config", None, flag_values=values)


def _demo_words(args: list[str]) -> list[str]:
    """What `ark-jax demo` is to show: nothing for ARK, "documents" without questions, or a recipe.

    Raises:
        ValueError: no demo of this recipe.
    """
    from ark_jax import config

    recipe = next((arg.partition("=")[2] for arg in args if re.match("--?recipe=", arg)), "ark")
    words = ["documents"] if DOCUMENTS_ONLY in args else []
    words += [recipe] if recipe != "ark" else []
    if len(words) > 1 or recipe not in config.DEMO_RECIPES:
        known = ", ".join(config.DEMO_RECIPES)
        raise ValueError(
            f"demo {' '.join(args)}: --recipe may be {known}; {DOCUMENTS_ONLY} belongs to ark"
        )
    return words


def _last_of_repeated(args: list[str]) -> list[str]:
    """Of a field given twice, as a sweep does, the last one counts; tuples would be joined."""
    field = lambda arg: re.match(r"--?config\.[\w.]+=|", arg)[0].lstrip("-")
    last = {field(arg): i for i, arg in enumerate(args)}
    return [arg for i, arg in enumerate(args) if not field(arg) or last[field(arg)] == i]


def _flag_message(error: Exception) -> str:
    """What is wrong with a flag, in one line.

    ml_collections reports an unknown field as a KeyError, and a failing config file with its whole
    traceback.
    """
    text = str(error.args[0] if error.args else error).replace("\\n", "\n").strip()
    text = text.splitlines()[-1] if "Traceback" in text else text
    text = " ".join(text.replace("'", "").split())
    unknown = re.fullmatch(r"[\\\"]*(\w+)[\\\"]*(?: (Did you mean .*))?", text)
    if not unknown:
        return text
    suggestion = f". {unknown[2]}" if unknown[2] else ""
    return f"the config has no field {unknown[1]!r}{suggestion}"
