"""One schema per table: the columns that a stage may rely on, and what they mean.

Tables may carry further columns of the user's corpus (pass-through); they follow the named ones.
"""

from __future__ import annotations

from mia_batch.schemas.answers import (
    Blind,
    Findings,
    Metrics,
    Scores,
    Unscored,
    VerdictLevel,
    Verdicts,
)
from mia_batch.schemas.building import BuiltTests, BuiltTexts, Paraphrases, ThrownAway
from mia_batch.schemas.comparisons import Comparisons
from mia_batch.schemas.controls import Controls
from mia_batch.schemas.evidence import Features, LogProbs, Prompts, Samples
from mia_batch.schemas.extraction import ExtractedDocuments, Extraction
from mia_batch.schemas.inversion import Inversion, InversionTexts
from mia_batch.schemas.summary import Curves, Perplexities, Rollup
from mia_batch.schemas.texts import Documents, Role, SetAside, Targets

__all__ = [
    "Blind",
    "BuiltTests",
    "BuiltTexts",
    "Comparisons",
    "Controls",
    "Curves",
    "Documents",
    "ExtractedDocuments",
    "Extraction",
    "Features",
    "Findings",
    "Inversion",
    "InversionTexts",
    "LogProbs",
    "Metrics",
    "Paraphrases",
    "Perplexities",
    "Prompts",
    "Role",
    "Rollup",
    "Samples",
    "Scores",
    "SetAside",
    "Targets",
    "ThrownAway",
    "Unscored",
    "VerdictLevel",
    "Verdicts",
]
