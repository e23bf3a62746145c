"""The model card of a saved retriever: front matter for the hub, settings, and how to open it."""

import re
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from ark_jax import __version__
from ark_jax.models import hf

TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "ark")
_POOLINGS = {
    "pooling_mode_mean_tokens": "mean of all tokens",
    "pooling_mode_cls_token": "first token",
    "pooling_mode_lasttoken": "last token",
}


def hub_name(folder: Path) -> str:
    """`owner/model` of a folder in the hub's cache, "" of any other folder.

    The cache has the layout models--owner--model/snapshots/revision.
    """
    name = folder.parent.parent.name
    if name.startswith("models--") and folder.parent.name == "snapshots":
        return "/".join(name.split("--")[1:])
    return ""


def plain_line(text: str) -> str:
    """A name as one line of Markdown, in which it opens no tag, block or code."""
    return re.sub(r"([\\`*\[\]<>#|])", r"\\\1", " ".join(text.split()))


def render_card(
    folder: Path, *, title: str, base: str, about: str, results: Sequence[EvalResult] = ()
) -> str:
    """README.md for a sentence-transformers folder whose other files are written.

    Args:
        base: hub name of the base model. Empty names none, since a folder's name means nothing
            elsewhere.
        about: Markdown on method, data and metrics, put after the title; may be empty.
        results: metrics that the hub shows beside the card (the front matter's model-index).
    """
    settings = hf.read_json(folder / "config_sentence_transformers.json")
    prompts = {kind: prompt for kind, prompt in settings["prompts"].items() if prompt}
    rows = _rows(folder, settings.get("truncate_dim"), prompts, base)
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    about = f"{about.strip()}\n\n" if about else ""
    width = hf.read_json(folder / "1_Pooling/config.json")["word_embedding_dimension"]
    is_narrowed = (settings.get("truncate_dim") or width) != width
    return (
        f"{_front_matter(base, title, results)}\n# {plain_line(title)}\n\n{about}"
        f"| | |\n|---|---|\n{table}\n\n{_usage(prompts, is_narrowed)}"
    )


def _rows(
    folder: Path, truncate_dim: int | None, prompts: dict[str, str], base: str
) -> dict[str, str]:
    """The rows of the card's table: how a text becomes a vector."""
    pooling = hf.read_json(folder / "1_Pooling/config.json")
    limit = hf.read_json(folder / "sentence_bert_config.json")["max_seq_length"]
    width = pooling["word_embedding_dimension"]
    components = truncate_dim or width
    narrowing = f", the first of {width}" if components != width else ""
    mode = next(words for key, words in _POOLINGS.items() if pooling[key])
    return {
        **({"base model": f"[{base}](https://huggingface.co/{base})"} if base else {}),
        "architecture": hf.read_config(folder)["model_type"],
        "pooling": f"{mode}, then unit length",
        "vector": f"{components} components{narrowing}",
        "longest text": f"{limit} tokens, prompt and special tokens included; what is longer is "
        "cut there",
        **{f"prompt, {kind}": f"`{_table_cell(prompt)}`" for kind, prompt in prompts.items()},
    }


def _front_matter(base: str, title: str, results: Sequence[EvalResult]) -> str:
    index = {"model_name": title, "eval_results": list(results)} if results else {}
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=base or None,
        tags=list(TAGS),
        **index,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def _table_cell(prompt: str) -> str:
    """A prompt as one line of a code span in a Markdown table."""
    return prompt.replace("\n", "\\n").replace("|", "\\|").replace("`", "'")


def _usage(prompts: dict[str, str], is_narrowed: bool) -> str:
    """Code that opens the folder in both libraries."""
    # sentence-transformers cuts vectors to truncate_dim after they were normalised.
    normalize = ", normalize_embeddings=True" if is_narrowed else ""

    def prompt_name(*kinds: str) -> str:
        return next((f', prompt_name="{kind}"' for kind in kinds if kind in prompts), "")

    return f"""With sentence-transformers:

```python
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("path/to/this/folder")
queries = model.encode(["a question"]{prompt_name("query")}{normalize})
documents = model.encode(["a passage"]{prompt_name("document", "passage")}{normalize})
```

With ark_jax ({__version__} wrote this folder):

```python
import ark_jax as ark
retriever = ark.Retriever.from_pretrained("path/to/this/folder")
queries = retriever.encode(["a question"], kind="query")
documents = retriever.encode(["a passage"], kind="document")
```

`queries @ documents.T` are the cosines. The licence is the base model's.
"""
