"""The model card that every saved retriever has: front matter the hub reads, and code that does
what it says.
"""

import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import EvalResult, ModelCard
from support import tiny

from ark_jax.models import model_card
from ark_jax.models.retriever import Retriever

PROMPTS = {"query": "Instruct: find it\nQuery:", "document": ""}


def saved(base: Path, folder: Path, **options) -> Path:
    Retriever.from_pretrained(str(base), **options).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tiny.write(tmp_path_factory.mktemp("base"), "qwen3", tokenizer="end")
    return tiny.sentence_transformer(path, pooling="lasttoken", max_seq_length=100, prompts=PROMPTS)


def test_the_front_matter_is_readable_by_the_hub(base, tmp_path, mesh):
    card_data = ModelCard.load(saved(base, tmp_path) / "README.md").data
    assert (card_data.library_name, card_data.pipeline_tag) == (
        "sentence-transformers",
        "sentence-similarity",
    )
    assert card_data.tags == [
        "sentence-transformers",
        "sentence-similarity",
        "feature-extraction",
        "ark",
    ]
    assert card_data.base_model is None  # a folder's name means nothing on the hub
    assert set(card_data.to_dict()) == {"library_name", "pipeline_tag", "tags"}


def test_the_body_describes_how_texts_are_embedded(base, tmp_path, mesh):
    text = ModelCard.load(saved(base, tmp_path, width=20) / "README.md").text
    for row in (
        "| architecture | qwen3 |",
        "| pooling | lasttoken, then unit length |",
        "| vector | 20 components, the first of 32 |",
        "| longest text | 100 tokens, ",
        r"| prompt, query | `Instruct: find it\nQuery:` |",
    ):
        assert row in text
    assert "prompt, document" not in text and "base model |" not in text


def test_a_model_of_the_hub_is_named_as_the_base(base, tmp_path, mesh):
    """By the folder that the hub's client downloads into."""
    cached = tmp_path / "models--Owner--A-Model" / "snapshots" / "0123abc"
    shutil.copytree(base, cached)
    card = ModelCard.load(saved(cached, tmp_path / "saved") / "README.md")
    assert card.data.base_model == "Owner/A-Model"
    assert "| base model | [Owner/A-Model](https://huggingface.co/Owner/A-Model) |" in card.text
    assert "# A-Model, saved by ark_jax" in card.text


def test_a_given_card_is_saved_unchanged(base, tmp_path, mesh):
    Retriever.from_pretrained(str(base)).save_pretrained(tmp_path, card="# Mine\n")
    assert (tmp_path / "README.md").read_text() == "# Mine\n"


def test_training_details_follow_the_title(base, tmp_path, mesh):
    folder = saved(base, tmp_path)
    text = model_card.render_card(
        folder, title="Tuned: again", base="o/m", about="On 3 questions.\n\n| a |\n|---|\n"
    )
    (folder / "README.md").write_text(text)
    card = ModelCard.load(folder / "README.md")
    assert card.data.base_model == "o/m"
    assert card.text.strip().startswith(
        "# Tuned: again\n\nOn 3 questions.\n\n| a |\n|---|\n\n| | |\n|---|---|\n| base model |"
    )


def test_results_are_written_to_the_front_matter(base, tmp_path, mesh):
    folder = saved(base, tmp_path)
    results = [
        EvalResult(
            task_type="information-retrieval",
            dataset_type="unknown",
            dataset_name="9 held-out questions: ours",
            metric_type="ndcg@10",
            metric_name="nDCG@10",
            metric_value=0.6079,
        )
    ]
    text = model_card.render_card(
        folder, title='A "tuned": model', base="", about="", results=results
    )
    (folder / "README.md").write_text(text)
    card = ModelCard.load(folder / "README.md")  # which refuses a model-index that is not the hub's
    assert (card.data.model_name, card.data.eval_results) == ('A "tuned": model', results)
    assert card.data.library_name == "sentence-transformers" and card.text.strip().startswith(
        '# A "tuned": model'
    )
    # What the hub's own client writes of it is what stands there.
    assert text.startswith(f"---\n{card.data.to_yaml()}\n---\n")


def programs(folder: Path) -> list[str]:
    """The Python in a card, about the folder it stands in."""
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    return [program.replace("path/to/this/folder", str(folder)) for program in blocks]


def run(program: str, file: Path) -> np.ndarray:
    file.write_text(program)
    names = runpy.run_path(str(file))
    return np.concatenate([names["queries"], names["documents"]])


@pytest.mark.parametrize(
    "width", [None, 20]
)  # narrowed, too, which sentence-transformers leaves shorter than one
def test_the_code_in_the_card_gives_the_same_vectors_in_both_libraries(width, base, tmp_path, mesh):
    theirs, ours = programs(saved(base, tmp_path, width=width))
    vectors = run(ours, tmp_path / "ours.py")
    # The prompt is the card's own words: without it the first vector would be another.
    plain = Retriever.from_pretrained(str(base), width=width).encode(
        ["a question"], kind="document"
    )
    assert np.abs(vectors[0] - plain[0]).max() > 0.01
    pytest.importorskip("sentence_transformers", reason="the reference implementation")
    np.testing.assert_allclose(vectors, run(theirs, tmp_path / "theirs.py"), rtol=0, atol=1e-5)


def test_a_hostile_title_is_escaped_in_the_card(base, tmp_path, mesh):
    folder = saved(base, tmp_path)
    title = 'x"><script>: {a: [b\n---\nlicense: evil\n```'
    card = model_card.render_card(folder, title=title, base="", about="")
    assert card.count("\n---\n") == 1 and not re.search(r"(?<!\\)<", card.split("\n---\n")[1])
    (folder / "README.md").write_text(card)
    assert ModelCard.load(folder / "README.md").data.license is None
    assert '\n# x"\\>\\<script\\>: {a: \\[b --- license: evil \\`\\`\\`\n' in card
