"""Files that are small and would take hours or all memory are passed over, and named."""

import contextlib
import gzip
import os
import re
import time
import zipfile
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.input_files import write

from ark_jax.data import readers
from ark_jax.data.converters import _convert
from ark_jax.data.records import Unreadable

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
MAIN = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"


def word_file(path, body: bytes):
    """A Word file with this in its body."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        types = '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.'
        types += 'relationships+xml"/><Override PartName="/word/document.xml" '
        types += f'ContentType="{MAIN}"/>'
        part = f'<Types xmlns="{PACKAGE}/content-types">{types}</Types>'
        packed.writestr("[Content_Types].xml", part)
        link = f'<Relationship Id="a" Type="{OFFICE}" Target="word/document.xml"/>'
        part = f'<Relationships xmlns="{PACKAGE}/relationships">{link}</Relationships>'
        packed.writestr("_rels/.rels", part)
        head = f'<w:document xmlns:w="{WORD}"><w:body>'.encode()
        packed.writestr("word/document.xml", head + body + b"</w:body></w:document>")


def pdf_file(path, contents: bytes, page: bytes = b"", *more: bytes, kids: int = 1):
    """A PDF whose page has these contents; `more` are further objects, from number 5 on."""
    tree = b"<</Type/Pages/Kids[" + b"3 0 R " * kids + b"]/Count %d>>" % kids
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R" + page + b">>"
    data, places = b"%PDF-1.4\n", []
    for i, part in enumerate([b"<</Type/Catalog/Pages 2 0 R>>", tree, page, contents, *more], 1):
        places.append(len(data))
        data += b"%d 0 obj\n" % i + part + b"\nendobj\n"
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1)
    end = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    path.write_bytes(data + head + table + end % (len(places) + 1, len(data)))


def stream(data: bytes, facts: bytes = b"") -> bytes:
    return b"<</Length %d" % len(data) + facts + b">>stream\n" + data + b"\nendstream"


def forms(path):
    """A PDF of forms that draw the next one ten times each."""
    draw, form = b"/X Do " * 10, b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]"
    link = lambda i: b"/Resources<</Font<</F 5 0 R>>/XObject<</X %d 0 R>>>>" % i
    text, font = b"BT /F 9 Tf (a) Tj ET ", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    inner = [stream(text + draw, form + link(i + 1)) for i in range(6, 15)]
    pdf_file(path, stream(draw), link(6), font, *inner, stream(text, form))


SPAN = b'<w:tc><w:tcPr><w:gridSpan w:val="100000000"/></w:tcPr><w:p><w:r><w:t>a</w:t></w:r></w:p>'
MAKERS = {
    "forms.pdf": (forms, "memory"),
    "pages.pdf": (lambda path: pdf_file(path, stream(b""), kids=300_000), "300,000 pages"),
    "span.docx": (
        lambda path: word_file(path, b"<w:tbl><w:tr>" + SPAN + b"</w:tc></w:tr></w:tbl>"),
        "640 MiB of memory",
    ),
    "zip.docx": (lambda path: word_file(path, b" " * (1 << 26)), "unpacks to 64 MiB"),
    "packed.txt": (lambda path: path.write_bytes(gzip.compress(b"a " * (1 << 25))), "unpacks to"),
    "pipe.txt": (os.mkfifo, "no regular file"),
    "device.txt": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_bomb_is_passed_over_and_the_rest_is_read(tmp_path, name):
    make, reason = MAKERS[name]
    write(tmp_path, {"b.txt": "The tide."})
    make(tmp_path / name)
    start = time.monotonic()
    corpus, problems = readers.read(tmp_path)
    assert time.monotonic() - start < 60  # its limit is 6 s of a processor
    assert not problems and [document.id for document in corpus.documents] == ["b.txt"]
    (remark,) = corpus.remarks
    assert remark.file.endswith(name) and reason in remark.message


def test_a_pdf_that_unpacks_to_far_more_is_passed_over(tmp_path):
    page = b"BT /F 9 Tf (tide) Tj ET\n" * (1 << 22)
    pdf_file(tmp_path / "a.pdf", stream(zlib.compress(page, 9), b"/Filter/FlateDecode"))
    corpus, _ = readers.read(tmp_path)
    assert "memory" in corpus.remarks[0].message or "processor" in corpus.remarks[0].message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "---\ntitle: a" + " " * 200_000 + "b\n---\ntide"),
        ("a.html", "<main>tide</main>" * 50_000),
        ("b.html", "<body>" + '<a href="#x"><div>' * 20_000 + "tide"),
        ("c.html", "<body>tide" + "<sup>" * 20_000),
        ("d.html", "<body>tide" + "<div>" * 200 + "<header>" * 100_000),
    ],
)
def test_text_is_read_in_linear_time(tmp_path, name, text):
    write(tmp_path, {name: text})
    start = time.process_time()
    with contextlib.suppress(Unreadable):  # HTML that is nested too deeply holds no text
        _ = list(_convert(tmp_path / name, ""))
    assert time.process_time() - start < 5


def one_text_in_many_rows():
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), ["a" * (1 << 22)])
    return pa.table({"text": text})


PARQUET = {
    "dictionary": (one_text_in_many_rows, True, "memory|far more than its size"),
    "page": (lambda: pa.table({"text": ["a" * (1 << 28)] * 3}), False, "memory"),
    "rows": (lambda: pa.table({"text": ["x"] * 3_000_000}), True, "3,000,000 rows in"),
}


@pytest.mark.parametrize(
    "kind", ["dictionary", pytest.param("page", marks=pytest.mark.slow), "rows"]
)
def test_a_bomb_of_parquet_is_one_problem(tmp_path, kind):
    make, dictionary, reason = PARQUET[kind]
    file = tmp_path / "documents.parquet"
    options = {"use_dictionary": dictionary, "write_statistics": False}
    pq.write_table(make(), file, compression="zstd", **options)
    _, problems = readers.read(tmp_path)
    assert re.search(reason, problems[0].message)


def test_rows_have_limits(tmp_path):
    rows = '{"id": "a", "text": "x"}\n'
    packed = gzip.compress((rows + '{"id": "b", "text": "' + "y" * (1 << 25) + '"}').encode())
    (tmp_path / "documents.jsonl").write_bytes(packed)
    _, problems = readers.read(tmp_path)
    assert [p.message for p in problems if "unpacks to more than 16 MiB" in p.message]


def test_a_pipe_of_rows_is_one_problem(tmp_path):
    for name in ("documents.jsonl", "questions.parquet"):
        os.mkfifo(tmp_path / name)
    _, problems = readers.read(tmp_path)
    assert sum("no regular file" in p.message for p in problems) == 2


def test_a_table_of_very_many_columns_or_items_takes_no_time(tmp_path):
    write(tmp_path, {"documents.csv": "text" + ",a" * 300_000 + "\nx" + ",b" * 300_000})
    start = time.process_time()
    _, problems = readers.read(tmp_path)
    assert "occurs twice" in problems[0].message and time.process_time() - start < 10
