"""The curriculum: which stages train a retriever, from which model, on which negatives."""

import dataclasses
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ark_jax.data.records import Chunk, Question
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.reads import element
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import read_table, save_stream, stream_rows
from ark_jax.recipes.ark.alignment import load_next_best, load_positives
from ark_jax.recipes.ark.graph import in_round
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.models import encode
from ark_jax.recipes.documents.corpus import (
    candidate_chunks,
    encode_passages,
    load_questions,
    searched_in_training,
    searches_corpus,
    training_chunks,
)
from ark_jax.recipes.documents.retrieve import HYDE, Systems, own_results
from ark_jax.recipes.documents.written_questions import is_writing, joins_passages
from ark_jax.retrieval.searcher import Ranking
from ark_jax.runtime import distributed
from ark_jax.text.token_vectors import Vectors

# stage -> the communities whose rewritten questions mine its hard negatives. Stage 1 has none, or
# drawn ones; stage 0 trains without a curriculum, on all negatives, mined by the base model.
MINING_SIZES = {0: ("large", "small"), 2: ("large",), 3: ("small",)}


RERANKER = "reranker"  # the stage of train.kind=cross


def stage_name(stage: int, number: int = 1) -> str:
    """The name of a training stage in a round."""
    return in_round(f"stage{stage}", number)


def mine_name(stage: int, number: int = 1) -> str:
    """The name of the stage that mines for a training stage in a round."""
    return in_round(f"mine{stage}", number)


def rounds(config) -> range:
    """The numbers of the rounds."""
    return range(1, config.train.rounds + 1)


def trainings(config) -> list[tuple[int, int]]:
    """(stage, round) of each training, in their order."""
    return [(stage, number) for number in rounds(config) for stage in config.train.stages]


def trained_stages(config) -> tuple[str, ...]:
    """The names of the training stages, in their order."""
    return tuple(stage_name(*training) for training in trainings(config))


def systems(config) -> Systems:
    """The systems that the closing table compares."""
    merged = ("merged",) if config.train.merge != 1 else ()
    reranker = RERANKER if config.train.kind == "cross" else ""
    tuned = (*trained_stages(config), *merged)
    return Systems(config.evaluate, tuned, reranker, config.search.expand)


def is_distilling(config) -> bool:
    """Whether training learns the scores of all scored chunks instead of positives."""
    return config.train.loss == "distil"


def model_before(config, stage: int, number: int = 1) -> str:
    """The system from whose model a training stage of a round starts."""
    position = trainings(config).index((stage, number))
    return trained_stages(config)[position - 1] if position else "base"


def round_base(config, number: int) -> str:
    """The system from whose model a round starts."""
    return model_before(config, config.train.stages[0], number)


def miner_of(config, before: str, number: int = 1) -> str:
    """The system whose model finds hard negatives for a stage that starts from `before`."""
    return before if config.mine.model == "previous" else round_base(config, number)


def epochs(train, stage: int) -> int:
    """The epochs of a stage under `config.train`; stage 0 takes as many as all stages together."""
    return element(train, "epochs", stage - 1) if stage else sum(train.epochs)


def has_negatives(config, stage: int) -> bool:
    """Whether a training stage has hard negatives."""
    return stage in MINING_SIZES or config.mine.first == "document"


def draws(config, stage: int) -> bool:
    """Whether the hard negatives of a training stage are drawn from all that may serve."""
    return stage not in MINING_SIZES or config.mine.choose == "random"


def last_mining(config) -> int | None:
    """The last training stage that has hard negatives; None if none has."""
    return next((n for n in reversed(config.train.stages) if has_negatives(config, n)), None)


def mines_by(config) -> str:
    """`mine.by`, where `auto` is replaced by what it stands for.

    Templates rewrite a question into no better negatives than its own (notebooks/README.md). What
    is marked needs no answer, and a rewritten question does.
    """
    if config.mine.by != "auto":
        return config.mine.by
    has_graph = config.llm.backend != "none" or bool(config.graph.openie)
    rewrites = config.score.supervision != "gold" and has_graph
    return "rewritten" if rewrites else "question"


def mines_by_graph(config) -> bool:
    """Whether hard negatives are mined by questions that were rewritten from a graph."""
    return mines_by(config) == "rewritten" and bool(MINING_SIZES.keys() & set(config.train.stages))


def asks_for_seeds(config) -> bool:
    """Whether a language model names the seeds of PageRank."""
    by_model = config.graph.seeds == "model" and config.llm.backend != "none"
    return by_model and mines_by_graph(config)


def builds_graph(config) -> bool:
    """Whether a stage reads a graph: to mine, or to write questions from two passages."""
    return mines_by_graph(config) or joins_passages(config)


def asks_writer(config) -> bool:
    """Whether `config.llm` is asked for a graph, rewritten or written questions, or passages."""
    writes = is_writing(config) and not config.questions.replies
    return builds_graph(config) or writes or config.search.expand == HYDE


def training_inputs(config, stage: int, number: int) -> tuple[str, ...]:
    """The stages whose outputs a training stage of a round learns from."""
    mined = (mine_name(stage, number),) if has_negatives(config, stage) else ()
    return ("data", in_round("positives", number), *mined)


POSITIVES = pa.schema([("question", pa.string()), ("chunk", pa.string()), ("cosine", pa.float64())])
NEGATIVES = POSITIVES.insert(2, pa.field("mined_by", pa.float64()))


@dataclasses.dataclass(frozen=True)
class _Corpus:
    """The searched chunks and the questions. A chunk is given by its position in `chunk_ids`."""

    chunk_ids: Sequence[str]
    texts: Sequence[str]
    vectors: Vectors
    questions: list[Question]
    queries: dict[str, Vectors]  # question -> its vector `[1 e]`, or the `TokenVectors` of one text
    positives: dict[str, list[int]]  # question -> its positives
    pools: dict[str, Sequence[int]]  # question -> the chunks that are searched for it
    marked: dict[str, list[int]]  # question -> the chunks that the input marks as irrelevant
    document_chunks: dict[
        str, list[int]
    ]  # question -> the chunks of its documents, if they are drawn from

    def cosines(self, question: str, chunks: Sequence[int]) -> np.ndarray:
        """The cosine of a question with each of these chunks, float32 `[c]`."""
        from ark_jax.retrieval.late import similarities

        return similarities(self.queries[question][0], self.vectors[chunks])


def mine(context: Context, folder: Path, *, stage: int, before: str, number: int = 1) -> dict:
    """Finds passages that look right and are not, the hard negatives of the next stage.

    Negatives of the input come first, then mined ones; both begin with the hardest. `miner_of` says
    whose model mines. The difficulty of a negative is the cosine of the most similar positive minus
    its own. Where training `draws` negatives, all that may serve are stored.

    Args:
        before: the system from whose model the training stage starts.
        number: of the round.

    Raises:
        ValueError: `mine.first=document`, but a question names no document.
    """
    config, system = context.config, miner_of(context.config, before, number)
    scored = context / in_round("positives", number)
    draws_own = stage not in MINING_SIZES
    corpus = _encode_corpus(context, system, scored, draws_own=draws_own)
    if draws_own:
        search = functools.partial(_own_chunks, corpus)
    elif mines_by(config) == "rewritten":
        queries = _encode_rewritten(context, system, stage, set(corpus.queries))
        search = _candidate_search(config, corpus, queries)
    else:
        search = _candidate_search(config, corpus, corpus.queries)
    keep = sys.maxsize if draws(config, stage) else config.mine.negatives

    def store_rows() -> dict:
        tally, spared = _Tally(), load_next_best(scored, config.mine.spare)
        own_chunks = own_results(context, corpus.questions, training_chunks(context))
        for question, document_chunks in own_chunks.items():
            spared[question] = [*spared.get(question, ()), *document_chunks]
        rows = _negative_rows(config.mine.margin, keep, corpus, search(), spared, tally)
        count = save_stream(rows, folder / "negatives.parquet", NEGATIVES)
        save_stream(_positive_rows(corpus), folder / "positives.parquet", POSITIVES)
        return {
            "negatives": count,
            "questions_without": tally.questions_without,
            "holding_the_answer": tally.holding_the_answer,
            "dropped": dict(tally.dropped),
            **_difficulty(tally, count),
        }

    return {"model": system} | distributed.on_first_process(store_rows)


def load_negatives(folder: Path) -> dict[str, list[str]]:
    """question -> its hard negatives, hardest first, from the folder of a mine stage."""
    negatives: dict[str, list[str]] = {}
    ids: dict[str, str] = {}  # equal ids share one string, to save memory
    for row in stream_rows(read_table(folder / "negatives.parquet")):
        chunk = ids.setdefault(row["chunk"], row["chunk"])
        negatives.setdefault(row["question"], []).append(chunk)
    return negatives


def _encode_corpus(context: Context, system: str, scored: Path, *, draws_own: bool) -> _Corpus:
    """The training questions and the chunks searched for them, embedded by a system's model."""
    chunks, positives = training_chunks(context), load_positives(scored)
    questions = [q for q in load_questions(context, "train") if q.id in positives]
    is_shared, groups = searches_corpus(context), chunks.by_document
    searched = searched_in_training(questions, chunks, whole=is_shared)
    vectors, _ = encode_passages(context, system, searched.texts, "embed chunks")
    asked = [question.question for question in questions]
    encoded = encode(context, system, asked, "query", "embed questions")
    everything = range(len(searched.ids))
    own_chunks = lambda q: [searched.position(chunk.id) for chunk in candidate_chunks(q, groups)]
    irrelevant = lambda q: (chunk for document in q.negatives for chunk in groups.get(document, ()))
    return _Corpus(
        searched.ids,
        searched.texts,
        vectors,
        questions,
        queries={q.id: encoded[i : i + 1] for i, q in enumerate(questions)},
        positives={q.id: list(map(searched.position, positives[q.id])) for q in questions},
        pools={q.id: everything if is_shared else own_chunks(q) for q in questions},
        marked={q.id: [searched.position(x.id) for x in irrelevant(q)] for q in questions},
        document_chunks=_own_documents(questions, searched.position, groups) if draws_own else {},
    )


def _candidate_search(
    config, corpus: _Corpus, queries: Mapping[str, Vectors]
) -> Callable[[], dict[str, Ranking]]:
    """A function that gives question -> what `mine.by` finds: by vectors, words, chance or a miner.

    Only the first process calls it. A search by vectors runs before, on the devices of all
    processes.

    Args:
        queries: question -> the vectors to search by.
    """
    from ark_jax.retrieval import mining

    settings, pools, vectors = config.mine, corpus.pools, corpus.vectors
    method = mines_by(config)
    if method in ("rewritten", "question"):
        mined = mining.dense_candidates(queries, pools, vectors, corpus.chunk_ids, top=settings.top)
        return lambda: mined

    def rank_candidates() -> dict[str, Ranking]:
        words = {question.id: question.question for question in corpus.questions}
        if own_functions.is_own(method):
            asked = {question: query[0] for question, query in corpus.queries.items()}
            task = mining.MiningTask(words, pools, corpus.texts, asked, vectors, settings.top)
            ranked = own_parts.mine_by_own("mine.by", method, task)
        else:
            ranked = mining.baseline_candidates(
                method, words, pools, corpus.texts, top=settings.top
            )
        return {
            question: Ranking(np.array(chunks, np.int32), corpus.cosines(question, chunks))
            for question, chunks in ranked.items()
        }

    return rank_candidates


def _own_documents(
    questions: Sequence[Question],
    position: Callable[[str], int],
    chunks: Mapping[str, Sequence[Chunk]],
) -> dict[str, list[int]]:
    """question -> the chunks of its documents; ValueError for a question that names none."""
    if nameless := [question.id for question in questions if not question.documents]:
        raise ValueError(
            f"config.mine.first=document draws from the documents of a question, and question "
            f"{nameless[0]!r} names none: set config.mine.first=none"
        )
    document_chunks = lambda q: (
        chunk for document in q.documents for chunk in chunks.get(document, ())
    )
    return {q.id: [position(chunk.id) for chunk in document_chunks(q)] for q in questions}


def _own_chunks(corpus: _Corpus) -> dict[str, Ranking]:
    """question -> the chunks of its documents, nearest first."""
    found = {}
    for question, document_chunks in corpus.document_chunks.items():
        cosines = corpus.cosines(question, document_chunks)
        order = np.argsort(-cosines, kind="stable")
        found[question] = Ranking(np.array(document_chunks, np.int32)[order], cosines[order])
    return found


def _encode_rewritten(
    context: Context, system: str, stage: int, question_ids: set[str]
) -> dict[str, Vectors]:
    """question -> vectors `[r e]`, or those of tokens, of its rewritten versions for a stage."""
    texts, counts = [], Counter()
    for row in stream_rows(read_table(context / "rewrite" / "rewritten.parquet")):
        if row["size"] in MINING_SIZES[stage] and row["question"] in question_ids:
            texts.append(row["text"])
            counts[row["question"]] += 1
    vectors = encode(context, system, texts, "query", "embed rewritten questions")
    # The file has the versions of a question side by side.
    ends = itertools.accumulate(counts.values())
    return {
        question: vectors[end - count : end]
        for (question, count), end in zip(counts.items(), ends, strict=True)
    }


@dataclasses.dataclass
class _Tally:
    """Counts of the negatives of all questions."""

    dropped: Counter = dataclasses.field(default_factory=Counter)
    questions_without: int = 0
    holding_the_answer: int = 0
    smallest_gaps: list[float] = dataclasses.field(default_factory=list)  # of each question
    above_the_positive: int = 0


def _positive_rows(corpus: _Corpus) -> Iterator[dict]:
    for question in corpus.questions:
        chunks = corpus.positives[question.id]
        for chunk, cosine in zip(chunks, corpus.cosines(question.id, chunks).tolist(), strict=True):
            yield {"question": question.id, "chunk": corpus.chunk_ids[chunk], "cosine": cosine}


def _negative_rows(
    margin: float,
    keep: int,
    corpus: _Corpus,
    mined: Mapping[str, Ranking],
    spared: Mapping[str, Sequence[str]],
    tally: _Tally,
) -> Iterator[dict]:
    """Yields the rows of NEGATIVES, and counts them in `tally`.

    Args:
        margin, keep: as `mining.choose_negatives` takes them.
        spared: question -> chunk ids that are no negatives of it.
    """
    from ark_jax.retrieval import mining

    originals = _first_copies(corpus, mined)
    for question in corpus.questions:
        positives = corpus.positives[question.id]
        candidates, scores = (values.tolist() for values in mined[question.id])
        marked = corpus.marked[question.id]
        known = [*positives, *marked, *candidates]
        cosine = dict(zip(known, corpus.cosines(question.id, known).tolist(), strict=True))
        spared_ids = spared.get(question.id, ())
        hardest = sorted(marked, key=lambda chunk: -cosine[chunk])
        negatives, dropped = mining.choose_negatives(
            [*((x, cosine[x]) for x in hardest), *zip(candidates, scores, strict=True)],
            positives,
            cosine=cosine,
            first_copy=originals,
            margin=margin,
            trusted=set(marked),
            spared={chunk for chunk in candidates if corpus.chunk_ids[chunk] in spared_ids},
            keep=keep,
        )
        nearest = max(cosine[chunk] for chunk in positives)
        gaps = [nearest - cosine[chunk] for chunk, _ in negatives]
        tally.dropped.update(dropped)
        tally.questions_without += not negatives
        tally.smallest_gaps += [min(gaps)] if gaps else []
        tally.above_the_positive += sum(gap < 0 for gap in gaps)
        for chunk, score in negatives:
            tally.holding_the_answer += mining.contains_answer(
                corpus.texts[chunk], question.answers
            )
            yield {
                "question": question.id,
                "chunk": corpus.chunk_ids[chunk],
                "mined_by": score,
                "cosine": cosine[chunk],
            }


def _first_copies(corpus: _Corpus, mined: Mapping[str, Ranking]) -> dict[int, int]:
    """As `mining.first_copies`, for the positives and the chunks that were mined or given."""
    from ark_jax.retrieval import mining

    is_known = np.zeros(len(corpus.chunk_ids), bool)
    for question, positives in corpus.positives.items():
        is_known[positives] = is_known[mined[question].ids] = True
        is_known[corpus.marked[question]] = True
    known = np.flatnonzero(is_known).tolist()
    copies = mining.first_copies(corpus.texts[chunk] for chunk in known)
    return {known[copy]: known[first] for copy, first in copies.items()}


def _difficulty(tally: _Tally, negatives: int) -> dict:
    """Counts of how hard the negatives are; empty without negatives.

    They are the gaps from the most similar positive to the hardest negative over the questions, and
    the share of all negatives that are more similar than that positive.
    """
    if not negatives:
        return {}
    hardest = tally.smallest_gaps
    quantiles = {f"p{p}": round(float(np.percentile(hardest, p)), 4) for p in (10, 50, 90)}
    return {
        "mean_gap_to_hardest": round(float(np.mean(hardest)), 4),
        "gap_to_hardest": quantiles,
        "share_above_the_positive": round(tally.above_the_positive / negatives, 4),
    }
