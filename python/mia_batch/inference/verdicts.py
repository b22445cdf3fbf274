"""Scores to verdicts where membership is unknown: p-values, lists and estimates, by attack."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from mia_batch.errors import RequestError, SettingsError
from mia_batch.inference import comparison, conformal
from mia_batch.inference.e_values import RoundsTest
from mia_batch.inference.estimates import ContaminationTest
from mia_batch.inference.findings import (
    AttackScores,
    DecisionRule,
    finding_rows,
    number_rows,
    plain_difference,
    reported_findings,
    verdict_rows,
)
from mia_batch.inference.power import (
    LEVEL,
    Power,
    compute_power,
    least_p,
    nulls_to_name,
    power_from_p_values,
)
from mia_batch.inference.sets import needed_for_bound
from mia_batch.stats import Flags, Floats, Ints
from mia_batch.stats.intervals import Folds, deal_folds, effective_number, is_enough
from mia_batch.tables import read_finite

_Test = Callable[[AttackScores], Iterable[pl.DataFrame]]
_ROWS_AT_ONCE = 65_536


class _Bucket(NamedTuple):
    """Targets and the nulls of like length, by their index in the comparison set, ascending."""

    targets: Ints
    nulls: Ints
    weights: Floats | None  # of these nulls, where nulls share clusters or have odds
    n_null: int  # independent units: clusters where nulls share them, else texts

    @property
    def total(self) -> float:
        """The sum of the nulls' weights."""
        return float(self.nulls.size if self.weights is None else self.weights.sum())


def _length_buckets(
    sets: comparison.ComparisonSets,
    edges: tuple[int, ...],
    odds: Floats | None,
) -> Iterator[_Bucket]:
    """Sort targets and nulls by length, into buckets that have targets."""
    # A target of unknown length is in none; a null of unknown length, which counts as
    # higher than everything, is in all.
    lengths = sets.n_words.cast(pl.Float64).to_numpy()
    buckets = np.searchsorted(edges, lengths, side="right")
    is_unknown = np.isnan(lengths) if edges else np.zeros(lengths.size, np.bool_)
    nulls_share = sets.share_clusters(sets.nulls)
    for bucket in range(len(edges) + 1):
        in_bucket = buckets == bucket
        targets = np.flatnonzero((in_bucket & ~is_unknown)[sets.targets])
        if not targets.size:
            continue
        nulls = np.flatnonzero((in_bucket | is_unknown)[sets.nulls])
        clusters = sets.cluster[sets.nulls][nulls]
        weights = None
        n_null = nulls.size
        if nulls_share:
            weights = conformal.shared_weights(clusters)
            n_null = np.unique(clusters).size
        if odds is not None:
            weights = conformal.shared_weights(clusters) * odds[sets.nulls][nulls]
            n_null = 0
            if nulls.size:
                n_null = int(effective_number(np.bincount(clusters, weights)))
        yield _Bucket(targets, nulls, weights, n_null)


class Odds(NamedTuple):
    """Odds of each text, or of its group, of being audited; 1 on average over the nulls."""

    by_row: Floats  # of the table; NaN where there is no blind score, or no set
    n_null: int  # independent nulls: texts, or groups where texts share them
    n_effective: float
    auc: float  # of a second classifier, targets against weighted nulls
    reason: str | None  # why there can be no answer with these weights

    def select(self, rows: Ints) -> Floats:
        return np.full(rows.size, np.nan) if self.reason else self.by_row[rows]


class TargetTest:
    """Tests of each target, prepared once for all attacks."""

    # Where texts share a cluster, their p-values depend on each other in unknown ways,
    # and q-values are Benjamini-Yekutieli's, whatever the rule says. With ``odds``
    # q-values are those of `weighted_q_values` where these are proved to hold.

    adjustment: conformal.Adjustment
    n_null: int  # independent nulls of the bucket that has the most

    def __init__(
        self,
        sets: comparison.ComparisonSets,
        rule: DecisionRule,
        odds: Odds | None = None,
    ) -> None:
        is_dependent = sets.share_clusters(sets.targets, sets.nulls)
        self.adjustment = "by" if is_dependent else rule.adjustment
        nulls_share = sets.share_clusters(sets.nulls)
        self._method = "conformal_groups" if nulls_share else "conformal"
        self._weights = np.ones(sets.targets.size)
        self._why_no_weight = None
        odds_by_row = None
        if odds is not None:
            odds_by_row = odds.by_row
            self._weights = odds.select(sets.targets)
            self._why_no_weight = odds.reason or conformal.NO_WEIGHT
            has_weight = ~np.isnan(odds_by_row[sets.nulls])
            sets = replace(sets, nulls=sets.nulls[has_weight])
            self._method = f"weighted_{self._method}"
        self._sets = sets
        self._rule = rule
        self._buckets = list(_length_buckets(sets, rule.length_edges, odds_by_row))
        if odds is not None and len(self._buckets) > 1:
            self.adjustment = "by"
        self._selects = odds is not None and self.adjustment == "bh"
        self._null_total = sum(bucket.total for bucket in self._buckets)
        self.n_null = max((bucket.n_null for bucket in self._buckets), default=0)
        self._draws = None
        if rule.ties == "random" and odds is None:
            self._draws = conformal.tie_draws(sets.target_id, rule.seed)

    def rows(self, attack_scores: AttackScores) -> Iterator[pl.DataFrame]:
        """Iterate over verdicts on all targets in the table's order; at least one frame."""
        rows = self._sets.targets
        scores = attack_scores.scores[rows]
        p, n_null = self.p_values(attack_scores.scores)
        columns: dict[str, pl.Series | Floats] = {
            "key": self._sets.target_id[rows],
            "score": scores,
            "n_null": n_null,
            "p_value": p,
            "q_value": self._q_values(scores, p),
            "sensitivity_bound": conformal.sensitivity_bound(p),
            "reason": self._reasons(scores, p),
        }
        for start in range(0, max(rows.size, 1), _ROWS_AT_ONCE):
            batch = {
                name: column[start : start + _ROWS_AT_ONCE]
                for name, column in columns.items()
            }
            yield verdict_rows(
                len(batch["key"]),
                attack=attack_scores.attack,
                level="target",
                planned=attack_scores.is_planned(self._rule, "target"),
                adjustment="wcs" if self._selects else self.adjustment,
                method=self._method,
                **batch,
            )

    def p_values(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return the p-value of each target, and on how many independent nulls it rests."""
        p = np.full(self._sets.targets.size, np.nan)
        n_null = np.zeros(self._sets.targets.size)
        for bucket in self._buckets:
            targets = self._sets.targets[bucket.targets]
            nulls = self._sets.nulls[bucket.nulls]
            ties = None
            if self._draws is not None:
                ties = conformal.TieDraws(self._draws[targets], self._draws[nulls])
            p[bucket.targets] = conformal.p_values(
                scores[targets],
                scores[nulls],
                weights=bucket.weights,
                score_weights=self._weights[bucket.targets],
                ties=ties,
            )
            n_null[bucket.targets] = bucket.n_null
        return p, n_null

    def _q_values(self, scores: Floats, p: Floats) -> Floats:
        if not self._selects:
            return conformal.q_values(p, self.adjustment)
        return conformal.weighted_q_values(
            scores,
            p,
            self._weights,
            self._null_total,
            self._rule.q,
            self._sets.target_id,
            self._rule.seed,
        )

    def _reasons(self, scores: Floats, p: Floats) -> pl.Series:
        is_missing = pl.DataFrame(
            {
                "score": np.isnan(scores),
                "weight": np.isnan(self._weights),
                "p": np.isnan(p),
            }
        )
        in_no_bucket = (
            "the target's number of words is unknown, so it is in no bucket of lengths"
        )
        reason = (
            pl.when("score")
            .then(pl.lit("the target has no score"))
            .when("weight")
            .then(pl.lit(self._why_no_weight))
            .when("p")
            .then(pl.lit(in_no_bucket))
        )
        return is_missing.select(reason).to_series()


_NO_ODDS_OF_AUTHORS = "several texts are by one author, and authors cannot be weighted"


class GroupTest:
    """Tests of each group and of the collection, prepared once for all attacks."""

    # A group is a cluster: a ``group``, else a document. Null groups with too few
    # windows are left out, for their number is known before scores are seen; audited
    # ones with too few have no p-value and stay in the number of tests.

    def __init__(
        self,
        sets: comparison.ComparisonSets,
        rule: DecisionRule,
        odds: Odds | None = None,
    ) -> None:
        self._rule = rule
        n_windows = comparison.windows_per_group(sets, rule)
        self.n_windows = n_windows
        self.groups = comparison.cut_units(sets, sets.targets, n_windows, rule.seed)
        self.nulls = comparison.cut_units(sets, sets.nulls, n_windows, rule.seed)
        level = pl.col("level").replace({"target": "document"})
        self._names = sets.clusters[self.groups.cluster].with_columns(level=level)
        self._weights = np.ones(self.groups.sizes.size)
        self._null_weights = None
        self._why_no_weight = None
        self._n_null = int(self.nulls.usable.sum())
        self._adjustment = str(rule.adjustment)
        self._method = f"conformal_{rule.statistic}_of_{n_windows}"
        if odds is not None:
            weights = odds.select(self.groups.windows[:, 0])
            self._weights[self.groups.usable] = weights
            null_weights = odds.by_row[self.nulls.windows[:, 0]]
            self._null_weights = np.nan_to_num(null_weights)
            self._why_no_weight = odds.reason or conformal.NO_WEIGHT
            self._n_null = int(odds.n_effective)
            self._adjustment = "wcs" if rule.adjustment == "bh" else "by"
            self._method = f"weighted_{self._method}"
        self._independent = comparison.independent_units(
            sets,
            (sets.targets, sets.nulls),
            n_windows,
            rule.seed,
        )
        self.ties = None
        if rule.ties == "random" and odds is None:
            names = self._names.filter(self.groups.usable)
            null_names = sets.clusters[self.nulls.cluster[self.nulls.usable]]
            self.ties = conformal.TieDraws(
                _draw_ties(names, rule.seed),
                _draw_ties(null_names, rule.seed),
            )

    def rows(self, attack_scores: AttackScores) -> Iterator[pl.DataFrame]:
        rule = self._rule
        usable = self.groups.usable
        scores = np.full(usable.size, np.nan)
        scores[usable] = self.groups.statistics(attack_scores.scores, rule)
        nulls = self.nulls.statistics(attack_scores.scores, rule)
        p = conformal.p_values(
            scores,
            nulls,
            weights=self._null_weights,
            score_weights=self._weights,
        )
        if self.ties is not None:
            p[usable] = conformal.p_values(scores[usable], nulls, ties=self.ties)
        yield verdict_rows(
            scores.size,
            attack=attack_scores.attack,
            level=self._names["level"],
            key=self._names["key"],
            planned=attack_scores.is_planned(rule, "group"),
            score=scores,
            n_null=self._n_null,
            p_value=p,
            q_value=self._q_values(scores, p),
            adjustment=self._adjustment,
            sensitivity_bound=conformal.sensitivity_bound(p),
            method=self._method,
            reason=self._reasons(scores),
        )
        yield self._collection_rows(attack_scores, scores[usable], nulls)

    def _q_values(self, scores: Floats, p: Floats) -> Floats:
        rule = self._rule
        if self._null_weights is None or rule.adjustment == "by":
            return conformal.q_values(p, rule.adjustment)
        return conformal.weighted_q_values(
            scores,
            p,
            self._weights,
            float(self._null_weights.sum()),
            rule.q,
            self._names["key"],
            rule.seed,
        )

    def _collection_rows(
        self,
        attack_scores: AttackScores,
        scores: Floats,
        nulls: Floats,
    ) -> pl.DataFrame:
        reason = None
        odds = None
        if self._null_weights is not None:
            weights = self._weights[self.groups.usable]
            odds = np.concatenate([weights, self._null_weights])
            reason = None if (odds > 0).all() else self._why_no_weight
        n_null = self._n_null
        prefix = ""
        if self._independent.by_author:
            reason = self._independent.reason
            if odds is not None:
                reason = reason or _NO_ODDS_OF_AUTHORS
            scores, nulls = (
                units.statistics(attack_scores.scores, self._rule)
                for units in self._independent.units
            )
            n_null = nulls.size
            prefix = "authors_"
        if reason is None and not (scores.size and nulls.size):
            empty_set = "audited" if nulls.size else "null"
            reason = f"no {empty_set} group has {self.n_windows} windows"
        result: dict[str, Any] = {"reason": reason}
        if reason is None:
            test = comparison.collection_test(scores, nulls, self._rule.seed, odds)
            result = {
                "score": test.score,
                "p_value": test.p_value,
                "method": f"{prefix}{test.method}",
            }
        return verdict_rows(
            1,
            attack=attack_scores.attack,
            level="collection",
            planned=attack_scores.is_planned(self._rule, "collection"),
            n_null=n_null,
            **result,
        )

    def _reasons(self, scores: Floats) -> list[str | None]:
        reasons = self.groups.why_unusable()
        for place, reason in enumerate(reasons):
            if reason is None and np.isnan(scores[place]):
                reasons[place] = "one of the group's windows has no score"
            elif reason is None and np.isnan(self._weights[place]):
                reasons[place] = self._why_no_weight
        return reasons


def _draw_ties(names: pl.DataFrame, seed: int) -> Floats:
    keys = (f"{level} {key}" for level, key in names.iter_rows())
    return conformal.tie_draws(keys, seed)


# What the planned test can show at best.

_BOOK = r"\.(txt|epub|x?html?)$"  # a book's group is the name of its file
_MOST_NAMED = 5  # as many as a user may hope for


def planned_power(targets: pl.LazyFrame, rule: DecisionRule) -> Power | None:
    with_names = rule.level != "target"
    sets = comparison.read_comparison_sets(targets, with_names=with_names)
    if not (sets.targets.size and sets.nulls.size):
        return None
    n_windows = comparison.windows_per_group(sets, rule)
    usable, usable_nulls = (
        np.unique(sets.cluster[rows], return_counts=True)[1] >= n_windows
        for rows in (sets.targets, sets.nulls)
    )
    n_groups = int(usable.sum())
    n_null = int(usable_nulls.sum())
    unit = "text"
    if rule.level == "target":
        test = TargetTest(sets, rule)
        best_scores = np.ones(sets.target_id.len())
        best_scores[sets.nulls] = 0
        smallest, _ = test.p_values(best_scores)
        power = power_from_p_values(smallest, test.n_null, rule.q, test.adjustment)
        shares_clusters = sets.share_clusters(sets.targets, sets.nulls)
        is_independent = not (rule.length_edges or shares_clusters)
        n_windows = 1
    else:
        names = sets.clusters[np.unique(sets.cluster[sets.targets])]
        unit = "book" if names["key"].str.contains(_BOOK).all() else "group"
        unit = "document" if (names["level"] != "group").all() else unit
        smallest_p = least_p(n_null, rule.q, rule.adjustment)
        smallest = np.where(usable, smallest_p, np.nan)
        power = power_from_p_values(smallest, n_null, rule.q, rule.adjustment)
        is_independent = n_null > 0
    row_sets = (sets.targets, sets.nulls)
    independent = comparison.independent_units(sets, row_sets, n_windows, rule.seed)
    if independent.by_author:
        is_independent = False
        n_groups, n_null = (int(units.usable.sum()) for units in independent.units)
        n_groups = 0 if independent.reason else n_groups
        if rule.level == "collection":
            unit = "author"
            n_authors = independent.units[0].sizes.size
            power = replace(power, n_tests=n_authors, n_usable=n_groups, n_null=n_null)
    for_bound = None
    if is_independent:
        for_bound = needed_for_bound(power.n_tests, int(power.n_null))
    together = 1 / comparison.n_orders(n_groups, n_null)
    return replace(power, unit=unit, together=together, for_bound=for_bound)


def power_findings(targets: pl.LazyFrame, rule: DecisionRule) -> pl.DataFrame:
    """Rows of check ``power`` about the planned level; none without targets or nulls."""
    # With ``nulls_needed`` nulls ``n_named`` that beat all of them are reported, or a
    # collection's p-value can be 0.05.
    power = planned_power(targets, rule)
    if power is None:
        return finding_rows("power")
    has_buckets = rule.level == "target" and rule.length_edges
    possible = {True: "possible", False: "impossible"}
    numbers: list[tuple[str, float | None, str | None]] = [
        ("n_tests", power.n_tests, power.unit),
        ("n_usable", power.n_usable, None),
        ("n_null", power.n_null, "of_one_length" if has_buckets else None),
        ("together", power.together, possible[power.together <= LEVEL]),
    ]
    nulls_needed: int | None = None
    if rule.level != "collection":
        n_named = min(_MOST_NAMED, power.n_usable)
        if power.needed and power.needed <= n_named:
            n_named = 1
        if n_named:
            nulls_needed = nulls_to_name(
                n_named,
                power.n_tests,
                rule.q,
                power.adjustment,
            )
        numbers += [
            ("smallest_p", power.smallest_p, None),
            ("q", rule.q, power.adjustment),
            ("needed", power.needed, possible[power.needed is not None]),
            ("for_bound", power.for_bound, possible[power.for_bound is not None]),
            ("n_named", n_named, None),
        ]
    elif power.n_usable:
        nulls_needed = next(
            n for n in count(1) if comparison.n_orders(power.n_usable, n) * LEVEL >= 1
        )
    numbers.append(("nulls_needed", nulls_needed, None))
    rows = [
        {
            "statistic": name,
            "value": number,
            "verdict": verdict,
        }
        for name, number, verdict in numbers
    ]
    return finding_rows("power", rows, subject=rule.level)


# Nulls weighted by their odds of being audited, where texts alone tell them from the
# targets. The assumption: targets and nulls differ only in what the blind classifiers
# have learned to see.

_N_FOLDS = 5
# AUC up to which weighted sets count as alike; above it the blind baseline can be
# separable.
_ALIKE_BELOW = 0.55


def weigh(
    sets: comparison.ComparisonSets,
    blind: pl.DataFrame,
    rule: DecisionRule,
    *,
    groups: bool,
) -> Odds:
    r"""Estimate the odds of texts, or of whole groups, from the blind classifiers' scores.

    Their normal scores, of a group the means over its texts, go into a logistic
    regression, cross-fitted by group. Nulls of these weights are worth \((\sum w)^2 /
    \sum w^2\) of equal weight (Kish 1965). There is no answer where so many could not
    report anything, or where sets are still not alike: where a second classifier,
    cross-fitted with squares and weights, has an AUC above 0.55.
    """
    from sklearn.metrics import roc_auc_score

    rows = np.concatenate([sets.targets, sets.nulls])
    scores = _normal_scores(sets, blind)[rows]
    is_audited = np.isin(rows, sets.targets)
    key = 2 * sets.cluster[rows] + is_audited if groups else np.arange(rows.size)
    is_scored = ~np.isnan(scores).any(axis=1)
    units, first, unit, sizes = np.unique(
        key[is_scored], return_index=True, return_inverse=True, return_counts=True
    )
    features = np.column_stack(
        [np.bincount(unit, column) / sizes for column in scores[is_scored].T]
    )
    features /= np.maximum(features.std(axis=0), 1e-9)
    label = is_audited[is_scored][first]
    cluster = _number_by_appearance(sets.cluster[rows][is_scored][first])
    rng = np.random.default_rng(rule.seed)
    folds = deal_folds(label, cluster, n_folds=_N_FOLDS, generator=rng)
    odds = np.exp(_log_odds(features, label, folds))
    odds /= odds[~label].mean()
    weights = np.where(label, (~label).sum() / label.sum(), odds)
    with_squares = np.hstack([features, features**2])
    log_odds = _log_odds(with_squares, label, folds, weights)
    auc = float(roc_auc_score(label, log_odds, sample_weight=weights))
    null_clusters = cluster[~label]
    null_weights = odds[~label] * conformal.shared_weights(null_clusters)
    n_effective = effective_number(np.bincount(null_clusters, null_weights))
    place = np.minimum(units.searchsorted(key), units.size - 1)
    by_row = np.full(sets.target_id.len(), np.nan)
    by_row[rows] = np.where(units[place] == key, odds[place], np.nan)
    n_tests = np.unique(key[is_audited]).size
    is_dependent = not groups and sets.share_clusters(sets.targets, sets.nulls)
    adjustment = "by" if is_dependent else rule.adjustment
    reason = _why_no_answer(n_effective, auc, n_tests, rule, adjustment)
    n_null = np.unique(null_clusters).size
    return Odds(by_row, n_null, n_effective, auc, reason)


def _normal_scores(sets: comparison.ComparisonSets, blind: pl.DataFrame) -> Floats:
    """Return the blind scores of all rows as normal quantiles, a column per classifier."""
    from scipy.special import ndtri

    keys = pl.DataFrame({"target_id": sets.target_id})
    joined = keys.join(blind, on="target_id", how="left", maintain_order="left")
    shares = joined.drop("target_id").to_numpy()
    return np.asarray(ndtri(shares.astype(np.float64)), np.float64)


def _number_by_appearance(clusters: Ints) -> Ints:
    """Return clusters numbered by their first texts: folds must not depend on names."""
    _, first, cluster = np.unique(clusters, return_index=True, return_inverse=True)
    return first.argsort().argsort()[cluster]


def _log_odds(
    features: Floats,
    label: Flags,
    folds: Folds,
    weights: Floats | None = None,
) -> Floats:
    from sklearn import config_context
    from sklearn.linear_model import LogisticRegression

    log_odds = np.empty(label.size)
    model = LogisticRegression(solver="newton-cholesky")
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for fold in range(folds.n_folds):
            in_fold = folds.fold_of_text == fold
            fold_weights = None if weights is None else weights[~in_fold]
            model.fit(features[~in_fold], label[~in_fold], fold_weights)
            log_odds[in_fold] = model.decision_function(features[in_fold])
    return log_odds


def _why_no_answer(
    n_effective: float,
    auc: float,
    n_tests: int,
    rule: DecisionRule,
    adjustment: conformal.Adjustment,
) -> str | None:
    """Return why nothing can be concluded with weighted nulls; None where it can."""
    if rule.adjustment == "e-bh":
        return "groups that are asked in rounds cannot be weighted"
    if rule.level == "collection":
        can_report = bool(is_enough(n_effective))
    else:
        power = compute_power(n_tests, n_effective, rule.q, adjustment)
        can_report = power.needed is not None
    if not can_report:
        return (
            "too few non-members are like the targets: weighted, they count as"
            f" {n_effective:.1f}, with which nothing can be reported"
        )
    if auc > _ALIKE_BELOW:
        return (
            "weighted non-members can still be told from targets without the model"
            f" (AUC {auc:.2f})"
        )
    return None


def weight_findings(
    targets: pl.LazyFrame,
    blind: pl.DataFrame,
    findings: pl.DataFrame,
    rule: DecisionRule,
) -> pl.DataFrame:
    """Rows of check ``weights`` about the planned level; none unless targets were compared."""
    baseline = findings.filter(
        check="blind_baseline",
        subject="targets",
        statistic="roc_auc",
    )
    if baseline.is_empty():
        return finding_rows("weights")
    is_separable = baseline["verdict"][0] == "separable"
    if not is_separable and plain_difference(findings) is None:
        row = {"statistic": "n_effective", "verdict": "not_needed"}
        return finding_rows("weights", [row], subject=rule.level)
    sets = comparison.read_comparison_sets(targets)
    odds = weigh(sets, blind, rule, groups=rule.level != "target")
    main = {
        "statistic": "n_effective",
        "value": odds.n_effective,
        "verdict": "no_overlap" if odds.reason else "used",
        "reason": odds.reason,
    }
    rows = [main, *number_rows({"n_null": odds.n_null, "roc_auc": odds.auc})]
    return finding_rows("weights", rows, subject=rule.level)


# Canaries: published texts drawn by lot from committed sets, so that the null is exact.


def canary_p_value(published: float, controls: Floats) -> float:
    """p-value of one set: (1 + controls that score as high) / (1 + controls); NaN if unscored."""
    # The draw alone makes it valid. An unscored control (NaN) counts as higher.
    if np.isnan(published):
        return float("nan")
    n_as_high = np.count_nonzero(~(controls < published))
    return float((1 + n_as_high) / (1 + controls.size))


_MOST_SUMS = 1 << 16


def aligned_ranks(sets: Sequence[tuple[float, Floats]]) -> list[Floats]:
    """Rank the texts of all sets together, each less the mean of its set; ties share a mean rank.

    The published text of a set comes first. Hodges and Lehmann (1962), "Rank methods
    for combination of independent experiments": sets that differ more from within weigh
    more, and of pairs it is Wilcoxon's signed-rank test. An unscored published text has
    the lowest rank, unscored controls the highest.
    """
    from scipy.stats import rankdata

    aligned = []
    for published, controls in sets:
        scores = np.append(published, controls)
        is_missing = np.isnan(scores)
        scored = scores[~is_missing]
        centre = scored.mean() if scored.size else 0
        is_control = np.arange(scores.size) > 0
        extremes = np.where(is_control, np.inf, -np.inf)
        aligned.append(np.where(is_missing, extremes, scores - centre))
    ends = np.cumsum([scores.size for scores in aligned])[:-1]
    # Rounded, so that differences that are equal but for the last digits are ties.
    rounded = np.round(np.concatenate(aligned), 9)
    return list(np.split(rankdata(rounded), ends))


def rank_sum_p_value(sets: Sequence[Floats]) -> float:
    """p-value of all committed sets together: the sum of the published texts' ranks, exact."""
    # Given which scores each set has, its published text is equally likely to have any
    # of them, whatever happens in other sets, so the distribution of the sum is the
    # convolution of theirs. This is the published texts' rank among all draws that
    # could have been. Where there are too many sums, ranks are made coarser, by the
    # same steps for all texts.
    largest = 2 * sum(float(ranks.max()) for ranks in sets)
    step = max(1.0, largest / _MOST_SUMS)
    distribution = np.ones(1)
    observed = 0
    for ranks in sets:
        steps = (2 * ranks / step).astype(np.int64)
        steps -= steps.min()
        observed += int(steps[0])
        sums = np.zeros(distribution.size + int(steps.max()))
        for shift, n in zip(*np.unique(steps, return_counts=True), strict=True):
            share = n / ranks.size
            sums[shift : shift + distribution.size] += share * distribution
        distribution = sums
    return float(min(1.0, distribution[observed:].sum()))


class CanaryTest:
    """Tests of each committed set and of all together, prepared once for all attacks."""

    def __init__(self, sets: comparison.ComparisonSets, rule: DecisionRule) -> None:
        self._rule = rule
        self._names = list[str]()
        self._places = list[tuple[int, Ints]]()  # rows: the published one, its controls
        published_clusters = sets.cluster[sets.published]
        control_clusters = sets.cluster[sets.controls]
        clusters = np.unique(np.concatenate([published_clusters, control_clusters]))
        for cluster in clusters:
            published = sets.published[published_clusters == cluster]
            controls = sets.controls[control_clusters == cluster]
            name = sets.clusters["key"][int(cluster)]
            if published.size != 1 or not controls.size:
                raise RequestError(
                    f"the canary set {name!r} has {published.size} published texts and"
                    f" {controls.size} unpublished controls; give one published text"
                    " and all its controls, each as one target"
                )
            self._names.append(name)
            self._places.append((int(published[0]), controls))

    def rows(self, attack_scores: AttackScores) -> Iterator[pl.DataFrame]:
        scores = [
            (attack_scores.scores[published], attack_scores.scores[controls])
            for published, controls in self._places
        ]
        p = np.array([canary_p_value(*set_scores) for set_scores in scores])
        unscored = "the published text has no score"
        shared: dict[str, Any] = {
            "attack": attack_scores.attack,
            "versus": "controls",
            "planned": attack_scores.is_planned(self._rule),
        }
        n_null = [controls.size for _, controls in self._places]
        yield verdict_rows(
            len(self._names),
            **shared,
            level="group",
            key=self._names,
            score=np.array([published for published, _ in scores]),
            n_null=n_null,
            p_value=p,
            method="canary_rank",
            reason=[unscored if np.isnan(p_value) else None for p_value in p],
        )
        if len(self._names) > 1:
            yield verdict_rows(
                1,
                **shared,
                level="collection",
                n_null=sum(n_null),
                p_value=rank_sum_p_value(aligned_ranks(scores)),
                method=f"canary_rank_sum_of_{len(self._names)}",
            )


_NO_PLACEBO = "the reference model has no answers that the primary attack can score"
NO_NULL = "no text is known to be outside the training data: give non-members"


def verdicts(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    rule: DecisionRule,
    *,
    blind_warns: bool = False,
    blind: pl.DataFrame | None = None,
) -> Iterator[pl.DataFrame]:
    """Test every target, group, collection and set of canaries by every attack."""
    # By ``blind`` scores the nulls are weighted, and there is no contamination rate.
    # Memory holds the keys of all rows and the scores of one attack.
    if rule.primary not in attacks:
        raise SettingsError(
            f"the primary attack {rule.primary!r} is not computed; name one of"
            f" {list(attacks)}"
        )
    with_names = rule.level != "target"
    sets = comparison.read_comparison_sets(scores, with_names=with_names)
    tests = list(_list_tests(sets, rule, blind, blind_warns=blind_warns))
    yield verdict_rows(0)
    for attack in attacks:
        values = read_finite(scores, attack, sets.target_id.len())
        attack_scores = AttackScores(attack, values)
        for test in tests:
            yield from test(attack_scores)


def placebo_findings(
    scores: pl.LazyFrame,
    rule: DecisionRule,
    reported: pl.DataFrame,
    blind: pl.DataFrame | None,
) -> pl.DataFrame:
    """Rows of check ``placebo``: what the planned test finds on the reference model's scores."""
    # Verdict of ``n_reported``, or of ``collection`` where the rule is about it:
    # ``as_many`` if at least half as many are reported as ``reported`` says of the
    # audited model, and any; or if p is at most q.
    name = f"placebo_of_{rule.primary}"
    if name not in scores.collect_schema():
        return finding_rows("placebo")
    if scores.select(pl.col(name).count()).collect().item() == 0:
        unscored = {"statistic": "n_reported", "reason": _NO_PLACEBO}
        return finding_rows("placebo", [unscored], subject=rule.level)
    placebo_rule = replace(rule, primary=name)
    rows = pl.concat(verdicts(scores, [name], placebo_rule, blind=blind)).lazy()
    is_test = pl.col("estimate").is_null()
    together = rows.filter(is_test, level="collection", versus="non_members")
    p_values = together.select("p_value").collect()["p_value"].to_list()
    p_value = p_values[0] if p_values else None
    placebo = reported_findings(rows, placebo_rule)
    is_collection = rule.level == "collection"
    if is_collection:
        as_many = p_value is not None and p_value <= rule.q
    else:
        n_placebo = _count_reported(placebo)
        as_many = n_placebo > 0 and 2 * n_placebo >= _count_reported(reported)
    main_statistic = "collection" if is_collection else "n_reported"
    is_main = pl.col("statistic") == main_statistic
    verdict = pl.lit("as_many" if as_many else "fewer")
    row = {"statistic": "collection", "p_value": p_value}
    row_of_all = finding_rows("placebo", [row], subject=rule.level)
    return pl.concat([placebo, row_of_all]).with_columns(
        check=pl.lit("placebo"),
        verdict=pl.when(is_main).then(verdict).otherwise("verdict"),
    )


def _count_reported(findings: pl.DataFrame) -> float:
    numbers: dict[str, float] = dict(findings.select("statistic", "value").iter_rows())
    return numbers.get("n_reported", 0)


def _list_tests(
    sets: comparison.ComparisonSets,
    rule: DecisionRule,
    blind: pl.DataFrame | None,
    *,
    blind_warns: bool,
) -> Iterator[_Test]:
    # Whatever else there is was made for groups asked alike
    if rule.adjustment == "e-bh":
        yield RoundsTest(sets, rule).rows
        return
    if sets.targets.size and sets.nulls.size:

        def odds(*, groups: bool) -> Odds | None:
            return None if blind is None else weigh(sets, blind, rule, groups=groups)

        yield TargetTest(sets, rule, odds(groups=False)).rows
        if comparison.tests_groups(sets, rule):
            yield GroupTest(sets, rule, odds(groups=True)).rows
        if blind is None:
            yield ContaminationTest(sets, rule, blind_warns=blind_warns).rows
    elif sets.targets.size:
        yield _rows_without_nulls
    if sets.published.size + sets.controls.size:
        yield CanaryTest(sets, rule).rows


def _rows_without_nulls(attack_scores: AttackScores) -> Iterator[pl.DataFrame]:
    yield verdict_rows(
        1,
        attack=attack_scores.attack,
        level="collection",
        planned=False,
        n_null=0,
        reason=NO_NULL,
    )
