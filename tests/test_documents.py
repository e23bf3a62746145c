"""The Markdown documents: links lead somewhere; named files and settings exist."""

import re
from pathlib import Path

import pytest
from support.paths import REPOSITORY

import ark_jax
from ark_jax import config

DOCUMENTS = (
    ".github/CONTRIBUTING.md",
    "README.md",
    "ark_jax/README.md",
    "ark_jax/graph/README.md",
    "ark_jax/recipes/ark/README.md",
    "ark_jax/select/README.md",
    "configs/README.md",
    "launch/README.md",
    "notebooks/README.md",
    "tests/README.md",
    "tests/benchmarks/README.md",
    "tests/benchmarks/compilers.md",
)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", text_of(path), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_in_documents_are_not_broken(name):
    document = REPOSITORY / name
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(document)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_named_in_documents_exist(name):
    """Paths from the root of the repository, in text and in commands."""
    pattern = r"\b(?:ark_jax|configs|launch|tests)/[\w/.]+\.\w+"
    paths = re.findall(pattern, text_of(REPOSITORY / name))
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_settings_named_in_documents_exist(name):
    """Fields in code, `train.chunks=8`, and in commands, --config.train.chunks=8."""
    settings = [config.ark(), config.gpr(), config.star(), config.bar_rag()]
    sections = {name for c in settings for name, section in c.items() if hasattr(section, "keys")}
    pattern = rf"(?:`|--config\.)({'|'.join(sections)})\.(?!(?:py|parquet|jsonl)\b)(\w+)[`=]"
    fields = re.findall(pattern, text_of(REPOSITORY / name))
    known = {(name, field) for c in settings for name in sections & set(c) for field in c[name]}
    assert [field for field in fields if field not in known] == []


def test_every_document_is_listed_on_the_site():
    listed = text_of(REPOSITORY / ".github" / "docs" / "hooks.py")
    assert [name for name in DOCUMENTS if f'"{name}"' not in listed] == []


def test_version_numbers_agree():
    ruff = re.search(r'"ruff==([\d.]+)"', text_of(REPOSITORY / "setup.py"))[1]
    assert f"rev: v{ruff}\n" in text_of(REPOSITORY / ".pre-commit-config.yaml")
    for name, form in (("setup.py", 'version="{}"'), ("CITATION.cff", "\nversion: {}\n")):
        assert form.format(ark_jax.__version__) in text_of(REPOSITORY / name), name
