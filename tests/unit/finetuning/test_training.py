"""Tiny models, really trained: what comes out is what was learnt."""

import json
import random
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.trainer_callback import CallbackHandler

from mia_batch.errors import EngineError
from mia_batch.evidence.engines.registry import load_engine
from mia_batch.evidence.request import Answer, EngineSpec
from mia_batch.extras.tune.base import add_adapter
from mia_batch.extras.tune.jobs import describe_size, train_or_load
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import read_adapter
from mia_batch.observer import Observer
from mia_batch.recipes import Method
from tests.adapters import save_gpt2
from tests.checkpoints import TEXTS
from tests.engine_conformance import text_request
from tests.tuning import LEARNT, contents, make, making, recipe

METHODS = get_args(Method)
pytestmark = pytest.mark.usefixtures("one_thread")

BASES = ["llama", "gpt2"]
RATES = {
    "lora": 1e-2,
    "ia3": 3e-2,
    "prefix": 0.3,
    "p-tuning": 1e-2,
    "prompt": 1.0,
    "full": 3e-3,
}


@pytest.fixture(scope="module")
def bases(checkpoint, tmp_path_factory):
    return {"llama": checkpoint, "gpt2": save_gpt2(tmp_path_factory.mktemp("gpt2"))}


@pytest.fixture(scope="module")
def tune_once(bases, tmp_path_factory):
    """A function that makes a model of a base with a method, the second time from memory."""
    folder = tmp_path_factory.mktemp("made")

    @cache
    def tune_base(base, method):
        model_folder = folder / f"{base}-{method}"
        return make(
            bases[base],
            model_folder,
            method=method,
            epochs=6,
            learning_rate=RATES[method],
        )

    return tune_base


@torch.inference_mode()
def plain(model, token_ids):
    """Log-probability of each token but the first, by peft and transformers alone."""
    adapter = read_adapter(str(model))
    loaded = AutoModelForCausalLM.from_pretrained(adapter.base if adapter else model)
    if adapter:
        loaded = PeftModel.from_pretrained(loaded, model)
    logits = loaded.eval()(input_ids=torch.tensor([token_ids])).logits[0]
    logprobs = logits[-len(token_ids) : -1].double().log_softmax(-1)
    return logprobs[range(len(token_ids) - 1), token_ids[1:]].numpy()


def engine_says(model, texts):
    """Log-probabilities of the tokens of each text."""
    engine = load_engine(
        EngineSpec(engine="transformers", kind="logprobs", model=str(model))
    )
    for number, token_ids in enumerate(texts):
        engine.submit(text_request(number, token_ids))
    answers: list[Answer] = []
    while len(answers) < len(texts):
        answers += engine.step()
    answers.sort(key=lambda answer: answer.request_id)
    return [(answer.tokens or {})["logprob"] for answer in answers]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", METHODS)
def test_what_was_learnt_is_what_an_engine_is_asked(base, method, bases, tune_once):
    base_contents = contents(bases[base])
    model = tune_once(base, method)
    losses = [row["loss"] for row in model.losses]
    assert len(losses) == 6
    assert min(losses[-2:]) < losses[0] - 0.01
    texts = Tokenizer.load(str(bases[base])).encode_prompts(LEARNT)
    by_model = engine_says(model.path, texts)
    by_base = engine_says(bases[base], texts)
    np.testing.assert_allclose(
        by_model[0], plain(model.path, texts[0]), rtol=1e-4, atol=1e-4
    )
    assert np.abs(by_model[0] - by_base[0]).max() > 0.01
    of_model, of_base = np.concatenate(by_model), np.concatenate(by_base)
    assert of_model.mean() > of_base.mean()  # they were learnt
    assert contents(bases[base]) == base_contents
    assert not model.path.with_name(f".{model.path.name}.work").exists()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", METHODS)
def test_sizes_are_those_of_the_built_model(
    base, method, bases, tune_once, monkeypatch
):
    model = AutoModelForCausalLM.from_pretrained(bases[base])
    n_weights = model.num_parameters()
    trained = add_adapter(model, recipe(method=method))
    n = sum(tensor.numel() for tensor in trained.parameters() if tensor.requires_grad)
    assert n > 0
    monkeypatch.setattr("mia_batch.extras.tune.jobs._gib", str)
    sentence = describe_size(str(bases[base]), None, recipe(method=method))
    assert sentence.startswith(f"{n:,} of {n_weights:,} weights, ")
    (path,) = tune_once(base, method).path.glob("*.safetensors")
    n_bytes = sum(tensor.nbytes for tensor in load_file(path).values())
    assert f"activations, {n_bytes} of disk" in sentence
    checkpoints, n_extra = (
        (3, 4 * n) if method == "p-tuning" else (2, 0)
    )  # to go on from
    assert sentence.endswith(
        f"and {checkpoints * (8 * n + n_bytes + n_extra)} while it is trained"
    )


@pytest.mark.parametrize("method", ["lora", "p-tuning", "full"])
def test_the_best_epoch_is_kept_and_training_stops_after_it(method, bases, tmp_path):
    """A rate so high that held-out texts get worse at once: more epochs change nothing."""
    hot = {"method": method, "learning_rate": 0.3, "held_out": 0.25, "seed": 3}
    hot |= {"patience": 2, "epochs": 9}
    messages: list[str] = []
    model = make(bases["llama"], tmp_path / "model", messages.append, **hot)
    held_out = [row["held_out_loss"] for row in model.losses]
    best = held_out.index(min(held_out))
    assert len(held_out) == min(9, best + 3)
    *_, best_message = messages
    assert (len(messages), best_message.split(",")[0]) == (
        len(held_out) + 1,
        f"epoch {best + 1} is kept",
    )
    token_ids = Tokenizer.load(str(bases["llama"])).encode_prompts(
        _held_out(LEARNT, seed=3)
    )
    losses = [-plain(model.path, [*ids, 1][:32]) for ids in token_ids]
    expected = np.concatenate(losses).mean()
    assert expected == pytest.approx(held_out[best], rel=1e-3)


def _held_out(texts, *, seed):
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)
    return [texts[number] for number in order[:2]]


@pytest.mark.parametrize(
    ("base", "rate", "reason"),
    [
        ("llama", 1e-40, "moved no weight; take a higher learning rate"),
        ("gpt2", 1e38, "no numbers any more; take a lower learning rate"),
    ],
)
def test_training_that_comes_to_nothing_fails(base, rate, reason, bases, tmp_path):
    with pytest.raises(EngineError, match=reason):
        make(bases[base], tmp_path / "model", method="full", learning_rate=rate)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_a_constant_learning_rate_stays_and_a_linear_one_falls_to_0(
    schedule, bases, tmp_path, monkeypatch
):
    logged: list[float] = []

    def log(handler, args, state, control, logs):
        if "learning_rate" in logs:
            logged.append(logs["learning_rate"])
        return CallbackHandler.call_event(
            handler, "on_log", args, state, control, logs=logs
        )

    monkeypatch.setattr(CallbackHandler, "on_log", log)
    rate: dict[str, Any] = {"learning_rate": 1e-3, "epochs": 3, "method": "full"}
    make(bases["llama"], tmp_path / "model", schedule=schedule, **rate)
    recorded = json.loads((tmp_path / "model" / "training.json").read_text())
    if schedule == "constant":
        assert logged == [1e-3] * 3
        assert recorded["made_from"]["recipe"]["schedule"] == "constant"
    else:
        assert 1e-3 > logged[0] > logged[1] > logged[2]
        assert "schedule" not in recorded["made_from"]["recipe"]


class Steps(Observer):
    """Keeps what it hears of steps."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def working(self, what: str, *, done: int, total: int, unit: str) -> None:
        self.heard.append((what, done, total, unit))

    def worked(self, units: int, tokens: int) -> None:
        self.heard.append((units, tokens))

    def work_ended(self) -> None:
        self.heard.append(("ended",))


def test_each_step_of_all_is_reported(bases, tmp_path):
    steps = Steps()
    config = making(bases["llama"], epochs=2)
    train_or_load(config, tmp_path / "model", lambda _: None, steps)
    n_steps = config.recipe.steps(len(config.texts))
    assert steps.heard == [
        ("tuning", 0, n_steps, "step"),
        *n_steps * [(1, 0)],
        ("ended",),
    ]


def test_texts_are_cut_to_what_the_context_holds(bases, tmp_path):
    long = [" ".join(text.split())[:2500] for text in TEXTS if len(text) > 2600][:4]
    for method in ("full", "p-tuning", "prefix"):
        settings: dict[str, Any] = {
            "texts": long,
            "method": method,
            "max_tokens": 9999,
            "epochs": 1,
        }
        assert make(bases["gpt2"], tmp_path / method, **settings).losses[0]["loss"] > 0
