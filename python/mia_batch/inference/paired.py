"""Scores of several runs on the same targets to rows of the comparisons table."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.inference.conformal import q_values
from mia_batch.inference.findings import typed_rows
from mia_batch.schemas import Comparisons
from mia_batch.stats import Codes, Floats, intervals

_Columns = dict[str, Any]

_SETS = {"members": True, "non_members": False, "unknown": None}
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
    rows = [*_area_rows(scored, names)]
    for name, member in _SETS.items():
        own = scored.filter(pl.col("member").eq_missing(member))
        for level, kept, cluster in _levels(own, overlapping=overlapping):
            if not kept.is_empty():
                made = _mean_rows(
                    kept, cluster, names, level=level, retrained=retrained
                )
                rows += (
                    each.with_columns(set=pl.lit(name, _TYPES["set"])) for each in made
                )
        if learnt and not own.is_empty():
            made = _agreement_rows(own, names)
            rows += (
                each.with_columns(set=pl.lit(name, _TYPES["set"])) for each in made
            )
    if not rows:
        return typed_rows(_TYPES, 0, {})
    return _adjusted(_counted(pl.concat(rows), scores))


def _area_rows(scored: pl.DataFrame, names: Sequence[str]) -> Iterator[pl.DataFrame]:
    """ROC AUC of each run on the labelled targets, and its difference to the first."""
    labelled = scored.filter(pl.col("member").is_not_null())
    member = labelled["member"].to_numpy().astype(np.bool_)
    if member.all() or not member.any():
        return
    code = _codes(labelled["cluster"]).astype(np.int32)
    n_clusters = int(code.max()) + 1
    cluster = None if n_clusters == member.size else code
    about: _Columns = {"level": "set", "set": "labelled"}
    about |= {"n_targets": member.size, "n_clusters": n_clusters}
    score = [labelled[f"score_{number}"].to_numpy() for number in range(len(names))]
    for run, own in zip(names, score, strict=True):
        area, _ = intervals.estimate_auc(member, own, cluster)
        row: _Columns = {"statistic": "roc_auc", "run": run}
        row |= {"value": area.value, "reason": area.reason}
        interval = intervals.estimate_interval(area)
        yield typed_rows(
            _TYPES, 1, about | row | (interval._asdict() if interval else {})
        )
    for run, own in zip(names[1:], score[1:], strict=True):
        found = intervals.auc_difference(member, own, score[0], cluster=cluster)
        row = {"statistic": "roc_auc_difference", "run": run, "versus": names[0]}
        row |= {"value": found.value, "p_value": found.p_value, "reason": found.reason}
        limits = found.interval._asdict() if found.interval else {}
        yield typed_rows(_TYPES, 1, about | row | limits)


def _levels(
    rows: pl.DataFrame, *, overlapping: bool
) -> Iterator[tuple[str, pl.DataFrame, Codes]]:
    """Yield the targets that figures at each level are about, by ``unit``, and their clusters."""
    yield "set", rows.with_columns(unit=pl.lit(0, pl.UInt64)), _codes(rows["cluster"])
    windows = rows.filter(pl.len().over("document") > 1).with_columns(unit="document")
    alone = pl.int_range(windows.height, eager=True)
    yield "document", windows, _codes(windows["document"] if overlapping else alone)
    documents = rows.filter("grouped", pl.col("document").n_unique().over("group") > 1)
    yield "group", documents.with_columns(unit="group"), _codes(documents["document"])


def _mean_rows(
    rows: pl.DataFrame,
    cluster: Codes,
    names: Sequence[str],
    *,
    level: str,
    retrained: bool,
) -> Iterator[pl.DataFrame]:
    runs = [
        pl.col(f"score_{number}") - pl.col("score_0") for number in range(1, len(names))
    ]
    means = intervals.cluster_means(
        rows.select(runs).to_numpy(), _codes(rows["unit"]), cluster
    )
    half, p, size = means.half_widths(), means.p_values(), means.n.size
    about: _Columns = {
        "level": level,
        "unit": None if level == "set" else rows["unit"].unique().sort(),
        "versus": names[0],
        "n_targets": means.n,
        "n_clusters": means.n_clusters,
    }
    worth = [*zip(means.effective, means.enough, strict=True)]
    for at, run in enumerate(names[1:]):
        value, varies = means.value[:, at], means.covariance[:, at, at] > 0
        reasons = [
            intervals.too_few(effective) if not enough else None if differs else _EQUAL
            for (effective, enough), differs in zip(worth, varies, strict=True)
        ]
        found: _Columns = {
            "value": value,
            "low": value - half[:, at],
            "high": value + half[:, at],
        }
        row: _Columns = {
            "statistic": "mean_difference",
            "run": run,
            "p_value": p[:, at],
        }
        row |= {
            "method": "cluster_t",
            "confidence": intervals.CONFIDENCE,
            "reason": reasons,
        }
        yield typed_rows(_TYPES, size, about | found | row).with_columns(
            pl.when(pl.col("low").is_not_null()).then(pl.col("method", "confidence"))
        )
    if retrained and level == "set":
        for at, run in enumerate(names[1:-1]):
            # The last run is that of the retrained model
            pair = [
                at,
                means.value.shape[1] - 1,
            ]
            covariance = means.covariance[0][np.ix_(pair, pair)]
            share = intervals.removed_share(
                -means.value[0, pair], covariance, float(means.effective[0])
            )
            row = {"statistic": "removed_share", "run": run}
            row |= {"value": share.value, "reason": share.reason}
            limits = share.interval._asdict() if share.interval else {}
            yield typed_rows(_TYPES, 1, about | row | limits)


_REPLICATES = 1_999
_FEWEST = 20  # clusters
_NO_AGREEMENT = (
    "the reference model and the audited one do not rank these texts alike, so nothing"
    " follows from how they agree"
)


def agreement(scores: Floats, cluster: Codes) -> tuple[Floats, Floats, float | None]:
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

    def correlations(rows: Floats) -> Floats:
        ranks = rankdata(rows, axis=0)
        ranks -= ranks.mean(axis=0)
        norms = np.sqrt((ranks**2).sum(axis=0))
        with np.errstate(invalid="ignore"):  # where all are equal there is none
            return np.asarray(ranks[:, 1:].T @ ranks[:, 0] / (norms[1:] * norms[0]))

    order = np.argsort(cluster, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1)
    rng, drawn = np.random.default_rng(0), np.empty((_REPLICATES, 2))
    for row in drawn:
        chosen = rng.integers(len(parts), size=len(parts))
        row[:] = correlations(scores[np.concatenate([parts[each] for each in chosen])])
    gaps = drawn[:, 0] - drawn[:, 1]
    sides = (1 - intervals.CONFIDENCE) / 2, (1 + intervals.CONFIDENCE) / 2
    limits = np.asarray(np.nanquantile(gaps, sides), np.float64)
    if not np.nanquantile(drawn[:, 0], sides[0]) > 0:
        return correlations(scores), limits, None
    p_value = (1 + np.count_nonzero(~(gaps > 0))) / (_REPLICATES + 1)
    return correlations(scores), limits, float(p_value)


def _agreement_rows(rows: pl.DataFrame, names: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Rank correlations of the reference model and of the one that learnt, and their difference."""
    code = _codes(rows["cluster"])
    n_clusters = np.unique(code).size
    about: _Columns = {
        "level": "set",
        "n_targets": rows.height,
        "n_clusters": n_clusters,
    }
    scores = rows.select("score_0", "score_1", "score_2").to_numpy()
    if n_clusters < _FEWEST:
        why = f"{n_clusters} independent units are too few, {_FEWEST} are needed"
        row: _Columns = {"statistic": "rank_correlation_difference", "run": names[1]}
        yield typed_rows(_TYPES, 1, about | row | {"versus": names[2], "reason": why})
        return
    found, limits, p_value = agreement(scores, code)
    for name, value in zip(names[1:], found, strict=True):
        row = {
            "statistic": "rank_correlation",
            "run": name,
            "versus": names[0],
            "value": value,
        }
        yield typed_rows(_TYPES, 1, about | row)
    row = {
        "statistic": "rank_correlation_difference",
        "run": names[1],
        "versus": names[2],
    }
    row |= {
        "value": found[0] - found[1],
        "low": limits[0],
        "high": limits[1],
        "p_value": p_value,
    }
    row |= {"method": "cluster_bootstrap", "confidence": intervals.CONFIDENCE}
    row |= {"reason": _NO_AGREEMENT} if p_value is None else {}
    yield typed_rows(_TYPES, 1, about | row)


def _counted(table: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    sets = {name: pl.col("member").eq_missing(member) for name, member in _SETS.items()}
    sets["labelled"] = pl.col("member").is_not_null()
    total = scores.select(each.sum().alias(name) for name, each in sets.items()).row(
        0, named=True
    )
    missing = pl.col("set").cast(pl.String).replace_strict(total) - pl.col(
        "n_targets"
    ).cast(int)
    return table.with_columns(
        n_unscored=pl.when(level="set").then(missing).cast(_TYPES["n_unscored"])
    )


def _adjusted(table: pl.DataFrame) -> pl.DataFrame:
    tested = table["statistic"].cast(pl.String).str.ends_with("_difference")
    adjusted = np.full(table.height, np.nan)
    for kind, rows in (
        table.with_row_index().filter(tested).group_by("statistic", "level")
    ):
        p = rows["p_value"].fill_null(np.nan).to_numpy()
        adjusted[rows["index"]] = (
            intervals.holm(p) if kind[1] == "set" else q_values(p, "bh")
        )
    how = pl.when(level="set").then(pl.lit("holm")).otherwise(pl.lit("bh"))
    return table.with_columns(
        adjusted_p=pl.Series(adjusted).fill_nan(None)
    ).with_columns(
        adjustment=pl.when(pl.col("adjusted_p").is_not_null())
        .then(how)
        .cast(_TYPES["adjustment"])
    )


def _codes(names: pl.Series) -> Codes:
    codes: Codes = np.unique(names.to_numpy(), return_inverse=True)[1]
    return codes
