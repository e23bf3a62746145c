"""The configuration of `ark-jax demo`, for changing it: the embedded corpus, MiniLM, SmolLM2, recorded replies.

    ark-jax run --config=configs/demo.py --workdir=DIR

Another endpoint instead of the recordings, whose replies can then be recorded anew (README, "The recordings"):

    ark-jax run --config=configs/demo.py --workdir=DIR --config.llm.backend=openai --config.llm.model=MODEL

A sweep, of which only the first run extracts, rewrites and scores:

    python launch/sweep.py --config=configs/demo.py:sweep=temperature --workdir=DIR
"""

from ark_jax import config

SWEEPS = {
    "temperature": {f"{t:g}": {"train.temperature": t} for t in (0.02, 0.1)},
    "lambda": {"without-F": {"score.forward": 0.0}, "without-B": {"score.backward": 0.0}, "without-V": {"score.retriever": 0.0}},
}


def get_config(words: str = ""):
    """`words` can be `sweep=NAME`, which is launch/sweep.py's to run; the configuration is the same."""
    if words and not words.startswith("sweep="):
        raise ValueError(f"{words!r}: the demo has no presets, only sweep={'|'.join(SWEEPS)}")
    return config.demo()
