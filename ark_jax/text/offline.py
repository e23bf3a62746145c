"""Extraction and rewriting without a language model: statistics and templates, in the model's wire format.

For trying the pipeline on any text at no cost; a model's graph and questions are better.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ark_jax.data.words import unspaced

# All letters below the scripts that write words without blanks between them, or have no letters.
_LETTERS = [letter for letter in map(chr, range(0x2E80)) if letter.isalpha() and not unspaced(letter)]
_UPPER = "".join(letter for letter in _LETTERS if letter.isupper() or letter.istitle())
_OTHER = "".join(letter for letter in _LETTERS if letter not in _UPPER)  # small ones, and those of scripts with one case
# A run of capitalised words, small joining words allowed inside it.
_NAME = re.compile(rf"\b[{_UPPER}][\w'’-]*(?:\s+(?:of|the|de|du|von|van|and|for|in)\s+(?=[{_UPPER}])|\s+(?=[{_UPPER}])"
                   rf"|[{_UPPER}][\w'’-]*)*")
_TERM = re.compile(rf"\b[{_OTHER}][\w-]{{4,}}")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
# Words that begin sentences without being names.
_COMMON = frozenset("""
the a an and or but if when while as at by for from in into of on onto over to with without it its he she they his her
their this that these those there then than so such not no nor yet was were is are be been had has have did do does
after before during since until where who whom whose which what why how all any both each few more most other some one
""".split())  # noqa: SIM905  (a list of sixty strings reads worse)


def replies(asked: Sequence[tuple[str, dict]]) -> list[str]:
    """What a model might have replied to prompts of these kinds, filled with these fields."""
    frequency = Counter(word for kind, fields in asked if kind == "extract" for word in words(fields["passage"]))
    return [extract(fields["passage"], frequency) if kind == "extract" else rewrite(**fields) for kind, fields in asked]


def words(passage: str) -> set[str]:
    """What may be a term."""
    return set(_TERM.findall(passage))


def extract(passage: str, frequency: Mapping[str, int]) -> str:
    """Capitalised names and rare terms, related where one sentence holds both.

    `frequency` counts the passages that hold each of their `words`. A term is rare if it is in at most a hundredth as many
    as the commonest word, or in two; one that is in this passage alone must be said twice.
    """
    most = max(2, max(frequency.values(), default=0) // 100)
    here = Counter(_TERM.findall(passage))
    rare = {word for word, n in here.items() if max(n, frequency[word]) > 1 and frequency[word] <= most}
    sentences = _SENTENCE.split(passage)
    where: dict[str, list[int]] = {}
    for number, sentence in enumerate(sentences):
        found = [_trim(match[0]) for match in _NAME.finditer(sentence)]
        found += [word for word in _TERM.findall(sentence) if word in rare]
        for name in dict.fromkeys(filter(None, found)):
            where.setdefault(name, []).append(number)
    records = [f'("entity"<|>{name}<|>{"name" if name[0].isupper() else "term"}<|>{_flat(sentences[at[0]])})'
               for name, at in where.items()]
    pairs = Counter()
    for number, _ in enumerate(sentences):
        here = [name for name, at in where.items() if number in at]
        pairs.update(itertools.combinations(here, 2))
    records += [f'("relationship"<|>{a}<|>{b}<|>Named together.<|>{min(n, 10)})' for (a, b), n in pairs.items()]
    return "##\n".join([*records, "<|COMPLETE|>"])


def _trim(name: str) -> str:
    """Drops a sentence's first word from a name where it is capitalised only for standing first."""
    parts = name.split()
    while parts and parts[0].lower() in _COMMON:
        parts = parts[1:]
    return " ".join(parts)


def _flat(sentence: str) -> str:
    return " ".join(sentence.split()).replace("<|>", " ").replace("##", " ")


_TEMPLATES = (
    "{q}, considering {a}", "In connection with {a} and {b}: {q}", "{q} (compare {a})", "With {a} in mind, {q}",
    "{q}, as distinct from {a} or {b}", "Regarding {a}: {q}", "{q}, in the context of {a} and {b}",
    "Besides {a}, {q}", "{q}, apart from what concerns {a}", "Where {a} and {b} come in: {q}",
)


def rewrite(question: str, names: list[str], count: int) -> str:
    """Weaves neighbouring names into the question, another choice in each version."""
    bare = question.strip().rstrip("?").strip()
    names = names or ["other matters"]
    versions = []
    for i in range(count):
        a, b = names[(2 * i) % len(names)], names[(2 * i + 1) % len(names)]
        text = _TEMPLATES[i % len(_TEMPLATES)].format(q=bare, a=a, b=b)
        versions.append(text[0].upper() + text[1:] + "?")
    return json.dumps({"questions": versions}, ensure_ascii=False)
