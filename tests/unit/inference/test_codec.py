"""The share of texts that become less likely after the shots, with its control."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from mia_batch.inference.codec import codec_findings
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
    alike = [row for n in range(8) for row in rows("target", [float(n % 2)] * 5, group=f"g{n}")]
    facts = found(alike, rows("non_member", [0.0]))
    limits = binomtest(4, 8).proportion_ci()
    assert (facts["targets"]["low"], facts["targets"]["high"]) == pytest.approx(tuple(limits))


def test_a_set_without_scores_has_a_reason():
    facts = found(rows("target", [None]), rows("non_member", [0.0]))
    assert facts["targets"]["value"] is None
    assert facts["targets"]["reason"] == "no text of the set has a score"
