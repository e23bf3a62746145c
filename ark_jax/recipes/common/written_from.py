"""Which documents and passages questions are written from, and which ones are kept for the test.

Nothing here happens as long as `questions.source` is "given".
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ark_jax.data.records import Chunk
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.common.corpus import chunks_by_document, given_questions, written_questions
from ark_jax.recipes.common.split import Split, uniform


def is_writing(config) -> bool:
    """Whether the config has a stage that writes questions; some recipes have none."""
    return "questions" in config and config.questions.source != "given"


def advice(config) -> str:
    """What else to do where questions are missing; empty if the recipe writes none."""
    if "questions" not in config:
        return ""
    return ", or let them be written from the documents with --config.questions.source=written"


def writes_by_rules(config) -> bool:
    """Whether no language model writes the questions."""
    return config.llm.backend == "none" and not config.questions.replies


def joins_passages(config) -> bool:
    """Whether questions are written from two passages too, which a graph joins."""
    # Rules cannot tell what joins two passages.
    return is_writing(config) and config.questions.joined > 0 and not writes_by_rules(config)


# --- in the stage data ----------------------------------------------------------------------------


def reserve_for_test(parts: Split, config) -> Split:
    """The split of the input's questions where training questions are only written.

    All are held out, or those that the config names.
    """
    if not is_writing(config) or config.questions.source != "written":
        return parts
    settings = config.data
    if settings.held_out_questions or settings.held_out_documents or settings.test:
        return dataclasses.replace(parts, train=[], unused=[*parts.unused, *parts.train])
    return dataclasses.replace(parts, train=[], held_out=[*parts.train, *parts.held_out])


def parts_of_the_input(questions: int, config) -> tuple[str, ...]:
    """The parts that need a question of the input, which has so many.

    Raises:
        ValueError: the input has no question, and none is to be written.
    """
    if not is_writing(config):
        if not questions:
            raise ValueError(f"{config.data.path} holds no question: add some{advice(config)}")
        return "train", "held_out"
    return ("held_out",) if questions else ()


def save_sides(document_ids: Sequence[str], parts: Split, config, folder: Path) -> None:
    """Stores on which side each document is, if questions are written: train or held_out."""
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
    """A share of the documents, by a hash of each: one at least, and not all."""
    if len(ids) < 2:
        raise ValueError(
            f"{config.data.path} holds one document and no question: questions for the test need a "
            "document that no training question is written from. Give its chapters as documents of "
            "their own, or questions of your own"
        )
    order = hash_order(ids, config.seed)
    drawn = {id for id in ids if uniform(f"{config.seed} {id}") < config.data.held_out}
    return (drawn or {order[0]}) - (set() if len(drawn) < len(ids) else {order[-1]})


# --- in later stages ------------------------------------------------------------------------------


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
    """The documents of the given training questions, and those that some are written from."""
    documents = {id for question in given_questions(context, "train") for id in question.documents}
    return documents | {chunk.document for chunk in drawn_passages(context)["train"]}


def _draw_evenly(groups: Mapping[str, Sequence[Chunk]], count: int) -> list[Chunk]:
    """`count` chunks, or all if it is 0: one of each document, then a second of each, and so on.

    They are the same for every seed, so that its runs share the replies of a language model.
    """
    by_id = {chunk.id: chunk for group in groups.values() for chunk in group}
    orders = [hash_order([chunk.id for chunk in groups[id]]) for id in hash_order(groups)]
    longest = max(map(len, orders), default=0)
    ids = [order[i] for i in range(longest) for order in orders if i < len(order)]
    return [by_id[id] for id in ids[: count or None]]


def hash_order(ids: Iterable[str], seed: int = 0) -> list[str]:
    """The ids in an order that their hashes decide, so that a new one moves no other."""
    return sorted(ids, key=lambda id: (uniform(f"{seed} {id}"), id))


def note_on_test(context: Context) -> str:
    """What a reader of the results must know of the test's questions; empty if people wrote them.

    Also empty if no question of training is written.
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
