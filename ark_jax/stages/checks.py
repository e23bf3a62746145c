"""What a config must say before any work is spent on it."""

from ark_jax.evaluate.systems import check_bm25
from ark_jax.stages import systems

TYPES = ("float32", "bfloat16", "float16")
CHOICES = {
    "retriever.compute": TYPES, "generator.dtype": TYPES,
    "score.supervision": ("alignment", "gold"), "score.answers": ("max", "mean", "first"), "score.normalise": ("none", "minmax"),
    "mine.by": ("rewritten", "question", "bm25", "random"), "mine.model": ("previous", "base"),
    "train.denominator": ("own", "batch", "all"), "train.order": ("question", "document"), "train.remat": ("products", "all"),
    "evaluate.scope": ("document", "corpus"), "evaluate.gold": ("evidence", "answers"),
    "reader.backend": ("openai", "local", "replay"), "judge.backend": ("openai", "local", "replay"),
}
LEAST = {
    "data.chunk_tokens": 1, "data.chunk_overlap": 0, "graph.gleanings": 0, "graph.rewrites": 1,
    "score.candidates": 0, "score.references": 0, "score.shard": 1, "score.short_chunk": 0, "score.positives": 1,
    "mine.top": 1, "mine.negatives": 1, "mine.spare": 0,
    "train.batch": 1, "train.chunks": 1, "train.save_every": 1, "train.lora_rank": 0,
    "evaluate.read": -1, "evaluate.passages": 1, "evaluate.max_new_tokens": 1, "evaluate.bootstrap": 1,
    "evaluate.randomisation": 1, "llm.max_tokens": 1, "llm.concurrency": 1, "llm.reasks": 0, "judge.repeats": 0,
}


def check(config) -> None:
    """Refuses what some stage would stumble over, maybe hours from now, or would take for something else.

    Raises:
        ValueError: the field, what it says and what it may say.
    """
    of = lambda field: config[field.split(".")[0]][field.split(".")[1]]
    for field, known in CHOICES.items():
        if of(field) not in known:
            raise ValueError(f"config.{field}={of(field)!r}: must be {', '.join(known[:-1])} or {known[-1]}")
    for field, least in LEAST.items():
        if of(field) < least:
            raise ValueError(f"config.{field}={of(field)}: must be at least {least}")
    if not 0 < config.score.keep <= 1:
        raise ValueError(f"config.score.keep={config.score.keep}: must be above 0 and at most 1, a share of the questions")
    for name in ("large", "small"):
        size = config.graph[name]
        if not (isinstance(size, tuple | list) and len(size) == 2 and 1 <= size[0] <= size[1]):
            raise ValueError(f"config.graph.{name}={size}: must be the least and the most entities of a community, as in (3, 10)")
    if not (isinstance(config.mesh, tuple | list) and len(config.mesh) == 3):
        raise ValueError(f"config.mesh={config.mesh}: must be three numbers, of data, fsdp and tensor, as in (1, -1, 1)")
    _training(config.train)
    systems.check(config)
    if config.mine.by == "bm25":
        check_bm25()
    if config.graph.openie and config.graph.gleanings:
        raise ValueError("config.graph.gleanings asks the LLM again, and config.graph.openie not at all: give one of them")
    for role in ("llm", "reader", "judge"):
        if "@" in config[role].base_url.partition("//")[2].partition("/")[0]:
            raise ValueError(f"config.{role}.base_url holds a name or password, which would be written down; put the key into "
                             f"the environment variable that config.{role}.key_env names")


def _training(train) -> None:
    """Which stages are trained and how long."""
    stages = tuple(train.stages)
    if not stages or set(stages) - {0, 1, 2, 3} or len(set(stages)) < len(stages) or (0 in stages and len(stages) > 1):
        raise ValueError(f"config.train.stages={stages}: each of 1, 2 and 3 at most once, or 0 for all at once")
    if not 0 < train.merge <= 1:
        raise ValueError(f"config.train.merge={train.merge}: must be above 0, which would be base, and at most 1, which merges "
                         "nothing")
    for name in ("epochs", "learning_rates"):
        if len(train[name]) != 3:
            raise ValueError(f"config.train.{name}={tuple(train[name])}: give three, of stages 1, 2 and 3, whichever are trained")
    for stage in stages:
        if (train.epochs[stage - 1] if stage else sum(train.epochs)) < 1:
            raise ValueError(f"config.train.epochs={tuple(train.epochs)}: stage {stage} is trained for none; leave it out of "
                             "config.train.stages")
