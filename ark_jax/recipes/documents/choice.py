"""The stages fusion and choice: training questions decide how BM25 is fused, and what ships.

They are, if enough, questions that no training stage has learned from. The held-out questions only
say how good the chosen system is.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.data.evidence import most_chunks
from ark_jax.data.records import Question
from ark_jax.evaluate.retrieval import measure, measures
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, save_json
from ark_jax.recipes.core.baselines import held_out_sentences
from ark_jax.recipes.core.models import load_retriever
from ark_jax.recipes.core.tables import as_text, tabulate
from ark_jax.recipes.documents.corpus import gold_passages, load_questions, stored_chunks
from ark_jax.recipes.documents.retrieve import (
    BOTH,
    WORDS,
    Systems,
    ids_without_own,
    load_search,
    own_results,
    ranked_file,
    search_systems,
)
from ark_jax.report.results import metric_heading
from ark_jax.retrieval.fusion import Fusion, load_fusion, save_fusion
from ark_jax.retrieval.searcher import Fused, Known
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say

FUSION = "fusion"  # the stage that chooses it
METRIC = "ndcg@10"
# Close to 1, too: as shares of the best, cosines differ less than scores of words.
DENSE_WEIGHTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
ENOUGH_TO_FUSE = 50  # questions that choose; of fewer, nDCG@10 has a standard error above .05


def listed_fusions(depth: int) -> list[Fusion]:
    """The fusions to choose from; if several are best, the first is chosen."""
    sums = [
        Fusion(bm25=round(1 - weight, 2), dense=weight, depth=depth, by="scores")
        for weight in DENSE_WEIGHTS
    ]
    return [Fusion(depth=depth), *sums]


def choose_fusion(
    context: Context,
    folder: Path,
    *,
    systems_of: Callable[[object], Systems],
    learned: Callable[[Context], Collection[str]],
) -> dict:
    """Chooses how vectors and words are fused, by nDCG@10 on training questions.

    A retriever is too good at questions that it has learned from, and they would give it too much
    weight. So the other questions choose; all do if these are fewer than `ENOUGH_TO_FUSE`.

    Args:
        learned: the ids of the training questions that the retriever has learned from.
    """
    systems = systems_of(context.config)
    questions, chunks = load_questions(context, "train"), stored_chunks(context)
    gold, _ = gold_passages(context, questions, chunks.by_document)
    judged = [question for question in questions if gold[question.id]]
    learned_from = learned(context)
    unlearned = [question for question in judged if question.id not in learned_from]
    choosing, remark = judged, ""
    if len(unlearned) >= ENOUGH_TO_FUSE:
        choosing, remark = unlearned, " that the retriever has not learned from"
    fusions = listed_fusions(systems.depth)
    rows = [{"fusion": repr(fusion), METRIC: 0.0} for fusion in fusions]
    if judged:
        # The documents of all questions are searched, also if some do not choose.
        excluded, names = own_results(context, judged, chunks), (WORDS, systems.last)
        depth = systems.depth + most_chunks(excluded)
        found = search_systems(context, folder, names, judged, chunks, depth)
        parts = [found[name] for name in names]
        for fusion, row in zip(fusions, rows, strict=True):
            fused = {"": Fused(parts, depth, fusion.join)}
            found = ids_without_own(fused, [""], judged, excluded, systems.depth)[""]
            run = {question.id: found[question.id] for question in choosing}
            values = measures(run, {id: gold[id] for id in run}, [METRIC])
            row[METRIC] = float(np.mean([value[METRIC] for value in values.values()]))
    best = max(range(len(fusions)), key=lambda i: rows[i][METRIC])
    distributed.on_first_process(lambda: save_fusion(fusions[best], folder))
    save_json(rows, folder / "candidates.json")
    say(
        f"  {len(choosing):,} training questions{remark}: {METRIC} {rows[best][METRIC]:.3f} by "
        f"{fusions[best]}, {rows[0][METRIC]:.3f} by reciprocal ranks"
    )
    return {"questions": len(choosing), "by": fusions[best].by, "dense": fusions[best].dense}


def chosen_fusion(context: Context, systems: Systems) -> Fusion:
    """The fusion of a run: what the stage has chosen, else reciprocal ranks."""
    if context.config.evaluate.fusion == "chosen":
        return load_fusion(context / FUSION)
    return Fusion(depth=systems.depth)


STAGE = "choice"
FILE = "choice.json"
ENOUGH = 10  # questions that choose; fewer choose badly (notebooks/README.md, "What ships")
GOOD = 40  # questions that choose well
LARGEST_SHARE = 0.3  # share of the questions that may be left out of training so that they choose


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A system that may ship.

    Attributes:
        model: the system whose retriever is exported; "base" for BM25 alone.
        fusion: how an index joins that retriever with BM25; a weight of 0 leaves one of them out.
    """

    model: str
    fusion: Fusion

    def searcher(self, parts: Mapping[str, Known], depth: int) -> Known | Fused:
        """The searcher of its rankings, made of those of its parts."""
        if not self.fusion.dense:
            return parts[WORDS]
        if not self.fusion.bm25:
            return parts[self.model]
        return Fused([parts[WORDS], parts[self.model]], depth, self.fusion.join)


def candidates(systems: Systems, fusion: Fusion) -> dict[str, Candidate]:
    """The systems that may ship, by name; of several that are best, the first is.

    Args:
        fusion: of BM25 and the last tuned retriever; the others are fused by reciprocal ranks.
    """
    plain, retrievers = Fusion(depth=systems.depth), ("base", *systems.tuned)
    alone = dataclasses.replace(plain, bm25=0.0)
    fused = {name: fusion if name == systems.last else plain for name in retrievers}
    ordered = {WORDS: Candidate("base", dataclasses.replace(plain, dense=0.0))}
    for name in retrievers:
        ordered[name] = Candidate(name, alone)
        ordered[f"{WORDS}+{name}"] = Candidate(name, fused[name])
    return ordered


def choose(
    context: Context,
    folder: Path,
    *,
    systems_of: Callable[[object], Systems],
    learned: Callable[[Context], Collection[str]],
) -> dict:
    """Chooses the system that ships, by nDCG@10 on questions that trained nothing.

    It is the last tuned retriever fused with BM25, unless another system is better by more than a
    standard error; and if the questions are fewer than `ENOUGH`.

    Args:
        learned: the ids of the training questions that a stage has learned from.
    """
    systems, seed = systems_of(context.config), context.config.seed
    known = candidates(systems, chosen_fusion(context, systems))
    questions, chunks = load_questions(context, "train"), stored_chunks(context)
    gold, _ = gold_passages(context, questions, chunks.by_document)
    learned_from = learned(context)
    judged = [question for question in questions if gold[question.id]]
    choosing = [question for question in judged if question.id not in learned_from]
    table: list[dict] = []
    name = f"{WORDS}+{systems.last}"
    if len(choosing) >= ENOUGH:
        names = (WORDS, "base", *systems.tuned)
        depth = systems.depth + most_chunks(own_results(context, choosing, chunks))
        parts = search_systems(context, folder, names, choosing, chunks, depth)
        rows = measure_rows(context, known, parts, choosing, gold, systems)
        table = tabulate(rows, [METRIC], seed=seed)
        name = clearly_best(rows, known, default=name)
        say(as_text(table, [METRIC]))
    chosen = {
        "system": name,
        **dataclasses.asdict(known[name]),
        "questions": len(choosing),
        "share": share_that_chooses(len(judged)),
        "development": table,
        "held_out": _test_on_held_out(context, known, name, systems, seed),
    }
    if known[name].model == "base":  # the export copies it as it copies what a stage has trained
        load_retriever(context, "base").save_pretrained(folder / "model")
    save_json(chosen, folder / FILE)
    return {"questions": len(choosing), "system": name}


def clearly_best(rows: Sequence[Mapping], names: Iterable[str], *, default: str) -> str:
    """The best system, if it is above `default` by more than a standard error; or `default`.

    Args:
        rows: of each system and question, as `measure_rows` returns them; two questions or more.
        names: the systems; of several that are best, the first is.
    """
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row["system"], []).append(row[METRIC])
    best = max(names, key=lambda name: statistics.fmean(values[name]))
    gains = [a - b for a, b in zip(values[best], values[default], strict=True)]
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    return best if statistics.fmean(gains) > error else default


def measure_rows(
    context: Context,
    known: Mapping[str, Candidate],
    parts: Mapping[str, Known],
    questions: Sequence[Question],
    gold: Mapping[str, list[list[str]]],
    systems: Systems,
) -> list[dict]:
    """A row for each system and question, "base" first, as `tabulate` takes them."""
    excluded = own_results(context, questions, stored_chunks(context))
    depth = systems.depth + most_chunks(excluded)
    searchers = {name: candidate.searcher(parts, depth) for name, candidate in known.items()}
    order = ["base", *(name for name in known if name != "base")]
    names = [name for name in order if name in known]
    found = ids_without_own(searchers, names, questions, excluded, systems.depth)
    return [
        {"system": name, "question": id, **measure(ranked, gold[id], [METRIC])}
        for name, rankings in found.items()
        for id, ranked in rankings.items()
    ]


def _test_on_held_out(
    context: Context, known: Mapping[str, Candidate], name: str, systems: Systems, seed: int
) -> dict:
    """The chosen system's mean on held-out questions, and its differences to others."""
    questions = load_questions(context, "held_out")
    gold = load_json(context / "evaluate" / "metrics.json")["gold"]
    judged = [question for question in questions if gold[question.id]] or questions
    shown = {key: known[key] for key in dict.fromkeys(("base", WORDS, BOTH, name))}
    parts = {}
    for part in {WORDS, *(candidate.model for candidate in shown.values())}:
        ranked_by = "baselines" if part in (WORDS, "base") else "evaluate"
        path = ranked_file(context / ranked_by, part)
        if path.is_file():  # a run of an earlier version may have ranked nothing by words
            parts[part] = load_search(path, judged)
    if WORDS not in parts:
        return {}
    rows = measure_rows(context, shown, parts, judged, gold, systems)
    tests = {}
    for rival in ("base", WORDS, BOTH):
        pair = [row for row in rows if row["system"] in (name, rival)]
        for row in tabulate(pair, [METRIC], seed=seed, base=rival):
            if row["system"] == name:
                mean = row["values"][METRIC]["mean"]
                if name != rival:
                    tests[rival] = row["values"][METRIC]["against_base"]
    return {"questions": len(judged), "mean": mean, "against": tests}


def share_that_chooses(questions: int) -> float:
    """The share of questions that leaves `GOOD` to choose by, from 0.1 to `LARGEST_SHARE`.

    Args:
        questions: the number of training questions with a known passage.

    Returns:
        The share; 0 if it leaves fewer than `ENOUGH`.
    """
    if questions * LARGEST_SHARE < ENOUGH:
        return 0.0
    return min(LARGEST_SHARE, max(0.1, math.ceil(100 * GOOD / questions) / 100))


def _why_unchosen(questions: int, share: float) -> str:
    """Why no system was chosen, and what changes that."""
    fix = f"config.score.development={share:g} leaves enough" if share else "have more questions"
    if not questions:
        reason = "every question with a known passage was trained on, so none is left to choose by"
        return f"{reason} ({fix})"
    shortage = f"only {questions:,} questions trained nothing"
    return f"{shortage}, and fewer than {ENOUGH} choose badly ({fix})"


def load_choice(context: Context, stage: str = STAGE) -> dict:
    """The result that the stage has stored, the argument of `sentences`."""
    return load_json(context / stage / FILE)


def conclusion(workdir: Path) -> list[str]:
    """The sentences that end a finished run."""
    path = workdir / STAGE / FILE
    return sentences(load_json(path)) if path.is_file() else []


def candidate_of(chosen: Mapping) -> Candidate:
    """The chosen system, from what `load_choice` returns."""
    return Candidate(chosen["model"], Fusion(**chosen["fusion"]))


def sentences(chosen: Mapping) -> list[str]:
    """What ships and why, how good it is on the held-out questions, and whether it is worth it."""
    name, heading, tested = chosen["system"], metric_heading(METRIC), chosen["held_out"]
    if not chosen["development"]:
        said = [f"{name} ships, unchosen: {_why_unchosen(chosen['questions'], chosen['share'])}."]
    else:
        means = {row["system"]: row["values"][METRIC]["mean"] for row in chosen["development"]}
        rest = ", ".join(f"{x} {means[x]:.3f}" for x in ("base", WORDS) if x != name)
        best = max(means, key=means.__getitem__)
        rank = f"the highest of {len(means)} systems"
        if means[name] < means[best]:
            rank = f"less than a standard error below {best}, {means[best]:.3f}"
        said = [
            f"{name} ships: on {chosen['questions']:,} questions that trained nothing its "
            f"{heading} is {means[name]:.3f} ({rest}), {rank}."
        ]
    if chosen["model"] == "base":
        said.append(
            "Nothing that was trained beats the untouched base or BM25: export and index are made "
            f"of {name}."
        )
    if not tested:
        return said
    is_trained = chosen["model"] != "base"
    return [*said, *held_out_sentences(METRIC, **tested, is_trained=is_trained)]
