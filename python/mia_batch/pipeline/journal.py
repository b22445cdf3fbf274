"""The journal of a user's runs: in hashes, what was asked of which model, wherever the runs lie."""

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from mia_batch.places import journal_path

_MOST_READ = 4 << 20  # bytes at the end: some ten thousand runs
_LONGEST_LINE = 4_000


def hashed(content: object) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_entries() -> Iterator[dict[str, Any]]:
    """Yield the entries of the journal; what is no entry, or cannot be read, is passed over."""
    path = journal_path()
    if path is None:
        return
    try:
        with os.fdopen(_opened(path, os.O_RDONLY), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_READ))
            lines = file.read(_MOST_READ).splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line) if len(line) <= _LONGEST_LINE else None
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            yield entry


def add_entry(entry: dict[str, Any]) -> str | None:
    """Add an entry that is not there yet; return why that was not possible, if so."""
    path = journal_path()
    if path is None or entry in read_entries():
        return None
    line = json.dumps(entry, sort_keys=True).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        with os.fdopen(_opened(path, flags), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                line = b"\n" + line  # another process was killed while it wrote
            file.write(line + b"\n")
    except OSError as error:
        return error.strerror or str(error)
    return None


def _opened(path: Path, flags: int) -> int:
    """Open the journal, which is a regular file: never a link, nor what would block."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path} is no file")
    return file
