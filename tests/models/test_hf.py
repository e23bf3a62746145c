"""Every family against transformers, on every mesh, in and out of its checkpoint; what cannot be
computed is refused.
"""

import dataclasses
import functools
import json
import re
import tempfile
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save, save_file
from support import goldens, tiny

from ark_jax import layout
from ark_jax.models import hf

FAMILIES = pytest.mark.parametrize("family", tiny.FAMILIES)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """`checkpoint(family)` -> its folder, written once."""
    return functools.cache(lambda family: tiny.write(tmp_path_factory.mktemp(family), family))


def golden(family: str) -> dict[str, np.ndarray]:
    with np.load(goldens.FOLDER / f"{family}.npz") as file:
        return dict(file)


@functools.partial(jax.jit, static_argnums=(0, 1))
def evaluate(cfg, room, model, inputs):
    """((loss, {hidden, logits}), gradient) of the loss that goldens.py describes."""

    def objective(model):
        hidden = model(inputs["tokens"], inputs["mask"], cfg, room)
        loss = (hidden * inputs["direction"]).sum() / len(hidden)
        out = {"hidden": hidden}
        if hasattr(model, "logits"):
            out["logits"] = model.logits(layout.pick(hidden, inputs["last"]), cfg)
            wanted = layout.pick(out["logits"], inputs["wanted"])
            loss = loss + (jax.nn.logsumexp(out["logits"], axis=-1) - wanted).mean()
        return loss, out

    return jax.value_and_grad(objective, has_aux=True)(model)


@functools.partial(jax.jit, static_argnums=0)
def forward(cfg, model, tokens, mask):
    return model(tokens, mask, cfg)


def run(folder: Path, inputs: dict[str, np.ndarray], unpadded: bool = False):
    """What `evaluate` gives for a checkpoint on the mesh that is set, on the host; and the gradient
    as it is.
    """
    model, cfg, _ = hf.load_model(str(folder))
    # Three places more than the device with the most tokens needs.
    room = (
        int(inputs["mask"].reshape(layout.batch_multiple(), -1).sum(axis=1).max()) + 3
        if unpadded
        else None
    )
    inputs = {n: inputs[n] for n in ("tokens", "mask", "direction", "wanted")} | {
        "last": goldens.last(inputs["mask"])
    }
    (loss, out), gradient = evaluate(cfg, room, model, jax.tree.map(layout.rows, inputs))
    out = {name: np.asarray(value) for name, value in out.items()} | {"loss": float(loss)}
    out["hidden"] = out["hidden"] * inputs["mask"][..., None]
    return out, gradient, cfg


def same(ours: dict, wanted: dict) -> None:
    for name in ("hidden", "logits", "loss"):
        if name in wanted:
            np.testing.assert_allclose(ours[name], wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)


def same_slopes(gradient, cfg, base: Path, wanted: dict) -> None:
    """Every tensor's gradient, under its Hugging Face name, along the directions of goldens.py."""
    with tempfile.TemporaryDirectory() as folder:
        hf.export(gradient, cfg, Path(folder), base=base, extra_tensors={})
        with safe_open(Path(folder) / "model.safetensors", "numpy") as file:
            assert sorted(file.keys()) == sorted(wanted["names"])
            slopes = [goldens.slope(name, file.get_tensor(name)) for name in wanted["names"]]
    np.testing.assert_allclose(slopes, wanted["slopes"], rtol=1e-4, atol=1e-5)


# The others are compared in test_outputs_on_every_mesh_match_stored_ones_of_transformers.
@pytest.mark.parametrize(
    ("family", "unpadded"),
    [
        ("llama", False),
        ("mistral", True),
        ("xlm-roberta", False),
        ("distilbert", True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("llama", True),
                ("mistral", False),
                ("xlm-roberta", True),
                ("distilbert", False),
            )
        ),
    ],
)
def test_outputs_on_one_device_match_stored_ones_of_transformers(
    family, unpadded, checkpoint, mesh
):
    ours, gradient, cfg = run(checkpoint(family), golden(family), unpadded)
    same(ours, golden(family))
    same_slopes(gradient, cfg, checkpoint(family), golden(family))


@FAMILIES
def test_hidden_states_and_logits_match_transformers(family, checkpoint, mesh):
    pytest.importorskip("torch", reason="transformers computes with torch")
    inputs = goldens.inputs(family, seed=2, length=40)
    wanted = goldens.reference(checkpoint(family), family, inputs)
    model, cfg, _ = hf.load_model(str(checkpoint(family)))
    hidden = forward(cfg, model, layout.rows(inputs["tokens"]), layout.rows(inputs["mask"]))
    np.testing.assert_allclose(
        hidden * inputs["mask"][..., None], wanted["hidden"], rtol=1e-4, atol=1e-5
    )
    if family in tiny.DECODERS:
        logits = model.logits(layout.pick(hidden, layout.rows(goldens.last(inputs["mask"]))), cfg)
        np.testing.assert_allclose(logits, wanted["logits"], rtol=1e-4, atol=1e-5)


@functools.cache
def on_one_device(family: str, folder: Path):
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        outputs, gradient, _ = run(folder, golden(family))
        return outputs, jax.tree.map(np.asarray, jax.tree.leaves(gradient))


@pytest.mark.parametrize("family", ["qwen3", "bert"])
def test_gradients_do_not_depend_on_rematerialisation(family, checkpoint, mesh):
    model, cfg, _ = hf.load_model(str(checkpoint(family)))
    gradient = jax.jit(jax.grad(sine_loss), static_argnums=1)
    leaves = [
        jax.tree.leaves(gradient(model, dataclasses.replace(cfg, remat=how)))
        for how in ("products", "all")
    ]
    # What is zero but for rounding, as the gradient of a bias of keys, is so beside the largest.
    largest = max(float(np.abs(x).max()) for x in leaves[1])
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_allclose(
            one, other, rtol=1e-5, atol=2e-8 * largest + 4e-6 * np.abs(other).max()
        )


@pytest.mark.parametrize("family", ["qwen3", "bert"])
def test_an_unknown_way_of_rematerialisation_is_refused(family, checkpoint, mesh):
    model, cfg, _ = hf.load_model(str(checkpoint(family)))
    with pytest.raises(ValueError, match=r"train.remat='none': must be 'products' or 'all'"):
        jax.eval_shape(
            lambda model: sine_loss(model, dataclasses.replace(cfg, remat="none")), model
        )


def sine_loss(model, cfg):
    tokens, mask = layout.rows(np.arange(24).reshape(3, 8)), layout.rows(np.ones((3, 8), bool))
    return jnp.sin(model(tokens, mask, cfg)).sum()


# Llama and Mistral are Qwen2 without its bias, XLM-R is RoBERTa, DistilBERT is BERT without
# segments: nothing of theirs is laid out in another way.
# Padding is the only other thing that a mesh lays out: a decoder and an encoder of each kind take
# turns.
@pytest.mark.parametrize(
    ("family", "any_mesh"),
    [
        *((family, (1, 1, 1)) for family in ("qwen3", "qwen2", "bert", "roberta")),
        *((family, (2, 2, 2)) for family in ("qwen3", "qwen2", "bert", "roberta")),
        *((family, (1, 8, 1)) for family in ("qwen3", "bert")),
        *((family, (4, 1, 2)) for family in ("qwen2", "roberta")),
        *(
            pytest.param(family, shape, marks=pytest.mark.slow)
            for family, shape in (
                ("qwen2", (1, 8, 1)),
                ("roberta", (1, 8, 1)),
                ("qwen3", (4, 1, 2)),
                ("bert", (4, 1, 2)),
                ("distilbert", (2, 2, 2)),
                ("distilbert", (1, 8, 1)),
                ("distilbert", (4, 1, 2)),
            )
        ),
    ],
    ids=str,
    indirect=["any_mesh"],
)
def test_outputs_on_every_mesh_match_stored_ones_of_transformers(
    family, checkpoint, any_mesh, capfd
):
    """Two families as they are padded, the others without padding."""
    wanted = golden(family)
    ours, gradient, cfg = run(
        checkpoint(family), wanted, unpadded=family in ("qwen3", "roberta", "distilbert")
    )
    assert not re.search(
        "involuntary full rematerialization", capfd.readouterr().err, re.IGNORECASE
    )
    same(ours, wanted)
    same_slopes(gradient, cfg, checkpoint(family), wanted)
    # More strictly, every number is that of one device up to rounding.
    one, one_gradient = on_one_device(family, checkpoint(family))
    for name, value in one.items():
        # The terms of the loss cancel each other, their rounding does not.
        rtol = 5e-5 if name == "loss" else 1e-5
        np.testing.assert_allclose(
            ours[name], value, rtol=rtol, atol=2e-6 * np.abs(value).max(), err_msg=name
        )
    for leaf, value in zip(jax.tree.leaves(gradient), one_gradient, strict=True):
        np.testing.assert_allclose(
            np.asarray(leaf), value, rtol=1e-5, atol=2e-6 + 4e-6 * np.abs(value).max()
        )


def test_weights_are_sharded_over_the_mesh(checkpoint):
    with jax.set_mesh(layout.make_mesh((2, 2, 2))):
        model, _, _ = hf.load_model(str(checkpoint("qwen3")))
    shards = {
        name: leaf[...].addressable_shards[0].data.shape
        for name, leaf in hf.named_parameters(model)
    }
    assert shards["embed"] == (304, 8)
    assert shards["q"] == (2, 16, 2, 12)
    assert shards["down"] == (2, 24, 16)


@functools.partial(jax.jit, static_argnums=0)
def pull(cfg, model, tokens, mask, where):
    """The gradient of the embeddings when the hidden states are pulled along `where`."""
    return jax.grad(lambda m: (m(tokens, mask, cfg) * where).sum())(model).embed[...]


def effect(cfg, model, tokens: np.ndarray, mask: np.ndarray, position: int) -> set[int]:
    """The tokens that the hidden state at `at` depends on at all: all others' gradient is exactly
    zero.
    """
    where = np.zeros((1, len(tokens), tiny.WIDTH), np.float32)
    where[0, position, 5] = 1
    gradient = np.asarray(pull(cfg, model, *map(layout.rows, (tokens[None], mask[None], where))))
    return set(np.flatnonzero(np.abs(gradient).max(axis=1)))


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_decoder_token_affects_no_earlier_token(side, checkpoint, mesh):
    model, cfg, _ = hf.load_model(str(checkpoint("qwen3")))
    tokens = np.random.default_rng(3).permutation(tiny.VOCAB)[:12].astype(np.int32)
    mask = np.arange(12) < 9 if side == "right" else np.arange(12) >= 3
    visible = tokens[mask]
    for t in (0, 4, 8):
        assert effect(cfg, model, tokens, mask, np.flatnonzero(mask)[t]) == set(visible[: t + 1])


def test_an_encoder_attends_to_both_sides_but_not_to_padding(checkpoint, mesh):
    model, cfg, _ = hf.load_model(str(checkpoint("bert")))
    tokens = np.random.default_rng(3).permutation(tiny.VOCAB)[:12].astype(np.int32)
    assert effect(cfg, model, tokens, np.arange(12) < 9, 4) == set(tokens[:9])


def test_a_pad_token_inside_a_text_is_treated_as_in_transformers(checkpoint, mesh):
    pytest.importorskip("torch", reason="transformers computes with torch")
    inputs = goldens.inputs("roberta", seed=2, length=40)
    inputs["tokens"][:, 1] = inputs["tokens"][::2, 5] = 3
    wanted = goldens.reference(checkpoint("roberta"), "roberta", inputs)
    model, cfg, _ = hf.load_model(str(checkpoint("roberta")))
    hidden = forward(cfg, model, layout.rows(inputs["tokens"]), layout.rows(inputs["mask"]))
    np.testing.assert_allclose(
        hidden * inputs["mask"][..., None], wanted["hidden"], rtol=1e-4, atol=1e-5
    )


def contents(folder: Path) -> dict[str, tuple]:
    """Type, shape and bytes of every tensor of a folder."""
    out = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "numpy") as handle:
            for name in handle.keys():  # noqa: SIM118
                value = handle.get_tensor(name)
                out[name] = (value.dtype, value.shape, value.tobytes())
    return out


@FAMILIES
@pytest.mark.parametrize("bare", [False, True], ids=["prefixed", "bare"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exporting_a_loaded_model_gives_the_same_tensors(family, bare, dtype, tmp_path, mesh):
    base = tiny.write(tmp_path / "base", family, bare=bare, files=2, dtype=dtype)
    model, cfg, extra_tensors = hf.load_model(str(base))
    (tmp_path / "out").mkdir()
    hf.export(model, cfg, tmp_path / "out", base=base, extra_tensors=extra_tensors)
    assert len(contents(base)) == len(tiny.tensors(family))
    assert contents(tmp_path / "out") == contents(base)


@pytest.mark.parametrize("family", ["qwen2", "bert"])
def test_a_sharded_model_is_exported_whole(family, tmp_path, any_mesh):
    base = tiny.write(tmp_path / "base", family)
    model, cfg, extra_tensors = hf.load_model(str(base))
    (tmp_path / "out").mkdir()
    hf.export(model, cfg, tmp_path / "out", base=base, extra_tensors=extra_tensors)
    assert contents(tmp_path / "out") == contents(base)


def test_export_changes_only_the_changed_tensor(tmp_path, checkpoint, mesh):
    model, cfg, extra_tensors = hf.load_model(str(checkpoint("qwen3")))
    gate = np.array(model.blocks.gate[...])
    gate[1, 3, 5] = 7  # layer 1, from width 3 to ffn 5
    model.blocks.gate[...] = jax.device_put(gate, model.blocks.gate[...].sharding)
    hf.export(model, cfg, tmp_path, base=checkpoint("qwen3"), extra_tensors=extra_tensors)
    before, after = contents(checkpoint("qwen3")), contents(tmp_path)
    assert [name for name in before if before[name] != after[name]] == [
        "model.layers.1.mlp.gate_proj.weight"
    ]
    wanted = tiny.tensors("qwen3")["model.layers.1.mlp.gate_proj.weight"]
    wanted[5, 3] = 7
    assert after["model.layers.1.mlp.gate_proj.weight"][2] == wanted.tobytes()


def test_a_large_export_is_split_into_indexed_files(tmp_path):
    tensors = {
        name: np.full(100, i, np.float32) for i, name in enumerate("abcde")
    }  # 400 bytes each
    hf.write_tensors(tensors, tmp_path, limit=1000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    first, second, third = (f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3))
    assert index["weight_map"] == {"a": first, "b": first, "c": second, "d": second, "e": third}
    assert index["metadata"]["total_size"] == 2000
    assert contents(tmp_path) == {
        name: (x.dtype, x.shape, x.tobytes()) for name, x in tensors.items()
    }


def test_a_file_of_weights_has_the_librarys_bytes_and_holds_one_array_more(tmp_path):
    random = np.random.default_rng(0)
    draw = lambda *shape: random.standard_normal(shape).astype(np.float32)
    tensors = {
        "b": draw(3, 5).T,
        "a": draw(4).astype(ml_dtypes.bfloat16),
        "ü": draw(2, 3, 4).transpose(2, 0, 1),
        "none": draw(0, 2),
        "one": np.array(3, np.int32),
        "half": draw(7).astype(np.float16),
        "flag": np.array([True, False]),
    }
    hf.write_tensors(tensors, tmp_path)
    contiguous = {name: np.ascontiguousarray(x).reshape(x.shape) for name, x in tensors.items()}
    wanted = save(contiguous, metadata={"format": "pt"})
    assert (tmp_path / "model.safetensors").read_bytes() == wanted
    large = {str(i): np.zeros((1000, 1000), np.float32) for i in range(8)}
    tracemalloc.start()
    hf.write_tensors(large, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * large["0"].nbytes


def assert_same_model(one: Path, other: Path) -> None:
    """Their weights and settings are equal, so they compute the same."""
    (model, cfg, _), (wanted, wanted_cfg, _) = map(hf.load_model, map(str, (one, other)))
    assert cfg == wanted_cfg
    for x, y in zip(*map(jax.tree.leaves, (model, wanted)), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_bfloat16_weights_can_be_computed_in_float32(tmp_path, mesh):
    """16 bits on disk change the weights, not the computation."""
    rounded = {
        n: x.astype(jnp.bfloat16).astype(np.float32) for n, x in tiny.tensors("llama").items()
    }
    half = tiny.write(tmp_path / "half", "llama", dtype="bfloat16")
    assert_same_model(half, tiny.write(tmp_path / "full", "llama", weights=rounded))


def test_an_export_removes_the_files_of_an_earlier_one(tmp_path, mesh):
    """An index of its shards, say, which would be believed."""
    folder = tiny.write(tmp_path / "old", "bert", files=2)
    base = tiny.write(
        tmp_path / "base", "bert", weights={n: 2 * x for n, x in tiny.tensors("bert").items()}
    )
    model, cfg, extra_tensors = hf.load_model(str(base))
    hf.export(model, cfg, folder, base=base, extra_tensors=extra_tensors)
    assert contents(folder) == contents(base)


def test_a_stored_copy_of_a_tied_head_is_accepted(tmp_path, checkpoint, mesh):
    weights = tiny.tensors("qwen3")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    assert_same_model(tiny.write(tmp_path, "qwen3", weights=weights), checkpoint("qwen3"))


REFUSED = [
    ("qwen3", {"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
    ("llama", {"sliding_window": 4}, "sliding_window"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": -2.0}}, "factor=-2.0: must be a"),
    ("qwen3", {"rope_scaling": {"type": "linear"}}, "no 'factor'"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    (
        "mistral",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 12345.0,
                "partial_rotary_factor": 0.5,
            }
        },
        "partial_rotary_factor",
    ),
    ("qwen3", {"mlp_bias": True}, "mlp_bias"),
    ("mistral", {"attention_bias": True}, "attention_bias"),
    ("qwen3", {"use_sliding_window": True, "layer_types": ["chunked"] * 2}, "layer_types"),
    ("qwen3", {"hidden_act": "relu"}, "hidden_act"),
    ("qwen3", {"model_type": "gemma2"}, "gemma2"),
    ("bert", {"model_type": "xlnet"}, "xlnet"),
    ("bert", {"num_attention_heads": 5}, "num_attention_heads=5"),
    ("bert", {"hidden_act": "relu"}, "hidden_act"),
    ("bert", {"num_hidden_layers": 0}, "num_hidden_layers=0: must be an integer of at least 1"),
    ("bert", {"num_hidden_layers": "2"}, "num_hidden_layers='2': must be an integer"),
    ("bert", {"num_attention_heads": 0}, "num_attention_heads=0: must be an integer"),
    ("bert", {"hidden_size": -32}, "hidden_size=-32: must be an integer"),
    ("bert", {"intermediate_size": True}, "intermediate_size=True: must be an integer"),
    ("bert", {"layer_norm_eps": float("nan")}, "layer_norm_eps=nan: must be a finite number"),
    ("distilbert", {"dim": [32]}, r"dim=\[32\]: must be an integer"),
    ("roberta", {"pad_token_id": "1"}, "pad_token_id='1'"),
    ("llama", {"head_dim": "x"}, "head_dim='x': must be an integer"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads=3"),
    ("llama", {"rope_scaling": 7}, "rope_scaling=7"),
    ("llama", {"rope_theta": 0}, "rope_theta=0: must be a finite number above 0"),
    ("llama", {"rms_norm_eps": "x"}, "rms_norm_eps='x': must be a finite number"),
    ("llama", {"num_hidden_layers": 10**9}, "layers.999999999.* is missing"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("bert", {"is_decoder": True}, "is_decoder"),
    ("roberta", {"add_cross_attention": True}, "add_cross_attention"),
    ("roberta", {"hidden_act": "gelu_new"}, "hidden_act='gelu_new'"),
    ("roberta", {"pad_token_id": -1}, "pad_token_id=-1"),
    ("xlm-roberta", {"is_decoder": True}, "is_decoder"),
    ("xlm-roberta", {"position_embedding_type": "relative_key_query"}, "position_embedding_type"),
    ("distilbert", {"activation": "relu"}, "activation='relu'"),
]


@pytest.mark.parametrize(("family", "changes", "named"), REFUSED, ids=lambda x: str(x)[:40])
def test_an_unsupported_config_is_refused(family, changes, named, tmp_path, mesh):
    with pytest.raises(ValueError, match=named):
        hf.load_model(str(tiny.write(tmp_path, family, changes=changes)))


@pytest.mark.parametrize(
    ("family", "name", "bare"),
    [
        ("qwen3", "model.layers.1.self_attn.q_norm.weight", False),
        ("qwen3", "model.layers.1.self_attn.q_norm.weight", True),
        ("bert", "bert.encoder.layer.1.output.dense.bias", False),
        ("bert", "bert.encoder.layer.1.output.dense.bias", True),
        ("xlm-roberta", "roberta.embeddings.token_type_embeddings.weight", False),
        ("distilbert", "distilbert.transformer.layer.1.ffn.lin2.bias", True),
        ("qwen2", "lm_head.weight", False),
    ],
)
def test_a_missing_tensor_is_named(family, name, bare, tmp_path, mesh):
    weights = tiny.tensors(family)
    del weights[name]
    with pytest.raises(
        ValueError, match=re.escape(name.removeprefix(tiny.PREFIX[family])) + ".*missing"
    ):
        hf.load_model(str(tiny.write(tmp_path, family, weights=weights, bare=bare)))


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "model.layers.1.self_attn.q_norm.weight"),
        ("llama", "model.layers.2.input_layernorm.weight"),
        ("qwen3", "model.layers.0.self_attn.q_proj.bias"),
        ("qwen2", "lm_head.bias"),
        ("bert", "bert.encoder.layer.0.extra.weight"),
        ("roberta", "classifier.dense.weight"),
        ("distilbert", "distilbert.embeddings.token_type_embeddings.weight"),
    ],
)
def test_an_unexpected_tensor_is_named(family, name, tmp_path, mesh):
    weights = tiny.tensors(family) | {name: np.zeros(tiny.WIDTH, np.float32)}
    with pytest.raises(ValueError, match=re.escape(name)):
        hf.load_model(str(tiny.write(tmp_path, family, weights=weights)))


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("mistral", "model.layers.1.mlp.gate_proj.weight"),
        ("bert", "bert.embeddings.word_embeddings.weight"),
        ("distilbert", "distilbert.transformer.layer.0.ffn.lin1.weight"),
    ],
)
def test_a_tensor_with_a_wrong_shape_is_named(family, name, tmp_path, mesh):
    weights = tiny.tensors(family)
    weights[name] = np.ascontiguousarray(weights[name].T)
    with pytest.raises(ValueError, match=re.escape(name) + r".*shape"):
        hf.load_model(str(tiny.write(tmp_path, family, weights=weights)))


def test_only_the_files_that_the_index_names_are_read(tmp_path, checkpoint, mesh):
    """Mistral publishes consolidated.safetensors beside, the same weights under other names."""
    tiny.write(tmp_path, "mistral", files=2)
    save_file(
        {"output.weight": np.zeros((2, 2), np.float32)}, tmp_path / "consolidated.safetensors"
    )
    assert_same_model(tmp_path, checkpoint("mistral"))


@FAMILIES
def test_a_checkpoint_without_a_prefix_gives_the_same_model(family, tmp_path, checkpoint, mesh):
    assert_same_model(tiny.write(tmp_path, family, bare=True), checkpoint(family))


def test_legacy_tensor_names_are_read_and_kept(tmp_path, mesh):
    """As in the published bert-base-uncased: LayerNorm.gamma and LayerNorm.beta."""
    old = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): x
        for n, x in tiny.tensors("bert").items()
    }
    model, cfg, extra_tensors = hf.load_model(
        str(tiny.write(tmp_path / "old", "bert", weights=old))
    )
    new, _, _ = hf.load_model(str(tiny.write(tmp_path / "new", "bert")))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), model, new))
    (tmp_path / "out").mkdir()
    hf.export(model, cfg, tmp_path / "out", base=tmp_path / "old", extra_tensors=extra_tensors)
    files = [tmp_path / name / "model.safetensors" for name in ("old", "out")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("family", "field"),
    [
        ("llama", "rms_norm_eps"),
        ("bert", "layer_norm_eps"),
        ("qwen3", "vocab_size"),
        ("roberta", "pad_token_id"),
        ("xlm-roberta", "type_vocab_size"),
        ("distilbert", "hidden_dim"),
    ],
)
def test_a_missing_setting_is_named(family, field, tmp_path, mesh):
    with pytest.raises(ValueError, match=f"config.json: no '{field}'; a {family} checkpoint"):
        hf.load_model(str(tiny.write(tmp_path, family, changes={field: None})))


def test_an_export_has_default_file_permissions(tmp_path, mesh):
    model, cfg, extra_tensors = hf.load_model(str(tiny.write(tmp_path / "a", "bert")))
    (tmp_path / "b").mkdir()
    hf.export(model, cfg, tmp_path / "b", base=tmp_path / "a", extra_tensors=extra_tensors)
    (tmp_path / "any").touch()
    assert (tmp_path / "b" / "model.safetensors").stat().st_mode == (
        tmp_path / "any"
    ).stat().st_mode


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        hf.load_model(str(tmp_path))


def test_a_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny.config("bert")))
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors, nor its index; fetch"):
        hf.load_model(str(tmp_path))


def test_a_missing_model_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        hf.load_model(str(tmp_path / "absent"))


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path, mesh):
    for changes, message in (
        ({"model_type": "gemma2"}, "'gemma2'"),
        ({"model_type": None}, "None"),
    ):
        wanted = (
            f"{tmp_path}/config.json: model_type {message} is not implemented; known: qwen3, .*bert"
        )
        with pytest.raises(ValueError, match=wanted):
            hf.load_model(str(tiny.write(tmp_path, "bert", changes=changes)))


HARMS = {
    "cut in the header": lambda x: x[:99],
    "cut in the length": lambda x: x[:5],
    "cut in the data": lambda x: x[:-1],
    "empty": lambda x: b"",
    "random": lambda x: np.random.default_rng(0).bytes(len(x)),
    "too long": lambda x: x + b"\0",
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_broken_weights_file_is_named(harm, tmp_path, mesh):
    file = tiny.write(tmp_path, "bert", files=2) / "model-00002-of-00002.safetensors"
    file.write_bytes(HARMS[harm](file.read_bytes()))
    wanted = (
        rf"^{re.escape(str(file))} \([\d,]+ bytes\): cut short or no safetensors file \(.*\); "
        "fetch it again$"
    )
    with pytest.raises(ValueError, match=wanted):
        hf.load_model(str(tmp_path))


def test_a_missing_weights_file_is_named(tmp_path, mesh):
    name = "model-00002-of-00002.safetensors"
    (tiny.write(tmp_path, "bert", files=2) / name).unlink()
    with pytest.raises(
        FileNotFoundError,
        match=rf"^{tmp_path}: no {name}, which model.safetensors.index.json names; fetch",
    ):
        hf.load_model(str(tmp_path))


@pytest.mark.parametrize("name", ["/etc/hosts", "../other/model.safetensors", "a\0b"])
def test_an_index_reads_no_file_outside_its_folder(name, tmp_path, mesh):
    tiny.write(tmp_path / "other", "bert")
    index = tiny.write(tmp_path / "mine", "bert", files=2) / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ValueError, match=f"^{index}: names .*, which lies outside its folder"):
        hf.load_model(str(tmp_path / "mine"))


@pytest.mark.parametrize("kind", [np.int8, np.bool_, ml_dtypes.float8_e4m3fn])
def test_quantised_weights_are_refused(kind, tmp_path, mesh):
    name = "bert.encoder.layer.0.attention.self.key.weight"
    weights = tiny.tensors("bert")
    weights[name] = weights[name].astype(kind)
    tiny.write(tmp_path, "bert", weights=weights)
    with pytest.raises(ValueError, match=f"tensor {name} is of type .*, not one of F64, F32"):
        hf.load_model(str(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1', r"not JSON \(.*\)"),
        (b"", r"not JSON \(.*\)"),
        (b"\xff\xfe{", r"not JSON \(.*\)"),
        (b"[" * 100_000, r"not JSON \(.*\)"),
        (b"[]", "holds a list, not a dict"),
    ],
)
def test_a_broken_config_or_index_is_named(name, content, message, tmp_path, mesh):
    (tiny.write(tmp_path, "bert", files=2) / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"^{tmp_path}/{name}: {message}; fetch the file again$"):
        hf.load_model(str(tmp_path))


@pytest.mark.parametrize("content", [{}, {"weight_map": ["a"]}, {"weight_map": {"a": 1}}], ids=str)
def test_an_index_without_files_is_refused(content, tmp_path, mesh):
    index = tiny.write(tmp_path, "bert", files=2) / "model.safetensors.index.json"
    index.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=f"^{index}: no weight_map from tensors to files; fetch the file again$"
    ):
        hf.load_model(str(tmp_path))
