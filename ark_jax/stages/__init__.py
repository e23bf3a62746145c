"""The stages of ARK, each a thin layer between files and the part that does the work.

Heavy imports stand inside the stage functions: looking up what is done must not start jax.
"""

import functools

from ark_jax.pipeline import Stage
from ark_jax.stages import curriculum, graph, judging, outcome, report, systems
from ark_jax.stages.checks import check
from ark_jax.stages.files import answering, external

_LLM = ("llm.backend", "llm.model", "llm.base_url", "llm.temperature", "llm.max_tokens", "llm.reasks")
_TRAIN = tuple(f"train.{name}" for name in (
    "warmup", "weight_decay", "clip", "batch", "chunks", "temperature", "matryoshka", "denominator", "merge_copies", "order",
    "lora_rank", "lora_alpha", "lora_targets"))
# Of epochs and learning rates a stage's own, lest a change to a later one train it again.
_OWN = {0: ("train.epochs", "train.learning_rates.0"),
        **{stage: (f"train.epochs.{stage - 1}", f"train.learning_rates.{stage - 1}") for stage in (1, 2, 3)}}
_MINE = tuple(f"mine.{name}" for name in ("by", "model", "top", "negatives", "margin", "spare", "drop_answers"))
_GRAPH = tuple(f"graph.{name}" for name in ("teleport", "tolerance", "floor", "large", "small"))
_WEIGHING = tuple(f"score.{name}" for name in (
    "answers", "normalise", "forward", "backward", "retriever", "short_chunk", "positives", "keep", "supervision"))
_SCORING = ("score.candidates", "score.references", "score.shard")
_SPLIT = tuple(f"data.{name}" for name in (
    "held_out", "held_out_documents", "held_out_questions", "ignored_documents", "ignored_questions", "chunk_tokens",
    "chunk_overlap"))
_BASELINES = tuple(f"evaluate.{name}" for name in ("scope", "baselines", "retrievers", "metrics", "passages"))
_EVALUATE = tuple(f"evaluate.{name}" for name in (
    "scope", "gold", "metrics", "answers", "baselines", "retrievers", "hybrids", "read", "passages", "max_new_tokens",
    "bootstrap", "randomisation"))
_READER = tuple(f"reader.{name}" for name in ("backend", "base_url", "temperature"))
_JUDGE = tuple(f"judge.{name}" for name in ("repeats", "against", "backend", "base_url", "temperature", "max_tokens"))
_RETRIEVER = ("retriever.compute",)


def stages(config) -> list[Stage]:
    """The pipeline of a config, in order: name, inputs, settings that decide the output, function, outside inputs."""
    base = external("retriever")
    check(config)
    no_device = config.llm.backend != "local"
    asking = _LLM if config.llm.backend != "none" else ("llm.backend",)  # of what is not asked nothing hangs on its settings
    out = [
        Stage("data", (), (*_SPLIT, "seed"), graph.data, external("input", "retriever"), alone=True),
        Stage("extract", ("data",), (*asking, "graph.gleanings"), graph.extract,
              _both(external("extract", "glean", "openie"), answering("llm")), alone=no_device),
        Stage("graph", ("extract",), ("graph.similarity", *_RETRIEVER), graph.graph, base),
        Stage("communities", ("data", "graph"), (*_GRAPH, *_RETRIEVER), graph.communities, base),
        Stage("rewrite", ("data", "graph", "communities"), (*asking, "graph.rewrites"), graph.rewrite,
              _both(external("rewrite"), answering("llm")), alone=no_device),
        Stage("score", ("data",), (*_SCORING, "generator.dtype", *_RETRIEVER), curriculum.score,
              external("retriever", "generator", "forward", "backward")),
        Stage("positives", ("data", "score"), _WEIGHING, curriculum.positives, alone=True),
    ]
    for i, stage in enumerate(config.train.stages):
        before = (f"stage{config.train.stages[i - 1]}",) if i else ()
        mined = (f"mine{stage}",) if stage in curriculum.SIZES else ()
        if mined:
            model = before if config.mine.model == "previous" else ()
            out.append(Stage(*mined, ("data", "rewrite", "positives", *model),
                             (*_MINE, *_RETRIEVER),
                             functools.partial(curriculum.mine, stage=stage), base))
        out.append(Stage(f"stage{stage}", (*curriculum.needed(stage), *before),
                         (*_OWN[stage], *_TRAIN, "seed", *_RETRIEVER), functools.partial(curriculum.train, stage=stage), base))
    trained = tuple(f"stage{stage}" for stage in config.train.stages)
    if config.train.merge != 1:
        out.append(Stage("merged", trained[-1:], ("train.merge", *_RETRIEVER), curriculum.merge, base))
        trained += ("merged",)
    out += [
        Stage("baselines", ("data",), (*_BASELINES, *_RETRIEVER), systems.baselines, external("retriever", "retrievers")),
        Stage("evaluate", ("data", "baselines", *trained), (*_EVALUATE, *_READER, *_RETRIEVER, "seed"), outcome.evaluate,
              _both(external("read"), answering("reader"))),
        *([Stage("judge", ("data", "evaluate"), (*_JUDGE, "llm.reasks", "evaluate.passages", "evaluate.bootstrap", "seed"),
                 judging.compare, _both(external("judge"), answering("judge")), alone=config.judge.backend != "local")]
          if config.judge.repeats else []),
        Stage("export", (trained[-1], "evaluate"), (), outcome.export, alone=True),
    ]
    return [*out, Stage("report", tuple(stage.name for stage in out), (), report.report, alone=True)]


def _both(*prints):
    """The fingerprints of several."""
    return lambda config: {name: each for some in prints for name, each in some(config).items()}
