from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from mia_batch.errors import EngineError
from mia_batch.evidence import worker
from mia_batch.evidence.engines import registry
from mia_batch.evidence.request import EngineSpec, EvidenceKind
from mia_batch.evidence.worker import _explain, _set_environment

if TYPE_CHECKING:
    from pathlib import Path


def raised(message: str, cause: Exception) -> EngineError:
    with pytest.raises(EngineError) as caught:
        raise EngineError(message) from cause
    return caught.value


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The process's environment, empty and without consequences."""
    values: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", values)
    return values


def test_one_accelerator_or_cpu_needs_no_further_process(environment: dict[str, str]):
    _set_environment(EngineSpec(engine="vllm", kind="samples", model="m"))
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"


def test_several_accelerators_need_processes(environment: dict[str, str]):
    _set_environment(EngineSpec(engine="vllm", kind="samples", model="m", tensor_parallel_size=2))
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment


@pytest.mark.parametrize("on_cpu", [True, False])
def test_an_engine_on_a_cpu_has_one_thread(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, on_cpu: bool
):
    monkeypatch.setattr(registry, "_ACCELERATORS", ("no such device",) if on_cpu else ("null",))
    _set_environment(EngineSpec(engine="transformers", kind="samples", model="m"))
    assert environment.get("OMP_NUM_THREADS") == ("1" if on_cpu else None)


@pytest.mark.parametrize(
    ("kind", "on_cpu", "compilers", "arguments", "disabled"),
    [
        ("samples", True, {"g++"}, {}, True),
        ("samples", True, {"g++"}, {"enforce_eager": False}, False),
        ("logprobs", False, {"clang++"}, {}, False),
        ("logprobs", False, set(), {}, True),
        ("samples", False, set(), {}, False),
    ],
)
def test_log_probabilities_are_not_compiled_on_a_cpu_or_without_a_compiler(
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    kind: EvidenceKind,
    on_cpu: bool,
    compilers: set[str],
    arguments: dict[str, Any],
    disabled: bool,
):
    monkeypatch.setattr(registry, "_ACCELERATORS", ("no such device",) if on_cpu else ("null",))
    monkeypatch.setattr(worker, "which", lambda name: name if name in compilers else None)
    spec = EngineSpec(engine="transformers", kind=kind, model="m", engine_args=arguments)
    _set_environment(spec)
    assert ("TORCH_COMPILE_DISABLE" in environment) == disabled


def test_what_the_user_set_stays(environment: dict[str, str]):
    environment["OMP_NUM_THREADS"] = "7"
    _set_environment(EngineSpec(engine="vllm", kind="samples", model="m"))
    assert environment["OMP_NUM_THREADS"] == "7"


def test_a_known_failure_keeps_its_sentence(tmp_path: Path):
    log = tmp_path / "engine.log"
    log.write_text("ValueError: of old\n")
    error = raised("out of memory; take less", ValueError("no room"))
    assert str(_explain(error, "vllm", str(log), 0)) == (
        f"out of memory; take less; the engine's log is {log}"
    )


def test_an_unknown_failure_names_engine_and_cause(tmp_path: Path):
    log = tmp_path / "engine.log"
    log.touch()
    assert str(_explain(KeyError("x"), "vllm", str(log), 0)) == (
        f"the vllm engine stopped (KeyError: 'x'); the engine's log is {log}"
    )


@pytest.mark.parametrize("words", ["See root cause above.", "See stack trace (above)"])
def test_a_cause_that_only_this_runs_log_names_is_fetched(tmp_path: Path, words: str):
    log = tmp_path / "engine.log"
    log.write_text("ValueError: of an older run\nValueError: of this run\n")
    error = raised("vLLM stopped", RuntimeError(words))
    start = len("ValueError: of an older run\n")
    assert str(_explain(error, "vllm", str(log), start)) == (
        f"vLLM stopped: ValueError: of this run; the engine's log is {log}"
    )
