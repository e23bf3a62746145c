"""The selector that is a language model: it writes which passages it picks, as in the paper."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.answers import group_of, reply_rows
from ark_jax.recipes.bar_rag.choices import ChosenSet, MakeRows, rows_by_question
from ark_jax.recipes.bar_rag.updates import policy_loss, update_settings
from ark_jax.recipes.common.corpus import Passages, stored_chunks
from ark_jax.recipes.common.reader_training import PooledQuestion, reading_prompts
from ark_jax.text import prompts
from ark_jax.text.cited import parse_choice

if TYPE_CHECKING:  # their modules start jax
    from ark_jax.models.language import LanguageModel
    from ark_jax.train.groups import Group
    from ark_jax.train.tuning import ReinforceConfig

LEARNING_RATE = 1e-5


@dataclasses.dataclass(frozen=True)
class WritingSelector:
    """An instruction model that replies with a thought and a list of passages."""

    lm: "LanguageModel"
    form: ReadingPrompt
    passages: Mapping[str, str]
    config: object
    reference: "LanguageModel | None" = None  # that a KL is measured to, in training

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
    ) -> list[list[ChosenSet]]:
        """See `EvidenceSelector.draw`."""
        settings, texts = self.config.selector, self._prompts(questions)
        batch_tokens = self.config.generator.batch_tokens
        rollouts = self.lm.sample(
            texts,
            n=draws,
            max_new_tokens=settings.max_new_tokens,
            seed=seed,
            places=np.array([(step, pooled.number) for pooled in questions]),
            log_probs=False,
            batch_tokens=batch_tokens,
        )
        rows = reply_rows(rollouts, self.lm.prompt_ids(texts), self.reference, batch_tokens)
        drawn: list[list[ChosenSet]] = [[] for _ in questions]
        for row, owner in zip(rows, rollouts.prompts, strict=True):
            drawn[owner].append(self._parse(questions[owner], row["text"], row))
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
        self,
        steps: Sequence[Sequence[PooledQuestion]],
        make_rows: MakeRows,
        folder: Path,
        on_step: Callable[[dict], None],
        on_pace: Callable[..., None],
    ) -> "tuple[WritingSelector, list[dict]]":
        """See `EvidenceSelector.train`."""
        from ark_jax.train import tuning

        reference = self.lm if self.config.selector.kl != "none" else None
        distinct = list({pooled.id: pooled for step in steps for pooled in step}.values())
        texts = self._prompts(distinct)
        ids = dict(zip([x.id for x in distinct], self.lm.prompt_ids(texts), strict=True))

        def make_groups(step: int, lm: "LanguageModel") -> "list[Group]":
            rows = make_rows(step, dataclasses.replace(self, lm=lm, reference=reference))
            return [
                group_of(set_rows, ids[pooled.id], pooled.id)
                for pooled, set_rows in zip(
                    steps[step], rows_by_question(steps[step], rows), strict=True
                )
            ]

        tuned, _, curve = tuning.reinforce(
            self.lm,
            make_groups,
            self._training(steps, max(map(len, ids.values()))),
            folder,
            label="select",
            on_step=on_step,
            on_pace=on_pace,
        )
        return dataclasses.replace(self, lm=tuned), curve

    def save(self, folder: Path) -> None:
        """See `EvidenceSelector.save`. An adapter is merged into the model."""
        self.lm.save_pretrained(folder, dtype="float32")

    def _training(
        self, steps: Sequence[Sequence[PooledQuestion]], prompt_tokens: int
    ) -> "ReinforceConfig":
        from ark_jax.train import tuning

        config, settings = self.config, self.config.selector
        adapter = {"lora_rank": settings.lora_rank, "lora_alpha": settings.lora_alpha}
        return tuning.ReinforceConfig(
            **update_settings(config) | adapter,
            learning_rate=config.select.learning_rate or LEARNING_RATE,
            steps=len(steps),
            updates=1,
            loss=policy_loss(config, kl=settings.kl),
            keep_dead=config.read.keep_dead,
            keep_cut_off=True,
            entropy=True,
            prompts=max(map(len, steps)),
            samples=config.select.sets,
            prompt_tokens=prompt_tokens,
            completion_tokens=settings.max_new_tokens,
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

    def _parse(
        self, pooled: PooledQuestion, text: str, columns: Mapping | None = None
    ) -> ChosenSet:
        choice = parse_choice(text, len(pooled.chunk_ids), strict=self.config.selector.strict)
        numbers = () if choice.problem else choice.numbers
        return ChosenSet(
            [pooled.chunk_ids[number - 1] for number in numbers],
            choice.problem,
            {**(columns or {}), "problem": choice.problem},
        )
