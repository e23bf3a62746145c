"""FairytaleQA: a folder of stories and of question sheets, as CSV files."""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

from ark_jax.data.formats.base import Format, complete_corpus
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents
from ark_jax.data.table_files import csv_rows
from ark_jax.data.text_files import missing_file

FOLDERS = ("section-stories", "questions")
SHEET_COLUMNS = ("question_id", "cor_section", "question", "answer1")


def recognises(path: Path) -> bool:
    """Whether a path is a folder of FairytaleQA, or of one of its splits."""
    return _root_and_split(path) is not None


def _root_and_split(path: Path) -> tuple[Path, str] | None:
    """The root and the split ("" for all) of a folder of FairytaleQA; None for another folder."""
    if any((path / name).is_dir() for name in FOLDERS):
        return path, ""
    if path.parent.name in FOLDERS:
        return path.parent.parent, path.name
    return None


def files(path: Path) -> list[Path]:
    """The files that `read` opens, in order."""
    root, split = _root_and_split(path)
    return [file for name in FOLDERS for file in _csv_files(root / name / split, Findings())]


def _csv_files(folder: Path, findings: Findings) -> list[Path]:
    """The CSV files in a folder and its subfolders, in order; a problem if there is none."""
    paths = sorted(folder.rglob("*.csv")) if folder.is_dir() else []
    if not folder.exists():
        findings.problems.add(folder, missing_file(folder))
    elif not paths:
        findings.problems.add(folder, "holds no CSV file; put FairytaleQA's there")
    return paths


def read(path: Path, findings: Findings) -> Corpus:
    """Reads all CSV files, in subfolders too (train, val), or those of a split.

    The path is the root, or questions/SPLIT or section-stories/SPLIT. Question ids are
    "story:question_id"; ":2" is appended if a question_id of a story numbers a second question. A
    section number of two sections means both.
    """
    root, split = _root_and_split(path)
    documents = Documents()
    story_files: dict[str, Path] = {}
    sections: dict[str, dict[str, list[str]]] = {}
    for file in _csv_files(root / "section-stories" / split, findings):
        story = file.stem.removesuffix("-story")
        if story in story_files:
            message = f"the story {story!r} is also in {story_files[story]}; delete one"
            findings.problems.add(file, message)
            continue
        story_files[story], count = file, findings.problems.total
        rows = list(csv_rows(file, ("section", "text"), findings))
        document, texts = fairytale_story(story, rows)
        findings.problems += itertools.chain(*(row.problems for row in rows))
        if findings.problems.total == count:
            documents.append(document)
            sections[story] = texts
    questions: list[Question] = []
    sheets: dict[str, Path] = {}
    for file in _csv_files(root / "questions" / split, findings):
        story = file.stem.removesuffix("-questions")
        if story in sheets:
            message = f"questions on {story!r} are also in {sheets[story]}; delete one"
            findings.problems.add(file, message)
        elif story_files and story not in story_files:
            message = (
                f"the story {story!r} is not found in section-stories; "
                f"add {story}-story.csv or delete this file"
            )
            findings.problems.add(file, message)
        else:
            rows = list(csv_rows(file, SHEET_COLUMNS, findings))
            questions += fairytale_questions(story, rows, sections.get(story))
            findings.problems += itertools.chain(*(row.problems for row in rows))
        sheets.setdefault(story, file)
    return complete_corpus(documents, questions, FAIRYTALE.name, findings)


def fairytale_story(story: str, rows: list[InputRow]) -> tuple[Document, dict[str, list[str]]]:
    """Joins the sections of a FairytaleQA story to one document.

    Returns:
        The document, and section number -> texts.
    """
    pairs = [(row.text("section").strip(), row.text("text").strip()) for row in rows]
    texts: dict[str, list[str]] = {}
    for number, text in pairs:
        texts.setdefault(number, []).append(text)
    return Document(story, "", "\n\n".join(text for _, text in pairs)), texts


def fairytale_questions(
    story: str, rows: list[InputRow], sections: Mapping[str, list[str]] | None
) -> list[Question]:
    """Reads a question sheet of FairytaleQA.

    Args:
        sections: section number -> texts, or None if the story could not be read.
    """
    questions: list[Question] = []
    numbered: dict[str, list[str]] = {}
    for row in rows:
        number, question, evidence = row.text("question_id").strip(), row.text("question"), []
        for name in row.text("cor_section").replace(" ", "").split(","):
            if sections is not None and name and name not in sections:
                defect = f"section {name!r} is not found in the story {story!r}"
                row.add_problem("cor_section", defect, "mend the number or add the section")
            evidence += (sections or {}).get(name, ())
        columns = [name for name in row.values if re.fullmatch("answer[1-6]", name)]
        cells = [row.text(name, blank=True).strip() for name in columns]
        answers = tuple(dict.fromkeys(filter(None, cells)))
        if not any(row.values[name].strip() for name in columns):
            row.add_problem(
                "answer1", "is empty, as are all other answers", "write at least one answer"
            )
        repeats = numbered.setdefault(number, [])
        if number and question and question in repeats:
            row.add_problem(
                "question_id", f"{number!r} asks the same twice", "delete one of the rows"
            )
        repeats.append(question)
        if row.ok:
            # Nine published sheets give one number to two questions.
            count = len(repeats)
            id = f"{story}:{number}" + (f":{count}" if count > 1 else "")
            passages = tuple(dict.fromkeys(evidence))
            questions.append(Question(id, question, answers, (story,), passages, row.group))
    return questions


FAIRYTALE = Format("fairytaleqa", recognises, read, files)
