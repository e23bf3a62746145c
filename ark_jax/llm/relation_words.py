"""Lists of English words that occur in names of relations, by their grammatical role."""


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


PREPOSITIONS = _word_set(
    "about after against as at before by during for from in into near of on over through to under "
    "with within"
)
ADVERBS = _word_set("here there now originally")
_MODIFIERS = _word_set("executive co also most")  # and words in -ly
# Participle -> past tense, where these differ.
_PAST_TENSES = {
    "begun": "began",
    "born": "bore",
    "chosen": "chose",
    "drawn": "drew",
    "driven": "drove",
    "given": "gave",
    "grown": "grew",
    "known": "knew",
    "shown": "showed",
    "spoken": "spoke",
    "sung": "sang",
    "taken": "took",
    "worn": "wore",
    "written": "wrote",
}
_PARTICIPLES = _PAST_TENSES.keys() | _word_set(
    "brought bought built cast fought found held kept led left lost made met read run sent set "
    "sold spent taught told understood won"
)
_NO_PARTICIPLES = _word_set("bed breed feed need red seed shed speed")
# Participle of what the head itself does -> infinitive.
OWN_ACTS = {
    "appeared": "appear",
    "competed": "compete",
    "died": "die",
    "lived": "live",
    "originated": "originate",
    "participated": "participate",
    "played": "play",
    "served": "serve",
    "starred": "star",
    "studied": "study",
    "worked": "work",
}
# Participles of what the head did to things: awards won, works written.
DEEDS = _word_set(
    "built composed created designed directed fought founded held invented made owned produced "
    "published received taught won written"
)
# Participles of what happens at a place.
PLACED = _word_set(
    "baptised baptized based born built buried filmed formed founded headquartered held killed "
    "located married raised situated"
)
VERBS = _word_set(
    "adjoins affects belongs borders calls causes contains controls covers creates directs employs "
    "encodes features flows follows founds governs includes influences inhibits interacts joins "
    "knows leads likes lives makes manages means needs occurs owns plays precedes produces "
    "regulates represents requires sells serves shares speaks stars starts studies supplies "
    "supports teaches treats uses wins works writes"
)
PLACES_OF = {"place of birth": "born", "birth place": "born", "birthplace": "born"}
TIMES = {"year": "in what year", "date": "when", "day": "on what day", "time": "when"}
ONE_OF_MANY = _word_set("example form instance kind member part type")
_PERSONS = _word_set(
    "actress artist boss bride brother chief child children dad daughter father friend groom guest "
    "head heir husband king member mother parent partner patron people person pupil queen rival "
    "sibling sister son spouse star student teacher wife"
)
_PERSON_ENDINGS = ("er", "eur", "ian", "ist", "or")
_THINGS = _word_set(  # words in -er or -or that are no persons
    "border center centre chamber chapter character cluster color computer cover disorder factor "
    "filter flavor floor folder gender harbor headquarter layer letter meter motor newspaper "
    "number order paper parameter poster power quarter register river sector semester sensor "
    "theater tower trailer vector water weather"
)
_SINGULAR_ENDINGS = ("is", "ss", "us")


def is_participle(word: str) -> bool:
    """Whether the word is a past participle, such as "directed" or "written"."""
    regular = len(word) > 3 and word.endswith("ed") and word not in _NO_PARTICIPLES
    return regular or word in _PARTICIPLES


def past_tense(participle: str) -> str:
    """The past tense for a participle: "wrote" for "written"."""
    return _PAST_TENSES.get(participle, participle)


def infinitive(verb: str) -> str:
    """The infinitive of one of `VERBS`: "study" for "studies"."""
    if verb.endswith("ies"):
        return verb.removesuffix("ies") + "y"
    return verb.removesuffix("es" if verb.endswith("ches") else "s")


def is_modifier(word: str) -> bool:
    """Whether the word may stand before a participle: executive produced, partially contained."""
    return word in _MODIFIERS or word.endswith("ly")


def is_plural(noun: str) -> bool:
    """Whether a noun seems to be a plural."""
    return noun == "children" or (noun.endswith("s") and not noun.endswith(_SINGULAR_ENDINGS))


def is_person(noun: str) -> bool:
    """Whether a noun, or its singular, seems to name a person: founder, parents."""
    single = noun.removesuffix("s")
    if noun in _PERSONS or single in _PERSONS:
        return True
    return single not in _THINGS and len(single) > 4 and single.endswith(_PERSON_ENDINGS)
