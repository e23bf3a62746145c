"""Triples to ask about, and the questions whose answer is one end of a triple."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.graph.triples import Triples
from ark_jax.llm import complete
from ark_jax.llm.pricing import Usage
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.core.split import uniform
from ark_jax.runtime.distributed import is_first_process

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
