"""HippoRAG's files: NAME_corpus.json with the passages, and NAME.json with the questions."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from ark_jax.data.formats.base import Format, complete_corpus
from ark_jax.data.formats.rows import ROW_KINDS, document_row, parsed_rows, recognised_rows
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Question
from ark_jax.data.spool import Documents
from ark_jax.data.table_files import rows_of

ENDING = "_corpus.json"


def recognises(path: Path) -> bool:
    """Whether a path is a file NAME_corpus.json, or a folder that holds one."""
    return bool(_corpus_files(path))


def _corpus_files(path: Path) -> list[Path]:
    """The files NAME_corpus.json of a folder, or the file itself if it is one."""
    if path.is_dir():
        return sorted(path.glob(f"*{ENDING}"))
    return [path] if path.name.endswith(ENDING) else []


def files(path: Path) -> list[Path]:
    """The corpus and, where it exists, the file of questions beside it."""
    corpus = _corpus_files(path)[0]
    questions = corpus.with_name(corpus.name.removesuffix(ENDING) + ".json")
    return [corpus, *([questions] if questions.exists() else [])]


def read(path: Path, findings: Findings) -> Corpus:
    """Reads the corpus, and questions whose paragraphs are passages of the corpus.

    A paragraph is found by its title and its words, since blanks may differ. One that the corpus
    lacks is added to it, and counted.
    """
    if len(corpora := _corpus_files(path)) > 1:
        names = ", ".join(file.name for file in corpora)
        findings.problems.add(path, f"holds several corpora, {names}; name one of the files")
        return Corpus([], [], "", findings.remarks)
    corpus_file, *question_files = files(path)
    documents, questions = Documents(), []
    kind = next(kind for kind in ROW_KINDS if kind.parse is document_row)
    list(parsed_rows(kind, rows_of(corpus_file, findings), documents, findings))
    for file in question_files:
        id_of_words = {_normalised_words(d.title, d.text): d.id for d in documents}
        kind, rows = recognised_rows(rows_of(file, findings), file, findings)
        if kind:
            paragraphs = Documents()
            parsed = list(parsed_rows(kind, rows, paragraphs, findings))
            ids = _add_paragraphs(paragraphs, documents, id_of_words, findings, file)
            questions = [
                _with_corpus_ids(q, ids, paragraphs.texts, documents.texts) for q in parsed
            ]
            if lost := sum(len(q.evidence) for q in parsed) - sum(
                len(q.evidence) for q in questions
            ):
                message = (
                    f"{lost:,} supporting sentences differ in the corpus; they are passed over"
                )
                findings.remarks.add(file, message, rows=lost)
    return complete_corpus(documents, questions, HIPPORAG.name, findings)


def _normalised_words(title: str, text: str) -> str:
    """Title and text with single blanks, by which passages are compared."""
    return "\0".join(" ".join(part.split()) for part in (title, text))


def _add_paragraphs(
    paragraphs: Documents,
    documents: Documents,
    id_of_words: dict[str, str],
    findings: Findings,
    file: Path,
) -> dict[str, str]:
    """id of a paragraph -> id in the corpus. Paragraphs that the corpus lacks are added to it."""
    ids, added = {}, 0
    for document in paragraphs:
        words = _normalised_words(document.title, document.text)
        if words not in id_of_words:
            documents.append(document)
            added += 1
        ids[document.id] = id_of_words.setdefault(words, document.id)
    if added:
        message = f"{added:,} paragraphs are not in the corpus file; they are added to it"
        findings.remarks.add(file, message)
    return ids


def _with_corpus_ids(
    question: Question,
    ids: Mapping[str, str],
    paragraph_texts: Mapping[str, str],
    texts: Mapping[str, str],
) -> Question:
    """The question with documents and evidence as they are in the corpus."""
    quoted = {paragraph_texts[id]: texts[ids[id]] for id in question.documents}
    documents = tuple(dict.fromkeys(ids[id] for id in question.documents))
    passages = (quoted.get(passage, passage) for passage in question.evidence)
    evidence = tuple(p for p in passages if any(p in texts[id] for id in documents))
    return dataclasses.replace(question, documents=documents, evidence=evidence)


HIPPORAG = Format("hipporag", recognises, read, files)
