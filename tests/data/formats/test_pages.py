"""Folders of files: what is read, what is named as unreadable, and where headings stand."""

import re

import pypdf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.input_files import write
from support.paths import REPOSITORY

from ark_jax.__main__ import _main
from ark_jax.data import readers
from ark_jax.data.records import Section
from ark_jax.data.rows import has_visible

LINE = st.from_regex(r"[A-Za-zäßé東京][A-Za-z0-9äßé東京 ,]{0,20}[a-z]", fullmatch=True)
PIECES = st.lists(st.tuples(st.integers(1, 4), LINE, LINE), min_size=1, max_size=5)


def expected(pieces) -> tuple[str, list[str]]:
    """The title and the heading paths of (level, heading, text), by another rule than ours."""
    first = next((i for i, (level, _, _) in enumerate(pieces) if level == 1), None)
    paths = []
    for i, (level, name, _) in enumerate(pieces):
        path, lowest = [" ".join(name.split())], level
        for j in range(i - 1, -1, -1):
            if pieces[j][0] < lowest:
                lowest = pieces[j][0]
                if j != first:
                    path.insert(0, " ".join(pieces[j][1].split()))
        if i != first:
            paths.append(" > ".join(path))
    return " ".join(pieces[first][1].split()) if first is not None else "", paths


@settings(max_examples=60, deadline=None)
@given(pieces=PIECES, suffix=st.sampled_from([".md", ".html", ".docx"]))
def test_headings_become_the_title_and_sections(tmp_path_factory, pieces, suffix):
    folder = tmp_path_factory.mktemp("pages")
    if suffix == ".md":
        write(folder, {"a.md": "\n\n".join(f"{'#' * n} {h}\n\n{t}" for n, h, t in pieces)})
    elif suffix == ".html":
        body = "".join(f"<h{n}>{h}</h{n}><p>{t}</p>" for n, h, t in pieces)
        write(folder, {"a.html": f"<title></title><nav>no</nav><body>{body}"})
    else:
        import docx

        document = docx.Document()
        for level, heading, text in pieces:
            document.add_heading(heading, level)
            document.add_paragraph(text)
        document.core_properties.title = ""
        document.save(folder / "a.docx")
    corpus = readers.load(folder)
    (document,) = corpus.documents
    title, paths = expected(pieces)
    assert document.title == (title or "a") and [s.path for s in document.sections] == paths
    for section in document.sections:
        name = section.path.split(" > ")[-1]
        words = " ".join(document.text[section.start :].split()).lstrip("# ")
        assert words.startswith(name)
    assert all(" ".join(t.split()) in " ".join(document.text.split()) for _, _, t in pieces)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.dictionaries(
        st.from_regex(r"[a-z]{1,3}(/[a-z]{1,3})?\.(txt|rst|md)", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0")).filter(
            lambda text: (
                text.strip("\ufeff \n") and has_visible(text) and not text.startswith("---")
            )
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_text_of_plain_files_is_kept_exactly(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("texts")
    write(folder, {name: "\ufeff" + text for name, text in texts.items()})
    corpus = readers.load(folder)
    assert dict(corpus.texts) == texts and corpus.format == "files"


def test_boilerplate_of_html_is_dropped(tmp_path):
    page = """<!doctype html><html><head><title>T</title><style>x{}</style></head><body>
    <header>Site</header><nav><a href="/">Home</a></nav><div role="search">Find</div>
    <main><div class="navheader">Prev | Next</div>
    <header><h1>Tide  tables<a class="headerlink" href="#t">¶</a></h1></header>
    <script>var x = "no";</script><!-- no -->At <b>noon</b>, high&nbsp;tide.<p>Low
    tide<br>at six.</p><pre>a
      b</pre><ul><li>one<li>two</ul><table><tr><th>k<th>v<tr><td>1<td>2</table></main>
    <footer>Imprint</footer></body></html>"""
    write(tmp_path, {"a.html": page, "b.htm": "<p>No title. caf&eacute;</p>"})
    first, second = readers.load(tmp_path).documents
    assert (first.title, first.sections) == ("Tide tables", ())
    assert first.text == (
        "Tide tables\n\nAt noon, high\xa0tide.\n\nLow tide\nat six.\n\na\n      b\n\none\ntwo\n\n"
        "k | v\n1 | 2"
    )
    assert (second.title, second.text) == ("b", "No title. café")


def test_a_raised_number_does_not_join_the_number_before_it(tmp_path):
    page = "<p>2<sup>30</sup> or 10<sup><i>9</i></sup> of n<sup>th</sup>, see <sup>1</sup></p>"
    write(tmp_path, {"a.html": f"<sup>2</sup>{page}<p><sup>3</sup>He"})
    corpus = readers.load(tmp_path)
    assert corpus.texts["a.html"] == "2\n\n2^30 or 10^9 of nth, see 1\n\n3He"


def test_the_declared_encoding_of_html_is_used(tmp_path):
    page = '<meta charset="iso-8859-1"><h1>Café</h1>'.encode("latin-1")
    assert readers.load(write(tmp_path, {"a.html": page})).documents[0].title == "Café"


def test_front_matter_gives_the_title(tmp_path):
    write(tmp_path, {"a.md": '---\ntitle: "Tides"\n---\n## Low\n\nText.\n'})
    (document,) = readers.load(tmp_path).documents
    assert (document.title, document.text) == ("Tides", "## Low\n\nText.\n")
    assert document.sections == (Section(0, "Low"),)


def pdf(path, pages, title="", password=""):
    """A PDF file with a line on each page, and a bookmark for each page."""
    writer = pypdf.PdfWriter()
    for text in pages:
        page = writer.add_blank_page(300, 300)
        font = pypdf.generic.DictionaryObject(
            {
                pypdf.generic.NameObject("/Type"): pypdf.generic.NameObject("/Font"),
                pypdf.generic.NameObject("/Subtype"): pypdf.generic.NameObject("/Type1"),
                pypdf.generic.NameObject("/BaseFont"): pypdf.generic.NameObject("/Helvetica"),
            }
        )
        fonts = pypdf.generic.DictionaryObject({pypdf.generic.NameObject("/F1"): font})
        page[pypdf.generic.NameObject("/Resources")] = pypdf.generic.DictionaryObject(
            {pypdf.generic.NameObject("/Font"): fonts}
        )
        stream = pypdf.generic.DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode() if text else b"")
        page[pypdf.generic.NameObject("/Contents")] = writer._add_object(stream)
        if text:
            number = len(writer.pages) - 1
            writer.add_outline_item(title=text.split(" ")[-1].upper(), page_number=number)
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)


def test_a_pdf_gives_title_text_and_sections(tmp_path):
    pdf(tmp_path / "a.pdf", ["About tides", "On boards"], title="Harbour")
    pdf(tmp_path / "b.pdf", ["Of nothing"])
    first, second = readers.load(tmp_path).documents
    assert (first.title, first.text) == ("Harbour", "About tides\n\nOn boards")
    assert first.sections == (Section(6, "TIDES"), Section(16, "BOARDS"))
    assert second.title == "b"


def write_unreadable(folder) -> None:
    """Writes one readable file among twelve others, and hidden ones."""
    pdf(folder / "locked.pdf", ["x"], password="secret")
    pdf(folder / "scan.pdf", [""])
    files = {
        "good.txt": "Tide.",
        "broken.docx": b"PK\3\4 no more",
        "cut.pdf": b"%PDF-1.4\n1 0 obj\n<<",
        "odd.txt": "Café".encode() + b"\xe9",
        "wide.md": "Tide.".encode("utf-16")[:-1],
        "nul.html": b"<p>a\0b</p>",
        "blank.txt": " \n",
        "void.html": "",
        "a.zip": b"PK",
        "b.zip": b"PK",
        "Makefile": "all:",
        ".hidden/x.txt": "no",
        ".x.txt": "no",
    }
    write(folder, files)


def test_unreadable_files_are_named_with_the_reason(tmp_path):
    write_unreadable(tmp_path)
    corpus, problems = readers.read(tmp_path)
    assert not problems and [d.id for d in corpus.documents] == ["good.txt"]
    messages = {re.sub(".*/", "", remark.file): remark.message for remark in corpus.remarks}
    for name, words in {
        "locked.pdf": "is encrypted; save it without a password: the file is passed over",
        "scan.pdf": "holds no text, perhaps it was scanned",
        "broken.docx": "is damaged (",
        "cut.pdf": "is damaged (",
        "odd.txt": "is not UTF-8 (byte 0xe9 in line 1); save it as UTF-8",
        "wide.md": "is not utf-16 (byte",
        "nul.html": "is not text, or in an unknown encoding; save it",
        "blank.txt": "holds no text",
        "void.html": "",
    }.items():
        assert words in messages[name], messages


def test_files_of_unknown_suffixes_are_counted_by_suffix(tmp_path):
    write_unreadable(tmp_path)
    corpus, _ = readers.read(tmp_path)
    of_folder = [remark for remark in corpus.remarks if remark.file == str(tmp_path)]
    assert [(r.rows, r.message.split(" are")[0]) for r in of_folder] == [
        (1, "1 files without a suffix (Makefile)"),
        (2, "2 files with the suffix .zip (a.zip, b.zip)"),
    ]


def test_many_suffixes_of_one_file_each_are_one_remark(tmp_path):
    write(tmp_path, {"a.txt": "Tide.", "b.zip": "", "c.zip": "", "copying": ""})
    write(tmp_path, {f"d.{i}": "" for i in range(4)})
    told = [(r.rows, r.message.partition(" are not")[0]) for r in readers.load(tmp_path).remarks]
    assert told == [
        (4, "4 files, each with another suffix (d.0, d.1, d.2, d.3),"),
        (1, "1 files without a suffix (copying)"),
        (2, "2 files with the suffix .zip (b.zip, c.zip)"),
    ]


def test_a_check_fails_if_most_files_are_unreadable(tmp_path, capsys):
    write_unreadable(tmp_path)
    assert _main(["check", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "passed over: 12" in said and "no problem found" not in said
    assert (
        "\n12 of 13 files are passed over: 9 that cannot be read, 2 with the suffix .zip, "
        "1 without a suffix; save them"
    ) in said
    write(tmp_path, {f"{i}.txt": "Tide." for i in range(11)})  # now 12 of 24 can be read
    assert _main(["check", str(tmp_path)]) == 0
    assert "\nno problem found" in capsys.readouterr().out


def test_the_line_on_files_that_are_passed_over_stays_short(tmp_path):
    write(tmp_path, {"a.txt": "Tide.", "b.z": "", "c.z": ""} | {f"a.{i}": "" for i in range(8)})
    said = readers.mostly_passed_over(readers.load(tmp_path))
    assert said.startswith("10 of 11 files are passed over: 2 with the suffix .z, 1 with")
    assert said.count("with the suffix") == 6 and "3 with other suffixes; save them" in said


def test_pictures_and_stylesheets_are_not_counted_as_skipped(tmp_path, capsys):
    write(tmp_path, {"a.md": "# Tide", "a.png": b"\x89PNG", "b.svg": "<svg/>", "c.css": "p{}"})
    assert _main(["check", str(tmp_path)]) == 0
    write(tmp_path, {"b.key": b"PK", "c.key": b"PK"})
    assert _main(["check", str(tmp_path)]) == 1
    assert "\n2 of 3 files are passed over: 2 with the suffix .key;" in capsys.readouterr().out
    assert _main(["init", str(tmp_path), f"--out={tmp_path / 'c.py'}"]) == 0  # a run reads the rest
    assert "2 of 3 files are passed over" in (tmp_path / "c.py").read_text()


@pytest.mark.parametrize(
    "text",
    [
        "1 0 184 2\n1 0 29 -1\n",
        "q1\t0\tdoc-7\t1\r\n\r\nq2\t0\tdoc8\t0",
        "1 184 2\n1 29 3\n",
        "1 Q0 184 1 12.5 bm25\n1 Q0 29 2 1e-3 bm25\n",
    ],
)
def test_trec_tables_are_not_read_as_documents(tmp_path, text):
    write(tmp_path, {"qrels.txt": text, "a.txt": "Psalm 23 verse 4", "b.txt": f"Tide.\n{text}"})
    corpus, problems = readers.read(tmp_path)
    assert [d.id for d in corpus.documents] == ["a.txt", "b.txt"] and not problems
    assert "holds TREC's judgments (qrels)" in corpus.remarks[0].message
    assert readers.read(tmp_path / "qrels.txt")[1]
    write(tmp_path, {"qrels.tsv": text.replace(" ", "\t")})
    assert "holds TREC's judgments" in readers.read(tmp_path / "qrels.tsv")[1][0].message


def test_symbolic_links_are_followed_without_cycles(tmp_path):
    write(tmp_path, {"in/a.txt": "A", "in/deep/b.txt": "B", "out/c.txt": "C"})
    (tmp_path / "in" / "deep" / "up").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "other").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "lost.txt").symlink_to(tmp_path / "nowhere")
    corpus, problems = readers.read(tmp_path / "in")
    assert not problems
    assert dict(corpus.texts) == {"a.txt": "A", "deep/b.txt": "B", "other/c.txt": "C"}
    assert "lost.txt: cannot be read (No such file" in str(corpus.remarks[0])


def test_what_links_lead_to_a_second_time_is_read_once(tmp_path):
    """Else a search finds each passage twice, as in /usr/share/doc of Debian."""
    write(tmp_path, {"in/z/a.txt": "A", "in/z/.b.txt": "B", "in/z/blob": "C", "out/d.txt": "D"})
    folder = tmp_path / "in"
    for name, target in {
        "a.txt": "in/z/a.txt",  # is read below z
        "b.txt": "in/z/.b.txt",  # is hidden there
        "c.txt": "in/z/blob",  # is no text there
        "e.txt": "out/d.txt",
        "f.txt": "out/d.txt",  # is e.txt
        "html": "in/z",
    }.items():
        (folder / name).symlink_to(tmp_path / target)
    corpus, problems = readers.read(folder)
    assert not problems
    assert dict(corpus.texts) == {"z/a.txt": "A", "b.txt": "B", "c.txt": "C", "e.txt": "D"}
    assert "3 links (html, a.txt, f.txt) lead to files that" in corpus.remarks[0].message


def test_questions_are_read_from_a_file_in_the_folder(tmp_path):
    question = '{"id": "q", "question": "What?", "documents": ["in/a.txt"], "evidence": ["Tide"]}\n'
    lost = question.replace('"q"', '"r"').replace("in/a.txt", "a.txt")
    write(tmp_path, {"in/a.txt": "Tide.", "questions.jsonl": question + lost})
    corpus, problems = readers.read(tmp_path)
    assert [q.id for q in corpus.questions] == ["q"]
    assert [(p.line, p.field) for p in problems] == [(2, "documents")]
    assert readers.files(tmp_path)[-1].name == "questions.jsonl"


def test_a_readme_next_to_data_files_is_not_a_corpus(tmp_path):
    write(tmp_path, {"README.md": "# Data", "rows.json": "[]"})
    _, problems = readers.read(tmp_path)
    assert "no known format" in problems[0].message
    assert [d.title for d in readers.load(REPOSITORY / "README.md").documents] == ["ark_jax"]


def test_a_missing_package_is_one_problem(tmp_path, without_package):
    without_package("pypdfium2")
    write(tmp_path, {"a.pdf": "%PDF", "b.pdf": "%PDF", "c.txt": "Tide."})
    _, problems = readers.read(tmp_path)
    assert [p.message for p in problems] == [
        "2 files such as 'a.pdf' need the package pypdfium2; pip install 'ark-jax[files]'"
    ]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    data=st.binary(max_size=60),
    suffix=st.sampled_from([".html", ".pdf", ".docx", ".md", ".epub", ".pptx", ".xlsx"]),
)
def test_any_bytes_give_a_document_or_a_remark(tmp_path_factory, data, suffix):
    folder = write(tmp_path_factory.mktemp("any"), {f"a{suffix}": data, "b.txt": "Tide."})
    corpus, problems = readers.read(folder)
    passed_over = sum(remark.rows for remark in corpus.remarks)
    assert not problems and len(corpus.documents) + passed_over == 2
    assert len(corpus.remarks) < 2
