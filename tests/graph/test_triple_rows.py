"""The fast reader of text files gives what the careful one gives, or leaves the file to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.data.problems import Findings
from ark_jax.graph.triple_rows import faultless_columns, text_triples, valid_rows

WORDS = ["a", "b c", "ä", "東", "NULL", "", "#", "'", '"', "\\", " ", "\x0b", "\u2028", "\u200b"]
MARKS = ["\t", "|", "\n", "\r\n", "\r", "\x00", "\ufeff", "x\ty\tz\n", "x|y|z\n"]
pieces = st.sampled_from([*WORDS, *MARKS, "\t", "x\ty\tz\n"])


def agree(path) -> bool:
    """Whether the fast reader takes a file, which must then be what the careful one reads."""
    columns = faultless_columns(path)
    if columns is None or not len(columns[0]):
        return False
    findings = Findings()
    rows = list(valid_rows(text_triples(path, findings), path, findings))
    assert rows == list(zip(*(column.to_pylist() for column in columns), strict=True))
    assert not findings.problems and not findings.remarks
    assert findings.problems.rows == len(rows)
    return True


@given(st.lists(pieces, max_size=12).map("".join))
def test_fast_and_careful_reading_agree_on_any_text(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("text") / "kb.tsv"
    path.write_text(text, encoding="utf-8", newline="")
    agree(path)


@pytest.mark.parametrize(
    "text, fast",
    [
        ("a\tr\tb\n\nä c\tr\td", True),
        ("a|r|NULL\r\nb|r|\\n\r\n", True),
        ("\ufeffa\tr\tb\n", True),
        ("a\tr\tb\n \n", False),
        ('a\tr\t"b"\n', False),
        ("a\tr\tb\rc\tr\td\n", False),
        ("head\trelation\ttail\na\tr\tb\n", False),
        ("a\tr\n", False),
        ("a\t\tb\n", False),
        ("", False),
    ],
)
def test_only_simple_files_take_the_fast_path(text, fast, tmp_path):
    path = tmp_path / "kb.tsv"
    path.write_text(text, encoding="utf-8", newline="")
    assert agree(path) == fast
