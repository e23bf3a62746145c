"""Sampled replies of a language model, as token ids, and the numbers that decide their draws."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """r sampled replies, ordered by prompt, then by sample.

    Ids are kept, since the text of a reply may be tokenised otherwise than it was sampled.
    """

    prompts: np.ndarray  # int32 [r]: the place among the prompts
    samples: np.ndarray  # int32 [r]: the number among the prompt's samples
    ids: list[np.ndarray]  # int32: the tokens, of which the last ends the reply if it has ended
    ended: np.ndarray  # bool [r]; the other replies are cut at max_new_tokens
    texts: list[str]  # without special tokens
    # float32: log p(token | tokens before it) by `LanguageModel.token_log_likelihood`, in nats, of
    # the model itself: at temperature 1, and without top-p.
    log_probs: list[np.ndarray] | None


def draw_numbers(
    places: Sequence[int] | Sequence[Sequence[int]] | np.ndarray | None, prompts: int, samples: int
) -> Int[np.ndarray, "r parts"]:
    """The numbers of each reply from which, with a seed, its draws follow: its place and sample.

    Args:
        places: of each prompt, one number or several; None counts the prompts.

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
