"""Triples of N-Triples files, and the names that their labels give."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

from ark_jax.data.problems import Findings
from ark_jax.graph.terms import Names

FREEBASE = "http://rdf.freebase.com/ns/"
FREEBASE_NAMES = ("type.object.name", "common.topic.alias")  # relations to a name, to an alias
_LABELS = {  # predicate -> whether it gives a name, or an alias alone
    "http://www.w3.org/2000/01/rdf-schema#label": True,
    "http://www.w3.org/2004/02/skos/core#prefLabel": True,
    "http://www.w3.org/2004/02/skos/core#altLabel": False,
}


def n_triples(path: Path, findings: Findings, names: Names) -> Iterator[tuple[str, str, str]]:
    """The triples of an N-Triples file, whose ids are terms as N-Triples writes them.

    A literal keeps its language or datatype in its id, and its text is its name. The name of an IRI
    is its rdfs:label or skos:prefLabel; further labels and skos:altLabel are aliases.
    """
    try:
        import pyoxigraph
    except ImportError:
        message = "is N-Triples, which pyoxigraph reads; run: pip install 'ark-jax[graphs]'"
        findings.problems.add(path, message)
        return
    opener: Callable = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            quads = pyoxigraph.parse(file, format=pyoxigraph.RdfFormat.N_TRIPLES)
            for quad in _readable_quads(quads, path, findings):
                is_name = _term_id(quad.predicate) in FREEBASE_NAMES  # a file of TSV has them too
                if isinstance(quad.object, pyoxigraph.Literal) and not is_name:
                    _name_literal(quad, names)
                yield _term_id(quad.subject), _term_id(quad.predicate), _term_id(quad.object)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        findings.problems.stop(path, f"cannot be read ({reason}); copy it again")


def _readable_quads(quads: Iterator, path: Path, findings: Findings) -> Iterator:
    """Yields the quads of a parser; what it cannot read becomes a problem.

    Reading continues after a broken line, but not after bytes that are not UTF-8.
    """
    last = 0
    while True:
        try:
            quad = next(quads)
        except StopIteration:
            return
        except SyntaxError as error:
            findings.problems.rows += 1
            reason = error.args[0].partition(": ")[2].partition(" (line")[0]
            line = error.lineno or 0
            if "UTF-8" in reason or line <= last:
                message = f"{reason}; save the file as UTF-8: nothing after it was read"
                if "UTF-8" in reason:
                    findings.problems.stop(path, message, line)
                return
            last = line
            findings.problems.add(path, f"is not N-Triples ({reason}); mend the line", line)
            continue
        findings.problems.rows += 1
        yield quad


def _term_id(term) -> str:
    """An IRI without its angle brackets; any other term as N-Triples writes it.

    Of Freebase's IRIs it is the mid or the relation, by which questions name them.
    """
    return term.value.removeprefix(FREEBASE) if type(term).__name__ == "NamedNode" else str(term)


def _name_literal(quad, names: Names) -> None:
    """Adds the text of a literal as its name, and a label as a name or alias of its subject."""
    text = " ".join(quad.object.value.split())
    if not text:
        return
    names.names.setdefault(str(quad.object), text)
    if (named := _LABELS.get(quad.predicate.value)) is not None:
        names.add(_term_id(quad.subject), text, alias=not named)
