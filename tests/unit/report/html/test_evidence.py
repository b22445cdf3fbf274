"""Evidence: which windows are shown, what of them is marked, controls and perplexities."""

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from lxml import html

from mia_batch.report.html import render
from mia_batch.report.html.columns import (
    NO_VALUE,
    common_windows,
    control_table,
    strips,
)
from mia_batch.report.html.evidence import find_windows
from mia_batch.report.html.page import FIELDS, NOT_RECORDED
from mia_batch.schemas import (
    Controls,
    ExtractedDocuments,
    Extraction,
    Perplexities,
    Prompts,
    Samples,
)
from tests.frames import features, samples, table, target_id, targets
from tests.reports import HOSTILE, contents

LEVELS = ["document", "group", "outside"]
ROWS: list[dict[str, Any]] = [
    {
        "target_id": target_id(0),
        "control": "unrelated_prefix",
        "longest_words": 1,
        "common": False,
    },
    {
        "target_id": target_id(0),
        "control": "other_document",
        "reason": "nowhere",
        "common": False,
    },
    {
        "target_id": target_id(3),
        "control": "unrelated_prefix",
        "longest_words": 22,
        "common": True,
    },
    {
        "target_id": target_id(3),
        "control": "unrelated_prefix_16_words",
        "longest_words": 31,
    },
    {
        "target_id": target_id(3),
        "control": "other_document",
        "longest_words": 25,
        "common": True,
    },
]
COUNTS = {
    "any": {"passages": 2, "common": 1},
    "unrelated_prefix": {"passages": 2, "repeated": 1},
    "other_document": {"passages": 2, "repeated": 1},
}
NAMED = (
    "The same after an unrelated prefix",
    "Quotations found in other works",
    "The passage is common or quoted elsewhere",
)


def controlled(other_document="emma", rows=tuple(ROWS)):
    """Contents of a run with controls."""
    page_contents = contents()
    frame = table(Controls, rows, n_samples=2, other_document=other_document)
    rolled = page_contents.tables["rollup"].with_columns(n_common=pl.lit(1, pl.UInt32))
    tables = {**page_contents.tables, "controls": frame.lazy(), "rollup": rolled}
    return replace(
        page_contents,
        tables=tables,
        manifest={**page_contents.manifest, "controls": COUNTS},
    )


def test_the_table_has_a_row_per_passage_and_control_and_the_checklist_reads_the_counts():
    controls_found = control_table(controlled())
    assert controls_found is not None
    cells = [
        [str(column.write(row)) for column in controls_found.columns]
        for row in controls_found.rows
    ]
    assert cells[0] == [
        *(
            "dune",
            "1",
            "after the prefix of another document",
            "2",
            "1",
            "no",
            "emma",
            NO_VALUE,
        ),
    ]
    assert [row[5] for row in cells] == ["no", "no", "common", NO_VALUE, "common"]
    assert [row[7] for row in cells] == [
        NO_VALUE,
        "nowhere",
        NO_VALUE,
        NO_VALUE,
        NO_VALUE,
    ]
    assert control_table(contents()) is None
    fields = {field.name: field for field in FIELDS}
    page_contents = controlled()
    assert [fields[name].value(page_contents) for name in NAMED] == [
        "passages: 2; repeated: 1",
        "passages: 2; repeated: 1",
        "passages: 2; common: 1",
    ]
    assert {fields[name].value(contents()) for name in NAMED} == {NOT_RECORDED}


def test_windows_of_common_passages_are_shown_and_marked():
    page_contents = controlled()
    expected_words = ["after the prefix of another document", "in another document"]
    assert common_windows(page_contents) == {target_id(3): expected_words}
    windows = {
        window["target_id"]: window["common"] for window in find_windows(page_contents)
    }
    assert [*windows][:2] == [target_id(0), target_id(3)]  # the latter has no score
    assert {key for key, common in windows.items() if common} == {target_id(3)}
    page = render(page_contents)
    marked = (
        "Common, so no evidence: what came out also stands or comes out after the"
        " prefix of another document; in another document"
    )
    assert page.count(marked) == 1
    assert "Common, so no evidence" not in render(contents())
    assert "Common passages is n_common;" in page
    assert "Common passages: <bdi>1</bdi>" in page  # what all rows say is no column


def test_perplexities_of_the_windows_that_are_shown():
    page_contents = contents()
    fields = {field.name: field for field in FIELDS if field.entry == 9}
    assert {field.value(page_contents) for field in fields.values()} == {NOT_RECORDED}
    rows: list[dict[str, Any]] = [
        {
            "target_id": target_id(0),
            "perplexity": 1.25,
            "entropy": 0.5,
            "reference_reason": "none",
        },
        {"target_id": target_id(99), "perplexity": 7.5},
    ]
    tables = {**page_contents.tables, "perplexities": table(Perplexities, rows).lazy()}
    with_perplexities = replace(page_contents, tables=tables)
    page = render(with_perplexities)
    assert "How sure the models are of these windows" in page
    assert "1.250" in page
    assert "7.500" not in page
    assert [field.value(with_perplexities) for field in fields.values()] == [
        "in perplexities, column perplexity",
        "in perplexities, column entropy",
        NOT_RECORDED,
    ]


def test_a_run_without_controls_says_so_and_names_are_never_obeyed():
    assert "Whether what came out is common was not asked" in render(contents())
    assert "No passage came out word for word" in render(controlled(rows=()))
    page = render(controlled(other_document=HOSTILE))
    assert "<script>window.hacked" not in page
    assert "&lt;script&gt;window.hacked" in page


def test_the_longest_run_comes_first_and_is_marked_on_both_sides():
    windows = find_windows(contents())
    scores = [window["score"] for window in windows]
    assert scores == [0.9, 0.4, 0.3, 0.2, 0.1]
    assert [window["longest_words"] for window in windows] == [
        31,
        None,
        None,
        None,
        None,
    ]
    window = find_windows(contents(text=" and"))[0]
    assert window["sample_index"] == 1
    shared = ("it was the worst of", True)
    assert window["true"] == [(" of times and, ", False), shared, (" times", False)]
    assert window["model"] == [(" said: ", False), shared, ("  and", False)]
    page_contents = contents()  # nothing is marked where nothing is shared
    other_samples = samples(*[["nothing alike"]] * 6).lazy()
    window = find_windows(
        replace(
            page_contents, tables={**page_contents.tables, "samples": other_samples}
        )
    )[0]
    assert window["true"] == [(" of times, it was the worst of times", False)]


def test_answers_at_points_stand_where_they_were_asked_for():
    text = "Zürich is a town by a lake"
    page_contents = contents()
    prompt_rows: list[dict[str, Any]] = [
        {"cut": len("Zürich is".encode()), "text": " a", "view_index": 0},
        {"cut": len("Zürich is a town".encode()), "text": " by", "view_index": 1},
    ]
    answers_said = [
        {"candidate": " a town", "view_index": 0},
        {"candidate": " near", "view_index": 1},
    ]
    key: dict[str, Any] = {
        "target_id": target_id(0),
        "model": "target",
        "view": "probe",
    }
    rows = [{**key, "sample_index": 0, **row} for row in answers_said]
    hits = [
        {"leading_words": hit, "view_index": index} for index, hit in enumerate([1, 0])
    ]
    tables = {
        "targets": targets({"target": text}).lazy(),
        "scores": pl.LazyFrame(
            {
                "target_id": [target_id(0)],
                "role": ["target"],
                page_contents.primary: [1.0],
            }
        ),
        "prompts": table(Prompts, [key | row for row in prompt_rows]).lazy(),
        "samples": table(Samples, rows, n_tokens=2, short=False).lazy(),
        "features": (
            features(*(key | {"sample_index": 0} | row for row in hits)).lazy()
        ),
    }
    window = find_windows(replace(page_contents, tables=tables))[0]
    assert window["points"] == [
        {"text": "Zürich is "},
        {"text": "a", "said": "a", "hit": True},
        {"text": " town "},
        {"text": "by", "said": "near", "hit": False},
        {"text": " a lake"},
    ]


def test_a_strip_has_a_rectangle_for_each_shade_and_says_what_it_shows():
    strip_by_book = strips(contents())
    assert list(strip_by_book) == ["dune", "emma", "ulysses"]
    assert '<path class="h7" d="M0 0H500V1H0z"/>' in strip_by_book["dune"]
    assert (
        "2 stretches, 1 with a score; highest 0.97, from 0 % of the document on"
        in strip_by_book["dune"]
    )


@pytest.mark.parametrize(
    ("listed", "chapters_shown"),
    [
        (None, [("left: 0.0%", "Chapter 1: The sea"), ("left: 81.7%", "CHAPTER II")]),
        (["One", "Two"], [("left: 0.0%", "One"), ("left: 79.4%", "Two")]),
    ],
)
def test_chapters_stand_below_the_strip_where_they_begin_in_the_book(
    listed, chapters_shown
):
    texts = ("Chapter 1: The sea\nOf a chapter\n", "of\n  CHAPTER II\nBook of it")
    targets_with_chapters = targets(
        *(
            {"document_id": "dune", "start": 100 * number, "target": t, "reference": t}
            for number, t in enumerate(texts)
        )
    )
    targets_with_chapters = (
        targets_with_chapters
        if listed is None
        else targets_with_chapters.with_columns(window_chapter=pl.Series(listed))
    )
    page_contents = contents()
    tables = {**page_contents.tables, "targets": targets_with_chapters.lazy()}
    scores = page_contents.tables["scores"].with_columns(
        pl.lit("dune").alias("document_id")
    )
    page = html.fromstring(
        render(replace(page_contents, tables=tables | {"scores": scores}))
    )
    items = page.xpath("//details[@class='book']//ol/li")
    assert [
        (item.get("style"), item.text_content()) for item in items
    ] == chapters_shown


def test_what_is_no_longer_than_chance_is_one_folded_line():
    page_contents = contents()
    page = html.fromstring(render(page_contents))
    (fold,) = page.xpath("//details[@class='chance']")
    assert fold.get("open") is None
    assert fold.find("summary").text_content() == (
        "The closest continuations (at most 5 words in a row: taken for chance)"
    )
    evident = page.xpath("//section[@id='evidence']/details[@class='book']//h3")
    assert [heading.text_content() for heading in evident] == ["A title"]
    yardstick = page.xpath("//section[@id='evidence']/p")[0].text_content()
    assert "nothing was compared, so runs shorter than 20 words" in yardstick
    levels = pl.Series(["document", "outside", "outside"], dtype=pl.Enum(LEVELS))
    rows = page_contents.tables["rollup"].with_columns(level=levels)
    page = html.fromstring(
        render(replace(page_contents, tables={**page_contents.tables, "rollup": rows}))
    )
    yardstick = page.xpath("//section[@id='evidence']/p")[0].text_content()
    assert (
        "of 2 comparison documents, which the model cannot know, at most 4" in yardstick
    )


@pytest.mark.parametrize(
    ("n", "ending"), [(5, "as comparison texts have: chance)"), (4, "no evidence by")]
)
def test_runs_are_called_chance_where_comparison_texts_have_as_long_ones(n, ending):
    page_contents = contents()
    levels = pl.Series(["document", "outside", "outside"], dtype=pl.Enum(LEVELS))
    is_outside = pl.col("level") == "outside"
    rows = page_contents.tables["rollup"].with_columns(level=levels)
    longest = pl.when(is_outside).then(pl.lit(n, pl.UInt32)).otherwise("longest_words")
    rows = rows.with_columns(longest_words=longest)
    page = html.fromstring(
        render(replace(page_contents, tables={**page_contents.tables, "rollup": rows}))
    )
    (fold,) = page.xpath("//details[@class='chance']/summary/text()")
    assert "at most 5 words in a row" in fold
    assert ending in fold


def test_a_stretch_stands_first_side_by_side_and_is_cut_where_it_is_long():
    text = " ".join(f"word{n}" for n in range(3000))
    walk_text = text.replace("word7 ", "Oops ")
    walk = {"end": len(text), "text": text, "said": f" {walk_text}", "n_words": 3000}
    walk |= {"start": 0, "words_before": 40, "n_verbatim": 2999, "target_id": "t0"}
    extraction = table(Extraction, [walk], document_id="emma", n_rounds=9, draw=0)
    place = {"start": 50, "end": len(text)}
    figures = {"longest_words": 2992, "passages_20": [place], "n_others": 1}
    figures |= {"bmc_5": 0.5, "bmc_5_others": 0.0}
    walked = table(ExtractedDocuments, [figures], document_id="emma")
    page_contents = contents()
    tables = {"extraction": extraction.lazy(), "extracted_documents": walked.lazy()}
    rollup = page_contents.tables["rollup"].with_columns(
        extracted_words=pl.when(key="emma").then(pl.lit(2992, pl.UInt32))
    )
    with_walks = replace(
        page_contents, tables={**page_contents.tables, **tables, "rollup": rollup}
    )
    page = html.fromstring(render(with_walks))
    (stretch,) = page.xpath("//article[@id='s-t0']")
    facts = " ".join(stretch.find("p").text_content().split())
    assert facts.startswith(
        "2,992 words in a row came out. The stretch starts after word 40"
    )
    assert "cover 50 % of this document, and 0 % of another document" in facts
    true, model = stretch.xpath(".//div[@role='region']")
    assert "word7 " in " ".join(true.text_content().split())
    assert true.xpath("text()")[0].strip() == "word7"
    assert model.xpath("text()")[0].strip() == "Oops"
    n_cut = len(text) - 12_000
    assert f"{n_cut:,} more characters are in extraction.parquet" in true.text_content()
    link = page.xpath("//table[@id='documents-table']//a[@href='#s-t0']")
    assert [link_text.text for link_text in link] == ["2,992"]
    first = page.xpath("//section[@id='evidence']//h3")[0]
    assert first.xpath("ancestor::details[1]//article/@id")[0] == "s-t0"
    older = extraction.with_columns(text=None, said=None)
    page = render(
        replace(with_walks, tables={**with_walks.tables, "extraction": older.lazy()})
    )
    assert "This run did not store its words" in page
