"""A tiny world for the tests of a server, and a service of it."""

import pytest
from support import serving


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    return serving.world(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def service(world):
    """A service with all models but a reader."""
    service = serving.open_tiny(world, compare="base", rerank=True)
    yield service
    service.work.close()


@pytest.fixture(scope="session")
def client(service):
    with serving.serving(service) as client:
        yield client
