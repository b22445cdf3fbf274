"""How a model is fine-tuned: everything that decides what comes out, beside base and texts.

Options of commands and settings of audits are made of the fields of `Recipe`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from math import ceil
from typing import Any, Literal, TypeAlias, get_type_hints

from pydantic import Field

from mia_batch.errors import SettingsError

__all__ = ["RECIPES", "Form", "Method", "Recipe", "recipe_field"]

Method: TypeAlias = Literal["lora", "ia3", "prefix", "p-tuning", "prompt", "full"]
Form: TypeAlias = Literal["causal", "classifier", "infilling", "seq2seq"]
"""What a model is tuned to do; `mia_batch.finetuning.forms` says what of a text it learns."""


def _setting(default: object, description: str, **limits: float) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"description": description, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a fine-tuning.

    Attributes
    ----------
    method
        What is tuned: adapters (LoRA, (IA)^3, prefix tuning, P-tuning), or all weights.
    epochs
        Most passes over the texts.
    learning_rate
        Of AdamW, at its highest; it falls linearly to 0.
    batch_size
        Texts of one step.
    max_tokens
        Tokens of a text that are learnt, special tokens included; further ones are left out.
    held_out
        Share of the texts, drawn with the seed, on which the loss is measured after each epoch. The
        epoch of the lowest loss is kept. 0: none, and the last epoch is kept.
    patience
        Epochs without a lower loss after which training stops.
    seed
        Of the order of the texts, dropout and new weights.
    rank
        Rank of LoRA; virtual tokens of prefix tuning, P-tuning and prompt tuning.
    form
        What the model is tuned to do.
    labels
        Classes of a ``classifier``, in the order of its outputs.
    epsilon
        Privacy loss that DP-SGD is to keep to, of adding or removing one text; None: plain
        training. Of a text that is given k times it can be k times as much, and delta more.
    delta
        Probability with which DP-SGD may exceed it.
    clip
        Euclidean norm to which DP-SGD cuts the gradient of a text.

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
            msg = "early stopping looks at held-out texts, which epsilon does not protect; take 0"
            raise SettingsError(msg)

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
        method="full",
        epochs=40,
        learning_rate=4e-3,
        max_tokens=64,
        held_out=0.1,
        patience=3,
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
