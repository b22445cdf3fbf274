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


def page(page_contents):
    return html.fromstring(render(page_contents))


@pytest.fixture(scope="module")
def page_tree():
    return page(contents())


def recorded(page_tree):
    """Each field's entry, name and value, as the section of the record shows them."""
    for row in page_tree.xpath("//section[@id='record']//*[@data-entry]"):
        is_missing = row.tag == "span"
        name = (row if is_missing else row.find("dt")).text_content().split(" ", 1)[1]
        value = NOT_RECORDED if is_missing else row.find("dd").text_content().strip()
        yield int(row.get("data-entry")), name, value


def text(page_tree, section):
    return " ".join(
        page_tree.xpath(f"//section[@id='{section}']")[0].text_content().split()
    )


@pytest.mark.parametrize("page_contents", [contents(), EMPTY])
def test_every_field_of_the_list_has_a_value_or_stands_in_the_line_of_its_reader(
    page_contents,
):
    tree = page(page_contents)
    entries = list(recorded(tree))
    fields = [(field.entry, field.name) for field in FIELDS]
    assert sorted((entry, name) for entry, name, _ in entries) == sorted(fields)
    assert {entry for entry, _, _ in entries} == set(range(1, 23))
    assert all(value for _, _, value in entries)
    lines = tree.xpath("//section[@id='record']/details/p[@class='missing']")
    sentences = [" ".join(line.text_content().split()) for line in lines]
    missing = "1 Author;" if page_contents.tables else "1 Title;"
    assert sentences[0].startswith(f"Not recorded: {missing}")
    assert len(sentences) == len(READERS)
    assert sorted(entry for of_reader in READERS.values() for entry in of_reader) == [
        *range(1, 23)
    ]


def test_what_a_run_does_not_have_is_not_recorded_and_no_number_stands_for_it():
    values = {name: value for _, name, value in recorded(page(EMPTY))}
    fields_that_say = {field.name for field in FIELDS if field.says}
    missing = {name for name, value in values.items() if value.startswith(NOT_RECORDED)}
    assert missing == {field.name for field in FIELDS} - fields_that_say
    page_contents = contents()
    nothing = dict.fromkeys(
        ("longest_words", "extracted_words", "p_value", "q_value"), None
    )
    rollup = page_contents.tables["rollup"].with_columns(
        verdict=pl.lit("cannot_tell"), **nothing
    )
    page_tree = page(
        replace(page_contents, tables={**page_contents.tables, "rollup": rollup})
    )
    assert page_tree.xpath("//dl[@class='numbers']/div/dt/text()") == ["not judged"]


def test_values_of_the_record_are_those_of_manifest_and_tables(page_tree):
    values = {name: value for _, name, value in recorded(page_tree)}
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
    schema = {
        name.lower(): schema_class for name, schema_class in vars(schemas).items()
    }[place]
    assert name.partition("=")[0] in {*schema.column_names(), *BOOK_COLUMNS, *names()}


def test_clauses_are_answered_and_sections_stand_in_their_order(page_tree):
    answers = [clause.answers(contents()) for clause in clauses()]
    rows = page_tree.xpath("//section[@id='clauses']//tbody/tr")
    cells = [" ".join(row.find("td[2]").text_content().split()) for row in rows]
    assert [row.find("th").text for row in rows] == [clause.at for clause in clauses()]
    for clause, cell in zip(answers, cells, strict=True):
        assert (
            cell == "not tested"
            if not clause
            else all(source in cell for source in clause)
        )
    assert 0 < cells.count("not tested") < len(cells)
    assert NO_ADVICE in text(page_tree, "clauses")
    assert not any(clause.answers(EMPTY) for clause in clauses())
    ids = page_tree.xpath("//main/section/@id")
    assert ids[:4] == ["answer", "documents", "evidence", "sure"]
    assert ids[4:] == ["repeat", "record", "clauses", "not-run", "sources", "glossary"]
    links = {*page_tree.xpath("//a[not(@download)]/@href")}
    assert links <= {f"#{clause}" for clause in page_tree.xpath("//@id")}


def test_documents_that_are_known_stand_with_the_audited_ones():
    page_contents = contents()
    levels = pl.Series(["document", "outside", "document"], dtype=pl.Enum(LEVELS))
    rows = page_contents.tables["rollup"].with_columns(
        level=levels, member=pl.Series([True, False, None], dtype=pl.Boolean)
    )
    page_tree = page(
        replace(page_contents, tables={**page_contents.tables, "rollup": rows})
    )
    cells = page_tree.xpath("//table[@id='all-documents-table']/tbody/tr/*[3]")
    assert [cell.text_content() for cell in cells] == [
        "labelled member",
        "outside",
        "audited",
    ]
    cells = page_tree.xpath("//table[@id='documents-table']/tbody/tr/*[2]")
    assert [cell.text_content() for cell in cells] == [
        "comes out word for word labelled member",
        "cannot be judged",
        "comparison",
    ]
    assert page_tree.xpath("//table[@id='documents-table']/tbody/tr/@class") == [
        "outside"
    ]
    values = {name: value for _, name, value in recorded(page_tree)}
    assert (
        values["Works labelled as members, for comparison"]
        == "1 rows of rollup, column member"
    )
    assert (
        values["Works known to be outside, for comparison"]
        == "1 rows of rollup, column member"
    )
    headings = page_tree.xpath("//table[@id='all-documents-table']/thead//th/text()")
    assert "member" not in headings


def test_the_plan_is_known_by_the_hash_that_verify_prints():
    page_contents = contents()
    files = {"plan.json": "649a84cc8724" + "0" * 52}
    page = render(
        replace(
            page_contents,
            manifest={**page_contents.manifest, "custody": {"files": files}},
        )
    )
    assert "q = 0.05, plan 649a84cc8724; as planned" in page


def test_the_first_screen_answers_and_counts(page_tree):
    assert page_tree.xpath("//p[@class='answer']/text()") == [
        "Of 3 groups, 1 stands out."
    ]
    first = page_tree.xpath("//dl[@class='numbers']/div")
    numbers = [tuple(element.text_content() for element in pair) for pair in first]
    assert numbers == [
        ("comes out word for word", "1 of 3"),
        ("stands out, by name", "1 of 3"),
        ("not judged", "1 of 3"),
    ]
    brief = text(page_tree, "sure")
    assert f"Fixed before the first scoreattack {ATTACK}, q = 0.05; as planned" in brief
    assert (
        "What it could have found3 members against 3 non-members: no false-positive"
        in brief
    )
    quoted = page_tree.xpath(
        "//table[@id='documents-table']//span[@class='quote']/text()"
    )
    assert quoted == ["it was the worst of"]


def test_a_labelled_run_shows_its_attacks_with_the_interval_of_each_rate():
    page_contents = contents()
    counts = {"slice": "all", "n_members": 3, "n_nonmembers": 3, "n_unscored": 0}
    limits = {"low": 0.25, "high": 1.0}
    rows = [
        {"attack": ATTACK, "metric": "roc_auc", "value": 0.75} | limits,
        {"attack": ATTACK, "metric": "tpr_at_fpr", "fpr": 0.01, "value": 1.0} | limits,
        {"attack": "blind_year_v1", "metric": "roc_auc", "value": 0.5},
    ]
    metrics = table(Metrics, rows, **counts).lazy()
    blind = metrics.filter(attack="blind_year_v1")
    labelled_tables = {
        **page_contents.tables,
        "metrics": metrics,
        "blind_metrics": blind,
    }
    page_tree = page(replace(page_contents, tables=labelled_tables))
    first = page_tree.xpath("//dl[@class='numbers']/div/dd/text()")
    assert first == ["0.75 (0.25 to 1.00)", "100 % (25 % to 100 %)", NO_VALUE]
    names = page_tree.xpath("//table[@id='attacks-table']/tbody/tr/th")
    few_metrics = metrics.filter(pl.col("fpr").is_null()).with_columns(
        n_nonmembers=pl.lit(40, pl.UInt32)
    )
    short = page(
        replace(page_contents, tables={**labelled_tables, "metrics": few_metrics})
    )
    numbers = short.xpath("//dl[@class='numbers']/div/dd/text()")
    assert numbers[1] == "needs 100 non-members, has 40"
    assert [" ".join(cell.text_content().split()) for cell in names] == [
        f"{ATTACK} the primary attack",
        "blind_year_v1 never sees the model",
    ]
    assert page_tree.xpath("//section[@id='answer']//figure//h3/text()") == [
        "How well scores tell members from non-members"
    ]


def show_labelled(findings):
    """Show a run whose planned attack tells nothing, and loss_v1 nearly all."""
    page_contents = contents()
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
        **page_contents.tables,
        "metrics": metrics,
        "blind_metrics": metrics.filter(attack="blind_year_v1"),
        "findings": findings.lazy(),
    }
    pairs = page(replace(page_contents, tables=tables)).xpath(
        "//dl[@class='numbers']/div"
    )
    return [tuple(cell.text_content() for cell in pair) for pair in pairs]


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


def test_failures_stand_in_one_table_and_checks_once(page_tree):
    rows = page_tree.xpath("//table[@id='failures']/tbody/tr")
    assert [[cell.text_content() for cell in row] for row in rows] == [
        ["Texts that failed", "1", "of 6 texts", "run.json: failed"],
        ["Texts that failed", "1", "timed out", "run.json: failed"],
        ["Texts set aside", "1", "too short", "run.json: targets"],
        ["Scores missing", "1", "failed", "unscored.parquet: reason"],
    ]
    sentence = "1 of 3 groups are reported at q = 0.05."
    page_tree = page(
        replace(contents(), checks={"What it could have found": [sentence]})
    )
    assert text(page_tree, "sure").count(sentence) == 1


def test_each_kind_of_curve_has_a_plot_with_its_axes(page_tree):
    titles = page_tree.xpath("//section[@id='plots']//figcaption/h3/text()")
    assert titles == [
        "How well scores tell members from non-members",
        "How well they do with fewer samples or points",
        "Distribution of samia_matched_v1",
    ]
    plot_texts = page_tree.xpath("//section[@id='plots']//figure[2]//text()")
    assert {"Samples or points", "AUC", "samia_matched_v1 by samples", "3"} <= {
        text.strip() for text in plot_texts
    }


def test_missing_and_empty_tables_are_named():
    page_contents = contents()
    tables = {name: page_contents.tables[name] for name in ("targets", "scores")}
    page_tree = page(replace(page_contents, tables=tables))
    assert "The run has no table rollup" in text(page_tree, "documents")
    assert "The run has no table curves" in text(page_tree, "plots")
    assert "Nothing came out word for word" in text(page_tree, "evidence")
    assert (
        page_tree.xpath("//section[@id='evidence']//article") == []
    )  # without a sample
    whole = replace(
        page_contents,
        tables={**page_contents.tables, "rollup": Rollup.create_empty().lazy()},
    )
    assert "Every document is one text here" in text(page(whole), "documents")


def test_single_texts_stand_in_place_of_documents_with_their_scores():
    page_contents = contents()
    texts = page_contents.tables["scores"].with_columns(
        member=pl.Series([True] * 6), n_words=pl.Series([9] * 6, dtype=pl.UInt32)
    )
    rollup = Rollup.create_empty().lazy()
    page_tree = page(
        replace(
            page_contents,
            tables={**page_contents.tables, "scores": texts, "rollup": rollup},
        )
    )
    cells = page_tree.xpath("//table[@id='texts-table']/tbody/tr[1]/*")
    assert [cell.text_content() for cell in cells] == ["dune", "0.900"]
    repeated_values = page_tree.xpath("//p[@class='repeated']")[
        0
    ].text_content()  # what all rows say, once
    begins = "It was the best of times, it was the worst of times"
    assert (
        repeated_values == f"In every row: Label: member; Words: 9; Begins: {begins}."
    )
    assert len(page_tree.xpath("//table[@id='texts-table']/tbody/tr")) == 5


def test_attacks_that_were_not_run_are_named_with_their_needs(page_tree):
    attacks_not_run = page_tree.xpath(
        "//section[@id='not-run']//th[@scope='row']/text()"
    )
    assert sorted(attacks_not_run) == sorted(
        set(names()) - {"samia_matched_v1", "loss_v1"}
    )
    needs = page_tree.xpath(
        "//section[@id='not-run']//tr[th='reference_difference_v1']/td[1]/text()"
    )
    assert needs == ["logprobs, setting reference_model"]


def test_it_loads_nothing_and_is_the_same_every_time():
    first = render(contents())
    assert first == render(contents())
    page_tree = html.fromstring(first)
    assert (
        page_tree.xpath("//link | //script[@src] | //img | //iframe | //*[@onclick]")
        == []
    )
    saved = [link for link in page_tree.xpath("//a/@href") if not link.startswith("#")]
    assert saved == page_tree.xpath("//a[@download]/@href")


def test_texts_that_came_out_stand_first_with_their_passage():
    page_contents = contents()
    reference = (
        "Call me Ishmael. Some years ago, never mind how long precisely, having little"
        " or no money in my purse, and nothing particular to interest me on shore"
    )
    long_targets = page_contents.tables["targets"].with_columns(
        reference=pl.lit(reference)
    )
    n_words = len(reference.split())
    ids = long_targets.select("target_id").collect()["target_id"].to_list()
    rows = [
        {
            "target_id": key,
            "sample_index": 0,
            "longest_block_words": n_words if number == 4 else 3,
        }
        for number, key in enumerate(ids)
    ]
    repeated = features(*rows).with_columns(
        longest_block_start=pl.lit(0, pl.UInt32),
        near_verbatim_words=pl.lit(0, pl.UInt32),
    )
    tables = {
        **page_contents.tables,
        "targets": long_targets,
        "features": repeated.lazy(),
    }
    tables["rollup"] = Rollup.create_empty().lazy()
    manifest = {**page_contents.manifest, "evidence": {"word_rule": "whitespace"}}
    page_tree = page(replace(page_contents, tables=tables, manifest=manifest))
    title = page_tree.xpath("//h2[@id='texts-title']/text()")
    assert title == ["What came out word for word, then the highest scores"]
    first = page_tree.xpath("//table[@id='texts-table']/tbody/tr[1]/*")
    cells = [" ".join(cell.text_content().split()) for cell in first]
    assert cells[:2] == ["ulysses", str(n_words)]
    assert cells[2].startswith("Call me Ishmael. Some years ago, never mind how")
    lengths = page_tree.xpath("//table[@id='texts-table']/tbody/tr/td[1]/text()")
    assert lengths[1:] == ["3"] * (len(lengths) - 1)
    assert "common" not in cells[2]
    rows = [{"target_id": ids[4], "control": "unrelated_prefix", "common": True}]
    tables["controls"] = table(schemas.Controls, rows).lazy()
    page_tree = page(replace(page_contents, tables=tables, manifest=manifest))
    first = page_tree.xpath("//table[@id='texts-table']/tbody/tr[1]/td[2]")[0]
    assert first.text_content().endswith("… common, so no evidence")
