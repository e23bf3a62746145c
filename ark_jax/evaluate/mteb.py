"""A `Retriever` as a model of MTEB, so that each of its text tasks, NanoBEIR's included, can be run on it.

```python
import ark_jax as ark
import mteb
from ark_jax.evaluate.mteb import Encoder
model = Encoder(ark.Retriever.from_pretrained("workdir/export"), name="me/my-retriever")
results = mteb.evaluate(model, mteb.get_benchmark("NanoBEIR"))
```

MTEB (`pip install mteb`) brings torch, for its loaders and its search; the vectors are ours.
"""

import dataclasses
import hashlib

import jax
import numpy as np
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder, get_prompt_name

from ark_jax import layout
from ark_jax.models.retriever import Retriever


class Encoder(AbsEncoder):
    """MTEB's encoder protocol, version 2, over a `Retriever`.

    Args:
        name: `owner/model`, under which MTEB keeps and shows results.
    """

    def __init__(self, retriever: Retriever, *, name: str):
        self.retriever = retriever
        self.mteb_model_meta = ModelMeta(
            loader=None, name=name, revision=_fingerprint(retriever), release_date=None, languages=None,
            n_parameters=sum(x.size for x in jax.tree.leaves(retriever.model)), memory_usage_mb=None,
            max_tokens=retriever.max_length, embed_dim=retriever.width, license=None, open_weights=None,
            public_training_code=None, public_training_data=None, framework=["JAX"], similarity_fn_name="cosine",
            use_instructions=any(retriever.prompts.values()), training_datasets=None)

    def encode(self, inputs, *, task_metadata, hf_split: str, hf_subset: str, prompt_type=None, batch_size: int = 0,
               show_progress_bar: bool = True) -> np.ndarray:
        """Unit vectors, float32 `[n e]`, of the texts that the loader `inputs` gives.

        The prompt is the one named after the task, its type or `prompt_type`, in MTEB's order, else the one that `prompt_type`
        has in `Retriever.encode`. Without a `prompt_type`, as in tasks where no side asks, only a task's own prompt counts.
        Batches are ours, by tokens: `batch_size` is how many texts the loader gives at a time.
        """
        kind, retriever = prompt_type.value if prompt_type else "document", self.retriever
        named = get_prompt_name(retriever.prompts, task_metadata, prompt_type)
        if named or not prompt_type:
            retriever = dataclasses.replace(retriever, prompts={kind: retriever.prompts[named] if named else ""})
        texts = [text for batch in inputs for text in batch["text"]]
        return retriever.encode(texts, kind=kind, label=f"{task_metadata.name}, {kind}" if show_progress_bar else "")


def _fingerprint(retriever: Retriever) -> str:
    """Another one for whatever gives other vectors: by name and revision MTEB takes results that it has kept."""
    settings = (retriever.cfg, retriever.pooling, sorted(retriever.prompts.items()), retriever.max_length, retriever.width,
                retriever.lower)
    seen = hashlib.sha256(repr(settings).encode())
    for leaf in jax.tree.leaves(retriever.model):
        seen.update(layout.fetch(leaf).tobytes())
    return seen.hexdigest()[:40]
