"""A changed field runs those stages again whose output may change, in every recipe."""

import functools
import random
import shutil

import pytest
from support.finished_runs import WORLDS, FinishedRun, finished_run

from ark_jax import schema
from ark_jax.pipeline import engine
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.recipe import load_recipe
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.status import examine
from ark_jax.recipes.ark import config as ark_config
from ark_jax.recipes.core import models
from ark_jax.runtime.log import Metrics


class Finished:
    """A finished run of a recipe on a tiny world."""

    def __init__(self, recipe: str, done: FinishedRun):
        self.recipe, self.workdir = load_recipe(recipe), done.workdir
        self.config = WORLDS[recipe].tiny_config(done.world)
        models.suit_device(self.config)
        names = [stage.name for stage in self.recipe.stages(self.config)]
        self.manifests = {name: read_manifest(self.workdir / name) for name in names}

    def changed(self, field: str, value):
        config = self.config.copy_and_resolve_references()
        config.update_from_flattened_dict({field: value})
        return config

    def stale(self, config) -> list[str]:
        stages = self.recipe.stages(config)
        return [s.stage for s in examine(stages, config, self.workdir) if s.state != "done"]

    def readers(self, field: str, element: int | None = None) -> set[str]:
        """The stages that have read a field, or this element of it, or what it names."""
        return {
            name
            for name, manifest in self.manifests.items()
            for read in (*manifest["config"], *(x.split()[-1] for x in manifest["external"]))
            if read in (field, f"{field}.{element}")
        }

    def downstream(self, names: set[str]) -> set[str]:
        """These stages, and all that have read from them, directly or not."""
        names = set(names)
        for name, manifest in self.manifests.items():
            if names & manifest["inputs"].keys():
                names.add(name)
        return names


def run(recipe, config, workdir) -> None:
    stages = recipe.stages(config)
    engine.run(stages, Context(config, workdir, Metrics(workdir / "metrics.jsonl")))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """recipe -> its finished run, which is made once."""
    return functools.cache(lambda name: Finished(name, finished_run(name, tmp_path_factory)))


@pytest.fixture
def done(request, finished):
    return finished(request.param)


each_recipe = pytest.mark.parametrize("done", WORLDS, indirect=True)


def another(spec: schema.FieldSpec, value):
    """An admissible value that differs from `value`; None if none is known."""
    if spec.content not in ("", "function") or spec.name == "recipe":
        return None  # what it names has to be there
    if spec.is_tuple:
        last = another_element(spec, value[-1]) if value else None
        return None if last is None else (*value[:-1], last)
    return another_element(spec, value)


def another_element(spec: schema.FieldSpec, value):
    if spec.rule.choices:
        return next((choice for choice in spec.rule.choices if choice != value), None)
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}x"
    nearby = (value + 1, value - 1, value * 0.9 + 0.01, 0.9 * value)
    candidates = [type(value)(x) for x in nearby]
    return next(x for x in candidates if x != value and spec.rule.admits(x))


@each_recipe
def test_a_changed_field_reruns_its_readers_and_the_stages_after_them(done):
    looked_at = 0
    for spec in schema.fields(done.recipe.schema):
        value = functools.reduce(lambda part, name: part[name], spec.name.split("."), done.config)
        new = another(spec, value)
        if new is None:
            continue
        config = done.changed(spec.name, new)
        try:
            stages = done.recipe.stages(config)
        except (ValueError, RuntimeError):  # not with the others
            continue
        looked_at += 1
        readers = done.readers(spec.name, len(value) - 1 if spec.is_tuple else None)
        if not spec.affects_output:
            assert not readers, spec.name
        again = {
            stage.name
            for stage in stages
            if stage.name not in done.manifests
            or stage.arguments != done.manifests[stage.name]["arguments"]
        }
        expected = done.downstream(readers | again) & {stage.name for stage in stages}
        assert set(done.stale(config)) == expected, spec.name
    assert looked_at > 50


# Field and value -> the first stages that run again; what has read them follows.
FIRST = {
    "ark": {
        ("data.engine", "ray"): (),
        ("mesh", (1, 2, 1)): (),
        ("train.save_every", 7): (),
        ("log.project", "another"): (),
        ("llm.model", "another"): ("rewrite", "report"),
        ("llm.price", (1.0, 2.0)): (),
        ("graph.similarity", 0.7): ("graph",),
        ("graph.large", (20, 40)): ("communities",),
        ("graph.rewrites", 9): ("rewrite",),
        ("score.forward", 0.5): ("positives",),
        ("score.shard", 3): (),
        ("mine.margin", 0.9): ("mine2", "mine3"),
        ("train.temperature", 0.04): ("stage1", "stage2", "stage3", "export"),
        ("train.epochs", (2, 1, 3)): ("stage3", "export"),
        ("train.learning_rates", (1e-5, 7e-6, 4e-6)): ("stage2", "export"),
        ("train.teacher_temperature", 0.4): ("export",),  # which describes all of the training
        ("evaluate.retrievers", ("somebody/else",)): ("baselines", "evaluate"),
        ("reader.temperature", 0.3): ("evaluate",),
        ("judge.model", "another"): (),  # nobody judges
    },
    "gpr": {
        ("questions.triples", 3): ("questions",),
        ("search.hops", 1): ("baselines", "evaluate", "report"),
        ("train.batch", 7): ("train", "export"),
        ("llm.timeout", 9.0): (),
    },
    "star": {
        ("paths.seconds", 99.0): ("paths",),
        ("mine.negatives", 4): ("mine", "train"),
        ("train.temperature", 0.04): ("train", "export"),
        ("search.beam", 6): ("baselines", "evaluate"),
        ("train.save_every", 7): (),
    },
    "bar_rag": {
        ("pool.size", 5): ("pool", "select-1", "report"),
        ("read.f1", 0.75): ("read-1", "export"),  # the selector is rewarded by likelihoods here
        ("select.sets", 5): ("select-1", "export"),
        ("warm.learning_rate", 1e-4): ("warm", "export"),
        ("train.remat", "all"): (),
    },
}


@pytest.mark.parametrize(
    ("done", "field", "value", "first"),
    [
        (recipe, field, value, first)
        for recipe, cases in FIRST.items()
        for (field, value), first in cases.items()
    ],
    indirect=["done"],
)
def test_a_changed_field_reruns_no_earlier_stage_than_expected(done, field, value, first):
    assert set(done.stale(done.changed(field, value))) == done.downstream({*first})


def test_sweeps_rerun_no_upstream_stage(finished):
    done = finished("ark")
    upstream = {"data", "candidates", "extract", "graph", "communities", "rewrite", "score"}
    for name, runs in ark_config.SWEEPS.items():
        if name not in ("seeds", "folds"):  # they divide the questions anew
            for changes in runs.values():
                config = done.config.copy_and_resolve_references()
                config.update_from_flattened_dict(changes)
                assert not upstream & set(done.stale(config)), changes


@pytest.mark.slow
@each_recipe
def test_a_partial_rerun_equals_a_run_from_the_beginning(done, tmp_path):
    """So no stage depends on a field that it has not recorded."""
    # A run of this process: another one, such as `done`, may round otherwise.
    whole = tmp_path / "whole"
    run(done.recipe, done.config, whole)
    draw = random.Random(7)
    fields = [spec for spec in schema.fields(done.recipe.schema) if spec.affects_output]
    draw.shuffle(fields)
    compared = 0
    for spec in fields:
        value = functools.reduce(lambda part, name: part[name], spec.name.split("."), done.config)
        new = another(spec, value)
        if new is None or not done.readers(spec.name) - {"export", "report"}:
            continue
        config, again = done.changed(spec.name, new), tmp_path / f"again-{spec.name}"
        shutil.copytree(whole, again)
        try:
            run(done.recipe, config, again)
        except (ValueError, RuntimeError):  # not with the others, or not on so small a world
            continue
        anew = tmp_path / f"anew-{spec.name}"
        run(done.recipe, config, anew)
        for stage in done.recipe.stages(config):
            if stage.name != "report":
                outputs = [read_manifest(x / stage.name)["outputs"] for x in (again, anew)]
                assert outputs[0] == outputs[1], (spec.name, stage.name)
        compared += 1
        if compared == 3:
            return
    pytest.fail(f"only {compared} fields could be compared")


def test_stages_run_one_by_one_record_the_same_reads(finished, tmp_path):
    """What an earlier stage has left in memory hides no read."""
    done = finished("gpr")
    for stage in (stages := done.recipe.stages(done.config)):
        context = Context(done.config, tmp_path, Metrics(tmp_path / "metrics.jsonl"))
        engine.run(stages, context, only=stage.name)
        alone = read_manifest(tmp_path / stage.name)
        for part in ("config", "external"):
            assert alone[part] == done.manifests[stage.name][part], stage.name
        assert alone["inputs"].keys() == done.manifests[stage.name]["inputs"].keys()
