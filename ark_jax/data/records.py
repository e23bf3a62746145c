"""What the pipeline is fed: documents, questions with answers, and the problems found while reading them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Document:
    id: str
    title: str
    text: str


@dataclasses.dataclass(frozen=True)
class Question:
    """`documents` are where the answer may be sought; `evidence` are verbatim passages known to hold it."""

    id: str
    question: str
    answers: tuple[str, ...]
    documents: tuple[str, ...]
    evidence: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Chunk:
    """`document.text[start:end]` without outer blanks; `tokens` is its length before trimming."""

    id: str
    document: str
    start: int
    end: int
    tokens: int
    text: str


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing wrong with an input file: where, what, and how to mend it or what becomes of it.

    `line` counts from 1; 0 is the file.
    """

    file: str
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.field + ': ' if self.field else ''}{self.message}"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """`remarks` tell what of a file stands for nothing, and is passed over."""

    documents: list[Document]
    questions: list[Question]
    format: str
    remarks: list[Problem] = dataclasses.field(default_factory=list)


class BadInput(ValueError):
    """Input that must be mended before any work is spent; carries every problem found."""

    def __init__(self, problems: list[Problem]):
        self.problems = problems
        shown = "\n".join(f"  {p}" for p in problems[:20])
        more = f"\n  and {len(problems) - 20} more; `ark-jax check` lists all" if len(problems) > 20 else ""
        super().__init__(f"{len(problems)} problem(s) in the input:\n{shown}{more}")
