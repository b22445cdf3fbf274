"""What few books allow, by simulation: whether it keeps its promise, and what it finds.

*Top*: at least M of the F highest of 50 books are members, against so many comparison books.
*maxT*: 30 attacks on 25 books against 25, tested together or one of them drawn at random.
*Shares*: the bound of the share of windows of each of 50 books, as it holds for one book alone
(before) and as it is claimed (after), where windows of a book share part of their variance.

    python -m benches.few_books [--runs N]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from benches.results import append_results, versions

from mia_batch.inference.comparison import ComparisonSets, collection_test
from mia_batch.inference.conformal import p_values, q_values
from mia_batch.inference.estimates import WindowShare
from mia_batch.inference.findings import DecisionRule
from mia_batch.inference.rollup import with_claim, with_share
from mia_batch.inference.sets import max_t, top_bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

SEED = 20_261_126
PLAN = DecisionRule(primary="a_v1", level="group", null_set="simulated")
N_BOOKS, N_WINDOWS = 50, 100

Figure = dict[str, Any]


def top(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """Ten members of 50 books or none, effects from faint to perfect."""
    normal = [
        ("normal", n_null, effect) for n_null in (25, 40, 100) for effect in (0, 2, 5)
    ]
    for tails, n_null, effect in [*normal, ("t4", 25, 0), ("t4", 40, 0), ("t4", 40, 5)]:
        member = (np.arange(N_BOOKS) < 10) & (effect > 0)
        found, too_many, listed = [], [], []
        for _ in range(runs):
            scores, nulls = (
                _effects(rng, tails, N_BOOKS) + effect * member,
                _effects(rng, tails, n_null),
            )
            made = top_bound(scores, N_BOOKS, nulls)
            above = scores > np.sort(nulls)[-made.rank]
            too_many.append(made.at_least > above[member].sum())
            listed.append((q_values(p_values(scores, nulls), "bh") <= PLAN.q).any())
            found.append(made)
        some = [one for one in found if one.at_least]
        yield {
            "case": f"top, {n_null} nulls, {tails}, effect {effect}",
            "too_many": np.mean(too_many),
            "finds": len(some) / runs,
            "list_finds": np.mean(listed),
            "at_least": np.mean([one.at_least for one in found]),
            "of_top": sum(one.of_top for one in some) / max(1, len(some)),
        }


def _effects(rng: np.random.Generator, tails: str, size: int) -> NDArray[np.float64]:
    """Draw effects of books, with variance 1 where tails are heavy as well."""
    heavy: NDArray[np.float64] = rng.standard_t(4, size) / 2**0.5
    return heavy if tails == "t4" else rng.normal(size=size)


def together(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """Attacks that share half of their variance or none, of which 0, 5 or all carry an effect."""
    for shared, informative in ((0.0, 0), (0.0, 5), (0.5, 0), (0.5, 30)):
        of_all, of_one, named = [], [], []
        for _ in range(runs):
            books = shared**0.5 * rng.normal(size=50)
            scores = books + (1 - shared) ** 0.5 * rng.normal(size=(30, 50))
            scores[:informative, :25] += 0.7
            made = max_t(scores[:, :25], scores[:, 25:], 0)
            one = scores[rng.integers(30)]
            of_all.append(made.p_values.min() <= 0.05)
            of_one.append(collection_test(one[:25], one[25:], 0).p_value <= 0.05)
            named.append((made.p_values[informative:] <= 0.05).any())
        yield {
            "case": f"max-t, {informative} of 30 attacks, shared {shared:g}",
            "all": np.mean(of_all),
            "one": np.mean(of_one),
            "names_others": np.mean(named),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """Books and comparison books of equal numbers of windows."""

    n_null: int
    n_members: int
    within: float  # correlation of two windows of a book
    tails: str  # of the books' effects

    def claims(self, rng: np.random.Generator) -> pl.DataFrame:
        """Bounds of the books, members first; ``low_alone`` are those of each book alone."""
        size = N_BOOKS + self.n_null
        books = _effects(rng, self.tails, size)
        windows = (1 - self.within) ** 0.5 * rng.normal(size=(size, N_WINDOWS))
        windows += self.within**0.5 * books[:, None]
        windows[: self.n_members, : N_WINDOWS // 2] += 2
        sets, scores = _sets(size), windows.ravel()
        share = WindowShare(sets, scores, PLAN.fpr, blind_warns=False)
        p = p_values(windows[:N_BOOKS].mean(axis=1), windows[N_BOOKS:].mean(axis=1))
        above = (windows[:N_BOOKS] > share.threshold).sum(axis=1)
        rows = pl.DataFrame({"n_above": above, "q_value": q_values(p, PLAN.adjustment)})
        rows = rows.with_columns(
            n_scored=N_WINDOWS, n_asked=N_WINDOWS, outside=pl.lit(value=False)
        )
        alone = with_share(rows, share)
        return with_claim(alone, PLAN).with_columns(
            low_alone=alone["contamination_low"]
        )


def _sets(size: int) -> ComparisonSets:
    rows, none = np.arange(size * N_WINDOWS), np.empty(0, np.int64)
    return ComparisonSets(
        target_id=pl.Series(rows),
        n_words=pl.Series(rows),
        cluster=rows // N_WINDOWS,
        clusters=pl.DataFrame(),
        targets=rows[: N_BOOKS * N_WINDOWS],
        nulls=rows[N_BOOKS * N_WINDOWS :],
        calibration_members=none,
        calibration_nonmembers=none,
        published=none,
        controls=none,
    )


def shares(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """Half of the windows of a member were trained on."""
    few = [
        (25, 0, tails, within) for tails in ("normal", "t4") for within in (0.05, 0.3)
    ]
    many = [(100, 0, "t4", 0.05), (100, 10, "normal", 0.05), (100, 10, "t4", 0.05)]
    shelves = [
        Shelf(n_null=n_null, n_members=n_members, tails=tails, within=within)
        for n_null, n_members, tails, within in (*few, *many)
    ]
    for shelf in shelves:
        truth = 0.5 * (np.arange(N_BOOKS) < shelf.n_members)
        found = [shelf.claims(rng) for _ in range(runs)]
        of = f"{shelf.n_null} nulls, {shelf.n_members} members"
        figure: Figure = {
            "case": f"shares, {of}, {shelf.tails}, correlation {shelf.within:g}"
        }
        for name, column in (
            ("before", "low_alone"),
            ("after", "contamination_low"),
        ):
            low = np.array([one[column].to_numpy() for one in found])
            claimed, exceeds = low > 0, low > truth
            figure |= {
                f"any_{name}": claimed.any(axis=1).mean(),
                f"any_exceeds_{name}": exceeds.any(axis=1).mean(),
                f"claims_{name}": claimed.sum(axis=1).mean(),
                f"exceeds_{name}": exceeds.sum() / max(1, claimed.sum()),
            }
        yield figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=1000, help="simulated audits of each case"
    )
    runs = parser.parse_args().runs
    figures = []
    for number, simulate in enumerate((top, together, shares)):
        for figure in simulate(np.random.default_rng([SEED, number]), runs):
            numbers = {k: round(float(v), 4) for k, v in figure.items() if k != "case"}
            figures.append({"case": figure["case"]} | numbers)
            told = "  ".join(f"{name} {value:.3f}" for name, value in numbers.items())
            print(f"{figure['case']:56} {told}", flush=True)
    append_results(
        "few_books",
        {"seed": SEED, "runs": runs, "figures": figures} | versions("numpy", "scipy"),
    )


if __name__ == "__main__":
    main()
