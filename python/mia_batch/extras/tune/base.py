"""Bases that models are tuned from: which can be, how long their texts, what is tuned of them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mia_batch.errors import SettingsError
from mia_batch.models.weights import check_weights
from mia_batch.recipes import Form, Method, Recipe


class FormNames(NamedTuple):
    """How libraries, and sentences to the user, call the models of a form."""

    auto_class: str  # after transformers' ``AutoModelFor``
    mapping: str  # in the name of transformers' mapping from configurations
    peft_task: str | None
    description: str


FORMS: dict[Form, FormNames] = {
    "causal": FormNames(
        auto_class="CausalLM",
        mapping="CAUSAL_LM",
        peft_task="CAUSAL_LM",
        description="a causal language model",
    ),
    "answer": FormNames(
        auto_class="CausalLM",
        mapping="CAUSAL_LM",
        peft_task="CAUSAL_LM",
        description="a causal language model",
    ),
    "classifier": FormNames(
        auto_class="SequenceClassification",
        mapping="SEQUENCE_CLASSIFICATION",
        peft_task="SEQ_CLS",
        description="a classifier",
    ),
    "infilling": FormNames(
        auto_class="MaskedLM",
        mapping="MASKED_LM",
        peft_task=None,
        description="a masked model",
    ),
    "seq2seq": FormNames(
        auto_class="Seq2SeqLM",
        mapping="SEQ_TO_SEQ_CAUSAL_LM",
        peft_task="SEQ_2_SEQ_LM",
        description="an encoder-decoder",
    ),
}
_VIRTUAL = ("prefix", "p-tuning", "prompt")  # methods that learn virtual tokens
_SHORTEST = 2  # of fewer tokens nothing can be learnt: the first is not predicted


def check_base(base: str, revision: str | None, recipe: Recipe) -> None:
    """Check that a base has the recipe's form, its weights, and room for texts."""
    import transformers

    form = FORMS[recipe.form]
    config = transformers.AutoConfig.from_pretrained(
        base, revision=revision, trust_remote_code=False
    )
    if type(config) not in getattr(transformers, f"MODEL_FOR_{form.mapping}_MAPPING"):
        raise SettingsError(
            f"{base!r} is of the kind {config.model_type!r}, which is not"
            f" {form.description}; give one that is"
        )
    is_decoder = recipe.form in ("causal", "answer")
    check_weights(base, revision, "logprobs" if is_decoder else "any")
    if max_text_tokens(config, recipe) < _SHORTEST:
        raise SettingsError(
            f"the context of {base!r} is too short for {recipe.rank:,} virtual tokens"
            " and a text; take a lower rank"
        )


def max_text_tokens(config: Any, recipe: Recipe) -> int:
    """Count the tokens of a text that fit next to virtual tokens, and are to be learnt."""
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return recipe.max_tokens
    n_virtual = recipe.rank if recipe.method in _VIRTUAL else 0
    return min(recipe.max_tokens, int(context) - n_virtual)


_ALPHA = 16  # of LoRA, as in the code of SPV-MIA
_DROPOUT = 0.1  # likewise


def add_adapter(model: Any, recipe: Recipe) -> Any:
    """Return the model with the adapter that is trained; with all weights, as it is."""
    if recipe.method == "full":
        return model
    import peft

    text_config = model.config.get_text_config()
    virtual: dict[str, Any] = {"num_virtual_tokens": recipe.rank}
    encoder = {"encoder_hidden_size": getattr(text_config, "hidden_size", None)}
    lora = {
        "r": recipe.rank,
        "lora_alpha": _ALPHA,
        "lora_dropout": _DROPOUT,
        "target_modules": "all-linear",
    }
    adapters: dict[Method, tuple[Any, dict[str, Any]]] = {
        "lora": (peft.LoraConfig, lora),
        "ia3": (peft.IA3Config, {}),
        "prefix": (peft.PrefixTuningConfig, virtual),
        "p-tuning": (peft.PromptEncoderConfig, virtual | encoder),
        "prompt": (peft.PromptTuningConfig, virtual),
    }
    config_class, settings = adapters[recipe.method]
    try:
        with warnings.catch_warnings():
            # Peft sets it rightly
            warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
            config = config_class(task_type=FORMS[recipe.form].peft_task, **settings)
            return peft.get_peft_model(model, config)
    except ValueError as error:  # architectures that peft does not know
        raise SettingsError(
            f"tuning: {recipe.method} cannot be applied to a {type(model).__name__} "
            f"({error}); take full"
        ) from error


def count_trained_weights(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def n_checkpoints(recipe: Recipe) -> int:
    """Count the checkpoints that a training keeps: of the best epoch, and the last."""
    # P-tuning adds weights to the last after the trainer has removed others.
    return 3 if recipe.method == "p-tuning" else 2


@dataclass(frozen=True, kw_only=True)
class TrainingTexts:
    """What a model is tuned from: a base, texts and a recipe."""

    base: str
    revision: str | None
    texts: Sequence[str]
    recipe: Recipe
    targets: Sequence[str | None] = ()
    """Label or answer of each text; None, or no targets: the text itself is learnt.

    Of the form ``answer`` they alone are learnt, and a text is what stands before one,
    with all special tokens spelt out.
    """
