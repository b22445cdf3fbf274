from __future__ import annotations

from importlib.metadata import EntryPoint
from itertools import product

import polars as pl
import pytest

from mia_batch import attacks, plugins
from mia_batch.attacks import Attack, defaults, get, names, register
from mia_batch.errors import SettingsError
from mia_batch.features import OTHER_GROUPS, feature_fields
from mia_batch.schemas import LogProbs
from tests import frames, reference_tuned

SIZES = ("", *(f"_n{n}" for n in range(2, 6)))
ENDINGS = ("", "_max", "_median", "_min")


def made(*parts: tuple[str, ...]) -> set[str]:
    """Names of attacks, of every combination of their parts."""
    return {f"{''.join(each)}_v1" for each in product(*parts)}


KINDS = ("", "_precision", "_zlib")
MATCHED = made(("samia_matched",), KINDS, SIZES)
AUTHORS = made(("samia",), KINDS, SIZES) | {"samia_plus_zlib_v1"}
ROUGE = made(("rouge_",), tuple("12345l"), ("", "_precision", "_f1"))
SPANS = made(("ngram_coverage",), ("", "_reference", "_total"), ENDINGS)
SPANS |= made(("creativity", "longest_block", "near_verbatim"), ENDINGS)
SPANS |= made(("longest_block",), ("_chars", "_share"), ENDINGS)
PROBES = made(("probe_",), ("leading_rarity", "first_word", "leading", "recall_rarity"))
WEIGHED = made(("samia_matched_rarity",), ("", "_n2"))
REFERENCE_PROBES = {"probe_rarity_difference_v1"}
BY_NAME = {"probe_logprob_v1", "petal_v1", "petal_similarity_v1"}
COMBINED = {"probe_rarity_loss_v1"}
CHOICES = {"decop_v1"}
CHOICE_LOGPROBS = made(("decop_",), ("calibrated", "log_calibrated", "logprob", "probability"))
SAMPLED_ATTACKS = [name for name in names() if get(name).evidence == "samples"]


MINE = Attack(name="mine_v1", expr=pl.col("n_tokens").max(), source="none", undefined="never")


@pytest.fixture(autouse=True)
def _as_installed(monkeypatch):
    """What a test registers is gone after it, and no other has registered anything."""
    monkeypatch.setattr(attacks, "_REGISTERED", {})
    attacks._plugged_in.cache_clear()
    yield
    attacks._plugged_in.cache_clear()


def plug_in(monkeypatch, *values):
    points = [EntryPoint(f"p{n}", value, "mia_batch.attacks") for n, value in enumerate(values)]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)


def test_an_attack_that_is_registered_is_found_by_its_name():
    assert register(MINE) is MINE
    assert get("mine_v1") is MINE
    assert names()[-1] == "mine_v1"
    assert "mine_v1" not in defaults("default", ("samples", "logprobs"))


def test_registering_the_same_formula_again_changes_nothing():
    register(MINE)
    register(Attack(name="mine_v1", expr=pl.col("n_tokens").max(), source="s", undefined="u"))
    assert get("mine_v1") is MINE


@pytest.mark.parametrize("name", ["mine_v1", "samia_v1"])
def test_another_formula_under_a_known_name_is_refused(name):
    register(MINE)
    with pytest.raises(SettingsError, match=f"another attack '{name}'"):
        register(Attack(name=name, expr=pl.col("n_tokens").min(), source="s", undefined="u"))


def test_attacks_of_other_packages_are_there(monkeypatch):
    plug_in(monkeypatch, "tests.unit.attacks.test_registry:MINE")
    assert get("mine_v1").expr.meta.eq(MINE.expr)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["no_such_module:x"], "'p0' of no_such_module:x cannot be loaded: No module named"),
        (["math:pi"], "math:pi is not an Attack with a name of its own"),
        (["mia_batch.attacks.from_logprobs:SHAPE_ATTACKS"], "is not an Attack"),
        (["tests.unit.attacks.test_registry:MINE"] * 2, "test_registry:MINE is not an Attack with"),
    ],
)
def test_a_broken_plug_in_gets_one_sentence(monkeypatch, values, said):
    plug_in(monkeypatch, *values)
    with pytest.raises(SettingsError, match=said):
        names()


def test_every_attack_is_there_once():
    of_samples = PROBES | WEIGHED | MATCHED | AUTHORS | ROUGE | SPANS
    of_samples |= REFERENCE_PROBES | BY_NAME | COMBINED | CHOICES | {"combination_v1"}
    of_logprobs = [*CHOICE_LOGPROBS, *reference_tuned.REFERENCES]
    assert sorted(names()) == sorted([*of_samples, *of_logprobs])


def test_presets_compute_their_family_and_its_main_attack_first():
    assert set(defaults("default")) == PROBES | REFERENCE_PROBES | CHOICES
    assert set(defaults("default", ("samples", "logprobs"))) >= PROBES | COMBINED
    assert defaults("default")[0] == "probe_leading_rarity_v1"
    assert set(defaults("matched")) == MATCHED
    assert defaults("matched")[0] == "samia_matched_v1"
    assert set(defaults("samia")) == AUTHORS
    assert defaults("samia")[0] == "samia_v1"


@pytest.mark.parametrize("preset", ["default", "matched", "min-k", "spv"])
def test_log_probabilities_at_points_are_a_kind_of_their_own(preset):
    at_points = ("probe_loss_v1", "probe_min_k_20_v1")
    found = defaults(preset, ("probe-logprobs",))
    assert found[:2] == at_points
    assert {*found[2:]} == (CHOICE_LOGPROBS if preset in ("default", "matched") else set())
    assert not {*at_points}.intersection(defaults(preset, ("samples", "logprobs")))


def test_probes_and_the_matched_family_do_without_whole_candidates():
    partly = {name for name in SAMPLED_ATTACKS if not get(name).whole_candidates}
    own = PROBES | REFERENCE_PROBES | BY_NAME | COMBINED | CHOICES
    assert partly == MATCHED | WEIGHED | own


def test_each_attack_has_a_formula_reads_features_and_says_where_it_comes_from():
    features = {*frames.features().columns, *(field.name for field in feature_fields(OTHER_GROUPS))}
    for attack in map(get, names()):
        assert attack.formula
        assert "\n" not in attack.formula
        if attack.evidence == "samples":
            there = features | (set(LogProbs.column_names()) if attack.logprobs else set())
            assert set(attack.columns) <= there
            author = attack.source.split(",")[0].removesuffix(")").split("(")[0]
            assert author.rstrip()[-4:].isdecimal()


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
