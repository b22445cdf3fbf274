"""Which failures are tried again, and when."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.endpoint.transport import Next, after_refusal, backoff, stated_wait

NOW = datetime(2026, 11, 20, 8, 0, 0, tzinfo=UTC)


def decide(status: int, attempt: int = 0, codes: str = "", **headers: str) -> Next:
    return after_refusal(
        status,
        {name.replace("_", "-"): value for name, value in headers.items()},
        frozenset(codes.split()),
        NOW,
        last=attempt >= 4,
    )


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_passing_troubles_are_tried_again(status: int):
    assert decide(status).step == "again"
    assert decide(status, attempt=3).step == "again"
    assert decide(status, attempt=4).step == "give_up"


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 403, 404, 405, 413, 422])
def test_what_would_only_be_refused_again_is_not(status: int):
    assert decide(status).step == "give_up"


def test_the_endpoint_may_say_whether_to_try_again():
    assert decide(400, x_should_retry="true").step == "again"
    assert decide(400, attempt=4, x_should_retry="true").step == "give_up"
    assert decide(503, x_should_retry="false").step == "give_up"
    assert decide(503, x_should_retry="perhaps").step == "again"


def test_an_empty_account_ends_the_run_whatever_else_is_said():
    assert decide(429, codes="insufficient_quota").step == "exhausted"
    assert decide(429, codes="insufficient_quota", x_should_retry="true").step == "exhausted"
    assert decide(402).step == "exhausted"
    assert decide(429, codes="rate_limit_exceeded").step == "again"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "Fri, 20 Nov 2026 08:00:09 GMT"}, 9.0),
        ({"retry-after": "Fri, 20 Nov 2026 08:00:09"}, 9.0),
        ({"retry-after": "Fri, 20 Nov 2026 09:00:09 +0100"}, 9.0),
        ({"retry-after": "Fri, 20 Nov 2026 07:59:00 GMT"}, 0.0),
        ({"retry-after": "Friday, 20-Nov-26 08:00:09 GMT"}, 9.0),
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": "Fri, 99 Nov 2026 08:00:09 GMT"}, None),
    ],
)
def test_waits_are_stated_in_three_forms(headers: dict[str, str], seconds: float | None):
    assert stated_wait(headers, NOW) == seconds


@given(st.text())
def test_no_header_is_too_odd_to_read(text: str):
    wait = stated_wait({"retry-after": text, "retry-after-ms": text}, NOW)
    assert wait is None or wait >= 0


def test_a_stated_wait_holds_for_all_up_to_two_minutes():
    assert decide(429, retry_after="120") == Next("again", wait=120.0)
    assert decide(429, retry_after="121") == Next("later", wait=121.0)
    assert decide(429).wait is None


def test_unstated_waits_are_drawn_from_a_span_that_doubles_up_to_a_minute():
    class Latest(Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0.0
            return b

    spans = [backoff(attempt, Latest()) for attempt in range(10)]
    assert spans == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert backoff(10**6, Latest()) == 60.0


def test_jitter_comes_from_the_generator_that_is_passed():
    assert backoff(5, Random(3)) == Random(3).uniform(0, 16)
