"""Retrievers on data they were not tuned on.

    python tests/benchmarks/elsewhere.py STUDY MODEL ...

STUDY is musique or fairytale, with variants behind a colon (fairytale:chunks=512). A MODEL is what
`ark-jax evaluate --models` takes, say DIR/runs/base/stage3/model of a study's sweep, or bm25.
MuSiQue asks 100 questions over 1,890 passages, FairytaleQA the 1,025 questions of its `val` split
over 23 stories, cut as in the studies. Each model is compared with MiniLM.
"""

import runpy
import sys
from pathlib import Path

from ark_jax.comparison.comparison import compare, text_of
from ark_jax.retrieval.chunks import ChunkRules

CONFIGS = Path(__file__).parent.parent.parent / "configs"


def measure(study: str, words: str, models: list[str]) -> None:
    """Prints a study's table for `models`; `words` are the variants of the study's config."""
    config = runpy.run_path(str(CONFIGS / f"{study}.py"))["get_config"](words)
    names = ("chunking", "chunk_tokens", "chunk_overlap", "titles")
    rules = ChunkRules(*(config.data[name] for name in names))
    data = Path(config.data.path, "questions", "val") if study == "fairytale" else config.data.path
    systems = [config.retriever.path, *models]
    print(text_of(compare(systems, data, scope="asked", rules=rules)), end="")


if __name__ == "__main__":
    measure(*sys.argv[1].partition(":")[::2], sys.argv[2:])
