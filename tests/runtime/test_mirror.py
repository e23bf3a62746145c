"""A workdir in a bucket, by gcsfs and an emulator of Google Cloud Storage on this machine."""

import importlib.util
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support import gcs
from support.paths import REPOSITORY

from ark_jax.pipeline import manifest
from ark_jax.runtime import mirror

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("gcsfs"),
    reason="gcsfs is not installed: pip install -e '.[reference]'",
)
ADDRESS = f"gs://{gcs.BUCKET}/folder/run"


@pytest.fixture(scope="module")
def variables():
    with gcs.serve() as found:
        yield found


@pytest.fixture
def client(variables, tmp_path, monkeypatch):
    """An empty bucket."""
    for name, value in {**variables, "ARK_CACHE": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(mirror, "_mirrors", {})
    files = mirror._file_system()
    for name in files.find(gcs.BUCKET):
        files.rm_file(name)
    return files


def stored(client) -> dict[str, bytes]:
    """The bucket's files of the run, without its lease."""
    root = ADDRESS.removeprefix("gs://")
    names = [name.removeprefix(f"{root}/") for name in client.find(root)]
    return {name: client.cat_file(f"{root}/{name}") for name in names if name[:6] != ".lease"}


def open_elsewhere(monkeypatch):
    """The copy of another process of this host."""
    monkeypatch.setattr(mirror, "_mirrors", {})
    return mirror.open_workdir(ADDRESS)


def finish_stage(workdir, content: bytes) -> None:
    (workdir / "data").mkdir(exist_ok=True)
    (workdir / "data" / "rows").write_bytes(content)
    (workdir / "data" / "manifest.json").write_text(json.dumps(content.decode()))


def test_what_a_run_leaves_is_what_another_host_finds(client, monkeypatch):
    workdir = mirror.open_workdir(f"{ADDRESS}/")
    assert mirror.open_workdir(ADDRESS) == workdir and not any(workdir.glob("[!.]*"))
    assert mirror.address(workdir / "data") == f"{ADDRESS}/data"
    with mirror.hold(workdir):
        finish_stage(workdir, b"1")
        (workdir / "empty").touch()
        (workdir / "half.new").touch()
    assert stored(client) == {"data/rows": b"1", "data/manifest.json": b'"1"', "empty": b""}
    other = open_elsewhere(monkeypatch)
    assert other != workdir and (other / "data" / "rows").read_bytes() == b"1"
    (other / "data" / "rows").write_bytes(b"2")  # published by no run
    (other / "begun" / "by").mkdir(parents=True)
    (other / "begun" / "by" / "another").touch()
    (other / "empty").unlink()
    assert mirror.open_workdir(ADDRESS) == other
    assert (other / "data" / "rows").read_bytes() == b"1" and (other / "empty").is_file()
    assert not (other / "begun").exists()


def test_only_changes_travel(client, monkeypatch):
    workdir = mirror.open_workdir(ADDRESS)
    with mirror.hold(workdir):
        finish_stage(workdir, b"1")
        mirror._mirrors[workdir].publish()
        before = client.info(f"{ADDRESS}/data/rows")["generation"]
        (workdir / "more").write_text("x")
    assert client.info(f"{ADDRESS}/data/rows")["generation"] == before
    got = []
    monkeypatch.setattr(client, "get", lambda names, *_: got.extend(names))
    mirror.open_workdir(ADDRESS)
    assert not got


def test_a_finished_stage_is_renamed_without_travelling(client, monkeypatch):
    workdir = mirror.open_workdir(ADDRESS)
    began = workdir / ".partial" / "data"
    with mirror.hold(workdir):
        began.parent.mkdir()
        finish_stage(began.parent, b"1")
        first = mirror._mirrors[workdir].take_changes()
        (process_0,) = mirror._mirrors.values()
        open_elsewhere(monkeypatch)
        (process_1,) = mirror._mirrors.values()
        process_1.apply_changes(first)
        monkeypatch.setattr(client, "put", None)
        monkeypatch.setattr(client, "get", None)
        began.rename(workdir / "data")
        process_1.apply_changes(process_0.take_changes())
        assert (process_1.folder / "data" / "rows").read_bytes() == b"1"
        assert [path.name for path in process_1.folder.glob(".[!b]*")] == []
    assert stored(client) == {"data/rows": b"1", "data/manifest.json": b'"1"'}


def test_a_stage_has_its_manifest_only_while_it_is_whole(client, monkeypatch):
    """The bucket after a kill at any moment of a replacement is one without the stage."""
    workdir = mirror.open_workdir(ADDRESS)
    seen, put = [], client.put

    def put_and_look(local, remote):
        put(local, remote)
        seen.append(stored(client))

    with mirror.hold(workdir):
        finish_stage(workdir, b"1")
        mirror._mirrors[workdir].publish()
        monkeypatch.setattr(client, "put", put_and_look)
        finish_stage(workdir, b"2")
        (workdir / "data" / "reads.jsonl").write_text("{}")
    for files in seen[:-1]:
        assert "data/manifest.json" not in files
    assert len(seen) == 3 and seen[-1]["data/manifest.json"] == b'"2"'
    assert "data/rows" in seen[1] and seen[0]["data/rows"] == b"1"  # rows of reads come first


def test_checkpoints_follow_the_folder_of_an_unfinished_stage(client):
    workdir = mirror.open_workdir(ADDRESS)
    partial = workdir / ".partial" / "stage1"
    with mirror.hold(workdir):
        manifest.begin(partial, {"epochs": 1}, lambda record: "")
        (mirror.in_bucket(partial / "checkpoints") / "1" / "state").write_text("of epochs=1")
        changed = lambda record: "epochs" if record["arguments"] != {"epochs": 2} else ""
        manifest.begin(partial, {"epochs": 2}, changed)
        aside = next(path for path in partial.parent.iterdir() if path != partial)
        names = {name for name in stored(client) if "checkpoints" in name}
        assert names == {f".partial/{aside.name}/checkpoints/1/state"}
        mirror.remove_tree(aside)
    assert set(stored(client)) == {".partial/stage1/reads.jsonl"}


RUN = """
import sys, time
from ark_jax.runtime import mirror
workdir = mirror.open_workdir(sys.argv[1])
try:
    with mirror.hold(workdir):
        print("holds", flush=True)
        began = time.time()
        time.sleep(float(sys.argv[2]))
        print("held", began, time.time())
except RuntimeError as error:
    sys.exit(str(error))
"""


def start(seconds: float) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, ADDRESS, str(seconds)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow  # a lease runs out
def test_one_run_holds_a_workdir_until_it_is_killed(client):
    first = start(600)
    assert first.stdout.readline() == "holds\n"
    workdir = mirror.open_workdir(ADDRESS)
    with (
        pytest.raises(RuntimeError, match=f"{ADDRESS}: another run is working here .*, process "),
        mirror.hold(workdir),
    ):
        raise AssertionError("two runs hold the workdir")
    first.send_signal(signal.SIGKILL)
    first.wait()
    began = time.monotonic()
    with mirror.hold(workdir):
        assert time.monotonic() - began < 45  # the lease of 30 s has run out
    with mirror.hold(workdir):  # a lease that was released is taken at once
        assert len(client.find(f"{ADDRESS}/.lease")) == 2
    first.stdout.close()


def test_a_run_that_lost_its_lease_ends(client):
    """As after a machine slept for a while."""
    first = start(600)
    assert first.stdout.readline() == "holds\n"
    client.pipe_file(f"{ADDRESS}/.lease/00000002", b'{"owner": "another", "until": 9e12}')
    output = first.communicate(timeout=60)[0]
    assert first.returncode == 1
    assert f"error: {ADDRESS}: the lease of the workdir is lost" in output


def test_one_of_many_runs_takes_a_lease_that_ran_out(client):
    """All see the same lease that ran out; the bucket lets one create the next."""
    client.pipe_file(f"{ADDRESS}/.lease/00000007", b'{"owner": "another", "until": 1}')
    runs = [start(3) for _ in range(4)]
    outputs = [run.communicate(timeout=90)[0] for run in runs]
    held = sorted(tuple(map(float, x.split())) for x in re.findall("held (.*)", "".join(outputs)))
    assert held and all(one[1] < later[0] for one, later in itertools.pairwise(held))
    assert len(held) + sum("another run is working" in text for text in outputs) == 4
    (lease,) = client.find(f"{ADDRESS}/.lease")
    assert int(lease.rpartition("/")[2]) == 7 + len(held)


def test_a_bucket_that_cannot_be_reached_is_named(client, monkeypatch):
    def fail(*args, **options):
        raise TimeoutError("no route to host")

    monkeypatch.setattr(client, "find", fail)
    with pytest.raises(OSError, match=f"{ADDRESS} cannot be read or written .no route"):
        mirror.open_workdir(ADDRESS)
