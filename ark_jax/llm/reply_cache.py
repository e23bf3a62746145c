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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ark_jax.llm.pricing import COUNTS, is_amount
from ark_jax.runtime.log import append_row, say

LONGEST_ROW = 1 << 27  # bytes; no endpoint's reply gives more
_FALSE_USAGE = "its usage is not an object of numbers of at least 0"
UNUSED_PREFIX = "unused/"  # starts the keys of completions without a text, kept for their cost


def conversation_digest(turns: str | Sequence[str]) -> str:
    """SHA-256 of a prompt or conversation. A conversation of one turn has its prompt's digest."""
    if not isinstance(turns, str):
        turns = turns[0] if len(turns) == 1 else json.dumps(turns)
    return hashlib.sha256(turns.encode()).hexdigest()


def reply_text(reply: dict) -> str:
    """The text of a chat completion; empty for an error."""
    if "choices" not in reply:
        return ""
    text = content_text(reply["choices"][0]["message"].get("content"))
    return text.encode("utf-8", "replace").decode()  # JSON may hold halves of surrogate pairs


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
    if not isinstance(row, dict):
        return "it is no object"
    for name in ("cost", "seconds"):
        if not is_amount(row.get(name, 0.0)):
            return f"its {name} is not a finite number of at least 0"
    for name in ("item", "kind", "key", "prompt"):
        if not isinstance(row.get(name), str | None):
            return f"its {name} is not a text"
    match row:
        case {"key": str(key), "reply": {"usage": usage}} if key.startswith(UNUSED_PREFIX):
            return "" if usage is None or _is_usage(usage) else _FALSE_USAGE
        case {"key": str() | None} | {"item": str()}:
            pass
        case _:
            return "it has neither a key nor an item"
    return _reply_problem(row.get("reply"))


def _reply_problem(reply: object) -> str:
    """What is wrong with the field `reply` of a row; empty if nothing is."""
    match reply:
        case {"usage": usage} if usage is not None and not _is_usage(usage):
            return _FALSE_USAGE
        case {"error": str()}:
            return ""
        case {"choices": [{"message": dict(message)}, *_]}:
            is_text = content_text(message.get("content")) is not None
            return "" if is_text else "the content of its message is neither a text nor text parts"
        case {"choices": [_, *_]}:
            return "its first choice has no message"
        case {"choices": _}:
            return "it has no choices"
    return "it holds no chat completion"


def _is_usage(usage: object) -> bool:
    """Whether it is an object whose counts of tokens are possible."""
    if not isinstance(usage, dict):
        return False
    counts = [usage.get(name) for name in COUNTS]
    return all(count is None or is_amount(count) for count in counts)


def report_problems(path: Path, problems: dict[int, str]) -> None:
    """Prints which rows of a file of replies are not used.

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


def repair_json(text: str) -> object:
    """The value of damaged JSON, or a list of several values. None if it is nested too deeply."""
    import json_repair

    try:
        return json_repair.loads(text)
    except (ValueError, RecursionError):  # a small model may repeat an opening bracket without end
        return None


class RowFile:
    """A file of JSON lines. The place of a line is the offset of its first byte."""

    def __init__(self, path: Path):
        self._file = path.open("rb")

    def lines(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """The place and the bytes of each line from a place on."""
        self._file.seek(start)
        while line := self._file.readline(LONGEST_ROW):
            yield start, line
            start += len(line)

    def row(self, place: int) -> dict:
        """The row at a place."""
        self._file.seek(place)
        return json.loads(self._file.readline())


class KeyedRows(Mapping[str, dict]):
    """The rows of a file by key. Only their places are in memory."""

    def __init__(self, path: Path):
        self._path, self._file = path, None
        self._places: dict[str, int] = {}
        self.end = 0  # above the places of all rows

    def __getitem__(self, key: str) -> dict:
        return self.file.row(self._places[key])

    def __setitem__(self, key: str, place: int) -> None:
        self._places[key] = place
        self.end = max(self.end, place + 1)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def file(self) -> RowFile:
        """The file, opened on first use."""
        # Keep it open from the first access: a copy of the file may be deleted later.
        self._file = self._file or RowFile(self._path)
        return self._file

    def place(self, key: str) -> int | None:
        """The place of a row; None: there is no such row."""
        return self._places.get(key)


class StoredTexts(Mapping[str, list[str]]):
    """item -> the texts of its replies, read from a file on access.

    Args:
        places: item -> the places of its rows.
    """

    def __init__(self, file: RowFile, places: Mapping[str, Sequence[int]]):
        self._file, self._places = file, places

    def __getitem__(self, item: str) -> list[str]:
        return [reply_text(self._file.row(place)["reply"]) for place in self._places[item]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class ReplyCache:
    """The rows of one file by key. Several processes may share the file."""

    def __init__(self, path: Path):
        self.path = path
        self.rows = KeyedRows(path)
        self.spent = 0.0  # USD, of all requests ever made
        self._read_bytes = self._read_lines = 0
        self._claimed: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Reads the rows that other processes have added."""
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_size == self._read_bytes:
                return
            problems = {}
            for place, line in self.rows.file.lines(self._read_bytes):
                for row in parse_row(line):
                    if problem := row_problem(row) or ("" if row.get("key") else "it has no key"):
                        problems[self._read_lines + 1] = problem
                    else:
                        self._index_row(row, place)
                if line.endswith(b"\n"):
                    self._read_bytes, self._read_lines = place + len(line), self._read_lines + 1
            report_problems(self.path, problems)

    def add(self, row: dict) -> None:
        """Appends a row, without waiting for the disk. It survives a killed process."""
        self._index_row(row, append_row(row, self.path, sync=False))

    def _index_row(self, row: dict, place: int) -> None:
        """Keeps the place of a row, and adds the cost of a new key."""
        if row["key"] not in self.rows:
            self.spent += row.get("cost", 0.0)
        self.rows[row["key"]] = place

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


def parse_row(line: bytes) -> list:
    """The row of a line in a list, which is empty if the line is not JSON, as after a kill."""
    with contextlib.suppress(ValueError, RecursionError):
        return [json.loads(line)]
    return []
