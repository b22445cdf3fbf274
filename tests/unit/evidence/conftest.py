"""An engine that runs the tiny checkpoint, and its tokenizer, shared by the tests of this stage."""

import pytest

from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import EngineSpec
from mia_batch.models.tokens import Tokenizer


@pytest.fixture(scope="session")
def transformers_engine(checkpoint, tmp_path_factory):
    """An engine with small batches, so that most requests are spread over several."""
    spec = EngineSpec(
        engine="transformers",
        kind="samples",
        model=str(checkpoint),
        engine_args={"batch_size": 16},
    )
    with EngineProcess(
        spec, log=tmp_path_factory.mktemp("log") / "engine.log"
    ) as engine:
        yield engine


@pytest.fixture(scope="session")
def tokenizer(checkpoint):
    return Tokenizer.load(str(checkpoint))
