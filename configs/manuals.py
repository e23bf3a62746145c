"""Study 6, a user's corpus: the manuals of git, PostgreSQL or Python, and no question to train on.

    ark-jax run --config=configs/manuals.py:git --workdir=DIR
    ark-jax sweep --config=configs/manuals.py:git,sweep=seeds --workdir=DIR

The data are pages of Debian's packages git-doc, postgresql-doc-15 and python3.11-doc, those that
`recordings/manuals/*.pages` name, in $ARK_DATA/manuals/{git,postgresql,python}:

    apt-get download git-doc && dpkg -x git-doc_*.deb git && cd git/usr/share/doc/git-doc
    cp --parents $(cat .../recordings/manuals/git.pages) $ARK_DATA/manuals/git

Words after the colon: git, postgresql or python; tokens, for a vector for each token.

nDCG@10 on questions in a user's words; tuned by one vector: means of three seeds, by tokens: one:

                             git  postgresql  python
    BM25                    .247        .257    .284
    MiniLM                  .372        .387    .465
    BM25 + MiniLM           .375        .385    .426
    tuned                   .400        .416    .520  ships for python with two seeds of three
    BM25 + tuned            .397        .398    .476  ships otherwise
    MiniLM by tokens        .461        .485    .500
    tuned by tokens         .491        .526    .518  ships for git
    BM25 + tuned by tokens  .430        .466    .465  ships for the other two
"""

import os
from pathlib import Path

from ark_jax import config
from ark_jax.demo.models import demo_models

DATA = Path(os.environ.get("ARK_DATA", "../shared/data")) / "manuals"
RECORDINGS = Path(__file__).parent / "recordings" / "manuals"
MANUALS = ("git", "postgresql", "python")
PASSAGES = 100  # of a manual, about which a large language model wrote questions


def study():
    """Models and settings; all are defaults but for what trains: each question's own passage."""
    c, models = config.ark(), demo_models()
    c.retriever.path, c.generator.path = models["retriever"], models["generator"]
    c.questions.source, c.questions.passages, c.questions.joined = "written", PASSAGES, 0.0
    c.questions.margin, c.questions.round_trip = -100.0, 0  # a strong model's need no filter
    c.update_from_flattened_dict(config.study(c)["gold"])
    c.train.epochs = (4, 0, 0)
    c.score.development = 0.3
    c.data.pool = "corpus"
    c.evaluate.read = 0
    return c


def use_manual(c, name: str) -> None:
    c.data.path, c.data.questions = str(DATA / name), str(RECORDINGS / f"{name}.jsonl")
    c.questions.replies = str(RECORDINGS / f"{name}_replies.jsonl")


VARIANTS = {name: (lambda c, name=name: use_manual(c, name)) for name in MANUALS}
VARIANTS["tokens"] = lambda c: c.update_from_flattened_dict({"retriever.vectors": "tokens"})
SWEEPS = {"seeds": {f"seed{seed}": {"seed": seed} for seed in (1, 2)}}


def get_config(words: str = ""):
    """`words` after the colon, separated by commas: a manual, variants, and the sweep that runs."""
    return config.vary(study(), config.named(words), VARIANTS)
