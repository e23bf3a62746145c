"""Pairwise verdicts of a language model on two systems' answers, and what they come to.

Every pair is asked in both orders, since judges favour a place. A win counts only if it is the same answer's in both; that the
place decided is a tie, and how often and to whose favour is reported.
"""

import collections
import re
from collections.abc import Mapping, Sequence

from ark_jax.evaluate.retrieval import interval
from ark_jax.text import prompts
from ark_jax.text.replies import mended, spoken

CRITERIA = ("faithfulness", "conciseness", "overall")
SAID = {"1": "first", "2": "second", "tie": "tie", "none": "tie", "neither": "tie"}
EXCHANGED = {"first": "second", "second": "first", "tie": "tie", "": ""}
OUTCOMES = ("won", "lost", "tied", "inconsistent", "disqualified")
WORTH = {"won": 1.0, "tied": 0.5, "inconsistent": 0.5, "lost": 0.0}


def prompt(template: str, *, question: str, references: Sequence[str], passages: Sequence[str], first: str, second: str) -> str:
    """What the judge is asked about two answers."""
    return prompts.fill(template, question=question, references="; ".join(references) or "(nothing)",
                        passages="\n\n".join(passages) or "(none)", first=first or "(no answer)", second=second or "(no answer)")


def parse(*replies: str) -> dict[str, str]:
    """criterion -> "first", "second" or "tie", as far as it can be read; what is said last holds.

    Choices are also read as `{"Overall Winner": {"Winner": "Answer 1"}}`, the form that the paper asks for.
    """
    found = {}
    for reply in replies:
        text = spoken(reply)
        start, end = text.find("{"), text.rfind("}")
        said = mended(text[start : end + 1 if end > start else None]) if start >= 0 else None
        objects = [some for some in (said if isinstance(said, list) else [said]) if isinstance(some, dict)]
        for name, value in (pair for some in objects for pair in some.items()):
            name = str(name).lower().removesuffix(" winner")
            value = value.get("Winner") if isinstance(value, dict) else value
            value = re.sub(r"^answer[ _]?", "", str(value or "").strip(" .").lower())
            if name in CRITERIA and value in SAID:
                found[name] = SAID[value]
    return found


def complaint(verdicts: Mapping[str, str]) -> str | None:
    """What to tell the judge about its reply; None if it will do."""
    missing = [name for name in CRITERIA if name not in verdicts]
    if not missing:
        return None
    return (f'No choice for {", ".join(missing)} could be read. Reply with the JSON object only, each choice being "1", "2" or '
            '"tie".')


def outcome(forward: str, backward: str) -> str:
    """One of `OUTCOMES`, for the answer that stood first in the verdict `forward` and second in `backward`; "" is no verdict."""
    if not (forward and backward):
        return "disqualified"
    if forward != EXCHANGED[backward]:
        return "inconsistent"
    return {"first": "won", "second": "lost", "tie": "tied"}[forward]


def tally(verdicts: Mapping[str, Sequence[tuple[str, str]]], *, same: int, draws: int, seed: int) -> dict:
    """What a judge's verdicts on one criterion come to.

    Args:
        verdicts: by question, of each repeat the verdicts of both orders, as `outcome` takes them.
        same: questions whose two answers are equal, which are ties without a judge.
        draws: of the bootstrap over questions.

    Returns:
        win_rate: mean and 95 % interval over questions, a tie or an inconsistency being half a win; without disqualified pairs.
        by_repeat: the win rate of each repeat, None if it has no pair; [] if no judge was needed.
        decided: wins over wins and losses, None without any.
        won, lost, tied, inconsistent, disqualified: pairs of verdicts.
        position_bias: from -1 (always the second) by 0 to 1 (always the first), over verdicts that name one; None without any.
        agreement: share of pairs in which both orders say the same; None without any.
        unjudged: questions all of whose pairs are disqualified.
    """
    outcomes = {q: [outcome(*pair) for pair in pairs] for q, pairs in verdicts.items()}
    worth = {q: [WORTH[x] for x in some if x in WORTH] for q, some in outcomes.items()}
    counts = collections.Counter(x for some in outcomes.values() for x in some)
    named = collections.Counter(said for pairs in verdicts.values() for pair in pairs if all(pair) for said in pair)
    share = lambda part, whole: part / whole if whole else None
    judged = [sum(some) / len(some) for some in worth.values() if some] + [0.5] * same
    repeats = [[WORTH[x] for x in column if x in WORTH] + [0.5] * same for column in zip(*outcomes.values(), strict=True)]
    complete = sum(counts[x] for x in WORTH)
    return {"win_rate": interval(judged, draws=draws, seed=seed) if judged else None,
            "by_repeat": [share(sum(some), len(some)) for some in repeats],
            "decided": share(counts["won"], counts["won"] + counts["lost"]), **{x: counts[x] for x in OUTCOMES},
            "position_bias": share(named["first"] - named["second"], named["first"] + named["second"]),
            "agreement": share(complete - counts["inconsistent"], complete),
            "unjudged": sum(not some for some in worth.values())}
