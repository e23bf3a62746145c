"""A training step on every mesh: the same numbers, nothing travels that need not; real sizes,
without allocating; bfloat16."""

import collections
import dataclasses
import functools
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from support import pod, program_text, tiny

from ark_jax import layout
from ark_jax.models import hf, prefix, retriever, token_probabilities
from ark_jax.models.pooling import VectorForm
from ark_jax.train import fit, optim
from ark_jax.train.contrastive import ContrastiveObjective

# Compiled in half the time; partitioning and the joining of collectives are the same.
SHAPES = [(2, 2, 2), (1, 8, 1), (4, 1, 2)]
QUERIES, SHORT, CHUNKS, LONG, PIECES = (
    16,
    10,
    64,
    20,
    2,
)  # rows and padded lengths; no size is one of the model's

# A step takes ten seconds to compile: one is tested always, the others where there is time.
STEPS = pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("qwen3", (2, 2, 2)),
        *[
            pytest.param(family, shape, marks=pytest.mark.slow)
            for family, shape in [
                ("qwen3", (1, 8, 1)),
                ("qwen3", (4, 1, 2)),
                ("bert", (2, 2, 2)),
                ("bert", (1, 8, 1)),
                ("bert", (4, 1, 2)),
            ]
        ],
    ],
    ids=str,
)


@functools.cache
def checkpoint(family: str) -> str:
    return str(tiny.write(Path(tempfile.mkdtemp()), family))


def opened(family: str, compute: str = "float32"):
    """(model, config, pooling) of a tiny checkpoint on the mesh that is set, without a head, as a
    retriever has it."""
    model, cfg, _ = hf.load_model(checkpoint(family), compute=compute, head=False)
    if family == "bert":
        return model, cfg, "mean"
    return model, dataclasses.replace(cfg, remat="all"), "lasttoken"


def batch() -> dict:
    """Two positives and all other chunks as negatives for each question but one, which has none;
    lengths of all kinds."""
    random = np.random.default_rng(0)
    texts = lambda rows, length: (
        random.integers(1, tiny.VOCAB, (rows, length)).astype(np.int32),
        np.arange(length) < random.integers(1, length + 1, (rows, 1)),
    )
    positive = np.arange(CHUNKS) // 2 == np.arange(QUERIES)[:, None]
    positive[3] = False
    return {
        "queries": texts(QUERIES, SHORT),
        "passages": texts(CHUNKS, LONG),
        "positive": positive,
        "negative": ~positive,
    }


def forms(pooling: str, cfg) -> tuple[VectorForm, VectorForm]:
    return (VectorForm((pooling,), cfg.width),) * 2


def rooms(pieces: int) -> tuple[int, ...]:
    """Room for all that a device could hold."""
    return pod.rooms(QUERIES * SHORT, CHUNKS * LONG // pieces)


@functools.cache
def step(family: str, shape: tuple[int, int, int]) -> tuple[dict, list[np.ndarray], str]:
    """One real training step: its metrics, the gradient of every weight, the compiled program."""
    with jax.set_mesh(layout.make_mesh(shape)):
        model, cfg, pooling = opened(family)
        objective = ContrastiveObjective(cfg, forms(pooling, cfg), PIECES, rooms(PIECES), 0.05, ())
        optimizer = optim.adamw(weight_decay=0.01, clip=1e9)
        state = fit.State.create(model, optimizer)
        inputs = jax.tree.map(layout.rows, batch())
        program = fit.train_step.lower(objective, optimizer, state, None, inputs, 1e-3)
        compiled = program.compile()
        new, metrics = compiled(state, None, inputs, 1e-3)
        # Nothing is clipped, so that Adam's first moment is a tenth of the gradient.
        gradient = [10 * np.asarray(x) for x in jax.tree.leaves(new.opt[1].mu)]
        return {name: float(x) for name, x in metrics.items()}, gradient, compiled.as_text()


@STEPS
def test_a_training_step_on_a_mesh_equals_one_device(family, shape, capfd):
    """Loss and every gradient, in two pieces; hidden states and logits are compared in
    test_models.py."""
    (metrics, gradient, _), (wanted, wanted_gradient, _) = (
        step(family, shape),
        step(family, (1, 1, 1)),
    )
    assert not re.search(
        "involuntary full rematerialization", capfd.readouterr().err, re.IGNORECASE
    )
    assert metrics == pytest.approx(wanted, rel=2e-6, abs=1e-7)
    largest = [np.abs(value).max() for value in wanted_gradient]
    for ours, value, highest in zip(gradient, wanted_gradient, largest, strict=True):
        # BERT's key biases move all scores of a row alike: their gradient is nothing but rounding.
        np.testing.assert_allclose(ours, value, rtol=0, atol=1e-5 * highest + 1e-7 * max(largest))
    assert sum(highest > 1e-3 * max(largest) for highest in largest) >= len(largest) - 1


# --- what travels --------------------------------------------------------------------------------


def counted(moves: list[program_text.Moved]) -> collections.Counter:
    """Arrays by kind and shape, as they stand in the program: what a loop repeats is one."""
    return collections.Counter((x.kind, x.shape) for x in moves if len(x.shape) > 1)


class Sizes:
    """What a device holds and gets, from the meaning of the axes: rows go over data and fsdp, heads
    and ffn over tensor; a
    layer's matrix is gathered over fsdp while it is used; tables are cut by column over both."""

    def __init__(self, cfg, shape: tuple[int, int, int]):
        self.data, self.fsdp, self.tensor = shape
        self.cfg, self.bert = cfg, hasattr(cfg, "positions")
        d, f = cfg.width, cfg.ffn // self.tensor
        self.heads = (cfg.heads // self.tensor, cfg.dims["h"])
        self.key_heads = (cfg.dims.get("k", cfg.heads) // self.tensor, cfg.dims["h"])
        self.matrices = [
            (d, *self.heads),
            (d, *self.key_heads),
            (d, *self.key_heads),
            (math.prod(self.heads), d),
            (d, f),
            *([] if self.bert else [(d, f)]),
            (f, d),
        ]
        # The product with o has heads as one axis, on a CPU the gradients of q, k and v too.
        self.gradients = [
            (d, math.prod(rest)) if first == d else (first, *rest) for first, *rest in self.matrices
        ]
        self.columns = d // self.tensor // self.fsdp

    def forward(self, rows: int, length: int) -> collections.Counter:
        """What the hidden states of `rows` texts take: every weight once a layer, tokens and
        columns of the embeddings once,
        two sums a layer. Nothing is as large as the vocabulary, nothing but token ids has more rows
        than a device's own."""
        local_rows, d = rows // self.data // self.fsdp, self.cfg.width
        out = collections.Counter()
        if self.fsdp > 1:
            out.update(("all-gather", matrix) for matrix in self.matrices)
            out["all-gather", (rows // self.data, length)] += 1  # token ids
            out["all-to-all", (local_rows, length, self.columns)] += 1
        if self.tensor > 1:
            out["all-gather", (local_rows, length, d)] += 1  # the columns of the embeddings
            out["all-reduce", (local_rows * length, d)] += 2  # the products with o and down
        if self.bert and self.fsdp * self.tensor > 1:
            out["all-gather", (length, d)] += 1  # positions
        return out

    def backward(self, rows: int, length: int) -> collections.Counter:
        """What their gradient takes beyond that."""
        local_rows, d = rows // self.data // self.fsdp, self.cfg.width
        out = collections.Counter()
        if self.fsdp > 1:
            out.update(("all-gather", matrix) for matrix in self.matrices)
            # Sums of which a device keeps its part: GPU and TPU compilers make them
            # reduce-scatters, XLA:CPU does not.
            out.update(("all-reduce", matrix) for matrix in self.gradients)
            out["all-to-all", (local_rows, length, self.columns)] += 1
        if self.data > 1:
            out.update(
                ("all-reduce", tuple(n // self.fsdp if n == d else n for n in matrix))
                for matrix in self.gradients
            )
            out["all-reduce", (self.cfg.vocab, self.columns)] += 1
        if self.tensor > 1:
            # The transposed products with q, k, v, up and gate, each summed by
            # itself; those compilers make them two.
            out["all-reduce", (local_rows * length, d)] += 4 if self.bert else 5
        return out + (self._biases(length) if self.bert else self._again(local_rows * length))

    def _biases(self, length: int) -> collections.Counter:
        """The gradients of what every device has whole: biases of q, k and v, and positions."""
        out = collections.Counter(
            {("all-reduce", self.heads): 3, ("all-reduce", (length, self.cfg.width)): 1}
        )
        if self.tensor > 1:
            out["all-gather", (self.cfg.heads, self.heads[1])] += 3
        return out

    def _again(self, tokens: int) -> collections.Counter:
        """A decoder's layers are computed again, but for the product with down, which no gradient
        asks for."""
        out = collections.Counter()
        if self.fsdp > 1:
            out.update(("all-gather", matrix) for matrix in self.matrices[:-1])
        if self.tensor > 1:
            out["all-reduce", (tokens, self.cfg.width)] += 1  # the product with o
        return out

    def training_step(
        self, queries: int, short: int, passages: int, long: int, pieces: int
    ) -> collections.Counter:
        """GradCache encodes each piece twice, for its vectors and for its gradient."""
        piece = passages // pieces
        out = self.forward(queries, short) + self.backward(queries, short)
        out += self.forward(piece, long) + self.forward(piece, long) + self.backward(piece, long)
        # Every question is compared with every passage of the global batch.
        out.update(
            [("all-gather", (passages, self.cfg.width)), ("all-reduce", (passages, self.cfg.width))]
        )
        return out

    def explain(self, moves: list[program_text.Moved], wanted: collections.Counter) -> None:
        """Asserts that what travels is what is wanted; a weight, gathered once for two uses, may
        travel less often. Vectors and
        numbers (norms, losses) are not counted."""
        moves = counted(moves)
        assert not moves - wanted, "more travels than must"
        assert set(wanted - moves) <= {("all-gather", matrix) for matrix in self.matrices}, (
            "less travels than was said"
        )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("family", ["qwen3", "bert"])
def test_the_collectives_of_a_forward_pass_are_as_derived(family, shape):
    with jax.set_mesh(layout.make_mesh(shape)):
        model, cfg, pooling = opened(family)
        lowered = retriever._embed_jit.lower(
            model, cfg, forms(pooling, cfg)[0], None, *map(layout.rows, batch()["queries"])
        )
    assert counted(program_text.collectives(lowered.compile().as_text())) == Sizes(
        cfg, shape
    ).forward(QUERIES, SHORT)


@STEPS
def test_the_collectives_of_a_training_step_are_as_derived(family, shape):
    with jax.set_mesh(layout.make_mesh(shape)):
        sizes = Sizes(opened(family)[1], shape)
    sizes.explain(
        program_text.collectives(step(family, shape)[2]),
        sizes.training_step(QUERIES, SHORT, CHUNKS, LONG, PIECES),
    )


def test_collectives_in_loops_are_counted_with_bytes_and_repeats():
    def local(x):
        inner = lambda x, _: (jax.lax.psum(jnp.sin(x), "fsdp") / 8, None)
        outer = lambda x, _: (jnp.sin(jax.lax.scan(inner, x, length=5)[0]), None)
        return jax.lax.all_gather(jax.lax.scan(outer, x, length=3)[0], "data", tiled=True)

    with jax.set_mesh(layout.make_mesh((2, 4, 1))):
        run = jax.jit(jax.shard_map(local, in_specs=P("data"), out_specs=P(), check_vma=False))
        abstract = pod.on(jax.sharding.get_mesh(), (6, 7), jnp.float32, P("data"))
        text = run.lower(abstract).compile().as_text()
    # Each of the two groups has three rows.
    moves = program_text.collectives(text)
    assert [x._replace(loops=()) for x in moves] == [
        program_text.Moved("all-reduce", (3, 7), 84, 15, 4),
        program_text.Moved("all-gather", (6, 7), 168, 1, 2),
    ]
    assert [[loop.rounds for loop in x.loops] for x in moves] == [[3, 5], []]


# --- real sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", pod.SIZES)
def test_a_real_model_can_be_traced_for_a_pod(size):
    """Its training step, on a mesh of which there is not a single device here, down to what a TPU's
    compiler is given."""
    mesh = AbstractMesh(pod.SHAPE, layout.AXES, axis_types=(AxisType.Explicit,) * 3)
    with jax.sharding.use_abstract_mesh(mesh):
        assert layout.batch_multiple() == 64
        objective, state, batch = pod.abstract(pod.config(size), pod.BATCH)
        encode = lambda model, texts: retriever.embed(
            model, objective.cfg, VectorForm(("lasttoken",), 256), None, *texts
        )
        vectors = jax.eval_shape(encode, state.trainable, batch["passages"])
        traced = fit.train_step.trace(objective, pod.OPTIMIZER, state, None, batch, 1e-5)
        if size == "8B":
            assert "stablehlo" in traced.lower(lowering_platforms=("tpu",)).as_text()
    described = vectors.shape, vectors.dtype, vectors.sharding.spec
    assert described == ((pod.BATCH.passages, 256), jnp.float32, P(layout.BATCH, None))
    new, metrics = traced.out_info
    describe = lambda state: [
        (x.shape, x.dtype, x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(state)
    ]
    assert describe(new) == describe(state)
    assert {(x.shape, x.dtype) for x in metrics.values()} == {((), jnp.dtype("float32"))}
    # Data replicates; fsdp and tensor divide all but the norms, which are whole everywhere, by 64.
    assert sum(x.size for x in jax.tree.leaves(state.trainable)) == pod.parameters(size)
    for name, leaf in hf.named_parameters(state.trainable):
        share = pod.bytes_of(leaf) / (4 * leaf.get_value().size)
        assert share == (1 if "norm" in name else 1 / 64), name
    assert (
        pod.bytes_of(state) < 1.01 * 3 * 4 * pod.parameters(size) / 64
    )  # weights and Adam's two moments, float32


@pytest.mark.slow
def test_a_real_training_step_compiles_for_a_pod():
    """256 fake devices: what each holds, and that nothing else travels than in a tiny model."""
    program = [sys.executable, str(Path(pod.__file__)), "8B"]
    report = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    sizes = Sizes(pod.config("8B"), pod.SHAPE)
    moved = [
        program_text.Moved(kind, tuple(shape), *rest)
        for kind, shape, *rest in report["collectives"]
    ]
    sizes.explain(moved, sizes.training_step(*pod.BATCH))
    state = 3 * 4 * pod.parameters("8B") / 64
    assert state < report["arguments"] < 1.01 * state
    # Beside its state a device holds a gradient, what 36 layers keep of 4 texts (as many as a
    # piece has for it) in bfloat16,
    # and what one layer works with, of which 2.4 GB are enough where the compiler joins no
    # element-wise steps.
    residuals = 36 * 4 * pod.BATCH.long * 4096 * 2
    assert report["temporary"] < state / 3 + residuals + 2.4e9


# --- bfloat16 ------------------------------------------------------------------------------------


def equations(jaxpr):
    """Every primitive of a traced function, those inside loops and maps included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            value = getattr(value, "jaxpr", value)
            if hasattr(value, "eqns"):
                yield from equations(value)


# What norms, softmax, log-probabilities, cosines and sums are made of. The activation functions
# are not among them.
EXACT = {
    "exp",
    "log",
    "log1p",
    "rsqrt",
    "sqrt",
    "div",
    "sin",
    "cos",
    "reduce_sum",
    "reduce_max",
    "argmax",
    "cumsum",
    "psum",
    "psum_invariant",
}


def assert_exact(jaxpr) -> None:
    """All of that is done in float32, every product accumulates in float32, and products with
    weights are of one type."""
    products = 0
    for equation in equations(jaxpr):
        ins, outs = (
            [x.aval.dtype for x in side if hasattr(x.aval, "dtype")]
            for side in (equation.invars, equation.outvars)
        )
        if equation.primitive.name in EXACT:
            assert jnp.bfloat16 not in ins + outs, equation
        if equation.primitive.name == "dot_general":
            assert outs == [jnp.float32], equation
            batched = equation.params["dimension_numbers"][1][0]
            assert batched or ins[0] == ins[1], equation
            products += ins == [jnp.bfloat16, jnp.bfloat16]
    assert products >= 7  # computed with bfloat16 after all


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_sensitive_operations_of_a_bfloat16_step_use_float32(family, mesh):
    model, cfg, pooling = opened(family, "bfloat16")
    objective = ContrastiveObjective(cfg, forms(pooling, cfg), PIECES, rooms(PIECES), 0.05, ())
    state = fit.State.create(model, pod.OPTIMIZER)
    arrays = jax.tree.map(layout.rows, batch())
    traced = fit.train_step.trace(objective, pod.OPTIMIZER, state, None, arrays, 1e-3)
    assert_exact(traced.jaxpr.jaxpr)
    new, metrics = traced.out_info
    assert {
        x.dtype for x in jax.tree.leaves((new.trainable, new.opt[1].mu, new.opt[1].nu, metrics))
    } == {jnp.dtype("float32")}


def scoring_arguments(streams: int, targets: int) -> tuple:
    """What `suffix_log_probs` takes after the config: two prefixes and four suffixes a stream."""
    mesh = jax.sharding.get_mesh()
    x = lambda letters, *shape, dtype=jnp.int32: pod.on(
        mesh, shape, dtype, layout.activation_spec(letters)
    )
    memory = (
        pod.on(
            mesh,
            (tiny.LAYERS, 2 * streams, tiny.KV_HEADS, 8, tiny.HEAD_DIM),
            jnp.bfloat16,
            P(None, *layout.activation_spec("b k s h")),
        ),
    ) * 2
    batch = prefix.SlotArrays(
        tokens=x("b t", 4 * streams, 16),
        positions=x("b t", 4 * streams, 16),
        texts=x("b t", 4 * streams, 16),
        prefix_indices=x("b", 4 * streams),
    )
    ends = x("b t", streams, targets), x("b t", streams, targets)
    return memory, x("b s", 2 * streams, 8, dtype=bool), batch, 64, *ends


def test_sensitive_operations_of_bfloat16_scoring_use_float32(mesh):
    model, cfg, _ = opened("qwen3", "bfloat16")
    traced = token_probabilities.suffix_log_probs.trace(model, cfg, *scoring_arguments(1, 64), 1)
    assert_exact(traced.jaxpr.jaxpr)
    assert traced.out_info.dtype == jnp.float32


def moves_of_the_table(function, *arguments) -> list[program_text.Moved]:
    """What the compiled program moves of the weights of the logits."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    return [moved for moved in program_text.collectives(text) if tiny.VOCAB in moved.shape]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scoring_gathers_the_table_of_logits_once(shape):
    with jax.set_mesh(layout.make_mesh(shape)):
        model, cfg, _ = opened("qwen3", "bfloat16")
        blocks = 3
        targets = blocks * token_probabilities.LOGIT_BLOCK
        memory, mask, batch, room, *ends = scoring_arguments(layout.batch_multiple(), targets)
        score = lambda model, *arrays: token_probabilities.suffix_log_probs(
            model, cfg, *arrays[:-2], room, *arrays[-2:], blocks
        )
        moved = moves_of_the_table(score, model, memory, mask, batch, *ends)
    assert moved and all(x.times == 1 for x in moved), moved


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_gradient_moves_the_table_of_logits_once_each_way(shape):
    with jax.set_mesh(layout.make_mesh(shape)):
        model, cfg, _ = opened("qwen3", "bfloat16")
        rows = layout.batch_multiple()
        tokens = layout.rows(np.ones((rows, 3 * token_probabilities.LOGIT_BLOCK), np.int32))

        def loss(model, tokens, mask):
            return token_probabilities.token_log_probs(model, cfg, tokens, mask).sum()

        moved = moves_of_the_table(jax.grad(loss), model, tokens, tokens > 0)
    assert moved and all(x.times == 1 for x in moved), moved


def test_sensitive_operations_of_bfloat16_gradients_use_float32(mesh):
    model, cfg, _ = opened("qwen3", "bfloat16")

    def loss(model, tokens, mask):
        return token_probabilities.token_log_probs(model, cfg, tokens, mask).sum()

    tokens = layout.rows(np.ones((8, 16), np.int32))
    traced = jax.jit(jax.grad(loss)).trace(model, tokens, tokens > 0)
    assert_exact(traced.jaxpr.jaxpr)


@functools.partial(jax.jit, static_argnums=0)
def loss_and_vectors(objective: ContrastiveObjective, model, batch):
    vectors = retriever.embed(model, objective.cfg, objective.forms[0], None, *batch["passages"])
    (loss, _), gradient = jax.value_and_grad(objective, has_aux=True)(model, None, batch)
    return loss, gradient, vectors


@pytest.mark.parametrize(
    "family", ["qwen3", *[pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "qwen2")]]
)
def test_bfloat16_changes_vectors_and_gradients_little(family, mesh):
    """Vectors and the gradient of every weight, which come in float32, keep their direction."""
    arrays, results = jax.tree.map(layout.rows, batch()), {}
    for compute in ("float32", "bfloat16"):
        model, cfg, pooling = opened(family, compute)
        objective = ContrastiveObjective(cfg, forms(pooling, cfg), 1, rooms(1), 0.05, ())
        results[compute] = loss_and_vectors(objective, model, arrays)
    (loss, gradient, vectors), (wanted_loss, wanted_gradient, wanted) = (
        results["bfloat16"],
        results["float32"],
    )
    assert {x.dtype for x in jax.tree.leaves((loss, gradient, vectors))} == {jnp.dtype("float32")}
    assert (vectors != wanted).any() and (vectors * wanted).sum(-1).min() > 0.995
    cos = lambda a, b: float((a * b).sum() / jnp.sqrt((a * a).sum() * (b * b).sum()))
    assert float(loss) == pytest.approx(float(wanted_loss), rel=0.02)
    for (name, a), (_, b) in zip(
        hf.named_parameters(gradient), hf.named_parameters(wanted_gradient), strict=True
    ):
        # BERT's key biases move all scores of a row alike: their gradient is nothing but rounding.
        assert cos(a[...], b[...]) > 0.99 or (family, name) == ("bert", "k_bias"), name


# --- refused meshes ---


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 1), r"mesh \(1, 1\): config.mesh must be three numbers"),
        ((0, -1, 1), "three numbers"),
        ((-1, -1, 1), "three numbers"),
        ((3, -1, 4), r"mesh \(3, 0, 4\) wants 12 devices, 8 are present"),
        ((2, 8, 1), "wants 16 devices"),
    ],
)
def test_an_impossible_mesh_is_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        layout.make_mesh(shape)


@dataclasses.dataclass(frozen=True)
class FakeTpu:
    """One of four chips of a slice of v4, as `mesh_utils` and `Mesh` see it."""

    id: int
    platform = "tpu"
    device_kind = "TPU v4"
    core_on_chip = 0
    slice_index = property(lambda self: self.id // 4)
    process_index = slice_index
    coords = property(lambda self: (self.id % 2, self.id // 2 % 2, 0))


@pytest.fixture
def two_slices(monkeypatch):
    devices = [FakeTpu(i) for i in range(8)]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr(jax, "device_count", lambda: len(devices))


@pytest.mark.parametrize(
    ("shape", "made"),
    [(None, (2, 4, 1)), ((1, -1, 1), (2, 4, 1)), ((2, 2, 2), (2, 2, 2)), ((4, -1, 1), (4, 2, 1))],
)
def test_only_the_data_axis_goes_over_slices(shape, made, two_slices):
    mesh = layout.make_mesh(shape)
    assert mesh.devices.shape == made
    half = made[0] // 2
    for number, part in enumerate((mesh.devices[:half], mesh.devices[half:])):
        assert {device.slice_index for device in part.flat} == {number}


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 8, 1), r"mesh \(1, 8, 1\): its first axis goes over the 2 slices .*=\(2,-1,1\)$"),
        ((2, 2, 1), r"takes 4 of 8 devices: with several processes or slices it must take all"),
    ],
)
def test_a_mesh_that_does_not_fit_the_slices_is_refused(shape, message, two_slices):
    with pytest.raises(ValueError, match=message):
        layout.make_mesh(shape)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 1), r"width 32 cannot be cut into 3 equal parts, .*set config\.mesh=\(3, 1, 1\)$"),
        (
            (1, 1, 8),
            r"heads \d cannot be cut into 8 equal parts, .*set config\.mesh=\(\d, 1, \d\)$",
        ),
    ],
)
def test_a_mesh_that_does_not_divide_a_model_is_refused_with_one_that_does(
    shape, message, tmp_path
):
    folder = tiny.write(tmp_path, "llama")
    with jax.set_mesh(layout.make_mesh(shape)), pytest.raises(ValueError, match=message) as refused:
        hf.load_model(str(folder))
    better = tuple(map(int, re.findall(r"\d+", str(refused.value).rpartition("=")[2])))
    with jax.set_mesh(layout.make_mesh(better)):
        hf.load_model(str(folder))
