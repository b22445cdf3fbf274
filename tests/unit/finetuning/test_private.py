"""DP-SGD against algorithm 1 of Abadi et al. 2016, written out, and against other libraries."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from mia_batch.errors import EngineError
from mia_batch.extras.tune import training
from mia_batch.extras.tune.base import add_adapter
from mia_batch.recipes import Recipe
from tests.bases import save_bases
from tests.tuning import LEARNT

BASES = [
    ("llama", "causal"),
    ("gpt2", "causal"),
    ("bert", "classifier"),
    ("bert", "infilling"),
    ("t5", "seq2seq"),
]
METHODS = ("full", "lora", "ia3", "prefix", "p-tuning", "prompt")
_MASKED_METHODS = (
    "full",
    "lora",
    "ia3",
)  # peft has no virtual tokens for masked models
CLIPPED = [
    (base, form, method)
    for base, form in BASES
    for method in (_MASKED_METHODS if form == "infilling" else METHODS)
]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    return save_bases(tmp_path_factory.mktemp("bases"))


def opened(bases, base, form, method):
    """Return a model with adapters that are not 0, without dropout, and a batch."""
    torch.manual_seed(1)
    head = {"num_labels": 2} if form == "classifier" else {}
    model = training.model_class(form).from_pretrained(
        bases[base], attn_implementation="eager", **head
    )
    model = add_adapter(model, Recipe(method=method, form=form, rank=3))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):  # T5's attention
            module.dropout = 0.0
    tokenizer = AutoTokenizer.from_pretrained(bases[base])
    row_of = training.build_encoder(form, tokenizer, 24, ("a", "b"))
    targets = ["a", "b", "a", "b", "b"]
    rows = [
        row_of(text, target) for text, target in zip(LEARNT[:5], targets, strict=True)
    ]
    return model.train(), training.pad_rows(rows)


def one_by_one(model, form, batch, clip):
    """Sum the gradients of texts, each differentiated alone and cut."""
    weights = {
        name: each for name, each in model.named_parameters() if each.requires_grad
    }
    sums = {name: torch.zeros_like(each) for name, each in weights.items()}
    total = 0.0
    for row in range(batch["labels"].shape[0]):
        given = {name: value[row : row + 1] for name, value in batch.items()}
        labels = given.pop("labels")
        if form == "seq2seq":
            given["labels"] = labels.clamp(min=0)
        loss = training.mean_losses(form, model(**given).logits, labels)[0]
        found: Any = torch.autograd.grad(loss, [*weights.values()], allow_unused=True)
        there = {
            name: each
            for name, each in zip(weights, found, strict=True)
            if each is not None
        }
        norm = torch.stack([each.norm() for each in there.values()]).norm()
        for name, each in there.items():
            sums[name] += each * min(1.0, clip / norm)
        total += float(loss.detach())
    return sums, total / batch["labels"].shape[0]


@pytest.mark.parametrize(("base", "form", "method"), CLIPPED)
# Attention text by text is slow
@pytest.mark.filterwarnings("ignore::UserWarning:transformers")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_each_text_is_cut_by_itself(bases, base, form, method):
    model, batch = opened(bases, base, form, method)
    for clip in (1e-3, 1e3):  # each is cut, none is
        wanted, mean = one_by_one(model, form, batch, clip)
        largest = max(float(each.abs().max()) for each in wanted.values())
        found, loss = training.clipped_sums(model, form, batch, clip, at_once=2)
        assert float(loss) == pytest.approx(mean, rel=1e-4)
        assert found.keys() == wanted.keys()
        assert any(bool(each.any()) for each in found.values())
        for name, each in found.items():
            assert torch.allclose(each, wanted[name], atol=1e-4 * largest), name


def test_no_batch_is_no_gradient_and_one_that_is_no_number_ends_the_training(bases):
    model, _ = opened(bases, "llama", "causal", "lora")
    found, loss = training.clipped_sums(
        model, "causal", training.pad_rows([]), 1.0, at_once=2
    )
    assert not any(bool(each.any()) for each in found.values())
    assert float(loss) == 0
    model, batch = opened(bases, "llama", "causal", "full")
    with torch.no_grad():
        next(model.parameters())[0, 0] = torch.nan
    with pytest.raises(EngineError, match="the gradient of a text is no number"):
        training.clipped_sums(model, "causal", batch, 1.0, at_once=2)


def test_each_row_comes_by_a_coin_of_its_own():
    batches = training.PoissonBatches(200, 0.1, 500, seed=3)
    drawn = [*batches]
    taken = np.zeros((500, 200), bool)
    for place, rows in enumerate(drawn):
        taken[place, rows] = True
    assert len(batches) == 500
    assert taken.mean() == pytest.approx(0.1, abs=3 * (0.09 / taken.size) ** 0.5)
    sizes = taken.sum(1)  # binomial: batches of one size would be a permutation
    assert sizes.var() == pytest.approx(200 * 0.1 * 0.9, rel=0.25)
    assert [*batches] == drawn  # of one epoch
    batches.epoch = 1
    assert [*batches] != drawn


def test_the_accountant_agrees_with_another_and_its_noise_is_the_least():
    from opacus.accountants import PRVAccountant

    other = PRVAccountant()
    other.history = [(1.2, 0.05, 60)]
    found = training.compute_epsilon(1.2, 1e-5, 0.05, 60)
    assert found == pytest.approx(other.get_epsilon(1e-5), abs=0.03)
    noise = training.find_noise_multiplier(2.0, 1e-5, 0.1, 40)
    assert 1.98 < training.compute_epsilon(noise, 1e-5, 0.1, 40) <= 2.0 + 1e-2
    assert training.compute_epsilon(0.97 * noise, 1e-5, 0.1, 40) > 2.0
