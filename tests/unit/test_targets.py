"""Documents to targets: words, splits, windows, names, copies, lookup."""

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from threading import Barrier

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch import tables, targets
from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.schemas import Documents, Targets
from tests import frames
from tests.processes import HANGS


@pytest.mark.parametrize(
    ("n_words", "window_words", "stride", "expected"),
    [
        (10, None, None, [(0, 10)]),
        (0, 4, None, [(0, 0)]),
        (3, 4, 1, [(0, 3)]),
        (10, 4, None, [(0, 4), (4, 8)]),
        (10, 4, 3, [(0, 4), (3, 7), (6, 10)]),
        (10, 4, 6, [(0, 4), (6, 10)]),
        (10, 1, 5, [(0, 1), (5, 6)]),
    ],
)
def test_windows_by_hand(n_words, window_words, stride, expected):
    found = targets.word_windows(n_words, window_words, stride)
    assert [(window.start, window.stop) for window in found] == expected


@pytest.mark.parametrize(
    ("text", "size", "stride", "expected"),
    [
        (" ", 4, None, [""]),
        (" a b ", 3, None, ["a b"]),
        ("aa bb cc dd", 5, None, ["aa bb", "cc dd"]),
        ("aa bb cc dd", 6, None, ["aa bb"]),  # after it five characters are left
        ("aa bb cc dd", 5, 3, ["aa bb", "bb cc", "cc dd"]),
        ("aa bb cc dd", 5, 1, ["aa bb", "bb", "bb cc", "cc", "cc dd"]),
        ("aaaaaa bb cc d", 3, None, ["aaaaaa", "bb", "cc"]),
        ("aaaaaa bb cc", 2, 5, ["aaaaaa", "bb", "cc"]),
        ("aa bb", 1, None, ["aa", "bb"]),
    ],
)
def test_windows_of_characters_by_hand(text, size, stride, expected):
    words = next(targets.find_words([text], "whitespace"))
    found = list(targets.character_windows(words, size, stride))
    cut = [
        text[words.starts[w.start] : words.ends[w.stop - 1]] if w else "" for w in found
    ]
    assert cut == expected


def cut(text, prefix=None, reference=None, **settings):
    """Cut a text among others."""
    columns = (["x y", text, None], [None, prefix, None], [None, reference, None])
    first, second, third = map(
        list, targets.cut_documents(*columns, targets.Windowing(**settings))
    )
    assert [split.target for split in first + third] == ["x y", None]
    return [split[:5] for split in second]


SAMIA = {"preset": "samia", "words": "space"}


@pytest.mark.parametrize(
    ("text", "settings", "splits"),
    [
        ("\n a b  c ", {}, [("\n a b  c ", "\n a", " b  c ", 3, None)]),
        (
            " a b\tc  d e ",
            {"window_words": 2},
            [("a b", "a", " b", 2, None), ("c  d", "c", "  d", 2, None)],
        ),
        (" a b ", {"window_words": 2}, [(" a b ", " a", " b ", 2, None)]),
        (" a ", {"window_words": 2}, [(" a ", None, None, 1, targets.TOO_SHORT)]),
        (" ", {"window_words": 2}, [(" ", None, None, 0, targets.EMPTY_TEXT)]),
        (None, {"window_words": 2}, [(None, None, None, None, targets.NULL_TEXT)]),
        (
            "a\nb c d\te",
            {"words": "space"},
            [("a\nb c d\te", "a\nb", " c d\te", 3, None)],
        ),
        (
            "《书》我们、去。",
            {"words": "unicode", "window_words": 2},
            [("书》我", "书", "》我", 2, None), ("们、去", "们", "、去", 2, None)],
        ),
        ("a\nb c  d", SAMIA, [("a\nb c  d", "a b", "d", 4, None)]),
        ("one", SAMIA, [("one", None, None, 1, targets.TOO_SHORT)]),
        (" \n", SAMIA, [(" \n", None, None, 0, targets.EMPTY_TEXT)]),
        (
            "a\nb c  d",
            SAMIA | {"window_words": 2, "text_length": 2},
            [
                ("a\nb", None, None, 2, targets.NO_REFERENCE),
                ("c  d", "c", "d", 2, None),
            ],
        ),
    ],
)
def test_documents_are_cut_by_hand(text, settings, splits):
    assert cut(text, **settings) == splits


@pytest.mark.parametrize(
    ("prefix", "reference", "reason"),
    [
        ("a b", " c", None),
        *(
            (*halves, targets.WORDLESS_PART)
            for halves in (("", "a"), (" ", "a b"), ("a", ""))
        ),
        ("a b", "\n", targets.WORDLESS_PART),
        ("", " ", targets.EMPTY_TEXT),
    ],
)
def test_the_users_halves_win(prefix, reference, reason):
    text = prefix + reference
    parts = (prefix, reference) if reason is None else (None, None)
    for instead in (None, "another text"):
        for preset in ("default", "samia"):
            found = cut(instead, prefix, reference, preset=preset)
            assert found == [(text, *parts, len(text.split()), reason)]


NUMBERS = st.integers(1, 300)


def test_a_choice_is_the_same_on_every_machine():
    assert sorted(targets.choose_windows(1000, 5, 0, b"book")) == [
        107,
        357,
        482,
        607,
        857,
    ]


@given(
    n_windows=NUMBERS, most=NUMBERS, further=st.integers(0, 50), seed=st.integers(0, 9)
)
def test_a_larger_choice_holds_a_smaller_one(n_windows, most, further, seed):
    small, large = (
        targets.choose_windows(n_windows, n, seed, b"x") for n in (most, most + further)
    )
    assert small <= large <= frozenset(range(n_windows))
    assert len(small) == min(most, n_windows)


@given(most=st.integers(2, 64), seed=st.integers(0, 99))
def test_a_choice_is_spread_evenly(most, seed):
    n_windows = 10_000
    chosen = sorted(targets.choose_windows(n_windows, most, seed, b"x"))
    steps = [
        after - before for before, after in pairwise([*chosen, chosen[0] + n_windows])
    ]
    assert max(steps) <= 2 * n_windows / most + 1
    assert min(steps) >= n_windows / most / 2 - 1


@pytest.mark.parametrize(("n_windows", "most"), [(5, 2), (7, 3), (12, 11)])
def test_every_window_is_as_likely_as_any_other(n_windows, most):
    n_seeds = 4000
    drawn = (
        targets.choose_windows(n_windows, most, seed, b"x") for seed in range(n_seeds)
    )
    counts = Counter(window for choice in drawn for window in choice)
    share = most / n_windows
    deviation = (n_seeds * share * (1 - share)) ** 0.5
    assert all(
        abs(counts[window] - n_seeds * share) < 4 * deviation
        for window in range(n_windows)
    )


def reference(texts):
    """Say of which texts 70 % of the runs of 8 words came before; nothing of those with few."""
    before: set[tuple[str, ...]] = set()
    found = []
    for text in texts:
        words = text.lower().split()
        runs = [tuple(words[place : place + 8]) for place in range(len(words) - 7)]
        found.append(
            len(runs) >= 4 and sum(run in before for run in runs) >= 0.7 * len(runs)
        )
        before.update(runs)
    return found


TEXTS = st.lists(
    st.integers(0, 60).map(lambda n: " ".join(f"w{i}" for i in range(n, n + 14)))
)


@given(texts=TEXTS, split=st.integers(0, 20))
def test_copies_are_those_of_the_reference(texts, split):
    passages = targets.Passages()
    found = [*passages.find_copies(texts[:split]), *passages.find_copies(texts[split:])]
    assert found == reference(texts)


def test_case_and_punctuation_hide_no_copy():
    first = (
        "Call me Ishmael. Some years ago—never mind how long precisely—having little"
        " money"
    )
    other = (
        "call me ishmael some years ago, never mind how long precisely; HAVING LITTLE"
        " money"
    )
    assert targets.Passages().find_copies([first, other]).tolist() == [False, True]
    assert targets.Passages().find_copies([]).tolist() == []


@pytest.mark.parametrize("most", [1 << 24, 20_000, 4_000])
def test_passages_are_found_again_in_bounded_memory(monkeypatch, most):
    """Of texts of 121 runs even a few runs each are enough."""
    monkeypatch.setattr(targets, "_MOST_HASHES", most)
    monkeypatch.setattr(targets, "_TEXTS_AT_ONCE", 32)
    rng = random.Random(7)
    words = [str(rng.random()) for _ in range(128 * 400)]
    words = [word.replace(".", "") for word in words]
    texts = [
        " ".join(words[start : start + 128]) for start in range(0, len(words), 128)
    ]
    moved = [
        " ".join(words[start : start + 128])
        for start in range(50, len(words) - 128, 128)
    ]
    passages = targets.Passages()
    assert not passages.find_copies(texts).any()
    found = passages.find_copies(moved)
    assert found.mean() > (0.99 if most >= 20_000 else 0.6)
    assert passages.n_hashes <= most
    one_by_one = targets.Passages()
    assert [one_by_one.find_copies([text])[0] for text in texts + moved] == [
        False
    ] * 400 + [*found]


@pytest.mark.parametrize("seed", range(5))
def test_many_calls_number_as_a_counter_does(seed):
    generator = np.random.default_rng(seed)
    ordinals, counter = targets.Ordinals(), Counter[int]()
    for _ in range(60):
        keys = generator.integers(0, 500, generator.integers(0, 80)).astype(np.uint64)
        keys += np.uint64(2**64 - 300)  # wraps around: small and large keys
        expected = []
        for key in keys.tolist():
            expected.append(counter[key])
            counter[key] += 1
        assert ordinals.number(keys).tolist() == expected


def test_memory_is_a_few_bytes_a_key():
    ordinals = targets.Ordinals()
    for start in range(0, 100_000, 1000):
        ordinals.number(np.arange(start, start + 1000, dtype=np.uint64))
    held = sum(keys.nbytes + counts.nbytes for keys, counts in ordinals._counts.runs)
    assert held == 12 * 100_000


def test_known_names():
    """These never change: a run folder is continued by them."""
    assert (
        targets.compute_target_id(targets.build_document_identity("book 1"), 3, "né à")
        == "68a61df3a9a450ada303d223a5c8c52c"
    )
    assert (
        targets.compute_target_id(
            targets.build_text_identity(targets.compute_text_digest("a b"), 0), 0, "a b"
        )
        == "186ae4a3a13881352bfa1bb3a3a41354"
    )
    assert (
        targets.compute_target_id(
            targets.build_text_identity(targets.compute_text_digest(None), 2), 0, None
        )
        == "dc86c223eb22298ad3dd144266d1033b"
    )


LONG = {"window_words": 5}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            (
                {"prefix_ratio": ratio},
                f"prefix_ratio is {ratio}; it must lie between 0 and 1",
            )
            for ratio in (0.0, 1.0, float("nan"))
        ),
        *(
            (LONG | {name: value}, f"{name} is {value}; it must be at least 1")
            for name, value in {
                "window_words": 0,
                "stride": -1,
                "text_length": 0,
            }.items()
        ),
        (
            LONG | {"max_windows_per_document": 0},
            "max_windows_per_document is 0; it must be at least 1",
        ),
        *(
            ({name: 5}, f"{name} is 5 without window_words; set window_words too")
            for name in ("stride", "max_windows_per_document")
        ),
        (
            {"window_words": 3, "prefix_ratio": 0.3},
            (
                "window_words is 3, too few to split with prefix_ratio 0.3; make"
                " windows longer"
            ),
        ),
        ({"text_length": 64}, "text_length is 64 without preset samia; leave it out"),
        (
            {"preset": "samia", "text_length": 64, "window_words": 32},
            "text_length is 64 but window_words is 32; make them equal",
        ),
    ],
)
def test_windowings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(SettingsError) as error:
        targets.Windowing(**settings)
    assert str(error.value) == message


def documents(**columns):
    types = Documents.create_empty().schema
    height = len(next(iter(columns.values())))
    nothing = {name: [None] * height for name in types}
    return pl.LazyFrame(nothing | columns, schema_overrides=types)


def build(frame, **settings):
    built = targets.build_targets(frame, targets.Windowing(**settings))
    found = built.collect()
    assert found.schema == built.collect_schema()
    tables.check(found, Targets, name="targets")
    Targets.validate(found)
    assert found["target_id"].n_unique() == found.height
    return found


def test_columns_are_ours_first_then_the_users_and_windows_follow_their_document():
    found = build(
        documents(
            text=["a b c"],
            document_id=["d"],
            member=[True],
            group=["g"],
            year=[1999],
            meta=[[1]],
        )
    )
    assert found.columns == [*Targets.column_names(), "year", "meta"]
    assert found.drop("target_id").row(0) == (
        *("target", "d", "g", True, 0, 1, 0, "a b c", "a", " b c", 3, None),
        *(1999, [1]),
    )
    frame = documents(
        text=["a b c d e", None, "f g"], document_id=["x", "y", "z"], n=[1, 2, 3]
    )
    found = build(frame, window_words=2)
    assert found.select("document_id", "window_index", "target", "n").rows() == [
        ("x", 0, "a b", 1),
        ("x", 1, "c d", 1),
        ("y", 0, None, 2),
        ("z", 0, "f g", 3),
    ]


def test_names_do_not_depend_on_batches():
    texts = ["long " * 100_000, "a b", "long " * 100_000, "a b"] * 5
    alone = build(documents(text=texts))
    frames = [documents(text=[text]).collect() for text in texts]

    def one_by_one(_names):
        yield from frames

    streamed = build(tables.generate(frames[0].schema, one_by_one))
    assert streamed["target_id"].to_list() == alone["target_id"].to_list()


@pytest.mark.parametrize(
    ("frame", "settings", "sentence"),
    [
        (
            documents(text=["x", "y"], prefix=[None, "a"], reference=[None, "b"]),
            {"window_words": 2},
            "^a window is set but the corpus has its own pre",
        ),
        (
            documents(text=["a b c"]),
            {"window_words": 2, "max_windows_per_document": 2},
            "a document has neither document_id nor group; give",
        ),
        (
            pl.LazyFrame({"text": ["a"]}),
            {},
            "^documents is not a Documents table: 'document_id'",
        ),
    ],
)
def test_documents_that_are_refused(frame, settings, sentence):
    with pytest.raises((SettingsError, SchemaMismatchError), match=sentence):
        build(frame, **settings)


def test_targets_can_be_sunk_and_asked_for_a_part(tmp_path):
    built = targets.build_targets(
        documents(text=["a b", "c"], n=[1, 2]), targets.Windowing()
    )
    tables.sink(built, tmp_path / "targets.parquet", Targets)
    assert (
        tables.scan(tmp_path / "targets.parquet", Targets)
        .collect()
        .equals(built.collect())
    )
    assert built.filter(pl.col("reason").is_null()).select("n").collect().item() == 1
    assert built.select(pl.len()).collect().item() == 2
    assert build(documents(text=[])).height == 0


NUMBERED = " ".join(map(str, range(100)))


def build_windows(texts, *, role="target", **settings):
    types = Documents.create_empty().schema
    columns = {name: [None] * len(texts) for name in types}
    columns |= {"text": list(texts.values()), "document_id": list(texts)}
    frame = pl.LazyFrame(columns, schema_overrides=types)
    return targets.build_targets(
        frame, targets.Windowing(**{"window_words": 2} | settings), role=role
    ).collect()


def copies(built):
    found = built.filter(reason=targets.COPY)
    assert found.equals(built.filter(role="copy"))
    assert (
        found.select("target", "prefix", "reference", "n_words").null_count().row(0)
        == (found.height,) * 4
    )
    return found.select("document_id", "window_index", "start").rows()


def test_few_windows_keep_their_places_and_copies_are_those_of_all():
    every = build_windows({"x": NUMBERED, "y": "a b", "z": None})
    few = build_windows(
        {"x": NUMBERED, "y": "a b", "z": None}, max_windows_per_document=5
    )
    assert few.equals(
        every.filter(pl.col("target_id").is_in(few["target_id"].implode()))
    )
    assert few["document_id"].to_list() == ["x"] * 5 + ["y", "z"]
    assert few["n_windows"].to_list() == [50] * 5 + [1, 1]
    texts = {"x": NUMBERED, "y": NUMBERED}
    few = build_windows(texts, max_windows_per_document=5)
    assert [row[0] for row in copies(few)] == ["y"] * 5


def test_the_choice_of_a_document_depends_on_no_other():
    alone = build_windows({"x": NUMBERED}, max_windows_per_document=5, seed=3)
    among = build_windows(
        {"w": "c d " + NUMBERED, "x": NUMBERED}, max_windows_per_document=5, seed=3
    )
    places = among.filter(document_id="x")["window_index"]
    assert places.to_list() == alone["window_index"].to_list()
    other = build_windows({"x": NUMBERED}, max_windows_per_document=5, seed=4)
    assert other["window_index"].to_list() != alone["window_index"].to_list()


def test_a_passage_counts_once_however_it_is_spaced():
    texts = {"x": "a b c d a  b e f", "y": "c\nd e f g h", "z": "a b"}
    found = build_windows(texts)
    assert copies(found) == [("x", 2, 8), ("y", 0, 0), ("y", 1, 4)]
    assert copies(build_windows(texts, role="non_member")) == []
    assert found["target"].to_list() == [
        "a b",
        "c d",
        None,
        "e f",
        None,
        None,
        "g h",
        "a b",
    ]
    alone = build_windows({"y": texts["y"]})
    assert found.filter(document_id="y")["target_id"].equals(alone["target_id"])


def test_a_passage_is_found_where_windows_begin_elsewhere():
    words = [f"w{number}" for number in range(120)]
    first, moved = " ".join(words), "new words " + " ".join(words)
    found = build_windows({"x": first, "y": moved}, window_words=20)
    starts = [0, *(moved.index(f"w{20 * index - 2} ") for index in range(1, 6))]
    assert copies(found) == [("y", index, start) for index, start in enumerate(starts)]
    overlapping = build_windows({"x": first}, window_words=20, stride=5)
    assert copies(overlapping) == []


def test_names_as_groups_keep_clusters_whatever_rows_are_left():
    frame = pl.DataFrame(
        {
            "target_id": ["c", "a", "b", "d", "e"],
            "group": ["g", None, None, None, None],
            "document_id": [None, "d", None, None, None],
            "window_index": [0, 0, 0, 1, 0],
        }
    )
    named = frame.with_columns(group=targets.cluster_name(frame.columns))
    assert named["group"].to_list() == [
        "group g",
        "document d",
        "target b",
        "target b",
        "target e",
    ]
    some = named.sort("target_id").tail(3)  # d without b, which it belongs to
    found = some.select(targets.cluster_name(some.columns)).to_series().to_list()
    assert found == ["group group g", "group target b", "group target e"]
    # Of no document
    first = pl.DataFrame({"target_id": ["a", "b"], "window_index": [1, 0]})
    found = first.select(targets.cluster_name(first.columns)).to_series().to_list()
    assert found == ["target a", "target b"]


COLUMNS = ["target_id", "reference", "n_words"]


@pytest.fixture
def found(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "_ROWS_AT_ONCE", 3)
    rows = [{"prefix": f"p{n}", "reference": f"r{n}", "n_words": n} for n in range(8)]
    tables.sink(frames.targets(*rows), tmp_path / "targets.parquet", Targets)
    return targets.TargetLookup(tmp_path / "targets.parquet", COLUMNS)


def names_of(*numbers: int) -> pl.Series:
    return pl.Series(map(frames.target_id, numbers))


def test_targets_are_taken_from_where_they_are_looked_for(found):
    rows = found.find(names_of(4, 4, 2, 7), [range(2, 5), range(6, 8)])
    assert rows["n_words"].to_list() == [2, 3, 4, 6, 7]
    assert rows.n_chunks() == 1
    assert "_index" not in vars(found)


@pytest.mark.parametrize(
    ("numbers", "places", "rows"),
    [
        ([7, 6], [range(6, 12)], [6, 7]),  # beyond the table
        *(
            ([7, 7, 0, 4, 3, 0], p, [0, 3, 4, 7])
            for p in ([], [range(3)], [range(3, 6), range(20, 30)])
        ),
        ([5, 3, 2], [], [2, 3, 4, 5]),  # what is between may come, too
        ([9], [], []),
        ([], [], []),
    ],
)
def test_targets_that_stand_elsewhere_are_found_once_whatever_the_order(
    found, numbers, places, rows
):
    asked = names_of(*numbers).cast(pl.String)
    assert found.find(asked, places).rows() == [
        (frames.target_id(n), f"r{n}", n) for n in rows
    ]


def test_threads_that_ask_at_once_read_once(found):
    read: Callable[[int], pl.DataFrame] = found._read_piece
    pieces: list[int] = []

    def count(piece: int) -> pl.DataFrame:
        pieces.append(piece)
        return read(piece)

    found._piece = lru_cache(2)(count)
    threads = 8
    together = Barrier(threads, timeout=HANGS)

    def ask(_: int) -> list[int]:
        together.wait()
        return list(found.find(names_of(3, 4), [range(3, 5)])["n_words"])

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(ask, range(threads))) == [[3, 4]] * threads
    assert pieces == [1]
