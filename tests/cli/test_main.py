"""Flags, verbs and messages of the command line."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.paths import REPOSITORY
from support.world import command, environment, make_world

from ark_jax import __main__
from ark_jax.cli import runs, verbs
from ark_jax.cli.verbs import unknown_verb
from ark_jax.demo import models


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--config.data.path=",), "config.data.path is empty"),
        (("--config.data.path=/no/such/place",), "/no/such/place"),
        (("--config.trian.batch=3",), "trian"),
        (("--config.data.held_out_documents=('atlantis',)",), "no document 'atlantis'"),
        (("--config.data.ignored_questions=('atlantis',)",), "no question 'atlantis'"),
        (
            ("--config.mine.by=guess",),
            "config.mine.by='guess': must be auto, rewritten, question, bm25, random or "
            "module:function",
        ),
        (("--config.trian=3",), "the config has no field 'trian'"),
        (("--config.train.stages=(0,1)",), "each of 1, 2 and 3 at most once, or be (0,)"),
        (
            ("--config.graph.large=(50,20)",),
            "config.graph.large=(50, 20): must be the smallest and the largest size",
        ),
        (("--config.mesh=(1,1)",), "config.mesh=(1, 1): must be a tuple of 3 integers"),
        (("--config.train.epochs=(0,1,1)",), "config.train.epochs=(0, 1, 1): stage 1 has no epoch"),
        (("--config.train.chunks=-1",), "config.train.chunks=-1: must be an integer, at least 0"),
        (
            ("--config.llm.base_url=https://u:secret@host/v1",),
            "config.llm.base_url holds a name or password",
        ),
        (
            ("--config.llm.base_url=https://host/v1?api-key=SECRET",),
            "config.llm.base_url holds parameters, and the run would write it to disk",
        ),
        (("--config.train.merge=0.0",), "config.train.merge=0.0: must be a finite number, above 0"),
        (("--config.graph.openie=x", "--config.graph.gleanings=1"), "set one of them"),
        (("--config.retriever.path=/no/such/model",), "/no/such/model"),
        (("--config.mesh=(3,5,1)",), "mesh"),
        (("--config.llm.backend=magic",), "magic"),
    ],
)
def test_bad_flags_are_reported_in_one_line(world, tmp_path, tool, flags, message):
    done = tool(*command(world, tmp_path / "work", "run", *flags)[3:])
    assert done.returncode == 1
    assert (
        message in done.stderr
        and done.stderr.startswith("error: ")
        and "Traceback" not in done.stderr
    )


def test_the_last_of_repeated_field_flags_counts(world, tmp_path, tool):
    """As a sweep gives them: tuples would be joined, and another curriculum trained."""
    fields = ("train.stages=(1,2)", "seed=3", "train.stages=(0,)")
    flags = [f"--config.{field}" for field in fields]
    done = tool(*command(world, tmp_path, "status", *flags)[3:])
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if "stage" in line.split()[0]] == [
        "stage0"
    ]


def test_each_default_model_is_named_in_one_line(world, tmp_path, tool):
    """`status` fetches none of them."""
    empty = ("--config.retriever.path=", "--config.generator.path=")
    done = tool(*command(world, tmp_path, "status", *empty)[3:])
    assert done.returncode == 0, done.stderr
    retriever, generator, first, *_ = done.stdout.splitlines()
    assert retriever.startswith("retriever: ") and "since this run has" in retriever
    assert generator.startswith("generator: ") and "--config.generator.path=... " in generator
    assert first.split() == ["data", "missing"]
    assert not (tmp_path / "cache" / "models").exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config=configs/nope.py", "--config=configs/nope.py: no such file"),
        ("--config=configs/arc.py", "no such file; did you mean configs/ark.py?"),
        ("--config=configs/ark.py:nope", "preset nope: must be one of default, best, paper"),
    ],
)
def test_an_unavailable_config_is_reported_in_one_line(flag, message, tmp_path, tool, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    done = tool("status", flag, f"--workdir={tmp_path}")
    assert (
        done.returncode == 1
        and message in done.stderr
        and done.stderr.count("\n") == 1
        and "Traceback" not in done.stderr
    )


CONFIG_FILES = {
    "import no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
    "def get_config(:": "SyntaxError",
    "import sys; sys.exit(5)": "SystemExit: 5",
    "def get_config(): 1 / 0": "ZeroDivisionError",
    "def get_config(): assert False": "AssertionError",
    "def get_config(): raise OSError('gone')": "gone",
    "def get_config(): return 7": "gives int, not a ConfigDict",
    "def get_config(): return {}": "gives dict, not a ConfigDict",
    "import ml_collections\ndef get_config(): return ml_collections.ConfigDict()": "is missing",
}


@pytest.mark.parametrize("text", CONFIG_FILES)
def test_a_failing_config_file_is_reported_in_one_line(text, tmp_path, tool):
    (tmp_path / "bad.py").write_text(text + "\n")
    done = tool("status", f"--config={tmp_path}/bad.py", f"--workdir={tmp_path}/run")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert CONFIG_FILES[text] in done.stderr and "should not happen" not in done.stderr


def test_a_cost_limit_without_a_paid_model_is_refused(tmp_path):
    flags = (f"--config={REPOSITORY / 'configs' / 'bar_rag.py'}", "--max-cost=3")
    with pytest.raises(ValueError, match="--max-cost: this recipe asks no paid model"):
        runs.Run.parse("run", [*flags, f"--workdir={tmp_path}"]).open()


def test_two_configs_are_refused(tmp_path):
    configs = ["--config=configs/ark.py", "--config=configs/ark.py:paper"]
    with pytest.raises(ValueError, match=r"configs/ark\.py and .*:paper: give one"):
        runs.Status.parse("status", [*configs, f"--workdir={tmp_path}"])


def test_help_lists_the_verbs(tool):
    done = tool("--help")
    assert "\n  demo  " in done.stdout and done.returncode == 0


def test_a_command_without_or_with_an_unknown_verb_fails(tool):
    assert tool().returncode == 2
    assert tool("frobnicate").returncode == 1


def test_a_run_without_a_workdir_names_the_flag(tool):
    assert "--workdir" in tool("run").stderr


def test_help_does_not_import_slow_packages():
    """Neither jax nor what reads tables, so that it is there at once."""
    slow = ("jax", "transformers", "pyarrow", "absl", "ml_collections")
    script = f"""
import sys
from ark_jax import __main__
assert __main__._main(["--help"]) == 0
print([name for name in {slow} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.stdout.startswith("ark-jax: ") and done.stdout.endswith("\n[]\n"), done.stderr


@pytest.mark.parametrize("name", [*verbs.VERBS, "score"])
def test_every_verb_has_help_with_an_example(name, capsys):
    for flag in ("--help", "-h"):
        assert __main__._main([name, flag]) == 0
        shown = capsys.readouterr().out
        known = name if name in verbs.VERBS else "STAGE"
        assert shown.startswith(f"ark-jax {known} ") and f"\nExample:\n  ark-jax {known}" in shown
        assert max(map(len, shown.splitlines())) <= 100


def test_a_mistyped_verb_is_answered_with_the_nearest(capsys):
    assert __main__._main(["serach", "i", "Who?"]) == 1
    assert "unknown verb 'serach'; did you mean search?" in capsys.readouterr().err


def test_help_for_a_mistyped_verb_names_the_nearest(capsys):
    assert __main__._main(["stauts", "--help"]) == 0
    assert "did you mean status?" in capsys.readouterr().out


def test_an_unknown_stage_is_refused_with_the_known_ones():
    stages = ("data", "stage2", "stage3")
    message = unknown_verb("stage4", stages)
    assert message.startswith(
        "'stage4' is neither a verb nor a stage of this config; did you mean stage"
    )
    assert "; its stages: data, stage2, stage3; `ark-jax --help`" in message
    assert "did you mean" not in unknown_verb("extract", stages)
    assert "did you mean evaluate?" in unknown_verb("eval", stages)


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"], ["check", "{corpus}"]])
def test_printing_commands_end_quietly_when_their_pipe_is_closed(words, world):
    """The output is a pipe of which nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [word.format(corpus=world / "corpus") for word in words]
    words = [sys.executable, "-m", "ark_jax", *words]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_whose_pipe_is_closed_explains_how_to_resume(world, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command(world, tmp_path, "data"),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=environment(world),
    )
    os.close(writing)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "standard output: Broken pipe; keep its reader open" in done.stderr


@pytest.mark.parametrize("has_workdir", [False, True])
def test_an_unforeseen_error_is_one_line_with_a_saved_traceback(
    tmp_path, monkeypatch, capsys, has_workdir
):
    def fail(*_):
        raise KeyError("unforeseen")

    monkeypatch.setattr(runs.Run, "run", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    folder = tmp_path / ("work" if has_workdir else "temporary")
    folder.mkdir()
    assert __main__._main(["run", f"--workdir={tmp_path / 'work'}"]) == 1
    said = capsys.readouterr().err
    path = Path(re.search(r"the trace in (\S+)\.", said)[1])
    assert said.startswith("error: KeyError: 'unforeseen'\n") and path.is_relative_to(folder)
    assert "in fail" in path.read_text()


def test_running_out_of_memory_is_not_reported_as_a_bug(monkeypatch, capsys):
    def fail(*_):
        raise MemoryError("Unable to allocate 7 TiB")

    monkeypatch.setattr(runs.Run, "run", fail)
    assert __main__._main(["run"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: out of memory (Unable to allocate 7 TiB): ")
    assert said.count("\n") == 1 and "report" not in said


@pytest.mark.parametrize("flags, source", [([], "given"), (["--documents-only"], "written")])
def test_the_demo_can_run_from_documents_alone(flags, source, monkeypatch):
    folders = {"retriever": "RETRIEVER", "generator": "GENERATOR"}
    monkeypatch.setattr(models, "demo_models", lambda: folders)
    flags = [*flags, "--config.train.batch=3"]
    monkeypatch.setattr(sys, "argv", ["ark-jax", "demo", *flags])  # ml_collections looks there
    demo = runs.Demo.parse("demo", flags)
    config = demo.open()
    assert config.questions.source == source and config.train.batch == 3
    assert demo.workdir.name == ("ark_demo_documents" if flags[1:] else "ark_demo")


def test_only_the_demo_knows_the_flag_for_documents_alone():
    with pytest.raises(ValueError, match="bad flag"):
        runs.Run.parse("run", ["--documents-only"])


def test_check_validates_a_test_set_against_its_corpus(world, tmp_path, capsys):
    rows = ({"id": "t1", "question": "What rose?", "documents": ["great-surge"]},)
    rows += ({"id": "t2", "question": "What fell?", "documents": ["atlantis"]},)
    test = tmp_path / "test.jsonl"
    for asked, status, message in (
        (rows[:1], 0, ["test set: 1 questions: a test would", "no problem found"]),
        (rows, 1, ["documents: 'atlantis' is not found in the corpus", "1 problem(s) in 1 of 2"]),
        ((), 1, ["test set: 0 questions: none can be read"]),
    ):
        test.write_text("".join(json.dumps(row) + "\n" for row in asked))
        assert __main__._main(["check", str(world / "corpus"), str(test)]) == status
        shown = capsys.readouterr().out
        assert all(words in shown for words in message) and "documents: 3" in shown
        assert "a test on a fifth" not in shown


@pytest.mark.parametrize(("verb", "status"), [("run", 0), ("config", 143)])
def test_a_terminated_command_succeeds_only_if_it_can_go_on(verb, status, tmp_path):
    """`ark-jax index ... && deploy` must not deploy what was not built."""
    sign = tmp_path / "is read"
    (tmp_path / "slow.py").write_text(f"import time; open({str(sign)!r}, 'x'); time.sleep(60)")
    flags = [f"--config={tmp_path}/slow.py"] + [f"--workdir={tmp_path}/work"] * (verb == "run")
    words = [sys.executable, "-m", "ark_jax", verb, *flags]
    process = subprocess.Popen(words, text=True, stderr=subprocess.PIPE)
    while not sign.exists() and process.poll() is None:
        time.sleep(0.01)
    process.terminate()
    assert process.communicate(timeout=20)[1].count("stopped") == 1
    assert process.returncode == status
