"""Commands that are killed, or whose disk fills up, at random moments.

`PYTHONPATH=.:tests python -m support.kills 200 14` kills two hundred and, as root, fills fourteen
disks, which lack space or inodes; a third number is the seed, names of cases follow. Each command
is then run again and must leave the bytes of one that nobody has struck. A process that has
imported everything forks each command: what is struck is its work, not its start.
"""

import contextlib
import hashlib
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from support.paths import REPOSITORY

from ark_jax import __main__
from ark_jax.data.records import Document
from ark_jax.index import folder as folders
from ark_jax.index import index, reader, writer
from ark_jax.serve import ladder

TEXTS = {f"d{i}": f"Lamp {i} was lit by the {i} keepers of tower {i}. " * 4 for i in range(12)}
OLDER = {name: TEXTS[name].upper() for name in ("d1", "d2", "d3")}
QUESTION = "Who lit lamp 3?"
STATUSES = {"SIGKILL": {-9}, "SIGTERM": {-15, 143}, "SIGINT": {-2, 130}}
IMPORTED = ("ark_jax", "flax", "jax", "numpy", "pyarrow", "scipy", "torch", "transformers")
# Times, logs, locks and what each attempt has read; a manifest has the digests of its files.
PASSING = re.compile(
    r"(^|/)(\.?lock|log\.jsonl|metrics\.jsonl|reads\.jsonl|outcome\.json|report\.html|logs/.*|"
    r"\.partial.*|results\.\w+|shared/.*|.*manifest\.json|kept/.*)$"
)
FULL = "No space left on device"
SWEEP = """
from support import pretend_stages
SWEEPS = {{"t": {{"cold": {{"train.temperature": 0.02}}}}}}
def get_config(words=""):
    return pretend_stages.pretending({world!r})
"""
RUN = """
from pathlib import Path
from support import world
def get_config(words=""):
    return world.tiny_config(Path({world!r}))
"""


class Case(NamedTuple):
    """A command, which runs in a folder.

    Attributes:
        words: of the command line; or a function that is called.
        made: the folder or file that it makes, of which bytes are compared; empty: what it prints.
        before: makes what lies in the folder before.
    """

    words: tuple[str, ...] | Callable[[], object]
    made: str
    before: Callable[[Path], object] = lambda folder: None


def write_documents(folder: Path, texts: dict[str, str]) -> None:
    rows = [{"id": name, "text": text} for name, text in texts.items()]
    (folder / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def with_index(models: Path, kind: str) -> Callable[[Path], None]:
    """A function that makes an index of older documents, which are then replaced by newer ones."""
    kept = models / f"before-{kind}"

    def prepare(folder: Path) -> None:
        if not kept.is_dir():
            (folder / "older").mkdir()
            write_documents(folder / "older", OLDER)
            words = ("index", f"{models}/{kind}", "older/documents.jsonl", "--out=i")
            done = start(words, folder).result()
            assert done.status == 0, done
            (folder / "i").rename(kept)
        shutil.copytree(kept, folder / "i")
        write_documents(folder, TEXTS)

    return prepare


def add() -> None:
    opened = index.Index.open("i")
    opened.add([Document(name, "", text) for name, text in TEXTS.items()])


def cases(models: Path) -> dict[str, Case]:
    """Commands by name; `models` holds their models."""
    fresh = lambda folder: write_documents(folder, TEXTS)
    made = lambda kind: ("index", f"{models}/{kind}", "documents.jsonl", "--out=i")

    def asked(folder: Path) -> None:
        rows = [
            {"id": f"q{i}", "question": f"Who lit lamp {i}?", "documents": [f"d{i}"]}
            for i in range(12)
        ]
        (folder / "test.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
        write_documents(folder, TEXTS)

    def swept(folder: Path) -> None:
        (folder / "corpus.jsonl").touch()
        (folder / "config.py").write_text(SWEEP.format(world=str(folder)))

    def run(folder: Path) -> None:
        (folder / "config.py").write_text(RUN.format(world=str(models)))

    systems = f"--models={models}/vectors,bm25,{models}/vectors+bm25"
    answers = (f"--reader={models}/lm", "--k=1")
    measured = ("evaluate", systems, "--data=test.jsonl", "--corpus=documents.jsonl", "--out=i")
    question = ("ask", "i", QUESTION, "--json", "--k=2", "--expand=hyde")
    words_of_sweep = ("sweep", "--config=config.py:sweep=t", "--workdir=i", "--yes")
    return {
        "index": Case(made("vectors"), "i", fresh),
        "index of tokens": Case(made("tokens"), "i", fresh),
        "index of other documents": Case(made("vectors"), "i", with_index(models, "vectors")),
        "add": Case(add, "i", with_index(models, "vectors")),
        "ask": Case((*question, f"--reader={models}/lm"), "", with_index(models, "vectors")),
        "evaluate": Case((*measured, *answers), "i", asked),
        "sweep": Case(words_of_sweep, "i", swept),
        "serve": Case((), "", with_index(models, "vectors")),
        "run": Case(("run", "--config=config.py", "--workdir=i", "--yes"), "i", run),
    }


class Done(NamedTuple):
    status: int
    out: str
    err: str


class Started(NamedTuple):
    """A forked command."""

    pid: int
    out: Path
    err: Path

    def result(self, seconds: float = 600, number: int = signal.SIGKILL) -> Done:
        """Waits for its end; after so many seconds it gets this signal."""
        deadline, struck = time.monotonic() + seconds, False
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            if not struck and time.monotonic() >= deadline:
                # A kill takes all processes: a scheduler's SIGTERM and a Ctrl-C reach the first.
                os.killpg(self.pid, number) if number == signal.SIGKILL else os.kill(
                    self.pid, number
                )
                struck = True
            time.sleep(0.002)
        status = os.waitstatus_to_exitcode(ended[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in self[1:]]
        return Done(status, *texts)


def start(words: tuple[str, ...] | Callable[[], object], folder: Path, **variables: str) -> Started:
    """Starts a command in a folder, with a cache of its own there but for compiled programs."""
    said = Path(tempfile.mkdtemp(prefix="said-", dir=os.environ["KILLS"]))
    (said / "out").touch()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Started(pid, said / "out", said / "err")
    try:
        os.setpgid(0, 0)
        for number, name in enumerate(("out", "err"), 1):
            os.dup2(os.open(said / name, os.O_CREAT | os.O_WRONLY), number)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(os.fdopen(os.dup(n), "wb", 0), write_through=True) for n in (1, 2)
        )
        os.chdir(folder)
        os.environ |= {"ARK_CACHE": str(folder / "cache")} | variables
        if callable(words):
            words()
        else:
            sys.argv = ["ark-jax", *words]
            __main__.main()
    except SystemExit as end:
        (said / "modules").write_text("\n".join(sys.modules))
        os._exit(end.code or 0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def import_all(names: Path) -> None:
    """Imports what a command has imported, before the next is forked."""
    for name in names.read_text().split("\n") if names.is_file() else ():
        if name not in sys.modules and name.partition(".")[0] in IMPORTED:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def digests(place: Path) -> dict[str, str]:
    """file -> digest, of all files that say neither how long something took nor that it waits."""
    files = (path for path in sorted(place.rglob("*")) if path.is_file())
    names = (str(path.relative_to(place)) for path in files)
    return {
        name: hashlib.sha256((place / name).read_bytes()).hexdigest()
        for name in names
        if not PASSING.search(name)
    }


def outcome(case: Case, folder: Path, done: Done) -> object:
    """What must be the same whatever happened before."""
    if not case.made:
        return done.out
    return digests(folder / case.made)


class World:
    """Models, cases, what each makes when nothing happens, and how long that takes."""

    def __init__(self, root: Path):
        self.root, self.models = root, root / "models"
        os.environ["KILLS"] = str(root)
        (root / "xla").mkdir()
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": str(root / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "TRANSFORMERS_VERBOSITY": "error",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}",
        }
        made = subprocess.run(
            [sys.executable, "-c", MODELS, str(self.models)], capture_output=True, text=True
        )
        assert made.returncode == 0, made.stderr
        self.cases = cases(self.models)
        self.expected = {}

    def folder(self, name: str) -> Path:
        """A new folder in which a case can start; all have the same path."""
        folder = self.root / "w" / "f"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.cases[name].before(folder)
        return folder

    def measure(self, name: str) -> tuple[object, float]:
        """What a case makes when nothing happens, and in what time."""
        if name not in self.expected:
            for _ in range(2):  # the first compiles, and tells what to import
                folder, began = self.folder(name), time.monotonic()
                started = start(self.cases[name].words, folder)
                done = started.result()
                assert done.status == 0, done
                import_all(started.out.with_name("modules"))
                seconds = time.monotonic() - began
                made = outcome(self.cases[name], folder, done)
            assert made, name
            self.expected[name] = made, seconds
        return self.expected[name]

    def check_again(self, name: str, folder: Path) -> list[str]:
        """Runs a case again after it was struck; what is wrong then."""
        case, (wanted, _) = self.cases[name], self.measure(name)
        again = start(case.words, folder).result()
        if again.status:
            return [f"run again: {again}"]
        found = outcome(case, folder, again)
        if found == wanted:
            return []
        if not case.made:
            return [f"other output: {found} {wanted}"]
        names = found.keys() | wanted.keys()
        return [f"{x} differs" for x in sorted(names) if found.get(x) != wanted.get(x)]

    def kill(self, name: str, draw: random.Random) -> list[str]:
        """Strikes a case at a random moment; what is wrong."""
        seconds = self.measure(name)[1]
        folder = self.folder(name)
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        if callable(self.cases[name].words):  # outside `main` signals are Python's
            number = signal.SIGKILL
        moment = draw.uniform(0, seconds)
        done = start(self.cases[name].words, folder).result(moment, number)
        expected = STATUSES[number.name] | {0}
        wrong = [] if done.status in expected or callable(self.cases[name].words) else [str(done)]
        if done.status == 0 and not callable(self.cases[name].words) and name != "sweep":
            is_made = outcome(self.cases[name], folder, done) == self.measure(name)[0]
            wrong += [] if is_made else [f"status 0, but it is not made: {done}"]
        wrong += [done.err[-3000:]] if "Traceback" in done.err else []
        wrong += self.damage(folder / "i")
        wrong += self.check_again(name, folder)
        return [f"{name}, {number.name} after {moment:.3f} s: {x}" for x in wrong]

    def damage(self, place: Path) -> list[str]:
        """What is wrong with an index; nothing if it is whole, or not there yet."""
        if not any(place.glob("index-*")) or not (place / "manifest.json").exists():
            return []
        try:
            manifest = folders.check_digests(place)
        except (OSError, ValueError) as error:
            return [f"neither the old nor the new index: {error}"]
        known = (len(OLDER), len(TEXTS))  # newer texts have the ids of the older ones
        return [] if manifest.documents in known else ["neither the old nor the new documents"]

    def serve(self, draw: random.Random, kills: int) -> list[str]:
        """Kills builds that replace a served index; it answers on, and then from the new one."""
        name = "index of other documents"
        seconds, folder, wrong = self.measure(name)[1], self.folder(name), []
        with self.server(folder) as ask:
            first = ask()
            for _ in range(kills):
                start(self.cases[name].words, folder).result(draw.uniform(0, seconds))
                wrong += [] if ask() == first else ["the server answers otherwise"]
                wrong += self.damage(folder / "i")
            wrong += self.check_again(name, folder)
            wrong += [] if ask() == first else ["the server answers otherwise at the end"]
        with self.server(folder) as ask:  # the first was killed
            wrong += ["the old index is served"] if ask() == first else []
        return [f"serve: {x}" for x in wrong]

    @contextlib.contextmanager
    def server(self, folder: Path):
        """A server of the index in a folder; a function that searches there. It is killed."""
        started = start(("serve", "i", "--port=0"), folder)
        deadline = time.monotonic() + 120
        while not (place := re.search(r"http://[\d.:]+", started.out.read_text())):
            assert time.monotonic() < deadline, started.err.read_text()
            time.sleep(0.05)
        body = json.dumps({"question": QUESTION, "k": 3}).encode()
        request = urllib.request.Request(
            f"{place[0]}/search", body, {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            yield lambda: opener.open(request, timeout=60).read()
        finally:
            started.result(0)

    def fill(self, name: str, draw: random.Random, limit: str) -> list[str]:
        """Runs a case on a disk that ends within its work; what is wrong then and after it grew."""
        case = self.cases[name]
        self.measure(name)
        disk = self.root / "w"
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
        try:
            folder = self.folder(name)
            free = lambda: shutil.disk_usage(disk).used
            count = lambda: sum(1 for _ in disk.rglob("*"))
            before = {"size": free(), "nr_inodes": count() + 1}
            assert start(case.words, folder).result().status == 0
            after = {"size": free(), "nr_inodes": count() + 1}
            folder = self.folder(name)
            room = int(before[limit] + draw.uniform(0, 1) * (after[limit] - before[limit]))
            remount = lambda value: subprocess.run(
                ["mount", "-o", f"remount,{limit}={value}", disk], check=True
            )
            remount(max(room, {"size": free() + 4096, "nr_inodes": count() + 2}[limit]))
            done = start(case.words, folder).result()
            remount({"size": 1 << 30, "nr_inodes": 100_000}[limit])
            lines = [x for x in done.err.splitlines() if "rror" in x]
            wrong = [f"a trace: {done.err[-2000:]}"] if "Traceback" in done.out + done.err else []
            if done.status and not any(
                FULL in x and ("free some space or inodes" in x or callable(case.words))
                for x in lines
            ):
                wrong.append(f"status {done.status}: {done.err[-1500:]}")
            wrong += self.damage(folder / "i") + self.check_again(name, folder)
        finally:
            subprocess.run(["umount", "-l", disk], check=True)
        return [f"{name}, {limit}={room}: {x}" for x in wrong]


MODELS = """
import sys
from pathlib import Path
from support import tiny, world
root = Path(sys.argv[1])
root.mkdir()
world.make_world(root)
tiny.retrievers(root, "vectors")
tiny.multi_vector(root / "m", "tokens")
(root / "m" / "tokens").rename(root / "tokens")
changes = {"max_position_embeddings": 4096}
tiny.write(root / "lm", "llama", tokenizer="plain", changes=changes)
"""


def main(kills: int = 30, full: int = 0, seed: int | None = None, only: str = "") -> int:
    """Strikes so often, and fills so many disks; 1 if anything is wrong."""
    seed = random.randrange(1 << 32) if seed is None else int(seed)
    draw, wrong = random.Random(seed), []
    ladder.LENGTHS, ladder.ROOMS = (64,), 1
    reader.MAX_NEW_TOKENS = writer.Writer.ask.__kwdefaults__["max_new_tokens"] = 8
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root))
        # Kills of a run are in tests/pipeline/test_engine.py.
        names = [x for x in world.cases if (x in only.split(",") if only else x != "run")]
        for i in range(kills):
            name = names[i % len(names)]
            if i and i % len(names) == 0:
                print(f"{i} kills", flush=True)
            found = world.serve(draw, 1) if name == "serve" else world.kill(name, draw)
            print(*found, sep="\n", end="\n" * bool(found), flush=True)
            wrong += found
        fillable = [x for x in names if world.cases[x].words]
        for i in range(full):
            name, limit = fillable[i // 2 % len(fillable)], ("size", "nr_inodes")[i % 2]
            found = world.fill(name, draw, limit)
            print(*found, sep="\n", end="\n" * bool(found), flush=True)
            wrong += found
        print({name: f"{seconds:.1f} s" for name, (_, seconds) in world.expected.items()})
    print(f"{kills} kills, {full} full disks: {len(wrong)} faults; seed {seed}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4]), *sys.argv[4:]))
