"""What writing questions will ask and compute, and stand-ins for questions not yet written."""

from collections.abc import Sequence

from ark_jax.data.records import Chunk, Question
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.common.filter_questions import Candidate, scored_pairs
from ark_jax.recipes.common.write_questions import Material, materials_to_ask
from ark_jax.recipes.common.written_from import is_writing

PAIR_TOKENS = 77.0  # of a question with answer and evidence in the demo's recording
QUESTION_WORDS, ANSWER_WORDS = 15, 2  # of a stand-in, about as in the demo's recording


def foresee_questions(context: Context, done: set[str]) -> None:
    """Stores stand-ins for the questions that are still to be written, as if none were dropped.

    Later stages are then sized as ever. `context` is that of a plan, which works in a temporary
    folder.
    """
    if not is_writing(context.config) or "questions" in done:
        return
    folder = context / "questions"
    folder.mkdir(exist_ok=True)
    save_rows([candidate.row() for candidate in _stand_ins(context)], folder / "questions.parquet")


def join_neighbours(
    context: Context, passages: Sequence[Chunk], count: int
) -> list[tuple[Chunk, Chunk]]:
    """Pairs of drawn passages, before a graph can tell which belong together."""
    following = [*passages[1:], *passages[:1]]
    return list(zip(passages, following, strict=True))[:count]


def pairs_to_score(context: Context) -> list[tuple[str, str]]:
    """What the filter by likelihood will score, were these the questions."""
    return [pair for x in _stand_ins(context) for pair in scored_pairs(context, x)]


def _stand_ins(context: Context) -> list[Candidate]:
    """Words of the passage for each question that will be asked for."""
    count = context.config.questions.per_passage
    materials = materials_to_ask(context, join_neighbours)
    return [_stand_in(material, i) for material in materials for i in range(count)]


def _stand_in(material: Material, number: int) -> Candidate:
    words = material.chunks[0].text.split()
    asked, answer = words[:QUESTION_WORDS], words[-ANSWER_WORDS:]
    question = Question(
        f"written/{material.id}/{number}",
        " ".join(asked),
        (" ".join(answer),),
        tuple(dict.fromkeys(chunk.document for chunk in material.chunks)),
    )
    return Candidate(question, material.part, material.chunks)
