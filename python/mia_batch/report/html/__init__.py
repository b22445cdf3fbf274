"""A run as a page for editors, lawyers and engineers, and as tables to paste."""

from mia_batch.report.html.contents import Contents
from mia_batch.report.html.document import (
    find_document,
    render_document,
    render_models,
)
from mia_batch.report.html.page import as_csv, as_json, as_markdown, render

__all__ = [
    "Contents",
    "as_csv",
    "as_json",
    "as_markdown",
    "find_document",
    "render",
    "render_document",
    "render_models",
]
