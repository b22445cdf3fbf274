from __future__ import annotations

import polars as pl

from mia_batch.evidence.collect import FillTask
from mia_batch.evidence.parts import Block
from mia_batch.prompts.views import View, sample_seed


def test_a_view_s_share_reaches_the_masked_model():
    units = pl.DataFrame({"target_id": ["0" * 32], "target": ["a text"]})
    block = Block(index=0, first=4, last=6, attempt=0, label="", units=units)
    view = View(model="target", name="paraphrase", make=None, n=6, share=0.4)
    ((asked, rows),) = FillTask(view=view, run_seed=3).ask(block)
    assert rows == []
    assert asked is not None
    request = asked.request
    assert (request.view, request.n, request.share) == ("paraphrase", 6, 0.4)
    assert request.seed == sample_seed(3, "0" * 32)
