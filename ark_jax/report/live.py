"""A page on a run that works now, served on this machine alone. It only reads the workdir."""

import contextlib
import functools
import http.server
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ark_jax.pipeline.status import Status, current_stage
from ark_jax.report.page import Section, html, render
from ark_jax.report.sections import format_elapsed, training
from ark_jax.runtime.log import read_journal, read_rows

LINES = 60  # of the log, the last ones
SECONDS = 3  # between two looks of a browser
FILES = {"/report.html": "text/html; charset=utf-8", "/questions.parquet": "application/x-parquet"}


Journal = tuple[bool, list[dict]]  # as `read_journal` returns it
Watch = Callable[[Journal], Iterable[Status]]


def live_page(workdir: Path, watch: Watch) -> str:
    """The page: stages, progress, curves of training, and the last lines of the log.

    Args:
        watch: the status of each stage now, for the journal of the run.
    """
    is_running, rows = journal = read_journal(workdir)
    stages, (current, progress) = list(watch(journal)), current_stage(*journal)
    metrics = (row for row in read_rows(workdir / "metrics.jsonl") if isinstance(row, dict))
    seconds = {row["stage"]: row["seconds"] for row in metrics if "seconds" in row}
    finished = sum(status.state == "done" for status in stages)
    said = (
        f"{current} is running: {progress or 'no count yet'}." if current else "No run works here."
    )
    share = 0.0
    for row in rows:
        share = 0.0 if "stage" in row else share
        if "counts" in row:
            share = 100 * row["counts"][0] / max(row["counts"][1], 1)
    lines = [
        [x.stage, x.state, x.why, format_elapsed(seconds[x.stage]) if x.stage in seconds else "–"]
        for x in stages
    ]
    heads = ["stage", "state", "what is left, or why", "#time"]
    listed = html.table("Stages of the run", heads, lines, "even")
    log = "\n".join(row["text"] for row in rows if "text" in row).split("\n")[-LINES:]
    links = [html.link("report.html", "The report")] if (workdir / "report.html").is_file() else []
    sections = [
        Section(
            "Stages", "stages", [*([html.bar(f"{share:.1f}")] if current else []), listed, *links]
        ),
        training(_curves(workdir, stages)),
        Section("Log", "log", [html.log("\n".join(log))] if rows else [], "Nothing is logged yet."),
    ]
    title = f"{workdir.name}, {'running' if is_running else 'at rest'}"
    return render(title, [said, f"{finished} of {len(stages)} stages are done."], sections)


def _curves(workdir: Path, stages: Sequence[Status]) -> dict[str, list[Mapping]]:
    """stage -> its curve so far, of stages that train."""
    places = itertools.product((x.stage for x in stages), (workdir / ".partial", workdir))
    curves = {
        name: [row for row in read_rows(folder / name / "curve.jsonl") if "loss" in row]
        for name, folder in places
        if (folder / name / "curve.jsonl").is_file()
    }
    return {name: rows for name, rows in curves.items() if rows}


@contextlib.contextmanager
def serving(workdir: Path, watch: Watch) -> Iterator[str]:
    """Serves the page while the block runs; gives its address. Arguments are as of `live_page`."""
    handler = functools.partial(_Handler, workdir, watch)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET of the page, and of the finished report."""

    def __init__(self, workdir: Path, watch: Watch, *arguments):
        self.workdir, self.watch = workdir, watch
        super().__init__(*arguments)

    def do_GET(self) -> None:
        host = self.headers.get("host", "").partition(":")[0]
        path = self.path.partition("?")[0]
        file = self.workdir / path[1:]
        if host not in ("127.0.0.1", "localhost"):  # a page elsewhere that has rebound its name
            return self.send_error(421)
        if path == "/":
            page = live_page(self.workdir, self.watch).encode()
            return self._send(page, "text/html; charset=utf-8", ("refresh", str(SECONDS)))
        if path in FILES and file.is_file():
            return self._send(file.read_bytes(), FILES[path])
        return self.send_error(404)

    def _send(self, body: bytes, kind: str, *headers: tuple[str, str]) -> None:
        """Sends a reply that no browser keeps or guesses the type of."""
        self.send_response(200)
        kept = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))
        sizes = (("content-type", kind), ("content-length", str(len(body))))
        for name, value in (*sizes, *kept, *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Prints nothing."""
