"""Gold chunks of a question: the chunks that hold its evidence passages or one of its answers."""

import bisect
import functools
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

from ark_jax.data.records import Chunk, Question
from ark_jax.text.word_boundaries import is_unspaced


def gold_chunks(
    evidence: Sequence[str], documents: Mapping[str, str], chunks: Sequence[Chunk]
) -> list[list[str]]:
    """Finds the chunks that hold each evidence passage.

    A chunk holds a passage if it shares at least half of the shorter of the two. Overlapping chunks
    may hold the same passage, and so may chunks of distant places if the document repeats it; each
    of them counts. If chunk borders cut a passage so that no chunk has half, the chunks that share
    most of it hold it.

    Returns:
        For each passage that occurs in a chunk, the ids of the chunks that hold it.
    """
    gold = []
    for passage in evidence:
        places = {
            document: _occurrences(documents[document], passage)
            for document in dict.fromkeys(chunk.document for chunk in chunks)
        }
        shared = {
            chunk.id: _shared_length(chunk, places[chunk.document], len(passage))
            for chunk in chunks
        }
        longest = max(shared.values(), default=0)
        if not longest:
            continue
        holders = [
            chunk.id
            for chunk in chunks
            if 0 < min(len(passage), chunk.end - chunk.start) <= 2 * shared[chunk.id]
        ]
        gold.append(holders or [id for id, length in shared.items() if length == longest])
    return gold


def marked_passages(
    questions: Sequence[Question], chunks: Mapping[str, Sequence[Chunk]], texts: Mapping[str, str]
) -> dict[str, list[list[str]]]:
    """question -> its marked passages, each as the ids of the chunks that hold it.

    The evidence of a question without documents is looked for in the whole corpus.

    Args:
        texts: document id -> text; only evidence needs them.
    """
    passages: dict[str, list[list[str]]] = {question.id: [] for question in questions}
    for question in (question for question in questions if question.evidence):
        holders = question.documents or [
            id for id, text in texts.items() if any(x in text for x in question.evidence)
        ]
        pool = [chunk for document in holders for chunk in chunks.get(document, ())]
        passages[question.id] = gold_chunks(question.evidence, texts, pool)
    return passages


def needed_passages(
    questions: Sequence[Question],
    chunks: Mapping[str, Sequence[Chunk]],
    texts: Mapping[str, str],
    by: str = "evidence",
) -> tuple[dict[str, list[list[str]]], int]:
    """question -> needed passages, each as the chunks that hold it; and how many questions lack
    marked evidence.

    Without marked evidence a chunk that contains an answer is a passage. Without answers each
    document of the question is one.

    Args:
        chunks, texts: as in `marked_passages`.
        by: "answers" ignores the evidence of questions with answers.
    """
    marked = marked_passages(questions, chunks, texts)
    by_answer = [q for q in questions if q.answers and not (by == "evidence" and marked[q.id])]
    gold = with_documents(marked | chunks_with_answers(by_answer, chunks), questions, chunks)
    for question in questions:
        if not (question.answers or marked[question.id]):
            # A relevant document without text is needed, and nothing finds it.
            without_text = sum(not chunks.get(document) for document in question.documents)
            gold[question.id] = gold[question.id] + [[]] * without_text
    return gold, sum(not passages for passages in marked.values())


def with_documents(
    passages: Mapping[str, list[list[str]]],
    questions: Sequence[Question],
    chunks: Mapping[str, Sequence[Chunk]],
) -> dict[str, list[list[str]]]:
    """The passages of each question; of one without answers and passages, each of its documents.

    Args:
        passages: question -> its passages, each as the ids of the chunks that hold it.
    """
    completed = dict(passages)
    for question in questions:
        if not (question.answers or completed[question.id]):
            groups = (chunks.get(document, ()) for document in question.documents)
            completed[question.id] = [[chunk.id for chunk in group] for group in groups if group]
    return completed


def own_chunks(
    questions: Sequence[Question], chunks: Mapping[str, Sequence[Chunk]], same_id: str = "auto"
) -> dict[str, frozenset[str]]:
    """question -> the chunks of the document with its id, where results leave that out.

    Some benchmarks draw their questions from the corpus, and BEIR leaves each one's own out.

    Args:
        same_id: "auto" leaves a document out that has the question's words and is not marked as
            relevant; "leave_out" each that has its id; "keep" none.
    """
    excluded = {}
    for question in questions if same_id != "keep" else ():
        group = chunks.get(question.id, ())
        if group and (same_id == "leave_out" or _is_asked(question, group[0])):
            excluded[question.id] = frozenset(chunk.id for chunk in group)
    return excluded


def _is_asked(question: Question, first: Chunk) -> bool:
    """Whether a document, of which this is the first chunk, is the question itself."""
    if question.id in question.documents:
        return False
    asked, words = (" ".join(text.split()).casefold() for text in (question.question, first.text))
    return asked.startswith(words)


def most_chunks(excluded: Mapping[str, Collection[str]]) -> int:
    """How many more chunks a search must find, so that enough are left."""
    return max(map(len, excluded.values()), default=0)


def left_out(excluded: Mapping[str, Collection[str]]) -> str:
    """What to say of them; empty if there are none."""
    if not excluded:
        return ""
    return (
        f"{len(excluded):,} questions are documents of the corpus; each leaves its own out, as in "
        "BEIR (evaluate.same_id)"
    )


def _occurrences(text: str, passage: str) -> list[int]:
    """Start offsets of a passage in a text; occurrences do not overlap."""
    starts, start = [], text.find(passage) if passage else -1
    while start >= 0:
        starts.append(start)
        start = text.find(passage, start + len(passage))
    return starts


def _shared_length(chunk: Chunk, starts: Sequence[int], length: int) -> int:
    """Largest number of characters that a chunk shares with one occurrence of a passage."""
    first = bisect.bisect_right(starts, chunk.start - length)
    end = bisect.bisect_left(starts, chunk.end)
    overlaps = (
        min(chunk.end, start + length) - max(chunk.start, start) for start in starts[first:end]
    )
    return max(overlaps, default=0)


def count_absent_answers(
    questions: Sequence[Question], documents: Mapping[str, str]
) -> tuple[int, int]:
    """How many questions have no answer that occurs in one of their documents, and how many count.

    Case is ignored. Questions without answers or documents do not count.
    """
    # Questions on the same documents follow one another.
    folded = functools.lru_cache(64)(lambda document: documents.get(document, "").casefold())
    answerable = [question for question in questions if question.answers and question.documents]
    absent = sum(
        not any(
            answer.casefold() in folded(document)
            for answer in question.answers
            for document in question.documents
        )
        for question in answerable
    )
    return absent, len(answerable)


def answer_chunks(answers: Sequence[str], chunks: Sequence[Chunk]) -> list[list[str]]:
    """Finds the chunks that contain an answer, as one needed passage that any of them fulfils.

    An answer is contained if its tokens occur in order, ignoring case. Tokens are those of DPR:
    NFD, lower case, runs of letters, digits and marks, other characters one by one, blanks ignored.
    In scripts without blanks between words every letter is a token; DPR takes a whole sentence for
    one word there.

    Args:
        answers: accepted answers; empty ones are ignored.

    Returns:
        `[[chunk id, ...]]`, or `[]` if no chunk contains an answer.
    """
    return _answer_holders({"": answers}, chunks)[""]


def chunks_with_answers(
    questions: Sequence[Question], chunks: Mapping[str, Sequence[Chunk]]
) -> dict[str, list[list[str]]]:
    """question -> the chunks of its documents that contain an answer; see `answer_chunks`.

    A question without documents takes them from the whole corpus.
    """
    holders: dict[str, list[list[str]]] = {}
    for question in questions:
        if question.documents:
            pool = [chunk for document in question.documents for chunk in chunks.get(document, ())]
            holders[question.id] = answer_chunks(question.answers, pool)
    unplaced = {question.id: question.answers for question in questions if not question.documents}
    everything = (chunk for group in chunks.values() for chunk in group if unplaced)
    return holders | _answer_holders(unplaced, everything)


def _answer_holders(
    answers: Mapping[str, Sequence[str]], chunks: Iterable[Chunk]
) -> dict[str, list[list[str]]]:
    """question -> what `answer_chunks` returns; each chunk is tokenised once for all questions."""
    targets = {
        id: [tokens for tokens in map(_tokens, texts) if tokens.strip()]
        for id, texts in answers.items()
    }
    ids: dict[str, list[str]] = {id: [] for id in targets}
    for chunk in chunks:
        tokens = _tokens(chunk.text)
        for id, wanted in targets.items():
            if any(target in tokens for target in wanted):
                ids[id].append(chunk.id)
    return {id: [holders] if holders else [] for id, holders in ids.items()}


@functools.lru_cache(4096)  # questions about one document tokenise the same chunks
def _tokens(text: str) -> str:
    """Tokens between single blanks, so that `in` on two such strings compares whole tokens."""
    normalised = unicodedata.normalize("NFD", text).lower()
    return f" {' '.join(normalised.translate(_SEPARATED).split())} "


class _SeparatedCharacters(dict):
    """A table for `str.translate`: blanks around one-character tokens. Filled on demand."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)[0]
        if category in "ZC":
            separated = " "
        elif category in "LNM" and not is_unspaced(character):
            separated = character
        else:
            separated = f" {character} "
        self[code] = separated
        return separated


_SEPARATED = _SeparatedCharacters()
