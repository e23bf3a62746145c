"""Describes a graph of triples, its names and its questions for `ark-jax check`."""

from pathlib import Path

from ark_jax.data import readers
from ark_jax.data.problems import Findings
from ark_jax.data.table_files import SUFFIXES, rows_of
from ark_jax.graph import triple_files
from ark_jax.graph.linked_questions import link
from ark_jax.graph.triple_questions import form_of_file, read_questions
from ark_jax.graph.triple_rows import is_questions
from ark_jax.graph.triples import Triples


def recognises(path: Path) -> bool:
    """Whether a path is a graph of triples, or a file of questions over one and nothing else."""
    return triple_files.recognises(path) or (path.is_file() and _asks_graph(path))


def _asks_graph(path: Path) -> bool:
    """Whether a file's questions are of a form that only data sets over graphs have."""
    return bool(form_of_file(path)) or is_questions(path)


def are_about_graph(
    path: str, names: str = "", relation_names: str = "", questions: str = ""
) -> bool:
    """Whether flags of `ark-jax check` or `init` are about a graph; `check` describes them."""
    if names or relation_names or recognises(Path(path)):
        return True
    return bool(questions) and Path(path).is_file() and not readers.files(Path(path))


def check(
    path: str,
    names: str | None = None,
    relation_names: str | None = None,
    questions: str = "",
    encoding: str = "",
) -> tuple[list[str], bool]:
    """The lines to print, and whether there is no problem.

    Args:
        path: the graph, as for `Triples.read`; or questions alone.
        names: a file of names of nodes.
        relation_names: a file of names of relations.
        questions: a file or glob of questions, which are linked to the graph.
        encoding: of all texts; "": detected in each file.
    """
    if not questions and Path(path).is_file() and _asks_graph(Path(path)):
        parsed, findings = read_questions(path, encoding)
        kind = f"{form_of_file(Path(path))} questions".lstrip()
        lines = [f"format: {kind} over a graph of triples", f"questions: {len(parsed):,}"]
        lines.append("give them beside their graph: ark-jax check GRAPH --questions=FILE")
        return _with_verdict(lines, findings)
    graph, findings = Triples.examine([path], names, relation_names, encoding)
    lines = [*_fits_documents(Path(path)), *(_summary(graph) if len(graph) else [])]
    if questions:
        parsed, question_findings = read_questions(questions, encoding)
        findings.remarks += question_findings.remarks
        findings.problems += question_findings.problems
        if len(graph):
            linked = link(parsed, graph)
            lines += [linked.summary(), *linked.remarks]
    return _with_verdict(lines, findings)


def _fits_documents(path: Path) -> list[str]:
    """A line if the rows of a file are documents too."""
    if not path.is_file() or path.suffix not in SUFFIXES:
        return []
    row = next(rows_of(path, Findings()), None)
    if row is None or "question" in row.values or "text" not in row.values:
        return []
    return [
        f"{path}: its rows fit documents too; it is read as a graph of triples, and by "
        "--columns=text=text as documents"
    ]


def _summary(graph: Triples) -> list[str]:
    """Describes a graph in a few lines."""
    lines = ["format: a graph of triples"]
    for key, value in graph.summary().items():
        if key == "hubs":
            value = ", ".join(f"{name} ({degree:,} triples)" for name, degree in value)
        else:
            value = f"{value:,}"
        lines.append(f"{key.replace('_', ' ')}: {value}")
    return lines


def _with_verdict(lines: list[str], findings: Findings) -> tuple[list[str], bool]:
    """Findings, lines and a verdict as lines to print, and whether there is no problem."""
    lines_of_findings = [str(finding) for finding in (*findings.remarks, *findings.problems)]
    total = findings.problems.total
    verdict = f"{total:,} problem(s)" if total else "no problem found"
    return [*lines_of_findings, *lines, verdict], not total
