"""Records move to disk and stay the same sequence."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import REPOSITORY

from ark_jax.data.records import Chunk, Document, Section
from ark_jax.data.spool import Documents, Spool

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SECTIONS = st.lists(st.builds(Section, st.integers(0, 9), TEXT), max_size=2).map(tuple)
DOCUMENTS = st.lists(
    st.builds(Document, TEXT, TEXT, TEXT, SECTIONS), max_size=12, unique_by=lambda d: d.id
)


@settings(max_examples=80, deadline=None)
@given(documents=DOCUMENTS, in_memory=st.sampled_from([0, 900, 1 << 20]))
def test_spooled_documents_behave_like_a_list(documents, in_memory):
    spool = Documents(in_memory)
    for i, document in enumerate(documents):
        spool.append(document)
        assert spool[i] == document and len(spool) == i + 1  # reading and writing in turns
    assert spool == documents and documents == spool and list(spool) == documents
    assert spool[1:3] == documents[1:3] and spool[::-1] == documents[::-1]
    assert dict(spool.texts) == {d.id: d.text for d in documents}
    assert spool != [*documents, Document("one more", "", "")]
    for document in documents:
        spool.append(Document(document.id, "", "another text of this id"))
    assert spool == documents
    with pytest.raises(IndexError):
        spool[len(documents)]


def test_chunks_spooled_to_disk_equal_the_originals():
    chunks = [Chunk(f"c{i}", "d", i, i + 3, 2, "abc", "T") for i in range(3000)]
    spool = Spool(Chunk, in_memory=10_000)
    for chunk in chunks:
        spool.append(chunk)
    assert spool == chunks and "on disk" in repr(spool)


def test_spooling_leaves_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Documents(0)
    spool.append(Document("d", "", "x"))
    assert os.listdir(tmp_path) == [] and spool.texts["d"] == "x"


LINUX = pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="only Linux tells a process its peak so"
)


def mapped_bytes() -> int:
    """What this process holds of files in memory."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"RssFile:\s*(\d+)", status)[1]) << 10


@LINUX
def test_iterating_over_documents_does_not_keep_them_in_memory():
    spool, written = Documents(1 << 22), 0
    for i in range(20_000):
        text = f"{i} " * 500
        spool.append(Document(f"d{i}", "", text))
        written += len(text)
    before = mapped_bytes()
    assert sum(len(document.text) for document in spool) == written > 40 << 20
    assert mapped_bytes() - before < written // 8


@pytest.mark.slow
@LINUX
def test_a_million_documents_are_read_within_two_gibibytes(tmp_path):
    text = "The tide rose over the board. " * 34
    with (tmp_path / "documents.jsonl").open("w") as file:
        for i in range(1_000_000):
            file.write(f'{{"id": "d{i}", "title": "T{i}", "text": "{i} {text}"}}\n')
    # Not ru_maxrss: a process begins with the peak of the one that started it.
    code = (
        "import re; from pathlib import Path; from ark_jax.__main__ import _main; "
        "from ark_jax.data import readers; "
        f"assert _main(['check', {str(tmp_path)!r}]) == 0; "
        f"assert len(readers.load({str(tmp_path)!r}).documents) == 1_000_000; "
        "print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "documents: 1,000,000" in done.stdout
    assert int(done.stdout.split()[-1]) < 2 << 20  # KiB
