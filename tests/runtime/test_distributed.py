"""Several processes on this machine, over gloo.

They reach the result of one process, on disjoint data. Process 0 writes. No process hangs.
"""

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
from support import gcs, tiny
from support import world as worlds
from support.paths import REPOSITORY

from ark_jax.pipeline.manifest import damage, read_manifest
from ark_jax.runtime import distributed, mirror

TEXTS = [
    f"The tide table of {year} " + "counts the high water of each day " * (year % 7)
    for year in range(1850, 1882)
]


def start(
    processes: int, devices: int, arguments: list[str], cache: Path, **environment: str
) -> list[subprocess.Popen]:
    """Starts processes as launch/local.sh does.

    Files of process 0 are readable by all, files of the others by their owner only. Thus
    `assert_only_process_0_wrote` can tell them apart.
    """
    names = {
        **os.environ,
        "ARK_COORDINATOR": f"localhost:{free_port()}",
        "ARK_PROCESSES": str(processes),
        "ARK_CACHE": str(cache),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}:{Path(__file__).parent}",
        **environment,
    }
    return [
        subprocess.Popen(
            arguments,
            env={**names, "ARK_PROCESS": str(i)},
            umask=0o077 if i else 0o022,
            text=True,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for i in range(processes)
    ]


def free_port() -> int:
    import socket

    with socket.socket() as server:
        server.bind(("", 0))
        return server.getsockname()[1]


def wait_for_success(running: list[subprocess.Popen], timeout: float = 900) -> list[str]:
    """The output of each process; all must exit with status 0."""
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    statuses = [process.returncode for process in running]
    assert statuses == [0] * len(running), "\n---\n".join(outputs)
    return outputs


class RecordedTexts(dict):
    """TEXTS by id, recording the ids that are read."""

    def __init__(self):
        super().__init__({str(i): text for i, text in enumerate(TEXTS)})
        self.read: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.read.append(name)
        return super().__getitem__(name)


def train(base, folder: Path, stop_after: int = 0, passages: dict[str, str] | None = None):
    """Trains for four steps, continuing a run in `folder`. Returns the model and the curve.

    With `stop_after` the last process gets SIGTERM so that this is the last step.
    """
    from ark_jax.train import contrastive, fit
    from ark_jax.train.batches import Example
    from ark_jax.train.config import ContrastiveConfig

    texts, train_step = RecordedTexts(), fit.train_step
    is_multi_process = jax.process_count() > 1

    def step_and_signal(*args):
        # Several processes hear of the signal a step late.
        is_last = args[-1] + 1 + is_multi_process == stop_after
        if is_last and jax.process_index() == jax.process_count() - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(*args)

    examples = [Example(str(i), "d", (str(i + 8),), (str(i + 16), str(i + 24))) for i in range(8)]
    config = ContrastiveConfig(batch=4, chunks=1, order="question", save_every=3, remat="products")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "train_step", step_and_signal)
        tuned, _, curve = contrastive.train(
            base,
            examples,
            texts,
            texts if passages is None else passages,
            config,
            fit.Run(folder),
            epochs=2,
            learning_rate=1e-3,
            seed=0,
        )
    return tuned, curve


def train_and_encode(folder: Path) -> dict:
    """Trains and encodes on the current mesh.

    Returns what this process tokenised, read and placed on devices, with losses and vectors. A
    second training is stopped after step 2; a third one continues `folder`/resumed, if that exists.
    """
    from ark_jax import layout
    from ark_jax.models import hf
    from ark_jax.models.retriever import Retriever
    from ark_jax.runtime import preemption
    from ark_jax.text import tokens

    tokenized, read_bytes, placed, passages = [], [], [], RecordedTexts()
    original_slice, original_build = hf.Checkpoint.slice, layout.build_rows

    class CountedSlice:
        def __init__(self, tensor):
            self.get_shape, self.get_dtype = tensor.get_shape, tensor.get_dtype
            self.tensor = tensor

        def __getitem__(self, index):
            values = self.tensor[index]
            read_bytes.append(values.nbytes)
            return values

    def build_rows(count, build):
        built = []

        def build_and_record(*ends):
            built.append(list(ends))
            return build(*ends)

        arrays = original_build(count, build_and_record)
        for array in arrays:
            shards = {shard.index[0].indices(count)[:2] for shard in array.addressable_shards}
            assert jax.process_count() == 1 or sorted(map(tuple, built)) == sorted(shards)
        if len(placed) < 6:  # the first batch: tokens and masks of both sides, and their labels
            placed.extend([[count, sorted(built)]] * len(arrays))
        return arrays

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            hf.Checkpoint, "slice", lambda self, name: CountedSlice(original_slice(self, name))
        )
        base = Retriever.from_pretrained(str(folder.parent / "model"))
        patch.setattr(layout, "build_rows", build_rows)
        truncated = tokens.truncated
        patch.setattr(
            tokens,
            "truncated",
            lambda tokenizer, texts, length: (
                tokenized.append(texts) or truncated(tokenizer, texts, length)
            ),
        )
        tuned, curve = train(base, folder / "run", passages=passages)
        tuned.save_pretrained(folder / "run" / "model")
        vectors = tuned.encode(TEXTS, kind="document")
    with pytest.raises(preemption.Preempted, match="train: step 2 of 4 is saved"):
        train(base, folder / "stopped", stop_after=2)
    resumed = train(base, folder / "resumed")[1] if (folder / "resumed").is_dir() else None
    return {
        "tokenized": tokenized,
        "passages": passages.read,
        "read": sum(read_bytes),
        "placed": placed,
        "curve": curve,
        "resumed": resumed,
        "devices": jax.sharding.get_mesh().size,
        "vectors": vectors.tolist(),
    }


WORK = """
import json, pathlib, sys
from ark_jax import layout
from ark_jax.runtime import distributed
import test_distributed
with distributed.join_processes():
    layout.enter_mesh((1, -1, 1))
    print("RESULT" + json.dumps(test_distributed.train_and_encode(pathlib.Path(sys.argv[1]))))
"""
RESUMED = "  train: goes on after step 2 of 4\n"


def train_in_processes(processes: int, devices: int, folder: Path, previous: Path) -> list[dict]:
    """Runs `train_and_encode` in new processes; each result has the process output too.

    They also continue the training that stopped in `previous`.
    """
    shutil.copytree(previous / "stopped", folder / "resumed")
    outputs = wait_for_success(
        start(
            processes, devices, [sys.executable, "-c", WORK, str(folder)], folder.parent / "cache"
        )
    )
    return [
        json.loads(re.search(r"^RESULT(.*)$", text, re.M)[1]) | {"output": text} for text in outputs
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    root = tmp_path_factory.mktemp("hosts")
    tiny.sentence_transformer(
        tiny.write(root / "model", "bert", tokenizer="cls"), pooling="mean", max_seq_length=64
    )
    return root


@pytest.fixture(scope="module")
def single(model):
    """The same work in this process, on one device."""
    from ark_jax import layout

    stdout = io.StringIO()
    with jax.set_mesh(layout.make_mesh((1, 1, 1))), contextlib.redirect_stdout(stdout):
        return train_and_encode(model / "single") | {"output": stdout.getvalue()}


@pytest.fixture(scope="module")
def pair(model, single):
    return train_in_processes(2, 1, model / "pair", model / "single")


def assert_same_curve(curve: list[dict], reference: dict) -> None:
    assert [row["step"] for row in curve] == [1, 2, 3, 4]
    for name in ("loss", "gradient_norm"):
        np.testing.assert_allclose(
            [row[name] for row in curve], [row[name] for row in reference["curve"]], rtol=1e-5
        )


def assert_same_results(results: list[dict], reference: dict) -> None:
    for result in results:
        assert_same_curve(result["curve"], reference)
        assert_same_curve(result["resumed"], reference)
        np.testing.assert_allclose(result["vectors"], reference["vectors"], atol=1e-4)
        assert all(result[name] == results[0][name] for name in ("curve", "resumed", "vectors"))
    warnings_of = lambda result: set(
        re.findall(
            r"  train, .* texts are longer than 64 tokens and are cut there\n", result["output"]
        )
    )
    assert warnings_of(reference) and [warnings_of(result) for result in results] == [
        warnings_of(reference),
        *[set()] * (len(results) - 1),
    ]


def test_two_processes_train_the_same_model_as_one(pair, single):
    assert [result["devices"] for result in (*pair, single)] == [2, 2, 1]
    assert len({row["loss"] for row in single["curve"]}) == 4
    assert_same_results(pair, single)


def test_a_run_resumes_with_another_number_of_processes(pair, single, model, tmp_path, capsys):
    assert RESUMED in pair[0]["output"]  # of one process
    from ark_jax import Retriever, layout

    shutil.copytree(model / "pair" / "stopped", tmp_path / "resumed")
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        _, curve = train(Retriever.from_pretrained(str(model / "model")), tmp_path / "resumed")
    assert RESUMED in capsys.readouterr().out
    assert_same_curve(curve, single)


def test_each_process_tokenizes_its_share(pair, single):
    assert (
        len(single["tokenized"]) == 3 and len(pair[0]["tokenized"]) == 3
    )  # questions, chunks, and what is encoded
    for everything, *shares in zip(
        single["tokenized"], *(result["tokenized"] for result in pair), strict=True
    ):
        assert (
            sorted(everything) == sorted(itertools.chain(*shares))
            and len({len(share) for share in shares}) == 1
        )


def test_each_process_looks_up_only_its_own_passages(pair):
    """Each one looks up its half, each passage once."""
    shares = [result["passages"] for result in pair]
    assert sorted(itertools.chain(*shares)) == sorted(str(i) for i in range(8, 32))
    assert len({len(share) for share in shares}) == 1


MAPPED = """
import sys
from pathlib import Path
from ark_jax.data.spool import StoredChunks
# Bytes of mapped files in memory.
shared = lambda: int(Path("/proc/self/statm").read_text().split()[2]) * 4096
before, chunks = shared(), StoredChunks(Path(sys.argv[1]))
texts = [x.text for x in chunks[:10]]
first_ten, texts = shared() - before, [x.text[:1] for x in chunks[:]]
print(len(chunks), first_ten, shared() - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/statm").is_file(),
    reason="only Linux says how much of its files a process has read",
)
def test_only_requested_texts_are_read(tmp_path):
    from ark_jax.data.records import Chunk
    from ark_jax.data.spool import StoredChunks, save_chunks

    chunks = [Chunk(f"d#{i}", "d", i, i + 1, 3, f"{i} of the tide. " * 4000) for i in range(1000)]
    save_chunks(chunks, tmp_path)
    assert [
        (x.id, x.document, x.start, x.end, x.tokens, x.text, x.title)
        for x in StoredChunks(tmp_path)[::100]
    ] == list(map(dataclasses.astuple, chunks[::100]))
    done = subprocess.run(
        [sys.executable, "-c", MAPPED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    count, first_ten, everything = map(int, done.stdout.split())
    assert count == 1000 and first_ten < 20e6 and everything > 60e6, done.stdout


def assert_rows_are_divided(results: list[dict]) -> None:
    for arrays in zip(*(result["placed"] for result in results), strict=True):
        (rows,) = {rows for rows, _ in arrays}
        taken = [row for _, parts in arrays for part in parts for row in range(*part)]
        assert sorted(taken) == list(range(rows)), "rows that two processes hold, or none"


def test_each_process_places_its_own_rows(pair, single):
    assert len(pair[0]["placed"]) == 6
    assert_rows_are_divided(pair)
    assert all([*map(list, parts)] == [[0, rows]] for rows, parts in single["placed"])


def test_each_process_reads_its_own_part_of_the_weights(pair, single):
    # Vectors, which every device holds whole, are a small part.
    assert single["read"] > 100_000
    for result in pair:
        assert 0.45 < result["read"] / single["read"] < 0.6


def assert_only_process_0_wrote(folder: Path, exceptions: tuple[str, ...] = ()) -> None:
    """Checks file permissions, which differ by process: see `start`."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    private = [
        path.relative_to(folder).as_posix() for path in files if not path.stat().st_mode & 0o044
    ]
    excepted = re.compile("|".join(exceptions) or "$^")
    assert files and [name for name in private if not excepted.search(name)] == []


def test_only_the_first_process_writes_files(pair, model):
    made = model / "pair" / "run"
    assert (made / "model" / "model.safetensors").is_file() and len(
        (made / "curve.jsonl").read_text().splitlines()
    ) == 4
    # Each process writes its shards of a checkpoint, and its position in the data, to its own
    # files.
    assert_only_process_0_wrote(
        made,
        exceptions=(r"checkpoints/.*process_1", r"checkpoints/.*_1-of-2", r"checkpoints/.*/ocdbt"),
    )


@pytest.mark.slow
def test_four_processes_with_two_devices_train_the_same_model(model, pair, single):
    four = train_in_processes(4, 2, model / "four", model / "pair")
    assert four[0]["devices"] == 8 and RESUMED in four[0]["output"]
    assert_same_results(four, single)
    assert_rows_are_divided(four)


def index_of_towers(root: Path, made: Path) -> list:
    """Saves two towers, then makes an index of 20 facts and adds 10: what it finds, and how near.

    On the current mesh.
    """
    from ark_jax import Retriever
    from ark_jax.graph.triple_retriever import TripleRetriever
    from ark_jax.graph.triples import Triples
    from ark_jax.models.towers import DualEncoder
    from ark_jax.retrieval import vector_files

    towers = DualEncoder(*(Retriever.from_pretrained(str(root / "model")) for _ in range(2)))
    towers.save_pretrained(made / "export")
    distributed.on_first_process(lambda: None)  # process 0 has written
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_files, "BLOCK", 8)
        for count in (20, 30):
            rows = [(f"Film {i}", "directed_by", f"Director {i % 7}") for i in range(count)]
            graph = Triples.from_triples(rows)
            retriever = TripleRetriever.from_pretrained(made / "export", graph, made / "index")
    found, scores = retriever.search_rows(["Who directed Film 3?"], k=5)
    return [found.tolist(), scores.tolist()]


INDEX = """
import json, pathlib, sys
from ark_jax import layout
from ark_jax.runtime import distributed
import test_distributed
with distributed.join_processes():
    layout.enter_mesh((1, -1, 1))
    print("RESULT" + json.dumps(test_distributed.index_of_towers(*map(pathlib.Path, sys.argv[1:]))))
"""


def test_two_processes_save_towers_and_make_one_index(model, tmp_path, capsys):
    from ark_jax import layout

    work = [sys.executable, "-c", INDEX, str(model), str(tmp_path / "2")]
    outputs = wait_for_success(start(2, 1, work, model / "cache"))
    results = [json.loads(re.search(r"^RESULT(.*)$", text, re.M)[1]) for text in outputs]
    with jax.set_mesh(layout.make_mesh((1, 2, 1))):
        alone = index_of_towers(model, tmp_path / "1")
    assert all("10 of 30 texts are new" in x for x in (outputs[0], capsys.readouterr().out))
    assert_only_process_0_wrote(tmp_path / "2")
    assert results[0] == results[1]
    assert results[0][0] == alone[0]
    np.testing.assert_allclose(results[0][1], alone[1], atol=1e-5)
    files = {path.name for path in (tmp_path / "2" / "index").rglob("*") if path.is_file()}
    assert files == {"keys.npy", "vectors.npy", "manifest.json", "lock"}


WAIT = """
import os, sys, time
from ark_jax.runtime import distributed
with distributed.join_processes():
    import jax
    distributed.on_first_process(lambda: None)
    print("joined", flush=True)
    distributed.on_first_process(lambda: time.sleep(3600))
"""
WAIT_ON_DEVICES = """
import time
from ark_jax.runtime import distributed
with distributed.join_processes():
    import jax, numpy as np
    from ark_jax import layout
    layout.enter_mesh()
    print("joined", flush=True)
    while True:
        layout.fetch(layout.rows(np.arange(8)))
        time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("code", "killed"),
    [
        (WAIT_ON_DEVICES, 0),
        *(
            pytest.param(*case, marks=pytest.mark.slow)  # the heartbeat timeout is 30 s
            for case in ((WAIT_ON_DEVICES, 1), (WAIT, 0), (WAIT, 1))
        ),
    ],
)
def test_a_killed_process_ends_the_others_with_a_message(code, killed, tmp_path):
    running = start(2, 1, [sys.executable, "-c", code], tmp_path)
    try:
        for process in running:
            while "joined" not in (line := process.stdout.readline()):
                assert line, "it ended early"
        running[killed].send_signal(signal.SIGKILL)
        began = time.monotonic()
        output = running[1 - killed].communicate(timeout=90)[0]
    finally:
        for process in running:
            process.kill()
            process.stdout.close()
    assert running[1 - killed].returncode not in (0, None) and time.monotonic() - began < 60
    assert (
        "run the same command again" in output or "another task died" in output
    )  # jax prints the latter and aborts before ours is printed


LATE = """
import time
from ark_jax.runtime import distributed
with distributed.join_processes():
    import jax, numpy as np
    from ark_jax import layout
    layout.enter_mesh()
    time.sleep(35 * jax.process_index())  # as if it compiled for longer
    assert layout.fetch(layout.rows(np.arange(8))).tolist() == list(range(8))
"""


@pytest.mark.slow
def test_processes_wait_for_a_late_process(tmp_path):
    wait_for_success(start(2, 1, [sys.executable, "-c", LATE], tmp_path))


FAIL = """
import sys
from pathlib import Path
from ark_jax.runtime import distributed
with distributed.join_processes():
    import jax, numpy as np
    from ark_jax import layout
    requests = []
    row_length = lambda i: distributed.GATHER_BLOCK * i // 3
    def make_rows(items):
        requests.append(items)
        rows = [np.full(row_length(i), i, np.int32) for i in items]
        return np.concatenate([np.zeros(0, np.int32), *rows]), np.array(list(map(len, rows)))
    for items in [5, 0, 1, 1, 8, 3, 0], [4], []:
        values, lengths = distributed.split_and_gather(make_rows, items)
        assert requests[-1] == items[jax.process_index() :: 2]
        assert lengths.tolist() == list(map(row_length, items))
        assert values.dtype == np.int32 and (values == np.repeat(items, lengths)).all()
    assert distributed.sum_of_processes(3 + jax.process_index()) == 7
    result = distributed.on_first_process(lambda: {"process": (jax.process_index(), 2)})
    assert result == {"process": [0, 2]}
    path = Path(sys.argv[1], "kept")
    distributed.on_first_process(lambda: path.write_text("0") and None)
    for content in "0", "01":
        with distributed.file_per_process(path) as own_path:
            assert own_path.read_text() == content
            assert (own_path == path) == (jax.process_index() == 0)
            own_path.write_text(content + "1")
    try:
        layout.make_mesh((1, 1, 1))
    except ValueError as error:
        assert "mesh (1, 1, 1) takes 1 of 2 devices" in str(error)
        distributed.on_first_process(lambda: int("questions.jsonl:3"))
"""


def test_an_error_on_process_0_ends_all_processes(tmp_path):
    running = start(2, 1, [sys.executable, "-c", FAIL, str(tmp_path)], tmp_path)
    outputs = [process.communicate(timeout=90)[0] for process in running]
    assert [process.returncode for process in running] == [1, 1]
    assert "error: invalid literal for int() with base 10: 'questions.jsonl:3'\n" in outputs[0]
    assert (
        "error: process 1 of 2: invalid literal for int() with base 10: 'questions.jsonl:3'\n"
        in outputs[1]
    )
    assert all(
        "run the same command again to go on" in text and "Traceback" not in text
        for text in outputs
    )


GATHER = """
from ark_jax.runtime import distributed
with distributed.join_processes():
    import jax, numpy as np
    from ark_jax.text import token_rows
    def in_memory():  # bytes that are in no file; 0 where only Linux says so
        try:
            lines = [x for x in open("/proc/self/status") if x.startswith("RssAnon")]
        except FileNotFoundError:
            return 0
        return int(lines[0].split()[1]) * 1024
    made = []
    def encode(numbers):
        for number in numbers:
            made.append(number)
            yield np.arange(number, number + 1000, dtype=np.int32)
    for token_rows.IN_MEMORY in (1 << 20, 1 << 28):
        token_rows.TokenRows.from_shares(encode, range(4))  # compiles
        made.clear()
        before = in_memory()
        rows = token_rows.TokenRows.from_shares(encode, range(20_000))
        print("GROWN", in_memory() - before)
        assert made == list(range(jax.process_index(), 20_000, 2))
        assert rows.values.nbytes == 80_000_000 and set(rows.lengths) == {1000}
        for number in (0, 1, 9_999, 19_998, 19_999):
            assert rows[number].tolist() == list(range(number, number + 1000))
        assert (rows.values.reshape(-1, 1000)[:, 0] == np.arange(20_000)).all()
"""


@pytest.fixture(scope="module")
def gathered_and_read(tmp_path_factory):
    """A folder in which two processes ran a stage, having gathered; and what they printed."""
    folder = tmp_path_factory.mktemp("stage")
    work = [sys.executable, "-c", GATHER + SLOW_READER, str(folder)]
    return folder, wait_for_success(start(2, 1, work, folder), timeout=90)


@pytest.mark.skipif(
    not Path("/proc/self/status").is_file(), reason="only Linux says what lies in no file"
)
def test_token_ids_of_all_processes_are_memory_mapped(gathered_and_read):
    _, outputs = gathered_and_read
    grown = [list(map(int, re.findall(r"^GROWN (.*)$", text, re.M))) for text in outputs]
    for mapped, held in grown:
        assert mapped < 25e6 < 75e6 < held, grown


OWN_LOSS = """
import os, sys
from ark_jax.pipeline import own_functions
from ark_jax.recipes.ark import config, train
from ark_jax.runtime import distributed
os.chdir(os.path.join(sys.argv[1], os.environ["ARK_PROCESS"]))
c = config.ark()
c.train.loss = "my_loss:loss"
train.load_loss(c)
with distributed.join_processes():
    own_functions.check_processes()
    print("nothing differs")
"""


def test_user_functions_that_differ_between_processes_are_refused(tmp_path):
    for process in range(2):
        folder = tmp_path / str(process)
        folder.mkdir()
        (folder / "my_scale.py").write_text(f"scale = {process + 1}\n")
        (folder / "my_loss.py").write_text(
            "from my_scale import scale\n"
            "def loss(q, p, positive, negative, *, temperature): return scale * (q @ p.T).sum()\n"
        )
    running = start(2, 1, [sys.executable, "-c", OWN_LOSS, str(tmp_path)], tmp_path)
    outputs = [process.communicate(timeout=90)[0] for process in running]
    assert [process.returncode for process in running] == [1, 1]
    for process, output in enumerate(outputs):
        message = (
            f"{tmp_path}/{process}/my_loss.py, or a file beside it that it imports, is another"
        )
        assert f"{message} on process 1 than on process 0; copy the same files" in output
        assert "Traceback" not in output and "nothing differs" not in output


SLOW_READER = """
    import sys, time
    from pathlib import Path
    from ark_jax.pipeline import engine
    from ark_jax.pipeline.stage import Context, Stage
    from ark_jax.recipes.ark import config
    from ark_jax.runtime.log import Metrics
    def work(context, folder):
        distributed.on_first_process(lambda: (folder / "rankings").write_text("a b") and None)
        time.sleep(2 * jax.process_index())
        if jax.process_index():
            assert context.config.train.batch == 16 and context.config.retriever.path == ""
        return {"rankings": len((folder / "rankings").read_text().split())}
    workdir = Path(sys.argv[1])
    context = Context(config.ark(), workdir, Metrics(workdir / "metrics.jsonl"))
    engine.run([Stage("rank", work)], context)
"""


def test_the_manifest_of_a_stage_holds_the_reads_of_all_processes(gathered_and_read):
    workdir, outputs = gathered_and_read
    manifest = json.loads((workdir / "rank" / "manifest.json").read_text())
    assert "2 rankings" in outputs[0] and manifest["config"] == {"train.batch": 16}
    assert manifest["external"] == {"model retriever.path": ""}


@pytest.mark.parametrize(
    ("processes", "message"),
    [("two", "ARK_PROCESSES='two': must be a number"), ("", "ARK_PROCESSES=''")],
)
def test_an_invalid_process_environment_is_refused(processes, message, monkeypatch):
    for name, value in {
        "COORDINATOR": "localhost:1",
        "PROCESS": "0",
        "PROCESSES": processes,
    }.items():
        monkeypatch.setenv(f"ARK_{name}", value)
    with pytest.raises(ValueError, match=message), distributed.join_processes():
        pass


SMALL = (
    "--config.mesh=(1,-1,1)",
    "--config.train.stages=(1,2)",
    "--config.train.epochs=(1,1,1)",
    "--config.train.batch=2",
    "--config.score.candidates=2",
    "--config.train.learning_rates=(1e-3,1e-3,1e-3)",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return worlds.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def reference_run(world):
    """The pipeline in one process of one device."""
    wait_for_success(
        start(
            1,
            1,
            worlds.command(world, world / "single", "run", *SMALL),
            world / "cache",
            ARK_COORDINATOR="",
            PYTHONPATH=f"{REPOSITORY}:{world}",
        )
    )
    return world / "single"


def start_run(world: Path, workdir: Path) -> list[subprocess.Popen]:
    """The pipeline on four processes."""
    words = worlds.command(world, workdir, "run", *SMALL)
    return start(4, 1, words, world / "cache", PYTHONPATH=f"{REPOSITORY}:{world}")


def curves(workdir: Path) -> list[dict]:
    return [
        json.loads(line)
        for stage in (1, 2)
        for line in (workdir / f"stage{stage}" / "curve.jsonl").read_text().splitlines()
    ]


def assert_same_outputs(workdir: Path, reference: Path) -> None:
    outputs, expected = worlds.outputs(workdir), worlds.outputs(reference)
    assert {name: list(files) for name, files in outputs.items()} == {
        name: list(files) for name, files in expected.items()
    }
    for stage in ("data", "extract", "rewrite"):  # computed on the host, so equal to the bit
        assert outputs[stage] == expected[stage]
    for row, expected_row in zip(curves(workdir), curves(reference), strict=True):
        np.testing.assert_allclose(
            [row[k] for k in ("loss", "gradient_norm")],
            [expected_row[k] for k in ("loss", "gradient_norm")],
            rtol=1e-3,
        )


@pytest.fixture(scope="module")
def run_of_four(world):
    """The pipeline on four processes that share a disk: its workdir, and what they printed."""
    outputs = wait_for_success(start_run(world, world / "of4"))
    return world / "of4", outputs


@pytest.mark.pods
def test_the_pipeline_gives_the_same_files_on_four_processes(world, reference_run, run_of_four):
    workdir, outputs = run_of_four
    assert_same_outputs(workdir, reference_run)
    assert_only_process_0_wrote(workdir)
    assert "nDCG@10" in outputs[0] and not any(
        "nDCG@10" in text or "[1/" in text for text in outputs[1:]
    )


def kill_at_step_3(launched: subprocess.Popen, stage: str, killed: int, copies: Path) -> str:
    """Kills a process of local.sh once the stage has saved a step; returns what all printed."""
    deadline = time.monotonic() + 600
    while not any(
        curve.read_text().count("\n") >= 3
        for curve in copies.glob(f"*/*/.partial/{stage}/curve.jsonl")
    ):
        assert launched.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
    number = {
        int(re.search(rb"ARK_PROCESS=(\d)", Path(f"/proc/{pid}/environ").read_bytes())[1]): int(pid)
        for pid in children
    }
    os.kill(number[killed], signal.SIGKILL)
    return launched.communicate(timeout=2 * distributed.HEARTBEAT_TIMEOUT)[0]


@pytest.mark.pods
def test_a_run_in_a_bucket_resumes_after_processes_were_killed(
    world, run_of_four, tmp_path, monkeypatch
):
    """Four hosts without a common disk. Process 0 is killed, later process 3."""
    address, cache = f"gs://{gcs.BUCKET}/run", world / "cache"
    command = worlds.command(world, address, "run", *SMALL)[3:]
    with gcs.serve() as variables:
        environment = {
            **os.environ,
            **variables,
            "PYTHON": sys.executable,
            "PYTHONPATH": f"{REPOSITORY}:{world}",
            "ARK_CACHE": str(cache),
            "JAX_NUM_CPU_DEVICES": "1",
        }
        launch = lambda: subprocess.Popen(
            [REPOSITORY / "launch" / "local.sh", "4", *command],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=REPOSITORY,
        )
        for killed, stage in ((0, "stage1"), (3, "stage2")):
            launched = launch()
            output = kill_at_step_3(launched, stage, killed, cache / "workdirs")
            assert launched.returncode != 0 and "run the same command again" in output
        resumed = launch()
        output = resumed.communicate(timeout=600)[0]
        assert resumed.returncode == 0, output
        assert "stage 2: goes on after step" in output and "[10/16]" not in output
        for name, value in {**variables, "ARK_CACHE": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        workdir = mirror.open_workdir(address)  # as another host finds it
        assert worlds.outputs(workdir) == worlds.outputs(run_of_four[0])
        for path in workdir.glob("*/manifest.json"):
            assert not damage(read_manifest(path.parent), path.parent, verify=True)
        assert not list(workdir.glob(".partial/*"))
