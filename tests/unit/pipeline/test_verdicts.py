"""Whole runs of recorded continuations, from texts to what may be concluded."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import polars as pl
import pytest

from mia_batch.corpus import commitment, draw
from mia_batch.errors import SettingsError
from mia_batch.pipeline import plan
from mia_batch.pipeline.stages.verdicts import conclusions
from mia_batch.schemas import Metrics, Verdicts
from mia_batch.settings import load_settings
from tests import runs

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
        self.record(words, 0.6 if remembered else 0.2)
        return " ".join(words)

    def record(self, words, known):
        prefix, half = " ".join(words[: N_WORDS // 2]), words[N_WORDS // 2 :]
        for sample in range(self.n_samples):
            kept = self.rng.random(len(half)) < known
            said = [word if keep else "other" for word, keep in zip(half, kept, strict=True)]
            row = {"prefix": prefix, "sample_index": sample, "candidate": f" {' '.join(said)}"}
            self.recorded.append(row)

    def write(self, name, remembered, **columns):
        return self.put(name, [self.text(remembered=one) for one in remembered], **columns)

    def put(self, name, texts, **columns):
        path = self.folder / name
        pl.DataFrame({"text": texts, **columns}).write_parquet(path)
        return str(path)

    def write_marked(self, name, n, share):
        """Texts of which a share has its first word in another form, none of them remembered.

        They are not sorted by it, or neighbours would look like parts of one book.
        """
        marks = ["", " also"]
        marked = (np.random.default_rng(1).permutation(n) < n * share).tolist()
        return self.put(name, [self.text(remembered=False, mark=marks[each]) for each in marked])

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
                self.record(text.split(), 2 if index == published else 0)
            fields = {"set": f"set {number}", "texts": texts, "commitment": hashed}
            lines.append(json.dumps(fields | {"seed": 3, "published": published}))
        path = self.folder / "canaries.jsonl"
        path.write_text("\n".join(lines), encoding="utf-8")
        return str(path)

    def audit(self, **settings):
        return runs.audit(**self.settings(**settings))

    def settings(self, **settings):
        path = self.folder / "recorded.parquet"
        pl.DataFrame(self.recorded).write_parquet(path)
        return {
            "samples_from": str(path),
            "out": str(self.folder / "run"),
            "attacks": "samia_matched_v1,samia_matched_n2_v1",
            "samples": self.n_samples,
            "report": False,
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
    return settings, runs.audit(**settings)


def test_targets_have_p_values_sampling_errors_and_a_share_that_holds_the_truth(unlabelled):
    settings, run = unlabelled
    verdicts = Verdicts.validate(run["verdicts"])
    own = verdicts.filter(attack="samia_matched_v1", level="target")
    assert own.height == 60
    assert own["planned"].all()
    assert own["n_null"].unique().to_list() == [99]
    scores = run["scores"].filter(role="target").sort("target_id")["samia_matched_v1"]
    nulls = run["scores"].filter(role="non_member")["samia_matched_v1"]
    p = [(1 + (nulls >= score).sum()) / 100 for score in scores]
    assert own.sort("key")["p_value"].to_list() == pytest.approx(p)
    reported = own.filter(pl.col("q_value") <= 0.05)["key"]
    remembered = run["targets"].filter(role="target").head(20)["target_id"]
    assert len(reported) >= 15
    assert reported.is_in(remembered.implode()).sum() >= len(reported) - 3
    others = verdicts.filter(attack="samia_matched_n2_v1")
    assert others.height > 60
    assert not others["planned"].any()
    row = own.row(0, named=True)
    features = run["features"].filter(target_id=row["key"])
    shares = (features["overlap_1"] / features["words_reference"]).to_list()
    assert row["standard_error"] == pytest.approx(np.std(shares, ddof=1) / 2)
    rates = verdicts.filter(estimate="contamination_rate", attack="samia_matched_v1")
    rate = rates.filter(method="fieller").row(0, named=True)
    assert rate["low"] < rate["value"] < rate["high"]
    assert rate["low"] < 1 / 3 < rate["high"]
    bound = rates.filter(method="beta_binomial").row(0, named=True)
    assert 0 < bound["low"] < 1 / 3
    said = [text for name, text in plan(load_settings(settings)) if name == "power"]
    assert said[0] == (
        "With 99 comparison texts single texts can be named only if 12 of your 60 stand out; "
        "to name five of them, give at least 239, or ask --level collection."
    )
    assert len(said) == 3


def test_the_conclusions_say_what_was_found_and_what_it_rests_on(unlabelled):
    _, run = unlabelled
    said = said_of(run)
    assert said[0].startswith("Whether the audited texts and the comparison texts can be told")
    assert re.match(r"\d+ of 60 targets are reported at q = 0.05 \(samia_matched_v1", said[1])
    assert "The null: written after the model was published." in said
    assert any(line.startswith("Share of members among the targets: ") for line in said)
    assert not any(FORBIDDEN.search(line) for line in said)
    recorded = run.manifest.plan
    assert recorded["primary"] == "samia_matched_v1"
    assert recorded["null_set"] == "written after the model was published"
    assert re.fullmatch("[0-9a-f]{64}", recorded["sha256"])


def test_non_members_are_weighted_where_texts_alone_tell_them_from_targets(tmp_path):
    library = Library(tmp_path)
    given = {
        "input": library.write_marked("asked.parquet", 80, 0.75),
        "non_members": library.write_marked("outside.parquet", 160, 0.4),
    }
    run = runs.audit(**library.settings(**given, non_members_known="known"))
    found = run["findings"].filter(check="weights")
    row = found.filter(statistic="n_effective").row(0, named=True)
    assert (row["verdict"], row["reason"]) == ("used", None)
    assert 60 < row["value"] < 140
    own = Verdicts.validate(run["verdicts"]).filter(attack="samia_matched_v1")
    assert own["method"].unique().to_list() == ["weighted_conformal"]
    assert own["adjustment"].unique().to_list() == ["wcs"]
    assert own["n_null"].unique().to_list() == [int(row["value"])]
    blind = run.scan("blind").collect()
    assert blind.height == 240
    assert blind.columns[1] == "targets_blind_naive_bayes_v1"
    weighted = f"160 of them count as {row['value']:.1f}."
    assert any(weighted in sentence for sentence in said_of(run))


def test_texts_that_differ_without_the_model_get_no_answer_unless_it_is_asked_for(tmp_path):
    """Old texts and new ones; scores follow the years, and nothing was trained on."""
    library = Library(tmp_path)
    old, new = ([library.text(remembered=one) for _ in range(40)] for one in (True, False))
    for name, texts, years in (("old", old, (1990, 2005)), ("new", new, (2025, 2026))):
        dated = [f"{text} in {years[n % 2]}" for n, text in enumerate(texts)]
        pl.DataFrame({"text": dated}).write_parquet(tmp_path / f"{name}.parquet")
    names = {"input": "old", "non_members": "new"}
    files = {name: str(tmp_path / f"{file}.parquet") for name, file in names.items()}
    files["non_members_known"] = "written after the model was published"
    settings = library.settings(prefix_ratio=12 / 26, **files)
    run = runs.audit(**settings)
    numbers = ("p_value", "q_value", "sensitivity_bound", "value", "low", "high")
    assert run["verdicts"].height > 80
    assert run["verdicts"].select(pl.col(numbers).count()).row(0) == (0,) * 6
    assert run["verdicts"]["reason"].str.starts_with("withheld: the audited texts").all()
    assert run["verdicts"]["score"].count() == 80
    said = said_of(run)
    assert said[0].startswith("No answer: the audited texts and the comparison texts can be told")
    assert not any("reported at" in line or "Share of" in line for line in said)
    run = runs.audit(**settings | {"exploratory": True})
    assert (run["verdicts"]["q_value"] < 0.05).sum() > 60
    assert not run["verdicts"]["planned"].any()
    said = said_of(run)
    assert said[0].startswith("Exploratory: the audited texts and the comparison texts can be told")
    assert any(" of 40 targets are reported" in line for line in said)


def test_what_a_recording_gives_back_word_for_word_is_said_first(tmp_path):
    words = [f"w{number}" for number in range(60)]
    answers = [" ".join(words[30:])] * 2 + ["nothing of the kind"] * 3
    recorded = {"document_id": ["a"] * 5, "sample_index": range(5), "candidate": answers}
    pl.DataFrame(recorded).write_parquet(tmp_path / "made.parquet")
    corpus = {"document_id": ["a"], "text": [" ".join(words)]}
    run = runs.audit(
        input=corpus, samples_from=str(tmp_path / "made.parquet"), out=str(tmp_path / "run")
    )
    said = said_of(run)
    assert said[0].startswith(
        "Word for word (at least 20 words in a row) the model gives back 1 of 1 texts asked about. "
        'The longest passage, of a, has 30 words: "w30 w31 '
    )
    assert not any("show nothing" in line for line in said)


def test_what_was_not_planned_is_exploratory_until_it_is_as_planned_again(unlabelled, tmp_path):
    settings, run = unlabelled
    before, planned = run["verdicts"], run.manifest.plan
    found = run["findings"].filter(check="max_t", statistic="largest").row(0, named=True)
    assert planned["attacks"] == run.manifest.made["scores"]["attacks"]
    assert (found["verdict"], found["p_value"]) == ("as_planned", 1 / 10_000)
    other = runs.audit(**settings | {"primary": "samia_matched_n2_v1"})
    assert not other["verdicts"]["planned"].any()
    assert other.manifest.plan == planned
    assert said_of(other)[1].startswith("These answers are exploratory")
    fewer = str(tmp_path / "fewer.parquet")
    pl.read_parquet(settings["non_members"]).head(50).write_parquet(fewer)
    other = runs.audit(**settings | {"non_members": fewer})
    assert not other["verdicts"]["planned"].any()
    assert said_of(other)[1].endswith("Changed since: non_member.")
    attacks = "samia_matched_v1,samia_matched_n2_v1,longest_block_v1"
    more = runs.audit(**settings | {"attacks": attacks})
    together = (
        "All 3 attacks together (largest rank sum, texts permuted; exploratory, as attacks were "
        "added or left out since the plan was recorded): p = 0.0001, strongest: "
    )
    assert any(line.startswith(together) for line in said_of(more))
    assert more["verdicts"].filter(attack="samia_matched_v1")["planned"].all()
    assert runs.audit(**settings)["verdicts"].equals(before)
    wrong = settings | {"attacks": None, "primary": "loss_v1", "out": str(tmp_path / "run")}
    with pytest.raises(SettingsError, match="'loss_v1', which is not computed"):
        runs.audit(**wrong)
    assert not (tmp_path / "run").exists()


def test_a_plan_made_after_scores_is_exploratory(tmp_path):
    library = Library(tmp_path)
    settings = library.settings(input=library.write("asked.parquet", [True] * 3))
    run = runs.audit(**settings)
    assert said_of(run)[0].startswith("No text is known to be outside")
    older = run.manifest
    older.plan = {}
    del older.made["scores"]
    older.write(run.folder)
    again = runs.audit(**settings)
    assert said_of(again)[0].endswith("before any plan was recorded.")
    assert again.manifest.plan["rests_on"] is None


def test_targets_that_all_lack_samples_have_reasons(tmp_path):
    library = Library(tmp_path)
    run = library.audit(
        input=library.put("short.parquet", ["word"] * 2),
        non_members=library.write("outside.parquet", [False] * 9),
        non_members_known="made up",
    )
    own = run["verdicts"].filter(attack="samia_matched_v1", level="target")
    assert own["p_value"].to_list() == [None, None]
    assert own["reason"].to_list() == ["the target has no score"] * 2


def test_canaries_are_ranked_among_their_controls(tmp_path):
    library = Library(tmp_path)
    asked = library.write("asked.parquet", [False] * 3)
    run = library.audit(input=asked, canaries=library.write_canaries(3, 5))
    own = run["verdicts"].filter(attack="samia_matched_v1")
    sets = own.filter(level="group")
    assert sets["key"].to_list() == ["set 0", "set 1", "set 2"]
    assert sets["p_value"].to_list() == [0.2, 0.2, 0.2]
    whole = own.filter(method="canary_rank_sum_of_3").row(0, named=True)
    assert whole["p_value"] == pytest.approx(1 / 125)
    assert any(line.startswith("All canaries") for line in said_of(run))


def test_groups_are_whole_units(tmp_path):
    library = Library(tmp_path)
    groups = [f"book {number // 5}" for number in range(100)]
    run = library.audit(
        input=library.write("asked.parquet", [n < 20 for n in range(40)], group=groups[:40]),
        non_members=library.write(
            "outside.parquet", [False] * 100, group=[f"other {name}" for name in groups]
        ),
        non_members_known="made up",
        level="group",
    )
    own = run["verdicts"].filter(attack="samia_matched_v1", level="group")
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
    return settings, runs.audit(**settings)


def test_a_labelled_run_has_the_blind_baseline_beside_its_attacks(labelled):
    _, run = labelled
    metrics = Metrics.validate(run["metrics"])
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
    texts = [f"{library.text(remembered=one)} {1999 if one else 2024}" for one in member]
    path = library.put("texts.parquet", texts, member=member)
    first = said_of(library.audit(input=path, prefix_ratio=12 / 25))[0]
    assert first.startswith("These labels can be told apart without the model")
    assert "not evidence of memory" in first
    later = library.audit(input=path, prefix_ratio=12 / 25, primary="samia_matched_n2_v1")
    first, second = said_of(later)[:2]
    assert first.startswith("These labels can be told apart without the model")
    assert second.startswith("These answers are exploratory")


def test_columns_of_any_name_change_nothing(tmp_path):
    library = Library(tmp_path)
    member = [number % 2 == 0 for number in range(24)]
    path = library.write("texts.parquet", member, member=member)
    settings = library.settings(input=path, attacks="samia_matched_v1")
    plain = runs.audit(**settings)
    names = ["blind", "asked", "first", "last", "place", "cluster", "score", "value", "key", "row"]
    odd = str(tmp_path / "odd.parquet")
    texts = pl.read_parquet(path)
    texts.with_columns(pl.lit(float("nan")).alias(name) for name in names).write_parquet(odd)
    run = runs.audit(**settings | {"input": odd, "out": str(tmp_path / "odd")})
    assert run["metrics"].equals(plain["metrics"])


@pytest.fixture(scope="module")
def in_rounds(tmp_path_factory):
    """Two groups of eight texts that are remembered and four that are not, against 39.

    The attack weighs words by what the model says in the first round.
    """
    library = Library(tmp_path_factory.mktemp("rounds"))
    names = [f"book {number // 8:02}" for number in range(45 * 8)]
    settings = library.settings(
        input=library.write("asked.parquet", [n < 16 for n in range(48)], group=names[:48]),
        non_members=library.write("outside.parquet", [False] * 312, group=names[48:]),
        non_members_known="written after the model was published",
        level="group",
        stop_when_decided=True,
        q=0.2,
        attacks="samia_matched_v1,samia_matched_rarity_v1",
        primary="samia_matched_rarity_v1",
    )
    return settings, runs.audit(**settings)


def test_groups_stop_when_they_are_decided(in_rounds):
    _, run = in_rounds
    verdicts = Verdicts.validate(run["verdicts"])
    assert verdicts["attack"].unique().to_list() == ["samia_matched_rarity_v1"]
    assert verdicts["adjustment"].unique().to_list() == ["e-bh"]
    found = dict(verdicts.select("key", "q_value").iter_rows())
    # Two ranks count, 40 * 2/3 and 40 * 1/3: two of 6 need e-values of 6 / (0.2 * 2) = 15.
    assert found.pop("book 00") == found.pop("book 01") == pytest.approx(6 / (2 * 80 / 3))
    assert found == dict.fromkeys(["book 02", "book 03", "book 04", "book 05"], 1.0)


def test_what_was_not_asked_is_unscored_and_says_so(in_rounds):
    _, run = in_rounds
    counts = dict(run["findings"].filter(check="e_values").select("statistic", "value").iter_rows())
    asked = run["samples"]["target_id"].n_unique()
    assert counts["n_planned"] == 45 * 8
    assert counts["n_asked"] == asked < 0.45 * counts["n_planned"]
    reasons = run["unscored"].filter(attack="samia_matched_rarity_v1")["reason"]
    assert len(reasons) == 45 * 8 - asked
    assert reasons.str.starts_with("not asked: ").all()
    said = "\n".join(said_of(run))
    assert "2 of 6 groups are reported at q = 0.2 (samia_matched_rarity_v1, e-BH," in said
    share = 1 - asked / 360
    assert f"\n{share:.0%} of the 360 planned windows were not asked: " in said
    assert run["metrics"].is_empty()
    rollup = run["rollup"].filter(level="group")
    assert rollup["contamination_low"].null_count() == rollup.height
    assert (
        rollup["n_asked"].sum()
        == run["samples"]
        .join(run["targets"].filter(role="target"), on="target_id", how="semi")["target_id"]
        .n_unique()
    )


def test_a_run_in_rounds_decides_as_before_when_it_is_taken_up(in_rounds, tmp_path):
    settings, run = in_rounds
    verdicts, samples, scores = run["verdicts"], run["samples"], run["scores"]
    (run.folder / "scores.parquet").unlink()
    for part in sorted((run.folder / "samples").glob("*.parquet"))[-1:]:
        part.unlink()
    again = runs.audit(**settings)
    assert again["verdicts"].equals(verdicts)
    assert again["scores"].equals(scores)
    assert (
        again["samples"]
        .sort("target_id", "sample_index")
        .equals(samples.sort("target_id", "sample_index"))
    )


def test_groups_in_rounds_need_others_to_compare_with(tmp_path):
    library = Library(tmp_path)
    given = {"level": "group", "stop_when_decided": True}
    with pytest.raises(SettingsError, match="outside the training data; give 'non_members'"):
        library.audit(input=library.write("asked.parquet", [True] * 3), **given)
    assert not (tmp_path / "run" / "scores.parquet").exists()


def test_one_group_of_each_class_has_reasons_and_no_limits(tmp_path):
    library = Library(tmp_path)
    member = [number % 2 == 0 for number in range(24)]
    group = ["甲" if one else "乙" for one in member]
    path = library.write("texts.parquet", member, member=member, group=group)
    run = library.audit(input=path)
    own = run["metrics"].filter(attack="samia_matched_v1", metric="roc_auc")
    assert own["low"].to_list() == [None]
    few = "an interval needs 4 independent groups of texts of one size in each class, these are "
    assert own["reason"].to_list() == [f"{few}worth 1"]


def test_a_column_to_slice_by_that_is_not_there_is_named(labelled, tmp_path):
    settings, _ = labelled
    with pytest.raises(SettingsError, match="has no column 'page', only document_id"):
        runs.audit(**settings | {"slice_by": "page", "out": str(tmp_path / "run")})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("groups", ["apart", "together"])
def test_copies_among_the_texts_are_warned_of_unless_they_share_a_group(tmp_path, groups):
    library = Library(tmp_path)
    texts = [library.text(remembered=number % 2 == 0) for number in range(40)]
    numbers = [*range(40), *(range(40, 43) if groups == "apart" else range(3))]
    path = library.put(
        "texts.parquet",
        [*texts, *texts[:3]],
        document_id=[f"d{number}" for number in range(43)],
        label=[number % 2 == 0 for number in [*range(40), *range(3)]],
        group=[*map(str, numbers)],
    )
    lines = [line for line in said_of(library.audit(input=path)) if "word for word:" in line]
    said = "6 of 43 texts stand in another group or document, too"
    assert [line.startswith(said) for line in lines] == [True] * (groups == "apart")


def test_scores_that_one_class_lacks_are_warned_of_with_their_reason(tmp_path):
    library = Library(tmp_path)
    member = [number % 2 == 0 for number in range(80)]
    texts = [library.text(remembered=one) for one in member]
    texts[:30:2] = ["word"] * 15
    path = library.put("t.parquet", texts, member=member, document_id=[*map(str, range(80))])
    lines = said_of(library.audit(input=path))
    (found,) = (index for index, line in enumerate(lines) if "do not lack scores alike" in line)
    assert (
        "no score by samia_matched_v1, samia_matched_n2_v1 for 15 of 40 members (37.5%; mostly: "
        "the text is too short to split: its prefix or its reference would have no word) and 0 "
        "of 40 non-members (0.0%)."
    ) in lines[found]
    assert lines[found + 1].startswith("samia_matched_v1: AUC ")


@pytest.mark.parametrize(
    ("stops", "n_nulls", "changes"),
    [
        (True, 3, {}),
        (False, 3, {"anyway": True}),
        (False, 3, {"level": "collection"}),  # one of 56 orders
        (True, 1, {"level": "collection"}),  # one of 6
        (False, 19, {}),
        (False, 3, {"member": True}),
    ],
)
def test_a_run_that_can_report_nothing_stops_before_it_asks(stops, n_nulls, changes, tmp_path):
    library = Library(tmp_path)
    member = pl.Series([None] * 4 + [changes.pop("member", None)], dtype=pl.Boolean)
    settings = {
        "input": library.write("asked.parquet", [False] * 5, member=member),
        "non_members": library.write("outside.parquet", [False] * n_nulls),
        "non_members_known": "made up",
        "model": "tiny",
        "base_url": "http://127.0.0.1:9/v1",  # nobody listens
        "out": str(tmp_path / "run"),
    } | changes
    said = [text for name, text in plan(load_settings(settings)) if name == "power"]
    assert said[-1].startswith("So the run stops") == stops
    if stops:
        with pytest.raises(SettingsError, match=r"^With .* asked of the model; --anyway goes on$"):
            runs.audit(**settings)


def test_a_recording_costs_nothing_so_it_is_scored_whatever_can_be_named(tmp_path):
    library = Library(tmp_path)
    run = library.audit(
        input=library.write("asked.parquet", [False] * 5),
        non_members=library.write("outside.parquet", [False] * 3),
        non_members_known="made up",
    )
    none = "With 3 comparison texts none of your 5 texts can be named at q = 0.05"
    assert any(line.startswith(none) for line in said_of(run))
    rescored = runs.rescore(run.folder, level="collection")
    whole = (
        "With 3 comparison documents the p-value of your 5 documents together can be 0.018 at best."
    )
    assert whole in said_of(rescored)


def test_comparison_texts_from_one_undeclared_book_are_one_group_before_anything_is_asked(tmp_path):
    rng, letters = np.random.default_rng(0), "bcdfghklmnprst"
    known = [f"{one}{vowel}{other}" for one in letters for vowel in "aeiou" for other in letters]

    def text(start, end):
        return " ".join(
            known[at] for at in (*rng.integers(0, 980, 40), *rng.integers(start, end, 40))
        )

    asked = pl.DataFrame({"document_id": [f"t{at}" for at in range(5)]}).with_columns(
        text=pl.Series([text(0, 980) for _ in range(5)])
    )
    book = pl.DataFrame({"document_id": [f"n{at}" for at in range(30)]}).with_columns(
        text=pl.Series([text(20 * at, 20 * at + 80) for at in range(30)])
    )
    recorded = pl.concat([asked, book]).with_columns(candidate="text").drop("text")
    for name, table in (("asked", asked), ("book", book), ("made", recorded)):
        table.write_parquet(tmp_path / f"{name}.parquet")
    settings: dict[str, Any] = {
        "input": str(tmp_path / "asked.parquet"),
        "non_members": str(tmp_path / "book.parquet"),
        "non_members_known": "written for this test",
        "samples_from": str(tmp_path / "made.parquet"),
        "attacks": ["samia_v1"],
        "report": False,
        "out": str(tmp_path / "run"),
    }
    lines = list(plan(load_settings(settings)))
    none = "With 1 comparison text none of your 5 texts can be named at q = 0.05"
    assert any(name == "power" and line.startswith(none) for name, line in lines)
    run = runs.audit(**settings)
    nulls = run["targets"].filter(role="non_member")
    assert set(nulls["group"]) == {"undeclared book"}
    assert run["targets"].filter(role="target")["group"].is_null().all()
    found = run["findings"].filter(check="undeclared_books")
    assert found["verdict"].to_list() == ["one_group"]
    assert run["verdicts"].filter(level="target")["n_null"].unique().to_list() == [1]
    said = [*conclusions(run, load_settings(settings), ["samia_v1"])]
    assert any(
        line.startswith("The non-members look like parts of one book, or of a few") for line in said
    )
