"""Limits in flight and per minute."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.endpoint.transport import Concurrency, TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_limit_grows_fast_until_the_first_refusal_then_by_one_a_round():
    concurrency = Concurrency(64)
    assert concurrency.limit == 8
    for _ in range(8):
        concurrency.succeeded()
    assert concurrency.limit == 16
    concurrency.refused(concurrency.round)
    assert concurrency.limit == 8
    for _ in range(9):  # 8 + 1/8 + ... passes 9 with the ninth
        concurrency.succeeded()
    assert concurrency.limit == 9


def test_refusals_of_one_round_halve_the_limit_once():
    concurrency = Concurrency(8)
    sent = concurrency.round
    for _ in range(8):
        concurrency.refused(sent)
    assert concurrency.limit == 4
    concurrency.refused(concurrency.round)
    assert concurrency.limit == 2


@given(st.integers(1, 100), st.lists(st.booleans()))
def test_the_limit_stays_between_one_and_the_most(most: int, answers: list[bool]):
    concurrency = Concurrency(most)
    for answered in answers:
        if answered:
            concurrency.succeeded()
        else:
            concurrency.refused(concurrency.round)
        assert 1 <= concurrency.limit <= most


def test_takers_wait_until_what_was_taken_before_is_refilled():
    clock = Clock()
    bucket = TokenBucket(120.0, clock)  # two a second
    assert [bucket.take(1) for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]
    assert bucket.take(6) == 2.0
    assert bucket.take(1) == 5.0


def test_time_without_takers_is_not_saved_up():
    clock = Clock()
    bucket = TokenBucket(60.0, clock)
    clock.now += 1000.0
    assert [bucket.take(1) for _ in range(3)] == [0.0, 1.0, 2.0]


def test_what_is_given_back_shortens_the_next_wait():
    clock = Clock()
    bucket = TokenBucket(60.0, clock)
    bucket.take(10)
    bucket.give_back(7)
    assert bucket.take(1) == 3.0
    bucket.give_back(1000)
    assert [bucket.take(1), bucket.take(1)] == [0.0, 1.0]


@given(st.integers(1, 40), st.lists(st.floats(0, 20), min_size=1, max_size=200))
def test_no_minute_has_more_requests_than_the_limit(limit: int, pauses: list[float]):
    clock = Clock()
    bucket = TokenBucket(float(limit), clock)
    times = []
    for pause in pauses:
        clock.now += pause
        times.append(clock.now + bucket.take(1))
    for start in times:
        assert sum(start <= at < start + 60.0 - 1e-6 for at in times) <= limit
