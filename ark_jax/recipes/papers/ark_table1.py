"""Table 1 of ARK: F1 of answers on ten test sets of LongBench and UltraDomain.

    ark-jax sweep --config=papers/ark_table1 --check
    ark-jax sweep --config=papers/ark_table1 --workdir=DIR

It trains on the first 200 questions of UltraDomain's fin and of its legal, by the preset `paper`,
whose language model --config.llm.backend and --config.llm.model name. Test sets after a colon are
measured alone: --config=papers/ark_table1:hotpotqa,musique. Win rates take a judge,
--config.judge.repeats=5; further retrievers are rows by --config.evaluate.retrievers=BAAI/bge-m3.
"""

from pathlib import Path

from ark_jax.data import readers
from ark_jax.recipes.ark import config
from ark_jax.recipes.core.presets import named
from ark_jax.recipes.papers.sources import DOMAINS, LONG, find
from ark_jax.report.paper_table import PaperTable, Part

TRAINING, FIRST = ("fin", "legal"), 200
HEADINGS = ("nar", "qas", "mus", "2wiki", "hot", "bio", "fic", "music", "tech", "phil")
SETS = (*LONG, *DOMAINS)
TABLE = PaperTable(
    title="ARK, Table 1: F1 of answers (%)",
    number="Table 1",
    parts={name: Part(h, (name,)) for name, h in zip(SETS, HEADINGS, strict=True)},
    metrics={"answer_f1": ""},
    runs={"ark": {}},
    shared=TRAINING,
    quoted={
        "Full": (12.95, 22.79, 6.74, 20.13, 26.87, 27.47, 25.75, 25.50, 22.68, 23.05),
        "Qwen3-embedding": (19.58, 23.90, 14.19, 21.24, 35.27, 32.99, 29.41, 34.90, 38.03, 34.04),
        "BGE-M3": (18.37, 23.33, 21.13, 22.86, 38.64, 32.52, 31.72, 35.34, 39.13, 35.97),
        "Stella-v5": (20.90, 23.39, 17.08, 22.13, 35.45, 33.85, 32.41, 35.02, 35.16, 34.09),
        "Jina-emb-v3": (19.39, 20.70, 20.58, 19.34, 39.17, 32.88, 29.00, 33.74, 38.74, 36.81),
        "GraphRAG": (4.21, 7.69, 2.15, 5.52, 3.03, 18.87, 16.92, 14.97, 21.93, 20.01),
        "LightRAG": (2.65, 3.25, 1.95, 3.67, 2.74, 16.06, 14.13, 15.08, 12.19, 14.04),
        "HippoRAG": (11.51, 21.90, 13.09, 30.96, 28.71, 36.13, 29.23, 32.94, 27.15, 29.06),
        "MemoRAG": (15.49, 17.96, 8.74, 16.57, 22.79, 31.08, 27.87, 33.26, 39.14, 31.98),
        "ARK": (21.57, 24.04, 20.60, 23.41, 42.35, 36.19, 32.59, 38.03, 40.16, 37.86),
    },
)


def get_config(words: str = ""):
    """`words` after the colon are test sets."""
    c = config.ark("paper")
    c.data.path, c.data.test = find(*TRAINING), find(*TABLE.choose(named(words)).parts)
    c.data.update(_beyond_first())
    c.data.pool, c.data.chunk_tokens, c.data.chunk_overlap = "documents", 512, 12
    c.llm.backend = "openai"
    c.evaluate.baselines, c.evaluate.hybrids = ("bm25", "full"), ()
    return c


def _beyond_first() -> dict[str, tuple[str, ...]]:
    """The training questions after the first 200 of a file, and the documents of these alone."""
    questions, documents, kept = [], {}, set()
    for name in TRAINING:
        if not Path(path := find(name)).is_file():
            return {}
        asked = readers.load(path).questions
        kept.update(document for question in asked[:FIRST] for document in question.documents)
        questions += [f"{name}/{question.id}" for question in asked[FIRST:]]
        documents |= {
            document: None for question in asked[FIRST:] for document in question.documents
        }
    return {
        "ignored_questions": tuple(questions),
        "ignored_documents": tuple(document for document in documents if document not in kept),
    }
