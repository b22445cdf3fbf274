"""Bring a run's targets up to its corpus."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch import tables
from mia_batch.errors import SettingsError
from mia_batch.pipeline.resolve import target_plan
from mia_batch.schemas import Targets
from mia_batch.tables import RowIndex

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from mia_batch.pipeline.corpora import Corpora
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.run import Run
    from mia_batch.settings import Settings

__all__ = ["make_targets"]

_TARGETS_AT_ONCE = 8192


def make_targets(settings: Settings, corpora: Corpora, manifest: Manifest, run: Run) -> None:
    """Write the targets table, unless there is one of the same columns of the same corpus.

    Parameters
    ----------
    settings
        How documents are cut.
    corpora
        The documents.
    manifest
        The run's manifest; corpus and counts are recorded in it, and it is stored.
    run
        The run, held.

    Raises
    ------
    SettingsError
        If a target that the run has already is now cut in another place, or a text has two roles.
    """
    made_from = {
        "sha256": corpora.input.digest(),
        "columns": settings.columns,
        "helping": corpora.digests(),
    }
    if not made_from.items() <= manifest.input.items() or not run.targets_path.exists():
        new = run.folder / "targets.new.parquet"
        tables.sink(corpora.targets(target_plan(settings)), new, Targets)
        if corpora.helping:
            _refuse_two_roles(new)
        if run.targets_path.exists():
            _check_same_cut(run.targets_path, new)
        manifest.input = {}
        manifest.write(run)  # killed from here on, they are made again
        new.replace(run.targets_path)
        manifest.input = made_from | {
            "files": [str(file.path) for file in corpora.input.files],
            "n_documents": corpora.input.n_documents,
        }
        manifest.targets = _count(run.targets_path)
    manifest.write(run)


def _refuse_two_roles(path: Path) -> None:
    """Refuse a text that is asked about and helps to answer, or helps in two ways."""
    named = tables.scan(path, Targets).select("target_id", "role", "document_id")
    helping = named.filter(pl.col("role") != "target").collect(engine="streaming")
    twice = helping.filter(pl.col("target_id").is_duplicated())
    asked = named.filter(role="target").join(
        helping.lazy().select("target_id", other="role"), on="target_id"
    )
    if twice.is_empty() and (both := asked.head(1).collect(engine="streaming")).is_empty():
        return
    path.unlink()
    first = (both if twice.is_empty() else twice).row(0, named=True)
    others = helping.filter(target_id=first["target_id"])["role"].to_list()
    roles = " and ".join(dict.fromkeys([first["role"], *others]))
    name = first["document_id"] or first["target_id"]
    msg = f"the text {name!r} is there as {roles}; a text has one role: remove it from one file"
    raise SettingsError(msg)


def _check_same_cut(old: Path, new: Path) -> None:
    """Refuse targets that kept their text but not their prefix: their samples would be mixed."""
    index = RowIndex(tables.scan(new, Targets).select("target_id"))
    cuts = np.empty(index.height, np.uint64)
    start = 0
    for _, hashes in _cuts(new):
        cuts[start : start + hashes.size] = hashes
        start += hashes.size
    moved = 0
    for names, hashes in _cuts(old):
        which, rows = index.find(names)
        moved += int((hashes[which] != cuts[rows]).sum())
    if moved:
        new.unlink()
        msg = (
            f"the prefix or reference of {moved:,} targets differs from the run's own although "
            "their text is the same; choose another --out"
        )
        raise SettingsError(msg)


def _cuts(targets: Path) -> Iterator[tuple[pl.Series, NDArray[np.uint64]]]:
    """Yield the names of targets and hashes of where they are cut, a chunk at a time."""
    table = tables.scan(targets, Targets).select(
        "target_id", cut=pl.struct("prefix", "reference").hash()
    )
    for start in count(step=_TARGETS_AT_ONCE):
        chunk = table.slice(start, _TARGETS_AT_ONCE).collect()
        if chunk.is_empty():
            return
        yield chunk["target_id"], chunk["cut"].to_numpy()


def _count(targets: Path) -> dict[str, int]:
    """Count targets: ``total``, and by reason those that cannot be sampled."""
    counts = (
        tables.scan(targets, Targets)
        .group_by("reason")
        .len()
        .sort("reason")
        .collect(engine="streaming")
    )
    refused = counts.drop_nulls("reason")
    return {"total": int(counts["len"].sum())} | dict(zip(*refused.get_columns(), strict=True))
