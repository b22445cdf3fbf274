"""The share of texts that become less likely after the shots, with its control."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, binomtest, norm, t

from mia_batch.inference.sets import codec_findings
from tests.unit.inference.scored import rows, table


def found(*parts):
    made = codec_findings(table(*parts).rename({"a_v1": "codec_v1"}).lazy())
    return {row["subject"]: row for row in made.iter_rows(named=True)}


def test_shares_of_targets_and_control_by_hand():
    facts = found(rows("target", [1.0, 1.0, 1.0, 0.0, None]), rows("non_member", [0.0, 1.0]))
    limits = binomtest(3, 4).proportion_ci()
    assert facts["targets"]["value"] == 0.75
    assert (facts["targets"]["low"], facts["targets"]["high"]) == pytest.approx(tuple(limits))
    assert facts["non-members"]["value"] == 0.5


def test_windows_of_one_group_count_as_one_where_they_are_alike():
    alike = [row for n in range(10) for row in rows("target", [float(n % 2)] * 5, group=f"g{n}")]
    facts = found(alike, rows("non_member", [0.0]))
    n = 10 * (norm.ppf(0.975) / t(9).ppf(0.975)) ** 2  # ten groups of five texts each, all alike
    limits = beta.ppf(0.025, n / 2, n / 2 + 1), beta.ppf(0.975, n / 2 + 1, n / 2)
    assert (facts["targets"]["low"], facts["targets"]["high"]) == pytest.approx(limits)


def test_shares_of_groups_keep_the_coverage():
    """Texts of a group share an effect; 300 sets of 10 groups."""
    rng, held = np.random.default_rng(0), 0
    truth = norm.cdf(0.5)
    for _ in range(300):
        effects = np.repeat(rng.normal(size=10), 20)
        falls = (0.3**0.5 * effects + 0.7**0.5 * rng.normal(size=200) < 0.5).astype(float)
        parts = [
            rows("target", falls[n * 20 : n * 20 + 20].tolist(), group=f"g{n}") for n in range(10)
        ]
        row = found([each for part in parts for each in part], rows("non_member", [0.0]))["targets"]
        held += row["low"] <= truth <= row["high"]
    assert held / 300 > 0.93 - 3 * (0.05 * 0.95 / 300) ** 0.5


@pytest.mark.parametrize(
    ("sizes", "worth"), [([40], "1"), ([20, 20, 20], "3"), ([60] + [5] * 8, "2.63")]
)
def test_groups_that_are_worth_fewer_than_four_carry_no_interval(sizes, worth):
    parts = [
        rows("target", [1.0, 0.0] * (n // 2) + [1.0] * (n % 2), group=f"g{i}")
        for i, n in enumerate(sizes)
    ]
    facts = found([row for part in parts for row in part], rows("non_member", [0.0]))
    assert facts["targets"]["value"] == pytest.approx(0.5, abs=0.1)
    assert (facts["targets"]["low"], facts["targets"]["high"]) == (None, None)
    assert facts["targets"]["reason"] == (
        "an interval needs 4 independent groups of texts of one size, these are worth " + worth
    )


def test_a_set_without_scores_has_a_reason():
    facts = found(rows("target", [None]), rows("non_member", [0.0]))
    assert facts["targets"]["value"] is None
    assert facts["targets"]["reason"] == "no text of the set has a score"
