"""Commands about finished runs: show, report, verify, compare."""

import io
import json
import os
import re
import shutil
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import polars as pl
import pytest
from click.testing import CliRunner
from rich.console import Console

import mia_batch
from mia_batch.cli.main import command
from mia_batch.cli.show import find_target, show_agreement
from mia_batch.errors import MiaBatchError, RequestError, RunFolderError
from mia_batch.pipeline import Run
from mia_batch.pipeline.custody import verify
from mia_batch.pipeline.folder import AuditFolder, Manifest, signed_text
from mia_batch.pipeline.results import render_report
from mia_batch.schemas import Comparisons
from tests import runs
from tests.checkpoints import TEXTS
from tests.comparing import audit_recorded, write_corpus
from tests.runs import recorded_books as audit_books
from tests.runs import rescore

TEXT = "one two three four five six seven eight nine ten eleven twelve"
HOSTILE = "\x1b[31m <script>[bold] \u202e evil\nseven eight nine ten"
TRUE = " seven eight nine ten eleven twelve"
ATTACKS = "samia_matched_v1,longest_block_v1"


def invoke(*arguments, width="120"):
    """Exit code and lines of standard output; errors are raised."""
    command_line = [*map(str, arguments)]
    result = CliRunner().invoke(
        command, command_line, standalone_mode=False, env={"COLUMNS": width}
    )
    if result.exception is not None:
        raise result.exception
    return result.return_value, [line.rstrip() for line in result.stdout.splitlines()]


def audit(folder, recorded, **settings):
    answers = pl.DataFrame(recorded, schema=["prefix", "candidate"], orient="row")
    answers.write_parquet(folder / "made.parquet")
    documents = {
        "document_id": ["\x07a", "b"],
        "text": [TEXT, "short"],
        "group": ["shelf", None],
    }
    pl.DataFrame(documents).write_parquet(folder / "corpus.parquet")
    return runs.audit(
        input=str(folder / "corpus.parquet"),
        samples_from=str(folder / "made.parquet"),
        out=folder / "run",
        **settings,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    prefix = "one two three four five six"
    recorded = [(prefix, HOSTILE), (prefix, "other"), (prefix, " x" * 10_000 + TRUE)]
    return audit(tmp_path_factory.mktemp("show"), recorded, attacks=ATTACKS)


@pytest.fixture(scope="module")
def target_ids(run):
    return run["targets"]["target_id"].to_list()


@pytest.fixture
def copied(recorded_books, tmp_path):
    return shutil.copytree(recorded_books / "run", tmp_path / "run")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    write_corpus(folder, n=12, windows=6)
    for name, repeated in {"before": 0.7, "after": 0.3, "retrained": 0.1}.items():
        audit_recorded(folder, name, repeated, windows=6)
    return folder


@pytest.fixture(scope="session")
def walks_of(shared_folder):
    """The folder of a run with walks through a book that is recited."""
    reciting = runs.RecitingOneBook()
    return runs.finished(shared_folder, "walks", runs.of_walks, reciting).run.folder


def test_targets_are_shown_with_their_answers_or_why_there_are_none(run, target_ids):
    _, lines = invoke("show", run.folder, target_ids[0][:5])
    assert lines[:7] == [
        f"target      {target_ids[0]}",
        "document    \ufffda",
        "group       shelf",
        "window      1 of 1",
        "characters  0 to 62 of the document",
        "role        target",
        "",
    ]
    assert lines[-3:] == [
        "scores",
        f"samia_matched_v1  {run['scores']['samia_matched_v1'][0]:.4g}",
        "longest_block_v1  3.333",
    ]
    assert "prefix  one two three four five six" in lines
    position = lines.index(
        "continuation 0, sample 0, recorded; longest shared run: 4 words, 20 characters"
    )
    true = " ⟦seven eight nine ten⟧ eleven twelve"
    answer = "\ufffd[31m <script>[bold] \ufffd evil↵⟦seven eight nine ten⟧"
    assert lines[position + 1 : position + 3] == [
        f"{'true continuation':61}model",
        f"{true:61}{answer}",
    ]
    assert "continuation 0, sample 1, recorded; no word is shared" in lines
    output = "\n".join(lines)  # of long texts, what is near the shared run
    assert f"({20_000 - 4000:,} characters before)" in " ".join(output.split())
    assert not {"\x1b", "\u202e"} & {*output}
    _, lines = invoke("show", run.folder, target_ids[1])
    assert any(
        line.startswith("not sampled  the text has too few words to split")
        for line in lines
    )
    assert any(line.startswith("longest_block_v1  no score: ") for line in lines)
    assert "no samples were drawn of it" in lines


def test_reports_for_others_lie_next_to_the_own_one_and_the_run_stays_whole(
    walks_of, tmp_path
):
    folder = shutil.copytree(walks_of, tmp_path / "run")
    text = "\n".join(runs.words("first", 1000)[200:204])
    invoke("report", folder)
    own_page = (folder / "report.html").read_text("utf-8")
    assert text in own_page
    options = {
        "report-none.html": ["--texts", "none"],
        "report-few-words-unmasked.html": ["--texts", "few-words", "--unmask"],
        "report-first.html": ["--document", "first"],
        "report-first-none.html": ["--document", "first", "--texts", "none"],
    }
    for name, flags in options.items():
        _, lines = invoke("report", folder, *flags)
        assert lines[-1] == f"report: {folder / name}"
        page = (folder / name).read_text("utf-8")
        assert (text in page) == (name == "report-first.html")
    assert (folder / "report.html").read_text("utf-8") == own_page
    assert verify(folder).faults == []
    _, lines = invoke("report", folder, folder, "--format", "md")
    assert lines[0] == "| document | tiny | tiny (2) |"
    with pytest.raises(click.UsageError, match="give one run"):
        invoke("report", folder, folder, "--document", "first")
    with pytest.raises(click.UsageError, match="leave --format out"):
        invoke("report", folder, "--document", "first", "--format", "md")


def test_addresses_in_texts_are_masked_in_the_terminal_too(tmp_path):
    address = "jane.roe@example.com"
    text = f"one two three four five six seven {address} nine ten eleven twelve"
    candidate = f" seven {address} nine ten"
    answers = pl.DataFrame({"document_id": ["a"], "candidate": [candidate]})
    answers.write_parquet(tmp_path / "made.parquet")
    documents = pl.DataFrame({"document_id": ["a"], "text": [text]})
    documents.write_parquet(tmp_path / "corpus.parquet")
    run = runs.audit(
        input=str(tmp_path / "corpus.parquet"),
        samples_from=str(tmp_path / "made.parquet"),
        out=tmp_path / "run",
        report=False,
    )
    for arguments in ([], ["1"]):
        output = "\n".join(invoke("show", run.folder, *arguments)[1])
        assert address not in output
        assert "‹email, 20 characters›" in output
    unmasked = "\n".join(invoke("show", run.folder, "1", "--unmask")[1])
    assert unmasked.count(address) == 2
    for arguments in ([], ["1"]):
        few_words = "\n".join(
            invoke("show", run.folder, *arguments, "--texts", "few-words")[1]
        )
        no_texts = "\n".join(
            invoke("show", run.folder, *arguments, "--texts", "none")[1]
        )
        assert ("one two" in few_words, "four" in few_words, "two" in no_texts) == (
            True,
            False,
            False,
        )


@pytest.fixture(scope="module")
def run_of_people(tmp_path_factory):
    """Two books of two windows, named by addresses of one length."""
    folder = tmp_path_factory.mktemp("people")
    (folder / "books").mkdir()
    recorded = []
    for number, name in enumerate(PEOPLE):
        words = TEXTS[number].split()[:40]
        (folder / "books" / name).write_text(" ".join(words))
        for start in (0, 20):
            prefix, said = words[start : start + 10], words[start + 10 : start + 14]
            recorded.append({"prefix": " ".join(prefix), "candidate": " ".join(said)})
    pl.DataFrame(recorded).write_parquet(folder / "made.parquet")
    return runs.audit(
        input=str(folder / "books"),
        samples_from=str(folder / "made.parquet"),
        window_words=20,
        out=folder / "run",
    )


PEOPLE = ("jane.doe@example.com.txt", "john.doe@example.com.txt")
MASKS = ("‹email, 24 characters› (1)", "‹email, 24 characters› (2)")


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "RUN"),
        ("show", "RUN", PEOPLE[0]),
        ("show", "RUN", MASKS[0]),
        ("show", "RUN", f"{MASKS[0]} window 2"),
        ("report", "RUN", "--format", "md"),
        ("report", "RUN", "--format", "csv"),
        ("report", "RUN", "RUN", "--format", "csv"),
    ],
)
def test_addresses_in_names_are_masked_and_two_names_stay_two(
    run_of_people, tmp_path, arguments
):
    folder = shutil.copytree(run_of_people.folder, tmp_path / "run")
    words = [folder if word == "RUN" else word for word in arguments]
    status, lines = invoke(*words, width="200")
    shown = "\n".join(lines)
    assert not status
    assert "example.com" not in shown
    is_listing = PEOPLE[0] not in arguments and not arguments[-1].startswith(MASKS[0])
    assert "‹email, 24 c" in shown
    assert [f"› ({n})" in shown for n in (1, 2)] == [True, is_listing]
    unmasked = "\n".join(invoke(*words, "--unmask", width="200")[1])
    assert [name in unmasked for name in ("jane.doe", "john.doe")] == [True, is_listing]


def test_a_page_masks_names_of_files_and_one_document_is_found_by_either_name(
    run_of_people, tmp_path
):
    folder = shutil.copytree(run_of_people.folder, tmp_path / "run")
    page = (folder / "report.html").read_text("utf-8")
    assert "example.com" not in page
    assert all(written in page for written in MASKS)
    pages = [folder / f"report-email-24-characters-{n}.html" for n in (1, 2)]
    for page_of, name, written in zip(pages, PEOPLE, MASKS, strict=True):
        for called in (name, Path(name).stem, written):
            invoke("report", folder, "--document", called)
            page = page_of.read_text("utf-8")
            assert f"<bdi>{written}</bdi>, and what" in page
            assert "example.com" not in page
            page_of.unlink()


def test_a_document_shows_its_figures_and_windows_and_five_scores_are_enough(compared):
    run = Run(compared / "before")
    _, lines = invoke("show", run.folder, "text 0")
    row = run["rollup"].filter(key="text 0").row(0, named=True)
    assert lines[0] == "text 0"
    assert f"longest stretch     {row['longest_words']} words" in lines
    position = lines.index("its strongest windows by samia_matched_v1")
    scores = run["scores"].filter(document_id="text 0")["samia_matched_v1"]
    ranked = [f"{score:.3f}" for score in sorted(scores, reverse=True)]
    assert [line.split()[-1] for line in lines[position + 2 : position + 8]] == ranked
    window = run["scores"].filter(document_id="text 0", samia_matched_v1=scores.max())
    name = f"text 0 window {window['window_index'][0] + 1}"
    assert lines[-1].endswith(
        f"show {run.folder} '{name}' shows one next to the true text."
    )
    attacks = run.manifest.made["scores"]["attacks"]
    _, lines = invoke("show", run.folder, name)
    assert lines[lines.index("scores") + 1].split()[0] == attacks[0]
    assert lines[-1] == f"{len(attacks) - 5} more with --scores"
    _, lines = invoke("show", run.folder, name, "--scores")
    assert [line.split()[0] for line in lines[-len(attacks) :]] == attacks


def test_a_stretch_that_a_walk_gave_is_shown_side_by_side(shared_folder):
    walks = runs.finished(shared_folder, "walks", runs.of_walks, runs.RecitingOneBook())
    folder = walks.run.folder
    _, lines = invoke("show", folder, "first")
    text = "\n".join(lines)
    row = Run(folder)["rollup"].filter(key="first").row(0, named=True)
    assert f"longest stretch     {row['extracted_words']} words" in lines
    assert f"{row['extracted_words']} words in a row came out; the stretch" in text
    assert "what stands in the text" in text
    listed = "\n".join(invoke("show", folder)[1])
    hint = f"{row['extracted_words']} words in a row came out of first: mia-batch show"
    assert listed.count(hint) == 1
    assert "came out; the stretch" not in "\n".join(invoke("show", folder, "second")[1])


def test_without_a_run_the_runs_of_a_folder_are_listed(compared, monkeypatch):
    _, lines = invoke("show", compared)
    text = " ".join(" ".join(lines).split())
    for name in ("before", "after", "retrained"):
        answer = Run(compared / name).answer
        assert f"{compared / name} (" in text
        assert answer in text
    assert "next: mia-batch show " in lines[-1]
    (compared / "runs").mkdir(exist_ok=True)
    monkeypatch.chdir(compared)
    with pytest.raises(RunFolderError, match=r"^runs holds no run"):
        invoke("show")


def test_passages_are_numbered_and_found_by_number_and_by_document_and_window(compared):
    run = Run(compared / "before")
    _, lines = invoke("show", run.folder)
    listed = [re.split(" {2,}", line.strip()) for line in lines[2:12]]
    scores = run["scores"].sort(
        "samia_matched_v1", "target_id", descending=[True, False]
    )
    for number, (line, row) in enumerate(
        zip(listed, scores.iter_rows(named=True), strict=False)
    ):
        window, score = f"{row['window_index'] + 1}", f"{row['samia_matched_v1']:.3f}"
        assert line[:3] == [f"{number + 1}", row["document_id"], window]
        assert score in line
    third = scores["target_id"][2]
    name, window = listed[2][1:3]
    requests = (
        "3",
        f"{name} window {window}",
        f"{name.upper()}.txt, Window {window}",
        third,
    )
    for passage in requests:
        assert find_target(run, passage)["target_id"].to_list() == [third]


def test_a_file_is_named_without_its_ending(recorded_books):
    run = Run(recorded_books / "run")
    by_name = find_target(run, "0.txt")
    assert by_name["document_id"].to_list() == ["0.txt"]
    assert find_target(run, "0 window 1").equals(by_name)


def test_probes_are_a_line_each_and_no_report_is_written_where_none_is_wanted(tmp_path):
    words = TEXT.split()
    answers = {8: " nine", 9: " ten eleven", 10: " no", 11: "[/] twelve"}
    recorded = [
        (" ".join(words[:position]), answer) for position, answer in answers.items()
    ]
    run = audit(
        tmp_path, recorded, attacks=["probe_first_word_v1"], probes=4, report=False
    )
    _, lines = invoke("show", run.folder, run["targets"]["target_id"][0])
    position = lines.index("probe, target model")
    assert [line.split() for line in lines[position + 1 : position + 6]] == [
        ["character", "true", "word", "model's", "word", "hit", "sample", "how"],
        ["39", "nine", "nine", "yes", "0", "recorded"],
        ["44", "ten", "ten", "eleven", "yes", "0", "recorded"],
        ["48", "eleven", "no", "no", "0", "recorded"],
        ["55", "twelve", "[/]", "twelve", "no", "0", "recorded"],
    ]
    assert not (run.folder / "report.html").exists()


def test_an_audit_ends_with_a_report_of_its_tables(run):
    page = (run.folder / "report.html").read_text("utf-8")
    assert page == render_report(run)
    assert "a high score alone shows nothing" in page
    assert "&lt;script&gt;" in page
    assert "<script>[bold]" not in page
    command_words = (
        page.partition('<pre tabindex="0"><code>')[2].partition("</code>")[0].split()
    )
    options = dict(zip(command_words[1::2], command_words[2::2], strict=True))
    assert (command_words[0], options["--attacks"], options["--engine"]) == (
        "mia-batch",
        ATTACKS,
        "replay",
    )
    assert options["--samples-from"] == str(run.folder.with_name("made.parquet"))


def test_the_report_is_rendered_again_to_where_it_is_wanted(run, tmp_path):
    page, report_path = tmp_path / "page.html", run.folder / "report.html"
    report_path.unlink()
    for options, output_path in (((), report_path), (("--out", page), page)):
        assert invoke("report", run.folder, *options)[1] == [f"report: {output_path}"]
        assert output_path.read_text("utf-8") == render_report(run)
    lines = invoke("report", run.folder, "--format", "md")[1]  # to paste
    assert lines[0].startswith("**Scores only rank your texts")
    pasted = "\n".join(invoke("report", run.folder, "--format", "csv")[1])
    table_read = pl.read_csv(io.StringIO(pasted), infer_schema_length=None)
    assert (
        table_read["samia_matched_v1"].to_list()
        == run["scores"]["samia_matched_v1"].to_list()
    )
    shutil.copytree(run.folder, tmp_path / "run")
    again = rescore(tmp_path / "run", primary="longest_block_v1", replace=True)
    assert "with the highest longest_block_v1" in (
        again.folder / "report.html"
    ).read_text("utf-8")


def test_a_run_that_is_well_shows_its_root_and_every_fault_has_a_line(
    recorded_books, copied
):
    status, lines = invoke("verify", recorded_books / "run")
    root = Run(recorded_books / "run").manifest.custody["root"]
    assert (status, lines[-1]) == (0, f"root of inputs and tables: {root}")
    with (
        AuditFolder(copied).held(),
        pytest.raises(RunFolderError, match="held by a live run"),
    ):
        invoke("verify", copied)
    (copied / "scores.parquet").write_bytes(b"")
    (copied / "targets.parquet").unlink()
    (copied / "\x1b[2J.txt").touch()
    faults = [
        "changed: scores.parquet",
        "missing: targets.parquet",
        "added: \ufffd[2J.txt",
    ]
    assert invoke("verify", copied) == (1, faults)


def test_inputs_that_are_not_found_are_named_and_no_fault(copied, tmp_path):
    audit_books(tmp_path / "own")
    elsewhere = (tmp_path / "own" / "books").rename(tmp_path / "elsewhere")
    status, lines = invoke("verify", tmp_path / "own" / "run")
    assert (status, lines[:3]) == (
        0,
        [
            *(f"not found, not checked: input/{n}.txt" for n in (0, 1)),
            "say where these inputs lie by now with --input PATH",
        ],
    )
    check = invoke("verify", tmp_path / "own" / "run", "--input", elsewhere)
    assert check == invoke("verify", copied)


def build_samples(*pairs):
    columns = {
        "candidate": [first for first, _ in pairs],
        "again": [second for _, second in pairs],
    }
    samples = pl.DataFrame(columns).with_columns(
        target_id=pl.lit("a"), view=pl.lit("probe")
    )
    return samples.with_columns(view_index=0).with_row_index("sample_index")


def test_the_first_difference_is_shown(capsys):
    same_text, console = "x" * 100, Console(width=200)
    assert show_agreement(build_samples((same_text, same_text), (None, None)), console)
    differing = build_samples(
        (same_text, same_text), (f"{same_text}\n", f"{same_text}[b]"), ("a", None)
    )
    assert not show_agreement(differing, console)
    assert capsys.readouterr().out.splitlines() == [
        "drawn again: 2 of 2 samples agree",
        "drawn again: 1 of 3 samples agree",
        "first difference: target a, probe 0, sample 1",
        f"  stored       from character 40: {'x' * 60!r}"[:-1] + "\\n'",
        f"  drawn again  from character 40: {'x' * 60!r}"[:-1] + "[b]'",
        "A CPU in float32 draws the same to the bit, a GPU only the same on average.",
    ]


def test_figures_of_sets_come_first_then_documents_and_reasons(compared):
    pair, retrained = [compared / "before", compared / "after"], compared / "retrained"
    _, lines_shown = invoke("compare", *pair, "--retrained", retrained)
    lines = [" ".join(line.split()) for line in lines_shown]
    assert lines[0] == "samia_matched_v1: differences are each run less before"
    table = mia_batch.compare(pair, retrained=retrained)
    share = table.filter(statistic="removed_share", set="members").row(0, named=True)
    limits = f"{share['low']:.3f} to {share['high']:.3f}"
    assert f"after share removed members {share['value']:.3f} {limits} - - 36" in lines
    assert any(line.startswith("documents: ") for line in lines)
    assert (
        "share removed, after, non-members: the runs before and of the retrained model"
        " cannot be distinguished" in lines
    )


def test_a_comparison_is_written_whole_and_drawn(compared, tmp_path):
    names = ("before", "after", "retrained")
    runs, plot = [compared / name for name in names], tmp_path / "made.svg"
    table = mia_batch.compare(runs)
    invoke("compare", *runs, "--out", tmp_path / "made.parquet", "--plot", plot)
    table_written = pl.read_parquet(tmp_path / "made.parquet")
    assert Comparisons.validate(table_written).equals(table)
    invoke("compare", *runs, "--out", tmp_path / "made.csv")
    assert (tmp_path / "made.csv").read_text() == table.write_csv()
    texts = [element.text for element in ET.parse(plot).iter() if element.text]
    sets = ("members", "non-members")
    assert {f"{run}: {name}" for run in ("after", "retrained") for name in sets} <= {
        *texts
    }
    assert "mean difference of samia_matched_v1 to before" in texts


REFUSED = [
    (["show", "{run}", ""], RequestError, "several target_ids begin with ''"),
    (
        ["show", "{run}", "x"],
        RequestError,
        "no passage 'x'; name a number of the list that",
    ),
    (["show", "{run}", "3"], RequestError, "no passage '3'"),
    (
        ["show", "{run}", "B window 2"],
        RequestError,
        "'b' has no window 2 in this run; it has",
    ),
    (
        ["show", "{before}", "text 0", "--again"],
        RequestError,
        "'text 0' has 6 windows; name one, such as",
    ),
    (
        ["show", "{before}", "text 0 window 9"],
        RequestError,
        "the nearest are windows 4, 5, 6",
    ),
    (
        ["show", "{books}", "2.txt window 1"],
        RequestError,
        "did you mean '1.txt' or '0.txt'?",
    ),
    (["show", "{run}", "--again"], click.UsageError, "--again needs a PASSAGE"),
    (["show", "{run}", "{target}", "--again"], RequestError, "came from a recording"),
    (["show", "{empty}", "a"], RunFolderError, "holds no run"),
    (["report", "{books}/.."], RunFolderError, "give the folder of a run, such as "),
    (["report", "{empty}"], RunFolderError, "holds no run"),
    (
        ["report", "{unfinished}"],
        RunFolderError,
        "is not finished; give the audit's command again",
    ),
    (
        ["table", "{live}"],
        RunFolderError,
        "live is not finished, for a live run works in it; wait",
    ),
    (
        ["show", "{live}"],
        RunFolderError,
        "live has no scores yet, for a live run works in it; wait",
    ),
    (
        ["show", "{run}/run.json"],
        RunFolderError,
        "is a file, no run; give the folder of a run",
    ),
    (
        ["report", "{empty}/none"],
        RunFolderError,
        "does not exist; give the folder of a run",
    ),
    (
        ["report", "{not_summed}"],
        RunFolderError,
        "not finished; give the audit's command again",
    ),
    (["verify", "{empty}"], RequestError, "holds no run"),
    (
        ["verify", "{books}", "--again", "2"],
        RequestError,
        "no model can draw them again",
    ),
    (["compare", "{before}"], RequestError, "a comparison needs at least two runs"),
    (["compare", "{before}", "{empty}"], RunFolderError, "holds no run"),
    (
        ["compare", "{before}", "{before}", "--plot", "a.png"],
        click.BadParameter,
        "a.png must end in .svg",
    ),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), REFUSED)
def test_what_cannot_be_done_is_said(
    run, target_ids, recorded_books, compared, tmp_path, arguments, kind, message
):
    names = ("empty", "unfinished", "not_summed", "live")
    for name in names:
        (tmp_path / name).mkdir()
    manifest = (
        (run.folder / "run.json")
        .read_text("utf-8")
        .replace('"verdicts"', '"unfinished"')
    )
    (tmp_path / "unfinished" / "run.json").write_text(manifest, "utf-8")
    shutil.copy(run.folder / "run.json", tmp_path / "not_summed")
    (tmp_path / "live" / "run.json").write_text(
        manifest.replace('"scores"', '"none"'), "utf-8"
    )
    places = {name: tmp_path / name for name in names}
    places |= {
        "run": run.folder,
        "books": recorded_books / "run",
        "before": compared / "before",
    }
    with AuditFolder(tmp_path / "live").held(), pytest.raises(kind, match=message):
        invoke(
            *(argument.format(target=target_ids[0], **places) for argument in arguments)
        )


READERS = [("show",), ("report", "--format", "md"), ("table",), ("verify",), ("score",)]
WRONG: list[object] = [None, 3, "x", [1], {}, {"a": [{}]}, "../../etc"]


@pytest.fixture
def strangers_run(run, tmp_path):
    return Run(shutil.copytree(run.folder, tmp_path / "stranger"))


def read_refusal(*arguments):
    """What a command says: an exception that is no refusal is raised."""
    try:
        return str(invoke(*arguments))
    except (MiaBatchError, click.ClickException) as error:
        return str(error)


def rewrite(run, **changed):
    manifest = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(signed_text(manifest | changed))


@pytest.mark.parametrize("reader", READERS)
def test_a_manifest_of_wrong_types_is_refused_in_a_sentence(strangers_run, reader):
    manifest_fields = {field.name: field for field in fields(Manifest) if field.init}
    original = (strangers_run.folder / "run.json").read_text()
    for number, name in enumerate(manifest_fields.keys() - {"format"}):
        wrong = [
            wrong_value
            for wrong_value in WRONG
            if not isinstance(wrong_value, type(json.loads(original)[name]))
        ]
        rewrite(strangers_run, **{name: wrong[number % len(wrong)]})
        message = read_refusal(reader[0], strangers_run.folder, *reader[1:])
        assert f"run.json is not as mia-batch writes it ('{name}' is of type" in message
        (strangers_run.folder / "run.json").write_text(original)


def test_what_lies_deeper_in_a_manifest_leaves_no_command_without_a_sentence(
    strangers_run,
):
    original = json.loads((strangers_run.folder / "run.json").read_text())
    inside = [
        (name, key)
        for name in ("made", "plan", "times", "custody")
        for key in original[name]
    ]
    for number, (name, key) in enumerate(inside):
        wrong = WRONG[number % len(WRONG)]
        rewrite(strangers_run, **(original | {name: original[name] | {key: wrong}}))
        reader = READERS[number % len(READERS)]
        read_refusal(reader[0], strangers_run.folder, *reader[1:])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, '{"evidence": ' + "[" * 100_000, "[]," * 800_000, "\udcff", "{}"],
)
def test_a_manifest_that_is_none_is_refused_in_a_sentence(
    strangers_run, reader, content
):
    path = strangers_run.folder / "run.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    message = read_refusal(reader[0], strangers_run.folder, *reader[1:])
    pattern = (
        r"run.json.* (cannot be read|is not a run's manifest)|changed: run.json|no root"
    )
    assert re.search(pattern, message)


@pytest.mark.parametrize(
    "reader", [("show",), ("report", "--format", "md"), ("table",)]
)
@pytest.mark.parametrize("name", ["scores", "findings", "targets"])
def test_a_table_with_doubled_rows_is_not_shown(strangers_run, reader, name):
    path = strangers_run.folder / f"{name}.parquet"
    rows = pl.read_parquet(path)
    pl.concat([rows, rows]).write_parquet(path)
    message = read_refusal(reader[0], strangers_run.folder, *reader[1:])
    assert f"{name}.parquet is not as the run left it; `mia-batch verify" in message


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(strangers_run, reader):
    (strangers_run.folder / ".lock").unlink(missing_ok=True)
    os.mkfifo(strangers_run.folder / ".lock")
    (strangers_run.folder / "run.json").unlink()
    os.mkfifo(strangers_run.folder / "run.json")
    message = read_refusal(reader[0], strangers_run.folder, *reader[1:])
    assert re.search("it is no regular file|not a regular file", message)


@pytest.mark.parametrize(
    "name", ["../secret.txt", "/secret.txt", "link.txt", "a/../../secret.txt"]
)
def test_verify_reads_no_input_beyond_the_folder_that_the_user_names(
    strangers_run, tmp_path, name
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (elsewhere / "link.txt").symlink_to(tmp_path / "secret.txt")
    input_name = name if name != "/secret.txt" else str(tmp_path / "secret.txt")
    rewrite(strangers_run, inputs={"input": {input_name: "0" * 64}})
    checked = verify(strangers_run.folder, [elsewhere])
    assert checked.not_found == [f"input/{input_name}"]
