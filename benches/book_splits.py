"""What an audit of books says, beside the truth: by splits of its scores, by strips, by walks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.estimates import WindowShare
from mia_batch.inference.findings import DecisionRule
from mia_batch.inference.verdicts import verdicts
from mia_batch.stats.intervals import roc_curve
from mia_batch.tables import read_finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import mia_batch

__all__ = [
    "CASES",
    "SPLITS",
    "Case",
    "Q",
    "area",
    "extracted",
    "picture",
    "splits",
    "strips",
]

SPLITS, Q = 200, 0.05
_LEVELS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Parts of a split: members and others that are asked about, nulls, calibration data."""

    members: int
    others: int
    nulls: int
    calibration: int = 0  # of each class
    times: int | None = None  # that members were seen; None: any

    def draw(self, parts: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
        """Draw the role of each part; ``seen`` is the truth."""
        seen = (
            pl.col("times") > 0 if self.times is None else pl.col("times") == self.times
        )
        sets = {
            True: (seen, [("target", self.members)]),
            False: (
                pl.col("times") == 0,
                [("target", self.others), ("non_member", self.nulls)],
            ),
        }
        rows: list[tuple[str, str, bool | None, bool]] = []
        for is_seen, (of_kind, wanted) in sets.items():
            names = rng.permutation(parts.filter(of_kind)["name"].to_numpy()).tolist()
            for role, n in [*wanted, ("calibration", self.calibration)]:
                member = is_seen if role == "calibration" else None
                rows += [(name, role, member, is_seen) for name in names[:n]]
                names = names[n:]
        schema = {
            "name": pl.String,
            "role": pl.String,
            "member": pl.Boolean,
            "seen": pl.Boolean,
        }
        return pl.DataFrame(rows, schema, orient="row")


CASES = (
    Case(members=30, others=10, nulls=40, times=10),
    *(Case(members=n, others=20 - n, nulls=99, calibration=25) for n in (0, 2, 6, 10)),
    Case(members=0, others=5, nulls=99),
)


def splits(
    scores: pl.DataFrame, attack: str, parts: pl.DataFrame, case: Case
) -> dict[str, Any]:
    """Split the parts many times; means over the splits, ``most`` beside the share of false ones.

    Of intervals: how many cover the true share of members among what is asked about.
    """
    rng = np.random.default_rng(0)
    drawn = (case.draw(parts, rng) for _ in range(SPLITS))
    rows = pl.DataFrame(
        [_split(scores, attack, each) for each in drawn], infer_schema_length=None
    )
    right, false = pl.col("right"), pl.col("false")
    rows = rows.with_columns(false_share=false / (right + false).clip(1)).drop("false")
    means = rows.select(pl.all().cast(pl.Float64).mean()).row(0, named=True)
    error = rows.select(pl.col("false_share").std() / SPLITS**0.5).item()
    most = Q * case.others / (case.members + case.others)
    return asdict(case) | means | {"standard_error": error, "most": most}


def _split(
    scores: pl.DataFrame, attack: str, drawn: pl.DataFrame
) -> dict[str, float | None]:
    """Judge one split, as an audit does that asks about groups."""
    columns = ["target_id", "name", "window_index", "n_words", attack]
    table = (
        scores.select(columns).join(drawn, on="name").rename({"name": "group"}).lazy()
    )
    plan = DecisionRule(primary=attack, level="group", null_set="left out by lot", q=Q)
    found = pl.concat(verdicts(table, [attack], plan))
    truth = drawn.filter(role="target").select("seen", key="name")
    told = found.filter(pl.col("q_value") <= Q, level="group").join(truth, on="key")[
        "seen"
    ]
    n_right = int(told.sum())
    row: dict[str, float | None] = {"right": n_right, "false": told.len() - n_right}
    share = truth.select(pl.col("seen").mean()).item()
    for made in found.filter(estimate="contamination_rate").iter_rows(named=True):
        row |= _covers(made["method"], share, made["value"], made["low"], made["high"])
    sets = read_comparison_sets(table, with_names=False)
    score = read_finite(table, attack, sets.target_id.len())
    of_windows = WindowShare(sets, score, plan.fpr, blind_warns=False)
    asked = score[sets.targets]
    above = int(np.count_nonzero(asked > of_windows.threshold))
    estimate = of_windows.estimate(above, asked.size, asked.size)
    return row | _covers("windows", share, estimate.value, estimate.low, estimate.high)


def _covers(
    method: str,
    share: float,
    value: float | None,
    low: float | None,
    high: float | None,
) -> dict[str, float | None]:
    found: dict[str, float | None] = {f"{method}_covers": None, f"{method}_width": None}
    if low is not None and high is not None:
        found = {
            f"{method}_covers": low <= share <= high,
            f"{method}_width": high - low,
        }
    return found | {f"{method}_value": value}


def strips(run: mia_batch.Run, parts: pl.DataFrame) -> pl.DataFrame:
    """Say of each stretch of the books' strips how often the model saw what is at its middle."""
    drawn = (
        run["curves"].filter(curve="strip").rename({"subject": "book", "y": "value"})
    )
    ends = parts.group_by("book").agg(whole=pl.col("end").max())
    after = pl.col("x").shift(-1, fill_value=1.0).over("book")
    middle = ((pl.col("x") + after) / 2 * pl.col("whole")).cast(pl.Int64)
    stretches = (
        drawn.join(ends, on="book").select("book", "value", start=middle).sort("start")
    )
    places = parts.select("book", "start", "times").sort("start")
    found = stretches.join_asof(places, on="start", by="book", check_sortedness=False)
    return found.sort("book", "start")


def picture(strip: pl.DataFrame, often: int) -> Iterator[str]:
    """Draw each book's strip over marks: + where the model saw a part, # where as often as that."""
    for (book,), rows in strip.group_by("book", maintain_order=True):
        shades = (_LEVELS[min(int(value * 8), 7)] for value in rows["value"])
        marks = (
            "#" if times >= often else "+" if times else " " for times in rows["times"]
        )
        yield f"{book:28}{''.join(shades)}"
        yield f"{'':28}{''.join(marks).rstrip()}"


def area(strip: pl.DataFrame, times: Sequence[int]) -> float:
    """AUC of a strip's stretches that were seen so often, against those that never were."""
    some = strip.filter(pl.col("times").is_in([0, *times]))
    return roc_curve((some["times"] > 0).to_numpy(), some["value"].to_numpy()).area


def extracted(run: mia_batch.Run, parts: pl.DataFrame, windows: int) -> pl.DataFrame:
    """Add how many of each part's characters came out, and how many stand behind what is given.

    Given is the first half of a part's first window; what follows can come out.
    """
    stretches = (
        run.scan("extraction")
        .collect()
        .select("document_id", "start", "end")
        .iter_rows()
    )
    found: dict[str, set[int]] = {}
    for book, start, end in stretches:
        found.setdefault(book, set()).update(range(start, end))
    out = [
        len(found.get(book, set()).intersection(range(start, end)))
        for book, start, end in parts.select("book", "start", "end").iter_rows()
    ]
    asked_from = pl.col("start") + pl.col("prefix").str.len_chars()
    part = (pl.col("window_index") // windows).cast(pl.Int64)
    given = (
        run["targets"]
        .group_by(pl.col("document_id").alias("book"), part.alias("part"))
        .agg(asked_from=asked_from.min())
    )
    joined = parts.with_columns(out=pl.Series(out, dtype=pl.Int64)).join(
        given, on=["book", "part"], how="left", maintain_order="left"
    )
    return joined.with_columns(
        characters=pl.col("end") - pl.col("start"),
        behind=pl.col("end") - pl.col("asked_from"),
    )
