"""SQuAD: one JSON object with articles, their paragraphs, and questions on each paragraph."""

import re
from collections.abc import Iterator
from pathlib import Path

from ark_jax.data.formats.base import Format, complete_corpus, hashed_document
from ark_jax.data.formats.contexts import remark_unanswerable
from ark_jax.data.json_files import json_object
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Question
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents
from ark_jax.data.text_files import head_text

_HEAD = re.compile(r'\s*\{(\s*"version"\s*:\s*("[^"]*"|[\d.]+)\s*,)?\s*"data"\s*:\s*\[')


def recognises(path: Path) -> bool:
    """Whether a file begins like SQuAD's: an object with a list of articles."""
    head = head_text(path)  # none of a folder
    return bool(_HEAD.match(head)) and '"paragraphs"' in head


def read(path: Path, findings: Findings) -> Corpus:
    """Reads SQuAD 1.1 or 2.0, or a data set of this form: a paragraph is a document.

    The title of the article is the title of its paragraphs, and the paragraph is the evidence. A
    question that its paragraph does not answer is passed over with a remark.
    """
    documents, questions = Documents(), []
    lines: dict[str, int] = {}
    content = json_object(path, findings)
    if not content:
        return Corpus([], [], "", findings.remarks)
    for number, article in enumerate(content["data"], 1):
        findings.problems.rows += 1
        if not isinstance(article, dict):
            message = f"article {number} is not an object; write an object, {{...}}"
            findings.problems.add(path, message, number)
            continue
        row = InputRow(str(path), number, article, "row")
        title = row.text("title", required=False, blank=True).replace("_", " ")
        pairs = []
        for paragraph in row.objects("paragraphs"):
            document = hashed_document(title, paragraph.text("context"))
            pairs.append(
                (document, list(_answered_questions(paragraph, document.id, document.text, row)))
            )
        for _, paragraph_questions in pairs:
            for question in paragraph_questions:
                row.claim_id(lines, "id", question.id)
        if findings.settle(row):
            for document, paragraph_questions in pairs:
                documents.append(document)
                questions += paragraph_questions
    return complete_corpus(documents, questions, SQUAD.name, findings)


def _answered_questions(
    paragraph: InputRow, document: str, context: str, article: InputRow
) -> Iterator[Question]:
    """The questions that a paragraph answers; each other one is a remark of the article."""
    for part in paragraph.objects("qas"):
        question = Question(part.text("id"), part.text("question"), (), (document,), (context,))
        if part.flag("is_impossible", False) or part.values.get("answers") == []:
            remark_unanswerable(article)
            continue
        answers = tuple(dict.fromkeys(answer.text("text") for answer in part.objects("answers")))
        yield Question(question.id, question.question, answers, (document,), (context,))


SQUAD = Format("squad", recognises, read)
