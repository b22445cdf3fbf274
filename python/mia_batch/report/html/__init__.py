"""A run as a page for editors, lawyers and engineers, and as tables to paste."""

from __future__ import annotations

from mia_batch.report.html.contents import Contents
from mia_batch.report.html.page import render
from mia_batch.report.html.paste import as_csv, as_markdown

__all__ = ["Contents", "as_csv", "as_markdown", "render"]
