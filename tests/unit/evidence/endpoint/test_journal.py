"""Answers on disk."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint import client as journals
from mia_batch.evidence.endpoint.client import Journal, identify
from mia_batch.evidence.endpoint.settings import Tokens
from mia_batch.evidence.request import Continuation
from mia_batch.tables import followed
from tests.unit.evidence.endpoint.asking import request

if TYPE_CHECKING:
    from pathlib import Path

ODD = Continuation(text=" é\x00\n\u2028\U0001f600 end ", n_tokens=None, finish_reason=None)
EMPTY = Continuation(text="", n_tokens=0, finish_reason="stop")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def test_answers_come_back_as_they_were_by_sample(path: Path):
    with Journal(path) as journal:
        assert journal.find(b"a") == {}
        journal.record(b"a", {0: ODD}, Tokens(5, 2))
        journal.record(b"a", {3: EMPTY}, Tokens(5, 1))
        journal.record(b"b", {0: EMPTY}, Tokens(1, 0))
    with Journal(path) as journal:
        assert journal.find(b"a") == {0: ODD, 3: EMPTY}
        assert journal.find(b"b") == {0: EMPTY}
        assert journal.find(b"c") == {}
        assert journal.spent() == Tokens(11, 3)


def test_the_first_answer_counts(path: Path):
    with Journal(path) as journal:
        journal.record(b"a", {0: EMPTY}, Tokens(1, 1))
        journal.record(b"a", {0: ODD, 1: ODD}, Tokens(1, 1))
        assert journal.find(b"a") == {0: EMPTY, 1: ODD}


def test_every_commit_is_synced(path: Path):
    with Journal(path) as journal:
        database = journal._database
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)


def test_an_answer_that_cannot_be_stored_leaves_nothing_and_says_so(path: Path):
    with Journal(path) as journal:
        pages = journal._database.execute("PRAGMA page_count").fetchone()[0]
        journal._database.execute(f"PRAGMA max_page_count = {pages}")  # a full disk
        long = Continuation(text="x" * 10**6, n_tokens=1, finish_reason="stop")
        with pytest.raises(EngineError, match=r"journal.*is full.*free disk space.*same command"):
            journal.record(b"a", {0: long}, Tokens(1, 1))
        assert journal.find(b"a") == {}
        assert journal.spent() == Tokens(0, 0)


def test_a_journal_has_one_owner(path: Path):
    with Journal(path), pytest.raises(EngineError, match=r"locked.*end the other run"):
        Journal(path)
    Journal(path).close()


def test_a_file_that_is_no_journal_is_left_alone(path: Path):
    path.write_bytes(b"my thesis, only copy" * 100)
    with pytest.raises(EngineError, match="file is not a database"):
        Journal(path)
    assert path.read_bytes() == b"my thesis, only copy" * 100


def test_a_folder_that_is_not_there(tmp_path: Path):
    with pytest.raises(EngineError, match="unable to open database file"):
        Journal(tmp_path / "missing" / "journal.sqlite")


def test_a_transaction_that_a_crash_cut_short_never_happened(path: Path, tmp_path: Path):
    with Journal(path) as journal:
        journal.record(b"a", {0: EMPTY}, Tokens(1, 1))
        journal.record(b"b", {0: ODD}, Tokens(1, 1))
        cut = tmp_path / "cut.sqlite"
        log = (tmp_path / "journal.sqlite-wal").read_bytes()
        cut.write_bytes(path.read_bytes())
        (tmp_path / "cut.sqlite-wal").write_bytes(log[:-100])
    with Journal(cut) as journal:
        assert journal.find(b"a") == {0: EMPTY}
        assert journal.find(b"b") == {}
        assert journal.spent() == Tokens(1, 1)


def test_it_is_an_ordinary_database(path: Path):
    with Journal(path) as journal:
        journal.record(b"a", {0: ODD}, Tokens(1, 1))
    database = sqlite3.connect(path)
    assert database.execute("SELECT sample, text FROM answers").fetchall() == [(0, ODD.text)]
    database.close()


def test_requests_are_counted_by_time_and_version(path: Path):
    with Journal(path) as journal:
        assert journal.answered()["times"] == dict.fromkeys(("answered", "undated"), 0) | {
            "first": None,
            "last": None,
        }
        two = {0: EMPTY, 1: EMPTY}
        journal.record(b"a", two, Tokens(1, 1), sent="T2", system_fingerprint="fp_1")
        journal.record(b"b", two, Tokens(1, 1), sent="T1", system_fingerprint="fp_1")
        journal.record(b"b", {2: EMPTY}, Tokens(1, 1), sent="T3")
        journal.record(b"", {}, Tokens(1, 1))
        assert journal.answered() == {
            "times": {"answered": 3, "undated": 0, "first": "T1", "last": "T3"},
            "system_fingerprint": {"fp_1": 2, "not given": 1},
        }


def test_a_journal_of_an_older_version_goes_on(path: Path):
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE answers (request BLOB NOT NULL, sample INTEGER NOT NULL, text TEXT NOT NULL,"
        " n_tokens INTEGER, finish_reason TEXT, PRIMARY KEY (request, sample)) WITHOUT ROWID;"
        "INSERT INTO answers VALUES (x'61', 0, '', 0, 'stop')"
    )
    database.close()
    with Journal(path) as journal:
        journal.record(b"b", {0: EMPTY}, Tokens(1, 1), sent="T1")
        assert journal.find(b"a") == {0: EMPTY}
        assert journal.answered() == {
            "times": {"answered": 2, "undated": 1, "first": "T1", "last": "T1"},
            "system_fingerprint": {"not given": 1},
        }


def test_requests_share_an_answer_only_where_nothing_differs():
    asked = request(1, n=2)
    settings: dict[str, object] = {"model": "m", "top_k": 50}
    same = identify(asked, settings)
    assert same == identify(replace(asked, request_id=7), {"top_k": 50, "model": "m"})
    others = [
        identify(replace(asked, key="other"), settings),
        identify(replace(asked, context="other"), settings),
        identify(replace(asked, kind="logprobs"), settings),
        identify(replace(asked, seed=1), settings),
        identify(replace(asked, n=3), settings),
        identify(replace(asked, max_tokens=9), settings),
        identify(asked, settings | {"top_k": None}),
        identify(asked, settings | {"model": "other"}),
    ]
    assert len({same, *others}) == 9


def test_who_follows_the_folder_gets_copies_at_intervals(path: Path, monkeypatch):
    class Keeping:
        """Keeps what a copy holds, which is gone afterwards."""

        def __init__(self):
            self.copies = []

        def put(self, path, content):
            raise AssertionError

        def remove(self, path):
            raise AssertionError

        def put_copy(self, path, content):
            with closing(sqlite3.connect(content)) as copy:
                n_rows = copy.execute("SELECT count(*) FROM answers").fetchone()[0]
            self.copies.append((path.name, n_rows))

    keeping = Keeping()
    found = {0: Continuation(text="a", n_tokens=1, finish_reason=None)}
    monkeypatch.setattr(journals, "_SECONDS_BETWEEN_COPIES", 0.0)
    with followed(path.parent, keeping), Journal(path) as answers:
        monkeypatch.setattr(journals, "_MOST_TIME_COPYING", 1e9)
        answers.record(b"1", found, Tokens(1, 1))
        answers.record(b"2", found, Tokens(1, 1))
        monkeypatch.setattr(journals, "_SECONDS_BETWEEN_COPIES", 1e9)
        answers.record(b"3", found, Tokens(1, 1))
        answers.record(b"4", found, Tokens(1, 1))
    assert keeping.copies == [("journal.sqlite", n) for n in (1, 2, 3)]
    assert [each.name for each in path.parent.iterdir()] == ["journal.sqlite"]
