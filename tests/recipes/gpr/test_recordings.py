"""Recorded wordings answer today's prompts, serve all triples, and repeat no test question."""

import json
import os
from pathlib import Path

import pytest
from support.masked_questions import DEMO, context, questions, write
from support.paths import REPOSITORY

from ark_jax.graph.triples import Triples
from ark_jax.llm.triple_questions import comparison_key

METAQA = Path(os.environ.get("ARK_DATA", REPOSITORY.parent / "shared" / "data")) / "kg" / "metaqa"


@pytest.mark.parametrize("seed", [0, 1])
def test_the_recorded_wordings_of_the_demo_are_complete(tmp_path, seed):
    graph = Triples.read(DEMO / "graph.tsv", names=DEMO / "names.tsv")
    run = context(tmp_path, graph, per_triple=8)
    run.config.seed, run.config.questions.replies = seed, str(DEMO / "wordings.jsonl")
    counts = write(run)
    assert counts["drifted_prompts"] == counts["quarantined"] == 0 and counts["calls"] == 15
    assert counts["dropped_wordings"] == {} and {q["source"] for q in questions(run)} == {"llm"}
    # Each end has eight questions, but for those that would hold the answer.
    asked = 2 * len(graph) - counts["ends_without_a_name_to_ask_by"]
    assert 0.98 * 8 * asked < counts["questions"] <= 8 * asked
    written = {comparison_key(q["text"]) for q in questions(run)}
    lines = (DEMO / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    assert not written & {comparison_key(json.loads(line)["question"]) for line in lines}


@pytest.mark.skipif(not METAQA.is_dir(), reason="needs $ARK_DATA/kg/metaqa")
def test_the_recorded_wordings_of_metaqa_are_complete(tmp_path):
    graph = Triples.read(
        *sorted(METAQA.glob("kb_*.tsv")),
        names=METAQA / "kb_entity2text.txt",
        relation_names=METAQA / "kb_relation2text.txt",
    )
    recording = REPOSITORY / "configs" / "recordings" / "metaqa_wordings.jsonl"
    run = context(tmp_path, graph, triples=9000, replies=str(recording))
    counts = write(run)
    rows = questions(run)
    assert counts["drifted_prompts"] == counts["quarantined"] == 0 and counts["calls"] == 9
    assert counts["triples"] == 9000 and len(rows) > 17_000
    assert {q["source"] for q in rows} == {"llm"}
