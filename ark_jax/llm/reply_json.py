"""The JSON values in a model's reply, whatever stands around them."""

import json
import re
from collections.abc import Iterator

from ark_jax.llm.reply_cache import repair_json, strip_thinking


def json_values(reply: str) -> Iterator[object]:
    """The JSON values in a reply, the outermost first; at last what a repair makes of it.

    Text around the JSON, code fences, `<think>` blocks and broken JSON are tolerated. Never raises.
    """
    text = reply if _is_json(reply) else strip_thinking(reply)  # a value may speak of the tags
    starts = [match.start() for match in re.finditer(r"[{\[]", text)]
    end = 0
    for start in starts:
        if start < end:
            continue
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
        except ValueError:
            continue
        except RecursionError:  # it would come again from each of its thousand brackets
            break
        yield value
    if starts:
        yield repair_json(text[starts[0] :])


def _is_json(reply: str) -> bool:
    try:
        json.loads(reply)
    except (ValueError, RecursionError):
        return False
    return True


def json_texts(value: object) -> list[str]:
    """The texts that a field holds: of one string, of a number, or of a list of them."""
    items = value if isinstance(value, list) else [value]
    scalar = lambda x: isinstance(x, str | int | float) and not isinstance(x, bool)
    texts = [str(x).encode("utf-8", "replace").decode() for x in items if scalar(x)]
    return [text for text in texts if text.strip()]
