"""The answer in a reader's reply, and scores of answers against references."""

import collections
import contextlib
import importlib.util
import re
import string
import sys
from collections.abc import Iterator, Sequence

from ark_jax.text.thoughts import split_thought


def normalise(text: str) -> list[str]:
    """Tokens as in SQuAD: lower case, without punctuation and articles."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def f1(answer: str, references: Sequence[str]) -> float:
    """Token F1, the best over the references."""
    return max(
        (_token_f1(normalise(answer), normalise(reference)) for reference in references),
        default=0.0,
    )


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1 if the normalised answer equals a normalised reference, else 0."""
    return float(any(normalise(answer) == normalise(reference) for reference in references))


def _token_f1(answer: list[str], reference: list[str]) -> float:
    common = sum((collections.Counter(answer) & collections.Counter(reference)).values())
    if not common:
        return 0.0
    precision, recall = common / len(answer), common / len(reference)
    return 2 * precision * recall / (precision + recall)


def check_rouge() -> None:
    """Checks that ROUGE-L can run.

    Raises:
        RuntimeError: the package `rouge` is not installed.
    """
    if not importlib.util.find_spec("rouge"):
        raise RuntimeError(
            "ROUGE-L needs the library rouge: pip install 'ark-jax[evaluate]', or leave rouge_l "
            "out of config.evaluate.answers"
        )


def rouge_l(answer: str, references: Sequence[str]) -> float:
    """F of ROUGE-L, the best over the references, computed by the package that LongBench uses.

    Texts without a word score 0. LongBench also gives 0 if the package exceeds Python's recursion
    limit, in sentences of a thousand words; here the limit is raised and they are scored.

    Raises:
        RuntimeError: the package `rouge` is not installed.
    """
    check_rouge()
    from rouge import Rouge

    if not _has_sentence(answer):
        return 0.0
    score = Rouge(metrics=["rouge-l"]).get_scores
    longest = max((len(reference.split()) for reference in references), default=0)
    with _recursion_limit(len(answer.split()) + longest):
        scores = [
            score(answer, reference)[0]["rouge-l"]["f"]
            for reference in references
            if _has_sentence(reference)
        ]
    return max(scores, default=0.0)


def _has_sentence(text: str) -> bool:
    """Whether a text has more than full stops and blanks, on which `rouge` fails."""
    return bool(text.replace(".", "").strip())


@contextlib.contextmanager
def _recursion_limit(calls: int) -> Iterator[None]:
    """Increases Python's recursion limit by two frames for each of `calls`."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 2 * calls)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


ANSWER_METRICS = {"answer_f1": f1, "exact_match": exact_match, "rouge_l": rouge_l}  # of replies
LIKELIHOOD = "answer_likelihood"  # of a reference answer as the reply; the reader writes none
ANSWER_COLUMNS = (*ANSWER_METRICS, LIKELIHOOD)
_BY_F1 = ["narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "triviaqa"]
_BY_ROUGE_L = ["gov_report", "qmsum", "multi_news", "samsum"]
LONGBENCH = {**dict.fromkeys(_BY_F1, f1), **dict.fromkeys(_BY_ROUGE_L, rouge_l)}
FEW_SHOT = ("triviaqa", "samsum")  # after its answer a model makes up the next example


def needs_replies(columns: Sequence[str]) -> bool:
    """Whether any metric needs a reply; the likelihood of an answer does not."""
    return set(columns) != {LIKELIHOOD}


def longbench_score(dataset: str, answer: str, references: Sequence[str]) -> float:
    """LongBench's score of one answer, 0 to 1.

    LongBench reports the mean over a dataset, times 100, to two decimals. Of the few-shot datasets
    only the first line of the answer counts.

    Raises:
        KeyError: the dataset is not in `LONGBENCH`, its English sets of answers and summaries.
    """
    metric = LONGBENCH[dataset]
    if dataset in FEW_SHOT:
        answer = answer.lstrip("\n").split("\n")[0]
    return metric(answer, references)


def first_line(reply: str) -> str:
    """The answer in a reader's reply: the first non-empty line outside thoughts."""
    return split_thought(reply).answer.strip().partition("\n")[0].strip()
