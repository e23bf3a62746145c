"""Plans of a small run."""

from support.world import EMBEDDED, tiny_config

from ark_jax.estimate import device_work, plan
from ark_jax.recipes.ark.recording import Recording
from ark_jax.recipes.common.corpus import load_questions, stored_chunks

RATE = 1e9  # FLOP/s of every device here


read, known = Recording.read, {}


def settings(world, backend="replay"):
    """Chunks so long that the recording has a reply for each."""
    c = tiny_config(world)
    c.data.chunk_tokens, c.train.batch = 300, 12
    c.graph.similarity = (
        1.0  # to a random model all texts are alike, and its communities as small as may be
    )
    c.llm.backend, c.llm.replies = backend, str(EMBEDDED / "replies.jsonl")
    return c


def calls_of_kind(estimate: plan.Estimate, stage: str) -> plan.Calls:
    return next(x for x in estimate.calls if x.label == stage)


def model(world, role: str, **changes) -> device_work.WeightlessModel:
    return device_work.WeightlessModel.from_folder(
        str(world / role),
        **({"compute": "float32", "batch": 0, "head": role == "generator"} | changes),
    )


def questions_and_chunks(run):
    chunks = stored_chunks(run.context).by_document
    return load_questions(run.context, "train"), chunks
