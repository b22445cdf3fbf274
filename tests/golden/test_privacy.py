"""Audits of privacy from texts to the page, of models of each kind."""

import json
import random
import signal
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from mia_batch import Run
from mia_batch.errors import CorpusError, RunFolderError, SettingsError
from mia_batch.extras.gate import judge_run
from mia_batch.extras.privacy.audit import audit_privacy, conclusions
from mia_batch.extras.privacy.data import CanaryFormat
from mia_batch.extras.privacy.plan import RECIPE_FIELDS, PrivacySettings
from mia_batch.recipes import RECIPES
from tests.bases import save_bases
from tests.broken import break_trainings
from tests.checkpoints import CHAT_TEMPLATE, save_checkpoint
from tests.forked import Forked
from tests.tuning import contents, die_saving, make

PIN = CanaryFormat(
    name="pin",
    template="PIN {}",
    question="PIN?",
    slots=[[*"0123456789"]] * 3,
    between=" ",
)
PLAN = {
    "epochs": 20,
    "batch_size": 16,
    "max_tokens": 24,
    "learning_rate": 5e-3,
    "canaries": 6,
    "repetitions": 2,
    "candidates": 106,
    "shadows": 0,
}
WORDS = [
    "river",
    "stone",
    "cloud",
    "apple",
    "train",
    "house",
    "green",
    "light",
    "paper",
    "water",
]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    return save_bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts of random words, whose label is the first of them."""
    drawn = random.Random(5)
    texts = [" ".join(drawn.choices(WORDS, k=8)) for _ in range(150)]
    labels = ["left" if text < "lime" else "right" for text in texts]
    path = tmp_path_factory.mktemp("data") / "texts.parquet"
    pl.DataFrame({"text": texts, "label": labels, "who": range(150)}).write_parquet(
        path
    )
    return path


def audit(base, data, out, task="generation", target=None, attribute=None, **changed):
    plan = PLAN | changed
    tuned = {name: plan.pop(name) for name in RECIPE_FIELDS if name in plan}
    return audit_privacy(
        base=[*map(str, base)] if isinstance(base, list) else str(base),
        data=data,
        out=out,
        settings=PrivacySettings(
            task=task, recipe=replace(RECIPES["privacy"], **tuned), **plan
        ),
        target_column=target,
        attribute_column=attribute,
        formats=[PIN],
    )


def test_a_decoder_with_and_without_privacy(bases, data, tmp_path):
    found = audit(bases["llama"], data, tmp_path / "out", epsilons=(None, 1.0))
    plain, private = found.summary.to_dicts()
    assert [plain["variant"], private["variant"]] == ["full", "full-epsilon-1"]
    assert plain["epsilon"] is None
    assert private["epsilon"] == pytest.approx(1, abs=0.02)
    assert private["noise_multiplier"] > 1
    # What was learnt without privacy comes out, and more of what was learnt more often.
    assert plain["auc_low"] > 0.5
    assert plain["mean_exposure"] > plain["unlearnt_exposure"] + 3
    assert plain["exposure_trend"] > 0
    # With privacy it does not.
    assert private["auc_low"] < 0.5 < private["auc_high"]
    assert private["mean_exposure"] < plain["mean_exposure"] - 3
    assert not private["is_contradicted"]
    assert private["epsilon_bound"] <= 1
    assert plain["utility_measure"] == "loss"
    assert plain["utility_low"] < plain["utility"] < plain["utility_high"]
    # One row a canary: the i-th was learnt 2 i times, and is compared with 100.
    own = found.exposures.filter(variant="full")
    assert own["repetitions"].to_list() == [2, 4, 6, 8, 10, 12]
    assert own["n_others"].unique().to_list() == [100]
    page = found.page.read_text("utf-8")
    assert "full-epsilon-1" in page
    assert "<svg" in page
    judged = judge_run(tmp_path / "out", {"auc-below": 0.5}, "full")
    (condition,) = judged["conditions"]
    assert (judged["kind"], judged["verdict"]) == ("privacy", "fail")
    assert condition["high"] >= condition["value"] >= plain["auc"]
    limit = {"auc-below": private["auc_high"] + 1e-6}
    (condition,) = judge_run(tmp_path / "out", limit, "full-epsilon-1")["conditions"]
    assert (condition["outcome"], condition["value"]) == ("pass", private["auc"])
    said = [*conclusions(found.summary)]
    assert said[0].startswith("full: the attack finds members (AUC ")
    assert "its accountant gives epsilon 1.00; attacks show at least" in said[1]


def test_answers_alone_are_learnt_and_asked_about(tmp_path):
    base = save_checkpoint(tmp_path / "chat", chat_template=CHAT_TEMPLATE)
    drawn = random.Random(5)
    rows = [
        {
            "prompt": f"Say {' '.join(drawn.choices(WORDS, k=3))}",
            "completion": " ".join(drawn.choices(WORDS, k=8)),
        }
        for _ in range(120)
    ]
    data = tmp_path / "answers.parquet"
    pl.DataFrame(rows).write_parquet(data)
    found = audit(base, data, tmp_path / "out", epsilons=(None,), max_tokens=128)
    (summary,) = found.summary.to_dicts()
    assert summary["auc_low"] > 0.5
    assert summary["mean_exposure"] > summary["unlearnt_exposure"]
    record = json.loads((tmp_path / "out/full/target/training.json").read_text())
    assert record["made_from"]["recipe"]["form"] == "answer"
    assert record["tokens"]["learnt"] < record["tokens"]["read"] / 2
    for changed in ({"spv": True}, {"task": "classification"}):
        with pytest.raises(SettingsError, match="holds conversations"):
            audit(base, data, tmp_path / "other", **changed)


def test_the_same_request_makes_nothing_and_another_is_refused(bases, data, tmp_path):
    out = tmp_path / "out"
    once = audit(bases["llama"], data, out, epsilons=(None,), epochs=1)
    before = contents(out / "full" / "target")
    (out / "full" / "scores.parquet").unlink()  # as when it was killed before
    again = audit(bases["llama"], data, out, epsilons=(None,), epochs=1)
    assert contents(out / "full" / "target") == before
    assert again.summary.equals(once.summary)
    with pytest.raises(RunFolderError, match="out is of another request: plan differ"):
        audit(bases["llama"], data, out, epsilons=(None,), epochs=2)


def test_an_encoder_and_its_shadow_models(bases, data, tmp_path):
    # Fmt: skip
    found = audit(
        bases["bert"],
        data,
        tmp_path / "out",
        task="classification",
        target="label",
        epsilons=(None,),
        epochs=30,
        shadows=4,
    )
    (row,) = found.summary.to_dicts()
    assert row["attack"] == "lira_online_fixed_v1"
    assert row["utility_measure"] == "accuracy"
    assert row["utility_low"] > 0.6
    assert row["auc"] is not None
    assert row["mean_exposure"] is None  # an encoder generates nothing
    assert found.exposures is None
    assert found.inversion is None
    assert {"rmia_v1", "loss_v1"} < {*found.metrics["attack"]}


@pytest.mark.parametrize(
    ("base", "tunings"), [("bert", ("lora", "prompt")), ("t5", ("ia3", "p-tuning"))]
)
def test_adapters_of_models_that_are_no_decoders(base, tunings, bases, data, tmp_path):
    # Fmt: skip
    found = audit(
        bases[base],
        data,
        tmp_path / "out",
        task="classification",
        target="label",
        epsilons=(None,),
        epochs=1,
        canaries=2,
        rank=4,
        tunings=tunings,
        inverts=base == "bert",
        attribute="label" if base == "bert" else None,
    )
    assert found.summary["variant"].to_list() == [*tunings]
    assert found.summary.select("auc", "auc_low", "utility").null_count().row(0) == (
        0,
        0,
        0,
    )
    if base == "bert":
        row, prompted = found.summary.to_dicts()
        assert (
            0
            <= row["inversion_f1_low"]
            < row["inversion_f1"]
            < row["inversion_f1_high"]
        )
        # States of virtual tokens are no text's
        assert prompted["inversion_f1"] is None
        assert prompted["inversion_attribute"] is None
        # A label is that of the first of eight random words, in each of which an
        # embedding is.
        assert row["inversion_attribute_low"] > row["inversion_attribute_usual"] > 0.3
        methods = {"inverter", "nearest", "shuffled", "unconditional"}
        assert {*found.inversion["method"]} == methods


def test_an_encoder_decoder(bases, data, tmp_path):
    how: dict[str, Any] = {
        "task": "classification",
        "target": "label",
        "epsilons": (None,),
        "epochs": 2,
    }
    (row,) = audit(bases["t5"], data, tmp_path / "t5", **how).summary.to_dicts()
    assert row["attack"] == "reference_token_difference_v1"
    assert row["mean_exposure"] is not None
    assert 0 <= row["utility"] <= 1


def test_bases_of_every_kind_in_one_table(bases, data, tmp_path):
    """An encoder, a decoder and an encoder-decoder; SPV-MIA is shown with LiRA where it can."""
    kinds, out = ["bert", "llama", "t5"], tmp_path / "out"
    how: dict[str, Any] = {
        "task": "classification",
        "target": "label",
        "epsilons": (None,),
    }
    how |= {"epochs": 3, "shadows": 2, "canaries": 0, "spv": True}
    found = audit([bases[kind] for kind in kinds], data, out, **how)
    rows = {row["variant"]: row for row in found.summary.to_dicts()}
    assert [*rows] == ["bert full", "llama full", "t5 full"]
    assert [row["base"] for row in rows.values()] == [
        str(bases[kind]) for kind in kinds
    ]
    for row in rows.values():
        assert 0 < row["lira_auc_low"] < row["lira_auc"] < row["lira_auc_high"]
        assert row["utility_measure"] == "accuracy"
    spv = {name: row["spv_auc"] for name, row in rows.items()}
    assert spv["bert full"] is spv["t5 full"] is None
    # What is scored is what the decoder learnt, the label behind the text.
    run = Run(out / "llama" / "full" / "spv")
    assert run["targets"]["target"].str.contains(" The label is (left|right)$").all()
    own = found.metrics.filter(
        variant="llama full", attack="spv_embedding_v1", metric="roc_auc"
    )
    scores, members = run["scores"]["spv_embedding_v1"], run["scores"]["member"]
    assert (
        own["value"][0]
        == spv["llama full"]
        == pytest.approx(roc_auc_score(members, scores))
    )
    assert all(name in found.page.read_text("utf-8") for name in rows)
    # Nothing is made twice; what is wrong with one base is said before another is
    # tuned.
    made = contents(out / "bert" / "full" / "target")
    assert audit([bases[kind] for kind in kinds], data, out, **how).summary.equals(
        found.summary
    )
    assert contents(out / "bert" / "full" / "target") == made
    with pytest.raises(SettingsError, match="is an encoder, which generates nothing"):
        audit([bases["llama"], bases["bert"]], data, tmp_path / "other")
    with pytest.raises(SettingsError, match="two bases are called 'llama'"):
        audit([bases["llama"]] * 2, data, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_does_not_fit_is_said_before_anything_is_trained(bases, data, tmp_path):
    out, labelled = tmp_path / "out", {"task": "classification", "target": "label"}
    wrong: list[tuple[str, dict[str, Any], type[Exception], str]] = [
        ("bert", {}, SettingsError, "is an encoder, which generates nothing"),
        (
            "bert",
            {"task": "classification"},
            SettingsError,
            "classification needs the labels",
        ),
        (
            "bert",
            labelled | {"target": "who"},
            SettingsError,
            "'who' has 150 different labels",
        ),
        (
            "bert",
            labelled | {"attribute": "who"},
            SettingsError,
            "give --inversion, too",
        ),
        (
            "t5",
            {},
            SettingsError,
            "name the column of its answers with --target-column",
        ),
        (
            "t5",
            labelled | {"tunings": ("infilling",)},
            SettingsError,
            "needs a masked model",
        ),
        (
            "llama",
            {"target": "none"},
            CorpusError,
            "no column 'none', only 'text', 'label', 'who'",
        ),
    ]
    for base, changed, error, reason in wrong:
        with pytest.raises(error, match=reason):
            audit(bases[base], data, out, **changed)
    assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="holds something else"):
        audit(bases["llama"], data, out)


@pytest.mark.parametrize(
    "fault",
    [pytest.param("no clipping", marks=pytest.mark.long), "noise of another scale"],
)
def test_a_privacy_that_is_not_kept_is_said_first(
    bases, data, tmp_path, monkeypatch, fault
):
    break_trainings(monkeypatch, fault)
    found = audit(
        bases["llama"],
        data,
        tmp_path / "out",
        epsilons=(0.5,),
        clip=1e-3,
        epochs=40,
        canaries=0,
    )
    (row,) = found.summary.to_dicts()
    assert row["epsilon"] == pytest.approx(0.5, abs=0.02)
    assert row["is_contradicted"]
    assert row["epsilon"] < row["epsilon_bound"] <= row["epsilon_ceiling"]
    first, *_ = conclusions(found.summary)
    assert (
        "the accountant of the training gives epsilon 0.50, but an attack shows at"
        " least" in first
    )
    assert first.endswith("the training does not keep what it promises.")


PRIVATE: dict[str, Any] = {"method": "lora", "epsilon": 4.0, "epochs": 3}


def _make(base, out):
    die_saving(2)
    make(base, out, **PRIVATE)


def test_a_private_training_that_was_killed_ends_the_same(bases, tmp_path):
    whole = make(bases["llama"], tmp_path / "whole", **PRIVATE)
    with Forked(_make, bases["llama"], tmp_path / "model") as process:
        pass
    assert process.poll() == -signal.SIGKILL
    said: list[str] = []
    made = make(bases["llama"], tmp_path / "model", said.append, **PRIVATE)
    assert [sentence[:12] for sentence in said] == ["epoch 3 of 3"]
    assert contents(tmp_path / "model") == contents(tmp_path / "whole")
    assert made.privacy is not None
    assert made.privacy == whole.privacy
    assert made.privacy["epsilon"] == pytest.approx(4, abs=0.05)
    # Of 3 epochs of 8 texts, 4 of which are expected in each
    assert made.privacy["steps"] == 6
