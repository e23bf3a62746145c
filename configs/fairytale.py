"""Study 2, long documents: 60 stories of FairytaleQA to train on, MiniLM, SmolLM2.

    ark-jax run --config=configs/fairytale.py --workdir=DIR
    ark-jax sweep --config=configs/fairytale.py:sweep=study --workdir=DIR
    ark-jax sweep --config=configs/fairytale.py:sweep=questions --workdir=DIR
    ark-jax sweep --config=configs/fairytale.py:corpus,sweep=negatives --workdir=DIR

The data are in $ARK_DATA/fairytaleqa, or else in ../shared/data/fairytaleqa. The 23 stories of
`val` are held out with all their 1,025 questions. Every question searches the chunks of all 23.
Of each training story six questions are scored, the first by a hash of their ids, so that scoring
takes a quarter of an hour.

Words after the colon:

    paper, official   a preset
    gold              positives are the chunks of marked sections, negatives the nearest other ones
    local             SmolLM2 extracts the graph and rewrites; otherwise statistics and templates do
    chunks=512        chunks of 512 tokens instead of 128
    sentences         chunks end where sentences end
    titles            passages have the title of their story
    tokens            each token of a text has a vector (late interaction)
    corpus            candidates and negatives come from all 60 stories, not a question's own
    recorded          trains on questions that a large language model wrote from 126 passages of
                      the 60 stories (recordings/README.md), instead of those of the data
    both              trains on all recorded questions, unfiltered, and on those of the data
    rules             trains on questions that leave a name or a rare word out of a sentence, one of
                      each passage of the 60 stories
    answers           a reader taught on the training questions answers all of `val`, each from the
                      first passage; training questions choose how BM25 is fused
    passages          `gold` without what alignment scores decide there (negatives that are spared),
                      so that nothing is scored
    tune              leaves out `val`, holds out 15 of the 60 stories and trains on 20 others;
                      the settings were chosen on this split

nDCG@10 on the held-out stories:

    seed                     0     1     2
    MiniLM                .469
    stage 1               .541  .549  .534
    stage 2               .573  .564  .567
    stage 3               .581  .571  .567
    gold                  .591  .582  .586
    BM25                  .661
    without F             .563  .562  .562
    without B             .566  .558  .551
    one stage             .571  .577  .575
    two positives         .545
    gold, 216 questions   .559    those that stage 3 is trained on
    paper                 .456    .512 with all chunks scored
    official              .452

With a vector for each token:

    seed                     0     1     2
    MiniLM                .674
    stage 1               .690  .700  .688
    stage 2               .707  .703  .702
    stage 3               .700  .703  .701
    gold                  .718  .715  .716
    BM25 + stage 3        .717  .717  .713

With candidates and negatives from all 60 stories:

    seed                     0     1     2
    graph                 .559  .555  .553
    question              .559  .557  .552
    bm25                  .546  .537  .532
    random                .552  .540  .536
    batch                 .553  .558  .546

With chunks of sentences (untouched retrievers): MiniLM .507, BM25 .655; recall@10 .718 and .796
instead of .677 and .822. On `tune` MiniLM has .655 instead of .599, stage 3 .665.

With chunks of 512 tokens: MiniLM .492, stage 3 .553, gold .559. Answer F1 of 50 questions: MiniLM
.092, stages .089, .082, .079. nDCG@10 on `tune`, with ten questions per story, all answers and six
candidates: MiniLM .570, stages .615, .629, .618, gold .612.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from ark_jax import config
from ark_jax.data import readers
from ark_jax.demo.models import demo_models

DATA = Path(os.environ.get("ARK_DATA", "../shared/data")) / "fairytaleqa"
if not DATA.is_dir():
    raise ValueError(f"{DATA} is not there: name the folder that holds it in $ARK_DATA")

TRAINING_STORIES = 60
SCORED_QUESTIONS = 6  # of each training story
RECORDING = Path(__file__).parent / "recordings" / "fairytale_questions.jsonl"
RECORDED_PASSAGES = 126  # of the training stories
TUNING_HELD_OUT, TUNING_TRAINING = 15, 20  # stories of the variant `tune`


def by_hash(ids: Iterable[str]) -> tuple[str, ...]:
    """Ids in an order that is random but always the same."""
    return tuple(sorted(ids, key=lambda id: hashlib.sha256(id.encode()).digest()))


CORPUS = readers.load(DATA)
VAL_FILES = (DATA / "section-stories" / "val").glob("*.csv")
HELD_OUT = tuple(sorted(path.name.removesuffix("-story.csv") for path in VAL_FILES))
STORIES = by_hash({document.id for document in CORPUS.documents} - set(HELD_OUT))


def unscored_questions() -> tuple[str, ...]:
    """Ids of the training stories' questions beyond the first six of each story."""
    ids = []
    for story in STORIES[:TRAINING_STORIES]:
        questions = by_hash(q.id for q in CORPUS.questions if q.documents == (story,))
        ids += questions[SCORED_QUESTIONS:]
    return tuple(ids)


UNSCORED = unscored_questions()


def study():
    """Data, models and metrics, with the settings chosen on `tune`."""
    c, models = config.ark(), demo_models()
    c.retriever.path, c.generator.path = models["retriever"], models["generator"]
    c.data.path = str(DATA)
    c.data.chunking, c.data.chunk_tokens, c.data.chunk_overlap = "tokens", 128, 12
    c.data.titles = False
    c.data.held_out_documents = HELD_OUT
    c.data.ignored_documents = STORIES[TRAINING_STORIES:]
    c.data.ignored_questions = UNSCORED
    c.evaluate.scope, c.evaluate.baselines = "held_out", ("bm25",)
    c.evaluate.read, c.evaluate.max_new_tokens = 50, 16
    c.prompts.read = "story"
    c.score.references, c.score.candidates, c.score.positives = 1, 8, 1
    c.mine.by, c.mine.negatives, c.mine.spare = "rewritten", 3, 2
    c.train.stages = (1, 2, 3)
    c.train.learning_rates, c.train.epochs = (3e-5, 3e-5, 2e-5), (1, 1, 1)
    return c


def tune(c) -> None:
    """Holds out training stories instead of `val`."""
    c.data.held_out_documents = STORIES[:TUNING_HELD_OUT]
    c.data.ignored_documents = (*HELD_OUT, *STORIES[TUNING_HELD_OUT + TUNING_TRAINING :])


def use_sentences(c) -> None:
    c.data.chunking = "sentences"


def use_titles(c) -> None:
    c.data.titles = True


def use_tokens(c) -> None:
    c.retriever.vectors = "tokens"


def use_corpus(c) -> None:
    c.data.pool = "corpus"


def use_long_chunks(c) -> None:
    c.data.chunk_tokens = 512


BASE = study()
SEEDS = (0, 1, 2)
PASSAGES = config.study(BASE)["gold"] | {"mine.spare": 0}
WRITTEN = {"questions.source": "written", "questions.joined": 0.0}
RECORDED = WRITTEN | {"questions.passages": RECORDED_PASSAGES, "questions.replies": str(RECORDING)}
RULES = WRITTEN | {"questions.per_passage": 1}
# By models; a pair's words are still checked.
UNFILTERED = {"questions.margin": -100.0, "questions.round_trip": 0}
BOTH = RECORDED | UNFILTERED | {"questions.source": "both"}
ANSWERS = {
    "reader.warm": True,
    "evaluate.read": -1,
    "evaluate.passages": 1,
    "evaluate.fusion": "chosen",
    "evaluate.answers": ("answer_f1", "exact_match", "answer_likelihood"),
}


def questions() -> dict[str, dict]:
    """Runs that train on written questions, on those of the data, and on both."""
    arms = {
        "given": PASSAGES,
        "recorded": RECORDED | PASSAGES,
        "recorded-unfiltered": RECORDED | UNFILTERED | PASSAGES,
        "rules": RULES | PASSAGES,
        "rules-unfiltered": RULES | UNFILTERED | PASSAGES,
        "recorded-scored": RECORDED,
        "both-unfiltered": BOTH,
        "rules-scored": RULES,
    }
    return with_seeds(arms)


def negatives() -> dict[str, dict]:
    """Runs whose negatives come from the graph, the question, BM25, chance, or the batch alone."""
    arms = {
        "graph": {},
        "question": {"mine.by": "question"},
        "bm25": {"mine.by": "bm25"},
        "random": {"mine.by": "random"},
        "batch": {"train.stages": (1,), "train.epochs": (sum(BASE.train.epochs), 0, 0)},
    }
    return with_seeds(arms)


def with_seeds(arms: dict[str, dict]) -> dict[str, dict]:
    """Each arm with each seed: run -> changed fields."""
    name = lambda arm, seed: f"{arm}-seed{seed}" if seed else arm
    return {name(arm, seed): arms[arm] | {"seed": seed} for arm in arms for seed in SEEDS}


VARIANTS = config.VARIANTS | {
    "tune": tune,
    "chunks=512": use_long_chunks,
    "sentences": use_sentences,
    "titles": use_titles,
    "corpus": use_corpus,
    "tokens": use_tokens,
    "recorded": lambda c: c.update_from_flattened_dict(RECORDED),
    "both": lambda c: c.update_from_flattened_dict(BOTH),
    "answers": lambda c: c.update_from_flattened_dict(ANSWERS),
    "rules": lambda c: c.update_from_flattened_dict(RULES),
    "passages": lambda c: c.update_from_flattened_dict(PASSAGES),
}
SWEEPS = {
    "study": config.study(BASE) | {"M2": {"score.positives": 2}},
    "ablations": config.ablations(BASE),
    "switches": config.switches(BASE),
    "questions": questions(),
    "negatives": negatives(),
}


def get_config(words: str = ""):
    """`words` after the colon, separated by commas: variants, and the sweep that runs."""
    return config.vary(study(), config.named(words), VARIANTS)
