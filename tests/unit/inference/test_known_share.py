"""The share of a corpus that a model knows, from documents that were drawn of it."""

import numpy as np
import polars as pl
import pytest

from mia_batch.inference.attempts import Attempts
from mia_batch.inference.estimates import Flagged, contamination_rate, fewest_members
from mia_batch.inference.findings import finding_rows
from mia_batch.inference.known_share import (
    draw_findings,
    known_share_findings,
    verbatim_share_findings,
)
from mia_batch.stats.drawn import (
    DomainStratum,
    Stratum,
    estimate_domain_share,
    hypergeometric_interval,
    share_interval,
)
from tests.unit.inference.scored import plan, rows, table

RULE = plan(fpr=0.05)


def draw_sources(*sources):
    """What was drawn: name, documents, documents drawn; one without a name is all."""
    names = [name for name, *_ in sources]
    return draw_findings(
        {
            "n_documents": sum(n for _, n, _ in sources),
            "n_drawn": sum(n for *_, n in sources),
            "column": None if names == [None] else "source",
            "sources": [list(source) for source in sources],
        }
    )


def of_source(name, scores, **columns):
    return [row | {"source": name} for row in rows("target", scores, **columns)]


def outside(nulls, nonmembers=(), members=()):
    return [
        *rows("non_member", nulls),
        *rows("calibration", nonmembers, member=False),
        *rows("calibration", members, member=True),
    ]


def find_shares(parts, findings, *, rule=RULE, reasons=None, blind_warns=False):
    every = [row for part in parts for row in part]
    named_rows = [
        row | {"document_id": row.get("document_id", f"d{i}")}
        for i, row in enumerate(every)
    ]
    scores = table(named_rows).with_columns(
        source=pl.Series([row.get("source") for row in every], dtype=pl.String)
    )
    reason = pl.Series(
        [(reasons or {}).get(i) for i in range(len(every))], dtype=pl.String
    )
    return known_share_findings(
        scores.with_columns(reason=reason).lazy(),
        scores.lazy(),
        rule,
        findings,
        blind_warns=blind_warns,
    )


def read_share(findings, source=None, statistic="share"):
    subject = pl.col("subject").eq_missing(pl.lit(source, pl.String))
    (row,) = findings.filter(subject, statistic=statistic).to_dicts()
    return row


NULLS = [
    i / 100 for i in range(100)
]  # 5 of which are above the threshold 0.95 or at it
ABOVE, BELOW = 2.0, 0.5


def scores_of(n, n_above):
    return [ABOVE] * n_above + [BELOW] * (n - n_above)


def test_the_rate_is_that_of_all_documents_and_varies_with_the_draw():
    parts = [
        rows("target", scores_of(200, 60)),
        outside(NULLS, scores_of(100, 5), scores_of(100, 80)),
    ]
    row = read_share(find_shares(parts, draw_sources((None, 5_000, 200))))
    assert row["verdict"] == "fieller"
    # By hand: (0.30 - 0.05) / (0.80 - 0.05)
    assert row["value"] == pytest.approx(1 / 3)
    share = estimate_domain_share([DomainStratum(5_000, 200, 200, 60)])
    expected = contamination_rate(
        Flagged(0.3 * 5_000, 5_000),
        Flagged(5, 100),
        Flagged(80, 100),
        blind_warns=False,
        drawing_variance=share.variance,
    )
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))
    # Where all were drawn, the draw adds nothing
    whole = read_share(find_shares(parts, draw_sources((None, 200, 200))))
    without_draw = contamination_rate(
        Flagged(60, 200), Flagged(5, 100), Flagged(80, 100), blind_warns=False
    )
    assert (whole["low"], whole["high"]) == pytest.approx(
        (without_draw.low, without_draw.high)
    )
    assert whole["high"] - whole["low"] < row["high"] - row["low"]


def test_sources_count_by_their_size_and_each_has_its_own_share():
    parts = [
        of_source("big", scores_of(100, 5)),
        of_source("small", scores_of(100, 80)),
        of_source(None, scores_of(30, 3)),
        outside(NULLS, scores_of(100, 5), scores_of(100, 80)),
    ]
    sources = draw_sources(("big", 9_000, 100), ("small", 900, 100), (None, 100, 30))
    findings = find_shares(parts, sources)
    flagged = (9_000 * 0.05 + 900 * 0.8 + 100 * 0.1) / 10_000
    assert read_share(findings)["value"] == pytest.approx((flagged - 0.05) / 0.75)
    values = [
        read_share(findings, name, "share_of_source")["value"]
        for name in ("big", "small", None)
    ]
    assert values == pytest.approx([0.0, 1.0, 0.05 / 0.75])


def test_without_calibration_data_there_is_a_lower_bound():
    parts = [rows("target", scores_of(200, 60)), outside(NULLS)]
    row = read_share(find_shares(parts, draw_sources((None, 5_000, 200))))
    low = hypergeometric_interval(Stratum(5_000, 200, 60)).low
    fewest = fewest_members(
        Flagged(int(low * 5_000 + 1e-9), 5_000), n_null=100, rank=5, confidence=0.975
    )
    assert (row["low"], row["high"], row["value"]) == (fewest / 5_000, 1.0, None)
    assert row["verdict"] == "beta_binomial"
    assert row["reason"] == "without calibration data there is a lower bound alone"
    sources = draw_sources(("a", 5_000, 100), ("b", 50_000, 100))
    halves = [of_source("a", scores_of(100, 60)), of_source("b", scores_of(100, 0))]
    of_all = read_share(find_shares([*halves, outside(NULLS)], sources))
    low = share_interval([Stratum(5_000, 100, 60), Stratum(50_000, 100, 0)]).low
    fewest = fewest_members(
        Flagged(int(low * 10_000), 10_000), n_null=100, rank=5, confidence=0.975
    )
    assert of_all["low"] == fewest / 10_000


def test_documents_that_cannot_be_asked_about_are_not_what_the_share_is_of():
    parts = [
        rows("target", scores_of(200, 60) + [None] * 100),
        outside(NULLS, scores_of(100, 5), scores_of(100, 80)),
    ]
    reasons = dict.fromkeys(range(200, 300), "the text is too short")
    findings = find_shares(parts, draw_sources((None, 5_000, 300)), reasons=reasons)
    assert read_share(findings)["value"] == pytest.approx(1 / 3)
    assert read_share(findings, statistic="n_compared")["value"] == 200
    # A bound is about all documents, of which those count as not known
    bound = read_share(
        find_shares([parts[0], outside(NULLS)], draw_sources((None, 5_000, 300)))
    )
    low = hypergeometric_interval(Stratum(5_000, 300, 60)).low
    fewest = fewest_members(
        Flagged(int(low * 5_000 + 1e-9), 5_000), n_null=100, rank=5, confidence=0.975
    )
    assert bound["low"] == fewest / 5_000


def test_documents_without_a_score_widen_the_limits_to_whatever_it_may_be():
    calibration = (scores_of(100, 5), scores_of(100, 80))
    sizes = draw_sources((None, 5_000, 200))

    def find(missing_as):
        scores = scores_of(160, 48) + [missing_as] * 40
        return read_share(
            find_shares([rows("target", scores), outside(NULLS, *calibration)], sizes)
        )

    row = find(None)
    assert row["value"] is None
    assert row["low"] == pytest.approx(find(BELOW)["low"])
    assert row["high"] == pytest.approx(find(ABOVE)["high"])
    assert "40 of 400 units" in row["reason"]


def test_windows_of_a_document_count_once():
    parts = []
    for number in range(60):
        score = ABOVE if number < 30 else BELOW
        for window in range(3):
            parts += rows(
                "target", [score], document_id=f"x{number}", window_index=window
            )
    findings = find_shares([parts, outside(NULLS)], draw_sources((None, 1_000, 60)))
    assert read_share(findings, statistic="n_compared")["value"] == 60
    assert read_share(findings, statistic="n_above")["value"] == 30


def test_groups_of_comparison_documents_are_worth_fewer():
    targets = rows("target", scores_of(200, 60))
    alone = rows("non_member", NULLS)
    grouped = [row | {"group": f"g{i // 4}"} for i, row in enumerate(alone)]
    sizes = draw_sources((None, 5_000, 200))
    bounds = [
        read_share(find_shares([targets, nulls], sizes))["low"]
        for nulls in (alone, grouped)
    ]
    assert bounds[1] < bounds[0]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([rows("target", [1.0] * 30)], "without comparison texts they only rank"),
        (
            [rows("target", [1.0] * 30, member=True), outside(NULLS)],
            "documents are labelled",
        ),
        ([rows("target", [1.0] * 30), outside(NULLS[:19])], "19 comparison documents"),
        (
            [
                rows("target", [1.0] * 30),
                [row | {"group": f"g{i % 19}"} for i, row in enumerate(outside(NULLS))],
            ],
            "19 comparison documents, or groups of them, are too few",
        ),
        (
            [rows("target", [1.0] * 19), outside(NULLS)],
            "19 documents drawn that can be",
        ),
    ],
)
def test_where_nothing_can_be_said_the_reason_is(parts, reason):
    row = read_share(find_shares(parts, draw_sources((None, 1_000, 30))))
    assert (row["value"], row["low"], row["high"]) == (None, None, None)
    assert row["reason"].startswith(reason)


def test_without_a_draw_there_are_no_rows():
    assert find_shares([rows("target", [1.0])], draw_findings(None)).is_empty()


def test_calibration_that_blind_classifiers_tell_apart_leaves_the_bound():
    parts = [
        rows("target", scores_of(200, 60)),
        outside(NULLS, scores_of(100, 5), scores_of(100, 80)),
    ]
    row = read_share(
        find_shares(parts, draw_sources((None, 5_000, 200)), blind_warns=True)
    )
    assert row["verdict"] == "beta_binomial"
    assert "distinguished without the model" in row["reason"]
    assert 0 < row["low"] < 1 / 3


def test_other_attempts_withhold_the_shares_and_not_the_sizes():
    parts = [rows("target", scores_of(200, 60)), outside(NULLS)]
    sizes = draw_sources((None, 5_000, 200))
    findings = pl.concat([sizes, find_shares(parts, sizes), finding_rows("reported")])
    verdicts = pl.LazyFrame()
    counted_findings = Attempts(2).findings(findings, verdicts, RULE)
    row = read_share(counted_findings.filter(check="known_share"))
    assert (row["low"], row["high"], row["verdict"]) == (None, None, None)
    assert row["reason"].startswith("withheld: it holds for one attempt alone")
    assert counted_findings.filter(check="draw").equals(sizes)
    assert Attempts(1).findings(findings, verdicts, RULE).equals(findings)


# What came out word for word.


def find_verbatim(words, sizes, *, askable=None, all_continued=True, names=None):
    n = len(words)
    scores = table(
        [
            row | {"document_id": f"d{i}"}
            for i, row in enumerate(rows("target", [0.0] * n))
        ]
    )
    askable = askable or [True] * n
    reasons = [None if can_ask else "too short" for can_ask in askable]
    targets = scores.with_columns(
        source=pl.Series(names or [None] * n, dtype=pl.String),
        reason=pl.Series(reasons, dtype=pl.String),
    )
    runs = pl.DataFrame({"longest_words": pl.Series(words, dtype=pl.UInt32)})
    return verbatim_share_findings(
        targets.lazy(), runs, None, sizes, all_continued=all_continued
    )


def test_documents_that_come_out_are_a_share_with_an_exact_interval():
    words = [25, 20, 19, *[3] * 97]
    row = read_share(find_verbatim(words, draw_sources((None, 4_000, 100))))
    assert row["value"] == 0.02
    interval = hypergeometric_interval(Stratum(4_000, 100, 2))
    assert (row["low"], row["high"]) == interval[:2]
    sizes = draw_sources(("a", 4_000, 50), ("b", 400, 50))
    findings = find_verbatim(words, sizes, names=["a"] * 50 + ["b"] * 50)
    assert read_share(findings)["value"] == pytest.approx(4_000 * 2 / 50 / 4_400)
    of_b = read_share(findings, "b", "share_of_source")
    assert (of_b["value"], of_b["low"]) == (0.0, 0.0)
    assert of_b["high"] == hypergeometric_interval(Stratum(400, 50, 0)).high


def test_documents_without_an_answer_may_come_out():
    words = [25, *[None] * 10, *[3] * 89]
    row = read_share(find_verbatim(words, draw_sources((None, 4_000, 100))))
    assert (row["value"], row["low"]) == (
        None,
        hypergeometric_interval(Stratum(4_000, 100, 1)).low,
    )
    assert row["high"] == hypergeometric_interval(Stratum(4_000, 100, 11)).high
    assert row["reason"] == "10 of 100 documents have windows without an answer"
    # Those that are too short cannot
    askable = [True, *[False] * 10, *[True] * 89]
    row = read_share(
        find_verbatim(words, draw_sources((None, 4_000, 100)), askable=askable)
    )
    assert row["value"] == 0.01


def test_of_the_highest_scores_alone_there_is_a_lower_limit():
    words = [25, *[None] * 99]
    sizes = draw_sources((None, 4_000, 100))
    row = read_share(find_verbatim(words, sizes, all_continued=False))
    assert (row["value"], row["high"]) == (None, 1.0)
    assert row["low"] == hypergeometric_interval(Stratum(4_000, 100, 1)).low
    none_out = read_share(find_verbatim([3, *[None] * 99], sizes, all_continued=False))
    assert (none_out["low"], none_out["high"]) == (None, None)
    assert "highest scores alone" in none_out["reason"]
    assert find_verbatim([None] * 100, sizes).is_empty()


# Coverage: members' scores overlap those of others.


def simulate(share, rng, *, calibrated):
    """Draw of two sources with unequal shares; return whether the share of all is covered."""
    sources = [("a", 40_000, 150), ("b", 10_000, 150)]
    factors = (0.5, 3.0) if share <= 0.1 else (1.0, 1.0)
    n_members = [
        round(share * factor * n)
        for factor, (_, n, _) in zip(factors, sources, strict=True)
    ]
    truth = sum(n_members) / 50_000
    parts = []
    for (name, n, n_drawn), members in zip(sources, n_members, strict=True):
        n_known = int(rng.hypergeometric(members, n - members, n_drawn))
        scores = rng.standard_normal(n_drawn)
        scores[:n_known] += 1.5
        parts.append(of_source(name, scores.tolist()))
    calibration = ((), ())
    if calibrated:
        nonmembers = rng.standard_normal(100).tolist()
        calibration = (nonmembers, (1.5 + rng.standard_normal(100)).tolist())
    parts.append(outside(rng.standard_normal(200).tolist(), *calibration))
    row = read_share(find_shares(parts, draw_sources(*sources)))
    if row["low"] is None:
        return True
    return row["low"] <= truth <= row["high"]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.5])
def test_the_interval_covers_the_share_of_all_documents(share):
    rng = np.random.default_rng(1)
    covered = [simulate(share, rng, calibrated=True) for _ in range(60)]
    # Of 60 at 95 %, fewer than 52 come with a probability of 0.3 %
    assert sum(covered) >= 52


def test_the_lower_bound_holds():
    rng = np.random.default_rng(2)
    covered = [
        simulate(share, rng, calibrated=False)
        for share in (0.0, 0.01, 0.5)
        for _ in range(20)
    ]
    assert sum(covered) >= 56
