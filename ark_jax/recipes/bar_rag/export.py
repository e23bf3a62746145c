"""The export stage: the last reader as a Hugging Face folder, with the form of its prompts."""

import json
from pathlib import Path

from ark_jax import __version__
from ark_jax.evaluate.reading import READING_PROMPT, ReadingPrompt
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json
from ark_jax.recipes.bar_rag.readers import tuned_readers
from ark_jax.recipes.common.export import base_names, copy_files, settings_text
from ark_jax.recipes.common.table import as_markdown


def export_reader(context: Context, folder: Path) -> dict:
    """Copies the last reader with the form of its prompts, and writes a card with its numbers.

    Adapters are merged into it: each belongs to the reader before it, and none to the base alone.
    """
    last = tuned_readers(context.config)[-1]
    copy_files(context / last / "model", folder)
    form = ReadingPrompt.read(folder)
    (folder / "README.md").write_text(_card(context, last, form), encoding="utf-8")
    return {"model": last}


def _card(context: Context, last: str, form: ReadingPrompt) -> str:
    from huggingface_hub import ModelCardData

    from ark_jax.models.model_card import plain_line

    name, hub_name = base_names(context.config.generator.path)
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=hub_name or None,
        tags=["question-answering", "rag", "bar-rag"],
    )
    title = plain_line(f"{name}, tuned to read with BAR-RAG")
    settings = settings_text(
        context.config, "warm", "filter", "selector", "select", "read", "train"
    )
    return f"""---
{data.to_yaml()}
---

# {title}

{_description(context, last, plain_line(name))}

{_usage(form)}

{settings} The licence is the base model's.
"""


def _description(context: Context, last: str, base: str) -> str:
    """Method, data and metrics."""
    evaluated = load_json(context / "evaluate" / "metrics.json")
    trained = read_manifest(context / "data")["counts"]["train_questions"]
    rounds = context.config.iterations
    times = "once" if rounds == 1 else f"{rounds:,} times"
    method = (
        f"It was warmed up on reference answers, and then learned {times} from passages from "
        "which it answered rightly about half of the time."
        if rounds
        else "It learned from reference answers alone."
    )
    text = (
        f"Base model: {base}. Tuned by ark_jax {__version__} to answer questions from retrieved "
        f"passages, on {trained:,} questions. {method}"
    )
    if evaluated["table"]:
        measured = read_manifest(context / "evaluate")["counts"]["questions"]
        text += (
            f"\n\nMeasured on {measured:,} held-out questions; `{last}` is this model, and p the "
            "probability that it gives a reference answer (mean and 95 % interval):\n\n"
        )
        text += as_markdown(evaluated["table"], evaluated["metrics"])
    return text


def _usage(form: ReadingPrompt) -> str:
    """How the folder is opened and asked."""
    kind = "the user's turn of the chat template" if form.chat else "a text that the model goes on"
    passages = "`Doc [1] …`, `Doc [2] …`" if form.cite else "one after the other"
    return f"""The prompt is {kind}; passages stand in it {passages}, a blank line between them. Its
template, which stands in `{READING_PROMPT}` too:

```json
{json.dumps(form.template, ensure_ascii=False)}
```

With transformers:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```

As the reader of an ARK run, which asks it in this form:

```
ark-jax run --config.reader.path=path/to/this/folder
```"""
