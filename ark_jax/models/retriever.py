"""Text to vectors: prompts, tokens, encoder or decoder, pooling, unit length; and back to a model folder."""

import dataclasses
import functools
import itertools
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ark_jax import bucket, hosts, layout
from ark_jax.log import Progress, primary, say
from ark_jax.models import card as cards
from ark_jax.models import decoder, hf, unpad
from ark_jax.text import tokens as tk

POOLINGS = ("mean", "cls", "lasttoken")
# The legacy names: what sentence-transformers of every version and text-embeddings-inference all read.
_POOLING_KEYS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens",
                 "max": "pooling_mode_max_tokens", "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
                 "weightedmean": "pooling_mode_weightedmean_tokens", "lasttoken": "pooling_mode_lasttoken"}
_MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json",
                    "merges.txt", "sentencepiece.bpe.model", "added_tokens.json", "chat_template.jinja")


def pool(x: Float[Array, "b t d"], mask: Bool[Array, "b t"], how: str) -> Float[Array, "b d"]:
    """One vector a text. Positions come from the mask alone, never from a search for the pad id."""
    if how == "cls":
        return x[:, 0].astype(jnp.float32)
    if how == "lasttoken":
        # The last visible position, wherever the padding stands.
        last = mask.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=-1)
        return layout.pick(x, last).astype(jnp.float32)
    weights = mask.astype(jnp.float32)
    total = jnp.einsum("btd,bt->bd", x.astype(jnp.float32), weights)
    return total / jnp.maximum(weights.sum(-1, keepdims=True), 1e-9)


def embed(model, cfg, pooling: str, width: int, room: int | None, tokens: Int[Array, "b t"],
          mask: Bool[Array, "b t"]) -> Float[Array, "b e"]:
    """Unit vectors of tokenised texts, float32; `width` keeps the first components (Matryoshka). `room` as in the models."""
    x = pool(model(tokens, mask, cfg, room), mask, pooling)[:, :width]
    # The gradient of a row without a token is zero; that of its length would be none.
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))


_embed = functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))(embed)


@dataclasses.dataclass
class Retriever:
    """A model and everything that decides the vector of a text."""

    model: Any
    cfg: Any
    tokenizer: Any
    base: Path  # the folder it was read from: names, types and tokenizer files of an export
    carried: dict[str, np.ndarray]
    pooling: str
    prompts: dict[str, str]
    max_length: int
    width: int
    lower: bool  # texts are lowered before the tokenizer sees them
    cuts: dict[str, int] = dataclasses.field(default_factory=dict)  # label of a call -> how many of its texts were cut

    @classmethod
    def from_pretrained(cls, name_or_folder: str, *, dtype: str = "float32", compute: str = "float32",
                        attention: str = "xla", width: int | None = None) -> "Retriever":
        """Opens a sentence-transformers or bare Hugging Face folder (or hub name).

        Raises:
            ValueError: a module, pooling or architecture that is not implemented, by name.
        """
        layout.enter_mesh()
        folder = hf.resolve(name_or_folder)
        model, cfg, carried = hf.load(str(folder), dtype=dtype, compute=compute, attention=attention, head=False)
        causal = isinstance(cfg, decoder.Config)
        pooling = _read_pooling(folder) or ("lasttoken" if causal else "mean")
        prompts, kept = _read_settings(folder)
        width = (kept or cfg.width) if width is None else width
        if not 0 < width <= cfg.width:
            raise ValueError(f"{folder}: width {width}, but the model has {cfg.width} components; give 1 to {cfg.width}")
        tokenizer = tk.load_tokenizer(str(folder), cfg.vocab)
        # Version 6 of sentence-transformers keeps the limit with the tokenizer.
        limit, lower = _read_limit(folder)
        positions = hf.read_config(folder).get("max_position_embeddings", 512) if causal else cfg.max_length
        return cls(model, cfg, tokenizer, folder, carried, pooling, prompts, min(limit or tokenizer.model_max_length, positions),
                   width, lower)

    def tokenize(self, texts: Sequence[str], *, kind: str, label: str = "") -> list[list[int]]:
        """Token ids with the prompt of `kind` in front and the special tokens of the tokenizer's post-processor.

        Texts are taken as they are, as by sentence-transformers 6; version 5 drops blanks at their ends. Those of more than
        `max_length` tokens are cut; with a `label` a line says how many. Of several processes, each of which must call it, every
        one tokenises its share.
        """
        if kind not in ("query", "document"):
            raise ValueError(f"kind={kind!r}: must be 'query' or 'document'")
        if isinstance(texts, str):
            raise ValueError(f"texts: {texts[:40]!r} is one text; give a list of them")
        prompt = self.prompts.get(kind, self.prompts.get("passage", "") if kind == "document" else "")

        def rows(some: Sequence[str]) -> list[np.ndarray]:
            """Whether a text is cut, then its ids."""
            some = [prompt + text for text in some]
            some = [text.lower() for text in some] if self.lower else some
            if not some:
                return []
            out = self.tokenizer(some, truncation=True, max_length=self.max_length, padding=False)
            return [np.array([bool(encoding.overflowing), *ids], np.int32)
                    for encoding, ids in zip(out.encodings, out["input_ids"], strict=True)]

        found = hosts.spread(rows, texts)
        cut = sum(int(row[0]) for row in found)
        self.cuts[label] = cut
        if label and cut:
            say(f"  {label}: {cut:,} of {len(found):,} texts are longer than {self.max_length} tokens and are cut there")
        return [row[1:].tolist() for row in found]

    def encode(self, texts: Sequence[str], *, kind: str, batch_tokens: int = 0, label: str = "") -> np.ndarray:
        """Unit vectors, float32 `[n e]`, in the order of `texts`.

        Args:
            kind: "query" or "document"; decides the prompt.
            batch_tokens: of a batch on each device, the bound on memory; 0: what suits the device.
            label: names the progress lines, and the one that says how many texts are cut; none are shown without it.
        """
        ids = self.tokenize(texts, kind=kind, label=label)
        out = np.zeros((len(ids), self.width), np.float32)
        batches = tk.in_streams([len(i) for i in ids], budget=batch_tokens or _batch_tokens(), devices=layout.batch_multiple(),
                                **unpad.price(self.model, self.cfg))
        started = ((batch, _embed(self.model, self.cfg, self.pooling, self.width, batch.room,
                                  *map(layout.rows, batch.arrays(ids)))) for batch in batches)
        with Progress(label or "embed", len(ids), "texts", interval=10 if label else float("inf")) as bar:
            # The device works on one batch while the host gets the next ready.
            for (done, vectors), _ in itertools.pairwise(itertools.chain(started, [None])):
                texts = list(itertools.chain(*done.devices))
                out[texts] = layout.fetch(vectors)[done.where()]
                bar.add(len(texts))
        return out

    def save_pretrained(self, folder: str | Path, *, card: str = "") -> None:
        """Writes the layout that sentence-transformers, transformers and text-embeddings-inference open.

        Weights keep the names, types and (if untouched) bytes of the base. `card` becomes README.md; without it one is made of
        what is known here. Every process must call it; process 0 writes. `folder` may lie in a bucket (gs://).

        Raises:
            ValueError: `folder` is the one the model was read from, whose files are still in use.
        """
        if "://" in str(folder):
            with tempfile.TemporaryDirectory() as local:
                self.save_pretrained(local, card=card)
                bucket.save(Path(local), str(folder))
            return
        folder = Path(folder)
        if folder.resolve() == self.base.resolve():
            raise ValueError(f"{folder} is the folder this model was read from; give another")
        if primary():
            folder.mkdir(parents=True, exist_ok=True)
        hf.export(self.model, self.cfg, folder, base=self.base, carried=self.carried)
        if not primary():
            return
        shutil.copyfile(self.base / "config.json", folder / "config.json")
        for name in _TOKENIZER_FILES:
            if (self.base / name).is_file():
                shutil.copyfile(self.base / name, folder / name)
        modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                   for i, (path, kind) in enumerate(_MODULES)]
        _write_json(folder / "modules.json", modules)
        pooling = {key: how == self.pooling for how, key in _POOLING_KEYS.items()}
        _write_json(folder / "1_Pooling" / "config.json",
                    {"word_embedding_dimension": self.cfg.width, **pooling, "include_prompt": True})
        (folder / "2_Normalize").mkdir(exist_ok=True)
        _write_json(folder / "sentence_bert_config.json", {"max_seq_length": self.max_length, "do_lower_case": self.lower})
        _write_json(folder / "config_sentence_transformers.json", {
            "prompts": self.prompts, "default_prompt_name": None, "similarity_fn_name": "cosine",
            **({"truncate_dim": self.width} if self.width != self.cfg.width else {})})
        base = cards.hub_name(self.base)
        title = f"{base.rsplit('/', 1)[-1] or 'A retriever'}, saved by ark_jax"
        (folder / "README.md").write_text(card or cards.text(folder, title=title, base=base, about=""), encoding="utf-8")


def _batch_tokens() -> int:
    """So few that a small model's activations stay in a CPU's cache, so many that an accelerator is filled."""
    return 1024 if jax.default_backend() == "cpu" else 16384


def _read_json(path: Path) -> dict:
    return hf.read_json(path) if path.is_file() else {}


def _read_settings(folder: Path) -> tuple[dict[str, str], int | None]:
    """Prompts and width of a sentence-transformers folder."""
    path = folder / "config_sentence_transformers.json"
    settings = _read_json(path)
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ValueError(f"{path}: prompts must map kinds to texts, it is {prompts!r}; mend the field")
    return prompts, settings.get("truncate_dim")


def _read_limit(folder: Path) -> tuple[int | None, bool]:
    """max_seq_length and do_lower_case of a sentence-transformers folder."""
    path = folder / "sentence_bert_config.json"
    settings = _read_json(path)
    limit = settings.get("max_seq_length")
    if limit is not None and not isinstance(limit, int):
        raise ValueError(f"{path}: max_seq_length must be a number of tokens, it is {limit!r}; mend the field")
    return limit, bool(settings.get("do_lower_case"))


def _write_json(path: Path, value) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_pooling(folder: Path) -> str | None:
    """The pooling a sentence-transformers folder declares; None for a bare model."""
    if not (folder / "modules.json").is_file():
        say(f"{folder.name}: no modules.json, a bare model; pooling is chosen by its family")
        return None
    pooling = None
    for module in hf.read_json(folder / "modules.json", list):
        if not isinstance(module, dict) or not {"type", "path"} <= set(module):
            raise ValueError(f"{folder}/modules.json: {module} has no type or no path; fetch the file again")
        kind = module["type"].rsplit(".", 1)[-1]
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise ValueError(f"{folder}/modules.json: module {module['type']} is not implemented")
        if kind == "Pooling":
            name = f"{module['path']}/config.json"
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{folder}: no {name}, which modules.json names; fetch it too")
            config = hf.read_json(folder / name)
            chosen = [how for how, key in _POOLING_KEYS.items() if config.get(key)]
            chosen = chosen or [config.get("pooling_mode")]
            if len(chosen) != 1 or chosen[0] not in POOLINGS:
                raise ValueError(f"{folder}/{module['path']}: pooling {chosen} is not implemented; "
                                 f"implemented: {', '.join(POOLINGS)}")
            if not config.get("include_prompt", True):
                raise ValueError(f"{folder}/{module['path']}: include_prompt=false is not implemented")
            pooling = chosen[0]
    return pooling
