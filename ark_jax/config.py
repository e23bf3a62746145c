"""Configs for the command line and for config files: presets, variants, studies.

from ark_jax import config

def get_config():
    c = config.ark("paper")
    c.train.batch = 32
    return c
"""

from ark_jax import schema
from ark_jax.recipes.ark import config as ark_config
from ark_jax.recipes.ark.config import PRESETS, Ark, ablations, ark, differences, study, switches
from ark_jax.recipes.ark.config import STUDY_VARIANTS as VARIANTS
from ark_jax.recipes.bar_rag import config as bar_rag_config
from ark_jax.recipes.bar_rag.config import BarRag, bar_rag
from ark_jax.recipes.core.presets import named, vary
from ark_jax.recipes.demo import demo
from ark_jax.recipes.gpr import config as gpr_config
from ark_jax.recipes.gpr.config import Gpr, gpr
from ark_jax.recipes.star import config as star_config
from ark_jax.recipes.star.config import Star, star

__all__ = [
    "PRESETS",
    "VARIANTS",
    "ablations",
    "ark",
    "bar_rag",
    "demo",
    "differences",
    "gpr",
    "named",
    "star",
    "study",
    "switches",
    "vary",
]

SCHEMAS = {"ark": Ark, "gpr": Gpr, "star": Star, "bar_rag": BarRag}
# recipe -> preset -> the paper or code that it follows
SOURCES = {
    "ark": ark_config.SOURCES,
    "gpr": gpr_config.SOURCES,
    "star": star_config.SOURCES,
    "bar_rag": bar_rag_config.SOURCES,
}


def from_json(plain: dict):
    """A config of JSON values, as a workdir keeps it; a field that it lacks has its default."""
    return schema.from_json(plain, SCHEMAS.get(plain.get("recipe")))
