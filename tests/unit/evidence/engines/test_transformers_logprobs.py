from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines.transformers import TransformersLogprobs
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import Decoding, EngineSpec
from tests.checkpoints import BOS_ID
from tests.engine_conformance import (
    LogprobsConformance,
    exact_logprobs,
    text_request,
    texts,
    token_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mia_batch.evidence.request import Answer

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY = frozenset({"vocabulary_mean", "vocabulary_variance"})
EVERYTHING = VOCABULARY | {"rank", "support_mass"}
TOP_K = 20


@pytest.fixture(scope="module")
def transformers_logprobs(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    spec = EngineSpec(
        engine="transformers",
        model=str(checkpoint),
        kind="logprobs",
        decoding=Decoding(top_k=TOP_K),
        columns=EVERYTHING,
        logits_bytes=2 << 20,
        engine_args={"batch_size": 16},
    )
    with EngineProcess.start(spec, log=tmp_path_factory.mktemp("log") / "engine.log") as engine:
        yield engine


def started(checkpoint: Path, **changes: Any) -> TransformersLogprobs:
    return TransformersLogprobs(
        EngineSpec(engine="transformers", kind="logprobs", model=str(checkpoint), **changes)
    )


def all_results(engine: TransformersLogprobs, n: int) -> dict[int, Answer]:
    found: dict[int, Answer] = {}
    while len(found) < n:
        found |= {result.request_id: result for result in engine.step()}
    return found


class TestTransformersLogprobs(LogprobsConformance):
    @pytest.fixture
    def engine(self, transformers_logprobs: EngineProcess) -> EngineProcess:
        return transformers_logprobs


def test_mean_variance_ranks_and_support_mass_are_those_of_float64(
    checkpoint: Path, transformers_logprobs: EngineProcess
):
    asked = texts(30)
    requests = [text_request(i, ids, columns=EVERYTHING) for i, ids in enumerate(asked)]
    n_ranks = n_other = 0
    for i, values in token_values(transformers_logprobs, requests).items():
        exact = exact_logprobs(checkpoint, asked[i])
        p = np.exp(exact)
        mean = (p * exact).sum(axis=1)
        variance = (p * (exact - mean[:, None]) ** 2).sum(axis=1)
        own = exact[range(len(exact)), asked[i][1:]]
        most_likely = np.sort(exact, axis=1)[:, -TOP_K:]
        kept = np.where(own >= most_likely[:, 0], logsumexp(most_likely, axis=1), np.nan)
        rank = 1 + (exact > own[:, None]).sum(axis=1)
        np.testing.assert_allclose(values["vocabulary_mean"], mean, rtol=0, atol=1e-4)
        np.testing.assert_allclose(values["vocabulary_variance"], variance, rtol=0, atol=1e-4)
        np.testing.assert_allclose(values["support_mass"], kept, rtol=1e-6, atol=1e-5)
        assert values["rank"].dtype == np.uint32
        n_ranks += len(rank)
        n_other += int((values["rank"] != rank).sum())
    assert n_other <= 0.01 * n_ranks  # two logits closer than float32 can tell


def test_what_is_not_asked_for_is_not_there(checkpoint: Path):
    engine = started(checkpoint)
    engine.submit(text_request(0, [BOS_ID, 50]))
    assert (all_results(engine, 1)[0].tokens or {}).keys() == {"logprob"}


def test_the_smallest_logits_memory_still_takes_one_token_at_a_time(
    checkpoint: Path, transformers_logprobs: EngineProcess
):
    engine = started(checkpoint, logits_bytes=1)
    request = text_request(0, texts(4)[3])
    engine.submit(request)
    tokens = all_results(engine, 1)[0].tokens
    assert tokens is not None
    expected = token_values(transformers_logprobs, [request])[0]["logprob"]
    np.testing.assert_allclose(tokens["logprob"].tolist(), expected, rtol=1e-6, atol=1e-5)


def test_each_text_gets_the_numbers_it_wants_and_no_others(checkpoint: Path):
    engine = started(checkpoint, columns=VOCABULARY | {"rank"})
    wishes = [frozenset[str](), frozenset({"vocabulary_mean", "support_mass"}), {"rank"}] * 2
    for number, (ids, wanted) in enumerate(zip(texts(6), wishes, strict=True)):
        engine.submit(text_request(number, ids, columns=frozenset(wanted)))
    found = all_results(engine, 6)
    for number, wanted in enumerate(wishes):
        tokens = found[number].tokens
        assert tokens is not None
        both = VOCABULARY if "vocabulary_mean" in wanted else frozenset()
        assert tokens.keys() == {"logprob"} | both | ({"rank"} & wanted)


def test_when_memory_runs_out_batches_are_halved_and_nothing_is_lost(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, transformers_logprobs: EngineProcess
):
    engine = started(checkpoint, engine_args={"batch_size": 8})
    tried: list[int] = []

    def answer(batch: list[Any], columns: frozenset[str]) -> Any:
        tried.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError
        return TransformersLogprobs._answers(engine, batch, columns)

    monkeypatch.setattr(engine, "_answers", answer)
    requests = [text_request(i, ids) for i, ids in enumerate(texts(8))]
    for each in requests:
        engine.submit(each)
    found = all_results(engine, 8)
    assert tried[:3] == [8, 4, 2]
    for key, expected in token_values(transformers_logprobs, requests).items():
        tokens = found[key].tokens
        assert tokens is not None
        np.testing.assert_allclose(
            tokens["logprob"].tolist(), expected["logprob"], rtol=1e-6, atol=1e-5
        )


def test_memory_that_does_not_suffice_for_one_text_ends_the_engine(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    engine = started(checkpoint)

    def fail(_: list[Any], __: frozenset[str]) -> Any:
        msg = "[enforce fail] DefaultCPUAllocator: can't allocate memory"
        raise RuntimeError(msg)

    monkeypatch.setattr(engine, "_answers", fail)
    for i in range(2):
        engine.submit(text_request(i, [BOS_ID, 50, 51]))
    assert engine.step() == []
    with pytest.raises(EngineError, match=r"one text of 3 tokens; set a smaller"):
        engine.step()


def test_errors_other_than_memory_are_not_hidden(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    engine = started(checkpoint)

    def fail(_: list[Any], __: frozenset[str]) -> Any:
        msg = "a kernel is missing"
        raise RuntimeError(msg)

    monkeypatch.setattr(engine, "_answers", fail)
    engine.submit(text_request(0, [BOS_ID, 50]))
    with pytest.raises(RuntimeError, match="a kernel is missing"):
        engine.step()


def test_weights_that_are_no_numbers_fail_each_text_with_a_reason(checkpoint: Path, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    torch.nn.init.constant_(model.model.embed_tokens.weight[50], torch.nan)
    model.save_pretrained(tmp_path)
    engine = started(tmp_path)
    engine.submit(text_request(0, [BOS_ID, 50]))
    (result,) = all_results(engine, 1).values()
    assert result.tokens is None
    assert result.error is not None
    assert "not a finite number" in result.error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensor_parallel_size": 2}, "'tensor_parallel_size': .* engine vllm"),
        ({"engine_args": {"batch_size": 0}}, "'engine_arg': batch_size is 0"),
        (
            {"columns": frozenset({"support_mass"}), "decoding": Decoding(temperature=0.5)},
            "'temperature': .* leave the setting at 1",
        ),
    ],
)
def test_a_wrong_setting_is_named(checkpoint: Path, changes: dict[str, Any], words: str):
    with pytest.raises(SettingsError, match=words):
        started(checkpoint, **changes)
