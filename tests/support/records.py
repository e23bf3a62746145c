"""Helpers."""

from ark_jax.graph.extract import Entity, Relation
from ark_jax.graph.store import KnowledgeGraph


def records() -> KnowledgeGraph:
    entities = [
        Entity("The Long Staff", "Object", "An oak post.", "c1"),
        Entity("Long Staff", "object", "An oak post.", "c2"),
        Entity('"long staff"', "gauge", "Bolted in 1790.", "c2"),
        Entity("Long Staff", "OBJECT", "", "c1"),
        Entity("Quill", "person", "A chandler.", "c1"),
        Entity("Müller", "person", "Ein Müller.", "c3"),
        Entity(" . ", "object", "Nameless.", "c1"),
    ]
    relations = [
        Relation("Quill", "Long Staff", "He read it.", 3.0, "c1"),
        Relation("the long staff", "QUILL", "Read by him.", 4.5, "c2"),
        Relation("quill", "Ossel Sound", "He sailed it.", 2.0, "c4"),
        Relation("Long Staff", "the LONG staff", "Itself.", 9.0, "c1"),
        Relation("Quill", "''", "Nobody.", 9.0, "c1"),
    ]
    return KnowledgeGraph.from_records(entities, relations)
