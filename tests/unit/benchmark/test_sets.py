"""Benchmarks as files: rows as they are written, their order, and what is refused."""

import json
import re
from dataclasses import replace

import polars as pl
import pytest

from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.benchmark import sets
from mia_batch.extras.benchmark.orders import TESTS, Design, build_units
from mia_batch.extras.benchmark.sets import (
    describe_order,
    find_record,
    named_benchmarks,
    read_benchmark,
)
from tests.unit.benchmark.conftest import write_set

NAMES = [
    *[
        "gsm8k",
        "mmlu",
        "arc",
        "hellaswag",
        "truthfulqa",
        "humaneval",
        "boolq",
        "winogrande",
    ]
]
WITH_OPTIONS = {"mmlu", "arc", "hellaswag", "winogrande"}


def read(name, path, expected=None, **changed):
    return read_benchmark(find_record(name, str(path), **changed), str(path), expected)


def read_own(path, expected=None, **changed):
    record = find_record(str(path), None, **changed)
    return read_benchmark(record, str(path), expected)


def test_the_eight_have_records_without_hashes():
    assert [*named_benchmarks()] == NAMES
    for record in named_benchmarks().values():
        assert record.order_sha256 is None  # no copy was at hand
        assert record.rows_sha256 is None
        assert record.paper is not None
        assert record.options_order is None  # nobody says that their order was drawn


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
@pytest.mark.parametrize("name", NAMES)
def test_each_is_read_by_its_columns_and_has_its_tests(tmp_path, name, ending):
    benchmark = read(name, write_set(tmp_path / f"rows.{ending}", name))
    assert len(benchmark.texts) == 48
    assert not any("{" in text for text in benchmark.texts)
    assert bool(benchmark.options) == (name in WITH_OPTIONS)
    design = Design(shard_rows=6, shuffles=3)
    units = build_units(benchmark, "rows", design)
    assert (units.n_units, units.table.height) == (8, 32)
    published = units.table.filter(alternative=0)["text"].to_list()
    assert published[0] == "\n\n".join(benchmark.texts[:6])
    for text in units.table.filter(unit=0)["text"]:
        assert sorted(text.split()) == sorted(published[0].split())
    if name in WITH_OPTIONS:
        options = build_units(benchmark, "options", design)
        assert options.why_exploratory is not None
        assert "nobody says why" in options.why_exploratory
        of_each = 2 if name == "winogrande" else 4
        assert options.table.height == of_each * options.n_units


def test_both_forms_of_a_file_have_the_same_hashes(tmp_path):
    for name in NAMES:
        first = read(name, write_set(tmp_path / f"{name}.parquet", name))
        second = read(name, write_set(tmp_path / f"{name}.jsonl", name))
        assert first.hashes == second.hashes
        assert first.texts == second.texts


def test_rows_of_one_set_in_another_order_are_refused(tmp_path):
    path = write_set(tmp_path / "rows.parquet", "gsm8k")
    benchmark = read("gsm8k", path)
    assert read("gsm8k", path, benchmark.hashes).hashes == benchmark.hashes
    assert "published one by --expect-hash" in describe_order(benchmark, "a hash")
    assert (
        f"is your word: no hash of it is recorded; give --expect-hash {benchmark.hashes}"
        in (describe_order(benchmark, None))
    )
    shuffled = tmp_path / "shuffled.parquet"
    rows = pl.read_parquet(path)
    rows.sample(fraction=1, shuffle=True, seed=1).write_parquet(shuffled)
    with pytest.raises(CorpusError, match="the rows of gsm8k in another order"):
        read("gsm8k", shuffled, benchmark.hashes)
    with pytest.raises(CorpusError, match="not in the order that is expected, or has"):
        read("gsm8k", shuffled, benchmark.order_sha256)
    rows.head(40).write_parquet(shuffled)
    with pytest.raises(CorpusError, match="has other rows than gsm8k"):
        read("gsm8k", shuffled, benchmark.hashes)
    with pytest.raises(SettingsError, match="64 hexadecimal digits"):
        read("gsm8k", path, "a5")


def test_a_recorded_hash_is_held_against_the_file(tmp_path, monkeypatch):
    path = write_set(tmp_path / "rows.parquet", "gsm8k")
    benchmark = read("gsm8k", path)
    record = find_record("gsm8k", str(path))
    known = replace(
        record,
        order_sha256=benchmark.order_sha256,
        rows_sha256=benchmark.rows_sha256,
    )
    monkeypatch.setitem(named_benchmarks(), "gsm8k", known)
    again = read("gsm8k", path)
    assert describe_order(again, None) == (
        "the order is the published one by the record of gsm8k"
    )
    pl.read_parquet(path).reverse().write_parquet(path)
    with pytest.raises(CorpusError, match="in another order"):
        read("gsm8k", path)


def test_names_and_files_are_told_apart(tmp_path):
    path = write_set(tmp_path / "mine.jsonl", "gsm8k")
    assert read_own(path).texts[0].startswith("Question: ")
    with pytest.raises(SettingsError, match=r"mmlu is not fetched: .*cais/mmlu"):
        find_record("mmlu", None)
    with pytest.raises(SettingsError, match="'mine' is no benchmark with a record"):
        find_record("mine", str(path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "{question.__class__}",
            r"has {question.__class__}; give the name of a column",
        ),
        ("{question[0]}", "give the name of a column"),
        ("{question!r}", "give the name of a column"),
        ("{question:>99999999999}", "give the name of a column"),
        ("{}", "give the name of a column"),
        ("{question", "cannot be read"),
        ("{options}", "no column of options is named"),
        ("{other}", "has no column 'other', only 'question', 'answer'"),
    ],
)
def test_a_template_names_columns_and_nothing_else(tmp_path, row, message):
    path = write_set(tmp_path / "mine.jsonl", "gsm8k")
    with pytest.raises((CorpusError, SettingsError), match=re.escape(message)):
        read_own(path, row=row)


@pytest.mark.parametrize(
    ("lines", "changed", "message"),
    [
        ([], {}, "has no rows; give the file of the set"),
        ([{"a": "x"}] * 3, {}, "has the columns 'a'; say how a row is written"),
        ([{"text": "one"}], {}, "has 1 rows; an order needs 2 at least"),
        ([{"text": "a"}, {"text": None}], {}, "column 'text' is null in row 2"),
        (
            [{"text": "a", "o": ["x"]}] * 2,
            {"options": ("o",)},
            "column 'o' has no list of two texts or more in row 1",
        ),
        (
            [{"text": "a", "o": "[" * 9999}] * 2,
            {"options": ("o",)},
            "no list of two texts or more in row 1",
        ),
        (
            [{"text": "a", "o": [1, 2]}] * 2,
            {"options": ("o",)},
            "no list of two texts or more in row 1",
        ),
    ],
)
def test_bad_files_are_refused(tmp_path, lines, changed, message):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(CorpusError, match=re.escape(message)):
        read_own(path, **changed)


def test_a_file_that_is_no_benchmark_is_refused_before_it_fills_the_memory(
    tmp_path, monkeypatch
):
    path = write_set(tmp_path / "mine.jsonl", "gsm8k")
    monkeypatch.setattr(sets, "MOST_ROWS", 47)
    with pytest.raises(CorpusError, match="more than 47 rows"):
        read_own(path)


def test_sorted_rows_and_options_are_refused(tmp_path):
    path = write_set(tmp_path / "rows.parquet", "mmlu", 60)
    rows = pl.read_parquet(path)
    rows.sort("question").write_parquet(path)
    benchmark = read("mmlu", path, within="answer")
    with pytest.raises(CorpusError, match="the alphabet rises or falls with the place"):
        build_units(benchmark, "rows", Design())
    with pytest.raises(CorpusError, match="order of its rows can be foreseen"):
        build_units(benchmark, "next-row", Design())
    by_length = pl.col("choices").map_elements(
        lambda options: sorted(options, key=len), return_dtype=pl.List(pl.String)
    )
    rows.with_columns(by_length).write_parquet(path)
    with pytest.raises(CorpusError, match="length rises or falls with the place"):
        build_units(read("mmlu", path), "options", Design())
    rows.with_columns(answer=pl.lit(0)).write_parquet(path)
    with pytest.raises(CorpusError, match="the right option rises or falls"):
        build_units(read("mmlu", path), "options", Design())


def test_rows_are_exchanged_within_their_subject(tmp_path):
    benchmark = read("mmlu", write_set(tmp_path / "rows.parquet", "mmlu"))
    subjects = dict(zip(benchmark.texts, benchmark.columns["subject"], strict=True))
    units = build_units(benchmark, "rows", Design(shard_rows=8, shuffles=5))
    for (_,), shard in units.table.group_by("unit"):
        orders = {
            tuple(subjects[row] for row in text.split("\n\n")) for text in shard["text"]
        }
        assert len(orders) == 1


def test_options_that_say_where_they_stand_are_left_out(tmp_path):
    path = write_set(tmp_path / "rows.parquet", "mmlu")
    rows = pl.read_parquet(path).rows(named=True)
    rows[0]["choices"][3] = "All of the above"
    rows[1]["choices"] = ["12", "7 km", "3.5", "100"]
    rows[2]["choices"][2] = "A and B"
    rows[3]["choices"][1] = rows[3]["choices"][0]
    pl.DataFrame(rows).write_parquet(path)
    benchmark = read("mmlu", path, options_order="drawn by its authors")
    units = build_units(benchmark, "options", Design(shuffles=5))
    assert units.why_exploratory is None
    assert units.n_units == 44
    assert units.notes[0].startswith("4 of 48 rows are left out: their options are")


def test_numbers_are_rewritten_with_as_many_digits(tmp_path):
    benchmark = read("gsm8k", write_set(tmp_path / "rows.parquet", "gsm8k"))
    units = build_units(benchmark, "rewritten", Design(shuffles=2))
    assert units.why_exploratory is not None
    for (_,), texts in units.table.group_by("unit"):
        forms = {re.sub(r"\d", "#", text) for text in texts["text"]}
        assert len(forms) == 1
    assert units.table["text"].n_unique() > 2 * units.n_units


def test_numbers_of_a_set_without_a_rule_stay(tmp_path):
    benchmark = read("mmlu", write_set(tmp_path / "rows.parquet", "mmlu"))
    with pytest.raises(SettingsError, match="no rule by which numbers of mmlu could"):
        build_units(benchmark, "rewritten", Design())


def test_next_rows_show_each_candidate_at_each_letter_once(tmp_path):
    benchmark = read("gsm8k", write_set(tmp_path / "rows.parquet", "gsm8k", 50))
    units = build_units(benchmark, "next-row", Design())
    assert units.n_units == 10  # one row before, four to choose from
    for (unit,), questions in units.table.group_by("unit"):
        places = [[*column] for column in zip(*questions["candidates"], strict=True)]
        assert all(sorted(column) == [0, 1, 2, 3] for column in places)
        for text, candidates in questions.select("text", "candidates").iter_rows():
            row = benchmark.texts[5 * int(str(unit)) + 1]  # the published next one
            assert f"{'ABCD'[candidates.index(0)]}. {row}" in text


def test_every_test_has_something_or_says_what_is_missing(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n{"text": "one"}\n')
    benchmark = read_own(path, within="text")
    messages = []
    for test in TESTS:
        with pytest.raises((CorpusError, SettingsError)) as caught:
            build_units(benchmark, test, Design(shard_rows=2))
        messages.append(str(caught.value))
    assert "nothing for the test 'rows': no shard has anything" in messages[0]
    assert "has no options to choose from" in messages[1]
    assert "no question has anything to exchange" in messages[2]
    assert "no place has anything to exchange" in messages[3]
