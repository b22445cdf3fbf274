"""Commands that plan, build sets, and tune with privacy: what they print and what they refuse."""

import sys
from typing import Any

import polars as pl
import pytest

from mia_batch.cli.main import main
from tests.bases import save_bases
from tests.runs import invoke


def plan(*arguments):
    return invoke("plan", *arguments)[0].splitlines()


def test_numbers_double_until_half_of_the_members_are_named_or_the_best_is_said():
    lines = plan("--asked", 50, "--members", 10, "--effect", 9, "--level", "group")
    text = " ".join(" ".join(lines).split())
    assert (
        "50 groups are asked about. Assumed: 10 of them are in the training data"
        in text
    )
    assert "9.00 standard deviations higher (AUC 1.000)" in text
    rows = [
        line.split() for line in lines if line.strip()[:1].isdigit() and "%" in line
    ]
    assert [row[0] for row in rows] == ["10", "20", "40", "80", "160"]
    assert rows[0][1] == "0.0"
    assert (
        lines[-1] == "Give 160 comparison groups: on average 10.0 of the 10 are named."
    )
    lines = plan("--asked", 20, "--members", 10, "--auc", 0.99, "--comparison", "5,20")
    assert lines[-2:] == [
        (
            "None of these numbers names half of the 10: 5 comparison texts name 0.0 on"
            " average."
        ),
        (
            "For one answer about all together (--level collection) give 20: "
            f"{lines[-3].split()[-1]} of audits have p <= 0.05."
        ),
    ]
    hard = ("--asked", 20, "--members", 1, "--auc", 0.6, "--comparison", "5,20")
    alone = plan(*hard, "--level", "collection")
    assert alone[-1].startswith(
        "None of these numbers is enough for all together: with "
    )


def test_texts_of_files_are_counted_as_an_audit_counts_them(tmp_path):
    for folder, n in (("asked", 4), ("new", 7)):
        (tmp_path / folder).mkdir()
        for number in range(n):
            words = " ".join(f"{folder}{number}w{place}" for place in range(300))
            (tmp_path / folder / f"{folder}{number}.txt").write_text(
                words, encoding="utf-8"
            )
    files = ("--input", tmp_path / "asked", "--non-members", tmp_path / "new")
    lines = plan(*files, "--members", 2, "--effect", 3, "--level", "group")
    assert lines[0].startswith("4 books are asked about.")
    assert [line.split()[0] for line in lines if "%" in line][:3] == ["7", "14", "28"]


def test_a_set_is_built_and_it_is_said_what_it_can_carry(tmp_path):
    texts = [
        " ".join(f"w{(number * 7 + place * place) % 97}" for place in range(20))
        for number in range(100)
    ]
    labels = [number % 2 for number in range(100)]
    pl.DataFrame({"input": texts, "label": labels}).write_ndjson(
        tmp_path / "texts.jsonl"
    )
    arguments = [
        "--documents",
        tmp_path / "texts.jsonl",
        "--text-column",
        "input",
        "--no-repair",
    ]
    stdout, _ = invoke(
        "build-set", *arguments, "--lengths", "16", "--out", tmp_path / "sets"
    )
    assert "16 words, original: " in stdout
    assert (
        pl.read_parquet(tmp_path / "sets" / "original-16.parquet")["member"].sum() > 45
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("privacy")
    notes = [
        f"the note of person {number} says {number * 37 % 101}" for number in range(60)
    ]
    pl.DataFrame({"text": notes}).write_parquet(folder / "texts.parquet")
    return folder / "texts.parquet"


def test_one_way_to_tune_from_texts_to_the_page(texts, tmp_path):
    run_folder = tmp_path / "out"
    base = save_bases(tmp_path)["llama"]
    arguments = [
        f"--base={base}",
        f"--data={texts}",
        "--task=generation",
        f"--out={run_folder}",
    ]
    little = [
        "--epsilon=none",
        "--shadows=0",
        "--canaries=0",
        "--epochs=1",
        "--batch-size=8",
    ]
    printed, stderr = invoke("privacy", *arguments, *little)
    assert "to tune full: a target each; epochs: 1" in stderr
    sentence, report = printed.splitlines()
    assert sentence.startswith("full: the attack ")
    assert report == f"report: {run_folder / 'privacy.html'}"
    assert (
        (run_folder / "privacy.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    )
    assert pl.read_parquet(run_folder / "summary.parquet").height == 1


def test_a_book_is_marked_in_steps_and_a_model_is_asked_about_it(tmp_path, monkeypatch):
    book, key = tmp_path / "book.txt", tmp_path / "key.jsonl"
    book.write_text(
        " ".join(f"Perhaps {n} did not go toward it." for n in range(300)), "utf-8"
    )
    printed, _ = invoke("mark", book, "--key", key)
    windows, lodge, committed = printed.splitlines()
    assert windows.startswith("17 windows have places; nothing can be promised")
    assert lodge.endswith("draw a number and give it as --seed:")
    assert len(committed) == 64
    printed, _ = invoke("mark", book, "--key", key, "--seed", 9)
    marked = tmp_path / "book-marked.txt"
    assert printed == f"{marked}: the book to publish; 17 windows were drawn\n"
    settings_list: list[Any] = []
    monkeypatch.setattr(
        sys.modules["mia_batch.cli.main"], "audit_and_show", settings_list.append
    )
    _, stderr = invoke("mark", marked, "--key", key, "--model", "org/model")
    assert "0 in the other form, and 0 are not found" in " ".join(stderr.split())
    (settings,) = settings_list
    assert (settings.model, settings.canaries) == ("org/model", str(key))
    assert settings.out == tmp_path / "book-marked-model"


PRIVACY = ["privacy", "--base=b", "--data=d", "--task=generation", "--out=out"]
BUILD = ["build-set", "--documents", "x.parquet", "--out", "s", "--lengths"]


def test_a_dry_run_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, stderr = invoke(*PRIVACY, "--dry-run")
    estimate = (
        "to tune full, full-epsilon-8: a target, 16 shadow models, one with canaries"
        " each"
    )
    assert estimate in " ".join(stderr.split())
    assert [*tmp_path.iterdir()] == []


PLAN = ["plan", "--asked", "9", "--members"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PLAN, "3"], "give either --effect or --auc"),
        ([*PLAN, "3", "--effect", "1", "--auc", "0.8"], "give either"),
        ([*PLAN, "3", "--auc", "1"], "is not in the range"),
        ([*PLAN, "10", "--auc", "0.9"], "10 members cannot be among 9"),
        (["plan", "--members", "1", "--effect", "1"], "--input is missing; give it"),
        ([*PLAN, "1", "--input", "x", "--effect", "1"], "give either"),
        ([*PLAN, "3", "--effect", "1", "--comparison", "9,x"], "'9,x'"),
        ([*BUILD, "32,"], "no list of whole numbers"),
        ([*BUILD, "long"], "no list of whole numbers"),
        ([*BUILD, ""], "no list of whole numbers"),
        ([*PRIVACY, "--epsilon=many"], "'many' is not a valid float range"),
        ([*PRIVACY, "--epsilon=0"], "0.0 is not in the range"),
        ([*PRIVACY, "--delta=nan"], "nan is no number"),
        ([*PRIVACY, "--task=guessing"], "'guessing' is not one of"),
        ([*PRIVACY, "--tuning=all"], "'all' is not one of"),
    ],
)
def test_what_cannot_be_done_is_a_wrong_request(
    arguments, message, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["mia-batch", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
