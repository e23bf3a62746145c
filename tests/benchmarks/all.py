"""The table of speeds: `python tests/benchmarks/all.py [SCRIPT ...] [--again] [--table]`

Runs each benchmark that has a peer, in a process of its own, and writes the table into README.md.
speeds.jsonl keeps every row with its machine and day, so a run that was stopped goes on. Names of
scripts run these alone. `--again` takes new figures, `--table` only writes the table. Needs `pip
install -e '.[reference]'`, and the better part of an hour on a quiet machine.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from timing import ROWS, machine

HERE = Path(__file__).parent
README, KEPT = HERE / "README.md", HERE / "speeds.jsonl"
BEGIN, END = "<!-- begin of all.py's table -->", "<!-- end of all.py's table -->"
# A command, with the sizes at which it takes some minutes.
COMMANDS = (
    "ARK_BENCH_TEXTS=200 models.py encode queries",
    "models.py train",
    "ARK_BENCH_QUESTIONS=16 trainer.py steps",
    "language.py score generate",
    "rollout.py",
    "PROMPTS=2 policy.py gradient",
    "pagerank.py thousand fb15k237 hundred_thousand",
    "communities.py 40000",
    "search.py similar topk late words",
    "ROUNDS=3 serve.py 128",
    "kg.py graph paths",
    "path_search.py beam",
    "pairs.py score",
    "LISTS=64 list_training.py",
    "QUESTIONS=256 triple_training.py metaqa",
    "SAMPLE=2000 triple_search.py embed topk",
)


def measure(command: str) -> list[dict]:
    """The rows that a command's script reports."""
    *settings, script, arguments = _parts(command)
    rows = HERE / f".{Path(script).stem}.jsonl"
    rows.unlink(missing_ok=True)
    environment = os.environ | dict(x.split("=", 1) for x in settings) | {ROWS: str(rows)}
    print(f"\n## {command}", flush=True)
    done = subprocess.run([sys.executable, HERE / script, *arguments.split()], env=environment)
    found = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    rows.unlink(missing_ok=True)
    if done.returncode:
        print(f"{command}: ended with {done.returncode}", file=sys.stderr)
    day, kind = datetime.date.today().isoformat(), machine()
    return [{"command": command, "day": day, "machine": kind, **row} for row in found]


def _parts(command: str) -> list[str]:
    """`A=1 x.py y z` -> `A=1`, `x.py`, `y z`."""
    words = command.split()
    place = next(i for i, word in enumerate(words) if word.endswith(".py"))
    return [*words[: place + 1], " ".join(words[place + 1 :])]


def table(rows: list[dict]) -> Iterator[str]:
    """A line for each piece of work; where a peer is faster, its ratio is bold."""
    for kind, day in dict.fromkeys((row["machine"], row["day"]) for row in rows):
        yield f"\n{kind}, {day}:\n"
        yield "| work | ours | peers, and how many times faster ours is | by |"
        yield "|---|---|---|---|"
        for row in (x for x in rows if (x["machine"], x["day"]) == (kind, day)):
            seconds, ours = row["seconds"], row["ours"]
            peers = [
                f"{name} {_time(x)} ({_ratio(x / seconds[ours])})"
                for name, x in seconds.items()
                if name != ours
            ]
            mark = "" if row["clean"] else " *"
            cells = (row["work"], _time(seconds[ours]) + mark, ", ".join(peers), row["command"])
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells[:3])} | `{cells[3]}` |"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f} x" if ratio >= 1 else f"**{ratio:.2f} x**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="*", help="such as models.py; default: all")
    parser.add_argument("--again", action="store_true", help="takes new figures")
    parser.add_argument("--table", action="store_true", help="only writes the table")
    options = parser.parse_args()
    rows = [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []
    for command in () if options.table else COMMANDS:
        if options.scripts and _parts(command)[-2] not in options.scripts:
            continue
        is_kept = any(row["command"] == command for row in rows)
        if (options.again or not is_kept) and (found := measure(command)):
            rows = [row for row in rows if row["command"] != command] + found
            KEPT.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = README.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    ordered = sorted(rows, key=lambda row: _place(row["command"]))
    README.write_text(f"{before}{BEGIN}\n{chr(10).join(table(ordered))}\n\n{END}{after}")


def _place(command: str) -> int:
    return COMMANDS.index(command) if command in COMMANDS else len(COMMANDS)


if __name__ == "__main__":
    main()
