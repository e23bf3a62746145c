"""Replies of an engine: exact ids, our log-probabilities, its weights, and what it may do wrong."""

import dataclasses
import itertools
import signal
import time

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import tiny
from support.bar_world import call, context_of, start
from support.bar_writer import make_writer
from support.rollout_server import COMPLETE, RELOADS, RESET, RolloutServer
from support.world import outputs

from ark_jax.llm import endpoint
from ark_jax.models.language import LanguageModel
from ark_jax.pipeline import engine
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.bar_rag import config
from ark_jax.recipes.bar_rag.reading import _set_number
from ark_jax.recipes.bar_rag.recipe import stages
from ark_jax.recipes.bar_rag.rollout_engine import RolloutEngine, _request_seed
from ark_jax.recipes.bar_rag.rollouts import stage_seed
from ark_jax.recipes.documents.corpus import stored_chunks

pytest.importorskip("openai", reason="the client of endpoints: pip install 'ark-jax[llm]'")
pytestmark = pytest.mark.usefixtures("mesh", "short_waits")
PROMPTS = ["The bell of Arl", "What metal is the bell of Brod?", "The salt"]
PLACES = np.array([(3, 0), (3, 1), (3, 5)])
DRAWS = {_request_seed(7, place): (7, tuple(place)) for place in PLACES}
ASKED = {"n": 3, "max_new_tokens": 5, "seed": 7, "temperature": 1.0, "top_p": 1.0}


@pytest.fixture
def short_waits(monkeypatch):
    monkeypatch.setattr(endpoint, "BACKOFF", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("base") / "base", "llama", tokenizer="plain")


@pytest.fixture
def lm(base):
    return LanguageModel.from_pretrained(base)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "policy"


def other_weights(lm: LanguageModel) -> LanguageModel:
    return dataclasses.replace(lm, model=jax.tree.map(lambda x: 1.5 * x, lm.model))


def engine_of(server: RolloutServer, **changes) -> RolloutEngine:
    settings = {"engine": "vllm", "key_env": "ARK_TEST_KEY", "concurrency": 2, "timeout": 60.0}
    settings |= {"model": str(server.folder), "retries": 2, "tolerance": 1e-3}
    return RolloutEngine(server.url, **settings | changes)


def draw(engine: RolloutEngine, lm: LanguageModel, **changes):
    return engine.sample(lm, PROMPTS, places=PLACES, **{"log_probs": False} | ASKED | changes)


@pytest.mark.parametrize("form", ["vllm", "sglang"])
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.95)])
def test_an_engine_gives_the_replies_that_the_model_itself_samples(
    lm, folder, form, temperature, top_p
):
    changes = {"temperature": temperature, "top_p": top_p, "log_probs": True}
    with RolloutServer(folder, draws=DRAWS).running() as server:
        theirs = draw(engine_of(server, engine=form), lm, **changes)
    ours = lm.sample(PROMPTS, places=PLACES, **ASKED | changes)
    for name in ("prompts", "samples", "ended"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)
    assert list(map(list, ours.ids)) == list(map(list, theirs.ids)) and ours.texts == theirs.texts
    assert len(set(map(tuple, ours.ids))) > 3 and ours.ended.any() < ours.ended.size
    for mine, scored in zip(ours.log_probs, theirs.log_probs, strict=True):
        np.testing.assert_array_equal(mine, scored)


@pytest.mark.parametrize("form", ["vllm", "sglang"])
def test_weights_are_handed_over_whenever_they_have_changed(lm, folder, form):
    with RolloutServer(folder).running() as server:
        engine, other = engine_of(server, engine=form), other_weights(lm)
        counts = []
        for model in (lm, lm, other, other, lm):
            draw(engine, model)
            counts.append(server.count(*RELOADS))
    assert counts == [1, 1, 2, 2, 3]


def test_weights_are_handed_over_in_the_type_in_which_the_model_computes(base, folder):
    """The server computes in float32, a difference that the default tolerates."""
    half = LanguageModel.from_pretrained(base, compute="bfloat16")
    tolerated = config.bar_rag().rollout.tolerance
    with RolloutServer(folder).running() as server:
        draw(engine_of(server, tolerance=tolerated), half)
        with pytest.raises(RuntimeError, match="differ from ours by"):
            draw(engine_of(server, tolerance=1e-7), half)
    assert {str(x.dtype) for x in load_file(folder / "model.safetensors").values()} == {"bfloat16"}


def test_a_request_repeats_with_its_place_alone(lm, folder):
    with RolloutServer(folder).running() as server:
        engine = engine_of(server)
        whole, part = (
            draw(engine, lm),
            engine.sample(lm, PROMPTS[1:2], places=PLACES[1:2], log_probs=False, **ASKED),
        )
    assert list(map(list, whole.ids[3:6])) == list(map(list, part.ids))


def test_the_key_comes_from_the_environment(lm, folder, monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", "bad key")
    with (
        RolloutServer(folder).running() as server,
        pytest.raises(RuntimeError, match=r"\$ARK_TEST_KEY holds blanks"),
    ):
        draw(engine_of(server), lm)


# Faults.


@pytest.mark.parametrize("form", ["vllm", "sglang"])
def test_an_engine_that_forgets_to_read_its_folder_is_refused(lm, folder, form):
    with RolloutServer(folder, forgets=True).running() as server:
        engine = engine_of(server, engine=form)
        draw(engine, lm)
        with pytest.raises(RuntimeError, match=r"does not have the weights.*rollout\.tolerance"):
            draw(engine, other_weights(lm))


def test_an_engine_that_was_started_anew_with_older_weights_is_refused(lm, folder):
    """Nothing tells the run; the log-probabilities of the next replies do."""
    with RolloutServer(folder).running() as server:
        engine, other = engine_of(server), other_weights(lm)
        draw(engine, other)
        server._model = lm
        with pytest.raises(RuntimeError, match="does not have the weights"):
            draw(engine, other)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_refusals_change_nothing(lm, folder, status):
    refuse_first = lambda path, number: status if number < 1 else None
    with RolloutServer(folder, draws=DRAWS, faults=refuse_first).running() as server:
        drawn = draw(engine_of(server), lm)
        assert server.count(RELOADS[0]) == 2 and server.count(COMPLETE) > 6
    ours = lm.sample(PROMPTS, places=PLACES, log_probs=False, **ASKED)
    assert list(map(list, ours.ids)) == list(map(list, drawn.ids))


START = "start the engine as `VLLM_SERVER_DEV_MODE=1 vllm serve "


@pytest.mark.parametrize(
    ("faulty", "fault", "message"),
    [
        (COMPLETE, 500, r"/v1/completions: status 500.*\(3 times\); run the same command again"),
        (COMPLETE, "hang", r"no reply within 3 s, see config\.rollout\.timeout"),
        (RELOADS[0], 404, f"/collective_rpc: status 404.*; {START}"),
        (RESET, {"success": False}, rf"/reset_prefix_cache.* has not taken .*\{{'.*; {START}"),
        (COMPLETE, 400, f"status 400.*; {START}"),
    ],
)
def test_lasting_refusals_and_stalls_are_named(lm, folder, faulty, fault, message):
    faults = lambda path, number: fault if path == faulty else None
    limits = {"timeout": 3.0, "retries": 0} if fault == "hang" else {}
    with (
        RolloutServer(folder, faults=faults).running() as server,
        pytest.raises(RuntimeError, match=message),
    ):
        draw(engine_of(server, **limits), lm)


def test_an_address_where_nothing_answers_says_how_to_start_the_engine(lm, folder):
    """The folder is there by then, so the engine can be started."""
    server = RolloutServer(folder)
    with server.running():
        pass
    with pytest.raises(RuntimeError, match=rf"see config\.rollout\.base_url.*; {START}"):
        draw(engine_of(server), lm)
    assert (folder / "model.safetensors").is_file()


def on_choices(change):
    """Changes the choices of an answer that has several."""

    def on_answer(answer):
        choices = answer["choices"]
        if len(choices) > 1:
            answer["choices"] = change(choices)
        return answer

    return on_answer


def each(change):
    return on_choices(lambda choices: [choice | change(choice) for choice in choices])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (on_choices(lambda choices: choices[:-1]), "2 replies to a prompt, of 3"),
        (each(lambda x: {"token_ids": None}), f"without token ids; {START}"),
        (each(lambda x: {"token_ids": ["token_id:5"]}), "without token ids"),
        (lambda answer: [], "without token ids"),
        (each(lambda x: {"token_ids": []}), "a reply of 0 tokens, where 1 to 5"),
        (each(lambda x: {"token_ids": [9] * 6}), "a reply of 6 tokens, where 1 to 5"),
        (each(lambda x: {"token_ids": [9] * 4}), r"4 tokens \(finish_reason=.*longer context"),
        (each(lambda x: {"token_ids": [1, 9, 9, 9, 9]}), "goes on after the token that ends"),
        (each(lambda x: {"token_ids": [9, 999]}), "token ids 9 to 999, but the model has 304"),
    ],
)
def test_replies_of_another_form_are_refused(lm, folder, change, message):
    with (
        RolloutServer(folder, change=change).running() as server,
        pytest.raises(RuntimeError, match=message),
    ):
        draw(engine_of(server), lm)


def test_an_engine_without_log_probabilities_is_refused(lm, folder):
    def leave_out(answer):
        for choice in answer["choices"]:
            choice["logprobs"] = None
        return answer

    with (
        RolloutServer(folder, change=leave_out).running() as server,
        pytest.raises(RuntimeError, match="gives 0 log-probabilities of"),
    ):
        draw(engine_of(server), lm)


def test_seeds_of_different_draws_differ():
    places = list(itertools.product(range(40), range(40)))
    assert len({_request_seed(seed, place) for seed in (0, 1) for place in places}) == 3200


# Whole runs.

READ_SAMPLES = 6
SAMPLED = {"success.by": "samples", "success.answers": 5, "filter.low": 0.0, "filter.chance": False}
SAMPLED |= {"read.updates": 2, "read.samples": READ_SAMPLES, "evaluate.removal": False}
SAMPLED |= {"evaluate.sizes": ()}


def draws_of_runs(run: Context) -> dict[int, tuple[int, tuple]]:
    """Seed of a request -> seed and place, for all draws of small runs."""
    numbers, chunks = range(16), [chunk.id for chunk in stored_chunks(run)]
    sets = [*itertools.permutations(chunks, 2), *((chunk,) for chunk in chunks)]
    judged = list(itertools.product(numbers, map(_set_number, sets)))
    names = ("untuned", "warm", "read-1")
    places = {f"success {name}": judged for name in names}
    places["read-1"] = places["select-1"] = list(itertools.product(range(3), numbers))
    places["filter-1"] = [(0, number) for number in numbers]
    seeds = {name: stage_seed(run.config, name) for name in places}
    return {
        _request_seed(seeds[name], place): (seeds[name], place)
        for name, places_of_name in places.items()
        for place in places_of_name
    }


def at_engine(server: RolloutServer, **changes) -> dict:
    """Settings with which a run asks a server."""
    settings = {"backend": "openai", "base_url": server.url, "model": str(server.folder)}
    settings |= {"tolerance": 1e-3, "retries": 2} | changes
    return {f"rollout.{name}": value for name, value in settings.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vectors", "writer"])
def test_a_run_with_an_engine_equals_one_without(run, world, tmp_path, folder, kind):
    """p, rewards, our log-probabilities, and the weights that have learned from them.

    A writer's weights and the reader's take turns in the engine.
    """
    changes = SAMPLED | {"selector.kind": kind}
    if kind == "writer":
        writer = {"generator.path": str(make_writer(world)), "selector.max_new_tokens": 64}
        changes |= writer | {"prompts.select": str(world / "select.txt"), "filter.questions": 8}
    here = context_of(world, tmp_path / "here", **changes)
    engine.run(stages(here.config), here)
    with RolloutServer(folder, draws=draws_of_runs(run)).running() as server:
        there = context_of(world, tmp_path / "there", **changes | at_engine(server))
        engine.run(stages(there.config), there)
    assert outputs(here.workdir) == outputs(there.workdir) and server.count(COMPLETE) > 100
    for context in (here, there):
        rows = load_rows(context / "read-1" / "answers.parquet")
        assert all(len(row["old"]) == len(row["ids"]) for row in rows)
        assert {row["em"] for row in rows} == {0.0, 1.0} and any(row["advantage"] for row in rows)


@pytest.mark.slow
def test_a_killed_run_asks_for_what_it_lacks_and_gives_the_same_bytes(world, tmp_path):
    """In an engine that keeps to its seeds."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with RolloutServer(tmp_path / "policy").running() as server:
        settings = (SAMPLED | at_engine(server)).items()
        flags = [f"--config.{name}={value}" for name, value in settings]
        done = call(world, whole, "run", *flags)
        assert done.returncode == 0, done.stderr
        server.requests.clear()
        process = start(world, killed, *flags)
        step = killed / ".partial" / "read-1" / "step-000001.parquet"
        while process.poll() is None and not step.is_file():
            time.sleep(0.05)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        before = [body["seed"] for path, body in server.requests if body.get("n") == READ_SAMPLES]
        server.requests.clear()
        assert call(world, killed, "run", *flags).returncode == 0
        after = [body["seed"] for path, body in server.requests if body.get("n") == READ_SAMPLES]
    assert outputs(whole) == outputs(killed)
    first_two_steps = before[: 2 * 4]
    assert len(first_two_steps) == 8 and after and set(after).isdisjoint(first_two_steps)
