"""The settings of a run: from options and a TOML file to one validated value."""

from __future__ import annotations

from mia_batch.settings.load import CONFIG_NAME, load_settings, refuse_code, stored_settings
from mia_batch.settings.model import CLASSICS, NO_YARDSTICK, PARTS, Mark, Settings, VerdictSettings

__all__ = [
    "CLASSICS",
    "CONFIG_NAME",
    "NO_YARDSTICK",
    "PARTS",
    "Mark",
    "Settings",
    "VerdictSettings",
    "load_settings",
    "refuse_code",
    "stored_settings",
]
