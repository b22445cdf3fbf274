import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from mia_batch.attacks.attack import PROBE
from mia_batch.diagnostics import blind
from mia_batch.diagnostics.preflight import check_targets, uneven_findings
from mia_batch.inference.findings import DecisionRule
from mia_batch.metrics import curves, growth, measure, quintile_rows
from mia_batch.report import sentences
from mia_batch.report.sentences import RunResults
from mia_batch.schemas import Curves, Metrics, Scores, Targets, Unscored, Verdicts
from mia_batch.stats.intervals import auc_difference, auc_interval
from mia_batch.tables import check
from tests import logprob_rows
from tests.frames import attack, features, table, target_id

N_DOCUMENTS, N_WINDOWS = 40, 3


@pytest.fixture
def run():
    """Scores and texts of windows of documents without names; every other document is a member."""
    rng = np.random.default_rng(4)
    # The first window is seldom the first name
    names = rng.permutation(N_DOCUMENTS * N_WINDOWS)
    rows = pl.DataFrame(
        [
            {
                "target_id": f"{names[number]:032x}",
                "role": "target",
                "member": document % 2 == 0,
                "window_index": window,
                "n_words": 20,
                "n_samples": 1,
                "n_short": 0,
                "target": " ".join(f"w{word}" for word in rng.integers(0, 300, 20)),
                "a_v1": rng.normal() + 0.4 * (document % 2 == 0) + document / 20,
            }
            for number, (document, window) in enumerate(
                (document, window)
                for document in range(N_DOCUMENTS)
                for window in range(N_WINDOWS)
            )
        ]
    )
    scores = rows.with_columns(
        pl.lit(None, pl.String).alias(name) for name in ("document_id", "group")
    ).cast({"window_index": pl.UInt32, "n_words": pl.UInt32})
    return scores.select(*Scores.column_names(), "a_v1"), scores


def measured(scores, targets, attacks, primary="a_v1", unscored=None):
    """Metrics, findings and blind scores of these labels."""
    checked = check_targets(targets.lazy().with_columns(n_windows=pl.lit(1)), seed=0)
    metrics = measure(
        scores.lazy(),
        attacks,
        blind_scores=checked.blind_scores.lazy(),
        blind_metrics=checked.blind_metrics,
        preset="default",
        slice_by=(),
        primary=primary,
        seed=0,
    )
    if unscored is None:
        unscored = Unscored.create_empty()
    primary_first = sorted(attacks, key=lambda attack: attack != primary)
    uneven = uneven_findings(scores.lazy(), primary_first, unscored.lazy())
    return metrics, pl.concat([checked.findings, uneven]), checked.blind_scores


def test_documents_without_names_stay_whole_where_few_texts_are_looked_at(
    run, monkeypatch
):
    monkeypatch.setattr(blind, "MAX_TEXTS_PER_CLASS", 25)
    monkeypatch.setattr(blind, "_N_PERMUTATIONS", 9)
    scores, targets = run
    metrics, findings, blind_scores = measured(scores, targets, ["a_v1"])
    Metrics.validate(metrics)
    strongest = findings.filter(subject="members", statistic="strongest")[
        "verdict"
    ].item()
    both = scores.join(blind_scores, on="target_id", maintain_order="left")
    assert both.height == 50
    places = {name: row // N_WINDOWS for row, name in enumerate(scores["target_id"])}
    document = both["target_id"].replace_strict(places).rank("dense") - 1
    expected = auc_difference(
        both["member"].to_numpy(),
        both["a_v1"].to_numpy(),
        both[strongest].to_numpy(),
        cluster=document.to_numpy().astype(np.int32),
    )
    row = metrics.filter(attack="a_v1", versus=strongest).row(0, named=True)
    assert expected.interval is not None
    assert row["value"] == pytest.approx(expected.value)
    assert (row["low"], row["high"]) == pytest.approx(
        (expected.interval.low, expected.interval.high)
    )
    assert row["method"] == expected.interval.method == "cluster_paired_t"


def test_scores_that_members_lack_are_warned_of_before_any_figure(run, monkeypatch):
    """15 of 20 member documents without any score; of two attacks the primary one is named."""
    monkeypatch.setattr(blind, "_N_PERMUTATIONS", 9)
    scores, targets = run
    lost = pl.col("member") & (pl.int_range(pl.len()) < 30 * N_WINDOWS)
    scores = scores.with_columns(
        a_v1=pl.when(~lost).then("a_v1"), b_v1=pl.when(~lost).then(1 - pl.col("a_v1"))
    )
    unscored = scores.filter(lost).select(
        "target_id", attack=pl.lit("b_v1"), reason=pl.lit("the endpoint refused")
    )
    metrics, findings, _ = measured(scores, targets, ["a_v1", "b_v1"], "b_v1", unscored)
    found = findings.filter(check="uneven_scores")
    assert found.filter(verdict="most")["subject"].to_list() == ["b_v1", "a_v1"]
    counts = found.filter(pl.col("statistic").is_in(["n_texts", "n_unscored"]))
    assert counts.select("subject", "statistic", "value", "reason").rows() == [
        ("members", "n_unscored", 45, "the endpoint refused"),
        ("members", "n_texts", 60, None),
        ("non-members", "n_unscored", 0, None),
        ("non-members", "n_texts", 60, None),
    ]
    planned = DecisionRule(primary="b_v1", level="target", null_set="written later")
    known = RunResults(metrics, Verdicts.create_empty().lazy(), findings, planned)
    lines = list(sentences(known))
    warning = next(
        n
        for n, line in enumerate(lines)
        if "are missing more often in one class" in line
    )
    assert lines[warning + 1].startswith("None of 2 attacks and slices")


LETTERS = 10  # of every window
ATTACKS = [attack(name, pl.col("words_candidate").max()) for name in ("a_v1", "b_v1")]


def drawn(*rows, curve=None):
    """Curves of such windows; each is ten characters and a space behind the one before."""
    numbered = [
        {
            "target_id": target_id(number),
            "n_windows": 1,
            "start": 11 * row.get("window_index", 0),
            "target": "x" * LETTERS,
            **row,
        }
        for number, row in enumerate(rows)
    ]
    frame = table(
        Targets, numbered, role="target", window_index=0, n_words=100
    ).with_columns(
        pl.Series(name, [row.get(name) for row in rows], pl.Float64)
        for name in ("a_v1", "b_v1")
    )
    found = pl.concat(
        curves(frame.drop("a_v1", "b_v1").lazy(), frame.lazy(), ATTACKS, "a_v1", {})
    )
    check(found, Curves, name="curves")
    return found if curve is None else found.filter(curve=curve)


def texts(scores, **columns):
    return [{"a_v1": score, **columns} for score in scores]


def book(name, scores, windows=None, n_windows=None, **columns):
    windows = windows or range(len(scores))
    return [
        row | {"window_index": window}
        for window, row in zip(
            windows,
            texts(
                scores, document_id=name, n_windows=n_windows or len(scores), **columns
            ),
            strict=True,
        )
    ]


def points(frame):
    return frame.select("x", "y", "n").rows()


def test_a_roc_curve_of_few_scores_has_all_its_points():
    labelled = texts([0.9, 0.5], member=True) + texts([0.5, 0.1], member=False)
    other = texts([5.0], member=True, role="calibration") + texts([3.0, None])
    found = drawn(*labelled, *other, curve="roc")
    assert found["attack"].unique().to_list() == ["a_v1"]  # b_v1 has no scores
    assert points(found) == [(0, 0, 4), (0, 0.5, 4), (0.5, 1, 4), (1, 1, 4)]
    assert found["subject"].null_count() == 4
    for alone in (
        texts([0.9, 0.5], member=True),
        texts([None], member=True) + labelled[2:],
    ):
        assert drawn(*alone, curve="roc").is_empty()


def test_distributions_over_the_range_of_all_texts():
    found = drawn(
        *texts([4.0, 4.0, float("inf")], member=True),
        *texts([0.0], member=False),
        *texts([0.05, 2.0], role="non_member", member=False),
        *texts([2.0], role="calibration", member=True),
        *texts([1.0, 3.0, None]),
        *texts([9.0], role="shot"),
        curve="distribution",
    )
    sets = dict(found.select("subject", "n").unique().iter_rows())
    assert sets == {"members": 3, "non-members": 3, "targets": 2}
    members, others, targets = found.partition_by("subject", maintain_order=True)
    assert [*members["x"]] == pytest.approx(
        [0.05 + 0.1 * number for number in range(40)]
    )
    assert {n: y for n, y in enumerate(members["y"]) if y} == {20: 1 / 3, 39: 2 / 3}
    assert {n: y for n, y in enumerate(others["y"]) if y} == {0: 2 / 3, 20: 1 / 3}
    assert {n: y for n, y in enumerate(targets["y"]) if y} == {10: 0.5, 30: 0.5}
    equal = drawn(*texts([2.0, 2.0]), curve="distribution")
    assert equal.filter(pl.col("y") > 0).select("y", "n").rows() == [(1.0, 2)]
    # Two steps of a float
    close = drawn(*texts([-9.6e15, -9.6e15 + 4]), curve="distribution")
    assert close["y"].sum() == pytest.approx(1)


def test_a_strip_has_the_share_of_others_that_score_lower():
    nulls = texts([0.1, 0.2, 0.3, 0.4], role="non_member", member=False)
    found = drawn(
        *book("a", [0.25, None, 0.4, 0.9]), *book("b", [0.5]), *nulls, curve="strip"
    )
    assert found["subject"].unique().to_list() == ["a"]
    end = 3 * 11 + LETTERS
    expected = [(0, 0.5, 1), (11 / end, None, 0), (22 / end, 0.75, 1), (33 / end, 1, 1)]
    assert points(found) == expected
    # Without texts outside all are compared.
    alone = drawn(*book("a", [0.1, 0.2]), *texts([0.3, 0.4]), curve="strip")
    assert alone["y"].to_list() == [0, 0.25]
    known = {"role": "non_member", "member": False}
    first, second = (
        book(*each, **known) for each in (("b", [0.2, 0.4, 0.4]), ("c", [0.1, 0.3]))
    )
    found = drawn(*book("a", [0.15, 0.9]), *first, *second, curve="strip")
    shares = dict(found.group_by("subject", maintain_order=True).agg("y").iter_rows())
    assert shares == {"a": [0.2, 1.0], "b": [0.5, 1.0, 1.0], "c": [0.0, 1 / 3]}
    alone = drawn(*book("a", [0.15, 0.9]), *first, curve="strip")
    assert alone.filter(subject="b")["y"].to_list() == [None] * 3


def test_a_document_has_at_most_60_stretches_and_gaps_begin_where_a_window_ends():
    nulls = texts([0.5], role="non_member")
    scores = [float(number >= 60) for number in range(120)]
    found = drawn(*book(None, scores), *nulls, curve="strip")
    assert found["subject"].unique().to_list() == [target_id(0)]
    assert found["n"].to_list() == [2] * 60
    assert found["y"].to_list() == [0.0] * 30 + [1.0] * 30
    assert found["x"][30] == 60 * 11 / (119 * 11 + LETTERS)
    nulls = texts([0.5], role="non_member")
    asked = book("a", [0.9, 0.9, 0.1], windows=[0, 1, 8], n_windows=10)
    end = 8 * 11 + LETTERS
    expected = [(0, 1, 1), (11 / end, 1, 1), (21 / end, None, 0), (88 / end, 0, 1)]
    assert points(drawn(*asked, *nulls, curve="strip")) == expected


def test_documents_of_other_roles_and_without_text_or_score():
    helpers = book("a", [0.9, 0.9], role="calibration")
    blank = texts([None, None], target=None, start=None, document_id="b")
    assert drawn(*helpers, *blank, curve="strip").is_empty()
    found = drawn(*book("a", [None, None]))
    assert found.select("curve", "y", "n").rows() == [("strip", None, 0)] * 2


@pytest.mark.parametrize("seed", range(3))
def test_a_curve_of_many_scores_is_moved_by_at_most_a_400th(seed):
    """Along either axis, at worst where a step's corner is cut off."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 1, 600).round(seed + 2)
    member = rng.random(600) < 0.4
    rows = [
        {"a_v1": s + m, "member": bool(m)} for s, m in zip(scores, member, strict=True)
    ]
    found = drawn(*rows, curve="roc")
    assert 100 < found.height <= 201
    score = scores + member
    x, y = found["x"].to_numpy(), found["y"].to_numpy()
    for threshold in np.unique(score):
        fpr, tpr = (
            (score[~member] >= threshold).mean(),
            (score[member] >= threshold).mean(),
        )
        walked = np.linspace(0, 2, 20_001)
        near = np.maximum(
            abs(np.interp(walked, x + y, x) - fpr),
            abs(np.interp(walked, x + y, y) - tpr),
        )
        assert near.min() <= 1 / 400 + 1e-4


N, MOST = 40, 11
RNG = np.random.default_rng(3)
MEMBER = RNG.random(N) < 0.5
SAID = RNG.poisson(3 + 2 * MEMBER[:, None], (N, MOST))
MEAN = attack("mean_v1", pl.col("words_candidate").mean())
AT_POINTS = attack("probe_v1", pl.col("words_candidate").mean(), reads=(PROBE,))


def scores(member=MEMBER, **columns):
    frame = pl.DataFrame(
        {"target_id": [target_id(n) for n in range(N)], "member": member}
    )
    return frame.with_columns(role=pl.lit("target"), **columns).lazy()


def rows(index, **columns):
    places = [(n, k) for n in range(N) for k in range(MOST)]
    RNG.shuffle(places)
    return [
        {
            "target_id": target_id(n),
            index: int(k),
            "words_candidate": int(SAID[n, k]),
            **columns,
        }
        for n, k in places
    ]


EVIDENCE = {
    "samples": (
        features(*rows("sample_index"), *rows("view_index", view=PROBE[1])).lazy()
    ),
}


def expected(k):
    return pytest.approx(roc_auc_score(MEMBER, SAID[:, :k].mean(axis=1)))


def test_each_kind_grows_by_doubling_for_the_first_attack_that_reads_it_alone():
    other = attack("other_v1", pl.col("words_candidate").max())
    found = [*growth(scores(), EVIDENCE, [AT_POINTS, MEAN, other])]
    named = [frame.select("attack", "subject").unique().row(0) for frame in found]
    assert named == [("mean_v1", "samples"), ("probe_v1", "points")]
    for frame in found:
        steps = [1, 2, 4, 8, MOST]
        assert frame.select("x", "y", "n").rows() == [
            (k, expected(k), N) for k in steps
        ]


def test_which_texts_samples_and_attacks_count(monkeypatch):
    gone = (pl.col("target_id") == target_id(0)) & (pl.col("sample_index") == 0)
    evidence = EVIDENCE["samples"].with_columns(pl.when(~gone).then("words_candidate"))
    (found,) = growth(scores(), {"samples": evidence}, [MEAN])
    assert found["n"].to_list() == [N - 1] + [N] * 4
    single = EVIDENCE["samples"].filter(
        pl.col("sample_index") == 0, view="continuation"
    )
    (found,) = growth(scores(), {"samples": single}, [MEAN])
    assert found.is_empty()
    for member in ([True] * N, [False] * N, [None] * N):
        one_class = scores(pl.Series(member, dtype=pl.Boolean))
        assert [*growth(one_class, EVIDENCE, [MEAN])] == []
    mixed = attack("mixed_v1", pl.len(), reads=(PROBE, ("target", "continuation")))
    others = attack("others_v1", pl.len(), logprobs=(PROBE,))
    assert [*growth(scores(), EVIDENCE, [mixed, others])] == []
    monkeypatch.setattr("mia_batch.metrics._TEXTS_PER_CLASS", 5)
    (found,) = growth(scores(), EVIDENCE, [MEAN])
    assert found["n"].to_list() == [10] * 5


def test_numbers_of_series_are_made_where_an_attack_reads_them():
    """Two words of two different values, one of two that are equal."""
    places = [(n, k) for n in range(N) for k in range(2)]
    table = logprob_rows.table(
        {"target_id": target_id(n), "view": PROBE[1], "view_index": k}
        | {"logprob": [-1.0, 0.0] if MEMBER[n] else [0.0, 0.0]}
        for n, k in places
    )
    words = attack(
        "words_v1", pl.col("complexity_3").mean(), evidence="logprobs", reads=(PROBE,)
    )
    (found,) = growth(scores(), {"logprobs": table.lazy()}, [words])
    assert found.select("x", "y").rows() == [(1, 1.0), (2, 1.0)]


BLIND, CLASSES = np.arange(20) / 20, np.tile([True, False], 10)


def test_quintiles_by_hand_and_without_a_class_or_a_score():
    """3 beats 1 and 2, 2 beats 1 and ties with 2."""
    score = np.tile([3.0, 1.0, 2.0, 2.0], 5)
    quintiles = [*quintile_rows(CLASSES, score, BLIND, None)]
    assert [each["slice"] for each in quintiles] == [
        f"blind quintile {n}" for n in range(1, 6)
    ]
    expected = auc_interval(np.array([3.0, 2.0]), np.array([1.0, 2.0]))
    for each in quintiles:
        assert each["value"] == pytest.approx(3.5 / 4)
        assert (each["n_members"], each["n_nonmembers"], each["reason"]) == (2, 2, None)
        assert (each["low"], each["high"]) == (expected.low, expected.high)
    blind, member = np.repeat([0.1, 0.9], [8, 2]), np.repeat([False, True], [8, 2])
    quintiles = [*quintile_rows(member, blind, blind, None)]
    assert "there is no scored member in this quintile" in {
        each["reason"] for each in quintiles
    }
    assert sum(each["n_members"] + each["n_nonmembers"] for each in quintiles) == 10
    assert all(each["value"] is None and each.get("low") is None for each in quintiles)
    score = np.where(np.arange(20) < 18, np.nan, np.arange(20.0))
    *without, last = quintile_rows(CLASSES, score, BLIND, None)
    assert [(each["value"], each["n_unscored"]) for each in without] == [(None, 4)] * 4
    named = ("value", "n_members", "n_nonmembers", "n_unscored")
    assert [last[name] for name in named] == [0, 1, 1, 2]


def test_clustered_texts_have_the_intervals_of_clusters():
    generator, member = np.random.default_rng(1), np.arange(400) % 2 == 0
    score, cluster = (
        generator.normal(size=400) + member,
        (np.arange(400) // 4).astype(np.int32),
    )
    rows = quintile_rows(member, score, generator.random(400), cluster)
    assert {each["method"] for each in rows} == {"group_logit_t"}
