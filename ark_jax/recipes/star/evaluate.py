"""The evaluate stage, the metrics of paths, and the export."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax import __version__
from ark_jax.graph.beam import FoundPath
from ark_jax.graph.relation_paths import GoldPath
from ark_jax.graph.steps import Steps
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, save_rows
from ark_jax.recipes.core import baselines
from ark_jax.recipes.core.export import base_names, copy_model, describe_card, settings_text
from ark_jax.recipes.core.tables import (
    as_markdown,
    questions_by_group,
    save_empty_results,
    save_tables,
)
from ark_jax.recipes.graphs.fact_reader import LISTS, SHOWN, read_facts, reply_columns
from ark_jax.recipes.star.data import HEADLINE, PathQuestion, load_paths, load_questions, load_steps
from ark_jax.recipes.star.search import (
    BASE,
    TUNED,
    count_paths,
    load_found,
    search_tuned,
    search_untrained,
    untrained,
)
from ark_jax.recipes.star.train import load_tuned

AT_K = ("hit", "path_hit", "shortcut")
OF_ALL = ("f1", "answer_coverage")
# Always measured, to compare runs by.
STANDARD = ("hit@1", "hit@3", "path_hit@1", "shortcut@1", "f1", "answer_coverage")
RARE_SHARE = 0.2  # of the different training paths, those that fewest questions have
HEAD, TAIL = "paths frequent in training", "paths rare in training or unseen"


def parse_metric(name: str) -> tuple[str, int]:
    """("hit", 3) of "hit@3"; ("f1", 0) of "f1".

    Raises:
        ValueError: no such metric.
    """
    kind, _, cutoff = name.partition("@")
    if name in OF_ALL:
        return name, 0
    if kind not in AT_K or not (cutoff.isascii() and cutoff.isdigit() and int(cutoff)):
        raise ValueError(
            f"config.evaluate.metrics: {name!r} is none of {', '.join(OF_ALL)}, or of "
            f"{', '.join(AT_K)} with @k"
        )
    return kind, int(cutoff)


def measure(
    steps: Steps,
    question: PathQuestion,
    gold: Sequence[GoldPath],
    paths: Sequence[FoundPath],
    metrics: Sequence[str],
) -> dict[str, float]:
    """The metrics of a question's paths, each from 0 to 1.

    - hit@k: 1 if one of the first k paths reaches an answer.
    - path_hit@k: 1 if one of them is a shortest path to an answer.
    - shortcut@k: 1 for a hit without a path hit: the answer was reached by chance, or by a detour.
    - f1: of the entities that the first path reaches against the answers.
    - answer_coverage: the share of the answers that all paths found reach.

    An answer that the graph lacks counts as not reached.
    """
    answers = np.array(question.answer_nodes, np.int64)
    reached = [steps.reach(path.topic, path.steps) for path in paths]
    hits = [bool(np.isin(nodes, answers).any()) for nodes in reached]
    shortest = {(path.topic, path.steps) for path in gold}
    path_hits = [(path.topic, path.steps) in shortest for path in paths]
    total = len(answers) + question.absent
    union = functools.reduce(np.union1d, reached, np.zeros(0, np.int64))
    first = reached[0] if reached else union
    right = int(np.isin(first, answers).sum())
    wholes = {
        "f1": 2 * right / (len(first) + total) if len(first) + total else 0.0,
        "answer_coverage": int(np.isin(union, answers).sum()) / total if total else 0.0,
    }
    values = {}
    for name in metrics:
        kind, k = parse_metric(name)
        hit, path_hit = any(hits[:k]), any(path_hits[:k])
        flags = {"hit": hit, "path_hit": path_hit, "shortcut": hit and not path_hit}
        values[name] = wholes[kind] if kind in wholes else float(flags[kind])
    return values


def rarity_groups(
    questions: Sequence[PathQuestion],
    gold: Mapping[str, Sequence[GoldPath]],
    train: Mapping[str, Sequence[GoldPath]],
) -> dict[str, set[str]]:
    """HEAD and TAIL -> ids of questions; empty if one of both has none.

    A path is rare if it is unseen in training, or among the fifth of the different training paths
    that fewest questions have; ties with the last one count as rare. A question is in the tail if
    all its shortest paths are rare. A question without a path is in neither.
    """
    counts = count_paths(train)
    limit = np.quantile(list(counts.values()), RARE_SHARE, method="lower")
    groups: dict[str, set[str]] = {HEAD: set(), TAIL: set()}
    for question in questions:
        if paths := gold.get(question.id):
            rare = all(counts[path.steps] <= limit for path in paths)
            groups[TAIL if rare else HEAD].add(question.id)
    return groups if all(groups.values()) else {}


ENTITIES = 30  # at a path's end that the reader is shown; of further ones the number


def measure_baselines(context: Context, folder: Path) -> dict:
    """Stores what the untrained systems find, and their results."""
    questions, steps = load_questions(context, "test"), load_steps(context)
    if not questions:
        return {"systems": 0}
    found, gold = search_untrained(context, folder), load_paths(context, "test")
    rows = [
        {"system": name, "question": question.id}
        | measure(steps, question, gold.get(question.id, ()), one.paths[question.id], STANDARD)
        for name, one in found.items()
        for question in questions
    ]
    save_rows(rows, folder / baselines.ROWS)
    baselines.save_results(folder, rows, STANDARD, HEADLINE)
    return {"systems": len(found), **found[BASE].counts}


def evaluate(context: Context, folder: Path) -> dict:
    """Searches and measures; stores a row per system and question, and the tables."""
    questions, steps = load_questions(context, "test"), load_steps(context)
    if not questions:
        save_empty_results(folder)
        return {"questions": 0}
    systems = {
        name: load_found(context / "baselines", name).paths for name in untrained(context.config)
    }
    tuned = search_tuned(context, folder, load_tuned)
    systems[TUNED] = tuned.paths
    limit = context.config.evaluate.paths

    def facts_of(system: str, question: PathQuestion) -> list[str]:
        """The paths that the reader gets, as facts."""
        return [path_fact(steps, path) for path in systems[system][question.id][:limit]]

    replies, counts = read_facts(context, list(systems), questions, facts_of, folder)
    gold = load_paths(context, "test")
    columns = context.config.evaluate.metrics
    searched = tuple(dict.fromkeys((*columns, *STANDARD)))
    rows = [
        {"system": name, "question": question.id, "group": question.group}
        | _path_columns(paths[question.id])
        | measure(steps, question, gold.get(question.id, ()), paths[question.id], searched)
        | reply_columns(replies.get((name, question.id)))
        for name, paths in systems.items()
        for question in questions
    ]
    rarity = rarity_groups(questions, gold, load_paths(context, "train"))
    save_tables(
        context,
        folder,
        rows,
        questions_by_group(questions) | rarity,
        columns=(*columns, *(LISTS[name] for name in SHOWN if replies)),
        measured=(*searched, *(LISTS.values() if replies else ())),
        headline=HEADLINE,
    )
    return {"questions": len(questions), "systems": len(systems), **tuned.counts, **counts}


def _path_columns(paths: list[FoundPath]) -> dict[str, list]:
    """Paths as columns of a row: `topics`, `paths` and `scores`."""
    return {
        "topics": [path.topic for path in paths],
        "paths": [list(path.steps) for path in paths],
        "scores": [path.score for path in paths],
    }


def found_paths(row: dict) -> list[FoundPath]:
    """The paths of a row of questions.parquet."""
    parts = zip(row["topics"], row["paths"], row["scores"], strict=True)
    return [FoundPath(topic, tuple(steps), score) for topic, steps, score in parts]


def path_fact(steps: Steps, path: FoundPath) -> str:
    """A path as a fact: "Kismet | directed by, inverse of directed by | Elephant Walk; Salome".

    It names the first entities at the end, and says how many more there are.
    """
    name, entities = steps.graph.nodes.name, steps.reach(path.topic, path.steps).tolist()
    shown = "; ".join(name(node) for node in entities[:ENTITIES])
    more = f"; and {len(entities) - ENTITIES:,} more" if len(entities) > ENTITIES else ""
    relations = ", ".join(steps.names[step] for step in path.steps)
    return f"{name(path.topic)} | {relations} | {shown}{more}"


conclusion = functools.partial(baselines.conclusion, metric=HEADLINE)


def export_scorer(context: Context, folder: Path) -> dict:
    """Copies the trained scorer, and adds method and results to its model card."""
    from ark_jax.graph.path_retriever import StepSettings
    from ark_jax.models.model_card import plain_line

    retriever = context.config.retriever
    copy_model(context / "train" / "model", folder, retriever.path, retriever.export_dtype)
    StepSettings(context.config.paths.inverse, context.config.data.relations).write(folder)
    base, _ = base_names(context.config.retriever.path)
    description = _description(context, plain_line(base))
    describe_card(folder / "README.md", f"{base}, tuned with STAR", description)
    return {"head": context.config.train.head}


def _description(context: Context, base: str) -> str:
    """The card's part on method, data and metrics."""
    config = context.config
    counts = {stage: read_manifest(context / stage)["counts"] for stage in ("data", "paths")}
    evaluated = load_json(context / "evaluate" / "metrics.json")
    data, paths = counts["data"], counts["paths"]
    text = f"""Base model: {base}. Tuned by ark_jax {__version__} to walk relation paths (STAR)
from the topic of a question to its answers. It learned from {data["train_questions"]:,} questions
with {paths["train_different_paths"]:,} different paths, over a graph of {data["triples"]:,}
triples.

```python
import ark_jax as ark
paths = ark.PathRetriever.from_pretrained("path/to/this/folder", "GRAPH")
paths.search(["a question"], [["its topic"]])
```"""
    if evaluated["table"]:
        text += f"\n\nMeasured on {data['test_questions']:,} questions of other topics:\n\n"
        text += as_markdown(evaluated["table"], evaluated["metrics"])
        text += f"\n\n{' '.join(conclusion(context))}"
    return f"{text}\n\n{settings_text(config, 'train')}"
