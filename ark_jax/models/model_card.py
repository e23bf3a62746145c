"""The model card of a saved retriever: front matter for the hub, settings, and how to open it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ark_jax import __version__
from ark_jax.models import hf
from ark_jax.models import sentence_folder as files
from ark_jax.models.late_settings import ENCODER
from ark_jax.models.pooling import TOKENS

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
    models = files.read_models(folder)
    model, has_towers = models["query"], (folder / "router_config.json").is_file()
    prompts = {kind: prompt for kind, prompt in model.settings.prompts.items() if prompt}
    spans = {kind: _code_span(prompt) for kind, prompt in prompts.items()}
    if has_towers:
        shown = {kind: {"prompt": spans[kind]} if kind in spans else {} for kind in models}
        columns = {kind: _column_cells(model, base) | shown[kind] for kind, model in models.items()}
    else:
        shown = {"": {f"prompt, {kind}": span for kind, span in spans.items()}}
        columns = {"": _column_cells(model, base) | shown[""]}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [(name, *(column.get(name, "") for column in columns.values())) for name in names]
    head = "| | query | document |\n|---|---|---|" if has_towers else "| | |\n|---|---|"
    table = "\n".join([head, *(f"| {' | '.join(row)} |" for row in rows)])
    about = f"{about.strip()}\n\n" if about else ""
    if model.poolings == (TOKENS,):
        front, usage = _front_matter(base, title, results, MULTI_VECTOR_TAGS), MULTI_VECTOR_USAGE
    else:
        front = _front_matter(base, title, results, TAGS)
        usage = _usage(prompts, model, has_towers=has_towers)
    return f"{front}\n# {plain_line(title)}\n\n{about}{table}\n\n{usage}"


def _column_cells(model: files.ModelFiles, base: str) -> dict[str, str]:
    """Name of a row -> cell, on how a model turns a text into a vector."""
    config, settings = hf.read_config(model.folder), model.settings
    poolings = model.poolings or ()
    size = files.read_width(model)
    steps = [" beside ".join(poolings) + ("" if model.include_prompt else " without the prompt")]
    if poolings == (TOKENS,):
        steps = ["none (a vector for each token, compared by MaxSim)"]
    for place, activation, has_residual in model.dense:
        width = hf.Checkpoint(place).slice("linear.weight").get_shape()[0]
        kind = "residual" if has_residual else "dense"
        steps.append(f"a {kind} layer ({activation.rpartition('.')[2]}) to {width}")
    steps += ["unit length"] * model.normalised
    late_cells, late = {}, model.late
    if late:
        filling = ", filled with mask tokens" * late.do_query_expansion
        markers = (_code_span(late.of_kind(kind)[0]) for kind in files.KINDS)
        skipped = f"not compared in {' and '.join(f'{kind}s' for kind in late.skiplist_tasks)}"
        late_cells = {
            "longest query": f"{late.query_length} tokens{filling}" * bool(late.query_length),
            "markers": " and ".join(markers) * (late.layout != ENCODER),
            skipped.replace("querys", "queries"): " ".join(map(_code_span, late.skiplist_words)),
        }
        late_cells = {name: cell for name, cell in late_cells.items() if cell}
    narrowing = f", the first of {size}" if settings.width not in (None, size) else ""
    return {
        **({"base model": f"[{base}](https://huggingface.co/{base})"} if base else {}),
        "architecture": config["model_type"],
        "weights": ", ".join(hf.Checkpoint(model.folder).float_types()),
        "pooling": ", then ".join(steps),
        "vector": f"{settings.width or size} components{narrowing}",
        **({"compared by": "dot product"} if settings.similarity == "dot" else {}),
        **late_cells,
        "longest text": f"{files.read_text_limit(model.folder)[0]} tokens, prompt and special "
        "tokens included; what is longer is cut there",
    }


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


def _usage(prompts: dict[str, str], model: files.ModelFiles, *, has_towers: bool) -> str:
    """Code that opens the folder in both libraries."""
    # sentence-transformers cuts vectors to truncate_dim after they were normalised.
    is_dot, is_unit = (
        model.settings.similarity == "dot",
        model.normalised and not model.settings.width,
    )
    normalize = "" if is_unit or is_dot else ", normalize_embeddings=True"
    products = "scores, which are dot products" if is_dot else "cosines"

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
