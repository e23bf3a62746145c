"""The draws of training steps and their files, the readers, and what a selector can do."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.pipeline.parts import is_whole, store_part, whole_parts
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, read_table, save_rows
from ark_jax.recipes.documents.reader_training import PooledQuestion
from ark_jax.runtime import distributed

if TYPE_CHECKING:  # these modules start jax
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """A draw for a question. A field whose default is None is stored only if it is known."""

    step: int = 0
    question_id: str
    # Of a language model's reply:
    sample: int | None = None  # its number among those to one prompt
    ids: list[int] | None = None  # its tokens
    text: str | None = None
    ended: bool | None = None  # False: it was cut off
    # log p of each token, in nats: by the policy that drew it, and by that of the KL.
    old: list[float] | None = None
    policy_reference: list[float] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer(Rollout):
    """A reader's answer."""

    answer: str
    well_formed: bool
    f1: float
    em: float  # exact match
    citations: list[int]
    reward: float
    advantage: float
    live: bool  # whether its group teaches


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnSet(Rollout):
    """A set of passages that a selector drew."""

    chunk_ids: list[str]  # in the order in which they are read
    log_prob: float | None = None  # of an ordered draw
    problem: str | None = None  # why a reply names no set; "": it names one
    p: float | None  # that the reader answers rightly; None: not known, or there is no set


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardedSet(DrawnSet):
    """A set with its reward, the parts of the reward, and its advantage."""

    boundary: float
    relevance: float
    penalty: float
    reward: float
    advantage: float
    live: bool  # whether its group teaches


STEPS = "step-*.parquet"
Row = TypeVar("Row", bound=Rollout)


def stage_seed(config, stage: str) -> int:
    """The seed of a stage's draws, from 0 to 2**31 - 1."""
    digest = hashlib.sha256(f"{config.seed} {stage}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def steps_for(steps: int, questions: int, batch: int) -> int:
    """`steps`, or the number of steps of one pass over the questions if it is 0."""
    return steps or -(-questions // batch)


class StepRows(Generic[Row]):
    """The rows that each step drew, stored before the weights learn from them.

    A resumed run, perhaps on another mesh, thus learns from the same draws. Each step has a file of
    its own until all are joined.
    """

    def __init__(self, path: Path, kind: type[Row]):
        """`path` is the file of all steps; `kind` is the class of their rows."""
        self._path, self._kind = path, kind
        pattern = path.name if is_whole(path) else STEPS
        self._stored: dict[int, list[Row]] = {}
        names = lambda: [part.name for part in whole_parts(path.parent, pattern)]
        for name in distributed.on_first_process(names):
            for row in load_rows(path.parent / name, kind):
                self._stored.setdefault(row.step, []).append(row)

    @property
    def stored(self) -> list[Row]:
        """The rows of all steps so far."""
        return [row for step in sorted(self._stored) for row in self._stored[step]]

    def rows(self, step: int, make: Callable[[], list[Row]]) -> list[Row]:
        """The rows of a step: those that an interrupted run stored, else new ones."""
        if step not in self._stored:
            rows = [_known_fields(dataclasses.replace(row, step=step)) for row in make()]
            path = self._path.with_name(STEPS.replace("*", f"{step:06d}"))
            write = functools.partial(save_rows, rows)
            distributed.on_first_process(lambda: store_part(path, write))
            self._stored[step] = load_rows(path, self._kind)
        return self._stored[step]

    def join(self) -> list[Row]:
        """Replaces the files of all steps by one; returns the rows."""

        def join_files() -> None:
            parts = whole_parts(self._path.parent, STEPS)
            if parts:
                tables = list(map(read_table, parts))
                table = pa.concat_tables(tables, promote_options="permissive")
                store_part(self._path, functools.partial(pq.write_table, table))
            for part in parts:
                part.unlink()

        if not is_whole(self._path):
            distributed.on_first_process(join_files)
        return self.stored


def _known_fields(row: Rollout) -> dict:
    """The fields of a row without those that are None by default and not set."""
    fields = dataclasses.fields(row)
    named = ((field.name, field.default, getattr(row, field.name)) for field in fields)
    return {name: value for name, default, value in named if (default, value) != (None, None)}


def compare_in_groups(
    scores: Sequence, groups: np.ndarray, live: np.ndarray, settings
) -> list[dict]:
    """The columns `reward`, `advantage` and `live` of each draw.

    Args:
        scores: each has a `reward`.
        groups: the number of each draw's group, from 0.
        live: for each group, whether its outcomes differ.
        settings: `config.read` or `config.select`.
    """
    from ark_jax.train import policy

    rewards = np.array([score.reward for score in scores])
    advantages = policy.advantages(
        rewards, groups, scale=settings.scale, live=live if settings.outcome_decides else None
    )
    return [
        {"reward": score.reward, "advantage": float(advantage), "live": bool(live[group])}
        for score, advantage, group in zip(scores, advantages, groups, strict=True)
    ]


def mean(values: Sequence[float]) -> float:
    """The mean to six decimals; 0 if there are no values."""
    return round(float(np.mean(values)), 6) if len(values) else 0.0


UNTUNED = "untuned"
WARM = "warm"
OWN = "own"  # the function that `reader.backend` names


def stage_of(kind: str, iteration: int) -> str:
    """The name of an iteration's stage: `filter-1`, `select-1`, `evidence-1`, `read-1`."""
    return f"{kind}-{iteration}"


def reader_before(iteration: int) -> str:
    """The stage whose reader an iteration begins with."""
    return stage_of("read", iteration - 1) if iteration > 1 else WARM


def tuned_readers(config) -> tuple[str, ...]:
    """The stages that train a reader, first to last."""
    return (WARM, *(stage_of("read", i) for i in range(1, config.iterations + 1)))


def load_reader(context: Context, name: str):
    """A reader by its name; the last one used stays in memory.

    Its parameters are float32, for training; it computes in `generator.dtype`.

    Args:
        name: `untuned` is `generator.path`; anything else is a stage whose folder holds a `model`.
    """
    from ark_jax.models.language import LanguageModel

    settings = context.config.generator
    path = settings.path if name == UNTUNED else str(context / name / "model")
    return context.model(
        "generator",
        LanguageModel.from_pretrained,
        path,
        compute=settings.dtype,
        attention=settings.attention,
    )


@dataclasses.dataclass(frozen=True)
class ChosenSet:
    """A set of passages that a selector chose for a question."""

    chunk_ids: list[str]  # in the order in which they are read
    problem: str = ""  # why a selector's reply names no set; "": it names one


def sets_by_question(
    questions: Sequence[PooledQuestion], sets: Sequence[RewardedSet]
) -> list[list[RewardedSet]]:
    """The sets of each question, in the order of the questions."""
    groups: dict[str, list[RewardedSet]] = {pooled.id: [] for pooled in questions}
    for item in sets:
        groups[item.question_id].append(item)
    return list(groups.values())
