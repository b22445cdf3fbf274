from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import chisquare

from mia_batch.evidence.engines.transformers import SeededSampler, keep_likeliest
from mia_batch.evidence.request import Decoding

CPU = torch.device("cpu")
LOGITS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 12)),
    elements=st.floats(-8, 8, width=32),
)


def kept_reference(logits: list[float], top_k: int, top_p: float) -> set[int]:
    """Top-k, then top-p over what is left, one token at a time, in exact order of likelihood."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    if top_k:
        weakest = logits[order[min(top_k, len(order)) - 1]]
        order = [token for token in order if logits[token] >= weakest]
    weights = [math.exp(logits[token]) for token in order]
    kept: set[int] = set()
    mass = 0.0
    for token, weight in zip(order, weights, strict=True):
        if kept and mass >= top_p:
            break
        kept.add(token)
        mass += weight / sum(weights)
    return kept


def kept(logits: torch.Tensor, top_k: int, top_p: float) -> list[set[int]]:
    finite = keep_likeliest(logits, top_k, top_p).isfinite()
    return [set(row.nonzero()[:, 0].tolist()) for row in finite]


def draw(logits: torch.Tensor, seeds: list[int], decoding: Decoding, steps: int = 1) -> list[int]:
    """The last of some draws, one per row."""
    sampler = SeededSampler(decoding, seeds, CPU)
    no_ids = torch.empty(0)
    scores = [sampler(no_ids, logits) for _ in range(steps)][-1]
    assert (scores == 0).sum(-1).tolist() == [1] * len(seeds)
    return scores.argmax(-1).tolist()


@given(LOGITS, st.integers(0, 14))
def test_top_k_keeps_what_the_reference_implementation_keeps(values: np.ndarray, top_k: int):
    expected = [kept_reference(row, top_k, 1.0) for row in values.tolist()]
    assert kept(torch.from_numpy(values), top_k, 1.0) == expected


@given(st.permutations(range(8)), st.integers(0, 9), st.floats(0.05, 0.95))
def test_top_p_keeps_what_the_reference_implementation_keeps(
    ranks: list[int], top_k: int, top_p: float
):
    logits = [0.37 * rank for rank in ranks]
    assert kept(torch.tensor([logits]), top_k, top_p) == [kept_reference(logits, top_k, top_p)]


def test_top_p_counts_the_mass_within_top_k():
    probabilities = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    assert kept(probabilities.log(), 0, 0.5) == [{0, 1}]
    assert kept(probabilities.log(), 2, 0.5) == [{0}]  # 0.4 of 0.7


def test_one_token_always_stays():
    assert kept(torch.zeros(1, 3), 0, 1e-6) in ([{0}], [{1}], [{2}])


def test_everything_stays_where_nothing_is_asked():
    logits = torch.tensor([[1.0, -2.0, 0.5]])
    assert torch.equal(keep_likeliest(logits, 0, 1.0), logits)


@given(st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=6))
def test_a_row_is_drawn_alike_in_every_batch(seeds: list[int]):
    logits = torch.linspace(-1, 1, 50).repeat(len(seeds), 1)
    together = draw(logits, seeds, Decoding(), steps=3)
    alone = [draw(logits[:1], [seed], Decoding(), steps=3)[0] for seed in seeds]
    assert together == alone


def test_at_temperature_0_the_most_likely_token_is_taken_whatever_the_seed():
    logits = torch.tensor([[0.0, 3.0, 2.9], [1.0, -1.0, 0.999]]).repeat(50, 1)
    greedy = Decoding(temperature=0, top_k=2, top_p=0.5)
    assert draw(logits, list(range(100)), greedy, steps=2) == [1, 0] * 50


@pytest.mark.parametrize(
    "decoding", [Decoding(), Decoding(temperature=0.5, top_k=6, top_p=0.9), Decoding(top_k=0)]
)
def test_tokens_are_drawn_by_their_probabilities(decoding: Decoding):
    logits = torch.linspace(-2, 2, 12).repeat(20_000, 1)
    drawn = draw(logits, list(range(20_000)), decoding)
    warm = [2 * (2 * token / 11 - 1) / decoding.temperature for token in range(12)]
    left = sorted(kept_reference(warm, decoding.top_k, decoding.top_p))
    weights = np.exp([warm[token] for token in left])
    counts = np.bincount(drawn, minlength=12)
    assert counts.sum() == counts[left].sum()
    assert chisquare(counts[left], 20_000 * weights / weights.sum()).pvalue > 0.001
