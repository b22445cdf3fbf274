"""A plan binds the audit and nothing else; runs are equal to it, or each difference is said."""

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch import attacks
from mia_batch.cli.main import command
from mia_batch.errors import SettingsError
from mia_batch.observer import Observer
from mia_batch.pipeline import Run, plan
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.lodged_plan import (
    build_plan,
    compare_lodged_plan,
    compute_sha256,
    list_differences,
    write_canonical,
)
from mia_batch.pipeline.results import build_answer, list_attacks
from mia_batch.settings import (
    PLAN_OPEN,
    PLAN_PLACES,
    Mark,
    Settings,
    load_settings,
    read_plan,
)
from tests.runs import audit_books, recorded_books, rescore, said_of, write_books

MINE = (
    "import polars as pl\nfrom mia_batch.attacks import Attack\nmine ="
    " Attack(name='lodging_v1', expr=pl.col('words_candidate').{}().cast(pl.Float64),"
    " source='mine', undefined='there is no candidate')\n"
)


def planned_in(folder: Path, folder_name: str = "run", **changed):
    settings_given = {
        "input": str(folder / "books"),
        "samples_from": str(folder / "made.parquet"),
        "out": str(folder / folder_name),
    }
    settings = load_settings(settings_given | changed, use_config=False)
    return build_plan(Audit.begin(settings, Observer()))


@pytest.fixture
def inputs(tmp_path):
    write_books(tmp_path / "here")
    return tmp_path / "here"


def test_other_audits_have_other_hashes_and_the_same_one_elsewhere_has_the_same(
    inputs, tmp_path
):
    elsewhere = shutil.copytree(inputs, tmp_path / "far" / "away")
    other_inputs = shutil.copytree(inputs, tmp_path / "other")
    (other_inputs / "books" / "1.txt").write_text("one word less", "utf-8")
    pl.DataFrame({"text": ["never seen"]}).write_parquet(tmp_path / "new.parquet")
    sets = {
        "non_members": str(tmp_path / "new.parquet"),
        "non_members_known": "made today",
    }
    plans = [
        planned_in(inputs),
        planned_in(other_inputs),
        planned_in(inputs, **sets),
        planned_in(inputs, **sets | {"non_members_known": "made yesterday"}),
        planned_in(inputs, attacks="rouge_1_v1"),
        planned_in(inputs, q=0.1),
        planned_in(inputs, seed=1),
        planned_in(inputs, level="collection"),
        planned_in(inputs, window_words=20),
    ]
    hashes = [compute_sha256(audit_plan) for audit_plan in plans]
    assert len({*hashes}) == len(plans)
    assert (
        compute_sha256(planned_in(elsewhere, folder_name="another name", report=False))
        == hashes[0]
    )
    assert str(tmp_path) not in write_canonical(plans[2])
    assert hashes[0] == sha256(write_canonical(plans[0]).encode()).hexdigest()


def test_every_setting_is_bound_or_left_open_for_a_reason(inputs):
    bound = {*planned_in(inputs)["settings"]}
    assert bound - PLAN_PLACES == {*Settings.model_fields} - PLAN_OPEN - PLAN_PLACES
    assert bound & PLAN_PLACES == {"attacks"}
    places = {*Settings.marked(Mark.PATH), *Settings.marked(Mark.MODEL)} | PLAN_OPEN
    unbound = {"attacks", "base_url", "known_index", "revision", "reference_revision"}
    assert PLAN_PLACES - places == unbound


def test_a_formula_of_ones_own_is_bound_by_its_content(inputs, tmp_path, monkeypatch):
    hashes = []
    for statistic in ("max", "min", "max"):
        monkeypatch.setattr(attacks, "_REGISTERED", {})
        (tmp_path / "mine.py").write_text(MINE.format(statistic), "utf-8")
        attack_settings = {
            "attacks_from": str(tmp_path / "mine.py"),
            "attacks": "samia_v1",
        }
        hashes.append(compute_sha256(planned_in(inputs, **attack_settings)))
    assert hashes[0] == hashes[2] != hashes[1]


def test_an_endpoints_model_is_known_by_name_and_address_alone(inputs):
    endpoint_settings: dict[str, Any] = {
        "base_url": "https://host.example/v1",
        "samples_from": None,
    }
    plan_made = planned_in(inputs, model="m", **endpoint_settings)
    target_model = plan_made["models"]["target"]
    assert (target_model["name"], target_model["address"]) == (
        "m",
        "https://host.example/v1",
    )
    assert target_model["known_by"].startswith("its name alone")
    other_plan = planned_in(inputs, model="n", **endpoint_settings)
    (sentence,) = list_differences(plan_made, other_plan)
    assert sentence.startswith("the target model: planned known_by its name alone")


def test_each_difference_is_a_sentence_with_what_was_planned_and_what_is_now():
    first_plan = {
        "inputs": {"input": {"files": 1, "sha256": "aa"}},
        "attacks": {"a_v1": "x", "b_v1": "x"},
    }
    first_plan |= {
        "models": {},
        "settings": {"q": 0.05, "attacks": ["a_v1", "b_v1"]},
        "null_set": "n",
    }
    second_plan = {
        "inputs": {},
        "attacks": {"a_v1": "y"},
        "models": {},
        "null_set": "\x1b[2J",
    }
    second_plan |= {"settings": {"q": 0.1, "attacks": ["a_v1"], "new": None}}
    assert list_differences(first_plan, second_plan) == [
        "attack a_v1: planned x, now y",
        "attack b_v1: planned x, now nothing",
        "input: planned files 1, sha256 aa, now nothing",
        r"null set: planned n, now '\x1b[2J'",
        "q: planned 0.05, now 0.1",
    ]
    swapped = first_plan | {"settings": {"q": 0.05, "attacks": ["b_v1", "a_v1"]}}
    assert list_differences(first_plan, swapped) == [
        'attacks: planned ["a_v1", "b_v1"], now ["b_v1", "a_v1"]',
    ]
    assert list_differences(first_plan, first_plan | {"form": 2}) == [
        "form: planned nothing, now 2"
    ]


def test_a_dry_run_writes_the_plan_by_which_a_run_elsewhere_is_made(inputs, tmp_path):
    inputs_options = [
        "--input",
        str(inputs / "books"),
        "--samples-from",
        str(inputs / "made.parquet"),
    ]
    run_folder, settings_options = (
        tmp_path / "dry",
        ["--attacks", "samia_v1", "--level", "group", "--seed", "7"],
    )
    result = CliRunner().invoke(
        command,
        [*inputs_options, *settings_options, "--out", str(run_folder), "--dry-run"],
    )
    assert result.exit_code == 0, result.output
    lodged = sha256((run_folder / "plan.json").read_bytes()).hexdigest()
    assert f"SHA-256 {lodged}" in result.output
    run = audit_books(
        tmp_path / "run", inputs, plan=str(run_folder / "plan.json"), report=False
    )
    assert run.manifest.lodged == {
        "sha256": lodged,
        "after_scores": False,
        "differences": [],
    }
    assert (run.manifest.plan["level"], run.manifest.plan["seed"]) == ("group", 7)
    assert run.manifest.plan["attacks"] == ["samia_v1"]
    assert f"The audit is equal to the plan lodged (SHA-256 {lodged})." in said_of(run)
    verified = CliRunner().invoke(
        command, ["verify", str(run.folder)], standalone_mode=False
    )
    assert (
        verified.output.splitlines()[-1]
        == f"equal to the plan lodged (SHA-256 {lodged})"
    )
    again = CliRunner().invoke(
        command,
        [*inputs_options, *settings_options, "--out", str(run.folder), "--dry-run"],
    )
    assert "not written, because" in again.output
    assert verified.return_value == again.exit_code == 0


def test_an_audit_that_differs_is_refused_or_says_so_everywhere(
    recorded, inputs, tmp_path
):
    lodged = recorded / "run" / "plan.json"
    changed_settings = {"plan": str(lodged), "q": 0.1, "seed": 3, "report": False}
    with pytest.raises(SettingsError) as refusal:
        audit_books(tmp_path / "run", inputs, **changed_settings)
    first, second, last = str(refusal.value).splitlines()
    assert (first, second) == ("q: planned 0.05, now 0.1", "seed: planned 0, now 3")
    assert last.endswith("give --anyway: the answer then names each difference")
    assert not (tmp_path / "run").exists()
    run = audit_books(tmp_path / "run", inputs, anyway=True, **changed_settings)
    assert run.manifest.lodged["differences"] == [first, second]
    assert "the audit differs from the plan lodged" in build_answer(run)
    assert any(line.endswith(f"{first}; {second}.") for line in said_of(run))
    result = CliRunner().invoke(
        command, ["verify", str(run.folder)], standalone_mode=False
    )
    assert result.return_value == 1
    assert result.output.splitlines()[-2:] == [f"  {first}", f"  {second}"]


def test_a_run_is_compared_with_any_plan_by_what_it_really_read(recorded, tmp_path):
    folder = shutil.copytree(recorded / "run", tmp_path / "run")
    run, planned = Run(folder), read_plan(folder / "plan.json")
    assert compare_lodged_plan(run, None) is None
    assert compare_lodged_plan(run, folder / "plan.json") == (
        compute_sha256(planned),
        [],
    )
    planned["inputs"]["input"]["sha256"] = "0" * 64
    # And the run's own is forged
    (folder / "plan.json").write_text(write_canonical(planned), "utf-8")
    compared = compare_lodged_plan(run, folder / "plan.json")
    assert compared is not None
    (sentence,) = compared[1]
    assert sentence.startswith("input: planned files 2, sha256 0000")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "it is no JSON"),
        (b'{"a": "' + b"x" * (2 << 20), "it is no JSON, or longer"),
        (b"\xff\xfe", "it is no JSON"),
        (b"[]", "is no plan of an audit"),
        (
            b'{"attacks": {}, "inputs": {"a": 1}, "models": {}, "settings": {}}',
            "is no plan",
        ),
    ],
)
def test_what_is_no_plan_is_refused_in_a_sentence(inputs, tmp_path, content, message):
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        audit_books(tmp_path / "run", inputs, plan=str(tmp_path / "plan.json"))
    with pytest.raises(SettingsError, match=r"there is no file .*missing"):
        audit_books(tmp_path / "run", inputs, plan=str(tmp_path / "missing"))


def test_a_strangers_plan_names_no_place_and_loads_no_code(recorded, inputs, tmp_path):
    planned = read_plan(recorded / "run" / "plan.json")
    places = {
        "base_url": "http://stranger",
        "known_index": "http://stranger#x",
        "out": "/stranger",
    }
    (tmp_path / "plan.json").write_text(
        json.dumps(planned | {"settings": planned["settings"] | places}), "utf-8"
    )
    settings_given = {
        "input": str(inputs / "books"),
        "samples_from": str(inputs / "made.parquet"),
    }
    settings = load_settings(settings_given | {"plan": str(tmp_path / "plan.json")})
    assert (settings.base_url, settings.known_index, settings.out) == (None, None, None)
    code = {"engine_arg": {"trust_remote_code": True}}
    (tmp_path / "plan.json").write_text(
        json.dumps(planned | {"settings": planned["settings"] | code}), "utf-8"
    )
    with pytest.raises(
        SettingsError, match="sets trust_remote_code, which may load code"
    ):
        load_settings(settings_given | {"plan": str(tmp_path / "plan.json")})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lodging")
    recorded_books(folder)
    return folder


def test_scores_are_added_and_the_planned_attack_still_answers(
    recorded, tmp_path, monkeypatch
):
    monkeypatch.setattr(attacks, "_REGISTERED", {})
    copied = shutil.copytree(recorded, tmp_path / "copied")
    run = Run(copied / "run")
    scores_before, sentences_before, plan_before = (
        run["scores"],
        said_of(run),
        run.manifest.plan,
    )
    answer, verdicts = build_answer(run), run["verdicts"]
    (tmp_path / "mine.py").write_text(MINE.format("max"), "utf-8")
    rescore(run.folder, attacks_from=str(tmp_path / "mine.py"))
    assert run["scores"].select(scores_before.columns).equals(scores_before)
    assert run["scores"]["lodging_v1"].count() == 2
    assert build_answer(run) == answer
    assert run.manifest.plan == plan_before
    assert run["verdicts"].filter(pl.col("attack") != "lodging_v1").equals(verdicts)
    later = "lodging_v1 is exploratory: scores by it were added after the first scores."
    (added_sentence,) = [line for line in said_of(run) if line not in sentences_before]
    assert added_sentence == f"{later} The answer does not rest on them."
    assert list_attacks(run).is_empty()
    with pytest.raises(
        SettingsError, match="primary= is 'samia_matched_v1' in the plan and"
    ):
        rescore(run.folder, attacks="lodging_v1", primary="lodging_v1")
    with pytest.raises(
        SettingsError, match="samples= was 2 and is 1 now, which makes other"
    ):
        rescore(run.folder, samples=1)
    rescored = rescore(run.folder, attacks="lodging_v1", replace=True)
    (record,) = rescored.manifest.replaced
    assert record["attacks_taken_away"] == plan_before["attacks"]
    assert record["before"]["primary"] == "samia_matched_v1"
    assert record["now"]["primary"] == "lodging_v1"
    assert "samia_v1" not in rescored["scores"].columns


def test_what_was_added_by_another_file_is_not_lost_without_a_word(
    recorded, tmp_path, monkeypatch
):
    monkeypatch.setattr(attacks, "_REGISTERED", {})
    copied = shutil.copytree(recorded, tmp_path / "copied")
    (tmp_path / "mine.py").write_text(MINE.format("max"), "utf-8")
    rescore(copied / "run", attacks_from=str(tmp_path / "mine.py"))
    monkeypatch.setattr(attacks, "_REGISTERED", {})
    with pytest.raises(
        SettingsError, match="the run has scores of lodging_v1, whose formula"
    ):
        rescore(copied / "run", attacks="rouge_1_v1")
    with pytest.raises(
        SettingsError, match="the run has scores of lodging_v1, whose formula"
    ):
        audit_books(copied / "run", copied, attacks="samia_v1")


def test_the_same_command_with_fewer_attacks_takes_none_away(recorded, tmp_path):
    copied = shutil.copytree(recorded, tmp_path / "copied")
    scores_before = Run(copied / "run")["scores"]
    run = audit_books(copied / "run", copied, attacks="samia_zlib_v1,rouge_1_v1")
    assert run["scores"].drop("rouge_1_v1").equals(scores_before)
    assert run.manifest.plan["primary"] == "samia_matched_v1"
    assert dict(plan(load_settings(run.manifest.settings, use_config=False)))
