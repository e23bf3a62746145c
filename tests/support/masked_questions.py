"""Small runs of GPR's stage of questions."""

from pathlib import Path

import ark_jax.demo
from ark_jax import schema
from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.gpr.config import Gpr
from ark_jax.recipes.gpr.questions import write_questions
from ark_jax.runtime.log import Metrics

DEMO = Path(ark_jax.demo.__file__).parent / "gpr"
TRIPLES = [
    ("k", "directed_by", "d"),
    ("k", "has_genre", "c"),
    ("l", "has_genre", "c"),
    ("x", "has_genre", "c"),
    ("l", "directed_by", "l2"),
]
NAMES = {"k": "Kismet", "d": "William Dieterle", "c": "Comedy", "l": "Lark", "l2": "Lark's Father"}


def context(folder: Path, graph: Triples | None = None, **questions) -> Context:
    """A workdir that holds a graph; keywords are fields of `questions`."""
    c = schema.to_config_dict(Gpr)
    c.questions.triples = 0
    c.questions.update(questions)
    graph = graph or Triples.from_triples(TRIPLES, names=NAMES, aliases={"d": ["Bill"]})
    graph.save(folder / "data" / "graph")
    return Context(c, folder, Metrics(folder / "metrics.jsonl"))


def write(run: Context) -> dict:
    folder = run.workdir / "questions"
    folder.mkdir(exist_ok=True)
    return write_questions(run, folder)


def questions(run: Context) -> list[dict]:
    return load_rows(run.workdir / "questions" / "questions.parquet")


def live(folder: Path, address: str, **fields) -> Context:
    """A run over the demo's graph that asks an endpoint."""
    graph = Triples.read(DEMO / "graph.tsv", names=DEMO / "names.tsv")
    run = context(folder, graph, **({"by": "triples", "triples_per_prompt": 6} | fields))
    run.config.llm.update(backend="openai", base_url=address, model="toy", concurrency=2)
    run.config.llm.key_env = "ARK_TEST_KEY"
    return run
