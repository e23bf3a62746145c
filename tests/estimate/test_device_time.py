"""What the device will compute is what it then computes."""

import statistics

import numpy as np
import pytest
from support.plans import model, questions_and_chunks, settings
from support.world import tiny_config

from ark_jax import LanguageModel, Retriever
from ark_jax.data.records import Question
from ark_jax.estimate import device_time
from ark_jax.models import prefix_plan
from ark_jax.recipes.ark import alignment, curriculum, scored_prompts
from ark_jax.recipes.ark.estimate_scoring import Draw, scoring_work
from ark_jax.recipes.common import estimate
from ark_jax.recipes.common.corpus import candidate_chunks
from ark_jax.train import batches


@pytest.mark.parametrize("changes", [{"candidates": 3}, {"candidates": 0, "references": 1}])
def test_scoring_is_what_the_scorer_computes(run, mesh, changes):
    """Against the arrays that sharing lays out for the real scorer, token by token."""
    c = settings(run.workdir.parent)
    c.score.update(changes)
    questions, chunks = questions_and_chunks(run)
    drawn = {q.id: Draw.from_chunks(q, candidate_chunks(q, chunks), c) for q in questions}
    judge = model(run.workdir.parent, "generator")
    templates = scored_prompts.load_templates({})
    scorer = device_time.RecordingScorer.from_model(judge)
    planned, flops = scoring_work(scorer, judge, templates, questions, drawn, c)
    lm = LanguageModel.from_pretrained(c.generator.path)
    pairs = [
        pair
        for q in questions
        for x in drawn[q.id].candidates
        for a in q.answers[: c.score.references or None]
        for pair in scored_prompts.scored_pairs(
            scored_prompts.load_templates({}), passage=x.passage, question=q.question, answer=a
        )
    ]
    rows = lm._encode_pairs(pairs)
    tokens = sees = 0
    for call in prefix_plan.plan_batches(
        [(ids, len(ids) - n - 1) for ids, n in rows], budget=4096, devices=1
    ):
        lengths = call.mask.sum(1)
        tokens += lengths.sum()
        sees += (lengths * (lengths + 1) // 2).sum()
        for batch in call.suffix_batches:
            is_token = batch.texts > 0
            tokens += is_token.sum()
            sees += (batch.positions[is_token] + 1).sum()
    assert planned == tokens < sum(len(ids) for ids, _ in rows)
    np.testing.assert_array_equal(flops, judge.flops(tokens, sees, sum(n for _, n in rows)))
    assert (
        len(
            alignment.align(
                device_time.RecordingScorer.from_model(judge),
                scored_prompts.load_templates({}),
                questions[:1],
                {questions[0].id: [(drawn[questions[0].id].candidates[0], 0.0)]},
                references=1,
                batch_tokens=0,
                label="",
            )
        )
        == 1
    )


def test_many_pairs_are_sampled(run, mesh, monkeypatch):
    c = settings(run.workdir.parent)
    questions, chunks = questions_and_chunks(run)
    drawn = {q.id: Draw.from_chunks(q, candidate_chunks(q, chunks), c) for q in questions}
    judge = model(run.workdir.parent, "generator")
    lm = device_time.RecordingScorer.from_model(judge)
    whole, _ = scoring_work(lm, judge, scored_prompts.load_templates({}), questions, drawn, c)
    alone = (
        statistics.fmean(len(ids) for ids, _ in lm.rows)
        * 2
        * sum(3 * len(q.answers) for q in questions)
    )
    monkeypatch.setattr(estimate, "SAMPLE", 12)
    seen, real = [], lm.log_likelihood
    lm.log_likelihood = lambda pairs, **named: seen.append(len(pairs)) or real(pairs, **named)
    work, _ = scoring_work(lm, judge, scored_prompts.load_templates({}), questions, drawn, c)
    assert max(seen) <= 12 and sum(seen) <= 24
    assert whole < work < alone  # fewer questions share a passage


def test_a_retriever_without_weights_tokenises_alike(world, mesh):
    real, ours = (
        Retriever.from_pretrained(str(world / "retriever")),
        device_time.load_tokenizing_retriever(model(world, "retriever")),
    )
    assert (ours.max_length, ours.width, ours.lower, ours.prompts) == (
        real.max_length,
        real.width,
        real.lower,
        real.prompts,
    )
    texts = ["The tide.", "the Tidal Board " * 40]
    ids, wanted = (one.tokenize(texts, kind="document").tolist() for one in (ours, real))
    assert ids == wanted


def training(base, questions, drawn, lengths, c, stage: int):
    """The work of a stage of the curriculum."""
    examples = [
        batches.Example(q.id, "d", tuple(drawn[q.id].positives), tuple(drawn[q.id].negatives))
        for q in questions
    ]
    epochs, negatives = curriculum.epochs(c.train, stage), stage in curriculum.MINING_SIZES
    seed = c.seed + stage
    of_steps = device_time.batch_lengths(examples, lengths, c.train, epochs, seed, negatives)
    return device_time.training_work(base, of_steps, c.train.remat, c.train.chunks or 1)


def test_training_is_the_fullest_batch_in_every_step(world, mesh):
    """Three questions in one batch, for two epochs."""
    c = tiny_config(world)
    c.train.batch, c.train.epochs, c.train.order, c.train.save_every = 3, (2, 1, 1), "document", 1
    c.score.keep = 1.0
    questions = [Question(f"q{i}", "?", ("a",), ("d",)) for i in range(3)]
    drawn = {f"q{i}": Draw([], [f"p{i}"], ["n"]) for i in range(3)}
    lengths = {"q0": 10, "q1": 20, "q2": 30}, {"p0": 40, "p1": 50, "p2": 60, "n": 20}
    base = model(world, "retriever")
    steps, tokens, flops = training(base, questions, drawn, lengths, c, 1)
    # Rows are even, lengths rounded up as all batches are, tokens to 64: 60 -> 64 and 150 -> 192.
    assert (steps, tokens) == (2, 2 * (64 + 192))
    pairs = 2 * (4 * 32**2 + 4 * 64**2)
    np.testing.assert_allclose(flops, base.flops(tokens, pairs) * (3, 3.5))
    steps, tokens, _ = training(base, questions, drawn, lengths, c, 2)
    assert (steps, tokens) == (1, 64 + 192)  # 170 with the negative
    c.train.remat = "all"
    np.testing.assert_allclose(
        training(base, questions, drawn, lengths, c, 1)[2], base.flops(512, pairs) * (4, 4.5)
    )
    c.train.remat, c.train.chunks = (
        "products",
        2,
    )  # only passages go twice, in two pieces of at least 64 tokens
    steps, tokens, flops = training(base, questions, drawn, lengths, c, 1)
    assert tokens == 2 * (64 + 2 * 128)
    expected = base.flops(128, 2 * 4 * 32**2) * (3, 3.5) + base.flops(2 * 256, 2 * 4 * 64**2) * (
        4,
        4.5,
    )
    np.testing.assert_allclose(flops, expected)
