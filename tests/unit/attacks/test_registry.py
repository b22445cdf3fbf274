from __future__ import annotations

import pytest

from mia_batch.attacks import defaults, get, names
from mia_batch.errors import SettingsError
from tests import frames, logprob_twins, twins

MATCHED = {
    twins.name(family, n)
    for family in ("samia_matched", "samia_matched_precision", "samia_matched_zlib")
    for n in twins.SIZES
}
AUTHORS = {
    twins.name(family, n)
    for family in ("samia", "samia_precision", "samia_zlib")
    for n in twins.SIZES
} | {"samia_plus_zlib_v1"}
ROUGE = {f"rouge_{kind}{ending}_v1" for kind in "12345l" for ending in ("", "_precision", "_f1")}
ENDINGS = ("", "_max", "_median", "_min")
COVERAGE = {
    f"{name}{ending}_v1"
    for name in ("ngram_coverage", "ngram_coverage_reference", "ngram_coverage_total", "creativity")
    for ending in ENDINGS
}
VERBATIM = {
    f"{name}{ending}_v1"
    for name in ("longest_block", "longest_block_chars", "longest_block_share", "near_verbatim")
    for ending in ENDINGS
}

OF_SAMPLES = [name for name in names() if get(name).evidence == "samples"]


def test_every_attack_is_there_once():
    of_samples = MATCHED | AUTHORS | ROUGE | COVERAGE | VERBATIM
    assert sorted(names()) == sorted([*of_samples, *logprob_twins.TWINS])


def test_presets_compute_their_family_and_its_main_attack_first():
    assert set(defaults("default")) == MATCHED
    assert defaults("default")[0] == "samia_matched_v1"
    assert set(defaults("samia")) == AUTHORS
    assert defaults("samia")[0] == "samia_v1"


def test_only_the_matched_family_does_without_whole_candidates():
    assert {name for name in OF_SAMPLES if not get(name).whole_candidates} == MATCHED


@pytest.mark.parametrize("name", OF_SAMPLES)
def test_each_attack_reads_features_and_says_where_it_comes_from(name):
    attack = get(name)
    assert attack.name == name
    assert set(attack.columns) <= set(frames.features().columns)
    assert attack.source.split(",")[0].removesuffix(")").split("(")[0].rstrip()[-4:].isdecimal()


@pytest.mark.parametrize(
    ("name", "near"),
    [("samia_v2", "samia_v1"), ("samia_matched", "samia_matched_v1"), ("?", "samia")],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, near):
    with pytest.raises(SettingsError) as refusal:
        get(name)
    assert repr(name) in str(refusal.value)
    assert near in str(refusal.value)
    assert "mia-batch attacks" in str(refusal.value)
