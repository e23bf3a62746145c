r"""The config of `ark-jax demo`, to change it: packaged corpus, MiniLM, SmolLM2, recordings.

    ark-jax run --config=demo --workdir=DIR

From documents alone, with recorded questions:

    ark-jax run --config=demo:documents_only --workdir=DIR

With an endpoint instead of the recordings (configs/README.md says how to record its replies):

    ark-jax run --config=demo --workdir=DIR \
        --config.llm.backend=openai --config.llm.model=MODEL

A sweep. Only its first run extracts, rewrites and scores:

    ark-jax sweep --config=demo:sweep=temperature --workdir=DIR
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
    """`words` may be `documents_only`, and `sweep=NAME`, which `ark-jax sweep` reads."""
    names = config.named(words)
    if names not in ([], ["documents_only"]):
        raise ValueError(
            f"{words!r}: the demo has documents_only and sweep={'|'.join(SWEEPS)}, nothing else"
        )
    return config.demo("documents" if names else "")
