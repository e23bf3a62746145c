"""The stages of ARK, each a thin layer between files and the part that does the work.

Heavy imports stand inside the stage functions: looking up what is done must not start jax.
"""

import functools

from ark_jax.pipeline import Stage
from ark_jax.stages import curriculum, graph, outcome
from ark_jax.stages.files import external

_LLM = ("llm.backend", "llm.model", "llm.base_url", "llm.temperature", "llm.max_tokens")
_TRAIN = ("train.stages", "train.epochs", "train.learning_rates", "train.warmup", "train.weight_decay", "train.clip", "train.batch",
          "train.chunks", "train.temperature", "train.denominator", "train.order", "seed")


def stages(config) -> list[Stage]:
    """The pipeline of a config, in order."""
    base = external("retriever")
    out = [
        Stage("data", (), ("data.held_out", "data.held_out_documents", "data.ignored_documents", "data.chunk_tokens",
                           "data.chunk_overlap", "seed"), graph.data, external("input", "retriever")),
        Stage("extract", ("data",), _LLM, graph.extract, external("extract", "replies")),
        Stage("graph", ("extract",), ("graph.similarity", "retriever.compute"), graph.graph, base),
        Stage("communities", ("data", "graph"), ("graph.teleport", "graph.tolerance", "graph.floor", "graph.large", "graph.small",
                                                 "retriever.compute"), graph.communities, base),
        Stage("rewrite", ("data", "graph", "communities"), (*_LLM, "graph.rewrites"), graph.rewrite, external("rewrite", "replies")),
        Stage("score", ("data",), ("score.candidates", "score.answers", "generator.dtype", "retriever.compute"), curriculum.score,
              external("retriever", "generator", "forward", "backward")),
        Stage("positives", ("score",), ("score.answers", "score.normalise", "score.forward", "score.backward", "score.retriever",
                                        "score.short_chunk", "score.positives"), curriculum.positives),
    ]
    for i, stage in enumerate(config.train.stages):
        before = (f"stage{config.train.stages[i - 1]}",) if i else ()
        mined = ()
        if stage > 1:
            mined = (f"mine{stage}",)
            model = before if config.mine.model == "previous" else ()
            out.append(Stage(f"mine{stage}", ("data", "rewrite", "positives", *model),
                             ("mine.model", "mine.top", "mine.negatives", "retriever.compute"),
                             functools.partial(curriculum.mine, stage=stage), base))
        out.append(Stage(f"stage{stage}", ("data", "positives", *mined, *before), (*_TRAIN, "retriever.compute"),
                         functools.partial(curriculum.train, stage=stage), base))
    last = f"stage{config.train.stages[-1]}"
    trained = tuple(f"stage{stage}" for stage in config.train.stages)
    out += [
        Stage("evaluate", ("data", *trained), ("evaluate.scope", "evaluate.passages", "evaluate.max_new_tokens", "evaluate.bootstrap",
                                               "generator.dtype", "seed"), outcome.evaluate, external("retriever", "generator", "read")),
        Stage("export", (last, "evaluate"), (), outcome.export),
    ]
    return [*out, Stage("report", tuple(stage.name for stage in out), (), outcome.report)]
