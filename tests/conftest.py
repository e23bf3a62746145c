"""Eight fake CPU devices for every test, strict numerics, and the paths of real data and models."""

import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import jaxtyping
import pytest

# Modules whose functions compute with arrays. Their annotations, shapes included, are checked at
# every call. The hook must stand before the first of them is imported.
NUMERIC = (
    "ark_jax.layout",
    "ark_jax.models",
    "ark_jax.train",
    "ark_jax.select",
    "ark_jax.retrieval.dense",
    "ark_jax.graph.walk",
    "ark_jax.graph.pagerank",
    "ark_jax.evaluate.significance",
)
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
jaxtyping.install_import_hook(NUMERIC, CHECKER)

# Compiling takes most of the tests' time, so programs are not optimised, those of processes that
# tests start included. Partitioning, which could go wrong on a mesh, stays the same.
# `XLA_FLAGS= pytest` optimises them as a user's run does.
UNOPTIMISED = "--xla_backend_optimization_level=0"
if jax.__version_info__ < (0, 12):  # XLA ends the process at a flag that it no longer knows
    UNOPTIMISED += " --xla_cpu_use_fusion_emitters=false"
    # A program is one module of LLVM's: to cut it for several threads takes a third more CPU time.
    UNOPTIMISED += " --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("XLA_FLAGS", UNOPTIMISED)
# torch's products of tiny models take a microsecond; two threads wait for each other a thousand.
os.environ.setdefault("OMP_NUM_THREADS", "1")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_threefry_partitionable", True)

# Tracing makes many objects that live a moment. To look for garbage after every few hundred, as
# Python does by default, takes a tenth of the tests' time.
gc.set_threshold(50_000, 20, 20)

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("any pace", deadline=None)
hypothesis.settings.load_profile("any pace")

# A process that a script starts in the background ignores Ctrl-C. Its children would ignore it too,
# but tests interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Libraries set variables of their own when they are imported; these are the ones that we read.
VARIABLES = ("ARK_", "JAX_", "XLA_", "HF_", "TRANSFORMERS_", "OPENAI_", "CUDA_", "NO_PROXY")


def _process_state() -> dict[str, object]:
    """What belongs to the whole process: a test that changes it changes every later test."""
    variables = {
        f"${name}": value for name, value in os.environ.items() if name.startswith(VARIABLES)
    }
    handlers = {name.name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    mesh = jax.sharding.get_mesh()
    return {"mesh": mesh, "working directory": os.getcwd(), **variables, **handlers}


@contextlib.contextmanager
def _process_state_kept() -> Iterator[None]:
    """Restores mesh, variables, signal handlers and working directory; fails if one changed."""
    before = _process_state()
    yield
    after = _process_state()
    jax.set_mesh(before["mesh"])
    os.chdir(before["working directory"])
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, before[name.name])
    changed = sorted(name for name in before | after if before.get(name) != after.get(name))
    for name in changed:
        if name.startswith("$"):
            os.environ.pop(name[1:], None)
            if name in before:
                os.environ[name[1:]] = before[name]
    assert not changed, f"left changed for later tests: {', '.join(changed)}"


@pytest.fixture(autouse=True)
def process_state_kept_by_a_test():
    with _process_state_kept():
        yield


@pytest.fixture(autouse=True, scope="module")
def process_state_kept_by_a_module():
    with _process_state_kept():
        yield


# Linux lets a process hold 65,530 memory maps. Each compiled function takes some, and XLA crashes
# when no more are to be had, which in one process happens after some four fifths of the tests.
MOST_MEMORY_MAPS = 30_000


@pytest.fixture(autouse=True, scope="module")
def compiled_functions_released():
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MOST_MEMORY_MAPS:
        jax.clear_caches()


@pytest.fixture
def mesh():
    """One device, as on a laptop."""
    from ark_jax.layout import make_mesh

    with jax.set_mesh(make_mesh((1, 1, 1))) as mesh:
        yield mesh


# (2, 2, 2) cuts along every axis that (4, 1, 2) cuts along, which is slow therefore.
MESHES = [(1, 1, 1), (2, 2, 2), (1, 8, 1), pytest.param((4, 1, 2), marks=pytest.mark.slow)]


@pytest.fixture(params=MESHES, ids=str)
def any_mesh(request):
    """Every shape a result must not depend on."""
    from ark_jax.layout import make_mesh

    with jax.set_mesh(make_mesh(request.param)) as mesh:
        yield mesh


@pytest.fixture(params=[(1, 1, 1), (2, 2, 2)], ids=str)
def two_meshes(request):
    """One device, and eight along every axis: for more cases of what `any_mesh` compares."""
    from ark_jax.layout import make_mesh

    with jax.set_mesh(make_mesh(request.param)) as mesh:
        yield mesh


@pytest.fixture(scope="session")
def real_models():
    """The demo's MiniLM and SmolLM2, downloaded once into the usual cache."""
    from ark_jax.demo.models import demo_models

    return demo_models()
