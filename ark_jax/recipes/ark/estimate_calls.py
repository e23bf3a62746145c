"""The calls of a language model that an ARK run has still to make, for `ark-jax plan`."""

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
from ark_jax.recipes.ark.curriculum import asks_writer, builds_graph, mines_by_graph, systems
from ark_jax.recipes.ark.extract import extracted_chunks, extraction_calls
from ark_jax.recipes.ark.join_passages import join_by_community
from ark_jax.recipes.ark.recording import Recording
from ark_jax.recipes.ark.rewrite import rewriting_calls
from ark_jax.recipes.common import estimate
from ark_jax.recipes.common.ask import llm_settings
from ark_jax.recipes.common.corpus import load_questions
from ark_jax.recipes.common.estimate_questions import (
    PAIR_TOKENS,
    foresee_questions,
    join_neighbours,
)
from ark_jax.recipes.common.hyde import passage_calls
from ark_jax.recipes.common.systems import HYDE
from ark_jax.recipes.common.write_questions import materials_to_ask, question_calls
from ark_jax.recipes.common.written_from import is_writing

PASSAGE_TOKENS = 120  # of a passage that HyDE searches for
# How far a community goes from its least to its most entities.
# In the demo it is 0.22 (large) and 0.36 (small).
COMMUNITY_SHARE = 0.25


def llm_calls(context: Context, done: set[str]) -> tuple[list[Calls], list[str]]:
    """The calls of extraction, gleaning, writing, rewriting, a judge, and a reader not local.

    Returns:
        the calls, and notes on what the figures rest on.
    """
    config = context.config
    if config.llm.backend not in complete.BACKENDS:
        raise ValueError(
            f"llm.backend={config.llm.backend!r}: must be one of {', '.join(complete.BACKENDS)}"
        )
    is_asked = asks_writer(config)
    count, counted_by = token_counter(config, is_asked=is_asked)
    notes = _price_notes(config) if is_asked else []
    calls = []
    recording = Recording.read(count)
    foresee_questions(context, done)
    cached = list(ReplyCache(context.workdir / "llm" / "replies.jsonl").rows.values())
    kinds = (
        ("extract", _prepare_extraction, builds_graph(config)),
        ("questions", _prepare_writing, is_writing(config)),
        ("rewrite", _prepare_rewriting, mines_by_graph(config)),
        (HYDE, _prepare_passages, config.search.expand == HYDE),
    )
    for kind, prepare, is_needed in kinds:
        if not is_needed:
            continue
        prompts_made, prompt_tokens, expected, remarks = prepare(context, done, count, recording)
        replies = [row for row in cached if row.get("kind") == kind]
        notes += remarks
        made, more = _estimate_calls(
            config, kind, done, prompts_made, prompt_tokens, expected, replies, count
        )
        calls += made
        notes += more
    answering = estimate.answer_calls(config, context, systems(config), done, count)
    if any(x.calls for x in answering):
        notes.append(
            "reading and judge are at most this: what systems have in common is asked once or "
            "not at all"
        )
    if not builds_graph(config):
        notes.append("no stage reads a graph, so none is built")
    made = calls + answering
    counted = [f"tokens of language models: counted by {counted_by}"] if made else []
    return made, [*counted, *notes]


def _price_notes(config) -> list[str]:
    settings, price = config.llm, price_for(config.llm)
    if settings.backend != "openai":
        return []
    if price is None:
        return unknown_price(settings)
    return [
        f"price: {settings.model} takes ${price[0]:g} for a million tokens in and ${price[1]:g} "
        "out; what has to be asked again comes on top"
    ]


Prepared = tuple[list[complete.Call], dict[str, float], dict[str, float], list[str]]


def _prepare_extraction(
    context: Context, done: set[str], count: TokenCounter, recording: Recording
) -> Prepared:
    """The calls, tokens of each prompt, tokens expected of each reply, notes."""
    calls = []
    if not context.config.graph.openie:
        calls = list(extraction_calls(context, chunks_to_extract(context, done)))
    passages = count([call.fields["passage"] for call in calls])
    expected = {call.item: recording.written * n for call, n in zip(calls, passages, strict=True)}
    return calls, _prompt_tokens(calls, count), expected, []


def chunks_to_extract(context: Context, done: set[str]) -> set[str]:
    """The chunks that extraction will read; before the candidates exist, as many at random."""
    if "candidates" in done or is_writing(context.config):
        return extracted_chunks(context)
    pools = estimate.training_pools(context, load_questions(context, "train"))
    return {chunk.id for pool in pools.values() for chunk in pool}


def _prepare_writing(
    context: Context, done: set[str], count: TokenCounter, recording: Recording
) -> Prepared:
    """As `_prepare_extraction`; before a graph exists, other passages stand for those it joins."""
    join = join_by_community if "graph" in done else join_neighbours
    calls = question_calls(context, materials_to_ask(context, join))
    pairs = context.config.questions.per_passage
    expected = dict.fromkeys((call.item for call in calls), PAIR_TOKENS * pairs)
    notes = []
    if "questions" not in done:
        notes.append(
            "questions: all that follows is at most this, as if no written question were dropped"
        )
    return calls, _prompt_tokens(calls, count), expected, notes


def _prepare_rewriting(
    context: Context, done: set[str], count: TokenCounter, recording: Recording
) -> Prepared:
    """As `_prepare_extraction`; before a graph exists, prompts are estimated without entities."""
    settings = context.config.graph
    graph_exists = {"graph", "communities"} <= done
    calls = rewriting_calls(context, None if graph_exists else _empty_communities(context))
    tokens = _prompt_tokens(calls, count)
    expected = {call.item: recording.version * settings.rewrites for call in calls}
    if graph_exists or "rewrite" in done:
        return calls, tokens, expected, []
    nodes = {}
    for size in ("large", "small"):
        smallest, largest = settings[size]
        nodes[size] = smallest + COMMUNITY_SHARE * (largest - smallest)
    for call in calls:
        tokens[call.item] += recording.line * nodes[call.item.rsplit("/", 1)[1]]
    note = (
        f"rewriting: an estimate until the graph exists, with {nodes['large']:.0f} and "
        f"{nodes['small']:.0f} entities of {recording.line:.0f} tokens in a prompt"
    )
    return calls, tokens, expected, [note]


def _prepare_passages(
    context: Context, done: set[str], count: TokenCounter, recording: Recording
) -> Prepared:
    """As `_prepare_extraction`, of the passages that HyDE searches for."""
    calls = passage_calls(context, load_questions(context, "held_out"))
    return (
        calls,
        _prompt_tokens(calls, count),
        dict.fromkeys((call.item for call in calls), PASSAGE_TOKENS),
        [],
    )


def _prompt_tokens(calls: Sequence[complete.Call], count: TokenCounter) -> dict[str, float]:
    lengths = count([call.turns[0] for call in calls], asked=True)
    return {call.item: float(n) for call, n in zip(calls, lengths, strict=True)}


def _empty_communities(context: Context) -> list[dict]:
    """The rows that the communities stage will store, without entities."""
    return [
        {"question": question.id, "size": size, "nodes": []}
        for question in load_questions(context, "train")
        for size in ("large", "small")
    ]


def _estimate_calls(
    config,
    kind: str,
    done: set[str],
    calls: list[complete.Call],
    prompt_tokens: dict[str, float],
    expected: dict[str, float],
    replies: list[dict],
    count: TokenCounter,
) -> tuple[list[Calls], list[str]]:
    """One kind of calls, and gleaning beside extraction; notes on their figures."""
    settings = llm_settings(config, "questions" if kind == "questions" else "llm")
    stage = "baselines" if kind == HYDE else kind
    pending = [] if stage in done else unanswered(settings, calls, replies)
    ratio, measured = measured_ratio(replies, prompt_tokens, count)
    source = f"{measured:,} replies at hand" if ratio else "the recording in the package"
    written = 0.0
    for call in pending:
        guess = expected[call.item] if ratio is None else ratio * prompt_tokens[call.item]
        written += min(guess, settings.max_tokens)
    read = sum(prompt_tokens[call.item] for call in pending)
    pace, basis = reply_seconds(replies, written / max(len(pending), 1))
    notes = []
    if pending:
        notes.append(f"{kind}: {written / read:.2f} tokens out for one in, by {source}")
    if pending and settings.backend == "openai":
        notes.append(f"{kind}: {pace:.1f} s a reply, {basis}; {settings.concurrency} at once")
    passes = [(kind, 1, read, written)]
    if kind == "extract" and config.graph.gleanings:
        times = config.graph.gleanings
        # The k-th further pass is asked in one conversation with all that came before.
        conversation = times * read + times * (times + 1) / 2 * written
        passes.append(("gleaning", times, conversation, times * written))
        if pending:
            notes.append("gleaning: at most this, if each further pass writes as much as the first")
    price = price_for(settings)
    made = [
        Calls(
            label,
            stage,
            times * len(calls),
            times * len(pending),
            round(tokens_in),
            round(tokens_out),
            cost_of(price, tokens_in, tokens_out),
            waiting_seconds(settings, times * len(pending), tokens_in + tokens_out, pace),
        )
        for label, times, tokens_in, tokens_out in passes
    ]
    return made, notes
