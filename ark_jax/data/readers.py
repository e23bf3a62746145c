"""Reads documents and questions from a file or folder in a known format, or reports its problems.

A row with a problem gives no record, but reading continues, so that `ark-jax check` shows all
problems.
"""

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

from ark_jax.data import formats
from ark_jax.data.evidence import count_absent_answers
from ark_jax.data.records import BadInput, Corpus, Document, Problem, Question
from ark_jax.data.row_files import csv_files, csv_rows, file_problem, json_rows
from ark_jax.runtime import storage

PLAIN_FILES = ("documents.jsonl", "questions.jsonl")
FAIRYTALE_FOLDERS = ("section-stories", "questions")


def load(path: str | Path) -> Corpus:
    """Reads a file or folder.

    Raises:
        BadInput: the input has problems; it lists all of them.
    """
    corpus, problems = read(path)
    if problems:
        raise BadInput(problems)
    return corpus


def read(path: str | Path) -> tuple[Corpus, list[Problem]]:
    """Reads a file or folder in any known format and recognises the format by the content.

    `formats.KNOWN` lists the formats. FairytaleQA is a folder with section-stories/ and questions/,
    whose CSV files may be in subfolders (train, val). All of them are read, or only one split if
    the path is questions/SPLIT or section-stories/SPLIT. Its question ids are "story:question_id";
    ":2" is appended if a question_id of a story numbers a second question. A section number of two
    sections means both.
    """
    path = storage.local_copy(str(path))
    if not path.is_dir():
        return _read_contexts(path)
    if any((path / name).exists() for name in PLAIN_FILES):
        return _read_plain(path)
    if tree := _fairytale_tree(path):
        return _read_fairytale(*tree)
    names = sorted(child.name for child in path.iterdir())
    content = "is an empty folder"
    if names:
        content = f"holds {', '.join(names[:5])}{', ...' * (len(names) > 5)}"
    problem = file_problem(path, f"{content}, no known format; give {formats.KNOWN}")
    return Corpus([], [], ""), [problem]


def files(path: Path) -> list[Path]:
    """The files that `read` opens, in order; it ignores all others."""
    if not path.is_dir():
        return [path]
    if any((path / name).exists() for name in PLAIN_FILES):
        return [path / name for name in PLAIN_FILES]
    root, split = _fairytale_tree(path) or (path, "")
    return [file for folder in FAIRYTALE_FOLDERS for file in csv_files(root / folder / split, [])]


def _fairytale_tree(path: Path) -> tuple[Path, str] | None:
    """FairytaleQA's root and split ("" for all) that a folder means; None for another folder."""
    if any((path / name).is_dir() for name in FAIRYTALE_FOLDERS):
        return path, ""
    if path.parent.name in FAIRYTALE_FOLDERS:
        return path.parent.parent, path.name
    return None


def summary(corpus: Corpus) -> str:
    """Describes a corpus in a few lines: format, sizes and ignored parts."""
    documents, questions = corpus.documents, corpus.questions
    words = statistics.median([len(document.text.split()) for document in documents] or [0])
    answers = statistics.fmean([len(question.answers) for question in questions] or [0])
    evidence = statistics.fmean([bool(question.evidence) for question in questions] or [0])
    texts = {document.id: document.text for document in documents}
    absent, asked = count_absent_answers(questions, texts)
    return (
        f"format: {corpus.format or 'unknown'}\n"
        f"documents: {len(documents):,}, median {words:,.0f} words\n"
        f"questions: {len(questions):,}, {answers:.2f} answers each\n"
        f"evidence: given for {evidence:.0%} of the questions"
        + (
            f"\nanswers: of {absent:,} of {asked:,} questions, none occurs in their documents word "
            "for word"
            if absent
            else ""
        )
        + (f"\npassed over: {len(corpus.remarks):,}" if corpus.remarks else "")
    )


def _read_plain(folder: Path) -> tuple[Corpus, list[Problem]]:
    problems: list[Problem] = []
    documents: dict[str, Document] = {}
    questions: list[Question] = []
    document_lines: dict[str, int] = {}
    for row in json_rows(folder / "documents.jsonl", problems):
        document = formats.plain_document(row)
        row.claim_id(document_lines, "id", document.id)
        if row.ok:
            documents[document.id] = document
        problems += row.problems
    question_lines: dict[str, int] = {}
    asked = folder / "questions.jsonl"
    for row in json_rows(asked, problems) if asked.exists() else ():  # documents alone will do
        question = formats.plain_question(row)
        row.claim_id(question_lines, "id", question.id)
        # Without any document only documents.jsonl is reported, not every question.
        for name in question.documents if document_lines else ():
            if name not in document_lines:
                defect = f"{name!r} is not found in documents.jsonl"
                row.add_problem("documents", defect, "add that document or mend the id")
        if all(name in documents for name in question.documents):
            texts = [documents[name].text for name in question.documents]
            formats.check_evidence(row, question, texts)
        if row.ok:
            questions.append(question)
        problems += row.problems
    return _corpus(documents, questions, "plain"), problems


def _read_contexts(path: Path) -> tuple[Corpus, list[Problem]]:
    """Reads a JSON or JSONL file whose rows hold a question and its documents."""
    problems: list[Problem] = []
    documents: dict[str, Document] = {}
    questions: list[Question] = []
    remarks: list[Problem] = []
    rows = json_rows(path, problems)
    inspected, name = [], ""
    for row in rows:
        inspected.append(row)
        if name := formats.recognise(row.values):
            break
    if not name:
        if inspected:
            fields = list(inspected[0].values)[:8]
            message = f"no known format has rows with the fields {fields}; give {formats.KNOWN}"
            problems.append(file_problem(path, message, inspected[0].line))
        return Corpus([], [], ""), problems
    parse_row = formats.ROW_PARSERS[name]
    lines: dict[str, int] = {}
    for row in itertools.chain(inspected, rows):
        row_documents, question = parse_row(row)
        if row.ok:
            row.claim_id(lines, "id" if name == "musique" else row.key, question.id)
        if row.ok:
            documents.update((document.id, document) for document in row_documents)
            questions.append(question)
            remarks += row.remarks
        problems += row.problems
    return _corpus(documents, questions, name, remarks), problems


def _read_fairytale(root: Path, split: str) -> tuple[Corpus, list[Problem]]:
    problems: list[Problem] = []
    documents: dict[str, Document] = {}
    story_files: dict[str, Path] = {}
    sections: dict[str, dict[str, list[str]]] = {}
    for file in csv_files(root / "section-stories" / split, problems):
        story = file.stem.removesuffix("-story")
        if story in story_files:
            message = f"the story {story!r} is also in {story_files[story]}; delete one"
            problems.append(file_problem(file, message))
            continue
        story_files[story], before = file, len(problems)
        rows = list(csv_rows(file, ("section", "text"), problems))
        document, texts = formats.fairytale_story(story, rows)
        problems += itertools.chain(*(row.problems for row in rows))
        if len(problems) == before:
            documents[story], sections[story] = document, texts
    questions: list[Question] = []
    sheets: dict[str, Path] = {}
    columns = ("question_id", "cor_section", "question", "answer1")
    for file in csv_files(root / "questions" / split, problems):
        story = file.stem.removesuffix("-questions")
        if story in sheets:
            message = f"questions on {story!r} are also in {sheets[story]}; delete one"
            problems.append(file_problem(file, message))
        elif story_files and story not in story_files:
            message = (
                f"the story {story!r} is not found in section-stories; "
                f"add {story}-story.csv or delete this file"
            )
            problems.append(file_problem(file, message))
        else:
            rows = list(csv_rows(file, columns, problems))
            questions += formats.fairytale_questions(story, rows, sections.get(story))
            problems += itertools.chain(*(row.problems for row in rows))
        sheets.setdefault(story, file)
    return _corpus(documents, questions, "fairytaleqa"), problems


def _corpus(
    documents: dict[str, Document],
    questions: list[Question],
    name: str,
    remarks: Sequence[Problem] = (),
) -> Corpus:
    """A corpus without the questions whose documents have problems."""
    complete = [question for question in questions if documents.keys() >= set(question.documents)]
    return Corpus(list(documents.values()), complete, name, list(remarks))
