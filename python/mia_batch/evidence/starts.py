"""Whether a model reads texts better after its start token, or without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import Answer, Request
from mia_batch.models.tokens import Tokenizer

N_TEXTS = 16
_FEWEST = 4  # texts that a test takes
# Tokens of a text: where its figures begin and end, and points
_FIRST, _LAST, _STEP = (
    8,
    64,
    8,
)
_ERROR_RATE = 0.01
_MARGINS = {"nats_per_token": 0.1, "next_tokens": 0.05}
"""What the other form must gain at least: nats, or a share of next tokens that are right."""


class StartFigures(NamedTuple):
    """How well texts are read as the tokenizer begins them, and in the other way."""

    token: str
    change: str  # of the other way: ``added``, or ``left_out``
    statistic: str
    by_tokenizer: float
    otherwise: float
    is_better_otherwise: bool


def compare_starts(
    engine: EngineProcess, tokenizer: Tokenizer, texts: Sequence[str]
) -> StartFigures | None:
    """Read texts with the start token and without; None where there is nothing to compare.

    The other form is better where a t-test of one side over the texts says so, of gains
    beyond a margin, at 1 %. Texts of every role are read, so that the choice is the
    same for all.
    """
    from scipy.stats import ttest_1samp

    starts = tokenizer.find_starts()
    cut = [ids[:_LAST] for ids in tokenizer.encode(texts)]
    long = [ids for ids in cut if len(ids) > 2 * _FIRST]
    if starts is None or len(long) < _FEWEST:
        return None
    is_read = engine.spec.kind == "logprobs"
    ask = _reading if is_read else _continuing
    figures = np.array(
        [[_figure(engine, [*ask(start, ids)]) for start in starts] for ids in long]
    )
    figures = figures[np.isfinite(figures).all(axis=1)]
    if len(figures) < _FEWEST:
        return None
    statistic = "nats_per_token" if is_read else "next_tokens"
    gains, margin = figures[:, 1] - figures[:, 0], _MARGINS[statistic]
    is_better = bool(gains.mean() > margin)
    if np.ptp(gains) > 0:
        test = ttest_1samp(gains, margin, alternative="greater")
        is_better = bool(test.pvalue <= _ERROR_RATE)
    change = "added" if len(starts[1]) > len(starts[0]) else "left_out"
    with_own, with_other = figures.mean(axis=0).tolist()
    return StartFigures(
        tokenizer.start_token, change, statistic, with_own, with_other, is_better
    )


def _reading(start: list[int], ids: list[int]) -> Iterator[tuple[Request, int]]:
    context, text = [*start, *ids[:_FIRST]], ids[_FIRST:]
    yield Request(request_id=0, kind="logprobs", context_ids=context, text_ids=text), 0


def _continuing(start: list[int], ids: list[int]) -> Iterator[tuple[Request, int]]:
    for point in range(_FIRST, len(ids), _STEP):
        context = [*start, *ids[:point]]
        asked = Request(
            request_id=point, kind="samples", context_ids=context, greedy=True
        )
        yield asked, ids[point]


def _figure(engine: EngineProcess, asked: list[tuple[Request, int]]) -> float:
    """Mean log-probability, or share of next tokens that are right; NaN where one is missing."""
    engine.submit(*(request for request, _ in asked))
    answers: list[Answer] = []
    while len(answers) < len(asked):
        answers += engine.results()
    true = {request.request_id: token for request, token in asked}
    found = [_of_answer(answer, true[answer.request_id]) for answer in answers]
    return float(np.mean(found))


def _of_answer(answer: Answer, true_token: int) -> float:
    if answer.tokens is not None:
        return float(answer.tokens["logprob"].mean())
    if answer.error is not None or not answer.continuations:
        return float("nan")
    token_ids = answer.continuations[0].token_ids or [-1]
    return float(token_ids[0] == true_token)
