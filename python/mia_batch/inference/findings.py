"""Rows of findings and verdicts, and the plan that they are made by."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.errors import SettingsError
from mia_batch.inference.conformal import Adjustment
from mia_batch.schemas import Findings, Verdicts
from mia_batch.stats import Floats, Ints

Column = (
    pl.Series
    | NDArray[np.generic]
    | Sequence[str | None]
    | Sequence[int]
    | float
    | None
)

_SCHEMA = Findings.create_empty().schema


def finding_rows(
    check: str, rows: Iterable[Mapping[str, object]] = (), **same: object
) -> pl.DataFrame:
    """Make rows of one check, which have some columns alike; what a row does not name is null."""
    return pl.DataFrame(
        [{"check": check, **same, **row} for row in rows], schema=_SCHEMA
    )


def number_rows(
    numbers: Mapping[str, object], **same: object
) -> list[dict[str, object]]:
    return [
        {"statistic": name, "value": value, **same} for name, value in numbers.items()
    ]


def role_findings(targets: pl.LazyFrame) -> pl.DataFrame:
    """Rows of check ``roles``: how many texts can be asked about, compared with, or ranked."""
    is_target = pl.col("role") == "target"
    counts = targets.select(
        n_unknown=(is_target & pl.col("member").is_null()).sum(),
        n_nulls=(
            (pl.col("role") == "non_member") | (is_target & ~pl.col("member"))
        ).sum(),
        n_canaries=(pl.col("role") == "canary").sum(),
    ).collect(engine="streaming")
    return finding_rows("roles", number_rows(counts.row(0, named=True)))


def role_counts(findings: pl.DataFrame) -> Counter[str]:
    return Counter(
        dict(findings.filter(check="roles").select("statistic", "value").iter_rows())
    )


def earlier_findings(
    earlier: Mapping[str, Mapping[str, Any]], root: str | None = None
) -> pl.DataFrame:
    """Rows of check ``earlier_runs``: ``n_runs``, and of each run its ``primary`` attack."""
    # A run that came out the same to the byte, with the same ``root``, was no other
    # attempt.
    earlier = {
        name: run
        for name, run in earlier.items()
        if not root or run.get("root") != root
    }
    rows = number_rows({"n_runs": len(earlier)} if earlier else {})
    for name, run in sorted(earlier.items()):
        plan = f"{run['primary']}, {run['level']}"
        rows.append({"subject": name, "statistic": "primary", "verdict": plan})
    return finding_rows("earlier_runs", rows)


def lodged_findings(lodged: Mapping[str, Any]) -> pl.DataFrame:
    """Rows of check ``lodged``: whether an audit is ``equal`` to its plan or ``differs``."""
    if not lodged:
        return finding_rows("lodged")
    differences = lodged["differences"]
    late = (
        "the plan was given after scores had been made"
        if lodged["after_scores"]
        else None
    )
    verdict = "differs" if differences else "equal"
    main = {"statistic": "n_differences", "value": len(differences)}
    main |= {"verdict": verdict, "reason": late}
    rows = [
        main,
        *({"statistic": "difference", "reason": each} for each in differences),
    ]
    return finding_rows("lodged", rows, subject=lodged["sha256"])


def plan_findings(
    plan: DecisionRule, preregistered: Mapping[str, Any], rests_on: Mapping[str, object]
) -> pl.DataFrame:
    """Rows of check ``plan``: verdict ``as_planned``, ``changed`` or ``late`` about the primary."""
    # ``late``: there were scores before any plan.
    main = {"subject": preregistered["primary"], "statistic": "n_changed"}
    before = preregistered["rests_on"]
    if before is None:
        reason = "scores had been made before any plan was recorded"
        return finding_rows("plan", [main | {"verdict": "late", "reason": reason}])
    names = sorted(before.keys() | rests_on.keys())
    changed = [name for name in names if before.get(name) != rests_on.get(name)]
    as_planned = not changed and plan.digest() == preregistered["sha256"]
    main |= {
        "value": len(changed),
        "verdict": "as_planned" if as_planned else "changed",
    }
    return finding_rows(
        "plan", [main, *({"subject": name, "statistic": "changed"} for name in changed)]
    )


def later_findings(names: Iterable[str]) -> pl.DataFrame:
    """Rows of check ``later``: attacks whose scores were added to those that were planned."""
    rows = [
        {"subject": name, "statistic": "attack", "verdict": "exploratory"}
        for name in names
    ]
    return finding_rows("later", rows)


def gate_findings(before: pl.DataFrame, *, exploratory: bool) -> pl.DataFrame:
    """Row of check ``gate``: may targets be compared with non-members? None without both."""
    # ``open`` where classifiers that never see the model cannot tell them apart,
    # ``doubtful`` where that is undecided or unknown; where they can, or where one
    # number such as the length differs, ``weighted``, ``withheld`` or ``exploratory``.
    blind = before.filter(check="blind_baseline", subject="targets")
    rows = blind.filter(statistic="roc_auc").select(
        "value", "high", "p_value", "verdict", "reason"
    )
    if rows.is_empty():
        return finding_rows("gate")
    row = rows.row(0, named=True)
    strongest = blind.filter(statistic="strongest")["verdict"]
    by = strongest[0] if len(strongest) else None
    plain = plain_difference(before)
    if row["verdict"] != "separable" and plain is not None:
        row |= {
            "value": plain["value"],
            "p_value": plain["p_value"],
            "verdict": "separable",
        }
        by = f"{plain['subject']} alone"
    closed = "exploratory" if exploratory else "withheld"
    if not before.filter(check="weights", verdict="used").is_empty():
        closed = "weighted"
    verdict = {"not separable": "open", "separable": closed}.get(
        row["verdict"], "doubtful"
    )
    if verdict == closed:
        row["reason"] = (
            "withheld: the audited texts and the comparison texts can be distinguished"
            f" without the model (AUC {row['value']:.2f} by {by}, p ="
            f" {row['p_value']:.3f})"
        )
    return finding_rows("gate", [row | {"statistic": "roc_auc", "verdict": verdict}])


def plain_difference(findings: pl.DataFrame) -> dict[str, Any] | None:
    """Find the surest plain difference of targets and non-members; None where they are alike."""
    found = findings.filter(check="plain_differences", verdict="differs").sort(
        "p_value"
    )
    return next(found.iter_rows(named=True), None)


def blind_verdict(findings: pl.DataFrame) -> str | None:
    """Read the verdict of `gate_findings`; None without targets and non-members."""
    return next(iter(findings.filter(check="gate")["verdict"]), None)


def gate_verdict(findings: pl.DataFrame) -> str | None:
    """Say whether targets may be compared: `blind_verdict`, or ``changed``, as the service did."""
    changed = findings.filter(check="order", statistic="answer")["verdict"]
    if len(changed):
        return "changed" if changed[0] == "withheld" else "exploratory"
    return blind_verdict(findings)


def change_of_service(findings: pl.DataFrame) -> str | None:
    """Say in one clause how the service changed while it was asked; None where it did not."""
    return next(
        iter(findings.filter(check="order", statistic="answer")["reason"]), None
    )


def is_closed(findings: pl.DataFrame) -> bool:
    """Whether nothing may be concluded from comparisons with non-members."""
    return gate_verdict(findings) in ("withheld", "changed")


def why_withheld(findings: pl.DataFrame) -> str | None:
    """Say why p-values, lists, bounds and estimates without weights are withheld, if they are."""
    if (why := why_not_continued(findings)) is not None:
        return why
    verdict = gate_verdict(findings)
    if verdict == "changed":
        return f"withheld: {change_of_service(findings)}"
    closed = verdict in ("withheld", "weighted")
    return findings.filter(check="gate")["reason"][0] if closed else None


# The one door: p-values, q-values, bounds and estimates that compare targets with
# non-members.

_FOUND_BY_WEIGHTS = ("reported", "placebo")
_COMPARING = (
    *(
        "top",
        "max_t",
        "null_audits",
        "e_values",
        "dataset_inference",
        "codec",
        "absence",
        "dose",
    ),
    *_FOUND_BY_WEIGHTS,
)


def behind_gate(findings: pl.DataFrame) -> pl.DataFrame:
    """Take out what compares targets with non-members, where the gate does not allow it.

    Fisher's p-value of what came out word for word, and that of answers held back, lose
    their number; rows of checks that are nothing else are dropped. What was reported by
    weights stays.
    """
    if (reason := why_withheld(findings)) is None:
        return findings
    allowed = _FOUND_BY_WEIGHTS if gate_verdict(findings) == "weighted" else ()
    left_out = [check for check in _COMPARING if check not in allowed]
    of_targets = pl.col("subject") == "targets"
    is_fisher = (pl.col("check") == "verbatim") & (pl.col("statistic") == "fisher")
    is_withheld = of_targets & (is_fisher | (pl.col("check") == "held_back"))
    is_withheld = (is_withheld & pl.col("p_value").is_not_null()).fill_null(value=False)
    return findings.filter(~pl.col("check").is_in(left_out)).with_columns(
        p_value=pl.when(~is_withheld).then("p_value"),
        reason=pl.when(is_withheld).then(pl.lit(reason)).otherwise("reason"),
    )


def why_not_continued(findings: pl.DataFrame) -> str | None:
    """Say what answers are that do not continue the texts; None where they do."""
    of = dict(findings.filter(check="dress").select("statistic", "value").iter_rows())
    refused = findings.filter(check="dress", verdict="does_not_continue")
    if refused.is_empty():
        return None
    n, example = of["n_prompts"], refused["reason"][0] or ""
    counted = {
        f"begin alike, such as {example!r}, although the texts differ": of["n_alike"],
        "repeat the end of the prompt": of["n_repeating"],
        "have nothing besides what is put around a continuation": of["n_empty"],
    }
    what, most = max(counted.items(), key=lambda item: item[1])
    return (
        f"this model does not continue texts when asked so: the answers to {most:,.0f}"
        f" of {n:,.0f} prompts {what}"
    )


def withhold_all(rows: pl.DataFrame, reason: str | None) -> pl.DataFrame:
    """Take every number out of metrics or verdicts that rests on answers, where there is a why."""
    if reason is None:
        return rows
    numbers = ("value", "low", "high", "p_value", "q_value", "sensitivity_bound")
    is_blind = pl.col("attack").str.starts_with("blind_")
    return rows.with_columns(
        pl.when(is_blind).then(
            pl.col(name for name in numbers if name in rows.columns)
        ),
        reason=pl.when(is_blind).then("reason").otherwise(pl.lit(reason)),
    )


def reported_findings(verdicts: pl.LazyFrame, plan: DecisionRule) -> pl.DataFrame:
    levels = {"target": ["target"], "group": ["group", "document"]}.get(plan.level, [])
    of_level = (pl.col("level").cast(pl.String).is_in(levels)) & pl.col(
        "estimate"
    ).is_null()
    counted = (
        verdicts.filter(of_level, attack=plan.primary, versus="non_members")
        .select(
            n_tests=pl.len(),
            n_reported=(pl.col("q_value") <= plan.q).sum(),
            smallest_q=pl.col("q_value").min(),
            n_null=pl.col("n_null").max(),
            n_without_null=(pl.col("n_null") == 0).sum(),
            n_without_p=pl.col("p_value").null_count(),
            adjustment=pl.col("adjustment").first(),
            reason=pl.col("reason").drop_nulls().mode().sort().first(),
        )
        .collect(engine="streaming")
        .row(0, named=True)
    )
    if not counted["n_tests"]:
        return finding_rows("reported")
    adjustment, reason = counted.pop("adjustment"), counted.pop("reason")
    rows = number_rows(counted)
    rows[-1]["reason"] = reason  # the most frequent one
    rows.append({"statistic": "q", "value": plan.q, "verdict": adjustment})
    return finding_rows("reported", rows, subject=plan.level)


# What a run is to decide and how, recorded before any score is seen.

PlanLevel = Literal["target", "group", "collection"]
TieRule = Literal["conservative", "random"]
Statistic = Literal["mean", "median", "maximum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRule:
    """The one analysis that counts; whatever else is computed is exploratory."""

    primary: str  # the attack that decides
    level: PlanLevel
    null_set: str  # which texts are the null, and how it is known that they are outside
    q: float = 0.05  # share of false discoveries allowed
    adjustment: Adjustment = "bh"
    ties: TieRule = "conservative"
    statistic: Statistic = "mean"  # of a group's windows
    windows_per_group: int | None = None  # None: as many as nine groups in ten have
    length_edges: tuple[
        int, ...
    ] = ()  # words at which a bucket of lengths begins, ascending
    fpr: float = 0.05  # share of nulls above the threshold of the contamination rate
    seed: int = 0  # of tie draws, window patterns and permutations

    def __post_init__(self) -> None:
        edges, windows = self.length_edges, self.windows_per_group
        faults = {
            "q must lie between 0 and 1": not 0 < self.q < 1,
            "fpr must lie between 0 and 1": not 0 < self.fpr < 1,
            "windows_per_group must be at least 1": windows is not None and windows < 1,
            "seed must not be negative": self.seed < 0,
            "length_edges must ascend": [*edges] != sorted({*edges}),
        }
        for fault in (fault for fault, present in faults.items() if present):
            raise SettingsError(f"{fault}; correct the plan of verdicts")

    def digest(self) -> str:
        """SHA-256 of the fields as JSON with sorted keys and no spaces, in hexadecimal."""
        content = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return sha256(content.encode()).hexdigest()


def preregister(
    plan: DecisionRule, rests_on: Mapping[str, int | str] | None, attacks: Sequence[str]
) -> dict[str, Any]:
    """Return what is recorded before the first score; answers to anything else are exploratory."""
    # The plan's SHA-256 is not about the ``attacks``, which are tested together.
    made = None if rests_on is None else dict(rests_on)
    return asdict(plan) | {
        "sha256": plan.digest(),
        "rests_on": made,
        "attacks": [*attacks],
    }


_TYPES = Verdicts.create_empty().schema
_Rows = TypeVar("_Rows", pl.DataFrame, pl.LazyFrame)


class AttackScores(NamedTuple):
    """Scores of one attack, one per row of the scores table; NaN = unscored."""

    attack: str
    scores: Floats

    def planned(self, plan: DecisionRule, level: PlanLevel | None = None) -> bool:
        return self.attack == plan.primary and level in (None, plan.level)


def verdict_rows(height: int, **columns: Column) -> pl.DataFrame:
    return typed_rows(_TYPES, height, {"versus": "non_members"} | columns)


def withhold(rows: _Rows, reason: str, *, all_sets: bool = False) -> _Rows:
    """Take p-values and estimates against non-members out of verdicts, and say why."""
    # With ``all_sets`` those of canaries against their controls, too.
    numbers = ("p_value", "q_value", "sensitivity_bound", "value", "low", "high")
    compared = (pl.col("versus") == "non_members") | all_sets
    return rows.with_columns(
        pl.when(~compared).then(pl.col(*numbers)),
        reason=pl.when(compared).then(pl.lit(reason)).otherwise("reason"),
    )


def typed_rows(
    types: Mapping[str, pl.DataType], height: int, columns: Mapping[str, Column]
) -> pl.DataFrame:
    """Make rows from arrays, or one value for all; NaN becomes null, as does what is not given."""
    made = []
    for name, dtype in types.items():
        value = columns.get(name)
        if value is None or isinstance(value, str | float | int):
            made.append(pl.Series(name, [value], dtype=dtype).new_from_index(0, height))
        else:
            series = pl.Series(name, value).cast(dtype)
            made.append(series.fill_nan(None) if dtype.is_float() else series)
    return pl.DataFrame(made)


_ROWS_AT_ONCE = 32_768


def score_batches(
    scores: pl.LazyFrame, attacks: Sequence[str]
) -> Iterator[tuple[int, Floats]]:
    """Yield the index of a first row, and the finite scores from there on, a column per attack."""
    value, start = pl.col(attacks).cast(pl.Float64), 0
    finite = scores.select(pl.when(value.is_finite()).then(value))
    for batch in finite.collect_batches(chunk_size=_ROWS_AT_ONCE, maintain_order=True):
        yield start, batch.to_numpy().astype(np.float64)
        start += batch.height


def read_rows(scores: pl.LazyFrame, attacks: Sequence[str], rows: Ints) -> Floats:
    order = rows.argsort()
    ascending = rows[order]
    found = np.empty((rows.size, len(attacks)))
    for start, part in score_batches(scores, attacks):
        first, last = ascending.searchsorted([start, start + len(part)])
        found[order[first:last]] = part[ascending[first:last] - start]
    return found
