"""A `Retriever` as an MTEB model, for all text tasks of MTEB, including NanoBEIR.

```python
import ark_jax as ark
import mteb
from ark_jax.evaluate.mteb import Encoder
model = Encoder(ark.Retriever.from_pretrained("workdir/export"), name="me/my-retriever")
results = mteb.evaluate(model, mteb.get_benchmark("NanoBEIR"))
```

MTEB (`pip install mteb`) installs torch for its data loaders and its search. The vectors come from
JAX.
"""

import dataclasses
import hashlib

import jax
import numpy as np
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder, get_prompt_name

from ark_jax.models.retriever import Retriever
from ark_jax.models.sentence_folder import KINDS
from ark_jax.text.token_vectors import check_one_each


class Encoder(AbsEncoder):
    """Version 2 of MTEB's encoder protocol for a `Retriever`.

    Args:
        retriever: the model to evaluate.
        name: `owner/model`, the name under which MTEB stores and shows results.
    """

    def __init__(self, retriever: Retriever, *, name: str):
        self.retriever = retriever
        self.mteb_model_meta = ModelMeta(
            loader=None,
            name=name,
            revision=_fingerprint(retriever),
            release_date=None,
            languages=None,
            n_parameters=sum(x.size for x in jax.tree.leaves(retriever.model)),
            memory_usage_mb=None,
            max_tokens=retriever.max_length,
            embed_dim=retriever.width,
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            framework=["JAX"],
            similarity_fn_name=retriever.form.similarity,
            use_instructions=any(retriever.prompts.values()),
            training_datasets=None,
        )

    def encode(
        self,
        inputs,
        *,
        task_metadata,
        hf_split: str,
        hf_subset: str,
        prompt_type=None,
        batch_size: int = 0,
        show_progress_bar: bool = True,
    ) -> np.ndarray:
        """Encodes the texts of a data loader as vectors, float32 `[n e]`; see `Retriever.encode`.

        MTEB chooses the name of the prompt from the task, its type and `prompt_type`. If the
        retriever has no prompt of that name, it uses its own prompt for `prompt_type`. Without a
        `prompt_type`, as in tasks without queries, only a prompt of that name is used.

        `batch_size` is only the number of texts per item of the loader; the retriever batches by
        tokens.

        Raises:
            ValueError: the retriever keeps a vector for each token.
        """
        kind = prompt_type.value if prompt_type else "document"
        retriever = self.retriever
        prompt_name = get_prompt_name(retriever.prompts, task_metadata, prompt_type)
        if prompt_name or not prompt_type:
            prompt = retriever.prompts[prompt_name] if prompt_name else ""
            retriever = dataclasses.replace(retriever, prompts={kind: prompt})
        texts = [text for batch in inputs for text in batch["text"]]
        label = f"{task_metadata.name}, {kind}" if show_progress_bar else ""
        return check_one_each(retriever.encode(texts, kind=kind, label=label), "MTEB")


def _fingerprint(retriever: Retriever) -> str:
    """Digest of what determines the vectors; MTEB caches results by name and revision."""
    parts = [repr(sorted(retriever.prompts.items())), *map(retriever.digest, KINDS)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:40]
