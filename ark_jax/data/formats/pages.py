"""A folder of files as people have them: text, Markdown, HTML, PDF, books and office files."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import mimetypes
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ark_jax.data.converters import CONVERTERS, convert
from ark_jax.data.formats.base import Format, complete_corpus
from ark_jax.data.formats.questions import check_questions, question_rows
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Unreadable
from ark_jax.data.rows import has_surrogate
from ark_jax.data.spool import Documents
from ark_jax.data.table_files import QUESTIONS, SHEET, SUFFIXES, named_file, sheet_has_rows
from ark_jax.data.text_files import head_text
from ark_jax.runtime.map_shards import map_shards, shards_of

# Beside files of rows, such a file describes them.
DESCRIBING = ("readme", "license", "licence", "copying", "changelog", "notice")
WITHOUT_TEXT = ("image/", "audio/", "video/", "font/", "text/css", "text/javascript")
NAMED = 5  # files of an unknown suffix that a remark names
RARE = 3  # suffixes of one file each that have a remark each


def recognises(path: Path) -> bool:
    """Whether a path is a file that can be converted, or a folder that holds one."""
    if not path.is_dir():
        begins_as_rows = path.suffix == ".txt" and head_text(path).lstrip().startswith("{")
        begins_as_rows |= path.suffix.lower() == SHEET and sheet_has_rows(path)
        return path.suffix.lower() in CONVERTERS and not begins_as_rows
    rows = any(child.suffix in SUFFIXES for child in path.iterdir() if child.is_file())
    has_rows = rows and not named_file(path, QUESTIONS)
    return any(
        file.suffix.lower() in CONVERTERS and not (has_rows and is_about(file))
        for file in all_files(path)
    )


def is_about(file: Path) -> bool:
    """Whether a file describes the others, as a README does."""
    return file.stem.lower().startswith(DESCRIBING)


def all_files(folder: Path, repeats: list[Path] | None = None) -> Iterator[Path]:
    """All files below a folder, without hidden ones, and then what links lead to.

    A file or folder that lies below the folder or that another link leads to comes once; `repeats`
    receives the links that lead to it too.
    """
    repeats = [] if repeats is None else repeats
    folders, linked_folders, linked_files = [folder], collections.deque(), []
    walked: set[str] = set()
    while folders or linked_folders:
        current = folders.pop() if folders else linked_folders.popleft()
        place = os.path.realpath(current)
        if place in walked:
            repeats.append(current)
            continue
        walked.add(place)
        inner = []
        for child in sorted(child for child in current.iterdir() if child.name[0] != "."):
            is_folder = child.is_dir()
            if child.is_symlink():
                (linked_folders if is_folder else linked_files).append(child)
            elif is_folder:
                inner.append(child)
            else:
                yield child
        folders += reversed(inner)
    targets: set[str] = set()
    for link in linked_files:
        target = os.path.realpath(link)
        parent, name = os.path.split(target)
        is_walked = parent in walked and name[0] != "." and Path(name).suffix == link.suffix
        if target in targets or (is_walked and os.path.exists(target)):
            repeats.append(link)
        else:
            targets.add(target)
            yield link


def files(path: Path) -> list[Path]:
    """The files that `read` opens, in order."""
    if not path.is_dir():
        return [path]
    questions = named_file(path, QUESTIONS)
    pages = [file for file in all_files(path) if file.suffix.lower() in CONVERTERS]
    return [*(file for file in pages if file != questions), *([questions] if questions else [])]


def read(path: Path, findings: Findings) -> Corpus:
    """Reads each file as a document whose id is its path below the folder.

    The title is the first heading of level 1, or the title that the format has, or the name of the
    file. A file that cannot be read is a remark. The folder may also hold a file of questions.
    """
    documents = Documents()
    is_folder = path.is_dir()
    folder = path if is_folder else path.parent
    question_file = named_file(path, QUESTIONS, findings.reading) if is_folder else None
    unread: dict[str, list[str]] = collections.defaultdict(list)
    names_by_package: dict[str, list[str]] = collections.defaultdict(list)
    names_by_remark: dict[str, list[str]] = collections.defaultdict(list)
    unreadable: dict[str, int] = {}
    repeats: list[Path] = []

    def pages() -> Iterator[tuple[Path, str]]:
        """The files to convert, and their names; notes those of other suffixes."""
        for file in all_files(path, repeats) if is_folder else [path]:
            name = file.relative_to(folder).as_posix()
            if file == question_file:
                continue
            if file.suffix.lower() in CONVERTERS:
                yield file, name
            else:
                unread[file.suffix.lower()].append(name)

    shards = shards_of(pages(), lambda page: _file_size(page[0]))
    converter = functools.partial(_page_converter, findings.reading.encoding)
    for page in itertools.chain.from_iterable(map_shards(converter, shards)):
        findings.problems.rows += 1
        match page:
            case Document() as document, remark:
                documents.append(document)
                if remark:
                    names_by_remark[remark].append(document.id)
            case file, name, Unreadable() as error:
                unreadable[name] = 0
                findings.remarks.add(file, f"{error}: the file is passed over")
            case _, name, ImportError() as error:
                names_by_package[f"{error.name}"].append(name)
    for remark, names in sorted(names_by_remark.items()):
        message = f"{len(names):,} files ({_first_names(names)}) are {remark}"
        findings.remarks.add(folder, message, rows=0)
    sheet = folder / f"{QUESTIONS}{SHEET}"
    if is_folder and sheet.is_file() and question_file is None:
        message = "is a document; name a column 'question' in its first sheet if it holds questions"
        findings.remarks.add(sheet, message, rows=0)
    if repeats:
        names = _first_names([file.relative_to(folder).as_posix() for file in repeats])
        message = f"{len(repeats):,} links ({names}) lead to files that are read at another place"
        findings.remarks.add(folder, f"{message}; each is read once", rows=0)
    _note_unread(folder, unread, findings)
    _note_missing_packages(folder, names_by_package, findings)
    if not documents and not names_by_package:
        message = "none of its files can be read, see the remarks; mend them or give other files"
        findings.problems.add(path, message)
    questions = []
    if question_file:
        pairs = question_rows(question_file, findings)
        claimed = {**documents.rows, **unreadable}
        questions = check_questions(pairs, findings, documents.texts, claimed, "the folder")
    corpus = complete_corpus(documents, questions, PAGES.name, findings)
    return dataclasses.replace(corpus, passed_over=_passed_over(unread, len(unreadable)))


def _passed_over(unread: dict[str, list[str]], unreadable: int) -> dict[str, int]:
    """reason -> how many files gave no document; files such as pictures do not count."""
    reasons = {"that cannot be read": unreadable}
    for suffix, names in unread.items():
        kind = mimetypes.guess_type(f"a{suffix}")[0] or ""
        if not kind.startswith(WITHOUT_TEXT):
            reasons[f"with the suffix {suffix}" if suffix else "without a suffix"] = len(names)
    return {reason: count for reason, count in reasons.items() if count}


def _file_size(file: Path) -> int:
    """The size of a file; 0 if it cannot be read, which its conversion reports."""
    with contextlib.suppress(OSError):
        return file.stat().st_size
    return 0


def _page_converter(encoding: str) -> Callable[[Iterable[tuple[Path, str]]], list]:
    """Work for `map_shards` that converts named files to documents, each with a remark or "".

    A file that cannot be converted gives the file, its name and the error.
    """

    def convert_page(file: Path, name: str) -> tuple[Document, str] | tuple[Path, str, Exception]:
        """The document and its remark, or the file, its name and the error."""
        if not os.path.lexists(file):  # it was there when the folder was listed
            raise FileNotFoundError(
                f"{file}: is not there for the process that converts it; do not change the folder "
                "meanwhile, and with config.data.engine=ray let every node see it"
            )
        try:
            return _convert_document(file, name, encoding)
        except (Unreadable, ImportError) as error:
            return file, name, error

    return lambda pages: [convert_page(file, name) for file, name in pages]


def _convert_document(file: Path, name: str, encoding: str) -> tuple[Document, str]:
    """The document of a file, and a remark on how it was read, or ""."""
    if has_surrogate(name):
        raise Unreadable("has a name that is not UTF-8; rename it")
    page = convert(file, encoding)
    title = page.title or file.stem
    return Document(name, title, page.text, page.sections, page.metadata), page.remark


def _first_names(names: list[str]) -> str:
    """The first names as a list for a message, with ... if there are more."""
    listed = ", ".join(names[:NAMED]) + ", ..." * (len(names) > NAMED)
    return listed.encode("utf-8", "replace").decode()


def _note_missing_packages(
    folder: Path, names_by_package: dict[str, list[str]], findings: Findings
) -> None:
    """A problem for each package that is not installed and that files need."""
    for package, names in names_by_package.items():
        message = (
            f"{len(names):,} files such as {names[0]!r} need the package {package}; "
            "pip install 'ark-jax[files]'"
        )
        findings.problems.add(folder, message)


def _note_unread(folder: Path, unread: dict[str, list[str]], findings: Findings) -> None:
    """A remark for each suffix that is not read; for many of one file each, one."""
    rare = sorted(suffix for suffix, names in unread.items() if suffix and len(names) == 1)
    if len(rare) > RARE:
        listed = _first_names([unread[suffix][0] for suffix in rare])
        message = f"{len(rare):,} files, each with another suffix ({listed}), are not read"
        findings.remarks.add(folder, f"{message}; they are passed over", rows=len(rare))
        unread = {suffix: names for suffix, names in unread.items() if suffix not in rare}
    for suffix, names in sorted(unread.items()):
        kind = f"with the suffix {suffix}" if suffix else "without a suffix"
        listed = _first_names(names)
        message = f"{len(names):,} files {kind} ({listed}) are not read; they are passed over"
        findings.remarks.add(folder, message, rows=len(names))


PAGES = Format("files", recognises, read, files)
