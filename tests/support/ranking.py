"""A corpus of a few chunks, and questions over it."""

from ark_jax.data.records import Chunk, Document, Question
from ark_jax.recipes.ark.curriculum import systems
from ark_jax.recipes.documents import retrieve
from ark_jax.recipes.documents.corpus import stored_chunks

DOCUMENTS = [Document("a", "", "tide lamp salt. " * 40), Document("b", "", "wool pilot bell. " * 3)]


CHUNKS = {
    d.id: [Chunk(f"{d.id}#{i}", d.id, i, i + 1, 3, text) for i, text in enumerate(texts)]
    for d, texts in zip(
        DOCUMENTS,
        (["the tide", "a lamp", "tide and lamp"], ["some wool", "a pilot", "no bell"]),
        strict=True,
    )
}


QUESTIONS = [
    Question("q0", "which lamp?", ("lamp",), ("a",)),
    Question("q1", "which pilot has wool?", ("a pilot",), ("b",)),
]


def rank(run) -> dict:
    (run.folder / "w" / "baselines").mkdir(exist_ok=True)
    folder = run.folder / "w" / "baselines"
    counts = retrieve.retrieve_baselines(run.context, folder)
    assert counts == {"systems": len(list(folder.glob("ranked-*")))}
    chunks = stored_chunks(run.context)
    return retrieve.retrieve_all(run.context, systems(run.c), QUESTIONS, chunks, run.folder)
