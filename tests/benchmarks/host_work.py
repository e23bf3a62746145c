"""What worker processes save: `python tests/benchmarks/host_work.py [COPIES [ROUNDS]]`.

The stages data and extract (rules), and then the counting of words for BM25, on COPIES of
FairytaleQA's stories in $ARK_DATA: by one process and by a pool of one worker for each core, in
turn. 33 copies are 1e5 chunks. Clock and CPU seconds are given, and the load, since other programs
may run beside. Both must write the same bytes.
"""

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import machine

from ark_jax.data import readers
from ark_jax.data.spool import StoredChunks
from ark_jax.demo.models import demo_models
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark.config import ark
from ark_jax.recipes.ark.extract import extract
from ark_jax.recipes.documents.ingest import ingest
from ark_jax.retrieval.bm25_index import write_bm25
from ark_jax.runtime import map_shards
from ark_jax.runtime.log import Metrics


def write_corpus(folder: Path, copies: int) -> None:
    """The stories, each `copies` times under other ids, and one question."""
    corpus = readers.load(Path(os.environ["ARK_DATA"], "fairytaleqa"))
    with (folder / "documents.jsonl").open("w") as file:
        for copy in range(copies):
            for story in corpus.documents:
                row = {"id": f"{story.id}-{copy}", "title": story.title, "text": story.text}
                file.write(json.dumps(row) + "\n")
    question = next(question for question in corpus.questions if question.answers)
    asked = {"id": "q", "question": question.question, "answers": list(question.answers)}
    asked["documents"] = [f"{question.documents[0]}-0"]
    (folder / "questions.jsonl").write_text(json.dumps(asked) + "\n")


def measure(corpus: str, processes: str) -> None:
    """Prints what each part takes by so many processes, as JSON."""
    map_shards.cores = lambda: int(processes)
    import transformers  # noqa: F401, which a run imports in any case

    c = ark()
    c.retriever.path, c.data.path = demo_models()["retriever"], corpus
    c.questions.source = "written"
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        context = Context(c, Path(folder), Metrics(Path(folder, "metrics.jsonl")))
        for name, run in (("data", ingest), ("extract", extract), ("words", count_words)):
            (context / name).mkdir()
            begun, used = time.perf_counter(), _cpu()
            run(context, context / name)
            seconds = time.perf_counter() - begun
            cpu = [after - before for before, after in zip(used, _cpu(), strict=True)]
            figures[name] = [seconds, *cpu, os.getloadavg()[0]]
        digest = hashlib.sha256()
        for path in sorted(Path(folder).rglob("*.*")):
            digest.update(path.read_bytes())
    print(json.dumps([figures, digest.hexdigest()]))


def count_words(context: Context, folder: Path) -> None:
    write_bm25(folder, (chunk.passage for chunk in StoredChunks(context / "data")))


def _cpu() -> list[float]:
    """CPU seconds of this process and of its workers that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return [sum(resource.getrusage(kind)[:2]) for kind in kinds]


def compare(copies: int = 33, rounds: int = 1) -> None:
    print(f"{machine()}; {copies} copies\n")
    print("| part | processes | clock | CPU of the first | CPU of the others | load |")
    print("|---|---|---|---|---|---|")
    digests, cores = set(), map_shards.cores()
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder), copies)
        for processes in (1, cores) * rounds:
            command = [sys.executable, __file__, "measure", folder, str(processes)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            figures, digest = json.loads(done.stdout.splitlines()[-1])
            digests.add(digest)
            for part, row in figures.items():
                cells = (f"{figure:.1f}" for figure in row)
                print(f"| {part} | {processes} | {' | '.join(cells)} |", flush=True)
    assert len(digests) == 1, "one process and several write different bytes"


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(*sys.argv[2:])
    else:
        compare(*map(int, sys.argv[1:]))
