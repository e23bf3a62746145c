"""A table of a paper: our figures, and the published ones set apart."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ark_jax.pipeline.tables import load_json
from ark_jax.report.results import is_significant, markdown_table

NOTE = (
    "Figures are percentages. In brackets stand 95 % bootstrap intervals over questions; * differs "
    "from the first system of its run, p < 0.05 by a paired randomisation test, Holm-corrected. "
    "Quoted figures are the paper's own, of other machines and maybe other models."
)


class Part(NamedTuple):
    """A test set of `data.test`, or a run that has one: its heading, and the names of its data."""

    heading: str
    sources: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """What a config declares of the published table that it makes.

    Attributes:
        title: the paper, the number of the table and the metrics.
        number: such as "Table 1", by which quoted rows are marked.
        parts: name -> part; each has a column for each metric.
        metrics: of metrics.json -> heading, which is empty for the only one.
        runs: run -> its changes of the config.
        quoted: system -> its published figures in percent, by column.
        shared: the names of the data that every part needs.
    """

    title: str
    number: str
    parts: Mapping[str, Part]
    metrics: Mapping[str, str]
    runs: Mapping[str, Mapping[str, object]]
    quoted: Mapping[str, tuple[float, ...]]
    shared: tuple[str, ...] = ()

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(part, metric) of each column."""
        return [(part, metric) for part in self.parts for metric in self.metrics]

    @property
    def headings(self) -> list[str]:
        return [f"{self.parts[p].heading} {self.metrics[m]}".strip() for p, m in self.columns]

    @property
    def sources(self) -> list[str]:
        """The names of all data."""
        return [*self.shared, *(name for part in self.parts.values() for name in part.sources)]

    def choose(self, names: Sequence[str]) -> "PaperTable":
        """The table with these parts alone; all without any.

        Raises:
            ValueError: there is no such part.
        """
        if unknown := [name for name in names if name not in self.parts]:
            raise ValueError(f"{unknown[0]!r}: {self.title} has {', '.join(self.parts)}")
        left_out = self.parts.keys() - (names or self.parts)
        kept = [i for i, (part, _) in enumerate(self.columns) if part not in left_out]
        return dataclasses.replace(
            self,
            parts={name: part for name, part in self.parts.items() if name not in left_out},
            runs={run: changes for run, changes in self.runs.items() if run not in left_out},
            quoted={name: tuple(row[i] for i in kept) for name, row in self.quoted.items()},
        )


def as_markdown(table: PaperTable, runs: Mapping[str, Path]) -> str:
    """The table of finished runs, run -> its workdir."""
    cells: dict[str, dict[tuple[str, str], str]] = {}
    for run, workdir in runs.items():
        evaluated = load_json(workdir / "evaluate" / "metrics.json")
        # A run measures a part of its own, or several test sets, or the only one.
        alone = run if run in table.parts else next(iter(table.parts))
        parts = evaluated.get("groups", {}) if run not in table.parts else {}
        prefix = "" if len(table.runs) == 1 or run in table.parts else f"{run}: "
        for part, rows in (parts or {alone: evaluated["table"]}).items():
            for row in rows:
                line = cells.setdefault(prefix + row["system"], {})
                line |= {(part, metric): _cell(x) for metric, x in row["values"].items()}
    lines = [["system", *table.headings]]
    lines += [[name, *(line.get(x, "–") for x in table.columns)] for name, line in cells.items()]
    lines.append([f"**quoted, {table.number}:**", *("" for _ in table.columns)])
    lines += [[f"{name} (quoted)", *map("{:g}".format, row)] for name, row in table.quoted.items()]
    return f"# {table.title}\n\n{markdown_table(lines)}\n\n{NOTE}\n"


def _cell(value: Mapping) -> str:
    mean, low, high = (100 * value[name] for name in ("mean", "low", "high"))
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]{'*' * is_significant(value)}"
