"""Continuous batching: rows that have ended leave their seats to waiting prompts after every few steps.

Each seat has keys and values for `tail + ring` positions. What follows the head that all prompts share stands in its first
part. New tokens of all rows are written side by side, those of step g at place g mod `ring` of the second part, of which a
row sees as many places back as it has made tokens: a step writes one slice, and nothing moves when a row comes or goes.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from ark_jax import layout
from ark_jax.layout import activation_spec
from ark_jax.models import attention, decoder, prefix, sampling, unpad
from ark_jax.text import tokens as tk

STEPS = 8  # between two looks at who has ended
RING = 64  # new tokens of a row that there is room for at first


@dataclasses.dataclass
class Row:
    """A prompt without the common head, and the tokens it has made."""

    number: int
    tail: Sequence[int]
    made: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Generation:
    """Greedy or drawn continuations of token ids, in one run.

    Args:
        limit: new tokens of a row at most.
        draw: `None`, or temperature, top_p (None: all tokens) and the seed of all draws.
        budget: positions of keys and values on each device.
        at_once: prompt tokens that a device takes in one call.
        ended: `ended(number, tokens, over)` hears what row `number` has made so far, after every few steps; true ends it. `over`
            says that it has ended by a stop id, which is not among the tokens, or at the limit.
    """

    model: decoder.Decoder
    cfg: decoder.Config
    stop_ids: tuple[int, ...]
    limit: int
    draw: tuple[float, float | None, int] | None
    budget: int
    at_once: int
    ended: Callable[[int, list[int], bool], bool]

    def run(self, prompts: Sequence[Sequence[int]]) -> None:
        low, high = min(prompts), max(prompts)  # any prompt lies between these two, and begins as they both do
        most = min(map(len, prompts)) - 1
        head = low[: next((i for i in range(most) if low[i] != high[i]), most)]
        rows = [Row(i, row[len(head) :]) for i, row in enumerate(prompts)]
        self.devices, self.step, self.start = layout.batch_multiple(), 0, len(head)
        self.tail, most = tk.round_length(max(len(row.tail) for row in rows)), tk.round_up(self.limit, STEPS)
        self.height = max(1, min(self.budget // (self.tail + most), tk.round_rows(-(-len(rows) // self.devices), 1)))
        self.ring = min(RING, most)
        self.blocks = _apart(self.model.blocks, self.cfg.layers)
        self._share(head)
        self.seats: list[Row | None] = [None] * (self.devices * self.height)
        self.own = _empty(self.cfg, len(self.seats), self.tail + self.ring)
        self._queue(rows)
        while self.queue or any(self.seats):
            self._fit(most)
            self._admit()
            self._advance()

    def _share(self, head: Sequence[int]) -> None:
        """The head's keys and values, on every device."""
        tokens, mask = tk.put([head] * self.devices, range(self.devices), self.devices, tk.round_length(max(len(head), 1)))
        self.seen = layout.rows(mask)
        stacked = prefix.compute(self.model, self.cfg, layout.rows(tokens), self.seen, tk.round_room(len(head)))
        self.stacked, self.memory = stacked, _apart(stacked, self.cfg.layers)

    def _queue(self, rows: list[Row]) -> None:
        """Streams of rows, the longest first, so that rows of about one length meet; each with the shape of its call."""
        streams: list[list[Row]] = []
        crowd = max(1, self.height // 4)
        for row in sorted(rows, key=lambda row: (-len(row.tail), row.number)):
            if not streams or len(streams[-1]) == crowd or \
                    sum(len(x.tail) for x in streams[-1]) + len(row.tail) > self.at_once:
                streams.append([])
            streams[-1].append(row)
        price = unpad.price(self.model, self.cfg)
        needs = [(tk.round_rows(len(some), 1), tk.round_length(len(some[0].tail)), tk.round_room(sum(len(x.tail) for x in some)))
                 for some in streams]
        cost = lambda n: n[2] * price["parameters"] + price["attention"] * n[0] * n[1] * (n[1] + self.start)
        self.queue = list(zip(streams, tk.alike(needs, cost), strict=True))[::-1]

    def _admit(self) -> None:
        """Waiting streams take free seats, where half of the devices, or as many as there are streams, have enough."""
        while self.queue:
            taken = []
            for device in range(self.devices):
                free = [seat for seat in range(device * self.height, (device + 1) * self.height) if self.seats[seat] is None]
                if self.queue and len(self.queue[-1][0]) <= len(free):
                    some, shape = self.queue.pop()
                    taken.append((some, free[: len(some)], shape))
            if len(taken) < min((self.devices + 1) // 2, len(taken) + len(self.queue)):
                self.queue += [(some, shape) for some, _, shape in taken[::-1]]
                return
            self._begin(taken)

    def _begin(self, taken) -> None:
        height, length, room = map(max, zip(*(shape for _, _, shape in taken), strict=True))
        at, where, tails = [], np.full(self.devices * height, self.height, np.int32), []
        members: list[Row | None] = [None] * len(where)
        for some, seats, _ in taken:
            device = seats[0] // self.height
            for i, (row, seat) in enumerate(zip(some, seats, strict=True), device * height):
                members[i], where[i], self.seats[seat] = row, seat % self.height, row
                at.append(i)
                tails.append(row.tail)
        tokens, mask = tk.put(tails, at, len(where), length)
        counts = mask.reshape(self.devices, -1).sum(1)
        batch = {"tokens": tokens, "mask": mask, "start": np.full(len(where), self.start, np.int32),
                 "seats": np.zeros(self.devices, np.int32), "tokens_of": np.arange(room) < counts[:, None]}
        self.own, first = _begin(self.model, self.cfg, self.stacked, self.seen, jax.tree.map(layout.rows, batch), room, self.own,
                                 layout.rows(where), self._draw(members))
        first = layout.fetch(first)
        for i in at:
            self._hear(members[i], [int(first[i])])

    def _draw(self, rows: list[Row | None]):
        if self.draw is None:
            return None
        temperature, top_p, seed = self.draw
        numbers = np.array([row.number if row else 0 for row in rows])
        return layout.rows(layout.fetch(sampling.keys(seed, numbers))), temperature, top_p

    def _hear(self, row: Row, new: list[int]) -> None:
        end = next((i for i, token in enumerate(new) if token in self.stop_ids), len(new))
        row.made += new[:end][: self.limit - len(row.made)]
        over = end < len(new) or len(row.made) == self.limit
        if self.ended(row.number, row.made, over) or over:
            self.seats[self.seats.index(row)] = None

    def _advance(self) -> None:
        """A few steps of every row."""
        if not any(self.seats):
            return
        column = lambda of, empty: layout.rows(np.array([of(row) if row else empty for row in self.seats], np.int32))
        state = {"token": column(lambda row: row.made[-1], 0), "size": column(lambda row: len(row.tail), 0),
                 "age": column(lambda row: len(row.made) - 1, 0), "live": column(lambda row: 1, 0)}
        self.own, out = _advance(self.model, self.blocks, self.cfg, self.memory, self.seen, self.own, state, self.start,
                                 self.step, self._draw(self.seats), self.stop_ids, self.tail)
        self.step += STEPS
        for row, new in zip(list(self.seats), layout.fetch(out).tolist(), strict=True):
            if row:
                self._hear(row, [token for token in new if token >= 0])

    def _fit(self, most: int) -> None:
        """Makes room for what rows will make next, and gives up what no row needs any more."""
        live = [row for row in self.seats if row]
        tail, ring, height = self.tail, self.ring, self.height
        oldest = max((len(row.made) for row in live), default=0)
        while ring < oldest - 1 + STEPS:
            ring = min(4 * ring, most)
        longest = max([tk.round_length(len(row.tail)) for row in live] + [shape[1] for _, shape in self.queue])
        if longest <= tail * 2 // 3:
            tail = longest
        crowd = max(sum(row is not None for row in self.seats[d * height : (d + 1) * height]) for d in range(self.devices))
        if not self.queue and crowd <= height // 4:
            height = max(1, crowd)
        if (tail, ring, height) == (self.tail, self.ring, self.height):
            return
        last = self.step - 1
        back = (last - np.arange(ring)) % ring
        places = np.concatenate([np.arange(tail), self.tail + (last - np.minimum(back, self.ring - 1)) % self.ring])
        chosen = [sorted(range(d * self.height, (d + 1) * self.height), key=lambda seat: self.seats[seat] is None)[:height]
                  for d in range(self.devices)]
        rows = layout.rows(np.concatenate(chosen).astype(np.int32) % self.height)
        for i, pair in enumerate(self.own):  # one by one: the memory of two would be too much
            self.own[i] = _move(pair, rows, places.astype(np.int32))
        self.seats = [self.seats[seat] for some in chosen for seat in some]
        self.tail, self.ring, self.height = tail, ring, height


@functools.partial(jax.jit, static_argnums=1)
def _apart(stacked, layers: int) -> list:
    """What is stacked by layer, one by one: a loop that reads slices of it would copy them at each turn."""
    return [jax.tree.map(operator.itemgetter(i), stacked) for i in range(layers)]


def _empty(cfg, rows: int, length: int) -> list:
    zeros = lambda: jnp.zeros((rows, cfg.kv_heads, length, cfg.head_dim), cfg.compute, out_sharding=activation_spec("b k s h"))
    return [(zeros(), zeros()) for _ in range(cfg.layers)]


@jax.jit
def _move(pair, rows, places):
    """Some of the rows and positions of a layer's keys and values."""
    spec = activation_spec("b k s h")
    take = lambda x, rows, places: x[rows][:, :, places]
    take = jax.shard_map(take, in_specs=(spec, activation_spec("b"), P()), out_specs=spec)
    return tuple(take(x, rows, places) for x in pair)


@functools.partial(jax.jit, static_argnums=(1, 5), donate_argnums=6)
def _begin(model, cfg, memory, seen, batch, room: int, own, where, draw):
    """Puts keys and values of tails into the seats `where` of their devices; and the first new tokens [b]."""
    x, kept = prefix.go_on(model, cfg, memory, seen, batch, room, keep=True)
    mask = batch["mask"]
    x = unpad.spread(x, unpad.plan(mask, room))
    first = sampling.choose(model.logits(layout.pick(x, mask.sum(-1) - 1), cfg), draw, jnp.zeros_like(where))
    spec, new = activation_spec("b k s h"), activation_spec("b s k h")

    def put(own, new, where):
        return own.at[where, :, : new.shape[1]].set(new.transpose(0, 2, 1, 3).astype(own.dtype), mode="drop")

    put = jax.shard_map(put, in_specs=(spec, new, activation_spec("b")), out_specs=spec)
    return [tuple(put(old, x[i], where) for old, x in zip(pair, kept, strict=True)) for i, pair in enumerate(own)], first


@functools.partial(jax.jit, static_argnums=(2, 10, 11), donate_argnums=5)
def _advance(model, blocks, cfg, memory, seen, own, state, start, step, draw, stop_ids: tuple[int, ...], tail: int):
    """STEPS more tokens [b STEPS] of every row, or -1 where all rows had stopped before."""
    size, age, live = state["size"], state["age"], state["live"] == 1
    ring, stops = own[0][0].shape[2] - tail, jnp.array(stop_ids)

    def one(carry):
        i, token, done, own, out = carry
        at = (step + i) % ring
        recent = (at - jnp.arange(ring)) % ring <= (age + i)[:, None]
        mask = jnp.concatenate([jnp.arange(tail) < size[:, None], recent], axis=1)
        angles = decoder.rope_angles((start + size + age + i)[:, None], cfg)
        x = layout.lookup(model.embed[...], token[:, None]).astype(cfg.compute)
        kept = []
        for block, head, pair in zip(blocks, memory, own, strict=True):
            q, *new = block.qkv(x, angles, cfg)
            pair = tuple(jax.lax.dynamic_update_slice_in_dim(old, y.swapaxes(1, 2), tail + at, axis=2)
                         for old, y in zip(pair, new, strict=True))
            x = block.finish(x, attention.attend_one(q, *pair, mask, *head, seen), cfg)
            kept.append(pair)
        token = sampling.choose(model.logits(decoder.rms_norm(x, model.norm[...], cfg.norm_eps)[:, 0], cfg), draw, age + i + 1)
        out = jax.lax.dynamic_update_slice_in_dim(out, token[:, None], i, axis=1)
        return i + 1, token, done | jnp.isin(token, stops), kept, out

    out = jnp.zeros((len(size), STEPS), jnp.int32, out_sharding=activation_spec("b t")) - 1
    carry = jax.lax.while_loop(lambda c: (c[0] < STEPS) & ~c[2].all(), one, (jnp.int32(0), state["token"], ~live, own, out))
    return carry[3], carry[4]
