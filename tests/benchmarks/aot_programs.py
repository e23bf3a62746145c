"""The package's compiled functions, with arguments as its stages give them, but abstract.

Shapes come from the planners that the stages use, shardings from the models and from `layout.put`.
Nothing is computed or stored.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P
from support import pod
from support.matrices import random_matrix

from ark_jax import layout
from ark_jax.estimate import steps
from ark_jax.estimate.steps import array, placed
from ark_jax.graph import pagerank, walk
from ark_jax.models import (
    decoder,
    decoding,
    encoder,
    generate,
    kernels,
    pair_heads,
    prefix,
    prefix_plan,
    retriever,
    sampling,
)
from ark_jax.models import token_probabilities as probabilities
from ark_jax.models.pooling import VectorForm
from ark_jax.retrieval import dense
from ark_jax.runtime.accelerator import device_in_use
from ark_jax.text import tokens as tk
from ark_jax.train import fit, groups, likelihood, listwise, losses, memory, policy


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much a device computes; texts are all as long as they may be.

    Attributes:
        questions: of a contrastive step, each with 30 passages.
        pieces: of GradCache; 0 and remat "auto" let the package choose.
        tokens: of a batch that is encoded or scored.
        prompts: of a policy step, each with `samples` replies.
        shared, suffix, ring: positions of a generation's cache.
    """

    questions: Callable[[int], int]  # of so many devices
    question: int
    passage: int
    remat: str
    pieces: int
    triple: int
    pair: int
    tokens: int
    prompts: int
    prompt: int
    reply: int
    samples: int
    slots: int
    shared: int
    suffix: int
    ring: int
    keys: int
    nodes: int


FULL = Scale(
    questions=lambda devices: min(256, 8 * max(devices, 2)),
    question=64,
    passage=512,
    remat="auto",
    pieces=0,
    triple=32,
    pair=128,
    tokens=16384,
    prompts=4,
    prompt=1536,
    reply=256,
    samples=8,
    slots=32,
    shared=256,
    suffix=1024,
    ring=256,
    keys=32768,
    nodes=100_000,
)
TINY = Scale(
    questions=lambda devices: devices,
    question=32,
    passage=256,
    remat="all",
    pieces=2,
    triple=32,
    pair=128,
    tokens=1024,
    prompts=6,
    prompt=256,
    reply=128,
    samples=2,
    slots=4,
    shared=256,
    suffix=128,
    ring=64,
    keys=8192,
    nodes=2000,
)
# No activation has as many numbers as a weight or a device's share of it. Layers are few, and no
# other loop runs as often.
TINY_SIZE = "tiny"
TINY_WIDTHS = {
    "vocab": 5003,
    "width": 320,
    "layers": 3,
    "heads": 24,
    "kv_heads": 8,
    "head_dim": 128,
    "ffn": 704,
}


class Program(NamedTuple):
    """A program that can be compiled.

    Attributes:
        weights: abstract, for what travels of them.
        predicted: bytes of a device, by the package; 0 if it does not predict them.
        attends: whether a flash kernel should be in it.
        note: what the package chose.
        rounds: of a loop that an argument ends.
    """

    lower: Callable[[], jax.stages.Lowered]
    weights: Any = ()
    predicted: float = 0
    attends: bool = False
    note: str = ""
    rounds: int | None = None


def put(x: np.ndarray, spec: P) -> jax.ShapeDtypeStruct:
    """`layout.put`, of which only type and sharding are kept."""
    dtype = jax.dtypes.canonicalize_dtype(np.asarray(x).dtype)
    return array(*np.shape(x), dtype=dtype, spec=spec)


# --- models -------------------------------------------------------------------------------------


def embedder(size: str) -> decoder.Config:
    """A retriever in training: float32 weights, products in bfloat16."""
    if size == TINY_SIZE:
        return dataclasses.replace(pod.config("0.6B"), **TINY_WIDTHS)
    return pod.config(size)


def language_model(size: str, dtype: str = "bfloat16") -> decoder.Config:
    """Qwen3: that of 8B has a head of its own."""
    vocab = {} if size == TINY_SIZE else {"vocab": 151_936}
    untied = size in ("8B", TINY_SIZE)
    return dataclasses.replace(embedder(size), tied=not untied, dtype=dtype, **vocab)


def model_of(cfg: decoder.Config) -> decoder.Decoder:
    return placed(lambda: decoder.Decoder(cfg, rngs=nnx.Rngs(0)))


def attends(cfg: Any, tokens: int) -> bool:
    """Whether the package attends texts of this length by a flash kernel on this device."""
    head, dtype = cfg.dims["h"], jnp.dtype(cfg.compute)
    return kernels.choose(cfg.attention, device_in_use(), dtype, head, tokens) != "xla"


def attends_prefix(cfg: decoder.Config, tokens: int, keys: int) -> bool:
    """Whether rows of so many tokens attend to prefixes of this length by a flash kernel."""
    head, dtype = cfg.dims["h"], jnp.dtype(cfg.compute)
    queries = cfg.heads // cfg.kv_heads * tokens
    kernel = kernels.choose_for_part(cfg.attention, device_in_use(), dtype, head, queries, keys)
    return kernel != "xla"


# --- training -----------------------------------------------------------------------------------


def step(
    objective: fit.Objective,
    model: Any,
    make_batch: Callable[[], Any],
    predicted: float,
    attends: bool,
    note: str,
) -> Program:
    """A step of AdamW, with all that `fit.train` passes."""
    lower = lambda: steps.lowered(objective, pod.OPTIMIZER, model, None, make_batch())
    return Program(lower, model, predicted, attends, note)


def chosen(
    cfg: Any,
    scale: Scale,
    texts: Callable[[int], Sequence[memory.Texts]],
    model: Any,
    most: int = 1,
    logits: float = 0,
) -> memory.Choice:
    """How the package computes a step; `most` pieces make sense."""
    return memory.choose(
        cfg,
        scale.remat,
        min(scale.pieces, most),
        texts,
        trained=memory.bytes_on_device(model),
        most_pieces=most,
        logits=logits,
    )


def contrastive(size: str, scale: Scale) -> Program:
    """ARK: questions against 30 passages each, in pieces."""
    cfg, devices = embedder(size), layout.batch_multiple()
    questions = scale.questions(devices)
    batch = pod.Batch(questions, scale.question, 30 * questions, scale.passage, 1)
    texts = functools.partial(pod.texts, batch)
    model = model_of(cfg)
    choice = chosen(cfg, scale, texts, model, most=batch.passages // devices)
    cfg = dataclasses.replace(cfg, remat=choice.remat)
    objective, given = steps.contrastive(cfg, texts(choice.pieces), choice.pieces)
    flash = attends(cfg, scale.passage)
    total, note = choice.memory.total, choice.describe()
    return step(objective, model, lambda: given, total, flash, note)


def triplets(size: str, scale: Scale) -> Program:
    """GPR: one tower, triples at three levels."""
    cfg, rows = embedder(size), (32, 96)  # questions and triples of a device
    texts = [memory.Texts(n, scale.triple, n * scale.triple) for n in rows]
    models = (model_of(cfg),)
    choice = chosen(cfg, scale, lambda _: texts, models)
    objective, batch = steps.triplet(dataclasses.replace(cfg, remat=choice.remat), texts)
    flash, note = attends(cfg, scale.triple), choice.describe()
    return step(objective, models, lambda: batch, choice.memory.total, flash, note)


def lists(size: str, scale: Scale) -> Program:
    """STAR: a cross-encoder like bge-base, four lists of 32 pairs on a device."""
    body = encoder.Config(
        vocab=30_522,
        width=768,
        layers=12,
        heads=12,
        ffn=3072,
        positions=512,
        pad=None,
        segments=2,
        norm_eps=1e-12,
        dtype="float32",
        compute="bfloat16",
    )
    if size == TINY_SIZE:
        narrow = {name: TINY_WIDTHS[name] for name in ("vocab", "width", "layers", "ffn")}
        body = dataclasses.replace(body, **narrow, heads=5)
    of_device, devices = 4 * 32, layout.batch_multiple()
    tokens = of_device * scale.pair
    form, first = VectorForm(("cls",), body.width), pair_heads.FirstLayer()
    cfg = pair_heads.PairConfig(body, "star", form, first, scale=20.0, typed=True)

    def create() -> pair_heads.PairModel:
        rngs = nnx.Rngs(0)
        return pair_heads.PairModel(
            encoder.Encoder(body, rngs=rngs), pair_heads.new_head(cfg, rngs=rngs)
        )

    model = placed(create)
    texts = [memory.Texts(of_device, scale.pair, tokens)]
    choice = chosen(body, scale, lambda _: texts, model)
    cfg = dataclasses.replace(cfg, body=dataclasses.replace(body, remat=choice.remat))
    rooms = pair_heads.Capacities(pairs=tokens)
    objective = listwise.ListwiseObjective(cfg, rooms, 1.0, losses.weighted_lists)
    pairs = of_device * devices
    texts_of = lambda dtype: array(pairs, scale.pair, dtype=dtype)
    table = lambda dtype: array(4 * devices, 32, dtype=dtype, spec=P())
    batch = {
        "pairs": (texts_of(np.int32), texts_of(bool), texts_of(np.int32)),
        "rows": table(np.int32),
        "present": table(bool),
        "weights": table(np.float32),
    }
    flash, note = attends(body, scale.pair), choice.describe()
    return step(objective, model, lambda: batch, choice.memory.total, flash, note)


def replies(size: str, scale: Scale, samples: int, loss: policy.PolicyLoss) -> Program:
    """A weighted likelihood of `samples` replies to each prompt."""
    cfg, prompts = language_model(size, "float32"), scale.prompts * layout.batch_multiple()
    values = [np.zeros(scale.reply, np.float32)] * samples
    ratio = None if loss.ratio == "none" else values
    drawn = [
        groups.Group(
            np.full(scale.prompt, number, np.int32),
            [np.zeros(scale.reply, np.int32)] * samples,
            np.ones(samples),
            ratio,
            ratio,
        )
        for number in range(prompts)
    ]
    shape = groups.BatchShape.holding([drawn])
    model = model_of(cfg)
    logits = memory.logits_bytes(cfg, probabilities.block_length(), trained=True)
    choice = chosen(cfg, scale, lambda _: shape.texts_of_device(), model, logits=logits)
    cfg = dataclasses.replace(cfg, remat=choice.remat)
    objective = likelihood.LikelihoodObjective(cfg, loss, entropy=ratio is not None)
    make_batch = lambda: likelihood.group_arrays(drawn, shape)
    flash, note = attends(cfg, scale.prompt), choice.describe()
    return step(objective, model, make_batch, choice.memory.total, flash, note)


def sft(size: str, scale: Scale) -> Program:
    """BAR-RAG: supervised training on one reply to a prompt."""
    return replies(size, scale, 1, policy.PolicyLoss(ratio="none"))


def grpo(size: str, scale: Scale) -> Program:
    """BAR-RAG: several replies, a ratio to the old policy, a KL term."""
    return replies(size, scale, scale.samples, policy.PolicyLoss(kl="k3"))


# --- inference ----------------------------------------------------------------------------------


def encode(size: str, scale: Scale) -> Program:
    """Vectors of as many long passages as a batch has."""
    cfg = embedder(size)
    shape = (scale.tokens // scale.passage * layout.batch_multiple(), scale.passage)
    model, arrays = model_of(cfg), (array(*shape), array(*shape, dtype=bool))
    lower = lambda: retriever._embed_jit.lower(
        model, cfg, VectorForm(("lasttoken",), cfg.width), scale.tokens, *arrays
    )
    held = memory.inference_bytes(cfg, memory.bytes_on_device(model), scale.tokens)
    return Program(lower, model, held, attends(cfg, scale.passage))


class Scoring(NamedTuple):
    """Arguments of a scoring call: ten answers to each chunk."""

    cfg: decoder.Config
    model: decoder.Decoder
    tokens: jax.ShapeDtypeStruct
    mask: jax.ShapeDtypeStruct
    capacity: int
    suffixes: prefix.SlotArrays
    suffix_capacity: int


def scoring(size: str, scale: Scale) -> Scoring:
    """One device's plan, for all devices."""
    cfg, length = language_model(size), scale.passage
    rows = [
        (np.concatenate([np.full(length, chunk), np.full(50, -answer)]).astype(np.int32), length)
        for chunk in range(2 * scale.tokens // length)
        for answer in range(1, 11)
    ]
    plan = next(iter(prefix_plan.plan_batches(rows, budget=scale.tokens, devices=1)))
    batch = plan.suffix_batches[0]
    devices = layout.batch_multiple()
    on_all = lambda x: array(
        len(x) * devices, *x.shape[1:], dtype=jax.dtypes.canonicalize_dtype(x.dtype)
    )
    suffixes = prefix.SlotArrays(*(on_all(getattr(batch, x)) for x in prefix.SlotArrays._fields))
    arrays = on_all(plan.tokens), on_all(plan.mask)
    return Scoring(cfg, model_of(cfg), *arrays, plan.capacity, suffixes, batch.capacity)


def prefixes(size: str, scale: Scale) -> Program:
    """Scoring: keys and values of chunks."""
    s = scoring(size, scale)
    lower = lambda: prefix.compute.lower(s.model, s.cfg, s.tokens, s.mask, s.capacity)
    places = math.prod(s.tokens.shape) // layout.batch_multiple()
    weights = memory.bytes_on_device(s.model)
    held = memory.inference_bytes(s.cfg, weights, s.capacity, places)
    return Program(lower, s.model, held, attends(s.cfg, s.tokens.shape[1]))


def suffixes(size: str, scale: Scale) -> Program:
    """Scoring: log-probabilities of answers behind their chunks."""
    s = scoring(size, scale)
    cache = kept_prefixes(s.cfg, *s.tokens.shape)
    places = tk.round_up(s.suffix_capacity, probabilities.block_length())
    blocks = places // probabilities.block_length()
    targets = array(layout.batch_multiple(), places)
    lower = lambda: probabilities.suffix_log_probs.lower(
        s.model, s.cfg, cache, s.mask, s.suffixes, s.suffix_capacity, targets, targets, blocks
    )
    flash = attends_prefix(s.cfg, s.suffixes.tokens.shape[1], s.tokens.shape[1])
    devices, length = layout.batch_multiple(), s.tokens.shape[1]
    held = memory.suffix_bytes(
        s.cfg,
        memory.bytes_on_device(s.model),
        s.suffix_capacity,
        cached=s.tokens.size // devices,
        read=len(s.suffixes.tokens) // devices * length,
        positions=probabilities.block_length(),
    )
    return Program(lower, s.model, held, flash, rounds=blocks)


def kept_prefixes(cfg: decoder.Config, rows: int, length: int) -> prefix.PrefixCache:
    """What `prefix.compute` returns."""
    shape = (cfg.layers, rows, cfg.kv_heads, length, cfg.head_dim)
    spec = layout.activation_spec("l b k s h")
    return (array(*shape, dtype=cfg.compute, spec=spec),) * 2


class Continuing(NamedTuple):
    """What both programs of a generation take, on the mesh that the package chooses for it."""

    mesh: tuple[int, int, int]
    cfg: decoder.Config
    model: decoder.Decoder
    stacked: prefix.PrefixCache
    mask: jax.ShapeDtypeStruct
    cache: list
    slots: int  # of all devices
    note: str


def continuing(size: str, scale: Scale) -> Continuing:
    cfg = language_model(size)
    with contextlib.ExitStack() as stack:
        if size == TINY_SIZE:  # cut its weights as if they were those of a large model
            stack.enter_context(mock.patch.object(decoding, "device_memory", lambda: 0))
        mesh = decoding.decoding_shape(model_of(cfg), cfg)
    with on_mesh(mesh):
        model, devices = model_of(cfg), layout.batch_multiple()
        shape, slots = (devices, scale.shared), scale.slots * devices
        mask = array(*shape, dtype=bool)
        stacked = kept_prefixes(cfg, *shape)
        cache = placed(lambda: generate.empty_cache(cfg, slots, scale.suffix + scale.ring))
    note = "mesh " + " x ".join(map(str, mesh))
    return Continuing(mesh, cfg, model, stacked, mask, cache, slots, note)


def drawn(rows: int) -> sampling.Sampling:
    return sampling.Sampling(array(rows, 2, dtype=np.uint32), 1.0, 0.95)


def prefill(size: str, scale: Scale) -> Program:
    """Generation: prompts into the slots of their replies."""
    x = continuing(size, scale)
    with on_mesh(x.mesh):
        devices = layout.batch_multiple()
        prompts = scale.slots // scale.samples * devices
        capacity = scale.slots // scale.samples * scale.suffix
        new = prefix.Suffixes(
            array(prompts, scale.suffix),
            array(prompts, scale.suffix, dtype=bool),
            array(prompts),
            array(devices),
            array(devices, capacity, dtype=bool),
        )
        slots, draw = array(prompts, scale.samples), drawn(prompts * scale.samples)
        flash = attends_prefix(x.cfg, scale.suffix, scale.shared)
        kept = memory.cache_bytes(x.cfg, places(scale))
        weights = memory.bytes_on_device(x.model)
        held = kept + memory.inference_bytes(x.cfg, weights, capacity, capacity)
    arguments = (x.model, x.cfg, x.stacked, x.mask, new, capacity, x.cache, slots, draw)
    return Program(lowering(x.mesh, generate._prefill, *arguments), x.model, held, flash, x.note)


def decoding_bytes(cfg: Any, weights: float, rows: int, cached: int) -> float:
    """Bytes that a device holds while it generates a token of each row.

    Args:
        weights: bytes of the weights on a device.
        cached: tokens of all rows and of their prefix, with places that are free.
    """
    # Logits, their exponentials and their order, of which top-p takes sums.
    return weights + memory.cache_bytes(cfg, cached) + 3 * 4 * rows * cfg.vocab


def decode(size: str, scale: Scale) -> Program:
    """Generation: tokens of every reply, drawn by top-p, up to the next look at them."""
    x, steps = continuing(size, scale), generate.steps_at_once()
    with on_mesh(x.mesh):
        parts_of = lambda tree: decoding.parts_of(tree, x.cfg.layers)
        parts, of_prefix = placed(parts_of, x.model.blocks), placed(parts_of, x.stacked)
        shared = generate.SharedPrefix(of_prefix, x.mask, scale.shared)
        state = generate.RowState(*(array(x.slots) for _ in generate.RowState._fields))
        rest = (state, 0, drawn(x.slots), (151_645,), scale.suffix, steps)
        weights = memory.bytes_on_device(x.model)
        held = decoding_bytes(x.cfg, weights, scale.slots, places(scale))
    arguments = (x.model, parts, x.cfg, shared, x.cache, *rest)
    lower = lowering(x.mesh, generate._decode, *arguments)
    return Program(lower, x.model, held, note=x.note, rounds=steps)


def places(scale: Scale) -> int:
    """Tokens whose keys and values a device keeps in a generation."""
    return scale.shared + scale.slots * (scale.suffix + scale.ring)


@contextlib.contextmanager
def on_mesh(shape: tuple[int, ...]) -> Iterator[None]:
    """Inside, the current mesh's devices have this shape, be they known or only counted."""
    mesh, axis_types = jax.sharding.get_mesh(), (AxisType.Explicit,) * 3
    if mesh.empty:
        abstract = AbstractMesh(shape, layout.AXES, axis_types=axis_types)
        with jax.sharding.use_abstract_mesh(abstract):
            yield
    else:
        with jax.set_mesh(Mesh(mesh.devices.reshape(shape), layout.AXES, axis_types=axis_types)):
            yield


def lowering(mesh: tuple[int, ...], function: Any, *arguments: Any) -> Callable:
    """What lowers a compiled function on a mesh of this shape."""

    def lower() -> jax.stages.Lowered:
        with on_mesh(mesh):
            return function.lower(*arguments)

    return lower


# --- search and graphs --------------------------------------------------------------------------


def candidates(size: str, scale: Scale) -> Iterator[Any]:
    """Arguments of a search for ten keys: 1,024 queries in bfloat16, and a block of keys."""
    devices, width, count = layout.batch_multiple(), embedder(size).width, 2 * 10 + 24
    keys = tk.round_up(scale.keys, dense.WORD * devices)
    yield array(1024, width, dtype=jnp.bfloat16, spec=P())
    yield array(keys, width, dtype=jnp.bfloat16)
    yield from (0, scale.keys)
    yield from dense._no_candidates(1024, count)


def top_k(size: str, scale: Scale) -> Program:
    """Search: the best keys so far and those of a block."""
    arguments = list(candidates(size, scale))
    return Program(lambda: dense._update_candidates.lower(*arguments))


def top_k_merge(size: str, scale: Scale) -> Program:
    """Search: the best keys of all devices."""
    scores = list(candidates(size, scale))[-2:]
    return Program(lambda: dense._merge_shards.lower(*scores))


def laid_out(scale: Scale, shard: str) -> tuple[walk.Walk, int, P, P]:
    """A graph with ten edges a node, columns of seeds, and the specs of `[rows columns]` and
    `[columns]`."""
    graph = walk.Walk(random_matrix(scale.nodes, 10 * scale.nodes, True), shard=shard)
    spread = shard == "nodes"
    specs = (pagerank._spec(spread, 2), pagerank._spec(spread, 1))
    return graph, pagerank.block_size(graph), *specs


def ranks(size: str, scale: Scale, shard: str = "seeds") -> Program:
    """PageRank in float32; every device has the graph, and seeds of its own."""
    graph, columns, block, column = laid_out(scale, shard)
    source = array(len(graph.strength), columns, dtype=np.float32, spec=block)
    bound = array(columns, dtype=np.float32, spec=column)
    lower = lambda: pagerank._iterate.lower(
        graph.edges("float32"),
        source,
        1.0,
        bound,
        0.85,
        1000,
        spread=shard == "nodes",
        reversible=graph.reversible,
    )
    return Program(lower)


def ranks_by_nodes(size: str, scale: Scale) -> Program:
    """PageRank in float32; every device has a part of the graph."""
    return ranks(size, scale, "nodes")


def residuals(size: str, scale: Scale) -> Program:
    """PageRank's residual in float64; a run computes those of TPUs on the host."""
    graph, columns, block, _ = laid_out(scale, "seeds")
    rows = len(graph.strength)
    kept = {"spread": False, "reversible": graph.reversible}

    def lower() -> jax.stages.Lowered:
        with jax.enable_x64(True):
            edges, x = graph.edges("float64"), array(rows, columns, dtype=np.float64, spec=block)
            return pagerank._residual.lower(edges, x, x, 0.85, **kept)

    return Program(lower)


PROGRAMS: dict[str, Callable[[str, Scale], Program]] = {
    "contrastive step": contrastive,
    "triplet step": triplets,
    "listwise step": lists,
    "sft step": sft,
    "grpo step": grpo,
    "scoring, prefixes": prefixes,
    "scoring, suffixes": suffixes,
    "encode": encode,
    "prefill": prefill,
    "decode": decode,
    "top-k": top_k,
    "top-k, merged": top_k_merge,
    "PageRank": ranks,
    "PageRank, by nodes": ranks_by_nodes,
    "PageRank, residuals": residuals,
}
# What they hold, the package predicts.
PREDICTED = (
    *("contrastive step", "triplet step", "listwise step", "sft step", "grpo step"),
    *("scoring, prefixes", "scoring, suffixes", "encode", "prefill", "decode"),
)
# They have one size.
ALONE = ("listwise step", "PageRank", "PageRank, by nodes", "PageRank, residuals")


def program(name: str, size: str, **choices: Any) -> Program:
    """A program on the current mesh; `choices` are fields of `Scale`."""
    scale = dataclasses.replace(TINY if size == TINY_SIZE else FULL, **choices)
    with mock.patch.object(layout, "put", put):
        made = PROGRAMS[name](size, scale)

    def lower() -> jax.stages.Lowered:
        with mock.patch.object(layout, "put", put):  # edges of graphs are placed when asked for
            return made.lower()

    return made._replace(lower=lower)
