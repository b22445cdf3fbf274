"""The model that a fine-tuning starts from: whether it can be tuned, and how long its texts are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mia_batch.errors import SettingsError
from mia_batch.models.weights import check_weights

if TYPE_CHECKING:
    from mia_batch.finetuning.recipe import Recipe

__all__ = ["check_base", "longest_text"]

_VIRTUAL = ("prefix", "p-tuning", "prompt")
_NAMES = {
    "causal": "a causal language model",
    "classifier": "a model that classifies texts",
    "infilling": "a masked model",
    "seq2seq": "an encoder-decoder",
}
_SHORTEST = 2  # of fewer tokens nothing can be learnt: the first is not predicted


def check_base(base: str, revision: str | None, recipe: Recipe) -> None:
    """Raise `SettingsError` if a model cannot be tuned so; no weights are loaded."""
    import transformers

    mappings = {
        "causal": transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        "classifier": transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        "infilling": transformers.MODEL_FOR_MASKED_LM_MAPPING,
        "seq2seq": transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    }
    config = transformers.AutoConfig.from_pretrained(
        base, revision=revision, trust_remote_code=False
    )
    if type(config) not in mappings[recipe.form]:
        msg = (
            f"{base!r} is of the kind {config.model_type!r}, which is not {_NAMES[recipe.form]}; "
            "give one that is"
        )
        raise SettingsError(msg)
    check_weights(base, revision, "logprobs" if recipe.form == "causal" else "any")
    if longest_text(config, recipe) < _SHORTEST:
        msg = (
            f"the context of {base!r} is too short for {recipe.rank:,} virtual tokens and a text; "
            "take a lower rank"
        )
        raise SettingsError(msg)


def longest_text(config: Any, recipe: Recipe) -> int:  # noqa: ANN401 - configurations are of many types
    """Count the tokens of a text that fit beside virtual tokens, and are to be learnt."""
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return recipe.max_tokens
    return min(recipe.max_tokens, int(context) - (recipe.rank if recipe.method in _VIRTUAL else 0))
