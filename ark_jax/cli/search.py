"""`ark-jax index`, `search` and `ask`: make an index of a corpus, search it, ask it."""

import contextlib
import dataclasses
import functools
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Self

from ark_jax.cli.check import ReadingFlags
from ark_jax.cli.config_flags import config_of_workdir
from ark_jax.cli.flags import Flags, bad_flag, bind, flag, parse_flags
from ark_jax.cli.process import log_on_stderr, message_with_fix, prepare_environment
from ark_jax.runtime import log
from ark_jax.runtime.shown import json_line, printable

if TYPE_CHECKING:
    import numpy as np

    from ark_jax.index import index as indices
    from ark_jax.index.passages import Hits, Similar, View
    from ark_jax.index.reader import Reader
    from ark_jax.index.writer import Writer

HYDE = "hyde"
JSON = "one line of JSON"
ENGINE = "--engine=jax|onnx|onnx-int8|openvino"


class Index(ReadingFlags):
    """Makes an index of a corpus, or brings it up to date."""

    model: str = flag("MODEL", "folder or hub name of a retriever, such as DIR/export of a run")
    corpus: str = flag(
        "CORPUS", "what `ark-jax check` reads; questions beside the documents are left alone"
    )
    out: str = flag("--out=DIR", "the folder of the index")
    bits: int = flag(
        "--bits=1|2|4|8|16|32",
        "of a stored component; default: 2 if each token has a vector, else 32 (or 16)",
        0,
    )
    pool: int = flag(
        "--pool=N", "of so many tokens' vectors of a passage one stays; 2 halves the index", 1
    )
    chunk_tokens: int = flag(
        "--chunk-tokens=N", "length of a passage; default: what the model reads, at most 512", 0
    )
    reranker: str = flag(
        "--reranker=FOLDER",
        "a pair scorer that orders what searches find, until the index is made without it",
        "",
    )
    engine: str = flag(ENGINE, "computes vectors; all but jax need MODEL by `ark-jax onnx`", "jax")
    database: str = flag(
        "--to=faiss|usearch|lancedb|qdrant", "also writes the vectors to this database", ""
    )
    url: str = flag(
        "--url=PLACE", "of the database: a file of faiss or usearch, a folder, an address", ""
    )
    workdir: Path | None = flag(
        "--workdir=DIR",
        "of a run, in place of MODEL, CORPUS and --out: its export, its documents, DIR/index",
        None,
    )
    verify: bool = flag(
        "--verify", "only compares the files of --out or DIR/index with their digests", False
    )

    example = "ark-jax index ark_demo/export my_documents/ --out=my_index"
    remarks = (
        "Run it again when documents have changed: passages that are there are not embedded again. "
        "After a kill, run it again to continue."
    )
    prints = False

    @classmethod
    def parse(cls, verb: str, args: Sequence[str]) -> Self:
        """The flags; of a workdir, those that its run decides are added.

        Raises:
            ValueError: the workdir keeps no config, or its run tunes no retriever of documents.
        """
        from ark_jax.pipeline.recipe import recipe_of

        values, words = parse_flags(cls, verb, args)
        workdir = values.get("workdir")
        if values.get("verify"):
            places = [str(workdir / "index")] if workdir else words
            values |= {"model": "", "corpus": ""} | dict(zip(["out"], places, strict=False))
            return bind(cls, verb, values, places[1:])
        if workdir:
            config = config_of_workdir(workdir)
            if config is None:
                raise ValueError(f"{workdir} keeps no config of a run; give MODEL CORPUS --out=DIR")
            recipe = recipe_of(config)
            run_values, run_words = parse_flags(cls, verb, recipe.index_words(config, workdir))
            if not run_words:
                raise ValueError(f"{workdir}: recipe {recipe.name} tunes no retriever of documents")
            values, words = run_values | values, run_words + words
        return bind(cls, verb, values, words)

    def run(self) -> int:
        from ark_jax.runtime.storage import local_path

        if self.verify:
            from ark_jax.index.folder import check_digests

            files = check_digests(local_path(self.out)).files
            size = sum(count for count, _ in files.values())
            log.say(f"{self.out}: {len(files)} files, {size:,} bytes, are as they were written")
            return 0
        database = _database_adapter(self, "--to")
        prepare_environment()
        from ark_jax.index.index import Index
        from ark_jax.retrieval.chunks import ChunkRules

        folder, rules = local_path(self.out), ChunkRules(tokens=self.chunk_tokens)
        try:
            built = Index.build(
                folder,
                self.model,
                self.corpus,
                rules=rules,
                bits=self.bits,
                pool=self.pool,
                reranker=self.reranker,
                reading=self.reading(),
                engine=self.engine,
            )
        except OSError as error:
            raise OSError(message_with_fix(error, folder, flag="--out")) from error
        log.say(f"{built.manifest.documents:,} documents, {len(built):,} passages in {self.out}")
        if database:
            database.write(built, self.url)
            log.say(f"their vectors are in {self.database} too: {self.url}")
        log.say(f'search them: ark-jax search {shlex.quote(self.out)} "QUESTION"')
        return 0


class ReaderFlags(Flags):
    """The flags of a language model that answers or writes."""

    reader: str = flag(
        "--reader=MODEL",
        "folder or hub name of a language model; the default of `ark-jax ask` is small and guesses",
        "",
    )
    endpoint: str = flag(
        "--endpoint=URL",
        "an OpenAI-compatible address, where --reader is the model's name there and the key is in "
        "$OPENAI_API_KEY; needs .[llm]",
        "",
    )

    def check(self) -> None:
        """Refuses an endpoint without the name of its model."""
        if self.endpoint and not self.reader:
            raise bad_flag(
                self.verb, "--endpoint needs --reader=NAME, the model that the endpoint knows"
            )

    def open_writer(self, name: str) -> "Writer":
        """The language model of a name, at the endpoint or on the devices of this process."""
        from ark_jax.index.writer import Writer

        if self.endpoint:
            return Writer.endpoint(self.endpoint, name, _replies_file())
        return Writer.local(name, _replies_file())

    def open_reader(self) -> "Reader":
        """The reader of the flags; without any, the generator that runs take by default."""
        from ark_jax.index.reader import Reader

        if self.endpoint:
            return Reader.endpoint(self.endpoint, self.reader, _replies_file())
        name = self.reader
        if not name:
            from ark_jax.recipes.core import models

            name = models.default_path("generator")
            models.fetch_demo_models([name])
            log.say(
                f"reader: {Path(name).name}, the default; --reader=MODEL or --endpoint=URL names a "
                "better one"
            )
        return Reader.local(name)


def _replies_file() -> Path:
    """The file in the cache that keeps the replies of language models."""
    from ark_jax.runtime.storage import cache_folder

    return cache_folder() / "ask" / "replies.jsonl"


class IndexFlags(ReaderFlags):
    """The flags of an existing index."""

    index: str = flag("INDEX", "a folder that `ark-jax index` made")
    workdir: Path | None = flag("--workdir=DIR", "of a run, in place of INDEX: DIR/index", None)
    model: str = flag("--model=FOLDER", "where the model is now, if it was moved", "")
    engine: str = flag(ENGINE, "embeds questions, if it is not the index's", "")
    no_rerank: bool = flag("--no-rerank", "leaves out the reranker of the index", False)

    @classmethod
    def parse(cls, verb: str, args: Sequence[str]) -> Self:
        """The flags, with the index of the run in a workdir."""
        values, words = parse_flags(cls, verb, args)
        if workdir := values.get("workdir"):
            words = [str(workdir / "index"), *words]
        return bind(cls, verb, values, words)


class Asking(IndexFlags):
    """The flags of the verbs that take a question, or read questions where none is given."""

    question: str | None = flag('"QUESTION"', "in quotes; without it, a line each, to Ctrl-D", None)
    k: int = flag("--k=N", "how many passages", 10)
    by: str = flag(
        "--by=hybrid|dense|bm25", "the model's vectors (dense), words (bm25) or both", "hybrid"
    )
    expand: str = flag(
        "--expand=none|hyde",
        "hyde: searches for a passage, too, that the language model writes as an answer",
        "none",
    )
    filter: str = flag(
        "--where=FILTER",
        "only documents whose metadata fit, as in \"year >= 2020 and lang in ('en', 'de')\"; also "
        "!=, or, not, between, like, is null, 'x' in LIST, dates as '2020-12-31'",
        "",
    )
    full: bool = flag("--full", "whole passages, not the sentences nearest to the question", False)
    json: bool = flag("--json", JSON, False)

    def check(self) -> None:
        """Refuses flags that do not fit each other, and an empty question."""
        super().check()
        if self.expand == HYDE and self.by == "bm25":
            raise bad_flag(
                self.verb, "--expand=hyde changes what vectors are compared with: not --by=bm25"
            )
        if self.question is not None and not self.question.strip():
            raise ValueError("the question is empty; write it in quotes behind the index")

    def open_index(self) -> "indices.Index":
        """Opens the index that the flags name."""
        prepare_environment()
        from ark_jax.index.index import Index

        is_single = self.question is not None
        opened = Index.open(self.index, model=self.model, few=is_single, engine=self.engine)
        if self.filter:
            opened.metadata.passing(self.filter)  # refuses a wrong filter before models are loaded
        return opened

    def questions(self) -> Iterator[str]:
        """The question of the command line, or those that are typed or piped in."""
        if self.question is not None:
            yield self.question
            return
        typed = sys.stdin.isatty()
        if typed:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # input() has a history and keys
        while True:
            try:
                line = input("question (Ctrl-D ends): " if typed else "")
            except EOFError:
                return
            if line.strip():
                yield line.strip()

    def hits(
        self, opened: "indices.Index", question: str, reader: "Reader | None"
    ) -> "tuple[Hits, Similar | None]":
        """The passages for a question, and what compares texts with it by the model's vectors.

        With --expand=hyde the reader first writes a passage that is searched for too.
        """
        from ark_jax.retrieval.hyde import Hyde
        from ark_jax.text import prompts

        options = {"k": self.k, "by": self.by, "rerank": not self.no_rerank, "where": self.filter}
        if self.by == "bm25":
            return opened.search([question], **options)[0], None
        vectors = opened.embed([question], "query")

        def similar(texts: Sequence[str]) -> "np.ndarray":
            from ark_jax.retrieval.late import similarities

            return similarities(vectors[0], opened.embed(texts, "document"))

        if self.expand == HYDE:
            hyde = Hyde(reader.write, opened.embed, prompts.load_template(HYDE))
            options["vectors"] = hyde([question])
        else:
            options["vectors"] = vectors
        return opened.search([question], **options)[0], similar

    def view(self, question: str, answer: str = "", similar: "Similar | None" = None) -> "View":
        """How passages are shown: in colour on a terminal, unless $NO_COLOR is set."""
        from ark_jax.index.passages import View

        return View(question, answer, similar, self.full, log.shows_colour())


class Ask(Asking):
    """Prints an answer as it is written, and the passages it rests on."""

    k: int = flag("--k=N", "how many passages", 5)

    example = 'ark-jax ask my_index "Who led the first committee?" --reader=Qwen/Qwen3-1.7B'

    def run(self) -> int:
        self.check()
        with log_on_stderr():
            opened, reader = self.open_index(), self.open_reader()
        for question in self.questions():
            self._answer(opened, reader, question)
        return 0

    def _answer(self, opened: "indices.Index", reader: "Reader", question: str) -> None:
        """Prints the answer to a question."""
        from ark_jax.data.records import with_title
        from ark_jax.index.passages import answer_row, table

        shown = ""

        def show_more(text: str) -> None:
            nonlocal shown
            text = printable(text)
            if text.startswith(shown):
                with contextlib.redirect_stdout(results):
                    log.show(text[len(shown) :])
                shown = text

        with log_on_stderr() as results:
            hits, similar = self.hits(opened, question, reader)
            passages = [with_title(hit.title, hit.text) for hit in hits]
            stream = None if self.json or not results.isatty() else show_more
            answer = reader.answer(question, passages, stream)
        if self.json:
            _show_json(answer_row(question, answer, hits))
            return
        sources = answer.sources
        if answer.cited and answer.supported:
            heading = "It cites:"
        elif answer.cited:
            heading = "It cites these, but none of their sentences holds the words of the answer:"
        elif sources:
            heading = "It cites nothing. A sentence of each of these holds the words of the answer:"
        else:
            heading = (
                "It cites nothing, and no sentence holds the words of the answer. It has read:"
            )
            sources = range(answer.read)
        text = printable(answer.text) or "(no answer)"
        ending = text[len(shown) :] if text.startswith(shown) else f"\n{text}"
        numbers = "".join(f" [{i + 1}]" for i in answer.sources)
        view = self.view(question, answer.text, similar)
        lines = table({i + 1: hits[i] for i in sources}, view)
        _show_lines([f"{ending}{numbers}", "", heading, *lines])


class Search(Asking):
    """Prints what matters of the passages of a question; `--compare`: those of two models."""

    answer: str = flag("--answer=TEXT", "is marked in the passages", "")
    compare: str = flag(
        "--compare=MODEL",
        "shows the passages of another model too, such as the one before tuning; its vectors "
        "are kept in the index",
        "",
    )
    database: str = flag(
        "--from=lancedb|qdrant", "searches the vectors that `ark-jax index --to` wrote", ""
    )
    url: str = flag("--url=PLACE", "of the database", "")

    example = 'ark-jax search my_index "Who led the first committee?" --k=3'

    def run(self) -> int:
        self.check()
        database = _database_adapter(self, "--from")
        with log_on_stderr():
            opened = self.open_index()
            if database:
                nearest = functools.partial(database.nearest, self.url, opened.manifest.folder)
                opened = dataclasses.replace(opened, nearest=nearest)
            reader = self.open_reader() if self.expand == HYDE else None
            name, indices_by_name = Path(opened.model).name, {}
            if self.compare:
                compared = opened.with_model(self.compare)
                other_name = Path(compared.model).name
                indices_by_name = {self.compare if other_name == name else other_name: compared}
        for question in self.questions():
            self._search(indices_by_name | {name: opened}, question, reader)
        return 0

    def _search(
        self, opened: "Mapping[str, indices.Index]", question: str, reader: "Reader | None"
    ) -> None:
        """Prints the passages of a question by each model."""
        from ark_jax.index.passages import comparison_row, search_row, side_by_side, table

        results = {}
        with log_on_stderr():
            for name, index in opened.items():
                results[name], similar = self.hits(index, question, reader)
        hits = results[name]
        if self.json and self.compare:
            _show_json(comparison_row(question, self.by, results))
        elif self.json:
            _show_json(search_row(question, self.by, hits))
        else:
            view = self.view(question, self.answer, similar)
            ranked = dict(enumerate(hits, 1))
            _show_lines(side_by_side(results, view) if self.compare else table(ranked, view))


def _database_adapter(verb: Index | Search, name: str) -> ModuleType | None:
    """The adapter of a vector database; None without the flag `name`.

    Raises:
        ValueError: the flag is given without --url, or --url without it.
    """
    from ark_jax import integrations

    if bool(verb.database) != bool(verb.url):
        raise bad_flag(verb.verb, f"{name}=NAME and --url=PLACE go together")
    return integrations.load(verb.database) if verb.database else None


def _show_json(row: Mapping) -> None:
    log.show(json_line(row))


def _show_lines(lines: Sequence[str]) -> None:
    log.show("".join(f"{line}\n" for line in lines))
