"""The stages whose host work is a map over shards, without a model."""

from support.world import tiny_config

from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark.extract import extract
from ark_jax.recipes.documents.ingest import ingest
from ark_jax.runtime.log import Metrics
from ark_jax.runtime.map_shards import use_engine


def data_and_extract(world, workdir, *, wanted=("data", "extract"), engine="local"):
    """The files of both stages, and what they count."""
    c = tiny_config(world)
    c.questions.source, c.data.chunking, c.data.chunk_tokens = "written", "sentences", 0
    context = Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
    counts = {}
    for stage, run in (("data", ingest), ("extract", extract)):
        if stage in wanted:
            (context / stage).mkdir(parents=True, exist_ok=True)
            with use_engine(engine):
                counts[stage] = run(context, context / stage)
    files = {
        path.relative_to(workdir): path.read_bytes()
        for path in sorted(workdir.rglob("*"))
        if path.is_file()
    }
    return files, counts
