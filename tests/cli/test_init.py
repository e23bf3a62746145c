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
from ark_jax.recipes import graphs
from ark_jax.recipes.ark.curriculum import builds_graph
from ark_jax.recipes.documents import ingest
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
def test_init_writes_a_valid_config_of_the_fitting_recipe(words, recipe, tmp_path, capsys):
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
def test_a_written_config_accepts_the_words_of_the_packaged_one(recipe, words, runs, tmp_path):
    path = tmp_path / "config.py"
    # The presets of papers need a language model.
    fields, asked = {"data.path": str(DEMO), "llm.backend": "openai"}, "--config.llm.backend=openai"
    path.write_text(
        new_config.config_text(new_config.ConfigDraft(recipe, fields, [], True), str(path))
    )
    packaged = Run.parse("run", [f"--config={recipe}:{words}", asked]).open()
    ours, theirs = (values(c) for c in (loaded(path, words), packaged))
    assert {name for name in ours if ours[name] != theirs[name]} == {"data.path"}
    series = sweep.read_sweep(f"{path}:{words}", tmp_path)
    same = sweep.read_sweep(f"{recipe}:{words}", tmp_path, [asked])
    assert series.runs == same.runs and series.has_folds == ("folds" in words)
    assert runs.items() <= {run.name: run.changes for run in series.runs}.items()


@pytest.mark.parametrize("words", ["papre", "sweep=fold"])
def test_unknown_words_after_the_colon_are_refused(words, tmp_path):
    path = tmp_path / "config.py"
    path.write_text(
        new_config.config_text(
            new_config.ConfigDraft("ark", {"data.path": "x"}, [], True), str(path)
        )
    )
    with pytest.raises(ValueError, match=r"must be one of default|there are temperature, lambda"):
        sweep.read_sweep(f"{path}:{words}", tmp_path) if "=" in words else loaded(path, words)


def folder_of_questions(folder: Path, count: int) -> Path:
    """A new folder of so many documents, and of a question on each."""
    folder.mkdir()
    rows = [f"Who built {i}?,Ada,d{i}.txt" for i in range(count)]
    (folder / "questions.csv").write_text("\n".join(["question,answer,documents", *rows]))
    for i in range(count):
        (folder / f"d{i}.txt").write_text(f"Ada built the mill {i}.")
    return folder


@pytest.mark.parametrize(("count", "is_few"), [(4, False), (30, True), (100, False)])
def test_folds_are_recommended_for_few_questions(count, is_few, tmp_path, capsys):
    """Fewer than the folds cannot be divided into them."""
    text = written(tmp_path / "c.py", folder_of_questions(tmp_path / "data", count))
    told = f"{count} questions are few: folds test on each of them"
    assert (told in capsys.readouterr().out) == (told in text) == is_few


def test_the_recommended_command_names_a_sweep_of_folds(tmp_path):
    text = written(tmp_path / "c.py", folder_of_questions(tmp_path / "data", 30))
    command = re.search(r"ark-jax sweep --config=(\S+) ", text)
    series = sweep.read_sweep(command[1], tmp_path)
    assert series.has_folds and len(series.runs) == new_config.FOLDS


@pytest.fixture
def wordless(tmp_path):
    """A config file with a sweep of its own, which takes no words after a colon."""
    path = tmp_path / "own.py"
    path.write_text(
        "from ark_jax import config\n"
        "SWEEPS = {'mine': lambda c: {'more': {'train.batch': 2 * c.train.batch}}}\n"
        "def get_config():\n    c = config.ark('paper')\n    c.train.batch = 3\n    return c\n"
    )
    return path


def test_a_config_file_without_words_can_have_sweeps(wordless, tmp_path):
    series = sweep.read_sweep(f"{wordless}:sweep=mine", tmp_path)
    assert not series.has_folds and series.runs[1].changes == {"train.batch": 6}


def test_a_config_file_has_the_sweeps_of_its_recipe(wordless, tmp_path):
    assert sweep.read_sweep(f"{wordless}:sweep=folds", tmp_path).has_folds


@pytest.mark.parametrize("name", ["mine", "folds"])
def test_a_config_opens_without_the_name_of_its_sweep(wordless, name):
    run = Run.parse("run", [f"--config={wordless}:sweep={name}"])
    assert run.open().train.batch == 3


def test_words_for_a_config_file_that_takes_none_are_refused(wordless):
    with pytest.raises(ValueError, match=r"own\.py takes no words, so 'best' means nothing"):
        loaded(wordless, "best")


def test_documents_without_questions_are_configured_for_written_ones(tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / 'a "b" \\n.md').write_text("# Tides\n\nThe tide rose twice a day.\n")
    text = written(tmp_path / "c.py", tmp_path / "notes")
    assert loaded(tmp_path / "c.py").questions.source == "written"
    assert "questions are written" in text and "questions are written" in capsys.readouterr().out


def test_questions_without_answers_are_configured_for_marked_passages(tmp_path, capsys):
    rows = ["query,positive,negative", "When?,in 1802,by the lake", "Where?,by the lake,in 1802"]
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    text = written(tmp_path / "c.py", tmp_path / "pairs.csv")
    config = loaded(tmp_path / "c.py")
    assert config.score.supervision == "gold" and not builds_graph(config)
    assert config.questions.source == "given"
    assert "no language model is used" in text and "negatives: given for 2" in text
    assert __main__._main(["check", str(tmp_path / "pairs.csv")]) == 0
    shown = capsys.readouterr().out
    assert "format: pairs" in shown and "train with score.supervision=gold" in shown


@pytest.fixture
def notes_and_questions(tmp_path):
    """The flags that name a folder of notes and a file of questions, and that file."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "tides.md").write_text("# Tides\n\nThe tide rose twice a day.\n")
    questions = tmp_path / "asked.csv"
    questions.write_text("question,answer,documents\nHow often?,twice,tides.md\n")
    return [str(tmp_path / "notes"), f"--questions={questions}"], questions


def test_questions_may_be_in_a_separate_file(notes_and_questions, tmp_path, capsys):
    flags, questions = notes_and_questions
    written(tmp_path / "c.py", *flags)
    config = loaded(tmp_path / "c.py")
    assert config.data.questions == str(questions) and config.questions.source == "given"
    assert "questions: 1, 1.00 answers each" in capsys.readouterr().out
    assert __main__._main(["check", *flags]) == 0
    assert "questions: 1, 1.00 answers each" in capsys.readouterr().out


@pytest.mark.parametrize(("verb", "out"), [("check", []), ("init", ["--out=d.py"])])
def test_a_question_about_an_unknown_document_is_refused(notes_and_questions, capsys, verb, out):
    flags, questions = notes_and_questions
    questions.write_text("question,answer,documents\nHow often?,twice,moon.md\n")
    assert __main__._main([verb, *flags, *out]) == 1
    shown = capsys.readouterr().out
    assert "asked.csv:2: documents: 'moon.md' is not found" in shown
    assert "questions are written" not in shown


CYRILLIC = "Prompt\tReply\tPassage\nГде?\tКиль\tЭто Киль\n".encode("cp1251")
CYRILLIC_FLAGS = ["--columns=question=Prompt,answers=Reply,context=Passage", "--encoding=cp1251"]


@pytest.fixture
def cyrillic(tmp_path):
    """A file with three columns of words, which are no graph."""
    data = tmp_path / "asked.tsv"
    data.write_bytes(CYRILLIC)
    return data


def test_a_check_reads_by_the_given_columns_and_encoding(cyrillic, capsys):
    assert __main__._main(["check", str(cyrillic), *CYRILLIC_FLAGS]) == 0
    assert "questions: 1, 1.00 answers each" in capsys.readouterr().out


def test_columns_and_encoding_are_written_to_the_config(cyrillic, tmp_path):
    written(tmp_path / "c.py", cyrillic, *CYRILLIC_FLAGS)
    config = loaded(tmp_path / "c.py")
    assert config.data.columns == "question=Prompt,answers=Reply,context=Passage"
    assert config.data.encoding == "cp1251" and config.recipe == "ark"
    assert ingest.describe_input(config) == "1 documents, 1 questions"


def test_a_column_that_the_file_lacks_is_refused(cyrillic, tmp_path):
    written(tmp_path / "c.py", cyrillic, *CYRILLIC_FLAGS)
    config = loaded(tmp_path / "c.py")
    config.data.columns = "question=Promt,answers=Reply,context=Passage"
    with pytest.raises(ValueError, match="no row has the column 'Promt'"):
        ingest.describe_input(config)


def test_columns_are_refused_for_a_graph(cyrillic, capsys):
    assert __main__._main(["check", str(cyrillic), *CYRILLIC_FLAGS, "--names=names.tsv"]) != 0
    assert "--columns is for documents" in capsys.readouterr().err


@pytest.fixture
def german(tmp_path):
    """The words that name a graph and questions on it, both in cp1252."""
    graph, questions = tmp_path / "g.tsv", tmp_path / "q.tsv"
    graph.write_bytes("Café\tin\tKöln\nBar\tin\tKöln\n".encode("cp1252"))
    questions.write_bytes("question\tanswers\nWo ist [Café]?\tKöln\n".encode("cp1252"))
    return [str(graph), f"--questions={questions}", "--encoding=cp1252"]


def test_a_check_reads_a_graph_in_the_given_encoding(german):
    assert __main__._main(["check", *german]) == 0


@pytest.mark.parametrize(("encoding", "name"), [("cp1252", "Café"), ("cp1251", "Cafй")])
def test_a_graph_is_read_in_the_encoding_of_the_config(german, encoding, name, tmp_path):
    written(tmp_path / "c.py", *german)
    config = loaded(tmp_path / "c.py")
    assert (config.recipe, config.data.encoding) == ("star", "cp1252")
    config.data.encoding = encoding
    assert graphs.read_graph(config.data).nodes.name(0) == name


def test_a_graph_with_questions_in_its_rows_is_configured_for_star(tmp_path):
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


def test_init_does_not_overwrite_a_file(tmp_path, capsys):
    (tmp_path / "config.py").write_text("mine")
    assert __main__._main(["init", str(DEMO), f"--out={tmp_path / 'config.py'}"]) == 1
    assert "config.py is there already; give another --out" in capsys.readouterr().err
    assert (tmp_path / "config.py").read_text() == "mine"


def test_init_names_a_folder_that_is_missing_before_it_reads(tmp_path, capsys):
    assert __main__._main(["init", str(DEMO), f"--out={tmp_path / 'no' / 'c.py'}"]) == 1
    said = capsys.readouterr()
    assert "no is no folder; make it first" in said.err and "documents" not in said.out


def test_init_writes_no_config_for_bad_data(tmp_path, capsys):
    (tmp_path / "documents.jsonl").write_text('{"id": "d"}\n')
    assert __main__._main(["init", str(tmp_path), f"--out={tmp_path / 'new.py'}"]) == 1
    said = capsys.readouterr().out
    assert "documents.jsonl:1: text" in said and "mend the data first" in said
    assert not (tmp_path / "new.py").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone"], "gone"),
        ([], "ark-jax init needs DATA, as in: ark-jax init my_documents/"),
        (["a", "--ou=b"], "mean --out?"),
        (["my", "notes"], "unexpected 'notes'; put quotes around"),
    ],
)
def test_invalid_init_arguments_are_refused(words, message, capsys):
    assert __main__._main(["init", *words]) == 1
    shown = capsys.readouterr()
    assert message in shown.out + shown.err


def test_init_into_a_missing_folder_is_refused(tmp_path, capsys):
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
