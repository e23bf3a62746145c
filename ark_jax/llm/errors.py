"""Classifies the errors of an endpoint, and removes the API key from their messages.

A `TransientError` is retried. The other errors are final: `RequestRejected` and `RetriesExhausted`
concern one request, `EndpointUnusable` ends the run.
"""

import email.utils
import json
import re
import time
from collections.abc import Callable, Mapping

MAX_RETRY_AFTER = 600.0  # seconds; a server that asks for a longer wait counts as unusable
MAX_MESSAGE = 300  # characters of a server's message that are shown

# Error codes of a 4xx status that every request with this key to this model would get.
UNUSABLE = re.compile(
    r"insufficient_quota|billing_|invalid.api.key|api.key.not.valid"
    r"|model_not_found|invalid.model.(id|name)",
    re.I,
)
# A status 403 with one of these words concerns the prompt, not the key.
MODERATION = re.compile(r"moderation|flagged|content.?(policy|filter|management)|safety", re.I)
# Text that may be a key: a word after "Bearer", with asterisks, with a usual prefix, or long and
# with digits.
SECRETS = re.compile(
    r"(?<=bearer )\S+|[\w-]*\*{3,}[\w*-]*|\b(?:(?:sk|pk|rk|gsk|xai|hf|r8|nvapi)[-_]|AIza)[\w-]{4,}"
    r"|\b(?=[A-Za-z_]*\d)\w{24,}",
    re.I,
)
WAIT_IN_MESSAGE = re.compile(r"(?:re)?try (?:again )?in (\d+(?:\.\d+)?) ?s", re.I)


class RequestRejected(RuntimeError):
    """Raised when the endpoint refuses a request: too long, filtered, or only empty replies.

    Other requests go on. The rejection is written to the reply cache, so the request is not sent
    again.
    """


class RetriesExhausted(RuntimeError):
    """Raised when a request still fails after all retries: timeouts, resets, status 429 or 5xx.

    Other requests go on. Nothing is cached, so the next run sends the request again. After several
    such failures in a row the run stops.
    """


class EndpointUnusable(RuntimeError):
    """Raised when no request can succeed: a wrong key, model or address, or a spent quota.

    The run stops. Replies under way are still awaited and cached.
    """


class TransientError(Exception):
    """Raised when an attempt fails for a reason that may pass. `Endpoint.ask` then tries again.

    Args:
        reason: the message.
        wait: seconds that the server asks to wait.
        busy: whether the wait is for all requests (status 429), not only for this one.
        final_error: raised once the retries are used up.
    """

    def __init__(
        self,
        reason: str,
        wait: float = 0.0,
        busy: bool = False,
        final_error: type[RuntimeError] = RetriesExhausted,
    ):
        super().__init__(reason)
        self.wait, self.busy, self.final_error = wait, busy, final_error


def classify_status(status: int, headers: Mapping[str, str], message: str) -> Exception:
    """The error to raise for a reply with an error status.

    Args:
        message: the server's message, redacted.
    """
    problem = f"status {status}: {message}"
    if status == 403 and MODERATION.search(message):
        return RequestRejected(problem)
    if status < 400 or status in (401, 402, 403, 404, 405):
        return EndpointUnusable(problem)
    if status < 500 and UNUSABLE.search(message):
        return EndpointUnusable(problem)
    if status not in (408, 409, 425, 429) and status < 500:
        return RequestRejected(problem)
    wait = _retry_after(headers, message)
    if wait > MAX_RETRY_AFTER:
        return EndpointUnusable(f"{problem} (the server asks to wait {wait:,.0f} s)")
    return TransientError(problem, wait, busy=status == 429)


def classify_completion(reply: dict, redact: Callable[[str], str]) -> Exception | None:
    """The error to raise for a completion that was refused or is empty. None: it has a text.

    Args:
        reply: a chat completion of status 200.
        redact: removes secrets from a message.
    """
    choice = next(iter(reply["choices"]), {"message": {}, "finish_reason": "no choices"})
    message, finish = choice["message"], choice.get("finish_reason")
    if message.get("refusal") or finish == "content_filter":
        reason = message.get("refusal") or "by a content filter"
        return RequestRejected(f"refused: {redact(str(reason))}")
    if message.get("content", "").strip():
        return None
    reason = f"finish_reason={finish}"
    if finish == "length":
        reason = "config.llm.max_tokens was spent before the text began"
    return TransientError(f"an empty reply, {reason}", final_error=RequestRejected)


def error_message(body: str) -> str:
    """The message, code and type in an error body, or the whole body if it has another form."""
    try:
        error = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if isinstance(error, list) and error:  # Gemini wraps the error in a list
        error = error[0]
    match error:
        case {"error": {"message": str(message), **fields}} | {"message": str(message), **fields}:
            details = [f"({fields[name]})" for name in ("code", "type") if fields.get(name)]
            return " ".join(dict.fromkeys([message, *details]))
    return body


def redact(text: str, key: str) -> str:
    """`text` in one short line; `[key]` replaces the key, parts of it, and text like a key."""
    text = re.sub(r"//[^/@\s]*@", "//", " ".join(text.split())[:3000])
    if key:
        text = text.replace(key, "[key]")
    if len(key) >= 16:
        parts = {key[:6], key[-4:], *(key[i : i + 8] for i in range(len(key) - 7))}
        has_part = lambda word: any(part in word for part in parts)
        text = re.sub(r"[\w-]+", lambda match: "[key]" if has_part(match[0]) else match[0], text)
    text = SECRETS.sub("[key]", text)  # before the cut, which could leave half a key
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def drop_nulls(value: object) -> object:
    """A JSON value without the null fields of its objects, at any depth."""
    if isinstance(value, dict):
        return {name: drop_nulls(field) for name, field in value.items() if field is not None}
    return [drop_nulls(item) for item in value] if isinstance(value, list) else value


def _retry_after(headers: Mapping[str, str], message: str) -> float:
    """Seconds that a server asks to wait, in its headers or its message; 0 if it asks for none."""
    header = headers.get("retry-after", "")
    in_message = WAIT_IN_MESSAGE.search(message)  # Gemini sends no header
    candidates = [
        (headers.get("retry-after-ms", ""), 1e-3),
        (header, 1.0),
        (in_message[1] if in_message else "", 1.0),
    ]
    for text, unit in candidates:
        if re.fullmatch(r"\d+(\.\d*)?", text):
            return float(text) * unit
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
