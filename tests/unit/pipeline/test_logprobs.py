"""Audits from log-probabilities of models here: tables, reasons, refusals, adapters, a placebo."""

import math
import shutil
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoTokenizer

import mia_batch
from mia_batch import second
from mia_batch.attacks import get
from mia_batch.attacks.from_logprobs import SHAPE_ATTACKS
from mia_batch.cli.main import command
from mia_batch.errors import SettingsError
from mia_batch.observer import Observer
from mia_batch.pipeline.context import Audit
from mia_batch.schemas import LogProbs, Scores, Unscored
from mia_batch.settings import load_settings
from tests.adapters import save_adapter, save_merged, slow_logprobs
from tests.architectures import saved
from tests.checkpoints import BOS_ID, TEXTS, change, save_checkpoint, times
from tests.engine_conformance import exact_logprobs
from tests.runs import audit, documents, found, planned, said_of, written


@pytest.fixture(scope="module")
def refused(views, tmp_path_factory):
    """Settings of an audit of every view that has not begun."""
    return views.settings | {"out": str(tmp_path_factory.mktemp("refused") / "run")}


def test_perplexity_entropy_and_control_stand_side_by_side(views):
    """They are those of the attacks, which are minus them."""
    run = views.run
    perplexities = run.scan("perplexities").collect()
    numbers = ("perplexity", "entropy", "reference_perplexity")
    assert (
        perplexities.height
        == perplexities["perplexity"].count()
        == documents(12)["text"].count()
    )
    scores = run["scores"].select("target_id", "perplexity_v1", "entropy_v1")
    joined = perplexities.join(scores, on="target_id")
    for name in numbers[:2]:
        assert joined[name].to_list() == pytest.approx(
            (-joined[f"{name}_v1"]).to_list(), rel=1e-6
        )
    reference_row = (
        run["logprobs"].filter(model="reference", view="text").row(1, named=True)
    )
    losses = [-logprob for logprob in reference_row["logprob"] if logprob is not None]
    own_perplexity = perplexities.filter(target_id=reference_row["target_id"])[
        "reference_perplexity"
    ].item()
    assert own_perplexity == pytest.approx(
        math.exp(sum(losses) / len(losses)), rel=1e-6
    )
    for name, reason in zip(
        numbers, ("reason", "entropy_reason", "reference_reason"), strict=True
    ):
        assert (
            perplexities[name].is_null() == perplexities[reason].is_not_null()
        ).all()


def test_every_view_of_every_text_has_a_row_and_numbers_only_where_they_are_needed(
    views,
):
    run = views.run
    table = LogProbs.validate(run["logprobs"])
    n_texts = documents(12)["text"].count()
    once = ("text", "lowercase", "extraction", "nonmember_shots", "member_shots")
    n_rows_of_view = dict.fromkeys(once, n_texts) | dict.fromkeys(
        ("neighbour", "perturbation"), 3 * n_texts
    )
    rows = [("target", view, n) for view, n in n_rows_of_view.items()] + [
        ("reference", "text", n_texts)
    ]
    assert set(table.group_by("model", "view").len().rows()) == {*rows}
    answered = table.filter(pl.col("reason").is_null())
    for name in ("logprob", "token_ids"):
        assert answered[name].null_count() == 0
    assert (answered["logprob"].list.len() == answered["token_ids"].list.len()).all()
    assert sum(run.manifest.passes.values()) == answered.height
    vocabulary = ["vocabulary_mean", "vocabulary_variance", "top_logprob", "rank"]
    numbers = [*vocabulary, "support_mass", "log_inverse_frequency"]
    answered = run["logprobs"].filter(pl.col("reason").is_null())
    has = answered.group_by("model", "view").agg(pl.col(numbers).is_not_null().any())
    columns_of_view = {
        (role, view): [
            name for name, has_values in zip(numbers, has, strict=True) if has_values
        ]
        for role, view, *has in has.iter_rows()
    }
    assert columns_of_view.pop(("target", "text")) == [
        *vocabulary,
        "log_inverse_frequency",
    ]
    assert columns_of_view.pop(("target", "extraction")) == ["rank", "support_mass"]
    assert len(columns_of_view) == 6
    assert not any(columns_of_view.values())


def test_every_attack_equals_its_reference(views, copied_of):
    run = views.run
    attack_names = run.manifest.made["scores"]["attacks"]
    names = [name for name in attack_names if get(name).evidence == "logprobs"]
    assert len(names) == 59
    assert compare_scores(run, names) > 300
    settings, _, _ = copied_of(views)
    names = [*(attack.name for attack in SHAPE_ATTACKS), "pac_v1"]
    run = audit(**settings | {"attacks": names, "evidence": "logprobs"})
    assert compare_scores(run, names) > 40


def compare_scores(run: mia_batch.Run, names: list[str]) -> int:
    """Compare all scores with those of the second implementation; how many there are."""
    scores, again = run["scores"], second.RunFiles(run.folder)
    Scores.validate(scores)
    for name in names:
        for number, value in scores.select("target_id", name).iter_rows():
            expected_score = second.recompute_score(again, name, {"key": number})[
                "score"
            ]
            assert value == (
                expected_score and pytest.approx(expected_score, rel=1e-9, abs=1e-9)
            ), name
    return sum(scores[names].count().row(0))


def test_what_cannot_be_scored_has_its_reason(views):
    run = views.run
    unscored = Unscored.validate(run["unscored"])
    missing = (
        run["scores"]
        .unpivot(
            run.manifest.made["scores"]["attacks"],
            index="target_id",
            variable_name="attack",
        )
        .filter(pl.col("value").is_null())
    )
    assert unscored.height == missing.height
    reasons = dict(
        unscored.group_by("attack").agg(pl.col("reason").unique()).iter_rows()
    )
    assert any(
        "one of those that are put before" in reason_of
        for reason_of in reasons["con_recall_prefix_v1"]
    )
    assert "the text has 1 tokens, fewer than the 10 wanted" not in reasons["loss_v1"]
    of_shot = run["scores"].filter(document_id="d0")
    assert of_shot["con_recall_prefix_v1"].to_list() == [None]
    assert of_shot["recall_prefix_v1"].null_count() == 0


def test_a_column_that_was_not_needed_before_is_computed_anew(refused):
    settings = refused | {"evidence": "logprobs"}
    run = audit(**settings | {"attacks": "loss_v1"})
    assert run["logprobs"]["vocabulary_mean"].null_count() == run["logprobs"].height
    assert run["logprobs"]["view"].unique().to_list() == ["text"]
    assert run["scores"]["n_samples"].sum() == 0
    run = audit(**settings | {"attacks": "loss_v1,min_k_plus_plus_20_v1"})
    assert run["logprobs"]["vocabulary_mean"].null_count() < run["logprobs"].height


@pytest.mark.parametrize("setting", ["model", "reference_model", "masked_model"])
def test_a_tensor_that_any_model_misses_is_named_before_any_engine_starts(
    refused, nothing_starts, tmp_path, setting
):
    broken = shutil.copytree(refused[setting], tmp_path / "broken")
    change(
        broken, lambda tensors: {name: tensors[name] for name in sorted(tensors)[:-1]}
    )
    message = f"^{setting}: the weights of '{broken}' lack"
    with pytest.raises(SettingsError, match=message):
        audit(**refused | {setting: str(broken)})


@pytest.mark.parametrize(
    "setting",
    ["model", pytest.param("reference_model", marks=pytest.mark.long), "masked_model"],
)
def test_weights_of_any_model_that_are_no_numbers_are_named_before_it_is_asked(
    refused, tmp_path, setting
):
    broken = shutil.copytree(refused[setting], tmp_path / "broken")
    change(broken, times(float("nan"), "layers.1.mlp.up_proj", "layer.0.output.dense"))
    other_settings = {"out": str(tmp_path / "other"), "evidence": "logprobs"}
    with pytest.raises(
        SettingsError, match=f"the weights of '{broken}' have values that are not"
    ):
        audit(**refused | other_settings | {setting: str(broken)})
    role = {
        "model": "target",
        "reference_model": "reference",
        "masked_model": "masked",
    }[setting]
    assert not list(tmp_path.glob(f"other/logprobs/*.{role}-*.parquet"))


def save_unigrams(folder, texts):
    """Write a model that knows how often a token is, and nothing else."""
    saved(folder, "Phi")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    counts = np.bincount(np.concatenate(tokenizer(texts)["input_ids"]), minlength=600)

    def changed(tensors):
        tensors["lm_head.weight"].zero_()
        return tensors | {
            "lm_head.bias": torch.tensor(np.log(counts + 0.5), dtype=torch.float32)
        }

    return str(change(folder, changed))


@pytest.mark.parametrize("knows", [False, True])
def test_a_model_that_predicts_no_better_than_chance_is_named(views, tmp_path, knows):
    settings = views.settings
    texts = pl.read_parquet(settings["input"])["text"].drop_nulls().to_list()
    model = settings["model"]
    if knows:
        model = save_unigrams(tmp_path / "model", texts)
        # What it knows is a tenth
        texts += ["\x07\x08" * (99 + n) for n in range(9 * len(texts))]
    text_settings = {
        "input": [*texts, "far too long " * 999],
        "engine": settings["engine"],
    }
    run = audit(
        **text_settings, attacks="loss_v1", model=model, out=str(tmp_path / "run")
    )
    failed = run.manifest.failed
    # No other answer would come
    assert (failed["targets"] > 0, failed["again"]) == (
        True,
        0,
    )
    logprobs = run["logprobs"]["logprob"].drop_nulls()
    loss = -float(
        np.mean(
            [logprobs_of_text.cast(pl.Float64).mean() for logprobs_of_text in logprobs]
        )
    )
    assert loss > math.log(600)
    chance_findings = (
        run["findings"]
        .filter(check="chance")
        .select("subject", "value", "high", "verdict")
    )
    ((subject, value, chance, verdict),) = chance_findings.rows()
    assert (subject, verdict) == ("target", "better" if knows else "no_better")
    assert (value, chance) == pytest.approx((loss, math.log(600)))
    first = said_of(run)[0]
    sentence_start = (
        f"The target model predicts these texts no better than chance ({loss:.1f} nats"
        " a token"
    )
    assert first.startswith(sentence_start) != knows
    result = CliRunner().invoke(command, ["score", str(run.folder)])
    # Whose scores mean nothing
    assert result.exit_code == (0 if knows else 1), result.output


def test_neighbours_of_ones_own(checkpoint, tmp_path):
    first_words = pl.col("text").str.split(" ").list.head(12).list.join(" ")
    corpus = documents(6).with_columns(text=first_words)
    corpus = corpus.with_columns(
        near=pl.concat_list(
            pl.col("text").str.to_uppercase(), pl.col("text").str.reverse()
        )
    )
    run = audit(
        input=written(tmp_path, corpus),
        model=str(checkpoint),
        engine="transformers",
        neighbours_column="near",
        neighbours=2,
        attacks="neighbour_difference_v1",
        out=str(tmp_path / "run"),
    )
    assert get("neighbour_difference_v1").reads[1] == ("target", "neighbour")
    neighbours = run["logprobs"].filter(
        pl.col("view") == "neighbour", pl.col("reason").is_null()
    )
    assert neighbours.height == 2 * 5
    assert run["scores"]["neighbour_difference_v1"].count() == 5


# Adapters, as the target and as the reference model.


def test_an_adapter_is_a_target_and_a_reference_model(checkpoint, tmp_path):
    lora = save_adapter(tmp_path / "lora", checkpoint)
    prefix = save_adapter(tmp_path / "prefix", checkpoint, "prefix", tokenizer=False)
    merged = save_merged(tmp_path / "merged", checkpoint, lora)
    run = audit(
        input=written(tmp_path, documents(8)),
        model=str(lora),
        reference_model=str(prefix),
        engine="transformers",
        attacks="samia_matched_v1,reference_ratio_v1",
        samples=2,
        report=False,
        out=str(tmp_path / "run"),
    )
    assert run["samples"].height > 0
    rows = run["logprobs"].filter(view="text").drop_nulls("logprob")
    assert set(rows["model"]) == {"target", "reference"}
    for model, token_ids, logprobs_given in rows.select(
        "model", "token_ids", "logprob"
    ).iter_rows():
        ids = [BOS_ID, *token_ids]
        if model == "target":
            expected = exact_logprobs(merged, ids)[range(len(ids) - 1), ids[1:]]
        else:
            expected = slow_logprobs(checkpoint, prefix, ids)
        np.testing.assert_allclose(logprobs_given, expected, rtol=1e-5, atol=1e-5)


def test_a_reference_adapter_without_its_base_is_named_before_anything_starts(
    checkpoint, tmp_path
):
    lora = save_adapter(tmp_path / "lora", checkpoint)
    config = lora / "adapter_config.json"
    config.write_text(
        config.read_text().replace(str(checkpoint), str(tmp_path / "gone"))
    )
    adapter_settings = {
        "input": written(tmp_path, documents(8)),
        "out": str(tmp_path / "run"),
    }
    adapter_settings |= {
        "model": str(checkpoint),
        "engine": "transformers",
        "evidence": "logprobs",
    }
    with pytest.raises(
        SettingsError, match=r"reference_model: .*lora' is an adapter of .*gone'"
    ):
        audit(**adapter_settings, reference_model=str(lora))


# The planned test on a reference model next to that on the audited one.


@pytest.fixture(scope="module")
def model_settings(checkpoint, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("placebo")
    texts = [" ".join(text.split()[:30]) for text in TEXTS[:10]]
    return {
        "input": written(folder, pl.DataFrame({"text": texts[:4]}), "asked"),
        "non_members": written(folder, pl.DataFrame({"text": texts[4:]}), "new"),
        "non_members_known": "written later",
        "model": str(checkpoint),
        "engine": "transformers",
        "probes": 3,
        "anyway": True,
    }


def test_what_is_meant_for_vllm_does_not_reach_an_engine_that_was_not_asked_for(
    model_settings, tmp_path
):
    engine_settings = model_settings | {
        "attacks": ("min_k_plus_plus_20_v1",),
        "engine": "auto",
        "logits_memory": 7,
    }
    engine_settings |= {"engine_arg": {"gpu_memory_utilization": 0.5, "batch_size": 4}}
    engine_settings |= {"out": str(tmp_path / "run")}
    assert planned(engine_settings)["logits memory"] == "at most 7 MiB"
    audit = Audit.begin(load_settings(engine_settings, use_config=False), Observer())
    spec, _ = audit.build_spec("target", "logprobs", frozenset({"vocabulary_mean"}))
    assert (spec.engine, spec.engine_args) == ("transformers", {"batch_size": 4})
    assert spec.logits_bytes == 7 << 20


@pytest.fixture(scope="module")
def reference_model(tmp_path_factory) -> str:
    return str(save_checkpoint(tmp_path_factory.mktemp("reference") / "other"))


@pytest.mark.parametrize(
    ("attacks", "evidence"),
    [
        pytest.param("probe_leading_rarity_v1", "samples", marks=pytest.mark.long),
        ("min_k_plus_plus_20_v1,loss_zlib_v1", "logprobs"),
    ],
)
def test_the_placebo_is_an_audit_of_the_reference_model(
    model_settings, reference_model, attacks, evidence, tmp_path
):
    asked_settings = model_settings | {"attacks": attacks, "evidence": evidence}
    folders = {name: str(tmp_path / name) for name in ("both", "alone")}
    both_settings = asked_settings | {
        "reference_model": reference_model,
        "out": folders["both"],
    }
    assert any(name.startswith("reference") for name in planned(both_settings))
    run = audit(**both_settings)
    alone = audit(**asked_settings | {"model": reference_model}, out=folders["alone"])
    primary = attacks.split(",")[0]
    scores = run["scores"][f"placebo_of_{primary}"]
    assert scores.null_count() == 0
    assert scores.to_list() == pytest.approx(
        alone["scores"][primary].to_list(), rel=1e-4
    )
    reported = found(alone, "reported")
    assert found(run, "placebo") == reported | {"collection": None}
    assert (
        "The same test on the reference model (which cannot know these texts) reports"
        f" 0 of 4 targets (smallest q {reported['smallest_q']:.2g})."
        in " ".join(said_of(run))
    )
    assert not run["verdicts"]["attack"].str.starts_with("placebo").any()


def test_no_placebo_without_non_members_or_of_an_attack_that_reads_the_reference(
    model_settings, reference_model
):
    for changed in (
        {"non_members": None, "non_members_known": None, "attacks": "loss_zlib_v1"},
        {"attacks": "reference_difference_v1"},
    ):
        names = planned(
            model_settings
            | {"evidence": "logprobs", "reference_model": reference_model}
            | changed
        )
        assert ("reference text" in names) == (changed["attacks"] != "loss_zlib_v1")
