from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import EngineSpec
from tests.architectures import saved
from tests.checkpoints import BOS_ID, CONTEXT, change, times
from tests.engine_conformance import (
    LogprobsConformance,
    SamplesConformance,
    answers,
    exact_logprobs,
    outputs,
    request,
    text_request,
    token_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

NAN = float("nan")
SMALL = {"kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 16}


@pytest.fixture(scope="module")
def vllm_engine(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    spec = EngineSpec(engine="vllm", kind="samples", model=str(checkpoint), engine_args=SMALL)
    with EngineProcess.start(spec, log=tmp_path_factory.mktemp("log") / "engine.log") as engine:
        yield engine


class TestSamples(SamplesConformance):
    @pytest.fixture
    def engine(self, vllm_engine: EngineProcess) -> EngineProcess:
        return vllm_engine


@pytest.fixture(scope="module")
def vllm_logprobs(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    """It takes most texts in pieces, of about 50 tokens, and does not cache prefixes."""
    spec = EngineSpec(
        engine="vllm",
        kind="logprobs",
        model=str(checkpoint),
        logits_bytes=50 * 12 * 600,
        engine_args={**SMALL, "enable_prefix_caching": True},
    )
    with EngineProcess.start(spec, log=tmp_path_factory.mktemp("log") / "engine.log") as engine:
        yield engine


class TestLogprobs(LogprobsConformance):
    context = CONTEXT - 1  # vLLM always draws a token
    rtol = 1e-5

    @pytest.fixture
    def engine(self, vllm_logprobs: EngineProcess) -> EngineProcess:
        return vllm_logprobs

    def test_noise_is_refused_and_never_left_out(self, engine: EngineProcess):
        asked = [text_request(0, [BOS_ID, 50, 51], noise=0.1), text_request(1, [BOS_ID, 50, 51])]
        noisy, plain = answers(engine, asked).values()
        assert noisy.error == "engine vllm cannot compute noise on embeddings"
        assert plain.error is None


WRONG: dict[str, dict[str, Any]] = {
    "unknown argument": {"engine_args": {"max_model_length": 9}},
    "argument out of range": {"engine_args": {**SMALL, "max_model_len": 10**6}},
    "no room for one sequence": {"engine_args": {**SMALL, "kv_cache_memory_bytes": 1}},
    "too hot": {"decoding": {"temperature": 3.0}},
    "too cold": {"decoding": {"temperature": 0.001}},
    "unknown column": {"kind": "logprobs", "columns": ["vocabulary_mean"]},
    "weights that are no numbers": {"engine_args": SMALL, "changed": (NAN, "1.mlp.up_proj")},
    "head that is no number": {
        "engine_args": SMALL,
        "kind": "logprobs",
        "changed": (NAN, "lm_head"),
    },
    "weights too large": {
        "engine_args": SMALL,
        "dtype": "float16",
        "changed": (1e6, "1.mlp.up_proj"),
    },
    "values too large": {
        "engine_args": SMALL,
        "kind": "logprobs",
        "dtype": "float16",
        "changed": (3e4, "0.mlp.up", "0.mlp.down"),
    },
}
"""Specifications; ``changed``: the weights are, by a factor."""


@pytest.fixture(scope="module")
def said(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """What vLLM's engine says to each wrong specification."""
    answer = tmp_path_factory.mktemp("refusals") / "said.json"
    specifications = []
    for number, wrong in enumerate(WRONG.values()):
        model = shutil.copytree(checkpoint, answer.with_name(f"model {number}"))
        if "changed" in wrong:
            change(model, times(*wrong["changed"]))
        given = {name: value for name, value in wrong.items() if name != "changed"}
        specifications.append({"model": str(model), **given})
    subprocess.run(
        [
            sys.executable,
            Path(__file__).with_name("refusals.py"),
            json.dumps(specifications),
            answer,
        ],
        check=True,
        capture_output=True,
        env={
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "OMP_NUM_THREADS": "1",
            "TORCH_COMPILE_DISABLE": "1",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        },
    )
    return dict(zip(WRONG, json.loads(answer.read_text()), strict=True))


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ("unknown argument", "SettingsError", ["'engine_arg'", "did you mean 'max_model_len'?"]),
        ("argument out of range", "EngineError", ["max_model_len (1000000)"]),
        ("no room for one sequence", "EngineError", ["memory", "set a smaller max_model_len"]),
        ("too hot", "SettingsError", ["temperature must be in [0, 2]"]),
        ("too cold", "SettingsError", ["'temperature'", "would raise 0.001 to 0.01"]),
        ("unknown column", "SettingsError", ["mean and variance", "; take engine transformers"]),
        (
            "weights that are no numbers",
            "SettingsError",
            ["not finite numbers (NaN, infinity) in model.layers.1.mlp.up_proj.weight; give anoth"],
        ),
        (
            "head that is no number",
            "SettingsError",
            ["not finite numbers (NaN, infinity) in lm_head.weight; give another checkpoint"],
        ),
        (
            "weights too large",
            "SettingsError",
            ["'dtype': ", " has or computes values too large for float16; take bfloat16 or f"],
        ),
        (
            "values too large",
            "SettingsError",
            ["'dtype': ", " computes values too large for float16"],
        ),
    ],
)
def test_a_wrong_specification_gets_one_sentence_with_its_cause(
    said: dict[str, Any], wrong: str, kind: str, words: list[str]
):
    assert said[wrong][0] == kind
    assert "\n" not in said[wrong][1]
    for word in words:
        assert word in said[wrong][1]


def test_beginnings_of_a_text_get_the_same_answers_with_and_without_a_cache(
    vllm_engine: EngineProcess, checkpoint: Path, tmp_path: Path
):
    """Probes of a text share its beginning; all at once, one by one, and without a cache."""
    whole = [BOS_ID, *(7 * j % 500 + 40 for j in range(220))]
    asked = [
        replace(request(number, whole[:length], max_tokens=4), greedy=number % 2 == 0)
        for number, length in enumerate(range(220, 20, -20))
    ]
    wanted = outputs(vllm_engine, asked)
    for each in reversed(asked):
        assert outputs(vllm_engine, [each])[each.request_id] == wanted[each.request_id]
    without = EngineSpec(
        engine="vllm",
        kind="samples",
        model=str(checkpoint),
        engine_args={**SMALL, "enable_prefix_caching": False},
    )
    with EngineProcess.start(without, log=tmp_path / "engine.log") as engine:
        assert outputs(engine, asked) == wanted


@pytest.mark.parametrize("architecture", ["Gemma2", "GPT2", "Mixtral"])
def test_other_architectures_pass(architecture: str, tmp_path: Path):
    model = saved(tmp_path / "model", architecture)
    token_ids = [BOS_ID, *(7 * j % 500 + 40 for j in range(40))]
    spec = EngineSpec(engine="vllm", kind="logprobs", model=str(model), engine_args=SMALL)
    with EngineProcess.start(spec, log=tmp_path / "engine.log") as engine:
        (found,) = token_values(engine, [text_request(0, token_ids)]).values()
    exact = exact_logprobs(model, token_ids)[range(40), token_ids[1:]]
    np.testing.assert_allclose(found["logprob"], exact, rtol=1e-5, atol=1e-4)
