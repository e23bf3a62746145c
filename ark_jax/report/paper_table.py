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


class Column(NamedTuple):
    """A column: its heading, a test set or run, and the metric of metrics.json in it."""

    heading: str
    part: str
    metric: str


def columns_of(parts: Mapping[str, str], metrics: Mapping[str, str]) -> tuple[Column, ...]:
    """A column for each metric of each part; both are name -> heading, which may be empty."""
    pairs = [(part, metric) for part in parts for metric in metrics]
    return tuple(Column(f"{parts[p]} {metrics[m]}".strip(), p, m) for p, m in pairs)


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """What a config declares of the published table that it makes.

    Attributes:
        title: the paper, the number of the table and the metrics.
        number: such as "Table 1", by which quoted rows are marked.
        columns: of the table. A part is a test set of `data.test`, or a run that has one.
        runs: run -> its changes of the config.
        sources: part -> the names of its data; "" has those that each part needs.
        quoted: system -> its published figures in percent, by column; None: it has none.
    """

    title: str
    number: str
    columns: tuple[Column, ...]
    runs: Mapping[str, Mapping[str, object]]
    sources: Mapping[str, tuple[str, ...]]
    quoted: Mapping[str, tuple[float | None, ...]]

    def needed(self) -> list[str]:
        """The names of all data."""
        parts = ["", *(column.part for column in self.columns)]
        return list(dict.fromkeys(x for part in parts for x in self.sources.get(part, ())))

    @property
    def parts(self) -> list[str]:
        """The test sets or runs of the columns, in order."""
        return list(dict.fromkeys(column.part for column in self.columns))

    def choose(self, parts: Sequence[str]) -> "PaperTable":
        """The table with these parts alone; all without any.

        Raises:
            ValueError: there is no such part.
        """
        if unknown := [part for part in parts if part not in self.parts]:
            raise ValueError(f"{unknown[0]!r}: {self.title} has {', '.join(self.parts)}")
        kept = [i for i, x in enumerate(self.columns) if not parts or x.part in parts]
        return dataclasses.replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            runs={
                name: changes
                for name, changes in self.runs.items()
                if not parts or name not in self.parts or name in parts
            },
            quoted={name: tuple(row[i] for i in kept) for name, row in self.quoted.items()},
        )


def as_markdown(table: PaperTable, runs: Mapping[str, Path]) -> str:
    """The table of finished runs.

    Args:
        runs: run -> its workdir.
    """
    cells: dict[str, dict[str, str]] = {}
    for run, workdir in runs.items():
        for part, rows in _tables(table, run, workdir).items():
            for row in rows:
                alone = len(table.runs) == 1 or run in table.parts
                label = row["system"] if alone else f"{run}: {row['system']}"
                line = cells.setdefault(label, {})
                for column in table.columns:
                    if column.part == part and (value := row["values"].get(column.metric)):
                        line[column.heading] = _cell(value)
    heads = [column.heading for column in table.columns]
    lines = [["system", *heads]]
    lines += [[label, *(line.get(head, "–") for head in heads)] for label, line in cells.items()]
    lines.append([f"**quoted, {table.number}:**", *("" for _ in heads)])
    lines += [
        [
            f"{name} (quoted)",
            *("–" if x is None else f"{x:.2f}".rstrip("0").rstrip(".") for x in row),
        ]
        for name, row in table.quoted.items()
    ]
    return f"# {table.title}\n\n{markdown_table(lines)}\n\n{NOTE}\n"


def _tables(table: PaperTable, run: str, workdir: Path) -> dict[str, list[dict]]:
    """part -> the systems that a run measured there."""
    evaluated = load_json(workdir / "evaluate" / "metrics.json")
    if run in table.parts:
        return {run: evaluated["table"]}
    return evaluated.get("groups") or {table.parts[0]: evaluated["table"]}


def _cell(value: Mapping) -> str:
    """Mean and interval in percent, with a mark of a difference from the first system."""
    mean, low, high = (100 * value[name] for name in ("mean", "low", "high"))
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]{'*' * is_significant(value)}"
