"""What the devices compute in a run of GPR and what it stores, for `ark-jax plan`."""

import numpy as np

from ark_jax.estimate import step_memory
from ark_jax.estimate.device_time import load_tokenizing_retriever, speed_note
from ark_jax.estimate.device_work import WeightlessModel
from ark_jax.graph.triples import Triples
from ark_jax.llm.triple_questions import SIDES
from ark_jax.pipeline.recipe import Forecast
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.graph_data import SAMPLE, load_graph, texts_of
from ark_jax.recipes.gpr.data import load_test

TRIPLES_A_QUESTION = 3  # the triple, a neighbour, a negative
STATES = 3  # of each weight: itself, and AdamW's two moments


def forecast(context: Context, done: set[str]) -> Forecast:
    """Embedding, training and disk space, from a sample of the graph's triples."""
    config, graph = context.config, load_graph(context)
    context.enter_mesh()
    model = WeightlessModel.from_folder(
        config.retriever.path,
        compute=config.retriever.compute,
        batch=config.retriever.batch_tokens,
        head=False,
    )
    length = _mean_length(context, graph, model)
    tested, questions = len(load_test(context)), _questions(config, graph)
    steps = config.train.epochs * -(-questions // config.train.batch)
    towers = 1 + (config.train.towers == "two")
    vectors = len(graph) * model.cfg.width * np.dtype(np.float32).itemsize
    weights = model.parameters * 4 * towers
    batch = min(config.train.batch, questions)
    counts = (batch, batch * TRIPLES_A_QUESTION)
    texts = [step_memory.even_texts(count, length) for count in counts]
    choice = step_memory.choose(model, config.train, lambda _: texts, towers=towers)
    training = _training(model, config, questions, length, choice.remat)
    work = [
        model.work("train", "training", *training),
        model.work("index", "embedding", *_embedding(model, len(graph), length)),
        *(
            [model.work("baselines", "embedding", *_embedding(model, len(graph), length))]
            if tested
            else []
        ),
    ]
    return Forecast(
        inputs={
            "triples": len(graph),
            "entities": len(graph.nodes),
            "training questions": questions,
            "steps": steps,
            "test questions": tested,
        },
        work=tuple(part for part in work if part.stage not in done),
        disk={
            "vectors of triples": vectors,
            "models": 2 * weights,
            "checkpoints": 2 * STATES * weights if "train" not in done else 0,
        },
        notes=(
            speed_note([model]),
            *(step_memory.notes({"train": choice}) if "train" not in done else ()),
        ),
    )


def _questions(config, graph: Triples) -> int:
    """How many questions are written if none is dropped."""
    triples = min(config.questions.triples or len(graph), len(graph))
    return triples * len(SIDES) * config.questions.per_triple


def _mean_length(context: Context, graph: Triples, model: WeightlessModel) -> float:
    """Tokens of a triple's text, and of a question about one, which is about as long."""
    rows = np.linspace(0, len(graph) - 1, min(len(graph), SAMPLE)).astype(np.int64)
    tokenizer = load_tokenizing_retriever(model)
    texts = texts_of(graph, context.config, rows)
    return float(np.mean([len(ids) for ids in tokenizer.tokenize(texts, kind="document")]))


def _embedding(model: WeightlessModel, count: int, length: float) -> tuple[float, np.ndarray]:
    """Tokens and FLOPs of embedding `count` texts of a length."""
    return count * length, count * model.text_flops([length])


def _training(
    model: WeightlessModel, config, questions: int, length: float, remat: str
) -> tuple[float, np.ndarray]:
    """Tokens and FLOPs of all epochs; a backward pass takes twice the products of a forward one."""
    again = int(remat == "all")
    tokens, flops = _embedding(
        model, questions * config.train.epochs * (1 + TRIPLES_A_QUESTION), length
    )
    return tokens, flops * (3 + again, 3.5 + again)
