"""A process that writes to a store and is killed: ``python -m tests.stored_writer WHAT ...``."""

import os
import signal
import sys
from itertools import count
from pathlib import Path
from unittest.mock import patch

from mia_batch.extras.store.copies import Store
from tests.runs import audit_books


def audit(url: str, inputs: str, n_puts: str) -> None:
    """Audit; killed once the store has so many files."""
    put, number = Store.put, count(1)

    def last(store: Store, name: str, path: Path) -> str:
        if next(number) > int(n_puts):
            os.kill(os.getpid(), signal.SIGKILL)
        return put(store, name, path)

    with patch.object(Store, "put", last):
        audit_books(url, Path(inputs))


def put(url: str, name: str, path: str) -> None:
    Store.open(url).put(name, Path(path))


if __name__ == "__main__":
    {"audit": audit, "put": put}[sys.argv[1]](*sys.argv[2:])
