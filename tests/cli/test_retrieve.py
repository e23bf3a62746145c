"""The verb `retrieve`: rows on stdout, all else on stderr, errors in a line."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from support import tiny
from support.paths import REPOSITORY

from ark_jax import layout
from ark_jax.cli import retrieve
from ark_jax.models.pairs import CrossEncoder

TRIPLES = ["Kismet|directed_by|William Dieterle", "Kismet|release_year|1944", "Ümit|in|Kismet"]
QUESTIONS = ["who directed [Kismet]\tWilliam Dieterle", "when was [Kismet] released\t1944"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with models of both kinds, a graph and questions."""
    root = tmp_path_factory.mktemp("retrieve")
    tiny.sentence_transformer(tiny.write(root / "m", "bert", tokenizer="cls"), pooling="mean")
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        for head in ("star", "linear"):
            CrossEncoder.from_pretrained(root / "m", head=head).save_pretrained(root / head)
    (root / "kb.txt").write_text("\n".join(TRIPLES) + "\n", encoding="utf-8")
    (root / "q.txt").write_text("\n".join(QUESTIONS) + "\n")
    (root / "plain.txt").write_text("who directed Kismet\nwho knows\n")
    (root / "lost.txt").write_text("who directed [Kismett]\tWilliam Dieterle\n")
    (root / "many.txt").write_text("\n".join(QUESTIONS * 600) + "\n")
    (root / "empty.txt").write_text("")
    (root / "empty_kb.tsv").write_text("")
    return root


def words(*flags: str, **replaced: str) -> list[str]:
    named = {"model": "m", "graph": "kb.txt", "questions": "q.txt"} | replaced
    return ["retrieve", *flags, *(f"--{name}={value}" for name, value in named.items() if value)]


def shell(place: Path, after: str = "", **replaced: str) -> subprocess.CompletedProcess:
    """Runs the verb in `place`, in a shell that knows ASCII alone, with `after` behind it."""
    command = shlex.join([sys.executable, "-m", "ark_jax", *words("--k=2", **replaced)])
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} {after}"],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "ARK_CACHE": str(place / "cache"),
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture
def call(place, mesh, tool, monkeypatch):
    """Runs the verb in `place`; -> its status, standard output and standard error."""
    monkeypatch.chdir(place)
    return lambda *flags, **replaced: tool(*words(*flags, **replaced))


def test_retrieve_prints_one_line_per_question(place):
    done = shell(place)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["id"], row["question"]) for row in rows] == [
        ("q:1", "who directed Kismet"),
        ("q:2", "when was Kismet released"),
    ]
    known = {tuple(line.split("|")) for line in TRIPLES}
    for row in rows:
        scores = [triple[3] for triple in row["triples"]]
        assert len(scores) == 2 and scores == sorted(scores, reverse=True)
        assert {tuple(triple[:3]) for triple in row["triples"]} < known
    folder = place / "cache" / "triple_indices"
    assert f"index: {folder}/" in done.stderr and "--index=DIR" in done.stderr
    assert len(list(folder.glob("*/manifest.json"))) == 1


def test_a_k_above_the_number_of_triples_returns_all(place, call):
    done = call("--k=50", index="here")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        triples = json.loads(line)["triples"]
        assert sorted("|".join(triple[:3]) for triple in triples) == sorted(TRIPLES)
    assert (place / "here" / "manifest.json").is_file()


@pytest.mark.parametrize("model", ["star", "linear"])
def test_a_pair_scorer_retrieves_paths(model, call):
    done = call("--k=2", "--hops=1", model=model)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["id"], row["question"], row["entities"]) for row in rows] == [
        ("q:1", "who directed Kismet", ["Kismet"]),
        ("q:2", "when was Kismet released", ["Kismet"]),
    ]
    ends = {
        ("directed_by",): ["William Dieterle"],
        ("release_year",): ["1944"],
        ("inverse of in",): ["Ümit"],
    }
    for row in rows:
        scores = [path["score"] for path in row["paths"]]
        assert len(scores) == 2 and scores == sorted(scores, reverse=True)
        for path in row["paths"]:
            assert list(path) == ["topic", "relations", "entities", "score"]
            assert path["topic"] == "Kismet"
            assert path["entities"] == ends[tuple(path["relations"])]
    assert "index" not in done.stderr and "topic" not in done.stderr


def test_topics_are_found_in_the_text_with_a_remark(call):
    done = call("--beam=9", "--hops=1", "--inverse=no", model="linear", questions="plain.txt")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["entities"] for row in rows] == [["Kismet"], []] and rows[1]["paths"] == []
    relations = {tuple(path["relations"]) for path in rows[0]["paths"]}
    assert relations == {("directed_by",), ("release_year",)}
    assert "2 questions name no topic: the text of 1 has names of the graph" in done.stderr
    assert "1 questions have no topic in the graph and get no path" in done.stderr


def test_an_unknown_topic_is_reported_with_the_nearest_name(call):
    done = call(model="linear", questions="lost.txt")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["entities"] == row["paths"] == []
    assert "topic 'Kismett' of question 'lost:1' is not in the graph; nearest: 'Kismet'" in (
        done.stderr
    )


def test_retrieve_ends_quietly_when_its_pipe_is_closed(place):
    done = shell(place, questions="many.txt", after="| head -n 1")
    assert len(done.stdout.splitlines()) == 1 and json.loads(done.stdout)
    assert done.returncode == 0 and "rror" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("flags", "replaced", "message"),
    [
        ((), {"model": "nowhere"}, "error: nowhere: no such folder, and no hub name"),
        ((), {"model": ""}, "error: ark-jax retrieve needs --model, as in: ark-jax ret"),
        (("--k=0",), {}, "error: bad flag: argument --k: 0 must be at least 1"),
        (("--k=many",), {}, "error: bad flag: argument --k: 'many' is not a whole number"),
        (("--beam=0",), {}, "error: bad flag: argument --beam: 0 must be at least 1"),
        (("--beam=4",), {}, "error: bad flag: --beam is for paths, but m is a model that finds"),
        (("--inverse=maybe",), {}, "error: bad flag: argument --inverse: invalid choice: 'maybe'"),
        (
            (),
            {"index": "x", "model": "star"},
            "error: bad flag: --index is for triples, but star is a model that finds paths",
        ),
        (("--depth=3",), {}, "error: bad flag: unrecognized arguments: --depth=3"),
        ((), {"questions": "empty.txt"}, "empty.txt: is empty; fill it or give another file"),
        ((), {"questions": "gone.txt"}, "gone.txt"),
        ((), {"graph": "gone.txt"}, "gone.txt"),
        ((), {"graph": "empty_kb.tsv"}, "empty_kb.tsv"),
        ((), {"index": "kb.txt"}, "kb.txt: File exists; move away what is there or give another"),
    ],
)
def test_invalid_retrieve_arguments_are_refused(flags, replaced, message, call):
    done = call(*flags, **replaced)
    assert done.returncode == 1 and done.stdout == ""
    assert message in done.stderr and "Traceback" not in done.stderr
    assert "\nerror: " in f"\n{done.stderr}"


def test_each_graph_and_model_has_its_own_index_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ARK_CACHE", str(tmp_path))
    flags = lambda graph, model="m": [f"--model={model}", f"--graph={graph}", "--questions=q"]
    parse = lambda words: retrieve.Retrieve.parse("retrieve", words)
    folders = {
        parse(flags(graph, model)).folder
        for graph, model in (("a", "m"), ("b", "m"), ("a", "n"), (Path("a").absolute(), "m"))
    }
    assert len(folders) == 3
    assert parse([*flags("a"), "--index=~/x"]).folder == Path.home() / "x"
