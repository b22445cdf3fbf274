"""Attacks that learn or are left out, all texts together, texts of known exposure."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.attacks import SPV_PAPER, get
from mia_batch.attacks.attack import PAPER_TABLES
from mia_batch.cli.main import command
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.inference.sets import combine
from mia_batch.pipeline.corpora import open_corpora
from mia_batch.pipeline.request import (
    AuditRequest,
    build_decision_rule,
    check_together,
    choose_attacks,
    fill_reference_kind,
    fill_yardstick,
    list_abilities_needed,
    settle,
)
from mia_batch.pipeline.stages.verdicts import answer_about_sets
from mia_batch.schemas import Verdicts
from mia_batch.settings import load_settings
from tests.hostile_server import MODEL, HostileServer, TinyModel
from tests.runs import audit, found, planned, rescore, said_of, written
from tests.unit.inference.scored import plan as verdict_plan
from tests.unit.pipeline.test_verdicts import FORBIDDEN, NON_MEMBERS_KNOWN, Library

NAMES = ["samia_matched_v1", "samia_matched_n2_v1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """60 targets, a third of them remembered, and one that is too short to have scores."""
    library = Library(tmp_path_factory.mktemp("learned"))
    audited_texts = [library.text(remembered=number < 20) for number in range(60)]
    labels = [n < 40 for n in range(80)]
    settings = library.settings(
        input=library.put("asked", [*audited_texts, "short"]),
        non_members=library.write("outside", [False] * 59),
        calibration=library.write("calibration", labels, label=labels),
        combine=True,
        level="collection",
        **NON_MEMBERS_KNOWN,
    )
    return audit(**settings)


def test_every_text_with_a_score_has_a_combination_and_all_attacks_together_a_test(run):
    assert run["scores"].columns[-3:] == [*NAMES, "combination_v1"]
    is_scored = run["scores"][NAMES[0]].is_not_null()
    assert run["scores"]["combination_v1"].is_not_null().equals(is_scored)
    (reason,) = run["unscored"].filter(attack="combination_v1")["reason"]
    assert reason.startswith("the text has too few words to split")
    calibration = run["scores"].filter(role="calibration")
    by_class = calibration.group_by("member").agg(pl.col("combination_v1").mean())
    means = dict(by_class.iter_rows())
    assert means[True] > means[False]
    verdicts = Verdicts.validate(run["verdicts"]).filter(attack="combination_v1")
    assert set(verdicts["level"]) == set(
        run["verdicts"].filter(attack=NAMES[0])["level"]
    )
    (p,) = verdicts.filter(pl.col("estimate").is_null(), level="collection")["p_value"]
    assert p <= 0.05
    (row,) = run["verdicts"].filter(attack="dataset_inference_v1").iter_rows(named=True)
    assert 0 < row["p_value"] <= 0.1
    assert not row["planned"]
    sentences_said = said_of(run)
    assert (
        "combination_v1 was learned from 40 calibration members and 40 calibration"
        " non-members, for each text from those of other groups alone."
        in sentences_said
    )
    (line,) = (
        line for line in sentences_said if line.startswith("All attacks together")
    )
    assert f"p = {row['p_value']:.3g}, exploratory" in line
    assert not any(FORBIDDEN.search(line) for line in sentences_said)


def test_no_answer_where_the_texts_differ_without_the_model(run):
    attacks = [get(name) for name in run.manifest.made["scores"]["attacks"]]
    roles = run["findings"].filter(check="roles")
    of_all = verdict_plan(primary=NAMES[0], level="collection")
    verdicts, _ = answer_about_sets(
        run.scan("scores"), attacks, of_all, roles, separable=True
    )
    (row,) = verdicts.iter_rows(named=True)
    assert row["p_value"] is None
    assert "can be distinguished without the model" in row["reason"]


def test_scored_anew_it_goes_and_comes_back_the_same(run):
    scores_before = run["scores"]
    without = rescore(run.folder, combine=False, replace=True)
    assert "combination_v1" not in without["scores"].columns
    assert without["findings"].filter(check="combination").is_empty()
    again = rescore(run.folder, combine=True, replace=True)
    assert again["scores"].equals(scores_before)


def test_another_target_changes_no_score(run, tmp_path):
    """Where calibration data teach, a score depends on its own text and on them alone."""
    scores = run["scores"].drop("combination_v1")
    fewer = scores.filter(pl.int_range(pl.len()) % 3 > 0, role="target")
    rest = pl.concat([fewer, scores.filter(pl.col("role") != "target")])
    combined_scores = combine(rest.lazy(), NAMES, seed=0)
    joined = rest.select("target_id", made=pl.Series(combined_scores)).join(
        run["scores"], on="target_id"
    )
    scored_rows = joined.drop_nulls("combination_v1")
    np.testing.assert_array_equal(scored_rows["made"], scored_rows["combination_v1"])


def choose_names(**settings: Any) -> list[str]:
    loaded = load_settings({"input": "a.jsonl", "model": "m"} | settings)
    return [attack.name for attack in choose_attacks(loaded)]


def test_the_combination_is_computed_when_it_is_asked_for():
    assert "combination_v1" not in choose_names()
    assert {*choose_names()} == {"token_hits_less_expected_v1", "token_hits_v1"}
    assert {*choose_names(combine=True)} > {"token_hits_v1", "probe_leading_rarity_v1"}
    assert choose_names(combine=True)[-1] == "combination_v1"
    combining = {
        "attacks": "loss_v1,min_k_20_v1,combination_v1",
        "evidence": "logprobs",
    }
    assert choose_names(combine=True, **combining)[-2:] == [
        "min_k_20_v1",
        "combination_v1",
    ]


@pytest.mark.parametrize(
    "attacks", ["loss_v1", "combination_v1", "loss_v1,combination_v1"]
)
def test_one_attack_cannot_be_combined(attacks):
    with pytest.raises(SettingsError, match="learned from the scores of others"):
        choose_names(attacks=attacks, combine=True)


# Attacks on tuned models are computed as soon as what they need is there.

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


def choose_of_tuned(**settings: Any) -> list[str]:
    return choose_names(**{"preset": "spv"} | settings)


def test_the_preset_asks_for_log_probabilities_and_leaves_out_what_misses_a_setting():
    assert choose_of_tuned() == ALONE
    assert choose_of_tuned(**EVERYTHING) == [*SPV_PAPER]
    assert choose_of_tuned(**EVERYTHING)[0] == "spv_semantic_v1"


@pytest.mark.parametrize(
    ("settings_given", "attacks_added"),
    [
        ({"prompts_from": "p"}, "spv_embedding self_prompt_difference"),
        ({"candidate_from": "c"}, "candidate_difference"),
        ({"reference_model": "b"}, "reference_token_difference ez_mia wbc"),
        (
            {"masked_model": "m"},
            (
                "spv_semantic_uncalibrated spv_neighbour_uncalibrated"
                " neighbour_difference detect_gpt"
            ),
        ),
        (
            {"shadows": 2},
            (
                "lira_online lira_online_fixed lira_offline lira_offline_fixed rmia"
                " rmia_offline"
            ),
        ),
    ],
)
def test_each_setting_brings_its_attacks(settings_given, attacks_added):
    assert {*choose_of_tuned(**settings_given)} == {
        *ALONE,
        *(f"{name}_v1" for name in attacks_added.split()),
    }


def test_by_default_variation_is_not_computed_without_its_reference_model():
    attack_names = choose_of_tuned(
        preset="default", evidence="logprobs", masked_model="masked"
    )
    assert not [name for name in attack_names if name.startswith("spv")]
    attack_names = choose_of_tuned(preset="default", evidence="logprobs", **EVERYTHING)
    assert {*SPV_PAPER} - {*attack_names} == {
        name for name in SPV_PAPER if "uncalibrated" in name
    }


@pytest.mark.parametrize(
    ("changed", "kind", "primary"),
    [
        ({}, "base", "wbc_v1"),
        ({"hidden_size": 24}, "other", "min_k_plus_plus_20_v1"),
        (None, "other", "min_k_plus_plus_20_v1"),
    ],
)
def test_the_planned_attack_reads_a_reference_model_that_may_be_the_base(
    checkpoint, tmp_path, changed, kind, primary
):
    shutil.copytree(checkpoint, tmp_path / "reference")
    config = tmp_path / "reference" / "config.json"
    config.write_text(
        "" if changed is None else json.dumps(json.loads(config.read_text()) | changed)
    )
    settings_given = {
        "input": "-",
        "model": str(checkpoint),
        "reference_model": str(config.parent),
    }
    settings = fill_reference_kind(
        load_settings(settings_given | {"evidence": "logprobs"})
    )
    assert settings.reference_kind == kind
    attacks = [attack.name for attack in choose_attacks(settings)]
    assert build_decision_rule(settings, attacks).primary == primary
    asked_for = load_settings(settings_given | {"reference_kind": "other"})
    assert fill_reference_kind(asked_for) is asked_for


def settle_settings(folder: Path, **settings: Any) -> AuditRequest:
    base_settings = {"input": written(folder, texts("a", 2)), "model": "m"}
    return settle(load_settings(base_settings | settings))


def test_the_samia_preset_asks_for_its_papers_baselines_where_the_model_runs_here(
    tmp_path,
):
    request = settle_settings(tmp_path, preset="samia")
    computed = [attack.name for attack in request.attacks]
    assert request.settings.evidence == "both"
    assert {*PAPER_TABLES["samia"]} - {*computed} == {"decop_v1"}
    assert request.rule.primary == "samia_v1"
    attacks_taken, missing = request.notes
    assert "the paper's baselines are in the same run" in attacks_taken
    assert missing == "no figure of DE-COP, which needs --paraphrases-column"


@pytest.mark.parametrize(
    "settings_given", [{"evidence": "samples"}, {"base_url": "http://h/v1"}]
)
def test_samples_alone_leave_out_the_baselines_of_the_samia_paper_with_the_reason(
    tmp_path, settings_given
):
    request = settle_settings(
        tmp_path, preset="samia", paraphrases_column="others", **settings_given
    )
    assert {attack.kind for attack in request.attacks} == {"samples"}
    assert request.notes == (
        "no figure of LOSS, PPL/zlib, Lowercase, Min-K%, Min-K%++, of which each needs"
        " evidence 'logprobs', but --evidence is 'samples'",
    )
    assert "decop_v1" in {attack.name for attack in request.attacks}
    assert (
        settle_settings(
            tmp_path, preset="samia", attacks="samia_v1", **settings_given
        ).notes
        == ()
    )


@pytest.mark.parametrize(
    ("settings_given", "primary"),
    [
        (EVERYTHING, "spv_semantic_v1"),
        (EVERYTHING | {"masked_model": None}, "spv_embedding_v1"),
        ({"reference_model": "base"}, "wbc_v1"),
        (EVERYTHING | {"primary": "wbc_v1"}, "wbc_v1"),
    ],
)
def test_the_spv_preset_decides_by_the_attack_of_its_paper_where_it_can_be_computed(
    settings_given, primary
):
    attacks = choose_of_tuned(**settings_given)
    settings = load_settings(
        {"input": "-", "model": "m", "preset": "spv"} | settings_given
    )
    assert build_decision_rule(settings, attacks).primary == primary
    assert "wbc_v1" in attacks


def test_noise_is_asked_only_of_engines_that_can_add_it():
    attack = "spv_embedding_uncalibrated_v1"
    assert attack not in choose_of_tuned(engine="vllm")
    with pytest.raises(
        SettingsError, match=f"attacks: {attack} cannot be computed: engine vllm"
    ):
        choose_of_tuned(engine="vllm", attacks=attack)
    assert list_abilities_needed([get(attack)]) == {"noise"}
    assert (
        list_abilities_needed(map(get, ("loss_v1", "spv_semantic_v1"))) == frozenset()
    )
    assert list_abilities_needed([get(attack), get("ez_mia_v1")]) == {"noise", "rank"}


@pytest.mark.parametrize(
    ("stop_settings", "reason"),
    [
        (
            {"shadows": 2},
            "cannot be used with lira_online_v1, which learns from the answers",
        ),
        (
            {"preset": "default", "combine": True},
            "cannot be used with combination_v1, which learns",
        ),
        (
            {"shard": "1/2"},
            "cannot be used with shard: what is asked depends on the answers",
        ),
    ],
)
def test_groups_stop_only_where_nothing_needs_the_answers_about_all(
    stop_settings, reason
):
    texts = {
        "input": "texts.jsonl",
        "model": "tuned",
        "preset": "spv",
        "level": "group",
    }
    settings = load_settings(texts | {"stop_when_decided": True} | stop_settings)
    with pytest.raises(SettingsError, match=f"stop_when_decided= {reason}"):
        check_together(settings, choose_attacks(settings))


# Texts of known exposure next to the audited ones.

ATTACK = "samia_matched_v1"


def words(seed, n=48):
    dice = Random(seed)
    return [f"{dice.choice('abcdefgh')}{dice.randrange(400)}" for _ in range(n)]


def texts(name, n):
    names = [f"{name}{number}" for number in range(n)]
    return pl.DataFrame(
        {
            "document_id": names,
            "text": [" ".join(words(document)) for document in names],
        }
    )


class Reciting(TinyModel):
    """Goes on with the passages that were copied often."""

    def text(self, prompt, seed):
        for number in range(6):
            known_text = words(f"often{number}")
            if prompt.split()[-3:] == known_text[21:24]:
                return "".join(f" {word}" for word in known_text[24:])
        return super().text(prompt, seed) + " " + " ".join(words(prompt, 40))


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("yardstick")
    levels = [
        texts(name, 6).with_columns(level=pl.lit(n))
        for name, n in (("often", 64), ("x", 0))
    ]
    return {
        "input": written(folder, texts("asked", 3), "asked"),
        "non_members": written(folder, texts("new", 40), "new"),
        "non_members_known": "written last week",
        "yardstick": written(folder, pl.concat(levels), "known"),
        "model": MODEL,
        "preset": "matched",
        "samples": 1,
        "q": 0.1,
    }


@pytest.fixture(scope="module")
def runs(settings, tmp_path_factory):
    with HostileServer(Reciting()) as server:
        server_settings = settings | {"base_url": server.url}
        return [
            audit(
                **server_settings
                | {
                    "yardstick": yardstick,
                    "out": str(tmp_path_factory.mktemp("runs") / "run"),
                }
            )
            for yardstick in (settings["yardstick"], "none")
        ]


def test_levels_are_said_and_the_audited_texts_have_the_answers_that_they_have_without(
    runs,
):
    text_said = " ".join(said_of(runs[0]))
    assert "None of 3 targets is reported at q = 0.1" in text_said
    assert (
        "(20 words in a row, or all that follow): 64: 6 of 6; 0: 0 of 6." in text_said
    )
    assert f"outside the training data ({ATTACK}): 64: 6 of 6; 0: 0 of 6." in text_said
    assert "64: 1.00 (0.54 to 1.00); 0: 0.00 (0.00 to 0.46)" in text_said
    mixed, alone = (run["verdicts"].sort("attack", "level", "key") for run in runs)
    assert mixed.equals(alone)
    assert runs[0]["metrics"].equals(runs[1]["metrics"])
    assert runs[0]["rollup"].equals(runs[1]["rollup"])
    of_yardstick = pl.col("check").is_in(["yardstick", "absence", "dose", "answers"])
    of_answers = (pl.col("check") == "dress") & (pl.col("statistic") == "n_prompts")
    mixed, alone = (run["findings"].filter(~of_yardstick & ~of_answers) for run in runs)
    assert mixed.equals(alone)
    assert [found(run, "dress")["n_prompts"] for run in runs] == [43 + 12, 43]
    assert runs[0]["targets"].group_by("role").len().sort("role").rows() == [
        ("target", 3),
        ("non_member", 40),
        ("yardstick", 12),
    ]


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({}, "has no column level or copies; give each text one"),
        ({"level": [1, None]}, "have no level; give"),
    ],
)
def test_a_yardstick_without_levels_is_refused(settings, tmp_path, levels, message):
    yardstick_texts = texts("known", 2).with_columns(
        *(pl.Series(*level) for level in levels.items())
    )
    with pytest.raises(CorpusError, match=message):
        open_corpora(
            load_settings(settings | {"yardstick": written(tmp_path, yardstick_texts)})
        )


def test_books_have_the_classics_unless_they_are_not_wanted(
    tmp_path, checkpoint, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text(" ".join(words("a", 300)))
    settings_given = {
        "input": "books",
        "model": str(checkpoint),
        "window_words": 64,
        "out": "run",
    }
    plan_lines = planned(settings_given)
    # Nothing would be said of it
    assert (plan_lines["targets"], "yardstick" in plan_lines) == (
        "4",
        False,
    )
    yardstick_line = "115 of these targets, 7,360 words; --no-yardstick leaves them out"
    assert (
        planned(settings_given | {"preset": "matched"})["yardstick"] == yardstick_line
    )
    settings_given |= {
        "non_members": written(tmp_path, texts("new", 99)),
        "non_members_known": "later",
    }
    plan_lines = planned(settings_given)
    assert (plan_lines["targets"], plan_lines["yardstick"]) == ("218", yardstick_line)
    settings = fill_yardstick(load_settings(settings_given), [])
    own_targets = (
        open_corpora(settings).targets(settings).filter(role="yardstick").collect()
    )
    assert own_targets.group_by("group", maintain_order=True).len().rows() == [
        ("most copied", 39),
        ("well known", 42),
        ("rarely copied", 34),
    ]
    assert own_targets.select(pl.col("reason", "member").null_count()).row(0) == (
        115,
        115,
    )
    assert own_targets["target"].n_unique() == 115
    options = [
        f"--{name.replace('_', '-')}={value}" for name, value in settings_given.items()
    ]
    result = CliRunner().invoke(command, [*options, "--no-yardstick", "--dry-run"])
    assert "of these targets" not in result.output
    assert result.exit_code == 0
    assert (
        fill_yardstick(
            load_settings(settings_given | {"samples_from": "x"}), []
        ).yardstick
        is None
    )
