"""The extract stage: entities and relations of the training documents, by a language model."""

import collections
import dataclasses
from collections.abc import Collection
from pathlib import Path

from ark_jax.llm import complete
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.common.ask import ask
from ark_jax.recipes.common.candidates import load_candidates
from ark_jax.recipes.common.corpus import chunks_by_document, load_documents
from ark_jax.recipes.common.written_from import is_writing, training_documents
from ark_jax.text import prompts


def extraction_calls(context: Context, chunk_ids: Collection[str]) -> list[complete.Call]:
    """A call for each of these chunks, in the order of the corpus."""
    template = prompts.load_template("extract", context.config.prompts.extract)
    return [
        complete.Call(
            f"extract/{chunk.id}",
            "extract",
            (prompts.fill(template, passage=chunk.passage),),
            {"passage": chunk.text, "title": chunk.title},
        )
        for chunks in chunks_by_document(context).values()
        for chunk in chunks
        if chunk.id in chunk_ids
    ]


def extracted_chunks(context: Context) -> set[str]:
    """The chunks that the graph is made of: the candidates of all training questions.

    If questions are to be written, they are those of the documents that training is written from.
    """
    if is_writing(context.config):
        chunks, documents = chunks_by_document(context), training_documents(context)
        return {chunk.id for document in documents for chunk in chunks.get(document, ())}
    candidates = load_candidates(context)
    return {chunk for ranked in candidates.values() for chunk, _ in ranked}


def extract(context: Context, folder: Path) -> dict:
    """Stores the entities and relations of every chunk, and replies that could not be read."""
    from ark_jax.graph.extract import Entity, Quarantined, Relation

    calls = extraction_calls(context, extracted_chunks(context))
    if context.config.graph.openie:
        passes = [_recorded_answers(context, calls)]
    else:
        answers = ask(context, calls, "extract", _remark)
        passes = [answers, *_glean(context, calls, answers)]
    entities, relations, lost = [], [], []
    for call in calls:
        chunk_id = call.item.removeprefix("extract/")
        parsed = _parse_passes(chunk_id, passes)
        for rows, new in zip((entities, relations, lost), parsed, strict=True):
            rows += new
    save_rows(entities, folder / "entities.parquet", Entity)
    save_rows(relations, folder / "relations.parquet", Relation)
    save_rows(lost, folder / "quarantine.parquet", Quarantined)
    usage = sum((answers.usage for answers in passes[1:]), passes[0].usage)
    reasons = collections.Counter(record.reason.partition(":")[0] for record in lost)
    return {
        "calls": usage.calls,
        "entities": len(entities),
        "relations": len(relations),
        "quarantined": len(lost),
        "quarantine_reasons": dict(reasons),
        "drifted_prompts": sum(len(answers.drifted) for answers in passes),
        "llm": dataclasses.asdict(usage),
    }


def _parse_passes(chunk_id: str, passes: list[complete.Completions]) -> tuple[list, list, list]:
    """Entities, relations and unreadable records of one chunk, over all its replies."""
    from ark_jax.graph.extract import Quarantined, parse_reply

    entities, relations, lost = [], [], []
    known_entities, known_pairs = set(), set()
    for number, answers in enumerate(passes):
        item = f"glean{number}/{chunk_id}" if number else f"extract/{chunk_id}"
        if item in answers.rejected:
            lost.append(Quarantined(chunk_id, f"no reply: {answers.rejected[item]}", ""))
            continue
        texts = answers.texts.get(item, [])
        for i, text in enumerate(texts):
            new_entities, new_relations, unread = parse_reply(text, chunk_id)
            entities += [entity for entity in new_entities if entity not in known_entities]
            known_entities |= set(new_entities)
            # A later reply that repeats a relation is no second statement of the passage.
            relations += [r for r in new_relations if (r.source, r.target) not in known_pairs]
            known_pairs |= {(r.source, r.target) for r in new_relations}
            # A reply without any record was asked for again, and only the last one counts as lost.
            # In a later pass such a reply says that nothing is missing.
            last_of_first_pass = not number and i == len(texts) - 1
            if new_entities or new_relations or last_of_first_pass:
                lost += unread
    return entities, relations, lost


def _recorded_answers(context: Context, calls: list[complete.Call]) -> complete.Completions:
    """Records that another system extracted, as if a model had replied with them."""
    from ark_jax.graph import openie
    from ark_jax.llm.pricing import Usage

    path = Path(context.config.graph.openie)
    replies = openie.recorded_replies(path, load_documents(context), chunks_by_document(context))
    texts = {call.item: [replies[call.item.removeprefix("extract/")]] for call in calls}
    return complete.Completions(texts, {}, [], Usage())


def _remark(call: complete.Call, texts: list[str], cut: bool) -> str | None:
    """What the model is told about its reply, if it has to write again."""
    from ark_jax.graph.extract import parse_reply

    if cut:
        return (
            "Your reply broke off. Go on with the records that are still missing, in the same "
            "form; repeat none."
        )
    if not any(any(parse_reply(text, "")[:2]) for text in texts):
        return (
            "No record could be read from your reply. Write the records again, exactly in the "
            "form that was asked for."
        )
    return None


def _glean(
    context: Context, calls: list[complete.Call], answers: complete.Completions
) -> list[complete.Completions]:
    """Further passes over each chunk: the model sees its reply and is asked for what is missing."""
    config = context.config
    if not config.graph.gleanings or config.llm.backend == "none":
        return []
    request = prompts.load_template("glean", config.prompts.glean)
    conversations = {
        call.item: (*call.turns, "\n".join(answers.texts[call.item]))
        for call in calls
        if call.item not in answers.rejected
    }
    passes = []
    for number in range(1, config.graph.gleanings + 1):
        further = {
            item: complete.Call(
                f"glean{number}/{item.partition('/')[2]}", "glean", (*turns, request)
            )
            for item, turns in conversations.items()
        }
        accept = lambda call, texts, cut: None
        gleaned = ask(context, list(further.values()), f"glean {number}", accept)
        passes.append(gleaned)
        conversations = {
            item: (*call.turns, "\n".join(gleaned.texts[call.item]))
            for item, call in further.items()
            if call.item not in gleaned.rejected
        }
    return passes
