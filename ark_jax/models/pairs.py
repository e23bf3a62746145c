"""A scorer of pairs of texts: cross-encoders, decoders that answer, the cosine of two texts."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import einops
import jax
import numpy as np
from flax import nnx

from ark_jax import layout
from ark_jax.models import decoder, hf, pair_folder, pair_heads, yes_no
from ark_jax.models import sentence_folder as files
from ark_jax.models.batching import Batching, little_padding, one_ahead
from ark_jax.models.language import LanguageModel
from ark_jax.models.pair_card import render_card
from ark_jax.models.pair_heads import HEADS, Capacities, PairConfig, PairModel, pair_logits
from ark_jax.models.pair_tokens import Pair, PairTokenizer, PairTokens, check_pairs
from ark_jax.models.pooling import TOKENS, VectorForm
from ark_jax.models.retriever import Retriever
from ark_jax.runtime import distributed
from ark_jax.runtime.log import Progress
from ark_jax.runtime.shown import one_line
from ark_jax.text import tokens as tk
from ark_jax.text.token_vectors import tokens_error

__all__ = ["HEADS", "Capacities", "CrossEncoder", "PairConfig", "PairModel", "pair_logits"]

_head_logits_jit = functools.partial(jax.jit, static_argnums=(1, 2))(pair_heads.head_logits)


@dataclasses.dataclass
class CrossEncoder:
    """A model with everything that decides the logit of a pair of texts."""

    model: PairModel
    cfg: PairConfig
    tokenizer: Any
    base: Path  # where the body was read from: gives an export its names, types and tokenizer
    # Tensors of the checkpoint that the model does not compute with, kept for `save_pretrained`.
    extra_tensors: dict[str, np.ndarray]
    # Of the cosine: kind of text -> the text put in front of it. Of ANSWER: "instruction" -> what a
    # document must do for its query.
    prompts: dict[str, str]
    max_length: int  # tokens that a pair is cut to, and a text of the cosine
    lower: bool  # texts are converted to lower case before they are tokenised
    __repr__ = one_line("base", "max_length")

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path,
        *,
        head: str | None = None,
        dtype: str = "float32",
        compute: str = "float32",
        attention: str = "auto",
    ) -> "CrossEncoder":
        """Opens a pair scorer, or gives an encoder a new head.

        Args:
            name_or_folder: a folder that `save_pretrained` wrote, a sequence classifier with one
                label, a decoder that answers yes or no, as Qwen3-Reranker does, a
                sentence-transformers folder or a bare encoder; or a hub name.
            head: "linear", "star" or "cosine"; see `pair_heads.HEADS`. None takes the
                folder's own. If the folder has another, the head is new.
            dtype: type of the parameters.
            compute: type of the activations.
            attention: kernel, one of `kernels.KERNELS`.

        Raises:
            FileNotFoundError: a file is missing; the message names it.
            ValueError: the folder has no head and none is named, its classifier has several
                labels, its architecture is not an encoder, or the decoder is no reranker.
        """
        if head is not None and head not in HEADS:
            raise ValueError(f"head={head!r}: must be one of {', '.join(HEADS)}")
        layout.enter_mesh()
        folder = hf.resolve(str(name_or_folder))
        options: dict[str, Any] = {"dtype": dtype, "compute": compute, "attention": attention}
        if settings := pair_folder.read_settings(folder):
            scorer = cls._from_own_folder(folder, settings, options)
        elif pair_folder.is_classifier(folder):
            scorer = cls._from_classifier(folder, options)
        elif head is None and pair_folder.is_decoder(folder):
            scorer = cls._from_decoder(folder, options)
        elif head is None:
            raise ValueError(
                f"{folder}: neither a saved pair scorer nor a sequence classifier; give "
                f"head=..., one of {', '.join(HEADS)}, to put a new head on it"
            )
        else:
            pair_folder.read_family(folder)
            scorer = cls.from_retriever(Retriever.from_pretrained(folder, **options))
        return scorer if head is None else scorer.with_head(head)

    @classmethod
    def from_retriever(
        cls, retriever: Retriever, *, scale: float = pair_heads.SCALE
    ) -> "CrossEncoder":
        """The cosine head on a retriever, whose vectors it compares.

        Raises:
            ValueError: the retriever is not an encoder, or keeps a vector for each token.
        """
        if retriever.pooling == TOKENS:
            raise tokens_error(str(retriever.base))
        if retriever.form.activations or not retriever.form.include_prompt:
            raise ValueError(
                f"{retriever.base}: a retriever with Dense modules or include_prompt=false cannot "
                "score pairs, which would leave them out; give another"
            )
        pair_folder.read_family(retriever.base)
        cfg = PairConfig(
            body=retriever.cfg,
            head="cosine",
            form=retriever.form,
            scale=scale,
            first=pair_folder.first_layer(retriever.base),
            typed=_reads_segments(retriever.cfg, retriever.tokenizer),
        )
        return cls(
            PairModel(retriever.model, None),
            cfg,
            retriever.tokenizer,
            retriever.base,
            retriever.extra_tensors,
            retriever.prompts,
            retriever.max_length,
            retriever.lower,
        )

    @classmethod
    def _from_own_folder(cls, folder: Path, settings: dict, options: dict) -> "CrossEncoder":
        """Opens a folder that `save_pretrained` wrote; `settings` are its pair_scorer.json."""
        body = Retriever.from_files(files.read_model(folder / "body"), **options)
        scorer = cls.from_retriever(body, scale=float(settings["scale"]))
        cfg = dataclasses.replace(scorer.cfg, head=settings["head"])
        if not cfg.reads_pairs:
            return scorer
        family = pair_folder.read_family(folder / "body")
        head, _ = pair_folder.read_head(hf.Checkpoint(folder / "head"), cfg, family)
        return dataclasses.replace(scorer, model=PairModel(body.model, head), cfg=cfg)

    @classmethod
    def _from_classifier(cls, folder: Path, options: dict) -> "CrossEncoder":
        """Opens a sequence classifier; `options` are those of `hf.read_architecture`."""
        pair_folder.read_family(folder)
        body, _, _ = hf.read_architecture(folder, **options)
        tokenizer = tk.load_tokenizer(str(folder), body.vocab)
        cfg = PairConfig(
            body=body,
            head="linear",
            form=VectorForm(("mean",), body.width),
            first=pair_folder.first_layer(folder),
            typed=_reads_segments(body, tokenizer),
        )
        model, extra_tensors = pair_folder.read_classifier(folder, cfg)
        limit, lower = files.read_max_length(folder, tokenizer), files.read_text_limit(folder)[1]
        return cls(model, cfg, tokenizer, folder, extra_tensors, {}, limit, lower)

    @classmethod
    def _from_decoder(cls, folder: Path, options: dict) -> "CrossEncoder":
        """Opens a decoder that answers yes or no; `options` are those of `LanguageModel`."""
        lm = LanguageModel.from_pretrained(folder, **options)
        answers, instruction = yes_no.read_answers(lm), yes_no.read_instruction(folder)
        yes_no.set_template(lm.tokenizer)
        form = VectorForm(("lasttoken",), lm.cfg.width)
        first = pair_heads.FirstLayer()
        cfg = PairConfig(lm.cfg, pair_heads.ANSWER, form, first, answers=answers)
        prompts = {"instruction": instruction} if instruction else {}
        limit, model = min(yes_no.MAX_LENGTH, lm.max_length), PairModel(lm.model, None)
        return cls(model, cfg, lm.tokenizer, folder, lm.extra_tensors, prompts, limit, False)

    def with_head(self, head: str, *, seed: int = 0) -> "CrossEncoder":
        """The same body with another head.

        Weights are shared with this scorer, which is returned as it is if it has that head. A new
        head is drawn by `seed`. A new linear head takes BERT's pooler from the checkpoint if that
        has one, as transformers does.
        """
        if head not in HEADS:
            raise ValueError(f"head={head!r}: must be one of {', '.join(HEADS)}")
        if head == self.cfg.head:
            return self
        cfg = dataclasses.replace(self.cfg, head=head)
        new = pair_heads.new_head(cfg, rngs=nnx.Rngs(seed))
        if isinstance(new, pair_heads.LinearHead):
            self._copy_pooler(new)
        return dataclasses.replace(self, model=PairModel(self.model.body, new), cfg=cfg)

    def _copy_pooler(self, head: pair_heads.LinearHead) -> None:
        """Sets the first layer of a new head to the checkpoint's pooler, if there is one."""
        table = pair_folder.head_table("linear", pair_folder.read_family(self.base))
        for name, _ in hf.named_parameters(head):
            row = table[name]
            tensor = self.extra_tensors.get(row.name)
            tensor = self.extra_tensors.get(row.name.removeprefix("bert."), tensor)
            if tensor is not None:
                value = einops.rearrange(tensor, row.letters).astype(self.cfg.dtype)
                spec = layout.weight_spec(row.letters.split("->")[1])
                setattr(head, name, nnx.Param(layout.put(value, spec)))

    @property
    def retriever(self) -> Retriever:
        """The body as a retriever, whose vectors the cosine head compares."""
        return Retriever(
            self.model.body,
            self.cfg.body,
            self.tokenizer,
            self.base,
            self.extra_tensors,
            self.cfg.form,
            self.prompts,
            self.max_length,
            self.lower,
        )

    @functools.cached_property
    def _lm(self) -> LanguageModel:
        """The body as a language model, of ANSWER."""
        parts = (self.cfg.body, self.tokenizer, self.base, self.max_length, (), self.extra_tensors)
        return LanguageModel(self.model.body, *parts)

    def tokenize(self, pairs: Sequence[Pair], *, label: str = "") -> PairTokens:
        """Token ids and segments of pairs, as the head reads them; see `PairTokenizer.tokenize`."""
        return self._pair_tokenizer.tokenize(pairs, label=label)

    @property
    def _pair_tokenizer(self) -> PairTokenizer | yes_no.PromptTokenizer:
        """Tokenises pairs for the head; only the star head has markers."""
        if self.cfg.head == pair_heads.ANSWER:
            instruction = self.prompts.get("instruction", "")
            return yes_no.PromptTokenizer(self._lm, instruction, self.max_length)
        markers = range(pair_heads.MARKERS) if self.cfg.head == "star" else ()
        ids = tuple(self.cfg.body.vocab + i for i in markers)
        return PairTokenizer(self.tokenizer, self.max_length, self.lower, ids)

    def score(
        self,
        pairs: Sequence[Pair],
        *,
        batch_tokens: int = 0,
        label: str = "",
        batching: Batching | None = None,
    ) -> np.ndarray:
        """The logits of pairs, float32 `[n]`, in the order of `pairs`.

        A higher logit is a better match; a sequence classifier's sigmoid is not applied.

        Args:
            pairs: the two texts that are compared: for retrieval, a query and a passage.
            batch_tokens: tokens of a batch on each device, which bounds memory; 0 suits the device.
            label: name of the progress line and of the line that reports cut pairs; without it
                none is shown.
            batching: cuts texts into batches; None: `batching.little_padding`.

        Raises:
            ValueError: `pairs` is not a list of pairs of texts.
            FloatingPointError: a logit is NaN or infinite.
        """
        check_pairs(pairs)
        batching = batching or little_padding(self.model, self.cfg.body, batch_tokens)
        logits = np.zeros(len(pairs), np.float32)
        if self.cfg.reads_pairs:
            logits += self._head_logits(pairs, batching, label)
        elif len(pairs):
            logits += self.cfg.scale * self._cosines(pairs, batching, label)
        if (wrong := np.flatnonzero(~np.isfinite(logits))).size:
            number = int(wrong[0])
            shown = tuple(text[:40] for text in pairs[number])
            raise FloatingPointError(
                f"pair {number} {shown}: its logit is NaN or infinite; {decoder.NOT_FINITE_CAUSE}"
            )
        return logits

    def _cosines(self, pairs: Sequence[Pair], batching: Batching, label: str) -> np.ndarray:
        """The cosine of each pair's texts, float32 `[n]`; equal texts are embedded once."""
        sides = []
        for side, kind in zip(zip(*pairs, strict=True), files.KINDS, strict=True):
            rows: dict[str, int] = {}
            index = [rows.setdefault(text, len(rows)) for text in side]
            vectors = self.retriever.encode(list(rows), kind=kind, batching=batching, label=label)
            sides.append(vectors[index])
        return np.einsum("be,be->b", *sides)

    def _head_logits(self, pairs: Sequence[Pair], batching: Batching, label: str) -> np.ndarray:
        """The head's logit of each pair, float32 `[n]`."""
        tokens = self.tokenize(pairs, label=label)
        out = np.zeros(len(tokens), np.float32)
        started = self._start_batches(tokens, batching)
        with Progress(
            label or "pairs", len(tokens), "pairs", interval=10 if label else float("inf")
        ) as bar:
            for batch, logits in one_ahead(started):
                numbers = list(itertools.chain(*batch.texts_by_device))
                out[numbers] = layout.fetch(logits)[batch.row_numbers()]
                bar.add(len(numbers))
        return out

    def _start_batches(
        self, tokens: PairTokens, batching: Batching
    ) -> Iterator[tuple[tk.TextBatch, jax.Array]]:
        """Batches, and the logits of their rows, which the device computes in the background."""
        for batch in batching([len(row) for row in tokens.ids]):
            ids, mask = batch.arrays(tokens.ids)
            segments, _ = batch.arrays(tokens.segments)
            arrays = map(layout.rows, (ids, mask, segments))
            yield batch, _head_logits_jit(self.model, self.cfg, batch.room, *arrays)

    def digest(self) -> str:
        """The sha256 of all that decides the logits: weights, tokenizer, prompts, settings.

        Every process must call this, since arrays are gathered.
        """
        settings = (self.cfg, self.prompts, self.tokenizer.chat_template)
        digest = hashlib.sha256(repr(settings).encode())
        for kind in files.KINDS:
            digest.update(self.retriever.digest(kind).encode())
        head = hf.named_parameters(self.model.head) if hasattr(self.model, "head") else []
        for _, value in head:
            digest.update(np.ascontiguousarray(layout.fetch(value[...])).view(np.uint8).data)
        return digest.hexdigest()

    def save_pretrained(self, folder: str | Path, *, card: str = "", dtype: str = "") -> None:
        """Writes a folder that `from_pretrained` opens.

        A linear head becomes a sequence classifier with one label, for transformers,
        sentence-transformers' CrossEncoder and text-embeddings-inference. A decoder becomes a
        causal language model whose chat template is the prompt, for the first two. Only ark_jax
        knows the other heads: sentence-transformers refuses their folder, but opens its folder
        `body`, which computes their cosine. Every process must call this; process 0 writes.

        Args:
            folder: a local folder, or one in a bucket (gs://).
            card: text of README.md; without it, one describes the folder.
            dtype: type of the weights; empty keeps the base's.

        Raises:
            ValueError: `folder` is the one the model was read from, whose files are still in use.
        """
        with hf.local_folder(folder) as local:
            if local.resolve() in (self.base.resolve(), self.base.resolve().parent):
                raise ValueError(f"{local} is the folder this model was read from; give another")
            forms = {"linear": self._save_classifier, pair_heads.ANSWER: self._save_decoder}
            forms.get(self.cfg.head, self._save_own_folder)(local, dtype)
            if distributed.is_first_process():
                text = card or render_card(self.base, self.cfg, self.max_length)
                (local / "README.md").write_text(text, encoding="utf-8")

    def _save_own_folder(self, folder: Path, dtype: str) -> None:
        """Writes body/, head/ and pair_scorer.json."""
        self.retriever.save_pretrained(folder / "body", dtype=dtype)
        if self.cfg.reads_pairs:
            table = pair_folder.head_table(self.cfg.head, pair_folder.read_family(self.base))
            tensors = hf.named_tensors(self.model.head, self.cfg, table)
            hf.write_tensors(tensors, folder / "head")
        if distributed.is_first_process():
            pair_folder.write_settings(folder, self.cfg)

    def _save_classifier(self, folder: Path, dtype: str) -> None:
        """Writes a sequence classifier with one label, and its limit of tokens."""
        family = pair_folder.read_family(self.base)
        _, _, table = hf.read_architecture(self.base)
        tensors = hf.named_tensors(self.model.body, self.cfg.body, table)
        head_table = pair_folder.head_table("linear", family)
        tensors |= hf.named_tensors(self.model.head, self.cfg, head_table)
        pair_folder.write_classifier(folder, self.base, tensors, self.extra_tensors, dtype)
        if distributed.is_first_process():
            files.write_text_limit(folder, self.max_length, lower=self.lower)
            pair_folder.write_tokenizer_fields(folder, model_max_length=self.max_length)

    def _save_decoder(self, folder: Path, dtype: str) -> None:
        """Writes a causal language model, and its prompt as chat template."""
        self._lm.save_pretrained(folder, dtype=dtype)
        if distributed.is_first_process():
            yes_no.write_settings(folder, self.base, self.tokenizer.chat_template)
            pair_folder.write_config(folder, hf.read_config(folder))


def _reads_segments(body, tokenizer) -> bool:
    """Whether the body reads the tokenizer's segment types."""
    return body.segments > 1 and "token_type_ids" in tokenizer.model_input_names
