"""The verbs index, search and ask, as a user types them."""

import errno
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from support import llm_server, pairs, tiny

from ark_jax import __main__, layout
from ark_jax.index import reader
from ark_jax.index.index import Index
from ark_jax.pipeline import kept_config
from ark_jax.recipes.ark import config as settings
from ark_jax.recipes.gpr import config as gpr_settings

TEXTS = {
    "tide": "Josiah Penhallow founded the Tidal Board in 1784. It measured every tide.",
    "salt": "The Pellin Salt Company boiled brine. Horses worked its pumps.",
    "glocke": "Die Glocke der Kirche wurde 1811 gegossen. Sie läutet bei Sturm.",
}
QUESTION = "Who founded the Tidal Board?"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two retrievers, a language model, documents and an index of them."""
    root = tiny.retrievers(tmp_path_factory.mktemp("search"), "tuned", "base")
    changes = {"max_position_embeddings": 1200}
    tiny.write(root / "lm", "llama", tokenizer="plain", changes=changes)
    (root / "documents").mkdir()
    for name, text in TEXTS.items():
        (root / "documents" / f"{name}.txt").write_text(text)
    with pytest.MonkeyPatch.context() as patch, jax.set_mesh(layout.make_mesh((1, 1, 1))):
        set_environment(patch, root)
        assert call("index", root / "tuned", root / "documents", f"--out={root / 'i'}") == 0
    return root


@pytest.fixture(autouse=True)
def environment(mesh, monkeypatch, tmp_path):
    set_environment(monkeypatch, tmp_path)


def set_environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """What the verbs would set for good."""
    for name in ("JAX_COMPILATION_CACHE_DIR", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("ARK_CACHE", str(folder / "cache"))
    monkeypatch.setenv("COLUMNS", "100")


def call(*words: object) -> int:
    return __main__._main([str(word) for word in words])


def test_the_index_command_prints_how_to_search(place, capsys):
    assert call("index", place / "tuned", place / "documents", "--out", place / "i") == 0
    out = capsys.readouterr().out
    assert "nothing has changed" in out and "3 documents, " in out
    assert f'ark-jax search {place / "i"} "QUESTION"' in out


@pytest.mark.parametrize("by", ["hybrid", "dense", "bm25"])
def test_search_prints_rank_score_place_and_text(by, place, capsys):
    assert call("search", place / "i", QUESTION, "--k", "2", f"--by={by}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines[0]) <= 100 and lines[0].lstrip().startswith("1  ")
    if by == "bm25":
        assert "tide.txt [0:" in lines[0] and "Josiah Penhallow founded" in lines[1]


def test_one_question_starts_no_jax_once_the_model_is_known(place, capsys):
    words = ["search", str(place / "i"), QUESTION, "--json", "--by=dense"]
    assert call(*words) == 0
    wanted = json.loads(capsys.readouterr().out)["passages"]
    code = f"""
import sys
from ark_jax import __main__
assert __main__._main({words}) == __main__._main({[*words[:3], "--k=1"]}) == 0
assert not {{"jax", "flax", "transformers"}} & {{*sys.modules}}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, *shown = done.stdout.splitlines()
    for row, other in zip(json.loads(found)["passages"], wanted, strict=True):
        assert row.pop("score") == pytest.approx(other.pop("score"), abs=1e-5)
        assert row == other
    assert "Josiah Penhallow founded" in "".join(shown)


def test_questions_without_a_word_on_the_command_line_are_read_line_by_line(
    place, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{QUESTION}\n\nbrine and pumps\n"))
    assert call("search", place / "i", "--by=bm25", "--json") == 0
    rows = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [row["question"] for row in rows] == [QUESTION, "brine and pumps"]
    assert [row["passages"][0]["document"] for row in rows] == ["tide.txt", "salt.txt"]


@pytest.mark.parametrize("colour", [True, False])
def test_words_and_answer_are_marked_on_a_terminal_that_may_be_coloured(
    colour, place, capsys, monkeypatch
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "" if colour else "1")
    assert call("search", place / "i", QUESTION, "--answer=josiah penhallow", "--by=bm25") == 0
    out = capsys.readouterr().out
    assert ("\x1b[1;32mJosiah Penhallow\x1b[0m \x1b[1;31mfounded\x1b[0m the" in out) == colour
    assert ("Josiah Penhallow founded the" in out) != colour


def test_what_is_passed_over_is_named_when_an_index_is_made(place, tmp_path, capsys):
    shutil.copytree(place / "documents", tmp_path / "d")
    (tmp_path / "d" / "broken.pdf").write_bytes(b"%PDF-1.4 nonsense")
    assert call("index", place / "tuned", tmp_path / "d", f"--out={tmp_path / 'i'}") == 0
    out = capsys.readouterr().out
    assert "broken.pdf" in out and "the file is passed over" in out and "3 documents, " in out


def test_a_full_disk_of_replies_and_programs_is_named(place, capsys, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere/replies.jsonl")

    monkeypatch.setattr(reader.Reader, "answer", fail)
    assert call("ask", place / "i", QUESTION, f"--reader={place / 'lm'}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: /somewhere/replies.jsonl: No space left on device; free some")


def test_the_files_of_an_index_are_verified(place, tmp_path, capsys):
    shutil.copytree(place / "i", tmp_path / "index")
    assert call("index", "--verify", tmp_path / "index") == 0
    assert " files, " in capsys.readouterr().out
    (path,) = (tmp_path / "index").glob("*/vectors/vectors.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for words in (f"--out={tmp_path / 'index'}", f"--workdir={tmp_path}"):
        assert call("index", "--verify", words) == 1
        assert "vectors/vectors.npy is damaged; `ark-jax index`" in capsys.readouterr().err
    assert call("index", "--verify") == 1
    assert "ark-jax index needs --out" in capsys.readouterr().err


def test_search_and_ask_use_the_reranker_of_the_index_unless_told(place, tmp_path, capsys):
    scorer = pairs.write_classifier(tmp_path / "reranker", "bert")
    words = ("index", place / "tuned", place / "documents", f"--out={tmp_path / 'i'}")
    assert call(*words, f"--reranker={scorer}") == 0
    found = {}
    for flag in ("--k=3", "--no-rerank"):
        assert call("search", tmp_path / "i", QUESTION, "--json", flag) == 0
        passages = json.loads(capsys.readouterr().out.splitlines()[-1])["passages"]
        found[flag] = [(row["chunk"], row["score"]) for row in passages]
    assert call("search", place / "i", QUESTION, "--json") == 0
    plain = json.loads(capsys.readouterr().out)["passages"]
    assert found["--no-rerank"] == [(row["chunk"], row["score"]) for row in plain]
    assert {*dict(found["--k=3"])} == {*dict(found["--no-rerank"])} and found["--k=3"] != plain
    given = ("ask", tmp_path / "i", QUESTION, f"--reader={place / 'lm'}", "--json")
    assert call(*given) == 0
    assert json.loads(capsys.readouterr().out)["read"][0] == found["--k=3"][0][0]


def test_search_prints_json_in_one_line(place, capsys):
    assert call("search", place / "i", "Glocke gegossen läutet", "--by=bm25", "--json") == 0
    shown = capsys.readouterr()
    (line,) = shown.out.splitlines()
    row = json.loads(line)
    assert row["question"] == "Glocke gegossen läutet" and row["by"] == "bm25"
    best = row["passages"][0]
    assert best["document"] == "glocke.txt" and best["text"] in TEXTS["glocke"]
    assert TEXTS["glocke"][best["start"] : best["end"]] == best["text"] and "läu" in line
    assert call("search", place / "i", QUESTION, "--where=id like 's%'", "--json") == 0
    passages = json.loads(capsys.readouterr().out)["passages"]
    assert {row["document"] for row in passages} == {"salt.txt"}
    assert call("search", place / "i", QUESTION, "--where=year = 1") == 1
    assert "there is no column 'year', at character 1" in capsys.readouterr().err


def test_compared_models_are_printed_side_by_side(place, capsys):
    words = ("search", place / "i", QUESTION, "--k=3", f"--compare={place / 'base'}")
    assert call(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [name.strip() for name in lines[0].split(" | ")] == ["base", "tuned"]
    assert all(" | " in line or line.endswith("|") for line in lines)
    assert sum(line.lstrip().startswith(("1 ", "2 ", "3 ")) for line in lines) == 3


def test_compared_models_are_printed_as_json(place, capsys):
    words = ("search", place / "i", QUESTION, "--k=3", f"--compare={place / 'base'}")
    assert call(*words, "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert list(row["compared"]) == ["base", "tuned"]
    assert {len(hits) for hits in row["compared"].values()} == {3}


def test_a_model_with_token_vectors_can_be_searched(place, tmp_path, capsys):
    model = tiny.multi_vector(tmp_path, "tokens") / "tokens"
    words = ("index", model, place / "documents", "--out", tmp_path / "i", "--bits=4")
    assert call(*words) == 0
    assert call("search", tmp_path / "i", QUESTION, "--json", "--by=dense") == 0
    passages = json.loads(capsys.readouterr().out.splitlines()[-1])["passages"]
    hits = Index.open(tmp_path / "i").search([QUESTION], by="dense")[0]
    assert [(x["chunk"], x["score"]) for x in passages] == [
        (hit.chunk, pytest.approx(hit.score, abs=1e-6)) for hit in hits
    ]
    assert call("search", tmp_path / "i", QUESTION, f"--compare={place / 'base'}") == 0
    assert "tokens" in capsys.readouterr().out.splitlines()[0]


def test_a_question_without_known_words_is_reported(place, capsys):
    assert call("search", place / "i", "xylophone", "--by=bm25") == 0
    assert capsys.readouterr().out == "no passage has a word of the question\n"


def test_ask_prints_the_answer_of_an_endpoint_with_citations(place, capsys, monkeypatch):
    pytest.importorskip("openai", reason="the live backend needs pip install 'ark-jax[llm]'")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    prompts = []

    def model(messages):
        prompts.append(messages[-1]["content"])
        return "<think>Doc [1] says so.</think><answer>Josiah Penhallow</answer>"

    with llm_server.serving(model) as server:
        words = ("ask", place / "i", QUESTION, "--by=bm25")
        words = (*words, "--reader=m", f"--endpoint={server.url}")
        assert call(*words) == 0
        out = capsys.readouterr().out
        assert out.startswith("Josiah Penhallow [1]\n\nIt cites:\n 1  ") and "tide.txt [0:" in out
        assert call(*words, "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["answer"], row["cited"]) == ("Josiah Penhallow", True)
    assert [hit["document"] for hit in row["sources"]] == ["tide.txt"]
    assert len(prompts) == 1  # the second answer is in the cache
    assert f"Question: {QUESTION}" in prompts[0]
    assert "Doc [1] tide\nJosiah Penhallow founded" in prompts[0]


def test_hyde_is_refused_for_a_search_by_words(place, capsys):
    assert call("search", place / "i", QUESTION, "--expand=hyde", "--by=bm25") == 1
    assert "not --by=bm25" in capsys.readouterr().err


def test_hyde_searches_with_a_passage_of_a_language_model(place, capsys, monkeypatch):
    pytest.importorskip("openai", reason="the live backend needs pip install 'ark-jax[llm]'")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    passage, asked = "Brine was boiled by the Pellin Salt Company.", []

    def model(messages):
        asked.append(messages[-1]["content"])
        return passage if "Write a passage" in asked[-1] else "<answer>brine</answer>"

    with llm_server.serving(model) as server:
        flags = ("--by=dense", "--json", "--reader=m", f"--endpoint={server.url}", "--expand=hyde")
        assert call("search", place / "i", QUESTION, *flags) == 0
        found = json.loads(capsys.readouterr().out)["passages"]
        assert call("ask", place / "i", QUESTION, *flags) == 0
        answer = json.loads(capsys.readouterr().out)
    index = Index.open(place / "i")
    vectors = sum(
        index.retriever.encode([text], kind=kind)
        for text, kind in ((QUESTION, "query"), (passage, "document"))
    )
    (hits,) = index.search([QUESTION], by="dense", vectors=vectors / np.linalg.norm(vectors))
    assert [x["chunk"] for x in found] == [hit.chunk for hit in hits]
    assert [x["score"] for x in found] == pytest.approx([hit.score for hit in hits], abs=2e-6)
    assert answer["read"] == [hit.chunk for hit in hits[:5]] and answer["answer"] == "brine"
    assert len(asked) == 2  # the passage of the second search is in the cache


def test_ask_answers_with_a_local_reader(place, capsys, monkeypatch):
    monkeypatch.setattr(reader, "MAX_NEW_TOKENS", 4)
    assert call("ask", place / "i", QUESTION, f"--reader={place / 'lm'}", "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert 1 <= len(row["read"]) <= 5 and not row["cited"]


def test_a_workdir_replaces_the_model_and_corpus_arguments(place, tmp_path, capsys):
    config, workdir = settings.ark(), tmp_path / "a run"
    config.data.path, config.data.chunk_tokens = str(place / "documents"), 20
    workdir.mkdir()
    assert call("index", f"--workdir={workdir}") == 1
    assert "a run keeps no config of a run; give MODEL CORPUS --out=DIR" in capsys.readouterr().err
    kept_config.keep(config, workdir)
    (workdir / "export").symlink_to(place / "tuned")
    assert call("index", f"--workdir={workdir}") == 0
    assert Index.open(workdir / "index").manifest.rules.tokens == 20
    assert f"ark-jax search '{workdir / 'index'}'" in capsys.readouterr().out
    assert call("search", "--workdir", workdir, "Nobody\n?", "--by=bm25") == 0
    assert capsys.readouterr().out == "no passage has a word of the question\n"
    kept_config.keep(gpr_settings.gpr(), workdir)
    assert call("index", f"--workdir={workdir}") == 1
    assert "recipe gpr tunes no retriever of documents" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("search", "nowhere", "Who?"), "nowhere: no index; `ark-jax index MODEL CORPUS --out="),
        (("search",), "ark-jax search needs INDEX, as in: ark-jax search my_index "),
        (("search", "i", ""), "the question is empty"),
        (("search", "i", "Who?", "--k=0"), "bad flag: argument --k: 0 must be at least 1"),
        (("search", "i", "Who?", "--comapre=m"), "--comapre=m (did you mean --compare?)"),
        (("search", "i", "Who?", "--by=words"), "argument --by: invalid choice: 'words'"),
        (("search", "i", "Who?", "--compare=gone"), "gone: no such folder, and no hub name"),
        (("ask", "i", "Who?", "--endpoint=http://x"), "--endpoint needs --reader=NAME"),
        (
            ("index", "tuned", "documents"),
            "ark-jax index needs --out, as in: ark-jax index ark_demo/exp",
        ),
        (("index", "tuned", "gone", "--out=j"), "gone: does not exist"),
        (("index", "gone", "documents", "--out=j"), "gone: no such folder, and no hub name"),
        (("index", "tuned", "documents", "--out=lm"), "lm holds config.json and no index"),
        (("index", "tuned", "documents", "--out=documents/salt.txt/j"), "--out"),
    ],
)
def test_invalid_search_arguments_are_refused(words, message, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["ark-jax"])
    assert call(*words) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err and shown.err.startswith("error: ")
