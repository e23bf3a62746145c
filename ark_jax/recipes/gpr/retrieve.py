"""What each system retrieves from the graph for each test question: index, baselines, rankings."""

import dataclasses
import functools
import shutil
from collections.abc import Callable
from pathlib import Path

from ark_jax.graph.triple_walk import WalkRules
from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.graph_data import load_graph, texts_of
from ark_jax.recipes.common.models import load_retriever
from ark_jax.recipes.common.retrieve import ids_found, kept, load_kept
from ark_jax.recipes.gpr.data import load_test
from ark_jax.recipes.gpr.train import load_tuned
from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.searcher import Fused, Known, OnFirstProcess, Searcher
from ark_jax.runtime import distributed

DEPTH = 100  # triples stored for a question, or as many as the metrics look at
TUNED = "gpr"
VECTORS = "vectors"  # the folder of an index within a stage's
Rankings = dict[str, list[int]]  # question -> rows of the graph, best first


@dataclasses.dataclass(frozen=True)
class Systems:
    """Names of systems, by what they are.

    Attributes:
        settings: the config.
    """

    settings: object

    @property
    def walk(self) -> WalkRules:
        search = self.settings.search
        return WalkRules(hops=search.hops, share=search.share)

    def walked(self, system: str) -> list[str]:
        """The system that goes on along the graph from what `system` retrieves, if one does."""
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
    """("answer_triple", 10) of "answer_triple@10".

    Raises:
        ValueError: no such metric.
    """
    kind, _, cutoff = name.partition("@")
    if kind not in METRICS or not (cutoff.isascii() and cutoff.isdigit() and int(cutoff)):
        raise ValueError(
            f"config.evaluate.metrics: {name!r} is none of {', '.join(METRICS)}, each with @k"
        )
    return kind, int(cutoff)


def build_index(context: Context, folder: Path) -> dict:
    """Embeds all triples by the trained tower; `ark-jax retrieve --index` opens the folder."""
    index = _open_index(context, load_tuned(context), load_graph(context), folder / VECTORS)
    return {"triples": len(index), "vectors": len(index.vectors)}


def retrieve_untrained(context: Context, folder: Path) -> dict:
    """The baselines stage: what systems retrieve that no training changes."""
    from ark_jax.models.towers import DualEncoder

    systems = Systems(context.config)
    graph, questions = load_graph(context), load_test(context)
    if not questions:
        return {"systems": 0}
    if "bm25" in systems.untrained:
        words = OnFirstProcess(lambda: count_bm25(texts_of(graph, context.config)))
        kept(_file(folder, "bm25"), questions, lambda: words, systems.depth)
    load = lambda: DualEncoder(base := load_retriever(context), base)
    _search_vectors(context, systems, "base", load, folder, folder / VECTORS)
    # The rankings are what later stages read.
    distributed.on_first_process(lambda: shutil.rmtree(folder / VECTORS, ignore_errors=True))
    return {"systems": len(systems.untrained)}


def retrieve_all(context: Context, systems: Systems, folder: Path) -> dict[str, Rankings]:
    """system -> question -> the rows of its first `systems.depth` triples."""
    questions, depth = load_test(context), systems.depth
    load = lambda name: load_kept(_file(context / "baselines", name), questions)
    searchers: dict[str, Searcher] = {name: load(name) for name in systems.untrained}
    vectors = context / "index" / VECTORS
    searchers |= _search_vectors(
        context, systems, TUNED, lambda: load_tuned(context), folder, vectors
    )
    for name, parts in systems.hybrids.items():
        searchers[name] = Fused([searchers[part] for part in parts], depth)
    return ids_found(searchers, systems.names, questions, depth)


def _open_index(context: Context, towers, graph: Triples, folder: Path):
    from ark_jax.graph.triple_index import TripleIndex

    config = context.config
    return TripleIndex.open(
        folder, towers, graph, by=config.data.relations, batch_tokens=config.retriever.batch_tokens
    )


def _search_vectors(
    context: Context, systems: Systems, name: str, load: Callable, folder: Path, vectors: Path
) -> dict[str, Known]:
    """Stores what a retriever finds by cosines, and what the walk from there finds."""

    @functools.cache
    def along_graph() -> Callable[[WalkRules], Searcher]:
        from ark_jax.graph.triple_retriever import AlongGraph, TripleRetriever

        graph, towers, config = load_graph(context), load(), context.config
        index = _open_index(context, towers, graph, vectors)
        limits = (config.data.relations, config.retriever.batch_tokens)
        return functools.partial(AlongGraph, TripleRetriever(towers, graph, index, *limits))

    def keep(system: str) -> Known:
        rules = systems.walk if system != name else WalkRules(hops=1)
        make = lambda: along_graph()(rules)
        return kept(_file(folder, system), load_test(context), make, systems.depth)

    return {system: keep(system) for system in [name, *systems.walked(name)]}


def _file(folder: Path, system: str) -> Path:
    return folder / f"ranked-{system.replace(', ', '-').replace(' ', '-')}.parquet"
