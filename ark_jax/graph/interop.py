"""Knowledge graphs of other programs: networkx, GraphML, and GraphRAG's Parquet tables.

A graph that was written here is read back unchanged, as far as the format can express it. The nodes
of another program's graph are not merged, even if `fold` makes their names equal. Direction is
dropped. Parallel edges are merged: their weights are summed, their descriptions and chunks joined
without repeats. Self-loops are dropped, and their number is logged.
"""

import bz2
import collections
import dataclasses
import gzip
import json
import math
import re
import reprlib
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ark_jax.graph.extract import UNKNOWN
from ark_jax.graph.parquet import (
    TEXT,
    TEXTS,
    check_numbers,
    check_unique,
    number_rule,
    read_columns,
)
from ark_jax.runtime.log import say
from ark_jax.runtime.storage import local_path

# Characters that XML 1.0 cannot contain, even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SEPARATOR = "\u2028"  # Unicode's line separator, which descriptions do not contain
_GRAPHML = {
    "node": {"name": "string", "type": "string", "descriptions": "string", "chunks": "string"},
    "edge": {
        "weight": "double",
        "descriptions": "string",
        "chunks": "string",
        "similarity": "double",
    },
}


class GraphFormats:
    """The methods of `KnowledgeGraph` for other programs' formats."""

    def to_networkx(self):
        """Converts to a networkx.Graph.

        Nodes have the attributes type, descriptions and chunks. Relations have weight, descriptions
        and chunks; similarity edges have similarity; an edge that is both has all of them.
        """
        import networkx as nx

        graph = nx.Graph()
        graph.add_nodes_from(_node_attributes(self))
        graph.add_edges_from(_edge_attributes(self))
        return graph

    @classmethod
    def from_networkx(cls, graph, source: str = "networkx graph"):
        """Converts any networkx graph, directed or not, with or without parallel edges.

        Names are the attribute "name" if all nodes have one and all differ, else the nodes as
        strings. Other attributes are those of `to_networkx`, where lists may be JSON, or
        nano-graphrag's: entity_type, and description and source_id with parts separated by <SEP>.
        An edge with a similarity and without a weight is a similarity edge; of parallel ones the
        highest counts. Any other edge is a relation, with weight 1 by default.

        Args:
            source: what errors call the graph.

        Raises:
            ValueError: names repeat, or a weight, similarity or list is invalid.
        """
        index = {node: i for i, node in enumerate(graph)}
        names = [name for _, name in graph.nodes(data="name") if isinstance(name, str)]
        if len(set(names)) < len(graph):
            names = [str(node) for node in graph]
        check_unique(source, "name", names)
        types, descriptions, chunks = [], [], []
        for node, data in graph.nodes(data=True):
            place = f"{source}: node {node!r}"
            kind = data.get("type", data.get("entity_type"))
            types.append(UNKNOWN if kind is None else str(kind))
            descriptions.append(_text_list(place, data, "descriptions", "description"))
            chunks.append(_text_list(place, data, "chunks", "source_id"))
        ends, weights, edge_descriptions, edge_chunks, similar, loops = [], [], [], [], {}, 0
        for a, b, data in graph.edges(data=True):
            place = f"{source}: edge {a!r} to {b!r}"
            if a == b:
                loops += 1
                continue
            pair = min(index[a], index[b]), max(index[a], index[b])
            if "similarity" in data:
                similar[pair] = max(
                    _number(place, data, "similarity", -math.inf), similar.get(pair, -math.inf)
                )
            if "weight" in data or "similarity" not in data:
                ends.append(pair)
                weights.append(_number(place, {"weight": 1.0, **data}, "weight", 0.0))
                edge_descriptions.append(_text_list(place, data, "descriptions", "description"))
                edge_chunks.append(_text_list(place, data, "chunks", "source_id"))
        _log_loops(source, loops)
        graph = cls.from_columns(
            names, types, descriptions, chunks, ends, weights, edge_descriptions, edge_chunks
        )
        pairs = sorted(similar)
        return dataclasses.replace(
            graph,
            similar=np.array(pairs, np.int32).reshape(-1, 2),
            cosines=np.array([similar[pair] for pair in pairs], np.float32),
        )

    def to_graphml(self, path: str | Path) -> None:
        """Writes a GraphML file for networkx, igraph and Gephi.

        Attributes are those of `to_networkx`, with lists as JSON. The name is the id and also an
        attribute, because igraph garbles an & in ids and finds nodes by that attribute.

        Raises:
            ValueError: a name or type has a character that XML 1.0 cannot contain, such as a
                control character. No file is written. (In lists JSON escapes such characters.)
        """
        for field in ("names", "types"):
            for i, text in enumerate(getattr(self, field)):
                if invalid := _NOT_XML.search(text):
                    raise ValueError(
                        f"{field}[{i}] is {text!r}: GraphML cannot hold {invalid[0]!r}; "
                        "take it out, or use save()"
                    )
        with local_path(path).open("w", encoding="utf-8") as file:
            file.write('<?xml version="1.0" encoding="UTF-8"?>\n')
            file.write('<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n')
            for kind, names in _GRAPHML.items():
                for name, form in names.items():
                    key = f'id="{kind}_{name}" for="{kind}" attr.name="{name}" attr.type="{form}"'
                    file.write(f"<key {key}/>\n")
            file.write('<graph edgedefault="undirected">\n')
            for name, attributes in _node_attributes(self):
                data = _graphml_data("node", {"name": name, **attributes})
                file.write(f"<node id={quoteattr(name)}>{data}</node>\n")
            for a, b, attributes in _edge_attributes(self):
                ends = f"source={quoteattr(a)} target={quoteattr(b)}"
                file.write(f"<edge {ends}>{_graphml_data('edge', attributes)}</edge>\n")
            file.write("</graph>\n</graphml>\n")

    @classmethod
    def from_graphml(cls, path: str | Path):
        """Reads any GraphML file with one graph; see `from_networkx`. An empty type becomes
        unknown.
        """
        import networkx as nx

        try:
            graph = nx.read_graphml(path)
            graphs = _count_graphs(Path(path))
        except (ET.ParseError, nx.NetworkXError, ValueError, KeyError, IndexError) as e:
            raise ValueError(f"{path} is not GraphML that networkx can read: {e}") from e
        if graphs > 1:  # networkx reads the first
            raise ValueError(f"{path} holds {graphs} graphs: write each to a file of its own")
        return cls.from_networkx(graph, str(path))

    def to_graphrag(self, folder: str | Path) -> None:
        """Writes entities.parquet and relationships.parquet with the columns of GraphRAG 3.1.

        GraphRAG has one description per row, so several are joined by U+2028, Unicode's line
        separator. Similarity edges are left out, and their number is logged.
        """
        folder = local_path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        source, target = self.edges.T
        degree = np.bincount(self.edges.ravel(), minlength=len(self))
        # Ids depend on names only, so that equal graphs give equal files.
        names = _labels(self)
        ids = [uuid.uuid5(uuid.NAMESPACE_URL, name) for name in names]
        joined = lambda lists: pc.binary_join(lists.arrow, _SEPARATOR)
        titles = pa.chunked_array([pa.array(names, TEXT)])
        named = lambda nodes: titles.take(pa.array(nodes))
        pq.write_table(
            pa.table(
                {
                    "id": pa.array(map(str, ids), TEXT),
                    "human_readable_id": np.arange(len(self)),
                    "title": titles,
                    "type": self.types.arrow,
                    "description": joined(self.descriptions),
                    "text_unit_ids": self.chunks.arrow,
                    "frequency": pc.list_value_length(self.chunks.arrow).cast(pa.int64()),
                    "degree": degree,
                }
            ),
            folder / "entities.parquet",
        )
        pq.write_table(
            pa.table(
                {
                    "id": pa.array(
                        [str(uuid.uuid5(ids[a], names[b])) for a, b in self.edges.tolist()], TEXT
                    ),
                    "human_readable_id": np.arange(len(source)),
                    "source": named(source),
                    "target": named(target),
                    "description": joined(self.edge_descriptions),
                    "weight": self.weights.astype(np.float64),
                    "combined_degree": degree[source] + degree[target],
                    "text_unit_ids": self.edge_chunks.arrow,
                }
            ),
            folder / "relationships.parquet",
        )
        if len(self.similar):
            say(
                f"  {folder}: {len(self.similar):,} similarity edges left out, "
                "GraphRAG's tables have no place for them"
            )

    @classmethod
    def from_graphrag(cls, folder: str | Path):
        """Reads GraphRAG's entities.parquet and relationships.parquet; descriptions are split at
        U+2028.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a column is missing or has another type, titles repeat, a relationship names
                a missing entity, or a weight is negative or not finite.
        """
        entities, relationships = (
            local_path(folder) / f"{name}.parquet" for name in ("entities", "relationships")
        )
        titles, types, descriptions, chunks = read_columns(
            entities,
            {"title": TEXT, "type": TEXT, "description": TEXT, "text_unit_ids": TEXTS},
            nullable=("type", "description", "text_unit_ids"),
        )
        titles = titles.to_pylist()
        check_unique(entities, "title", titles)
        sources, targets, weights, edge_descriptions, edge_chunks = read_columns(
            relationships,
            {
                "source": TEXT,
                "target": TEXT,
                "weight": pa.float64(),
                "description": TEXT,
                "text_unit_ids": TEXTS,
            },
            nullable=("description", "text_unit_ids"),
        )
        index = {title: i for i, title in enumerate(titles)}

        def nodes(column: str, names: pa.ChunkedArray) -> list[int]:
            """The nodes of a column of titles; ValueError if one is missing."""
            for row, name in enumerate(names.to_pylist()):
                if name not in index:
                    raise ValueError(
                        f"{relationships}: row {row}, {column} {name!r} "
                        f"is not a title in {entities.name}"
                    )
            return [index[name] for name in names.to_pylist()]

        ends = np.array([nodes("source", sources), nodes("target", targets)], np.int64).T
        weights = weights.to_numpy()
        check_numbers(relationships, "weight", weights, minimum=0.0)
        _log_loops(relationships, int(np.count_nonzero(ends[:, 0] == ends[:, 1])))
        parted = lambda column: [
            text.split(_SEPARATOR) if text else [] for text in column.to_pylist()
        ]
        lists = lambda column: [x or [] for x in column.to_pylist()]
        return cls.from_columns(
            titles,
            [UNKNOWN if x is None else x for x in types.to_pylist()],
            parted(descriptions),
            lists(chunks),
            ends,
            weights,
            parted(edge_descriptions),
            lists(edge_chunks),
        )


def _count_graphs(path: Path) -> int:
    """How many graphs a GraphML file holds, also nested ones."""
    opener = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)  # as in networkx
    with opener(path, "rb") as file:
        count = 0
        for _, element in ET.iterparse(file):
            count += element.tag.rpartition("}")[2] == "graph"
            element.clear()
        return count


def _graphml_data(kind: str, attributes: dict) -> str:
    """The data elements of a node or an edge; lists are JSON."""
    elements = []
    for name, value in attributes.items():
        if isinstance(value, float):
            value = repr(value)
        elif not isinstance(value, str):
            value = _json_for_xml(value)
        text = escape(value, {"\r": "&#13;"})
        elements.append(f'<data key="{kind}_{name}">{text}</data>')
    return "".join(elements)


def _labels(graph) -> list[str]:
    """The names; equal ones, of different contexts, with their first chunk."""
    names = list(graph.names)
    counts = collections.Counter(names)
    return [
        f"{name} [{graph.chunks.first(node)}]" if counts[name] > 1 else name
        for node, name in enumerate(names)
    ]


def _node_attributes(graph) -> Iterator[tuple[str, dict]]:
    """Every node as networkx takes it: its name and attributes."""
    for name, kind, texts, chunks in zip(
        _labels(graph), graph.types, graph.descriptions, graph.chunks, strict=True
    ):
        yield name, {"type": kind, "descriptions": texts, "chunks": chunks}


def _edge_attributes(graph) -> Iterator[tuple[str, str, dict]]:
    """Every pair of joined nodes once, with the attributes of relation and similarity edge."""
    names = _labels(graph)
    similar = {
        tuple(ends): cosine
        for ends, cosine in zip(graph.similar.tolist(), graph.cosines.tolist(), strict=True)
    }
    for (a, b), weight, texts, chunks in zip(
        graph.edges.tolist(),
        graph.weights.tolist(),
        graph.edge_descriptions,
        graph.edge_chunks,
        strict=True,
    ):
        relation = {"weight": weight, "descriptions": texts, "chunks": chunks}
        similarity = {"similarity": similar.pop((a, b))} if (a, b) in similar else {}
        yield names[a], names[b], relation | similarity
    for (a, b), cosine in similar.items():
        yield names[a], names[b], {"similarity": cosine}


def _text_list(place: str, data: Mapping, field: str, graphrag_field: str) -> list[str]:
    """The list of texts in `field`, or without it the parts of nano-graphrag's text."""
    if field not in data:
        return list(
            dict.fromkeys(
                text for text in str(data.get(graphrag_field) or "").split("<SEP>") if text
            )
        )
    texts = data[field]
    try:
        texts = json.loads(texts) if isinstance(texts, str) else list(texts)
    except (TypeError, ValueError, RecursionError):
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"{place}: {field} is {_shown(data[field])}: give a list of strings, or JSON of one"
        )
    return texts


def _number(place: str, data: Mapping, field: str, minimum: float) -> float:
    """The number in a field; ValueError unless it is finite and at least `minimum`."""
    try:
        number = float(data[field])
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= minimum):
        raise ValueError(f"{place}: {field} is {_shown(data[field])}: {number_rule(minimum)}")
    return number


def _shown(value: object) -> str:
    """A value in a message, shortened if it is long."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = shortener.maxlong = 80
    return shortener.repr(value)


def _json_for_xml(texts: list[str]) -> str:
    """Readable JSON in which characters that XML cannot contain are escaped."""
    return _NOT_XML.sub(
        lambda match: f"\\u{ord(match[0]):04x}", json.dumps(texts, ensure_ascii=False)
    )


def _log_loops(source: str | Path, loops: int) -> None:
    if loops:
        say(f"  {source}: {loops:,} edges from a node to itself left out")
