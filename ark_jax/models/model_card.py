"""The model card of a saved retriever: front matter for the hub, settings, and how to open it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ark_jax import __version__
from ark_jax.models import hf
from ark_jax.models.sentence_folder import KINDS, route_folder

TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "ark")
MULTI_VECTOR_TAGS = ("sentence-transformers", "multi-vector", "late-interaction", "colbert", "ark")
MULTI_VECTOR_USAGE = f"""With sentence-transformers from version 6:

```python
from sentence_transformers import MultiVectorEncoder
model = MultiVectorEncoder("path/to/this/folder")
queries = model.encode_query(["a question"])
documents = model.encode_document(["a passage"])
scores = model.similarity(queries, documents)
```

With ark_jax ({__version__} wrote this folder):

```python
import ark_jax as ark
from ark_jax.retrieval.late import maxsim
retriever = ark.MultiVectorRetriever.from_pretrained("path/to/this/folder")
queries = retriever.encode(["a question"], kind="query")
documents = retriever.encode(["a passage"], kind="document")
scores = maxsim(queries, documents)
```

The sum of the first is the mean of the second, times the tokens of the question. The licence is the
base model's.
"""
_POOLINGS = {
    "pooling_mode_cls_token": "first token",
    "pooling_mode_max_tokens": "maximum of all tokens",
    "pooling_mode_mean_tokens": "mean of all tokens",
    "pooling_mode_mean_sqrt_len_tokens": "sum of all tokens over the root of their number",
    "pooling_mode_weightedmean_tokens": "mean of all tokens, weighted by their position",
    "pooling_mode_lasttoken": "last token",
}


def hub_name(folder: Path) -> str:
    """`owner/model` of a folder in the hub's cache or of a tower in it; "" for other folders.

    The cache has the layout models--owner--model/snapshots/revision.
    """
    for revision in (folder, folder.parent):
        name = revision.parent.parent.name
        if name.startswith("models--") and revision.parent.name == "snapshots":
            return "/".join(name.split("--")[1:])
    return ""


def plain_line(text: str) -> str:
    """A name as one line of Markdown. What would open a tag, a block or code is escaped."""
    return re.sub(r"([\\`*\[\]<>#|])", r"\\\1", " ".join(text.split()))


def render_card(
    folder: Path, *, title: str, base: str, about: str, results: Sequence[EvalResult] = ()
) -> str:
    """The text of README.md for a sentence-transformers folder, whose other files are written.

    Args:
        base: hub name of the base model. Empty names none, since a folder's name means nothing
            elsewhere.
        about: Markdown on method, data and metrics, put after the title; may be empty.
        results: metrics that the hub shows beside the card (the front matter's model-index).
    """
    settings = hf.read_json(folder / "config_sentence_transformers.json")
    prompts = {kind: prompt for kind, prompt in settings["prompts"].items() if prompt}
    width = settings.get("truncate_dim")
    has_towers = (folder / "router_config.json").is_file()
    is_multi_vector = not has_towers and not (folder / "1_Pooling").is_dir()
    columns = (_tower_columns if has_towers else _single_column)(folder, width, prompts, base)
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [(name, *(column.get(name, "") for column in columns.values())) for name in names]
    head = "| | query | document |\n|---|---|---|" if has_towers else "| | |\n|---|---|"
    table = "\n".join([head, *(f"| {' | '.join(row)} |" for row in rows)])
    about = f"{about.strip()}\n\n" if about else ""
    if is_multi_vector:
        front, usage = _front_matter(base, title, results, MULTI_VECTOR_TAGS), MULTI_VECTOR_USAGE
    else:
        front = _front_matter(base, title, results, TAGS)
        pooling = route_folder(folder, KINDS[0], 1) if has_towers else folder / "1_Pooling"
        is_unit = width is None and bool(_later_modules(pooling, "Normalize"))
        similarity = settings["similarity_fn_name"]
        usage = _usage(prompts, similarity, is_unit=is_unit, has_towers=has_towers)
    return f"{front}\n# {plain_line(title)}\n\n{about}{table}\n\n{usage}"


def _single_column(
    folder: Path, width: int | None, prompts: dict[str, str], base: str
) -> dict[str, dict[str, str]]:
    """The one column of the card's table, of a folder with one model: name of a row -> cell."""
    rows = _column_cells(folder, folder / "1_Pooling", width, base)
    return {"": rows | {f"prompt, {kind}": _code_span(prompt) for kind, prompt in prompts.items()}}


def _tower_columns(
    folder: Path, width: int | None, prompts: dict[str, str], base: str
) -> dict[str, dict[str, str]]:
    """A column for each tower of a folder with a Router: kind of text -> name of a row -> cell."""
    columns = {}
    for kind in KINDS:
        model, pooling = (route_folder(folder, kind, module) for module in (0, 1))
        prompt = {"prompt": _code_span(prompts[kind])} if kind in prompts else {}
        columns[kind] = _column_cells(model, pooling, width, base) | prompt
    return columns


def _column_cells(
    folder: Path, pooling_folder: Path, width: int | None, base: str
) -> dict[str, str]:
    """Name of a row -> cell, on how a model turns a text into a vector."""
    limit = hf.read_json(folder / "sentence_bert_config.json")["max_seq_length"]
    if pooling_folder.is_dir():
        mode, components = _describe_modules(pooling_folder)
    else:
        components = hf.read_config(folder)["hidden_size"]
        mode = "none (a vector for each token, compared by MaxSim), then unit length"
    narrowing = f", the first of {components}" if (width or components) != components else ""
    return {
        **({"base model": f"[{base}](https://huggingface.co/{base})"} if base else {}),
        "architecture": hf.read_config(folder)["model_type"],
        "weights": ", ".join(hf.Checkpoint(folder).float_types()),
        "pooling": mode,
        "vector": f"{width or components} components{narrowing}",
        "longest text": f"{limit} tokens, prompt and special tokens included; what is longer is "
        "cut there",
    }


def _describe_modules(pooling_folder: Path) -> tuple[str, int]:
    """What a Pooling module and those after it do, in words, and the components that they give."""
    pooling = hf.read_json(pooling_folder / "config.json")
    modes = [words for key, words in _POOLINGS.items() if pooling[key]]
    components = len(modes) * pooling["word_embedding_dimension"]
    steps = [" beside ".join(modes)]
    if not pooling["include_prompt"]:
        steps[0] += " but the prompt's"
    for place in _later_modules(pooling_folder, "Dense"):
        dense = hf.read_json(place / "config.json")
        components = dense["out_features"]
        name = dense["activation_function"].rpartition(".")[2]
        steps.append(f"a dense layer ({name}) to {components}")
    steps += ["unit length"] * bool(_later_modules(pooling_folder, "Normalize"))
    return ", then ".join(steps), components


def _later_modules(pooling_folder: Path, kind: str) -> list[Path]:
    """The folders of a kind of module after a Pooling, in their order."""
    prefix = pooling_folder.name.removesuffix("1_Pooling")
    found = pooling_folder.parent.glob(f"{prefix}[0-9]*_{kind}")
    return sorted(found, key=lambda path: int(path.name.removeprefix(prefix).partition("_")[0]))


def _front_matter(base: str, title: str, results: Sequence[EvalResult], tags: Sequence[str]) -> str:
    """The YAML front matter, with its lines of dashes; `results` make the hub's model-index."""
    index: dict[str, Any] = {}
    if results:
        index = {"model_name": title, "eval_results": list(results)}
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=base or None,
        tags=list(tags),
        **index,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def _code_span(prompt: str) -> str:
    """A prompt as one line of a code span in a Markdown table."""
    return "`" + prompt.replace("\n", "\\n").replace("|", "\\|").replace("`", "'") + "`"


def _usage(prompts: dict[str, str], similarity: str, *, is_unit: bool, has_towers: bool) -> str:
    """Code that opens the folder in both libraries."""
    # sentence-transformers cuts vectors to truncate_dim after they were normalised.
    normalize = "" if is_unit or similarity == "dot" else ", normalize_embeddings=True"
    products = "cosines" if similarity == "cosine" else "scores, which are dot products"

    def prompt_name(*kinds: str) -> str:
        """The argument for the first of these kinds that has a prompt; "" if none has."""
        return next((f', prompt_name="{kind}"' for kind in kinds if kind in prompts), "")

    queries = f'encode(["a question"]{prompt_name("query")}{normalize})'
    documents = f'encode(["a passage"]{prompt_name("document", "passage")}{normalize})'
    if has_towers:
        queries = f'encode_query(["a question"]{normalize})'
        documents = f'encode_document(["a passage"]{normalize})'
    opened = "DualEncoder" if has_towers else "Retriever"
    return f"""With sentence-transformers:

```python
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("path/to/this/folder")
queries = model.{queries}
documents = model.{documents}
```

With ark_jax ({__version__} wrote this folder):

```python
import ark_jax as ark
retriever = ark.{opened}.from_pretrained("path/to/this/folder")
queries = retriever.encode(["a question"], kind="query")
documents = retriever.encode(["a passage"], kind="document")
```

`queries @ documents.T` are the {products}. The licence is the base model's.
"""
