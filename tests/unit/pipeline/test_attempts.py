"""Attempts at the same texts are counted wherever they lie, and the answer counts them."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest

from mia_batch.inference.attempts import Attempts
from mia_batch.pipeline import Run, journal
from mia_batch.pipeline.results import build_answer, load_results
from mia_batch.places import JOURNAL, journal_path
from tests.runs import audit_books, said_of, write_books
from tests.unit.pipeline.test_verdicts import ATTACK, NON_MEMBERS_KNOWN, Library


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "state" / "runs.jsonl"
    monkeypatch.setenv(JOURNAL, str(path))
    return path


def test_the_journal_lies_in_the_folder_of_states_unless_it_is_off(
    monkeypatch, tmp_path
):
    monkeypatch.delenv(JOURNAL)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert journal_path() == tmp_path / "mia-batch" / "runs.jsonl"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert journal_path() == tmp_path / ".local" / "state" / "mia-batch" / "runs.jsonl"
    monkeypatch.setenv(JOURNAL, "off")
    assert journal_path() is None
    assert journal.add_entry({"question": "a"}) is None
    assert list(tmp_path.iterdir()) == []


def test_entries_of_many_writers_are_whole_and_what_is_broken_is_passed_over(path):
    entries = [{"question": "q", "name": f"run {number}" * 50} for number in range(40)]
    path.parent.mkdir()
    path.write_bytes(
        b'{"cut": \n\xff\xfe\n[1]\n' + b"[" * 3_000 + b'\n{"question": "cut of'
    )
    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(journal.add_entry, entries + entries[:5])} == {None}
    entry_names = [entry["name"] for entry in journal.read_entries()]
    assert {*entry_names} == {entry["name"] for entry in entries}
    assert journal.add_entry(entries[0]) is None
    assert len([*journal.read_entries()]) == len(entry_names)


def test_a_journal_that_cannot_be_written_says_why_and_a_link_is_not_followed(
    path, tmp_path
):
    (tmp_path / "state").write_text("a file")
    assert journal.add_entry({"question": "a"}) is not None
    (tmp_path / "state").unlink()
    (tmp_path / "state").mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    assert journal.add_entry({"question": "a"}) is not None
    assert not (tmp_path / "elsewhere").exists()
    path.unlink()
    os.mkfifo(path)
    assert journal.add_entry({"question": "a"}) is not None
    assert [*journal.read_entries()] == []


@pytest.fixture
def library(tmp_path):
    return Library(tmp_path)


def test_swapped_comparison_texts_count_in_other_folders_and_in_the_same_one(
    library, path
):
    input_path = library.write("asked", np.arange(60) < 20)
    sets = [library.write(f"new-{number}", [False] * 99) for number in range(3)]
    run_folders = [library.folder / parent / "run" for parent in ("one", "two")]
    options = {"input": input_path, "anyway": True, **NON_MEMBERS_KNOWN}

    def audit(non_members, run_folder):
        return library.audit(non_members=non_members, out=str(run_folder), **options)

    first = audit(sets[0], run_folders[0])
    alone = first["verdicts"].filter(attack=ATTACK, level="target")
    assert first.manifest.earlier == {}
    assert "stand out from 99 comparison texts" in build_answer(first)
    second = audit(sets[1], run_folders[1])
    assert len(second.manifest.earlier) == 1
    assert (
        build_answer(second).count("1 other run of these texts with this model counted")
        == 1
    )
    adjusted = (
        load_results(second).verdicts.filter(attack=ATTACK, level="target").collect()
    )
    raw = second["verdicts"].filter(attack=ATTACK, level="target")
    np.testing.assert_allclose(
        adjusted["p_value"], (raw["p_value"] * 6).clip(upper_bound=1)
    )
    assert not any("Share of members" in line for line in said_of(second))
    third = audit(sets[2], run_folders[1])
    assert len(third.manifest.earlier) == 2
    assert "p and q are 12 times as large" in build_answer(third)
    again = audit(sets[0], library.folder / "three" / "run")
    assert again.manifest.custody["root"] == first.manifest.custody["root"]
    earlier_primaries = again["findings"].filter(
        check="earlier_runs", statistic="primary"
    )
    assert (
        earlier_primaries.height == 2
    )  # the first came out the same, and was no other attempt
    assert again["verdicts"].filter(attack=ATTACK, level="target").equals(alone)
    journal_text = path.read_text("utf-8")
    assert str(library.folder) not in journal_text
    assert "w1" not in journal_text


def test_a_run_that_compared_with_nothing_made_no_test_and_does_not_count(
    library, path
):
    input_path = library.write("alone", np.arange(60) < 20)
    sets = [library.write(f"other-{number}", [False] * 99) for number in range(2)]
    run_folders = [library.folder / parent / "of asked" for parent in ("a", "b")]
    options = {"input": input_path, "anyway": True}
    library.audit(out=str(run_folders[0]), **options)
    assert len(path.read_text("utf-8").splitlines()) == 1
    compared = options | NON_MEMBERS_KNOWN
    first = library.audit(non_members=sets[0], out=str(run_folders[1]), **compared)
    assert first.manifest.earlier == {}
    # In the folder of the run that compared nothing
    second = library.audit(non_members=sets[1], out=str(run_folders[0]), **compared)
    assert len(second.manifest.earlier) == 1
    assert "p and q are 6 times as large" in build_answer(second)


def test_the_same_run_again_and_other_texts_are_no_attempts(tmp_path, path):
    for name in ("one", "two"):
        write_books(tmp_path / name)
        audit_books(tmp_path / name / "run", tmp_path / name, report=False)
        audit_books(tmp_path / name / "run", tmp_path / name, report=False)
    (tmp_path / "two" / "books" / "0.txt").write_text(
        "another text of six words", "utf-8"
    )
    run = audit_books(tmp_path / "two" / "other", tmp_path / "two", report=False)
    assert len(path.read_text("utf-8").splitlines()) == 3
    assert run.manifest.earlier == {}
    assert (
        Run(tmp_path / "two" / "run")["findings"]
        .filter(check="earlier_runs")
        .is_empty()
    )


def test_the_factor_spends_the_error_of_one_attempt():
    """Levels of all attempts after the first sum to half of the first's: 1/6 + 1/12 + ... = 1/2."""
    assert [Attempts(n).factor for n in (1, 2, 3, 10)] == [1, 6, 12, 110]
    assert sum(1 / Attempts(n).factor for n in range(2, 5_000)) == pytest.approx(
        0.5, abs=1e-3
    )


def test_lists_and_bounds_of_further_attempts_are_corrected_by_hand(library):
    run = library.audit(
        input=library.write("asked", np.arange(60) < 20),
        non_members=library.write("new", [False] * 99),
        **NON_MEMBERS_KNOWN,
    )
    results, plan = load_results(run), load_results(run).rule
    verdicts = Attempts(2).verdicts(results.verdicts)
    findings = Attempts(2).findings(results.findings, verdicts, plan)
    listed = findings.filter(check="reported", statistic="n_reported")["value"].item()
    own_verdicts = results.verdicts.filter(
        attack=ATTACK, level="target", versus="non_members"
    ).collect()
    assert listed == (own_verdicts["q_value"] * 6 <= 0.05).sum()
    assert (
        listed
        < results.findings.filter(check="reported", statistic="n_reported")[
            "value"
        ].item()
    )
    bound = findings.filter(check="top", statistic="at_least").row(0, named=True)
    assert bound["value"] is None
    assert bound["reason"].startswith(
        "withheld: it holds for one attempt alone, and there were 2"
    )
    estimates = verdicts.filter(pl.col("estimate").is_not_null()).collect()
    assert estimates.select(pl.col("value", "low", "high").count()).row(0) == (0, 0, 0)
    assert Attempts(1).verdicts(results.verdicts) is results.verdicts
    rollup = pl.LazyFrame(
        {
            "verdict": ["known_better", "known_better", "comes_out"],
            "q_value": [0.001, 0.02, None],
        },
        schema_overrides={
            "verdict": pl.Enum(["known_better", "nothing_found", "comes_out"])
        },
    ).with_columns(
        p_value=pl.lit(0.5),
        contamination=pl.lit(0.1),
        contamination_low=pl.lit(0.1),
        contamination_high=pl.lit(0.2),
        contamination_reason=pl.lit(None, pl.String),
    )
    adjusted_rollup = Attempts(2).rollup(rollup, 0.05).collect()
    assert adjusted_rollup["verdict"].to_list() == [
        "known_better",
        "nothing_found",
        "comes_out",
    ]
    assert adjusted_rollup["q_value"].to_list() == [0.006, 0.12, None]
    assert (
        adjusted_rollup["p_value"].max(),
        adjusted_rollup["contamination"].count(),
    ) == (1.0, 0)
