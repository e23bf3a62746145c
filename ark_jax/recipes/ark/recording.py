"""What the packaged replies show, in tokens: how much a model writes for what it reads."""

import dataclasses
import importlib.resources
import statistics
from pathlib import Path

from ark_jax.estimate.llm_calls import TokenCounter
from ark_jax.llm.reply_cache import ReplyCache, reply_text
from ark_jax.recipes.ark.rewrite import parse_questions
from ark_jax.runtime.log import read_rows

REPEATED = 160 / 144  # of the recording's passages of 160 tokens, 16 belong to the one before too


@dataclasses.dataclass(frozen=True)
class Recording:
    """What the packaged replies show, in tokens.

    Attributes:
        written: tokens written for one token of a passage.
        entities: entities found in one token of a passage.
        line: tokens of an entity in a prompt for rewriting.
        version: tokens of a rewritten question in its reply.
    """

    written: float
    entities: float
    line: float
    version: float

    @classmethod
    def read(cls, count: TokenCounter) -> "Recording":
        from ark_jax.graph.extract import parse_reply

        folder = Path(str(importlib.resources.files("ark_jax.demo")))
        replies: dict[str, dict[str, str]] = {"extract": {}, "rewrite": {}}
        for row in ReplyCache(folder / "replies.jsonl").rows.values():
            kind, _, item = row.get("item", "").partition("/")
            if kind in replies:  # a workdir's replies hold other kinds too
                replies[kind][item] = reply_text(row["reply"])
        documents = {item.split("#")[0] for item in replies["extract"]}
        rows = read_rows(folder / "documents.jsonl")
        passages = REPEATED * sum(count([x["text"] for x in rows if x["id"] in documents]))
        parsed = [parse_reply(text, item) for item, text in replies["extract"].items()]
        entities = [entity for reply in parsed for entity in reply[0]]
        lines = [f"- {e.name} ({e.type}): {e.description}\n" for e in entities]
        tokens = {kind: sum(count(list(texts.values()))) for kind, texts in replies.items()}
        versions = sum(len(parse_questions(text)) for text in replies["rewrite"].values())
        return cls(
            written=tokens["extract"] / passages,
            entities=len(entities) / passages,
            line=statistics.fmean(count(lines)),
            version=tokens["rewrite"] / versions,
        )
