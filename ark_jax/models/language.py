"""A causal language model: log-likelihoods of texts, chat prompts and generation."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from ark_jax import layout
from ark_jax.models import decoder, hf, prefix, sampling
from ark_jax.models.batching import one_ahead
from ark_jax.models.generate import Generation
from ark_jax.models.prefix_groups import Rows
from ark_jax.models.prefix_plan import Span, SuffixBatch, plan_batches
from ark_jax.models.rollout import Rollouts, draw_numbers
from ark_jax.models.token_probabilities import block_length, suffix_log_probs, target_positions
from ark_jax.runtime import programs
from ark_jax.runtime.accelerator import device_in_use
from ark_jax.runtime.log import Progress
from ark_jax.runtime.shown import one_line
from ark_jax.text import tokens as tk
from ark_jax.text.thoughts import closed_thought
from ark_jax.text.token_rows import TokenIds, TokenRows, text_blocks

SPLIT = "\ufdd0"  # a character that no text may hold; a prompt is tokenised in parts around it
GENERATION_CONFIG = "generation_config.json"


@dataclasses.dataclass(frozen=True)
class LogLikelihoods:
    """Log-likelihoods of the targets of n pairs, in nats."""

    sum: np.ndarray  # float32 [n]: over the target's tokens
    tokens: np.ndarray  # int32 [n]: number of target tokens

    @property
    def mean(self) -> np.ndarray:
        """Mean token log-likelihood `[n]`, eq. 3 and 4."""
        return self.sum / np.maximum(self.tokens, 1)


class PairError(ValueError):
    """A pair that cannot be scored.

    Attributes:
        number: its position among the pairs.
        reason: the message without the number.
    """

    def __init__(self, number: int, reason: str):
        super().__init__(f"pair {number}: {reason}")
        self.number, self.reason = number, reason


@dataclasses.dataclass
class LanguageModel:
    """A decoder with its tokenizer."""

    model: Any
    cfg: decoder.Config
    tokenizer: Any
    folder: Path  # where the model was read from
    max_length: int  # tokens that the model accepts
    stop_ids: tuple[int, ...]  # tokens that end a text
    # Tensors of the checkpoint that the model does not compute with, kept for `save_pretrained`.
    extra_tensors: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    __repr__ = one_line("folder", "max_length")

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path,
        *,
        dtype: str = "float32",
        compute: str = "float32",
        attention: str = "auto",
    ) -> "LanguageModel":
        """Opens a Hugging Face decoder folder or hub name.

        Args:
            dtype: type of the parameters.
            compute: type of the activations.
            attention: kernel, one of `kernels.KERNELS`.
        """
        layout.enter_mesh()
        folder = hf.resolve(str(name_or_folder))
        settings = hf.read_config(folder)
        model, cfg, extra_tensors = hf.load_model(
            str(folder), dtype=dtype, compute=compute, attention=attention
        )
        if not isinstance(cfg, decoder.Config):
            raise ValueError(
                f"{name_or_folder}: {settings['model_type']} generates no text; give a decoder"
            )
        if not cfg.causal:
            raise ValueError(
                f"{name_or_folder}: its tokens see later ones (config.json), so it generates no "
                "text and embeds texts only; give a causal decoder"
            )
        tokenizer = tk.load_tokenizer(str(folder), cfg.vocab)
        stop_ids = _read_stop_ids(folder, settings, tokenizer)
        longest = settings.get("max_position_embeddings", 2048)
        return cls(model, cfg, tokenizer, folder, longest, stop_ids, extra_tensors)

    def save_pretrained(self, folder: str | Path, *, dtype: str = "") -> None:
        """Writes config, weights and tokenizer, as transformers opens them.

        Weights keep the names and types of the base, and their bytes if they have not changed.
        Every process must call this; process 0 writes.

        Args:
            folder: a local folder, or one in a bucket (gs://).
            dtype: type of the weights instead. A base in bfloat16 would round small updates away.

        Raises:
            ValueError: `folder` is the one the model was read from, whose files are still in use.
        """
        files = (*hf.TOKENIZER_FILES, GENERATION_CONFIG)
        with hf.local_folder(folder) as local:
            hf.save_model(
                self.model,
                self.cfg,
                local,
                base=self.folder,
                extra_tensors=self.extra_tensors,
                files=files,
                dtype=dtype,
            )

    def log_likelihood(
        self, pairs: Sequence[tuple[str, str]], *, batch_tokens: int = 0, label: str = ""
    ) -> LogLikelihoods:
        """log p(target | prompt), teacher-forced, of (prompt, target) pairs.

        Prompt and target are tokenised as one text. The target's tokens are those after as many as
        the prompt alone has, as in lm-evaluation-harness; blanks that end a prompt count as the
        target's. Pairs that begin with the same tokens share one pass over them.

        Args:
            batch_tokens: tokens of a call on each device, which bounds memory; 0 suits the device.
            label: name of the progress line; without it none is shown.

        Raises:
            PairError: a target is empty, a pair is longer than the model's context, or its
                log-likelihood is not finite.
        """
        log_probs = self._score_rows(self._encode_pairs(pairs), batch_tokens, label)
        sums = np.array([row.sum() for row in log_probs], np.float32)
        return LogLikelihoods(sums, np.array(list(map(len, log_probs)), np.int32))

    def token_log_likelihood(
        self,
        prompt_ids: Sequence[TokenIds],
        completion_ids: Sequence[TokenIds],
        *,
        batch_tokens: int = 0,
        label: str = "",
    ) -> list[np.ndarray]:
        """log p(token | tokens before it) of every completion token, in nats.

        Completion i follows prompt i. Completions of one prompt share one pass over it, as the
        pairs of `log_likelihood` do, which adds up the same numbers.

        Args:
            batch_tokens: as in `log_likelihood`.
            label: as in `log_likelihood`.

        Returns:
            For each pair a float32 array, as long as its completion.

        Raises:
            PairError: a prompt or completion is empty, a token has no embedding, a pair is longer
                than the model's context, or its log-likelihood is not finite.
        """
        if len(prompt_ids) != len(completion_ids):
            raise ValueError(
                f"{len(prompt_ids)} prompts for {len(completion_ids)} completions; give one for "
                "each, and a prompt as often as it has completions"
            )
        rows = []
        for i, (prompt, completion) in enumerate(zip(prompt_ids, completion_ids, strict=True)):
            if not len(prompt) or not len(completion):
                raise PairError(i, "its prompt or completion has no token; give both")
            ids = np.concatenate([prompt, completion])
            if not 0 <= ids.min() <= ids.max() < self.cfg.vocab:
                raise PairError(
                    i,
                    f"token ids {ids.min()} to {ids.max()}, but the model has {self.cfg.vocab} "
                    "tokens, from 0 on; encode the texts with this model's tokenizer",
                )
            if len(ids) > self.max_length:
                raise PairError(
                    i, f"{len(ids)} tokens, the model takes {self.max_length}; cut the prompt"
                )
            rows.append((ids, len(completion)))
        return self._score_rows(rows, batch_tokens, label)

    def _score_rows(
        self, encoded: Sequence[tuple[np.ndarray, int]], batch_tokens: int, label: str
    ) -> list[np.ndarray]:
        """For each row a float32 array of the log-probabilities of its last tokens, in nats.

        Args:
            encoded: token ids, and how many of the last are scored (not all).
        """
        programs.make_room()
        # A prefix ends before the position that predicts the first scored token.
        rows = [(ids, len(ids) - count - 1) for ids, count in encoded]
        scores = [np.zeros(0, np.float32)] * len(rows)
        batches = self._share_prefixes(rows, batch_tokens)
        started = (self._start_scoring(*batch, encoded) for batch in batches)
        with Progress(
            label or "log-likelihoods", len(rows), "pairs", interval=10 if label else float("inf")
        ) as bar:
            for spans, computed in one_ahead(started):
                log_probs = layout.fetch(computed)
                for i, (device, start, end) in spans.items():
                    scores[i] = log_probs[device, start:end].copy()  # without the whole batch
                bar.add(len(spans))
        for i, row in enumerate(scores):
            if not np.isfinite(total := row.sum()):
                raise PairError(i, f"its log-likelihood is {total}; {decoder.NOT_FINITE_CAUSE}")
        return scores

    def _start_scoring(
        self,
        cache: prefix.PrefixCache,
        prefix_mask: Bool[Array, "prefixes s"],
        batch: SuffixBatch,
        encoded: Sequence[tuple[np.ndarray, int]],
    ) -> tuple[dict[int, Span], jax.Array]:
        """The spans of `target_positions`, and the log-probabilities that the device computes."""
        positions, labels, spans = target_positions(batch, encoded)
        blocks = -(-max(end for _, _, end in spans.values()) // block_length())
        log_probs = suffix_log_probs(
            self.model,
            self.cfg,
            cache,
            prefix_mask,
            _put_on_devices(batch),
            batch.capacity,
            *map(layout.rows, (positions, labels)),
            blocks,
        )
        return spans, log_probs

    def _share_prefixes(
        self, rows: Rows, budget: int
    ) -> Iterator[tuple[prefix.PrefixCache, jax.Array, SuffixBatch]]:
        """Computes every shared prefix once.

        Args:
            rows: token ids, and how many of them a prefix may take at most (not all).
            budget: tokens of a call on each device; 0 suits the device.

        Yields:
            Keys and values of prefixes, twice `[l prefixes k s h]`, their mask `[prefixes s]`, and
            a batch of rows that continue from them.
        """
        prefix_batches = plan_batches(
            rows, budget=budget or _default_batch_tokens(), devices=layout.batch_multiple()
        )
        for prefixes in prefix_batches:
            tokens, mask = layout.rows(prefixes.tokens), layout.rows(prefixes.mask)
            cache = prefix.compute(self.model, self.cfg, tokens, mask, prefixes.capacity)
            for batch in prefixes.suffix_batches:
                yield cache, mask, batch

    @property
    def _start_token(self) -> int:
        """The token that replaces an empty prompt.

        Raises:
            ValueError: the model names none.
        """
        begin = self.tokenizer.bos_token_id
        if begin is None and not self.stop_ids:
            raise ValueError(
                f"{self.folder}: the prompt is empty, and neither config.json nor the tokenizer "
                "names a token that begins or ends a text; give a prompt"
            )
        return self.stop_ids[0] if begin is None else begin

    @property
    def end_id(self) -> int:
        """The token that ends a reply, and a text that the model learns from.

        Raises:
            ValueError: the model has none.
        """
        end = self.tokenizer.eos_token_id
        if end is None and not self.stop_ids:
            raise ValueError(
                f"{self.folder}: neither the tokenizer nor config.json names a token that ends a "
                "text, so no reply could end; name it as eos_token in tokenizer_config.json"
            )
        return self.stop_ids[0] if end is None else end

    def token_counts(self, prompts: Sequence[str]) -> list[int]:
        """Number of tokens of each prompt, with the special tokens that begin it."""
        return list(map(len, self._token_ids(prompts)))

    def _encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[np.ndarray, int]]:
        """For each pair the token ids of prompt and target, and the number of target tokens."""
        encoded = []
        rows = TokenRows.from_shares(self._tokenize_pairs, pairs)
        for i, (row, (_, target)) in enumerate(zip(rows, pairs, strict=True)):
            context, ids = int(row[0]), row[1:]
            if not context:
                context, ids = 1, np.array([self._start_token, *ids], np.int32)
            count = len(ids) - context
            if count < 1 or not target:
                raise PairError(
                    i, f"the target {target!r} adds no token to its prompt; give a target"
                )
            if len(ids) > self.max_length:
                raise PairError(
                    i, f"{len(ids)} tokens, the model takes {self.max_length}; cut the passage"
                )
            encoded.append((ids, count))
        return encoded

    def _tokenize_pairs(self, pairs: Sequence[tuple[str, str]]) -> Iterator[list[int]]:
        """For each pair the number of prompt tokens, followed by the ids of prompt and target."""
        for block in text_blocks(pairs):
            texts = self._token_ids([prompt + target for prompt, target in block])
            contexts = [prompt.rstrip() for prompt, _ in block]
            unique = list(dict.fromkeys(contexts))
            lengths = dict(zip(unique, self.token_counts(unique), strict=True))
            for context, ids in zip(contexts, texts, strict=True):
                yield [lengths[context], *ids]

    def _token_ids(self, texts: Sequence[str], *, special: bool = True) -> Iterator[list[int]]:
        """Token ids of texts that will be continued.

        They have the special tokens that begin a text if `special`, but none that end one. A text
        is tokenised in parts, which end at each SPLIT.
        """
        # Not verbose: lengths are checked elsewhere.
        tokenize = tk.without_panic()(functools.partial(self.tokenizer, verbose=False))
        ending = _ending_length(self.tokenizer, special)
        for block in text_blocks(texts):
            parts = [text.split(SPLIT) for text in block]
            rows = tokenize([first for first, *_ in parts], add_special_tokens=special)
            for row, (_, *others) in zip(rows["input_ids"], parts, strict=True):
                row = row[: len(row) - ending]
                for part in others:
                    row += tokenize(part, add_special_tokens=False)["input_ids"]
                yield row

    def as_data(self, text: str) -> str:
        """The text in a form without control tokens of the model, for use in a prompt.

        A document may contain `<|im_end|>` and so end its turn. A SPLIT after the first character
        of such a word makes the tokenizer take it as plain text. Other texts stay as they are.
        """
        return self._control_words.sub(lambda start: start[0] + SPLIT, text.replace(SPLIT, ""))

    @functools.cached_property
    def _control_words(self) -> re.Pattern:
        """Matches the first character of every added token, such as `<|im_end|>`."""
        words = sorted(self.tokenizer.get_added_vocab(), key=len, reverse=True)
        words = [word for word in words if not word.isspace()]
        return re.compile(f"(?=(?:{'|'.join(map(re.escape, words))}))." if words else "(?!)")

    def prompt_ids(self, prompts: Sequence[str]) -> TokenRows:
        """Token ids that `generate` continues from.

        Prompts for a model with a chat template get no special tokens: `chat` has put them in.
        """
        return TokenRows.from_rows(
            self._token_ids(prompts, special=not self.tokenizer.chat_template)
        )

    def chat(self, turns: str | Sequence[str]) -> str:
        """A prompt for the model's next reply, by the model's chat template.

        Without a template, the turns are joined by line breaks. Control tokens in a turn are plain
        text, see `as_data`. A model that can think before it replies (Qwen3) is asked not to, since
        its thoughts would take the place of a short reply; a thought that the template itself
        opens is closed.

        Args:
            turns: the user's only turn, or the user's and the model's in alternation.

        Raises:
            ValueError: the last turn is not the user's.
        """
        turns = [turns] if isinstance(turns, str) else list(turns)
        if len(turns) % 2 == 0:
            raise ValueError(
                f"{len(turns)} turns: the last must be the user's; give user, assistant, user, ..."
            )
        turns = list(map(self.as_data, turns))
        if not self.tokenizer.chat_template:
            return "\n".join(turns)
        messages = [
            {"role": "assistant" if i % 2 else "user", "content": turn}
            for i, turn in enumerate(turns)
        ]
        prompt = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, enable_thinking=False
        )
        return closed_thought(prompt)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        first_place: int = 0,
        batch_tokens: int = 0,
        label: str = "",
        done: Callable[[int, str], None] = lambda i, text: None,
        partial: Callable[[int, str], None] | None = None,
    ) -> list[str]:
        """Continues each prompt, up to a stop token, a `stop` string or `max_new_tokens`.

        The returned texts end before the first `stop` string and have no special tokens. A model
        with a chat template adds no special tokens to its prompts: `chat` has put them in.

        Args:
            temperature: 0 takes the likeliest token; otherwise tokens are drawn from the softmax of
                logits / temperature.
            top_p: draws from the likeliest tokens only, whose probabilities add up to this.
            seed: decides all draws. A prompt's draws depend on its place among `prompts`, not on
                the batches.
            first_place: the place of the first prompt, if it follows those of other calls.
            batch_tokens: positions whose keys and values a device keeps, which bounds memory; 0
                suits the device.
            label: name of the progress line; without it none is shown.
            done: `done(i, text)` is called as soon as text i has ended.
            partial: `partial(i, text)` is called every few tokens with text i so far.
        """
        _check_sampling(max_new_tokens, temperature, top_p)
        ids = self._encode_prompts(prompts, max_new_tokens)
        if not ids:
            return []
        texts = [""] * len(ids)
        with Progress(
            label or "generate", len(ids), "prompts", interval=10 if label else float("inf")
        ) as bar:

            def store_if_ended(i: int, new_ids: list[int], is_last: bool) -> bool:
                """Stores the text if it has ended; returns whether a stop string ended it."""
                text = self._decode_reply(new_ids) if is_last or stop or partial else ""
                end = min((text.find(string) for string in stop if string in text), default=None)
                if partial:
                    partial(i, text[:end])
                if is_last or end is not None:
                    texts[i] = text[:end]
                    done(i, texts[i])
                    bar.add()
                return end is not None

            places = np.arange(first_place, first_place + len(ids))
            draw = _draw_settings(temperature, top_p, seed, places[:, None])
            self._new_generation(max_new_tokens, draw, batch_tokens, store_if_ended).run(ids)
        return texts

    def sample(
        self,
        prompts: Sequence[str],
        *,
        n: int = 8,
        max_new_tokens: int,
        seed: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        places: Sequence[int] | Sequence[Sequence[int]] | np.ndarray | None = None,
        log_probs: bool = True,
        batch_tokens: int = 0,
        label: str = "",
    ) -> Rollouts:
        """Draws n replies to each prompt, with their token ids. A prompt is computed once for all.

        Draws follow from the seed, the prompt's place, the number of the sample and that of the
        token. They do not depend on batches, on the mesh, or on the other prompts.

        Args:
            seed: decides all draws.
            temperature: as in `generate`, as are `top_p`, `batch_tokens` and `label`.
            places: for each prompt a number, or several, such as (step, question, set). Prompts
                with equal places get equal random numbers. By default the place among `prompts`.
            log_probs: whether to compute the replies' log-probabilities, which takes another pass
                over the prompts.

        Raises:
            ValueError: the model has no token that ends a text, a prompt leaves no room for
                `max_new_tokens`, or an argument makes no sense.
        """
        _check_sampling(max_new_tokens, temperature, top_p)
        if n < 1 or not temperature:
            raise ValueError(
                f"n={n}, temperature={temperature}: n must be at least 1, and temperature above 0, "
                "since without chance all samples are the same; use `generate` for that"
            )
        _ = self.end_id  # raises if no reply could end
        prompt_ids = self._encode_prompts(prompts, max_new_tokens)
        numbers = draw_numbers(places, len(prompts), n)
        ids = [np.zeros(0, np.int32)] * len(numbers)
        with Progress(
            label or "sample", len(ids), "replies", interval=10 if label else float("inf")
        ) as bar:

            def store(i: int, new_ids: list[int], is_last: bool) -> bool:
                """Stores the reply if it has ended; never ends it."""
                if is_last:
                    ids[i] = np.array(new_ids, np.int32)
                    bar.add()
                return False

            if prompts:
                draw = _draw_settings(temperature, top_p, seed, numbers)
                self._new_generation(max_new_tokens, draw, batch_tokens, store).run(prompt_ids, n)
        return self.as_rollouts(
            prompt_ids, ids, n, log_probs=log_probs, batch_tokens=batch_tokens, label=label
        )

    def as_rollouts(
        self,
        prompt_ids: Sequence[TokenIds],
        ids: list[np.ndarray],
        n: int,
        *,
        log_probs: bool = True,
        batch_tokens: int = 0,
        label: str = "",
    ) -> Rollouts:
        """Replies that were sampled elsewhere, n to each prompt, as `sample` returns its own.

        Args:
            ids: int32, the tokens of each reply; those to a prompt follow one another.
            log_probs, batch_tokens, label: as in `sample`.
        """
        prompt_numbers = np.repeat(np.arange(len(prompt_ids), dtype=np.int32), n)
        scores = None
        if log_probs:
            repeated = [prompt_ids[int(i)] for i in prompt_numbers]
            scores = self.token_log_likelihood(
                repeated, ids, batch_tokens=batch_tokens, label=label and f"{label}: log-probs"
            )
        return Rollouts(
            prompts=prompt_numbers,
            samples=np.tile(np.arange(n, dtype=np.int32), len(prompt_ids)),
            ids=ids,
            ended=np.array([row[-1] in self.stop_ids for row in ids], bool),
            texts=list(map(self._decode_reply, ids)),
            log_probs=scores,
        )

    def _new_generation(
        self,
        max_new_tokens: int,
        draw: sampling.Sampling | None,
        batch_tokens: int,
        on_tokens: Callable[[int, list[int], bool], bool],
    ) -> Generation:
        """A run that is ready to start; arguments as of `Generation`."""
        programs.make_room()
        # Each step reads all weights, so that many positions share it. Few prompt tokens enter at
        # once, so that free slots do not wait until many are free.
        return Generation(
            self.model,
            self.cfg,
            self.stop_ids,
            max_new_tokens,
            draw,
            cache_positions=batch_tokens or self._default_cache_positions(),
            prefill_tokens=min(
                batch_tokens or _default_batch_tokens(), _default_batch_tokens() // 2
            ),
            on_tokens=on_tokens,
        )

    def _decode_reply(self, ids: TokenIds) -> str:
        """The text of generated ids, without special tokens and the stop token at their end."""
        ids = ids[:-1] if ids[-1] in self.stop_ids else ids
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def _encode_prompts(self, prompts: Sequence[str], max_new_tokens: int) -> Sequence[TokenIds]:
        """`prompt_ids`, with the start token for an empty prompt.

        Raises:
            ValueError: a prompt leaves no room for `max_new_tokens`.
        """
        if isinstance(prompts, str):
            raise ValueError(f"prompts: {prompts[:40]!r} is one text; give a list of them")
        if not prompts:
            return []
        rows = [ids if len(ids) else [self._start_token] for ids in self.prompt_ids(prompts)]
        for i, ids in enumerate(rows):
            if len(ids) + max_new_tokens > self.max_length:
                raise ValueError(
                    f"prompt {i}: {len(ids)} + {max_new_tokens} tokens, the model takes "
                    f"{self.max_length}; shorten the prompt or lower max_new_tokens"
                )
        return rows

    def _default_cache_positions(self) -> int:
        """Positions whose keys and values a device keeps, of at most 2 GiB on a CPU, else 8 GiB."""
        cfg = self.cfg
        numbers = 2 * cfg.layers * cfg.kv_heads * cfg.head_dim  # of a position
        position_bytes = numbers * jnp.dtype(cfg.compute).itemsize
        memory = (2 if device_in_use().platform == "cpu" else 8) * 2**30
        return min(16 * _default_batch_tokens(), memory // position_bytes)


def _read_stop_ids(folder: Path, settings: dict, tokenizer) -> tuple[int, ...]:
    """The sorted tokens that end a text: of tokenizer, config.json and generation_config.json.

    Some models name the token that ends a chat turn in generation_config.json only.
    """
    path = folder / GENERATION_CONFIG
    stop_ids = {tokenizer.eos_token_id}
    for config in (settings, hf.read_json(path) if path.is_file() else {}):
        ids = config.get("eos_token_id")
        stop_ids |= set(ids if isinstance(ids, list) else [ids])
    return tuple(sorted(stop_ids - {None}))


def _ending_length(tokenizer, special: bool) -> int:
    """The number of special tokens that the tokenizer puts after a text, if it adds `special`."""
    plain = tokenizer("x", add_special_tokens=False)["input_ids"]
    ids = tokenizer("x", add_special_tokens=special)["input_ids"]
    for n in range(len(ids)):
        end = len(ids) - n
        if ids[end - len(plain) : end] == plain:
            return n
    return 0


def _check_sampling(max_new_tokens: int, temperature: float, top_p: float) -> None:
    """Raises ValueError if a setting is out of its range."""
    if max_new_tokens < 1 or temperature < 0 or not 0 < top_p <= 1:
        raise ValueError(
            f"max_new_tokens={max_new_tokens}, temperature={temperature}, top_p={top_p}: must be "
            "at least 1, at least 0, and above 0 up to 1"
        )


def _draw_settings(
    temperature: float, top_p: float, seed: int, numbers: np.ndarray
) -> sampling.Sampling | None:
    """How rows draw their tokens, with the keys of all rows on the host; None at temperature 0.

    Args:
        numbers: int `[rows parts]`; with the seed they decide a row's draws.
    """
    if not temperature:
        return None
    keys = layout.fetch(sampling.row_keys(seed, numbers))
    nucleus = top_p if top_p < 1 else None
    return sampling.Sampling(keys, temperature, nucleus)  # type: ignore[arg-type]  # on the host


def _default_batch_tokens() -> int:
    """Tokens of a call: enough for products to run at full speed; more would only take memory."""
    return 2048 if device_in_use().platform == "cpu" else 16384


def _put_on_devices(batch: SuffixBatch) -> prefix.SlotArrays:
    """The arrays of a batch on the devices, each of which holds its own rows."""
    names = prefix.SlotArrays._fields
    return prefix.SlotArrays(*(layout.rows(getattr(batch, name)) for name in names))
