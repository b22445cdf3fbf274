"""Chunked logits of tiny random models of many architectures, against the models' own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from mia_batch.errors import EngineError
from mia_batch.evidence.engines.transformers import ChunkedLogits
from tests.architectures import ARCHITECTURES, made

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

pytestmark = pytest.mark.usefixtures("one_thread")


def text(n_tokens: int, step: int = 7) -> Tensor:
    return torch.arange(3, 3 + step * n_tokens, step)[None] % 600


@torch.inference_mode()
def own_logits(model: PreTrainedModel, token_ids: Tensor) -> Tensor:
    logits: Tensor = model(token_ids).logits[0]
    return logits


@torch.inference_mode()
def in_chunks(model: PreTrainedModel, token_ids: Tensor, places: Tensor, most: int = 8) -> Tensor:
    return torch.cat(list(ChunkedLogits(model).chunks(token_ids, places, most)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_padded_text_has_the_logits_that_the_model_gives_it_alone(architecture: str):
    model = made(architecture, **ARCHITECTURES[architecture])
    long, short = text(60), text(25, step=11)
    padded = torch.cat([short, torch.zeros((1, 35), dtype=torch.long)], dim=1)
    found = in_chunks(model, torch.cat([long, padded]), torch.arange(60, 85))
    torch.testing.assert_close(found, own_logits(model, short), rtol=1e-4, atol=1e-4)


def test_the_model_itself_stays_as_it_was():
    model = made("Llama")
    before = own_logits(model, text(20))
    in_chunks(model, text(20), torch.arange(20))
    torch.testing.assert_close(own_logits(model, text(20)), before, rtol=0, atol=0)


def test_a_model_that_cannot_be_taken_apart_runs_whole(monkeypatch: pytest.MonkeyPatch):
    model = made("Llama")
    monkeypatch.setattr(model, "get_decoder", lambda: model.model.layers[0])
    logits = ChunkedLogits(model)
    assert not logits.may_batch
    found = in_chunks(model, text(30), torch.arange(4, 30))
    torch.testing.assert_close(found, own_logits(model, text(30))[4:], rtol=1e-4, atol=1e-4)


def test_a_head_that_gives_other_logits_is_not_used(monkeypatch: pytest.MonkeyPatch):
    model = made("Llama")
    whole = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:  # scales by the length of the text
        output = whole(*args, **kwargs)
        n_tokens = (args[0] if args else kwargs["input_ids"]).shape[1]
        output.logits = output.logits * (1 if n_tokens > 8 else 2)
        return output

    monkeypatch.setattr(model, "forward", forward)
    assert not ChunkedLogits(model).may_batch


def test_a_model_that_only_gives_all_logits_at_once_is_an_error(monkeypatch: pytest.MonkeyPatch):
    model = made("Llama")
    whole = model.forward
    monkeypatch.setattr(model, "get_decoder", lambda: model.model.layers[0])
    monkeypatch.setattr(model, "forward", lambda ids, use_cache: whole(ids, use_cache=use_cache))
    with pytest.raises(EngineError, match=r"a LlamaForCausalLM in parts \(.*\); take engine vllm"):
        ChunkedLogits(model)


@pytest.mark.parametrize(("kind", "may_pad"), [("longrope", False), ("default", True)])
def test_texts_are_not_padded_where_embeddings_depend_on_the_longest(kind: str, may_pad: bool):
    scaled = {
        "short_factor": [1.0] * 16,
        "long_factor": [2.0] * 16,
        "original_max_position_embeddings": 64,
        "factor": 4.0,
    }
    rope = {"rope_type": kind, "rope_theta": 10000.0, **(scaled if kind == "longrope" else {})}
    assert ChunkedLogits(made("Phi3", rope_parameters=rope)).may_pad is may_pad
