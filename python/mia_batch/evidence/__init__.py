"""Evidence: targets go in, rows of the samples table and of the logprobs table come out."""

from __future__ import annotations

from mia_batch.evidence.blocks import (
    Block,
    Missing,
    Parts,
    Work,
    logprob_parts,
    sample_parts,
)
from mia_batch.evidence.budget import Budget, DecodeScope
from mia_batch.evidence.collect import Collector
from mia_batch.evidence.engine import Decoding, EngineInfo, EngineName, EngineSpec
from mia_batch.evidence.engines import cannot_score, choose_engine, run_no_model_here
from mia_batch.evidence.local import LocalSource
from mia_batch.evidence.measure import Measure, estimate_tokens
from mia_batch.evidence.model import ModelIdentity, digest_folder, identify_model
from mia_batch.evidence.parts import scan_features, scan_logprobs, scan_samples
from mia_batch.evidence.process import EngineProcess, ScorerProcess
from mia_batch.evidence.scorer import Scoring
from mia_batch.evidence.source import Source
from mia_batch.evidence.tokens import Tokenizer
from mia_batch.evidence.workload import Workload

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
    "LocalSource",
    "Measure",
    "Missing",
    "ModelIdentity",
    "Parts",
    "ScorerProcess",
    "Scoring",
    "Source",
    "Tokenizer",
    "Work",
    "Workload",
    "cannot_score",
    "choose_engine",
    "digest_folder",
    "estimate_tokens",
    "identify_model",
    "logprob_parts",
    "run_no_model_here",
    "sample_parts",
    "scan_features",
    "scan_logprobs",
    "scan_samples",
]
