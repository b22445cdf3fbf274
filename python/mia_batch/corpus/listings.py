"""What lies behind an address: a file of a server, or the files of a store or of the hub."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from mia_batch.corpus.addresses import (
    HUB,
    WEB,
    Address,
    check_address,
    has_pattern,
    match_pattern,
    select_in_folder,
    split_pattern,
)
from mia_batch.corpus.hub import HubFile, HubListing
from mia_batch.corpus.remote import Entry, Listing, RemoteFile, refuse_long_listing
from mia_batch.corpus.web import WebClient, check_library
from mia_batch.errors import CorpusError
from mia_batch.plugins import extra


def list_address(location: str) -> Listing | Path:
    """List the files behind an address; of the hub's cache, return the folder or pattern there.

    Raises `CorpusError` where the address cannot be read, `SettingsError` where the library for it
    is not installed.
    """
    try:
        address = check_address(location)
    except ValueError as error:
        scheme = location.partition("://")[0]
        raise CorpusError(f"an address {scheme}://...: {error}") from None
    scheme = urlsplit(address).scheme
    if scheme in WEB:
        return _list_page(address)
    if scheme == HUB:
        return _list_hub(address)
    return _list_store(scheme, address)


def _list_store(scheme: str, address: str) -> Listing:
    folder, files = extra("places", scheme).find_objects(address)
    bucket, _, path = address.partition("://")[2].partition("/")
    path = path.rstrip("/")
    start = len(f"{scheme}://{bucket}/")
    by_path = {file.address.url[start:]: file for file in files}
    is_file = [*by_path] == [path]
    names = {path.rpartition("/")[2]: path}
    if not is_file:
        names = _select(list(by_path), folder, path)
    entries = [
        Entry(name, by_path[full].address, partial(_pass_on, by_path[full]))
        for name, full in names.items()
    ]
    is_folder = not is_file and not has_pattern(path)
    return Listing(tuple(entries), is_folder=is_folder)


def _pass_on(file: RemoteFile) -> RemoteFile:
    return file


def _select(paths: list[str], folder: str, path: str) -> dict[str, str]:
    """Return the full path of each file of a folder or a pattern, by its name below the folder."""
    start = len(folder) + 1 if folder else 0
    names = {full[start:]: full for full in paths}
    if has_pattern(path):
        pattern = split_pattern(path)[1]
        selected = [name for name in names if match_pattern(name, pattern)]
    else:
        selected = select_in_folder(names)
    return {name: names[name] for name in selected if name}


def _list_page(address: str) -> Listing:
    check_library(address)
    client = WebClient()
    place = Address(address)
    entry = Entry(place.name, place, lambda: client.find(place))
    notes = []
    if address.startswith("http://"):
        notes.append(
            f"{address} is read without encryption: whoever is between can change it"
        )
    return Listing((entry,), is_folder=False, notes=tuple(notes))


def _list_hub(address: str) -> Listing | Path:
    hub = HubListing(address)
    snapshot = hub.find_snapshot()
    path = hub.place.path
    if snapshot is not None:
        folder = glob.escape(str(snapshot)) if has_pattern(path) else str(snapshot)
        return Path(folder, path)
    commit = hub.find_commit()
    files = _find_hub_files(hub, address, commit)
    is_file = path in files
    names = {path.rpartition("/")[2]: path}
    if not is_file:
        folder = split_pattern(path)[0] if has_pattern(path) else path
        below = [name for name in files if not folder or name.startswith(f"{folder}/")]
        names = _select(below, folder, path)
    client = hub.open_client()
    entries = [
        Entry(
            name,
            hub.build_address(commit, full),
            partial(_open_hub_file, hub, client, commit, files[full]),
        )
        for name, full in names.items()
    ]
    return Listing(
        tuple(entries),
        is_folder=not is_file and not has_pattern(path),
        notes=tuple(_describe_commit(hub, address, commit)),
    )


def _find_hub_files(hub: HubListing, address: str, commit: str) -> dict[str, HubFile]:
    """Return the files of a folder, a pattern's or a file's, since the hub lists no single file."""
    path = hub.place.path
    folder = split_pattern(path)[0] if has_pattern(path) else path.rpartition("/")[0]
    files: dict[str, HubFile] = {}
    for file in hub.list_files(commit, folder):
        refuse_long_listing(address, len(files))
        files[file.path] = file
    return files


def _open_hub_file(
    hub: HubListing, client: WebClient, commit: str, file: HubFile
) -> RemoteFile | Path:
    cached = hub.find_cached(commit, file.path)
    return cached or hub.build_remote(client, commit, file)


def _describe_commit(hub: HubListing, address: str, commit: str) -> Iterator[str]:
    revision = hub.place.revision
    is_pinned = revision is not None and re.fullmatch("[0-9a-f]{7,40}", revision)
    if not (is_pinned and commit.startswith(str(revision))):
        pinned = f"hf://datasets/{hub.place.repository}@{commit}"
        yield (
            f"{address} names no commit: it is read at {commit}, and {pinned} names this"
            " one"
        )
