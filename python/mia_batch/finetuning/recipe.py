"""How a model is fine-tuned: everything that decides what comes out, beside base and texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, Literal, TypeAlias, get_args

from mia_batch.errors import SettingsError

__all__ = ["METHODS", "Form", "Method", "Recipe"]

Method: TypeAlias = Literal["lora", "ia3", "prefix", "p-tuning", "prompt", "full"]
METHODS: tuple[Method, ...] = get_args(Method)
Form: TypeAlias = Literal["causal", "classifier", "infilling", "seq2seq"]
"""What a model is tuned to do; `mia_batch.finetuning.forms` says what of a text it learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a fine-tuning.

    The defaults are those of references in the SPV-MIA paper (Fu et al. 2024, arXiv:2311.06062,
    section 5.1): LoRA, AdamW, 1e-4, batches of 16, 4 epochs. Rank, alpha and dropout are those of
    the authors' code, the paper names none.

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

    method: Method = "lora"
    epochs: int = 4
    learning_rate: float = 1e-4
    batch_size: int = 16
    max_tokens: int = 512
    held_out: float = 0.0
    patience: int = 1
    seed: int = 0
    rank: int = 64
    form: Form = "causal"
    labels: list[str] = field(default_factory=list)
    epsilon: float | None = None
    delta: float = 1e-5
    clip: float = 0.1

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
