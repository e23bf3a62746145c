"""Well-known models that are not on this machine: sizes from their published config.json.

`write_stand_in` makes a folder with all that a plan reads of a model: a config, and a tokenizer of
about as many tokens as the model's own. It holds no weights.
"""

import json
from pathlib import Path

# A token is a space and up to six letters, or one mark, or one sign of Chinese or its like. These
# are 4.1 characters of English; of BERT's tokenizer 4.2 to 4.6, of SmolLM2's 3.9 to 4.1.
TOKEN = "\\s?[^\\W\u2e80-\uffff]{1,6}|\\s?[^\\w\\s]|[\\s\\S]"
CHARACTERS = 4.1


def _sizes(family: str, width: int, layers: int, heads: int, ffn: int, **more) -> dict:
    return {
        "model_type": family,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "torch_dtype": "bfloat16",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    } | more


def _bert(width: int, layers: int, reads: int = 512) -> dict:
    fixed = {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "torch_dtype": "float32"}
    limits = {"vocab_size": 30522, "max_position_embeddings": 512, "max_seq_length": reads}
    heads = 12 if width < 1024 else 16
    return _sizes("bert", width, layers, heads, 4 * width, **fixed, **limits)


def _decoder(family: str, sizes: tuple, kv_heads: int, head_dim: int, vocab: int, positions: int):
    fields = {"num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": vocab}
    return _sizes(family, *sizes, **fields, max_position_embeddings=positions)


def _qwen3(sizes: tuple, vocab: int, positions: int = 40960) -> dict:
    return _decoder("qwen3", sizes, 8, 128, vocab, positions)


UNTIED = {"tie_word_embeddings": False}
KNOWN_MODELS = {
    "Qwen/Qwen3-Embedding-0.6B": _qwen3((1024, 28, 16, 3072), 151669, 32768),
    "Qwen/Qwen3-Embedding-4B": _qwen3((2560, 36, 32, 9728), 151665),
    "Qwen/Qwen3-Embedding-8B": _qwen3((4096, 36, 32, 12288), 151665) | UNTIED,
    "Qwen/Qwen3-0.6B": _qwen3((1024, 28, 16, 3072), 151936),
    "Qwen/Qwen3-4B": _qwen3((2560, 36, 32, 9728), 151936),
    "BAAI/bge-small-en-v1.5": _bert(384, 12),
    "BAAI/bge-base-en-v1.5": _bert(768, 12),
    "BAAI/bge-large-en-v1.5": _bert(1024, 24),
    "intfloat/e5-base-v2": _bert(768, 12),
    "sentence-transformers/all-MiniLM-L6-v2": _bert(384, 6, reads=256),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _decoder(
        "llama", (576, 30, 9, 1536), 3, 64, 49152, 8192
    ),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _decoder(
        "llama", (960, 32, 15, 2560), 5, 64, 49152, 8192
    ),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _decoder(
        "llama", (2048, 24, 32, 8192), 32, 64, 49152, 8192
    ),
    "mistralai/Mistral-7B-Instruct-v0.2": _decoder(
        "mistral", (4096, 32, 32, 14336), 8, 128, 32000, 32768
    )
    | UNTIED,
}


def known_model(name: str) -> dict | None:
    """config.json of a hub name, whatever its revision; None if its sizes are not known here."""
    return KNOWN_MODELS.get(name.partition("@")[0])


def write_stand_in(name: str, root: Path) -> Path:
    """Writes a folder for a known model into `root` and returns it."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    settings = known_model(name)
    folder = root / name.partition("@")[0]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    limit = settings.get("max_seq_length", settings["max_position_embeddings"])
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
    tokenizer = Tokenizer(models.WordLevel({"<start>": 0, "<end>": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), "isolated")
    if settings["model_type"] == "bert":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<start> $A <end>", special_tokens=[("<start>", 0), ("<end>", 1)]
        )
    ends = {"pad_token": "<end>", "eos_token": "<end>"}
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=limit, **ends)
    made.save_pretrained(folder)
    return folder
