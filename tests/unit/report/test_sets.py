"""What is said of what was learned from all scores."""

from __future__ import annotations

import pytest

from mia_batch.inference.comparison import CollectionTest
from mia_batch.inference.findings import finding_rows
from mia_batch.inference.sets import DatasetInference
from mia_batch.report.sentences import set_sentences


def combination(verdict):
    counts = {"n_members": 1200.0, "n_others": 30.0}
    return finding_rows(
        "combination",
        [{"statistic": name, "value": n, "verdict": verdict} for name, n in counts.items()],
    )


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("calibration", "from 1,200 calibration members and 30 calibration non-members, for each"),
        ("all", "from 1,200 known members and 30 other texts, for each text from those of other"),
        ("too_few", "combination_v1 has no scores: there are texts of fewer than 10 groups"),
    ],
)
def test_the_teachers_are_counted(verdict, said):
    (line,) = set_sentences(combination(verdict))
    assert said in line


def test_dataset_inference_is_said_with_what_it_rests_on():
    found = DatasetInference(
        n_learned=40,
        n_tested=(21, 19),
        test=CollectionTest(25.0, 0.0123, "permutation_of_9999"),
        paper_p_value=1e-5,
        weights={"loss_v1": 0.5},
    )
    (line,) = set_sentences(found.findings())
    assert line.startswith(
        "All attacks together (dataset inference, learned on 40 groups, tested on 21 others "
        "against 19 outside the training data): p = 0.0123, exploratory;"
    )
    assert line.endswith("p = 1e-05. Both suppose that the sets differ in nothing but training.")


def test_codec_is_said_with_its_control():
    rows = [
        {"subject": name, "statistic": "share", "value": value, "low": 0.1, "high": 0.75}
        for name, value in (("targets", 0.5), ("non-members", 0.25))
    ]
    (line,) = set_sentences(finding_rows("codec", rows))
    assert line == (
        "Less likely after the shots than alone (CoDeC): 50% of the targets (10% to 75%) and 25% "
        "of the non-members (10% to 75%), 95 % intervals. Only a difference of the two may come "
        "from training."
    )
    lost = [row | {"value": None, "reason": "none"} for row in rows]
    assert not [*set_sentences(finding_rows("codec", lost))]


def test_a_refused_answer_has_its_reason():
    (line,) = set_sentences(DatasetInference(n_learned=9, reason="there is none").findings())
    assert line == "All attacks together (dataset inference): no p-value (there is none)."
