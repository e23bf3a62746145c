"""Search in two turns: a language model says what is still unknown, and that is searched for."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ark_jax.retrieval.fusion import by_ranks
from ark_jax.retrieval.hyde import Write
from ark_jax.retrieval.searcher import Ranking, Scopes, Searcher
from ark_jax.text import prompts
from ark_jax.text.thoughts import split_thought

NAME = "turns"


@dataclasses.dataclass(frozen=True)
class Turns:
    """Searches by the question, then by the question and a sentence of reasoning on what was found.

    What either search finds is joined by reciprocal ranks. It is one step of IRCoT (Trivedi et al.
    2023, "Interleaving Retrieval with Chain-of-Thought Reasoning for Knowledge-Intensive Multi-Step
    Questions"), which takes as many as its model wants and keeps all passages unranked.

    Attributes:
        texts: id -> text.
        write: writes the sentences. For an empty one the first search stands alone.
        template: the prompt, with the slots {question} and {passages}.
        shown: how many passages the model sees.
    """

    searcher: Searcher
    texts: Mapping[Any, str] | Sequence[str]
    write: Write
    template: str
    shown: int = 5

    def search(self, questions: Sequence[str], k: int, scopes: Scopes = None) -> list[Ranking]:
        first = self.searcher.search(questions, k, scopes)
        replies = self.write(
            [
                prompts.fill(
                    self.template,
                    question=question,
                    passages="\n\n".join(self.texts[id] for id in found.ids[: self.shown]),
                )
                for question, found in zip(questions, first, strict=True)
            ]
        )
        sentences = [" ".join(split_thought(reply).answer.split()) for reply in replies]
        second = self.searcher.search(
            [f"{x} {sentence}".strip() for x, sentence in zip(questions, sentences, strict=True)],
            k,
            scopes,
        )
        return [
            Ranking.from_pairs(by_ranks(*(x.pairs() for x in found))[:k]) if sentence else found[0]
            for sentence, *found in zip(sentences, first, second, strict=True)
        ]
