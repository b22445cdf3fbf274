"""The journal of an endpoint's answers: what was paid for is on disk before it counts."""

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

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
CREATE TABLE IF NOT EXISTS batch_spent (tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL);
INSERT INTO batch_spent SELECT 0, 0 WHERE NOT EXISTS (SELECT * FROM batch_spent);
CREATE TABLE IF NOT EXISTS batch_requests (
    request BLOB NOT NULL,
    first INTEGER NOT NULL,
    n INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    refusal TEXT,
    PRIMARY KEY (request, first, n)
) WITHOUT ROWID;
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


def holds_answers(path: Path) -> bool:
    """Return whether a journal may have an answer, or a request that waits for one."""
    if not path.exists():
        return False
    tables = ("answers", "batch_requests")
    counts = " + ".join(f"(SELECT count(*) FROM {table})" for table in tables)
    try:
        with closing(sqlite3.connect(path, timeout=0.1)) as database:
            return bool(database.execute(f"SELECT {counts}").fetchone()[0])
    except sqlite3.Error:  # another holds it, or it is of an older version
        return True


class BatchRequest(NamedTuple):
    """A request that was written to a file: samples from ``first`` on of what is asked."""

    request: bytes
    first: int
    n: int
    attempt: int = 0  # that is to be answered; all before have been
    refusal: str | None = None  # what came in place of an answer


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
        batch: BatchRequest | None = None,
    ) -> None:
        """Store what one answer, of HTTP or a ``batch``, brought and cost; then it is on disk."""
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
            table = "spent" if batch is None else "batch_spent"
            self._database.execute(
                f"UPDATE {table} SET tokens_in = tokens_in + ?, tokens_out ="
                " tokens_out + ?",
                tokens,
            )
            if batch is not None:
                self._close(batch, None)
        if time.monotonic() >= self._next_copy and is_followed(self._path):
            self._hand_on()

    def spent(self, *, by_batch: bool = False) -> Tokens:
        """Read the tokens of all requests so far: of those sent, or of those in files."""
        table = "batch_spent" if by_batch else "spent"
        with self._explained():
            row = self._database.execute(
                f"SELECT tokens_in, tokens_out FROM {table}"
            ).fetchone()
        return Tokens(*cast("tuple[int, int]", row))

    # Requests that were written to files.

    def follow_files(self) -> None:
        """Let what is recorded reach the disk later: it can be read from files again."""
        with self._explained():
            self._database.execute("PRAGMA synchronous = NORMAL")

    def open_batch(self, request: bytes, first: int, n: int) -> BatchRequest:
        """Return a request that is to be written, with the number of its attempt."""
        with self._explained(), self._database:
            self._database.execute(
                "INSERT OR IGNORE INTO batch_requests (request, first, n) VALUES"
                " (?, ?, ?)",
                (request, first, n),
            )
        (opened,) = self._find_batches("first = ? AND n = ?", request, first, n)
        return opened

    def find_batches(self, request: bytes) -> list[BatchRequest]:
        """List what was written of a request, the first samples first."""
        return self._find_batches("TRUE ORDER BY first, n", request)

    def find_batch(self, request: bytes, first: int, n: int) -> BatchRequest | None:
        rows = self._find_batches("first = ? AND n = ?", request, first, n)
        return rows[0] if rows else None

    def has_batches(self) -> bool:
        """Return whether any request was written."""
        query = "SELECT EXISTS (SELECT * FROM batch_requests)"
        with self._explained():
            return bool(self._database.execute(query).fetchone()[0])

    def _find_batches(
        self, condition: str, request: bytes, *values: int
    ) -> list[BatchRequest]:
        with self._explained():
            rows = self._database.execute(
                "SELECT request, first, n, attempt, refusal FROM batch_requests WHERE"
                f" request = ? AND {condition}",
                (request, *values),
            ).fetchall()
        return [BatchRequest(*row) for row in rows]

    def refuse_batch(self, batch: BatchRequest, refusal: str) -> None:
        """Keep why a request in a file is not answered."""
        with self._explained(), self._database:
            self._close(batch, refusal)

    def _close(self, batch: BatchRequest, refusal: str | None) -> None:
        self._database.execute(
            "UPDATE batch_requests SET attempt = ?, refusal = ? WHERE request = ? AND"
            " first = ? AND n = ?",
            (batch.attempt + 1, refusal, batch.request, batch.first, batch.n),
        )

    def forget_refusals(self) -> None:
        """Let what was refused in files be asked again."""
        with self._explained(), self._database:
            self._database.execute("UPDATE batch_requests SET refusal = NULL")

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
            (n_from_files,) = self._database.execute(
                "SELECT count(*) FROM batch_requests WHERE attempt > 0 AND refusal IS"
                " NULL"
            ).fetchone()
        times = {
            "answered": n_requests,
            "undated": n_requests - n_dated,
            "first": first,
            "last": last,
        }
        from_files = {"from_batch_files": n_from_files} if n_from_files else {}
        by_version = {"system_fingerprint": dict(versions)}
        return {"times": times, **by_version, **from_files}

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
