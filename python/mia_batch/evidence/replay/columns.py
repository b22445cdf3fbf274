"""Which column of a recording plays which part, and how it becomes one of the samples table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import polars as pl

from mia_batch.corpus.check import Fault
from mia_batch.errors import CorpusError

__all__ = ["Columns", "Key", "resolve"]

Key = Literal["target_id", "document_id", "prefix"]
"""Columns that name a recording's targets; the first one that it has is used."""

_TEXTS = ("prompt", "finish_reason", "reason")
_PROBE = "probe"
_NUMBERS = ("sample_index", "n_tokens", "view_index", "point")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a recording, each with its part."""

    raw: pl.Schema  # the columns as they are read
    candidate: str  # the column with the continuations
    key: Key  # the column that names the target

    @property
    def needed(self) -> list[str]:
        """The columns that are read; texts that play no part are not among them."""
        used = {self.candidate, self.key, "view", *_TEXTS, *_NUMBERS}
        return [name for name in self.raw if name in used]

    @property
    def small(self) -> list[str]:
        """Those whose values can be wrong, and the key."""
        names = (self.key, "view", *_NUMBERS, "finish_reason")
        return [name for name in names if self.has(name)]

    def has(self, name: str) -> bool:
        """Whether a column is there and not null throughout."""
        return self.raw.get(name, pl.Null) != pl.Null

    @property
    def point(self) -> str | None:
        """The column that numbers the prompts of a target: ``view_index`` or ``point``."""
        return next(filter(self.has, ("view_index", "point")), None)

    @property
    def small_rows(self) -> list[pl.Expr]:
        """Key, prompt and sample, as expressions over the recording's columns."""
        key = pl.col(self.key).cast(pl.String).alias("key")
        numbered = self.point is not None and self.key != "prefix"  # which says where it ends
        index = pl.col(str(self.point)).fill_null(0) if numbered else pl.lit(0)
        if self.has("view"):
            view = pl.col("view").cast(pl.String)
        else:  # a point is a probe's; a prefix says itself what was asked
            view = pl.lit(_PROBE if self.has("point") else None, pl.String)
        return [
            key,
            view.alias("view"),
            index.cast(pl.UInt32, strict=False).alias("view_index"),
            self._or_null("sample_index", pl.UInt32()),
        ]

    @property
    def rows(self) -> list[pl.Expr]:
        """The same and further columns of the samples table."""
        candidate = pl.col(self.candidate).cast(pl.String).alias("candidate")
        texts = [self._or_null(name, pl.String()) for name in _TEXTS]
        return [*self.small_rows, candidate, *texts, self._or_null("n_tokens", pl.UInt32())]

    def _or_null(self, name: str, dtype: pl.DataType) -> pl.Expr:
        column = pl.col(name) if self.has(name) else pl.lit(None)
        return column.cast(dtype, strict=False).alias(name)

    @property
    def faults(self) -> list[Fault]:
        """What makes a row wrong."""
        found = []
        if self.has("sample_index"):
            rest = ", not the index of a sample; number each target's samples 0, 1, 2, ..."
            wrong = self._not_whole("sample_index").fill_null(value=True)
            found.append(Fault(wrong=wrong, name="sample_index", rest=rest))
        if self.point is not None:
            rest = ", not the number of a point; number each target's points 0, 1, 2, ..."
            wrong = self._not_whole(self.point).fill_null(pl.col(self.point).is_not_null())
            found.append(Fault(wrong=wrong, name=self.point, rest=rest))
        if self.has("n_tokens"):
            value = pl.col("n_tokens")
            known = value.is_not_nan() if self.raw["n_tokens"].is_float() else pl.lit(value=True)
            wrong = value.is_not_null() & known & self._not_whole("n_tokens").fill_null(value=True)
            rest = ", not a number of tokens; use whole numbers, or null where it is unknown"
            found.append(Fault(wrong=wrong, name="n_tokens", rest=rest))
        if self.has("finish_reason"):
            known = pl.col("finish_reason").cast(pl.String).is_in(["stop", "length"])
            rest = ", neither 'stop' nor 'length'; use one of them, or null where it is unknown"
            found.append(Fault(wrong=~known, name="finish_reason", rest=rest))
        return found

    def _not_whole(self, name: str) -> pl.Expr:
        return pl.col(name) != pl.col(name).cast(pl.UInt32, strict=False)


def resolve(raw: pl.Schema, *, candidate: str, where: str) -> Columns:
    """Find the columns of a recording, or refuse them; ``candidate`` is the user's name."""
    present = ", ".join(map(repr, raw))
    if candidate not in raw:
        msg = (
            f"{where} has no column {candidate!r} with the continuations, only {present}; "
            "name it as setting 'candidate_column'"
        )
        raise CorpusError(msg)
    keys = [key for key in get_args(Key) if raw.get(key, pl.Null) != pl.Null]
    if not keys:
        msg = (
            f"{where} names no targets; it must have a column 'target_id', 'document_id' or "
            f"'prefix', but has {present}"
        )
        raise CorpusError(msg)
    columns = Columns(raw=raw, candidate=candidate, key=keys[0])
    for name in columns.needed:
        _check_type(name, raw[name], where, number=name in _NUMBERS)
    return columns


def _check_type(name: str, dtype: pl.DataType, where: str, *, number: bool) -> None:
    allowed = dtype in (pl.String, pl.Categorical, pl.Enum)
    wanted = "strings"
    if number:
        allowed, wanted = dtype.is_integer() or dtype.is_float(), "whole numbers"
    if name == "document_id":
        allowed, wanted = allowed or dtype.is_integer(), "strings or integers"
    if not allowed and dtype != pl.Null:
        came = "nested JSON values" if dtype == pl.Object else f"type {dtype}"
        msg = f"{where}: column {name!r} holds {came}; it must hold {wanted}"
        raise CorpusError(msg)
