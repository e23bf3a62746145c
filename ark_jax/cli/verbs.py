"""The verbs of the command line, what `--help` prints, and the error of an unknown verb."""

import difflib
import importlib
from collections.abc import Sequence

from ark_jax.cli import flags

# Verb -> its class, a `flags.Flags` in a module of this folder, and what it is for.
VERBS = {
    "demo": ("runs:Demo", "the whole pipeline on a packaged corpus with small real models"),
    "check": ("check:Check", "what is understood of an input, and every bad row"),
    "init": ("init:Init", "a config file for documents, or for a graph, that it looks at"),
    "config": (
        "fields:Fields",
        "every field of a config: value, default, unit and meaning; * marks what was changed",
    ),
    "doctor": ("runs:Doctor", "whether this machine and all that a config names are fit for a run"),
    "plan": ("runs:Plan", "what a run would ask, cost, take and fill"),
    "baselines": (
        "evaluate:Baselines",
        "what a retriever and BM25 find before anything is trained, and whether training can help",
    ),
    "run": ("runs:Run", "tune models on your data by one of the methods; run it again to resume"),
    "status": ("runs:Status", "which stages are done, stale (and why) or missing"),
    "export": ("runs:Export", "what the training stages learn from, as JSONL for another trainer"),
    "sweep": ("sweep:Sweep", "one run for each set of settings, on shared stages, and one table"),
    "completion": (
        "completion:Completion",
        "a script that lets a shell complete verbs, flags and fields",
    ),
    "index": ("search:Index", "make documents searchable by a retriever and by words"),
    "search": ("search:Search", "the passages of an index that fit a question"),
    "ask": ("search:Ask", "an answer, and the passages that it rests on"),
    "serve": ("serve:Serve", "an index and its models behind HTTP, with a page to search it"),
    "evaluate": (
        "evaluate:Evaluate",
        "a table of retrievers, BM25 and both fused on a test set, without a run",
    ),
    "models": ("models:Models", "the families of models that are implemented"),
    "onnx": ("onnx:Onnx", "a retriever as ONNX, for onnxruntime, fastembed and browsers"),
    "retrieve": ("retrieve:Retrieve", "what of a graph fits each question of a file, as JSONL"),
}
STAGE = ("runs:Stage", "one stage of a run; `ark-jax status` lists the stages of a config")
FOOTER = """\
`ark-jax VERB --help` shows flags and an example. `ark-jax --version` prints the version.
Every field of a config is a flag: --config.train.batch=32. `ark-jax config` describes the fields.
--config=ark:paper names a packaged preset, --config=my.py a file, such as `ark-jax init` writes.
Experimental, since it never ran on such hardware: TPU, several GPUs, Slurm, and the attention
kernels cudnn, splash and tokamax.
"""


def class_of(name: str) -> type[flags.Flags]:
    """The class of a verb; any other name may be that of a stage."""
    module, _, name = VERBS.get(name, STAGE)[0].partition(":")
    return getattr(importlib.import_module(f"ark_jax.cli.{module}"), name)


def is_run(args: Sequence[str]) -> bool:
    """Whether a command starts a run or a server, which a scheduler may stop at any time."""
    return bool(args) and (args[0] in ("demo", "run", "serve", "sweep") or args[0] not in VERBS)


def overview() -> str:
    """What `ark-jax --help` prints."""
    rows = [f"  {name:<10} {summary}" for name, (_, summary) in (VERBS | {"STAGE": STAGE}).items()]
    return "\n".join(
        [
            "ark-jax: retrieval-augmented generation with the methods ARK, GPR, STAR and BAR-RAG",
            "",
            *rows,
            "",
            FOOTER,
        ]
    )


def help_of(name: str) -> str:
    """What `ark-jax VERB --help` prints."""
    warning = "" if name in VERBS or not _nearest(name) else f"{unknown_verb(name)}\n\n"
    shown = name if name in VERBS else "STAGE"
    verb, (_, summary) = class_of(name), VERBS.get(name, STAGE)
    return (
        f"{warning}ark-jax {shown} {flags.usage(verb, shown)}\n\n"
        f"{summary[0].upper()}{summary[1:]}.\n\n"
        f"{flags.describe_flags(verb, shown)}\n\nExample:\n  {verb.example}\n"
    )


def unknown_verb(name: str, stages: Sequence[str] = ()) -> str:
    """The error message of a verb that does not exist.

    Args:
        stages: names of the config's stages, if there is a config.
    """
    nearest = _nearest(name, stages)
    hint = f"; did you mean {nearest}?" if nearest else ""
    if stages:
        return (
            f"{name!r} is neither a verb nor a stage of this config{hint}; its stages: "
            f"{', '.join(stages)}; `ark-jax --help` lists the verbs"
        )
    known = "a stage needs --config, or the --workdir of a run"
    return f"unknown verb {name!r}{hint}; {known}; `ark-jax --help` lists the verbs"


def _nearest(name: str, stages: Sequence[str] = ()) -> str:
    """The verb or stage with the most similar name; empty if none is similar."""
    return next(iter(difflib.get_close_matches(name, [*VERBS, *stages], 1, 0.65)), "")
