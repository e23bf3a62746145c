"""`Recipe`: all that the command line's tools know of a method, and what its config names."""

import dataclasses
import importlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ark_jax import schema
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.manifest import MANIFEST_FILE, finished_manifest
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.runtime import mirror
from ark_jax.schema import FieldSpec, setting


@dataclasses.dataclass(frozen=True)
class Forecast:
    """A recipe's forecast of a run's remaining work, for `ark-jax plan`.

    Attributes:
        inputs: kind of input, such as documents -> their number.
        work: `estimate.work.Work` of all stages.
        disk: name of what is stored, other than models and vectors -> bytes.
        notes: the assumptions behind the figures.
    """

    inputs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    work: tuple = ()
    disk: Mapping[str, int] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The values by which a sweep compares a finished run.

    Attributes:
        system: name of the measured system.
        values: metric -> {"mean"} and, if there is an interval, {"low", "high"}.
        by_question: metric -> question -> value, for differences question by question.
        seed: of the bootstrap of these differences.
    """

    system: str
    values: Mapping[str, Mapping[str, float]]
    by_question: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Pooled:
    """The results of runs that each held out another part of the same questions.

    Attributes:
        rows: one of each system and question, with the run that measured it.
        metrics: the columns of the table.
        table: `{"system": name, "values": {metric: {"mean", "low", "high"}}}` over all questions;
            a value of a later system has `against_base` as well.
        notes: sentences on what the table shows.
    """

    rows: list[dict]
    metrics: tuple[str, ...]
    table: list[dict]
    notes: tuple[str, ...] = ()


def counted_outcome(workdir: Path) -> Outcome:
    """An outcome with the numbers in the manifests of a finished run's stages."""
    values = {}
    for folder in sorted(path.parent for path in workdir.glob(f"*/{MANIFEST_FILE}")):
        for name, value in finished_manifest(folder)["counts"].items():
            if isinstance(value, int | float):
                values[name] = {"mean": float(value)}
    return Outcome("", values)


# Field -> the value of `backend` in its section with which a run reads what the field names.
BACKENDS = {"path": "local", "replies": "replay"}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A method. A module that defines one calls it `RECIPE`; `config.recipe` names the module.

    Attributes:
        name: what messages call it.
        stages: config -> its stages in order; must not start jax.
        schema: the type of its config; None if a read of a field always records its value.
        check: raises ValueError for a config that some stage would fail on.
        unread: config -> the sections whose models, files and endpoints a run does not use.
        look: config -> what `config.data` holds, in one line.
        metrics: name of a metric that a sweep can compare runs by -> its heading in a table.
        headline: the metric that a sweep sorts by, unless the user names another.
        outcome: the values of a finished workdir by these metrics; by default, what its stages
            counted.
        pool: the pooled results of finished workdirs that each held out another part of the
            questions; None if the method holds out nothing.
        training_files: name of a format -> writes what the stages are trained on in that format.
        prepared: stages that `plan` runs in a temporary folder, since they only read the input.
        forecast: (context, done stages) -> the work of all stages; must not start jax.
        index_words: (config, workdir) -> the command-line words with which `ark-jax index` makes a
            finished run's documents searchable; empty if the run tunes no document retriever.
        conclusion: workdir of a finished run -> sentences on its result.
        ending: context of a finished run -> the lines after them, which end the run.
    """

    name: str
    stages: Callable[[object], list[Stage]]
    schema: type | None = None
    check: Callable[[object], None] = lambda config: None
    unread: Callable[[object], Iterable[str]] = lambda config: ()
    look: Callable[[object], str] = lambda config: ""
    metrics: Mapping[str, str] = dataclasses.field(default_factory=dict)
    headline: str = ""
    outcome: Callable[[Path], Outcome] = counted_outcome
    pool: Callable[[Sequence[Path]], Pooled] | None = None
    training_files: Mapping[str, Callable[[Context], None]] = dataclasses.field(
        default_factory=dict
    )
    prepared: tuple[str, ...] = ()
    forecast: Callable[[Context, set[str]], Forecast] = lambda context, done: Forecast()
    index_words: Callable[[object, Path], list[str]] = lambda config, workdir: []
    conclusion: Callable[[Path], Sequence[str]] = lambda workdir: ()
    ending: Callable[[Context], Sequence[str]] = lambda context: ()

    def paths(self, config, *contents: str) -> dict[str, str]:
        """Dotted field -> what it names, for the fields that a run reads.

        A field that names several has an entry `field, path` for each.

        Args:
            contents: kinds of content that the schema declares, such as "model".
        """
        found: dict[str, str] = {}
        for spec in self._read_fields(config):
            value = setting(config, spec.name) if spec.content in contents else ""
            if isinstance(value, list):
                found |= {f"{spec.name}, {path}": path for path in value}
            elif value:
                found[spec.name] = value
        return found

    def _read_fields(self, config) -> Iterator[FieldSpec]:
        """The fields of the schema that a run with this config reads."""
        unread = set(self.unread(config))
        for spec in schema.fields(self.schema) if self.schema else ():
            section, _, name = spec.name.rpartition(".")
            backend = setting(config, section).get("backend") if section else None
            is_read_by_backend = name not in BACKENDS or backend in (None, BACKENDS[name])
            if section not in unread and is_read_by_backend:
                yield spec

    def data_path(self, config) -> str | None:
        """The input of a run, perhaps empty; None if the method reads none."""
        fields = {spec.name for spec in schema.fields(self.schema)} if self.schema else set()
        return config.data.path if "data.path" in fields else None

    def roles(self, config) -> tuple[str, ...]:
        """The sections of the config that name a language model which a run asks."""
        sections = schema.sections(self.schema) if self.schema else {}
        asks = lambda kind: "base_url" in schema.own_fields(kind)
        unread = set(self.unread(config))
        return tuple(x for x, kind in sections.items() if asks(kind) and x not in unread)


def load_recipe(name: str) -> Recipe:
    """The recipe that `config.recipe` names: one of `ark_jax.recipes`, or a module's dotted path.

    Raises:
        ValueError: there is no such module, or it defines no RECIPE.
    """
    path = name if "." in name else f"ark_jax.recipes.{name}.recipe"
    if not all(map(str.isidentifier, path.split("."))):
        raise ValueError(
            f"config.recipe={name!r}: not the name of a module; name a recipe of ark_jax "
            f"({_listed_recipes()}) or the dotted path of your own module"
        )
    own_functions.search_working_folder()
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and not f"{path}.".startswith(f"{error.name}."):
            raise  # the module exists, but not what it imports
        raise ValueError(
            f"config.recipe={name!r}: no module {path}; name a recipe of ark_jax "
            f"({_listed_recipes()}) or the dotted path of your own module"
        ) from None
    recipe = getattr(module, "RECIPE", None)
    if not isinstance(recipe, Recipe):
        raise ValueError(f"config.recipe={name!r}: {path} defines no RECIPE = Recipe(...)")
    return recipe


def _listed_recipes() -> str:
    return ", ".join(sorted(recipe_names()))


def recipe_names() -> Iterable[str]:
    """The recipes of the package, by the folders that define one."""
    folder = Path(__file__).parents[1] / "recipes"
    return (path.parent.name for path in folder.glob("*/recipe.py"))


def recipe_of(config) -> Recipe:
    """The recipe that a config names; "ark" if it names none, as in an earlier version."""
    return load_recipe(config.get("recipe", "ark"))


def schema_of(config) -> type | None:
    """The type of a config that names its recipe; None if it has no schema."""
    return recipe_of(config).schema if "recipe" in config else None


def quote_text(text: str) -> str:
    """A text in quotes for a shell, in double ones if it has nothing that a shell reads there."""
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'


def search_command(workdir: Path, question: str = "QUESTION") -> str:
    """The shell commands that index a run's documents with its export, and search them."""
    quoted = quote_text(question)
    if (address := mirror.address(workdir)) != str(workdir):  # no index lies in a bucket
        make = f"ark-jax index {shlex.quote(f'{address}/export')} DOCUMENTS --out=DIR"
        return f"{make} && ark-jax search DIR {quoted}"
    flag = f"--workdir={shlex.quote(str(workdir))}"
    return f"ark-jax index {flag} && ark-jax search {flag} {quoted}"
