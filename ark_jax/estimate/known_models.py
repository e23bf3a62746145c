"""Well-known models that are not on this machine: sizes from their published config.json."""

import json
from pathlib import Path

# A token is a space and up to six letters, or one mark, or one sign of Chinese or its like. These
# are 4.1 characters of English; of BERT's tokenizer 4.2 to 4.6, of SmolLM2's 3.9 to 4.1.
TOKEN = "\\s?[^\\W\u2e80-\uffff]{1,6}|\\s?[^\\w\\s]|[\\s\\S]"
CHARACTERS = 4.1

# Their names in config.json.
FIELDS = (
    *("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "max_seq_length"),
)
BERT = {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "torch_dtype": "float32"}
DECODER = {"rms_norm_eps": 1e-6, "torch_dtype": "bfloat16"}
UNTIED = ("Qwen/Qwen3-Embedding-8B", "mistralai/Mistral-7B-Instruct-v0.2")
KNOWN_MODELS = {
    "Qwen/Qwen3-Embedding-0.6B": "qwen3 1024 28 16 8 128 3072 151669 32768 32768",
    "Qwen/Qwen3-Embedding-4B": "qwen3 2560 36 32 8 128 9728 151665 40960 40960",
    "Qwen/Qwen3-Embedding-8B": "qwen3 4096 36 32 8 128 12288 151665 40960 40960",
    "Qwen/Qwen3-0.6B": "qwen3 1024 28 16 8 128 3072 151936 40960 40960",
    "Qwen/Qwen3-4B": "qwen3 2560 36 32 8 128 9728 151936 40960 40960",
    "BAAI/bge-small-en-v1.5": "bert 384 12 12 12 32 1536 30522 512 512",
    "BAAI/bge-base-en-v1.5": "bert 768 12 12 12 64 3072 30522 512 512",
    "BAAI/bge-large-en-v1.5": "bert 1024 24 16 16 64 4096 30522 512 512",
    "BAAI/bge-m3": "xlm-roberta 1024 24 16 16 64 4096 250002 8194 8192",
    "intfloat/multilingual-e5-small": "bert 384 12 12 12 32 1536 250037 512 512",
    "intfloat/e5-base-v2": "bert 768 12 12 12 64 3072 30522 512 512",
    "sentence-transformers/all-MiniLM-L6-v2": "bert 384 6 12 12 32 1536 30522 512 256",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "llama 576 30 9 3 64 1536 49152 8192 8192",
    "HuggingFaceTB/SmolLM2-360M-Instruct": "llama 960 32 15 5 64 2560 49152 8192 8192",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": "llama 2048 24 32 32 64 8192 49152 8192 8192",
    "mistralai/Mistral-7B-Instruct-v0.2": "mistral 4096 32 32 8 128 14336 32000 32768 32768",
}


def known_model(name: str) -> dict | None:
    """The content of a hub model's config.json, for any revision; None if it is not listed."""
    name = name.partition("@")[0]
    if name not in KNOWN_MODELS:
        return None
    family, *sizes = KNOWN_MODELS[name].split()
    decoder = DECODER | {"tie_word_embeddings": name not in UNTIED}
    fixed = {"bert": BERT, "xlm-roberta": BERT | {"pad_token_id": 1, "type_vocab_size": 1}}.get(
        family, decoder
    )
    return dict(zip(FIELDS, (family, *map(int, sizes)), strict=True)) | fixed


def write_stand_in(name: str, root: Path) -> Path:
    """Writes config and tokenizer of a known model into a folder in `root` and returns it."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    settings, folder = known_model(name), root / name.partition("@")[0]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    limit = {"max_seq_length": settings["max_seq_length"]}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limit))
    tokenizer = Tokenizer(models.WordLevel({"<start>": 0, "<end>": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), "isolated")
    if settings["model_type"] == "bert":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<start> $A <end>", special_tokens=[("<start>", 0), ("<end>", 1)]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<end>", eos_token="<end>", model_max_length=8192
    )
    fast.save_pretrained(folder)
    return folder
