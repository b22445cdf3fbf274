"""Columns of every table: types and meaning from its schema, the longer ones from docstrings."""

from __future__ import annotations

import inspect
import re

import dataframely as dy
import griffe
import polars as pl

from docs.generate.markdown import code, table
from mia_batch import schemas

__all__ = ["PAGES", "schema_classes", "sections"]

PAGES = {
    "evidence": (
        "documents",
        "set_aside",
        "targets",
        "prompts",
        "samples",
        "responses",
        "log_probs",
        "features",
    ),
    "answers": (
        *(
            "scores",
            "unscored",
            "metrics",
            "findings",
            "blind",
            "verdicts",
            "extraction",
        ),
        *(
            "extracted_documents",
            "controls",
            "known",
            "bounds",
            "rollup",
            "perplexities",
        ),
        *("curves", "comparisons"),
    ),
    "extras": (
        *("built_texts", "built_tests", "thrown_away", "paraphrases"),
        *("benchmark_tests", "secrets", "inversion_texts", "inversion"),
    ),
}
"""Tables by the page that has their columns."""


def schema_classes() -> dict[str, type[schemas.Table]]:
    """Schemas of `mia_batch.schemas` by the name of their table, in its order."""
    return {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): each
        for name, each in vars(schemas).items()
        if isinstance(each, type)
        and issubclass(each, schemas.Table)
        and each is not schemas.Table
        and not name.startswith("_")
    }


def sections(page: str) -> str:
    """One section per table of a page: what a row is, and its columns."""
    read = griffe.load(
        "mia_batch.schemas", search_paths=["python"], resolve_aliases=True
    )
    classes = schema_classes()
    return "\n".join(
        _section(name, classes[name], _meanings(read[classes[name].__name__]))
        for name in PAGES[page]
    )


def _meanings(read: griffe.Object | griffe.Alias) -> dict[str, str]:
    return {
        name: member.docstring.value
        for name, member in read.all_members.items()
        if member.docstring is not None
    }


def _section(name: str, schema: type[schemas.Table], meanings: dict[str, str]) -> str:
    rows = (
        (
            code(column),
            _type(found),
            "may be null" if found.nullable else "",
            found.description or meanings.get(column, ""),
        )
        for column, found in schema.columns().items()
    )
    text = inspect.getdoc(schema) or ""
    heads = ("column", "type", "null", "meaning")
    return f"## {name}\n\n{text}\n\n{table(heads, rows)}"


def _type(column: dy.Column) -> str:
    dtype = column.dtype
    key = ", key" if column.primary_key else ""
    if isinstance(dtype, pl.Enum):
        return f"one of {', '.join(code(each) for each in dtype.categories)}{key}"
    return f"{_plain(dtype)}{key}"


def _plain(dtype: object) -> str:
    if isinstance(dtype, pl.List):
        return f"list of {_plain(dtype.inner)}"
    return str(dtype)
