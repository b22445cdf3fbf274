from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from mia_batch.errors import SettingsError
from mia_batch.evidence.engine import EngineSpec
from mia_batch.evidence.process import ScorerProcess
from mia_batch.evidence.scorer import Scoring
from tests.checkpoints import CONTEXT
from tests.scorer_laws import ScorerLaws

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture(scope="module")
def vllm_scorer(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScorerProcess]:
    """A scorer that takes most texts in pieces, of about 50 tokens."""
    spec = EngineSpec(
        engine="vllm",
        model=str(checkpoint),
        scoring=Scoring(head_bytes=50 * 12 * 600),
        engine_args={
            "kv_cache_memory_bytes": 64 << 20,
            "max_num_seqs": 16,
            "enable_prefix_caching": True,  # is not followed
        },
    )
    with ScorerProcess.start(spec, log=tmp_path_factory.mktemp("log") / "engine.log") as scorer:
        yield scorer


class TestVllmScorer(ScorerLaws):
    context = CONTEXT - 1  # vLLM always draws a token
    rtol = 1e-5

    @pytest.fixture
    def scorer(self, vllm_scorer: ScorerProcess) -> ScorerProcess:
        return vllm_scorer


def test_what_vllm_cannot_compute_is_an_error_before_it_starts(checkpoint: Path, tmp_path: Path):
    spec = EngineSpec(engine="vllm", model=str(checkpoint), scoring=Scoring(moments=True))
    with pytest.raises(SettingsError, match=r"mean and variance .*; take engine transformers"):
        ScorerProcess.start(spec, log=tmp_path / "engine.log")
