"""The configuration of `ark-jax demo`, for changing it: the embedded corpus, MiniLM, SmolLM2, recorded replies.

    ark-jax run --config=configs/demo.py --workdir=DIR

Another endpoint instead of the recordings, whose replies can then be recorded anew (README, "The recordings"):

    ark-jax run --config=configs/demo.py --workdir=DIR --config.llm.backend=openai --config.llm.model=MODEL
"""

from ark_jax import config


def get_config():
    return config.demo()
