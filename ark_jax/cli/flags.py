"""The flags of verbs that work on a config."""

import dataclasses
import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from ark_jax.cli import config_files
from ark_jax.cli.words import absolute, config_of_workdir, joined, values_of

DOCUMENTS_ONLY = "--documents-only"  # of the demo
SHOWS_CONFIG = "config"  # the verb that shows fields, of ARK where no config is given


@dataclasses.dataclass(frozen=True)
class Request:
    """What the flags of a command ask for.

    Attributes:
        config: None if no config was given and the workdir keeps none.
        store: the folder where the runs of a sweep share finished stages.
        verify: whether `status` and `run` read every file of every finished stage.
        yes: whether a run may replace finished stages without asking.
        format: of `ark-jax export --format=NAME`.
        words: what is no flag, for `ark-jax config`.
    """

    config: object
    workdir: Path | None
    store: Path | None
    verify: bool
    yes: bool
    format: str
    words: tuple[str, ...]


def parse(verb: str, args: Sequence[str]) -> Request:
    """The config and folders that the flags of a verb name.

    Raises:
        ValueError: a flag that is unknown or has a bad value, or a config file that fails.
    """
    args = joined(args)
    values, holder, words = _parse(verb, args)
    config = holder.value
    if words and verb != SHOWS_CONFIG:
        raise ValueError(
            f"unexpected {words[0]!r}; fields of the config are written --config.name=value"
        )
    if config is not None:
        _complete(config, values["max-cost"].value, suit_device=verb != SHOWS_CONFIG)
    return Request(
        config=config,
        workdir=absolute(values.workdir),
        store=absolute(values.store, "--store"),
        verify=values.verify,
        yes=values.yes,
        format=values.format if verb == "export" else "",
        words=tuple(words),
    )


def names_config(args: Sequence[str]) -> bool:
    """Whether flags give a config, or a workdir that keeps one."""
    args = joined(args)
    return bool(values_of("config", args)) or config_of_workdir(args) is not None


def _parse(verb: str, args: Sequence[str]) -> tuple:
    """The flags' values, the holder of the config, and the words that are no flags."""
    from absl import flags
    from ml_collections import ConfigDict

    values = _define_flags(verb, args)
    holder, args = _define_config(verb, args, values)
    try:
        words = values(["ark-jax", *_last_of_repeated(args)])[1:]
        getattr(holder.value, "recipe", None)  # raises what ml_collections kept of an OSError
    except (flags.Error, KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            f"bad flag: {_flag_message(error, verb, args)}; `ark-jax {verb} --help` shows how it "
            "is used"
        ) from None
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"the config file fails ({reason}); correct it") from None
    if not isinstance(holder.value, ConfigDict | None):
        raise ValueError(
            f"the config file gives {type(holder.value).__name__}, not a ConfigDict; let "
            "get_config() return a config of ark_jax.config"
        )
    return values, holder, words


def _define_flags(verb: str, args: Sequence[str]):
    """All flags but the config's."""
    from absl import flags

    values = flags.FlagValues()
    workdir = None
    if verb == "demo":
        workdir = "_".join(["ark_demo", *filter(None, _demo_words(args))])
        written = "let training questions be written from the documents"
        flags.DEFINE_bool(DOCUMENTS_ONLY.lstrip("-"), False, written, flag_values=values)
        flags.DEFINE_string("recipe", "ark", "the method to show", flag_values=values)
    flags.DEFINE_string("workdir", workdir, "where results go", flag_values=values)
    flags.DEFINE_float("max-cost", None, "config.llm.max_cost", flag_values=values)
    store = "where the runs of a sweep share finished stages (ark-jax sweep)"
    flags.DEFINE_string("store", "", store, flag_values=values)
    check = "read all files of finished stages, and make damaged stages again (status, run)"
    flags.DEFINE_bool("verify", False, check, flag_values=values)
    yes = "replace finished stages of other settings without asking"
    flags.DEFINE_bool("yes", False, yes, flag_values=values)
    if verb == "export":
        format = "the trainer whose JSONL is written"
        flags.DEFINE_string("format", "", format, flag_values=values)
    return values


def _define_config(verb: str, args: Sequence[str], values) -> tuple[object, list[str]]:
    """Defines --config and its fields, and gives its holder and the flags with its file.

    Where no config is given it is the one that the workdir keeps, for the demo the packaged one.
    """
    from ml_collections import config_flags

    named = values_of("config", args)
    if len(named) > 1:
        flags = " and ".join(f"--config={name}" for name in named)
        raise ValueError(f"{flags}: give one --config")
    if not named and verb == SHOWS_CONFIG and not values_of("workdir", args):
        named = ["ark"]
    if not named:
        config = _demo_config(args) if verb == "demo" else config_of_workdir(args)
        if config is not None:
            return _define_dict(config, args, values), list(args)
    is_config = re.compile("--?config=")
    args = [arg for arg in args if not is_config.match(arg)]
    args = [*(f"--config={config_files.locate(name)}" for name in named), *args]
    holder = config_flags.DEFINE_config_file(
        "config", None, flag_values=values, sys_argv=["ark-jax", *args]
    )
    return holder, args


def _define_dict(config, args: Sequence[str], values):
    from ml_collections import config_flags

    return config_flags.DEFINE_config_dict(
        "config", config, flag_values=values, sys_argv=["ark-jax", *args]
    )


def _demo_config(args: Sequence[str]):
    from ark_jax import config

    return config.demo(*_demo_words(args))


def _complete(config, max_cost: float | None, *, suit_device: bool) -> None:
    """Puts `--max-cost` and the default models into the config."""
    from ark_jax.recipes.common import default_models

    if max_cost is not None:
        if "llm" not in config:
            raise ValueError("--max-cost: this recipe asks no paid model; leave the flag out")
        config.llm.max_cost = max_cost
    if suit_device:
        default_models.suit_device(config)


def _demo_words(args: Sequence[str]) -> list[str]:
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


def _last_of_repeated(args: Sequence[str]) -> list[str]:
    """Of a field given twice, as a sweep does, the last one counts; tuples would be joined."""
    field = lambda arg: re.match(r"--?config\.[\w.]+=|", arg)[0].lstrip("-")
    last = {field(arg): i for i, arg in enumerate(args)}
    return [arg for i, arg in enumerate(args) if not field(arg) or last[field(arg)] == i]


def _flag_message(error: Exception, verb: str, args: Sequence[str]) -> str:
    """What is wrong with a flag, in one line.

    ml_collections reports an unknown field by its last part, and a failing config file with its
    whole traceback.
    """
    if unknown := _unknown_field(verb, args):
        return unknown
    text = str(error.args[0] if error.args else error).replace("\\n", "\n").strip()
    text = text.splitlines()[-1] if "Traceback" in text else text
    text = " ".join(text.replace("'", "").split())
    return re.sub(r"\. Did you mean: (.+?) ?\?$", r" (did you mean --\1?)", text)


def _unknown_field(verb: str, args: Sequence[str]) -> str:
    """Which field of the flags the config lacks, and the most similar one; empty if it has all."""
    from ark_jax import schema

    field = re.compile(r"--?(?:no)?config\.([\w.]+)")
    names = [match[1] for arg in args if (match := field.match(arg))]
    if not names:
        return ""
    try:
        _, holder, _ = _parse(verb, [arg for arg in args if not field.match(arg)])
    except ValueError:  # the config itself fails
        return ""
    if holder.value is None:
        return f"config.{names[0]} is a field of no config; name one, such as --config=ark"
    known = list(schema.values(holder.value))
    sections = {name[:i] for name in known for i, sign in enumerate(name) if sign == "."}
    unknown = [name for name in names if name not in sections.union(known)]
    if not unknown:
        return ""
    # Its section may be missing.
    with_section = [name for name in known if name.endswith(f".{unknown[0]}")]
    nearest = with_section or difflib.get_close_matches(unknown[0], known, 1)
    flags = " or ".join(f"--config.{name}" for name in nearest)
    hint = f"did you mean {flags}?" if nearest else "`ark-jax config` lists all"
    return f"the config has no field {unknown[0]!r} ({hint})"
