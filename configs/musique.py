"""Study 1: a hundred MuSiQue questions over 1,890 passages, GPT-3.5's triples of these as the graph, MiniLM, SmolLM2.

    ark-jax run --config=configs/musique.py --workdir=DIR
    python launch/sweep.py --config=configs/musique.py:sweep=study --workdir=DIR

Thirty questions, the first by a hash of their ids, are held out; the other seventy are trained on. What follows a colon is a
preset (`paper`, `official`), `gold` (positives are the passages marked as evidence, negatives the nearest other ones: the
yardstick), `local` (SmolLM2 rewrites the questions; else templates do) or `tune` (the thirty are set aside, and 21 of the seventy
held out in their stead: settings are chosen there). The data lie in $ARK_DATA/musique_openie, else in ../shared/data.

nDCG@10 on the thirty: MiniLM .719, stages .718, .720, .711 (with two more seeds .717, .716, .724 and .717, .724, .730), `gold`
.705 (.696, .708), BM25 .457; no difference but BM25's is more than chance. Stage 3 without F .693, B .711, V .722; one stage
.722; negatives by BM25 .727, random .720; all questions .703; nothing spared .711. `paper` .722, `official` .689,
their settings one at a time (`sweep=switches`) .699 to .724. On `tune`: MiniLM .660, stages .667, .667, .671; with one epoch
.667, .668, .670.
"""

import hashlib
import os
from pathlib import Path

from ark_jax import config
from ark_jax.data import readers
from ark_jax.models.wheels import demo_models

DATA = Path(os.environ.get("ARK_DATA", "../shared/data")) / "musique_openie"
if not DATA.is_dir():
    raise ValueError(f"{DATA} is not there: name the folder that holds it in $ARK_DATA")
HELD_OUT, TUNED_ON = 30, 21
QUESTIONS = tuple(sorted((q.id for q in readers.load(DATA / "musique_train.json").questions),
                         key=lambda id: hashlib.sha256(id.encode()).digest()))


def study():
    """Data, models and measures, with the settings chosen by `tune`."""
    models, c = demo_models(), config.ark()
    c.retriever.path, c.generator.path = models["retriever"], models["generator"]
    c.data.path = str(DATA / "musique_train.json")
    c.graph.openie = str(DATA / "openie_musique_train_results_ner_gpt-3.5-turbo-1106_1890.json")
    c.data.held_out_questions = QUESTIONS[:HELD_OUT]
    c.evaluate.scope, c.evaluate.baselines = "corpus", ("bm25",)
    c.evaluate.max_new_tokens = 16
    c.score.references, c.score.candidates = 1, 10  # aliases are spellings of one answer
    c.score.positives = 2  # all questions take two hops or more
    c.mine.negatives, c.mine.spare = 3, 2
    c.train.learning_rates, c.train.epochs = (3e-5, 3e-5, 2e-5), (2, 2, 2)
    return c


def tune(c) -> None:
    c.data.ignored_questions, c.data.held_out_questions = QUESTIONS[:HELD_OUT], QUESTIONS[HELD_OUT : HELD_OUT + TUNED_ON]


BASE = study()
SWEEPS = {"study": config.study(BASE) | {"M1": {"score.positives": 1}}, "ablations": config.ablations(BASE),
          "switches": config.switches(BASE)}


def get_config(words: str = ""):
    """`words` are variants and what launch/sweep.py is to run, separated by commas."""
    return config.vary(study(), config.named(words), config.VARIANTS | {"tune": tune})
