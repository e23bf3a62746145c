"""`ark-jax models`: the families of models that can be retrievers, rerankers and readers."""

from ark_jax.cli.flags import Flags
from ark_jax.runtime.log import show


class Models(Flags):
    """Lists each model_type, what its models can be, and models of it.

    Outputs, gradients and saved folders of each equal those of transformers in the tests
    (tests/models/test_families.py, tests/models/test_hf.py), in float32 and to 1e-5 or 1e-4.
    """

    example = "ark-jax models"

    def run(self) -> int:
        from ark_jax.models import families

        head = ("model_type", "as", "models")
        for family, role, names in (head, *families.rows()):
            show(f"{family:<12} {role:<20} {names}\n")
        return 0
