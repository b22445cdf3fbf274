"""Texts in an object store: its objects are listed, and read in parts of one version."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from mia_batch.corpus.addresses import Address, has_pattern, split_pattern
from mia_batch.corpus.remote import (
    Bytes,
    RemoteFile,
    Stamp,
    TransientError,
    refuse_long_listing,
)
from mia_batch.errors import CorpusError
from mia_batch.extras.store.access import (
    NO_ANSWER,
    check_environment,
    explain,
    explained,
    find_credentials,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_PIECE = 1 << 20
_PATIENCE: Any = {"max_retries": 5}


def find_objects(address: str) -> tuple[str, list[RemoteFile]]:
    """Return the folder that the names of objects behind an address are below, and these."""
    check_environment(address)
    scheme, _, place = address.partition("://")
    bucket, _, path = place.partition("/")
    path = path.rstrip("/")
    with explained(address, CorpusError):
        store = _open(f"{scheme}://{bucket}")
        if has_pattern(path):
            folder, _ = split_pattern(path)
        else:
            folder = path
            meta = _find_object(store, path)
            if meta is not None:
                file = _build_file(f"{scheme}://{bucket}", store, meta)
                return path.rpartition("/")[0], [file]
        files: list[RemoteFile] = []
        for entry in _list(store, folder):
            refuse_long_listing(address, len(files))
            files.append(_build_file(f"{scheme}://{bucket}", store, entry))
    return folder, files


def _open(url: str) -> ObjectStore:
    from obstore.store import from_url

    return from_url(url, retry_config=_PATIENCE, **find_credentials(url))


def _find_object(store: ObjectStore, path: str) -> ObjectMeta | None:
    if not path:
        return None
    try:
        return store.head(path)
    except FileNotFoundError:
        return None


def _list(store: ObjectStore, folder: str) -> Iterator[ObjectMeta]:
    yield from chain.from_iterable(store.list(folder or None))


def _build_file(bucket: str, store: ObjectStore, meta: ObjectMeta) -> RemoteFile:
    path = meta["path"]
    address = Address(f"{bucket}/{path}")

    def ask(start: int, stop: int | None) -> Bytes:
        return _ask(file, store, path, start, stop)

    file = RemoteFile(address, _read_stamp(meta), ask)
    return file


def _read_stamp(meta: ObjectMeta) -> Stamp:
    return Stamp(
        size=meta["size"],
        etag=meta["e_tag"],
        version=meta["version"],
        modified=meta["last_modified"].isoformat(),
    )


def _ask(
    file: RemoteFile, store: ObjectStore, path: str, start: int, stop: int | None
) -> Bytes:
    from obstore.exceptions import BaseError, PreconditionError

    last = file.stamp.size if stop is None else stop
    options: Any = {"range": (start, last)}
    if file.stamp.etag is not None:
        options["if_match"] = file.stamp.etag
    try:
        answer = store.get(path, options=options)
        size, etag = answer.meta["size"], answer.meta["e_tag"]
        if (size, etag) != (file.stamp.size, file.stamp.etag):
            raise file.changed("the store gives it another ETag or size")
        for piece in answer.stream(min_chunk_size=_PIECE):
            yield bytes(piece)
    except PreconditionError:
        problem: Exception = file.changed("the store gives it another ETag")
    except FileNotFoundError:
        problem = file.changed("it is no longer there")
    except BaseError as error:
        reason = explain(error)
        problem = CorpusError(f"{file.address} cannot be read: {reason}")
        if reason == NO_ANSWER:  # which may pass
            problem = TransientError(NO_ANSWER.partition(";")[0])
    else:
        return
    # Outside, so that not even the cause holds anything of a request.
    raise problem
