"""The vLLM engine, and LoRA adapters in it."""

import shutil
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from mia_batch.errors import EngineError, MiaBatchError, SettingsError
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import Decoding, EngineSpec
from tests import engine_conformance as conformance
from tests.adapters import save_adapter, save_merged
from tests.architectures import saved
from tests.checkpoints import BOS_ID, CONTEXT, change, times
from tests.unit.evidence.engines.test_transformers import greedy

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.usefixtures("one_thread"),
]
NAN = float("nan")
OTHERS = ("Gemma2", "GPT2")
SMALL = {"kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 16}


@pytest.fixture(scope="module")
def vllm_engine(checkpoint, tmp_path_factory):
    spec = EngineSpec(
        engine="vllm", kind="samples", model=str(checkpoint), engine_args=SMALL
    )
    with EngineProcess(
        spec, log=tmp_path_factory.mktemp("log") / "engine.log"
    ) as engine:
        yield engine


class TestSamples(conformance.SamplesConformance):
    @pytest.fixture
    def engine(self, vllm_engine):
        return vllm_engine


@pytest.fixture(scope="module")
def vllm_logprobs(checkpoint, tmp_path_factory):
    """It takes most texts in pieces, of about 50 tokens, and does not cache prefixes."""
    spec = EngineSpec(
        engine="vllm",
        kind="logprobs",
        model=str(checkpoint),
        logits_bytes=50 * 12 * 600,
        engine_args={**SMALL, "enable_prefix_caching": True},
    )
    with EngineProcess(
        spec, log=tmp_path_factory.mktemp("log") / "engine.log"
    ) as engine:
        yield engine


class TestLogprobs(conformance.LogprobsConformance):
    context = CONTEXT - 1  # vLLM always draws a token
    rtol = 1e-5

    @pytest.fixture
    def engine(self, vllm_logprobs):
        return vllm_logprobs

    def test_noise_is_refused_and_never_left_out(self, engine):
        requests = [
            conformance.text_request(0, [BOS_ID, 50, 51], noise=0.1),
            conformance.text_request(1, [BOS_ID, 50, 51]),
        ]
        noisy, plain = conformance.answers(engine, requests).values()
        assert noisy.error == "engine vllm cannot compute noise on embeddings"
        assert plain.error is None


FINITE = "not finite numbers (NaN, infinity) in"
LARGE = " computes values too large for float16"
WRONG: list[tuple[dict[str, Any], type[MiaBatchError], list[str]]] = [
    (
        {"engine_args": {"max_model_length": 9}},
        SettingsError,
        ["engine_arg", "did you mean 'max_model_len'?"],
    ),
    (
        {"engine_args": {**SMALL, "max_model_len": 10**6}},
        EngineError,
        ["max_model_len (1000000)"],
    ),
    (
        {"engine_args": {**SMALL, "kv_cache_memory_bytes": 1}},
        EngineError,
        ["memory", "set a smaller max_model_len"],
    ),
    (
        {"decoding": Decoding(temperature=3.0)},
        SettingsError,
        ["temperature must be in [0, 2]"],
    ),
    (
        {"decoding": Decoding(temperature=0.001)},
        SettingsError,
        ["temperature", "raise 0.001 to 0"],
    ),
    (
        {"kind": "logprobs", "columns": frozenset({"vocabulary_mean"})},
        SettingsError,
        ["mean and variance", "; leave the setting engine at auto"],
    ),
    (
        {"changed": (NAN, "1.mlp.up_proj")},
        SettingsError,
        [f"{FINITE} model.layers.1.mlp.up_proj.weight; give anoth"],
    ),
    (
        {"kind": "logprobs", "changed": (NAN, "lm_head")},
        SettingsError,
        [f"{FINITE} lm_head.weight; give another checkpoint"],
    ),
    (
        {"dtype": "float16", "changed": (1e6, "1.mlp.up_proj")},
        SettingsError,
        ["dtype: ", f"{LARGE}; take bfloat16 or f"],
    ),
    (
        {
            "dtype": "float16",
            "kind": "logprobs",
            "changed": (3e4, "0.mlp.up", "0.mlp.down"),
        },
        SettingsError,
        ["dtype: ", LARGE],
    ),
]
"""Specifications (``changed``: the weights are, by a factor), and what is said of each."""


@pytest.mark.parametrize(("wrong", "kind", "words"), WRONG)
def test_a_wrong_specification_gets_one_sentence_with_its_cause(
    wrong, kind, words, checkpoint, tmp_path
):
    model = shutil.copytree(checkpoint, tmp_path / "model")
    spec_fields = {"kind": "samples", "model": str(model), "engine_args": SMALL} | wrong
    if changed := spec_fields.pop("changed", None):
        change(model, times(*changed))
    spec = EngineSpec(engine="vllm", **spec_fields)
    with pytest.raises(kind) as error, EngineProcess(spec, log=tmp_path / "engine.log"):
        pass
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    assert [word for word in words if word not in str(error.value)] == []


def test_beginnings_of_a_text_get_the_same_answers_with_and_without_a_cache(
    vllm_engine, checkpoint, tmp_path
):
    """Probes of a text share its beginning; all at once, one by one, and without a cache."""
    whole = [BOS_ID, *(7 * j % 500 + 40 for j in range(220))]
    requests = [
        replace(
            conformance.request(number, whole[:length], max_tokens=4),
            greedy=number % 2 == 0,
        )
        for number, length in enumerate(range(220, 20, -20))
    ]
    expected_outputs = conformance.outputs(vllm_engine, requests)
    for sample_request in reversed(requests):
        assert (
            conformance.outputs(vllm_engine, [sample_request])[
                sample_request.request_id
            ]
            == expected_outputs[sample_request.request_id]
        )
    without = EngineSpec(
        engine="vllm",
        kind="samples",
        model=str(checkpoint),
        engine_args={**SMALL, "enable_prefix_caching": False},
    )
    with EngineProcess(without, log=tmp_path / "engine.log") as engine:
        assert conformance.outputs(engine, requests) == expected_outputs


@pytest.mark.parametrize(
    "architecture",
    ["Mixtral", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)],
)
def test_other_architectures_pass(architecture, tmp_path):
    model = saved(tmp_path / "model", architecture)
    token_ids = [BOS_ID, *(7 * j % 500 + 40 for j in range(40))]
    spec = EngineSpec(
        engine="vllm", kind="logprobs", model=str(model), engine_args=SMALL
    )
    with EngineProcess(spec, log=tmp_path / "engine.log") as engine:
        (values_by_id,) = conformance.token_values(
            engine, [conformance.text_request(0, token_ids)]
        ).values()
    exact = conformance.exact_logprobs(model, token_ids)[range(40), token_ids[1:]]
    np.testing.assert_allclose(values_by_id["logprob"], exact, rtol=1e-5, atol=1e-4)


# LoRA adapters in vLLM, apart from the weights of their base.


@pytest.fixture(scope="module")
def adapter(checkpoint, tmp_path_factory):
    """Without a tokenizer of its own."""
    return save_adapter(tmp_path_factory.mktemp("lora"), checkpoint, tokenizer=False)


@pytest.fixture(scope="module")
def merged(checkpoint, adapter, tmp_path_factory):
    return save_merged(tmp_path_factory.mktemp("merged"), checkpoint, adapter)


@pytest.fixture
def start(adapter, tmp_path):
    """Start vLLM with an adapter, which decodes greedily."""

    def start(kind, model=adapter):
        greedily = Decoding(temperature=0)
        spec = EngineSpec(
            engine="vllm",
            kind=kind,
            model=str(model),
            decoding=greedily,
            engine_args=SMALL,
        )
        return EngineProcess(spec, log=tmp_path / "engine.log")

    return start


def test_log_probabilities_are_those_of_the_merged_model(start, checkpoint, merged):
    token_lists = conformance.texts(12)
    with start("logprobs") as engine:
        values_by_id = conformance.token_values(
            engine,
            (
                conformance.text_request(i, text_ids)
                for i, text_ids in enumerate(token_lists)
            ),
        )
    for i, token_ids in enumerate(token_lists):
        own_places = (range(len(token_ids) - 1), token_ids[1:])
        exact = conformance.exact_logprobs(merged, token_ids)[own_places]
        np.testing.assert_allclose(
            values_by_id[i]["logprob"], exact, rtol=1e-5, atol=1e-5
        )
        base = conformance.exact_logprobs(checkpoint, token_ids)[own_places]
        assert np.abs(values_by_id[i]["logprob"] - base).max() > 0.1


def test_samples_are_those_of_the_merged_model(start, checkpoint, merged):
    starts = conformance.prompts(8)
    with start("samples") as engine:
        requests = (
            conformance.request(i, prompt_ids, max_tokens=12)
            for i, prompt_ids in enumerate(starts)
        )
        adapter_outputs = [
            conformance.ids(output[0])
            for output in conformance.outputs(engine, requests).values()
        ]
    assert adapter_outputs == greedy(merged, starts) != greedy(checkpoint, starts)


def test_weights_that_cannot_be_read_are_named_at_the_start(
    start, checkpoint, tmp_path
):
    broken = save_adapter(tmp_path / "broken", checkpoint)
    file = broken / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(
        EngineError, match=r"vLLM cannot start with .*broken.*; take engine transf"
    ):
        start("samples", broken)
