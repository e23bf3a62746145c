"""Families of models against transformers: outputs and gradients, on meshes, saved and opened."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import tiny

from ark_jax import layout
from ark_jax.models import families, hf, lora
from ark_jax.models.language import LanguageModel
from ark_jax.models.pairs import CrossEncoder

torch = pytest.importorskip("torch", reason="transformers computes with torch")
SIZES = {
    "vocab_size": tiny.VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 640,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}
YARN |= {"original_max_position_embeddings": 32}
QWEN = {"num_key_value_heads": 2, "head_dim": 12, "rms_norm_eps": 3e-5, "rope_theta": 700.0}
GEMMA = QWEN | {"sliding_window": 8, "query_pre_attn_scalar": 20, "sliding_window_pattern": 3}
GEMMA |= {"rope_local_base_freq": 50.0}
DEBERTA = {
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
WORDS = ("word_embeddings", "embed_tokens", "tok_embeddings")
ODD = {"num_attention_heads": 3, "hidden_size": 42, "intermediate_size": 25}
# name -> model_type, and what differs from SIZES. Odd sizes are for one device.
CASES = {
    "modernbert": ("modernbert", {"local_attention": 10, "global_rope_theta": 900.0}),
    "modernbert-biases": (
        "modernbert",
        {"local_attention": 6, "attention_bias": True, "mlp_bias": True, "norm_bias": True} | ODD,
    ),
    "modernbert-layer-types": (
        "modernbert",
        {"layer_types": ["sliding_attention", "full_attention"] * 2, "norm_eps": 1e-3},
    ),
    "mpnet": ("mpnet", {}),
    "mpnet-odd": ("mpnet", ODD),
    "nomic": ("nomic_bert", {"type_vocab_size": 2}),
    "gte": ("gte", {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}} | ODD),
    "gte-segments": ("gte", {"type_vocab_size": 0}),
    "deberta": ("deberta-v2", DEBERTA),
    "deberta-odd": ("deberta-v2", DEBERTA | ODD | {"position_buckets": -1}),
    "gemma": ("gemma3_text", GEMMA),
    "gemma-untied": ("gemma3_text", GEMMA | {"tie_word_embeddings": False, "attention_bias": True}),
    "gemma-bidirectional": ("gemma3_text", GEMMA | {"use_bidirectional_attention": True}),
    "mistral-window": ("mistral", QWEN | {"sliding_window": 8} | ODD | {"num_key_value_heads": 1}),
    "qwen2-window": (
        "qwen2",
        QWEN | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
    ),
    "qwen2-yarn": ("qwen2", QWEN | {"rope_parameters": YARN, "head_dim": 24}),
    "qwen3-biases": ("qwen3", QWEN | {"attention_bias": True, "tie_word_embeddings": True}),
    "llama-biases": ("llama", QWEN | {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}} | ODD,
    ),
}


def test_every_family_is_compared():
    """`new` by its port; see test_gte_as_published_equals_the_port_of_transformers."""
    assert {*tiny.FAMILIES, *(kind for kind, _ in CASES.values()), "new"} == {*families.FAMILIES}
    scored = {CASES[case][0] for case in CLASSIFIERS} | {*tiny.ENCODERS, "new"}
    assert scored == {row[0] for row in families.rows() if "pairs" in row[2]}


@functools.cache
def reference(case: str, root: str):
    """(folder, inputs, hidden states, transformers' model with gradients) of a case."""
    import transformers

    family, changes = CASES[case]
    cfg = transformers.AutoConfig.for_model(family, **SIZES | changes, dtype="float32")
    torch.manual_seed(0)
    causal = family in tiny.DECODERS or family == "gemma3_text"
    model = transformers.AutoModel.from_config(cfg, attn_implementation="eager").eval()
    with torch.no_grad():
        for x in model.parameters():
            x.add_(0.1 * torch.randn_like(x))
    folder = Path(root) / case
    model.save_pretrained(folder)
    random = np.random.default_rng(0)
    tokens = random.integers(3, tiny.VOCAB, (8, 40)).astype(np.int32)
    mask = np.arange(40) < random.integers(5, 41, (8, 1))
    mask[0] = True
    if causal:
        mask[4:] = mask[4:, ::-1]
    direction = (random.standard_normal((8, 40, cfg.hidden_size)) * mask[..., None]).astype("f")
    ids = torch.tensor(tokens, dtype=torch.long)
    hidden = model(input_ids=ids, attention_mask=torch.tensor(mask).long()).last_hidden_state
    (hidden * torch.tensor(direction)).sum().backward()
    return folder, (tokens, mask, direction), hidden.detach().numpy() * mask[..., None], model


@functools.partial(jax.jit, static_argnums=(0, 1))
def evaluate(cfg, room, model, tokens, mask, direction):
    """(hidden states, gradient of their sum along `direction`)."""

    def objective(model):
        hidden = model(tokens, mask, cfg, room)
        return (hidden * direction).sum(), hidden

    gradient, hidden = jax.grad(objective, has_aux=True)(model)
    return hidden, gradient


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return str(tmp_path_factory.mktemp("families"))


def compare(case: str, root: str, folder: Path, *, packed: bool) -> None:
    """Outputs and gradients on the mesh that is set; transformers opens the latter, saved."""
    import transformers

    base, inputs, wanted, reference_model = reference(case, root)
    model, cfg, extra_tensors = hf.load_model(str(base), head=False)
    tokens_of_device = inputs[1].reshape(layout.batch_multiple(), -1).sum(axis=1)
    room = int(tokens_of_device.max()) + 3 if packed else None
    hidden, gradient = evaluate(cfg, room, model, *map(layout.rows, inputs))
    hidden = np.asarray(hidden) * inputs[1][..., None]
    np.testing.assert_allclose(hidden, wanted, rtol=1e-5, atol=1e-5)
    hf.save_model(gradient, cfg, folder, base=base, extra_tensors=extra_tensors)
    opened, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    theirs = dict(reference_model.named_parameters())
    for name, ours in opened.named_parameters():
        if theirs[name].grad is None:
            continue
        slope = theirs[name].grad.numpy()
        if name.split(".")[-2] in WORDS:  # torch gives the pad token no gradient
            ours, slope = ours[3:], slope[3:]
        largest = np.abs(slope).max()
        np.testing.assert_allclose(
            ours.detach().numpy(), slope, rtol=1e-4, atol=2e-5 * largest + 1e-5, err_msg=name
        )


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_on_one_device_match_transformers(case, root, tmp_path, mesh):
    compare(case, root, tmp_path, packed=False)


def test_gte_as_published_equals_the_port_of_transformers(root, tmp_path, mesh):
    """The model_type `new` is Alibaba's; its rotation has other names in config.json."""
    base, inputs, wanted, _ = reference("gte", root)
    settings = json.loads((base / "config.json").read_text()) | {"model_type": "new"}
    settings |= {"rope_parameters": None, "rope_theta": 300.0, "position_embedding_type": "rope"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes())
    model, cfg, _ = hf.load_model(str(tmp_path))
    hidden, _ = evaluate(cfg, None, model, *map(layout.rows, inputs))
    np.testing.assert_allclose(hidden * inputs[1][..., None], wanted, rtol=1e-5, atol=1e-5)


def test_a_bidirectional_decoder_sees_all_tokens(root, tmp_path, mesh):
    """As gte-Qwen2; transformers does so if it is given the whole mask."""
    base, (tokens, mask, direction), _, theirs = reference("qwen2-yarn", root)
    settings = json.loads((base / "config.json").read_text()) | {"is_causal": False}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes())
    mask, tokens, direction = mask[:4], tokens[:4], direction[:4]
    shown = torch.tensor(np.where(mask[:, None, None], 0, -1e30).repeat(40, 2)).float()
    with torch.no_grad():
        ids = torch.tensor(tokens, dtype=torch.long)
        wanted = theirs(input_ids=ids, attention_mask=shown).last_hidden_state.numpy()
    model, cfg, _ = hf.load_model(str(tmp_path), head=False)
    hidden, _ = evaluate(cfg, None, model, *map(layout.rows, (tokens, mask, direction)))
    np.testing.assert_allclose(
        hidden * mask[..., None], wanted * mask[..., None], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("case", "any_mesh"),
    [
        *((name, (2, 2, 2)) for name in ("modernbert", "mpnet", "nomic", "gte-segments")),
        *((name, (2, 2, 2)) for name in ("deberta", "gemma", "gemma-bidirectional")),
        *((name, (2, 2, 2)) for name in ("qwen2-window", "llama-biases")),
        *((name, (1, 8, 1)) for name in ("modernbert", "mpnet", "deberta", "gemma")),
    ],
    ids=str,
    indirect=["any_mesh"],
)
def test_outputs_and_gradients_on_meshes_match_transformers(case, any_mesh, root, tmp_path):
    """Without padding, on devices that each have a part of the weights."""
    compare(case, root, tmp_path, packed=True)


@pytest.fixture(scope="session")
def language_model(root):
    """(folder, transformers' model) of a decoder with a head and a tokenizer."""
    import transformers

    @functools.cache
    def write(case: str):
        family, changes = CASES[case]
        cfg = transformers.AutoConfig.for_model(family, **SIZES | changes, dtype="float32")
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(cfg, attn_implementation="eager")
        with torch.no_grad():
            for x in model.parameters():
                x.add_(0.2 * torch.randn_like(x))
        folder = Path(root) / f"lm-{case}"
        model.eval().save_pretrained(folder)
        tiny.make_tokenizer(folder, "plain")
        return folder, model

    return write


PREFIX = "The Tidal Board was read every quarter of an hour by clerks who worked in pairs; "
WINDOWED = pytest.mark.parametrize("case", ["gemma", "mistral-window"])


@WINDOWED
def test_shared_prefixes_are_scored_as_by_transformers(case, language_model, mesh):
    """Texts that begin alike: windows reach into the prefix, and end within it."""
    folder, theirs = language_model(case)
    lm = LanguageModel.from_pretrained(folder)
    ends = ["no", "yes, they did, and so did all the others", "it rained on the seven members"]
    pairs = [(PREFIX, end) for end in ends] + [(PREFIX + ends[1], " again"), ("x", "y")]
    ours = lm.token_log_likelihood(
        [lm.prompt_ids([prompt])[0] for prompt, _ in pairs],
        [lm.prompt_ids([target])[0] for _, target in pairs],
    )
    for (prompt, target), row in zip(pairs, ours, strict=True):
        first, second = (list(lm.prompt_ids([text])[0]) for text in (prompt, target))
        with torch.no_grad():
            logits = theirs(input_ids=torch.tensor([first + second])).logits[0].log_softmax(-1)
        wanted = [float(logits[len(first) + i - 1, token]) for i, token in enumerate(second)]
        np.testing.assert_allclose(row, wanted, rtol=1e-5, atol=2e-5)


@WINDOWED
def test_texts_are_generated_as_by_transformers(case, language_model, mesh):
    folder, theirs = language_model(case)
    lm = LanguageModel.from_pretrained(folder)
    prompts = [PREFIX + "they", PREFIX + "it rained on the seven members", PREFIX]
    ids = [list(row) for row in lm.prompt_ids(prompts)]
    ours = lm.sample(prompts, n=1, max_new_tokens=24, seed=0, temperature=1e-4, log_probs=False)
    for row, new in zip(ids, ours.ids, strict=True):
        with torch.no_grad():
            out = theirs.generate(
                torch.tensor([row]), max_new_tokens=24, do_sample=False, eos_token_id=lm.stop_ids
            )
        assert list(new) == out[0, len(row) :].tolist()


CLASSIFIERS = ("modernbert", "modernbert-biases", "mpnet", "nomic", "gte", "deberta")
PAIRS = [("when was the gauge read?", PREFIX), ("x", "Seven members."), ("clerks", "in pairs")]


@pytest.mark.parametrize("case", CLASSIFIERS)
def test_pairs_are_scored_as_by_transformers(case, tmp_path, mesh):
    """A sequence classifier; and one that is saved after its head has changed."""
    import transformers

    family, changes = CASES[case]
    changes = changes | {"num_labels": 1}
    if case == "modernbert-biases":
        changes |= {"classifier_pooling": "mean", "classifier_bias": True}
    cfg = transformers.AutoConfig.for_model(family, **SIZES | changes, dtype="float32")
    torch.manual_seed(2)
    model = transformers.AutoModelForSequenceClassification.from_config(cfg)
    with torch.no_grad():
        for x in model.parameters():
            x.add_(0.1 * torch.randn_like(x))
    model.save_pretrained(tmp_path / "base")
    tiny.make_tokenizer(tmp_path / "base", "cls")
    scorer = CrossEncoder.from_pretrained(tmp_path / "base")
    scorer.model.head.out[...] = scorer.model.head.out[...] + 0.25
    scorer.save_pretrained(tmp_path / "saved")
    loaded = CrossEncoder.from_pretrained(tmp_path / "base")
    for folder, ours in (("base", loaded), ("saved", scorer)):
        wanted = scores(tmp_path / folder, scorer.tokenizer)
        assert np.std(wanted) > 1e-3
        np.testing.assert_allclose(ours.score(PAIRS), wanted, rtol=1e-5, atol=1e-5)


def scores(folder: Path, tokenizer) -> list[float]:
    """The logits of PAIRS by transformers."""
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = [tokenizer([a], [b], return_tensors="pt") for a, b in PAIRS]
        return [float(model(**row).logits) for row in rows]


def test_a_retriever_of_a_new_family_becomes_a_reranker(root, tmp_path, mesh):
    """An encoder without a head, whose names lack the family's prefix."""
    base, *_ = reference("deberta", root)
    tiny.make_tokenizer(base, "cls")
    scorer = CrossEncoder.from_pretrained(base, head="linear")
    scorer.save_pretrained(tmp_path)
    wanted = scores(tmp_path, scorer.tokenizer)
    np.testing.assert_allclose(scorer.score(PAIRS), wanted, rtol=1e-5, atol=1e-5)


REFUSED = {
    "modernbert-scaling": ("modernbert", {"rope_scaling": {"type": "linear"}}, "rope_scaling"),
    "modernbert-layers": ("modernbert", {"layer_types": ["full_attention"]}, "layer_types"),
    "mpnet-buckets": ("mpnet", {"relative_attention_num_buckets": 16}, "num_buckets=16"),
    "deberta-convolution": ("deberta-v2", DEBERTA | {"conv_kernel_size": 3}, "conv_kernel_size=3"),
    "deberta-keys": ("deberta-v2", DEBERTA | {"share_att_key": False}, "share_att_key=False"),
    "deberta-positions": ("deberta-v2", DEBERTA | {"position_biased_input": True}, "biased_input"),
    "nomic-prenorm": ("nomic_bert", {"n_embd": 32, "prenorm": True}, "prenorm=True"),
    "nomic-experts": ("nomic_bert", {"n_embd": 32, "moe_every_n_layers": 2}, "moe_every_n_layers"),
    "new-logn": ("new", {"logn_attention_scale": True}, "logn_attention_scale"),
    "gemma-capping": ("gemma3_text", GEMMA | {"final_logit_softcapping": 3.0}, "softcapping=3.0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_unsupported_setting_is_named(case):
    family, changes, named = REFUSED[case]
    settings = (
        SIZES | {"model_type": family, "type_vocab_size": 1, "layer_norm_eps": 1e-5} | changes
    )
    with pytest.raises(ValueError, match=f"config.json: .*{named}"):
        hf.architecture(settings)[0].from_hf(settings)


def test_what_sees_later_tokens_generates_no_text(root, mesh):
    base, *_ = reference("gemma-bidirectional", root)
    with pytest.raises(ValueError, match="its tokens see later ones"):
        LanguageModel.from_pretrained(base)


FUSED = {
    "modernbert": ("layers.{}.attn.Wqkv", "layers.{}.mlp.Wi", ("gate", "up")),
    "nomic": ("encoder.layers.{}.attn.Wqkv", "encoder.layers.{}.mlp.fc11", ("up",)),
    "gte-segments": (
        "encoder.layer.{}.attention.qkv_proj",
        "encoder.layer.{}.mlp.up_gate_proj",
        ("up",),
    ),
}


@pytest.mark.parametrize("any_mesh", [(2, 2, 2)], ids=str, indirect=True)
@pytest.mark.parametrize("case", FUSED)
def test_parts_of_a_tensor_have_adapters_of_their_own(case, any_mesh, root, tmp_path):
    """The same as peft's one adapter of the whole tensor; a part without one keeps its weights."""
    import transformers

    base, *_ = reference(case, root)
    model, cfg, extra_tensors = hf.load_model(str(base), head=False)
    attention, feed_forward, fed = FUSED[case]
    weights, rank, alpha = lora.target_weights(base, ("q", "v", "o", *fed)), 2, 7.0
    adapter = lora.init(weights, cfg, rank=rank, alpha=alpha, key=jax.random.key(0))
    random = np.random.default_rng(1)
    draw = lambda x: layout.put(random.normal(0, 0.2, x.shape).astype("f"), x.sharding.spec)
    adapter = jax.tree.map(draw, adapter)
    merged = lora.merge(model, adapter)
    hf.save_model(merged, cfg, tmp_path / "merged", base=base, extra_tensors=extra_tensors)
    opened, before = (load_file(x / "model.safetensors") for x in (tmp_path / "merged", base))
    parts = {"q": 0, "v": 2} | {name: i for i, name in enumerate(fed)}
    for layer in range(cfg.layers):
        for module, names in ((attention, "qv"), (feed_forward, fed)):
            stored = f"{module.format(layer)}.weight"
            wanted = before[stored].copy()
            for name in names:
                a, b = (np.asarray(x[name])[layer] for x in (adapter.a, adapter.b))
                change = alpha / rank * b.reshape(rank, -1).T @ a.reshape(-1, rank).T
                wanted[parts[name] * len(change) :][: len(change)] += change
            np.testing.assert_allclose(opened[stored], wanted, rtol=1e-5, atol=1e-5)
    lora.save_peft(adapter, tmp_path / "adapter", base=str(base))
    again = lora.load_peft(tmp_path / "adapter", base, cfg)
    assert dict(again.weights) == dict(weights) and again.alpha == alpha
    for name in again.a:
        np.testing.assert_array_equal(again.a[name], adapter.a[name])
        np.testing.assert_array_equal(again.b[name], adapter.b[name])
    if case != "modernbert":
        return  # their modules in transformers have other names than their checkpoints
    peft = pytest.importorskip("peft", reason="extra [reference] is not installed")
    theirs = peft.PeftModel.from_pretrained(
        transformers.AutoModel.from_pretrained(base), tmp_path / "adapter"
    )
    changed = theirs.merge_and_unload().state_dict()
    for name, x in opened.items():
        np.testing.assert_allclose(changed[name].numpy(), x, rtol=1e-5, atol=1e-5)


def test_an_adapter_of_a_whole_tensor_is_read_as_adapters_of_its_parts(root, tmp_path, mesh):
    """peft has one A for q, k and v."""
    peft = pytest.importorskip("peft", reason="extra [reference] is not installed")
    import transformers

    base, inputs, *_ = reference("modernbert", root)
    settings = peft.LoraConfig(r=2, target_modules=["Wqkv", "Wo"], init_lora_weights=False)
    theirs = peft.get_peft_model(transformers.AutoModel.from_pretrained(base), settings).eval()
    theirs.save_pretrained(tmp_path)
    model, cfg, _ = hf.load_model(str(base), head=False)
    adapter = lora.load_peft(tmp_path, base, cfg)
    assert set(adapter.a) == {"q", "k", "v", "o", "down"}  # both are called Wo
    tokens, mask, _ = inputs
    hidden = evaluate(cfg, None, lora.merge(model, adapter), *map(layout.rows, inputs))[0]
    ids = torch.tensor(tokens, dtype=torch.long)
    with torch.no_grad():
        wanted = theirs(input_ids=ids, attention_mask=torch.tensor(mask).long()).last_hidden_state
    np.testing.assert_allclose(np.asarray(hidden)[mask], wanted.numpy()[mask], rtol=1e-5, atol=2e-5)


def test_a_kernel_without_windows_is_refused_by_name(root, mesh):
    base, inputs, *_ = reference("gemma", root)
    model, cfg, _ = hf.load_model(str(base), head=False, attention="tokamax")
    with pytest.raises(ValueError, match="attention='tokamax': has no such windows"):
        evaluate(cfg, None, model, *map(layout.rows, inputs))
