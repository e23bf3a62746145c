"""The judge: answers of the last stage against those of other systems."""

import collections
import dataclasses
import itertools
from pathlib import Path

from ark_jax.data.records import Question
from ark_jax.evaluate import judge
from ark_jax.log import say
from ark_jax.pipeline import Context
from ark_jax.stages.files import ask, chunks_of, load_rows, questions_of, save_json, save_rows
from ark_jax.stages.reading import answered
from ark_jax.stages.systems import trained
from ark_jax.text import llm, prompts


def compare(context: Context, folder: Path) -> dict:
    """Verdicts on all pairs of answers, and what they come to."""
    c, calls = context.config, judging(context)
    found = ask(context, calls, "judge", lambda call, texts, cut: judge.complaint(judge.parse(*texts)), role="judge")
    rows, verdicts = [], {}
    for call in calls:
        refused, said = found.rejected.get(call.item), judge.parse(*found.texts[call.item])
        rows.append({**call.fields, **{name: said.get(name, "") for name in judge.CRITERIA},
                     "disqualified": f"no reply: {refused}" if refused else "unreadable" if judge.complaint(said) else "",
                     "reply": "\n".join(found.texts[call.item])})
        verdicts[tuple(call.fields[name] for name in ("first", "second", "question", "repeat"))] = said
    save_rows(rows, folder / "verdicts.parquet")
    mine, questions = trained(c)[-1], [q.id for q in _answered(context)]
    pairs = []
    for other in c.judge.against:
        asked = [q for q in questions if (mine, other, q, 0) in verdicts]
        both = lambda q, repeat, name, other=other: tuple(
            verdicts[first, second, q, repeat].get(name, "") for first, second in ((mine, other), (other, mine)))
        criteria = {name: judge.tally({q: [both(q, i, name) for i in range(c.judge.repeats)] for q in asked},
                                      same=len(questions) - len(asked), draws=c.evaluate.bootstrap, seed=c.seed)
                    for name in judge.CRITERIA}
        pairs.append({"system": mine, "against": other, "questions": len(questions), "same": len(questions) - len(asked),
                      "criteria": criteria})
        say(_as_text(pairs[-1]))
    reasons = collections.Counter(row["disqualified"].partition(":")[0] for row in rows if row["disqualified"])
    name = Path(c.judge.path or c.generator.path).name if c.judge.backend == "local" else c.judge.model
    save_json({"judge": name, "repeats": c.judge.repeats, "temperature": c.judge.temperature, "verdicts": len(rows),
               "disqualified": dict(reasons), "pairs": pairs}, folder / "judge.json")
    return {"verdicts": len(rows), "disqualified": reasons.total(), "reasons": dict(reasons),
            "llm": dataclasses.asdict(found.usage)}


def judging(context: Context) -> list[llm.Call]:
    """A call for each two different answers to a question, in either order, as often as there are repeats.

    The judge is shown the passages that either system had, in the order of their documents.

    Raises:
        ValueError: a system in `judge.against` that has no answers.
    """
    c, mine = context.config, trained(context.config)[-1]
    template = prompts.load("judge", c.prompts.judge)
    chunks = chunks_of(context)
    given = {(r["system"], r["question"]): r for r in load_rows(context / "evaluate" / "questions.parquet")}
    others = dict.fromkeys(name for name, _ in given if name != mine)
    for other in c.judge.against:
        if other not in others:
            raise ValueError(f"config.judge.against: no system {other!r} to compare {mine} with; there are {', '.join(others)}")
    calls = []
    for other, q in itertools.product(c.judge.against, _answered(context)):
        pair = given[mine, q.id], given[other, q.id]
        if pair[0]["answer"] == pair[1]["answer"]:
            continue  # a tie, whoever is asked
        had = {id for row in pair for id in row["ranked"][: c.evaluate.passages]}
        passages = [x.text for some in chunks.values() for x in some if x.id in had]
        for (first, second), repeat in itertools.product((pair, pair[::-1]), range(c.judge.repeats)):
            names = {"first": first["system"], "second": second["system"]}
            asked = judge.prompt(template, question=q.question, references=q.answers, passages=passages,
                                 first=first["answer"], second=second["answer"])
            calls.append(llm.Call(f"judge/{'/'.join(names.values())}/{repeat}/{q.id}", "judge", (asked,),
                                  {"question": q.id, **names, "repeat": repeat}, draw=repeat))
    return calls


def _answered(context: Context) -> list[Question]:
    return answered(questions_of(context, "held_out"), context.config.evaluate.read)


def _as_text(pair: dict) -> str:
    """For a terminal: win rates with their 95 % intervals, and how much the place of an answer counted."""
    lines = [f"  {pair['system']} against {pair['against']}: {pair['same']} of {pair['questions']} answers are the same"]
    for name, x in pair["criteria"].items():
        rate = "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**x["win_rate"]) if x["win_rate"] else "none judged"
        bias = "" if x["position_bias"] is None else f", position bias {x['position_bias']:+.2f}"
        lines.append(f"  {name.ljust(12)} win rate {rate}, {x['won']} won, {x['lost']} lost{bias}")
    return "\n".join(lines)
