"""The settings of a run: from options and a TOML file to one validated value."""

from __future__ import annotations

from mia_batch.settings.load import CONFIG_NAME, NAMES_OR_PATHS, PATHS, load_settings
from mia_batch.settings.model import EVIDENCE_SETTINGS, Settings
from mia_batch.settings.verdict import VerdictSettings

__all__ = [
    "CONFIG_NAME",
    "EVIDENCE_SETTINGS",
    "NAMES_OR_PATHS",
    "PATHS",
    "Settings",
    "VerdictSettings",
    "load_settings",
]
