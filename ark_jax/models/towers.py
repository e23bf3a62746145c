"""Two towers: one retriever for questions beside one for documents, or the same for both."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ark_jax import layout
from ark_jax.models import hf
from ark_jax.models import model_card as cards
from ark_jax.models import sentence_folder as files
from ark_jax.models.retriever import Retriever
from ark_jax.runtime import distributed
from ark_jax.runtime.shown import one_line


@dataclasses.dataclass(frozen=True)
class DualEncoder:
    """The retriever of each kind of text; the same object if one model embeds both.

    Raises:
        ValueError: the towers' vectors differ in width or are compared otherwise.
    """

    query: Retriever
    document: Retriever
    __repr__ = one_line("query", "document")

    def __post_init__(self):
        if self.query.width != self.document.width:
            raise ValueError(
                f"the query tower ({self.query.base}) gives vectors of {self.query.width} "
                f"components, the document tower ({self.document.base}) of {self.document.width}; "
                f"give both the width {min(self.query.width, self.document.width)}, or other models"
            )
        if self.query.form.similarity != self.document.form.similarity:
            raise ValueError(
                f"the query tower ({self.query.base}) is compared by {self.query.form.similarity}, "
                f"the document tower ({self.document.base}) by {self.document.form.similarity}; "
                "give models that are compared alike"
            )

    @property
    def is_one(self) -> bool:
        """Whether one model embeds both kinds of texts."""
        return self.query is self.document

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path,
        *,
        dtype: str = "float32",
        compute: str = "float32",
        attention: str = "auto",
        width: int | None = None,
    ) -> "DualEncoder":
        """Opens a folder with a sentence-transformers Router, or an ordinary one as one tower.

        A Router whose two routes name the same model is one tower, too.

        Args:
            name_or_folder: a folder, one in a bucket, or a hub name; see `Retriever`.
            dtype: type of the parameters.
            compute: type of the activations.
            attention: kernel, one of `kernels.KERNELS`.
            width: number of leading components to keep; None keeps what the folder declares.

        Raises:
            FileNotFoundError: a file is missing; the message names it.
            ValueError: a module, route or pooling is not implemented, or the towers' widths differ.
        """
        layout.enter_mesh()
        options: dict[str, Any] = {
            "dtype": dtype,
            "compute": compute,
            "attention": attention,
            "width": width,
        }
        models = files.read_models(hf.resolve(str(name_or_folder)))
        query = Retriever.from_files(models["query"], **options)
        if models["document"] == models["query"]:
            return cls(query, query)
        return cls(query, Retriever.from_files(models["document"], **options))

    def tower(self, kind: str) -> Retriever:
        """The retriever of a kind of text: "query" or "document"."""
        if kind not in files.KINDS:
            raise ValueError(f"kind={kind!r}: must be 'query' or 'document'")
        return self.query if kind == "query" else self.document

    def encode(
        self, texts: Sequence[str], *, kind: str, batch_tokens: int = 0, label: str = ""
    ) -> np.ndarray:
        """Unit vectors of texts, float32 `[n e]`, by the tower of their kind.

        See `Retriever.encode`.
        """
        return self.tower(kind).encode(texts, kind=kind, batch_tokens=batch_tokens, label=label)

    def save_pretrained(self, folder: str | Path, *, card: str = "", dtype: str = "") -> None:
        """Writes a folder for sentence-transformers: with a Router, or ordinary for one tower.

        Weights keep the names and types of their base, and their bytes if they have not changed.
        Every process must call this; process 0 writes.

        Args:
            folder: a local folder, or one in a bucket (gs://).
            card: text of README.md; without it, one describes the folder.
            dtype: type of the weights; empty keeps the bases'.

        Raises:
            ValueError: a tower was read from `folder`, whose files are still in use.
        """
        if self.is_one:
            self.query.save_pretrained(folder, card=card, dtype=dtype)
            return
        with hf.local_folder(folder) as local:
            self._check_unused(local)
            for kind in files.KINDS:
                self.tower(kind).save_model(files.route_folder(local, kind), dtype)
            if distributed.is_first_process():
                self._write_settings(local)
                (local / "README.md").write_text(card or self._card(local), encoding="utf-8")

    def _check_unused(self, folder: Path) -> None:
        """Raises ValueError if a tower still reads files of `folder`."""
        for kind in files.KINDS:
            base = self.tower(kind).base.resolve()
            if folder.resolve() in (base, base.parent):
                raise ValueError(
                    f"{folder} is the folder the {kind} tower was read from; give another"
                )

    def _write_settings(self, folder: Path) -> None:
        """Writes the files that sentence-transformers reads beside those of the models."""
        files.write_router(folder, {kind: self.tower(kind).form for kind in files.KINDS})
        prompts = {}
        for kind in files.KINDS:
            tower = self.tower(kind)
            prompts[kind] = files.prompt_for_kind(tower.prompts, kind)
            model = files.route_folder(folder, kind)
            files.write_text_limit(model, tower.max_length, lower=tower.lower)
            tower.write_vector_modules(folder, f"{kind}_")
        is_cut = any(tower.width != tower.size for tower in (self.query, self.document))
        width = self.query.width if is_cut else None
        settings = files.Settings(prompts, None, width, self.query.form.similarity)
        files.write_settings(folder, settings)

    def _card(self, folder: Path) -> str:
        """The text of README.md for `folder`, whose other files are already written."""
        base = cards.hub_name(self.document.base)
        title = f"{base.rsplit('/', 1)[-1] or 'Two towers'}, saved by ark_jax"
        return cards.render_card(folder, title=title, base=base, about="")
