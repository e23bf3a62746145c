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
