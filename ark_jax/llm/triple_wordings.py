"""Questions about one end of a triple, worded by rules of grammar, without a language model.

The rules use only the relation's text. "directed by" becomes "Who directed {entity}?" for the tail
and "What has {entity} directed?" for the head. They repeat the relation's words, which people often
do not; a model's wordings are better.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence

from ark_jax.llm.relation_words import (
    ADVERBS,
    DEEDS,
    ONE_OF_MANY,
    OWN_ACTS,
    PLACED,
    PLACES_OF,
    PREPOSITIONS,
    TIMES,
    VERBS,
    infinitive,
    is_modifier,
    is_participle,
    is_person,
    is_plural,
    past_tense,
)

PLACEHOLDER = "{entity}"
MOST_WORDS = 5  # of a relation that is a phrase; a longer one is quoted as a whole

E = "\0"  # stands for the placeholder until `_as_wordings`, since no relation contains it
_Sides = tuple[list[str], list[str]]  # questions for the head, questions for the tail


@dataclasses.dataclass(frozen=True)
class Wordings:
    """Questions about a relation, each with `{entity}` once in place of the known entity.

    Attributes:
        head: questions for the head; the tail is known.
        tail: questions for the tail; the head is known.
    """

    head: tuple[str, ...]
    tail: tuple[str, ...]


def word_relation(relation: str) -> Wordings:
    """Three or more questions for either end of a relation.

    Args:
        relation: its text, such as "directed by", "has genre", "place of birth".
    """
    words = _split_words(relation)
    if not words or len(words) > MOST_WORDS or not any(re.search("[a-z]", x) for x in words):
        return _as_wordings(_quote_relation(" ".join(relation.split()) or "related to"))
    return _as_wordings(_apply_rules(words))


def _as_wordings(sides: _Sides) -> Wordings:
    """The questions with the placeholder for E and a capital first letter, without repeats."""
    finish = lambda text: (text[:1].upper() + text[1:]).replace("\0", PLACEHOLDER)
    return Wordings(*(tuple(dict.fromkeys(map(finish, texts))) for texts in sides))


def _split_words(relation: str) -> list[str]:
    """The words of a relation such as "directedBy" or "place_of_birth", in lower case.

    Abbreviations keep their capitals.
    """
    text = relation.replace(E, " ").translate({ord("{"): "(", ord("}"): ")"})
    text = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text)  # directedBy, place_of_birth
    text = re.sub(r"(\w+ed)by\b", r"\1 by", text)  # directedby
    words = text.strip(" ?!.:;").split()
    words = [word if word.isupper() and len(word) > 1 else word.lower() for word in words]
    return words[:-1] if len(words) > 1 and words[-1] == "s" else words  # spouse_s


def _apply_rules(words: Sequence[str]) -> _Sides:
    """The questions of the first rule that knows such a relation."""
    rules: tuple[Callable[[Sequence[str]], _Sides | None], ...] = (
        _word_having,
        _word_being,
        _word_passive,
        _word_noun_with_participle,
        _word_verb,
        _word_ending_in_preposition,
        _word_starting_with_preposition,
    )
    for rule in rules:
        if wordings := rule(words):
            return wordings
    return _word_noun(words)


def _quote_relation(relation: str) -> _Sides:
    """Questions that quote the relation, for texts that no rule can word."""
    text = relation.translate({ord("{"): "(", ord("}"): ")", ord(E): " "})
    heads = [f'what has the relation "{text}" to {E}?', f'for what is {E} the "{text}"?']
    tails = [f'to what has {E} the relation "{text}"?', f'what is the "{text}" of {E}?']
    heads.append(f'which one does "{text}" link with {E}?')
    tails.append(f'with what does "{text}" link {E}?')
    return heads, tails


def _word_having(words: Sequence[str]) -> _Sides | None:
    """Wordings of relations such as "has genre"; None for others."""
    if words[0] not in ("has", "have", "had") or len(words) == 1:
        return None
    thing = " ".join(words[1:])
    heads, tails = _apply_rules(words[1:])
    return [f"what has the {thing} {E}?", *heads], [f"what {thing} does {E} have?", *tails]


def _word_being(words: Sequence[str]) -> _Sides | None:
    """Wordings of relations such as "is part of", "was born in"; None for others."""
    if words[0] not in ("is", "are", "was", "were") or len(words) == 1:
        return None
    predicate = words[1:]
    if predicate[0] in ("a", "an", "the") and len(predicate) > 1:
        predicate = predicate[1:]
    return _apply_rules(predicate)


def _word_passive(words: Sequence[str]) -> _Sides | None:
    """Wordings of relations such as "directed by", "participated in"; None for others."""
    if len(words) < 2 or words[-1] not in PREPOSITIONS or not is_participle(words[-2]):
        return None
    if not all(map(is_modifier, words[:-2])):
        return None
    *adverbs, participle, preposition = words
    if participle in OWN_ACTS:
        return _word_own_act(participle, preposition)
    phrase, relation = " ".join([*adverbs, participle]), " ".join(words)
    heads = [f"what was {relation} {E}?", f"who or what was {relation} {E}?"]
    if preposition == "by":
        past = " ".join([*adverbs, past_tense(participle)])
        heads.append(f"what has {E} {phrase}?")
        return heads, [
            f"who {past} {E}?",
            f"{E} was {phrase} by whom?",
            f"by whom was {E} {phrase}?",
            f"who was {E} {phrase} by?",
        ]
    tails = [f"{E} was {relation} what?", f"what was {E} {relation}?"]
    tails.append(f"{preposition} whom or what was {E} {phrase}?")
    if preposition in ("in", "at") and participle in PLACED:
        tails = [f"where was {E} {phrase}?", *tails[:2]]
    return [*heads, f"which one was {relation} {E}?"], tails


def _word_own_act(participle: str, preposition: str) -> _Sides:
    """Wordings of what the head itself does, such as "participated in"."""
    verb = OWN_ACTS[participle]
    act = f"{participle} {preposition}"
    heads = [f"who {act} {E}?", f"who or what {act} {E}?", f"which ones have {act} {E}?"]
    tails = [f"what did {E} {verb} {preposition}?", f"{E} {act} what?"]
    return heads, [*tails, f"{preposition} what did {E} {verb}?"]


def _word_noun_with_participle(words: Sequence[str]) -> _Sides | None:
    """Wordings of relations such as "languages spoken", "awards won"; None for others."""
    places = [i for i, word in enumerate(words) if is_participle(word)]
    if not places or not places[-1] or len(words) - places[-1] > 2:
        return None
    i = places[-1]
    ending = words[i + 1 :]
    if ending and ending[0] not in PREPOSITIONS | ADVERBS:
        return None
    start = i - 1 if i > 1 and is_modifier(words[i - 1]) else i
    things, relation = " ".join(words[:start]), " ".join(words)
    phrase = " ".join(words[start : i + 1])
    if ending and ending[0] in PREPOSITIONS:
        return _word_participle_with_preposition(things, phrase, ending[0])
    heads = [f"what has {E} among its {relation}?", f"whose {relation} include {E}?"]
    heads.append(f"{E} is one of the {relation} of what?")
    tails = [f"what are the {relation} of {E}?", f"for {E}, which {things} are {phrase}?"]
    if words[i] in OWN_ACTS:
        return heads, [f"what {things} has {E} {phrase}?", *tails]
    if words[i] in DEEDS and not ending:
        past = " ".join([*words[start:i], past_tense(words[i])])
        return [f"who {past} {E}?", *heads], [f"what {things} has {E} {phrase}?", *tails]
    return heads, [f"which {things} are {phrase} in {E}?", *tails]


def _word_participle_with_preposition(things: str, phrase: str, preposition: str) -> _Sides:
    """Wordings of relations such as "films starred in": things, participle, preposition."""
    is_own = phrase in OWN_ACTS
    has, be = ("has", "") if is_own else ("is", "is ")
    ending = f"{be}{phrase} {preposition}"
    heads = [f"{who} {ending} {E}?" for who in ("what", "who or what", "which one")]
    return heads, [
        f"which {things} {has} {E} {phrase} {preposition}?",
        f"{preposition} which {things} {has} {E} {phrase}?",
        f"{E} {has} {phrase} {preposition} which {things}?",
    ]


def _word_verb(words: Sequence[str]) -> _Sides | None:
    """Wordings of relations such as "contains", "plays for", "influenced"; None for others."""
    relation = " ".join(words)
    if len(words) == 1 and is_participle(words[0]):
        past = past_tense(relation)
        heads = [f"who {past} {E}?", f"who or what {past} {E}?", f"by whom was {E} {relation}?"]
        return heads, [
            f"what has {E} {relation}?",
            f"whom or what has {E} {relation}?",
            f"{E} {past} what?",
        ]
    if words[0] not in VERBS or (len(words) > 1 and words[-1] not in PREPOSITIONS):
        return None
    base = " ".join([infinitive(words[0]), *words[1:]])
    heads = [f"what {relation} {E}?", f"who or what {relation} {E}?", f"which one {relation} {E}?"]
    return heads, [
        f"what does {E} {base}?",
        f"whom or what does {E} {base}?",
        f"{E} {relation} what?",
    ]


def _word_ending_in_preposition(words: Sequence[str]) -> _Sides | None:
    """Wordings of relations such as "capital of", "member of", "next to"; None for others."""
    if len(words) < 2 or words[-1] not in PREPOSITIONS:
        return None
    preposition, relation = words[-1], " ".join(words)
    article = "the " if preposition == "of" else ""
    if words[0] in ONE_OF_MANY:
        article = "an " if words[0][0] in "aeiou" else "a "
    thing = " ".join(words[:-1])
    heads = [f"what is {article}{relation} {E}?", f"who or what is {article}{relation} {E}?"]
    heads.append(f"which one is {article}{relation} {E}?")
    tails = [f"what is {E} {article}{relation}?", f"{E} is {article}{relation} what?"]
    return heads, [*tails, f"{preposition} whom or what is {E} {article}{thing}?"]


def _word_starting_with_preposition(words: Sequence[str]) -> _Sides | None:
    """Wordings of relations such as "in language", "at location"; None for others."""
    if len(words) < 2 or words[0] not in PREPOSITIONS:
        return None
    preposition, thing = words[0], " ".join(words[1:])
    heads = [f"what is {preposition} the {thing} {E}?", f"which one is {preposition} {E}?"]
    heads.append(f"what is there {preposition} {E}?")
    tails = [f"{preposition} what {thing} is {E}?", f"what {thing} is {E} {preposition}?"]
    return heads, [*tails, f"what is the {thing} of {E}?"]


def _word_noun(words: Sequence[str]) -> _Sides:
    """Wordings of any other relation, such as "genre", "place of birth", "parents"."""
    relation = " ".join(words)
    main = words[words.index("of") - 1] if "of" in words[1:] else words[-1]
    plural = is_plural(main)
    who = "who" if is_person(main) else "what"
    are = "are" if plural else "is"
    tails = [f"{who} {are} the {relation} of {E}?", f"{who} {are} {E}'s {relation}?"]
    tails.append(f"which {relation} does {E} have?")
    if plural:
        heads = [f"whose {relation} include {E}?", f"what has {E} among its {relation}?"]
        heads.append(f"{E} is one of the {relation} of what?")
    else:
        heads = [f"whose {relation} is {E}?", f"what has {E} as its {relation}?"]
        whom = "whom or what" if who == "who" else "what"
        heads.append(f"{E} is the {relation} of {whom}?")
    if main in TIMES and len(words) > 1 and words[-1] == main:
        tails.insert(0, f"{TIMES[main]} was the {' '.join(words[:-1])} of {E}?")
    if relation in PLACES_OF:
        tails.insert(0, f"where was {E} {PLACES_OF[relation]}?")
        heads.insert(0, f"who was {PLACES_OF[relation]} in {E}?")
    return heads, tails
