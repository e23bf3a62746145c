"""Who may import whom: the layers of the package, read from its source."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Modules (and what lies in them), and what of ark_jax they may import.
LAYERS = {r"layout": r"", r"hosts": r"log\.primary", r"models": r"layout|log|bucket|hosts|text\.tokens|models|__version__",
          r"text": r"text|log|data\.(records|words)|__version__", r"graph": r"graph|data\.(records|words)|layout|log|search",
          r"search|train\.loss|train\.optim": r"layout|text\.tokens"}


def imports() -> list[tuple[str, str]]:
    """(module of ark_jax, what it imports), everywhere in the file; `from a import b` is `a.b`."""
    found = []
    for path in sorted((ROOT / "ark_jax").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "ark_jax").with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found += [(module, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: a relative import"
                found += [(module, f"{node.module}.{alias.name}") for alias in node.names]
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_lies_below_it(layer):
    mine = [(module, name) for module, name in imports() if re.fullmatch(rf"({layer})(\..*)?", module)]
    assert mine, "no such layer"
    assert [x for x in mine if x[1].startswith("ark_jax") and not re.fullmatch(rf"ark_jax\.({LAYERS[layer]})(\..*)?", x[1])] == []


def test_nothing_imports_what_is_not_the_librarys():
    assert [x for x in imports() if re.match(r"(torch|sentence_transformers|configs|launch|tests|conftest)\b", x[1])] == []
    assert {module for module, name in imports() if name.startswith("ml_collections")} == {"config", "__main__"}


@pytest.mark.parametrize("module", ["ark_jax", "ark_jax.pipeline", "ark_jax.stages", "ark_jax.config", "ark_jax.__main__"])
def test_looking_up_does_not_start_jax(module):
    code = f"import {module}, sys; sys.exit([x for x in ('jax', 'transformers', 'tensorflow_datasets') if x in sys.modules] or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
