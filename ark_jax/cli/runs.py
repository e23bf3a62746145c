"""Verbs that work on a config: run, plan, status, export, demo and the stages."""

import contextlib
import logging
from pathlib import Path

from ark_jax.cli import replacing, verbs
from ark_jax.cli.environment import prepare_environment
from ark_jax.cli.errors import with_fix
from ark_jax.cli.flags import Request, names_config, parse
from ark_jax.runtime.log import say


def pipeline(verb: str, args: list[str]) -> int:
    """Runs a verb that works on a config."""
    from ark_jax.pipeline.recipe import recipe_of

    if verb not in verbs.VERBS and not names_config(args):
        raise ValueError(verbs.unknown(verb))
    request = parse(verb, args)
    if request.config is None or not (request.workdir or verb == "plan"):
        kept = f" ({request.workdir} keeps none of an earlier run)" if request.workdir else ""
        raise ValueError(
            f"ark-jax {verb} needs --config=FILE{kept} and --workdir=DIR; `ark-jax {verb} --help` "
            "shows an example"
        )
    recipe = recipe_of(request.config)
    recipe.stages(request.config)  # refuses a config that lacks what is read next
    if recipe.needs(request.config).data == "":
        raise ValueError(
            "config.data.path is empty: give --config.data.path=FILE_OR_FOLDER; `ark-jax check` "
            "tests it"
        )
    if request.format:
        return _export(recipe, request)
    if verb == "plan":
        return _plan(recipe, request)
    if verb == "status":
        return _status(recipe, request)
    return _run(recipe, verb, request)


def doctor(verb: str, args: list[str]) -> int:
    """Looks at this machine and at what a config names."""
    from ark_jax.doctor import diagnose

    return diagnose(lambda: parse(verb, args))


def _plan(recipe, request: Request) -> int:
    from ark_jax.estimate import plan
    from ark_jax.recipes.common import default_models

    prepare_environment()
    default_models.fetch_demo_models(recipe.needs(request.config).models.values())
    say(plan.format_plan(plan.estimate(recipe, request.config, request.workdir)))
    return 0


def _status(recipe, request: Request) -> int:
    from ark_jax.pipeline import engine

    stages = recipe.stages(request.config)
    verify = [stage.name for stage in stages] if request.verify else ()
    for status in engine.examine(stages, request.config, request.workdir, verify=verify):
        say(f"{status.stage:<12} {status.state:<8} {status.why}".rstrip())
    return 0


def _export(recipe, request: Request) -> int:
    """Writes what the training stages learn from, for another trainer."""
    from ark_jax.pipeline.stage import Context
    from ark_jax.runtime.log import Metrics

    write = recipe.training_files.get(request.format)
    if write is None:
        known = ", ".join(recipe.training_files) or "none"
        raise ValueError(f"bad flag: --format={request.format}: recipe {recipe.name} has {known}")
    prepare_environment()
    workdir = request.workdir
    try:
        write(Context(request.config, workdir, Metrics(workdir / "metrics.jsonl")))
    except OSError as error:
        raise OSError(with_fix(error, workdir)) from error
    return 0


def _run(recipe, verb: str, request: Request) -> int:
    """Runs the pipeline, or the stage that the verb names."""
    from ark_jax.estimate import plan
    from ark_jax.pipeline import engine
    from ark_jax.pipeline.recipe import search_command
    from ark_jax.pipeline.stage import Context
    from ark_jax.runtime import distributed, trackers
    from ark_jax.runtime.log import Metrics

    config, workdir = request.config, request.workdir
    stages = recipe.stages(config)
    names = [stage.name for stage in stages]
    if verb not in ("demo", "run", *names):
        raise ValueError(verbs.unknown(verb, names))
    prepare_environment()
    only = "" if verb in ("demo", "run") else verb
    _fetch_models(recipe, stages, config, workdir)
    if not request.yes:
        replacing.confirm(stages, config, workdir, only=only)
    plan.check_cost(recipe, config, workdir, verb)
    # Orbax logs pages about an error that it then raises, and our own message says it.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    try:
        with distributed.join_processes(), trackers.open_trackers(config, workdir) as opened:
            metrics = Metrics(workdir / "metrics.jsonl", opened)
            context = Context(config, workdir, metrics, request.store)
            engine.run(stages, context, only=only, verify=request.verify)
            if not only and recipe.index_words(config, workdir):
                say(f"search your documents with it: {search_command(workdir)}")
    except OSError as error:
        raise OSError(with_fix(error, workdir)) from error
    return 0


def _fetch_models(recipe, stages, config, workdir: Path) -> None:
    """Fetches the models of a run that has something to do, so that manifests name their contents.

    A hub model that cannot be fetched may not be needed. If it is, its stage says what is wrong.

    Raises:
        RuntimeError: a default model cannot be fetched.
    """
    from ark_jax.pipeline import engine, fingerprints
    from ark_jax.recipes.common import default_models
    from ark_jax.runtime import storage

    names = set(recipe.needs(config).models.values()) - {""}
    if names and any(s.state != "done" for s in engine.examine(stages, config, workdir)):
        default_models.fetch_demo_models(sorted(names))
        for name in sorted(filter(storage.is_hub_name, names)):
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                storage.hub_model(name)
        fingerprints.model_digest.cache_clear()
