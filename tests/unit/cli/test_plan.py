"""mia-batch plan: the table, the sentence that answers, and what is refused."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command, main


def plan(*arguments):
    done = CliRunner().invoke(command, ["plan", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_numbers_double_until_half_of_the_members_are_named():
    said = plan("--asked", 50, "--members", 10, "--effect", 9, "--level", "group")
    text = " ".join(" ".join(said).split())
    assert "50 groups are asked about. Assumed: 10 of them are in the training data" in text
    assert "9.00 standard deviations higher (AUC 1.000)" in text
    rows = [line.split() for line in said if line.strip()[:1].isdigit() and "%" in line]
    assert [row[0] for row in rows] == ["10", "20", "40", "80", "160"]
    assert rows[0][1] == "0.0"
    assert said[-1] == "Give 160 comparison groups: on average 10.0 of the 10 are named."


def test_where_no_number_is_enough_the_best_is_said_and_what_asking_of_all_together_takes():
    said = plan("--asked", 20, "--members", 10, "--auc", 0.99, "--comparison", "5,20")
    assert said[-2:] == [
        "None of these numbers names half of the 10: 5 comparison texts name 0.0 on average.",
        "For one answer about all together (--level collection) give 20: "
        f"{said[-3].split()[-1]} of audits have p <= 0.05.",
    ]
    alone = plan(
        *("--asked", 20, "--members", 1, "--auc", 0.6, "--comparison", "5,20"),
        *("--level", "collection"),
    )
    assert alone[-1].startswith("None of these numbers is enough for all together: with ")


def test_texts_of_files_are_counted_as_an_audit_counts_them(tmp_path):
    for folder, n in (("asked", 4), ("new", 7)):
        (tmp_path / folder).mkdir()
        for number in range(n):
            words = " ".join(f"{folder}{number}w{place}" for place in range(300))
            (tmp_path / folder / f"{folder}{number}.txt").write_text(words, encoding="utf-8")
    files = ("--input", tmp_path / "asked", "--non-members", tmp_path / "new")
    said = plan(*files, "--members", 2, "--effect", 3, "--level", "group")
    assert said[0].startswith("4 books are asked about.")
    assert [line.split()[0] for line in said if "%" in line][:3] == ["7", "14", "28"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--asked", "9", "--members", "3"], "give either --effect or --auc"),
        (["--asked", "9", "--members", "3", "--effect", "1", "--auc", "0.8"], "give either"),
        (["--asked", "9", "--members", "3", "--auc", "1"], "is not in the range"),
        (["--asked", "9", "--members", "10", "--auc", "0.9"], "10 members cannot be among 9"),
        (["--members", "1", "--effect", "1"], "setting 'input' is missing: give --input"),
        (["--asked", "9", "--input", "x", "--members", "1", "--effect", "1"], "give either"),
        (["--asked", "9", "--members", "3", "--effect", "1", "--comparison", "9,x"], "'9,x'"),
    ],
)
def test_what_cannot_be_planned_is_refused(given, said, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["mia-batch", "plan", *given])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
