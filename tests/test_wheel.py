"""The wheel works by itself, without a checkout."""

import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support import world
from support.paths import REPOSITORY

from ark_jax.cli import config_flags


def run(*words) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("wheel")
    source = root / "source"
    source.mkdir()
    for name in ("ark_jax", "setup.py", "README.md", "LICENSE"):
        run("cp", "-r", REPOSITORY / name, source)
    build = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    run(*build, "--wheel-dir", root / "dist", source)
    (path,) = (root / "dist").glob("ark_jax-*.whl")
    return path


@pytest.fixture(scope="module")
def program(wheel, tmp_path_factory) -> Path:
    """`ark-jax` of the wheel, in an environment of its own that sees the libraries of this one."""
    root = tmp_path_factory.mktemp("same")
    run(sys.executable, "-m", "venv", root / "venv")
    python = root / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    packages = [sysconfig.get_path("purelib"), *site.getsitepackages()]
    inside = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    libraries = "".join(f"{path}\n" for path in dict.fromkeys(packages))
    (Path(inside.strip()) / "libraries.pth").write_text(libraries)
    return root / "venv" / "bin" / "ark-jax"


def call(program: Path, *words: str) -> subprocess.CompletedProcess:
    """Runs the program in an empty folder, with nothing of the checkout on its path."""
    place = program.parents[2] / "place"
    place.mkdir(exist_ok=True)
    ours = ("PYTHONPATH", "ARK_DATA")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        [program, *words], capture_output=True, text=True, cwd=place, env=environment, timeout=900
    )


def run_ones_own_files(program: Path, root: Path) -> None:
    """`init`, `run`, `index` and `search` on three documents, with tiny models."""
    own_world = world.make_world(root)
    done = call(program, "init", str(own_world / "corpus"), "--out=own.py")
    assert done.returncode == 0, done.stdout + done.stderr
    settings = {
        "data.held_out_documents": world.HELD_OUT,
        "data.chunking": "tokens",
        "data.chunk_tokens": 80,
        "retriever.path": own_world / "retriever",
        "generator.path": own_world / "generator",
        "score.candidates": 3,
        "score.positives": 2,
        "mine.top": 3,
        "mine.negatives": 4,
        "train.batch": 4,
        "train.epochs": (2, 1, 1),
        "evaluate.passages": 1,
        "evaluate.max_new_tokens": 4,
    }
    flags = [f"--config.{name}={value}" for name, value in settings.items()]
    for words in (
        ("run", "--config=own.py", *flags),
        ("index",),
        ("search", "Who founded the Tidal Board?", "--json"),
    ):
        done = call(program, *words, "--workdir=own")
        assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["passages"][0]["document"] in (*world.TRAINING, *world.HELD_OUT)


@pytest.mark.slow
def test_the_wheel_contains_configs_presets_and_sweeps(program):
    done = call(program, "config", "train", "--config=ark:paper")
    assert done.returncode == 0, done.stderr
    assert "* train.denominator = 'own'" in done.stdout
    for name in config_flags.packaged_files():
        if name != "demo":  # which fetches models
            done = call(program, "config", "data", f"--config={name}")
            has_data = name in ("papers/ark_table1", "papers/bar_rag_table1")
            own = "* data.path = 'data/" if has_data else "  data.path = ''"
            assert done.returncode == 0 and own in done.stdout, done.stderr
    done = call(program, "sweep", "--config=ark:sweep=nope", "--workdir=w")
    assert "there are temperature, lambda, positives" in done.stderr
    code = "import ark_jax; print(ark_jax.__file__)"
    place = call(program.with_name("python"), "-c", code).stdout
    assert place.startswith(str(program.parents[1]))


@pytest.mark.slow
def test_an_installed_wheel_can_plan_a_run_on_its_corpus(program):
    """`init` on the packaged corpus, whose config `plan` reads; a plan downloads no model."""
    (corpus,) = program.parents[1].glob("lib/*/site-packages/ark_jax/demo")
    made = call(program, "init", str(corpus))
    assert made.returncode == 0, made.stdout + made.stderr
    shown = call(program, "status", "--config=config.py", "--workdir=run")
    assert shown.returncode == 0 and shown.stdout.count(" missing") == 12, shown.stderr
    models = (
        "--config.retriever.path=Qwen/Qwen3-Embedding-0.6B",
        "--config.generator.path=HuggingFaceTB/SmolLM2-135M-Instruct",
    )
    paper = ("plan", "--config=ark:paper", f"--config.data.path={corpus}", *models)
    refused = call(program, *paper)
    assert refused.returncode == 1 and "set --config.llm.backend=openai" in refused.stderr
    done = call(program, *paper, "--config.llm.backend=local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "48 held-out questions" in done.stdout and "\ntotal: $0, about " in done.stdout


@pytest.mark.slow
def test_an_installed_wheel_can_run_on_user_files(program, tmp_path):
    run_ones_own_files(program, tmp_path)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("name", ["python3.12", "python3.13"])
def test_the_demo_and_user_files_run_on_other_pythons(name, wheel, tmp_path):
    """With the newest libraries that pip gives them."""
    python = shutil.which(name)
    if (
        not python
        or subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode
    ):
        pytest.skip(f"there is no {name} on PATH")
    run(python, "-m", "venv", tmp_path / "venv")
    run(tmp_path / "venv/bin/pip", "install", "--quiet", f"{wheel}[demo]")
    program = tmp_path / "venv/bin/ark-jax"
    run_ones_own_files(program, tmp_path)
    done = call(program, "demo")
    assert done.returncode == 0, done.stdout + done.stderr
