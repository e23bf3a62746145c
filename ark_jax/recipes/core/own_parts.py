"""A miner, a loss and a reader of the user's own, which fields of the config name."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ark_jax.data.records import Question
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.parts import stored_rows
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say

if TYPE_CHECKING:  # these modules start jax
    from ark_jax.retrieval.mining import MiningTask


def check_miner(field: str, path: str) -> None:
    """Imports the function that a field names, if it names one."""
    if own_functions.is_own(path):
        _load_miner(field, path)


def mine_by_own(field: str, path: str, task: "MiningTask") -> dict[str, list[int]]:
    """question -> its candidates, hardest first, by a miner; see `mining.own_candidates`."""
    from ark_jax.retrieval import mining

    miner = _load_miner(field, path)
    try:
        return mining.own_candidates(miner, task)
    except ValueError as error:
        raise ValueError(f"config.{field}={path!r}: {error}") from None


def _load_miner(field: str, path: str) -> Callable:
    """Raises ValueError as `own_functions.load` does."""
    from ark_jax.retrieval.mining import Miner

    return own_functions.load(field, path, Miner)


def load_loss(config, kind: str = "Loss") -> Callable | None:
    """The function that `train.loss` names; None if that is a built-in choice.

    It gets all rows on every device, in float32, since it knows of no mesh.

    Args:
        kind: the protocol of the loss: `losses.Loss` or `losses.ListLoss`.
    """
    named = config.train.loss
    if not own_functions.is_own(named):
        return None
    from ark_jax.train import losses  # starts jax

    function = own_functions.load("train.loss", named, getattr(losses, kind))

    def checked_loss(*arrays, **settings: float):
        value = function(*arrays, **settings)
        _check_shape("train.loss", named, value, (), "a loss is one number: return its mean")
        return value

    return losses.on_whole_arrays(checked_loss)


def load_token_loss(config) -> Callable | None:
    """The function that `read.loss` names, a `policy.TokenLoss`; None if that is a built-in choice.

    It gets all rows on every device, as that of `load_loss`.
    """
    named = config.read.loss
    if not own_functions.is_own(named):
        return None
    import jax

    from ark_jax.train import losses, policy

    whole = losses.on_whole_arrays(own_functions.load("read.loss", named, policy.TokenLoss))

    def checked_losses(log_probs, *arrays):
        value = whole(log_probs, *arrays)
        advice = f"a token has one number each: return shape {log_probs.shape}"
        _check_shape("read.loss", named, value, log_probs.shape, advice)
        return jax.sharding.reshard(value, jax.typeof(log_probs).sharding.spec)

    return checked_losses


def _check_shape(field: str, named: str, value, shape: tuple[int, ...], advice: str) -> None:
    """Raises ValueError if a function of the user's own returned another shape."""
    if getattr(value, "shape", None) != shape:
        returned = getattr(value, "shape", type(value).__name__)
        raise ValueError(
            f"config.{field}={named!r} returned an array of shape {returned}, and {advice}"
        )


@runtime_checkable
class OwnReader(Protocol):
    """Answers a question from passages."""

    def __call__(self, question: str, passages: Sequence[str]) -> str:
        """Returns the answer, perhaps empty.

        Args:
            passages: what a system retrieves, best first; whole documents for the system `full`.
        """


def load_reader(backend: str) -> OwnReader:
    """The reader that `reader.backend` names; raises ValueError, as `own_functions.load`."""
    return own_functions.load("reader.backend", backend, OwnReader)


def check_reader(config) -> None:
    """Imports the function that `reader.backend` names, if it names one."""
    if own_functions.is_own(config.reader.backend):
        load_reader(config.reader.backend)


def answer_all(
    backend: str,
    passages: Mapping[tuple[str, str], Sequence[str]],
    questions: Sequence[Question],
    folder: Path,
) -> dict[tuple[str, str], str]:
    """(system, question) -> answer of a reader of the user's own.

    The answers of each system are stored in `folder`, so a killed run repeats one system at most.

    Args:
        passages: (system, question) -> the passages to answer from.
    """
    replies = {}

    def answer_rows(system: str) -> list[dict]:
        texts = answer(
            backend, [(asked.question, passages[system, asked.id]) for asked in questions]
        )
        pairs = zip(questions, texts, strict=True)
        return [{"question": asked.id, "answer": text} for asked, text in pairs]

    for system in dict.fromkeys(system for system, _ in passages):
        rows = functools.partial(answer_rows, system)
        stored = stored_rows(folder / f"answers-{system}.parquet", rows)
        say(f"  read answers: {len(stored):,} of {system}")
        replies |= {(system, row["question"]): row["answer"] for row in stored}
    return replies


def answer(backend: str, readings: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """The answers of a reader of the user's own, which the first process calls."""
    read = load_reader(backend)
    return distributed.on_first_process(
        lambda: [_checked_answer(read, backend, *reading) for reading in readings]
    )


def _checked_answer(read: OwnReader, backend: str, question: str, passages: Sequence[str]) -> str:
    """The stripped answer; raises ValueError if the reader does not return a string."""
    text = read(question, list(passages))
    if not isinstance(text, str):
        raise ValueError(
            f"config.reader.backend={backend!r} returned {type(text).__name__} for question "
            f"{question[:60]!r}: return a text"
        )
    return text.strip()
