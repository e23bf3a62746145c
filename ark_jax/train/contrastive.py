"""Contrastive training of a retriever: a loss of pairs as an objective, and its batches."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ark_jax import layout
from ark_jax.models import lora
from ark_jax.models.pooling import VectorForm, embed
from ark_jax.models.retriever import Retriever
from ark_jax.runtime import distributed
from ark_jax.text.token_rows import RowsByKey, TokenIds
from ark_jax.train import batches, fit, flops, losses, memory
from ark_jax.train.batches import Example, NumberedExample
from ark_jax.train.config import ContrastiveConfig
from ark_jax.train.placement import TextGrid, encode_in_pieces

TokensById = Mapping[str, TokenIds]  # id of a text -> its token ids


def train(
    retriever: Retriever,
    examples: Sequence[Example],
    questions: Mapping[str, str],
    passages: Mapping[str, str],
    config: ContrastiveConfig,
    run: fit.Run,
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
    use_negatives: bool = True,
    loss: losses.Loss = losses.info_nce,
) -> fit.Trained:
    """Trains a copy of `retriever` on questions and their passages.

    Args:
        questions, passages: id -> text of all that the examples name. Each of several processes
            looks up its share.
        use_negatives: see `batches.pair_masks`.

    Raises:
        ValueError: a setting that cannot be, or no examples.
        FloatingPointError, preemption.Preempted, OSError: see `fit.train`.
    """
    _check_settings(config, epochs, retriever, examples, run.label)
    tokens = _tokenize(retriever, examples, questions, passages, use_negatives, run.label)
    trainable, frozen = lora.split_weights(
        retriever.model, retriever.cfg, retriever.base, config, seed
    )
    order = batches.shuffled_order(examples, epochs=epochs, seed=seed, by=config.order)
    batched = [[examples[i] for i in step] for step in batches.split_batches(order, config.batch)]
    adapter = 0 if frozen is None else trainable.entries
    maker = ContrastiveBatches.from_examples(
        batched,
        *tokens,
        config,
        use_negatives=use_negatives,
        count_flops=functools.partial(flops.training, retriever.cfg, adapter=adapter),
    )
    choice = memory.choose(
        retriever.cfg,
        config.remat,
        config.chunks,
        maker.texts_of_device,
        trained=memory.bytes_on_device(trainable),
        frozen=memory.bytes_on_device(frozen),
        moments=config.moments,
        most_pieces=maker.passages.rows // layout.batch_multiple(),
    )
    memory.say_choice(choice, run.label)
    maker = maker.in_pieces(choice.pieces)
    objective = ContrastiveObjective(
        dataclasses.replace(retriever.cfg, remat=choice.remat),
        (retriever.form_of("query"), retriever.form_of("document")),
        choice.pieces,
        maker.piece_tokens,
        config.temperature,
        tuple(config.matryoshka),
        loss,
    )
    trained = fit.train(
        objective,
        maker,
        config,
        run,
        trainable,
        frozen,
        steps=len(batched),
        learning_rate=learning_rate,
    )
    return trained._replace(model=dataclasses.replace(retriever, model=trained.model))


@dataclasses.dataclass(frozen=True)
class ContrastiveObjective:
    """The loss `losses.matryoshka` between the questions and all passages of a batch."""

    cfg: Any  # of the model
    forms: tuple[VectorForm, VectorForm]  # of the questions' vectors and of the passages'
    pieces: int  # that the passages are encoded in
    piece_tokens: tuple[int | None, int | None]  # of the questions' and the passages' `TextGrid`
    temperature: float
    matryoshka: tuple[int, ...]
    loss: losses.Loss = losses.info_nce

    def __call__(self, trainable: Any, frozen: Any, batch: Mapping) -> tuple[jax.Array, dict]:
        """The loss and `losses.mean_cosines`; see `fit.Objective`.

        Args:
            batch: `queries` and `passages`, each tokens and mask `[b t]`; `positive` and
            `negative`, `[b c]`, of `batches.pair_masks`.
        """
        model = fit.adapted_model(trainable, frozen)
        encode_queries, encode_passages = (
            functools.partial(embed, model, self.cfg, form, tokens)
            for form, tokens in zip(self.forms, self.piece_tokens, strict=True)
        )
        compared = (
            encode_queries(*batch["queries"]),
            encode_in_pieces(encode_passages, self.pieces)(*batch["passages"]),
            batch["positive"],
            batch["negative"],
        )
        is_cosine = self.forms[0].similarity == "cosine"  # vectors then have unit length
        loss = losses.matryoshka(
            *compared,
            widths=self.matryoshka,
            scaled=is_cosine,
            temperature=self.temperature,
            loss=self.loss,
        )
        if not is_cosine:
            compared = (*map(losses.unit, compared[:2]), *compared[2:])
        return loss, losses.mean_cosines(*compared)


@dataclasses.dataclass(frozen=True)
class ContrastiveBatches:
    """Makes the batches of a run: tokens of questions and passages, masks of their pairs."""

    examples: Sequence[Sequence[NumberedExample]]  # of each step
    chunks: Sequence[str]  # ids of all passages, sorted
    question_tokens: TokensById
    passage_tokens: TokensById
    questions: TextGrid
    passages: TextGrid
    denominator: str  # of `batches.DENOMINATORS`
    use_negatives: bool
    count_flops: Callable[[Sequence[int]], float]  # tokens of each text of a batch -> FLOPs

    @classmethod
    def from_examples(
        cls,
        examples: Sequence[Sequence[Example]],
        question_tokens: TokensById,
        passage_tokens: TokensById,
        config: ContrastiveConfig,
        *,
        use_negatives: bool = True,
        count_flops: Callable[[Sequence[int]], float] = lambda lengths: 0.0,
    ) -> "ContrastiveBatches":
        """Finds the two shapes that hold every batch on the current mesh.

        Args:
            examples: of each step.
            question_tokens, passage_tokens: of all that the examples name.
        """
        # Each example occurs in every epoch, but is numbered once.
        distinct = list({id(x): x for x in itertools.chain(*examples)}.values())
        chunks = batches.distinct_chunks(distinct, use_negatives=use_negatives)
        numbered = batches.number_chunks(distinct, chunks, use_negatives=use_negatives)
        by_example = {id(x): numbers for x, numbers in zip(distinct, numbered, strict=True)}
        numbered_steps = [[by_example[id(x)] for x in step] for step in examples]
        return cls(
            numbered_steps,
            chunks,
            question_tokens,
            passage_tokens,
            TextGrid.from_lengths(
                [[len(question_tokens[x.question]) for x in step] for step in examples]
            ),
            TextGrid.from_lengths(
                _passage_lengths(numbered_steps, chunks, passage_tokens), config.chunks or 1
            ),
            config.denominator,
            use_negatives,
            count_flops,
        )

    def in_pieces(self, pieces: int) -> "ContrastiveBatches":
        """The same batches, with passages encoded in this many pieces."""
        if pieces == self.passages.pieces:
            return self
        lengths = _passage_lengths(self.examples, self.chunks, self.passage_tokens)
        return dataclasses.replace(self, passages=TextGrid.from_lengths(lengths, pieces))

    def texts_of_device(self, pieces: int) -> list[memory.Texts]:
        """What a device encodes at once: all questions, and one of this many pieces of passages."""
        grids = self.questions, self.in_pieces(pieces).passages
        return list(map(memory.Texts.from_grid, grids))

    @property
    def piece_tokens(self) -> tuple[int, int]:
        """Most tokens of a device's questions, and of its passages in one piece."""
        return self.questions.piece_tokens, self.passages.piece_tokens

    def __call__(self, step: int, trainable: Any = None) -> fit.TrainingBatch:
        """The batch after `step` steps; see `fit.MakeBatch`.

        A row without a text is no question's positive or negative.
        """
        examples = self.examples[step]
        numbers = batches.distinct_numbers(examples)
        questions = [self.question_tokens[x.question] for x in examples]
        chunks = [self.chunks[number] for number in numbers.tolist()]
        passages = [self.passage_tokens[chunk] for chunk in chunks]
        question_rows, queries = self.questions.place(questions)
        passage_rows, documents = self.passages.place(passages)

        def make_masks(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """The positive and negative masks of the chosen questions, `[n c]`."""
            return batches.pair_masks(
                [examples[i] for i in chosen],
                numbers,
                use_negatives=self.use_negatives,
                denominator=self.denominator,
                has_shares=len(examples[0].shares) > 0,
            )

        positive, negative = self.questions.place_pairs(
            self.passages, question_rows, passage_rows, make_masks
        )
        arrays = {
            "queries": queries,
            "passages": documents,
            "positive": positive,
            "negative": negative,
        }
        lengths = [*map(len, questions), *map(len, passages)]
        ids = {"questions": [x.question for x in examples], "chunks": chunks}
        return fit.TrainingBatch(arrays, ids, sum(lengths), self.count_flops(lengths))


def _passage_lengths(
    steps: Sequence[Sequence[NumberedExample]], chunks: Sequence[str], passage_tokens: TokensById
) -> list[list[int]]:
    """Tokens of each passage of each step."""
    lengths = np.array([len(passage_tokens[chunk]) for chunk in chunks])
    return [lengths[batches.distinct_numbers(step)].tolist() for step in steps]


def _check_settings(
    config: ContrastiveConfig,
    epochs: int,
    retriever: Retriever,
    examples: Sequence[Example],
    label: str,
) -> None:
    """Raises ValueError for a setting out of range, or if there are no examples."""
    for name, value, least in (
        ("epochs", epochs, 1),
        ("batch", config.batch, 1),
        ("chunks", config.chunks, 0),
        ("save_every", config.save_every, 1),
    ):
        if value < least:
            raise ValueError(f"config.train.{name}={value}: must be at least {least}")
    if not examples:
        raise ValueError(
            f"{label}: no question has a positive, so there is nothing to train on; "
            "see the counts of the stage positives"
        )
    for width in config.matryoshka:
        if not 0 < width < retriever.width:
            raise ValueError(
                f"config.train.matryoshka: width {width}, but vectors of this model have "
                f"{retriever.width} components, which are always trained; give smaller ones"
            )


def _tokenize(
    retriever: Retriever,
    examples: Sequence[Example],
    questions: Mapping[str, str],
    passages: Mapping[str, str],
    use_negatives: bool,
    label: str,
) -> tuple[TokensById, TokensById]:
    """Token ids of the questions, and of the passages, that the examples name."""

    def tokenize(
        texts: Mapping[str, str], names: Sequence[str], kind: str, name: str
    ) -> TokensById:
        """The token ids of the named texts, each text read only when it is tokenised."""
        lookup = distributed.LazySequence(texts.__getitem__, names)
        rows = retriever.tokenize(lookup, kind=kind, label=f"{label}, {name}")
        return RowsByKey(names, rows)

    chunks = batches.distinct_chunks(examples, use_negatives=use_negatives)
    return (
        tokenize(questions, [e.question for e in examples], "query", "questions"),
        tokenize(passages, chunks, "document", "chunks"),
    )
