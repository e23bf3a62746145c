"""The prompts that known families of retrievers were trained with; their folders name none."""

import re

from ark_jax.runtime.log import say

# Pattern of a model's name -> its authors' prompts for queries and for documents.
_ENGLISH = "Represent this sentence for searching relevant passages: "
KNOWN = {
    r"e5-(small|base|large)(-v2)?|multilingual-e5-(small|base|large)": ("query: ", "passage: "),
    r"bge-(small|base|large)-en(-v1\.5)?": (_ENGLISH, ""),
    r"bge-(small|base|large)-zh(-v1\.5)?": ("为这个句子生成表示以用于检索相关文章：", ""),
    r"mxbai-embed-(large|xsmall)-v1|snowflake-arctic-embed-(xs|s|m|l)(-v1\.5)?": (_ENGLISH, ""),
    r"snowflake-arctic-embed-[ml]-v2\.0": ("query: ", ""),
    r"nomic-embed-text-v1(\.5)?|modernbert-embed-base": ("search_query: ", "search_document: "),
}


def propose(name: str) -> None:
    """Says in a line which prompts a model of this name is used with, if they are known."""
    for pattern, (query, document) in KNOWN.items():
        if re.fullmatch(pattern, name.rpartition("/")[2].lower()):
            say(
                f"  {name} names no prompts, and none is used; its authors use {query!r} for "
                f"queries and {document!r} for documents: set config.retriever.prompts.query and "
                ".document, or give `prompts` to Retriever.from_pretrained"
            )
