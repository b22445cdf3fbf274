from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mia_batch.demo import DemoSettings
from mia_batch.demo.making import Passage, build_corpus, draw_members
from mia_batch.errors import SettingsError

SETTINGS = DemoSettings(n_passages=36, per_group=4)


@pytest.fixture(scope="module")
def corpus(library):
    return build_corpus(SETTINGS, library)


def test_columns(corpus):
    assert dict(corpus.schema) == {
        "document_id": pl.String,
        "text": pl.String,
        "member": pl.Boolean,
        "group": pl.String,
    }
    assert corpus.height == 36
    assert corpus["document_id"].is_unique().all()
    assert corpus.null_count().row(0) == (0, 0, 0, 0)


def test_half_of_each_group_are_members(corpus):
    halves = corpus.group_by("group").agg(pl.len(), pl.col("member").sum().alias("members"))
    assert halves["len"].to_list() == [4] * 9
    assert halves["members"].to_list() == [2] * 9


def test_same_settings_same_corpus(corpus, library):
    assert_frame_equal(build_corpus(SETTINGS, library), corpus)


def test_another_seed_draws_other_members_of_the_same_passages(corpus, library):
    other = build_corpus(replace(SETTINGS, seed=1), library)
    assert other["document_id"].to_list() != corpus["document_id"].to_list()
    joined = corpus.join(other, on=["document_id", "text", "group"], how="full", coalesce=True)
    assert joined.height == 36
    agreed = (joined["member"] == joined["member_right"]).sum()
    assert 0 < agreed < 36


def test_order_tells_nothing(library):
    """Over many seeds, members and non-members stand equally early."""
    firsts = [
        build_corpus(replace(SETTINGS, seed=seed), library)["member"][0] for seed in range(40)
    ]
    assert 8 < sum(firsts) < 32


def test_odd_groups_are_within_one_of_half():
    passages = [Passage(module=m, index=i, text=f"{m}{i}") for m in "ab" for i in range(5)]
    members = draw_members(passages, seed=3)
    assert [sum(p.module == module for p in members) for module in "ab"] == [2, 2]
    assert draw_members(passages, seed=3) == members


def test_empty_library_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="needs 36 passages"):
        build_corpus(SETTINGS, tmp_path)
