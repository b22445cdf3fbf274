"""One schema for several files of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["agreed_schema"]


def agreed_schema(schemas: Mapping[str, pl.Schema]) -> pl.Schema:
    """Merge the schemas of several files (path to schema), whose columns and types must agree.

    A column that is null throughout a file (type ``Null``) fits any type; the order of columns is
    the first file's.
    """
    (first, merged), *others = schemas.items()
    for path, schema in others:
        for name in sorted(merged.keys() ^ schema.keys()):
            has, lacks = (first, path) if name in merged else (path, first)
            msg = (
                f"{has} has a column {name!r} that {lacks} lacks; give files with the same columns"
            )
            raise CorpusError(msg)
        for name, dtype in merged.items():
            if dtype == pl.Null:
                merged[name] = schema[name]
            elif schema[name] not in (pl.Null, dtype):
                msg = (
                    f"column {name!r} is {dtype} in {first} but {schema[name]} in {path}; "
                    "give it one type in all files"
                )
                raise CorpusError(msg)
    return merged
