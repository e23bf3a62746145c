"""The selector that is a language model: it writes which passages it picks, as in the paper."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.answers import group_of, read_replies
from ark_jax.recipes.bar_rag.choices import ChosenSet, MakeSets, by_question
from ark_jax.recipes.bar_rag.rollouts import DrawnSet
from ark_jax.recipes.common.corpus import Passages, stored_chunks
from ark_jax.recipes.common.reader_training import PooledQuestion, reading_prompts
from ark_jax.text import prompts
from ark_jax.text.cited import parse_choice
from ark_jax.train.config import GrpoConfig, LanguageModelConfig

if TYPE_CHECKING:  # their modules start jax
    from ark_jax.models.language import LanguageModel
    from ark_jax.train.fit import Run, Trained
    from ark_jax.train.groups import Group

LEARNING_RATE = 1e-5


@dataclasses.dataclass(frozen=True)
class WritingSelector:
    """An instruction model that replies with a thought and a list of passages."""

    lm: "LanguageModel"
    form: ReadingPrompt
    passages: Mapping[str, str]
    config: object
    policy_reference: "LanguageModel | None" = None  # that a KL is measured to, in training

    @classmethod
    def open(cls, context: Context, folder: Path | None) -> "WritingSelector":
        """Opens what `save` stored; without a folder, the instruction model of the config."""
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
        return cls(lm, form, Passages(stored_chunks(context)), config)

    def draw(
        self, questions: Sequence[PooledQuestion], *, draws: int, seed: int, step: int = 0
    ) -> list[list[DrawnSet]]:
        """See `EvidenceSelector.draw`."""
        settings, texts = self.config.selector, self._prompts(questions)
        batch_tokens = self.config.generator.batch_tokens
        rollouts = self.lm.sample(
            texts,
            n=draws,
            max_new_tokens=settings.max_new_tokens,
            seed=seed,
            temperature=settings.temperature,
            top_p=settings.top_p,
            places=np.array([(step, pooled.number) for pooled in questions]),
            log_probs=False,
            batch_tokens=batch_tokens,
        )
        replies = read_replies(
            rollouts,
            [pooled.id for pooled in questions],
            self.lm.prompt_ids(texts),
            self.policy_reference,
            batch_tokens,
        )
        drawn: list[list[DrawnSet]] = [[] for _ in questions]
        for reply, owner in zip(replies, rollouts.prompts, strict=True):
            chosen = self._parse(questions[owner], reply.text)
            drawn[owner].append(DrawnSet(**vars(reply), **vars(chosen), p=None))
        return drawn

    def best(self, questions: Sequence[PooledQuestion]) -> list[ChosenSet]:
        """See `EvidenceSelector.best`."""
        texts = self.lm.generate(
            self._prompts(questions),
            max_new_tokens=self.config.selector.max_new_tokens,
            batch_tokens=self.config.generator.batch_tokens,
            label="select",
        )
        chosen = list(map(self._parse, questions, texts))
        nearest = lambda pooled: list(pooled.chunk_ids[: self.config.select.passages])
        return [
            dataclasses.replace(chosen_set, chunk_ids=nearest(pooled))
            if chosen_set.problem
            else chosen_set
            for pooled, chosen_set in zip(questions, chosen, strict=True)
        ]

    def train(
        self, steps: Sequence[Sequence[PooledQuestion]], make_sets: MakeSets, run: "Run"
    ) -> "Trained":
        """See `EvidenceSelector.train`."""
        from ark_jax.train import tuning

        policy_reference = self.lm if self.config.selector.kl != "none" else None
        distinct = list({pooled.id: pooled for step in steps for pooled in step}.values())
        texts = self._prompts(distinct)
        ids = dict(zip([x.id for x in distinct], self.lm.prompt_ids(texts), strict=True))

        def make_groups(step: int, lm: "LanguageModel") -> "list[Group]":
            sets = make_sets(
                step, dataclasses.replace(self, lm=lm, policy_reference=policy_reference)
            )
            return [
                group_of(of_question, ids[pooled.id], pooled.id)
                for pooled, of_question in zip(
                    steps[step], by_question(steps[step], sets), strict=True
                )
            ]

        config = self.config
        trained = tuning.grpo(
            self.lm,
            make_groups,
            self._updates(),
            run,
            policy=self._policy(),
            steps=len(steps),
            prompts=max(map(len, steps)),
            prompt_tokens=max(map(len, ids.values())),
            completion_tokens=config.selector.max_new_tokens,
            learning_rate=config.select.learning_rate or LEARNING_RATE,
            seed=config.seed,
        )
        return trained._replace(model=dataclasses.replace(self, lm=trained.model))

    def save(self, folder: Path) -> None:
        """See `EvidenceSelector.save`. An adapter is merged into the model."""
        self.lm.save_pretrained(folder, dtype="float32")

    def _updates(self) -> LanguageModelConfig:
        """How its weights are updated: as the reader's, with an adapter of its own."""
        settings = self.config.train
        return LanguageModelConfig(
            warmup=settings.warmup,
            decay=settings.decay,
            floor=settings.floor,
            weight_decay=settings.weight_decay,
            clip=settings.clip,
            remat=settings.remat,
            save_every=settings.save_every,
            lora_rank=self.config.selector.lora_rank,
            lora_alpha=self.config.selector.lora_alpha,
            lora_targets=settings.lora_targets,
        )

    def _policy(self) -> GrpoConfig:
        """How it learns from its replies: as the reader, with a distance of its own."""
        settings = self.config.read
        return GrpoConfig(
            samples=self.config.select.sets,
            mean=settings.mean,
            ratio=settings.ratio,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            kl=self.config.selector.kl,
            kl_coefficient=settings.kl_coefficient,
            keep_dead=settings.keep_dead,
            keep_cut_off=settings.keep_cut_off,
        )

    def _prompts(self, questions: Sequence[PooledQuestion]) -> list[str]:
        """Whole passages, cut at their end where a prompt is too long."""
        readings = [
            (pooled.question.question, [self.passages[x] for x in pooled.chunk_ids])
            for pooled in questions
        ]
        return reading_prompts(
            self.lm, self.form, readings, self.config.selector.max_new_tokens
        ).texts

    def _parse(self, pooled: PooledQuestion, text: str) -> ChosenSet:
        choice = parse_choice(text, len(pooled.chunk_ids), strict=self.config.selector.strict)
        numbers = () if choice.problem else choice.numbers
        return ChosenSet([pooled.chunk_ids[number - 1] for number in numbers], choice.problem)
