"""The JSON values in a model's reply, with any text around them."""

import json
import re
from collections.abc import Iterator

from ark_jax.llm.reply_cache import repair_json
from ark_jax.text.thoughts import split_thought


def json_values(reply: str) -> Iterator[object]:
    """Yields the outermost JSON values in a reply, in order; last, the value of the repaired text.

    Text around the JSON, code fences, thoughts and broken JSON are tolerated. Never raises.
    """
    text = split_thought(reply).answer
    starts = [match.start() for match in re.finditer(r"[{\[]", text)]
    end = 0
    for start in starts:
        if start < end:
            continue
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
        except ValueError:
            continue
        except RecursionError:  # each of the thousand brackets would raise it again
            break
        yield value
    if starts:
        yield repair_json(text[starts[0] :])


def json_texts(value: object) -> list[str]:
    """The non-empty texts in a field that is a string, a number, or a list of them."""
    items = value if isinstance(value, list) else [value]
    is_scalar = lambda x: isinstance(x, str | int | float) and not isinstance(x, bool)
    texts = [str(x).encode("utf-8", "replace").decode() for x in items if is_scalar(x)]
    return [text for text in texts if text.strip()]
