"""Two engines, one distribution: vLLM's float64 sampler and ours draw the same tokens."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import pytest

from mia_batch.evidence.engines.transformers import TransformersSamples
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import Continuation, Decoding, EngineSpec, Request
from tests.checkpoints import HOSTILE, save_checkpoint
from tests.engine_conformance import outputs, prompts, request

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.usefixtures("one_thread"),
]

GREEDY = Decoding(temperature=0, top_k=40, top_p=0.9)


def asked(n: int) -> list[Request]:
    return [
        request(i, prompt, n=n, max_tokens=20 + i)
        for i, prompt in enumerate(prompts(24))
    ]


def by_vllm(
    model: Path,
    decoding: Decoding,
    n: int,
    log: Path,
    requests: list[Request] | None = None,
) -> dict[int, list[Continuation]]:
    arguments = {
        "kv_cache_memory_bytes": 64 << 20,
        "max_num_seqs": 64,
        "use_fp64_gumbel": True,
    }
    spec = EngineSpec(
        engine="vllm",
        kind="samples",
        model=str(model),
        decoding=decoding,
        engine_args=arguments,
    )
    with EngineProcess(spec, log=log) as engine:
        return outputs(engine, requests or asked(n))


def by_transformers(
    model: Path, decoding: Decoding, n: int, requests: list[Request] | None = None
) -> dict[int, list[Continuation]]:
    spec = EngineSpec(
        engine="transformers", kind="samples", model=str(model), decoding=decoding
    )
    return outputs(TransformersSamples(spec), requests or asked(n))


def agreeing(
    one: dict[int, list[Continuation]], other: dict[int, list[Continuation]]
) -> float:
    """Share of equal texts: where two tokens are nearly as likely, the last digits decide."""
    assert one.keys() == other.keys()
    pairs = (zip(one[key], other[key], strict=True) for key in one)
    return fmean(left == right for each in pairs for left, right in each)


@pytest.mark.parametrize(
    ("decoding", "n"),
    [
        pytest.param(Decoding(), 5, marks=pytest.mark.long),
        (Decoding(temperature=0.8, top_k=40, top_p=0.9), 5),
        pytest.param(GREEDY, 1, marks=pytest.mark.long),
    ],
    ids=["plain", "all", "greedy"],
)
def test_engines_draw_the_same_tokens_whatever_the_model_suggests(
    decoding: Decoding, n: int, tmp_path: Path
):
    plain = save_checkpoint(tmp_path / "plain")
    hostile = save_checkpoint(tmp_path / "hostile", HOSTILE)
    drawn = by_vllm(hostile, decoding, n, tmp_path / "engine.log")
    expected = by_transformers(plain, decoding, n)
    assert by_transformers(hostile, decoding, n) == expected
    assert agreeing(drawn, expected) > 0.9
    assert {output.finish_reason for found in drawn.values() for output in found} == {
        "stop",
        "length",
    }


def test_a_greedy_request_is_answered_greedily_among_others(tmp_path: Path):
    model = save_checkpoint(tmp_path / "model")
    mixed = [replace(each, greedy=each.request_id % 2 == 0) for each in asked(1)]
    greedy, drawn = (
        by_transformers(model, GREEDY, 1),
        by_transformers(model, Decoding(), 1),
    )
    wanted = {
        each.request_id: (greedy if each.greedy else drawn)[each.request_id]
        for each in mixed
    }
    assert agreeing(by_transformers(model, Decoding(), 1, mixed), wanted) > 0.9
    drawn_by_vllm = by_vllm(model, Decoding(), 1, tmp_path / "engine.log", mixed)
    assert agreeing(drawn_by_vllm, wanted) > 0.9
