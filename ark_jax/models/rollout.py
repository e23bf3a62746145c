"""Sampled replies of a language model, as token ids, and the numbers that decide their draws."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """r sampled replies, ordered by prompt, then by sample.

    Ids are kept, since tokenising a reply's text may give other tokens than those sampled.
    """

    prompts: np.ndarray  # int32 [r]: the place among the prompts
    samples: np.ndarray  # int32 [r]: the number among the prompt's samples
    ids: list[np.ndarray]  # int32: the tokens; the last one ends the reply if it has ended
    ended: np.ndarray  # bool [r]; the other replies are cut at max_new_tokens
    texts: list[str]  # without special tokens
    # float32, in nats: log p(token | tokens before it) by `LanguageModel.token_log_likelihood`, at
    # temperature 1 and without top-p.
    log_probs: list[np.ndarray] | None


def draw_numbers(
    places: Sequence[int] | Sequence[Sequence[int]] | np.ndarray | None, prompts: int, samples: int
) -> Int[np.ndarray, "r parts"]:
    """The numbers that decide, with a seed, each reply's draws: its place, then its sample.

    Args:
        places: one number or several for each prompt; None counts the prompts.
        prompts: number of prompts.
        samples: number of replies to each prompt.

    Raises:
        ValueError: a place is not an integer from 0 to 2**31 - 1, or there is not one for each
            prompt.
    """
    places = np.arange(prompts) if places is None else np.asarray(places)
    if places.ndim not in (1, 2) or len(places) != prompts:
        raise ValueError(f"places: shape {places.shape} for {prompts} prompts; give one for each")
    if prompts and (places.dtype.kind not in "iu" or not 0 <= places.min() <= places.max() < 2**31):
        raise ValueError("places: must be integers from 0 to 2147483647")
    places = places.reshape(prompts, -1) if prompts else np.zeros((0, 1), int)
    numbers = [np.repeat(places, samples, axis=0), np.tile(np.arange(samples), prompts)[:, None]]
    return np.concatenate(numbers, axis=1).astype(np.int32)
