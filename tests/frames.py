"""Small tables for tests, with the columns and types of their schemas."""

from collections.abc import Iterable, Mapping
from typing import Any

import dataframely as dy
import polars as pl

from mia_batch.attacks import Attack
from mia_batch.kernels import GROUPS, fields
from mia_batch.schemas import Features, Samples, Targets

CONTINUATION = {"model": "target", "view": "continuation", "view_index": 0}


def table(
    schema: type[dy.Schema], rows: Iterable[Mapping[str, Any]], **defaults: Any
) -> pl.DataFrame:
    """Table of a schema; columns that no row names have their default, else null."""
    blank = dict.fromkeys(schema.column_names()) | defaults
    types = schema.create_empty().schema
    return pl.DataFrame([blank | dict(row) for row in rows], schema=types)


def target_id(number: int) -> str:
    return f"{number:032x}"


def targets(*rows: Mapping[str, Any]) -> pl.DataFrame:
    """Targets numbered from 0."""
    numbered = [
        {"target_id": target_id(number), **row} for number, row in enumerate(rows)
    ]
    return table(Targets, numbered, role="target", window_index=0)


def units(targets: pl.DataFrame) -> pl.DataFrame:
    """Continuation prompts of some targets, whole."""
    index = pl.lit(0, pl.UInt32)
    return targets.with_columns(view_index=index, context="prefix", text="reference")


def samples(*candidates: Iterable[str | Mapping[str, Any] | None]) -> pl.DataFrame:
    """Candidates of target 0, of target 1, ...; a mapping gives further columns."""
    rows = [
        {"target_id": target_id(number), "sample_index": index, **CONTINUATION}
        | (dict(candidate) if isinstance(candidate, dict) else {"candidate": candidate})
        for number, of_target in enumerate(candidates)
        for index, candidate in enumerate(of_target)
    ]
    return table(Samples, rows, n_tokens=1, short=False)


def features(*rows: Mapping[str, Any]) -> pl.DataFrame:
    """Features of every group; every number that a row leaves out is 0."""
    dtypes = {field.name: field.dtype for field in fields(GROUPS).fields}
    schema = Features.create_empty().schema | dtypes
    usual = dict.fromkeys(schema, 0) | {"short": False, **CONTINUATION}
    return pl.DataFrame([usual | dict(row) for row in rows], schema=schema)


def attack(name: str, expr: pl.Expr, **columns: Any) -> Attack:
    """An attack of tests alone."""
    return Attack(name=name, expr=expr, source="none", undefined="none", **columns)
