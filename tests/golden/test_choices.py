"""DE-COP with a real model: chance on books that it never saw, and with the labels' bias off.

Of a passage that the model never saw, each of four variants is a text once, and every answer names
one of the four: their mean is chance for any model, but for answers that floats decide.
"""

from __future__ import annotations

import shutil
from statistics import fmean
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import torch

from mia_batch.attacks.from_samples import CHOICE_ATTACK, CHOICE_LOGPROB_ATTACKS
from mia_batch.pipeline import plan
from mia_batch.settings import load_settings
from tests.choosing import BOOKS, PASSAGES, corpus, questions, save_choosing_model
from tests.hostile_server import MODEL, HostileServer
from tests.next_token_server import NextTokenModel
from tests.runs import audit

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [attack.name for attack in (CHOICE_ATTACK, *CHOICE_LOGPROB_ATTACKS)]
CHANCE = pytest.approx(0.25, abs=0.05)
SEEN = [title for title, (_, member) in BOOKS.items() if member]


@pytest.fixture(scope="module")
def taught(shared_data, tmp_path_factory) -> tuple[pl.DataFrame, Path]:
    texts = corpus(shared_data / "books")
    torch.set_num_threads(1)
    return texts, save_choosing_model(tmp_path_factory.mktemp("taught"), texts)


def request(folder: Path, texts: pl.DataFrame, model: Path, **settings: Any) -> dict[str, Any]:
    texts.write_parquet(folder / "passages.parquet")
    usual = {
        "input": str(folder / "passages.parquet"),
        "model": str(model),
        "out": str(folder / "run"),
        "engine": "transformers",
        "attacks": NAMES,
        "primary": "decop_v1",
        "paraphrases_column": "paraphrases",
    }
    return usual | settings


@pytest.fixture(scope="module")
def audited(taught, tmp_path_factory):
    """Settings, what was foreseen, and the run; one text more has no paraphrases."""
    texts, model = taught
    lacking = texts[:1].with_columns(
        document_id=pl.lit("lacking"), text=pl.lit("a b"), paraphrases=None
    )
    folder = tmp_path_factory.mktemp("choices")
    asked = request(folder, pl.concat([texts, lacking]), model)
    foreseen = dict(plan(load_settings(asked)))
    return asked, foreseen, audit(**asked)


def test_the_plan_foresees_every_question(audited):
    _, foreseen, run = audited
    n = 24 * PASSAGES * len(BOOKS)
    assert foreseen["prompts"] == f"{n:,}"
    assert foreseen["target choice"] == f"{n:,} forward passes"
    assert run["samples"].height == run.manifest.passes["target choice"] == n


def test_books_that_the_model_saw_stand_above_chance_and_the_others_at_it(audited):
    _, _, run = audited
    books = {row["key"]: row for row in run["rollup"].filter(level="group").iter_rows(named=True)}
    assert books.keys() == {*BOOKS}
    for title, row in books.items():
        assert (row["attack"], row["n_scored"]) == ("decop_v1", PASSAGES)
        assert row["mean"] > 0.9 if title in SEEN else row["mean"] == CHANCE


@pytest.mark.parametrize("name", NAMES)
def test_every_attack_tells_them_apart(audited, name: str):
    _, _, run = audited
    (row,) = run["metrics"].filter(attack=name, metric="roc_auc", slice="all").iter_rows(named=True)
    assert (row["n_members"], row["n_unscored"]) == (2 * PASSAGES, 1)
    assert row["value"] >= 0.75  # of four variants at most one has as much as a member
    known, others = (run["scores"].filter(member=member)[name] for member in (True, False))
    assert known.min() > 0.9
    assert others.mean() == CHANCE


def test_a_text_without_paraphrases_is_unscored_with_the_reason(audited):
    _, _, run = audited
    why = dict(run["unscored"].select("attack", "reason").iter_rows())
    assert why.keys() == {*NAMES}
    assert all("paraphrases" in reason for reason in why.values())


def test_the_same_command_asks_nothing_more_and_the_run_says_what_was_given(audited):
    asked, _, run = audited
    before = run.path("scores").read_bytes()
    again = audit(**asked)
    assert again.path("scores").read_bytes() == before
    assert again.manifest.passes == run.manifest.passes
    given = run["findings"].filter(check="prompts").select("statistic", "value", "verdict")
    found = {name: (value, verdict) for name, value, verdict in given.iter_rows()}
    n = 24 * PASSAGES * len(BOOKS)
    assert found["n_answers"] == (n, "question_and_text")
    assert found["n_unread"] == (0, "question_and_text")


def test_an_endpoint_gives_the_same_log_probabilities(taught, audited, tmp_path):
    texts, model = taught
    asked = request(
        tmp_path, texts[::PASSAGES], model, attacks="decop_probability_v1", primary=None
    )
    asked |= {"model": MODEL, "tokenizer": str(model), "choice_orders": 4}
    with HostileServer(NextTokenModel(model)) as server:
        run = audit(**asked | {"engine": "openai", "base_url": server.url})
    key = ["target_id", "view_index"]
    rows = run["logprobs"].join(audited[2]["logprobs"], on=key, suffix="_here")
    assert rows.height == 4 * len(BOOKS)
    for found, here in rows.select("logprob", "logprob_here").iter_rows():
        assert found == pytest.approx(here, abs=1e-4)


def test_one_that_always_says_a_is_at_chance_until_its_preference_is_taken_off(taught, tmp_path):
    texts, model = taught
    biased = shutil.copytree(model, tmp_path / "biased")
    _prefer_a(biased, texts)
    found = audit(**request(tmp_path, texts, biased))
    assert {*found["samples"]["candidate"]} == {" A"}
    for name in ("decop_v1", "decop_logprob_v1"):
        assert {*found["scores"][name]} == {0.25}
    known, others = (found["scores"].filter(member=member) for member in (True, False))
    assert fmean(known["decop_log_calibrated_v1"]) > 0.9
    # Where A is nearly certain, part is lost: at least one order of a label is above its mean.
    assert fmean(known["decop_calibrated_v1"]) > 0.3
    for name in ("decop_log_calibrated_v1", "decop_calibrated_v1", "decop_probability_v1"):
        assert others[name].mean() == CHANCE


def _prefer_a(folder: Path, texts: pl.DataFrame) -> None:
    """Raise A above all else by the same number of nats in every question, and not after it.

    By least squares, so nearly the same.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (
        kind.from_pretrained(folder) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    (label,) = tokenizer(" A", add_special_tokens=False)["input_ids"]
    asked = questions(texts)["context"].unique(maintain_order=True)
    answered = (tokenizer(f"{each} A", return_tensors="pt") for each in asked)
    with torch.inference_mode():
        states = torch.stack([model.model(each["input_ids"])[0][0, -2:] for each in answered])
        question, answer = states.unbind(1)
        logits = model.lm_head(question)
        nats = float((logits.max(1).values - logits[:, label]).max()) + 4
        wanted = torch.tensor([[nats], [0.0]]).repeat_interleave(len(asked), 0)
        fitted = torch.linalg.lstsq(torch.cat([question, answer]), wanted).solution
        model.lm_head.weight[label] += fitted[:, 0]
    model.save_pretrained(folder)
