"""Benchmarks: those that have names, how a row is written, and which order the rows are in."""

from __future__ import annotations

import json
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from string import Formatter
from typing import Any

import polars as pl

from mia_batch.corpus import find_files
from mia_batch.corpus.files import FORMATS, Reading
from mia_batch.errors import CorpusError, SettingsError

__all__ = ["Benchmark", "NamedBenchmark", "named_benchmarks", "read_benchmark"]

MOST_ROWS = 200_000
MOST_CHARACTERS = 1 << 28
"""What a set may have: larger ones are no benchmarks, or were made to fill the memory."""
OPTIONS = "options"
"""In a template, the place of the answers to choose from, each on a line with its letter."""
_FEWEST = 2  # rows
_OWN_ROW = "Question: {question}\nAnswer: {answer}"
_DIGITS = "0123456789abcdef"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBenchmark:
    """A benchmark as its record, or the user, describes it.

    Attributes
    ----------
    row, question
        How a row is written, and its question alone: columns in braces.
    options
        The column of the answers to choose from, a list or a field of a struct, or
        several columns.
    answer
        The column of the right one.
    order
        What is known of the order of rows.
    within
        A column whose rows stand in blocks: rows are exchanged within a block.
    options_order
        Why the options could stand in any other order; None: nobody knows.
    numbers
        Whether the numbers of a question can be exchanged for others.
    """

    name: str
    row: str
    question: str | None = None
    title: str | None = None
    paper: str | None = None
    hub: str | None = None
    split: str | None = None
    options: tuple[str, ...] = ()
    answer: str | None = None
    order: str = "not described"
    within: str | None = None
    options_order: str | None = None
    numbers: bool = False
    order_sha256: str | None = None
    rows_sha256: str | None = None

    def list_columns(self) -> list[str]:
        """List the columns that a row is written from, those of blocks and answers, too."""
        names = [*_list_fields(self.row)]
        if self.question is not None:
            names += _list_fields(self.question)
        names = [name for name in names if name != OPTIONS]
        names += [name.partition(".")[0] for name in self.options]
        names += [name for name in (self.answer, self.within) if name]
        return [*dict.fromkeys(names)]


@cache
def named_benchmarks() -> dict[str, NamedBenchmark]:
    """Return the benchmarks that have records, by name."""
    path = Path(__file__).with_name("sets.toml")
    records = tomllib.loads(path.read_text("utf-8"))
    return {
        name: NamedBenchmark(
            name=name,
            **record | {"options": tuple(record.get("options", ()))},
        )
        for name, record in records.items()
    }


def _list_fields(template: str) -> Iterator[str]:
    """Iterate over the columns that a template names; anything but names is refused."""
    try:
        parts = [*Formatter().parse(template)]
    except ValueError as error:
        raise SettingsError(
            f"the template {template!r} cannot be read ({error}); write columns in"
            " braces, such as {question}, and a brace itself twice"
        ) from None
    for _, name, form, conversion in parts:
        if name is None:
            continue
        # A field can reach into objects: only names of columns are let through
        if form or conversion or not name or set(name) & set(".[]"):
            raise SettingsError(
                f"the template {template!r} has {{{name}}}; give the name of a column"
                " alone, such as {question}"
            )
        yield name


def _fill(template: str, values: Mapping[str, str]) -> str:
    return "".join(
        text + ("" if name is None else values[name])
        for text, name, _, _ in Formatter().parse(template)
    )


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """The rows of a benchmark in the order of its files.

    Attributes
    ----------
    texts, questions
        Rows as they are written, and their questions alone.
    options
        The answers to choose from, of each row; empty where the set has none.
    answers
        The right one of each row, as the set writes it.
    blocks
        The block of each row, as a number.
    columns
        What the rows hold, by column.
    order_sha256, rows_sha256
        Hashes of the rows in their order, and in whatever order.
    """

    record: NamedBenchmark
    place: str
    texts: list[str]
    questions: list[str]
    options: list[list[str]]
    answers: list[str]
    blocks: list[int]
    columns: dict[str, list[Any]] = field(repr=False)
    order_sha256: str
    rows_sha256: str

    @property
    def hashes(self) -> str:
        return f"{self.order_sha256}:{self.rows_sha256}"


def find_record(name: str, place: str | None, **changed: Any) -> NamedBenchmark:
    """Return the record of a named set, or of a file; ``changed`` is what the user says."""
    changes = {key: value for key, value in changed.items() if value is not None}
    record = named_benchmarks().get(name)
    if record is not None and place is None:
        raise SettingsError(
            f"{name} is not fetched: give a copy of it with --from, such as the files"
            f" of https://huggingface.co/datasets/{record.hub} ({record.split})"
        )
    if record is None and place is not None:
        names = ", ".join(named_benchmarks())
        raise SettingsError(
            f"{name!r} is no benchmark with a record ({names}); give the path of your"
            " own file instead, without --from"
        )
    if record is None:
        row = changes.pop("row", "")
        record = NamedBenchmark(name=Path(name).stem, row=row, numbers=True)
    return replace(record, **changes)


def read_benchmark(
    record: NamedBenchmark, place: str, expected: str | None = None
) -> Benchmark:
    """Read the rows of a benchmark, and check that nobody has put them in another order.

    ``expected`` is a hash of the rows in their order, or both hashes with a colon
    between.
    """
    frame, record = _read_rows(record, place)
    for name in record.list_columns():
        if frame[name].null_count():
            row = int(frame[name].is_null().arg_max() or 0)
            raise CorpusError(
                f"{place}: column {name!r} is null in row {row + 1:,}; leave the row"
                " out, or give a template without the column"
            )
    columns = {name: frame[name].to_list() for name in record.list_columns()}
    options = _read_options(record, columns, place, frame.height)
    if not options and OPTIONS in {*_list_fields(record.row)}:
        raise SettingsError(
            f"the template {record.row!r} has {{options}}, but no column of options is"
            " named; give --options-column"
        )
    rows = [*_write_rows(columns, options)]
    digests = [_hash_row(columns, number) for number in range(frame.height)]
    blocks = [0] * frame.height
    if record.within is not None:
        values = [str(value) for value in columns[record.within]]
        codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
        blocks = [codes[value] for value in values]
    benchmark = Benchmark(
        record=record,
        place=place,
        texts=[_fill(record.row, row) for row in rows],
        questions=[_fill(record.question or record.row, row) for row in rows],
        options=options,
        answers=[str(value) for value in columns[record.answer]]
        if record.answer
        else [],
        blocks=blocks,
        columns=columns,
        order_sha256=_join_digests(digests),
        rows_sha256=_join_digests(sorted(digests)),
    )
    _check_hashes(benchmark, expected)
    return benchmark


def _read_rows(
    record: NamedBenchmark, place: str
) -> tuple[pl.DataFrame, NamedBenchmark]:
    """Read the columns of a record, up to what a benchmark may have."""
    source = find_files(place)
    source.refuse_unreadable()
    reader, reading = FORMATS[source.kind], Reading()
    schema = reader.read_schema(source.files, reading)
    if not schema:
        raise CorpusError(f"{place} has no rows; give the file of the set")
    if not record.row:
        record = replace(record, row=_guess_row(place, [*schema]))
    for name in record.list_columns():
        if name not in schema:
            raise CorpusError(
                f"{place} has no column {name!r}, only"
                f" {', '.join(map(repr, schema))}; name the set that it is, or give the"
                " template of a row (--row)"
            )
    frames: list[pl.DataFrame] = []
    n_rows, n_bytes = 0, 0
    for frame in reader.read_rows(source.files, schema, record.list_columns(), reading):
        frames.append(frame)
        n_rows += frame.height
        n_bytes += int(frame.estimated_size())
        if n_rows > MOST_ROWS or n_bytes > MOST_CHARACTERS:
            raise CorpusError(
                f"{place} has more than {MOST_ROWS:,} rows or {MOST_CHARACTERS >> 20}"
                " MiB, which no benchmark has; give its test split alone"
            )
    if n_rows < _FEWEST:
        raise CorpusError(
            f"{place} has {n_rows:,} rows; an order needs {_FEWEST:,} at least"
        )
    return pl.concat(frames), record


def _guess_row(place: str, names: Sequence[str]) -> str:
    if {"question", "answer"} <= {*names}:
        return _OWN_ROW
    if "text" in names:
        return "{text}"
    raise CorpusError(
        f"{place} has the columns {', '.join(map(repr, names))}; say how a row is"
        " written, such as --row 'Question: {question}'"
    )


def _read_options(
    record: NamedBenchmark, columns: Mapping[str, list[Any]], place: str, n_rows: int
) -> list[list[str]]:
    """Return the options of each row: of a column of lists, of a field, or of columns."""
    if not record.options:
        return []
    if len(record.options) > 1:
        values = [columns[name] for name in record.options]
        return [[str(option) for option in row] for row in zip(*values, strict=True)]
    name, _, key = record.options[0].partition(".")
    options = []
    for number in range(n_rows):
        value = columns[name][number]
        if isinstance(value, str):  # of JSON Lines
            value = _parse(value)
        if key and isinstance(value, dict):
            value = value.get(key)
        is_list = isinstance(value, list) and len(value) > 1
        if not is_list or not all(isinstance(item, str) for item in value):
            raise CorpusError(
                f"{place}: column {name!r} has no list of two texts or more in row"
                f" {number + 1:,}; name the column of the options"
                " (--options-column)"
            )
        options.append(value)
    return options


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _write_rows(
    columns: Mapping[str, list[Any]], options: Sequence[Sequence[str]]
) -> Iterator[dict[str, str]]:
    """Iterate over the values of rows as texts, by column."""
    n_rows = len(next(iter(columns.values())))
    for number in range(n_rows):
        row = {name: str(values[number]) for name, values in columns.items()}
        if options:
            row[OPTIONS] = letter(options[number])
        yield row


def letter(options: Sequence[str]) -> str:
    """Write options on lines of their own, each with its letter."""
    lines = [f"{chr(65 + place)}. {option}" for place, option in enumerate(options)]
    return "\n".join(lines)


# Which order it is.


def _hash_row(columns: Mapping[str, list[Any]], number: int) -> bytes:
    """Hash what a row holds, whatever the form of its file and of its white space."""
    values = {name: _normalise(values[number]) for name, values in columns.items()}
    text = json.dumps(values, ensure_ascii=False, sort_keys=True)
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _normalise(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("[", "{"):
        parsed = _parse(value)  # what JSON Lines nest is read as text
        value = parsed if isinstance(parsed, list | dict) else value
    if isinstance(value, dict):
        return {str(name): _normalise(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_normalise(item) for item in value]
    return " ".join(unicodedata.normalize("NFC", str(value)).split())


def _join_digests(digests: Sequence[bytes]) -> str:
    return sha256(b"".join(digests)).hexdigest()


def parse_hashes(text: str) -> tuple[str, str | None]:
    """Parse a hash of the order, or that and one of the rows with a colon between."""
    order, colon, rows = text.strip().lower().partition(":")
    parts = [order, rows] if colon else [order]
    if any(len(part) != 64 or set(part) - set(_DIGITS) for part in parts):
        raise SettingsError(
            f"--expect-hash is {text!r}; give the hash of the order as a run printed"
            " it, 64 hexadecimal digits, or both hashes with a colon between"
        )
    return order, rows or None


def _check_hashes(benchmark: Benchmark, expected: str | None) -> None:
    """Refuse rows that are in another order than the one that is known, or are others."""
    record = benchmark.record
    order, rows = record.order_sha256, record.rows_sha256
    if expected is not None:
        order, rows = parse_hashes(expected)
    if order is None or benchmark.order_sha256 == order:
        return
    if rows == benchmark.rows_sha256:
        raise CorpusError(
            f"{benchmark.place} has the rows of {record.name} in another order than the"
            " published one: it was shuffled or sorted before, and a test of it says"
            " nothing; give the files as they were published"
        )
    if rows is None:
        raise CorpusError(
            f"{benchmark.place} is not in the order that is expected, or has other"
            f" rows: the hash of its order is {benchmark.order_sha256}; give the files"
            " as they were published"
        )
    raise CorpusError(
        f"{benchmark.place} has other rows than {record.name}: their hashes are"
        f" {benchmark.hashes}; give the split whose hashes are expected"
    )


def describe_order(benchmark: Benchmark, expected: str | None) -> str:
    """Say whether the order is the published one, or who says so."""
    record = benchmark.record
    if expected is not None or record.order_sha256 is not None:
        source = f"the record of {record.name}"
        if expected is not None:
            source = "--expect-hash"
        return f"the order is the published one by {source}"
    return (
        "that this is the published order is your word: no hash of it is recorded; give"
        f" --expect-hash {benchmark.hashes} from now on"
    )
