"""Functions of the user's own: how they are found, imported and checked."""

import os
import sys
from typing import Protocol

import pytest

from ark_jax.pipeline import own_functions


class Reader(Protocol):
    def __call__(self, question: str, passages: list[str], *, limit: int) -> str: ...


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module of a name that no other test uses into the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    name = f"parts_{tmp_path.name}"

    def write(text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    for module in set(sys.modules) - before:
        if module.startswith(name):
            del sys.modules[module]


def load(path: str):
    return own_functions.load("reader.backend", path, Reader)


def test_a_function_in_the_working_folder_can_be_called(write):
    name = write("def read(q, p, limit=3, *, more=1):\n    return f'{q} {p[0]} {limit}'\n")
    assert load(f"{name}:read")("who?", ["lamp"], limit=5) == "who? lamp 5"
    assert sys.path[-1] == os.getcwd()


def test_an_edited_module_is_imported_again_with_a_new_digest(write):
    name = write("def read(question, passages, *, limit):\n    return 'before'\n")
    path = f"{name}:read"
    first = load(path), own_functions.digest("reader.backend", path)
    write("def read(question, passages, *, limit):\n    return 'and afterwards'\n")
    second = load(path), own_functions.digest("reader.backend", path)
    assert (first[0]("", [], limit=1), second[0]("", [], limit=1)) == ("before", "and afterwards")
    assert first[1] != second[1]


@pytest.mark.parametrize(
    ("imports", "file"),
    [
        ("import {0}_words as words", "{0}_words.py"),
        ("from {0}_between import words", "{0}_words.py"),
        ("from {0}_package.inner import words", "{0}_package/words.py"),
    ],
)
def test_the_digest_of_a_function_covers_the_files_it_imports(write, tmp_path, imports, file):
    name = write(
        "import json, numpy, ark_jax.run\n"
        f"{imports.format(f'parts_{tmp_path.name}')}\n"
        "def read(question, passages, *, limit): return words.word\n"
    )
    (tmp_path / f"{name}_package").mkdir()
    for path, text in {
        "words.py": "word = 'before'\n",
        "between.py": f"import {name}_words as words\n",
        "package/inner.py": "from . import words\n",
        "package/words.py": "word = 'before'\n",
        "unused.py": "word = 'before'\n",
    }.items():
        (tmp_path / f"{name}_{path}").write_text(text)
    versions = []
    for changed in ("{0}_unused.py", file, None):
        path = f"{name}:read"
        word = load(path)("", [], limit=1)
        versions.append((word, own_functions.digest("reader.backend", path)))
        if changed:
            (tmp_path / changed.format(name)).write_text("word = 'and afterwards'\n")
    assert versions[0] == versions[1]
    assert versions[2][0] == "and afterwards" and versions[2][1] != versions[1][1]


def test_computing_a_digest_does_not_import_the_module(write):
    name = write("raise RuntimeError('imported')\n")
    assert len(own_functions.digest("mine.by", f"{name}:f")) == 64
    assert name not in sys.modules


@pytest.mark.parametrize(
    "text, function, message",
    [
        ("def raed(q, p, *, limit): ...", "read", r"no 'read'; did you mean parts_\w+:raed"),
        ("read = 3", "read", "is of type int; name a function"),
        ("def read(q): ...", "read", r"takes \(q\) and is called with \(question, pa"),
        ("def read(q, p): ...", "read", "got an unexpected keyword argument 'limit'"),
        ("x = 1\nread = nothing", "read", r"NameError: name 'nothing' is not defined, line 2\)"),
        ("import no_such_package_of_ours", "read", r"No module named 'no_such_.*what it needs"),
        ("raise SystemExit('bye')", "read", "SystemExit: bye"),
        ("def read(:", "read", "SyntaxError"),
    ],
)
def test_invalid_user_functions_are_refused_when_loaded(write, text, function, message):
    name = write(text)
    with pytest.raises(ValueError, match=message) as raised:
        load(f"{name}:{function}")
    assert str(raised.value).startswith(f"config.reader.backend='{name}:{function}': ")


def test_a_missing_module_is_named_with_the_place_to_put_it(write, tmp_path):
    with pytest.raises(ValueError, match=r"no module 'nowhere_of_ours'; put nowhere_of_ours\.py"):
        load("nowhere_of_ours:read")
    with pytest.raises(ValueError, match=r"put nowhere_of_ours/inner\.py into"):
        load("nowhere_of_ours.inner:read")
    reasons = {"sys:exit": "sys is not a Python file", "__main__:read": "__main__ is the program"}
    for path, reason in reasons.items():
        with pytest.raises(ValueError, match=f"config.reader.backend='{path}': {reason}"):
            load(path)
    assert "__main__" in sys.modules


def test_an_error_inside_a_user_function_names_its_line(write):
    name = write("def read(q, p, *, limit):\n    return p[7]\n")
    with pytest.raises(RuntimeError, match=r":read' fails: IndexError: .*, line 2; correct it"):
        load(f"{name}:read")("who?", [], limit=1)
