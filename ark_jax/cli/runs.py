"""Verbs that work on a config: run, plan, status, export, demo and the stages."""

from ark_jax.cli import replacing, verbs
from ark_jax.cli.environment import prepare_environment
from ark_jax.cli.errors import with_fix
from ark_jax.cli.flags import Request, names_config, parse
from ark_jax.cli.help import unknown
from ark_jax.runtime.log import say


def pipeline(verb: str, args: list[str]) -> int:
    """Runs a verb that works on a config."""
    from ark_jax.pipeline import named
    from ark_jax.pipeline.recipe import recipe_of

    if verb not in verbs.VERBS and not names_config(args):
        raise ValueError(unknown(verb))
    request = parse(verb, args)
    if lacking := _lacking(verb, request):
        raise ValueError(
            f"ark-jax {verb} needs {' and '.join(lacking)}, as in: {verbs.verb_of(verb).example}"
        )
    recipe = recipe_of(request.config)
    recipe.stages(request.config)  # refuses a config that lacks what is read next
    if named.data_path(recipe, request.config) == "":
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


def _lacking(verb: str, request: Request) -> list[str]:
    """The flags that a command should have and lacks."""
    lacking = []
    if request.config is None:
        earlier = f"; {request.workdir} keeps none of an earlier run" if request.workdir else ""
        lacking.append(f"--config=FILE (`ark-jax init DATA` writes one{earlier})")
    if not request.workdir and verb != "plan":
        lacking.append("--workdir=DIR")
    return lacking


def doctor(verb: str, args: list[str]) -> int:
    """Looks at this machine and at what a config names."""
    from ark_jax.doctor import diagnose

    return diagnose(lambda: parse(verb, args))


def _plan(recipe, request: Request) -> int:
    from ark_jax.estimate import plan
    from ark_jax.pipeline import named
    from ark_jax.recipes.common import default_models

    prepare_environment()
    models = named.paths(recipe, request.config, "model", "models")
    default_models.fetch_demo_models(models.values())
    say(plan.format_plan(plan.estimate(recipe, request.config, request.workdir)))
    return 0


def _status(recipe, request: Request) -> int:
    from ark_jax.pipeline.status import examine

    stages = recipe.stages(request.config)
    verify = [stage.name for stage in stages] if request.verify else ()
    for status in examine(stages, request.config, request.workdir, verify=verify):
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
    from ark_jax import run

    config, workdir = request.config, request.workdir
    names = [stage.name for stage in recipe.stages(config)]
    if verb not in ("demo", "run", *names):
        raise ValueError(unknown(verb, names))
    prepare_environment()
    only = "" if verb in ("demo", "run") else verb
    confirm = lambda stages: replacing.confirm(stages, config, workdir, only=only)
    try:
        run.run_recipe(
            recipe,
            config,
            workdir,
            only,
            request.store,
            verify=request.verify,
            before=None if request.yes else confirm,
        )
    except OSError as error:
        raise OSError(with_fix(error, workdir)) from error
    return 0
