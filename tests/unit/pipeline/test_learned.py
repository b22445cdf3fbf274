"""Runs whose attacks are combined, and runs about all texts together."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import mia_batch
from mia_batch.attacks import get
from mia_batch.errors import SettingsError
from mia_batch.pipeline.auditing import rescore
from mia_batch.pipeline.choice import chosen_attacks
from mia_batch.pipeline.stages.verdicts import set_answers
from mia_batch.schemas import Verdicts
from mia_batch.settings import load_settings
from tests.unit.inference.scored import plan
from tests.unit.pipeline.test_verdicts import FORBIDDEN, Library, said_of

NAMES = ["samia_matched_v1", "samia_matched_n2_v1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """60 targets, a third of them remembered, and one that is too short to have scores."""
    library = Library(tmp_path_factory.mktemp("learned"))
    asked = library.write("asked.parquet", [number < 20 for number in range(60)])
    pl.concat([pl.read_parquet(asked), pl.DataFrame({"text": ["short"]})]).write_parquet(asked)
    labels = [n < 40 for n in range(80)]
    settings = library.settings(
        input=asked,
        non_members=library.write("outside.parquet", [False] * 59),
        non_members_known="written after the model was published",
        calibration=library.write("calibration.parquet", labels, label=labels),
        combine=True,
        level="collection",
    )
    settings["samples_from"] = library.settings()["samples_from"]
    return mia_batch.audit(**settings)


def test_every_text_with_a_score_has_a_combination(run):
    assert run["scores"].columns[-3:] == [*NAMES, "combination_v1"]
    known = run["scores"][NAMES[0]].is_not_null()
    assert run["scores"]["combination_v1"].is_not_null().equals(known)
    (reason,) = run["unscored"].filter(attack="combination_v1")["reason"]
    assert "cannot be split" in reason or "no " in reason
    calibration = run["scores"].filter(role="calibration")
    by_class = calibration.group_by("member").agg(pl.col("combination_v1").mean())
    means = dict(by_class.iter_rows())
    assert means[True] > means[False]


def test_its_verdicts_are_like_those_of_other_attacks(run):
    verdicts = Verdicts.validate(run["verdicts"]).filter(attack="combination_v1")
    assert set(verdicts["level"]) == {"target", "group", "document", "collection"} & {
        *run["verdicts"].filter(attack=NAMES[0])["level"]
    }
    (p,) = verdicts.filter(pl.col("estimate").is_null(), level="collection")["p_value"]
    assert p <= 0.05


def test_all_attacks_together_are_tested_and_it_is_said(run):
    (row,) = run["verdicts"].filter(attack="dataset_inference_v1").iter_rows(named=True)
    assert 0 < row["p_value"] <= 0.1
    assert not row["planned"]
    said = said_of(run)
    assert (
        "combination_v1 was learned from 40 calibration members and 40 calibration non-members, "
        "for each text from those of other groups alone." in said
    )
    (line,) = (line for line in said if line.startswith("All attacks together"))
    assert f"p = {row['p_value']:.3g}, exploratory" in line
    assert not any(FORBIDDEN.search(line) for line in said)


def test_no_answer_where_the_texts_differ_without_the_model(run):
    attacks = [get(name) for name in run.manifest.made["scores"]["attacks"]]
    roles = run["findings"].filter(check="roles")
    of_all = plan(primary=NAMES[0], level="collection")
    verdicts, _ = set_answers(run.scan("scores"), attacks, of_all, roles, told_apart=True)
    (row,) = verdicts.iter_rows(named=True)
    assert row["p_value"] is None
    assert "can be told apart without the model" in row["reason"]


def test_scored_anew_it_goes_and_comes_back_the_same(run):
    before = run["scores"]
    without = rescore(run.folder, combine=False)
    assert "combination_v1" not in without["scores"].columns
    assert without["findings"].filter(check="combination").is_empty()
    again = rescore(run.folder, combine=True)
    assert again["scores"].equals(before)


def test_another_target_changes_no_score(run, tmp_path):
    """Where calibration data teach, a score depends on its own text and on them alone."""
    from mia_batch.inference.sets import combine

    scores = run["scores"].drop("combination_v1")
    fewer = scores.filter(pl.int_range(pl.len()) % 3 > 0, role="target")
    rest = pl.concat([fewer, scores.filter(pl.col("role") != "target")])
    made = combine(rest.lazy(), NAMES, seed=0)
    both = rest.select("target_id", made=pl.Series(made)).join(run["scores"], on="target_id")
    known = both.drop_nulls("combination_v1")
    np.testing.assert_array_equal(known["made"], known["combination_v1"])


def chosen(**settings):
    return [
        attack.name
        for attack in chosen_attacks(load_settings({"input": "a.jsonl", "model": "m"} | settings))
    ]


def test_the_combination_is_computed_when_it_is_asked_for():
    assert "combination_v1" not in chosen()
    assert chosen(combine=True) == [*chosen(), "combination_v1"]
    assert chosen(attacks="loss_v1,min_k_20_v1,combination_v1", evidence="logprobs", combine=True)[
        -2:
    ] == ["min_k_20_v1", "combination_v1"]


@pytest.mark.parametrize("attacks", ["loss_v1", "combination_v1", "loss_v1,combination_v1"])
def test_one_attack_cannot_be_combined(attacks):
    with pytest.raises(SettingsError, match="learned from the scores of others"):
        chosen(attacks=attacks, combine=True)
