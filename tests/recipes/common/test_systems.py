"""Which systems are compared."""

from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.recipe import stages


def test_another_retriever_decides_whether_baselines_are_due():
    c, prints = (
        config.ark(),
        lambda c: next(s for s in stages(c) if s.name == "baselines").external(c),
    )
    c.retriever.path = c.generator.path = "a-name/that-is-not-fetched"
    before = prints(c)
    c.evaluate.retrievers = ("BAAI/bge-m3",)
    assert prints(c) == before | {"retriever BAAI/bge-m3": "BAAI/bge-m3"}
