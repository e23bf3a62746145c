"""The texts of a language model for ARK: entities, relations, seeds and rewritten questions."""

import collections
import contextlib
import dataclasses
import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ark_jax.data.records import Chunk, Question
from ark_jax.graph.extract import Entity, Quarantined, Relation, parse_reply
from ark_jax.llm import complete
from ark_jax.llm.names import candidate_terms, rare_limit
from ark_jax.llm.pricing import Usage
from ark_jax.llm.reply_cache import repair_json
from ark_jax.llm.rule_based import extract_graph
from ark_jax.llm.triple_questions import comparison_key
from ark_jax.pipeline.parts import forget_shards, map_stored
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import RowsFile, read_table, save_rows, save_stream, stream_rows
from ark_jax.recipes.ark.graph import SEEDS, distinct_candidates
from ark_jax.recipes.core.ask import ask
from ark_jax.recipes.documents.corpus import (
    chunks_by_document,
    load_documents,
    load_questions,
    stored_chunks,
)
from ark_jax.recipes.documents.written_questions import is_writing, training_documents
from ark_jax.runtime import distributed
from ark_jax.runtime.map_shards import shards_of
from ark_jax.runtime.packed_tables import pack, unpack
from ark_jax.text import prompts
from ark_jax.text.thoughts import split_thought
from ark_jax.text.word_boundaries import contains_words

# file -> the type of its rows
FACTS = {"entities": Entity, "relations": Relation, "quarantine": Quarantined}
_TYPES = {str: pa.string(), float: pa.float64()}
Passage = tuple[str, str, str]  # id of a chunk, its text, its title


class Replies(NamedTuple):
    """The replies to one chunk.

    Attributes:
        passes: for the first pass and each gleaning, the texts, and why the model refused or None.
    """

    chunk: str
    passes: list[tuple[list[str], str | None]]


def fact_parser() -> Callable[[Sequence[Replies]], bytes]:
    """A function for `map_stored`: replies of some chunks -> their packed tables of `FACTS`."""
    return lambda shard: _pack_facts(map(_parse_facts, shard))


def term_counter() -> Callable[[Sequence[Passage]], bytes]:
    """A function for `map_stored`: passages -> a packed table of how many hold each term."""

    def count_terms(shard: Sequence[Passage]) -> bytes:
        counts = collections.Counter(term for _, text, _ in shard for term in candidate_terms(text))
        columns = {"term": pa.array(counts, pa.string()), "passages": list(counts.values())}
        return pack(pa.table(columns))

    return count_terms


def rule_based_extractor(frequency: Mapping[str, int]) -> Callable[[Sequence[Passage]], bytes]:
    """A function for `map_stored`: passages -> their packed tables of `FACTS`, by rules.

    Args:
        frequency: as in `rule_based.extract_graph`.
    """
    max_frequency = rare_limit(frequency)

    def extract_passage(passage: Passage) -> tuple[list, list, list]:
        chunk, text, title = passage
        return _parse_facts(
            Replies(chunk, [([extract_graph(text, frequency, title, max_frequency)], None)])
        )

    return lambda shard: _pack_facts(map(extract_passage, shard))


def _pack_facts(facts: Iterable[tuple[list, list, list]]) -> bytes:
    """The tables of `FACTS` over all chunks, packed."""
    rows = [[], [], []]
    for parsed in facts:
        for rows_of_table, new in zip(rows, parsed, strict=True):
            rows_of_table += new
    return pack(*map(_fact_table, FACTS.values(), rows))


def _fact_table(row_type: type, rows: list) -> pa.Table:
    fields = dataclasses.fields(row_type)
    columns = {
        field.name: pa.array([getattr(row, field.name) for row in rows], _TYPES[field.type])
        for field in fields
    }
    return pa.table(columns)


def _parse_facts(replies: Replies) -> tuple[list, list, list]:
    """Entities, relations and unreadable records of one chunk, over all its replies."""
    entities, relations, lost = [], [], []
    known_entities, known_pairs = set(), set()
    for number, (texts, refusal) in enumerate(replies.passes):
        if refusal is not None:
            lost.append(Quarantined(replies.chunk, f"no reply: {refusal}", ""))
            continue
        for i, text in enumerate(texts):
            new_entities, new_relations, unread = parse_reply(text, replies.chunk)
            entities += [entity for entity in new_entities if entity not in known_entities]
            known_entities |= set(new_entities)
            # If a later reply repeats a relation, the passage still states it once.
            relations += [r for r in new_relations if (r.source, r.target) not in known_pairs]
            known_pairs |= {(r.source, r.target) for r in new_relations}
            # In the first pass, only the last reply without a record counts as lost: the others
            # were asked for again. In a later pass such a reply says that nothing is missing.
            last_of_first_pass = not number and i == len(texts) - 1
            if new_entities or new_relations or last_of_first_pass:
                lost += unread
    return entities, relations, lost


COUNTED = ("entities", "relations", "quarantined")  # how the manifest names the files of FACTS


def extraction_calls(context: Context, chunk_ids: Collection[str]) -> Sequence[complete.Call]:
    """A call for each of these chunks, in the order of the corpus; each is made on access."""
    template = prompts.load_template("extract", context.config.prompts.extract)

    def extraction_call(chunk: Chunk) -> complete.Call:
        prompt = prompts.fill(template, passage=chunk.passage)
        fields = {"passage": chunk.text, "title": chunk.title}
        return complete.Call(f"extract/{chunk.id}", "extract", (prompt,), fields)

    return distributed.LazySequence(extraction_call, _chunks(context, chunk_ids))


def _chunks(context: Context, chunk_ids: Collection[str]) -> Sequence[Chunk]:
    """These chunks in the order of the corpus, each read on access."""
    chunks = stored_chunks(context)
    rows = sorted(map(chunks.ids.position, chunk_ids))
    return distributed.LazySequence(chunks.__getitem__, rows)


def extracted_chunks(context: Context) -> set[str]:
    """The ids of the chunks that the graph is extracted from: candidates of training questions.

    If questions are written, they are the chunks of all training documents.
    """
    if is_writing(context.config):
        chunks, documents = chunks_by_document(context), training_documents(context)
        return {chunk.id for document in documents for chunk in chunks.get(document, ())}
    return distinct_candidates(context)


def extract(context: Context, folder: Path) -> dict:
    """Extracts entities and relations from passages, and sets unreadable replies aside."""
    chunk_ids, passes = extracted_chunks(context), []
    if context.config.llm.backend == "none" and not context.config.graph.openie:
        facts = _rule_based_facts(context, chunk_ids, folder)
        usage = Usage(len(chunk_ids))
    else:
        if context.config.graph.openie:
            replies, usage = _recorded_replies(context, chunk_ids), Usage()
        else:
            passes = _ask_passes(context, extraction_calls(context, chunk_ids))
            asked = (item.removeprefix("extract/") for item in passes[0].texts)
            replies = (_replies_of_passes(chunk_id, passes) for chunk_id in asked)
            usage = sum((answers.usage for answers in passes[1:]), passes[0].usage)
        characters = lambda replies: sum(len(x) for texts, _ in replies.passes for x in texts)
        facts = map_stored(folder, "facts", fact_parser, shards_of(replies, characters))
    counts = _save_facts(facts, folder) if distributed.is_first_process() else {}
    return {
        "calls": usage.calls,
        **counts,
        "drifted_prompts": sum(len(answers.drifted) for answers in passes),
        "llm": dataclasses.asdict(usage),
    }


def _save_facts(facts: Iterable[bytes], folder: Path) -> dict:
    """Appends the packed tables of all shards to the files of `FACTS`; returns counts."""
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
    """Yields the packed facts of the backend `none`, which first counts the terms of all chunks."""
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


def _ask_passes(context: Context, calls: Sequence[complete.Call]) -> list[complete.Completions]:
    """The replies of the first pass over all calls, and of each gleaning."""
    answers = ask(context, calls, "extract", _extraction_remark)
    return [answers, *_glean(context, calls, answers)]


def _replies_of_passes(chunk_id: str, passes: Sequence[complete.Completions]) -> Replies:
    """The replies of each pass to one chunk."""
    of_passes = []
    for number, answers in enumerate(passes):
        item = f"glean{number}/{chunk_id}" if number else f"extract/{chunk_id}"
        of_passes.append((answers.texts.get(item, []), answers.rejected.get(item)))
    return Replies(chunk_id, of_passes)


def _recorded_replies(context: Context, chunk_ids: Collection[str]) -> Iterator[Replies]:
    """The records of an OpenIE file, as if a model had replied with them."""
    from ark_jax.graph import openie

    path = Path(context.config.graph.openie)
    texts = openie.recorded_replies(path, load_documents(context), chunks_by_document(context))
    chunks = _chunks(context, chunk_ids)
    return (Replies(chunk.id, [([texts[chunk.id]], None)]) for chunk in chunks)


def _extraction_remark(call: complete.Call, texts: list[str], cut: bool) -> str | None:
    """What is wrong with a reply, for the model; None if nothing is."""
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
    """The replies of further passes, which ask for what the model's earlier replies missed."""
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
    """The call of the next pass over a chunk; its conversation holds all passes so far."""
    call = calls[number]
    chunk_id, turns = call.item.removeprefix("extract/"), call.turns
    for texts, _ in _replies_of_passes(chunk_id, passes).passes:
        turns = (*turns, "\n".join(texts), request)
    return complete.Call(f"glean{len(passes)}/{chunk_id}", "glean", turns)


def seed_calls(context: Context) -> Sequence[complete.Call]:
    """A call for each training question that has an answer: its first one, as in the sources."""
    template = prompts.load_template(SEEDS, context.config.prompts.seeds)
    questions = [question for question in load_questions(context, "train") if question.answers]

    def seed_call(question: Question) -> complete.Call:
        prompt = prompts.fill(template, answer=question.answers[0])
        return complete.Call(f"{SEEDS}/{question.id}", SEEDS, (prompt,))

    return distributed.LazySequence(seed_call, questions)


def name_seeds(context: Context, folder: Path) -> dict:
    """Asks the language model which entities are in the answer of each training question."""
    calls = seed_calls(context)
    answers = ask(context, calls, SEEDS, _seeds_remark)
    rows = [
        {"question": item.removeprefix(f"{SEEDS}/"), "names": parse_questions(*texts)}
        for item, texts in answers.texts.items()
    ]
    save_rows(rows, folder / f"{SEEDS}.parquet")
    return {
        "calls": len(calls),
        "drifted_prompts": len(answers.drifted),
        "llm": dataclasses.asdict(answers.usage),
    }


def _seeds_remark(call: complete.Call, texts: list[str], cut: bool) -> str | None:
    """What is wrong with a reply, for the model; None if it holds a list, maybe an empty one."""
    if any("[" in split_thought(text).answer for text in texts):
        return None
    return "No list could be read from your reply. Reply with a JSON list of names only."


SCHEMA = pa.schema((name, pa.string()) for name in ("question", "size", "text"))


def rewriting_calls(
    context: Context, communities: Sequence[dict] | None = None
) -> Sequence[complete.Call]:
    """A call for each community; each is made on access.

    Args:
        communities: for estimates before a graph exists: rows without nodes, in place of those of
            the workdir.
    """
    from ark_jax.graph.store import KnowledgeGraph

    graph = None
    if communities is None:
        graph = KnowledgeGraph.load(context / "graph")
        table = _load_communities(context)
        row_at = lambda number: table.slice(number, 1).to_pylist()[0]
        communities = distributed.LazySequence(row_at, range(len(table)))
    questions = {question.id: question for question in load_questions(context, "train")}
    template = prompts.load_template("rewrite", context.config.prompts.rewrite)
    count = context.config.graph.rewrites

    def rewriting_call(row: dict) -> complete.Call:
        question = questions[row["question"]]
        filled = prompts.fill(
            template,
            question=question.question,
            answer=question.answers[0],
            entities="\n".join(_entity_line(graph, node) for node in row["nodes"]),
            count=count,
            input=_as_json(question, graph, row["nodes"]) if "{input}" in template else "",
        )
        names = [graph.names[node] for node in row["nodes"]]
        fields = {
            "question": question.question,
            "names": names,
            "count": count,
            "answers": question.answers,
        }
        return complete.Call(_rewrite_item(row), "rewrite", (filled,), fields)

    return distributed.LazySequence(rewriting_call, communities)


def rewrite(context: Context, folder: Path) -> dict:
    """Rewrites each question with entities of its communities, to find hard negatives by.

    A version that newly holds the answer would mine passages that hold it too, so it is dropped. A
    question without any version left keeps its original words.
    """
    questions = {question.id: question for question in load_questions(context, "train")}
    count, calls = context.config.graph.rewrites, rewriting_calls(context)
    original = lambda call: questions[call.item.removeprefix("rewrite/").rsplit("/", 1)[0]]
    accept = lambda call, texts, cut: rewrite_remark(parse_questions(*texts), original(call), count)
    answers = ask(context, calls, "rewrite", accept, role="rewriter")
    communities = _load_communities(context)
    if len(communities):  # else it has no columns
        communities = communities.select(["question", "size"])
    quarantine, leaking, without = [], 0, 0

    def rewritten_rows() -> Iterator[dict]:
        """Yields the rows of SCHEMA; counts and quarantines what is left out."""
        nonlocal leaking, without
        for community in stream_rows(communities):
            question, item = questions[community["question"]], _rewrite_item(community)
            texts = answers.texts[item]
            parsed = parse_questions(*texts)
            problem = answers.rejected.get(item) or rewrite_remark(parsed, question, count)
            if problem:
                quarantine.append({"item": item, "reason": problem, "text": "\n".join(texts)})
            new = [text for text in parsed if not same_question(text, question.question)]
            harmless = [text for text in new if not gives_away_answer(text, question)]
            leaking += len(new) - len(harmless)
            new = harmless[:count]
            without += not new
            for text in new or [question.question]:
                yield community | {"text": text}

    rewritten = save_stream(rewritten_rows(), folder / "rewritten.parquet", SCHEMA)
    save_rows(quarantine, folder / "quarantine.parquet")
    return {
        "calls": len(calls),
        "rewritten": rewritten,
        "quarantined": len(quarantine),
        "dropped_with_the_answer": leaking,
        "not_rewritten": without,
        "drifted_prompts": len(answers.drifted),
        "llm": dataclasses.asdict(answers.usage),
    }


def _load_communities(context: Context) -> pa.Table:
    return read_table(context / "communities" / "communities.parquet")


def _entity_line(graph, node: int) -> str:
    return f"- {graph.names[node]} ({graph.types[node]}): {graph.descriptions.first(node)}"


def _as_json(question: Question, graph, nodes: Sequence[int]) -> str:
    """The input of the paper's prompt (Listing 2)."""
    columns = {"name": "names", "type": "types", "descriptions": "descriptions"}
    entities = [{key: getattr(graph, name)[i] for key, name in columns.items()} for i in nodes]
    original = {"original_question": question.question, "answer": question.answers[0]}
    return json.dumps(original | {"entities": entities}, ensure_ascii=False, indent=1)


def _rewrite_item(community: dict) -> str:
    return f"rewrite/{community['question']}/{community['size']}"


def gives_away_answer(text: str, question: Question) -> bool:
    """Whether a version holds an answer that the original question does not hold."""
    return any(
        contains_words(text, answer) and not contains_words(question.question, answer)
        for answer in question.answers
    )


def parse_questions(*replies: str) -> list[str]:
    """The different questions in the replies, in their order."""
    questions: dict[str, str] = {}
    for reply in replies:
        for question in _parse_reply(reply):
            questions.setdefault(comparison_key(question), question)
    return list(questions.values())


def same_question(a: str, b: str) -> bool:
    """Whether two questions are equal but for case, spacing and the last punctuation mark."""
    return comparison_key(a) == comparison_key(b)


def _parse_reply(reply: str) -> list[str]:
    """The questions of a reply's first JSON value with the key `questions`.

    Without such a value they are the strings of the first value that has some. If no value is
    complete, the first one is repaired.
    """
    text = split_thought(reply).answer
    starts = [match.start() for match in re.finditer(r"[{\[]", text)]
    fallback: list[str] = []
    for start in starts:
        try:
            value = json.JSONDecoder().raw_decode(text, start)[0]
        except ValueError:
            continue
        except RecursionError:  # each of the nested brackets would raise it again
            break
        questions = _question_strings(value)
        if questions and isinstance(value, dict) and "questions" in value:
            return questions
        fallback = fallback or questions
    return fallback or (_question_strings(repair_json(text[starts[0] :])) if starts else [])


def _question_strings(value) -> list[str]:
    """The strings of a list, or of an object's list `questions`, or else of its first list."""
    if isinstance(value, dict):
        values = (value.get("questions"), *value.values())
        value = next((x for x in values if isinstance(x, list)), [])
    if not isinstance(value, list):
        return []
    return [" ".join(x.split()) for x in value if isinstance(x, str) and x.strip()]


def rewrite_remark(questions: list[str], original: Question, count: int) -> str | None:
    """What is wrong with a reply, for the model; None if nothing is."""
    new = [text for text in questions if not same_question(text, original.question)]
    if len(new) >= count:
        return None
    repeated = " One of them is the original question." if len(new) < len(questions) else ""
    return (
        f"{count} different questions were asked for, {len(new)} could be used.{repeated} Write "
        f"{count - len(new)} more that differ from one another and from the original; reply in "
        "the same JSON form only."
    )
