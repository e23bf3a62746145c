"""Who may import whom: the rooms of the package from the ground up, read from its source."""

import ast
import functools
import os
import re
import subprocess
import sys

import networkx as nx
from support import tiny
from support.paths import REPOSITORY

import ark_jax

# Each room may import from the rooms above it in this list, beside what it names for itself.
ROOMS = (
    "runtime",
    "schema",
    "layout",
    "text",
    "data",
    "llm",
    "models",
    "retrieval",
    "graph",
    "evaluate",
    "train",
    "select",
    "pipeline",
    "index",
    "integrations",
    "estimate",
    "report",
    "serve",
    "demo",
    "recipes.core",
    "recipes.documents",
    "recipes.graphs",
    "comparison",
    "recipes.ark",
    "recipes.gpr",
    "recipes.star",
    "recipes.bar_rag",
    "recipes.demo",
    "recipes.papers",
    "config",
    "new_config",
    "doctor",
    "run",
    "sweep",
    "cli",
    "__main__",
)


@functools.cache
def imports() -> list[tuple[str, str]]:
    """(module of ark_jax, what it imports), everywhere in the file; `from a import b` is `a.b`."""
    imported = []
    for path in sorted((REPOSITORY / "ark_jax").rglob("*.py")):
        module = ".".join(path.relative_to(REPOSITORY / "ark_jax").with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported += [(module, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: a relative import"
                imported += [(module, f"{node.module}.{alias.name}") for alias in node.names]
    return imported


def room_of(module: str) -> str:
    matches = [room for room in ROOMS if f"{module}.".startswith(f"{room}.")]
    assert matches, f"{module} lies in no room of ROOMS"
    return matches[0]


def test_packages_import_only_from_lower_layers():
    upwards = []
    for module, name in imports():
        inner = name.removeprefix("ark_jax.")
        if inner == name or inner == "__version__" or module.endswith("__init__"):
            continue
        if ROOMS.index(room_of(inner)) > ROOMS.index(room_of(module)):
            upwards.append(f"{module} imports {inner}")
    assert upwards == []


def test_there_are_no_import_cycles():
    modules = {module for module, _ in imports()}
    graph = nx.DiGraph()
    for module, name in imports():
        inner = name.removeprefix("ark_jax.")
        target = inner if inner in modules else inner.rpartition(".")[0]
        if target in modules:
            graph.add_edge(module, target)
    circles = [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    assert circles == []


def test_the_library_imports_no_test_or_optional_package():
    foreign = r"(torch|sentence_transformers|configs|launch|tests|conftest)\b"
    assert [x for x in imports() if re.match(foreign, x[1])] == []
    users = {module for module, name in imports() if name.startswith("ml_collections")}
    configs = {f"recipes.{name}.config" for name in ("ark", "gpr", "star", "bar_rag")}
    assert users == {"schema", "cli.config_flags", *configs}


LIGHT = (
    "ark_jax",
    "ark_jax.config",
    "ark_jax.pipeline.engine",
    "ark_jax.recipes.ark.recipe",
    "ark_jax.recipes.gpr.recipe",
    "ark_jax.recipes.star.recipe",
    "ark_jax.cli.evaluate",
    "ark_jax.cli.retrieve",
    "ark_jax.cli.search",
    "ark_jax.cli.serve",
    "ark_jax.run",
    "ark_jax.index.index",
    "ark_jax.recipes.bar_rag.recipe",
    "ark_jax.__main__",
)


def test_light_modules_do_not_import_jax():
    code = f"""
import importlib, sys
for name in {LIGHT}:
    importlib.import_module(name)
    if heavy := [x for x in ("jax", "transformers", "tensorflow_datasets") if x in sys.modules]:
        sys.exit(f"{{name}} imports {{heavy}}")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_importing_the_library_without_torch_prints_nothing(tmp_path):
    folder = tiny.write(tmp_path / "m", "bert", tokenizer="cls")
    code = f"""
import sys
sys.modules["torch"] = None  # what transformers would then tell of
import ark_jax
for name in ark_jax.__all__:
    getattr(ark_jax, name)
from ark_jax.text.tokens import load_tokenizer
load_tokenizer({str(folder)!r})
"""
    variables = {name: x for name, x in os.environ.items() if not name.startswith("TRANSFORMERS_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, env=variables
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_type_checkers_see_every_public_name():
    tree = ast.parse((REPOSITORY / "ark_jax" / "__init__.py").read_text(encoding="utf-8"))
    blocks = [x for x in tree.body if isinstance(x, ast.If)]
    (block,) = (x for x in blocks if ast.unparse(x.test) == "TYPE_CHECKING")
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == ark_jax._PUBLIC
    assert sorted(ark_jax.__all__) == sorted([*seen, "__version__"])
