"""The questions stage: from the graph alone, by wordings of relations or triple by triple."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.graph.triples import Triples, relation_texts
from ark_jax.llm import complete
from ark_jax.llm.relation_questions import usable_wordings, wordings_remark
from ark_jax.llm.triple_questions import SIDES, AskedEnd, questions_remark, sort_questions
from ark_jax.llm.triple_wordings import PLACEHOLDER, word_relation
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core.ask import ask
from ark_jax.recipes.documents.written_questions import writes_by_rules
from ark_jax.recipes.gpr.masked_questions import (
    LEAK,
    NAMELESS,
    QUARANTINE_FILE,
    AskedTriples,
    MaskedQuestion,
    Tally,
    Triple,
    hash_triples,
    save_questions,
    triples_at,
)
from ark_jax.runtime.log import say
from ark_jax.text import prompts
from ark_jax.text.word_boundaries import contains_words

EXAMPLES = 5  # facts of a relation that a model is shown


@dataclasses.dataclass(frozen=True)
class SideWordings:
    """Questions for one end of a relation, each in two parts, before and after the known name.

    Attributes:
        cut: (text before the name, text after it) of each wording.
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
                tally.count_obstacles([NAMELESS])
                continue
            side_wordings = wordings[triple.relation, side]
            start = int(triples.draw(triple, side) * len(side_wordings.cut))
            answers = triples.nodes.answers(wanted)
            texts = _filled_wordings(side_wordings, start, name, answers, count)
            if not texts:
                tally.count_obstacles([LEAK])
            for text in texts:
                yield MaskedQuestion(triple.row, side, text, side_wordings.source)


def _filled_wordings(
    wordings: SideWordings, start: int, name: str, answers: Sequence[str], count: int
) -> list[str]:
    """Up to `count` questions that hold no answer.

    Wordings are tried from the one at `start` on; after the last one comes the first.
    """
    texts: list[str] = []
    for i in range(len(wordings.cut)):
        head, tail = wordings.cut[(start + i) % len(wordings.cut)]
        text = head + name + tail
        if not any(contains_words(text, answer) for answer in answers):
            texts.append(text)
            if len(texts) == count:
                break
    return texts


# --- by rules -------------------------------------------------------------------------------------


def word_by_rules(triples: AskedTriples) -> dict[tuple[int, str], SideWordings]:
    """(relation, side) -> wordings, from the names of relations alone."""
    wordings = {}
    for relation, text in enumerate(relation_texts(triples.graph, "last")):
        by_side = word_relation(text)
        for side in SIDES:
            wordings[relation, side] = SideWordings.from_texts(getattr(by_side, side), "template")
    return wordings


# --- by a language model --------------------------------------------------------------------------


def wanted_wordings(config) -> int:
    """The number of wordings that a model is asked for, for each side of a relation."""
    return max(config.questions.wordings, config.questions.per_triple)


def relation_calls(context: Context, triples: AskedTriples) -> list[complete.Call]:
    """A call for every relation of the triples that are asked about."""
    config = context.config
    template = prompts.load_template("relation_wordings", config.prompts.relation_wordings)
    texts = relation_texts(triples.graph, config.data.relations)
    examples = _example_triples(triples)
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


def _example_triples(triples: AskedTriples) -> dict[int, list[Triple]]:
    """relation -> up to `EXAMPLES` triples, those with two names first, in an order of hashes.

    The order does not depend on the seed, so runs of several seeds send the same prompts.
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
    """(relation, side) -> wordings of a language model, or of rules if no reply is usable."""
    calls = relation_calls(context, triples)
    count = wanted_wordings(context.config)

    def accept(call: complete.Call, texts: list[str], is_cut: bool) -> str | None:
        return wordings_remark(texts, call.fields["names"], count, SIDES, is_cut=is_cut)

    answers = ask(context, calls, "questions", accept, role="questions")
    tally.count_completions(len(calls), answers)
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


def triple_calls(context: Context, triples: AskedTriples) -> list[complete.Call]:
    """A call for every `questions.triples_per_prompt` triples with an end that can be asked for."""
    config, nodes = context.config, triples.nodes
    template = prompts.load_template("triple_questions", config.prompts.triple_questions)
    texts = relation_texts(triples.graph, config.data.relations)
    calls, size = [], config.questions.triples_per_prompt
    sides_of = lambda triple: [side for side in SIDES if not _obstacle(triple, side, triples)]
    askable = [(triple, sides) for triple in triples if (sides := sides_of(triple))]
    for start in range(0, len(askable), size):
        part, lines, asked = askable[start : start + size], [], []
        for i, (triple, sides) in enumerate(part, 1):
            fact = (nodes.shown(triple.head), texts[triple.relation], nodes.shown(triple.tail))
            lines.append(f"{i}. {' | '.join(fact)} (ask for: {' and '.join(sides)})")
            for side in sides:
                known, wanted = triple.ends(side)
                asked.append(AskedEnd(i, side, nodes.names[known], nodes.answers(wanted)))
        facts, count = "\n".join(lines), config.questions.per_triple
        filled = prompts.fill(template, facts=facts, count=count)
        fields = {"rows": [triple.row for triple, _ in part], "asked": asked}
        item = f"questions/triples/{start // size}"
        calls.append(complete.Call(item, "questions", (filled,), fields))
    return calls


def _obstacle(triple: Triple, side: str, triples: AskedTriples) -> str:
    """Why an end cannot be asked for; empty if it can.

    The other one must have a name that does not hold the answer, as "Marrowgate Courier" does.
    """
    known, wanted = triple.ends(side)
    name = triples.nodes.names[known]
    if name is None:
        return NAMELESS
    gives_away = any(contains_words(name, answer) for answer in triples.nodes.answers(wanted))
    return LEAK if gives_away else ""


def write_by_triples(
    context: Context, triples: AskedTriples, tally: Tally
) -> Iterator[MaskedQuestion]:
    """The usable questions of the model's replies, in order of rows.

    Questions that are left out are counted in `tally` during the iteration.
    """
    calls = triple_calls(context, triples)
    count = context.config.questions.per_triple

    def accept(call: complete.Call, texts: list[str], is_cut: bool) -> str | None:
        return questions_remark(texts, call.fields["asked"], count, is_cut=is_cut)

    answers = ask(context, calls, "questions", accept, role="questions")
    tally.count_completions(len(calls), answers)
    tally.ends = len(triples.rows) * len(SIDES)
    for triple in triples:
        tally.count_obstacles(_obstacle(triple, side, triples) for side in SIDES)
    for call in calls:
        texts = answers.texts[call.item]
        usable, defects = sort_questions(texts, call.fields["asked"], count)
        tally.dropped.update(defect for _, defect in defects)
        if not any(usable.values()):
            remark = questions_remark(texts[-1:], call.fields["asked"], count)
            tally.quarantine(call.item, answers.rejected.get(call.item) or str(remark), texts)
        for end, questions in usable.items():
            tally.unasked += not questions
            row = call.fields["rows"][end.number - 1]
            for text in questions:
                yield MaskedQuestion(row, end.side, text, "llm")


def write_questions(context: Context, folder: Path) -> dict:
    """Words questions about the graph's triples, to train on."""
    triples, tally = asked_triples(context), Tally()
    written = save_questions(_written_questions(context, triples, tally), folder)
    tally.save_quarantine(folder)
    if not written:
        raise ValueError(_no_question_message(len(triples.rows), tally))
    if writes_by_rules(context.config):
        say("  rules word the questions by the names of relations; a model's are better")
    return {"triples": len(triples.rows), "questions": written, **tally.counts()}


def _no_question_message(triples: int, tally: Tally) -> str:
    counts = {NAMELESS: tally.nameless, **dict(tally.dropped.most_common())}
    reasons = [f"{n:,} times {reason}" for reason, n in counts.items() if n]
    if tally.quarantined:
        first = tally.quarantined[0]
        reasons.append(f"{len(tally.quarantined):,} replies of no use, {first['item']} first")
    return (
        f"no question about {triples:,} triples is left ({'; '.join(reasons)}): give names "
        "(config.data.names), ask another model (config.llm.model), or let rules write "
        "(--config.llm.backend=none --config.questions.by=relations)"
    )


def _written_questions(
    context: Context, triples: AskedTriples, tally: Tally
) -> Iterator[MaskedQuestion]:
    """The questions, by rules or by a model as the config says."""
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
