"""The journal of an endpoint's answers: what was paid for is on disk before it counts."""

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self, cast

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint.wire import Tokens
from mia_batch.evidence.request import Continuation
from mia_batch.tables import is_followed, put_copy, temporary_path

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
    prompt TEXT,
    served_model TEXT,
    PRIMARY KEY (request, sample)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spent (tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL);
INSERT INTO spent SELECT 0, 0 WHERE NOT EXISTS (SELECT * FROM spent);
COMMIT;
"""
_COLUMNS = (
    "(request, sample, text, n_tokens, finish_reason, answer, reason, prompt, sent, "
    "system_fingerprint, served_model) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ADDED = ("sent", "system_fingerprint", "answer", "reason", "prompt", "served_model")
"""Columns that the table of an older version may lack."""
_RESPONSES = """
SELECT prompt, min(sample), count(*), sent, system_fingerprint, served_model FROM answers
WHERE sent IS NOT NULL GROUP BY request, sent ORDER BY sent, prompt
"""
_SECONDS_BETWEEN_COPIES = 30.0
# Of the time that a run takes, because the event loop waits meanwhile
_MOST_TIME_COPYING = 0.05


class Journal:
    """A table of answers in an SQLite file, used by one thread of one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next_copy = time.monotonic() + _SECONDS_BETWEEN_COPIES
        with self._explained():
            self._database = sqlite3.connect(
                path, timeout=1.0, isolation_level="IMMEDIATE"
            )
            try:
                self._database.executescript(_SCHEMA)
                columns = self._database.execute("PRAGMA table_info(answers)")
                present = {name for _, name, *_ in columns}
                for name in _ADDED:
                    if name not in present:
                        self._database.execute(
                            f"ALTER TABLE answers ADD COLUMN {name} TEXT"
                        )
            except BaseException:
                self._database.close()
                raise

    def find(self, request: bytes) -> dict[int, Continuation]:
        """Read the answers to a request, by the number of the sample."""
        with self._explained():
            rows = self._database.execute(
                "SELECT sample, CASE WHEN reason IS NULL THEN text END, n_tokens,"
                " finish_reason, coalesce(answer, 'text'), reason FROM answers WHERE"
                " request = ?",
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
        continuations: Mapping[int, Continuation],
        tokens: Tokens,
        *,
        sent: str | None = None,
        system_fingerprint: str | None = None,
        prompt: str | None = None,
        served_model: str | None = None,
    ) -> None:
        """Store what one HTTP answer brought and cost; on disk when this returns."""
        rows = []
        for sample, continuation in continuations.items():
            row = (
                request,
                sample,
                continuation.text or "",
                continuation.n_tokens,
                continuation.finish_reason,
                continuation.answer,
                continuation.reason,
                prompt,
                sent,
                system_fingerprint,
                served_model,
            )
            rows.append(row)
        with self._explained(), self._database:
            self._database.executemany(
                f"INSERT OR IGNORE INTO answers {_COLUMNS}", rows
            )
            self._database.execute(
                "UPDATE spent SET tokens_in = tokens_in + ?, tokens_out ="
                " tokens_out + ?",
                tokens,
            )
        if time.monotonic() >= self._next_copy and is_followed(self._path):
            self._hand_on()

    def spent(self) -> Tokens:
        """Read the tokens of all requests so far."""
        with self._explained():
            row = self._database.execute(
                "SELECT tokens_in, tokens_out FROM spent"
            ).fetchone()
        return Tokens(*cast("tuple[int, int]", row))

    def answered(self) -> dict[str, Any]:
        """Count the requests with answers, with the times of the first and last, and by version."""
        # Those of older versions, which kept no times, are ``undated``.
        requests = "SELECT DISTINCT request, sent, system_fingerprint FROM answers"
        with self._explained():
            n_requests, n_dated, first, last = self._database.execute(
                f"SELECT count(*), count(sent), min(sent), max(sent) FROM ({requests})"
            ).fetchone()
            versions = self._database.execute(
                "SELECT coalesce(system_fingerprint, 'not given'), count(*) FROM"
                f" ({requests}) WHERE sent IS NOT NULL GROUP BY 1 ORDER BY 1"
            ).fetchall()
        times = {
            "answered": n_requests,
            "undated": n_requests - n_dated,
            "first": first,
            "last": last,
        }
        return {"times": times, "system_fingerprint": dict(versions)}

    def responses(self) -> list[tuple[Any, ...]]:
        """List the answers by time: prompt, first sample, samples, time, version and model."""
        with self._explained():
            return self._database.execute(_RESPONSES).fetchall()

    def _hand_on(self) -> None:
        """Write a copy for who keeps the folder elsewhere, too; seldom where that takes long."""
        start = time.monotonic()
        copy = temporary_path(self._path)
        try:
            with self._explained(), closing(sqlite3.connect(copy)) as database:
                # Else it has a file of its own
                database.execute("PRAGMA journal_mode = OFF")
                self._database.backup(database)
            put_copy(self._path, copy)
        finally:
            copy.unlink(missing_ok=True)
        end = time.monotonic()
        pause = max(_SECONDS_BETWEEN_COPIES, (end - start) / _MOST_TIME_COPYING)
        self._next_copy = end + pause

    def close(self) -> None:
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
            raise EngineError(
                f"the journal of answers {self._path} cannot be used ({error}); free"
                " disk space, or end the other run that holds it, and give the same"
                " command again"
            ) from error
