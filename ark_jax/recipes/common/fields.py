"""Config fields that the sections of several recipes declare alike.

Sections call them in place of `schema.field`, and not a base class, because the fields of a base
class would come before all others of a section.
"""

from ark_jax.schema import field

# --- training -------------------------------------------------------------------------------------


def warmup(default: float = 0.1):
    return field(
        default,
        "Linear warm-up of the learning rate.",
        unit="fraction of steps",
        minimum=0,
        maximum=1,
    )


def weight_decay(default: float = 0.01):
    return field(default, "Decoupled weight decay of AdamW.", minimum=0)


def clip():
    return field(1.0, "Largest global gradient norm; longer gradients are scaled.", above=0)


def remat():
    return field(
        "auto",
        "What the backward pass computes again: all but products with weights, or everything, "
        "which saves memory; auto: the first where it fits, as `ark-jax plan` says.",
        choices=("auto", "products", "all"),
        affects_output=False,
    )


def save_every(default: int):
    return field(
        default, "Steps between two checkpoints.", unit="steps", minimum=1, affects_output=False
    )


def lora_rank(remark: str = ""):
    """The rank of an adapter, which is trained in place of the weights.

    Args:
        remark: a sentence that follows the meaning.
    """
    meaning = (
        "Rank of a LoRA adapter, which needs about ten times the learning rates; 0: train all "
        "weights."
    )
    return field(0, f"{meaning} {remark}".rstrip(), minimum=0)


def lora_alpha(default: float = 32.0):
    return field(
        default, "Scale of the adapter: its product is multiplied by alpha / rank.", above=0
    )


def lora_targets(matrices: str = "q, k, v, o, gate, up, down"):
    return field((), f"Matrices to adapt: {matrices}; empty: all of them.")


# --- evaluation -----------------------------------------------------------------------------------


def questions_of_groups():
    return field(
        0, "Questions of each group, drawn by a hash; 0: all.", unit="questions", minimum=0
    )


def max_new_tokens(default: int):
    return field(default, "Longest answer.", unit="tokens", minimum=1)
