"""The table of speeds: `python tests/benchmarks/all.py [SCRIPT ...] [--again] [--table]`

Runs each benchmark that has a peer, in a process of its own, and writes the table into README.md.
speeds.jsonl keeps every row with its machine and day, so a run that was stopped goes on. Names of
scripts run these alone. `--again` takes new figures, `--table` only writes the table. Needs `pip
install -e '.[reference]'` and, for all peers, what README.md names; some 40 minutes of two quiet
cores.
"""

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from timing import ROWS, machine

HERE = Path(__file__).parent
README, KEPT = HERE / "README.md", HERE / "speeds.jsonl"
BEGIN, END = "<!-- begin of all.py's table -->", "<!-- end of all.py's table -->"
LIMIT = 600  # seconds of a command
# Commands, the most important one first, with the sizes at which they take some minutes.
COMMANDS = (
    "ARK_BENCH_TEXTS=40 engines.py",
    "language.py score",
    "models.py train",
    "ROUNDS=3 serve.py 128",
    "ARK_BENCH_PROMPTS=4 ARK_BENCH_NEW=64 language.py generate",
    "ARK_BENCH_BATCHES=1,64 pagerank.py thousand fb15k237",
    "ASKED=200 search.py words late",
    "ARK_BENCH_QUESTIONS=16 trainer.py steps",
    "NODES=10000 QUERIES=1000 KEYS=50000 search.py similar topk",
    "ARK_BENCH_PAIRS=100 pairs.py score",
    "ARK_BENCH_PROMPTS=2 rollout.py",
    "PROMPTS=1 SAMPLES=4 policy.py gradient",
    "communities.py 40000",
    "ROUNDS=3 LISTS=32 list_training.py",
    "ROUNDS=3 QUESTIONS=128 triple_training.py metaqa",
    "ROUNDS=3 SAMPLE=1000 QUERIES=500 triple_search.py embed topk",
    "QUESTIONS=12 ROUNDS=3 path_search.py beam",
    "ROUNDS=3 kg.py graph paths",
    "KEYS=200000 search.py few",
    "ARK_BENCH_BATCHES=64 pagerank.py hundred_thousand",
)


def measure(command: str) -> list[dict]:
    """The rows that a command's script reports, whether it ends well or not."""
    *settings, script, arguments = _parts(command)
    rows = HERE / f".{Path(script).stem}.jsonl"
    rows.unlink(missing_ok=True)
    environment = os.environ | dict(x.split("=", 1) for x in settings) | {ROWS: str(rows)}
    environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else it forks a process of JAX's threads
    print(f"\n## {command}", flush=True)
    start, line = time.monotonic(), [sys.executable, HERE / script, *arguments.split()]
    process = subprocess.Popen(line, env=environment, start_new_session=True)
    try:
        status = f"ended with {process.wait(LIMIT)}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own processes too
        process.wait()
        status = f"was stopped after {LIMIT / 60:.0f} minutes, its limit"
    found = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    rows.unlink(missing_ok=True)
    minutes = (time.monotonic() - start) / 60
    print(f"## {command} {status}: {len(found)} rows, {minutes:.1f} minutes", flush=True)
    day, kind = datetime.date.today().isoformat(), machine()
    return [{"command": command, "day": day, "machine": kind, **row} for row in found]


def _parts(command: str) -> list[str]:
    """`A=1 x.py y z` -> `A=1`, `x.py`, `y z`."""
    words = command.split()
    place = next(i for i, word in enumerate(words) if word.endswith(".py"))
    return [*words[: place + 1], " ".join(words[place + 1 :])]


def table(rows: list[dict]) -> Iterator[str]:
    """A line for each piece of work; where a contender is faster, its ratio is bold."""
    for kind, day in dict.fromkeys((row["machine"], row["day"]) for row in rows):
        yield f"\n{kind}, {day}:\n"
        yield "| work | ours | roof | peer as shipped | peer at its best | others | by |"
        yield "|---|---|---|---|---|---|---|"
        for row in (x for x in rows if (x["machine"], x["day"]) == (kind, day)):
            yield f"| {' | '.join(cell.replace('|', '/') for cell in _cells(row))} |"


def _cells(row: dict) -> list[str]:
    """The cells of a row. The best peer is one that computes the same as the one as shipped."""
    seconds, ours = row["seconds"], row["ours"]
    show = lambda x: f"{x} {_time(seconds[x])} ({_ratio(seconds[x] / seconds[ours])})"
    peers = [x for x in seconds if not x.startswith("ark_jax") and x not in row["apart"]]
    shown = list(dict.fromkeys([peers[0], min(peers, key=seconds.__getitem__)]))
    others = [show(x) for x in seconds if x not in (ours, *shown)]
    roof = f"{row['roof']:.0%}" if row["roof"] else ""
    mine = _time(seconds[ours]) + ("" if row["clean"] else " *")
    best = "the same" if len(shown) == 1 else show(shown[1])
    return [row["work"], mine, roof, show(shown[0]), best, ", ".join(others), f"`{row['command']}`"]


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
    rows = [row for row in rows if row["command"] in COMMANDS]
    for command in () if options.table else COMMANDS:
        if options.scripts and _parts(command)[-2] not in options.scripts:
            continue
        is_kept = any(row["command"] == command for row in rows)
        if (options.again or not is_kept) and (found := measure(command)):
            rows = [row for row in rows if row["command"] != command] + found
            KEPT.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = README.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    rows.sort(key=lambda row: COMMANDS.index(row["command"]))
    README.write_text(f"{before}{BEGIN}\n{chr(10).join(table(rows))}\n\n{END}{after}")


if __name__ == "__main__":
    main()
