"""What `--config=NAME:WORDS` names: a packaged preset, or a file."""

import difflib
from pathlib import Path

from ark_jax import presets

FOLDER = Path(presets.__file__).parent


def preset_names() -> list[str]:
    """The presets of the package, which `--config` takes without a file."""
    return sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


def locate(named: str) -> str:
    """`FILE:WORDS` for a `NAME:WORDS` whose name is a preset's or a file's.

    Raises:
        ValueError: there is neither.
    """
    name, colon, words = named.partition(":")
    if Path(name).is_file():
        return named
    known = preset_names()
    if name in known:
        return f"{FOLDER / name}.py{colon}{words}"
    nearest = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    raise ValueError(
        f"--config={named}: no such file; {hint}the presets are {', '.join(known)}, and `ark-jax "
        "init DATA` writes a file"
    )
