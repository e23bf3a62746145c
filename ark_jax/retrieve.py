"""`ark-jax retrieve`: the triples of a graph that fit the questions of a file, as JSONL."""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from ark_jax.runtime import log, storage

BATCH = 1024  # questions that are searched and written at once


@dataclasses.dataclass(frozen=True)
class Request:
    """What the flags ask for.

    Attributes:
        model: folder or hub name.
        graph: file, folder or glob of triples.
        questions: file or glob.
        index: folder of the graph's vectors.
        names: file of names of nodes; empty for none. `relation_names` likewise.
        relations: how a relation is written, "last" or "whole".
        k: number of triples for each question.
        hops: longest chain of triples, see `triple_walk.walk`.
    """

    model: str
    graph: str
    questions: str
    index: Path
    names: str
    relation_names: str
    relations: str
    k: int
    hops: int


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"bad flag: {message}; `ark-jax --help` shows how it is used")


def parse(args: Sequence[str]) -> Request:
    """The request of the verb's flags.

    Raises:
        ValueError: a flag is unknown, missing or has a bad value.
    """
    parser = _Parser(prog="ark-jax retrieve", add_help=False, allow_abbrev=False)
    for name in ("model", "graph", "questions"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("index", "names", "relation-names"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--relations", choices=("last", "whole"), default="last")
    for name, default in (("k", 20), ("hops", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    flags = parser.parse_args(args)
    for name in ("k", "hops"):
        if getattr(flags, name) < 1:
            raise ValueError(f"bad flag: --{name}={getattr(flags, name)}: must be at least 1")
    folder = flags.index or _default_index(flags.model, flags.graph)
    return Request(**vars(flags) | {"index": Path(folder).expanduser().absolute()})


def _default_index(model: str, graph: str) -> Path:
    """A folder of the cache for each model and graph. The model's own folder may be read-only."""
    place = lambda name: name if "://" in name else str(Path(name).expanduser().absolute())
    names = json.dumps([model if storage.is_hub_name(model) else place(model), place(graph)])
    digest = hashlib.sha256(names.encode()).hexdigest()[:16]
    return storage.cache_folder() / "triple_indices" / digest


def write_triples(request: Request) -> None:
    """Writes a line for each question to the standard output, and what is logged to stderr.

    If the reader of the output goes away, this ends quietly.

    Raises:
        BadInput: a file has problems; it lists all of them.
        OSError, ValueError: the model, the graph or the index cannot be used.
    """
    rows, log_lines = sys.stdout, sys.stderr
    if hasattr(rows, "reconfigure"):
        rows.reconfigure(encoding="utf-8")  # as all JSON, whatever the terminal
    with contextlib.redirect_stdout(log_lines):
        for lines in _lines(request):
            try:
                with contextlib.redirect_stdout(rows):
                    log.show(lines)
            except BrokenPipeError:
                # Python would complain when it flushes at its end.
                os.dup2(os.open(os.devnull, os.O_WRONLY), rows.fileno())
                return


def _lines(request: Request) -> Iterator[str]:
    """The lines of a batch of questions after the other."""
    from ark_jax.data.records import BadInput
    from ark_jax.graph.triple_questions import read_questions
    from ark_jax.graph.triple_retriever import TripleRetriever
    from ark_jax.graph.triple_walk import WalkRules
    from ark_jax.graph.triples import Triples

    questions, findings = read_questions(request.questions)
    if findings.problems:
        raise BadInput(findings.problems)
    for remark in findings.remarks:
        log.say(f"  {remark}")
    names = request.names or None, request.relation_names or None
    graph = Triples.read(request.graph, names=names[0], relation_names=names[1])
    log.say(f"  index: {request.index}; --index=DIR names another folder")
    retriever = TripleRetriever.from_pretrained(
        request.model, graph, request.index, by=request.relations
    )
    with log.Progress("search", len(questions), "questions") as bar:
        for start in range(0, len(questions), BATCH):
            batch = questions[start : start + BATCH]
            asked = [question.question for question in batch]
            found = retriever.search(asked, k=request.k, rules=WalkRules(hops=request.hops))
            yield "".join(map(_line, batch, found))
            bar.add(len(batch))


def _line(question, triples) -> str:
    row = {
        "id": question.id,
        "question": question.question,
        "triples": [[*triple[:3], round(triple.score, 6)] for triple in triples],
    }
    return json.dumps(row, ensure_ascii=False) + "\n"
