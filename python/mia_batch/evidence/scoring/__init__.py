"""Log-probabilities of the tokens of texts: views of targets go in, rows come out."""

from __future__ import annotations

from mia_batch.evidence.scoring.collect import FREQUENCY, ScoreCollector
from mia_batch.evidence.scoring.local import LocalScorer
from mia_batch.evidence.scoring.source import TextScorer
from mia_batch.evidence.scoring.view import Seen, View

__all__ = ["FREQUENCY", "LocalScorer", "ScoreCollector", "Seen", "TextScorer", "View"]
