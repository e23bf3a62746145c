"""Errors of servers: their messages, the wait they ask for, and no trace of the key."""

import email.utils
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.llm_calls import KEY, key_parts

from ark_jax.llm import errors
from ark_jax.llm.errors import EndpointUnusable, RequestRejected


@pytest.mark.parametrize(
    "headers, message, seconds",
    [
        ({"retry-after": "7"}, "", 7.0),
        ({"retry-after": "1.5"}, "", 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, "", 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, "", 0.0),
        ({"retry-after": "soon"}, "", 0.0),
        ({"retry-after": "1e9"}, "", 0.0),
        ({"retry-after": "-5"}, "", 0.0),
        ({"retry-after": "Mon, 01 Jan 2024 00:00:00 +99999999999999999"}, "", 0.0),
        ({}, "", 0.0),
        ({}, "Resource exhausted. Please retry in 34.07s.", 34.07),
        ({}, "Please try again in 20s. Contact us", 20.0),
        ({"retry-after": "2"}, "Please try again in 20s.", 2.0),
    ],
)
def test_the_wait_that_a_server_requests_is_parsed(headers, message, seconds):
    assert errors._retry_after(headers, message) == seconds


def test_a_retry_after_date_becomes_seconds_from_now():
    headers = {"retry-after": email.utils.formatdate(time.time() + 1000, usegmt=True)}
    assert errors._retry_after(headers, "") == pytest.approx(1000, abs=5)


@pytest.mark.parametrize(
    "body, message",
    [
        (
            '{"error": {"message": "No", "code": "too_long", "type": "invalid"}}',
            "No (too_long) (invalid)",
        ),
        ('[{"error": {"message": "No", "code": 400}}]', "No (400)"),
        ('{"message": "No"}', "No"),
        ("<h1>No\n way</h1>", "<h1>No way</h1>"),
        ("word " * 200, f"{'word ' * 60}…"),
        ("[" * 100_000, f"{'[' * 300}…"),
    ],
)
def test_error_messages_are_read_from_many_forms(body, message):
    assert errors.redact(errors.error_message(body), "") == message


@given(
    st.text("ab c*.…'\"", max_size=12),
    st.integers(0, len(KEY) - 8),
    st.integers(8, len(KEY)),
    st.text("ab c*.…'\"", max_size=400),
)
@settings(deadline=None)
def test_no_part_of_the_key_remains_after_redaction(before, start, length, after):
    redacted = errors.redact(f"{before}{KEY[start : start + length]}{after}", KEY)
    assert key_parts(redacted) == [] and len(redacted) <= 301


@pytest.mark.parametrize(
    "text, redacted",
    [
        ("Incorrect API key provided: sk-abc12. See", "Incorrect API key provided: [key]. See"),
        ("is AIzaSyB-x1_y2Zz", "is [key]"),
        ("gsk_1234 no", "[key] no"),
        ("ab12********wxyz!", "[key]!"),
        ("authorization: Bearer tok.en/1=", "authorization: Bearer [key]"),
        ("deadbeef00112233445566778899aabb", "[key]"),
        ("https://me:secret@host/v1", "https://host/v1"),
        (
            "The model gemini-2.5-flash-lite-preview-06-17 is asked to sketch a risk_free_thing...",
            None,
        ),
        ("Request 3f2b8c1e-1111-2222-3333-444455556666 failed: internationalisation", None),
    ],
)
def test_only_what_looks_like_a_key_is_redacted(text, redacted):
    assert errors.redact(text, "") == (text if redacted is None else redacted)


def test_a_key_that_is_too_short_to_find_in_parts_is_redacted_whole():
    assert errors.redact("no local-pass", "local-pass") == "no [key]"


def test_a_moderated_prompt_is_rejected_without_stopping_the_run():
    message = "Your chosen model requires moderation and your input was flagged for violence"
    assert isinstance(errors.classify_status(403, {}, message), RequestRejected)


def test_a_refused_model_makes_the_endpoint_unusable():
    error = errors.classify_status(403, {}, "no access to this model")
    assert isinstance(error, EndpointUnusable)
