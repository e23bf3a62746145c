"""Merges records of facts into the columns of a graph.

Names with equal folded forms become one node, and relations between the same two nodes one edge.
The code works on whole columns, since a graph of a million passages has some millions of records.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.data.text_columns import BLOCK, TextColumn, TextListColumn
from ark_jax.graph.extract import UNKNOWN
from ark_jax.graph.triple_rows import by_first_appearance, encode


class Nodes(NamedTuple):
    """The columns of nodes."""

    names: TextColumn
    types: TextColumn
    descriptions: TextListColumn
    chunks: TextListColumn


class Edges(NamedTuple):
    """The columns of edges, each pair of nodes once."""

    pairs: np.ndarray  # int32 [m 2], first < second, in order
    weights: np.ndarray  # float32 [m], summed
    descriptions: TextListColumn
    chunks: TextListColumn


class RowTexts(NamedTuple):
    """Texts of rows: row `rows[i]` has the text `texts[codes[i]]`. A row may have several."""

    rows: np.ndarray
    codes: np.ndarray
    texts: pa.Array

    @classmethod
    def from_lists(cls, lists: TextListColumn) -> "RowTexts":
        """Row i has the texts of list i."""
        ends, flat = lists.flat()
        (codes,), texts = distinct(flat)
        return cls(np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)), codes, texts)

    def joined(self, group_of_row: np.ndarray, count: int) -> TextListColumn:
        """The texts of each group of rows, each once, in the order of their first appearance.

        Args:
            group_of_row: int64 `[all rows]`; -1 leaves a row out.
        """
        groups = group_of_row[self.rows]
        grouped = groups >= 0
        return _texts_by_group(groups[grouped], self.codes[grouped], self.texts, count)


def merge_facts(
    entities: pa.Table, relations: pa.Table, fold: Callable[[str], str]
) -> tuple[Nodes, Edges]:
    """Merges records by folded name; see `KnowledgeGraph.from_records`.

    Args:
        entities: the fields of `Entity` as columns.
        relations: the fields of `Relation` as columns.
        fold: name -> the form that decides whether names are equal, "" for an invalid name.
    """
    (name_codes, *end_codes), spellings = distinct(
        entities["name"], relations["source"], relations["target"]
    )
    keys, forms = _map_texts(fold, spellings)
    keys[keys == _position(forms, "")] = -1
    end_codes = np.stack(end_codes, 1)
    entity_rows = np.flatnonzero(keys[name_codes] >= 0)
    end_keys = keys[end_codes]
    relation_rows = np.flatnonzero((end_keys >= 0).all(1) & (end_keys[:, 0] != end_keys[:, 1]))
    name_codes, end_codes = name_codes[entity_rows], end_codes[relation_rows]
    node_of_key, count = by_first_appearance(keys[np.append(name_codes, end_codes)], len(forms))
    nodes, ends = node_of_key[keys[name_codes]], node_of_key[keys[end_codes]]
    # Nodes with a record of their own come first. The others take name and description from
    # relations.
    described = int(nodes.max(initial=-1)) + 1
    is_undescribed = ends >= described
    record_nodes = np.append(nodes, ends[is_undescribed])

    names = _most_frequent(
        record_nodes, np.append(name_codes, end_codes[is_undescribed]), spellings
    )
    (type_codes,), types = distinct(entities["type"])
    lowered, types = _map_texts(str.lower, types)
    types = _most_frequent(nodes, lowered[type_codes[entity_rows]], types)
    (entity_texts, relation_texts), texts = distinct(
        entities["description"], relations["description"]
    )
    entity_texts, relation_texts = entity_texts[entity_rows], relation_texts[relation_rows]
    record_texts = np.append(entity_texts, np.stack([relation_texts] * 2, 1)[is_undescribed])
    not_empty = record_texts != _position(texts, "")
    (entity_chunks, relation_chunks), chunks = distinct(entities["chunk"], relations["chunk"])
    entity_chunks, relation_chunks = entity_chunks[entity_rows], relation_chunks[relation_rows]
    mention_chunks = np.append(entity_chunks, relation_chunks.repeat(2))
    columns = Nodes(
        TextColumn(_chunked([names])),
        TextColumn(_chunked([types, pa.repeat(UNKNOWN, count - described)])),
        _texts_by_group(record_nodes[not_empty], record_texts[not_empty], texts, count),
        _texts_by_group(np.append(nodes, ends), mention_chunks, chunks, count),
    )
    rows = np.arange(len(relation_rows))
    edges = merge_relations(
        ends,
        relations["weight"].to_numpy()[relation_rows],
        RowTexts(rows, relation_texts, texts),
        RowTexts(rows, relation_chunks, chunks),
    )
    return columns, edges


def merge_relations(
    ends: np.ndarray, weights: np.ndarray, descriptions: RowTexts, chunks: RowTexts
) -> Edges:
    """Merges the relations of each pair: sums weights, joins texts. Self-loops are dropped.

    Args:
        ends: int64 `[relations 2]`, in any direction.
        weights: float64 `[relations]`.
        chunks: ids of the chunks that the relations are from.
    """
    pairs = np.sort(ends, axis=1)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    order = order[pairs[order, 0] < pairs[order, 1]]
    is_first = np.any(np.diff(pairs[order], axis=0, prepend=-1), axis=1)
    starts = np.flatnonzero(is_first)
    edge_of_row = np.full(len(pairs), -1)
    edge_of_row[order] = np.cumsum(is_first) - 1
    sums = np.add.reduceat(weights[order], starts) if len(starts) else np.zeros(0)
    return Edges(
        pairs[order[starts]].astype(np.int32),
        np.minimum(sums, np.finfo(np.float32).max).astype(np.float32),  # no infinity
        descriptions.joined(edge_of_row, len(starts)),
        chunks.joined(edge_of_row, len(starts)),
    )


def distinct(*columns: pa.ChunkedArray) -> tuple[list[np.ndarray], pa.Array]:
    """As `triple_rows.encode`, but the distinct texts may take more than 2 GiB together."""
    return encode([column.cast(pa.large_string()) for column in columns])


def _map_texts(function: Callable[[str], str], texts: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """The results of a function for texts: the index of each among the distinct ones, and these."""
    (codes,), results = distinct(TextColumn(map(function, TextColumn(_chunked([texts])))).arrow)
    return codes.copy(), results


def _position(texts: pa.Array, text: str) -> int:
    """The position of a text; if it is absent, the length, which no text has."""
    position = pc.index(texts, pa.scalar(text, texts.type)).as_py()
    return position if position >= 0 else len(texts)


def _most_frequent(groups: np.ndarray, codes: np.ndarray, texts: pa.Array) -> pa.Array:
    """The most frequent text of each group, of equals the first by code point."""
    by_rank = pc.sort_indices(texts).to_numpy().astype(np.int64)  # bytes of UTF-8 have this order
    ranks = np.empty_like(by_rank)
    ranks[by_rank] = np.arange(len(by_rank))
    keys = np.sort(groups << 32 | ranks[codes])
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.diff(np.append(starts, len(keys)))
    groups = keys[starts] >> 32
    order = np.lexsort((-counts, groups))  # stable: equals stay in the order of their ranks
    best = order[np.diff(groups[order], prepend=-1) > 0]
    return texts.take(pa.array(by_rank[keys[starts][best] & 0xFFFFFFFF]))


def _texts_by_group(
    groups: np.ndarray, codes: np.ndarray, texts: pa.Array, count: int
) -> TextListColumn:
    """The distinct texts of each group, in the order of their first appearance."""
    keys = groups << 32 | codes
    order = np.argsort(keys, kind="stable")
    firsts = np.sort(order[np.diff(keys[order], prepend=-1) > 0])
    firsts = firsts[np.argsort(groups[firsts], kind="stable")]
    ends = np.cumsum(np.bincount(groups[firsts], minlength=count))
    return TextListColumn.from_codes(ends, codes[firsts], texts)


def _chunked(arrays: list[pa.Array]) -> pa.ChunkedArray:
    """Texts as blocks of strings, each far below the 2 GiB that an array of strings may have."""
    blocks = [array[i : i + BLOCK] for array in arrays for i in range(0, len(array), BLOCK)]
    return pa.chunked_array([block.cast(pa.string()) for block in blocks], pa.string())
