"""Chain of custody: the root over a run's files, and stamps of it."""

import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from mia_batch.attacks import get
from mia_batch.corpus import digest_files, find_base, find_files
from mia_batch.errors import MiaBatchError, RequestError, RunFolderError
from mia_batch.models.formats import find_format
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.folder import (
    ORDER,
    PARTS,
    Manifest,
    RunFolder,
    explain_missing_run,
    is_lock,
    read_bounded,
    reading,
    signed_text,
    versions,
)
from mia_batch.places import is_url, settled
from mia_batch.settings import CLASSICS, NO_YARDSTICK, Mark, Settings
from mia_batch.tables import digest, side_by_side, write_text

# Time stamps of a run's root, which its user has had made and laid into its folder.

STAMPS = {"root.tsr": "RFC 3161", "root.ots": "OpenTimestamps"}
"""Files of time stamps, and their kind."""


def is_stamp_of(path: Path, root: str) -> bool:
    """Return whether a stamp holds the root, or the hash of a file with its 64 characters."""
    of_file = sha256(root.encode()).digest()
    of_line = sha256(f"{root}\n".encode()).digest()
    content = path.read_bytes()
    return any(stamp in content for stamp in (bytes.fromhex(root), of_file, of_line))


def describe_stamps(folder: Path, root: str) -> str:
    """Return the stamps in a folder with their SHA-256, and whether they are of this root."""
    descriptions = []
    for name, kind in STAMPS.items():
        path = folder / name
        if path.is_file() and not path.is_symlink():
            subject = "this root" if is_stamp_of(path, root) else "ANOTHER root"
            descriptions.append(
                f"{name} ({kind}), SHA-256 {digest(path)}, of {subject}"
            )
    return "; ".join(descriptions)


# Whether a finished run is as it was, by settings, sizes and times of files: none is
# read for it.

_SCORED_WITH = {"attacks_from": "", "rarity_from": "rarity.parquet"}
"""Settings that name what scores are made from, and the file in the folder that they name."""
_NO_ROOT = (
    "{} has no root: the run was stopped, or was made before runs had one; give the"
    " audit's command again, which goes on to its end"
)
_PROGRAM = {".py", ".so", ".jinja"}  # suffixes of files
_TICK_SECONDS = 2.0
"""A file that changed so lately may change again within one tick of its file system's clock."""


def hash_sources(settings: Settings) -> str | None:
    """Hash what decides how a run comes out; None where sizes and times of files cannot tell."""
    # What a hub or an endpoint has is not looked at.
    if settings.shard is not None or settings.retry_failed:
        return None
    if any(is_url(getattr(settings, name)) for name in Settings.marked(Mark.PATH)):
        return None
    try:
        stats = [_read_stat(path) for path in _list_sources(settings)]
    except (OSError, RequestError):  # which the run itself explains
        return None
    latest = time.time_ns() - _TICK_SECONDS * 1e9
    if any(modified > latest for _, _, modified in stats):
        return None
    formulas = [
        get(name).expr.meta.serialize().hex() for name in settings.attacks or ()
    ]
    return _hash_json([settings.model_dump(mode="json"), formulas, versions(), stats])


def is_unchanged(folder: Path, sources_hash: str) -> bool:
    """Return whether a run is finished, and it and its sources are as they were then."""
    try:
        if _find_manifest_fault(folder) is not None:
            return False
        with reading(folder):
            manifest = RunFolder(folder).manifest
            if not manifest.custody:
                return False
            return manifest.unchanged == _hash_run(folder, sources_hash)
    except (MiaBatchError, OSError):
        return False


def record_unchanged(folder: Path, sources_hash: str) -> None:
    run_hash = _hash_run(folder, sources_hash)
    _rewrite(folder, lambda stored: stored.update(unchanged=run_hash))


def _hash_run(folder: Path, sources_hash: str) -> str:
    names = sorted(list_files(RunFolder(folder)))
    return _hash_json([sources_hash, [_read_stat(folder / name) for name in names]])


def _hash_json(content: object) -> str:
    return sha256(json.dumps(content).encode()).hexdigest()


def _read_stat(path: Path) -> tuple[str, int, int]:
    """Return the name, size and time of change of a file."""
    status = path.stat()
    return str(path.absolute()), status.st_size, status.st_mtime_ns


def _list_sources(settings: Settings) -> Iterator[Path]:
    """Iterate over the files that a run is made from: texts, models, attacks, this program."""
    for name in Settings.marked(Mark.PATH):
        value = getattr(settings, name)
        if name in ("out", "config") or value in (None, CLASSICS, NO_YARDSTICK):
            continue
        if name == "plan":
            yield Path(value)
        elif name in _SCORED_WITH:
            yield Path(value) / _SCORED_WITH[name]
        else:
            texts = find_files(value)
            paths = (*(file.path for file in texts.files), *texts.ignored)
            yield from (path for path in paths if isinstance(path, Path))
    if settings.known_index is not None:
        yield from sorted(Path(settings.known_index.partition("#")[0]).glob("*"))
    for name in Settings.marked(Mark.MODEL):
        model = getattr(settings, name)
        if model is not None:
            yield from find_format(model).find_files(model)
    package = Path(__file__).parents[1]
    yield from sorted(path for path in package.rglob("*") if path.suffix in _PROGRAM)


# A run's chain of custody: the SHA-256 of its files, and one root over what it rests
# on.


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a check of every byte came to.

    Attributes
    ----------
    root
        The root of the run.
    n_files
        Files whose bytes were compared.
    faults
        Files and what is wrong: ``changed``, ``missing``, ``added``, or a sentence.
    not_found
        Inputs that are not where the run read them.
    """

    root: str
    n_files: int
    faults: list[tuple[str, str]] = field(default_factory=list)
    not_found: list[str] = field(default_factory=list)


_UNHASHED = ("run.json", f"{ORDER}.parquet", *STAMPS)
"""Files that hold the hashes, come after them, or are there only while a run goes on."""
# Times of answers, as in the journal: another run of the same audit has others.
_NO_TABLES = ("responses.parquet",)


def compute_root(digests: Mapping[str, str]) -> str:
    """Hash the lines that ``sha256sum`` prints of these files, sorted by name."""
    root = sha256()
    for name, file_digest in sorted(digests.items()):
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        mark = "" if escaped == name else "\\"
        root.update(f"{mark}{file_digest}  {escaped}\n".encode())
    return root.hexdigest()


def record_inputs(audit: Audit) -> None:
    """Record what scores are made from with the other inputs, and leave out what is no input."""
    manifest, settings = audit.manifest, audit.settings
    for setting, name in _SCORED_WITH.items():
        place = getattr(settings, setting)
        if place is not None:
            path = Path(place) / name
            manifest.inputs[setting] = {path.name: digest(path)}
    for setting in list(manifest.inputs):
        if getattr(settings, setting) in (
            None,
            CLASSICS,
        ):  # which come with the package
            del manifest.inputs[setting]


def seal(audit: Audit) -> None:
    """Hash all files of a run that has come to its end, and store the manifest with its root."""
    run, manifest = audit.run, audit.manifest
    paths = {
        name: run.folder / name
        for name in sorted(list_files(run))
        if _find_kind_fault(run.folder / name) is None and _is_text(name)
    }
    noun = "file" if len(paths) == 1 else "files"
    audit.observer.stage(f"hashing {len(paths):,} {noun}")
    digests = dict(zip(paths, side_by_side(digest, paths.values()), strict=True))
    tables = {
        name: file_digest
        for name, file_digest in digests.items()
        if str(Path(name).parent) in {".", *PARTS}
        and name.endswith(".parquet")
        and name not in _NO_TABLES
    }
    others = {name: each for name, each in digests.items() if name not in tables}
    manifest.custody = {
        "root": compute_root(tables | _list_inputs(manifest)),
        "tables": tables,
        "files": others,
    }
    manifest.write(run.folder)


def _is_text(name: str) -> bool:
    """Return whether the name of a file is text: any bytes can name one."""
    return name.encode("utf-8", "replace").decode() == name


def record_file(run: RunFolder, name: str) -> None:
    """Record the hash of a file that was made from a finished run, such as its report."""
    # The root stays as it is; a run without root keeps none.
    digests = {name: digest(run.folder / name)}
    _rewrite(run.folder, lambda stored: stored["custody"]["files"].update(digests))


def _rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change ``run.json`` of a finished run in place; that of another stays."""
    path = folder / "run.json"
    stored = json.loads(path.read_text("utf-8"))
    if stored["custody"]:
        change(stored)
        write_text(path, signed_text(stored))


def refuse_changed(run: RunFolder) -> None:
    """Refuse a finished run one of whose tables is not the one that was sealed."""
    for name, sealed in run.manifest.custody.get("tables", {}).items():
        path = run.folder / name
        is_part = "/" in name  # evidence, which `verify` hashes: it may have gigabytes
        if not is_part and path.is_file() and digest(path) != sealed:
            raise RunFolderError(
                f"{path} is not as the run left it; `mia-batch verify {run.folder}`"
                " lists all that has changed: restore it, or run again"
            )


def verify(place: Path | str, elsewhere: Sequence[Path | str] = ()) -> Verification:
    """Compare every byte of a finished run and of its inputs with what was recorded."""
    # Inputs at an address are read only where ``elsewhere`` names it: a run may be a
    # stranger's, and no server is asked because of it.
    run = RunFolder(place)
    with settled(place), reading(run.folder):
        fault = _find_manifest_fault(run.folder)
        if fault is not None:
            return Verification(root="unknown", n_files=0, faults=[("run.json", fault)])
        if not run.manifest.custody:
            raise RunFolderError(_NO_ROOT.format(run.folder))
        return _verify_files(run, elsewhere)


def _verify_files(run: RunFolder, elsewhere: Sequence[Path | str]) -> Verification:
    folder, manifest = run.folder, run.manifest
    recorded = manifest.custody["tables"] | manifest.custody["files"]
    present = {*list_files(run)}
    expected = recorded | _list_inputs(manifest)
    inputs = {
        f"{setting}/{name}": _find_input((*elsewhere, manifest.settings[setting]), name)
        for setting, names in manifest.inputs.items()
        for name in names
    }
    paths = {name: folder / name for name in recorded if name in present}
    paths |= {name: path for name, path in inputs.items() if path is not None}
    remote_digests = _read_remote_digests(elsewhere)

    def compare(name: str) -> str | None:
        return _find_fault(paths[name], lambda path: digest(path) == expected[name])

    faults = [
        (name, fault)
        for name, fault in zip(paths, side_by_side(compare, paths), strict=True)
        if fault is not None
    ]
    faults += [(name, "missing") for name in sorted(recorded.keys() - present)]
    faults += [(name, "added") for name in sorted(present - recorded.keys())]
    faults += _list_stamp_faults(folder, manifest.custody["root"])
    not_found = [name for name, path in inputs.items() if path is None]
    n_files = len(paths) + 1
    for name in list(not_found):
        remote_digest = remote_digests.get(name.partition("/")[2])
        if remote_digest is not None:
            not_found.remove(name)
            n_files += 1
            if remote_digest != expected[name]:
                faults.append((name, "changed"))
    return Verification(
        root=manifest.custody["root"],
        n_files=n_files,
        faults=faults,
        not_found=not_found,
    )


def _read_remote_digests(places: Sequence[Path | str]) -> dict[str, str]:
    """Return the SHA-256 of all files at the addresses among some places, by their names."""
    digests: dict[str, str] = {}
    for place in places:
        if is_url(place):
            digests |= digest_files(find_files(place).files)
    return digests


def _find_manifest_fault(folder: Path) -> str | None:
    """Return what is wrong with ``run.json``: its text must be what stands for its contents."""
    path = folder / "run.json"
    if not os.path.lexists(path):
        raise RequestError(explain_missing_run(folder))
    fault = _find_kind_fault(path)
    if fault is not None:
        return fault
    try:
        text = read_bounded(path)
        stored = json.loads(text)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return "changed"
    if not isinstance(stored, dict):
        return "changed"
    if not stored.keys() & {"custody", "sha256"}:
        raise RunFolderError(_NO_ROOT.format(folder))
    is_signed = text == signed_text(stored).encode("utf-8", "surrogatepass")
    return None if is_signed else "changed"


def list_files(run: RunFolder) -> Iterator[str]:
    """Iterate over names of all that is hashed in a run's folder."""
    # Links to folders are not followed.
    # Those in place of a folder of parts are: the parts may lie on another disk.

    def stop(error: OSError) -> None:
        raise RunFolderError(
            f"{error.filename} cannot be read: {error.strerror}; nothing was checked"
        ) from error

    tops = [run.folder, *(path for path in map(run.path, PARTS) if path.is_symlink())]
    for top in tops:
        for folder, folders, names in os.walk(top, onerror=stop):
            links = [name for name in folders if (Path(folder) / name).is_symlink()]
            for name in (*names, *links):
                path = Path(folder) / name
                inside = path.relative_to(run.folder).as_posix()
                is_hashed = inside not in _UNHASHED and not is_lock(inside)
                if path not in tops and is_hashed:
                    yield inside


def _find_kind_fault(path: Path) -> str | None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "a link instead of a file"
    return None if stat.S_ISREG(mode) else "not a regular file"


def _find_fault(
    path: Path, is_good: Callable[[Path], bool], fault: str = "changed"
) -> str | None:
    """Return why a path is no file of its own, cannot be read or is not good."""
    try:
        return _find_kind_fault(path) or (None if is_good(path) else fault)
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _list_stamp_faults(folder: Path, root: str) -> Iterator[tuple[str, str]]:
    for path in (folder / name for name in STAMPS):
        if not os.path.lexists(path):
            continue
        fault = _find_fault(
            path, lambda path: is_stamp_of(path, root), "a stamp of another root"
        )
        if fault is not None:
            yield path.name, fault


def _list_inputs(manifest: Manifest) -> dict[str, str]:
    """Return the SHA-256 of all inputs by setting and file."""
    return {
        f"{setting}/{name}": file_digest
        for setting, digests in manifest.inputs.items()
        for name, file_digest in digests.items()
    }


def _find_input(places: Sequence[Path | str], name: str) -> Path | None:
    """Return the file of a name within a place; None where it may not be looked at."""
    for place in places:
        if is_url(place):
            continue
        # RuntimeError where "~name" is nobody's home
        with suppress(OSError, RuntimeError):
            base = find_base(str(place))
            path = (base / name).resolve()
            is_place_itself = base / name == Path(place)
            is_within = path.is_relative_to(base.resolve()) or is_place_itself
            if is_within and ".." not in Path(name).parts and path.is_file():
                return path
    return None
