"""What a compiled program's text (HLO) says: loops, what travels in them, kernels.

XLA:CPU writes how often a loop runs. TPU and GPU compilers leave it to the loop's condition, where
`_rounds` reads it. Where a loop stands in our source is in the tables at the head of the text.
"""

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
CALLS = (
    r"\b(body|condition|calls|to_apply|branch_computations|true_computation|false_computation)"
    r"=\{?(%[\w.-]+(?:, %[\w.-]+)*)"
)


class Loop(NamedTuple):
    """A loop around an instruction.

    Attributes:
        function: of our source that has the loop, such as "Decoder.layers"; "" if the compiler made
            it.
        rounds: how often it runs at most; None if its text does not say.
    """

    function: str
    rounds: int | None


class Moved(NamedTuple):
    """An array that devices exchange.

    Attributes:
        shape, bytes: as a device ends up with it.
        times: how often a run of the program moves it; a loop of unknown rounds counts as one.
        devices: that exchange it among each other.
        loops: around it, the outermost first.
    """

    kind: str
    shape: tuple[int, ...]
    bytes: int
    times: int
    devices: int
    loops: tuple[Loop, ...] = ()

    @property
    def received(self) -> float:
        """Bytes that come into a device: what it ends up with and did not have, each time.

        A sum is scattered, then gathered.
        """
        if self.kind == "collective-permute":
            return self.times * self.bytes
        if self.kind == "reduce-scatter":
            return self.times * self.bytes * (self.devices - 1)
        sent = 2 if self.kind == "all-reduce" else 1
        return self.times * self.bytes * (self.devices - 1) / self.devices * sent


class _Line(NamedTuple):
    """An instruction, and the computation that it stands in."""

    computation: str
    text: str


def collectives(text: str, rounds: int | None = None) -> list[Moved]:
    """Every array that devices exchange in a compiled program, where it stands in it.

    XLA joins several into one operation, so arrays are counted; an all-to-all, whose pieces are of
    one shape, once. Not those among one device only.

    Args:
        rounds: of a loop whose text does not say them.
    """
    lines = _instructions(text)
    callers = _callers(text, lines, rounds)
    # A TPU's compiler spreads one collective over several fused computations.
    fused = {name for line in lines if " fusion(" in line.text for _, name in _called(line.text)}
    seen: set[str] = set()
    moves = []
    for computation, line in lines:
        match = re.search(rf" = (.*?) ({KINDS})(-start)?\(", line)
        if not match or _participants(line) < 2:
            continue
        channel = re.search(r"channel_id=(\d+)", line)
        if computation in fused and channel:
            if channel[1] in seen:
                continue
            seen.add(channel[1])
        kind, devices = match[2], _participants(line)
        # So it calls a sum of which each device keeps a part.
        scattered = kind == "all-reduce" and computation.startswith("all-reduce-scatter")
        for shape, size in _results(match[1], kind, bool(match[3])):
            arrays = (
                ("reduce-scatter", shape, size // devices) if scattered else (kind, shape, size)
            )
            for loops, count in sorted(_paths(callers, computation).items()):
                times = count * math.prod(loop.rounds or 1 for loop in loops)
                moves.append(Moved(*arrays, times, devices, loops))
    return moves


def kernels(text: str) -> Counter[str]:
    """How often each kernel of a library stands in a program, by its name."""
    found: Counter[str] = Counter()
    for match in re.finditer(r'%([\w.$-]+) = .*custom_call_target="([^"]+)"', text):
        is_pallas = match[2] in ("tpu_custom_call", "__gpu$xla.gpu.triton")
        found[re.sub(r"[.\d]+$", "", match[1]) if is_pallas else match[2]] += 1
    return found


def _instructions(text: str) -> list[_Line]:
    lines, computation = [], ""
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%(\S+) \(.*\{$", line):
            computation = head[1]
        elif line.startswith("  ") and computation:
            lines.append(_Line(computation, line))
    return lines


def _called(line: str) -> Iterator[tuple[str, str]]:
    """(in which role, computation) for each that an instruction calls."""
    if re.search(r"-(?:done|update)\(", line):
        return  # they name what their start has called
    for role, names in re.findall(CALLS, line):
        for name in names.split(", "):
            yield role, name.removeprefix("%")


def _callers(
    text: str, lines: list[_Line], rounds: int | None
) -> dict[str, list[tuple[str, Loop | None]]]:
    """Computation -> who calls it, and the loop whose body it is there."""
    functions = _functions(text)
    bodies: dict[str, list[str]] = defaultdict(list)
    for computation, line in lines:
        bodies[computation].append(line)
    callers: dict[str, list[tuple[str, Loop | None]]] = defaultdict(list)
    for computation, line in lines:
        called = list(_called(line))
        for role, name in called:
            loop = None
            if role == "body":
                known = _rounds(line, bodies[computation], bodies, dict(called))
                loop = Loop(_function(line, functions), rounds if known is None else known)
            callers[name].append((computation, loop))
    return callers


def _paths(callers: dict, computation: str) -> Counter[tuple[Loop, ...]]:
    """The loops around a computation, the outermost first, and how many calls have these."""

    @functools.cache
    def paths(name: str) -> Counter[tuple[Loop, ...]]:
        if name not in callers:
            return Counter({(): 1})
        found: Counter[tuple[Loop, ...]] = Counter()
        for caller, loop in callers[name]:
            for loops, count in paths(caller).items():
                found[loops + ((loop,) if loop else ())] += count
        return found

    return paths(computation)


def _rounds(
    line: str, around: list[str], bodies: dict[str, list[str]], called: dict[str, str]
) -> int | None:
    """How often a loop runs at most: as its line says, else from first, last and step of a counter.

    Args:
        around: the computation that the loop stands in.
        called: the loop's body and condition.
    """
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', line):
        return int(known[1])
    condition, body = (_Definitions(bodies[called[x]]) for x in ("condition", "body"))
    for compared in condition.operands(" compare", "direction=LT"):
        limit = condition.constant(compared[1])
        counter = re.search(r"get-tuple-element\(.*index=(\d+)", condition.text(compared[0]))
        if limit is not None and counter:
            place = int(counter[1])
            start = re.search(r" while\(%([\w.-]+)\)", line)
            first = _Definitions(around).element(start[1] if start else "", place)
            step = body.step(body.element(body.root, place))
            return -(-(limit - (_Definitions(around).constant(first) or 0)) // step)
    return None


class _Definitions:
    """The instructions of a computation, by name."""

    def __init__(self, lines: list[str]):
        self.root, self._texts = "", {}
        for line in lines:
            if found := re.match(r" +(ROOT )?%([\w.-]+) = ", line):
                self._texts[found[2]] = line
                self.root = found[2] if found[1] else self.root

    def text(self, name: str) -> str:
        """An instruction; of a copy, what is copied."""
        line = self._texts.get(name, "")
        copied = re.search(r" (?:copy|bitcast)\(%([\w.-]+)\)", line)
        return self.text(copied[1]) if copied else line

    def operands(self, operation: str, *also: str) -> Iterator[list[str]]:
        """Those of each instruction of a kind."""
        for line in self._texts.values():
            found = re.search(rf"{operation}\(([^)]*)\)", line)
            if found and all(x in line for x in also):
                yield re.findall(r"%([\w.-]+)", found[1])

    def constant(self, name: str) -> int | None:
        found = re.search(r" constant\((\d+)\)", self.text(name))
        return int(found[1]) if found else None

    def element(self, name: str, place: int) -> str:
        """The name of a tuple's element; "" if it is not made here."""
        found = re.search(r" tuple\(([^)]*)\)", self.text(name))
        return re.findall(r"%([\w.-]+)", found[1])[place] if found else ""

    def step(self, name: str) -> int:
        """What a counter's new value adds to the old one; 1 if it is not found."""
        added = re.search(r" add\(%([\w.-]+), %([\w.-]+)\)", self.text(name))
        steps = [self.constant(x) for x in added.groups()] if added else []
        return next(filter(None, steps), 1)


def _functions(text: str) -> dict[str, str]:
    """Number of a stack frame -> the function of our source that it is in."""

    def table(name: str) -> dict[str, str]:
        found = re.search(rf"^{name}\n((?:\d+ .*\n)+)", text, re.M)
        return dict(row.split(" ", 1) for row in found[1].splitlines()) if found else {}

    functions, places = table("FunctionNames"), table("FileLocations")
    place = lambda frame: places[re.search(r"file_location_id=(\d+)", frame)[1]]
    return {
        number: functions[re.search(r"function_name_id=(\d+)", place(frame))[1]].strip('"')
        for number, frame in table("StackFrames").items()
    }


def _function(line: str, functions: dict[str, str]) -> str:
    """The function of our source that has a loop; "" if the compiler made the loop."""
    ours = re.search(r'op_name="[^"]*while"', line)
    frame = re.search(r"stack_frame_id=(\d+)", line)
    return functions.get(frame[1], "") if ours and frame else ""


def _results(kind_of_result: str, kind: str, starts: bool) -> list[tuple[tuple[int, ...], int]]:
    """Shape and bytes of each array that a collective gives."""
    arrays = [
        (shape, _width(name) * math.prod(shape))
        for name, sizes in re.findall(r"([a-z]+\d*\w*)\[([\d,]*)\]", kind_of_result)
        for shape in [tuple(map(int, filter(None, sizes.split(","))))]
    ]
    if starts and kind != "all-reduce":
        # Inputs come first, results next, the numbers of semaphores last.
        arrays = [x for x in arrays if x[0]]
        arrays = arrays[len(arrays) // 2 :]
    if kind == "all-to-all":
        arrays = [(arrays[0][0], sum(size for _, size in arrays))]
    return arrays


def _width(name: str) -> int:
    """Bytes of a number of a type, such as bf16 or pred."""
    bits = re.search(r"\d+", name)
    return max(int(bits[0]) // 8, 1) if bits else 1


def _participants(line: str) -> int:
    """How many devices take part in one group; HLO writes groups in three ways."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return listed[1].count(",") + 1
    if grid := re.search(r"replica_groups=\[\d+,(\d+)\]<=", line):
        return int(grid[1])
    if named := re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^)]*\)\))? \{([^}]*)\}", line
    ):
        sizes = dict(part.split("=") for part in named[1].split(","))
        return math.prod(int(sizes[axis.strip()]) for axis in named[2].split(","))
    return 2  # a permutation names pairs
