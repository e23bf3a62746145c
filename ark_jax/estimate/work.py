"""The amounts that a plan is made of: what a stage asks, computes and stores; known models.

Recipes count them from the input; `plan` turns them into money, time, memory and disk. Nothing here
starts jax, since costs are checked before processes join.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ark_jax.llm import complete
from ark_jax.llm.pricing import find_price
from ark_jax.llm.reply_cache import ReplyCache
from ark_jax.pipeline.stage import Context

SAMPLE = 1000  # texts whose tokens are counted; of more, an even sample stands for all
ENOUGH_REPLIES = 20  # cached replies whose mean is trusted
ENDPOINT_SPEED = 60.0  # tokens a second that an endpoint is assumed to write


class Texts(NamedTuple):
    """Texts of a kind; `mean` and `longest` are tokens, `characters` are the mean."""

    count: float
    mean: float
    longest: float
    characters: float = 0

    def with_count(self, count: float) -> "Texts":
        """Another number of texts with these lengths."""
        return self._replace(count=count)


@dataclasses.dataclass(frozen=True)
class Work:
    """One part of the work of a stage. Numbers of tokens are those of one item.

    Attributes:
        model: the config's section of the model.
        kind: ask, embedding, likelihoods, reading or training.
        items: calls, texts, or steps of training.
        read: tokens that a forward pass computes.
        written: tokens that are generated, or whose likelihood is taken.
        after: tokens before these, whose states are computed once for many items.
        step: of training, the texts of one step; GradCache cuts the last kind.
        objective: of training, the builder in `steps` that makes this step for a compiler; "" where
            there is none.
        towers: models that are trained at once.
        stored: vectors that are kept on disk.
        label: what the plan calls these calls.
        settings: of calls, the language model.
        total: all calls, including those whose replies are cached.
        pace: measured seconds of a reply; 0: unknown.
        replies: of a call, which an endpoint writes side by side; `written` is their sum.
    """

    stage: str
    model: str
    kind: str
    items: float
    read: float = 0
    written: float = 0
    after: float = 0
    step: tuple[Texts, ...] = ()
    objective: str = ""
    towers: int = 1
    stored: float = 0
    label: str = ""
    settings: complete.LLMSettings | None = None
    total: int = 0
    pace: float = 0
    replies: int = 1

    @property
    def tokens(self) -> float:
        """Tokens of all items. For likelihoods the read tokens include the written ones."""
        if self.step:
            return self.items * sum(texts.count * texts.mean for texts in self.step)
        return self.items * (self.read + self.written * (self.kind != "likelihoods"))

    @property
    def is_remote(self) -> bool:
        """Whether none of it runs on the devices of this run."""
        return self.kind == "ask" and self.settings.backend != "local"

    @property
    def price(self) -> tuple[float, float] | None:
        """USD of a million tokens in and out; None if it is unknown."""
        if self.settings.backend != "openai":
            return 0.0, 0.0
        return find_price(self.settings.model, tuple(self.settings.price))

    @property
    def cost(self) -> float | None:
        """USD of calls; None if the price is unknown and there is something to pay for."""
        if self.price is None:
            return None if self.items else 0.0
        return self.items * (self.read * self.price[0] + self.written * self.price[1]) / 1e6

    @property
    def reply_seconds(self) -> float:
        """Seconds of one reply: measured, or from an assumed speed."""
        return self.pace or self.written / self.replies / ENDPOINT_SPEED

    @property
    def waiting(self) -> float:
        """Seconds that the calls take, under the limits of an endpoint."""
        llm = self.settings
        if llm.backend != "openai":
            return 0.0
        limits = (self.items, llm.requests_per_minute), (self.tokens, llm.tokens_per_minute)
        by_limits = [60 * amount / limit for amount, limit in limits if limit]
        return max(math.ceil(self.items / llm.concurrency) * self.reply_seconds, *by_limits, 0.0)


@functools.cache
def _tokenizer(folder: str):
    """The tokenizer of a model folder, and how many tokens the model reads."""
    from ark_jax.models import hf, sentence_folder
    from ark_jax.text.tokens import load_tokenizer

    weights = sentence_folder.weights_folder(hf.resolve(folder))
    tokenizer = load_tokenizer(str(weights))
    return tokenizer, sentence_folder.read_max_length(weights, tokenizer)


def measure(
    folder: str, items: Sequence, text: Callable[[Any], str] = str, *, cut: bool = True
) -> Texts:
    """Lengths of the texts of items, from an even sample.

    Args:
        folder: of the model whose tokenizer counts.
        text: gives the text of an item.
        cut: whether texts are cut to what the model reads.
    """
    tokenizer, limit = _tokenizer(folder)
    stride = max(-(-len(items) // SAMPLE), 1)
    sample = [text(items[i]) for i in range(0, len(items), stride)] or [""]
    ids = tokenizer(sample, verbose=False, add_special_tokens=cut)["input_ids"]
    lengths = [min(len(row), limit) if cut else len(row) for row in ids]
    mean = lambda numbers: sum(numbers) / len(numbers)
    return Texts(len(items), mean(lengths), max(lengths), mean([*map(len, sample)]))


def pending_calls(
    context: Context,
    stage: str,
    settings: complete.LLMSettings,
    calls: Sequence[complete.Call],
    folder: str,
    reply: float,
    more: float = 0,
) -> Work:
    """The calls whose replies are not cached.

    Length and time of a reply come from cached replies, if there are enough.

    Args:
        folder: of the model whose tokenizer counts.
        reply: characters of a reply, unless enough replies are cached.
        more: characters of a prompt that are not in it yet.
    """
    replies = ReplyCache(context.workdir / "llm" / "replies.jsonl").rows.values()
    known = {row["key"] for row in replies} if settings.backend != "replay" else set()
    count = sum(settings.key(call.turns) not in known for call in calls) if known else len(calls)
    prompt = measure(folder, calls, lambda call: call.turns[0], cut=False)
    rate = prompt.mean / max(prompt.characters, 1)
    read, written = prompt.mean + more * rate, reply * rate
    label = calls[0].kind if calls else ""
    matching = [row for row in replies if row.get("kind") == label]
    usage = [row["reply"].get("usage") or {} for row in matching]
    used = [(x.get("prompt_tokens") or 0, x.get("completion_tokens") or 0) for x in usage]
    used = [(tokens_in, tokens_out) for tokens_in, tokens_out in used if tokens_in and tokens_out]
    if len(used) >= ENOUGH_REPLIES:
        written = read * sum(x for _, x in used) / sum(x for x, _ in used)
    seconds = [row["seconds"] for row in matching if row.get("seconds")]
    pace = sum(seconds) / len(seconds) if len(seconds) >= ENOUGH_REPLIES else 0
    shown = {"label": label, "settings": settings, "total": len(calls), "pace": pace}
    return Work(stage, "llm", "ask", count, read, min(written, settings.max_tokens), **shown)


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
