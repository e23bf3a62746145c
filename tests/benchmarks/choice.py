"""How often few questions choose a system that is worse than BM25 or the untouched retriever.

    python tests/benchmarks/choice.py WORKDIR ...

A WORKDIR is that of a finished run of ARK that chose by many questions (`score.keep`,
`score.development`). Some of these are drawn 300 times. Each time the best system on them, and what
the run's rule takes, are compared with the better of BM25 and the untouched retriever on the
held-out questions.
"""

import itertools
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from ark_jax.data.records import Question
from ark_jax.evaluate.significance import sign_flip
from ark_jax.pipeline import kept_config
from ark_jax.pipeline.engine import Context
from ark_jax.pipeline.tables import load_json
from ark_jax.recipes.ark.curriculum import systems as systems_of
from ark_jax.recipes.ark.train import learned_questions
from ark_jax.recipes.documents import choice
from ark_jax.recipes.documents.choice import METRIC, chosen_fusion
from ark_jax.recipes.documents.corpus import gold_passages, load_questions, stored_chunks
from ark_jax.recipes.documents.retrieve import WORDS, load_search, ranked_file
from ark_jax.report.results import ALPHA
from ark_jax.runtime.log import Metrics

SIZES, DRAWS = (5, 10, 20, 40, 80), 300
Values = dict[str, np.ndarray]  # system -> its metric on each question


def measured(workdir: Path) -> tuple[Values, Values]:
    """Every system that may ship, on the questions that chose and on the held-out ones."""
    config = ConfigDict(kept_config.read(workdir))
    context = Context(config, workdir, Metrics(workdir / "metrics.jsonl"))
    systems = systems_of(config)
    known = choice.candidates(systems, chosen_fusion(context, systems))
    questions, learned = load_questions(context, "train"), learned_questions(context)
    gold, _ = gold_passages(context, questions, stored_chunks(context).by_document)
    held_out = load_json(context / "evaluate" / "metrics.json")["gold"]

    def values(asked: Sequence[Question], judged: dict, folders: dict[str, str]) -> Values:
        parts = {x: load_search(ranked_file(workdir / folders[x], x), asked) for x in folders}
        of_system = defaultdict(list)
        for row in choice.measure_rows(context, known, parts, asked, judged, systems):
            of_system[row["system"]].append(row[METRIC])
        return {name: np.array(of_system[name]) for name in known}

    names = (WORDS, "base", *systems.tuned)
    ranked_by = {x: "baselines" if x in (WORDS, "base") else "evaluate" for x in names}
    choosing = [q for q in questions if gold[q.id] and q.id not in learned]
    asked = [q for q in load_questions(context, "held_out") if held_out[q.id]]
    chose = values(choosing, gold, dict.fromkeys(names, choice.STAGE))
    return chose, values(asked, held_out, ranked_by)


def simulate(chose: Values, held_out: Values) -> list[tuple]:
    """Draws of some questions: their number, and for each rule two results.

    They are the share of choices that are significantly worse than the better of BM25 and the
    untouched retriever, and the mean gain on it.
    """
    untrained = max((WORDS, "base"), key=lambda name: held_out[name].mean())
    gains = {name: values - held_out[untrained] for name, values in held_out.items()}
    tested = sign_flip(np.array([*gains.values()]).T, seed=0)
    is_worse = {
        name: gains[name].mean() < 0 and p < ALPHA for name, p in zip(gains, tested, strict=True)
    }
    rng, count = np.random.default_rng(0), len(chose[WORDS])
    results = []
    for size in (*(size for size in SIZES if size < count), count):
        drawn = [rng.choice(count, size, replace=False) for _ in range(DRAWS)]
        rules = zip(*(choices(chose, questions) for questions in drawn), strict=True)
        of_rules = [
            [np.mean([of[name] for name in names]) for of in (is_worse, means(gains))]
            for names in rules
        ]
        results.append((size, *itertools.chain(*of_rules)))
    return results


def choices(chose: Values, questions: np.ndarray) -> tuple[str, str, str]:
    """The best on some questions, what `choice` takes, and its default."""
    default = list(chose)[-1]
    rows = [
        {"system": name, METRIC: float(value)}
        for name, values in chose.items()
        for value in values[questions]
    ]
    best = max(chose, key=lambda name: chose[name][questions].mean())
    return best, choice.clearly_best(rows, chose, default=default), default


def means(values: Values) -> dict[str, float]:
    return {name: of_system.mean() for name, of_system in values.items()}


if __name__ == "__main__":
    for workdir in map(Path, sys.argv[1:]):
        chose, held_out = measured(workdir)
        print(f"\n{workdir}: {len(held_out[WORDS]):,} held-out questions\n")
        print("| system | questions that chose | held out |\n|---|---|---|")
        for name, mean in means(held_out).items():
            print(f"| {name} | {chose[name].mean():.3f} | {mean:.3f} |")
        rules = ("the best", "clearly best", "the default")
        heads = itertools.chain(*((f"{rule}: worse", "gain") for rule in rules))
        print(f"\n| questions | {' | '.join(heads)} |\n|{'---|' * 7}")
        for size, *numbers in simulate(chose, held_out):
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            print(f"| {size} | {' | '.join(f'{a:.0%} | {b:+.3f}' for a, b in pairs)} |")
