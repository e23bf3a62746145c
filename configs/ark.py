"""ARK on your own documents and questions.

    ark-jax run --config=configs/ark.py --config.data.path=FILE --workdir=DIR

`configs/ark.py:paper` follows the publication, `configs/ark.py:official` the released code.
"""

from ark_jax import config


def get_config(preset: str = "best"):
    return config.ark(preset or "best")
