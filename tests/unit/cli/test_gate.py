"""The gate: what passes, what fails, and that a number which is withheld is no pass."""

import json
import shutil
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.errors import (
    CorpusError,
    MiaBatchError,
    RunFolderError,
    SettingsError,
)
from mia_batch.extras.gate import gate
from mia_batch.extras.gate.audits import (
    judge_auc,
    judge_collection,
    judge_named,
    judge_words,
    why_worthless,
)
from mia_batch.extras.gate.benchmark import judge_benchmark
from mia_batch.extras.gate.privacy import judge_privacy
from mia_batch.extras.gate.secrets import judge_secrets
from mia_batch.inference.findings import finding_rows
from mia_batch.pipeline import Run
from mia_batch.schemas import BenchmarkTests, Secrets

ATTACKS = ["loss_v1", "min_k_20_v1"]


def build_metrics(**areas):
    """AUCs with their intervals, by attack."""
    return pl.DataFrame(
        [
            {
                "attack": attack,
                "versus": None,
                "slice": "all",
                "metric": "roc_auc",
                "value": value,
                "low": low,
                "high": high,
                "reason": None if high is not None else "too few texts",
            }
            for attack, (value, low, high) in areas.items()
        ],
        schema_overrides=dict.fromkeys(("value", "low", "high"), pl.Float64)
        | {"versus": pl.String},
    )


def build_run(metrics=None, rows=(), verdicts=None):
    """What a run holds: findings are rows of check, statistic, value and the like."""
    tables = [finding_rows("roles"), *(finding_rows(*row) for row in rows)]
    return SimpleNamespace(
        metrics=build_metrics() if metrics is None else metrics,
        findings=pl.concat(tables),
        verdicts=verdicts,
        rule=SimpleNamespace(primary="loss_v1", q=0.05, adjustment="bh"),
    )


@pytest.mark.parametrize(
    ("areas", "limit", "outcome", "value"),
    [
        (
            {"loss_v1": (0.5, 0.4, 0.59), "min_k_20_v1": (0.52, 0.45, 0.58)},
            0.6,
            "pass",
            0.5,
        ),
        # The point is below, its interval is not
        (
            {"loss_v1": (0.55, 0.4, 0.61), "min_k_20_v1": (0.5, 0.4, 0.6)},
            0.6,
            "fail",
            0.55,
        ),
        ({"loss_v1": (0.5, 0.4, 0.6)}, 0.6, "fail", 0.5),
        # One attack is enough to fail
        (
            {"loss_v1": (0.5, 0.4, 0.55), "min_k_20_v1": (0.9, 0.8, 1.0)},
            0.6,
            "fail",
            0.9,
        ),
        # Without an interval there is no pass
        (
            {"loss_v1": (0.5, 0.4, 0.55), "min_k_20_v1": (0.5, None, None)},
            0.6,
            "withheld",
            None,
        ),
        ({"loss_v1": (None, None, None)}, 0.6, "withheld", None),
        ({"other_v1": (0.5, 0.4, 0.55)}, 0.6, "withheld", None),
        # What is no number is below nothing
        ({"loss_v1": (float("nan"), 0.4, float("nan"))}, 0.6, "withheld", None),
        # Members score lower: swapped labels would pass any limit
        ({"loss_v1": (0.2, 0.1, 0.3)}, 0.6, "withheld", None),
    ],
)
def test_auc_is_judged_by_the_upper_end_of_every_attack(areas, limit, outcome, value):
    judged = judge_auc(build_run(build_metrics(**areas)), ATTACKS, limit)
    assert (judged.outcome, judged.value) == (outcome, value)
    assert (judged.reason is not None) >= (outcome == "withheld")


def test_auc_of_texts_that_can_be_told_apart_without_the_model_is_withheld():
    metrics = build_metrics(loss_v1=(0.5, 0.4, 0.55))
    row = {"subject": "members", "statistic": "roc_auc", "verdict": "separable"}
    judged = judge_auc(build_run(metrics, [("blind_baseline", [row])]), ATTACKS, 0.6)
    assert judged.outcome == "withheld"
    assert "no AUC is about memory" in str(judged.reason)


def count_words(n_texts, longest=None):
    rows = [{"subject": "targets", "statistic": "n_texts", "value": n_texts}]
    if longest:
        rows.append({"subject": "Emma", "statistic": "longest", "value": longest})
    return build_run(rows=[("verbatim", rows)])


def test_words_are_those_of_the_longest_passage():
    assert judge_words(count_words(9, 57), 50).outcome == "fail"
    passed = judge_words(count_words(9, 49), 50)
    assert (passed.outcome, passed.value, passed.subject) == ("pass", 49, "Emma")
    assert judge_words(count_words(9, 50), 50).outcome == "fail"
    nothing = judge_words(count_words(9), 20)
    assert (nothing.outcome, nothing.value) == ("pass", 0)
    assert nothing.power == "unknown"
    assert judge_words(count_words(0), 20).outcome == "withheld"
    assert judge_words(build_run(), 20).outcome == "withheld"
    with pytest.raises(SettingsError, match="passages count from 20 words on"):
        judge_words(build_run(), 19)


def report_named(n_reported, n_null=999, n_without_p=0, adjustment="bh", top=None):
    values = {
        "n_tests": 20,
        "n_reported": n_reported,
        "n_null": n_null,
        "n_without_null": 0,
        "n_without_p": n_without_p,
    }
    rows = [
        {"subject": "target", "statistic": name, "value": value}
        for name, value in values.items()
    ]
    rows.append(
        {"subject": "target", "statistic": "q", "value": 0.05, "verdict": adjustment}
    )
    checks = [("reported", rows)]
    if top is not None:
        numbers = {"at_least": top, "of_top": 5, "n_null": n_null, "confidence": 0.95}
        checks.append(
            (
                "top",
                [
                    {"subject": "group", "statistic": name, "value": value}
                    for name, value in numbers.items()
                ],
            )
        )
    return build_run(rows=checks)


def test_none_stands_out_only_where_one_could():
    assert judge_named(report_named(2), 1).outcome == "fail"
    assert judge_named(report_named(2), 2).outcome == "pass"
    passed = judge_named(report_named(0), 0)
    assert passed.outcome == "pass"
    assert "with 999 texts to compare with, 1 of 20 have to score" in passed.power
    assert "unknown" in passed.power
    # By Benjamini-Yekutieli 20 p-values of 1 / 33 are q = 0.109 at best
    few_tests = judge_named(report_named(0, n_null=32, adjustment="by"), 0)
    assert (few_tests.outcome, few_tests.value) == ("withheld", None)
    assert "none of 20 could be named, whatever the scores" in str(few_tests.reason)
    assert judge_named(report_named(0, n_without_p=1), 0).outcome == "withheld"
    assert judge_named(build_run(), 0).outcome == "withheld"


def test_a_lower_bound_fails_even_where_none_can_be_named():
    judged = judge_named(report_named(0, n_null=32, adjustment="by", top=3), 0)
    assert (judged.outcome, judged.value) == ("fail", 3)
    assert judged.subject == "the 5 highest-scoring groups"


def test_a_comparison_that_is_withheld_is_no_pass():
    rows = [{"statistic": "roc_auc", "verdict": "withheld", "reason": "texts differ"}]
    closed = build_run(rows=[("gate", rows)], verdicts=pl.LazyFrame())
    assert judge_named(closed, 0).outcome == "withheld"


def test_a_model_that_predicts_nothing_passes_nothing():
    row = {"subject": "target", "statistic": "nats_per_token", "verdict": "no_better"}
    broken = build_run(rows=[("chance", [row])])
    assert "no better than chance" in str(why_worthless(broken))
    numbers = dict.fromkeys(("n_prompts", "n_alike", "n_repeating", "n_empty"), 9)
    rows = [{"statistic": name, "value": value} for name, value in numbers.items()]
    rows.append(
        {"statistic": "example", "verdict": "does_not_continue", "reason": "Sure"}
    )
    silent = build_run(rows=[("dress", rows)])
    assert "does not continue texts" in str(why_worthless(silent))
    assert why_worthless(build_run()) is None


def test_p_values_of_the_collection():
    def judge(p_value, limit):
        table = pl.DataFrame(
            {
                "attack": ["loss_v1"],
                "planned": [True],
                "estimate": pl.Series([None], dtype=pl.String),
                "level": ["collection"],
                "p_value": pl.Series([p_value], dtype=pl.Float64),
                "reason": ["too few canaries"],
            }
        )
        return judge_collection(build_run(verdicts=table.lazy()), limit)

    assert judge(0.04, 0.05).outcome == "fail"
    assert judge(0.05, 0.05).outcome == "fail"
    assert judge(0.06, 0.05).outcome == "pass"
    missing = judge(None, 0.05)
    assert (missing.outcome, missing.reason) == (
        *("withheld",),
        "loss_v1 has no p-value: too few canaries",
    )


def build_secrets(*rows, n_controls=199):
    defaults = {
        **dict.fromkeys(Secrets.create_empty().columns),
        "model": "m",
        "verdict": "not shown",
        "p_value": 0.5,
        "n_controls": n_controls,
    }
    schema = Secrets.create_empty().schema
    return pl.DataFrame([defaults | row for row in rows], schema=schema)


CLEAN: list[dict[str, Any]] = [{}] * 5


@pytest.mark.parametrize(
    ("rows", "outcome", "value"),
    [
        (CLEAN, "pass", 0),
        ([*CLEAN, {"verdict": "memorised", "p_value": 0.005}], "fail", 1),
        ([*CLEAN, {"verdict": "given back"}], "fail", 1),
        ([*CLEAN, {"verdict": "none", "p_value": None}], "withheld", None),
        # A word that is likelier than letters: no error rate, and no pass
        (
            [
                *CLEAN,
                {"verdict": "exploratory", "exploratory": "word", "p_value": 0.01},
            ],
            "fail",
            1,
        ),
        ([{"verdict": "exploratory", "exploratory": "word"}], "withheld", None),
        # The worst of several models counts
        ([*CLEAN, {"model": "n", "verdict": "given back"}], "fail", 1),
    ],
)
def test_secrets(rows, outcome, value):
    judged = judge_secrets(build_secrets(*rows), 1)
    assert (judged.outcome, judged.value) == (outcome, value)


def test_secrets_that_no_test_could_call_memorised_are_withheld():
    # Of 5 p-values 1 / 10 each, q is 0.1 at best
    judged = judge_secrets(build_secrets(*CLEAN, n_controls=9), 1)
    assert judged.outcome == "withheld"
    assert "with 9 controls" in str(judged.reason)
    passed = judge_secrets(build_secrets(*CLEAN), 1)
    assert "where 1 of 5 are likelier than all of 199 controls" in passed.power


def test_benchmarks_and_privacy():
    empty = BenchmarkTests.create_empty()
    tests = pl.DataFrame(
        {
            "set": ["s", "s"],
            "model": ["m", "m"],
            "test": ["rows", "options"],
            "p_value": [0.2, 0.3],
            "p_adjusted": [0.4, None],
            "reason": [None, None],
        },
        schema_overrides={"reason": pl.String, "p_adjusted": pl.Float64},
    )
    assert empty.columns[:3] == ["set", "model", "test"]
    passed = judge_benchmark(tests, 0.05)
    assert (passed.outcome, passed.value, passed.subject) == (
        *("pass", 0.3),
        "m, options of s",
    )
    assert judge_benchmark(tests, 0.3).outcome == "fail"
    metrics = build_metrics(lira_v1=(0.6, 0.55, 0.65)).with_columns(
        variant=pl.lit("full, epsilon 8")
    )
    both_variants = pl.concat([metrics, metrics.with_columns(variant=pl.lit("full"))])
    assert judge_privacy(metrics, 0.7, None).outcome == "pass"
    assert judge_privacy(both_variants, 0.6, "full").outcome == "fail"
    with pytest.raises(SettingsError, match="say which goes out"):
        judge_privacy(both_variants, 0.7, None)
    with pytest.raises(SettingsError, match="no variant 'x', only full, epsilon 8"):
        judge_privacy(metrics, 0.7, "x")


# The command.


def invoke(folder, *arguments):
    result = CliRunner().invoke(gate, [str(folder), *arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    (line,) = result.stdout.splitlines()
    return result.return_value, json.loads(line), result.stderr


def test_a_run_has_a_root_and_an_exit_code(recorded_books):
    run = Run(recorded_books / "run")
    status, printed, sentences = invoke(run.folder, "--words-below", "1000000")
    assert printed["root"] == run.manifest.custody["root"]
    assert (printed["kind"], printed["version"]) == ("audit", 1)
    outcome = printed["conditions"][0]["outcome"]
    assert (status, printed["verdict"]) == (
        {"pass": 0, "withheld": 2}[outcome],
        outcome,
    )
    assert sentences.count("\n") == 2
    assert "safe" not in sentences
    status, printed, _ = invoke(run.folder, "--auc-below", "0.7")
    assert (status, printed["verdict"]) == (2, "withheld")
    assert printed["conditions"][0]["value"] is None


def test_a_table_that_has_changed_is_refused(recorded_books, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(recorded_books / "run", folder)
    table = pl.read_parquet(folder / "findings.parquet")
    table.head(1).write_parquet(folder / "findings.parquet")
    with pytest.raises(RunFolderError, match="findings"):
        invoke(folder, "--words-below", "50")


def test_a_failing_condition_wins_over_one_that_is_withheld(tmp_path):
    table = build_secrets({"verdict": "given back"}, {"model": "n", "verdict": "none"})
    table.write_parquet(tmp_path / "secrets.parquet")
    status, printed, sentences = invoke(tmp_path, "--secrets-below", "1")
    assert (status, printed["verdict"], printed["root"]) == (3, "fail", None)
    assert len(printed["table_sha256"]) == 64
    assert "fail: a condition does not hold" in sentences


def test_refusals_say_what_to_do(tmp_path):
    with pytest.raises(CorpusError, match="is no finished run"):
        invoke(tmp_path, "--auc-below", "0.6")
    build_secrets(*CLEAN).write_parquet(tmp_path / "secrets.parquet")
    with pytest.raises(
        SettingsError, match=r"asks nothing of .*; give --secrets-below"
    ):
        invoke(tmp_path, "--auc-below", "0.6")
    (tmp_path / "secrets.parquet").write_bytes(b"PAR1")
    with pytest.raises(MiaBatchError, match="cannot be read"):
        invoke(tmp_path, "--secrets-below", "1")
    build_secrets(*CLEAN).drop("verdict").write_parquet(tmp_path / "secrets.parquet")
    with pytest.raises(MiaBatchError, match="'verdict' is missing"):
        invoke(tmp_path, "--secrets-below", "1")
