"""The answers that the report of an ARK run shows, and who gave them."""

from collections.abc import Callable, Mapping
from pathlib import Path

from ark_jax.data.records import Question
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.models import reader_path, trains_reader


def reader_name(config) -> str:
    """Who answers, as the report calls it."""
    match config.reader.backend:
        case "openai":
            return config.reader.model
        case "replay":
            return "recorded replies"
        case own if own_functions.is_own(own):
            return own
    return Path(config.reader.path or config.generator.path).name


def cut_answers(context: Context) -> Callable[[str | None], bool]:
    """Whether an answer of a local reader fills `evaluate.max_new_tokens`, so that its end lacks.

    Of other readers no answer is known to be cut.
    """
    config = context.config
    if config.reader.backend != "local":
        return lambda answer: False
    from ark_jax.text.tokens import load_tokenizer

    tokenizer = load_tokenizer(reader_path(context) or config.generator.path)
    count = lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
    return lambda answer: answer is not None and count(answer) >= config.evaluate.max_new_tokens


def answers_shown(
    config,
    rows: list[dict],
    names: tuple[str, str],
    questions: Mapping[str, Question],
    is_cut: Callable[[str | None], bool],
    limit: int = 10,
) -> dict:
    """`rows`: answers of the first and the last system to the first questions; `about`: whose.

    Args:
        rows: of `questions.parquet`.
        is_cut: answers that are left out; so is a question whose answers all are.
    """
    replies = {(row["system"], row["question"]): row["answer"] for row in rows}
    read = [q for q in questions.values() if replies[names[0], q.id] is not None]
    uncut = {
        question.id: {
            name: answer for name in names if not is_cut(answer := replies[name, question.id])
        }
        for question in read
    }
    cut = len(names) * len(read) - sum(map(len, uncut.values()))
    shown = [question for question in read if uncut[question.id]][:limit]
    answer_rows = [
        {
            "question": question.question,
            "answers": list(question.answers),
            "given": {name: uncut[question.id].get(name) for name in names},
        }
        for question in shown
    ]
    if not read:
        return {}
    return {"about": _sentences(config, cut, is_empty=not shown), "rows": answer_rows}


def _sentences(config, cut: int, *, is_empty: bool) -> str:
    """Who answered, and how many answers are left out."""
    trained = trains_reader(config)
    who = reader_name(config) + ", which this run trained to answer," * trained
    limit = config.evaluate.max_new_tokens
    if is_empty:
        fix = "" if trained else "; config.reader.warm=True teaches it to answer"
        return (
            f"No answer is shown: those of {who} are all cut at {limit} tokens "
            f"(config.evaluate.max_new_tokens){fix}."
        )
    left_out = f" {cut:,} answers that were cut at {limit} tokens are left out." if cut else ""
    return f"Answers of {who} from the passages that each system retrieves.{left_out}"
