"""What documents and replies order is not done."""

import ast
import sys

import jax
import pytest
from support import injections
from support.paths import REPOSITORY

from ark_jax import layout
from ark_jax.demo.models import demo_models
from ark_jax.evaluate.judge import parse_verdicts
from ark_jax.graph.extract import parse_reply
from ark_jax.llm.question_pairs import parse_pairs
from ark_jax.llm.relation_questions import parse_wordings
from ark_jax.llm.triple_questions import parse_triple_questions
from ark_jax.models.language import LanguageModel
from ark_jax.recipes.ark.extract import parse_questions
from ark_jax.text.cited import parse_answer, parse_choice

PARSERS = (
    parse_verdicts,
    parse_pairs,
    parse_wordings,
    parse_triple_questions,
    parse_questions,
    lambda reply: parse_reply(reply, "a passage"),
    lambda reply: parse_answer(reply, 3),
    lambda reply: parse_choice(reply, 3),
)
HOSTILE = (
    "__import__('os').system('touch pwned')",
    "```python\nopen('pwned', 'w')\n```",
    "$(touch pwned) `touch pwned` ; touch pwned |",
    "../../../etc/passwd",
    "file:///etc/passwd http://127.0.0.1:9/x gs://b/x",
    "!!python/object/apply:os.system ['touch pwned']",
    "{{ self.__init__.__globals__ }} ${jndi:ldap://127.0.0.1/x} {0.__class__}",
)
WRAPPED = (
    "{x}",
    "<think>{x}</think><answer>{x}</answer>",
    '{{"overall": "{x}", "reason": "1"}}',
    '[{{"question": "{x}", "answer": "{x}", "evidence": "{x}"}}]',
    '("entity"<|>{x}<|>{x}<|>{x})##("relationship"<|>{x}<|>b<|>{x}<|>{x})##',
    "1. {x} | {x}",
)
SEEN = ("open", "exec", "os.system", "subprocess.Popen", "socket.connect", "os.exec", "os.mkdir")
_watched: list | None = None


def _watch(event: str, facts: tuple) -> None:
    if _watched is not None and event in SEEN:
        _watched.append((event, facts))


def test_no_reply_is_run_fetched_or_opened():
    global _watched
    replies = [form.format(x=text) for form in WRAPPED for text in HOSTILE]
    for parse in PARSERS:
        parse("{}")  # imports what it needs
    sys.addaudithook(_watch)  # for good; it looks while there is a list
    _watched = found = []
    try:
        for parse in PARSERS:
            for reply in replies:
                parse(reply)
        assert found == []
        (REPOSITORY / "setup.py").open().close()
        assert [event for event, _ in found] == ["open"]  # the hook is awake
    finally:
        _watched = None


# The rooms and modules that see replies of a model.
READING = ("llm", "text", "evaluate", "select", "index", "comparison", "graph", "report", "serve")
RUNNING = {"eval", "exec", "__import__", "system", "popen", "Popen", "run_path", "urlopen", "execv"}


def test_modules_that_see_replies_run_no_text():
    calls = []
    for path in [x for room in READING for x in (REPOSITORY / "ark_jax" / room).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                calls.append((name, f"{path}:{node.lineno}"))
    assert len(calls) > 1000
    assert [place for name, place in calls if name in RUNNING] == []


@pytest.mark.slow
def test_a_small_reader_obeys_few_orders():
    """`support.injections` measures all forms; tests/README.md has its figures."""
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        lm = LanguageModel.from_pretrained(demo_models()["generator"])
        found = injections.measure(lm, injections.FORMS[:4], ("read",))
    assert max(found.values()) <= 1, found
