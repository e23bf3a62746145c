"""`ark-jax evaluate`: retrievers, BM25 and both fused on a test set, without a run."""

import json
from collections.abc import Sequence

from ark_jax.cli import runs
from ark_jax.cli.check import ReadingFlags
from ark_jax.cli.flags import Flags, flag
from ark_jax.cli.process import log_on_stderr, message_with_fix, prepare_environment
from ark_jax.cli.search import JSON, ReaderFlags
from ark_jax.runtime import log, storage


class Evaluate(ReaderFlags, ReadingFlags):
    """Prints a table of systems by metrics."""

    models: str = flag(
        "--models=NAMES",
        "retrievers (folders, hub names, an index), bm25, and MODEL+bm25 as `search` fuses them; "
        "the first one decides how documents are cut; MODEL+hyde has the language model of "
        "--reader, or of --endpoint, write passages to search for",
    )
    data: str = flag(
        "--data=TEST",
        "what `ark-jax check` reads: questions, and documents unless --corpus has them",
    )
    corpus: str = flag("--corpus=FILE", "documents to search", "")
    reference: str = flag(
        "--reference=NAME", "the system that the others are tested against: the first", ""
    )
    out: str = flag(
        "--out=DIR", "keeps the index, metrics.json, a row per question, and report.html", ""
    )
    metrics: str = flag(
        "--metrics=NAMES", "default recall@5,recall@10,ndcg@10,mrr; also hit, precision and map", ""
    )
    scope: str = flag(
        "--scope=auto|documents|asked|corpus",
        "what a question searches. documents: its own; asked: those of all questions; corpus: "
        "everything, as `search`; auto decides as a run does",
        "auto",
    )
    same_id: str = flag(
        "--same-id=auto|leave_out|keep",
        "the document that has a question's id; auto leaves it out if its text is the question",
        "auto",
    )
    chunk_tokens: int = flag(
        "--chunk-tokens=N", "of a passage; 100000 keeps documents whole, as BEIR's figures do", 0
    )
    json: bool = flag("--json", JSON, False)

    example = "ark-jax evaluate --models=ark_demo/export,bm25,ark_demo/export+bm25 --data=my_test/"
    remarks = (
        "Where a document is one passage, means are trec_eval's. Intervals and tests draw "
        "documents, since questions about one are not independent. Without --out the vectors stay "
        "in the cache. With --config or --workdir it is the stage of a run."
    )

    @classmethod
    def parse(cls, verb: str, args: Sequence[str]) -> Flags:
        """The flags; with a config they are those of a stage."""
        names_config = any(map(runs.NAMES_CONFIG.match, args))
        return runs.Stage.parse(verb, args) if names_config else super().parse(verb, args)

    def run(self) -> int:
        self.check()
        prepare_environment()
        from ark_jax.compare import output
        from ark_jax.compare.comparison import RETRIEVAL, compare
        from ark_jax.retrieval.chunks import ChunkRules

        out = storage.local_path(self.out) if self.out else None
        with log_on_stderr():
            try:
                comparison = compare(
                    _split_names(self.models),
                    self.data,
                    corpus=self.corpus,
                    folder=out and out / "index",
                    reference=self.reference,
                    metrics=_split_names(self.metrics) or RETRIEVAL,
                    scope=self.scope,
                    same_id=self.same_id,
                    reading=self.reading(),
                    rules=ChunkRules(tokens=self.chunk_tokens),
                    write=self.open_reader().write if self.reader else None,
                )
                if out:
                    out.mkdir(parents=True, exist_ok=True)
                    log.say(f"  {output.save(comparison, out)}")
            except OSError as error:
                place = out or storage.cache_folder()
                raise OSError(message_with_fix(error, place, flag="--out")) from error
        if self.json:
            log.show(json.dumps(output.json_of(comparison), ensure_ascii=False) + "\n")
        else:
            log.show(output.text_of(comparison))
        return 0


def _split_names(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")] if text else []
