"""What the compilers of TPUs and GPUs that are not here say: `python tests/benchmarks/aot.py
[--targets=A,B] [--sizes=A,B] [--programs=A,B]`

Compiles every program of the recipes that aot.jsonl does not hold yet, each in a process of its
own, and writes the table into compilers.md. A run that was stopped goes on. `--again` compiles what
is there once more, `--table` only writes the table. Needs `pip install -e '.[aot]'`.
"""

import argparse
import importlib.metadata
import json
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["JAX_PLATFORMS"] = "cpu"  # the machine's own devices stay free

import aot_programs
import jax
from support import program_text

from ark_jax.estimate import steps, targets
from ark_jax.runtime.device_memory import device_memory

HERE = Path(__file__).parent
CELLS, PAGE = HERE / "aot.jsonl", HERE / "compilers.md"
BEGIN, END = "<!-- begin of aot.py's table -->", "<!-- end of aot.py's table -->"
SIZES = ("0.6B", "4B", "8B")
NAMES = ("v5e-8", "v5e-256", "v6e-256", "v5p-64", "h100", "h100x8")
TARGETS = {name: targets.target(name) for name in NAMES}
# Functions with loops over layers, in which weights must travel, and over pieces of a batch.
OVER_WEIGHTS = {"Decoder.layers", "Encoder.__call__", "encode_pieces", "summed"}
Cell = tuple[str, str, str]  # target, size, program


def row(target: str, size: str, name: str) -> dict:
    """What the compiler says about a program; all bytes are of one device."""
    found = {"target": target, "size": size, "program": name, "jax": jax.__version__}
    is_tpu = TARGETS[target].device.platform == "tpu"
    compiler = "libtpu" if is_tpu else "jax-cuda13-pjrt"
    found["compiler"] = f"{compiler} {importlib.metadata.version(compiler)}"
    found["memory"] = device_memory()
    start = time.perf_counter()
    try:
        program = aot_programs.program(name, size)
        found |= {"note": program.note, "predicted": program.predicted, "attends": program.attends}
        compiled = program.lower().compile()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return found | {"compiles": False, "error": text[:2000], "seconds": _since(start)}
    sizes, text = compiled.memory_analysis(), compiled.as_text()
    moves = program_text.collectives(text, program.rounds)
    return found | {
        "compiles": True,
        "seconds": _since(start),
        "held": steps.held(compiled),
        "peak": sizes.peak_memory_in_bytes,
        "outputs": sizes.output_size_in_bytes,
        "aliased": sizes.alias_size_in_bytes,
        "moved": moved_by_loop(moves),
        "weights_in_loops": weights_in_loops(moves, program.weights),
        "kernels": program_text.kernels(text),
    }


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 1)


def short(function: str) -> str:
    """`a.<locals>.b` -> `b`, `A.b` -> `A.b`."""
    return function.rpartition("<locals>.")[2]


def moved_by_loop(moves: Sequence[program_text.Moved]) -> dict[str, list]:
    """Our loops around it, with their rounds -> bytes that a device receives, and operations."""
    totals: dict[str, list] = defaultdict(lambda: [0, 0])
    for move in moves:
        ours = [loop for loop in move.loops if loop.function]
        name = ", ".join(f"{loop.rounds or '?'} x {short(loop.function)}" for loop in ours)
        totals[name][0] += round(move.received)
        totals[name][1] += move.times
    return dict(totals)


def weights_in_loops(moves: Sequence[program_text.Moved], weights: Any) -> list[str]:
    """Weights, or parts of a device's, that travel in each round of a loop over positions."""
    numbers = weight_numbers(weights)
    found: Counter[str] = Counter()
    for move in moves:
        over = [short(x.function) for x in move.loops if x.function]
        others = [name for name in over if name not in OVER_WEIGHTS]
        if others and math.prod(move.shape) in numbers:
            found[f"{others[0]}: {move.kind} {list(move.shape)}"] += move.times
    return [f"{name}, {times} times" for name, times in sorted(found.items())]


def weight_numbers(weights: Any) -> set[int]:
    """How many numbers the matrices of a model have, and a device's share of each."""
    numbers = set()
    for path, x in jax.tree_util.tree_flatten_with_path(weights)[0]:
        shapes = [x.shape, x.sharding.shard_shape(x.shape)]
        if "blocks" in jax.tree_util.keystr(path):
            shapes = [shape[1:] for shape in shapes]  # one layer of the stack
        if len(shapes[0]) > 1:
            numbers |= set(map(math.prod, shapes))
    return numbers


def predicted(found: dict) -> float:
    """Bytes that the package predicts now for the program of a row; 0 if it predicts none."""
    if found["program"] not in aot_programs.PREDICTED:
        return 0
    choice = re.match(r"remat=(\w+), (\d+) piece", found.get("note", ""))
    choices = {"remat": choice[1], "pieces": int(choice[2])} if choice else {}
    with targets.assumed(TARGETS[found["target"]]):
        return aot_programs.program(found["program"], found["size"], **choices).predicted


# --- the table ----------------------------------------------------------------------------------


def gib(size: float) -> str:
    return f"{size / 2**30:.2f}"


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g}"


def refusal(error: str) -> str:
    """The compiler's reason in a few words."""
    if used := re.search(r"Used (\S+) of (\S+) hbm", error):
        return f"no: takes {used[1]} of {used[2]}"
    return "no: " + " ".join(error.split())[:160].replace("|", "/")


def table(rows: Sequence[dict]) -> str:
    lines = [
        "| program | size | on | compiles, s | held, peak GiB | predicted | received GB, once "
        "| in loops | flash kernels | donated |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    order = {name: i for i, name in enumerate(aot_programs.PROGRAMS)}
    key = lambda x: (order[x["program"]], x["size"], NAMES.index(x["target"]))
    for x in sorted(rows, key=key):
        choice = x.get("note", "").partition(":")[0]
        cells = [", ".join(filter(None, (x["program"], choice))), x["size"], x["target"]]
        bytes_now = predicted(x)
        shown = gib(bytes_now) if bytes_now else ""
        if bytes_now and x["compiles"]:
            shown += f", {bytes_now / x['held'] - 1:+.0%}"
        if not x["compiles"]:
            cells += [refusal(x["error"]), "", shown, "", "", "", ""]
        else:
            loops = {name: size for name, (size, _) in x["moved"].items() if name}
            once = x["moved"].get("", [0])[0]
            faults = " **weights**" if x["weights_in_loops"] else ""
            flash = flash_kernels(x)
            # A GPU's compiler accepts what does not fit.
            room = " **too much**" if x["held"] > x["memory"] else ""
            cells += [
                f"{x['seconds']:.0f}",
                f"{gib(x['held'])}, {gib(x['peak'])}" + room,
                shown,
                gigabytes(once),
                "; ".join(f"{name}: {gigabytes(size)}" for name, size in loops.items()) + faults,
                str(flash) if flash or not x["attends"] else "**none**",
                f"{x['aliased'] / x['outputs']:.0%}" if x["aliased"] else "",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def flash_kernels(found: dict) -> int:
    """How many calls of a library's attention a program has."""
    return sum(n for name, n in found["kernels"].items() if re.search("splash|fmha|flash", name))


def write_table(rows: Sequence[dict]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}", encoding="utf-8")


# --- running ------------------------------------------------------------------------------------


def stored() -> dict[Cell, dict]:
    """The newest row of each cell."""
    rows = map(json.loads, CELLS.read_text(encoding="utf-8").splitlines()) if CELLS.exists() else ()
    return {(x["target"], x["size"], x["program"]): x for x in rows}


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """The chosen cells, the smallest models first; a program without sizes comes once."""
    chosen = lambda given, default: given.split(",") if given else default
    for number, size in enumerate(chosen(options.sizes, SIZES)):
        for target in chosen(options.targets, TARGETS):
            for program in options.program or aot_programs.PROGRAMS:
                if program not in aot_programs.ALONE:
                    yield target, size, program
                elif number == 0:
                    yield target, "", program


def compile_apart(cell: Cell, minutes: float) -> dict:
    """A cell's row, by a process of its own, which the compiler may end."""
    command = [sys.executable, __file__, "--compile", *cell]
    start = time.perf_counter()
    error = f"not within {minutes:g} minutes"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * minutes)
        for line in done.stdout.splitlines():
            if line.startswith('{"target"'):
                return json.loads(line)
        error = f"the compiler ended with status {done.returncode}: {done.stderr[-500:]}"
    except subprocess.TimeoutExpired:
        pass
    names = dict(zip(("target", "size", "program"), cell, strict=True))
    return names | {"compiles": False, "error": error, "seconds": _since(start)}


def compile_here(target: str, size: str, names: Sequence[str]) -> None:
    """Prints a row of each program."""
    with targets.compiling_for(TARGETS[target]):
        for name in names:
            print(json.dumps(row(target, size, name)), flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", help=", ".join(TARGETS))
    parser.add_argument("--sizes", help=", ".join(SIZES))
    parser.add_argument("--program", action="append", help=" | ".join(aot_programs.PROGRAMS))
    parser.add_argument("--again", action="store_true", help="compile stored cells once more")
    parser.add_argument("--table", action="store_true", help="write the table only")
    parser.add_argument("--minutes", type=float, default=30, help="limit of one program")
    parser.add_argument("--compile", nargs="+", help="print rows: TARGET SIZE PROGRAM...")
    options = parser.parse_args(arguments)
    if options.compile:
        target, size, *names = options.compile
        compile_here(target, size, names)
        return 0
    known = stored()
    for cell in [] if options.table else cells(options):
        if reason := targets.absence(TARGETS[cell[0]]):
            print(f"{cell[0]}: {reason}", file=sys.stderr)
        elif cell not in known or options.again:
            known[cell] = compile_apart(cell, options.minutes)
            with CELLS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known[cell]) + "\n")
            print(*cell, known[cell]["seconds"], known[cell].get("error", "")[:200], flush=True)
            write_table(list(known.values()))
    write_table(list(known.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
