"""The formats that are read; the first that recognises a path reads it."""

from ark_jax.data.formats.base import Format
from ark_jax.data.formats.beir import BEIR
from ark_jax.data.formats.colbert import COLBERT
from ark_jax.data.formats.contexts import SQUAD
from ark_jax.data.formats.fairytale import FAIRYTALE
from ark_jax.data.formats.frameworks import AUTORAG, DOCSTORE, EXAMPLES, PAIRS, STORE, VECTORS
from ark_jax.data.formats.hipporag import HIPPORAG
from ark_jax.data.formats.pages import PAGES
from ark_jax.data.formats.pairs import TRIPLES
from ark_jax.data.formats.plain import PLAIN
from ark_jax.data.formats.rows import KNOWN, ROWS, SHARDS
from ark_jax.data.formats.trec import TREC

FORMATS: tuple[Format, ...] = (
    BEIR,
    PLAIN,
    FAIRYTALE,
    HIPPORAG,
    DOCSTORE,
    VECTORS,
    STORE,
    PAIRS,
    EXAMPLES,
    AUTORAG,
    COLBERT,
    TREC,
    SHARDS,
    PAGES,
    SQUAD,
    TRIPLES,
    ROWS,
)

__all__ = ["FORMATS", "KNOWN", "Format"]
