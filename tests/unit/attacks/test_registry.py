from importlib.metadata import EntryPoint
from typing import get_args

import polars as pl
import pytest

from mia_batch import attacks, plugins
from mia_batch.attacks import Attack, defaults, families, get, names, register, resolve
from mia_batch.attacks.attack import FAMILIES as FAMILIES_BY_NAME
from mia_batch.attacks.attack import (
    MEASURED,
    PAPER_TABLES,
    find_family,
    list_family_attacks,
)
from mia_batch.attacks.from_samples import EXPECTED
from mia_batch.errors import SettingsError
from mia_batch.features import OTHER_GROUPS, feature_fields
from mia_batch.schemas import LogProbs
from mia_batch.targets import Preset
from tests import frames

FAMILIES = {
    title: {each.name for each in family} for title, family in families().items()
}


MINE = Attack(
    name="mine_v1", expr=pl.col("n_tokens").max(), source="none", undefined="never"
)


@pytest.fixture(autouse=True)
def _as_installed(monkeypatch):
    """What a test registers is gone after it, and no other has registered anything."""
    monkeypatch.setattr(attacks, "_REGISTERED", {})
    attacks._load_plugins.cache_clear()
    yield
    attacks._load_plugins.cache_clear()


def plug_in(monkeypatch, *values):
    points = [
        EntryPoint(f"p{n}", value, "mia_batch.attacks")
        for n, value in enumerate(values)
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)


def test_an_attack_that_is_registered_is_found_and_the_same_again_changes_nothing():
    assert register(MINE) is MINE
    assert get("mine_v1") is MINE
    assert names()[-1] == "mine_v1"
    assert "mine_v1" not in defaults("default", ("samples", "logprobs"))
    register(MINE)
    register(
        Attack(name="mine_v1", expr=pl.col("n_tokens").max(), source="s", undefined="u")
    )
    assert get("mine_v1") is MINE


@pytest.mark.parametrize("name", ["mine_v1", "samia_v1"])
def test_another_formula_under_a_known_name_is_refused(name):
    register(MINE)
    with pytest.raises(SettingsError, match=f"another attack '{name}'"):
        register(
            Attack(name=name, expr=pl.col("n_tokens").min(), source="s", undefined="u")
        )


def test_attacks_of_other_packages_are_there(monkeypatch):
    plug_in(monkeypatch, "tests.unit.attacks.test_registry:MINE")
    assert get("mine_v1").expr.meta.eq(MINE.expr)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            ["no_such_module:x"],
            "'p0' of no_such_module:x cannot be loaded: No module named",
        ),
        (["math:pi"], "math:pi is not an Attack with a name of its own"),
        (["mia_batch.attacks.from_logprobs:SHAPE_ATTACKS"], "is not an Attack"),
        (
            ["tests.unit.attacks.test_registry:MINE"] * 2,
            "test_registry:MINE is not an Attack with",
        ),
    ],
)
def test_a_broken_plug_in_gets_one_sentence(monkeypatch, values, said):
    plug_in(monkeypatch, *values)
    with pytest.raises(SettingsError, match=said):
        names()


def of(*titles: str) -> set[str]:
    return set().union(*(FAMILIES[title] for title in titles))


def test_presets_compute_their_family_and_its_main_attack_first():
    assert {*defaults("default")} == of(
        "Next tokens", "Probes", "Probes of two models", "DE-COP"
    )
    both = {*defaults("default", ("samples", "logprobs"))}
    assert both >= of("Probes", "Probes and loss", "Loss", "Min-K% and Min-K%++")
    assert defaults("default")[0] == "token_hits_less_expected_v1"
    assert "token_hits_v1" not in both  # one pass tells more
    assert {*defaults("matched")} == of("SaMIA, length-matched")
    assert defaults("matched")[0] == "samia_matched_v1"
    assert {*defaults("samia")} == of("SaMIA", "DE-COP")
    baselines = {"loss_v1", "loss_zlib_v1", "lowercase_difference_v1", "min_k_20_v1"}
    with_baselines = {*defaults("samia", ("samples", "logprobs"))}
    assert with_baselines - of("SaMIA", "DE-COP") == baselines | {
        "min_k_plus_plus_20_v1"
    }
    assert len(of(*FAMILIES)) == len(names()) == 191  # a name that was published stays
    assert defaults("samia")[0] == "samia_v1"


@pytest.mark.parametrize("preset", get_args(Preset))
def test_what_found_little_is_computed_by_name_alone(preset):
    computed = defaults(preset, ("samples", "logprobs"))
    assert not {*MEASURED}.intersection(computed)
    assert {*MEASURED} <= {*names()}


@pytest.mark.parametrize("preset", [*PAPER_TABLES])
def test_a_preset_computes_the_table_of_its_paper(preset):
    computed = defaults(preset, ("samples", "logprobs"))
    assert {*PAPER_TABLES[preset]} <= {*computed}
    assert len({*PAPER_TABLES[preset].values()}) == len(PAPER_TABLES[preset])


@pytest.mark.parametrize("preset", ["default", "matched", "min-k", "spv"])
def test_log_probabilities_at_points_are_a_kind_of_their_own(preset):
    at_points = ("probe_centred_v1", "probe_loss_v1", "probe_min_k_20_v1")
    found = defaults(preset, ("probe-logprobs",))
    assert found[:3] == at_points
    assert {*found[3:]} == (
        of("DE-COP from log-probabilities")
        if preset in ("default", "matched")
        else set()
    )
    assert not {*at_points}.intersection(defaults(preset, ("samples", "logprobs")))


def test_probes_and_the_matched_family_do_without_whole_candidates():
    sampled = [name for name in names() if get(name).evidence == "samples"]
    assert {name for name in sampled if not get(name).whole_candidates} == of(
        *(
            "SaMIA, length-matched",
            "SaMIA, weighed by rarity",
            "Probes",
            "Probes of two models",
        ),
        *("Next tokens", "Probes, drawn answers", "Probes and loss", "PETAL", "DE-COP"),
        "Masked words",
    )


def test_each_attack_has_a_formula_a_source_and_one_family():
    features = {
        *frames.features().columns,
        *(field.name for field in feature_fields(OTHER_GROUPS)),
    }
    features.add(EXPECTED)
    for attack in map(get, names()):
        assert attack.formula
        assert "\n" not in attack.formula
        if attack.evidence == "samples":
            there = features | (
                set(LogProbs.column_names()) if attack.logprobs else set()
            )
            assert set(attack.columns) <= there
            author = attack.source.split(",")[0].removesuffix(")").split("(")[0]
            assert author.rstrip()[-4:].isdecimal()
    listed = [
        name
        for family in FAMILIES_BY_NAME
        for name in list_family_attacks(family, names())
    ]
    assert sorted(listed) == sorted(names())
    for family in FAMILIES_BY_NAME:
        assert {find_family(name) for name in resolve(family.name)} == {family}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("min-k++", "min_k_plus_plus_20_v1"),
        ("Min-K%++", "min_k_plus_plus_20_v1"),
        ("Min-K% Prob", "min_k_20_v1"),
        ("min_k", "min_k_20_v1"),
        ("MIN_K_10", "min_k_10_v1"),
        ("ReCaLL", "recall_prefix_v1"),
        ("Con-ReCall", "con_recall_prefix_v1"),
        ("SaMIA", "samia_v1"),
        ("samia_matched", "samia_matched_v1"),
        ("ppl", "perplexity_v1"),
        ("Neighborhood", "neighbour_difference_v1"),
        ("mine", "mine_v1"),
        ("loss_v1", "loss_v1"),
    ],
)
def test_an_attack_is_known_by_family_paper_and_without_its_version(written, meant):
    register(MINE)
    assert resolve(written) == (meant,)
    assert get(written).name == meant


def test_a_family_may_stand_for_several_attacks():
    assert len(resolve("CAMIA")) == 7
    assert resolve("pdr_min*") == ("pdr_min_k_20_v1", "pdr_min_k_plus_plus_20_v1")
    with pytest.raises(SettingsError, match=r"there is no attack 'nothing\*'"):
        resolve("nothing*")
    with pytest.raises(SettingsError, match="'CAMIA' stands for several attacks"):
        get("CAMIA")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("samia_v2", "did you mean samia_v1 or "),
        ("min_kk", "did you mean the family min-k (min_k_5_v1 ... min_k_60_v1)?"),
        ("recal", "did you mean the family recall (recall_prefix_v1)?"),
        ("?", "there is no attack '?'; `mia-batch attacks` lists them"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, near):
    with pytest.raises(SettingsError) as refusal:
        get(name)
    assert repr(name) in str(refusal.value)
    assert near in str(refusal.value)
    assert "mia-batch attacks" in str(refusal.value)


def test_names_of_papers_are_unique_and_those_of_others_stay():
    titles = [attacks.write_paper_name(name) for name in names()]
    assert len({*titles}) == len(titles)
    assert attacks.write_paper_name("losses_below_1_v1") == "CAMIA (losses below 1)"
    assert attacks.write_paper_name("spv_semantic_v1") == "SPV-MIA (semantic)"
    assert attacks.write_paper_name("loss_of_mine_v1") == "loss_of_mine_v1"
