"""The config of `ark-jax demo`, to change it: packaged corpus, MiniLM, SmolLM2, recordings.

    ark-jax run --config=demo --workdir=DIR

From documents alone, with recorded questions:

    ark-jax run --config=demo:documents_only --workdir=DIR

With an endpoint instead of the recordings (configs/README.md says how to record its replies):

    ark-jax run --config=demo --workdir=DIR \
        --config.llm.backend=openai --config.llm.model=MODEL

A sweep. Only its first run extracts, rewrites and scores:

    ark-jax sweep --config=demo:sweep=temperature --workdir=DIR
"""

import importlib.resources

from ark_jax.recipes.ark import config
from ark_jax.recipes.core.presets import named

# The split was drawn before any training. Six training documents and one epoch per stage keep the
# demo short on two slow cores. The number of candidates was chosen on the ignored documents.
DEMO = {
    # The recorded replies answer passages of this length, without titles.
    "data.titles": False,
    "data.chunking": "tokens",
    "data.chunk_tokens": 160,
    "data.chunk_overlap": 16,
    "data.held_out_documents": (
        "salt-company",
        "observatory",
        "lathom-library",
        "dunmere-hospital",
        "marrowgate-courier",
    ),
    "data.ignored_documents": (
        "lamp-office",
        "college-of-pilots",
        "lamp-strike",
        "wool-exchange",
        "quaywick-yard",
    ),
    "data.pool": "documents",
    "llm.backend": "replay",
    "score.candidates": 4,
    "score.references": 1,
    "score.backward": 0.3,
    "score.keep": 1.0,
    "mine.top": 5,
    "mine.negatives": 8,
    "mine.margin": 0.0,
    "train.batch": 12,
    "train.epochs": (1, 1, 1),
    "train.learning_rates": (3e-5, 2e-5, 1e-5),
    "train.save_every": 4,
    "evaluate.scope": "held_out",
    "evaluate.passages": 1,
    # SmolLM2 answers hardly any question, but finds a right answer likelier beside its passage.
    "evaluate.answers": ("answer_likelihood",),
    "evaluate.read": 12,
}


# The demo without training questions: they are recorded, graph and rewrites are made by rules.
DOCUMENTS_ONLY = {
    "data.ignored_documents": (),
    "llm.backend": "none",
    "questions.source": "written",
    "questions.passages": 40,
}


def demo(*, documents_only: bool = False):
    """The config of `ark-jax demo`: the packaged corpus, MiniLM, SmolLM2, recorded LLM replies.

    The first use downloads the two models.

    Args:
        documents_only: trains on questions that were written from eleven documents, as if the
            corpus had no other training questions. The held-out ones stay the test.
    """
    from ark_jax.demo.models import demo_models

    models, folder = demo_models(), importlib.resources.files("ark_jax.demo")
    paths = {
        "data.path": str(folder),
        "llm.replies": str(folder / "replies.jsonl"),
        "retriever.path": models["retriever"],
        "generator.path": models["generator"],
    }
    if documents_only:
        paths["questions.replies"] = str(folder / "question_replies.jsonl")
    c = config.ark()
    c.update_from_flattened_dict(DEMO | paths | (DOCUMENTS_ONLY if documents_only else {}))
    return c


SWEEPS = {
    "temperature": {f"{t:g}": {"train.temperature": t} for t in (0.02, 0.1)},
    "lambda": {
        "without-F": {"score.forward": 0.0},
        "without-B": {"score.backward": 0.0},
        "without-V": {"score.retriever": 0.0},
    },
}


def get_config(words: str = ""):
    """The config for the words after the colon: `documents_only`, and `sweep=NAME`."""
    names = named(words)
    if names not in ([], ["documents_only"]):
        raise ValueError(
            f"{words!r}: the demo has documents_only and sweep={'|'.join(SWEEPS)}, nothing else"
        )
    return demo(documents_only=bool(names))
