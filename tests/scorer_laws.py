"""What every scorer must do, as tests that run on any of them, and the slow twin they answer to."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mia_batch.evidence.scorer import ScoreRequest, ScoreResult
from tests.checkpoints import BOS_ID, CONTEXT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from mia_batch.evidence.process import ScorerProcess
    from mia_batch.evidence.scorer import TokenScores


def texts(n: int) -> list[list[int]]:
    """Texts of 2 to 200 tokens."""
    return [
        [BOS_ID, *((7 * i + 11 * j) % 500 + 40 for j in range(1 + i * 31 % 199))] for i in range(n)
    ]


def text_request(request_id: int, token_ids: list[int], first: int = 1) -> ScoreRequest:
    return ScoreRequest(request_id=request_id, token_ids=token_ids, first=first)


def score_results(
    scorer: ScorerProcess, requests: Iterable[ScoreRequest]
) -> dict[int, ScoreResult]:
    """Submit all requests, then wait for all answers; they come in any order, each once."""
    waiting = set()
    for each in requests:
        scorer.submit(each)
        waiting.add(each.request_id)
    found: dict[int, ScoreResult] = {}
    while waiting:
        for result in scorer.results():
            waiting.remove(result.request_id)
            found[result.request_id] = result
    return dict(sorted(found.items()))


def token_scores(scorer: ScorerProcess, requests: Iterable[ScoreRequest]) -> dict[int, TokenScores]:
    """Scores of requests none of which failed."""
    found = score_results(scorer, requests)
    assert [result.error for result in found.values() if result.error is not None] == []
    return {key: result.scores for key, result in found.items() if result.scores is not None}


@cache
def _model(checkpoint: Path, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype)


@torch.inference_mode()
def exact_logprobs(
    checkpoint: Path, token_ids: list[int], dtype: torch.dtype = torch.float32
) -> NDArray[np.float64]:
    """All log-probabilities after each token but the last: one text, in float64 from its logits on.

    The model runs in ``dtype``; float32 adds errors of its own before there are logits.
    """
    logits = _model(checkpoint, dtype)(torch.tensor([token_ids])).logits[0, :-1]
    found: NDArray[np.float64] = logits.double().log_softmax(-1).numpy()
    return found


class ScorerLaws:
    """Subclasses have a fixture ``scorer``: the checkpoint, on a CPU."""

    context = CONTEXT
    rtol = 1e-6  # beside 1e-5: the checkpoint's logits are larger than those of real models

    def test_a_started_scorer_says_what_it_is(self, scorer: ScorerProcess):
        assert (scorer.info.device, scorer.info.dtype) == ("cpu", "float32")
        assert (scorer.info.max_model_len, scorer.info.max_sequences) == (self.context, 16)

    @pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float64, 1e-4)])
    def test_log_probabilities_are_those_of_one_text_alone_in_float64(
        self, scorer: ScorerProcess, checkpoint: Path, dtype: torch.dtype, most: float
    ):
        asked = texts(40)
        found = token_scores(scorer, (text_request(i, ids) for i, ids in enumerate(asked)))
        for i, ids in enumerate(asked):
            exact = exact_logprobs(checkpoint, ids, dtype)[range(len(ids) - 1), ids[1:]]
            assert found[i].logprob.dtype == np.float32
            np.testing.assert_allclose(found[i].logprob, exact, rtol=self.rtol, atol=most)

    def test_scores_depend_neither_on_order_nor_on_what_else_is_in_flight(
        self, scorer: ScorerProcess
    ):
        requests = [text_request(i, ids) for i, ids in enumerate(texts(20))]
        together = token_scores(scorer, requests)
        turned = token_scores(scorer, requests[::-1])
        for each in requests:
            (alone,) = token_scores(scorer, [each]).values()
            for other in (together, turned):
                logprob = other[each.request_id].logprob
                np.testing.assert_allclose(logprob, alone.logprob, rtol=self.rtol, atol=1e-5)

    def test_tokens_before_the_first_are_context_alone(self, scorer: ScorerProcess):
        ids = texts(6)[5]
        whole, some = token_scores(
            scorer, [text_request(0, ids), text_request(1, ids, 100)]
        ).values()
        assert len(some.logprob) == len(ids) - 100
        np.testing.assert_allclose(some.logprob, whole.logprob[99:], rtol=self.rtol, atol=1e-5)

    def test_two_tokens_and_a_full_context_are_texts(self, scorer: ScorerProcess):
        full = [BOS_ID, *[50] * (self.context - 1)]
        found = token_scores(scorer, [text_request(0, [BOS_ID, 50]), text_request(1, full)])
        assert [len(scores.logprob) for scores in found.values()] == [1, self.context - 1]
        np.testing.assert_allclose(
            found[0].logprob, found[1].logprob[:1], rtol=self.rtol, atol=1e-5
        )

    def test_requests_that_cannot_be_answered_leave_the_others_alone(self, scorer: ScorerProcess):
        good = text_request(1, texts(3)[2])
        bad = [[BOS_ID] * (self.context + 1), [], [BOS_ID], [BOS_ID, 10**6], [BOS_ID, -1]]
        requests = [good, *(text_request(2 + i, ids) for i, ids in enumerate(bad))]
        found = score_results(scorer, requests)
        assert found[1].error is None
        expected = [
            f"{self.context + 1} tokens, more than",
            "a text of 0 tokens has none to score",
            "a text of 1 tokens has none to score",
            "outside the model's vocabulary",
            "outside the model's vocabulary",
        ]
        for i, words in enumerate(expected):
            result = found[2 + i]
            assert result.scores is None
            assert result.error is not None
            assert words in result.error
