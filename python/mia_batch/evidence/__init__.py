"""Engines produce evidence: targets go in, rows of the samples table come out."""

from __future__ import annotations

from mia_batch.evidence.blocks import Block, Work, missing_blocks, unsampled
from mia_batch.evidence.budget import Budget, DecodeScope
from mia_batch.evidence.collect import Collector
from mia_batch.evidence.engine import Decoding, EngineInfo, EngineName, EngineSpec
from mia_batch.evidence.engines import choose_engine
from mia_batch.evidence.model import ModelIdentity, digest_folder, identify_model
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.tokens import Tokenizer

__all__ = [
    "Block",
    "Budget",
    "Collector",
    "DecodeScope",
    "Decoding",
    "EngineInfo",
    "EngineName",
    "EngineProcess",
    "EngineSpec",
    "ModelIdentity",
    "Tokenizer",
    "Work",
    "choose_engine",
    "digest_folder",
    "identify_model",
    "missing_blocks",
    "unsampled",
]
