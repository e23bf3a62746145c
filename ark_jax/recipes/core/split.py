"""The split: which questions train, which are held out, and which take part in neither."""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence

from ark_jax.data.records import Question
from ark_jax.runtime.log import say

# If questions that name several documents join so large a share of all questions, documents cannot
# be held out: hardly a question would have all of its own on one side.
JOINED_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Split:
    """The questions of each part; `by` says whether documents or questions were divided."""

    train: list[Question]
    held_out: list[Question]
    unused: list[Question]
    by: str

    def __len__(self) -> int:
        return len(self.train) + len(self.held_out) + len(self.unused)


def id_set(ids: Iterable) -> set[str]:
    """Ids of a config as strings; the command line reads 7 as a number."""
    return {str(id) for id in ids}


def split_questions(questions: Sequence[Question], test: Sequence[Question], config) -> Split:
    """Divides the questions of the input; those of a test set of its own are all held out.

    The config names held-out questions or documents. Else a hash of ids draws a share, so that a
    new document moves no other one, or one fold of several. Documents that one question joins are
    drawn together; if such questions join most of them, questions are drawn instead. A question
    without an answer cannot be trained on unless `trains_by_marks`: if a share is drawn, it is held
    out.
    """
    settings = config.data
    documents, names = id_set(settings.held_out_documents), id_set(settings.held_out_questions)
    fold, folds = settings.fold
    if bool(documents) + bool(names) + bool(settings.test) + bool(folds) > 1:
        raise ValueError(
            "config.data: set held_out_questions, held_out_documents, test or fold, only one of "
            "them"
        )
    used, unused = _split_off_ignored(questions, settings)
    if settings.test:
        _check_test_ids(questions, test, settings)
        return _move_unanswered(Split(used, list(test), unused, "file"), "unused", config)
    if names:
        parts = _divide(used, lambda q: "held_out" if q.id in names else "train")
        return _move_unanswered(Split(*parts[:2], unused + parts[2], "question"), "unused", config)
    if documents:
        parts = _divide(used, lambda q: _part_by_documents(q, documents))
        return _move_unanswered(Split(*parts[:2], unused + parts[2], "document"), "unused", config)
    keys, unit = _draw_keys(used)
    key_of = dict(zip([q.id for q in used], keys, strict=True))
    if folds:
        _check_folds(keys, unit, config)
        fold_of = assign_folds(keys, folds, config.seed)
        parts = _divide(used, lambda q: "held_out" if fold_of[key_of[q.id]] == fold else "train")
        # Held out here, a question without an answer would be measured in every fold.
        return _move_unanswered(Split(*parts[:2], unused, unit), "unused", config)
    drawn = _draw_held_out(keys, settings.held_out, config.seed)
    parts = _divide(used, lambda q: "held_out" if key_of[q.id] in drawn else "train")
    return _move_unanswered(Split(*parts[:2], unused, unit), "held_out", config)


def _split_off_ignored(
    questions: Sequence[Question], settings
) -> tuple[list[Question], list[Question]]:
    ignored_documents = id_set(settings.ignored_documents)
    ignored_questions = id_set(settings.ignored_questions)
    used, unused = [], []
    for question in questions:
        ignored = question.id in ignored_questions or ignored_documents & set(question.documents)
        (unused if ignored else used).append(question)
    return used, unused


def _check_test_ids(questions: Sequence[Question], test: Sequence[Question], settings) -> None:
    if repeated := {q.id for q in questions} & {q.id for q in test}:
        raise ValueError(
            f"config.data.test: the question {min(repeated)!r} of {settings.test} is also in "
            f"{settings.path}; what is tested must not be trained on"
        )


def _divide(
    questions: Sequence[Question], part: Callable[[Question], str]
) -> tuple[list[Question], ...]:
    """Three lists: the questions whose part is "train", "held_out" and "unused"."""
    parts: dict[str, list[Question]] = {"train": [], "held_out": [], "unused": []}
    for question in questions:
        parts[part(question)].append(question)
    return tuple(parts.values())


def trains_by_marks(config) -> bool:
    """Whether questions without an answer are trained on, by what is marked for them.

    Rewriting needs an answer, so hard negatives must be found without it.
    """
    return (
        "score" in config and config.score.supervision == "gold" and config.mine.by != "rewritten"
    )


def _move_unanswered(split: Split, part: str, config) -> Split:
    """The split with unanswered training questions in `part`, unless they can be trained on."""
    unanswered = [question for question in split.train if not question.answers]
    # The config is read only where it decides: a manifest holds each setting that a stage reads.
    if not unanswered or trains_by_marks(config):
        return split
    return dataclasses.replace(
        split,
        train=[question for question in split.train if question.answers],
        **{part: getattr(split, part) + unanswered},
    )


def _part_by_documents(question: Question, held_out: set[str]) -> str:
    """The part of a question: "unused" if only some of its documents are held out."""
    documents = set(question.documents)
    if documents and documents <= held_out:
        return "held_out"
    return "unused" if documents & held_out else "train"


def document_keys(questions: Sequence[Question]) -> tuple[list[str], bool]:
    """A key for each question, and whether the questions can be divided by it.

    Questions that name several documents join these into one group. The key is that of the group;
    a question without documents is a group of its own. If one group holds most questions, they
    cannot be divided.
    """
    from networkx.utils import UnionFind

    joined = UnionFind()
    for question in questions:
        joined.union(*question.documents)
    group_key = {document: min(group) for group in joined.to_sets() for document in group}
    keys = [group_key[q.documents[0]] if q.documents else q.id for q in questions]
    joins = {key for q, key in zip(questions, keys, strict=True) if len(q.documents) > 1}
    sizes = collections.Counter(keys)
    one_group = len(sizes) == 1 < len(questions)
    most_joined = max((sizes[key] for key in joins), default=0)
    return keys, not one_group and most_joined <= JOINED_SHARE * len(questions)


def _draw_keys(questions: Sequence[Question]) -> tuple[list[str], str]:
    """The key by which each question is drawn; and "document" or "question", what is divided.

    The key is that of `document_keys`, or the question's id if these do not divide the questions.
    """
    keys, divides = document_keys(questions)
    if not divides:
        say(
            "  questions join most documents: the split is by question, so a held-out question may "
            "share passages with a training question"
        )
        return [question.id for question in questions], "question"
    unnamed = sum(not question.documents for question in questions)
    return keys, "question" if unnamed > len(questions) / 2 else "document"


def _check_folds(keys: Sequence[str], unit: str, config) -> None:
    groups, folds = len(set(keys)), config.data.fold[1]
    if groups < folds:
        noun = "questions" if unit == "question" else "groups of documents that no question joins"
        raise ValueError(
            f"config.data.fold={tuple(config.data.fold)}: {config.data.path} has {groups:,} {noun} "
            f"to divide, too few for {folds:,} folds; use fewer folds"
        )


def assign_folds(keys: Sequence[str], folds: int, seed: int) -> dict[str, int]:
    """key -> its fold, from 1 on; no fold is empty.

    The sizes of two folds differ by no more than the largest group of equal keys. Hashes decide
    between folds that have room, so that a new key moves few others.

    Args:
        keys: the key of each question.
        folds: at most the number of different keys.
    """
    sizes = collections.Counter(keys)
    room = len(keys) // folds
    loads: dict[int, int] = dict.fromkeys(range(1, folds + 1), 0)
    fold_of: dict[str, int] = {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], uniform(f"{seed} {key}"), key)):
        preferred = sorted(loads, key=lambda fold: uniform(f"{seed} {key} {fold}"))
        empty = [fold for fold in preferred if not loads[fold]]
        fitting = [fold for fold in preferred if loads[fold] + sizes[key] <= room]
        if len(empty) == len(sizes) - len(fold_of):  # each key that is left must fill one
            fitting = empty
        fold_of[key] = fitting[0] if fitting else min(preferred, key=loads.__getitem__)
        loads[fold_of[key]] += sizes[key]
    return fold_of


def _draw_held_out(keys: Iterable[str], share: float, seed: int) -> set[str]:
    """The keys whose hash is below the share.

    If that leaves one side empty, the key nearest to the limit goes there.
    """
    places = {key: uniform(f"{seed} {key}") for key in keys}
    drawn = {key for key, place in places.items() if place < share}
    if len(places) > 1 and 0 < share < 1:
        if not drawn:
            return {min(places, key=places.__getitem__)}
        if len(drawn) == len(places):
            return drawn - {max(places, key=places.__getitem__)}
    return drawn


def uniform(text: str) -> float:
    """A number in [0, 1) from a hash of `text`."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32
