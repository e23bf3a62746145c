"""The verbs of the command line: what each does, its flags, an example, and the function."""

import dataclasses

CONFIG_FLAGS = """\
  --config=CONFIG      ark, gpr, star, bar_rag, demo or a file; ark:paper takes a preset of it;
                       default: the config of the last run in DIR
  --config.FIELD=VALUE any field of it; `ark-jax config` lists them
  --workdir=DIR        where results go
"""
YES_FLAG = """\
  --yes                replaces finished stages of other settings without asking
"""


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb.

    Attributes:
        usage: what follows the verb.
        summary: a line for the list of verbs.
        details: flags and remarks.
        example: one command.
        run: "module:function" of `(verb, flags) -> exit status`.
        prints: whether it only shows something, so that it may end when nobody reads on.
    """

    usage: str
    summary: str
    details: str
    example: str
    run: str
    prints: bool = True


_RUNS = "ark_jax.cli.runs:pipeline"
_SEARCH_FLAGS = """\
  --workdir=DIR        of a run, in place of INDEX: DIR/index
  --k=N                how many passages: {k}
  --by=RANKING         hybrid (default), dense: the model's vectors, or bm25: words
  --model=FOLDER       where the model lies now, if it was moved
  --expand=hyde        searches for a passage, too, that the language model writes as an answer
  --json               one line of JSON
  --reader=MODEL       folder or hub name of a language model; the default is small and guesses
  --endpoint=URL       an OpenAI-compatible address, where --reader is the model's name there and
                       the key is in $OPENAI_API_KEY; needs .[llm]
"""
VERBS = {
    "demo": Verb(
        "[--documents-only] [--recipe=ark|gpr|star|bar_rag] [--workdir=DIR]",
        "the whole pipeline on a packaged corpus with small real models",
        """\
  --documents-only     from documents alone: training questions are written
  --recipe=gpr         a retriever of triples, trained on a packaged graph alone
  --recipe=star        relation paths of that graph, trained on packaged questions
  --recipe=bar_rag     a reader that learns from its own answers to noisy passages
  --workdir=DIR        default: ./ark_demo
"""
        + YES_FLAG
        + """\
The models are kept in $ARK_CACHE, else in the XDG cache.
""",
        "ark-jax demo",
        _RUNS,
        prints=False,
    ),
    "check": Verb(
        "FILE [TEST]",
        "what is understood of an input, and every bad row",
        """\
  TEST                 a test set for config.data.test
  --questions=FILE     questions that lie elsewhere than the documents, or the graph
  --names=FILE         of a graph of triples: names of its nodes; --relation-names=FILE likewise
""",
        "ark-jax check my_documents/",
        "ark_jax.cli.check:check",
    ),
    "init": Verb(
        "DATA [--questions=FILE] [--out=config.py]",
        "a config file for documents, or for a graph, that it looks at",
        """\
  DATA                 what `ark-jax check` reads
  --out=FILE           the config file, which must not exist; default: config.py
  --questions=FILE     questions that lie elsewhere than the documents, or the graph
  --names=FILE         of a graph of triples: names of its nodes; --relation-names=FILE likewise
""",
        "ark-jax init my_documents/ --questions=questions.csv",
        "ark_jax.cli.init:init",
        prints=False,
    ),
    "config": Verb(
        "[PREFIX] [--config=CONFIG] [--workdir=DIR]",
        "every field of a config: value, default, unit and meaning; * marks what was changed",
        """\
  PREFIX               how the names of the fields begin, as train or llm.max
  --config=CONFIG      ark (default), gpr, star, bar_rag, demo or a file; ark:paper takes a preset
  --workdir=DIR        the config of the last run in DIR
""",
        "ark-jax config train --config=ark:paper",
        "ark_jax.cli.fields:config",
    ),
    "doctor": Verb(
        "[--config=CONFIG] [--workdir=DIR]",
        "whether this machine and all that a config names are fit for a run",
        CONFIG_FLAGS + "It spends nothing.\n",
        "ark-jax doctor --config=ark --config.data.path=FILE --workdir=DIR",
        "ark_jax.cli.runs:doctor",
    ),
    "plan": Verb(
        "--config=CONFIG [--workdir=DIR]",
        "what a run would ask, cost, take and fill",
        CONFIG_FLAGS + "It writes nothing to DIR and asks no endpoint.\n",
        "ark-jax plan --config=ark --config.data.path=FILE",
        _RUNS,
    ),
    "run": Verb(
        "--config=CONFIG --workdir=DIR",
        "tune a retriever on your documents and questions; run it again to resume",
        CONFIG_FLAGS
        + YES_FLAG
        + """\
  --max-cost=USD       short for --config.llm.max_cost=USD
  --store=DIR          where the runs of a sweep share finished stages
  --verify             reads all files of finished stages, and makes damaged stages again
""",
        "ark-jax run --config=ark --config.data.path=FILE --workdir=DIR",
        _RUNS,
        prints=False,
    ),
    "status": Verb(
        "--workdir=DIR [--config=CONFIG]",
        "which stages are done, stale (and why) or missing",
        CONFIG_FLAGS + "  --verify             reads all files: was one damaged since?\n",
        "ark-jax status --workdir=DIR",
        _RUNS,
    ),
    "export": Verb(
        "--workdir=DIR [--format=NAME] [--config=CONFIG]",
        "what the training stages learn from, as JSONL for another trainer",
        CONFIG_FLAGS
        + """\
  --format=NAME        sentence-transformers, flagembedding or ms-swift
The files lie in DIR/export-NAME. Without --format it is the stage export.
""",
        "ark-jax export --workdir=DIR --format=flagembedding",
        _RUNS,
        prints=False,
    ),
    "sweep": Verb(
        "--config=CONFIG:sweep=NAME --workdir=DIR",
        "one run for each set of settings, on shared stages, and one table",
        """\
  --config=CONFIG      names the sweep after the colon, as ark:sweep=temperature
  --config.FIELD=VALUE a field of all runs
  --workdir=DIR        where runs and results go; run it again to resume
  --slots=N            runs at once, each with its share of CUDA_VISIBLE_DEVICES: 1
  --metric=NAME        what the table is sorted by; default: the recipe's own (ARK: ndcg@10)
  --only=NAME,...      starts these runs only
  --slurm              prints an array job for sbatch instead; experimental, never run
"""
        + YES_FLAG,
        "ark-jax sweep --config=ark:sweep=temperature --config.data.path=FILE --workdir=DIR",
        "ark_jax.cli.sweep:sweep",
        prints=False,
    ),
    "completion": Verb(
        "bash|zsh|fish",
        "a script that lets a shell complete verbs, flags and fields",
        "The script says in its first line where it belongs.\n",
        "ark-jax completion bash",
        "ark_jax.cli.completion:completion",
    ),
    "index": Verb(
        "MODEL CORPUS --out=DIR",
        "make documents searchable by a retriever and by words",
        """\
  MODEL                folder or hub name of a retriever, such as DIR/export of a run
  CORPUS               what `ark-jax check` reads; questions beside the documents are left alone
  --out=DIR            the folder of the index
  --dtype=float16      of vectors: half the space, rounded; default float32
  --chunk-tokens=N     length of a passage; default: what the model reads, at most 512
  --to=DATABASE        also writes the vectors to faiss, lancedb or qdrant
  --url=PLACE          of the database: a file for faiss, else a folder or an address
  --workdir=DIR        of a run, in place of MODEL, CORPUS and --out: what it tuned, its documents,
                       DIR/index
Run it again when documents have changed: passages that are there are not embedded again. After a
kill it goes on.
""",
        "ark-jax index ark_demo/export my_documents/ --out=my_index",
        "ark_jax.cli.search:index",
        prints=False,
    ),
    "search": Verb(
        'INDEX "QUESTION"',
        "the passages of an index that fit a question",
        _SEARCH_FLAGS.format(k=10)
        + """\
  --compare=MODEL      the passages of another model beside them, such as the one before tuning;
                       its vectors are kept in the index
  --from=DATABASE      lancedb or qdrant searches the vectors that `ark-jax index --to` wrote
  --url=PLACE          of the database
""",
        'ark-jax search my_index "Who led the first committee?" --k=3',
        "ark_jax.cli.search:search",
    ),
    "ask": Verb(
        'INDEX "QUESTION"',
        "an answer, and the passages that it rests on",
        _SEARCH_FLAGS.format(k=5),
        'ark-jax ask my_index "Who led the first committee?" --reader=Qwen/Qwen3-1.7B',
        "ark_jax.cli.search:ask",
    ),
    "serve": Verb(
        "INDEX",
        "an index and its models behind HTTP, with a page to search it",
        """\
  --workdir=DIR        of a run, in place of INDEX: DIR/index
  --port=N             default 8000; 0: any that is free
  --host=ADDRESS       default 127.0.0.1, which only this machine reaches; for any other, requests
                       must bear the token in $ARK_SERVE_TOKEN
  --model=FOLDER       where the model lies now, if it was moved
  --compare=MODEL      another model, such as the one before tuning, for the page and /search
  --reranker=FOLDER    a pair scorer, for /rerank
  --reader=MODEL       folder or hub name of a language model, for /ask and the page
  --endpoint=URL       an OpenAI-compatible address, as in `ark-jax ask`
http://localhost:8000 is the page. Programs use /v1/embeddings as OpenAI's, /embed and /rerank as
text-embeddings-inference's, /search and /ask; ark_jax/README.md describes them. Needs .[serve].
""",
        "ark-jax serve my_index --port=8000",
        "ark_jax.cli.serve:serve",
        prints=False,
    ),
    "evaluate": Verb(
        "--models=A,B,bm25,A+bm25 --data=TEST",
        "a table of retrievers, BM25 and both fused on a test set, without a run",
        """\
  --models=NAMES       retrievers (folders, hub names, an index), bm25, and MODEL+bm25 as `search`
                       fuses them; the first one decides how documents are cut; MODEL+hyde has the
                       language model of --reader, or of --endpoint, write passages to search for
  --data=TEST          what `ark-jax check` reads: questions, and documents unless --corpus has them
  --corpus=FILE        documents to search
  --reference=NAME     the system that the others are tested against: the first
  --out=DIR            keeps the index, metrics.json, a row per question, and report.html
  --metrics=NAMES      default recall@5,recall@10,ndcg@10,mrr; also hit, precision and map
  --scope=documents    each question searches its own documents; asked: those of all questions;
                       corpus: everything, as `search`; auto (default) decides as a run does
  --chunk-tokens=N     length of a passage; 100000 keeps documents whole, as BEIR's figures do
  --json               one line of JSON
Where a document is one passage, means are trec_eval's. Intervals and tests draw documents, since
questions about one are not independent. Without --out the vectors stay in the cache. With --config
or --workdir it is the stage of a run.
""",
        "ark-jax evaluate --models=ark_demo/export,bm25,ark_demo/export+bm25 --data=my_test/",
        "ark_jax.cli.evaluate:evaluate",
    ),
    "onnx": Verb(
        "MODEL --out=DIR",
        "a retriever as ONNX, for onnxruntime, fastembed and browsers",
        """\
  MODEL                folder or hub name of a retriever: BERT, RoBERTa, XLM-R or DistilBERT
  --out=DIR            a folder like the export of a run, with onnx/model.onnx in it
""",
        "ark-jax onnx ark_demo/export --out=my_model",
        "ark_jax.cli.onnx:onnx",
        prints=False,
    ),
    "retrieve": Verb(
        "--model=DIR --graph=FILE --questions=FILE",
        "what of a graph fits each question of a file, as JSONL",
        """\
  --model=DIR          the export of a run, or any model of its kind. A retriever gives triples, a
                       pair scorer relation paths from the question's topics, or from the names in
                       its text
  --graph=FILE         triples; --names=FILE and --relation-names=FILE name nodes and relations
  --k=N                how many: 20 triples or 5 paths
  --hops=N             longest path, or how far triples go along the graph: 3; 1: cosines alone
  --index=DIR          where the vectors of triples are kept
  --beam=N             paths that are kept at each hop: 5
  --inverse=yes|no     whether paths also go from tail to head; an export knows
  --relations=last|whole  how a relation is written; an export knows
""",
        "ark-jax retrieve --model=DIR/export --graph=FILE --questions=FILE > out.jsonl",
        "ark_jax.cli.retrieve:retrieve",
    ),
}
STAGE = Verb(
    "--workdir=DIR [--config=CONFIG]",
    "one stage of a run; `ark-jax status` lists the stages of a config",
    CONFIG_FLAGS + YES_FLAG,
    "ark-jax STAGE --workdir=DIR",
    _RUNS,
    prints=False,
)


def verb_of(name: str) -> Verb:
    """A verb by its name; any other name may be that of a stage."""
    return VERBS.get(name, STAGE)
