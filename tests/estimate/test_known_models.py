"""Well-known models: their sizes, and a tokenizer that stands in for theirs."""

import statistics

import pytest
from support.world import EMBEDDED

from ark_jax.data import readers
from ark_jax.estimate import known_models
from ark_jax.estimate.device_work import WeightlessModel
from ark_jax.models import sentence_folder
from ark_jax.text.tokens import load_tokenizer

# Parameters that the published checkpoints hold, without BERT's unused pooler.
PARAMETERS = {
    "Qwen/Qwen3-Embedding-0.6B": 595_776_512,
    "Qwen/Qwen3-Embedding-4B": 4_021_774_336,
    "Qwen/Qwen3-Embedding-8B": 7_567_295_488,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "BAAI/bge-small-en-v1.5": 33_212_160,
    "BAAI/bge-base-en-v1.5": 108_891_648,
    "BAAI/bge-large-en-v1.5": 334_092_288,
    "intfloat/e5-base-v2": 108_891_648,
    "sentence-transformers/all-MiniLM-L6-v2": 22_565_376,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "mistralai/Mistral-7B-Instruct-v0.2": 7_241_732_096,
}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return known_models.sample_texts(readers.load(EMBEDDED).documents)


@pytest.fixture(scope="module")
def tokenizer(texts):
    return known_models.learn_tokenizer(texts)


def test_every_known_model_is_counted_below():
    assert set(PARAMETERS) == set(known_models.KNOWN_MODELS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes_give_the_published_number_of_parameters(name, tokenizer, tmp_path, mesh):
    folder = known_models.write_stand_in(name, tokenizer, tmp_path)
    head = "Embedding" not in name
    model = WeightlessModel.from_folder(str(folder), compute="float32", batch=0, head=head)
    assert model.parameters == PARAMETERS[name]
    width = 4 if known_models.KNOWN_MODELS[name].family == "bert" else 2
    assert model.bytes == width * PARAMETERS[name]
    assert load_tokenizer(str(folder), model.cfg.vocab).is_fast


def test_a_token_has_so_many_characters_on_the_input(texts, tokenizer):
    tokens = sum(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)
    assert sum(map(len, texts)) / tokens == pytest.approx(known_models.CHARACTERS, rel=0.02)


def test_an_empty_input_leaves_a_tokenizer_of_bytes():
    ids = known_models.learn_tokenizer([]).encode("tide", add_special_tokens=False).ids
    assert len(ids) == 4


def test_a_revision_is_the_same_model_and_a_retriever_says_what_it_reads(tokenizer, tmp_path):
    name = "sentence-transformers/all-MiniLM-L6-v2@main"
    assert known_models.known_model(name) == known_models.known_model(name.partition("@")[0])
    assert known_models.known_model("nobody/no-such-model") is None
    folder = known_models.write_stand_in(name, tokenizer, tmp_path)
    opened = load_tokenizer(str(folder))
    assert folder.name == "all-MiniLM-L6-v2"
    assert sentence_folder.read_max_length(folder, opened) == 256
    assert len(opened("")["input_ids"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("role", ["retriever", "generator"])
def test_texts_have_about_as_many_tokens_as_with_the_real_tokenizer(role, texts, tokenizer):
    from ark_jax.demo.models import demo_models

    real = load_tokenizer(demo_models()[role])
    stand_in = statistics.fmean(len(tokenizer.encode(text).ids) for text in texts)
    assert stand_in == pytest.approx(
        statistics.fmean(len(real(text, verbose=False)["input_ids"]) for text in texts), rel=0.15
    )
