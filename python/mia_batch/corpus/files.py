"""Which files a corpus consists of: one file, a folder, or a glob."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal

from mia_batch.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Kind", "Source", "SourceFile", "digest_files", "find_files"]

Kind = Literal["parquet", "jsonl", "csv", "txt"]

_KINDS: dict[str, Kind] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson.gz": "jsonl",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".txt": "txt",
}
_KNOWN = "one of " + ", ".join(_KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a corpus.

    Attributes
    ----------
    path
        Where it is.
    name
        Its path below the folder that was asked for, with forward slashes.
    size
        Bytes.
    """

    path: Path
    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a corpus, all of one kind.

    Attributes
    ----------
    given
        The path as the user gave it.
    kind
        How the files are read.
    files
        At least one file, sorted by name.
    ignored
        Files below the folder that are of no known kind.
    """

    given: str
    kind: Kind
    files: tuple[SourceFile, ...]
    ignored: tuple[Path, ...]


def find_files(path: Path | str) -> Source:
    """Find the files behind a path.

    A folder is read with its subfolders, less hidden ones (names that begin with ``.`` or ``_``)
    and run folders (they hold a ``run.json``). A path that does not exist is tried as a glob.

    Parameters
    ----------
    path
        A file, a folder, or a glob such as ``"parts/*.parquet"``; ``**`` stands for any folders.

    Returns
    -------
    Source
        The files, sorted by name.

    Raises
    ------
    CorpusError
        If nothing readable is there, or files of several kinds.
    """
    given = str(path)
    if not given or "\0" in given or not _is_unicode(given):
        msg = f"{given!r} is no path; give a file, a folder or a glob"
        raise CorpusError(msg)
    try:
        base, found = _expand(given)
        return _source(given, base, sorted(found, key=lambda file: file.relative_to(base).parts))
    except (OSError, RuntimeError) as error:  # the latter where "~name" is nobody's home
        where = getattr(error, "filename", None) or given
        msg = f"{where} cannot be read: {getattr(error, 'strerror', error)}"
        raise CorpusError(msg) from error


def digest_files(files: Iterable[SourceFile]) -> str:
    """Hash the content of files, whatever their names and places.

    Parameters
    ----------
    files
        The files.

    Returns
    -------
    str
        SHA-256 of the files' SHA-256 digests in order, 64 hexadecimal digits.

    Raises
    ------
    CorpusError
        If a file can no longer be read.
    """
    whole = hashlib.sha256()
    for file in files:
        try:
            with file.path.open("rb") as stream:
                whole.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            msg = f"{file.path} cannot be read: {error.strerror}"
            raise CorpusError(msg) from error
    return whole.hexdigest()


def _expand(given: str) -> tuple[Path, list[Path]]:
    """Return the folder that names are relative to, and the candidate files."""
    path = Path(given).expanduser()
    if path.is_dir():
        return path, list(_walk(path))
    if path.exists():
        _refuse_unknown(path)
        return path.parent, [path]
    if glob.has_magic(given):
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
        return _literal_base(path), [Path(match) for match in matches if not Path(match).is_dir()]
    msg = f"{given} does not exist; give a file, a folder or a glob"
    raise CorpusError(msg)


def _walk(folder: Path) -> Iterator[Path]:
    def stop(error: OSError) -> None:
        raise error

    for root, folders, names in os.walk(folder, onerror=stop):
        if "run.json" in names and Path(root) != folder:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        yield from (Path(root, name) for name in names if not name.startswith((".", "_")))


def _literal_base(pattern: Path) -> Path:
    """Return the longest leading folder of a glob that holds no wildcard."""
    parts: list[str] = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return Path(*parts)


def _source(given: str, base: Path, found: list[Path]) -> Source:
    known = [path for path in found if _kind(path) is not None]
    if not known:
        msg = f"{given} holds no file that can be read as a corpus; the extension must be {_KNOWN}"
        raise CorpusError(msg)
    return Source(
        given=given,
        kind=_only_kind(given, known),
        files=tuple(_source_file(path, base) for path in known),
        ignored=tuple(path for path in found if _kind(path) is None),
    )


def _only_kind(given: str, paths: Iterable[Path]) -> Kind:
    kinds = {kind: path for path in paths if (kind := _kind(path)) is not None}
    if len(kinds) > 1:
        several = " and ".join(str(path) for path in kinds.values())
        msg = f"{given} mixes kinds of files, such as {several}; give files of one kind"
        raise CorpusError(msg)
    return next(iter(kinds))


def _kind(path: PurePath) -> Kind | None:
    name = path.name.lower()
    return next((kind for ending, kind in _KINDS.items() if name.endswith(ending)), None)


def _refuse_unknown(path: Path) -> None:
    if _kind(path) is None:
        msg = f"{path} has an unknown extension; it must be {_KNOWN}"
        raise CorpusError(msg)


def _source_file(path: Path, base: Path) -> SourceFile:
    if not _is_unicode(str(path)):
        msg = f"the file name {str(path)!r} is not valid UTF-8; rename the file"
        raise CorpusError(msg)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        msg = f"{path} is not a regular file; give a file, a folder or a glob"
        raise CorpusError(msg)
    path.open("rb").close()  # refuses what this user may not read
    return SourceFile(path=path, name=path.relative_to(base).as_posix(), size=status.st_size)


def _is_unicode(name: str) -> bool:
    """Return whether a name that came from the system is text; it may hold any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
