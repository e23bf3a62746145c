"""The other selector in a run: a language model that writes its choice."""

import jax
import pytest
from support import bar_world, bar_writer
from support.bar_world import context_of

from ark_jax.data.records import Question
from ark_jax.layout import make_mesh
from ark_jax.models.language import LanguageModel
from ark_jax.pipeline import engine
from ark_jax.pipeline.fingerprints import file_digest
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.bar_rag import config, select
from ark_jax.recipes.bar_rag.recipe import RECIPE, stages
from ark_jax.recipes.bar_rag.rollouts import StepRows
from ark_jax.recipes.bar_rag.selectors import WritingSelector, load_pools, load_selector
from ark_jax.recipes.documents.reader_training import PooledQuestion

WRITES = {"selector.kind": "writer", "selector.max_new_tokens": 64, "filter.questions": 8}


@pytest.fixture(scope="module")
def written(world, tmp_path_factory) -> Context:
    """A run with a writer, until the reader's evidence."""
    with jax.set_mesh(make_mesh((1, 1, 1))):
        path = bar_writer.make_writer(world)
    context = written_context(world, tmp_path_factory.mktemp("written"), path)
    engine.run(until_evidence(context), context)
    return context


def written_context(world, workdir, path, **changes) -> Context:
    names = {"selector.path": str(path), "prompts.select": str(world / "select.txt")}
    adapter = {"selector.kl": "k3", "selector.lora_rank": 2, "selector.lora_alpha": 4.0}
    return context_of(world, workdir, **(WRITES | names | adapter | changes))


def until_evidence(context: Context) -> list:
    ordered = stages(context.config)
    last = [stage.name for stage in ordered].index("evidence-1")
    return ordered[: last + 1]


@pytest.mark.slow
def test_written_selections_are_parsed_and_rewarded(written):
    rows = load_rows(written / "select-1" / "sets.parquet")
    assert len(rows) == 3 * 4 * 3
    pools = {pooled.id: pooled for pooled in load_pools(written, "train")}
    readable = [row for row in rows if row["p"] is not None]
    assert len(readable) > len(rows) / 2 and any(row["advantage"] for row in readable)
    for row in rows:
        assert ("problem" in row) and bool(row["problem"]) == (row["p"] is None)
        assert len(row["policy_reference"]) == len(row["ids"]) and row["text"]
        if row["problem"]:
            assert row["reward"] == 0 and not row["chunk_ids"]
        else:
            wanted = [pools[row["question_id"]].chunk_ids[n - 1] for n in numbers(row["text"])]
            assert row["chunk_ids"] == wanted
            edge = min(row["p"], 1 - row["p"]) / 0.5
            assert row["boundary"] == pytest.approx(edge)
    counts = read_manifest(written / "select-1")["counts"]
    assert counts["steps"] == 3 and counts.get("unreadable", 0) == len(rows) - len(readable)


def numbers(reply: str) -> list[int]:
    answer = reply.split("<answer>")[1].split("</answer>")[0]
    return [int(part.strip(" []")) for part in answer.split(",")]


@pytest.mark.slow
def test_the_trained_writer_chooses_the_evidence_of_the_reader(written, world):
    rows = {row["question_id"]: row for row in load_rows(written / "evidence-1" / "sets.parquet")}
    pools = [pooled for pooled in load_pools(written, "train") if pooled.id in rows]
    with jax.set_mesh(make_mesh((1, 1, 1))):
        best = load_selector(written, 1).best(pools)
        before, after = (
            LanguageModel.from_pretrained(path).model
            for path in (written.config.selector.path, written / "select-1" / "selector")
        )
        changes = jax.tree.map(lambda a, b: float(abs(a - b).max()), before, after)
    assert max(jax.tree.leaves(changes)) > 0
    for pooled, one in zip(pools, best, strict=True):
        assert rows[pooled.id]["chunk_ids"] == one.chunk_ids and len(set(one.chunk_ids)) == 2


@pytest.mark.slow
def test_an_interrupted_writer_resumes_with_the_same_bytes(written, world, tmp_path, monkeypatch):
    whole_step = StepRows.rows

    def stop_at_last_step(rows, step, make):
        drawn = whole_step(rows, step, make)
        if step == 2:
            raise KeyboardInterrupt
        return drawn

    again = Context(written.config, written.workdir, written.metrics)
    with jax.set_mesh(make_mesh((1, 1, 1))):
        with monkeypatch.context() as patch:
            patch.setattr(StepRows, "rows", stop_at_last_step)
            with pytest.raises(KeyboardInterrupt):
                select.train_selector(again, tmp_path, iteration=1)
        select.train_selector(again, tmp_path, iteration=1)
    outputs = read_manifest(written / "select-1")["outputs"]
    assert {name: file_digest(tmp_path / name) for name in outputs} == {
        name: digest for name, (_, digest) in outputs.items()
    }


@pytest.mark.slow
def test_replies_without_tags_are_refused_with_advice(run, world, tmp_path):
    """The untrained generator writes no list of passages."""
    context = written_context(world, run.workdir, "", **{"filter.questions": 2})
    with (
        jax.set_mesh(make_mesh((1, 1, 1))),
        pytest.raises(ValueError, match=r"none of 8 replies .* names a set .*selector\.path"),
    ):
        select.filter_questions(context, tmp_path, iteration=1)


class Replies:
    """A language model in whose place a test answers."""

    def __init__(self, texts):
        self.texts = texts

    def generate(self, prompts, **options):
        return self.texts


def test_an_unreadable_choice_is_replaced_by_the_nearest_passages(monkeypatch):
    c = config.bar_rag()
    monkeypatch.setattr(WritingSelector, "_prompts", lambda self, questions: questions)
    pooled = PooledQuestion(0, Question("q", "?", ("x",), ()), tuple("abcd"), (0.9,) * 4, ())
    replies = ["", "[3], [2]", "<think> a </think><answer> [3], [9] </answer>"]
    replies.append("<think> a </think><answer> [3], [2] </answer>")
    chosen = WritingSelector(Replies(replies), None, {}, c, None).best([pooled] * 4)
    assert [one.chunk_ids for one in chosen] == [["a", "b"]] * 3 + [["c", "b"]]
    assert [bool(one.problem) for one in chosen] == [True, True, True, False]
    c.selector.strict = False  # the released code passes over a document that does not exist
    lenient = WritingSelector(Replies(replies), None, {}, c, None).best([pooled] * 4)
    assert [one.chunk_ids for one in lenient][2:] == [["c"], ["c", "b"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selector.path": "https://host/v1"}, r"config\.selector\.path.*cannot be trained"),
        ({"selector.kind": "model"}, r"config\.selector\.kind"),
        ({"prompts.select": "none.txt"}, r"config\.prompts\.select"),
    ],
)
def test_invalid_selector_settings_are_refused(tmp_path, changes, message):
    c = bar_world.tiny_config(tmp_path)
    c.update_from_flattened_dict(changes)
    with pytest.raises(ValueError, match=message):
        stages(c)


@pytest.mark.slow
@pytest.mark.usefixtures("mesh")
def test_a_plan_counts_more_tokens_for_a_writer_than_for_vectors(run, world):
    tokens = {}
    for name in ("vectors", "writer"):
        context = context_of(world, run.workdir, **{"selector.kind": name})
        foreseen = RECIPE.forecast(context, set())
        for stage in ("filter-1", "select-1"):
            works = [work for work in foreseen.work if work.stage == stage]
            tokens[name, stage] = sum(work.tokens for work in works)
    for stage in ("filter-1", "select-1"):
        assert tokens["writer", stage] > tokens["vectors", stage] > 0
