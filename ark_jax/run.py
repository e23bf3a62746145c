"""A whole run, for the command line and for Python."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.estimate import plan
from ark_jax.index.rows import write_rows
from ark_jax.pipeline import engine, fingerprints, kept_config, own_functions
from ark_jax.pipeline.recipe import Recipe, recipe_of
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.pipeline.status import examine
from ark_jax.pipeline.tables import load_json
from ark_jax.recipes.core import models
from ark_jax.recipes.core.tables import as_text, html_of
from ark_jax.runtime import distributed, log, mirror, storage, trackers
from ark_jax.runtime.map_shards import use_engine

if TYPE_CHECKING:
    from ark_jax.models.retriever import Retriever

INPUT = "input"  # in the workdir: documents and questions that came as lists
Rows = str | Path | Iterable[object]
_TRIPLE = ("head", "relation", "tail")


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished run. Printed, it is the closing table."""

    workdir: Path

    @property
    def export(self) -> Path:
        """The folder of the model that was tuned: of ARK, the retriever that won.

        sentence-transformers opens a retriever, too; `ark.PathRetriever` opens the scorer of STAR,
        `ark.Reader.local` the reader of BAR-RAG.
        """
        return self.workdir / "export"

    @property
    def report(self) -> Path:
        """The HTML page on the run."""
        return self.workdir / "report.html"

    @functools.cached_property
    def retriever(self) -> "Retriever":
        """The retriever of ARK that won: a tuned one, or the untouched one if none beats it."""
        from ark_jax.models.multi_vector import open_retriever

        return open_retriever(self.export)

    @functools.cached_property
    def table(self) -> list[dict]:
        """Systems by metrics, base first: `{"system": name, "values": {metric: {"mean"}}}`.

        `recipes.core.tables.tabulate` describes intervals and tests, which are there too.
        """
        return self._metrics["table"]

    @functools.cached_property
    def _metrics(self) -> dict:
        return load_json(self.workdir / "evaluate" / "metrics.json")

    def __str__(self) -> str:
        return as_text(self.table, self._metrics["metrics"])

    def _repr_html_(self) -> str:
        return html_of(self.table, self._metrics["metrics"])


def tune(
    retriever: str | Path,
    documents: Rows,
    questions: Rows | None = None,
    *,
    workdir: str | Path,
    recipe: str = "",
    config=None,
    replace: bool = False,
) -> Result:
    """Tunes a model as `ark-jax run` does, and measures it on held-out questions.

    Call it again after an interruption: what is finished is kept. If nothing has changed, nothing
    is done.

    Args:
        retriever: folder or hub name of the model that is tuned; of "bar_rag", which tunes the
            reader `generator.path`, the one that finds passages.
        documents: a file or folder that `ark-jax check` reads, a dataframe, or rows: dicts with
            "text" and, if there are some, "id" and "title", or `ark_jax.data.records.Document`. Of
            "gpr" and "star" the graph: a file, or triples of names.
        questions: a file, folder, dataframe or rows too; rows have "question", "answers" and, if
            known, "documents" and "evidence", or "topics". None: they are beside the documents.
        workdir: the folder of the run.
        recipe: "ark", "gpr", "star" or "bar_rag"; empty: that of `config`, else "ark".
        config: changed fields, as in `{"train.batch": 32}`, or a config of `ark_jax.config`. It is
            not changed itself.
        replace: whether finished stages that another config made are replaced; refused otherwise.

    Raises:
        BadInput: documents or questions have problems; it lists all of them.
        ValueError: a field does not exist or has a bad value, `workdir` is in a bucket, or
            finished stages would be replaced.
        RuntimeError: another run works in the workdir, or a model or endpoint is missing.
        OSError: the workdir cannot be written. What is finished is kept.
    """
    workdir = storage.local_path(workdir)
    config = _config_of(recipe, config)
    config.retriever.path = str(retriever)
    name = "triples" if config.recipe in ("gpr", "star") else "documents"
    config.data.path = _input_path(documents, workdir, name)
    if questions is not None:
        config.data.questions = _input_path(questions, workdir, "questions")
    models.suit_device(config)
    # Files may have changed since an earlier call.
    for digest in (fingerprints.input_digest, fingerprints.model_digest):
        digest.cache_clear()
    refuse = lambda stages: _refuse_to_replace(stages, config, workdir)
    run_recipe(recipe_of(config), config, workdir, before=None if replace else refuse)
    return Result(workdir)


def _refuse_to_replace(stages: list[Stage], config, workdir: Path) -> None:
    """Raises ValueError if a finished stage of another config would run again."""
    if stale := kept_config.replaced_stages(stages, config, workdir):
        raise ValueError(
            f"{kept_config.describe(stale, workdir)}; call it with replace=True if that is meant, "
            "or give another workdir"
        )


def _config_of(recipe: str, settings):
    """A new config: the default one of a recipe with changed fields, or a copy of a whole one."""
    from ark_jax import config as configs

    if recipe and recipe not in configs.SCHEMAS:
        raise ValueError(f"recipe={recipe!r}: must be {', '.join(configs.SCHEMAS)}")
    if settings is not None and not isinstance(settings, Mapping):
        if recipe not in ("", named := getattr(settings, "recipe", None)):
            raise ValueError(
                f"config: its recipe is {named!r}, not {recipe!r}; leave recipe out, or give "
                f"changed fields or a config of ark_jax.config.{recipe}"
            )
        return settings.copy_and_resolve_references()
    config = getattr(configs, recipe or "ark")()
    for field, value in (settings or {}).items():
        try:
            config.update_from_flattened_dict({field: value})
        except (KeyError, TypeError, AttributeError) as error:
            reason = " ".join(str(error.args[0] if error.args else error).split())
            raise ValueError(f"config: {field}={value!r}: {reason}") from None
    return config


def _input_path(rows: Rows, workdir: Path, name: str) -> str:
    """The path of an input. Rows are written to a file in the workdir first.

    Raises:
        ValueError: a row cannot be written as JSON.
    """
    if isinstance(rows, str | Path):
        return str(rows)
    if name == "triples":
        rows = (dict(zip(_TRIPLE, row, strict=True)) if len(row) == 3 else row for row in rows)
    return str(write_rows(rows, workdir / INPUT / f"{name}.jsonl"))


def run_recipe(
    recipe: Recipe,
    config,
    workdir: Path,
    only: str = "",
    store: Path | None = None,
    *,
    verify: bool = False,
    quiet: bool = False,
    before: Callable[[list[Stage]], None] | None = None,
    ask: Callable[[Sequence[str]], None] | None = None,
) -> None:
    """Brings all stages of a config up to date.

    Args:
        only: the one stage that runs; empty: all.
        store: where the runs of a sweep share finished stages.
        verify: compares all finished stages with their digests.
        quiet: prints the result alone.
        before: is given the stages before any work is done, and may raise.
        ask: gets the doubts of a stage that ran, if it has any; may raise to end the run.

    Raises:
        ValueError: a setting that a stage would fail on, or calls that would cost too much.
        RuntimeError: another run works in the workdir, or a model cannot be fetched.
    """
    recipe.check(config)
    stages = recipe.stages(config)
    _fetch_models(recipe, stages, config, workdir)
    if before:
        before(stages)
    plan.check_cost(recipe, config, workdir, only or "run")
    with (
        _quiet_checkpoints(),
        distributed.join_processes(),
        mirror.hold(workdir),
        trackers.open_trackers(config, workdir) as opened,
        # A recipe of one's own may lack the section.
        use_engine(config.get("data", {}).get("engine", "local")),
    ):
        own_functions.check_processes()
        metrics = log.Metrics(workdir / "metrics.jsonl", opened)
        context = Context(config, workdir, metrics, store)
        with log.quiet(quiet):
            engine.run(stages, context, only=only, verify=verify, ask=ask)
        if not only:
            for line in (*recipe.conclusion(workdir), *recipe.ending(context)):
                log.say(line)


@contextlib.contextmanager
def _quiet_checkpoints() -> Iterator[None]:
    """Silences Orbax, which logs pages about an error that it raises anyway."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _fetch_models(recipe: Recipe, stages, config, workdir: Path) -> None:
    """Fetches models unless all stages are done, so that manifests name their contents.

    A hub model that cannot be fetched may not be needed. If it is, its stage says what is wrong.

    Raises:
        RuntimeError: a default model cannot be fetched.
    """
    names = set(recipe.paths(config, "model", "models").values())
    if names and any(s.state != "done" for s in examine(stages, config, workdir)):
        models.fetch_demo_models(sorted(names))
        for name in sorted(filter(storage.is_hub_name, names)):
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                storage.hub_model(name)
        fingerprints.model_digest.cache_clear()
