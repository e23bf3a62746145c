"""Study of GPR: MetaQA's graph of films, 129,413 triples, and its questions of 1 to 3 hops.

    ark-jax run --config=configs/metaqa.py --workdir=DIR
    ark-jax sweep --config=configs/metaqa.py:sweep=study --workdir=DIR

The data are in $ARK_DATA/kg/metaqa, or else in ../shared/data/kg/metaqa. No question of MetaQA is
trained on. A language model worded the nine relations from their names and example triples, without
the files of questions at hand (recordings/README.md); 2,000 triples are asked about. Measured are
300 questions of each number of hops, whose topics are among three tenths by a hash; the settings
were chosen on others.

Words after the colon:

    templates         rules word the relations, instead of the recording
    paper, infonce    the run of that name of the study
    tune              measures with questions of the other topics, to choose settings
"""

import os
from pathlib import Path

from ark_jax.config import named, vary
from ark_jax.demo.models import demo_models
from ark_jax.recipes.gpr import config

DATA = Path(os.environ.get("ARK_DATA", "../shared/data")) / "kg" / "metaqa"
if not DATA.is_dir():
    raise ValueError(f"{DATA} is not there: name the folder that holds kg/metaqa in $ARK_DATA")


def study():
    """Data, models and metrics."""
    c, models = config.gpr(), demo_models()
    c.retriever.path, c.generator.path = models["retriever"], models["generator"]
    c.data.path = str(DATA / "kb_*.tsv")
    c.data.names = str(DATA / "kb_entity2text.txt")
    c.data.relation_names = str(DATA / "kb_relation2text.txt")
    c.data.questions = str(DATA / "?hop_dev.txt")
    c.data.held_out = 0.3
    c.evaluate.questions = 300
    c.questions.triples = 2000
    c.questions.replies = str(Path(__file__).parent / "recordings" / "metaqa_wordings.jsonl")
    c.llm.backend = "replay"
    return c


def use_templates(c) -> None:
    c.llm.backend, c.questions.replies = "none", ""


def tune(c) -> None:
    c.evaluate.part = "rest"


BASE = study()
SWEEPS = {"study": config.study(BASE), "switches": config.switches(BASE)}
VARIANTS = {
    "templates": use_templates,
    "tune": tune,
    **{
        name: lambda c, name=name: c.update_from_flattened_dict(SWEEPS["study"][name])
        for name in ("paper", "infonce")
    },
}


def get_config(words: str = ""):
    """`words` after the colon, separated by commas: variants, and the sweep that runs."""
    return vary(study(), named(words), VARIANTS)
