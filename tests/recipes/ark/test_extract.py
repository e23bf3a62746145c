"""Extraction and rewriting of a small corpus through a model that is reached over HTTP, on good
days and on bad ones."""

import collections
import json
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support import llm_server
from support.world import call_here, command, make_world, tiny_config

from ark_jax.data.spool import StoredChunks
from ark_jax.llm import endpoint, rule_based
from ark_jax.pipeline import engine
from ark_jax.recipes.ark.recipe import stages
from ark_jax.runtime.log import Metrics, read_rows
from ark_jax.text import prompts

pytest.importorskip(
    "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
)
KEY = "sk-stages-and-never-on-disk-0123"
LLM_STAGES = ("data", "candidates", "extract", "graph", "communities", "rewrite")
GLEAN = prompts.load_template("glean")
EXTRACT = prompts.load_template("extract")[:40]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(endpoint, "BACKOFF", 0.02)


def model(messages: list[dict]) -> str:
    """Reads a passage by statistics and rewrites by templates, from what its prompt says."""
    prompt = messages[0]["content"]
    if prompt.startswith(EXTRACT):
        passage = prompt.partition("Passage:\n")[2]
        return rule_based.extract_graph(
            passage, collections.Counter(rule_based.candidate_terms(passage))
        )
    question = re.search(r"^Question: (.*)$", prompt, re.MULTILINE)[1]
    return rule_based.rewrite_question(
        question, re.findall(r"^- (.*?) \(", prompt, re.MULTILINE), 10
    )


def run(
    world: Path, workdir: Path, server, only: tuple[str, ...] = LLM_STAGES, **changes
) -> engine.Context:
    c = tiny_config(world)
    c.llm.backend, c.llm.base_url, c.llm.model, c.llm.key_env = (
        "openai",
        server.url,
        "toy",
        "ARK_TEST_KEY",
    )
    c.llm.timeout, c.llm.price = 2.0, (1.0, 2.0)
    c.data.chunk_tokens = 200
    for name, value in changes.items():
        part, _, field = name.partition("_")
        c[part][field] = value
    context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
    for stage in only:
        engine.run(stages(c), context, only=stage)
    return context


def counts(context: engine.Context, stage: str) -> dict:
    return engine.read_manifest(context / stage)["counts"]


@pytest.fixture(scope="module")
def sound(world, tmp_path_factory):
    """A run without faults: its context and how many requests it made."""
    with pytest.MonkeyPatch.context() as patch, llm_server.serving(model) as server:
        patch.setenv("ARK_TEST_KEY", KEY)
        return run(world, tmp_path_factory.mktemp("sound"), server), len(server.requests)


MADE = (
    "extract/entities.parquet",
    "extract/relations.parquet",
    "graph/graph.parquet",
    "rewrite/rewritten.parquet",
)


def made(context: engine.Context) -> dict[str, list]:
    paths = [
        path
        for stage in ("extract", "graph", "communities", "rewrite")
        for path in (context / stage).rglob("*.parquet")
        if path.stem != "quarantine"
    ]
    return {
        path.relative_to(context.workdir).as_posix(): pq.read_table(path).to_pylist()
        for path in paths
    }


FAULTS = {
    "429": 0.08,
    "500": 0.06,
    "502": 0.05,
    "503": 0.05,
    "reset": 0.06,
    "cut": 0.05,
    "truncated": 0.05,
    "empty": 0.03,
    "blank": 0.03,
    "no choices": 0.03,
    "hang": 0.01,
    "miscount": 0.06,
    "think": 0.04,
}


@pytest.mark.parametrize("seed", [1, 2])
def test_failing_requests_do_not_change_the_graph_or_the_questions(seed, sound, world, tmp_path):
    draw = llm_server.random_faults(seed, **FAULTS)
    # No request fails for good: neither three times in a row nor when asked about its reply.
    faults = lambda said, attempt: (
        draw(said, attempt) if attempt < 2 and "assistant" not in said else None
    )
    with llm_server.serving(model, faults, retry_after={"Retry-After": "0.05"}) as server:
        context = run(world, tmp_path, server)
        faults = collections.Counter(request.fault for request in server.requests)
    assert made(context) == made(sound[0]) and len(made(context)) >= 5
    assert sum(n for fault, n in faults.items() if fault) > 0.3 * sound[1] and len(faults) > 7
    usage = {stage: counts(context, stage)["llm"] for stage in ("extract", "rewrite")}
    assert (
        sum(x["retries"] for x in usage.values()) + sum(x["asked_again"] for x in usage.values())
        > 6
    )
    assert sum(x["calls"] for x in usage.values()) == sound[1]
    assert counts(context, "rewrite")["quarantined"] == 0


def test_the_calls_tokens_and_cost_of_a_run_add_up(sound):
    context, requests = sound
    extract, rewrite = (counts(context, stage)["llm"] for stage in ("extract", "rewrite"))
    assert (
        extract["calls"] + rewrite["calls"] == extract["requests"] + rewrite["requests"] == requests
    )
    for usage in (extract, rewrite):
        assert usage["cost"] == pytest.approx(
            (usage["input_tokens"] + 2 * usage["output_tokens"]) / 1e6
        )
        assert usage["input_tokens"] > 1_000 and usage["output_tokens"] > 1_000
        assert usage["cached"] == usage["asked_again"] == usage["retries"] == 0
    logged = {row["stage"]: row["llm"] for row in read_rows(context.metrics.path) if "llm" in row}
    assert logged == {"extract": extract, "rewrite": rewrite}
    rows = list(read_rows(context.workdir / "llm" / "replies.jsonl"))
    assert sum(row["cost"] for row in rows) == pytest.approx(extract["cost"] + rewrite["cost"])
    assert all(row["seconds"] > 0 for row in rows)


def test_a_rejected_passage_does_not_affect_other_passages(sound, world, tmp_path):
    with llm_server.serving(
        model, lambda conversation, attempt: "400" if "Tidal Board" in conversation else None
    ) as server:
        context = run(world, tmp_path, server, ("data", "candidates", "extract"))
    lost = pq.read_table(context / "extract" / "quarantine.parquet").to_pylist()
    chunks = {x.id for x in StoredChunks(context / "data") if "Tidal Board" in x.passage}
    assert (
        chunks
        and {x["chunk"] for x in lost} == chunks
        and all("no reply: status 400" in x["reason"] for x in lost)
    )
    assert counts(context, "extract")["quarantine_reasons"] == {"no reply": len(chunks)}
    other_facts = lambda context: [
        x for x in made(context)["extract/entities.parquet"] if x["chunk"] not in chunks
    ]
    assert other_facts(context) == other_facts(sound[0]) and other_facts(context)


def test_invalid_replies_are_quarantined_completely(world, tmp_path):
    said = lambda messages: (
        "I would rather not." if "Great Surge" in messages[0]["content"] else model(messages)
    )
    with llm_server.serving(said) as server:
        context = run(world, tmp_path, server, ("data", "candidates", "extract"), llm_reasks=2)
        again = [r for r in server.requests if len(r.body["messages"]) > 1]
    lost = pq.read_table(context / "extract" / "quarantine.parquet").to_pylist()
    assert lost and all(
        (x["reason"], x["text"]) == ("no record in the reply", "I would rather not.") for x in lost
    )
    per_chunk = collections.Counter(x["chunk"] for x in lost)
    # The correction is always the same, and the model answers it with the same words.
    assert len(again) == counts(context, "extract")["llm"]["asked_again"] > 0
    assert set(per_chunk.values()) == {1} and len(again) == len(per_chunk)


def test_a_question_that_cannot_be_rewritten_is_kept_unchanged(sound, world, tmp_path):
    context, _ = sound
    for stage in ("data", "candidates", "extract", "graph", "communities"):
        shutil.copytree(context / stage, tmp_path / stage)
    bad = pq.read_table(context / "data" / "questions_train.parquet").to_pylist()[0]
    few = lambda messages: (
        '["Which one?"]' if bad["question"] in messages[0]["content"] else model(messages)
    )
    with llm_server.serving(few) as server:
        changed = run(world, tmp_path, server, ("extract", "graph", "communities", "rewrite"))
    rows = made(changed)["rewrite/rewritten.parquet"]
    assert [r["text"] for r in rows if r["question"] == bad["id"]] == ["Which one?"] * 2
    without_bad = lambda rows: [r for r in rows if r["question"] != bad["id"]]
    assert without_bad(rows) == without_bad(made(context)["rewrite/rewritten.parquet"])
    rewritten = counts(changed, "rewrite")
    assert (rewritten["quarantined"], rewritten["not_rewritten"]) == (2, 0) and rewritten["llm"][
        "asked_again"
    ] >= 2


def test_gleaning_finds_what_the_first_pass_missed(sound, world, tmp_path):
    def forgetful(messages):
        whole = model(messages)
        records = whole.split("##\n")
        first = "##\n".join([*records[: len(records) // 2], "<|COMPLETE|>"])
        return whole if messages[-1]["content"] == GLEAN else first

    with llm_server.serving(forgetful) as server:
        poor = run(world, tmp_path / "poor", server, ("data", "candidates", "extract"))
        rich = run(
            world, tmp_path / "rich", server, ("data", "candidates", "extract"), graph_gleanings=1
        )
        shown = [r.body["messages"] for r in server.requests if r.prompt == GLEAN]
    names = ("extract/entities.parquet", "extract/relations.parquet")
    whole = made(sound[0])
    in_any_order = lambda rows: sorted(map(str, rows))
    for name in names:
        assert len(made(poor)[name]) < len(whole[name])
        assert in_any_order(made(rich)[name]) == in_any_order(whole[name])  # and nothing twice
    assert (
        counts(rich, "extract")["calls"] == 2 * counts(poor, "extract")["calls"] == 2 * len(shown)
    )
    assert all([m["role"] for m in messages] == ["user", "assistant", "user"] for messages in shown)
    assert all(messages[1]["content"] == forgetful(messages[:1]) for messages in shown)


def changed_world(world: Path, root: Path, draw: random.Random) -> Path:
    """The world with sentences added to one document and taken from another, a new document and,
    at random, one less."""
    shutil.copytree(world, root)
    texts = {x: (root / "corpus" / f"{x}.jsonl").read_text() for x in ("documents", "questions")}
    documents, questions = (list(map(json.loads, x.splitlines())) for x in texts.values())
    for document in documents:
        sentences = document["text"].split(". ")
        at = draw.randrange(len(sentences) // 2, len(sentences))
        if draw.random() < 0.5:
            sentences.insert(at, f"Ann Lovel kept the lamp {draw.randrange(99)} of Thrale")
        else:
            del sentences[at]
        document["text"] = ". ".join(sentences)
    documents.append({"id": "lamp", "title": "", "text": "Ann Lovel lit the lamp of Thrale."})
    gone = draw.choice(["great-surge", "nothing"])
    documents = [x for x in documents if x["id"] != gone]
    texts = {x["id"]: x["text"] for x in documents}
    is_whole = lambda x: all(y in texts.get(x["documents"][0], "") for y in x["evidence"])
    lamp = {"id": "q", "question": "Who lit it?", "answers": ["Ann Lovel"], "documents": ["lamp"]}
    questions = [*filter(is_whole, questions), lamp]
    for name, rows in (("documents", documents), ("questions", questions)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (root / "corpus" / f"{name}.jsonl").write_text(lines)
    return root


@pytest.mark.parametrize("seed", [1, 2])
def test_a_graph_of_changed_documents_equals_one_made_anew(seed, world, tmp_path):
    """The run goes on in its workdir, and asks for the passages alone that are new."""
    changed = changed_world(world, tmp_path / "world", random.Random(seed))
    with llm_server.serving(model) as server:

        def build(data: Path, name: str) -> tuple[dict, set[str]]:
            """The tables of a run, and the extraction prompts that were sent for it."""
            start = len(server.requests)
            tables = made(run(data, tmp_path / name, server))
            sent = [request.prompt for request in list(server.requests)[start:]]
            return tables, {x for x in sent if x.startswith(EXTRACT)}

        before, first = build(world, "run")
        updated, again = build(changed, "run")
        anew, whole = build(changed, "anew")
    assert updated == anew != before
    assert again == whole - first and 0 < len(again) < len(whole) and first - whole


def test_the_api_key_is_never_printed_or_stored(world, tmp_path, capfd):
    """Not even where the server repeats it to a user."""
    call_here(world, tmp_path, "data")
    for fault, message in (
        ("401", "run the same command"),
        ("500", "run the same command"),
        ("400", "rejects every request"),
    ):
        with llm_server.serving(model, lambda conversation, attempt, fault=fault: fault) as server:
            done = call_here(
                world,
                tmp_path,
                "run",
                f"--config.llm.base_url={server.url}",
                "--config.llm.backend=openai",
                "--config.llm.key_env=ARK_TEST_KEY",
                "--config.llm.retries=1",
                "--config.llm.model=toy",
                "--config.llm.concurrency=2",
            )
            assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        print(done.stdout, done.stderr)
        assert done.returncode == 1 and message in done.stderr, done.stderr
    with llm_server.serving(model) as server:
        run(world, tmp_path, server)
    said = "".join(capfd.readouterr())
    secrets = (KEY, KEY[:12], KEY[-8:])
    assert "error: " in said and [secret for secret in secrets if secret in said] == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [
        (path, secret)
        for path in files
        for secret in secrets
        if secret.encode() in path.read_bytes()
    ] == []


def test_an_interrupt_stops_within_two_seconds_and_says_how_to_resume(world, tmp_path):
    call_here(world, tmp_path, "data")
    with llm_server.serving(model, lambda conversation, attempt: "hang") as server:
        flags = (
            f"--config.llm.base_url={server.url}",
            "--config.llm.backend=openai",
            "--config.llm.key_env=ARK_TEST_KEY",
        )
        with subprocess.Popen(
            command(world, tmp_path, "run", *flags), stderr=subprocess.PIPE, text=True
        ) as process:
            while len(server.requests) < 16:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            errors = process.communicate(timeout=30)[1]
            assert time.monotonic() - began < 2
    assert (
        process.returncode == 130
        and "run the same command again to go on" in errors
        and "Traceback" not in errors
    )
