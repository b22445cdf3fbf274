"""How models are fine-tuned: settings of a training, defaults, and who learns what."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from math import ceil
from typing import Any, Literal, TypeAlias, get_type_hints

from pydantic import Field

from mia_batch.errors import SettingsError

Method: TypeAlias = Literal["lora", "ia3", "prefix", "p-tuning", "prompt", "full"]
Schedule: TypeAlias = Literal["linear", "constant"]
Form: TypeAlias = Literal["causal", "answer", "classifier", "infilling", "seq2seq"]
"""What a model learns of a text: to go on with it, to answer it, its label, a word, a text."""
"""What a model is tuned to do; what it learns of a text: `mia_batch.extras.tune.training`."""


def _setting(default: object, description: str, **limits: float) -> Any:
    return field(default=default, metadata={"description": description, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a fine-tuning; most say themselves what they are.

    Of ``held_out`` texts, drawn with the seed, the loss is measured after each epoch,
    and the epoch of the lowest is kept; 0: none, and the last epoch is kept. ``form``
    is what the model is tuned to do, ``labels`` are the classes of a ``classifier`` in
    the order of its outputs. ``epsilon`` is of adding or removing one text, None plain
    training; of a text that is given k times it can be k times as much, and delta more.

    Raises
    ------
    SettingsError
        If texts are held out of a training with privacy, which would look at them
        without noise.
    """

    method: Method = _setting("lora", "What is tuned: adapters, or all weights.")
    epochs: int = _setting(
        4,
        "Most passes over the texts; with --held-out the best one is kept.",
        ge=1,
        le=1000,
    )
    learning_rate: float = _setting(
        1e-4, "Learning rate of AdamW, at its highest.", gt=0, le=1
    )
    schedule: Schedule = _setting(
        "linear", "Whether the learning rate falls to 0 over the training, or stays."
    )
    batch_size: int = _setting(16, "Texts learnt in one step.", ge=1, le=65_536)
    max_tokens: int = _setting(
        512, "Most tokens of a text that are learnt.", ge=2, le=1_000_000
    )
    held_out: float = _setting(
        0.0,
        "Share of the texts that choose the best epoch and stop early; 0: none.",
        ge=0,
        le=0.9,
    )
    patience: int = _setting(1, "Epochs without a lower loss on held-out texts.", ge=1)
    seed: int = 0
    rank: int = _setting(
        64,
        "Rank of LoRA; virtual tokens of prefix, prompt and P-tuning.",
        ge=1,
        le=1024,
    )
    form: Form = "causal"
    labels: list[str] = field(default_factory=list)
    epsilon: float | None = _setting(
        None,
        "Train with differential privacy (DP-SGD), to this privacy loss.",
        ge=0.01,
        le=1000,
    )
    delta: float = _setting(
        1e-5, "Probability that the privacy loss is larger.", gt=0, le=0.1
    )
    clip: float = _setting(0.1, "Clip each text's gradient to this norm.", gt=0, le=1e6)

    def __post_init__(self) -> None:
        if self.epsilon is not None and self.held_out:
            raise SettingsError(
                "early stopping looks at held-out texts, which epsilon does not"
                " protect; take 0"
            )

    def n_held_out(self, n_texts: int) -> int:
        """Count the texts that are not learnt: at least one if any are, never all."""
        n_wanted = ceil(self.held_out * n_texts)
        return max(0, min(n_wanted, n_texts - 1))

    def steps(self, n_texts: int) -> int:
        """Count the steps of the optimizer over all epochs."""
        n_learnt = n_texts - self.n_held_out(n_texts)
        return self.epochs * ceil(n_learnt / self.batch_size)


# Defaults: of the references of an audit, and of each command that tunes models
RECIPES = {
    # Fu et al. 2024 (arXiv:2311.06062), section 5.1; rank, alpha and dropout of the
    # authors' code.
    "reference": Recipe(),
    "finetune": Recipe(epochs=10, held_out=0.1),  # its targets
    # Li et al. 2024 (arXiv:2311.04044), section 4.4.
    "privacy": (
        Recipe(method="full", epochs=5, batch_size=1024, max_tokens=256, rank=15)
    ),
    # Shi et al. 2024 (arXiv:2310.16789), section 6.1.
    "contamination": Recipe(method="full", epochs=1, schedule="constant"),
    # A small decoder without knowledge, which stops at the lowest held-out loss.
    "inverter": (
        Recipe(
            method="full",
            epochs=40,
            learning_rate=4e-3,
            max_tokens=64,
            held_out=0.1,
            patience=3,
        )
    ),
    # A decoder that knows the language, as in GEIA and PrivLM-Bench.
    "decoder": (
        Recipe(method="full", epochs=5, learning_rate=3e-5, batch_size=8, max_tokens=64)
    ),
}


def recipe_field(name: str, recipe: str = "reference") -> Any:
    """Build a setting from a field of `Recipe`, with the default of a recipe."""
    metadata = {setting.name: setting.metadata for setting in fields(Recipe)}
    default = getattr(RECIPES[recipe], name)
    setting: Any = Field(default, **metadata[name])
    setting.annotation = get_type_hints(Recipe)[name]
    return setting


_BYTES = 64
MOST_SHADOWS = 2 * 8 * _BYTES  # shadow models that have halves of their own


def in_half(names: Sequence[str], shadow: int, seed: int) -> list[bool]:
    """Return of each text whether a shadow model learns it.

    Models 2j and 2j + 1 share the texts out between them by a fair coin: bit j of a
    hash of seed and name. So each text is in exactly half of an even number of models,
    as in online LiRA (Carlini et al. 2022, arXiv:2112.03570, algorithm 1), and further
    models change none of the earlier. Texts of one name go together.
    """
    pair, second_of_pair = divmod(shadow, 2)
    place, bit = divmod(pair, 8)
    key = str(seed).encode()[:_BYTES]
    is_learnt = []
    for name in names:
        digest = blake2b(name.encode(), key=key, digest_size=_BYTES).digest()
        coin = digest[place] >> bit & 1
        is_learnt.append(coin != second_of_pair)
    return is_learnt
