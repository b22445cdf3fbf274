"""Books cut into windows, their continuations recorded: what a report shows of each book."""

from __future__ import annotations

from statistics import mean, stdev

import numpy as np
import polars as pl
import pytest
from scipy.stats import t

from tests.runs import audit, rescore

WINDOW = 60
HALF = WINDOW // 2
ATTACK = "samia_matched_v1"


class Shelf:
    """Books of random words, and two continuations of each window that know a share of them."""

    def __init__(self, folder):
        self.folder, self.rng = folder, np.random.default_rng(7)
        self.recorded = []

    def book(self, n_windows, known, verbatim=()):
        """A book whose windows ``verbatim`` are continued word for word by the second sample."""
        words = [f"w{number}" for number in self.rng.integers(0, 500, n_windows * WINDOW)]
        for window in range(n_windows):
            text = words[window * WINDOW : (window + 1) * WINDOW]
            for sample in range(2):
                keep = self.rng.random(HALF) < (2 if sample and window in verbatim else known)
                said = [w if k else "other" for w, k in zip(text[HALF:], keep, strict=True)]
                row = {"prefix": " ".join(text[:HALF]), "sample_index": sample}
                self.recorded.append(row | {"candidate": " " + " ".join(said)})
        return " ".join(words)

    def write(self, name, books, **columns):
        path = self.folder / f"{name}.parquet"
        ids = [f"{name} {number}" for number in range(len(books))]
        pl.DataFrame({"document_id": ids, "text": books, **columns}).write_parquet(path)
        return str(path)


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Three books of one author and one of another's, against 30 that are known to be new."""
    folder = tmp_path_factory.mktemp("shelf")
    shelf = Shelf(folder)
    books = [
        shelf.book(70, 0.6, verbatim=[3, 40]),
        shelf.book(5, 0.6),
        shelf.book(4, 0.2),
        shelf.book(6, 0.2),
    ]
    about = {"group": ["A", "A", "A", "B"], "title": ["t0", "t1", "t2", "t3"], "year": [1, 1, 1, 2]}
    settings = {
        "input": shelf.write("asked", books, **about),
        "non_members": shelf.write("new", [shelf.book(4, 0.2) for _ in range(30)]),
        "non_members_known": "published after the model",
        "samples_from": str(folder / "recorded.parquet"),
        "out": str(folder / "run"),
        "window_words": WINDOW,
        "windows_per_group": 4,
        "level": "group",
    }
    pl.DataFrame(shelf.recorded).write_parquet(settings["samples_from"])
    return settings, audit(**settings)


def reference(run, chosen):
    """The rollup's numbers, from the rows of other tables, one by one."""
    rows = run["scores"].filter(chosen, role="target").to_dicts()
    scores = [row[ATTACK] for row in rows]
    half = t.ppf(0.975, len(scores) - 1) * stdev(scores) / len(scores) ** 0.5
    runs: dict[str, tuple[int, int, str]] = {}
    near: dict[str, int] = {}
    for row in run["features"].iter_rows(named=True):
        key, words = row["target_id"], row["longest_block_words"]
        runs[key] = max(runs.get(key, (0, 0, "")), (words, -row["sample_index"], row["target_id"]))
        near[key] = max(near.get(key, 0), row["near_verbatim_words"])
    own = [runs[row["target_id"]] for row in rows]
    most = max(own, key=lambda run: run[0])
    return {
        "n_windows": len(rows),
        "n_asked": len(rows),
        "n_scored": len(rows),
        "mean": mean(scores),
        "mean_low": mean(scores) - half,
        "mean_high": mean(scores) + half,
        "share_verbatim": mean(float(words >= 20) for words, *_ in own),
        "share_near_verbatim": mean(float(near[row["target_id"]] >= 20) for row in rows),
        "longest_words": most[0],
        "longest_target_id": most[2],
        "longest_sample_index": -most[1],
    }


def test_each_book_and_author_is_summed_up(audited):
    _, run = audited
    rollup = run["rollup"].filter(pl.col("level") != "outside")
    assert rollup["key"].to_list() == ["asked 0", "asked 1", "asked 2", "asked 3", "A"]
    for row in rollup.iter_rows(named=True):
        column = "group" if row["level"] == "group" else "document_id"
        expected = reference(run, pl.col(column) == row["key"])
        assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_what_may_be_said_of_each(audited):
    """The golden answer of this recording: smallest p-values are 1 / 31."""
    _, run = audited
    names = ("key", "p_value", "verdict", "title", "year", "longest_words")
    audited = run["rollup"].filter(pl.col("level") != "outside")
    rows = [*audited.select(names).iter_rows()]
    assert rows[0] == ("asked 0", None, "comes_out", "t0", 1, 30)
    assert rows[1][1:5] == (None, "cannot_tell", "t1", 1)
    assert rows[3][2:5] == ("nothing_found", "t3", 2)
    assert rows[4] == ("A", pytest.approx(1 / 31), "comes_out", None, 1, 30)
    passages = [*audited.select("n_passages_20", "n_passages_50", "passages_from").iter_rows()]
    assert passages == [(2, 0, "samples"), *[(0, 0, "samples")] * 3, (2, 0, "samples")]
    low = dict(run["rollup"].select("key", "contamination_low_alone").iter_rows())
    assert low["asked 0"] > 0.9
    assert low["asked 3"] == 0
    assert run["rollup"]["contamination_low"].sum() == 0  # q of A is 2 / 31: none is on the list


def test_the_strips_follow_the_books(audited):
    _, run = audited
    strips = run["curves"].filter(curve="strip")
    counts = strips.group_by("subject", maintain_order=True).agg(pl.len(), pl.col("n").sum())
    assert counts.rows() == [
        ("asked 0", 60, 70),
        ("asked 1", 5, 5),
        ("asked 2", 4, 4),
        ("asked 3", 6, 6),
    ]
    known = dict(strips.group_by("subject").agg(pl.col("y").mean()).iter_rows())
    assert known["asked 0"] > 0.95
    assert known["asked 3"] < 0.8


def test_the_laws(audited):
    _, run = audited
    shares = pl.col("^(share|contamination)_?(verbatim|near_verbatim|low|low_alone|high)?$")
    within = run["rollup"].select((shares.is_between(0, 1) | shares.is_null()).all())
    assert within.row(0) == (True,) * 6
    beside = run["rollup"].filter(level="outside")
    assert beside["key"].to_list() == [f"new {number}" for number in range(30)]
    assert beside["member"].to_list() == [False] * 30
    assert beside["mean"].max() < run["rollup"]["mean"][0]
    windows = pl.col("n_scored") <= pl.col("n_asked"), pl.col("n_asked") <= pl.col("n_windows")
    widths = (
        pl.col("mean_low") < pl.col("mean_high"),
        pl.col("contamination_low") < pl.col("contamination_high"),
    )
    audited = run["rollup"].filter(pl.col("level") != "outside")
    assert all(audited.select(pl.all_horizontal(*windows, *widths).alias("kept"))["kept"])
    drawn = run["curves"]
    assert drawn.select(pl.col("y").is_between(0, 1).all()).item()
    rises = pl.col("x").diff().over("curve", "attack", "subject").fill_null(1) > 0
    assert drawn.filter(curve="strip").select(rises.all()).item()
    assert drawn.filter(curve="strip").select(pl.col("x").is_between(0, 1, "left").all()).item()


def test_other_settings_make_them_anew_and_the_same_ones_do_not(audited):
    settings, run = audited
    paths = [run.path("rollup"), run.path("curves")]
    before = [path.read_bytes() for path in paths]
    times = [path.stat().st_mtime_ns for path in paths]
    audit(**settings)
    assert [path.stat().st_mtime_ns for path in paths] == times
    one_sample = rescore(run.folder, samples=1)["rollup"]
    assert one_sample["longest_words"][0] < 30
    other = rescore(run.folder, samples=2, primary="samia_matched_n2_v1")["rollup"]
    assert other["attack"].unique().to_list() == ["samia_matched_n2_v1"]
    rescore(run.folder, primary=ATTACK)
    assert [path.read_bytes() for path in paths] == before
