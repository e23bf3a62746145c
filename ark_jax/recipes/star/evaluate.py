"""The evaluate stage, and the export."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from ark_jax import __version__
from ark_jax.graph.beam import FoundPath
from ark_jax.graph.steps import Steps
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, save_rows
from ark_jax.recipes.core import baselines, tables
from ark_jax.recipes.core.models import base_names, copy_model, describe_card, settings_text
from ark_jax.recipes.graphs import LISTS, SHOWN, read_facts, reply_columns, with_reader_alone
from ark_jax.recipes.star import search
from ark_jax.recipes.star.data import HEADLINE, PathQuestion, load_paths, load_questions, load_steps
from ark_jax.recipes.star.mine import similarities
from ark_jax.recipes.star.train import load_tuned

ENTITIES = 30  # at a path's end that the reader is shown; of further ones the number


def measure_baselines(context: Context, folder: Path) -> dict:
    """Measures the untrained systems, to know what training has to beat."""
    questions, steps = load_questions(context, "test"), load_steps(context)
    if not questions:
        return {"systems": 0}
    found, gold = search.search_untrained(context, folder), load_paths(context, "test")
    rows = [
        {"system": name, "question": question.id}
        | search.measure(
            steps, question, gold.get(question.id, ()), result.paths[question.id], search.STANDARD
        )
        for name, result in found.items()
        for question in questions
    ]
    save_rows(rows, folder / baselines.ROWS)
    baselines.save_results(folder, rows, search.STANDARD, HEADLINE)
    return {"systems": len(found), **found[search.BASE].counts}


def evaluate(context: Context, folder: Path) -> dict:
    """Measures all systems on the held-out questions."""
    questions, steps = load_questions(context, "test"), load_steps(context)
    if not questions:
        tables.save_empty_results(folder)
        return {"questions": 0}
    systems = {
        name: search.load_found(context / "baselines", name).paths
        for name in search.untrained(context.config)
    }
    tuned = search.search_tuned(context, folder, load_tuned)
    systems[search.TUNED] = tuned.paths
    limit = context.config.evaluate.paths

    def facts_of(system: str, question: PathQuestion) -> list[str]:
        """The paths that the reader gets, as facts."""
        return [path_fact(steps, path) for path in systems[system][question.id][:limit]]

    replies, counts = read_facts(context, list(systems), questions, facts_of, folder)
    gold = load_paths(context, "test")
    rarity = search.rarity_groups(questions, gold, load_paths(context, "train"))
    biases = _biases_of(context, systems, questions, rarity[search.TAIL])
    columns = context.config.evaluate.metrics
    searched = tuple(dict.fromkeys((*columns, *search.STANDARD)))
    rows = [
        {"system": name, "question": question.id, "group": question.group}
        | _path_columns(paths[question.id])
        | search.measure(steps, question, gold.get(question.id, ()), paths[question.id], searched)
        | biases[name, question.id]
        | reply_columns(replies.get((name, question.id)))
        for name, paths in systems.items()
        for question in questions
    ]
    rows = with_reader_alone(rows, replies)
    tables.save_tables(
        context,
        folder,
        rows,
        tables.questions_by_group(questions) | (rarity if all(rarity.values()) else {}),
        columns=(*columns, *(LISTS[name] for name in SHOWN if replies)),
        measured=(*searched, *search.BIASES, *(LISTS.values() if replies else ())),
        headline=HEADLINE,
    )
    return {"questions": len(questions), "systems": len(systems), **tuned.counts, **counts}


def _biases_of(
    context: Context,
    systems: Mapping[str, search.Paths],
    questions: Sequence[PathQuestion],
    rare: Collection[str],
) -> dict[tuple[str, str], dict[str, float]]:
    """(system, question) -> `measure_biases` of the first path."""
    steps, gold = load_steps(context), load_paths(context, "test")
    similar_at, pairs = context.config.evaluate.similar_at, {}
    for question in questions:
        first = [path for found in systems.values() for path in found[question.id][:1]]
        for path in (*first, *gold.get(question.id, ())):
            text = steps.text(path.topic, path.steps)
            pairs[question.id, path.topic, path.steps] = (question.question, text)
    values = similarities(context, list(pairs.values()), "paths found") if pairs else ()
    cosines = dict(zip(pairs, map(float, values), strict=True))

    def biases(question: PathQuestion, paths: Sequence[FoundPath]) -> dict[str, float]:
        """Those of a question."""
        listed = (*paths[:1], *gold.get(question.id, ()))
        of_listed = [cosines[question.id, path.topic, path.steps] for path in listed]
        cosine, shortest = (of_listed[0], of_listed[1:]) if paths else (None, of_listed)
        hit = search.measure(steps, question, (), paths, ("hit@1",))["hit@1"]
        return search.measure_biases(hit, cosine, shortest, similar_at, rare=question.id in rare)

    return {
        (name, question.id): biases(question, found[question.id])
        for name, found in systems.items()
        for question in questions
    }


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
    rest = f"; and {len(entities) - ENTITIES:,} more" if len(entities) > ENTITIES else ""
    relations = ", ".join(steps.names[step] for step in path.steps)
    return f"{name(path.topic)} | {relations} | {shown}{rest}"


def first_path(context: Context) -> Callable[[dict], str]:
    """A function of a row of `questions.parquet` that gives the best path of its system."""
    steps = load_steps(context)
    return lambda row: next((path_fact(steps, path) for path in found_paths(row)[:1]), "")


conclusion = functools.partial(baselines.conclusion, metric=HEADLINE)


def export_scorer(context: Context, folder: Path) -> dict:
    """Writes the folder of the trained scorer, with a model card."""
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
        text += tables.as_markdown(evaluated["table"], evaluated["metrics"])
        text += f"\n\n{' '.join(conclusion(context))}"
    return f"{text}\n\n{settings_text(config, 'train')}"
