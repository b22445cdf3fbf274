"""Numbers of the command line."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click import Context, Parameter

__all__ = ["NumberRange", "whole_numbers"]


class NumberRange(click.FloatRange):
    """Numbers in a range, where click takes ``nan`` for one of any range."""

    def convert(self, value: float, param: Parameter | None, ctx: Context | None) -> float:
        """Read a number."""
        number = float(super().convert(value, param, ctx))
        if isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        return number


def whole_numbers(_context: Context, _option: Parameter, value: str | None) -> list[int] | None:
    """Read numbers separated by commas."""
    if value is None:
        return None
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        msg = f"{value!r} is no list of whole numbers such as 32,64"
        raise click.BadParameter(msg)
    return numbers
