"""The knowledge graph: entities, relations and similarity edges as columns; on disk as Parquet.

Names are merged when their folded forms are equal: Unicode NFKC, case-folded, outer quotes and a leading
article dropped, blanks joined. The most frequent spelling is shown.
"""

import collections
import dataclasses
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.graph.extract import Entity, Relation

UNKNOWN = "unknown"  # the type of a relation's end that no entity record described


def fold(name: str) -> str:
    """The form under which names are equal."""
    outer = "\"'“”‘’ .,;:"
    folded = " ".join(unicodedata.normalize("NFKC", name).casefold().split()).strip(outer)
    return folded.removeprefix("the ").strip(outer)


@dataclasses.dataclass(frozen=True)
class KnowledgeGraph:
    """Undirected. Node i is `names[i]`; edges index nodes. Similarity edges stand beside relations."""

    names: list[str]
    types: list[str]
    descriptions: list[list[str]]
    chunks: list[list[str]]  # ids of the chunks that mention node i
    edges: np.ndarray  # int32 [m 2], first < second
    weights: np.ndarray  # float32 [m], summed strengths
    edge_descriptions: list[list[str]]
    edge_chunks: list[list[str]]
    similar: np.ndarray  # int32 [s 2]
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
        shown = collections.defaultdict(collections.Counter)
        types = collections.defaultdict(collections.Counter)
        texts, where = collections.defaultdict(dict), collections.defaultdict(dict)
        for e in entities:
            key = fold(e.name)
            if not key:
                continue
            shown[key][e.name] += 1
            types[key][e.type.lower()] += 1
            texts[key][e.description] = where[key][e.chunk] = None
        joined: dict[tuple[str, str], list[Relation]] = collections.defaultdict(list)
        for r in relations:
            ends = fold(r.source), fold(r.target)
            if not all(ends) or ends[0] == ends[1]:
                continue
            for key, name in zip(ends, (r.source, r.target), strict=True):
                if key not in types:
                    shown[key][name] += 1
                    texts[key][r.description] = None
                where[key][r.chunk] = None
            joined[tuple(sorted(ends))].append(r)
        keys = list(shown)
        index = {key: i for i, key in enumerate(keys)}
        most = lambda counter: min(counter, key=lambda x: (-counter[x], x)) if counter else UNKNOWN
        pairs = sorted((*sorted((index[a], index[b])), (a, b)) for a, b in joined)
        return cls(
            names=[most(shown[k]) for k in keys], types=[most(types[k]) for k in keys],
            descriptions=[[t for t in texts[k] if t] for k in keys], chunks=[list(where[k]) for k in keys],
            edges=np.array([p[:2] for p in pairs], np.int32).reshape(-1, 2),
            weights=np.array([sum(r.weight for r in joined[p[2]]) for p in pairs], np.float32),
            edge_descriptions=[list(dict.fromkeys(r.description for r in joined[p[2]])) for p in pairs],
            edge_chunks=[list(dict.fromkeys(r.chunk for r in joined[p[2]])) for p in pairs],
            similar=np.zeros((0, 2), np.int32), cosines=np.zeros(0, np.float32))

    @classmethod
    def from_triples(cls, triples: Iterable[Sequence[str]]) -> "KnowledgeGraph":
        """From (head, relation, tail) strings; equal pairs are merged and their weights counted.

        Raises:
            ValueError: something else than three strings, with its number.
        """
        rows = []
        for i, triple in enumerate(triples):
            if isinstance(triple, str) or len(triple) != 3 or not all(isinstance(part, str) for part in triple):
                raise ValueError(f"triples[{i}] is {triple!r}: give (head, relation, tail), three strings")
            head, relation, tail = triple
            rows.append(Relation(head, tail, relation, 1.0, ""))
        return cls.from_records([], rows)

    def with_similar(self, vectors: np.ndarray, threshold: float, block: int = 2048) -> "KnowledgeGraph":
        """Adds an edge between every two nodes whose unit vectors `[n e]` have cosine ≥ `threshold`.

        Exact, tile by tile: never an n×n matrix.
        """
        pairs, values = [], []
        for i in range(0, len(vectors), block):
            for j in range(i, len(vectors), block):
                cosine = vectors[i : i + block] @ vectors[j : j + block].T
                rows, columns = np.nonzero(cosine >= threshold)
                keep = rows + i < columns + j
                pairs.append(np.stack([rows[keep] + i, columns[keep] + j], 1))
                values.append(cosine[rows[keep], columns[keep]])
        pairs = np.concatenate(pairs) if pairs else np.zeros((0, 2))
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        cosines = np.concatenate(values)[order] if values else np.zeros(0)
        return dataclasses.replace(self, similar=pairs[order].astype(np.int32), cosines=cosines.astype(np.float32))

    def texts(self) -> list[str]:
        """Name and descriptions of every node: what is embedded for similarity."""
        return [f"{name} {' '.join(texts)}" for name, texts in zip(self.names, self.descriptions, strict=True)]

    def neighbours(self) -> tuple[np.ndarray, np.ndarray]:
        """All edges in both directions, parallel ones once: int32 (source, target), sorted by target."""
        both = np.concatenate([self.edges, self.similar])
        both = np.unique(np.concatenate([both, both[:, ::-1]]), axis=0)
        order = np.lexsort((both[:, 0], both[:, 1]))
        return both[order, 0], both[order, 1]

    def summary(self) -> dict:
        """Nodes, edges before and after augmentation, components, degrees: the columns of the paper's Table 5."""
        import scipy.sparse

        source, target = self.neighbours()
        n = len(self)
        matrix = scipy.sparse.coo_matrix((np.ones(len(source)), (source, target)), (n, n))
        components = scipy.sparse.csgraph.connected_components(matrix)[0] if n else 0
        degrees = np.bincount(source, minlength=n) if n else np.zeros(1, int)
        return {"nodes": n, "relations": len(self.edges), "similarity_edges": len(self.similar),
                "edges": len(source) // 2, "components": int(components), "mean_degree": float(degrees.mean()),
                "max_degree": int(degrees.max())}

    def to_networkx(self):
        """An undirected networkx graph; relations carry weight and description, similarity edges their cosine."""
        import networkx as nx

        graph = nx.Graph()
        for name, kind, texts, chunks in zip(self.names, self.types, self.descriptions, self.chunks, strict=True):
            graph.add_node(name, type=kind, description=" ".join(texts), chunks=" ".join(chunks))
        for (a, b), weight, texts in zip(self.edges, self.weights, self.edge_descriptions, strict=True):
            graph.add_edge(self.names[a], self.names[b], weight=float(weight), description=" ".join(texts))
        for (a, b), cosine in zip(self.similar, self.cosines, strict=True):
            graph.add_edge(self.names[a], self.names[b], similarity=float(cosine))
        return graph

    def save(self, folder: str | Path) -> None:
        """Writes nodes.parquet, relations.parquet and similar.parquet."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"name": pa.array(self.names, pa.string()), "type": pa.array(self.types, pa.string()),
                                 "descriptions": pa.array(self.descriptions, pa.list_(pa.string())),
                                 "chunks": pa.array(self.chunks, pa.list_(pa.string()))}), folder / "nodes.parquet")
        pq.write_table(pa.table({"source": self.edges[:, 0], "target": self.edges[:, 1], "weight": self.weights,
                                 "descriptions": pa.array(self.edge_descriptions, pa.list_(pa.string())),
                                 "chunks": pa.array(self.edge_chunks, pa.list_(pa.string()))}),
                       folder / "relations.parquet")
        pq.write_table(pa.table({"source": self.similar[:, 0], "target": self.similar[:, 1],
                                 "cosine": self.cosines}), folder / "similar.parquet")

    @classmethod
    def load(cls, folder: str | Path) -> "KnowledgeGraph":
        """Reads what `save` wrote; an edge to a node that is not there is an error."""
        folder = Path(folder)
        nodes, relations, similar = (pq.read_table(folder / f"{name}.parquet")
                                     for name in ("nodes", "relations", "similar"))
        column = lambda table, name: table.column(name).to_pylist()
        ends = lambda table: np.stack([table.column("source").to_numpy(), table.column("target").to_numpy()],
                                      1).astype(np.int32).reshape(-1, 2)
        graph = cls(column(nodes, "name"), column(nodes, "type"), column(nodes, "descriptions"),
                    column(nodes, "chunks"), ends(relations), relations.column("weight").to_numpy(),
                    column(relations, "descriptions"), column(relations, "chunks"), ends(similar),
                    similar.column("cosine").to_numpy())
        for table, edges in (("relations", graph.edges), ("similar", graph.similar)):
            if len(edges) and not (edges.min() >= 0 and edges.max() < len(graph)):
                raise ValueError(f"{folder}/{table}.parquet: an edge ends outside the {len(graph)} nodes of nodes.parquet")
        return graph
