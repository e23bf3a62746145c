"""Every reader on held-out questions: baselines, test-warm, evaluate; and the export."""

import functools
import itertools
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax import __version__
from ark_jax.data.records import Chunk
from ark_jax.evaluate.answers import exact_match, f1
from ark_jax.evaluate.reading import READING_PROMPT, ReadingPrompt
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.parts import stored_rows
from ark_jax.pipeline.recipe import quote_text
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows, save_json, save_rows
from ark_jax.recipes.bar_rag import rollouts
from ark_jax.recipes.bar_rag.read import shuffled
from ark_jax.recipes.bar_rag.reading import EvidenceSet, Success, best_answers, reading_prompt
from ark_jax.recipes.bar_rag.selectors import drawn_pools, load_selector
from ark_jax.recipes.core import baselines, own_parts
from ark_jax.recipes.core.models import base_names, copy_files, settings_text
from ark_jax.recipes.core.tables import as_markdown, as_text, say_groups, tables_by_group, tabulate
from ark_jax.recipes.documents.corpus import questions_by_test_set, stored_chunks
from ark_jax.recipes.documents.reader_training import PooledQuestion, reading_prompts
from ark_jax.runtime import mirror
from ark_jax.runtime.log import say
from ark_jax.select.zone import histogram
from ark_jax.text.cited import CitedAnswer
from ark_jax.train.rewards import usable_references

if TYPE_CHECKING:  # these modules start jax
    from ark_jax.models.language import LanguageModel

METRICS = ("p", "answer_f1", "exact_match")
RETRIEVED = "retrieved"  # the set of the main results
NEEDED = "needed"  # the chunks that hold the answer, wherever the retriever ranks them
WITHOUT_CITED, CITED_ALONE = "without cited", "cited alone"


def size_name(size: int) -> str:
    """The name of the set of the first `size` chunks, in column `set`."""
    return f"top {size}"


def passages_read(config) -> int:
    """How many retrieved chunks a reader gets."""
    return config.evaluate.passages or config.select.passages


def measured_questions(context: Context) -> list[PooledQuestion]:
    """The held-out questions to measure with: at most `evaluate.questions` of those with a pool."""
    return drawn_pools(context, "held_out", context.config.evaluate.questions)


def measure_reader(context: Context, name: str, folder: Path) -> list[dict]:
    """The rows of a reader, as of `set_rows`; stored, so that a killed run goes on after them.

    Args:
        name: OWN, or a name for `load_reader`.
    """
    return stored_rows(folder / f"sets-{name}.parquet", lambda: _measure(context, name))


def _measure(context: Context, name: str) -> list[dict]:
    """A row of a reader for each question and set: retrieved ones, needed ones, without cited."""
    config, questions = context.config, measured_questions(context)
    read, success = _answering(context, name)
    sets = _sets_to_read(config, questions)
    # Sets of a question that begin alike are computed together, and their beginning once.
    all_sets = [evidence_set for of_kind in sets.values() for evidence_set in of_kind]
    if success:
        success.p(all_sets, f"{name}: p")
    answered = iter(read(all_sets, label=f"{name}: read"))
    rows = []
    for kind, of_kind in sets.items():
        replies = list(itertools.islice(answered, len(of_kind)))
        rows += set_rows(name, kind, of_kind, success, replies)
    if config.evaluate.removal:
        cited = [row["cited"] for row in rows[: len(questions)]]  # in the retrieved sets
        for kind, keeps_cited in ((WITHOUT_CITED, False), (CITED_ALONE, True)):
            changed = _sets_by_citation(sets[RETRIEVED], cited, keeps_cited=keeps_cited)
            rows += set_rows(name, kind, changed, success, read(changed, label=f"{name}: {kind}"))
    return rows


def _answering(context: Context, name: str) -> tuple[Callable[..., list[dict]], Success | None]:
    """How a reader answers sets, see `answer_sets`; and p of it, None for the user's function."""
    config, chunks = context.config, stored_chunks(context).by_id
    if name == rollouts.OWN:
        reply = functools.partial(_reply_by_own, config)
        return functools.partial(answer_sets, reply, chunks=chunks, cites=False), None
    success, form = Success(context, name), reading_prompt(config)
    reply = functools.partial(
        _reply_by_model,
        rollouts.load_reader(context, name),
        form,
        max_new_tokens=config.evaluate.max_new_tokens,
        temperature=config.evaluate.temperature,
        seed=rollouts.stage_seed(config, f"measure {name}"),
        batch_tokens=config.generator.batch_tokens,
    )
    return functools.partial(answer_sets, reply, chunks=chunks, cites=form.cite), success


def _sets_to_read(config, questions: Sequence[PooledQuestion]) -> dict[str, list[EvidenceSet]]:
    """kind of set -> the sets of the questions; RETRIEVED comes first."""
    nearest = lambda size: [(pooled, pooled.chunk_ids[:size]) for pooled in questions]
    size = passages_read(config)
    sets = {RETRIEVED: nearest(size)} | {size_name(n): nearest(n) for n in config.evaluate.sizes}
    sets[NEEDED] = [(pooled, needed) for pooled in questions if (needed := pooled.needed(size))]
    return sets


def _sets_by_citation(
    sets: Sequence[EvidenceSet], cited: Sequence[Sequence[str]], *, keeps_cited: bool
) -> list[EvidenceSet]:
    """The sets with their cited chunks alone, or without these; only sets with a cited chunk."""
    return [
        (pooled, [chunk for chunk in ids if (chunk in cited_ids) == keeps_cited])
        for (pooled, ids), cited_ids in zip(sets, cited, strict=True)
        if cited_ids
    ]


def set_rows(
    system: str,
    kind: str,
    sets: Sequence[EvidenceSet],
    success: Success | None,
    answered: Sequence[Mapping] | None = None,
) -> list[dict]:
    """A row of each set.

    Args:
        system: the reader.
        kind: how the chunks were chosen.
        success: gives p under the reader; None: p is 1 if its answer is right, else 0.
        answered: from `answer_sets`; None: only p is measured, and the other columns are None.
    """
    if success:
        values = success.p(sets, f"{system}: p, {kind}")
    else:
        values = [row["exact_match"] for row in answered or ()]
    columns = ("answer", "cited", "answer_f1", "exact_match")
    return [
        {
            "system": system,
            "set": kind,
            "question": pooled.id,
            "document": document_of(pooled),
            "chunk_ids": list(chunks),
            "p": p,
            **{column: answered[i][column] if answered else None for column in columns},
        }
        for i, ((pooled, chunks), p) in enumerate(zip(sets, values, strict=True))
    ]


def document_of(pooled: PooledQuestion) -> str:
    """The cluster by which a question is resampled: its first document, or its id without any."""
    return next(iter(pooled.question.documents), pooled.id)


Readings = Sequence[tuple[str, Sequence[str]]]  # questions with their passages


def _reply_by_model(
    lm: "LanguageModel", form: ReadingPrompt, readings: Readings, **generation
) -> list[CitedAnswer]:
    """The reply of a model to each reading."""
    prompts = reading_prompts(lm, form, readings, generation["max_new_tokens"]).texts
    return best_answers(lm, form, prompts, [len(shown) for _, shown in readings], **generation)


def _reply_by_own(config, readings: Readings, *, label: str) -> list[CitedAnswer]:
    """The reply of the user's function to each reading, without citations."""
    answers = own_parts.answer(config.reader.backend, readings)
    return [CitedAnswer(text, "", (), (), "") for text in answers]


def answer_sets(
    reply: Callable[..., list[CitedAnswer]],
    sets: Sequence[EvidenceSet],
    *,
    chunks: Mapping[str, Chunk],
    cites: bool,
    label: str,
) -> list[dict]:
    """A row for each set: the reader's answer, the ids of chunks that it cites, scores.

    Equal sets of a question are read once.

    Args:
        reply: `reply(readings, label=label)` gives a reply to each of the `Readings`.
        chunks: id -> chunk.
        cites: whether replies cite; else all chunks that contain the answer count as cited.
    """
    keys = [(pooled.id, tuple(ids)) for pooled, ids in sets]
    distinct = dict(zip(keys, sets, strict=True))
    readings = [
        (pooled.question.question, [chunks[x].passage for x in ids])
        for pooled, ids in distinct.values()
    ]
    rows = {}
    replies = reply(readings, label=label)
    for (key, (pooled, ids)), cited_answer in zip(distinct.items(), replies, strict=True):
        text, numbers = cited_answer.answer, cited_answer.citations
        references = usable_references(pooled.question.answers)
        shown = [chunks[x] for x in ids]
        rows[key] = {
            "answer": text,
            "cited": [ids[i - 1] for i in numbers] if cites else holders(text, shown),
            "answer_f1": f1(text, references),
            "exact_match": exact_match(text, references),
        }
    return [rows[key] for key in keys]


def holders(answer: str, chunks: Sequence[Chunk]) -> list[str]:
    """The ids of the chunks that contain an answer."""
    from ark_jax.data.evidence import answer_chunks

    return next(iter(answer_chunks([answer], chunks)), [])


FILE = "sets.parquet"
TEST_WARM = "test-warm"  # a stage
HEADLINE = "p"
BY_DOCUMENT = {"base": rollouts.UNTUNED, "cluster": "document"}  # how results are compared
conclusion = functools.partial(baselines.conclusion, metric=HEADLINE, **BY_DOCUMENT)


def ask_command(context: Context, question: str) -> str:
    """The shell commands that index a run's documents, and have its reader answer a question."""
    folder, config = mirror.address(context.workdir), context.config
    place = "DIR" if "://" in folder else f"{folder}/index"  # no index lies in a bucket
    model, data, folder_of_index, reader = map(
        shlex.quote, (config.retriever.path, config.data.path, place, f"{folder}/export")
    )
    index = f"ark-jax index {model} {data} --out={folder_of_index}"
    return (
        f"ask it: {index} && ark-jax ask {folder_of_index} {quote_text(question)} --reader={reader}"
    )


def measure_baselines(context: Context, folder: Path) -> dict:
    """Measures the readers that no stage trains, to know what training has to beat."""
    questions = measured_questions(context)
    if questions:
        rows = measure_reader(context, rollouts.UNTUNED, folder)
        if own_functions.is_own(context.config.reader.backend):
            # The user's reader comes first, since a sweep compares the last one of the table.
            rows = measure_reader(context, rollouts.OWN, folder) + rows
        save_rows(rows, folder / FILE)
        results = [row for row in rows if row["set"] == RETRIEVED]
        save_rows(results, folder / baselines.ROWS)
        baselines.save_results(folder, results, METRICS, HEADLINE, **BY_DOCUMENT)
    return {"questions": len(questions)}


def measure_warm(context: Context, folder: Path) -> dict:
    """Measures the reader after its warm start."""
    questions = measured_questions(context)
    if questions:
        if context.config.warm.steps:
            rows = measure_reader(context, rollouts.WARM, folder)
        else:  # it is the untuned reader
            untuned = [row for row in load_measured(context) if row["system"] == rollouts.UNTUNED]
            rows = [row | {"system": rollouts.WARM} for row in untuned]
        save_rows(rows, folder / FILE)
    return {"questions": len(questions)}


def load_measured(context: Context, stage: str = baselines.STAGE) -> list[dict]:
    """The rows of readers that a stage has stored."""
    return load_rows(context / stage / FILE)


RANDOM, NEAREST, SELECTED = "random", "nearest", "selected"  # ways to choose a set to train on


def check_evaluation(config) -> None:
    """Refuses more passages than a pool holds.

    Raises:
        ValueError: the field and what to change.
    """
    largest = max(passages_read(config), *config.evaluate.sizes, 0)
    if largest > config.pool.size:
        name = "passages" if passages_read(config) == largest else "sizes"
        raise ValueError(
            f"config.evaluate.{name}: {largest} passages, but a pool has config.pool.size="
            f"{config.pool.size}; change one of them"
        )


def compares_ways(config) -> bool:
    """Whether the run trains a selector, whose sets can be compared with others."""
    return config.iterations > 0 and config.read.evidence == SELECTED


def evaluate(context: Context, folder: Path) -> dict:
    """Measures all readers on the held-out questions."""
    config, questions = context.config, measured_questions(context)
    if not questions:
        say("  no held-out question has a pool: nothing is measured")
        save_json({"metrics": METRICS, "base": rollouts.WARM, "table": []}, folder / "metrics.json")
        return {"questions": 0}
    rows = [*load_measured(context), *load_measured(context, TEST_WARM)]
    for name in rollouts.tuned_readers(config):
        if name != rollouts.WARM:
            rows += measure_reader(context, name, folder)
    compare = functools.partial(tabulate, seed=config.seed, cluster="document")
    ways = _measure_ways(context, questions, rows)
    results = [row for row in rows if row["set"] == RETRIEVED]
    table = compare(results, METRICS, base=rollouts.WARM)
    sets = questions_by_test_set(context, [pooled.question for pooled in questions])
    tables = tables_by_group(
        results, sets, functools.partial(compare, metrics=METRICS, base=rollouts.WARM)
    )
    results_by_kind = {
        **({"groups": tables} if tables else {}),
        "metrics": METRICS,
        "base": rollouts.WARM,
        "table": table,
        "sizes": {
            str(size): _table_of_set(rows, size_name(size), compare)
            for size in config.evaluate.sizes
        },
        "needed": _table_of_set(rows, NEEDED, compare),
        "removal": {
            row["system"]: _compare_removals(rows, row["system"], compare) for row in table
        },
        "ways": _compare_ways(ways, compare),
    }
    save_rows(results, folder / "questions.parquet")
    save_rows([*rows, *ways], folder / "sets.parquet")
    save_json(results_by_kind, folder / "metrics.json")
    means = {row["system"]: {m: v["mean"] for m, v in row["values"].items()} for row in table}
    context.metrics.write("evaluate", **means)
    say_groups(tables, sets, METRICS, rollouts.WARM)
    _say_results(results_by_kind, len(questions), passages_read(config))
    return {"questions": len(questions), "systems": len(table), "sets": len(rows) + len(ways)}


def _table_of_set(rows: Sequence[dict], kind: str, compare) -> list[dict]:
    """The table of readers for one kind of set; empty if there are no such rows."""
    chosen = [row for row in rows if row["set"] == kind]
    return compare(chosen, METRICS, base=rollouts.WARM) if chosen else []


def _compare_removals(rows: Sequence[dict], system: str, compare) -> dict:
    """`table`: a reader with all chunks, without cited ones, and with these alone.

    Only questions whose answer cites a chunk count; `questions` is their number.
    """
    of_system = [row for row in rows if row["system"] == system]
    citing = {row["question"] for row in of_system if row["set"] == WITHOUT_CITED}
    compared = [
        {**row, "system": kind}
        for kind in (RETRIEVED, WITHOUT_CITED, CITED_ALONE)
        for row in of_system
        if row["set"] == kind and row["question"] in citing
    ]
    return {"questions": len(citing), "table": compare(compared, METRICS) if compared else []}


def _measure_ways(
    context: Context, questions: Sequence[PooledQuestion], rows: Sequence[dict]
) -> list[dict]:
    """Rows of p of held-out questions, for each way to choose a set to train on.

    p is that of the reader under which the last selector was trained. Without selector, no rows.
    """
    config = context.config
    if not compares_ways(config):
        return []
    last = config.iterations
    reader, k = rollouts.reader_before(last), config.select.passages
    success = Success(context, reader)
    success.remember(
        rollouts.DrawnSet(question_id=row["question"], chunk_ids=row["chunk_ids"], p=row["p"])
        for row in rows
        if row["system"] == reader
    )
    seed = rollouts.stage_seed(config, "evaluate")
    chosen = {
        RANDOM: [shuffled(pooled, seed)[:k] for pooled in questions],
        NEAREST: [list(pooled.chunk_ids[:k]) for pooled in questions],
        SELECTED: [best.chunk_ids for best in load_selector(context, last).best(questions)],
    }
    measured = []
    for way, of_questions in chosen.items():
        measured += set_rows(reader, way, list(zip(questions, of_questions, strict=True)), success)
    return measured


def _compare_ways(ways: Sequence[dict], compare) -> dict:
    """p by way to choose: its table, and histograms with bins at 0, .1, … 1; empty without ways."""
    if not ways:
        return {}
    of_way = [{**row, "system": row["set"]} for row in ways]
    values: dict[str, list[float]] = {}
    for row in ways:
        values.setdefault(row["set"], []).append(row["p"])
    return {
        "reader": ways[0]["system"],
        "table": compare(of_way, ("p",), base=NEAREST),
        "histograms": {way: histogram(p).tolist() for way, p in values.items()},
    }


def _say_results(results: dict, questions: int, passages: int) -> None:
    """Prints the main table, and means of the others."""
    say(f"  {questions:,} held-out questions, {passages} retrieved passages each")
    say(as_text(results["table"], METRICS, rollouts.WARM))
    means = lambda table, metric: ", ".join(
        f"{row['system']} {row['values'][metric]['mean']:.3f}" for row in table
    )
    for size, table in results["sizes"].items():
        say(f"  exact match of {size} retrieved: {means(table, 'exact_match')}")
    if results["needed"]:
        say(f"  exact match of the needed passages: {means(results['needed'], 'exact_match')}")
    for system, removal in results["removal"].items():
        if values := means(removal["table"], "exact_match"):
            say(f"  exact match of {system}, {removal['questions']:,} questions: {values}")
    if results["ways"]:
        values = means(results["ways"]["table"], "p")
        say(f"  p of {results['ways']['reader']} by how passages are chosen: {values}")


def export_reader(context: Context, folder: Path) -> dict:
    """Writes the folder of the last reader, with the form of its prompts and a model card.

    Adapters are merged into it: each belongs to the reader before it, and none to the base alone.
    """
    last = rollouts.tuned_readers(context.config)[-1]
    copy_files(context / last / "model", folder)
    form = ReadingPrompt.read(folder)
    (folder / "README.md").write_text(_card(context, last, form), encoding="utf-8")
    return {"model": last}


def _card(context: Context, last: str, form: ReadingPrompt) -> str:
    from huggingface_hub import ModelCardData

    from ark_jax.models.model_card import plain_line

    name, hub_name = base_names(context.config.generator.path)
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=hub_name or None,
        tags=["question-answering", "rag", "bar-rag"],
    )
    title = plain_line(f"{name}, tuned to read with BAR-RAG")
    settings = settings_text(
        context.config, "warm", "filter", "selector", "select", "read", "train"
    )
    return f"""---
{data.to_yaml()}
---

# {title}

{_description(context, last, plain_line(name))}

{_usage(form)}

{settings} The licence is the base model's.
"""


def _description(context: Context, last: str, base: str) -> str:
    evaluated = load_json(context / "evaluate" / "metrics.json")
    trained = read_manifest(context / "data")["counts"]["train_questions"]
    rounds = context.config.iterations
    times = "once" if rounds == 1 else f"{rounds:,} times"
    method = (
        f"It was warmed up on reference answers, and then learned {times} from passages from "
        "which it answered rightly about half of the time."
        if rounds
        else "It learned from reference answers alone."
    )
    text = (
        f"Base model: {base}. Tuned by ark_jax {__version__} to answer questions from retrieved "
        f"passages, on {trained:,} questions. {method}"
    )
    if evaluated["table"]:
        measured = read_manifest(context / "evaluate")["counts"]["questions"]
        text += (
            f"\n\nMeasured on {measured:,} held-out questions; `{last}` is this model, and p the "
            "probability that it gives a reference answer (mean and 95 % interval):\n\n"
        )
        text += as_markdown(evaluated["table"], evaluated["metrics"])
        text += f"\n\n{' '.join(conclusion(context))}"
    return text


def _usage(form: ReadingPrompt) -> str:
    kind = "the user's turn of the chat template" if form.chat else "a text that the model goes on"
    passages = "`Doc [1] …`, `Doc [2] …`" if form.cite else "one after the other"
    return f"""The prompt is {kind}; passages stand in it {passages}, a blank line between them. Its
template, which stands in `{READING_PROMPT}` too:

```json
{json.dumps(form.template, ensure_ascii=False)}
```

With transformers:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```

As the reader of an ARK run, which asks it in this form:

```
ark-jax run --config.reader.path=path/to/this/folder
```"""
