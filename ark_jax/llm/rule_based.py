"""Graphs and rewrites made without a language model, by statistics and templates.

They have the form of a model's replies, so that the pipeline can be tried on any text at no cost. A
model's graph and questions are better.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ark_jax.text.word_boundaries import contains_words, is_unspaced

# The letters of scripts that put blanks between words; none of them is above U+2E80.
_LETTERS = [char for char in map(chr, range(0x2E80)) if char.isalpha() and not is_unspaced(char)]
_UPPERCASE = "".join(char for char in _LETTERS if char.isupper() or char.istitle())
# Lowercase letters, and the letters of scripts without case.
_OTHER_LETTERS = "".join(char for char in _LETTERS if char not in _UPPERCASE)
# A run of capitalised words, with small joining words allowed inside it.
_NAME = re.compile(
    rf"\b[{_UPPERCASE}][\w'’-]*"
    rf"(?:\s+(?:of|the|de|du|von|van|and|for|in)\s+(?=[{_UPPERCASE}])|\s+(?=[{_UPPERCASE}])"
    rf"|[{_UPPERCASE}][\w'’-]*)*"
)
_TERM = re.compile(rf"\b[{_OTHER_LETTERS}][\w-]{{4,}}")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
# Words that are capitalised at the start of a sentence but are not names.
_FUNCTION_WORD_LIST = """
the a an and or but if when while as at by for from in into of on onto over to with without it its
he she they his her their this that these those there then than so such not no nor yet was were is
are be been had has have did do does after before during since until where who whom whose which
what why how all any both each few more most other some one
"""
_FUNCTION_WORDS = frozenset(_FUNCTION_WORD_LIST.split())

_TEMPLATES = (
    "{q}, considering {a}",
    "In connection with {a} and {b}: {q}",
    "{q} (compare {a})",
    "With {a} in mind, {q}",
    "{q}, as distinct from {a} or {b}",
    "Regarding {a}: {q}",
    "{q}, in the context of {a} and {b}",
    "Besides {a}, {q}",
    "{q}, apart from what concerns {a}",
    "Where {a} and {b} come in: {q}",
)


def make_replies(calls: Sequence[Mapping]) -> list[str]:
    """Replies to calls, given as the fields that their prompts were filled with.

    A call with a passage gets a graph of it, a call with a question gets rewritten questions.
    """
    passages = [fields["passage"] for fields in calls if "passage" in fields]
    frequency = Counter(term for passage in passages for term in candidate_terms(passage))
    return [
        extract_graph(fields["passage"], frequency, fields.get("title", ""))
        if "passage" in fields
        else rewrite_question(**fields)
        for fields in calls
    ]


def candidate_terms(passage: str) -> set[str]:
    """The words that may be terms: at least five characters, not capitalised."""
    return set(_TERM.findall(passage))


def extract_graph(passage: str, frequency: Mapping[str, int], title: str = "") -> str:
    """A graph of a passage's capitalised names and rare terms.

    Names and terms are related if they share a sentence. Those of the title are related to all,
    since the whole passage is about them.

    Args:
        frequency: the number of passages that have each word of `candidate_terms`. A term is rare
            if at most two passages have it, or a hundredth of the number that have the commonest
            word. If only this passage has it, it must occur twice.
        title: the title of the passage, without a mark at its end.

    Returns:
        Entities and relations in the format of the extraction prompt.
    """
    rare_terms = _rare_terms(passage, frequency)
    sentences = _SENTENCE_END.split(passage)
    sentences_by_name: dict[str, list[int]] = {
        name: list(range(len(sentences))) for name in _names_and_terms(title, rare_terms)
    }
    for number, sentence in enumerate(sentences):
        for name in _names_and_terms(sentence, rare_terms):
            if number in sentences_by_name.get(name, ()):
                continue
            sentences_by_name.setdefault(name, []).append(number)
    records = []
    for name, numbers in sentences_by_name.items():
        kind = "name" if name[0].isupper() else "term"
        description = _without_delimiters(sentences[numbers[0]])
        records.append(f'("entity"<|>{name}<|>{kind}<|>{description})')
    pairs = Counter()
    for number in range(len(sentences)):
        names = [name for name, numbers in sentences_by_name.items() if number in numbers]
        pairs.update(itertools.combinations(names, 2))
    for (source, target), count in pairs.items():
        strength = min(count, 10)
        records.append(f'("relationship"<|>{source}<|>{target}<|>Named together.<|>{strength})')
    return "##\n".join([*records, "<|COMPLETE|>"])


def _rare_terms(passage: str, frequency: Mapping[str, int]) -> set[str]:
    max_frequency = max(2, max(frequency.values(), default=0) // 100)
    occurrences = Counter(_TERM.findall(passage))
    return {
        term
        for term, count in occurrences.items()
        if max(count, frequency[term]) > 1 and frequency[term] <= max_frequency
    }


def _names_and_terms(sentence: str, rare_terms: set[str]) -> list[str]:
    """The distinct names, then the rare terms, of a sentence."""
    names = [_trim_name(match[0]) for match in _NAME.finditer(sentence)]
    terms = [word for word in _TERM.findall(sentence) if word in rare_terms]
    return list(dict.fromkeys(filter(None, names + terms)))


def _trim_name(name: str) -> str:
    """Removes the function words that begin a sentence: `The Long Staff` -> `Long Staff`."""
    parts = name.split()
    while parts and parts[0].lower() in _FUNCTION_WORDS:
        parts = parts[1:]
    return " ".join(parts)


def _without_delimiters(sentence: str) -> str:
    return " ".join(sentence.split()).replace("<|>", " ").replace("##", " ")


def rewrite_question(
    question: str, names: Sequence[str], count: int, answers: Sequence[str] = ()
) -> str:
    """`count` versions of a question, each with other neighbouring names, as a JSON object.

    A name that holds an answer, or that an answer holds, would give it away and is left out.
    """
    bare = question.strip().rstrip("?").strip()
    names = [name for name in names if not _gives_away(name, answers)] or ["other matters"]
    versions = []
    for i in range(count):
        first, second = names[(2 * i) % len(names)], names[(2 * i + 1) % len(names)]
        text = _TEMPLATES[i % len(_TEMPLATES)].format(q=bare, a=first, b=second)
        versions.append(text[0].upper() + text[1:] + "?")
    return json.dumps({"questions": versions}, ensure_ascii=False)


def _gives_away(name: str, answers: Sequence[str]) -> bool:
    return any(contains_words(name, x) or contains_words(x, name) for x in answers)
