"""Alignment scores: how well chunks explain an answer, and the positives chosen by them."""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ark_jax.data.evidence import with_documents
from ark_jax.data.records import Chunk, Question
from ark_jax.pipeline.parts import store_part, whole_parts
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import read_table, stream_rows
from ark_jax.recipes.ark.graph import in_round, load_candidates
from ark_jax.recipes.core.models import SCORER, encode, load_generator
from ark_jax.recipes.core.split import uniform
from ark_jax.recipes.documents.corpus import evidence_chunks, load_questions, training_chunks
from ark_jax.runtime import distributed
from ark_jax.runtime.distributed import is_first_process
from ark_jax.text import prompts

if TYPE_CHECKING:  # these modules start jax
    from ark_jax.models.language import LanguageModel

# A scored template -> the slot at its end, whose tokens the model scores.
TARGETS = {"forward": "answer", "backward": "question"}


def load_templates(paths: Mapping[str, str]) -> dict[str, str]:
    """name -> template, for those of TARGETS; `paths` is `config.prompts`, {}: packaged ones."""
    return {
        name: prompts.load_template(name, paths.get(name, ""), target=target)
        for name, target in TARGETS.items()
    }


def scored_pairs(
    templates: Mapping[str, str], *, passage: str, question: str, answer: str
) -> list[tuple[str, str]]:
    """(prompt, target) of each template, in the order of TARGETS."""
    values = {"passage": passage, "question": question, "answer": answer}
    return [
        prompts.split_target(templates[name], target, **values) for name, target in TARGETS.items()
    ]


SEAM_TOKENS = 16  # upper bound of the tokens that joining three texts may add
SCHEMA = pa.schema(
    [
        ("question", pa.string()),
        ("chunk", pa.string()),
        ("answer", pa.int32()),  # position among the question's reference answers
        ("forward", pa.float32()),  # mean log p(answer | question, chunk), nats
        ("forward_tokens", pa.int32()),
        ("backward", pa.float32()),  # mean log p(question | answer, chunk), nats
        ("backward_tokens", pa.int32()),
        ("retriever", pa.float32()),  # cosine under the base retriever
        ("chunk_tokens", pa.int32()),
        ("cut", pa.bool_()),  # whether the chunk was shortened to fit the model
    ]
)
UNIFIED = pa.schema(
    [
        ("question", pa.string()),
        ("chunk", pa.string()),
        ("score", pa.float64()),
        ("retriever", pa.float64()),
        ("forward_max", pa.float64()),
        ("forward_mean", pa.float64()),
        ("backward_max", pa.float64()),
        ("backward_mean", pa.float64()),
    ]
)
BLOCK = 1 << 13  # rows that are converted at once, which bounds memory
REDUCTIONS = {  # of the scores of several reference answers
    "first": lambda scores: scores[0],
    "max": max,
    "mean": lambda scores: float(np.mean(scores)),
}


@dataclasses.dataclass(frozen=True)
class Weighing:
    """How the raw scores of a chunk are combined into one (eq. 6).

    Attributes:
        answers: how several reference answers are reduced: first, max or mean.
        normalise: minmax scales each part to [0, 1] per question; none leaves it.
        forward, backward, retriever: the weights of S_f, S_b and S_v.
        short: a chunk of fewer tokens has its score multiplied by its share of them.
    """

    answers: str
    normalise: str
    forward: float
    backward: float
    retriever: float
    short: int = 0


def align(
    lm: "LanguageModel",
    templates: Mapping[str, str],
    questions: Sequence[Question],
    candidates: Mapping[str, Sequence[tuple[Chunk, float]]],
    *,
    references: int,
    batch_tokens: int,
    label: str,
) -> pa.Table:
    """Raw scores of every candidate chunk of every question, a table of SCHEMA.

    Args:
        templates: from `load_templates`.
        candidates: question id -> (chunk, cosine) pairs.
        references: how many of a question's answers are scored; 0: all.

    Raises:
        ValueError: a question leaves no room for a passage, or its score is not finite. The message
            names question and chunk.
    """
    from ark_jax.models.language import PairError

    rows, pairs, fitter = [], [], _PassageFitter(lm, templates)
    for question in questions:
        for chunk, cosine in candidates[question.id]:
            for i, answer in enumerate(question.answers[: references or None]):
                fields = {"question": question.question, "answer": answer}
                name = _name_pair(question.id, i, chunk.id)
                passage = fitter.fit(chunk.passage, fields, name)
                filled = scored_pairs(templates, passage=passage, **fields)
                pairs += [tuple(map(lm.as_data, pair)) for pair in filled]
                row = {
                    "question": question.id,
                    "chunk": chunk.id,
                    "answer": i,
                    "retriever": cosine,
                    "chunk_tokens": chunk.tokens,
                    "cut": passage != chunk.passage,
                }
                rows.append(row)
    try:
        scores = lm.log_likelihood(pairs, batch_tokens=batch_tokens, label=label)
    except PairError as error:
        row, target = rows[error.number // 2], list(TARGETS.values())[error.number % 2]
        name = _name_pair(row["question"], row["answer"], row["chunk"])
        raise ValueError(f"{name}: log p({target}) cannot be computed: {error.reason}") from error
    for i, row in enumerate(rows):
        for offset, name in enumerate(TARGETS):
            row[name] = float(scores.mean[2 * i + offset])
            row[f"{name}_tokens"] = int(scores.tokens[2 * i + offset])
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _name_pair(question_id: str, answer: int, chunk_id: str) -> str:
    return f"question {question_id!r}, answer {answer}, chunk {chunk_id!r}"


class _PassageFitter:
    """Cuts passages at their end if their prompts are too long for the model."""

    def __init__(self, lm: "LanguageModel", templates: Mapping[str, str]):
        self._lm, self._templates = lm, templates
        self._count = functools.cache(lambda text: lm.token_counts([lm.as_data(text)])[0])
        self._longest_template = max(map(self._count, templates.values()))

    def fit(self, passage: str, fields: dict[str, str], name: str) -> str:
        """The passage, or as much of its beginning as fits. Question and answer are never cut.

        Args:
            fields: question and answer.
            name: of the pair, for an error.

        Raises:
            ValueError: question and answer leave no room.
        """
        limit = self._lm.max_length
        # Each part is counted once. Joined, they may have a few tokens more.
        parts = (self._count(passage), *map(self._count, fields.values()), self._longest_template)
        if sum(parts) + SEAM_TOKENS <= limit:
            return passage
        longest = self._prompt_tokens("", fields)
        if longest >= limit:
            raise ValueError(
                f"{name}: question, answer and prompt take {longest} of the {limit} tokens that "
                "generator.path reads, which leaves none for the passage; leave the question out "
                "or take a longer model"
            )
        return self._cut(passage, fields, limit)

    def _cut(self, passage: str, fields: dict[str, str], limit: int) -> str:
        """The longest beginning of the passage whose prompt fits, by tokens."""
        encoded = self._lm.tokenizer(
            passage, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ends = [end for _, end in encoded["offset_mapping"]]
        count = len(ends)
        while (excess := self._prompt_tokens(passage, fields) - limit) > 0:
            count = max(count - excess, 0)
            # At least one character is dropped: it may have several tokens.
            end = min(ends[count - 1] if count else 0, len(passage) - 1)
            passage = passage[:end]
        return passage

    def _prompt_tokens(self, passage: str, fields: dict[str, str]) -> int:
        """Tokens of the longer of the two prompts, with its target."""
        pairs = scored_pairs(self._templates, passage=passage, **fields)
        texts = [self._lm.as_data(prompt + target) for prompt, target in pairs]
        return max(self._lm.token_counts(texts))


def unify(table: pa.Table, weighing: Weighing) -> pa.Table:
    """One row per (question, chunk): the score of eq. 6 and its parts, a table of UNIFIED.

    It calls no model.

    Of several reference answers, both the largest and the mean log-likelihood are given, whichever
    is weighed.

    Raises:
        ValueError: an unknown way to reduce or normalise.
    """
    if weighing.answers not in REDUCTIONS:
        known = ", ".join(REDUCTIONS)
        raise ValueError(f"score.answers={weighing.answers!r}: must be one of {known}")
    if weighing.normalise not in ("none", "minmax"):
        raise ValueError(f"score.normalise={weighing.normalise!r}: must be 'none' or 'minmax'")
    rows, blocks = _unified_rows(table, weighing), [UNIFIED.empty_table()]
    while block := list(itertools.islice(rows, BLOCK)):
        blocks.append(pa.Table.from_pylist(block, schema=UNIFIED))
    return pa.concat_tables(blocks)


def _unified_rows(table: pa.Table, weighing: Weighing) -> Iterator[dict]:
    """Yields the rows of UNIFIED, question by question."""
    codes = table["question"].combine_chunks().dictionary_encode().indices.to_numpy()
    table = table.take(np.argsort(codes, kind="stable"))  # rows of a question one after another
    by_question = itertools.groupby(stream_rows(table), operator.itemgetter("question"))
    for question, raw_rows in by_question:
        chunks: dict[str, list[dict]] = {}
        for row in raw_rows:
            chunks.setdefault(row["chunk"], []).append(row)
        scores = _weigh(chunks, weighing)
        for (chunk, raw), score in zip(chunks.items(), scores.tolist(), strict=True):
            row = {"question": question, "chunk": chunk, "score": score}
            yield row | {"retriever": raw[0]["retriever"]} | _summaries(raw)


def _weigh(chunks: Mapping[str, list[dict]], weighing: Weighing) -> np.ndarray:
    """The score of each chunk of one question, float64 `[chunks]`.

    Args:
        chunks: chunk id -> its raw rows, one for each reference answer.
    """
    reduce = REDUCTIONS[weighing.answers]
    parts = {
        name: np.array([reduce([row[name] for row in rows]) for rows in chunks.values()])
        for name in ("forward", "backward", "retriever")
    }
    if weighing.normalise == "minmax":
        parts = {name: _minmax(values) for name, values in parts.items()}
    scores = (
        weighing.forward * parts["forward"]
        + weighing.backward * parts["backward"]
        + weighing.retriever * parts["retriever"]
    )
    if weighing.short:
        lengths = np.array([rows[0]["chunk_tokens"] for rows in chunks.values()])
        scores *= np.minimum(lengths / weighing.short, 1)
    return scores


def _summaries(rows: list[dict]) -> dict[str, float]:
    return {
        f"{name}_{rule}": REDUCTIONS[rule]([row[name] for row in rows])
        for name in ("forward", "backward")
        for rule in ("max", "mean")
    }


def _minmax(values: np.ndarray) -> np.ndarray:
    spread = values.max() - values.min()
    return (values - values.min()) / spread if spread > 1e-12 else np.full_like(values, 0.5)


def keep_clearest(
    rows: Iterable[Mapping], positives: Mapping[str, Sequence[str]], keep: float
) -> dict[str, list[str]]:
    """Keeps the `keep` fraction of questions with the largest margin.

    A question's margin is its lowest positive score minus its highest other score. A small margin
    hints that the answer needs none of the chunks. A question without another chunk has an infinite
    margin. Of questions with equal margins, the one with the smaller id is kept.

    Raises:
        ValueError: `keep` is not in (0, 1].
    """
    if not 0 < keep <= 1:
        raise ValueError(
            f"config.score.keep={keep}: must be above 0 and at most 1, a share of the questions"
        )
    lowest_positive: dict[str, float] = {}
    highest_other: dict[str, float] = {}
    for row in rows:
        question, score = row["question"], row["score"]
        if row["chunk"] in positives[question]:
            lowest_positive[question] = min(lowest_positive.get(question, np.inf), score)
        else:
            highest_other[question] = max(highest_other.get(question, -np.inf), score)
    deficit = lambda question: highest_other.get(question, -np.inf) - lowest_positive[question]
    order = sorted(positives, key=lambda question: (deficit(question), question))
    clearest = set(order[: math.ceil(keep * len(order))])
    return {
        question: list(chunks) for question, chunks in positives.items() if question in clearest
    }


def top_chunks(rows: Iterable[Mapping], count: int | None = None) -> dict[str, list[str]]:
    """question -> its `count` best chunks, or all, best first; ties go to the smaller chunk id.

    Questions are in order of their ids.
    """
    best: dict[str, list[tuple[float, str]]] = {}
    for row in rows:
        ranked = best.setdefault(row["question"], [])
        ranked.append((-row["score"], row["chunk"]))
        if count is not None and len(ranked) > 2 * count + 64:  # few sorts, few rows
            ranked.sort()
            del ranked[count:]
    return {
        question: [chunk for _, chunk in sorted(best[question])][:count]
        for question in sorted(best)
    }


FILE = "positives.parquet"
SHARDS = "shard-*.parquet"
LEAST_SHARE = 1e-6  # of a chunk; a share must be above 0


def needs_scores(config) -> bool:
    """Whether scores decide anything. Runs that spare negatives share them, also if marks train."""
    spares = config.mine.spare > 0 or config.train.kind == "cross"
    return spares or config.score.supervision != "gold"


def score(context: Context, folder: Path, *, number: int = 1) -> dict:
    """Scores how likely a language model finds answer and question beside each candidate.

    A question without answers has no scores; where marks alone train, none has. If nothing is left
    to score, no model is loaded. A later round takes S_f and S_b from the round before where it
    scored the same candidates.

    Args:
        number: of the round.
    """
    config, limit = context.config, context.config.score.candidates or None
    chunks = training_chunks(context).by_id
    answered = [q for q in load_questions(context, "train") if q.answers and needs_scores(config)]
    questions = sorted(answered, key=lambda q: (q.documents, q.id))
    templates = load_templates(config.prompts)
    nearest, known = load_candidates(context, number), SCHEMA.empty_table()
    if number > 1:
        known = read_table(context / in_round("score", number - 1) / "scores.parquet")
    candidates = lambda q: [(chunks[chunk], cos) for chunk, cos in nearest.get(q.id, ())[:limit]]
    last, unscored = distributed.on_first_process(lambda: _unscored(folder, questions))
    shards = _shards([questions[i] for i in unscored], config.score.shard)
    for i, shard in enumerate(shards, 1):
        paired = {question.id: candidates(question) for question in shard}
        if config.score.path and number == 1:
            paired = _with_other_cosines(context, shard, paired)
        table, paired = _score_again(known, paired)
        if any(paired.values()):
            scored = align(
                load_generator(context),
                templates,
                shard,
                paired,
                references=config.score.references,
                batch_tokens=config.generator.batch_tokens,
                label=f"score {i}/{len(shards)}",
            )
            table = pa.concat_tables([table, scored])
        if is_first_process():
            path = folder / f"shard-{last + i:05d}.parquet"
            store_part(path, functools.partial(pq.write_table, table))
    return distributed.on_first_process(lambda: _join_shards(folder, questions))


Paired = Mapping[str, Sequence[tuple[Chunk, float]]]  # question -> candidates with their cosines


def _with_other_cosines(context: Context, questions: Sequence[Question], paired: Paired) -> Paired:
    """The candidates with their cosines by `score.path`."""
    from ark_jax.retrieval.late import similarities

    chunks = list({x.id: x for pairs in paired.values() for x, _ in pairs}.values())
    position = {chunk.id: i for i, chunk in enumerate(chunks)}
    texts = [chunk.passage for chunk in chunks]
    vectors = encode(context, SCORER, texts, "document", "embed chunks")
    asked = [question.question for question in questions]
    queries = encode(context, SCORER, asked, "query", "embed questions")

    def compare(question: Question, query) -> list[tuple[Chunk, float]]:
        compared = [chunk for chunk, _ in paired[question.id]]
        cosines = similarities(query, vectors[[position[chunk.id] for chunk in compared]])
        return list(zip(compared, cosines.tolist(), strict=True)) if compared else []

    return {q.id: compare(q, query) for q, query in zip(questions, queries, strict=True)}


def _score_again(known: pa.Table, paired: Paired) -> tuple[pa.Table, Paired]:
    """Rows of earlier scores with the new cosines, and the candidates that have none."""
    cosines = {(q, chunk.id): cosine for q, pairs in paired.items() for chunk, cosine in pairs}
    earlier = known.filter(pc.is_in(known["question"], pa.array(list(paired), pa.string())))
    rows = [
        row | {"retriever": cosines[key]}
        for row in stream_rows(earlier)
        if (key := (row["question"], row["chunk"])) in cosines
    ]
    scored = {(row["question"], row["chunk"]) for row in rows}
    unscored_pairs = {
        q: [pair for pair in pairs if (q, pair[0].id) not in scored] for q, pairs in paired.items()
    }
    return pa.Table.from_pylist(rows, schema=SCHEMA), unscored_pairs


def _unscored(folder: Path, questions: list[Question]) -> tuple[int, list[int]]:
    """The number of the last stored shard, and the indices of questions that no shard holds."""
    paths = whole_parts(folder, SHARDS)
    tables = [read_table(path, columns=["question"]) for path in paths]
    scored = {id for table in tables for id in table.column("question").to_pylist()}
    last = int(paths[-1].stem.removeprefix("shard-")) if paths else 0
    return last, [i for i, question in enumerate(questions) if question.id not in scored]


def _join_shards(folder: Path, questions: list[Question]) -> dict:
    """Replaces the shards by one table in the order of the questions; returns counts."""
    paths = sorted(folder.glob(SHARDS))
    table = pa.concat_tables([read_table(path) for path in paths] or [SCHEMA.empty_table()])
    position = {question.id: i for i, question in enumerate(questions)}
    positions = [position[id] for id in table.column("question").to_pylist()]
    table = table.take(np.argsort(positions, kind="stable"))
    pq.write_table(table, folder / "scores.parquet")
    for path in paths:
        path.unlink()
    return {"scored": len(table), "cut_passages": sum(table.column("cut").to_pylist())}


def _shards(questions: list[Question], size: int) -> list[list[Question]]:
    """Groups of at least `size` questions; questions over the same documents stay together."""
    shards: list[list[Question]] = []
    for question in questions:
        last = shards[-1] if shards else []
        if last and (len(last) < size or question.documents == last[-1].documents != ()):
            last.append(question)
        else:
            shards.append([question])
    return shards


def choose_positives(context: Context, folder: Path, *, number: int = 1) -> dict:
    """Chooses the passages that each question learns to find, its positives.

    Marked are the chunks of its evidence; without evidence and answers, those of its documents.

    Args:
        number: of the round.
    """
    settings = context.config.score
    fields = [field.name for field in dataclasses.fields(Weighing)]
    weighing = Weighing(**{name: settings[name] for name in fields})
    scores = read_table(context / in_round("score", number) / "scores.parquet")
    rows = unify(scores, weighing)
    questions = load_questions(context, "train")
    if share := settings.development:
        seed = context.config.seed
        questions = [q for q in questions if uniform(f"{seed} development {q.id}") >= share]
        kept = pa.array([question.id for question in questions], pa.string())
        rows = rows.filter(pc.is_in(rows["question"], kept))
    chunks = training_chunks(context).by_document
    # Only training by marked chunks keeps a question without answers.
    marked = with_documents(evidence_chunks(context, questions, chunks), questions, chunks)
    evidence = {question: set().union(*passages) for question, passages in marked.items()}
    if settings.supervision == "gold":
        positives = _marked_positives(evidence)
        rows = pa.concat_tables([rows, _unscored_rows(rows, positives)])
    else:
        top = top_chunks(_scored_chunks(rows), settings.positives)
        positives = keep_clearest(_scored_chunks(rows), top, settings.keep)
    flags = [row["chunk"] in positives.get(row["question"], ()) for row in _scored_chunks(rows)]
    if is_first_process():
        flagged = rows.append_column("positive", pa.array(flags, pa.bool_()))
        pq.write_table(flagged.combine_chunks(), folder / FILE)
    return _count_positives(positives, evidence)


def _scored_chunks(rows: pa.Table) -> Iterator[dict]:
    return stream_rows(rows.select(["question", "chunk", "score"]))


def _marked_positives(evidence: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """question -> its marked chunks, for questions that have some; ValueError if none has."""
    positives = {question: sorted(chunks) for question, chunks in evidence.items() if chunks}
    if not positives:
        raise ValueError(
            "config.score.supervision=gold: no training question has evidence; mark it in the "
            "data, or train by alignment"
        )
    return positives


def _unscored_rows(rows: pa.Table, positives: Mapping[str, Sequence[str]]) -> pa.Table:
    """Rows for positives that were not scored, with the score -inf."""
    scored = ((row["question"], row["chunk"]) for row in _scored_chunks(rows))
    known = {(id, chunk) for id, chunk in scored if chunk in positives.get(id, ())}
    unscored = [
        {"question": question, "chunk": chunk, "score": -np.inf}
        for question, chunks in positives.items()
        for chunk in chunks
        if (question, chunk) not in known
    ]
    return pa.Table.from_pylist(unscored, schema=rows.schema)


def _count_positives(
    positives: Mapping[str, Sequence[str]], evidence: Mapping[str, set[str]]
) -> dict:
    """Counts for the manifest, with the share of positives that hold marked evidence."""
    holding = [
        chunk in evidence[question]
        for question, chunks in positives.items()
        for chunk in chunks
        if evidence[question]
    ]
    counts = {"questions": len(positives), "positives": sum(map(len, positives.values()))}
    if holding:
        counts["share_holding_evidence"] = round(float(np.mean(holding)), 4)
    return counts


def load_positives(folder: Path) -> dict[str, list[str]]:
    """question -> its positives, best first."""
    return _best_stored(folder, positive=True)


def load_next_best(folder: Path, count: int) -> dict[str, list[str]]:
    """question -> the `count` chunks that score best after the positives."""
    return _best_stored(folder, positive=False, count=count) if count else {}


def _best_stored(folder: Path, *, positive: bool, count: int | None = None) -> dict[str, list[str]]:
    """question -> its best scored chunks among the positives, or among the others."""
    table = read_table(folder / FILE, ["question", "chunk", "score", "positive"])
    rows = stream_rows(table.filter(pc.equal(table["positive"], positive)))
    return top_chunks(rows, count)


def load_scores(folder: Path) -> dict[str, dict[str, float]]:
    """question -> chunk -> alignment score, of all that were scored."""
    scores: dict[str, dict[str, float]] = {}
    ids: dict[str, str] = {}  # equal ids share one string, to save memory
    columns = ["question", "chunk", "score"]
    for row in stream_rows(read_table(folder / FILE, columns)):
        chunk = ids.setdefault(row["chunk"], row["chunk"])
        scores.setdefault(row["question"], {})[chunk] = row["score"]
    return scores


def load_shares(
    folder: Path, originals: Mapping[str, str], temperature: float
) -> dict[str, dict[str, float]]:
    """question -> scored chunk -> its share, see `shares`.

    Args:
        originals: copy -> the chunk that replaces it; of several copies the first score counts.
    """
    by_question: dict[str, dict[str, float]] = {}
    for question, scores in load_scores(folder).items():
        distinct: dict[str, float] = {}
        for chunk, value in scores.items():
            distinct.setdefault(originals.get(chunk, chunk), value)
        weights = shares(distinct.values(), temperature)
        by_question[question] = dict(zip(distinct, weights, strict=True))
    return by_question


def shares(scores: Collection[float], temperature: float) -> list[float]:
    """The softmax of alignment scores; -inf stands for a chunk that was not scored."""
    best = max(scores)
    weights = [max(math.exp((score - best) / temperature), LEAST_SHARE) for score in scores]
    return [weight / math.fsum(weights) for weight in weights]
