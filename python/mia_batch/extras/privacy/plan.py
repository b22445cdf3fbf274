"""Settings of an audit of privacy: how models are tuned, and with what privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal, TypeAlias

from mia_batch.errors import SettingsError
from mia_batch.recipes import RECIPES, Form, Method, Recipe

__all__ = [
    "RECIPE_FIELDS",
    "TUNINGS",
    "VIRTUAL",
    "PrivacySettings",
    "Task",
    "Tuning",
    "Variant",
    "find_form",
]

Task: TypeAlias = Literal["classification", "generation"]
Tuning: TypeAlias = Literal[
    "full", "lora", "ia3", "prefix", "p-tuning", "prompt", "infilling"
]
TUNINGS: dict[Tuning, Method] = {
    "full": "full",
    "lora": "lora",
    "ia3": "ia3",
    "prefix": "prefix",
    "p-tuning": "p-tuning",
    "prompt": "prompt",
    "infilling": "full",
}
"""How models are tuned, and the method of each; LoRA, (IA)3 and P-tuning are not in the paper."""

VIRTUAL = ("prefix", "p-tuning", "prompt")
_HIGH_RATE = 1e-2  # of virtual tokens, as in the paper, section 4.4
_HIGH_RATE_TUNINGS = (*VIRTUAL, "ia3")  # which train few weights
GENERATING = ("causal", "answer", "seq2seq")
RECIPE_FIELDS = ("delta", "clip", "epochs", "batch_size", "max_tokens", "rank")
"""Fields of the recipe that a user of the command sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySettings:
    """Settings of an audit; defaults are those of the paper (section 4.4), where it names any.

    Attributes
    ----------
    task
        What the model is tuned for: to say the label of a text, or to go on with texts.
    tunings
        How it is tuned, each in turn.
    epsilons
        Privacy losses that DP-SGD is to keep to, each in turn; None: plain training.
    recipe
        How all are tuned, but for what follows from the others of these settings.
    learning_rate
        Likewise; None: 1e-2 where few weights are trained (virtual tokens, (IA)3), that
        of the recipe otherwise.
    shadows
        Shadow models for LiRA of each variant; 0: none.
    audited
        Share of the texts, by groups, of which members are drawn; models are tested on
        the rest.
    canaries
        Canaries of each format that are learnt; 0: none.
    repetitions
        The i-th of them is learnt i times as often.
    candidates
        Canaries of each format that are compared, those learnt included.
    inverts
        Whether texts are to be given back from the target's embeddings, too, by a
        decoder that is trained for it
        (`mia_batch.extras.privacy.inversion.training.invert`).
    spv
        Whether decoders are attacked by SPV-MIA, too, with a reference of their own
        words.
    seed
        Of all that is drawn.
    """

    task: Task
    tunings: Sequence[Tuning] = ("full",)
    epsilons: Sequence[float | None] = (None, 8.0)
    recipe: Recipe = RECIPES["privacy"]
    learning_rate: float | None = None
    shadows: int = 16
    audited: float = 0.6
    canaries: int = 40
    repetitions: int = 10
    candidates: int = 100
    inverts: bool = False
    spv: bool = False
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON, with fields of the recipe that a user sets."""
        settings = asdict(self)
        recipe = settings.pop("recipe")
        if not self.spv:
            del settings["spv"]  # folders of earlier versions have none
        return settings | {name: recipe[name] for name in RECIPE_FIELDS}

    def variants(self) -> list[Variant]:
        """List what is tuned, in order."""
        return [
            Variant(tuning=tuning, epsilon=epsilon)
            for tuning, epsilon in product(self.tunings, self.epsilons)
        ]

    def build_recipe(
        self, variant: Variant, form: Form, labels: Sequence[str], seed: int
    ) -> Recipe:
        """Build the recipe of a model; ``seed`` distinguishes those of a variant."""
        rate = self.learning_rate
        if rate is None:
            trains_few = variant.tuning in _HIGH_RATE_TUNINGS
            rate = _HIGH_RATE if trains_few else self.recipe.learning_rate
        return replace(
            self.recipe,
            method=TUNINGS[variant.tuning],
            form=form,
            labels=[*labels] if form == "classifier" else [],
            learning_rate=rate,
            epsilon=variant.epsilon,
            seed=self.seed + seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to tune a model: a row of the final table."""

    tuning: Tuning
    epsilon: float | None

    @property
    def name(self) -> str:
        """Name of its models and files."""
        if self.epsilon is None:
            return self.tuning
        return f"{self.tuning}-epsilon-{self.epsilon:g}"


def find_form(base: str, revision: str | None, task: Task, tuning: Tuning) -> Form:
    """Return what a base is tuned to do for a task; check that it can be."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        base, revision=revision, trust_remote_code=False
    )
    architectures = config.architectures or [""]
    if config.is_encoder_decoder:
        form: Form = "seq2seq"
    elif architectures[0].endswith(("ForMaskedLM", "ForPreTraining")):
        form = "infilling" if tuning == "infilling" else "classifier"
    else:
        form = "causal"
    if tuning == "infilling" and form != "infilling":
        raise SettingsError(
            f"tuning infilling needs a masked model, which {base!r} is not"
        )
    if task == "generation" and form not in GENERATING:
        raise SettingsError(
            f"{base!r} is an encoder, which generates nothing; take task classification"
        )
    return form
