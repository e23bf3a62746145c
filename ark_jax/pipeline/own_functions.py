"""Functions of the user's own, which a field of the config names as `module:function`.

A module is found where Python finds one, and in the folder that a command is started in. It is
imported when a run begins and when `plan` or `doctor` checks the config. To find out which stages
are done, its file, and the files beside it that it imports, are read but not imported.
"""

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from ark_jax.pipeline.fingerprints import file_digest
from ark_jax.runtime import distributed

PACKAGE = __name__.partition(".")[0]
_imported: dict[str, str] = {}  # module -> digest of the files that it was imported from


def is_own(value: str) -> bool:
    """Whether a field's value names the user's own function, not a built-in choice."""
    return ":" in value


def search_working_folder() -> None:
    """Lets modules in the working folder be imported, as `python -m` does.

    It comes last, so that no file there takes the place of a package that is installed.
    """
    folder = str(Path.cwd())
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)


def digest(field: str, path: str) -> str:
    """The digest of the file that defines a function, without importing it.

    It covers the user's files that this one imports, directly or not. It leaves out packages that
    are installed.

    Args:
        field: dotted, for messages.
        path: `module:function`.

    Raises:
        ValueError: there is no such module, or it is not a Python file.
    """
    name = path.partition(":")[0]
    return _files_digest(_source_files(name, _module_file(f"config.{field}={path!r}", name)))


def load(field: str, path: str, kind: type) -> Callable:
    """The function that a field names. Its errors name the field, the error and its line.

    A file that was edited since it was imported is imported again, with the files that it imports.

    Args:
        field: dotted, for messages.
        path: `module:function`.
        kind: a Protocol; the function must take what its `__call__` takes.

    Raises:
        ValueError: there is no such module or function, the module cannot be imported, or the
            function takes other parameters.
    """
    setting, (name, _, attribute) = f"config.{field}={path!r}", path.partition(":")
    file = _module_file(setting, name)
    try:
        module = _import_current(name, _source_files(name, file))
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{setting}: {file} cannot be imported ({_describe(error, file)}); correct it, or "
            "install what it needs"
        ) from error
    if not hasattr(module, attribute):
        close = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f"; did you mean {name}:{close[0]}?" if close else ""
        raise ValueError(f"{setting}: {file} defines no {attribute!r}{hint}")
    function = getattr(module, attribute)
    if not callable(function):
        raise ValueError(
            f"{setting}: {attribute} of {file} is of type {type(function).__name__}; name a "
            "function"
        )
    _check_parameters(function, kind, setting, file)
    return _with_explained_errors(function, setting, file)


def check_processes() -> None:
    """Compares the user's files of all processes. All processes must call it.

    Raises:
        ValueError: a process has imported other files than process 0, such as an old copy.
    """
    for name, version in sorted(_imported.items()):
        if numbers := distributed.differing_processes(version):
            raise ValueError(
                f"{sys.modules[name].__file__}, or a file beside it that it imports, is another on "
                f"process {', '.join(map(str, numbers))} than on process 0; copy the same files to "
                "all hosts"
            )


def _module_file(setting: str, name: str) -> Path:
    """The source file of a module."""
    if name == "__main__":  # importing the running program would run it again
        raise ValueError(
            f"{setting}: __main__ is the program that runs, which an import would run again; put "
            "the function into a file of its own and name that"
        )
    search_working_folder()
    importlib.invalidate_caches()  # the file may be new
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:  # perhaps of the package that should hold it
        if not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"{setting}: {error}") from error
        spec = None
    except Exception as error:  # raised by a package that holds it
        raise ValueError(f"{setting}: {name} cannot be found ({error})") from error
    if spec is None:
        raise ValueError(
            f"{setting}: no module {name!r}; put {name.replace('.', '/')}.py into {Path.cwd()}, or "
            "its folder into $PYTHONPATH"
        )
    if not (spec.has_location and spec.origin):
        raise ValueError(f"{setting}: {name} is not a Python file; name a module")
    return Path(spec.origin)


def _source_files(name: str, file: Path) -> dict[str, Path]:
    """Name -> file of a module, and of modules in its folder that it imports, directly or not."""
    is_package = file.name == "__init__.py"
    folder = file.parents[name.count(".") + is_package]
    sources, names = {name: file}, [name]
    while names:
        module = names.pop()
        for imported in _imported_names(module, sources[module]):
            stem = folder.joinpath(*imported.split("."))
            places = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
            source = next(filter(Path.is_file, places), None)
            if source and imported not in sources and imported.partition(".")[0] != PACKAGE:
                sources[imported] = source
                names.append(imported)
    return sources


def _imported_names(module: str, file: Path) -> Iterator[str]:
    """The names of modules that a file may import, and of their packages."""
    if {"site-packages", "dist-packages"} & set(file.parts):  # installed
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # the import will report it
        return
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - max(node.level - 1, 0)]
            parts = [*(parents if node.level else ()), *filter(None, [node.module])]
            names = [".".join([*parts, alias.name]) for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _files_digest(sources: dict[str, Path]) -> str:
    """The sha256 of a module's files; that of a single file is the digest of its contents."""
    digests = [file_digest(file) for _, file in sorted(sources.items())]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _import_current(name: str, sources: dict[str, Path]):
    """The module, imported again if one of its files has changed."""
    version = _files_digest(sources)
    if name in sys.modules and _imported.get(name) != version:
        for loaded in [*sys.modules]:  # also their packages, which hold references to them
            if loaded in sources or any(source.startswith(f"{loaded}.") for source in sources):
                del sys.modules[loaded]
    module = importlib.import_module(name)
    _imported[name] = version
    return module


def _check_parameters(function: Callable, kind: type, setting: str, file: Path) -> None:
    """Raises ValueError if a function cannot be called like the `__call__` of a Protocol."""
    parameters = [
        x for x in inspect.signature(kind.__call__).parameters.values() if x.name != "self"
    ]
    by_name = {x.name: None for x in parameters if x.kind is inspect.Parameter.KEYWORD_ONLY}
    by_position = [x.name for x in parameters if x.name not in by_name]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is not written in Python
        return
    try:
        signature.bind(*by_position, **by_name)
    except TypeError as error:
        call = ", ".join((*by_position, *(f"{name}=..." for name in by_name)))
        raise ValueError(
            f"{setting}: the function of {file} takes {signature} and is called with ({call}): "
            f"{error}"
        ) from None


def _with_explained_errors(function: Callable, setting: str, file: Path) -> Callable:
    """The function; an error in it becomes a RuntimeError that names setting, error and line."""

    @functools.wraps(function)
    def call(*values, **named_values):
        try:
            return function(*values, **named_values)
        except MemoryError:
            raise
        except Exception as error:
            raise RuntimeError(f"{setting} fails: {_describe(error, file)}; correct it") from error

    return call


def _describe(error: BaseException, file: Path) -> str:
    """An error in one line, with the line of the file that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == file]
    place = f", line {lines[-1]}" if lines else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{place}"
