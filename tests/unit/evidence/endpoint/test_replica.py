"""Which of several servers is asked, and when one that fails is tried again."""

from __future__ import annotations

from typing import Any

from mia_batch.evidence.endpoint import EndpointSettings
from mia_batch.evidence.endpoint.cost import Tokens
from mia_batch.evidence.endpoint.replica import Replica, choose, next_change


def replicas(n: int, **changed: Any) -> list[Replica]:
    urls = tuple(f"http://host{i}/v1" for i in range(n))
    settings = EndpointSettings(base_url=urls[0], model="m", replicas=urls, **changed)
    return [Replica(each) for each in settings.of_each()]


def chosen(several: list[Replica], now: float) -> int | None:
    replica = choose(several, now)
    return None if replica is None else several.index(replica)


def test_the_least_busy_is_chosen_and_of_equals_the_one_longest_not_chosen():
    several = replicas(3, max_concurrency=2)
    assert [chosen(several, 0.0) for _ in range(7)] == [0, 1, 2, 0, 1, 2, None]
    several[1].in_flight -= 1
    assert [chosen(several, 0.0) for _ in range(2)] == [1, None]
    for replica in several:
        replica.in_flight = 0
    assert [chosen(several, 0.0) for _ in range(3)] == [0, 2, 1]


def test_one_that_fails_rests_longer_each_time_and_is_then_asked_one_thing():
    bad, good = several = replicas(2, max_concurrency=3)
    now, rests, good.in_flight = 100.0, [], 1
    for _ in range(8):
        bad.failed(now)
        bad.failed(now)  # of a request sent before
        wait = next_change(several, now)
        assert wait is not None
        assert not bad.may_be_asked(now + wait - 1e-6, others=True)
        rests.append(wait)
        now += wait
        assert chosen(several, now) == 0
        assert not bad.may_be_asked(now, others=True)
        bad.in_flight -= 1
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    good.in_flight = 0
    bad.succeeded()
    assert bad.may_be_asked(now, others=True)
    assert [chosen(several, now) for _ in range(7)] == [1, 0, 1, 0, 1, 0, None]
    assert good.in_flight == 3


def test_where_all_fail_none_is_left_alone_but_one_that_takes_nothing_more():
    several = replicas(3, max_concurrency=1)
    for replica in several:
        replica.failed(100.0)
    several[1].closed = "no more"
    assert [chosen(several, 100.0) for _ in range(3)] == [0, 2, None]
    assert chosen(several, 101.0) == 1


def test_a_stated_wait_is_kept_by_its_own_server_alone():
    several = replicas(2, max_concurrency=2)
    several[0].not_before = 130.0
    assert [chosen(several, 100.0) for _ in range(3)] == [1, 1, None]
    assert next_change(several, 100.0) == 30.0
    assert [chosen(several, 130.0) for _ in range(3)] == [0, 0, None]
    assert next_change(several, 130.0) is None


def test_limits_per_minute_are_those_of_each():
    for limit in ("requests_per_minute", "tokens_per_minute"):
        for replica in replicas(2, **{limit: 0.001}):
            assert replica.take(Tokens(1, 1)) == 0.0
            assert replica.take(Tokens(1, 1)) > 0.0
            replica.give_back(4, requests=2)
            assert replica.take(Tokens(1, 1)) == 0.0
