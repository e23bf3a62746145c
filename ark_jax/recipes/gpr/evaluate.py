"""What each system retrieves and answers, how that is measured, and the export."""

import dataclasses
import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax import __version__
from ark_jax.graph.triples import Triples
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, save_rows
from ark_jax.recipes import graphs
from ark_jax.recipes.core import baselines, tables
from ark_jax.recipes.core.models import base_names, copy_model, load_retriever, settings_text
from ark_jax.recipes.documents.retrieve import ids_found, load_search, search_once
from ark_jax.recipes.gpr.data import HEADLINE, TestQuestion, load_test
from ark_jax.recipes.gpr.train import load_tuned
from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.searcher import Fused, Known, OnFirstProcess, Searcher
from ark_jax.runtime import distributed

DEPTH = 100  # triples stored for a question, or as many as the metrics look at
TUNED = "gpr"
BOTH = "bm25+base"
VECTORS = "vectors"  # the folder of an index within a stage's
Rankings = dict[str, list[int]]  # question -> rows of the graph, best first


@dataclasses.dataclass(frozen=True)
class Systems:
    """The names of the systems that a run compares, by kind."""

    settings: object

    def walked(self, system: str) -> list[str]:
        """The system that searches the graph from what `system` retrieves; [] for one hop."""
        hops = self.settings.search.hops
        return [f"{system}, {hops} hops"] if hops > 1 else []

    @property
    def untrained(self) -> list[str]:
        return ["base", *self.settings.evaluate.baselines, *self.walked("base")]

    @property
    def hybrids(self) -> dict[str, list[str]]:
        """Fused systems -> their parts."""
        return {name: name.split("+") for name in self.settings.evaluate.hybrids}

    @property
    def trained(self) -> list[str]:
        return [TUNED, *self.walked(TUNED)]

    @property
    def names(self) -> list[str]:
        """All, in the order of the table: base first, what is exported last."""
        return [*self.untrained, *self.hybrids, *self.trained]

    @property
    def depth(self) -> int:
        """How many triples a system retrieves for a question."""
        evaluate = self.settings.evaluate
        cutoffs = [parse_metric(name)[1] for name in evaluate.metrics]
        return max(DEPTH, evaluate.triples, *cutoffs)

    def check(self) -> None:
        """Raises ValueError for an unknown metric, or a hybrid of unknown systems."""
        _ = self.depth
        known = ["base", "bm25", TUNED]
        for name, parts in self.hybrids.items():
            if unknown := set(parts) - set(known):
                raise ValueError(
                    f"config.evaluate.hybrids: {min(unknown)!r} in {name!r} is none of "
                    f"{', '.join(known)}"
                )
            if "bm25" in parts and "bm25" not in self.settings.evaluate.baselines:
                raise ValueError(
                    f"config.evaluate.hybrids: {name!r} needs bm25 in config.evaluate.baselines"
                )


METRICS = ("answer_triple", "answer_recall")


def parse_metric(name: str) -> tuple[str, int]:
    """("answer_triple", 10) of "answer_triple@10"."""
    kind, _, cutoff = name.partition("@")
    if kind not in METRICS or not (cutoff.isascii() and cutoff.isdigit() and int(cutoff)):
        raise ValueError(
            f"config.evaluate.metrics: {name!r} is none of {', '.join(METRICS)}, each with @k"
        )
    return kind, int(cutoff)


def build_index(context: Context, folder: Path) -> dict:
    """Embeds all triples by the trained tower; `ark-jax retrieve --index` opens the folder."""
    index = _open_index(context, load_tuned(context), graphs.load_graph(context), folder / VECTORS)
    return {"triples": len(index), "vectors": len(index.vectors)}


def measure_baselines(context: Context, folder: Path) -> dict:
    """Measures the untrained systems, to know what training has to beat."""
    from ark_jax.models.towers import DualEncoder

    systems = Systems(context.config)
    graph, questions = graphs.load_graph(context), load_test(context)
    if not questions:
        return {"systems": 0}
    if "bm25" in systems.untrained:
        words = OnFirstProcess(lambda: count_bm25(graphs.texts_of(graph, context.config)))
        search_once(_ranking_file(folder, "bm25"), questions, lambda: words, systems.depth)
    load = lambda: DualEncoder(base := load_retriever(context), base)
    _search_by_vectors(context, systems, "base", load, folder, folder / VECTORS)
    # The rankings are what later stages read.
    distributed.on_first_process(lambda: shutil.rmtree(folder / VECTORS, ignore_errors=True))
    searchers = _untrained_searchers(folder, systems, questions)
    parts = {}
    if "bm25" in searchers:
        searchers[BOTH] = Fused([searchers["bm25"], searchers["base"]], systems.depth)
        parts = {BOTH: "bm25"}
    rankings = ids_found(searchers, list(searchers), questions, systems.depth)
    columns = tuple(dict.fromkeys((*context.config.evaluate.metrics, HEADLINE)))
    rows = [
        {"system": name, "question": question.id}
        | measure(graph, question, ranking[question.id], columns)
        for name, ranking in rankings.items()
        for question in questions
    ]
    save_rows(rows, folder / baselines.ROWS)
    baselines.save_results(folder, rows, columns, HEADLINE, parts=parts)
    return {"systems": len(systems.untrained)}


def _untrained_searchers(
    folder: Path, systems: Systems, questions: Sequence[TestQuestion]
) -> dict[str, Searcher]:
    """The searchers of what the untrained systems retrieved, in the folder of the stage."""
    load = lambda name: load_search(_ranking_file(folder, name), questions)
    return {name: load(name) for name in systems.untrained}


def retrieve_all(context: Context, systems: Systems, folder: Path) -> dict[str, Rankings]:
    """system -> question -> the rows of its first `systems.depth` triples."""
    questions, depth = load_test(context), systems.depth
    searchers = _untrained_searchers(context / baselines.STAGE, systems, questions)
    vectors = context / "index" / VECTORS
    searchers |= _search_by_vectors(
        context, systems, TUNED, lambda: load_tuned(context), folder, vectors
    )
    for name, parts in systems.hybrids.items():
        searchers[name] = Fused([searchers[part] for part in parts], depth)
    return ids_found(searchers, systems.names, questions, depth)


def _open_index(context: Context, towers, graph: Triples, folder: Path):
    """A `TripleIndex` in a folder, whose missing vectors are computed and stored."""
    from ark_jax.graph.triple_index import TripleIndex

    config = context.config
    return TripleIndex.open(
        folder, towers, graph, by=config.data.relations, batch_tokens=config.retriever.batch_tokens
    )


def _search_by_vectors(
    context: Context, systems: Systems, name: str, load: Callable, folder: Path, vectors: Path
) -> dict[str, Known]:
    """Stores what a retriever finds by cosines and along the graph: system -> what it found."""

    @functools.cache
    def make_searcher() -> Callable[..., Searcher]:
        """Called with `hops`, and `share`."""
        from ark_jax.graph.triple_retriever import AlongGraph, TripleRetriever, WalkRules

        graph, towers, config = graphs.load_graph(context), load(), context.config
        index = _open_index(context, towers, graph, vectors)
        limits = (config.data.relations, config.retriever.batch_tokens)
        retriever = TripleRetriever(towers, graph, index, *limits)
        return lambda **rules: AlongGraph(retriever, WalkRules(**rules))

    def stored_search(system: str) -> Known:
        search = systems.settings.search
        rules = {"hops": 1} if system == name else {"hops": search.hops, "share": search.share}
        make = lambda: make_searcher()(**rules)
        return search_once(_ranking_file(folder, system), load_test(context), make, systems.depth)

    return {system: stored_search(system) for system in [name, *systems.walked(name)]}


def _ranking_file(folder: Path, system: str) -> Path:
    return folder / f"ranked-{system.replace(', ', '-').replace(' ', '-')}.parquet"


def read_triples(
    context: Context,
    graph: Triples,
    rankings: Mapping[str, Mapping[str, Sequence[int]]],
    questions: Sequence[TestQuestion],
    folder: Path,
) -> tuple[graphs.Scores, dict]:
    """As `read_facts`, for the first `evaluate.triples` triples of each system."""
    config = context.config

    def first_triples(system: str, question: TestQuestion) -> list[str]:
        first = rankings[system][question.id][: config.evaluate.triples]
        return graphs.texts_of(graph, config, np.asarray(first, np.int64))

    return graphs.read_facts(context, list(rankings), questions, first_triples, folder)


# Always measured, for curves over k and to compare runs by.
CUTOFFS = (1, 5, 10, 20, 50, 100)
CURVES = tuple(f"{name}@{k}" for name in ("answer_triple", "answer_recall") for k in CUTOFFS)


def evaluate(context: Context, folder: Path) -> dict:
    """Measures all systems on the test questions."""
    questions, graph = load_test(context), graphs.load_graph(context)
    if not questions:
        tables.save_empty_results(folder)
        return {"questions": 0}
    systems = Systems(context.config)
    rankings = retrieve_all(context, systems, folder)
    replies, counts = read_triples(context, graph, rankings, questions, folder)
    columns = context.config.evaluate.metrics
    searched = tuple(dict.fromkeys((*columns, *CURVES)))
    rows = [
        {"system": name, "question": question.id, "group": question.group}
        | {"ranked": ranking[question.id]}
        | measure(graph, question, ranking[question.id], searched)
        | graphs.reply_columns(replies.get((name, question.id)))
        for name, ranking in rankings.items()
        for question in questions
    ]
    rows = graphs.with_reader_alone(rows, replies)
    tables.save_tables(
        context,
        folder,
        rows,
        tables.questions_by_group(questions),
        columns=(*columns, *(graphs.LISTS[name] for name in graphs.SHOWN if replies)),
        measured=(*searched, *(graphs.LISTS.values() if replies else ())),
        headline=HEADLINE,
    )
    return {"questions": len(questions), "systems": len(rankings), **counts}


def measure(
    graph: Triples, question: TestQuestion, ranked: Sequence[int], metrics: Sequence[str]
) -> dict[str, float]:
    """The metrics of a ranking, each from 0 to 1.

    `answer_triple@k` is 1 if one of the first k triples bears an answer (`graph.answer_rows`).
    `answer_recall@k` is the share of the answers that are head or tail of one; an answer that the
    graph lacks is a miss.
    """
    bearing, answers = set(question.answer_rows), set(question.answer_nodes)
    total = len(answers) + question.absent
    values = {}
    for name in metrics:
        kind, cutoff = parse_metric(name)
        first = np.asarray(ranked[:cutoff], np.int64)
        if kind == "answer_triple":
            values[name] = float(not bearing.isdisjoint(first.tolist()))
        else:
            ends = set(graph.head[first].tolist()) | set(graph.tail[first].tolist())
            values[name] = len(ends & answers) / total if total else 0.0
    return values


conclusion = functools.partial(baselines.conclusion, metric=HEADLINE)


def first_triple(context: Context) -> Callable[[dict], str]:
    """A function of a row of `questions.parquet` that gives the best triple of its system."""
    graph, config = graphs.load_graph(context), context.config
    texts = lambda row: graphs.texts_of(graph, config, np.asarray(row["ranked"][:1], np.int64))
    return lambda row: next(iter(texts(row)), "")


METHOD = "graded relevance of a graph's triples (GPR)"


def export_towers(context: Context, folder: Path) -> dict:
    """Writes the folder of the trained retriever, with a model card."""
    from ark_jax.models import model_card

    retriever = context.config.retriever
    copy_model(context / "train" / "model", folder, retriever.path, retriever.export_dtype)
    base, hub_name = base_names(context.config.retriever.path)
    card = model_card.render_card(
        folder,
        title=f"{base}, tuned with GPR",
        base=hub_name,
        about=_description(context, model_card.plain_line(base)),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    return {"towers": context.config.train.towers}


def _description(context: Context, base: str) -> str:
    counts = {stage: read_manifest(context / stage)["counts"] for stage in ("data", "questions")}
    evaluated = load_json(context / "evaluate" / "metrics.json")
    text = f"""Base model: {base}. Tuned by ark_jax {__version__} with {METHOD}
to fetch, for a question, triples that bear its answer: "head | relation | tail".
It learned from {counts["questions"]["questions"]:,} questions about masked entities of a graph of
{counts["data"]["triples"]:,} triples; no labelled question was used."""
    if evaluated["table"]:
        text += f"\n\nMeasured on {counts['data']['test_questions']:,} questions:\n\n"
        text += tables.as_markdown(evaluated["table"], evaluated["metrics"])
        text += f"\n\n{' '.join(conclusion(context))}"
    return f"{text}\n\n{settings_text(context.config, 'train')}"
