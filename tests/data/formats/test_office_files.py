"""Books, slides and sheets, as other libraries write them."""

import datetime
import zipfile

import pytest
from support.input_files import write

from ark_jax.data import readers
from ark_jax.data.problems import Reading
from ark_jax.data.records import BadInput, Section

openpyxl = pytest.importorskip("openpyxl", reason="pip install 'ark-jax[files]'")
pptx = pytest.importorskip("pptx", reason="pip install 'ark-jax[files]'")

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="EPUB/book.opf"/></rootfiles></container>'
)
PACKAGE = """<package xmlns="http://www.idpf.org/2007/opf"><metadata
 xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Harbour
 tides</dc:title></metadata><manifest>
<item id="two" href="b%20c.xhtml"/><item id="one" href="text/a.xhtml"/><item id="x" href="x.css"/>
</manifest><spine><itemref idref="one"/><itemref idref="two"/><itemref idref="gone"/></spine>
</package>"""
BOOK = {
    "META-INF/container.xml": CONTAINER,
    "EPUB/book.opf": PACKAGE,
    "EPUB/text/a.xhtml": "<html><body><h1>Low</h1><p>At six.</p><h2>Mud</h2><p>Wet.</p></body>",
    "EPUB/b c.xhtml": "<html><body><h1>High</h1><p>At noon.</p></body></html>",
    "EPUB/x.css": "p {}",
}


def epub(path, parts=BOOK):
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in parts.items():
            packed.writestr(name, text)
    return path


def headings(document) -> list[tuple[str, str]]:
    """The path of each section, and the line that it begins with."""
    return [(s.path, document.text[s.start :].split("\n")[0]) for s in document.sections]


def test_a_book_gives_title_text_and_sections(tmp_path):
    (document,) = readers.load(epub(tmp_path / "a.epub")).documents
    assert document.title == "Harbour tides"
    assert document.text == "Low\n\nAt six.\n\nMud\n\nWet.\n\nHigh\n\nAt noon."
    assert headings(document) == [("Low", "Low"), ("Low > Mud", "Mud"), ("High", "High")]


def test_a_book_that_a_library_writes_is_read(tmp_path):
    epub_library = pytest.importorskip("ebooklib.epub", reason="EbookLib is not installed")
    book = epub_library.EpubBook()
    book.set_title("Mills")
    pages = []
    for i, name in enumerate(("Wind", "Water")):
        page = epub_library.EpubHtml(title=name, file_name=f"c{i}.xhtml")
        page.content = f"<h1>{name}</h1><p>It turns.</p>"
        book.add_item(page)
        pages.append(page)
    book.add_item(epub_library.EpubNcx())
    book.add_item(epub_library.EpubNav())
    book.spine = ["nav", *pages]
    epub_library.write_epub(tmp_path / "a.epub", book)
    (document,) = readers.load(tmp_path).documents
    assert document.title == "Mills"
    assert document.text == "Wind\n\nIt turns.\n\nWater\n\nIt turns."


def test_slides_give_title_text_and_sections(tmp_path):
    slides = pptx.Presentation()
    slides.core_properties.title = "Harbour"
    for name, text in (("Low", "At six."), ("High", "At noon.")):
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = name, text
    table = slide.shapes.add_table(2, 2, 0, 0, 9, 9).table
    for row, cells in enumerate((("a", "b"), ("1", "2"))):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "Within."
    slide.notes_slide.notes_text_frame.text = "Say it."
    slides.save(tmp_path / "a.pptx")
    (document,) = readers.load(tmp_path).documents
    text = "Low\nAt six.\n\nHigh\nAt noon.\na | b\n1 | 2\nWithin.\nSay it."
    assert (document.title, document.text) == ("Harbour", text)
    assert headings(document) == [("Low", "Low"), ("High", "High")]


def test_sheets_give_rows_of_cells_and_sections(tmp_path):
    book = openpyxl.Workbook()
    book.active.title = "Tides"
    day = datetime.datetime(2026, 5, 3)
    for row in (["port", None, "day", None], [None], ["Kiel", 2.0, day], [None, "x\n y", 1.5]):
        book.active.append(row)
    book.create_sheet("Empty")
    book.create_sheet("Boats").append(["Ada"])
    book.save(tmp_path / "a.xlsx")
    (document,) = readers.load(tmp_path).documents
    text = "Tides\nport |  | day\nKiel | 2 | 2026-05-03\n | x y | 1.5\n\nBoats\nAda"
    assert (document.title, document.text) == ("a", text)
    assert document.sections == (Section(0, "Tides"), Section(text.index("Boats"), "Boats"))


TEXTS = {"d": "The mill burned in 1802."}


def sheet(path, *header):
    """A sheet with this header and two rows, between them an empty one."""
    book = openpyxl.Workbook()
    for row in ([*header, None], ["When?", 1802, None], [], ["Who?", "['A', 'B']"]):
        book.active.append(row)
    book.save(path)
    return path


def test_questions_are_read_from_a_sheet(tmp_path):
    questions, _ = readers.read_questions(sheet(tmp_path / "a.xlsx", "Question", "answers"), TEXTS)
    assert [(q.question, q.answers) for q in questions] == [
        ("When?", ("1802",)),
        ("Who?", ("A", "B")),
    ]


@pytest.mark.parametrize(
    "documents", [{"d.txt": TEXTS["d"]}, {"documents.csv": f"id,text\nd,{TEXTS['d']}\n"}]
)
def test_questions_in_a_sheet_are_found_by_its_name(tmp_path, documents):
    """Beside text files and beside rows; and the sheet is none of the documents."""
    write(tmp_path, documents)
    sheet(tmp_path / "questions.xlsx", "Question", "answers")
    corpus = readers.load(tmp_path)
    assert len(corpus.documents) == 1 and not corpus.remarks
    assert [q.question for q in corpus.questions] == ["When?", "Who?"]
    assert readers.read_questions(tmp_path, TEXTS)[0] == corpus.questions
    assert [path.name for path in readers.files(tmp_path)][1:] == ["questions.xlsx"]


def test_a_sheet_of_that_name_without_questions_is_a_document(tmp_path):
    write(tmp_path, {"d.txt": TEXTS["d"]})
    sheet(tmp_path / "questions.xlsx", "Prompt", "answers")
    corpus = readers.load(tmp_path)
    assert len(corpus.documents) == 2 and not corpus.questions
    assert "questions.xlsx: is a document; name a column 'question'" in str(corpus.remarks[0])
    corpus = readers.load(tmp_path, reading=Reading(columns="question=Prompt"))
    assert len(corpus.documents) == 1 and len(corpus.questions) == 2


def test_a_sheet_of_questions_is_refused_as_a_corpus(tmp_path):
    _, (problem,) = readers.read(sheet(tmp_path / "a.xlsx", "Question", "answers"))
    assert "holds questions and no documents" in problem.message


def test_the_rows_of_a_sheet_with_a_column_text_are_documents(tmp_path):
    corpus = readers.load(sheet(tmp_path / "a.xlsx", "text", "answers"))
    assert [document.text for document in corpus.documents] == ["When?", "Who?"]


def test_a_sheet_with_a_repeated_column_is_refused(tmp_path):
    _, problems = readers.read(sheet(tmp_path / "a.xlsx", "text", "Text"))
    assert "'text' occurs twice" in str(problems[0])


def test_a_damaged_sheet_of_questions_is_refused(tmp_path):
    write(tmp_path, {"broken.xlsx": b"PK"})
    with pytest.raises(BadInput, match="is damaged"):
        readers.read_questions(tmp_path / "broken.xlsx", TEXTS)


ENTITY = '<!DOCTYPE p [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
SLY = BOOK | {"EPUB/book.opf": ENTITY + PACKAGE.replace("tides", "&a;")}


def test_encrypted_and_damaged_files_are_reported(tmp_path):
    locked = {name: "" for name in BOOK if name.endswith("xhtml")}
    epub(tmp_path / "locked.epub", BOOK | locked | {"META-INF/encryption.xml": "<e/>"})
    epub(tmp_path / "cut.epub", {"mimetype": "application/epub+zip"})
    write(tmp_path, {"a.pptx": b"PK\3\4", "b.xlsx": b"no", "c.txt": "Tide."})
    corpus, problems = readers.read(tmp_path)
    assert not problems and [document.id for document in corpus.documents] == ["c.txt"]
    told = {remark.file.rpartition("/")[2]: remark.message for remark in corpus.remarks}
    assert sorted(told) == ["a.pptx", "b.xlsx", "cut.epub", "locked.epub"]
    assert "is encrypted" in told["locked.epub"] and "is damaged" in told["cut.epub"]


def test_a_book_reads_no_other_file(tmp_path):
    (document,) = readers.load(epub(tmp_path / "sly.epub", SLY)).documents
    assert document.title == "Harbour"


def test_a_file_that_unpacks_to_too_much_is_reported(tmp_path):
    file = epub(tmp_path / "a.epub")
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("blank", " " * (1 << 25))
    corpus, _ = readers.read(file)
    assert "unpacks to" in str(corpus.remarks[0])


@pytest.mark.parametrize(("module", "name"), [("pptx", "a.pptx"), ("openpyxl", "a.xlsx")])
def test_a_missing_package_is_reported(tmp_path, without_package, module, name):
    without_package(module)
    epub(tmp_path / name)
    _, (problem,) = readers.read(tmp_path)
    assert problem.message == (
        f"1 files such as '{name}' need the package {module}; pip install 'ark-jax[files]'"
    )
