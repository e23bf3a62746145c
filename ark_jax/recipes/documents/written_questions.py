"""The questions stage: what questions are written from, and the questions with their evidence."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ark_jax.data.records import Chunk, Question
from ark_jax.llm import complete
from ark_jax.llm.question_pairs import Pair, find_evidence, parse_pairs
from ark_jax.pipeline.parts import forget_shards
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.core.ask import ask
from ark_jax.recipes.core.split import Split, uniform
from ark_jax.recipes.documents import filter_questions
from ark_jax.recipes.documents.corpus import chunks_by_document, given_questions, written_questions
from ark_jax.recipes.documents.filter_questions import Candidate
from ark_jax.runtime.log import say
from ark_jax.text import prompts
from ark_jax.text.word_boundaries import contains_words


def is_writing(config) -> bool:
    """Whether the config has a stage that writes questions; some recipes have none."""
    return "questions" in config and config.questions.source != "given"


def advice(config) -> str:
    """The end of an error message on missing questions; empty if the recipe writes none."""
    if "questions" not in config:
        return ""
    return ", or let them be written from the documents with --config.questions.source=written"


def writes_by_rules(config) -> bool:
    """Whether no language model writes the questions."""
    return config.llm.backend == "none" and not config.questions.replies


def joins_passages(config) -> bool:
    """Whether some questions are written from two passages, which a graph joins."""
    # Rules cannot write from two passages.
    return is_writing(config) and config.questions.joined > 0 and not writes_by_rules(config)


def reserve_for_test(parts: Split, config) -> Split:
    """The split without training questions if these are only written; else the same split.

    All questions of the input are then held out, or those that the config names.
    """
    if not is_writing(config) or config.questions.source != "written":
        return parts
    settings = config.data
    if settings.held_out_questions or settings.held_out_documents or settings.test:
        return dataclasses.replace(parts, train=[], unused=[*parts.unused, *parts.train])
    return dataclasses.replace(parts, train=[], held_out=[*parts.train, *parts.held_out])


def parts_that_need_questions(questions: int, config) -> tuple[str, ...]:
    """The parts of the split that must have a question of the input."""
    if not is_writing(config):
        if not questions:
            raise ValueError(f"{config.data.path} holds no question: add some{advice(config)}")
        return "train", "held_out"
    return ("held_out",) if questions else ()


def save_sides(document_ids: Sequence[str], parts: Split, config, folder: Path) -> None:
    """Stores whether each document is "train" or "held_out", if questions are written."""
    if is_writing(config):
        held_out = held_out_documents(document_ids, parts, config)
        side = lambda id: "held_out" if id in held_out else "train"
        rows = [{"document": id, "part": side(id)} for id in document_ids]
        save_rows(rows, folder / "sides.parquet")


def held_out_documents(document_ids: Sequence[str], parts: Split, config) -> set[str]:
    """The documents that no training question is written from."""
    named = {str(id) for id in config.data.held_out_documents}
    if not parts.held_out:
        return named or _draw_documents(list(document_ids), config)
    if config.questions.source == "both" and parts.by == "document":
        return named | {id for question in parts.held_out for id in question.documents}
    return named


def _draw_documents(ids: list[str], config) -> set[str]:
    """A share of the documents by their hashes: at least one, and not all."""
    if len(ids) < 2:
        raise ValueError(
            f"{config.data.path} holds one document and no question: questions for the test need a "
            "document that no training question is written from. Give its chapters as documents of "
            "their own, or questions of your own"
        )
    order = hash_order(ids, config.seed)
    drawn = {id for id in ids if uniform(f"{config.seed} {id}") < config.data.held_out}
    return (drawn or {order[0]}) - (set() if len(drawn) < len(ids) else {order[-1]})


def drawn_passages(context: Context) -> dict[str, list[Chunk]]:
    """The passages to write from, by part: "train", and "held_out" if the input has no test."""
    config, chunks = context.config, chunks_by_document(context)
    if not is_writing(config):
        return {"train": [], "held_out": []}
    sides = {row["document"]: row["part"] for row in load_rows(context / "data" / "sides.parquet")}
    parts = ("train",) if given_questions(context, "held_out") else ("train", "held_out")
    groups = {id: group for id, group in chunks.items() if sides[id] in parts}
    drawn = _draw_evenly(groups, config.questions.passages)
    return {part: [x for x in drawn if sides[x.document] == part] for part in ("train", "held_out")}


def training_documents(context: Context) -> set[str]:
    """The documents of given training questions, and those from which some are written."""
    documents = {id for question in given_questions(context, "train") for id in question.documents}
    return documents | {chunk.document for chunk in drawn_passages(context)["train"]}


def _draw_evenly(groups: Mapping[str, Sequence[Chunk]], count: int) -> list[Chunk]:
    """`count` chunks, or all if it is 0: one of each document, then a second of each, and so on.

    The draw does not depend on the seed, so runs of several seeds share a language model's replies.
    """
    by_id = {chunk.id: chunk for group in groups.values() for chunk in group}
    orders = [hash_order([chunk.id for chunk in groups[id]]) for id in hash_order(groups)]
    longest = max(map(len, orders), default=0)
    ids = [order[i] for i in range(longest) for order in orders if i < len(order)]
    return [by_id[id] for id in ids[: count or None]]


def hash_order(ids: Iterable[str], seed: int = 0) -> list[str]:
    """The ids in the order of their hashes, so that a new id leaves the order of the others."""
    return sorted(ids, key=lambda id: (uniform(f"{seed} {id}"), id))


def note_on_test(context: Context) -> str:
    """A caveat for readers of the results if questions were written, else "".

    It says that test questions were written, or that training questions were written from documents
    of the test.
    """
    if not is_writing(context.config):
        return ""
    questions = given_questions(context, "held_out")
    if not questions:
        writer = "rules" if writes_by_rules(context.config) else "a language model"
        condition = ", and kept only if the untuned retriever or BM25 finds their passage"
        return (
            f"The held-out questions were written by {writer} from held-out documents, not by "
            f"people{condition * bool(context.config.questions.round_trip)}: "
            "people may ask otherwise."
        )
    sources = {document for x in written_questions(context, "train") for document in x.documents}
    shared = sum(not sources.isdisjoint(question.documents) for question in questions)
    if not shared:
        return ""
    return (
        f"Training questions were written from documents of {shared:,} of the {len(questions):,} "
        "held-out questions."
    )


# join(context, passages, count): at most `count` pairs of related passages.
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
    """Writes questions about passages, and keeps those that pass all filters.

    Args:
        join: finds related passages; None: every question is written from one passage.
    """
    materials = materials_to_ask(context, join)
    calls = question_calls(context, materials)
    by_item = dict(zip([call.item for call in calls], materials, strict=True))
    accept = lambda call, texts, cut: reply_remark(texts[-1], by_item[call.item], cut)
    answers = ask(context, calls, "questions", accept, role="questions")
    candidates, quarantine = [], []
    for item, material in by_item.items():
        texts = answers.texts[item]
        parsed = _candidates(material, texts)
        candidates += parsed
        problem = answers.rejected.get(item) or (texts and reply_remark(texts[-1], material, False))
        if problem and not parsed:
            quarantine.append({"item": item, "reason": problem, "text": "\n".join(texts)})
    candidates = filter_questions.filter_candidates(context, folder, candidates)
    pairs = [x for x in candidates if not x.reason]
    reasons = collections.Counter(x.reason for x in candidates if x.reason)
    _check_questions_left(candidates, pairs, {x.part for x in materials}, reasons)
    save_rows([x.row() for x in pairs], folder / "questions.parquet")
    save_rows([x.row() for x in candidates if x.reason], folder / "dropped.parquet")
    save_rows(quarantine, folder / "quarantine.parquet")
    forget_shards(folder)
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


def _check_questions_left(
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


def materials_to_ask(context: Context, join: Join | None) -> list[Material]:
    """All drawn passages as single ones, then pairs of those for training."""
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
            (prompts.fill(template, passages=_passages_text(material), count=count),),
            {"about": [chunk.text for chunk in material.chunks], "count": count},
        )
        for material in materials
    ]


def _passages_text(material: Material) -> str:
    if len(material.chunks) == 1:
        return f"Passage:\n{material.chunks[0].passage}"
    shown = enumerate(material.chunks, 1)
    return "\n\n".join(f"Passage {i}:\n{chunk.passage}" for i, chunk in shown)


def reply_remark(reply: str, material: Material, is_cut: bool) -> str | None:
    """The remark on a bad reply; None if a pair is usable, or the list is empty."""
    pairs = parse_pairs(reply)
    form = "Reply in the JSON form that was asked for, and with nothing else."
    if is_cut and not pairs:
        return f"Your reply broke off before its first pair. Write fewer pairs. {form}"
    if pairs is None:
        return f"No question with answer and evidence could be read from your reply. {form}"
    defects = [pair_defect(pair, material) for pair in pairs]
    if not pairs or not all(defects):
        return None
    listed = "; ".join(f"pair {i}: {text}" for i, text in enumerate(defects, 1))
    return f"No pair of your reply can be used ({listed}). Write all of them again. {form}"


def pair_defect(pair: Pair, material: Material) -> str:
    """Why a pair is unusable, judged by its words alone; empty if it is usable."""
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
    """The different pairs of all replies to a call; unusable ones have a reason."""
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
            reason=pair_defect(pair, material),
        )
        for i, pair in enumerate(pairs)
    ]
