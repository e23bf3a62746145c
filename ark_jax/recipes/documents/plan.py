"""What the plans of recipes over documents share: inputs, written questions, answers, verdicts."""

import operator
from collections.abc import Callable, Sequence

from ark_jax.data.records import Question
from ark_jax.estimate.work import Texts, Work, measure
from ark_jax.evaluate.answers import LIKELIHOOD, needs_replies
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.core.ask import llm_settings
from ark_jax.recipes.documents.corpus import load_documents, load_questions, stored_chunks
from ark_jax.recipes.documents.filter_questions import Candidate
from ark_jax.recipes.documents.reader import questions_to_answer, reading_prompt
from ark_jax.recipes.documents.retrieve import Systems
from ark_jax.recipes.documents.written_questions import is_writing, materials_to_ask
from ark_jax.text import prompts

# The probability that a training stage changes a passage that is read; in the demo .08 for the
# first passage and .18 for one of five.
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


def expected_distinct(pool: float, drawn: float, times: float) -> float:
    """The expected number of different chunks in `times` draws of `drawn` chunks from `pool`."""
    return pool * (1 - (1 - min(drawn / pool, 1)) ** times)


PASSAGE, QUESTION = operator.attrgetter("passage"), operator.attrgetter("question")


def measure_answers(questions: Sequence[Question], folder: str) -> Texts:
    """The reference answers, in tokens of the model of a folder."""
    return measure(folder, [answer for question in questions for answer in question.answers])


def store_placeholder_questions(context: Context, done: set[str], join: Callable) -> None:
    """Stores placeholders of the questions that are still to be written, as if none were dropped.

    The works of later stages are counted from them. `context` is that of a plan, in a temporary
    folder.
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


def reader_tokens(context: Context, questions: Sequence[Question]) -> float:
    """The mean tokens of a reader's prompt; the generator's tokenizer counts for an endpoint."""
    config = context.config
    reader = config.reader.path if config.reader.backend == "local" else ""
    folder, template = reader or config.generator.path, reading_prompt(config).template
    passages = config.evaluate.passages * measure(folder, stored_chunks(context), PASSAGE).mean
    form, question = measure(folder, [template]), measure(folder, questions, QUESTION)
    return form.mean + question.mean + passages


def answer_works(context: Context, systems: Systems) -> tuple[list[Work], list[str]]:
    """The most that reading and judging may take, and notes on it."""
    config, readers, works = context.config, len(systems.retrieving), []
    settings, backend = config.evaluate, config.reader.backend
    questions = questions_to_answer(load_questions(context, "held_out"), settings.read)
    if not questions:
        return [], []
    read = reader_tokens(context, questions)

    def add_calls(stage: str, role: str, label: str, count: int, *tokens: float) -> None:
        """Adds calls of an endpoint with these tokens, read and written."""
        shown = {"label": label, "settings": llm_settings(config, role), "total": count}
        works.append(Work(stage, role, "ask", count, *tokens, **shown))

    calls = readers * len(questions)
    differs = 1 - (1 - MOVED) ** settings.passages  # the probability, for one of the passages
    different = len(questions) * (1 + (readers - 1) * differs)
    if backend in ("openai", "replay"):
        add_calls("evaluate", "reader", "reading", calls, read, settings.max_new_tokens)
    if backend == "local" and needs_replies(settings.answers):
        amounts = (different, read, settings.max_new_tokens)
        works.append(Work("evaluate", "reader", "reading", *amounts))
    if backend == "local" and LIKELIHOOD in settings.answers:
        answers = measure_answers(questions, config.reader.path or config.generator.path)
        replies = answers.count / len(questions) * answers.mean
        works.append(Work("evaluate", "reader", "likelihoods", different, read + replies, replies))
    if verdicts := 2 * config.judge.repeats * len(config.judge.against) * len(questions):
        form = prompts.load_template("judge", config.prompts.judge)
        form = measure(config.generator.path, [form]).mean
        add_calls("judge", "judge", "judge", verdicts, form + 2 * read, VERDICT)
    return works, [
        f"reading: about {different:,.0f} of {calls:,} prompts differ, for systems often find the "
        "same passages; less where answers end early"
    ]
