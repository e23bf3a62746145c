"""Lines of the table that `accelerator.py` writes, its sizes, and its clocks."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import accelerator_torch as peers
import jax
import jax.numpy as jnp
import numpy as np

from ark_jax.train import fit, flops, optim

FAILED = "FAILED"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is computed. Models have random weights."""

    decoder: Mapping[str, int]  # constants of support.tiny in place of its own
    encoder: Mapping[str, int]
    texts: int
    tokens: int  # of the longest text
    chunks: int  # of a language model's prompts
    questions: int  # about each chunk
    samples: int  # replies to a prompt of a policy step
    new_tokens: int
    heads: tuple[int, int, int]  # query heads, key heads, numbers a head
    product: tuple[int, int, int]
    nodes: int
    keys: int
    rounds: int


FULL = Sizes(
    {  # Qwen3-0.6B
        "VOCAB": 151_936,
        "WIDTH": 1024,
        "LAYERS": 28,
        "HEADS": 16,
        "KV_HEADS": 8,
        "HEAD_DIM": 128,
        "FFN": 3072,
        "POSITIONS": 4096,
    },
    {  # all-MiniLM-L6-v2
        "VOCAB": 30_522,
        "WIDTH": 384,
        "LAYERS": 6,
        "HEADS": 12,
        "FFN": 1536,
        "POSITIONS": 512,
    },
    texts=32,
    tokens=512,
    chunks=32,
    questions=5,
    samples=8,
    new_tokens=64,
    heads=(16, 8, 128),
    product=(16384, 4096, 4096),
    nodes=100_000,
    keys=1_000_000,
    rounds=5,
)
TINY = Sizes({}, {}, 6, 24, 2, 2, 2, 8, (4, 2, 16), (64, 64, 64), 200, 500, 1)


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table; `verdict` is "ok", FAILED, "" for a mere figure, or why there is none.

    A figure that nothing was compared with has no `peer`.
    """

    part: str
    what: str
    ours: str
    peer: str = ""
    verdict: str = ""


def words(rng: np.random.Generator, count: int) -> str:
    return " ".join(rng.choice(["the", "tide", "table", "of", "Great", "Surge", "1850"], count))


def error_of(ours, wanted) -> float:
    """The largest difference of two trees, as a share of the largest number of its array."""
    leaves = zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True)
    pairs = [(np.asarray(x, np.float32), np.asarray(y, np.float32)) for x, y in leaves]
    return float(max(np.abs(x - y).max() / np.abs(y).max() for x, y in pairs))


def judged(part: str, what: str, error: float, limit: float) -> Row:
    verdict = "ok" if error <= limit else f"{FAILED}: the limit is {limit:.0e}"  # NaN fails
    return Row(part, what, f"error {error:.1e}", "", verdict)


def turns(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of contenders that take turns, after one run each. They must block."""
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(samples) for name, samples in seconds.items()}


def compare(
    ours: Callable[[], object], open_peers: Callable[[], peers.Contenders], rounds: int
) -> dict[str, float]:
    """Median seconds of all. Peers go first: torch returns memory to the device, JAX does not."""
    theirs = turns(open_peers(), rounds)
    peers.free()
    return turns({"ours": ours}, rounds) | theirs


@contextlib.contextmanager
def counted_programs() -> Iterator[list[float]]:
    """A list that gets the seconds of each compilation."""
    compiled: list[float] = []

    def record(event: str, seconds: float, **_) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(record)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(record)


def against(seconds: Mapping[str, float], ours: str = "ours") -> str:
    """Peers' times, and how many times faster ours is."""
    peers = [
        f"{name} {x * 1e3:,.1f} ms ({x / seconds[ours]:.2f} x)"
        for name, x in seconds.items()
        if name != ours
    ]
    return ", ".join(peers) or "torch does not see this device"


def failure(part: str, what: str, error: Exception) -> Row:
    message = f"{type(error).__name__}: {error}".splitlines()[0][:160].replace("|", "/")
    return Row(part, what, "", "", f"{FAILED}: {message}")


def speed(model_flops: float, tokens: int, seconds: float) -> str:
    """Milliseconds, tokens and FLOPs a second, and MFU if the peak is known."""
    pace = {"tokens_a_second": tokens / seconds, "flops_a_second": model_flops / seconds}
    if peak := flops.peak(jax.devices()[0].device_kind):
        pace["mfu"] = model_flops / seconds / len(jax.devices()) / peak
    return f"{seconds * 1e3:,.1f} ms, {flops.describe(pace)}"


def step_row(
    objective: fit.Objective,
    model,
    batch,
    open_peers: Callable[[], peers.Contenders],
    model_flops: float,
    tokens: int,
    predicted: float,
    rounds: int,
) -> Row:
    """Steps of AdamW on one batch: speed, programs, memory as predicted and as compiled.

    Args:
        predicted: bytes.
    """
    theirs = turns(open_peers(), rounds)
    peers.free()
    optimizer = optim.adamw(weight_decay=0.01, clip=1.0)
    state = fit.State.create(jax.tree.map(jnp.copy, model), optimizer)
    with counted_programs() as compiled:
        program = fit.train_step.lower(objective, optimizer, state, None, batch, 1e-5).compile()
    sizes = program.memory_analysis()
    held = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes  # outputs take donated arguments
    losses = []

    def step() -> None:
        nonlocal state
        state, metrics = fit.train_step(objective, optimizer, state, None, batch, 1e-5)
        losses.append(float(metrics["loss"]))

    step()
    with counted_programs() as again:
        step()
    seconds = turns({"ours": step}, rounds) | theirs
    verdict = "ok" if np.isfinite(losses).all() else f"{FAILED}: losses {losses[:3]}"
    verdict = f"{FAILED}: step 2 compiled {len(again)} programs" if again else verdict
    figure = (
        f"{speed(model_flops, tokens, seconds['ours'])}, compiled in {sum(compiled):.0f} s, "
        f"{held / 2**30:.1f} GiB ({predicted / 2**30:.1f} predicted)"
    )
    return Row("", "", figure, against(seconds), verdict)
