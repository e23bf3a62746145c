"""The systems of the closing table, and the passages that each retrieves for held-out questions."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ark_jax.data.evidence import left_out, most_chunks, own_chunks
from ark_jax.data.records import Chunk, Question
from ark_jax.data.spool import StoredChunks
from ark_jax.evaluate import answers, retrieval
from ark_jax.llm import complete
from ark_jax.pipeline.parts import stored_rows
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.core.ask import ask
from ark_jax.recipes.core.models import encode, load_reranker
from ark_jax.recipes.documents import corpus
from ark_jax.retrieval import searcher
from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.fusion import Fusion
from ark_jax.retrieval.hyde import NAME as HYDE
from ark_jax.retrieval.hyde import Hyde
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say
from ark_jax.text import prompts

DEPTH = 20  # retrieved chunks stored per question, or as many as the metrics look at
WORDS = "bm25"
BOTH = f"{WORDS}+base"
BASELINES = (WORDS, "full")
LAST_TUNED = "tuned"  # a part of a hybrid, whatever the config trains


@dataclasses.dataclass(frozen=True)
class Systems:
    """The names of the systems that a run compares, by kind.

    Attributes:
        settings: `config.evaluate`.
        tuned: the stages whose folder holds a tuned retriever, first to last.
        reranker: the stage whose folder holds a trained reranker, if there is one.
        expand: `config.search.expand`; "hyde" is a system of that name.
    """

    settings: object
    tuned: tuple[str, ...] = ()
    reranker: str = ""
    expand: str = "none"

    @property
    def last(self) -> str:
        """The system that is exported: the last tuned one."""
        return (*("base",), *self.tuned)[-1]

    @property
    def compared(self) -> list[str]:
        """Baselines, other retrievers by the last part of their path, HyDE, hybrids, reranked."""
        fixed = (*self.settings.baselines, *self.retrievers, *self.expanded)
        return [*fixed, *self.hybrids, *self.reranked]

    @property
    def retrievers(self) -> list[str]:
        """Other retrievers, by the last part of their path."""
        return [Path(path).name for path in self.settings.retrievers]

    @property
    def expanded(self) -> list[str]:
        """["hyde"] if questions are also searched by a written passage, else []."""
        return [HYDE] if self.expand == HYDE else []

    @property
    def hybrids(self) -> dict[str, list[str]]:
        """Fused systems -> their parts; `tuned` stands for the last tuned one."""
        last = lambda part: self.last if part == LAST_TUNED else part
        parts = [list(map(last, name.split("+"))) for name in self.settings.hybrids]
        return {"+".join(names): names for names in parts}

    @property
    def lexical_parts(self) -> dict[str, str]:
        """Fused systems with BM25 among their parts -> BM25, against which they are tested."""
        return {name: WORDS for name, parts in self.hybrids.items() if WORDS in parts}

    @property
    def shipped_hybrid(self) -> str:
        """The hybrid of BM25 and the last tuned retriever, as which a run is exported; or ""."""
        parts = {WORDS, self.last}
        return next((name for name, names in self.hybrids.items() if {*names} == parts), "")

    @property
    def reranked(self) -> dict[str, str]:
        """The reranked system -> the system that it reranks; empty without a reranker."""
        is_reranked = self.settings.rerank or self.reranker
        return {f"{self.last} + reranker": self.last} if is_reranked else {}

    @property
    def names(self) -> list[str]:
        """All, in the order of the table: base first, the last tuned one last."""
        return ["base", *self.compared, *self.tuned]

    @property
    def retrieving(self) -> list[str]:
        """All that retrieve passages: "full" gives the reader whole documents."""
        return [name for name in self.names if name != "full"]

    @property
    def untuned(self) -> list[str]:
        """The systems that no training changes, so that runs of a sweep share their results."""
        baselines = [name for name in self.settings.baselines if name != "full"]
        return ["base", *baselines, *self.retrievers, *self.expanded]

    @property
    def depth(self) -> int:
        """How many chunks a system retrieves for a question."""
        cutoffs = [retrieval.parse_metric(name)[1] or 0 for name in self.settings.metrics]
        return max(DEPTH, self.settings.passages, *cutoffs)

    def check(self) -> None:
        """Refuses, before any work, systems and metrics that are unknown or not installed."""
        settings = self.settings
        _ = self.depth
        if unknown := set(settings.answers) - set(answers.ANSWER_COLUMNS):
            known = ", ".join(answers.ANSWER_COLUMNS)
            raise ValueError(f"config.evaluate.answers: {min(unknown)!r} is none of {known}")
        if "rouge_l" in settings.answers:
            answers.check_rouge()
        if unknown := set(settings.baselines) - set(BASELINES):
            raise ValueError(
                f"config.evaluate.baselines: {min(unknown)!r} is none of {', '.join(BASELINES)}; "
                "name other retrievers in config.evaluate.retrievers"
            )
        self._check_names()

    def _check_names(self) -> None:
        """Raises ValueError for equal names and for hybrids of unknown or too few systems."""
        if repeated := [name for i, name in enumerate(self.names) if name in self.names[:i]]:
            raise ValueError(
                f"config.evaluate: two systems would be called {repeated[0]!r}; leave one out or "
                "rename its folder"
            )
        ranked = set(self.names) - {"full", *self.hybrids, *self.reranked}
        for hybrid, parts in self.hybrids.items():
            if len(parts) < 2 or len(set(parts)) < len(parts) or set(parts) - ranked:
                raise ValueError(
                    f"config.evaluate.hybrids: {hybrid!r} must join two or more of "
                    f"{', '.join(sorted(ranked))} by +"
                )


def hyde_embedder(context: Context, questions: Sequence[Question]) -> Hyde:
    """Embeds these questions by HyDE with the base retriever; every process must call it."""
    embed = lambda texts, kind: encode(context, "base", texts, kind, f"embed {kind}s, {HYDE}")
    return Hyde(
        functools.partial(_write_passages, context, questions), embed, _hyde_template(context)
    )


def passage_calls(context: Context, questions: Sequence[Question]) -> list[complete.Call]:
    """A call for each question that asks for a passage which answers it."""
    filled = [prompts.fill(_hyde_template(context), question=x.question) for x in questions]
    return _passage_calls(questions, filled)


def _hyde_template(context: Context) -> str:
    return prompts.load_template(HYDE, context.config.prompts.hyde)


def _passage_calls(questions: Sequence[Question], filled: Sequence[str]) -> list[complete.Call]:
    pairs = zip(questions, filled, strict=True)
    return [complete.Call(f"{HYDE}/{question.id}", HYDE, (prompt,)) for question, prompt in pairs]


def _write_passages(
    context: Context, questions: Sequence[Question], filled: Sequence[str]
) -> list[str]:
    """The passage that answers each question's prompt; empty if the model gives none."""
    calls = _passage_calls(questions, filled)

    def ask_writer() -> list[str]:
        answers = ask(context, calls, "write passages", complete.accept_all)
        text = lambda item: "" if item in answers.rejected else answers.texts[item][-1]
        return [text(call.item) for call in calls]

    local = context.config.llm.backend == "local"
    return ask_writer() if local else distributed.on_first_process(ask_writer)


Rankings = dict[str, list[str]]  # question -> chunk ids, best first


def retrieve_baselines(context: Context, folder: Path) -> dict:
    """Stores what the untrained systems retrieve for each question."""
    questions, chunks = corpus.load_questions(context, "held_out"), corpus.stored_chunks(context)
    systems = Systems(context.config.evaluate, expand=context.config.search.expand)
    searched, scopes = searched_chunks(context, questions, chunks)
    depth = systems.depth + most_chunks(own_results(context, questions, chunks))

    def make_searcher(name: str) -> searcher.Searcher:
        base = "base" if name == HYDE else name
        searcher = searcher_of(context, base, corpus.passages_of(searched), name)
        if name == HYDE:
            searcher = dataclasses.replace(searcher, embed=hyde_embedder(context, questions))
        return searcher

    names = dict.fromkeys((*systems.untuned, WORDS))  # BM25 costs nothing
    for name in names:
        path, make_system = ranked_file(folder, name), functools.partial(make_searcher, name)
        search_once(path, questions, make_system, depth, scopes, searched)
    return {"systems": len(names)}


def retrieve_all(
    context: Context,
    systems: Systems,
    questions: list[Question],
    chunks: StoredChunks,
    folder: Path,
    fusion: Fusion | None = None,
) -> dict[str, Rankings]:
    """system -> question -> the ids of its first `systems.depth` chunks; "full" has none.

    Args:
        fusion: of BM25 and the last tuned retriever; None: by reciprocal ranks, as other hybrids.
    """
    excluded = own_results(context, questions, chunks)
    fusion, depth = fusion or Fusion(), systems.depth + most_chunks(excluded)
    if excluded:
        say(f"  {left_out(excluded)}")
    load = lambda name: load_search(ranked_file(context / "baselines", name), questions)
    searchers: dict[str, searcher.Searcher] = {name: load(name) for name in systems.untuned}
    searchers |= search_systems(context, folder, systems.tuned, questions, chunks, depth)
    searchers["full"] = searcher.Known([searcher.Ranking((), ())] * len(questions))
    for name, names in systems.hybrids.items():
        searchers[name] = searcher.Fused([searchers[part] for part in names], depth)
    if name := systems.shipped_hybrid:
        parts = (searchers[WORDS], searchers[systems.last])
        searchers[name] = searcher.Fused(parts, depth, fusion.join)
    for name, part in systems.reranked.items():
        score = lambda pairs: load_reranker(context, systems.reranker).score(pairs, label="rerank")
        make = functools.partial(searcher.Reranked, searchers[part], corpus.Passages(chunks), score)
        searchers[name] = search_once(ranked_file(folder, name), questions, make, depth)
    return ids_without_own(searchers, systems.names, questions, excluded, systems.depth)


def search_systems(
    context: Context,
    folder: Path,
    names: Iterable[str],
    questions: Sequence[Question],
    chunks: StoredChunks,
    depth: int,
) -> dict[str, searcher.Known]:
    """system -> what BM25 or its retriever finds for questions on chunks; stored in a folder."""
    searched, scopes = searched_chunks(context, questions, chunks)
    rankings = {}
    for name in names:
        make = functools.partial(searcher_of, context, name, corpus.passages_of(searched), name)
        path = ranked_file(folder, name)
        rankings[name] = search_once(path, questions, make, depth, scopes, searched)
    return rankings


def ids_without_own(
    searchers: Mapping[str, searcher.Searcher],
    names: Sequence[str],
    questions: Sequence[Question],
    excluded: Mapping[str, Collection[str]],
    k: int,
) -> dict[str, Rankings]:
    """system -> question -> the ids of its first k chunks that are not the question's own.

    Args:
        own: as `own_results` returns it.
    """
    found = ids_found(searchers, names, questions, k + most_chunks(excluded))
    return {
        name: {id: ids_except(ids, excluded.get(id, ()), k) for id, ids in of_system.items()}
        for name, of_system in found.items()
    }


def own_results(
    context: Context, questions: Sequence[Question], chunks: StoredChunks
) -> dict[str, frozenset[str]]:
    """question -> the chunks of its own document, which the run leaves out of its results."""
    return own_chunks(questions, chunks.by_document, context.config.evaluate.same_id)


def ids_except(ids: Sequence[str], excluded: Collection[str], k: int) -> list[str]:
    """The first k ids that are not a question's own."""
    return [id for id in ids if id not in excluded][:k]


def searcher_of(
    context: Context, system: str, texts: Sequence[str], label: str
) -> searcher.Searcher:
    """BM25 or a system's retriever, which searches texts; every process must call its search."""
    if system == WORDS:
        return searcher.OnFirstProcess(lambda: count_bm25(texts))
    return dense_searcher(context, system, texts, label)


def dense_searcher(
    context: Context, system: str, texts: Sequence[str], label: str
) -> searcher.Dense:
    """A system's retriever, which searches texts; every process must call its search."""
    vectors, _ = corpus.encode_passages(context, system, texts, f"embed chunks, {label}")
    embed = lambda asked: encode(context, system, asked, "query", f"embed questions, {label}")
    return searcher.Dense(vectors, embed)


def search_once(
    path: Path,
    questions: Sequence,
    make: Callable[[], searcher.Searcher],
    k: int,
    scopes: searcher.Scopes = None,
    chunks: Sequence[Chunk] | None = None,
) -> searcher.Known:
    """The rankings of questions: found by a searcher, stored in a file, and read from it later.

    Every process must call this.

    Args:
        make: makes the searcher; it is called if the file is not complete.
        k: results of each question.
        chunks: the chunks whose positions the searcher finds; their ids and scores are stored.
            None: results are stored without scores, which fusion by ranks does not need.
    """

    def search_rows() -> list[dict]:
        found = make().search([question.question for question in questions], k, scopes)
        rows = []
        for question, pairs in zip(questions, map(searcher.Ranking.pairs, found), strict=True):
            ids, scores = [id for id, _ in pairs], [score for _, score in pairs]
            row = {"ranked": ids}
            if chunks is not None:
                row = {"ranked": [chunks[i].id for i in ids], "scores": scores}
            rows.append({"question": question.id, **row})
        return rows

    return _known_rankings(stored_rows(path, search_rows), questions)


def load_search(path: Path, questions: Sequence) -> searcher.Known:
    """The rankings that `search_once` stored in a file."""
    return _known_rankings(load_rows(path), questions)


def _known_rankings(rows: Sequence[dict], questions: Sequence) -> searcher.Known:
    """A searcher that returns the stored rankings of these questions; missing scores are 0."""
    by_id = {row["question"]: row for row in rows}
    found = [by_id[question.id] for question in questions]
    scores = lambda row: row.get("scores", [0.0] * len(row["ranked"]))
    return searcher.Known([searcher.Ranking(row["ranked"], scores(row)) for row in found])


def ids_found(
    searchers: Mapping[str, searcher.Searcher], names: Sequence[str], questions: Sequence, k: int
) -> dict[str, dict]:
    """system -> question -> the ids of the first k results of its searcher."""
    texts = [question.question for question in questions]
    pairs = lambda name: zip(questions, searchers[name].search(texts, k), strict=True)
    return {name: {x.id: list(ranking.ids) for x, ranking in pairs(name)} for name in names}


def searched_chunks(
    context: Context, questions: list[Question], chunks: StoredChunks
) -> tuple[Sequence[Chunk], list[Sequence[int]]]:
    """The chunks that any question searches, and the positions of each question's own chunks."""
    scope = context.config.evaluate.scope
    if scope == "auto":
        scope = "corpus" if corpus.searches_corpus(context) else "document"
    return chunks_in_scope(scope, questions, chunks)


def chunks_in_scope(
    scope: str, questions: Sequence[Question], chunks: StoredChunks
) -> tuple[Sequence[Chunk], list[Sequence[int]]]:
    """As `searched_chunks`.

    Args:
        scope: as `evaluate.scope`, but for "auto".
    """
    searched, groups = corpus.views_of(chunks), chunks.by_document
    if scope != "corpus":
        named = {document for question in questions for document in question.documents}
        searched = [x for document in groups if document in named for x in groups[document]]
    everything = range(len(searched))
    if scope != "document":
        return searched, [everything] * len(questions)
    positions = {chunk.id: i for i, chunk in enumerate(searched)}
    return searched, [
        tuple(positions[chunk.id] for chunk in corpus.candidate_chunks(question, groups))
        if question.documents
        else everything
        for question in questions
    ]


def ranked_file(folder: Path, name: str) -> Path:
    """The file with the rankings of a system."""
    return folder / f"ranked-{name}.parquet"
