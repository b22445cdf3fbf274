"""The engine that makes variants of texts with a masked language model."""

from mia_batch.evidence.engines.masked.engine import MaskedEngine

__all__ = ["MaskedEngine"]
