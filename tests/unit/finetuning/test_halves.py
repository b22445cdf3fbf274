from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from mia_batch.finetuning.recipe import MOST_SHADOWS, in_half
from mia_batch.pipeline.stages.logprobs import halves

NAMES = [f"text {number}" for number in range(2000)]
ALMOST_NEVER = 1e-9


@given(st.lists(st.text(max_size=20), max_size=30), st.integers(0, 2**40), st.integers(1, 512))
def test_each_text_is_in_exactly_half_of_an_even_number_of_models(names, seed, pairs):
    learnt = [in_half(names, shadow, seed) for shadow in range(2 * pairs)]
    for of_text in zip(*learnt, strict=True):
        assert sum(of_text) == pairs


def test_a_text_is_learnt_or_not_whatever_other_texts_there_are():
    """So a larger corpus, or more models, change none of the earlier halves."""
    alone = [in_half([name], 5, 1)[0] for name in NAMES]
    assert in_half(NAMES, 5, 1) == alone
    assert in_half(NAMES[::-1], 5, 1) == alone[::-1]


def test_halves_are_a_fair_coin_of_their_own_for_each_pair_seed_and_text():
    n = len(NAMES)
    low, high = (binom.ppf(share, n, 0.5) for share in (ALMOST_NEVER, 1 - ALMOST_NEVER))
    halves_of = {
        (shadow, seed): in_half(NAMES, shadow, seed)
        for shadow in (0, 2, 14, 16, MOST_SHADOWS - 2)
        for seed in (0, 1)
    }
    for learnt in halves_of.values():
        assert low <= sum(learnt) <= high
    rows = list(halves_of.values())
    for i, one in enumerate(rows):
        for other in rows[:i]:
            assert low <= sum(a == b for a, b in zip(one, other, strict=True)) <= high


def test_windows_of_a_document_and_equal_texts_go_together():
    rows = pl.DataFrame(
        {
            "target_id": [f"{n:032x}" for n in range(300)],
            "document_id": [f"d{n // 3}" if n < 150 else f"e{n}" for n in range(300)],
            "window_index": [n % 3 if n < 150 else 0 for n in range(300)],
            "n_windows": [3 if n < 150 else 1 for n in range(300)],
            "role": ["target"] * 290 + ["canary"] * 10,
            "target": [f"text {n}" if n < 150 else f"twice {n // 2}" for n in range(299)] + [None],
        }
    )
    run = SimpleNamespace(scan=lambda _: rows.lazy())
    audit: Any = SimpleNamespace(run=run, settings=SimpleNamespace(seed=0))
    found = halves(audit, "shadow-0").join(rows, on="target_id")
    assert found.height == 299
    assert not found.filter(role="canary")["trained"].any()  # no model learns these
    found = found.filter(role="target")
    assert found.group_by("target").agg(pl.col("trained").n_unique())["trained"].max() == 1
    cut = found.filter(pl.col("n_windows") > 1).group_by("document_id").agg("trained")
    assert cut["trained"].list.n_unique().unique().to_list() == [1]
    same = found.filter(n_windows=1).group_by("target").agg("trained")
    assert same["trained"].list.n_unique().unique().to_list() == [1]
    assert 90 < found["trained"].sum() < 200


def test_a_window_that_several_documents_have_is_learnt_where_one_of_them_is():
    n = 40
    rows = pl.DataFrame(
        {
            "target_id": [f"{row:032x}" for row in range(n)],
            "document_id": [f"d{row // 2}" for row in range(n)],
            "window_index": [row % 2 for row in range(n)],
            "n_windows": [2] * n,
            "role": ["target"] * n,
            "target": [f"text {row}" if row % 2 else "licence" for row in range(n)],
        }
    )
    run = SimpleNamespace(scan=lambda _: rows.lazy())
    audit: Any = SimpleNamespace(run=run, settings=SimpleNamespace(seed=0))
    found = halves(audit, "shadow-0")
    assert found.filter(target="licence")["trained"].all()
    own = found.filter(pl.col("target") != "licence")["trained"]
    assert own.any()
    assert not own.all()
