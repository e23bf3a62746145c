"""The page for people: a question, and the passages of each ranking, side by side."""

import contextlib
import functools
import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from ark_jax.index.index import Hit
from ark_jax.index.passages import View
from ark_jax.index.reader import Answer
from ark_jax.pipeline.tables import read_table
from ark_jax.report.page import EXCERPT, QUESTIONS_FILE, clean, load_macros
from ark_jax.serve import requests
from ark_jax.serve.service import Service

HTML = load_macros("ark_jax.serve")
K = 5  # passages of each ranking
EXAMPLES = 5  # questions where the page is empty
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
Columns = Mapping[str, Sequence[Hit]]  # heading -> passages, best first


async def page(service: Service, request: Request) -> Response:
    """GET /: the page on which people search."""
    manifest = service.tuned.index.manifest
    facts = (
        f"{manifest.documents:,} documents, {manifest.chunks:,} passages, searched by "
        f"{service.tuned.embedder.name} and by words"
    )
    examples = example_questions(service.tuned.index.folder)
    shown = HTML.page(service.name, facts, "yes" if service.reader else "no", examples)
    return HTMLResponse(clean(shown), headers={"content-security-policy": POLICY})


@functools.cache
def example_questions(index: Path) -> list[str]:
    """Short questions of the run that made an index, those that it helped first."""
    path = index.parent / QUESTIONS_FILE
    if not path.is_file():
        return []
    with contextlib.suppress(KeyError, ValueError, OSError):  # another run's, or another file
        rows = read_table(path, columns=["question", "change"]).to_pylist()
        asked = sorted(rows, key=lambda x: (x["change"] != "rose", len(x["question"])))[:EXAMPLES]
        return [row["question"] for row in asked]
    return []


async def style(service: Service, request: Request) -> Response:
    """GET /page.css: the style of the report, then that of this page."""
    css = _packaged_text("ark_jax.report", "report.css") + _packaged_text(
        "ark_jax.serve", "page.css"
    )
    return Response(css, media_type="text/css")


async def script(service: Service, request: Request) -> Response:
    """GET /page.js: the script of the page."""
    return Response(_packaged_text("ark_jax.serve", "page.js"), media_type="text/javascript")


async def search(service: Service, request: Request) -> Response:
    """POST /page/search: the columns of a question."""
    question = requests.text(await requests.read_json(request), "question")
    columns = await _search_columns(service, request, question)
    status = f"The best {K} passages by each of {len(columns)} rankings."
    return JSONResponse({"status": status, "results": render_columns(columns, View(question))})


async def answer(service: Service, request: Request) -> Response:
    """POST /page/answer: the reader's answer, and the columns with what it rests on marked."""
    question = requests.text(await requests.read_json(request), "question")
    columns = await _search_columns(service, request, question)
    hits = [*columns.values()][-1]
    read = await service.answer(request, question, hits)
    results = render_columns(columns, View(question, read.text))
    return JSONResponse({"answer": render_answer(read, hits), "results": results})


async def _search_columns(service: Service, request: Request, question: str) -> Columns:
    """Searches by the model before tuning (if any), the tuned one, BM25, and as /search does."""
    wanted = {f"Tuned: {service.tuned.embedder.name}": ("dense", service.tuned)}
    hybrid = "Hybrid, reranked" if service.reranker else "Hybrid"
    wanted |= {"BM25": ("bm25", service.tuned), hybrid: ("hybrid", service.tuned)}
    if service.base:
        wanted = {f"Before: {service.base.embedder.name}": ("dense", service.base)} | wanted
    return {
        heading: await service.search(request, question, K, by, searched, heading == hybrid)
        for heading, (by, searched) in wanted.items()
    }


def render_columns(columns: Columns, view: View) -> str:
    """The passages of each ranking as HTML."""
    first = {hit.chunk: rank for rank, hit in enumerate(next(iter(columns.values()), ()))}
    listed = []
    for i, (heading, hits) in enumerate(columns.items()):
        moves = [_move(first.get(hit.chunk), rank) if i else "" for rank, hit in enumerate(hits)]
        spans = view.excerpts(hits, EXCERPT)
        cells = [_hit_cells(hit, span, view) for hit, span in zip(hits, spans, strict=True)]
        listed.append((heading, [(*x, move) for x, move in zip(cells, moves, strict=True)]))
    return clean(HTML.columns(listed))


def _move(place: int | None, rank: int) -> str:
    """How the rank of a passage differs from that in the first column: `▲ 2`, `▼ 1`, `=`, `new`."""
    if place is None:
        return "new"
    return f"{'▲' if rank < place else '▼'} {abs(rank - place)}" if rank != place else "="


def _hit_cells(hit: Hit, span: tuple[int, int], view: View) -> tuple[str, ...]:
    """Document and offsets of a hit, its title (or ""), its score, and the part of its passage
    that matters and the whole as HTML; of a short one the whole alone.
    """
    title, whole = hit.title if hit.title != hit.document else "", (0, len(hit.text))
    parts = [whole] if whole[1] <= EXCERPT * 1.2 or span == whole else [span, whole]
    short, full = (Markup(view.html(hit.text, part)) for part in (parts[0], parts[-1]))
    return _hit_label(hit), title, f"{hit.score:.4f}", short if len(parts) > 1 else "", full


def render_answer(read: Answer, hits: Sequence[Hit]) -> str:
    """An answer and the offsets of its sources, as HTML."""
    places = ", ".join(_hit_label(hits[i]) for i in read.sources)
    if read.cited:
        source = f"It cites {places}."
    elif places:
        source = f"It cites nothing. Its words stand in {places}."
    else:
        source = f"It cites nothing, and its words stand in none of the {read.read} passages read."
    return clean(HTML.reply(read.text, source))


def _hit_label(hit: Hit) -> str:
    """`document [start:end]`."""
    return f"{hit.document} [{hit.start}:{hit.end}]"


@functools.cache
def _packaged_text(package: str, name: str) -> str:
    """The text of a file in a package."""
    return (importlib.resources.files(package) / name).read_text(encoding="utf-8")
