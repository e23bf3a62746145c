"""What writing questions about triples has still to ask, for `ark-jax plan`."""

import statistics
from collections.abc import Sequence

from ark_jax.estimate.llm_calls import (
    Calls,
    TokenCounter,
    cost_of,
    measured_ratio,
    price_for,
    reply_seconds,
    token_counter,
    unanswered,
    unknown_price,
    waiting_seconds,
)
from ark_jax.llm import complete
from ark_jax.llm.reply_cache import ReplyCache
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.ask import llm_settings
from ark_jax.recipes.gpr.relation_wordings import wanted_wordings
from ark_jax.recipes.gpr.write_questions import writing_calls

SAMPLE = 1024  # prompts whose tokens are counted; of more, an even sample stands for all
WORDING_TOKENS = 11  # of a wording in the packaged recordings
QUESTION_TOKENS = 32  # of a question with its number and side in a reply


def llm_calls(context: Context, done: set[str]) -> tuple[list[Calls], list[str]]:
    """The calls that write questions about triples, and notes on what the figures rest on."""
    calls = writing_calls(context)
    if not calls:
        return [], ["questions: rules word them; no language model is asked"]
    config = context.config
    count, counted_by = token_counter(config)
    settings = llm_settings(config, "questions")
    replies = _known_replies(context)
    pending = [] if "questions" in done else unanswered(settings, calls, replies)
    prompt_tokens = _mean_tokens(calls, count)
    read = prompt_tokens * len(pending)
    ratio, source = _output_ratio(calls, replies, count)
    reply_tokens = _expected_tokens(config, calls) if ratio is None else ratio * prompt_tokens
    reply_tokens = min(reply_tokens, settings.max_tokens)
    written = reply_tokens * len(pending)
    pace, _ = reply_seconds(replies, reply_tokens)
    notes = [f"tokens of language models: counted by {counted_by}"]
    if pending:
        notes.append(f"questions: {written / read:.2f} tokens out for one in, by {source}")
    notes += unknown_price(settings)
    estimated = Calls(
        "questions",
        "questions",
        len(calls),
        len(pending),
        round(read),
        round(written),
        cost_of(price_for(settings), read, written),
        waiting_seconds(settings, len(pending), read + written, pace),
    )
    return [estimated], notes


def _known_replies(context: Context) -> list[dict]:
    rows = ReplyCache(context.workdir / "llm" / "replies.jsonl").rows.values()
    return [row for row in rows if row.get("kind") == "questions"]


def _mean_tokens(calls: Sequence[complete.Call], count: TokenCounter) -> float:
    texts = [call.turns[0] for call in calls[:: -(-len(calls) // SAMPLE)]]
    return statistics.fmean(count(texts, asked=True))


def _output_ratio(
    calls: Sequence[complete.Call], replies: Sequence[dict], count: TokenCounter
) -> tuple[float | None, str]:
    """Tokens out for one token in and where that is from; None if nothing is known."""
    by_item = {call.item: call.turns[0] for call in calls}
    known = [row["item"] for row in replies if row.get("item") in by_item][:SAMPLE]
    lengths = count([by_item[item] for item in known], asked=True) if known else []
    ratio, measured = measured_ratio(replies, dict(zip(known, lengths, strict=True)), count)
    return ratio, f"{measured:,} replies at hand" if ratio else "what a reply has to hold"


def _expected_tokens(config, calls: Sequence[complete.Call]) -> float:
    """The tokens of a reply that holds what is asked for."""
    if config.questions.by == "relations":
        return 2.0 * wanted_wordings(config) * WORDING_TOKENS
    ends = statistics.fmean(len(call.fields["asked"]) for call in calls)
    return ends * config.questions.per_triple * QUESTION_TOKENS
