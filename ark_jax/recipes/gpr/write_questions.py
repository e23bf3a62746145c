"""The questions stage: from the graph alone, questions whose answer is one end of a triple."""

from collections.abc import Iterator
from pathlib import Path

from ark_jax.graph.triples import Triples
from ark_jax.llm import complete
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.written_from import writes_by_rules
from ark_jax.recipes.gpr.asked_triples import AskedTriples
from ark_jax.recipes.gpr.masked_questions import NAMELESS, MaskedQuestion, Tally, save_questions
from ark_jax.recipes.gpr.relation_wordings import (
    fill_wordings,
    relation_calls,
    word_by_model,
    word_by_rules,
)
from ark_jax.recipes.gpr.triple_calls import triple_calls, write_by_triples
from ark_jax.runtime.log import say

_FIELDS = ("by", "triples", "per_triple", "wordings", "triples_per_prompt")
WRITING_SETTINGS = (*(f"questions.{name}" for name in _FIELDS), "data.relations", "seed")


def write_questions(context: Context, folder: Path) -> dict:
    """Stores the questions about the graph's triples, and replies that could not be used.

    Returns:
        counts: what was asked, written, left out and why, and what the language model took.

    Raises:
        ValueError: no question is left.
    """
    triples, tally = asked_triples(context), Tally()
    written = save_questions(_write(context, triples, tally), folder)
    tally.save_quarantine(folder)
    if not written:
        raise ValueError(_why_none(len(triples.rows), tally))
    if writes_by_rules(context.config):
        say("  rules word the questions by the names of relations; a model's are better")
    return {"triples": len(triples.rows), "questions": written, **tally.counts()}


def _why_none(triples: int, tally: Tally) -> str:
    counts = {NAMELESS: tally.nameless, **dict(tally.dropped.most_common())}
    reasons = [f"{n:,} times {reason}" for reason, n in counts.items() if n]
    if tally.quarantined:
        first = tally.quarantined[0]
        reasons.append(f"{len(tally.quarantined):,} replies of no use, {first['item']} first")
    return (
        f"no question about {triples:,} triples is left ({'; '.join(reasons)}): give names "
        "(config.data.names), ask another model (config.llm.model), or let rules write "
        "(--config.llm.backend=none)"
    )


def _write(context: Context, triples: AskedTriples, tally: Tally) -> Iterator[MaskedQuestion]:
    config = context.config
    if not writes_by_rules(config) and config.questions.by == "triples":
        return write_by_triples(context, triples, tally)
    if writes_by_rules(config):
        wordings = word_by_rules(triples)
    else:
        wordings = word_by_model(context, triples, tally)
    return fill_wordings(triples, wordings, config.questions.per_triple, tally)


def asked_triples(context: Context) -> AskedTriples:
    """The triples of the stored graph that questions are asked about."""
    return AskedTriples.from_config(Triples.load(context / "data" / "graph"), context.config)


def writing_calls(context: Context) -> list[complete.Call]:
    """The calls that the stage will make; none if rules write the questions."""
    if writes_by_rules(context.config):
        return []
    make = triple_calls if context.config.questions.by == "triples" else relation_calls
    return make(context, asked_triples(context))
