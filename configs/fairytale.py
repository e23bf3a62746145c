"""Study 2: long documents. Sixty stories of FairytaleQA to train on, all of its `val` held out, MiniLM, SmolLM2.

    ark-jax run --config=configs/fairytale.py --workdir=DIR
    python launch/sweep.py --config=configs/fairytale.py:sweep=study --workdir=DIR

Six questions of each training story, the first by a hash of their ids, are scored, so that it is done in a quarter of an hour;
all 1,025 of the 23 held-out stories are asked, over the chunks of all these stories. What follows a colon is a preset (`paper`,
`official`), `gold` (positives are the chunks of the marked sections, negatives the nearest other ones: the yardstick), `local`
(SmolLM2 extracts the graph and rewrites; else statistics and templates do), `chunks=512`, or `tune` (`val` is set aside and 15 of
the sixty stories are held out in its stead, 20 others trained on: settings are chosen there). The data lie in
$ARK_DATA/fairytaleqa, else in ../shared/data.

nDCG@10 on the held-out stories: MiniLM .469, stages .541, .573, .581 (with two more seeds .549, .564, .571 and .534, .567, .567),
`gold` .591 (.582, .586), BM25 .661; over chunks of 512 tokens MiniLM .492, stage 3 .553, `gold` .559. `gold` on the 216 questions
that ours keeps .559. Without F .563 (.562, .562), without B .566 (.558, .551), one stage .571 (.577, .575), two
positives .545. `paper` .456, with all chunks scored .512, `official` .452. Answer F1 of 50 questions: MiniLM .092, stages .089,
.082, .079. On `tune`, with ten questions a story, all answers and six candidates: MiniLM .570, stages .615, .629, .618, `gold`
.612.
"""

import hashlib
import os
from pathlib import Path

from ark_jax import config
from ark_jax.data import readers
from ark_jax.models.wheels import demo_models

DATA = Path(os.environ.get("ARK_DATA", "../shared/data")) / "fairytaleqa"
if not DATA.is_dir():
    raise ValueError(f"{DATA} is not there: name the folder that holds it in $ARK_DATA")
STORIES, TUNED_ON, EACH = 60, 15, 6
by_hash = lambda ids: tuple(sorted(ids, key=lambda id: hashlib.sha256(id.encode()).digest()))
CORPUS = readers.load(DATA)
HELD_OUT = tuple(sorted(path.name.removesuffix("-story.csv") for path in (DATA / "section-stories" / "val").glob("*.csv")))
TRAINING = by_hash({document.id for document in CORPUS.documents} - set(HELD_OUT))
# Beyond the first EACH of a training story.
SPARED = tuple(id for story in TRAINING[:STORIES]
               for id in by_hash(q.id for q in CORPUS.questions if q.documents == (story,))[EACH:])


def study():
    """Data, models and measures, with the settings chosen by `tune`."""
    models, c = demo_models(), config.ark()
    c.retriever.path, c.generator.path = models["retriever"], models["generator"]
    c.data.path, c.data.chunk_tokens, c.data.chunk_overlap = str(DATA), 128, 12
    c.data.held_out_documents, c.data.ignored_documents, c.data.ignored_questions = HELD_OUT, TRAINING[STORIES:], SPARED
    c.evaluate.scope, c.evaluate.baselines = "corpus", ("bm25",)
    c.evaluate.read, c.evaluate.max_new_tokens = 50, 16
    c.prompts.read = "story"
    c.score.references, c.score.candidates = 1, 8
    c.score.positives = 1
    c.mine.negatives, c.mine.spare = 3, 2
    c.train.learning_rates, c.train.epochs = (3e-5, 3e-5, 2e-5), (1, 1, 1)
    return c


def tune(c) -> None:
    c.data.ignored_documents = (*HELD_OUT, *TRAINING[TUNED_ON + 20 :])
    c.data.held_out_documents = TRAINING[:TUNED_ON]


BASE = study()
SWEEPS = {"study": config.study(BASE) | {"M2": {"score.positives": 2}}, "ablations": config.ablations(BASE),
          "switches": config.switches(BASE)}


def get_config(words: str = ""):
    """`words` are variants and what launch/sweep.py is to run, separated by commas."""
    own = {"tune": tune, "chunks=512": lambda c: c.data.update(chunk_tokens=512)}
    return config.vary(study(), config.named(words), config.VARIANTS | own)
