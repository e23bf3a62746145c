"""A saved retriever in other people's programs: sentence-transformers old and new, transformers,
text-embeddings-inference.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import tei, tiny
from tokenizers import Tokenizer

from ark_jax.models.retriever import Retriever

TEXTS = [
    "The Tidal Board was founded in 1784.",
    "x",
    "the tide " * 100,
    "naïve Ünder ﬁne 潮汐 🌊",
    "a longer question, is it?",
]
PROMPTS = {"query": "Find: ", "document": ""}
# What real checkpoints have and the tiny ones lack, since nobody here reads it.
UNREAD = {"hidden_dropout_prob": 0.1, "initializer_range": 0.02}
FAMILIES = {
    "bert": ("cls", "mean"),
    "roberta": ("both", "cls"),
    "xlm-roberta": ("both", "mean"),
    "distilbert": ("cls", "cls"),
    "qwen3": ("end", "lasttoken"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`saved(family)` -> the folder of a saved retriever, and the retriever."""

    @functools.cache
    def make(family: str, files: int = 1, bare: bool = False) -> tuple[Path, Retriever]:
        tokenizer, pooling = FAMILIES.get(family, ("plain", "lasttoken"))
        path = tiny.write(
            tmp_path_factory.mktemp("base"),
            family,
            tokenizer=tokenizer,
            changes=UNREAD,
            files=files,
            bare=bare,
        )
        tiny.sentence_transformer(path, pooling=pooling, max_seq_length=48, prompts=PROMPTS)
        if family == "distilbert":  # it has no segments, which its own kind of tokenizer knows
            edit(path, "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
        retriever, folder = Retriever.from_pretrained(str(path)), tmp_path_factory.mktemp("saved")
        retriever.save_pretrained(folder)
        return folder, retriever

    return make


def edit(folder: Path, name: str, **changes) -> None:
    """Sets fields of a JSON file, or takes them out for None."""
    values = json.loads((folder / name).read_text()) | changes
    (folder / name).write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


# --- text-embeddings-inference --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "files", "bare"),
    [(f, 1, False) for f in FAMILIES]
    + [("qwen3", 3, True), ("bert", 1, True), ("distilbert", 2, True)],
)
def test_a_saved_folder_meets_the_requirements_of_text_embeddings_inference(
    family, files, bare, saved, mesh
):
    folder, retriever = saved(family, files, bare)
    assert tei.problems(folder) == []
    # What it would feed the model: the prompt, tokenizer.json's own special tokens, a cut at
    # max_seq_length.
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(
        json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    )
    asked = [tokenizer.encode(PROMPTS["query"] + text.strip()).ids for text in TEXTS]
    assert asked == retriever.tokenize(TEXTS, kind="query").tolist()
    assert max(map(len, asked)) == 48


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_families_that_are_not_served_are_reported(family, saved, mesh):
    assert tei.problems(saved(family)[0]) == [f"config.json: model_type {family!r} is not served"]


@pytest.mark.parametrize(
    ("family", "name", "changes", "message"),
    [
        (
            "bert",
            "config.json",
            {"architectures": None},
            "config.json: architectures is None, must be a list",
        ),
        (
            "bert",
            "config.json",
            {"architectures": ["BertForSequenceClassification"]},
            "must be a list without classifiers",
        ),
        (
            "bert",
            "config.json",
            {"initializer_range": None},
            "config.json: initializer_range is None, must be a number",
        ),
        (
            "bert",
            "config.json",
            {"hidden_act": "gelu_10"},
            "the activation 'gelu_10' is none it has",
        ),
        (
            "bert",
            "config.json",
            {"type_vocab_size": 2},
            "bert.embeddings.token_type_embeddings.weight is (3, 32), must be (2, 32)",
        ),
        (
            "bert",
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": None},
            "pooling_mode_cls_token is missing",
        ),
        (
            "bert",
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": True},
            "not one of cls, mean and last token",
        ),
        (
            "bert",
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True},
            "not one of cls",
        ),
        (
            "bert",
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True},
            "last token is not",
        ),
        (
            "roberta",
            "sentence_bert_config.json",
            {"max_seq_length": 637},
            "max_seq_length is 637, must be a number of positions",
        ),
        (
            "roberta",
            "sentence_bert_config.json",
            {"do_lower_case": True},
            "do_lower_case is not heeded",
        ),
        (
            "qwen3",
            "config_sentence_transformers.json",
            {"prompts": {"query": 3}},
            "prompts must be texts",
        ),
        ("qwen3", "config.json", {"model_type": "qwen2"}, "model_type 'qwen2' is not served"),
        ("qwen3", "config.json", {"rope_theta": None}, "rope_theta is missing"),
        ("qwen3", "config.json", {"use_sliding_window": True}, "use_sliding_window is not served"),
    ],
)
def test_the_check_reports_wrong_settings(family, name, changes, message, saved, tmp_path, mesh):
    saved(family)[1].save_pretrained(tmp_path)
    edit(tmp_path, name, **changes)
    assert [problem for problem in tei.problems(tmp_path) if message in problem]


def test_the_check_reports_missing_files(saved, tmp_path, mesh):
    for name in ("tokenizer.json", "1_Pooling/config.json", "modules.json", "model.safetensors"):
        saved("bert")[1].save_pretrained(tmp_path / name)
        (tmp_path / name / name).unlink()
        problems = tei.problems(tmp_path / name)
        assert problems and name in problems[0]


# --- transformers and sentence-transformers -------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "distilbert", "qwen3"])
def test_pooled_states_of_auto_model_match_our_vectors(family, saved, mesh):
    torch = pytest.importorskip(
        "torch", reason="the reference implementation; extra [reference] is not installed"
    )
    from transformers import AutoModel, AutoTokenizer

    folder, retriever = saved(family)
    model, loading = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"] or all("pooler" in name for name in loading["missing_keys"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pool = {"mean": lambda x: x.mean(0), "cls": lambda x: x[0], "lasttoken": lambda x: x[-1]}[
        retriever.pooling
    ]
    theirs = []
    for text in TEXTS:  # one by one: no padding that could go wrong
        tokens = tokenizer(
            (PROMPTS["query"] + text).strip(), truncation=True, max_length=48, return_tensors="pt"
        )
        with torch.no_grad():
            x = pool(model.eval()(**tokens).last_hidden_state[0]).numpy()
        theirs.append(x / np.linalg.norm(x))
    np.testing.assert_allclose(retriever.encode(TEXTS, kind="query"), theirs, rtol=0, atol=1e-5)


OPEN = """
import json, sys
import numpy as np
import sentence_transformers
assert sentence_transformers.__version__.startswith("5.1."), sentence_transformers.__version__
for folder in sys.argv[2:]:
    model = sentence_transformers.SentenceTransformer(folder, device="cpu")
    vectors = model.encode(json.loads(sys.argv[1]), prompt_name="query", batch_size=2)
    np.save(folder + "/theirs.npy", vectors)
"""


@pytest.mark.slow
@pytest.mark.network
def test_sentence_transformers_5_1_gives_the_same_vectors(saved, old_libraries, mesh):
    folders = [saved(family)[0] for family in FAMILIES]
    done = subprocess.run(
        [sys.executable, "-c", OPEN, json.dumps(TEXTS), *map(str, folders)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(old_libraries)},
    )
    assert done.returncode == 0, done.stderr
    for family, folder in zip(FAMILIES, folders, strict=True):
        ours = saved(family)[1].encode(TEXTS, kind="query")
        np.testing.assert_allclose(np.load(folder / "theirs.npy"), ours, rtol=0, atol=1e-5)
