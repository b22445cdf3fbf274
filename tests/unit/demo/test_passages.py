from __future__ import annotations

import sys
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.demo.making import (
    SHARED_RUN,
    Passage,
    choose_passages,
    cut_passages,
    drop_near_duplicates,
    hash_order,
    read_modules,
)
from mia_batch.errors import SettingsError


def passages_of(texts, module="m"):
    return [Passage(module=module, index=i, text=text) for i, text in enumerate(texts)]


def runs(text, n=SHARED_RUN):
    words = text.split()
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


@pytest.fixture(scope="module")
def modules():
    return dict(read_modules())


@pytest.fixture(scope="module")
def passages(modules):
    return [
        passage
        for module, text in modules.items()
        for passage in cut_passages(module, text, n_words=128)
    ]


def test_real_modules_are_read_without_importing_them(modules):
    assert {"pydoc_data.topics", "turtle"} <= set(modules)
    assert "turtle" not in sys.modules


def test_real_topics_are_read_in_their_order(modules):
    topics = modules["pydoc_data.topics"]
    assert topics.index('The "assert" statement') < topics.index('The "while" statement')


def test_real_passages_have_128_words_and_their_own_whitespace(modules, passages):
    assert len(passages) > 500
    assert {len(passage.text.split()) for passage in passages} == {128}
    assert all(passage.text in modules[passage.module] for passage in passages)
    assert any("\n    " in passage.text for passage in passages)


def test_real_passages_share_no_long_run(passages):
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
    expected = "one\n\ntwo\n\nthree\n\n  deep\nfour\n\nfive"
    assert list(read_modules(tmp_path)) == [("package", expected)]


def test_topics_are_the_values_of_the_dictionary(tmp_path):
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "topics.py").write_text(
        "# generated\ntopics = {'a': r'''one\ntwo''', 'b': 'three'}\n"
    )
    assert list(read_modules(tmp_path)) == [("pydoc_data.topics", "one\ntwo\n\nthree")]


def test_files_that_are_no_documentation_are_left_out(tmp_path):
    for folder in ("test", "site-packages", "idlelib", "__pycache__"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text('"""no"""')
    (tmp_path / "notes.txt").write_text("no")
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "null.py").write_bytes(b'"""no"""\0')
    (tmp_path / "bytes.py").write_bytes(b'"""\xff"""')
    (tmp_path / "undocumented.py").write_text("x = 1")
    (tmp_path / "escape.py").write_text('"""a \\d"""')  # warns when it is compiled
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "half.py").write_text('"""a \\ud800b \\0"""')
    (tmp_path / "latin.py").write_bytes('# coding: latin-1\n"""é"""'.encode("latin-1"))
    assert list(read_modules(tmp_path)) == [
        ("escape", "a \\d"),
        ("half", "a b \0"),
        ("latin", "é"),
    ]


def test_no_library_gives_no_modules(tmp_path):
    assert list(read_modules(tmp_path / "missing")) == []


def test_links_to_folders_are_not_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "m.py").write_text('"""text"""')
    assert list(read_modules(tmp_path)) == [("a.m", "text")]


def test_cut_keeps_whitespace_and_leaves_the_rest_out():
    cut = list(cut_passages("m", "  a\n  b\tc   d e ", n_words=2))
    assert cut == passages_of(["a\n  b", "c   d"])


def test_cut_leaves_tables_out_and_counts_them():
    text = "aaaa bbbb " + "-" * 60 + " x cccc dddd"
    assert [(p.index, p.text) for p in cut_passages("m", text, n_words=2)] == [
        (0, "aaaa bbbb"),
        (2, "cccc dddd"),
    ]


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


def test_too_little_documentation_is_said():
    with pytest.raises(SettingsError, match=r"needs 10 passages .* gives 4; use a Python"):
        choose_passages(passages_of("abcde"), n_passages=10, per_module=8)


def test_hash_order_is_the_same_on_every_machine():
    ordered = hash_order(passages_of("abcdef"), "order", 0)
    assert "".join(p.text for p in ordered) == "bcdfea"
    assert hash_order(reversed(ordered), "order", 0) == ordered
    assert hash_order(ordered, "order", 1) != ordered
