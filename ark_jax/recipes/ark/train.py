"""The stages that train: retriever, reranker and reader; and the export of what was trained."""

import dataclasses
import json
import math
import os
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from ark_jax import __version__
from ark_jax.data.readers import read_scores
from ark_jax.data.records import Question
from ark_jax.data.spool import StoredChunks
from ark_jax.data.table_files import SUFFIXES
from ark_jax.models.weight_names import CLASSIFIERS, DECODERS
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.reads import element
from ark_jax.pipeline.stage import Context, Interrupted, Stage
from ark_jax.pipeline.status import examine
from ark_jax.pipeline.tables import load_json
from ark_jax.recipes.ark import curriculum
from ark_jax.recipes.ark.alignment import load_positives, load_scores, load_shares, shares
from ark_jax.recipes.ark.config import TrainSection
from ark_jax.recipes.ark.curriculum import (
    RERANKER,
    is_distilling,
    load_negatives,
    mine_name,
    stage_name,
    systems,
    trained_stages,
    training_inputs,
)
from ark_jax.recipes.ark.graph import in_round, load_candidates
from ark_jax.recipes.core import models, own_parts
from ark_jax.recipes.core.tables import as_markdown
from ark_jax.recipes.documents import choice, corpus
from ark_jax.recipes.documents.evaluate import MODEL_CARD_METRICS, headline
from ark_jax.recipes.documents.reader import reading_prompt
from ark_jax.recipes.documents.reader_training import PooledQuestion, sets_with_gold, teach
from ark_jax.recipes.documents.written_questions import note_on_test
from ark_jax.report.results import against_parts, metric_heading
from ark_jax.retrieval.fusion import FUSION_FILE, save_fusion
from ark_jax.runtime import distributed, mirror, storage
from ark_jax.runtime.log import say
from ark_jax.schema import section_of
from ark_jax.train import trainer_formats
from ark_jax.train.config import LanguageModelConfig


def load_examples(
    context: Context, stage: int, number: int = 1
) -> tuple[list, dict[str, str], corpus.Passages]:
    """The `Example`s of a training stage; the texts of questions and of chunks, each by id.

    Args:
        number: of the round.
    """
    from ark_jax.retrieval import mining
    from ark_jax.train import batches

    settings, scored = context.config.train, context / in_round("positives", number)
    questions = {question.id: question for question in corpus.load_questions(context, "train")}
    mined = curriculum.has_negatives(context.config, stage)
    negatives = load_negatives(context / mine_name(stage, number)) if mined else {}
    passages = corpus.Passages(corpus.training_chunks(context))
    copies = {}
    if settings.merge_copies:
        numbers = distributed.on_first_process(
            lambda: list(mining.first_copies(passages.values()).items())
        )
        chunk_ids = list(passages)
        copies = {chunk_ids[copy]: chunk_ids[first] for copy, first in numbers}
    documents = {id: "\n".join(question.documents) for id, question in questions.items()}
    shares = {}
    if curriculum.is_distilling(context.config):
        shares = load_shares(scored, copies, settings.teacher_temperature)
    positives = shares or load_positives(scored)
    examples = batches.make_examples(positives, negatives, documents, copies)
    if shares:
        examples = [
            dataclasses.replace(example, shares=tuple(shares[example.question].values()))
            for example in examples
        ]
    if settings.unit == "pair":
        examples = batches.split_pairs(examples)
    if mined and curriculum.draws(context.config, stage):
        seed = _seed(context.config, stage, number)
        examples = batches.draw_negatives(examples, context.config.mine.negatives, seed)
    return examples, {id: question.question for id, question in questions.items()}, passages


def learned_questions(context: Context) -> Collection[str]:
    """The ids of the training questions that any stage learns from."""
    config = context.config
    load = load_scores if curriculum.is_distilling(config) else load_positives
    names = [in_round("positives", number) for number in curriculum.rounds(config)]
    return {question for name in names for question in load(context / name)}


def _seed(config, stage: int, number: int) -> int:
    """The seed of a training stage in a round."""
    return config.seed + stage + 10 * (number - 1)


def train_stage(
    context: Context, folder: Path, *, stage: int, before: str, number: int = 1
) -> dict:
    """Trains the retriever on one stage of the curriculum, from easy negatives to hard ones.

    Args:
        before: the system from whose model it starts.
        number: of the round.
    """
    from ark_jax.models import lora
    from ark_jax.train import contrastive, example_files

    config, name = context.config, stage_name(stage, number)
    label = f"stage {stage}" + f" of round {number}" * (number > 1)
    run = models.training_run(context.metrics, folder, name, label=label)
    examples, questions, passages = load_examples(context, stage, number)

    def write_examples() -> None:
        """Stores the examples, unless an interrupted run did."""
        if not (folder / "examples").is_dir():
            example_files.write_examples(examples, folder / "examples.new")
            (folder / "examples.new").rename(folder / "examples")

    distributed.on_first_process(write_examples)
    examples = example_files.read_examples(folder / "examples")
    tuned, adapter, curve = contrastive.train(
        models.load_retriever(context, before),
        examples,
        questions,
        passages,
        section_of(config.train, TrainSection),
        run,
        epochs=curriculum.epochs(config.train, stage),
        learning_rate=element(config.train, "learning_rates", max(stage - 1, 0)),
        seed=_seed(config, stage, number),
        use_negatives=curriculum.has_negatives(config, stage),
        loss=load_loss(config),
    )
    _warn_of_falling_positives(curve, label)
    tuned.save_pretrained(folder / "model", dtype=models.MASTER)
    if adapter:
        # A base in the workdir is named relative to it, so that the files do not depend on where
        # the workdir lies.
        base = config.retriever.path if before == "base" else f"{before}/model"
        lora.save_peft(adapter, folder / "adapter", base=base)
    # The next stage reads the saved weights, so that a resumed run equals an uninterrupted one.
    context.models.pop("retriever", None)
    return {"steps": len(curve), "examples": len(examples), **models.first_and_last_loss(curve)}


FELL = 0.05  # by which a mean cosine of positives falls only if something is wrong


def _warn_of_falling_positives(curve: Sequence[dict], label: str) -> None:
    """Says so if positives end farther from their questions, and no farther above negatives.

    Contrastive training may lower the cosines of positives as long as those of negatives fall
    further. Means of the first and the last quarter of the steps are compared.
    """
    rows = [row for row in curve if "positive_cosine" in row and "negative_cosine" in row]
    quarter = len(rows) // 4
    if not quarter:
        return
    (positive, negative), (last_positive, last_negative) = (
        [
            statistics.fmean(row[f"{kind}_cosine"] for row in part)
            for kind in ("positive", "negative")
        ]
        for part in (rows[:quarter], rows[-quarter:])
    )
    gap, last_gap = positive - negative, last_positive - last_negative
    if last_positive < positive - FELL and last_gap <= gap:
        say(
            f"  warning: {label}: the mean cosine of positives fell from {positive:.2f} to "
            f"{last_positive:.2f}, and their distance to negatives from {gap:.2f} to "
            f"{last_gap:.2f}; lower config.train.learning_rates, or look at what is positive"
        )


def merge_with_base(context: Context, folder: Path, *, last: str) -> dict:
    """Interpolates the weights of base and last stage; stores the model under `model`.

    The merged model keeps most of the gain on its own data, and loses less on other data (WiSE-FT).
    """
    import jax

    share = context.config.train.merge
    base = models.load_retriever(context, "base")
    tuned = models.load_retriever(context, last)
    weights = jax.tree.map(lambda a, b: a + share * (b - a), base.model, tuned.model)
    merged = dataclasses.replace(tuned, model=weights)
    merged.save_pretrained(folder / "model", dtype=models.MASTER)
    context.models.pop("retriever", None)
    return {"merged": last, "share": share}


def load_loss(config) -> Callable:
    """The loss that `train.loss` names, a `losses.Loss`; ValueError as of `own_parts.load_loss`."""
    from ark_jax.train import losses

    return own_parts.load_loss(config) or getattr(losses, config.train.loss)


def write_training_files(context: Context, format: str, stages: Sequence[Stage]) -> None:
    """Writes `DIR/export-FORMAT/STAGE.jsonl` for each training stage, and runs no stage.

    Raises:
        ValueError: the config learns shares, which no format can hold.
        Interrupted: an input of a training stage is not up to date; then nothing is written.
    """
    if is_distilling(context.config):
        raise ValueError(
            f"config.train.loss=distil learns a share of each scored chunk, for which {format} "
            "files have no place; name config.train.loss=info_nce for files of positives"
        )
    _check_inputs(context, stages)
    folder = context.workdir / f"export-{format}"
    folder.mkdir(exist_ok=True)
    for training in curriculum.trainings(context.config):
        examples, questions, passages = load_examples(context, *training)
        path = folder / f"{stage_name(*training)}.jsonl"
        rows = trainer_formats.format_rows(format, examples, questions, passages)
        count = _write_lines(path, rows)
        say(f"  {mirror.address(path)}: {count:,} rows{_file_summary(format, examples)}")


def _check_inputs(context: Context, stages: Sequence[Stage]) -> None:
    """Raises Interrupted if an input of a training stage is not up to date."""
    config, trainings = context.config, curriculum.trainings(context.config)
    read = {name for training in trainings for name in training_inputs(config, *training)}
    examined = examine(stages, context.config, context.workdir, verify=read)
    statuses = {status.stage: status for status in examined}
    for stage, number in trainings:
        for name in training_inputs(config, stage, number):
            status = statuses[name]
            if status.state != "done":
                note = f" ({status.why})" if status.why else ""
                raise Interrupted(
                    f"stage {stage} is trained on what {name} makes, which is {status.state}{note}"
                    f": run `ark-jax {name}` or `ark-jax run` first, with the same --config and "
                    "--workdir"
                )


def _write_lines(path: Path, rows) -> int:
    """Writes rows as JSON lines, whole or not at all, and returns how many there are."""
    count = 0
    with path.with_suffix(".new").open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".new").replace(path)
    return count


def _file_summary(format: str, examples: Sequence) -> str:
    """The end of a log line: the questions of a file and their hard negatives; what is left out."""
    usable = trainer_formats.usable_examples(format, examples)
    longest = max((len(example.negatives) for example in usable), default=0)
    shorter = sum(len(example.negatives) < longest for example in usable)
    up_to = "up to " if shorter else ""
    negatives = f"{up_to}{longest} hard negatives each" if longest else "no hard negatives"
    summary = f" of {len({x.question for x in usable}):,} questions, {negatives}"
    if shorter and format == "sentence-transformers":
        summary += f"; those of {shorter:,} questions are repeated to fill the columns"
    if dropped := len(examples) - len(usable):
        summary += (
            f"; {dropped:,} questions without a hard negative are left out, {format} has no place "
            "for them beside the others"
        )
    return summary


def check_base(config) -> None:
    """Refuses a local or cached model that scores no pairs, hours before a run would fail on it.

    Raises:
        ValueError: the field and the families that can become a reranker.
    """
    path = config.reranker.path
    family = _model_type(path)
    if family and family not in (*CLASSIFIERS, *DECODERS):
        raise ValueError(
            f"config.reranker.path={path!r}: model_type {family!r} cannot become a reranker; "
            f"name a cross-encoder: {', '.join(CLASSIFIERS)}; or a decoder that answers yes or no: "
            f"{', '.join(DECODERS)}"
        )


def _model_type(path: str) -> str:
    try:
        is_remote = storage.is_hub_name(path)
        folder = storage.hub_model(path, download=False) if is_remote else storage.local_copy(path)
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError):  # loading the model reports what is wrong
        return ""


def train_reranker(context: Context, folder: Path, *, mined: int | None) -> dict:
    """Trains a scorer of question and chunk; stores it under `model`.

    Args:
        mined: the last training stage that has hard negatives, if any has.
    """
    from ark_jax.train import listwise, losses

    config, lists = context.config, load_lists(context, mined)
    tuned, _, curve = listwise.train(
        _load_untrained_reranker(context),
        lists,
        section_of(config.train, TrainSection),
        models.training_run(context.metrics, folder, RERANKER),
        batch=config.train.batch,
        epochs=config.reranker.epochs,
        learning_rate=config.reranker.learning_rate,
        seed=config.seed,
        loss=losses.list_cross_entropy,
    )
    tuned.save_pretrained(folder / "model", dtype=models.MASTER)
    return {"lists": len(lists), "steps": len(curve), **models.first_and_last_loss(curve)}


def _load_untrained_reranker(context: Context):
    """The `CrossEncoder` before training; an encoder without a classifier gets a new one."""
    from ark_jax.models import hf, pair_folder
    from ark_jax.models.pairs import CrossEncoder

    path, settings = context.config.reranker.path, context.config.retriever
    head = None if pair_folder.is_decoder(hf.resolve(path)) else "linear"
    options = {"head": head, "compute": settings.compute, "attention": settings.attention}
    return context.model("retriever", CrossEncoder.from_pretrained, path, **options)


def load_lists(context: Context, stage: int | None) -> list:
    """The reranker's training data: a `PairList` for each training question.

    Its texts are the positives, then the hard negatives, then other scored chunks, the best first.
    Of the file `reranker.scores`, which needs no stage, they are the passages, the best first. Its
    weights are their shares, see `shares`.

    Args:
        stage: the last training stage that has hard negatives; None: there is none.
    """
    from ark_jax.train.lists import PairList

    config = context.config
    lists: list[PairList] = []

    def add(question: str, scores: Mapping[str, float]) -> None:
        """Adds the list of a question from its texts, of which the first are taken."""
        chosen = list(scores)[: config.reranker.candidates]
        weights = shares([scores[text] for text in chosen], config.train.teacher_temperature)
        lists.append(PairList(question, tuple(chosen), tuple(weights)))

    if config.reranker.scores:
        for text, scores in read_scores(config.reranker.scores).items():
            add(text, dict(sorted(scores.items(), key=lambda row: -row[1])))
        return lists
    last = config.train.rounds
    mined = {} if stage is None else load_negatives(context / mine_name(stage, last))
    folder = context / in_round("positives", last)
    positives, scored = load_positives(folder), load_scores(folder)
    passages = corpus.Passages(corpus.training_chunks(context))
    for question in corpus.load_questions(context, "train"):
        if question.id not in positives:
            continue
        scores = scored[question.id]
        by_score = sorted(scores, key=lambda chunk: (-scores[chunk], chunk))
        texts: dict[str, float] = {}  # text -> score of the first chunk with it
        for chunk in (*positives[question.id], *mined.get(question.id, ()), *by_score):
            texts.setdefault(passages[chunk], scores.get(chunk, -math.inf))
        add(question.question, texts)
    return lists


def train_warm_reader(context: Context, folder: Path) -> dict:
    """Trains the local reader; stores it under `model`.

    Each question is shown with as many passages as the reader will get: those that hold its
    evidence, and other candidates, in a random order.

    Raises:
        ValueError: no training question has an answer and a passage that holds it.
    """
    config, chunks = context.config, corpus.training_chunks(context)
    questions = _pooled_questions(context, chunks)
    if not questions:
        raise ValueError(
            "config.reader.warm: no training question has an answer and a passage that holds it; "
            "mark evidence in the data, set config.evaluate.gold=answers, or leave the reader as "
            "it is"
        )
    if missing := len(corpus.load_questions(context, "train")) - len(questions):
        say(f"  {missing:,} questions without an answer or its passage are not shown")
    settings = config.reader
    sets = sets_with_gold(
        questions, settings.steps, settings.batch, config.evaluate.passages, config.seed
    )
    form = reading_prompt(config)
    (tuned, _, _), counts = teach(
        _load_reader(context),
        form,
        sets,
        corpus.Passages(chunks),
        LanguageModelConfig(remat="products"),
        models.training_run(context.metrics, folder, models.WARM_READER),
        batch=min(settings.batch, len(questions)),
        learning_rate=settings.learning_rate,
        seed=config.seed,
    )
    tuned.save_pretrained(folder / "model", dtype="float32")
    form.write(folder / "model")
    return counts


def _load_reader(context: Context):
    """The untuned reader with float32 parameters, since 16 bits would lose small updates."""
    from ark_jax.models.language import LanguageModel

    context.enter_mesh()
    context.models.pop("generator", None)  # memory may not suffice for two models
    settings = context.config.generator
    return LanguageModel.from_pretrained(
        context.config.reader.path or settings.path,
        compute=settings.dtype,
        attention=settings.attention,
    )


def _pooled_questions(context: Context, chunks: StoredChunks) -> list[PooledQuestion]:
    """The training questions with an answer and a needed passage, each with its candidates."""
    from ark_jax.evaluate.answers import normalise

    answerable = [
        q for q in corpus.load_questions(context, "train") if any(map(normalise, q.answers))
    ]
    gold, _ = corpus.gold_passages(context, answerable, chunks.by_document)
    candidates, pooled = load_candidates(context), []
    for number, question in enumerate(answerable):
        passages = tuple(map(tuple, gold[question.id]))
        if not any(passages) or question.id not in candidates:
            continue
        ids, cosines = zip(*candidates[question.id], strict=True)
        pooled.append(PooledQuestion(number, question, ids, cosines, passages))
    return pooled


SEARCHED = {  # by `evaluate.scope`
    "document": "the chunks of its own documents",
    "held_out": "the chunks of all held-out questions' documents",
    "corpus": "the whole corpus",
}
METHOD = "ARK: answer-centric contrastive learning (ARK, ACL 2026)"


def export(context: Context, folder: Path, *, chosen_by: str) -> dict:
    """Writes the folder of the chosen retriever, which sentence-transformers opens too."""
    config = context.config
    compared = systems(config)
    curriculum = trained_stages(config)
    counts = export_retriever(
        context,
        folder,
        chosen=choice.load_choice(context, chosen_by),
        examples=len(learned_questions(context)),
        curriculum=curriculum,
        method=METHOD,
    )
    if compared.reranker:
        source, dtype = context / compared.reranker / "model", config.retriever.export_dtype
        models.copy_model(source, folder / RERANKER, config.reranker.path, dtype)
        _describe_reranker(context, folder / RERANKER / "README.md", compared.last)
        counts["reranker"] = compared.reranker
    return counts


def export_retriever(
    context: Context,
    folder: Path,
    *,
    chosen: dict,
    examples: int,
    curriculum: tuple[str, ...],
    method: str,
) -> dict:
    """Copies the chosen system's model and writes a model card with its results.

    Args:
        chosen: as `choice.load_choice` returns it.
        examples: how many questions it was trained on.
        curriculum: as in `evaluate.verdict`.
        method: the method's short name and how the card describes it, "NAME: DESCRIPTION".
    """
    from ark_jax.models import model_card

    name, _, description = method.partition(": ")
    candidate = choice.candidate_of(chosen)
    system, is_tuned = candidate.model, candidate.model != "base"
    source = context / (system if is_tuned else choice.STAGE) / "model"
    retriever = context.config.retriever
    models.copy_model(source, folder, retriever.path, retriever.export_dtype)
    save_fusion(candidate.fusion, folder)
    evaluated = load_json(context / "evaluate" / "metrics.json")
    base, hub_name = models.base_names(context.config.retriever.path)
    values = next(row["values"] for row in evaluated["table"] if row["system"] == system)
    text = model_card.render_card(
        folder,
        title=f"{base}, tuned with {name}" if is_tuned else f"{base}, untouched",
        base=hub_name,
        about=_description(
            context,
            model_card.plain_line(base),
            examples,
            evaluated,
            curriculum,
            description,
            chosen,
        ),
        results=_hub_results(context, values),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
    return {"model": system, "system": chosen["system"]}


def index_words(config, workdir: Path) -> list[str]:
    """The arguments of `ark-jax index` that index a run's documents with its export."""
    tokens = config.data.chunk_tokens
    length = [f"--chunk-tokens={tokens}"] if tokens else []
    return [str(workdir / "export"), config.data.path, f"--out={workdir / 'index'}", *length]


def _describe_reranker(context: Context, card: Path, system: str) -> None:
    from ark_jax.models.model_card import plain_line

    config = context.config
    base = plain_line(models.base_names(config.reranker.path)[0])
    lists = read_manifest(context / RERANKER)["counts"]["lists"]
    evaluated = load_json(context / "evaluate" / "metrics.json")
    rows = [row for row in evaluated["table"] if row["system"] in (system, f"{system} + reranker")]
    questions = read_manifest(context / "evaluate")["counts"]["questions"]
    by_model = "as a language\nmodel does: by how well they explain the answer (alignment scores)"
    taught = "by a file of scores" if config.reranker.scores else by_model
    intro = f"""Begins as {base}. Tuned by ark_jax {__version__} to score passages {taught}, on
{lists:,} questions.
Measured on {questions:,} held-out questions (mean and 95 % bootstrap interval), where it puts in
order what {system} retrieves:

{as_markdown(rows, evaluated["metrics"])}

{models.settings_text(config, "train", "reranker")}"""
    models.describe_card(card, f"{base}, a reranker tuned with ARK", intro)


def _hub_results(context: Context, values: dict) -> list:
    from huggingface_hub import EvalResult

    questions = read_manifest(context / "evaluate")["counts"]["questions"]
    return [
        EvalResult(
            task_type="information-retrieval",
            task_name="Information Retrieval",
            dataset_type="unknown",
            dataset_name=f"{_data_name(context)}, {questions:,} held-out questions",
            metric_type=metric,
            metric_name=metric_heading(metric),
            metric_value=round(values[metric]["mean"], 4),
        )
        for metric in MODEL_CARD_METRICS
        if metric in values
    ]


def _description(
    context: Context,
    base: str,
    examples: int,
    evaluated: dict,
    curriculum: tuple[str, ...],
    description: str,
    chosen: dict,
) -> str:
    from ark_jax.models.model_card import plain_line

    counts = read_manifest(context / "data")["counts"]
    table, columns = evaluated["table"], evaluated["metrics"]
    trained, measured = (corpus.load_questions(context, part) for part in ("train", "held_out"))
    names = [{id for x in part for id in x.documents} for part in (trained, measured)]
    unseen = counts["split_by"] == "document" and names[0].isdisjoint(names[1])
    documents = "over documents it never saw" if unseen else "that may share passages with those"
    data = plain_line(_data_name(context))
    against = (f"{line}." for line in against_parts(table, columns))
    shown = headline(context / "evaluate", context.config.seed, curriculum)
    sentences = [*choice.sentences(chosen), shown, *against, note_on_test(context)]
    made = (
        "Tuned" if chosen["model"] != "base" else "It is that model, untouched; others were tuned"
    )
    return f"""Base model: {base}. {made} by ark_jax {__version__} with {description} on
{examples:,} of the {len(trained):,} training questions of the data set {data};
measured on {len(measured):,} held-out questions {documents} (mean and 95 %
bootstrap interval):

{as_markdown(table, columns)}

{" ".join(filter(None, sentences))}

{_how_measured(context, counts["pool"], measured)}

To search documents of your own by this model and BM25, joined as `{FUSION_FILE}` says:

```bash
ark-jax index path/to/this/folder DOCUMENTS --out=INDEX && ark-jax search INDEX "QUESTION"
```

{models.settings_text(context.config, "train")}"""


def _data_name(context: Context) -> str:
    """The name of the data's folder, or of its file without a known suffix."""
    path = Path(context.config.data.path)
    return path.stem if path.suffix in SUFFIXES else path.name or path.resolve().name


def _how_measured(context: Context, pool: str, measured: Sequence[Question]) -> str:
    evaluated, settings = read_manifest(context / "evaluate")["counts"], context.config.evaluate
    unmarked, questions = evaluated["without_marked_evidence"], evaluated["questions"]
    by_answer = "chunks that contain an answer, of which one is needed"
    if unmarked == questions and not any(question.answers for question in measured):
        relevant = "Relevant are the documents of the question."
    elif settings.gold == "answers" or unmarked == questions:
        relevant = f"Relevant are {by_answer}, or else the documents of the question."
    else:
        relevant = (
            "Relevant are the chunks that hold marked evidence; a marked section counts once, "
            "however many chunks hold it."
        )
        if unmarked:
            relevant += f" For {unmarked:,} questions without it, they are {by_answer}."
    scope = {"corpus": "corpus", "documents": "document"}[pool]
    scope = scope if settings.scope == "auto" else settings.scope
    return f"{relevant} Each question searches {SEARCHED[scope]}."
