"""The page: every field of the checklist has its place, and what is not there says so."""

from dataclasses import replace

import polars as pl
import pytest
from lxml import html

from mia_batch import schemas
from mia_batch.attacks import names
from mia_batch.inference.findings import finding_rows
from mia_batch.report.html import render
from mia_batch.report.html.columns import NO_VALUE
from mia_batch.report.html.page import FIELDS, NO_ADVICE, NOT_RECORDED, READERS, clauses
from mia_batch.schemas import Metrics, Rollup
from tests.frames import features, table
from tests.reports import ATTACK, contents

BOOK_COLUMNS = {"title", "author", "isbn", "edition", "member"}
BOOK_COLUMNS |= {"cut_start", "cut_inside", "cut_end"}

LEVELS = ["document", "group", "outside"]
EMPTY = replace(contents(), manifest={}, tables={})


def page(of):
    return html.fromstring(render(of))


@pytest.fixture(scope="module")
def shown():
    return page(contents())


def recorded(shown):
    """Each field's entry, name and value, as the section of the record shows them."""
    for row in shown.xpath("//section[@id='record']//*[@data-entry]"):
        is_missing = row.tag == "span"
        name = (row if is_missing else row.find("dt")).text_content().split(" ", 1)[1]
        value = NOT_RECORDED if is_missing else row.find("dd").text_content().strip()
        yield int(row.get("data-entry")), name, value


def text(shown, section):
    return " ".join(
        shown.xpath(f"//section[@id='{section}']")[0].text_content().split()
    )


@pytest.mark.parametrize("of", [contents(), EMPTY])
def test_every_field_of_the_list_has_a_value_or_stands_in_the_line_of_its_reader(of):
    shown = list(recorded(page(of)))
    fields = [(field.entry, field.name) for field in FIELDS]
    assert sorted((entry, name) for entry, name, _ in shown) == sorted(fields)
    assert {entry for entry, _, _ in shown} == set(range(1, 23))
    assert all(value for _, _, value in shown)
    lines = page(of).xpath("//section[@id='record']/details/p[@class='missing']")
    said = [" ".join(line.text_content().split()) for line in lines]
    first = "Not recorded: 1 Title;" if not of.tables else "Not recorded: 1 Author;"
    assert said[0].startswith(first)
    assert len(said) == len(READERS)
    assert sorted(entry for of_reader in READERS.values() for entry in of_reader) == [
        *range(1, 23)
    ]


def test_what_a_run_does_not_have_is_not_recorded_and_no_number_stands_for_it():
    values = {name: value for _, name, value in recorded(page(EMPTY))}
    said = {field.name for field in FIELDS if field.says}
    missing = {name for name, value in values.items() if value.startswith(NOT_RECORDED)}
    assert missing == {field.name for field in FIELDS} - said
    of = contents()
    nothing = dict.fromkeys(
        ("longest_words", "extracted_words", "p_value", "q_value"), None
    )
    rollup = of.tables["rollup"].with_columns(verdict=pl.lit("cannot_tell"), **nothing)
    shown = page(replace(of, tables={**of.tables, "rollup": rollup}))
    assert shown.xpath("//dl[@class='numbers']/div/dt/text()") == ["not judged"]


def test_values_of_the_record_are_those_of_manifest_and_tables(shown):
    values = {name: value for _, name, value in recorded(shown)}
    assert values["Model"].startswith("small-model")
    assert values["Revision"].startswith("none")
    assert values["Author"] == NOT_RECORDED
    assert values["Title"] == "in rollup, column title"
    assert values["What this audit could have found"].startswith("group, n_null: 38")
    assert values["Departures from the plan"].startswith(
        "samia_matched_v1, n_changed: 0 (as_planned)"
    )


@pytest.mark.parametrize("field", [f for f in FIELDS if ": " in f.source])
def test_a_field_names_a_column_that_there_is(field):
    place, _, name = field.source.partition(": ")
    if place in ("run.json", "folder") or name.startswith("check="):
        return
    schema = {name.lower(): each for name, each in vars(schemas).items()}[place]
    assert name.partition("=")[0] in {*schema.column_names(), *BOOK_COLUMNS, *names()}


def test_clauses_are_answered_and_sections_stand_in_their_order(shown):
    answers = [each.answers(contents()) for each in clauses()]
    rows = shown.xpath("//section[@id='clauses']//tbody/tr")
    said = [" ".join(row.find("td[2]").text_content().split()) for row in rows]
    assert [row.find("th").text for row in rows] == [each.at for each in clauses()]
    for each, cell in zip(answers, said, strict=True):
        assert (
            cell == "not tested" if not each else all(source in cell for source in each)
        )
    assert 0 < said.count("not tested") < len(said)
    assert NO_ADVICE in text(shown, "clauses")
    assert not any(each.answers(EMPTY) for each in clauses())
    ids = shown.xpath("//main/section/@id")
    assert ids[:4] == ["answer", "documents", "evidence", "sure"]
    assert ids[4:] == ["repeat", "record", "clauses", "not-run", "sources", "glossary"]
    links = {*shown.xpath("//a[not(@download)]/@href")}
    assert links <= {f"#{each}" for each in shown.xpath("//@id")}


def test_documents_that_are_known_stand_with_the_audited_ones():
    of = contents()
    levels = pl.Series(["document", "outside", "document"], dtype=pl.Enum(LEVELS))
    rows = of.tables["rollup"].with_columns(
        level=levels, member=pl.Series([True, False, None], dtype=pl.Boolean)
    )
    shown = page(replace(of, tables={**of.tables, "rollup": rows}))
    cells = shown.xpath("//table[@id='all-documents-table']/tbody/tr/*[3]")
    assert [cell.text_content() for cell in cells] == [
        "labelled member",
        "outside",
        "audited",
    ]
    cells = shown.xpath("//table[@id='documents-table']/tbody/tr/*[2]")
    assert [cell.text_content() for cell in cells] == [
        "comes out word for word labelled member",
        "cannot be judged",
        "comparison",
    ]
    assert shown.xpath("//table[@id='documents-table']/tbody/tr/@class") == ["outside"]
    values = {name: value for _, name, value in recorded(shown)}
    assert (
        values["Works labelled as members, for comparison"]
        == "1 rows of rollup, column member"
    )
    assert (
        values["Works known to be outside, for comparison"]
        == "1 rows of rollup, column member"
    )
    headings = shown.xpath("//table[@id='all-documents-table']/thead//th/text()")
    assert "member" not in headings


def test_the_plan_is_known_by_the_hash_that_verify_prints():
    of = contents()
    files = {"plan.json": "649a84cc8724" + "0" * 52}
    page = render(replace(of, manifest={**of.manifest, "custody": {"files": files}}))
    assert "q = 0.05, plan 649a84cc8724; as planned" in page


def test_the_first_screen_answers_and_counts(shown):
    assert shown.xpath("//p[@class='answer']/text()") == ["Of 3 groups, 1 stands out."]
    first = shown.xpath("//dl[@class='numbers']/div")
    numbers = [tuple(each.text_content() for each in pair) for pair in first]
    assert numbers == [
        ("comes out word for word", "1 of 3"),
        ("stands out, by name", "1 of 3"),
        ("not judged", "1 of 3"),
    ]
    brief = text(shown, "sure")
    assert f"Fixed before the first scoreattack {ATTACK}, q = 0.05; as planned" in brief
    assert (
        "What it could have found3 members against 3 non-members: no false-positive"
        in brief
    )
    quoted = shown.xpath("//table[@id='documents-table']//span[@class='quote']/text()")
    assert quoted == ["it was the worst of"]


def test_a_labelled_run_shows_its_attacks_with_the_interval_of_each_rate():
    of = contents()
    counts = {"slice": "all", "n_members": 3, "n_nonmembers": 3, "n_unscored": 0}
    limits = {"low": 0.25, "high": 1.0}
    rows = [
        {"attack": ATTACK, "metric": "roc_auc", "value": 0.75} | limits,
        {"attack": ATTACK, "metric": "tpr_at_fpr", "fpr": 0.01, "value": 1.0} | limits,
        {"attack": "blind_year_v1", "metric": "roc_auc", "value": 0.5},
    ]
    metrics = table(Metrics, rows, **counts).lazy()
    blind = metrics.filter(attack="blind_year_v1")
    known = {**of.tables, "metrics": metrics, "blind_metrics": blind}
    shown = page(replace(of, tables=known))
    first = shown.xpath("//dl[@class='numbers']/div/dd/text()")
    assert first == ["0.75 (0.25 to 1.00)", "100 % (25 % to 100 %)", NO_VALUE]
    names = shown.xpath("//table[@id='attacks-table']/tbody/tr/th")
    few = metrics.filter(pl.col("fpr").is_null()).with_columns(
        n_nonmembers=pl.lit(40, pl.UInt32)
    )
    short = page(replace(of, tables={**known, "metrics": few}))
    numbers = short.xpath("//dl[@class='numbers']/div/dd/text()")
    assert numbers[1] == "needs 100 non-members, has 40"
    assert [" ".join(each.text_content().split()) for each in names] == [
        f"{ATTACK} the primary attack",
        "blind_year_v1 never sees the model",
    ]
    assert shown.xpath("//section[@id='answer']//figure//h3/text()") == [
        "How well scores tell members from non-members"
    ]


def show_labelled(findings):
    """Show a run whose planned attack tells nothing, and loss_v1 nearly all."""
    of = contents()
    counts = {"slice": "all", "n_members": 3, "n_nonmembers": 3, "n_unscored": 0}
    limits = {"low": 0.4, "high": 0.6}
    other = {"attack": "loss_v1", "low": 0.974, "high": 1.0}
    rows = [
        {"attack": ATTACK, "metric": "roc_auc", "value": 0.517} | limits,
        {
            "attack": ATTACK,
            "metric": "roc_auc_difference",
            "value": 0.0,
            "versus": "blind_year_v1",
            "low": -0.1,
            "high": 0.1,
        },
        other | {"metric": "roc_auc", "value": 0.99},
        other | {"metric": "roc_auc_simultaneous", "value": 0.99},
        {"attack": ATTACK, "metric": "roc_auc_simultaneous", "low": 0.4},
        {"attack": "blind_year_v1", "metric": "roc_auc", "value": 0.5},
    ]
    metrics = table(Metrics, rows, **counts).lazy()
    tables = {
        **of.tables,
        "metrics": metrics,
        "blind_metrics": metrics.filter(attack="blind_year_v1"),
        "findings": findings.lazy(),
    }
    shown = page(replace(of, tables=tables)).xpath("//dl[@class='numbers']/div")
    return [tuple(cell.text_content() for cell in pair) for pair in shown]


def test_where_another_attack_is_the_answer_each_figure_says_whose_it_is():
    blind = finding_rows(
        "blind_baseline",
        [
            {"statistic": "roc_auc", "value": 0.5, "high": 0.58, "p_value": 0.4},
            {"statistic": "strongest", "verdict": "blind_year_v1"},
        ],
        subject="members",
    )
    assert show_labelled(blind) == [
        ("AUC of loss_v1, corrected for trying 2 attacks and slices", "at least 0.97"),
        (f"AUC of {ATTACK}, the primary attack", "0.52 (0.40 to 0.60)"),
        (
            f"AUC of {ATTACK} above the best classifier that never sees the model",
            "0.00 (-0.10 to 0.10)",
        ),
    ]
    no_better = {"subject": "target", "verdict": "no_better", "value": 9.0}
    chance = finding_rows("chance", [no_better])
    assert show_labelled(pl.concat([blind, chance])) == []  # they mean nothing


def test_failures_stand_in_one_table_and_checks_once(shown):
    rows = shown.xpath("//table[@id='failures']/tbody/tr")
    assert [[cell.text_content() for cell in row] for row in rows] == [
        ["Texts that failed", "1", "of 6 texts", "run.json: failed"],
        ["Texts that failed", "1", "timed out", "run.json: failed"],
        ["Texts set aside", "1", "too short", "run.json: targets"],
        ["Scores missing", "1", "failed", "unscored.parquet: reason"],
    ]
    said = "1 of 3 groups are reported at q = 0.05."
    shown = page(replace(contents(), checks={"What it could have found": [said]}))
    assert text(shown, "sure").count(said) == 1


def test_each_kind_of_curve_has_a_plot_with_its_axes(shown):
    titles = shown.xpath("//section[@id='plots']//figcaption/h3/text()")
    assert titles == [
        "How well scores tell members from non-members",
        "How well they do with fewer samples or points",
        "Distribution of samia_matched_v1",
    ]
    drawn = shown.xpath("//section[@id='plots']//figure[2]//text()")
    assert {"Samples or points", "AUC", "samia_matched_v1 by samples", "3"} <= {
        text.strip() for text in drawn
    }


def test_missing_and_empty_tables_are_named():
    of = contents()
    tables = {name: of.tables[name] for name in ("targets", "scores")}
    shown = page(replace(of, tables=tables))
    assert "The run has no table rollup" in text(shown, "documents")
    assert "The run has no table curves" in text(shown, "plots")
    assert "Nothing came out word for word" in text(shown, "evidence")
    assert shown.xpath("//section[@id='evidence']//article") == []  # without a sample
    whole = replace(of, tables={**of.tables, "rollup": Rollup.create_empty().lazy()})
    assert "Every document is one text here" in text(page(whole), "documents")


def test_single_texts_stand_in_place_of_documents_with_their_scores():
    of = contents()
    texts = of.tables["scores"].with_columns(
        member=pl.Series([True] * 6), n_words=pl.Series([9] * 6, dtype=pl.UInt32)
    )
    rollup = Rollup.create_empty().lazy()
    shown = page(replace(of, tables={**of.tables, "scores": texts, "rollup": rollup}))
    cells = shown.xpath("//table[@id='texts-table']/tbody/tr[1]/*")
    assert [cell.text_content() for cell in cells] == ["dune", "0.900"]
    said = shown.xpath("//p[@class='repeated']")[
        0
    ].text_content()  # what all rows say, once
    begins = "It was the best of times, it was the worst of times"
    assert said == f"In every row: Label: member; Words: 9; Begins: {begins}."
    assert len(shown.xpath("//table[@id='texts-table']/tbody/tr")) == 5


def test_attacks_that_were_not_run_are_named_with_their_needs(shown):
    named = shown.xpath("//section[@id='not-run']//th[@scope='row']/text()")
    assert sorted(named) == sorted(set(names()) - {"samia_matched_v1", "loss_v1"})
    needs = shown.xpath(
        "//section[@id='not-run']//tr[th='reference_difference_v1']/td[1]/text()"
    )
    assert needs == ["logprobs, setting reference_model"]


def test_it_loads_nothing_and_is_the_same_every_time():
    first = render(contents())
    assert first == render(contents())
    shown = html.fromstring(first)
    assert (
        shown.xpath("//link | //script[@src] | //img | //iframe | //*[@onclick]") == []
    )
    saved = [link for link in shown.xpath("//a/@href") if not link.startswith("#")]
    assert saved == shown.xpath("//a[@download]/@href")


def test_texts_that_came_out_stand_first_with_their_passage():
    of = contents()
    reference = (
        "Call me Ishmael. Some years ago, never mind how long precisely, having little"
        " or no money in my purse, and nothing particular to interest me on shore"
    )
    asked = of.tables["targets"].with_columns(reference=pl.lit(reference))
    n_words = len(reference.split())
    ids = asked.select("target_id").collect()["target_id"].to_list()
    rows = [
        {
            "target_id": key,
            "sample_index": 0,
            "longest_block_words": n_words if at == 4 else 3,
        }
        for at, key in enumerate(ids)
    ]
    repeated = features(*rows).with_columns(
        longest_block_start=pl.lit(0, pl.UInt32),
        near_verbatim_words=pl.lit(0, pl.UInt32),
    )
    tables = {**of.tables, "targets": asked, "features": repeated.lazy()}
    tables["rollup"] = Rollup.create_empty().lazy()
    manifest = {**of.manifest, "evidence": {"word_rule": "whitespace"}}
    shown = page(replace(of, tables=tables, manifest=manifest))
    title = shown.xpath("//h2[@id='texts-title']/text()")
    assert title == ["What came out word for word, then the highest scores"]
    first = shown.xpath("//table[@id='texts-table']/tbody/tr[1]/*")
    cells = [" ".join(cell.text_content().split()) for cell in first]
    assert cells[:2] == ["ulysses", str(n_words)]
    assert cells[2].startswith("Call me Ishmael. Some years ago, never mind how")
    lengths = shown.xpath("//table[@id='texts-table']/tbody/tr/td[1]/text()")
    assert lengths[1:] == ["3"] * (len(lengths) - 1)
    assert "common" not in cells[2]
    rows = [{"target_id": ids[4], "control": "unrelated_prefix", "common": True}]
    tables["controls"] = table(schemas.Controls, rows).lazy()
    shown = page(replace(of, tables=tables, manifest=manifest))
    first = shown.xpath("//table[@id='texts-table']/tbody/tr[1]/td[2]")[0]
    assert first.text_content().endswith("… common, so no evidence")
