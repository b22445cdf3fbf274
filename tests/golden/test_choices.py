"""DE-COP with a real model: chance on books that it never saw, and with the labels' bias off.

A construction: each passage is one of four variants that differ in words drawn from the
same book, chosen by coin, so that nothing but memory tells it from the others; and the
model was trained on the very questions about the books that it saw, with their answers.
Of the other books it saw nothing: there, each of the four variants is a text once.
Every answer to a question then names one of these texts, so that their mean score is
0.25 for any model, however floats are rounded.
"""

import shutil
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import polars as pl
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from mia_batch.attacks.from_samples import CHOICE_ATTACK, CHOICE_LOGPROB_ATTACKS
from mia_batch.prompts import LABELS, MOST_ORDERS, choices
from tests.checkpoints import BOS_ID, EOS_ID, byte_level_tokenizer, save_tokenizer
from tests.hostile_server import MODEL, HostileServer
from tests.next_token_server import NextTokenModel
from tests.runs import audit, planned
from tests.texts import king_james_books

NAMES = [attack.name for attack in (CHOICE_ATTACK, *CHOICE_LOGPROB_ATTACKS)]
CHANCE = pytest.approx(0.25, abs=0.05)
BOOKS = {
    "The Second Part by Two Scribes": ("part_01", True),
    "The Fourth Part by Four Scribes": ("part_03", True),
    "The Sixth Part by Six Brontë Scribes": ("part_05", False),
    "The Eighth Part by H. G. Scribe": ("part_07", False),
}
"""Titles: part of the text, and whether the model saw it."""
SEEN = [title for title, (_, member) in BOOKS.items() if member]
PASSAGES = 4  # of each book; of one that the model did not see, variants of one passage
_WORDS, _CHANGED, _BETWEEN = 8, 3, 701
_BATCH, _RATE, _WARM_UP = 16, 2e-3, 20
_SURE, _MOST_EPOCHS = 0.05, 200  # it takes about a dozen


def corpus() -> pl.DataFrame:
    """Passages with three variants each, book by book."""
    rng, rows = Random(0), []
    for title, (name, member) in BOOKS.items():
        words = king_james_books()[name].split()
        for number in range(PASSAGES if member else 1):
            start = (number + 3) * _BETWEEN
            passage = words[start : start + _WORDS]
            places = rng.sample(range(_WORDS), _CHANGED)
            drawn = rng.sample(words, 4 * _CHANGED)
            variants = []
            for variant in range(4):
                own = list(passage)
                for place, word in zip(places, drawn[variant::4], strict=True):
                    own[place] = word
                variants.append(" ".join(own))
            for place in [rng.randrange(4)] if member else range(4):
                text, *others = variants[place:] + variants[:place]
                rows.append((f"{name}-{number}-{place}", text, title, member, others))
    names = ["document_id", "text", "group", "member", "paraphrases"]
    return pl.DataFrame(rows, schema=names, orient="row")


def questions(texts: pl.DataFrame) -> pl.DataFrame:
    """The questions about each passage, as a run asks them."""
    targets = texts.rename({"document_id": "target_id", "text": "target"})
    return choices(targets, column="paraphrases", n=MOST_ORDERS)


def save_choosing_model(folder: Path, texts: pl.DataFrame) -> Path:
    """Train a small Llama on the questions about members, and write it with its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    made = questions(texts)
    texts_learnt = [*made["context"], *(f" {label}" for label in LABELS)]
    tokenizer = byte_level_tokenizer(texts_learnt, 2000)
    save_tokenizer(tokenizer, folder)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=256,
        initializer_range=0.05,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    members = texts.filter("member")["document_id"]
    asked = made.filter(pl.col("target_id").is_in(members.implode()))
    ids = [each.ids for each in tokenizer.encode_batch(asked["context"].to_list())]
    labels = [tokenizer.encode(f"x {label}").ids[-1] for label in LABELS]
    right = torch.tensor([labels[index % 4] for index in asked["view_index"]])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        _train(model, ids, right)
    model.save_pretrained(folder)
    return folder


def _train(model: LlamaForCausalLM, ids: list[list[int]], right: torch.Tensor) -> None:
    """Learn the answers, and to end after them, until it is sure on whatever processor."""
    ends = torch.tensor([len(each) - 1 for each in ids])
    width = max(map(len, ids)) + 1
    padded = torch.tensor([each + [EOS_ID] * (width - len(each)) for each in ids])
    padded[torch.arange(len(ids)), ends + 1] = right

    def losses(some: torch.Tensor) -> torch.Tensor:
        hidden, row = (
            model.model(padded[some]).last_hidden_state,
            torch.arange(len(some)),
        )
        found = model.lm_head(
            torch.cat([hidden[row, ends[some]], hidden[row, ends[some] + 1]])
        )
        wanted = torch.cat([right[some], torch.full((len(some),), EOS_ID)])
        return cross_entropy(found, wanted, reduction="none")

    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimizer, 1 / _WARM_UP, total_iters=_WARM_UP
    )
    for _ in range(_MOST_EPOCHS):
        for some in torch.randperm(len(ids)).split(_BATCH):
            optimizer.zero_grad()
            losses(some).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        with torch.inference_mode():
            if losses(torch.arange(len(ids))).max() < _SURE:
                return
    msg = f"the model is not sure of its answers after {_MOST_EPOCHS} epochs"
    raise AssertionError(msg)


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> tuple[pl.DataFrame, Path]:
    texts = corpus()
    torch.set_num_threads(1)
    return texts, save_choosing_model(tmp_path_factory.mktemp("taught"), texts)


def request(
    folder: Path, texts: pl.DataFrame, model: Path, **settings: Any
) -> dict[str, Any]:
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
    bare = texts[:1].with_columns(
        document_id=pl.lit("bare"), text=pl.lit("a b"), paraphrases=None
    )
    folder = tmp_path_factory.mktemp("choices")
    asked = request(folder, pl.concat([texts, bare]), model)
    foreseen = planned(asked)
    return asked, foreseen, audit(**asked)


def test_every_question_is_foreseen_and_books_that_the_model_saw_stand_above_chance(
    audited,
):
    _, foreseen, run = audited
    n = 24 * PASSAGES * len(BOOKS)
    assert foreseen["prompts"] == f"{n:,}"
    assert foreseen["target choice"].startswith(f"{n:,} forward passes, ")
    assert run["samples"].height == run.manifest.passes["target choice"] == n
    books = {
        row["key"]: row
        for row in run["rollup"].filter(level="group").iter_rows(named=True)
    }
    assert books.keys() == {*BOOKS}
    for title, row in books.items():
        assert (row["attack"], row["n_scored"]) == ("decop_v1", PASSAGES)
        assert row["mean"] > 0.9 if title in SEEN else row["mean"] == CHANCE


@pytest.mark.parametrize("name", NAMES)
def test_every_attack_tells_them_apart(audited, name: str):
    _, _, run = audited
    (row,) = (
        run["metrics"]
        .filter(attack=name, metric="roc_auc", slice="all")
        .iter_rows(named=True)
    )
    assert (row["n_members"], row["n_unscored"]) == (2 * PASSAGES, 1)
    assert row["value"] >= 0.75  # of four variants at most one has as much as a member
    known, others = (
        run["scores"].filter(member=member)[name] for member in (True, False)
    )
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
    given = (
        run["findings"].filter(check="prompts").select("statistic", "value", "verdict")
    )
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


def test_one_that_always_says_a_is_at_chance_until_its_preference_is_taken_off(
    taught, tmp_path
):
    texts, model = taught
    biased = shutil.copytree(model, tmp_path / "biased")
    _prefer_a(biased, texts)
    found = audit(**request(tmp_path, texts, biased))
    assert {*found["samples"]["candidate"]} == {" A"}
    for name in ("decop_v1", "decop_logprob_v1"):
        assert {*found["scores"][name]} == {0.25}
    known, others = (found["scores"].filter(member=member) for member in (True, False))
    assert fmean(known["decop_log_calibrated_v1"]) > 0.9
    # Where A is nearly certain, part is lost: at least one order of a label is above
    # its mean.
    assert fmean(known["decop_calibrated_v1"]) > 0.3
    for name in (
        "decop_log_calibrated_v1",
        "decop_calibrated_v1",
        "decop_probability_v1",
    ):
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
        states = torch.stack(
            [model.model(each["input_ids"])[0][0, -2:] for each in answered]
        )
        question, answer = states.unbind(1)
        logits = model.lm_head(question)
        nats = float((logits.max(1).values - logits[:, label]).max()) + 4
        wanted = torch.tensor([[nats], [0.0]]).repeat_interleave(len(asked), 0)
        fitted = torch.linalg.lstsq(torch.cat([question, answer]), wanted).solution
        model.lm_head.weight[label] += fitted[:, 0]
    model.save_pretrained(folder)
