"""Questions of our own format, and the checks of questions against documents."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ark_jax.data.formats.base import row_id
from ark_jax.data.problems import Findings
from ark_jax.data.records import Question
from ark_jax.data.rows import InputRow
from ark_jax.data.table_files import rows_of

LISTS = ("answers", "answer", "documents", "evidence")
BLOCK_CHARACTERS = 1 << 20  # of documents that are searched at once


def question_row(row: InputRow, *, needs_id: bool = True) -> Question:
    """A question with answers, documents or evidence; `answer` may be one string."""
    question = row.text("question")
    if "answer" in row.values and "answers" not in row.values:
        single = isinstance(row.values["answer"], str)
        answers = (row.text("answer"),) if single else row.texts("answer")
    else:
        answers = row.texts("answers", required=False)
    documents = tuple(dict.fromkeys(row.texts("documents", required=False)))
    evidence = row.texts("evidence", required=False)
    lists = {row.names.get(name, name) for name in LISTS}
    damaged = lists & {problem.field for problem in row.problems}
    if not (answers or documents or evidence or damaged):
        defect = "is missing, and so are documents and evidence"
        row.add_problem("answers", defect, "add one of them")
    id = row.text("id") if needs_id else row_id(row, question, *answers)
    return Question(id, question, answers, documents, evidence, row.group)


def question_rows(path: Path, findings: Findings) -> Iterator[tuple[InputRow, Question]]:
    """The questions of a file of our own format; rows of JSON must have ids."""
    needs_id = path.suffix in (".jsonl", ".json")
    for row in rows_of(path, findings):
        yield row, question_row(row, needs_id=needs_id)


def check_questions(
    rows: Iterable[tuple[InputRow, Question]],
    findings: Findings,
    texts: Mapping[str, str],
    claimed: Mapping[str, object],
    source: str,
) -> list[Question]:
    """The questions without problems, whose ids differ and whose documents and evidence exist.

    Args:
        rows: rows and the questions in them.
        claimed: ids of all documents of the input, those with problems too.
        source: what holds the documents, as messages name it.
    """
    lines: dict[str, int] = {}
    questions: dict[str, Question] = {}
    unplaced: list[tuple[InputRow, Question]] = []
    for row, question in rows:
        if row.ok and row.key not in row.values and question.id in lines:
            row.remark_repeat(lines[question.id])
            findings.settle(row)
            continue
        row.claim_id(lines, row.key if "_id" in row.values else "id", question.id)
        # Without any document only the lack of documents is reported, not every question.
        for name in question.documents if claimed else ():
            if name not in claimed:
                defect = f"{name!r} is not found in {source}"
                row.add_problem("documents", defect, "add that document or mend the id")
        if question.documents and all(name in texts for name in question.documents):
            if question.evidence:  # else the texts stay on disk
                check_evidence(row, question, [texts[name] for name in question.documents])
        elif question.evidence and not question.documents and texts and row.ok:
            unplaced.append((row, question))
            questions[question.id] = question
            continue
        if findings.settle(row):
            questions[question.id] = question
    absent = _absent_passages(unplaced, texts)
    for row, question in unplaced:
        check_evidence(row, question, [p for p in question.evidence if p not in absent])
        if not findings.settle(row):
            del questions[question.id]
    return list(questions.values())


def check_evidence(row: InputRow, question: Question, texts: list[str]) -> None:
    """Reports evidence passages that do not occur in any of the texts."""
    for i, passage in enumerate(question.evidence, 1):
        if any(passage in text for text in texts):
            continue
        words = " ".join(passage.split())
        differs_in_blanks = any(words in " ".join(text.split()) for text in texts)
        defect = (
            "differs from the document in blanks"
            if differs_in_blanks
            else "is not found in its documents"
        )
        fix = "quote the document letter by letter"
        row.add_problem("evidence", f"item {i} {defect} ({words[:60]!r})", fix)


def _absent_passages(pairs: list[tuple[InputRow, Question]], texts: Mapping[str, str]) -> set[str]:
    """The passages that no document of the corpus holds, by one pass over it."""
    absent = {passage for _, question in pairs for passage in question.evidence}
    for block in _joined_texts(texts) if absent else ():
        absent -= {passage for passage in absent if passage in block}
        if not absent:
            break
    return absent


def _joined_texts(texts: Mapping[str, str]) -> Iterator[str]:
    """The texts, joined to strings of at least BLOCK_CHARACTERS."""
    block, size = [], 0
    for text in texts.values():
        block.append(text)
        size += len(text)
        if size >= BLOCK_CHARACTERS:
            yield "\0".join(block)
            block, size = [], 0
    yield "\0".join(block)
