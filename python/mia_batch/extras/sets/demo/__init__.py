"""An audit whose truth is known: real texts, half of which a small model is trained on here.

Membership is random within each group, so nothing but the model's memory separates the classes.
"""

from __future__ import annotations

from mia_batch.extras.sets.demo.making import DemoFolder, DemoSettings, prepare

__all__ = ["DemoFolder", "DemoSettings", "prepare"]
