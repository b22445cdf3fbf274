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


def open_model(bases, base, form, method):
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


def sum_one_by_one(model, form, batch, clip):
    """Sum the gradients of texts, each differentiated alone and cut."""
    weights = {
        name: tensor
        for name, tensor in model.named_parameters()
        if tensor.requires_grad
    }
    sums = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    total = 0.0
    for row in range(batch["labels"].shape[0]):
        inputs = {name: value[row : row + 1] for name, value in batch.items()}
        labels = inputs.pop("labels")
        if form == "seq2seq":
            inputs["labels"] = labels.clamp(min=0)
        loss = training.mean_losses(form, model(**inputs).logits, labels)[0]
        gradients: Any = torch.autograd.grad(
            loss, [*weights.values()], allow_unused=True
        )
        gradient_by_name = {
            name: tensor
            for name, tensor in zip(weights, gradients, strict=True)
            if tensor is not None
        }
        norm = torch.stack(
            [tensor.norm() for tensor in gradient_by_name.values()]
        ).norm()
        for name, tensor in gradient_by_name.items():
            sums[name] += tensor * min(1.0, clip / norm)
        total += float(loss.detach())
    return sums, total / batch["labels"].shape[0]


@pytest.mark.parametrize(("base", "form", "method"), CLIPPED)
# Attention text by text is slow
@pytest.mark.filterwarnings("ignore::UserWarning:transformers")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_each_text_is_cut_by_itself(bases, base, form, method):
    model, batch = open_model(bases, base, form, method)
    for clip in (1e-3, 1e3):  # each is cut, none is
        expected, mean = sum_one_by_one(model, form, batch, clip)
        largest = max(float(tensor.abs().max()) for tensor in expected.values())
        sums, loss = training.clipped_sums(model, form, batch, clip, at_once=2)
        assert float(loss) == pytest.approx(mean, rel=1e-4)
        assert sums.keys() == expected.keys()
        assert any(bool(tensor.any()) for tensor in sums.values())
        for name, tensor in sums.items():
            assert torch.allclose(tensor, expected[name], atol=1e-4 * largest), name


def test_no_batch_is_no_gradient_and_one_that_is_no_number_ends_the_training(bases):
    model, _ = open_model(bases, "llama", "causal", "lora")
    sums, loss = training.clipped_sums(
        model, "causal", training.pad_rows([]), 1.0, at_once=2
    )
    assert not any(bool(tensor.any()) for tensor in sums.values())
    assert float(loss) == 0
    model, batch = open_model(bases, "llama", "causal", "full")
    with torch.no_grad():
        next(model.parameters())[0, 0] = torch.nan
    with pytest.raises(EngineError, match="the gradient of a text is no number"):
        training.clipped_sums(model, "causal", batch, 1.0, at_once=2)


def test_each_row_comes_by_a_coin_of_its_own():
    batches = training.PoissonBatches(200, 0.1, 500, seed=3)
    drawn_batches = [*batches]
    is_taken = np.zeros((500, 200), bool)
    for place, rows in enumerate(drawn_batches):
        is_taken[place, rows] = True
    assert len(batches) == 500
    assert is_taken.mean() == pytest.approx(0.1, abs=3 * (0.09 / is_taken.size) ** 0.5)
    sizes = is_taken.sum(1)  # binomial: batches of one size would be a permutation
    assert sizes.var() == pytest.approx(200 * 0.1 * 0.9, rel=0.25)
    assert [*batches] == drawn_batches  # of one epoch
    batches.epoch = 1
    assert [*batches] != drawn_batches


def test_the_accountant_agrees_with_another_and_its_noise_is_the_least():
    from opacus.accountants import PRVAccountant

    other_accountant = PRVAccountant()
    other_accountant.history = [(1.2, 0.05, 60)]
    epsilon = training.compute_epsilon(1.2, 1e-5, 0.05, 60)
    assert epsilon == pytest.approx(other_accountant.get_epsilon(1e-5), abs=0.03)
    noise = training.find_noise_multiplier(2.0, 1e-5, 0.1, 40)
    assert 1.98 < training.compute_epsilon(noise, 1e-5, 0.1, 40) <= 2.0 + 1e-2
    assert training.compute_epsilon(0.97 * noise, 1e-5, 0.1, 40) > 2.0
