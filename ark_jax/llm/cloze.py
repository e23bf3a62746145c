"""Questions made without a language model: a sentence in which a name or a rare term is left out.

They let the pipeline be tried on documents alone at no cost. They repeat the words of their
sentence, so they teach a retriever little; a model's questions are better.
"""

import json
from collections.abc import Mapping, Sequence

from ark_jax.llm.names import names_and_terms, rare_terms, split_sentences
from ark_jax.text.word_boundaries import contains_words

FEWEST_WORDS = 8  # of a sentence: fewer say too little to be found by
MOST_WORDS = 40  # of a sentence: more are a list or a table
ENDS = (".", "!", "?", '"', "”", "»", ")")  # without one the end of the passage cuts the sentence
GAP = "…"


def write_cloze(passages: Sequence[str], count: int, frequency: Mapping[str, int]) -> str:
    """At most `count` questions about a passage, each from another sentence, as a JSON object.

    Two passages give nothing: rules cannot tell what joins them.

    Args:
        frequency: as of `rule_based.extract_graph`.
    """
    pairs = []
    if len(passages) == 1:
        rare = rare_terms(passages[0], frequency)
        pairs = [pair for x in split_sentences(passages[0]) if (pair := _pair(x, rare))]
    return json.dumps({"pairs": pairs[:count]}, ensure_ascii=False)


def _pair(sentence: str, rare: set[str]) -> dict | None:
    """The question about a sentence; None if it is cut, too short, too long or names nothing."""
    sentence = sentence.strip()
    is_whole = sentence.endswith(ENDS) and not sentence[0].islower()
    if not is_whole or not FEWEST_WORDS <= len(sentence.split()) <= MOST_WORDS:
        return None
    for name in names_and_terms(sentence, rare):
        if sentence.count(name) != 1:
            continue
        before, after = sentence.split(name)
        gapped = f"{before}{GAP}{after}"
        if not contains_words(gapped, name):
            kind = "name" if name[0].isupper() else "word"
            question = f"Which {kind} is left out here: {' '.join(gapped.split()).rstrip('.!?')}?"
            return {"question": question, "answer": name, "evidence": [sentence]}
    return None
