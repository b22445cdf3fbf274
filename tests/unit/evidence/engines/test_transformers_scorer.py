from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engine import Decoding, EngineSpec
from mia_batch.evidence.engines.transformers_scorer import TransformersScorer
from mia_batch.evidence.process import ScorerProcess
from mia_batch.evidence.scorer import Scoring
from tests.checkpoints import BOS_ID
from tests.scorer_laws import ScorerLaws, exact_logprobs, text_request, texts, token_scores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mia_batch.evidence.scorer import ScoreResult

pytestmark = pytest.mark.usefixtures("one_thread")

EVERYTHING = Scoring(moments=True, rank=True, kept_mass=True, head_bytes=2 << 20)
TOP_K = 20


@pytest.fixture(scope="module")
def transformers_scorer(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScorerProcess]:
    spec = EngineSpec(
        engine="transformers",
        model=str(checkpoint),
        decoding=Decoding(top_k=TOP_K),
        scoring=EVERYTHING,
        engine_args={"batch_size": 16},
    )
    with ScorerProcess.start(spec, log=tmp_path_factory.mktemp("log") / "engine.log") as scorer:
        yield scorer


def started(checkpoint: Path, **changes: Any) -> TransformersScorer:
    changes = {"scoring": Scoring(), **changes}
    return TransformersScorer(EngineSpec(engine="transformers", model=str(checkpoint), **changes))


def all_results(scorer: TransformersScorer, n: int) -> dict[int, ScoreResult]:
    found: dict[int, ScoreResult] = {}
    while len(found) < n:
        found |= {result.request_id: result for result in scorer.step()}
    return found


class TestTransformersScorer(ScorerLaws):
    @pytest.fixture
    def scorer(self, transformers_scorer: ScorerProcess) -> ScorerProcess:
        return transformers_scorer


def test_moments_ranks_and_kept_mass_are_those_of_float64(
    checkpoint: Path, transformers_scorer: ScorerProcess
):
    asked = texts(30)
    requests = [text_request(i, ids) for i, ids in enumerate(asked)]
    n_ranks = n_other = 0
    for i, scores in token_scores(transformers_scorer, requests).items():
        exact = exact_logprobs(checkpoint, asked[i])
        p = np.exp(exact)
        mean = (p * exact).sum(axis=1)
        variance = (p * (exact - mean[:, None]) ** 2).sum(axis=1)
        own = exact[range(len(exact)), asked[i][1:]]
        likeliest = np.sort(exact, axis=1)[:, -TOP_K:]
        kept = np.where(own >= likeliest[:, 0], logsumexp(likeliest, axis=1), np.nan)
        rank = 1 + (exact > own[:, None]).sum(axis=1)
        assert scores.mean is not None
        assert scores.variance is not None
        assert scores.kept_mass is not None
        assert scores.rank is not None
        np.testing.assert_allclose(scores.mean, mean, rtol=0, atol=1e-4)
        np.testing.assert_allclose(scores.variance, variance, rtol=0, atol=1e-4)
        np.testing.assert_allclose(scores.kept_mass, kept, rtol=1e-6, atol=1e-5)
        assert scores.rank.dtype == np.uint32
        n_ranks += len(rank)
        n_other += int((scores.rank != rank).sum())
    assert n_other <= 0.01 * n_ranks  # two logits closer than float32 can tell


def test_what_is_not_asked_for_is_not_there(checkpoint: Path):
    scorer = started(checkpoint)
    scorer.submit(text_request(0, [BOS_ID, 50]))
    scores = all_results(scorer, 1)[0].scores
    assert scores is not None
    assert (scores.mean, scores.variance, scores.rank, scores.kept_mass) == (None,) * 4


def test_the_smallest_head_memory_still_scores_one_token_at_a_time(
    checkpoint: Path, transformers_scorer: ScorerProcess
):
    scorer = started(checkpoint, scoring=Scoring(head_bytes=1))
    request = text_request(0, texts(4)[3])
    scorer.submit(request)
    scores = all_results(scorer, 1)[0].scores
    assert scores is not None
    expected = token_scores(transformers_scorer, [request])[0].logprob
    np.testing.assert_allclose(scores.logprob, expected, rtol=1e-6, atol=1e-5)


def test_each_text_gets_the_numbers_it_wants_and_no_others(checkpoint: Path):
    scorer = started(checkpoint, scoring=Scoring(moments=True, rank=True))
    plain, moments, rank = frozenset[str](), frozenset({"moments", "kept_mass"}), {"rank"}
    wishes = [plain, moments, frozenset(rank), None] * 2
    for number, (ids, wanted) in enumerate(zip(texts(8), wishes, strict=True)):
        scorer.submit(replace(text_request(number, ids), wanted=wanted))
    found = all_results(scorer, 8)
    for number, wanted in enumerate(wishes):
        scores = found[number].scores
        assert scores is not None
        given = {
            name
            for name in ("mean", "variance", "rank", "kept_mass")
            if getattr(scores, name) is not None
        }
        expected = {"mean", "variance"} if wanted is None or "moments" in wanted else set()
        assert given == expected | ({"rank"} if wanted is None or "rank" in wanted else set())


def test_when_memory_runs_out_batches_are_halved_and_nothing_is_lost(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, transformers_scorer: ScorerProcess
):
    scorer = started(checkpoint, engine_args={"batch_size": 8})
    tried: list[int] = []

    def score(batch: list[Any], scoring: Scoring) -> Any:
        tried.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError
        return TransformersScorer._score(scorer, batch, scoring)

    monkeypatch.setattr(scorer, "_score", score)
    requests = [text_request(i, ids) for i, ids in enumerate(texts(8))]
    for each in requests:
        scorer.submit(each)
    found = all_results(scorer, 8)
    assert tried[:3] == [8, 4, 2]
    for key, expected in token_scores(transformers_scorer, requests).items():
        scores = found[key].scores
        assert scores is not None
        np.testing.assert_allclose(scores.logprob, expected.logprob, rtol=1e-6, atol=1e-5)


def test_memory_that_does_not_suffice_for_one_text_ends_the_scorer(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    scorer = started(checkpoint)

    def score(_: list[Any], __: Scoring) -> Any:
        msg = "[enforce fail] DefaultCPUAllocator: can't allocate memory"
        raise RuntimeError(msg)

    monkeypatch.setattr(scorer, "_score", score)
    for i in range(2):
        scorer.submit(text_request(i, [BOS_ID, 50, 51]))
    assert scorer.step() == []
    with pytest.raises(EngineError, match=r"one text of 3 tokens; set a smaller"):
        scorer.step()


def test_errors_other_than_memory_are_not_hidden(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    scorer = started(checkpoint)

    def score(_: list[Any], __: Scoring) -> Any:
        msg = "a kernel is missing"
        raise RuntimeError(msg)

    monkeypatch.setattr(scorer, "_score", score)
    scorer.submit(text_request(0, [BOS_ID, 50]))
    with pytest.raises(RuntimeError, match="a kernel is missing"):
        scorer.step()


def test_weights_that_are_no_numbers_fail_each_text_with_a_reason(checkpoint: Path, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    torch.nn.init.constant_(model.lm_head.weight[7], torch.nan)
    model.save_pretrained(tmp_path)
    scorer = started(tmp_path)
    scorer.submit(text_request(0, [BOS_ID, 50]))
    (result,) = all_results(scorer, 1).values()
    assert result.scores is None
    assert result.error is not None
    assert "not a finite number" in result.error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensor_parallel_size": 2}, "'tensor_parallel_size': .* engine vllm"),
        ({"engine_args": {"batch_size": 0}}, "'engine_arg': batch_size is 0"),
        (
            {"scoring": Scoring(kept_mass=True), "decoding": Decoding(temperature=0.5)},
            "'temperature': .* leave the setting at 1",
        ),
    ],
)
def test_a_wrong_setting_is_named(checkpoint: Path, changes: dict[str, Any], words: str):
    with pytest.raises(SettingsError, match=words):
        started(checkpoint, **changes)
