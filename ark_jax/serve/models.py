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
CHARACTERS = 64  # of a text for each token that a model reads; the others are not looked at


class TooLong(ValueError):
    """A text has more tokens than the model reads, which are `limit`."""

    def __init__(self, limit: int):
        super().__init__(
            f"each text must have at most {limit:,} tokens, and one has more; shorten it, or let "
            "/embed or /rerank cut it with truncate: true"
        )


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
class _Text:
    """A text of a request."""

    text: str
    asked: Texts


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
        self.room, self.turn = BATCHES * self.ladder.tokens, self.ladder.turn

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

    def prepare(self, request: Texts) -> list[_Text]:
        """The texts of a request.

        Raises:
            TooLong: a text has too many characters, and may not be cut.
        """
        texts = _shorten(request.texts, self.max_length, request.cut)
        return [_Text(text, request) for text in texts]

    def cost(self, item: _Text) -> int:
        return _estimate_tokens(len(item.text), self.max_length)

    def run(self, items: Sequence[_Text]) -> list[Embedded | TooLong]:
        ids: list[list[int]] = [[]] * len(items)
        vectors: list[np.ndarray] = [np.empty(0)] * len(items)
        by_form: dict[VectorForm, list[int]] = {}  # kinds of text may differ in it
        for kind in dict.fromkeys(item.asked.kind for item in items):
            numbers = [i for i, item in enumerate(items) if item.asked.kind == kind]
            rows = self.retriever.tokenize([items[i].text for i in numbers], kind=kind)
            for i, row in zip(numbers, rows, strict=True):
                ids[i] = row
            by_form.setdefault(self._form(kind), []).extend(numbers)
        for form, numbers in by_form.items():
            chosen = [ids[i] for i in numbers]
            part = self.retriever.encode_tokens(chosen, self.ladder.batches, form)
            for i, vector in zip(numbers, part, strict=True):
                vectors[i] = vector
        check_vectors(vectors, range(len(ids)), ids, [item.text for item in items], "text")
        return list(map(self._finish, items, ids, vectors))

    def _finish(self, item: _Text, ids: list[int], vector: np.ndarray) -> Embedded | TooLong:
        """The vector as the request wants it, or that the text was cut and may not be."""
        if not item.asked.cut and len(ids) == self.max_length:
            self.retriever.tokenize([item.text], kind=item.asked.kind)
            if self.retriever.truncated[""]:
                return TooLong(self.max_length)
        vector = vector[..., : item.asked.width]
        unit = self.is_cosine if item.asked.unit is None else item.asked.unit
        return Embedded(_scale_to_unit(vector) if unit else vector, len(ids))


@dataclasses.dataclass(frozen=True)
class Pairs:
    """A request for the logits of a query with each of several texts; `cut` as in `Texts`."""

    query: str
    texts: Sequence[str]
    cut: bool


class Reranker:
    """Scores pairs of texts; a lane of `work.Work`, which describes its methods."""

    def __init__(self, scorer: CrossEncoder, name: str):
        self.name, self.scorer = name, scorer
        self.ladder = Ladder.for_model(scorer.model, scorer.cfg.body, scorer.max_length)
        self.room, self.turn = BATCHES * self.ladder.tokens, self.ladder.turn

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

    def prepare(self, request: Pairs) -> list[tuple[str, str, bool]]:
        """The pairs of a request, and whether they may be cut.

        Raises:
            TooLong: a text has too many characters, and may not be cut.
        """
        limit = self.scorer.max_length
        query, *texts = _shorten([request.query, *request.texts], limit, request.cut)
        return [(query, text, request.cut) for text in texts]

    def cost(self, item: tuple[str, str, bool]) -> int:
        return _estimate_tokens(len(item[0]) + len(item[1]), self.scorer.max_length)

    def run(self, items: Sequence[tuple[str, str, bool]]) -> list[float | TooLong]:
        pairs, limit = [item[:2] for item in items], self.scorer.max_length
        logits = self.scorer.score(pairs, batching=self.ladder.batches).tolist()
        whole = [i for i, (*_, cut) in enumerate(items) if not cut]
        if whole and self.scorer.tokenize([pairs[i] for i in whole]).cut:
            for i in whole:
                logits[i] = TooLong(limit) if self.scorer.tokenize([pairs[i]]).cut else logits[i]
        return logits


def _scale_to_unit(vector: np.ndarray) -> np.ndarray:
    """A vector `[e]`, or each of the vectors `[t e]`, with unit length."""
    axis = None if vector.ndim == 1 else -1
    norms = np.linalg.norm(vector, axis=axis, keepdims=axis is not None)
    # The bound keeps a vector of zeros, which an empty text may have.
    return vector / np.maximum(norms, np.float32(1e-12))


def model_name(model: str) -> str:
    """The name of a model for clients: its folder's name, or its hub name."""
    return Path(model).name if Path(model).is_absolute() else model


def _shorten(texts: Sequence[str], limit: int, allowed: bool) -> list[str]:
    """Texts without the characters that a model of `limit` tokens does not reach.

    Raises:
        TooLong: a text has more characters, and may not be cut.
    """
    if not allowed and any(len(text) > CHARACTERS * limit for text in texts):
        raise TooLong(limit)
    return [text[: CHARACTERS * limit] for text in texts]


def _estimate_tokens(characters: int, limit: int) -> int:
    """The tokens that a model probably reads of a text, at most `limit`."""
    return min(limit, characters // 4 + 2)


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
