"""PAPER.md of each recipe: its presets line by line, beside the paper or the released code.

`PYTHONPATH=.:tests python -m support.paper_tables` writes the files again.
"""

from pathlib import Path

from support.paths import REPOSITORY

from ark_jax import config, schema

COMMAND = "PYTHONPATH=.:tests python -m support.paper_tables"
EXACT, DEVIATION, MISSING = "exact", "deviation", "missing"
METHOD = {
    "ark": ("graph", "score", "mine", "train"),
    "gpr": ("questions", "train", "search"),
    "star": ("paths", "mine", "train", "search"),
    "bar_rag": ("pool", "warm", "success", "filter", "selector", "select", "read", "train"),
}


def path_of(recipe: str) -> Path:
    return REPOSITORY / "ark_jax" / "recipes" / recipe / "PAPER.md"


def kind_of_step(step) -> str:
    return MISSING if not step.file else DEVIATION if step.reason else EXACT


def row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def field_lines(source) -> list[str]:
    kinds = [DEVIATION if line.reason else EXACT for line in source.fields.values()]
    return [
        row("field", "ours", "source", "", "remark"),
        "|---|---|---|---|---|",
        *(
            row(f"`{name}`", f"`{line.value!r}`", line.where, kind, line.reason)
            for (name, line), kind in zip(source.fields.items(), kinds, strict=True)
        ),
    ]


def step_lines(source) -> list[str]:
    link = lambda file: f"[{file}](../../{file})" if file else ""
    return [
        row("source", "what", "ours", "", "remark"),
        "|---|---|---|---|---|",
        *(
            row(step.where, step.what, link(step.file), kind_of_step(step), step.reason)
            for step in source.steps
        ),
    ]


def silent_fields(recipe: str, preset: str) -> dict[str, object]:
    """The fields of the method of which a source says nothing, with the preset's values."""
    known = config.SOURCES[recipe][preset].fields
    values = schema.values(getattr(config, recipe)(preset))
    return {
        spec.name: values[spec.name]
        for spec in schema.fields(config.SCHEMAS[recipe])
        if spec.name.split(".")[0] in METHOD[recipe]
        and spec.affects_output
        and spec.name not in known
    }


def counts(source) -> str:
    kinds = [DEVIATION if line.reason else EXACT for line in source.fields.values()]
    kinds += map(kind_of_step, source.steps)
    numbers = ", ".join(f"{kinds.count(kind)} {kind}" for kind in (EXACT, DEVIATION, MISSING))
    return f"{len(kinds)} lines: {numbers}."


def table(recipe: str) -> str:
    """The text of a recipe's PAPER.md."""
    lines = [
        f"# The presets of `{recipe}` and their sources",
        "",
        f"Written from [config.py](config.py) by `{COMMAND}`.",
        "A remark says in what we depart from the source and why, or that it gives no value.",
    ]
    for preset, source in config.SOURCES[recipe].items():
        silent = ", ".join(f"`{k}` = `{v!r}`" for k, v in silent_fields(recipe, preset).items())
        lines += ["", f"## `{preset}`", "", f"{source.title}. {counts(source)}", ""]
        lines += [*field_lines(source), ""]
        lines += [f"It says nothing of these fields, which have their defaults: {silent}.", ""]
        lines += step_lines(source)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for recipe in config.SOURCES:
        path_of(recipe).write_text(table(recipe), encoding="utf-8")
