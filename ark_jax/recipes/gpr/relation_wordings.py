"""Wordings of each relation, by rules or by a language model, filled for all triples.

A model is asked once for a relation, so that a million triples cost two dozen calls.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ark_jax.graph.triple_texts import relation_texts
from ark_jax.llm import complete
from ark_jax.llm.relation_questions import usable_wordings, wordings_remark
from ark_jax.llm.triple_questions import SIDES
from ark_jax.llm.triple_wordings import PLACEHOLDER, word_relation
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.ask import ask
from ark_jax.recipes.gpr.asked_triples import AskedTriples, Triple, hash_triples, triples_at
from ark_jax.recipes.gpr.masked_questions import (
    LEAK,
    NAMELESS,
    QUARANTINE_FILE,
    MaskedQuestion,
    Tally,
)
from ark_jax.runtime.log import say
from ark_jax.text import prompts
from ark_jax.text.word_boundaries import contains_words

EXAMPLES = 5  # facts of a relation that a model is shown


@dataclasses.dataclass(frozen=True)
class SideWordings:
    """Questions for one end of a relation, cut where the known entity's name goes.

    Attributes:
        source: who worded them, "template" or "llm".
    """

    cut: tuple[tuple[str, str], ...]
    source: str

    @classmethod
    def from_texts(cls, texts: Sequence[str], source: str) -> "SideWordings":
        return cls(tuple(tuple(text.split(PLACEHOLDER)) for text in texts), source)


# (relation, side) -> wordings
AllWordings = Mapping[tuple[int, str], SideWordings]


def fill_wordings(
    triples: AskedTriples, wordings: AllWordings, count: int, tally: Tally
) -> Iterator[MaskedQuestion]:
    """At most `count` questions for each end of the triples that is asked for."""
    for triple in triples:
        for side in SIDES:
            known, wanted = triple.ends(side)
            tally.ends += 1
            name = triples.nodes.names[known]
            if name is None:
                tally.take_obstacles([NAMELESS])
                continue
            of_side = wordings[triple.relation, side]
            start = int(triples.draw(triple, side) * len(of_side.cut))
            texts = _fill(of_side, start, name, triples.nodes.answers(wanted), count)
            if not texts:
                tally.take_obstacles([LEAK])
            for text in texts:
                yield MaskedQuestion(triple.row, side, text, of_side.source)


def _fill(
    wordings: SideWordings, start: int, name: str, answers: Sequence[str], count: int
) -> list[str]:
    """Up to `count` wordings from the first one on that do not hold an answer."""
    texts: list[str] = []
    for i in range(len(wordings.cut)):
        before, after = wordings.cut[(start + i) % len(wordings.cut)]
        text = before + name + after
        if not any(contains_words(text, answer) for answer in answers):
            texts.append(text)
            if len(texts) == count:
                break
    return texts


# --- by rules -------------------------------------------------------------------------------------


def word_by_rules(triples: AskedTriples) -> dict[tuple[int, str], SideWordings]:
    """Wordings of all relations from their names alone."""
    wordings = {}
    for relation, text in enumerate(relation_texts(triples.graph, "last")):
        by_side = word_relation(text)
        for side in SIDES:
            wordings[relation, side] = SideWordings.from_texts(getattr(by_side, side), "template")
    return wordings


# --- by a language model --------------------------------------------------------------------------


def wanted_wordings(config) -> int:
    """How many wordings of a side a model is asked for."""
    return max(config.questions.wordings, config.questions.per_triple)


def relation_calls(context: Context, triples: AskedTriples) -> list[complete.Call]:
    """A call for every relation of the triples that are asked about."""
    config = context.config
    template = prompts.load_template("relation_wordings", config.prompts.relation_wordings)
    texts = relation_texts(triples.graph, config.data.relations)
    examples = _examples(triples)
    calls = []
    for relation in np.unique(triples.graph.relation[triples.rows]).tolist():
        facts = [
            [triples.nodes.shown(x.head), triples.nodes.shown(x.tail)] for x in examples[relation]
        ]
        filled = prompts.fill(
            template,
            relation=texts[relation],
            facts="\n".join(f"{head} | {texts[relation]} | {tail}" for head, tail in facts),
            count=wanted_wordings(config),
        )
        names = [name for fact in facts for name in fact]
        fields = {"relation": relation, "names": names}
        item = f"questions/relation/{triples.relations[relation]}"
        calls.append(complete.Call(item, "questions", (filled,), fields))
    return calls


def _examples(triples: AskedTriples) -> dict[int, list[Triple]]:
    """Triples of each relation, those first whose ends both have a name, by their hashes.

    The seed takes no part, so runs of several seeds send the same prompts.
    """
    graph = triples.graph
    named = np.array([name is not None for name in triples.nodes.names], bool)
    nameless = ~(named[graph.head] & named[graph.tail])
    order = np.lexsort((hash_triples(graph, 0), nameless, graph.relation))
    starts = np.searchsorted(graph.relation[order], np.arange(len(graph.relations)))
    examples = {}
    for relation, start in enumerate(starts.tolist()):
        rows = [x for x in order[start : start + EXAMPLES] if graph.relation[x] == relation]
        examples[relation] = list(triples_at(graph, np.array(rows, np.int64)))
    return examples


def word_by_model(
    context: Context, triples: AskedTriples, tally: Tally
) -> dict[tuple[int, str], SideWordings]:
    """Wordings of all relations by a language model; by rules where no reply has a usable one."""
    calls = relation_calls(context, triples)
    count = wanted_wordings(context.config)

    def accept(call: complete.Call, texts: list[str], is_cut: bool) -> str | None:
        return wordings_remark(texts, call.fields["names"], count, SIDES, is_cut=is_cut)

    answers = ask(context, calls, "questions", accept, role="questions")
    tally.take_completions(len(calls), answers)
    wordings = word_by_rules(triples)
    for call in calls:
        relation, texts = call.fields["relation"], answers.texts[call.item]
        by_side, defects = usable_wordings(texts, call.fields["names"])
        tally.wordings.update(defect for _, _, defect in defects)
        lacking = [side for side in SIDES if not getattr(by_side, side)]
        if lacking:
            reason = answers.rejected.get(call.item) or f"no wording asks for the {lacking[0]}"
            tally.quarantine(call.item, f"{reason}; rules word it", texts)
        for side in SIDES:
            if side not in lacking:
                wordings[relation, side] = SideWordings.from_texts(getattr(by_side, side), "llm")
    if tally.quarantined:
        say(
            f"  questions: rules word {len(tally.quarantined):,} of {len(calls):,} relations, for "
            f"which no reply could be used: {QUARANTINE_FILE} has the replies"
        )
    return wordings
