"""`ark-jax index`, `search` and `ask`: a corpus that is searched, and read."""

import argparse
import dataclasses
import functools
import itertools
import json
import shlex
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ark_jax import integrations
from ark_jax.cli.arguments import Parser, at_least_one
from ark_jax.cli.environment import log_on_stderr, prepare_environment
from ark_jax.cli.errors import with_fix
from ark_jax.cli.run_index import of_run
from ark_jax.data.records import with_title
from ark_jax.index.rows import answer_row, comparison_row, search_row
from ark_jax.retrieval.hyde import NAME as HYDE
from ark_jax.retrieval.hyde import Hyde
from ark_jax.runtime import log
from ark_jax.runtime.storage import local_path
from ark_jax.text import prompts

if TYPE_CHECKING:
    from ark_jax.index.index import Hit, Index
    from ark_jax.index.reader import Reader

LINES = 3  # of a passage in a table
NARROWEST = 40  # columns of one side of a comparison
DATABASES = ("lancedb", "qdrant")  # modules of `ark_jax.integrations` that search, too


def index(verb: str, args: list[str]) -> int:
    """Makes an index of a corpus, or brings it up to date."""
    parser = Parser(verb)
    for name in ("model", "corpus"):
        parser.add_argument(name)
    parser.add_argument("--out", required=True)
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument("--chunk-tokens", type=at_least_one, default=0)
    parser.add_argument("--to", choices=("faiss", *DATABASES), default="")
    parser.add_argument("--url", default="")
    values = parser.values(of_run(verb, args))
    database = _database(parser, "--to", values.to, values.url)
    prepare_environment()
    from ark_jax.index.index import Index
    from ark_jax.retrieval.chunks import ChunkRules

    folder = local_path(values.out)
    rules = ChunkRules(tokens=values.chunk_tokens)
    try:
        built = Index.build(folder, values.model, values.corpus, rules=rules, dtype=values.dtype)
    except OSError as error:
        raise OSError(with_fix(error, folder, flag="--out")) from error
    log.say(f"{built.manifest.documents:,} documents, {len(built):,} passages in {values.out}")
    if database:
        database.write(built, values.url)
        log.say(f"their vectors are in {values.to} too: {values.url}")
    log.say(f'search them: ark-jax search {shlex.quote(values.out)} "QUESTION"')
    return 0


def search(verb: str, args: list[str]) -> int:
    """Prints the passages that fit a question; with `--compare`, those of another model beside."""
    parser = _question_parser(verb, k=10)
    parser.add_argument("--compare", default="")
    parser.add_argument("--from", choices=DATABASES, default="", dest="database")
    parser.add_argument("--url", default="")
    values = _values(parser, of_run(verb, args))
    database = _database(parser, "--from", values.database, values.url)
    with log_on_stderr():
        opened = _open(values)
        if database:
            nearest = functools.partial(database.nearest, values.url, opened.manifest.folder)
            opened = dataclasses.replace(opened, nearest=nearest)
        reader = reader_of(values) if values.expand == HYDE else None
        results = {_name(opened): _hits(values, opened, reader)}
        if values.compare:
            compared = opened.with_model(values.compare)
            name = _name(compared) if _name(compared) not in results else values.compare
            results = {name: _hits(values, compared, reader)} | results
    if values.json and values.compare:
        _show_json(comparison_row(values.question, values.by, results))
    elif values.json:
        _show_json(search_row(values.question, values.by, results.popitem()[1]))
    else:
        log.show("".join(f"{line}\n" for line in _side_by_side(results)))
    return 0


def ask(verb: str, args: list[str]) -> int:
    """Prints an answer and the passages that it rests on."""
    parser = _question_parser(verb, k=5)
    values = _values(parser, of_run(verb, args))
    with log_on_stderr():
        opened = _open(values)
        reader = reader_of(values)
        hits = _hits(values, opened, reader)
        passages = [with_title(hit.title, hit.text) for hit in hits]
        answer = reader.answer(values.question, passages)
    sources = [hits[i] for i in answer.sources]
    if values.json:
        _show_json(answer_row(values.question, answer, hits))
        return 0
    if answer.cited:
        heading = "It cites:"
    elif sources:
        heading = "It cites nothing. These passages hold the answer word for word:"
    else:
        heading = "It cites nothing, and no passage holds the answer word for word. It has read:"
        sources = hits[: answer.read]
    lines = [answer.text or "(no answer)", "", heading, *_table(sources, _columns())]
    log.show("".join(f"{line}\n" for line in lines))
    return 0


def _database(parser: Parser, flag: str, name: str, url: str) -> ModuleType | None:
    """The adapter of a vector database; None if the flag names none."""
    if bool(name) != bool(url):
        parser.error(f"{flag}=NAME and --url=PLACE go together")
    return integrations.load(name) if name else None


def _question_parser(verb: str, k: int) -> Parser:
    parser = Parser(verb)
    for name in ("index", "question"):
        parser.add_argument(name)
    parser.add_argument("--k", type=at_least_one, default=k)
    parser.add_argument("--by", choices=("hybrid", "dense", "bm25"), default="hybrid")
    parser.add_argument("--expand", choices=("none", HYDE), default="none")
    parser.add_argument("--json", action="store_true")
    for name in ("model", "reader", "endpoint"):
        parser.add_argument(f"--{name}", default="")
    return parser


def _values(parser: Parser, args: list[str]) -> argparse.Namespace:
    values = parser.values(args)
    check_endpoint(parser, values)
    if values.expand == HYDE and values.by == "bm25":
        parser.error("--expand=hyde changes what vectors are compared with: not --by=bm25")
    return values


def check_endpoint(parser: Parser, values: argparse.Namespace) -> None:
    """Ends the program if an endpoint is given and no model of it."""
    if values.endpoint and not values.reader:
        parser.error("--endpoint needs --reader=NAME, the model that the endpoint knows")


def _hits(values: argparse.Namespace, opened: "Index", reader: "Reader | None") -> list["Hit"]:
    """The passages of the question, which the reader expands if the flags say so."""
    vectors = None
    if values.expand == HYDE:
        embed = lambda texts, kind: opened.retriever.encode(texts, kind=kind)
        vectors = Hyde(reader.write, embed, prompts.load_template(HYDE))([values.question])
    return opened.search([values.question], k=values.k, by=values.by, vectors=vectors)[0]


def _open(values):
    prepare_environment()
    from ark_jax.index.index import Index

    if not values.question.strip():
        raise ValueError("the question is empty; write it in quotes behind the index")
    return Index.open(values.index, model=values.model)


def _name(opened) -> str:
    return Path(opened.model).name


def reader_of(values):
    """The reader of the flags; without any, the generator that runs take by default."""
    from ark_jax.index.reader import Reader
    from ark_jax.runtime.storage import cache_folder

    if values.endpoint:
        cache = cache_folder() / "ask" / "replies.jsonl"
        try:
            return Reader.endpoint(values.endpoint, values.reader, cache)
        except (RuntimeError, ValueError) as error:
            message = str(error).replace("llm.model", "--reader")
            raise type(error)(message.replace("llm.base_url", "--endpoint")) from None
    name = values.reader
    if not name:
        from ark_jax.recipes.common import default_models

        name = default_models.default_path("generator")
        default_models.fetch_demo_models([name])
        log.say(
            f"reader: {Path(name).name}, the default; --reader=MODEL or --endpoint=URL names a "
            "better one"
        )
    return Reader.local(name)


def _show_json(row: Mapping) -> None:
    log.show(json.dumps(row, ensure_ascii=False) + "\n")


def _columns() -> int:
    return min(shutil.get_terminal_size().columns, 120)


def _table(hits: Sequence, width: int) -> list[str]:
    blocks = (_block(rank, hit, width) for rank, hit in enumerate(hits, 1))
    return list(itertools.chain(*blocks)) or ["no passage has a word of the question"]


def _block(rank: int, hit, width: int) -> list[str]:
    """The lines of a passage: rank, score, document, offsets and title, and then its text."""
    place = f"{rank:>2}  {hit.score:.4f}  {hit.document} [{hit.start}:{hit.end}]"
    title = f"  {hit.title}" if hit.title not in ("", hit.document) else ""
    wrap = functools.partial(textwrap.wrap, width=width, placeholder=" ...")
    head = wrap(place + title, max_lines=1, drop_whitespace=False)
    indent = {"initial_indent": "    ", "subsequent_indent": "    "}
    return [*head, *wrap(" ".join(hit.text.split()), max_lines=LINES, **indent)]


def _side_by_side(results: Mapping[str, Sequence]) -> list[str]:
    """The table of one model, or those of several in columns."""
    if len(results) == 1:
        return _table(next(iter(results.values())), _columns())
    width = max((_columns() - 3) // len(results), NARROWEST)
    rows = [tuple(results), tuple("-" * width for _ in results)]
    for rank in range(max(map(len, results.values()))):
        blocks = [
            _block(rank + 1, hits[rank], width) if rank < len(hits) else []
            for hits in results.values()
        ]
        rows += itertools.zip_longest(*blocks, fillvalue="")
    return [" | ".join(cell[:width].ljust(width) for cell in row).rstrip() for row in rows]
