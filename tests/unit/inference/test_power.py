from __future__ import annotations

import numpy as np
import pytest

from mia_batch.inference.multiplicity import q_values
from mia_batch.inference.power import power


def test_a_thousand_targets_and_300_nulls_need_67():
    made = power(1000, 300, 0.05, "bh")
    assert made.needed == 67
    assert made.smallest_p == 1 / 301
    assert made.sentences == (
        "the smallest p-value there can be is 0.0033, one in 301",
        "at q = 0.05 at least 67 of 1,000 targets are reported or none: "
        "67 that beat every one outside the training data are enough",
    )


def test_the_sentences_speak_of_what_is_tested():
    of_groups = power(10, 300, 0.05, "bh", "group").sentences
    assert of_groups[1].startswith("at q = 0.05 a single group that beats every one outside")
    assert len(power(1, 300, 0.05, "bh", "collection").sentences) == 1


@pytest.mark.parametrize("n_null", [5, 18, 19, 40, 199, 1000])
@pytest.mark.parametrize("adjustment", ["bh", "by"])
def test_so_many_that_beat_every_null_are_reported_and_one_fewer_are_not(n_null, adjustment):
    made = power(20, n_null, 0.1, adjustment)
    p = np.ones(20)
    for above in range(1, 21):
        p[:above] = made.smallest_p
        reported = (q_values(p, adjustment) <= 0.1).sum() > 0
        assert reported == (made.needed is not None and above >= made.needed)


def test_nothing_can_be_below_one_over_q():
    assert power(50, 18, 0.05, "bh").needed is None
    assert power(50, 19, 0.05, "bh").needed == 50
    assert power(50, 0, 0.05, "bh").needed is None
    assert "nothing can be reported" in power(50, 18, 0.05, "bh").sentences[1]


def test_a_lone_target_needs_m_over_q_nulls():
    assert power(20, 199, 0.1, "bh").needed == 1
    assert power(20, 198, 0.1, "bh").needed == 2
    assert "a single target" in power(20, 199, 0.1, "bh").sentences[1]


def test_benjamini_yekutieli_divides_q_by_the_harmonic_sum():
    harmonic = sum(1 / i for i in range(1, 1001))
    assert power(1000, 3000, 0.05, "by").needed == -int(-1000 * harmonic // (0.05 * 3001))
