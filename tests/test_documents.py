"""The Markdown documents: links lead somewhere; named files and settings exist."""

import re
import runpy
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


DRAW = runpy.run_path(str(REPOSITORY / "notebooks" / "results" / "draw.py"))
STUDIES = DRAW["studies"]()


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


@pytest.mark.parametrize("name", DRAW["DOCUMENTS"])
def test_tables_of_results_are_what_the_files_say(name):
    assert text_of(REPOSITORY / name) == DRAW["filled"](name), f"write it again: {DRAW['COMMAND']}"


def test_the_drawing_is_what_the_files_say():
    drawn = text_of(REPOSITORY / "notebooks" / "results" / "results.svg")
    assert drawn == DRAW["drawing"](), f"write it again: {DRAW['COMMAND']}"


@pytest.mark.parametrize("name", STUDIES)
def test_a_file_of_results_is_complete_and_named_where_its_section_stands(name):
    study, readme = STUDIES[name], REPOSITORY / "notebooks" / "README.md"
    assert study["method"] in DRAW["METHODS"] and study["section"] in anchors(readme)
    assert f"<!-- table {name} -->" in text_of(readme) or f"results/{name}.json" in text_of(readme)
    assert all(study[key] for key in ("study", "data", "command", "source", "intervals"))
    configs = re.findall(r"configs/\w+\.py", study["command"])
    assert [path for path in configs if not (REPOSITORY / path).exists()] == []
    headings = {heading for row in study["rows"] for heading in row["figures"]}
    assert {study["measure"], *study.get("verdicts", ())} <= headings
    seeded = {f"{heading} of each seed" for heading in headings}
    systems = {row["system"] for row in study["rows"]}
    assert set(study.get("omitted", ())) <= headings | seeded | systems
    assert {row["kind"] for row in study["rows"]} <= set(DRAW["KINDS"])
    figures = [x for row in study["rows"] for x in row["figures"].values() if isinstance(x, dict)]
    assert [x for x in figures if not x.get("low", x["mean"]) <= x["mean"]] == []
    assert [x for x in figures if not x["mean"] <= x.get("high", x["mean"])] == []


def test_every_document_is_listed_on_the_site():
    listed = text_of(REPOSITORY / ".github" / "docs" / "hooks.py")
    assert [name for name in DOCUMENTS if f'"{name}"' not in listed] == []


def test_version_numbers_agree():
    ruff = re.search(r'"ruff==([\d.]+)"', text_of(REPOSITORY / "setup.py"))[1]
    assert f"rev: v{ruff}\n" in text_of(REPOSITORY / ".pre-commit-config.yaml")
    for name, form in (("setup.py", 'version="{}"'), ("CITATION.cff", "\nversion: {}\n")):
        assert form.format(ark_jax.__version__) in text_of(REPOSITORY / name), name
