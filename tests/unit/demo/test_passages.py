"""From the documentation of a library to a corpus half of which are members."""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import replace
from itertools import combinations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from mia_batch.errors import SettingsError
from mia_batch.extras.sets.demo import DemoSettings
from mia_batch.extras.sets.demo.making import (
    SHARED_RUN,
    Passage,
    build_corpus,
    choose_passages,
    cut_passages,
    draw_members,
    drop_near_duplicates,
    hash_order,
    read_modules,
)

SETTINGS = DemoSettings(n_passages=36, per_group=4)


def passages_of(texts, module="m"):
    return [Passage(module=module, index=i, text=text) for i, text in enumerate(texts)]


def runs(text, n=SHARED_RUN):
    words = text.split()
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


@pytest.fixture(scope="module")
def modules():
    return dict(read_modules())


def test_real_modules_are_read_without_importing_them(modules):
    assert {"pydoc_data.topics", "turtle"} <= set(modules)
    assert "turtle" not in sys.modules
    topics = modules["pydoc_data.topics"]
    assert topics.index('The "assert" statement') < topics.index('The "while" statement')


def test_real_passages_have_their_own_whitespace_and_share_no_long_run(modules):
    cut = (cut_passages(module, text, n_words=128) for module, text in modules.items())
    passages = [passage for of_module in cut for passage in of_module]
    assert {len(passage.text.split()) for passage in passages} == {128}
    assert all(passage.text in modules[passage.module] for passage in passages)
    assert any("\n    " in passage.text for passage in passages)
    kept = list(drop_near_duplicates(passages))
    assert 500 < len(kept) < len(passages)
    counts = Counter(run for passage in kept for run in runs(passage.text))
    assert set(counts.values()) == {1}


def test_docstrings_are_read_in_the_order_of_the_source(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(
        '"""one"""\nclass A:\n    """two"""\n'
        '    def f(self):\n        """three\n\n          deep\n        four"""\n'
        'if A:\n    async def g():\n        """five"""\n"not a docstring"\nraise RuntimeError\n'
    )
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "topics.py").write_text(
        "# generated\ntopics = {'a': r'''one\ntwo''', 'b': 'three', **{}}\n"
    )
    assert list(read_modules(tmp_path)) == [
        ("package", "one\n\ntwo\n\nthree\n\n  deep\nfour\n\nfive"),
        ("pydoc_data.topics", "one\ntwo\n\nthree"),  # the values of the dictionary
    ]
    assert list(read_modules(tmp_path / "missing")) == []


def test_files_that_are_no_documentation_are_left_out(tmp_path):
    for folder in ("test", "site-packages", "idlelib", "__pycache__"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text('"""no"""')
    contents = {
        "notes.txt": b"no",
        "broken.py": b"def (",
        "null.py": b'"""no"""\0',
        "bytes.py": b'"""\xff"""',
        "undocumented.py": b"x = 1",
        "escape.py": b'"""a \\d"""',  # warns when it is compiled
        "half.py": b'"""a \\ud800b \\0"""',
        "latin.py": '# coding: latin-1\n"""é"""'.encode("latin-1"),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "m.py").write_text('"""text"""')
    found = [("escape", "a \\d"), ("half", "a b \0"), ("latin", "é"), ("a.m", "text")]
    assert list(read_modules(tmp_path)) == found


def test_cut_keeps_whitespace_and_leaves_tables_and_the_rest_out():
    cut = list(cut_passages("m", "  a\n  b\tc   d e ", n_words=2))
    assert cut == passages_of(["a\n  b", "c   d"])
    text = "aaaa bbbb " + "-" * 60 + " x cccc dddd"
    found = [(each.index, each.text) for each in cut_passages("m", text, n_words=2)]
    assert found == [(0, "aaaa bbbb"), (2, "cccc dddd")]


@given(
    st.lists(st.integers(1, 20).map("a".__mul__)),
    st.sampled_from("\n \u2003\x1c"),
    st.integers(1, 4),
)
def test_cut_passages_are_the_words_in_order(words, space, n_words):
    rows = [words[i : i + n_words] for i in range(0, len(words) - n_words + 1, n_words)]
    expected = [(i, space.join(row)) for i, row in enumerate(rows)]
    cut = cut_passages("m", space.join(words), n_words=n_words)
    assert [(p.index, p.text) for p in cut] == [
        (i, text) for i, text in expected if len(text) <= 9 * n_words
    ]


def test_near_duplicates_share_thirteen_words():
    words = [f"w{i}" for i in range(40)]
    first = " ".join(words[:20])
    thirteen = " ".join(["x", *words[7:20], "y"])
    twelve = " ".join(["x", *words[8:20], "y"])
    kept = [p.text for p in drop_near_duplicates(passages_of([first, thirteen, twelve, first]))]
    assert kept == [first, twelve]


@given(st.lists(st.text(alphabet="ab", min_size=13, max_size=30).map(" ".join), max_size=8))
def test_kept_passages_are_the_greedy_choice(texts):
    kept: list[str] = []
    for text in texts:
        if all(runs(text).isdisjoint(runs(other)) for other in kept):
            kept.append(text)
    assert [p.text for p in drop_near_duplicates(passages_of(texts))] == kept
    assert all(not runs(a) & runs(b) for a, b in combinations(kept, 2))


def test_chosen_passages_are_even_and_from_the_largest_modules():
    sizes = {"a": 3, "b": 9, "c": 5, "d": 1}
    every = [p for module, n in sizes.items() for p in passages_of(map(str, range(n)), module)]
    chosen = choose_passages(every, n_passages=10, per_module=4)
    assert Counter(p.module for p in chosen) == {"b": 4, "c": 4, "a": 2}
    assert set(chosen) <= set(every)
    assert len(set(chosen)) == 10
    assert chosen == choose_passages(every, n_passages=10, per_module=4)
    with pytest.raises(SettingsError, match=r"needs 10 passages .* gives 4; use a Python"):
        choose_passages(passages_of("abcde"), n_passages=10, per_module=8)


def test_hash_order_is_the_same_on_every_machine():
    ordered = hash_order(passages_of("abcdef"), "order", 0)
    assert "".join(p.text for p in ordered) == "bcdfea"
    assert hash_order(reversed(ordered), "order", 0) == ordered
    assert hash_order(ordered, "order", 1) != ordered


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Ten modules of 700 random words each, which fail when they are imported."""
    folder = tmp_path_factory.mktemp("library")
    generator = random.Random(5)
    for number in range(10):
        words = [f"w{generator.randrange(10**6)}" for _ in range(700)]
        source = f'"""{" ".join(words)}"""\nraise RuntimeError\n'
        (folder / f"module{number}.py").write_text(source)
    return folder


def test_half_of_each_group_are_members(library, tmp_path):
    corpus = build_corpus(SETTINGS, library)
    columns = {"document_id": pl.String, "text": pl.String, "member": pl.Boolean}
    assert corpus.schema == columns | {"group": pl.String}
    assert corpus.height == corpus["document_id"].n_unique() == 36
    assert corpus.null_count().row(0) == (0, 0, 0, 0)
    halves = corpus.group_by("group").agg(pl.len(), pl.col("member").sum().alias("members"))
    assert halves["len"].to_list() == [4] * 9
    assert halves["members"].to_list() == [2] * 9
    assert_frame_equal(build_corpus(SETTINGS, library), corpus)
    with pytest.raises(SettingsError, match="needs 36 passages"):
        build_corpus(SETTINGS, tmp_path)


def test_another_seed_draws_other_members_of_the_same_passages_in_another_order(library):
    """Over many seeds, members and non-members stand equally early."""
    made = [build_corpus(replace(SETTINGS, seed=seed), library) for seed in range(40)]
    corpus, other, *_ = made
    assert other["document_id"].to_list() != corpus["document_id"].to_list()
    joined = corpus.join(other, on=["document_id", "text", "group"], how="full", coalesce=True)
    assert joined.height == 36
    assert 0 < (joined["member"] == joined["member_right"]).sum() < 36
    assert 8 < sum(each["member"][0] for each in made) < 32


def test_odd_groups_are_within_one_of_half():
    passages = [Passage(module=m, index=i, text=f"{m}{i}") for m in "ab" for i in range(5)]
    members = draw_members(passages, seed=3)
    assert [sum(p.module == module for p in members) for module in "ab"] == [2, 2]
    assert draw_members(passages, seed=3) == members
