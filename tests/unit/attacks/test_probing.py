"""Attacks on probes, by hand and against the definition."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.attacks import get, score
from mia_batch.attacks.from_samples import MATCHED_RARITY_ATTACKS, PROBE_ATTACKS
from tests import frames

PROBES = [attack.name for attack in PROBE_ATTACKS]
ANSWERS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 2.0]), st.sampled_from([0.0, 1.0])),
    min_size=1,
    max_size=6,
)


def scored(rows: list[dict[str, Any]], names: list[str]) -> dict[str, float | None]:
    usual = {"target_id": frames.target_id(0), "sample_index": 0, "words_candidate": 3}
    features = frames.features(*({**usual, **row} for row in rows)).with_columns(
        pl.Series(name, [float(row.get(name, 0)) for row in rows])
        for name in ("rarity_leading", "rarity_1", "rarity_2")
    )
    chosen = [get(name) for name in names]
    table = pl.concat(score(features.lazy(), frames.targets({}).lazy(), chosen))
    return table.select(names).row(0, named=True)


def probe(index: int, **numbers: Any) -> dict[str, Any]:
    return {"view": "probe", "view_index": index, "words_reference": 3, **numbers}


def test_by_hand():
    found = scored(
        [
            probe(0, leading_words=3, rarity_leading=2.4, rarity_1=3.0),
            probe(1, leading_words=0, rarity_1=0.6),
        ],
        PROBES,
    )
    assert found["probe_first_word_v1"] == 1 / 2
    assert found["probe_leading_v1"] == 1 / 2
    assert found["probe_leading_rarity_v1"] == pytest.approx(2.4 / 3 / 2)
    assert found["probe_recall_rarity_v1"] == pytest.approx((3.0 + 0.6) / 3 / 2)


@given(ANSWERS)
def test_scores_are_means_over_answers(answers):
    found = scored(
        [
            probe(index, leading_words=leading, rarity_leading=weight, rarity_1=shared)
            for index, (leading, weight, shared) in enumerate(answers)
        ],
        PROBES,
    )
    n = len(answers)
    assert found == pytest.approx(
        {
            "probe_leading_rarity_v1": sum(weight for _, weight, _ in answers) / 3 / n,
            "probe_first_word_v1": sum(leading > 0 for leading, _, _ in answers) / n,
            "probe_leading_v1": sum(leading / 3 for leading, _, _ in answers) / n,
            "probe_recall_rarity_v1": sum(shared for _, _, shared in answers) / 3 / n,
        }
    )


def test_a_text_without_an_answer_has_no_score():
    found = scored([{"view": "continuation", "words_reference": 3}], PROBES)
    assert set(found.values()) == {None}


def test_matched_attacks_weigh_continuations_by_hand():
    names = [attack.name for attack in MATCHED_RARITY_ATTACKS]
    rows = [
        {"words_reference": 4, "rarity_1": 2.0, "rarity_2": 0.9, "sample_index": 0},
        {"words_reference": 4, "rarity_1": 1.0, "rarity_2": 0.0, "sample_index": 1},
        probe(0, rarity_1=100.0),
    ]
    found = scored(rows, names)
    assert found == pytest.approx(
        {"samia_matched_rarity_v1": 3 / 4 / 2, "samia_matched_rarity_n2_v1": 0.9 / 3 / 2}
    )
    assert scored([{"words_reference": 1}], names)["samia_matched_rarity_n2_v1"] is None


def test_a_reference_models_answers_are_subtracted_by_hand():
    rows = [
        probe(0, rarity_leading=6.0),
        probe(1, rarity_leading=0.0),
        probe(0, model="reference", rarity_leading=1.5),
        probe(1, model="reference", rarity_leading=1.5),
    ]
    found = scored(rows, ["probe_rarity_difference_v1", "probe_leading_rarity_v1"])
    assert found["probe_leading_rarity_v1"] == 6 / 3 / 2
    assert found["probe_rarity_difference_v1"] == 6 / 3 / 2 - 1.5 / 3
    alone = scored(rows[:2], ["probe_rarity_difference_v1"])
    assert alone["probe_rarity_difference_v1"] is None


def test_log_hit_rates_by_hand():
    """Two points: 1 of 2 answers right, and 2 of 2."""
    rows = [
        probe(index, sample_index=sample, leading_words=words)
        for index, answers in enumerate([(1, 0), (1, 3)])
        for sample, words in enumerate(answers)
    ]
    found = scored(rows, ["probe_logprob_v1"])["probe_logprob_v1"]
    assert found == pytest.approx((log(1.5 / 3) + log(2.5 / 3)) / 2)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=5))
def test_log_hit_rates_are_those_of_the_definition(points):
    rows = [
        probe(index, sample_index=sample, leading_words=int(hit))
        for index, answers in enumerate(points)
        for sample, hit in enumerate(answers)
    ]
    found = scored(rows, ["probe_logprob_v1"])["probe_logprob_v1"]
    rates = [log((sum(answers) + 0.5) / (len(answers) + 1)) for answers in points]
    assert found == pytest.approx(sum(rates) / len(rates))


def test_many_answers_estimate_the_log_probability():
    draw = np.random.default_rng(5)
    chances = draw.uniform(0.05, 0.95, 40)
    rows = [
        probe(index, sample_index=sample, leading_words=int(hit))
        for index, chance in enumerate(chances)
        for sample, hit in enumerate(draw.random(400) < chance)
    ]
    found = scored(rows, ["probe_logprob_v1"])["probe_logprob_v1"]
    assert found == pytest.approx(np.log(chances).mean(), abs=0.02)
