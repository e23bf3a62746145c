"""Pairs as prompts of a decoder that answers yes or no, as Qwen3-Reranker does.

A folder's chat template makes the prompt if it has the roles `query` and `document`, as
sentence-transformers' CrossEncoder wants it; else the published one does, which exports then have.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ark_jax.models import hf, pair_folder, sentence_folder
from ark_jax.models.language import LanguageModel
from ark_jax.models.pair_folder import MODULES, SCORE
from ark_jax.models.pair_tokens import Pair, PairTokens, check_pairs
from ark_jax.runtime.log import say
from ark_jax.text import tokens as tk
from ark_jax.text.token_rows import TokenRows

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
MAX_LENGTH = 8192  # tokens of a prompt, as published
ANSWERS = ("yes", "no")
# The published prompt (huggingface.co/Qwen/Qwen3-Reranker-0.6B), in which the model has already
# ended its thoughts. A template's last line break would be dropped, but for its quotes.
TEMPLATE = (
    "{%- macro text(role, otherwise) -%}{{ messages | selectattr('role', 'eq', role) "
    "| map(attribute='content') | first | default(otherwise) }}{%- endmacro -%}"
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    f"<|im_start|>user\n<Instruct>: {{{{ text('system', {INSTRUCTION!r}) }}}}\n"
    "<Query>: {{ text('query') }}\n<Document>: {{ text('document') }}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>{{ '\\n\\n' }}"
)


def _score_module(folder: Path) -> Path | None:
    """The folder of sentence-transformers' LogitScore; None for a plain causal language model.

    Raises:
        ValueError: modules.json has others, as that of an embedding model.
    """
    if not (folder / MODULES).is_file():
        return None
    modules = [x if isinstance(x, dict) else {} for x in hf.read_json(folder / MODULES, list)]
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    paths = [module.get("path") for module in modules]
    if kinds != ["Transformer", SCORE] or paths[0] != "" or not isinstance(paths[1], str):
        raise ValueError(
            f"{folder}/{MODULES}: the modules {', '.join(kinds)} do not score pairs by yes or no; "
            "give a reranker, such as Qwen/Qwen3-Reranker-0.6B"
        )
    return folder / paths[1]


def read_answers(lm: LanguageModel) -> tuple[int, int]:
    """The token ids of yes and no.

    Raises:
        ValueError: the tokenizer lacks them or a chat's turns, or the folder's own ids are wrong.
    """
    known = lm.tokenizer.get_vocab()
    module = _score_module(lm.folder)
    if module is None:
        if lacking := [w for w in (*ANSWERS, "<|im_start|>", "<|im_end|>") if w not in known]:
            raise ValueError(
                f"{lm.folder}: its tokenizer has no token {lacking[0]!r}; give a decoder that was "
                "trained as Qwen3-Reranker is"
            )
        return known[ANSWERS[0]], known[ANSWERS[1]]
    settings = hf.read_json(module / "config.json")
    yes, no = (settings.get(f"{name}_token_id") for name in ("true", "false"))
    if not all(isinstance(x, int) and 0 <= x < lm.cfg.vocab for x in (yes, no)):
        raise ValueError(
            f"{module}/config.json: true_token_id={yes}, false_token_id={no}: must be ids of two "
            "tokens; a score by one token is not implemented"
        )
    return yes, no


def read_instruction(folder: Path) -> str:
    """The default prompt of a folder for sentence-transformers; empty: the template's own."""
    settings = sentence_folder.read_settings(folder)
    return settings.prompts.get(settings.default_prompt or "", "")


def set_template(tokenizer) -> None:
    """Gives a tokenizer the published prompt, unless its own template has a pair's roles."""
    template = str(tokenizer.chat_template)
    if not all(re.search(rf"(['\"]){role}\1", template) for role in ("query", "document")):
        tokenizer.chat_template = TEMPLATE


def write_settings(folder: Path, base: Path, template: str) -> None:
    """Writes what makes sentence-transformers score as we do beside the files of a decoder.

    Args:
        template: of the prompt.
    """
    if module := _score_module(base):
        files = (MODULES, "config_sentence_transformers.json", "sentence_bert_config.json")
        (folder / module.name).mkdir(exist_ok=True)
        hf.copy_files(base, folder, files)
        hf.copy_files(module, folder / module.name, ("config.json",))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    pair_folder.write_tokenizer_fields(folder, chat_template=template)


@dataclasses.dataclass(frozen=True)
class PromptTokenizer:
    """How a pair becomes the tokens of a prompt."""

    lm: LanguageModel
    instruction: str  # what a document must do for its query; empty: the template's own
    max_length: int  # tokens of a prompt, in which a longer document is cut

    def tokenize(self, pairs: Sequence[Pair], *, label: str = "") -> PairTokens:
        """Token ids of (query, document) pairs; their segments are 0.

        Args:
            label: name of the line that reports cut documents; without it none is shown.

        Raises:
            ValueError: `pairs` is not a list of pairs of texts, or a query leaves its document no
                room.
        """
        check_pairs(pairs)
        shown = [(query, self._shorten(query, document)) for query, document in pairs]
        cut = sum(len(x[1]) < len(pair[1]) for x, pair in zip(shown, pairs, strict=True))
        if label and cut:
            say(
                f"  {label}: {cut:,} of {len(pairs):,} prompts are longer than {self.max_length} "
                "tokens; their documents are cut"
            )
        ids = self.lm.prompt_ids([self.prompt(*pair) for pair in shown])
        return PairTokens(ids, TokenRows.from_rows(([0] * len(row) for row in ids), np.int8), cut)

    def prompt(self, query: str, document: str) -> str:
        """The prompt that asks about a pair. Control tokens in its texts become plain text."""
        parts = {"system": self.instruction, "query": query, "document": document}
        messages = [
            {"role": role, "content": self.lm.as_data(text)}
            for role, text in parts.items()
            if text or role != "system"
        ]
        return self.lm.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )

    def _shorten(self, query: str, document: str) -> str:
        """The document, or as much of its beginning as the prompt has room for.

        Raises:
            ValueError: the query leaves no room.
        """
        if len(document.encode()) + len(query.encode()) + self._frame_tokens <= self.max_length:
            return document  # a token has at least one byte
        room = self.max_length - len(self.lm.prompt_ids([self.prompt(query, "")])[0])
        if room < 1:
            raise ValueError(
                f"query {query[:40]!r}: it leaves its document none of {self.max_length} tokens; "
                "shorten it"
            )
        offsets = tk.token_offsets(document, self.lm.tokenizer)
        return document if len(offsets) <= room else document[: offsets[room - 1][1]]

    @functools.cached_property
    def _frame_tokens(self) -> int:
        """Tokens of a prompt with empty texts."""
        return len(self.lm.prompt_ids([self.prompt("", "")])[0])
