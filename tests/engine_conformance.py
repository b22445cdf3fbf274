"""What every engine must do, as tests that run on any of them, and the reference it answers to."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, PreTrainedModel

from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import Answer, Continuation, Engine, Request
from mia_batch.prompts import sample_seed
from tests.checkpoints import BOS_ID, CONTEXT, EOS_ID


def prompts(n: int) -> list[list[int]]:
    """Prompts of 1 to 40 tokens."""
    return [
        [BOS_ID, *((7 * i + 11 * j) % 500 + 40 for j in range(i * 13 % 40))]
        for i in range(n)
    ]


def request(
    request_id: int,
    prompt: list[int],
    *,
    seed: int | None = None,
    n: int = 1,
    max_tokens: int = 24,
) -> Request:
    return Request(
        request_id=request_id,
        kind="samples",
        context_ids=prompt,
        seed=sample_seed(0, str(prompt)) if seed is None else seed,
        n=n,
        max_tokens=max_tokens,
    )


def texts(n: int) -> list[list[int]]:
    """Texts of 2 to 200 tokens."""
    return [
        [BOS_ID, *((7 * i + 11 * j) % 500 + 40 for j in range(1 + i * 31 % 199))]
        for i in range(n)
    ]


def text_request(
    request_id: int, token_ids: list[int], first: int = 1, **wanted: Any
) -> Request:
    return Request(
        request_id=request_id,
        kind="logprobs",
        context_ids=token_ids[:first],
        text_ids=token_ids[first:],
        **wanted,
    )


Started: TypeAlias = "EngineProcess | Engine"


def answers(engine: Started, requests: Iterable[Request]) -> dict[int, Answer]:
    """Submit all requests, then wait for all answers; they come in any order, each once."""
    waiting = set()
    for each in requests:
        engine.submit(each)
        waiting.add(each.request_id)
    found: dict[int, Answer] = {}
    while waiting:
        for answer in engine.step() if hasattr(engine, "step") else engine.results():
            waiting.remove(answer.request_id)
            found[answer.request_id] = answer
    return dict(sorted(found.items()))


def _good(engine: Started, requests: Iterable[Request]) -> dict[int, Answer]:
    found = answers(engine, requests)
    assert [answer.error for answer in found.values() if answer.error is not None] == []
    return found


def outputs(
    engine: Started, requests: Iterable[Request]
) -> dict[int, list[Continuation]]:
    return {
        key: answer.continuations for key, answer in _good(engine, requests).items()
    }


def ids(continuation: Continuation) -> list[int]:
    """Its tokens, which an engine always gives."""
    assert continuation.token_ids is not None
    return continuation.token_ids


def token_values(
    engine: Started, requests: Iterable[Request]
) -> dict[int, dict[str, NDArray[Any]]]:
    """Numbers of the tokens of requests none of which failed."""
    return {key: answer.tokens or {} for key, answer in _good(engine, requests).items()}


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


class SamplesConformance:
    """Subclasses have a fixture ``engine``: the checkpoint, default decoding, on a CPU."""

    dtype = "float32"

    def test_a_started_engine_says_what_it_is(self, engine):
        assert (engine.info.device, engine.info.dtype) == ("cpu", self.dtype)
        assert (engine.info.max_model_len, engine.info.max_sequences) == (CONTEXT, 16)

    def test_samples_depend_neither_on_order_nor_on_what_else_is_in_flight(
        self, engine
    ):
        requests = [request(i, prompt, n=3) for i, prompt in enumerate(prompts(12))]
        together = outputs(engine, requests)
        assert together == outputs(engine, requests[::-1])
        assert together[5] == outputs(engine, requests[5:6])[5]

    def test_sample_i_is_the_one_sample_of_a_request_with_seed_plus_i(self, engine):
        prompt = prompts(4)[3]
        (together,) = outputs(engine, [request(0, prompt, seed=40, n=4)]).values()
        singles = outputs(engine, [request(i, prompt, seed=40 + i) for i in range(4)])
        assert [[output] for output in together] == list(singles.values())
        assert len({tuple(ids(output)) for output in together}) == 4

    def test_a_larger_budget_goes_on_from_the_same_tokens(self, engine):
        budgets = {0: 5, 1: 40}
        short, long = outputs(
            engine,
            [
                request(i, prompts(6)[5], n=4, max_tokens=most)
                for i, most in budgets.items()
            ],
        ).values()
        assert [ids(few) for few in short] == [ids(many)[:5] for many in long]

    def test_texts_end_with_their_end_or_with_their_budget(self, engine):
        (samples,) = outputs(
            engine, [request(0, [BOS_ID], n=40, max_tokens=60)]
        ).values()
        assert {sample.finish_reason for sample in samples} == {"stop", "length"}
        for sample in samples:
            assert EOS_ID not in ids(sample)[:-1]
            ended = ids(sample)[-1] == EOS_ID
            assert ended == (sample.finish_reason == "stop")
            assert ended or len(ids(sample)) == 60

    def test_a_budget_beyond_the_context_ends_with_the_context(self, engine):
        prompt = [BOS_ID, *[50] * (CONTEXT - 11)]
        (samples,) = outputs(engine, [request(0, prompt, n=8, max_tokens=100)]).values()
        assert {len(ids(s)) for s in samples if s.finish_reason == "length"} == {10}

    def test_requests_that_cannot_be_answered_leave_the_others_alone(self, engine):
        good = request(1, prompts(3)[2], n=2)
        bad = [request(0, [BOS_ID] * CONTEXT), request(2, []), request(3, [10**6])]
        found = answers(engine, [bad[0], good, *bad[1:]])
        assert [result.error is None for result in found.values()] == [
            False,
            True,
            False,
            False,
        ]
        assert found[0].error is not None
        assert f"{CONTEXT} tokens, which leaves no room" in found[0].error
        assert found[1].continuations == outputs(engine, [good])[1]

    def test_first_tokens_follow_the_models_probabilities(self, engine, checkpoint):
        model = AutoModelForCausalLM.from_pretrained(checkpoint)
        with torch.inference_mode():
            most_likely = model(torch.tensor([[BOS_ID]])).logits[0, -1].topk(50)
        (samples,) = outputs(
            engine, [request(0, [BOS_ID], n=4000, max_tokens=1)]
        ).values()
        counts = np.bincount([ids(s)[0] for s in samples], minlength=600)
        assert counts[most_likely.indices].sum() == 4000
        expected = 4000 * most_likely.values.double().softmax(-1)
        assert chisquare(counts[most_likely.indices], expected).pvalue > 0.001

    def test_a_token_is_said_once_its_logit_is_raised_above_all_others(
        self, engine, checkpoint
    ):
        model = AutoModelForCausalLM.from_pretrained(checkpoint)
        with torch.inference_mode():
            values, tokens = model(torch.tensor([[BOS_ID]])).logits[0, -1].topk(9)
        behind, asked = float(values[0] - values[8]), request(0, [BOS_ID], max_tokens=1)
        nudges = [None, *((int(tokens[8]), behind + more) for more in (-0.1, 0.1))]
        all_asked = [
            replace(asked, request_id=number, greedy=True, nudge=nudge)
            for number, nudge in enumerate(nudges)
        ]
        found = [ids(said) for (said,) in outputs(engine, all_asked).values()]
        assert found == [[int(tokens[place])] for place in (0, 0, 8)]

    def test_the_likeliest_text_ends_once_it_is_in_a_loop_and_drawn_ones_do_not(
        self, engine
    ):
        always_50 = (50, 1000.0)
        asked = replace(request(0, prompts(4)[3], max_tokens=60), nudge=always_50)
        greedy = replace(asked, greedy=True)
        partial = Continuation(token_ids=[50] * 20, n_tokens=20)
        further = replace(greedy, request_id=1, partial=partial, max_tokens=80)
        drawn = replace(asked, request_id=2, n=2)
        short = replace(greedy, request_id=3, max_tokens=31)
        found = outputs(engine, [greedy, further.rest(), drawn, short])
        lengths = [
            [(len(ids(s)), s.finish_reason) for s in each] for each in found.values()
        ]
        assert lengths == [
            [(32, "repeats")],
            [(12, "repeats")],  # it goes on from 20
            [(60, "length")] * 2,
            [(31, "length")],
        ]


class LogprobsConformance:
    """Subclasses have a fixture ``engine``: the checkpoint, on a CPU."""

    dtype = "float32"
    context = CONTEXT
    rtol = 1e-6  # next to 1e-5: the checkpoint's logits are larger than those of real models

    def test_a_started_engine_says_what_it_is(self, engine):
        assert (engine.info.device, engine.info.dtype) == ("cpu", self.dtype)
        assert (engine.info.max_model_len, engine.info.max_sequences) == (
            self.context,
            16,
        )

    @pytest.mark.parametrize(
        ("dtype", "most"), [(torch.float32, 1e-5), (torch.float64, 1e-4)]
    )
    def test_log_probabilities_are_those_of_one_text_alone_in_float64(
        self, engine, checkpoint, dtype, most
    ):
        asked = texts(40)
        found = token_values(
            engine, (text_request(i, ids) for i, ids in enumerate(asked))
        )
        for i, ids in enumerate(asked):
            exact = exact_logprobs(checkpoint, ids, dtype)[range(len(ids) - 1), ids[1:]]
            assert found[i]["logprob"].dtype == np.float32
            np.testing.assert_allclose(
                found[i]["logprob"], exact, rtol=self.rtol, atol=most
            )

    def near(self, found, expected):
        np.testing.assert_allclose(found, expected, rtol=self.rtol, atol=1e-5)

    def test_values_depend_neither_on_order_nor_on_what_else_is_in_flight(self, engine):
        requests = [text_request(i, ids) for i, ids in enumerate(texts(20))]
        together = token_values(engine, requests)
        turned = token_values(engine, requests[::-1])
        for each in requests:
            (alone,) = token_values(engine, [each]).values()
            for other in (together, turned):
                self.near(other[each.request_id]["logprob"], alone["logprob"])

    def test_tokens_before_the_first_are_context_alone(self, engine):
        ids = texts(6)[5]
        whole, some = token_values(
            engine, [text_request(0, ids), text_request(1, ids, 100)]
        ).values()
        assert len(some["logprob"]) == len(ids) - 100
        self.near(some["logprob"], whole["logprob"][99:])

    def test_each_token_of_a_question_is_an_answer(self, engine, checkpoint):
        asked = texts(12)[4:]
        answered = [
            text_request(i, ids, len(ids) - 4, question=True)
            for i, ids in enumerate(asked)
        ]
        others = [text_request(len(asked) + i, ids) for i, ids in enumerate(asked)]
        found = token_values(
            engine, sorted([*answered, *others], key=lambda each: each.request_id % 8)
        )
        for i, ids in enumerate(asked):
            exact = exact_logprobs(checkpoint, ids)[len(ids) - 5, ids[-4:]]
            np.testing.assert_allclose(
                found[i]["logprob"], exact, rtol=self.rtol, atol=1e-4
            )
            assert len(found[len(asked) + i]["logprob"]) == len(ids) - 1

    def test_two_tokens_and_a_full_context_are_texts(self, engine):
        full = [BOS_ID, *[50] * (self.context - 1)]
        found = token_values(
            engine, [text_request(0, [BOS_ID, 50]), text_request(1, full)]
        )
        assert [len(values["logprob"]) for values in found.values()] == [
            1,
            self.context - 1,
        ]
        self.near(found[0]["logprob"], found[1]["logprob"][:1])

    def test_requests_that_cannot_be_answered_leave_the_others_alone(self, engine):
        bad = {
            2: ([BOS_ID] * (self.context + 1), f"{self.context + 1} tokens, more than"),
            3: ([], "a text of 0 tokens has none to score"),
            4: ([BOS_ID], "a text of 1 tokens has none to score"),
            5: ([BOS_ID, 10**6], "outside the model's vocabulary"),
            6: ([BOS_ID, -1], "outside the model's vocabulary"),
        }
        requests = [text_request(i, ids) for i, (ids, _) in bad.items()]
        found = answers(engine, [text_request(1, texts(3)[2]), *requests])
        assert found[1].error is None
        for i, (_, words) in bad.items():
            assert found[i].tokens is None
            assert words in str(found[i].error)
