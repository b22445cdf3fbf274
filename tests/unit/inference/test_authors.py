"""Books of one author count once together."""

import numpy as np
import polars as pl
import pytest

from mia_batch.inference.authors import author_keys, with_authors_of_folders
from mia_batch.inference.comparison import (
    author_findings,
    independent_units,
    read_comparison_sets,
)
from mia_batch.inference.sets import few_books_findings
from mia_batch.inference.verdicts import power_findings, verdicts
from mia_batch.report.sentences import author_sentence
from tests.unit.inference.scored import plan, rows, table

PLAN = plan(level="group")


def books(role, scores, authors):
    scores_and_authors = zip(scores, authors, strict=True)
    return [
        row | {"author": author, "group": f"{role} {place:02}"}
        for place, (score, author) in enumerate(scores_and_authors)
        for row in rows(role, [score])
    ]


def library(*parts):
    every = [row for part in parts for row in part]
    authors = pl.Series("author", [row["author"] for row in every], pl.String)
    rows_of_books = [
        {name: row[name] for name in row.keys() - {"author"}} for row in every
    ]
    return table(rows_of_books).with_columns(authors).lazy()


def collection(scores):
    all_verdicts = pl.concat(verdicts(scores, ["a_v1"], PLAN))
    return all_verdicts.filter(pl.col("estimate").is_null(), level="collection").row(
        0, named=True
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Jane Austen", "Austen, Jane, 1775-1817"),
        ("BRONTË, Charlotte", "Charlotte Bronte"),
        ("Émile Zola (1840-1902)", "zola, emile"),
    ],
)
def test_a_name_is_the_same_in_any_spelling(first, second):
    assert author_keys(first) == author_keys(second)


def test_names_list_authors_and_nobody_is_none():
    assert author_keys("Marx, Karl; Friedrich Engels") == {
        "karl marx",
        "engels friedrich",
    }
    assert author_keys("Brooks & Warren") == author_keys("Warren and Brooks")
    assert author_keys("user 12") != author_keys("user 13")
    for nobody in ("", "Anonymous", "Various Authors", "N/A", "unknown", "et al."):
        assert author_keys(nobody) == set()


def test_ten_books_of_one_author_are_one_unit():
    audited = books("target", [9.0] * 10, ["Jane Austen", "Austen, Jane"] * 5)
    nulls = books("non_member", np.arange(19) / 10, [f"other {n}" for n in range(19)])
    row = collection(library(audited, nulls))
    assert (row["p_value"], row["n_null"]) == (1 / 20, 19)
    assert row["method"] == "authors_permutation_exact"
    alone = collection(library(audited, nulls).drop("author"))
    assert alone["p_value"] == pytest.approx(1e-4)


def test_authors_are_compared_by_as_many_books_each_and_unknown_ones_are_left_out():
    names = [name for name in "abcdefmn" for _ in range(3)]
    audited = books("target", np.arange(24), names)
    null_books = books("non_member", np.arange(9), [*"ggghhhi", None, "Anonymous"])
    sets = read_comparison_sets(library(audited, null_books))
    together = independent_units(sets, (sets.targets, sets.nulls), 1, seed=0)
    assert (together.by_author, together.n_books, together.reason) == (True, 3, None)
    targets, nulls = together.units
    assert targets.sizes.tolist() == [3] * 8
    assert targets.windows.tolist() == np.arange(24).reshape(8, 3).tolist()
    assert (nulls.sizes.tolist(), nulls.usable.tolist()) == (
        [3, 3, 1],
        [True, True, False],
    )
    assert nulls.windows.tolist() == [[24, 25, 26], [27, 28, 29]]


def test_a_book_of_two_authors_makes_their_books_one_unit():
    audited = books("target", range(3), ["Marx", "Marx; Engels", "Engels"])
    nulls = books("non_member", range(4), [*"abcd"])
    sets = read_comparison_sets(library(audited, nulls))
    counts = sets.count_authors(sets.targets)
    assert (counts.n_clusters, counts.n_authors, counts.n_unknown) == (3, 1, 0)


def test_nothing_is_said_of_all_together_where_the_others_have_no_authors():
    scores = library(
        books("target", [99.0] * 4, ["Austen"] * 4),
        books("non_member", range(40), [None] * 40),
    )
    reason = (
        "several texts are by one author, and the authors of the 40 comparison texts"
        " are unknown: name them with --author-column"
    )
    row = collection(scores)
    assert (row["p_value"], row["reason"]) == (None, reason)
    few_books = few_books_findings(scores, ["a_v1", "a_v1"], PLAN, None)
    assert few_books.filter(statistic="at_least")["reason"].item() == reason
    assert few_books.filter(check="max_t").is_empty()
    sentences = [*author_sentence(author_findings(scores, PLAN))]
    assert len(sentences) == 1
    assert reason in sentences[0]
    listed = pl.concat(verdicts(scores, ["a_v1"], PLAN)).filter(level="group")
    assert listed["p_value"].to_list() == [1 / 41] * 4


def test_bounds_and_all_attacks_together_are_about_authors():
    audited = books("target", [9.0] * 24, [f"author {n // 2}" for n in range(24)])
    nulls = books(
        "non_member", np.arange(60) / 60, [f"other {n // 2}" for n in range(60)]
    )
    scores = library(audited, nulls).with_columns(b_v1="a_v1")
    few_books = few_books_findings(scores, ["a_v1", "b_v1"], PLAN, ["a_v1", "b_v1"])
    top = dict(few_books.filter(check="top").select("statistic", "value").iter_rows())
    assert few_books.filter(check="top")["subject"].unique().to_list() == ["author"]
    assert (top["n_tests"], top["n_null"], top["of_top"]) == (12, 30, 12)
    n = dict(few_books.filter(check="max_t").select("statistic", "value").iter_rows())
    assert (n["n_tests"], n["n_null"]) == (12, 30)


def test_sentences_say_what_is_compared_and_what_one_author_cannot_tell():
    audited = books("target", [1.0] * 10, ["Austen"] * 10)
    nulls = books("non_member", range(31), [*map(str, range(30)), None])
    findings = author_findings(library(audited, nulls), PLAN)
    compared, one_author = author_sentence(findings)
    assert (
        "10 audited texts or books are by 1 author, 30 comparison ones by 30"
        in compared
    )
    assert "1 more by unknown authors are left out there" in compared
    assert "no p-value below 0.032 for all texts together" in one_author
    unknown = library(
        books("target", range(5), [None] * 5), books("non_member", [1], ["a"])
    )
    (sentence,) = author_sentence(author_findings(unknown, PLAN))
    assert sentence.startswith(
        "The authors of 5 of 5 audited and 0 of 1 comparison texts are unknown."
    )
    apart = library(
        books("target", range(2), "ab"), books("non_member", range(2), "cd")
    )
    assert [*author_sentence(author_findings(apart, PLAN))] == []


def test_the_power_of_a_collection_counts_authors():
    scores = library(
        books("target", range(10), ["Austen"] * 10),
        books("non_member", range(25), map(str, range(25))),
    )
    findings = power_findings(scores, plan(level="collection"))
    n = dict(findings.select("statistic", "value").iter_rows())
    assert (n["n_tests"], n["n_null"], n["together"]) == (1, 25, 1 / 26)


def test_a_folder_names_an_author_whom_another_book_names():
    targets = pl.LazyFrame(
        {
            "document_id": [
                "Jane Austen/emma.txt",
                "Jane Austen/lady.epub",
                "essays/x.txt",
            ],
            "author": [None, "Austen, Jane", None],
        }
    )
    folder_authors = with_authors_of_folders(targets).collect()["author"]
    assert folder_authors.to_list() == ["Austen, Jane", "Austen, Jane", None]
