"""What a row of each known format says, as documents and a question; what it says wrongly, as problems."""

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping

from ark_jax.data.records import Document, Problem, Question

KNOWN = ("a folder with documents.jsonl and questions.jsonl (plain), a folder with section-stories/ and "
         "questions/ (fairytaleqa), or a JSON or JSONL file whose rows have input, context, answers and _id "
         "(longbench), _id, question, answer, context and supporting_facts (hotpotqa, 2wiki), or id, "
         "question, answer and paragraphs (musique)")
KINDS = {str: "a string", list: "a list", dict: "an object", bool: "true or false", int: "a number",
         float: "a number", type(None): "null"}
SURROGATE = re.compile("[\ud800-\udfff]")


def unwritable(text: str) -> bool:
    """Whether `text` cannot be written as UTF-8: half a surrogate pair, or a byte that was kept as one."""
    return not text.isascii() and SURROGATE.search(text) is not None


def fault(value: object, *, blank: bool = False) -> tuple[str, str] | None:
    """What is wrong with a value that should be text, and the fix; None if it is right."""
    if not isinstance(value, str):
        return f"is {KINDS[type(value)]}", "write a string"
    if not blank and not value.strip():
        return "is empty", "fill it in or delete it"
    if unwritable(value):
        return "holds bytes or \\u escapes that are not valid UTF-8", "write whole characters"
    return None


class Row:
    """One row of a file, its fields taken by name and type.

    What is wrong is noted in `problems` and an empty value is returned, so that one pass finds everything;
    what was built from the row counts only while it is `ok`. What is merely passed over is noted in `remarks`. `unit` is "row"
    where `line` is not a line.
    """

    def __init__(self, file: str, line: int, values: Mapping[str, object], unit: str = "line"):
        self.file, self.line, self.values, self.unit = file, line, values, unit
        self.problems: list[Problem] = []
        self.remarks: list[Problem] = []

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def key(self) -> str:
        """The field of the id, in a row that may have either."""
        return "id" if "id" in self.values and "_id" not in self.values else "_id"

    def wrong(self, field: str, what: str, fix: str) -> None:
        self.problems.append(self._found(field, what, fix))

    def remark(self, field: str, what: str, outcome: str) -> None:
        self.remarks.append(self._found(field, what, outcome))

    def _found(self, field: str, what: str, then: str) -> Problem:
        place = f" in row {self.line}" if self.unit == "row" else ""
        return Problem(self.file, self.line, field, f"{what}{place}; {then}")

    def has(self, field: str, *, required: bool = True) -> bool:
        """Whether the field is there. A likely misspelling of it is a problem even where it may be absent."""
        if field in self.values:
            return True
        alike = [name for name in self.values if abs(len(name) - len(field)) < 2]
        near = difflib.get_close_matches(field, alike, 1, 0.8)
        if near:
            self.wrong(field, f"is missing, but there is {near[0]!r}", f"rename {near[0]!r} to {field!r}")
        elif required:
            self.wrong(field, "is missing", "add it")
        return False

    def claim(self, taken: dict[str, int], field: str, key: str) -> None:
        """Notes in `taken` that `key` is this row's; a problem if it is another's."""
        if key in taken:
            self.wrong(field, f"{key!r} of {self.unit} {taken[key]} comes again", "give every row its own id")
        elif key:
            taken[key] = self.line

    def text(self, field: str, *, required: bool = True, blank: bool = False) -> str:
        """A string; `blank` allows an empty one."""
        if not self.has(field, required=required):
            return ""
        value = self.values[field]
        if found := fault(value, blank=blank):
            self.wrong(field, *found)
            return ""
        return value

    def items(self, field: str, *, required: bool = True) -> list:
        """A list, of at least one item if the field is required."""
        if not self.has(field, required=required):
            return []
        value = self.values[field]
        if not isinstance(value, list):
            self.wrong(field, f"is {KINDS[type(value)]}", "write a list, [...]")
            return []
        return self._some(field, value, required)

    def _some(self, field: str, value: list, required: bool) -> list:
        if required and not value:
            self.wrong(field, "is empty", "list at least one item")
        return value

    def pairs(self, field: str, columns: tuple[str, str], *, required: bool = True) -> list:
        """The items of a list or, where two lists are written as columns, these side by side."""
        value = self.values.get(field)
        if not isinstance(value, dict):
            return self.items(field, required=required)
        sides = [value.get(column) for column in columns]
        if not all(isinstance(side, list) for side in sides) or len(sides[0]) != len(sides[1]):
            self.wrong(field, f"is an object without {' and '.join(columns)}, two lists of one length", "write them, or a list")
            return []
        return self._some(field, [list(pair) for pair in zip(*sides, strict=True)], required)

    def texts(self, field: str, *, required: bool = True) -> tuple[str, ...]:
        """A list of strings, none of them empty."""
        values = self.items(field, required=required)
        faults = [(i, found) for i, value in enumerate(values, 1) if (found := fault(value))]
        for i, (what, fix) in faults:
            self.wrong(field, f"item {i} {what}", fix)
        return () if faults else tuple(values)

    def flag(self, field: str, default: bool) -> bool:
        """True or false; `default` where the field is absent."""
        if not self.has(field, required=False):
            return default
        value = self.values[field]
        if not isinstance(value, bool):
            self.wrong(field, f"is {KINDS[type(value)]}", "write true or false")
            return default
        return value

    def parts(self, field: str) -> Iterator["Row"]:
        """The objects of a list, as rows. Their problems become this row's when the next is taken."""
        for i, value in enumerate(self.items(field), 1):
            if not isinstance(value, dict):
                self.wrong(field, f"item {i} is {KINDS[type(value)]}", "write an object, {...}")
                continue
            part = Row(self.file, self.line, value, self.unit)
            yield part
            self.problems += [Problem(p.file, p.line, field, f"item {i}: {p.field} {p.message}")
                              for p in part.problems]


def keyed(title: str, text: str) -> Document:
    """A document that came without an id: named by what it holds, so that equal ones are one."""
    whole = f"{title}\0{text}" if title else text
    # A surrogate is a problem that the row has noted already; hashing must only survive it.
    return Document(hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:16], title, text)


def ids(documents: list[Document]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(document.id for document in documents))


def plain_document(row: Row) -> Document:
    return Document(row.text("id"), row.text("title", required=False, blank=True), row.text("text"))


def plain_question(row: Row) -> Question:
    return Question(row.text("id"), row.text("question"), row.texts("answers"),
                    tuple(dict.fromkeys(row.texts("documents"))), row.texts("evidence", required=False))


def check_evidence(row: Row, question: Question, texts: list[str]) -> None:
    """Every evidence passage must stand in one of the texts."""
    for i, passage in enumerate(question.evidence, 1):
        if any(passage in text for text in texts):
            continue
        words = " ".join(passage.split())
        blanks = any(words in " ".join(text.split()) for text in texts)
        why = "differs from the document in blanks" if blanks else "is not found in its documents"
        row.wrong("evidence", f"item {i} {why} ({words[:60]!r})", "quote the document letter by letter")


def longbench(row: Row) -> tuple[list[Document], Question]:
    """LongBench and UltraDomain, whose answers are a list or one string, under `answers` or `answer`."""
    field = "answer" if "answer" in row.values and "answers" not in row.values else "answers"
    one = isinstance(row.values.get(field), str)
    answers = (row.text(field),) if one else tuple(dict.fromkeys(row.texts(field)))
    documents = [keyed("", row.text("context"))]
    return documents, Question(row.text("_id"), row.text("input"), answers, ids(documents))


def hotpotqa(row: Row) -> tuple[list[Document], Question]:
    """HotpotQA and 2WikiMultihopQA: a document per paragraph, the supporting sentences as evidence.

    HotpotQA's own files have facts beyond the end of their paragraph, and in the full-wiki setting facts whose paragraph was
    not retrieved: these are passed over. Paragraphs and facts may stand in columns, and `_id` be `id`, as in the hub's copies.
    """
    question, answer = row.text("question"), row.text("answer")
    paragraphs = []
    for i, pair in enumerate(row.pairs("context", ("title", "sentences")), 1):
        if not (isinstance(pair, list) and list(map(type, pair)) == [str, list]
                and all(isinstance(sentence, str) for sentence in pair[1])):
            row.wrong("context", f"item {i} is not [title, [sentence, ...]]", "write it so")
            continue
        title, sentences = pair
        document = keyed(title, joined(sentences))
        if found := fault(title, blank=True) or fault(document.text):
            row.wrong("context", f"item {i} ({title!r}) {found[0]}", found[1])
        paragraphs.append((document, sentences))
    facts = row.pairs("supporting_facts", ("title", "sent_id"), required=False)
    # Broken paragraphs would be reported again as facts that are not found.
    evidence = filter(None, [_sentence(row, i, fact, paragraphs) for i, fact in enumerate(facts, 1)] if row.ok else [])
    documents = [document for document, _ in paragraphs]
    return documents, Question(row.text(row.key), question, (answer,), ids(documents),
                               tuple(dict.fromkeys(evidence)))


def joined(sentences: list[str]) -> str:
    """A paragraph. HotpotQA's sentences begin with their blank, 2WikiMultihopQA's have none."""
    text = ""
    for sentence in sentences:
        apart = text and sentence and not text[-1].isspace() and not sentence[0].isspace()
        text += (" " if apart else "") + sentence
    return text.strip()


def _sentence(row: Row, i: int, fact: object, paragraphs: list[tuple[Document, list[str]]]) -> str:
    """The sentence that a supporting fact points to, "" if there is none."""
    if not (isinstance(fact, list) and list(map(type, fact)) == [str, int] and fact[1] >= 0):
        row.wrong("supporting_facts", f"item {i} is not [title, sentence index from 0]", "write it so")
        return ""
    title, index = fact
    for document, sentences in paragraphs:
        if document.title == title and index < len(sentences) and sentences[index].strip():
            return sentences[index].strip()
    row.remark("supporting_facts", f"item {i}: sentence {index} of {title!r} is not found in the context",
               "it is passed over as evidence")
    return ""


def musique(row: Row) -> tuple[list[Document], Question]:
    """MuSiQue: a document per paragraph, the supporting ones as evidence, the answer and its aliases."""
    answers = dict.fromkeys((row.text("answer"), *row.texts("answer_aliases", required=False)))
    documents, evidence = [], []
    for part in row.parts("paragraphs"):
        documents.append(keyed(part.text("title", blank=True), part.text("paragraph_text")))
        if part.flag("is_supporting", False):
            evidence.append(documents[-1].text)
    if not row.flag("answerable", True):
        row.wrong("answerable", "is false: the paragraphs do not hold the answer",
                  "delete the row or take the answerable half of MuSiQue")
    return documents, Question(row.text("id"), row.text("question"), tuple(answers), ids(documents),
                               tuple(dict.fromkeys(evidence)))


def fairytale_story(story: str, rows: list[Row]) -> tuple[Document, dict[str, list[str]]]:
    """The sections of a FairytaleQA story as one document, and their texts by number."""
    pairs = [(row.text("section").strip(), row.text("text").strip()) for row in rows]
    texts: dict[str, list[str]] = {}
    for number, text in pairs:
        texts.setdefault(number, []).append(text)
    return Document(story, "", "\n\n".join(text for _, text in pairs)), texts


def fairytale_questions(
    story: str, rows: list[Row], sections: Mapping[str, list[str]] | None
) -> list[Question]:
    """A FairytaleQA question sheet; `sections` are the story's texts by number, None if unread."""
    questions: list[Question] = []
    numbered: dict[str, list[str]] = {}
    for row in rows:
        number, question, evidence = row.text("question_id").strip(), row.text("question"), []
        for name in row.text("cor_section").replace(" ", "").split(","):
            if sections is not None and name and name not in sections:
                row.wrong("cor_section", f"section {name!r} is not found in the story {story!r}",
                          "mend the number or add the section")
            evidence += (sections or {}).get(name, ())
        columns = [name for name in row.values if re.fullmatch("answer[1-6]", name)]
        cells = [row.text(name, blank=True).strip() for name in columns]
        answers = tuple(dict.fromkeys(filter(None, cells)))
        if not any(row.values[name].strip() for name in columns):
            row.wrong("answer1", "is empty, as are all other answers", "write at least one answer")
        same = numbered.setdefault(number, [])
        if number and question and question in same:
            row.wrong("question_id", f"{number!r} asks the same twice", "delete one of the rows")
        same.append(question)
        if row.ok:
            # Nine sheets of the published data give one number to two questions.
            key = f"{story}:{number}" + (f":{len(same)}" if len(same) > 1 else "")
            questions.append(Question(key, question, answers, (story,), tuple(dict.fromkeys(evidence))))
    return questions


def recognise(values: Mapping[str, object]) -> str:
    """The format of a file that has such a row; empty if none is known."""
    if "input" in values:
        return "longbench"
    if "paragraphs" in values:
        return "musique"
    if "supporting_facts" in values or isinstance(values.get("context"), list | dict):
        return "2wiki" if "evidences" in values else "hotpotqa"
    return ""
