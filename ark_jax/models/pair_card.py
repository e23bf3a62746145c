"""The model card of a saved pair scorer: front matter for the hub, settings, and how to open it."""

from pathlib import Path

from huggingface_hub import ModelCardData

from ark_jax import __version__
from ark_jax.models.model_card import hub_name, plain_line
from ark_jax.models.pair_heads import ANSWER, PairConfig

_HEADS = {
    "linear": "a sequence classifier with one label",
    "star": "two markers that attend to their texts, and a feed-forward network (STAR)",
    "cosine": "the cosine of the two texts",
    ANSWER: "log P(yes) - log P(no) of a causal language model, whose chat template asks",
}
_STANDARD = ("linear", ANSWER)  # which sentence-transformers opens


def render_card(base: Path, cfg: PairConfig, max_length: int) -> str:
    """README.md for the folder of a pair scorer whose body was read from `base`."""
    name = hub_name(base)
    title = f"{name.rsplit('/', 1)[-1] or 'A pair scorer'}, saved by ark_jax"
    data = ModelCardData(
        library_name="sentence-transformers" if cfg.head in _STANDARD else "ark_jax",
        pipeline_tag="text-ranking",
        base_model=name or None,
        tags=["cross-encoder", "reranker", "ark"] if cfg.head in _STANDARD else ["reranker", "ark"],
    )
    rows = {
        **({"base model": f"[{name}](https://huggingface.co/{name})"} if name else {}),
        "head": _HEADS[cfg.head],
        **({"scale of the cosine": f"{cfg.scale:g}"} if cfg.has_cosine else {}),
        "longest pair": f"{max_length} tokens, special tokens included; a longer one is cut",
    }
    table = "\n".join(
        ["| | |", "|---|---|", *(f"| {key} | {cell} |" for key, cell in rows.items())]
    )
    return (
        f"---\n{data.to_yaml()}\n---\n\n# {plain_line(title)}\n\n"
        f"Scores how well two texts match; a higher logit is a better match.\n\n"
        f"{table}\n\n{_sentence_transformers_usage(cfg)}{_ark_jax_usage()}"
    )


def _sentence_transformers_usage(cfg: PairConfig) -> str:
    """Markdown on how sentence-transformers opens the folder, or why it cannot."""
    if cfg.head in _STANDARD:
        return """With sentence-transformers, which gives the same logits:

```python
from sentence_transformers import CrossEncoder
logits = CrossEncoder("path/to/this/folder").predict([("a question", "a passage")])
```

"""
    return (
        "Only ark_jax opens this folder: sentence-transformers refuses it, since it does not know "
        "the head. "
        "`SentenceTransformer` opens its folder `body`, the encoder alone.\n\n"
    )


def _ark_jax_usage() -> str:
    return f"""With ark_jax ({__version__} wrote this folder):

```python
import ark_jax as ark
scorer = ark.CrossEncoder.from_pretrained("path/to/this/folder")
logits = scorer.score([("a question", "a passage")])
```

The licence is the base model's.
"""
