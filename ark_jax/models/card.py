"""The model card of a saved retriever: what the folder holds and how it is opened, with front matter for the hub."""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from ark_jax import __version__
from ark_jax.models import hf

TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "ark")
_POOLINGS = {"pooling_mode_mean_tokens": "mean of all tokens", "pooling_mode_cls_token": "first token",
             "pooling_mode_lasttoken": "last token"}


def hub_name(folder: Path) -> str:
    """`owner/model` of a folder in the hub's cache (models--owner--model/snapshots/revision), "" of any other."""
    name = folder.parent.parent.name
    return "/".join(name.split("--")[1:]) if name.startswith("models--") and folder.parent.name == "snapshots" else ""


def text(folder: Path, *, title: str, base: str, about: str, results: Sequence[EvalResult] = ()) -> str:
    """README.md for a sentence-transformers folder whose other files are written.

    Args:
        base: hub name of the model it was made from. Without one the card names no base model, since the name of a folder
            means nothing elsewhere.
        about: Markdown on method, data and metrics, after the title; "" if nothing is known.
        results: figures that the hub shows beside the card (the front matter's model-index), under the title.
    """
    config, read = hf.read_config(folder), lambda name: hf.read_json(folder / name)
    pooling, settings = read("1_Pooling/config.json"), read("config_sentence_transformers.json")
    width = pooling["word_embedding_dimension"]
    kept, prompts = settings.get("truncate_dim") or width, {k: v for k, v in settings["prompts"].items() if v}
    rows = {
        **({"base model": f"[{base}](https://huggingface.co/{base})"} if base else {}),
        "architecture": config["model_type"],
        "pooling": next(words for key, words in _POOLINGS.items() if pooling[key]) + ", then unit length",
        "vector": f"{kept} components" + (f", the first of {width}" if kept != width else ""),
        "longest text": f"{read('sentence_bert_config.json')['max_seq_length']} tokens, prompt and special tokens included; "
                        "what is longer is cut there",
        **{f"prompt, {kind}": f"`{_cell(prompt)}`" for kind, prompt in prompts.items()}}
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    about = f"{about.strip()}\n\n" if about else ""
    return f"{_front(base, title, results)}\n# {title}\n\n{about}| | |\n|---|---|\n{table}\n\n{_use(prompts, kept != width)}"


def _front(base: str, title: str, results: Sequence[EvalResult]) -> str:
    named = {"model_name": title, "eval_results": list(results)} if results else {}
    data = ModelCardData(library_name="sentence-transformers", pipeline_tag="sentence-similarity", base_model=base or None,
                         tags=list(TAGS), **named)
    return f"---\n{data.to_yaml()}\n---\n"


def _cell(prompt: str) -> str:
    """A prompt in a Markdown table's code span, on one line."""
    return prompt.replace("\n", "\\n").replace("|", "\\|").replace("`", "'")


def _use(prompts: dict[str, str], narrowed: bool) -> str:
    # sentence-transformers cuts vectors to truncate_dim when they have had their length.
    whole = ", normalize_embeddings=True" if narrowed else ""
    ask = lambda *kinds: next((f', prompt_name="{kind}"' for kind in kinds if kind in prompts), "")
    return f"""With sentence-transformers:

```python
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("path/to/this/folder")
queries = model.encode(["a question"]{ask("query")}{whole})
documents = model.encode(["a passage"]{ask("document", "passage")}{whole})
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
