"""Config fields that the sections of several recipes declare alike.

Sections call them in place of `schema.field`, and not a base class, because the fields of a base
class would come before all others of a section.
"""

from ark_jax.schema import field


def questions_of_groups():
    return field(
        0, "Questions of each group, drawn by a hash; 0: all.", unit="questions", minimum=0
    )


def max_new_tokens(default: int):
    return field(default, "Longest answer.", unit="tokens", minimum=1)


def bootstrap():
    return field(1000, "Bootstrap draws of each confidence interval.", unit="draws", minimum=1)


def randomisation(reference: str = "base"):
    """Draws of a test of significance.

    Args:
        reference: what the systems are tested against.
    """
    meaning = f"Draws of the paired randomisation test against {reference}."
    return field(10_000, meaning, unit="draws", minimum=1)
