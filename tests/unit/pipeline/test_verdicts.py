"""Whole runs of recorded continuations, from texts to what may be concluded."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import polars as pl
import pytest

import mia_batch
from mia_batch.corpus import commitment, draw
from mia_batch.errors import SettingsError
from mia_batch.pipeline import plan
from mia_batch.pipeline.stages.verdicts import conclusions
from mia_batch.schemas import Metrics, Verdicts
from mia_batch.settings import load_settings

N_WORDS = 24
FORBIDDEN = re.compile(r"was trained on|1 - p|probability of membership|exchangeable$")


class Library:
    """Texts of random words, and continuations that remember some of them."""

    def __init__(self, folder, n_samples=4):
        self.folder, self.n_samples = folder, n_samples
        self.rng = np.random.default_rng(5)
        self.recorded: list[dict[str, Any]] = []

    def text(self, *, remembered, mark=""):
        """A text whose continuations share a third of its words more if it is remembered."""
        words = [f"w{number}" for number in self.rng.integers(0, 400, N_WORDS)]
        words[0] += mark
        half = words[N_WORDS // 2 :]
        for sample in range(self.n_samples):
            kept = self.rng.random(len(half)) < (0.6 if remembered else 0.2)
            said = [word if keep else "other" for word, keep in zip(half, kept, strict=True)]
            prefix = " ".join(words[: N_WORDS // 2])
            self.recorded.append(
                {"prefix": prefix, "sample_index": sample, "candidate": " " + " ".join(said)}
            )
        return " ".join(words)

    def write(self, name, remembered, **columns):
        texts = [self.text(remembered=one) for one in remembered]
        path = self.folder / name
        pl.DataFrame({"text": texts, **columns}).write_parquet(path)
        return str(path)

    def write_marked(self, name, n, share):
        """Texts of which a share has its first word in another form, none of them remembered."""
        marks = ["", " also"]
        texts = [self.text(remembered=False, mark=marks[i < n * share]) for i in range(n)]
        path = self.folder / name
        pl.DataFrame({"text": texts}).write_parquet(path)
        return str(path)

    def write_canaries(self, n_sets, n_texts):
        lines = []
        for number in range(n_sets):
            texts = [
                " ".join(f"{number}.{index}.{word}" for word in range(N_WORDS))
                for index in range(n_texts)
            ]
            hashed = commitment(f"set {number}", texts)
            published = draw(hashed, n_texts, 3)
            for index, text in enumerate(texts):
                self.record(text, remembered=index == published)
            fields = {"set": f"set {number}", "texts": texts, "commitment": hashed}
            lines.append(json.dumps(fields | {"seed": 3, "published": published}))
        path = self.folder / "canaries.jsonl"
        path.write_text("\n".join(lines), encoding="utf-8")
        return str(path)

    def record(self, text, *, remembered):
        words = text.split()
        said = words[N_WORDS // 2 :] if remembered else ["other"] * (N_WORDS // 2)
        prefix = " ".join(words[: N_WORDS // 2])
        self.recorded += [
            {"prefix": prefix, "sample_index": sample, "candidate": " " + " ".join(said)}
            for sample in range(self.n_samples)
        ]

    def settings(self, **settings):
        path = self.folder / "recorded.parquet"
        pl.DataFrame(self.recorded).write_parquet(path)
        return {
            "samples_from": str(path),
            "out": str(self.folder / "run"),
            "attacks": "samia_matched_v1,samia_matched_n2_v1",
            "samples": self.n_samples,
        } | settings


def said_of(run):
    """The sentences of a finished run."""
    manifest = run.manifest
    settings = load_settings(manifest.settings, use_config=False)
    return [*conclusions(run, settings, manifest.made["scores"]["attacks"])]


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory):
    """60 targets, a third of them remembered, against 99 texts known to be outside."""
    library = Library(tmp_path_factory.mktemp("unlabelled"))
    settings = library.settings(
        input=library.write("asked.parquet", [number < 20 for number in range(60)]),
        non_members=library.write("outside.parquet", [False] * 99),
        non_members_known="written after the model was published",
        calibration=library.write(
            "calibration.parquet", [n < 60 for n in range(120)], label=[n < 60 for n in range(120)]
        ),
    )
    settings["samples_from"] = library.settings()["samples_from"]
    return settings, mia_batch.audit(**settings)


def test_targets_have_p_values_and_those_remembered_are_reported(unlabelled):
    _, run = unlabelled
    verdicts = Verdicts.validate(run.verdicts)
    own = verdicts.filter(attack="samia_matched_v1", level="target")
    assert own.height == 60
    assert own["planned"].all()
    assert own["n_null"].unique().to_list() == [99]
    scores = run.scores.filter(role="target").sort("target_id")["samia_matched_v1"]
    nulls = run.scores.filter(role="non_member")["samia_matched_v1"]
    p = [(1 + (nulls >= score).sum()) / 100 for score in scores]
    assert own.sort("key")["p_value"].to_list() == pytest.approx(p)
    reported = own.filter(pl.col("q_value") <= 0.05)["key"]
    remembered = run.targets.filter(role="target").head(20)["target_id"]
    assert len(reported) >= 15
    assert reported.is_in(remembered.implode()).sum() >= len(reported) - 3
    others = verdicts.filter(attack="samia_matched_n2_v1")
    assert others.height > 60
    assert not others["planned"].any()


def test_non_members_are_weighted_where_texts_alone_tell_them_from_targets(tmp_path):
    library = Library(tmp_path)
    given = {
        "input": library.write_marked("asked.parquet", 80, 0.85),
        "non_members": library.write_marked("outside.parquet", 160, 0.35),
    }
    run = mia_batch.audit(**library.settings(**given, non_members_known="known"))
    found = run.findings.filter(check="weights")
    row = found.filter(statistic="n_effective").row(0, named=True)
    assert (row["verdict"], row["reason"]) == ("used", None)
    assert 60 < row["value"] < 140
    own = Verdicts.validate(run.verdicts).filter(attack="samia_matched_v1")
    assert own["method"].unique().to_list() == ["weighted_conformal"]
    assert own["adjustment"].unique().to_list() == ["wcs"]
    assert own["n_null"].unique().to_list() == [int(row["value"])]
    blind = run.scan("blind").collect()
    assert blind.height == 240
    assert blind.columns[1] == "targets_blind_naive_bayes_v1"
    weighted = f"without the model: 160 independent units count as {row['value']:.1f}."
    assert any(weighted in sentence for sentence in said_of(run))


def test_scores_have_their_sampling_error(unlabelled):
    _, run = unlabelled
    row = run.verdicts.filter(attack="samia_matched_v1", level="target").row(0, named=True)
    features = run.features.filter(target_id=row["key"])
    shares = (features["overlap_1"] / features["words_reference"]).to_list()
    assert row["standard_error"] == pytest.approx(np.std(shares, ddof=1) / 2)


def test_the_contamination_rate_is_near_the_truth(unlabelled):
    _, run = unlabelled
    rates = run.verdicts.filter(estimate="contamination_rate", attack="samia_matched_v1")
    rate = rates.filter(method="fieller").row(0, named=True)
    assert rate["low"] < 1 / 3 < rate["high"]
    assert rate["low"] < rate["value"] < rate["high"]
    bound = rates.filter(method="beta_binomial").row(0, named=True)
    assert 0 < bound["low"] < 1 / 3


def test_the_conclusions_say_what_was_found_and_what_it_rests_on(unlabelled):
    _, run = unlabelled
    said = said_of(run)
    assert re.match(r"\d+ of 60 targets are reported at q = 0.05 \(samia_matched_v1", said[0])
    assert "The null: written after the model was published." in said
    assert any("excluded" in line and "without the model" in line for line in said)
    assert any(line.startswith("Share of members among the targets: ") for line in said)
    assert not any(FORBIDDEN.search(line) for line in said)


def test_the_plan_is_in_the_manifest_with_its_hash(unlabelled):
    _, run = unlabelled
    recorded = run.manifest.plan
    assert recorded["primary"] == "samia_matched_v1"
    assert recorded["null_set"] == "written after the model was published"
    assert re.fullmatch("[0-9a-f]{64}", recorded["sha256"])


def test_what_was_not_planned_is_exploratory(unlabelled, tmp_path):
    settings, run = unlabelled
    before = run.verdicts
    other = mia_batch.audit(**settings | {"primary": "samia_matched_n2_v1"})
    assert not other.verdicts["planned"].any()
    assert other.manifest.plan == run.manifest.plan
    assert said_of(other)[0].startswith("These answers are exploratory")
    again = mia_batch.audit(**settings)
    assert again.verdicts.equals(before)


@pytest.mark.usefixtures("few_permutations")
def test_other_non_members_than_those_planned_are_exploratory(unlabelled, tmp_path):
    settings, _ = unlabelled
    fewer = str(tmp_path / "fewer.parquet")
    pl.read_parquet(settings["non_members"]).head(50).write_parquet(fewer)
    other = mia_batch.audit(**settings | {"non_members": fewer})
    assert not other.verdicts["planned"].any()
    assert said_of(other)[0].endswith("Changed since: non_member.")
    assert mia_batch.audit(**settings).verdicts["planned"].any()


def test_a_plan_made_after_scores_is_exploratory(tmp_path):
    library = Library(tmp_path)
    settings = library.settings(input=library.write("asked.parquet", [True] * 3))
    settings["samples_from"] = library.settings()["samples_from"]
    run = mia_batch.audit(**settings)
    assert said_of(run)[0].startswith("No text is known to be outside")
    older = run.manifest
    older.plan = {}
    del older.made["scores"]
    older.write(run.folder)
    again = mia_batch.audit(**settings)
    assert said_of(again)[0].endswith("before any plan was recorded.")
    assert again.manifest.plan["rests_on"] is None


def test_a_primary_attack_that_is_not_computed_is_refused_at_once(unlabelled, tmp_path):
    settings, _ = unlabelled
    wrong = settings | {"attacks": None, "primary": "loss_v1", "out": str(tmp_path / "run")}
    with pytest.raises(SettingsError, match="'loss_v1', which is not computed"):
        mia_batch.audit(**wrong)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("few_permutations")
def test_targets_that_all_lack_samples_have_reasons(tmp_path):
    library = Library(tmp_path)
    settings = library.settings(
        non_members=library.write("outside.parquet", [False] * 9), non_members_known="made up"
    )
    pl.DataFrame({"text": ["word"] * 2}).write_parquet(tmp_path / "short.parquet")
    settings |= {"input": str(tmp_path / "short.parquet")}
    settings["samples_from"] = library.settings()["samples_from"]
    run = mia_batch.audit(**settings)
    own = run.verdicts.filter(attack="samia_matched_v1", level="target")
    assert own["p_value"].to_list() == [None, None]
    assert own["reason"].to_list() == ["the target has no score"] * 2


def test_what_can_be_shown_at_best_is_said_before_the_run(unlabelled):
    settings, _ = unlabelled
    said = [text for name, text in plan(load_settings(settings)) if name == "power"]
    assert said[0].startswith("the smallest p-value there can be is 0.01, one in 100")
    assert said[1].startswith("at q = 0.05 at least 12 of 60 targets are reported or none")


def test_canaries_are_ranked_among_their_controls(tmp_path):
    library = Library(tmp_path)
    run = mia_batch.audit(
        **library.settings(
            input=library.write("asked.parquet", [False] * 3),
            canaries=library.write_canaries(3, 5),
        )
        | {"samples_from": library.settings()["samples_from"]}
    )
    own = run.verdicts.filter(attack="samia_matched_v1")
    sets = own.filter(level="group")
    assert sets["key"].to_list() == ["set 0", "set 1", "set 2"]
    assert sets["p_value"].to_list() == [0.2, 0.2, 0.2]
    whole = own.filter(method="canary_rank_sum_of_3").row(0, named=True)
    assert whole["p_value"] == pytest.approx(1 / 125)
    assert any(line.startswith("All canaries") for line in said_of(run))


def test_groups_are_whole_units(tmp_path):
    library = Library(tmp_path)
    groups = [f"book {number // 5}" for number in range(100)]
    settings = library.settings(
        input=library.write("asked.parquet", [n < 20 for n in range(40)], group=groups[:40]),
        non_members=library.write(
            "outside.parquet", [False] * 100, group=[f"other {name}" for name in groups]
        ),
        non_members_known="made up",
        level="group",
    )
    settings["samples_from"] = library.settings()["samples_from"]
    run = mia_batch.audit(**settings)
    own = run.verdicts.filter(attack="samia_matched_v1", level="group")
    assert own.height == 8
    assert own["n_null"].unique().to_list() == [20]
    remembered = own.filter(pl.col("key").is_in([f"book {n}" for n in range(4)]))
    assert remembered["p_value"].to_list() == pytest.approx([1 / 21] * 4)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """80 members and 80 non-members, the latter with a word of their own in the first run."""
    library = Library(tmp_path_factory.mktemp("labelled"))
    member = [number % 2 == 0 for number in range(160)]
    settings = library.settings(
        input=library.write("texts.parquet", member, member=member, shelf=list("ab") * 80),
        slice_by="shelf",
    )
    settings["samples_from"] = library.settings()["samples_from"]
    return settings, mia_batch.audit(**settings)


def test_a_labelled_run_has_the_blind_baseline_beside_its_attacks(labelled):
    _, run = labelled
    metrics = Metrics.validate(run.metrics)
    names = set(metrics["attack"])
    assert {"blind_naive_bayes_v1", "blind_year_v1", "blind_surface_v1"} <= names
    beside = metrics.filter(
        pl.col("versus").str.starts_with("blind"), attack="samia_matched_v1"
    ).row(0, named=True)
    assert beside["metric"] == "roc_auc_difference"
    assert beside["low"] < beside["value"] < beside["high"]
    quintiles = metrics.filter(
        pl.col("slice").str.starts_with("blind quintile"), attack="samia_matched_v1"
    )
    assert quintiles.height == 5
    shelves = set(metrics.filter(metric="roc_auc")["slice"])
    assert {"all", "shelf=a", "shelf=b"} <= shelves


def test_labels_that_texts_give_away_are_the_first_thing_said(tmp_path):
    library = Library(tmp_path)
    member = [number % 2 == 0 for number in range(120)]
    path = library.write("texts.parquet", member, member=member)
    texts = pl.read_parquet(path)
    given_away = pl.when("member").then(pl.lit(" 1999")).otherwise(pl.lit(" 2024"))
    texts.with_columns(pl.col("text") + given_away).write_parquet(path)
    run = mia_batch.audit(**library.settings(input=path))
    first = said_of(run)[0]
    assert first.startswith("These labels can be told apart without the model")
    assert "not evidence of memory" in first
    primary = "samia_matched_n2_v1"
    later = mia_batch.audit(**library.settings(input=path, primary=primary))
    first, second = said_of(later)[:2]
    assert first.startswith("These labels can be told apart without the model")
    assert second.startswith("These answers are exploratory")


@pytest.mark.usefixtures("few_permutations")
def test_columns_of_any_name_change_nothing(tmp_path):
    library = Library(tmp_path)
    member = [number % 2 == 0 for number in range(24)]
    path = library.write("texts.parquet", member, member=member)
    settings = library.settings(input=path, attacks="samia_matched_v1")
    plain = mia_batch.audit(**settings)
    names = ["blind", "asked", "first", "last", "place", "cluster", "score", "value", "key", "row"]
    odd = str(tmp_path / "odd.parquet")
    texts = pl.read_parquet(path)
    texts.with_columns(pl.lit(float("nan")).alias(name) for name in names).write_parquet(odd)
    run = mia_batch.audit(**settings | {"input": odd, "out": str(tmp_path / "odd")})
    assert run.metrics.equals(plain.metrics)


@pytest.mark.usefixtures("few_permutations")
def test_one_group_of_each_class_has_reasons_and_no_limits(tmp_path):
    library = Library(tmp_path)
    member = [number % 2 == 0 for number in range(24)]
    group = ["甲" if one else "乙" for one in member]
    path = library.write("texts.parquet", member, member=member, group=group)
    run = mia_batch.audit(**library.settings(input=path))
    own = run.metrics.filter(attack="samia_matched_v1", metric="roc_auc")
    assert own["low"].to_list() == [None]
    few = "an interval needs 4 independent groups of texts of one size in each class, these are "
    assert own["reason"].to_list() == [f"{few}worth 1"]


def test_a_column_to_slice_by_that_is_not_there_is_named(labelled, tmp_path):
    settings, _ = labelled
    with pytest.raises(SettingsError, match="has no column 'page', only document_id"):
        mia_batch.audit(**settings | {"slice_by": "page", "out": str(tmp_path / "run")})
    assert not (tmp_path / "run").exists()


def test_copies_among_the_texts_are_warned_of_unless_they_share_a_group(tmp_path):
    library = Library(tmp_path)
    texts = [library.text(remembered=number % 2 == 0) for number in range(40)]
    corpus = pl.DataFrame(
        {
            "text": [*texts, *texts[:3]],
            "document_id": [f"d{number}" for number in range(43)],
            "label": [number % 2 == 0 for number in [*range(40), *range(3)]],
        }
    )
    warnings = []
    for name, groups in (("apart", range(43)), ("together", [*range(40), *range(3)])):
        path = tmp_path / f"{name}.parquet"
        grouped = pl.Series("group", [str(group) for group in groups])
        corpus.with_columns(grouped).write_parquet(path)
        run = mia_batch.audit(**library.settings(input=str(path), out=str(tmp_path / name)))
        warnings.append([line for line in said_of(run) if "word for word:" in line])
    assert [len(lines) for lines in warnings] == [1, 0]
    assert warnings[0][0].startswith("6 of 43 texts stand in another group or document, too")


def test_scores_that_one_class_lacks_are_warned_of_with_their_reason(tmp_path):
    library = Library(tmp_path)
    member = [number % 2 == 0 for number in range(80)]
    path = library.write("texts.parquet", member, member=member, document_id=[*map(str, range(80))])
    short = pl.col("member") & (pl.int_range(pl.len()) < 30)
    texts = pl.read_parquet(path)
    texts.with_columns(text=pl.when(short).then(pl.lit("word")).otherwise("text")).write_parquet(
        path
    )
    lines = said_of(mia_batch.audit(**library.settings(input=path)))
    found = [index for index, line in enumerate(lines) if "do not lack scores alike" in line]
    assert len(found) == 1
    assert (
        "no score by samia_matched_v1, samia_matched_n2_v1 for 15 of 40 members (37.5%; mostly: "
        "the text is too short to split: its prefix or its reference would have no word) and 0 "
        "of 40 non-members (0.0%)."
    ) in lines[found[0]]
    assert lines[found[0] + 1].startswith("samia_matched_v1: AUC ")
