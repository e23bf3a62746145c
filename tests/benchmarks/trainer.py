"""Training against sentence-transformers' trainer: `python tests/benchmarks/trainer.py [steps]
[whole]`.

MiniLM in float32 on the CPU with the same threads; questions of FairytaleQA with the section that
answers them and seven others of their story, the nearest ones, as long as they are. The peer is
MultipleNegativesRankingLoss under SentenceTransformerTrainer as shipped, and in its best setting:
no dropout (we have none), matrix products as fast as torch allows, batches of examples of about one
length. We train in a shuffled order, as it does, and in the order of documents, the default of
`configs/ark.py`, whose batches encode a section once however many questions hold it; no setting of
the peer does that. ARK_BENCH_QUESTIONS (32) is how many are trained on, ARK_BENCH_EACH (16) how
many of one story: with 1 no batch has a section twice, and what is left of the difference is
padding.
"""

import csv
import itertools
import os
import sys
import tempfile
from pathlib import Path

import faiss
import numpy as np
import torch
from datasets import Dataset
from models import DATA, under
from sentence_transformers import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from timing import machine, race, report
from transformers import PrinterCallback

from ark_jax import Retriever, layout
from ark_jax.demo.models import demo_models
from ark_jax.retrieval import mining
from ark_jax.train import batches, contrastive, fit
from ark_jax.train.config import ContrastiveConfig

QUESTIONS, EACH = (
    int(os.environ.get(f"ARK_BENCH_{name}", n)) for name, n in (("QUESTIONS", 32), ("EACH", 16))
)
BATCH, HARD, TOP = 8, 7, 20
FOLDER = demo_models()["retriever"]


def stories(n: int) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """Sections, id -> text, and `n` questions (story, question, section) of as few stories as
    possible."""
    read = lambda path: list(csv.DictReader(path.open(encoding="utf-8")))
    sections, triples = {}, []
    for path in sorted((DATA / "fairytaleqa").rglob("*-questions.csv")):
        story = path.name.removesuffix("-questions.csv")
        texts = {
            row["section"]: row["text"]
            for row in read(
                DATA / "fairytaleqa" / "section-stories" / path.parent.name / f"{story}-story.csv"
            )
        }
        of_story = [
            (story, row["question"], f"{story}#{row['cor_section']}")
            for row in read(path)
            if row["cor_section"] in texts
        ]
        if len(texts) > HARD:
            sections |= {f"{story}#{number}": text for number, text in texts.items()}
            triples += of_story[:EACH]
        if len(triples) >= n:
            return sections, triples[:n]
    raise ValueError(f"{DATA}: not {n} questions")


SECTIONS, TRIPLES = stories(QUESTIONS)  # of a triple: story, question, section
SECTIONS_BY_STORY = {
    story: [id for id in SECTIONS if id.startswith(f"{story}#")] for story, _, _ in TRIPLES
}


def nearest(queries: np.ndarray, vectors: np.ndarray, search) -> list[tuple[str, ...]]:
    """The first seven other sections of each question's story that `search` returns."""
    return [
        tuple(id for id in ranking if id != TRIPLES[i][2])[:HARD]
        for i, ranking in enumerate(search(queries, vectors))
    ]


def by_ark(queries: np.ndarray, vectors: np.ndarray) -> list[list[str]]:
    positions = {id: i for i, id in enumerate(SECTIONS)}
    rows = mining.dense_candidates(
        {str(i): versions for i, versions in enumerate(queries)},
        {
            str(i): [positions[id] for id in SECTIONS_BY_STORY[story]]
            for i, (story, _, _) in enumerate(TRIPLES)
        },
        vectors,
        list(SECTIONS),
        top=TOP,
    )
    ids = list(SECTIONS)
    return [[ids[place] for place in rows[str(i)].ids] for i in range(len(TRIPLES))]


def by_faiss(queries: np.ndarray, vectors: np.ndarray) -> list[list[str]]:
    """The same union of what the versions of a question find, by an index for each story."""
    positions, out, indices = {id: i for i, id in enumerate(SECTIONS)}, [], {}
    for story, ids in SECTIONS_BY_STORY.items():
        indices[story] = faiss.IndexFlatIP(vectors.shape[1])
        indices[story].add(np.ascontiguousarray(vectors[[positions[id] for id in ids]]))
    for versions, (story, _, _) in zip(queries, TRIPLES, strict=True):
        scores, columns = indices[story].search(versions, min(TOP, len(SECTIONS_BY_STORY[story])))
        best: dict[str, float] = {}
        for i, score in zip(columns.ravel(), scores.ravel(), strict=True):
            best[SECTIONS_BY_STORY[story][i]] = max(
                best.get(SECTIONS_BY_STORY[story][i], -1.0), float(score)
            )
        out.append(sorted(best, key=lambda id: (-best[id], id)))
    return out


def trained(
    retriever: Retriever, hard: list[tuple[str, ...]], order: str, losses: list[float]
) -> Retriever:
    """One epoch of ours; without hard negatives it is stage 1."""
    examples = [
        batches.Example(str(i), story, (section,), hard[i] if hard else ())
        for i, (story, _, section) in enumerate(TRIPLES)
    ]
    config = ContrastiveConfig(
        batch=BATCH, chunks=1, order=order, remat="products", save_every=10**6
    )
    with tempfile.TemporaryDirectory() as folder:
        tuned, _, curve = contrastive.train(
            retriever,
            examples,
            {str(i): q for i, (_, q, _) in enumerate(TRIPLES)},
            SECTIONS,
            config,
            fit.Run(Path(folder), "training"),
            epochs=1,
            learning_rate=1e-5,
            seed=0,
            use_negatives=bool(hard),
        )
    losses.append(np.mean([row["loss"] for row in curve]))
    return tuned


class ByLength(DefaultBatchSampler):
    """Batches of examples whose passages are of about one length, in a random order."""

    def __init__(self, dataset, batch_size: int, drop_last: bool, **_):
        super().__init__(dataset, batch_size=batch_size, drop_last=drop_last)
        length = lambda i: sum(
            len("".join(texts))
            for name, texts in dataset[i].items()
            if name not in ("anchor", "labels")
        )
        order = sorted(range(len(dataset)), key=length)
        self.cut = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

    def __iter__(self):
        return (self.cut[i] for i in np.random.default_rng(self.epoch).permutation(len(self.cut)))


def trained_there(
    model: SentenceTransformer, hard: list[tuple[str, ...]], best: bool, losses: list[float]
) -> None:
    """One epoch of the peer, in place."""
    columns = {
        "anchor": [q for _, q, _ in TRIPLES],
        "positive": [SECTIONS[section] for _, _, section in TRIPLES],
    }
    columns |= {
        f"negative_{k}": [SECTIONS[negatives[k]] for negatives in hard]
        for k in range(HARD if hard else 0)
    }
    loss = MultipleNegativesRankingLoss(model, scale=20.0)
    losses.append(train_peer(model, columns, loss, BATCH, best))


def train_peer(
    model: SentenceTransformer | CrossEncoder,
    columns: dict,
    loss: torch.nn.Module,
    batch: int,
    best: bool,
) -> float:
    """One epoch of the peer, in place, as shipped or in its best setting; returns its loss."""
    if best:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    arguments, trainer_class = (
        (CrossEncoderTrainingArguments, CrossEncoderTrainer)
        if isinstance(model, CrossEncoder)
        else (SentenceTransformerTrainingArguments, SentenceTransformerTrainer)
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = arguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=1e-5,
            warmup_steps=0.1,
            weight_decay=0.01,
            max_grad_norm=1.0,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
            **({"batch_sampler": ByLength} if best else {}),
        )
        trainer = trainer_class(
            model=model, args=settings, train_dataset=Dataset.from_dict(columns), loss=loss
        )
        trainer.remove_callback(PrinterCallback)
        return trainer.train().training_loss


def steps() -> None:
    """One epoch of one positive and seven hard negatives, tokenisation and all."""
    retriever = Retriever.from_pretrained(FOLDER)
    vectors = retriever.encode(list(SECTIONS.values()), kind="document")
    queries = retriever.encode([q for _, q, _ in TRIPLES], kind="query")[:, None]
    hard = nearest(queries, vectors, by_ark)
    losses = {name: [] for name in ("question", "document", False, True)}
    run = lambda order: lambda: trained(retriever, hard, order, losses[order])
    peer = lambda best: under(
        "tuned" if best else "default",
        lambda: trained_there(SentenceTransformer(FOLDER, device="cpu"), hard, best, losses[best]),
    )
    timings = race(
        {
            "ark_jax, shuffled": run("question"),
            "ark_jax": run("document"),
            "sentence-transformers": peer(False),
            "sentence-transformers, best": peer(True),
        },
        rounds=3,
    )
    first_losses = ", ".join(f"{values[0]:.3f}" for values in losses.values())
    work = (
        f"MiniLM, {QUESTIONS} questions, {EACH} a story, batches of {BATCH}, "
        f"1 positive and {HARD} hard negatives "
        f"(mean losses {first_losses})"
    )
    report(work, "examples", QUESTIONS, timings)


def versions(n: int = 10) -> list[str]:
    """Ten texts for each question, like rewritten ones: the question and another of its story."""
    out = []
    for story, question, _ in TRIPLES:
        story_questions = itertools.cycle([q for s, q, _ in TRIPLES if s == story])
        out += [f"{question} {neighbour}" for neighbour in itertools.islice(story_questions, n)]
    return out


def whole() -> None:
    """Three stages: train.

    Embed all sections and rewritten questions again, mine with that model, train; once more.
    """
    texts, rewritten = list(SECTIONS.values()), versions()
    retriever = Retriever.from_pretrained(FOLDER)

    def mine() -> None:
        model, losses = retriever, []
        model = trained(model, [], "document", losses)
        for _ in range(2):
            queries = model.encode(rewritten, kind="query").reshape(len(TRIPLES), -1, model.width)
            model = trained(
                model,
                nearest(queries, model.encode(texts, kind="document"), by_ark),
                "document",
                losses,
            )

    def peer(best: bool):
        def run() -> None:
            model, losses = SentenceTransformer(FOLDER, device="cpu"), []
            trained_there(model, [], best, losses)
            for _ in range(2):
                encode = lambda batch: model.encode(batch, batch_size=32, show_progress_bar=False)
                queries = encode(rewritten).reshape(len(TRIPLES), -1, retriever.width)
                trained_there(model, nearest(queries, encode(texts), by_faiss), best, losses)

        return under("tuned" if best else "default", run)

    timings = race(
        {
            "ark_jax": mine,
            "sentence-transformers": peer(False),
            "sentence-transformers, best": peer(True),
        },
        rounds=3,
    )
    report(
        f"MiniLM, three stages of {QUESTIONS} questions, "
        "embedded and mined anew before stages 2 and 3",
        "examples",
        3 * QUESTIONS,
        timings,
    )


if __name__ == "__main__":
    layout.enter_mesh((1, 1, 1))
    print(f"{machine()}; torch {torch.__version__} with {torch.get_num_threads()} threads")
    for name in sys.argv[1:] or ["steps", "whole"]:
        {"steps": steps, "whole": whole}[name]()
