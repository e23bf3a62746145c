"""The stages graph and communities: a knowledge graph, and the part of it around each question."""

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ark_jax.data.records import Question
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import read_array, read_table, save_rows
from ark_jax.recipes.ark.seed_ranks import seed_ranks
from ark_jax.recipes.common.candidates import load_candidates
from ark_jax.recipes.common.corpus import Passages, load_questions, stored_chunks
from ark_jax.recipes.common.models import encode
from ark_jax.runtime.distributed import is_first_process
from ark_jax.runtime.log import say
from ark_jax.text.token_vectors import TokenVectors

COMMUNITY_SIZES = ("large", "small")  # of a question's two communities
NEAREST = 1000  # entities that similarity may join to each one
RULES = ("exact", "overlap", "mention", "question", "embedding")  # by which seeds are chosen


def build_graph(context: Context, folder: Path) -> dict:
    """Stores the knowledge graph, with similarity edges beside the relations.

    Raises:
        ValueError: the extraction gave no entity.
    """
    from ark_jax.graph.store import KnowledgeGraph

    graph = KnowledgeGraph.from_tables(
        read_table(context / "extract" / "entities.parquet"),
        read_table(context / "extract" / "relations.parquet"),
    )
    if not len(graph):
        config = context.config
        by_rules = config.llm.backend == "none" and not config.graph.openie
        fix = (
            "llm.backend=none found neither a name nor a term that comes twice; name a language "
            "model in config.llm.backend"
            if by_rules
            else "look at extract/quarantine.parquet for what the model replied"
        )
        raise ValueError(f"the extraction gave no entity: {fix}")
    vectors = _encode(context, graph.texts(), "document", "embed entities")
    settings = context.config.graph
    say(f"  cosines of entities: {_describe_cosines(vectors)}")
    graph = graph.with_similar(vectors, settings.similarity, NEAREST)
    if is_first_process():
        graph.save(folder)
        np.save(folder / "vectors.npy", vectors)
    return graph.summary()


def _encode(
    context: Context, texts: Sequence[str], kind: str, label: str = ""
) -> Float[np.ndarray, "n e"]:
    """A unit vector for each text by the base retriever, of one with tokens' vectors their mean."""
    vectors = encode(context, "base", texts, kind, label)
    if not isinstance(vectors, TokenVectors):
        return vectors
    means = np.stack([text.mean(axis=0) for text in vectors])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def _describe_cosines(vectors: np.ndarray) -> str:
    """Quantiles over all pairs of unit vectors `[n e]`, of many vectors over a sample.

    They show whether `graph.similarity` suits the retriever: some have high cosines throughout.
    """
    from ark_jax.retrieval.dense import inner

    n = len(vectors)
    if n < 2:
        return "there is one entity"
    if n < 500:
        first, second = np.triu_indices(n, 1)
    else:
        first, second = np.random.default_rng(0).integers(n, size=(2, 100_000))
    differ = first != second
    cosines = inner(vectors, first[differ], vectors, second[differ])
    shares = (50, 90, 99, 99.9)
    quantiles = zip(shares, np.percentile(cosines, shares), strict=True)
    return ", ".join(f"{share:g} % below {quantile:.2f}" for share, quantile in quantiles)


def find_communities(context: Context, folder: Path) -> dict:
    """Stores the large and the small community of every training question, with seeds and ranks."""
    from ark_jax.graph.store import KnowledgeGraph

    context.enter_mesh()
    graph = KnowledgeGraph.load(context / "graph")
    questions = load_questions(context, "train")
    seeds = _find_seeds(context, graph, questions)
    # Questions with the same answer often have the same seeds.
    seed_sets = list(dict.fromkeys(seed.node_set for seed in seeds))
    cut = functools.partial(_cut_communities, settings=context.config.graph)
    communities = dict(zip(seed_sets, map(cut, seed_ranks(context, graph, seed_sets)), strict=True))
    rows = [
        {
            "question": question.id,
            "size": size,
            "rule": seed.rule,
            "seeds": [int(i) for i in seed.nodes],
            **members,
        }
        for question, seed in zip(questions, seeds, strict=True)
        for size, members in communities[seed.node_set].items()
    ]
    save_rows(rows, folder / "communities.parquet")
    counts = {f"seeds_by_{rule}": sum(seed.rule == rule for seed in seeds) for rule in RULES}
    return {"questions": len(questions), **counts}


def _find_seeds(context: Context, graph, questions: list[Question]) -> list:
    from ark_jax.graph.community import SeedFinder

    vectors = read_array(context / "graph" / "vectors.npy")

    def nearest(text: str) -> np.ndarray:
        similarities = vectors @ _encode(context, [text], "query")[0]
        return np.argsort(-similarities, kind="stable")[:5]

    finder = SeedFinder(graph, Passages(stored_chunks(context)), nearest)
    candidates = load_candidates(context)
    seeds = []
    for question in questions:
        chunk_ids = [chunk for chunk, _ in candidates.get(question.id, ())]
        seeds.append(finder.find(question.question, question.answers, chunk_ids))
    return seeds


def _cut_communities(rank: np.ndarray, settings) -> dict[str, dict[str, list]]:
    """Both sizes -> the nodes of that community, and their ranks."""
    from ark_jax.graph.community import community

    communities = {}
    for size in COMMUNITY_SIZES:
        smallest, largest = settings[size]
        nodes = community(rank, at_least=smallest, at_most=largest, floor=settings.floor)
        communities[size] = {"nodes": nodes, "ranks": rank[nodes].tolist()}
    return communities
