r"""The config of `ark-jax demo`, to change it: packaged corpus, MiniLM, SmolLM2, recordings.

    ark-jax run --config=configs/demo.py --workdir=DIR

With an endpoint instead of the recordings (configs/README.md says how to record its replies):

    ark-jax run --config=configs/demo.py --workdir=DIR \
        --config.llm.backend=openai --config.llm.model=MODEL

A sweep. Only its first run extracts, rewrites and scores:

    python launch/sweep.py --config=configs/demo.py:sweep=temperature --workdir=DIR
"""

from ark_jax import config

SWEEPS = {
    "temperature": {f"{t:g}": {"train.temperature": t} for t in (0.02, 0.1)},
    "lambda": {
        "without-F": {"score.forward": 0.0},
        "without-B": {"score.backward": 0.0},
        "without-V": {"score.retriever": 0.0},
    },
}


def get_config(words: str = ""):
    """`words` may be `sweep=NAME`, which launch/sweep.py reads; the config stays the same."""
    if words and not words.startswith("sweep="):
        raise ValueError(f"{words!r}: the demo has no presets, only sweep={'|'.join(SWEEPS)}")
    return config.demo()
