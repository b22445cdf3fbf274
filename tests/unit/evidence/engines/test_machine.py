from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.evidence.engines import registry

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_container_leaves_what_it_has_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    monkeypatch.setattr(registry, "_CGROUP", tmp_path)
    assert registry.available_memory() == 2000


def test_a_container_without_a_limit_leaves_what_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    monkeypatch.setattr(registry, "_CGROUP", tmp_path)
    assert 2**24 < registry.available_memory() < 2**50


def test_a_machine_without_control_groups_has_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "_CGROUP", tmp_path)
    assert 2**24 < registry.available_memory() < 2**50
