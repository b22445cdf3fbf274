"""What the texts tell before any model is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from mia_batch.diagnostics.blind.baseline import blind_baseline
from mia_batch.diagnostics.duplicates import count_copies, near_duplicates
from mia_batch.diagnostics.undeclared import asked_texts, undeclared_rows
from mia_batch.schemas import Findings, Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.diagnostics.blind.baseline import BlindBaseline
    from mia_batch.diagnostics.duplicates import SideDuplicates

    _Row = dict[str, object]

__all__ = ["Preflight", "check_targets"]

_MANY_COPIES = 0.01
"""Share of texts from which copies are warned of."""

_SCHEMA = Findings.create_empty().schema
_LABELLED = pl.col("role").is_in(["target", "non_member"]) & pl.col("member").is_not_null()
_TARGET = pl.col("role") == "target"


class Preflight(NamedTuple):
    """Findings, and the blind classifiers' scores and metrics of members and non-members.

    Scores of targets and nulls are in columns that begin with ``targets_``.
    """

    findings: pl.DataFrame
    blind_scores: pl.DataFrame  # empty without two sets to compare
    blind_metrics: pl.DataFrame


def check_targets(targets: pl.LazyFrame, *, seed: int) -> Preflight:
    """Compare members with non-members, targets with nulls, and texts with their copies."""
    scores = pl.DataFrame(schema={"target_id": pl.String})
    metrics: pl.DataFrame = Metrics.create_empty()
    rows: list[_Row] = []
    if _has_both(targets, pl.when(_LABELLED).then("member")):
        labelled = targets.filter(_LABELLED)
        blind = blind_baseline(labelled, seed=seed)
        scores, metrics = blind.scores, blind.metrics
        rows += _blind_rows("members", blind)
        rows += _duplicate_rows("members", near_duplicates(labelled))
    asked = targets.with_columns(asked=asked_texts(targets))
    if _has_both(asked, pl.col("asked")) and _any(targets, _TARGET & pl.col("member").is_null()):
        blind = blind_baseline(asked, label="asked", seed=seed)
        of_targets = blind.scores.rename(lambda name: name.replace("blind", "targets_blind"))
        scores = scores.join(of_targets, on="target_id", how="full", coalesce=True)
        rows += _blind_rows("targets", blind)
        rows += _duplicate_rows("targets", near_duplicates(asked, label="asked"))
    calibration = targets.filter(role="calibration")
    if _any(calibration, pl.col("member")):
        rows += _blind_rows("calibration", blind_baseline(calibration, seed=seed))
    rows += _copy_rows(targets.filter(pl.col("role") != "yardstick"))
    rows += undeclared_rows(targets)
    return Preflight(pl.DataFrame(rows, schema=_SCHEMA), scores, metrics)


def _any(table: pl.LazyFrame, which: pl.Expr) -> bool:
    return bool(table.select(which.any()).collect(engine="streaming").item())


def _has_both(table: pl.LazyFrame, label: pl.Expr) -> bool:
    return _any(table, label) and _any(table, ~label)


def _blind_rows(subject: str, blind: BlindBaseline) -> Iterator[_Row]:
    of = {"check": "blind_baseline", "subject": subject}
    yield of | {
        "statistic": "roc_auc",
        "value": blind.auc,
        "high": blind.upper,
        "p_value": blind.p_value,
        "verdict": blind.verdict,
        "reason": blind.reason,
    }
    if blind.strongest is not None:
        yield of | {"statistic": "strongest", "value": blind.auc, "verdict": blind.strongest}


def _duplicate_rows(subject: str, found: tuple[SideDuplicates, SideDuplicates]) -> Iterator[_Row]:
    of: _Row = {"check": "duplicates"}
    for name, side in zip((subject, f"not {subject}"), found, strict=True):
        counts = {
            "n_concerned": side.n_concerned,
            "n_compared": side.n_texts - side.n_short,
            "n_left_out": side.n_left_out,
            "share": side.share,
        }
        for statistic, value in counts.items():
            yield of | {"subject": name, "statistic": statistic, "value": value}
    for text, other in (*found[0].examples, *found[1].examples)[:1]:
        reason = f"for example {text} has words of {other}"
        yield of | {"subject": subject, "statistic": "example", "reason": reason}


def _copy_rows(targets: pl.LazyFrame) -> Iterator[_Row]:
    of = {"check": "duplicates", "subject": "texts"}
    n_texts, n_copies = count_copies(targets)
    many = n_copies >= max(1, _MANY_COPIES * n_texts)
    verdict = "many" if many else "few"
    yield of | {"statistic": "n_copies", "value": n_copies, "verdict": verdict}
    yield of | {"statistic": "n_texts", "value": n_texts}
