"""Systems on a test set. The room can be called: `ark.compare(...)` is `comparison.compare`.

Python binds a room to its name in the package as soon as it is imported, so that a function of that
name would vanish.
"""

import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ark_jax.compare.comparison import Comparison


class _Room(types.ModuleType):
    def __call__(self, *words, **options) -> "Comparison":
        from ark_jax.compare import comparison

        return comparison.compare(*words, **options)


sys.modules[__name__].__class__ = _Room
