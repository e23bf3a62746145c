"""Ids, names and aliases of nodes or relations, and lists of ids that files name by number."""

import bisect
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.data.problems import Findings
from ark_jax.data.rows import text_fault
from ark_jax.data.text_files import text_lines
from ark_jax.graph.parquet import TEXT, TEXTS

_BREAK = re.compile("[\t\n\r\x00]")


@functools.lru_cache(1 << 18)
def name_fault(name: object) -> tuple[str, str] | None:
    """The defect of an id or name, and the fix; None for a valid one."""
    if fault := text_fault(name):
        return fault
    if _BREAK.search(name):
        return f"{name!r} holds a tab, a line break or NUL", "put a blank in its place"
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class Terms:
    """Term i has the id `ids[i]`, which alone is its identity, a name or none, and aliases.

    The columns may be views of a file that is mapped into memory.
    """

    ids: pa.StringArray  # all different
    names: pa.StringArray  # null for an id without a name
    aliases: pa.ListArray  # of strings

    @classmethod
    def join(
        cls,
        ids: pa.Array,
        names: Mapping[str, str] | None,
        aliases: Mapping[str, Sequence[str]] | None,
    ) -> "Terms":
        """Joins ids with their names and aliases. Ids that only the mappings have come last.

        Args:
            names: id -> name. Without it, each id is its own name.
            aliases: id -> other names.
        """
        aliases = aliases or {}
        listed = ids.to_pylist() if names is not None or aliases else []
        known = set(listed)
        unlisted = [id for id in dict.fromkeys([*(names or {}), *aliases]) if id not in known]
        ids = pa.concat_arrays([ids.cast(TEXT), pa.array(unlisted, TEXT)])
        listed += unlisted
        name_column = ids if names is None else pa.array([names.get(id) for id in listed], TEXT)
        if aliases:
            alias_lists = pa.array([list(aliases.get(id, ())) for id in listed], TEXTS)
        else:
            alias_lists = pa.ListArray.from_arrays(
                np.zeros(len(ids) + 1, np.int32), pa.array([], TEXT)
            )
        return cls(ids, name_column, alias_lists)

    def __len__(self) -> int:
        return len(self.ids)

    def name(self, index: int) -> str:
        """The name of a term, or its id if it has none."""
        return self.names[index].as_py() or self.ids[index].as_py()

    @property
    def unnamed(self) -> int:
        """How many ids have no name."""
        return self.names.null_count

    @functools.cached_property
    def shared_names(self) -> int:
        """How many names belong to more than one id."""
        if self.names.equals(self.ids):  # which are all different
            return 0
        counts = self.names.drop_null().value_counts().field("counts")
        return pc.sum(pc.greater(counts, 1)).as_py() or 0

    def index(self, id: str) -> int:
        """The index of an id.

        Raises:
            KeyError: there is no such id.
        """
        matches = self._by_id.matches(id)
        if not matches:
            raise KeyError(f"{id!r} is not an id of this graph; `find` looks up names")
        return matches[0]

    def find(self, name: str) -> list[int]:
        """All terms with this name, alias or id, in order.

        Case counts, unless no term matches exactly. It does not choose between several terms.
        """
        return self._exact.matches(name) or self._caseless.matches(name.casefold())

    @functools.cached_property
    def _by_id(self) -> "_Index":
        return _Index(self.ids, np.arange(len(self)))

    @functools.cached_property
    def _exact(self) -> "_Index":
        return _Index(*self._texts())

    @functools.cached_property
    def _caseless(self) -> "_Index":
        texts, terms = self._texts()
        return _Index(pa.array([text.casefold() for text in texts.to_pylist()], TEXT), terms)

    def names_and_aliases(self) -> tuple[pa.ChunkedArray, np.ndarray]:
        """All names and aliases, and the term of each."""
        named = np.flatnonzero(pc.is_valid(self.names).to_numpy(zero_copy_only=False))
        aliased = pc.list_parent_indices(self.aliases).to_numpy()
        texts = pa.chunked_array([self.names.drop_null(), pc.list_flatten(self.aliases)], TEXT)
        return texts, np.concatenate([named, aliased])

    def _texts(self) -> tuple[pa.Array, np.ndarray]:
        """All ids, names and aliases, and the term of each."""
        texts, terms = self.names_and_aliases()
        return (
            pa.concat_arrays([self.ids, *texts.chunks]),
            np.concatenate([np.arange(len(self)), terms]),
        )


@dataclasses.dataclass
class Names:
    """Names and aliases as files give them: id -> name, id -> other names."""

    names: dict[str, str] = dataclasses.field(default_factory=dict)
    aliases: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def add(self, id: str, name: str, *, alias: bool = False) -> None:
        """Adds a name; a second one becomes an alias."""
        if not alias and id not in self.names:
            self.names[id] = name
        elif name != self.names.get(id) and name not in self.aliases.setdefault(id, []):
            self.aliases[id].append(name)


class _Index:
    """Finds the terms of a text by bisection, so that no dictionary of all texts is built."""

    def __init__(self, texts: pa.Array, terms: np.ndarray):
        order = pc.sort_indices(texts).to_numpy()  # by UTF-8 bytes, which is Python's order too
        self._texts, self._order, self._terms = texts, order, terms

    def matches(self, text: str) -> list[int]:
        """The terms with this text, ascending."""
        key = lambda place: self._texts[self._order[place]].as_py()
        places = range(len(self._order))
        first = bisect.bisect_left(places, text, key=key)
        last = bisect.bisect_right(places, text, lo=first, key=key)
        return sorted(set(self._terms[self._order[first:last]].tolist()))


class TermLists:
    """The lines of entities.txt and relations.txt in a folder, read when a number asks for one."""

    def __init__(self, folder: Path, findings: Findings):
        self._folder, self._findings = folder, findings
        self._lines: dict[str, list[str]] = {}

    def id(self, part: str, value: object) -> object:
        """The id in the line that a number names; None if there is no such line.

        A value that is not a number is returned as it is.

        Args:
            part: "relation"; any other word is an entity.
            value: an id, or the number of a line from 0.
        """
        if type(value) is not int:
            return value
        name = "relations.txt" if part == "relation" else "entities.txt"
        if name not in self._lines:
            path = self._folder / name
            lines = text_lines(path, self._findings) if path.is_file() else ()
            self._lines[name] = [line.strip() for _, line in lines]
        lines = self._lines[name]
        return lines[value] if 0 <= value < len(lines) else None
