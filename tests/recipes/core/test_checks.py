"""Settings that a stage would fail on are refused before any work."""

import importlib.util

import pytest

from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.recipe import stages


@pytest.mark.parametrize(
    "changes, says",
    [
        ({}, "llm.backend=none is none: name one"),
        ({"llm.backend": "local", "retriever.vectors": "tokens"}, "keeps one for each token"),
    ],
)
def test_hyde_without_its_requirements_is_refused(changes, says):
    c = config.ark()
    c.update_from_flattened_dict({"search.expand": "hyde", **changes})
    with pytest.raises(ValueError, match=says):
        stages(c)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"scope": "documents"}, "scope='documents': must be auto, document, held_out or corpus"),
        ({"gold": "passages"}, "gold='passages': must be evidence or answers"),
        ({"metrics": ("ndgc@10",)}, "metric 'ndgc@10': must be recall"),
        (
            {"baselines": ("BAAI/bge-m3",)},
            "'BAAI/bge-m3' is none of bm25, full; name other retrievers in "
            "config.evaluate.retrievers",
        ),
        ({"retrievers": ("a/one", "b/one")}, "two systems would be called 'one'"),
        ({"retrievers": ("x/stage1",)}, "two systems would be called 'stage1'"),
        (
            {"baselines": (), "hybrids": ("bm25+base",)},
            "'bm25[+]base' must join two or more of base, stage1, stage2 by [+]",
        ),
        ({"hybrids": ("stage9",)}, "'stage9' must join two or more"),
        ({"hybrids": ("base+base",)}, "'base[+]base' must join two or more"),
        (
            {"baselines": ("full",), "hybrids": ("base+full",)},
            "'base[+]full' must join two or more of base, stage1",
        ),
    ],
)
def test_invalid_evaluation_settings_are_refused(changes, says):
    c = config.ark()
    c.evaluate.update(changes)
    with pytest.raises(ValueError, match=says):
        stages(c)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://host/v1",
        "localhost:8000/v1",
        "//host/v1",
        "http://",
        "http://[::1",
        "http://host:99999/v1",
        "http://host:-1/v1",
        "http://host/v1\r\nX: y",
        "http://ho st/v1",
    ],
)
def test_an_invalid_endpoint_address_is_refused(url):
    c = config.ark()
    c.llm.base_url = url
    with pytest.raises(ValueError, match=r"config\.llm\.base_url='.*': must be an address such as"):
        stages(c)


@pytest.mark.parametrize("url", ["", "http://[::1]:8000/v1", "https://bücher.example/v1"])
def test_a_valid_endpoint_address_is_accepted(url):
    c = config.ark()
    c.llm.base_url = url
    assert stages(c)


def test_an_unknown_answer_metric_is_refused():
    c = config.ark()
    c.evaluate.answers = ("answer_f1", "bleu")
    message = r"config.evaluate.answers: 'bleu' is none of answer_f1, exact_match, rouge_l"
    with pytest.raises(ValueError, match=message):
        stages(c)


def test_a_metric_whose_library_is_missing_is_refused_with_the_fix(monkeypatch):
    c = config.ark()
    c.evaluate.answers = ("rouge_l",)
    find = importlib.util.find_spec
    without_rouge = lambda name, *more: None if name == "rouge" else find(name, *more)
    monkeypatch.setattr(importlib.util, "find_spec", without_rouge)
    message = r"ROUGE-L needs the library rouge: pip install 'ark-jax\[evaluate\]'"
    with pytest.raises(RuntimeError, match=message):
        stages(c)


@pytest.mark.parametrize("backend", ["openai", "replay", "reader.py:read"])
def test_answer_likelihoods_need_a_local_reader(backend):
    c = config.ark()
    c.evaluate.answers = ("answer_f1", "answer_likelihood")
    stages(c)
    c.reader.backend = backend
    says = (
        rf"config\.evaluate\.answers=.*config\.reader\.backend='{backend}' gives none: leave it out"
    )
    with pytest.raises(ValueError, match=says):
        stages(c)


def test_a_judge_needs_written_answers():
    c = config.ark()
    c.judge.repeats, c.evaluate.answers = 2, ("answer_likelihood",)
    says = r"config\.judge\.repeats=2 compares answers, .*: add answer_f1 to it, or set"
    with pytest.raises(ValueError, match=says):
        stages(c)
    c.evaluate.answers = ("answer_likelihood", "exact_match")
    stages(c)


def test_folds_of_written_questions_are_refused():
    c = config.ark()
    c.data.fold, c.questions.source = (1, 5), "written"
    with pytest.raises(ValueError, match=r"remove config\.data\.fold"):
        stages(c)
