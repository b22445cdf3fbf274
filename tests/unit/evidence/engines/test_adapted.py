"""Adapters as models of the transformers engine, against merged models and slow references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mia_batch.errors import EngineError
from mia_batch.evidence.engines.registry import load_engine
from mia_batch.evidence.request import Decoding, EngineSpec
from tests.adapters import (
    VIRTUAL_TOKENS,
    save_adapter,
    save_gpt2,
    save_merged,
    slow_greedy,
    slow_logprobs,
)
from tests.checkpoints import BOS_ID, CONTEXT
from tests.engine_conformance import exact_logprobs, ids, prompts, request, text_request, texts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mia_batch.evidence.request import Answer, EvidenceKind, Request

pytestmark = pytest.mark.usefixtures("one_thread")

GREEDY = Decoding(temperature=0)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gpt2(tmp_path_factory.mktemp("gpt2"))


def answered(model: Path, kind: EvidenceKind, asked: Sequence[Request]) -> list[Answer]:
    engine = load_engine(
        EngineSpec(engine="transformers", kind=kind, model=str(model), decoding=GREEDY)
    )
    for each in asked:
        engine.submit(each)
    found: dict[int, Answer] = {}
    while len(found) < len(asked):
        found |= {answer.request_id: answer for answer in engine.step()}
    assert [answer.error for answer in found.values() if answer.error] == []
    return [found[each.request_id] for each in asked]


def logprobs(model: Path, asked: Sequence[list[int]]) -> list[Any]:
    requests = [text_request(i, token_ids) for i, token_ids in enumerate(asked)]
    return [(answer.tokens or {})["logprob"] for answer in answered(model, "logprobs", requests)]


def greedy(model: Path, asked: Sequence[list[int]]) -> list[list[int]]:
    requests = [request(i, prompt, max_tokens=12) for i, prompt in enumerate(asked)]
    return [ids(answer.continuations[0]) for answer in answered(model, "samples", requests)]


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
def test_an_adapter_says_what_the_merged_model_says_and_not_what_the_base_says(
    checkpoint: Path, tmp_path: Path, kind: str
):
    adapter = save_adapter(tmp_path / kind, checkpoint, kind)
    merged = save_merged(tmp_path / "merged", checkpoint, adapter)
    asked = texts(12)
    for token_ids, found in zip(asked, logprobs(adapter, asked), strict=True):
        own = (range(len(token_ids) - 1), token_ids[1:])
        np.testing.assert_allclose(
            found, exact_logprobs(merged, token_ids)[own], rtol=1e-5, atol=1e-5
        )
        assert np.abs(found - exact_logprobs(checkpoint, token_ids)[own]).max() > 0.1
    starts = prompts(6)
    assert greedy(adapter, starts) == greedy(merged, starts) != greedy(checkpoint, starts)


@pytest.mark.parametrize("model", ["checkpoint", "gpt2"])
@pytest.mark.parametrize("kind", ["prefix", "p-tuning", "prompt"])
def test_virtual_tokens_stand_before_every_text_and_are_none_of_it(
    request: pytest.FixtureRequest, tmp_path: Path, model: str, kind: str
):
    base = request.getfixturevalue(model)
    adapter = save_adapter(tmp_path / kind, base, kind)
    full = [BOS_ID, *[50] * (CONTEXT - VIRTUAL_TOKENS - 1)]
    asked = [*texts(8), full]
    for token_ids, found in zip(asked, logprobs(adapter, asked), strict=True):
        expected = slow_logprobs(base, adapter, token_ids)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    apart = np.concatenate(logprobs(adapter, asked)) - np.concatenate(logprobs(base, asked))
    assert np.abs(apart).mean() > 0.1
    starts = prompts(5)
    assert greedy(adapter, starts) == [slow_greedy(base, adapter, each, 12) for each in starts]


@pytest.mark.parametrize("kind", ["samples", "logprobs"])
def test_virtual_tokens_take_their_place_of_the_context(
    checkpoint: Path, tmp_path: Path, kind: EvidenceKind
):
    adapter = save_adapter(tmp_path / "prefix", checkpoint, "prefix")
    spec = EngineSpec(engine="transformers", kind=kind, model=str(adapter))
    engine = load_engine(spec)
    room = CONTEXT - VIRTUAL_TOKENS
    assert engine.info.max_model_len == room
    engine.submit(
        text_request(0, [BOS_ID, *[50] * room])
        if kind == "logprobs"
        else request(0, [BOS_ID, *[50] * (room - 1)])
    )
    (answer,) = engine.step()
    assert answer.error is not None
    assert f"context of {room}" in answer.error


def test_an_adapter_without_a_tokenizer_has_its_base_s(checkpoint: Path, tmp_path: Path):
    adapter = save_adapter(tmp_path / "bare", checkpoint, tokenizer=False)
    whole = save_adapter(tmp_path / "whole", checkpoint)
    assert greedy(adapter, prompts(2)) == greedy(whole, prompts(2))


def test_weights_cut_short_or_with_a_broken_header_are_named(checkpoint: Path, tmp_path: Path):
    adapter = save_adapter(tmp_path / "lora", checkpoint)
    file = adapter / "adapter_model.safetensors"
    whole = file.read_bytes()
    flipped = bytes([*whole[:9], whole[9] ^ 0xFF, *whole[10:]])
    for broken in (whole[:-100], whole[:4], b"", flipped):
        file.write_bytes(broken)
        with pytest.raises(EngineError, match=r"lora' cannot be put on .*; save it again, or corr"):
            logprobs(adapter, texts(1))


def test_memory_holds_the_base_once(checkpoint: Path, tmp_path: Path):
    """The adapter is beside the base's weights and not merged: they stay what they are."""
    from mia_batch.evidence.engines.pretrained import load_pretrained

    adapter = save_adapter(tmp_path / "lora", checkpoint)
    spec = EngineSpec(engine="transformers", kind="logprobs", model=str(adapter))
    loaded = dict(load_pretrained(spec).model.named_parameters())
    for name, weights in load_file(checkpoint / "model.safetensors").items():
        before, _, last = name.rpartition(".")
        kept = loaded.get(name, loaded.get(f"{before}.base_layer.{last}"))
        assert kept is not None
        assert torch.equal(kept, weights)
