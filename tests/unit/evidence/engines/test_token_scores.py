from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mia_batch.evidence.engines.transformers import VOCABULARY, entry_bytes, score_tokens
from mia_batch.evidence.request import Decoding

EVERYTHING = VOCABULARY | {"rank", "support_mass"}
ALL = Decoding(top_k=0)


def scored(
    logits: list[float], token: int, decoding: Decoding = ALL, columns: frozenset[str] = EVERYTHING
) -> dict[str, float]:
    found = score_tokens(torch.tensor([logits]), torch.tensor([token]), columns, decoding)
    return {name: values.item() for name, values in found.items()}


def test_three_tokens_by_hand():
    """Probabilities 1/2, 1/4, 1/4: mean -(1/2 + 2/4 + 2/4) ln 2, squared distances all ln 2 / 2."""
    found = scored([math.log(0.5), math.log(0.25), math.log(0.25)], 1)
    assert found["logprob"] == pytest.approx(math.log(0.25), abs=1e-6)
    assert found["vocabulary_mean"] == pytest.approx(-1.5 * math.log(2), abs=1e-6)
    assert found["vocabulary_variance"] == pytest.approx((math.log(2) / 2) ** 2, abs=1e-6)
    assert found["rank"] == 2  # a tie is not larger
    assert found["support_mass"] == 0.0


@pytest.mark.parametrize(
    ("decoding", "kept"),
    [
        (Decoding(top_k=1), 0.4),
        (Decoding(top_k=2), 0.8),  # a tie for the second rank stays
        (Decoding(top_k=3), 0.8),
        (Decoding(top_k=9), 1.0),
        (Decoding(top_k=0, top_p=0.7), 0.8),
        (Decoding(top_k=3, top_p=0.4), 0.4),
    ],
)
def test_the_support_mass_is_of_the_tokens_that_decoding_keeps(decoding: Decoding, kept: float):
    logits = [math.log(p) for p in (0.2, 0.4, 0.2, 0.15, 0.05)]
    assert scored(logits, 1, decoding)["support_mass"] == pytest.approx(math.log(kept), abs=1e-6)


@pytest.mark.parametrize("decoding", [Decoding(top_k=1), Decoding(top_k=0, top_p=0.5)])
def test_a_token_that_decoding_leaves_out_has_no_support_mass(decoding: Decoding):
    assert math.isnan(scored([0.0, 1.0], 0, decoding)["support_mass"])


def test_only_what_is_asked_for_is_computed():
    assert set(scored([0.0, 1.0], 0, columns=frozenset())) == {"logprob"}


@pytest.mark.parametrize("never", [-math.inf, float(np.finfo(np.float32).min), -1e9])
def test_tokens_that_the_model_rules_out_do_not_spoil_mean_and_variance(never: float):
    found = scored([0.0, never, 0.0], 0)
    assert found["logprob"] == pytest.approx(-math.log(2), abs=1e-6)
    assert found["vocabulary_mean"] == pytest.approx(-math.log(2), abs=1e-6)
    assert found["vocabulary_variance"] == pytest.approx(0.0, abs=1e-6)


def test_mean_and_variance_of_logits_far_from_zero_lose_nothing():
    logits = [44.0, 38.0, 38.0, 38.0, 38.0]
    moved = [x - 44 for x in logits]
    assert scored(logits, 1, columns=VOCABULARY) == scored(moved, 1, columns=VOCABULARY)


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(2, 40)),
        elements=st.floats(-60, 60, width=32),
    ),
    st.data(),
)
def test_everything_agrees_with_float64(logits: np.ndarray, data: st.DataObject):
    n, vocab_size = logits.shape
    tokens = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=n, max_size=n))
    top_k = data.draw(st.integers(0, vocab_size))
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    own = exact[range(n), tokens]
    p = np.exp(exact)
    mean = (p * exact).sum(axis=1)
    weakest = np.sort(logits, axis=1)[:, [-top_k]]
    found = score_tokens(
        torch.from_numpy(logits.copy()), torch.tensor(tokens), EVERYTHING, Decoding(top_k=top_k)
    )
    np.testing.assert_allclose(found["logprob"], own, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(found["vocabulary_mean"], mean, rtol=1e-6, atol=1e-5)
    variance = (p * (exact - mean[:, None]) ** 2).sum(axis=1)
    np.testing.assert_allclose(found["vocabulary_variance"], variance, rtol=1e-5, atol=1e-6)
    larger = logits > logits[range(n), tokens][:, None]
    np.testing.assert_array_equal(found["rank"], 1 + larger.sum(axis=1))
    is_kept = logits >= weakest
    kept = np.log(np.where(is_kept, p, 0.0).sum(axis=1))
    kept[~is_kept[range(n), tokens]] = np.nan
    np.testing.assert_allclose(found["support_mass"], kept, rtol=1e-6, atol=1e-5)
    assert (found["logprob"] <= 0).all()
    assert not (found["support_mass"] > 0).any()


def test_sorting_the_vocabulary_is_counted_as_memory():
    sorting = entry_bytes(frozenset({"support_mass"}), Decoding(top_p=0.9))
    assert sorting > entry_bytes(EVERYTHING, Decoding())
