"""A decoder that scores pairs by its answer, yes or no, as Qwen3-Reranker does."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ark_jax.models.language import SPLIT, LanguageModel
from ark_jax.models.pair_tokens import Pair, check_pairs
from ark_jax.runtime.log import say
from ark_jax.text import tokens as tk

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
MAX_LENGTH = 8192  # tokens of a prompt, as published
# The published prompt (huggingface.co/Qwen/Qwen3-Reranker-0.6B), in which the model has already
# ended its thoughts. It is tokenised in three parts, as there, and the answer by itself.
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    f"<|im_start|>user\n{SPLIT}"
)
_AFTER = f"{SPLIT}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n{SPLIT}"


@dataclasses.dataclass
class YesNoScorer:
    """Scores pairs as `CrossEncoder` does, by a decoder's next word."""

    lm: LanguageModel
    instruction: str = INSTRUCTION  # what a document must do for its query
    max_length: int = MAX_LENGTH  # tokens of a prompt, in which a longer document is cut

    @classmethod
    def from_pretrained(
        cls, name_or_folder: str | Path, *, instruction: str = INSTRUCTION, **options: str
    ) -> "YesNoScorer":
        """Opens a decoder; see `LanguageModel.from_pretrained` for the options.

        Raises:
            ValueError: the tokenizer has no words yes and no, or no turns of a chat.
        """
        lm = LanguageModel.from_pretrained(name_or_folder, **options)
        known = lm.tokenizer.get_vocab()
        if lacking := [w for w in ("yes", "no", "<|im_start|>", "<|im_end|>") if w not in known]:
            raise ValueError(
                f"{lm.folder}: its tokenizer has no token {lacking[0]!r}; give a decoder that was "
                "trained as Qwen3-Reranker is"
            )
        return cls(lm, instruction, min(MAX_LENGTH, lm.max_length))

    def score(self, pairs: Sequence[Pair], *, batch_tokens: int = 0, label: str = "") -> np.ndarray:
        """log P(yes) − log P(no) of (query, document) pairs, float32 `[n]`, in their order.

        The published score is its sigmoid, P(yes) / (P(yes) + P(no)). Pairs share the passes over
        what their prompts begin with.

        Args:
            batch_tokens: tokens of a call on each device, which bounds memory; 0 suits the device.
            label: name of the progress line and of the line that reports cut documents; without
                it none is shown.

        Raises:
            ValueError: `pairs` is not a list of pairs of texts, or a query leaves its document no
                room.
        """
        check_pairs(pairs)
        prompts, cut = [], 0
        for query, document in pairs:
            shorter = self._shorten(query, document)
            cut += len(shorter) < len(document)
            prompts.append(self.prompt(query, shorter))
        if label and cut:
            say(
                f"  {label}: {cut:,} of {len(pairs):,} prompts are longer than {self.max_length} "
                "tokens; their documents are cut"
            )
        answers = [(prompt, answer) for prompt in prompts for answer in ("yes", "no")]
        if not answers:
            return np.zeros(0, np.float32)
        sums = self.lm.log_likelihood(answers, batch_tokens=batch_tokens, label=label).sum
        return sums[::2] - sums[1::2]

    def prompt(self, query: str, document: str) -> str:
        """The prompt that asks about a pair. Control tokens in its texts become plain text."""
        query, document = map(self.lm.as_data, (query, document))
        body = f"<Instruct>: {self.instruction}\n<Query>: {query}\n<Document>: {document}"
        return f"{_BEFORE}{body}{_AFTER}"

    def _shorten(self, query: str, document: str) -> str:
        """The document, or as much of its beginning as the prompt has room for.

        Raises:
            ValueError: the query leaves no room.
        """
        if len(document.encode()) + len(query.encode()) + self._frame_tokens <= self.max_length:
            return document  # a token has at least one byte
        room = self.max_length - self.lm.token_counts([self.prompt(query, "")])[0] - 1
        if room < 1:
            raise ValueError(
                f"query {query[:40]!r}: it leaves its document none of {self.max_length} tokens; "
                "shorten it"
            )
        offsets = tk.token_offsets(document, self.lm.tokenizer)
        return document if len(offsets) <= room else document[: offsets[room - 1][1]]

    @functools.cached_property
    def _frame_tokens(self) -> int:
        """Tokens of a prompt with empty texts, plus one for the answer."""
        return self.lm.token_counts([self.prompt("", "")])[0] + 1
