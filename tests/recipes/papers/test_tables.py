"""The papers' tables, each from one command on small data of the published forms."""

import re
import runpy
import statistics
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from support import paper_data, tiny
from support.paths import REPOSITORY
from support.world import environment

from ark_jax.cli.config_flags import locate_config
from ark_jax.recipes.papers.sources import SOURCES

# A reader of one's own, since a tiny model answers nothing: the end of the first fact or passage.
READER = """
def read(question, passages):
    return passages[0].rpartition("|")[2].strip() if passages else "none"
"""
COMMON = {"mesh": "(1,1,1)", "reader.backend": "own:read"}
GRAPHS = COMMON | {"evaluate.max_new_tokens": 4, "train.batch": 8, "train.epochs": 1}
# table -> what makes its data, the words after its name, settings for tiny models, its systems
TABLES = {
    "ark_table1": (
        paper_data.long_documents,
        "hotpotqa,musique",
        COMMON
        | {
            "llm.backend": "none",
            "graph.rules": True,
            "mine.by": "question",
            "data.chunk_tokens": 80,
            "data.chunk_overlap": 8,
            "score.positives": 2,
            "mine.negatives": 3,
            "train.batch": 4,
            "train.epochs": "(1,1,1)",
            "evaluate.passages": 1,
            "evaluate.max_new_tokens": 4,
        },
        {"base", "bm25", "stage3"},
    ),
    "bar_rag_table1": (
        paper_data.rows_with_passages,
        "nq,popqa",
        {
            "mesh": "(1,1,1)",
            "iterations": 1,
            "warm.steps": 12,
            "warm.batch": 4,
            "warm.learning_rate": 1e-2,
            "pool.size": 4,
            "success.by": "likelihood",
            "selector.kind": "vectors",
            "filter.sets": 4,
            "filter.low": 0.0,
            "filter.high": 1.0,
            "filter.variance": 0.0,
            "select.passages": 2,
            "select.steps": 2,
            "select.questions": 4,
            "select.sets": 3,
            "read.steps": 2,
            "read.prompts": 4,
            "read.samples": 4,
            "read.max_new_tokens": 3,
            "read.cite": False,
            "read.chat": False,
            "evaluate.max_new_tokens": 3,
        },
        {"untuned", "warm", "read-1"},
    ),
    "star_table2": (
        paper_data.freebase,
        "webqsp,grailqa",
        GRAPHS | {"mine.negatives": 3, "data.few": 16, "paths.hops": 2, "search.keep": 16},
        {"base", "star"},
    ),
    "gpr_table1": (
        paper_data.freebase,
        "webqsp",
        GRAPHS | {"llm.backend": "none", "questions.by": "relations", "questions.triples": 40},
        {"base", "bm25", "gpr"},
    ),
}


def sweep(data, name: str, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "ark_jax", "sweep", f"--config=papers/{name}", *words],
        capture_output=True,
        text=True,
        cwd=data,
        env=environment(data) | {"PYTHONPATH": str(REPOSITORY), "ARK_DATA": str(data)},
        check=False,
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    retriever = tiny.write(root / "retriever", "bert", tokenizer="cls")
    tiny.sentence_transformer(retriever, pooling="mean")
    changes = {"max_position_embeddings": 2048}
    tiny.write(root / "generator", "llama", tokenizer="plain", changes=changes)
    return {f"{name}.path": root / name for name in ("retriever", "generator")}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_one_command(tmp_path, models, name):
    make_data, parts, settings, systems = TABLES[name]
    make_data(tmp_path)
    (tmp_path / "own.py").write_text(READER)
    flags = [f"--config.{field}={value}" for field, value in (settings | models).items()]
    done = sweep(tmp_path, f"{name}:{parts}", f"--workdir={tmp_path / 'out'}", "--yes", *flags)
    logs = "\n".join(x.read_text()[-1500:] for x in tmp_path.glob("out/logs/*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    table = runpy.run_path(locate_config(f"papers/{name}"))["TABLE"].choose(parts.split(","))
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    rows = [[x.strip() for x in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    heads, _, *rows = rows
    assert heads == ["system", *table.headings]
    split = next(i for i, row in enumerate(rows) if row[0] == f"**quoted, {table.number}:**")
    assert [row[0] for row in rows[split + 1 :]] == [f"{x} (quoted)" for x in table.quoted]
    for row, figures in zip(rows[split + 1 :], table.quoted.values(), strict=True):
        assert [float(x) for x in row[1:]] == list(figures)
    ours = {row[0]: row[1:] for row in rows[:split]}
    assert {label.rpartition(": ")[2] for label in ours} >= systems
    wanted = recomputed(tmp_path / "out" / "runs", table)
    for label, cells in ours.items():
        for column, cell in zip(table.columns, cells, strict=True):
            mean = wanted.get((label, *column))
            assert (cell == "–") if mean is None else re.match(rf"{100 * mean:.2f} \[", cell)
    assert {metric for (_, _, metric), mean in wanted.items() if mean} == set(table.metrics)


def recomputed(runs, table) -> dict[tuple[str, str, str], float]:
    """(row, part, metric) -> the mean of the stored questions of that part."""
    means = {}
    for folder in runs.iterdir():
        rows = pq.read_table(folder / "evaluate" / "questions.parquet").to_pylist()
        for part, metric in table.columns:
            values: dict[str, list[float]] = {}
            for row in rows:
                is_part = folder.name == part or row["question"].startswith(f"{part}/")
                if is_part and row[metric] is not None:
                    values.setdefault(row["system"], []).append(row[metric])
            alone = folder.name in table.parts or len(table.runs) == 1
            for system, numbers in values.items():
                label = system if alone else f"{folder.name}: {system}"
                means[label, part, metric] = statistics.fmean(numbers)
    return means


def test_a_dry_run_says_what_is_there_and_what_is_missing(tmp_path):
    paper_data.long_documents(tmp_path)
    done = sweep(tmp_path, "ark_table1:hotpotqa,musique", "--check")
    assert done.returncode == 0, done.stderr
    assert "longbench/hotpotqa.jsonl: 2 documents, 6 questions\n" in done.stdout
    (tmp_path / "ultradomain" / "fin.jsonl").unlink()
    (tmp_path / "longbench" / "musique.jsonl").write_text('{"input": 3, "context": "x"}\n')
    done = sweep(tmp_path, "ark_table1:hotpotqa,musique", "--check")
    assert done.returncode == 1
    publisher = SOURCES["fin"].publisher
    assert f"ultradomain/fin.jsonl is missing; get it from {publisher}" in done.stdout
    assert "musique.jsonl: 0 documents, 0 questions; 3 problem(s), the first" in done.stdout
    refused = sweep(tmp_path, "ark_table1:hotpotqa,musique", f"--workdir={tmp_path / 'out'}")
    assert refused.returncode == 1
    assert f"fin.jsonl is missing; get it from {publisher}" in refused.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["ark_table1", "bar_rag_table1", "gpr_table1", "star_table2"])
def test_each_column_has_data_and_a_quoted_figure(name):
    table = runpy.run_path(locate_config(f"papers/{name}"))["TABLE"]
    assert {len(row) for row in table.quoted.values()} == {len(table.columns)}
    assert set(table.sources) <= SOURCES.keys()
    assert all(part.sources for part in table.parts.values())
    with pytest.raises(ValueError, match="'nope': "):
        table.choose(["nope"])
