"""Questions that a language model writes about several triples in each prompt."""

import dataclasses
from collections.abc import Iterator, Sequence

from ark_jax.graph.triple_texts import relation_texts
from ark_jax.llm import complete
from ark_jax.llm.triple_questions import SIDES, Asked, questions_remark, sort_questions
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.ask import ask
from ark_jax.recipes.gpr.asked_triples import AskedTriples, Triple
from ark_jax.recipes.gpr.masked_questions import LEAK, NAMELESS, MaskedQuestion, Tally
from ark_jax.text import prompts
from ark_jax.text.word_boundaries import contains_words


@dataclasses.dataclass(frozen=True)
class _Fact:
    """A triple with its ends that can be asked for.

    The other end has a name, and this does not hold the answer, as Marrowgate Courier holds
    Marrowgate.
    """

    triple: Triple
    sides: tuple[str, ...]


def triple_calls(context: Context, triples: AskedTriples) -> list[complete.Call]:
    """A call for every `questions.triples_per_prompt` triples with an end that can be asked for."""
    config = context.config
    template = prompts.load_template("triple_questions", config.prompts.triple_questions)
    texts = relation_texts(triples.graph, config.data.relations)
    calls = []
    size = config.questions.triples_per_prompt
    all_facts = list(_facts(triples))
    for start in range(0, len(all_facts), size):
        facts = all_facts[start : start + size]
        lines = [_line(i, fact, triples, texts) for i, fact in enumerate(facts, 1)]
        filled = prompts.fill(
            template, facts="\n".join(lines), count=context.config.questions.per_triple
        )
        fields = {
            "rows": [fact.triple.row for fact in facts],
            "asked": [x for i, fact in enumerate(facts, 1) for x in _ends(i, fact, triples)],
        }
        calls.append(
            complete.Call(f"questions/triples/{start // size}", "questions", (filled,), fields)
        )
    return calls


def _facts(triples: AskedTriples) -> Iterator[_Fact]:
    for triple in triples:
        sides = tuple(side for side in SIDES if not _obstacle(triple, side, triples))
        if sides:
            yield _Fact(triple, sides)


def _obstacle(triple: Triple, side: str, triples: AskedTriples) -> str:
    """Why an end cannot be asked for; empty if it can."""
    known, wanted = triple.ends(side)
    name = triples.nodes.names[known]
    if name is None:
        return NAMELESS
    gives_away = any(contains_words(name, answer) for answer in triples.nodes.answers(wanted))
    return LEAK if gives_away else ""


def _line(number: int, fact: _Fact, triples: AskedTriples, texts: Sequence[str]) -> str:
    triple = fact.triple
    head, tail = triples.nodes.shown(triple.head), triples.nodes.shown(triple.tail)
    ends = " and ".join(fact.sides)
    return f"{number}. {head} | {texts[triple.relation]} | {tail} (ask for: {ends})"


def _ends(number: int, fact: _Fact, triples: AskedTriples) -> Iterator[Asked]:
    for side in fact.sides:
        known, wanted = fact.triple.ends(side)
        yield Asked(number, side, triples.nodes.names[known], triples.nodes.answers(wanted))


def write_by_triples(
    context: Context, triples: AskedTriples, tally: Tally
) -> Iterator[MaskedQuestion]:
    """The usable questions of the model's replies, in order of rows."""
    calls = triple_calls(context, triples)
    count = context.config.questions.per_triple

    def accept(call: complete.Call, texts: list[str], is_cut: bool) -> str | None:
        return questions_remark(texts, call.fields["asked"], count, is_cut=is_cut)

    answers = ask(context, calls, "questions", accept, role="questions")
    tally.take_completions(len(calls), answers)
    tally.ends = len(triples.rows) * len(SIDES)
    for triple in triples:
        tally.take_obstacles(_obstacle(triple, side, triples) for side in SIDES)
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
