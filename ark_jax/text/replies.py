"""Replies of a language model on disk: what was paid for once is never asked for again.

One JSON row a request, in the order of arrival: `item` (what it was for), `kind`, `turn` (0; 1 and up where the model was asked
again about its reply), `key` (hash of all that decides the reply), `prompt` (hash of what was said to the model), `reply` (an
OpenAI chat completion, or {"error": why there will never be one}), `seconds` and `cost` in USD. The file is the cache of a run,
its ledger, and the recording that the `replay` backend reads.
"""

import contextlib
import fcntl
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ark_jax.log import append_row


def digest(turns: str | Sequence[str]) -> str:
    """Of a prompt, or of a conversation of several turns."""
    if not isinstance(turns, str):
        turns = turns[0] if len(turns) == 1 else json.dumps(turns)
    return hashlib.sha256(turns.encode()).hexdigest()


def text_of(reply: dict) -> str:
    """The text of a chat completion; of an error none."""
    return (reply["choices"][0]["message"].get("content") or "") if "choices" in reply else ""


def spoken(text: str) -> str:
    """What a model says once its thoughts are over, also where its chat template opened them, or nothing closed them."""
    text = re.sub(r"<think>.*?(</think>|\Z)", " ", text, flags=re.DOTALL | re.IGNORECASE)
    return re.split("</think>", text, flags=re.IGNORECASE)[-1]


def mended(text: str) -> object:
    """The value of broken JSON, as far as it can be told; of several values a list. None: it is nested beyond reading."""
    import json_repair

    try:
        return json_repair.loads(text)
    except (ValueError, RecursionError):  # what a small model that repeats itself writes
        return None


class Replies:
    """The rows of one file by key, shared with whichever processes work on the same file."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: dict[str, dict] = {}
        self.spent = 0.0  # USD, of all requests ever made
        self._seen = 0  # bytes
        self._claimed: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Takes in what others have added."""
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_size == self._seen:
                return
            with self.path.open("rb") as file:
                file.seek(self._seen)
                data = file.read()
            self._seen += data.rfind(b"\n") + 1
            for row in usable(data):
                self._take(row)

    def add(self, row: dict) -> None:
        self._take(row)
        append_row(row, self.path, sync=False)  # a killed process loses nothing by that, and requests do not wait for the disk

    def _take(self, row: dict) -> None:
        if row["key"] not in self.rows:
            self.spent += row.get("cost", 0.0)
        self.rows[row["key"]] = row

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Whether this request is ours to make: not while another task or process is at it. A dead process claims nothing."""
        if key in self._claimed:
            yield False
            return
        if not self._claimed:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._locks = self.path.with_suffix(".lock").open("a")
        at = int(key[:15], 16)
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
        except OSError:
            yield False
            return
        self._claimed.add(key)
        try:
            self.refresh()
            yield key not in self.rows
        finally:
            self._claimed.remove(key)
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, at)


def usable(data: bytes) -> Iterator[dict]:
    """The whole rows of a replies file; what a kill cut off is passed over."""
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and "key" in row and isinstance(row.get("reply"), dict):
                yield row
