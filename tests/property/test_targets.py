from itertools import pairwise

import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st

from mia_batch import targets as reasons
from mia_batch.kernels import WORD_RULES, word_spans
from mia_batch.schemas import Documents
from mia_batch.targets import Windowing, build_targets

SPACES = st.sampled_from(
    [" ", "  ", "\n", "\t", "\r\n", "\x1c", "\x85", "\xa0", "\u2028", "\u3000"]
)
ODD_WORDS = [
    "a",
    "b",
    "né",
    "🦆",
    "\u200b",
    "e\u0301",
    "\0",
    "word,",
    "\u200d",
    "\u212a",
    "İ",
]
OTHER_SCRIPTS = ["我们", "。", "タワー", "ไทย", 'א"', "3.", "'", "_", "🇫", "👩\u200d👧"]
WORDS = st.sampled_from(ODD_WORDS + OTHER_SCRIPTS)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.lists(st.one_of(SPACES, WORDS), max_size=40).map("".join),
)
RULES = st.sampled_from(WORD_RULES)


def split(text, rule):
    """Return the words of a text; tests/property/test_kernels.py has their reference_scores."""
    spans = pl.select(word_spans(pl.lit(text), words=rule)).item()
    return [
        text[start:end]
        for start, end in zip(spans["starts"], spans["ends"], strict=True)
    ]


def build(texts, document_ids=None, *, role="non_member", **settings):
    """Build targets of a role whose repeated windows are kept."""
    types = Documents.create_empty().schema
    columns = {name: [None] * len(texts) for name in types}
    columns |= {"text": texts, "document_id": document_ids or columns["document_id"]}
    frame = pl.LazyFrame(columns, schema_overrides=types)
    return build_targets(frame, Windowing(**settings), role=role).collect()


@example(texts=["ၐ\x1b 0"], rule="script", ratio=0.5)
@given(texts=st.lists(TEXTS, max_size=5), rule=RULES, ratio=st.floats(0.01, 0.99))
def test_prefix_and_reference_join_to_the_text(texts, rule, ratio):
    targets = build(texts, words=rule, prefix_ratio=ratio)
    assert targets["target"].to_list() == texts
    for row in targets.iter_rows(named=True):
        words = split(row["target"], rule)
        n_prefix = int(len(words) * ratio)
        assert row["n_words"] == len(words)
        if 0 < n_prefix < len(words):
            assert row["prefix"] + row["reference"] == row["target"]
            assert split(row["prefix"], rule) == words[:n_prefix]
            found, rest = split(row["reference"], rule), words[n_prefix:]
            # Marks that the cut parts from the characters that they follow
            if found != rest:
                assert rule in ("script", "folded")
                assert not any(each.isalnum() for each in found[0])
                assert found[1:] == rest
            assert row["prefix"].endswith(words[n_prefix - 1])
            assert row["reason"] is None
        else:
            assert row["prefix"] is row["reference"] is None
            assert row["reason"] == (reasons.TOO_SHORT if words else reasons.EMPTY_TEXT)


@given(text=TEXTS, rule=RULES, window=st.integers(2, 8), data=st.data())
def test_windows_cover_every_word_up_to_the_last_full_one(text, rule, window, data):
    stride = data.draw(st.integers(1, window), label="stride")
    targets = build([text], words=rule, window_words=window, stride=stride)[
        "target"
    ].to_list()
    words = split(text, rule)
    if len(words) <= window:
        assert targets == [text]
        return
    starts = range(0, len(words) - window + 1, stride)
    assert [split(target, rule) for target in targets] == [
        words[start : start + window] for start in starts
    ]
    covered = {place for start in starts for place in range(start, start + window)}
    assert covered == set(range(starts[-1] + window))
    assert len(words) - len(covered) < stride


@given(text=TEXTS, rule=RULES, size=st.integers(1, 20), stride=st.integers(1, 20))
def test_windows_of_characters_have_room_for_no_further_word(text, rule, size, stride):
    spans = pl.select(word_spans(pl.lit(text), words=rule)).item()
    starts, ends = spans["starts"], spans["ends"]
    settings = {"words": rule, "window_characters": size, "stride": stride}
    targets = build([text], **settings)["target"].to_list()
    if not ends or ends[-1] - starts[0] <= size:
        assert targets == [text]
        return
    expected: list[list[int]] = []
    for begin in range(starts[0], ends[-1] - size + 1, stride):
        places = [at for at, start in enumerate(starts) if start >= begin]
        inside = [at for at in places if ends[at] <= begin + size] or places[:1]
        if inside and [inside] != expected[-1:]:
            expected.append(inside)
    assert targets == [
        text if len(inside) == len(ends) else text[starts[inside[0]] : ends[inside[-1]]]
        for inside in expected
    ]


@given(
    text=TEXTS,
    rule=RULES,
    window=st.integers(2, 8),
    unit=st.sampled_from(["window_words", "window_characters"]),
)
def test_windows_lie_in_the_text_one_after_the_other(text, rule, window, unit):
    found = build([text], words=rule, **{unit: window})
    targets = found["target"].to_list()
    assert found["n_windows"].to_list() == [len(targets)] * len(targets)
    end = 0
    for target, start in zip(targets, found["start"], strict=True):
        assert text[start : start + len(target)] == target
        assert start >= end
        end = start + len(target)
    for before, after in pairwise(targets):
        assert before.endswith(split(before, rule)[-1])
        assert after.startswith(split(after, rule)[0])


@given(
    texts=st.lists(st.one_of(st.none(), TEXTS), max_size=6),
    further=st.lists(st.one_of(st.none(), TEXTS), max_size=3),
    window=st.sampled_from([None, 2, 3]),
    identified=st.booleans(),
    role=st.sampled_from(["target", "non_member"]),
)
def test_names_are_unique_and_stay_when_the_corpus_grows(
    texts, further, window, identified, role
):
    everything = texts + further
    names = (
        [f"document {place}" for place in range(len(everything))]
        if identified
        else None
    )
    before = build(texts, names and names[: len(texts)], window_words=window, role=role)
    after = build(everything, names, window_words=window, role=role)
    assert after["target_id"].n_unique() == after.height
    assert after.head(before.height).equals(before)


@given(texts=st.lists(TEXTS, min_size=1, max_size=4), place=st.integers(0, 3))
def test_a_name_depends_on_no_other_document(texts, place):
    place %= len(texts)
    alone = build([texts[place]], ["x"])
    ids = ["x" if index == place else f"other {index}" for index in range(len(texts))]
    among = build(texts, ids)
    assert among["target_id"][place] == alone["target_id"][0]


def samia_reference(text, ratio, text_length):
    """Cut a text as FIELD.md, section 1, says the authors' code does."""
    words = text.split()
    prefix = " ".join(words[: int(len(words) * ratio)])
    nominal = len(words) if text_length is None else text_length
    reference = [word for word in text.split(" ") if word != ""]
    return prefix, " ".join(reference[round(nominal * 0.5) :]), len(words)


@given(
    texts=st.lists(TEXTS, max_size=5),
    ratio=st.floats(0.01, 0.99),
    text_length=st.sampled_from([None, 1, 3, 8]),
)
def test_samia_cuts_as_its_reference(texts, ratio, text_length):
    targets = build(texts, preset="samia", prefix_ratio=ratio, text_length=text_length)
    for row, text in zip(targets.iter_rows(named=True), texts, strict=True):
        prefix, reference, n_words = samia_reference(text, ratio, text_length)
        assert (row["target"], row["n_words"]) == (text, n_words)
        expected = (prefix, reference) if prefix and reference else (None, None)
        assert (row["prefix"], row["reference"]) == expected
        assert (row["reason"] is None) == (expected != (None, None))
