"""Other people's formats of a knowledge graph: networkx, GraphML, and the Parquet tables of GraphRAG.

What we wrote comes back as it was, as far as the format holds it. A graph of others keeps its nodes one for one, under the
names it gave them: names that `fold` makes equal stay apart here. Direction is dropped; parallel edges become one, their
weights summed, descriptions and chunks joined without repeats; self-loops are left out, and how many is said.
"""

import dataclasses
import json
import math
import re
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ark_jax.graph.extract import UNKNOWN
from ark_jax.log import say

TEXT, TEXTS = pa.string(), pa.list_(pa.string())
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # no character of XML 1.0, escaped or not
_LINE = "\u2028"  # Unicode's line separator: a new line to readers, and unlike "\n" not found in descriptions
_GRAPHML = {"node": {"name": "string", "type": "string", "descriptions": "string", "chunks": "string"},
            "edge": {"weight": "double", "descriptions": "string", "chunks": "string", "similarity": "double"}}


class Formats:
    """What a KnowledgeGraph reads and writes besides its own files."""

    def to_networkx(self):
        """A networkx.Graph. Nodes have type, descriptions and chunks; an edge has weight, descriptions and chunks where it
        is a relation, similarity where it is a similarity edge, and all of them where it is both."""
        import networkx as nx

        graph = nx.Graph()
        graph.add_nodes_from(_nodes(self))
        graph.add_edges_from(_edges(self))
        return graph

    @classmethod
    def from_networkx(cls, graph):
        """From any networkx graph, directed or not, with parallel edges or not.

        A node's name is its attribute "name" if all nodes have one and all differ, else the node as a string. The other
        attributes are those of `to_networkx`, lists also as JSON; or nano-graphrag's: entity_type, and description and
        source_id with <SEP> between the parts. An edge with a similarity and no weight is a similarity edge (of parallel
        ones the highest counts), any other a relation, of weight 1 where none is given.

        Raises:
            ValueError: two nodes of one name; a weight, similarity or list that is none; with node or edge, and attribute.
        """
        return _from_networkx(cls, graph, "networkx graph")

    def to_graphml(self, path: str | Path) -> None:
        """A GraphML file that networkx, igraph and Gephi open: attributes as of `to_networkx`, lists as JSON, and the name, which
        is the id, again as an attribute (igraph garbles an & in ids, and finds nodes by that attribute).

        Raises:
            ValueError: a name or type holds a character that XML 1.0 has not, such as a control character. (In
                descriptions and ids of chunks JSON escapes it.) No file is written then.
        """
        for field in ("names", "types"):
            for i, text in enumerate(getattr(self, field)):
                if found := _NOT_XML.search(text):
                    raise ValueError(f"{field}[{i}] is {text!r}: GraphML cannot hold {found[0]!r}; take it out, or use save()")

        def data(kind: str, attributes: dict) -> str:
            text = lambda value: value if isinstance(value, str) else repr(value) if isinstance(value, float) else _json(value)
            return "".join(f'<data key="{kind}_{name}">{escape(text(value), {chr(13): "&#13;"})}</data>'
                           for name, value in attributes.items())

        with Path(path).open("w", encoding="utf-8") as file:
            file.write('<?xml version="1.0" encoding="UTF-8"?>\n<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n')
            for kind, names in _GRAPHML.items():
                for name, form in names.items():
                    file.write(f'<key id="{kind}_{name}" for="{kind}" attr.name="{name}" attr.type="{form}"/>\n')
            file.write('<graph edgedefault="undirected">\n')
            for name, attributes in _nodes(self):
                file.write(f"<node id={quoteattr(name)}>{data('node', {'name': name, **attributes})}</node>\n")
            for a, b, attributes in _edges(self):
                file.write(f"<edge source={quoteattr(a)} target={quoteattr(b)}>{data('edge', attributes)}</edge>\n")
            file.write("</graph>\n</graphml>\n")

    @classmethod
    def from_graphml(cls, path: str | Path):
        """From any GraphML file, as `from_networkx`; nodes are ids. (An empty type comes back as unknown.)"""
        import networkx as nx

        try:
            graph = nx.read_graphml(path)
        except (ET.ParseError, nx.NetworkXError, ValueError, KeyError, IndexError) as e:
            raise ValueError(f"{path} is no GraphML that networkx can read: {e}") from e
        return _from_networkx(cls, graph, str(path))

    def to_graphrag(self, folder: str | Path) -> None:
        """entities.parquet and relationships.parquet with the columns of GraphRAG (3.1).

        It has one description a row: ours are joined by Unicode's line separator, U+2028. Similarity edges have no place
        there: they are left out, and how many is said.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        source, target = self.edges.T
        degree = np.bincount(self.edges.ravel(), minlength=len(self))
        ids = [uuid.uuid5(uuid.NAMESPACE_URL, name) for name in self.names]  # of the name alone: equal graphs, equal files
        texts = lambda lists: pa.array([_LINE.join(x) for x in lists], TEXT)
        name = lambda nodes: pa.array([self.names[i] for i in nodes.tolist()], TEXT)
        pq.write_table(pa.table({
            "id": pa.array(map(str, ids), TEXT), "human_readable_id": np.arange(len(self)), "title": pa.array(self.names, TEXT),
            "type": pa.array(self.types, TEXT), "description": texts(self.descriptions),
            "text_unit_ids": pa.array(self.chunks, TEXTS), "frequency": pa.array(map(len, self.chunks), pa.int64()),
            "degree": degree}), folder / "entities.parquet")
        pq.write_table(pa.table({
            "id": pa.array([str(uuid.uuid5(ids[a], self.names[b])) for a, b in self.edges.tolist()], TEXT),
            "human_readable_id": np.arange(len(source)), "source": name(source), "target": name(target),
            "description": texts(self.edge_descriptions), "weight": self.weights.astype(np.float64),
            "combined_degree": degree[source] + degree[target], "text_unit_ids": pa.array(self.edge_chunks, TEXTS)}),
            folder / "relationships.parquet")
        if len(self.similar):
            say(f"  {folder}: {len(self.similar):,} similarity edges left out, GraphRAG's tables have no place for them")

    @classmethod
    def from_graphrag(cls, folder: str | Path):
        """From GraphRAG's entities.parquet and relationships.parquet, parting descriptions at U+2028.

        Raises:
            FileNotFoundError: a file is absent.
            ValueError: a column is missing or of another type, a title is there twice, a relationship names an absent
                entity, a weight is negative or no number; with file, row and column.
        """
        entities, relationships = (Path(folder) / f"{name}.parquet" for name in ("entities", "relationships"))
        titles, types, descriptions, chunks = read_columns(
            entities, {"title": TEXT, "type": TEXT, "description": TEXT, "text_unit_ids": TEXTS},
            nullable=("type", "description", "text_unit_ids"))
        titles = titles.to_pylist()
        refuse_repeats(entities, "title", titles)
        sources, targets, weights, edge_descriptions, edge_chunks = read_columns(
            relationships, {"source": TEXT, "target": TEXT, "weight": pa.float64(), "description": TEXT, "text_unit_ids": TEXTS},
            nullable=("description", "text_unit_ids"))
        index = {title: i for i, title in enumerate(titles)}

        def nodes(column: str, names: pa.ChunkedArray) -> list[int]:
            for row, name in enumerate(names.to_pylist()):
                if name not in index:
                    raise ValueError(f"{relationships}: row {row}, {column} {name!r} is no title in {entities.name}")
            return [index[name] for name in names.to_pylist()]

        ends = np.array([nodes("source", sources), nodes("target", targets)], np.int64).T
        weights = weights.to_numpy()
        refuse_numbers(relationships, "weight", weights, least=0.0)
        _say_left_out(relationships, int(np.count_nonzero(ends[:, 0] == ends[:, 1])))
        parted = lambda column: [text.split(_LINE) if text else [] for text in column.to_pylist()]
        lists = lambda column: [x or [] for x in column.to_pylist()]
        return cls.from_columns(titles, [UNKNOWN if x is None else x for x in types.to_pylist()], parted(descriptions),
                                lists(chunks), ends, weights, parted(edge_descriptions), lists(edge_chunks))


def _nodes(graph) -> Iterator[tuple[str, dict]]:
    for name, kind, texts, chunks in zip(graph.names, graph.types, graph.descriptions, graph.chunks, strict=True):
        yield name, {"type": kind, "descriptions": texts, "chunks": chunks}


def _edges(graph) -> Iterator[tuple[str, str, dict]]:
    """Every joined pair once."""
    similar = {tuple(ends): cosine for ends, cosine in zip(graph.similar.tolist(), graph.cosines.tolist(), strict=True)}
    for (a, b), weight, texts, chunks in zip(graph.edges.tolist(), graph.weights.tolist(), graph.edge_descriptions,
                                             graph.edge_chunks, strict=True):
        relation = {"weight": weight, "descriptions": texts, "chunks": chunks}
        both = {"similarity": similar.pop((a, b))} if (a, b) in similar else {}
        yield graph.names[a], graph.names[b], relation | both
    for (a, b), cosine in similar.items():
        yield graph.names[a], graph.names[b], {"similarity": cosine}


def _from_networkx(cls, graph, source: str):
    index = {node: i for i, node in enumerate(graph)}
    names = [name for _, name in graph.nodes(data="name") if isinstance(name, str)]
    if len(set(names)) < len(graph):
        names = [str(node) for node in graph]
    refuse_repeats(source, "name", names)
    types, descriptions, chunks = [], [], []
    for node, data in graph.nodes(data=True):
        where = f"{source}: node {node!r}"
        kind = data.get("type", data.get("entity_type"))
        types.append(UNKNOWN if kind is None else str(kind))
        descriptions.append(_texts(where, data, "descriptions", "description"))
        chunks.append(_texts(where, data, "chunks", "source_id"))
    ends, weights, edge_descriptions, edge_chunks, similar, loops = [], [], [], [], {}, 0
    for a, b, data in graph.edges(data=True):
        where = f"{source}: edge {a!r} to {b!r}"
        if a == b:
            loops += 1
            continue
        pair = min(index[a], index[b]), max(index[a], index[b])
        if "similarity" in data:
            similar[pair] = max(_number(where, data, "similarity", -math.inf), similar.get(pair, -math.inf))
        if "weight" in data or "similarity" not in data:
            ends.append(pair)
            weights.append(_number(where, {"weight": 1.0, **data}, "weight", 0.0))
            edge_descriptions.append(_texts(where, data, "descriptions", "description"))
            edge_chunks.append(_texts(where, data, "chunks", "source_id"))
    _say_left_out(source, loops)
    made = cls.from_columns(names, types, descriptions, chunks, ends, weights, edge_descriptions, edge_chunks)
    pairs = sorted(similar)
    return dataclasses.replace(made, similar=np.array(pairs, np.int32).reshape(-1, 2),
                               cosines=np.array([similar[pair] for pair in pairs], np.float32))


def _texts(where: str, data: Mapping, ours: str, theirs: str) -> list[str]:
    if ours not in data:
        return list(dict.fromkeys(text for text in str(data.get(theirs) or "").split("<SEP>") if text))
    texts = data[ours]
    try:
        texts = json.loads(texts) if isinstance(texts, str) else list(texts)
    except (TypeError, ValueError):
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{where}: {ours} is {data[ours]!r}: give a list of strings, or JSON of one")
    return texts


def _number(where: str, data: Mapping, field: str, least: float) -> float:
    try:
        number = float(data[field])
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= least):
        raise ValueError(f"{where}: {field} is {data[field]!r}: {_wanted(least)}")
    return number


def _json(texts: list[str]) -> str:
    """JSON that XML can hold: readable, and equal after reading whatever the texts hold."""
    return _NOT_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(texts, ensure_ascii=False))


def _say_left_out(source: str | Path, loops: int) -> None:
    if loops:
        say(f"  {source}: {loops:,} edges from a node to itself left out")


def _wanted(least: float) -> str:
    return "must be a finite number" + (f", {least:g} or more" if math.isfinite(least) else "")


def refuse_repeats(source: str | Path, field: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        first = {}
        for row, name in enumerate(names):
            if first.setdefault(name, row) != row:
                raise ValueError(f"{source}: row {row}, {field} {name!r} is that of row {first[name]} too: names must differ")


def refuse_numbers(path: Path, field: str, numbers: np.ndarray, least: float) -> None:
    bad = ~(np.isfinite(numbers) & (numbers >= least))
    if bad.any():
        raise ValueError(f"{path}: row {bad.argmax()}, {field} is {numbers[bad.argmax()]}: {_wanted(least)}")


def read_columns(path: Path, types: Mapping[str, pa.DataType], nullable: Container[str] = ()) -> list[pa.ChunkedArray]:
    """Columns of a Parquet file; numbers of any width become that of `types`, text stays text.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no Parquet file; a column missing, of another type, or with an empty cell; with file, row and column.
    """
    try:
        table = pq.ParquetFile(path).read()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is absent") from None
    except (pa.ArrowException, OSError) as e:
        raise ValueError(f"{path} is no whole Parquet file: {e}") from e
    number = lambda kind: pa.types.is_primitive(getattr(kind, "value_type", kind))
    columns = []
    for name, kind in types.items():
        if table.column_names.count(name) != 1:
            raise ValueError(f"{path}: needs one column {name!r}, has {table.column_names}")
        column = table.column(name)
        try:
            if number(column.type) != number(kind):
                raise pa.ArrowInvalid("text is no number")
            column = column.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise ValueError(f"{path}: column {name!r} is of type {table.schema.field(name).type}, not {kind}: {e}") from e
        if column.null_count and name not in nullable:
            raise ValueError(f"{path}: row {pc.index(column.is_null(), True)}, {name} is empty")
        if pa.types.is_list(kind) and pc.list_flatten(column).null_count:
            raise ValueError(f"{path}: column {name!r} holds an empty text in a list")
        columns.append(column)
    return columns
