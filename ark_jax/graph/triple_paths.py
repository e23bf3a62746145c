"""Files that paths, globs and folders name."""

import glob
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from ark_jax.data.problems import Findings
from ark_jax.data.text_files import unreadable_file
from ark_jax.runtime import storage

SUFFIXES = (".tsv", ".txt", ".csv", ".nt", ".nt.gz", ".parquet", ".jsonl", ".json")
_BESIDE = ("entities.txt", "relations.txt")  # which a file of triples may name by number


def is_glob(path: Path) -> bool:
    """Whether a path is a pattern and no file itself."""
    return glob.has_magic(str(path)) and not path.exists()


def matches_of(pattern: Path) -> list[Path]:
    """The files that match a pattern, in order."""
    paths = map(Path, sorted(glob.glob(str(pattern), recursive=True)))
    return [path for path in paths if path.is_file()]


def files_in(folder: Path) -> list[Path]:
    """The files in a folder that may hold triples or questions, by their suffix, in order."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name.endswith(SUFFIXES) and path.name not in _BESIDE and path.is_file()
    ]


def local_files(
    paths: Sequence[str | Path],
    findings: Findings,
    recognises: Callable[[Path], bool] | None = None,
) -> list[Path]:
    """The files that paths name, in order; a path that names none is a problem.

    Args:
        paths: files, globs and, with `recognises`, folders.
        findings: where problems go.
        recognises: whether a file in a folder is of the kind wanted. All of its files must be.
    """
    files: list[Path] = []
    for path in paths:
        local = storage.local_copy(str(path))
        if is_glob(local):
            matches = matches_of(local)
            if not matches:
                findings.problems.add(local, "matches no file; mend the pattern")
            files += matches
            continue
        try:
            local.stat()
        except OSError as error:
            findings.problems.add(local, unreadable_file(local, error))
            continue
        if not local.is_dir():
            files.append(local)
        elif recognises is None:
            findings.problems.add(local, "is a folder; give a file or a pattern such as *.jsonl")
        else:
            files += _folder(local, findings, recognises)
    return files


def _folder(folder: Path, findings: Findings, recognises: Callable[[Path], bool]) -> list[Path]:
    files = files_in(folder)
    graph_files = [path for path in files if recognises(path)]
    other_names = [path.name for path in files if path not in graph_files]
    if graph_files and not other_names:
        return graph_files
    if not graph_files:
        message = "is no saved graph and holds no file of triples; give a file, such as TSV"
    else:
        listed = ", ".join(other_names[:3]) + (
            f" and {len(other_names) - 3} more" if other_names[3:] else ""
        )
        message = (
            f"holds files without triples beside ({listed}); give {_shown(folder, graph_files)}"
        )
    findings.problems.add(folder, message)
    return []


def _shown(folder: Path, paths: Sequence[Path]) -> str:
    """A pattern that matches these files alone, or else their names."""
    names = [path.name for path in paths]
    start, end = _common_start(names), _common_start([name[::-1] for name in names])[::-1]
    if len(names) > 1 and (start or end):
        pattern = folder / f"{start}*{end}"
        if matches_of(pattern) == list(paths):
            return str(pattern)
    return ", ".join(names[:5]) + (" ..." if names[5:] else "")


def _common_start(names: Sequence[str]) -> str:
    equal = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in equal)
