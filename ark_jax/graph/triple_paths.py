"""Files that paths and globs name."""

import glob
from collections.abc import Sequence
from pathlib import Path

from ark_jax.data.problems import Findings
from ark_jax.data.text_files import file_problem, missing_file, unreadable_file
from ark_jax.runtime import storage


def local_files(paths: Sequence[str | Path], findings: Findings) -> list[Path]:
    """The files that paths or globs name, in order; a path that names none is a problem."""
    files: list[Path] = []
    for path in paths:
        local = storage.local_copy(str(path))
        if not local.exists() and glob.has_magic(str(local)):
            matches = [Path(match) for match in sorted(glob.glob(str(local), recursive=True))]
            matches = [match for match in matches if match.is_file()]
            if not matches:
                message = "matches no file; mend the pattern"
                findings.problems.append(file_problem(local, message))
            files += matches
            continue
        try:
            local.stat()
        except OSError as error:
            absent = isinstance(error, FileNotFoundError)
            problem = missing_file(local) if absent else unreadable_file(local, error)
            findings.problems.append(problem)
            continue
        if local.is_dir():
            findings.problems.append(file_problem(local, "is a folder; give files"))
            continue
        files.append(local)
    return files
