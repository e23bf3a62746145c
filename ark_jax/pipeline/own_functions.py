"""Functions of the user's own, which a field of the config names as `module:function`.

A module is found where Python finds one, and in the folder that a command is started in. It is
imported when a run begins and when `plan` or `doctor` looks at the config; to look up what is done,
its file is read alone.
"""

import difflib
import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from ark_jax.pipeline.fingerprints import file_digest

_imported: dict[str, str] = {}  # module -> digest of the file that it was imported from


def is_own(value: str) -> bool:
    """Whether a field names a function of the user's own, and no built-in choice."""
    return ":" in value


def search_working_folder() -> None:
    """Lets modules in the working folder be imported, as `python -m` does.

    It comes last, so that no file there takes the place of a package that is installed.
    """
    folder = str(Path.cwd())
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)


def digest(field: str, path: str) -> str:
    """The digest of the file that a function lies in, without importing it.

    Args:
        field: dotted, for messages.
        path: `module:function`.

    Raises:
        ValueError: there is no such module, or it is no file.
    """
    return file_digest(_file(field, path))


def load(field: str, path: str, kind: type) -> Callable:
    """The function that a field names. An error that it raises names field, file and line.

    A file that was edited since it was imported is imported again.

    Args:
        field: dotted, for messages.
        path: `module:function`.
        kind: a Protocol; the function must take what its `__call__` takes.

    Raises:
        ValueError: there is no such module or function, the module cannot be imported, or the
            function takes other parameters.
    """
    file, (name, _, attribute) = _file(field, path), path.partition(":")
    try:
        module = _import(name, file_digest(file))
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"config.{field}={path!r}: {file} cannot be imported ({_describe(error, file)}); "
            "correct it, or install what it needs"
        ) from error
    if not hasattr(module, attribute):
        close = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f"; did you mean {name}:{close[0]}?" if close else ""
        raise ValueError(f"config.{field}={path!r}: {file} defines no {attribute!r}{hint}")
    function = getattr(module, attribute)
    if not callable(function):
        raise ValueError(
            f"config.{field}={path!r}: {attribute} of {file} is of type "
            f"{type(function).__name__}; name a function"
        )
    _check_parameters(function, kind, f"config.{field}={path!r}", file)
    return _explaining(function, f"config.{field}={path!r}", file)


def _file(field: str, path: str) -> Path:
    """The source file of the module of `module:function`."""
    name = path.partition(":")[0]
    search_working_folder()
    importlib.invalidate_caches()  # the file may be new
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:  # a package that is to hold it
        if not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"config.{field}={path!r}: {error}") from error
        spec = None
    except Exception as error:  # of a package that holds it, or of __main__
        raise ValueError(f"config.{field}={path!r}: {name} cannot be found ({error})") from error
    if spec is None:
        raise ValueError(
            f"config.{field}={path!r}: no module {name!r}; put {name.replace('.', '/')}.py into "
            f"{Path.cwd()}, or its folder into $PYTHONPATH"
        )
    if not (spec.has_location and spec.origin):
        raise ValueError(f"config.{field}={path!r}: {name} is no file of Python; name a module")
    return Path(spec.origin)


def _import(name: str, digest: str):
    """The module as its file is now."""
    known = sys.modules.get(name)
    is_older = known is not None and _imported.get(name) != digest
    module = importlib.reload(known) if is_older else importlib.import_module(name)
    _imported[name] = digest
    return module


def _check_parameters(function: Callable, kind: type, named: str, file: Path) -> None:
    asked = [x for x in inspect.signature(kind.__call__).parameters.values() if x.name != "self"]
    by_name = {x.name: None for x in asked if x.kind is inspect.Parameter.KEYWORD_ONLY}
    by_position = [x.name for x in asked if x.name not in by_name]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is not written in Python
        return
    try:
        signature.bind(*by_position, **by_name)
    except TypeError as error:
        call = ", ".join((*by_position, *(f"{name}=..." for name in by_name)))
        raise ValueError(
            f"{named}: the function of {file} takes {signature} and is called with ({call}): "
            f"{error}"
        ) from None


def _explaining(function: Callable, named: str, file: Path) -> Callable:
    """The function, whose errors say that they are the user's own."""

    @functools.wraps(function)
    def call(*values, **named_values):
        try:
            return function(*values, **named_values)
        except MemoryError:
            raise
        except Exception as error:
            raise RuntimeError(f"{named} fails: {_describe(error, file)}; correct it") from error

    return call


def _describe(error: BaseException, file: Path) -> str:
    """An error in one line, with the line of the file that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == file]
    place = f", line {lines[-1]}" if lines else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{place}"
