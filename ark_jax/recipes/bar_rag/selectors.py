"""The pools of chunks, and the selectors that draw sets of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ark_jax.data.records import Question
from ark_jax.data.spool import StoredChunks
from ark_jax.evaluate.answers import normalise
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows, read_array, save_json, save_rows
from ark_jax.recipes.bar_rag.reading import Success, group_of, rollout_rows
from ark_jax.recipes.bar_rag.rollout_engine import Sample, sampler
from ark_jax.recipes.bar_rag.rollouts import (
    ChosenSet,
    DrawnSet,
    RewardedSet,
    sets_by_question,
    stage_of,
)
from ark_jax.recipes.core.models import encode
from ark_jax.recipes.documents import corpus
from ark_jax.recipes.documents.reader import questions_to_answer
from ark_jax.recipes.documents.reader_training import PooledQuestion, reading_prompts
from ark_jax.recipes.documents.retrieve import searched_chunks
from ark_jax.retrieval.searcher import nearest_texts
from ark_jax.runtime.distributed import is_first_process
from ark_jax.runtime.log import say
from ark_jax.text import prompts
from ark_jax.text.cited import parse_choice
from ark_jax.train.config import GrpoConfig, LanguageModelConfig

if TYPE_CHECKING:  # these modules start jax
    from ark_jax.models.language import LanguageModel
    from ark_jax.select.pools import Pool
    from ark_jax.select.scorer import DrawnSets, Selector
    from ark_jax.select.training import SelectorGroup, SelectorTraining
    from ark_jax.train.fit import Run, Trained
    from ark_jax.train.groups import Group

PARTS = ("train", "held_out")
FILE, GOLD, VECTORS = "pool.parquet", "gold.json", "vectors.json"


def find_pools(context: Context, folder: Path) -> dict:
    """Finds the passages nearest to every question, its pool.

    A question whose reference answers are only articles and punctuation gets no pool, since no
    answer to it can be right.

    Raises:
        ValueError: no training question has a pool.
    """
    chunks, rows, gold = corpus.stored_chunks(context), [], {}
    vectors: dict[str, dict[str, np.ndarray]] = {"questions": {}, "chunks": {}}
    counts = {"questions_without_usable_answer": 0}
    for part in PARTS:
        questions = corpus.load_questions(context, part)
        usable = [question for question in questions if any(map(normalise, question.answers))]
        counts["questions_without_usable_answer"] += len(questions) - len(usable)
        gold |= corpus.gold_passages(context, usable, chunks.by_document)[0]
        rows += _search_pools(context, usable, chunks, gold, vectors, part)
    if not any(row["part"] == "train" for row in rows):
        raise ValueError(
            f"{context.config.data.path}: no training question has a reference answer with a word "
            "and a chunk to read; add answers, or documents that hold them"
        )
    if counts["questions_without_usable_answer"]:
        say(
            f"  {counts['questions_without_usable_answer']:,} questions have no reference answer "
            "with a word beside articles and punctuation: they are left out"
        )
    save_rows(rows, folder / FILE)
    save_json(gold, folder / GOLD)
    save_json({name: list(values) for name, values in vectors.items()}, folder / VECTORS)
    if is_first_process():
        for name, values in vectors.items():
            np.save(folder / f"{name}.npy", np.stack(list(values.values())), allow_pickle=False)
    pools = {row["question_id"]: False for row in rows}
    pools |= {row["question_id"]: True for row in rows if row["gold"]}
    return {
        "questions": len(pools),
        "candidates": len(rows),
        "share_of_pools_with_gold": round(sum(pools.values()) / len(pools), 4),
        **{name: count for name, count in counts.items() if count},
    }


def _search_pools(
    context: Context,
    questions: list[Question],
    chunks: StoredChunks,
    gold: Mapping[str, list[list[str]]],
    vectors: dict[str, dict[str, np.ndarray]],
    part: str,
) -> list[dict]:
    """A row for each chunk of each question's pool; adds the vectors of both to `vectors`.

    Args:
        gold: question id -> its needed passages, each as chunk ids.
        vectors: "questions" and "chunks", each id -> vector.
        part: "train" or "held_out".
    """
    searched, scopes = searched_chunks(context, questions, chunks)
    if not questions or not searched:
        return []
    keys, _ = corpus.encode_passages(
        context, "base", corpus.passages_of(searched), f"embed chunks, {part}"
    )
    texts = [question.question for question in questions]
    queries = encode(context, "base", texts, "query", f"embed questions, {part}")
    found = nearest_texts(queries, keys, context.config.pool.size, scopes)
    rows = []
    for question, query, ranking in zip(questions, queries, found, strict=True):
        vectors["questions"][question.id] = query
        vectors["chunks"] |= {searched[place].id: np.asarray(keys[place]) for place in ranking.ids}
        needed = {chunk for holders in gold[question.id] for chunk in holders}
        rows += [
            {
                "question_id": question.id,
                "part": part,
                "chunk_id": searched[place].id,
                "rank": rank,
                "cosine": cosine,
                "gold": searched[place].id in needed,
            }
            for rank, (place, cosine) in enumerate(ranking.pairs())
        ]
    return rows


def load_pools(context: Context, part: str) -> list[PooledQuestion]:
    """The questions of "train" or "held_out" that have a pool."""
    rows: dict[str, list[dict]] = {}
    for row in load_rows(context / "pool" / FILE):
        rows.setdefault(row["question_id"], []).append(row)
    gold = load_json(context / "pool" / GOLD)
    return [
        PooledQuestion(
            number,
            question,
            tuple(row["chunk_id"] for row in rows[question.id]),
            tuple(row["cosine"] for row in rows[question.id]),
            tuple(map(tuple, gold[question.id])),
        )
        for number, question in enumerate(corpus.load_questions(context, part))
        if question.id in rows
    ]


def drawn_pools(context: Context, part: str, limit: int) -> list[PooledQuestion]:
    """At most `limit` questions of a part that have a pool, drawn by a hash; 0: all."""
    pools = load_pools(context, part)
    drawn = questions_to_answer([pooled.question for pooled in pools], limit or -1)
    ids = {question.id for question in drawn}
    return [pooled for pooled in pools if pooled.id in ids]


class PoolVectors:
    """The stored vectors of pooled questions and their chunks."""

    def __init__(self, context: Context):
        folder = context / "pool"
        ids = load_json(folder / VECTORS)
        self._places = {name: {id: i for i, id in enumerate(ids[name])} for name in ids}
        self._vectors = {name: read_array(folder / f"{name}.npy") for name in ids}

    @property
    def width(self) -> int:
        """Components of a vector."""
        return self._vectors["questions"].shape[1]

    def pools(self, questions: Sequence[PooledQuestion]) -> "list[Pool]":
        """For each question, its vector and those of its chunks."""
        from ark_jax.select.pools import Pool

        return [
            Pool(
                pooled.number,
                self._vectors_of("questions", [pooled.id])[0],
                self._vectors_of("chunks", pooled.chunk_ids),
            )
            for pooled in questions
        ]

    def _vectors_of(self, name: str, ids: Sequence[str]) -> np.ndarray:
        """The vectors `[n e]` of these ids among "questions" or "chunks"."""
        places = self._places[name]
        return self._vectors[name][[places[id] for id in ids]]


# (step, the selector so far) -> the sets that it draws in the step, with their rewards.
MakeSets = Callable[[int, "EvidenceSelector"], list[RewardedSet]]
DRAWING_RATE = 0.03  # peak learning rate unless the config sets one


@dataclasses.dataclass(frozen=True)
class DrawingSelector:
    """Draws ordered sets by exact probabilities from the pools that `make_pools` gives."""

    selector: "Selector"
    make_pools: "Callable[[Sequence[PooledQuestion]], list[Pool]]"
    config: object

    @classmethod
    def open(cls, context: Context, folder: Path | None) -> "DrawingSelector":
        """The selector of a folder; without a folder, one that draws by the retriever's cosine."""
        from ark_jax.select.scorer import Selector

        vectors, config = PoolVectors(context), context.config
        if folder is None:
            selector = Selector.new(vectors.width, seed=config.seed)
        else:
            selector = Selector.from_pretrained(folder)
        return cls(selector, vectors.pools, config)

    def draw(
        self, questions: Sequence[PooledQuestion], *, draws: int, seed: int, step: int = 0
    ) -> list[list[DrawnSet]]:
        """`draws` sets for each question, without p.

        A draw depends only on seed, step, question and number of the set.
        """
        k, pools = self.config.select.passages, self.make_pools(questions)
        drawn = self.selector.draw(pools, k=k, draws=draws, seed=seed, step=step)
        return [
            [
                DrawnSet(question_id=pooled.id, chunk_ids=ids, log_prob=float(log_prob), p=None)
                for ids, log_prob in zip(_chunk_ids(pooled, sets), sets.log_probs, strict=True)
            ]
            for pooled, sets in zip(questions, drawn, strict=True)
        ]

    def best(self, questions: Sequence[PooledQuestion]) -> list[ChosenSet]:
        """The most probable set of each question."""
        best = self.selector.best(self.make_pools(questions), k=self.config.select.passages)
        return [ChosenSet(ids) for (ids,) in map(_chunk_ids, questions, best)]

    def train(
        self, steps: Sequence[Sequence[PooledQuestion]], make_sets: MakeSets, run: "Run"
    ) -> "Trained":
        """Trains a copy of the selector.

        Args:
            steps: the questions of each step.
            make_sets: draws and rewards the sets of a step.
        """
        from ark_jax.select import training

        def make_groups(step: int, selector) -> "list[SelectorGroup]":
            sets = make_sets(step, dataclasses.replace(self, selector=selector))
            pools = self.make_pools(steps[step])
            return list(
                map(_selector_group, steps[step], pools, sets_by_question(steps[step], sets))
            )

        trained = training.train(
            self.selector, make_groups, _training_settings(self.config, steps), run
        )
        return trained._replace(model=dataclasses.replace(self, selector=trained.model))

    def save(self, folder: Path) -> None:
        """Stores the selector. Every process must call this."""
        self.selector.save_pretrained(folder)


def _chunk_ids(pooled: PooledQuestion, drawn: "DrawnSets") -> list[list[str]]:
    return [[pooled.chunk_ids[place] for place in places] for places in drawn.sets]


def _selector_group(
    pooled: PooledQuestion, pool: "Pool", sets: Sequence[RewardedSet]
) -> "SelectorGroup":
    """The sets of one question in the form of an update."""
    from ark_jax.select.training import SelectorGroup

    places = {chunk: place for place, chunk in enumerate(pooled.chunk_ids)}
    return SelectorGroup(
        pooled.id,
        pool,
        [np.array([places[x] for x in drawn_set.chunk_ids], np.int32) for drawn_set in sets],
        [drawn_set.reward for drawn_set in sets],
        [drawn_set.advantage for drawn_set in sets],
    )


def _training_settings(config, steps: Sequence[Sequence[PooledQuestion]]) -> "SelectorTraining":
    """The settings of a selector's training, from `config.select` and the shared `config.train`."""
    from ark_jax.select.training import SelectorTraining

    settings = config.select
    return SelectorTraining(
        steps=len(steps),
        learning_rate=settings.learning_rate or DRAWING_RATE,
        warmup=config.train.warmup,
        weight_decay=config.train.weight_decay,
        clip=config.train.clip,
        remat=config.train.remat,
        save_every=config.train.save_every,
        questions=max(map(len, steps)),
        candidates=config.pool.size,
        draws=settings.sets,
        k=settings.passages,
    )


WRITING_RATE = 1e-5  # peak learning rate unless the config sets one
Section = TypeVar("Section", GrpoConfig, LanguageModelConfig)


def _section_with(schema: type[Section], settings, replaced: Mapping[str, object]) -> Section:
    """The section with the values of `own`, and with those of `settings` for its other fields.

    A stage depends on each setting that it reads, so what `own` replaces is not read.
    """
    names = [field.name for field in dataclasses.fields(schema) if field.name not in replaced]
    return schema(**{name: settings[name] for name in names}, **replaced)


@dataclasses.dataclass(frozen=True)
class WritingSelector:
    """An instruction model that replies with a thought and a list of passages."""

    lm: "LanguageModel"
    form: ReadingPrompt
    passages: Mapping[str, str]
    config: object
    sample: Sample
    policy_reference: "LanguageModel | None" = None  # the model of the KL, in training

    @classmethod
    def open(cls, context: Context, folder: Path | None) -> "WritingSelector":
        """The selector of a folder; without a folder, the instruction model of the config."""
        from ark_jax.models.language import LanguageModel

        config = context.config
        lm = LanguageModel.from_pretrained(
            folder or config.selector.path or config.generator.path,
            compute=config.generator.dtype,
            attention=config.generator.attention,
        )
        template = prompts.fill(
            prompts.load_template("select", config.prompts.select), count=config.select.passages
        )
        form = ReadingPrompt(template, chat=True, cite=True)
        return cls(
            lm, form, corpus.Passages(corpus.stored_chunks(context)), config, sampler(context)
        )

    def draw(
        self, questions: Sequence[PooledQuestion], *, draws: int, seed: int, step: int = 0
    ) -> list[list[DrawnSet]]:
        """See `DrawingSelector.draw`."""
        settings, texts = self.config.selector, self._prompts(questions)
        batch_tokens = self.config.generator.batch_tokens
        rollouts = self.sample(
            self.lm,
            texts,
            n=draws,
            max_new_tokens=settings.max_new_tokens,
            seed=seed,
            temperature=settings.temperature,
            top_p=1.0,
            places=np.array([(step, pooled.number) for pooled in questions]),
            log_probs=False,
            batch_tokens=batch_tokens,
        )
        replies = rollout_rows(
            rollouts,
            [pooled.id for pooled in questions],
            self.lm.prompt_ids(texts),
            self.policy_reference,
            batch_tokens,
        )
        drawn: list[list[DrawnSet]] = [[] for _ in questions]
        for reply, owner in zip(replies, rollouts.prompts, strict=True):
            chosen = self._parse_choice(questions[owner], reply.text)
            drawn[owner].append(DrawnSet(**vars(reply), **vars(chosen), p=None))
        return drawn

    def best(self, questions: Sequence[PooledQuestion]) -> list[ChosenSet]:
        """The set that each greedy reply names; the nearest passages if it names none."""
        texts = self.lm.generate(
            self._prompts(questions),
            max_new_tokens=self.config.selector.max_new_tokens,
            batch_tokens=self.config.generator.batch_tokens,
            label="select",
        )
        best = []
        for pooled, text in zip(questions, texts, strict=True):
            chosen = self._parse_choice(pooled, text)
            if chosen.problem:
                nearest = list(pooled.chunk_ids[: self.config.select.passages])
                chosen = dataclasses.replace(chosen, chunk_ids=nearest)
            best.append(chosen)
        return best

    def train(
        self, steps: Sequence[Sequence[PooledQuestion]], make_sets: MakeSets, run: "Run"
    ) -> "Trained":
        """See `DrawingSelector.train`."""
        from ark_jax.train import tuning

        policy_reference = self.lm if self.config.selector.kl != "none" else None
        distinct = list({pooled.id: pooled for step in steps for pooled in step}.values())
        texts = self._prompts(distinct)
        ids = dict(zip([x.id for x in distinct], self.lm.prompt_ids(texts), strict=True))

        def make_groups(step: int, lm: "LanguageModel") -> "list[Group]":
            sets = make_sets(
                step, dataclasses.replace(self, lm=lm, policy_reference=policy_reference)
            )
            questions, groups = steps[step], sets_by_question(steps[step], sets)
            return [
                group_of(group, ids[pooled.id], pooled.id)
                for pooled, group in zip(questions, groups, strict=True)
            ]

        config = self.config
        trained = tuning.grpo(
            self.lm,
            make_groups,
            self._update_settings(),
            run,
            policy=self._policy_settings(),
            steps=len(steps),
            prompts=max(map(len, steps)),
            prompt_tokens=max(map(len, ids.values())),
            completion_tokens=config.selector.max_new_tokens,
            learning_rate=config.select.learning_rate or WRITING_RATE,
            seed=config.seed,
        )
        return trained._replace(model=dataclasses.replace(self, lm=trained.model))

    def save(self, folder: Path) -> None:
        """See `DrawingSelector.save`. An adapter is merged into the model."""
        self.lm.save_pretrained(folder, dtype="float32")

    def _update_settings(self) -> LanguageModelConfig:
        """The reader's settings of updates, with the adapter of `config.selector`."""
        replaced = {name: self.config.selector[name] for name in ("lora_rank", "lora_alpha")}
        return _section_with(LanguageModelConfig, self.config.train, replaced)

    def _policy_settings(self) -> GrpoConfig:
        """The reader's settings of GRPO, with the draws and the KL of the selector."""
        replaced = {"samples": self.config.select.sets, "updates": 1, "kl": self.config.selector.kl}
        return _section_with(GrpoConfig, self.config.read, replaced)

    def _prompts(self, questions: Sequence[PooledQuestion]) -> list[str]:
        """A prompt for each question with its pool's passages, which are cut if it is too long."""
        readings = [
            (pooled.question.question, [self.passages[x] for x in pooled.chunk_ids])
            for pooled in questions
        ]
        return reading_prompts(
            self.lm, self.form, readings, self.config.selector.max_new_tokens
        ).texts

    def _parse_choice(self, pooled: PooledQuestion, text: str) -> ChosenSet:
        """The set that a reply names; an empty one with a problem if it names none."""
        choice = parse_choice(text, len(pooled.chunk_ids), strict=self.config.selector.strict)
        numbers = () if choice.problem else choice.numbers
        return ChosenSet([pooled.chunk_ids[number - 1] for number in numbers], choice.problem)


EvidenceSelector = DrawingSelector | WritingSelector
KINDS = {"vectors": DrawingSelector.open, "writer": WritingSelector.open}


def selector_before(context: Context, iteration: int) -> EvidenceSelector:
    """The selector that an iteration begins with: that of the iteration before, or a new one."""
    config = context.config
    if iteration > 1 and config.read.evidence == "selected":
        return load_selector(context, iteration - 1)
    context.enter_mesh()
    return KINDS[config.selector.kind](context, None)


def load_selector(context: Context, iteration: int) -> EvidenceSelector:
    """The selector that an iteration trained."""
    context.enter_mesh()
    folder = context / stage_of("select", iteration) / "selector"
    return KINDS[context.config.selector.kind](context, folder)


def draw_sets(
    selector: EvidenceSelector,
    questions: Sequence[PooledQuestion],
    success: Success,
    *,
    draws: int,
    seed: int,
    step: int = 0,
    label: str = "",
) -> list[DrawnSet]:
    """The sets that a selector draws for questions, with p; p is None if a reply names no set."""
    drawn = selector.draw(questions, draws=draws, seed=seed, step=step)
    sets = [
        (pooled, drawn_set)
        for pooled, chosen in zip(questions, drawn, strict=True)
        for drawn_set in chosen
    ]
    values = iter(
        success.p(
            [(pooled, drawn_set.chunk_ids) for pooled, drawn_set in sets if not drawn_set.problem],
            label,
        )
    )
    return [
        drawn_set if drawn_set.problem else dataclasses.replace(drawn_set, p=next(values))
        for _, drawn_set in sets
    ]
