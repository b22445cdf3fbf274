"""The settings of a run: from options and a TOML file to one validated value."""

from __future__ import annotations

from mia_batch.settings.load import (
    CONFIG_NAME,
    flattened,
    load_settings,
    nested,
    refuse_code,
    stored_settings,
)
from mia_batch.settings.model import (
    CLASSICS,
    NO_YARDSTICK,
    PARTS,
    ClusterSettings,
    ColumnSettings,
    EndpointSettings,
    EngineSettings,
    ExtractionSettings,
    FinetuningSettings,
    LogprobSettings,
    Mark,
    RecordingSettings,
    ReportSettings,
    SamplingSettings,
    Settings,
    TextSettings,
    VerdictSettings,
)

__all__ = [
    "CLASSICS",
    "CONFIG_NAME",
    "NO_YARDSTICK",
    "PARTS",
    "ClusterSettings",
    "ColumnSettings",
    "EndpointSettings",
    "EngineSettings",
    "ExtractionSettings",
    "FinetuningSettings",
    "LogprobSettings",
    "Mark",
    "RecordingSettings",
    "ReportSettings",
    "SamplingSettings",
    "Settings",
    "TextSettings",
    "VerdictSettings",
    "flattened",
    "load_settings",
    "nested",
    "refuse_code",
    "stored_settings",
]
