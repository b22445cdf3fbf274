"""Makes a demo beside the old one, then replaces that."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mia_batch.demo.corpus import build_corpus, build_shots
from mia_batch.demo.process import run_training
from mia_batch.demo.record import Record, digest_files
from mia_batch.errors import SettingsError
from mia_batch.tables import write_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia_batch.demo.settings import DemoSettings

__all__ = ["DemoFolder", "make_demo", "recipe_of", "write_config"]

_RECIPE = 3  # increase it when the same settings come to mean another demo
_STAGING = ".making-"
_CONFIG = """\
# What `mia-batch demo` audits: mia-batch --config mia-batch.toml
# With --reference-model reference, attacks that compare two models are computed, too.
input = "corpus.parquet"
model = "model"
masked_model = "masked"
neighbours = 5
nonmember_shots = "nonmember-shots.parquet"
member_shots = "member-shots.parquet"
frequencies_from = "corpus.parquet"
dtype = "float32"
seed = 0
out = "run-{digest}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFolder:
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
        return cls(
            corpus=folder / "corpus.parquet",
            nonmember_shots=folder / "nonmember-shots.parquet",
            member_shots=folder / "member-shots.parquet",
            model=folder / "model",
            reference=folder / "reference",
            masked=folder / "masked",
            config=folder / "mia-batch.toml",
        )


def make_demo(folder: Path, settings: DemoSettings, notify: Callable[[str], None]) -> None:
    """Make a demo in a locked folder; an earlier one stays until the new one is complete."""
    _require_packages()
    for leftover in folder.glob(f"{_STAGING}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=folder))
    try:
        _make_corpus(staging, settings, notify)
        _make_model(staging, settings, notify)
        _put_in_place(staging, folder, recipe_of(settings))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def recipe_of(settings: DemoSettings) -> str:
    """Digest of what decides a demo, except Python and the packages."""
    return hashlib.sha256(repr((_RECIPE, settings)).encode()).hexdigest()


def write_config(folder: Path) -> None:
    """Write the audit's settings; another corpus or model gets another run folder."""
    record = Record.of(folder)
    files = json.dumps(record.files if record else {}, sort_keys=True)
    digest = hashlib.sha256(files.encode()).hexdigest()[:8]
    write_text(DemoFolder.at(folder).config, _CONFIG.format(digest=digest))


def _require_packages() -> None:
    needed = ("tokenizers", "torch", "transformers")
    if missing := [name for name in needed if find_spec(name) is None]:
        msg = f"the demo needs {', '.join(missing)}; run pip install 'mia-batch[demo]'"
        raise SettingsError(msg)


def _make_corpus(staging: Path, settings: DemoSettings, notify: Callable[[str], None]) -> None:
    began = time.monotonic()
    corpus = build_corpus(settings)
    parts = DemoFolder.at(staging)
    corpus.write_parquet(parts.corpus)
    corpus.filter("member").head(settings.n_shots).write_parquet(parts.member_shots)
    build_shots(settings).write_parquet(parts.nonmember_shots)
    notify(
        f"cut the documentation of {corpus['group'].n_unique()} standard modules into "
        f"{corpus.height} passages, {corpus['member'].sum()} of them members "
        f"({time.monotonic() - began:.0f} s)"
    )


def _make_model(staging: Path, settings: DemoSettings, notify: Callable[[str], None]) -> None:
    began = time.monotonic()
    run_training(staging, settings, notify)
    notify(f"made the models ({time.monotonic() - began:.0f} s)")


def _put_in_place(staging: Path, folder: Path, recipe: str) -> None:
    """Replace file by file, so that nothing but the demo's own files is lost."""
    new, old = DemoFolder.at(staging), DemoFolder.at(folder)
    paths = [new.corpus, new.nonmember_shots, new.member_shots]
    paths += [path for model in _models(new) for path in sorted(model.iterdir())]
    files = digest_files(staging, [path.relative_to(staging).as_posix() for path in paths])
    Record(recipe=recipe, files={}).write(folder)
    for model in _models(old):
        model.mkdir(exist_ok=True)
    for name in files:
        (staging / name).replace(folder / name)
    Record(recipe=recipe, files=files).write(folder)
    write_config(folder)


def _models(parts: DemoFolder) -> tuple[Path, ...]:
    return parts.model, parts.reference, parts.masked
