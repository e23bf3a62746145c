"""The judge stage: answers of the last system against those of other systems."""

import collections
import dataclasses
import itertools
from pathlib import Path

from ark_jax.data.records import Question
from ark_jax.evaluate import judge
from ark_jax.llm import complete
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_json, save_rows
from ark_jax.recipes.core.ask import ask
from ark_jax.recipes.documents.corpus import load_questions, stored_chunks
from ark_jax.recipes.documents.reader import questions_to_answer
from ark_jax.runtime.log import say
from ark_jax.text import prompts

# (first system, second system, question, repeat) -> criterion -> verdict
Verdicts = dict[tuple[str, str, str, int], dict[str, str]]


def judge_answers(context: Context, folder: Path, *, system: str) -> dict:
    """Asks for verdicts on all pairs of answers and counts who wins."""
    config, calls = context.config, judge_calls(context, system)
    accept = lambda call, texts, cut: judge.missing_verdicts_remark(judge.parse_verdicts(*texts))
    answers = ask(context, calls, "judge", accept, role="judge")
    rows, verdicts = _read_verdicts(calls, answers)
    save_rows(rows, folder / "verdicts.parquet")
    question_ids = [question.id for question in _judged_questions(context)]
    pairs = []
    for opponent in config.judge.against:
        pairs.append(_compare(config, system, opponent, question_ids, verdicts))
        say(_as_text(pairs[-1]))
    reasons = collections.Counter(
        row["disqualified"].partition(":")[0] for row in rows if row["disqualified"]
    )
    local_name = Path(config.judge.path or config.generator.path).name
    summary = {
        "judge": local_name if config.judge.backend == "local" else config.judge.model,
        "repeats": config.judge.repeats,
        "temperature": config.judge.temperature,
        "verdicts": len(rows),
        "disqualified": dict(reasons),
        "pairs": pairs,
    }
    save_json(summary, folder / "judge.json")
    return {
        "verdicts": len(rows),
        "disqualified": reasons.total(),
        "reasons": dict(reasons),
        "llm": dataclasses.asdict(answers.usage),
    }


def _read_verdicts(
    calls: list[complete.Call], answers: complete.Completions
) -> tuple[list[dict], Verdicts]:
    rows, verdicts = [], {}
    for call in calls:
        replies = answers.texts[call.item]
        criteria, rejection = judge.parse_verdicts(*replies), answers.rejected.get(call.item)
        unreadable = "unreadable" if judge.missing_verdicts_remark(criteria) else ""
        row = {
            **call.fields,
            **{name: criteria.get(name, "") for name in judge.CRITERIA},
            "disqualified": f"no reply: {rejection}" if rejection else unreadable,
            "reply": "\n".join(replies),
        }
        rows.append(row)
        verdicts[tuple(row[name] for name in ("first", "second", "question", "repeat"))] = criteria
    return rows, verdicts


def _compare(
    config, system: str, opponent: str, question_ids: list[str], verdicts: Verdicts
) -> dict:
    """Wins and losses of `system` against `opponent` by criterion, over both orders of a pair."""
    judged = [q for q in question_ids if (system, opponent, q, 0) in verdicts]
    equal_answers = len(question_ids) - len(judged)

    def both_orders(question: str, repeat: int, criterion: str) -> tuple[str, str]:
        """The verdicts with `system` shown first and shown second; "" if there is none."""
        first = verdicts[system, opponent, question, repeat].get(criterion, "")
        return first, verdicts[opponent, system, question, repeat].get(criterion, "")

    criteria = {}
    for name in judge.CRITERIA:
        repeats = range(config.judge.repeats)
        outcomes = {q: [both_orders(q, repeat, name) for repeat in repeats] for q in judged}
        criteria[name] = judge.tally(outcomes, same=equal_answers, seed=config.seed)
    return {
        "system": system,
        "against": opponent,
        "questions": len(question_ids),
        "same": equal_answers,
        "criteria": criteria,
    }


def judge_calls(context: Context, system: str) -> list[complete.Call]:
    """A call for each pair of different answers to a question, in both orders, for each repeat.

    The judge sees the passages that either system retrieved, in the order of the corpus.
    """
    config = context.config
    template = prompts.load_template("judge", config.prompts.judge)
    chunks = stored_chunks(context)
    results = load_rows(context / "evaluate" / "questions.parquet")
    rows = {(row["system"], row["question"]): row for row in results}
    systems = dict.fromkeys(name for name, _ in rows if name != system)
    for opponent in config.judge.against:
        if opponent not in systems:
            raise ValueError(
                f"config.judge.against: no system {opponent!r} to compare {system} with; "
                f"there are {', '.join(systems)}"
            )
    calls = []
    for opponent, question in itertools.product(config.judge.against, _judged_questions(context)):
        pair = rows[system, question.id], rows[opponent, question.id]
        if pair[0]["answer"] == pair[1]["answer"]:
            continue  # a tie; no judge is needed
        retrieved = {id for row in pair for id in row["ranked"][: config.evaluate.passages]}
        passages = [chunks[row].passage for row in sorted(map(chunks.ids.position, retrieved))]
        orders = itertools.product((pair, pair[::-1]), range(config.judge.repeats))
        for (first, second), repeat in orders:
            names = {"first": first["system"], "second": second["system"]}
            filled = judge.judge_prompt(
                template,
                question=question.question,
                references=question.answers,
                passages=passages,
                first=first["answer"],
                second=second["answer"],
            )
            item = f"judge/{'/'.join(names.values())}/{repeat}/{question.id}"
            fields = {"question": question.id, **names, "repeat": repeat}
            calls.append(complete.Call(item, "judge", (filled,), fields, draw=repeat))
    return calls


def _judged_questions(context: Context) -> list[Question]:
    return questions_to_answer(load_questions(context, "held_out"), context.config.evaluate.read)


def _as_text(pair: dict) -> str:
    lines = [
        f"  {pair['system']} against {pair['against']}: {pair['same']} of {pair['questions']} "
        "answers are the same"
    ]
    for name, tally in pair["criteria"].items():
        rate = "none judged"
        if tally["win_rate"]:
            rate = "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**tally["win_rate"])
        bias = tally["position_bias"]
        bias_text = "" if bias is None else f", position bias {bias:+.2f}"
        lines.append(
            f"  {name.ljust(12)} win rate {rate}, {tally['won']} won, {tally['lost']} lost"
            f"{bias_text}"
        )
    return "\n".join(lines)
