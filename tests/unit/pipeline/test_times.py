"""Times of stages: added up over calls, also of those that stop on their way."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mia_batch.pipeline import manifest as times
from mia_batch.pipeline import rescore
from mia_batch.pipeline.manifest import Manifest
from mia_batch.pipeline.run import Run
from tests.audits import audit_books, write_books


@pytest.fixture
def called(tmp_path, monkeypatch):
    """Take steps of stages, each in two seconds; the manifest is stored before as it is."""
    clock, days = iter(range(0, 1000, 2)), iter(f"day {number}" for number in range(1, 9))
    monkeypatch.setattr("mia_batch.pipeline.manifest.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(times, "_now", lambda: next(days))

    def call(*steps, **content):
        manifest = Manifest(evidence={"x": 1}, **content)
        audit: Any = SimpleNamespace(manifest=manifest, turn=nullcontext())
        audit.run = Run(tmp_path)
        audit.manifest.write(tmp_path)
        named: Any = [(SimpleNamespace(name=name), step) for name, step in steps]
        times.run_timed(audit, named)
        return audit.manifest.times

    return call


def stop():
    raise KeyboardInterrupt


def test_steps_of_a_stage_are_added_up_to_those_of_earlier_calls(called):
    steps = [(name, lambda: None) for name in ("a", "b", "a")]
    assert called(*steps) == {"begin": "day 1", "end": "day 2", "seconds": {"a": 4.0, "b": 2.0}}
    before = {"begin": "day 0", "end": "day 0", "seconds": {"a": 1.5, "c": 1.0}}
    found = called(*steps, times=before, made={"a": 1})
    seconds = {"a": 5.5, "b": 2.0, "c": 1.0}
    assert found == {"begin": "day 0", "end": "day 3", "seconds": seconds}


def test_what_stops_on_its_way_is_stored_without_what_it_had_in_mind(called, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        called(("a", lambda: None), ("b", stop), made={"a": 1})
    stored = Manifest.of(tmp_path)
    assert stored is not None
    assert stored.times == {"end": "day 1", "seconds": {"a": 2.0, "b": 2.0}}


def test_a_finished_run_stays_as_it_is(called, tmp_path):
    custody = {"root": "00"}
    assert called(("a", lambda: None), made={"a": 1}, custody=custody) == {}
    with pytest.raises(KeyboardInterrupt):
        called(("a", stop), made={"a": 1}, custody=custody)
    stored = Manifest.of(tmp_path)
    assert stored is not None
    assert (stored.custody, stored.times) == (custody, {})


def test_times_are_kept_while_nothing_changes_and_added_up_when_something_does(
    tmp_path, monkeypatch
):
    write_books(tmp_path)
    clock = iter(range(1000))
    monkeypatch.setattr("mia_batch.pipeline.manifest.time.monotonic", lambda: next(clock))
    days = iter(f"2026-01-{day:02}" for day in range(1, 32))
    monkeypatch.setattr(times, "_now", lambda: next(days))
    first = audit_books(tmp_path / "run", tmp_path).manifest
    assert first.times["seconds"]["scores"] == 2.0
    assert (first.times["begin"], first.times["end"]) == ("2026-01-01", "2026-01-02")
    assert first.requests == {}
    assert audit_books(tmp_path / "run", tmp_path).manifest == first
    later = rescore(tmp_path / "run", attacks=["samia_matched_v1"]).manifest.times
    assert later["seconds"]["scores"] == 4.0
    assert later["seconds"]["targets"] == 3.0
    assert (later["begin"], later["end"]) == ("2026-01-01", "2026-01-03")
    manifest = Run(tmp_path / "run").manifest
    manifest.times = {}  # as of an older version
    manifest.write(tmp_path / "run")
    older = rescore(tmp_path / "run", attacks=["samia_matched_n2_v1"]).manifest.times
    assert older["end"] == "2026-01-04"
    assert "begin" not in older


def test_a_model_of_this_machine_has_no_tools_and_its_times(small_audit):
    _, run = small_audit
    found = run.manifest.requests
    assert run.manifest.times["begin"] <= found["times"]["first"] <= found["times"]["last"]
    assert found["endpoint"] is None
    assert found["tools"].startswith("none: the model ran on this machine")
