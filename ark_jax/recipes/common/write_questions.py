"""The questions stage: questions and answers with their evidence, written from passages."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from ark_jax.data.records import Chunk, Question
from ark_jax.llm import complete
from ark_jax.llm.question_pairs import Pair, find_evidence, parse_pairs
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.common import filter_questions
from ark_jax.recipes.common.ask import ask
from ark_jax.recipes.common.filter_questions import Candidate
from ark_jax.recipes.common.written_from import drawn_passages, joins_passages, writes_by_rules
from ark_jax.runtime.log import say
from ark_jax.text import prompts
from ark_jax.text.word_boundaries import contains_words

# join(context, passages, count): at most `count` pairs of the passages that belong together.
Join = Callable[[Context, Sequence[Chunk], int], list[tuple[Chunk, Chunk]]]


@dataclasses.dataclass(frozen=True)
class Material:
    """One passage to write from, or two, for training or the test."""

    part: str
    chunks: tuple[Chunk, ...]

    @property
    def id(self) -> str:
        return "+".join(chunk.id for chunk in self.chunks)


def write_questions(context: Context, folder: Path, *, join: Join | None = None) -> dict:
    """Stores the questions that pass all filters, the dropped ones with reasons, and bad replies.

    Args:
        join: finds passages that belong together; without it every question is of one passage.

    Raises:
        ValueError: no question for training, or for the test, passes.
    """
    materials = materials_to_ask(context, join)
    calls = question_calls(context, materials)
    by_item = dict(zip([call.item for call in calls], materials, strict=True))
    accept = lambda call, texts, cut: remark(texts[-1], by_item[call.item], cut)
    answers = ask(context, calls, "questions", accept, role="questions")
    candidates, quarantine = [], []
    for item, material in by_item.items():
        texts = answers.texts[item]
        parsed = _candidates(material, texts)
        candidates += parsed
        problem = answers.rejected.get(item) or (texts and remark(texts[-1], material, False))
        if problem and not parsed:
            quarantine.append({"item": item, "reason": problem, "text": "\n".join(texts)})
    candidates = filter_questions.filter_candidates(context, folder, candidates)
    pairs = [x for x in candidates if not x.reason]
    reasons = collections.Counter(x.reason for x in candidates if x.reason)
    _check_parts(candidates, pairs, {x.part for x in materials}, reasons)
    save_rows([x.row() for x in pairs], folder / "questions.parquet")
    save_rows([x.row() for x in candidates if x.reason], folder / "dropped.parquet")
    save_rows(quarantine, folder / "quarantine.parquet")
    filter_questions.clear_progress(folder)
    if writes_by_rules(context.config):
        say("  rules leave a name out of a sentence: such questions are weak, a model's are better")
    return {
        "calls": len(calls),
        "pairs": len(candidates),
        "train_questions": sum(x.part == "train" for x in pairs),
        "held_out_questions": sum(x.part == "held_out" for x in pairs),
        "joined_questions": sum(len(x.chunks) > 1 for x in pairs),
        "dropped": len(candidates) - len(pairs),
        "drop_reasons": dict(reasons.most_common()),
        "quarantined": len(quarantine),
        "drifted_prompts": len(answers.drifted),
        "llm": dataclasses.asdict(answers.usage),
    }


def _check_parts(
    candidates: list[Candidate],
    pairs: list[Candidate],
    parts: set[str],
    reasons: collections.Counter,
) -> None:
    for part in ("train", "held_out"):
        if part in {"train", *parts} and part not in {x.part for x in pairs}:
            written = sum(x.part == part for x in candidates)
            dropped = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
            raise ValueError(
                f"none of {written:,} written {part.replace('_', '-')} questions is left "
                f"({dropped or 'no passage was drawn, or no reply was read'}); draw more passages "
                "(config.questions.passages), or lower config.questions.margin"
            )


# --- the calls ------------------------------------------------------------------------------------


def materials_to_ask(context: Context, join: Join | None) -> list[Material]:
    """All drawn passages one by one, then the pairs among those of training."""
    drawn = drawn_passages(context)
    single = [Material(part, (chunk,)) for part, chunks in drawn.items() for chunk in chunks]
    share = context.config.questions.joined
    count = round(len(drawn["train"]) * share / (1 - share))
    if not join or not count or not joins_passages(context.config):
        return single
    return single + [Material("train", pair) for pair in join(context, drawn["train"], count)]


def question_calls(context: Context, materials: Sequence[Material]) -> list[complete.Call]:
    """A call for every material."""
    template = prompts.load_template("questions", context.config.prompts.questions)
    count = context.config.questions.per_passage
    return [
        complete.Call(
            f"questions/{material.id}",
            "questions",
            (prompts.fill(template, passages=_show(material), count=count),),
            {"about": [chunk.text for chunk in material.chunks], "count": count},
        )
        for material in materials
    ]


def _show(material: Material) -> str:
    if len(material.chunks) == 1:
        return f"Passage:\n{material.chunks[0].passage}"
    shown = enumerate(material.chunks, 1)
    return "\n\n".join(f"Passage {i}:\n{chunk.passage}" for i, chunk in shown)


# --- the replies ----------------------------------------------------------------------------------


def remark(reply: str, material: Material, is_cut: bool) -> str | None:
    """What the model is told about its reply if no pair can be used; None if the reply will do."""
    pairs = parse_pairs(reply)
    form = "Reply in the JSON form that was asked for, and with nothing else."
    if is_cut and not pairs:
        return f"Your reply broke off before its first pair. Write fewer pairs. {form}"
    if pairs is None:
        return f"No question with answer and evidence could be read from your reply. {form}"
    defects = [defect(pair, material) for pair in pairs]
    if not pairs or not all(defects):
        return None
    listed = "; ".join(f"pair {i}: {text}" for i, text in enumerate(defects, 1))
    return f"No pair of your reply can be used ({listed}). Write all of them again. {form}"


def defect(pair: Pair, material: Material) -> str:
    """What is wrong with a pair by its words alone; empty if nothing is."""
    texts = [chunk.text for chunk in material.chunks]
    quoted = find_evidence(pair, texts)
    if quoted is None:
        return "the evidence is not verbatim"
    if not all(any(part in text for part in quoted) for text in texts):
        return "the evidence is of one passage only"
    if not any(contains_words(chunk.passage, pair.answer) for chunk in material.chunks):
        return "the answer is not in the passage"
    if contains_words(pair.question, pair.answer):
        return "the answer is in the question"
    return ""


def _candidates(material: Material, replies: Sequence[str]) -> list[Candidate]:
    """The pairs of all replies to a call; in a later one the model may have mended an earlier."""
    pairs = dict.fromkeys(pair for reply in replies for pair in parse_pairs(reply) or ())
    documents = tuple(dict.fromkeys(chunk.document for chunk in material.chunks))
    return [
        Candidate(
            question=Question(
                f"written/{material.id}/{i}",
                pair.question,
                (pair.answer,),
                documents,
                tuple(find_evidence(pair, [x.text for x in material.chunks]) or pair.evidence),
            ),
            part=material.part,
            chunks=material.chunks,
            reason=defect(pair, material),
        )
        for i, pair in enumerate(pairs)
    ]
