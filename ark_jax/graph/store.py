"""The knowledge graph: entities, relations and similarity edges as columns; on disk as Parquet.

Names are merged when their folded forms are equal (`fold`); the most frequent spelling is shown. Other formats are in
`ark_jax.graph.interop`.
"""

import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.graph.extract import UNKNOWN, Entity, Relation
from ark_jax.graph.interop import TEXT, TEXTS, Formats, read_columns, refuse_numbers, refuse_repeats

_OUTER = " .,;:\"'“”„‟‘’‚‛«»‹›「」『』"
# Unicode's Default_Ignorable_Code_Point: soft hyphen, zero-width characters, direction marks, variation selectors, ...
_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
                        "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]")


def fold(name: str) -> str:
    """The form under which names are equal: no matter the case, the width, the encoding of accents, or the quotes around it.

    Compatibility caseless matching (The Unicode Standard, D146), whose one pass too many makes the form its own form;
    characters without a shape dropped; runs of blanks, of any kind, joined; quotes and ".,;:" around the name and leading
    articles "the" dropped. Upper case has the same form as lower case, ß as SS, a final sigma as any other; only the
    dotless ı stays apart from i, whatever the language, as Unicode has it. May be empty.
    """
    nfkc = functools.partial(unicodedata.normalize, "NFKC")
    # NFD first, because an iota subscript folds to a letter, which must come after the other marks.
    caseless = nfkc(nfkc(unicodedata.normalize("NFD", _INVISIBLE.sub("", name)).casefold()).casefold())
    folded = " ".join(caseless.split()).strip(_OUTER)
    while folded.startswith("the "):
        folded = folded.removeprefix("the ").strip(_OUTER)
    return folded


@dataclasses.dataclass(frozen=True)
class KnowledgeGraph(Formats):
    """Undirected. Node i is `names[i]`; edges index nodes. Similarity edges stand beside relations."""

    names: list[str]  # all different
    types: list[str]
    descriptions: list[list[str]]
    chunks: list[list[str]]  # ids of the chunks that mention node i
    edges: np.ndarray  # int32 [m 2], first < second, in order
    weights: np.ndarray  # float32 [m], summed strengths
    edge_descriptions: list[list[str]]
    edge_chunks: list[list[str]]
    similar: np.ndarray  # int32 [s 2], as edges
    cosines: np.ndarray  # float32 [s]

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_records(cls, entities: Iterable[Entity], relations: Iterable[Relation], *,
                     fold: Callable[[str], str] = fold) -> "KnowledgeGraph":
        """Merges records by folded name. A relation's undescribed end becomes a node; self-loops are dropped.

        `fold` gives the form under which names are equal, and an empty one for a name that is none. Another one than ours is for
        a graph that must agree with another system's, or for a field where case or articles tell names apart.
        """
        key_of = functools.cache(fold)
        index: dict[str, int] = {}
        # Of each node: its spellings and types with their counts, its descriptions and chunks in order of appearance.
        shown, types, texts, where = columns = [], [], [], []

        def node(key: str) -> int:
            i = index.setdefault(key, len(index))
            if i == len(shown):
                for column in columns:
                    column.append({})
            return i

        def count(counts: dict[str, int], what: str) -> None:
            counts[what] = counts.get(what, 0) + 1

        for e in entities:
            key = key_of(e.name)
            if not key:
                continue
            i = node(key)
            count(shown[i], e.name)
            count(types[i], e.type.lower())
            texts[i][e.description] = where[i][e.chunk] = None
        described = len(shown)
        rows: list[tuple[tuple[int, int], Relation]] = []
        for r in relations:
            keys = key_of(r.source), key_of(r.target)
            if not all(keys) or keys[0] == keys[1]:
                continue
            ends = node(keys[0]), node(keys[1])
            for i, name in zip(ends, (r.source, r.target), strict=True):
                if i >= described:
                    count(shown[i], name)
                    texts[i][r.description] = None
                where[i][r.chunk] = None
            rows.append((ends, r))
        most = lambda counts: min(counts, key=lambda x: (-counts[x], x)) if counts else UNKNOWN
        return cls.from_columns(
            [most(x) for x in shown], [most(x) for x in types], [[t for t in x if t] for x in texts], [list(x) for x in where],
            [ends for ends, _ in rows], [r.weight for _, r in rows], [[r.description] for _, r in rows],
            [[r.chunk] for _, r in rows])

    @classmethod
    def from_columns(cls, names: list[str], types: list[str], descriptions: list[list[str]], chunks: list[list[str]],
                     ends: Sequence[tuple[int, int]], weights: Sequence[float], edge_descriptions: Sequence[Iterable[str]],
                     edge_chunks: Sequence[Iterable[str]]) -> "KnowledgeGraph":
        """From nodes as they are and relations in any order and direction.

        The relations of a pair become one: weights summed, descriptions and chunks joined without repeats. Self-loops
        are dropped.
        """
        pairs = np.sort(np.asarray(ends, np.int64).reshape(-1, 2), axis=1)
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        order = order[pairs[order, 0] < pairs[order, 1]]
        starts = np.flatnonzero(np.any(np.diff(pairs[order], axis=0, prepend=-1), axis=1))
        sums = np.add.reduceat(np.asarray(weights, np.float64)[order], starts)
        rows, bounds = order.tolist(), [*starts.tolist(), len(order)]
        joined = lambda lists: [list(dict.fromkeys(itertools.chain.from_iterable(lists[i] for i in rows[start:end])))
                                for start, end in itertools.pairwise(bounds)]
        return cls(names, types, descriptions, chunks, pairs[order[starts]].astype(np.int32),
                   np.minimum(sums, np.finfo(np.float32).max).astype(np.float32),  # a sum beyond float32 is no infinity
                   joined(edge_descriptions), joined(edge_chunks), np.zeros((0, 2), np.int32), np.zeros(0, np.float32))

    @classmethod
    def from_triples(cls, triples: Iterable[Sequence[str]]) -> "KnowledgeGraph":
        """From (head, relation, tail) strings; equal pairs are merged and their weights counted.

        Raises:
            ValueError: something else than three strings, with its number.
        """
        def relations() -> Iterator[Relation]:
            for i, triple in enumerate(triples):
                if isinstance(triple, str) or len(triple) != 3 or not all(isinstance(part, str) for part in triple):
                    raise ValueError(f"triples[{i}] is {triple!r}: give (head, relation, tail), three strings")
                head, relation, tail = triple
                yield Relation(head, tail, relation, 1.0, "")

        return cls.from_records([], relations())

    def with_similar(self, vectors: np.ndarray, threshold: float) -> "KnowledgeGraph":
        """Adds an edge between every two nodes whose unit vectors `[n e]` have cosine ≥ `threshold`, beside the relations.

        Raises:
            ValueError: another number of vectors than of nodes, or as `near_pairs`.
        """
        from ark_jax.search import near_pairs

        if len(vectors) != len(self):
            raise ValueError(f"{len(vectors)} vectors for {len(self)} nodes: give one a node, of `texts()`")
        similar, cosines = near_pairs(vectors, threshold)
        return dataclasses.replace(self, similar=similar, cosines=cosines)

    def texts(self) -> list[str]:
        """Name and descriptions of every node: what is embedded for similarity."""
        return [f"{name} {' '.join(texts)}" for name, texts in zip(self.names, self.descriptions, strict=True)]

    def neighbours(self) -> tuple[np.ndarray, np.ndarray]:
        """All edges in both directions, parallel ones once: int32 (source, target), sorted by target, then source."""
        first, second = np.concatenate([self.edges, self.similar]).astype(np.int64).T
        # One integer an edge: a plain sort of these is a hundred times faster than np.unique, of rows or of integers.
        bits = len(self).bit_length()
        keys = np.concatenate([first << bits | second, second << bits | first])
        keys.sort()
        keys = keys[np.diff(keys, prepend=-1) > 0]
        return (keys & (1 << bits) - 1).astype(np.int32), (keys >> bits).astype(np.int32)

    def summary(self) -> dict:
        """Sizes and shape, as JSON: nodes, edges and augmented edges are the columns of the paper's Table 5.

        `edges` are the relations that were extracted, `augmented_edges` these and the similarity edges, pairs with both
        counted once. Degrees count neighbours in the augmented graph; `degrees` is their histogram, in buckets whose
        bounds double: "0", "1", "2-3", "4-7", ...
        """
        import scipy.sparse

        source, target = self.neighbours()
        n = len(self)
        degrees = np.bincount(target, minlength=n)
        matrix = scipy.sparse.csr_matrix((np.ones(len(source), np.int8), source, np.append(0, np.cumsum(degrees))), (n, n))
        # Strong, because the matrix is symmetric: "weak" would transpose it.
        components = scipy.sparse.csgraph.connected_components(matrix, connection="strong", return_labels=False) if n else 0
        histogram = np.bincount(np.frexp(degrees)[1])
        bucket = lambda i: str(i) if i < 2 else f"{1 << i - 1}-{(1 << i) - 1}"
        return {"nodes": n, "edges": len(self.edges), "similarity_edges": len(self.similar),
                "augmented_edges": int(np.count_nonzero(source <= target)), "components": int(components),
                "mean_degree": float(degrees.mean()) if n else 0.0, "max_degree": int(degrees.max(initial=0)),
                "degrees": {bucket(i): int(count) for i, count in enumerate(histogram)}}

    def save(self, folder: str | Path) -> None:
        """Writes nodes.parquet, relations.parquet and similar.parquet."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        ends = lambda edges: {"source": edges[:, 0], "target": edges[:, 1]}
        tables = {
            "nodes": {"name": pa.array(self.names, TEXT), "type": pa.array(self.types, TEXT),
                      "descriptions": pa.array(self.descriptions, TEXTS), "chunks": pa.array(self.chunks, TEXTS)},
            "relations": {**ends(self.edges), "weight": self.weights,
                          "descriptions": pa.array(self.edge_descriptions, TEXTS), "chunks": pa.array(self.edge_chunks, TEXTS)},
            "similar": {**ends(self.similar), "cosine": self.cosines}}
        for name, columns in tables.items():
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")

    @classmethod
    def load(cls, folder: str | Path) -> "KnowledgeGraph":
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError: a file is absent.
            ValueError: a file is damaged or lacks a column, a column has another type or holds what it must not; with
                file, row and column.
        """
        nodes, relations, similar = (Path(folder) / f"{name}.parquet" for name in ("nodes", "relations", "similar"))
        names, types, descriptions, chunks = (column.to_pylist() for column in read_columns(
            nodes, {"name": TEXT, "type": TEXT, "descriptions": TEXTS, "chunks": TEXTS}))
        refuse_repeats(nodes, "name", names)

        def edges(path: Path, number: str, least: float, **more: pa.DataType) -> tuple[np.ndarray, np.ndarray, list]:
            source, target, value, *rest = read_columns(
                path, {"source": pa.int32(), "target": pa.int32(), number: pa.float32(), **more})
            value = value.to_numpy()
            refuse_numbers(path, number, value, least)
            ends = np.stack([source.to_numpy(), target.to_numpy()], 1)
            outside = np.any((ends < 0) | (ends >= len(names)), axis=1)
            if outside.any():
                raise ValueError(f"{path}: row {outside.argmax()}, the edge ends outside the {len(names)} nodes of {nodes.name}")
            return ends, value, [column.to_pylist() for column in rest]

        ends, weights, (edge_descriptions, edge_chunks) = edges(relations, "weight", 0.0, descriptions=TEXTS, chunks=TEXTS)
        pairs, cosines, _ = edges(similar, "cosine", -np.inf)
        return cls(names, types, descriptions, chunks, ends, weights, edge_descriptions, edge_chunks, pairs, cosines)
