"""Verbs that work on a config: demo, run, plan, status, export, doctor and the stages."""

import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from ark_jax.cli import verbs
from ark_jax.cli.config_flags import ConfigFlags
from ark_jax.cli.flags import flag, folder
from ark_jax.cli.process import prepare_environment, with_fix
from ark_jax.runtime.log import say


class Status(ConfigFlags):
    """Prints a line for each stage."""

    example = "ark-jax status --workdir=DIR"

    def run(self) -> int:
        from ark_jax.pipeline.status import examine

        recipe, config = opened(self)
        stages = recipe.stages(config)
        verify = [stage.name for stage in stages] if self.verify else ()
        for status in examine(stages, config, self.workdir, verify=verify):
            say(f"{status.stage:<12} {status.state:<8} {status.why}".rstrip())
        return 0


class Plan(ConfigFlags):
    """Prints calls, cost, time and disk of a run."""

    example = "ark-jax plan --config=ark --config.data.path=FILE"
    remarks = "It writes nothing to DIR and asks no endpoint."
    needed = ("config",)

    def run(self) -> int:
        prepare_environment()
        from ark_jax.estimate import plan
        from ark_jax.pipeline import named
        from ark_jax.recipes.core import models as run_models

        recipe, config = opened(self)
        models = named.paths(recipe, config, "model", "models")
        run_models.fetch_demo_models(models.values())
        say(plan.format_plan(plan.estimate(recipe, config, self.workdir)))
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
    """Runs what is not finished of a config's stages."""

    example = "ark-jax run --config=ark --config.data.path=FILE --workdir=DIR"
    needed = ("config", "workdir")
    prints = False
    stage = ""  # the one that runs; empty: all

    def run(self) -> int:
        prepare_environment()
        from ark_jax import run

        recipe, config = opened(self)
        names = [stage.name for stage in recipe.stages(config)]
        if self.stage not in ("", *names):
            raise ValueError(verbs.unknown(self.verb, names))
        confirm = lambda stages: ask_before(stages, config, self.workdir, only=self.stage)
        try:
            run.run_recipe(
                recipe,
                config,
                self.workdir,
                self.stage,
                self.store,
                verify=self.verify,
                before=None if self.yes else confirm,
                ask=None if self.yes or not _can_ask() else ask_whether_to_go_on,
            )
        except OSError as error:
            raise OSError(with_fix(error, self.workdir)) from error
        return 0


NAMES_CONFIG = re.compile(r"--?(config|workdir)(=|$)")


class Stage(Run):
    """A stage, whose name is the verb."""

    example = "ark-jax STAGE --workdir=DIR"
    needed = ("workdir",)
    stage = property(lambda self: self.verb)

    @classmethod
    def parse(cls, verb: str, args: Sequence[str]) -> Self:
        """The flags. Without any that names a config, the verb is a mistake."""
        if verb not in verbs.VERBS and not any(map(NAMES_CONFIG.match, args)):
            raise ValueError(verbs.unknown(verb))
        return super().parse(verb, args)


class Export(Stage):
    """Writes training files for another trainer, or runs the stage of this name."""

    format: str = flag("--format=NAME", "sentence-transformers, flagembedding or ms-swift", "")

    example = "ark-jax export --workdir=DIR --format=flagembedding"
    remarks = "The files lie in DIR/export-NAME. Without --format it is the stage export."

    def run(self) -> int:
        if not self.format:
            return super().run()
        prepare_environment()
        from ark_jax.pipeline.stage import Context
        from ark_jax.runtime.log import Metrics

        recipe, config = opened(self)
        write = recipe.training_files.get(self.format)
        if write is None:
            known = ", ".join(recipe.training_files) or "none"
            raise ValueError(f"bad flag: --format={self.format}: recipe {recipe.name} has {known}")
        try:
            write(Context(config, self.workdir, Metrics(self.workdir / "metrics.jsonl")))
        except OSError as error:
            raise OSError(with_fix(error, self.workdir)) from error
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
        place = "_".join(["ark_demo", *demo._words()])
        return demo if demo.workdir else dataclasses.replace(demo, workdir=folder(place, ""))

    def default_config(self):
        """The packaged config."""
        from ark_jax import config

        return config.demo(*self._words())

    def _words(self) -> list[str]:
        """What the demo shows: nothing for ARK, "documents" without questions, or a recipe.

        Raises:
            ValueError: no demo of this recipe.
        """
        if self.documents_only and self.recipe != "ark":
            raise ValueError(f"demo --recipe={self.recipe}: --documents-only belongs to ark")
        return ["documents"] * self.documents_only + [self.recipe] * (self.recipe != "ark")


def opened(verb: ConfigFlags) -> tuple:
    """The recipe and the config of a verb that works on the data of the config.

    Raises:
        ValueError: a flag that it needs is missing.
    """
    from ark_jax.pipeline import named
    from ark_jax.pipeline.recipe import recipe_of

    config, lacking = verb.open(), []
    if config is None and verb.verb not in verbs.VERBS:
        raise ValueError(verbs.unknown(verb.verb))
    if config is None:
        earlier = f"; {verb.workdir} keeps none of an earlier run" if verb.workdir else ""
        lacking.append(f"--config=FILE (`ark-jax init DATA` writes one{earlier})")
    if not verb.workdir and "workdir" in verb.needed:
        lacking.append("--workdir=DIR")
    if lacking:
        example = verb.example.replace("STAGE", verb.verb)
        raise ValueError(f"ark-jax {verb.verb} needs {' and '.join(lacking)}, as in: {example}")
    recipe = recipe_of(config)
    recipe.stages(config)  # refuses a config that lacks what is read next
    if named.data_path(recipe, config) == "":
        raise ValueError(
            "config.data.path is empty: give --config.data.path=FILE_OR_FOLDER; `ark-jax check` "
            "tests it"
        )
    return recipe, config


def ask_before(stages: Sequence, config, workdir: Path, *, only: str) -> None:
    """Returns if a run replaces no finished stage, or if the user wants it to.

    Args:
        only: the stage that runs; empty if all do.

    Raises:
        ValueError: nobody can be asked, or the answer is no.
    """
    from ark_jax.pipeline.kept_config import count_of, describe, replaced_stages, shortened

    replaced = replaced_stages(stages, config, workdir, only=only)
    if not replaced:
        return
    if not _can_ask():
        raise ValueError(
            f"{describe(replaced, workdir)}; add --yes if that is meant, or give another --workdir"
        )
    say(f"this would replace {count_of(replaced, workdir)}:")
    for status in replaced:
        say(f"  {status.stage:<12} {shortened(status.why)}")
    if not _agrees("replace? [y/N] "):
        raise ValueError("nothing is replaced; another --workdir keeps both")


def ask_whether_to_go_on(doubts: Sequence[str]) -> None:
    """Returns if the user wants a run to go on though a stage has said something against it.

    Raises:
        ValueError: the answer is no.
    """
    if not _agrees("train all the same? [y/N] "):
        raise ValueError("nothing is trained; the same command again goes on without asking")


def _can_ask() -> bool:
    return sys.stdin.isatty() and not os.environ.get("ARK_COORDINATOR")


def _agrees(prompt: str) -> bool:
    try:
        return input(prompt).strip().lower() in ("y", "yes")
    except EOFError:
        return False
