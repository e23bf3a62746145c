"""Reads documents and questions from a file or folder in a known format, or reports its problems.

A row with a problem gives no record, but reading continues, so that `ark-jax check` shows all
problems.
"""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from ark_jax.data import formats
from ark_jax.data.evidence import count_absent_answers
from ark_jax.data.formats import beir
from ark_jax.data.formats.pages import is_about
from ark_jax.data.formats.questions import check_questions
from ark_jax.data.formats.rows import parsed_pairs
from ark_jax.data.problems import AS_IT_IS, Findings, Problems, Reading
from ark_jax.data.records import BadInput, Corpus, Problem, Question
from ark_jax.data.spool import Documents
from ark_jax.data.table_files import QUESTIONS, SUFFIXES, distinct_stems, named_file, rows_of
from ark_jax.data.text_files import unreadable_file
from ark_jax.runtime import storage

NAMED_REASONS = 6  # why files of a folder are passed over, in one line


def load(path: str | Path, tolerate: float = 0.0, reading: Reading = AS_IT_IS) -> Corpus:
    """Reads a file or folder.

    Args:
        path: in any known format.
        tolerate: the share of rows that may have problems. Within it their problems become
            remarks. A fault of a whole file is never tolerated.
        reading: how to read the files, and a share too.

    Raises:
        BadInput: the input has more problems; it lists all of them.
    """
    return within_tolerance(*read(path, reading=reading), max(tolerate, reading.tolerate))


def within_tolerance(corpus: Corpus, problems: Problems, tolerate: float) -> Corpus:
    """The corpus with tolerated problems among its remarks; arguments are those of `load`.

    Raises:
        BadInput: too many rows have problems.
    """
    return dataclasses.replace(corpus, remarks=tolerated(problems, corpus.remarks, tolerate))


def is_tolerable(problems: Problems, tolerate: float) -> bool:
    """Whether no more rows have problems than may, and no whole file has one."""
    return not problems or not (problems.fatal or problems.bad_rows > tolerate * problems.rows)


def tolerated(problems: Problems, remarks: list[Problem], tolerate: float) -> list[Problem]:
    """The remarks, and tolerated problems after them; `tolerate` is as for `load`.

    Raises:
        BadInput: too many rows have problems.
    """
    if not is_tolerable(problems, tolerate):
        advice = _advice(problems)
        raise BadInput(problems, f"they are {advice}" if advice else "")
    return [*remarks, *problems]


def read(
    path: str | Path, questions: str = "", reading: Reading = AS_IT_IS
) -> tuple[Corpus, Problems]:
    """Reads a file or folder in any known format and recognises the format by the content.

    The README of ark_jax lists the formats.

    Args:
        questions: what `read_questions` reads, instead of questions that come with the documents.
    """
    corpus, problems = _read(path, questions, reading)
    if problems.rows and (unseen := reading.unseen()):
        message = (
            f"no row has the column {unseen[0]!r} of --columns (config.data.columns); name one of "
            f"{', '.join(list(reading.seen)[:12])}"
        )
        problems.add(path, message)
    return corpus, problems


def _read(path: str | Path, questions: str, reading: Reading) -> tuple[Corpus, Problems]:
    """As `read`, without a check that the named columns exist."""
    if len(parts := split_paths(path)) > 1:
        corpus, problems = _joined(parts, lambda part: _read(part, "", reading))
    else:
        corpus, problems = _read_one(path, reading)
    if questions and corpus.documents:
        separate, new_problems = _read_questions(questions, corpus.texts, reading)
        remarks = [*corpus.remarks, *separate.remarks]
        corpus = dataclasses.replace(corpus, questions=separate.questions, remarks=remarks)
        problems.rows += new_problems.rows
        problems += new_problems
    return corpus, problems


def split_paths(path: str | Path) -> list[str]:
    """The files or folders that a setting names.

    Several are joined by commas; or they are the files of rows in a folder that has no format of
    its own.
    """
    path, folder = str(path), Path(path).expanduser()
    if "," in path and not folder.exists():
        return [part.strip() for part in path.split(",") if part.strip()]
    rows = [x for x in sorted(folder.iterdir()) if x.suffix in SUFFIXES] if folder.is_dir() else []
    if not rows or any(form.recognises(folder) for form in formats.FORMATS):
        return [path]
    return list(map(str, rows))


def _joined(
    parts: list[str], read_part: Callable[[str], tuple[Corpus, Problems]]
) -> tuple[Corpus, Problems]:
    """The corpora of several files as one.

    The name of a file is the group of its questions, and stands before their ids.
    """
    documents, problems, questions, remarks, names = Documents(), Problems(), [], [], []
    passed_over: Counter[str] = Counter()
    for path, stem in zip(parts, distinct_stems(list(map(Path, parts))), strict=True):
        corpus, new_problems = read_part(path)
        problems.rows += new_problems.rows
        problems += new_problems
        if corpus.chunks is not None:
            problems.add(path, "holds chunks; name it alone, or documents")
        for document in corpus.documents:
            if documents.texts.get(document.id, document.text) != document.text:
                message = f"{document.id!r} has another text in an earlier file"
                problems.add(path, f"{message}; give one of them another id", 0, "documents")
            documents.append(document)
        questions += [
            dataclasses.replace(question, id=f"{stem}/{question.id}", group=stem)
            for question in corpus.questions
        ]
        remarks += corpus.remarks
        passed_over.update(corpus.passed_over)
        names.append(corpus.format)
    name = ", ".join(dict.fromkeys(filter(None, names)))
    return Corpus(documents, questions, name, remarks, passed_over=passed_over), problems


def _read_one(path: str | Path, reading: Reading) -> tuple[Corpus, Problems]:
    """The corpus of one file or folder, as `read`."""
    path, findings = storage.local_copy(str(path)), Findings(reading)
    form = _recognised_format(path, findings)
    corpus = form.read(path, findings) if form else Corpus([], [], "", findings.remarks)
    if form and path.is_dir():
        _remark_others(form, path, corpus.format, findings)
    return corpus, findings.condensed().problems


def _recognised_format(path: Path, findings: Findings) -> formats.Format | None:
    """The format of a path; None with a problem for a path that has none."""
    try:
        path.stat()
        names = sorted(child.name for child in path.iterdir()) if path.is_dir() else []
    except OSError as error:
        findings.problems.add(path, unreadable_file(path, error))
        return None
    if form := next((form for form in formats.FORMATS if form.recognises(path)), None):
        return form
    content = "is an empty folder"
    if names:
        is_empty = all(child.is_file() and not child.stat().st_size for child in path.iterdir())
        listed = f"{', '.join(names[:5])}{', ...' * (len(names) > 5)}"
        content = f"holds {'empty files alone, ' * is_empty}{listed}"
    findings.problems.add(path, f"{content}, no known format; give {formats.KNOWN}")
    return None


def _remark_others(form: formats.Format, path: Path, name: str, findings: Findings) -> None:
    """Says if a folder fits another format too, which would read other files of it."""
    later = formats.FORMATS[formats.FORMATS.index(form) + 1 :]
    rivals = [rival for rival in later if rival.recognises(path)]
    known = set(form.files(path)) if rivals else set()
    for rival in rivals:
        files = [file for file in rival.files(path) if file not in known and not is_about(file)]
        if files:
            message = (
                f"fits {rival.name or 'Parquet'} too; it is read as {name}, without {len(files):,} "
                f"files such as {files[0].name}: move them away, or name one of both"
            )
            findings.remarks.add(path, message, rows=0)


def files(path: Path) -> list[Path]:
    """The files that `read` opens, in order; it ignores all others."""
    form = _recognised_format(path, Findings())
    return form.files(path) if form else []


def read_questions(
    path: str | Path, texts: Mapping[str, str], tolerate: float = 0.0
) -> tuple[list[Question], list[Problem]]:
    """Reads questions on documents that are known.

    Args:
        path: a file of questions in any known format, a folder that holds questions.jsonl (or
            .csv, .tsv, .parquet, .xlsx), or qrels/SPLIT.tsv of a BEIR folder. If questions come
            with their contexts, these must be among the documents.
        texts: document id -> text, such as `Corpus.texts`.
        tolerate: as for `load`.

    Returns:
        The questions, and remarks on parts that were passed over.

    Raises:
        BadInput: the input has problems; it lists all of them.
    """
    corpus, problems = _read_questions(path, texts, AS_IT_IS)
    corpus = within_tolerance(corpus, problems, tolerate)
    return corpus.questions, corpus.remarks


def read_grades(path: Path) -> dict[str, dict[str, int]]:
    """question -> relevant document -> its grade, from 1 on; empty where the data have none."""
    grades = (form.grades for form in formats.FORMATS if form.grades and form.recognises(path))
    return next((of_path(path) for of_path in grades), {})


def read_scores(path: str | Path) -> dict[str, dict[str, float]]:
    """question -> passage -> its score, of a file whose rows are `question`, `passage`, `score`.

    Raises:
        BadInput: the file has problems; it lists all of them.
    """
    local, findings = storage.local_copy(str(path)), Findings()
    scores: dict[str, dict[str, float]] = {}
    for row in rows_of(local, findings):
        question, passage, score = row.text("question"), row.text("passage"), row.number("score")
        known = scores.setdefault(question, {})
        if row.ok and known.get(passage, score) != score:
            row.add_problem("score", f"differs from that of an earlier {row.unit}", "keep one")
        if findings.settle(row):
            known[passage] = score
    if findings.problems:
        raise BadInput(findings.condensed().problems)
    return scores


def read_test(
    path: str | Path, texts: Mapping[str, str], reading: Reading = AS_IT_IS
) -> tuple[Corpus, Problems]:
    """Reads a test set that has its own documents, or questions on the documents of the input.

    Args:
        path: anything that `read` or `read_questions` reads, or several as of `split_paths`.
        texts: document id -> text of the input.

    Returns:
        Questions with the documents of the test set, and problems. A document that has another text
        in the input is a problem.
    """
    if len(parts := split_paths(path)) > 1:
        return _joined(parts, lambda part: read_test(part, texts, reading))
    corpus, problems = _read(path, "", reading)
    if not corpus.documents:
        return _read_questions(path, texts, reading)
    for document in corpus.documents:
        if texts.get(document.id, document.text) != document.text:
            message = f"{document.id!r} has another text in the corpus; give one of them another id"
            problems.add(path, message, 0, "documents")
    return corpus, problems


def _read_questions(
    path: str | Path, texts: Mapping[str, str], reading: Reading
) -> tuple[Corpus, Problems]:
    """A corpus of questions alone, as `read_questions` reads them, and problems."""
    if len(parts := split_paths(path)) > 1:
        return _joined(parts, lambda part: _read_questions(part, texts, reading))
    path, findings = storage.local_copy(str(path)), Findings(reading)
    if path.is_dir():
        path = named_file(path, QUESTIONS, reading) or path / "questions.jsonl"
    form = next((x for x in formats.FORMATS if x.questions and x.recognises(path)), None)
    if beir.recognises(path):
        questions = beir.read_queries(path, findings, texts, texts)
    else:
        pairs = form.questions(path, findings) if form else parsed_pairs(path, findings, texts)
        questions = check_questions(pairs, findings, texts, texts, "the corpus")
    return Corpus([], questions, "", findings.condensed().remarks), findings.problems


def summary(corpus: Corpus) -> str:
    """Describes a corpus in a few lines: format, sizes and ignored parts."""
    documents, questions = corpus.documents, corpus.questions
    words = statistics.median([len(document.text.split()) for document in documents] or [0])
    answers = statistics.fmean([len(question.answers) for question in questions] or [0])
    evidence = statistics.fmean([bool(question.evidence) for question in questions] or [0])
    absent, answerable = count_absent_answers(questions, corpus.texts)
    titled = sum(bool(document.title) for document in documents)
    lines = [
        f"format: {corpus.format or 'unknown'}",
        f"documents: {len(documents):,}, median {words:,.0f} words",
        *([f"titles: {titled:,} documents have one"] if titled else []),
        *([f"chunks: {len(corpus.chunks):,}, cut already"] if corpus.chunks is not None else []),
    ]
    if questions or not documents:
        lines += [
            f"questions: {len(questions):,}, {answers:.2f} answers each",
            f"evidence: given for {evidence:.0%} of the questions",
        ]
    else:
        lines.append(
            "questions: none. These documents can be searched; to tune or compare retrievers, give "
            "--questions=FILE, put questions.csv beside them, or let a run write questions"
        )
    if unanswered := sum(not question.answers for question in questions):
        lines.append(
            f"without answers: {unanswered:,} questions, which measure retrieval, and train with "
            "score.supervision=gold"
        )
    if counts := [len(question.negatives) for question in questions if question.negatives]:
        mean = statistics.fmean(counts)
        lines.append(f"negatives: given for {len(counts):,} questions, {mean:.1f} each")
    if unplaced := sum(not question.documents for question in questions):
        lines.append(f"without documents: {unplaced:,} questions, asked of the whole corpus")
    if absent:
        lines.append(
            f"answers: of {absent:,} of {answerable:,} questions, none occurs in their documents "
            "word for word"
        )
    if passed_over := sum(remark.rows for remark in corpus.remarks):
        lines.append(f"passed over: {passed_over:,}")
    return "\n".join(lines)


def verdict(problems: Problems, tolerate: float = 0.0) -> str:
    """One line on the problems of an input, and how to read the rest of it."""
    if not problems:
        return "no problem found"
    if is_tolerable(problems, tolerate):
        return f"{problems.total:,} problem(s), which --tolerate={tolerate:g} leaves out"
    return f"{problems.total:,} problem(s) {_advice(problems)}".rstrip()


def mostly_passed_over(corpus: Corpus) -> str:
    """One line if most files of a folder gave no document, with counts by reason; else ""."""
    count = sum(corpus.passed_over.values())
    if count <= len(corpus.documents):
        return ""
    most_first = sorted(corpus.passed_over.items(), key=lambda reason: -reason[1])
    named = [f"{number:,} {reason}" for reason, number in most_first[:NAMED_REASONS]]
    if surplus := sum(number for _, number in most_first[NAMED_REASONS:]):
        named.append(f"{surplus:,} with other suffixes")
    reasons = ", ".join(named)
    files = f"{count:,} of {count + len(corpus.documents):,} files are passed over"
    return f"{files}: {reasons}; save them as files that are read, or move them away"


def _advice(problems: Problems) -> str:
    """How many rows have problems, and what to do; empty if a whole file has one."""
    if problems.fatal or not problems.rows:
        return ""
    advice = f"in {problems.bad_rows:,} of {problems.rows:,} rows: mend them"
    share = math.ceil(1e4 * problems.bad_rows / problems.rows) / 1e4
    # If most rows have problems, a field or file is wrong, and tolerance is bad advice.
    if share > 0.5:
        return advice
    return f"{advice}, or read the rest with --tolerate={share:g} (config.data.tolerate)"
