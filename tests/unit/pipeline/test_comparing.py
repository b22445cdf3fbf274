"""Runs of one corpus compared, from recordings."""

import json
import shutil

import polars as pl
import pytest
from scipy.stats import ttest_1samp

import mia_batch
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.pipeline import rescore
from mia_batch.schemas import Comparisons
from tests.comparing import audit_recorded, write_corpus

ATTACK = "samia_matched_v1"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Before and after unlearning, and retrained: `before` repeats members more often."""
    folder = tmp_path_factory.mktemp("unlearning")
    write_corpus(folder)
    for name, repeated in {"before": 0.7, "after": 0.3, "retrained": 0.1}.items():
        audit_recorded(folder, name, repeated)
    return folder


@pytest.fixture(scope="module")
def compared(runs):
    return mia_batch.compare(
        [runs / "before", runs / "after"], retrained=runs / "retrained"
    )


def row(table, statistic, run="after", **columns):
    return table.filter(statistic=statistic, run=run, **columns).row(0, named=True)


def scores(folder):
    return pl.read_parquet(folder / "scores.parquet").select(
        "target_id", "member", score=ATTACK
    )


def test_the_table_is_as_its_schema_says_with_differences_paired_by_target(
    runs, compared
):
    Comparisons.validate(compared)
    again = mia_batch.compare(
        [runs / "before", runs / "after"], retrained=runs / "retrained"
    )
    assert again.equals(compared)
    assert compared["attack"].unique().to_list() == [ATTACK]
    assert compared.height == 3 + 2 + 2 * (2 + 1)
    scores_before, scores_after = (
        scores(runs / "before"),
        scores(runs / "after").rename({"score": "after"}),
    )
    gaps = scores_before.join(scores_after, on="target_id").filter("member")
    reference = ttest_1samp(gaps["after"] - gaps["score"], 0)
    difference = row(compared, "mean_difference", set="members")
    assert difference["p_value"] == pytest.approx(reference.pvalue)
    assert (difference["low"], difference["high"]) == pytest.approx(
        [*reference.confidence_interval()]
    )
    assert (difference["n_targets"], difference["n_unscored"]) == (20, 0)
    assert row(compared, "mean_difference", set="non_members")["p_value"] > 0.05


def test_the_table_of_a_paper_counts_texts_and_repeats_what_makes_its_figures_doubtful(
    runs, tmp_path
):
    table = mia_batch.Run(runs / "before").table(names="registry", blind="none")
    assert table.kind == "md"
    assert table.splitlines()[-1] == (
        "corpus, recorded: seed 0; 20 members, 20 non-members;"
        r" TPR\@1 %: a rate of 0.01 needs 100 non-members, scored are 20;"
        r" TPR\@0.1 %: a rate of 0.001 needs 1000 non-members, scored are 20."
    )
    shutil.copytree(runs / "before", tmp_path / "before")
    late = rescore(
        tmp_path / "before",
        attacks="rouge_1_v1",
        report=False,
        verdict={"replace": True},
    )
    assert (
        "exploratory: this was asked for or changed after scores had been made;"
        in late.table().splitlines()[-1]
    )


def test_sets_and_areas_are_compared_and_adjusted_apart_by_holm(compared):
    areas = {
        name: row(compared, "roc_auc", name)["value"] for name in ("before", "after")
    }
    difference = row(compared, "roc_auc_difference")
    assert difference["value"] == pytest.approx(areas["after"] - areas["before"])
    assert difference["high"] < 0
    assert difference["p_value"] < 0.05
    areas = compared.filter(statistic="roc_auc_difference").sort("p_value")
    assert areas["adjusted_p"][0] == pytest.approx(2 * areas["p_value"][0])
    means = compared.filter(statistic="mean_difference").sort("p_value")
    assert means["adjusted_p"][0] == pytest.approx(4 * means["p_value"][0])
    assert compared.filter(statistic="roc_auc")["adjustment"].to_list() == [None] * 3


def test_the_share_removed_is_that_of_both_differences(compared):
    gaps = [
        row(compared, "mean_difference", name, set="members")["value"]
        for name in ("after", "retrained")
    ]
    removed = row(compared, "removed_share", set="members")
    assert removed["value"] == pytest.approx(gaps[0] / gaps[1])
    assert 0 < removed["low"] < removed["value"] < removed["high"] < 1
    withheld = row(compared, "removed_share", set="non_members")
    assert withheld["value"] is None
    assert withheld["reason"].endswith("cannot be distinguished")


def test_a_run_and_its_copy_do_not_differ(runs, tmp_path):
    audit_recorded(runs, "before", 0.7, out=tmp_path / "before")
    table = mia_batch.compare([runs / "before", tmp_path / "before"])
    difference = row(table, "mean_difference", "before (2)", set="members")
    assert (difference["value"], difference["low"], difference["p_value"]) == (
        0,
        None,
        None,
    )
    assert difference["reason"].startswith("the difference is the same")
    area = row(table, "roc_auc_difference", "before (2)")
    assert area["p_value"] == 1
    assert area["low"] < 0 < area["high"]


@pytest.mark.parametrize("stride", [None, 10])
def test_documents_of_windows_have_rows_of_their_own(tmp_path, stride):
    write_corpus(tmp_path, n=6, windows=6, labelled=False)
    for name, repeated in {"one": 0.8, "two": 0.1}.items():
        audit_recorded(tmp_path, name, repeated, windows=6, stride=stride)
    table = mia_batch.compare([tmp_path / "one", tmp_path / "two"])
    documents = table.filter(level="document")
    assert documents["key"].to_list() == [f"text {number}" for number in range(6)]
    assert documents["set"].unique().to_list() == ["unknown"]
    whole = row(table, "mean_difference", "two", level="set")
    assert whole["n_clusters"] == 6
    assert whole["value"] == pytest.approx(documents["value"].mean())
    if stride is None:
        assert documents["n_clusters"].to_list() == [6] * 6
        assert documents["adjustment"].to_list() == ["bh"] * 6
        assert (documents["adjusted_p"] < 0.05).all()
    else:
        assert documents["p_value"].null_count() == 6
        assert documents["reason"][0].startswith(
            "an interval needs 4 independent groups"
        )


def read_refusal(*folders, **options):
    with pytest.raises((SettingsError, RunFolderError)) as error:
        mia_batch.compare(folders, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_runs_that_cannot_be_compared_are_refused(runs, tmp_path):
    assert read_refusal(runs / "before").startswith(
        "a comparison needs at least two runs"
    )
    assert read_refusal(runs / "before", runs / "before").startswith(
        "a comparison needs at least two"
    )
    audit_recorded(runs, "after", 0.3, out=tmp_path / "few", attacks=["samia_v1"])
    shared = mia_batch.compare([runs / "before", tmp_path / "few"])
    assert shared["attack"].unique().to_list() == ["samia_v1"]
    message = read_refusal(runs / "before", tmp_path / "few", attack=ATTACK)
    assert (
        "few has no scores of the attack 'samia_matched_v1'; compute them with"
        in message
    )
    comparison = mia_batch.compare(
        [runs / "before", tmp_path / "few"], attack="samia_v1"
    )
    assert comparison["attack"].unique().to_list() == ["samia_v1"]
    run = json.loads((runs / "after" / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(run | {"custody": {}}))
    assert "is not finished; give the audit's command again" in read_refusal(
        runs / "before", tmp_path
    )


def test_texts_too_long_for_one_pass_may_be_read_or_refused(runs, tmp_path):
    for name, long_texts in {"one": "stride", "two": "refuse"}.items():
        shutil.copytree(runs / "before", tmp_path / name)
        manifest = mia_batch.Run(tmp_path / name).manifest
        manifest.evidence["long_texts"] = long_texts
        manifest.write(tmp_path / name)
    comparison = mia_batch.compare([tmp_path / "one", tmp_path / "two"])
    assert row(comparison, "mean_difference", "two", level="set")["value"] == 0


@pytest.mark.parametrize(
    ("changed", "settings", "messages"),
    [
        (
            {},
            {"top_k": 40, "samples": 2},
            [
                "are not comparable: top_k= is 50 in the first and 40",
                "the number of samples (view 'continuation') is 1 in the first and 2",
            ],
        ),
        ({"member": ~pl.col("member")}, {}, ["disagree on which targets are members"]),
        (
            {"document_id": "new " + pl.col("document_id")},
            {},
            ["no target has a score in every run"],
        ),
    ],
    ids=["settings", "labels", "texts"],
)
def test_what_is_not_the_same_is_named(runs, tmp_path, changed, settings, messages):
    corpus = pl.read_parquet(runs / "corpus.parquet").with_columns(**changed)
    corpus.write_parquet(tmp_path / "corpus.parquet")
    audit_recorded(tmp_path, "other", 0.3, **settings)
    message = read_refusal(runs / "before", tmp_path / "other")
    assert all(sentence in message for sentence in messages)


def test_rarity_of_another_run_is_refused_unless_both_use_it(runs, tmp_path):
    weighed = "samia_matched_rarity_v1"
    for name, repeated in {"before": 0.7, "after": 0.3}.items():
        audit_recorded(runs, name, repeated, out=tmp_path / name, attacks=[weighed])
    before_folder, after_folder = tmp_path / "before", tmp_path / "after"
    audit_recorded(
        runs,
        "after",
        0.3,
        out=tmp_path / "borrowed",
        attacks=[weighed],
        rarity_from=before_folder,
    )
    assert mia_batch.compare([before_folder, tmp_path / "borrowed"]).height == 2 + 1 + 2
    assert mia_batch.compare([before_folder, after_folder]).height == 2 + 1 + 2
    assert "(rarity_from=) is" in read_refusal(after_folder, tmp_path / "borrowed")
