"""A retriever as a model of MTEB.

MTEB's own evaluator returns our figures, and each kind of task uses the right prompt.
"""

import dataclasses
import importlib
import json

import jax
import numpy as np
import pytest
from scipy.stats import spearmanr
from support import tiny

from ark_jax.evaluate import retrieval
from ark_jax.models.retriever import Retriever

mteb = pytest.importorskip("mteb", reason="MTEB is absent: pip install mteb (extra [reference])")
pytrec_eval = pytest.importorskip(
    "pytrec_eval", reason="pip install pytrec-eval-terrier (extra [reference])"
)
Encoder = pytest.importorskip("ark_jax.evaluate.mteb").Encoder
datasets, tasks, types = (
    importlib.import_module(name) for name in ("datasets", "mteb.abstasks", "mteb.types")
)
from_list = datasets.Dataset.from_list
TaskMetadata = importlib.import_module("mteb.abstasks.task_metadata").TaskMetadata

PROMPTS = {
    "query": "Find: ",
    "passage": "Here: ",
    "STS-document": "never: ",
    "Corpus-query": "Look up: ",
}
SHARED = {
    "description": "of the embedded corpus",
    "dataset": {"path": "none", "revision": "none"},
    "category": "t2t",
    "eval_splits": ["test"],
    "eval_langs": ["eng-Latn"],
    "modalities": ["text"],
}


def embedded(name: str) -> list[dict]:
    return [
        json.loads(line)
        for line in (tiny.DOCUMENTS.parent / f"{name}.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    ]


def paragraphs() -> dict[str, str]:
    return {
        f"{d['id']}/{i}": text
        for d in embedded("documents")[:6]
        for i, text in enumerate(d["text"].split("\n\n"))
    }


def qrels() -> dict[str, dict[str, int]]:
    """question -> the paragraphs that hold its evidence."""
    held = paragraphs()
    holding = lambda q: {
        id: 1 for id, text in held.items() if any(e in text for e in q["evidence"])
    }
    return {q["id"]: passages for q in embedded("questions") if (passages := holding(q))}


class Corpus(tasks.AbsTaskRetrieval):
    metadata = TaskMetadata(name="Corpus", type="Retrieval", main_score="ndcg_at_10", **SHARED)

    def load_data(self, num_proc=None, **kwargs) -> None:
        held, asked = paragraphs(), qrels()
        self.dataset = {
            "default": {
                "test": {
                    "corpus": from_list(
                        [{"id": id, "title": "", "text": text} for id, text in held.items()]
                    ),
                    "queries": from_list(
                        [
                            {"id": q["id"], "text": q["question"]}
                            for q in embedded("questions")
                            if q["id"] in asked
                        ]
                    ),
                    "relevant_docs": asked,
                    "top_ranked": None,
                }
            }
        }
        self.data_loaded = True


class Alike(tasks.AbsTaskSTS):
    """How alike are a question and its answer's passage (5), and another document's (0)?"""

    metadata = TaskMetadata(name="Alike", type="STS", main_score="cosine_spearman", **SHARED)
    min_score, max_score = 0, 5

    def load_data(self, num_proc=None, **kwargs) -> None:
        questions, texts = embedded("questions")[:24], list(paragraphs().values())
        row = lambda one, two, score: {"sentence1": one, "sentence2": two, "score": score}
        self.dataset = datasets.DatasetDict(
            {
                "test": from_list(
                    [row(q["question"], q["evidence"][0], 5.0) for q in questions]
                    + [
                        row(q["question"], text, 0.0)
                        for q, text in zip(questions, texts[-24:], strict=True)
                    ]
                )
            }
        )
        self.data_loaded = True


class Which(tasks.AbsTaskClassification):
    """Of which of two documents is a paragraph?"""

    metadata = TaskMetadata(name="Which", type="Classification", main_score="accuracy", **SHARED)
    n_experiments, samples_per_label = 2, 6

    def load_data(self, num_proc=None, **kwargs) -> None:
        rows = [
            {"text": text, "label": label}
            for label, d in enumerate(embedded("documents")[:2])
            for text in d["text"].split("\n\n")
        ]
        self.dataset = datasets.DatasetDict(
            {"train": from_list(rows[::2]), "test": from_list(rows[1::2])}
        )
        self.data_loaded = True


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tiny.write(tmp_path_factory.mktemp("model"), "bert", tokenizer="cls")
    return tiny.sentence_transformer(path, pooling="mean", max_seq_length=64, prompts=PROMPTS)


@pytest.fixture
def retriever(folder, mesh):
    return Retriever.from_pretrained(str(folder))


def scores(model: Encoder, task, **options) -> dict:
    results = mteb.evaluate(
        model, task, cache=None, co2_tracker=False, show_progress_bar=False, **options
    )
    return results.task_results[0].scores["test"][0]


def test_mteb_retrieval_scores_equal_our_own_metrics(retriever, tmp_path):
    model = Encoder(retriever, name="ark/tiny")
    of_mteb = scores(model, Corpus(), prediction_folder=tmp_path)
    held, relevant = paragraphs(), qrels()
    questions = {q["id"]: q["question"] for q in embedded("questions") if q["id"] in relevant}
    asking = dataclasses.replace(
        retriever, prompts={"query": PROMPTS["Corpus-query"], "document": PROMPTS["passage"]}
    )
    cosines = (
        asking.encode(list(questions.values()), kind="query")
        @ asking.encode(list(held.values()), kind="document").T
    )
    ranked = {
        id: [list(held)[i] for i in np.argsort(-row, kind="stable")]
        for id, row in zip(questions, cosines, strict=True)
    }
    names = ("recall@5", "recall@10", "ndcg@10", "mrr")
    ours = [retrieval.measure(ranked[id], [[x] for x in relevant[id]], names) for id in questions]
    mean = {name: np.mean([row[name] for row in ours]) for name in ours[0]}
    assert 0.02 < mean["ndcg@10"] < 0.9  # neither nothing nor everything is found
    for name, theirs in (
        ("ndcg@10", "ndcg_at_10"),
        ("recall@5", "recall_at_5"),
        ("recall@10", "recall_at_10"),
    ):
        assert of_mteb[theirs] == pytest.approx(mean[name], abs=2e-5), name
    run = {
        id: {x: float(score) for x, score in zip(held, row, strict=True)}
        for id, row in zip(questions, cosines, strict=True)
    }
    rows = (
        pytrec_eval.RelevanceEvaluator(relevant, {"map_cut.100", "recip_rank"})
        .evaluate(run)
        .values()
    )
    assert of_mteb["map_at_100"] == pytest.approx(
        np.mean([row["map_cut_100"] for row in rows]), abs=2e-5
    )
    assert mean["mrr"] == pytest.approx(np.mean([row["recip_rank"] for row in rows]), abs=1e-6)
    assert of_mteb["mrr_at_1000"] == pytest.approx(mean["mrr"], abs=2e-5)


def test_tasks_without_queries_embed_without_a_prompt(retriever):
    model = Encoder(retriever, name="ark/tiny")
    task = Alike()
    task.load_data()
    rows = task.dataset["test"]

    def wanted(prompts: dict) -> float:
        asking = dataclasses.replace(retriever, prompts=prompts)
        one, two = (asking.encode(rows[f"sentence{i}"], kind="document") for i in (1, 2))
        return spearmanr((one * two).sum(1), rows["score"]).statistic

    assert scores(model, task)["cosine_spearman"] == pytest.approx(wanted({}), abs=1e-6)
    assert wanted({}) != pytest.approx(wanted(PROMPTS), abs=1e-3)
    assert 0 < scores(model, Which())["accuracy"] <= 1


@pytest.mark.parametrize(
    ("task", "kind", "prompt"),
    [
        (Corpus, types.PromptType.query, "Look up: "),
        (Corpus, types.PromptType.document, "Here: "),
        (Alike, None, ""),
        (Alike, types.PromptType.document, "never: "),
        (Which, types.PromptType.query, "Find: "),
        (Which, None, ""),
    ],
)
def test_the_most_specific_prompt_is_used(task, kind, prompt, retriever):
    model = Encoder(retriever, name="ark/tiny")
    vectors = model.encode(
        [{"text": ["the tide", "a boy"]}, {"text": ["the bell"]}],
        task_metadata=task.metadata,
        hf_split="test",
        hf_subset="default",
        prompt_type=kind,
        batch_size=2,
        show_progress_bar=False,
    )
    plain = dataclasses.replace(retriever, prompts={})
    wanted = plain.encode(
        [prompt + text for text in ("the tide", "a boy", "the bell")], kind="query"
    )
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, wanted, rtol=0, atol=1e-6)


def test_the_encoder_describes_its_model_to_mteb(retriever):
    model = Encoder(retriever, name="ark/tiny")
    assert isinstance(model, mteb.EncoderProtocol)
    meta = model.mteb_model_meta
    assert (meta.name, meta.max_tokens, meta.embed_dim, meta.framework, meta.use_instructions) == (
        "ark/tiny",
        64,
        tiny.WIDTH,
        ["JAX"],
        True,
    )
    encoder = {
        n: x
        for n, x in tiny.tensors("bert").items()
        if "pooler" not in n and "position_ids" not in n
    }
    assert meta.n_parameters == sum(x.size for x in encoder.values())


def test_different_models_of_one_name_have_different_revisions(retriever, folder):
    """Else MTEB would show the results that it kept of the first."""
    revision = lambda retriever: Encoder(retriever, name="ark/tiny").mteb_model_meta.revision
    changed = [
        retriever,
        dataclasses.replace(retriever, prompts={}),
        dataclasses.replace(retriever, form=dataclasses.replace(retriever.form, width=16)),
    ]
    changed.append(
        dataclasses.replace(retriever, model=jax.tree.map(lambda x: x + 1, retriever.model))
    )
    assert len({revision(x) for x in changed}) == 4 and revision(retriever) == revision(
        Retriever.from_pretrained(str(folder))
    )


def test_unsupported_encoding_options_are_refused(retriever):
    with pytest.raises(TypeError, match="precision"):
        scores(Encoder(retriever, name="ark/tiny"), Alike(), encode_kwargs={"precision": "int8"})
