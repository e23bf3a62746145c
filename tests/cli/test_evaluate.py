"""The verb evaluate, as a user types it."""

import json
import sys

import pytest
from support import llm_server, tiny

from ark_jax import __main__

TEXTS = {
    "tide": "Josiah Penhallow founded the Tidal Board in 1784. It measured every tide.",
    "salt": "The Pellin Salt Company boiled brine. Horses worked its pumps.",
    "bell": "The bell of the church was cast in 1811. It rings in a storm.",
}
QUESTIONS = (
    ("Who founded the Tidal Board?", "tide", "Josiah Penhallow"),
    ("What worked the pumps of the Salt Company?", "salt", "Horses"),
    ("When was the bell cast?", "bell", "1811"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two retrievers, documents, and questions on them in a file of their own."""
    root = tiny.retrievers(tmp_path_factory.mktemp("evaluate"), "tuned", "base")
    (root / "documents").mkdir()
    for name, text in TEXTS.items():
        (root / "documents" / f"{name}.txt").write_text(text)
    rows = [
        {"id": f"q{i}", "question": question, "documents": [f"{name}.txt"], "answers": [answer]}
        for i, (question, name, answer) in enumerate(QUESTIONS)
    ]
    (root / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


@pytest.fixture(autouse=True)
def environment(mesh, monkeypatch, tmp_path, place):
    """What the verb would set for good, and a cache of its own."""
    for name in ("JAX_COMPILATION_CACHE_DIR", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(place)


SYSTEMS = "--models=base,bm25,tuned,tuned+bm25"
DATA = ("--data=test.jsonl", "--corpus=documents")


def call(*words: object) -> int:
    return __main__._main(["evaluate", *map(str, words)])


def test_the_table_goes_to_stdout_and_the_rest_to_stderr(capsys):
    assert call(SYSTEMS, *DATA) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].split()[:2] == ["system", "recall@5"]
    names = [line.split()[0] for line in lines[1:5]]
    assert names == ["base", "bm25", "tuned", "tuned+bm25"]
    assert lines[2].startswith("  bm25          1.000 [1.000, 1.000]")
    assert "tuned+bm25 against bm25: " in shown.out and "candidates come from" in shown.err
    assert "with 3 documents no difference reaches p < 0.05" in shown.out


def test_the_out_folder_keeps_page_table_rows_and_index(capsys, tmp_path):
    words = (SYSTEMS, *DATA, "--reference=bm25", "--metrics=ndcg@10,map", f"--out={tmp_path / 'r'}")
    assert call(*words, "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == json.loads((tmp_path / "r" / "metrics.json").read_text())
    assert json.loads(line)["reference"] == "bm25"
    page = (tmp_path / "r" / "report.html").read_text()
    assert "nDCG@10" in page and "differences to bm25" in page and page.count("<script") == 2
    assert "bm25 has the highest nDCG@10 on the questions of the test set, 1.000" in page
    assert (tmp_path / "r" / "questions.parquet").is_file()
    assert call(*words) == 0
    assert "nothing has changed" in capsys.readouterr().err
    assert __main__._main(["search", str(tmp_path / "r" / "index"), "bell", "--by=bm25"]) == 0
    assert "bell.txt [0:" in capsys.readouterr().out


def test_files_of_other_systems_are_rows(capsys, tmp_path):
    lines = [f"q{i} Q0 {name}.txt 1 1 x\n" for i, (_, name, _) in enumerate(QUESTIONS[:2])]
    (tmp_path / "other.trec").write_text("".join(lines))
    (tmp_path / "said.json").write_text(
        json.dumps({f"q{i}": x[2] for i, x in enumerate(QUESTIONS)})
    )
    answers = f"answers:{tmp_path}/said.json"
    assert call(f"--models=base,run:{tmp_path}/other.trec,{answers}", *DATA) == 0
    head, _, other, said = capsys.readouterr().out.splitlines()[:4]
    assert head.split() == [
        *("system", "recall@5", "recall@10", "nDCG@10", "MRR"),
        *("exact", "match", "answer", "F1", "Hit"),
    ]
    assert other.split()[:2] == ["other", "0.667"] and other.split()[-3:] == ["–"] * 3
    assert said.split() == ["said", *["–"] * 4, *["1.000", "[1.000,", "1.000]"] * 3]
    assert call(f"--models={answers}", "--data=test.jsonl") == 0
    (tmp_path / "other.trec").write_text(lines[0] + "q1 Q0 salt.txt\n")
    assert call(f"--models=base,run:{tmp_path}/other.trec", *DATA) == 1
    assert f"{tmp_path}/other.trec:2: 3 field(s); write question, Q0" in capsys.readouterr().err


def test_hyde_asks_the_language_model_once_for_all_retrievers(capsys, monkeypatch):
    pytest.importorskip("openai", reason="the live backend needs pip install 'ark-jax[llm]'")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    asked = []
    texts = {question: TEXTS[name] for question, name, _ in QUESTIONS}

    def model(messages):
        asked.append(messages[-1]["content"].rpartition("Question: ")[2])
        return texts[asked[-1]]  # the passage itself, which is then the nearest

    with llm_server.serving(model) as server:
        words = "--models=base,base+hyde,tuned+hyde,tuned+bm25+hyde"
        flags = ("--metrics=recall@1", "--reader=m", f"--endpoint={server.url}", "--json")
        assert call(words, *DATA, "--scope=corpus", *flags) == 0
    table = json.loads(capsys.readouterr().out)["table"]
    assert [row["system"] for row in table] == words.partition("=")[2].split(",")
    assert sorted(asked) == sorted(texts)  # once for all retrievers
    means = {row["system"]: row["values"]["recall@1"]["mean"] for row in table}
    assert means["tuned+bm25+hyde"] == 1.0 and means["base+hyde"] >= means["base"]


def test_a_reader_and_a_judge_add_columns_and_rows(capsys, monkeypatch):
    pytest.importorskip("openai", reason="the live backend needs pip install 'ark-jax[llm]'")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    verdict = json.dumps(dict.fromkeys(("faithfulness", "conciseness", "overall"), "tie"))
    answer = lambda prompt: "Horses" if "passages below" in prompt else "nobody"
    model = lambda messages: (
        verdict if "Answer 1" in messages[-1]["content"] else answer(messages[-1]["content"])
    )
    with llm_server.serving(model) as server:
        flags = ("--reader=m", f"--endpoint={server.url}", "--judge=j", "--k=2")
        words = ("--models=base,reader:alone,reader:oracle", *DATA, *flags)
        assert call(*words) == 0
        names = [request.body["model"] for request in server.requests]
        assert call(*words) == 0 and len(server.requests) == len(names)
    out = capsys.readouterr().out
    head, base, alone, oracle = out.splitlines()[:4]
    assert head.endswith("overall (judge)") and "answer F1" in head and {*names} == {"m", "j"}
    assert base.count("0.333") == 3 and oracle.split()[1:5] == ["–"] * 4
    assert alone.split()[1:6] == [*["–"] * 4, "0.000"] and alone.endswith("0.500 [0.500, 0.500]")
    assert "m answers from the first 2 passages" in out


def test_with_a_config_evaluate_runs_the_stage(capsys):
    assert call("--config=nowhere.py", "--workdir=w") == 1
    assert "--config=nowhere.py: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((SYSTEMS,), "ark-jax evaluate needs --data, as in: ark-jax evaluate --models="),
        (("--models=bm25", *DATA), "name a retriever too"),
        (("--models=bm25+hyde,base", *DATA), "'bm25+hyde' names no system"),
        (("--models=base+hyde", *DATA), "+hyde needs a language model; name it with --reader"),
        (("--models=base,reader:steps", *DATA), "reader:steps needs a language model"),
        ((SYSTEMS, *DATA, "--judge=j"), "--judge=NAME needs --endpoint=URL"),
        ((SYSTEMS, *DATA, "--reader=gone"), "gone: no such folder, and no hub name"),
        ((SYSTEMS, *DATA, "--k=0"), "argument --k: 0 must be at least 1"),
        (("--models=gone,bm25", *DATA), "gone: no such folder, and no hub name"),
        ((SYSTEMS, "--data=gone"), "gone: does not exist"),
        ((SYSTEMS, "--data=documents"), "documents holds no question"),
        ((SYSTEMS, "--data=test.jsonl"), "holds questions and no documents"),
        ((SYSTEMS, *DATA, "--reference=stage3"), "--reference=stage3: must be one of base, bm25"),
        ((SYSTEMS, *DATA, "--metrics=ndgc@10"), "metric 'ndgc@10': must be recall"),
        ((SYSTEMS, *DATA, "--refrence=base"), "(did you mean --reference?)"),
        ((SYSTEMS, *DATA, "--scope=document"), "argument --scope: invalid choice"),
        ((SYSTEMS, *DATA, "--out=test.jsonl/r"), "--out"),
    ],
)
def test_invalid_evaluate_arguments_are_refused(words, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ark-jax"])
    assert call(*words) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err and "error: " in shown.err


def test_baselines_without_a_config_print_a_table_and_doubts(capsys):
    assert __main__._main(["baselines", "test.jsonl", "--corpus=documents", "--model=base"]) == 0
    shown = capsys.readouterr()
    names = [line.split()[0] for line in shown.out.splitlines()[1:4]]
    assert names == ["base", "bm25", "base+bm25"]
    assert "reaches 1.000 in recall@10: training has hardly anything" in shown.out
    assert "3 questions miss most gains below 0.39" in shown.out
