"""Personalised PageRank: networkx and igraph, every mesh, both ways to shard the work, refused
arguments."""

import json
import math
import re

import jax
import networkx as nx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import numbered
from support.matrices import random_matrix
from support.paths import DATA

from ark_jax.graph import pagerank
from ark_jax.graph.community import community
from ark_jax.graph.pagerank import personalized_pagerank
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.graph.walk import Walk
from ark_jax.layout import make_mesh


def by_networkx(
    matrix: scipy.sparse.sparray, seeds: list[list[int]], teleport: float
) -> np.ndarray:
    graph = nx.from_scipy_sparse_array(matrix, create_using=nx.DiGraph)
    ranks = [
        nx.pagerank(
            graph,
            alpha=1 - teleport,
            personalization=dict.fromkeys(nodes, 1),
            tol=1e-12,
            max_iter=10_000,
        )
        for nodes in seeds
    ]
    return np.array([[r[i] for i in range(len(graph))] for r in ranks])


def adjacency(graph: KnowledgeGraph) -> scipy.sparse.sparray:
    source, target = graph.neighbours()
    return scipy.sparse.coo_array(
        (np.ones(len(source)), (source, target)), (len(graph), len(graph))
    ).tocsr()


@st.composite
def problems(draw):
    """A matrix with nodes that lead nowhere, loops, equal pairs and zero weights; seed sets; a
    teleport probability."""
    n = draw(st.sampled_from([1, 2, 3, 5, 12]))
    pair = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    edges = draw(st.lists(pair, max_size=40))
    weights = draw(
        st.lists(
            st.sampled_from([0.0, 0.25, 1.0, 1.0, 3.5]), min_size=len(edges), max_size=len(edges)
        )
    )
    if draw(st.booleans()):
        edges, weights = edges + [(b, a) for a, b in edges], weights * 2
    seeds = draw(
        st.lists(st.lists(st.integers(0, n - 1), min_size=1, max_size=4), min_size=1, max_size=3)
    )
    matrix = scipy.sparse.coo_array(
        (weights, ([a for a, _ in edges], [b for _, b in edges])), (n, n)
    )
    return matrix, seeds, draw(st.sampled_from([0.15, 0.3, 0.5, 0.85, 1.0]))


@settings(max_examples=50, deadline=None)
@given(problems())
def test_pagerank_matches_networkx_on_random_graphs(problem):
    matrix, seeds, teleport = problem
    with jax.set_mesh(make_mesh((1, 2, 1))):
        ranks = personalized_pagerank(
            Walk(matrix, shard="nodes"), seeds, teleport=teleport, tolerance=1e-10, dtype="float64"
        )
    np.testing.assert_allclose(ranks, by_networkx(matrix.tocsr(), seeds, teleport), atol=1e-8)
    np.testing.assert_allclose(ranks.sum(axis=1), 1, atol=1e-12)


def test_given_edge_weights_are_used(mesh):
    rng = np.random.default_rng(0)
    graph = numbered(
        30, sorted({(a, b) for a, b in rng.integers(0, 30, (60, 2)).tolist() if a < b})
    )
    source, target = graph.neighbours()
    weight = (source + 1.0) * (target + 1) / 7
    weight[(source == 3) | (target == 3)] = 0
    matrix = scipy.sparse.coo_array((weight, (source, target)), (30, 30)).tocsr()
    seeds = [[1, 5], [3], [29, 0, 7]]
    ranks = personalized_pagerank(matrix, seeds, teleport=0.3, tolerance=1e-10, dtype="float64")
    np.testing.assert_allclose(ranks, by_networkx(matrix, seeds, 0.3), atol=1e-8)
    assert (
        np.abs(
            ranks
            - personalized_pagerank(graph, seeds, teleport=0.3, tolerance=1e-10, dtype="float64")
        ).max()
        > 0.01
    )


def real(name: str) -> scipy.sparse.sparray | KnowledgeGraph:
    folder = DATA / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set ARK_DATA to rank a real graph")
    if name == "fb15k237":
        ends = np.loadtxt(folder / "train2id.txt", skiprows=1, dtype=int)[:, [0, 2]]
        return scipy.sparse.coo_array(
            (np.ones(len(ends)), (ends[:, 0], ends[:, 1])), (14_541, 14_541)
        )
    docs = json.loads(next(folder.glob("openie_*.json")).read_text())["docs"]
    return KnowledgeGraph.from_triples(
        t for doc in docs for t in doc["extracted_triples"] if len(t) == 3
    )


@pytest.mark.parametrize("name", ["fb15k237", "musique_openie"])
def test_pagerank_matches_networkx_on_real_graphs(name, mesh):
    """FB15k-237 is directed, with loops and equal pairs; the other is not, and in over a thousand
    pieces."""
    graph = real(name)
    matrix = adjacency(graph) if isinstance(graph, KnowledgeGraph) else graph.tocsr()
    seeds = [[11], [1, 5, 4_000], np.random.default_rng(0).integers(0, matrix.shape[0], 9).tolist()]
    ranks = personalized_pagerank(graph, seeds, teleport=0.15, tolerance=1e-10, dtype="float64")
    np.testing.assert_allclose(ranks, by_networkx(matrix, seeds, 0.15), atol=1e-8)
    single = personalized_pagerank(graph, seeds, teleport=0.15, tolerance=1e-6)
    assert single.dtype == np.float32
    np.testing.assert_allclose(
        single, ranks, atol=7e-6
    )  # a residual of 1e-6 is an error of up to 1e-6 / teleport


@pytest.mark.parametrize("name", ["fb15k237", "musique_openie"])
def test_pagerank_matches_prpack_on_real_graphs(name, mesh):
    igraph = pytest.importorskip("igraph", reason="igraph is in the extra [reference]")
    graph = real(name)
    matrix = (adjacency(graph) if isinstance(graph, KnowledgeGraph) else graph).tocoo()
    # prpack spreads what dangles over all nodes; here it goes back to the seeds. So only
    # graphs without such nodes.
    degree = np.asarray(matrix.sum(axis=1)).ravel()
    connected = np.flatnonzero(degree + np.asarray(matrix.sum(axis=0)).ravel())
    matrix = (matrix + matrix.T).tocsr()[connected][:, connected].tocoo()
    theirs = igraph.Graph(
        n=len(connected), edges=np.stack(matrix.coords, 1).tolist(), directed=True
    )
    seeds = [[11], [1, 5, 4_000]]
    ranks = personalized_pagerank(matrix, seeds, teleport=0.15, tolerance=1e-10, dtype="float64")
    expected = [
        theirs.personalized_pagerank(
            reset_vertices=nodes,
            damping=0.85,
            weights=matrix.data.tolist(),
            implementation="prpack",
        )
        for nodes in seeds
    ]
    np.testing.assert_allclose(ranks, expected, atol=1e-8)


@pytest.mark.parametrize(
    ("devices", "shard", "symmetric"),
    [
        (8, "seeds", True),
        (8, "seeds", False),
        (8, "nodes", True),
        (8, "nodes", False),
        # Eight devices divide neither the nodes nor the seeds, and fewer have no other program.
        (2, "nodes", True),
        (4, "seeds", False),
    ],
)
def test_ranks_do_not_depend_on_the_devices(devices, shard, symmetric):
    matrix = random_matrix(500, 1500, symmetric)
    seeds = [[i, 3 * i + 1] for i in range(11)]
    with jax.set_mesh(make_mesh((1, devices, 1))):
        ranks = personalized_pagerank(
            Walk(matrix, shard=shard), seeds, teleport=0.2, tolerance=1e-8, dtype="float64"
        )
        loose = personalized_pagerank(
            Walk(matrix, shard=shard), seeds, teleport=0.2, tolerance=1e-3
        )
    expected = by_networkx(matrix, seeds, 0.2)
    np.testing.assert_allclose(ranks, expected, atol=1e-7)
    with jax.set_mesh(make_mesh((1, 1, 1))):
        alone = personalized_pagerank(matrix, seeds, teleport=0.2, tolerance=1e-3)
    # The same iterate is kept, not just one that is as good.
    np.testing.assert_allclose(loose, alone, atol=1e-6)
    assert np.abs(loose - expected).max() > 1e-4


def test_a_seed_set_does_not_depend_on_its_batch(two_meshes):
    rng = np.random.default_rng(0)
    graph = numbered(
        60, [(a, b) for a in range(40) for b in rng.integers(a + 1, 60, 2).tolist() if a < b]
    )
    seeds = [[0], [3, 5], [59], [10, 11, 12, 13], [41]]
    # A loose bound: sets stop after different numbers of steps, and more steps would show.
    options = {"teleport": 0.15, "tolerance": 1e-2}
    together = personalized_pagerank(graph, seeds * 30, **options)
    alone = [personalized_pagerank(graph, [seed], **options)[0] for seed in seeds]
    np.testing.assert_allclose(together, np.tile(alone, (30, 1)), atol=1e-6)
    exact = personalized_pagerank(graph, seeds, teleport=0.15, tolerance=1e-6)
    assert np.abs(exact - together[:5]).max() > 1e-4


def test_the_residual_of_the_ranks_is_below_the_tolerance(mesh):
    """Of the ranks that are returned, in float64, on graphs where most nodes lead nowhere, few do,
    and none does."""
    worst = 0.0
    for seed, symmetric in ((1, False), (2, True), (3, False)):
        matrix = random_matrix(400, 1000 if seed == 1 else 3000, symmetric, seed)
        out = np.asarray(matrix.sum(axis=1)).ravel()
        seeds = [[5], [399], [0, 1, 2], [7, 398]]
        ranks = personalized_pagerank(matrix, seeds, teleport=0.1, tolerance=1e-4)
        for row, nodes in zip(ranks.astype(np.float64), seeds, strict=True):
            start = np.isin(np.arange(400), nodes) / len(nodes)
            again = 0.1 * start + 0.9 * (
                matrix.T @ (row / np.where(out, out, 1)) + row[out == 0].sum() * start
            )
            worst = max(worst, np.abs(again - row).max())
    assert 1e-6 < worst < 1e-4


@pytest.mark.parametrize("symmetric", [True, False])
def test_float32_stops_at_its_own_precision(symmetric, mesh):
    """A bound below what float32 resolves does not make it go round for ever, nor give up early:
    weights of ten magnitudes,
    a hub, and a graph that mixes slowly."""
    rng = np.random.default_rng(0)
    wild = random_matrix(2000, 9000, symmetric, 7)
    wild = wild.multiply(
        scipy.sparse.csr_array(
            (10 ** rng.uniform(-5, 5, wild.nnz), wild.indices, wild.indptr), wild.shape
        )
    )
    ring = scipy.sparse.diags_array([np.ones(1999), np.ones(1999)], offsets=[1, -1]).tolil()
    ring[0, :] = ring[:, 0] = 1
    for matrix in ((wild + wild.T if symmetric else wild).tocsr(), ring.tocsr()):
        options = {"seeds": [[3], [0, 1_500], [77, 78]], "teleport": 0.15}
        exact = personalized_pagerank(matrix, **options, tolerance=1e-13, dtype="float64")
        ranks = personalized_pagerank(matrix, **options, tolerance=1e-13, max_iterations=200)
        assert ranks.dtype == np.float32 and np.abs(ranks - exact).sum(axis=1).max() < 3e-6


def test_a_slowly_mixing_graph_converges_in_few_steps(mesh):
    """On a ring of cliques plain steps need some 1/teleport · log(1/ε), Chebyshev's the root of
    that."""
    cliques = [(10 * c + a, 10 * c + b) for c in range(40) for a in range(10) for b in range(a)]
    graph = numbered(400, cliques + [(10 * c, (10 * c + 15) % 400) for c in range(40)])
    exact = by_networkx(adjacency(graph), [[3]], 0.01)
    ranks = personalized_pagerank(graph, [[3]], teleport=0.01, tolerance=1e-6, max_iterations=120)
    np.testing.assert_allclose(ranks, exact, atol=1e-4)
    plain = scipy.sparse.csr_array(adjacency(graph))
    plain.data[0] *= 1 + 1e-9  # no longer the same in both directions
    with pytest.raises(ValueError, match="no convergence in 120"):
        personalized_pagerank(plain, [[3]], teleport=0.01, tolerance=1e-6, max_iterations=120)


def test_a_bipartite_graph_converges(mesh):
    """The walk has the eigenvalue -1: odd and even steps see different halves."""
    star = numbered(9, [(0, i) for i in range(1, 9)])
    for teleport in (0.05, 0.5):
        ranks = personalized_pagerank(
            star, [[0], [4]], teleport=teleport, tolerance=1e-10, dtype="float64"
        )
        np.testing.assert_allclose(
            ranks, by_networkx(adjacency(star), [[0], [4]], teleport), atol=1e-8
        )


@pytest.mark.parametrize("shard", ["seeds", "nodes"])
def test_ranks_equal_examples_worked_by_hand(shard, two_meshes):
    options = {"teleport": 0.5, "tolerance": 1e-8, "dtype": "float64"}
    # Nodes 0 and 1 are joined; node 2 is alone. From 0 the ranks are a geometric series.
    pair_and_one = Walk(numbered(3, [(0, 1)]), shard=shard)
    ranks = personalized_pagerank(pair_and_one, [[0], [2]], **options)
    np.testing.assert_allclose(ranks, [[2 / 3, 1 / 3, 0], [0, 0, 1]], atol=1e-8)
    one_way = scipy.sparse.csr_array(np.array([[0, 3.0, 0], [0, 0, 0], [1, 0, 1]]))
    ranks = personalized_pagerank(Walk(one_way, shard=shard), [[2], [0, 0]], **options)
    # Node 2 gives a quarter of its rank to 0. Half of that goes on to 1, which leads nowhere:
    # it gives its rank back to 2.
    np.testing.assert_allclose(ranks, [[2 / 11, 1 / 11, 8 / 11], [2 / 3, 1 / 3, 0]], atol=1e-8)


@pytest.mark.parametrize("shard", ["seeds", "nodes"])
@pytest.mark.parametrize(("scale", "error"), [(1e-39, 1e-8), (1e-320, 1e-3), (1e300, 1e-8)])
def test_only_the_ratios_of_edge_weights_matter(scale, error, shard, two_meshes):
    options = {"teleport": 0.5, "tolerance": 1e-8, "dtype": "float64"}
    one_way = scipy.sparse.csr_array(np.array([[0, 3.0, 0], [0, 0, 0], [1, 0, 1]]))
    ranks, scaled = (
        personalized_pagerank(Walk(graph, shard=shard), [[2], [0]], **options)
        for graph in (one_way, one_way * scale)
    )
    np.testing.assert_allclose(scaled, ranks, atol=error)


def test_nodes_of_every_degree_get_the_ranks_of_networkx(mesh):
    """Nodes of every number of edges about the tables' widths, and more sets than a block has
    columns."""
    n = 60
    matrix = scipy.sparse.csr_array(
        (np.arange(n)[:, None] + np.arange(n)[None, :] >= n).astype(float)
    )
    assert sorted(set(np.diff(matrix.indptr))) == list(range(n))
    seeds = [[i % n] for i in range(150)]
    ranks = personalized_pagerank(matrix, seeds, teleport=0.15, tolerance=1e-9, dtype="float64")
    np.testing.assert_allclose(ranks, by_networkx(matrix, seeds, 0.15), atol=1e-8)


@pytest.mark.parametrize("shard", ["seeds", "nodes"])
def test_no_seed_sets_give_no_rows(shard, two_meshes):
    for nodes, edges in ((3, [(0, 1)]), (0, [])):
        walk = Walk(numbered(nodes, edges), shard=shard)
        ranks = personalized_pagerank(walk, [], teleport=0.5, tolerance=1e-6)
        assert ranks.shape == (0, nodes)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"seeds": [[0], []]}, r"seeds\[1\] is empty: give at least one node"),
        ({"seeds": [[0, 3]]}, r"seeds\[0\]: node 3 is outside 0\.\.2"),
        ({"seeds": [[1], [2, -1]]}, r"seeds\[1\]: node -1 is outside 0\.\.2"),
        ({"teleport": 0.0}, r"teleport=0\.0: must be in \(0, 1\]"),
        ({"teleport": 1.1}, r"teleport=1\.1"),
        ({"teleport": math.nan}, "teleport=nan"),
        ({"tolerance": 0.0}, r"tolerance=0\.0: must be above 0"),
        ({"tolerance": math.nan}, "tolerance=nan"),
        (
            {"max_iterations": 2},
            r"no convergence in 2 iterations: raise max_iterations or tolerance=1e-06",
        ),
        ({"dtype": "bfloat16"}, "dtype='bfloat16': must be float32 or float64"),
        (
            {"graph": scipy.sparse.csr_array(np.ones((2, 3)))},
            r"a matrix of shape \(2, 3\) is not square",
        ),
        ({"graph": scipy.sparse.csr_array(-np.eye(3))}, "a weight is negative or not finite"),
        (
            {"graph": scipy.sparse.csr_array(math.inf * np.ones((3, 3)))},
            "a weight is negative or not finite",
        ),
    ],
)
def test_invalid_arguments_of_pagerank_are_refused(change, words, mesh):
    options = {
        "graph": numbered(3, [(0, 1), (1, 2)]),
        "seeds": [[0]],
        "teleport": 0.15,
        "tolerance": 1e-6,
        **change,
    }
    with pytest.raises(ValueError, match=words):
        personalized_pagerank(options.pop("graph"), options.pop("seeds"), **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_ranks_of_a_seed_set_do_not_depend_on_its_block(dtype, mesh):
    rng = np.random.default_rng(4)
    graph = scipy.sparse.random_array((900, 900), density=0.004, rng=rng).tocsr()
    ranks = lambda seeds: personalized_pagerank(
        graph, seeds, teleport=0.05, tolerance=1e-6, dtype=dtype
    )
    alone, among = ranks([[3], [7]]), ranks([[3], *([i] for i in range(40)), [7]])
    assert np.array_equal(alone[0], among[0]) and np.array_equal(alone[1], among[-1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("orders", [20, 40, 90, 200])
def test_weights_of_any_size_give_ranks_or_an_error(dtype, orders, mesh):
    rng = np.random.default_rng(orders)
    ends, weights = rng.integers(0, 60, (2, 300)), 10 ** rng.uniform(-orders / 2, orders / 2, 300)
    graph = scipy.sparse.csr_array((weights, tuple(ends)), shape=(60, 60))
    try:
        ranks = personalized_pagerank(
            graph, [[i] for i in range(20)], teleport=0.15, tolerance=1e-5, dtype=dtype
        )
    except ValueError as error:
        assert orders > 40 and re.search("too far apart|no convergence", str(error))
    else:
        assert np.allclose(ranks.sum(axis=1), 1) and ranks.min() >= 0


@pytest.mark.parametrize(
    ("kind", "shard"), [("symmetric", "seeds"), ("directed", "nodes"), ("unweighted", "nodes")]
)
def test_residuals_on_the_host_give_the_ranks_of_float64(kind, shard, mesh, monkeypatch):
    """As on TPUs; hubs of hundreds of edges, dangling nodes, weights that are no float32."""
    rng = np.random.default_rng(1)
    if kind == "unweighted":
        ends = np.sort(np.stack([(rng.zipf(1.5, 3000) - 1) % 400, rng.integers(0, 400, 3000)], 1))
        graph = numbered(400, sorted({(a, b) for a, b in ends.tolist() if a < b}))
    else:
        graph = random_matrix(400, 3000, kind == "symmetric")
        graph.data /= 3
    seeds = [sorted(rng.choice(400, 3, replace=False).tolist()) for _ in range(20)]
    walk = Walk(graph, shard=shard)
    options = {"teleport": 0.15, "tolerance": 1e-13, "dtype": "float64"}
    wanted = personalized_pagerank(walk, seeds, **options)
    monkeypatch.setattr(pagerank, "emulates_float64", lambda: True)
    monkeypatch.setattr(jax, "enable_x64", lambda on: pytest.fail("float64 on a device"))
    ours = personalized_pagerank(walk, seeds, **options)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=4e-13)
    limits = {"at_least": 3, "at_most": 50, "floor": 0.0}
    for x, y in zip(ours, wanted, strict=True):
        assert community(x, **limits) == community(y, **limits)
