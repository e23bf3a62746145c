"""Filters on metadata: equal to a brute filter, exact under every kind of index, kept by files."""

import datetime
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import pairs, tiny
from support.brute_force import bm25

import ark_jax as ark
from ark_jax.data import readers
from ark_jax.data.records import Document, metadata_json, with_title
from ark_jax.index import folder as folders
from ark_jax.index import metadata as filters
from ark_jax.index import tables
from ark_jax.retrieval import late
from ark_jax.retrieval.chunks import ChunkRules

QUESTION = "Who founded the Tidal Board?"
SENTENCES = tiny.DOCUMENTS.read_text(encoding="utf-8").replace("\\n", " ").split(". ")
VALUES = {
    "year": st.integers(2018, 2022) | st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1]),
    "price": st.sampled_from([-1.5, 0.0, 2.0, 2.25, 1e300]),
    "lang": st.sampled_from(["en", "de", "it's", "", 'a "b"', "e%"]),
    "day": st.dates(datetime.date(2019, 12, 30), datetime.date(2020, 1, 3)).map(str),
}
ROWS = st.lists(
    st.fixed_dictionaries({}, optional=VALUES | {"draft": st.booleans(), "tags": st.just(["a"])}),
    min_size=1,
    max_size=8,
)
COMPARE = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
}


def literal(value) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def known(name: str, test):
    """A filter of one column; unknown where the value is missing."""
    return lambda row: None if row.get(name) is None else test(row[name])


@st.composite
def comparisons(draw) -> tuple:
    """The text of a filter, and the filter in Python: row -> True, False or None."""
    name = draw(st.sampled_from([*VALUES, "draft", "tags"]))
    if name == "draft":
        return "draft", known(name, bool)
    if name == "tags":
        text = draw(st.sampled_from("ab"))
        return f"'{text}' in tags", known(name, lambda value: text in value)
    numbers = VALUES["year"] | VALUES["price"] | st.sampled_from([2019.5, 2**63, -1e30])
    literals = VALUES[name] if name in ("lang", "day") else numbers
    form = draw(st.sampled_from(["compare", "in", "null", "between"]))
    if form == "null":
        is_not = draw(st.booleans())
        text = f"{name.upper()} IS {'NOT ' * is_not}NULL"
        return text, lambda row: (row.get(name) is None) != is_not
    if form == "in":
        values = draw(st.lists(literals, min_size=1, max_size=3))
        word, is_in = draw(st.sampled_from([("in", True), ("not in", False)]))
        listed = ", ".join(map(literal, values))
        return f"{name} {word}({listed})", known(name, lambda value: (value in values) == is_in)
    if form == "between":
        low, high = draw(literals), draw(literals)
        text = f'"{name}" between {literal(low)} and {literal(high)}'
        return text, known(name, lambda value: low <= value <= high)
    sign, value = draw(st.sampled_from(sorted(COMPARE))), draw(literals)
    text = f"{name}{sign}{literal(value)}"
    return text, known(name, lambda x: COMPARE[sign](x, value))


def negated(part):
    return f"not ({part[0]})", lambda row: None if part[1](row) is None else not part[1](row)


def combined(word: str, parts):
    """Parts joined by "and" or "or" of three values."""
    decisive = word == "or"

    def test(row):
        values = [part[1](row) for part in parts]
        return decisive if decisive in values else None if None in values else not decisive

    return f" {word} ".join(f"({part[0]})" for part in parts), test


EXPRESSIONS = st.recursive(
    comparisons(),
    lambda parts: (
        parts.map(negated)
        | st.builds(combined, st.sampled_from(["and", "or"]), st.lists(parts, min_size=2))
    ),
    max_leaves=6,
)


def columns_of(rows) -> dict:
    typed = filters.typed_fields(map(metadata_json, rows))
    return {field.name: typed.field(i) for i, field in enumerate(typed.type)}


EXTREMES = [{"year": -(2**63)}, {"year": 2**63 - 1}]


@settings(max_examples=300, deadline=None)
@given(ROWS, EXPRESSIONS)
@example(EXTREMES, (f"year != {2**63}", lambda row: True))
@example(EXTREMES, (f"year in ({-(2**63)})", lambda row: row["year"] == -(2**63)))
def test_a_filter_equals_a_brute_one(rows, expression):
    text, test = expression
    every = {"year": 2020, "price": 0.5, "lang": "en", "day": "2020-01-01"}
    rows = [*rows, every | {"draft": True, "tags": []}]  # so that each column is there
    mask = filters._Filter(text, columns_of(rows), len(rows)).mask()
    assert mask.tolist() == [test(row) is True for row in rows], text


def test_and_binds_more_tightly_than_or_and_not_than_both():
    columns = columns_of([{"a": 1, "b": 0}, {"a": 0, "b": 1}, {"a": 0, "b": 0}])
    mask = lambda where: filters._Filter(where, columns, 3).mask().tolist()
    assert mask("a = 1 or b = 1 and a = 1") == [True, False, False]
    assert mask("not a = 1 and b = 1") == [False, True, False]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "number"),
        ([1, 2.5, 10**30], "number"),
        ([True, False], "true or false"),
        (["2020-01-05", "2020-01-05T10:00:00+02:00"], "date"),
        (["2020-13-45", "2020-01-05"], "text"),
        (["20200105", "20200106"], "text"),
        (["1", 2], "text"),
        ([["a", 1], []], "list"),
        ([{"a": 1}, "b"], "text"),
    ],
)
def test_a_column_has_the_type_of_all_its_values(values, kind):
    (column,) = columns_of([{"x": value} for value in values]).values()
    assert filters._KINDS[column.type] == kind and len(column) == len(values)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("yaer = 3", "there is no column 'yaer', at character 1, before 'yaer = 3'; the columns"),
        ("year = 'x'", "year is a number, at character 8, before \"'x'\""),
        ("lang = 3", "lang is a text in single quotes, at character 8, before '3'"),
        ("day > '2020'", "day is a date such as '2020-12-31', at character 7"),
        ("tags = 'a'", "tags is a list: write 'x' in LIST, at character 8"),
        ("draft = 3", "draft is true or false, at character 9"),
        ("year like '2%'", "in, between or is null is expected, at character 6"),
        ("year = ", "year is a number, at the end; the columns are day (date), draft (true or"),
        ("(year = 3", "')' is expected, at the end"),
        ("year = 3)", "`and`, `or` or the end is expected, at character 9"),
        ("year ~ 3", "this is not understood, at character 6, before '~ 3'"),
        ("lang = 'a", "a quote is not closed, at character 8"),
        ("3 = year", "'in' is expected, at character 3"),
        ("'x' in lang", "lang is no list, at character 8"),
        ("year not 3", "is expected, at character 10"),
        ("not", "a column is expected, at the end"),
        ("(" * 5000, "it is nested too deeply"),
        ("a" * 70000, "it has more than 65,536 characters"),
    ],
)
def test_a_wrong_filter_is_told_with_its_place_and_the_columns(where, message):
    row = {"year": 2020, "lang": "en", "day": "2020-01-01", "draft": True, "tags": ["a"]}
    with pytest.raises(ValueError) as caught:
        filters._Filter(where, columns_of([row]), 1).mask()
    assert message in str(caught.value) and "year (number)" in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def documents(count: int = 40) -> list[Document]:
    """Documents of a few chunks each; each fifth has no metadata."""
    rows = (
        {"year": 2000 + i % 7, "lang": ("en", "de")[i % 2]} if i % 5 else {} for i in range(count)
    )
    return [
        Document(f"d{i}", "", ". ".join(SENTENCES[3 * i : 3 * i + 6]), metadata=metadata_json(row))
        for i, row in enumerate(rows)
    ]


WHERE = "year >= 2003 and lang = 'en'"


def passes(document: Document) -> bool:
    row = json.loads(document.metadata or "{}")
    return row.get("year", 0) >= 2003 and row["lang"] == "en"


@pytest.fixture(autouse=True)
def on_a_mesh(mesh):
    """Every test enters the same mesh, and leaves it."""


RULES = ChunkRules(tokens=32, overlap=4)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a model of texts and one of tokens."""
    place = tiny.retrievers(tmp_path_factory.mktemp("models"), "texts")
    shutil.move(tiny.multi_vector(tmp_path_factory.mktemp("m"), "a") / "a", place / "tokens")
    return place


@pytest.mark.parametrize(
    ("model", "bits"), [("texts", 32), ("texts", 16), ("tokens", 32), ("tokens", 2)]
)
@pytest.mark.parametrize("by", ["dense", "bm25", "hybrid"])
def test_a_search_ranks_the_chunks_that_pass_and_no_others(model, bits, by, models, tmp_path):
    index = build(models / model, bits, tmp_path)
    chosen = [x.document in {d.id for d in documents() if passes(d)} for x in index.chunks]
    rows = np.flatnonzero(chosen).tolist()
    assert late.SCREENED < len(rows) < len(index) / 2  # codes are screened
    for k in (1, 12, len(index)):
        hits = index.search([QUESTION, "salt"], k=k, by=by, where=WHERE)
        everything = index.search([QUESTION, "salt"], k=len(index), by=by)
        ids = [{x.id: i for i, x in enumerate(index.chunks)}[hit.chunk] for hit in hits[0]]
        assert set(ids) <= {*rows}
        assert len(ids) == min(k, len(rows)) or by == "bm25"
        if by == "bm25":
            texts = [chunk.passage for chunk in index.chunks]
            assert ids == bm25([QUESTION], texts, [rows], k)[0]
        if by == "dense":  # the order of all chunks, without the others
            for found, whole in zip(hits, everything, strict=True):
                exact = [x for x in whole if x.document in {d.id for d in documents() if passes(d)}]
                assert found == exact[:k]


def build(model, bits, tmp_path) -> ark.Index:
    return ark.Index.build(tmp_path / "i", model, documents(), rules=RULES, bits=bits)


def test_a_reranker_orders_the_chunks_that_pass(models, tmp_path):
    folder = pairs.write_classifier(tmp_path / "r", "bert")
    index = ark.Index.build(
        tmp_path / "i", models / "texts", documents(), rules=RULES, reranker=folder
    )
    plain = index.search([QUESTION], k=50, where=WHERE, rerank=False)[0]
    texts = [(QUESTION, with_title(hit.title, hit.text)) for hit in plain]
    best = np.argsort(-index.reranker.score(texts), kind="stable")[:5]
    found = index.search([QUESTION], k=5, where=WHERE)[0]
    assert [hit.chunk for hit in found] == [plain[i].chunk for i in best]
    assert index.search([QUESTION], where="year = 1") == [[]]


def test_metadata_follow_documents_that_come_change_and_go(models, tmp_path):
    index = build(models / "texts", 32, tmp_path)
    years = lambda index: {
        hit.document: hit.metadata["year"]
        for hit in index.search([QUESTION], k=999, by="dense", where="year is not null")[0]
    }
    expected = {d.id: json.loads(d.metadata)["year"] for d in documents() if d.metadata}
    assert years(index) == expected
    changed = [Document("d1", "", "A bell.", metadata='{"year": 1}'), Document("new", "", "B.")]
    added = index.add(changed)
    assert years(added) == expected | {"d1": 1}
    fewer = [*documents()[5:], *changed]
    again = ark.Index.build(tmp_path / "i", models / "texts", fewer, rules=RULES)
    kept = {d.id for d in fewer}
    assert years(again) == {x: y for x, y in (expected | {"d1": 1}).items() if x in kept}
    assert years(index) == expected  # what is open stays open
    anew = ark.Index.build(tmp_path / "anew", models / "texts", fewer, rules=RULES)
    path = lambda x: x.folder / x.manifest.folder / filters.DOCUMENTS_FILE
    assert path(again).read_bytes() == path(anew).read_bytes()


def test_an_index_without_metadata_opens_and_says_what_to_do(models, tmp_path):
    corpus = tmp_path / "c.jsonl"
    rows = [{"id": f"{i}", "text": x, "year": i} for i, x in enumerate(SENTENCES[:9])]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = ark.Index.build(tmp_path / "i", models / "texts", corpus)
    hits = index.search(["salt"], where="year < 5", by="dense")[0]
    make_old(index)
    old = ark.Index.open(tmp_path / "i")
    assert old.search(["salt"])[0][0].metadata == {}
    with pytest.raises(ValueError, match=r"was made without metadata; `ark-jax index` with the sa"):
        old.search(["salt"], where="year < 5")
    again = ark.Index.build(tmp_path / "i", models / "texts", corpus)
    assert again.search(["salt"], where="year < 5", by="dense")[0] == hits


def make_old(index: ark.Index) -> None:
    """Takes from an index what versions before metadata did not write."""
    place = index.folder / index.manifest.folder
    table = tables.Stored(place)._table.select(["id", "digest"])
    new = shutil.copytree(place, index.folder / "unfinished" / "files")
    with pa.ipc.new_file(new / filters.DOCUMENTS_FILE, table.schema) as file:
        file.write_table(table.take(list(range(len(table)))))
    facts = vars(index.manifest) | {"rules": index.manifest.rules}
    folders.publish(
        index.folder, new, {x: y for x, y in facts.items() if x not in ("files", "folder")}
    )


FRONT = "---\ntitle: T\nyear: 2020\ndate: 2020-01-05\ntags: [a, b]\n---\n# Head\n\nA text.\n"
KEPT = {"year": 2020, "lang": "en"}
ROW = {"id": "a", "text": "A text.", **KEPT}


@pytest.mark.parametrize(
    ("name", "content", "metadata"),
    [
        (
            "c.csv",
            "id,text,Year,lang,zip\na,A text.,2020,en,01\n",
            {"year": 2020, "lang": "en", "zip": "01"},
        ),
        (
            "c.jsonl",
            json.dumps(ROW | {"none": None, "long": "x" * 2000}),
            {"year": 2020, "lang": "en"},
        ),
        ("c.jsonl", json.dumps({"text": "A", "metadata": {"year": 1, "title": "T"}}), {"year": 1}),
        (
            "c.jsonl",
            json.dumps({"page_content": "A", "metadata": {"source": "s", "title": "T"}}),
            {"source": "s"},
        ),
        (
            "c.jsonl",
            "\n".join(
                json.dumps({"id": f"{i}", "document": "d", "text": "A text", "y": 1, "page": i})
                for i in range(2)
            ),
            {"y": 1},
        ),
        ("d/documents.jsonl", json.dumps(ROW), {"year": 2020, "lang": "en"}),
        (
            "d/corpus.jsonl",
            json.dumps({"_id": "a", "text": "b", "metadata": {"url": "u"}}),
            {"url": "u"},
        ),
        ("d/a.md", FRONT, {"year": 2020, "date": "2020-01-05", "tags": ["a", "b"]}),
        ("d/a.md", "---\na: &x [1]\nb: *x\n---\nA text.\n", {}),
        ("d/a.md", "---\na: [1\n---\nA text.\n", {}),
    ],
)
def test_files_keep_the_further_fields_of_documents(name, content, metadata, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    (document,) = readers.load(path.parent if "/" in name else path).documents
    assert json.loads(document.metadata or "{}") == metadata


def test_parquet_and_rows_in_memory_keep_dates(models, tmp_path):
    day = datetime.date(2020, 1, 5)
    rows = [{"text": "Salt.", "day": day, "n": 1}, {"text": "Tide.", "day": None, "n": 2}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    for number, corpus in enumerate([tmp_path / "c.parquet", rows, pa.Table.from_pylist(rows)]):
        index = ark.Index.build(tmp_path / f"{number}", models / "texts", corpus)
        (hit,) = index.search(["x"], by="dense", where="day <= '2020-01-05' or n in (7)")[0]
        assert (hit.text, hit.metadata) == ("Salt.", {"day": "2020-01-05", "n": 1})
        assert index.search(["x"], by="dense", where="id = 'x'") == [[]]
