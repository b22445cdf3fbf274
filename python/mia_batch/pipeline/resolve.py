"""From settings to what the stages take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.evidence.budget import Budget
from mia_batch.evidence.engine import Decoding, EngineSpec
from mia_batch.evidence.engines.choice import choose_engine
from mia_batch.targets import TargetPlan

if TYPE_CHECKING:
    from mia_batch.attacks import Attack
    from mia_batch.evidence.budget import DecodeScope
    from mia_batch.evidence.engine import EngineName
    from mia_batch.settings import Settings

__all__ = [
    "chosen_engine",
    "decode_budget",
    "decode_scope",
    "engine_spec",
    "runs_here",
    "target_plan",
]


def runs_here(settings: Settings) -> bool:
    """Whether a model runs on this machine; else samples come from an endpoint or a recording."""
    return settings.engine not in ("openai", "replay")


def chosen_engine(settings: Settings) -> tuple[str, str]:
    """Choose the engine that samples.

    Parameters
    ----------
    settings
        Names it, or leaves the choice.

    Returns
    -------
    tuple of str and str
        The engine, and why it was chosen.

    Raises
    ------
    SettingsError
        If it cannot run here.
    """
    match settings.engine:
        case "openai" | "replay":
            return settings.engine, "asked for"
        case local:
            return choose_engine(local)


def decode_scope(attacks: list[Attack]) -> DecodeScope:
    """Say how far candidates must be decoded for these attacks."""
    return "whole" if any(attack.whole_candidates for attack in attacks) else "matched"


def decode_budget(
    settings: Settings, scope: DecodeScope, max_model_len: int, max_attempts: int | None = None
) -> Budget:
    """Return the rule for the tokens to decode in a model with this context."""
    return Budget(
        scope=scope,
        max_length=settings.max_length,
        max_model_len=max_model_len,
        max_attempts=max_attempts,
    )


def engine_spec(settings: Settings, engine: EngineName) -> EngineSpec:
    """Return what the chosen engine needs to start."""
    return EngineSpec(
        engine=engine,
        model=settings.model,
        revision=settings.revision,
        dtype=settings.dtype,
        tensor_parallel_size=settings.tensor_parallel_size,
        decoding=Decoding(
            temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p
        ),
        engine_args=settings.engine_arg,
    )


def target_plan(settings: Settings) -> TargetPlan:
    """Say how documents are cut into targets under these settings."""
    return TargetPlan(
        prefix_ratio=settings.prefix_ratio,
        words=settings.word_rule,
        window_words=settings.window_words,
        stride=settings.stride,
        preset=settings.preset,
        text_length=settings.text_length,
    )
