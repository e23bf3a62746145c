"""Pairwise comparison of two systems' answers by a language model, and statistics of its verdicts.

Every pair of answers is judged twice, with the answers in both orders, because judges favour a
position. An answer wins a pair if both verdicts choose it. If the verdicts choose different
answers, the pair is counted as inconsistent, and `position_bias` says which position the judge
favours.
"""

import collections
import re
from collections.abc import Mapping, Sequence

from ark_jax.evaluate.significance import bootstrap_interval
from ark_jax.llm.reply_cache import repair_json
from ark_jax.text import prompts
from ark_jax.text.thoughts import split_thought

CRITERIA = ("faithfulness", "conciseness", "overall")
VERDICTS = {"1": "first", "2": "second", "tie": "tie", "none": "tie", "neither": "tie"}
SWAPPED = {"first": "second", "second": "first", "tie": "tie", "": ""}
OUTCOMES = ("won", "lost", "tied", "inconsistent", "disqualified")
WORTH = {"won": 1.0, "tied": 0.5, "inconsistent": 0.5, "lost": 0.0}


def judge_prompt(
    template: str,
    *,
    question: str,
    references: Sequence[str],
    passages: Sequence[str],
    first: str,
    second: str,
) -> str:
    """The prompt that asks the judge to compare two answers."""
    return prompts.fill(
        template,
        question=question,
        references="; ".join(references) or "(nothing)",
        passages="\n\n".join(passages) or "(none)",
        first=first or "(no answer)",
        second=second or "(no answer)",
    )


def parse_verdicts(*replies: str) -> dict[str, str]:
    """Reads the verdict on each criterion from a judge's replies.

    A later verdict on a criterion replaces an earlier one. The paper's form is also read,
    `{"Overall Winner": {"Winner": "Answer 1"}}`.

    Returns:
        criterion -> "first", "second" or "tie"; criteria without a readable verdict are left out.
    """
    verdicts = {}
    for reply in replies:
        for name, choice in _json_pairs(reply):
            criterion = str(name).lower().removesuffix(" winner")
            choice = choice.get("Winner") if isinstance(choice, dict) else choice
            choice = re.sub(r"^answer[ _]?", "", str(choice or "").strip(" .").lower())
            if criterion in CRITERIA and choice in VERDICTS:
                verdicts[criterion] = VERDICTS[choice]
    return verdicts


def _json_pairs(reply: str) -> list[tuple[object, object]]:
    """Keys and values of the JSON objects in a reply."""
    text = split_thought(reply).answer
    start, end = text.find("{"), text.rfind("}")
    if start < 0:
        return []
    value = repair_json(text[start : end + 1 if end > start else None])
    objects = value if isinstance(value, list) else [value]
    return [pair for item in objects if isinstance(item, dict) for pair in item.items()]


def missing_verdicts_remark(verdicts: Mapping[str, str]) -> str | None:
    """The message that asks the judge for missing verdicts; None if there are none."""
    missing = [criterion for criterion in CRITERIA if criterion not in verdicts]
    if not missing:
        return None
    return (
        f"No choice for {', '.join(missing)} could be read. Reply with the JSON object only, "
        'each choice being "1", "2" or "tie".'
    )


def outcome(forward: str, backward: str) -> str:
    """The outcome of a pair of verdicts for one answer, one of `OUTCOMES`.

    Args:
        forward: verdict with the answer in the first position; "" is no verdict.
        backward: verdict with the answer in the second position.
    """
    if not (forward and backward):
        return "disqualified"
    if forward != SWAPPED[backward]:
        return "inconsistent"
    return {"first": "won", "second": "lost", "tie": "tied"}[forward]


def tally(verdicts: Mapping[str, Sequence[tuple[str, str]]], *, same: int, seed: int) -> dict:
    """Summarises a judge's verdicts on one criterion.

    Args:
        verdicts: question -> for each repeat the verdicts of both orders, see `outcome`.
        same: number of questions whose two answers are equal. They are ties without a judge.
        seed: seed of the resamples.

    Returns:
        win_rate: mean and 95 % interval over questions. Ties and inconsistent pairs count half a
            win; disqualified pairs do not count.
        by_repeat: win rate of each repeat, None for a repeat without a pair; [] if no question was
            judged.
        decided: wins / (wins + losses), None without any.
        won, lost, tied, inconsistent, disqualified: numbers of pairs.
        position_bias: from -1 (the judge always chooses the second answer) to 1 (always the first),
            over verdicts other than ties; None without any.
        agreement: share of pairs in which both orders agree; None without a pair.
        unjudged: number of questions whose pairs are all disqualified.
    """
    outcomes = {id: [outcome(*pair) for pair in pairs] for id, pairs in verdicts.items()}
    worths = [_worths(results) for results in outcomes.values()]
    counts = collections.Counter(result for results in outcomes.values() for result in results)
    complete_pairs = [pair for pairs in verdicts.values() for pair in pairs if all(pair)]
    positions = collections.Counter(verdict for pair in complete_pairs for verdict in pair)
    first, second = positions["first"], positions["second"]
    win_rates = [sum(worth) / len(worth) for worth in worths if worth] + [0.5] * same
    repeats = [_worths(column) + [0.5] * same for column in zip(*outcomes.values(), strict=True)]
    complete = sum(counts[result] for result in WORTH)
    return {
        "win_rate": bootstrap_interval(win_rates, seed=seed) if win_rates else None,
        "by_repeat": [_ratio(sum(repeat), len(repeat)) for repeat in repeats],
        "decided": _ratio(counts["won"], counts["won"] + counts["lost"]),
        **{result: counts[result] for result in OUTCOMES},
        "position_bias": _ratio(first - second, first + second),
        "agreement": _ratio(complete - counts["inconsistent"], complete),
        "unjudged": sum(not worth for worth in worths),
    }


def _worths(results: Sequence[str]) -> list[float]:
    """The part of a win that each outcome counts; disqualified ones are left out."""
    return [WORTH[result] for result in results if result in WORTH]


def _ratio(part: float, total: float) -> float | None:
    return part / total if total else None
