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
from mia_batch.corpus import base_of, find_files
from mia_batch.errors import MiaBatchError, RequestError, RunFolderError
from mia_batch.models.weights import weights_source
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.folder import (
    ORDER,
    PARTS,
    Manifest,
    RunFolder,
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


def holds(path: Path, root: str) -> bool:
    """Whether a stamp is of this root: the root itself, or a file that holds its 64 characters."""
    files = (sha256(f"{root}{end}".encode()).digest() for end in ("", "\n"))
    content = path.read_bytes()
    return any(each in content for each in (bytes.fromhex(root), *files))


def described(folder: Path, root: str) -> str:
    """Name the stamps in a folder with their SHA-256, and whether they are of this root."""
    return "; ".join(
        f"{name} ({kind}), SHA-256 {digest(path)}, "
        + ("of this root" if holds(path, root) else "of ANOTHER root")
        for name, kind in STAMPS.items()
        if (path := folder / name).is_file() and not path.is_symlink()
    )


# Whether a finished run is as it was, by settings, sizes and times of files: none is
# read for it.

_SCORED_WITH = {"attacks_from": "", "rarity_from": "rarity.parquet"}
"""Settings that name what scores are made from, and the file in the folder that they name."""
_NO_ROOT = (
    "{} has no root: the run was stopped, or was made before runs had one; give the"
    " audit's command again, which goes on to its end"
)
_PROGRAM = {".py", ".so", ".jinja"}  # suffixes of files
_SECONDS_OF_A_TICK = 2.0
"""A file that changed so lately may change again within one tick of its file system's clock."""


def made_from(settings: Settings) -> str | None:
    """Hash what decides how a run comes out; None where sizes and times of files cannot tell."""
    # What a hub or an endpoint has is not looked at.
    if settings.shard is not None or settings.retry_failed or is_url(settings.out):
        return None
    try:
        stamps = [_stamp(path) for path in _sources(settings)]
    except (OSError, RequestError):  # which the run itself explains
        return None
    if any(
        changed > time.time_ns() - _SECONDS_OF_A_TICK * 1e9 for _, _, changed in stamps
    ):
        return None
    formulas = [
        get(name).expr.meta.serialize().hex() for name in settings.attacks or ()
    ]
    return _hashed([settings.model_dump(mode="json"), formulas, versions(), stamps])


def is_unchanged(folder: Path, made: str) -> bool:
    """Whether a run is finished, and it and what it is ``made`` from are as they were then."""
    try:
        if _manifest_fault(folder) is not None:
            return False
        with reading(folder):
            manifest = RunFolder(folder).manifest
            return bool(manifest.custody) and manifest.unchanged == _known_by(
                folder, made
            )
    except (MiaBatchError, OSError):
        return False


def record_unchanged(folder: Path, made: str) -> None:
    _rewrite(folder, lambda stored: stored.update(unchanged=_known_by(folder, made)))


def _known_by(folder: Path, made: str) -> str:
    return _hashed(
        [made, [_stamp(folder / name) for name in sorted(files_of(RunFolder(folder)))]]
    )


def _hashed(content: object) -> str:
    return sha256(json.dumps(content).encode()).hexdigest()


def _stamp(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return str(path.absolute()), found.st_size, found.st_mtime_ns


def _sources(settings: Settings) -> Iterator[Path]:
    """Yield the files here that a run is made from: texts, models, attacks, and this program."""
    for name in Settings.marked(Mark.PATH):
        value = getattr(settings, name)
        if name in ("out", "config") or value in (None, CLASSICS, NO_YARDSTICK):
            continue
        if name == "plan":
            yield Path(value)
        elif name in _SCORED_WITH:
            yield Path(value) / _SCORED_WITH[name]
        else:
            found = find_files(value)
            yield from (*(file.path for file in found.files), *found.ignored)
    if settings.known_index is not None:
        yield from sorted(Path(settings.known_index.partition("#")[0]).glob("*"))
    for name in Settings.marked(Mark.MODEL):
        if (model := getattr(settings, name)) is not None and Path(model).is_dir():
            for folder in {model, weights_source(model, None)[0]}:
                yield from sorted(
                    path for path in Path(folder).glob("*") if path.is_file()
                )
    package = Path(__file__).parents[1]
    yield from sorted(path for path in package.rglob("*") if path.suffix in _PROGRAM)


# A run's chain of custody: the SHA-256 of its files, and one root over what it rests
# on.


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check of every byte found."""

    # A fault is a file and what is wrong: ``changed``, ``missing``, ``added``, or a
    # sentence.

    root: str
    n_files: int  # whose bytes were compared
    faults: list[tuple[str, str]] = field(default_factory=list)
    not_found: list[str] = field(default_factory=list)  # inputs where the run read them


_UNHASHED = ("run.json", f"{ORDER}.parquet", *STAMPS)
"""Files that hold the hashes, come after them, or are there only while a run goes on."""
# Times of answers, as in the journal: another run of the same audit has others.
_NO_TABLES = ("responses.parquet",)


def root_of(digests: Mapping[str, str]) -> str:
    """Hash the lines that ``sha256sum`` prints of these files, sorted by name."""
    whole = sha256()
    for name, found in sorted(digests.items()):
        plain = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        whole.update(f"{'' if plain == name else chr(92)}{found}  {plain}\n".encode())
    return whole.hexdigest()


def record_inputs(audit: Audit) -> None:
    """Record what scores are made from with the other inputs, and leave out what is no input."""
    manifest, settings = audit.manifest, audit.settings
    for setting, name in _SCORED_WITH.items():
        if (given := getattr(settings, setting)) is not None:
            path = Path(given) / name
            manifest.inputs[setting] = {path.name: digest(path)}
    no_input = (None, CLASSICS)  # those come with the package
    for setting in [
        name for name in manifest.inputs if getattr(settings, name) in no_input
    ]:
        del manifest.inputs[setting]


def seal(audit: Audit) -> None:
    """Hash all files of a run that has come to its end, and store the manifest with its root."""
    run, manifest = audit.run, audit.manifest
    regular = {
        name: run.folder / name
        for name in sorted(files_of(run))
        if _fault_of(run.folder / name) is None
        and name.encode("utf-8", "replace").decode()
        == name  # any bytes can name a file
    }
    audit.observer.stage(f"hashing {len(regular):,} files")
    digests = dict(zip(regular, side_by_side(digest, regular.values()), strict=True))
    folders = {".", *PARTS}
    names = [name for name in digests if str(Path(name).parent) in folders]
    own = [
        name for name in names if name.endswith(".parquet") and name not in _NO_TABLES
    ]
    tables = {name: digests[name] for name in own}
    manifest.custody = {
        "root": root_of(tables | _named_inputs(manifest)),
        "tables": tables,
        "files": {name: found for name, found in digests.items() if name not in tables},
    }
    manifest.write(run.folder)


def record_file(run: RunFolder, name: str) -> None:
    """Record the hash of a file that was made from a finished run, such as its report."""
    # The root stays as it is; a run without root keeps none.
    own = {name: digest(run.folder / name)}
    _rewrite(run.folder, lambda stored: stored["custody"]["files"].update(own))


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


def verify(place: Path | str, elsewhere: Sequence[Path] = ()) -> Checked:
    """Compare every byte of a finished run and of its inputs with what was recorded."""
    with settled(place), reading((run := RunFolder(place)).folder):
        folder = run.folder
        if (fault := _manifest_fault(folder)) is not None:
            return Checked(root="unknown", n_files=0, faults=[("run.json", fault)])
        manifest = run.manifest
        if not manifest.custody:
            raise RunFolderError(_NO_ROOT.format(folder))
        known = manifest.custody["tables"] | manifest.custody["files"]
        there = {*files_of(run)}
        wanted = known | _named_inputs(manifest)
        inputs = {
            f"{setting}/{name}": _find((*elsewhere, manifest.settings[setting]), name)
            for setting, each in manifest.inputs.items()
            for name in each
        }
        looked_at = {name: folder / name for name in known if name in there}
        looked_at |= {name: path for name, path in inputs.items() if path is not None}

        def compare(name: str) -> str | None:
            return _fault_in(looked_at[name], lambda path: digest(path) == wanted[name])

        faults = zip(looked_at, side_by_side(compare, looked_at), strict=True)
        return Checked(
            root=manifest.custody["root"],
            n_files=len(looked_at) + 1,
            faults=[
                *((name, fault) for name, fault in faults if fault is not None),
                *((name, "missing") for name in sorted(known.keys() - there)),
                *((name, "added") for name in sorted(there - known.keys())),
                *_stamp_faults(folder, manifest.custody["root"]),
            ],
            not_found=[name for name, path in inputs.items() if path is None],
        )


def _manifest_fault(folder: Path) -> str | None:
    """Say what is wrong with ``run.json``: its text must be what stands for its contents."""
    path = folder / "run.json"
    if not os.path.lexists(path):
        raise RequestError(RunFolder(folder).why_none)
    if (fault := _fault_of(path)) is not None:
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
    return (
        None
        if text == signed_text(stored).encode("utf-8", "surrogatepass")
        else "changed"
    )


def files_of(run: RunFolder) -> Iterator[str]:
    """Names of all that is hashed in a run's folder; links to folders are not followed."""
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
                known = path.relative_to(run.folder).as_posix()
                if path not in tops and known not in _UNHASHED and not is_lock(known):
                    yield known


def _fault_of(path: Path) -> str | None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "a link instead of a file"
    return None if stat.S_ISREG(mode) else "not a regular file"


def _fault_in(
    path: Path, is_good: Callable[[Path], bool], fault: str = "changed"
) -> str | None:
    """Say why a path is no file of its own, cannot be read or is not good."""
    try:
        return _fault_of(path) or (None if is_good(path) else fault)
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _stamp_faults(folder: Path, root: str) -> Iterator[tuple[str, str]]:
    for path in (folder / name for name in STAMPS):
        if os.path.lexists(path):
            fault = _fault_in(
                path, lambda path: holds(path, root), "a stamp of another root"
            )
            yield from [(path.name, fault)] if fault is not None else []


def _named_inputs(manifest: Manifest) -> dict[str, str]:
    return {
        f"{setting}/{name}": found
        for setting, each in manifest.inputs.items()
        for name, found in each.items()
    }


def _find(places: Sequence[Path | str], name: str) -> Path | None:
    """Find a file by the name that it has behind a path; what may not be looked at is not there."""
    for given in places:
        # The latter where "~name" is nobody's home
        with suppress(OSError, RuntimeError):
            base = base_of(str(given))
            path = (base / name).resolve()
            is_within = path.is_relative_to(base.resolve()) or base / name == Path(
                given
            )
            if is_within and ".." not in Path(name).parts and path.is_file():
                return path
    return None
