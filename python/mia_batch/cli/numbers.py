"""Numbers of the command line."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click import Context, Parameter

__all__ = ["NumberRange"]


class NumberRange(click.FloatRange):
    """Numbers in a range, where click takes ``nan`` for one of any range."""

    def convert(self, value: float, param: Parameter | None, ctx: Context | None) -> float:
        """Read a number."""
        number = float(super().convert(value, param, ctx))
        if isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        return number
