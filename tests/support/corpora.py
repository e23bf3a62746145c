"""Random corpora to write in a format and to read again."""

from hypothesis import strategies as st

from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import has_visible

ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


WRITTEN = ANY.filter(has_visible)


@st.composite
def corpora(draw) -> Corpus:
    names = draw(st.lists(WRITTEN, min_size=1, max_size=4, unique=True))
    documents = [Document(name, draw(ANY), draw(WRITTEN)) for name in names]
    questions = []
    for name in draw(st.lists(WRITTEN, min_size=1, max_size=4, unique=True)):
        among = draw(st.lists(st.sampled_from(documents), min_size=1, unique=True))
        text = draw(st.sampled_from(among)).text
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        evidence = (text[start:end],) if has_visible(text[start:end]) else ()
        questions.append(
            Question(
                name,
                draw(WRITTEN),
                tuple(draw(st.lists(WRITTEN, min_size=1, max_size=3))),
                tuple(d.id for d in among),
                evidence,
            )
        )
    return Corpus(documents, questions, "plain")
