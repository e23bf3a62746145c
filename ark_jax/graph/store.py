"""The knowledge graph: entities, relations and similarity edges as columns, stored as Parquet.

Names with equal folded forms (`fold`) are one node, shown in the most frequent spelling. Other
formats are in `ark_jax.graph.interop`.
"""

import dataclasses
import functools
import itertools
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ark_jax.data.rows import INVISIBLE, has_surrogate
from ark_jax.data.text_columns import BLOCK, TextColumn, TextListColumn
from ark_jax.graph.extract import Entity, Relation
from ark_jax.graph.interop import GraphFormats
from ark_jax.graph.merge import Edges, Nodes, RowTexts, merge_facts, merge_relations
from ark_jax.graph.parquet import (
    TEXT,
    TEXTS,
    check_filled,
    check_numbers,
    check_unique,
    read_columns,
)
from ark_jax.runtime.storage import local_path

_MARK = "\x1f"  # after the number of a context
_OUTER = " .,;:\"'“”„‟‘’‚‛«»‹›「」『』"
_ARTICLES = re.compile(rf"(?:the [{re.escape(_OUTER)}]*+)*+")  # a reply may repeat them endlessly
_SCHEMAS = {
    record_type: pa.schema(
        (field.name, pa.float64() if field.type is float else pa.string())
        for field in dataclasses.fields(record_type)
    )
    for record_type in (Entity, Relation)
}
_INVISIBLE = re.compile(f"[{INVISIBLE}]")


def fold(name: str) -> str:
    """The form that decides whether names are equal, independent of case, width, accents' encoding
    and quotes.

    It is Unicode's compatibility caseless matching (The Unicode Standard, D146) with one more pass,
    which makes it idempotent. Invisible characters are dropped, runs of blanks joined, and quotes,
    ".,;:" and leading articles "the" around the name removed. ß equals SS, and a final sigma equals
    any other; the dotless ı differs from i in all languages. The form may be empty.
    """
    nfkc = functools.partial(unicodedata.normalize, "NFKC")
    # NFD first: an iota subscript folds to a letter, which must follow the other marks.
    caseless = nfkc(
        nfkc(unicodedata.normalize("NFD", _INVISIBLE.sub("", name)).casefold()).casefold()
    )
    folded = " ".join(caseless.split()).strip(_OUTER)
    return folded[_ARTICLES.match(folded).end() :]


@dataclasses.dataclass(frozen=True)
class KnowledgeGraph(GraphFormats):
    """An undirected graph. Node i is `names[i]`; edges are pairs of node indices.

    Texts are columns that are read like lists, of strings or of lists of strings. They may be given
    as lists.
    """

    names: TextColumn  # all different, at least in one context
    types: TextColumn
    descriptions: TextListColumn
    chunks: TextListColumn  # ids of the chunks that mention node i
    edges: np.ndarray  # int32 [m 2], first < second, in order
    weights: np.ndarray  # float32 [m], summed strengths
    edge_descriptions: TextListColumn
    edge_chunks: TextListColumn
    similar: np.ndarray  # int32 [s 2], as edges
    cosines: np.ndarray  # float32 [s]

    def __repr__(self) -> str:
        return f"KnowledgeGraph({len(self):,} nodes, {len(self.edges):,} edges)"

    def __post_init__(self):
        for field in dataclasses.fields(self):
            values = getattr(self, field.name)
            if field.type in (TextColumn, TextListColumn) and not isinstance(values, field.type):
                object.__setattr__(self, field.name, field.type(values, field.name))

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_records(
        cls,
        entities: Iterable[Entity],
        relations: Iterable[Relation],
        *,
        fold: Callable[[str], str] = fold,
    ) -> "KnowledgeGraph":
        """Merges records by folded name.

        The end of a relation without a record of its own becomes a node. Self-loops are dropped.

        Args:
            fold: name -> the form that decides whether names are equal, "" for an invalid name.
                Another function may reproduce another system's graph, or keep names apart by case
                or article.
        """
        return cls.from_tables(
            _record_table(entities, Entity), _record_table(relations, Relation), fold=fold
        )

    @classmethod
    def from_tables(
        cls,
        entities: pa.Table,
        relations: pa.Table,
        *,
        fold: Callable[[str], str] = fold,
        contexts: Mapping[str, str] | None = None,
    ) -> "KnowledgeGraph":
        """As `from_records`, of tables whose columns are the fields of the records.

        Args:
            contexts: chunk id -> its context. Each has a graph of its own then, and the result is
                all of them side by side: equal names in two contexts are two nodes.

        Raises:
            ValueError: a cell is empty.
        """
        for table, label in ((entities, "entities"), (relations, "relations")):
            for name in table.column_names:
                check_filled(label, name, table[name])
        if contexts is None:
            return cls._from_merged(*merge_facts(entities, relations, fold))
        # The number of its context before each name keeps nodes apart until all are merged.
        numbers: dict[str, int] = {}
        number = lambda chunk: numbers.setdefault(contexts[chunk], len(numbers))

        def mark(table: pa.Table, *columns: str) -> pa.Table:
            marks = pa.array([str(number(chunk)) for chunk in table["chunk"].to_pylist()], TEXT)
            for name in columns:
                texts = table[name].cast(TEXT)  # an empty column may have no type
                marked = pc.binary_join_element_wise(marks, texts, _MARK)
                table = table.set_column(table.column_names.index(name), name, marked)
            return table

        def fold_after_mark(name: str) -> str:
            mark, _, text = name.partition(_MARK)
            return mark + _MARK + folded if (folded := fold(text)) else ""

        marked = mark(entities, "name"), mark(relations, "source", "target")
        graph = cls._from_merged(*merge_facts(*marked, fold_after_mark))
        names = TextColumn(name.partition(_MARK)[2] for name in graph.names)
        return dataclasses.replace(graph, names=names)

    @classmethod
    def _from_merged(cls, nodes: Nodes, edges: Edges) -> "KnowledgeGraph":
        """A graph without similarity edges."""
        return cls(*nodes, *edges, np.zeros((0, 2), np.int32), np.zeros(0, np.float32))

    @classmethod
    def from_columns(
        cls,
        names: Iterable[str],
        types: Iterable[str],
        descriptions: Iterable[list[str]],
        chunks: Iterable[list[str]],
        ends: Sequence[tuple[int, int]],
        weights: Sequence[float],
        edge_descriptions: Iterable[Iterable[str]],
        edge_chunks: Iterable[Iterable[str]],
    ) -> "KnowledgeGraph":
        """Makes a graph of nodes as they are, and relations in any order and direction.

        The relations of a pair are merged: weights are summed, descriptions and chunks joined
        without repeats. Self-loops are dropped.

        Raises:
            ValueError: relations differ in number from their weights, descriptions or chunks.
        """
        columns = {
            "weights": np.asarray(weights, np.float64),
            "edge_descriptions": TextListColumn(map(list, edge_descriptions), "edge_descriptions"),
            "edge_chunks": TextListColumn(map(list, edge_chunks), "edge_chunks"),
        }
        for name, column in columns.items():
            if len(column) != len(ends):
                raise ValueError(f"{name}: {len(column)} for {len(ends)} relations: give one each")
        weights, *texts = columns.values()
        edges = merge_relations(
            np.asarray(ends, np.int64).reshape(-1, 2), weights, *map(RowTexts.from_lists, texts)
        )
        return cls._from_merged(Nodes(names, types, descriptions, chunks), edges)

    @classmethod
    def from_triples(cls, triples: Iterable[Sequence[str]]) -> "KnowledgeGraph":
        """Makes a graph of (head, relation, tail) triples; a pair's weight is its number of
        triples.

        A triple with a name that folds to nothing, or from a node to itself, is left out, and a
        warning says how many are.

        Raises:
            ValueError: a triple is not three strings.
        """
        nameless = loops = 0

        def relations() -> Iterator[Relation]:
            """The triples as relations; counts those that will be left out."""
            nonlocal nameless, loops
            for i, triple in enumerate(triples):
                if (
                    isinstance(triple, str)
                    or len(triple) != 3
                    or not all(isinstance(part, str) for part in triple)
                ):
                    raise ValueError(
                        f"triples[{i}] is {triple!r}: give (head, relation, tail), three strings"
                    )
                head, relation, tail = triple
                keys = fold(head), fold(tail)
                nameless += not all(keys)
                loops += all(keys) and keys[0] == keys[1]
                yield Relation(head, tail, relation, 1.0, "")

        graph = cls.from_records([], relations())
        if nameless or loops:
            warnings.warn(
                f"triples are left out: {nameless:,} with a name of quotes or stops alone, "
                f"{loops:,} from a node to itself",
                stacklevel=2,
            )
        return graph

    def with_similar(
        self,
        vectors: np.ndarray,
        threshold: float,
        nearest: int = 0,
        contexts: Mapping[str, str] | None = None,
    ) -> "KnowledgeGraph":
        """Adds similarity edges between all nodes whose unit vectors `[n e]` have cosine ≥
        `threshold`, or with `nearest` between each node and that many nearest ones.

        With `contexts`, as of `from_tables`, only nodes of one context are joined.

        Raises:
            ValueError: there is not one vector for each node, or as `near_pairs`.
        """
        from ark_jax.retrieval.dense import near_pairs

        if len(vectors) != len(self):
            raise ValueError(
                f"{len(vectors)} vectors for {len(self)} nodes: give one a node, of `texts()`"
            )
        find = lambda vectors: near_pairs(vectors, threshold, nearest=nearest)
        if contexts is None or not len(self):
            similar, cosines = find(vectors)
            return dataclasses.replace(self, similar=similar, cosines=cosines)
        parts = []
        for nodes in self.nodes_by_context(contexts).values():
            pairs, cosines = find(vectors[nodes])
            parts.append((np.array(nodes, np.int32)[pairs], cosines))
        similar, cosines = map(np.concatenate, zip(*parts, strict=True))
        order = np.lexsort((similar[:, 1], similar[:, 0]))
        return dataclasses.replace(self, similar=similar[order], cosines=cosines[order])

    def nodes_by_context(self, contexts: Mapping[str, str]) -> dict[str, list[int]]:
        """context -> its nodes, ascending; `contexts` is that of `from_tables`."""
        nodes: dict[str, list[int]] = {}
        for node in range(len(self)):
            nodes.setdefault(contexts[self.chunks.first(node)], []).append(node)
        return nodes

    def texts(self) -> TextColumn:
        """Name and descriptions of every node, the text that is embedded for similarity."""
        descriptions = pc.binary_join(self.descriptions.arrow, " ")
        return TextColumn(pc.binary_join_element_wise(self.names.arrow, descriptions, " "))

    def neighbours(self) -> tuple[np.ndarray, np.ndarray]:
        """All edges in both directions: int32 (source, target), sorted by target, then source."""
        first, second = np.concatenate([self.edges, self.similar]).astype(np.int64).T
        # Sorting one integer per edge is a hundred times faster than np.unique.
        bits = len(self).bit_length()
        keys = np.concatenate([first << bits | second, second << bits | first])
        keys.sort()
        keys = keys[np.diff(keys, prepend=-1) > 0]
        return (keys & (1 << bits) - 1).astype(np.int32), (keys >> bits).astype(np.int32)

    def summary(self) -> dict:
        """Sizes and degrees for JSON; nodes, edges and augmented edges are the columns of the
        paper's Table 5.

        `edges` counts relations, `augmented_edges` relations and similarity edges, a pair with both
        once. Degrees count neighbours in the augmented graph. `degrees` is their histogram, with
        buckets that double: "0", "1", "2-3", "4-7", ...
        """
        import scipy.sparse

        source, target = self.neighbours()
        n = len(self)
        degrees = np.bincount(target, minlength=n)
        matrix = scipy.sparse.csr_matrix(
            (np.ones(len(source), np.int8), source, np.append(0, np.cumsum(degrees))), (n, n)
        )
        # The matrix is symmetric; "strong" avoids a transposition.
        components = (
            scipy.sparse.csgraph.connected_components(
                matrix, connection="strong", return_labels=False
            )
            if n
            else 0
        )
        histogram = np.bincount(np.frexp(degrees)[1])
        bucket = lambda i: str(i) if i < 2 else f"{1 << i - 1}-{(1 << i) - 1}"
        return {
            "nodes": n,
            "edges": len(self.edges),
            "similarity_edges": len(self.similar),
            "augmented_edges": int(np.count_nonzero(source <= target)),
            "components": int(components),
            "mean_degree": float(degrees.mean()) if n else 0.0,
            "max_degree": int(degrees.max(initial=0)),
            "degrees": {bucket(i): int(count) for i, count in enumerate(histogram)},
        }

    def save(self, folder: str | Path) -> None:
        """Writes nodes.parquet, relations.parquet and similar.parquet."""
        folder = local_path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        ends = lambda edges: {"source": edges[:, 0], "target": edges[:, 1]}
        tables = {
            "nodes": {
                "name": self.names.arrow,
                "type": self.types.arrow,
                "descriptions": self.descriptions.arrow,
                "chunks": self.chunks.arrow,
            },
            "relations": {
                **ends(self.edges),
                "weight": self.weights,
                "descriptions": self.edge_descriptions.arrow,
                "chunks": self.edge_chunks.arrow,
            },
            "similar": {**ends(self.similar), "cosine": self.cosines},
        }
        for name, columns in tables.items():
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")

    @classmethod
    def load(cls, folder: str | Path) -> "KnowledgeGraph":
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is damaged, or a column is missing, has another type or an invalid
                value.
        """
        nodes, relations, similar = (
            local_path(folder) / f"{name}.parquet" for name in ("nodes", "relations", "similar")
        )
        names, types, descriptions, chunks = read_columns(
            nodes, {"name": TEXT, "type": TEXT, "descriptions": TEXTS, "chunks": TEXTS}
        )
        if pc.count_distinct(names).as_py() < len(names):
            first = TextListColumn(chunks).first
            if len({(str(name), first(row)) for row, name in enumerate(names)}) < len(names):
                check_unique(nodes, "name", names.to_pylist())

        def edges(
            path: Path, number: str, minimum: float, **list_types: pa.DataType
        ) -> tuple[np.ndarray, np.ndarray, list[TextListColumn]]:
            """The ends `[m 2]`, numbers `[m]` and lists of the edges in a file, once checked."""
            source, target, value, *list_columns = read_columns(
                path,
                {"source": pa.int32(), "target": pa.int32(), number: pa.float32(), **list_types},
            )
            value = value.to_numpy()
            check_numbers(path, number, value, minimum)
            ends = np.stack([source.to_numpy(), target.to_numpy()], 1)
            outside = np.any((ends < 0) | (ends >= len(names)), axis=1)
            if outside.any():
                raise ValueError(
                    f"{path}: row {outside.argmax()}, the edge ends outside "
                    f"the {len(names)} nodes of {nodes.name}"
                )
            return ends, value, [TextListColumn(column) for column in list_columns]

        ends, weights, (edge_descriptions, edge_chunks) = edges(
            relations, "weight", 0.0, descriptions=TEXTS, chunks=TEXTS
        )
        pairs, cosines, _ = edges(similar, "cosine", -np.inf)
        return cls(
            TextColumn(names),
            TextColumn(types),
            TextListColumn(descriptions),
            TextListColumn(chunks),
            ends,
            weights,
            edge_descriptions,
            edge_chunks,
            pairs,
            cosines,
        )


def _record_table(records: Iterable[Entity] | Iterable[Relation], record_type: type) -> pa.Table:
    """The fields of records as columns; ValueError if a text is not valid Unicode."""
    names = [field.name for field in dataclasses.fields(record_type)]
    blocks = [pa.table({name: [] for name in names}, _SCHEMAS[record_type])]
    records = iter(records)
    while block := list(itertools.islice(records, BLOCK)):
        columns = {name: [getattr(record, name) for record in block] for name in names}
        try:
            blocks.append(pa.table(columns, _SCHEMAS[record_type]))
        except UnicodeEncodeError:
            is_invalid = lambda x: any(map(has_surrogate, map(str, dataclasses.astuple(x))))
            record = next(filter(is_invalid, block))
            raise ValueError(
                f"{record!r} holds half of a character: write whole characters"
            ) from None
    return pa.concat_tables(blocks)
