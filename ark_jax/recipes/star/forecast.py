"""What the devices compute in a run of STAR and what it stores, for `ark-jax plan`."""

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from ark_jax.estimate import step_memory
from ark_jax.estimate.device_time import load_tokenizing_retriever, speed_note, trainable_parameters
from ark_jax.estimate.device_work import WeightlessModel, Work
from ark_jax.graph.beam import BeamRules, search
from ark_jax.graph.relation_paths import GoldPath
from ark_jax.graph.steps import END_TEXT, Steps, path_text
from ark_jax.pipeline.recipe import Forecast
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.star.data import PathQuestion, load_questions, load_steps
from ark_jax.recipes.star.lists import CANDIDATES
from ark_jax.recipes.star.paths import load_paths
from ark_jax.train.memory import Texts

SAMPLE = 50  # questions whose search is walked through without a model
TEXTS = 1000  # texts whose tokens are counted
STATES = 3  # of each weight: itself, and AdamW's two moments


class _NeverEnding:
    """Draws scores by a hash of the texts, END lowest, so that a search takes all its hops."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        return np.array([_draw(path) for _, path in pairs])


def _draw(path: str) -> float:
    if path.endswith(f", {END_TEXT}"):
        return -1.0
    return int(hashlib.sha256(path.encode()).hexdigest()[:8], 16) / 2**32


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """How much there is to compute.

    Attributes:
        lists: to train on, if every shortest path is learned.
        pairs: of one search over all test questions.
        question, path: mean tokens of a text.
    """

    lists: int
    pairs: int
    question: float
    path: float


def forecast(context: Context, done: set[str]) -> Forecast:
    """Mining, training, searching and disk space, from the gold paths and a sample of searches."""
    config, steps = context.config, load_steps(context)
    train, test = (load_questions(context, part) for part in ("train", "test"))
    paths = load_paths(context, "train")
    context.enter_mesh()
    model = WeightlessModel.from_folder(
        config.retriever.path,
        compute=config.retriever.compute,
        batch=config.retriever.batch_tokens,
        head=False,
    )
    length = lambda texts: _mean_length(model, texts)
    sizes = _Sizes(
        lists=_count_lists(paths),
        pairs=_count_pairs(test, steps, config),
        question=length([question.question for question in train]),
        path=length(_path_texts(paths, steps)),
    )
    weights, trained = model.parameters * 4, trainable_parameters(model, config.train) * 4
    choice = step_memory.choose(model, config.train, lambda _: _texts_of_step(config, sizes))
    works = _works(model, config, sizes, choice.remat)
    steps_taken = config.train.epochs * -(-sizes.lists // config.train.batch)
    return Forecast(
        inputs={
            "triples": len(steps.graph),
            "entities": len(steps.graph.nodes),
            "training questions": len(train),
            "lists to train on, at most": sizes.lists,
            "pairs to train on, at most": _training_pairs(config, sizes),
            "steps, at most": steps_taken,
            "test questions": len(test),
            "pairs of a search, at most": sizes.pairs,
        },
        work=tuple(part for part in works if part.stage not in done),
        disk={
            "models": 2 * weights,
            "checkpoints": 2 * STATES * trained if "train" not in done else 0,
        },
        notes=(
            speed_note([model]),
            *(step_memory.notes({"train": choice}) if "train" not in done else ()),
        ),
    )


def _count_lists(paths: Mapping[str, Sequence[GoldPath]]) -> int:
    """A list for each step of a path that a question has to take, END included."""
    return len(
        {
            (id, path.topic, path.steps[:hop], path.steps[hop : hop + 1])
            for id, listed in paths.items()
            for path in listed
            for hop in range(len(path.steps) + 1)
        }
    )


def _count_pairs(test: Sequence[PathQuestion], steps: Steps, config) -> int:
    """The pairs of a search of all hops over all test questions, from an even sample."""
    sample = test[:: -(-len(test) // SAMPLE) or 1]
    if not sample:
        return 0
    rules = BeamRules(config.search.beam, config.paths.hops, config.search.keep)
    texts, topics = zip(*((x.question, x.topics) for x in sample), strict=True)
    result = search(texts, topics, steps, _NeverEnding(), rules, _NeverEnding())
    return round(result.pairs * len(test) / len(sample))


def _path_texts(paths: Mapping[str, Sequence[GoldPath]], steps: Steps) -> list[str]:
    everything = itertools.chain.from_iterable(paths.values())
    name = steps.graph.nodes.name
    return [
        path_text(name(path.topic), [steps.names[step] for step in path.steps], ended=True)
        for path in itertools.islice(everything, TEXTS)
    ]


def _mean_length(model: WeightlessModel, texts: Sequence[str]) -> float:
    tokenizer = load_tokenizing_retriever(model)
    return float(np.mean(list(map(len, tokenizer.tokenize(texts[:TEXTS], kind="document")))))


def _training_pairs(config, sizes: _Sizes) -> int:
    return config.train.epochs * sizes.lists * (1 + config.mine.negatives)


def _texts_of_step(config, sizes: _Sizes) -> list[Texts]:
    """What a device encodes in a step, if texts have their mean length."""
    count = min(config.train.batch, sizes.lists) * (1 + config.mine.negatives)
    return [step_memory.even_texts(count, _text_length(config.train.head, sizes))]


def _works(model: WeightlessModel, config, sizes: _Sizes, remat: str) -> list[Work]:
    """The work of each stage; a backward pass takes twice the products of a forward one."""
    again = int(remat == "all")
    mined = sizes.lists * (1 + 2 * CANDIDATES)
    mined *= config.train.epochs if config.mine.by == "previous" else 1
    tokens, flops = _scoring(model, config.train.head, _training_pairs(config, sizes), sizes)
    works = [
        model.work("mine", "embedding", *_scoring(model, "cosine", mined, sizes)),
        model.work("train", "training", tokens, flops * (3 + again, 3.5 + again)),
    ]
    if sizes.pairs:
        searched = _scoring(model, config.train.head, sizes.pairs, sizes)
        base = _scoring(model, "cosine", sizes.pairs, sizes)
        works += [
            model.work("baselines", "embedding", *base),
            model.work("evaluate", "embedding", *searched),
        ]
    return works


def _scoring(
    model: WeightlessModel, head: str, pairs: int, sizes: _Sizes
) -> tuple[float, np.ndarray]:
    """Tokens and FLOPs of scoring pairs; a cosine reads their paths alone, few being questions."""
    length = _text_length(head, sizes)
    return pairs * length, pairs * model.text_flops([length])


def _text_length(head: str, sizes: _Sizes) -> float:
    """Mean tokens of the text that a pair is scored by."""
    return sizes.path if head == "cosine" else sizes.path + sizes.question
