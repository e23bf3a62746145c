"""Logits of pairs: those of transformers on every family, any mesh, any batch, and after a save."""

import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from huggingface_hub import ModelCard
from support import pairs as pair_files
from support import tei, tiny

import ark_jax as ark
from ark_jax import layout
from ark_jax.models import hf, lora
from ark_jax.models.pair_heads import HEADS, Capacities, pair_logits
from ark_jax.models.pair_tokens import check_pairs
from ark_jax.models.pairs import CrossEncoder

FAMILIES = pytest.mark.parametrize("family", tiny.ENCODERS)
PAIRS = [
    ("Who led the Tidal Board?", "The Tidal Board was founded in 1784."),
    ("Who led the Tidal Board?", ""),
    ("", "x"),
    ("Ünder the ﬁne board 潮汐", "😀 a wave 🌊 [SEP] </s> both"),
    ("! " * 900, "the board"),
    ("the board", "one of the clerks " * 200),
    ("Who led the Tidal Board?", "the board"),
    ("! " * 900, "a board " * 900),
]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """`classifier(family)` -> a folder of a sequence classifier with one label."""
    return functools.cache(
        lambda family: pair_files.write_classifier(tmp_path_factory.mktemp(family), family)
    )


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """`encoder(family)` -> a sentence-transformers folder."""
    return functools.cache(
        lambda family: pair_files.write_encoder(tmp_path_factory.mktemp(family), family)
    )


@pytest.fixture(scope="module")
def on_one_device(encoder):
    """`on_one_device(head)` -> the logits of PAIRS."""

    @functools.cache
    def score(head: str) -> np.ndarray:
        with jax.set_mesh(layout.make_mesh((1, 1, 1))):
            return trained(CrossEncoder.from_pretrained(encoder("bert"), head=head)).score(PAIRS)

    return score


def trained(scorer: CrossEncoder) -> CrossEncoder:
    """The scorer with other weights, none of them zero, so that every part of its head counts."""
    rng = np.random.default_rng(3)
    change = lambda x: (
        x + layout.put(rng.normal(0, 0.1, x.shape).astype(np.float32), jax.typeof(x).sharding.spec)
    )
    return dataclasses.replace(scorer, model=jax.tree.map(change, scorer.model))


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", pytest.param("xlm-roberta", marks=pytest.mark.slow)]
)
def test_logits_match_transformers(family, classifier, mesh):
    torch = pytest.importorskip("torch", reason="the reference implementation")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = str(classifier(family))
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scorer = CrossEncoder.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    wanted = []
    for left, right in PAIRS:
        options = {"truncation": True, "max_length": scorer.max_length, "return_tensors": "pt"}
        tokens = tokenizer([left], [right], **options)
        assert ("token_type_ids" in tokens) == (family == "bert")
        with torch.inference_mode():
            wanted.append(model(**tokens).logits[0].tolist())
    logits = scorer.score(PAIRS)
    assert np.shape(wanted) == (len(PAIRS), 1) and np.std(wanted) > 0.05
    np.testing.assert_allclose(logits, np.ravel(wanted), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "family",
    [
        "bert",
        "roberta",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("xlm-roberta", "distilbert")),
    ],
)
def test_a_saved_linear_head_gives_the_same_scores_in_sentence_transformers(
    family, encoder, tmp_path, mesh
):
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    scorer = trained(CrossEncoder.from_pretrained(encoder(family), head="linear"))
    scorer.save_pretrained(tmp_path)
    pairs = [pair for pair in PAIRS if pair[0]]
    wanted = library.CrossEncoder(str(tmp_path), device="cpu").predict(pairs)
    assert np.std(wanted) > 0.01
    np.testing.assert_allclose(scorer.score(pairs), wanted, rtol=0, atol=1e-5)
    assert "CrossEncoder" in ModelCard.load(tmp_path / "README.md").text


@FAMILIES
def test_a_classifier_is_saved_unchanged(family, classifier, tmp_path, mesh):
    scorer = ark.CrossEncoder.from_pretrained(classifier(family))
    scorer.save_pretrained(tmp_path)
    before, after = (hf.Checkpoint(path) for path in (classifier(family), tmp_path))
    assert before.names() == after.names()
    for name in before.names():
        np.testing.assert_array_equal(before.slice(name)[...], after.slice(name)[...])
    again = CrossEncoder.from_pretrained(tmp_path)
    assert again.cfg == scorer.cfg and again.digest() == scorer.digest()
    with pytest.raises(ValueError, match="is the folder this model was read from; give another"):
        scorer.save_pretrained(classifier(family))


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_a_saved_classifier_meets_the_requirements_of_rerank(family, encoder, tmp_path, mesh):
    CrossEncoder.from_pretrained(encoder(family), head="linear").save_pretrained(tmp_path)
    assert tei.rerank_problems(tmp_path) == []
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id2label": {"0": "a", "1": "b"}}))
    assert tei.rerank_problems(tmp_path) == ["config.json: id2label has 2 labels, must have 1"]


@pytest.mark.parametrize(
    ("head", "family"),
    [*((head, "bert") for head in HEADS), ("cosine", "distilbert"), ("star", "xlm-roberta")],
)
def test_a_saved_scorer_is_loaded_unchanged(head, family, encoder, tmp_path, mesh):
    scorer = trained(CrossEncoder.from_pretrained(encoder(family), head=head))
    scorer.save_pretrained(tmp_path)
    again = CrossEncoder.from_pretrained(tmp_path)
    assert (again.cfg, again.digest()) == (scorer.cfg, scorer.digest())
    if (head, family) == ("star", "xlm-roberta"):
        np.testing.assert_array_equal(again.score(PAIRS[:3]), scorer.score(PAIRS[:3]))
    with pytest.raises(ValueError, match="give another"):
        again.save_pretrained(tmp_path)


@pytest.mark.parametrize("head", ["star", "cosine"])
def test_sentence_transformers_refuses_heads_that_it_cannot_score(head, encoder, tmp_path, mesh):
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    scorer = CrossEncoder.from_pretrained(encoder("bert"), head=head)
    scorer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="model"):
        library.CrossEncoder(str(tmp_path), device="cpu")
    card = ModelCard.load(tmp_path / "README.md").text
    assert "sentence-transformers refuses it" in card
    texts = [left for left, _ in PAIRS[:3]]
    body = library.SentenceTransformer(str(tmp_path / "body"), device="cpu")
    vectors = scorer.retriever.encode(texts, kind="query")
    np.testing.assert_allclose(body.encode(texts), vectors, rtol=0, atol=1e-5)


def test_a_cosine_head_scores_the_vectors_of_the_retriever(encoder, mesh):
    scorer = CrossEncoder.from_pretrained(encoder("bert"), head="cosine")
    vectors = [
        scorer.retriever.encode(list(texts), kind=kind)
        for texts, kind in zip(zip(*PAIRS, strict=True), ("query", "document"), strict=True)
    ]
    wanted = 20 * (vectors[0] * vectors[1]).sum(1)
    np.testing.assert_allclose(scorer.score(PAIRS), wanted, rtol=0, atol=1e-5)
    other = trained(scorer).with_head("linear")
    assert other.with_head("cosine").model.body is other.model.body


def test_a_linear_head_starts_from_the_pooler_of_bert(encoder, classifier, mesh):
    scorer = CrossEncoder.from_pretrained(encoder("bert"), head="linear")
    pooler = hf.Checkpoint(encoder("bert")).slice("bert.pooler.dense.weight")[...]
    np.testing.assert_array_equal(scorer.model.head.dense[...], pooler.T)


def test_a_new_head_depends_on_its_seed(encoder, mesh):
    scorer = CrossEncoder.from_pretrained(encoder("bert"), head="linear")
    one, other = (scorer.with_head("star", seed=seed).model.head.key[...] for seed in (0, 1))
    assert np.abs(one - other).max() > 0.01


def test_changing_to_an_unknown_head_is_refused(encoder, mesh):
    scorer = CrossEncoder.from_pretrained(encoder("bert"), head="linear")
    with pytest.raises(ValueError, match="head='colbert': must be one of linear"):
        scorer.with_head("colbert")


def device_batch(scorer: CrossEncoder, pairs) -> tuple[dict, Capacities]:
    """A batch as training makes it: distinct texts, and a pair's rows there."""
    from ark_jax.text import tokens as tk

    def arrays(ids):
        rows = tk.round_up(len(ids), 8)
        return tk.pad_rows(ids, range(len(ids)), rows, tk.round_length(max(map(len, ids))))

    tokens = scorer.tokenize(pairs)
    segments, _ = arrays(tokens.segments)
    batch = {"pairs": (*arrays(tokens.ids), segments)}
    rows = len(segments)
    for side, kind, texts in zip(
        ("left", "right"), ("query", "document"), zip(*pairs, strict=True), strict=True
    ):
        distinct = sorted(set(texts))
        batch[side] = arrays(scorer.retriever.tokenize(distinct, kind=kind))
        index = np.zeros(rows, np.int32)
        index[: len(texts)] = [distinct.index(text) for text in texts]
        batch[f"{side}_index"] = index
    room = {name: int(batch[name][1].sum()) for name in ("pairs", "left", "right")}
    return jax.tree.map(layout.rows, batch), Capacities(**room)


@functools.partial(jax.jit, static_argnums=(1, 3))
def logits_and_gradient(model, cfg, batch, capacities):
    def loss(model):
        logits = pair_logits(model, cfg, batch, capacities)[: len(PAIRS)]
        return (logits**2).sum(), logits

    (_, logits), gradient = jax.value_and_grad(loss, has_aux=True)(model)
    return logits, gradient


# The two heads that have every part between them.
@pytest.mark.parametrize("head", ["cosine", "star"])
def test_logits_and_gradients_are_the_same_on_a_mesh(head, encoder, on_one_device):
    measured = []
    for shape in ((1, 1, 1), (2, 2, 2)):
        with jax.set_mesh(layout.make_mesh(shape)):
            scorer = trained(CrossEncoder.from_pretrained(encoder("bert"), head=head))
            batch, capacities = device_batch(scorer, PAIRS)
            logits, gradient = logits_and_gradient(scorer.model, scorer.cfg, batch, capacities)
            named = hf.named_parameters(gradient)
            measured.append({name: layout.fetch(x[...]) for name, x in named})
            logits = layout.fetch(logits)
        np.testing.assert_allclose(logits, on_one_device(head), rtol=0, atol=1e-4)
    wanted, sharded = measured
    for name in wanted.keys() - {"k_bias", "key_bias"}:  # these move all scores of a softmax alike
        scale = np.abs(wanted[name]).max()
        assert np.isfinite(scale) and scale > 1e-6, name
        np.testing.assert_allclose(sharded[name] / scale, wanted[name] / scale, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "shape", [(2, 2, 2), pytest.param((1, 8, 1), marks=pytest.mark.slow)], ids=str
)
def test_scores_are_the_same_on_any_mesh(shape, encoder, on_one_device):
    with jax.set_mesh(layout.make_mesh(shape)):
        scorer = trained(CrossEncoder.from_pretrained(encoder("bert"), head="star"))
        logits = scorer.score(PAIRS)
    np.testing.assert_allclose(logits, on_one_device("star"), rtol=0, atol=1e-5)


def test_packing_does_not_change_logits(encoder, mesh):
    scorer = trained(CrossEncoder.from_pretrained(encoder("bert"), head="star"))
    wanted = scorer.score(PAIRS)
    np.testing.assert_allclose(scorer.score(PAIRS, batch_tokens=60), wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(scorer.score(PAIRS[::-1])[::-1], wanted, rtol=0, atol=1e-5)
    batch, _ = device_batch(scorer, PAIRS)
    unpacked = jax.jit(pair_logits, static_argnums=(1, 3))(
        scorer.model, scorer.cfg, batch, Capacities()
    )
    np.testing.assert_allclose(unpacked[: len(PAIRS)], wanted, rtol=0, atol=1e-5)


def test_equal_texts_are_embedded_once(encoder, mesh, monkeypatch):
    scorer = CrossEncoder.from_pretrained(encoder("bert"), head="cosine")
    wanted = scorer.score(PAIRS)
    counts = []
    real = ark.Retriever.encode

    def count(self, texts, **options):
        counts.append(len(texts))
        return real(self, texts, **options)

    monkeypatch.setattr(ark.Retriever, "encode", count)
    np.testing.assert_array_equal(scorer.score(PAIRS * 3), np.tile(wanted, 3))
    assert counts == [5, 7]  # distinct texts of each side


def test_only_the_star_head_inserts_marker_tokens_before_the_texts(encoder, mesh):
    for family, between in (("bert", 1), ("xlm-roberta", 2)):
        scorer = CrossEncoder.from_pretrained(encoder(family), head="star")
        markers = [tiny.VOCAB, tiny.VOCAB + 1]
        first = scorer.tokenizer.cls_token_id
        for left, right in (*PAIRS, ("[QSP] the [PSP]", "[PSP]")):
            ids, segments = (x[0] for x in astuple(scorer.tokenize([(left, right)])))
            places = [ids.index(marker) for marker in markers]
            assert sum(token >= tiny.VOCAB for token in ids) == 2
            assert (ids[0], places[0]) == (first, 1)
            assert segments == [0] * places[1] + [1] * (len(ids) - places[1])
            plain = scorer.with_head("linear").tokenize([(left, right)]).ids[0].tolist()
            if len(plain) <= scorer.max_length - 2:
                assert [token for token in ids if token not in markers] == plain
                a = len(scorer.tokenizer(left, add_special_tokens=False)["input_ids"])
                assert places[1] == 2 + a + between


def astuple(tokens) -> tuple[list, list]:
    return tokens.ids.tolist(), tokens.segments.tolist()


@pytest.mark.parametrize("head", ["linear", "star"])
def test_the_longer_text_of_a_long_pair_is_cut(head, encoder, mesh, capsys):
    scorer = CrossEncoder.from_pretrained(encoder("bert"), head=head)
    tokens = scorer.tokenize(PAIRS, label="rerank")
    assert capsys.readouterr().out == (
        "  rerank: 3 of 8 pairs are longer than 48 tokens; the longer text of each is cut\n"
    )
    assert tokens.cut == 3 and max(map(len, tokens.ids)) == 48
    short = scorer.tokenizer("the board", add_special_tokens=False)["input_ids"]
    for number in (4, 5):
        text = f" {' '.join(map(str, short))} "
        assert text in f" {' '.join(map(str, tokens.ids[number]))} "
    segments = tokens.segments[7].tolist()  # both are cut, to about as many tokens
    assert abs(segments.count(0) - segments.count(1)) <= 2


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_the_star_head_equals_its_formula_in_numpy(family, encoder, mesh):
    """Written a second time, in numpy, from the states of the body."""
    scorer = trained(CrossEncoder.from_pretrained(encoder(family), head="star"))
    assert scorer.cfg.typed == (family == "bert")
    named = hf.named_parameters(scorer.model.head)
    head = {name: np.asarray(x[...], np.float64) for name, x in named}
    for pair in PAIRS[1:2]:
        tokens = scorer.tokenize([pair])
        ids, segments = (np.array(x[0]) for x in astuple(tokens))
        hidden = scorer.model.body(
            layout.rows(ids[None]),
            layout.rows(np.ones_like(ids, bool)[None]),
            scorer.cfg.body,
            segments=None if family == "xlm-roberta" else layout.rows(segments[None]),
            markers=scorer.model.head.markers[...],
        )
        hidden = np.asarray(hidden[0], np.float64)
        states = [hidden[0]]
        for segment in (0, 1):
            place = int(np.flatnonzero(ids == tiny.VOCAB + segment)[0])
            places = np.flatnonzero((segments == segment) & (np.arange(len(ids)) > place))
            keys, values = (
                hidden[places] @ head[name] + head[f"{name}_bias"] for name in ("key", "value")
            )
            weights = np.exp(keys @ hidden[place] / np.sqrt(tiny.WIDTH))
            states.append(hidden[place] + weights / weights.sum() @ values)
        x = np.concatenate(states) @ head["dense"].reshape(-1, tiny.WIDTH) + head["dense_bias"]
        x = np.asarray(jax.nn.gelu(jnp.asarray(x, jnp.float32), approximate=False))
        wanted = x @ head["out"] + head["out_bias"]
        np.testing.assert_allclose(scorer.score([pair]), wanted, rtol=0, atol=1e-5)


def test_adapters_change_the_body_of_a_pair_model(encoder, mesh):
    scorer = trained(CrossEncoder.from_pretrained(encoder("bert"), head="linear"))
    weights = lora.target_weights(scorer.base, ("q", "down"))
    adapter = lora.init(weights, scorer.cfg.body, rank=2, alpha=4.0, key=jax.random.key(0))
    same = dataclasses.replace(scorer, model=lora.merge(scorer.model, adapter))
    np.testing.assert_array_equal(same.score(PAIRS), scorer.score(PAIRS))
    adapter = dataclasses.replace(adapter, b=jax.tree.map(lambda x: x + 0.1, adapter.b))
    other = dataclasses.replace(scorer, model=lora.merge(scorer.model, adapter))
    assert np.abs(other.score(PAIRS) - scorer.score(PAIRS)).max() > 1e-3
    np.testing.assert_array_equal(other.model.head.out[...], scorer.model.head.out[...])


def test_the_digest_depends_on_every_part_of_the_scorer(encoder, mesh):
    scorer = CrossEncoder.from_pretrained(encoder("bert"), head="linear")
    changed = [
        scorer,
        scorer.with_head("star"),
        scorer.with_head("cosine"),
        dataclasses.replace(scorer, cfg=dataclasses.replace(scorer.cfg, scale=10.0)),
        dataclasses.replace(scorer, max_length=40),
        trained(scorer),
        dataclasses.replace(
            scorer, model=type(scorer.model)(scorer.model.body, trained(scorer).model.head)
        ),
    ]
    assert len({scorer.digest() for scorer in changed}) == len(changed)
    again = CrossEncoder.from_pretrained(encoder("bert"), head="linear")
    assert again.digest() == scorer.digest()


def test_no_pairs_give_no_scores(encoder, mesh):
    for head in HEADS:
        scores = CrossEncoder.from_pretrained(encoder("bert"), head=head).score([])
        assert scores.shape == (0,) and scores.dtype == np.float32


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("one text", "pairs: 'one text' is one text; give a list of pairs"),
        (["one text"], "pair 0: 'one text' is not two texts"),
        ([("a", "b"), ("a", "b", "c")], r"pair 1: .*'c'.* is not two texts"),
        ([("a", None)], r"pair 0: .*None.* is not two texts"),
    ],
)
def test_input_that_is_not_pairs_is_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        check_pairs(pairs)


def test_a_pair_with_a_nan_score_is_named(encoder, mesh):
    scorer = CrossEncoder.from_pretrained(encoder("bert"), head="linear")
    scorer.model.head.out_bias = nnx.Param(jnp.full(1, np.nan, np.float32))
    with pytest.raises(FloatingPointError, match=r"pair 0 \('Who led .*its logit is NaN"):
        scorer.score(PAIRS)


def test_several_labels_are_refused(tmp_path, mesh):
    pair_files.write_classifier(tmp_path, "roberta", labels=3)
    wanted = r"a classifier of 3 labels \(classifier.out_proj.weight\); a pair scorer has one"
    with pytest.raises(ValueError, match=wanted):
        CrossEncoder.from_pretrained(tmp_path)


def test_a_folder_without_a_head_is_refused(encoder, mesh):
    with pytest.raises(ValueError, match=r"neither a saved pair scorer nor .*give head=\.\.\."):
        CrossEncoder.from_pretrained(encoder("bert"))


def test_an_unknown_head_is_refused(encoder, mesh):
    with pytest.raises(ValueError, match="head='colbert': must be one of linear"):
        CrossEncoder.from_pretrained(encoder("bert"), head="colbert")


def test_a_decoder_is_refused_as_a_pair_scorer(tmp_path, mesh):
    decoder = tiny.write(tmp_path / "qwen3", "qwen3", tokenizer="end")
    with pytest.raises(ValueError, match="model_type 'qwen3' cannot score pairs; give an encoder"):
        CrossEncoder.from_pretrained(decoder, head="linear")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ('{"head": "colbert", "scale": 20}', "head='colbert': must be one of linear"),
        ('{"head": "star", "scale": "big"}', "scale='big': must be a number above 0"),
    ],
)
def test_broken_scorer_settings_are_refused(content, message, encoder, tmp_path, mesh):
    CrossEncoder.from_pretrained(encoder("bert"), head="star").save_pretrained(tmp_path)
    (tmp_path / "pair_scorer.json").write_text(content)
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path))}/pair_scorer.json: {message}"):
        CrossEncoder.from_pretrained(tmp_path)


def test_a_missing_tensor_is_named(classifier, encoder, tmp_path, mesh):
    folder = tiny.write(
        tmp_path / "a",
        "roberta",
        tokenizer="both",
        changes={"architectures": ["RobertaForSequenceClassification"]},
    )
    with pytest.raises(ValueError, match=r"tensor classifier.out_proj.weight is missing"):
        CrossEncoder.from_pretrained(folder)
