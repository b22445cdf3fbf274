"""From the documentation of a library to a corpus half of which are members."""

import random
import sys
from collections import Counter
from dataclasses import replace
from itertools import chain

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.errors import SettingsError
from mia_batch.extras.sets import demo

SETTINGS = demo.DemoSettings(n_passages=36, per_group=4)


def test_real_passages_have_their_own_whitespace_and_share_no_long_run():
    modules = dict(demo.read_modules())
    assert {"pydoc_data.topics", "turtle"} <= set(modules)
    assert "turtle" not in sys.modules  # nothing is imported
    kept = demo.build_passages(None, 128)
    texts = [text.split() for text in kept["text"]]
    assert {len(words) for words in texts} == {128}
    assert all(
        text in modules[module] for text, module in kept["text", "group"].iter_rows()
    )
    assert kept["text"].str.contains("\n    ").any()
    assert kept.height > 500
    assert demo.SHARED_RUN == 13
    runs = ({tuple(words[i : i + 13]) for i in range(116)} for words in texts)
    assert set(Counter(chain.from_iterable(runs)).values()) == {1}


def test_docstrings_are_read_in_the_order_of_the_source(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(
        '"""one"""\nclass A:\n    """two"""\n    def f(self):\n        """three\n\n    '
        '      deep\n        four"""\nif A:\n    async def g():\n       '
        ' """five"""\n"not a docstring"\nraise RuntimeError\n'
    )
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "topics.py").write_text(
        "# generated\ntopics = {'a': r'''one\ntwo''', 'b': 'three', **{}}\n"
    )
    assert list(demo.read_modules(tmp_path)) == [
        ("package", "one\n\ntwo\n\nthree\n\n  deep\nfour\n\nfive"),
        ("pydoc_data.topics", "one\ntwo\n\nthree"),  # the values of the dictionary
    ]
    assert list(demo.read_modules(tmp_path / "missing")) == []


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
    assert list(demo.read_modules(tmp_path)) == found


def test_cut_keeps_whitespace_and_leaves_tables_and_the_rest_out():
    text = "  aaaa\n  bbbb " + "-" * 60 + " x cccc\tdddd e "
    assert [*demo.cut_passages(text, 2)] == [(0, "aaaa\n  bbbb"), (2, "cccc\tdddd")]


@given(
    st.lists(st.integers(1, 20).map("a".__mul__)),
    st.sampled_from("\n \u2003\x1c"),
    st.integers(1, 4),
)
def test_cut_passages_are_the_words_in_order(words, space, n_words):
    rows = [words[i : i + n_words] for i in range(0, len(words) - n_words + 1, n_words)]
    expected = [(i, space.join(row)) for i, row in enumerate(rows)]
    cut = [*demo.cut_passages(space.join(words), n_words)]
    assert cut == [(i, text) for i, text in expected if len(text) <= 9 * n_words]


def test_of_passages_that_share_thirteen_words_the_first_is_kept(tmp_path):
    words = [f"w{i}" for i in range(40)]
    first, thirteen, twelve = (
        words[:15],
        ["x", *words[2:15], "y"],
        ["x", *words[3:15], "y", "z"],
    )
    text = " ".join([*first, *thirteen, *twelve, *first])
    (tmp_path / "m.py").write_text(f'"""{text}"""')
    kept = demo.build_passages(tmp_path, 15)
    assert kept["document_id"].to_list() == ["m-000", "m-002"]


def test_hash_order_is_the_same_on_every_machine():
    def order(letters, seed):
        return "".join(
            demo.hash_order(pl.DataFrame({"text": [*letters]}), "order", seed)["text"]
        )

    assert order("abcdef", 0) == order("fedcba", 0) == "bcdfea"
    assert order("abcdef", 1) != "bcdfea"


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
    corpus = demo.build_corpus(SETTINGS, library)
    columns = {"document_id": pl.String, "text": pl.String, "member": pl.Boolean}
    assert corpus.schema == columns | {"group": pl.String}
    assert corpus.height == corpus["document_id"].n_unique() == 36
    assert corpus.null_count().row(0) == (0, 0, 0, 0)
    halves = corpus.group_by("group").agg(
        pl.len(), pl.col("member").sum().alias("members")
    )
    assert halves["len"].to_list() == [4] * 9
    assert halves["members"].to_list() == [2] * 9
    with pytest.raises(
        SettingsError, match=r"needs 36 passages .* gives 0; use a Python"
    ):
        demo.build_corpus(SETTINGS, tmp_path)


def test_the_largest_modules_come_first_and_counts_are_even(tmp_path):
    for module, n in {"a": 3, "b": 9, "c": 5, "d": 1}.items():
        text = " ".join(f"{module}{i}" for i in range(20 * n))
        (tmp_path / f"{module}.py").write_text(f'"""{text}"""')
    corpus = demo.build_corpus(
        demo.DemoSettings(n_passages=10, per_group=4, n_words=20), tmp_path
    )
    assert Counter(corpus["group"]) == {"b": 4, "c": 4, "a": 2}


def test_another_seed_draws_other_members_of_the_same_passages_in_another_order(
    library,
):
    """Over many seeds, members and non-members stand equally early."""
    made = [
        demo.build_corpus(replace(SETTINGS, seed=seed), library) for seed in range(40)
    ]
    corpus, other, *_ = made
    assert other["document_id"].to_list() != corpus["document_id"].to_list()
    joined = corpus.join(
        other, on=["document_id", "text", "group"], how="full", coalesce=True
    )
    assert joined.height == 36
    assert 0 < (joined["member"] == joined["member_right"]).sum() < 36
    assert 8 < sum(each["member"][0] for each in made) < 32
