"""Well-known models that are not on this machine: sizes from their published config.json.

`write_stand_in` makes a folder with all that a plan reads of a model: a config, and a tokenizer
learned from the input that yields about as many tokens as the model's own. It holds no weights.
"""

import bisect
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from ark_jax.data.records import Document

# Characters of a token. In stories and encyclopedia articles BERT's tokenizer has 4.2 and 4.6,
# that of SmolLM2 3.9 and 4.1.
CHARACTERS = 4.2
VOCABULARY = 24_000  # tokens at most, below that of every known model
SAMPLE_CHARACTERS = 300_000
SPECIAL_TOKENS = ("<pad>", "<start>", "<end>")


@dataclasses.dataclass(frozen=True)
class KnownModel:
    """The sizes of a model.

    Attributes:
        family: `model_type` of config.json.
        positions: longest input, in tokens.
        reads: tokens that a retriever reads of a text, if they are fewer than `positions`.
    """

    family: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    positions: int
    dtype: str
    tied: bool = True
    reads: int = 0

    def settings(self) -> dict:
        """What config.json says of these sizes."""
        common = {
            "model_type": self.family,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.positions,
            "torch_dtype": self.dtype,
        }
        if self.family == "bert":
            return common | {"type_vocab_size": 2, "layer_norm_eps": 1e-12}
        return common | {
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": self.tied,
        }


def _bert(width: int, layers: int, reads: int = 0) -> KnownModel:
    heads = 12 if width < 1024 else 16
    sizes = (width, layers, heads, heads, width // heads, 4 * width)
    return KnownModel("bert", *sizes, 30522, 512, "float32", reads=reads)


def _qwen3(width: int, layers: int, heads: int, ffn: int, vocabulary: int, **fields) -> KnownModel:
    positions = fields.pop("positions", 40960)
    sizes = (width, layers, heads, 8, 128, ffn, vocabulary, positions)
    return KnownModel("qwen3", *sizes, "bfloat16", **fields)


def _smollm2(width: int, layers: int, heads: int, kv_heads: int, ffn: int) -> KnownModel:
    sizes = (width, layers, heads, kv_heads, 64, ffn, 49152, 8192)
    return KnownModel("llama", *sizes, "bfloat16")


KNOWN_MODELS = {
    "Qwen/Qwen3-Embedding-0.6B": _qwen3(1024, 28, 16, 3072, 151669, positions=32768),
    "Qwen/Qwen3-Embedding-4B": _qwen3(2560, 36, 32, 9728, 151665),
    "Qwen/Qwen3-Embedding-8B": _qwen3(4096, 36, 32, 12288, 151665, tied=False),
    "Qwen/Qwen3-0.6B": _qwen3(1024, 28, 16, 3072, 151936),
    "Qwen/Qwen3-4B": _qwen3(2560, 36, 32, 9728, 151936),
    "BAAI/bge-small-en-v1.5": _bert(384, 12),
    "BAAI/bge-base-en-v1.5": _bert(768, 12),
    "BAAI/bge-large-en-v1.5": _bert(1024, 24),
    "intfloat/e5-base-v2": _bert(768, 12),
    "sentence-transformers/all-MiniLM-L6-v2": _bert(384, 6, reads=256),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _smollm2(576, 30, 9, 3, 1536),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _smollm2(960, 32, 15, 5, 2560),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _smollm2(2048, 24, 32, 32, 8192),
    "mistralai/Mistral-7B-Instruct-v0.2": KnownModel(
        "mistral", 4096, 32, 32, 8, 128, 14336, 32000, 32768, "bfloat16", tied=False
    ),
}


def known_model(name: str) -> KnownModel | None:
    """The model of a hub name, whatever its revision; None if its sizes are not known here."""
    return KNOWN_MODELS.get(name.partition("@")[0])


def sample_texts(documents: Iterable[Document]) -> list[str]:
    """Texts to learn a tokenizer from: the first documents, 300,000 characters."""
    texts, size = [], 0
    for document in documents:
        texts.append(document.text[: SAMPLE_CHARACTERS - size])
        size += len(texts[-1])
        if size >= SAMPLE_CHARACTERS:
            break
    return texts


def write_stand_in(name: str, tokenizer, root: Path) -> Path:
    """Writes a folder for a known model into `root` and returns it.

    Args:
        tokenizer: from `learn_tokenizer`.
    """
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    model = known_model(name)
    folder = root / Path(name.partition("@")[0])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.settings()))
    limit = {"max_seq_length": model.reads or model.positions}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limit))
    pad, start, end = SPECIAL_TOKENS
    ids = [(token, SPECIAL_TOKENS.index(token)) for token in (start, end)]
    frame = f"{start} $A {end}" if model.family == "bert" else "$A"
    tokenizer.post_processor = processors.TemplateProcessing(single=frame, special_tokens=ids)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=end, model_max_length=model.positions
    )
    made.save_pretrained(folder)
    return folder


def learn_tokenizer(texts: Sequence[str]):
    """A byte-level BPE tokenizer with about `CHARACTERS` characters a token on `texts`.

    Real tokens, rather than a count of characters, let prompts share their prefixes as they would.
    """
    from tokenizers import Tokenizer, pre_tokenizers, trainers
    from tokenizers.models import BPE

    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learned = Tokenizer(BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.train_from_iterator(texts, trainer)
    return _with_fewer_merges(learned, texts)


def _with_fewer_merges(tokenizer, texts: Sequence[str]):
    """The tokenizer with so many of its merges that a token has `CHARACTERS` characters, or all."""
    from tokenizers import Tokenizer

    parts = json.loads(tokenizer.to_str())
    merges, sample = parts["model"]["merges"], "\n".join(texts)[:100_000]

    def with_merges(count: int):
        parts["model"]["merges"] = merges[:count]
        return Tokenizer.from_str(json.dumps(parts))

    def length(count: int) -> float:
        return len(sample) / max(len(with_merges(count).encode(sample).ids), 1)

    counts = range(len(merges))
    return with_merges(bisect.bisect_left(counts, CHARACTERS, key=length))
