"""A late-interaction retriever: keeps a vector for each token, compared by MaxSim (ColBERT)."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ark_jax import layout
from ark_jax.models import decoder, hf
from ark_jax.models import sentence_folder as files
from ark_jax.models.batching import Batching, little_padding
from ark_jax.models.late_settings import COLBERT, ENCODER, LIMITS, METADATA, PLAIN, LateSettings
from ark_jax.models.onnx_retriever import OnnxRetriever
from ark_jax.models.pooling import TOKENS, VectorForm
from ark_jax.models.retriever import Retriever
from ark_jax.text.token_rows import TokenIds
from ark_jax.text.token_vectors import TokenVectors


@dataclasses.dataclass
class MultiVectorRetriever(Retriever):
    """A retriever whose texts have a unit vector for each token, special tokens included.

    `ark_jax.retrieval.late.maxsim` compares them. A question then finds rare names, which one
    vector of a whole passage hardly holds. A passage takes as many vectors as it has tokens. Any
    model that `Retriever` opens can be used, since only its pooling is left out; some are good
    without training. BGE-M3's tokens go through the layer that was trained for them. It saves
    itself for MultiVectorEncoder of sentence-transformers 6, or a ColBERT in its own layout.
    """

    late: LateSettings = PLAIN
    __repr__ = Retriever.__repr__

    @classmethod
    def from_files(cls, model_files: files.ModelFiles, **options: Any) -> "MultiVectorRetriever":
        """Opens one model of a folder; see `from_pretrained`."""
        late, head = model_files.late, model_files.folder / files.TOKEN_HEAD
        has_head = late is None and head.is_file()
        if has_head:
            dense = ((head, files.IDENTITY, False),)
            model_files = dataclasses.replace(model_files, poolings=(TOKENS,), dense=dense)
        retriever = super().from_files(model_files, **options)
        assert isinstance(retriever, MultiVectorRetriever)  # made by `cls`
        if has_head:  # all tokens but the first are compared
            first = retriever.tokenizer.cls_token
            late = dataclasses.replace(PLAIN, skiplist_words=(first,), skiplist_tasks=files.KINDS)
        if late is None or late == PLAIN:
            return retriever
        retriever._check_late_settings(late)
        longest = max(retriever.max_length, late.query_length)
        return dataclasses.replace(retriever, late=late, max_length=longest)

    def _check_late_settings(self, late: LateSettings) -> None:
        """Raises ValueError for a setting that this model cannot follow."""
        if isinstance(self.cfg, decoder.Config):
            message = "a decoder as ColBERT is not implemented; take an encoder"
            raise ValueError(f"{self.base}: {message}")
        names = {COLBERT: METADATA, ENCODER: LIMITS}
        path = self.base / names.get(late.layout, hf.SENTENCE_SETTINGS)
        positions, known = self.cfg.max_length, {"", *self.tokenizer.get_vocab()}
        token = "a token of tokenizer.json: another would have a random embedding"
        masks = self.tokenizer.mask_token_id is not None
        deberta = late.fills_unseen and self.cfg.distances == "states"
        for field, is_valid, admissible in (
            ("query_prefix", late.query_prefix in known, token),
            ("document_prefix", late.document_prefix in known, token),
            ("query_length", late.query_length <= positions, f"at most {positions}, the positions"),
            ("do_query_expansion", masks or not late.do_query_expansion, "false: no mask token"),
            ("attend_to_expansion_tokens", not deberta, "true: DeBERTa leaves out the others"),
        ):
            if not is_valid:
                raise hf.wrong_field(path, field, admissible, getattr(late, field))

    def form_of(self, kind: str) -> VectorForm:
        """The form of vectors of a kind of text."""
        form, late = super().form_of(kind), self.late
        if kind == "query" and late.fills_unseen:
            form = dataclasses.replace(form, filler=self.tokenizer.mask_token_id)
        if kind not in late.skiplist_tasks:
            return form
        known, words = self.tokenizer.get_vocab(), late.skiplist_words
        # As in the libraries, a word that is no token is the unknown one, or else is left out.
        words = tuple(x for x in words if x in known or late.layout != ENCODER)
        ids = self.tokenizer.convert_tokens_to_ids(list(words))
        return dataclasses.replace(form, dropped=tuple(sorted({*ids} - {None})))

    def _room(self, kind: str) -> int:
        marker, length = self.late.of_kind(kind)
        positions = self.max_length if not length else min(length, self.cfg.max_length)
        return positions - bool(marker)

    def _complete(self, ids: list[int], kind: str) -> list[int]:
        """A text's tokens, its marker behind the first, and a query's mask tokens at the end."""
        marker, length = self.late.of_kind(kind)
        if marker:
            ids = [*ids[:1], self.tokenizer.convert_tokens_to_ids(marker), *ids[1:]]
        if kind == "query" and self.late.do_query_expansion:
            ids = ids + [self.tokenizer.mask_token_id] * (length - len(ids))
        return ids

    def vector_offsets(self, texts: Sequence[str], *, kind: str) -> np.ndarray:
        """The first vector of each text among those of all, and their number, int64 `[n + 1]`."""
        rows, dropped = self.tokenize(texts, kind=kind), self.form_of(kind).dropped
        if not dropped:
            return rows.offsets
        counts = np.cumsum(np.isin(rows.values, dropped, invert=True))
        return np.concatenate([np.zeros(1, np.int64), counts])[rows.offsets]

    @classmethod
    def _choose_poolings(cls, declared: tuple[str, ...] | None, folder: Path) -> tuple[str, ...]:
        return (TOKENS,)

    def encode(  # type: ignore[override]  # vectors of tokens in place of one of a text
        self,
        texts: Sequence[str],
        *,
        kind: str,
        batch_tokens: int = 0,
        label: str = "",
        batching: Batching | None = None,
    ) -> TokenVectors:
        """Unit vectors of each text's tokens, float32; see `Retriever.encode`."""
        batches = self.encode_batches(
            texts, kind=kind, batch_tokens=batch_tokens, label=label, batching=batching
        )
        return self._restore_order(batches, len(texts))

    def _restore_order(self, batches: Iterable[tuple[list[int], Any]], count: int) -> TokenVectors:
        """The token vectors of `count` texts, in the order of the texts."""
        vectors: list[np.ndarray] = [np.zeros((0, self.width), np.float32)] * count
        for numbers, part in batches:
            for number, text in zip(numbers, part, strict=True):
                vectors[number] = text
        return TokenVectors.from_texts(vectors, self.width)

    def _embed_batches(
        self, ids: Sequence[TokenIds], batching: Batching, form: VectorForm
    ) -> Iterator[tuple[list[int], Any]]:
        """The numbers of the texts of each batch, and their vectors `[t e]` without padding."""
        for numbers, padded in super()._embed_batches(ids, batching, form):
            kept = (np.isin(ids[i], form.dropped, invert=True) for i in numbers)
            # Copies, so that the batch is freed.
            yield numbers, [row[: len(x)][x] for row, x in zip(padded, kept, strict=True)]

    def save_model(self, folder: Path, dtype: str = "") -> None:
        """Writes the model and its tokenizer alone. Every process must call this."""
        if self.late.layout == COLBERT:  # the projection is beside the encoder
            name = "linear.weight"
            weight = layout.fetch(self.model.dense[0].dense_weight[...])
            stored = weight.astype(dtype or hf.Checkpoint(self.base).dtype(name))
            self = dataclasses.replace(self, extra_tensors=self.extra_tensors | {name: stored})
        Retriever.save_model(self, folder, dtype)

    def _write_settings(self, folder: Path) -> None:
        """Writes the files that MultiVectorEncoder of sentence-transformers reads, or PyLate."""
        files.write_text_limit(folder, self.max_length, lower=self.lower, late=self.late)
        files.write_late_files(folder, self.base, self.settings, self.late, self.form)
        if self.late.layout != COLBERT:
            dense = getattr(self.model, "dense", ())
            files.write_vector_modules(folder, "", self.form, self.cfg.width, dense, self.late)


@dataclasses.dataclass(frozen=True)
class LexicalRetriever:
    """BGE-M3's lexical weights: each text has one for each of its tokens (Chen et al. 2024).

    `ark_jax.retrieval.bm25_index.count_weights` makes a searcher of them.
    """

    model: MultiVectorRetriever  # whose vectors of tokens are their weights, in one component

    @classmethod
    def from_pretrained(cls, name_or_folder: str | Path, **options: Any) -> "LexicalRetriever":
        """Opens a folder with the head of lexical weights; see `Retriever.from_pretrained`.

        Raises:
            FileNotFoundError: the folder has no such head.
        """
        folder = hf.resolve(str(name_or_folder))
        head = folder / files.LEXICAL_HEAD
        if not head.is_file():
            raise FileNotFoundError(f"{folder}: no {head.name}; give a folder of BGE-M3")
        layout.enter_mesh()
        dense = ((head, files.RELU, False),)
        model_files = files.read_model(folder)
        model_files = dataclasses.replace(model_files, poolings=(TOKENS,), dense=dense, late=PLAIN)
        return cls(MultiVectorRetriever.from_files(model_files, width=1, **options))

    def encode(self, texts: Sequence[str], *, kind: str, label: str = ""):
        """The largest weight of each token of each text, a `scipy.sparse.csr_array` `[n v]`.

        Special tokens have none. The inner product of two rows is how well they match.

        Args:
            kind: "query" or "document"; decides the prompt.
            label: name of the line that reports truncated texts; without it none is shown.

        Raises:
            FloatingPointError: a weight is NaN or infinite.
        """
        import scipy.sparse

        model, tokenizer = self.model, self.model.tokenizer
        layout.enter_mesh_of(model.model)
        rows = model.tokenize(texts, kind=kind, label=label)
        batching = little_padding(model.model, model.cfg, 0)
        vectors = model.encode_tokens(rows, batching, model.form.raw)
        assert isinstance(vectors, TokenVectors)
        weights = vectors.values[:, 0]
        if not np.isfinite(weights).all():
            raise FloatingPointError(f"a token's weight is not finite; {decoder.NOT_FINITE_CAUSE}")
        special = ("cls_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
        dropped = [*{getattr(tokenizer, name) for name in special} - {None}]
        kept = (weights > 0) & np.isin(rows.values, dropped, invert=True)
        shape = len(rows), model.cfg.vocab
        numbers = np.repeat(np.arange(len(rows)), np.diff(rows.offsets))
        keys, weights = (numbers * shape[1] + rows.values)[kept], weights[kept]
        order = np.lexsort((-weights, keys))
        keys, first = np.unique(keys[order], return_index=True)
        return scipy.sparse.csr_array((weights[order][first], np.divmod(keys, shape[1])), shape)


def open_retriever(name_or_folder: str | Path, *, engine: str = "jax", **options: Any) -> Retriever:
    """The retriever of a folder or hub name: a `MultiVectorRetriever` if the folder declares one.

    Args:
        engine: what computes: "jax", or one of `onnx_retriever.FILES`, without options.
        options: as in `Retriever.from_pretrained`.

    Raises:
        FileNotFoundError, ValueError: as `Retriever.from_pretrained`.
        RuntimeError: the engine is not installed.
    """
    folder = hf.resolve(str(name_or_folder))
    if engine != "jax":
        return OnnxRetriever.open(folder, engine)
    kind = MultiVectorRetriever if is_multi_vector(folder) else Retriever
    return kind.from_pretrained(folder, **options)


def is_multi_vector(folder: Path) -> bool:
    """Whether a model folder declares a vector for each token."""
    return files.read_model(folder).poolings == (TOKENS,)
