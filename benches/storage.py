"""Time to go on with a run of many parts that lies in an object store.

Parts are put into a real S3 server (moto's, a process of its own on this machine) as a
run does, by the mirror. Then the run goes on from this machine, from another one
that has nothing, and from this one again when the other has added some.

    python -m benches.storage [PARTS BYTES]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from benches.results import append_results, machine, versions

from mia_batch.extras.store.copies import mirrored
from mia_batch.places import find_working_copy
from mia_batch.tables import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS, BYTES = 10_000, 20_000
ADDED = 100
LIMIT_S = 60
URL = "s3://bench/run"
SERVER = """
import logging, threading
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
threading.Event().wait()
"""


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server, and make the bucket."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - for mypy
        url = process.stdout.readline().strip()
        httpx.put(f"{url}/bench").raise_for_status()
        try:
            yield url
        finally:
            process.kill()


def write_parts(folder: Path, first: int, last: int, size: int) -> None:
    (folder / "samples").mkdir(exist_ok=True)
    for number in range(first, last):
        name = f"block-{number:06d}.target-continuation-0.parquet"
        with replacing(folder / "samples" / name) as stream:
            stream.write(os.urandom(size))


def timed_start() -> float:
    """Seconds until a run may begin to work."""
    began = time.perf_counter()
    with mirrored(URL):
        return round(time.perf_counter() - began, 1)


def measure(folder: Path, parts: int, size: int) -> dict[str, float]:
    def machine_of(name: str) -> None:
        os.environ["XDG_CACHE_HOME"] = str(folder / name)

    machine_of("one")
    began = time.perf_counter()
    with mirrored(URL) as run:
        write_parts(run, 0, parts, size)
        written = time.perf_counter()
    found = {
        "write_s": round(written - began, 1),
        "store_rest_s": round(time.perf_counter() - written, 1),
        "same_machine_s": timed_start(),
    }
    machine_of("two")
    found["other_machine_s"] = timed_start()
    with mirrored(URL) as run:
        write_parts(run, parts, parts + ADDED, size)
    machine_of("one")
    found["behind_by_100_s"] = timed_start()
    n_there = len(list((find_working_copy(URL) / "samples").iterdir()))
    if n_there != parts + ADDED:
        msg = f"{n_there} parts instead of {parts + ADDED}"
        raise SystemExit(msg)
    return found


def main(parts: int, size: int) -> None:
    with s3_server() as url, tempfile.TemporaryDirectory() as name:
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
        }
        found = measure(Path(name), parts, size)
    print(f"{parts:,} parts of {size:,} bytes, limit {LIMIT_S} s; {machine()}")
    print(json.dumps(found))
    append_results(
        "storage",
        {"parts": parts, "bytes": size}
        | found
        | {"versions": versions("obstore", "moto")},
    )


if __name__ == "__main__":
    main(*(map(int, sys.argv[1:3]) if len(sys.argv) == 3 else (PARTS, BYTES)))
