"""A tiny language model that writes which passages it picks, for runs of BAR-RAG."""

from pathlib import Path

import numpy as np
from support.bar_world import PLACES, metal

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.models.language import LanguageModel
from ark_jax.text.cited import reply_in_tags
from ark_jax.text.prompts import fill
from ark_jax.train import fit, tuning
from ark_jax.train.config import LanguageModelConfig


def make_writer(root: Path) -> Path:
    """A tiny model that replies to select.txt with two passages of four, seldom the same twice."""
    template = fill((root / "select.txt").read_text(), count=2)
    form, lm = ReadingPrompt(template, cite=True), LanguageModel.from_pretrained(root / "generator")
    random, shown = np.random.default_rng(0), []
    texts = [f"The bell of {place} is of {metal(i)}." for i, place in enumerate(PLACES)]
    for _ in range(160):
        passages = form.join([texts[i] for i in random.choice(len(PLACES), 4, replace=False)])
        asked = f"Of what is the bell of {random.choice(PLACES)}?"
        numbers = random.choice(4, 2, replace=False) + 1
        reply = reply_in_tags("So", ", ".join(f"[{number}]" for number in numbers))
        (prompt,) = lm.prompt_ids([form.for_model(lm, form.fill(asked, passages))])
        ids = lm.tokenizer(reply, add_special_tokens=False)["input_ids"]
        shown.append(tuning.Demonstration(prompt, [*ids, lm.end_id]))
    config = LanguageModelConfig(warmup=0.1, save_every=1000, remat="products")
    run = fit.Run(root / "writing", "supervise")
    tuned, _, _ = tuning.sft(lm, shown, config, run, batch=8, epochs=6, learning_rate=2e-2, seed=0)
    tuned.save_pretrained(root / "writer", dtype="float32")
    return root / "writer"
