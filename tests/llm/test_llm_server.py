"""The test server itself: its faults, its capacity and its replies."""

import json
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import pytest
from support.llm_calls import calls, echo
from support.llm_server import FAULTS, RECORDED, Server, random_faults, recorded, serving


def test_random_faults_are_deterministic_with_the_requested_shares():
    draw = random_faults(7, reset=0.2, think=0.1)
    drawn = Counter(draw(f"prompt {i}", attempt) for i in range(2000) for attempt in range(2))
    assert {name: n / 4000 for name, n in drawn.items()} == {
        "reset": pytest.approx(0.2, abs=0.03),
        "think": pytest.approx(0.1, abs=0.02),
        None: pytest.approx(0.7, abs=0.03),
    }
    same = [
        random_faults(seed, reset=0.5)("prompt", attempt)
        for seed in (7, 8)
        for attempt in range(64)
    ]
    assert same[:64] != same[64:] and same[:64] == [
        random_faults(7, reset=0.5)("prompt", attempt) for attempt in range(64)
    ]
    assert drawn.keys() - {None} <= FAULTS


def test_the_server_handles_no_more_requests_at_once_than_its_capacity(live):
    with serving(echo, latency=0.02, capacity=3) as server:
        live(server, calls(24), concurrency=24)
    assert server.max_busy == 3 and len(server.delivered) == 24


def test_the_server_invents_replies_that_were_not_recorded():
    row = json.loads(RECORDED.read_text(encoding="utf-8").splitlines()[0])
    with mock.patch(
        "support.llm_server.hashlib",
        SimpleNamespace(sha256=lambda text: SimpleNamespace(hexdigest=lambda: row["prompt"])),
    ):
        assert recorded([{"content": "any"}]) == row["reply"]["choices"][0]["message"]["content"]
    made_up = json.loads(recorded([{"content": 'Write 4 questions as {"questions": []}'}]))[
        "questions"
    ]
    assert len(set(made_up)) == 4 and Server().reply is recorded
