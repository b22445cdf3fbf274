"""Books cut into windows, their continuations recorded: what a report shows of each book."""

import numpy as np
import polars as pl
import pytest

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
        words = [
            f"w{number}" for number in self.rng.integers(0, 500, n_windows * WINDOW)
        ]
        for window in range(n_windows):
            text = words[window * WINDOW : (window + 1) * WINDOW]
            for sample in range(2):
                keep = self.rng.random(HALF) < (
                    2 if sample and window in verbatim else known
                )
                said = [
                    w if k else "other" for w, k in zip(text[HALF:], keep, strict=True)
                ]
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
    about = {
        "group": ["A", "A", "A", "B"],
        "title": ["t0", "t1", "t2", "t3"],
        "year": [1, 1, 1, 2],
    }
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


def test_what_may_be_said_of_each_and_the_strips_that_follow_them(audited):
    """The golden answer of this recording: smallest p-values are 1 / 31."""
    _, run = audited
    names = ("key", "p_value", "verdict", "title", "year", "longest_words")
    audited = run["rollup"].filter(pl.col("level") != "outside")
    rows = [*audited.select(names).iter_rows()]
    assert rows[0] == ("asked 0", None, "comes_out", "t0", 1, 30)
    assert rows[1][1:5] == (None, "cannot_tell", "t1", 1)
    assert rows[3][2:5] == ("nothing_found", "t3", 2)
    assert rows[4] == ("A", pytest.approx(1 / 31), "comes_out", None, 1, 30)
    passages = [
        *audited.select("n_passages_20", "n_passages_50", "passages_from").iter_rows()
    ]
    assert passages == [(2, 0, "samples"), *[(0, 0, "samples")] * 3, (2, 0, "samples")]
    # Q of A is 2 / 31: none is on the list
    assert run["rollup"]["contamination_low"].sum() == 0
    strips = run["curves"].filter(curve="strip")
    counts = strips.group_by("subject", maintain_order=True).agg(
        pl.len(), pl.col("n").sum()
    )
    of_books = [(60, 70), (5, 5), (4, 4), (6, 6)]
    asked = [(f"asked {number}", *n) for number, n in enumerate(of_books)]
    assert counts.rows() == asked + [(f"new {number}", 4, 4) for number in range(30)]
    known = dict(strips.group_by("subject").agg(pl.col("y").mean()).iter_rows())
    assert known["asked 0"] > 0.95
    assert known["asked 3"] < 0.8


def test_other_settings_make_them_anew_and_the_same_ones_do_not(audited):
    settings, run = audited
    paths = [run.path("rollup"), run.path("curves")]
    before = [path.read_bytes() for path in paths]
    times = [path.stat().st_mtime_ns for path in paths]
    audit(**settings)
    assert [path.stat().st_mtime_ns for path in paths] == times
    one_sample = rescore(run.folder, samples=1, replace=True)["rollup"]
    assert one_sample["longest_words"][0] < 30
    changed = {"samples": 2, "primary": "samia_matched_n2_v1", "replace": True}
    other = rescore(run.folder, **changed)["rollup"]
    assert other["attack"].unique().to_list() == ["samia_matched_n2_v1"]
    rescore(run.folder, primary=ATTACK, replace=True)
    assert [path.read_bytes() for path in paths] == before
