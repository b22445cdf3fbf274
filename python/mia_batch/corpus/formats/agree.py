"""One schema for several files of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["agreed_schema"]


def agreed_schema(schemas: Mapping[str, pl.Schema]) -> pl.Schema:
    """Merge the schemas of several files, which must have the same columns and types.

    Parameters
    ----------
    schemas
        File to schema, at least one. A column that is null throughout a file (type ``Null``) fits
        any type; the order of columns is the first file's.

    Returns
    -------
    Schema
        The columns that all files share.

    Raises
    ------
    CorpusError
        If two files differ, naming both and the column.
    """
    (first, merged), *others = schemas.items()
    for path, schema in others:
        _refuse_other_names(first, merged, path, schema)
        merged = pl.Schema(
            {name: _agree(name, merged[name], schema[name], first, path) for name in merged}
        )
    return merged


def _refuse_other_names(first: str, expected: pl.Schema, path: str, schema: pl.Schema) -> None:
    for name in sorted(expected.keys() ^ schema.keys()):
        has, lacks = (first, path) if name in expected else (path, first)
        msg = f"{has} has a column {name!r} that {lacks} lacks; give files with the same columns"
        raise CorpusError(msg)


def _agree(name: str, left: pl.DataType, right: pl.DataType, first: str, path: str) -> pl.DataType:
    if right in (pl.Null, left):
        return left
    if left == pl.Null:
        return right
    msg = (
        f"column {name!r} is {left} in {first} but {right} in {path}; give it one type in all files"
    )
    raise CorpusError(msg)
