"""What goes wrong at an endpoint: what it means for this request and for all others, told without the key."""

import email.utils
import json
import re
import time
from collections.abc import Callable, Mapping

PATIENCE = 600.0  # seconds: a server that asks for a longer wait will not be waited for

# What no other request of this key, to this model, would fare better with, whatever the status of four hundred and more.
NO_HOPE = re.compile(r"insufficient_quota|billing_|invalid.api.key|api.key.not.valid|model_not_found|invalid.model.(id|name)",
                     re.I)
# What is forbidden about this prompt, and not about the key.
FLAGGED = re.compile(r"moderation|flagged|content.?(policy|filter|management)|safety", re.I)
# What looks like a key: after "Bearer", with its middle starred out, by a usual beginning, or a long word with digits.
SECRETS = re.compile(r"(?<=bearer )\S+|[\w-]*\*{3,}[\w*-]*|\b(?:(?:sk|pk|rk|gsk|xai|hf|r8|nvapi)[-_]|AIza)[\w-]{4,}"
                     r"|\b(?=[A-Za-z_]*\d)\w{24,}", re.I)


class Rejected(RuntimeError):
    """This request will not be answered, others may: it is too long, filtered or refused, or always answered with nothing."""


class Unavailable(RuntimeError):
    """This request failed too often for reasons that may pass."""


class Hopeless(RuntimeError):
    """No request can succeed: wrong key, model or address, or nothing left to spend."""


class Failure(Exception):
    """A reason to ask again: after the `wait` a server wants, which is for all requests if it is `busy`."""

    def __init__(self, reason: str, wait: float = 0.0, busy: bool = False, ends_as: type[RuntimeError] = Unavailable):
        super().__init__(reason)
        self.wait, self.busy, self.ends_as = wait, busy, ends_as


def judged(status: int, headers: Mapping[str, str], said: str) -> Exception:
    """What an error amounts to; `said` has been cleared of secrets."""
    problem = f"status {status}: {said}"
    if status == 403 and FLAGGED.search(said):
        return Rejected(problem)
    if status < 400 or status in (401, 402, 403, 404, 405) or (status < 500 and NO_HOPE.search(said)):
        return Hopeless(problem)
    if status not in (408, 409, 425, 429) and status < 500:
        return Rejected(problem)
    wait = _retry_after(headers, said)
    if wait > PATIENCE:
        return Hopeless(f"{problem} (to be asked again in {wait:,.0f} s)")
    return Failure(problem, wait, busy=status == 429)


def unusable(reply: dict, hidden: Callable[[str], str]) -> Exception | None:
    """What a completion without a text of use amounts to; `hidden` takes secrets out of what a model said."""
    choice = next(iter(reply["choices"]), {"message": {}, "finish_reason": "no choices"})
    message, finish = choice["message"], choice.get("finish_reason")
    if message.get("refusal") or finish == "content_filter":
        return Rejected(f"refused: {hidden(str(message.get('refusal') or 'by a content filter'))}")
    if not message.get("content", "").strip():
        spent = "config.llm.max_tokens was spent before the text began" if finish == "length" else f"finish_reason={finish}"
        return Failure(f"an empty reply, {spent}", ends_as=Rejected)
    return None


def message_of(body: str) -> str:
    """The code and message of an error body, or what there is."""
    try:
        error = json.loads(body)
    except ValueError:
        error = None
    if isinstance(error, list) and error:  # as Gemini wraps it
        error = error[0]
    match error:
        case {"error": {"message": str(message), **rest}} | {"message": str(message), **rest}:
            body = " ".join(dict.fromkeys([message, *(f"({rest[name]})" for name in ("code", "type") if rest.get(name))]))
    return body


def hidden(text: str, key: str) -> str:
    """Words from outside, short and without the key, parts of it or what looks like one."""
    text = re.sub(r"//[^/@\s]*@", "//", " ".join(text.split())[:3000])
    if key:
        text = text.replace(key, "[key]")
    if len(key) >= 16:
        parts = {key[:6], key[-4:], *(key[i : i + 8] for i in range(len(key) - 7))}
        text = re.sub(r"[\w-]+", lambda word: "[key]" if any(part in word[0] for part in parts) else word[0], text)
    text = SECRETS.sub("[key]", text)  # before it is cut short, which might leave half of one
    return text if len(text) <= 300 else f"{text[:300]}…"


def without_nulls(value):
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def _retry_after(headers: Mapping[str, str], said: str) -> float:
    """Seconds that a server asks to be left alone for, in headers or in words; 0 if it does not say."""
    value = headers.get("retry-after", "")
    in_words = re.search(r"(?:re)?try (?:again )?in (\d+(?:\.\d+)?) ?s", said, re.I)  # Gemini sends no header
    for text, unit in ((headers.get("retry-after-ms", ""), 1e-3), (value, 1.0), (in_words[1] if in_words else "", 1.0)):
        if re.fullmatch(r"\d+(\.\d*)?", text):
            return float(text) * unit
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return 0.0
