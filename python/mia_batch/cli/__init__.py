"""The command line."""

from mia_batch.cli.main import main

__all__ = ["main"]
