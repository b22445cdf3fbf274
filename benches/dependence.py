"""Texts that depend on each other, or differ in something plain: what null audits find then.

Nothing was trained on in any of these audits, so that a finding is false. *Before* is
the same audit without what is known of the dependence: no authors, no copies counted as
one, no comparison of lengths.

*Authors*: books of one author share a part of their variance; comparison books are by others.
*Copies*: comparison texts are near copies of each other, in a random order.
*Lists*: the same, lists alone, where comparison books are by few authors, many each.
*Length*: scores grow with length, and the audited texts are longer.
*Together*: the same, all attacks together alone, with its power where texts are members.
*Refused*: how often intervals hold, where the passages that are known best have no answer.
*Labels*: how often they hold where 5 % of the calibration labels are wrong.

    python -m benches.dependence [--runs N] [--small] [--only PART]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from benches.results import append_results, versions

from mia_batch.diagnostics.plain import plain_differences, plain_ranks
from mia_batch.inference.conformal import p_values, q_values
from mia_batch.inference.estimates import Flagged, contamination_rate
from mia_batch.inference.findings import DecisionRule
from mia_batch.inference.sets import few_books_findings, max_t
from mia_batch.inference.verdicts import verdicts
from mia_batch.schemas import Role
from mia_batch.stats.intervals import clopper_pearson

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

SEED = 20_261_128
ATTACKS = ("a_v1", "b_v1", "c_v1")
SPREAD = 0.3  # standard deviation of the logarithms of lengths
PLAN = DecisionRule(primary="a_v1", level="group", null_set="simulated")

Figure = dict[str, Any]


def scores_table(
    rng: np.random.Generator,
    authors: Sequence[str | None],
    n_audited: int,
    shared: float,
) -> pl.DataFrame:
    """Scores of books by three attacks; books of one author share a part of their variance."""
    n_books = len(authors)
    number = {name: place for place, name in enumerate(dict.fromkeys(authors))}
    of_author = rng.normal(size=(len(number), len(ATTACKS)))
    places = [number[name] for name in authors]
    of_book = rng.normal(size=(n_books, len(ATTACKS)))
    scores = shared**0.5 * of_author[places] + (1 - shared) ** 0.5 * of_book
    names = [f"book {place}" for place in range(n_books)]
    return pl.DataFrame(
        {
            "target_id": names,
            "role": ["target"] * n_audited + ["non_member"] * (n_books - n_audited),
            "document_id": names,
            "group": names,
            "member": [None] * n_books,
            "window_index": [0] * n_books,
            "n_words": [100] * n_books,
            "author": authors,
            **{name: scores[:, place] for place, name in enumerate(ATTACKS)},
        },
        schema_overrides={
            "role": Role,
            "member": pl.Boolean,
            "window_index": pl.UInt32,
        },
    )


def false_findings(
    scores: pl.DataFrame, blind: pl.DataFrame | None = None
) -> dict[str, bool]:
    """Say which findings one null audit makes, with non-members weighted by ``blind`` scores."""
    table = scores.lazy()
    rows = pl.concat(verdicts(table, ["a_v1"], PLAN, blind=blind))
    tests = rows.filter(pl.col("estimate").is_null())
    together = tests.filter(level="collection")["p_value"]
    bound = rows.filter(estimate="contamination_rate")["low"]
    few = few_books_findings(table, ATTACKS, PLAN, ATTACKS)
    if blind is not None:  # bounds and permutations know no weights, and are withheld
        few = few.clear()
    max_t = few.filter(check="max_t", statistic="largest")["p_value"]
    return {
        "list": bool((tests["q_value"] <= PLAN.q).any()),
        "collection": bool((together <= 0.05).any()),
        "max_t": bool((max_t <= 0.05).any()),
        "at_least": bool(
            (few.filter(check="top", statistic="at_least")["value"] > 0).any()
        ),
        "bound": bool((bound > 0).any()),
    }


def authors(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """Audited books of one author or of five, against books by others, one each or three each."""
    shelves = [(10, 1, 40, 1, shared) for shared in (0.0, 0.1, 0.3, 0.5)]
    shelves += [(50, 1, 100, 1, 0.2), (50, 5, 99, 3, 0.3)]
    for n_audited, n_authors, n_null, of_each, shared in shelves:
        named = [f"audited {place % n_authors}" for place in range(n_audited)]
        named += [f"other {place // of_each}" for place in range(n_null)]
        by = "one author" if n_authors == 1 else f"{n_authors} authors"
        case = (
            f"{n_audited} books by {by}, {n_null} others by {n_null // of_each},"
            f" {shared:g}"
        )
        tables = [scores_table(rng, named, n_audited, shared) for _ in range(runs)]
        yield compare(
            f"authors: {case}", [table.drop("author") for table in tables], tables
        )


def lists(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """How often a list is not empty, at 10 times the audits, with its 95 % limits.

    After, authors of comparison books count once each, whatever the number of books.
    """
    shelves = [
        (10, 1, 40, 1, 0.5),
        (50, 5, 99, 3, 0.3),
        (10, 1, 100, 10, 0.5),
        (50, 5, 200, 20, 0.3),
        (10, 1, 200, 10, 0.3),
        (10, 1, 200, 10, 0.5),
    ]
    n_audits = 10 * runs
    for n_audited, n_authors, n_null, of_each, shared in shelves:
        weights = np.full(n_null, 1 / of_each)
        n_lists, n_by_author, n_low = 0, 0, 0
        for _ in range(n_audits):
            audited = _shelf(rng, n_audited, n_authors, shared)
            others = _shelf(rng, n_null, n_null // of_each, shared)
            p = p_values(audited, others)
            by_author = p_values(audited, others, weights=weights)
            n_lists += bool((q_values(p, "bh") <= PLAN.q).any())
            n_by_author += bool((q_values(by_author, "bh") <= PLAN.q).any())
            n_low += bool(p[0] <= 0.01)
        limits = clopper_pearson(n_lists, n_audits)
        yield {
            "case": f"lists: {n_audited} books by {n_authors}, {n_null} others by"
            f" {n_null // of_each}, {shared:g}",
            "audits": n_audits,
            "list_before": n_lists / n_audits,
            "list_low": limits.low,
            "list_high": limits.high,
            "list_after": n_by_author / n_audits,
            "one_book_at_0.01": n_low / n_audits,
        }


def _shelf(
    rng: np.random.Generator, n_books: int, n_authors: int, shared: float
) -> NDArray[np.float64]:
    of_author = rng.normal(size=n_authors)[np.arange(n_books) % n_authors]
    scores = shared**0.5 * of_author + (1 - shared) ** 0.5 * rng.normal(size=n_books)
    return np.asarray(scores, np.float64)


def copies(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """Copies share nine tenths of the variance of their scores."""
    for n_distinct, n_copies in ((40, 10), (20, 20)):
        n_audited, n_null = 50, n_distinct * n_copies
        originals = [f"original {place // n_copies}" for place in range(n_null)]
        named = [*map(str, range(n_audited)), *originals]
        tables = [scores_table(rng, named, n_audited, 0.9) for _ in range(runs)]
        before = [table.drop("author") for table in tables]
        groups = (
            pl.when(pl.col("role") == "non_member").then("author").otherwise("group")
        )
        after = [table.with_columns(group=groups).drop("author") for table in tables]
        case = f"copies: {n_audited} texts, {n_distinct} others by {n_copies} copies"
        yield compare(case, before, after)


def length(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """Scores and logarithms of lengths are correlated by a half; lengths differ in the mean."""
    cases = [
        (50, 100, 0.0),
        (50, 100, 0.15),
        (20, 40, 0.15),
        (20, 40, 0.3),
        (200, 400, 0.15),
    ]
    for n_audited, n_null, longer in cases:
        case = f"length: {n_audited} texts {longer:.0%} longer than {n_null} others"
        figure: Figure = {"case": case}
        found = [_of_lengths(rng, n_audited, n_null, longer) for _ in range(runs)]
        for name in found[0]:
            figure[name] = float(np.mean([audit[name] for audit in found]))
        yield figure


def together(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """Max-T before and after what follows the length is taken out of 3 attacks' scores.

    *Bent*: scores grow with a power of the length, by no straight line.
    """
    cases = [
        (20, 40, 0.0, 0.0, "straight"),
        (20, 40, 0.15, 0.0, "straight"),
        (20, 40, 0.3, 0.0, "straight"),
        (20, 40, 0.15, 0.0, "bent"),
        (20, 40, 0.0, 0.8, "straight"),
        (20, 40, 0.15, 0.8, "straight"),
    ]
    for n_audited, n_null, longer, effect, form in cases:
        is_audited = np.arange(n_audited + n_null) < n_audited
        n_before, n_after = 0, 0
        for _ in range(runs):
            z = rng.normal(size=is_audited.size)
            z += is_audited * np.log1p(longer) / SPREAD
            of_length = 0.5 * z if form == "straight" else 0.5 * np.exp(0.7 * z)
            scores = 0.75**0.5 * rng.normal(size=(3, z.size)) + of_length
            scores += effect * is_audited
            sides = scores[:, :n_audited], scores[:, n_audited:]
            n_before += bool(max_t(*sides, 0).p_values.min() <= 0.05)
            n_after += bool(max_t(*sides, 0, np.exp(z)).p_values.min() <= 0.05)
        yield {
            "case": f"max-t: {n_audited} texts {longer:.0%} longer than {n_null}"
            f" others, effect {effect:g}, {form}",
            "max_t_before": n_before / runs,
            "max_t_after": n_after / runs,
        }


def _of_lengths(
    rng: np.random.Generator, n_audited: int, n_null: int, longer: float
) -> dict[str, bool]:
    size, label = n_audited + n_null, np.arange(n_audited + n_null) < n_audited
    z = rng.normal(size=size) + label * np.log1p(longer) / SPREAD
    names = [f"author {place}" for place in range(size)]
    of_length = 0.5 * z[:, None]
    table = scores_table(rng, names, n_audited, 0.0).drop("author")
    scores = 0.75**0.5 * table.select(ATTACKS).to_numpy() + of_length
    table = table.with_columns(
        pl.Series(name, scores[:, at]) for at, name in enumerate(ATTACKS)
    )
    n_words = np.round(100 * np.exp(SPREAD * z)).astype(int)
    noise = rng.normal(size=(3, size))
    surface = {
        "words": SPREAD * z,
        "bytes": noise[0],
        "punctuation": noise[1],
        "digits": noise[2],
    }
    seen = pl.DataFrame(surface).select(surface=pl.struct(pl.all()), year=pl.lit(0))
    plain = plain_differences(seen, label, np.arange(size))
    blind = None
    if any(difference.differs for difference in plain):
        columns = {
            f"targets_{name}": of for name, of in plain_ranks(seen, plain).items()
        }
        blind = table.select(
            "target_id", **{name: pl.Series(of) for name, of in columns.items()}
        )
    before = false_findings(table)
    after = false_findings(table.with_columns(n_words=n_words), blind)
    when = {f"{name}_before": false for name, false in before.items()}
    return (
        when
        | {f"{name}_after": after[name] for name in after}
        | {"closed": blind is not None}
    )


def refused(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """A service refuses the passages that it knows best; how often 95 % intervals hold the share.

    Before, texts without a score are left out.
    """
    for of_others in (0.0, 0.5):
        covered: dict[str, list[bool]] = {}
        for _ in range(runs):
            table, share = _refusing(rng, of_others)
            for when, rows in (("before", table.drop_nulls("a_v1")), ("after", table)):
                for method, holds in _holds(rows, share).items():
                    covered.setdefault(f"{method}_{when}", []).append(holds)
        case = (
            f"refused: the best known quarter of members, {of_others:.0%} of high"
            " others"
        )
        yield {"case": case} | {
            name: float(np.mean(held)) for name, held in covered.items()
        }


def _refusing(rng: np.random.Generator, of_others: float) -> tuple[pl.DataFrame, float]:
    n_targets, n_each = 400, 300
    role = (
        ["target"] * n_targets + ["non_member"] * n_each + ["calibration"] * 2 * n_each
    )
    is_in = np.zeros(len(role), np.bool_)
    is_in[: n_targets // 5] = is_in[-n_each:] = True
    scores = rng.normal(size=is_in.size) + 2.0 * is_in
    lost = is_in & (scores > 2.67)  # a quarter of the members
    lost |= ~is_in & (scores > 1) & (rng.random(is_in.size) < of_others)
    member = [None] * n_targets + [False] * 2 * n_each + [True] * n_each
    names = [str(place) for place in range(is_in.size)]
    table = pl.DataFrame(
        {
            "target_id": names,
            "role": role,
            "document_id": names,
            "group": [None] * is_in.size,
            "member": member,
            "window_index": [0] * is_in.size,
            "n_words": [100] * is_in.size,
            "a_v1": np.where(lost, np.nan, scores),
        },
        schema_overrides={"role": Role, "group": pl.String, "window_index": pl.UInt32},
    )
    return table.with_columns(pl.col("a_v1").fill_nan(None)), 0.2


def _holds(table: pl.DataFrame, share: float) -> dict[str, bool]:
    plan = replace(PLAN, level="target")
    rows = pl.concat(verdicts(table.lazy(), ["a_v1"], plan)).filter(
        estimate="contamination_rate"
    )
    rates = rows.filter(pl.col("method") != "beta_binomial").select(
        "method", "low", "high"
    )
    return {
        method: low is None or low <= share <= high  # what is withheld claims nothing
        for method, low, high in rates.iter_rows()
    }


def labels(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """Labels of calibration data that are wrong; before without, after with what 5 % may do."""
    for share in (0.02, 0.1, 0.9):
        covered: dict[str, list[bool]] = {"fieller_before": [], "fieller_after": []}
        for _ in range(runs):
            low, high = _with_wrong_labels(rng, share)
            covered["fieller_before"].append(low <= share <= high)
            least, most = (1 - 0.05) * low, 0.05 + (1 - 0.05) * high
            covered["fieller_after"].append(least <= share <= most)
        figures = {name: float(np.mean(held)) for name, held in covered.items()}
        yield {"case": f"labels: 5 % wrong, share {share:g}"} | figures


def _with_wrong_labels(rng: np.random.Generator, share: float) -> tuple[float, float]:
    n, fpr, tpr, wrong = 1000, 0.05, 0.91, 0.05  # at an effect of 3
    n_members = rng.binomial(n, share)
    flagged = rng.binomial(n_members, tpr) + rng.binomial(n - n_members, fpr)
    of_others = rng.binomial(n, (1 - wrong) * fpr + wrong * tpr)
    of_members = rng.binomial(n, (1 - wrong) * tpr + wrong * fpr)
    rates = (Flagged(count, n) for count in (flagged, of_others, of_members))
    found = contamination_rate(*rates, blind_warns=False)
    return found.low or 0.0, 1.0 if found.high is None else found.high


def compare(case: str, before: list[pl.DataFrame], after: list[pl.DataFrame]) -> Figure:
    figure: Figure = {"case": case}
    for when, tables in (("before", before), ("after", after)):
        found = [false_findings(table) for table in tables]
        for name in found[0]:
            figure[f"{name}_{when}"] = float(np.mean([audit[name] for audit in found]))
    return figure


PARTS = {
    "authors": authors,
    "copies": copies,
    "length": length,
    "refused": refused,
    "labels": labels,
    "lists": lists,
    "together": together,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=1000, help="null audits of each case"
    )
    parser.add_argument("--small", action="store_true", help="200 audits of each case")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    runs = 200 if options.small else options.runs
    figures = []
    for number, (name, simulate) in enumerate(PARTS.items()):
        if options.only in (None, name):
            for figure in simulate(np.random.default_rng([SEED, number]), runs):
                figures.append(figure)
                print_figure(figure)
    rows = {"seed": SEED, "runs": runs, "figures": figures}
    append_results("dependence", rows | versions("numpy", "scipy"))


def print_figure(figure: Figure) -> None:
    print(figure["case"], flush=True)
    for name in [name for name in figure if name.endswith("_before")]:
        what = name.removesuffix("_before")
        print(
            f"    {what:12} {figure[name]:.3f} -> {figure[f'{what}_after']:.3f}",
            flush=True,
        )
    if "closed" in figure:
        print(f"    weighted or withheld: {figure['closed']:.3f}", flush=True)


if __name__ == "__main__":
    main()
