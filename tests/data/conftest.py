"""What tests of files share."""

import pytest

from ark_jax.runtime import limited


@pytest.fixture
def without_package(tmp_path_factory, monkeypatch):
    """A function that hides a package from the processes that read files."""

    def hide(name: str) -> None:
        folder = tmp_path_factory.mktemp("hidden")
        (folder / f"{name}.py").write_text(f"raise ImportError('hidden', name={name!r})")
        monkeypatch.syspath_prepend(folder)
        limited._idle.clear()

    yield hide
    monkeypatch.undo()
    limited._idle.clear()
