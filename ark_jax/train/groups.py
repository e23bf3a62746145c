"""Prompts with their completions: what a training step takes, and the shapes that hold it."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from ark_jax import layout
from ark_jax.text import tokens as tk
from ark_jax.text.token_rows import TokenIds
from ark_jax.train import memory

TokenValues = Sequence[Sequence[float] | np.ndarray]  # a number for each token of each completion


@dataclasses.dataclass(frozen=True)
class Group:
    """A prompt, its completions, and what each of them is worth."""

    prompt_ids: TokenIds
    completions: Sequence[TokenIds]  # with the token that ends a text, which is trained on as well
    advantages: Sequence[float] | np.ndarray  # of each completion: the weight of its likelihood
    old: TokenValues | None = None  # log-probabilities by the policy that drew the completions
    policy_reference: TokenValues | None = None  # by the policy that a KL is measured to
    ended: Sequence[bool] | np.ndarray | None = None  # False: cut off, without a token that ends it
    name: str = ""  # for errors and non_finite.json

    @property
    def is_dead(self) -> bool:
        """Whether all advantages are 0, so that there is nothing to learn."""
        return not np.any(self.advantages)

    def without_cut_off(self) -> "Group":
        """The group without the completions that were cut off.

        Raises:
            ValueError: the group has no `ended`.
        """
        if self.ended is None:
            name = self.name or "a group"
            raise ValueError(f"{name}: `ended` is missing, so cut-off completions are not known")
        return self.select(self.ended)

    def select(self, keep: Sequence[bool] | np.ndarray) -> "Group":
        """The group with the completions for which `keep` is true."""
        fields = ("completions", "advantages", "old", "policy_reference", "ended")
        by_field = {field: getattr(self, field) for field in fields}
        return dataclasses.replace(
            self,
            **{
                field: list(itertools.compress(values, keep))
                for field, values in by_field.items()
                if values is not None
            },
        )


def check_groups(groups: Sequence[Group], max_length: int, vocab: int) -> None:
    """Raises ValueError for the first group that cannot be trained on.

    Args:
        max_length: tokens that the model takes.
        vocab: number of token ids that it knows.

    Raises:
        ValueError: the message names the group, the completion and the problem.
    """
    for number, group in enumerate(groups):
        name = f"group {number}" + (f" ({group.name})" if group.name else "")
        if not len(group.prompt_ids):
            raise ValueError(f"{name}: its prompt has no token; give at least one")
        count = len(group.completions)
        for field in ("advantages", "old", "policy_reference", "ended"):
            values = getattr(group, field)
            if values is not None and len(values) != count:
                raise ValueError(f"{name}: {len(values)} {field} of {count} completions")
        if not np.isfinite(np.asarray(group.advantages, float)).all():
            raise ValueError(f"{name}: its advantages are {list(group.advantages)}")
        for i, completion in enumerate(group.completions):
            length, total = len(completion), len(group.prompt_ids) + len(completion)
            if not length:
                raise ValueError(
                    f"{name}, completion {i} has no token; keep the token that ends a text"
                )
            if total > max_length:
                raise ValueError(
                    f"{name}, completion {i}: {total} tokens with its prompt, the model takes "
                    f"{max_length}; shorten the prompt or draw shorter completions"
                )
            for field in ("old", "policy_reference"):
                values = getattr(group, field)
                if values is not None and len(values[i]) != length:
                    raise ValueError(
                        f"{name}, completion {i}: {len(values[i])} numbers in `{field}` for "
                        f"{length} tokens"
                    )
        ids = np.concatenate(
            [np.asarray(x, np.int64) for x in (group.prompt_ids, *group.completions)]
        )
        if ids.min() < 0 or ids.max() >= vocab:
            wrong = ids[(ids < 0) | (ids >= vocab)][0]
            raise ValueError(f"{name}: token id {wrong}, the model has {vocab} ids")
    for field in ("old", "policy_reference"):
        if len({getattr(group, field) is None for group in groups}) > 1:
            raise ValueError(f"some groups of the step have `{field}`, others have not")


@dataclasses.dataclass
class Prompt:
    """A distinct prompt with its completions in all groups."""

    prefix: np.ndarray  # int32: the token ids without the last
    last: int  # the last token id
    members: list[tuple[Group, int]]  # (group, number) of each completion

    @property
    def completions(self) -> list[TokenIds]:
        return [group.completions[i] for group, i in self.members]

    @property
    def tokens(self) -> int:
        """Tokens of all completions."""
        return sum(map(len, self.completions))


def place_prompts(groups: Sequence[Group]) -> list[list[Prompt]]:
    """The distinct prompts of each device; devices get about as many tokens each."""
    prompts: dict[bytes, Prompt] = {}
    for group in groups:
        ids = np.asarray(group.prompt_ids, np.int32)
        prompt = prompts.setdefault(ids.tobytes(), Prompt(ids[:-1], int(ids[-1]), []))
        prompt.members += [(group, i) for i in range(len(group.completions))]
    devices = layout.batch_multiple()
    slots = max(-(-len(prompts) // devices), 1)
    ordered = list(prompts.values())
    lengths = [len(prompt.prefix) + prompt.tokens for prompt in ordered]
    places, _ = tk.balance(lengths, devices, slots)
    by_device: list[list[Prompt]] = [[] for _ in range(devices)]
    for number in np.argsort(places):
        by_device[places[number] // slots].append(ordered[number])
    return by_device


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """Sizes of a step's arrays, on each device."""

    prompts: int
    prompt_tokens: int  # of the longest prompt
    prompt_room: int  # tokens of all prompts
    rows: int  # completions
    tokens: int  # of the longest completion
    tokens_per_prompt: int  # of all completions of a prompt
    room: int  # tokens of all completions

    @classmethod
    def needed(cls, groups: Sequence[Group]) -> "BatchShape":
        """The smallest shape that holds these groups on the current mesh."""
        devices = place_prompts(groups)
        prompts = list(itertools.chain(*devices))
        completions = list(itertools.chain(*(prompt.completions for prompt in prompts)))
        largest_on_device = lambda count: max(sum(map(count, device)) for device in devices)
        longest = lambda texts: max(map(len, texts), default=0)
        sizes = (
            max(map(len, devices)),
            longest(prompt.prefix for prompt in prompts),
            largest_on_device(lambda prompt: len(prompt.prefix)),
            largest_on_device(lambda prompt: len(prompt.members)),
            longest(completions),
            max((prompt.tokens for prompt in prompts), default=0),
            largest_on_device(lambda prompt: prompt.tokens),
        )
        return cls(*(max(size, 1) for size in sizes))

    @classmethod
    def holding(cls, steps: Iterable[Sequence[Group]]) -> "BatchShape":
        """One shape that holds every step of a run."""
        needs = map(dataclasses.astuple, map(cls.needed, steps))
        need = cls(*map(max, zip(*needs, strict=True)))
        return dataclasses.replace(
            need,
            prompt_tokens=tk.round_length(need.prompt_tokens),
            prompt_room=tk.round_room(need.prompt_room),
            tokens=tk.round_length(need.tokens),
            tokens_per_prompt=tk.round_room(need.tokens_per_prompt),
            room=tk.round_room(need.room),
        )

    @classmethod
    def full(
        cls, *, prompts: int, samples: int, prompt_tokens: int, completion_tokens: int
    ) -> "BatchShape":
        """The shape of a step whose texts are all as long as they may be.

        Args:
            prompts: number of prompts of a step, on all devices together.
            samples: number of completions of a prompt.
        """
        device_prompts = -(-prompts // layout.batch_multiple())
        tokens = samples * completion_tokens
        return cls(
            device_prompts,
            prompt_tokens,
            device_prompts * prompt_tokens,
            device_prompts * samples,
            completion_tokens,
            tokens,
            device_prompts * tokens,
        )

    def texts_of_device(self) -> list[memory.Texts]:
        """What a device computes at once: prompts, and completions."""
        return [
            memory.Texts(self.prompts, self.prompt_tokens, self.prompt_room),
            memory.Texts(self.rows, self.tokens, self.room, self.prompts, self.prompt_tokens),
        ]

    def shrunk(self, *steps: Sequence[Group]) -> "BatchShape":
        """A smaller shape that holds the groups of each step; this one is that of a full step.

        Arrays keep their sizes, which cost little. Products and attention are computed on fewer
        tokens, for prompts and for completions: one of four sizes between powers of two, since each
        further shape compiles the step again. The shape depends on the groups alone, so that a
        resumed run computes in the same shapes.
        """
        needs = [dataclasses.astuple(BatchShape.needed(groups)) for groups in steps]
        need = BatchShape(*map(max, zip(*needs, strict=True)))

        def scaled_fields(*fields: str) -> dict[str, int]:
            """Fields of this shape, scaled down together to what is needed and rounded up."""
            share = max(getattr(need, field) / getattr(self, field) for field in fields)
            share = tk.round_rows(math.ceil(64 * share), 1)
            return {
                field: tk.round_room(-(-share * getattr(self, field) // 64)) for field in fields
            }

        arrays = ("prompts", "prompt_tokens", "rows", "tokens")
        # A step can be larger than a full one, if a prompt is drawn twice. It has its own shape.
        return BatchShape(
            **{
                name: max(getattr(self, name), tk.round_rows(getattr(need, name), 1))
                for name in arrays
            },
            **scaled_fields("prompt_room"),
            **scaled_fields("tokens_per_prompt", "room"),
        )
