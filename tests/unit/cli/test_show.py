"""What is shown fits its terminal, nothing that is needed is cut, and workers have their lines."""

import io
import re
from typing import Any

import polars as pl
import pytest
from rich.cells import cell_len
from rich.console import Console

from mia_batch.attacks import defaults
from mia_batch.cli.options import ConsoleObserver, cut_middle, figure, limits
from mia_batch.cli.show import _book_table, show_plan, show_run
from mia_batch.observer import WorkerState
from mia_batch.pipeline.folder import Manifest
from mia_batch.pipeline.run import Run
from mia_batch.report.answer import audited_books
from mia_batch.schemas import (
    Findings,
    Metrics,
    Role,
    Rollup,
    Scores,
    Targets,
    Unscored,
    Verdicts,
)
from mia_batch.settings import load_settings

ATTACKS = ["samia_v1", *defaults("default")]
FPR = [None, 0.001, 0.005, 0.01, 0.05, 0.1]


def write(schema, path, rows, **columns):
    frame = pl.DataFrame(rows, schema=schema.create_empty().schema)
    frame.with_columns(**columns).write_parquet(path)


@pytest.fixture
def run(tmp_path):
    """Two targets with scores of every attack."""
    run = Run(tmp_path)
    rows = [
        {"target_id": f"{number:032x}", "window_index": 0, "n_short": 0}
        for number in range(2)
    ]
    scored = [{**row, "role": "target"} for row in rows]
    write(
        Scores,
        run.path("scores"),
        scored,
        **dict.fromkeys(ATTACKS, pl.Series([0.25, 0.125])),
    )
    write(
        Targets,
        run.path("targets"),
        [{**row, "target": "some  text " * 20} for row in rows],
    )
    for schema in (Unscored, Metrics, Verdicts, Rollup):
        write(schema, run.path(schema.__name__.lower()), [])
    write(Metrics, run.path("blind_metrics"), [])
    roles = [{"check": "roles", "statistic": "n_unknown", "value": 2.0}]
    write(Findings, run.path("findings"), roles)
    settings = load_settings(
        {"input": "corpus.parquet", "model": "m"}, use_config=False
    )
    Manifest(
        evidence={"engine": "vllm"},
        settings=settings.model_dump(mode="json"),
        made={"scores": {"attacks": ATTACKS}, "verdicts": {}},
        failed={"reasons": {}},
    ).write(run.folder)
    return run


def change(path, **columns):
    pl.read_parquet(path).with_columns(**columns).write_parquet(path)


def show_to_text(run, width):
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        show_run(run, console)
    return capture.get()


def passages(output):
    """The lines of the list of passages, the heading first; these runs have no end."""
    _, _, listed = output.partition("strongest passages by ")
    listed, stopped, _ = listed.partition("\nThe run was stopped before its end; ")
    assert stopped
    return listed.splitlines()[1:]


@pytest.mark.parametrize("width", [30, 80, 99, 100, 200])
def test_metrics_are_never_cut_and_fit_eighty_columns(run, width):
    values = {"slice": "all", "value": 0.5, "low": 0.25, "high": 0.75}
    values |= {"n_members": 1, "n_nonmembers": 1}
    rows = [
        {"attack": attack, "metric": "tpr_at_fpr" if fpr else "roc_auc", "fpr": fpr}
        | values
        for attack in ATTACKS
        for fpr in FPR
    ]
    write(Metrics, run.path("metrics"), rows)
    output = show_to_text(run, width)
    assert "…" not in output
    lines = [
        line for line in output.splitlines() if line.startswith(("attack ", *ATTACKS))
    ]
    assert lines[0].split()[:4] == ["attack", "AUC", "95", "%"]
    assert max(map(len, lines)) <= max(width, 80)
    assert all(f"{attack} " in output for attack in ATTACKS)


@pytest.mark.parametrize("width", [30, 80, 200])
def test_the_highest_scores_are_whole_on_every_terminal(run, width):
    heading, *lines = passages(show_to_text(run, width))
    assert heading.split() == ["passage", "of", "score", "text"]
    assert [line.split()[:3] for line in lines] == [
        ["1", f"{0:024x}"[:24], "0.250"],
        ["2", f"{0:024x}"[:24], "0.125"],
    ]


def test_long_and_wide_names_leave_the_score_whole_and_fit_eighty_columns(run):
    window = pl.Series([0, 4_000_000_000], dtype=pl.UInt32)
    change(run.path("scores"), document_id=pl.lit("書" * 99), window_index=window)
    heading, *lines = passages(show_to_text(run, 40))
    assert heading.split() == ["passage", "of", "window", "score", "text"]
    assert [line.split()[2:4] for line in lines] == [
        ["1", "0.250"],
        ["4000000001", "0.125"],
    ]
    assert all(cell_len(line) <= 80 for line in lines)
    change(
        run.path("scores"), document_id=pl.lit(None, pl.String), group=pl.lit("a book")
    )
    assert "1  a book" in show_to_text(run, 100)


def test_texts_that_help_to_answer_are_no_findings(run):
    change(run.path("scores"), role=pl.Series(["target", "calibration"], dtype=Role))
    assert len(passages(show_to_text(run, 100))) == 2
    change(run.path("scores"), samia_v1=pl.lit(None, pl.Float64))
    assert "\nNo passage can be listed: no text has a score" in show_to_text(run, 100)


def test_lists_of_numbers_are_shown_among_the_settings():
    console = Console(file=io.StringIO(), width=80)
    settings = load_settings({"input": "x", "model": "m", "length_edges": "50,100"})
    with console.capture() as capture:
        show_plan([("engine", "vllm")], settings, console)
    rows = [*map(str.split, capture.get().splitlines())]
    assert ["--length-edges", "50,100"] in rows
    assert not [line for line in rows if "--seed" in line]  # which has its default


BOTH_WORKERS = [
    WorkerState("worker 1 on a", "blocks 7, 12", 1234, 56_789.0),
    WorkerState("worker 2", "starting", 0, 0.0),
]


@pytest.mark.parametrize(
    ("workers", "terminal", "lines"),
    [
        (
            BOTH_WORKERS,
            True,
            {"worker 1 on a blocks 7, 12 1,234 56,789", "worker 2 starting 0 0"},
        ),
        (
            BOTH_WORKERS[:1],
            True,
            set(),
        ),  # one worker has no table, and a file none at all
        (BOTH_WORKERS, False, set()),
    ],
)
def test_each_of_several_workers_has_a_line_on_a_terminal(workers, terminal, lines):
    file = io.StringIO()
    observer = ConsoleObserver(Console(file=file, force_terminal=terminal, width=100))
    with observer.progress("sampling", done=0, left=10):
        observer.at_work(workers)
    observer.at_work(workers)  # nothing works any more
    output = file.getvalue()
    assert "sampling" in output
    rows = [" ".join(line.split()) for line in output.splitlines()]
    assert {row for row in rows if row.startswith("worker ")} == lines
    assert ("worker" in output) == bool(lines)


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_being_done_is_shown_and_said_once_a_minute(terminal, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("mia_batch.cli.options.time.monotonic", lambda: now[0])
    file = io.StringIO()
    observer = ConsoleObserver(Console(file=file, force_terminal=terminal, width=100))
    observer.stage("4 texts")
    observer.step("cutting [the] texts")
    for second in range(1, 150):
        now[0] = float(second)
        observer.still()
    observer.ended()
    output = file.getvalue()
    lines = ["still cutting [the] texts, 0:01:00", "still cutting [the] texts, 0:02:00"]
    assert [line for line in output.splitlines() if line.startswith("still")] == (
        [] if terminal else lines
    )
    assert ("cutting [the] texts, 0:02:29" in output) == terminal
    assert "took 149.0 s" in output


@pytest.mark.parametrize(
    ("unit", "total", "tokens", "progress"),
    [
        ("prompt", 1, 10, "1 of 1 prompt, 10 tokens/s"),
        ("point", 2, 2345, "1 of 2 points, 2,345 tokens, 2,345 tokens/s"),
        # As gaps are filled: no tokens are counted
        (
            "text",
            2,
            0,
            "1 of 2 texts, 1.0 texts/s",
        ),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_counted_has_its_name_and_speed(
    unit, total, tokens, progress, terminal, monkeypatch
):
    now, file = [0.0], io.StringIO()
    monkeypatch.setattr("mia_batch.cli.options.time.monotonic", lambda: now[0])
    observer = ConsoleObserver(Console(file=file, force_terminal=terminal, width=120))
    with observer.progress("asking", done=0, left=total, unit=unit):
        now[0] = 1.0
        observer.worked(1, tokens)
    output = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    assert (
        progress.replace(" of ", "/") if terminal else f"asking: {progress}, "
    ) in output


def test_while_no_prompt_is_complete_its_tokens_are_counted_and_the_time_left_grows(
    monkeypatch,
):
    now, file = [0.0], io.StringIO()
    monkeypatch.setattr("mia_batch.cli.options.time.monotonic", lambda: now[0])
    observer = ConsoleObserver(Console(file=file, force_terminal=False, width=80))
    with observer.progress("continuing", done=0, left=64):
        for second, units in ((30.0, 60), (61.0, 0), (122.0, 0)):
            now[0] = second
            observer.worked(units, 1000)
            observer.still()
        observer.worked(4, 0)
    assert file.getvalue().splitlines() == [
        "continuing: 60 of 64 prompts, 2,000 tokens, 33 tokens/s, 0:00:04 left",
        "continuing: 60 of 64 prompts, 3,000 tokens, 25 tokens/s, 0:00:08 left",
        "continuing: 64 of 64 prompts, 25 tokens/s, 0:00:00 left",
    ]


def test_tokens_tell_the_time_left_before_any_prompt_is_complete(monkeypatch):
    now, file = [0.0], io.StringIO()
    monkeypatch.setattr("mia_batch.cli.options.time.monotonic", lambda: now[0])
    observer = ConsoleObserver(Console(file=file, force_terminal=False, width=80))
    with observer.progress("continuing", done=0, left=64, tokens=8000):
        for second, units, tokens in (
            (60.0, 0, 2000),
            (120.0, 0, 2000),
            (180.0, 32, 0),  # they took half of what was expected
            (240.0, 0, 2000),
            (300.0, 0, 3000),  # more than those before: nothing but prompts tells
        ):
            now[0] = second
            observer.worked(units, tokens)
            observer.still()
        observer.worked(32, 0)
    lines = [line.rpartition("s, ")[2] for line in file.getvalue().splitlines()]
    assert lines == [
        f"{time} left"
        for time in ("0:03:00", "0:02:00", "0:03:00", "0:01:20", "0:05:00", "0:00:00")
    ]


def test_what_is_not_0_does_not_look_like_it():
    figures = [figure(value) for value in (None, 0.0, -0.00042, 0.0005, 1e-9, 0.98765)]
    assert figures == ["-", "0.000", "-0.0004", "0.001", "1e-09", "0.988"]
    assert limits({"low": 1e-6, "high": 0.5}) == "1e-06 to 0.500"


@pytest.mark.parametrize("width", [30, 80, 100, 120, 200])
@pytest.mark.parametrize("share", [None, 0.45])
def test_numbers_of_books_are_whole_and_names_keep_both_ends(run, width, share):
    names = [f"du_cote_de_chez_swann-{n:02d}-{'long-' * 6}c16.txt" for n in range(9)]
    row: dict[str, Any] = {
        "level": "document",
        "attack": ATTACKS[0],
        "verdict": "above_all",
    }
    row |= {"n_windows": 9, "n_asked": 9, "n_scored": 9, "longest_words": 1398}
    row |= {"p_value": 0.0385, "q_value": 0.0769, "contamination": share}
    low, high = (0.3, 0.6) if share else (None, None)
    row |= {"contamination_low": low, "contamination_high": high}
    rows = [row | {"key": name} for name in names]
    write(Rollup, run.path("rollup"), rows)
    lines = show_to_text(run, width).splitlines()
    books = [line for line in lines if line.rstrip().endswith("0.077")]
    assert len(books) == len(names)
    assert max(map(cell_len, books)) <= max(width, 80)
    for line in books:
        name = line.split("  ")[0].strip()
        assert name.startswith("du_co")
        assert name.endswith(".txt")
        assert line.split()[-3:] == ["1,398", "0.038", "0.077"] or share
        assert "45% (30% to 60%)" in line or not share
    heading = next(line for line in lines if line.startswith("title"))
    assert heading.split()[-2:] == ["p", "q"]


@pytest.mark.parametrize(
    ("name", "width", "shortened_name"),
    [
        ("short.txt", 9, "short.txt"),
        ("du_cote_de_chez_swann-00-c16.txt", 14, "du_cote…16.txt"),
        ("\u8f93" * 9, 9, "\u8f93\u8f93…\u8f93\u8f93"),
    ],
)
def test_a_name_is_cut_in_the_middle(name, width, shortened_name):
    shortened = cut_middle(name, width)
    assert shortened.plain == shortened_name
    assert shortened.cell_len <= width


@pytest.mark.parametrize(("width", "is_drawn"), [(140, True), (80, False)])
def test_bars_are_explained_only_where_they_are_drawn(width, is_drawn):
    numbers = {"longest_words": 9, "share_low": 0.5, "p_value": 0.02, "q_value": 0.04}
    book = {"level": "document", "title": "A title", "verdict": "known_better"}
    strip = {"answer": "stands out", "strip": [0.9] * 24}
    books = pl.DataFrame([book | strip | numbers], schema=audited_books({}).schema)
    file = io.StringIO()
    Console(file=file, width=width).print(_book_table(books, width))
    shown = file.getvalue()
    assert "at least 50%" in shown
    assert ("▇" in shown or "█" in shown) == is_drawn
    assert ("bars: share of your own texts" in shown) == is_drawn
