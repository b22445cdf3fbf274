"""Samples that failed and were tried again."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.parts import scan_parts
from mia_batch.schemas import Features, Samples
from tests import frames
from tests.frames import target_id


def sample(number: int, index: int, candidate: str | None, reason: str | None) -> dict[str, Any]:
    return {
        "target_id": target_id(number),
        "sample_index": index,
        **frames.CONTINUATION,
        "candidate": candidate,
        "reason": reason,
    }


def brief(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("target_id", "sample_index", "candidate", "reason"))


def write(folder, *parts: list[dict[str, Any]]) -> None:
    for number, rows in enumerate(parts):
        frames.table(Samples, rows).write_parquet(folder / f"block-{number}.parquet")


def read(folder) -> list[tuple[Any, ...]]:
    return (
        scan_parts(folder, Samples)
        .select("target_id", "sample_index", "candidate", "reason")
        .collect()
    ).rows()


def test_a_later_success_takes_the_place_of_a_failure(tmp_path):
    failed, kept = sample(0, 0, None, "refused"), sample(0, 1, "b", None)
    again = sample(0, 0, "a", None)
    write(tmp_path, [failed, kept], [again])
    assert read(tmp_path) == [brief(kept), brief(again)]


def test_so_does_an_earlier_one(tmp_path):
    good, failed = sample(0, 0, "a", None), sample(0, 0, None, "refused")
    write(tmp_path, [good], [failed])
    assert read(tmp_path) == [brief(good)]


def test_of_several_failures_the_last_stays(tmp_path):
    reasons = ["first", "second", "third"]
    write(tmp_path, *[[sample(0, 0, None, reason)] for reason in reasons])
    assert read(tmp_path) == [(target_id(0), 0, None, "third")]


def test_rows_that_never_failed_are_left_as_they_are(tmp_path):
    """That they are there twice is for the scores to refuse."""
    twice = [sample(0, 0, "a", None), sample(0, 0, "b", None)]
    write(tmp_path, twice, [sample(1, 0, None, "refused")])
    assert len(read(tmp_path)) == 3


def test_a_folder_without_parts_is_an_empty_table(tmp_path):
    assert read(tmp_path) == []


def test_features_follow_their_samples(tmp_path):
    def row(**numbers: int | None) -> dict[str, Any]:
        return {"target_id": target_id(0), "sample_index": 0, **frames.CONTINUATION} | numbers

    frames.features(row(words_candidate=None)).write_parquet(tmp_path / "a.parquet")
    frames.features(row(words_candidate=3)).write_parquet(tmp_path / "b.parquet")
    assert scan_parts(tmp_path, Features).collect()["words_candidate"].to_list() == [3]


@given(
    parts=st.lists(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()),
            unique_by=lambda key: key[:2],
        ),
        max_size=4,
    )
)
def test_as_the_reference_implementation_says(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    rows = [
        [
            sample(number, index, *((None, f"in {part}") if failed else (f"in {part}", None)))
            for number, index, failed in keys
        ]
        for part, keys in enumerate(parts)
    ]
    write(folder, *rows)
    flat = [brief(row) for part in rows for row in part]
    expected = [
        row
        for index, row in enumerate(flat)
        if row[3] is None
        or not any(
            other[:2] == row[:2] and (other[3] is None or later > index)
            for later, other in enumerate(flat)
            if later != index
        )
    ]
    assert read(folder) == expected


@pytest.mark.parametrize("engine", ["streaming", "in-memory"])
def test_the_order_is_that_of_the_parts(tmp_path, engine):
    rows = [sample(number, 0, f"{number}", None) for number in range(5000)]
    lost = sample(9999, 0, None, "refused")
    write(tmp_path, rows[:2500], [lost], rows[2500:], [lost])
    numbers = scan_parts(tmp_path, Samples).select("candidate").collect(engine=engine)
    assert numbers["candidate"].drop_nulls().to_list() == [f"{number}" for number in range(5000)]
    assert numbers.height == 5001
    assert isinstance(scan_parts(tmp_path, Samples), pl.LazyFrame)
