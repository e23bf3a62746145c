"""Config fields of the recipes that read a graph of triples."""

import dataclasses

from ark_jax.schema import field


@dataclasses.dataclass(frozen=True)
class GraphInput:
    """The graph, and how its entities and relations become texts."""

    path: str = field(
        "",
        "The graph: a file, a pattern such as `kb_*.tsv`, or a folder; see `ark-jax check`.",
        content="files",
    )
    names: str = field(
        "", "File with a line per node: id, name, aliases joined by `|`; tabs.", content="files"
    )
    relation_names: str = field("", "The same for relations.", content="files")
    relations: str = field(
        "last",
        "Text of a relation without a name: the last part of its id, or the whole id.",
        choices=("last", "whole"),
    )
    tolerate: float = field(
        0.0,
        "Share of rows that may be bad: they are listed and left out, and the rest is read.",
        unit="fraction of rows",
        minimum=0,
        maximum=1,
    )
