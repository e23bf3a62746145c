"""A dense retriever: turns texts into unit vectors; saves itself for sentence-transformers."""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ark_jax import layout
from ark_jax.models import decoder, hf
from ark_jax.models import model_card as cards
from ark_jax.models import sentence_folder as files
from ark_jax.models.batching import Batching, little_padding, one_ahead
from ark_jax.runtime import distributed
from ark_jax.runtime.log import Progress, say
from ark_jax.text import tokens as tk
from ark_jax.text.token_rows import TokenIds, TokenRows, text_blocks
from ark_jax.text.token_vectors import Vectors


def pool(
    hidden: Float[Array, "b t d"], mask: Bool[Array, "b t"], pooling: str
) -> Float[Array, "b *t d"]:
    """One float32 vector for each text: the mean over its tokens, its first, or its last token.

    With the pooling "none" each token keeps its own vector, and padding gets zeros. Only the mask
    marks padding, since a pad token may occur in a text.
    """
    if pooling == "none":
        return jnp.where(mask[:, :, None], hidden, 0).astype(jnp.float32)
    if pooling == "cls":
        return hidden[:, 0].astype(jnp.float32)
    if pooling == "lasttoken":
        # The last visible position, whichever side the padding is on.
        last = mask.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=-1)
        return layout.pick(hidden, last).astype(jnp.float32)
    weights = mask.astype(jnp.float32)
    total = jnp.einsum("btd,bt->bd", hidden.astype(jnp.float32), weights)
    return total / jnp.maximum(weights.sum(-1, keepdims=True), 1e-9)


def pooled_vectors(
    model,
    cfg,
    pooling: str,
    width: int,
    capacity: int | None,
    tokens: Int[Array, "b t"],
    mask: Bool[Array, "b t"],
) -> Float[Array, "b *t e"]:
    """Vectors of tokenised texts, float32, not normalised.

    Args:
        width: number of leading components to keep (Matryoshka).
        capacity: an upper bound on the visible tokens of a device. With it, the layers skip
            padding; None computes padding too.
    """
    return pool(model(tokens, mask, cfg, capacity), mask, pooling)[..., :width]


def embed(
    model,
    cfg,
    pooling: str,
    width: int,
    capacity: int | None,
    tokens: Int[Array, "b t"],
    mask: Bool[Array, "b t"],
) -> Float[Array, "b *t e"]:
    """Unit vectors of tokenised texts, float32; see `pooled_vectors`."""
    x = pooled_vectors(model, cfg, pooling, width, capacity, tokens, mask)
    # The bound makes the gradient of an empty row zero; that of its norm would be NaN.
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))


_embed_jit = functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))(embed)
_pooled_jit = functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))(pooled_vectors)


@dataclasses.dataclass
class Retriever:
    """A model with everything that decides the vector of a text."""

    model: Any
    cfg: Any
    tokenizer: Any
    base: Path  # where the model was read from: gives an export its names, types and tokenizer
    # Tensors of the checkpoint that the model does not compute with, kept for `save_pretrained`.
    extra_tensors: dict[str, np.ndarray]
    pooling: str
    prompts: dict[str, str]  # kind of text -> the text put in front of it
    max_length: int  # tokens that a text is truncated to
    width: int  # leading components of a vector that are kept
    lower: bool  # texts are converted to lower case before they are tokenised
    # Label of a `tokenize` call -> number of its texts that were truncated.
    truncated: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path,
        *,
        dtype: str = "float32",
        compute: str = "float32",
        attention: str = "auto",
        width: int | None = None,
    ) -> "Retriever":
        """Opens a sentence-transformers folder, a bare Hugging Face folder or a hub name.

        Args:
            dtype: type of the parameters.
            compute: type of the activations.
            attention: kernel, one of `kernels.KERNELS`.
            width: number of leading components to keep; None keeps what the folder declares.

        Raises:
            ValueError: a module, pooling or architecture is not implemented; the message names it.
        """
        layout.enter_mesh()
        folder = hf.resolve(str(name_or_folder))
        return cls.from_files(
            files.read_model(folder), dtype=dtype, compute=compute, attention=attention, width=width
        )

    @classmethod
    def from_files(
        cls,
        model_files: files.ModelFiles,
        *,
        dtype: str = "float32",
        compute: str = "float32",
        attention: str = "auto",
        width: int | None = None,
    ) -> "Retriever":
        """Opens one model of a folder; see `from_pretrained`."""
        folder = model_files.folder
        model, cfg, extra_tensors = hf.load_model(
            str(folder), dtype=dtype, compute=compute, attention=attention, head=False
        )
        pooling = cls._choose_pooling(model_files.pooling, cfg, folder)
        width = (model_files.width or cfg.width) if width is None else width
        if not 0 < width <= cfg.width:
            raise ValueError(
                f"{folder}: width {width}, but the model has {cfg.width} components; give 1 to "
                f"{cfg.width}"
            )
        tokenizer = tk.load_tokenizer(str(folder), cfg.vocab)
        return cls(
            model,
            cfg,
            tokenizer,
            folder,
            extra_tensors,
            pooling,
            model_files.prompts,
            files.read_max_length(folder, tokenizer),
            width,
            files.read_text_limit(folder)[1],
        )

    @classmethod
    def _choose_pooling(cls, declared: str | None, cfg: Any, folder: Path) -> str:
        """The declared pooling, or that of the model's family if `declared` is None.

        Raises:
            ValueError: the folder declares a vector for each token.
        """
        if declared == "none":
            raise ValueError(
                f"{folder}: the model keeps a vector for each token; open it with "
                "ark_jax.MultiVectorRetriever, search with it by `ark-jax index`, tune it by "
                "config.retriever.vectors=tokens in a run of ARK"
            )
        return declared or _family_pooling(cfg, folder)

    def tokenize(self, texts: Sequence[str], *, kind: str, label: str = "") -> TokenRows:
        """Token ids of texts, with the prompt of their kind and the tokenizer's special tokens.

        Blanks around a text are kept, as in sentence-transformers 6; version 5 drops them. Texts of
        more than `max_length` tokens are truncated. If there are several processes, each must call
        this and tokenises its share.

        Args:
            kind: "query" or "document".
            label: name of the line that reports truncated texts; without it none is shown.
        """
        if kind not in ("query", "document"):
            raise ValueError(f"kind={kind!r}: must be 'query' or 'document'")
        if isinstance(texts, str):
            raise ValueError(f"texts: {texts[:40]!r} is one text; give a list of them")
        prompt, truncated_count = self._prompt(kind), 0

        def encode(share: Sequence[str]) -> Iterator[list[int]]:
            """The token ids of each text; counts the truncated texts."""
            nonlocal truncated_count
            for block in text_blocks(share):
                prompted = [prompt + text for text in block]
                prompted = [text.lower() for text in prompted] if self.lower else prompted
                for encoding in tk.truncated(self.tokenizer, prompted, self.max_length):
                    truncated_count += bool(encoding.overflowing)
                    yield encoding.ids

        rows = TokenRows.from_shares(encode, texts)
        self.truncated[label] = count = distributed.sum_of_processes(truncated_count)
        if label and count:
            say(
                f"  {label}: {count:,} of {len(rows):,} texts are longer than {self.max_length} "
                "tokens and are cut there"
            )
        return rows

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
        """Unit vectors of texts, float32 `[n e]`, in the order of `texts`.

        Args:
            kind: "query" or "document"; decides the prompt.
            batch_tokens: tokens of a batch on each device, which bounds memory; 0 suits the device.
            label: name of the progress line and of the line that reports truncated texts; without
                it none is shown.
            batching: cuts texts into batches; None: `batching.little_padding`.

        Raises:
            FloatingPointError: a vector holds NaN or infinity.
        """
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
        """Unit vectors of texts, batch by batch, so that memory need not hold them all.

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
            for numbers, vectors in self._embed_batches(ids, batching, unit=True):
                check_vectors(vectors, numbers, ids, texts, kind)
                bar.add(len(numbers))
                yield numbers, vectors

    def encode_tokens(
        self, ids: Sequence[TokenIds], batching: Batching, *, unit: bool = True
    ) -> Vectors:
        """Vectors of tokenised texts, float32 `[n e]`, in the order of `ids`; none is checked.

        Args:
            unit: whether vectors are scaled to unit length.
        """
        return self._restore_order(self._embed_batches(ids, batching, unit), len(ids))

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
        self, ids: Sequence[TokenIds], batching: Batching, unit: bool
    ) -> Iterator[tuple[list[int], Any]]:
        """The numbers of the texts of each batch, and their vectors `[b e]`."""
        batches = batching(list(map(len, ids)))
        started = ((batch, self._start_embedding(batch, ids, unit)) for batch in batches)
        for batch, vectors in one_ahead(started):
            numbers = list(itertools.chain(*batch.texts_by_device))
            yield numbers, layout.fetch(vectors)[batch.row_numbers()]

    def _start_embedding(
        self, batch: tk.TextBatch, ids: Sequence[TokenIds], unit: bool
    ) -> jax.Array:
        """The vectors `[b e]` of a batch's rows. The device computes them in the background."""
        arrays = map(layout.rows, batch.arrays(ids))
        function = _embed_jit if unit else _pooled_jit
        return function(self.model, self.cfg, self.pooling, self.width, batch.room, *arrays)

    def digest(self, kind: str) -> str:
        """The sha256 of all that decides the vectors of a kind of text: weights, tokenizer, prompt.

        Every process must call this, since arrays are gathered.
        """
        settings = (self.pooling, self._prompt(kind), self.max_length, self.width, self.lower)
        digest = hashlib.sha256(repr((self.cfg, settings)).encode())
        tokenizer = json.loads(self.tokenizer.backend_tokenizer.to_str())
        # Each call of the tokenizer stores its own limit there.
        tokenizer |= {"truncation": None, "padding": None}
        digest.update(json.dumps(tokenizer).encode())
        for _, value in hf.named_parameters(self.model):
            digest.update(np.ascontiguousarray(layout.fetch(value[...])).view(np.uint8).data)
        return digest.hexdigest()

    def save_pretrained(self, folder: str | Path, *, card: str = "") -> None:
        """Writes a folder for sentence-transformers, transformers and text-embeddings-inference.

        Weights keep the names and types of the base, and their bytes if they have not changed.
        Every process must call this; process 0 writes.

        Args:
            folder: a local folder, or one in a bucket (gs://).
            card: text of README.md; without it, one describes the folder.

        Raises:
            ValueError: `folder` is the one the model was read from, whose files are still in use.
        """
        with hf.local_folder(folder) as local:
            self.save_model(local)
            if distributed.is_first_process():
                self._write_settings(local)
                (local / "README.md").write_text(card or self._card(local), encoding="utf-8")

    def save_model(self, folder: Path) -> None:
        """Writes the model and its tokenizer alone. Every process must call this."""
        hf.save_model(
            self.model, self.cfg, folder, base=self.base, extra_tensors=self.extra_tensors
        )

    def _write_settings(self, folder: Path) -> None:
        """Writes the files that sentence-transformers reads beside those of the model."""
        files.write_modules(folder)
        files.write_pooling(folder / "1_Pooling", self.pooling, self.cfg.width)
        (folder / "2_Normalize").mkdir(exist_ok=True)
        files.write_text_limit(folder, self.max_length, lower=self.lower)
        width = self.width if self.width != self.cfg.width else None
        files.write_prompts_and_width(folder, self.prompts, width)

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
    for wrong, what in (
        (not_finite, f"holds NaN or infinity; {decoder.NOT_FINITE_CAUSE}"),
        (zero, "is zero, so it is like no other; weights are damaged: fetch the model again"),
    ):
        if any(wrong):
            number = min(itertools.compress(numbers, wrong))
            raise FloatingPointError(f"{kind} {number} ({texts[number][:40]!r}): its vector {what}")


def _family_pooling(cfg, folder: Path) -> str:
    """The pooling of a model whose folder declares none; reports a bare model in a line."""
    if not (folder / "modules.json").is_file():
        say(f"{folder.name}: no modules.json, a bare model; pooling is chosen by its family")
    return "lasttoken" if isinstance(cfg, decoder.Config) else "mean"
