"""Texts to unit vectors: pooling by hand, any batch, any mesh, and the same in
sentence-transformers after a save.
"""

import concurrent.futures
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny

from ark_jax import layout
from ark_jax.models.language import LanguageModel
from ark_jax.models.numpy_retriever import NumpyRetriever, describe
from ark_jax.models.pairs import CrossEncoder
from ark_jax.models.pooling import pool
from ark_jax.models.retriever import Retriever
from ark_jax.text import tokens as tk

LONG = (
    "a1" * 300
)  # at least 600 tokens of a byte-pair tokenizer, one unknown word of a word-piece one
WORDS = "one of the clerks " * 200
TEXTS = [
    "The Tidal Board was founded in 1784.",
    "",
    "x",
    LONG,
    WORDS,
    "😀 a wave 🌊",
    "潮汐委员会成立于一七八四年",
    "   leading blanks",
    "both ends \n\t",
    "naïve Ünder ﬁne",
    "[SEP] <|end|> </s>",
    "!",
]
PROMPTS = {"query": "Find: ", "document": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`folder(pooling)` -> a sentence-transformers folder: BERT for mean (cut at 48 tokens) and
    cls, Qwen3 for lasttoken.
    """

    @functools.cache
    def make(pooling: str) -> Path:
        family, tokenizer = ("qwen3", "end") if pooling == "lasttoken" else ("bert", "cls")
        path = tiny.write(
            tmp_path_factory.mktemp(pooling), family, tokenizer=tokenizer, bare=pooling == "cls"
        )
        return tiny.sentence_transformer(
            path, pooling=pooling, max_seq_length=48 if pooling == "mean" else None, prompts=PROMPTS
        )

    return make


def open_retriever(path, **options) -> Retriever:
    return Retriever.from_pretrained(str(path), **options)


@functools.cache
def on_one_device(path) -> np.ndarray:
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        return open_retriever(path).encode(TEXTS, kind="query")


def test_another_thread_gives_the_same_vectors(folder):
    """Each thread of jax has a mesh of its own, and servers answer from threads."""
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        retriever = open_retriever(folder("mean"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        vectors = pool.submit(retriever.encode, TEXTS, kind="query").result()
    np.testing.assert_array_equal(vectors, on_one_device(folder("mean")))


X = np.array([[[1, 2], [3, 4], [5, 6], [7, 8]]] * 4, np.float32)
MASK = np.array(
    [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]], bool
)  # whole, right padding, left padding, one token


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("mean", [[4, 5], [2, 3], [6, 7], [3, 4]]),
        ("lasttoken", [[7, 8], [3, 4], [7, 8], [3, 4]]),
        ("cls", [[1, 2], [1, 2], [1, 2], [1, 2]]),
    ],
)
def test_pooling_equals_values_computed_by_hand(how, wanted, mesh):
    np.testing.assert_array_equal(pool(layout.rows(X), layout.rows(MASK), how), wanted)


def test_pooling_is_done_in_float32(mesh):
    x = np.full((1, 3, 1), 256, jnp.bfloat16)
    x[0, 0] = 1  # 513 / 3 in bfloat16 would be 171 only by luck: 1 + 256 is not representable
    assert pool(layout.rows(x), layout.rows(np.ones((1, 3), bool)), "mean").dtype == jnp.float32
    np.testing.assert_array_equal(
        pool(layout.rows(x), layout.rows(np.ones((1, 3), bool)), "mean"), [[171]]
    )


def test_vectors_are_the_same_on_any_mesh(folder, any_mesh):
    vectors = open_retriever(folder("lasttoken")).encode(TEXTS, kind="query")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors, on_one_device(folder("lasttoken")), rtol=0, atol=1e-5)


def test_mean_pooled_vectors_are_the_same_on_a_mesh(folder):
    with jax.set_mesh(layout.make_mesh((2, 2, 2))):
        vectors = open_retriever(folder("mean")).encode(TEXTS, kind="query")
    np.testing.assert_allclose(vectors, on_one_device(folder("mean")), rtol=0, atol=1e-5)


def test_vectors_do_not_depend_on_the_batch(folder, mesh):
    whole = on_one_device(folder("lasttoken"))
    retriever = open_retriever(folder("lasttoken"))
    np.testing.assert_allclose(
        retriever.encode(TEXTS[::-1], kind="query", batch_tokens=2000)[::-1],
        whole,
        rtol=0,
        atol=1e-5,
    )
    for i in (2, 5, 11):
        np.testing.assert_allclose(
            retriever.encode([TEXTS[i]], kind="query")[0], whole[i], rtol=0, atol=1e-5
        )


def test_the_query_prompt_is_for_queries_only(folder, mesh):
    retriever = open_retriever(folder("lasttoken"))
    tokenize = lambda text, kind: retriever.tokenize([text], kind=kind).tolist()
    assert tokenize("Who?", "query") == tokenize("Find: Who?", "document")
    assert tokenize("Who?", "document")[0][:-1] == retriever.tokenizer("Who?")["input_ids"][:-1]


def test_the_passage_prompt_is_the_document_prompt(folder, mesh):
    """Older folders call it so."""
    retriever = open_retriever(folder("lasttoken"))
    retriever.prompts = {"query": "Find: ", "passage": "Passage: "}
    expected = retriever.tokenizer("Passage: Who?")["input_ids"]
    assert retriever.tokenize(["Who?"], kind="document").tolist() == [expected]
    query, document = (retriever.encode(["Who?"], kind=kind) for kind in ("query", "document"))
    assert np.abs(query - document).max() > 0.01


def test_an_unknown_kind_of_text_is_refused(folder, mesh):
    with pytest.raises(ValueError, match="kind='passage'"):
        open_retriever(folder("lasttoken")).tokenize(["Who?"], kind="passage")


def test_a_long_text_keeps_both_special_tokens_of_word_pieces(folder, mesh):
    retriever = open_retriever(folder("mean"))
    ids = retriever.tokenize([WORDS], kind="document")[0]
    assert (len(ids), ids[0], ids[-1]) == (48, 2, 3)  # [CLS] ... [SEP]


def test_a_long_text_keeps_the_last_token_that_is_pooled(folder, mesh):
    retriever = open_retriever(folder("lasttoken"))
    assert len(retriever.tokenize([LONG], kind="document")[0]) == 601
    ids = retriever.tokenize([LONG * 2], kind="document")[0]
    assert (len(ids), ids[-1]) == (tiny.POSITIONS, 2)


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])  # word pieces, byte pairs
@pytest.mark.parametrize(
    "text",
    [
        "\n" + ("unhappiness" + "\n" * 242) * 300,
        LONG * 200,
        WORDS * 300,
        "a" * 100_000,
        " " * 100_000 + "end",
        "\u6771\u4eac" * 40_000,
        "é" * 41_000,
    ],
    ids=["lines", "long", "words", "letter", "blanks", "characters", "accents"],
)
def test_only_the_start_of_a_very_long_text_is_tokenized(pooling, text, folder, mesh):
    retriever = open_retriever(folder(pooling))
    whole = retriever.tokenizer(
        [text], truncation=True, max_length=retriever.max_length, padding=False
    )
    assert len(text) > tk.HEAD * retriever.max_length
    (ids,) = retriever.tokenize([text], kind="document", label="texts")
    assert ids.tolist() == whole["input_ids"][0]
    assert retriever.truncated["texts"] == bool(whole.encodings[0].overflowing)


def test_truncated_texts_are_counted_including_their_prompts(folder, mesh, capsys):
    """Each `! ` is a token of the word pieces, which have two special ones beside and 48 in all;
    and each character one of the byte pairs, with one special one and 640 in all.
    """
    pieces, pairs = open_retriever(folder("mean")), open_retriever(folder("lasttoken"))
    pieces.prompts, pairs.prompts = (
        {"query": "! ! ", "document": ""},
        {"query": "1a", "document": "1"},
    )
    words = ["! " * n for n in (1, 44, 45, 46, 47, 500)]  # of 46 fit: 44 with the prompt
    letters = [
        ("a1" * 400)[:n] for n in (1, 637, 638, 639, 800)
    ]  # of 639 fit: 638 with one character, 637 with two
    cases = [
        (pieces, words, "query", "4 of 6", 48),
        (pieces, words, "document", "2 of 6", 48),
        (pairs, letters, "query", "3 of 5", 640),
        (pairs, letters, "document", "2 of 5", 640),
    ]
    for retriever, texts, kind, count, limit in cases:
        ids = retriever.tokenize(texts, kind=kind, label="embed")
        assert (
            capsys.readouterr().out
            == f"  embed: {count} texts are longer than {limit} tokens and are cut there\n"
        )
        assert max(map(len, ids)) == limit
        retriever.encode(texts, kind=kind, label="index")
        assert f"  index: {count} texts are longer" in capsys.readouterr().out
        retriever.tokenize(texts, kind=kind)
        retriever.tokenize(texts[:2], kind=kind, label="embed")
        assert not capsys.readouterr().out


def test_no_texts_give_no_vectors(folder, mesh):
    assert open_retriever(folder("mean")).encode([], kind="query").shape == (0, tiny.WIDTH)


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_a_saved_retriever_gives_the_same_vectors_in_sentence_transformers(
    pooling, folder, tmp_path, mesh
):
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    open_retriever(folder(pooling)).save_pretrained(tmp_path)
    reference = library.SentenceTransformer(str(tmp_path), device="cpu")
    retriever = open_retriever(folder(pooling))
    for kind, prompt in PROMPTS.items():
        wanted = reference.encode(TEXTS, prompt=prompt, batch_size=5)
        np.testing.assert_allclose(retriever.encode(TEXTS, kind=kind), wanted, rtol=0, atol=1e-5)
    theirs = reference.encode(TEXTS[0], prompt_name="query")
    np.testing.assert_allclose(theirs, on_one_device(folder(pooling))[0], rtol=0, atol=1e-5)


def test_a_folder_that_sentence_transformers_saves_is_read(folder, tmp_path, mesh):
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    library.SentenceTransformer(str(folder("lasttoken")), device="cpu").save(str(tmp_path))
    retriever = open_retriever(tmp_path)
    assert (retriever.pooling, retriever.prompts, retriever.max_length) == (
        "lasttoken",
        PROMPTS,
        tiny.POSITIONS,
    )
    np.testing.assert_allclose(
        retriever.encode(TEXTS, kind="query"), on_one_device(folder("lasttoken")), rtol=0, atol=1e-5
    )


def test_a_limit_that_sentence_transformers_saves_is_read(folder, tmp_path, mesh):
    """Its version 6 writes it to tokenizer_config.json only."""
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    library.SentenceTransformer(str(folder("mean")), device="cpu").save(str(tmp_path))
    assert open_retriever(tmp_path).max_length == 48


@pytest.mark.parametrize(
    ("family", "tokenizer", "pooling", "changes", "limit"),
    [
        ("roberta", "both", "mean", {}, 636),  # the first four of 640 positions belong to padding
        (
            "distilbert",
            "cls",
            "cls",
            {"max_position_embeddings": 500},
            500,
        ),  # its batch is padded to 512
    ],
)
def test_encoder_vectors_match_sentence_transformers(
    family, tokenizer, pooling, changes, limit, tmp_path, mesh
):
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    weights = {
        n: x[:limit] if changes and "position_emb" in n else x
        for n, x in tiny.tensors(family).items()
    }
    path = tiny.write(
        tmp_path,
        family,
        tokenizer=tokenizer,
        weights=weights,
        changes=changes,
        bare=family == "roberta",
    )
    retriever = open_retriever(tiny.sentence_transformer(path, pooling=pooling, prompts=PROMPTS))
    unit = "a" if family == "roberta" else "! "
    fits, long = unit * (limit - 2), unit * (limit - 1)
    assert (
        len(retriever.tokenizer(fits)["input_ids"])
        == limit
        == len(retriever.tokenizer(long)["input_ids"]) - 1
    )
    texts = [*TEXTS, "<pad> and [PAD] spelt <pad> out", fits, long, long * 2]
    reference = library.SentenceTransformer(str(path), device="cpu")
    assert reference.max_seq_length == retriever.max_length == limit
    wanted = reference.encode(texts, prompt="", batch_size=5)
    np.testing.assert_allclose(retriever.encode(texts, kind="document"), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize(
    ("family", "tokenizer"),
    [("bert", "cls"), ("roberta", "both"), ("xlm-roberta", "both"), ("distilbert", "cls")],
)
def test_numpy_gives_the_same_vectors(family, tokenizer, pooling, tmp_path, mesh):
    path = tiny.write(tmp_path, family, tokenizer=tokenizer, bare=pooling == "cls")
    lengths = {"max_seq_length": 48 if pooling == "mean" else None}
    tiny.sentence_transformer(path, pooling=pooling, prompts=PROMPTS, **lengths)
    retriever = open_retriever(path, width=tiny.WIDTH - 4)
    in_numpy = NumpyRetriever(json.loads(json.dumps(describe(retriever))))
    texts = [*TEXTS, "<pad> and [PAD] spelt <pad> out", "! " * 700]
    for kind in PROMPTS:
        wanted = retriever.encode(texts, kind=kind)
        np.testing.assert_allclose(in_numpy.encode(texts, kind=kind), wanted, rtol=0, atol=1e-5)
    assert in_numpy.encode([], kind="query").shape == (0, tiny.WIDTH - 4)


def test_numpy_is_not_used_for_what_it_does_not_know(folder, mesh):
    assert describe(open_retriever(folder("lasttoken"))) is None
    assert describe(open_retriever(folder("mean"), compute="bfloat16")) is None


def test_the_longest_text_excludes_the_padding_positions(tmp_path, mesh):
    """What sentence-transformers does with such a folder is fail on a long text."""
    path = tiny.write(tmp_path, "xlm-roberta", tokenizer="both")
    retriever = open_retriever(
        tiny.sentence_transformer(path, pooling="cls", max_seq_length=tiny.POSITIONS)
    )
    assert retriever.max_length == 634  # its pad token is number 5
    ids = retriever.tokenize(["a1" * 400], kind="query")[0]
    assert (len(ids), ids[0], ids[-1]) == (634, 0, 1)


def test_a_saved_folder_keeps_the_sentencepiece_model(tmp_path, mesh):
    """XLM-R is published with them beside tokenizer.json."""
    path = tiny.write(tmp_path / "base", "xlm-roberta", tokenizer="both")
    (path / "sentencepiece.bpe.model").write_bytes(b"pieces")
    open_retriever(path).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "sentencepiece.bpe.model").read_bytes() == b"pieces"


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_a_saved_folder_has_the_files_of_older_sentence_transformers(
    pooling, folder, tmp_path, mesh
):
    open_retriever(folder(pooling)).save_pretrained(tmp_path, card="# Card\n")
    read = lambda name: json.loads((tmp_path / name).read_text())
    assert read("1_Pooling/config.json") == {
        "word_embedding_dimension": tiny.WIDTH,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_weightedmean_tokens": False,
        "pooling_mode_lasttoken": pooling == "lasttoken",
        "include_prompt": True,
    }
    assert [(m["idx"], m["path"], m["type"]) for m in read("modules.json")] == [
        (0, "", "sentence_transformers.models.Transformer"),
        (1, "1_Pooling", "sentence_transformers.models.Pooling"),
        (2, "2_Normalize", "sentence_transformers.models.Normalize"),
    ]
    assert read("sentence_bert_config.json")["max_seq_length"] == (
        48 if pooling == "mean" else tiny.POSITIONS
    )
    assert read("config_sentence_transformers.json")["prompts"] == PROMPTS
    assert (tmp_path / "README.md").read_text() == "# Card\n"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (folder(pooling) / name).read_bytes()


def files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@pytest.mark.parametrize("width", [None, 20])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_saving_a_saved_retriever_gives_the_same_bytes(pooling, width, folder, tmp_path, mesh):
    open_retriever(folder(pooling), width=width).save_pretrained(tmp_path / "first")
    again = open_retriever(tmp_path / "first")
    again.save_pretrained(tmp_path / "second")
    assert len(files(tmp_path / "first")) >= 8
    assert files(tmp_path / "second") == files(tmp_path / "first")
    assert again.width == (width or tiny.WIDTH)


def test_saving_into_the_source_folder_is_refused(folder, mesh):
    path = folder("cls")
    before = (path / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="is the folder this model was read from; give another"):
        open_retriever(path).save_pretrained(path / ".." / path.name)
    assert (path / "model.safetensors").read_bytes() == before


def test_width_keeps_the_first_components_at_unit_length(folder, mesh):
    vectors = open_retriever(folder("mean"), width=20).encode(TEXTS, kind="query")
    wanted = on_one_device(folder("mean"))[:, :20]
    wanted = wanted / np.sqrt((wanted**2).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(vectors, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "tokenizer", "pooling"),
    [("bert", "cls", "mean"), ("roberta", "both", "mean"), ("mistral", "end", "lasttoken")],
)
def test_the_pooling_of_a_bare_model_follows_its_family(family, tokenizer, pooling, tmp_path, mesh):
    assert open_retriever(tiny.write(tmp_path, family, tokenizer=tokenizer)).pooling == pooling


def change(path: Path, name: str, **changes) -> Path:
    file = path / name
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return path


@pytest.fixture
def bert(tmp_path):
    path = tiny.write(tmp_path / "bert", "bert", tokenizer="cls")
    return tiny.sentence_transformer(path, pooling="mean", max_seq_length=64)


@pytest.mark.parametrize("pattern", ["(a+)+$", "((a+)b?)+$", "(?:x|a*)*$", "(a|aa)+$"])
def test_a_pattern_that_takes_for_ever_is_refused_in_a_line(bert, mesh, pattern):
    """The Rust library panics at a text of many a's."""
    path = bert / "tokenizer.json"
    settings = json.loads(path.read_text())
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    settings["pre_tokenizer"] = split | {"pattern": {"Regex": pattern}}
    settings["normalizer"] = None
    path.write_text(json.dumps(settings))
    text = "a" * 60 + "!"
    with pytest.raises(ValueError, match=r"cannot read a text .*: a pattern of tokenizer\.json"):
        open_retriever(bert).encode([text], kind="query")
    with pytest.raises(ValueError, match=r"cannot read a text .*: a pattern of tokenizer\.json"):
        CrossEncoder.from_pretrained(bert, head="linear").score([("x", text)])


def test_two_vocabularies_that_differ_are_named(bert, capsys, mesh):
    (bert / "vocab.txt").write_text("[PAD]\n[UNK]\n[SEP]\n[CLS]\n")
    open_retriever(bert)
    line = "tokenizer.json is read, and not vocab.txt, which differs: token '[SEP]' is 3 and 2"
    assert f"{bert}: {line}" in capsys.readouterr().out
    (bert / "vocab.txt").rename(bert / "vocab.json").write_text('{"[SEP]": 7}')
    open_retriever(bert)
    assert "and not vocab.json, which differs: token '[SEP]' is 3 and 7" in capsys.readouterr().out


def test_an_unknown_module_is_refused_by_name(bert, mesh):
    modules = json.loads((bert / "modules.json").read_text())
    for name in ("sentence_transformers.models.LSTM", "custom_st.Normalize", "pylate.models.Dense"):
        modules[2]["type"] = name
        (bert / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(ValueError, match=f"{name} is not implemented"):
            open_retriever(bert)
    modules[2]["type"] = "sentence_transformers.models.Normalize"
    (bert / "modules.json").write_text(json.dumps([modules[0], modules[2], modules[1]]))
    with pytest.raises(ValueError, match="Transformer, Normalize, Pooling in this order"):
        open_retriever(bert)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pooling_mode": "median"}, "median"),
        ({"pooling_mode": ["mean", "median"]}, "median"),
        ({"pooling_mode": {}}, "{}"),
        ({"include_prompt": "no"}, "include_prompt must be true or false, it is 'no'"),
    ],
)
def test_an_unknown_pooling_is_refused_by_name(changes, named, bert, mesh):
    with pytest.raises(ValueError, match=named):
        open_retriever(change(bert, "1_Pooling/config.json", **changes))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", '[{"type"', r"not JSON \(.*\); fetch"),
        ("modules.json", "{}", "holds a dict, not a list; fetch"),
        ("modules.json", '[{"type": "Pooling"}]', "has no type or no path; fetch"),
        ("modules.json", '["x"]', "has no type or no path; fetch"),
        ("modules.json", '[{"type": 7, "path": ""}]', "has no type or no path; fetch"),
        ("modules.json", '[{"type": "Pooling", "path": "../x"}]', "lies outside its folder; fetch"),
        ("modules.json", '[{"type": "Pooling", "path": "/etc"}]', "lies outside its folder; fetch"),
        ("config_sentence_transformers.json", '{"truncate_dim": "8"}', "truncate_dim must be"),
        ("sentence_bert_config.json", '{"max_seq_length": -1}', "number of tokens, it is -1"),
        ("sentence_bert_config.json", '{"do_lower_case": "false"}', "must be true or false"),
        ("tokenizer_config.json", '{"model_max_length": -1}', "model_max_length=-1: must be"),
        ("config_sentence_transformers.json", "{", r"not JSON \(.*\); fetch"),
        ("config_sentence_transformers.json", "[]", "holds a list, not a dict; fetch"),
        (
            "config_sentence_transformers.json",
            '{"prompts": ["Find: "]}',
            "prompts must be a map from kinds to texts",
        ),
        (
            "config_sentence_transformers.json",
            '{"prompts": {"query": 1}}',
            "prompts must be a map from kinds to texts",
        ),
        (
            "config_sentence_transformers.json",
            '{"default_prompt_name": "web"}',
            "default_prompt_name must be one of",
        ),
        (
            "config_sentence_transformers.json",
            '{"similarity_fn_name": "euclidean"}',
            "similarity_fn_name must be cosine or dot: texts would be ranked otherwise",
        ),
        (
            "config_sentence_transformers.json",
            '{"similarity_fn_name": "manhattan"}',
            "cosine or dot: .*, it is 'manhattan'",
        ),
        ("sentence_bert_config.json", '{"query_length": 32}', "query_length must be absent"),
        ("sentence_bert_config.json", "", r"not JSON \(.*\); fetch"),
        (
            "sentence_bert_config.json",
            '{"max_seq_length": "64"}',
            "max_seq_length must be a number of tokens, it is '64'",
        ),
        ("1_Pooling/config.json", '{"pooling', r"not JSON \(.*\); fetch"),
        ("tokenizer.json", "", "or another tokenizer file cannot be read"),
        ("tokenizer.json", "{}", "or another tokenizer file cannot be read"),
        ("tokenizer.json", '{"version": "1.0", "model', "or another tokenizer file cannot be read"),
    ],
)
def test_a_broken_file_is_named(name, content, message, bert, mesh):
    (bert / name).write_text(content)
    with pytest.raises(ValueError, match=f"^{bert}/{name}.*{message}"):
        open_retriever(bert)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "1_Pooling/config.json",
            "no 1_Pooling/config.json, which modules.json names; fetch it too",
        ),
        ("tokenizer.json", "no tokenizer.json; "),
        ("config.json", "no config.json; "),
        ("model.safetensors", "no model.safetensors, nor its index; fetch the weights"),
    ],
)
def test_a_missing_file_is_named(name, message, bert, mesh):
    (bert / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"^{bert}: {message}"):
        open_retriever(bert)


def test_a_tokenizer_with_ids_beyond_the_vocabulary_is_refused(tmp_path, mesh):
    """The model reads some vector for an id past its table, so no error would come of itself."""
    weights = tiny.tensors("bert")
    name = "bert.embeddings.word_embeddings.weight"
    weights[name] = weights[name][:200]
    path = tiny.write(
        tmp_path, "bert", tokenizer="cls", weights=weights, changes={"vocab_size": 200}
    )
    largest = max(json.loads((path / "tokenizer.json").read_text())["model"]["vocab"].values())
    wanted = (
        f"^{path}/tokenizer.json: token .* has the id {largest}, but vocab_size in config.json is "
        "200; take"
    )
    with pytest.raises(ValueError, match=wanted):
        open_retriever(path)
    weights = {n: x[:200] if len(x) == tiny.VOCAB else x for n, x in tiny.tensors("llama").items()}
    path = tiny.write(
        tmp_path / "llama", "llama", tokenizer="plain", weights=weights, changes={"vocab_size": 200}
    )
    with pytest.raises(
        ValueError, match=f"^{path}/tokenizer.json: token .* vocab_size in config.json is 200; take"
    ):
        LanguageModel.from_pretrained(str(path))


@pytest.mark.parametrize("width", [0, 33])
def test_an_impossible_width_is_refused(width, bert, mesh):
    message = f"width {width}, but the model has 32 components; give 1 to 32"
    with pytest.raises(ValueError, match=message):
        open_retriever(bert, width=width)


def test_encoding_a_single_text_instead_of_a_list_is_refused(bert, mesh):
    with pytest.raises(ValueError, match="'who' is one text; give a list of them"):
        open_retriever(bert).encode("who", kind="query")


def test_zero_vectors_are_refused(bert, mesh):
    """All texts would be equally near."""
    weights = {name: np.zeros_like(value) for name, value in tiny.tensors("bert").items()}
    tiny.write(bert, "bert", weights=weights)
    with pytest.raises(FloatingPointError, match=r"document 0 \('x'\): its vector is zero"):
        open_retriever(bert).encode(["x"], kind="document")


def test_the_lower_case_setting_of_the_folder_is_applied(tmp_path, mesh):
    path = tiny.sentence_transformer(
        tiny.write(tmp_path, "qwen3", tokenizer="end"), pooling="lasttoken"
    )
    retriever = open_retriever(change(path, "sentence_bert_config.json", do_lower_case=True))
    upper, lower = retriever.tokenize(["The BOARD", "the board"], kind="query").tolist()
    assert upper == lower


def test_an_untied_model_without_its_head_is_read_as_a_retriever(tmp_path, mesh):
    """Qwen3-Embedding-8B is one."""
    weights = tiny.tensors("llama")
    del weights["lm_head.weight"]
    retriever = open_retriever(
        tiny.write(tmp_path / "headless", "llama", tokenizer="end", bare=True, weights=weights)
    )
    wanted = open_retriever(tiny.write(tmp_path / "whole", "llama", tokenizer="end"))
    np.testing.assert_array_equal(
        retriever.encode(TEXTS[:3], kind="query"), wanted.encode(TEXTS[:3], kind="query")
    )


def test_a_vocabulary_indivisible_by_the_mesh_gives_the_same_vectors(tmp_path):
    """BERT's 30,522 entries divide by 2, not by 4 or 8."""
    weights = tiny.tensors("bert")
    name = "bert.embeddings.word_embeddings.weight"
    weights[name] = np.concatenate([weights[name], weights[name][:3]])
    path = tiny.write(
        tmp_path, "bert", tokenizer="cls", weights=weights, changes={"vocab_size": tiny.VOCAB + 3}
    )
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        wanted = open_retriever(path).encode(["!"], kind="query")
    with jax.set_mesh(layout.make_mesh((1, 8, 1))):
        np.testing.assert_allclose(
            open_retriever(path).encode(["!"], kind="query"), wanted, rtol=0, atol=1e-5
        )


@pytest.mark.slow
@pytest.mark.network
def test_minilm_vectors_match_its_model_card(real_models, mesh):
    """The first components that its model card's two sentences have in sentence-transformers, and
    all of odd texts.
    """
    retriever = open_retriever(real_models["retriever"])
    assert (retriever.pooling, retriever.max_length, retriever.width) == ("mean", 256, 384)
    vectors = retriever.encode(
        ["This is an example sentence", "Each sentence is converted"], kind="document"
    )
    np.testing.assert_allclose(
        vectors[:, :3], [[0.0677, 0.0635, 0.0487], [0.0864, 0.1028, 0.0054]], rtol=0, atol=1e-4
    )
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    reference = library.SentenceTransformer(real_models["retriever"], device="cpu")
    np.testing.assert_allclose(
        retriever.encode(TEXTS, kind="query"), reference.encode(TEXTS), rtol=0, atol=1e-5
    )
