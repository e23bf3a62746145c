"""The families of models that are implemented, and well-known models of each."""

from ark_jax.models.weight_names import ENCODERS

# model_type of config.json -> models. README.md and `ark-jax models` list these.
FAMILIES = {
    "bert": "BERT, MiniLM, BGE, E5, ColBERT v2",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-R, multilingual E5, BGE-M3 (dense), BGE's rerankers",
    "distilbert": "DistilBERT",
    "mpnet": "MPNet, all-mpnet-base-v2",
    "deberta-v2": "DeBERTa-v3, mxbai-rerank",
    "nomic_bert": "nomic-embed-text",
    "new": "GTE v1.5 and multilingual, as published",
    "gte": "the same, as transformers saves them",
    "modernbert": "ModernBERT, GTE-ModernBERT, GTE-ModernColBERT",
    "qwen3": "Qwen3, Qwen3-Embedding, Qwen3-Reranker",
    "qwen2": "Qwen2, Qwen2.5, gte-Qwen2",
    "llama": "Llama, SmolLM2",
    "mistral": "Mistral",
    "gemma3_text": "Gemma 3 (270M, 1B), EmbeddingGemma",
}


def rows() -> list[tuple[str, str, str]]:
    """(model_type, what it can be, well-known models)."""
    role = lambda family: "reranker" if family in ENCODERS else "reader"
    return [(family, f"retriever, {role(family)}", names) for family, names in FAMILIES.items()]
