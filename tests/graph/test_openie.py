"""Records that another system extracted."""

import collections
import json

import pytest
from support.paths import DATA

from ark_jax.data import readers
from ark_jax.data.records import Chunk, Document
from ark_jax.graph import openie
from ark_jax.graph.extract import parse_reply

PANS, SOLD, WOOL = "The Salt Company owned\nthe pans.", "Later Ada Lorn sold them.", "Wool is dear."
DOCUMENTS = [Document("d1", "Salt", f"{PANS} {SOLD}"), Document("d2", "", WOOL)]
CHUNKS = {
    "d1": [Chunk("d1#0", "d1", 0, 32, 8, PANS), Chunk("d1#1", "d1", 33, 58, 6, SOLD)],
    "d2": [Chunk("d2#0", "d2", 0, 13, 4, WOOL)],
}
ROWS = [
    {
        "passage": "Salt\nThe Salt Company owned the pans. Later Ada Lorn sold them.",
        "extracted_entities": ["salt company", "Ada Lorn", "nobody"],
        "extracted_triples": [
            ["Salt Company", "owned", "pans"],
            ["Ada Lorn", "sold", "pans"],
            ["x", "y"],
            [],
        ],
    },
    {"text": WOOL, "extracted_entities": [], "extracted_triples": []},
]


def written(folder, value):
    path = folder / "openie.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_entities_and_triples_are_assigned_to_the_chunks_that_name_them(tmp_path):
    replies = openie.recorded_replies(written(tmp_path, {"docs": ROWS}), DOCUMENTS, CHUNKS)
    assert sorted(replies) == ["d1#0", "d1#1", "d2#0"]
    entities, relations, lost = parse_reply(replies["d1#0"], "d1#0")
    assert [e.name for e in entities] == ["salt company", "nobody"]  # in no chunk: in the first one
    assert [(r.source, r.description, r.target) for r in relations] == [
        ("Salt Company", "owned", "pans")
    ]
    assert len(lost) == 2  # of two parts, of none
    entities, relations, lost = parse_reply(replies["d1#1"], "d1#1")
    assert (
        [e.name for e in entities] == ["Ada Lorn"]
        and [r.source for r in relations] == ["Ada Lorn"]
        and not lost
    )


def test_a_name_is_assigned_to_the_chunk_that_contains_it_as_a_word(tmp_path):
    documents, texts = (
        [Document("d", "", "They planned it. Ann left.")],
        ("They planned it.", "Ann left."),
    )
    chunks = {"d": [Chunk(f"d#{i}", "d", 0, 1, 1, text) for i, text in enumerate(texts)]}
    row = {
        "text": documents[0].text,
        "extracted_entities": ["Ann", "plan"],
        "extracted_triples": [],
    }
    path = written(tmp_path, {"docs": [row]})
    path.write_text("\ufeff" + path.read_text(), encoding="utf-8")
    replies = openie.recorded_replies(path, documents, chunks)
    assert [[e.name for e in parse_reply(replies[id], id)[0]] for id in ("d#0", "d#1")] == [
        ["plan"],
        ["Ann"],
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "cannot be read as JSON"),
        ([], 'no list "docs"'),
        ({"docs": {}}, 'no list "docs"'),
        ({"docs": [{"extracted_entities": []}]}, "entry 1: no text and no passage"),
        (
            {"docs": [ROWS[1], {**ROWS[0], "extracted_triples": None}]},
            "entry 2: extracted_triples is not a list",
        ),
        ({"docs": ROWS[1:]}, "no entry for document 'd1'"),
    ],
)
def test_an_invalid_openie_file_is_refused(tmp_path, value, said):
    with pytest.raises(ValueError, match=said):
        openie.recorded_replies(written(tmp_path, value), DOCUMENTS, CHUNKS)


def test_a_missing_openie_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.graph\.openie: .*gone\.json does not exist"):
        openie.recorded_replies(tmp_path / "gone.json", DOCUMENTS, CHUNKS)


@pytest.mark.skipif(
    not (DATA / "musique_openie").is_dir(), reason="the real data are not at hand (ARK_DATA)"
)
def test_openie_records_of_1890_real_passages_are_read():
    folder = DATA / "musique_openie"
    documents = readers.load(folder / "musique_train.json").documents
    chunks = {d.id: [Chunk(f"{d.id}#0000", d.id, 0, len(d.text), 0, d.text)] for d in documents}
    replies = openie.recorded_replies(next(folder.glob("openie_*.json")), documents, chunks)
    read = [parse_reply(text, id) for id, text in replies.items()]
    assert len(replies) == 1890
    assert sum(len(x[0]) for x in read) == 17_658
    assert sum(len(x[1]) for x in read) == 17_419 - 185
    lost = collections.Counter(x.reason for row in read for x in row[2])
    assert lost.total() == 185 and all(reason.startswith("triple with ") for reason in lost)
