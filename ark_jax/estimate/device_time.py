"""What models without weights would compute: token counts of scoring, training and tokenising.

The code that will do the work says its shapes: the scorer how it shares prefixes, the trainer how
its batches are laid out.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np

from ark_jax import layout
from ark_jax.estimate.device_work import WeightlessModel
from ark_jax.models import hf, language, lora, prefix_groups, retriever, sentence_folder
from ark_jax.text.token_rows import TokenIds
from ark_jax.text.tokens import load_tokenizer
from ark_jax.train import batches
from ark_jax.train.placement import TextGrid


class RecordingScorer(language.LanguageModel):
    """A language model without weights: it stores what it should score, as ids and lengths."""

    @classmethod
    def from_model(cls, model: WeightlessModel) -> "RecordingScorer":
        if not model.causal:
            raise ValueError(f"{model.folder}: generates no text; give a decoder as generator.path")
        tokenizer = load_tokenizer(str(model.folder), model.cfg.vocab)
        longest = hf.read_config(model.folder).get("max_position_embeddings", 2048)
        stop_ids = (tokenizer.eos_token_id or 0,)
        return cls(None, model.cfg, tokenizer, model.folder, longest, stop_ids)

    def log_likelihood(self, pairs, **_) -> language.LogLikelihoods:
        self.rows = self._encode_pairs(pairs)
        zeros, ones = np.zeros(len(pairs), np.float32), np.ones(len(pairs), np.int32)
        return language.LogLikelihoods(zeros, ones)


def load_tokenizing_retriever(model: WeightlessModel) -> retriever.Retriever:
    """A retriever that can only tokenise."""
    prompts, width = sentence_folder.read_prompts_and_width(model.folder)
    _, lower = sentence_folder.read_text_limit(model.folder)
    tokenizer = load_tokenizer(str(model.folder), model.cfg.vocab)
    return retriever.Retriever(
        None,
        model.cfg,
        tokenizer,
        model.folder,
        {},
        "",
        prompts,
        sentence_folder.read_max_length(model.folder, tokenizer),
        width or model.cfg.width,
        lower,
    )


def shared_prefix_work(
    model: WeightlessModel, rows: Sequence[tuple[TokenIds, int]]
) -> tuple[float, np.ndarray]:
    """Tokens and FLOPs of scoring rows that share their prefixes.

    Args:
        rows: token ids, and how many of them at the end are the target.
    """
    tokens, flops = 0.0, np.zeros(2)
    for group in prefix_groups.group_by_prefix(
        [(ids, len(ids) - target - 1) for ids, target in rows]
    ):
        prefix = group.prefix_length
        suffixes = [len(rows[i][0]) - prefix for i in group.members]
        pairs = prefix * (prefix + 1) / 2 + sum(n * prefix + n * (n + 1) / 2 for n in suffixes)
        targets = sum(rows[i][1] for i in group.members)
        tokens += prefix + sum(suffixes)
        flops += model.flops(prefix + sum(suffixes), pairs, targets)
    return tokens, flops


def training_work(
    model: WeightlessModel,
    batch_lengths: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
    remat: str,
    pieces: int,
) -> tuple[int, float, np.ndarray]:
    """Steps, tokens and FLOPs of a contrastive stage. A step computes what its fullest batch needs.

    A backward pass takes twice the products of a forward pass. Of attention it takes five for two,
    since it computes the weights anew.

    Args:
        batch_lengths: tokens of each question and of each passage of each step.
        remat, pieces: how a step is computed.
    """
    steps = len(batch_lengths[0])
    total, flops = 0, np.zeros(2)
    for counts, kind_pieces in zip(batch_lengths, (1, pieces), strict=True):
        grid = TextGrid.from_lengths(counts, kind_pieces)
        tokens = grid.piece_tokens * grid.pieces * layout.batch_multiple()
        pairs = grid.rows * grid.length**2 * (0.5 if model.causal else 1)
        again = (remat == "all") + (kind_pieces > 1)
        flops += steps * model.flops(tokens, pairs) * (3 + again, 3.5 + again)
        total += steps * tokens
    return steps, total, flops


def batch_lengths(
    examples: Sequence[batches.Example],
    lengths: tuple[dict[str, int], dict[str, int]],
    settings,
    epochs: int,
    seed: int,
    use_negatives: bool,
) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens of each question and of each passage of each step of a contrastive stage.

    Args:
        lengths: tokens of each question and of each passage, by id.
        settings: `config.train`.
    """
    order = batches.shuffled_order(examples, epochs=epochs, seed=seed, by=settings.order)
    batched = [
        [examples[j] for j in order[start : start + settings.batch]]
        for start in range(0, len(order), settings.batch)
    ]
    questions = [[example.question for example in batch] for batch in batched]
    passages = [batches.distinct_chunks(batch, use_negatives=use_negatives) for batch in batched]
    of_batches = lambda ids, by_id: [[by_id[id] for id in batch] for batch in ids]
    return of_batches(questions, lengths[0]), of_batches(passages, lengths[1])


def trainable_parameters(model: WeightlessModel, settings) -> int:
    """Parameters that training changes, under `config.train`."""
    if not settings.lora_rank:
        return model.parameters
    rows = lora.target_weights(model.folder, settings.lora_targets)
    rank, alpha = settings.lora_rank, settings.lora_alpha
    adapter = jax.eval_shape(
        lambda: lora.init(rows, model.cfg, rank=rank, alpha=alpha, key=jax.random.key(0))
    )
    return sum(leaf.size for leaf in jax.tree.leaves(adapter))


def speed_note(models: Sequence[WeightlessModel]) -> str:
    """What the times rest on: the devices, and their measured speed at the models' widths."""
    speeds = {
        f"{model.speed() / 1e9:,.0f} GFLOP/s at {model.folder.name}'s width "
        f"in {model.compute}": None
        for model in models
    }
    devices = math.prod(jax.sharding.get_mesh().shape.values())
    return (
        f"device: {devices} x {jax.devices()[0].device_kind}, measured {' and '.join(speeds)}; "
        "times leave out compiling, searching, saving, the host's work and the latency of what "
        "devices exchange"
    )
