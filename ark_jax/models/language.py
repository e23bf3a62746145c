"""A causal language model as a judge and a reader: exact log-likelihoods over shared prefixes, generation."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ark_jax import layout
from ark_jax.layout import activation_spec
from ark_jax.log import Progress
from ark_jax.models import attention, decoder, hf
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
    def from_pretrained(cls, name_or_folder: str, *, dtype: str = "float32", compute: str = "float32") -> "LanguageModel":
        """Opens a Hugging Face decoder folder or hub name."""
        layout.enter_mesh()
        folder = hf.resolve(name_or_folder)
        settings = hf.read_config(folder)
        model, cfg, _ = hf.load(str(folder), dtype=dtype, compute=compute)
        if not isinstance(cfg, decoder.Config):
            raise ValueError(f"{name_or_folder}: {settings['model_type']} generates no text; give a decoder")
        tokenizer = tk.load_tokenizer(str(folder), cfg.vocab)
        stops = settings.get("eos_token_id")
        stops = set(stops) if isinstance(stops, list) else {stops}
        stops = tuple(sorted((stops | {tokenizer.eos_token_id}) - {None}))
        return cls(model, cfg, tokenizer, folder, settings.get("max_position_embeddings", 2048), stops)

    def log_likelihood(self, pairs: Sequence[tuple[str, str]], *, batch_tokens: int = 8192,
                       label: str = "") -> LogLikelihoods:
        """log p(target | prompt), teacher-forced, for (prompt, target) pairs.

        Prompt and target are tokenised as one text, and the target's tokens are those after the prompt's
        own (the convention of lm-evaluation-harness; blanks that end a prompt go to the target). Pairs
        that begin with the same tokens share one pass over them.

        Raises:
            ValueError: an empty target, or a pair longer than the model's context, with its number.
        """
        rows = self._encode_pairs(pairs)
        counts = [n for _, n in rows]
        total = np.zeros(len(rows), np.float32)
        with Progress(label or "score", len(rows), "pairs", interval=10 if label else float("inf")) as bar:
            for memory, batch in self._shared([(ids, len(ids) - n - 1) for ids, n in rows], batch_tokens):
                where, wanted, spans = _targets(batch, counts)
                blocks = -(-max(end for _, _, end in spans.values()) // BLOCK)
                values = np.asarray(_suffix(self.model, self.cfg, memory, *_arrays(batch), *map(layout.rows, (where, wanted)),
                                            blocks))
                for i, (device, start, end) in spans.items():
                    total[i] = values[device, start:end].sum()
                bar.add(len(spans))
        return LogLikelihoods(total, np.array(counts, np.int32))

    def _shared(self, rows: Sequence[tuple[list[int], int]], budget: int) -> Iterator[tuple[Any, Batch]]:
        """Computes every shared prefix once; yields its keys and values, [l g s k h] twice, with batches that go on from it.

        Args:
            rows: token ids, and how many of them a prefix may take at most (not all).
        """
        slack = tk.COMPILATION / sum(x.size for x in jax.tree.leaves(self.model.blocks))
        for prefixes, longest, batches in plan(rows, budget, slack, layout.batch_multiple()):
            tokens, mask = tk.pad(prefixes, len(prefixes), tk.round_length(max(map(len, prefixes))))
            memory = _prefix(self.model, self.cfg, layout.rows(tokens), layout.rows(mask), longest)
            for batch in batches:
                yield memory, batch

    @property
    def _begin(self) -> int:
        """The token that stands in where there is nothing to condition on."""
        begin = self.tokenizer.bos_token_id
        return self.stop_ids[0] if begin is None else begin

    def _encode_pairs(self, pairs) -> list[tuple[list[int], int]]:
        """[(token ids of prompt and target, number of target tokens)]"""
        if not len(pairs):
            return []
        prompts, texts = [], []
        for prompt, target in pairs:
            kept = prompt.rstrip()
            prompts.append(kept)
            texts.append(prompt + target)
        whole = self.tokenizer(texts)["input_ids"]
        before = self.tokenizer(prompts)["input_ids"]
        rows = []
        for i, (ids, context) in enumerate(zip(whole, before, strict=True)):
            if not context:
                ids, context = [self._begin, *ids], [self._begin]
            n = len(ids) - len(context)
            if n < 1 or not pairs[i][1]:
                raise ValueError(f"pair {i}: the target {pairs[i][1]!r} adds no token to its prompt; give a target")
            if len(ids) > self.max_length:
                raise ValueError(f"pair {i}: {len(ids)} tokens, the model takes {self.max_length}; cut the passage")
            rows.append((ids, n))
        return rows

    def chat(self, prompt: str) -> str:
        """`prompt` as a user's turn in the model's chat template; as it is for a model without one."""
        if not self.tokenizer.chat_template:
            return prompt
        turn = [{"role": "user", "content": prompt}]
        return self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)

    def generate(self, prompts: Sequence[str], *, max_new_tokens: int, stop: Sequence[str] = (),
                 batch_tokens: int = 8192, label: str = "", done: Callable[[int, str], None] = lambda i, text: None) -> list[str]:
        """Greedy continuations, cut before the first of the `stop` strings; special tokens are not shown.

        `done(i, text)` hears of each as its batch finishes. Prompts that `chat` made bring their special tokens along.
        """
        ids = []
        if prompts:
            ids = self.tokenizer(list(prompts), add_special_tokens=not self.tokenizer.chat_template)["input_ids"]
            ids = [row or [self._begin] for row in ids]
        for i, row in enumerate(ids):
            if len(row) + max_new_tokens > self.max_length:
                raise ValueError(f"prompt {i}: {len(row)} + {max_new_tokens} tokens, the model takes {self.max_length}")
        out = [""] * len(ids)
        with Progress(label or "generate", len(ids), "prompts", interval=10 if label else float("inf")) as bar:
            for memory, batch in self._shared([(row, len(row) - 1) for row in ids], batch_tokens):
                new = np.asarray(_generate(self.model, self.cfg, memory, *_arrays(batch), max_new_tokens, self.stop_ids))
                for i, row in zip(batch.members, new, strict=True):
                    if i is None:
                        continue
                    ends = np.flatnonzero(np.isin(row, self.stop_ids))
                    text = self.tokenizer.decode(row[: ends[0] if len(ends) else None], skip_special_tokens=True)
                    out[i] = text[: min((text.find(s) for s in stop if s in text), default=len(text))]
                    done(i, out[i])
                    bar.add()
        return out


def _arrays(batch: Batch) -> Iterator[jax.Array]:
    return map(layout.rows, (batch.seen, batch.owner, batch.tokens, batch.mask))


def _targets(batch: Batch, counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray, dict[int, tuple[int, int, int]]]:
    """Where in each device's tokens the targets are predicted and what they are, `[D p]`; row -> (device, start, end) in both."""
    devices = layout.batch_multiple()
    b, t = batch.tokens.shape
    where = np.zeros((devices, tk.round_up(b // devices * t, BLOCK)), np.int32)
    wanted, spans, ends = np.zeros_like(where), {}, [0] * devices
    for r, i in enumerate(batch.members):
        if i is None:
            continue
        device, at = divmod(r, b // devices)
        size, start, end = int(batch.mask[r].sum()), ends[device], ends[device] + counts[i]
        where[device, start:end] = at * t + np.arange(size - counts[i] - 1, size - 1)
        wanted[device, start:end] = batch.tokens[r, size - counts[i] : size]
        spans[i], ends[device] = (device, start, end), end
    return where, wanted, spans


@functools.partial(jax.jit, static_argnums=(1, 4))
def _prefix(model, cfg, tokens, mask, longest: int):
    """Keys and values of every layer, padded to `longest` positions: [l g s k h] twice."""
    t = tokens.shape[1]
    allowed = jnp.tril(jnp.ones((t, t), bool)) & mask[:, None, :]
    positions = jnp.broadcast_to(jnp.arange(t), tokens.shape)
    keep = lambda q, k, v, _: (attention.attend(q, k, v, allowed, causal=True), (k, v))
    return _longer(model.layers(tokens, positions, keep, cfg)[1], longest - t)


def _longer(memory, by: int):
    """Keys and values [l b s k h] with `by` more positions."""
    return jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, by), (0, 0), (0, 0))), memory)


def _go_on(model, cfg, memory, seen, owner, tokens, mask, *, keep: bool):
    """What follows the prefixes: hidden states [b t d], own keys and values if they are to be kept, the first positions [b]."""
    t = tokens.shape[1]
    allowed = jnp.tril(jnp.ones((t, t), bool)) & mask[:, None, :]
    local = jax.shard_map(lambda seen, owner: seen.sum(-1)[owner],
                          in_specs=(activation_spec("b s"), activation_spec("b")), out_specs=activation_spec("b"))
    start = local(seen, owner)

    def attend(q, k, v, cache):
        return attention.attend_shared(q, k, v, allowed, *cache, seen, owner), (k, v) if keep else None

    x, own = model.layers(tokens, start[:, None] + jnp.arange(t), attend, cfg, memory)
    return x, own, start


@functools.partial(jax.jit, static_argnums=1)
def _suffix(model, cfg, memory, seen, owner, tokens, mask, where, wanted, blocks):
    """Log-probabilities [D p] of the tokens `wanted` right after the positions `where` of each device's tokens; computed are
    the first `blocks` blocks, one at a time, since a position's logits are as many as the vocabulary."""
    x, _, _ = _go_on(model, cfg, memory, seen, owner, tokens, mask, keep=False)
    devices = len(where)
    x = x.reshape(devices, -1, x.shape[-1], out_sharding=activation_spec("b t d"))

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


@functools.partial(jax.jit, static_argnums=(1, 7, 8))
def _generate(model, cfg, memory, seen, owner, tokens, mask, steps: int, stop_ids: tuple[int, ...]):
    """Greedy token ids [b steps]; rows that stopped repeat a stop id."""
    b, t = tokens.shape
    x, own, start = _go_on(model, cfg, memory, seen, owner, tokens, mask, keep=True)
    own, lengths = _longer(own, steps), mask.sum(-1)
    greedy = lambda x: jnp.argmax(model.logits(x, cfg), -1).astype(jnp.int32)
    first = greedy(layout.pick(x, lengths - 1))
    out = jnp.full((b, steps), stop_ids[0], jnp.int32, out_sharding=activation_spec("b t")).at[:, 0].set(first)
    stops = jnp.array(stop_ids)

    def step(state):
        i, token, done, mask, own, out = state
        mask = mask.at[:, t + i - 1].set(True)

        def attend(q, k, v, caches):
            cache, mine = caches
            mine = tuple(jax.lax.dynamic_update_slice_in_dim(old, new, t + i - 1, axis=1)
                         for old, new in zip(mine, (k, v), strict=True))
            return attention.attend_shared(q, *mine, mask[:, None, :], *cache, seen, owner), mine

        x, own = model.layers(token[:, None], (start + lengths + i - 1)[:, None], attend, cfg, (memory, own))
        token = jnp.where(done, stop_ids[0], greedy(x[:, 0]))
        return i + 1, token, done | jnp.isin(token, stops), mask, own, out.at[:, i].set(token)

    running = lambda state: (state[0] < steps) & ~state[2].all()
    state = (1, first, jnp.isin(first, stops), jnp.pad(mask, ((0, 0), (0, steps))), own, out)
    return jax.lax.while_loop(running, step, state)[-1]
