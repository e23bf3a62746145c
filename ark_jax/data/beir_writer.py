"""Writes a corpus as a BEIR folder."""

import csv
import json
from pathlib import Path

from ark_jax.data.records import Corpus


def write_beir(corpus: Corpus, folder: Path, split: str = "test") -> None:
    """Writes corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, which our reader takes too.

    The documents of a question have the score 1. Its answers and evidence go to the `metadata` of
    the query. Headings and chunks have no place in this format.

    Args:
        corpus: documents and questions.
        folder: made if it does not exist.
        split: the name of the file of judgments.
    """
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for document in corpus.documents:
            row = {"_id": document.id, "title": document.title, "text": document.text}
            file.write(json.dumps({**row, "metadata": {}}, ensure_ascii=False) + "\n")
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as file:
        for question in corpus.questions:
            metadata = {"answers": question.answers, "evidence": question.evidence}
            row = {"_id": question.id, "text": question.question, "metadata": metadata}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    path = folder / "qrels" / f"{split}.tsv"
    ids = (id for question in corpus.questions for id in (question.id, *question.documents))
    # The csv module writes a carriage return without quotes, and readers end the line there.
    quoting = csv.QUOTE_ALL if any("\r" in id for id in ids) else csv.QUOTE_MINIMAL
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n", quoting=quoting)
        writer.writerow(["query-id", "corpus-id", "score"])
        for question in corpus.questions:
            writer.writerows([question.id, document, 1] for document in question.documents)
