"""Audits of recorded continuations: the same numbers, whichever engine they came from."""

from typing import Any

import polars as pl
import pytest

import mia_batch
from mia_batch import tables, targets
from mia_batch.attacks import Attack, defaults, families
from mia_batch.evidence import replay as recording
from mia_batch.features import build_features
from mia_batch.observer import Observer
from mia_batch.pipeline import Run
from mia_batch.pipeline.audits import build_stages
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.folder import AuditFolder, Manifest
from mia_batch.pipeline.stages import features
from mia_batch.pipeline.stages.features import FeaturesStage
from mia_batch.schemas import Prompts, Samples, Targets
from mia_batch.settings import load_settings
from tests import frames, runs
from tests.runs import written


@pytest.fixture
def replayed(small_audit, tmp_path):
    """Replay a recording of the finished audit's corpus."""
    settings, _ = small_audit

    def replay(source, **changed):
        return runs.audit(
            input=settings["input"],
            samples_from=str(source),
            out=tmp_path / "run",
            **changed,
        )

    return replay


@pytest.fixture
def recorded(small_audit):
    """What a script of the user's would have written: prefix and text, in an order of its own."""
    _, run = small_audit
    texts = run["samples"].join(
        run["targets"].select("target_id", "prefix"), on="target_id"
    )
    return texts.select("sample_index", "prefix", written="candidate").reverse()


def test_a_runs_own_samples_give_its_scores_to_the_bit(small_audit, replayed):
    _, run = small_audit
    again = replayed(run.path("samples"))
    for name in ("scores", "metrics", "unscored"):
        assert again[name].equals(run[name])
    kinds = "answer"  # which are not recorded
    # A recording is read in the order of the corpus
    key = (
        "target_id",
        "sample_index",
    )
    samples_again, samples_before = (
        run_of_pair["samples"].drop(kinds).sort(key) for run_of_pair in (again, run)
    )
    assert samples_again.equals(samples_before)
    no_rows = dict.fromkeys(("missing", "surplus", "duplicates", "unmatched"), 0)
    counts = {"rows": 18, "matched": 18} | no_rows
    assert again.manifest.engines["samples of target"]["counts"] == counts


def test_without_finish_reason_candidates_are_whole_and_the_whole_family_is_scored(
    small_audit, recorded, replayed, tmp_path
):
    _, run = small_audit
    recorded.write_ndjson(tmp_path / "recorded.jsonl")
    again = replayed(tmp_path / "recorded.jsonl", candidate_column="written")
    matched = defaults("matched")
    computed = [name for name in again["scores"].columns if name.endswith("_v1")]
    whole = [attack.name for attack in families()["SaMIA"]]
    assert computed == [*matched, *whole]
    assert again["scores"].select(matched).equals(run["scores"].select(matched))
    assert again["scores"]["n_short"].sum() == 0


def test_a_recording_of_another_corpus_is_refused_and_another_can_be_given(
    small_audit, recorded, replayed, tmp_path
):
    _, run = small_audit
    foreign = recorded.with_columns(prefix="x " + pl.col("prefix"))
    foreign.write_parquet(tmp_path / "foreign.parquet")
    names = (
        r"none of the 18 rows of .*foreign.parquet names a target: 'prefix' is 'x .*"
        r" in its"
    )
    with pytest.raises(mia_batch.SettingsError, match=names):
        replayed(tmp_path / "foreign.parquet", candidate_column="written")
    again = replayed(run.path("samples"))
    assert again["scores"].select(run["scores"].columns).equals(run["scores"])
    recorded.write_parquet(tmp_path / "own.parquet")
    with pytest.raises(mia_batch.SettingsError, match="'recording' was "):
        replayed(tmp_path / "own.parquet", candidate_column="written")


def test_more_samples_than_were_recorded_are_missing_with_their_reason(
    small_audit, replayed
):
    _, run = small_audit
    more_samples = replayed(run.path("samples"), samples=4)
    reasons = {"the recording has no such sample": 6}
    assert more_samples.manifest.failed == {
        "targets": 6,
        "of": 6,
        "again": 6,
        "reasons": reasons,
        "incomplete": {"targets": 0, "missing": 0, "asked": 0, "reasons": {}},
    }
    assert more_samples["scores"].equals(run["scores"])


def test_an_attack_of_ones_own_stands_with_those_of_the_package(
    small_audit, replayed, monkeypatch
):
    monkeypatch.setattr("mia_batch.attacks._REGISTERED", {})
    _, run = small_audit
    longest = Attack(
        name="most_words_of_mine_v1",
        expr=pl.col("words_candidate").max().cast(pl.Float64),
        source="mine",
        undefined="there is no candidate",
    )
    rescored = replayed(run.path("samples"), attacks=[longest, "samia_matched_v1"])
    assert rescored["scores"]["samia_matched_v1"].equals(
        run["scores"]["samia_matched_v1"]
    )
    most_words = (
        run["features"].group_by("target_id").agg(most=pl.col("words_candidate").max())
    )
    names = run["targets"].select("target_id")
    expected = names.join(most_words, on="target_id", how="left", maintain_order="left")
    assert (
        rescored["scores"]["most_words_of_mine_v1"].to_list()
        == expected["most"].to_list()
    )


@pytest.fixture
def answered(small_audit, tmp_path):
    """Probes of the finished audit's corpus, answered by the true word at every other point."""
    settings, _ = small_audit
    texts = pl.read_parquet(settings["input"])["text"].drop_nulls().to_list()
    rows = [
        (
            " ".join(words[:cut_at]),
            cut_at - 8,
            f" {words[cut_at] if cut_at % 2 else 'wrong'}",
        )
        for words in (text.split() for text in texts)
        for cut_at in range(8, 28)
        if len(words) > cut_at
    ]
    answers = pl.DataFrame(rows, schema=["prefix", "point", "candidate"], orient="row")
    return answers.sample(fraction=1.0, shuffle=True, seed=0)


def test_a_prefix_that_ends_at_a_point_is_matched_to_that_point(
    answered, replayed, tmp_path
):
    answered.filter(pl.col("point") < 4).write_ndjson(tmp_path / "answers.jsonl")
    run = replayed(
        tmp_path / "answers.jsonl",
        attacks="probe_first_word_v1",
        probes=4,
        probe_every=10,
    )
    counts = run.manifest.engines["samples of target"]["counts"]
    n_answerable = run["prompts"].filter(pl.col("reason").is_null()).height
    # Of points behind words 8, 18, 28 and 38 the first is recorded
    assert n_answerable == 6 * 4
    assert (counts["matched"], counts["missing"], counts["unmatched"]) == (6, 18, 18)
    answered_rows = run["samples"].filter(pl.col("candidate").is_not_null())
    assert answered_rows["view_index"].to_list() == [0] * 6


def test_the_parts_of_a_recording_by_prefix_do_not_matter(
    answered, replayed, tmp_path, monkeypatch
):
    monkeypatch.setattr(recording, "_PORTION_BYTES", 1)
    monkeypatch.setattr(recording, "RECORDED_BLOCK_TARGETS", 2)
    monkeypatch.setattr("mia_batch.evidence.parts.RECORDED_BLOCK_TARGETS", 2)
    answered.write_parquet(tmp_path / "answers.parquet")
    run = replayed(tmp_path / "answers.parquet", attacks="probe_first_word_v1")
    assert len(list(run.path("samples").glob("*.parquet"))) == 3
    assert run.manifest.engines["samples of target"]["counts"]["matched"] == 6 * 20
    assert run["scores"]["probe_first_word_v1"].to_list() == [0.5] * 6 + [None] * 2


def test_other_attacks_have_their_features_made_and_nothing_else_changes(
    small_audit, replayed, monkeypatch
):
    settings, run = small_audit
    first = replayed(run.path("samples"))
    parts = runs.tables_of(first.path("samples"))
    groups = ["blocks", "matched", "ngrams", "unigrams", "zlib"]
    assert first.manifest.made["features"]["groups"] == groups

    def check_targets(*_: object, **__: object) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:  # the texts are the same
        patch.setattr("mia_batch.diagnostics.preflight.check_targets", check_targets)
        more_attacks = replayed(
            run.path("samples"), attacks="longest_block_v1,samia_matched_v1"
        )
    assert more_attacks.manifest.made["features"]["groups"] == groups
    assert runs.tables_of(more_attacks.path("samples")) == parts
    assert more_attacks["findings"].equals(first["findings"])
    assert more_attacks["scores"]["samia_matched_v1"].equals(
        run["scores"]["samia_matched_v1"]
    )
    assert more_attacks["scores"]["longest_block_v1"].null_count() == 2
    assert more_attacks["features"]["longest_block_words"].max() == 1
    again = replayed(run.path("samples"))
    assert again.manifest.made["features"]["groups"] == groups
    assert again["scores"].select(run["scores"].columns).equals(run["scores"])
    with pytest.raises(
        mia_batch.SettingsError, match="'engine' was 'replay', is now 'transf"
    ):
        runs.audit(**settings | {"out": str(again.folder)})


def test_a_prefix_that_moved_is_refused(tmp_path):
    def corpus(prefix, reference):
        halves = {
            "text": [prefix + reference],
            "prefix": [prefix],
            "reference": [reference],
        }
        return written(tmp_path, pl.DataFrame(halves))

    recorded = pl.DataFrame({"prefix": ["one two"], "candidate": [" three"]})
    settings = {
        "samples_from": written(tmp_path, recorded, "recorded"),
        "out": tmp_path / "own",
    }
    run = runs.audit(input=corpus("one two", " three four"), **settings)
    with pytest.raises(
        mia_batch.SettingsError, match="prefix or reference of 1 targets differs"
    ):
        runs.audit(input=corpus("one", " two three four"), **settings)
    assert run["targets"]["prefix"].to_list() == ["one two"]


# Text without spaces, and text that is hardly any.

PAIRS = {
    "zh": ("我们去了。然后他回家", ["。然后他回来", "、回家"]),
    "ja": ("東京タワーへ行く人", ["へ行くよ、人", ""]),
    "th": ("ภาษาไทย ดี", ["ไทย", "ดี ไทย"]),
    "odd": ("e\u0301te\u0301\0 🙂 b c", [" c 🙂b", "\0\u200d👩"]),
}
"""Documents, each with what was recorded for it."""


@pytest.fixture
def audited(tmp_path):
    texts = [{"document_id": name, "text": text} for name, (text, _) in PAIRS.items()]
    answer_rows = [
        (name, answer_text, "length")
        for name, (_, two_texts) in PAIRS.items()
        for answer_text in two_texts
    ]
    columns = ["document_id", "candidate", "finish_reason"]
    recorded = pl.DataFrame(answer_rows, schema=columns, orient="row")
    return lambda **settings: runs.audit(
        input=written(tmp_path, pl.DataFrame(texts)),
        samples_from=written(tmp_path, recorded, "recording"),
        out=tmp_path / "run",
        **settings,
    )


def test_text_without_spaces_is_cut_and_scored_by_unicode_words(audited):
    run = audited(
        word_rule="unicode", attacks="samia_matched_v1,samia_matched_n2_v1,rouge_l_v1"
    )
    assert run["targets"].select("n_words", "prefix", "reference").rows() == [
        (9, "我们去了", "。然后他回家"),
        (7, "東京タワー", "へ行く人"),
        (8, "ภาษา", "ไทย ดี"),
        (3, "e\u0301te\u0301", "\0 🙂 b c"),
    ]
    assert run["samples"]["short"].to_list() == [
        False,
        True,
        False,
        True,
        True,
        False,
        False,
        True,
    ]
    expected = {  # by hand, a term for each of the two samples
        "samia_matched_v1": [(4 + 2) / 5, 3 / 4 + 0, (3 + 4) / 4, 2 / 2 + 0],
        "samia_matched_n2_v1": [3 / 4 + 1 / 4, 2 / 3 + 0, (2 + 2) / 3, 0],
        "rouge_l_v1": [(4 + 2) / 5, 4 / 4 + 0, (3 + 3) / 4, 1 / 2 + 0],
    }
    for attack, sums in expected.items():
        assert run["scores"][attack].to_list() == pytest.approx(
            [total / 2 for total in sums]
        )


@pytest.mark.parametrize(
    ("rule", "n_words", "reason"),
    [
        ("whitespace", [1, 1, 2, 4], targets.TOO_SHORT),
        ("space", [1, 1, 2, 4], targets.TOO_SHORT),
        ("rouge", [0, 0, 0, 4], targets.EMPTY_TEXT),
    ],
)
def test_rules_that_find_too_few_words_there_say_so(audited, rule, n_words, reason):
    run = audited(word_rule=rule, attacks="samia_matched_v1")
    assert run["targets"]["n_words"].to_list() == n_words
    refused = [n < 2 for n in n_words]
    assert run["scores"]["samia_matched_v1"].is_null().to_list() == refused
    assert run["unscored"]["reason"].to_list() == [reason] * sum(refused)


# Features of parts that are made together are those of each part alone, under its name.

TARGETS = frames.targets(*({"reference": "a b c d"[: 2 * n + 1]} for n in range(4)))
ROWS = frames.samples(*([f"a b{n}", None, "a b c"] for n in range(4)))
PARTS = {  # all but the first as of a corpus that has shrunk: their targets stand elsewhere now
    f"block-{number:08d}.target-continuation-00000-00003.attempt-0.parquet": rows
    for number, rows in enumerate((ROWS[:5], ROWS[5:9], ROWS[:0], ROWS[9:]))
}
PROMPTS = "block-00000000.target-continuation-00000-00001.attempt-0.parquet"


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    for name in ("prompts", "samples", "features", "logprobs"):
        run.path(name).mkdir()
    tables.sink(TARGETS, run.path("targets"), Targets)
    prompts = frames.table(
        Prompts, TARGETS.select("target_id").to_dicts(), **frames.CONTINUATION
    )
    tables.sink(prompts, run.path("prompts") / PROMPTS, Prompts)
    for name, rows in PARTS.items():
        tables.sink(rows, run.path("samples") / name, Samples)
    return run


def features_stage(run, attacks: str, groups: list[str]) -> FeaturesStage:
    settings_given = {
        "input": "corpus.txt",
        "samples_from": "made.parquet",
        "attacks": attacks,
    }
    Manifest(
        evidence={"engine": "replay"}, made={"features": {"groups": groups}}
    ).write(run.folder)
    audit = Audit.reopen(
        AuditFolder(run.folder), load_settings(settings_given), Observer()
    )
    (stage,) = (
        stage for stage in build_stages(audit) if isinstance(stage, FeaturesStage)
    )
    return stage


@pytest.mark.parametrize(
    ("limit", "value"),
    [("_PARTS_AT_ONCE", 3), ("_PARTS_AT_ONCE", 8), ("_BYTES_AT_ONCE", 1)],
)
def test_parts_together_are_as_each_alone(run, monkeypatch, limit, value):
    monkeypatch.setattr(features, limit, value)
    features_stage(run, "samia_v1", ["unigrams"]).run()
    parts_made = {
        path.name: pl.read_parquet(path) for path in run.path("features").iterdir()
    }
    assert parts_made.keys() == PARTS.keys()
    feature_options: Any = {
        "words": "whitespace",
        "preset": "default",
        "text_length": None,
    }
    for name, rows in PARTS.items():
        alone = build_features(
            rows, frames.units(TARGETS), groups=["unigrams"], **feature_options
        )
        assert parts_made[name].equals(alone)
    assert parts_made[list(PARTS)[1]]["overlap_1"].to_list() == [2, 1, None, 3]


def test_features_of_a_group_that_is_no_more_are_made_anew(run):
    """The group "overlap" is of an earlier version."""
    old = (
        run.path("features")
        / "block-00000000.target-continuation-00000-00003.attempt-0.parquet"
    )
    old.write_bytes(b"of an earlier version")
    stage = features_stage(run, "samia_matched_v1", ["lcs", "overlap"])
    stage.prepare()
    assert run.manifest.made["features"] == {
        "groups": ["blocks", "lcs", "matched", "unigrams"]
    }
    assert not old.exists()
    old.write_bytes(b"of this version")
    stage.prepare()
    assert old.exists()
