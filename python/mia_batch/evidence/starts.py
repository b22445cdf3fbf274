"""Compare how a model reads texts after its start token, and without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import Answer, Request
from mia_batch.models.tokens import Tokenizer

N_TEXTS = 16
_FEWEST = 4  # texts that a test takes
# Tokens of a text: where its figures begin and end, and from point to point
_FIRST = 8
_LAST = 64
_STEP = 8
_ERROR_RATE = 0.01
_MARGINS = {"nats_per_token": 0.1, "next_tokens": 0.05}
"""What the other form must gain at least: nats, or a share of next tokens that are right."""


class StartFigures(NamedTuple):
    """How well texts are read as the tokenizer begins them, and in the other way."""

    token: str  # that a text starts with, or could
    change: str  # of the other way: ``added``, or ``left_out``
    statistic: str  # ``nats_per_token`` or ``next_tokens``
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
    token_ids = [ids[:_LAST] for ids in tokenizer.encode(texts)]
    long_texts = [ids for ids in token_ids if len(ids) > 2 * _FIRST]
    if starts is None or len(long_texts) < _FEWEST:
        return None
    is_read = engine.spec.kind == "logprobs"
    build_requests = _ask_to_read if is_read else _ask_to_continue
    rows = []
    for ids in long_texts:
        requests = [[*build_requests(start, ids)] for start in starts]
        rows.append([_compute_figure(engine, pairs) for pairs in requests])
    figures = np.array(rows)
    figures = figures[np.isfinite(figures).all(axis=1)]
    if len(figures) < _FEWEST:
        return None
    statistic = "nats_per_token" if is_read else "next_tokens"
    margin = _MARGINS[statistic]
    gains = figures[:, 1] - figures[:, 0]
    is_better = bool(gains.mean() > margin)
    if np.ptp(gains) > 0:
        test = ttest_1samp(gains, margin, alternative="greater")
        is_better = bool(test.pvalue <= _ERROR_RATE)
    by_tokenizer, otherwise = figures.mean(axis=0).tolist()
    return StartFigures(
        token=tokenizer.start_token,
        change="added" if len(starts[1]) > len(starts[0]) else "left_out",
        statistic=statistic,
        by_tokenizer=by_tokenizer,
        otherwise=otherwise,
        is_better_otherwise=is_better,
    )


def _ask_to_read(start: list[int], ids: list[int]) -> Iterator[tuple[Request, int]]:
    """Build the one request for the log-probabilities of a text."""
    request = Request(
        request_id=0,
        kind="logprobs",
        context_ids=[*start, *ids[:_FIRST]],
        text_ids=ids[_FIRST:],
    )
    yield request, 0


def _ask_to_continue(start: list[int], ids: list[int]) -> Iterator[tuple[Request, int]]:
    """Build a request for the next token at each point, with the true token."""
    for point in range(_FIRST, len(ids), _STEP):
        request = Request(
            request_id=point,
            kind="samples",
            context_ids=[*start, *ids[:point]],
            greedy=True,
        )
        yield request, ids[point]


def _compute_figure(
    engine: EngineProcess, requests: list[tuple[Request, int]]
) -> float:
    """Compute the mean log-probability, or the share of right next tokens; NaN if incomplete."""
    engine.submit(*(request for request, _ in requests))
    answers: list[Answer] = []
    while len(answers) < len(requests):
        answers += engine.results()
    true_tokens = {request.request_id: token for request, token in requests}
    values = [_read_value(answer, true_tokens[answer.request_id]) for answer in answers]
    return float(np.mean(values))


def _read_value(answer: Answer, true_token: int) -> float:
    """Read what one answer adds to a figure; NaN where it is missing."""
    if answer.tokens is not None:
        return float(answer.tokens["logprob"].mean())
    if answer.error is not None or not answer.continuations:
        return float("nan")
    token_ids = answer.continuations[0].token_ids or [-1]
    return float(token_ids[0] == true_token)
