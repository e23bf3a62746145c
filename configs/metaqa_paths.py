"""Study of STAR: relation paths in MetaQA's graph of films, for questions of 1 to 3 hops.

    ark-jax run --config=configs/metaqa_paths.py --workdir=DIR
    python launch/sweep.py --config=configs/metaqa_paths.py:sweep=study --workdir=DIR
    python launch/sweep.py ... --config.data.few=1000

The data are in $ARK_DATA/kg/metaqa, or else in ../shared/data/kg/metaqa. MetaQA has 40,000
questions of 49 templates, which anything learns; so 300 questions are trained on, of each number of
hops as many. Measured are 100 questions of each number of hops, whose topics are among three
tenths by a hash and in no training question. Gold paths are found, not read.

Words after the colon:

    tune        trains and measures without the held-out questions, to choose settings
    dual, ...   the run of that name of the study
"""

import os
from pathlib import Path

from ark_jax.demo.models import demo_models
from ark_jax.recipes.star import config

DATA = Path(os.environ.get("ARK_DATA", "../shared/data")) / "kg" / "metaqa"
if not DATA.is_dir():
    raise ValueError(f"{DATA} is not there: name the folder that holds kg/metaqa in $ARK_DATA")


def study():
    """Data, models and sizes."""
    c, models = config.star(), demo_models()
    c.retriever.path, c.generator.path = models["retriever"], models["generator"]
    c.data.path = str(DATA / "kb_*.tsv")
    c.data.names = str(DATA / "kb_entity2text.txt")
    c.data.relation_names = str(DATA / "kb_relation2text.txt")
    c.data.questions = str(DATA / "?hop_dev.txt")
    c.data.held_out, c.data.few = 0.3, 300
    # Chosen on `tune`, at 100 questions: 7 negatives were no better and cost twice the time.
    c.mine.negatives, c.search.beam, c.train.epochs = 3, 3, 2
    c.evaluate.questions = 100
    return c


def tune(c) -> None:
    c.evaluate.part = "rest"


SWEEPS = {"study": config.study(study()), "switches": config.switches(study())}
VARIANTS = {
    "tune": tune,
    **{
        name: lambda c, name=name: c.update_from_flattened_dict(SWEEPS["study"][name])
        for name in SWEEPS["study"]
    },
}


def get_config(words: str = ""):
    """`words` after the colon, separated by commas: variants, and the sweep that runs."""
    c = study()
    for word in (word for word in words.split(",") if word and not word.startswith("sweep=")):
        if word not in VARIANTS:
            raise ValueError(f"{word!r}: must be one of {', '.join(VARIANTS)}")
        VARIANTS[word](c)
    return c
