"""What a recipe asks of a model: whether it can be tuned, its size, the noise of privacy."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

from mia_batch.errors import SettingsError
from mia_batch.models.weights import check_weights
from mia_batch.recipes import Form, Method, Recipe

if TYPE_CHECKING:
    from dp_accounting import DpEvent

FORMS: dict[Form, tuple[str, str, str | None, str]] = {
    "causal": ("AutoModelForCausalLM", "CAUSAL_LM", "CAUSAL_LM", "a causal language model"),
    "classifier": (
        *("AutoModelForSequenceClassification", "SEQUENCE_CLASSIFICATION", "SEQ_CLS"),
        "a model that classifies texts",
    ),
    "infilling": ("AutoModelForMaskedLM", "MASKED_LM", None, "a masked model"),
    "seq2seq": (
        *("AutoModelForSeq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM", "SEQ_2_SEQ_LM"),
        "an encoder-decoder",
    ),
}
"""Of each form the class and the mapping of transformers, peft's name, and ours."""

_VIRTUAL = ("prefix", "p-tuning", "prompt")
_SHORTEST = 2  # of fewer tokens nothing can be learnt: the first is not predicted


def check_base(base: str, revision: str | None, recipe: Recipe) -> None:
    """Raise `SettingsError` if a model cannot be tuned so; no weights are loaded."""
    import transformers

    _, mapping, _, name = FORMS[recipe.form]
    config = transformers.AutoConfig.from_pretrained(
        base, revision=revision, trust_remote_code=False
    )
    if type(config) not in getattr(transformers, f"MODEL_FOR_{mapping}_MAPPING"):
        raise SettingsError(
            f"{base!r} is of the kind {config.model_type!r}, which is not {name}; give one that is"
        )
    check_weights(base, revision, "logprobs" if recipe.form == "causal" else "any")
    if longest_text(config, recipe) < _SHORTEST:
        raise SettingsError(
            f"the context of {base!r} is too short for {recipe.rank:,} virtual tokens and a text; "
            "take a lower rank"
        )


def longest_text(config: Any, recipe: Recipe) -> int:  # noqa: ANN401 - configurations are of many types
    """Count the tokens of a text that fit beside virtual tokens, and are to be learnt."""
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return recipe.max_tokens
    return min(recipe.max_tokens, int(context) - (recipe.rank if recipe.method in _VIRTUAL else 0))


_ALPHA, _DROPOUT = 16, 0.1  # of LoRA, as in the code of SPV-MIA


def adapted(model: Any, recipe: Recipe) -> Any:  # noqa: ANN401 - models are of many types
    """Put new adapters into a model, which alone are trained; with ``full`` return it as it is."""
    if recipe.method == "full":
        return model
    import peft

    lora = {"r": recipe.rank, "lora_alpha": _ALPHA, "lora_dropout": _DROPOUT}
    virtual: dict[str, Any] = {"num_virtual_tokens": recipe.rank}
    encoder = {"encoder_hidden_size": getattr(model.config.get_text_config(), "hidden_size", None)}
    kinds: dict[Method, tuple[Any, dict[str, Any]]] = {
        "lora": (peft.LoraConfig, lora | {"target_modules": "all-linear"}),
        "ia3": (peft.IA3Config, {}),
        "prefix": (peft.PrefixTuningConfig, virtual),
        "p-tuning": (peft.PromptEncoderConfig, virtual | encoder),
        "prompt": (peft.PromptTuningConfig, virtual),
    }
    kind, settings = kinds[recipe.method]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")  # rightly
            config = kind(task_type=FORMS[recipe.form][2], **settings)
            return peft.get_peft_model(model, config)
    except ValueError as error:  # architectures that peft does not know
        raise SettingsError(
            f"setting 'tuning': {recipe.method} cannot be applied to a {type(model).__name__} "
            f"({error}); take full"
        ) from error


def n_checkpoints(recipe: Recipe) -> int:
    """Count the checkpoints that a training keeps: of the best epoch, and the last.

    P-tuning keeps one more: weights are added to the last after the trainer has removed others.
    """
    return 3 if recipe.method == "p-tuning" else 2


_TRAINED_BYTES = 16  # of a weight that is trained: itself, gradient, two moments, in float32
_FROZEN_BYTES = {True: 2, False: 4}  # on an accelerator, on a CPU


def sizes(base: str, revision: str | None, recipe: Recipe) -> str:
    """Say how many weights are trained, what they take in memory, and on the disk.

    The model is built without its weights. Activations come on top; nobody knows them before.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    check_base(base, revision, recipe)
    config = AutoConfig.from_pretrained(base, revision=revision)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        n_weights = model.num_parameters()
        tuned = adapted(model, recipe)
    trained = sum(each.numel() for each in tuned.parameters() if each.requires_grad)
    kept = again = trained
    if recipe.method == "p-tuning":  # of its encoder what it says is kept, from which none goes on
        kept = tuned.prompt_encoder["default"].embedding.weight.numel()
        again += kept
    frozen = 0 if recipe.method == "full" else n_weights
    memory = frozen * _FROZEN_BYTES[torch.cuda.is_available()] + trained * _TRAINED_BYTES
    checkpoints = n_checkpoints(recipe) * 4 * (2 * trained + again)
    return (
        f"{trained:,} of {n_weights:,} weights, {_gib(memory)} of memory without activations, "
        f"{_gib(4 * kept)} of disk and {_gib(checkpoints)} while it is trained"
    )


def _gib(n_bytes: int) -> str:
    gib = n_bytes / 2**30
    return f"{gib:.1f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"


_TOLERANCE = 1e-3


@cache
def noise_of(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Least noise multiplier with which so many steps keep to (epsilon, delta).

    By privacy loss distributions (Koskela et al. 2020, arXiv:1906.03049; library dp-accounting), of
    Gaussian noise on Poisson-sampled batches, where data sets differ by one record more or less.
    """
    from dp_accounting import ExplicitBracketInterval, calibrate_dp_mechanism
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    def event(noise: float) -> DpEvent:
        return _event(noise, rate, steps)

    # Renyi divergences are fast, and say too much noise, never too little.
    most = calibrate_dp_mechanism(RdpAccountant, event, epsilon, delta, tol=_TOLERANCE)
    near = ExplicitBracketInterval(most / 2, most)
    return float(calibrate_dp_mechanism(PLDAccountant, event, epsilon, delta, near, tol=_TOLERANCE))


def epsilon_of(noise: float, delta: float, rate: float, steps: int) -> float:
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(_event(noise, rate, steps))
    return float(accountant.get_epsilon(delta))


def _event(noise: float, rate: float, steps: int) -> DpEvent:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
