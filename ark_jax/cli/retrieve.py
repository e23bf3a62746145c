"""`ark-jax retrieve`: the triples or paths of a graph that fit the questions of a file, as JSONL.

A retriever of vectors gives triples. A pair scorer gives relation paths.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from ark_jax.cli.environment import log_on_stderr, prepare_environment
from ark_jax.cli.errors import is_of_output, with_fix
from ark_jax.cli.flags import Flags, flag
from ark_jax.runtime import log, storage

BATCH = 1024  # questions that are searched and written at once
DEFAULT_K = {"triples": 20, "paths": 5}
ONLY = {"index": "triples", "beam": "paths", "inverse": "paths"}  # flags that one kind knows
KNOWN = "an export knows"


class Retrieve(Flags):
    """What of a graph fits each question of a file."""

    model: str = flag(
        "--model=DIR",
        "the export of a run, or any model of its kind. A retriever gives triples, a pair scorer "
        "relation paths from the question's topics, or from the names in its text",
    )
    graph: str = flag("--graph=FILE", "triples: a file, folder or glob")
    questions: str = flag("--questions=FILE", "a file or glob")
    names: str = flag("--names=FILE", "names of the graph's nodes", "")
    relation_names: str = flag("--relation-names=FILE", "names of its relations", "")
    k: int | None = flag("--k=N", "how many: 20 triples or 5 paths", None)
    hops: int = flag(
        "--hops=N", "longest path, or how far triples go along the graph; 1: cosines alone", 3
    )
    index: Path | None = flag("--index=DIR", "where the vectors of triples are kept", None)
    beam: int | None = flag("--beam=N", "paths that are kept at each hop: 5", None)
    inverse: str = flag(
        "--inverse=yes|no",
        f"whether paths also go from tail to head; {KNOWN}",
        "",
        choices=("yes", "no"),
    )
    relations: str = flag(
        "--relations=last|whole",
        f"how a relation is written; {KNOWN}",
        "",
        choices=("last", "whole"),
    )

    example = "ark-jax retrieve --model=DIR/export --graph=FILE --questions=FILE > out.jsonl"

    def run(self) -> int:
        """Writes a line for each question to the standard output, and what is logged to stderr."""
        prepare_environment()
        try:
            with log_on_stderr() as results:
                for lines in _lines(self):
                    with contextlib.redirect_stdout(results):
                        log.show(lines)
        except OSError as error:
            if is_of_output(error):
                raise
            raise OSError(with_fix(error, self.folder, flag="--index")) from error
        return 0

    @property
    def folder(self) -> Path:
        """Of the graph's vectors."""
        return self.index or _default_index(self.model, self.graph)


def _default_index(model: str, graph: str) -> Path:
    """A folder of the cache for each model and graph. The model's own folder may be read-only."""
    place = lambda name: name if "://" in name else str(Path(name).expanduser().absolute())
    names = json.dumps([model if storage.is_hub_name(model) else place(model), place(graph)])
    digest = hashlib.sha256(names.encode()).hexdigest()[:16]
    return storage.cache_folder() / "triple_indices" / digest


def _lines(request: Retrieve) -> Iterator[str]:
    """The lines of a batch of questions after the other."""
    from ark_jax.data.records import BadInput
    from ark_jax.graph.triple_questions import read_questions
    from ark_jax.graph.triples import Triples

    kind = "paths" if _scores_pairs(request.model) else "triples"
    for name in ONLY:
        if getattr(request, name) and ONLY[name] != kind:
            raise ValueError(
                f"bad flag: --{name} is for {ONLY[name]}, but {request.model} is a model that "
                f"finds {kind}; drop the flag or give another model"
            )
    questions, findings = read_questions(request.questions)
    if findings.problems:
        raise BadInput(findings.problems)
    for remark in findings.remarks:
        log.say(f"  {remark}")
    names = request.names or None, request.relation_names or None
    graph = Triples.read(request.graph, names=names[0], relation_names=names[1])
    rows = _path_rows if kind == "paths" else _triple_rows
    with log.Progress("search", len(questions), "questions") as bar:
        for batch in rows(request, questions, graph, request.k or DEFAULT_K[kind]):
            yield "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in batch)
            bar.add(len(batch))


def _scores_pairs(model: str) -> bool:
    """Whether a model is a pair scorer."""
    from ark_jax.models import hf, pair_folder

    folder = hf.resolve(model)
    if (folder / pair_folder.SETTINGS).is_file():
        return True
    return (folder / "config.json").is_file() and pair_folder.is_classifier(folder)


def _triple_rows(request: Retrieve, questions, graph, k: int) -> Iterator[list[dict]]:
    from ark_jax.graph.triple_retriever import TripleRetriever
    from ark_jax.graph.triple_walk import WalkRules

    log.say(f"  index: {request.folder}; --index=DIR names another folder")
    retriever = TripleRetriever.from_pretrained(
        request.model, graph, request.folder, by=request.relations or "last"
    )
    for start in range(0, len(questions), BATCH):
        batch = questions[start : start + BATCH]
        texts = [question.question for question in batch]
        results = retriever.search(texts, k=k, rules=WalkRules(hops=request.hops))
        yield [
            {
                "id": question.id,
                "question": question.question,
                "triples": [[*triple[:3], round(triple.score, 6)] for triple in triples],
            }
            for question, triples in zip(batch, results, strict=True)
        ]


def _path_rows(request: Retrieve, questions, graph, k: int) -> Iterator[list[dict]]:
    from ark_jax.graph.beam import BeamRules
    from ark_jax.graph.path_retriever import PathRetriever

    inverse = {"yes": True, "no": False}.get(request.inverse)
    retriever = PathRetriever.from_pretrained(
        request.model, graph, inverse=inverse, by=request.relations or None
    )
    topics = _topics(questions, graph)
    rules, cuts = BeamRules(request.beam or 5, request.hops), 0
    for start in range(0, len(questions), BATCH):
        batch, nodes = questions[start : start + BATCH], topics[start : start + BATCH]
        result = retriever.search_paths([q.question for q in batch], nodes, rules=rules)
        cuts += result.cuts
        yield [
            {
                "id": question.id,
                "question": question.question,
                "entities": list(map(graph.nodes.name, of_question)),
                "paths": [retriever.path(path)._asdict() for path in paths[:k]],
            }
            for question, of_question, paths in zip(batch, nodes, result.paths, strict=True)
        ]
    if cuts:
        log.say(
            f"  {cuts:,} paths lead to more than {retriever.steps.hub:,} nodes; how they go on was "
            "asked of the first of these alone"
        )


def _topics(questions, graph) -> list[tuple[int, ...]]:
    """The topics of questions; says how many are found in the text, and what is absent."""
    from ark_jax.graph.linked_questions import link

    # Answers that stand beside the questions are of no concern here.
    linked = link(
        [dataclasses.replace(q, answers=(), answer_entities=()) for q in questions], graph
    )
    for remark in linked.remarks:
        log.say(f"  {remark}")
    silent = sum(not question.entities for question in questions)
    if silent:
        log.say(
            f"  {silent:,} questions name no topic: the text of "
            f"{linked.counts['topics_from_text']:,} has names of the graph, which are taken"
        )
    if without := linked.counts["without_topic"]:
        log.say(f"  {without:,} questions have no topic in the graph and get no path")
    return linked.topics
