"""The test server itself: its faults, its capacity and its replies."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest
from support.llm_calls import calls, echo
from support.llm_server import FAULTS, RECORDED, Server, random_faults, recorded, serving


def test_random_faults_have_the_requested_shares():
    draw = random_faults(7, reset=0.2, think=0.1)
    drawn = Counter(draw(f"prompt {i}", attempt) for i in range(2000) for attempt in range(2))
    assert {name: n / 4000 for name, n in drawn.items()} == {
        "reset": pytest.approx(0.2, abs=0.03),
        "think": pytest.approx(0.1, abs=0.02),
        None: pytest.approx(0.7, abs=0.03),
    }
    assert drawn.keys() - {None} <= FAULTS


def test_random_faults_depend_only_on_the_seed():
    faults_of = lambda seed: [
        random_faults(seed, reset=0.5)("prompt", attempt) for attempt in range(64)
    ]
    assert faults_of(7) == faults_of(7) != faults_of(8)


def test_the_server_handles_no_more_requests_at_once_than_its_capacity(live):
    with serving(echo, latency=0.02, capacity=3) as server:
        live(server, calls(24), concurrency=24)
    assert server.max_busy == 3 and len(server.delivered) == 24


def test_a_recorded_prompt_gets_its_recorded_reply(monkeypatch):
    row = json.loads(RECORDED.read_text(encoding="utf-8").splitlines()[0])
    digest = SimpleNamespace(hexdigest=lambda: row["prompt"])
    monkeypatch.setattr("support.llm_server.hashlib", SimpleNamespace(sha256=lambda text: digest))
    reply = row["reply"]["choices"][0]["message"]["content"]
    assert recorded([{"content": "any"}]) == reply


def test_a_prompt_that_was_not_recorded_gets_invented_questions():
    reply = recorded([{"content": 'Write 4 questions as {"questions": []}'}])
    assert len(set(json.loads(reply)["questions"])) == 4
    assert Server().reply is recorded
