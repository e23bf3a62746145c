"""Writes the tables of results into README.md and notebooks/README.md, and results.svg.

`python notebooks/results/draw.py` reads the JSON files beside it, one for each table. Their keys:

- `rows`: each a `system`, its `kind` (`KINDS`) and `figures`, by heading a text, a count, or the
  `mean` over questions, `low` and `high` of its 95 % interval, the values of all `seeds`, and
  whether it `differs` from the plain row (`*`);
- `command`, `data`, `source`: how the figures were made, of what, and whether they come from a
  run's files or from a published table; `intervals`: what the intervals are over;
- `measure`: the heading that notebook 5 draws; `verdicts`: heading -> who is ahead there;
- `omitted`: systems and headings that the table and notebook 5 leave out; `notes`: further
  findings.
"""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[1]
COMMAND = "python notebooks/results/draw.py"
DOCUMENTS = ("README.md", "notebooks/README.md")
METHODS = ("ARK", "GPR", "STAR", "BAR-RAG")
KINDS = {  # kind of a row -> its name in the table of a method
    "plain": "plain",
    "simple": "strongest simple",
    "ours": "**ours**",
    "yardstick": "yardstick",
    "part": "",  # in the table of its study alone
}
MARKED = re.compile(r"<!-- (table|method|measured) (\S+) -->.*?<!-- /\1 -->", re.DOTALL)
LEFT, TOP, STEP, SCALE, LOWEST = 310, 44, 26, 1180, 0.43
STYLE = """
text { font: 14px sans-serif; fill: #24292f } .small { font-size: 12px; fill: #57606a }
.other { fill: #6e7781; stroke: #6e7781 } .ours { fill: #0969da; stroke: #0969da }
.range { stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 }
  .other { fill: #9198a1; stroke: #9198a1 } .ours { fill: #4493f8; stroke: #4493f8 }
}
"""


def studies() -> dict[str, dict]:
    """Name of a file -> the study in it, in the order of the names."""
    return {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))
    }


def value(figure: dict) -> float:
    """The mean over seeds, or of the one that is known."""
    seeds = figure.get("seeds", [figure["mean"]])
    return sum(seeds) / len(seeds)


def seeds(row: dict, heading: str) -> list[float]:
    """A row's value of each seed, if it has any."""
    figure = row["figures"].get(heading)
    return figure.get("seeds", []) if isinstance(figure, dict) else []


def number(value: float, signed: bool = False) -> str:
    sign = "−" if value < 0 else "+" if signed else ""
    return sign + f"{abs(value):.3f}".removeprefix("0")


def cell(figure, signed: bool) -> str:
    """A figure with its interval and star, or a text or count as it is."""
    if not isinstance(figure, dict):
        return f"{figure:,}" if isinstance(figure, int) else str(figure)
    text = number(figure["mean"], signed)
    if "low" in figure:
        text += f" [{number(figure['low'])}, {number(figure['high'])}]"
    return text + "*" * figure.get("differs", False)


def markdown(rows: list[list[str]]) -> str:
    head, *body = (re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(row)} |") for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def shown_rows(study: dict) -> list[dict]:
    """The rows of a study but those `omitted`."""
    return [row for row in study["rows"] if row["system"] not in study.get("omitted", ())]


def table_of_study(study: dict) -> str:
    """Rows and columns but those `omitted`. Values of seeds stand in a column after the others."""
    rows = shown_rows(study)
    longest = max((row["figures"] for row in rows), key=len)
    headings = list(dict.fromkeys([*longest, *(x for row in rows for x in row["figures"])]))
    seeded = [x for x in headings if any(seeds(row, x) for row in rows)]
    table = [["system", *headings, *(f"{x} of each seed" for x in seeded)]]
    for row in rows:
        figures = row["figures"]
        cells = [cell(figures.get(x, ""), x.startswith(("minus", "gain"))) for x in headings]
        cells += [" ".join(map(number, seeds(row, x))) for x in seeded]
        bold = row["kind"] == "ours"
        table.append([f"**{row['system']}**" if bold else row["system"], *cells])
    columns = [x for x in zip(*table, strict=True) if x[0] not in study.get("omitted", ())]
    return markdown([list(row) for row in zip(*columns, strict=True)])


def best(study: dict, kind: str) -> dict | None:
    """The row of a kind that is highest in the study's measure."""
    rows = [
        row for row in study["rows"] if row["kind"] == kind and study["measure"] in row["figures"]
    ]
    return max(rows, key=lambda row: value(row["figures"][study["measure"]]), default=None)


def link(study: dict, page: str) -> str:
    return f"[{study['study']}]({page}#{study['section']})"


def compared(study: dict) -> bool:
    """Whether a study compares its method with a plain model and with a simpler way."""
    return all(best(study, kind) for kind in ("plain", "simple", "ours"))


def table_of_method(method: str, page: str) -> str:
    """A line for each result of the studies of a method, which ends with who is ahead."""
    known = [x for x in studies().values() if x["method"] == method and compared(x)]
    results = [(study, heading) for study in known for heading in verdicts(study)]
    if not results:
        return ""
    columns = [[method, *(f"{link(study, page)}: {heading}" for study, heading in results)]]
    for kind, name in KINDS.items():
        values = [named_value(best(study, kind), heading) for study, heading in results]
        if kind != "part" and any(values):
            columns.append([name, *values])
    columns.append(["ahead", *(verdicts(study)[heading] for study, heading in results)])
    return markdown([list(row) for row in zip(*columns, strict=True)])


def measured(study: dict, page: str) -> str:
    """A study in one line."""
    rows = [best(study, kind) for kind in ("plain", "simple", "ours")]
    values = "; ".join(named_value(row, study["measure"]) for row in rows)
    return f"{link(study, page)}: {study['measure']} {values}"


def verdicts(study: dict) -> dict[str, str]:
    """Heading -> who is ahead there."""
    return study.get("verdicts", {study["measure"]: ""})


def named_value(row: dict | None, heading: str) -> str:
    if row is None or heading not in row["figures"]:
        return ""
    return f"{number(value(row['figures'][heading]))} {row['system']}"


def filled(document: str) -> str:
    """A document's text with what stands between its marks as the files have it."""
    page = "notebooks/README.md" if document == "README.md" else ""

    def text(match: re.Match) -> str:
        kind, name = match.groups()
        if kind == "measured":
            content = measured(studies()[name], page)
        elif kind == "table":
            content = f"\n{table_of_study(studies()[name])}\n"
        else:
            tables = [table_of_method(x, page) for x in METHODS if name in ("all", x)]
            content = "\n" + "\n\n".join(filter(None, tables)) + "\n"
        return f"<!-- {kind} {name} -->{content}<!-- /{kind} -->"

    return MARKED.sub(text, (REPOSITORY / document).read_text("utf-8"))


def drawing() -> str:
    """The studies of FairytaleQA, with one vector a text and one a token, as results.svg."""
    known = studies()
    rows = [row for row in known["fairytale"]["rows"] if row["kind"] != "part"]
    rows += [
        row for row in known["fairytale_tokens"]["rows"] if row["kind"] not in ("part", "simple")
    ]
    rows = [row for row in rows if "low" in row["figures"]["nDCG@10"]]
    x = lambda value: LEFT + SCALE * (value - LOWEST)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {TOP + STEP * len(rows) + 8}"'
        ' role="img">',
        f"<title>nDCG@10 on FairytaleQA</title><style>{STYLE}</style>",
        '<text x="10" y="20">nDCG@10 on 1,025 held-out questions of FairytaleQA</text>',
        '<text class="small" x="10" y="37">seed 0; lines are 95 % intervals over questions</text>',
    ]
    for i, row in enumerate(rows):
        figure, y = row["figures"]["nDCG@10"], TOP + STEP * i + 4
        kind = "ours" if row["kind"] == "ours" else "other"
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{row["system"]}</text>',
            f'<path class="range {kind}" d="M{x(figure["low"]):.0f},{y + 10}'
            f'H{x(figure["high"]):.0f}"/>',
            f'<circle class="{kind}" cx="{x(figure["mean"]):.0f}" cy="{y + 10}" r="6"/>',
            f'<text x="{x(figure["high"]) + 8:.0f}" y="{y + 15}">{number(figure["mean"])}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    for document in DOCUMENTS:
        (REPOSITORY / document).write_text(filled(document), "utf-8")
    (FOLDER / "results.svg").write_text(drawing(), "utf-8")
