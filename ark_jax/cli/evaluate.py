"""`ark-jax evaluate` and `baselines`: systems on a test set, without a run."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from ark_jax.cli import runs
from ark_jax.cli.check import ReadingFlags
from ark_jax.cli.flags import Flags, bad_flag, flag
from ark_jax.cli.process import log_on_stderr, message_with_fix, prepare_environment
from ark_jax.cli.search import JSON, ReaderFlags
from ark_jax.runtime import log, storage
from ark_jax.runtime.shown import json_line

if TYPE_CHECKING:
    from ark_jax.comparison.answering import Answering
    from ark_jax.comparison.comparison import Comparison


class Comparing(ReadingFlags):
    """The flags of the verbs that measure systems on a test set."""

    data: str = flag(
        "--data=TEST",
        "what `ark-jax check` reads: questions, and documents unless --corpus has them",
    )
    corpus: str = flag("--corpus=FILE", "documents to search", "")
    out: str = flag(
        "--out=DIR", "keeps the index, metrics.json, a row per question, and report.html", ""
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

    @classmethod
    def parse(cls, verb: str, args: Sequence[str]) -> Flags:
        """The flags; with a config they are those of a stage."""
        names_config = any(map(runs.NAMES_CONFIG.match, args))
        return runs.Stage.parse(verb, args) if names_config else super().parse(verb, args)

    # The comparison that the flags ask for; raises ValueError if one has a bad value.
    make_comparison: ClassVar[Callable[..., "Comparison"]]

    def compare(self, models: Sequence[str], **options: object) -> "Comparison":
        """Compares systems on the test set of the flags; the rest are arguments of `compare`."""
        from ark_jax.comparison.comparison import compare
        from ark_jax.retrieval.chunks import ChunkRules

        return compare(
            models,
            self.data,
            corpus=self.corpus,
            folder=storage.local_path(self.out) / "index" if self.out else None,
            scope=self.scope,
            same_id=self.same_id,
            reading=self.reading(),
            rules=ChunkRules(tokens=self.chunk_tokens),
            **options,
        )

    def run(self) -> int:
        prepare_environment()
        from ark_jax.comparison.comparison import json_of, save, text_of

        out = storage.local_path(self.out) if self.out else None
        with log_on_stderr():
            try:
                comparison = self.make_comparison()
                if out:
                    out.mkdir(parents=True, exist_ok=True)
                    log.say(f"  {save(comparison, out)}")
            except OSError as error:
                place = out or storage.cache_folder()
                raise OSError(message_with_fix(error, place, flag="--out")) from error
        if self.json:
            log.show(json_line(json_of(comparison)))
        else:
            log.show(text_of(comparison))
        return 0


class Evaluate(Comparing, ReaderFlags):
    """Prints a table of systems by metrics."""

    models: str = flag(
        "--models=NAMES",
        "retrievers (folders, hub names, an index), bm25, and MODEL+bm25 as `search` fuses them; "
        "the first one decides how documents are cut; MODEL+hyde has the language model of "
        "--reader write passages to search for, A+turns a sentence for a second search; "
        "A+rerank:FOLDER orders what A finds by a pair scorer; run:FILE are rankings of another "
        "system (TREC, JSONL, JSON, Parquet), answers:FILE its answers; of a file of several "
        "systems, FILE#NAME; reader:alone, reader:steps, reader:oracle and reader:document are the "
        "reader without passages, with reasoning, with the passages that hold the evidence, with "
        "whole documents",
    )
    reader: str = flag(
        "--reader=MODEL",
        "folder or hub name of a language model that answers from what each system finds",
        "",
    )
    k: int = flag("--k=N", "how many passages it reads", 5)
    judge: str = flag(
        "--judge=NAME",
        "a model of --endpoint that compares each system's answers with those of the reference",
        "",
    )
    reference: str = flag(
        "--reference=NAME", "the system that the others are tested against: the first", ""
    )
    metrics: str = flag(
        "--metrics=NAMES",
        "default recall@5,recall@10,ndcg@10,mrr; also hit, precision and map; of answers "
        "exact_match,answer_f1,any_hit; also answer_accuracy, list_f1, first_hit, rouge_l, of a "
        "local reader answer_likelihood, and of a judge judge_overall, judge_faithfulness and "
        "judge_conciseness",
        "",
    )

    example = "ark-jax evaluate --models=ark_demo/export,bm25,ark_demo/export+bm25 --data=my_test/"
    remarks = (
        "Where a document is one passage, means are trec_eval's. Replies of language models are "
        "kept in the cache, so that a second run asks for none of them. Intervals and tests draw "
        "documents, since questions about one are not independent. Without --out the vectors stay "
        "in the cache. With --config or --workdir it is the stage of a run."
    )

    def check(self) -> None:
        """Refuses a judge without its endpoint, too."""
        super().check()
        if self.judge and not self.endpoint:
            raise bad_flag(self.verb, "--judge=NAME needs --endpoint=URL, where the judge is")

    def run(self) -> int:
        self.check()
        return super().run()

    def make_comparison(self) -> "Comparison":
        return self.compare(
            _split_names(self.models),
            reference=self.reference,
            metrics=_split_names(self.metrics),
            answering=self.open_answering(),
        )

    def open_answering(self) -> "Answering":
        """The reader and the judge of the flags."""
        from ark_jax.comparison.answering import Answering

        reader = self.open_writer(self.reader) if self.reader else None
        judge = self.open_writer(self.judge) if self.judge else None
        return Answering(reader, self.k, judge)


class Baselines(Comparing):
    """Prints the results of untrained systems, and reasons against training."""

    data: str = flag("DATA", "what `ark-jax check` reads: documents and questions")
    model: str = flag("--model=NAME", "folder or hub name of the retriever; empty: a run's own", "")

    example = "ark-jax baselines my_documents/"
    remarks = (
        "All questions are measured; a run measures those that it holds out. Without --out the "
        "vectors stay in the cache. With --config or --workdir it is the stage of a run."
    )

    def make_comparison(self) -> "Comparison":
        from ark_jax.recipes.core import models
        from ark_jax.recipes.documents.evaluate import doubts_about_retrieval

        model = self.model or models.default_path("retriever")
        models.fetch_demo_models([model])
        comparison = self.compare([model, "bm25", f"{model}+bm25"])
        doubts = doubts_about_retrieval(comparison.table, comparison.measured_questions)
        return dataclasses.replace(comparison, remarks=[*comparison.remarks, *doubts])


def _split_names(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")] if text else []
