"""The models of a server, which embed and score in shapes that are compiled at its start."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ark_jax.models.multi_vector import MultiVectorRetriever
from ark_jax.models.pairs import CrossEncoder
from ark_jax.models.pooling import VectorForm
from ark_jax.models.retriever import Retriever, check_vectors
from ark_jax.models.sentence_folder import KINDS
from ark_jax.runtime.log import Progress
from ark_jax.serve.ladder import Ladder, Shape
from ark_jax.text import tokens as tk

BATCHES = 4  # full batches whose texts are sorted together
PAIRS = 32  # pairs that are scored at once


class TooLong(ValueError):
    """A text has more tokens than the model reads."""


@dataclasses.dataclass(frozen=True)
class Texts:
    """A request for vectors.

    Attributes:
        kind: "query" or "document".
        width: how many leading components of a vector are returned.
        cut: whether texts that are too long are cut; otherwise they are an error.
        unit: whether vectors get unit length; None: where the model compares by cosines.
    """

    texts: Sequence[str]
    kind: str
    width: int
    cut: bool
    unit: bool | None = None


@dataclasses.dataclass(frozen=True)
class Embedded:
    """The vector of a text, float32 `[e]`, or of its tokens `[t e]`, and its number of tokens."""

    vector: np.ndarray
    tokens: int


@dataclasses.dataclass(frozen=True)
class _TokenisedText:
    """A tokenised text."""

    ids: list[int]
    text: str
    width: int
    unit: bool
    form: VectorForm


class Embedder:
    """Embeds texts; a lane of `work.Work`, which describes its methods.

    Attributes:
        name: name of the model.
        width: components of a vector.
        of_tokens: whether each token has a vector.
        max_length: most tokens of a text.
    """

    def __init__(self, retriever: Retriever, name: str):
        self.name, self.retriever = name, retriever
        self.width, self.max_length = retriever.width, retriever.max_length
        self.is_cosine = retriever.form.similarity == "cosine"
        self.of_tokens = isinstance(retriever, MultiVectorRetriever)
        self.ladder = Ladder.for_model(retriever.model, retriever.cfg, retriever.max_length)
        self.room = BATCHES * self.ladder.tokens

    def warm_up(self) -> None:
        """Compiles the common shapes."""
        forms = dict.fromkeys(map(self._form, KINDS))

        def embed(shape: Shape, ids: list[list[int]]) -> None:
            for form in forms:
                self.retriever.encode_tokens(ids, _single_shape(shape), form)

        _compile_shapes("compile the retriever", self.ladder.common_shapes, embed)

    def _form(self, kind: str) -> VectorForm:
        """The form of vectors of a kind of text, before they get unit length."""
        form = self.retriever.form_of(kind)
        return form.raw if self.is_cosine else form

    def size(self, request: Texts) -> int:
        return len(request.texts)

    def prepare(self, request: Texts) -> list[_TokenisedText]:
        """The tokens of texts.

        Raises:
            TooLong: a text is too long, and may not be cut.
        """
        rows = self.retriever.tokenize(request.texts, kind=request.kind)
        _check_lengths(self.retriever.truncated[""], request.cut, self.max_length, "inputs")
        pairs = zip(rows, request.texts, strict=True)
        unit = self.is_cosine if request.unit is None else request.unit
        form = self._form(request.kind)
        return [_TokenisedText(ids, text, request.width, unit, form) for ids, text in pairs]

    def cost(self, item: _TokenisedText) -> int:
        return len(item.ids)

    def run(self, items: Sequence[_TokenisedText]) -> list[Embedded]:
        ids = [item.ids for item in items]
        vectors: list[np.ndarray] = [np.empty(0)] * len(ids)
        for form in dict.fromkeys(item.form for item in items):  # kinds of text may differ in it
            numbers = [i for i, item in enumerate(items) if item.form == form]
            chosen = [ids[i] for i in numbers]
            part = self.retriever.encode_tokens(chosen, self.ladder.batches, form)
            for i, vector in zip(numbers, part, strict=True):
                vectors[i] = vector
        check_vectors(vectors, range(len(ids)), ids, [item.text for item in items], "text")
        shortened = [vector[..., : item.width] for vector, item in zip(vectors, items, strict=True)]
        return [
            Embedded(_scale_to_unit(vector) if item.unit else vector, len(item.ids))
            for vector, item in zip(shortened, items, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """A request for the logits of a query with each of several texts; `cut` as in `Texts`."""

    query: str
    texts: Sequence[str]
    cut: bool


class Reranker:
    """Scores pairs of texts; a lane of `work.Work`, which describes its methods."""

    room = PAIRS

    def __init__(self, scorer: CrossEncoder, name: str):
        self.name, self.scorer = name, scorer
        self.ladder = Ladder.for_model(scorer.model, scorer.cfg.body, scorer.max_length)

    def warm_up(self) -> None:
        """Compiles the common shapes."""

        shortest = len(self.scorer.tokenize([("a", "b")]).ids[0])  # a prompt may be long

        def score(shape: Shape, ids: list[list[int]]) -> None:
            pairs = [("a", "b")] * min(len(ids), shape.room // shortest)
            self.scorer.score(pairs, batching=_single_shape(shape))

        shapes = [x for x in self.ladder.common_shapes if x.length >= shortest]
        _compile_shapes("compile the reranker", shapes, score)

    def size(self, request: Pairs) -> int:
        return len(request.texts)

    def prepare(self, request: Pairs) -> list[tuple[str, str]]:
        """The pairs of a request.

        Raises:
            TooLong: a pair is too long, and may not be cut.
        """
        pairs = [(request.query, text) for text in request.texts]
        if not request.cut:
            _check_lengths(self.scorer.tokenize(pairs).cut, False, self.scorer.max_length, "texts")
        return pairs

    def cost(self, item: tuple[str, str]) -> int:
        return 1

    def run(self, items: Sequence[tuple[str, str]]) -> list[float]:
        return self.scorer.score(items, batching=self.ladder.batches).tolist()


def _scale_to_unit(vector: np.ndarray) -> np.ndarray:
    """A vector `[e]`, or each of the vectors `[t e]`, with unit length."""
    axis = None if vector.ndim == 1 else -1
    norms = np.linalg.norm(vector, axis=axis, keepdims=axis is not None)
    # The bound keeps a vector of zeros, which an empty text may have.
    return vector / np.maximum(norms, np.float32(1e-12))


def model_name(model: str) -> str:
    """The name of a model for clients: its folder's name, or its hub name."""
    return Path(model).name if Path(model).is_absolute() else model


def _check_lengths(count: int, allowed: bool, limit: int, field: str) -> None:
    """Raises TooLong if `count` texts are longer than the limit and may not be cut."""
    if count and not allowed:
        raise TooLong(
            f"`{field}` must have at most {limit} tokens, and {count} of them have more; shorten "
            "them"
        )


def _single_shape(shape: Shape):
    """A `batching.Batching` that puts all texts into one batch of this shape."""
    return lambda lengths: [
        tk.TextBatch([list(range(len(lengths)))], shape.rows, shape.length, shape.room)
    ]


def _compile_shapes(label: str, shapes: Sequence[Shape], run) -> None:
    """Runs the model once in each shape, on texts of one token.

    Args:
        run: (shape, token ids of texts) -> None.
    """
    with Progress(label, len(shapes), "shapes") as bar:
        for shape in shapes:
            run(shape, list(itertools.repeat([0], min(shape.rows, 2))))
            bar.add()
