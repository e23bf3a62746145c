"""Questions made without a language model: a sentence in which a name or a rare term is left out.

With them the pipeline runs on documents alone at no cost. They repeat the words of their sentence,
so they teach a retriever little; a model's questions are better.
"""

import json
import re
from collections.abc import Mapping, Sequence

from ark_jax.llm.names import names_and_terms, rare_terms, split_sentences
from ark_jax.text.word_boundaries import contains_words

FEWEST_WORDS = 8  # a shorter sentence says too little to be found by
MOST_WORDS = 40  # a longer sentence is a list or a table
ENDS = (".", "!", "?", '"', "”", "»", ")")  # a sentence without one is cut off
GAP = "…"
SPEECH_STARTS = "\"'“”„‟‘’‚‛«»:;—–-"  # the next word has a capital, as after a full stop


def write_cloze(passages: Sequence[str], count: int, frequency: Mapping[str, int]) -> str:
    """At most `count` questions about a passage, each from another sentence, as a JSON object.

    Two passages give no questions: rules cannot find what connects them.

    Args:
        frequency: see `rule_based.extract_graph`.
    """
    pairs = []
    if len(passages) == 1:
        rare = rare_terms(passages[0], frequency)
        sentences = split_sentences(passages[0])
        pairs = [pair for x in sentences if (pair := _cloze_pair(x, passages[0], rare))]
    return json.dumps({"pairs": pairs[:count]}, ensure_ascii=False)


def _cloze_pair(sentence: str, passage: str, rare: set[str]) -> dict | None:
    """A question about a sentence; None if it is cut off, too short, too long or names nothing."""
    sentence = sentence.strip()
    is_whole = sentence.endswith(ENDS) and not sentence[0].islower()
    if not is_whole or not FEWEST_WORDS <= len(sentence.split()) <= MOST_WORDS:
        return None
    for name in names_and_terms(sentence, rare):
        is_name = name[0].isupper()
        if sentence.count(name) != 1 or (is_name and not _is_surely_name(name, passage)):
            continue
        head, tail = sentence.split(name)
        gapped = f"{head}{GAP}{tail}"
        if not contains_words(gapped, name):
            kind = "name" if is_name else "word"
            question = f"Which {kind} is left out here: {' '.join(gapped.split()).rstrip('.!?')}?"
            return {"question": question, "answer": name, "evidence": [sentence]}
    return None


def _is_surely_name(name: str, passage: str) -> bool:
    """Whether a capitalised word is a name.

    "Now" may have its capital from the start of a sentence or a speech; "I" and "I'll" always have.
    """
    if any(re.fullmatch(r"\w(['’]\w+)?", part) for part in name.split()):
        return False
    places = re.finditer(rf"\b{re.escape(name)}\b", passage)
    befores = [passage[: place.start()].rstrip()[-1:] for place in places]
    return " " in name or any(x and x not in ENDS and x not in SPEECH_STARTS for x in befores)
