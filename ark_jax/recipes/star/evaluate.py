"""The evaluate stage: every system on the test questions, over all and by group."""

from pathlib import Path

from ark_jax.graph.beam import FoundPath
from ark_jax.graph.steps import Steps
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.fact_reader import LISTS, SHOWN, read_facts, reply_columns
from ark_jax.recipes.common.group_tables import questions_by_group, save_nothing, save_tables
from ark_jax.recipes.star.data import HEADLINE, PathQuestion, load_questions, load_steps
from ark_jax.recipes.star.measures import STANDARD, measure, rarity_groups
from ark_jax.recipes.star.paths import load_paths
from ark_jax.recipes.star.search import TUNED, load_found, search_tuned, untrained
from ark_jax.recipes.star.train import load_tuned

ENTITIES = 30  # of a path's end that the reader is shown; further ones are counted in the fact


def evaluate(context: Context, folder: Path) -> dict:
    """Searches and measures; stores a row per system and question, and the tables."""
    questions, steps = load_questions(context, "test"), load_steps(context)
    if not questions:
        save_nothing(folder)
        return {"questions": 0}
    systems = {
        name: load_found(context / "baselines", name).paths for name in untrained(context.config)
    }
    tuned = search_tuned(context, folder, load_tuned)
    systems[TUNED] = tuned.paths
    limit = context.config.evaluate.paths

    def facts_of(system: str, question: PathQuestion) -> list[str]:
        return [path_fact(steps, path) for path in systems[system][question.id][:limit]]

    replies, counts = read_facts(context, list(systems), questions, facts_of, folder)
    gold = load_paths(context, "test")
    columns = context.config.evaluate.metrics
    searched = tuple(dict.fromkeys((*columns, *STANDARD)))
    rows = [
        {"system": name, "question": question.id, "group": question.group}
        | _columns(paths[question.id])
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


def _columns(paths: list[FoundPath]) -> dict[str, list]:
    """The paths found as lists, one for each part of a path."""
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

    Of many entities the first ones are named, and how many more there are.
    """
    name, entities = steps.graph.nodes.name, steps.reach(path.topic, path.steps).tolist()
    shown = "; ".join(name(node) for node in entities[:ENTITIES])
    more = f"; and {len(entities) - ENTITIES:,} more" if len(entities) > ENTITIES else ""
    relations = ", ".join(steps.names[step] for step in path.steps)
    return f"{name(path.topic)} | {relations} | {shown}{more}"
