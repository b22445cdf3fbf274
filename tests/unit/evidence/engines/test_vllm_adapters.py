"""LoRA adapters in vLLM, beside the weights of their base."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mia_batch.errors import EngineError
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import Decoding, EngineSpec
from tests.adapters import save_adapter, save_merged
from tests.engine_conformance import (
    exact_logprobs,
    ids,
    outputs,
    prompts,
    request,
    text_request,
    texts,
    token_values,
)
from tests.unit.evidence.engines.test_adapted import greedy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(scope="module")
def adapter(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a tokenizer of its own."""
    return save_adapter(tmp_path_factory.mktemp("lora"), checkpoint, tokenizer=False)


@pytest.fixture(scope="module")
def merged(checkpoint: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_merged(tmp_path_factory.mktemp("merged"), checkpoint, adapter)


@pytest.fixture
def spec(adapter: Path) -> EngineSpec:
    return EngineSpec(
        engine="vllm",
        kind="samples",
        model=str(adapter),
        decoding=Decoding(temperature=0),
        engine_args={"kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 16},
    )


def test_log_probabilities_are_those_of_the_merged_model(
    spec: EngineSpec, checkpoint: Path, merged: Path, tmp_path: Path
):
    asked = texts(12)
    spec = replace(spec, kind="logprobs")
    with EngineProcess.start(spec, log=tmp_path / "engine.log") as engine:
        found = token_values(engine, (text_request(i, each) for i, each in enumerate(asked)))
    for i, token_ids in enumerate(asked):
        own = (range(len(token_ids) - 1), token_ids[1:])
        exact = exact_logprobs(merged, token_ids)[own]
        np.testing.assert_allclose(found[i]["logprob"], exact, rtol=1e-5, atol=1e-5)
        base = exact_logprobs(checkpoint, token_ids)[own]
        assert np.abs(found[i]["logprob"] - base).max() > 0.1


def test_samples_are_those_of_the_merged_model(
    spec: EngineSpec, checkpoint: Path, merged: Path, tmp_path: Path
):
    starts = prompts(8)
    with EngineProcess.start(spec, log=tmp_path / "engine.log") as engine:
        asked = (request(i, each, max_tokens=12) for i, each in enumerate(starts))
        found = [ids(given[0]) for given in outputs(engine, asked).values()]
    assert found == greedy(merged, starts) != greedy(checkpoint, starts)


def test_weights_that_cannot_be_read_are_named_at_the_start(
    spec: EngineSpec, checkpoint: Path, tmp_path: Path
):
    broken = save_adapter(tmp_path / "broken", checkpoint)
    file = broken / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(EngineError, match=r"vLLM cannot start with .*broken.*; take engine transf"):
        EngineProcess.start(replace(spec, model=str(broken)), log=tmp_path / "engine.log")
