"""Length, date, script, punctuation and digits are compared one by one, and close the gate."""

import numpy as np
import polars as pl
import pytest

from mia_batch.diagnostics.blind import blind_baseline
from mia_batch.diagnostics.plain import plain_differences
from mia_batch.diagnostics.preflight import check_targets
from mia_batch.inference.findings import gate_findings, gate_verdict, why_withheld
from mia_batch.inference.verdicts import weight_findings
from mia_batch.report.sentences import gate_sentence
from tests.unit.diagnostics.test_preflight import VOCABULARY, table
from tests.unit.inference.scored import plan


def texts(rng, sizes):
    return [
        " ".join(VOCABULARY[position] for position in rng.integers(0, 100, size))
        for size in sizes
    ]


def sets(change, n=40):
    rng = np.random.default_rng(0)
    audited, nulls = (texts(rng, rng.integers(40, 60, n)) for _ in range(2))
    return table(
        [change(text, position) for position, text in enumerate(audited)], nulls
    )


CHANGES = {
    "length": lambda text, position: (
        f"{text} {' '.join(text.split()[: 5 + position % 3])}"
    ),
    "date": lambda text, position: (
        f"{text} {1950 + position}" if position % 3 else text
    ),
    "script": lambda text, position: text.replace("a", "ä") if position % 2 else text,
    "punctuation": lambda text, position: text.replace(" ", ", ", 1 + position % 2),
    "digits": lambda text, position: f"{text} {position + 10}",
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_number_is_found_by_itself(name):
    scored = sets(CHANGES[name]).with_columns(asked=pl.col("role") == "target")
    differences = {
        difference.name: difference
        for difference in blind_baseline(scored, label="asked").plain
    }
    assert differences[name].differs
    assert differences[name].auc > 0.6
    alike = {name, "digits"} if name == "date" else {name}
    assert not any(
        difference.differs
        for difference in differences.values()
        if difference.name not in alike
    )


def test_the_test_is_that_of_mann_and_whitney_over_groups():
    lengths = [1.0, 3.0, 2.0, 4.0, 9.0, 7.0]
    texts_frame = pl.DataFrame(
        {
            "surface": [
                {"words": n, "bytes": 0.0, "punctuation": 0.0, "digits": 0.0}
                for n in lengths
            ],
            "year": [0] * 6,
        }
    )
    label = np.array([False, False, False, False, True, True])
    first, *other_differences = plain_differences(
        texts_frame, label, np.array([0, 0, 1, 2, 3, 4])
    )
    # Means of groups: 2, 2 and 4 against 9 and 7, so that all 6 pairs agree.
    assert (first.name, first.auc) == ("length", 1.0)
    assert first.p_value == pytest.approx(0.1386, abs=1e-3)
    assert {
        (difference.auc, difference.p_value) for difference in other_differences
    } == {(0.5, 1.0)}


def test_a_difference_of_length_closes_the_gate_where_classifiers_are_undecided():
    scored = sets(
        lambda text, position: (
            text if position % 2 else f"{text} {' '.join(text.split()[:14])}"
        )
    )
    checked = check_targets(scored, seed=0)
    baseline = checked.findings.filter(check="blind_baseline", statistic="roc_auc")
    baseline = baseline.with_columns(verdict=pl.lit("undecided"))
    plain = checked.findings.filter(check="plain_differences")
    assert plain.filter(verdict="differs")["subject"].to_list() == ["length"]
    baselines = pl.concat([baseline, plain])
    gate = gate_findings(baselines, exploratory=False)
    assert gate_verdict(gate) == "withheld"
    assert "by length alone, p = " in str(why_withheld(gate))
    (sentence,) = gate_sentence(pl.concat([baselines, gate]))
    assert "(AUC " in sentence
    assert " by length alone" in sentence
    ranks = checked.blind_scores.select("target_id", "^targets_.*$").drop_nulls()
    assert "targets_blind_plain_length" in ranks.columns
    weights = weight_findings(scored, ranks, baselines, plan())
    assert weights.filter(statistic="n_effective")["verdict"].item() != "not_needed"


def test_texts_that_are_alike_leave_the_gate_as_it_was():
    checked = check_targets(sets(lambda text, _: text), seed=0)
    plain = checked.findings.filter(check="plain_differences")
    assert plain["verdict"].to_list() == ["alike"] * 5
    assert not [name for name in checked.blind_scores.columns if "plain" in name]
