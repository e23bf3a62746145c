"""A causal language model as a judge and a reader: exact log-likelihoods over shared prefixes, generation."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ark_jax import hosts, layout
from ark_jax.layout import activation_spec
from ark_jax.log import Progress
from ark_jax.models import decoder, hf, prefix, unpad
from ark_jax.models.generate import Generation
from ark_jax.models.sharing import Batch, plan
from ark_jax.text import tokens as tk

BLOCK = 64  # positions whose logits a device holds at a time


@dataclasses.dataclass(frozen=True)
class LogLikelihoods:
    """Per pair: the sum of its target's token log-probabilities (nats) and their number."""

    sum: np.ndarray  # float32 [n]
    tokens: np.ndarray  # int32 [n]

    @property
    def mean(self) -> np.ndarray:
        """Mean token log-likelihood, eq. 3 and 4."""
        return self.sum / np.maximum(self.tokens, 1)


@dataclasses.dataclass
class LanguageModel:
    """A decoder with its tokenizer."""

    model: Any
    cfg: decoder.Config
    tokenizer: Any
    folder: Path
    max_length: int
    stop_ids: tuple[int, ...]

    @classmethod
    def from_pretrained(cls, name_or_folder: str, *, dtype: str = "float32", compute: str = "float32",
                        attention: str = "xla") -> "LanguageModel":
        """Opens a Hugging Face decoder folder or hub name."""
        layout.enter_mesh()
        folder = hf.resolve(name_or_folder)
        settings = hf.read_config(folder)
        model, cfg, _ = hf.load(str(folder), dtype=dtype, compute=compute, attention=attention)
        if not isinstance(cfg, decoder.Config):
            raise ValueError(f"{name_or_folder}: {settings['model_type']} generates no text; give a decoder")
        tokenizer = tk.load_tokenizer(str(folder), cfg.vocab)
        # Some models name the token that ends a turn in generation_config.json alone.
        more = folder / "generation_config.json"
        named = [x.get("eos_token_id") for x in (settings, hf.read_json(more) if more.is_file() else {})]
        stops = {tokenizer.eos_token_id, *(id for some in named for id in (some if isinstance(some, list) else [some]))}
        stops = tuple(sorted(stops - {None}))
        return cls(model, cfg, tokenizer, folder, settings.get("max_position_embeddings", 2048), stops)

    def log_likelihood(self, pairs: Sequence[tuple[str, str]], *, batch_tokens: int = 0, label: str = "") -> LogLikelihoods:
        """log p(target | prompt), teacher-forced, for (prompt, target) pairs.

        Prompt and target are tokenised as one text, and the target's tokens are those after the prompt's
        own (the convention of lm-evaluation-harness; blanks that end a prompt go to the target). Pairs
        that begin with the same tokens share one pass over them.

        Args:
            batch_tokens: of a call on each device, the bound on memory; 0: what suits the device.

        Raises:
            ValueError: an empty target, or a pair longer than the model's context, with its number.
        """
        rows = self._encode_pairs(pairs)
        counts = [n for _, n in rows]
        total = np.zeros(len(rows), np.float32)
        shared = self._shared([(ids, len(ids) - n - 1) for ids, n in rows], batch_tokens)
        started = (self._start_scoring(*some, counts) for some in shared)
        with Progress(label or "score", len(rows), "pairs", interval=10 if label else float("inf")) as bar:
            # The device works on one batch while the host gets the next ready.
            for (spans, values), _ in itertools.pairwise(itertools.chain(started, [None])):
                values = layout.fetch(values)
                for i, (device, start, end) in spans.items():
                    total[i] = values[device, start:end].sum()
                bar.add(len(spans))
        return LogLikelihoods(total, np.array(counts, np.int32))

    def _start_scoring(self, memory, seen, batch: Batch, counts: Sequence[int]) -> tuple[dict, jax.Array]:
        """Where `_targets` says, and the log-probabilities that will be there."""
        where, wanted, spans = _targets(batch, counts)
        blocks = -(-max(end for _, _, end in spans.values()) // BLOCK)
        return spans, _suffix(self.model, self.cfg, memory, seen, _arrays(batch), batch.room,
                              *map(layout.rows, (where, wanted)), blocks)

    def _shared(self, rows: Sequence[tuple[Sequence[int], int]], budget: int) -> Iterator[tuple[Any, jax.Array, Batch]]:
        """Computes every shared prefix once; yields its keys and values, [l p k s h] twice, and which of them count [p s], with
        batches that go on from it.

        Args:
            rows: token ids, and how many of them a prefix may take at most (not all).
        """
        calls = plan(rows, budget=budget or _batch_tokens(), devices=layout.batch_multiple(),
                     **unpad.price(self.model, self.cfg))
        for call in calls:
            seen = layout.rows(call.mask)
            memory = prefix.compute(self.model, self.cfg, layout.rows(call.tokens), seen, call.room)
            for batch in call.batches:
                yield memory, seen, batch

    @property
    def _begin(self) -> int:
        """The token that stands in where there is nothing to condition on."""
        begin = self.tokenizer.bos_token_id
        if begin is None and not self.stop_ids:
            raise ValueError(f"{self.folder}: an empty prompt, and neither config.json nor the tokenizer names a token that "
                             "begins or ends a text; give a prompt")
        return self.stop_ids[0] if begin is None else begin

    def _encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[np.ndarray, int]]:
        """[(token ids of prompt and target, number of target tokens)]"""
        rows = []
        for i, (row, (_, target)) in enumerate(zip(hosts.spread(self._tokenize, pairs), pairs, strict=True)):
            ids, context = (row[1:], row[0]) if row[0] else (np.array([self._begin, *row[1:]], np.int32), 1)
            n = len(ids) - int(context)
            if n < 1 or not target:
                raise ValueError(f"pair {i}: the target {target!r} adds no token to its prompt; give a target")
            if len(ids) > self.max_length:
                raise ValueError(f"pair {i}: {len(ids)} tokens, the model takes {self.max_length}; cut the passage")
            rows.append((ids, n))
        return rows

    def _tokenize(self, pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
        """How many tokens of a pair are its prompt's, then the ids of both."""
        rows = []
        for at in range(0, len(pairs), 1024):  # the tokenizer's own results take far more memory than ids
            some = pairs[at : at + 1024]
            whole = self._ids([prompt + target for prompt, target in some])
            heads = list(dict.fromkeys(prompt.rstrip() for prompt, _ in some))
            before = dict(zip(heads, map(len, self._ids(heads)), strict=True))
            rows += [np.array([before[prompt.rstrip()], *ids], np.int32) for ids, (prompt, _) in zip(whole, some, strict=True)]
        return rows

    def _ids(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """Token ids, `special` ones in front, but none behind: texts go on."""
        rows = self.tokenizer(list(texts), add_special_tokens=special)["input_ids"]
        plain, whole = (self.tokenizer("x", add_special_tokens=some)["input_ids"] for some in (False, special))
        behind = next((n for n in range(len(whole)) if whole[len(whole) - len(plain) - n : len(whole) - n] == plain), 0)
        return [row[: len(row) - behind] for row in rows]

    def prompt_ids(self, prompts: Sequence[str]) -> list[list[int]]:
        """What `generate` goes on from: prompts that `chat` made bring their special tokens along."""
        return self._ids(prompts, special=not self.tokenizer.chat_template)

    def chat(self, turns: str | Sequence[str]) -> str:
        """A prompt for the next reply: `turns` are the user's and the model's in alternation, or the user's only one.

        In the model's chat template; a model without one is given them as they are, a line for each. One that can think before it
        replies (Qwen3) is told not to: its thoughts would take the place of a short reply.

        Raises:
            ValueError: a number of turns after which it is the user's turn.
        """
        turns = [turns] if isinstance(turns, str) else list(turns)
        if len(turns) % 2 == 0:
            raise ValueError(f"{len(turns)} turns: the last must be the user's; give user, assistant, user, ...")
        if not self.tokenizer.chat_template:
            return "\n".join(turns)
        messages = [{"role": "assistant" if i % 2 else "user", "content": turn} for i, turn in enumerate(turns)]
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False,
                                                  enable_thinking=False)

    def generate(self, prompts: Sequence[str], *, max_new_tokens: int, stop: Sequence[str] = (), temperature: float = 0.0,
                 top_p: float = 1.0, seed: int = 0, batch_tokens: int = 0, label: str = "",
                 done: Callable[[int, str], None] = lambda i, text: None) -> list[str]:
        """Continuations, cut before the first of the `stop` strings; special tokens are not shown.

        Args:
            temperature: 0 takes the likeliest token; else tokens are drawn from the softmax of logits / temperature.
            top_p: draws from the likeliest tokens alone whose probabilities reach this sum.
            seed: decides all draws. A prompt's draws depend on its place among `prompts`, not on how they are batched.
            batch_tokens: whose keys and values a device keeps, the bound on memory; 0: what suits the device.
            done: `done(i, text)` hears of each as it ends.

        Prompts that `chat` made bring their special tokens along, so a model with a chat template is given none in front of any.
        """
        if max_new_tokens < 1 or temperature < 0 or not 0 < top_p <= 1:
            raise ValueError(f"max_new_tokens={max_new_tokens}, temperature={temperature}, top_p={top_p}: must be at least 1, "
                             "at least 0, and above 0 up to 1")
        if isinstance(prompts, str):
            raise ValueError(f"prompts: {prompts[:40]!r} is one text; give a list of them")
        if not prompts:
            return []
        ids = self.prompt_ids(prompts)
        ids = [row or [self._begin] for row in ids]
        for i, row in enumerate(ids):
            if len(row) + max_new_tokens > self.max_length:
                raise ValueError(f"prompt {i}: {len(row)} + {max_new_tokens} tokens, the model takes {self.max_length}; "
                                 "shorten it or make fewer new ones")
        out: list[str] = [""] * len(ids)
        with Progress(label or "generate", len(ids), "prompts", interval=10 if label else float("inf")) as bar:
            def ended(i: int, made: list[int], over: bool) -> bool:
                text = self.tokenizer.decode(made, skip_special_tokens=True) if over or stop else ""
                end = min((text.find(s) for s in stop if s in text), default=None)
                if over or end is not None:
                    out[i] = text[:end]
                    done(i, out[i])
                    bar.add()
                return end is not None

            draw = (temperature, top_p if top_p < 1 else None, seed) if temperature else None
            # A step reads all weights for however few rows, so that many positions are kept; few tokens at once enter, so that
            # seats are not left empty until many are.
            budget, at_once = batch_tokens or self._positions(), min(batch_tokens or _batch_tokens(), _batch_tokens() // 2)
            Generation(self.model, self.cfg, self.stop_ids, max_new_tokens, draw, budget, at_once, ended).run(ids)
        return out

    def _positions(self) -> int:
        """Of keys and values on a device: many, but no more than a few GiB."""
        cfg = self.cfg
        each = 2 * cfg.layers * cfg.kv_heads * cfg.head_dim * jnp.dtype(cfg.compute).itemsize
        return min(16 * _batch_tokens(), (2 if jax.default_backend() == "cpu" else 8) * 2**30 // each)


def _batch_tokens() -> int:
    """Large enough that products run at full speed; more only takes memory."""
    return 2048 if jax.default_backend() == "cpu" else 16384


def _arrays(batch: Batch) -> dict[str, jax.Array]:
    return {name: layout.rows(getattr(batch, name)) for name in ("tokens", "mask", "start", "seats", "tokens_of", "rows_of")}


def _targets(batch: Batch, counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray, dict[int, tuple[int, int, int]]]:
    """Where in each device's stream the targets are predicted and what they are, `[D p]`; row -> (device, start, end) in both."""
    devices = layout.batch_multiple()
    where = np.zeros((devices, tk.round_up(batch.room, BLOCK)), np.int32)
    wanted, spans = np.zeros_like(where), {}
    at = ends = 0
    for r, i in enumerate(batch.members):
        device, row = divmod(r, len(batch.members) // devices)
        if not row:
            at = ends = 0
        if i is None:
            continue
        size, start, end = int(batch.mask[r].sum()), ends, ends + counts[i]
        where[device, start:end] = at + np.arange(size - counts[i] - 1, size - 1)
        wanted[device, start:end] = batch.tokens[r, size - counts[i] : size]
        spans[i], at, ends = (device, start, end), at + size, end
    return where, wanted, spans


@functools.partial(jax.jit, static_argnums=(1, 5))
def _suffix(model, cfg, memory, seen, batch, room: int, where, wanted, blocks):
    """Log-probabilities [D p] of the tokens `wanted` right after the places `where` of each device's stream; computed are
    the first `blocks` blocks, one at a time, since a position's logits are as many as the vocabulary."""
    x, _ = prefix.go_on(model, cfg, memory, seen, batch, room, keep=False)
    devices = len(where)

    def block(i, out):
        cut = lambda x: jax.lax.dynamic_slice_in_dim(x, i * BLOCK, BLOCK, axis=1)
        hidden = layout.pick(x, cut(where)).reshape(devices * BLOCK, -1, out_sharding=activation_spec("a d"))
        logits = model.logits(hidden, cfg)
        target = cut(wanted).reshape(devices * BLOCK, out_sharding=activation_spec("a"))
        value = layout.pick(logits, target) - jax.nn.logsumexp(logits, axis=-1)
        value = value.reshape(devices, BLOCK, out_sharding=activation_spec("b t"))
        return jax.lax.dynamic_update_slice_in_dim(out, value, i * BLOCK, axis=1)

    zeros = jnp.zeros(where.shape, jnp.float32, out_sharding=activation_spec("b t"))
    return jax.lax.fori_loop(0, blocks, block, zeros)
