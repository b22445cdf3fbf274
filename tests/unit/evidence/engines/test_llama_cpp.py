"""The llama.cpp engine on a checkpoint whose weights transformers reads too."""

import numpy as np
import pytest
import torch

from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import EngineSpec
from tests import engine_conformance as conformance
from tests.checkpoints import CONTEXT
from tests.gguf_files import needs_llama_cpp, save_gguf

pytestmark = needs_llama_cpp


@pytest.fixture(scope="module")
def gguf(checkpoint, tmp_path_factory):
    return save_gguf(checkpoint, tmp_path_factory.mktemp("gguf") / "model.gguf")


def started(gguf, tmp_path_factory, kind, **changed):
    spec = EngineSpec(engine="llama-cpp", kind=kind, model=str(gguf), **changed)
    return EngineProcess(spec, log=tmp_path_factory.mktemp("log") / "engine.log")


@pytest.fixture(scope="module")
def samples_engine(gguf, tmp_path_factory):
    with started(gguf, tmp_path_factory, "samples") as engine:
        yield engine


class TestSamples(conformance.SamplesConformance):
    dtype = "F32"

    @pytest.fixture
    def engine(self, samples_engine):
        return samples_engine


@pytest.fixture(scope="module")
def logprobs_engine(gguf, tmp_path_factory):
    columns = frozenset({"rank", "vocabulary_mean", "top_logprob", "support_mass"})
    with started(gguf, tmp_path_factory, "logprobs", columns=columns) as engine:
        yield engine


class TestLogprobs(conformance.LogprobsConformance):
    dtype = "F32"
    rtol = 3e-5

    @pytest.fixture
    def engine(self, logprobs_engine):
        return logprobs_engine
