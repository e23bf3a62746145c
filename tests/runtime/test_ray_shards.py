"""A map over shards on a Ray cluster of two nodes, of which one is killed."""

import contextlib
import os
import signal
import sys

import pytest
from support import shard_work
from support.host_stages import data_and_extract
from support.paths import REPOSITORY
from support.world import make_world

from ark_jax.runtime import map_shards, ray_shards

NO_RAY = "host work on a cluster needs Ray: pip install 'ark-jax[ray]'"


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes on this host, the second of which a test may kill."""
    ray = pytest.importorskip("ray", reason=NO_RAY)
    from ray.cluster_utils import Cluster

    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    monkeypatch.setenv("PYTHONPATH", paths)
    handler, nodes = signal.getsignal(signal.SIGTERM), Cluster()
    try:
        nodes.add_node(num_cpus=1, include_dashboard=False)
        nodes.second = nodes.add_node(num_cpus=1)
        monkeypatch.setenv(ray_shards.ADDRESS, nodes.address)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.slow
def test_two_ray_nodes_give_all_results_despite_a_killed_node(cluster, capfd):
    ray, handler = pytest.importorskip("ray", reason=NO_RAY), signal.getsignal(signal.SIGTERM)
    seen = []
    with map_shards.use_engine("ray"):
        results = map_shards.map_shards(shard_work.node_observer, range(100))
        while len({node for _, _, node, _ in seen}) < 2:
            seen.append(next(results))
        node_id = ray.get_runtime_context().get_node_id()
        elsewhere = {process for _, process, node, _ in seen if node != node_id}
        # The node goes first: Ray must not start a worker there again.
        cluster.remove_node(cluster.second, allow_graceful=False)
        for process in elsewhere:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        seen += results
        with pytest.raises(ValueError, match=r"^documents.jsonl:3: text: is empty; fill it in$"):
            list(map_shards.map_shards(shard_work.refuser, range(9)))
    shards, processes, nodes, jax = zip(*seen, strict=True)
    assert shards == tuple(range(100)) and not any(jax) and os.getpid() not in processes
    assert set(nodes[-10:]) == {node_id}
    assert signal.getsignal(signal.SIGTERM) == handler
    assert "a worker says" not in capfd.readouterr().out


@pytest.mark.slow
def test_two_ray_nodes_write_the_same_files_as_one_process(
    cluster, tmp_path, tmp_path_factory, monkeypatch
):
    world = make_world(tmp_path_factory.mktemp("world"))
    whole = data_and_extract(world, tmp_path / "whole")
    monkeypatch.setattr(map_shards, "SHARD_SIZE", 1000)
    monkeypatch.setattr(map_shards, "_map_in_pool", None)
    assert data_and_extract(world, tmp_path / "ray", engine="ray") == whole


@pytest.mark.parametrize(
    ("address", "message"),
    [("", r"\$RAY_ADDRESS names no cluster"), ("h:6379", r"pip install 'ark-jax\[ray\]'")],
)
def test_a_missing_cluster_or_package_is_reported_with_the_fix(monkeypatch, address, message):
    monkeypatch.setenv(ray_shards.ADDRESS, address)
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with (
        map_shards.use_engine("ray"),
        pytest.raises(RuntimeError, match=rf"config.data.engine=ray.*{message}"),
    ):
        list(map_shards.map_shards(shard_work.packer, range(9)))
