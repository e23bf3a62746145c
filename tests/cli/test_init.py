"""`ark-jax init`: the config file that it writes loads, checks and names what it was shown."""

import json
import re
import runpy
from pathlib import Path

import pytest
from support.paths import REPOSITORY
from support.world import make_world

from ark_jax import __main__, new_config
from ark_jax.cli import sweep
from ark_jax.cli.runs import Run
from ark_jax.pipeline.recipe import recipe_of
from ark_jax.recipes.documents import ingest
from ark_jax.recipes.graphs import graph_data
from ark_jax.schema import values

DEMO = REPOSITORY / "ark_jax" / "demo"


def written(out: Path, *words: object) -> str:
    """The text of the file that `ark-jax init` writes."""
    assert __main__._main(["init", *map(str, words), f"--out={out}"]) == 0
    return out.read_text()


def loaded(path: Path, words: str = ""):
    """The config of a file and words after a colon, as `ark-jax run` takes it."""
    named = f"--config={path}:{words}" if words else f"--config={path}"
    config = Run.parse("run", [named]).open()
    recipe_of(config).check(config)
    return config


@pytest.mark.parametrize(
    ("words", "recipe"),
    [
        ([DEMO], "ark"),
        ([DEMO / "gpr" / "graph.tsv", f"--names={DEMO / 'gpr' / 'names.tsv'}"], "gpr"),
        ([DEMO / "gpr" / "graph.tsv", f"--questions={DEMO / 'star' / 'questions.jsonl'}"], "star"),
    ],
)
def test_the_recipe_suits_the_data_and_the_file_runs(words, recipe, tmp_path, capsys):
    path = tmp_path / "config.py"
    text = written(path, *words)
    said = capsys.readouterr().out
    assert f"run it: ark-jax run --config={path} --workdir=DIR" in said
    config = loaded(path)
    assert config.recipe == recipe and config.data.path == str(words[0])
    named = {word.partition("=")[0][2:]: word.partition("=")[2] for word in words[1:]}
    assert {name: config.data[name] for name in named} == named
    shown = [line for line in text.splitlines() if line.startswith("    #")]
    assert max(map(len, shown)) <= 100 and len(text.splitlines()) < 70
    # Each line that can be uncommented is a field with its default.
    shown = re.findall(r"^    # (c\.\w.* = .*)$", text, re.MULTILINE)
    assert len(shown) == len(new_config.SHOWN[recipe])
    path.write_text(re.sub(r"^    # (c\.\w)", r"    \1", text, flags=re.MULTILINE))
    again = runpy.run_path(str(path))["get_config"]()
    recipe_of(again).check(again)
    assert again.train.to_dict() == config.train.to_dict()


@pytest.mark.parametrize(
    ("recipe", "words", "runs"),
    [
        ("ark", "paper,no_curriculum,sweep=folds", {"fold1": {"data.fold": (1, 5)}}),
        ("ark", "best,sweep=temperature", {"0.02": {"train.temperature": 0.02}}),
        ("gpr", "paper,sweep=study", {"seed1": {"seed": 1}}),
        ("star", "paper,sweep=switches", {"star-head": {"train.head": "star"}}),
    ],
)
def test_words_after_the_colon_are_those_of_the_packaged_config(recipe, words, runs, tmp_path):
    path = tmp_path / "config.py"
    fields = {"data.path": str(DEMO)}
    path.write_text(new_config.text_of(new_config.Understood(recipe, fields, [], True), str(path)))
    packaged = Run.parse("run", [f"--config={recipe}:{words}"]).open()
    ours, theirs = (values(c) for c in (loaded(path, words), packaged))
    assert {name for name in ours if ours[name] != theirs[name]} == {"data.path"}
    series = sweep.read_sweep(f"{path}:{words}", tmp_path)
    same = sweep.read_sweep(f"{recipe}:{words}", tmp_path)
    assert series.runs == same.runs and series.has_folds == ("folds" in words)
    assert runs.items() <= {run.name: run.changes for run in series.runs}.items()


@pytest.mark.parametrize("words", ["papre", "sweep=fold"])
def test_words_that_mean_nothing_are_refused(words, tmp_path):
    path = tmp_path / "config.py"
    path.write_text(
        new_config.text_of(new_config.Understood("ark", {"data.path": "x"}, [], True), str(path))
    )
    with pytest.raises(ValueError, match=r"must be one of default|there are temperature, lambda"):
        sweep.read_sweep(f"{path}:{words}", tmp_path) if "=" in words else loaded(path, words)


def test_few_questions_get_folds(tmp_path, capsys):
    """The command that is printed is one that `ark-jax sweep` takes."""
    for count in (4, 30, 100):
        folder = tmp_path / f"{count}"
        folder.mkdir()
        rows = [f"Who built {i}?,Ada,d{i}.txt" for i in range(count)]
        (folder / "questions.csv").write_text("\n".join(["question,answer,documents", *rows]))
        for i in range(count):
            (folder / f"d{i}.txt").write_text(f"Ada built the mill {i}.")
        text = written(folder / "c.py", folder)
        said, told = capsys.readouterr().out, "30 questions are few: folds test on each of them"
        assert (told in said) == (told in text) == (count == 30)
    command = re.search(r"ark-jax sweep --config=(\S+) ", (tmp_path / "30" / "c.py").read_text())
    series = sweep.read_sweep(command[1], tmp_path)
    assert series.has_folds and len(series.runs) == new_config.FOLDS


@pytest.mark.parametrize("words", ["mine", "folds"])
def test_any_config_file_has_sweeps(words, tmp_path):
    """Its own and those of its recipe, also if it takes no words."""
    path = tmp_path / "own.py"
    path.write_text(
        "from ark_jax import config\n"
        "SWEEPS = {'mine': lambda c: {'more': {'train.batch': 2 * c.train.batch}}}\n"
        "def get_config():\n    c = config.ark('paper')\n    c.train.batch = 3\n    return c\n"
    )
    series = sweep.read_sweep(f"{path}:sweep={words}", tmp_path)
    assert series.has_folds == (words == "folds")
    if words == "mine":
        assert series.runs[1].changes == {"train.batch": 6}
    assert Run.parse("run", [f"--config={path}:sweep={words}"]).open().train.batch == 3
    with pytest.raises(ValueError, match=r"own\.py takes no words, so 'best' means nothing"):
        loaded(path, "best")


def test_documents_without_questions_get_written_ones(tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / 'a "b" \\n.md').write_text("# Tides\n\nThe tide rose twice a day.\n")
    text = written(tmp_path / "c.py", tmp_path / "notes")
    assert loaded(tmp_path / "c.py").questions.source == "written"
    assert "questions are written" in text and "questions are written" in capsys.readouterr().out


def test_questions_without_answers_train_by_what_is_marked(tmp_path, capsys):
    rows = ["query,positive,negative", "When?,in 1802,by the lake", "Where?,by the lake,in 1802"]
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    text = written(tmp_path / "c.py", tmp_path / "pairs.csv")
    config = loaded(tmp_path / "c.py")
    assert (config.score.supervision, config.mine.by) == ("gold", "question")
    assert config.questions.source == "given"
    assert "no language model is used" in text and "negatives: given for 2" in text
    assert __main__._main(["check", str(tmp_path / "pairs.csv")]) == 0
    shown = capsys.readouterr().out
    assert "format: pairs" in shown and "train with score.supervision=gold" in shown


def test_questions_may_lie_elsewhere(tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "tides.md").write_text("# Tides\n\nThe tide rose twice a day.\n")
    questions = tmp_path / "asked.csv"
    questions.write_text("question,answer,documents\nHow often?,twice,tides.md\n")
    words = [tmp_path / "notes", f"--questions={questions}"]
    written(tmp_path / "c.py", *words)
    config = loaded(tmp_path / "c.py")
    assert config.data.questions == str(questions) and config.questions.source == "given"
    assert "questions: 1, 1.00 answers each" in capsys.readouterr().out
    assert __main__._main(["check", *map(str, words)]) == 0
    assert "questions: 1, 1.00 answers each" in capsys.readouterr().out
    questions.write_text("question,answer,documents\nHow often?,twice,moon.md\n")
    for verb in ("check", "init"):
        assert __main__._main([verb, *map(str, words), *["--out=d.py"] * (verb == "init")]) == 1
        shown = capsys.readouterr().out
        assert "asked.csv:2: documents: 'moon.md' is not found" in shown
        assert "questions are written" not in shown


def test_columns_and_encoding_are_written(tmp_path, capsys):
    data = tmp_path / "asked.tsv"  # three columns of words, which are no graph
    data.write_bytes("Prompt\tReply\tPassage\nГде?\tКиль\tЭто Киль\n".encode("cp1251"))
    flags = ["--columns=question=Prompt,answers=Reply,context=Passage", "--encoding=cp1251"]
    assert __main__._main(["check", str(data), *flags]) == 0
    assert "questions: 1, 1.00 answers each" in capsys.readouterr().out
    written(tmp_path / "c.py", data, *flags)
    config = loaded(tmp_path / "c.py")
    assert config.data.columns == "question=Prompt,answers=Reply,context=Passage"
    assert config.data.encoding == "cp1251" and config.recipe == "ark"
    assert ingest.look_at(config) == "1 documents, 1 questions"
    config.data.columns = "question=Promt,answers=Reply,context=Passage"
    with pytest.raises(ValueError, match="no row has the column 'Promt'"):
        ingest.look_at(config)
    assert __main__._main(["check", str(data), *flags, "--names=names.tsv"]) != 0
    assert "--columns is for documents" in capsys.readouterr().err


def test_a_graph_is_read_in_the_encoding_that_is_named(tmp_path, capsys):
    """As cp1251 these bytes would be another word."""
    (tmp_path / "g.tsv").write_bytes(
        "Caf\u00e9\tin\tK\u00f6ln\nBar\tin\tK\u00f6ln\n".encode("cp1252")
    )
    (tmp_path / "q.tsv").write_bytes(
        "question\tanswers\nWo ist [Caf\u00e9]?\tK\u00f6ln\n".encode("cp1252")
    )
    words = [tmp_path / "g.tsv", f"--questions={tmp_path / 'q.tsv'}", "--encoding=cp1252"]
    written(tmp_path / "c.py", *words)
    config = loaded(tmp_path / "c.py")
    assert (config.recipe, config.data.encoding) == ("star", "cp1252")
    assert __main__._main(["check", *map(str, words)]) == 0
    assert graph_data.read_graph(config.data).nodes.name(0) == "Caf\u00e9"
    config.data.encoding = "cp1251"
    assert graph_data.read_graph(config.data).nodes.name(0) == "Cafй"


def test_a_graph_whose_rows_are_questions_trains_on_them(tmp_path):
    row = {
        "id": "q",
        "question": "Who?",
        "answer": ["b"],
        "q_entity": ["a"],
        "graph": [["a", "r", "b"]],
    }
    (tmp_path / "rog.jsonl").write_text(json.dumps(row) + "\n")
    written(tmp_path / "c.py", tmp_path / "rog.jsonl")
    config = loaded(tmp_path / "c.py")
    assert config.recipe == "star" and config.data.questions == config.data.path


def test_a_relative_path_is_written_absolute(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("The tide rose.")
    monkeypatch.chdir(tmp_path)
    written(Path("config.py"), "docs")
    assert loaded(tmp_path / "config.py").data.path == str(tmp_path / "docs")


def test_nothing_is_overwritten_and_bad_data_get_no_file(tmp_path, capsys):
    (tmp_path / "config.py").write_text("mine")
    assert __main__._main(["init", str(DEMO), f"--out={tmp_path / 'config.py'}"]) == 1
    assert "config.py is there already; give another --out" in capsys.readouterr().err
    assert (tmp_path / "config.py").read_text() == "mine"
    (tmp_path / "documents.jsonl").write_text('{"id": "d"}\n')
    assert __main__._main(["init", str(tmp_path), f"--out={tmp_path / 'new.py'}"]) == 1
    said = capsys.readouterr().out
    assert "documents.jsonl:1: text" in said and "mend the data first" in said
    assert not (tmp_path / "new.py").exists()
    for words, message in (
        (["gone"], "gone"),
        ([], "ark-jax init needs DATA, as in: ark-jax init my_documents/"),
        (["a", "--ou=b"], "mean --out?"),
        (["my", "notes"], "unexpected 'notes'; put quotes around"),
    ):
        assert __main__._main(["init", *words]) == 1
        shown = capsys.readouterr()
        assert message in shown.out + shown.err
    assert __main__._main(["init", str(DEMO), f"--out={tmp_path / 'no' / 'folder.py'}"]) == 1
    assert "folder.py" in capsys.readouterr().err


@pytest.mark.slow
def test_a_written_config_runs_to_the_end(tmp_path):
    """With tiny models in place of the default ones."""
    import subprocess
    import sys

    from support.world import environment

    world = make_world(tmp_path)
    written(tmp_path / "config.py", world / "corpus")
    models = [f"--config.{role}.path={world / role}" for role in ("retriever", "generator")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ark_jax", "run", "--config=config.py", "--workdir=run"),
            *models,
            "--config.mesh=(1,1,1)",
            "--config.train.stages=(1,)",
            "--config.train.epochs=(1,1,1)",
            "--config.evaluate.max_new_tokens=4",
        ],
        cwd=tmp_path,
        env=environment(world) | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ark-jax search --workdir=" in done.stdout
    assert (tmp_path / "run" / "export" / "model.safetensors").is_file()
