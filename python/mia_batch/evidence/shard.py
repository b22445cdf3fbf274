"""A shard: one of several processes that share the blocks of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Shard"]


@dataclass(frozen=True, slots=True)
class Shard:
    """Number ``number`` of ``of``, from 1; block b belongs to number ``b % of + 1``."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"3/8"``; raises `ValueError` if that is no shard."""
        read = re.fullmatch(r"0*([1-9][0-9]{0,5})/0*([1-9][0-9]{0,5})", text, re.ASCII)
        if read is None or int(read[1]) > int(read[2]):
            msg = "write I/N with I from 1 to N, such as 3/8 for the third of eight"
            raise ValueError(msg)
        return cls(int(read[1]), int(read[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, block: pl.Expr) -> pl.Expr:
        """Whether blocks are its own."""
        return block % self.of == self.number - 1
