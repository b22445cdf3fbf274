"""Whole runs of recorded continuations, from texts to what may be concluded."""

import re
from typing import Any

import numpy as np
import polars as pl
import pytest

from mia_batch.corpus import commitment, draw
from mia_batch.errors import SettingsError
from mia_batch.pipeline import plan
from mia_batch.schemas import Metrics, Verdicts
from mia_batch.settings import load_settings
from tests import runs
from tests.runs import said_of
from tests.unit.pipeline.test_corpora import write_canaries

ATTACK = "samia_matched_v1"
N_WORDS, N_SAMPLES = 24, 4
FORBIDDEN = re.compile(r"was trained on|1 - p|probability of membership|exchangeable$")
NON_MEMBERS_KNOWN = {"non_members_known": "written after the model was published"}


class Library:
    """Texts of random words, and continuations that remember some of them."""

    def __init__(self, folder):
        self.folder, self.rng = folder, np.random.default_rng(5)
        self.recorded: list[dict[str, Any]] = []

    def text(self, *, remembered, mark=""):
        """A text whose continuations share a third of its words more if it is remembered."""
        words = [f"w{number}" for number in self.rng.integers(0, 400, N_WORDS)]
        words[0] += mark
        self.record(words, 0.6 if remembered else 0.2)
        return " ".join(words)

    def record(self, words, known_share):
        prefix, half = " ".join(words[: N_WORDS // 2]), words[N_WORDS // 2 :]
        for sample in range(N_SAMPLES):
            is_kept = self.rng.random(len(half)) < known_share
            words_said = [
                word if keep else "other"
                for word, keep in zip(half, is_kept, strict=True)
            ]
            row = {
                "prefix": prefix,
                "sample_index": sample,
                "candidate": f" {' '.join(words_said)}",
            }
            self.recorded.append(row)

    def write(self, name, remembered, **columns):
        return self.put(
            name,
            [self.text(remembered=is_remembered) for is_remembered in remembered],
            **columns,
        )

    def put(self, name, texts, **columns):
        path = self.folder / f"{name}.parquet"
        pl.DataFrame({"text": texts, **columns}).write_parquet(path)
        return str(path)

    def audit(self, **settings):
        return runs.audit(**self.settings(**settings))

    def settings(self, **settings):
        path = self.folder / "recorded.parquet"
        pl.DataFrame(self.recorded).write_parquet(path)
        return {
            "samples_from": str(path),
            "out": str(self.folder / "run"),
            "attacks": f"{ATTACK},samia_matched_n2_v1",
            "samples": N_SAMPLES,
            "report": False,
        } | settings


@pytest.fixture
def library(tmp_path):
    return Library(tmp_path)


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory):
    """60 targets, a third of them remembered, against 99 texts known to be outside."""
    library = Library(tmp_path_factory.mktemp("unlabelled"))
    labels = [n < 60 for n in range(120)]
    settings = library.settings(
        input=library.write("asked", [number < 20 for number in range(60)]),
        non_members=library.write("outside", [False] * 99),
        calibration=library.write("calibration", labels, label=labels),
        **NON_MEMBERS_KNOWN,
    )
    return settings, runs.audit(**settings)


def test_targets_have_p_values_sampling_errors_and_a_share_that_holds_the_truth(
    unlabelled,
):
    settings, run = unlabelled
    verdicts = Verdicts.validate(run["verdicts"])
    own_verdicts = verdicts.filter(attack=ATTACK, level="target").sort("key")
    assert (own_verdicts.height, own_verdicts["n_null"].unique().to_list()) == (
        60,
        [99],
    )
    assert own_verdicts["planned"].all()
    assert not verdicts.filter(attack="samia_matched_n2_v1")["planned"].any()
    scores = run["scores"].filter(role="target").sort("target_id")[ATTACK]
    nulls = run["scores"].filter(role="non_member")[ATTACK]
    p = [(1 + (nulls.round(12) >= round(score, 12)).sum()) / 100 for score in scores]
    assert own_verdicts["p_value"].to_list() == pytest.approx(p)
    reported = own_verdicts.filter(pl.col("q_value") <= 0.05)["key"]
    remembered = run["targets"].filter(role="target").head(20)["target_id"]
    assert len(reported) >= 15
    assert reported.is_in(remembered.implode()).sum() >= len(reported) - 3
    row = own_verdicts.row(0, named=True)
    features = run["features"].filter(target_id=row["key"])
    shares = (features["overlap_1"] / features["words_reference"]).to_list()
    assert row["standard_error"] == pytest.approx(np.std(shares, ddof=1) / 2)
    rates = verdicts.filter(estimate="contamination_rate", attack=ATTACK)
    rate = rates.filter(method="fieller").row(0, named=True)
    assert (
        rate["low"]
        < min(rate["value"], 1 / 3)
        < max(rate["value"], 1 / 3)
        < rate["high"]
    )
    assert 0 < rates.filter(method="beta_binomial")["low"].item() < 1 / 3
    power_lines = [
        text for name, text in plan(load_settings(settings)) if name == "power"
    ]
    assert (
        power_lines[-3]
        == "With 99 comparison texts single texts can be named only if 12 of your 60"
        " stand out; to name five of them, give at least 239, or ask --level"
        " collection."
    )


def test_the_conclusions_say_what_was_found_and_what_it_rests_on(unlabelled):
    _, run = unlabelled
    sentences_said = said_of(run)
    assert sentences_said[0].startswith(
        "Whether the audited texts and the comparison texts can be"
    )
    assert re.match(
        r"\d+ of 60 targets are reported at q = 0.05 \(samia_matched_v1",
        sentences_said[1],
    )
    assert "The null: written after the model was published." in sentences_said
    assert any(
        line.startswith("Share of members among the targets: ")
        for line in sentences_said
    )
    assert not any(FORBIDDEN.search(line) for line in sentences_said)
    recorded = run.manifest.plan
    assert (recorded["primary"], recorded["null_set"]) == (
        ATTACK,
        NON_MEMBERS_KNOWN["non_members_known"],
    )
    assert re.fullmatch("[0-9a-f]{64}", recorded["sha256"])


def test_non_members_are_weighted_where_texts_alone_tell_them_from_targets(library):
    """A share of the texts has its first word in another form; none is remembered.

    They are not sorted by it, or neighbours would look like parts of one book.
    """

    def mark_texts(n, share):
        also = (np.random.default_rng(1).permutation(n) < n * share).tolist()
        return [
            library.text(remembered=False, mark=" also" * has_mark) for has_mark in also
        ]

    audited_path = library.put("asked", mark_texts(80, 0.75))
    outside = library.put("outside", mark_texts(160, 0.4))
    run = library.audit(input=audited_path, non_members=outside, **NON_MEMBERS_KNOWN)
    weights = run["findings"].filter(check="weights", statistic="n_effective")
    row = weights.row(0, named=True)
    assert (row["verdict"], row["reason"]) == ("used", None)
    assert 60 < row["value"] < 140
    own_verdicts = Verdicts.validate(run["verdicts"]).filter(attack=ATTACK)
    methods = own_verdicts.select("method", "adjustment", "n_null").unique().rows()
    assert methods == [("weighted_conformal", "wcs", int(row["value"]))]
    blind = run.scan("blind").collect()
    assert (blind.height, blind.columns[1]) == (240, "targets_blind_naive_bayes_v1")
    weighted = f"160 of them count as {row['value']:.1f}."
    assert any(weighted in sentence for sentence in said_of(run))


def test_texts_that_differ_without_the_model_get_no_answer_unless_it_is_asked_for(
    library,
):
    """Old texts and new ones; scores follow the years, and nothing was trained on."""
    old, new = (
        [library.text(remembered=is_remembered) for _ in range(40)]
        for is_remembered in (True, False)
    )
    files = {}
    for name, texts, years in (
        ("input", old, (1990, 2005)),
        ("non_members", new, (2025, 2026)),
    ):
        dated = [f"{text} in {years[n % 2]}" for n, text in enumerate(texts)]
        files[name] = library.put(name, dated)
    settings = library.settings(prefix_ratio=12 / 26, **files, **NON_MEMBERS_KNOWN)
    run = runs.audit(**settings)
    claim = "the audited texts and the comparison texts can be"
    numbers = ("p_value", "q_value", "sensitivity_bound", "value", "low", "high")
    assert run["verdicts"].height > 80
    assert run["verdicts"].select(pl.col(numbers).count()).row(0) == (0,) * 6
    assert (
        run["verdicts"]["reason"].str.starts_with("withheld: the audited texts").all()
    )
    assert run["verdicts"]["score"].count() == 80
    assert said_of(run)[0].startswith(f"No answer: {claim}")
    run = runs.audit(**settings | {"exploratory": True})
    assert (run["verdicts"]["q_value"] < 0.05).sum() > 60
    assert not run["verdicts"]["planned"].any()
    assert said_of(run)[0].startswith(f"Exploratory: {claim}")


def test_what_was_not_planned_is_exploratory_until_it_is_as_planned_again(
    unlabelled, tmp_path
):
    settings, run = unlabelled
    verdicts_before, planned = run["verdicts"], run.manifest.plan
    plan_finding = (
        run["findings"].filter(check="max_t", statistic="largest").row(0, named=True)
    )
    assert planned["attacks"] == run.manifest.made["scores"]["attacks"]
    assert (plan_finding["verdict"], plan_finding["p_value"]) == (
        "as_planned",
        1 / 10_000,
    )
    changed = settings | {"primary": "samia_matched_n2_v1"}
    with pytest.raises(
        SettingsError, match=r"the planned answer of .* stays\. Give replace="
    ):
        runs.audit(**changed)
    other_primary = runs.audit(**changed, replace=True)
    assert (
        other_primary.manifest.replaced[-1]["now"]["primary"] == "samia_matched_n2_v1"
    )
    assert not other_primary["verdicts"]["planned"].any()
    assert other_primary.manifest.plan == planned
    assert said_of(other_primary)[1].startswith("These answers are exploratory")
    fewer = str(tmp_path / "fewer.parquet")
    pl.read_parquet(settings["non_members"]).head(50).write_parquet(fewer)
    other_primary = runs.audit(**settings | {"non_members": fewer}, replace=True)
    assert not other_primary["verdicts"]["planned"].any()
    assert any(
        line.endswith("Changed since: non_member.") for line in said_of(other_primary)
    )
    more_attacks = settings | {"attacks": f"{settings['attacks']},longest_block_v1"}
    more_attacks = runs.audit(**more_attacks, replace=True)
    together = (
        "All 3 attacks together (largest rank sum, texts permuted; exploratory, as"
        " attacks were added or left out since the plan was recorded): p = "
    )
    assert any(line.startswith(together) for line in said_of(more_attacks))
    assert more_attacks["verdicts"].filter(attack=ATTACK)["planned"].all()
    assert runs.audit(**settings, replace=True)["verdicts"].equals(verdicts_before)
    wrong = settings | {
        "attacks": None,
        "primary": "loss_v1",
        "out": str(tmp_path / "run"),
    }
    with pytest.raises(SettingsError, match="'loss_v1', which is not computed"):
        runs.audit(**wrong)
    assert not (tmp_path / "run").exists()


def test_a_plan_made_after_scores_is_exploratory(library):
    settings = library.settings(input=library.write("asked", [True] * 3))
    run = runs.audit(**settings)
    assert said_of(run)[0].startswith("Without comparison texts")
    older = run.manifest
    older.plan = {}
    del older.made["scores"]
    older.write(run.folder)
    again = runs.audit(**settings)
    assert said_of(again)[0].endswith("before any plan was recorded.")
    assert again.manifest.plan["rests_on"] is None


def test_canaries_are_ranked_among_their_controls(library):
    sets = []
    for number in range(3):
        words = [
            [f"{number}.{number_in_set}.{word}" for word in range(N_WORDS)]
            for number_in_set in range(5)
        ]
        sets.append((f"set {number}", [" ".join(set_words) for set_words in words]))
        published = draw(commitment(*sets[-1]), 5, 7)
        for number_in_set, set_words in enumerate(words):
            library.record(set_words, 2 if number_in_set == published else 0)
    canaries = write_canaries(library.folder / "canaries.jsonl", *sets)
    run = library.audit(input=library.write("asked", [False] * 3), canaries=canaries)
    own_verdicts = run["verdicts"].filter(attack=ATTACK)
    ranked = own_verdicts.filter(level="group").select("key", "p_value")
    assert ranked.rows() == [(f"set {number}", 0.2) for number in range(3)]
    together = own_verdicts.filter(method="canary_rank_sum_of_3")["p_value"].item()
    assert together == pytest.approx(1 / 125)
    assert any(line.startswith("All canaries") for line in said_of(run))


def test_groups_are_whole_units(library):
    groups = [f"book {number // 5}" for number in range(100)]
    other_groups = [f"other {name}" for name in groups]
    run = library.audit(
        input=library.write("asked", [n < 20 for n in range(40)], group=groups[:40]),
        non_members=library.write("outside", [False] * 100, group=other_groups),
        level="group",
        **NON_MEMBERS_KNOWN,
    )
    own_verdicts = run["verdicts"].filter(attack=ATTACK, level="group")
    assert (own_verdicts.height, own_verdicts["n_null"].unique().to_list()) == (8, [20])
    remembered = own_verdicts.filter(
        pl.col("key").is_in([f"book {n}" for n in range(4)])
    )
    assert remembered["p_value"].to_list() == pytest.approx([1 / 21] * 4)


def test_a_labelled_run_has_the_blind_baseline_next_to_its_attacks(library):
    member = [number % 2 == 0 for number in range(160)]
    texts = library.write("texts", member, member=member, shelf=list("ab") * 80)
    metrics = Metrics.validate(library.audit(input=texts, slice_by="shelf")["metrics"])
    blind = {f"blind_{name}_v1" for name in ("naive_bayes", "year", "surface")}
    assert blind <= set(metrics["attack"])
    own_metrics = metrics.filter(attack=ATTACK)
    difference = own_metrics.filter(pl.col("versus").str.starts_with("blind")).row(
        0, named=True
    )
    assert difference["metric"] == "roc_auc_difference"
    assert difference["low"] < difference["value"] < difference["high"]
    assert (
        own_metrics.filter(pl.col("slice").str.starts_with("blind quintile")).height
        == 5
    )
    assert {"all", "shelf=a", "shelf=b"} <= set(
        metrics.filter(metric="roc_auc")["slice"]
    )


def test_columns_of_any_name_change_nothing(library):
    member = [number % 2 == 0 for number in range(24)]
    settings = library.settings(input=library.write("texts", member, member=member))
    plain = runs.audit(**settings | {"attacks": ATTACK})
    names = [
        "blind",
        "asked",
        "first",
        "last",
        "place",
        "cluster",
        "score",
        "value",
        "key",
        "row",
    ]
    odd = dict.fromkeys(names, float("nan"))
    texts = pl.read_parquet(settings["input"])
    odd_texts = library.put("odd", texts["text"], member=member, **odd)
    run = runs.audit(
        **settings | {"attacks": ATTACK, "input": odd_texts, "out": f"{plain.folder}-2"}
    )
    assert run["metrics"].equals(plain["metrics"])


@pytest.fixture(scope="module")
def in_rounds(tmp_path_factory):
    """Two groups of eight texts that are remembered and four that are not, against 39.

    The attack weighs words by what the model says in the first round.
    """
    library = Library(tmp_path_factory.mktemp("rounds"))
    names = [f"book {number // 8:02}" for number in range(45 * 8)]
    settings = library.settings(
        input=library.write("asked", [n < 16 for n in range(48)], group=names[:48]),
        non_members=library.write("outside", [False] * 312, group=names[48:]),
        level="group",
        stop_when_decided=True,
        q=0.2,
        attacks=f"{ATTACK},samia_matched_rarity_v1",
        primary="samia_matched_rarity_v1",
        **NON_MEMBERS_KNOWN,
    )
    return settings, runs.audit(**settings)


def test_groups_stop_when_they_are_decided_and_what_was_not_asked_says_so(in_rounds):
    _, run = in_rounds
    verdicts = Verdicts.validate(run["verdicts"])
    adjustments = verdicts.select("attack", "adjustment").unique().rows()
    assert adjustments == [("samia_matched_rarity_v1", "e-bh")]
    q_values = dict(verdicts.select("key", "q_value").iter_rows())
    # Two ranks count, 40 * 2/3 and 40 * 1/3: two of 6 need e-values of 6 / (0.2 * 2) =
    # 15.
    assert (
        q_values.pop("book 00")
        == q_values.pop("book 01")
        == pytest.approx(6 / (2 * 80 / 3))
    )
    assert q_values == dict.fromkeys(["book 02", "book 03", "book 04", "book 05"], 1.0)
    counts = runs.found(run, "e_values")
    n_asked = run["samples"]["target_id"].n_unique()
    assert counts["n_planned"] == 360
    assert counts["n_asked"] == n_asked < 0.45 * 360
    reasons = run["unscored"].filter(attack="samia_matched_rarity_v1")["reason"]
    assert len(reasons) == 360 - n_asked
    assert reasons.str.starts_with("not asked: ").all()
    text_said = "\n".join(said_of(run))
    assert (
        "2 of 6 groups are reported at q = 0.2 (samia_matched_rarity_v1, e-BH,"
        in text_said
    )
    assert (
        f"\n{1 - n_asked / 360:.0%} of the 360 planned windows were not asked: "
        in text_said
    )
    assert run["metrics"].is_empty()
    rollup = run["rollup"].filter(level="group")
    assert rollup["contamination_low"].null_count() == rollup.height
    targets = run["targets"].filter(role="target")
    own_samples = run["samples"].join(targets, on="target_id", how="semi")
    assert rollup["n_asked"].sum() == own_samples["target_id"].n_unique()


def test_a_run_in_rounds_decides_as_before_when_it_is_resumed(in_rounds):
    settings, run = in_rounds
    tables_before = {name: run[name] for name in ("verdicts", "scores", "samples")}
    (run.folder / "scores.parquet").unlink()
    max(run.path("samples").glob("*.parquet")).unlink()
    again = runs.audit(**settings)
    assert again["verdicts"].equals(tables_before["verdicts"])
    assert again["scores"].equals(tables_before["scores"])
    key = ["target_id", "sample_index"]
    assert again["samples"].sort(key).equals(tables_before["samples"].sort(key))


def test_groups_in_rounds_need_others_to_compare_with(library):
    rounds_settings = {"level": "group", "stop_when_decided": True}
    with pytest.raises(
        SettingsError, match="outside the training data; give non_members="
    ):
        library.audit(input=library.write("asked", [True] * 3), **rounds_settings)
    assert not (library.folder / "run" / "scores.parquet").exists()


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
def test_a_run_that_can_report_nothing_stops_before_it_asks(
    stops, n_nulls, changes, library
):
    member = pl.Series([None] * 4 + [changes.get("member")], dtype=pl.Boolean)
    settings = {
        "input": library.write("asked", [False] * 5, member=member),
        "non_members": library.write("outside", [False] * n_nulls),
        "model": "tiny",
        "base_url": "http://127.0.0.1:9/v1",  # nobody listens
        "out": str(library.folder / "run"),
    } | NON_MEMBERS_KNOWN
    settings |= {name: value for name, value in changes.items() if name != "member"}
    if not stops:
        assert int(runs.planned(settings)["prompts"]) > 0
        return
    for ask in (lambda: runs.planned(settings), lambda: runs.audit(**settings)):
        with pytest.raises(
            SettingsError, match=r"^With .* asked of the model; --anyway goes on$"
        ):
            ask()


def test_a_recording_costs_nothing_so_it_is_scored_whatever_can_be_named(library):
    audited_path, outside = (
        library.write("asked", [False] * 5),
        library.write("outside", [False] * 3),
    )
    run = library.audit(input=audited_path, non_members=outside, **NON_MEMBERS_KNOWN)
    too_few = "With 3 comparison texts none of your 5 texts can be named at q = 0.05"
    assert any(line.startswith(too_few) for line in said_of(run))
    best = (
        "With 3 comparison documents the p-value of your 5 documents together can be"
        " 0.018"
    )
    assert f"{best} at best." in said_of(
        runs.rescore(run.folder, level="collection", replace=True)
    )


def test_comparison_texts_from_one_undeclared_book_are_one_group_before_anything_is_asked(
    tmp_path,
):
    rng, letters = np.random.default_rng(0), "bcdfghklmnprst"
    vocabulary = [
        f"{first}{vowel}{second}"
        for first in letters
        for vowel in "aeiou"
        for second in letters
    ]

    def texts(name, spans):
        word_numbers = (
            (*rng.integers(0, 980, 40), *rng.integers(low, high, 40))
            for low, high in spans
        )
        rows = [
            (
                f"{name}{n}",
                " ".join(vocabulary[position] for position in numbers_of_text),
            )
            for n, numbers_of_text in enumerate(word_numbers)
        ]
        return pl.DataFrame(rows, schema=["document_id", "text"], orient="row")

    audited_texts = texts("t", [(0, 980)] * 5)
    book = texts("n", [(20 * position, 20 * position + 80) for position in range(30)])
    recording = pl.concat([audited_texts, book]).select(
        "document_id", candidate=pl.lit("text")
    )
    settings = {
        "input": runs.written(tmp_path, audited_texts, "asked"),
        "non_members": runs.written(tmp_path, book, "book"),
        "samples_from": runs.written(tmp_path, recording, "made"),
        "attacks": ["samia_v1"],
        "report": False,
        "out": str(tmp_path / "run"),
    } | NON_MEMBERS_KNOWN
    too_few = "With 1 comparison text none of your 5 texts can be named at q = 0.05"
    lines = plan(load_settings(settings))
    assert any(name == "power" and line.startswith(too_few) for name, line in lines)
    run = runs.audit(**settings)
    groups = dict(
        run["targets"].group_by("role").agg(pl.col("group").unique()).iter_rows()
    )
    assert groups == {"target": [None], "non_member": ["undeclared book"]}
    undeclared = run["findings"].filter(check="undeclared_books")
    assert undeclared["verdict"].to_list() == ["one_group"]
    assert run["verdicts"].filter(level="target")["n_null"].unique().to_list() == [1]
    parts = "The non-members look like parts of one book, or of a few"
    assert any(line.startswith(parts) for line in said_of(run))
