import numpy as np
import polars as pl
import pytest
from scipy.stats import beta, binomtest, norm

from mia_batch.errors import CorpusError
from mia_batch.inference import yardstick
from mia_batch.inference.conformal import p_values, q_values
from mia_batch.inference.yardstick import (
    dose,
    naming_probability,
    null_audit_findings,
    sort_levels,
    yardstick_findings,
)
from mia_batch.report.sentences import dose_sentences, null_audit_sentence
from tests.unit.inference.scored import plan, rows, table


def find_levels(scores, made_plan, runs=None, **further):
    runs_columns = {"target_id": [], "longest_words": [], "reference_words": []} | (
        runs or {}
    )
    types = {
        "target_id": pl.String,
        "longest_words": pl.UInt32,
        "reference_words": pl.UInt32,
    }
    return yardstick_findings(
        scores.lazy(), made_plan, pl.DataFrame(runs_columns, types), **further
    )


def facts(findings, subject, check="yardstick"):
    of_subject = findings.filter(check=check, subject=subject)
    return dict(
        of_subject.select(
            "statistic", pl.concat_list("value", "low", "high")
        ).iter_rows()
    )


def test_levels_are_numbers_or_those_of_the_classics_and_each_is_counted():
    assert sort_levels(["16", "4", "0"]) == ["0", "4", "16"]
    names = ["most copied", "rarely copied", "well known"]
    assert sort_levels(names) == ["rarely copied", "well known", "most copied"]
    with pytest.raises(CorpusError, match=r"holds \['4', 'often'\]; give numbers"):
        sort_levels(["often", "4"])
    scores = table(
        rows("target", [0.0, 1.0]),
        rows("non_member", [*range(20)]),
        rows("yardstick", [18.5, 19.5, 30.0, None], group="64"),
        rows("yardstick", [3.5, 18.5], group="0"),
    )
    runs = {
        "target_id": ["t22", "t23", "t24", "t25", "t26", "t27"],
        "longest_words": [20, 19, 12, None, 2, 3],
        "reference_words": [64, 64, 12, 64, 64, 64],
    }
    findings = find_levels(scores, plan(), runs, tested=False)
    assert findings["subject"].unique(maintain_order=True).to_list() == ["64", "0"]
    high, low = facts(findings, "64"), facts(findings, "0")
    count_names = (
        "n",
        "n_scored",
        "n_continued",
        "n_given_back",
        "given_back",
        "n_above",
        "above",
    )
    assert [high[name][0] for name in count_names] == [4, 3, 3, 2, 2 / 3, 2, 2 / 3]
    assert high["roc_auc"][0] == 5.5 / 6
    # Clopper-Pearson
    assert high["given_back"][1:] == pytest.approx([0.0943, 0.9916], abs=1e-4)
    assert [low[name][0] for name in low] == [2, 2, 2, 0, 0, 0, 0]


def test_a_text_is_named_as_often_as_passages_are_with_the_real_targets():
    nulls, targets = np.arange(99.0), [500.0, 500.0, *range(20)]
    level_scores = [*np.linspace(90.5, 109.5, 20)]
    scores = table(
        rows("target", targets),
        rows("non_member", nulls),
        rows("yardstick", level_scores, group="9"),
    )
    real = p_values(np.array(targets, float), np.arange(99, dtype=np.float64))
    p_values_alone = p_values(np.array(level_scores), np.arange(99, dtype=np.float64))
    is_named = [q_values(np.append(real, p), "bh")[-1] <= 0.1 for p in p_values_alone]
    value, low, high = facts(find_levels(scores, plan(q=0.1)), "9", "absence")["named"]
    n = sum(is_named)
    assert 0 < n < 20
    assert value == n / 20
    assert low == pytest.approx(beta.ppf(0.025, n, 21 - n))
    assert high == pytest.approx(beta.ppf(0.975, n + 1, 20 - n))


@pytest.mark.parametrize("level", ["target", "group"])
def test_where_no_single_one_can_be_reported_nothing_known_would_have_been(level):
    books = [rows("target", [0.0, 1.0], group=f"b{n}") for n in range(30)]
    nulls_rows = [rows("non_member", [0.5, 0.6], group=f"o{n}") for n in range(9)]
    scores = table(*books, *nulls_rows, rows("yardstick", [99.0] * 8, group="9"))
    assert facts(find_levels(scores, plan(level=level)), "9", "absence") == {
        "named": [0, 0, 0]
    }


def test_books_of_many_windows_are_named_by_their_mean():
    rng = np.random.default_rng(0)
    books = [rows("target", rng.normal(size=20), group=f"b{n}") for n in range(3)]
    nulls_rows = [
        rows("non_member", rng.normal(size=20), group=f"o{n}") for n in range(60)
    ]
    levels = [
        rows("yardstick", rng.normal(mean, 1, 40), group=str(mean))
        for mean in (0, 0.6, 3)
    ]
    few_windows = rows("yardstick", [1.0, None, None, None, None, 2.0], group="5")
    findings = find_levels(
        table(*books, *nulls_rows, *levels, few_windows), plan(level="group", q=0.1)
    )
    absence = {
        name: facts(findings, name, "absence")["named"]
        for name in ("0", "0.6", "3", "5")
    }
    assert absence["0"][0] < 0.2
    assert absence["0.6"][1] < 0.4 < absence["0.6"][0] < 0.95 < absence["0.6"][2]
    assert absence["3"] == [1, 1, 1]
    assert absence["5"] == [None, None, None]
    reason = findings.filter(check="absence", subject="5")["reason"].item()
    assert reason == "2 passages have a score, 5 are needed"


def test_canaries_that_were_published_are_a_level():
    scores = table(
        rows("target", [0.0]),
        rows("non_member", [*range(50)]),
        rows("canary", [60.0] * 6, member=True, group="s"),
        rows("canary", [1.0] * 6, member=False, group="s"),
    )
    findings = find_levels(scores, plan())
    assert facts(findings, "canaries", "absence")["named"][0] == 1
    assert findings.filter(check="yardstick").is_empty()
    assert find_levels(scores, plan(level="collection")).is_empty()
    assert find_levels(scores, plan(), tested=False).is_empty()


def test_the_interval_covers_the_true_probability():
    """Books of 10 windows: the mean of N(m, 1) scores is named above a fixed bound."""
    rng, covered = np.random.default_rng(1), 0
    truth = norm.sf((0.5 - 0.6) * 10**0.5)
    for _ in range(20):
        row = naming_probability(rng.normal(0.6, 1, 40), 0.5, 10, "mean", rng)
        covered += row["low"] <= truth <= row["high"]
    assert covered >= 15  # 19 are promised


RNG = np.random.default_rng(1)


def nulls(n, windows=1, **columns):
    """Non-members in groups whose windows move together."""
    parts = [
        rows(
            "non_member",
            RNG.normal(RNG.normal(), 0.1, windows),
            group=f"n{number}",
            **columns,
        )
        for number in range(n)
    ]
    return [row for part in parts for row in part]


def find_null_audits(*parts, **changes):
    findings = null_audit_findings(table(*parts).lazy(), plan(**changes))
    assert findings["check"].unique().to_list() in ([], ["null_audits"])
    return {row["statistic"]: row for row in findings.iter_rows(named=True)}


TARGETS = rows("target", [9.0] * 30)


@pytest.mark.parametrize(
    ("level", "ties", "windows"),
    [("target", "conservative", 1), ("target", "random", 3), ("group", "random", 3)],
)
def test_exchangeable_texts_are_reported_as_rarely_as_promised(
    monkeypatch, level, ties, windows
):
    monkeypatch.setattr(yardstick, "_AUDITS", 200)
    targets = [
        row | {"group": f"a{n}"}
        for n in range(30)
        for row in rows("target", [9.0] * windows)
    ]
    facts = find_null_audits(
        targets, nulls(120, windows), level=level, ties=ties, q=0.1, fpr=0.2
    )
    value_by_name = {name: row["value"] for name, row in facts.items()}
    assert (
        value_by_name["n_audits"],
        value_by_name["n_tests"],
        value_by_name["n_null"],
    ) == (200, 30, 90)
    assert value_by_name["share_reporting"] <= 0.15
    assert facts["share_reporting"]["verdict"] == "as_promised"
    assert 0.15 <= value_by_name["share_below_fpr"] <= 0.2 + 0.01


def test_the_share_is_that_of_the_audits_and_its_interval_theirs(monkeypatch):
    reports = iter([True] * 30 + [False] * 170)
    monkeypatch.setattr(yardstick, "_AUDITS", 200)
    monkeypatch.setattr(
        yardstick,
        "q_values",
        lambda p, _: np.full(p.shape, 0.0 if next(reports) else 1.0),
    )
    facts = find_null_audits(TARGETS, nulls(80))
    share = facts["share_reporting"]
    assert (share["value"], share["verdict"]) == (0.15, "too_often")
    assert (share["low"], share["high"]) == pytest.approx(
        tuple(binomtest(30, 200).proportion_ci())
    )
    (sentence,) = null_audit_sentence(
        yardstick.audit_rows(plan(), 3, 9, [(True, 0.5)] * 200)
    )
    assert sentence.startswith(
        "Non-members were audited 200 times, 3 drawn at random against 9 others. 100.0%"
        " of these audits report any target (98.2% to 100.0%; at most 5.0% are"
        " promised): more than was promised; 50.0% of"
    )


def test_at_most_half_of_the_non_members_are_audited_and_without_a_set_there_are_no_rows():
    assert find_null_audits(TARGETS, nulls(40))["n_tests"]["value"] == 20
    assert find_null_audits(TARGETS, nulls(38), q=0.04)["n_tests"]["value"] == 9
    assert find_null_audits(rows("target", [1.0]), nulls(40))["n_tests"]["value"] == 1
    assert find_null_audits(TARGETS) == find_null_audits(nulls(40)) == {}
    assert [
        *null_audit_sentence(null_audit_findings(table(TARGETS).lazy(), plan()))
    ] == []


@pytest.mark.parametrize(
    ("n", "changes", "reason"),
    [
        (
            19,
            {},
            (
                "19 independent units outside the training data are too few: with some"
                " of them"
            ),
        ),
        (1, {"level": "group"}, "1 independent units"),
        (60, {"level": "collection"}, "the plan is about all groups together"),
    ],
)
def test_too_few_or_none_have_a_reason(n, changes, reason):
    facts = find_null_audits(TARGETS, nulls(n), **changes)
    assert [*facts] == ["share_reporting"]
    assert facts["share_reporting"]["value"] is None
    assert facts["share_reporting"]["reason"].startswith(reason)
    row = pl.DataFrame([facts["share_reporting"]])
    (sentence,) = null_audit_sentence(row)
    assert sentence.startswith(
        f"The rates were not validated on these non-members: {reason}"
    )


def test_the_same_scores_give_the_same_numbers_and_of_many_units_some_are_drawn(
    monkeypatch,
):
    parts = TARGETS, nulls(100)
    assert find_null_audits(*parts) == find_null_audits(*parts)
    monkeypatch.setattr(yardstick, "_MOST", 50)
    facts = find_null_audits(*parts)
    assert (facts["n_tests"]["value"], facts["n_null"]["value"]) == (25, 25)
    # Texts of unknown score and length are no error.
    unknown = rows("non_member", [None] * 30, n_words=None)
    facts = find_null_audits(TARGETS, nulls(50), unknown, length_edges=(50,))
    assert facts["share_reporting"]["verdict"] == "as_promised"


def test_a_dose_by_hand():
    copies = np.repeat([0.0, 3.0, 15.0], 39)
    levels = np.concatenate(
        [np.linspace(-1, 1, 39), np.linspace(2, 4, 39), np.linspace(5, 7, 39)]
    )
    value, low, high = dose(np.array([0.0, 3.0, 4.5, 6.0, 9.0, np.nan]), copies, levels)
    # Means of the levels are 0, 3 and 6; half-way between the last, log 4 and log 16
    # have log 8.
    assert value == pytest.approx([0, 3, 7, 15, 15, np.nan], nan_ok=True)
    assert low == pytest.approx([np.nan, 0, 3, 3, 15, np.nan], nan_ok=True)
    assert high == pytest.approx([3, 15, 15, np.nan, np.nan, np.nan], nan_ok=True)
    # One text fewer at each level, and a p-value needs texts of the next: none at the
    # upper end.
    fewer = np.tile(np.arange(39) < 38, 3)
    _, low, _ = dose(np.array([3.0, 9.0]), copies[fewer], levels[fewer])
    assert low == pytest.approx([np.nan, 3], nan_ok=True)
    # Where scores fall with copies, the fit is level: all copies are as good.
    value, _, _ = dose(
        np.array([0.0]), np.repeat([1.0, 3.0], 40), np.repeat([1.0, 0.0], 40)
    )
    assert value == pytest.approx([np.expm1((np.log(2) + np.log(4)) / 2)])


def test_limits_of_doses_hold_also_between_levels_and_beyond():
    levels, sizes = (
        np.array([0.0, 1, 2, 4, 8, 16, 32]),
        np.array([300, 80, 20, 45, 10, 60, 40]),
    )
    rng, true = np.random.default_rng(0), np.array([0.0, 1, 3, 8, 10, 30, 100])
    copies = np.repeat(levels, sizes)

    def scores(copies):
        return 2 * np.log1p(copies) + rng.standard_t(4, copies.size) * (
            1 + 0.2 * copies**0.5
        )

    missed, n_repeats = np.zeros((2, true.size)), 20
    for _ in range(120):
        _, *limits = dose(scores(np.repeat(true, n_repeats)), copies, scores(copies))
        low, high = (limit.reshape(-1, n_repeats).T for limit in limits)
        # Refuted with all beyond it
        missed += np.mean([low >= true, high <= true], axis=1) / 120
    assert (missed <= 0.04).all()  # with twice the 0.025 that is promised it is 0.05
    assert missed.max() > 0.01


def test_groups_have_their_dose_and_texts_are_counted():
    ladder = [
        rows("yardstick", np.linspace(n, n + 0.9, 40), group=str(n)) for n in (0, 2, 8)
    ]
    books = [rows("target", [n + 0.5] * 3, group=f"book {n}") for n in (0, 8)]
    scores = table(*books, *ladder)
    findings = find_levels(scores, by_group := plan(level="group"), tested=False)
    assert facts(findings, "book 8", "dose")["copies"] == [
        pytest.approx(8, abs=0.2),
        2,
        None,
    ]
    assert facts(findings, "book 0", "dose")["copies"] == [
        pytest.approx(0, abs=0.1),
        None,
        2,
    ]
    (sentence,) = dose_sentences(findings, by_group)
    assert (
        "book 8 about 8 times (more than 2); book 0 about 0 times (less than 2)"
        in sentence
    )
    (sentence,) = dose_sentences(find_levels(scores, plan(), tested=False), plan())
    assert " 3 of 6 texts more than 0 times." in sentence
    nulls = table(*books, *ladder, rows("non_member", [1.0] * 9))
    # A gate is closed
    assert find_levels(nulls, plan(), tested=False).filter(check="dose").is_empty()
    highest = plan(level="group", statistic="maximum")
    (sentence,) = dose_sentences(find_levels(scores, highest, tested=False), highest)
    assert sentence.endswith("is compared with single texts; take --statistic mean.")
    named_books = [
        rows("yardstick", [1.0] * 40, group=name)
        for name in ("well known", "most copied")
    ]
    assert (
        find_levels(table(*books, *named_books), plan(), tested=False)
        .filter(check="dose")
        .is_empty()
    )
