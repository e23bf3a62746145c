"""Plans of a small run."""

from support.world import EMBEDDED, tiny_config

from ark_jax.estimate import devices, plan
from ark_jax.estimate.work import Work

RATE = 1e9  # FLOP/s of every device here


def settings(world, backend="replay"):
    """Chunks so long that the recording has a reply for each."""
    c = tiny_config(world)
    c.data.chunk_tokens, c.train.batch = 300, 12
    c.graph.similarity = (
        1.0  # to a random model all texts are alike, and its communities as small as may be
    )
    c.llm.backend, c.llm.replies = backend, str(EMBEDDED / "replies.jsonl")
    return c


def calls_of_kind(estimate: plan.Estimate, label: str) -> Work:
    return next(x for x in estimate.calls if x.label == label)


def device_work(estimate: plan.Estimate) -> dict[tuple[str, str], float]:
    """(stage, kind) -> tokens, in the order of the plan."""
    tokens: dict[tuple[str, str], float] = {}
    for x in estimate.costs:
        if x.work.kind != "ask":
            key = x.work.stage, x.work.kind
            tokens[key] = tokens.get(key, 0) + x.work.tokens
    return tokens


def model(world, role: str, **changes) -> devices.WeightlessModel:
    return devices.WeightlessModel.from_folder(
        str(world / role),
        **({"compute": "float32", "batch": 0, "head": role == "generator"} | changes),
    )
