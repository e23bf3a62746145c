"""The families of models that are implemented; well-known models of each, and their prompts."""

import re

from ark_jax.models.weight_names import DECODERS, ENCODERS
from ark_jax.runtime.log import say

# model_type of config.json -> models. README.md names the first of each; `ark-jax models` all.
FAMILIES = {
    "bert": "BERT, MiniLM, BGE, E5, ColBERT v2",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-R, multilingual E5, BGE-M3, BGE's rerankers",
    "distilbert": "DistilBERT",
    "mpnet": "MPNet, all-mpnet-base-v2",
    "deberta-v2": "DeBERTa-v3, mxbai-rerank",
    "nomic_bert": "nomic-embed-text",
    "new": "GTE, v1.5 and multilingual, as published",
    "gte": "GTE, as transformers saves it",
    "modernbert": "ModernBERT, GTE-ModernBERT, GTE-ModernColBERT",
    "qwen3": "Qwen3, Qwen3-Embedding, Qwen3-Reranker",
    "qwen2": "Qwen2, Qwen2.5, gte-Qwen2",
    "llama": "Llama, SmolLM2",
    "mistral": "Mistral",
    "gemma3_text": "Gemma 3, of 270M and 1B, EmbeddingGemma",
}
# Pattern of the name of a model whose folder names no prompts -> its authors' for queries and for
# documents.
_ENGLISH = "Represent this sentence for searching relevant passages: "
KNOWN = {
    r"e5-(small|base|large)(-v2)?|multilingual-e5-(small|base|large)": ("query: ", "passage: "),
    r"bge-(small|base|large)-en(-v1\.5)?": (_ENGLISH, ""),
    r"bge-(small|base|large)-zh(-v1\.5)?": ("为这个句子生成表示以用于检索相关文章：", ""),
    r"mxbai-embed-(large|xsmall)-v1|snowflake-arctic-embed-(xs|s|m|l)(-v1\.5)?": (_ENGLISH, ""),
    r"snowflake-arctic-embed-[ml]-v2\.0": ("query: ", ""),
    r"nomic-embed-text-v1(\.5)?|modernbert-embed-base": ("search_query: ", "search_document: "),
}


def rows() -> list[tuple[str, str, str, str]]:
    """(model_type, what it can be, what is tested, well-known models)."""
    rows = []
    for family, names in FAMILIES.items():
        is_encoder = family in ENCODERS
        tested = f"states, gradients, export{', pairs' if is_encoder else ''}"
        role = f"retriever, {'reranker' if is_encoder else 'reader'}"
        rows.append((family, role, tested, names))
    return rows


def listed() -> str:
    """The families by their best-known names, encoders before decoders, as README.md lists them."""
    first = lambda tables: dict.fromkeys(FAMILIES[name].split(",")[0] for name in tables)
    return "; ".join(", ".join(first(tables)) for tables in (ENCODERS, DECODERS))


def propose(name: str) -> None:
    """Says in a line which prompts a model of this name is used with, if they are known."""
    for pattern, (query, document) in KNOWN.items():
        if re.fullmatch(pattern, name.rpartition("/")[2].lower()):
            say(
                f"  {name} names no prompts, and none is used; its authors use {query!r} for "
                f"queries and {document!r} for documents: set config.retriever.prompts.query and "
                ".document, or give `prompts` to Retriever.from_pretrained"
            )
