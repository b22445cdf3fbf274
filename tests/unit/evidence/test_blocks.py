"""Which samples are missing, from what the parts hold."""

from __future__ import annotations

import polars as pl
import pytest

from mia_batch import tables
from mia_batch.evidence.blocks import BLOCK_TARGETS, Block, Work, missing_blocks, unsampled
from mia_batch.schemas import Samples, Targets
from tests import frames

N_TARGETS = 2 * BLOCK_TARGETS + 10


@pytest.fixture
def run(tmp_path):
    """A targets table of three blocks, in which one target cannot be sampled; no parts yet."""
    rows = [{"prefix": "a", "reference": "b", "n_words": 2}] * N_TARGETS
    rows[3] = {"reason": "the text is null"}
    numbered = frames.targets(*rows).with_columns(
        # real identifiers differ in their first half too
        target_id=pl.Series([f"{number:016x}{number:016x}" for number in range(N_TARGETS)])
    )
    tables.sink(numbered, tmp_path / "targets.parquet", Targets)
    (tmp_path / "samples").mkdir()
    return tmp_path


def missing(run, n_samples) -> list[Block]:
    return list(missing_blocks(run / "targets.parquet", run / "samples", n_samples))


def store(run, block: Block, *, rows: int = BLOCK_TARGETS):
    """Write a part with every sample of a block, or of its first rows only."""
    ids = block.targets["target_id"].head(rows).to_list()
    found = [
        {"target_id": target_id, "sample_index": index, "candidate": "c"}
        for target_id in ids
        for index in range(block.first, block.last)
    ]
    part = frames.table(Samples, found)
    tables.sink(part, run / "samples" / block.part_name, Samples)


def work(run, n_samples) -> Work:
    return unsampled(run / "targets.parquet", run / "samples", n_samples)


def test_at_first_everything_is_missing_but_what_cannot_be_sampled(run):
    blocks = missing(run, 10)
    assert [block.index for block in blocks] == [0, 1, 2]
    assert [block.targets.height for block in blocks] == [BLOCK_TARGETS - 1, BLOCK_TARGETS, 10]
    assert {(block.first, block.last, block.attempt) for block in blocks} == {(0, 10, 0)}
    assert blocks[0].targets.columns == Targets.column_names()
    assert work(run, 10) == Work(targets=N_TARGETS - 1, done=0)


def test_what_a_part_holds_is_not_missing(run):
    store(run, missing(run, 10)[1])
    assert [block.index for block in missing(run, 10)] == [0, 2]
    assert work(run, 10) == Work(targets=N_TARGETS - 1 - BLOCK_TARGETS, done=BLOCK_TARGETS)


def test_nothing_is_missing_when_all_parts_are_there_or_more_was_sampled_than_is_wanted(run):
    for block in missing(run, 10):
        store(run, block)
    assert missing(run, 10) == []
    assert missing(run, 4) == []
    assert work(run, 10) == Work(targets=0, done=N_TARGETS - 1)


def test_more_samples_ask_only_for_those_that_are_missing(run):
    for block in missing(run, 4):
        store(run, block)
    assert {(block.first, block.last) for block in missing(run, 10)} == {(4, 10)}


def test_targets_with_fewer_samples_than_their_block_get_a_part_of_their_own(run):
    store(run, missing(run, 4)[0], rows=5)
    first, second, *_ = missing(run, 10)
    assert (first.index, first.first, first.last, first.targets.height) == (0, 4, 10, 5)
    assert (second.index, second.first, second.last) == (0, 0, 10)
    assert second.targets.height == BLOCK_TARGETS - 6
    assert first.part_name != second.part_name


def test_a_part_that_is_there_is_never_written_again(run):
    block = missing(run, 10)[0]
    store(run, block, rows=5)
    again = missing(run, 10)[0]
    assert (again.index, again.first, again.last, again.attempt) == (0, 0, 10, 1)
    assert again.part_name == "block-00000000.samples-00000-00010.attempt-1.parquet"
