"""Candidates of each question, the knowledge graph, and the part of it around a question."""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from ark_jax.data.evidence import most_chunks
from ark_jax.data.records import Chunk, Question
from ark_jax.data.spool import StoredChunks
from ark_jax.data.text_columns import LookedUp, RowsByText
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, read_array, read_table, save_rows, save_stream
from ark_jax.recipes.core.models import encode, load_retriever
from ark_jax.recipes.documents import corpus
from ark_jax.recipes.documents.retrieve import ids_except, own_results
from ark_jax.recipes.documents.written_questions import hash_order
from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.searcher import Fused, Known, OnFirstProcess, nearest_texts
from ark_jax.runtime.distributed import is_first_process
from ark_jax.runtime.log import say
from ark_jax.text.token_vectors import TokenVectors, Vectors

SCHEMA = pa.schema([("question", pa.string()), ("chunk", pa.string()), ("cosine", pa.float64())])
Pools = dict[str, np.ndarray]  # question -> positions of chunks among those searched, int32


def in_round(stage: str, number: int) -> str:
    """The name of a stage in a round of `train.rounds`; in the first one it is the plain name."""
    return stage if number == 1 else f"round{number}-{stage}"


def find_candidates(context: Context, folder: Path, *, system: str = "base") -> dict:
    """Finds the passages nearest to each training question, its candidates.

    They are the chunks of its documents. If the whole corpus is searched, they are the first chunks
    of its documents, and those that the base retriever finds by the question, and BM25 by the
    question with and without its answers, fused by reciprocal rank.

    Args:
        system: whose retriever it is, if not the base one.
    """
    chunks, questions = corpus.training_chunks(context), corpus.load_questions(context, "train")
    whole = corpus.searches_corpus(context)
    searched = corpus.searched_in_training(questions, chunks, whole=whole)
    vectors, cut = corpus.encode_passages(context, system, searched.texts, "embed chunks")
    texts = [question.question for question in questions]
    queries = encode(context, system, texts, "query", "embed questions")
    groups = chunks.by_document
    if whole:
        pools = _search_corpus(context, questions, chunks, searched, (queries, vectors))
    else:
        pools = {question.id: _own_chunks(question, groups, searched) for question in questions}
    rows = _candidate_rows(questions, pools, searched.ids, queries, vectors)
    count = save_stream(rows, folder / "candidates.parquet", SCHEMA)
    return {"candidates": count, "cut_by_the_retriever": cut}


def _search_corpus(
    context: Context,
    questions: Sequence[Question],
    chunks: StoredChunks,
    searched: corpus.SearchedChunks,
    vectors: tuple[Vectors, Vectors],
) -> Pools:
    """question -> the best chunks of the whole corpus, but for those that are the question.

    Args:
        vectors: of the questions `[q e]` and of the chunks `[n e]`, or their `TokenVectors`.
    """
    duplicates = own_results(context, questions, chunks)
    kept, count = (
        context.config.data.candidates,
        context.config.data.candidates + most_chunks(duplicates),
    )
    texts = [question.question for question in questions]
    answered = [" ".join((question.question, *question.answers)) for question in questions]
    by_words = OnFirstProcess(lambda: count_bm25(searched.texts)).search([*texts, *answered], count)
    parts = (nearest_texts(*vectors, count), by_words[: len(texts)], by_words[len(texts) :])
    found = Fused(list(map(Known, parts)), count).search(texts, count)
    pools = {}
    for question, ranking in zip(questions, found, strict=True):
        named = _own_chunks(question, chunks.by_document, searched)[: kept // 2].tolist()
        left_out = set(map(searched.position, duplicates.get(question.id, ())))
        pool = ids_except(list(dict.fromkeys([*named, *ranking.ids])), left_out, kept)
        pools[question.id] = np.array(pool, np.int32)
    return pools


def _own_chunks(
    question: Question, chunks: Mapping[str, list[Chunk]], searched: corpus.SearchedChunks
) -> np.ndarray:
    """The positions of the chunks of the question's documents, int32."""
    listed = corpus.candidate_chunks(question, chunks)
    return np.array([searched.position(chunk.id) for chunk in listed], np.int32)


def _candidate_rows(
    questions: Sequence[Question],
    pools: Pools,
    chunk_ids: Sequence[str],
    queries: Vectors,
    vectors: Vectors,
) -> Iterator[dict]:
    """Yields a row of SCHEMA for each question and candidate, largest cosine first."""
    from ark_jax.retrieval.late import similarities

    for question, query in zip(questions, queries, strict=True):
        pool = pools[question.id]
        values = similarities(query, vectors[pool]).tolist()
        ids = [chunk_ids[position] for position in pool.tolist()]
        # Cosines are rounded to what is equal in all batches: ties must not depend on the order.
        cosines = [(chunk, round(value, 5)) for chunk, value in zip(ids, values, strict=True)]
        cosines.sort(key=lambda pair: (-pair[1], pair[0]))
        for chunk, cosine in cosines:
            yield {"question": question.id, "chunk": chunk, "cosine": cosine}


def distinct_candidates(context: Context) -> set[str]:
    """The ids of all training questions' candidates, or of the searched chunks that share text."""
    table = read_table(context / "candidates" / "candidates.parquet", columns=["chunk"])
    ids = set(table["chunk"].unique().to_pylist())
    if not context.config.data.training_sentences:
        return ids
    trained, searched = corpus.training_chunks(context).by_id, corpus.chunks_by_document(context)
    spans: dict[str, list[tuple[int, int]]] = {}
    for chunk in map(trained.__getitem__, ids):
        spans.setdefault(chunk.document, []).append((chunk.start, chunk.end))
    sharing = set()
    for document, listed in spans.items():
        for chunk in searched.get(document, ()):
            first, last = chunk.start, chunk.end
            if any(start < last and first < end for start, end in listed):
                sharing.add(chunk.id)
    return sharing


class StoredCandidates(LookedUp[list[tuple[str, float]]]):
    """question -> its candidates and their cosines under the base retriever, nearest first.

    Args:
        table: a row for each of them, those of a question in this order.
    """

    def __init__(self, table: pa.Table):
        self._chunks, self._cosines = table["chunk"], table["cosine"]
        self._candidate_rows = RowsByText(table["question"])
        super().__init__(self._candidate_rows, self._candidates)

    def _candidates(self, question: str) -> list[tuple[str, float]]:
        """(chunk id, cosine) of each candidate, nearest first."""
        rows = map(int, self._candidate_rows[question])
        return [(self._chunks[row].as_py(), self._cosines[row].as_py()) for row in rows]


def load_candidates(context: Context, number: int = 1) -> StoredCandidates:
    """What the candidates stage of a round stored."""
    table = read_table(context / in_round("candidates", number) / "candidates.parquet")
    return StoredCandidates(table if len(table) else SCHEMA.empty_table())


def seed_ranks(context: Context, graph, seeds: Sequence[Sequence[int]]) -> Iterator[np.ndarray]:
    """Yields the ranks of each seed set, float64 `[n]`, in their order.

    Ranks below `graph.floor` may be 0. They are solved by elimination if the graph allows it, else
    by walks in blocks, since the ranks of all seed sets may exceed memory.

    Args:
        context: the run, whose mesh is used.
        graph: the KnowledgeGraph.
        seeds: the nodes of each seed set.
    """
    from ark_jax.graph.elimination import Elimination
    from ark_jax.graph.pagerank import block_size, personalized_pagerank
    from ark_jax.graph.walk import Walk

    context.enter_mesh()
    settings = context.config.graph
    eliminated = (
        Elimination.from_graph(graph, settings.teleport) if settings.shard == "seeds" else None
    )
    if eliminated:
        yield from eliminated.ranks(seeds, floor=settings.floor)
        return
    walk = Walk(graph, shard=settings.shard)
    block = block_size(walk)
    for start in range(0, len(seeds), block):
        yield from personalized_pagerank(
            walk,
            seeds[start : start + block],
            teleport=settings.teleport,
            tolerance=settings.tolerance,
            dtype="float64",
        )


COMMUNITY_SIZES = ("large", "small")  # of a question's two communities
NEAREST = 1000  # entities that similarity may join to each one, in the graph of a corpus
SEEDS = "seeds"  # the stage that has a language model name them; its file, calls and prompt
# by which seeds are chosen
RULES = ("model", "shared", "exact", "overlap", "mention", "question", "embedding")


def build_graph(context: Context, folder: Path) -> dict:
    """Joins entities and relations to a knowledge graph, with edges between similar entities.

    With `graph.per=context` it is the graphs of all documents side by side.

    Raises:
        ValueError: the extraction gave no entity.
    """
    from ark_jax.graph.store import KnowledgeGraph

    facts = [
        read_table(context / "extract" / f"{name}.parquet") for name in ("entities", "relations")
    ]
    contexts = _contexts(context)
    graph = KnowledgeGraph.from_tables(*facts, contexts=contexts)
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
    vectors = _encode_one_vector(context, graph.texts(), "document", "embed entities")
    settings = context.config.graph
    say(f"  cosines of entities: {_describe_cosines(vectors)}")
    nearest = NEAREST if contexts is None else 0
    graph = graph.with_similar(vectors, settings.similarity, nearest, contexts)
    if is_first_process():
        graph.save(folder)
        np.save(folder / "vectors.npy", vectors)
    return graph.summary()


def _contexts(context: Context) -> Mapping[str, str] | None:
    """chunk id -> its document, if each has a graph of its own; else None."""
    if context.config.graph.per == "corpus":
        return None
    chunks = corpus.stored_chunks(context).by_id
    return LookedUp(chunks, lambda id: chunks[id].document)


def _encode_one_vector(
    context: Context, texts: Sequence[str], kind: str, label: str = ""
) -> Float[np.ndarray, "n e"]:
    """One unit vector for each text by the base retriever; vectors of tokens are averaged."""
    vectors = encode(context, "base", texts, kind, label)
    of_tokens = isinstance(vectors, TokenVectors)
    if not of_tokens and load_retriever(context).form.similarity == "cosine":
        return vectors
    means = np.stack([text.mean(axis=0) for text in vectors]) if of_tokens else vectors
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def _describe_cosines(vectors: np.ndarray) -> str:
    """Quantiles of the cosines of all pairs of vectors `[n e]`, or of a sample of many, as text.

    They show whether `graph.similarity` suits the retriever: the cosines of some are all high.
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


def find_communities(context: Context, folder: Path, *, by_model: bool = False) -> dict:
    """Finds a large and a small part of the graph around each answer, its communities.

    Args:
        by_model: whether a language model has named entities of the answers (`graph.seeds`).
    """
    from ark_jax.graph.store import KnowledgeGraph

    context.enter_mesh()
    graph = KnowledgeGraph.load(context / "graph")
    questions = corpus.load_questions(context, "train")
    seeds = _find_seeds(context, graph, questions, by_model=by_model)
    # Questions with the same answer often have the same seeds.
    seed_sets = list(dict.fromkeys(seed.node_set for seed in seeds if seed.nodes))
    cut = functools.partial(_cut_communities, settings=context.config.graph)
    communities = dict(zip(seed_sets, map(cut, seed_ranks(context, graph, seed_sets)), strict=True))
    # Documents may have no entity; the rewriter then sees the question alone.
    communities[()] = {size: {"nodes": [], "ranks": []} for size in COMMUNITY_SIZES}
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


def _find_seeds(
    context: Context, graph: KnowledgeGraph, questions: list[Question], *, by_model: bool
) -> list:
    """The `community.Seeds` of each question."""
    from ark_jax.graph.community import SeedFinder

    vectors = read_array(context / "graph" / "vectors.npy")

    def nearest_nodes(text: str) -> np.ndarray:
        """All nodes, those with the largest cosines to a text first."""
        similarities = vectors @ _encode_one_vector(context, [text], "query")[0]
        return np.argsort(-similarities, kind="stable")

    rows = load_rows(context / SEEDS / f"{SEEDS}.parquet") if by_model else []
    named = {row["question"]: row["names"] for row in rows}
    contexts = _contexts(context)
    nodes = graph.nodes_by_context(contexts) if contexts else {}
    finder = SeedFinder(graph, corpus.Passages(corpus.training_chunks(context)), nearest_nodes)
    candidates = load_candidates(context)
    seeds = []
    for question in questions:
        chunk_ids = [chunk for chunk, _ in candidates.get(question.id, ())]
        # A question that names no document may be about any.
        allowed = None
        if contexts and question.documents:
            allowed = set().union(*(nodes.get(id, ()) for id in question.documents))
        names = named.get(question.id, ())
        asked = question.question, question.answers, chunk_ids
        seeds.append(finder.find(*asked, named=names, within=allowed))
    return seeds


def _cut_communities(rank: np.ndarray, settings) -> dict[str, dict[str, list]]:
    """Size -> `nodes` and `ranks` of the community, for both COMMUNITY_SIZES."""
    from ark_jax.graph.community import community

    communities = {}
    for size in COMMUNITY_SIZES:
        smallest, largest = settings[size]
        nodes = community(rank, at_least=smallest, at_most=largest, floor=settings.floor)
        communities[size] = {"nodes": nodes, "ranks": _rounded(rank[nodes])}
    return communities


ENTITIES = 20  # that are tried for each wanted pair
HOLDERS = 32  # passages with one entity that are compared
Ids = tuple[str, str]


def join_by_community(
    context: Context, passages: Sequence[Chunk], count: int
) -> list[tuple[Chunk, Chunk]]:
    """At most `count` pairs of passages that share an entity, the strongest first.

    The strength of a pair is the PageRank of the entities that both passages name, in the small
    community around the shared one. A passage comes twice only if too few other pairs are left.
    """
    graph = KnowledgeGraph.load(context / "graph")
    by_id = {chunk.id: chunk for chunk in passages}
    shared = _shared_entities(graph, by_id)[: ENTITIES * count]
    nodes_by_chunk = _nodes_by_chunk(graph, by_id)
    strengths: dict[Ids, float] = {}
    for entity, weights in _small_communities(context, graph, shared):
        holders = [by_id[id] for id in graph.chunks[entity] if id in by_id][:HOLDERS]
        if best := _strongest_pair(holders, nodes_by_chunk, weights):
            pair, strength = best
            strengths[pair] = max(strength, strengths.get(pair, 0.0))
    return [(by_id[a], by_id[b]) for a, b in _choose_pairs(strengths, count)]


def _shared_entities(graph: KnowledgeGraph, by_id: Mapping[str, Chunk]) -> list[int]:
    """The nodes named by passages that `_are_apart`, in the order of their names' hashes."""
    nodes = {}
    for node, chunk_ids in enumerate(graph.chunks):
        holders = [by_id[id] for id in chunk_ids if id in by_id]
        if any(_are_apart(holders[0], holder) for holder in holders[1:]):
            nodes[graph.names[node]] = node
    return [nodes[name] for name in hash_order(nodes)]


def _nodes_by_chunk(graph: KnowledgeGraph, by_id: Mapping[str, Chunk]) -> dict[str, set[int]]:
    """chunk id -> the nodes that it names."""
    nodes: dict[str, set[int]] = {id: set() for id in by_id}
    for node, chunk_ids in enumerate(graph.chunks):
        for id in chunk_ids:
            if id in nodes:
                nodes[id].add(node)
    return nodes


def _small_communities(
    context: Context, graph: KnowledgeGraph, entities: Sequence[int]
) -> Iterator[tuple[int, dict[int, float]]]:
    """Yields each entity with its small community, node -> rank, without the entity itself."""
    from ark_jax.graph.community import community

    settings = context.config.graph
    smallest, largest = settings.small
    ranks = seed_ranks(context, graph, [[entity] for entity in entities])
    for entity, rank in zip(entities, ranks, strict=True):
        nodes = community(rank, at_least=smallest, at_most=largest, floor=settings.floor)
        ranked = zip(nodes, _rounded(rank[nodes]), strict=True)
        yield entity, {node: value for node, value in ranked if node != entity}


def _rounded(ranks: np.ndarray) -> list[float]:
    """The ranks without their last digits, in which machines and numbers of threads differ."""
    return [float(f"{rank:.9g}") for rank in ranks]


def _strongest_pair(
    holders: Sequence[Chunk], nodes_by_chunk: Mapping[str, set[int]], weights: Mapping[int, float]
) -> tuple[Ids, float] | None:
    """The strongest pair of passages that `_are_apart`, and its strength; None without a pair."""
    strengths = {}
    for a, b in itertools.combinations(sorted(holders, key=lambda chunk: chunk.id), 2):
        if _are_apart(a, b):
            common = sorted(nodes_by_chunk[a.id] & nodes_by_chunk[b.id])
            strengths[a.id, b.id] = round(sum(weights.get(node, 0.0) for node in common), 9)
    return min(strengths.items(), key=lambda pair: (-pair[1], pair[0]), default=None)


def _choose_pairs(strengths: Mapping[Ids, float], count: int) -> list[Ids]:
    """At most `count` pairs: the strongest without a common passage, then the other ones."""
    order = sorted(strengths, key=lambda pair: (-strengths[pair], pair))
    first, used = [], set()
    for pair in order:
        if used.isdisjoint(pair):
            first.append(pair)
            used |= set(pair)
    return [*first, *(pair for pair in order if pair not in first)][:count]


def _are_apart(a: Chunk, b: Chunk) -> bool:
    """Whether chunks are of two documents, or at least half the length of the shorter one apart."""
    gap = max(a.start, b.start) - min(a.end, b.end)
    return a.document != b.document or 2 * gap >= min(a.end - a.start, b.end - b.start)
