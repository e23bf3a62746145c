"""What a retriever tuned on one graph does on others: PathQuestion's two graphs and questions.

    python tests/benchmarks/triple_transfer.py MODEL...

Each model is a folder or a hub name, such as DIR/export of a run of configs/metaqa.py. It is
compared with MiniLM, untouched, on all questions whose topics and answers are in the graph: whether
a triple that bears an answer is among the first k, and the share of the answers there. Differences
have 95 % bootstrap intervals over topics, since the questions of a topic are alike.
"""

import sys
from pathlib import Path

import numpy as np
from triple_search import DATA

from ark_jax import TripleRetriever, Triples
from ark_jax.demo.models import demo_models
from ark_jax.graph.answer_rows import answer_rows
from ark_jax.graph.linked_questions import link
from ark_jax.graph.triple_questions import read_questions
from ark_jax.graph.triple_retriever import WalkRules

FILES = {
    "PathQuestion": ("2H-kb.txt", "PQ-2H.txt"),
    "PathQuestion-Large": ("PQL2-KB.txt", "PQL-2H.txt"),
}
CUTOFFS, DRAWS = (1, 10, 100), 1000


def hits(model: str, graph: Triples, linked, hops: int) -> np.ndarray:
    """Whether a triple with an answer is among the first k, and the answers found: `[q 2k]`."""
    retriever = TripleRetriever.from_pretrained(model, graph)
    texts = [question.question for question in linked.questions]
    rows, _ = retriever.search_rows(texts, k=max(CUTOFFS), rules=WalkRules(hops=hops))
    out = np.zeros((len(texts), 2 * len(CUTOFFS)))
    nodes = [linked.answer_nodes(i).tolist() for i in range(len(texts))]
    by_question = answer_rows(graph, linked.topics, nodes, 3)
    for i, row in enumerate(rows):
        answers, bearing = set(nodes[i]), set(by_question[i].tolist())
        for j, cutoff in enumerate(CUTOFFS):
            first = row[:cutoff]
            ends = set(graph.head[first].tolist()) | set(graph.tail[first].tolist())
            out[i, j] = not bearing.isdisjoint(first.tolist())
            out[i, j + len(CUTOFFS)] = len(ends & answers) / max(len(answers), 1)
    return out


def interval(differences: np.ndarray, topics: list) -> tuple[np.ndarray, np.ndarray]:
    """95 % of the mean differences when topics are drawn again."""
    groups = {}
    for i, topic in enumerate(topics):
        groups.setdefault(topic, []).append(i)
    members = [np.array(group) for group in groups.values()]
    rng = np.random.default_rng(0)
    means = []
    for _ in range(DRAWS):
        drawn = np.concatenate([members[k] for k in rng.integers(0, len(members), len(members))])
        means.append(differences[drawn].mean(axis=0))
    return np.quantile(means, 0.025, axis=0), np.quantile(means, 0.975, axis=0)


def main(models: list[str]) -> None:
    base = demo_models()["retriever"]
    heads = [f"{name}@{k}" for name in ("answer triple", "answer recall") for k in CUTOFFS]
    for name, files in FILES.items():
        facts, question_file = (DATA / "kg" / "pathquestion" / file for file in files)
        graph, questions = Triples.read(facts), read_questions(question_file)[0]
        linked = link(questions, graph)
        topics = [question.entities for question in linked.questions]
        print(f"\n{name}: {len(graph):,} triples, {len(questions):,} questions")
        print(f"| system | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
        for hops in (1, 3):
            untouched = hits(base, graph, linked, hops)
            _row(f"MiniLM, {hops} hop(s)", untouched)
            for model in models:
                tuned = hits(model, graph, linked, hops)
                _row(f"{Path(model).parent.name}, {hops} hop(s)", tuned)
                low, high = interval(tuned - untouched, topics)
                _row("difference, low", low[None])
                _row("difference, high", high[None])


def _row(name: str, values: np.ndarray) -> None:
    print(f"| {name} | {' | '.join(f'{mean:.3f}' for mean in values.mean(axis=0))} |")


if __name__ == "__main__":
    main(sys.argv[1:])
