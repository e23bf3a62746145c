"""The data of the papers' tables: where files lie below $ARK_DATA, and who publishes them."""

import dataclasses
import glob
import os
from collections.abc import Iterable
from pathlib import Path

from ark_jax.data import readers
from ark_jax.data.problems import Problems
from ark_jax.data.records import Problem
from ark_jax.graph.triple_questions import read_questions
from ark_jax.graph.triples import Triples

LONGBENCH = "https://huggingface.co/datasets/THUDM/LongBench (data.zip)"
ULTRADOMAIN = "https://huggingface.co/datasets/TommyChien/UltraDomain"
BAR_RAG = "https://github.com/GasolSun36/BAR-RAG (rows with ctxs)"
ROG = "https://huggingface.co/datasets/rmanluo/RoG-"  # its rows hold graphs, too
WEBQSP = f"https://www.microsoft.com/download/details.aspx?id=52763, or {ROG}webqsp"
CWQ = f"https://www.tau-nlp.sites.tau.ac.il/compwebq, or {ROG}cwq"
GRAILQA = "https://dki-lab.github.io/GrailQA"
FREEBASE = "https://developers.google.com/freebase (a part of it, as triples), or take RoG's rows"


@dataclasses.dataclass(frozen=True)
class Source:
    """Files of a data set.

    Attributes:
        paths: patterns below $ARK_DATA, of which the first that fits files is taken.
        publisher: where its authors publish it.
        kind: what is read: "documents" with questions, "questions" over a graph, or a "graph".
    """

    paths: tuple[str, ...]
    publisher: str
    kind: str = "documents"

    @property
    def pattern(self) -> str:
        """The pattern whose files lie there, or should."""
        folder = Path(os.environ.get("ARK_DATA", "data"))
        patterns = [str(folder / path) for path in self.paths]
        return next((pattern for pattern in patterns if glob.glob(pattern)), patterns[0])

    def find(self) -> str:
        """The file of documents, or the pattern of a graph or its questions."""
        files = sorted(glob.glob(self.pattern))
        return files[0] if files and self.kind == "documents" else self.pattern


def _freebase(name: str, publisher: str, train: str, test: str) -> dict[str, Source]:
    """The questions and the graph of a data set over Freebase."""
    return {
        f"{name}-train": Source((f"{name}/*{train}*",), publisher, "questions"),
        f"{name}-test": Source((f"{name}/*{test}*",), publisher, "questions"),
        f"{name}-graph": Source((f"{name}/graph*", f"{name}/*.parquet"), FREEBASE, "graph"),
    }


LONG = ("narrativeqa", "qasper", "musique", "2wikimqa", "hotpotqa")
DOMAINS = ("biology", "fiction", "music", "technology", "philosophy")
OPEN = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
SOURCES: dict[str, Source] = {
    **{name: Source((f"longbench/{name}.jsonl",), LONGBENCH) for name in LONG},
    **{
        name: Source((f"ultradomain/{name}.jsonl",), ULTRADOMAIN)
        for name in ("fin", "legal", *DOMAINS)
    },
    **{f"bar_rag/{name}": Source((f"bar_rag/{name}.json*",), BAR_RAG) for name in ("train", *OPEN)},
    **_freebase("webqsp", WEBQSP, "train", "test"),
    **_freebase("cwq", CWQ, "train", "test"),
    **_freebase("grailqa", GRAILQA, "train", "dev"),  # its test set hides the answers
}


def find(*names: str) -> str:
    """The files of sources as settings name them: of several, with commas between."""
    return ",".join(SOURCES[name].find() for name in names)


def missing(names: Iterable[str]) -> list[str]:
    """A line for each source whose files are not there, with who publishes them."""
    absent = [SOURCES[name] for name in names if not glob.glob(SOURCES[name].pattern)]
    return [f"{source.pattern} is missing; get it from {source.publisher}" for source in absent]


def look(names: Iterable[str]) -> tuple[list[str], bool]:
    """Reads the sources: a line for each on what it holds or lacks, and whether all are good."""
    names = list(names)
    lines, is_good = missing(names), not missing(names)
    for source in (SOURCES[name] for name in names if glob.glob(SOURCES[name].pattern)):
        counts, problems, remarks = _read(source.find(), source.kind)
        if passed_over := sum(remark.rows for remark in remarks):
            counts += f", {passed_over:,} passed over"
        if problems:
            counts += f"; {problems.total:,} problem(s), the first: {problems[0]}"
        lines.append(f"{source.find()}: {counts}")
        is_good = is_good and not problems
    return lines, is_good


def _read(path: str, kind: str) -> tuple[str, Problems, list[Problem]]:
    """What a source holds, in words, its problems and remarks; arguments are those of `Source`."""
    if kind == "documents":
        corpus, problems = readers.read(path)
        counts = f"{len(corpus.documents):,} documents, {len(corpus.questions):,} questions"
        return counts, problems, corpus.remarks
    if kind == "graph":
        graph, findings = Triples.examine([path])
        return f"{len(graph):,} triples", findings.problems, findings.remarks
    asked, findings = read_questions(path)
    return f"{len(asked):,} questions", findings.problems, findings.remarks
