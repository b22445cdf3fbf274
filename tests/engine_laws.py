"""What every sampling engine must do, as tests that run on any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM

from mia_batch.evidence.engine import SampleOutput, SampleRequest, SampleResult
from mia_batch.prompts.seeds import sample_seed
from tests.checkpoints import BOS_ID, CONTEXT, EOS_ID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mia_batch.evidence.process import EngineProcess


def prompts(n: int) -> list[list[int]]:
    """Prompts of 1 to 40 tokens."""
    return [[BOS_ID, *((7 * i + 11 * j) % 500 + 40 for j in range(i * 13 % 40))] for i in range(n)]


def request(
    request_id: int, prompt: list[int], *, seed: int | None = None, n: int = 1, max_tokens: int = 24
) -> SampleRequest:
    return SampleRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        seed=sample_seed(0, str(prompt)) if seed is None else seed,
        n=n,
        max_tokens=max_tokens,
    )


def answers(engine: EngineProcess, requests: Iterable[SampleRequest]) -> dict[int, SampleResult]:
    """Submit all requests, then wait for all answers; they come in any order, each once."""
    waiting = set()
    for each in requests:
        engine.submit(each)
        waiting.add(each.request_id)
    found: dict[int, SampleResult] = {}
    while waiting:
        for result in engine.results():
            waiting.remove(result.request_id)
            found[result.request_id] = result
    return dict(sorted(found.items()))


def outputs(
    engine: EngineProcess, requests: Iterable[SampleRequest]
) -> dict[int, list[SampleOutput]]:
    """Answers none of which is an error."""
    found = answers(engine, requests)
    assert [result.error for result in found.values() if result.error is not None] == []
    return {request_id: result.outputs for request_id, result in found.items()}


class EngineLaws:
    """Subclasses have a fixture ``engine``: the checkpoint, default decoding, on a CPU."""

    def test_a_started_engine_says_what_it_is(self, engine: EngineProcess):
        assert (engine.info.device, engine.info.dtype) == ("cpu", "float32")
        assert (engine.info.max_model_len, engine.info.max_sequences) == (CONTEXT, 16)

    def test_samples_depend_neither_on_order_nor_on_what_else_is_in_flight(
        self, engine: EngineProcess
    ):
        requests = [request(i, prompt, n=3) for i, prompt in enumerate(prompts(12))]
        together = outputs(engine, requests)
        assert together == outputs(engine, requests[::-1])
        assert together[5] == outputs(engine, requests[5:6])[5]

    def test_sample_i_is_the_one_sample_of_a_request_with_seed_plus_i(self, engine: EngineProcess):
        prompt = prompts(4)[3]
        (together,) = outputs(engine, [request(0, prompt, seed=40, n=4)]).values()
        singles = outputs(engine, [request(i, prompt, seed=40 + i) for i in range(4)])
        assert [[output] for output in together] == list(singles.values())
        assert len({tuple(output.token_ids) for output in together}) == 4

    def test_a_larger_budget_goes_on_from_the_same_tokens(self, engine: EngineProcess):
        budgets = {0: 5, 1: 40}
        short, long = outputs(
            engine,
            [request(i, prompts(6)[5], n=4, max_tokens=most) for i, most in budgets.items()],
        ).values()
        assert [few.token_ids for few in short] == [many.token_ids[:5] for many in long]

    def test_texts_end_with_their_end_or_with_their_budget(self, engine: EngineProcess):
        (samples,) = outputs(engine, [request(0, [BOS_ID], n=40, max_tokens=60)]).values()
        assert {sample.finish_reason for sample in samples} == {"stop", "length"}
        for sample in samples:
            assert EOS_ID not in sample.token_ids[:-1]
            ended = sample.token_ids[-1] == EOS_ID
            assert ended == (sample.finish_reason == "stop")
            assert ended or len(sample.token_ids) == 60

    def test_a_budget_beyond_the_context_ends_with_the_context(self, engine: EngineProcess):
        prompt = [BOS_ID, *[50] * (CONTEXT - 11)]
        (samples,) = outputs(engine, [request(0, prompt, n=8, max_tokens=100)]).values()
        assert {len(s.token_ids) for s in samples if s.finish_reason == "length"} == {10}

    def test_requests_that_cannot_be_answered_leave_the_others_alone(self, engine: EngineProcess):
        good = request(1, prompts(3)[2], n=2)
        bad = [request(0, [BOS_ID] * CONTEXT), request(2, []), request(3, [10**6])]
        found = answers(engine, [bad[0], good, *bad[1:]])
        assert [result.error is None for result in found.values()] == [False, True, False, False]
        assert found[0].error is not None
        assert f"{CONTEXT} tokens, which leaves no room" in found[0].error
        assert found[1].outputs == outputs(engine, [good])[1]

    def test_first_tokens_follow_the_models_probabilities(
        self, engine: EngineProcess, checkpoint: Path
    ):
        model = AutoModelForCausalLM.from_pretrained(checkpoint)
        with torch.inference_mode():
            likeliest = model(torch.tensor([[BOS_ID]])).logits[0, -1].topk(50)
        (samples,) = outputs(engine, [request(0, [BOS_ID], n=4000, max_tokens=1)]).values()
        counts = np.bincount([s.token_ids[0] for s in samples], minlength=600)
        assert counts[likeliest.indices].sum() == 4000
        expected = 4000 * likeliest.values.double().softmax(-1)
        assert chisquare(counts[likeliest.indices], expected).pvalue > 0.001
