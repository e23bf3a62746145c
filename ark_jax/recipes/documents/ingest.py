"""The data stage: documents and questions are read, split and cut into chunks."""

import collections
import dataclasses
import functools
import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ark_jax.data import readers
from ark_jax.data.evidence import count_absent_answers
from ark_jax.data.problems import Reading
from ark_jax.data.records import Chunk, Corpus, Document, Question
from ark_jax.data.spool import StoredChunks, save_chunks
from ark_jax.pipeline.parts import forget_shards, map_stored
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_json
from ark_jax.recipes.core.split import Split, id_set, split_questions, trains_by_marks
from ark_jax.recipes.documents import written_questions
from ark_jax.recipes.documents.corpus import POOL_FILE, TRAINING, save_documents, save_questions
from ark_jax.retrieval.chunks import ChunkRules, cut_documents
from ark_jax.runtime.log import say

# If the documents of a question have fewer chunks, in the median, the whole corpus is searched:
# so few chunks hold hardly a hard negative, and every retriever finds the right one.
FEW_CHUNKS = 10


def ingest(context: Context, folder: Path) -> dict:
    """Cuts documents into passages, and parts questions to train on from held-out ones."""
    config, settings = context.config, context.config.data
    corpus = _read_input(settings, settings.tolerate)
    test = _read_test_set(corpus, settings)
    _check_ids(corpus, settings)
    parts = split_questions(corpus.questions, test.questions, config)
    parts = written_questions.reserve_for_test(parts, config)
    _check_parts(parts, written_questions.parts_that_need_questions(len(parts), config), config)
    documents = _Documents(corpus, test, id_set(settings.ignored_documents))
    sizes: collections.Counter[str] = collections.Counter()
    ids = save_documents(documents, folder)
    chunks = cut_documents(
        documents,
        corpus.chunks,
        config.retriever.path,
        _chunk_rules(settings),
        functools.partial(map_stored, folder, "chunks"),
    )
    save_chunks(_count_by_document(chunks, sizes), folder)
    counts = _cut_for_training(documents, config, folder)
    forget_shards(folder)
    choice = settings.pool
    if choice == "auto" and any(map(_is_judged, parts.train)):
        say("  questions have relevant documents alone, so the whole corpus is searched")
        choice = "corpus"
    pool = choose_pool(choice, [*parts.train, *parts.held_out], sizes)
    written_questions.save_sides(ids, parts, config, folder)
    several = settings.test and len(readers.split_paths(settings.test)) > 1
    save_json({"pool": pool} | ({"test_sets": True} if several else {}), folder / POOL_FILE)
    save_questions(parts.train, folder / "questions_train.parquet")
    save_questions(parts.held_out, folder / "questions_held_out.parquet")
    return {
        "format": corpus.format,
        "documents": len(ids),
        "chunks": sizes.total(),
        **counts,
        "train_questions": len(parts.train),
        "held_out_questions": len(parts.held_out),
        "unused_questions": len(parts.unused),
        "split_by": parts.by,
        "pool": pool,
        **_count_useless(corpus, test, parts, sizes),
    }


def _cut_for_training(documents: Iterable[Document], config, folder: Path) -> dict[str, int]:
    sentences = config.data.get("training_sentences", 0)
    if not sentences:
        return {}
    rules = dataclasses.replace(
        _chunk_rules(config.data), chunking="sentences", overlap=0, sentences=sentences
    )
    run = functools.partial(map_stored, folder, "training")
    (folder / TRAINING).mkdir(exist_ok=True)
    save_chunks(
        cut_documents(documents, None, config.retriever.path, rules, run), folder / TRAINING
    )
    return {"training_chunks": len(StoredChunks(folder / TRAINING))}


def _is_judged(question: Question) -> bool:
    """Whether a question has neither answers nor evidence, only relevant documents."""
    return not (question.answers or question.evidence)


def _chunk_rules(settings) -> ChunkRules:
    return ChunkRules(
        settings.chunking, settings.chunk_tokens, settings.chunk_overlap, settings.titles
    )


def _check_parts(parts: Split, needed: Iterable[str], config) -> None:
    settings = config.data
    for part in needed:
        if not getattr(parts, part):
            answered = any(q.answers for q in (*parts.held_out, *parts.unused))
            if part == "train" and not answered and not trains_by_marks(config):
                raise ValueError(
                    f"{settings.path}: none of the {len(parts)} questions has an answer, so none "
                    f"can be trained on: add answers{_advice_on_missing_answers(config)}"
                )
            raise ValueError(
                f"{settings.path}: the split leaves no {part.replace('_', '-')} question of "
                f"{len(parts)}; change config.data.held_out or name config.data.held_out_documents"
            )


def _advice_on_missing_answers(config) -> str:
    """The end of an error message: what else helps if answers are missing."""
    by_marks = (
        ", or train on the documents and evidence that are marked for them with "
        "--config.score.supervision=gold"
    )
    return by_marks * ("score" in config) + written_questions.advice(config)


def describe_input(config) -> str:
    """The size of the input that `config.data` names, in one line."""
    corpus = _read_input(config.data, 0)
    return f"{len(corpus.documents):,} documents, {len(corpus.questions):,} questions"


def _read_input(settings, tolerate: float) -> Corpus:
    """The documents and their questions, which may be in another file."""
    read = readers.read(settings.path, settings.questions, _reading_options(settings))
    return readers.within_tolerance(*read, tolerate)


def _reading_options(settings) -> Reading:
    return Reading(settings.encoding, settings.columns)


def _read_test_set(corpus: Corpus, settings) -> Corpus:
    """The test set that the config names; an empty corpus if it names none."""
    if not settings.test:
        return Corpus([], [], "")
    return readers.within_tolerance(
        *readers.read_test(settings.test, corpus.texts, _reading_options(settings)),
        settings.tolerate,
    )


class _Documents:
    """The documents of input and test set, without ignored ones; they may be read repeatedly."""

    def __init__(self, corpus: Corpus, test: Corpus, ignored: set[str]):
        self._corpus, self._test, self._ignored = corpus, test, ignored

    def __iter__(self) -> Iterator[Document]:
        known = self._corpus.texts
        new = (document for document in self._test.documents if document.id not in known)
        for document in itertools.chain(self._corpus.documents, new):
            if document.id not in self._ignored:
                yield document


def _count_by_document(chunks: Iterable[Chunk], sizes: collections.Counter[str]) -> Iterator[Chunk]:
    """Yields the chunks and counts them in `sizes` by document."""
    for chunk in chunks:
        sizes[chunk.document] += 1
        yield chunk


def choose_pool(
    choice: str,
    questions: Sequence[Question],
    sizes: Mapping[str, int],
    setting: str = "config.data.pool",
) -> str:
    """Where candidates and results come from: "documents" or "corpus".

    Args:
        choice: "auto", or one of both.
        setting: the name of the setting in messages.
    """
    unnamed = sum(not question.documents for question in questions)
    if choice == "documents" and unnamed:
        raise ValueError(
            f"{setting}=documents: {unnamed:,} questions name no document; name them, or set "
            f"{setting}=corpus"
        )
    if choice != "auto":
        return choice
    if unnamed:
        say(f"  {unnamed:,} questions name no document, so the whole corpus is searched")
        return "corpus"
    total = sum(sizes.values())
    chunk_counts = [sum(sizes.get(d, 0) for d in question.documents) for question in questions]
    # Before questions are written, each document counts as one question's.
    median = statistics.median(chunk_counts or sizes.values() or [0])
    if median >= FEW_CHUNKS or median >= total:
        if median < total:
            say(
                f"  a question searches its own documents, of {median:g} chunks (median); "
                f"{setting}=corpus searches all {total:,} chunks"
            )
        return "documents"
    say(
        f"  the documents of a question have {median:g} chunks (median), so candidates come from "
        f"all {total:,} chunks; {setting}=documents keeps to its documents"
    )
    return "corpus"


def _count_useless(
    corpus: Corpus, test: Corpus, parts: Split, sizes: Mapping[str, int]
) -> dict[str, int]:
    """reason -> how much of the input trains and measures nothing; without zeros."""
    used = [*parts.train, *parts.held_out]
    named = [question for question in (*used, *parts.unused) if question.documents]
    without_chunks = sum(sizes.keys().isdisjoint(question.documents) for question in named)
    texts = collections.ChainMap(corpus.texts, test.texts)
    absent, _ = count_absent_answers(used, texts)
    unanswered = sum(not question.answers for question in used)
    if without_chunks:
        say(f"  {without_chunks:,} questions are about documents without text, and train nothing")
    if any(not question.answers for question in parts.train):
        say(f"  {unanswered:,} questions have no answer: what is marked for them is relevant")
    elif unanswered:
        say(f"  {unanswered:,} questions have no answer: they are held out and measure retrieval")
    remarks = [*corpus.remarks, *test.remarks]
    for remark in remarks:
        say(f"  {remark}")
    counts = {
        "questions_without_text": without_chunks,
        "questions_without_answers": unanswered,
        "answers_not_in_documents": absent,
        "passed_over": sum(remark.rows for remark in remarks),
    }
    return {name: count for name, count in counts.items() if count}


def _check_ids(corpus: Corpus, settings) -> None:
    ids = {"document": corpus.texts, "question": {q.id for q in corpus.questions}}
    for kind, known in ids.items():
        named = id_set(settings[f"held_out_{kind}s"]) | id_set(settings[f"ignored_{kind}s"])
        if unknown := {id for id in named if id not in known}:
            raise ValueError(
                f"config.data: no {kind} {min(unknown)!r} in {settings.path}; see `ark-jax check`"
            )
