"""Several processes on this machine, over gloo: one result, disjoint data, one writer, and no one left hanging."""

import contextlib
import dataclasses
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import test_pipeline
import tiny
from etils.epath import backend, gpath

from ark_jax import bucket, hosts

REPOSITORY = Path(__file__).parent.parent
# To compile takes longest by far.
QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"}
TEXTS = [f"The tide table of {year} " + "counts the high water of each day " * (year % 7) for year in range(1850, 1882)]


def start(processes: int, devices: int, arguments: list[str], cache: Path, **environment: str) -> list[subprocess.Popen]:
    """As launch/local.sh does; but what a process creates only its owner may read, unless it is process 0."""
    names = {**os.environ, **QUICK, "ARK_COORDINATOR": f"localhost:{free_port()}", "ARK_PROCESSES": str(processes),
             "ARK_CACHE": str(cache), "JAX_NUM_CPU_DEVICES": str(devices),
             "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}", **environment}
    return [subprocess.Popen(arguments, env={**names, "ARK_PROCESS": str(i)}, umask=0o077 if i else 0o022, text=True,
                             cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for i in range(processes)]


def free_port() -> int:
    import socket

    with socket.socket() as some:
        some.bind(("", 0))
        return some.getsockname()[1]


def ended(running: list[subprocess.Popen], timeout: float = 900) -> list[str]:
    """What they said; none may fail."""
    try:
        said = [process.communicate(timeout=timeout)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * len(running), "\n---\n".join(said)
    return said


class Looked(dict):
    """Texts, and of which ones were read."""

    def __init__(self):
        super().__init__({str(i): text for i, text in enumerate(TEXTS)})
        self.read: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.read.append(name)
        return super().__getitem__(name)


def train(base, folder: Path, notice: int = 0, passages: dict[str, str] | None = None):
    """Four steps, from where `folder` stands; after step `notice` the last process is told to stop. The model, and the curve."""
    from ark_jax.data.curriculum import Example
    from ark_jax.train import loop

    texts, add = Looked(), loop.Curve.add

    def noticed(curve, row: dict) -> None:
        add(curve, row)
        if row["step"] == notice and jax.process_index() == jax.process_count() - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    examples = [Example(str(i), "d", (str(i + 8),), (str(i + 16), str(i + 24))) for i in range(8)]
    plan = loop.Plan(epochs=2, learning_rate=1e-3, warmup=0.1, weight_decay=0.01, clip=1.0, batch=4, chunks=1, temperature=0.05,
                     matryoshka=(), denominator="batch", order="question", save_every=3, remat="products", seed=0,
                     use_negatives=True, lora_rank=0, lora_alpha=1.0, lora_targets=())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Curve, "add", noticed)
        tuned, _, curve = loop.train(base, examples, texts, texts if passages is None else passages, plan, folder, "train")
    return tuned, curve


def work(folder: Path) -> dict:
    """Training and encoding on the mesh there is; what this process tokenised, read and placed, and what came of it.

    A second training is stopped half-way; a third one goes on in `folder`/resumed, if that is there.
    """
    from ark_jax import layout, preemption
    from ark_jax.models import hf
    from ark_jax.models.retriever import Retriever

    tokenized, read, placed, passages = [], [], [], Looked()
    whole_slice, whole_put = hf.Checkpoint.slice, layout.put

    class Counted:
        def __init__(self, some):
            self.get_shape, self.some = some.get_shape, some

        def __getitem__(self, index):
            found = self.some[index]
            read.append(found.nbytes)
            return found

    def put(x, spec):
        out = whole_put(x, spec)
        if len(placed) < 6:  # of the first batch: tokens and masks of questions and chunks, who is whose
            seen = {shard.index[0].indices(len(x))[:2] for shard in out.addressable_shards}
            placed.append([len(x), sorted(seen)])
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf.Checkpoint, "slice", lambda self, name: Counted(whole_slice(self, name)))
        base = Retriever.from_pretrained(str(folder.parent / "model"))
        patch.setattr(layout, "put", put)
        tokenizer = base.tokenizer
        base.tokenizer = lambda texts, **how: tokenized.append(texts) or tokenizer(texts, **how)
        tuned, curve = train(base, folder / "run", passages=passages)
        tuned.save_pretrained(folder / "run" / "model")
        vectors = tuned.encode(TEXTS, kind="document")
    base.tokenizer = tokenizer
    with pytest.raises(preemption.Stopped, match="train: step 2 of 4 is saved"):
        train(base, folder / "stopped", notice=2)
    resumed = train(base, folder / "resumed")[1] if (folder / "resumed").is_dir() else None
    return {"tokenized": tokenized, "passages": passages.read, "read": sum(read), "placed": placed, "curve": curve,
            "resumed": resumed, "devices": jax.sharding.get_mesh().size, "vectors": vectors.tolist()}


WORK = """
import json, pathlib, sys
from ark_jax import hosts, layout
import test_hosts
with hosts.together():
    layout.enter_mesh((1, -1, 1))
    print("RESULT" + json.dumps(test_hosts.work(pathlib.Path(sys.argv[1]))))
"""
RESUMED = "  train: goes on after step 2 of 4\n"


def worked(processes: int, devices: int, folder: Path, before: Path) -> list[dict]:
    """What so many processes did in `folder`, where the stopped training of `before` goes on too; and what they said."""
    shutil.copytree(before / "stopped", folder / "resumed")
    said = ended(start(processes, devices, [sys.executable, "-c", WORK, str(folder)], folder.parent / "cache"))
    return [json.loads(re.search(r"^RESULT(.*)$", text, re.M)[1]) | {"said": text} for text in said]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    root = tmp_path_factory.mktemp("hosts")
    tiny.sentence_transformer(tiny.write(root / "model", "bert", tokenizer="cls"), pooling="mean", max_seq_length=64)
    return root


@pytest.fixture(scope="module")
def alone(model, quick_step):
    """This process, on one of its devices."""
    from ark_jax import layout

    said = io.StringIO()
    with jax.set_mesh(layout.make_mesh((1, 1, 1))), contextlib.redirect_stdout(said):
        return work(model / "alone") | {"said": said.getvalue()}


@pytest.fixture(scope="module")
def pair(model, alone):
    return worked(2, 1, model / "pair", model / "alone")


def agree(curve: list[dict], one: dict) -> None:
    assert [row["step"] for row in curve] == [1, 2, 3, 4]
    for name in ("loss", "gradient_norm"):
        np.testing.assert_allclose([row[name] for row in curve], [row[name] for row in one["curve"]], rtol=1e-5)


def as_one(several: list[dict], one: dict) -> None:
    for result in several:
        agree(result["curve"], one)
        agree(result["resumed"], one)
        np.testing.assert_allclose(result["vectors"], one["vectors"], atol=1e-4)
        assert all(result[name] == several[0][name] for name in ("curve", "resumed", "vectors"))
    cuts = lambda some: set(re.findall(r"  train, .* texts are longer than 64 tokens and are cut there\n", some["said"]))
    assert cuts(one) and [cuts(result) for result in several] == [cuts(one), *[set()] * (len(several) - 1)]


def test_two_processes_train_as_one(pair, alone):
    assert [result["devices"] for result in (*pair, alone)] == [2, 2, 1]
    assert len({row["loss"] for row in alone["curve"]}) == 4
    as_one(pair, alone)


def test_a_stopped_run_goes_on_with_another_number_of_processes(pair, alone, model, tmp_path, capsys):
    assert RESUMED in pair[0]["said"]  # of one process
    from ark_jax import Retriever, layout

    shutil.copytree(model / "pair" / "stopped", tmp_path / "resumed")
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        _, curve = train(Retriever.from_pretrained(str(model / "model")), tmp_path / "resumed")
    assert RESUMED in capsys.readouterr().out
    agree(curve, alone)


def test_each_process_tokenises_its_share(pair, alone):
    assert len(alone["tokenized"]) == 3 and len(pair[0]["tokenized"]) == 3  # questions, chunks, and what is encoded
    for whole, *shares in zip(alone["tokenized"], *(result["tokenized"] for result in pair), strict=True):
        assert sorted(whole) == sorted(itertools.chain(*shares)) and len({len(share) for share in shares}) == 1


def test_each_process_looks_up_the_passages_of_its_share_alone(pair, alone):
    shares = [result["passages"] for result in pair]
    assert len(set(alone["passages"])) == len(alone["passages"]) == 24  # each of them once
    assert sorted(itertools.chain(*shares)) == sorted(alone["passages"]) and len({len(share) for share in shares}) == 1


MAPPED = """
import sys
from pathlib import Path
from ark_jax.stages.files import load_chunks
shared = lambda: int(Path("/proc/self/statm").read_text().split()[2]) * 4096  # of files, what is in memory
before, chunks = shared(), load_chunks(Path(sys.argv[1]))
some = [x.text for x in chunks[:10]]
few, some = shared() - before, [x.text[:1] for x in chunks]
print(len(chunks), few, shared() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="only Linux says how much of its files a process has read")
def test_of_the_texts_only_what_is_asked_for_is_read(tmp_path):
    from ark_jax.data.records import Chunk
    from ark_jax.stages.files import load_chunks, save_chunks

    chunks = [Chunk(f"d#{i}", "d", i, i + 1, 3, f"{i} of the tide. " * 4000) for i in range(1000)]
    save_chunks(chunks, tmp_path)
    assert [(x.id, x.document, x.start, x.end, x.tokens, x.text) for x in load_chunks(tmp_path)[::100]] == list(
        map(dataclasses.astuple, chunks[::100]))
    done = subprocess.run([sys.executable, "-c", MAPPED, str(tmp_path)], capture_output=True, text=True, check=True)
    count, few, all_of_them = map(int, done.stdout.split())
    assert count == 1000 and few < 20e6 and all_of_them > 60e6, done.stdout


def share_out(results: list[dict]) -> None:
    for arrays in zip(*(result["placed"] for result in results), strict=True):
        (rows,) = {rows for rows, _ in arrays}
        taken = [row for _, parts in arrays for part in parts for row in range(*part)]
        assert sorted(taken) == list(range(rows)), "rows that two processes hold, or none"


def test_each_process_places_its_own_rows(pair, alone):
    assert len(pair[0]["placed"]) == 6
    share_out(pair)
    assert all([*map(list, parts)] == [[0, rows]] for rows, parts in alone["placed"])


def test_each_process_reads_its_own_part_of_the_weights(pair, alone):
    # Vectors, which every device holds whole, are a small part.
    assert alone["read"] > 100_000
    for result in pair:
        assert 0.45 < result["read"] / alone["read"] < 0.6


def only_process_0_wrote(folder: Path, theirs: tuple[str, ...] = ()) -> None:
    """By the rights of what it created, which differ: see `start`."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    private = [path.relative_to(folder).as_posix() for path in files if not path.stat().st_mode & 0o044]
    assert files and [name for name in private if not re.search("|".join(theirs) or "$^", name)] == []


def test_one_process_writes(pair, model):
    made = model / "pair" / "run"
    assert (made / "model" / "model.safetensors").is_file() and len((made / "curve.jsonl").read_text().splitlines()) == 4
    # Of a checkpoint each process writes the shards it holds, to files of its own, and its position in the data.
    only_process_0_wrote(made, theirs=(r"checkpoints/.*process_1", r"checkpoints/.*_1-of-2", r"checkpoints/.*/ocdbt"))


@pytest.mark.slow
def test_four_processes_of_two_devices_train_as_one(model, pair, alone):
    four = worked(4, 2, model / "four", model / "pair")
    assert four[0]["devices"] == 8 and RESUMED in four[0]["said"]
    as_one(four, alone)
    share_out(four)


WAIT = """
import os, sys, time
from ark_jax import hosts
with hosts.together():
    import jax
    hosts.first(lambda: None)
    print("joined", flush=True)
    hosts.first(lambda: time.sleep(3600))
"""
WAIT_ON_DEVICES = """
import time
from ark_jax import hosts
with hosts.together():
    import jax, numpy as np
    from ark_jax import layout
    layout.enter_mesh()
    print("joined", flush=True)
    while True:
        layout.fetch(layout.rows(np.arange(8)))
        time.sleep(0.1)
"""


@pytest.mark.parametrize(("code", "killed"), [
    (WAIT_ON_DEVICES, 0), *(pytest.param(*some, marks=pytest.mark.slow)  # it takes its time until silence counts as death
                            for some in ((WAIT_ON_DEVICES, 1), (WAIT, 0), (WAIT, 1)))])
def test_a_killed_process_ends_the_others_with_a_message(code, killed, tmp_path):
    running = start(2, 1, [sys.executable, "-c", code], tmp_path)
    try:
        for process in running:
            while "joined" not in (line := process.stdout.readline()):
                assert line, "it ended early"
        running[killed].send_signal(signal.SIGKILL)
        began = time.monotonic()
        said = running[1 - killed].communicate(timeout=90)[0]
    finally:
        for process in running:
            process.kill()
            process.stdout.close()
    assert running[1 - killed].returncode not in (0, None) and time.monotonic() - began < 60
    assert "run the same command again" in said or "another task died" in said  # the latter is jax's, which lets nobody speak


LATE = """
import time
from ark_jax import hosts
with hosts.together():
    import jax, numpy as np
    from ark_jax import layout
    layout.enter_mesh()
    time.sleep(35 * jax.process_index())  # as if it compiled for longer
    assert layout.fetch(layout.rows(np.arange(8))).tolist() == list(range(8))
"""


@pytest.mark.slow
def test_a_process_that_comes_late_is_waited_for(tmp_path):
    ended(start(2, 1, [sys.executable, "-c", LATE], tmp_path))


FAIL = """
import sys
from pathlib import Path
from ark_jax import hosts
with hosts.together():
    import jax, numpy as np
    from ark_jax import layout
    asked = []
    make = lambda items: asked.append(items) or [np.full(hosts.BLOCK * i // 3, i, np.int32) for i in items]
    for items in [5, 0, 1, 1, 8, 3, 0], [4], []:
        rows = hosts.spread(make, items)
        assert asked[-1] == items[jax.process_index() :: 2] and list(map(len, rows)) == [hosts.BLOCK * i // 3 for i in items]
        assert all((row == i).all() for row, i in zip(rows, items, strict=True))
    assert hosts.first(lambda: {"process": (jax.process_index(), 2)}) == {"process": [0, 2]}
    path = Path(sys.argv[1], "kept")
    hosts.first(lambda: path.write_text("0") and None)
    for seen in "0", "01":
        with hosts.own(path) as mine:
            assert mine.read_text() == seen and (mine == path) == (jax.process_index() == 0)
            mine.write_text(seen + "1")
    try:
        layout.make_mesh((1, 1, 1))
    except ValueError as error:
        assert "mesh (1, 1, 1) takes 1 of 2 devices" in str(error)
        hosts.first(lambda: int("questions.jsonl:3"))
"""


def test_processes_share_work_and_an_error_on_process_0_is_one_of_all(tmp_path):
    running = start(2, 1, [sys.executable, "-c", FAIL, str(tmp_path)], tmp_path)
    said = [process.communicate(timeout=90)[0] for process in running]
    assert [process.returncode for process in running] == [1, 1]
    assert "error: invalid literal for int() with base 10: 'questions.jsonl:3'\n" in said[0]
    assert "error: process 1 of 2: invalid literal for int() with base 10: 'questions.jsonl:3'\n" in said[1]
    assert all("run the same command again to go on" in text and "Traceback" not in text for text in said)


@pytest.mark.parametrize(("processes", "told"), [("two", "ARK_PROCESSES='two': must be a number"), ("", "ARK_PROCESSES=''")])
def test_a_wrong_environment_is_one_clear_line(processes, told, monkeypatch):
    for name, value in {"COORDINATOR": "localhost:1", "PROCESS": "0", "PROCESSES": processes}.items():
        monkeypatch.setenv(f"ARK_{name}", value)
    with pytest.raises(ValueError, match=told), hosts.together():
        pass


SMALL = ("--config.mesh=(1,-1,1)", "--config.train.stages=(1,2)", "--config.train.epochs=(1,1,1)",
         "--config.train.batch=2", "--config.score.candidates=2", "--config.train.learning_rates=(1e-3,1e-3,1e-3)")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return test_pipeline.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def one(world):
    """The pipeline in one process of one device."""
    ended(start(1, 1, test_pipeline.command(world, world / "one", "run", *SMALL), world / "cache", ARK_COORDINATOR=""))
    return world / "one"


def curves(workdir: Path) -> list[dict]:
    return [json.loads(line) for stage in (1, 2) for line in (workdir / f"stage{stage}" / "curve.jsonl").read_text().splitlines()]


def same(workdir: Path, one: Path) -> None:
    ours, theirs = test_pipeline.outputs(workdir), test_pipeline.outputs(one)
    assert {name: list(files) for name, files in ours.items()} == {name: list(files) for name, files in theirs.items()}
    for stage in ("data", "extract", "rewrite"):  # nothing in them is computed on devices, communities aside
        assert ours[stage] == theirs[stage]
    for row, wanted in zip(curves(workdir), curves(one), strict=True):
        np.testing.assert_allclose([row[k] for k in ("loss", "gradient_norm")], [wanted[k] for k in ("loss", "gradient_norm")],
                                   rtol=1e-3)


@pytest.mark.pods
def test_the_pipeline_on_four_processes(world, one):
    workdir = world / "of4"
    said = ended(start(4, 1, test_pipeline.command(world, workdir, "run", *SMALL), world / "cache"))
    same(workdir, one)
    only_process_0_wrote(workdir)
    assert "nDCG@10" in said[0] and not any("nDCG@10" in text or "[1/" in text for text in said[1:])
    again = ended(start(4, 1, test_pipeline.command(world, workdir, "run", *SMALL), world / "cache"))
    assert "nothing to do" in again[0]


@pytest.mark.pods
@pytest.mark.parametrize("killed", [0, 1])
def test_a_run_whose_process_was_killed_goes_on(killed, world, one, tmp_path):
    """On two processes: the whole pipeline where the first is killed; where the second is, all from training on."""
    for stage in ("data", "extract", "graph", "communities", "rewrite", "score", "positives") if killed else ():
        shutil.copytree(one / stage, tmp_path / stage)
    arguments = [str(REPOSITORY / "launch" / "local.sh"), "2",
                 *test_pipeline.command(world, tmp_path, "run", *SMALL)[3:]]
    environment = {**os.environ, **QUICK, "PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY),
                   "ARK_CACHE": str(world / "cache"), "JAX_NUM_CPU_DEVICES": "1"}
    launch = lambda: subprocess.Popen(arguments, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      cwd=REPOSITORY)
    launched, curve = launch(), tmp_path / ".partial" / "stage1" / "curve.jsonl"
    deadline = time.monotonic() + 600
    while not (curve.is_file() and curve.read_text().count("\n") >= 3):  # so that one step is saved
        assert launched.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
    number = {re.search(rb"ARK_PROCESS=(\d)", Path(f"/proc/{pid}/environ").read_bytes())[1]: int(pid) for pid in children}
    os.kill(number[b"01"[killed : killed + 1]], signal.SIGKILL)
    said = launched.communicate(timeout=2 * hosts.SILENCE)[0]
    assert launched.returncode != 0 and "run the same command again" in said
    again = launch()
    said = again.communicate(timeout=900)[0]
    assert again.returncode == 0, said
    assert "stage 1: goes on after step" in said
    same(tmp_path, one)


class Bucket(backend._OsPathBackend):
    """gs:// as a folder on this machine."""

    def __init__(self, root: Path):
        place = lambda path: str(path).replace("gs://", f"{root}/")
        for name in ("open", "exists", "isdir", "listdir", "mkdir", "makedirs", "stat"):
            of = getattr(super(), name)
            setattr(self, name, lambda path, *a, of=of, **k: of(place(path), *a, **k))


@pytest.fixture
def gs(tmp_path, monkeypatch):
    monkeypatch.setitem(gpath._PREFIX_TO_BACKEND, "gs", Bucket(tmp_path / "gs"))
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "gs").mkdir()
    return tmp_path / "gs"


def test_data_in_a_bucket(gs, world):
    from ark_jax.data import readers
    from ark_jax.stages.files import input_digest

    shutil.copytree(world / "corpus", gs / "b" / "corpus")
    (gs / "b" / "corpus" / "model.bin").write_bytes(b"not ours")
    assert readers.load("gs://b/corpus") == readers.load(world / "corpus")
    assert input_digest("gs://b/corpus") == input_digest(str(world / "corpus"))
    first = bucket.local("gs://b/corpus")
    assert bucket.local("gs://b/corpus") == first and first.name == "corpus" and not (first / "model.bin").exists()
    with (gs / "b" / "corpus" / "questions.jsonl").open("a") as file:
        file.write("{}\n")
    assert bucket.local("gs://b/corpus") != first
    assert bucket.local("gs://b/corpus/questions.jsonl").read_text().endswith("{}\n")
    with pytest.raises(FileNotFoundError, match="gs://b/nothing: no such"):
        bucket.local("gs://b/nothing")


def test_models_in_a_bucket(gs, model, mesh):
    from ark_jax import Retriever

    shutil.copytree(model / "model", gs / "b" / "model")
    ours = Retriever.from_pretrained("gs://b/model")
    np.testing.assert_array_equal(ours.encode(TEXTS[:3], kind="query"),
                                  Retriever.from_pretrained(str(model / "model")).encode(TEXTS[:3], kind="query"))
    ours.save_pretrained("gs://b/out/tuned")
    assert (gs / "b" / "out" / "tuned" / "model.safetensors").read_bytes() == (model / "model" / "model.safetensors").read_bytes()
    np.testing.assert_array_equal(Retriever.from_pretrained("gs://b/out/tuned").encode(TEXTS[:3], kind="query"),
                                  ours.encode(TEXTS[:3], kind="query"))


@pytest.mark.parametrize(("flags", "told"), [
    (("--workdir=gs://b/w",), "a workdir needs locks and renames, which a bucket lacks"),
    (("--config.data.path=s3://b/corpus",), "s3fs")])  # the package that speaks to it, which we do not ask for
def test_what_a_bucket_cannot_do_is_one_clear_line(flags, told, world, tmp_path):
    done = test_pipeline.call(world, tmp_path / "w", "run", *flags)
    assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("script", ["local.sh", "gpu.sh", "slurm.sh", "tpu_pod.sh"])
def test_launch_scripts_are_clean_and_set_nothing_of_the_method(script):
    path = REPOSITORY / "launch" / script
    text = path.read_text()
    assert os.access(path, os.X_OK) and len(text.splitlines()) < 35
    assert "set -euo pipefail" in text and not re.search(r"--config\.", text)
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if not shellcheck:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([shellcheck, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
