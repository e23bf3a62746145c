"""The wheel works by itself, without a checkout."""

import os
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.paths import REPOSITORY

from ark_jax.cli import config_files


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """`ark-jax` of the wheel, in an environment of its own that sees the libraries of this one."""
    root = tmp_path_factory.mktemp("wheel")
    source = root / "source"
    source.mkdir()
    for name in ("ark_jax", "setup.py", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", REPOSITORY / name, source], check=True)
    run = lambda *words: subprocess.run(
        list(map(str, words)), check=True, capture_output=True, text=True, cwd=root
    )
    run(sys.executable, "-m", "venv", root / "venv")
    python = root / "venv" / "bin" / "python"
    build = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    run(*build, "--wheel-dir", root / "dist", source)
    (wheel,) = (root / "dist").glob("ark_jax-*.whl")
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    packages = [sysconfig.get_path("purelib"), *site.getsitepackages()]
    inside = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    libraries = "".join(f"{path}\n" for path in dict.fromkeys(packages))
    (Path(inside.stdout.strip()) / "libraries.pth").write_text(libraries)
    return root / "venv" / "bin" / "ark-jax"


def call(program: Path, *words: str) -> subprocess.CompletedProcess:
    """Runs the program in an empty folder, with nothing of the checkout on its path."""
    place = program.parents[2] / "place"
    place.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [program, *words], capture_output=True, text=True, cwd=place, env=environment, timeout=300
    )


@pytest.mark.slow
def test_configs_presets_and_sweeps_are_in_the_wheel(program):
    done = call(program, "config", "train", "--config=ark:paper")
    assert done.returncode == 0, done.stderr
    assert "* train.denominator = 'own'" in done.stdout
    for name in config_files.preset_names():
        if name != "demo":  # which fetches models
            done = call(program, "config", "data", f"--config={name}")
            assert done.returncode == 0 and "  data.path = ''" in done.stdout, done.stderr
    done = call(program, "sweep", "--config=ark:sweep=nope", "--workdir=w")
    assert "there are temperature, lambda, positives" in done.stderr
    code = "import ark_jax; print(ark_jax.__file__)"
    place = call(program.with_name("python"), "-c", code).stdout
    assert place.startswith(str(program.parents[1]))


@pytest.mark.slow
def test_a_plan_of_the_wheels_own_corpus_needs_no_checkout(program):
    """`init` on the packaged corpus, whose config `plan` reads; a plan downloads no model."""
    (corpus,) = program.parents[1].glob("lib/*/site-packages/ark_jax/demo")
    made = call(program, "init", str(corpus))
    assert made.returncode == 0, made.stdout + made.stderr
    shown = call(program, "status", "--config=config.py", "--workdir=run")
    assert shown.returncode == 0 and shown.stdout.count(" missing") == 17, shown.stderr
    models = (
        "--config.retriever.path=Qwen/Qwen3-Embedding-0.6B",
        "--config.generator.path=HuggingFaceTB/SmolLM2-135M-Instruct",
    )
    done = call(program, "plan", "--config=ark:paper", f"--config.data.path={corpus}", *models)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "48 held-out questions" in done.stdout and "\ntotal: $0, about " in done.stdout
