"""Questions whose answer is one end of a triple: their form, their table, what was left out."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.llm import complete
from ark_jax.llm.pricing import Usage
from ark_jax.pipeline.tables import save_rows
from ark_jax.runtime.distributed import is_first_process

LEAK = "the answer is in the question"
NAMELESS = "the other end has no name"
QUESTIONS_FILE, QUARANTINE_FILE = "questions.parquet", "quarantine.parquet"
_SCHEMA = pa.schema(
    [("row", pa.int64()), ("side", pa.string()), ("text", pa.string()), ("source", pa.string())]
)
_BATCH = 1 << 16  # rows of the table in memory


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
    """Writes the table batch by batch, from process 0; returns how many questions there are."""
    writer = pq.ParquetWriter(folder / QUESTIONS_FILE, _SCHEMA) if is_first_process() else None
    count = 0
    columns: list[list] = [[] for _ in _SCHEMA]

    def flush() -> None:
        if writer and columns[0]:
            writer.write_table(pa.table(columns, schema=_SCHEMA))
        for column in columns:
            column.clear()

    try:
        for question in questions:
            values = (question.row, question.side, question.text, question.source)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
            count += 1
            if len(columns[0]) == _BATCH:
                flush()
        flush()
    finally:
        if writer:
            writer.close()
    return count


@dataclasses.dataclass
class Tally:
    """What was asked for and what came of it.

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

    def drop(self, reason: str) -> None:
        self.dropped[reason] += 1

    def take_obstacles(self, obstacles: Iterable[str]) -> None:
        """Counts ends that cannot be asked for: NAMELESS or LEAK."""
        for obstacle in obstacles:
            self.nameless += obstacle == NAMELESS
            if obstacle == LEAK:
                self.drop(LEAK)
                self.unasked += 1

    def quarantine(self, item: str, reason: str, texts: Sequence[str]) -> None:
        self.quarantined.append({"item": item, "reason": reason, "text": "\n".join(texts)})

    def take_completions(self, calls: int, answers: complete.Completions) -> None:
        self.calls, self.drifted, self.usage = calls, len(answers.drifted), answers.usage

    def save_quarantine(self, folder: Path) -> None:
        save_rows(self.quarantined, folder / QUARANTINE_FILE, QuarantinedReply)

    def counts(self) -> dict:
        """For the manifest of the stage."""
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
