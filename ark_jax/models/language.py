"""A causal language model as a judge and a reader: exact log-likelihoods over shared prefixes, generation."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ark_jax import layout
from ark_jax.layout import activation_spec
from ark_jax.log import Progress
from ark_jax.models import attention, decoder, hf
from ark_jax.text import tokens as tk


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
        tokenizer = tk.load_tokenizer(str(folder))
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
        total = np.zeros(len(rows), np.float32)
        groups = _groups(rows)
        with Progress(label or "score", len(rows), "pairs", interval=10 if label else float("inf")) as bar:
            for part, height, length in self._batches([g.prefix for g in groups], batch_tokens, layout.batch_multiple()):
                for members, values in self._score([groups[i] for i in part], height, length, rows, batch_tokens):
                    total[members] = values
                    bar.add(len(members))
        return LogLikelihoods(total, np.array([n for _, n in rows], np.int32))

    def _batches(self, lengths: Sequence[int], budget: int, multiple: int = 1):
        return tk.by_length(lengths, budget=budget, parameters=hf.layer_parameters(self.model), multiple=multiple)

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

    def _score(self, groups: list["Group"], height: int, length: int, rows, budget: int):
        """One pass over the prefixes of `groups` (padded to height × length), then batches of their suffixes."""
        # Each device gets the suffixes of its own prefixes, so that no key or value travels.
        devices = layout.batch_multiple()
        seat = {}
        for i, group in enumerate(groups):
            seat |= dict.fromkeys(group.members, divmod(i, height // devices))
        tokens, mask = map(layout.rows, tk.pad([rows[g.members[0]][0][: g.prefix] for g in groups], height, length))
        memory = _prefix(self.model, self.cfg, tokens, mask)
        suffix = {i: rows[i][0][g.prefix :] for g in groups for i in g.members}
        # Short targets apart from long ones: logits are computed for as many positions as the longest has.
        for targets in (lambda n: n <= 8, lambda n: n > 8):
            some = [i for i in suffix if targets(rows[i][1])]
            for part, _, t in self._batches([len(suffix[i]) for i in some], budget):
                members = [some[i] for i in part]
                shares = [[i for i in members if seat[i][0] == device] for device in range(devices)]
                share = tk.round_rows(max(map(len, shares)), 1)
                places = {i: d * share + j for d, those in enumerate(shares) for j, i in enumerate(those)}
                n = tk.round_length(max(rows[i][1] for i in members))
                ids, seen = np.zeros((devices * share, t), np.int32), np.zeros((devices * share, t), bool)
                where, wanted = np.zeros((devices * share, n), np.int32), np.full((devices * share, n), -1, np.int32)
                owner = np.zeros(devices * share, np.int32)
                for i, row in places.items():
                    size, count = len(suffix[i]), rows[i][1]
                    ids[row, :size], seen[row, :size], owner[row] = suffix[i], True, seat[i][1]
                    where[row, :count] = np.arange(size - count - 1, size - 1)
                    wanted[row, :count] = suffix[i][-count:]
                arrays = map(layout.rows, (ids, seen, where, wanted, owner))
                values = np.asarray(_suffix(self.model, self.cfg, memory, mask, *arrays))
                yield list(places), values[list(places.values())]

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
            for part, rows, length in self._batches([len(i) for i in ids], batch_tokens, layout.batch_multiple()):
                tokens, mask = tk.pad([ids[i] for i in part], rows, length)
                new = np.asarray(_generate(self.model, self.cfg, layout.rows(tokens), layout.rows(mask),
                                           max_new_tokens, self.stop_ids))
                for i, row in zip(part, new, strict=False):
                    ends = np.flatnonzero(np.isin(row, self.stop_ids))
                    text = self.tokenizer.decode(row[: ends[0] if len(ends) else None], skip_special_tokens=True)
                    out[i] = text[: min((text.find(s) for s in stop if s in text), default=len(text))]
                    done(i, out[i])
                bar.add(len(part))
        return out


@dataclasses.dataclass(frozen=True)
class Group:
    """Pairs that share their first `prefix` tokens."""

    prefix: int
    members: list[int]


def _groups(rows: list[tuple[list[int], int]]) -> list[Group]:
    """Cuts the lexicographically sorted pairs where a longer shared prefix saves more than more sharers do."""
    order = sorted(range(len(rows)), key=lambda i: rows[i][0])
    groups: list[Group] = []
    members: list[int] = []
    prefix = 0
    for i in order:
        ids, n = rows[i]
        usable = len(ids) - n - 1  # the last prompt token predicts the first target token, so it is not shared
        if members:
            common = min(prefix, usable, _common(rows[members[-1]][0], ids))
            if len(members) * common >= (len(members) - 1) * prefix and common > 0:
                members.append(i)
                prefix = common
                continue
            groups.append(Group(prefix, members))
        members, prefix = [i], usable
    if members:
        groups.append(Group(prefix, members))
    return groups


def _common(a: list[int], b: list[int]) -> int:
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


@functools.partial(jax.jit, static_argnums=1)
def _prefix(model, cfg, tokens, mask):
    """Keys and values of every layer, [l g s k h] twice."""
    t = tokens.shape[1]
    allowed = jnp.tril(jnp.ones((t, t), bool)) & mask[:, None, :]
    positions = jnp.broadcast_to(jnp.arange(t), tokens.shape)
    keep = lambda q, k, v, _: (attention.attend(q, k, v, allowed), (k, v))
    return model.layers(tokens, positions, keep, cfg)[1]


@functools.partial(jax.jit, static_argnums=1)
def _suffix(model, cfg, memory, prefix_mask, tokens, mask, where, targets, owner):
    """Sum of the targets' log-probabilities per row [b]; logits exist for one target position at a time."""
    b, t = tokens.shape
    allowed = jnp.tril(jnp.ones((t, t), bool)) & mask[:, None, :]
    local = jax.shard_map(lambda seen, owner: seen.sum(-1)[owner],
                          in_specs=(activation_spec("b s"), activation_spec("b")), out_specs=activation_spec("b"))
    positions = local(prefix_mask, owner)[:, None] + jnp.arange(t)

    def attend(q, k, v, cache):
        return attention.attend_shared(q, k, v, allowed, *cache, prefix_mask, owner), None

    x, _ = model.layers(tokens, positions, attend, cfg, memory)
    x = layout.pick(x, where)

    def position(total, at):
        hidden, target = at
        logits = model.logits(hidden, cfg)
        chosen = layout.pick(logits, jnp.maximum(target, 0))
        return total + jnp.where(target >= 0, chosen - jax.nn.logsumexp(logits, axis=-1), 0), None

    zero = jnp.zeros(b, jnp.float32, out_sharding=activation_spec("b"))
    return jax.lax.scan(position, zero, (jnp.moveaxis(x, 1, 0), targets.T))[0]


@functools.partial(jax.jit, static_argnums=(1, 4, 5))
def _generate(model, cfg, tokens, mask, steps: int, stop_ids: tuple[int, ...]):
    """Greedy token ids [b steps]; rows that stopped repeat their stop id."""
    b, t = tokens.shape
    memory = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, steps), (0, 0), (0, 0))),
                          _prefix(model, cfg, tokens, mask))
    lengths = mask.sum(-1)
    # The last prompt token is run again as the first step, which writes its own key over the same key.
    last = layout.pick(tokens, lengths - 1)
    mask = jnp.pad(mask & (jnp.arange(t) < lengths[:, None] - 1), ((0, 0), (0, steps)))
    out = jnp.full((b, steps), stop_ids[0], jnp.int32, out_sharding=activation_spec("b t"))
    stops = jnp.array(stop_ids)
    done = jnp.zeros(b, bool, out_sharding=activation_spec("b"))

    def step(state):
        i, token, done, mask, memory, out = state
        mask = mask.at[:, t + i].set(True)

        def attend(q, k, v, cache):
            keys, values = (jax.lax.dynamic_update_slice_in_dim(old, new, t + i, axis=1)
                            for old, new in zip(cache, (k, v), strict=True))
            return attention.attend(q, keys, values, mask[:, None, :]), (keys, values)

        x, memory = model.layers(token[:, None], (lengths - 1 + i)[:, None], attend, cfg, memory)
        token = jnp.where(done, stop_ids[0], jnp.argmax(model.logits(x[:, 0], cfg), -1)).astype(jnp.int32)
        out = out.at[:, i].set(token)
        return i + 1, token, done | jnp.isin(token, stops), mask, memory, out

    running = lambda state: (state[0] < steps) & ~state[2].all()
    return jax.lax.while_loop(running, step, (0, last, done, mask, memory, out))[-1]
