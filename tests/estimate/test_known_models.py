"""Well-known models: their sizes, and a tokenizer that stands in for theirs."""

import pytest
from support.world import EMBEDDED

from ark_jax.data import readers
from ark_jax.estimate import work
from ark_jax.estimate.devices import WeightlessModel
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
    "BAAI/bge-m3": 566_705_152,
    "intfloat/multilingual-e5-small": 117_505_920,
    "intfloat/e5-base-v2": 108_891_648,
    "sentence-transformers/all-MiniLM-L6-v2": 22_565_376,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "mistralai/Mistral-7B-Instruct-v0.2": 7_241_732_096,
}


def test_every_known_model_has_a_published_parameter_count():
    assert set(PARAMETERS) == set(work.KNOWN_MODELS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_stand_ins_have_the_published_number_of_parameters(name, tmp_path, mesh):
    folder = work.write_stand_in(name, tmp_path)
    is_encoder = work.known_model(name)["model_type"] in ("bert", "xlm-roberta")
    head = "Embedding" not in name and not is_encoder
    model = WeightlessModel.from_folder(str(folder), compute="float32", batch=0, head=head)
    assert model.parameters == PARAMETERS[name]
    assert model.bytes == (4 if is_encoder else 2) * PARAMETERS[name]


def test_a_stand_in_tokenizer_gives_about_as_many_tokens_as_the_model(tmp_path):
    name = "sentence-transformers/all-MiniLM-L6-v2@main"
    assert work.known_model(name) == work.known_model(name.partition("@")[0])
    assert work.known_model("nobody/no-such-model") is None
    folder = work.write_stand_in(name, tmp_path)
    opened = load_tokenizer(str(folder))
    assert folder.name == "all-MiniLM-L6-v2" and opened.is_fast
    assert sentence_folder.read_max_length(folder, opened) == 256
    tokens = lambda text: len(opened(text, add_special_tokens=False)["input_ids"])
    assert len(opened("")["input_ids"]) == 2
    text = "\n".join(document.text for document in readers.load(EMBEDDED).documents)
    assert len(text) / tokens(text) == pytest.approx(work.CHARACTERS, rel=0.02)
    assert tokens("潮汐委员会") == 5
