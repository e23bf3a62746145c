"""Answers read from retrieved passages, and how near they come to the references."""

import collections
import contextlib
import importlib.util
import re
import string
import sys
from collections.abc import Iterator, Sequence

from ark_jax.text import prompts
from ark_jax.text.replies import spoken


def normalise(text: str) -> list[str]:
    """SQuAD's tokens: lower case, no punctuation, no articles."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def f1(given: str, references: Sequence[str]) -> float:
    """Token F1, the best over the references."""
    return max((_f1(normalise(given), normalise(reference)) for reference in references), default=0.0)


def exact_match(given: str, references: Sequence[str]) -> float:
    """1 if the normalised answer equals a normalised reference."""
    return float(any(normalise(given) == normalise(reference) for reference in references))


def _f1(given: list[str], reference: list[str]) -> float:
    common = sum((collections.Counter(given) & collections.Counter(reference)).values())
    if not common:
        return 0.0
    precision, recall = common / len(given), common / len(reference)
    return 2 * precision * recall / (precision + recall)


def check_rouge() -> None:
    """Raises:
        RuntimeError: the library that computes ROUGE-L is not installed.
    """
    if not importlib.util.find_spec("rouge"):
        raise RuntimeError("ROUGE-L needs the library rouge: pip install 'ark-jax[evaluate]', or leave rouge_l out of "
                           "config.evaluate.answers")


def rouge_l(given: str, references: Sequence[str]) -> float:
    """F of ROUGE-L, the best over the references, by the library that LongBench uses; a text without words gets 0.

    LongBench gives 0 too where the library recurses too deeply, over sentences of a thousand words; here they are scored.

    Raises:
        RuntimeError: the library is not installed.
    """
    check_rouge()
    from rouge import Rouge

    score = Rouge(metrics=["rouge-l"]).get_scores
    worded = lambda text: text.replace(".", "").strip()  # it knows sentences by their full stops, and fails where there is none
    with _deep(len(given.split()) + max((len(reference.split()) for reference in references), default=0)):
        return max((score(given, reference)[0]["rouge-l"]["f"] for reference in references
                    if worded(given) and worded(reference)), default=0.0)


@contextlib.contextmanager
def _deep(calls: int) -> Iterator[None]:
    """Lets Python functions call each other so much more deeply."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 2 * calls)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


METRICS = {"answer_f1": f1, "exact_match": exact_match, "rouge_l": rouge_l}
# LongBench's English sets of answers and summaries, and how each is scored.
LONGBENCH = {**dict.fromkeys(("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "triviaqa"), f1),
             **dict.fromkeys(("gov_report", "qmsum", "multi_news", "samsum"), rouge_l)}
FIRST_LINE = ("triviaqa", "samsum")  # answers asked for by examples, after which a model makes up the next one


def longbench(dataset: str, given: str, references: Sequence[str]) -> float:
    """LongBench's score of one answer, 0 to 1. It reports the mean over a dataset, times 100, to two decimals.

    Raises:
        KeyError: a dataset that is none of `LONGBENCH`.
    """
    metric = LONGBENCH[dataset]
    return metric(given.lstrip("\n").split("\n")[0] if dataset in FIRST_LINE else given, references)


def prompt(template: str, question: str, passages: Sequence[str]) -> str:
    """What the reader is asked."""
    return prompts.fill(template, question=question, passages="\n\n".join(passages))


def first_line(reply: str) -> str:
    """The answer in a reader's reply: its first line that is not empty, thoughts left out."""
    return spoken(reply).strip().partition("\n")[0].strip()
