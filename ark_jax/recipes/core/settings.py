"""Config sections that several recipes inherit, and fields that they declare alike."""

import dataclasses

from ark_jax.llm.complete import BACKENDS
from ark_jax.runtime.accelerator import FLOAT_TYPES, KERNELS
from ark_jax.runtime.map_shards import ENGINES
from ark_jax.schema import field


def questions_of_groups():
    """The field `questions` of graph recipes: how many of each group are measured."""
    return field(
        0, "Questions of each group, drawn by a hash; 0: all.", unit="questions", minimum=0
    )


def longest_answer(default: int):
    """The field `max_new_tokens` of readers."""
    return field(default, "Longest answer.", unit="tokens", minimum=1)


def searched_scope():
    """The field `scope` of recipes over documents: what held-out questions search."""
    return field(
        "auto",
        "Chunks to search: those of the question's own documents, of all held-out questions' "
        "documents, or of the whole corpus; auto: as `data.pool`.",
        choices=("auto", "document", "held_out", "corpus"),
    )


def relevant_chunks():
    """The field `gold` of recipes over documents: which chunks count as relevant."""
    return field(
        "evidence",
        "Relevant chunks: those that hold marked evidence, or those that contain an answer. A "
        "question without either takes the chunks of its documents.",
        choices=("evidence", "answers"),
    )


BY_DEVICE = "auto: bfloat16 on TPUs and GPUs that have it, float32 elsewhere."
MODEL_BACKENDS = ("openai", "local", "replay")


@dataclasses.dataclass(frozen=True)
class LogSection:
    """Where metrics go besides `metrics.jsonl` in the workdir."""

    to: tuple[str, ...] = field(
        (), "Experiment trackers: tensorboard, wandb, trackio, or several.", affects_output=False
    )
    project: str = field(
        "ark-jax", "Project under which wandb and trackio file the run.", affects_output=False
    )


@dataclasses.dataclass(frozen=True)
class InputSection:
    """Documents, questions, the split and the chunks."""

    path: str = field("", "File or folder that `ark-jax check` accepts.", content="input")
    questions: str = field(
        "",
        "File of questions about the documents of `path`, instead of those that lie beside them.",
        content="input",
    )
    encoding: str = field(
        "",
        "Encoding of all texts and rows, such as cp1252 or shift_jis; empty: detected in each "
        "file.",
    )
    columns: str = field(
        "",
        "Columns of rows that are fields, as in `question=Prompt,answers=Response`; empty: those "
        "with the names of fields.",
    )
    held_out: float = field(
        0.2,
        "Fraction to hold out for evaluation, drawn by a hash of `seed` and document id.",
        unit="fraction of documents",
        minimum=0,
        maximum=1,
    )
    held_out_documents: tuple[str | int, ...] = field(
        (), "Ids of the documents to hold out, instead of a random draw."
    )
    ignored_documents: tuple[str | int, ...] = field(
        (), "Ids of documents to leave out, together with every question about them."
    )
    held_out_questions: tuple[str | int, ...] = field(
        (), "Ids of the questions to hold out, whatever their documents, instead of a random draw."
    )
    ignored_questions: tuple[str | int, ...] = field(
        (), "Ids of questions that are neither trained on nor held out."
    )
    test: str = field(
        "",
        "File or folder with a test set of its own: its questions are held out, and all of `path` "
        "is trained on. Several, with commas between or as the files of a folder, have a table "
        "each.",
        content="input",
    )
    fold: tuple[int, int] = field(
        (0, 0),
        "Part to hold out, and number of equal parts, instead of a random draw: (2, 5) is the "
        "second of five; (0, 0): no parts.",
        minimum=0,
    )
    tolerate: float = field(
        0.0,
        "Share of rows or files that may be bad: they are listed and left out, and the rest is "
        "read.",
        unit="fraction of rows",
        minimum=0,
        maximum=1,
    )
    titles: bool = field(
        True,
        "Whether models read the title of a document, and the headings above a passage, on a line "
        "above the passage.",
    )
    pool: str = field(
        "auto",
        "Where a question's candidates, hard negatives and results come from: its documents or the "
        "whole corpus; auto: the whole corpus if questions name no documents or short ones.",
        choices=("auto", "documents", "corpus"),
    )
    chunking: str = field(
        "sentences",
        "Where a chunk ends. sentences: at the last sentence that fits; tokens: at `chunk_tokens`.",
        choices=("sentences", "tokens"),
    )
    chunk_tokens: int = field(
        0,
        "Length of a chunk, without its title; 0: as many as the retriever reads beside the title, "
        "at most 512.",
        unit="retriever tokens",
        minimum=0,
    )
    chunk_overlap: int = field(
        12,
        "Overlap of consecutive chunks; smaller than `chunk_tokens`.",
        unit="retriever tokens",
        minimum=0,
    )
    engine: str = field(
        "local",
        "What reads, cuts and parses many documents and counts their words. local: processes on "
        "this host; ray: the Ray cluster at $RAY_ADDRESS, whose nodes have ark_jax and see the "
        "folder of `path`.",
        choices=ENGINES,
        affects_output=False,
    )


@dataclasses.dataclass(frozen=True)
class DataSection(InputSection):
    """Documents, questions, the split, the chunks and the candidates."""

    candidates: int = field(
        40,
        "Chunks of the whole corpus that are candidates of a training question: the best by "
        "vectors and by BM25.",
        unit="chunks",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class LocalModelSection:
    """A model that runs on the devices of this process."""

    path: str = field(
        "",
        "Model folder, or Hub name: owner/model or owner/model@REVISION; empty: a small model on "
        "a CPU, a larger one on an accelerator.",
        content="model",
    )
    attention: str = field(
        "auto",
        "Attention kernel; cudnn needs an NVIDIA GPU and a 16-bit type, splash a TPU, tokamax its "
        "package. auto: cudnn or splash in 16 bits where shapes allow it, else xla.",
        choices=KERNELS,
        affects_output=False,
    )
    batch_tokens: int = field(
        0,
        "Batch size on each device; 0: what suits the device.",
        unit="tokens",
        minimum=0,
        affects_output=False,
    )


@dataclasses.dataclass(frozen=True)
class RetrieverPrompts:
    """What is put in front of texts, where the retriever's folder does not say it (E5)."""

    query: str = field("", 'In front of a question, as in "query: "; empty: as the folder says.')
    document: str = field("", 'In front of a passage, as in "passage: "; empty: likewise.')


@dataclasses.dataclass(frozen=True)
class RetrieverSection(LocalModelSection):
    """The retriever before training."""

    prompts: RetrieverPrompts = RetrieverPrompts()

    compute: str = field(
        "auto", f"Floating-point type of activations. {BY_DEVICE}", choices=FLOAT_TYPES
    )
    export_dtype: str = field(
        "",
        "Type of the exported weights; empty: that of the base's files. Stages pass float32 on.",
        choices=("", "float32", "bfloat16", "float16"),
    )


@dataclasses.dataclass(frozen=True)
class GeneratorSection(LocalModelSection):
    """The local language model that scores chunks and reads answers."""

    dtype: str = field(
        "auto", f"Floating-point type of weights and activations. {BY_DEVICE}", choices=FLOAT_TYPES
    )


@dataclasses.dataclass(frozen=True)
class EndpointSection:
    """A language model that replies to prompts, here or behind an address."""

    backend: str = field(
        "openai",
        "Source of replies. openai: any compatible endpoint; local: a model on these devices; "
        "replay: a recording.",
        choices=MODEL_BACKENDS,
    )
    model: str = field("", "Model name that the endpoint knows.")
    path: str = field(
        "", "Folder or Hub name of a local model; empty: `generator.path`.", content="model"
    )
    base_url: str = field(
        "", "Address of an OpenAI-compatible endpoint; empty: the client's own default."
    )
    key_env: str = field(
        "OPENAI_API_KEY", "Environment variable that holds the API key.", affects_output=False
    )
    temperature: float = field(0.0, "Sampling temperature; 0: greedy.", minimum=0)
    top_p: float = field(
        1.0, "Tokens are sampled among the likeliest of this probability.", above=0, maximum=1
    )
    price: tuple[float, ...] = field(
        (),
        "Price of input and of output tokens; empty: from a built-in table of models.",
        unit="USD per million tokens",
        minimum=0,
        lengths=(0, 2),
        affects_output=False,
    )


@dataclasses.dataclass(frozen=True)
class LLMSection(EndpointSection):
    """The language model that extracts the graph, writes questions and passages; its limits."""

    backend: str = field(
        "none",
        "Source of replies. openai: any compatible endpoint; local: a model on these devices; "
        "replay: a recording; none: rules without a model.",
        choices=BACKENDS,
    )
    model: str = field("gemini-2.5-flash", "Model name that the endpoint knows.")
    max_tokens: int = field(4096, "Longest reply.", unit="tokens", minimum=1)
    concurrency: int = field(
        16, "Requests in flight at once.", unit="requests", minimum=1, affects_output=False
    )
    requests_per_minute: int = field(
        0,
        "The endpoint's limit on requests; 0: no limit.",
        unit="requests per minute",
        minimum=0,
        affects_output=False,
    )
    tokens_per_minute: int = field(
        0,
        "The endpoint's limit on tokens; 0: no limit.",
        unit="tokens per minute",
        minimum=0,
        affects_output=False,
    )
    timeout: float = field(
        120.0, "Time that a reply may take.", unit="seconds", above=0, affects_output=False
    )
    retries: int = field(
        8,
        "Repeats of a request after a temporary failure.",
        unit="requests",
        minimum=0,
        affects_output=False,
    )
    reasks: int = field(
        2, "Repeats of a prompt after a reply in the wrong form.", unit="requests", minimum=0
    )
    max_cost: float = field(
        0.0,
        "Spending limit: a run with a higher estimate does not start, and a run that reaches it "
        "stops; 0: no limit.",
        unit="USD",
        minimum=0,
        affects_output=False,
    )
    replies: str = field(
        "", "Recorded replies.jsonl that the replay backend reads.", content="file"
    )


@dataclasses.dataclass(frozen=True)
class QuestionsSection:
    """Questions and answers that the language model of `llm` writes from passages, and filters."""

    source: str = field(
        "given",
        "Where training questions come from: the input, passages by writing, or both. If they are "
        "only written, questions of the input serve as the test.",
        choices=("given", "written", "both"),
    )
    passages: int = field(
        0,
        "Passages to write from, drawn evenly over the documents by a hash; 0: all.",
        unit="chunks",
        minimum=0,
    )
    per_passage: int = field(
        3, "Questions to ask the model for from each passage.", unit="questions", minimum=1
    )
    joined: float = field(
        0.2,
        "Share of requests that show two passages, which an entity's community in the graph joins.",
        unit="fraction of requests",
        minimum=0,
        maximum=0.9,
    )
    margin: float = field(
        0.1,
        "Smallest rise of the answer's mean log-likelihood through the passage; questions below it "
        "are dropped; -100: none is, and no language model scores them.",
        unit="nats per token",
        minimum=-100,
    )
    round_trip: int = field(
        10,
        "Drop questions whose passage is not among as many first chunks by base retriever and BM25 "
        "fused; 0: none.",
        unit="chunks",
        minimum=0,
    )
    replies: str = field(
        "",
        "Recorded replies.jsonl with written questions, instead of asking the language model.",
        content="file",
    )


@dataclasses.dataclass(frozen=True)
class PromptsSection:
    """Prompt texts: a file, or a packaged variant such as `ark`; empty: the packaged text."""

    extract: str = field("", "Extracts entities and relations from a chunk.", content="prompt")
    glean: str = field(
        "", "Asks for entities and relations that an extraction missed.", content="prompt"
    )
    questions: str = field("", "Writes questions and answers from passages.", content="prompt")
    rewrite: str = field(
        "", "Rewrites a question from the entities of a community.", content="prompt"
    )
    seeds: str = field("", "Names the entities of an answer.", content="prompt")
    forward: str = field("", "Scores the answer given question and chunk.", content="prompt")
    backward: str = field("", "Scores the question given answer and chunk.", content="prompt")
    read: str = field("", "Answers a question from retrieved passages.", content="prompt")
    judge: str = field("", "Compares the answers of two systems.", content="prompt")
    hyde: str = field(
        "", "Writes a passage that answers a question, for `search.expand`.", content="prompt"
    )


@dataclasses.dataclass(frozen=True)
class SearchSection:
    """How held-out questions are searched for, beside their own words."""

    expand: str = field(
        "none",
        "A further row of the table. hyde: the base retriever searches for the mean of a question "
        "and of a passage that the model of `llm` writes to answer it (HyDE, Gao et al. 2022).",
        choices=("none", "hyde"),
    )


@dataclasses.dataclass(frozen=True)
class EvaluateSection:
    """What is measured on held-out questions, and which systems are compared."""

    scope: str = searched_scope()
    gold: str = relevant_chunks()
    same_id: str = field(
        "auto",
        "The document that has the id of a question. auto: results leave it out if its text is the "
        "question, as in ArguAna and Quora; leave_out: always, as BEIR does; keep: never.",
        choices=("auto", "leave_out", "keep"),
    )
    metrics: tuple[str, ...] = field(
        ("recall@5", "recall@10", "ndcg@10", "mrr"),
        "Retrieval metrics: recall, ndcg, mrr, map, hit, precision, each with or without @k.",
    )
    answers: tuple[str, ...] = field(
        ("answer_f1",),
        "Answer metrics: answer_f1, exact_match, rouge_l; answer_likelihood: the mean log p of a "
        "token of the likeliest reference answer as the reply of a local reader, in nats. Empty: "
        "answers are written for report and judge, and not measured; read=0 writes none.",
    )
    baselines: tuple[str, ...] = field(
        ("bm25",),
        "Untrained systems besides base: bm25, or full, where the reader gets whole documents.",
    )
    retrievers: tuple[str, ...] = field(
        (), "Further retrievers to compare with: model folders or Hub names.", content="models"
    )
    hybrids: tuple[str, ...] = field(
        ("bm25+tuned",),
        'Systems to fuse by reciprocal ranks, as in "bm25+base"; "tuned" is the last tuned one, '
        "which `fusion` may fuse otherwise.",
    )
    fusion: str = field(
        "ranks",
        "How BM25 and the last tuned retriever are fused, in the table and by the export. ranks: "
        "by reciprocal ranks; chosen: so, or by a weighted sum of scores, whichever has the higher "
        "nDCG@10 on training questions: those that the retriever has not learned from, if they are "
        "at least 50, and otherwise all.",
        choices=("ranks", "chosen"),
    )
    rerank: str = field(
        "",
        "A model that reranks what the last tuned system retrieves, as a row of its own: a pair "
        "scorer, a sequence classifier with one label, or a decoder of Qwen3-Reranker's kind. "
        "Empty: none.",
        content="model",
    )
    read: int = field(
        -1,
        "Held-out questions to answer, drawn by a hash of their ids; -1: all, 0: none.",
        unit="questions",
        minimum=-1,
    )
    passages: int = field(5, "Retrieved chunks that the reader gets.", unit="chunks", minimum=1)
    max_new_tokens: int = longest_answer(32)


@dataclasses.dataclass(frozen=True)
class ReaderSection(EndpointSection):
    """The model that answers from retrieved passages. Limits of requests are those of `llm`."""

    backend: str = field(
        "local",
        "Source of answers. openai: any compatible endpoint; local: a model on these devices; "
        "replay: a recording; or a function of one's own, see ark_jax/recipes/ark/README.md.",
        choices=MODEL_BACKENDS,
        importable=True,
    )
    model: str = field("gpt-4.1-mini", "Model name that the endpoint knows.")


@dataclasses.dataclass(frozen=True)
class JudgeSection(EndpointSection):
    """The model that compares two systems' answers. Limits of requests are those of `llm`."""

    repeats: int = field(
        0,
        "Verdicts for each pair of answers, in either order; 0: no judge.",
        unit="verdicts",
        minimum=0,
    )
    against: tuple[str, ...] = field(("base",), "Systems to compare the last stage with.")
    model: str = field("gpt-4.1", "Model name that the endpoint knows.")
    temperature: float = field(
        0.7, "Sampling temperature; at 0 repeated verdicts are all the same.", minimum=0
    )
    max_tokens: int = field(512, "Longest verdict.", unit="tokens", minimum=1)


@dataclasses.dataclass(frozen=True)
class Core:
    """What the config of every recipe holds."""

    recipe: str = field("", "The method: a recipe of ark_jax, or a module that defines RECIPE.")
    # With a stage's number added it must fit 32 bits.
    seed: int = field(
        0,
        "Seed of every random draw: split, batches, adapters, sampling, tests.",
        minimum=0,
        maximum=2_000_000_000,
    )
    mesh: tuple[int, int, int] = field(
        (1, -1, 1),
        "Devices along data, fsdp and tensor, each at least 1; one may be -1, which takes the "
        "devices that are left.",
        unit="devices",
        minimum=-1,
        affects_output=False,
    )
    log: LogSection = LogSection()
    retriever: RetrieverSection = RetrieverSection()
    generator: GeneratorSection = GeneratorSection()


@dataclasses.dataclass(frozen=True)
class Basics(Core):
    """What the config of a recipe holds that asks language models for texts."""

    llm: LLMSection = LLMSection()
    reader: ReaderSection = ReaderSection()


@dataclasses.dataclass(frozen=True)
class Common(Basics):
    """What the config of every recipe over documents holds."""

    data: DataSection = DataSection()
    questions: QuestionsSection = QuestionsSection()
    prompts: PromptsSection = PromptsSection()
    search: SearchSection = SearchSection()
    evaluate: EvaluateSection = EvaluateSection()
    judge: JudgeSection = JudgeSection()


@dataclasses.dataclass(frozen=True)
class GraphInput:
    """The graph, and how its entities and relations become texts."""

    path: str = field(
        "",
        "The graph: a file, a pattern such as `kb_*.tsv`, or a folder; see `ark-jax check`.",
        content="files",
    )
    names: str = field(
        "", "File with a line per node: id, name, aliases joined by `|`; tabs.", content="files"
    )
    relation_names: str = field("", "The same for relations.", content="files")
    relations: str = field(
        "last",
        "Text of a relation without a name: the last part of its id, or the whole id.",
        choices=("last", "whole"),
    )
    encoding: str = field(
        "",
        "Encoding of all files but N-Triples and Parquet, such as cp1252; empty: detected in each.",
    )
    tolerate: float = field(
        0.0,
        "Share of rows that may be bad: they are listed and left out, and the rest is read.",
        unit="fraction of rows",
        minimum=0,
        maximum=1,
    )
