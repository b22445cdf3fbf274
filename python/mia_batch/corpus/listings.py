"""What lies behind an address: a file of a server, or the files of a store or of the hub."""

from __future__ import annotations

import glob
from collections.abc import Callable
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
    folder, files = extra("places", scheme).find_objects(address)
    path = address.partition("://")[2].partition("/")[2].rstrip("/")
    start = len(address.partition("://")[2].partition("/")[0]) + len(scheme) + 4
    by_path = {file.address.url[start:]: file for file in files}
    if [*by_path] == [path]:
        name = path.rpartition("/")[2]
        entry = Entry(name, by_path[path].address, partial(_pass_on, by_path[path]))
        return Listing((entry,), is_folder=False)
    names = _select(list(by_path), folder, path)
    entries = [
        Entry(name, by_path[full].address, partial(_pass_on, by_path[full]))
        for name, full in names.items()
    ]
    return Listing(tuple(entries), is_folder=not has_pattern(path))


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
    is_pattern = has_pattern(path)
    folder = split_pattern(path)[0] if is_pattern else path
    files: dict[str, HubFile] = {}
    # A file's own folder is listed, since the hub lists no files
    parent = folder if is_pattern else folder.rpartition("/")[0]
    for file in hub.list_files(commit, parent):
        refuse_long_listing(address, len(files))
        files[file.path] = file
    client = hub.open_client()

    def opener(file: HubFile) -> Callable[[], RemoteFile | Path]:
        def find() -> RemoteFile | Path:
            cached = hub.find_cached(commit, file.path)
            return cached or hub.build_remote(client, commit, file)

        return find

    is_file = path in files
    if is_file:
        names = {path.rpartition("/")[2]: path}
    else:
        below = [name for name in files if not folder or name.startswith(f"{folder}/")]
        names = _select(below, folder, path)
    entries = [
        Entry(name, hub.build_address(commit, full), opener(files[full]))
        for name, full in names.items()
    ]
    is_pinned = hub.place.revision is not None and commit.startswith(hub.place.revision)
    notes = []
    if not is_pinned:
        pinned = f"hf://datasets/{hub.place.repository}@{commit}"
        notes.append(
            f"{address} names no commit: it is read at {commit}, and {pinned} names this"
            " one"
        )
    is_folder = not is_file and not is_pattern
    return Listing(tuple(entries), is_folder=is_folder, notes=tuple(notes))
