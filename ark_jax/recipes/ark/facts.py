"""Work on shards of chunks: replies, or rules, become tables of entities and relations."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from ark_jax.graph.extract import Entity, Quarantined, Relation, parse_reply
from ark_jax.llm.names import candidate_terms, rare_limit
from ark_jax.llm.rule_based import extract_graph
from ark_jax.runtime.packed_tables import pack

# file -> its rows
FACTS = {"entities": Entity, "relations": Relation, "quarantine": Quarantined}
_TYPES = {str: pa.string(), float: pa.float64()}
Passage = tuple[str, str, str]  # id of a chunk, its text, its title


class Replies(NamedTuple):
    """The replies to one chunk.

    Attributes:
        passes: for the first pass and each gleaning, the texts, and why no model will reply.
    """

    chunk: str
    passes: list[tuple[list[str], str | None]]


def fact_parser() -> Callable[[Sequence[Replies]], bytes]:
    """Work that parses the replies of each chunk into `FACTS`, packed."""
    return lambda shard: _packed(map(_parse, shard))


def term_counter() -> Callable[[Sequence[Passage]], bytes]:
    """Work that counts in how many passages each of their terms is, packed."""

    def count(shard: Sequence[Passage]) -> bytes:
        counts = collections.Counter(term for _, text, _ in shard for term in candidate_terms(text))
        columns = {"term": pa.array(counts, pa.string()), "passages": list(counts.values())}
        return pack(pa.table(columns))

    return count


def rule_based_extractor(frequency: Mapping[str, int]) -> Callable[[Sequence[Passage]], bytes]:
    """Work that makes `FACTS` of passages by rules, packed.

    Args:
        frequency: as of `rule_based.extract_graph`.
    """
    max_frequency = rare_limit(frequency)

    def extract(passage: Passage) -> tuple[list, list, list]:
        chunk, text, title = passage
        return _parse(
            Replies(chunk, [([extract_graph(text, frequency, title, max_frequency)], None)])
        )

    return lambda shard: _packed(map(extract, shard))


def _packed(facts: Iterable[tuple[list, list, list]]) -> bytes:
    rows = [[], [], []]
    for parsed in facts:
        for kind, new in zip(rows, parsed, strict=True):
            kind += new
    return pack(*map(_table, FACTS.values(), rows))


def _table(row_type: type, rows: list) -> pa.Table:
    fields = dataclasses.fields(row_type)
    columns = {
        field.name: pa.array([getattr(row, field.name) for row in rows], _TYPES[field.type])
        for field in fields
    }
    return pa.table(columns)


def _parse(replies: Replies) -> tuple[list, list, list]:
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
            # A later reply that repeats a relation is no second statement of the passage.
            relations += [r for r in new_relations if (r.source, r.target) not in known_pairs]
            known_pairs |= {(r.source, r.target) for r in new_relations}
            # A reply without any record was asked for again, and only the last one counts as lost.
            # In a later pass such a reply says that nothing is missing.
            last_of_first_pass = not number and i == len(texts) - 1
            if new_entities or new_relations or last_of_first_pass:
                lost += unread
    return entities, relations, lost
