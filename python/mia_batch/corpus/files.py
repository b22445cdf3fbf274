"""Which files a corpus consists of: one file, a folder, or a glob."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal

from mia_batch.corpus.formats.lines import PACKED
from mia_batch.errors import CorpusError
from mia_batch.tables import digest, side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "Kind",
    "Source",
    "SourceFile",
    "base_of",
    "digest_each",
    "digest_of",
    "find_files",
]

Kind = Literal["columnar", "jsonl", "csv", "books"]

_KINDS: dict[str, Kind] = {
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".ipc"), "columnar"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".txt", ".epub", ".html", ".htm", ".xhtml"), "books"),
}
_PACKABLE = ("jsonl", "csv")
_KNOWN = f"one of {', '.join(_KINDS)}; JSON, CSV and TSV also with {', '.join(PACKED)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a corpus."""

    path: Path
    name: str  # path below the folder that was asked for, with forward slashes
    size: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a corpus, at least one, all of one kind."""

    given: str  # the path as the user gave it
    kind: Kind
    files: tuple[SourceFile, ...]  # sorted by name
    ignored: tuple[Path, ...]  # files below the folder that are of no known kind


def find_files(path: Path | str) -> Source:
    """Find the files behind a path.

    A folder is read with its subfolders, less hidden ones (names that begin with ``.`` or ``_``)
    and run folders (they hold a ``run.json``). A path that does not exist is tried as a glob, in
    which ``**`` stands for any folders.
    """
    given = str(path)
    if not given or "\0" in given or not _is_unicode(given):
        msg = f"{given!r} is not a path; give a file, a folder or a glob"
        raise CorpusError(msg)
    try:
        base, found = _expand(given)
        return _source(given, base, sorted(found, key=lambda file: file.relative_to(base).parts))
    except (OSError, RuntimeError) as error:  # the latter where "~name" is nobody's home
        where = getattr(error, "filename", None) or given
        msg = f"{where} cannot be read: {getattr(error, 'strerror', error)}"
        raise CorpusError(msg) from error


def digest_each(files: Iterable[SourceFile]) -> dict[str, str]:
    """Return the SHA-256 of each file by its name, in the order of the files."""
    files = tuple(files)
    try:
        digests = side_by_side(digest, (file.path for file in files))
        return dict(zip((file.name for file in files), digests, strict=True))
    except OSError as error:
        msg = f"{error.filename} cannot be read: {error.strerror}"
        raise CorpusError(msg) from error


def digest_of(digests: Mapping[str, str]) -> str:
    """Return the SHA-256 of SHA-256 digests in their order: 64 hexadecimal digits."""
    return hashlib.sha256(b"".join(map(bytes.fromhex, digests.values()))).hexdigest()


def base_of(given: str) -> Path:
    """Return the folder that the names of the files behind a path are relative to."""
    path = Path(given).expanduser()
    if path.is_dir():
        return path
    return _literal_base(path) if glob.has_magic(given) and not path.exists() else path.parent


def _expand(given: str) -> tuple[Path, list[Path]]:
    """Return the folder that names are relative to, and the candidate files."""
    path = Path(given).expanduser()
    base = base_of(given)
    if path.is_dir():
        return base, list(_walk(path))
    if path.exists():
        if _kind(path) is None:
            msg = f"{path} has an unknown extension; it must be {_KNOWN}"
            raise CorpusError(msg)
        return base, [path]
    if glob.has_magic(given):
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
        return base, [Path(match) for match in matches if not Path(match).is_dir()]
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
    kinds: dict[Kind, list[Path]] = {}
    ignored: list[Path] = []
    for path in found:
        kind = _kind(path)
        (ignored if kind is None else kinds.setdefault(kind, [])).append(path)
    if not kinds:
        msg = f"{given} holds no file that can be read as a corpus; the extension must be {_KNOWN}"
        raise CorpusError(msg)
    if len(kinds) > 1:
        several = " and ".join(str(paths[-1]) for paths in kinds.values())
        msg = f"{given} mixes kinds of files, such as {several}; give files of one kind"
        raise CorpusError(msg)
    ((kind, paths),) = kinds.items()
    files = tuple(_source_file(path, base) for path in paths)
    return Source(given=given, kind=kind, files=files, ignored=tuple(ignored))


def _kind(path: PurePath) -> Kind | None:
    packed = path.suffix.lower() in PACKED
    kind = _KINDS.get((PurePath(path.stem) if packed else path).suffix.lower())
    return None if packed and kind not in _PACKABLE else kind


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
