"""The curve of a training run on disk, which survives kills."""

import contextlib
import functools
import json
import os
from pathlib import Path

from ark_jax.runtime import distributed


class Curve:
    """curve.jsonl, a row a step, of a run that may have been stopped and resumed.

    Attributes:
        rows: the rows in the file.
        reported: the last step that has gone to `on_step`. A resumed run makes the steps after its
            checkpoint again. The file `curve.reported` stores this number, so that the run does not
            report them twice.
    """

    def __init__(self, path: Path, step: int):
        """Opens the file and drops the rows after `step`, the checkpoint to resume from."""
        self.path = path
        self.rows, self.reported = distributed.on_first_process(
            functools.partial(self._drop_later_rows, path, step)
        )

    @staticmethod
    def _drop_later_rows(path: Path, step: int) -> tuple[list[dict], int]:
        """Drops the rows after `step`; returns the others and the last reported step."""
        mark = path.with_suffix(".reported")
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        reported = text.count("\n")
        with contextlib.suppress(FileNotFoundError, ValueError):  # damage may report a step twice
            reported = max(reported, int(mark.read_text(encoding="utf-8")))
        lines = text.split("\n")[:step]
        _replace_file(mark, str(reported))
        _replace_file(path, "".join(line + "\n" for line in lines))
        return list(map(json.loads, lines)), reported

    def add(self, row: dict) -> None:
        """Appends a row."""
        self.rows.append(row)
        if distributed.is_first_process():
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def sync(self) -> None:
        """Forces the rows to disk. A checkpoint comes afterwards, so that its rows are there."""
        if distributed.is_first_process():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def finish(self) -> None:
        """Deletes `curve.reported` after the last step."""
        if distributed.is_first_process():
            self.path.with_suffix(".reported").unlink()


def _replace_file(path: Path, content: str) -> None:
    """Replaces a file in one move: a killed process leaves the old file or the new one."""
    new = path.with_suffix(".new")
    new.write_text(content, encoding="utf-8")
    new.replace(path)
