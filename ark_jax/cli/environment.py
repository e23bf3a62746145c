"""What must stand before jax or transformers start."""

import os

from ark_jax.runtime import storage


def prepare_environment() -> None:
    """Sets the environment variables of libraries, where the user has not."""
    # XLA's compiled programs outlive the process, also the small ones: a stage has dozens.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(storage.cache_folder() / "xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
