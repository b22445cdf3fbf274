from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pytest
from benches.blind import simulate
from polars.testing import assert_frame_equal
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB

from mia_batch.diagnostics import blind
from mia_batch.diagnostics import blind as module
from mia_batch.schemas import Metrics
from mia_batch.stats.intervals import Folds, auc_interval, deal_folds

SCHEMA = {
    "target_id": pl.String,
    "target": pl.String,
    "member": pl.Boolean,
    "group": pl.String,
    "document_id": pl.String,
}


def frame(*rows):
    """Rows without their ids, which are 00, 01, 02 ..."""
    numbered = [(f"{place:02}", *row) for place, row in enumerate(rows)]
    return pl.LazyFrame(numbered, SCHEMA, orient="row")


def test_what_is_left_out_is_counted_and_the_order_of_rows_means_nothing():
    labelled_texts = blind.read_texts(
        frame(
            ("a", True, None, None), (None, False, None, None), ("b", None, None, None)
        ),
        "member",
    )
    assert labelled_texts.frame["target_id"].to_list() == ["00"]
    assert labelled_texts.n_labelled == 2
    rows = frame(
        *[(f"text {place}", place % 3 == 0, None, f"d{place}") for place in range(30)]
    )
    labelled_texts, turned = (
        blind.read_texts(rows, "member"),
        blind.read_texts(rows.reverse(), "member"),
    )
    assert_frame_equal(labelled_texts.frame, turned.frame)
    assert labelled_texts.cluster.tolist() == turned.cluster.tolist()


def test_of_many_texts_clusters_give_as_evenly_as_they_can(monkeypatch):
    monkeypatch.setattr(module, "MAX_TEXTS_PER_CLASS", 5)
    groups = ["a"] * 6 + ["b"] * 2 + ["c"]
    rows = [("t", True, group, None) for group in groups] + [
        ("t", False, None, None)
    ] * 3
    labelled_texts = blind.read_texts(frame(*rows), "member")
    # The first of a, b and c, the second of a and b; and all texts of the other class.
    assert labelled_texts.frame["target_id"].to_list() == [
        "00",
        "01",
        "06",
        "07",
        "08",
        "09",
        "10",
        "11",
    ]
    assert labelled_texts.n_labelled == 12


def test_classifiers_see_what_came_before_an_answer():
    rows = frame(("Yes.", True, None, None), ("No.", False, None, None))
    conversations = pl.Series(["before", None])
    columns = blind.read_texts(
        rows.with_columns(conversation=conversations), "member"
    ).frame
    assert columns["text"].to_list() == ["before\nYes.", "No."]


def test_what_classifiers_see_of_a_text():
    text = "In 2017, 1999 and 20190 and 1899:\nA, B!"
    columns = blind.read_texts(
        frame((text, True, None, None), ("", False, None, None)), "member"
    ).frame
    assert columns["text"].to_list() == [text, ""]
    assert columns["year"].to_list() == [2019, 0]
    numbers = columns["surface"].struct.unnest()
    # One character more than there is, so that an empty text has shares, too.
    assert numbers["characters"].exp().to_list() == pytest.approx([40, 1])
    assert numbers["words"].exp().to_list() == pytest.approx([10, 1])
    counts = {
        "punctuation": 4,
        "commas": 2,
        "digits": 17,
        "numbers": 4,
        "capitals": 3,
        "spaces": 8,
        "lines": 1,
    }
    shares = {name: numbers[name][0] * 40 for name in counts}
    assert shares == pytest.approx(counts)
    assert numbers["zlib"][1] == 8
    assert numbers["bytes"].to_list() == [1, 1]


def test_a_long_text_is_seen_to_its_end_but_for_its_words(monkeypatch):
    monkeypatch.setattr(module, "MAX_CHARACTERS", 4)
    columns = blind.read_texts(frame(("word 2020", True, None, None)), "member").frame
    assert columns.select("text", "year").row(0) == ("word", 2020)


@pytest.mark.parametrize(
    ("texts", "counts"),  # sorted; the last word is of no text
    [(["", "..."], [[0], [0]]), (["A a's Über_x 1"], [[0, 1, 1, 1, 2]])],
)
def test_words_are_lower_cased_runs_of_word_characters(texts, counts):
    two_texts = blind.read_texts(
        frame(*((text, True, None, None) for text in texts)), "member"
    )
    words = (
        blind.build_classifiers(two_texts.frame)["blind_naive_bayes_v1"]
        .args[0]
        .toarray()
    )
    assert np.sort(words).tolist() == counts


def test_batches_choose_the_same_texts_as_all_at_once(monkeypatch):
    """120 texts of 20 clusters of very different sizes, 30 wanted of a class."""
    groups = [
        number**3 % 101 * number % 20 // (1 + number % 4) for number in range(120)
    ]
    of_all = [
        ("text", number % 2 > 0, f"g{group}", None)
        for number, group in enumerate(groups)
    ]
    rows = frame(*of_all).with_columns(
        target_id=pl.col("target_id").hash().cast(pl.String)
    )
    monkeypatch.setattr(module, "MAX_TEXTS_PER_CLASS", 30)
    whole = blind.read_texts(rows, "member")
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 7)
    pieces = blind.read_texts(rows, "member")
    assert_frame_equal(pieces.frame, whole.frame)
    assert pieces.cluster.tolist() == whole.cluster.tolist()
    assert (pieces.n_labelled, whole.frame.height) == (120, 60)


GENERATOR = np.random.default_rng(0)
COUNTS = GENERATOR.poisson(0.7, (40, 15)).astype(float)
TRAIN, TEST = np.arange(0, 40, 2), np.arange(1, 40, 2)
LABELS = GENERATOR.permuted(np.tile(np.arange(20)[:, None] < 8, 3), axis=0)


def test_naive_bayes_and_logistic_regression_are_near_the_exact_ones():
    scores = blind.naive_bayes(csr_array(COUNTS), TRAIN, TEST, LABELS)
    for column, label in enumerate(LABELS.T):
        joint = (
            MultinomialNB()
            .fit(COUNTS[TRAIN], label)
            .predict_joint_log_proba(COUNTS[TEST])
        )
        prior = np.log(8 / 12)
        assert scores[:, column] == pytest.approx(joint[:, 1] - joint[:, 0] - prior)
    scores = blind.logistic(csr_array(COUNTS), TRAIN, TEST, LABELS)
    for column, label in enumerate(LABELS.T):
        # liblinear penalises the intercept, as if it were one more number of each text.
        values = np.column_stack([COUNTS, np.ones(40)])
        exact = LogisticRegression(
            C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000
        )
        odds = exact.fit(values[TRAIN], label).decision_function(values[TEST])
        assert scores[:, column] == pytest.approx(odds, abs=0.02)


def test_ridge_solves_its_equations():
    """Of numbers X and centred classes y, with w = (X'X + alpha)^-1 X'y."""
    similarity = COUNTS @ COUNTS.T
    predictions = blind.ridge(similarity, 0.5, TRAIN, TEST, LABELS)
    train_counts = COUNTS[TRAIN]
    alpha = 0.5 * np.mean([row @ row for row in COUNTS])
    weights = np.linalg.solve(
        train_counts.T @ train_counts + alpha * np.eye(15),
        train_counts.T @ (LABELS - LABELS.mean(axis=0)),
    )
    assert predictions == pytest.approx(COUNTS[TEST] @ weights)
    # Texts that have nothing in common.
    assert not blind.ridge(np.zeros((40, 40)), 0.5, TRAIN, TEST, LABELS).any()


def test_direction_is_learned_from_the_training_texts():
    value = np.array([1.0, 2.0, 3.0, 2.0, 9.0])
    train, test = np.arange(3), np.array([3, 4])
    labels = np.array(
        [[True, False, False], [False, False, True], [False, True, False]]
    )
    projections = blind.direction(value, train, test, labels)
    # First, last, and middle text true: AUC 0, 1 and 1/2.
    assert projections.tolist() == [[-2.0, 2.0, 2.0], [-9.0, 9.0, 9.0]]


@dataclass
class Spy:
    """Scores every text by its number, and keeps what it was shown."""

    shown: list[Any] = field(default_factory=list)

    def __call__(self, train, test, labels):
        self.shown.append((train, test, labels))
        return np.repeat(test[:, None].astype(float), labels.shape[1], axis=1)


def outcome(score, label, permuted):
    areas = [
        (member > nonmember) + (member == nonmember) / 2
        for member in score[label]
        for nonmember in score[~label]
    ]
    return blind.Outcome(
        label=label, score=score, auc=float(np.mean(areas)), permuted=permuted
    )


def test_no_classifier_sees_the_labels_that_it_is_asked_for():
    label = np.tile([True, False], 10)
    folds = deal_folds(
        label, np.arange(20) // 4, n_folds=5, generator=np.random.default_rng(0)
    )
    spy = Spy()
    blind.cross_validate(
        {"spy": spy}, label, folds, n_permutations=3, generator=np.random.default_rng(1)
    )
    assert sorted(np.concatenate([test for _, test, _ in spy.shown])) == list(range(20))
    for train, test, labels in spy.shown:
        assert sorted([*train, *test]) == list(range(20))
        assert set(train // 4).isdisjoint(test // 4)
        assert labels.shape == (16, 4)
        assert labels[:, 0].tolist() == label[train].tolist()


def test_scores_become_ranks_within_folds():
    label = np.array([True, False, False, True, True, False])
    folds = Folds(cluster=np.arange(6), fold=np.array([0, 1, 0, 1, 0, 1]), n_folds=2)
    value = np.array([5.0, 100.0, 3.0, 300.0, 3.0, 200.0])
    validated = blind.cross_validate(
        {"value": partial(blind.direction, value)},
        label,
        folds,
        n_permutations=1,
        generator=np.random.default_rng(0),
    )["value"]
    # Both folds put members higher: 5 above 3 and 3, 300 above 200 and 100.
    assert validated.score == pytest.approx([5 / 6, 1 / 6, 2 / 6, 5 / 6, 2 / 6, 3 / 6])
    # Members 5/6, 5/6, 2/6 against 1/6, 2/6, 3/6: 3 + 3 + 1.5 of 9.
    assert validated.auc == pytest.approx(7.5 / 9)
    assert validated.permuted.shape == (1,)


def test_limits_move_away_by_the_ratio_of_deviations():
    generator = np.random.default_rng(0)
    label = np.repeat([True, False], 30)
    score = generator.permutation(60) + 20.5 * label
    # Deviation of a fixed score: the root of 61 / (12 x 30 x 30).
    expected = (61 / 10_800) ** 0.5
    wide = outcome(score, label, np.array([0.5 - 1.5 * expected, 0.5 + 1.5 * expected]))
    plain = auc_interval(score[label], score[~label])
    interval = wide.interval()
    assert interval.low == pytest.approx(wide.auc - 1.5 * (wide.auc - plain.low))
    assert interval.high == pytest.approx(wide.auc + 1.5 * (plain.high - wide.auc))
    assert (interval.method, interval.confidence) == ("delong_logit_permuted", 0.95)
    narrow = outcome(score, label, np.array([0.5, 0.5])).interval()
    assert (narrow.low, narrow.high) == pytest.approx((plain.low, plain.high))


def test_limits_of_ties_and_at_either_end():
    """Two values, half of the texts each: deviation as of a difference of two shares, halved."""
    label, score = np.repeat([True, False], 4), np.tile([0.25, 0.75], 4)
    # Var of the members' share among 8 texts, 4 high, is 1/4 x 1/4 x 4/7; AUC - 1/2 is
    # that share less 1/2, so the deviation is the root of 1/28.
    interval = outcome(score, label, np.array([0.5 + 2 * (1 / 28) ** 0.5])).interval()
    plain = auc_interval(score[label], score[~label])
    assert interval.high == pytest.approx(min(1.0, 0.5 + 2 * (plain.high - 0.5)))
    label = np.repeat([True, False], 5)
    constant = outcome(np.full(10, 0.5), label, np.full(9, 0.5)).interval()
    assert constant.low < 0.5 < constant.high
    perfect = outcome(np.arange(10) < 5, label, np.array([0.0, 1.0])).interval()
    assert 0 <= perfect.low < perfect.high == 1


WORDS = np.array([f"{letter}{letter}" for letter in "abcdefghijklmnopqrst"])


def texts(label, *, group=None, seed=0, n_words=8, mark=None):
    """Random words; texts of the first class, or those marked, have one more."""
    generator = np.random.default_rng(seed)
    sentences = [" ".join(generator.choice(WORDS, n_words)) for _ in label]
    marks = [""] * len(label) if mark is None else mark
    columns = {
        "target_id": [f"{place:04}" for place in range(len(label))],
        "target": [
            f"{text} {mark}" for text, mark in zip(sentences, marks, strict=True)
        ],
        "member": label,
        "group": group if group is None else list(map(str, group)),
        "document_id": None,
    }
    schema = {"member": pl.Boolean, "group": pl.String, "document_id": pl.String}
    return pl.LazyFrame(columns, schema_overrides=schema)


def coin(n, seed=0):
    return np.random.default_rng(seed).permutation(np.arange(n) < n // 2)


@pytest.fixture(scope="module")
def separable():
    """Sixty texts, and one that is null."""
    label = np.append(coin(60), True)
    rows = texts(label, mark=np.where(label, "old", "new"))
    present = pl.when(pl.col("target_id") != "0060")
    return blind.blind_baseline(rows.with_columns(target=present.then("target")))


def test_labels_that_a_word_gives_away_are_separable(separable):
    assert separable.verdict == "separable"
    assert separable.p_value == pytest.approx(1 / 20)  # of 19 permutations
    assert separable.auc == separable.metrics["value"].max() > 0.99
    metrics = Metrics.validate(separable.metrics)
    assert metrics["attack"].to_list() == list(blind.BLIND_CLASSIFIERS)
    of_all = metrics.select("metric", "slice", "confidence").unique().row(0)
    assert of_all == ("roc_auc", "all", 0.95)
    assert metrics.select("n_members", "n_nonmembers", "n_unscored").unique().row(
        0
    ) == (30, 30, 1)
    assert (metrics["low"] < metrics["high"]).all()
    assert metrics["reason"].null_count() == 5
    scores = separable.scores
    assert scores.columns == ["target_id", *blind.BLIND_CLASSIFIERS]
    assert scores["target_id"].to_list() == [f"{place:04}" for place in range(60)]
    values = scores.drop("target_id")
    assert values.min_horizontal().min() > 0
    assert values.max_horizontal().max() < 1
    # No year in any text: each text scores as the mean of its fold.
    assert values["blind_year_v1"].unique().to_list() == [0.5]


def test_labels_by_coin_of_many_texts_are_not_separable_and_few_texts_decide_nothing():
    few_texts_outcome = blind.blind_baseline(texts(coin(24, seed=1)))
    many_texts_outcome = blind.blind_baseline(texts(coin(1000, seed=2), n_words=3))
    assert (few_texts_outcome.verdict, many_texts_outcome.verdict) == (
        "undecided",
        "not separable",
    )
    assert few_texts_outcome.upper is not None
    assert many_texts_outcome.upper is not None
    assert 0.5 < many_texts_outcome.upper <= 0.60 < few_texts_outcome.upper
    assert many_texts_outcome.scores.height == 1000


def test_what_only_marks_groups_is_no_difference_between_classes():
    """Every group has a word of its own: a giveaway of labels only if it is seen in training."""
    group = np.repeat(np.arange(30), 4)
    label = np.repeat(coin(30), 4)
    marks = [f"group{number}x" * 2 for number in group]
    alone, grouped = (
        blind.blind_baseline(texts(label, group=groups, mark=marks))
        for groups in (None, group)
    )
    assert alone.verdict == "separable"
    assert grouped.p_value is not None
    assert grouped.p_value > 0.05


@pytest.mark.parametrize("label", [[True] * 5, [False] * 5, [True] + [False] * 9])
def test_without_five_clusters_of_a_class_there_is_a_reason(label):
    baseline = blind.blind_baseline(texts(label))
    assert baseline.verdict is None
    assert baseline.reason == "each class needs 5 groups; a text without a group is one"
    assert Metrics.validate(baseline.metrics)["reason"].unique().to_list() == [
        baseline.reason
    ]
    assert baseline.metrics["value"].null_count() == 5
    assert baseline.scores.shape == (0, 6)


@pytest.mark.parametrize(
    ("per_cluster", "effect", "n"),
    [
        (1, 0.0, 30),
        *(pytest.param(n, 0.5, 200, marks=pytest.mark.long) for n in (1, 4)),
    ],
)
def test_limits_hold_as_often_as_they_say(per_cluster, effect, n):
    """Of n data sets 95 % less three standard deviations of a binomial share."""
    coverage = simulate(
        n_per_class=60,
        per_cluster=per_cluster,
        effect=effect,
        n_data_sets=n,
        n_permutations=19,
        seed=7,
    )
    assert coverage["upper_coverage"] >= 0.95 - 3 * (0.95 * 0.05 / n) ** 0.5
    assert sum(coverage["coverage"]) / 4 >= 0.92
    if effect:
        assert max(coverage["expected"]) > 0.6
    else:
        assert max(coverage["expected"]) == pytest.approx(0.5, abs=0.026)
        assert coverage["p_within_0.05"] <= 0.05 + 3 * (0.05 * 0.95 / n) ** 0.5
