"""Generation with continuous batching: waiting prompts take the slots of rows that have ended.

A slot holds the keys and values of one row, in two parts of `suffix_length + ring` positions. The
first part is the row's prompt behind the prefix that all prompts share. The second part is a ring:
step g writes the new tokens of all rows at position g mod `ring`, and a row sees as many positions
back as it has generated tokens. So a step writes one slice, and no row's arrival moves another.

A prompt may be continued several times. Its rows arrive together: the prompt is computed once, and
its keys and values are copied into the slot of each row.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from ark_jax import layout
from ark_jax.layout import activation_spec
from ark_jax.models import attention, decoder, packing, prefix, prefix_attention, rotary, sampling
from ark_jax.models.decoding import decoding_copy, decoding_mesh, layers_stay_stacked, parts_of
from ark_jax.models.prefix_groups import common_length
from ark_jax.runtime.accelerator import device_in_use
from ark_jax.text import tokens as tk
from ark_jax.text.token_rows import TokenIds

UNUSED = -1  # in place of a token that no row needed any more
RING = 64  # positions of the ring at first, where it grows with the rows

# Keys and values of a layer, or of all in a stack `[l slots k places h]`; see `decoding.parts_of`.
Cache = tuple[Float[Array, "*l slots k places h"], Float[Array, "*l slots k places h"]]
Shape = tuple[int, ...]  # of a prefill on a device: prompts, their length, tokens in all


@dataclasses.dataclass(eq=False)
class Row:
    """One continuation of a prompt.

    Attributes:
        suffix: the prompt without the prefix that all prompts share.
        generated: the new tokens so far; the last one may be a stop id.
    """

    number: int
    prompt: int
    suffix: TokenIds
    generated: list[int] = dataclasses.field(default_factory=list)


Group = list[Row]  # of one prompt, which take their slots together


class RowState(NamedTuple):
    """What the next decoding step needs to know of the row in each slot."""

    token: Int[Array, " b"]  # the newest
    suffix_length: Int[Array, " b"]
    age: Int[Array, " b"]  # generated tokens before the newest
    live: Int[Array, " b"]  # 0 for an empty slot


class NewestToken(NamedTuple):
    """The newest token of each row, and what it sees of the cache."""

    place: Int[Array, ""]  # of its keys and values in the cache
    position: Int[Array, " b"]
    positions: Int[Array, "b s"]  # of all places of the cache
    mask: Bool[Array, "b s"]


class SharedPrefix(NamedTuple):
    """The prefix of all prompts on every device; keys and values are cut by `parts_of`."""

    parts: list[prefix.PrefixCache]
    mask: Bool[Array, "b s"]
    length: int


@dataclasses.dataclass
class Generation:
    """One run of continuations of token ids, greedy or sampled.

    Args:
        max_new_tokens: per row.
        draw: None takes the most probable tokens; otherwise how tokens are drawn, with the keys of
            all rows on the host.
        cache_positions: positions of keys and values on each device.
        prefill_tokens: prompt tokens of a device in one call.
        on_tokens: `on_tokens(number, tokens, ended)` is called after every few steps with all that
            row `number` has generated; a true result ends the row. `ended` is true if the row has
            met the limit or a stop id, which is then the last of the tokens.
    """

    model: decoder.Decoder
    cfg: decoder.Config
    stop_ids: tuple[int, ...]
    max_new_tokens: int
    draw: sampling.Sampling | None
    cache_positions: int
    prefill_tokens: int
    on_tokens: Callable[[int, list[int], bool], bool]

    def run(self, prompts: Sequence[TokenIds], samples: int = 1) -> None:
        """Continues every prompt, which must not be empty, `samples` times.

        Continuation j of prompt i is row i * samples + j.
        """
        self.callers_mesh = jax.sharding.get_mesh()
        mesh = decoding_mesh(self.model, self.cfg)
        self.model = decoding_copy(self.model, self.cfg, mesh)
        with jax.set_mesh(mesh):
            self._run(prompts, samples)

    def _run(self, prompts: Sequence[TokenIds], samples: int) -> None:
        """`run` on the mesh that suits decoding."""
        shared = _common_prefix(prompts)
        self.devices, self.step = layout.batch_multiple(), 0
        self.costs = packing.multiply_adds(self.model, self.cfg)
        self.suffix_length = _padded_length(max(map(len, prompts)) - len(shared))
        self.steps = min(steps_at_once(), tk.round_up(self.max_new_tokens, 8))
        self.max_ring = tk.round_up(self.max_new_tokens, self.steps)
        affordable = max(1, self.cache_positions // (self.suffix_length + self.max_ring))
        # If there are fewer prompts than devices, several devices share the rows of a prompt.
        self.group_size = min(affordable, -(-samples // max(1, self.devices // len(prompts))))
        groups = [
            [
                Row(i * samples + j, i, prompt[len(shared) :])
                for j in range(samples)[first : first + self.group_size]
            ]
            for i, prompt in enumerate(prompts)
            for first in range(0, samples, self.group_size)
        ]
        useful = tk.round_rows(-(-len(groups) // self.devices), 1) * self.group_size
        self.device_slots = min(affordable, useful)
        # An accelerator would compile a program for a smaller cache for longer than it saves.
        self.resizes = device_in_use().platform == "cpu"
        self.ring = min(RING, self.max_ring) if self.resizes else self.max_ring
        self.parts = parts_of(self.model.blocks, self.cfg.layers)
        self._compute_prefix(shared)
        self.slots: list[Row | None] = [None] * (self.devices * self.device_slots)
        self.cache = empty_cache(self.cfg, len(self.slots), self.suffix_length + self.ring)
        self.queue = self._plan_prefills(groups)
        while self.queue or any(self.slots):
            if self.resizes:
                self._resize_cache()
            self._admit()
            self._decode()

    def _compute_prefix(self, ids: TokenIds) -> None:
        """Computes the keys and values of the shared prefix on every device."""
        length = _padded_length(len(ids))
        tokens, mask = tk.pad_rows([ids] * self.devices, range(self.devices), self.devices, length)
        seen = layout.rows(mask)
        self.stacked = prefix.compute(self.model, self.cfg, layout.rows(tokens), seen, length)
        self.prefix = SharedPrefix(parts_of(self.stacked, self.cfg.layers), seen, len(ids))

    def _plan_prefills(self, groups: list[Group]) -> list[tuple[list[Group], Shape]]:
        """Cuts groups into prefills of one device, each with its shape; the last is to run first.

        Prompts go longest first, so that prompts of similar length share a prefill.
        """
        prefills: list[list[Group]] = []
        group_limit, tokens = max(1, self.device_slots // 4 // self.group_size), 0
        for group in sorted(groups, key=lambda group: (-len(group[0].suffix), group[0].number)):
            tokens += len(group[0].suffix)
            if not prefills or len(prefills[-1]) == group_limit or tokens > self.prefill_tokens:
                prefills.append([])
                tokens = len(group[0].suffix)
            prefills[-1].append(group)
        shapes = tk.share_shapes(
            list(map(_prefill_shape, prefills)), self._prefill_cost, self.costs["compilation"]
        )
        return list(zip(prefills, shapes, strict=True))[::-1]

    def _prefill_cost(self, shape: Shape) -> float:
        """Multiply-adds of a prefill."""
        prompts, length, tokens = shape
        pairs = prompts * length * (length + self.prefix.length)
        return tokens * self.costs["parameters"] + self.costs["attention"] * pairs

    def _admit(self) -> None:
        """Prefills waiting prompts, whose rows take free slots.

        A prefill runs when half of the devices have free slots for one each, or as many devices as
        prefills are left.
        """
        while self.queue:
            admitted = []
            for device in range(self.devices):
                first = device * self.device_slots
                slots = range(first, first + self.device_slots)
                free = [slot for slot in slots if self.slots[slot] is None]
                if self.queue and sum(map(len, self.queue[-1][0])) <= len(free):
                    groups, shape = self.queue.pop()
                    admitted.append((groups, free, shape))
            if len(admitted) < min((self.devices + 1) // 2, len(admitted) + len(self.queue)):
                self.queue += [(groups, shape) for groups, _, shape in admitted[::-1]]
                return
            self._prefill(admitted)

    def _prefill(self, admitted: list[tuple[list[Group], list[int], Shape]]) -> None:
        """Computes prompts into the slots of their rows, and the first new token of each row.

        Args:
            admitted: for each device in use the groups, slots for their rows, and the shape.
        """
        height, length, capacity = map(max, zip(*(shape for _, _, shape in admitted), strict=True))
        rows = np.full((self.devices * height, self.group_size), None)  # by prompt
        # An entry without a row has a slot past the end, so that its results are dropped.
        slots_in_device = np.full(rows.shape, self.device_slots, np.int32)
        for groups, free, _ in admitted:
            first = free[0] // self.device_slots * height
            slots = iter(free)
            for i, group in enumerate(groups, first):
                for j, row in enumerate(group):
                    slot = next(slots)
                    rows[i, j], slots_in_device[i, j] = row, slot % self.device_slots
                    self.slots[slot] = row
        filled = [i for i, row in enumerate(rows[:, 0]) if row]
        suffix_ids = [rows[i, 0].suffix for i in filled]
        tokens, mask = tk.pad_rows(suffix_ids, filled, len(rows), length)
        counts = mask.reshape(self.devices, -1).sum(1)
        suffixes = prefix.Suffixes(
            layout.rows(tokens),
            layout.rows(mask),
            prefix_lengths=layout.rows(np.full(len(rows), self.prefix.length, np.int32)),
            prefix_indices=layout.rows(np.zeros(self.devices, np.int32)),
            tokens_per_prefix=layout.rows(np.arange(capacity) < counts[:, None]),
        )
        self.cache, first_tokens = _prefill(
            self.model,
            self.cfg,
            self.stacked,
            self.prefix.mask,
            suffixes,
            capacity,
            self.cache,
            layout.rows(slots_in_device),
            self._row_sampling(rows.ravel()),
        )
        for row, token in zip(rows.flat, layout.fetch(first_tokens).tolist(), strict=True):
            if row:
                self._append(row, [token])

    def _row_sampling(self, rows: Iterable[Row | None]) -> sampling.Sampling | None:
        """How these rows draw their tokens, with their keys on the devices; None if greedy."""
        if self.draw is None:
            return None
        numbers = [row.number if row else 0 for row in rows]
        return self.draw._replace(keys=layout.rows(np.asarray(self.draw.keys)[numbers]))

    def _append(self, row: Row, tokens: list[int]) -> None:
        """Adds tokens to a row, up to a stop id or the limit. Frees its slot if the row ends.

        Raises:
            FloatingPointError: the model computed no finite logits before the row ended.
        """
        end = next((i for i, token in enumerate(tokens, 1) if token in self.stop_ids), None)
        new = tokens[:end][: self.max_new_tokens - len(row.generated)]
        if sampling.NOT_FINITE in new:
            raise FloatingPointError(
                f"prompt {row.prompt}: the logits of token {len(row.generated)} are NaN or "
                f"infinite; {decoder.NOT_FINITE_CAUSE}"
            )
        row.generated += new
        ended = new[-1] in self.stop_ids or len(row.generated) == self.max_new_tokens
        with jax.set_mesh(self.callers_mesh):
            ended = self.on_tokens(row.number, row.generated, ended) or ended
        if ended:
            self.slots[self.slots.index(row)] = None

    def _decode(self) -> None:
        """Runs several decoding steps of every row."""
        if not any(self.slots):
            return

        def column(value: Callable[[Row], int]) -> Array:
            """A value of the row in each slot, int32 `[slots]`; 0 for an empty slot."""
            return layout.rows(np.array([value(row) if row else 0 for row in self.slots], np.int32))

        state = RowState(
            token=column(lambda row: row.generated[-1]),
            suffix_length=column(lambda row: len(row.suffix)),
            age=column(lambda row: len(row.generated) - 1),
            live=column(lambda row: 1),
        )
        self.cache, tokens = _decode(
            self.model,
            self.parts,
            self.cfg,
            self.prefix,
            self.cache,
            state,
            self.step,
            self._row_sampling(self.slots),
            self.stop_ids,
            self.suffix_length,
            self.steps,
        )
        self.step += self.steps
        for row, new in zip(list(self.slots), layout.fetch(tokens).tolist(), strict=True):
            if row:
                self._append(row, [token for token in new if token != UNUSED])

    def _resize_cache(self) -> None:
        """Grows the ring for the next steps; drops positions and slots that no row needs."""
        live = [row for row in self.slots if row]
        suffix_length, ring, device_slots = self.suffix_length, self.ring, self.device_slots
        oldest = max((len(row.generated) for row in live), default=0)
        while ring < oldest - 1 + self.steps:
            ring = min(4 * ring, self.max_ring)
        lengths = [_padded_length(len(row.suffix)) for row in live]
        longest = max(lengths + [shape[1] for _, shape in self.queue])
        if longest <= suffix_length * 2 // 3:
            suffix_length = longest
        starts = range(0, len(self.slots), device_slots)
        by_device = [range(start, start + device_slots) for start in starts]
        occupied = max(sum(self.slots[i] is not None for i in slots) for slots in by_device)
        # By a fixed factor, since each number of slots is compiled separately.
        while not self.queue and 0 < occupied <= device_slots // 4:
            device_slots //= 4
        if (suffix_length, ring, device_slots) == (
            self.suffix_length,
            self.ring,
            self.device_slots,
        ):
            return
        places = self._ring_places(ring)
        places = np.concatenate([np.arange(suffix_length), places]).astype(np.int32)
        is_empty = lambda slot: self.slots[slot] is None
        chosen = [sorted(slots, key=is_empty)[:device_slots] for slots in by_device]
        rows = layout.rows(np.concatenate(chosen).astype(np.int32) % self.device_slots)
        for i, part in enumerate(self.cache):  # one by one: copies of all might not fit
            self.cache[i] = _select(part, rows, places)
        self.slots = [self.slots[slot] for slots in chosen for slot in slots]
        self.suffix_length, self.ring, self.device_slots = suffix_length, ring, device_slots

    def _ring_places(self, ring: int) -> np.ndarray:
        """For each place of a ring of size `ring`, the cache position that it is copied from."""
        last = self.step - 1
        steps_back = (last - np.arange(ring)) % ring
        return self.suffix_length + (last - np.minimum(steps_back, self.ring - 1)) % self.ring


def _common_prefix(prompts: Sequence[TokenIds]) -> np.ndarray:
    """The longest prefix that all prompts share and that leaves each at least one token."""
    first = np.asarray(prompts[0], np.int32)
    common = min(common_length(first, np.asarray(prompt, np.int32)) for prompt in prompts)
    return first[: min(common, min(map(len, prompts)) - 1)]


def _prefill_shape(groups: list[Group]) -> Shape:
    """The rounded shape of a prefill of these groups, whose first prompt is the longest."""
    lengths = [len(group[0].suffix) for group in groups]
    return (tk.round_rows(len(groups), 1), _padded_length(lengths[0]), _padded_length(sum(lengths)))


def _padded_length(n: int) -> int:
    """`n` rounded up to one of few multiples of 8, since each length is compiled separately."""
    return tk.round_rows(n, 8)


def steps_at_once() -> int:
    """Decoding steps between two looks at which rows have ended.

    Each look waits for the device, whose steps are short if it is an accelerator.
    """
    return 8 if device_in_use().platform == "cpu" else 32


def empty_cache(cfg: decoder.Config, slots: int, places: int) -> list[Cache]:
    """Zeros for keys and values."""
    shape: tuple[int, ...] = (slots, cfg.kv_heads, places, cfg.head_dim)
    count = cfg.layers
    if layers_stay_stacked():
        shape, count = (cfg.layers, *shape), 1
    zeros = lambda: jnp.zeros(shape, cfg.compute, out_sharding=_cache_spec(len(shape)))
    return [(zeros(), zeros()) for _ in range(count)]


def _cache_spec(axes: int) -> P:
    """How keys and values are cut, with or without the layers' axis."""
    return activation_spec("l b k s h" if axes == 5 else "b k s h")


@jax.jit
def _select(
    part: Cache, rows: Int[Array, " rows"], chosen: Int[Array, " j"]
) -> tuple[Float[Array, "*l rows k j h"], Float[Array, "*l rows k j h"]]:
    """Chosen rows and positions of keys and values; rows count within their device."""
    spec = _cache_spec(part[0].ndim)
    take = lambda x, rows, chosen: x[..., rows, :, :, :][..., chosen, :]
    take = jax.shard_map(take, in_specs=(spec, activation_spec("b"), P()), out_specs=spec)
    return tuple(take(x, rows, chosen) for x in part)


@functools.partial(jax.jit, static_argnums=(1, 5), donate_argnums=6)
def _prefill(
    model: decoder.Decoder,
    cfg: decoder.Config,
    stacked: prefix.PrefixCache,
    prefix_mask: Bool[Array, "prefixes s"],
    suffixes: prefix.Suffixes,
    capacity: int,
    cache: list[Cache],
    slots: Int[Array, "b copies"],
    draw: sampling.Sampling | None,
) -> tuple[list[Cache], Int[Array, " rows"]]:
    """Computes suffixes, and copies the keys and values of each into its slots.

    Args:
        slots: counted within the device. Past the end, the copy is dropped.

    Returns:
        The cache, and the first new token of each copy: those of one suffix side by side.
    """
    x, computed = prefix.run_suffixes(
        model, cfg, stacked, prefix_mask, suffixes, capacity, keep=True
    )
    x = packing.unpack(x, packing.plan_packing(suffixes.mask, capacity))
    last = layout.pick(x, suffixes.mask.sum(-1) - 1)
    logits = model.logits(last, cfg)
    logits = jnp.broadcast_to(logits[:, None], (*slots.shape, logits.shape[-1]))
    logits = logits.reshape(slots.size, -1, out_sharding=activation_spec("a v"))
    tokens = sampling.next_tokens(
        logits, draw, jnp.zeros(slots.size, jnp.int32, out_sharding=activation_spec("b"))
    )
    assert computed is not None
    is_stacked = cache[0][0].ndim == 5
    layers = [computed] if is_stacked else zip(*computed, strict=True)
    spec, new = (activation_spec("l " * is_stacked + letters) for letters in ("b k s h", "b s k h"))

    def write(
        old: Float[Array, "*l b k s h"],
        x: Float[Array, "*l rows t k h"],
        slots: Int[Array, "rows copies"],
    ) -> Float[Array, "*l b k s h"]:
        """Copies keys or values of each suffix into its slots of the cache `old`."""
        x = jnp.expand_dims(x.swapaxes(-3, -2).astype(old.dtype), -4)
        # One copy of a stack at a time, since all would take as much memory as the cache.
        count = 1 if is_stacked else slots.shape[1]
        for first in range(0, slots.shape[1], count):
            group = slots[:, first : first + count]
            copies = jnp.broadcast_to(x, (*x.shape[:-5], *group.shape, *x.shape[-3:]))
            old = old.at[..., group, :, : x.shape[-2], :].set(copies, mode="drop")
        return old

    write = jax.shard_map(write, in_specs=(spec, new, activation_spec("b t")), out_specs=spec)
    written = [
        (write(keys, new_keys, slots), write(values, new_values, slots))
        for (keys, values), (new_keys, new_values) in zip(cache, layers, strict=True)
    ]
    return written, tokens


@functools.partial(jax.jit, static_argnums=(2, 8, 9, 10), donate_argnums=4)
def _decode(
    model: decoder.Decoder,
    parts: list[decoder.Block],
    cfg: decoder.Config,
    shared: SharedPrefix,
    cache: list[Cache],
    rows: RowState,
    first_step: int | Int[Array, ""],
    draw: sampling.Sampling | None,
    stop_ids: tuple[int, ...],
    suffix_length: int,
    steps: int,
) -> tuple[list[Cache], Int[Array, "b steps"]]:
    """The cache after `steps` tokens of every row, and the tokens.

    Tokens are UNUSED after the step at which all rows have met a stop id.

    Args:
        parts: the model's layers, from `parts_of`.
        first_step: steps that this cache has seen, which decide the next position of the ring.
        suffix_length: positions of the cache before its ring.
    """
    ring, stops = cache[0][0].shape[-2] - suffix_length, jnp.array(stop_ids)

    def step(carry):
        """Generates one token of every row."""
        i, token, ended, cache, out = carry
        state = rows._replace(age=rows.age + i)
        newest = _newest_token(state, shared.length, (first_step + i) % ring, suffix_length, ring)
        x = model.embeddings(token[:, None], cfg)
        x, cache = _decode_layers(x, parts, cfg, shared, cache, newest)
        logits = model.logits(decoder.norm(x, model.norm, cfg)[:, 0], cfg)
        token = sampling.next_tokens(logits, draw, state.age + 1)
        out = jax.lax.dynamic_update_slice_in_dim(out, token[:, None], i, axis=1)
        return i + 1, jnp.maximum(token, 0), ended | jnp.isin(token, stops), cache, out

    def unfinished(carry):
        i, _, ended, _, _ = carry
        return (i < steps) & ~ended.all()

    zeros = jnp.zeros((len(rows.token), steps), jnp.int32, out_sharding=activation_spec("b t"))
    start = jnp.int32(0), rows.token, rows.live != 1, cache, zeros + UNUSED
    return jax.lax.while_loop(unfinished, step, start)[3:]


def _newest_token(
    rows: RowState, prefix_length: int | Array, place: Array, suffix_length: int, ring: int
) -> NewestToken:
    """The newest token of each row, whose keys and values go to a place of the ring."""
    ages = (place - jnp.arange(ring)) % ring  # steps since each place of the ring was filled
    in_suffix = jnp.arange(suffix_length) < rows.suffix_length[:, None]
    mask = jnp.concatenate([in_suffix, ages <= rows.age[:, None]], axis=1)
    position = prefix_length + rows.suffix_length + rows.age
    of_suffix = prefix_length + jnp.arange(suffix_length) + 0 * position[:, None]
    positions = jnp.concatenate([of_suffix, position[:, None] - ages], axis=1)
    return NewestToken(suffix_length + place, position, positions, mask)


def _decode_layers(
    x: Float[Array, "b 1 d"],
    parts: list[decoder.Block],
    cfg: decoder.Config,
    shared: SharedPrefix,
    cache: list[Cache],
    newest: NewestToken,
) -> tuple[Float[Array, "b 1 d"], list[Cache]]:
    """The last layer's output, and the cache with the keys and values of the newest token."""
    is_stacked = cache[0][0].ndim == 5
    new_cache: list = []
    angles = rotary.angles(newest.position[:, None], cfg.rotaries, cfg.head_dim)

    def write(old: Array, y: Array) -> Array:
        """Puts keys or values `[... k 1 h]` at the place of this step."""
        return jax.lax.dynamic_update_slice_in_dim(old, y, newest.place, axis=old.ndim - 2)

    def layer(x, inputs):
        """A layer's output, its new keys and values, and all that it has now."""
        block, old, of_prefix, is_local = inputs
        q, *new = block.qkv(x, rotary.of_layer(angles, is_local), cfg)
        mask, first = newest.mask, None
        if is_local is not None:
            first = newest.position + 1 - attention.reach(cfg, is_local, attention.FAR)
            mask &= newest.positions >= first[:, None]
        new = [y.swapaxes(1, 2) for y in new]
        written = tuple(map(write, old, new))
        attended = prefix_attention.attend_newest(
            q,
            prefix_attention.KeyValues(*written, mask),
            prefix_attention.KeyValues(*of_prefix, shared.mask),
            first,
        )
        return block.finish(x, attended, cfg), new, written

    local = decoder.local_layers(cfg)
    flags = [local] if is_stacked or local is None else list(local)
    flags = flags * (len(parts) // len(flags))
    for part in zip(parts, cache, shared.parts, flags, strict=True):
        if is_stacked:
            x, new = jax.lax.scan(lambda x, inputs: layer(x, inputs)[:2], x, part)
            written = tuple(map(write, part[1], new))
        else:
            x, _, written = layer(x, part)
        new_cache.append(written)
    return x, new_cache
