"""Audits of recorded continuations: the same numbers, whichever engine they came from."""

from __future__ import annotations

import polars as pl
import pytest

import mia_batch
from mia_batch.attacks import Attack, defaults
from mia_batch.evidence import replay as recording
from mia_batch.pipeline.stages import features


@pytest.fixture
def replayed(small_audit, tmp_path):
    """Replay a recording of the finished audit's corpus."""
    settings, _ = small_audit

    def replay(source, **changed):
        return mia_batch.audit(
            input=settings["input"], samples_from=str(source), out=tmp_path / "run", **changed
        )

    return replay


@pytest.fixture
def recorded(small_audit):
    """What a script of the user's would have written: prefix and text, in an order of its own."""
    _, run = small_audit
    texts = run["samples"].join(run["targets"].select("target_id", "prefix"), on="target_id")
    return texts.select("sample_index", "prefix", written="candidate").reverse()


def test_a_runs_own_samples_give_its_scores_to_the_bit(small_audit, replayed):
    _, run = small_audit
    again = replayed(run.path("samples"))
    assert again["scores"].equals(run["scores"])
    assert again["metrics"].equals(run["metrics"])
    assert again["unscored"].equals(run["unscored"])
    assert (
        again["samples"].drop("answer").equals(run["samples"].drop("answer"))
    )  # no kind is recorded
    assert again.manifest.engines["samples of target"]["counts"] == {
        "rows": 18,
        "matched": 18,
        "missing": 0,
        "surplus": 0,
        "duplicates": 0,
        "unmatched": 0,
    }
    assert (
        replayed(run.path("samples")).manifest.engines["samples of target"]
        == again.manifest.engines["samples of target"]
    )


def test_without_finish_reason_candidates_are_whole_and_the_whole_family_is_scored(
    small_audit, recorded, replayed, tmp_path
):
    _, run = small_audit
    recorded.write_ndjson(tmp_path / "recorded.jsonl")
    again = replayed(tmp_path / "recorded.jsonl", candidate_column="written")
    family = [*defaults("matched"), *defaults("samia")]
    assert [name for name in again["scores"].columns if name.endswith("_v1")] == family
    matched = defaults("matched")
    assert again["scores"].select(matched).equals(run["scores"].select(matched))
    assert again["scores"]["n_short"].sum() == 0


def test_what_was_not_recorded_is_counted_and_fails(recorded, replayed, tmp_path):
    recorded.filter(pl.col("sample_index") < 2).write_parquet(tmp_path / "two.parquet")
    two = replayed(tmp_path / "two.parquet", candidate_column="written")
    assert two["scores"]["n_samples"].to_list() == [2] * 6 + [0, 0]
    assert two.manifest.failed["targets"] == 0
    recorded.write_parquet(tmp_path / "three.parquet")
    with pytest.raises(mia_batch.SettingsError, match="'recording' was "):
        replayed(tmp_path / "three.parquet", candidate_column="written")


def test_a_recording_of_another_corpus_is_refused_and_another_can_be_given(
    small_audit, recorded, replayed, tmp_path
):
    _, run = small_audit
    foreign = recorded.with_columns(prefix="x " + pl.col("prefix"))
    foreign.write_parquet(tmp_path / "foreign.parquet")
    names = r"none of the 18 rows of .*foreign.parquet names a target: 'prefix' is 'x .* in its"
    with pytest.raises(mia_batch.SettingsError, match=names):
        replayed(tmp_path / "foreign.parquet", candidate_column="written")
    again = replayed(run.path("samples"))
    assert again["scores"].equals(run["scores"])


def test_more_samples_than_were_recorded_are_missing_with_their_reason(small_audit, replayed):
    _, run = small_audit
    more = replayed(run.path("samples"), samples=4)
    assert more.manifest.failed == {
        "targets": 6,
        "of": 6,
        "again": 6,
        "reasons": {"the recording lacks this sample": 6},
    }
    assert more["scores"].equals(run["scores"])


def test_a_folder_of_recorded_samples_is_not_gone_on_with_by_an_engine(
    small_audit, replayed, tmp_path
):
    settings, run = small_audit
    replayed(run.path("samples"))
    with pytest.raises(mia_batch.SettingsError, match="'engine' was 'replay', is now 'transf"):
        mia_batch.audit(**settings | {"out": str(tmp_path / "run")})


def test_other_attacks_have_their_features_made_and_nothing_else_changes(small_audit, replayed):
    _, run = small_audit
    first = replayed(run.path("samples"))
    parts = {path.name: path.read_bytes() for path in first.path("samples").glob("*.parquet")}
    assert first.manifest.made["features"]["groups"] == [
        "blocks",
        "matched",
        "ngrams",
        "unigrams",
        "zlib",
    ]
    more = replayed(run.path("samples"), attacks="longest_block_v1,samia_matched_v1")
    assert more.manifest.made["features"]["groups"] == [
        "blocks",
        "matched",
        "ngrams",
        "unigrams",
        "zlib",
    ]
    assert {
        path.name: path.read_bytes() for path in more.path("samples").glob("*.parquet")
    } == parts
    assert more["scores"]["samia_matched_v1"].equals(run["scores"]["samia_matched_v1"])
    assert more["scores"]["longest_block_v1"].null_count() == 2
    assert more["features"]["longest_block_words"].max() == 1
    again = replayed(run.path("samples"))
    assert again.manifest.made["features"]["groups"] == more.manifest.made["features"]["groups"]
    assert again["scores"].equals(run["scores"])


def test_targets_that_nobody_can_be_asked_for_are_unscored_with_reasons(tmp_path):
    pl.DataFrame({"document_id": ["a", "b"], "text": ["one", ""]}).write_parquet(
        tmp_path / "corpus.parquet"
    )
    recorded = {"document_id": ["a"], "sample_index": [0], "candidate": ["x"]}
    pl.DataFrame(recorded).write_parquet(tmp_path / "recorded.parquet")
    run = mia_batch.audit(
        input=str(tmp_path / "corpus.parquet"),
        samples_from=str(tmp_path / "recorded.parquet"),
        out=tmp_path / "run",
    )
    attacks = [name for name in run["scores"].columns if name.endswith("_v1")]
    assert run["scores"].select(attacks).null_count().row(0) == (2,) * len(attacks)
    reasons = run["unscored"].group_by("reason").len().sort("len", "reason")
    assert reasons.rows() == [
        ("the text has no words", len(attacks)),
        (
            "the text is too short to split: its prefix or its reference would have no word",
            len(attacks),
        ),
    ]


def test_the_checks_of_the_texts_are_kept_while_only_attacks_change(
    small_audit, replayed, monkeypatch
):
    _, run = small_audit
    first = replayed(run.path("samples"))

    def check_targets(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("mia_batch.pipeline.stages.verdicts.check_targets", check_targets)
    more = replayed(run.path("samples"), attacks="rouge_1_v1")
    assert more["scores"]["rouge_1_v1"].null_count() == 2
    assert more["findings"].equals(first["findings"])


def test_an_attack_of_ones_own_stands_beside_those_of_the_package(
    small_audit, replayed, monkeypatch
):
    monkeypatch.setattr("mia_batch.attacks.registry._REGISTERED", {})
    _, run = small_audit
    longest = Attack(
        name="most_words_of_mine_v1",
        expr=pl.col("words_candidate").max().cast(pl.Float64),
        source="mine",
        undefined="there is no candidate",
    )
    made = replayed(run.path("samples"), attacks=[longest, "samia_matched_v1"])
    assert made["scores"]["samia_matched_v1"].equals(run["scores"]["samia_matched_v1"])
    most = run["features"].group_by("target_id").agg(most=pl.col("words_candidate").max())
    wanted = (
        run["targets"]
        .select("target_id")
        .join(most, on="target_id", how="left", maintain_order="left")
    )
    assert made["scores"]["most_words_of_mine_v1"].to_list() == wanted["most"].to_list()


@pytest.fixture
def answered(small_audit, tmp_path):
    """Probes of the finished audit's corpus, answered by the true word at every other point."""
    settings, _ = small_audit
    texts = pl.read_parquet(settings["input"])["text"].drop_nulls().to_list()
    rows = [
        (" ".join(words[:at]), at - 8, f" {words[at] if at % 2 else 'wrong'}")
        for words in (text.split() for text in texts)
        for at in range(8, 28)
        if len(words) > at
    ]
    made = pl.DataFrame(rows, schema=["prefix", "point", "candidate"], orient="row")
    return made.sample(fraction=1.0, shuffle=True, seed=0)


@pytest.mark.parametrize("columns", [("prefix", "candidate"), ("prefix", "candidate", "point")])
def test_a_prefix_that_ends_at_a_point_is_matched_to_that_point(
    answered, replayed, tmp_path, columns
):
    answered = answered.filter(pl.col("point") < 4)
    answered.select(columns).write_ndjson(tmp_path / "answers.jsonl")
    run = replayed(
        tmp_path / "answers.jsonl", attacks="probe_first_word_v1", probes=4, probe_every=10
    )
    counts = run.manifest.engines["samples of target"]["counts"]
    asked = run["prompts"].filter(pl.col("reason").is_null()).height
    assert asked == 6 * 4  # of points behind words 8, 18, 28 and 38 the first is recorded
    assert (counts["matched"], counts["missing"], counts["unmatched"]) == (6, 18, 18)
    found = run["samples"].filter(pl.col("candidate").is_not_null())
    assert found["view_index"].to_list() == [0] * 6


def test_the_parts_of_a_recording_by_prefix_do_not_matter(
    answered, replayed, tmp_path, monkeypatch
):
    monkeypatch.setattr(recording, "_PORTION_BYTES", 1)
    monkeypatch.setattr(recording, "RECORDED_BLOCK_TARGETS", 2)
    monkeypatch.setattr(features, "RECORDED_BLOCK_TARGETS", 2)
    answered.write_parquet(tmp_path / "answers.parquet")
    run = replayed(tmp_path / "answers.parquet", attacks="probe_first_word_v1")
    assert len(list(run.path("samples").glob("*.parquet"))) == 3
    assert run.manifest.engines["samples of target"]["counts"]["matched"] == 6 * 20
    assert run["scores"]["probe_first_word_v1"].to_list() == [0.5] * 6 + [None] * 2
