"""What an ARK run has still to compute, for `ark-jax plan`.

The code that will do the work says what it would compute: alignment its pairs, the scorer its
shared prefixes, training the shape of its batches. What a model has yet to choose (candidates,
positives, negatives) is drawn at random.
"""

import functools
import itertools
import math
from collections.abc import Sequence

from ark_jax.data.records import Question
from ark_jax.estimate.llm_calls import token_counter
from ark_jax.evaluate.answers import LIKELIHOOD, needs_replies
from ark_jax.evaluate.significance import what_can_be_told
from ark_jax.pipeline.recipe import Forecast
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark import estimate_reranker
from ark_jax.recipes.ark.curriculum import (
    MINING_SIZES,
    RERANKER,
    asks_writer,
    builds_graph,
    epochs,
    is_distilling,
    mine_name,
    miner_of,
    mines_by_graph,
    model_before,
    stage_name,
    systems,
)
from ark_jax.recipes.ark.estimate_scoring import Draw, scoring_work
from ark_jax.recipes.ark.recording import Recording
from ark_jax.recipes.ark.scored_prompts import load_templates
from ark_jax.recipes.common import choose_fusion, estimate, filter_questions, retrieve
from ark_jax.recipes.common.corpus import (
    load_questions,
    searches_corpus,
    stored_chunks,
    written_questions,
)
from ark_jax.recipes.common.corpus_vectors import stored_systems
from ark_jax.recipes.common.estimate_questions import foresee_questions, pairs_to_score
from ark_jax.recipes.common.models import WARM_READER, keeps_tokens
from ark_jax.recipes.common.reader import questions_to_answer
from ark_jax.recipes.common.systems import HYDE
from ark_jax.recipes.common.written_from import is_writing

SCORE_BYTES = 32  # of scores.parquet for a pair
# How likely a training stage changes a passage that is read; in the demo .08 for the first passage
# and .18 for one of five.
MOVED = 0.15
FEW_UPDATES = 10  # of a training stage


def forecast(context: Context, done: set[str]) -> Forecast:
    """The work of all stages that are not done, what is stored, and notes.

    Searches, PageRank and compilation are not counted.
    """
    context.enter_mesh()
    foresee_questions(context, done)
    return _Forecaster(context, done).forecast()


class _Forecaster:
    """Sizes the stages of one run; `work`, `disk` and `notes` collect what it finds."""

    def __init__(self, context: Context, done: set[str]):
        from ark_jax.estimate import device_time
        from ark_jax.estimate.device_work import WeightlessModel

        config = context.config
        self.context, self.config, self.done = context, config, done
        self.work: list = []
        self.disk: dict[str, int] = {}
        self.notes: list[str] = []
        self.choices: dict = {}  # stage -> `train.memory.Choice`
        self.base = WeightlessModel.from_folder(
            config.retriever.path,
            compute=config.retriever.compute,
            batch=config.retriever.batch_tokens,
            head=False,
        )
        self.scorer = self._generator(config.generator.path)
        self.tokenizer = device_time.load_tokenizing_retriever(self.base)
        self.lm = device_time.RecordingScorer.from_model(self.scorer)
        count, _ = token_counter(config, is_asked=asks_writer(config))
        self.recording = Recording.read(count)
        self.chunks = stored_chunks(context)
        self.train = load_questions(context, "train")
        self.held_out = load_questions(context, "held_out")
        pools = estimate.training_pools(context, self.train)
        self.training_chunks = {chunk.id: chunk for pool in pools.values() for chunk in pool}
        self.draws = {q.id: Draw.from_chunks(q, pools[q.id], config) for q in self.train}
        self.passages = self._tokens([x.passage for x in self.training_chunks.values()], "document")
        self.queries = self._tokens([q.question for q in self.train], "query")
        # A stage that is to run will change the corpus or the model that the vectors are of.
        lasting = {"base", *done} if "data" in done else set()
        stored = stored_systems(context.workdir) & lasting
        self.embedded = dict.fromkeys(stored, len(self.chunks))  # system -> number of its passages

    def _generator(self, path: str):
        from ark_jax.estimate.device_work import WeightlessModel

        settings = self.config.generator
        return WeightlessModel.from_folder(
            path, compute=settings.dtype, batch=settings.batch_tokens, head=True
        )

    def _tokens(self, texts: Sequence[str], kind: str) -> list[int]:
        return [len(row) for row in self.tokenizer.tokenize(texts, kind=kind)]

    def _embed(self, stage: str, lengths: Sequence[int]) -> None:
        flops = self.base.text_flops(lengths)
        self.work.append(self.base.work(stage, "embedding", sum(lengths), flops))

    def _not_embedded(self, system: str, passages: Sequence[int]) -> Sequence[int]:
        """The lengths of passages that a system has yet to embed, which are all or none."""
        if not searches_corpus(self.context):
            return passages
        if self.embedded.get(system) == len(passages):
            return []
        self.embedded[system] = len(passages)
        # As `corpus_vectors` stores them: 16 bits for a token, 32 for a text.
        numbers = 2 * sum(passages) if keeps_tokens(self.config) else 4 * len(passages)
        size = numbers * self.tokenizer.width
        self.disk["vectors"] = self.disk.get("vectors", 0) + size
        return passages

    def forecast(self) -> Forecast:
        if "candidates" not in self.done:
            passages = self._not_embedded("base", self._searched_passages())
            self._embed("candidates", [*passages, *self.queries])
        self._graph()
        self._questions()
        self._score()
        self._training()
        self._reranker()
        self._retrieval()
        self._warm_reader()
        self._reading()
        if "export" not in self.done:
            self.disk["export"] = self.base.bytes + (self.reranker.bytes if self.reranker else 0)
        inputs = estimate.count_inputs(self.context)
        count = len(self.held_out)
        limit = f"{count:,} held-out questions: {what_can_be_told(count)}"
        notes = (*self._device_notes(), *self.notes, *self._omissions(), limit)
        return Forecast(inputs, tuple(self.work), self.disk, notes)

    def _graph(self) -> None:
        if builds_graph(self.config) and "graph" not in self.done:
            entities = round(self.recording.entities * sum(self.passages))
            self._embed("graph", [round(self.recording.line)] * entities)
            size = 4 * entities * self.tokenizer.width
            self.disk["vectors"] = self.disk.get("vectors", 0) + size

    def _questions(self) -> None:
        if not is_writing(self.config) or "questions" in self.done:
            return
        from ark_jax.estimate import device_time

        settings = self.config.questions
        searches = settings.round_trip > 0
        passages = self._not_embedded("base", self.corpus_passages) if searches else []
        asked = [
            q.question
            for part in ("train", "held_out")
            for q in written_questions(self.context, part)
        ]
        self._embed("questions", [*passages, *self._tokens(asked, "query")])
        if settings.margin <= filter_questions.NO_MARGIN:
            return
        self.lm.log_likelihood(pairs_to_score(self.context))
        tokens, flops = device_time.shared_prefix_work(self.scorer, self.lm.rows)
        self.work.append(self.scorer.work("questions", "likelihoods", tokens, flops))

    def _score(self) -> None:
        if "score" in self.done:
            return
        config = self.config
        templates = load_templates(config.prompts)
        tokens, flops = scoring_work(
            self.lm, self.scorer, templates, self.train, self.draws, config
        )
        self.work.append(self.scorer.work("score", "likelihoods", tokens, flops))
        pairs = sum(
            len(self.draws[q.id].candidates) * len(q.answers[: config.score.references or None])
            for q in self.train
        )
        self.disk["scores"] = SCORE_BYTES * pairs

    def _training(self) -> None:
        from ark_jax.estimate import device_time
        from ark_jax.train import checkpoints

        config = self.config
        query_lengths = dict(zip([q.id for q in self.train], self.queries, strict=True))
        passage_lengths = dict(zip(self.training_chunks, self.passages, strict=True))
        stored_checkpoints = trained = 0
        updates = {}
        for stage in config.train.stages:
            if stage in MINING_SIZES and mine_name(stage) not in self.done:
                questions = math.ceil(self._kept_share() * len(self.train))
                sizes = MINING_SIZES[stage] if mines_by_graph(config) else ()
                versions = config.graph.rewrites * len(sizes) * questions
                rewritten = [round(self.recording.version)] * versions
                miner = miner_of(config, model_before(config, stage))
                passages = self._not_embedded(miner, self._searched_passages())
                self._embed(mine_name(stage), [*passages, *self.queries, *rewritten])
            if stage_name(stage) not in self.done:
                lengths = device_time.batch_lengths(
                    self._examples(),
                    (query_lengths, passage_lengths),
                    config.train,
                    epochs(config.train, stage),
                    config.seed + stage,
                    stage in MINING_SIZES,
                )
                choice = self._contrastive_choice(lengths)
                self.choices[stage_name(stage)] = choice
                steps, tokens, flops = device_time.training_work(
                    self.base, lengths, choice.remat, choice.pieces
                )
                self.work.append(self.base.work(stage_name(stage), "training", tokens, flops))
                updates[stage_name(stage)] = steps
                stored = min(steps // config.train.save_every, checkpoints.MAX_TO_KEEP + 1)
                stored_checkpoints, trained = max(stored_checkpoints, stored), trained + 1
        if updates:
            counts = ", ".join(f"{steps:,} in {name}" for name, steps in updates.items())
            few = "; so few hardly change a retriever" * (min(updates.values()) < FEW_UPDATES)
            self.notes.append(f"updates of the weights: {counts}{few}")
        if trained:
            self.disk["models"] = trained * self.base.bytes
            # Each checkpoint holds weights or adapter and two moments, float32.
            size = 3 * 4 * device_time.trainable_parameters(self.base, config.train)
            self.disk["checkpoints"] = stored_checkpoints * size

    def _contrastive_choice(self, lengths: tuple):
        """How a step is computed whose batches have texts of these lengths."""
        from ark_jax import layout
        from ark_jax.estimate import step_memory
        from ark_jax.train.memory import Texts
        from ark_jax.train.placement import TextGrid

        def texts_of(pieces: int) -> list[Texts]:
            grids = map(TextGrid.from_lengths, lengths, (1, pieces))
            return list(map(Texts.from_grid, grids))

        # As many as the training itself may take.
        most_pieces = TextGrid.from_lengths(lengths[1]).rows // layout.batch_multiple()
        return step_memory.choose(self.base, self.config.train, texts_of, most_pieces=most_pieces)

    @functools.cached_property
    def reranker(self):
        """The model that a reranker begins from, if one is trained."""
        from ark_jax.estimate.device_work import WeightlessModel

        config = self.config
        if config.train.kind != "cross":
            return None
        return WeightlessModel.from_folder(
            config.reranker.path,
            compute=config.retriever.compute,
            batch=config.retriever.batch_tokens,
            head=False,
        )

    def _reranker(self) -> None:
        if self.reranker is None or RERANKER in self.done:
            return
        lengths = dict(zip(self.training_chunks, self.passages, strict=True))
        lists = []
        for question in self.train:
            draw = self.draws[question.id]
            chunks = dict.fromkeys([*(chunk.id for chunk in draw.candidates), *draw.negatives])
            chosen = list(chunks)[: self.config.reranker.candidates]
            lists.append([lengths[chunk] for chunk in chosen])
        work, choice = estimate_reranker.training_work(
            self.reranker, self.queries, lists, self.config
        )
        self.work.append(work)
        self.choices[RERANKER] = choice
        self.disk["models"] = self.disk.get("models", 0) + self.reranker.bytes

    def _searched_passages(self) -> list[int]:
        """The lengths of all passages that training questions are compared with."""
        return self.corpus_passages if searches_corpus(self.context) else self.passages

    @functools.cached_property
    def corpus_passages(self) -> list[int]:
        return self._tokens([x.passage for x in self.chunks], "document")

    def _examples(self) -> list:
        from ark_jax.train import batches

        distilling = is_distilling(self.config)
        learned = lambda draw: [x.id for x in draw.candidates] if distilling else draw.positives
        examples = [
            batches.Example(
                question.id,
                "\n".join(question.documents),
                tuple(learned(draw)),
                tuple(draw.negatives),
            )
            for question in self.train
            if (draw := self.draws[question.id]).positives
        ]
        share = 1 if distilling else self._kept_share()
        return examples[: math.ceil(share * len(examples))]

    def _kept_share(self) -> float:
        """The share of the questions that has positives; marked evidence needs no clear margin."""
        settings = self.config.score
        return 1 if settings.supervision == "gold" else settings.keep

    def _retrieval(self) -> None:
        compared = systems(self.config)
        if "baselines" not in self.done:
            self._search("baselines", ("base",), *self._held_out_lengths)
        if self.config.evaluate.fusion == "chosen" and choose_fusion.STAGE not in self.done:
            passages = self._passages_for(self.train)
            self._search(choose_fusion.STAGE, (compared.last,), passages, self.queries)
        if "evaluate" in self.done:
            return
        passages, asked = self._held_out_lengths
        self._search("evaluate", compared.tuned, passages, asked)
        if self.reranker is not None:
            self.work.append(estimate_reranker.reranking_work(self.reranker, asked, passages))

    def _search(
        self, stage: str, names: Sequence[str], passages: Sequence[int], asked: Sequence[int]
    ) -> None:
        """Each of the systems embeds the passages, if it has not yet, and the questions."""
        texts = [(*self._not_embedded(name, passages), *asked) for name in names]
        self._embed(stage, list(itertools.chain(*texts)))

    def _passages_for(self, questions: Sequence[Question]) -> list[int]:
        """The lengths of the passages that questions search when systems are compared."""
        chunks, _ = retrieve.searched_chunks(self.context, questions, self.chunks)
        return self._tokens([chunk.passage for chunk in chunks], "document")

    @functools.cached_property
    def _held_out_lengths(self) -> tuple[list[int], list[int]]:
        """Of the passages that held-out questions search, and of these questions."""
        asked = self._tokens([question.question for question in self.held_out], "query")
        return self._passages_for(self.held_out), asked

    @functools.cached_property
    def _reader(self) -> tuple:
        """The model that answers, and one that tokenises for it."""
        from ark_jax.estimate import device_time

        if not self.config.reader.path:
            return self.scorer, self.lm
        model = self._generator(self.config.reader.path)
        return model, device_time.RecordingScorer.from_model(model)

    def _warm_reader(self) -> None:
        config = self.config
        if not config.reader.warm or WARM_READER in self.done or not self.train:
            return
        model, lm = self._reader
        length, _ = estimate.reader_prompts(self.context, lm, self.train, self.chunks)
        prompts = config.reader.steps * min(config.reader.batch, len(self.train))
        flops = 3 * prompts * model.text_flops([round(length)])  # a backward pass takes two
        self.work.append(model.work(WARM_READER, "training", prompts * length, flops))
        self.disk["models"] = self.disk.get("models", 0) + 4 * model.parameters

    def _reading(self) -> None:
        config = self.config
        questions = questions_to_answer(self.held_out, config.evaluate.read)
        if "evaluate" in self.done or config.reader.backend != "local" or not questions:
            return
        readers = len(systems(config).retrieving)
        moved = 1 - (1 - MOVED) ** config.evaluate.passages
        different = len(questions) * (1 + (readers - 1) * moved)
        model, lm = self._reader
        early = ""
        if needs_replies(config.evaluate.answers):
            length, shared = estimate.reader_prompts(self.context, lm, questions, self.chunks)
            new_tokens = config.evaluate.max_new_tokens
            self.work.append(model.generation("evaluate", different, length, new_tokens, shared))
            early = "; less where answers end early"
        if LIKELIHOOD in config.evaluate.answers:
            self._likelihoods(model, lm, questions, different)
        self.notes.append(
            f"reading: about {different:,.0f} of {readers * len(questions):,} prompts, for systems "
            f"often find the same passages{early}"
        )

    def _likelihoods(self, model, lm, questions: Sequence[Question], prompts: float) -> None:
        """What the likelihoods of reference answers after so many prompts compute."""
        from ark_jax.estimate import device_time

        sample, rows = estimate.replies_to_score(self.context, lm, questions, self.chunks)
        tokens, flops = device_time.shared_prefix_work(model, rows)
        scale = prompts / sample
        self.work.append(model.work("evaluate", "likelihoods", scale * tokens, scale * flops))

    def _device_notes(self) -> list[str]:
        from ark_jax.estimate import device_time, step_memory

        memory = step_memory.notes(self.choices)
        return [device_time.speed_note((self.base, self.scorer)), *memory] if self.work else []

    def _omissions(self) -> list[str]:
        settings = self.config.evaluate
        compared = "baselines" not in self.done and settings.retrievers
        whole = "evaluate" not in self.done and "full" in settings.baselines
        reranked = "evaluate" not in self.done and settings.rerank
        expanded = "baselines" not in self.done and self.config.search.expand == HYDE
        omitted = [
            *(["embedding for hyde"] if expanded else []),
            *(["embedding with evaluate.retrievers"] if compared else []),
            *(["reading whole documents (full)"] if whole else []),
            *(["reranking with evaluate.rerank"] if reranked else []),
        ]
        return [f"left out: {' and '.join(omitted)}"] if omitted else []
