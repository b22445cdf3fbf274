"""Audits of the demo's model."""

from __future__ import annotations

import pytest

import mia_batch
from mia_batch.diagnostics.blind import baseline


def audit_demo(demo, out, **settings):
    """Audit with few permutations in the blind baseline, which has tests of its own."""
    settings = {"input": str(demo.corpus), "out": str(out)} | settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baseline, "_N_PERMUTATIONS", 39)
        return mia_batch.audit(config=demo.config, **settings)
