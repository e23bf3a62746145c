"""Rows that hold a question and the documents to search for it: published benchmarks."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from ark_jax.data.formats.base import Format, complete_corpus, document_ids, hashed_document, row_id
from ark_jax.data.json_files import json_object
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import InputRow, text_fault
from ark_jax.data.spool import Documents
from ark_jax.data.text_files import head_text


def longbench_row(row: InputRow) -> tuple[list[Document], Question]:
    """A row of LongBench or UltraDomain; `answers` or `answer` is a list or one string."""
    field = "answer" if "answer" in row.values and "answers" not in row.values else "answers"
    answers = _one_or_more(row, field)
    documents = [hashed_document("", row.text("context"))]
    return documents, Question(row.text("_id"), row.text("input"), answers, document_ids(documents))


def _one_or_more(row: InputRow, field: str) -> tuple[str, ...]:
    """The strings of a field that holds one or a list of them."""
    if isinstance(row.values.get(field), str):
        return (row.text(field),)
    return tuple(dict.fromkeys(row.texts(field)))


def hotpotqa_row(row: InputRow) -> tuple[list[Document], Question]:
    """A row of HotpotQA or 2WikiMultihopQA; supporting sentences are the evidence.

    Some facts of HotpotQA point beyond the end of their paragraph, and in the full-wiki setting
    some paragraphs were not retrieved; such facts are ignored with a remark. As in the copies on
    the Hugging Face hub, paragraphs and facts may be columns, and `_id` may be `id`.
    """
    question, answer = row.text("question"), row.text("answer")
    paragraphs = []
    for i, pair in enumerate(row.pairs("context", ("title", "sentences")), 1):
        if not (
            isinstance(pair, list)
            and list(map(type, pair)) == [str, list]
            and all(isinstance(sentence, str) for sentence in pair[1])
        ):
            row.add_problem("context", f"item {i} is not [title, [sentence, ...]]", "write it so")
            continue
        title, sentences = pair
        document = hashed_document(title, join_sentences(sentences))
        if fault := text_fault(title, blank=True) or text_fault(document.text):
            row.add_problem("context", f"item {i} ({title!r}) {fault[0]}", fault[1])
        paragraphs.append((document, sentences))
    facts = row.pairs("supporting_facts", ("title", "sent_id"), required=False)
    evidence = []
    if row.ok:  # else the facts of a broken paragraph would be reported as missing
        evidence = [
            _supporting_sentence(row, i, fact, paragraphs) for i, fact in enumerate(facts, 1)
        ]
    documents = [document for document, _ in paragraphs]
    return documents, Question(
        row.text(row.key),
        question,
        (answer,),
        document_ids(documents),
        tuple(dict.fromkeys(filter(None, evidence))),
        row.group,
    )


def join_sentences(sentences: list[str]) -> str:
    """Joins sentences by blanks. HotpotQA's already begin with one, 2WikiMultihopQA's do not."""
    text = ""
    for sentence in sentences:
        needs_blank = text and sentence and not text[-1].isspace() and not sentence[0].isspace()
        text += (" " if needs_blank else "") + sentence
    return text.strip()


def _supporting_sentence(
    row: InputRow, i: int, fact: object, paragraphs: list[tuple[Document, list[str]]]
) -> str:
    """The sentence that a supporting fact points to, or "" with a problem or remark."""
    if not (isinstance(fact, list) and list(map(type, fact)) == [str, int] and fact[1] >= 0):
        row.add_problem(
            "supporting_facts", f"item {i} is not [title, sentence index from 0]", "write it so"
        )
        return ""
    title, index = fact
    for document, sentences in paragraphs:
        if document.title == title and index < len(sentences) and sentences[index].strip():
            return sentences[index].strip()
    row.add_remark(
        "supporting_facts",
        f"item {i}: sentence {index} of {title!r} is not found in the context",
        "it is passed over as evidence",
    )
    return ""


def musique_row(row: InputRow) -> tuple[list[Document], Question]:
    """A row of MuSiQue: one document per paragraph, supporting paragraphs as evidence.

    In HippoRAG's files `answer` may be a list, and the text of a paragraph may be in `text`.
    """
    answers = dict.fromkeys(
        (*_one_or_more(row, "answer"), *row.texts("answer_aliases", required=False))
    )
    documents, evidence = [], []
    for part in row.objects("paragraphs"):
        is_short = "text" in part.values and "paragraph_text" not in part.values
        field = "text" if is_short else "paragraph_text"
        documents.append(hashed_document(part.text("title", blank=True), part.text(field)))
        if part.flag("is_supporting", False):
            evidence.append(documents[-1].text)
    if not row.flag("answerable", True):
        row.add_problem(
            "answerable",
            "is false: the paragraphs do not hold the answer",
            "delete the row or take the answerable half of MuSiQue",
        )
    id = row.text("id")
    hops = re.match(r"\dhop", id)
    return documents, Question(
        id,
        row.text("question"),
        tuple(answers),
        document_ids(documents),
        tuple(dict.fromkeys(evidence)),
        hops[0] if hops else "",
    )


def ragas_row(row: InputRow) -> tuple[list[Document], Question]:
    """A row of a ragas data set; a context is a document, and reference contexts are evidence.

    Data sets of ragas before 0.2 have `question`, `ground_truth` or `ground_truths`, and
    `contexts`; their `answer` is a system's, not the right one.
    """
    names = row.values
    field = "user_input" if "user_input" in names or "question" not in names else "question"
    if isinstance(names.get(field), list):
        row.add_problem(field, "is a conversation", "keep samples of one question")
    question = row.text(field) if row.ok else ""
    answers: tuple[str, ...] = ()
    for name in ("reference", "ground_truth", "ground_truths"):
        if not answers and names.get(name):
            answers = _one_or_more(row, name)
    evidence: tuple[str, ...] = ()
    passages: dict[str, None] = {}
    for name in ("reference_contexts", "retrieved_contexts", "contexts"):
        if names.get(name):
            texts = row.texts(name)
            evidence = texts if name == "reference_contexts" else evidence
            passages.update(dict.fromkeys(texts))
    if row.ok and not (answers or evidence):
        defect = "is missing, and so are reference_contexts"
        row.add_problem("reference", defect, "add one of them")
    documents = [hashed_document("", text) for text in passages]
    ids = document_ids(documents)
    id = row_id(row, question, *answers)
    return documents, Question(id, question, answers, ids, evidence)


def dpr_row(row: InputRow) -> tuple[list[Document], Question]:
    """A row of DPR, FiD or BAR-RAG: `ctxs` are the passages that a question is read with.

    A passage without text names one of the corpus by its id.
    """
    question = row.text("question")
    field = "answer" if "answer" in row.values and "answers" not in row.values else "answers"
    answers = _one_or_more(row, field)
    documents, names = [], []
    for part in row.objects("ctxs"):
        id = part.values.get("id", "")
        id = str(id) if isinstance(id, int) else part.text("id") if id else ""
        if "text" in part.values or not id:
            title = part.text("title", required=False, blank=True)
            document = hashed_document(title, part.text("text"))
            documents.append(dataclasses.replace(document, id=id or document.id))
        names.append(id or documents[-1].id)
        if "score" in part.values:
            row.remark_unread("ctxs", "their scores are not read; a run's retriever ranks them")
    id = row_id(row, question, *answers)
    return documents, Question(id, question, answers, tuple(dict.fromkeys(names)), (), row.group)


def squad_row(row: InputRow) -> tuple[list[Document], Question | None]:
    """A row of SQuAD as on the hub, or of any file with `question`, `context` and `answers`."""
    document = hashed_document(row.text("title", required=False, blank=True), row.text("context"))
    question = row.text("question")
    field = "answer" if "answer" in row.values and "answers" not in row.values else "answers"
    if isinstance(spans := row.values.get(field), dict):
        row = row.with_values({**row.values, "answers": spans.get("text")})
    if row.values.get(field) == []:
        remark_unanswerable(row)
        return [document], None
    answers = _one_or_more(row, field)
    id = row_id(row, question, document.id)
    return [document], Question(id, question, answers, (document.id,), (document.text,))


def remark_unanswerable(row: InputRow) -> None:
    """Adds a remark that the paragraph does not answer its question."""
    row.add_remark("question", "has no answer in its paragraph", "it is passed over")


_HEAD = re.compile(r'\s*\{(\s*"version"\s*:\s*("[^"]*"|[\d.]+)\s*,)?\s*"data"\s*:\s*\[')


def is_squad(path: Path) -> bool:
    """Whether a file begins like SQuAD's: an object with a list of articles."""
    head = head_text(path)  # none of a folder
    return bool(_HEAD.match(head)) and '"paragraphs"' in head


def read_squad(path: Path, findings: Findings) -> Corpus:
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


SQUAD = Format("squad", is_squad, read_squad)
