"""The configs of `ark-jax demo`: packaged data, MiniLM, SmolLM2, recorded replies.

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

from ark_jax.recipes.ark.config import ark
from ark_jax.recipes.bar_rag.config import bar_rag
from ark_jax.recipes.core.presets import named
from ark_jax.recipes.gpr.config import gpr
from ark_jax.recipes.star.config import star

# Drawn before any training.
SPLIT = {
    "data.titles": False,
    "data.held_out_documents": (
        "salt-company",
        "observatory",
        "lathom-library",
        "dunmere-hospital",
        "marrowgate-courier",
    ),
    "data.pool": "documents",
}
# Six training documents and one epoch per stage keep it short on two slow cores. The number of
# candidates was chosen on the ignored documents.
ARK = {
    **SPLIT,
    # The recorded replies answer passages of this length, without titles.
    "data.chunking": "tokens",
    "data.chunk_tokens": 160,
    "data.chunk_overlap": 16,
    "data.ignored_documents": (
        "lamp-office",
        "college-of-pilots",
        "lamp-strike",
        "wool-exchange",
        "quaywick-yard",
    ),
    "llm.backend": "replay",
    "score.candidates": 4,
    "score.references": 1,
    "score.backward": 0.3,
    "score.keep": 1.0,
    "mine.top": 5,
    "mine.negatives": 8,
    "mine.margin": 0.0,
    "train.batch": 12,
    "train.stages": (1, 2, 3),
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
GPR = {
    "questions.per_triple": 2,
    "train.batch": 16,
    "train.save_every": 20,
    "llm.backend": "replay",
}
STAR = {
    "mine.negatives": 5,
    "search.beam": 3,
    "train.epochs": 2,
    "train.batch": 8,
    "train.learning_rate": 1e-4,
    "train.save_every": 20,
}
# Few questions, short passages and adapters keep it short and small on two slow cores.
BAR_RAG = {
    **SPLIT,
    "data.chunk_tokens": 48,
    "data.chunk_overlap": 0,
    "train.lora_rank": 16,
    "train.remat": "all",  # which holds less
    "warm.steps": 20,
    "warm.batch": 6,
    "warm.learning_rate": 1e-3,
    "filter.questions": 16,
    "filter.sets": 4,
    "filter.low": 0.001,
    "filter.variance": 0.0,
    "select.steps": 4,
    "select.questions": 4,
    "select.sets": 4,
    "read.steps": 3,
    "read.learning_rate": 2e-4,
    "read.samples": 6,
    "read.max_new_tokens": 8,
    "evaluate.gold": "answers",
    "evaluate.questions": 16,
    "evaluate.sizes": (),
    "evaluate.removal": False,
    "evaluate.max_new_tokens": 8,
}
# argument of `demo` -> the recipe's config, its changed fields, and fields -> packaged files
DEMOS = {
    "": (ark, ARK, {"data.path": "", "llm.replies": "replies.jsonl"}),
    "documents": (
        ark,
        ARK | DOCUMENTS_ONLY,
        {
            "data.path": "",
            "llm.replies": "replies.jsonl",
            "questions.replies": "question_replies.jsonl",
        },
    ),
    "gpr": (
        gpr,
        GPR,
        {
            "data.path": "gpr/graph.tsv",
            "data.names": "gpr/names.tsv",
            "data.questions": "gpr/questions.jsonl",
            "questions.replies": "gpr/wordings.jsonl",
        },
    ),
    "star": (
        star,
        STAR,
        {
            "data.path": "gpr/graph.tsv",
            "data.names": "gpr/names.tsv",
            "data.questions": "star/questions.jsonl",
        },
    ),
    "bar_rag": (bar_rag, BAR_RAG, {"data.path": ""}),
}


def demo(words: str = ""):
    """The config of `ark-jax demo`. The first use downloads the two models.

    Args:
        words: "" is ARK's. "documents" trains it on questions that were written from eleven
            documents, as if the corpus had no other training questions; the held-out ones stay the
            test. "gpr", "star" or "bar_rag" is that of the recipe.
    """
    from ark_jax.demo.models import demo_models

    make, changes, files = DEMOS[words]
    folder, models = importlib.resources.files("ark_jax.demo"), demo_models()
    paths = {f"{role}.path": path for role, path in models.items()}
    paths |= {field: str(folder / file) for field, file in files.items()}
    config = make()
    config.update_from_flattened_dict(changes | paths)
    return config


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
    return demo("documents" if names else "")
