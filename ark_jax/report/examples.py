"""The report's held-out questions: the largest gains and losses, and the readers' answers."""

from collections.abc import Mapping

from ark_jax.report.html import (
    auto_direction,
    empty_note,
    escape,
    highlight,
    passage,
    references,
    table,
)


def moves(data: Mapping) -> str:
    """The section of questions whose rank rose or fell between base and the last stage.

    The rank is that of the first gold passage. The first question of each list is open.
    """
    out = ""
    if data["tally"]:
        tally = ", ".join(f"{count:,} {direction}" for direction, count in data["tally"].items())
        out = (
            "<p>The rank of the first gold passage, base → last stage. Of all held-out questions: "
            f"{escape(tally)}. The largest moves:</p>"
        )
    for key, head, direction in (("wins", "Gains", "rose"), ("losses", "Losses", "fell")):
        cards = "".join(_move_card(move, i == 0) for i, move in enumerate(data[key]))
        note = empty_note(f"No question is listed whose first gold passage {direction}.")
        out += f"<h3>{head}</h3>" + (cards or note)
    return out


def _move_card(move: Mapping, is_open: bool) -> str:
    """One question: its ranks, its gold passage, and each system's first passage and answer."""
    ranks = " → ".join(
        "not listed" if rank is None else f"{rank:,}" for rank in (move["before"], move["after"])
    )
    sides = "".join(_system_side(move, system) for system in move["first"])
    return (
        f'<details class="card"{" open" if is_open else ""}>'
        f'<summary><h3 dir="auto">{escape(move["question"])}</h3> '
        f'<span class="ranks">rank {ranks}</span></summary>{references(move["answers"])}'
        f"<h4>Gold passage</h4>{passage(move['passage'], move['answers'])}"
        f'<div class="two">{sides}</div></details>'
    )


def _system_side(move: Mapping, system: str) -> str:
    """The passage that a system ranks first, and its answer if it gave one."""
    first, answer = move["first"][system], move["given"].get(system)
    if first is None:
        text = empty_note("No passage was found.")
    elif first["text"] == move["passage"]:
        text = '<p class="text">the gold passage</p>'
    else:
        text = passage(first["text"], move["answers"])
    if answer:
        marked = auto_direction(highlight(answer, move["answers"]))
        text += f'<p class="given">and answers: {marked}</p>'
    return f"<div><h4>{escape(system)} ranks first</h4>{text}</div>"


def answers(data: Mapping) -> str:
    """The section of answers, several systems beside the reference."""
    about, listed = (data["answers"].get(name, "") for name in ("about", "rows"))
    if not listed:
        return empty_note(about or "No answers were read in this run.")
    systems = list(dict.fromkeys(system for row in listed for system in row["given"]))
    rows = []
    for row in listed:
        texts = [row["given"].get(system) for system in systems]
        cells = [
            "–" if text is None else auto_direction(highlight(text, row["answers"]))
            for text in texts
        ]
        question = auto_direction(escape(row["question"]))
        rows.append([question, references(row["answers"]), *cells])
    return f"<p>{escape(about)} Reference answers are <mark>marked</mark>.</p>" + table(
        "Answers by system", ["question", "reference", *systems], rows, "read"
    )
