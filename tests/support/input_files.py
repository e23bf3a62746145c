"""A row of each input format, and files made of such rows."""

from pathlib import Path

from hypothesis import strategies as st

from ark_jax.data import readers

DOCUMENT = '{"id": "d", "title": "T", "text": "The mill burned in 1802."}\n'


QUESTION = '{"id": "q", "question": "When?", "answers": ["1802"], "documents": ["d"]}\n'


LONG = (
    '{"_id": "1", "input": "When?", "context": "The mill burned in 1802.", "answers": ["1802"]}\n'
)


HOTPOT = {
    "_id": "h1",
    "question": "Who built it?",
    "answer": "Ada",
    "context": [
        ["Mill", ["The mill stands.", " Ada built it."]],
        ["Ada", ["Ada was born here.", "She left."]],
    ],
    "supporting_facts": [["Mill", 1], ["Ada", 0]],
}


MUSIQUE = {
    "id": "2hop__1",
    "question": "Who?",
    "answer": "Ada",
    "answer_aliases": ["Ada L.", "Ada"],
    "paragraphs": [
        {"idx": 0, "title": "Mill", "paragraph_text": "Ada built it.", "is_supporting": True},
        {"idx": 1, "title": "Sea", "paragraph_text": "It is wide.", "is_supporting": False},
    ],
}


STORY = 'section,text\n1,"One day,\nlong ago."\n2,The end.\n'


ASKED = "question_id,cor_section,question,answer1,answer2\n"


D, Q = "documents.jsonl", "questions.jsonl"


S, A = "section-stories/tale-story.csv", "questions/tale-questions.csv"


SHEETS = {S: STORY, A: ASKED + '1,"1, 2",What?,this,that\n'}


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def plain(
    documents: str | bytes = DOCUMENT, questions: str | bytes = QUESTION
) -> dict[str, str | bytes]:
    return {D: documents, Q: questions}


SHORT = st.text(max_size=3)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | SHORT | st.just("\ud800"),
    lambda some: st.lists(some, max_size=2) | st.dictionaries(SHORT, some, max_size=2),
)


@st.composite
def damaged(draw, value: object) -> object:
    """`value` with one random part of it replaced, or left out of its object."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 4)) == 0:
        return draw(JSON)
    key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    copy = value.copy()
    if isinstance(value, dict) and draw(st.booleans()):
        del copy[key]
    else:
        copy[key] = draw(damaged(value[key]))
    return copy


def sound(path: Path) -> None:
    """Checks for any input: no exception, printable problems, and records that fit each other."""
    corpus, problems = readers.read(path)
    assert problems or corpus.questions
    "\n".join(map(str, problems)).encode()
    texts = {d.id: d.text for d in corpus.documents}
    assert len(texts) == len(corpus.documents)
    assert len({q.id for q in corpus.questions}) == len(corpus.questions)
    for q in corpus.questions:
        assert q.question and (q.documents or q.answers or q.evidence)
        assert all(a.strip() for a in q.answers)
        assert all(any(passage in texts[d] for d in q.documents) for passage in q.evidence)
