"""What `--help` prints, and what is said of a verb that does not exist."""

import difflib
from collections.abc import Sequence

from ark_jax.cli import verbs

FOOTER = """\
Every field of a config is a flag: --config.train.batch=32. `ark-jax config` describes the fields.
--config=ark:paper names a packaged preset, --config=my.py a file, such as `ark-jax init` writes.
Experimental, since it never ran on such hardware: TPU, several GPUs, Slurm, and the attention
kernels cudnn, splash and tokamax.
"""


def overview() -> str:
    """What `ark-jax --help` prints."""
    rows = [*verbs.VERBS.items(), ("STAGE", verbs.STAGE)]
    lines = [f"  {name:<10} {verb.summary}" for name, verb in rows]
    head = ["ark-jax: answer-centric retriever tuning", "", *lines, ""]
    tail = (
        "`ark-jax VERB --help` shows flags and an example. `ark-jax --version` prints the version."
    )
    return "\n".join([*head, tail, FOOTER])


def help_of(name: str) -> str:
    """What `ark-jax VERB --help` prints."""
    verb = verbs.verb_of(name)
    warning = "" if name in verbs.VERBS or not _nearest(name) else f"{unknown(name)}\n\n"
    shown = name if name in verbs.VERBS else "STAGE"
    return (
        f"{warning}ark-jax {shown} {verb.usage}\n\n{verb.summary[0].upper()}{verb.summary[1:]}.\n\n"
        f"{verb.details}\nExample:\n  {verb.example}\n"
    )


def unknown(name: str, stages: Sequence[str] = ()) -> str:
    """What is said of a verb that does not exist.

    Args:
        stages: of the config, if there is one.
    """
    nearest = _nearest(name, stages)
    hint = f"; did you mean {nearest}?" if nearest else ""
    if stages:
        return (
            f"{name!r} is no verb and no stage of this config{hint}; its stages: "
            f"{', '.join(stages)}; `ark-jax --help` lists the verbs"
        )
    known = "a stage needs --config, or the --workdir of a run"
    return f"unknown verb {name!r}{hint}; {known}; `ark-jax --help` lists the verbs"


def _nearest(name: str, stages: Sequence[str] = ()) -> str:
    """The verb or stage that is written most alike; empty if none is alike."""
    return next(iter(difflib.get_close_matches(name, [*verbs.VERBS, *stages], 1, 0.65)), "")
