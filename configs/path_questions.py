"""Study of STAR: relation paths for the questions of MetaQA or PathQuestion-Large.

    ark-jax run --config=configs/path_questions.py --workdir=DIR
    ark-jax sweep --config=configs/path_questions.py:sweep=study --workdir=DIR
    ark-jax sweep --config=configs/path_questions.py:pathquestion,sweep=study ...

The data are in $ARK_DATA/kg, or else in ../shared/data/kg. Measured are questions whose topics are
drawn by a hash; no question to train on has one of them. Gold paths are found, not read.

Words after the colon:

    pathquestion      PathQuestion-Large, two hops: 726 relations both ways, most paths asked for
                      once. Without it, MetaQA's films, one to three hops: 40,000 questions of 49
                      templates, which anything learns; so --config.data.few=300 are trained on, and
                      100 of each number of hops measure
    tune              trains and measures without the held-out questions, to choose settings
    dual, ...         the run of that name of the study
"""

import os
from pathlib import Path

from ark_jax.config import named, vary
from ark_jax.demo.models import demo_models
from ark_jax.recipes.star import config

DATA = Path(os.environ.get("ARK_DATA", "../shared/data")) / "kg"
if not DATA.is_dir():
    raise ValueError(f"{DATA} is not there: name the folder that holds kg in $ARK_DATA")


def study():
    """MetaQA, models and sizes."""
    c, models = config.star(), demo_models()
    c.retriever.path, c.generator.path = models["retriever"], models["generator"]
    folder = DATA / "metaqa"
    c.data.path = str(folder / "kb_*.tsv")
    c.data.names = str(folder / "kb_entity2text.txt")
    c.data.relation_names = str(folder / "kb_relation2text.txt")
    c.data.questions = str(folder / "?hop_dev.txt")
    c.data.held_out, c.data.few = 0.3, 300
    # Chosen on `tune`: at 100 questions 7 negatives were no better and cost twice the time.
    c.mine.negatives, c.search.beam, c.train.epochs = 3, 3, 2
    c.evaluate.questions = 100
    return c


def use_pathquestion(c) -> None:
    folder = DATA / "pathquestion"
    c.data.path, c.data.questions = str(folder / "PQL2-KB.txt"), str(folder / "PQL-2H.txt")
    c.data.names = c.data.relation_names = ""
    c.paths.hops, c.data.few, c.evaluate.questions = 2, 0, 0


def tune(c) -> None:
    c.evaluate.part = "rest"


SWEEPS = {"study": config.study(study()), "switches": config.switches(study())}
VARIANTS = {
    "pathquestion": use_pathquestion,
    "tune": tune,
    **{
        name: lambda c, name=name: c.update_from_flattened_dict(SWEEPS["study"][name])
        for name in SWEEPS["study"]
    },
}


def get_config(words: str = ""):
    """`words` after the colon, separated by commas: variants, and the sweep that runs."""
    return vary(study(), named(words), VARIANTS)
