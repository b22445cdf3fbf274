"""Answers that were paid for, on disk before they count."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing, contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self, cast

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint.cost import Tokens
from mia_batch.evidence.request import Continuation
from mia_batch.tables.files import is_followed, put_copy, temporary_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from mia_batch.evidence.request import Request

__all__ = ["Journal", "identify"]

_SCHEMA = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS answers (
    request BLOB NOT NULL,
    sample INTEGER NOT NULL,
    text TEXT NOT NULL,
    n_tokens INTEGER,
    finish_reason TEXT,
    sent TEXT,
    system_fingerprint TEXT,
    answer TEXT,
    reason TEXT,
    PRIMARY KEY (request, sample)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spent (tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL);
INSERT INTO spent SELECT 0, 0 WHERE NOT EXISTS (SELECT * FROM spent);
COMMIT;
"""
_COLUMNS = (
    "(request, sample, text, n_tokens, finish_reason, answer, reason, sent, system_fingerprint) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SECONDS_BETWEEN_COPIES = 30.0
_MOST_TIME_COPYING = 0.05


class Journal:
    """A table of answers in an SQLite file, used by one thread of one process.

    Every method raises `EngineError` if the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next_copy = time.monotonic() + _SECONDS_BETWEEN_COPIES
        with self._explained():
            self._database = sqlite3.connect(path, timeout=1.0, isolation_level="IMMEDIATE")
            try:
                self._database.executescript(_SCHEMA)
                self._complete()
            except BaseException:
                self._database.close()
                raise

    def find(self, request: bytes) -> dict[int, Continuation]:
        """Look up what has been answered of a request, by index among its samples."""
        with self._explained():
            rows = self._database.execute(
                "SELECT sample, CASE WHEN reason IS NULL THEN text END, n_tokens, finish_reason, "
                "coalesce(answer, 'text'), reason FROM answers WHERE request = ?",
                (request,),
            ).fetchall()
        names = ("text", "n_tokens", "finish_reason", "answer", "reason")
        return {
            sample: Continuation(**dict(zip(names, values, strict=True)))
            for sample, *values in rows
        }

    def record(
        self,
        request: bytes,
        found: Mapping[int, Continuation],
        used: Tokens,
        *,
        sent: str | None = None,
        system_fingerprint: str | None = None,
    ) -> None:
        """Store what one HTTP answer brought and cost; on disk when this returns."""
        of_all = (sent, system_fingerprint)
        rows = [
            (
                request,
                sample,
                each.text or "",
                each.n_tokens,
                each.finish_reason,
                each.answer,
                each.reason,
                *of_all,
            )
            for sample, each in found.items()
        ]
        with self._explained(), self._database:
            self._database.executemany(f"INSERT OR IGNORE INTO answers {_COLUMNS}", rows)
            self._database.execute(
                "UPDATE spent SET tokens_in = tokens_in + ?, tokens_out = tokens_out + ?", used
            )
        if time.monotonic() >= self._next_copy and is_followed(self._path):
            self._hand_on()

    def spent(self) -> Tokens:
        """Add up the tokens of all answers."""
        with self._explained():
            row = self._database.execute("SELECT tokens_in, tokens_out FROM spent").fetchone()
        return Tokens(*cast("tuple[int, int]", row))

    def answered(self) -> dict[str, Any]:
        """Count the requests with answers, with the times of the first and last, and by version.

        Those of older versions, which kept no times, are ``undated``.
        """
        each = "SELECT DISTINCT request, sent, system_fingerprint FROM answers"
        with self._explained():
            number, dated, first, last = self._database.execute(
                f"SELECT count(*), count(sent), min(sent), max(sent) FROM ({each})"
            ).fetchone()
            versions = self._database.execute(
                f"SELECT coalesce(system_fingerprint, 'not given'), count(*) FROM ({each})"
                " WHERE sent IS NOT NULL GROUP BY 1 ORDER BY 1"
            ).fetchall()
        times = {"answered": number, "undated": number - dated, "first": first, "last": last}
        return {"times": times, "system_fingerprint": dict(versions)}

    def _hand_on(self) -> None:
        """Give a copy to who keeps the folder elsewhere, too; seldom where that takes long."""
        start = time.monotonic()
        copy = temporary_path(self._path)
        try:
            with self._explained(), closing(sqlite3.connect(copy)) as database:
                database.execute("PRAGMA journal_mode = OFF")  # else it has a file of its own
                self._database.backup(database)
            put_copy(self._path, copy)
        finally:
            copy.unlink(missing_ok=True)
        end = time.monotonic()
        pause = max(_SECONDS_BETWEEN_COPIES, (end - start) / _MOST_TIME_COPYING)
        self._next_copy = end + pause

    def _complete(self) -> None:
        """Give the table of an older version the columns that it lacks."""
        there = {row[1] for row in self._database.execute("PRAGMA table_info(answers)")}
        for name in {"sent", "system_fingerprint", "answer", "reason"} - there:
            self._database.execute(f"ALTER TABLE answers ADD COLUMN {name} TEXT")

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            msg = (
                f"the journal of answers {self._path} cannot be used ({error}); free disk space, "
                "or end the other run that holds it, and give the same command again"
            )
            raise EngineError(msg) from error


def identify(request: Request, sample_identity: Mapping[str, object]) -> bytes:
    """Digest all that decides what the answer is; the ``request_id`` does not."""
    asked = [request.kind, request.key, request.context + request.text]
    drawn = [request.seed, request.n, request.max_tokens, *[True] * request.greedy]
    text = json.dumps([dict(sample_identity), asked, drawn], sort_keys=True)
    return blake2b(text.encode(), digest_size=16, person=b"mia-journal").digest()
