"""The systems that are compared on a test set, and what each ranks."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ark_jax.compare.questions import Task
from ark_jax.index import folder as folders
from ark_jax.index.index import Index, absolute_model
from ark_jax.recipes.documents.retrieve import HYDE, WORDS
from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.fusion import retriever_fusion
from ark_jax.retrieval.hyde import NAME, Hyde, Write
from ark_jax.retrieval.searcher import Dense, named_searcher
from ark_jax.text import prompts

SUFFIX = f"+{HYDE}"
RUN, ANSWERS = "run", "answers"  # in front of the file with a system's rankings or answers
_FILE = re.compile(rf"({RUN}|{ANSWERS}):([^#]+)(?:#(.+))?")


@dataclasses.dataclass(frozen=True)
class System:
    """One system of a comparison, which ranks passages, or of which a file holds the output.

    Attributes:
        name: the name of its row in the table.
        model: folder or hub name of the retriever, or the folder of an index; empty for BM25.
        by: "dense", "bm25" or "hybrid", as `Index.search` takes it; `RUN` or `ANSWERS` of a file.
        expands: whether the retriever searches by HyDE.
        file: holds its rankings or answers; empty if it searches.
        part: the system of the file, which may hold several.
    """

    name: str
    model: str
    by: str
    expands: bool = False
    file: str = ""
    part: str = ""


def parse_systems(words: Sequence[str]) -> list[System]:
    """The systems that words name: a retriever, `bm25`, or `RETRIEVER+bm25`, of which all but
    `bm25` may end in `+hyde`; or `run:FILE` or `answers:FILE`, of a file of several systems with
    `#NAME`.

    A row is named by the last part of a path, or by the whole path if two end alike; that of a file
    by NAME or the file's name without suffixes, or by the whole word if another row is called so.

    Raises:
        ValueError: a word is empty or comes twice, something is to be searched or ranked and no
            retriever is named, or two indices are.
    """
    if repeated := [word for i, word in enumerate(words) if word in words[:i]]:
        raise ValueError(f"--models: {repeated[0]!r} comes twice; name each system once")
    files = {word: match for word in words if (match := _FILE.fullmatch(word.strip()))}
    models = {word: _parse_model(word) for word in words if word not in files}
    ranks = models or not files or any(match[1] == RUN for match in files.values())
    if ranks and not any(models.values()):
        raise ValueError(
            f"--models={','.join(words)}: name a retriever too, such as MODEL or MODEL+bm25; its "
            "tokens decide how documents are cut"
        )
    _check_indices(models.values())
    ends = {model: Path(model).name for model in models.values() if model}
    unique = lambda model: list(ends.values()).count(ends[model]) == 1
    short = {model: end if end and unique(model) else model for model, end in ends.items()}
    names = {word: _row_name(word, model, short) for word, model in models.items()}
    stems = {word: match[3] or Path(match[2]).name.split(".")[0] for word, match in files.items()}
    taken = [*names.values(), *stems.values()]
    names |= {word: stem if taken.count(stem) == 1 else word for word, stem in stems.items()}
    return [
        System(names[word], "", files[word][1], file=files[word][2], part=files[word][3] or "")
        if word in files
        else System(
            names[word], models[word], _parse_ranker(word, models[word]), word.endswith(SUFFIX)
        )
        for word in words
    ]


def _check_indices(models: Iterable[str]) -> None:
    """Raises ValueError if two of the models are indices."""
    indices = {model for model in models if model and folders.is_index(Path(model).expanduser())}
    if len(indices) > 1:
        raise ValueError(
            f"--models: {' and '.join(sorted(indices))} are indices; give one, since all systems "
            "search its passages, and name the models of others"
        )


def _parse_model(word: str) -> str:
    """The retriever that a word names; empty for BM25 alone. Raises ValueError."""
    model = word.removesuffix(SUFFIX).removeprefix(f"{WORDS}+").removesuffix(f"+{WORDS}").strip()
    if not model or (model == WORDS and word.strip() != WORDS):
        raise ValueError(
            f"--models: {word!r} names no system; write MODEL, bm25, MODEL+bm25, MODEL+hyde, "
            "run:FILE or answers:FILE"
        )
    return "" if model == WORDS else model


def _row_name(word: str, model: str, short: dict[str, str]) -> str:
    return word.replace(model, short[model]) if model else WORDS


def _parse_ranker(word: str, model: str) -> str:
    """`System.by` of a word."""
    if not model:
        return "bm25"
    return "dense" if word.removesuffix(SUFFIX).strip() == model else "hybrid"


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

    Where the whole index is searched, they are those of `Index.search`. Memory holds one retriever
    at a time.

    Args:
        write: the language model of systems that expand questions.
    """
    write = write and functools.cache(write)  # once for all retrievers
    texts = [question.question for question in task.questions]
    is_whole, index, rankings = task.scope == "corpus", task.index, {}
    ids = index.chunks.ids if is_whole else [chunk.id for chunk in task.searched]
    by_words = any(system.by != "dense" for system in systems)
    counts_words = not is_whole and by_words
    words = count_bm25([x.passage for x in task.searched]) if counts_words else index.words
    for model in dict.fromkeys(system.model for system in systems):
        opened = with_vectors(index, model)
        vectors = opened.vectors if is_whole or not model else opened.vectors[task.positions]
        embed = lambda texts, kind, opened=opened: opened.retriever.encode(texts, kind=kind)
        for system in (system for system in systems if system.model == model):
            embed_queries = functools.partial(embed, kind="query")
            if system.expands:
                embed_queries = Hyde(write, embed, prompts.load_template(NAME))
            dense = Dense(vectors, embed_queries)
            searcher = named_searcher(system.by, words, dense, opened.manifest.fusion, depth)
            found = searcher.search(texts, depth, None if is_whole else task.scopes)
            rankings[system.name] = [[ids[i] for i in ranking.ids] for ranking in found]
    return {system.name: rankings[system.name] for system in systems}


def with_vectors(index: Index, model: str) -> Index:
    """The index with the vectors of a model, and the fusion that the model asks for.

    Args:
        model: the index itself, its own model, another one, or "" for BM25 alone.
    """
    if not model or absolute_model(model) in (str(index.folder), index.model):
        return index
    opened = index.with_model(model)
    manifest = dataclasses.replace(opened.manifest, fusion=retriever_fusion(opened.model))
    return dataclasses.replace(opened, manifest=manifest)
