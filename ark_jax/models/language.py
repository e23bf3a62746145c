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
from jax.sharding import PartitionSpec as P

from ark_jax import layout
from ark_jax.layout import activation_spec
from ark_jax.log import Progress
from ark_jax.models import attention, decoder, hf, unpad
from ark_jax.models.sharing import Batch, plan
from ark_jax.text import tokens as tk

BLOCK = 64  # positions whose logits a device holds at a time
ROOM = 64  # new tokens that a generation has room for at first


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
        stops = settings.get("eos_token_id")
        stops = set(stops) if isinstance(stops, list) else {stops}
        stops = tuple(sorted((stops | {tokenizer.eos_token_id}) - {None}))
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
            memory = _prefix(self.model, self.cfg, layout.rows(call.tokens), seen, call.room)
            for batch in call.batches:
                yield memory, seen, batch

    @property
    def _begin(self) -> int:
        """The token that stands in where there is nothing to condition on."""
        begin = self.tokenizer.bos_token_id
        return self.stop_ids[0] if begin is None else begin

    def _encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[np.ndarray, int]]:
        """[(token ids of prompt and target, number of target tokens)]"""
        rows = []
        for at in range(0, len(pairs), 1024):  # the tokenizer's own results take far more memory than ids
            some = pairs[at : at + 1024]
            whole = self.tokenizer([prompt + target for prompt, target in some])["input_ids"]
            heads = list(dict.fromkeys(prompt.rstrip() for prompt, _ in some))
            before = dict(zip(heads, map(len, self.tokenizer(heads)["input_ids"]), strict=True))
            for i, (ids, (prompt, target)) in enumerate(zip(whole, some, strict=True), at):
                context = before[prompt.rstrip()]
                if not context:
                    ids, context = [self._begin, *ids], 1
                n = len(ids) - context
                if n < 1 or not target:
                    raise ValueError(f"pair {i}: the target {target!r} adds no token to its prompt; give a target")
                if len(ids) > self.max_length:
                    raise ValueError(f"pair {i}: {len(ids)} tokens, the model takes {self.max_length}; cut the passage")
                rows.append((np.array(ids, np.int32), n))
        return rows

    def chat(self, prompt: str) -> str:
        """`prompt` as a user's turn in the model's chat template; as it is for a model without one."""
        if not self.tokenizer.chat_template:
            return prompt
        turn = [{"role": "user", "content": prompt}]
        return self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)

    def generate(self, prompts: Sequence[str], *, max_new_tokens: int, stop: Sequence[str] = (), temperature: float = 0.0,
                 top_p: float = 1.0, seed: int = 0, batch_tokens: int = 0, label: str = "",
                 done: Callable[[int, str], None] = lambda i, text: None) -> list[str]:
        """Continuations, cut before the first of the `stop` strings; special tokens are not shown.

        Args:
            temperature: 0 takes the likeliest token; else tokens are drawn from the softmax of logits / temperature.
            top_p: draws from the likeliest tokens alone whose probabilities reach this sum.
            seed: decides all draws. A prompt's draws depend on its place among `prompts`, not on how they are batched.
            batch_tokens: of a call on each device, the bound on memory; 0: what suits the device.
            done: `done(i, text)` hears of each as its batch finishes.

        Prompts that `chat` made bring their special tokens along.
        """
        if max_new_tokens < 1 or temperature < 0 or not 0 < top_p <= 1:
            raise ValueError(f"max_new_tokens={max_new_tokens}, temperature={temperature}, top_p={top_p}: must be at least 1, "
                             "at least 0, and above 0 up to 1")
        ids = []
        if prompts:
            ids = self.tokenizer(list(prompts), add_special_tokens=not self.tokenizer.chat_template)["input_ids"]
            ids = [row or [self._begin] for row in ids]
        for i, row in enumerate(ids):
            if len(row) + max_new_tokens > self.max_length:
                raise ValueError(f"prompt {i}: {len(row)} + {max_new_tokens} tokens, the model takes {self.max_length}; "
                                 "shorten it or make fewer new ones")
        keys = np.asarray(_keys(seed, np.arange(len(ids)))) if temperature and ids else None
        out = [""] * len(ids)
        with Progress(label or "generate", len(ids), "prompts", interval=10 if label else float("inf")) as bar:
            # A step reads all weights for however few rows, so more of them at once.
            for memory, seen, batch in self._shared([(row, len(row) - 1) for row in ids], batch_tokens or 4 * _batch_tokens()):
                members = [i or 0 for i in batch.members]
                draw = (layout.rows(keys[members]), temperature, top_p if top_p < 1 else None) if temperature else None
                new = self._continue(memory, seen, batch, draw, max_new_tokens)
                for i, row in zip(batch.members, new, strict=True):
                    if i is None:
                        continue
                    ends = np.flatnonzero(np.isin(row, self.stop_ids))
                    text = self.tokenizer.decode(row[: ends[0] if len(ends) else None], skip_special_tokens=True)
                    out[i] = text[: min((text.find(s) for s in stop if s in text), default=len(text))]
                    done(i, out[i])
                    bar.add()
        return out

    def _continue(self, memory, seen, batch: Batch, draw, steps: int) -> np.ndarray:
        """New tokens [b steps] at most; what follows a stop id is of no meaning.

        Room for them is doubled as it fills: what most rows never reach takes no memory and no time.
        """
        arrays = _arrays(batch)
        state = _start(self.model, self.cfg, memory, seen, arrays, batch.room, draw, self.stop_ids)
        room = 1
        while room < steps and not bool(state.done.all()):
            room = min(max(2 * room, ROOM), steps)
            state = _generate(self.model, self.cfg, memory, seen, arrays, state, draw, self.stop_ids, room)
        return layout.fetch(state.out)


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


@functools.partial(jax.jit, static_argnums=(1, 4))
def _prefix(model, cfg, tokens, mask, room: int):
    """Keys and values of every layer: [l p k s h] twice."""
    where = unpad.plan(mask, room)

    def attend(q, k, v, _):
        kept = tuple(unpad.spread(x, where).transpose(0, 2, 1, 3) for x in (k, v))
        return attention.attend_unpadded(q, k, v, where, causal=True, kernel=cfg.attention), kept

    positions = jnp.zeros_like(tokens) + jnp.arange(tokens.shape[1])
    return model.layers(tokens, positions, attend, cfg, where=where)[1]


def _go_on(model, cfg, memory, seen, batch, room: int, *, keep: bool):
    """What follows the prefixes: a stream of hidden states [b a d], and the rows' own keys and values if they are to be kept."""
    tokens, mask = batch["tokens"], batch["mask"]
    t = tokens.shape[1]
    by_row, by_seat = unpad.plan(mask, room), unpad.plan(batch["tokens_of"], room)
    allowed = jnp.tril(jnp.ones((t, t), bool)) & mask[:, None, :]

    def attend(q, k, v, cache):
        k, v = unpad.spread(k, by_row), unpad.spread(v, by_row)
        return attention.attend_shared(q, k, v, allowed, *cache, seen, batch["seats"], by_seat, by_row), (k, v) if keep else None

    return model.layers(tokens, batch["start"][:, None] + jnp.arange(t), attend, cfg, memory, by_row)


@functools.partial(jax.jit, static_argnums=(1, 5))
def _suffix(model, cfg, memory, seen, batch, room: int, where, wanted, blocks):
    """Log-probabilities [D p] of the tokens `wanted` right after the places `where` of each device's stream; computed are
    the first `blocks` blocks, one at a time, since a position's logits are as many as the vocabulary."""
    x, _ = _go_on(model, cfg, memory, seen, batch, room, keep=False)
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


@functools.partial(jax.tree_util.register_dataclass, data_fields=["made", "done", "mask", "own", "out"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class _State:
    """Rows on their way: after `made` tokens each."""

    made: jax.Array
    done: jax.Array  # bool [b]
    mask: jax.Array  # bool [b u]: own visible positions
    own: Any  # their keys and values, [l b u k h] twice; the last token's are still to come
    out: jax.Array  # int32 [b made]: tokens, then zeros


@jax.jit
def _keys(seed, i):
    """A key for the draws of each prompt [n 2]."""
    return jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(jax.random.key(seed), i)))(i)


def _choose(logits, draw, made):
    """The next token of each row, int32 [b], from its logits [b v]."""
    if draw is None:
        return jnp.argmax(logits, -1).astype(jnp.int32)
    keys, temperature, top_p = draw

    def one(logits, key, made, temperature, top_p):
        logits = logits / temperature
        if top_p is not None:
            likeliest = -jnp.sort(-logits)
            share = jax.nn.softmax(likeliest)
            least = jnp.min(jnp.where(jnp.cumsum(share) - share < top_p, likeliest, jnp.inf))
            logits = jnp.where(logits >= least, logits, -jnp.inf)
        noise = jax.random.gumbel(jax.random.fold_in(jax.random.wrap_key_data(key), made), logits.shape)
        return jnp.argmax(logits + noise).astype(jnp.int32)

    # Each device draws for its own rows, all of the vocabulary before it.
    rows = activation_spec("b")
    local = jax.shard_map(jax.vmap(one, in_axes=(0, 0, None, None, None)), in_specs=(rows, rows, P(), P(), P()), out_specs=rows)
    return local(jax.sharding.reshard(logits, rows), keys, jnp.asarray(made), jnp.float32(temperature), top_p)


@functools.partial(jax.jit, static_argnums=(1, 5, 7))
def _start(model, cfg, memory, seen, batch, room: int, draw, stop_ids: tuple[int, ...]) -> _State:
    """Rows with their first token."""
    x, own = _go_on(model, cfg, memory, seen, batch, room, keep=True)
    mask = batch["mask"]
    x = unpad.spread(x, unpad.plan(mask, room))
    first = _choose(model.logits(layout.pick(x, mask.sum(-1) - 1), cfg), draw, 0)
    # An empty row has nothing to wait for.
    return _State(jnp.int32(1), jnp.isin(first, jnp.array(stop_ids)) | ~mask.any(-1), mask, own, first[:, None])


def _seated(x, axis: int, seats):
    """What each device has of its own seats, in their order."""
    def one(x):
        spec = jax.typeof(x).sharding.spec
        take = jax.shard_map(lambda x, seats: jnp.take(x, seats, axis), in_specs=(spec, activation_spec("b")), out_specs=spec)
        return take(x, seats)

    return jax.tree.map(one, x)


@functools.partial(jax.jit, static_argnums=(1, 7, 8))
def _generate(model, cfg, memory, seen, batch, state: _State, draw, stop_ids: tuple[int, ...], room: int) -> _State:
    """Goes on until `room` tokens are made or every row has stopped."""
    more = room - state.out.shape[1]
    first = state.mask.shape[1] - state.out.shape[1] + 1  # own position of the first token made
    pad = lambda x: jnp.pad(x, ((0, 0), (0, more)))
    longer = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, more), (0, 0), (0, 0))), state.own)
    state = _State(state.made, state.done, pad(state.mask), longer, pad(state.out))
    position = batch["start"] + batch["mask"].sum(-1) - 1  # of each row's last own token
    stops = jnp.array(stop_ids)
    # A stream of one token a row.
    every = jnp.ones((len(position), 1), bool, out_sharding=activation_spec("b t"))
    memory, seen = _seated(memory, 1, batch["seats"]), _seated(seen, 0, batch["seats"])  # once, not at each step
    rows = len(position) // layout.batch_multiple()
    by_row, by_seat = unpad.plan(every, rows), unpad.plan(batch["rows_of"], rows)

    def step(state):
        at = first + state.made - 1
        mask = state.mask.at[:, at].set(True)

        def attend(q, k, v, caches):
            cache, mine = caches
            mine = tuple(jax.lax.dynamic_update_slice_in_dim(old, unpad.spread(new, by_row), at, axis=1)
                         for old, new in zip(mine, (k, v), strict=True))
            return attention.attend_shared(q, *mine, mask[:, None, :], *cache, seen, None, by_seat, by_row), mine

        token = jax.lax.dynamic_slice_in_dim(state.out, state.made - 1, 1, axis=1)
        x, own = model.layers(token, (position + state.made)[:, None], attend, cfg, (memory, state.own), by_row)
        token = _choose(model.logits(unpad.spread(x, by_row)[:, 0], cfg), draw, state.made)
        return _State(state.made + 1, state.done | jnp.isin(token, stops), mask, own, state.out.at[:, state.made].set(token))

    return jax.lax.while_loop(lambda state: (state.made < room) & ~state.done.all(), step, state)
