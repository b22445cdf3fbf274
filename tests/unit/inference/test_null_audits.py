"""Audits of non-members alone report as often as was promised, and where not, it is said."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.stats import binomtest

from mia_batch.inference import null_audits
from mia_batch.inference.null_audits import null_audit_findings
from mia_batch.report.unlabelled import null_audit_sentence
from tests.unit.inference.scored import plan, rows, table

RNG = np.random.default_rng(1)


@pytest.fixture
def as_many_as_of_users(monkeypatch):
    monkeypatch.setattr(null_audits, "_AUDITS", 200)


def nulls(n, windows=1, **columns):
    """Non-members in groups whose windows move together."""
    parts = [
        rows("non_member", RNG.normal(RNG.normal(), 0.1, windows), group=f"n{number}", **columns)
        for number in range(n)
    ]
    return [row for part in parts for row in part]


def found(*parts, **changes):
    made = null_audit_findings(table(*parts).lazy(), plan(**changes))
    assert made["check"].unique().to_list() in ([], ["null_audits"])
    return {row["statistic"]: row for row in made.iter_rows(named=True)}


TARGETS = rows("target", [9.0] * 30)


@pytest.mark.usefixtures("as_many_as_of_users")
@pytest.mark.parametrize("level", ["target", "group"])
@pytest.mark.parametrize("ties", ["conservative", "random"])
@pytest.mark.parametrize("windows", [1, 3])
def test_exchangeable_texts_are_reported_as_rarely_as_promised(level, ties, windows):
    asked = [row | {"group": f"a{n}"} for n in range(30) for row in rows("target", [9.0] * windows)]
    facts = found(asked, nulls(120, windows), level=level, ties=ties, q=0.1, fpr=0.2)
    named = {name: row["value"] for name, row in facts.items()}
    assert (named["n_audits"], named["n_tests"], named["n_null"]) == (200, 30, 90)
    assert named["share_reporting"] <= 0.15
    assert facts["share_reporting"]["verdict"] == "as_promised"
    assert 0.15 <= named["share_below_fpr"] <= 0.2 + 0.01


@pytest.mark.usefixtures("as_many_as_of_users")
def test_the_share_is_that_of_the_audits_and_its_interval_theirs(monkeypatch):
    reports = iter([True] * 30 + [False] * 170)
    monkeypatch.setattr(
        null_audits, "q_values", lambda p, _: np.full(p.shape, 0.0 if next(reports) else 1.0)
    )
    facts = found(TARGETS, nulls(80))
    share = facts["share_reporting"]
    assert (share["value"], share["verdict"]) == (0.15, "too_often")
    assert (share["low"], share["high"]) == pytest.approx(tuple(binomtest(30, 200).proportion_ci()))
    (sentence,) = null_audit_sentence(null_audits._rows(plan(), 3, 9, [(True, 0.5)] * 200))
    assert sentence.startswith(
        "Of 200 audits of non-members, 3 drawn at random against 9 others, 100.0% report any "
        "target (98.2% to 100.0%; at most 5.0% are promised): more than was promised; 50.0% of"
    )


def test_at_most_half_of_the_non_members_are_audited_and_all_can_be_reported():
    assert found(TARGETS, nulls(40))["n_tests"]["value"] == 20
    assert found(TARGETS, nulls(38), q=0.04)["n_tests"]["value"] == 9
    assert found(rows("target", [1.0]), nulls(40))["n_tests"]["value"] == 1


@pytest.mark.parametrize(
    ("n", "changes", "reason"),
    [
        (19, {}, "19 independent units outside the training data are too few: with some of them"),
        (1, {"level": "group"}, "1 independent units"),
        (60, {"level": "collection"}, "the plan is about all groups together"),
    ],
)
def test_too_few_or_none_have_a_reason(n, changes, reason):
    facts = found(TARGETS, nulls(n), **changes)
    assert [*facts] == ["share_reporting"]
    assert facts["share_reporting"]["value"] is None
    assert facts["share_reporting"]["reason"].startswith(reason)
    row = pl.DataFrame([facts["share_reporting"]])
    (sentence,) = null_audit_sentence(row)
    assert sentence.startswith(f"The rates were not validated on these non-members: {reason}")


def test_without_targets_or_non_members_there_are_no_rows():
    assert found(TARGETS) == found(nulls(40)) == {}
    assert [*null_audit_sentence(null_audit_findings(table(TARGETS).lazy(), plan()))] == []


def test_the_same_scores_give_the_same_numbers_and_many_units_are_drawn_from(monkeypatch):
    parts = TARGETS, nulls(100)
    assert found(*parts) == found(*parts)
    monkeypatch.setattr(null_audits, "_MOST", 50)
    facts = found(*parts)
    assert (facts["n_tests"]["value"], facts["n_null"]["value"]) == (25, 25)


def test_texts_of_unknown_score_and_length_are_no_error():
    unknown = rows("non_member", [None] * 30, n_words=None)
    facts = found(TARGETS, nulls(50), unknown, length_edges=(50,))
    assert facts["share_reporting"]["verdict"] == "as_promised"
