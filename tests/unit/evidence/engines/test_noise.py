"""Noise on embeddings, against Algorithm 1 of SPV-MIA written with plain transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mia_batch.evidence.engines.transformers import TransformersLogprobs
from mia_batch.evidence.process import EngineProcess, LocalSource
from mia_batch.evidence.request import EngineSpec, Request
from mia_batch.models.tokens import Tokenizer
from tests.adapters import save_adapter, save_gpt2
from tests.checkpoints import TEXTS
from tests.engine_conformance import text_request, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from numpy.typing import NDArray

pytestmark = pytest.mark.usefixtures("one_thread")

SIGMA = 0.3
Values = dict[int, "NDArray[Any]"]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gpt2(tmp_path_factory.mktemp("gpt2"))


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
def test_log_probabilities_are_those_of_algorithm_1(request: pytest.FixtureRequest, model: str):
    folder = request.getfixturevalue(model)
    pairs = [replace(each, noise=sign * each.noise) for each in noisy(10) for sign in (1, -1)]
    asked = [replace(each, request_id=number) for number, each in enumerate(pairs)]
    ask = started(folder)
    plain = ask(replace(each, noise=0.0) for each in asked)
    for each, found in zip(asked, ask(asked).values(), strict=True):
        expected = algorithm_1(folder, each)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        if len(found) > 1:  # noise on the last token moves nothing
            assert np.abs(found - plain[each.request_id]).max() > 1e-3


def test_the_first_text_token_is_given_before_any_noise(checkpoint: Path):
    ask = started(checkpoint)
    for each in noisy(6):
        with_noise, without = ask([each]), ask([replace(each, noise=0.0)])
        first = with_noise[each.request_id][0], without[each.request_id][0]
        np.testing.assert_allclose(*first, rtol=1e-5, atol=1e-5)


def test_noise_depends_on_the_request_alone(checkpoint: Path):
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


def test_small_noise_of_both_signs_moves_log_probabilities_both_ways(gpt2: Path):
    """The first derivative cancels: what remains is of the second order."""
    ask = started(gpt2)
    sums = {sign: np.concatenate(list(ask(noisy(10, sign * 1e-3)).values())) for sign in (1, 0, -1)}
    away = np.abs(sums[1] - sums[0]).mean()
    both = np.abs((sums[1] + sums[-1]) / 2 - sums[0]).mean()
    assert 0 < both < 0.05 * away


def test_texts_without_noise_get_the_same_bits_beside_texts_with_it(checkpoint: Path):
    plain = noisy(12, 0.0)
    others = [replace(each, request_id=100 + each.request_id) for each in noisy(12)]
    mixed = [each for pair in zip(plain, others, strict=True) for each in pair]
    ask = started(checkpoint)
    expected, found = ask(plain), ask(mixed)
    for each in plain:
        assert np.array_equal(found[each.request_id], expected[each.request_id])


@pytest.mark.parametrize("kind", ["lora", "prefix", "p-tuning"])
def test_adapters_hear_the_noise_too(checkpoint: Path, tmp_path: Path, kind: str):
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


def test_texts_reach_the_engine_with_their_noise_and_pieces_have_their_own(
    checkpoint: Path, tmp_path: Path
):
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
