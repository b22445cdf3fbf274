"""Adapters, noise on embeddings, and one engine that answers as several adapters."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from mia_batch.errors import EngineError
from mia_batch.evidence.engines.registry import can_turn, load_engine
from mia_batch.evidence.engines.transformers import TransformersLogprobs
from mia_batch.evidence.process import EngineProcess, KeptEngine, LocalSource
from mia_batch.evidence.request import Answer, Decoding, EngineSpec, EvidenceKind, Request
from mia_batch.models.tokens import Tokenizer
from tests.adapters import (
    KINDS,
    VIRTUAL_TOKENS,
    save_adapter,
    save_gpt2,
    save_merged,
    slow_greedy,
    slow_logprobs,
)
from tests.checkpoints import BOS_ID, CONTEXT, TEXTS
from tests.engine_conformance import (
    exact_logprobs,
    ids,
    prompts,
    request,
    text_request,
    texts,
    token_values,
)
from tests.processes import is_alive

pytestmark = pytest.mark.usefixtures("one_thread")
GREEDY = Decoding(temperature=0)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
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
    checkpoint, tmp_path, kind
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
def test_virtual_tokens_stand_before_every_text_and_are_none_of_it(request, tmp_path, model, kind):
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
def test_virtual_tokens_take_their_place_of_the_context(checkpoint, tmp_path, kind):
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


def test_an_adapter_without_a_tokenizer_has_its_base_s(checkpoint, tmp_path):
    adapter = save_adapter(tmp_path / "bare", checkpoint, tokenizer=False)
    whole = save_adapter(tmp_path / "whole", checkpoint)
    assert greedy(adapter, prompts(2)) == greedy(whole, prompts(2))


def test_weights_cut_short_or_with_a_broken_header_are_named(checkpoint, tmp_path):
    adapter = save_adapter(tmp_path / "lora", checkpoint)
    file = adapter / "adapter_model.safetensors"
    whole = file.read_bytes()
    flipped = bytes([*whole[:9], whole[9] ^ 0xFF, *whole[10:]])
    for broken in (whole[:-100], whole[:4], b"", flipped):
        file.write_bytes(broken)
        with pytest.raises(EngineError, match=r"lora' cannot be put on .*; save it again, or corr"):
            logprobs(adapter, texts(1))


def test_memory_holds_the_base_once(checkpoint, tmp_path):
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


# Noise on embeddings, against Algorithm 1 of SPV-MIA written with plain transformers.

SIGMA = 0.3
Values = dict[int, "NDArray[Any]"]


def started(model: Path, **changes: Any) -> Callable[[Iterable[Request]], Values]:
    """Start an engine; what it says of all requests at once."""
    engine = TransformersLogprobs(
        EngineSpec(engine="transformers", kind="logprobs", model=str(model), **changes)
    )

    def ask(asked: Iterable[Request]) -> Values:
        waiting = list(asked)
        for each in waiting:
            engine.submit(each)
        found: Values = {}
        while len(found) < len(waiting):
            for answer in engine.step():
                assert answer.error is None
                found[answer.request_id] = (answer.tokens or {})["logprob"]
        return dict(sorted(found.items()))

    return ask


@torch.inference_mode()
def algorithm_1(model: Path, request: Request) -> NDArray[Any]:
    """Log-probabilities of one text whose embeddings are E(id(x)) + z, z ~ N(0, sigma^2 I)."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    matrix = loaded.get_input_embeddings().weight
    context, text = request.context_ids or [], request.text_ids or []
    sigma = abs(request.noise) * matrix.numpy().std()
    z = np.random.default_rng(request.seed).normal(0.0, sigma, size=(len(text), matrix.shape[1]))
    embedded = matrix[torch.tensor([*context, *text])].clone()
    for place in range(len(text)):
        moved = torch.from_numpy(z[place])
        embedded[len(context) + place] += moved if request.noise > 0 else -moved
    logits = loaded(inputs_embeds=embedded[None]).logits[0].log_softmax(-1)
    places = range(len(context) - 1, len(context) + len(text) - 1)
    values: NDArray[Any] = logits[places, text].numpy()
    return values


def noisy(n: int, noise: float = SIGMA) -> list[Request]:
    """Ask for texts of many lengths, after contexts of one or four tokens."""
    return [
        text_request(i, ids, first=1 if i % 2 else min(4, len(ids) - 1), noise=noise, seed=1000 + i)
        for i, ids in enumerate(texts(n))
    ]


@pytest.mark.parametrize("model", ["checkpoint", "gpt2"])
def test_log_probabilities_are_those_of_algorithm_1(request, model):
    folder = request.getfixturevalue(model)
    pairs = [replace(each, noise=sign * each.noise) for each in noisy(10) for sign in (1, -1)]
    asked = [replace(each, request_id=number) for number, each in enumerate(pairs)]
    ask = started(folder)
    plain = ask(replace(each, noise=0.0) for each in asked)
    for each, found in zip(asked, ask(asked).values(), strict=True):
        expected = algorithm_1(folder, each)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        first = found[0], plain[each.request_id][0]  # it is given before any noise
        np.testing.assert_allclose(*first, rtol=1e-5, atol=1e-5)
        if len(found) > 1:  # noise on the last token moves nothing
            assert np.abs(found - plain[each.request_id]).max() > 1e-3


def test_noise_depends_on_the_request_alone(checkpoint):
    asked = noisy(12)
    together = started(checkpoint)(asked)
    ask = started(checkpoint, engine_args={"batch_size": 2})
    turned = ask(asked[::-1])
    for each in asked:
        alone = ask([each])[each.request_id]
        for other in (together, turned):
            np.testing.assert_allclose(other[each.request_id], alone, rtol=1e-5, atol=1e-5)
    again = ask([replace(asked[5], seed=7)])[asked[5].request_id]
    assert np.abs(again - together[asked[5].request_id]).max() > 1e-3


def test_small_noise_of_both_signs_moves_log_probabilities_both_ways(gpt2):
    """The first derivative cancels: what remains is of the second order."""
    ask = started(gpt2)
    sums = {sign: np.concatenate(list(ask(noisy(10, sign * 1e-3)).values())) for sign in (1, 0, -1)}
    away = np.abs(sums[1] - sums[0]).mean()
    both = np.abs((sums[1] + sums[-1]) / 2 - sums[0]).mean()
    assert 0 < both < 0.05 * away


def test_texts_without_noise_get_the_same_bits_beside_texts_with_it(checkpoint):
    plain = noisy(12, 0.0)
    others = [replace(each, request_id=100 + each.request_id) for each in noisy(12)]
    mixed = [each for pair in zip(plain, others, strict=True) for each in pair]
    ask = started(checkpoint)
    expected, found = ask(plain), ask(mixed)
    for each in plain:
        assert np.array_equal(found[each.request_id], expected[each.request_id])


@pytest.mark.parametrize("kind", ["lora", "prefix", "p-tuning"])
def test_adapters_hear_the_noise_too(checkpoint, tmp_path, kind):
    """As the same embeddings without the engine: peft's own forward pass takes them."""
    from peft import PeftModel

    adapter = save_adapter(tmp_path / kind, checkpoint, kind)
    base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    matrix = base.get_input_embeddings().weight.detach()
    model = PeftModel.from_pretrained(base, str(adapter)).eval()
    for each, found in zip(noisy(6), started(adapter)(noisy(6)).values(), strict=True):
        context, text = each.context_ids or [], each.text_ids or []
        z = np.random.default_rng(each.seed).standard_normal((len(text), matrix.shape[1]))
        embedded = matrix[[*context, *text]].clone()
        embedded[len(context) :] += SIGMA * matrix.numpy().std() * torch.from_numpy(z).float()
        with torch.inference_mode():
            logits = model(inputs_embeds=embedded[None]).logits[0, -len(embedded) :].double()
        own = logits.log_softmax(-1)[range(len(context) - 1, len(embedded) - 1), text]
        np.testing.assert_allclose(found, own, rtol=2e-5, atol=2e-5)


def test_texts_reach_the_engine_with_their_noise_and_pieces_have_their_own(checkpoint, tmp_path):
    tokenizer = Tokenizer.load(str(checkpoint))
    long = " ".join(" ".join(TEXTS).split()[:250])
    spec = EngineSpec(engine="transformers", kind="logprobs", model=str(checkpoint))
    with EngineProcess.start(spec, log=tmp_path / "engine.log") as engine:
        source = LocalSource(engine, tokenizer, strides=True)
        source.submit(Request(request_id=0, kind="logprobs", text=long, noise=SIGMA, seed=65536))
        (answer,) = source.results()
    special, _, ids = tokenizer.encode_after("", long)
    room = engine.info.max_model_len - len(special)
    assert len(ids) > room
    for start in range(0, len(ids), room):
        piece = Request(
            request_id=0,
            kind="logprobs",
            context_ids=special,
            text_ids=ids[start : start + room],
            noise=SIGMA,
            seed=65536 + start,
        )
        found: Any = (answer.tokens or {})["logprob"][start : start + room]
        np.testing.assert_allclose(found, algorithm_1(checkpoint, piece), rtol=1e-5, atol=1e-5)


# One engine that answers as several adapters of one base, one after the other.

ASKED = texts(6)
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"batch_size": 1},
    "vllm": {"kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 1},
}
"""Texts by themselves: what stands in a batch changes the last digits."""


def spec(model: Path, engine: str = "transformers") -> EngineSpec:
    return EngineSpec(engine=engine, kind="logprobs", model=str(model), engine_args=ENGINES[engine])


def said(engine: EngineProcess) -> list[Any]:
    found = token_values(engine, (text_request(i, each) for i, each in enumerate(ASKED)))
    return [found[i]["logprob"] for i in range(len(ASKED))]


def alone(given: EngineSpec, log: Path) -> list[Any]:
    with EngineProcess.start(given, log=log) as engine:
        return said(engine)


def same(one: list[Any], other: list[Any]) -> bool:
    return all(map(np.array_equal, one, other))


@pytest.fixture
def log(tmp_path):
    return tmp_path / "engine.log"


def assert_same_as_alone(engine: str, kind: str, checkpoint: Path, folder: Path) -> None:
    log = folder / "engine.log"
    specs = [
        spec(save_adapter(folder / str(seed), checkpoint, kind, seed=seed), engine)
        for seed in (1, 2)
    ]
    expected = [alone(each, log) for each in specs]
    assert not same(*expected)
    with closing(KeptEngine()) as kept:
        pids: set[int] = set()
        for number in (0, 1, 0):
            assert kept.serves(specs[number]) == bool(pids)
            with kept.lent(specs[number], log, keep=True) as process:
                assert same(said(process), expected[number])
                pids.add(process._process.pid)
    (pid,) = pids
    assert not is_alive(pid)


FEW = ("lora", "prefix")  # of weights, and of virtual tokens


@pytest.mark.parametrize(
    "kind",
    [*FEW, *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind not in FEW)],
)
def test_answers_are_those_of_an_engine_each_to_the_bit(kind, checkpoint, tmp_path):
    assert_same_as_alone("transformers", kind, checkpoint, tmp_path)


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_answers_of_vllm_are_those_of_an_engine_each_to_the_bit(checkpoint, tmp_path):
    assert_same_as_alone("vllm", "lora", checkpoint, tmp_path)


def test_what_is_no_adapter_of_the_same_kind_starts_an_engine(checkpoint, tmp_path):
    one, other = (save_adapter(tmp_path / str(seed), checkpoint, seed=seed) for seed in (1, 2))
    assert can_turn(spec(one), spec(other))
    changes: list[dict[str, Any]] = [{"dtype": "float16"}, {"kind": "samples"}, {"engine": "vllm"}]
    for changed in changes:
        assert not can_turn(spec(one), replace(spec(other), **changed))
    samples = replace(spec(one), kind="samples")
    assert not can_turn(samples, replace(samples, model=str(other)))
    assert not can_turn(spec(one), spec(checkpoint))
    assert not can_turn(spec(checkpoint), spec(one))
    assert not can_turn(spec(one), spec(save_adapter(tmp_path / "ia3", checkpoint, "ia3")))


def test_an_engine_that_was_turned_and_ends_is_started_as_what_it_was(checkpoint, tmp_path, log):
    one, other = (save_adapter(tmp_path / str(seed), checkpoint, seed=seed) for seed in (1, 2))
    expected = alone(spec(other), log)
    with closing(KeptEngine()) as kept:
        with kept.lent(spec(one), log, keep=True) as first:
            pass
        with kept.lent(spec(other), log, keep=True) as engine:
            assert engine is first
            os.kill(engine._process.pid, signal.SIGKILL)
            with pytest.raises(EngineError, match="was killed"):
                said(engine)
            engine.restart()
            assert same(said(engine), expected)
            os.kill(engine._process.pid, signal.SIGKILL)
        with kept.lent(spec(one), log, keep=False) as engine:  # which lives no more
            assert engine is not first
        assert not kept.serves(spec(other))


def test_a_damaged_adapter_is_named_as_at_a_start(checkpoint, tmp_path, log):
    one, other = (save_adapter(tmp_path / str(seed), checkpoint, seed=seed) for seed in (1, 2))
    file = other / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with closing(KeptEngine()) as kept:
        with kept.lent(spec(one), log, keep=True) as engine:
            pass
        with (
            pytest.raises(EngineError, match=r"the adapter .* cannot be put on"),
            kept.lent(spec(other), log, keep=True),
        ):
            pytest.fail("it was started")
        assert not is_alive(engine._process.pid)
        assert not kept.serves(spec(one))
