"""Graphs, questions and rewrites made without a language model, by statistics and templates.

They have the form of a model's replies, so that the pipeline runs on any text at no cost. A model's
graph and questions are better.
"""

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence

from ark_jax.llm.cloze import write_cloze
from ark_jax.llm.names import (
    candidate_terms,
    names_and_terms,
    rare_limit,
    rare_terms,
    split_sentences,
)
from ark_jax.text.word_boundaries import contains_words

_TEMPLATES = (
    "{q}? The text names {a} too.",
    "Think of {a} and {b}. {q}?",
    "{q}? Compare {a}.",
    "Keep {a} in mind. {q}?",
    "{q}? The answer is neither {a} nor {b}.",
    "This is about {a}. {q}?",
    "{q}? The context is {a} and {b}.",
    "{a} is known already. {q}?",
    "{q}? Leave {a} aside.",
    "This is where {a} and {b} come in. {q}?",
)


def make_replies(calls: Sequence[Mapping]) -> list[str]:
    """Replies to calls.

    A call with `passage` gets a graph of it, one with `about` gets questions about these passages,
    and one with `question` gets versions of it.

    Args:
        calls: for each call the fields of its prompt.
    """
    passages = [fields["passage"] for fields in calls if "passage" in fields]
    passages += dict.fromkeys(x for fields in calls for x in fields.get("about", ()))
    frequency = Counter(term for passage in passages for term in candidate_terms(passage))
    max_frequency, replies = rare_limit(frequency), []
    for fields in calls:
        if "passage" in fields:
            title = fields.get("title", "")
            replies.append(extract_graph(fields["passage"], frequency, title, max_frequency))
        elif "about" in fields:
            replies.append(write_cloze(fields["about"], fields["count"], frequency))
        else:
            replies.append(rewrite_question(**fields))
    return replies


def extract_graph(
    passage: str, frequency: Mapping[str, int], title: str = "", max_frequency: int | None = None
) -> str:
    """A graph of a passage's capitalised names and rare terms.

    Names and terms are related if they share a sentence. Those of the title are related to all,
    since the whole passage is about them.

    Args:
        frequency: each of `candidate_terms` -> number of passages with it. A term is rare if at
            most two passages have it, or a hundredth of the number that have the most frequent
            one. If only this passage has it, it must occur twice.
        title: the title of the passage, without punctuation at its end.
        max_frequency: see `rare_terms`.

    Returns:
        Entities and relations in the format of the extraction prompt.
    """
    rare = rare_terms(passage, frequency, max_frequency)
    sentences = split_sentences(passage)
    sentences_by_name: dict[str, list[int]] = {
        name: list(range(len(sentences))) for name in names_and_terms(title, rare)
    }
    for number, sentence in enumerate(sentences):
        for name in names_and_terms(sentence, rare):
            if number in sentences_by_name.get(name, ()):
                continue
            sentences_by_name.setdefault(name, []).append(number)
    records = []
    for name, numbers in sentences_by_name.items():
        kind = "name" if name[0].isupper() else "term"
        description = " ".join(sentences[numbers[0]].split())
        description = description.replace("<|>", " ").replace("##", " ")
        records.append(f'("entity"<|>{name}<|>{kind}<|>{description})')
    pairs = Counter()
    for number in range(len(sentences)):
        names = [name for name, numbers in sentences_by_name.items() if number in numbers]
        pairs.update(itertools.combinations(names, 2))
    for (source, target), count in pairs.items():
        strength = min(count, 10)
        records.append(f'("relationship"<|>{source}<|>{target}<|>Named together.<|>{strength})')
    return "##\n".join([*records, "<|COMPLETE|>"])


def rewrite_question(
    question: str, names: Sequence[str], count: int, answers: Sequence[str] = ()
) -> str:
    """`count` versions of a question, each with other neighbouring names, as a JSON object.

    Each is a whole sentence beside the question. Words without a capital, which are often no names,
    are used if there is no name. A name that contains an answer, or is part of one, would reveal it
    and is left out.
    """
    bare = question.strip().rstrip("?").strip()
    names = [name for name in names if not _reveals_answer(name, answers)] or ["other matters"]
    names = [name for name in names if not name[0].islower()] or names
    versions = []
    for i in range(count):
        first, second = names[(2 * i) % len(names)], names[(2 * i + 1) % len(names)]
        text = _TEMPLATES[i % len(_TEMPLATES)].format(q=bare, a=first, b=second)
        versions.append(text[0].upper() + text[1:])
    return json.dumps({"questions": versions}, ensure_ascii=False)


def _reveals_answer(name: str, answers: Sequence[str]) -> bool:
    return any(contains_words(name, x) or contains_words(x, name) for x in answers)
