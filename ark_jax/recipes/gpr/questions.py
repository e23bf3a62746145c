"""The questions stage: from the graph alone, by wordings of relations or triple by triple.

First come the triples to ask about, and the questions whose answer is one end of a triple.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.graph.triples import Triples, relation_texts
from ark_jax.llm import complete
from ark_jax.llm.pricing import Usage
from ark_jax.llm.relation_questions import usable_wordings, wordings_remark
from ark_jax.llm.triple_questions import SIDES, AskedEnd, questions_remark, sort_questions
from ark_jax.llm.triple_wordings import PLACEHOLDER, word_relation
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.core.ask import ask
from ark_jax.recipes.core.split import uniform
from ark_jax.recipes.documents.written_questions import writes_by_rules
from ark_jax.runtime.distributed import is_first_process
from ark_jax.runtime.log import say
from ark_jax.text import prompts
from ark_jax.text.word_boundaries import contains_words

_TRIPLES_AT_ONCE = 1 << 16


def hash_triples(graph: Triples, seed: int) -> np.ndarray:
    """A number in [0, 1) for each triple, from a hash of its ids; it ignores other triples."""
    numbers = (uniform(f"{seed} {head}\t{relation}\t{tail}") for head, relation, tail in graph)
    return np.fromiter(numbers, np.float64, len(graph))


def draw_rows(graph: Triples, count: int, seed: int) -> np.ndarray:
    """The rows to ask about, in order: `count` drawn evenly over the relations by hashes.

    A relation with fewer triples than its share leaves the rest to the others.

    Args:
        count: 0 or less: all rows.
    """
    if count <= 0 or count >= len(graph):
        return np.arange(len(graph))
    order = np.lexsort((hash_triples(graph, seed), graph.relation))
    sizes = np.bincount(graph.relation, minlength=len(graph.relations))
    ends = np.cumsum(sizes)
    shares = _even_shares(sizes, count)
    parts = zip(ends - sizes, shares, strict=True)
    return np.sort(np.concatenate([order[start : start + share] for start, share in parts]))


def _even_shares(sizes: np.ndarray, count: int) -> np.ndarray:
    """The number of triples to draw of each relation: `count` in all, none above its size."""
    shares = np.zeros_like(sizes)
    while (lacking := count - int(shares.sum())) > 0:
        unfilled = np.flatnonzero(shares < sizes)
        if lacking < len(unfilled):
            # The remainder goes to the relations with most triples.
            largest = np.argsort(-sizes[unfilled], kind="stable")
            shares[unfilled[largest[:lacking]]] += 1
            break
        step = min(lacking // len(unfilled), int((sizes - shares)[unfilled].min()))
        shares[unfilled] += max(step, 1)
    return shares


@dataclasses.dataclass(frozen=True)
class NodeNames:
    """What the nodes of a graph are called.

    Attributes:
        names: a name for each node, or None.
        ids: the id of each node.
        aliases: node -> its other names, for nodes that have some.
    """

    names: Sequence[str | None]
    ids: Sequence[str]
    aliases: dict[int, tuple[str, ...]]

    @classmethod
    def from_graph(cls, graph: Triples) -> "NodeNames":
        lengths = np.diff(graph.nodes.aliases.offsets.to_numpy())
        with_aliases = np.flatnonzero(lengths).tolist()
        aliases = {node: tuple(graph.nodes.aliases[node].as_py()) for node in with_aliases}
        return cls(graph.nodes.names.to_pylist(), graph.nodes.ids.to_pylist(), aliases)

    def answers(self, node: int) -> tuple[str, ...]:
        """All names of the node, or its id, which a question for it must not hold."""
        name = self.names[node] or self.ids[node]
        return name, *self.aliases.get(node, ())

    def shown(self, node: int) -> str:
        """What a prompt calls the node."""
        return self.names[node] or "(without a name)"


@dataclasses.dataclass(frozen=True)
class Triple:
    """One row of the graph, as indices of its nodes and its relation."""

    row: int
    head: int
    relation: int
    tail: int

    def ends(self, side: str) -> tuple[int, int]:
        """The known node and the wanted one, if the end at `side` is asked for."""
        return (self.tail, self.head) if side == "head" else (self.head, self.tail)


def triples_at(graph: Triples, rows: np.ndarray) -> Iterator[Triple]:
    """The triples at these rows, in this order."""
    for start in range(0, len(rows), _TRIPLES_AT_ONCE):
        batch = rows[start : start + _TRIPLES_AT_ONCE]
        columns = (batch, graph.head[batch], graph.relation[batch], graph.tail[batch])
        yield from map(Triple, *(column.tolist() for column in columns))


@dataclasses.dataclass(frozen=True)
class AskedTriples:
    """The triples that questions are asked about, and what they are called.

    Attributes:
        rows: of the graph, in order.
        seed: of the draws among wordings.
    """

    graph: Triples
    rows: np.ndarray
    seed: int

    @classmethod
    def from_config(cls, graph: Triples, config) -> "AskedTriples":
        rows = draw_rows(graph, config.questions.triples, config.seed)
        return cls(graph, rows, config.seed)

    @functools.cached_property
    def nodes(self) -> NodeNames:
        return NodeNames.from_graph(self.graph)

    def __iter__(self) -> Iterator[Triple]:
        return triples_at(self.graph, self.rows)

    def draw(self, triple: Triple, side: str) -> float:
        """A number in [0, 1) by a hash of the triple's ids and the side."""
        head, tail = self.nodes.ids[triple.head], self.nodes.ids[triple.tail]
        return uniform(f"{self.seed} {side} {head}\t{self.relations[triple.relation]}\t{tail}")

    @functools.cached_property
    def relations(self) -> list[str]:
        """The ids of all relations of the graph."""
        return self.graph.relations.ids.to_pylist()


LEAK = "the answer is in the question"
NAMELESS = "the other end has no name"
QUESTIONS_FILE, QUARANTINE_FILE = "questions.parquet", "quarantine.parquet"
_SCHEMA = pa.schema(
    [("row", pa.int64()), ("side", pa.string()), ("text", pa.string()), ("source", pa.string())]
)
_QUESTIONS_AT_ONCE = 1 << 16  # rows of the table in memory


@dataclasses.dataclass(frozen=True, slots=True)
class MaskedQuestion:
    """A question about a triple of the graph.

    Attributes:
        row: of the triple in the graph.
        side: "head" or "tail": the end that is masked, and asked for.
        source: who wrote it, "template" or "llm".
    """

    row: int
    side: str
    text: str
    source: str = "template"


def save_questions(questions: Iterable[MaskedQuestion], folder: Path) -> int:
    """Writes the table in batches, on the first process; returns the number of questions."""
    count, left = 0, iter(questions)
    first = is_first_process()
    with pq.ParquetWriter(folder / QUESTIONS_FILE, _SCHEMA) if first else nullcontext() as writer:
        while block := list(itertools.islice(left, _QUESTIONS_AT_ONCE)):
            count += len(block)
            if writer:
                columns = [[getattr(x, name) for x in block] for name in _SCHEMA.names]
                writer.write_table(pa.table(columns, schema=_SCHEMA))
    return count


@dataclasses.dataclass
class Tally:
    """What the stage asked for, got and left out.

    Attributes:
        ends: of triples that a question was wanted for.
        nameless: ends that cannot be asked for, since the other end has no name.
        unasked: other ends that are left without a question.
        calls: to the language model.
        drifted: calls whose recorded reply belongs to another version of the prompt.
        dropped: questions left out, by reason.
        wordings: wordings of relations left out, by reason.
        quarantined: replies that nothing could be read from.
        usage: requests, tokens and cost of the calls.
    """

    ends: int = 0
    nameless: int = 0
    unasked: int = 0
    calls: int = 0
    drifted: int = 0
    dropped: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    wordings: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    quarantined: list[dict] = dataclasses.field(default_factory=list)
    usage: Usage = dataclasses.field(default_factory=lambda: Usage(0))

    def count_obstacles(self, obstacles: Iterable[str]) -> None:
        """Counts ends that cannot be asked for: NAMELESS or LEAK. "" is no obstacle."""
        for obstacle in obstacles:
            self.nameless += obstacle == NAMELESS
            if obstacle == LEAK:
                self.dropped[LEAK] += 1
                self.unasked += 1

    def quarantine(self, item: str, reason: str, texts: Sequence[str]) -> None:
        self.quarantined.append({"item": item, "reason": reason, "text": "\n".join(texts)})

    def count_completions(self, calls: int, answers: complete.Completions) -> None:
        self.calls, self.drifted, self.usage = calls, len(answers.drifted), answers.usage

    def save_quarantine(self, folder: Path) -> None:
        save_rows(self.quarantined, folder / QUARANTINE_FILE, QuarantinedReply)

    def counts(self) -> dict:
        """The counts for the stage's manifest."""
        return {
            "ends_asked_for": self.ends,
            "ends_without_a_name_to_ask_by": self.nameless,
            "ends_without_a_question": self.unasked,
            "dropped": self.dropped.total(),
            "drop_reasons": dict(self.dropped.most_common()),
            "dropped_wordings": dict(self.wordings.most_common()),
            "calls": self.calls,
            "quarantined": len(self.quarantined),
            "drifted_prompts": self.drifted,
            "llm": dataclasses.asdict(self.usage),
        }


@dataclasses.dataclass(frozen=True)
class QuarantinedReply:
    """A call whose replies could not be used, and why."""

    item: str
    reason: str
    text: str


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


def word_by_rules(triples: AskedTriples) -> dict[tuple[int, str], SideWordings]:
    """(relation, side) -> wordings, from the names of relations alone."""
    wordings = {}
    for relation, text in enumerate(relation_texts(triples.graph, "last")):
        by_side = word_relation(text)
        for side in SIDES:
            wordings[relation, side] = SideWordings.from_texts(getattr(by_side, side), "template")
    return wordings


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
