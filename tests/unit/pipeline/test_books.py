"""Audits of books, from the folder to the scores."""

from __future__ import annotations

import polars as pl
import pytest
from lxml import html

import mia_batch
from mia_batch import targets as reasons
from mia_batch.errors import SettingsError
from mia_batch.observer import Observer
from mia_batch.pipeline import plan
from mia_batch.pipeline.corpora import open_corpora, with_windows
from mia_batch.settings import load_settings
from tests.books import HEADER, page, write_epub


def text(name, n_words=640):
    return " ".join(f"{name}{number}" for number in range(n_words))


class Sentences(Observer):
    """Keeps what is said."""

    def __init__(self):
        self.said = []

    def stage(self, sentence):
        self.said.append(sentence)


@pytest.fixture
def books(tmp_path):
    """Settings of an audit of three books; the third repeats the first."""
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "a.txt").write_text(HEADER + text("a"))
    marks = "<sup><a href='#1'>1</a></sup><a href='#2'>[2]</a><i class='pagenum'>12</i>"
    write_epub(folder / "b.epub", {"x": page(f"<p>{text('b')}{marks}</p>")}, spine=["x", "y"])
    (folder / "c.html").write_text(f"<p>{text('a')}<p>{text('c', 256)}")
    given = {"input": str(folder), "out": str(tmp_path / "run"), "attacks": "samia_matched_v1"}
    settings = with_windows(load_settings(given | {"model": "m"}))
    targets = open_corpora(settings).targets(settings).drop_nulls("target").collect()
    recorded = targets.select("target_id", candidate="reference", sample_index=pl.lit(0))
    recorded.write_parquet(tmp_path / "recorded.parquet")
    return given | {"samples_from": str(tmp_path / "recorded.parquet")}


def test_books_are_cut_into_windows_and_counted_once(books):
    observer = Sentences()
    run = mia_batch.audit(**books, observer=observer)
    targets = run["targets"]
    assert targets["n_words"].drop_nulls().to_list() == [128] * 12
    assert targets.group_by("group", maintain_order=True).len().rows() == [
        ("a.txt", 5),
        ("b.epub", 5),
        ("c.html", 7),
    ]
    assert targets["title"].unique(maintain_order=True).to_list() == [
        *("The Raven Book and Other Poems", "The Title", None),
    ]
    copies = run["scores"].filter(pl.col("samia_matched_v1").is_null())["target_id"]
    assert targets.filter(reason=reasons.COPY)["target_id"].to_list() == copies.to_list()
    assert len(copies) == 5
    assert run.manifest.settings["window_words"] == 128
    assert observer.said[:3] == [
        f"{books['input']}: 3 documents, cut into windows of 128 words",
        "17 targets (cannot be sampled: 5 the same passage as in earlier windows)",
        f"headers, licences, notes and tables of contents cut from 1 of 3 books: {len(HEADER)} "
        "characters before the text, 0 after it; left out within the text: note marks (2), "
        "page numbers (1), missing pages (1)",
    ]


def test_the_report_says_what_was_cut_and_how_many_words_were_given(books):
    run = mia_batch.audit(**books)
    given = run["findings"].filter(check="prompts")
    assert given.select("subject", "statistic", "value", "verdict").rows() == [
        ("continuation", name, value, "prefix_of_work")
        for name, value in (
            ("n_prompts", 12.0),
            ("words_given_mean", 64.0),
            ("words_given_least", 64.0),
            ("words_given_most", 64.0),
        )
    ]
    page = html.fromstring((run.folder / "report.html").read_text("utf-8"))
    shown = {
        row.find("dt").text_content().split(" ", 1)[1]: row.find("dd").text_content()
        for row in page.xpath("//section[@id='record']//div[@data-entry]")
    }
    said = shown["Words given, by kind of prompt"]
    assert "continuation, words_given_most: 64 (prefix_of_work)" in said
    cut = shown["Characters cut at the beginning of each text"]
    assert cut.strip() == "in targets, column cut_start"
    rows = run["rollup"].select("key", "cut_start", "cut_end").rows()
    assert rows == [("a.txt", len(HEADER), 0), ("b.epub", 0, 0), ("c.html", 0, 0)]


def test_more_windows_are_added_to_those_that_there_are(books):
    few = mia_batch.audit(**books, max_windows_per_document=1)
    before, names = few["samples"], set(few["targets"]["target_id"])
    assert len(names) == 3
    left = dict(plan(load_settings(books | {"max_windows_per_document": 3})))
    assert left["documents"] == "3, cut into windows of 128 words, at most 3 of a document"
    assert left["targets"] == "9 of 17 windows"
    more = mia_batch.audit(**books, max_windows_per_document=3)
    assert more["targets"].height == 9
    assert more["samples"].join(before, on="target_id", how="semi").equals(before)
    assert names < set(more["targets"]["target_id"])


def test_books_have_p_values_of_their_own(books, tmp_path):
    (tmp_path / "new").mkdir()
    for number in range(19):
        (tmp_path / "new" / f"{number}.txt").write_text(text(f"n{number}x", 256))
    reference_set = {
        "non_members": str(tmp_path / "new"),
        "non_members_known": "written last week",
        "level": "group",
    }
    settings = with_windows(load_settings(books | reference_set))
    targets = open_corpora(settings).targets(settings).drop_nulls("target").collect()
    candidate = pl.when(role="target").then("reference").otherwise(pl.lit("other words"))
    recorded = targets.select("target_id", sample_index=pl.lit(0), candidate=candidate)
    recorded.write_parquet(tmp_path / "all.parquet")
    run = mia_batch.audit(**books | reference_set | {"samples_from": str(tmp_path / "all.parquet")})
    found = run["verdicts"].filter(level="group", attack="samia_matched_v1").drop_nulls("p_value")
    assert sorted(found.select("key", "p_value").rows()) == [
        (name, pytest.approx(1 / 20)) for name in ("a.txt", "b.epub", "c.html")
    ]


def test_windows_may_be_of_another_length(books):
    settings = load_settings(books | {"window_words": 64})
    assert with_windows(settings).window_words == 64
    samia = load_settings(books | {"preset": "samia", "text_length": 32, "attacks": None})
    assert with_windows(samia).window_words == 32


def test_most_windows_need_windows(tmp_path):
    pl.DataFrame({"text": ["a b"]}).write_parquet(tmp_path / "c.parquet")
    settings = load_settings(
        {"input": str(tmp_path / "c.parquet"), "model": "m", "max_windows_per_document": 2}
    )
    with pytest.raises(
        SettingsError,
        match=r"^max_windows_per_document is 2 without window_words; set window_words too$",
    ):
        with_windows(settings)
