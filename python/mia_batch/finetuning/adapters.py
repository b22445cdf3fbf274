"""What is tuned of a model: adapters of one kind, or all weights."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from mia_batch.finetuning.recipe import Recipe

__all__ = ["adapted"]

_ALPHA, _DROPOUT = 16, 0.1  # of LoRA, as in the code of SPV-MIA
_TASKS = {"causal": "CAUSAL_LM", "classifier": "SEQ_CLS", "seq2seq": "SEQ_2_SEQ_LM"}


def adapted(model: Any, recipe: Recipe) -> Any:  # noqa: ANN401 - models are of many types
    """Put new adapters into a model, which alone are trained; with ``full`` return it as it is."""
    if recipe.method == "full":
        return model
    import peft

    task = _TASKS.get(recipe.form)
    kinds = {
        "lora": lambda: peft.LoraConfig(
            task_type=task,
            r=recipe.rank,
            lora_alpha=_ALPHA,
            lora_dropout=_DROPOUT,
            target_modules="all-linear",
        ),
        "ia3": lambda: peft.IA3Config(task_type=task),
        "prefix": lambda: peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=recipe.rank),
        "p-tuning": lambda: peft.PromptEncoderConfig(
            task_type=task, num_virtual_tokens=recipe.rank, encoder_hidden_size=_hidden(model)
        ),
        "prompt": lambda: peft.PromptTuningConfig(task_type=task, num_virtual_tokens=recipe.rank),
    }
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")  # rightly
            return peft.get_peft_model(model, kinds[recipe.method]())  # type: ignore[no-untyped-call]
    except ValueError as error:  # architectures that peft does not know
        msg = (
            f"setting 'tuning': {recipe.method} cannot be applied to a {type(model).__name__} "
            f"({error}); take full"
        )
        raise SettingsError(msg) from error


def _hidden(model: Any) -> int:  # noqa: ANN401
    return int(model.config.get_text_config().hidden_size)
