"""Audits by probes: what is asked, what is added, and what the table of rarity rests on."""

from __future__ import annotations

import polars as pl
import pytest

import mia_batch
from mia_batch.attacks.from_samples import PROBE_ATTACKS
from mia_batch.errors import SettingsError
from mia_batch.pipeline import rescore
from tests.checkpoints import save_checkpoint

ATTACKS = ",".join(attack.name for attack in PROBE_ATTACKS)
TABLES = ("scores", "unscored", "metrics", "rarity")


@pytest.fixture
def probed(small_audit, tmp_path):
    given, _ = small_audit
    base = {name: given[name] for name in ("input", "model", "engine")}

    def audit(out="run", **settings):
        usual = {"attacks": ATTACKS, "probes": 4}
        return mia_batch.audit(**base | usual | settings, out=str(tmp_path / out))

    return audit


def parts(run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.path("samples").iterdir()}


def test_answers_are_the_most_likely_ones_and_are_scored(probed):
    run = probed()
    asked = run["prompts"].filter(pl.col("reason").is_null())
    assert run["samples"].height == asked.height == 6 * 4  # of eight texts, one null and one short
    assert run["samples"]["sample_index"].unique().to_list() == [0]
    whole = pl.col("candidate").str.split(by=" ").list.eval(pl.element().filter(pl.element() != ""))
    assert run["samples"].select((whole.list.len() >= 1).all()).item()
    first = run["features"]["leading_words"] >= 1
    wanted = (
        run["features"]
        .select("target_id", hit=first)
        .group_by("target_id")
        .agg(pl.col("hit").mean())
    )
    scores = run["scores"].join(wanted, on="target_id").select("probe_first_word_v1", "hit")
    assert scores.height == 6
    assert scores["probe_first_word_v1"].to_list() == pytest.approx(scores["hit"].to_list())
    own = run["targets"].filter(pl.col("reason").is_not_null()).select("target_id", "reason")
    assert (
        run["unscored"]
        .select("target_id", "reason")
        .unique()
        .sort("reason")
        .equals(own.sort("reason"))
    )


def test_more_points_and_samples_ask_only_for_what_is_missing(probed):
    undisturbed = probed("whole", probes=7)
    few = probed(probes=3)
    before = parts(few)
    more = probed(probes=7)
    assert before.items() <= parts(more).items()
    assert more["samples"].height == undisturbed["samples"].height
    for name in TABLES:
        assert more.path(name).read_bytes() == undisturbed.path(name).read_bytes()
    assert more["verdicts"].drop("planned").equals(undisturbed["verdicts"].drop("planned"))
    assert not more["verdicts"]["planned"].any()  # more points after the first scores


def test_words_given_at_points_are_those_before_them(probed):
    run = probed(probes=4)
    given = run["findings"].filter(check="prompts", subject="probe")
    figures = dict(given.select("statistic", "value").iter_rows())
    prompts = run["prompts"].filter(pl.col("reason").is_null(), view="probe", model="target")
    texts = prompts.join(run["targets"].select("target_id", "target"), on="target_id")
    before = [
        len(text.encode()[:cut].decode().split())
        for text, cut in texts.select("target", "cut").iter_rows()
    ]
    assert figures == {
        "n_prompts": len(before),
        "words_given_mean": pytest.approx(sum(before) / len(before)),
        "words_given_least": min(before),
        "words_given_most": max(before),
    }


def test_fewer_points_again_are_scored_from_what_is_there(probed):
    wanted = probed("few", probes=2)
    many = probed(probes=7)
    before = parts(many)
    fewer = probed(probes=2)
    assert parts(fewer) == before
    assert fewer["scores"].equals(wanted["scores"])


def test_drawn_answers_are_added_to_drawn_answers(probed):
    one = probed(samples=1)
    before = parts(one)
    three = probed(samples=3)
    assert before.items() <= parts(three).items()
    undisturbed = probed("whole", samples=3)
    assert three["scores"].equals(undisturbed["scores"])


def test_greedy_answers_are_not_mixed_with_drawn_ones(probed):
    probed()
    with pytest.raises(SettingsError, match=r"probe_answers.*greedy.*drawn"):
        probed(samples=2)


def test_each_text_is_weighed_as_a_group_where_groups_are_not_compared(probed, tmp_path):
    """One book alone has no elsewhere but its other texts; unlabelled books have no p-values."""
    run = probed()
    whole = pl.read_parquet(run.manifest.settings["input"], glob=False)
    shelves = (pl.col("shelf") // 4).cast(pl.String)
    unknown = pl.lit(None, pl.Boolean)
    found = {}
    for name, texts in {
        "none": whole,
        "one": whole.with_columns(group=pl.lit("one")),
        "unlabelled": whole.with_columns(group=shelves, member=unknown),
        "labelled": whole.with_columns(group=shelves),
    }.items():
        texts.write_parquet(tmp_path / f"{name}.parquet")
        found[name] = probed(name, input=str(tmp_path / f"{name}.parquet")).scan("rarity").collect()
    assert found["none"].equals(found["one"])
    assert found["none"].equals(found["unlabelled"])
    n_groups = {name: set(rarity["n_groups"]) for name, rarity in found.items()}
    assert (n_groups["none"], n_groups["labelled"]) == ({6}, {2})


def test_a_runs_own_answers_are_replayed(probed, tmp_path):
    run = probed()
    again = mia_batch.audit(
        input=run.manifest.settings["input"],
        samples_from=str(run.path("samples")),
        attacks=ATTACKS,
        probes=4,
        out=tmp_path / "again",
    )
    assert again["scores"].equals(run["scores"])
    assert again["samples"].drop("answer").equals(run["samples"].drop("answer"))


def test_a_run_without_a_table_of_rarity_is_refused(probed, small_audit, tmp_path):
    _, run = small_audit
    for other in (run.folder, tmp_path / "nothing"):
        with pytest.raises(SettingsError, match=r"rarity_from.*no run with a table"):
            probed(rarity_from=other)
    with pytest.raises(SettingsError, match=r"rarity_from.*the run itself.*name another"):
        probed(rarity_from=tmp_path / "run")


def test_another_runs_damaged_table_of_rarity_is_found_before_sampling(probed, tmp_path):
    table = probed("other").path("rarity")
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(SettingsError, match=r"rarity_from.* is damaged; give that run's own"):
        probed(rarity_from=tmp_path / "other")
    assert not list((tmp_path / "run" / "samples").glob("*"))
    whole = probed("other").folder
    of_others = probed(rarity_from=whole)
    assert of_others.manifest.plan["rests_on"].keys() > {"rarity_from", "probes"}


def test_a_run_without_probes_is_not_scored_by_them(small_audit):
    _, run = small_audit
    before = {path: path.read_bytes() for path in run.folder.rglob("*.*")}
    with pytest.raises(SettingsError, match=r"probe_first_word_v1 cannot be scored.*collects"):
        rescore(run.folder, attacks="probe_first_word_v1")
    assert {path: path.read_bytes() for path in run.folder.rglob("*.*")} == before


@pytest.mark.parametrize("attack", ["probe_leading_rarity_v1", "probe_first_word_v1"])
def test_texts_that_are_all_too_short_have_no_score(probed, tmp_path, attack):
    answers = pl.DataFrame({"prefix": ["never asked"], "view": ["probe"], "candidate": ["x"]})
    answers.write_parquet(tmp_path / "answers.parquet")
    short = {"model": "recorded", "engine": "auto", "samples_from": tmp_path / "answers.parquet"}
    run = probed(attacks=attack, probe_words=64, **short)
    assert run["scores"][attack].null_count() == 8
    assert run["unscored"]["reason"].value_counts(sort=True)["count"].to_list() == [6, 1, 1]


def test_a_killed_count_is_made_again(probed):
    run = probed()
    before = run.path("rarity").read_bytes()
    run.path("rarity").unlink()
    assert probed().path("rarity").read_bytes() == before


def test_a_reference_model_answers_the_same_points(probed, tmp_path):
    other = save_checkpoint(tmp_path / "reference")
    names = "probe_rarity_difference_v1,petal_v1,probe_rarity_loss_v1"
    run = probed(reference_model=str(other), attacks=f"{ATTACKS},{names}")
    by_model = run["samples"].group_by("model").len().sort("model").rows()
    assert by_model == [("reference", 24), ("target", 24)]
    assert set(run["logprobs"].select("model", "view").unique().rows()) == {
        ("reference", "probe"),
        ("target", "text"),
    }
    assert run["scores"].select(pl.col(names.split(",")).null_count()).row(0) == (2, 2, 2)
    assert run["scores"]["n_samples"].max() == 4
    weighed = pl.read_parquet(run.path("rarity"))
    assert weighed["model"].unique().sort().to_list() == ["reference", "target"]
    alone = probed("alone")
    assert run["scores"].select(alone["scores"].columns).equals(alone["scores"])


def test_a_recording_has_no_answers_of_a_reference_model(probed, checkpoint):
    run = probed()
    with pytest.raises(SettingsError, match="needs answers of another model"):
        mia_batch.audit(
            input=run.manifest.settings["input"],
            samples_from=str(run.path("samples")),
            attacks="probe_rarity_difference_v1",
            reference_model=str(checkpoint),
        )
