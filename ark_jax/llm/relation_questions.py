"""Reads wordings of a relation, with a placeholder for the known entity, from a model's reply."""

import re
from collections.abc import Iterable, Mapping, Sequence

from ark_jax.llm.reply_json import json_texts, json_values
from ark_jax.llm.triple_questions import SIDES, comparison_key
from ark_jax.llm.triple_wordings import PLACEHOLDER, Wordings
from ark_jax.text.word_boundaries import contains_words

FEWEST_WORDS = 2  # of a wording, with the placeholder
FORM = "Reply in the JSON form that was asked for, and with nothing else."
_PLACEHOLDERS = re.compile(r"[{\[<(]{1,2}\s*entity\s*[}\]>)]{1,2}", re.IGNORECASE)


def parse_wordings(reply: str) -> dict[str, list[str]] | None:
    """side -> the wordings in a reply; None if there are none. Never raises.

    Other brackets around the placeholder are replaced by braces.
    """
    for value in json_values(reply):
        if not isinstance(value, Mapping):
            continue
        fields = {str(key).lower(): item for key, item in value.items()}
        if any(side in fields for side in SIDES):
            return {
                side: list(map(_normalise_placeholder, json_texts(fields.get(side))))
                for side in SIDES
            }
    return None


def _normalise_placeholder(wording: str) -> str:
    """A wording with single blanks, and with "{entity}" for "[Entity]" and the like."""
    return _PLACEHOLDERS.sub(PLACEHOLDER, " ".join(wording.split()))


def wording_defect(wording: str, names: Sequence[str]) -> str:
    """What is wrong with a wording; empty if nothing is.

    Args:
        names: names in the facts that the prompt showed.
    """
    count = wording.count(PLACEHOLDER)
    if count != 1:
        return f"{PLACEHOLDER} comes {count} times" if count else f"{PLACEHOLDER} is missing"
    if len(wording.split()) < FEWEST_WORDS:
        return "it is no question"
    frame = wording.replace(PLACEHOLDER, " ")
    shown = next((name for name in names if contains_words(frame, name)), None)
    return "" if shown is None else "it holds a name of a fact"


def usable_wordings(
    replies: Iterable[str], names: Sequence[str]
) -> tuple[Wordings, list[tuple[str, str, str]]]:
    """The wordings of all replies without a defect, and (side, wording, defect) of the others.

    Args:
        replies: all replies to a prompt, of which later ones may correct earlier ones.
        names: names in the facts that the prompt showed.
    """
    usable: dict[str, dict[str, str]] = {side: {} for side in SIDES}
    defects = []
    for parsed in map(parse_wordings, replies):
        earlier_keys = {side: set(texts) for side, texts in usable.items()}
        for side in SIDES if parsed else ():
            for wording in parsed[side]:
                key = comparison_key(wording)
                if key in earlier_keys[side]:  # a correction may repeat what was right
                    continue
                defect = wording_defect(wording, names)
                if not defect and key in usable[side]:
                    defect = "it comes twice"
                if defect:
                    defects.append((side, wording, defect))
                else:
                    usable[side][key] = wording
    return Wordings(**{side: tuple(usable[side].values()) for side in SIDES}), defects


def wordings_remark(
    replies: Sequence[str],
    names: Sequence[str],
    count: int,
    sides: Sequence[str] = SIDES,
    *,
    is_cut: bool = False,
) -> str | None:
    """The message that asks the model to correct its replies; None if they are good.

    Args:
        replies: all replies so far; wordings of each count.
        names: names in the facts that the prompt showed.
        count: how many wordings of a side were asked for.
        sides: the sides that are needed.
        is_cut: whether the last reply broke off.
    """
    if all(parse_wordings(reply) is None for reply in replies):
        cut = "Your reply broke off; write shorter wordings. " if is_cut else ""
        return f'{cut}No "head" and "tail" with wordings could be read from your reply. {FORM}'
    wordings, defects = usable_wordings(replies, names)
    lacking = {side: count - len(getattr(wordings, side)) for side in sides}
    lacking = {side: n for side, n in lacking.items() if n > 0}
    if not lacking:
        return None
    bad = "; ".join(f"{side}, {text!r}: {defect}" for side, text, defect in defects[:8])
    demand = " and ".join(f"{n} more that ask for the {side}" for side, n in lacking.items())
    return (
        f"Some wordings cannot be used ({bad}). " * bool(bad)
        + f"Write {demand}, each with {PLACEHOLDER} exactly once, all different from those before. "
        + FORM
    )
