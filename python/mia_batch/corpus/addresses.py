"""Addresses of texts: which are allowed, what they name, and patterns in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from mia_batch.plugins import plugins

WEB = ("https", "http")
HUB = "hf"
_MAGIC = re.compile(r"[*?\[]")
_HARMLESS_QUERY = re.compile(r"download=(?:1|true)?|")
"""What browsers copy; any other may be a key, as of links that are signed in advance."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a file, which stands where a file on a disk has its path."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The file's name, as a path has it."""
        path = self.url.partition("://")[2]
        if self.url.startswith(WEB):
            path = unquote(path)
        return PurePosixPath(path).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix


def check_address(address: str) -> str:
    """Return an address as it may be stored; raise ValueError where it is of no texts."""
    # The message repeats nothing of an address that may hold a password.
    try:
        parts = urlsplit(address)
        is_numbered = parts.port != 0
    except ValueError:
        raise ValueError("this is not an address that can be read") from None
    schemes = (*plugins("places"), *WEB, HUB)
    if parts.scheme not in schemes:
        listing = ", ".join(f"{scheme}://" for scheme in sorted(schemes))
        raise ValueError(
            f"{parts.scheme}:// is not read; addresses of texts begin with {listing}"
        )
    is_user_named = "@" in parts.netloc
    is_open = _HARMLESS_QUERY.fullmatch(parts.query) if parts.scheme in WEB else False
    has_query = parts.query and not is_open
    if parts.scheme not in WEB:  # where a pattern may have a question mark
        has_query = "=" in parts.query or "&" in parts.query
    if is_user_named or has_query or (parts.fragment and parts.scheme in WEB):
        raise ValueError(
            "an address has no user, no '?' with a key and no '#', since it is written"
            " into the run: credentials come from the environment (s3://, gs://,"
            " hf://), or download the file and give its path"
        )
    unusable = r"[\s\0-\x1f]" if parts.scheme in WEB else r"[\0-\x1f]"
    if not parts.hostname or not is_numbered or re.search(unusable, address):
        raise ValueError(
            f"name a file, such as {parts.scheme}://host/folder/texts.jsonl"
        )
    if parts.scheme in WEB:
        return _clean_web(parts)
    _check_folders(parts.scheme, address)
    return address


def _clean_web(parts: SplitResult) -> str:
    if parts.path.endswith("/") or not parts.path:
        raise ValueError("name a single file: servers of pages list none")
    if "*" in parts.path:
        raise ValueError(
            "a pattern needs a list of files, which servers of pages do not give; name"
            " a single file, or use s3://, gs:// or hf://"
        )
    return urlunsplit(parts._replace(query="", fragment=""))


def _check_folders(scheme: str, address: str) -> None:
    path = address.partition("://")[2]
    names = path.rstrip("/").split("/")
    if {"", ".", ".."} & {*names}:
        raise ValueError("an address has no empty names, '.' or '..' in its path")
    if scheme == HUB:
        parse_hub(address)


class HubPlace(NamedTuple):
    """Files of a data set at the Hugging Face hub."""

    repository: str
    revision: str | None
    path: str  # a file, a folder or a pattern in there; empty: all


_HUB = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.*))?")


def parse_hub(address: str) -> HubPlace:
    match = _HUB.fullmatch(address)
    if match is None:
        raise ValueError(
            "name a data set of the hub and files in it, such as"
            " hf://datasets/ORG/NAME@REVISION/data/*.parquet"
        )
    revision = match[2]
    if revision == "~parquet":  # as other readers write it
        revision = "refs/convert/parquet"
    elif revision is not None:
        revision = unquote(revision)
    return HubPlace(match[1], revision, (match[3] or "").rstrip("/"))


def quote_path(path: str) -> str:
    return quote(path, safe="/")


# Patterns: ``*`` and ``?`` stand within a name, ``**`` stands for any folders.


def has_pattern(path: str) -> bool:
    return _MAGIC.search(path) is not None


def split_pattern(path: str) -> tuple[str, str]:
    """Return the folder before the first pattern of a path, and the rest."""
    names = path.split("/")
    for index, name in enumerate(names):
        if has_pattern(name):
            return "/".join(names[:index]), "/".join(names[index:])
    return path, ""


def match_pattern(name: str, pattern: str) -> bool:
    """Return whether a name below a folder is of a pattern, as `glob` decides it."""
    return _match_names(name.split("/"), pattern.split("/"))


def _match_names(names: Sequence[str], patterns: Sequence[str]) -> bool:
    # Row by row, or many "**" would take for ever
    matched = [False] * len(names) + [True]
    for pattern in reversed(patterns):
        row = [False] * (len(names) + 1)
        if pattern == "**":
            row[len(names)] = matched[len(names)]
        for index in range(len(names) - 1, -1, -1):
            is_hidden = names[index].startswith(".")
            if pattern == "**":
                row[index] = matched[index] or (not is_hidden and row[index + 1])
            elif is_hidden and not pattern.startswith("."):
                row[index] = False
            else:
                is_equal = fnmatchcase(names[index], pattern)
                row[index] = is_equal and matched[index + 1]
        matched = row
    return matched[0]


def select_in_folder(names: Iterable[str]) -> list[str]:
    """Select the names below a folder that a corpus is read from, as on a disk."""
    # Hidden files and folders, and folders with a run, are not looked at.
    names = list(names)
    run_folders = {
        name.removesuffix("run.json")
        for name in names
        if name.endswith("/run.json") and name.count("/")
    }
    selected = []
    for name in names:
        *folders, file_name = name.split("/")
        prefixes = {"/".join(folders[:n]) + "/" for n in range(1, len(folders) + 1)}
        is_hidden = file_name.startswith(".") or any(
            folder.startswith((".", "_")) for folder in folders
        )
        if not is_hidden and not prefixes & run_folders:
            selected.append(name)
    return selected
