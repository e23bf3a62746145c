"""The warm stage: supervised steps on passages that hold the answer, among others of the pool.

A small model answers hardly any question rightly at first, and then there is no reward to learn
from.
"""

from pathlib import Path

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.pool import load_pools
from ark_jax.recipes.bar_rag.readers import UNTUNED, WARM, load_reader
from ark_jax.recipes.bar_rag.reading import reading_prompt
from ark_jax.recipes.bar_rag.updates import stage_seed
from ark_jax.recipes.common.corpus import Passages, stored_chunks
from ark_jax.recipes.common.reader_training import sets_with_gold, teach
from ark_jax.recipes.common.training import training_run
from ark_jax.runtime.log import say
from ark_jax.schema import section_of
from ark_jax.train.config import LanguageModelConfig


def train_warm(context: Context, folder: Path) -> dict:
    """Trains from the untuned generator; stores the reader under `model`.

    Raises:
        ValueError: no training question has a passage that holds its answer.
    """
    config = context.config
    reader, form = load_reader(context, UNTUNED), reading_prompt(config)
    _ = reader.end_id  # raises if no reply could end
    if not config.warm.steps:
        save_reader(reader, None, form, folder, config.generator.path)
        return {"steps": 0}
    pools = load_pools(context, "train")
    shown = [pooled for pooled in pools if any(pooled.gold)]
    if not shown:
        raise ValueError(
            f"config.warm: none of {len(pools):,} training questions has a passage that holds its "
            "answer; mark evidence in the data, set config.evaluate.gold=answers, or leave the "
            "warm start out with config.warm.steps=0"
        )
    if missing := len(pools) - len(shown):
        say(f"  {missing:,} questions have no passage that holds their answer: not shown")
    steps = config.warm.steps if config.warm.steps > 0 else -(-len(shown) // config.warm.batch)
    sets = sets_with_gold(
        shown, steps, config.warm.batch, config.select.passages, stage_seed(config, WARM)
    )
    (tuned, adapter, _), counts = teach(
        reader,
        form,
        sets,
        Passages(stored_chunks(context)),
        section_of(config.train, LanguageModelConfig),
        training_run(context.metrics, folder, WARM),
        batch=config.warm.batch,
        learning_rate=config.warm.learning_rate,
        seed=config.seed,
    )
    save_reader(tuned, adapter, form, folder, config.generator.path)
    return counts | ({"without_gold": missing} if missing else {})


def save_reader(tuned, adapter, form: ReadingPrompt, folder: Path, base: str) -> None:
    """Stores a trained reader under `model`, and its adapter, if it has one, under `adapter`.

    The weights are float32: in the type of a base in bfloat16, small updates would be rounded away.

    Args:
        form: how it is asked.
        base: what training began with; a model in the workdir is named relative to it.
    """
    from ark_jax.models import lora

    tuned.save_pretrained(folder / "model", dtype="float32")
    form.write(folder / "model")
    if adapter is not None:
        lora.save_peft(adapter, folder / "adapter", base=base, task="CAUSAL_LM")
