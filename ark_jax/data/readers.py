"""Documents and questions from files in the known formats, or everything that is wrong with the files.

A row with a problem gives no record, but reading goes on: `ark-jax check` shows all problems at once.
"""

import csv
import difflib
import io
import itertools
import json
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ark_jax import bucket
from ark_jax.data import formats
from ark_jax.data.formats import Row
from ark_jax.data.records import BadInput, Corpus, Document, Problem, Question

PLAIN = ("documents.jsonl", "questions.jsonl")
SHEETS = ("section-stories", "questions")  # FairytaleQA's folders of CSV files
BLANKS = re.compile(r"[ \t\r\n]*")


def load(path: str | Path) -> Corpus:
    """Reads a file or folder; raises BadInput with every problem if there is any."""
    corpus, problems = read(path)
    if problems:
        raise BadInput(problems)
    return corpus


def read(path: str | Path) -> tuple[Corpus, list[Problem]]:
    """Reads a file or folder in any known format, recognised by what it holds.

    `formats.KNOWN` says what they are. FairytaleQA is a folder with section-stories/ and questions/, whose
    CSV files may lie in subfolders (train, val); all are read, or only one split if path is questions/SPLIT
    or section-stories/SPLIT. Its question ids are "story:question_id", and ":2" is added where a question_id
    of a story numbers a second question. A section number given to two sections stands for both.
    """
    path = bucket.local(str(path))
    if not path.is_dir():
        return _file(path)
    if any((path / name).exists() for name in PLAIN):
        return _plain(path)
    if tree := _tree(path):
        return _fairytale(*tree)
    names = sorted(child.name for child in path.iterdir())
    holds = f"holds {', '.join(names[:5])}{', ...' * (len(names) > 5)}" if names else "is an empty folder"
    return Corpus([], [], ""), [_problem(path, f"{holds}, no known format; give {formats.KNOWN}")]


def files(path: Path) -> list[Path]:
    """The files that `read` opens, in order; what else lies beside them is nothing to it."""
    if not path.is_dir():
        return [path]
    if any((path / name).exists() for name in PLAIN):
        return [path / name for name in PLAIN]
    root, split = _tree(path) or (path, "")
    return [file for kind in SHEETS for file in _sheets(root / kind / split, [])]


def _tree(path: Path) -> tuple[Path, str] | None:
    """FairytaleQA's root and the split that a folder stands for, "" being all; None: the folder is another's."""
    if any((path / name).is_dir() for name in SHEETS):
        return path, ""
    return (path.parent.parent, path.name) if path.parent.name in SHEETS else None


def summary(corpus: Corpus) -> str:
    """A few lines on what was read."""
    documents, questions = corpus.documents, corpus.questions
    words = statistics.median([len(document.text.split()) for document in documents] or [0])
    answers = statistics.fmean([len(question.answers) for question in questions] or [0])
    evidence = statistics.fmean([bool(question.evidence) for question in questions] or [0])
    return (f"format: {corpus.format or 'unknown'}\n"
            f"documents: {len(documents):,}, median {words:,.0f} words\n"
            f"questions: {len(questions):,}, {answers:.2f} answers each\n"
            f"evidence: given for {evidence:.0%} of the questions"
            + (f"\npassed over: {len(corpus.remarks):,}" if corpus.remarks else ""))


def _plain(folder: Path) -> tuple[Corpus, list[Problem]]:
    problems: list[Problem] = []
    documents: dict[str, Document] = {}
    questions: list[Question] = []
    known: dict[str, int] = {}
    for row in _json_rows(folder / "documents.jsonl", problems):
        document = formats.plain_document(row)
        row.claim(known, "id", document.id)
        if row.ok:
            documents[document.id] = document
        problems += row.problems
    taken: dict[str, int] = {}
    for row in _json_rows(folder / "questions.jsonl", problems):
        question = formats.plain_question(row)
        row.claim(taken, "id", question.id)
        # Without any document the one problem is documents.jsonl, not each question.
        for name in question.documents if known else ():
            if name not in known:
                row.wrong("documents", f"{name!r} is not found in documents.jsonl",
                          "add that document or mend the id")
        if all(name in documents for name in question.documents):
            formats.check_evidence(row, question, [documents[name].text for name in question.documents])
        if row.ok:
            questions.append(question)
        problems += row.problems
    return _corpus(documents, questions, "plain"), problems


def _file(path: Path) -> tuple[Corpus, list[Problem]]:
    """A JSON or JSONL file of questions that carry their contexts."""
    problems: list[Problem] = []
    documents: dict[str, Document] = {}
    questions: list[Question] = []
    remarks: list[Problem] = []
    rows = _json_rows(path, problems)
    looked, name = [], ""
    for row in rows:
        looked.append(row)
        if name := formats.recognise(row.values):
            break
    if not name:
        if looked:
            fields = list(looked[0].values)[:8]
            problems.append(_problem(path, f"no known format has rows with the fields {fields}; give "
                                           f"{formats.KNOWN}", looked[0].line))
        return Corpus([], [], ""), problems
    parse = {"longbench": formats.longbench, "musique": formats.musique}.get(name, formats.hotpotqa)
    taken: dict[str, int] = {}
    for row in itertools.chain(looked, rows):
        found, question = parse(row)
        if row.ok:
            row.claim(taken, "id" if name == "musique" else row.key, question.id)
        if row.ok:
            documents.update((document.id, document) for document in found)
            questions.append(question)
            remarks += row.remarks
        problems += row.problems
    return _corpus(documents, questions, name, remarks), problems


def _fairytale(root: Path, split: str) -> tuple[Corpus, list[Problem]]:
    problems: list[Problem] = []
    documents: dict[str, Document] = {}
    questions: list[Question] = []
    files: dict[str, Path] = {}
    sections: dict[str, dict[str, list[str]]] = {}
    for file in _sheets(root / "section-stories" / split, problems):
        story = file.stem.removesuffix("-story")
        if story in files:
            problems.append(_problem(file, f"the story {story!r} is also in {files[story]}; delete one"))
            continue
        files[story], before = file, len(problems)
        rows = list(_csv_rows(file, ("section", "text"), problems))
        document, texts = formats.fairytale_story(story, rows)
        problems += itertools.chain(*(row.problems for row in rows))
        if len(problems) == before:
            documents[story], sections[story] = document, texts
    asked: dict[str, Path] = {}
    for file in _sheets(root / "questions" / split, problems):
        story = file.stem.removesuffix("-questions")
        if story in asked:
            problems.append(_problem(file, f"questions on {story!r} are also in {asked[story]}; delete one"))
        elif files and story not in files:
            problems.append(_problem(file, f"the story {story!r} is not found in section-stories; add "
                                           f"{story}-story.csv or delete this file"))
        else:
            rows = list(_csv_rows(file, ("question_id", "cor_section", "question", "answer1"), problems))
            questions += formats.fairytale_questions(story, rows, sections.get(story))
            problems += itertools.chain(*(row.problems for row in rows))
        asked.setdefault(story, file)
    return _corpus(documents, questions, "fairytaleqa"), problems


def _corpus(documents: dict[str, Document], questions: list[Question], name: str, remarks: Sequence[Problem] = ()) -> Corpus:
    """Leaves out questions on documents that have problems themselves."""
    whole = [question for question in questions if documents.keys() >= set(question.documents)]
    return Corpus(list(documents.values()), whole, name, list(remarks))


def _problem(path: Path, message: str, line: int = 0) -> Problem:
    return Problem(str(path), line, "", message)


def _missing(path: Path) -> Problem:
    if not path.parent.is_dir():
        return _problem(path, f"does not exist, nor does the folder {path.parent}; mend the path")
    near = difflib.get_close_matches(path.name, [child.name for child in path.parent.iterdir()], 3)
    fix = f"did you mean {' or '.join(near)}?" if near else f"mend the path, or put it into {path.parent}"
    return _problem(path, f"does not exist; {fix}")


def _sheets(folder: Path, problems: list[Problem]) -> list[Path]:
    """The CSV files in a folder and below it."""
    found = sorted(folder.rglob("*.csv")) if folder.is_dir() else []
    if not folder.exists():
        problems.append(_missing(folder))
    elif not found:
        problems.append(_problem(folder, "holds no CSV file; put FairytaleQA's there"))
    return found


def _text(path: Path, problems: list[Problem]) -> str:
    """A file as text. A byte that is not UTF-8 is reported, and kept as a surrogate, which no row accepts."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        problems.append(_missing(path))
        return ""
    except OSError as error:
        problems.append(_problem(path, f"cannot be read ({error.strerror}); give a readable file"))
        return ""
    if b"\0" in data[:4096]:
        problems.append(_problem(path, "is binary or UTF-16, not UTF-8 text; save it as UTF-8"))
        return ""
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if not text.strip():
        problems.append(_problem(path, "is empty; fill it or give another file"))
    for number, line in enumerate(data.split(b"\n"), 1) if formats.unwritable(text) else ():
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            at = error.start
            problems.append(_problem(path, f"byte {at + 1} of line {number} (0x{line[at]:02x}) is not UTF-8; "
                                           "save the file as UTF-8", number))
    return text


def _json_rows(path: Path, problems: list[Problem]) -> Iterator[Row]:
    """The objects of a JSON array or of a JSONL file."""
    text = _text(path, problems)
    if text.lstrip().startswith("["):
        yield from _array_rows(text, path, problems)
        return
    # Not splitlines: JSON strings may hold U+2028 and its like.
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip() or formats.unwritable(line):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if line.strip() == "{":
                problems.append(_problem(path, "the object runs over several lines; write each object on one "
                                               "line, or all in one array, [...]", number))
                return
            fix = ("its lines end as on old Macs: save it with line ends of Unix or Windows" if "\r{" in line
                   else "the last line is cut off: copy the file again or delete the line" if number == len(lines)
                   else "mend the line")
            problems.append(_problem(path, f"{_invalid(error)}; {fix}", number))
            continue
        if isinstance(value, dict):
            yield Row(str(path), number, value)
        else:
            kind = formats.KINDS[type(value)]
            problems.append(_problem(path, f"the line is {kind}; write an object, {{...}}", number))


def _array_rows(text: str, path: Path, problems: list[Problem]) -> Iterator[Row]:
    """One element at a time, so that what comes before a syntax error is still read."""
    decoder = json.JSONDecoder()
    at, number = BLANKS.match(text, text.index("[") + 1).end(), 0
    if text.startswith("]", at):
        problems.append(_problem(path, "is an empty array; fill it or give another file"))
        return
    try:
        while text[at - 1] != "]" or not number:
            number += 1
            value, at = decoder.raw_decode(text, BLANKS.match(text, at).end())
            if isinstance(value, dict):
                yield Row(str(path), number, value, unit="row")
            else:
                kind = formats.KINDS[type(value)]
                problems.append(_problem(path, f"row {number} is {kind}; write an object, {{...}}", number))
            at = BLANKS.match(text, at).end() + 1
            if text[at - 1 : at] not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, at - 1)
        if text[at:].strip():
            raise json.JSONDecodeError("Text after the array", text, BLANKS.match(text, at).end())
    except (ValueError, RecursionError) as error:
        problems.append(_problem(path, f"row {number}: {_invalid(error)}; mend it, or copy the file again if "
                                       "it is cut off: nothing behind it was read", number))


def _invalid(error: Exception) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return f"invalid JSON ({error})"
    line = f"line {error.lineno}, " if "\n" in error.doc else ""
    return f"invalid JSON at {line}column {error.colno} ({error.msg})"


def _csv_rows(path: Path, columns: tuple[str, ...], problems: list[Problem]) -> Iterator[Row]:
    """The rows of a CSV file with a header, each at the line where it begins."""
    text = _text(path, problems)
    csv.field_size_limit(sys.maxsize)  # else a cell of 128 KiB, which a long section fills, is called broken
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header, after, found = [], 1, False
    try:
        for cells in reader:
            line, after = after, reader.line_num + 1
            if not any(cells):
                continue
            if not header:
                header = cells
                if lacking := [name for name in columns if name not in header]:
                    problems.append(Problem(str(path), line, lacking[0], f"no such column among {header}; "
                                            f"name {', '.join(columns)} in the first line"))
                    return
                continue
            found = True
            if len(cells) == len(header):
                yield Row(str(path), line, dict(zip(header, cells, strict=True)))
            else:
                problems.append(_problem(path, f"{len(cells)} cells under a header of {len(header)}; put "
                                               "cells that hold commas or line breaks in quotes", line))
        if text and not found:
            problems.append(_problem(path, "holds no row below the header; add one or delete the file"))
    except csv.Error as error:
        problems.append(_problem(path, f"the row is broken CSV ({error}); check its quotes", after))
