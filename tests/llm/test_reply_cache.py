"""The file of replies: rows that survive kills and odd characters, and claims between processes."""

import contextlib
import json
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.llm_calls import calls, changed_settings, completion
from support.paths import REPOSITORY

from ark_jax.llm import complete
from ark_jax.llm.conversations import Conversations, accept_all
from ark_jax.llm.pricing import COUNTS
from ark_jax.llm.reply_cache import ReplyCache, RowFile, reply_text
from ark_jax.runtime.log import read_rows


def test_a_half_written_last_row_does_not_affect_other_rows(recording, tmp_path):
    path = recording(calls(), "abc")
    path.write_bytes(path.read_bytes()[:-20])
    assert sorted(ReplyCache(path).rows) == ["extract/0", "extract/1"]
    with pytest.raises(RuntimeError, match="no reply for 1 of 3 calls, the first being extract/2"):
        complete.complete(
            calls(), changed_settings(replies=str(path)), tmp_path / "cache.jsonl", "x"
        )
    ReplyCache(path).add(
        {"item": "extract/2", "key": "k", "prompt": "", "reply": completion("again")}
    )
    assert [reply_text(row["reply"]) for row in read_rows(path)] == ["a", "b", "again"]
    assert sorted(ReplyCache(path).rows) == ["extract/0", "extract/1", "k"]


@pytest.mark.parametrize(
    "text", ["one\u2028two", "one\u0085two", "one\x0b\x0c\x1c\r\ntwo"], ids=ascii
)
def test_unusual_line_breaks_in_a_reply_do_not_split_its_row(text, recording, tmp_path):
    path = recording(calls(1), [text])
    assert complete.complete(
        calls(1), changed_settings(replies=str(path)), tmp_path / "cache.jsonl", "x"
    ).texts == {"extract/0": [text]}
    assert len(ReplyCache(path).rows) == 1


def test_a_last_row_without_a_line_break_is_read(recording):
    """An editor may leave the last row like that."""
    path = recording(calls(2), "ab")
    path.write_bytes(path.read_bytes()[:-1])
    replies = ReplyCache(path)
    assert sorted(replies.rows) == ["extract/0", "extract/1"]
    replies.add({"item": "x", "key": "x", "reply": completion("c")})
    assert sorted(ReplyCache(path).rows) == ["extract/0", "extract/1", "x"]


def test_only_one_claim_succeeds(tmp_path):
    replies, key = ReplyCache(tmp_path / "cache.jsonl"), "ab" * 32
    with replies.claim(key) as first, replies.claim(key) as second:
        assert (first, second) == (True, False)
        with replies.claim("cd" * 32) as other:
            assert other
        assert claims_elsewhere(replies.path, key, "cd" * 32) == [False, True]
    replies.add({"key": key, "reply": completion("x")})
    with replies.claim(key) as answered:
        assert not answered


def claims_elsewhere(path: Path, *keys: str) -> list[bool]:
    """Whether another process can claim each key."""
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from ark_jax.llm.reply_cache import ReplyCache\n"
        "def claim(key):\n"
        "    with ReplyCache(Path(sys.argv[1])).claim(key) as is_claimed:\n"
        "        return is_claimed\n"
        "print(json.dumps([claim(key) for key in sys.argv[2:]]))"
    )
    command = [sys.executable, "-c", code, path, *keys]
    done = subprocess.run(command, cwd=REPOSITORY, timeout=60, capture_output=True, check=True)
    return json.loads(done.stdout)


MALFORMED = {
    "it has no choices": {"choices": []},
    "its first choice has no message": {"choices": [{}]},
    "the content of its message is neither": {"choices": [{"message": {"content": 7}}]},
    "neither a text nor text parts": {"choices": [{"message": {"content": [{"text": 3}]}}]},
    "it holds no chat completion": {},
    "its usage is not an object of numbers": completion("x") | {"usage": {"prompt_tokens": "many"}},
}


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0, "free", True])
def test_an_impossible_cost_is_not_counted(cost, recording, capsys):
    """NaN would be below every cost limit, and a negative cost would raise it."""
    path = recording(calls(2), "ab")
    rows = list(map(json.loads, path.read_text().splitlines()))
    rows.append({"item": "x", "key": "unused/1", "cost": cost, "reply": {"usage": None}})
    rows[0]["cost"], rows[1]["cost"] = cost, 2.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    replies = ReplyCache(path)
    assert (sorted(replies.rows), replies.spent) == (["extract/1"], 2.0)
    assert "(lines 1, 3); of line 1, its cost is not a finite number" in capsys.readouterr().out


@pytest.mark.parametrize("problem", MALFORMED)
def test_malformed_rows_are_reported_by_line_and_not_used(problem, recording, tmp_path, capsys):
    path = recording(calls(), "abc")
    rows = path.read_text().splitlines()
    row = json.loads(rows[1]) | {"reply": MALFORMED[problem]}
    path.write_text("\n".join([rows[0], json.dumps(row), rows[2], "7", '{"cost": 1}']) + "\n")
    assert sorted(ReplyCache(path).rows) == ["extract/0", "extract/2"]
    said = capsys.readouterr().out
    assert "3 rows are malformed and not used (lines 2, 4, 5); of line 2, " in said
    assert problem in said
    settings = changed_settings(replies=str(path))
    with pytest.raises(RuntimeError, match="no reply for 1 of 3 calls, the first being extract/1"):
        complete.complete(calls(), settings, tmp_path / "cache.jsonl", "x")
    assert "(lines 2, 4, 5)" in capsys.readouterr().out


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=3), x, max_size=2),
    max_leaves=4,
)
FORGED = st.fixed_dictionaries(
    {},
    optional={
        "item": st.just("extract/0") | VALUES,
        "kind": VALUES,
        "turn": VALUES,
        "key": st.just("unused/1") | VALUES,
        "prompt": VALUES,
        "seconds": VALUES,
        "cost": VALUES,
        "reply": st.fixed_dictionaries(
            {"usage": VALUES | st.dictionaries(st.sampled_from(COUNTS), VALUES)},
            optional={"choices": st.just(completion("\ud800")["choices"]), "error": VALUES},
        ),
    },
)


@settings(max_examples=200, deadline=None)
@example(forged=[{"item": "extract/0", "reply": {"usage": {"total_tokens": ":"}, "error": ""}}])
@given(forged=st.lists(FORGED, max_size=3))
def test_forged_rows_are_used_or_named(forged):
    """A recording and a cache of any rows give replies, or one line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replies.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in forged) + '{"item": "extr')
        with contextlib.suppress(RuntimeError):
            replay = changed_settings(replies=str(path))
            done = complete.complete(calls(1), replay, Path(folder) / "cache.jsonl", "x")
            "".join(done.texts["extract/0"]).encode()
        live = changed_settings(backend="openai", model="m")
        state = Conversations(calls(1), live, ReplyCache(path), accept_all)
        assert state.next_turns(calls(1)[0]) and state.usage.cost >= 0


def test_a_line_without_end_takes_no_memory(tmp_path):
    path = tmp_path / "replies.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 33)
    tracemalloc.start()
    with contextlib.closing(RowFile(path).lines()) as lines:
        assert len(next(lines)[1]) < 1 << 28
    assert tracemalloc.get_traced_memory()[1] < 1 << 29
    tracemalloc.stop()


def test_a_reply_in_text_parts_is_joined(recording, tmp_path):
    parts = [{"type": "text", "text": "from "}, {"type": "text", "text": "parts"}]
    path = recording(calls(1), [parts])
    settings = changed_settings(replies=str(path))
    completions = complete.complete(calls(1), settings, tmp_path / "cache.jsonl", "x")
    assert completions.texts == {"extract/0": ["from parts"]}


def test_replies_are_not_held_in_memory(recording, tmp_path):
    """Memory holds their keys and places; a reply of 5,000 characters takes less than 1,500."""
    count, size = 400, 5000
    asked = calls(count)
    path = recording(asked, [f"{i} {'x' * size}" for i in range(count)])
    replies = ReplyCache(path)  # parsers keep something when they first run
    settings = changed_settings(replies=str(path))
    answer = lambda: complete.complete(asked, settings, tmp_path / "cache.jsonl", "x").texts
    for make, read in (
        (lambda: ReplyCache(path).rows, lambda rows, i: reply_text(rows[f"extract/{i}"]["reply"])),
        (answer, lambda texts, i: texts[f"extract/{i}"][0]),
    ):
        tracemalloc.start()
        try:
            made = make()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(made) == count and taken < 1500 * count
        for i in (0, 7, count - 1):
            assert read(made, i) == f"{i} {'x' * size}"
    assert list(replies.rows) == [call.item for call in asked]
