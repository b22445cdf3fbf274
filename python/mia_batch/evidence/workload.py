"""How much there is to decode: what is left is counted, lengths are measured on a sample of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.models.measure import estimated_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.budget import Budget
    from mia_batch.models.measure import Measure

__all__ = ["Workload", "forecast", "work_of"]

_MOST_MEASURED = 2048
"""Prompts whose tokens are counted; of more, so many spread evenly stand for all."""


_MEASURED = ("context", "text", "document_id")
_MOST_NAMED = 3
_READ_FOR_ONE = 4
"""Tokens read that count as one decoded: GPUs read in batches some four times as fast (assumed)."""


def work_of(budget: Budget, samples: int) -> pl.Expr:
    """Estimate the work of prompts in tokens decoded; those read count a quarter, once a prompt."""
    read, reference = estimated_tokens("context"), estimated_tokens("text")
    return read // _READ_FOR_ONE + samples * budget.expected(read, reference)


@dataclass(slots=True, kw_only=True)
class Workload:
    """Sums over the prompts that are to be continued."""

    prompts: int = 0
    samples: int = 0
    too_long: int = 0  # prompts without room to continue
    unfit: Counter[str] = field(default_factory=Counter)  # of these by document, as far as measured
    prompt_bytes: int = 0  # each prompt counted once
    first_tokens: int = 0  # most at the first attempt
    most_tokens: int = 0  # most if every candidate stays too short at every attempt
    estimated: bool = False

    def __add__(self, other: Workload) -> Workload:
        """Add both up."""
        sums = {
            each.name: getattr(self, each.name) + getattr(other, each.name)
            for each in fields(self)
            if each.name != "estimated"
        }
        return Workload(**sums, estimated=self.estimated or other.estimated)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the sums as name and text."""
        about = "about " if self.estimated else ""
        yield "prompts", f"{self.prompts:,}"
        yield "samples", f"{self.samples:,}"
        if self.too_long:
            most = ", ".join(f"{n:,} of {name}" for name, n in self.unfit.most_common(_MOST_NAMED))
            named = f", such as {most}" if most else ""
            yield "prompts that do not fit the context", f"{about}{self.too_long:,}{named}"
        yield "tokens to decode", f"{about}{self.first_tokens:,}, at most {self.most_tokens:,}"


_Row = tuple[str, str, int, str | None]  # context, text, samples, document


@dataclass(slots=True)
class _Thinned:
    """Some of many rows, spread evenly: every ``step``-th."""

    step: int = 1
    seen: int = 0
    rows: list[_Row] = field(default_factory=list)

    def add(self, row: _Row) -> None:
        if self.seen % self.step == 0:
            self.rows.append(row)
            if len(self.rows) > _MOST_MEASURED:
                self.rows = self.rows[::2]
                self.step *= 2
        self.seen += 1


def forecast(
    blocks: Iterable[Block],
    measure: Callable[[list[str], list[str]], list[Measure]],
    budget: Budget,
) -> Workload:
    """Add up what there is to decode: exactly for up to 2,048 prompts, else from some of them."""
    some = _Thinned()
    samples = prompt_bytes = 0
    for block in blocks:
        n = block.last - block.first
        samples += n * block.units.height
        prompt_bytes += int(block.units.select(pl.col("context").str.len_bytes().sum()).item())
        units = block.units
        if "document_id" not in units.columns:
            units = units.with_columns(document_id=pl.lit(None, pl.String))
        for context, text, document in units.select(_MEASURED).iter_rows():
            some.add((context, text, n, document))
    found = _sums(some.rows, measure, budget)
    if not some.rows or some.step == 1:
        return found
    share = some.seen / len(some.rows)
    left_out = round(share * found.too_long)
    return Workload(
        prompts=some.seen - left_out,
        samples=samples - round(samples * found.too_long / len(some.rows)),
        too_long=left_out,
        unfit=found.unfit,
        prompt_bytes=prompt_bytes,
        first_tokens=round(share * found.first_tokens),
        most_tokens=round(share * found.most_tokens),
        estimated=True,
    )


def _sums(
    rows: list[_Row],
    measure: Callable[[list[str], list[str]], list[Measure]],
    budget: Budget,
) -> Workload:
    found = Workload()
    measures = measure([row[0] for row in rows], [row[1] for row in rows])
    for (context, _, n, document), measured in zip(rows, measures, strict=True):
        prompt, reference = measured.prompt_tokens, measured.reference_tokens
        first = budget.first(prompt, reference)
        if prompt == 0 or first <= 0:
            found.too_long += 1
            found.unfit.update([document] if document else [])
            continue
        found.prompts += 1
        found.samples += n
        found.prompt_bytes += len(context.encode())
        found.first_tokens += n * first
        found.most_tokens += n * budget.most(prompt, reference)
    return found
