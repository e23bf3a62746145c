"""FLOPs by hand, by the models' own weights and by XLA's count; the pace that a run reports."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P
from support import pod, tiny
from support.training import PAIRS, PASSAGES, QUESTIONS, TRAINING, contrastive_config

from ark_jax import Retriever, layout
from ark_jax.models import decoder, encoder, hf
from ark_jax.models.rotary import Rotary
from ark_jax.runtime.log import Metrics
from ark_jax.train import contrastive, fit, flops

# No two sizes alike, heads that are not as wide as the model, and a layer, since XLA counts what a
# loop repeats once.
DECODER = decoder.Config(
    vocab=96,
    width=256,
    layers=1,
    heads=6,
    kv_heads=2,
    head_dim=64,
    ffn=640,
    rotaries=(Rotary(1e4),),
    norm_eps=1e-6,
    qk_norm=True,
    tied=True,
    dtype="float32",
    compute="float32",
)
ENCODER = encoder.Config(
    vocab=96,
    width=256,
    layers=1,
    heads=4,
    ffn=640,
    positions=256,
    pad=None,
    segments=2,
    norm_eps=1e-6,
    dtype="float32",
    compute="float32",
)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_counted_weights_are_the_matrices_of_the_layers(family, mesh):
    kind, model_class, _ = hf.architecture(tiny.config(family))
    cfg = kind.from_hf(tiny.config(family))
    model = jax.eval_shape(lambda: model_class(cfg, rngs=nnx.Rngs(0)))
    leaves = jax.tree_util.tree_leaves_with_path(model.blocks)
    assert flops.weights(cfg) == sum(
        x.size for path, x in leaves if not re.search("norm|bias", jax.tree_util.keystr(path))
    )


def test_flops_of_a_step_equal_a_count_by_hand():
    """Texts of 3 and 5 tokens; a decoder's see 6 + 15 pairs, an encoder's 9 + 25."""
    weights = 256 * (6 + 2 + 2 + 6) * 64 + 3 * 256 * 640
    assert flops.weights(DECODER) == weights
    assert flops.training(DECODER, [3, 5], 0) == 6 * weights * 8 + 12 * 6 * 64 * 21
    assert flops.training(DECODER, [3, 5], 700) == (4 * weights + 6 * 700) * 8 + 12 * 6 * 64 * 21
    assert (
        flops.training(ENCODER, [3, 5], 0)
        == 6 * (4 * 256 * 256 + 2 * 256 * 640) * 8 + 12 * 256 * 34
    )
    deep = dataclasses.replace(ENCODER, layers=7)
    assert flops.training(deep, [3, 5], 0) == 7 * flops.training(ENCODER, [3, 5], 0)


@pytest.mark.parametrize(
    ("cfg", "model_class"),
    [(ENCODER, encoder.Encoder), (DECODER, decoder.Decoder)],
    ids=["encoder", "decoder"],
)
def test_flops_are_within_7_percent_of_xlas_count(cfg, model_class, mesh):
    """For the forward pass alone and with the backward pass, XLA counts up to 7 % more.

    The rest are norms, softmax, biases and, in the backward pass, scores that are computed again. A
    decoder's blocks of queries also meet keys that they do not attend to.
    """
    rows, length = 4, 128
    model = jax.eval_shape(lambda: model_class(cfg, rngs=nnx.Rngs(0)))
    texts = [
        pod.on(jax.sharding.get_mesh(), (rows, length), dtype, P(layout.BATCH))
        for dtype in (jnp.int32, bool)
    ]
    total = lambda model, tokens, mask: model(tokens, mask, cfg).sum()
    count = lambda f: jax.jit(f).lower(model, *texts).compile().cost_analysis()["flops"]
    lengths = [length] * rows
    assert (
        1
        < count(total) / flops.forward(cfg, sum(lengths), flops.attention_pairs(cfg, lengths)).sum()
        < 1.07
    )
    assert 1 < count(jax.value_and_grad(total)) / flops.training(cfg, lengths, 0) < 1.07


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("TPU v4", 275e12),
        ("TPU v4 lite", None),
        ("TPU v5 lite", 197e12),
        ("TPU v5e", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA B200", 2250e12),
        ("cpu", None),
        ("NVIDIA GeForce RTX 2070", None),
    ],
)
def test_the_peak_speed_follows_from_the_device_name(kind, expected):
    assert flops.peak(kind) == expected


def test_the_reported_pace_equals_values_computed_by_hand(monkeypatch):
    """The first step compiles, and a checkpoint takes 9 s. On eight devices of 1 TFLOP/s."""
    # Of the wall and of the thread: at first, after each step, and after the checkpoint.
    clocks = [(0, 0), (100, 90), (100.5, 90.25), (109.5, 99), (109.75, 99.125)]
    monkeypatch.setattr(flops, "_clocks", iter(clocks).__next__)
    with jax.set_mesh(layout.make_mesh((2, 2, 2))):
        meter = flops.Meter()
        assert meter.pace() == {} and flops.describe(meter.pace()) == "compiled"
        meter.add(15, 1e15)
        assert meter.pace() == {}
        meter.add(4, 3e9)
        meter.skip()
        meter.add(8, 5e9)
        assert meter.pace() == {
            "seconds_a_step": 0.375,
            "tokens_a_second": 16.0,
            "flops_a_second": 8e9 / 0.75,
            "host_share": 0.5,
        }
        assert meter.pace(1) == {
            "seconds_a_step": 0.25,
            "tokens_a_second": 32.0,
            "flops_a_second": 2e10,
            "host_share": 0.5,
        }
        assert flops.describe(meter.pace(1)) == "32 tokens/s, 0.02 TFLOP/s, host 50.0 %"
        monkeypatch.setattr(flops, "PEAKS", {jax.devices()[0].device_kind: 1e12})
        assert meter.pace()["mfu"] == pytest.approx(8e9 / 0.75 / 8e12)
    fast = {
        "tokens_a_second": 3203.6,
        "flops_a_second": 5.5e14,
        "mfu": 0.4127,
        "host_share": 0.0123,
    }
    assert flops.describe(fast) == "3,204 tokens/s, 550 TFLOP/s, host 1.2 %, MFU 41.3 %"
    no_text = {
        "seconds_a_step": 0.03125,
        "tokens_a_second": 0.0,
        "flops_a_second": 0.0,
        "host_share": 1,
    }
    assert flops.describe(no_text) == "0.0312 s a step, host 100.0 %"


@pytest.mark.parametrize("rank", [0, 2])
def test_training_reports_its_pace_beside_the_curve(rank, mesh, tmp_path, monkeypatch):
    """Seven questions, three a step, twice; by the clock every step takes two seconds."""
    retriever = Retriever.from_pretrained(
        str(tiny.write(tmp_path / "base", "bert", tokenizer="cls"))
    )
    steps, lines = [], []  # the token counts of each step's texts; progress lines

    def step(objective, optimizer, state, frozen, batch, rate, steps_before):
        masks = (np.asarray(batch[kind][1]) for kind in ("queries", "passages"))
        steps.append([n for mask in masks for n in mask.sum(1).tolist() if n])
        return dataclasses.replace(state, step=state.step + 1), {
            "loss": jnp.float32(1),
            "gradient_norm": jnp.float32(1),
        }

    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(fit, "train_step", step)
    monkeypatch.setattr(fit, "say", lines.append)
    monkeypatch.setattr(flops.time, "perf_counter", lambda: next(clock))
    metrics = Metrics(tmp_path / "metrics.jsonl")
    contrastive.train(
        retriever,
        PAIRS,
        QUESTIONS,
        PASSAGES,
        contrastive_config(save_every=2, lora_rank=rank),
        fit.Run(
            tmp_path / "run", "stage", on_pace=lambda **values: metrics.write("stage9", **values)
        ),
        **TRAINING,
    )
    rows = [json.loads(line) for line in metrics.path.read_text().splitlines()]
    assert len(steps) == 5 and [
        (row["stage"], row.get("step"), row.get("steps")) for row in rows
    ] == [("stage9", 2, None), ("stage9", 4, None), ("stage9", None, 5)]
    tokens = list(map(sum, steps))
    assert [row["tokens_a_second"] for row in rows] == [
        tokens[1] / 2,
        sum(tokens[2:4]) / 4,
        sum(tokens[1:]) / 8,
    ]
    assert {row["seconds_a_step"] for row in rows} == {2.0}
    assert lines[-1].startswith(f"  stage: {sum(tokens[1:]) / 8:,.0f} tokens/s, ")
    curve = [
        json.loads(line) for line in (tmp_path / "run" / "curve.jsonl").read_text().splitlines()
    ]
    assert {frozenset(row) for row in curve} == {
        frozenset({"step", "loss", "learning_rate", "gradient_norm"})
    }
    factors = tiny.LAYERS * rank * (4 * 2 * tiny.WIDTH + 2 * (tiny.WIDTH + tiny.FFN))
    assert rows[0]["flops_a_second"] == flops.training(retriever.cfg, steps[1], factors) / 2
