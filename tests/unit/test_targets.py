"""Documents to targets: words, splits, windows, names, copies, lookup."""

from __future__ import annotations

import hashlib
import random
import sys
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
from mia_batch.targets import (
    Ordinals,
    Passages,
    Split,
    TargetLookup,
    TargetPlan,
    build_targets,
    character_windows,
    choose_windows,
    cluster_name,
    cut_documents,
    find_words,
    from_document_id,
    from_text,
    split_as_given,
    split_at_word,
    split_samia,
    target_id,
    text_digest,
    windows,
)
from tests import frames
from tests.processes import HANGS


def words(texts, rule="whitespace"):
    spans = zip(texts, find_words(texts, rule), strict=True)
    return [[text[start:end] for start, end in zip(*found, strict=True)] for text, found in spans]


def test_words_by_hand():
    texts = ["", " ", "one", " two  words\n", "", "\u3000a\tb c\u2003"]
    assert words(texts) == [[], [], ["one"], ["two", "words"], [], ["a", "b", "c"]]
    by_spaces = [[], [], ["one"], ["two", "words\n"], [], ["\u3000a\tb", "c\u2003"]]
    assert words(texts, "space") == by_spaces
    assert words(["The Émile-5\u212a a\u0130b"], "rouge") == [
        ["The", "mile", "5\u212a", "a\u0130", "b"]
    ]
    assert words([]) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("我们去了。然后 ok", ["我", "们", "去", "了", "然", "后", "ok"]),
        ("東京タワーへ", ["東", "京", "タワー", "へ"]),
        ("ภาษาไทย", ["ภ", "า", "ษ", "า", "ไ", "ท", "ย"]),
        ("“can't” e\u0301te\0🙂3.14", ["can't", "e\u0301te", "3.14"]),
    ],
)
def test_words_of_text_without_spaces(text, expected):
    assert words(["🙂", text, ""], "unicode") == [[], expected, []]


def test_every_character_is_whitespace_where_python_says_so():
    codes = [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]  # all but surrogates
    text = "a".join(map(chr, codes))
    assert words([text]) == [text.split()]


def test_part_begins_with_its_first_word():
    (found,) = find_words(["  a bc d"], "whitespace")
    part = found.part(range(1, 3))
    assert (part.starts.tolist(), part.ends.tolist()) == ([0, 3], [2, 4])


def spans(text):
    (found,) = find_words([text], "whitespace")
    return found


@pytest.mark.parametrize(
    ("text", "ratio", "prefix", "reference"),
    [
        (" one two\n\tthree  four ", 0.5, " one two", "\n\tthree  four "),
        ("one two three", 0.5, "one", " two three"),
        ("a b c d e f g", 0.75, "a b c d e", " f g"),
        ("a b c d e f g", 0.25, "a", " b c d e f g"),
    ],
)
def test_the_whitespace_between_belongs_to_the_reference(text, ratio, prefix, reference):
    n_words = len(text.split())
    expected = Split(text, prefix, reference, n_words, None)
    assert split_at_word(text, spans(text), ratio) == expected


@pytest.mark.parametrize(
    ("text", "rule", "prefix", "reference"),
    [
        ("「我们、去了」。", "unicode", "「我们", "、去了」。"),
        ("東京タワーへ行く", "unicode", "東京タワー", "へ行く"),
        ("ภาษา ไทย", "unicode", "ภาษ", "า ไทย"),
        ("e\u0301te\u0301! va\0🙂", "unicode", "e\u0301te\u0301", "! va\0🙂"),
        ("Non-stop!", "rouge", "Non", "-stop!"),
    ],
)
def test_what_is_no_word_stays_where_it_stands(text, rule, prefix, reference):
    (words,) = find_words([text], rule)
    assert split_at_word(text, words, 0.5) == Split(
        text, prefix, reference, len(words.starts), None
    )


@pytest.mark.parametrize(
    ("text", "ratio", "n_words", "reason"),
    [
        ("", 0.5, 0, targets.EMPTY_TEXT),
        (" \n", 0.5, 0, targets.EMPTY_TEXT),
        ("one", 0.5, 1, targets.TOO_SHORT),
        ("one two", 0.4, 2, targets.TOO_SHORT),
    ],
)
def test_what_cannot_be_split_has_a_reason(text, ratio, n_words, reason):
    expected = Split(text, None, None, n_words, reason)
    assert split_at_word(text, spans(text), ratio) == expected
    assert split_samia(text, n_words, ratio, None) == expected


def test_samia_by_hand():
    text = "a  b\nc d\te f g "  # 7 words by split(), "a" "b\nc" "d\te" "f" "g" by spaces
    assert split_samia(text, 7, 0.5, None) == Split(text, "a b c", "g", 7, None)
    assert split_samia(text, 7, 0.25, 4) == Split(text, "a", "d\te f g", 7, None)
    assert split_samia(text, 7, 0.5, 10) == Split(text, None, None, 7, targets.NO_REFERENCE)
    for n_words, n_cut in ((5, 2), (7, 4), (9, 4)):  # halves are rounded to even
        words = [str(number) for number in range(n_words)]
        assert split_samia(" ".join(words), n_words, 0.5, None).reference == " ".join(words[n_cut:])


@pytest.mark.parametrize(
    ("prefix", "reference"), [("", "a"), (" ", "a b"), ("a", ""), ("a b", "\n"), ("", " ")]
)
def test_a_half_without_words_has_a_reason(prefix, reference):
    text = prefix + reference
    reason = targets.WORDLESS_PART if text.strip() else targets.EMPTY_TEXT
    expected = Split(text, None, None, len(text.split()), reason)
    assert split_as_given(prefix, reference, spans(text)) == expected


@pytest.mark.parametrize(
    ("n_words", "window_words", "stride", "expected"),
    [
        (10, None, None, [(0, 10)]),
        (0, None, None, [(0, 0)]),
        (0, 4, None, [(0, 0)]),
        (3, 4, 1, [(0, 3)]),
        (4, 4, 1, [(0, 4)]),
        (5, 4, None, [(0, 4)]),
        (10, 4, None, [(0, 4), (4, 8)]),
        (10, 4, 3, [(0, 4), (3, 7), (6, 10)]),
        (10, 4, 6, [(0, 4), (6, 10)]),
        (10, 1, 5, [(0, 1), (5, 6)]),
    ],
)
def test_windows_by_hand(n_words, window_words, stride, expected):
    found = windows(n_words, window_words, stride)
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
    words = next(find_words([text], "whitespace"))
    found = list(character_windows(words, size, stride))
    cut = [text[words.starts[w.start] : words.ends[w.stop - 1]] if w else "" for w in found]
    assert cut == expected


def cut(text, prefix=None, reference=None, **plan):
    """Cut a text among others."""
    columns = (["x y", text, None], [None, prefix, None], [None, reference, None])
    first, second, third = map(list, cut_documents(*columns, TargetPlan(**plan)))
    assert [split.target for split in first + third] == ["x y", None]
    return [split[:5] for split in second]


def test_a_whole_document_keeps_its_outer_whitespace():
    assert cut("\n a b  c ") == [("\n a b  c ", "\n a", " b  c ", 3, None)]


def test_windows_run_from_word_to_word():
    assert cut(" a b\tc  d e ", window_words=2) == [
        ("a b", "a", " b", 2, None),
        ("c  d", "c", "  d", 2, None),
    ]


def test_a_document_of_one_window_is_kept_whole():
    assert cut(" a b ", window_words=2) == [(" a b ", " a", " b ", 2, None)]
    assert cut(" a ", window_words=2) == [(" a ", None, None, 1, targets.TOO_SHORT)]
    assert cut(" ", window_words=2) == [(" ", None, None, 0, targets.EMPTY_TEXT)]
    assert cut(None, window_words=2) == [(None, None, None, None, targets.NULL_TEXT)]


def test_words_between_spaces():
    assert cut("a\nb c d\te", words="space") == [("a\nb c d\te", "a\nb", " c d\te", 3, None)]
    assert cut("a\nb c d\te", words="space", window_words=2) == [("a\nb c", "a\nb", " c", 2, None)]


def test_windows_without_spaces():
    assert cut("《书》我们、去。", words="unicode", window_words=2) == [
        ("书》我", "书", "》我", 2, None),
        ("们、去", "们", "、去", 2, None),
    ]


def test_samia_counts_by_any_whitespace():
    plan = {"preset": "samia", "words": "space"}
    assert cut("a\nb c  d", **plan) == [("a\nb c  d", "a b", "d", 4, None)]
    assert cut("a\nb c  d", window_words=2, text_length=2, **plan) == [
        ("a\nb", None, None, 2, targets.NO_REFERENCE),
        ("c  d", "c", "d", 2, None),
    ]


@pytest.mark.parametrize("text", [None, "another text"])
@pytest.mark.parametrize("preset", ["default", "samia"])
def test_the_users_halves_win(text, preset):
    assert cut(text, "a b", " c", preset=preset) == [("a b c", "a b", " c", 3, None)]


NUMBERS = st.integers(1, 300)


def test_a_choice_is_the_same_on_every_machine():
    assert sorted(choose_windows(1000, 5, 0, b"book")) == [107, 357, 482, 607, 857]


@given(n_windows=NUMBERS, most=NUMBERS, further=st.integers(0, 50), seed=st.integers(0, 9))
def test_a_larger_choice_holds_a_smaller_one(n_windows, most, further, seed):
    small, large = (choose_windows(n_windows, n, seed, b"x") for n in (most, most + further))
    assert small <= large <= frozenset(range(n_windows))
    assert len(small) == min(most, n_windows)


@given(most=st.integers(2, 64), seed=st.integers(0, 99))
def test_a_choice_is_spread_evenly(most, seed):
    n_windows = 10_000
    chosen = sorted(choose_windows(n_windows, most, seed, b"x"))
    steps = [after - before for before, after in pairwise([*chosen, chosen[0] + n_windows])]
    assert max(steps) <= 2 * n_windows / most + 1
    assert min(steps) >= n_windows / most / 2 - 1


@pytest.mark.parametrize(("n_windows", "most"), [(5, 2), (7, 3), (12, 11)])
def test_every_window_is_as_likely_as_any_other(n_windows, most):
    n_seeds = 4000
    drawn = (choose_windows(n_windows, most, seed, b"x") for seed in range(n_seeds))
    counts = Counter(window for choice in drawn for window in choice)
    share = most / n_windows
    deviation = (n_seeds * share * (1 - share)) ** 0.5
    assert all(abs(counts[window] - n_seeds * share) < 4 * deviation for window in range(n_windows))


def reference(texts):
    """Say of which texts 70 % of the runs of 8 words came before; nothing of those with few."""
    before: set[tuple[str, ...]] = set()
    found = []
    for text in texts:
        words = text.lower().split()
        runs = [tuple(words[place : place + 8]) for place in range(len(words) - 7)]
        found.append(len(runs) >= 4 and sum(run in before for run in runs) >= 0.7 * len(runs))
        before.update(runs)
    return found


TEXTS = st.lists(st.integers(0, 60).map(lambda n: " ".join(f"w{i}" for i in range(n, n + 14))))


@given(texts=TEXTS, split=st.integers(0, 20))
def test_copies_are_those_of_the_reference(texts, split):
    passages = Passages()
    found = [*passages.are_copies(texts[:split]), *passages.are_copies(texts[split:])]
    assert found == reference(texts)


def test_case_and_punctuation_hide_no_copy():
    first = "Call me Ishmael. Some years ago—never mind how long precisely—having little money"
    other = "call me ishmael some years ago, never mind how long precisely; HAVING LITTLE money"
    assert Passages().are_copies([first, other]).tolist() == [False, True]
    assert Passages().are_copies([]).tolist() == []


@pytest.mark.parametrize("most", [1 << 24, 20_000, 4_000])
def test_passages_are_found_again_in_bounded_memory(monkeypatch, most):
    """Of texts of 121 runs even a few runs each are enough."""
    monkeypatch.setattr(targets, "_MOST_KEPT", most)
    monkeypatch.setattr(targets, "_TEXTS_AT_ONCE", 32)
    rng = random.Random(7)
    words = [str(rng.random()) for _ in range(128 * 400)]
    words = [word.replace(".", "") for word in words]
    texts = [" ".join(words[start : start + 128]) for start in range(0, len(words), 128)]
    moved = [" ".join(words[start : start + 128]) for start in range(50, len(words) - 128, 128)]
    passages = Passages()
    assert not passages.are_copies(texts).any()
    found = passages.are_copies(moved)
    assert found.mean() > (0.99 if most >= 20_000 else 0.6)
    assert sum(part.size for part in passages._kept) <= most
    one_by_one = Passages()
    assert [one_by_one.are_copies([text])[0] for text in texts + moved] == [False] * 400 + [*found]


def test_equal_keys_are_numbered_across_calls():
    ordinals = Ordinals()
    assert ordinals.number(np.array([7, 7, 3], np.uint64)).tolist() == [0, 1, 0]
    assert ordinals.number(np.array([], np.uint64)).tolist() == []
    assert ordinals.number(np.array([3, 9, 7, 3], np.uint64)).tolist() == [1, 0, 2, 2]


@pytest.mark.parametrize("seed", range(5))
def test_many_calls_number_as_a_counter_does(seed):
    generator = np.random.default_rng(seed)
    ordinals, counter = Ordinals(), Counter[int]()
    for _ in range(60):
        keys = generator.integers(0, 500, generator.integers(0, 80)).astype(np.uint64)
        keys += np.uint64(2**64 - 300)  # wraps around: small and large keys
        expected = []
        for key in keys.tolist():
            expected.append(counter[key])
            counter[key] += 1
        assert ordinals.number(keys).tolist() == expected


def test_memory_is_a_few_bytes_a_key():
    ordinals = Ordinals()
    for start in range(0, 100_000, 1000):
        ordinals.number(np.arange(start, start + 1000, dtype=np.uint64))
    held = sum(keys.nbytes + counts.nbytes for keys, counts in ordinals._runs)
    assert held == 12 * 100_000


def number(value):
    return value.to_bytes(8, "little")


def test_known_names():
    """These never change: a run folder is continued by them."""
    assert target_id(from_document_id("book 1"), 3, "né à") == "68a61df3a9a450ada303d223a5c8c52c"
    assert target_id(from_text(text_digest("a b"), 0), 0, "a b") == (
        "186ae4a3a13881352bfa1bb3a3a41354"
    )
    assert target_id(from_text(text_digest(None), 2), 0, None) == "dc86c223eb22298ad3dd144266d1033b"


def test_a_name_is_the_hash_of_its_parts_after_their_lengths():
    identity, text = b"document_idbook 1", "né à".encode()
    parts = number(len(identity)) + number(3) + number(len(text) + 1) + identity + text
    expected = hashlib.blake2b(parts, digest_size=16).hexdigest()
    assert target_id(from_document_id("book 1"), 3, "né à") == expected


def test_each_part_counts():
    names = {
        target_id(from_document_id("a"), 0, "b"),
        target_id(from_document_id("a"), 1, "b"),
        target_id(from_document_id("ab"), 0, ""),
        target_id(from_document_id("ab"), 0, None),
        target_id(from_document_id(""), 0, "ab"),
        target_id(from_text(text_digest("a"), 0), 0, "b"),
        target_id(from_text(text_digest("a"), 1), 0, "b"),
        target_id(from_text(text_digest(""), 0), 0, "b"),
        target_id(from_text(text_digest(None), 0), 0, "b"),
    }
    assert len(names) == 9


LONG = {"window_words": 5}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({"prefix_ratio": ratio}, f"prefix_ratio is {ratio}; it must lie between 0 and 1")
            for ratio in (0.0, 1.0, float("nan"))
        ),
        *(
            (LONG | {name: value}, f"{name} is {value}; it must be at least 1")
            for name, value in {"window_words": 0, "stride": -1, "text_length": 0}.items()
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
            "window_words is 3, too few to split with prefix_ratio 0.3; make windows longer",
        ),
        ({"text_length": 64}, "text_length is 64 without preset samia; leave it out"),
        (
            {"preset": "samia", "text_length": 64, "window_words": 32},
            "text_length is 64 but window_words is 32; make them equal",
        ),
    ],
)
def test_plans_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(SettingsError) as error:
        TargetPlan(**settings)
    assert str(error.value) == message


def documents(**columns):
    types = Documents.create_empty().schema
    height = len(next(iter(columns.values())))
    nothing = {name: [None] * height for name in types}
    return pl.LazyFrame(nothing | columns, schema_overrides=types)


def build(frame, **plan):
    built = build_targets(frame, TargetPlan(**plan))
    found = built.collect()
    assert found.schema == built.collect_schema()
    tables.check(found, Targets, what="targets")
    Targets.validate(found)
    assert found["target_id"].n_unique() == found.height
    return found


def test_columns_are_ours_first_then_the_users():
    found = build(
        documents(
            text=["a b c"], document_id=["d"], member=[True], group=["g"], year=[1999], meta=[[1]]
        )
    )
    assert found.columns == [*Targets.column_names(), "year", "meta"]
    assert found.drop("target_id").row(0) == (
        *("target", "d", "g", True, 0, 1, 0, "a b c", "a", " b c", 3, None),
        *(1999, [1]),
    )


def test_windows_follow_their_document():
    frame = documents(text=["a b c d e", None, "f g"], document_id=["x", "y", "z"], n=[1, 2, 3])
    found = build(frame, window_words=2)
    assert found.select("document_id", "window_index", "target", "n").rows() == [
        ("x", 0, "a b", 1),
        ("x", 1, "c d", 1),
        ("y", 0, None, 2),
        ("z", 0, "f g", 3),
    ]


def test_equal_texts_without_identifiers_have_names_of_their_own():
    few = build(documents(text=["a b", None, "a b", None, "c d"]))
    more = build(documents(text=["a b", None, "a b", None, "c d", "a b", "c d", None]))
    assert more["target_id"][:5].to_list() == few["target_id"].to_list()


def test_names_do_not_depend_on_batches():
    texts = ["long " * 100_000, "a b", "long " * 100_000, "a b"] * 5
    alone = build(documents(text=texts))
    frames = [documents(text=[text]).collect() for text in texts]

    def one_by_one(_names):
        yield from frames

    streamed = build(tables.generate(frames[0].schema, one_by_one))
    assert streamed["target_id"].to_list() == alone["target_id"].to_list()


def test_windows_of_a_long_document_come_in_order():
    text = " ".join(map(str, range(50_000)))
    found = build(documents(text=[text, "a b"]), window_words=100, stride=10)
    assert found.height == (50_000 - 100) // 10 + 2
    firsts = found["target"].str.extract(r"^(\d+)").cast(pl.Int64)
    assert firsts.head(-1).to_list() == list(range(0, 49_901, 10))
    assert found["window_index"].to_list() == [*range(found.height - 1), 0]


def test_windows_of_the_users_halves_are_refused():
    frame = documents(text=["x", "y"], prefix=[None, "a"], reference=[None, "b"])
    with pytest.raises(SettingsError, match=r"^a window is set but the corpus has its own pre"):
        build(frame, window_words=2)


def test_another_table_is_refused():
    with pytest.raises(
        SchemaMismatchError, match=r"^documents is not a Documents table: 'document_id'"
    ):
        build_targets(pl.LazyFrame({"text": ["a"]}), TargetPlan())


def test_no_documents_are_no_targets():
    assert build(documents(text=[])).height == 0


def test_targets_can_be_sunk_and_asked_for_a_part(tmp_path):
    built = build_targets(documents(text=["a b", "c"], n=[1, 2]), TargetPlan())
    tables.sink(built, tmp_path / "targets.parquet", Targets)
    assert tables.scan(tmp_path / "targets.parquet", Targets).collect().equals(built.collect())
    assert built.filter(pl.col("reason").is_null()).select("n").collect().item() == 1
    assert built.select(pl.len()).collect().item() == 2


NUMBERED = " ".join(map(str, range(100)))


def build_windows(texts, *, role="target", **plan):
    types = Documents.create_empty().schema
    columns = {name: [None] * len(texts) for name in types}
    columns |= {"text": list(texts.values()), "document_id": list(texts)}
    frame = pl.LazyFrame(columns, schema_overrides=types)
    return build_targets(frame, TargetPlan(**{"window_words": 2} | plan), role=role).collect()


def copies(built):
    found = built.filter(reason=targets.COPY)
    assert found.equals(built.filter(role="copy"))
    assert (
        found.select("target", "prefix", "reference", "n_words").null_count().row(0)
        == (found.height,) * 4
    )
    return found.select("document_id", "window_index", "start").rows()


def test_few_windows_keep_their_places():
    every = build_windows({"x": NUMBERED, "y": "a b", "z": None})
    few = build_windows({"x": NUMBERED, "y": "a b", "z": None}, max_windows_per_document=5)
    assert few.equals(every.filter(pl.col("target_id").is_in(few["target_id"].implode())))
    assert few["document_id"].to_list() == ["x"] * 5 + ["y", "z"]
    assert few["n_windows"].to_list() == [50] * 5 + [1, 1]


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
    assert found["target"].to_list() == ["a b", "c d", None, "e f", None, None, "g h", "a b"]
    alone = build_windows({"y": texts["y"]})
    assert found.filter(document_id="y")["target_id"].equals(alone["target_id"])


def test_copies_are_those_of_all_windows_not_only_of_the_chosen():
    texts = {"x": NUMBERED, "y": NUMBERED}
    few = build_windows(texts, max_windows_per_document=5)
    assert [row[0] for row in copies(few)] == ["y"] * 5


def test_a_passage_is_found_where_windows_begin_elsewhere():
    words = [f"w{number}" for number in range(120)]
    first, moved = " ".join(words), "new words " + " ".join(words)
    found = build_windows({"x": first, "y": moved}, window_words=20)
    starts = [0, *(moved.index(f"w{20 * index - 2} ") for index in range(1, 6))]
    assert copies(found) == [("y", index, start) for index, start in enumerate(starts)]
    overlapping = build_windows({"x": first}, window_words=20, stride=5)
    assert copies(overlapping) == []


def test_windows_of_documents_without_a_name_are_not_chosen_among():
    with pytest.raises(SettingsError, match=r"a document has neither document_id nor group; give"):
        build_windows({None: NUMBERED}, max_windows_per_document=2)


def test_names_as_groups_keep_clusters_whatever_rows_are_left():
    frame = pl.DataFrame(
        {
            "target_id": ["c", "a", "b", "d", "e"],
            "group": ["g", None, None, None, None],
            "document_id": [None, "d", None, None, None],
            "window_index": [0, 0, 0, 1, 0],
        }
    )
    named = frame.with_columns(group=cluster_name(frame.columns))
    assert named["group"].to_list() == ["group g", "document d", "target b", "target b", "target e"]
    some = named.sort("target_id").tail(3)  # d without b, which it belongs to
    found = some.select(cluster_name(some.columns)).to_series().to_list()
    assert found == ["group group g", "group target b", "group target e"]


def test_a_text_before_the_first_of_a_document_is_by_itself():
    frame = pl.DataFrame({"target_id": ["a", "b"], "window_index": [1, 0]})
    assert frame.select(cluster_name(frame.columns)).to_series().to_list() == [
        "target a",
        "target b",
    ]


COLUMNS = ["target_id", "reference", "n_words"]


@pytest.fixture
def found(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "_ROWS_AT_ONCE", 3)
    rows = [{"prefix": f"p{n}", "reference": f"r{n}", "n_words": n} for n in range(8)]
    tables.sink(frames.targets(*rows), tmp_path / "targets.parquet", Targets)
    return TargetLookup(tmp_path / "targets.parquet", COLUMNS)


def names_of(*numbers: int) -> pl.Series:
    return pl.Series(map(frames.target_id, numbers))


def test_targets_are_taken_from_where_they_are_looked_for(found):
    rows = found.of(names_of(4, 4, 2, 7), [range(2, 5), range(6, 8)])
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
    assert found.of(asked, places).rows() == [(frames.target_id(n), f"r{n}", n) for n in rows]


def test_threads_that_ask_at_once_read_once(found):
    read: Callable[[int], pl.DataFrame] = found._read
    pieces: list[int] = []

    def count(piece: int) -> pl.DataFrame:
        pieces.append(piece)
        return read(piece)

    found._piece = lru_cache(2)(count)
    threads = 8
    together = Barrier(threads, timeout=HANGS)

    def ask(_: int) -> list[int]:
        together.wait()
        return list(found.of(names_of(3, 4), [range(3, 5)])["n_words"])

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(ask, range(threads))) == [[3, 4]] * threads
    assert pieces == [1]
