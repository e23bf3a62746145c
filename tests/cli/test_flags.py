"""Flags that stand once, as fields of a verb: what is read, refused and shown."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest
from support.paths import REPOSITORY

from ark_jax.cli import completion, verbs
from ark_jax.cli.flags import Flags, describe_flags, flag, specs, usage
from ark_jax.data.problems import Reading


class Base(Flags):
    """Flags of several verbs."""

    model: str = flag("--model=DIR", "a folder", "")
    fast: bool = flag("--fast", "hurries", False)


class Count(Base):
    """A verb."""

    path: str = flag("PATH", "what is counted")
    question: str = flag('"QUESTION"', "in quotes", "")
    out: str = flag("--out=DIR", "where it goes")
    k: int = flag("--k=N", "how many", 7)
    by: str = flag("--by=word|line", "what is counted", "word")
    price: float | None = flag("--price=USD", "of one", None, verbs=("recount",))
    workdir: Path | None = flag("--workdir=DIR", "of a run", None)

    example = "ark-jax count text.txt --out=DIR"
    remarks = "It counts."


class Fields(Base):
    """A verb that takes fields of a config."""

    fields: tuple[str, ...] = flag("PREFIX", "of fields", ())


NEEDED = ("text.txt", "--out=o")


def parsed(*words: str) -> Count:
    return Count.parse("count", [*NEEDED, *words])


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ((), {}),
        (("--k=3",), {"k": 3}),
        (("--k", "3", "why?"), {"k": 3, "question": "why?"}),
        (("-k=3", "-fast"), {"k": 3, "fast": True}),
        (("--k=3", "--k=4"), {"k": 4}),
        (("--fast", "why?"), {"fast": True, "question": "why?"}),
        (("--fast=true", "--nofast"), {}),
        (("--nofast", "--fast=1"), {"fast": True}),
        (("--fast", "--fast=False"), {}),
        (("--model=a=b",), {"model": "a=b"}),
        (("--model=",), {}),
        (("--model", "-5"), {"model": "-5"}),
        (("-what is it?",), {"question": "-what is it?"}),
        (("--", "--fast"), {"question": "--fast"}),
        (("--price=0.5", "--by=line"), {"price": 0.5, "by": "line"}),
        (("--workdir=~/w",), {"workdir": Path.home() / "w"}),
        (("--workdir=",), {}),
    ],
)
def test_words_and_flags_are_parsed(words, changed):
    plain = Count(verb="count", path="text.txt", out="o")
    assert parsed(*words) == dataclasses.replace(plain, **changed)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--k=0",), "bad flag: argument --k: 0 must be at least 1; `ark-jax count --help` shows"),
        (("--k=few",), "argument --k: 'few' is not a whole number"),
        (("--k",), "argument --k: expected one argument"),
        (("--k", "--fast"), "argument --k: expected one argument"),
        (("--by=page",), "argument --by: invalid choice: 'page' (choose from 'word', 'line')"),
        (("--fast=often",), "argument --fast: invalid choice: 'often'"),
        (("--price=dear",), "argument --price: could not convert string to float: 'dear'"),
        (("--modle=m",), "unrecognized arguments: --modle=m (did you mean --model?)"),
        (("--mod=m",), "unrecognized arguments: --mod=m"),
        (("--nok",), "unrecognized arguments: --nok"),
        (("--config.train.batch=3",), "unrecognized arguments: --config.train.batch=3"),
        (("why", "not?"), "unexpected 'not?'; put quotes around a question or a path with blanks"),
        (("--workdir=gs://b/w",), "--workdir=gs://b/w: it needs locks"),
        ((f"--workdir={__file__}/w",), f"{__file__} is a file; give another folder"),
    ],
)
def test_invalid_flags_are_refused(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parsed(*words)


def test_missing_arguments_are_reported_together():
    with pytest.raises(ValueError, match=r"^ark-jax count needs PATH and --out, as in: ark-jax co"):
        Count.parse("count", ["--k=3"])


def test_config_fields_keep_their_order():
    words = ["train", "--config.x", "3", "--fast", "--noconfig.y", "--confg.z=1"]
    found = Fields.parse("config", words)
    assert found.fields == ("train", "--config.x", "3", "--noconfig.y", "--confg.z=1")
    assert found.fast


def test_a_misspelled_flag_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"--fats \(did you mean --fast\?\)"):
        Fields.parse("config", ["--fats"])


def test_the_help_lists_words_before_own_and_shared_flags():
    assert usage(Count, "count") == 'PATH ["QUESTION"] --out=DIR [FLAGS]'
    assert describe_flags(Count, "count").splitlines() == [
        "  PATH                 what is counted",
        '  "QUESTION"           in quotes',
        "  --out=DIR            where it goes",
        "  --k=N                how many; default: 7",
        "  --by=word|line       what is counted; default: word",
        "  --workdir=DIR        of a run",
        "  --model=DIR          a folder",
        "  --fast               hurries",
        "It counts.",
    ]
    assert "--price=USD" in describe_flags(Count, "recount") and usage(Base, "x") == "[FLAGS]"


@pytest.mark.parametrize("name", verbs.VERBS)
def test_a_flag_has_the_name_of_its_field(name):
    """A flag whose name Python keeps for itself, or that says less, is the exception."""
    others = {"--to": "database", "--from": "database", "--where": "filter"}
    shown = specs(verbs.class_of(name), name)
    for field, spec in shown.items():
        if spec.is_flag and not spec.name.startswith("--config."):
            assert others.get(spec.name, spec.name[2:].replace("-", "_")) == field.name
    flags = {spec.name for spec in shown.values() if spec.is_flag} - {"--config.FIELD"}
    assert {word.rstrip("=") for word in completion.flags_of(name)} == flags
    named = re.findall(r"--[a-z][a-z0-9-]*", verbs.class_of(name).example)
    assert set(named) <= flags | {"--config"}


def test_commands_in_messages_have_valid_flags():
    """In strings and docstrings of the package: `ark-jax VERB ... --flag`."""
    told = set()
    for path in (REPOSITORY / "ark_jax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for verb, rest in re.findall(r"ark-jax ([a-z]+)([^`\n|&;]*)", node.value):
                    told |= {(verb, name) for name in re.findall(r"(?<=\s)--[a-z][a-z0-9-]*", rest)}
    assert len(told) > 20
    unknown = {
        (verb, name)
        for verb, name in told
        if name not in {spec.name for spec in specs(verbs.class_of(verb)).values()}
    }
    # With a config, `evaluate` is the stage of a run.
    assert unknown <= {("evaluate", "--config"), ("evaluate", "--workdir")}


READ = ("--tolerate=0.05", "--columns=question=Prompt", "--encoding=cp1252")


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("check", ["d"]),
        ("init", ["d"]),
        ("index", ["m", "d", "--out=o"]),
        ("evaluate", ["--models=m", "--data=d"]),
        *((verb, ["--config=ark"]) for verb in ("run", "plan", "doctor", "data", "evaluate")),
    ],
)
def test_flags_that_messages_on_bad_rows_recommend_are_accepted(verb, words):
    """`readers` names the same flags whichever command reads."""
    flags = verbs.class_of(verb).parse(verb, [*words, *READ])
    assert (flags.tolerate, flags.columns) == (0.05, "question=Prompt")
    if "--config=ark" in words:
        data = flags.open_plain()[0].data
        assert (data.tolerate, data.columns) == (0.05, "question=Prompt")
        assert data.encoding == "cp1252"
    else:
        assert flags.reading() == Reading("cp1252", "question=Prompt", 0.05)


def test_a_flag_for_a_field_that_the_recipe_lacks_is_refused():
    run = verbs.class_of("run").parse("run", ["--config=gpr", "--columns=question=Prompt"])
    with pytest.raises(ValueError, match=r"this recipe has no data\.columns"):
        run.open_plain()
