"""Targets: the texts whose membership is asked, cut from the documents."""

from __future__ import annotations

from mia_batch.targets import reasons
from mia_batch.targets.build import build_targets
from mia_batch.targets.ordinals import Ordinals
from mia_batch.targets.plan import TargetPlan

__all__ = ["Ordinals", "TargetPlan", "build_targets", "reasons"]
