"""Rows of findings and verdicts, and the rule that they are made by."""

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
    check: str,
    rows: Iterable[Mapping[str, object]] = (),
    **shared: object,
) -> pl.DataFrame:
    """Build rows of one check, with ``shared`` columns; other columns are null."""
    findings = [{"check": check, **shared, **row} for row in rows]
    return pl.DataFrame(findings, schema=_SCHEMA)


def number_rows(
    numbers: Mapping[str, object],
    **shared: object,
) -> list[dict[str, object]]:
    return [
        {"statistic": name, "value": value, **shared} for name, value in numbers.items()
    ]


def role_findings(targets: pl.LazyFrame) -> pl.DataFrame:
    """Rows of check ``roles``: how many texts can be asked about, compared with, or ranked."""
    is_target = pl.col("role") == "target"
    is_non_member = pl.col("role") == "non_member"
    counts = targets.select(
        n_unknown=(is_target & pl.col("member").is_null()).sum(),
        n_nulls=(is_non_member | (is_target & ~pl.col("member"))).sum(),
        n_canaries=(pl.col("role") == "canary").sum(),
    )
    row = counts.collect(engine="streaming").row(0, named=True)
    return finding_rows("roles", number_rows(row))


def role_counts(findings: pl.DataFrame) -> Counter[str]:
    rows = findings.filter(check="roles")
    return Counter(dict(rows.select("statistic", "value").iter_rows()))


def earlier_findings(
    runs: Mapping[str, Mapping[str, Any]],
    root: str | None = None,
) -> pl.DataFrame:
    """Rows of check ``earlier_runs``: ``n_runs``, and of each run its ``primary`` attack."""
    # A run that came out the same to the byte, with the same ``root``, was no other
    # attempt.
    if root:
        runs = {name: run for name, run in runs.items() if run.get("root") != root}
    rows = number_rows({"n_runs": len(runs)} if runs else {})
    for name, run in sorted(runs.items()):
        primary = f"{run['primary']}, {run['level']}"
        rows.append(
            {
                "subject": name,
                "statistic": "primary",
                "verdict": primary,
            }
        )
    return finding_rows("earlier_runs", rows)


def lodged_findings(lodged: Mapping[str, Any]) -> pl.DataFrame:
    """Rows of check ``lodged``: whether an audit is ``equal`` to its plan or ``differs``."""
    if not lodged:
        return finding_rows("lodged")
    differences = lodged["differences"]
    reason = None
    if lodged["after_scores"]:
        reason = "the plan was given after scores had been made"
    rows: list[dict[str, object]] = [
        {
            "statistic": "n_differences",
            "value": len(differences),
            "verdict": "differs" if differences else "equal",
            "reason": reason,
        }
    ]
    rows += [{"statistic": "difference", "reason": text} for text in differences]
    return finding_rows("lodged", rows, subject=lodged["sha256"])


def plan_findings(
    rule: DecisionRule,
    preregistered: Mapping[str, Any],
    rests_on: Mapping[str, object],
) -> pl.DataFrame:
    """Rows of check ``plan``: verdict ``as_planned``, ``changed`` or ``late`` about the primary."""
    # ``late``: there were scores before a rule was recorded.
    main = {"subject": preregistered["primary"], "statistic": "n_changed"}
    recorded = preregistered["rests_on"]
    if recorded is None:
        reason = "scores had been made before any plan was recorded"
        return finding_rows("plan", [main | {"verdict": "late", "reason": reason}])
    names = sorted(recorded.keys() | rests_on.keys())
    changed = [name for name in names if recorded.get(name) != rests_on.get(name)]
    as_planned = not changed and rule.digest() == preregistered["sha256"]
    main["value"] = len(changed)
    main["verdict"] = "as_planned" if as_planned else "changed"
    changes = [{"subject": name, "statistic": "changed"} for name in changed]
    return finding_rows("plan", [main, *changes])


def later_findings(names: Iterable[str]) -> pl.DataFrame:
    """Rows of check ``later``: attacks whose scores were added to those that were planned."""
    rows = [{"subject": name} for name in names]
    return finding_rows("later", rows, statistic="attack", verdict="exploratory")


def gate_findings(findings: pl.DataFrame, *, exploratory: bool) -> pl.DataFrame:
    """Row of check ``gate``: may targets be compared with non-members? None without both."""
    # ``open`` where classifiers that never see the model cannot tell them apart,
    # ``doubtful`` where that is undecided or unknown; where they can, or where one
    # number such as the length differs, ``weighted``, ``withheld`` or ``exploratory``.
    blind = findings.filter(check="blind_baseline", subject="targets")
    columns = ("value", "high", "p_value", "verdict", "reason")
    areas = blind.filter(statistic="roc_auc").select(columns)
    if areas.is_empty():
        return finding_rows("gate")
    row = areas.row(0, named=True)
    strongest = blind.filter(statistic="strongest")["verdict"]
    classifier = strongest[0] if len(strongest) else None
    plain = plain_difference(findings)
    if row["verdict"] != "separable" and plain is not None:
        row["value"] = plain["value"]
        row["p_value"] = plain["p_value"]
        row["verdict"] = "separable"
        classifier = f"{plain['subject']} alone"
    closed = "exploratory" if exploratory else "withheld"
    if not findings.filter(check="weights", verdict="used").is_empty():
        closed = "weighted"
    verdicts = {"not separable": "open", "separable": closed}
    verdict = verdicts.get(row["verdict"], "doubtful")
    if verdict == closed:
        row["reason"] = (
            "withheld: the audited texts and the comparison texts can be distinguished"
            f" without the model (AUC {row['value']:.2f} by {classifier}, p ="
            f" {row['p_value']:.3f})"
        )
    return finding_rows("gate", [row | {"statistic": "roc_auc", "verdict": verdict}])


def plain_difference(findings: pl.DataFrame) -> dict[str, Any] | None:
    """Find the surest plain difference of targets and non-members, if there is one."""
    differences = findings.filter(check="plain_differences", verdict="differs")
    return next(differences.sort("p_value").iter_rows(named=True), None)


def blind_verdict(findings: pl.DataFrame) -> str | None:
    """Read the verdict of `gate_findings`; None without targets and non-members."""
    return next(iter(findings.filter(check="gate")["verdict"]), None)


def gate_verdict(findings: pl.DataFrame) -> str | None:
    """Return `blind_verdict`; if the service changed, ``changed`` or ``exploratory``."""
    answers = findings.filter(check="order", statistic="answer")["verdict"]
    if len(answers):
        return "changed" if answers[0] == "withheld" else "exploratory"
    return blind_verdict(findings)


def change_of_service(findings: pl.DataFrame) -> str | None:
    """Return a clause on how the service changed while it was asked, if it did."""
    answers = findings.filter(check="order", statistic="answer")
    return next(iter(answers["reason"]), None)


def is_closed(findings: pl.DataFrame) -> bool:
    """Return whether nothing may be concluded from comparisons with non-members."""
    return gate_verdict(findings) in ("withheld", "changed")


def why_withheld(findings: pl.DataFrame) -> str | None:
    """Return why p-values, lists, bounds and unweighted estimates are withheld, if so."""
    reason = why_not_continued(findings)
    if reason is not None:
        return reason
    verdict = gate_verdict(findings)
    if verdict == "changed":
        return f"withheld: {change_of_service(findings)}"
    if verdict in ("withheld", "weighted"):
        reason = findings.filter(check="gate")["reason"][0]
    return reason


# The one door: p-values, q-values, bounds and estimates that compare targets with
# non-members.

_FOUND_BY_WEIGHTS = ("reported", "placebo")
_COMPARING = (
    "top",
    "max_t",
    "null_audits",
    "e_values",
    "dataset_inference",
    "codec",
    "absence",
    "dose",
    "known_share",
    *_FOUND_BY_WEIGHTS,
)


def apply_gate(findings: pl.DataFrame) -> pl.DataFrame:
    """Remove what compares targets with non-members, where the gate does not allow it.

    Fisher's p-value of what came out word for word, and that of answers held back, lose
    their number; rows of checks that are nothing else are dropped. What was reported by
    weights stays.
    """
    reason = why_withheld(findings)
    if reason is None:
        return findings
    allowed = _FOUND_BY_WEIGHTS if gate_verdict(findings) == "weighted" else ()
    dropped = [check for check in _COMPARING if check not in allowed]
    of_targets = pl.col("subject") == "targets"
    is_fisher = (pl.col("check") == "verbatim") & (pl.col("statistic") == "fisher")
    is_comparison = of_targets & (is_fisher | (pl.col("check") == "held_back"))
    is_withheld = is_comparison & pl.col("p_value").is_not_null()
    is_withheld = is_withheld.fill_null(value=False)
    return findings.filter(~pl.col("check").is_in(dropped)).with_columns(
        p_value=pl.when(~is_withheld).then("p_value"),
        reason=pl.when(is_withheld).then(pl.lit(reason)).otherwise("reason"),
    )


def why_not_continued(findings: pl.DataFrame) -> str | None:
    """Return what answers are that do not continue the texts; None where they do."""
    dress = findings.filter(check="dress")
    refusals = dress.filter(verdict="does_not_continue")
    if refusals.is_empty():
        return None
    numbers = dict(dress.select("statistic", "value").iter_rows())
    example = refusals["reason"][0] or ""
    alike = f"begin alike, such as {example!r}, although the texts differ"
    counts = {
        alike: numbers["n_alike"],
        "repeat the end of the prompt": numbers["n_repeating"],
        "have nothing besides what is put around a continuation": numbers["n_empty"],
    }
    fault, n_prompts = max(counts.items(), key=lambda item: item[1])
    return (
        "this model does not continue texts when asked so: the answers to"
        f" {n_prompts:,.0f} of {numbers['n_prompts']:,.0f} prompts {fault}"
    )


def withhold_all(rows: pl.DataFrame, reason: str | None) -> pl.DataFrame:
    """Remove all numbers that rest on answers from metrics or verdicts, given a reason."""
    if reason is None:
        return rows
    numbers = ("value", "low", "high", "p_value", "q_value", "sensitivity_bound")
    columns = [name for name in numbers if name in rows.columns]
    is_blind = pl.col("attack").str.starts_with("blind_")
    return rows.with_columns(
        pl.when(is_blind).then(pl.col(columns)),
        reason=pl.when(is_blind).then("reason").otherwise(pl.lit(reason)),
    )


def reported_findings(verdicts: pl.LazyFrame, rule: DecisionRule) -> pl.DataFrame:
    levels = {"target": ["target"], "group": ["group", "document"]}
    of_level = pl.col("level").cast(pl.String).is_in(levels.get(rule.level, []))
    is_test = of_level & pl.col("estimate").is_null()
    tests = verdicts.filter(is_test, attack=rule.primary, versus="non_members")
    table = tests.select(
        n_tests=pl.len(),
        n_reported=(pl.col("q_value") <= rule.q).sum(),
        smallest_q=pl.col("q_value").min(),
        n_null=pl.col("n_null").max(),
        n_without_null=(pl.col("n_null") == 0).sum(),
        n_without_p=pl.col("p_value").null_count(),
        adjustment=pl.col("adjustment").first(),
        reason=pl.col("reason").drop_nulls().mode().sort().first(),
    ).collect(engine="streaming")
    numbers = table.row(0, named=True)
    if not numbers["n_tests"]:
        return finding_rows("reported")
    adjustment = numbers.pop("adjustment")
    reason = numbers.pop("reason")
    rows = number_rows(numbers)
    rows[-1]["reason"] = reason  # the most frequent one
    rows.append(
        {
            "statistic": "q",
            "value": rule.q,
            "verdict": adjustment,
        }
    )
    return finding_rows("reported", rows, subject=rule.level)


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
    # Words at which a bucket of lengths begins, ascending
    length_edges: tuple[int, ...] = ()
    fpr: float = 0.05  # share of nulls above the threshold of the contamination rate
    seed: int = 0  # of tie draws, window patterns and permutations

    def __post_init__(self) -> None:
        windows = self.windows_per_group
        edges = [*self.length_edges]
        faults = {
            "q must lie between 0 and 1": not 0 < self.q < 1,
            "fpr must lie between 0 and 1": not 0 < self.fpr < 1,
            "windows_per_group must be at least 1": windows is not None and windows < 1,
            "seed must not be negative": self.seed < 0,
            "length_edges must ascend": edges != sorted({*edges}),
        }
        for fault, is_present in faults.items():
            if is_present:
                raise SettingsError(f"{fault}; correct the plan of verdicts")

    def digest(self) -> str:
        """SHA-256 of the fields as JSON with sorted keys and no spaces, in hexadecimal."""
        content = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return sha256(content.encode()).hexdigest()


def preregister(
    rule: DecisionRule,
    rests_on: Mapping[str, int | str] | None,
    attacks: Sequence[str],
) -> dict[str, Any]:
    """Return what is recorded before the first score; all else is exploratory."""
    # The rule's SHA-256 is not about the ``attacks``, which are tested together.
    return asdict(rule) | {
        "sha256": rule.digest(),
        "rests_on": None if rests_on is None else dict(rests_on),
        "attacks": [*attacks],
    }


_TYPES = Verdicts.create_empty().schema
_Rows = TypeVar("_Rows", pl.DataFrame, pl.LazyFrame)


class AttackScores(NamedTuple):
    """Scores of one attack, one per row of the scores table; NaN = unscored."""

    attack: str
    scores: Floats

    def is_planned(self, rule: DecisionRule, level: PlanLevel | None = None) -> bool:
        return self.attack == rule.primary and level in (None, rule.level)


def verdict_rows(height: int, **columns: Column) -> pl.DataFrame:
    return typed_rows(_TYPES, height, {"versus": "non_members"} | columns)


def withhold(
    rows: _Rows,
    reason: str,
    *,
    all_sets: bool = False,
) -> _Rows:
    """Replace p-values and estimates against non-members by why they are withheld."""
    # With ``all_sets`` those of canaries against their controls, too.
    numbers = ("p_value", "q_value", "sensitivity_bound", "value", "low", "high")
    is_withheld = (pl.col("versus") == "non_members") | all_sets
    return rows.with_columns(
        pl.when(~is_withheld).then(pl.col(*numbers)),
        reason=pl.when(is_withheld).then(pl.lit(reason)).otherwise("reason"),
    )


def typed_rows(
    types: Mapping[str, pl.DataType],
    height: int,
    columns: Mapping[str, Column],
) -> pl.DataFrame:
    """Build rows from arrays, or one value for all; NaN, or no column, becomes null."""
    series_list = []
    for name, dtype in types.items():
        value = columns.get(name)
        if value is None or isinstance(value, str | float | int):
            series = pl.Series(name, [value], dtype=dtype).new_from_index(0, height)
        else:
            series = pl.Series(name, value).cast(dtype)
            if dtype.is_float():
                series = series.fill_nan(None)
        series_list.append(series)
    return pl.DataFrame(series_list)


_ROWS_AT_ONCE = 32_768


def score_batches(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
) -> Iterator[tuple[int, Floats]]:
    """Iterate over batches: the first row's index, and finite scores, an attack a column."""
    value = pl.col(attacks).cast(pl.Float64)
    finite = scores.select(pl.when(value.is_finite()).then(value))
    start = 0
    for batch in finite.collect_batches(chunk_size=_ROWS_AT_ONCE, maintain_order=True):
        yield start, batch.to_numpy().astype(np.float64)
        start += batch.height


def read_rows(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    rows: Ints,
) -> Floats:
    """Read scores of rows in any order: a line per row, a column per attack."""
    order = rows.argsort()
    ascending = rows[order]
    values = np.empty((rows.size, len(attacks)))
    for start, batch in score_batches(scores, attacks):
        first, last = ascending.searchsorted([start, start + len(batch)])
        values[order[first:last]] = batch[ascending[first:last] - start]
    return values
