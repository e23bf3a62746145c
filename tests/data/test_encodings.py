"""Texts in the encodings of people's programs are read, and told."""

import csv
import io
import json

import pytest
from support.input_files import write

from ark_jax.data import readers
from ark_jax.data.encodings import file_encoding
from ark_jax.data.problems import Reading

JAPANESE = "これは日本語の文書です。川は一月に凍った。"
WRITTEN = {  # encoding: a text in it
    "utf-16": JAPANESE,
    "utf-16-le": "The mill burned in 1802.",  # without a mark
    "utf-16-be": "The mill burned in 1802.",
    "utf-32": JAPANESE,
    "cp1252": "“It’s late”, the café’s miller said – naïve.",
    "latin-1": "Où est la bouilloire ? Elle a été achetée à Kiel.",
    "cp932": JAPANESE,
    "euc_jp": JAPANESE,
    "gb18030": "河流在一月结冰。钟在黄昏响了两次。",
    "big5": "河流在一月結冰。鐘在黃昏響了兩次。",
    "euc_kr": "강은 1월에 얼었다. 종은 해질녘에 두 번 울렸다.",
    "cp1251": "Река замерзла в январе. Колокол прозвонил дважды.",
    "koi8_r": "Река замерзла в январе. Колокол прозвонил дважды.",
    "cp1250": "Rzeka zamarzła w styczniu. Dzwon zadzwonił dwa razy o zmierzchu.",
    "cp1253": "Ο ποταμός πάγωσε τον Ιανουάριο.",
}


def csv_text(text: str, delimiter: str = ",") -> str:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows([["id", "text"], ["a", text]])
    return file.getvalue()


FORMS = {
    "a.txt": lambda text: text,
    "a.md": lambda text: text,
    "a.html": lambda text: f"<p>{text}</p>",
    "a.csv": csv_text,
    "a.tsv": lambda text: csv_text(text, "\t"),
    "a.jsonl": lambda text: json.dumps({"id": "a", "text": text}, ensure_ascii=False) + "\n",
    "a.json": lambda text: json.dumps([{"id": "a", "text": text}], ensure_ascii=False),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("encoding", WRITTEN)
def test_a_text_in_another_encoding_is_read_with_a_remark(tmp_path, encoding, name):
    text = WRITTEN[encoding]
    write(tmp_path, {name: FORMS[name](text).encode(encoding)})
    corpus, problems = readers.read(tmp_path / name)
    assert [d.text for d in corpus.documents] == [text] and not problems
    (remark,) = corpus.remarks
    assert "a." in str(remark) and "read as" in remark.message and "data.encoding" in remark.message
    assert "passed over" not in readers.summary(corpus)


@pytest.mark.parametrize("name", FORMS)
def test_the_encoding_of_the_config_replaces_detection(tmp_path, name):
    write(tmp_path, {name: FORMS[name]("Дата").encode("cp1251")})  # too short to detect
    corpus, _ = readers.read(tmp_path / name, reading=Reading("cp1251"))
    assert [d.text for d in corpus.documents] == ["Дата"] and not corpus.remarks


@pytest.mark.parametrize("name", FORMS)
def test_a_byte_order_mark_is_removed_if_the_config_says_utf8(tmp_path, name):
    write(tmp_path, {name: FORMS[name]("Café").encode("utf-8-sig")})
    corpus, problems = readers.read(tmp_path / name, reading=Reading("UTF8"))
    assert [d.text for d in corpus.documents] == ["Café"] and not problems


def test_remarks_on_encodings_are_combined_for_a_folder(tmp_path):
    write(tmp_path, {f"{i}.txt": f"Café {i} à la carte".encode("cp1252") for i in range(7)})
    write(tmp_path, {"good.txt": "Café à la carte"})
    corpus = readers.load(tmp_path)
    assert len(corpus.documents) == 8
    assert [remark.message for remark in corpus.remarks] == [
        "7 files (0.txt, 1.txt, 2.txt, 3.txt, 4.txt, ...) are read as cp1252; "
        "if it is another, name it in config.data.encoding"
    ]


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (b"", "utf-8-sig"),
        (b"The mill burned.", "utf-8-sig"),
        ("Café".encode() + b" caf\xe9", "utf-8-sig"),  # damaged
        ("Café".encode()[:-1] + "Café".encode(), "utf-8-sig"),
        (b"half \xed\xa0\xbd", "utf-8-sig"),  # a pair's half, as Java writes it
        (("x" * (1 << 20) + "é").encode(), "utf-8-sig"),
        (("é" * (1 << 20)).encode() + b"\xe9", "utf-8-sig"),  # far behind good characters
        (b"x" * (1 << 20) + b"\ncaf\xe9 au lait", "cp1252"),
        (b"\x7fELF\0\0\0", ""),
        (bytes(range(1, 256)) * 4, ""),
    ],
)  # fmt: skip
def test_damaged_utf8_and_binary_files_are_not_guessed(tmp_path, content, encoding):
    (tmp_path / "f").write_bytes(content)
    assert file_encoding(tmp_path / "f") == encoding


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("shift", ["", "a"])
@pytest.mark.parametrize("encoding", ["cp932", "gb18030", "cp1252"])
def test_an_encoding_is_detected_despite_characters_cut_at_block_ends(
    tmp_path, encoding, shift, end
):
    text = shift + (WRITTEN[encoding] + end) * 50_000
    (tmp_path / "f").write_bytes(text.encode(encoding))
    assert file_encoding(tmp_path / "f") == encoding


@pytest.mark.parametrize("name", ["utf-9", "hex"])
def test_an_unknown_encoding_is_refused(name):
    with pytest.raises(ValueError, match=rf"config\.data\.encoding: '{name}' is unknown; name one"):
        Reading(name)
