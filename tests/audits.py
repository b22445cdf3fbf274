"""Audits of the demo's model."""

from __future__ import annotations

import mia_batch


def audit_demo(demo, out, **settings):
    settings = {"input": str(demo.corpus), "out": str(out)} | settings
    return mia_batch.audit(config=demo.config, **settings)
