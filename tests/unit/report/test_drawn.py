"""What is written of documents drawn of a corpus, and of the shares of all of them."""

from math import ceil, floor

import polars as pl
import pytest

from mia_batch.inference.findings import finding_rows
from mia_batch.inference.known_share import draw_findings
from mia_batch.report.answer import answer
from mia_batch.report.drawn import (
    draw_sentences,
    list_shares,
    write_missing_share,
    write_percent,
    write_share,
)
from mia_batch.report.sentences import RunResults
from mia_batch.schemas import Metrics, Rollup, Verdicts
from tests.unit.inference.scored import plan

SIZES = {"n_documents": 4_000_000, "n_drawn": 5_000}
DRAW_FINDINGS = draw_findings(
    {**SIZES, "column": None, "sources": [[None, 4_000_000, 5_000]]}
)
BY_SOURCE = draw_findings(
    {
        **SIZES,
        "column": "site",
        "sources": [["wiki", 3_000_000, 4_000], [None, 1_000_000, 1_000]],
    }
)


def share(check, low, high, value=None, statistic="share", **columns):
    row = {"statistic": statistic, "value": value, "low": low, "high": high}
    return finding_rows(check, [row | columns])


def known_share(low, high, value=None, method="fieller", **columns):
    return share("known_share", low, high, value, verdict=method, **columns)


def join(*findings):
    return pl.concat([DRAW_FINDINGS, *findings])


@pytest.mark.parametrize(
    ("findings", "sentence"),
    [
        (
            [known_share(0.0241, 0.0396, 0.0312)],
            "About 3.1 % of these 4,000,000 documents are known to the model (95 % CI 2.4"
            " to 4.0; 5,000 drawn).",
        ),
        (
            [known_share(0.0241, 1.0, None, "beta_binomial")],
            "At least 2.4 % of these 4,000,000 documents are known to the model (95 %"
            " confidence; 5,000 drawn).",
        ),
        (
            [known_share(0.0, 1.0, None, "beta_binomial")],
            "It is not shown that any of these 4,000,000 documents is known to the model"
            " (5,000 drawn).",
        ),
        (
            [known_share(0.02, 0.3, None, reason="some scores are missing")],
            "Between 2.0 and 30.0 % of these 4,000,000 documents are known to the model"
            " (95 % confidence; 5,000 drawn; some scores are missing).",
        ),
        (
            [
                known_share(0.0241, 0.0396, 0.0312),
                finding_rows(
                    "known_share", [{"statistic": "n_compared", "value": 4_800}]
                ),
            ],
            "About 3.1 % of those of these 4,000,000 documents that are long enough are"
            " known to the model (95 % CI 2.4 to 4.0; 5,000 drawn, 4,800 of them long"
            " enough to be compared).",
        ),
        (
            [share("verbatim_share", 0.00011, 0.0021, 0.0006)],
            "About 0.060 % of these 4,000,000 documents come out word for word (95 % CI"
            " 0.011 to 0.21; 5,000 drawn).",
        ),
        (
            [share("verbatim_share", 0.0, 0.000737, 0.0)],
            "At most 0.074 % of these 4,000,000 documents come out word for word, and none"
            " of those drawn does (95 % confidence; 5,000 drawn).",
        ),
        (
            [share("verbatim_share", 0.0011, 1.0, reason="few were asked")],
            "At least 0.11 % of these 4,000,000 documents come out word for word (95 %"
            " confidence; 5,000 drawn; few were asked).",
        ),
        ([known_share(None, None, None, None, reason="withheld")], None),
    ],
)
def test_the_sentence_says_the_share_with_its_limits(findings, sentence):
    assert write_share(join(*findings)) == sentence


def test_a_share_by_scores_comes_before_one_of_what_comes_out():
    both_shares = join(
        known_share(0.02, 0.04, 0.03), share("verbatim_share", 0.0, 0.001, 0.0)
    )
    assert str(write_share(both_shares)).startswith(
        "About 3.0 % of these 4,000,000 documents are"
    )


def test_without_a_draw_nothing_is_written():
    nothing = finding_rows("roles")
    assert write_share(nothing) is None
    assert write_missing_share(nothing) is None
    assert [*draw_sentences(nothing)] == []
    assert list_shares(nothing).is_empty()


def test_a_lower_bound_says_why_there_is_no_more():
    bound = known_share(
        0.02, 1.0, None, "beta_binomial", reason="20 members are too few"
    )
    assert [*draw_sentences(join(bound))][1].endswith(
        "why there is no more: 20 members are too few."
    )


def test_each_source_has_its_line():
    findings = pl.concat(
        [
            BY_SOURCE,
            known_share(0.01, 0.03, 0.02),
            known_share(0.0, 0.02, 0.01, subject="wiki", statistic="share_of_source"),
            known_share(
                None, None, None, None, statistic="share_of_source", reason="too few"
            ),
        ]
    )
    sentences = [*draw_sentences(findings)]
    assert sentences[0] == (
        "5,000 of 4,000,000 documents were drawn by lot, so many of each value of 'site':"
        " what follows of single documents is about these."
    )
    assert sentences[1].startswith("Known to the model means in the training data")
    assert sentences[3:] == [
        "site = wiki: about 1.0 % of the 3,000,000 documents are known to the model (95 %"
        " CI 0 to 2.0; 4,000 drawn).",
        "site without a value: no share of the 1,000,000 documents (1,000 drawn): too few.",
    ]
    assert list_shares(findings).select("source", "n_documents", "share").rows() == [
        (None, 4_000_000, 0.02),
        ("wiki", 3_000_000, 0.01),
        (None, 1_000_000, None),
    ]


@pytest.mark.parametrize(
    ("value", "rounding", "text"),
    [
        (0.0312, round, "3.1"),
        (0.5, round, "50.0"),
        (1.0, round, "100.0"),
        (0.0, ceil, "0"),
        (0.000604, round, "0.060"),
        (0.0396, floor, "3.9"),
        (0.0391, ceil, "4.0"),
        (0.00021, floor, "0.021"),
    ],
)
def test_percents_have_the_digits_that_say_something(value, rounding, text):
    assert write_percent(value, rounding) == text


# The answer.


def roles(nulls):
    counts = {"n_unknown": 5_000, "n_nulls": nulls, "n_canaries": 0}
    return finding_rows(
        "roles", [{"statistic": name, "value": n} for name, n in counts.items()]
    )


def write_answer(*findings, nulls=500):
    results = RunResults(
        Metrics.create_empty(),
        Verdicts.create_empty(lazy=True),
        pl.concat([roles(nulls), DRAW_FINDINGS, *findings]),
        plan(),
    )
    return answer(results, Rollup.create_empty(), books=False)


def gate(verdict):
    row = {
        "statistic": "roc_auc",
        "value": 0.9,
        "verdict": verdict,
        "reason": "withheld",
    }
    return finding_rows("gate", [row])


REPORTED = finding_rows(
    "reported",
    [
        {"statistic": "n_tests", "value": 5_000},
        {"statistic": "n_reported", "value": 0},
        {"statistic": "n_null", "value": 500},
    ],
)


def test_the_answer_begins_with_the_share():
    assert write_answer(
        known_share(0.0241, 0.0396, 0.0312), REPORTED, gate("open")
    ) == (
        "About 3.1 % of these 4,000,000 documents are known to the model (95 % CI 2.4 to"
        " 4.0; 5,000 drawn). Among those drawn: none of 5,000 texts stands out from 500"
        " comparison texts, which does not show that they were not learnt."
    )


def test_a_share_that_the_gate_closes_is_not_said():
    sentence = write_answer(known_share(0.0241, 0.0396, 0.0312), gate("withheld"))
    assert sentence.startswith("No answer, because texts and comparison texts can be")
    assert sentence.endswith(
        "What share of the 4,000,000 documents is known, of which 5,000 were drawn, is not"
        " said."
    )
    assert "3.1" not in sentence


def test_a_share_may_be_exploratory_or_in_doubt():
    shares = known_share(0.0241, 0.0396, 0.0312), REPORTED
    assert write_answer(*shares, gate("exploratory")).startswith(
        "Exploratory: about 3.1 % of these"
    )
    late = finding_rows("plan", [{"statistic": "n_changed", "verdict": "changed"}])
    assert write_answer(*shares, gate("open"), late).startswith(
        "Exploratory: about 3.1 %"
    )
    doubtful = write_answer(*shares, gate("doubtful"))
    assert " In doubt, because training may not be the only" in doubtful


def test_what_comes_out_is_said_without_comparison_texts():
    verbatim = share("verbatim_share", 0.0001, 0.0021, 0.0006)
    missing = known_share(None, None, None, None, reason="without comparison texts")
    assert write_answer(verbatim, missing, nulls=0).startswith(
        "About 0.060 % of these 4,000,000 documents come out word for word (95 % CI 0.010"
        " to 0.21; 5,000 drawn). Among those drawn: scores only rank your texts"
    )
