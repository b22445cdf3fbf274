"""Name to engine; an engine's library is imported when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.evidence.engines.choice import cannot_score, choose_engine
from mia_batch.models.checkpoint import check_model
from mia_batch.models.imports import (
    auto_classes,
    kept_for_good,
    run_no_model_here,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia_batch.evidence.engine import Engine, EngineSpec
    from mia_batch.evidence.scorer import Scorer

__all__ = [
    "auto_classes",
    "cannot_score",
    "check_model",
    "choose_engine",
    "load_engine",
    "run_no_model_here",
]


def load_engine(spec: EngineSpec) -> Engine | Scorer:
    """Start an engine in this process, which is best its own.

    transformers finds no scikit-learn here afterwards, unless that was loaded before.

    Parameters
    ----------
    spec
        What to start.

    Returns
    -------
    Engine or Scorer
        Ready for requests; a scorer where ``spec.scoring`` is set.

    Raises
    ------
    SettingsError
        If a setting cannot be followed by the engine.
    EngineError
        If the engine cannot start.
    """
    # Wanted for assisted generation alone, which no engine does, it takes up to 2 s of a start.
    with kept_for_good(), without("sklearn"):
        start = _import_engine(spec)
    return start(spec)


def _import_engine(spec: EngineSpec) -> Callable[[EngineSpec], Engine | Scorer]:
    if spec.engine == "vllm":
        if spec.scoring is not None:
            from mia_batch.evidence.engines.vllm_scorer import VllmScorer

            return VllmScorer
        from mia_batch.evidence.engines.vllm import VllmEngine

        return VllmEngine
    if spec.scoring is not None:
        from mia_batch.evidence.engines.transformers_scorer import TransformersScorer

        return TransformersScorer
    from mia_batch.evidence.engines.transformers import TransformersEngine

    return TransformersEngine
