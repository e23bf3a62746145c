"""The systems that are compared on a test set, and what each ranks."""

import collections
import contextlib
import dataclasses
import functools
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ark_jax.comparison.questions import Task
from ark_jax.index import folder as folders
from ark_jax.index.index import Index, absolute_model
from ark_jax.recipes.documents.corpus import Passages, passages_of
from ark_jax.recipes.documents.retrieve import HYDE, WORDS
from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.fusion import retriever_fusion
from ark_jax.retrieval.hyde import Hyde, Write
from ark_jax.retrieval.searcher import Dense, Known, Ranking, Reranked, named_searcher
from ark_jax.retrieval.turns import NAME as TURNS
from ark_jax.retrieval.turns import Turns
from ark_jax.runtime.log import say
from ark_jax.text import prompts

RUN, ANSWERS = "run", "answers"  # in front of the file with a system's rankings or answers
READER = "reader"  # in front of what the reader reads in place of a ranking
ALONE, STEPS, ORACLE, DOCUMENT = (f"{READER}:{x}" for x in ("alone", "steps", "oracle", "document"))
UNRANKED = (ALONE, STEPS, ORACLE, DOCUMENT)
_FILE = re.compile(rf"({RUN}|{ANSWERS}):([^#]+)(?:#(.+))?")
_RERANK = "+rerank:"  # in front of a reranker's folder


@dataclasses.dataclass(frozen=True)
class System:
    """One system of a comparison, which ranks passages, or of which a file holds the output.

    Attributes:
        name: the name of its row in the table.
        model: folder or hub name of the retriever, or the folder of an index; empty for BM25.
        by: "dense", "bm25" or "hybrid", as `Index.search` takes it; `RUN` or `ANSWERS` of a file;
            `READER` of one of `UNRANKED`.
        expands: whether the retriever searches by HyDE.
        turns: whether it searches again, by a sentence of reasoning on what it found.
        reranker: folder or hub name of a pair scorer that orders what it finds; or "".
        file: holds its rankings or answers; empty if it searches.
        part: the system of the file, which may hold several.
    """

    name: str
    model: str
    by: str
    expands: bool = False
    turns: bool = False
    reranker: str = ""
    file: str = ""
    part: str = ""

    @property
    def ranks(self) -> bool:
        """Whether it ranks passages."""
        return self.by not in (ANSWERS, READER)


def parse_systems(words: Sequence[str]) -> list[System]:
    """The systems that words name: a retriever, `bm25`, or `RETRIEVER+bm25`, of which all but
    `bm25` may be followed by `+hyde`, and all by `+turns`; or `run:FILE` or `answers:FILE`, of a
    file of several systems with `#NAME`; or one of `UNRANKED`. What ranks may end in
    `+rerank:FOLDER`.

    A row is named by the last part of a path, or by the whole path if two end alike; that of a file
    by NAME or the file's name without suffixes, or by the whole word if another row is called so.

    Raises:
        ValueError: a word is empty or comes twice, something is to be searched or ranked and no
            retriever is named, or two indices are.
    """
    if repeated := [word for i, word in enumerate(words) if word in words[:i]]:
        raise ValueError(f"--models: {repeated[0]!r} comes twice; name each system once")
    parsed = [_parse_system(word) for word in words]
    needs_passages = any(x.ranks or x.name in (ORACLE, DOCUMENT) for x in parsed)
    if needs_passages and not any(x.model for x in parsed):
        raise ValueError(
            f"--models={','.join(words)}: name a retriever too, such as MODEL or MODEL+bm25; its "
            "tokens decide how documents are cut"
        )
    _check_indices(x.model for x in parsed)
    ends = {path: Path(path).name for x in parsed for path in (x.model, x.reranker) if path}
    alike = collections.Counter(ends.values())
    short = {path: end if end and alike[end] == 1 else path for path, end in ends.items()}
    names = [_row_name(system, short) for system in parsed]
    is_taken = lambda system, name: system.file and names.count(name) > 1
    return [
        dataclasses.replace(system, name=word if is_taken(system, name) else name)
        for word, system, name in zip(words, parsed, names, strict=True)
    ]


def _parse_system(word: str) -> System:
    """The system that a word names, called by the word without `+rerank:FOLDER`."""
    name, reranks, reranker = word.strip().partition(_RERANK)
    rest = name.removesuffix(f"+{TURNS}")
    base = rest.removesuffix(f"+{HYDE}")
    model = base.removeprefix(f"{WORDS}+").removesuffix(f"+{WORDS}").strip()
    turns, expands = rest != name, base != rest
    match = _FILE.fullmatch(name)
    is_words, is_whole = model == WORDS, bool(model and (reranker or not reranks))
    if is_whole and match and not (turns or expands or (reranks and match[1] != RUN)):
        file = {"file": match[2], "part": match[3] or ""}
        return System(name, "", match[1], reranker=reranker, **file)
    if is_whole and name in UNRANKED and not reranks:
        return System(name, "", READER)
    is_search = is_whole and not match and not name.startswith(f"{READER}:")
    if is_search and not (is_words and (expands or base != WORDS)):
        by = "bm25" if is_words else "dense" if base == model else "hybrid"
        return System(name, "" if is_words else model, by, expands, turns, reranker)
    raise ValueError(
        f"--models: {word!r} names no system; write MODEL, bm25, MODEL+bm25, MODEL+hyde, "
        f"MODEL+turns, MODEL+rerank:FOLDER, run:FILE, answers:FILE, {', '.join(UNRANKED)}"
    )


def _check_indices(models: Iterable[str]) -> None:
    indices = {model for model in models if model and folders.is_index(Path(model).expanduser())}
    if len(indices) > 1:
        raise ValueError(
            f"--models: {' and '.join(sorted(indices))} are indices; give one, since all systems "
            "search its passages, and name the models of others"
        )


def _row_name(system: System, short: Mapping[str, str]) -> str:
    name = system.name
    if system.file:
        name = system.part or Path(system.file).name.split(".")[0]
    elif system.model:
        name = name.replace(system.model, short[system.model])
    return f"{name}{_RERANK}{short[system.reranker]}" if system.reranker else name


def find_reference(reference: str, systems: Sequence[System], words: Sequence[str]) -> str:
    """The name of the reference's row. Empty means the first row.

    Args:
        reference: a row's name, or a word of the command line.

    Raises:
        ValueError: it is neither.
    """
    if not reference:
        return systems[0].name
    for system, word in zip(systems, words, strict=True):
        if reference in (system.name, word):
            return system.name
    names = ", ".join(system.name for system in systems)
    raise ValueError(f"--reference={reference}: must be one of {names}")


def rank(
    task: Task, systems: Sequence[System], depth: int, write: Write | None = None
) -> dict[str, list[list[str]]]:
    """system -> the ids of the first `depth` chunks of each question, in the questions' order.

    Where the whole index is searched, they are those of `Index.search` without its reranker.
    Memory holds one retriever at a time.

    Args:
        write: the language model of systems that expand questions or search by turns.
    """
    texts = [question.question for question in task.questions]
    is_whole, index, rankings = task.scope == "corpus", task.index, {}
    if index.manifest.reranker and not any(system.reranker for system in systems):
        name = index.manifest.reranker
        say(f"  {index.folder} has a reranker: MODEL{_RERANK}{name} measures what it adds")
    searched = index.chunks if is_whole else task.searched
    ids = index.chunks.ids if is_whole else [chunk.id for chunk in searched]
    passages = passages_of(searched)
    by_words = any(system.by != "dense" for system in systems)
    words = (
        index.words if is_whole or not by_words else count_bm25(passages, index.manifest.tokenizer)
    )
    for model in dict.fromkeys(system.model for system in systems):
        opened = with_vectors(index, model)
        vectors = opened.vectors if is_whole or not model else opened.vectors[task.positions]
        embed = lambda texts, kind, opened=opened: opened.retriever.encode(texts, kind=kind)
        for system in (system for system in systems if system.model == model):
            embed_queries = functools.partial(embed, kind="query")
            if system.expands:
                embed_queries = Hyde(write, embed, prompts.load_template(HYDE))
            dense = Dense(vectors, embed_queries)
            searcher = named_searcher(system.by, words, dense, opened.manifest.fusion, depth)
            if system.turns:
                searcher = Turns(searcher, passages, write, prompts.load_template(TURNS))
            with _timed(f"search {system.name}", len(texts)):
                results = searcher.search(texts, depth, None if is_whole else task.scopes)
            rankings[system.name] = [[ids[i] for i in ranking.ids] for ranking in results]
    return {system.name: rankings[system.name] for system in systems}


def rerank(task: Task, system: System, ranked: Sequence[Sequence[str]]) -> list[list[str]]:
    """The ids of each question in the order of a system's reranker.

    An id that the index lacks counts as an empty passage.
    """
    from ark_jax.models.pairs import CrossEncoder

    texts = [question.question for question in task.questions]
    passages = Passages(task.index.chunks)
    shown = {id: passages.get(id, "") for ids in ranked for id in ids}
    first = Known([Ranking(ids, [0.0] * len(ids)) for ids in ranked])
    reranked = Reranked(first, shown, CrossEncoder.from_pretrained(system.reranker).score)
    with _timed(f"rerank {system.name}", len(texts)):
        results = reranked.search(texts, max(map(len, ranked), default=0))
    return [list(ranking.ids) for ranking in results]


@contextlib.contextmanager
def _timed(label: str, questions: int) -> Iterator[None]:
    """Says how long each question took, compilation included."""
    start = time.perf_counter()
    yield
    say(f"  {label}: {1000 * (time.perf_counter() - start) / questions:.1f} ms a question")


def with_vectors(index: Index, model: str) -> Index:
    """The index with the vectors of a model, and the fusion that the model asks for.

    Args:
        model: the index itself, its own model, another one, or "" for BM25 alone.
    """
    name = absolute_model(model) if model else ""
    has_own = name == index.model and index.manifest.engine == "jax"
    if not model or has_own or name == str(index.folder):
        return index
    opened = index.with_model(model)
    manifest = dataclasses.replace(opened.manifest, fusion=retriever_fusion(opened.model))
    return dataclasses.replace(opened, manifest=manifest)
