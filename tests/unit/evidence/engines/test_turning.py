"""One engine that answers as several adapters of one base, one after the other."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mia_batch.errors import EngineError
from mia_batch.evidence.engines.registry import can_turn
from mia_batch.evidence.process import EngineProcess, KeptEngine
from mia_batch.evidence.request import EngineSpec
from tests.adapters import KINDS, save_adapter
from tests.engine_conformance import text_request, texts, token_values
from tests.processes import is_alive

if TYPE_CHECKING:
    from pathlib import Path

ASKED = texts(6)
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"batch_size": 1},
    "vllm": {"kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 1},
}
"""Texts by themselves: what stands in a batch changes the last digits."""


def spec(model: Path, engine: str = "transformers") -> EngineSpec:
    return EngineSpec(engine=engine, kind="logprobs", model=str(model), engine_args=ENGINES[engine])


def said(engine: EngineProcess) -> list[Any]:
    found = token_values(engine, (text_request(i, each) for i, each in enumerate(ASKED)))
    return [found[i]["logprob"] for i in range(len(ASKED))]


def alone(given: EngineSpec, log: Path) -> list[Any]:
    with EngineProcess.start(given, log=log) as engine:
        return said(engine)


def same(one: list[Any], other: list[Any]) -> bool:
    return all(map(np.array_equal, one, other))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


def assert_same_as_alone(engine: str, kind: str, checkpoint: Path, folder: Path) -> None:
    log = folder / "engine.log"
    specs = [
        spec(save_adapter(folder / str(seed), checkpoint, kind, seed=seed), engine)
        for seed in (1, 2)
    ]
    expected = [alone(each, log) for each in specs]
    assert not same(*expected)
    with closing(KeptEngine()) as kept:
        pids: set[int] = set()
        for number in (0, 1, 0):
            assert kept.serves(specs[number]) == bool(pids)
            with kept.lent(specs[number], log, keep=True) as process:
                assert same(said(process), expected[number])
                pids.add(process._process.pid)
    (pid,) = pids
    assert not is_alive(pid)


FEW = ("lora", "prefix")  # of weights, and of virtual tokens


@pytest.mark.parametrize(
    "kind",
    [*FEW, *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind not in FEW)],
)
def test_answers_are_those_of_an_engine_each_to_the_bit(
    kind: str, checkpoint: Path, tmp_path: Path
):
    assert_same_as_alone("transformers", kind, checkpoint, tmp_path)


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_answers_of_vllm_are_those_of_an_engine_each_to_the_bit(checkpoint: Path, tmp_path: Path):
    assert_same_as_alone("vllm", "lora", checkpoint, tmp_path)


def test_what_is_no_adapter_of_the_same_kind_starts_an_engine(checkpoint: Path, tmp_path: Path):
    one, other = (save_adapter(tmp_path / str(seed), checkpoint, seed=seed) for seed in (1, 2))
    assert can_turn(spec(one), spec(other))
    changes: list[dict[str, Any]] = [{"dtype": "float16"}, {"kind": "samples"}, {"engine": "vllm"}]
    for changed in changes:
        assert not can_turn(spec(one), replace(spec(other), **changed))
    samples = replace(spec(one), kind="samples")
    assert not can_turn(samples, replace(samples, model=str(other)))
    assert not can_turn(spec(one), spec(checkpoint))
    assert not can_turn(spec(checkpoint), spec(one))
    assert not can_turn(spec(one), spec(save_adapter(tmp_path / "ia3", checkpoint, "ia3")))


def test_an_engine_that_was_turned_and_ends_is_started_as_what_it_was(
    checkpoint: Path, tmp_path: Path, log: Path
):
    one, other = (save_adapter(tmp_path / str(seed), checkpoint, seed=seed) for seed in (1, 2))
    expected = alone(spec(other), log)
    with closing(KeptEngine()) as kept:
        with kept.lent(spec(one), log, keep=True) as first:
            pass
        with kept.lent(spec(other), log, keep=True) as engine:
            assert engine is first
            os.kill(engine._process.pid, signal.SIGKILL)
            with pytest.raises(EngineError, match="was killed"):
                said(engine)
            engine.restart()
            assert same(said(engine), expected)
            os.kill(engine._process.pid, signal.SIGKILL)
        with kept.lent(spec(one), log, keep=False) as engine:  # which lives no more
            assert engine is not first
        assert not kept.serves(spec(other))


def test_a_damaged_adapter_is_named_as_at_a_start(checkpoint: Path, tmp_path: Path, log: Path):
    one, other = (save_adapter(tmp_path / str(seed), checkpoint, seed=seed) for seed in (1, 2))
    file = other / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with closing(KeptEngine()) as kept:
        with kept.lent(spec(one), log, keep=True) as engine:
            pass
        with (
            pytest.raises(EngineError, match=r"the adapter .* cannot be put on"),
            kept.lent(spec(other), log, keep=True),
        ):
            pytest.fail("it was started")
        assert not is_alive(engine._process.pid)
        assert not kept.serves(spec(one))
