"""A dense retriever: turns texts into vectors; saves itself for sentence-transformers."""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from ark_jax import layout
from ark_jax.models import decoder, families, hf
from ark_jax.models import model_card as cards
from ark_jax.models import sentence_folder as files
from ark_jax.models.batching import Batching, little_padding, one_ahead
from ark_jax.models.pooling import TOKENS, VectorForm, embed
from ark_jax.runtime import distributed
from ark_jax.runtime.log import Progress, say
from ark_jax.runtime.shown import one_line
from ark_jax.text import tokens as tk
from ark_jax.text.token_rows import TokenIds, TokenRows, check_list, text_blocks
from ark_jax.text.token_vectors import Vectors

_embed_jit = functools.partial(jax.jit, static_argnums=(1, 2, 3))(embed)


@dataclasses.dataclass
class Retriever:
    """A model with everything that decides the vector of a text."""

    model: Any
    cfg: Any
    tokenizer: Any
    base: Path  # where the model was read from: gives an export its names, types and tokenizer
    # Tensors of the checkpoint that the model does not compute with, kept for `save_pretrained`.
    extra_tensors: dict[str, np.ndarray]
    form: VectorForm  # how hidden states become a vector
    prompts: dict[str, str]  # kind of text -> the text put in front of it
    max_length: int  # tokens that a text is truncated to
    lower: bool  # texts are converted to lower case before they are tokenised
    default_prompt: str | None = None  # name of the prompt of `SentenceTransformer.encode`
    # Label of a `tokenize` call -> number of its texts that were truncated.
    truncated: dict[str, int] = dataclasses.field(default_factory=dict)
    __repr__ = one_line("base", "width", "pooling", "max_length")

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path,
        *,
        dtype: str = "float32",
        compute: str = "float32",
        attention: str = "auto",
        width: int | None = None,
        prompts: Mapping[str, str] | None = None,
    ) -> "Retriever":
        """Opens a sentence-transformers folder, a bare Hugging Face folder or a hub name.

        Args:
            dtype: type of the parameters.
            compute: type of the activations.
            attention: kernel, one of `kernels.KERNELS`.
            width: number of leading components to keep; None keeps what the folder declares.
            prompts: kind of text -> the text put in front of it, beside the folder's own.

        Raises:
            ValueError: a module, pooling or architecture is not implemented; the message names it.
        """
        layout.enter_mesh()
        folder = hf.resolve(str(name_or_folder))
        return cls.from_files(
            files.read_model(folder),
            dtype=dtype,
            compute=compute,
            attention=attention,
            width=width,
            prompts=prompts,
        )

    @classmethod
    def from_files(
        cls,
        model_files: files.ModelFiles,
        *,
        width: int | None = None,
        prompts: Mapping[str, str] | None = None,
        **options: str,
    ) -> "Retriever":
        """Opens one model of a folder; see `from_pretrained`."""
        folder, settings = model_files.folder, model_files.settings
        model, cfg, extra_tensors = hf.load_model(str(folder), head=False, **options)
        poolings = cls._choose_poolings(model_files.poolings, folder)
        of_tokens, size = poolings == (TOKENS,), len(poolings) * cfg.width
        # An ordinary model's Dense is for the vectors of texts.
        modules = model_files.dense if poolings == model_files.poolings or not of_tokens else ()
        for module, _, has_residual in modules:
            layer = files.read_dense(module, size, cfg.dtype, has_residual=has_residual)
            size = layer.dense_weight[...].shape[0]
            model.dense = nnx.List([*getattr(model, "dense", ()), layer])
        width = (settings.width or size) if width is None else width
        if not 0 < width <= size:
            raise ValueError(
                f"{folder}: width {width}, but the model has {size} components; give 1 to {size}"
            )
        form = VectorForm(
            poolings,
            width,
            tuple(activation for _, activation, _ in modules),
            tuple(x for *_, x in modules) if any(x for *_, x in modules) else (),
            model_files.normalised,
            "cosine" if of_tokens else settings.similarity,
            model_files.include_prompt,
        )
        tokenizer = tk.load_tokenizer(str(folder), cfg.vocab)
        if not any((prompts := {**settings.prompts, **(prompts or {})}).values()):
            families.propose(cards.hub_name(folder) or folder.name)
        return cls(
            model,
            cfg,
            tokenizer,
            folder,
            extra_tensors,
            form,
            prompts,
            files.read_max_length(folder, tokenizer),
            files.read_text_limit(folder)[1],
            settings.default_prompt,
        )

    @classmethod
    def _choose_poolings(cls, declared: tuple[str, ...] | None, folder: Path) -> tuple[str, ...]:
        """The declared poolings, or those of the model's family if `declared` is None.

        Raises:
            ValueError: the folder declares a vector for each token.
        """
        if declared == (TOKENS,):
            raise ValueError(
                f"{folder}: the model keeps a vector for each token; open it with "
                "ark_jax.MultiVectorRetriever, search with it by `ark-jax index`, tune it by "
                "config.retriever.vectors=tokens in a run of ARK"
            )
        return declared or (_family_pooling(folder),)

    @property
    def onnx_digest(self) -> str:
        """The sha256 of the ONNX file that computes vectors other than the weights'; else empty."""
        return ""

    @property
    def pooling(self) -> str:
        """The poolings as one word: "mean", "cls+mean"; "none" if each token keeps its vector."""
        return self.form.pooling

    @property
    def width(self) -> int:
        """The components of a vector."""
        return self.form.width

    @property
    def size(self) -> int:
        """The components of a vector before it is narrowed to `width`."""
        if self.form.activations:
            return self.model.dense[-1].dense_weight[...].shape[0]
        return len(self.form.poolings) * self.cfg.width

    def form_of(self, kind: str) -> VectorForm:
        """The form of vectors of a kind of text, which leaves out its prompt if it must."""
        prompt = self._prompt(kind)
        if self.form.include_prompt or not prompt:
            return self.form
        ids = self.tokenizer(prompt.lower() if self.lower else prompt)["input_ids"]
        ends = ids[-1] in self.tokenizer.all_special_ids  # counted as sentence-transformers does
        return dataclasses.replace(self.form, skipped=len(ids) - ends)

    def tokenize(self, texts: Sequence[str], *, kind: str, label: str = "") -> TokenRows:
        """Token ids of texts, with the prompt of their kind and the tokenizer's special tokens.

        Blanks around a text are kept, as in sentence-transformers 6; version 5 drops them. Texts
        that are longer than the model reads are truncated. If there are several processes, each
        must call this and tokenises its share.

        Args:
            kind: "query" or "document".
            label: name of the line that reports truncated texts; without it none is shown.
        """
        if kind not in ("query", "document"):
            raise ValueError(f"kind={kind!r}: must be 'query' or 'document'")
        check_list("texts", texts)
        prompt, room, truncated_count = self._prompt(kind), self._room(kind), 0

        def encode(share: Sequence[str]) -> Iterator[list[int]]:
            """The token ids of each text; counts the truncated texts."""
            nonlocal truncated_count
            for block in text_blocks(share):
                prompted = [prompt + text for text in block]
                prompted = [text.lower() for text in prompted] if self.lower else prompted
                for encoding in tk.truncated(self.tokenizer, prompted, room):
                    truncated_count += bool(encoding.overflowing)
                    yield self._complete(encoding.ids, kind)

        rows = TokenRows.from_shares(encode, texts)
        self.truncated[label] = count = distributed.sum_of_processes(truncated_count)
        if label and count:
            say(
                f"  {label}: {count:,} of {len(rows):,} texts are longer than {room} "
                "tokens and are cut there"
            )
        return rows

    def _room(self, kind: str) -> int:
        """The most tokens of a text of this kind, prompt and special tokens included."""
        return self.max_length

    def _complete(self, ids: list[int], kind: str) -> list[int]:
        """A text's tokens with what the tokenizer does not add."""
        return ids

    def _prompt(self, kind: str) -> str:
        """What is put in front of a text of this kind."""
        return files.prompt_for_kind(self.prompts, kind)

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: str,
        batch_tokens: int = 0,
        label: str = "",
        batching: Batching | None = None,
    ) -> np.ndarray:
        """Vectors of texts, float32 `[n e]`, in the order of `texts`.

        Their inner products are the model's similarities: for cosines they have unit length, and
        equal `encode_query` and `encode_document` of sentence-transformers with
        normalize_embeddings=True. Those of a model of dot products are as its modules give them.

        Args:
            kind: "query" or "document"; decides the prompt.
            batch_tokens: tokens of a batch on each device, which bounds memory; 0 suits the device.
            label: name of the progress line and of the line that reports truncated texts; without
                it none is shown.
            batching: cuts texts into batches; None: `batching.little_padding`.

        Raises:
            FloatingPointError: a vector holds NaN or infinity.
        """
        check_list("texts", texts)
        batches = self.encode_batches(
            texts, kind=kind, batch_tokens=batch_tokens, label=label, batching=batching
        )
        return self._restore_order(batches, len(texts))

    def encode_batches(
        self,
        texts: Sequence[str],
        *,
        kind: str,
        batch_tokens: int = 0,
        label: str = "",
        batching: Batching | None = None,
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """Vectors of texts, batch by batch, so that memory need not hold them all; see `encode`.

        Args:
            kind, batch_tokens, label, batching: as in `encode`.

        Yields:
            The numbers of the texts of a batch, and their vectors, float32 `[b e]`. Every process
            gets all batches.

        Raises:
            FloatingPointError: as `encode`.
        """
        layout.enter_mesh_of(self.model)
        ids = self.tokenize(texts, kind=kind, label=label)
        batching = batching or little_padding(self.model, self.cfg, batch_tokens)
        with Progress(
            label or "embed", len(ids), "texts", interval=10 if label else float("inf")
        ) as bar:
            for numbers, vectors in self._embed_batches(ids, batching, self.form_of(kind)):
                check_vectors(vectors, numbers, ids, texts, kind)
                bar.add(len(numbers))
                yield numbers, vectors

    def encode_tokens(
        self, ids: Sequence[TokenIds], batching: Batching, form: VectorForm
    ) -> Vectors:
        """Vectors of tokenised texts, float32 `[n e]`, in the order of `ids`; none is checked.

        Args:
            form: of their kind; `form.raw` scales no vector to unit length.
        """
        return self._restore_order(self._embed_batches(ids, batching, form), len(ids))

    def _restore_order(self, batches: Iterable[tuple[list[int], Any]], count: int) -> Any:
        """The vectors of `count` texts, `[n e]`, in the order of the texts.

        Args:
            batches: the numbers of the texts of each batch, and their vectors.
        """
        out = np.zeros((count, self.width), np.float32)
        for numbers, vectors in batches:
            out[numbers] = vectors
        return out

    def _embed_batches(
        self, ids: Sequence[TokenIds], batching: Batching, form: VectorForm
    ) -> Iterator[tuple[list[int], Any]]:
        """The numbers of the texts of each batch, and their vectors `[b e]`."""
        batches = batching(list(map(len, ids)))
        started = ((batch, self._start_embedding(batch, ids, form)) for batch in batches)
        for batch, vectors in one_ahead(started):
            numbers = list(itertools.chain(*batch.texts_by_device))
            yield numbers, layout.fetch(vectors)[batch.row_numbers()]

    def _start_embedding(
        self, batch: tk.TextBatch, ids: Sequence[TokenIds], form: VectorForm
    ) -> jax.Array:
        """The vectors `[b e]` of a batch's rows. The device computes them in the background."""
        arrays = map(layout.rows, batch.arrays(ids))
        return _embed_jit(self.model, self.cfg, form, batch.room, *arrays)

    def digest(self, kind: str) -> str:
        """The sha256 of all that decides the vectors of a kind of text: weights, tokenizer, prompt.

        Every process must call this, since arrays are gathered.
        """
        form, prompt = self.form_of(kind), self._prompt(kind)
        settings: tuple = (form.pooling, prompt, self._room(kind), form.width, self.lower)
        if form != VectorForm(form.poolings, form.width, normalised=form.normalised):
            # The digests of ordinary models stay as they were.
            settings += (form, self._complete([], kind))
        if self.onnx_digest:
            settings += (self.onnx_digest,)
        digest = hashlib.sha256(repr((self.cfg, settings)).encode())
        tokenizer = json.loads(self.tokenizer.backend_tokenizer.to_str())
        # Each call of the tokenizer stores its own limit there.
        tokenizer |= {"truncation": None, "padding": None}
        digest.update(json.dumps(tokenizer).encode())
        for _, value in () if self.onnx_digest else hf.named_parameters(self.model):
            digest.update(np.ascontiguousarray(layout.fetch(value[...])).view(np.uint8).data)
        return digest.hexdigest()

    def save_pretrained(self, folder: str | Path, *, card: str = "", dtype: str = "") -> None:
        """Writes a folder for sentence-transformers, transformers and text-embeddings-inference.

        Weights keep the names and types of the base, and their bytes if they have not changed.
        Every process must call this; process 0 writes.

        Args:
            folder: a local folder, or one in a bucket (gs://).
            card: text of README.md; without it, one describes the folder.
            dtype: type of the weights; empty keeps the base's. A base in bfloat16 would round small
                updates away.

        Raises:
            ValueError: `folder` is the one the model was read from, whose files are still in use.
        """
        with hf.local_folder(folder) as local:
            self.save_model(local, dtype)
            if distributed.is_first_process():
                self._write_settings(local)
                (local / "README.md").write_text(card or self._card(local), encoding="utf-8")

    def save_model(self, folder: Path, dtype: str = "") -> None:
        """Writes the model and its tokenizer alone. Every process must call this."""
        hf.save_model(
            self.model,
            self.cfg,
            folder,
            base=self.base,
            extra_tensors=self.extra_tensors,
            dtype=dtype,
        )

    def _write_settings(self, folder: Path) -> None:
        """Writes the files that sentence-transformers reads beside those of the model."""
        files.write_modules(folder, self.form)
        self.write_vector_modules(folder)
        files.write_text_limit(folder, self.max_length, lower=self.lower)
        files.write_settings(folder, self.settings)

    def write_vector_modules(self, folder: Path, prefix: str = "") -> None:
        """Writes the folders of the modules after Transformer; see `sentence_folder`."""
        dense = getattr(self.model, "dense", ())
        files.write_vector_modules(folder, prefix, self.form, self.cfg.width, dense)

    @property
    def settings(self) -> files.Settings:
        """What config_sentence_transformers.json says of this retriever."""
        width = self.width if self.width != self.size else None
        return files.Settings(self.prompts, self.default_prompt, width, self.form.similarity)

    def _card(self, folder: Path) -> str:
        """The text of README.md for `folder`, whose other files are already written."""
        base = cards.hub_name(self.base)
        title = f"{base.rsplit('/', 1)[-1] or 'A retriever'}, saved by ark_jax"
        return cards.render_card(folder, title=title, base=base, about="")


def check_vectors(
    vectors: Iterable[np.ndarray],
    numbers: Sequence[int],
    ids: Sequence[TokenIds],
    texts: Sequence[str],
    kind: str,
) -> None:
    """Raises FloatingPointError if a vector is zero or not finite; the message names the text.

    Args:
        vectors: of the texts with these numbers, `[e]` or `[t e]` each.
        ids, texts: tokens and words of all texts.
        kind: what the texts are, for the message.
    """
    pairs = list(zip(numbers, vectors, strict=True))
    zero = [len(ids[i]) > 0 and not vector.any() for i, vector in pairs]
    not_finite = [not np.isfinite(vector).all() for _, vector in pairs]
    for wrong, fault in (
        (not_finite, f"holds NaN or infinity; {decoder.NOT_FINITE_CAUSE}"),
        (zero, "is zero, so it is like no other; weights are damaged: fetch the model again"),
    ):
        if any(wrong):
            number = min(itertools.compress(numbers, wrong))
            raise FloatingPointError(
                f"{kind} {number} ({texts[number][:40]!r}): its vector {fault}"
            )


def _family_pooling(folder: Path) -> str:
    """The pooling of a model whose folder declares none; reports a bare model in a line."""
    if not (folder / "modules.json").is_file():
        say(f"{folder.name}: no modules.json, a bare model; pooling is chosen by its family")
    settings = hf.read_config(folder)
    is_decoder = settings.get("model_type") in decoder.FAMILIES
    return "lasttoken" if is_decoder and settings.get("is_causal", True) else "mean"
