"""Draws results.svg from the two tables of FairytaleQA in ../README.md: `python draw.py`."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
ROWS = (  # heading of the table, start of a row, label, whether it is ours
    ("Study 2: FairytaleQA", "MiniLM, untouched", "MiniLM, untouched", False),
    ("Study 2: FairytaleQA", "**stage 3 (ours)", "MiniLM tuned by ARK", True),
    ("Study 2: FairytaleQA", "the yardstick", "tuned on marked passages", False),
    ("Study 2: FairytaleQA", "BM25", "BM25", False),
    ("A vector for each token", "MiniLM by tokens", "a vector a token, untouched", False),
    ("A vector for each token", "**stage 3 (ours)", "a vector a token, tuned by ARK", True),
    ("A vector for each token", "the yardstick", "a vector a token, marked passages", False),
    ("A vector for each token", "**BM25 + stage 3", "BM25 + a vector a token, tuned by ARK", True),
)
LEFT, TOP, STEP, SCALE, LOWEST = 290, 44, 26, 1250, 0.43
STYLE = """
text { font: 14px sans-serif; fill: #24292f } .small { font-size: 12px; fill: #57606a }
.other { fill: #6e7781; stroke: #6e7781 } .ours { fill: #0969da; stroke: #0969da }
.range { stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 }
  .other { fill: #9198a1; stroke: #9198a1 } .ours { fill: #4493f8; stroke: #4493f8 }
}
"""


def value(document: str, heading: str, start: str) -> tuple[float, float, float]:
    """nDCG@10 of a row and its interval."""
    section = document.split(f" {heading}\n", 1)[1]
    line = next(x for x in section.splitlines() if x.startswith(f"| {start}"))
    cell = next(x for x in line.split("|")[3:] if x.count(",") == 1 and "[" in x)
    return tuple(map(float, re.findall(r"\.\d+", cell)[:3]))


def main() -> None:
    document = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    x = lambda value: LEFT + SCALE * (value - LOWEST)
    height = TOP + STEP * len(ROWS) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" role="img">',
        f"<title>nDCG@10 on FairytaleQA</title><style>{STYLE}</style>",
        '<text x="10" y="20">nDCG@10 on 1,025 held-out questions of FairytaleQA</text>',
        '<text class="small" x="10" y="37">seed 0; lines are 95 % intervals over questions</text>',
    ]
    for i, (heading, start, label, ours) in enumerate(ROWS):
        mean, low, high = value(document, heading, start)
        y = TOP + STEP * i + 4
        kind = "ours" if ours else "other"
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{label}</text>',
            f'<path class="range {kind}" d="M{x(low):.0f},{y + 10}H{x(high):.0f}"/>',
            f'<circle class="{kind}" cx="{x(mean):.0f}" cy="{y + 10}" r="6"/>',
            f'<text x="{x(high) + 8:.0f}" y="{y + 15}">{f"{mean:.3f}"[1:]}</text>',
        ]
    (FOLDER / "results.svg").write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


if __name__ == "__main__":
    main()
