"""What `--config=NAME:WORDS` names: a recipe of the package, its demo, or a file."""

import difflib
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes"
DEMO = "demo"


def packaged_files() -> dict[str, Path]:
    """The configs of the package, which `--config` takes by name: name -> its file."""
    files = {path.parent.name: path for path in sorted(RECIPES.glob("*/config.py"))}
    return files | {DEMO: RECIPES / "ark" / "demo.py"}


def locate(named: str) -> str:
    """`FILE:WORDS` for a `NAME:WORDS` whose name is a packaged config's or a file's.

    Raises:
        ValueError: there is neither.
    """
    name, colon, words = named.partition(":")
    if Path(name).is_file():
        return named
    known = packaged_files()
    if name in known:
        return f"{known[name]}{colon}{words}"
    nearest = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    raise ValueError(
        f"--config={named}: no such file; {hint}the presets are {', '.join(known)}, and `ark-jax "
        "init DATA` writes a file"
    )
