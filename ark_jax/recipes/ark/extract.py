"""The extract stage: entities and relations of the training documents, by a language model."""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from ark_jax.data.records import Chunk
from ark_jax.llm import complete
from ark_jax.llm.pricing import Usage
from ark_jax.pipeline.shard_parts import forget_shards, map_stored
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import RowsFile
from ark_jax.recipes.ark.facts import (
    FACTS,
    Replies,
    fact_parser,
    rule_based_extractor,
    term_counter,
)
from ark_jax.recipes.common.ask import ask
from ark_jax.recipes.common.candidates import distinct_candidates
from ark_jax.recipes.common.corpus import chunks_by_document, load_documents, stored_chunks
from ark_jax.recipes.common.written_from import is_writing, training_documents
from ark_jax.runtime import distributed
from ark_jax.runtime.map_shards import shards_of
from ark_jax.runtime.packed_tables import unpack
from ark_jax.text import prompts

COUNTED = ("entities", "relations", "quarantined")  # how the manifest names the files of FACTS


def extraction_calls(context: Context, chunk_ids: Collection[str]) -> Sequence[complete.Call]:
    """A call for each of these chunks, in the order of the corpus; each is made on access."""
    template = prompts.load_template("extract", context.config.prompts.extract)

    def call(chunk: Chunk) -> complete.Call:
        prompt = prompts.fill(template, passage=chunk.passage)
        fields = {"passage": chunk.text, "title": chunk.title}
        return complete.Call(f"extract/{chunk.id}", "extract", (prompt,), fields)

    return distributed.LazySequence(call, _chunks(context, chunk_ids))


def _chunks(context: Context, chunk_ids: Collection[str]) -> Sequence[Chunk]:
    """These chunks in the order of the corpus."""
    chunks = stored_chunks(context)
    rows = sorted(map(chunks.ids.position, chunk_ids))
    return distributed.LazySequence(chunks.__getitem__, rows)


def extracted_chunks(context: Context) -> set[str]:
    """The chunks that the graph is made of: the candidates of all training questions.

    If questions are to be written, they are those of the documents that training is written from.
    """
    if is_writing(context.config):
        chunks, documents = chunks_by_document(context), training_documents(context)
        return {chunk.id for document in documents for chunk in chunks.get(document, ())}
    return distinct_candidates(context)


def extract(context: Context, folder: Path) -> dict:
    """Stores the entities and relations of every chunk, and replies that could not be read."""
    chunk_ids, passes = extracted_chunks(context), []
    if context.config.llm.backend == "none" and not context.config.graph.openie:
        facts = _rule_based_facts(context, chunk_ids, folder)
        usage = Usage(len(chunk_ids))
    else:
        if context.config.graph.openie:
            replies, usage = _recorded_replies(context, chunk_ids), Usage()
        else:
            passes = _passes(context, extraction_calls(context, chunk_ids))
            asked = (item.removeprefix("extract/") for item in passes[0].texts)
            replies = (_replies(chunk_id, passes) for chunk_id in asked)
            usage = sum((answers.usage for answers in passes[1:]), passes[0].usage)
        facts = map_stored(folder, "facts", fact_parser, shards_of(replies, _characters))
    counts = _save_facts(facts, folder) if distributed.is_first_process() else {}
    return {
        "calls": usage.calls,
        **counts,
        "drifted_prompts": sum(len(answers.drifted) for answers in passes),
        "llm": dataclasses.asdict(usage),
    }


def _save_facts(facts: Iterable[bytes], folder: Path) -> dict:
    """Writes the tables of all shards one below another; returns counts."""
    reasons: collections.Counter[str] = collections.Counter()
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(RowsFile(folder / f"{name}.parquet", row_type))
            for name, row_type in FACTS.items()
        ]
        for data in facts:
            tables = list(unpack(data))
            for file, table in zip(files, tables, strict=True):
                file.write(table)
            lost = tables[-1]["reason"].to_pylist()
            reasons.update(reason.partition(":")[0] for reason in lost)
    forget_shards(folder)
    counts = {name: file.rows for name, file in zip(COUNTED, files, strict=True)}
    return {**counts, "quarantine_reasons": dict(reasons)}


def _rule_based_facts(
    context: Context, chunk_ids: Collection[str], folder: Path
) -> Iterator[bytes]:
    """The facts of the backend `none`: the words of all chunks are counted first."""
    chunks = _chunks(context, chunk_ids)
    shards = lambda: shards_of(
        ((chunk.id, chunk.text, chunk.title) for chunk in chunks), lambda passage: len(passage[1])
    )
    frequency: collections.Counter[str] = collections.Counter()
    for data in map_stored(folder, "terms", term_counter, shards()):
        (table,) = unpack(data)
        terms, numbers = (table[name].to_pylist() for name in ("term", "passages"))
        frequency.update(dict(zip(terms, numbers, strict=True)))
    prepare = functools.partial(rule_based_extractor, frequency)
    yield from map_stored(folder, "facts", prepare, shards())


def _passes(context: Context, calls: Sequence[complete.Call]) -> list[complete.Completions]:
    """The replies to all calls: those of the first pass, and of each gleaning."""
    answers = ask(context, calls, "extract", _remark)
    return [answers, *_glean(context, calls, answers)]


def _replies(chunk_id: str, passes: Sequence[complete.Completions]) -> Replies:
    """The replies of each pass to one chunk."""
    of_passes = []
    for number, answers in enumerate(passes):
        item = f"glean{number}/{chunk_id}" if number else f"extract/{chunk_id}"
        of_passes.append((answers.texts.get(item, []), answers.rejected.get(item)))
    return Replies(chunk_id, of_passes)


def _characters(replies: Replies) -> int:
    return sum(len(text) for texts, _ in replies.passes for text in texts)


def _recorded_replies(context: Context, chunk_ids: Collection[str]) -> Iterator[Replies]:
    """Records that another system extracted, as if a model had replied with them."""
    from ark_jax.graph import openie

    path = Path(context.config.graph.openie)
    texts = openie.recorded_replies(path, load_documents(context), chunks_by_document(context))
    chunks = _chunks(context, chunk_ids)
    return (Replies(chunk.id, [([texts[chunk.id]], None)]) for chunk in chunks)


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
    context: Context, calls: Sequence[complete.Call], answers: complete.Completions
) -> list[complete.Completions]:
    """Further passes over each chunk: the model sees its reply and is asked for what is missing."""
    config = context.config
    if not config.graph.gleanings or config.llm.backend == "none":
        return []
    request = prompts.load_template("glean", config.prompts.glean)
    passes, numbers = [answers], range(len(calls))
    for count in range(1, config.graph.gleanings + 1):
        answered = zip(numbers, passes[-1].texts, strict=True)
        numbers = [number for number, item in answered if item not in passes[-1].rejected]
        call = functools.partial(_gleaning_call, calls, tuple(passes), request)
        further = distributed.LazySequence(call, numbers)
        passes.append(ask(context, further, f"glean {count}", complete.accept_all))
    return passes[1:]


def _gleaning_call(
    calls: Sequence[complete.Call],
    passes: Sequence[complete.Completions],
    request: str,
    number: int,
) -> complete.Call:
    """The call of the next pass over a chunk, which holds the replies of all passes so far."""
    call = calls[number]
    chunk_id, turns = call.item.removeprefix("extract/"), call.turns
    for texts, _ in _replies(chunk_id, passes).passes:
        turns = (*turns, "\n".join(texts), request)
    return complete.Call(f"glean{len(passes)}/{chunk_id}", "glean", turns)
