"""Makes the pages of the site from the READMEs beside the code, and a page of API a module."""

import ast
import posixpath
import re
import subprocess
import sys
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
CONFIGS = "configs/README.md"
# Sections of CONFIGS that are pages of their own, by the beginning of their heading.
METHODS = {
    "GPR, ": "methods/gpr.md",
    "STAR, ": "methods/star.md",
    "BAR-RAG: ": "methods/bar_rag.md",
}
# README -> its page.
PAGES = {
    "README.md": "index.md",
    "ark_jax/README.md": "guide/package.md",
    CONFIGS: "guide/configs.md",
    "ark_jax/graph/README.md": "guide/graph.md",
    "launch/README.md": "guide/launch.md",
    ".github/CONTRIBUTING.md": "guide/contributing.md",
    ".github/CHANGELOG.md": "guide/changes.md",
    "ark_jax/recipes/ark/README.md": "methods/ark.md",
    "ark_jax/select/README.md": "methods/bar_rag.md",
    "notebooks/README.md": "studies.md",
    "configs/recordings/README.md": "recordings.md",
    "tests/benchmarks/README.md": "benchmarks.md",
    "tests/benchmarks/compilers.md": "compilers.md",
    "tests/README.md": "tests.md",
}
RECIPES = ("ark", "gpr", "star", "bar_rag")
_HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def on_files(files, config):
    """Adds all pages, and the files of the repository that they link to."""
    pages, linked = {}, set()

    def add(readme: str, page: str, text: str) -> None:
        text = _LINK.sub(lambda link: f"]({_target(link[1], readme, page, linked)})", text)
        text = text.replace("\n  | ", "\n    | ").replace("\n  |-", "\n    |-")  # tables in lists
        pages[page] = pages[page] + "\n" + _lower(text) if page in pages else text

    for readme, page in PAGES.items():
        text = (ROOT / readme).read_text(encoding="utf-8")
        if readme != CONFIGS:
            add(readme, page, text)
            continue
        kept, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
        for section in sections:
            method = _method_of(_HEADING.match(section)[1])
            if method:
                add(readme, method, section.replace("## ", "# ", 1))
            else:
                kept += section
        add(readme, page, kept)
    pages["guide/fields.md"] = _fields()
    pages |= _api()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for path in sorted(linked):
        source = str(ROOT / path)
        files.append(File.generated(config, _copy_of(path), abs_src_path=source))
    return files


def _method_of(heading: str) -> str:
    """The page of a section of CONFIGS, empty if it stays there."""
    return next((page for start, page in METHODS.items() if heading.startswith(start)), "")


def _lower(text: str) -> str:
    """The text with its headings one level lower, below what stands on its page already."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(x if x.startswith("```") else re.sub(r"(?m)^#", "##", x) for x in parts)


def _target(link: str, readme: str, page: str, linked: set[str]) -> str:
    """Where a link of a README leads from its page. Files that are no pages join `linked`."""
    if link.startswith(("http://", "https://")):
        return link
    path, _, anchor = link.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(readme), path)) if path else readme
    if path == CONFIGS and anchor:
        headings = _HEADING.findall((ROOT / CONFIGS).read_text(encoding="utf-8"))
        named = next((x for x in headings if _slug(x) == anchor), "")
        target = _method_of(named) or PAGES[path]
    elif path in PAGES:
        target = PAGES[path]
    elif path.startswith("ark_jax/") and path.endswith(".py") and "__init__" not in path:
        target = _page_of(path)
    else:
        linked.add(path)
        target = _copy_of(path)
    relative = posixpath.relpath(target, posixpath.dirname(page) or ".")
    return f"{relative}#{anchor}" if anchor else relative


def _copy_of(path: str) -> str:
    """Where a linked file lies in the site, which has no hidden files."""
    return f"files/{path.removeprefix('.')}"


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _fields() -> str:
    """What `ark-jax config` prints of each recipe."""
    parts = ["# Every field\n\n`ark-jax config` prints these lists, of your own config too."]
    for recipe in RECIPES:
        command = [sys.executable, "-m", "ark_jax", "config", f"--config={recipe}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        parts.append(f"## {recipe}\n\n```text\n{done.stdout.rstrip()}\n```")
    return "\n\n".join(parts)


def _page_of(path: str) -> str:
    """The page of a module's API: `ark_jax/models/hf.py` has `api/models/hf.md`."""
    return "api/" + path.removeprefix("ark_jax/").removesuffix(".py") + ".md"


def _api() -> dict[str, str]:
    """A page for each module, and one that lists the public names and all modules."""
    pages, rooms = {}, {}
    for source in sorted((ROOT / "ark_jax").rglob("*.py")):
        path = source.relative_to(ROOT).as_posix()
        tree = ast.parse(source.read_text(encoding="utf-8"))
        if source.name in ("__main__.py", "__init__.py"):
            continue
        module = path.removesuffix(".py").replace("/", ".")
        pages[_page_of(path)] = f"::: {module}\n"
        summary = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
        room = posixpath.dirname(path).replace("/", ".")
        link = posixpath.relpath(_page_of(path), "api")
        rooms.setdefault(room, []).append(f"- [{source.stem}]({link}): {summary}")
    tree = ast.parse((ROOT / "ark_jax" / "__init__.py").read_text(encoding="utf-8"))
    names = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "_PUBLIC"
    )
    listed = [
        f"- [`ark_jax.{name}`]({module.removeprefix('ark_jax.').replace('.', '/')}.md"
        f"#{module}.{name})"
        for name, module in sorted(names.items())
    ]
    modules = [f"## {room}\n\n" + "\n".join(lines) for room, lines in rooms.items()]
    head = "# API\n\nThe public names:\n\n" + "\n".join(listed)
    pages["api/index.md"] = "\n\n".join([head, *modules]) + "\n"
    return pages
