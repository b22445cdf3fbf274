"""Tables that a crash has cut short are made again, and are what they were."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import polars as pl
import pytest

import mia_batch
from mia_batch import tables
from mia_batch.observer import Observer
from mia_batch.pipeline.auditing import stages_of
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.stages import scores, verdicts
from mia_batch.pipeline.stages.stage import damage_set_aside, repair
from mia_batch.settings import Settings
from tests.damage import damage
from tests.processes import wait_until_gone

if TYPE_CHECKING:
    from pathlib import Path

_ANSWERS = ["metrics", "verdicts"]
_SUMMARY = ["curves", "rollup"]
MADE_AGAIN = {
    "targets": ["targets", "blind", "blind_metrics", "findings"],
    "blind": ["blind"],
    "blind_metrics": ["blind_metrics"],
    "findings": ["findings"],
    "scores": ["scores", *_ANSWERS, *_SUMMARY],
    "unscored": ["unscored", *_ANSWERS],
    "metrics": ["metrics"],
    "verdicts": ["verdicts"],
    "rollup": ["rollup"],
    "curves": ["curves"],
}
"""Tables, and what goes with each where it is lost."""


@pytest.fixture
def copied(small_audit, tmp_path):
    """A copy of the finished audit that a test may change: settings, and the run."""
    settings, run = small_audit
    shutil.copytree(run.folder, tmp_path / "run")
    copied = settings | {"out": str(tmp_path / "run"), "report": False}
    return copied, mia_batch.Run(tmp_path / "run")


def contents(run):
    return {
        str(path.relative_to(run.folder)): path.read_bytes()
        for path in run.folder.rglob("*.parquet")
    }


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def stages(run):
    stored = {name: value for name, value in run.manifest.settings.items() if value is not None}
    return stages_of(Audit.finished(run, Settings.model_validate(stored), Observer()))


def repaired(run) -> list[str]:
    with run.held():
        return repair(stages(run))


def test_a_run_without_fault_is_left_as_it_is(copied):
    _, run = copied
    before = contents(run)
    assert repaired(run) == []
    assert contents(run) == before


@pytest.mark.parametrize("year", [1990, 2090])
def test_a_clock_that_is_set_changes_nothing(copied, small_audit, year):
    settings, run = copied
    _, before = small_audit
    time = datetime(year, 1, 1, tzinfo=UTC).timestamp()
    for path in (run.folder, *run.folder.rglob("*")):
        os.utime(path, (time, time))
    again = mia_batch.audit(**settings)
    assert contents(again) == contents(before)
    fewer = mia_batch.audit(**settings | {"samples": 2})
    assert fewer["scores"]["n_samples"].max() == 2


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_a_table_that_was_cut_short_is_made_again(copied, name):
    settings, run = copied
    before = contents(run)
    cut(run.folder / f"{name}.parquet")
    lost = [f"{run.folder / lost}.parquet is made again" for lost in MADE_AGAIN[name]]
    assert repaired(run) == lost
    mia_batch.audit(**settings)
    assert contents(run) == before


@pytest.mark.parametrize("size", [0, 7, 11])
def test_features_that_were_cut_short_are_made_again_and_with_them_the_scores(copied, size):
    settings, run = copied
    before = contents(run)
    (part,) = run.path("features").iterdir()
    part.write_bytes(b"PAR1\xff\xff\xffPAR1"[-size:] if size else b"")
    lost = [part, *map(run.path, ("scores", "unscored", *_ANSWERS, *_SUMMARY))]
    assert repaired(run) == [f"{path} is made again" for path in lost]
    mia_batch.audit(**settings)
    assert contents(run) == before


def test_samples_that_were_cut_short_are_set_aside_and_drawn_again(copied):
    settings, run = copied
    before = contents(run)
    (part,) = run.path("samples").iterdir()
    for path in run.folder.rglob("*.parquet"):
        cut(path)
    first, *others = repaired(run)
    assert first == f"{part} was cut short; set aside, its samples are missing again"
    assert len(others) == 2 + len(MADE_AGAIN)  # prompts and features too
    assert contents(run) == {}
    assert part.with_name(f"{part.name}.broken").exists()
    mia_batch.audit(**settings)
    assert contents(run) == before


ROWS, END = slice(4, 60), slice(-120, -8)


@pytest.mark.parametrize("changed", [ROWS, END], ids=["rows", "end"])
def test_samples_that_a_disk_has_changed_are_set_aside_and_drawn_again(copied, changed):
    settings, run = copied
    before = contents(run)
    (part,), (features,) = run.path("samples").iterdir(), run.path("features").iterdir()
    features.unlink()
    damage(part, changed)
    with pytest.raises(mia_batch.RunFolderError) as raised:
        mia_batch.audit(**settings)
    lost = [
        f"{run.path(name)} is made again" for name in ("scores", "unscored", *_ANSWERS, *_SUMMARY)
    ]
    aside = f"{part} is damaged; set aside, its samples are missing again"
    assert str(raised.value) == f"{'; '.join([aside, *lost])}: give the same command again"
    assert part.with_name(f"{part.name}.broken").exists()
    mia_batch.audit(**settings)
    assert contents(run) == before


def test_features_that_a_disk_has_changed_are_made_again(copied):
    settings, run = copied
    before = contents(run)
    (features,) = run.path("features").iterdir()
    damage(features, ROWS)
    run.path("scores").unlink()
    with pytest.raises(mia_batch.RunFolderError, match=r"^.*features.* is made again: give the"):
        mia_batch.audit(**settings)
    mia_batch.audit(**settings)
    assert contents(run) == before


def test_what_the_system_refuses_to_read_is_no_damage(copied, monkeypatch):
    """Patched, because no disk fails on demand; the words are those of Polars."""
    _, run = copied
    before, found = contents(run), stages(run)
    refused = pl.exceptions.ComputeError("Input/output error (os error 5)")

    def scan_parquet(*_: object, **__: object) -> None:
        raise refused

    monkeypatch.setattr(pl, "scan_parquet", scan_parquet)
    with (
        run.held(),
        pytest.raises(
            mia_batch.RunFolderError, match=r"\.parquet cannot be repaired: Input/output"
        ),
        damage_set_aside(found),
    ):
        raise refused
    assert contents(run) == before


def test_what_is_wrong_with_no_table_is_raised_as_it_is(copied):
    _, run = copied
    before, found = contents(run), stages(run)
    another = pl.exceptions.ComputeError("another")
    with (
        run.held(),
        pytest.raises(pl.exceptions.ComputeError) as raised,
        damage_set_aside(found),
    ):
        raise another
    assert raised.value is another
    assert contents(run) == before


def test_what_was_made_from_lost_samples_goes_with_them(copied):
    _, run = copied
    (part,) = run.path("samples").iterdir()
    part.unlink()
    assert len(repaired(run)) == 7
    lost = {"scores", "unscored", *_ANSWERS, *_SUMMARY}
    left = {name for name in contents(run) if not name.startswith("prompts/")}
    assert left == {f"{name}.parquet" for name in MADE_AGAIN.keys() - lost}


def test_a_manifest_that_was_cut_short_is_refused(copied):
    settings, run = copied
    cut(run.folder / "run.json")
    with pytest.raises(
        mia_batch.RunFolderError, match=r"run\.json cannot be read .*; give another folder"
    ):
        mia_batch.audit(**settings)


def test_a_part_that_is_no_file_is_refused(copied):
    _, run = copied
    (run.path("samples") / "x.parquet").mkdir()
    with pytest.raises(mia_batch.RunFolderError, match=r"run cannot be repaired: Is a dir"):
        repaired(run)


def test_what_killed_writers_left_is_removed_and_nothing_else(copied):
    settings, run = copied
    left = [
        folder / f".x.parquet.{'0f' * 16}.tmp"
        for folder in (run.folder, run.path("samples"), run.path("features"))
    ]
    mine = [run.folder / "mine.tmp", run.folder / ".mine.tmp", run.path("samples") / ".a.b.tmp"]
    for path in (*left, *mine):
        path.write_text("PAR1")
    mia_batch.audit(**settings)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in mine)


HOLD = """
import sys, time
from pathlib import Path
import mia_batch
with mia_batch.Run(Path(sys.argv[1])).held():
    print(flush=True)
    time.sleep(600)
"""


def test_a_live_run_holds_its_folder_and_a_killed_one_does_not(copied):
    settings, run = copied
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, run.folder], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(mia_batch.RunFolderError, match="is held by another live run"):
            mia_batch.audit(**settings)
        holder.kill()
    wait_until_gone(holder.pid)
    assert (run.folder / ".lock").exists()
    assert mia_batch.audit(**settings)["scores"].height == 8


class Killed(BaseException):
    """Ends a run as SIGKILL would: nothing catches it."""


@pytest.mark.parametrize("table", ["scores", "unscored", "metrics"])
def test_a_run_killed_while_it_scored_leaves_no_mixture(copied, monkeypatch, table):
    settings, run = copied
    before = contents(run)
    sink = tables.sink

    def sink_and_die(frame, path, schema):
        sink(frame, path, schema)
        if path.stem == table:
            raise Killed

    for module in (scores, verdicts, tables):  # sink_frames has it from there
        monkeypatch.setattr(module, "sink", sink_and_die)
    with pytest.raises(Killed):
        mia_batch.audit(**settings | {"samples": 1})
    monkeypatch.undo()
    mia_batch.audit(**settings)
    assert contents(run) == before


def test_other_columns_of_the_same_corpus_make_other_tables(copied, tmp_path):
    settings, _ = copied
    corpus = pl.read_parquet(settings["input"]).rename({"member": "truth"})
    corpus.write_parquet(tmp_path / "corpus.parquet")
    settings = settings | {"input": str(tmp_path / "corpus.parquet")}
    assert mia_batch.audit(**settings)["metrics"].is_empty()
    assert mia_batch.audit(**settings, member_column="truth")["metrics"].height > 0
    assert mia_batch.audit(**settings)["metrics"].is_empty()
