"""Whole audits from log-probabilities of a tiny model: tables, reasons, going on, refusals."""

from __future__ import annotations

import math
import shutil
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from transformers import AutoTokenizer

import mia_batch
from mia_batch.attacks import get
from mia_batch.attacks.from_logprobs import SHAPE_ATTACKS
from mia_batch.errors import SettingsError
from mia_batch.pipeline.stages.verdicts import conclusions
from mia_batch.schemas import LogProbs, Scores, Unscored
from mia_batch.settings import stored_settings
from tests.architectures import saved
from tests.checkpoints import (
    TEXTS,
    change,
    save_checkpoint,
    save_masked_checkpoint,
    times,
)
from tests.reference_logprobs import REFERENCES, Undefined
from tests.unit.pipeline.conftest import documents


def corpus_of_12() -> pl.DataFrame:
    """The usual texts; the first is short enough to be put before others."""
    first = documents(12)["text"][0].split()[:12]
    short = pl.when(document_id="d0").then(pl.lit(" ".join(first))).otherwise("text")
    return documents(12).with_columns(text=short)


@pytest.fixture(scope="module")
def scored(checkpoint, tmp_path_factory):
    """The settings of a finished audit with every view, and its run."""
    folder = tmp_path_factory.mktemp("logprobs")
    corpus = corpus_of_12()
    corpus.write_parquet(folder / "corpus.parquet")
    others = [" ".join(text.split()[:9]) for text in TEXTS[20:24]]
    pl.DataFrame({"text": others}).write_parquet(folder / "nonmembers.parquet")
    shots = [*corpus["text"].head(1), *others[2:]]
    pl.DataFrame({"text": shots}).write_parquet(folder / "members.parquet")
    settings: dict[str, Any] = {
        "input": str(folder / "corpus.parquet"),
        "model": str(checkpoint),
        "reference_model": str(save_checkpoint(folder / "reference")),
        "masked_model": str(save_masked_checkpoint(folder / "masked")),
        "neighbours": 3,
        "nonmember_shots": str(folder / "nonmembers.parquet"),
        "member_shots": str(folder / "members.parquet"),
        "shots": 1,
        "frequencies_from": str(folder / "corpus.parquet"),
        "extraction_tokens": 10,
        "engine": "transformers",
        "evidence": "both",
        "samples": 2,
        "report": False,
        "out": str(folder / "run"),
    }
    return settings, mia_batch.audit(**settings)


@pytest.fixture
def copied(scored, tmp_path):
    settings, run = scored
    shutil.copytree(run.folder, tmp_path / "run")
    return settings | {"out": str(tmp_path / "run")}


def test_perplexity_entropy_and_control_stand_side_by_side(scored):
    """They are those of the attacks, which are minus them."""
    _, run = scored
    found = run.scan("perplexities").collect()
    numbers = ("perplexity", "entropy", "reference_perplexity")
    assert found.height == found["perplexity"].count() == documents(12)["text"].count()
    scores = run["scores"].select("target_id", "perplexity_v1", "entropy_v1")
    both = found.join(scores, on="target_id")
    for name in numbers[:2]:
        assert both[name].to_list() == pytest.approx((-both[f"{name}_v1"]).to_list(), rel=1e-6)
    other = run["logprobs"].filter(model="reference", view="text").row(1, named=True)
    losses = [-each for each in other["logprob"] if each is not None]
    own = found.filter(target_id=other["target_id"])["reference_perplexity"].item()
    assert own == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-6)
    for name, reason in zip(numbers, ("reason", "entropy_reason", "reference_reason"), strict=True):
        assert (found[name].is_null() == found[reason].is_not_null()).all()


def test_every_view_of_every_text_has_a_row(scored):
    _, run = scored
    table = LogProbs.validate(run["logprobs"])
    n_texts = documents(12)["text"].count()
    counts = {
        (role, view): n for role, view, n in table.group_by("model", "view").len().iter_rows()
    }
    assert counts == {
        ("target", "text"): n_texts,
        ("target", "lowercase"): n_texts,
        ("target", "extraction"): n_texts,
        ("target", "nonmember_shots"): n_texts,
        ("target", "member_shots"): n_texts,
        ("target", "neighbour"): 3 * n_texts,
        ("target", "perturbation"): 3 * n_texts,
        ("reference", "text"): n_texts,
    }
    there = table.filter(pl.col("reason").is_null())
    for name in ("logprob", "token_ids"):
        assert there[name].null_count() == 0
    assert (there["logprob"].list.len() == there["token_ids"].list.len()).all()
    assert sum(run.manifest.passes.values()) == there.height


def test_only_views_that_need_them_have_numbers_of_the_whole_vocabulary(scored):
    _, run = scored
    numbers = [
        "vocabulary_mean",
        "vocabulary_variance",
        "rank",
        "support_mass",
        "log_inverse_frequency",
    ]
    there = run["logprobs"].filter(pl.col("reason").is_null())
    has = there.group_by("model", "view").agg(pl.col(numbers).is_not_null().any())
    counted = {
        (role, view): [name for name, given in zip(numbers, has, strict=True) if given]
        for role, view, *has in has.iter_rows()
    }
    assert counted.pop(("target", "text")) == [
        "vocabulary_mean",
        "vocabulary_variance",
        "rank",
        "log_inverse_frequency",
    ]
    assert counted.pop(("target", "extraction")) == ["rank", "support_mass"]
    assert len(counted) == 6
    assert not any(counted.values())


def reference(name: str, rows: list[dict[str, Any]]) -> float | None:
    try:
        value = REFERENCES[name](rows)
    except Undefined:
        return None
    return value if value is not None and math.isfinite(value) else None


def test_every_attack_equals_its_reference(scored):
    _, run = scored
    names = [name for name in run.manifest.made["scores"]["attacks"] if name in REFERENCES]
    assert len(names) == 50
    assert compared(run, names) > 300


def test_shapes_of_series_equal_their_references(copied):
    names = [attack.name for attack in SHAPE_ATTACKS]
    run = mia_batch.audit(**copied | {"attacks": names, "evidence": "logprobs"})
    assert compared(run, names) > 40


def compared(run: mia_batch.Run, names: list[str]) -> int:
    """Compare all scores with their references; how many there are."""
    rows = run["logprobs"]
    Scores.validate(run["scores"])
    n = 0
    for row in run["scores"].iter_rows(named=True):
        of_target = rows.filter(target_id=row["target_id"]).to_dicts()
        for name in names:
            wanted = reference(name, of_target)
            assert row[name] == (wanted and pytest.approx(wanted, rel=1e-6, abs=1e-9)), name
            n += wanted is not None
    return n


def test_what_cannot_be_scored_has_its_reason(scored):
    _, run = scored
    unscored = Unscored.validate(run["unscored"])
    missing = (
        run["scores"]
        .unpivot(run.manifest.made["scores"]["attacks"], index="target_id", variable_name="attack")
        .filter(pl.col("value").is_null())
    )
    assert unscored.height == missing.height
    reasons = dict(unscored.group_by("attack").agg(pl.col("reason").unique()).iter_rows())
    assert any("one of those that are put before" in of for of in reasons["con_recall_prefix_v1"])
    assert "the text has 1 tokens, fewer than the 10 wanted" not in reasons["loss_v1"]


def test_texts_that_are_shots_leave_the_scored_set(scored):
    _, run = scored
    assert run["scores"].filter(document_id="d0")["con_recall_prefix_v1"].to_list() == [None]
    assert run["scores"].filter(document_id="d0")["recall_prefix_v1"].null_count() == 0


def test_the_same_command_again_does_nothing(copied):
    before = mia_batch.audit(**copied)
    stamps = {path: path.stat().st_mtime_ns for path in before.path("logprobs").iterdir()}
    again = mia_batch.audit(**copied)
    assert {path: path.stat().st_mtime_ns for path in again.path("logprobs").iterdir()} == stamps


def test_lost_and_cut_parts_are_made_again(copied, scored):
    run = scored[1]
    whole = {path.name for path in run.path("logprobs").glob("*.parquet")}
    folder = mia_batch.audit(**copied).path("logprobs")
    names = sorted(whole)
    (folder / names[0]).unlink()
    cut = folder / names[-1]
    cut.write_bytes(cut.read_bytes()[:-20])
    repaired = mia_batch.audit(**copied)
    names_now = {path.name for path in repaired.path("logprobs").glob("*.parquet")}
    assert names_now == whole
    assert_frame_equal(repaired["scores"], run["scores"], rel_tol=1e-4, abs_tol=1e-5)


def test_more_neighbours_are_added_to_those_that_are_there(copied, scored):
    before = scored[1]["logprobs"]
    run = mia_batch.audit(**copied | {"neighbours": 5})
    assert run["logprobs"].filter(view="neighbour").height == 5 * documents(12)["text"].count()
    key = ["target_id", "model", "view", "view_index"]
    kept = run["logprobs"].join(before, on=key, how="semi")
    assert kept.sort(key).equals(before.sort(key))


def test_a_column_that_was_not_needed_before_is_computed_anew(scored, tmp_path):
    settings = scored[0] | {"out": str(tmp_path / "run"), "evidence": "logprobs"}
    run = mia_batch.audit(**settings | {"attacks": "loss_v1"})
    assert run["logprobs"]["vocabulary_mean"].null_count() == run["logprobs"].height
    assert run["logprobs"]["view"].unique().to_list() == ["text"]
    assert run["scores"]["n_samples"].sum() == 0
    run = mia_batch.audit(**settings | {"attacks": "loss_v1,min_k_plus_plus_20_v1"})
    assert run["logprobs"]["vocabulary_mean"].null_count() < run["logprobs"].height


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"attacks": "loss_v1", "evidence": "samples"}, "setting 'evidence' is 'samples'"),
        ({"attacks": "reference_ratio_v1", "reference_model": None}, "needs setting 'refer"),
        (
            {"attacks": "min_k_plus_plus_20_v1", "engine": "vllm", "evidence": None},
            "min_k_plus_plus_20_v1 cannot be computed: .*take engine transformers",
        ),
        ({"attacks": "extraction_top_k_v1", "temperature": 0.7}, "needs temperature 1"),
        ({"reference_model": "/nowhere"}, "setting 'reference_model': '/nowhere'"),
        ({"nonmember_shots": "/nowhere.parquet"}, "/nowhere.parquet"),
        ({"neighbours_column": "shelf", "masked_model": None}, "must hold lists of texts"),
    ],
)
def test_what_cannot_be_done_is_refused(scored, tmp_path, given, words):
    settings = scored[0] | {"out": str(tmp_path / "run"), "evidence": "logprobs"} | given
    with pytest.raises(mia_batch.errors.RequestError, match=words):  # before any engine starts
        mia_batch.audit(**{name: value for name, value in settings.items() if value is not None})


@pytest.mark.parametrize("setting", ["model", "reference_model", "masked_model"])
def test_a_tensor_that_any_model_lacks_is_named_before_any_engine_starts(scored, tmp_path, setting):
    settings = scored[0] | {"out": str(tmp_path / "run")}
    broken = shutil.copytree(settings[setting], tmp_path / "broken")
    change(broken, lambda own: {name: own[name] for name in sorted(own)[:-1]})
    with pytest.raises(
        SettingsError, match=f"^setting '{setting}': the weights of '{broken}' lack"
    ):
        mia_batch.audit(**settings | {setting: str(broken)})
    assert not list(tmp_path.rglob("engine.log"))


@pytest.mark.parametrize("setting", ["model", "reference_model", "masked_model"])
def test_weights_of_any_model_that_are_no_numbers_are_named_before_it_is_asked(
    copied, tmp_path, setting
):
    broken = shutil.copytree(copied[setting], tmp_path / "broken")
    change(broken, times(float("nan"), "layers.1.mlp.up_proj", "layer.0.output.dense"))
    with pytest.raises(SettingsError, match=f"the weights of '{broken}' have values that are not"):
        mia_batch.audit(**copied | {setting: str(broken), "out": str(tmp_path / "other")})
    role = {"model": "target", "reference_model": "reference", "masked_model": "masked"}[setting]
    assert not list(tmp_path.glob(f"other/logprobs/*.{role}-*.parquet"))


def save_unigrams(folder, texts):
    """Write a model that knows how often a token is, and nothing else."""
    saved(folder, "Phi")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    counts = np.bincount(np.concatenate(tokenizer(texts)["input_ids"]), minlength=600)

    def changed(own):
        own["lm_head.weight"].zero_()
        return own | {"lm_head.bias": torch.tensor(np.log(counts + 0.5), dtype=torch.float32)}

    return str(change(folder, changed))


@pytest.mark.parametrize("knows", [False, True])
def test_a_model_that_predicts_no_better_than_chance_is_named(scored, tmp_path, knows):
    settings, _ = scored
    corpus = pl.read_parquet(settings["input"])
    model = settings["model"]
    if knows:
        model = save_unigrams(tmp_path / "model", corpus["text"].drop_nulls().to_list())
    given = {name: settings[name] for name in ("input", "engine")} | {"attacks": "loss_v1"}
    run = mia_batch.audit(**given, model=model, out=str(tmp_path / "run"))
    loss = -float(run["logprobs"]["logprob"].explode().drop_nulls().to_numpy().mean())
    assert (loss < math.log(600)) == knows
    ((subject, value, chance, verdict),) = (
        run["findings"].filter(check="chance").select("subject", "value", "high", "verdict").rows()
    )
    assert (subject, verdict) == ("target", "better" if knows else "no_better")
    assert (value, chance) == pytest.approx((loss, math.log(600)))
    first = next(conclusions(run, stored_settings(run.manifest.settings), ["loss_v1"]))
    named = f"The target model predicts these texts no better than chance ({loss:.1f} nats a token"
    assert first.startswith(named) != knows


def test_a_recording_has_no_log_probabilities(scored, tmp_path):
    settings, run = scored
    with pytest.raises(SettingsError, match="'replay' has recorded samples only"):
        mia_batch.audit(
            input=settings["input"],
            samples_from=str(run.path("samples")),
            evidence="logprobs",
            out=str(tmp_path / "run"),
        )


def test_other_settings_in_the_same_folder_are_refused(copied):
    with pytest.raises(SettingsError, match="'extraction_tokens' was 10, is now 12"):
        mia_batch.audit(**copied | {"extraction_tokens": 12})


def test_neighbours_of_ones_own(scored, tmp_path):
    first_words = pl.col("text").str.split(" ").list.head(12).list.join(" ")
    corpus = documents(6).with_columns(text=first_words)
    corpus = corpus.with_columns(
        near=pl.concat_list(pl.col("text").str.to_uppercase(), pl.col("text").str.reverse())
    )
    corpus.write_parquet(tmp_path / "corpus.parquet")
    run = mia_batch.audit(
        input=str(tmp_path / "corpus.parquet"),
        model=scored[0]["model"],
        engine="transformers",
        neighbours_column="near",
        neighbours=2,
        attacks="neighbour_difference_v1",
        out=str(tmp_path / "run"),
    )
    assert get("neighbour_difference_v1").reads[1] == ("target", "neighbour")
    found = run["logprobs"].filter(pl.col("view") == "neighbour", pl.col("reason").is_null())
    assert found.height == 2 * 5
    assert found.height == 2 * 5
    assert run["scores"]["neighbour_difference_v1"].count() == 5
