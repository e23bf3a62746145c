r"""Study of BAR-RAG: a reader of Wikipedia's paragraphs, MiniLM, SmolLM2.

    ark-jax run --config=configs/squad_reader.py --workdir=DIR
    ark-jax sweep --config=configs/squad_reader.py:sweep=study --workdir=DIR

The data are in $ARK_DATA/squad, or else in ../shared/data/squad: the English part of XQuAD, which
is 240 paragraphs of 48 articles of SQuAD 1.1 with 1,190 questions. Every fifth article, by a hash,
is held out with its questions. Paragraphs are cut into passages of at most 48 tokens under the
title of their article, so that the passages nearest to a question are mostly those of one article.

The sweep's arms begin from one warm reader: GRPO and supervised steps, on passages that the
retriever finds, that the selector chooses, and that are drawn; three seeds.

Words after the colon:

    smoke       makes every stage short
    fairytale   trains nothing: 300 questions about the 23 stories of FairytaleQA's `val`
    musique     trains nothing: 99 questions of MuSiQue over the 1,890 passages of all

The last two measure a reader elsewhere. This compares all readers of a study with one of them:

    ark-jax sweep --config=configs/squad_reader.py:fairytale,sweep=readers --workdir=OTHER \
        --config.generator.path=DIR/runs/without-reader/export
"""

import hashlib
import os
from pathlib import Path

from ark_jax.config import named, vary
from ark_jax.data import readers
from ark_jax.demo.models import demo_models
from ark_jax.recipes.bar_rag import config

DATA = Path(os.environ.get("ARK_DATA", "../shared/data")) / "squad"
if not DATA.is_dir():
    raise ValueError(f"{DATA} is not there: name the folder that holds it in $ARK_DATA")

FILE = DATA / "xquad.en.json"
PARTS = 5  # of the articles, one of which is held out


def held_out_paragraphs() -> tuple[str, ...]:
    """Ids of the paragraphs of every fifth article, by a hash of their titles."""
    documents = readers.load(FILE).documents
    digest = lambda title: hashlib.sha256(title.encode()).hexdigest()
    articles = sorted({document.title for document in documents}, key=digest)
    held_out = set(articles[::PARTS])
    return tuple(document.id for document in documents if document.title in held_out)


HELD_OUT = held_out_paragraphs()
SMOKE = {
    "warm.steps": 4,
    "filter.questions": 8,
    "filter.sets": 2,
    "filter.low": 0.0,
    "filter.variance": 0.0,
    "select.steps": 2,
    "select.questions": 2,
    "select.sets": 2,
    "read.steps": 2,
    "read.samples": 2,
    "evaluate.questions": 4,
}


def study():
    """Data, models and lengths."""
    c, models = config.bar_rag(), demo_models()
    c.retriever.path, c.generator.path = models["retriever"], models["generator"]
    c.data.path = str(FILE)
    c.data.held_out_documents = HELD_OUT
    c.data.pool, c.data.chunk_tokens, c.data.chunk_overlap = "corpus", 48, 0
    c.pool.size = 10
    c.evaluate.scope, c.evaluate.gold, c.evaluate.max_new_tokens = "held_out", "answers", 16
    c.evaluate.sizes = (1, 3, 5, 10)
    c.filter.questions = 300
    return c


def reads_only(c, path: Path, held_out: dict[str, tuple[str, ...]]) -> None:
    """Makes a reader that is trained already answer questions about other documents.

    A run needs a training question, so one story or one question is not held out.
    """
    c.data.path, c.iterations, c.warm.steps = str(path), 0, 0
    c.data.held_out_documents = ()
    c.data.update(held_out)
    c.evaluate.gold, c.evaluate.sizes, c.evaluate.removal = "evidence", (), False


def fairytale(c) -> None:
    path = DATA.parent / "fairytaleqa"
    stories = lambda part: sorted(
        file.name.removesuffix("-story.csv")
        for file in (path / "section-stories" / part).glob("*.csv")
    )
    reads_only(c, path, {"held_out_documents": tuple(stories("val"))})
    c.data.ignored_documents = tuple(stories("train")[1:])
    c.evaluate.questions = 300


def musique(c) -> None:
    path = DATA.parent / "musique_openie" / "musique_train.json"
    ids = sorted(question.id for question in readers.load(path).questions)
    reads_only(c, path, {"held_out_questions": tuple(ids[1:])})


def readers_of_study(c) -> dict[str, dict]:
    """The untuned reader, and exported ones beside `generator.path`: run -> changed fields."""
    folders = Path(c.generator.path).parents[1].glob("*/export")
    return {"untuned": {"generator.path": demo_models()["generator"]}} | {
        f"reader-{folder.parent.name}": {"generator.path": str(folder)}
        for folder in sorted(folders)
        if folder != Path(c.generator.path)
    }


BASE = study()
SWEEPS = {"study": config.study, "ablations": config.ablations(BASE), "readers": readers_of_study}
VARIANTS = {
    "smoke": lambda c: c.update_from_flattened_dict(SMOKE),
    "fairytale": fairytale,
    "musique": musique,
}


def get_config(words: str = ""):
    """`words` after the colon, separated by commas: variants, and the sweep that runs."""
    return vary(study(), named(words), VARIANTS)
