"""How a model is fine-tuned: base, method, sizes and the privacy that is paid."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from hashlib import blake2b
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_type_hints

from pydantic import Field

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dp_accounting import DpEvent

Method: TypeAlias = Literal["lora", "ia3", "prefix", "p-tuning", "prompt", "full"]
Form: TypeAlias = Literal["causal", "classifier", "infilling", "seq2seq"]
"""What a model is tuned to do; `mia_batch.finetuning.training` says what of a text it learns."""


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


def _setting(default: object, description: str, **limits: float) -> Any:  # noqa: ANN401 - as pydantic's Field
    return field(default=default, metadata={"description": description, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a fine-tuning; most say themselves what they are.

    Of ``held_out`` texts, drawn with the seed, the loss is measured after each epoch, and the epoch
    of the lowest is kept; 0: none, and the last epoch is kept. ``form`` is what the model is tuned
    to do, ``labels`` are the classes of a ``classifier`` in the order of its outputs. ``epsilon``
    is of adding or removing one text, None plain training; of a text that is given k times it can
    be k times as much, and delta more.

    Raises
    ------
    SettingsError
        If texts are held out of a training with privacy, which would look at them without noise.
    """

    method: Method = _setting("lora", "What is tuned: adapters, or all weights.")
    epochs: int = _setting(4, "Most passes over the texts.", ge=1, le=1000)
    learning_rate: float = _setting(1e-4, "Learning rate of AdamW, at its highest.", gt=0, le=1)
    batch_size: int = _setting(16, "Texts of one step.", ge=1, le=65_536)
    max_tokens: int = _setting(512, "Most tokens of a text that are learnt.", ge=2, le=1_000_000)
    held_out: float = _setting(0.0, "Share of the texts for early stopping; 0: none.", ge=0, le=0.9)
    patience: int = _setting(1, "Epochs without a lower loss on held-out texts.", ge=1)
    seed: int = 0
    rank: int = _setting(
        64, "Rank of LoRA; virtual tokens of prefix, prompt and P-tuning.", ge=1, le=1024
    )
    form: Form = "causal"
    labels: list[str] = field(default_factory=list)
    epsilon: float | None = _setting(
        None, "Train with differential privacy (DP-SGD), to this privacy loss.", ge=0.01, le=1000
    )
    delta: float = _setting(1e-5, "Probability that the loss is exceeded.", gt=0, le=0.1)
    clip: float = _setting(0.1, "Norm to which the gradient of a text is cut.", gt=0, le=1e6)

    def __post_init__(self) -> None:
        if self.epsilon is not None and self.held_out:
            raise SettingsError(
                "early stopping looks at held-out texts, which epsilon does not protect; take 0"
            )

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    def n_held_out(self, n_texts: int) -> int:
        """Count the texts that are not learnt; at least one where any are, and one is left."""
        return max(0, min(ceil(self.held_out * n_texts), n_texts - 1))

    def steps(self, n_texts: int) -> int:
        """Count the steps of all epochs."""
        return self.epochs * ceil((n_texts - self.n_held_out(n_texts)) / self.batch_size)


RECIPES = {
    # Fu et al. 2024 (arXiv:2311.06062), section 5.1; rank, alpha and dropout of the authors' code.
    "reference": Recipe(),
    "finetune": Recipe(epochs=10, held_out=0.1),  # its targets
    # Li et al. 2024 (arXiv:2311.04044), section 4.4.
    "privacy": Recipe(method="full", epochs=5, batch_size=1024, max_tokens=256, rank=15),
    # A small decoder without knowledge, which stops at the lowest held-out loss.
    "inverter": Recipe(
        method="full", epochs=40, learning_rate=4e-3, max_tokens=64, held_out=0.1, patience=3
    ),
    # A decoder that knows the language, as in GEIA and PrivLM-Bench.
    "decoder": Recipe(method="full", epochs=5, learning_rate=3e-5, batch_size=8, max_tokens=64),
}
"""Defaults: of the references of an audit, and of each command that tunes models."""


def recipe_field(name: str, recipe: str = "reference") -> Any:  # noqa: ANN401 - as pydantic's Field
    """Describe a field of `Recipe`: its type, limits and text, with the default of a recipe."""
    (known,) = (each.metadata for each in fields(Recipe) if each.name == name)
    found: Any = Field(getattr(RECIPES[recipe], name), **known)
    found.annotation = get_type_hints(Recipe)[name]
    return found


_BYTES = 64
MOST_SHADOWS = 2 * 8 * _BYTES
"""Shadow models that have halves of their own."""


def in_half(names: Sequence[str], shadow: int, seed: int) -> list[bool]:
    """Say of each text whether a shadow model learns it.

    Models 2j and 2j + 1 share the texts out between them by a fair coin: bit j of a hash of seed
    and name. So each text is in exactly half of an even number of models, as in online LiRA
    (Carlini et al. 2022, arXiv:2112.03570, algorithm 1), and further models change none of the
    earlier. Texts of one name go together.
    """
    pair, second = divmod(shadow, 2)
    place, bit = divmod(pair, 8)
    key = str(seed).encode()
    hashes = (blake2b(name.encode(), key=key[:_BYTES], digest_size=_BYTES) for name in names)
    return [bool(found.digest()[place] >> bit & 1) != bool(second) for found in hashes]


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
    from mia_batch.models.weights import check_weights

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
    return (
        f"{trained:,} of {n_weights:,} weights, {_gib(memory)} of memory without activations, "
        f"{_gib(4 * kept)} of disk and {_gib(2 * 4 * (2 * trained + again))} while it is trained"
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
