"""Scores of several runs on the same targets to rows of the comparisons table."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.inference.conformal import q_values
from mia_batch.inference.findings import typed_rows
from mia_batch.schemas import Comparisons
from mia_batch.stats import Codes, Flags, Floats, intervals

_Columns = dict[str, Any]

_SETS = {
    "members": True,
    "non_members": False,
    "unknown": None,
}
_TYPES = Comparisons.create_empty().schema | {"unit": pl.UInt64()}
_EQUAL = (
    "the difference is the same in every group of texts, so that its spread is unknown"
)


def compare_scores(
    scores: pl.DataFrame,
    names: Sequence[str],
    *,
    retrained: bool,
    overlapping: bool,
    learnt: bool = False,
) -> pl.DataFrame:
    """Compare each run with the first; the last is that of the retrained model, if any."""
    # ``scores`` has a row per target: ``score_0``, ``score_1``, ... of the runs;
    # ``cluster``, ``document`` and ``group`` as numbers, and whether it is ``grouped``.
    # Windows of a document count as independent unless they are ``overlapping``.
    columns = [f"score_{number}" for number in range(len(names))]
    scored = scores.filter(pl.all_horizontal(pl.col(columns).is_finite()))
    if scored.is_empty():
        raise SettingsError(
            "no target has a score in every run; compare runs of the same texts, or by"
            " another attack"
        )
    tables = [*_area_rows(scored, names)]
    for set_name, member in _SETS.items():
        targets = scored.filter(pl.col("member").eq_missing(member))
        set_tables = list[pl.DataFrame]()
        for level, rows, cluster in _levels(targets, overlapping=overlapping):
            if not rows.is_empty():
                set_tables += _mean_rows(
                    rows,
                    cluster,
                    names,
                    level=level,
                    retrained=retrained,
                )
        if learnt and not targets.is_empty():
            set_tables += _agreement_rows(targets, names)
        set_column = pl.lit(set_name, _TYPES["set"])
        tables += [table.with_columns(set=set_column) for table in set_tables]
    if not tables:
        return typed_rows(_TYPES, 0, {})
    return _adjust(_count_unscored(pl.concat(tables), scores))


def _area_rows(
    scored: pl.DataFrame,
    names: Sequence[str],
) -> Iterator[pl.DataFrame]:
    """ROC AUC of each run on the labelled targets, and its difference to the first."""
    labelled = scored.filter(pl.col("member").is_not_null())
    member = labelled["member"].to_numpy().astype(np.bool_)
    if member.all() or not member.any():
        return
    codes = _codes(labelled["cluster"]).astype(np.int32)
    n_clusters = int(codes.max()) + 1
    cluster = None if n_clusters == member.size else codes
    shared: _Columns = {
        "level": "set",
        "set": "labelled",
        "n_targets": member.size,
        "n_clusters": n_clusters,
    }
    scores = [labelled[f"score_{number}"].to_numpy() for number in range(len(names))]
    for run, run_scores in zip(names, scores, strict=True):
        area, _ = intervals.estimate_auc(member, run_scores, cluster)
        row: _Columns = {
            "statistic": "roc_auc",
            "run": run,
            "value": area.value,
            "reason": area.reason,
        }
        limits = _limit_columns(intervals.estimate_interval(area))
        yield typed_rows(_TYPES, 1, shared | row | limits)
    for run, run_scores in zip(names[1:], scores[1:], strict=True):
        difference = intervals.auc_difference(
            member,
            run_scores,
            scores[0],
            cluster=cluster,
        )
        row = {
            "statistic": "roc_auc_difference",
            "run": run,
            "versus": names[0],
            "value": difference.value,
            "p_value": difference.p_value,
            "reason": difference.reason,
        }
        limits = _limit_columns(difference.interval)
        yield typed_rows(_TYPES, 1, shared | row | limits)


def _limit_columns(interval: intervals.Interval | None) -> _Columns:
    return interval._asdict() if interval else {}


def _levels(
    rows: pl.DataFrame,
    *,
    overlapping: bool,
) -> Iterator[tuple[str, pl.DataFrame, Codes]]:
    """Iterate over levels, with the targets of each by ``unit``, and their clusters."""
    yield "set", rows.with_columns(unit=pl.lit(0, pl.UInt64)), _codes(rows["cluster"])
    windows = rows.filter(pl.len().over("document") > 1).with_columns(unit="document")
    clusters = pl.int_range(windows.height, eager=True)
    if overlapping:
        clusters = windows["document"]
    yield "document", windows, _codes(clusters)
    has_several = pl.col("document").n_unique().over("group") > 1
    documents = rows.filter("grouped", has_several).with_columns(unit="group")
    yield "group", documents, _codes(documents["document"])


def _mean_rows(
    rows: pl.DataFrame,
    cluster: Codes,
    names: Sequence[str],
    *,
    level: str,
    retrained: bool,
) -> Iterator[pl.DataFrame]:
    differences = [
        pl.col(f"score_{number}") - pl.col("score_0") for number in range(1, len(names))
    ]
    means = intervals.cluster_means(
        rows.select(differences).to_numpy(),
        _codes(rows["unit"]),
        cluster,
    )
    half_widths = means.half_widths()
    p_values = means.p_values()
    shared: _Columns = {
        "level": level,
        "unit": None if level == "set" else rows["unit"].unique().sort(),
        "versus": names[0],
        "n_targets": means.n,
        "n_clusters": means.n_clusters,
    }
    for index, run in enumerate(names[1:]):
        value = means.value[:, index]
        half_width = half_widths[:, index]
        row: _Columns = {
            "statistic": "mean_difference",
            "run": run,
            "value": value,
            "low": value - half_width,
            "high": value + half_width,
            "p_value": p_values[:, index],
            "method": "cluster_t",
            "confidence": intervals.CONFIDENCE,
            "reason": _why_no_limits(means, means.covariance[:, index, index] > 0),
        }
        has_limits = pl.when(pl.col("low").is_not_null())
        yield typed_rows(_TYPES, means.n.size, shared | row).with_columns(
            has_limits.then(pl.col("method", "confidence"))
        )
    if retrained and level == "set":
        last = means.value.shape[1] - 1  # that of the retrained model
        for index, run in enumerate(names[1:-1]):
            pair = [index, last]
            share = intervals.removed_share(
                -means.value[0, pair],
                means.covariance[0][np.ix_(pair, pair)],
                float(means.effective[0]),
            )
            row = {
                "statistic": "removed_share",
                "run": run,
                "value": share.value,
                "reason": share.reason,
            }
            yield typed_rows(_TYPES, 1, shared | row | _limit_columns(share.interval))


def _why_no_limits(
    means: intervals.Means,
    varies: Flags,
) -> list[str | None]:
    reasons = list[str | None]()
    for n_effective, is_enough, differs in zip(
        means.effective,
        means.enough,
        varies,
        strict=True,
    ):
        reason = None if differs else _EQUAL
        reasons.append(reason if is_enough else intervals.too_few(n_effective))
    return reasons


_REPLICATES = 1_999
_FEWEST = 20  # clusters
_NO_AGREEMENT = (
    "the reference model and the audited one do not rank these texts alike, so nothing"
    " follows from how they agree"
)


def agreement(
    scores: Floats,
    cluster: Codes,
) -> tuple[Floats, Floats, float | None]:
    r"""Test whether a model ranks texts more like a model that never saw them than like its copy.

    ``scores`` has a line per text: of the audited model T, of a reference model R that
    cannot have seen the texts, and of D, which is R after it learnt them. Returned are
    Spearman's correlations of R and of D with T and the p-value of \(\Delta = \rho(R,
    T) - \rho(D, T) > 0\), the share of bootstrap samples of whole clusters with
    \(\Delta \le 0\), the real one counted as such; and 95 % percentile limits of
    \(\Delta\).

    Shetty, Haque, Ma and Liu (2026), arXiv:2603.22707 (PRISM), whose formula is taken
    from its abstract and a summary: there D is tuned on the texts while it is distilled
    from T, and scores are Min-K%++ with k = 1. A small p-value supports that T never
    learnt the texts, so far as a T that had would agree with D at least as well as with
    R. No figure shows that: where T and D remember different ones of the texts, learnt
    texts pass the test (simulated in the tests). The p-value is None where the lower
    limit of \(\rho(R, T)\) is not above 0: where R and T rank the texts differently,
    that D and T do so even more is no sign of anything.
    """
    from scipy.stats import rankdata

    def correlate(rows: Floats) -> Floats:
        ranks = rankdata(rows, axis=0)
        ranks -= ranks.mean(axis=0)
        norms = np.sqrt((ranks**2).sum(axis=0))
        with np.errstate(invalid="ignore"):  # where all are equal there is none
            return np.asarray(ranks[:, 1:].T @ ranks[:, 0] / (norms[1:] * norms[0]))

    order = np.argsort(cluster, kind="stable")
    ends = np.flatnonzero(np.diff(cluster[order])) + 1
    clusters = np.split(order, ends)
    rng = np.random.default_rng(0)
    replicates = np.empty((_REPLICATES, 2))
    for replicate in replicates:
        numbers = rng.integers(len(clusters), size=len(clusters))
        rows = np.concatenate([clusters[number] for number in numbers])
        replicate[:] = correlate(scores[rows])
    gaps = replicates[:, 0] - replicates[:, 1]
    tail = (1 - intervals.CONFIDENCE) / 2
    sides = (tail, (1 + intervals.CONFIDENCE) / 2)
    limits = np.asarray(np.nanquantile(gaps, sides), np.float64)
    if not np.nanquantile(replicates[:, 0], tail) > 0:
        return correlate(scores), limits, None
    n_not_above = np.count_nonzero(~(gaps > 0))
    p_value = (1 + n_not_above) / (_REPLICATES + 1)
    return correlate(scores), limits, float(p_value)


def _agreement_rows(
    rows: pl.DataFrame,
    names: Sequence[str],
) -> Iterator[pl.DataFrame]:
    """Rank correlations of the reference model and its copy, and their difference."""
    codes = _codes(rows["cluster"])
    n_clusters = np.unique(codes).size
    shared: _Columns = {
        "level": "set",
        "n_targets": rows.height,
        "n_clusters": n_clusters,
    }
    difference: _Columns = {
        "statistic": "rank_correlation_difference",
        "run": names[1],
        "versus": names[2],
    }
    if n_clusters < _FEWEST:
        difference["reason"] = (
            f"{n_clusters} independent units are too few, {_FEWEST} are needed"
        )
        yield typed_rows(_TYPES, 1, shared | difference)
        return
    scores = rows.select("score_0", "score_1", "score_2").to_numpy()
    correlations, limits, p_value = agreement(scores, codes)
    for run, correlation in zip(names[1:], correlations, strict=True):
        row = {
            "statistic": "rank_correlation",
            "run": run,
            "versus": names[0],
            "value": correlation,
        }
        yield typed_rows(_TYPES, 1, shared | row)
    difference |= {
        "value": correlations[0] - correlations[1],
        "low": limits[0],
        "high": limits[1],
        "p_value": p_value,
        "method": "cluster_bootstrap",
        "confidence": intervals.CONFIDENCE,
        "reason": _NO_AGREEMENT if p_value is None else None,
    }
    yield typed_rows(_TYPES, 1, shared | difference)


def _count_unscored(
    table: pl.DataFrame,
    scores: pl.DataFrame,
) -> pl.DataFrame:
    sets = {name: pl.col("member").eq_missing(member) for name, member in _SETS.items()}
    sets["labelled"] = pl.col("member").is_not_null()
    sizes = scores.select(in_set.sum().alias(name) for name, in_set in sets.items())
    total = pl.col("set").cast(pl.String).replace_strict(sizes.row(0, named=True))
    missing = total - pl.col("n_targets").cast(int)
    return table.with_columns(
        n_unscored=pl.when(level="set").then(missing).cast(_TYPES["n_unscored"])
    )


def _adjust(table: pl.DataFrame) -> pl.DataFrame:
    """Adjust p-values of differences: of sets by Holm, of other levels by BH."""
    is_test = table["statistic"].cast(pl.String).str.ends_with("_difference")
    adjusted = np.full(table.height, np.nan)
    families = table.with_row_index().filter(is_test).group_by("statistic", "level")
    for (_, level), rows in families:
        p = rows["p_value"].fill_null(np.nan).to_numpy()
        is_set = level == "set"
        adjusted[rows["index"]] = intervals.holm(p) if is_set else q_values(p, "bh")
    method = pl.when(level="set").then(pl.lit("holm")).otherwise(pl.lit("bh"))
    is_adjusted = pl.col("adjusted_p").is_not_null()
    adjusted_p = pl.Series(adjusted).fill_nan(None)
    return table.with_columns(adjusted_p=adjusted_p).with_columns(
        adjustment=pl.when(is_adjusted).then(method).cast(_TYPES["adjustment"])
    )


def _codes(names: pl.Series) -> Codes:
    codes: Codes = np.unique(names.to_numpy(), return_inverse=True)[1]
    return codes
