"""A config file for data that it looks at: `ark-jax init` writes it."""

import dataclasses
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.runtime import storage

if TYPE_CHECKING:
    from ark_jax.data.problems import Reading
    from ark_jax.data.records import Question

WIDTH = 90  # columns of a comment
MODELS = ("retriever.path", "generator.path")
LLM = ("llm.backend", "llm.model", "llm.max_cost")
# recipe -> the fields that a new file shows with their defaults, to be changed
SHOWN = {
    "ark": ("data.held_out", "data.test", *MODELS, *LLM, "train.epochs", "train.batch"),
    "gpr": (*MODELS, *LLM, "questions.triples", "train.epochs", "train.batch"),
    "star": ("data.held_out", "paths.hops", *MODELS, "train.epochs", "train.batch"),
}
TITLES = {
    "ark": "ARK: a retriever of passages, tuned on documents and questions",
    "gpr": "GPR: a retriever of triples, tuned on a graph alone",
    "star": "STAR: relation paths of a graph, tuned on its questions",
}

FEW_QUESTIONS = 100  # fewer tell little on a fifth of them
FOLDS = 5  # of the sweep `folds`
HELD_OUT = 0.2  # of the questions, by default


@dataclasses.dataclass(frozen=True)
class ConfigDraft:
    """The config that suits data, and a summary of them.

    Attributes:
        recipe: the recipe that suits them.
        fields: dotted field of the config -> value.
        lines: a summary, as `ark-jax check` says it.
        good: whether the data have no problem.
        few: how many questions there are, if they are too few for a test on a part of them.
    """

    recipe: str
    fields: Mapping[str, object]
    lines: list[str]
    good: bool
    few: int = 0


def draft_config(
    data: str, files: Mapping[str, str], reading: "Reading | None" = None
) -> ConfigDraft:
    """Reads a file or folder, and chooses a recipe and fields of its config.

    Args:
        files: "questions", "names" or "relation_names" -> a file beside the data.
        reading: how to read documents; None: as their content shows.

    Raises:
        ValueError: there are questions alone.
    """
    from ark_jax.graph import triple_check

    of_documents = reading is not None and reading.is_of_documents
    if not of_documents and triple_check.are_about_graph(data, **files):
        return _draft_for_graph(data, files, reading.encoding if reading else "")
    return _draft_for_documents(data, files.get("questions", ""), reading)


def _draft_for_documents(data: str, questions: str, reading: "Reading | None") -> ConfigDraft:
    """A draft for documents, or for questions with their documents. Raises ValueError."""
    from ark_jax.data import readers
    from ark_jax.recipes.documents.choice import share_that_chooses

    reading = reading or readers.AS_IT_IS
    corpus, problems = readers.read(data, questions, reading)
    lines = list(map(str, (*corpus.remarks, *problems)))
    fields = {"data.path": storage.absolute(data)}
    if questions:
        fields["data.questions"] = storage.absolute(questions)
    names = ("columns", "encoding", "tolerate")
    flags = {f"data.{name}": getattr(reading, name) for name in names}
    fields |= {field: value for field, value in flags.items() if value}
    if not readers.is_tolerable(problems, reading.tolerate):
        lines.append(readers.verdict(problems))
        return ConfigDraft("ark", fields, _split_lines(lines), False)
    if not corpus.documents:
        raise ValueError(
            f"{data}: questions alone; give their documents: ark-jax init DOCUMENTS "
            f"--questions={shlex.quote(data)}"
        )
    lines.append(readers.summary(corpus))
    lines.append(readers.mostly_passed_over(corpus))
    if len(corpus.questions) > 1 and not any(q.answers for q in corpus.questions):
        fields["score.supervision"] = "gold"
        if share := share_that_chooses(int((1 - HELD_OUT) * len(corpus.questions))):
            fields["score.development"] = share
        lines.append(
            "no question has an answer: what is marked for it trains (score.supervision), hard "
            "negatives are given or found by the question (mine.by), and no language model is used"
        )
    elif not any(question.answers for question in corpus.questions):
        fields["questions.source"] = "written"
        lines.append("no question has an answer to train on: questions are written")
    count = len(corpus.questions) if _can_be_folded(corpus.questions) else 0
    return ConfigDraft("ark", fields, _split_lines(lines), True, count)


def _can_be_folded(questions: Sequence["Question"]) -> bool:
    """Whether questions are few, and can be divided into folds."""
    from ark_jax.recipes.core.split import document_keys

    if len(questions) >= FEW_QUESTIONS:
        return False
    keys, divides = document_keys(questions)
    return len(set(keys) if divides else questions) >= FOLDS


def folds_command(draft: ConfigDraft, name: str) -> str:
    """How to test on all of few questions, by the config file `name`; "" if they are enough."""
    if not draft.few:
        return ""
    config = shlex.quote(f"{name}:sweep=folds")
    return f"ark-jax sweep --config={config} --workdir=DIR"


def few_questions(draft: ConfigDraft) -> str:
    """Why folds are better for them."""
    return f"{draft.few:,} questions are few: folds test on each of them"


def _draft_for_graph(data: str, files: Mapping[str, str], encoding: str) -> ConfigDraft:
    """A draft for a graph of triples: STAR if there are questions, else GPR."""
    from ark_jax.graph import triple_check

    if "questions" not in files and _has_questions(Path(data)):
        files = {**files, "questions": data}
    lines, good = triple_check.check(data, **files, encoding=encoding)
    fields = {
        f"data.{name}": storage.absolute(path) for name, path in {"path": data, **files}.items()
    }
    if encoding:
        fields["data.encoding"] = encoding
    return ConfigDraft("star" if "questions" in files else "gpr", fields, _split_lines(lines), good)


def _split_lines(texts: Sequence[str]) -> list[str]:
    """Splits texts into lines, so that each line can become a comment."""
    return "\n".join(texts).splitlines()


def _has_questions(path: Path) -> bool:
    """Whether the rows of a graph's file are questions, each with a part of the graph."""
    from ark_jax.data.text_files import head_text, is_parquet

    if not path.is_file():
        return False
    if is_parquet(path):
        import pyarrow.parquet as pq

        return "question" in pq.read_schema(path).names
    return '"question"' in head_text(path)


def config_text(draft: ConfigDraft, name: str) -> str:
    """The Python source of the config file called `name`."""
    recipe, quoted = draft.recipe, shlex.quote(name)
    folds = folds_command(draft, name)
    lines = [
        TITLES[recipe],
        "",
        f"    ark-jax run --config={quoted} --workdir=DIR      # run it again to resume",
        f"    ark-jax plan --config={quoted}                   # calls, cost, time, disk",
        f"    ark-jax config --config={quoted}                 # every field, unit and meaning",
        *([f"    {folds}   # {few_questions(draft)}"] if folds else []),
        "",
        f"What `ark-jax init` understood of {draft.fields['data.path']!r}:",
        "",
        *(f"    {line}" for line in draft.lines if line.strip()),
    ]
    comment = "\n".join(f"# {line}".rstrip() for line in lines)
    fields = "".join(f"    c.{field} = {value!r}\n" for field, value in draft.fields.items())
    return f"""{comment}

from ark_jax.recipes.{recipe} import config

SWEEPS = config.SWEEPS


def get_config(words=""):
    c = config.get_config(words)  # words after a colon: --config={name}:paper
{fields}{_commented_fields(recipe)}    return c
"""


def _commented_fields(recipe: str) -> str:
    """Fields that users change, as comments: meaning, and a line to uncomment."""
    from ark_jax import config, schema

    specs = {spec.name: spec for spec in schema.fields(config.SCHEMAS[recipe])}
    lines = []
    for name in SHOWN[recipe]:
        spec = specs[name]
        meaning = f"{spec.meaning} ({spec.unit})" if spec.unit else spec.meaning
        wrapped = textwrap.wrap(meaning, WIDTH, break_on_hyphens=False)
        lines += ["", *(f"# {line}" for line in wrapped)]
        lines.append(f"# c.{name} = {spec.default!r}")
    return "".join(f"    {line}".rstrip() + "\n" for line in lines)
