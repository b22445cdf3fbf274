"""One writer at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from mia_batch.errors import RunFolderError
from mia_batch.extras.store import objects as leases
from mia_batch.extras.store.objects import Lease, Store


@pytest.fixture
def store(on_machine, url):
    return Store.open(url)


def held(store):
    return f"{store.url} is held by another live run; wait for it, or choose another --out"


def take(store, own=None):
    """The lease, or what was said instead."""
    try:
        return Lease.take(store, own)
    except RunFolderError as error:
        return str(error)


def test_of_a_hundred_that_ask_at_once_one_gets_it(store):
    with ThreadPoolExecutor(100) as pool:
        got = list(pool.map(lambda _: take(store), range(100)))
    (winner,) = [each for each in got if isinstance(each, Lease)]
    assert [each for each in got if each is not winner] == [held(store)] * 99
    winner.release()


def test_of_a_hundred_that_find_the_same_dead_run_one_takes_over(store):
    take(store)
    dead = store.read(".lock")

    def write(number):
        lease = Lease(store, f"copy {number}")
        lease._version = dead.version
        return lease._write("a session")

    with ThreadPoolExecutor(100) as pool:
        assert sorted(pool.map(write, range(100))) == [False] * 99 + [True]


def test_who_lets_go_lets_others_in(store):
    first = take(store)
    assert take(store) == held(store)
    first.release()
    second = take(store)
    assert second.copy != first.copy
    second.release()


def test_the_copy_that_wrote_last_goes_on_at_once(store):
    """Its run was killed: the copy's own lock says that it is gone."""
    killed = take(store)
    again = take(store, killed.copy)
    assert again.copy == killed.copy
    again.release()


def test_a_lease_that_is_over_is_taken_and_its_holder_learns_of_it(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "_keep", lambda _: None)  # it hangs
        first = take(store)
    monkeypatch.setattr(leases, "_SECONDS", 0.0)
    second = take(store)
    assert second.copy != first.copy
    monkeypatch.setattr(leases, "_SECONDS_BETWEEN", 0.0)
    first._keep()
    with pytest.raises(RunFolderError, match="may have been taken over by another run"):
        first.check()
    second.check()
    first.release()  # which leaves the other's alone
    monkeypatch.setattr(leases, "_SECONDS", 90.0)
    assert take(store) == held(store)
    second.release()


def test_who_does_not_reach_the_store_for_long_stops(store, monkeypatch):
    lease = take(store)
    lease.check()
    monkeypatch.setattr(leases, "_SECONDS_OF_TRUST", 0.0)
    with pytest.raises(RunFolderError, match="did not reach the store for too long"):
        lease.check()
    lease.release()


def test_an_answer_that_was_lost_is_no_other_run(store, monkeypatch):
    """The store has written the object, but the client sent it again and was refused."""
    put_if = Store.put_if

    def refused(self, *arguments):
        put_if(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_if", refused)
        lease = take(store)
    assert isinstance(lease, Lease)
    assert take(store) == held(store)
    lease.release()


def test_an_answer_to_an_earlier_beat_that_was_lost_is_no_other_run(store, monkeypatch):
    put_if, lease = Store.put_if, take(store)

    def unheard(self, *arguments):
        put_if(self, *arguments)
        raise RunFolderError

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_if", unheard)
        with pytest.raises(RunFolderError):
            lease._write(lease._session)
    assert lease._write(lease._session)
    assert take(store) == held(store)
    lease.release()


def test_another_object_of_that_name_is_left_alone(store):
    store.put_if(".lock", b"of somebody else", None)
    assert take(store) == (
        f"{store.url} holds an object .lock that is not of a run; choose another --out"
    )
    assert store.read(".lock").content == b"of somebody else"
