"""Damage to finished stages is noticed and mended; unfinished work is never deleted in silence."""

import json
import shutil

import pytest
from support import word_recipe

from ark_jax.pipeline import engine, manifest
from ark_jax.pipeline.manifest import MANIFEST_FILE, read_manifest
from ark_jax.pipeline.stage import Context, Interrupted, Stage
from ark_jax.pipeline.status import examine
from ark_jax.runtime.log import Metrics


@pytest.fixture
def context(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the tide table of the Tidal Board")
    workdir = tmp_path / "work"
    workdir.mkdir()
    config = word_recipe.get_config()
    config.text = str(text)
    return Context(config, workdir, Metrics(workdir / "metrics.jsonl"))


def run(context, **options) -> None:
    engine.run(word_recipe.stages(context.config), context, **options)


def states(context, *verify: str) -> dict[str, tuple[str, str]]:
    stages = word_recipe.stages(context.config)
    examined = examine(stages, context.config, context.workdir, verify=verify)
    return {status.stage: (status.state, status.why) for status in examined}


def flip(path, position: int = 0) -> None:
    """Changes one bit and nothing else that a listing shows."""
    contents = bytearray(path.read_bytes())
    contents[position] ^= 1
    path.write_bytes(contents)


def outputs(context) -> list[tuple[str, str]]:
    return [
        (stage, name)
        for stage in ("split", "count", "report")
        for name in read_manifest(context / stage)["outputs"]
    ]


def test_a_flipped_bit_in_any_output_is_detected(context):
    run(context)
    everything = ("split", "count", "report")
    assert {state for state, _ in states(context, *everything).values()} == {"done"}
    for stage, name in outputs(context):
        flip(context / stage / name)
        assert states(context)[stage] == ("done", "")  # its size tells nothing
        assert states(context, *everything)[stage] == ("stale", f"{name} is damaged")
        flip(context / stage / name)


def drop(name):
    return lambda manifest: json.dumps({k: v for k, v in manifest.items() if k != name})


def put(**values):
    return lambda manifest: json.dumps(manifest | values)


DAMAGED_MANIFESTS = {
    "empty": lambda manifest: "",
    "NUL": lambda manifest: "\0" * 500,
    "half": lambda manifest: json.dumps(manifest)[:200],
    "deep": lambda manifest: "[" * 100_000,
    "other": lambda manifest: "[]",
    "null": lambda manifest: "null",
    "without outputs": drop("outputs"),
    "without version": drop("version"),
    "outputs of another form": put(outputs={"distinct.txt": {"size": 29}}, digest=None),
    "a count": put(counts={"distinct": 7, "resumed": False}),
    "no outputs": put(outputs={}),
    "a path outside": put(outputs={"../../text.txt": [33, ""]}),
}


@pytest.mark.parametrize("kind", DAMAGED_MANIFESTS)
def test_a_stage_with_a_damaged_manifest_runs_again(context, kind):
    run(context)
    path = context / "count" / MANIFEST_FILE
    good = path.read_text()
    path.write_text(DAMAGED_MANIFESTS[kind](json.loads(good)))
    assert states(context)["count"] == ("stale", "manifest.json is damaged")
    assert states(context)["split"] == ("done", "")
    run(context)
    assert path.read_text() == good


def test_no_flipped_bit_changes_what_a_manifest_says_undetected(context):
    run(context)
    path = context / "count" / MANIFEST_FILE
    good = read_manifest(context / "count")
    for position in range(path.stat().st_size):
        flip(path, position)
        if states(context)["count"] == ("done", ""):
            manifest = read_manifest(context / "count")
            assert all(manifest[name] == value for name, value in good.items() if name != "digest")
        flip(path, position)


def test_a_folder_in_place_of_a_manifest_is_replaced(context):
    run(context)
    (context / "count" / MANIFEST_FILE).unlink()
    (context / "count" / MANIFEST_FILE).mkdir()
    run(context)
    assert read_manifest(context / "count")["counts"]["distinct"] == 6


@pytest.mark.parametrize("kind", ["a file", "a link", "a link to nowhere"])
def test_files_and_links_in_place_of_a_stage_folder_are_replaced(context, kind, tmp_path):
    run(context)
    stage, elsewhere = context / "count", tmp_path / "elsewhere"
    stage.rename(elsewhere)
    if kind == "a file":
        stage.touch()
    else:
        stage.symlink_to(elsewhere)
        (elsewhere / "distinct.txt").unlink()
    if kind == "a link to nowhere":
        shutil.rmtree(elsewhere)
    run(context)
    assert stage.is_dir() and not stage.is_symlink()
    assert {state for state, _ in states(context, "count").values()} == {"done"}


def test_a_manifest_of_another_version_is_reported_by_its_version(context):
    run(context)
    path = context / "count" / MANIFEST_FILE
    path.write_text(json.dumps({"version": "9.0.0", "files": []}))
    assert states(context)["count"] == ("stale", "made by ark_jax 9.0.0")
    run(context)
    assert states(context)["count"] == ("done", "")


def test_a_workdir_of_an_earlier_version_is_refused(context):
    run(context)
    path = context / "count" / MANIFEST_FILE
    manifest = json.loads(path.read_text()) | {"version": "0.4.0"}
    path.write_text(drop("arguments")(manifest))
    for look in (run, states):
        with pytest.raises(ValueError, match=r"was made by ark_jax 0\.4\.0.*another --workdir"):
            look(context)


@pytest.mark.parametrize("name", ["distinct.txt", MANIFEST_FILE])
def test_damage_before_a_stage_is_moved_into_place_is_detected(context, name, monkeypatch, capsys):
    run(context)
    good = (context / "count" / "distinct.txt").read_bytes()
    shutil.rmtree(context / "count")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(engine, "_put_into_place", killed)
        run(context)
    flip(context.workdir / ".partial" / "count" / name)
    run(context)
    assert "has been damaged since: it is made again" in capsys.readouterr().out
    assert (context / "count" / "distinct.txt").read_bytes() == good


def test_a_damaged_input_is_rebuilt_before_it_is_read(context, capsys):
    run(context)
    flip(context / "split" / "words.txt")
    (context / "count" / "distinct.txt").unlink()
    run(context)
    assert "split (again: words.txt is damaged)" in capsys.readouterr().out
    assert (context / "count" / "distinct.txt").read_text().split()[0] == "board"


def test_a_stage_alone_refuses_a_damaged_input(context):
    run(context)
    flip(context / "split" / "words.txt")
    (context / "count" / "distinct.txt").unlink()
    with pytest.raises(Interrupted, match=r"needs split, which is stale: words\.txt is damaged"):
        run(context, only="count")


def test_outputs_are_verified_only_on_request(context, capsys):
    run(context)
    flip(context / "count" / "distinct.txt")
    run(context)
    assert "nothing to do" in capsys.readouterr().out
    run(context, verify=True)
    assert "count (again: distinct.txt is damaged)" in capsys.readouterr().out
    assert {state for state, _ in states(context, "count").values()} == {"done"}


def test_unfinished_work_of_other_settings_is_set_aside_and_reused(context, capsys):
    run(context, only="split")
    partial = context.workdir / ".partial" / "count"

    def stop(context, folder):
        (context / "split" / "words.txt").read_text()
        (folder / "half").write_text("an hour of work")
        raise RuntimeError("stopped")

    split, _, _ = word_recipe.stages(context.config)
    with pytest.raises(RuntimeError, match="stopped"):
        engine.run([split, Stage("count", stop)], context)
    context.config.fold_case = False
    run(context, only="split")
    capsys.readouterr()
    run(context, only="count")
    said = capsys.readouterr().out
    assert "unfinished work is set aside (split changed)" in said and not partial.exists()
    aside = list(partial.parent.glob("count.*"))
    assert len(aside) == 1 and (aside[0] / "half").is_file() and str(aside[0]) in said
    context.config.fold_case = True
    run(context, only="split")
    run(context, only="count")
    assert "goes on with count." in capsys.readouterr().out
    assert (context / "count" / "half").is_file() and not aside[0].exists()


@pytest.mark.parametrize("begun", [None, "", "half of a {", "[]", "{}"])
def test_unfinished_work_without_readable_inputs_is_set_aside(context, begun, capsys):
    run(context, only="split")
    partial = context.workdir / ".partial" / "count"
    partial.mkdir(parents=True)
    (partial / "half").touch()
    if begun is not None:
        (partial / manifest.READS).write_text(begun)
    run(context, only="count")
    assert "set aside (what it has read is unknown)" in capsys.readouterr().out
    assert not (context / "count" / "half").exists()
