"""What a killed run has left is used only as it was written."""

import pytest

from ark_jax.pipeline.parts import PARTS, store_part, whole_parts


@pytest.fixture
def folder(tmp_path):
    for name in ("part-1", "part-2"):
        store_part(tmp_path / name, lambda path, name=name: path.write_text(f"an hour of {name}"))
    return tmp_path


def names(folder) -> list[str]:
    return [path.name for path in whole_parts(folder, "part-*")]


def test_every_flipped_bit_of_a_part_is_detected(folder, capsys):
    assert names(folder) == ["part-1", "part-2"] and not capsys.readouterr().out
    good = (folder / "part-1").read_bytes()
    for position in range(len(good)):
        changed = bytearray(good)
        changed[position] ^= 1
        (folder / "part-1").write_bytes(changed)
        assert names(folder) == ["part-2"] and not (folder / "part-1").exists()
        assert "part-1 has been damaged: it is made again" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "\0", "7\n", "[1]\n", "{}\n", '[["part-1"], {}]\n'])
def test_a_part_without_a_digest_is_not_used(content, folder):
    (folder / PARTS).write_text(content)
    assert names(folder) == []
    store_part(folder / "part-1", lambda path: path.write_text("again"))
    assert names(folder) == ["part-1"]


def test_a_rewritten_part_replaces_the_old_one(folder):
    store_part(folder / "part-1", lambda path: path.write_text("otherwise"))
    assert names(folder) == ["part-1", "part-2"]


def test_a_part_that_failed_to_be_written_is_not_listed(folder):
    def fail(path):
        path.write_text("half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        store_part(folder / "part-3", fail)
    assert names(folder) == ["part-1", "part-2"]
