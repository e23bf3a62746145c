"""Configs for the command line and for config files: presets, variants, studies.

    from ark_jax import config

    def get_config():
        c = config.ark("paper")
        c.train.batch = 32
        return c

`python -m ark_jax.config` prints the reference of all fields. `python -m ark_jax.config FILE`
replaces the reference inside a Markdown file.
"""

import re
import sys
from pathlib import Path

from ark_jax import schema
from ark_jax.recipes.ark.config import (
    PRESETS,
    VARIANTS,
    ablations,
    ark,
    demo,
    differences,
    named,
    study,
    switches,
    vary,
)
from ark_jax.recipes.ark.settings import Ark

__all__ = [
    "PRESETS",
    "VARIANTS",
    "ablations",
    "ark",
    "demo",
    "differences",
    "named",
    "study",
    "switches",
    "vary",
]

BEGIN, END = "<!-- fields -->", "<!-- /fields -->"


def with_reference(text: str) -> str:
    """`text` with the reference of all fields between the two marks.

    Raises:
        ValueError: a mark is missing.
    """
    if not re.search(f"{BEGIN}.*{END}", text, re.DOTALL):
        raise ValueError(f"no {BEGIN} followed by {END}; add both where the reference belongs")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    return f"{before}{BEGIN}\n\n{schema.reference(Ark)}\n\n{END}{after}"


def main(args: list[str]) -> None:
    if not args:
        print(schema.reference(Ark))
    for path in map(Path, args):
        path.write_text(with_reference(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
