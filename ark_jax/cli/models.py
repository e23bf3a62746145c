"""`ark-jax models`: the families of models that can be retrievers, rerankers and readers."""

from ark_jax.cli.flags import Flags
from ark_jax.runtime.log import show


class Models(Flags):
    """Lists each model_type, what its models can be, what is tested, and models of it.

    What is tested equals transformers in float32, to 1e-5 or 1e-4: hidden states, gradients, saved
    folders and scores of pairs (tests/models/test_families.py, test_hf.py, test_pairs.py).
    """

    example = "ark-jax models"

    def run(self) -> int:
        from ark_jax.models import families

        head = ("model_type", "as", "equal to transformers", "models")
        for family, role, tested, names in (head, *families.rows()):
            show(f"{family:<12} {role:<20} {tested:<32} {names}\n")
        return 0
