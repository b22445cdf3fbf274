"""The second implementation agrees with finished runs of every kind, and finds a changed number."""

from __future__ import annotations

import re
import shutil

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.second import compare, q_value
from tests.unit.pipeline.test_verdicts import KNOWN, Library

N = 20
KINDS = (
    "texts",  # labelled, continuations
    "probes",  # labelled, next words weighed by rarity
    "views",  # both kinds of evidence of two models, texts around and before the text
    "walks",  # books at an endpoint
    "controls",  # passages at an endpoint
    "tuned",  # models that the run made
    "books",  # a recording, nothing known
)


def of_groups(folder):
    """Twelve books of three to six windows against ten; each book has other scores."""
    library = Library(folder)
    sizes = [3 + number % 4 for number in range(22)]
    books = [f"b{number}" for number, size in enumerate(sizes) for _ in range(size)]
    n = sum(sizes[:12])
    asked = library.write("asked", [book < "b2" for book in books[:n]], group=books[:n])
    outside = library.write("outside", [False] * (len(books) - n), group=books[n:])
    return library.audit(
        input=asked, non_members=outside, level="group", windows_per_group=3, seed=4, **KNOWN
    )


def of_labels(folder):
    """Labelled texts of a recording, some of one document."""
    library = Library(folder)
    labels = [number % 2 == 0 for number in range(40)]
    names = [f"d{number // 2}" for number in range(40)]
    return library.audit(input=library.write("asked", labels, label=labels, group=names))


def of_non_members(folder):
    """Texts of unknown membership against texts known to be outside."""
    library = Library(folder)
    return library.audit(
        input=library.write("asked", [number < 8 for number in range(24)]),
        non_members=library.write("outside", [False] * 30),
        attacks="samia_matched_v1,samia_zlib_v1,samia_precision_n2_v1,rouge_2_v1",
        **KNOWN,
    )


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    return of_groups(tmp_path_factory.mktemp("groups"))


@pytest.fixture(scope="module", params=[None, of_labels, of_non_members])
def made(request, groups, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("second")) if request.param else groups


def agreed(folder):
    """Compare drawn rows; return how many were equal, after everything was."""
    lines, is_equal = compare(folder, N)
    assert is_equal, "\n".join(lines)
    assert lines[-2] == "the root is equal"
    equal, drawn = re.findall(r"^(\d+) of (\d+) drawn rows are equal", lines[-1])[0]
    assert equal == drawn
    return int(equal)


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_numbers_of_finished_runs_are_recomputed(kind, request):
    run = request.getfixturevalue(kind).run
    assert agreed(run.folder) == N


def test_p_and_q_values_of_recordings_are_recomputed(made):
    levels = {"target", "group"} & set(made["verdicts"].drop_nulls("q_value")["level"])
    assert levels
    assert agreed(made.folder) == N
    lines, _ = compare(made.folder, 10_000)  # all there is
    assert not [line for line in lines if " here" in line]


@pytest.mark.parametrize(
    ("table", "column", "level"),
    [
        ("scores", "samia_matched_v1", None),
        ("verdicts", "p_value", "target"),
        ("verdicts", "p_value", "group"),
        ("verdicts", "q_value", "group"),
    ],
)
def test_a_changed_number_is_named_with_both_values(groups, tmp_path, table, column, level):
    folder = shutil.copytree(groups.folder, tmp_path / "run")
    path = folder / f"{table}.parquet"
    rows = pl.read_parquet(path).with_row_index("row")
    level_of = pl.lit(value=True) if level is None else pl.col("level") == level
    row, before = rows.filter(pl.col(column).is_between(0.02, 0.9), level_of)["row", column].row(0)
    other = pl.when(pl.col("row") == row).then(before + 1e-6).otherwise(column)
    rows.with_columns(other.alias(column)).drop("row").write_parquet(path)
    lines, is_equal = compare(folder, 10_000)
    assert not is_equal
    assert "the root is ANOTHER" in lines
    said = "score" if level is None else column
    assert any(f"{said} is {before + 1e-6} in the run, {before}"[:-6] in line for line in lines)


def test_what_is_not_known_is_said_and_no_agreement(books, tmp_path):
    folder = shutil.copytree(books.run.folder, tmp_path / "run")
    text = (folder / "run.json").read_text()
    names = books.run.manifest.made["scores"]["attacks"]
    for name in names:
        text = text.replace(f'"{name}"', f'"other_{name}"')
    (folder / "run.json").write_text(text)
    lines, is_equal = compare(folder, N)
    assert [f"not recomputed: other_{name}" for name in names] == lines[: len(names)]
    assert lines[-1].startswith("0 of 0 drawn rows are equal")
    assert not is_equal


def test_the_command_says_so_and_fails_where_a_number_is_another(books, tmp_path, monkeypatch):
    folder = str(books.run.folder)
    done = CliRunner().invoke(command, ["verify", folder, "--second", "20"], standalone_mode=False)
    assert done.return_value == 0
    assert "20 of 20 drawn rows are equal (largest relative difference" in done.output
    monkeypatch.setattr("mia_batch.second.zlib_size", lambda text: len(text) + 1)
    again = ["verify", folder, "--second", "500", "--seed", "1"]
    done = CliRunner().invoke(command, again, standalone_mode=False)
    assert done.return_value == 1
    assert re.search(
        r"samia_matched_zlib\w*_v1 of text \w+: score is [\d.]+ in the run", done.output
    )


def test_q_values_by_hand():
    p = [0.01, 0.04, 0.03, None]
    assert q_value(0.01, p, "bh") == pytest.approx(0.04)
    assert q_value(0.03, p, "bh") == pytest.approx(0.16 / 3)  # that of 0.04, which is lower
    assert q_value(0.01, p, "by") == pytest.approx(0.04 * (1 + 1 / 2 + 1 / 3 + 1 / 4))
    assert np.isclose(q_value(0.9, [0.9], "bh"), 0.9)
