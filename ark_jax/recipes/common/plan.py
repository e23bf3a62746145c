"""What the plans of recipes over documents share: inputs, written questions, answers, verdicts."""

from collections.abc import Callable, Sequence

from ark_jax.data.records import Chunk, Question
from ark_jax.estimate.work import Texts, Work, measure
from ark_jax.evaluate.answers import LIKELIHOOD, needs_replies
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.common.ask import llm_settings
from ark_jax.recipes.common.corpus import load_documents, load_questions, stored_chunks
from ark_jax.recipes.common.filter_questions import Candidate
from ark_jax.recipes.common.reader import questions_to_answer, reading_prompt
from ark_jax.recipes.common.systems import Systems
from ark_jax.recipes.common.write_questions import materials_to_ask
from ark_jax.recipes.common.written_from import is_writing
from ark_jax.text import prompts

# How likely a training stage changes a passage that is read; in the demo .08 for the first passage
# and .18 for one of five.
MOVED = 0.15
VERDICT = 80  # tokens of a judge's reply
QUESTION_WORDS, ANSWER_WORDS = 15, 2  # of a written question, about as in the demo's recording


def count_inputs(context: Context) -> dict[str, int]:
    return {
        "documents": sum(1 for _ in load_documents(context)),
        "chunks": len(stored_chunks(context)),
        "training questions": len(load_questions(context, "train")),
        "held-out questions": len(load_questions(context, "held_out")),
    }


def distinct(pool: float, drawn: float, times: float) -> float:
    """How many of `pool` chunks are among `times` draws of `drawn` of them, on average."""
    return pool * (1 - (1 - min(drawn / max(pool, 1), 1)) ** times)


def measure_passages(context: Context, folder: str, chunks: Sequence[Chunk] = ()) -> Texts:
    """The passages of chunks, or of all, in tokens of the model of a folder."""
    chunks = chunks or stored_chunks(context)
    return measure(folder, [chunk.passage for chunk in chunks], len(chunks))


def measure_questions(folder: str, questions: Sequence[Question]) -> Texts:
    return measure(folder, (question.question for question in questions), len(questions))


def measure_answers(folder: str, questions: Sequence[Question]) -> Texts:
    """All reference answers."""
    answers = [answer for question in questions for answer in question.answers]
    return measure(folder, answers, len(answers))


def foresee_questions(context: Context, done: set[str], join: Callable) -> None:
    """Stores stand-ins for the questions that are still to be written, as if none were dropped.

    Later stages are then sized as ever: `context` is that of a plan, in a temporary folder.
    """
    if not is_writing(context.config) or "questions" in done:
        return
    rows = []
    for material in materials_to_ask(context, join):
        words = material.chunks[0].text.split()
        asked, answer = " ".join(words[:QUESTION_WORDS]), " ".join(words[-ANSWER_WORDS:])
        documents = tuple(dict.fromkeys(chunk.document for chunk in material.chunks))
        for i in range(context.config.questions.per_passage):
            question = Question(f"written/{material.id}/{i}", asked, (answer,), documents)
            rows.append(Candidate(question, material.part, material.chunks).row())
    (context / "questions").mkdir(exist_ok=True)
    save_rows(rows, context / "questions" / "questions.parquet")


def answering(context: Context, systems: Systems) -> tuple[list[Work], list[str]]:
    """Reading and judging, which are at most this, and notes."""
    config, readers = context.config, len(systems.retrieving)
    settings, folder = config.evaluate, config.reader.path or config.generator.path
    if config.reader.backend != "local":
        folder = config.generator.path
    questions = questions_to_answer(load_questions(context, "held_out"), settings.read)
    if not questions:
        return [], []
    passages = settings.passages * measure_passages(context, folder).mean
    forms = [reading_prompt(config).template, prompts.load_template("judge", config.prompts.judge)]
    asked = measure_questions(folder, questions).mean + passages
    read, judged = (measure(folder, [form], 1).mean for form in forms)
    works, notes = [], []
    if config.reader.backend in ("openai", "replay"):
        calls = readers * len(questions)
        amounts = (calls, read + asked, settings.max_new_tokens)
        asks = llm_settings(config, "reader")
        shown = {"label": "reading", "settings": asks, "total": calls}
        works.append(Work("evaluate", "reader", "ask", *amounts, **shown))
    elif config.reader.backend == "local":
        moved = 1 - (1 - MOVED) ** settings.passages
        different = len(questions) * (1 + (readers - 1) * moved)
        notes.append(
            f"reading: about {different:,.0f} of {readers * len(questions):,} prompts, for systems "
            "often find the same passages; less where answers end early"
        )
        if needs_replies(settings.answers):
            amounts = (different, read + asked, settings.max_new_tokens)
            works.append(Work("evaluate", "reader", "reading", *amounts))
        if LIKELIHOOD in settings.answers:
            answers = measure_answers(folder, questions)
            replies = answers.count / len(questions) * answers.mean
            amounts = (different, read + asked + replies, replies)
            works.append(Work("evaluate", "reader", "likelihoods", *amounts))
    verdicts = 2 * config.judge.repeats * len(config.judge.against) * len(questions)
    if verdicts:
        amounts = (verdicts, judged + asked + passages, VERDICT)
        asks = llm_settings(config, "judge")
        shown = {"label": "judge", "settings": asks, "total": verdicts}
        works.append(Work("judge", "judge", "ask", *amounts, **shown))
    return works, notes
