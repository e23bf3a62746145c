"""Graphs of triples against networkx.

    python tests/benchmarks/kg.py [graph] [paths] [parquet]

`graph` builds MetaQA's graph from $ARK_DATA, reads it from text, opens it from disk and asks for
neighbours. The peer is networkx.MultiDiGraph; its file is a pickle, the fastest form that it has.
`paths` finds all shortest relation paths of MetaQA's questions of three hops, to at most three
answers each. The peer is networkx.all_shortest_paths, a call an answer; and its best, one search a
topic that ends after three hops. All give the same paths.
`parquet` reads random triples of strings from Parquet in a process of its own, which prints its
seconds and the most memory that it held. TRIPLES, NODES, QUESTIONS and ROUNDS make it smaller.
"""

import itertools
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from timing import machine, race, report

from ark_jax.graph.linked_questions import link
from ark_jax.graph.steps import PathLimits, Steps, shortest_paths
from ark_jax.graph.triple_questions import read_questions
from ark_jax.graph.triples import Triples

DATA = Path(os.environ.get("ARK_DATA", Path(__file__).parents[3] / "shared" / "data"))
METAQA = DATA / "kg" / "metaqa"
TRIPLES, NODES, QUESTIONS, ROUNDS = (
    int(os.environ.get(name, value))
    for name, value in (
        ("TRIPLES", 10_000_000),
        ("NODES", 2_000_000),
        ("QUESTIONS", 10),
        ("ROUNDS", 7),
    )
)
FILES = [METAQA / f"kb_{part}.tsv" for part in ("train", "dev", "test", "test_old")]


def multigraph(rows) -> nx.MultiDiGraph:
    graph = nx.MultiDiGraph()
    graph.add_edges_from((head, tail, relation) for head, relation, tail in rows)
    return graph


def lines_of_files():
    for path in FILES:
        with path.open(encoding="utf-8") as file:
            yield from (line.rstrip("\n").split("\t") for line in file)


def graph() -> None:
    rows = list(lines_of_files())
    ours, peer = Triples.from_triples(rows), multigraph(rows)
    assert len(ours) == peer.number_of_edges()
    with tempfile.TemporaryDirectory() as folder:
        ours.save(folder)
        stored = Path(folder) / "peer.pickle"
        stored.write_bytes(pickle.dumps(peer, pickle.HIGHEST_PROTOCOL))
        builders = {
            "ark_jax": lambda: Triples.from_triples(rows),
            "networkx": lambda: multigraph(rows),
        }
        report("build MetaQA's graph", "triples", len(rows), race(builders, rounds=ROUNDS))
        readers = {
            "ark_jax": lambda: Triples.read(*FILES),
            "networkx": lambda: multigraph(lines_of_files()),
        }
        report("read it from text", "triples", len(rows), race(readers, rounds=ROUNDS))
        openers = {
            "ark_jax": lambda: Triples.load(folder),
            "networkx, pickle": lambda: pickle.loads(stored.read_bytes()),
        }
        report("open it from disk", "triples", len(ours), race(openers, rounds=ROUNDS))
    ids = ours.nodes.ids.to_pylist()
    for name, nodes in (("all nodes", range(len(ids))), ("its 100 largest hubs", hubs(ours))):
        askers = {
            "ark_jax": lambda nodes=nodes: [ours.rows(node) for node in nodes],
            "networkx": lambda nodes=nodes: [rows_of(peer, ids[n]) for n in nodes],
        }
        timings = race(askers, rounds=ROUNDS)
        report(f"triples of {name}", "nodes", len(nodes), timings)


def rows_of(peer: nx.MultiDiGraph, node: str) -> list:
    return [*peer.in_edges(node, keys=True), *peer.out_edges(node, keys=True)]


def hubs(graph: Triples) -> list[int]:
    return np.argsort(-graph.degrees())[:100].tolist()


def paths() -> None:
    steps = Steps(Triples.read(*FILES, names=METAQA / "kb_entity2text.txt"), inverse=True)
    peer = stepwise_multigraph(steps)
    questions, _ = read_questions(METAQA / "3hop_dev.txt")
    linked = link(questions[:: len(questions) // QUESTIONS][:QUESTIONS], steps.graph)
    topics_and_answers = [
        (topic, linked.answer_nodes(i)[:3].tolist())
        for i, topics in enumerate(linked.topics)
        for topic in topics[:1]
    ]

    def ours() -> list[set]:
        limits = PathLimits(hops=3, seconds=0, paths=0)
        by_topic = (
            shortest_paths(steps, [topic], answers, limits)[0]
            for topic, answers in topics_and_answers
        )
        return [{path.steps for path in paths} for paths in by_topic]

    def shipped() -> list[set]:
        by_topic = []
        for topic, answers in topics_and_answers:
            ways = [nx.all_shortest_paths(peer, topic, a) for a in answers if a != topic]
            short = [nodes for way in ways for nodes in way if len(nodes) < 5]
            by_topic.append({path for nodes in short for path in relation_paths(peer, nodes)})
        return by_topic

    def best() -> list[set]:
        by_topic = []
        for topic, answers in topics_and_answers:
            before = nx.predecessor(peer, topic, cutoff=3)
            ends = [answer for answer in answers if answer in before and answer != topic]
            ways = [nodes for answer in ends for nodes in ways_back(before, answer)]
            by_topic.append({path for nodes in ways for path in relation_paths(peer, nodes)})
        return by_topic

    assert ours() == shipped() == best()
    contenders = {
        "ark_jax": ours,
        "networkx, all_shortest_paths": shipped,
        "networkx, one search a topic": best,
    }
    report(
        "shortest relation paths",
        "questions",
        len(topics_and_answers),
        race(contenders, rounds=ROUNDS),
    )


def stepwise_multigraph(steps: Steps) -> nx.MultiDiGraph:
    """The graph with an edge for each step, both ways."""
    graph, size = steps.graph, len(steps.graph.relations)
    columns = (column.tolist() for column in (graph.head, graph.relation, graph.tail))
    peer = nx.MultiDiGraph()
    for head, relation, tail in zip(*columns, strict=True):
        peer.add_edge(head, tail, relation)
        peer.add_edge(tail, head, relation + size)
    return peer


def relation_paths(peer: nx.MultiDiGraph, nodes: list[int]):
    return itertools.product(*(list(peer[a][b]) for a, b in itertools.pairwise(nodes)))


def ways_back(before: dict[int, list[int]], node: int) -> list[list[int]]:
    starts = before[node]
    return [[*way, node] for start in starts for way in ways_back(before, start)] or [[node]]


def parquet() -> None:
    rng = np.random.default_rng(0)
    names = pa.array([f"m.0{number:07x}" for number in rng.permutation(NODES)])
    relations = pa.array([f"domain.type_{i}.property_{i}" for i in range(1_000)])
    # Heads are even; tails and relations have hubs and a long tail.
    tailed = lambda size: (rng.pareto(1.2, TRIPLES) * size / 50).astype(np.int64) % size
    heads = rng.integers(0, NODES, TRIPLES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kb.parquet"
        columns = {
            "head": names.take(pa.array(heads)),
            "relation": relations.take(pa.array(tailed(1_000))),
            "tail": names.take(pa.array(tailed(NODES))),
        }
        pq.write_table(pa.table(columns), path)
        del columns, names, heads
        print(f"\nread {TRIPLES:,} triples of strings from {path.stat().st_size >> 20} MiB")
        for _ in range(3):
            subprocess.run([sys.executable, __file__, "read", str(path)], check=True)


def read(path: str) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    triples = Triples.read(path)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) >> 10
    print(f"  {seconds:.2f} s ({cpu:.2f} s of CPU), peak {peak:,} MiB, {len(triples):,} triples")


if __name__ == "__main__":
    parts = {"graph": graph, "paths": paths, "parquet": parquet}
    if sys.argv[1:2] == ["read"]:
        read(sys.argv[2])
    else:
        print(machine())
        for part in sys.argv[1:] or parts:
            parts[part]()
