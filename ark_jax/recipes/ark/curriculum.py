"""The curriculum: which stages train a retriever, from which model, on whose negatives.

So it says, too, whether a run needs a graph and a language model that writes.
"""

from ark_jax.pipeline.reads import element
from ark_jax.recipes.common.systems import HYDE, Systems
from ark_jax.recipes.common.written_from import is_writing, joins_passages

# stage -> whose rewritten questions mine its hard negatives. Stage 1 has none; stage 0 trains
# without a curriculum, on all negatives at once, mined by the base model.
MINING_SIZES = {0: ("large", "small"), 2: ("large",), 3: ("small",)}


RERANKER = "reranker"  # the stage of train.kind=cross


def stage_name(stage: int) -> str:
    return f"stage{stage}"


def mine_name(stage: int) -> str:
    return f"mine{stage}"


def trained_stages(config) -> tuple[str, ...]:
    """The names of the training stages, in their order."""
    return tuple(stage_name(stage) for stage in config.train.stages)


def systems(config) -> Systems:
    """The systems that the closing table compares."""
    merged = ("merged",) if config.train.merge != 1 else ()
    reranker = RERANKER if config.train.kind == "cross" else ""
    tuned = (*trained_stages(config), *merged)
    return Systems(config.evaluate, tuned, reranker, config.search.expand)


def is_distilling(config) -> bool:
    """Whether training learns the scores of all scored chunks, instead of positives."""
    return config.train.loss == "distil"


def model_before(config, stage: int) -> str:
    """The system whose model a training stage starts from."""
    position = list(config.train.stages).index(stage)
    return stage_name(config.train.stages[position - 1]) if position else "base"


def miner_of(config, before: str) -> str:
    """The system whose model finds hard negatives for a stage that starts from `before`."""
    return before if config.mine.model == "previous" else "base"


def epochs(train, stage: int) -> int:
    """The epochs of a stage under `config.train`; stage 0 takes as many as all stages together."""
    return element(train, "epochs", stage - 1) if stage else sum(train.epochs)


def last_mining(config) -> int | None:
    """The last training stage that has hard negatives."""
    return next((n for n in reversed(config.train.stages) if n in MINING_SIZES), None)


def mines_by_graph(config) -> bool:
    """Whether hard negatives are those of rewritten questions, which a graph's communities make."""
    return config.mine.by == "rewritten" and last_mining(config) is not None


def builds_graph(config) -> bool:
    """Whether a stage reads a graph: mining, or the writing of questions of two passages."""
    return mines_by_graph(config) or joins_passages(config)


def asks_writer(config) -> bool:
    """Whether `config.llm` is asked for a graph, rewritten or written questions, or passages."""
    writes = is_writing(config) and not config.questions.replies
    return builds_graph(config) or writes or config.search.expand == HYDE


def training_inputs(stage: int) -> tuple[str, ...]:
    """The stages whose outputs a training stage learns from."""
    mined = (mine_name(stage),) if stage in MINING_SIZES else ()
    return ("data", "positives", *mined)
