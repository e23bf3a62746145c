"""Replies of a local model in the form of an endpoint's, as a file of replies keeps them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ark_jax.models.language import LanguageModel


def write_replies(
    lm: "LanguageModel",
    prompts: Sequence[str],
    receive: Callable[[int, dict], None],
    *,
    max_new_tokens: int,
    fix: str,
    **options: Any,
) -> int:
    """Replies to each prompt that the model has room for; returns how many these are.

    Args:
        receive: `receive(i, reply)` gets a chat completion as soon as it has ended, or
            `{"error": why}` for a prompt that is too long.
        fix: what a user may do about that.
        options: others of `LanguageModel.generate`.
    """
    count = lambda text: len(lm.tokenizer(text, add_special_tokens=False)["input_ids"])
    sizes = [count(prompt) for prompt in prompts]
    fitting = []
    for i, size in enumerate(sizes):
        if size + max_new_tokens < lm.max_length:
            fitting.append(i)
        else:
            reason = (
                f"{size:,} tokens and {max_new_tokens:,} for the reply are more than the "
                f"{lm.max_length:,} that the model takes: {fix}"
            )
            receive(i, {"error": reason})

    def hand_over(position: int, text: str) -> None:
        """Hands over the reply to the prompt at this position among the fitting ones."""
        i = fitting[position]
        usage = {"prompt_tokens": sizes[i], "completion_tokens": count(text)}
        message = {"role": "assistant", "content": text}
        receive(i, {"choices": [{"message": message}], "usage": usage})

    texts = [prompts[i] for i in fitting]
    lm.generate(texts, max_new_tokens=max_new_tokens, done=hand_over, **options)
    return len(fitting)
