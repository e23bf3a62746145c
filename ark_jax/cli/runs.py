"""Verbs that work on a config: demo, run, plan, status, export, doctor and the stages."""

import contextlib
import dataclasses
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from ark_jax.cli import verbs
from ark_jax.cli.config_flags import ConfigFlags
from ark_jax.cli.flags import flag, read_folder
from ark_jax.cli.process import message_with_fix, prepare_environment
from ark_jax.runtime import mirror
from ark_jax.runtime.log import say


class Status(ConfigFlags):
    """Prints a line for each stage."""

    example = "ark-jax status --workdir=DIR"

    def run(self) -> int:
        from ark_jax.index import folder as folders
        from ark_jax.pipeline.status import watch

        recipe, config = open_recipe(self)
        stages = recipe.stages(config)
        verify = [stage.name for stage in stages] if self.verify else ()
        for status in watch(stages, config, self.workdir, verify=verify):
            mark = "," * (status.state == "running" and bool(status.why))
            say(f"{status.stage:<12} {status.state + mark:<8} {status.why}".rstrip())
        index = self.workdir / "index"
        if self.verify and folders.is_index(index):
            folders.check_digests(index)
            say(f"{'index':<12} done")
        with live_page(self, recipe, config):
            while self.page:
                time.sleep(1)
        return 0


class Plan(ConfigFlags):
    """Prints calls, cost, time, memory and disk of a run."""

    device: str = flag(
        "--device=NAME",
        "plans for devices that are not here: v5e-256 (chips of a TPU v4, v5e, v5p or v6e), h100, "
        "h100x8 (GPUs of one machine; a100, h200)",
        "",
    )
    verify: bool = flag(
        "--verify",
        "asks the compiler of --device what each training step holds, in minutes; needs "
        "`pip install 'ark_jax[aot]'`",
        False,
    )

    example = "ark-jax plan --config=ark --config.data.path=FILE"
    remarks = "It writes nothing to DIR and asks no endpoint."
    needed = ("config",)

    def run(self) -> int:
        prepare_environment()
        if not self.device:
            if self.verify:
                raise ValueError("--verify: name devices to compile for, as in --device=v5e-256")
            return self._print()
        os.environ["JAX_PLATFORMS"] = "cpu"  # whatever this machine has stays free
        from ark_jax.estimate import targets
        from ark_jax.runtime.accelerator import assuming

        target = targets.target(self.device)
        if self.verify and (reason := targets.absence(target)):
            raise ValueError(f"--verify: {reason}")
        with assuming(target.device):
            return self._print(target)

    def _print(self, target=None) -> int:
        """Prints the plan for these devices, or for this machine's."""
        from ark_jax.estimate import plan
        from ark_jax.recipes.core import models as run_models

        recipe, config = open_recipe(self)
        models = recipe.paths(config, "model", "models")
        run_models.fetch_demo_models(models.values())
        planned = plan.estimate(recipe, config, self.workdir, target, verify=self.verify)
        say(plan.format_plan(planned))
        return 0


class Doctor(ConfigFlags):
    """Looks at this machine and at what a config names; 1 if there is a problem."""

    example = "ark-jax doctor --config=ark --config.data.path=FILE --workdir=DIR"
    remarks = "It spends nothing."
    needed = ()

    def run(self) -> int:
        from ark_jax.doctor import diagnose

        return diagnose(self.open, self.workdir)


class Run(ConfigFlags):
    """Runs the unfinished stages of a config."""

    example = "ark-jax run --config=ark --config.data.path=FILE --workdir=DIR"
    needed = ("config", "workdir")
    prints = False
    stage = ""  # the one that runs; empty: all

    def run(self) -> int:
        prepare_environment()
        from ark_jax import run

        recipe, config = open_recipe(self)
        names = [stage.name for stage in recipe.stages(config)]
        if self.stage not in ("", *names):
            raise ValueError(verbs.unknown_verb(self.verb, names))
        confirm = lambda stages: confirm_replacing(stages, config, self.workdir, only=self.stage)
        try:
            with live_page(self, recipe, config):
                run.run_recipe(
                    recipe,
                    config,
                    self.workdir,
                    self.stage,
                    self.store,
                    verify=self.verify,
                    quiet=self.quiet,
                    before=None if self.yes else confirm,
                    ask=None if self.yes or not _can_ask() else confirm_training,
                )
        except OSError as error:
            raise OSError(message_with_fix(error, self.workdir)) from error
        return 0


NAMES_CONFIG = re.compile(r"--?(config|workdir)(=|$)")


class Stage(Run):
    """A stage, whose name is the verb."""

    example = "ark-jax STAGE --workdir=DIR"
    needed = ("workdir",)
    stage = property(lambda self: self.verb)

    @classmethod
    def parse(cls, verb: str, args: Sequence[str]) -> Self:
        """The flags. Raises ValueError for an unknown verb without a flag that names a config."""
        if verb not in verbs.VERBS and not any(map(NAMES_CONFIG.match, args)):
            raise ValueError(verbs.unknown_verb(verb))
        return super().parse(verb, args)


class Export(Stage):
    """Writes training files for another trainer, or runs the stage of this name."""

    format: str = flag("--format=NAME", "sentence-transformers, flagembedding or ms-swift", "")

    example = "ark-jax export --workdir=DIR --format=flagembedding"
    remarks = "The files are written to DIR/export-NAME. Without --format it is the stage export."

    def run(self) -> int:
        if not self.format:
            return super().run()
        prepare_environment()
        from ark_jax.pipeline.stage import Context
        from ark_jax.runtime.log import Metrics

        recipe, config = open_recipe(self)
        write = recipe.training_files.get(self.format)
        if write is None:
            known = ", ".join(recipe.training_files) or "none"
            raise ValueError(f"bad flag: --format={self.format}: recipe {recipe.name} has {known}")
        try:
            with mirror.hold(self.workdir):
                write(Context(config, self.workdir, Metrics(self.workdir / "metrics.jsonl")))
        except OSError as error:
            raise OSError(message_with_fix(error, self.workdir)) from error
        return 0


class Demo(Run):
    """A run on packaged data."""

    documents_only: bool = flag(
        "--documents-only", "from documents alone: training questions are written", False
    )
    recipe: str = flag(
        "--recipe=ark|gpr|star|bar_rag",
        "gpr: a retriever of triples, trained on a packaged graph alone; star: relation paths of "
        "that graph, trained on packaged questions; bar_rag: a reader that learns from its own "
        "answers to noisy passages",
        "ark",
    )

    example = "ark-jax demo"
    remarks = (
        "Without --config and --workdir it has its own config and goes to ./ark_demo or, of "
        "another recipe, to ./ark_demo_RECIPE. The models are kept in $ARK_CACHE, else in the XDG "
        "cache."
    )
    needed = ()

    @classmethod
    def parse(cls, verb: str, args: Sequence[str]) -> Self:
        """The flags, with the folder that a demo has by default."""
        demo = super().parse(verb, args)
        place = "_".join(["ark_demo", *demo._demo_words()])
        return demo if demo.workdir else dataclasses.replace(demo, workdir=read_folder(place, ""))

    def default_config(self):
        """The packaged config."""
        from ark_jax import config

        return config.demo(*self._demo_words())

    def run(self) -> int:
        """Runs the demo; the last line says how to go on with data of one's own."""
        super().run()
        say("then your own data: ark-jax init DATA && ark-jax run --config=config.py --workdir=DIR")
        return 0

    def _demo_words(self) -> list[str]:
        """The arguments of `config.demo`: none for ARK, "documents", or the name of a recipe.

        Raises:
            ValueError: --documents-only with another recipe than ARK.
        """
        if self.documents_only and self.recipe != "ark":
            raise ValueError(f"demo --recipe={self.recipe}: --documents-only belongs to ark")
        return ["documents"] * self.documents_only + [self.recipe] * (self.recipe != "ark")


def open_recipe(verb: ConfigFlags) -> tuple:
    """The recipe and the config of a verb's flags.

    Raises:
        ValueError: a flag or the config's data.path is missing, or the config is bad.
    """
    from ark_jax.pipeline.recipe import recipe_of

    config, lacking = verb.open(), []
    if config is None and verb.verb not in verbs.VERBS:
        raise ValueError(verbs.unknown_verb(verb.verb))
    if config is None:
        place = verb.workdir and mirror.address(verb.workdir)
        earlier = f"; {place} keeps none of an earlier run" if place else ""
        lacking.append(f"--config=FILE (`ark-jax init DATA` writes one{earlier})")
    if not verb.workdir and "workdir" in verb.needed:
        lacking.append("--workdir=DIR")
    if lacking:
        example = verb.example.replace("STAGE", verb.verb)
        raise ValueError(f"ark-jax {verb.verb} needs {' and '.join(lacking)}, as in: {example}")
    recipe = recipe_of(config)
    recipe.stages(config)  # raises if the config lacks a field that is read next
    if recipe.data_path(config) == "":
        raise ValueError(
            "config.data.path is empty: give --config.data.path=FILE_OR_FOLDER; `ark-jax check` "
            "tests it"
        )
    return recipe, config


@contextlib.contextmanager
def live_page(verb: ConfigFlags, recipe, config) -> Iterator[None]:
    """Serves a page on the workdir while the block runs, and says where, if --page asks for it."""
    if not verb.page:
        yield
        return
    from ark_jax.pipeline.status import watch
    from ark_jax.report import live

    config = config.copy_and_resolve_references()  # the run's own is read by its stages
    with live.serving(
        verb.workdir,
        lambda journal: watch(recipe.stages(config), config, verb.workdir, journal=journal),
    ) as address:
        say(f"watch it in a browser: {address}")
        yield


def confirm_replacing(stages: Sequence, config, workdir: Path, *, only: str) -> None:
    """Asks the user whether a run may replace finished stages; returns if it may.

    Args:
        only: the stage that runs; empty if all do.

    Raises:
        ValueError: there is no terminal to ask on, or the answer is no.
    """
    from ark_jax.pipeline.kept_config import describe, describe_count, replaced_stages, shortened

    replaced = replaced_stages(stages, config, workdir, only=only)
    if not replaced:
        return
    if not _can_ask():
        raise ValueError(
            f"{describe(replaced, workdir)}; add --yes if that is meant, or give another --workdir"
        )
    say(f"this would replace {describe_count(replaced, workdir)}:")
    for status in replaced:
        say(f"  {status.stage:<12} {shortened(status.why)}")
    if not _agrees("replace? [y/N] "):
        raise ValueError("nothing is replaced; another --workdir keeps both")


def confirm_training(doubts: Sequence[str]) -> None:
    """Asks the user whether a run may train although a stage doubts it; returns if it may.

    Args:
        doubts: the sentences of the stage, which it has printed.

    Raises:
        ValueError: the answer is no.
    """
    if not _agrees("train all the same? [y/N] "):
        raise ValueError("nothing is trained; the same command again trains without asking")


def _can_ask() -> bool:
    """Whether there is a terminal to ask on, and one process alone."""
    return sys.stdin.isatty() and not os.environ.get("ARK_COORDINATOR")


def _agrees(prompt: str) -> bool:
    """Whether the user answers yes."""
    try:
        return input(prompt).strip().lower() in ("y", "yes")
    except EOFError:
        return False
