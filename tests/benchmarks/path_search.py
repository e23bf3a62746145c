"""Beam search for relation paths against a loop in torch, and what it costs.

    python tests/benchmarks/path_search.py [beam] [cost] [twostep] [ceiling]

`beam` searches MetaQA with a cross-encoder of MiniLM's size. The peer has the same weights, graph
and rules in transformers, and goes as SRTK and RD-P do: one question at a time, a padded forward
for each path of the beam; in its best form one for all paths of a hop.
`cost` gives pairs and seconds by hops, beam and number of candidates.
`twostep` ranks WebQSP's relation paths, whose first step has some 700 candidates, with and without
a prefilter, and counts the questions whose gold paths the prefilter's best 64 lack. SCORER=FOLDER
takes a trained pair scorer in place of MiniLM's cosines.
`ceiling` says what a chooser of shortest paths would have on the held-out questions of the run of
STAR in RUN=DIR, and which part of the run's lost F1 is due to the choice among them.
QUESTIONS and ROUNDS make it smaller.
"""

import functools
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from flax import nnx
from ml_collections import ConfigDict
from timing import machine, race, report

from ark_jax import CrossEncoder, Triples
from ark_jax.demo.models import demo_models
from ark_jax.graph.beam import BeamResult, BeamRules, FoundPath, search
from ark_jax.graph.linked_questions import link
from ark_jax.graph.steps import END, Steps, path_text, remove_node
from ark_jax.graph.triple_questions import read_questions
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.star.data import load_paths, load_questions, load_steps
from ark_jax.recipes.star.evaluate import found_paths
from ark_jax.recipes.star.search import TUNED, measure

DATA = Path(os.environ.get("ARK_DATA", Path(__file__).parents[3] / "shared" / "data")) / "kg"
QUESTIONS, ROUNDS = (
    int(os.environ.get(name, value)) for name, value in (("QUESTIONS", 24), ("ROUNDS", 5))
)
DIGITS = 3


@functools.cache
def metaqa() -> Steps:
    folder = DATA / "metaqa"
    files = [folder / f"kb_{part}.tsv" for part in ("train", "dev", "test", "test_old")]
    return Steps(Triples.read(*files, names=folder / "kb_entity2text.txt"), inverse=True)


@functools.cache
def asked() -> tuple[list[str], list[tuple[int, ...]]]:
    """Questions of one, two and three hops, and their topics."""
    questions = []
    for hops in (1, 2, 3):
        of_file, _ = read_questions(DATA / "metaqa" / f"{hops}hop_dev.txt")
        questions += of_file[:: 3 * len(of_file) // QUESTIONS][: QUESTIONS // 3]
    linked = link(questions, metaqa().graph)
    return [question.question for question in questions], linked.topics


@functools.cache
def cross_encoder() -> CrossEncoder:
    """MiniLM with a head that is drawn at random, wide enough to tell paths apart."""
    scorer = CrossEncoder.from_pretrained(demo_models()["retriever"], head="linear")
    head = scorer.model.head
    head.out = nnx.Param(head.out[...] * 100)
    return scorer


class Loop:
    """The peer: the same search, one question and one path of the beam at a time."""

    def __init__(self, folder: Path, *, by_hop: bool, precision: str) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.torch, self.by_hop, self.precision = torch, by_hop, precision
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def forward(self, question: str, texts: list[str]) -> list[float]:
        if not texts:
            return []
        self.torch.set_float32_matmul_precision(self.precision)
        with self.torch.inference_mode():
            batch = self.tokenizer(
                [question] * len(texts), texts, padding=True, truncation=True, return_tensors="pt"
            )
            return self.model(**batch).logits[:, 0].double().numpy().round(DIGITS).tolist()

    def search(self, steps: Steps, rules: BeamRules) -> list[list[tuple]]:
        results = []
        for question, topics in zip(*asked(), strict=True):
            ended = [path for topic in topics for path in self.beam(question, topic, steps, rules)]
            results.append(sorted(ended))
        return results

    def beam(self, question: str, topic: int, steps: Steps, rules: BeamRules) -> list[tuple]:
        live, ended, name = [()], [], steps.graph.nodes.name(topic)
        for hop in range(rules.hops + 1):
            groups = []
            for path in live:
                nodes = steps.walk(topic, path)
                onward = steps.options(nodes).tolist() if hop < rules.hops else []
                closing = [END] if path and len(remove_node(nodes, topic)) else []
                groups.append([(*path, step) for step in closing + onward])
            if self.by_hop:
                groups = [list(itertools.chain(*groups))]
            scored = []
            for paths in groups:
                texts = [text_of(name, path, steps) for path in paths]
                scores = self.forward(question, texts)
                scored += [(-score, path) for score, path in zip(scores, paths, strict=True)]
            best = sorted(scored)[: rules.beam]
            ended += [(score, topic, path[:-1]) for score, path in best if path[-1] == END]
            if not best or best[0][1][-1] == END:
                break
            live = [path for _, path in best if path[-1] != END]
        return ended


def text_of(name: str, path: Sequence[int], steps: Steps) -> str:
    ended = path[-1] == END
    return path_text(name, [steps.names[s] for s in path[: -1 if ended else None]], ended)


def beam() -> None:
    rules, steps, scorer = BeamRules(), metaqa(), cross_encoder()
    with tempfile.TemporaryDirectory() as folder:
        scorer.save_pretrained(folder)
        loops = {
            "transformers, a forward a path": Loop(Path(folder), by_hop=False, precision="highest"),
            "the same, medium": Loop(Path(folder), by_hop=False, precision="medium"),
            "transformers, a forward a hop": Loop(Path(folder), by_hop=True, precision="highest"),
            "the same by hop, medium": Loop(Path(folder), by_hop=True, precision="medium"),
        }
        ours = lambda: search(*asked(), steps, scorer, rules)
        result = ours()
        theirs = loops["transformers, a forward a path"].search(steps, rules)
        same = sum(
            [path.steps for path in paths] == [path for _, _, path in their_paths]
            for paths, their_paths in zip(result.paths, theirs, strict=True)
        )
        contenders = {"ark_jax": ours} | {
            name: functools.partial(loop.search, steps, rules) for name, loop in loops.items()
        }
        count = len(asked()[0])
        report(
            f"MetaQA, beam {rules.beam}, {rules.hops} hops, {result.pairs / count:.0f} pairs a "
            f"question; {same} of {count} questions get the same paths in the same order",
            "questions",
            count,
            race(contenders, rounds=ROUNDS),
        )


def cost() -> None:
    scorer = cross_encoder()
    count = len(asked()[0])
    print("\nMetaQA: milliseconds a question, all and on the host alone")
    print("  hops  beam  pairs a question     all    host  largest set of nodes")
    for hops, width in ((1, 5), (2, 5), (3, 1), (3, 5), (3, 10)):
        rules = BeamRules(width, hops)
        run = functools.partial(search, *asked(), metaqa(), rules=rules)
        result, seconds = timed(lambda run=run: run(scorer=scorer))
        reply = Replay(scorer)
        run(scorer=reply)
        _, host = timed(lambda run=run, reply=reply: run(scorer=reply.again()))
        nodes = max(
            len(metaqa().walk(path.topic, path.steps)) for paths in result.paths for path in paths
        )
        each = (1e3 * part / count for part in (seconds, host))
        print(
            f"  {hops:4} {width:5} {result.pairs / count:17.1f} "
            + " ".join(f"{part:7.1f}" for part in each)
            + f" {nodes:21,}"
        )
    print(
        "\nOne hop from a topic of many relations (PathQuestion-Large's), milliseconds a question"
    )
    print("  candidates  all scored  prefilter, then 64")
    names = Triples.read(DATA / "pathquestion" / "PQL2-KB.txt").relations.ids.to_pylist()
    pairs, cosines = (
        CrossEncoder.from_pretrained(demo_models()["retriever"], head=head)
        for head in ("linear", "cosine")
    )
    for size in (16, 64, 128, 256, 363):
        graph = Triples.from_triples([("topic", name, f"of {name}") for name in names[:size]])
        steps = Steps(graph, inverse=False)
        questions = [f"which of these has {name}?" for name in steps.names[:4]]
        topics = [[graph.nodes.index("topic")]] * len(questions)
        run = functools.partial(search, questions, topics, steps, pairs, BeamRules(hops=1))
        times = [timed(run)[1], timed(lambda run=run: run(prefilter=cosines))[1]]
        print(f"  {size:10} " + " ".join(f"{1e3 * part / len(questions):12.1f}" for part in times))


class Replay:
    """Gives the scores of a search again, so that a second one takes the host's time alone."""

    def __init__(self, scorer: CrossEncoder) -> None:
        self.scorer, self.scores, self.calls = scorer, [], iter(())

    def score(self, pairs) -> np.ndarray:
        known = next(self.calls, None)
        if known is None:
            known = self.scorer.score(pairs)
            self.scores.append(known)
        return known

    def again(self) -> "Replay":
        self.calls = iter(self.scores)
        return self


def timed(run) -> tuple[BeamResult, float]:
    """The result and the median seconds of a run that has been warmed up."""
    result, seconds = run(), []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return result, statistics.median(seconds)


def twostep() -> None:
    rows = [
        json.loads(line)
        for part in ("train", "validation")
        for line in (DATA / "webqsp_paths" / f"{part}.jsonl").read_text("utf-8").splitlines()
    ]
    gold_paths = {row["question"]: {tuple(p) for p in row["ground_paths"] if p} for row in rows}
    steps, topic = trie({path for paths in gold_paths.values() for path in paths})
    everyone = [row["question"] for row in rows if gold_paths[row["question"]]][-200:]
    questions = everyone[-QUESTIONS:]
    name = os.environ.get("SCORER")
    scorer = CrossEncoder.from_pretrained(
        name or demo_models()["retriever"], head=None if name else "linear"
    )
    prefilter = CrossEncoder.from_pretrained(demo_models()["retriever"], head="cosine")
    width = len(steps.options(np.array([topic])))
    print(f"\nWebQSP: {width} relations leave the topic; {len(questions)} questions")
    ranked = first_relations(everyone, steps, prefilter)
    for keep in (16, 64, 128, 256):
        # No scorer can find a path that the prefilter's first choice has lost.
        missed = sum(
            not {path[0] for path in gold_paths[question]} & set(relations[:keep])
            for question, relations in zip(everyone, ranked, strict=True)
        )
        print(f"  gold paths all begin outside its best {keep}: {missed} of {len(everyone)}")
    run = functools.partial(search, questions, [[topic]] * len(questions), steps, scorer)
    for label, chosen in (("all scored", None), ("prefilter, then 64", prefilter)):
        start = time.perf_counter()
        result = run(BeamRules(), chosen)
        seconds = time.perf_counter() - start
        hits = sum(
            bool(paths) and tuple(map(relation_of(steps), paths[0].steps)) in gold_paths[question]
            for question, paths in zip(questions, result.paths, strict=True)
        )
        print(
            f"  {label:<20} {result.pairs / len(questions):8.1f} pairs a question, "
            f"{result.prefiltered / len(questions):8.1f} prefiltered, {seconds:6.1f} s, "
            f"hit@1 {hits / len(questions):.3f}"
        )


def trie(paths: set[tuple[str, ...]]) -> tuple[Steps, int]:
    """A graph with a node for each prefix of relation paths, and the node of the empty one."""
    node = lambda prefix: " / ".join(prefix) or "topic"
    prefixes = {path[: i + 1] for path in paths for i in range(len(path))}
    graph = Triples.from_triples([(node(p[:-1]), p[-1], node(p)) for p in sorted(prefixes)])
    return Steps(graph, inverse=False, by="whole"), graph.nodes.index("topic")


def relation_of(steps: Steps):
    return lambda step: steps.graph.relations.ids[step].as_py()


def first_relations(questions, steps: Steps, prefilter) -> list[list[str]]:
    """The relations that leave the topic, best first, for each question."""
    topic = np.array([steps.graph.nodes.index("topic")])
    first = steps.options(topic).tolist()
    pairs = [(q, text_of("topic", (step,), steps)) for q in questions for step in first]
    scores = prefilter.score(pairs).reshape(len(questions), -1)
    names = np.array(list(map(relation_of(steps), first)))
    return [names[order].tolist() for order in np.argsort(-scores, axis=1, kind="stable")]


def ceiling() -> None:
    run = Path(os.environ["RUN"])
    context = Context(ConfigDict(json.loads((run / "config.json").read_text("utf-8"))), run, None)
    steps, gold = load_steps(context), load_paths(context, "test")
    questions = {question.id: question for question in load_questions(context, "test")}
    names, k = ("hit@1", "f1", "answer_coverage"), context.config.search.k
    of_paths = lambda question, paths: measure(steps, question, (), paths[:k], names)
    rng, scores = np.random.default_rng(0), {}
    for question in questions.values():
        paths = [FoundPath(path.topic, path.steps, 0.0) for path in gold.get(question.id, ())]
        draws = [[paths[i] for i in rng.permutation(len(paths))] for _ in range(20)]
        precision = dict(zip(paths, (-x.precision for x in gold.get(question.id, ())), strict=True))
        f1 = {path: -of_paths(question, [path])["f1"] for path in paths}
        scores[question.id] = {
            "drawn": np.mean([[*of_paths(question, drawn).values()] for drawn in draws], axis=0),
            "precision": [*of_paths(question, sorted(paths, key=precision.get)).values()],
            "F1": [*of_paths(question, sorted(paths, key=f1.get)).values()],
        }
    print(f"\nShortest paths of {len(questions)} questions, chosen by")
    for chooser in ("drawn", "precision", "F1"):
        means = np.mean([of_question[chooser] for of_question in scores.values()], axis=0)
        print(f"  {chooser:<10}", *(f"{n} {x:.3f}" for n, x in zip(names, means, strict=True)))
    lost, counts = dict.fromkeys(("miss", "detour", "shortest"), 0.0), {"other than the best": 0}
    for row in load_rows(run / "evaluate" / "questions.parquet"):
        if row["system"] == TUNED:
            shortest = {(path.topic, path.steps) for path in gold.get(row["question"], ())}
            first = {(path.topic, path.steps) for path in found_paths(row)[:1]}
            kind = "miss" if not row["hit@1"] else "shortest" if first & shortest else "detour"
            short = scores[row["question"]]["F1"][1] - row["f1"]
            lost[kind] += short / len(questions)
            counts["other than the best"] += kind == "shortest" and short > 1e-9
    print(
        "  F1 below the best shortest path's:", *(f"{n} {x:.3f}" for n, x in lost.items()), counts
    )


if __name__ == "__main__":
    parts = {"beam": beam, "cost": cost, "twostep": twostep}
    parts |= {"ceiling": ceiling} if "RUN" in os.environ else {}
    print(machine())
    for part in sys.argv[1:] or parts:
        parts[part]()
