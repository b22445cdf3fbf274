"""The demo's folder: passages of documentation, a coin that says which are members, and models.

The passages are real text that every Python carries: the documentation of the standard library.
Sources are parsed, never imported. The same Python gives the same passages on every machine.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import shutil
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import metadata
from importlib.util import find_spec
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from filelock import FileLock, Timeout

from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.tables import digest, write_text

SHARED_RUN = 13
"""No two passages share so many words in a row: members would leak into non-members."""

_CHARACTERS_PER_WORD = 9  # at most; tables and drawings have more, prose about 6
_TOPICS = "pydoc_data.topics"
_NOT_DOCUMENTATION = frozenset(
    {"__pycache__", "dist-packages", "idlelib", "lib2to3", "site-packages", "test", "tests"}
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_PACKAGES = ("tokenizers", "torch", "transformers")
_NAME, _LOCK, _STAGING = "demo.json", ".demo.lock", ".making-"
_MADE_BY = "mia-batch demo"
_RECIPE = 4  # increase it when the same settings come to mean another demo
_CONFIG = """\
# What `mia-batch demo` audits: mia-batch --config mia-batch.toml
# With --reference-model reference, attacks that compare two models are computed, too.
input = "corpus.parquet"
model = "model"
seed = 0
out = "run-{digest}"

[engine]
dtype = "float32"

[logprobs]
masked_model = "masked"
neighbours = 5
nonmember_shots = "nonmember-shots.parquet"
member_shots = "member-shots.parquet"
frequencies_from = "corpus.parquet"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Sizes of the demo; with the same settings a machine makes the same demo.

    The defaults train in under two minutes on two cores, to a memory that is good but not perfect.
    With 256 texts, one seed in twenty separates the classes without the model by chance; the
    default, found by trying 0 to 8, excludes differences above AUC 0.60 (such a choice is called
    rerandomisation: Morgan and Rubin 2012).
    """

    seed: int = 8  # of membership, order and training
    n_passages: int = 256  # in the corpus, even; half of them are members
    per_group: int = 8  # most passages of one group (module), even
    n_words: int = 128  # of a passage
    vocabulary: int = 4096  # most tokens; at least the 256 bytes and two special tokens
    hidden: int = 128  # width of the model
    head: int = 64  # width of an attention head; divides both widths
    layers: int = 2
    context: int = 1024  # most tokens that the model can read and write
    epochs: int = 12  # times that the model sees each member
    learning_rate: float = 2e-3  # highest step size of AdamW
    n_shots: int = 8  # texts to put before each text: members of the corpus, and so many others
    helper_hidden: int = 64  # width of the reference and the masked model, of one layer each
    helper_epochs: int = 3  # times that these two see each passage of the corpus


class DemoFolder(NamedTuple):
    """Where the files of a demo are."""

    corpus: Path  # Parquet: document_id, text, member, group
    nonmember_shots: Path  # texts to put before others: not in the corpus
    member_shots: Path  # the same, from among its members
    model: Path  # checkpoint that was trained on the members
    reference: Path  # checkpoint of a smaller model, trained on members and others alike
    masked: Path  # the same of a model that fills gaps
    config: Path  # settings of the audit

    @classmethod
    def at(cls, folder: Path) -> DemoFolder:
        """Name the files of the demo in ``folder``, there or not."""
        tables = (f"{name}.parquet" for name in ("corpus", "nonmember-shots", "member-shots"))
        return cls(
            *map(folder.joinpath, (*tables, "model", "reference", "masked", "mia-batch.toml"))
        )


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of one module's documentation."""

    module: str  # dotted name
    index: int  # among the module's passages, from 0
    text: str  # the words with the white space between them, as the source has them


def read_modules(library: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield name and documentation of the modules of ``library`` (None: this Python's own).

    The order is fixed; modules without documentation, and files that are not Python, are left out.
    """
    root = Path(sysconfig.get_path("stdlib")) if library is None else library
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _NOT_DOCUMENTATION)
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            if text := _documentation(path, topics=module == _TOPICS):
                yield module, text


def _documentation(path: Path, *, topics: bool) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old sources
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return ""
    found: Iterable[str] = _docstrings(tree)
    if topics:  # the values of a dictionary
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Dict))
        values = (getattr(each, "value", None) for of in nodes for each in of.values)
        found = (value for value in values if isinstance(value, str))
    return "\n\n".join(found).encode(errors="ignore").decode()  # without lone surrogates


def _docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
        yield text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _docstrings(child)


def cut_passages(module: str, text: str, *, n_words: int) -> Iterator[Passage]:
    """Cut a text into passages of ``n_words`` words (`str.split`); a shorter rest is left out.

    Tables and drawings are left out, too: passages of more than 9 characters a word.
    """
    words = list(re.finditer(r"\S+", text))
    for index in range(len(words) // n_words):
        first, last = words[index * n_words], words[(index + 1) * n_words - 1]
        passage = text[first.start() : last.end()]
        if len(passage) <= _CHARACTERS_PER_WORD * n_words:
            yield Passage(module, index, passage)


def drop_near_duplicates(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Keep the passages that share no ``SHARED_RUN`` words in a row with one kept before."""
    seen: set[tuple[str, ...]] = set()
    for passage in passages:
        words = passage.text.split()
        runs = {tuple(words[i : i + SHARED_RUN]) for i in range(len(words) - SHARED_RUN + 1)}
        if seen.isdisjoint(runs):
            seen |= runs
            yield passage


def choose_passages(
    passages: Iterable[Passage], *, n_passages: int, per_module: int
) -> list[Passage]:
    """Choose an even number of each module's passages, by hash, from the largest modules first."""
    modules = [hash_order(group, "choice") for _, group in groupby(passages, attrgetter("module"))]
    chosen: list[Passage] = []
    for module in sorted(modules, key=len, reverse=True):
        room = min(per_module, n_passages - len(chosen))
        chosen += module[: min(room, len(module)) // 2 * 2]
    if len(chosen) < n_passages:
        raise SettingsError(
            f"the demo needs {n_passages} passages of documentation, but the standard library in "
            f"{sysconfig.get_path('stdlib')} gives {len(chosen)}; use a Python that is installed "
            "with its sources"
        )
    return chosen


def hash_order(passages: Iterable[Passage], *salt: object) -> list[Passage]:
    """Sort passages by a hash of salt and text: the same on all machines, random to all else."""
    return sorted(passages, key=lambda passage: blake2b(f"{salt} {passage.text}".encode()).digest())


def build_corpus(settings: DemoSettings, library: Path | None = None) -> pl.DataFrame:
    """Make the corpus from the documentation in ``library``, None: this Python's own.

    The order of its rows tells nothing of their membership.
    """
    chosen = _choose(settings, library)
    members = draw_members(chosen, settings.seed)
    return _frame(hash_order(chosen, "order", settings.seed), members)


def build_shots(settings: DemoSettings) -> pl.DataFrame:
    """Choose non-members outside the corpus; fewer than asked for where the library has no more."""
    left = {*_passages(settings.n_words, None)}.difference(_choose(settings, None))
    return _frame(hash_order(left, "shots", settings.seed)[: settings.n_shots], ())


def _frame(passages: Iterable[Passage], members: Collection[Passage]) -> pl.DataFrame:
    rows = [
        (f"{each.module}-{each.index:03}", each.text, each in members, each.module)
        for each in passages
    ]
    types = {"document_id": str, "text": str, "member": bool, "group": str}
    return pl.DataFrame(rows, schema=types, orient="row")


@cache
def _passages(n_words: int, library: Path | None) -> tuple[Passage, ...]:
    modules = read_modules(library)
    cut = (each for one in modules for each in cut_passages(*one, n_words=n_words))
    return tuple(drop_near_duplicates(cut))


def _choose(settings: DemoSettings, library: Path | None) -> list[Passage]:
    return choose_passages(
        _passages(settings.n_words, library),
        n_passages=settings.n_passages,
        per_module=settings.per_group,
    )


def draw_members(passages: Iterable[Passage], seed: int) -> set[Passage]:
    """Draw half of each module's passages (sorted by module), of an odd number the smaller half."""
    members: set[Passage] = set()
    for _, group in groupby(passages, attrgetter("module")):
        drawn = hash_order(group, "member", seed)
        members.update(drawn[: len(drawn) // 2])
    return members


def read_record(folder: Path) -> dict[str, Any] | None:
    """Read what made the demo in a folder, and its files; None where there is no demo."""
    try:
        record = json.loads((folder / _NAME).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    is_ours = isinstance(record, dict) and record.get("made_by") == _MADE_BY
    return record if is_ours and {"recipe", "files"} <= record.keys() else None


def _write_record(folder: Path, recipe: str, files: dict[str, str]) -> None:
    """Say what made a demo; ``files`` are their SHA-256, none while they are replaced."""
    record = {
        "recipe": recipe,
        "files": files,
        "python": platform.python_version(),  # whose documentation it is
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "made_by": _MADE_BY,
    }
    write_text(folder / _NAME, json.dumps(record, indent=2) + "\n")


def prepare(
    folder: Path,
    *,
    fresh: bool = False,
    notify: Callable[[str], None] | None = None,
    settings: DemoSettings | None = None,
) -> DemoFolder:
    """Make corpus, models and settings of the demo, or find those that were made before.

    The folder must be new, empty or an earlier demo's. ``fresh`` makes them anew; other files in
    the folder stay. ``notify`` receives a line per step; without ``settings``, the defaults hold.
    """
    folder, settings = Path(folder), settings or DemoSettings()
    notify = notify or (lambda _line: None)
    try:
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
        if names and _LOCK not in names and read_record(folder) is None:
            raise SettingsError(
                f"the folder {folder} holds other things than a demo; name a new or an empty folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            notify(f"waiting for another mia-batch demo that works in {folder}")
            lock.acquire()
        try:
            if fresh or not _is_kept(folder, settings, notify):
                _make(folder, settings, notify)
            elif not DemoFolder.at(folder).config.exists():
                _write_config(folder)
        finally:
            lock.release()
    except OSError as error:
        why = error.strerror or error
        raise RunFolderError(
            f"the demo's folder {folder} cannot be used: {why}; name another folder"
        ) from error
    return DemoFolder.at(folder)


def _is_kept(folder: Path, settings: DemoSettings, notify: Callable[[str], None]) -> bool:
    """Whether the demo in a folder is the one that is wanted, finished and unchanged."""
    record = read_record(folder)
    if record is None:
        return False
    files = record["files"]
    kept = (
        record["recipe"] == _recipe_of(settings)
        and bool(files)
        and all(
            (folder / name).is_file() and digest(folder / name) == wanted
            for name, wanted in files.items()
        )
    )
    what = "unfinished, changed or of another version"
    notify(
        f"corpus and model in {folder} are "
        f"{'kept from before; --fresh makes them anew' if kept else what}"
    )
    return kept


def _recipe_of(settings: DemoSettings) -> str:
    """Digest of what decides a demo, except Python and the packages."""
    return hashlib.sha256(repr((_RECIPE, settings)).encode()).hexdigest()


def _make(folder: Path, settings: DemoSettings, notify: Callable[[str], None]) -> None:
    """Make a demo in a locked folder; an earlier one stays until the new one is complete."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise SettingsError(
            f"the demo needs {', '.join(missing)}; run pip install 'mia-batch[demo]'"
        )
    from mia_batch.extras.sets.demo.train import make_models

    for leftover in folder.glob(f"{_STAGING}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=folder))
    new, old = DemoFolder.at(staging), DemoFolder.at(folder)
    try:
        began = time.monotonic()
        corpus = build_corpus(settings)
        corpus.write_parquet(new.corpus)
        corpus.filter("member").head(settings.n_shots).write_parquet(new.member_shots)
        build_shots(settings).write_parquet(new.nonmember_shots)
        notify(
            f"cut the documentation of {corpus['group'].n_unique()} standard modules into "
            f"{corpus.height} passages, {corpus['member'].sum()} of them members "
            f"({time.monotonic() - began:.0f} s)"
        )
        began = time.monotonic()
        make_models(corpus, staging, settings, notify)
        notify(f"made the models ({time.monotonic() - began:.0f} s)")
        # Replaced file by file, so that nothing but the demo's files is lost.
        paths = [new.corpus, new.nonmember_shots, new.member_shots]
        for model in (new.model, new.reference, new.masked):
            paths += sorted(model.iterdir())
        files = {path.relative_to(staging).as_posix(): digest(path) for path in paths}
        recipe = _recipe_of(settings)
        _write_record(folder, recipe, {})
        for model in (old.model, old.reference, old.masked):
            model.mkdir(exist_ok=True)
        for name in files:
            (staging / name).replace(folder / name)
        _write_record(folder, recipe, files)
        _write_config(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_config(folder: Path) -> None:
    """Write the audit's settings; another corpus or model gets another run folder."""
    files = json.dumps((read_record(folder) or {"files": {}})["files"], sort_keys=True)
    of_files = hashlib.sha256(files.encode()).hexdigest()[:8]
    write_text(DemoFolder.at(folder).config, _CONFIG.format(digest=of_files))
