"""The command line."""

from __future__ import annotations

from mia_batch.cli.main import main

__all__ = ["main"]
