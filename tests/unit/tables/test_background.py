"""Calls in threads: all are made, errors reach the caller, and no more wait than can run."""

from __future__ import annotations

import threading

import polars as pl
import pytest

from mia_batch.tables import in_background
from tests.processes import HANGS


def test_every_call_is_made_before_the_block_ends():
    made: list[int] = []
    with in_background() as later:
        for number in range(100):
            later(made.append, number)
    assert sorted(made) == list(range(100))


def test_calls_run_beside_each_other():
    both = threading.Barrier(2, timeout=HANGS)
    with in_background() as later:
        later(both.wait)
        later(both.wait)
    assert not both.broken


@pytest.mark.parametrize(("cores", "at_once"), [(1, 4), (2, 4), (4, 7), (64, 9)])
def test_some_more_calls_run_than_there_are_cores(monkeypatch, cores, at_once):
    monkeypatch.setattr(pl, "thread_pool_size", lambda: cores)
    running = threading.Barrier(at_once + 1, timeout=HANGS)
    with in_background() as later:
        for _ in range(at_once):
            later(running.wait)
        running.wait()
    assert not running.broken


def test_a_call_begins_when_any_other_ends(monkeypatch):
    monkeypatch.setattr(pl, "thread_pool_size", lambda: 2)
    last = threading.Event()
    with in_background() as later:
        later(last.wait, 60)
        for _ in range(20):
            later(int)
        later(last.set)
    assert last.is_set()


def test_what_a_call_raises_reaches_the_caller():
    with pytest.raises(ZeroDivisionError), in_background() as later:
        later(divmod, 1, 0)


def test_what_a_call_raises_stops_those_who_go_on_asking():
    asked = []

    def ask():
        with in_background() as later:
            for number in range(100):
                asked.append(number)
                later(divmod, 1, number)

    with pytest.raises(ZeroDivisionError):
        ask()
    assert len(asked) < 20


def test_an_error_of_the_block_comes_first():
    def fail():
        with in_background() as later:
            later(divmod, 1, 0)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
