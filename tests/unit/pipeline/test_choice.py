"""Attacks on tuned models are computed as soon as what they need is there."""

from __future__ import annotations

from typing import Any

import pytest

from mia_batch.attacks import get
from mia_batch.attacks.registry import SPV_PAPER
from mia_batch.errors import SettingsError
from mia_batch.pipeline.choice import check_together, chosen_attacks, engine_abilities
from mia_batch.settings import load_settings

ALONE = [
    "spv_embedding_uncalibrated_v1",
    "loss_v1",
    "min_k_20_v1",
    "min_k_plus_plus_20_v1",
]
EVERYTHING = {
    "prompts_from": "prompts.jsonl",
    "candidate_from": "others.jsonl",
    "shadows": 4,
    "masked_model": "masked",
    "reference_model": "base",
}


def chosen(**settings: Any) -> list[str]:
    given = {"input": "texts.jsonl", "model": "tuned", "preset": "spv"} | settings
    return [attack.name for attack in chosen_attacks(load_settings(given))]


def test_the_preset_asks_for_log_probabilities_and_leaves_out_what_lacks_a_setting():
    assert chosen() == ALONE
    assert chosen(**EVERYTHING) == [*SPV_PAPER]
    assert chosen(**EVERYTHING)[0] == "spv_semantic_v1"


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ({"prompts_from": "p"}, {"spv_embedding_v1", "self_prompt_difference_v1"}),
        ({"candidate_from": "c"}, {"candidate_difference_v1"}),
        ({"reference_model": "b"}, {"reference_token_difference_v1", "ez_mia_v1", "wbc_v1"}),
        (
            {"masked_model": "m"},
            {
                "spv_semantic_uncalibrated_v1",
                "spv_neighbour_uncalibrated_v1",
                "neighbour_difference_v1",
                "detect_gpt_v1",
            },
        ),
        (
            {"shadows": 2},
            {
                "lira_online_v1",
                "lira_online_fixed_v1",
                "lira_offline_v1",
                "lira_offline_fixed_v1",
                "rmia_v1",
                "rmia_offline_v1",
            },
        ),
    ],
)
def test_each_setting_brings_its_attacks(given, more):
    assert {*chosen(**given)} == {*ALONE, *more}


def test_by_default_variation_is_not_computed_without_its_reference_model():
    found = chosen(preset="default", evidence="logprobs", masked_model="masked")
    assert not [name for name in found if name.startswith("spv")]
    found = chosen(preset="default", evidence="logprobs", **EVERYTHING)
    assert {*SPV_PAPER} - {*found} == {name for name in SPV_PAPER if "uncalibrated" in name}


def test_noise_is_asked_only_of_engines_that_can_add_it():
    attack = "spv_embedding_uncalibrated_v1"
    assert attack not in chosen(engine="vllm")
    with pytest.raises(SettingsError, match=f"'attacks': {attack} cannot be computed: engine vllm"):
        chosen(engine="vllm", attacks=attack)
    assert engine_abilities([get(attack)]) == {"noise"}
    assert engine_abilities(map(get, ("loss_v1", "spv_semantic_v1"))) == frozenset()
    assert engine_abilities([get(attack), get("ez_mia_v1")]) == {"noise", "rank"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"shadows": 2}, "cannot be used with lira_online_v1, which learns from the answers"),
        (
            {"preset": "default", "combine": True},
            "cannot be used with combination_v1, which learns",
        ),
        ({"shard": "1/2"}, "cannot be used with 'shard': what is asked depends on the answers"),
    ],
)
def test_groups_stop_only_where_nothing_needs_the_answers_about_all(given, why):
    texts = {"input": "texts.jsonl", "model": "tuned", "preset": "spv", "level": "group"}
    settings = load_settings(texts | {"stop_when_decided": True} | given)
    with pytest.raises(SettingsError, match=f"setting 'stop_when_decided' {why}"):
        check_together(settings, chosen_attacks(settings))
