"""Bases that models are tuned from: which can be, how long their texts, what is tuned of them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mia_batch.errors import SettingsError
from mia_batch.models.weights import check_weights
from mia_batch.recipes import Form, Method, Recipe

FORMS: dict[Form, tuple[str, str, str | None, str]] = {
    "causal": ("CausalLM", "CAUSAL_LM", "CAUSAL_LM", "a causal language model"),
    "classifier": (
        "SequenceClassification",
        "SEQUENCE_CLASSIFICATION",
        "SEQ_CLS",
        "a classifier",
    ),
    "infilling": ("MaskedLM", "MASKED_LM", None, "a masked model"),
    "seq2seq": (
        "Seq2SeqLM",
        "SEQ_TO_SEQ_CAUSAL_LM",
        "SEQ_2_SEQ_LM",
        "an encoder-decoder",
    ),
}
"""Of each form the class after ``AutoModelFor``, transformers' mapping, peft's name, and ours."""
_VIRTUAL = ("prefix", "p-tuning", "prompt")
_SHORTEST = 2  # of fewer tokens nothing can be learnt: the first is not predicted


def check_base(base: str, revision: str | None, recipe: Recipe) -> None:
    import transformers

    _, mapping, _, name = FORMS[recipe.form]
    where: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(base, **where)
    if type(config) not in getattr(transformers, f"MODEL_FOR_{mapping}_MAPPING"):
        kind = f"{base!r} is of the kind {config.model_type!r}"
        raise SettingsError(f"{kind}, which is not {name}; give one that is")
    check_weights(base, revision, "logprobs" if recipe.form == "causal" else "any")
    if longest_text(config, recipe) < _SHORTEST:
        raise SettingsError(
            f"the context of {base!r} is too short for {recipe.rank:,} virtual tokens"
            " and a text; take a lower rank"
        )


def longest_text(config: Any, recipe: Recipe) -> int:
    """Count the tokens of a text that fit next to virtual tokens, and are to be learnt."""
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return recipe.max_tokens
    return min(
        recipe.max_tokens,
        int(context) - (recipe.rank if recipe.method in _VIRTUAL else 0),
    )


_ALPHA, _DROPOUT = 16, 0.1  # of LoRA, as in the code of SPV-MIA


def adapted(model: Any, recipe: Recipe) -> Any:
    if recipe.method == "full":
        return model
    import peft

    virtual: dict[str, Any] = {"num_virtual_tokens": recipe.rank}
    encoder = {
        "encoder_hidden_size": getattr(
            model.config.get_text_config(), "hidden_size", None
        )
    }
    lora = {"r": recipe.rank, "lora_alpha": _ALPHA, "lora_dropout": _DROPOUT}
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
            # rightly
            warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
            config = kind(task_type=FORMS[recipe.form][2], **settings)
            return peft.get_peft_model(model, config)
    except ValueError as error:  # architectures that peft does not know
        raise SettingsError(
            f"tuning: {recipe.method} cannot be applied to a {type(model).__name__} "
            f"({error}); take full"
        ) from error


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
    """What is said of each text, such as its label; None, and none at all: the text is learnt."""
