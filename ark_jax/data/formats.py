"""The known formats: how a row becomes documents and a question, or problems."""

import hashlib
import re
from collections.abc import Mapping

from ark_jax.data.records import Document, Question
from ark_jax.data.rows import InputRow, text_fault

KNOWN = (
    "a folder with documents.jsonl and questions.jsonl (plain), a folder with section-stories/ and "
    "questions/ (fairytaleqa), or a JSON or JSONL file whose rows have input, context, answers "
    "and _id (longbench), _id, question, answer, context and supporting_facts (hotpotqa, 2wiki), "
    "or id, question, answer and paragraphs (musique)"
)


def hashed_document(title: str, text: str) -> Document:
    """A document whose id is a hash of its content, for formats without ids."""
    content = f"{title}\0{text}" if title else text
    # The row reports a surrogate as a problem; here it must only not raise.
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass"))
    return Document(digest.hexdigest()[:16], title, text)


def document_ids(documents: list[Document]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(document.id for document in documents))


def plain_document(row: InputRow) -> Document:
    return Document(row.text("id"), row.text("title", required=False, blank=True), row.text("text"))


def plain_question(row: InputRow) -> Question:
    return Question(
        row.text("id"),
        row.text("question"),
        row.texts("answers"),
        tuple(dict.fromkeys(row.texts("documents"))),
        row.texts("evidence", required=False),
    )


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


def longbench_row(row: InputRow) -> tuple[list[Document], Question]:
    """A row of LongBench or UltraDomain; `answers` or `answer` is a list or one string."""
    field = "answer" if "answer" in row.values and "answers" not in row.values else "answers"
    single = isinstance(row.values.get(field), str)
    answers = (row.text(field),) if single else tuple(dict.fromkeys(row.texts(field)))
    documents = [hashed_document("", row.text("context"))]
    return documents, Question(row.text("_id"), row.text("input"), answers, document_ids(documents))


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
    """The sentence that a supporting fact points to, or "" with a remark."""
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
    """A row of MuSiQue: one document per paragraph, supporting paragraphs as evidence."""
    answers = dict.fromkeys((row.text("answer"), *row.texts("answer_aliases", required=False)))
    documents, evidence = [], []
    for part in row.objects("paragraphs"):
        documents.append(
            hashed_document(part.text("title", blank=True), part.text("paragraph_text"))
        )
        if part.flag("is_supporting", False):
            evidence.append(documents[-1].text)
    if not row.flag("answerable", True):
        row.add_problem(
            "answerable",
            "is false: the paragraphs do not hold the answer",
            "delete the row or take the answerable half of MuSiQue",
        )
    return documents, Question(
        row.text("id"),
        row.text("question"),
        tuple(answers),
        document_ids(documents),
        tuple(dict.fromkeys(evidence)),
    )


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
        story: id of the story.
        rows: rows of the sheet.
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
            questions.append(Question(id, question, answers, (story,), passages))
    return questions


def recognise(values: Mapping[str, object]) -> str:
    """The name of the format that has such a row, or "" if no known format has."""
    if "input" in values:
        return "longbench"
    if "paragraphs" in values:
        return "musique"
    if "supporting_facts" in values or isinstance(values.get("context"), list | dict):
        return "2wiki" if "evidences" in values else "hotpotqa"
    return ""


ROW_PARSERS = {
    "longbench": longbench_row,
    "musique": musique_row,
    "hotpotqa": hotpotqa_row,
    "2wiki": hotpotqa_row,
}
