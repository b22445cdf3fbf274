"""The report in a real browser: it opens, sorts, filters, obeys no text, and can be read by all."""

import shutil
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from mia_batch import schemas
from mia_batch.report.html import render
from mia_batch.report.next_step import NextStep
from mia_batch.schemas import Rollup
from tests.frames import table
from tests.reports import ATTACK, HOSTILE, LONG, TURNED, contents

LEVELS = Rollup.create_empty().schema["level"]
WIDTHS = (390, 1280, 1920)
_NO_BROWSER = "these tests need Debian's Chromium; install it: apt install chromium"


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    assert path is not None, _NO_BROWSER
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "report.html"
    path.write_text(render(contents()), "utf-8")
    return path


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory):
    text = f"{HOSTILE}{TURNED}{LONG}"
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    path.write_text(render(contents(keys=(HOSTILE, TURNED, LONG), text=text)), "utf-8")
    return path


@pytest.fixture(scope="module")
def wide_report(tmp_path_factory):
    """A report whose tables have every column: of attacks, and of documents."""
    of = contents()
    counts = {"slice": "all", "n_members": 300, "n_nonmembers": 3000, "n_unscored": 0}
    names = [ATTACK, "reference_token_difference_v1", "blind_naive_bayes_v1"]
    figures: list[dict[str, Any]] = [
        {"metric": "roc_auc"},
        {"metric": "tpr_at_fpr", "fpr": 0.01},
        {"metric": "tpr_at_fpr", "fpr": 0.001},
        {"metric": "roc_auc_difference", "versus": names[-1]},
    ]
    values = [{"value": each, "low": each / 2, "high": 0.9} for each in (0.8, 0.7, 0.6)]
    rows = [
        {"attack": name, **limits, **figure}
        for name, limits in zip(names, values, strict=True)
        for figure in figures
    ]
    metrics = table(schemas.Metrics, rows, **counts).lazy()
    dtypes = Rollup.create_empty().schema
    rollup = of.tables["rollup"].with_columns(
        level=pl.Series(["document", "document", "outside"], dtype=LEVELS),
        **{
            name: pl.Series([3, 2, 1], dtype=dtype)
            for name, dtype in dtypes.items()
            if dtype.is_numeric() and name not in ("longest_words", "mean")
        },
    )
    samples = of.tables["samples"].with_columns(n_tokens=pl.lit(7, pl.UInt32))
    tables = {
        "metrics": metrics,
        "blind_metrics": metrics.filter(attack=names[-1]),
        "rollup": rollup,
        "samples": samples,
    }
    times = {"seconds": {"samples of target": 9.0}}
    manifest = {**of.manifest, "times": times}
    path = tmp_path_factory.mktemp("wide") / "report.html"
    shown = replace(of, tables={**of.tables, **tables}, manifest=manifest)
    path.write_text(render(shown), "utf-8")
    return path


@pytest.fixture
def visit(browser):
    """Open a file as a page that must ask nothing of anybody and report no error."""
    contexts, troubles = [], []

    def opened(path, *, width=1280, **how):
        context = browser.new_context(viewport={"width": width, "height": 800}, **how)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        requests: list[str] = []
        page.goto(path.as_uri())
        troubles.extend(url for url in requests if url != path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


def names(page):
    rows = page.locator("#documents-table tbody tr:visible th small:first-of-type")
    return rows.all_inner_texts()


def header(page, name):
    return page.locator("#documents-table thead").get_by_role("button", name=name)


def test_the_mouse_sorts_by_numbers_with_missing_ones_last(visit, report):
    page = visit(report)
    assert names(page) == ["dune", "emma", "ulysses"]
    header(page, "Longest stretch").click()
    assert names(page) == ["dune", "emma", "ulysses"]
    header(page, "Longest stretch").click()
    assert names(page) == ["emma", "dune", "ulysses"]


def test_on_a_phone_a_list_sorts_by_keyboard_and_back(visit, report):
    page = visit(report, width=400)
    assert not header(page, "Answer").is_visible()
    order = page.locator("#documents").get_by_role("combobox", name="Sort by").first
    order.select_option("Longest stretch, words: lowest first")
    assert names(page) == ["emma", "dune", "ulysses"]
    order.focus()
    page.keyboard.press("ArrowDown")
    assert order.locator("option:checked").inner_text() == (
        "Longest stretch, words: highest first"
    )
    assert names(page) == ["dune", "emma", "ulysses"]
    order.select_option("Answer: Z to A")
    assert names(page) == ["emma", "dune", "ulysses"]
    order.select_option("as listed")
    assert names(page) == ["dune", "emma", "ulysses"]


def test_the_keyboard_sorts_and_the_order_is_announced(visit, report):
    page = visit(report)
    header(page, "Answer").focus()
    page.keyboard.press("Enter")
    assert names(page) == ["ulysses", "dune", "emma"]
    head = page.locator("#documents-table th", has_text="Answer")
    assert head.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Space")
    assert names(page) == ["emma", "dune", "ulysses"]
    assert head.get_attribute("aria-sort") == "descending"


def test_typed_text_and_a_chosen_answer_filter_rows(visit, report):
    page = visit(report)
    table = page.get_by_role("region", name="What was audited").locator("xpath=..")
    table.get_by_label("Filter by text").focus()
    page.keyboard.type("EMMA")
    assert names(page) == ["emma"]
    assert table.get_by_role("status").inner_text() == "1 of 3 rows"
    table.get_by_label("Filter by text").fill("")
    table.get_by_role("combobox", name="Answer").select_option(
        "comes out word for word"
    )
    assert names(page) == ["dune"]


def test_a_link_opens_the_evidence_that_it_leads_to(visit, report):
    page = visit(report)
    page.get_by_role("link", name="31").click()
    marked = page.locator("article:target mark")
    shown = [" ".join(text.split()) for text in marked.all_inner_texts()]
    assert shown == ["shared: it was the worst of (end of shared)"] * 2


def test_a_tap_on_a_dot_shows_its_name_and_a_button_copies_the_command(visit, tmp_path):
    of = contents()
    levels = pl.Series(["document", "document", "outside"], dtype=LEVELS)
    rollup = of.tables["rollup"].with_columns(
        level=levels, mean=pl.Series([0.9, 0.2, 0.5]), title=pl.lit(None, pl.String)
    )
    step = NextStep(
        "To get an answer", "Compare.", "mia-batch audit 'my books' --q 0.1"
    )
    of = replace(of, tables={**of.tables, "rollup": rollup}, next_step=step)
    path = tmp_path / "compared.html"
    path.write_text(render(of), "utf-8")
    page = visit(path, permissions=["clipboard-read", "clipboard-write"])
    picked = page.get_by_text("Point at a dot, or tap it, for its name.")
    assert picked.count() == 1
    for index, name in enumerate(("dune: 0.900", "emma: 0.200", "ulysses: 0.500")):
        page.locator("#answer .dot").nth(index).click()
        assert page.locator("#answer .picked").inner_text() == name
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == step.command


def test_it_is_whole_without_scripts_and_on_paper(visit, report):
    page = visit(report, java_script_enabled=False)
    assert names(page) == ["dune", "emma", "ulysses"]
    assert not page.get_by_label("Filter by text").first.is_visible()
    page.emulate_media(media="print")
    assert not page.get_by_role("navigation").is_visible()
    assert page.pdf().startswith(b"%PDF")
    # A box that scrolls, or must not break, leaves the rest of a page empty where it is
    # long.
    style = (
        "each => [getComputedStyle(each).breakInside, getComputedStyle(each).overflowY]"
    )
    assert page.locator("article").first.evaluate(style) == ["auto", "visible"]
    assert page.locator("article .text").first.evaluate(style) == ["avoid-page", "clip"]


def test_a_picture_is_saved_without_scripts(visit, report):
    page = visit(report, java_script_enabled=False)
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save as SVG").first.click()
    assert saved.value.suggested_filename == "roc.svg"
    assert saved.value.path().read_text("utf-8").startswith("<svg xmlns=")


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_text_is_shown_and_never_obeyed(visit, hostile_report, width):
    page = visit(hostile_report, width=width)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    shown = page.locator("#conclusions li").first.inner_text()
    assert HOSTILE in shown
    assert "U+202E" in shown
    assert "U+0000" in shown
    assert shown.endswith("more characters")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert hostile_report.stat().st_size < 500_000


OVERFLOWING = """() => [...document.querySelectorAll('body *:not(svg *, .sr, h3)')]
    .filter((each) => getComputedStyle(each).overflowX !== 'visible')
    .filter((each) => each.scrollWidth > each.clientWidth)
    .map((each) => each.getAttribute('aria-label') || each.outerHTML.slice(0, 90))"""


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_cut_on_a_phone_or_a_small_screen(visit, wide_report, width):
    page = visit(wide_report, width=width)
    assert page.locator("#attacks-table thead th").count() == 7
    page.evaluate(
        "document.querySelectorAll('details').forEach((each) => each.open = true)"
    )
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(OVERFLOWING) == []


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "light"),
        (1280, "dark"),
        pytest.param(390, "dark", marks=pytest.mark.long),
        pytest.param(1280, "light", marks=pytest.mark.long),
    ],
)
def test_it_has_no_serious_fault_for_those_who_cannot_see_it_all(
    visit, report, width, scheme
):
    page = visit(report, width=width, color_scheme=scheme)
    page.evaluate(
        "document.querySelectorAll('details').forEach((each) => each.open = true)"
    )
    assert page.evaluate("document.documentElement.scrollWidth") == width
    found = Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in {"serious", "critical"}]
    assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []
