"""Strings of a file: where each of them stands."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.data import text_columns
from ark_jax.data.text_columns import StoredStrings

STRINGS = st.lists(st.text(max_size=3), unique=True, max_size=20)


@pytest.mark.parametrize("digest", [hash, lambda string: len(string), lambda string: -1])
@given(strings=STRINGS, other=st.text(max_size=3), rows=st.integers(1, 5))
def test_every_stored_string_is_found_at_its_position(digest, strings, other, rows):
    blocks = [strings[i : i + rows] for i in range(0, len(strings), rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_columns, "hash", digest, raising=False)  # that collides
        stored = StoredStrings(pa.chunked_array(blocks, pa.large_string()))
        assert list(stored) == strings and list(stored[1::2]) == strings[1::2]
        assert [stored.position(string) for string in strings] == [*range(len(strings))]
        assert (other in stored) == (other in strings)
        if other not in strings:
            with pytest.raises(KeyError):
                stored.position(other)
