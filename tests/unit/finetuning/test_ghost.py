"""Norms of gradients of texts without these gradients, by hand; and when they are not believed."""

import pytest
import torch
from torch import nn

from mia_batch.finetuning import ghost as ghost_module
from mia_batch.finetuning.ghost import why_no_ghost
from tests.unit.finetuning.test_private import bases, opened

__all__ = ["bases"]


def norms(modules, weights, loss_of, n_rows):
    """Norm of the gradient of each text, of layers that are called by hand."""
    uses = ghost_module._Uses(weights, n_rows)
    with uses.seen_in(nn.ModuleList(modules)):
        loss = loss_of()
    return uses.norms(loss).tolist()


def test_tokens_of_a_text_are_added_before_the_norm_is_taken():
    layer = nn.Linear(2, 1)
    given = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [1.0, 0.0]]])
    slopes = torch.tensor([[1.0, 3.0], [1.0, -1.0]])
    weights = dict(layer.named_parameters())
    found = norms([layer], weights, lambda: (slopes * layer(given)[..., 0]).sum(1), 2)
    # Weight: 1 (1, 0) + 3 (0, 2) = (1, 6); bias: 1 + 3. Of the other text all cancels.
    assert found == pytest.approx([(1 + 36 + 16) ** 0.5, 0])


def test_a_tied_weight_has_one_gradient():
    embedding, head = nn.Embedding(2, 1), nn.Linear(1, 2, bias=False)
    head.weight = embedding.weight
    with torch.no_grad():
        embedding.weight.copy_(torch.tensor([[2.0], [3.0]]))
    ids = torch.tensor([[0], [0]])

    def loss_of():
        """w0 w0 of the first text, w0 w1 of the second."""
        return head(embedding(ids))[:, 0].gather(1, torch.tensor([[0], [1]]))[:, 0]

    found = norms([embedding, head], {"weight": embedding.weight}, loss_of, 2)
    # (2 w0, 0) and (w1, w0); uses taken apart would have norms of 8 ** 0.5 and 13 ** 0.5.
    assert found == pytest.approx([4, 13**0.5])


def test_positions_that_all_texts_share_are_theirs_each():
    embedding = nn.Embedding(3, 1)
    slopes = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    def loss_of():
        return (slopes * embedding(torch.tensor([[0, 1]]))[..., 0]).sum(1)

    weights = {"weight": embedding.weight}
    assert norms([embedding], weights, loss_of, 2) == pytest.approx([5**0.5, 5])


def first_two(bases, base, form, method):
    model, batch = opened(bases, base, form, method)
    return model, form, {name: each[:2] for name, each in batch.items()}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_it_is_taken_where_it_is_text_by_text(bases):
    model, *rest = first_two(bases, "gpt2", "causal", "full")
    before = {name: each.clone() for name, each in model.state_dict().items()}
    assert why_no_ghost(model, *rest) is None
    assert model.training
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_bias_of_all_texts_has_no_axis_of_texts(bases):
    found = why_no_ghost(*first_two(bases, "t5", "seq2seq", "full"))
    assert found == "a layer of the type Embedding has no axis of texts"


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_rule_that_is_wrong_is_found_out(bases, monkeypatch):
    def wrong(module, given, slope):
        left, right = ghost_module._linear(module, given, slope)
        return 1.01 * left, right

    given = first_two(bases, "llama", "causal", "lora")
    with monkeypatch.context() as patch:
        patch.setitem(ghost_module._FACTORS, nn.Linear, wrong)
        assert why_no_ghost(*given) == "both ways differ"
    assert why_no_ghost(*given) is None
