"""Which rows are missing, from what the parts hold, and what a later attempt replaces."""

from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mia_batch import tables
from mia_batch.evidence.parts import (
    BLOCK_TARGETS,
    PIECE_TOKENS,
    RECORDED_BLOCK_TARGETS,
    TARGETS_AT_ONCE,
    Block,
    FreshUnits,
    Missing,
    Parts,
    PromptUnits,
    Work,
    scan_parts,
)
from mia_batch.prompts import continuation
from mia_batch.schemas import Features, Prompts, Samples, Targets
from mia_batch.views import TARGET, View
from tests import frames
from tests.frames import target_id

N_TARGETS = 2 * BLOCK_TARGETS + 10


@pytest.fixture
def run(tmp_path):
    """A targets table of three blocks, in which one target cannot be sampled; no parts yet."""
    rows = [{"prefix": "a", "reference": "b", "n_words": 2}] * N_TARGETS
    rows = [row | {"target": "a b"} for row in rows]
    rows[3] = {"reason": "the text is null"}
    numbered = frames.targets(*rows).with_columns(
        # real identifiers differ in their first half too
        target_id=pl.Series(
            [f"{number:016x}{number:016x}" for number in range(N_TARGETS)]
        )
    )
    tables.sink(numbered, tmp_path / "targets.parquet", Targets)
    (tmp_path / "samples").mkdir()
    make_prompts(tmp_path, VIEW)
    return tmp_path


VIEW = View(
    model=TARGET,
    name="continuation",
    make=continuation,
    columns=("prefix", "reference"),
)


def parts_of(run, schema=Samples, view=VIEW, block_targets=BLOCK_TARGETS) -> Parts:
    folder = run / schema.__name__.lower()
    folder.mkdir(exist_ok=True)
    return Parts(
        folder=folder,
        schema=schema,
        model=view.model,
        view=view.name,
        block_targets=TARGETS_AT_ONCE if schema is Prompts else block_targets,
    )


def make_prompts(run, view) -> None:
    parts = parts_of(run, Prompts, view)
    targets = FreshUnits(pl.scan_parquet(run / "targets.parquet"))
    for block in Missing(targets, parts, view.n).blocks():
        rows = view.fill_prompts(view.make(block.units))
        new_rows = rows.filter(pl.col("view_index") >= block.first)
        tables.sink(new_rows, parts.folder / block.part_name, Prompts)


def prompt_units(run, view=VIEW) -> PromptUnits:
    return PromptUnits(
        run / "targets.parquet", parts_of(run, Prompts, view), view, askable=True
    )


def find(run, n_samples, **options) -> Missing:
    return Missing(prompt_units(run), parts_of(run), n_samples, **options)


def missing(run, n_samples, **options) -> list[Block]:
    return list(find(run, n_samples, **options).blocks())


def store(run, block: Block, *, rows: int = BLOCK_TARGETS, failed=()):
    """Write a part with the samples of a block's first rows; some pairs of row and index fail."""
    ids = block.units["target_id"].head(rows).to_list()
    part_rows = [
        {"target_id": target_id, "sample_index": index, **frames.CONTINUATION}
        | ({"reason": "refused"} if (row, index) in failed else {"candidate": "c"})
        for row, target_id in enumerate(ids)
        for index in range(block.first, block.last)
    ]
    part = frames.table(Samples, part_rows)
    tables.sink(part, run / "samples" / block.part_name, Samples)


def work(run, n_samples, **options) -> Work:
    return find(run, n_samples, **options).count()


def test_at_first_everything_is_missing_and_parts_are_named_by_where_their_targets_stand(
    run,
):
    blocks = missing(run, 10)
    assert [block.index for block in blocks] == [0, 1, 2]
    assert [block.units.height for block in blocks] == [
        BLOCK_TARGETS - 1,
        BLOCK_TARGETS,
        10,
    ]
    assert {(block.first, block.last, block.attempt) for block in blocks} == {
        (0, 10, 0)
    }
    names = {"target_id", "document_id", "view_index", "context", "text", "reason"}
    assert names <= set(blocks[0].units.columns)
    assert blocks[0].units.select("context", "text").unique().rows() == [("a", "b")]
    assert work(run, 10) == Work(left=N_TARGETS - 1, done=0)
    targets = pl.read_parquet(run / "targets.parquet")
    parts = parts_of(run)
    blocks = missing(run, 10)
    for block in blocks[1:]:
        rows = parts.target_rows(run / "samples" / block.part_name)
        assert targets[rows.start : rows.stop]["target_id"].equals(
            block.units["target_id"]
        )
    recorded = parts_of(run, block_targets=RECORDED_BLOCK_TARGETS)
    assert recorded.target_rows(run / "samples" / blocks[2].part_name) == range(
        1024, 1536
    )


def test_what_parts_hold_is_not_missing_and_more_samples_ask_only_for_the_rest(run):
    expected_parts = [describe_block(block) for block in missing(run, 10)]
    first, second, third = missing(run, 10)
    blocks_left = find(run, 10).blocks()
    assert describe_block(next(blocks_left)) == expected_parts[0]
    store(run, second)  # what is stored meanwhile changes nothing
    assert [*map(describe_block, blocks_left)] == expected_parts[1:]
    assert [block.index for block in missing(run, 10)] == [0, 2]
    assert work(run, 10) == Work(left=N_TARGETS - 1 - BLOCK_TARGETS, done=BLOCK_TARGETS)
    store(run, first)
    store(run, third)
    assert [missing(run, n) for n in (10, 4)] == [[], []]
    assert work(run, 10) == Work(left=0, done=N_TARGETS - 1)
    assert {(block.first, block.last) for block in missing(run, 12)} == {(10, 12)}


def test_targets_with_fewer_samples_than_their_block_get_a_part_of_their_own(run):
    store(run, missing(run, 4)[0], rows=5)
    first, second, *_ = missing(run, 10)
    assert (first.index, first.first, first.last, first.units.height) == (0, 4, 10, 5)
    assert (second.index, second.first, second.last) == (0, 0, 10)
    assert second.units.height == BLOCK_TARGETS - 6
    assert first.part_name != second.part_name


def test_failed_samples_are_missing_only_when_they_are_to_be_tried_again(run):
    for block in missing(run, 4):
        store(run, block, failed={(0, 0), (0, 1), (0, 3), (5, 2), (6, 2)})
    assert missing(run, 4) == []
    again = missing(run, 4, retry_failed=True)
    first = [block for block in again if block.index == 0]
    keys_by_samples = {
        (b.first, b.last): b.units["target_id"].str.slice(0, 16).to_list()
        for b in first
    }
    whole = missing(run, 5)[0].units["target_id"].str.slice(0, 16).to_list()
    assert keys_by_samples == {(0, 2): whole[:1], (3, 4): whole[:1], (2, 3): whole[5:7]}
    assert {block.index for block in again} == {0, 1, 2}
    assert work(run, 4, retry_failed=True) == Work(left=9, done=N_TARGETS - 1 - 9)


def test_failures_that_were_tried_again_with_success_are_not_missing(run):
    for block in missing(run, 4):
        store(run, block, failed={(0, 0), (5, 2)})
    for block in missing(run, 4, retry_failed=True):
        store(run, block, failed={(0, 2)})
    blocks_left = missing(run, 4, retry_failed=True)
    assert [(b.first, b.last, b.attempt, b.units.height) for b in blocks_left] == [
        (2, 3, 1, 1)
    ] * 3
    assert missing(run, 4) == []
    ranges = {(b.first, b.last) for b in missing(run, 6, retry_failed=True)}
    assert ranges == {(2, 3), (4, 6)}  # failed and new ones in one go


def test_a_part_that_is_there_is_never_written_again_even_where_an_earlier_is_gone(run):
    first = missing(run, 2)[0]
    store(run, first, rows=10)
    second = missing(run, 2)[0]
    store(run, second, rows=20)
    name = "block-00000000.target-continuation-00000-00002.attempt-1.parquet"
    assert (second.index, second.first, second.last, second.part_name) == (
        0,
        0,
        2,
        name,
    )
    (run / "samples" / first.part_name).unlink()
    assert [second.attempt, missing(run, 2)[0].attempt] == [1, 2]


def grow(run, n_new: int) -> list[str]:
    old = pl.read_parquet(run / "targets.parquet")
    row = {"prefix": "a", "reference": "b", "target": "a b", "n_words": 2}
    new = frames.targets(*[row] * n_new).with_columns(
        target_id=pl.Series([f"f{number:015x}{number:016x}" for number in range(n_new)])
    )
    tables.sink(pl.concat([new, old]), run / "targets.parquet", Targets)
    return [*new["target_id"], *old["target_id"]]


def test_a_corpus_that_has_grown_misses_only_what_is_new(run):
    for block in missing(run, 3):
        store(run, block)
    names = grow(run, TARGETS_AT_ONCE + 7)  # every old target is in another block now
    make_prompts(run, VIEW)
    blocks = missing(run, 3)
    target_names = [name for block in blocks for name in block.units["target_id"]]
    assert target_names == names[: TARGETS_AT_ONCE + 7]
    assert work(run, 3) == Work(left=TARGETS_AT_ONCE + 7, done=N_TARGETS - 1)
    assert all(
        block.units["context"].to_list() == ["a"] * block.units.height
        for block in blocks
    )
    further_names = [
        name for block in missing(run, 4) for name in block.units["target_id"]
    ]
    assert sorted(further_names) == sorted(set(names) - {f"{3:016x}{3:016x}"})


def test_prompts_of_a_view_with_several_are_missing_one_by_one(run):
    def several(n):
        def make(targets):
            index = pl.lit(list(range(n)), dtype=pl.List(pl.UInt32))
            prompts = targets.select("target_id", view_index=index).explode(
                "view_index"
            )
            return prompts.with_columns(
                text=pl.format("variant {}", "view_index"), context=pl.lit("")
            )

        return View(model=TARGET, name="neighbour", make=make, n=n)

    def samples(n):
        parts = parts_of(run, view=several(n))
        blocks = Missing(prompt_units(run, several(n)), parts).blocks()
        columns = ["target_id", "view_index", "text"]
        return [
            row for block in blocks for row in block.units.select(columns).iter_rows()
        ]

    make_prompts(run, several(2))
    assert len(samples(2)) == 2 * (N_TARGETS - 1)
    make_prompts(run, several(3))  # what was there is not made again
    assert len(list((run / "prompts").glob("*neighbour*"))) == 2
    neighbours = samples(3)
    assert neighbours[:4] == [
        (f"{0:032x}", 0, "variant 0"),
        (f"{0:032x}", 1, "variant 1"),
        (f"{0:032x}", 2, "variant 2"),
        (f"{1:016x}{1:016x}", 0, "variant 0"),
    ]
    assert len(neighbours) == 3 * (N_TARGETS - 1)


def long_texts(run, sizes):
    """Give targets references of so many bytes, and make their prompts anew."""
    path = run / "targets.parquet"
    long = pl.read_parquet(path).with_columns(
        reference=pl.Series([size * "b" for size in sizes], dtype=pl.String)
    )
    tables.sink(long.lazy(), path, Targets)
    for part in (run / "prompts").iterdir():
        part.unlink()
    make_prompts(run, VIEW)


def a_byte(tokens: int) -> pl.Expr:
    """Work of texts whose every byte is worth so many tokens."""
    return tokens * pl.col("text").str.len_bytes().cast(pl.Int64)


@given(
    sizes=st.lists(st.integers(1, 400), min_size=N_TARGETS, max_size=N_TARGETS),
    tokens=st.integers(1, 1000),
    n=st.integers(1, 3),
    data=st.data(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
def test_pieces_of_long_blocks_are_even_and_the_same_whatever_is_there(
    run, sizes, tokens, n, data
):
    """Killed at any time, what is left has the names that it would have had."""
    for part in (run / "samples").iterdir():
        part.unlink()
    long_texts(run, sizes)
    pieces = missing(run, n, work=a_byte(tokens))
    names = [piece.part_name for piece in pieces]
    assert len({*names}) == len(names)
    assert sorted(names) == names
    target_names = [target for piece in pieces for target in piece.units["target_id"]]
    assert target_names == [
        target for block in missing(run, n) for target in block.units["target_id"]
    ]
    for index in {piece.index for piece in pieces}:
        piece_units = [piece.units for piece in pieces if piece.index == index]
        work = [
            units.select(a_byte(tokens)).to_series().to_list() for units in piece_units
        ]
        largest, total = max(map(max, work)), sum(map(sum, work))
        most_pieces = min(total // PIECE_TOKENS + 1, 10)
        assert len(piece_units) <= most_pieces
        for piece_work in work:
            assert abs(sum(piece_work) - total / most_pieces) <= largest + most_pieces
    is_stored = data.draw(
        st.lists(st.booleans(), min_size=len(pieces), max_size=len(pieces))
    )
    stored_names = [
        piece.part_name
        for piece, is_there in zip(pieces, is_stored, strict=True)
        if is_there
    ]
    for piece in pieces:
        if piece.part_name in stored_names:
            store(run, piece)
    pieces_left = missing(run, n, work=a_byte(tokens))
    assert [*map(describe_block, pieces_left)] == [
        describe_block(piece) for piece in pieces if piece.part_name not in stored_names
    ]


def describe_block(piece):
    return piece.part_name, piece.units["target_id"].to_list()


def test_a_piece_that_is_tried_again_gets_a_name_that_none_of_its_block_has(run):
    long_texts(run, [100] * N_TARGETS)
    work = a_byte(PIECE_TOKENS // 2_000)  # of 6,300 bytes and more
    first = [piece for piece in missing(run, 1, work=work) if piece.index == 0]
    assert [piece.attempt for piece in first] == [0, 1, 2, 3]
    for piece in first[1:3]:
        store(run, piece, failed={(0, 0)})
    pieces_left = missing(run, 1, work=work, retry_failed=True)
    again = [piece for piece in pieces_left if piece.index == 0]
    assert sorted((piece.attempt, piece.units.height) for piece in again) == [
        (0, first[0].units.height),
        (3, first[3].units.height),
        (5, 1),
        (6, 1),
    ]


# Samples that failed and were tried again.


def sample(
    number: int, index: int, candidate: str | None, reason: str | None
) -> dict[str, Any]:
    return {
        "target_id": target_id(number),
        "sample_index": index,
        **frames.CONTINUATION,
        "candidate": candidate,
        "reason": reason,
    }


def write(folder, *parts: list[dict[str, Any]]) -> None:
    for number, rows in enumerate(parts):
        frames.table(Samples, rows).write_parquet(folder / f"block-{number}.parquet")


def test_features_follow_their_samples(tmp_path):
    def row(**numbers):
        return {
            "target_id": target_id(0),
            "sample_index": 0,
            **frames.CONTINUATION,
        } | numbers

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
def test_a_success_takes_the_place_of_failures_and_the_last_failure_of_others(
    parts, tmp_path_factory
):
    """Of rows that never failed all stay: that they are double is for scores to refuse."""
    folder = tmp_path_factory.mktemp("parts")
    rows = [
        [
            sample(
                number,
                index,
                *((None, f"in {part}") if failed else (f"in {part}", None)),
            )
            for number, index, failed in keys
        ]
        for part, keys in enumerate(parts)
    ]
    write(folder, *rows)
    names = ("target_id", "sample_index", "candidate", "reason")
    flat = [tuple(row[name] for name in names) for part in rows for row in part]
    expected = []
    for index, (*key, candidate, reason) in enumerate(flat):
        other_samples = [
            (i, row[3])
            for i, row in enumerate(flat)
            if [*row[:2]] == key and i != index
        ]
        if reason is None or all(
            other_candidate is not None and i < index
            for i, other_candidate in other_samples
        ):
            expected.append((*key, candidate, reason))
    assert scan_parts(folder, Samples).select(names).collect().rows() == expected


@pytest.mark.parametrize("engine", ["streaming", "in-memory"])
def test_the_order_is_that_of_the_parts(tmp_path, engine):
    rows = [sample(number, 0, f"{number}", None) for number in range(5000)]
    lost = sample(9999, 0, None, "refused")
    write(tmp_path, rows[:2500], [lost], rows[2500:], [lost])
    numbers = scan_parts(tmp_path, Samples).select("candidate").collect(engine=engine)
    assert numbers["candidate"].drop_nulls().to_list() == [
        f"{number}" for number in range(5000)
    ]
    assert numbers.height == 5001
    assert isinstance(scan_parts(tmp_path, Samples), pl.LazyFrame)
