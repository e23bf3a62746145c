"""Table 1 of BAR-RAG: exact match on seven test sets, of readers of three models.

    ark-jax sweep --config=papers/bar_rag_table1 --check
    ark-jax sweep --config=papers/bar_rag_table1 --workdir=DIR

The files hold rows with ctxs, which are the pools. A run is a model, whose rows are the reader as
it comes (RAG) and after each iteration of the preset `paper`. --only=qwen2.5-3b makes one; a model
of one's own replaces it by --config.generator.path=FOLDER. Test sets after a colon are measured
alone: --config=papers/bar_rag_table1:nq,bamboogle.
"""

from ark_jax.recipes.bar_rag import config
from ark_jax.recipes.core.presets import named
from ark_jax.recipes.papers.sources import OPEN, find
from ark_jax.report.paper_table import PaperTable, Part

HEADINGS = ("NQ", "TriviaQA", "PopQA", "HotpotQA", "2Wiki", "MuSiQue", "Bamboogle")
TABLE = PaperTable(
    title="BAR-RAG, Table 1: exact match (%)",
    number="Table 1",
    parts={name: Part(h, (f"bar_rag/{name}",)) for name, h in zip(OPEN, HEADINGS, strict=True)},
    metrics={"exact_match": ""},
    runs={
        "qwen2.5-3b": {"generator.path": "Qwen/Qwen2.5-3B-Instruct"},
        "qwen2.5-7b": {"generator.path": "Qwen/Qwen2.5-7B-Instruct"},
        "llama-3.1-8b": {"generator.path": "meta-llama/Llama-3.1-8B-Instruct"},
    },
    shared=("bar_rag/train",),
    quoted={
        "Qwen-2.5-3B: direct": (10.6, 28.8, 10.8, 14.9, 24.4, 2.0, 2.4),
        "Qwen-2.5-3B: RAG": (34.8, 54.4, 38.7, 25.5, 22.6, 4.7, 8.0),
        "Qwen-2.5-3B: RAG SFT": (38.9, 58.1, 41.4, 28.9, 25.9, 6.4, 13.5),
        "Qwen-2.5-3B: BAR-RAG, 3 iterations": (42.0, 59.7, 44.1, 32.6, 26.7, 7.2, 26.8),
        "Qwen-2.5-7B: direct": (13.4, 40.8, 14.0, 18.3, 12.6, 3.1, 12.0),
        "Qwen-2.5-7B: RAG": (39.3, 53.7, 26.7, 28.9, 18.9, 4.7, 16.0),
        "Qwen-2.5-7B: RAG SFT": (42.7, 58.6, 32.3, 32.4, 22.6, 6.8, 27.1),
        "Qwen-2.5-7B: BAR-RAG, 3 iterations": (46.9, 64.5, 46.9, 38.8, 29.8, 9.1, 39.6),
        "LLaMA-3.1-8B: direct": (18.4, 36.5, 19.8, 12.5, 23.0, 2.7, 8.8),
        "LLaMA-3.1-8B: RAG": (42.7, 58.2, 28.9, 30.3, 19.4, 6.3, 17.6),
        "LLaMA-3.1-8B: RAG SFT": (45.8, 63.4, 35.6, 35.9, 27.4, 8.9, 24.3),
        "LLaMA-3.1-8B: BAR-RAG, 3 iterations": (49.5, 67.3, 48.6, 41.2, 33.0, 12.0, 33.3),
    },
)


def get_config(words: str = ""):
    """`words` after the colon are test sets."""
    c = config.bar_rag("paper")
    sets = TABLE.choose(named(words)).parts
    c.data.path, c.data.test = find("bar_rag/train"), find(*(f"bar_rag/{name}" for name in sets))
    c.data.pool, c.evaluate.gold = "documents", "answers"
    c.evaluate.sizes, c.evaluate.removal = (), False
    return c
