"""HyDE: searches with a passage that a language model writes as an answer to the question."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from ark_jax.text import prompts
from ark_jax.text.thoughts import split_thought
from ark_jax.text.token_vectors import Vectors, check_one_each

NAME = "hyde"
Write = Callable[[Sequence[str]], Sequence[str]]  # prompts -> the replies of a language model


@dataclasses.dataclass(frozen=True)
class Hyde:
    """Embeds questions for `searcher.Dense`: hypothetical document embeddings.

    The mean of the vectors of question and passage, scaled to unit length (Gao et al.
    2022, "Precise Zero-Shot Dense Retrieval without Relevance Labels", equation 8). The passage may
    be wrong, since only its topic matters.

    Attributes:
        write: writes the passages. For an empty reply the question's own vector is used.
        embed: texts, and "query" or "document" -> their unit vectors.
        template: the prompt, with the slot {question}.
    """

    write: Write
    embed: Callable[[Sequence[str], str], Vectors]
    template: str

    def __call__(self, questions: Sequence[str]) -> Float[np.ndarray, "q e"]:
        """The unit vectors of questions.

        Raises:
            ValueError: the retriever keeps a vector for each token, which HyDE cannot average.
        """
        sums = np.array(check_one_each(self.embed(questions, "query"), "HyDE"))
        replies = self.write(tuple(prompts.fill(self.template, question=x) for x in questions))
        passages = [split_thought(reply).answer.strip() for reply in replies]
        written = [i for i, passage in enumerate(passages) if passage]
        if written:
            sums[written] += self.embed([passages[i] for i in written], "document")
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)
