"""Adapters to other software: a module each, which imports that software."""

import importlib
from types import ModuleType


def load(name: str) -> ModuleType:
    """The module of an adapter.

    Raises:
        RuntimeError: the software is not installed.
    """
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"{name} needs the package {error.name}: pip install 'ark-jax[integrations]'"
        ) from None
