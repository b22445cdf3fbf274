"""Names of a run's documents, files and authors, and what stands for those with identifiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import polars.selectors as cs

from mia_batch.pipeline.folder import RunFolder
from mia_batch.report.masking import NAME_COLUMNS, Masking, mask_names

_TABLES = ("targets", "known", "rollup", "findings")
# What the corpus says of a document, and is no name
_NO_NAMES = ("isbn", "sha256", "attack", "longest_target_id")
_WITH_PLACES = ("input", "inputs", "settings", "plan")
"""Parts of ``run.json`` with what a user gave, such as files."""


def fill_names(run: RunFolder, masking: Masking) -> Masking:
    """Fill in what stands for the names of a run that have identifiers."""
    return masking if masking.names is not None else fill_names_of_all([run], masking)


def fill_names_of_all(runs: Sequence[RunFolder], masking: Masking) -> Masking:
    """Fill in what stands for names, the same in each of several runs."""
    if masking.unmask:
        return masking
    names: set[str] = set()
    for run in runs:
        names |= _read_names(run)
    return replace(masking, names=mask_names(names))


def _read_names(run: RunFolder) -> set[str]:
    strings = [pl.LazyFrame(schema={"name": pl.String})]
    for name in _TABLES:
        if not run.path(name).exists():
            continue
        table = run.scan(name)
        columns = [*NAME_COLUMNS]
        if name == "rollup":
            columns = list_corpus_columns(table)
        named = cs.string() & cs.by_name(columns, require_all=False)
        strings += [
            table.select(name=pl.col(column))
            for column in cs.expand_selector(table.collect_schema(), named)
        ]
    names = pl.concat(strings).unique().drop_nulls().collect(engine="streaming")
    return {*names["name"]}


def list_corpus_columns(rollup: pl.LazyFrame) -> list[str]:
    """List the columns of a roll-up that have names, or what the corpus says of documents."""
    texts = cs.string() - cs.by_name(_NO_NAMES, require_all=False)
    return [*cs.expand_selector(rollup.collect_schema(), texts)]


def mask_places(record: dict[str, Any], masking: Masking) -> dict[str, Any]:
    """Mask the identifiers in names of files, and in what else a user gave."""
    if masking.unmask:
        return record
    parts = {name: record[name] for name in _WITH_PLACES if name in record}
    names = mask_names(_list_strings(parts)) | {**(masking.names or {})}
    masked: dict[str, Any] = _replace_strings(parts, names)
    return record | masked


def _list_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for element in value:
            yield from _list_strings(element)
    elif isinstance(value, dict):
        yield from value
        for element in value.values():
            yield from _list_strings(element)


def _replace_strings(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_replace_strings(element, names) for element in value]
    if isinstance(value, dict):
        return {
            names.get(name, name): _replace_strings(element, names)
            for name, element in value.items()
        }
    return value
