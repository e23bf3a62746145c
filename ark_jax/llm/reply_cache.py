"""The replies of a language model on disk, so that no request is paid for twice.

The file has one JSON row per request, in the order of arrival:

    item: what the request was for, such as `extract/CHUNK`.
    kind: extract, glean, questions, rewrite, read or judge.
    turn: 0; 1 and more where the model was asked to correct its reply.
    key: hash of everything that decides the reply.
    prompt: hash of the conversation.
    reply: an OpenAI chat completion, or {"error": why there will never be one}.
    seconds, cost: time and USD.

It is a run's cache, its ledger, and the recording that the `replay` backend reads.
"""

import contextlib
import fcntl
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ark_jax.llm.pricing import COUNTS, is_amount
from ark_jax.runtime.log import append_row, say

UNUSED_PREFIX = "unused/"  # of the keys of completions without a usable text, kept for their cost


def conversation_digest(turns: str | Sequence[str]) -> str:
    """SHA-256 of a prompt or conversation. A conversation of one turn has its prompt's digest."""
    if not isinstance(turns, str):
        turns = turns[0] if len(turns) == 1 else json.dumps(turns)
    return hashlib.sha256(turns.encode()).hexdigest()


def reply_text(reply: dict) -> str:
    """The text of a chat completion; empty for an error."""
    return content_text(reply["choices"][0]["message"].get("content")) if "choices" in reply else ""


def content_text(content: object) -> str | None:
    """The text of a message's content: a string, or a list of parts. None: it has another form."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list() if all(isinstance(part, dict) for part in content):
            texts = [part.get("text") for part in content if part.get("type", "text") == "text"]
            return "".join(texts) if all(isinstance(text, str) for text in texts) else None
    return None


def row_problem(row: object) -> str:
    """What is wrong with a row of the file, in words; empty if nothing is."""
    if isinstance(row, dict) and not is_amount(row.get("cost", 0.0)):
        return "its cost is no finite number of at least 0"
    match row:
        case {"key": str(key), "reply": {"usage": dict() | None}} if key.startswith(UNUSED_PREFIX):
            return ""
        case {"key": str() | None} | {"item": str()}:
            pass
        case _:
            return "it has neither a key nor an item"
    return _reply_problem(row.get("reply"))


def _reply_problem(reply: object) -> str:
    match reply:
        case {"error": str()}:
            return ""
        case {"usage": usage} if usage is not None and not _is_usage(usage):
            return "its usage is no object of numbers of at least 0"
        case {"choices": [{"message": dict(message)}, *_]}:
            is_text = content_text(message.get("content")) is not None
            return "" if is_text else "the content of its message is neither a text nor text parts"
        case {"choices": [_, *_]}:
            return "its first choice has no message"
        case {"choices": _}:
            return "it has no choices"
    return "it holds no chat completion"


def _is_usage(usage: object) -> bool:
    if not isinstance(usage, dict):
        return False
    counts = [usage.get(name) for name in COUNTS]
    return all(count is None or is_amount(count) for count in counts)


def report_problems(path: Path, problems: dict[int, str]) -> None:
    """Says which rows of a file of replies are not used.

    Args:
        problems: line -> what is wrong with its row.
    """
    if problems:
        line, problem = next(iter(problems.items()))
        lines = ", ".join(map(str, list(problems)[:10])) + ", …" * (len(problems) > 10)
        say(
            f"  {path}: {len(problems):,} rows are malformed and not used (lines {lines}); of line "
            f"{line}, {problem}"
        )


def strip_thinking(text: str) -> str:
    """A reply without its `<think>` block. The opening or the closing tag may be missing."""
    text = re.sub(r"<think>.*?(</think>|\Z)", " ", text, flags=re.DOTALL | re.IGNORECASE)
    return re.split("</think>", text, flags=re.IGNORECASE)[-1]


def repair_json(text: str) -> object:
    """The value of damaged JSON, or a list of several values. None if it is nested too deeply."""
    import json_repair

    try:
        return json_repair.loads(text)
    except (ValueError, RecursionError):  # a small model may repeat an opening bracket without end
        return None


class ReplyCache:
    """The rows of one file by key. Several processes may share the file."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: dict[str, dict] = {}
        self.spent = 0.0  # USD, of all requests ever made
        self._read_bytes = self._read_lines = 0
        self._claimed: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Reads the rows that other processes have added."""
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_size == self._read_bytes:
                return
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
            self._read_bytes += data.rfind(b"\n") + 1
            problems = {}
            for line, row in parse_rows(data):
                if problem := row_problem(row) or ("" if row.get("key") else "it has no key"):
                    problems[self._read_lines + line] = problem
                else:
                    self._index(row)
            self._read_lines += data.count(b"\n")
            report_problems(self.path, problems)

    def add(self, row: dict) -> None:
        """Appends a row. It survives a killed process; requests do not wait until it is on disk."""
        self._index(row)
        append_row(row, self.path, sync=False)

    def _index(self, row: dict) -> None:
        if row["key"] not in self.rows:
            self.spent += row.get("cost", 0.0)
        self.rows[row["key"]] = row

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Reserves the request `key` for the block. Yields whether the caller should make it.

        False means that its reply is known, or that another task or process is making it. A process
        that dies loses its claims.
        """
        if key in self._claimed:
            yield False
            return
        if not self._claimed:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_file = self.path.with_suffix(".lock").open("a")
        position = int(key[:15], 16)  # each key locks one byte of the lock file
        try:
            fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, position)
        except OSError:
            yield False
            return
        self._claimed.add(key)
        try:
            self.refresh()
            yield key not in self.rows
        finally:
            self._claimed.remove(key)
            fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, position)


def parse_rows(data: bytes) -> Iterator[tuple[int, object]]:
    """Line numbers and rows of a file's content. A row that a kill cut short is skipped."""
    for number, line in enumerate(data.split(b"\n"), 1):
        with contextlib.suppress(ValueError, RecursionError):
            yield number, json.loads(line)
