"""`ark-jax retrieve`: the triples or paths of a graph that fit the questions of a file, as JSONL.

A retriever of vectors gives triples. A pair scorer gives relation paths.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from ark_jax.cli.arguments import Parser, at_least_one
from ark_jax.cli.environment import log_on_stderr, prepare_environment
from ark_jax.cli.errors import is_of_output, with_fix
from ark_jax.runtime import log, storage

BATCH = 1024  # questions that are searched and written at once


DEFAULT_K = {"triples": 20, "paths": 5}
ONLY = {"index": "triples", "beam": "paths", "inverse": "paths"}  # flags that one kind knows


@dataclasses.dataclass(frozen=True)
class Request:
    """What the flags ask for.

    Attributes:
        model: folder or hub name.
        graph: file, folder or glob of triples.
        questions: file or glob.
        index: folder of the graph's vectors.
        names: file of names of nodes; empty for none. `relation_names` likewise.
        relations: how a relation is written, "last" or "whole"; empty: as the model has learned
            paths, and "last" for triples.
        k: number of triples or paths for each question; None for `DEFAULT_K`.
        hops: longest chain of triples, see `triple_walk.walk`, or longest path.
        beam: how many paths are kept at each hop, see `beam.BeamRules`.
        inverse: whether paths also go from tail to head, "yes" or "no"; empty: as the model has
            learned.
        explicit: the flags of `ONLY` that were written.
    """

    model: str
    graph: str
    questions: str
    index: Path
    names: str
    relation_names: str
    relations: str
    k: int | None
    hops: int
    beam: int
    inverse: str
    explicit: tuple[str, ...]


def retrieve(verb: str, args: list[str]) -> int:
    """Writes what of a graph fits each question of a file."""
    request = parse(args)
    prepare_environment()
    try:
        write_rows(request)
    except OSError as error:
        if is_of_output(error):
            raise
        raise OSError(with_fix(error, request.index, flag="--index")) from error
    return 0


def parse(args: Sequence[str]) -> Request:
    """The request of the verb's flags.

    Raises:
        ValueError: a flag is unknown, missing or has a bad value.
    """
    parser = Parser("retrieve")
    for name in ("model", "graph", "questions"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("index", "names", "relation-names"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--relations", choices=("last", "whole"), default="")
    for name in ("k", "hops", "beam"):
        parser.add_argument(f"--{name}", type=at_least_one)
    parser.add_argument("--inverse", choices=("yes", "no"), default="")
    values = vars(parser.values(args))
    explicit = tuple(name for name in ONLY if values[name])
    folder = values["index"] or _default_index(values["model"], values["graph"])
    values |= {
        "index": storage.local_path(folder),
        "hops": values["hops"] or 3,
        "beam": values["beam"] or 5,
    }
    return Request(**values, explicit=explicit)


def _default_index(model: str, graph: str) -> Path:
    """A folder of the cache for each model and graph. The model's own folder may be read-only."""
    place = lambda name: name if "://" in name else str(Path(name).expanduser().absolute())
    names = json.dumps([model if storage.is_hub_name(model) else place(model), place(graph)])
    digest = hashlib.sha256(names.encode()).hexdigest()[:16]
    return storage.cache_folder() / "triple_indices" / digest


def write_rows(request: Request) -> None:
    """Writes a line for each question to the standard output, and what is logged to stderr.

    Raises:
        BadInput: a file has problems; it lists all of them.
        OSError, ValueError: the model, the graph or the index cannot be used.
    """
    with log_on_stderr() as results:
        for lines in _lines(request):
            with contextlib.redirect_stdout(results):
                log.show(lines)


def _lines(request: Request) -> Iterator[str]:
    """The lines of a batch of questions after the other."""
    from ark_jax.data.records import BadInput
    from ark_jax.graph.triple_questions import read_questions
    from ark_jax.graph.triples import Triples

    kind = "paths" if _scores_pairs(request.model) else "triples"
    for name in request.explicit:
        if ONLY[name] != kind:
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


def _triple_rows(request: Request, questions, graph, k: int) -> Iterator[list[dict]]:
    from ark_jax.graph.triple_retriever import TripleRetriever
    from ark_jax.graph.triple_walk import WalkRules

    log.say(f"  index: {request.index}; --index=DIR names another folder")
    retriever = TripleRetriever.from_pretrained(
        request.model, graph, request.index, by=request.relations or "last"
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


def _path_rows(request: Request, questions, graph, k: int) -> Iterator[list[dict]]:
    from ark_jax.graph.beam import BeamRules
    from ark_jax.graph.path_retriever import PathRetriever

    inverse = {"yes": True, "no": False}.get(request.inverse)
    retriever = PathRetriever.from_pretrained(
        request.model, graph, inverse=inverse, by=request.relations or None
    )
    topics = _topics(questions, graph)
    rules, cuts = BeamRules(request.beam, request.hops), 0
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
