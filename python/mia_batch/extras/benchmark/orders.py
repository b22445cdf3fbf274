"""What a model is asked: the published order of something, and others in its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, TypeAlias

import numpy as np
import polars as pl

from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.benchmark.predictable import (
    Cell,
    Feature,
    describe_texts,
    draw_orders,
    find_patterns,
    list_categories,
)
from mia_batch.extras.benchmark.sets import Benchmark, letter
from mia_batch.prompts import LABELS
from mia_batch.stats import Floats, Ints

__all__ = ["TESTS", "Design", "Test", "Units", "build_units"]

Test: TypeAlias = Literal["rows", "options", "rewritten", "next-row"]
TESTS: tuple[Test, ...] = ("rows", "options", "rewritten", "next-row")
N_CANDIDATES = len(LABELS)
_MOST_OPTIONS = 6  # with more, permutations are not listed

_SCHEMA: dict[str, pl.DataType] = {
    "unit": pl.UInt32(),
    "alternative": pl.UInt32(),
    "text": pl.String(),
}
_BETWEEN_ROWS = "\n\n"
_NUMBER = re.compile(r"\d+")
_REFERS = re.compile(
    r"\b(?:all|none|both|neither|either|any) of (?:the|these|those|them)\b"
    r"|\b(?:both|neither|either)\b.*\b[A-F]\b"
    r"|\b[A-F] (?:and|or) [A-F]\b",
    re.IGNORECASE,
)
"""Options whose place is fixed by what they say."""
_IS_NUMBER = re.compile(r"\W*[\d.,:/]+\s*\S{0,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How a set is asked about.

    Attributes
    ----------
    shard_rows
        Rows in a row that are read as one text.
    shuffles
        Other orders of each shard, or of the options of each row.
    most_rows
        Rows that are asked about at most.
    context_rows
        Rows that stand before the candidates of a next row.
    seed
        Of all that is drawn.
    """

    shard_rows: int = 10
    shuffles: int = 9
    most_rows: int = 500
    context_rows: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The units of a test, with all alternatives of each.

    Attributes
    ----------
    table
        A row a text: ``unit``, ``alternative`` (0: the published one), ``text``; of
        next rows ``alternative`` numbers the question, and ``candidates`` says which
        candidate each letter shows (0: the published one).
    noun
        What a unit is called.
    why_exploratory
        Why the p-value is no level; None: it is one.
    notes
        Sentences on what was left out.
    """

    test: Test
    table: pl.DataFrame
    noun: str
    why_exploratory: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def n_units(self) -> int:
        return self.table["unit"].n_unique()


def build_units(benchmark: Benchmark, test: Test, design: Design) -> Units:
    """Build what a test asks; refuse an order that can be foreseen."""
    builders = {
        "rows": _build_rows,
        "options": _build_options,
        "rewritten": _build_rewritten,
        "next-row": _build_next_rows,
    }
    units = builders[test](benchmark, design)
    if units.table.is_empty():
        raise CorpusError(
            f"{benchmark.place} has nothing for the test {test!r}: no {units.noun} has"
            " anything to exchange; give more rows, or another --test"
        )
    return units


def _cut_cells(
    blocks: Sequence[int], n_rows: int, most_cells: int | None = None
) -> list[Cell]:
    """Cut rows into cells of so many, spread evenly where there are more than ``most_cells``."""
    numbers = np.array(blocks, np.int64)
    starts = np.arange(0, numbers.size - n_rows + 1, n_rows)
    if starts.size == 0 and numbers.size > 1:
        starts = np.zeros(1, np.int64)
    cells = []
    for start in starts.tolist():
        rows = np.arange(start, min(start + n_rows, numbers.size))
        cells.append(Cell(rows, numbers[rows]))
    cells = [cell for cell in cells if cell.can_change]
    if most_cells is not None and len(cells) > most_cells:
        places = np.linspace(0, len(cells) - 1, most_cells).round().astype(int)
        cells = [cells[place] for place in places.tolist()]
    return cells


def _refuse_patterns(
    benchmark: Benchmark, cells: Sequence[Cell], seed: int, test: str
) -> None:
    """Refuse rows whose order can be foreseen, from all of them."""
    categories = dict(list_categories(benchmark.columns))
    within = benchmark.record.within
    categories.pop(within or "", None)
    features = describe_texts(benchmark.texts, categories)
    patterns = find_patterns(cells, features, seed)
    if patterns:
        raise CorpusError(
            f"{benchmark.place}: the order of its rows can be foreseen, so that a model"
            f" that never saw it may find it likelier: {'; '.join(patterns)}. The test"
            f" {test!r} would have no meaning; exchange rows within blocks that have no"
            " order (--within COLUMN), or take another --test"
        )


def _build_rows(benchmark: Benchmark, design: Design) -> Units:
    """Put rows of shards in their published order and in others (Oren et al. 2023)."""
    all_cells = _cut_cells(benchmark.blocks, design.shard_rows)
    _refuse_patterns(benchmark, all_cells, design.seed, "rows")
    most_cells = max(1, design.most_rows // design.shard_rows)
    cells = _cut_cells(benchmark.blocks, design.shard_rows, most_cells)
    rng = np.random.default_rng(design.seed)
    rows: list[tuple[int, int, str]] = []
    for unit, cell in enumerate(cells):
        published = np.arange(cell.rows.size)[None]
        orders = np.concatenate([published, draw_orders(cell, design.shuffles, rng)])
        for alternative, order in enumerate(orders):
            texts = [benchmark.texts[row] for row in cell.rows[order].tolist()]
            rows.append((unit, alternative, _BETWEEN_ROWS.join(texts)))
    notes = []
    n_asked = sum(cell.rows.size for cell in cells)
    if n_asked < len(benchmark.texts):
        notes.append(f"{n_asked:,} of {len(benchmark.texts):,} rows are asked about")
    return Units(test="rows", table=_build_table(rows), noun="shard", notes=(*notes,))


def _build_table(rows: Sequence[tuple[int, int, str]]) -> pl.DataFrame:
    return pl.DataFrame(rows, _SCHEMA, orient="row")


# The order of the options.


def _build_options(benchmark: Benchmark, design: Design) -> Units:
    """Put the options of a row in their published order and in others (Ni et al. 2024)."""
    if not benchmark.options:
        raise SettingsError(
            f"{benchmark.record.name} has no options to choose from; name their column"
            " (--options-column), or take another --test"
        )
    rows = [*range(len(benchmark.options))]
    usable = [row for row in rows if _can_exchange(benchmark.options[row])]
    notes = []
    if len(usable) < len(rows):
        notes.append(
            f"{len(rows) - len(usable):,} of {len(rows):,} rows are left out: their"
            " options are numbers, equal, more than six, or refer to each other"
        )
    _refuse_option_patterns(benchmark, usable, design.seed)
    if len(usable) > design.most_rows:
        spread = np.linspace(0, len(usable) - 1, design.most_rows).round()
        usable = [usable[place] for place in spread.astype(int).tolist()]
    rng = np.random.default_rng(design.seed)
    texts: list[tuple[int, int, str]] = []
    for unit, row in enumerate(usable):
        options, question = benchmark.options[row], benchmark.questions[row]
        orders = [*permutations(range(len(options)))]  # the published one first
        n_others = min(design.shuffles, len(orders) - 1)
        places = 1 + rng.choice(len(orders) - 1, n_others, replace=False)
        for alternative, place in enumerate([0, *places.tolist()]):
            ordered = letter([options[option] for option in orders[place]])
            texts.append((unit, alternative, f"{question}\n{ordered}"))
    argument = benchmark.record.options_order
    why_exploratory = None
    if argument is None:
        why_exploratory = (
            "nobody says why options could stand in any other order"
            " (--options-order TEXT)"
        )
    return Units(
        test="options",
        table=_build_table(texts),
        noun="row",
        why_exploratory=why_exploratory,
        notes=(*notes,),
    )


def _can_exchange(options: Sequence[str]) -> bool:
    """Return whether nothing in the options says where they stand."""
    if len(options) > _MOST_OPTIONS or len({*options}) < len(options):
        return False
    if all(_IS_NUMBER.fullmatch(option) for option in options):
        return False
    return not any(_REFERS.search(option) for option in options)


def _refuse_option_patterns(
    benchmark: Benchmark, rows: Sequence[int], seed: int
) -> None:
    """Refuse options that are sorted, or whose right one stands at some places more often."""
    texts = [option for row in rows for option in benchmark.options[row]]
    cells, start = [], 0
    for row in rows:
        n_options = len(benchmark.options[row])
        places = np.arange(start, start + n_options)
        cells.append(Cell(places, np.zeros(n_options, np.int64)))
        start += n_options
    features = describe_texts(texts, {})
    features = [feature for feature in features if feature.name != "words"]
    is_right = _mark_answers(benchmark, rows)
    if is_right is not None:
        features.append(
            Feature(name="the right option", values=is_right, tests=("trend", "ends"))
        )
    patterns = find_patterns(cells, features, seed)
    if patterns:
        raise CorpusError(
            f"{benchmark.place}: the order of options can be foreseen, so that a model"
            f" that never saw it may find it likelier: {'; '.join(patterns)}. The test"
            " 'options' would have no meaning; take another --test"
        )


def _mark_answers(benchmark: Benchmark, rows: Sequence[int]) -> Floats | None:
    """Mark the right option of each row by 1; None where some answers name none."""
    marks: list[float] = []
    for row in rows:
        options = benchmark.options[row]
        place = _find_answer(benchmark, row) if benchmark.answers else None
        if place is None:
            return None
        marks += [float(number == place) for number in range(len(options))]
    return np.array(marks)


def _find_answer(benchmark: Benchmark, row: int) -> int | None:
    """Return the place of the right option: by letter, by its text, or by a number."""
    options, answer = benchmark.options[row], benchmark.answers[row].strip()
    if answer in options:
        return options.index(answer)
    letters = "ABCDEF"[: len(options)]
    if len(answer) == 1 and answer in letters:
        return letters.index(answer)
    if not answer.isascii() or not answer.isdigit():
        return None
    numbers = {value for value in benchmark.answers if value.strip().isdigit()}
    place = int(answer) - int("0" not in numbers)  # some sets count from 1
    return place if 0 <= place < len(options) else None


# Other numbers in the same question.


def _build_rewritten(benchmark: Benchmark, design: Design) -> Units:
    """Put other numbers of as many digits into each question."""
    if not benchmark.record.numbers:
        raise SettingsError(
            f"there is no rule by which numbers of {benchmark.record.name} could be"
            " others; take another --test"
        )
    rng = np.random.default_rng(design.seed)
    rows = [row for row, text in enumerate(benchmark.questions) if _NUMBER.search(text)]
    rows = rows[: design.most_rows]
    texts: list[tuple[int, int, str]] = []
    for unit, row in enumerate(rows):
        question = benchmark.questions[row]
        variants = [_rewrite_numbers(question, rng) for _ in range(design.shuffles)]
        numbered = enumerate([question, *variants])
        texts += [(unit, alternative, text) for alternative, text in numbered]
    return Units(
        test="rewritten",
        table=_build_table(texts),
        noun="question",
        why_exploratory=(
            "numbers that people chose are likelier than drawn ones for any model"
        ),
    )


def _rewrite_numbers(text: str, rng: np.random.Generator) -> str:
    """Replace each number by one of as many digits and final zeros, the same by the same."""
    replacements: dict[str, str] = {}

    def replace_number(match: re.Match[str]) -> str:
        number = match[0]
        if number not in replacements:
            replacements[number] = _draw_number(number, rng)
        return replacements[number]

    return _NUMBER.sub(replace_number, text)


def _draw_number(number: str, rng: np.random.Generator) -> str:
    head = number.rstrip("0")
    if not head:
        return number
    digits = [str(rng.integers(1, 10))]
    digits += [str(digit) for digit in rng.integers(0, 10, max(0, len(head) - 2))]
    if len(head) > 1:
        digits.append(str(rng.integers(1, 10)))
    return "".join(digits) + "0" * (len(number) - len(head))


# Which row comes next.

_TASK = (
    "Answer the question with the letter of the right option alone.\n\nQuestion: These"
    " rows stand in a public data set one after the other:\n\n{}\n\nWhich row comes"
    " directly after them in the data set?\nOptions:\n{}\n\nAnswer:"
)


def _build_next_rows(benchmark: Benchmark, design: Design) -> Units:
    """Ask which of the next four rows comes first, with each of them at each letter once.

    Cells share no row, so that under the null each of the four is first with the same
    probability, whatever is asked in other cells.
    """
    n_rows = design.context_rows + N_CANDIDATES
    all_cells = _cut_cells(benchmark.blocks, design.shard_rows)
    _refuse_patterns(benchmark, all_cells, design.seed, "next-row")
    most_cells = max(1, design.most_rows // n_rows)
    cells = _cut_cells(benchmark.blocks, n_rows, most_cells)
    cells = [cell for cell in cells if cell.rows.size == n_rows]
    rng = np.random.default_rng(design.seed)
    rows: list[tuple[int, int, str, list[int]]] = []
    unit = 0
    for cell in cells:
        if np.unique(cell.blocks[design.context_rows :]).size > 1:
            continue
        texts = [benchmark.texts[row] for row in cell.rows.tolist()]
        if len({*texts}) < len(texts):
            continue
        order = rng.permutation(N_CANDIDATES)
        for question in range(N_CANDIDATES):
            candidates = np.roll(order, question)
            text = _ask_next_row(texts, design.context_rows, candidates)
            rows.append((unit, question, text, candidates.tolist()))
        unit += 1
    schema = {**_SCHEMA, "candidates": pl.List(pl.UInt8)}
    return Units(
        test="next-row",
        table=pl.DataFrame(rows, schema, orient="row"),
        noun="place",
    )


def _ask_next_row(texts: Sequence[str], n_context: int, candidates: Ints) -> str:
    options = [texts[n_context + candidate] for candidate in candidates.tolist()]
    context = _BETWEEN_ROWS.join(texts[:n_context])
    return _TASK.format(context, letter(options))
