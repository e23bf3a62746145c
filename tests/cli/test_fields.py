"""`ark-jax config`, packaged presets, and fields that do not exist."""

import re
import subprocess
import sys

import pytest
from support.paths import REPOSITORY

from ark_jax import __main__, config, schema
from ark_jax.cli.config_flags import locate_config, packaged_files
from ark_jax.cli.runs import Plan, Run, Status


def shown(capsys, *words: str) -> str:
    assert __main__._main(["config", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("recipe", config.SCHEMAS)
def test_every_field_is_shown_with_value_unit_and_meaning(recipe, capsys):
    text = shown(capsys, f"--config={recipe}")
    one_line = " ".join(text.split())
    for spec in schema.fields(config.SCHEMAS[recipe]):
        assert f"\n  {spec.name} = {spec.default!r}\n" in f"\n{text}", spec.name
        for fact in (spec.meaning, spec.unit, spec.describe()):
            assert " ".join(fact.split()) in one_line, spec.name
    assert max(len(line) for line in text.splitlines() if " = " not in line) <= 100


def test_changed_fields_are_marked_with_their_default(capsys):
    text = shown(capsys, "train", "--config=ark:paper", "--config.train.batch=4")
    assert (
        "* train.batch = 4\n      Training questions per step.\n      default 16; questions; an"
        in text
    )
    assert "* train.denominator = 'own'" in text and "\n  train.clip = 1.0" in text
    names = re.findall(r"^[* ] (\S+) = ", text, re.MULTILINE)
    assert names and all(name.startswith("train.") for name in names)
    assert "retriever:" not in text  # no model is named by default


def test_the_source_of_a_value_stands_below_it(capsys):
    text = shown(capsys, "train.temp", "train.batch", "--config=ark:official")
    # eq. 7 of the paper gives no value; ms-swift's default is 0.1.
    assert "\n      paper: 0.05, eq. 7: τ without a value; ours\n" in text
    assert "\n      official: ms-swift's INFONCE_TEMPERATURE" in text
    theirs = "16, Table 6: 2, accumulated 8 times; one batch shares negatives"
    assert f"\n      paper: {theirs}\n" in text
    text = shown(capsys, "iterations", "--config=bar_rag")  # small: 1
    assert "\n      paper: 3, appendix A.5: T\n      official: 3, README: 2 to 3\n" in text


def test_an_unknown_field_prefix_is_refused(capsys):
    assert __main__._main(["config", "trian"]) == 1
    assert "no field begins with trian; `ark-jax config` lists all" in capsys.readouterr().err


@pytest.mark.parametrize("name", packaged_files())
def test_config_files_equal_the_packaged_presets(name):
    import runpy

    packaged = runpy.run_path(locate_config(name))
    thin = runpy.run_path(str(REPOSITORY / "configs" / f"{name}.py"))
    # A sweep that follows from the fields of a run is a function.
    runs = lambda swept: {name: getattr(x, "__qualname__", x) for name, x in swept.items()}
    assert thin.get("TABLE") == packaged.get("TABLE")
    assert runs(thin.get("SWEEPS", {})) == runs(packaged.get("SWEEPS", {}))
    if name != "demo":  # which fetches models
        assert thin["get_config"]().to_dict() == packaged["get_config"]().to_dict()


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        (
            "trian.batch=3",
            "the config has no field 'trian.batch' (did you mean --config.train.batch?)",
        ),
        ("train.bacth=3", "no field 'train.bacth' (did you mean --config.train.batch?); `ark-jax"),
        ("clip=1", "did you mean --config.train.clip?"),
        ("temperature=1", "or --config.rewriter.temperature or --config.train.temperature?"),
        ("nothing.alike.at_all=1", "`ark-jax config` lists all"),
        ("trian.batch", "no field 'trian.batch' (did you mean --config.train.batch?)"),
        ("train.batch.size=1", "no field 'train.batch.size' (did you mean --config.train.batch?"),
        ("train.batch=few", "train.batch=few"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest(field, hint):
    status = Status.parse("status", ["--config=ark", f"--config.{field}"])
    with pytest.raises(ValueError) as raised:
        status.open()
    message = str(raised.value)
    assert hint in message and "\n" not in message
    assert message.startswith("bad flag: ") and "`ark-jax status --help`" in message


def test_a_field_without_a_config_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config\.data\.path is a field of no config; name one"):
        Run.parse("run", ["--config.data.path=x", f"--workdir={tmp_path}"]).open()


def test_an_unknown_config_is_refused_with_the_nearest_preset():
    for named, message in (
        ("arc:paper", "did you mean ark? "),
        ("x/y.py", "the presets are ark, "),
    ):
        with pytest.raises(ValueError, match="no such file") as raised:
            locate_config(named)
        assert message in str(raised.value)


def test_config_and_workdir_accept_a_space_before_their_value(tmp_path):
    plan = Plan.parse("plan", ["--workdir", str(tmp_path), "--config", "gpr:paper"])
    assert plan.workdir == tmp_path and plan.open().train.towers == "two"


@pytest.mark.parametrize("words", [["plan", "--config=gpr"], ["config"]])
def test_a_listing_ends_quietly_when_its_pipe_is_closed(words, tmp_path):
    graph = tmp_path / "graph.tsv"
    graph.write_text("".join(f"a{i}\tr\tb{i}\n" for i in range(50)))
    words += [f"--config.data.path={graph}"] if words[0] == "plan" else []
    script = f"{sys.executable} -m ark_jax {' '.join(words)} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}"], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert (done.returncode, done.stderr) == (0, "")
