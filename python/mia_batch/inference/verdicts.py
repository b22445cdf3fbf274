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
        return float(self.nulls.size if self.weights is None else self.weights.sum())


def _length_buckets(
    sets: comparison.ComparisonSets, edges: tuple[int, ...], odds: Floats | None
) -> Iterator[_Bucket]:
    """Sort targets and nulls by length; yield buckets that have targets."""
    # A target of unknown length is in none; a null of unknown length, which counts as
    # higher than everything, is in all.
    lengths = sets.n_words.cast(pl.Float64).to_numpy()
    which = np.searchsorted(edges, lengths, side="right")
    unknown = np.isnan(lengths) if edges else np.zeros(lengths.size, np.bool_)
    shared = sets.share_clusters(sets.nulls)
    for bucket in range(len(edges) + 1):
        targets = np.flatnonzero(
            (which == bucket)[sets.targets] & ~unknown[sets.targets]
        )
        nulls = np.flatnonzero((which == bucket)[sets.nulls] | unknown[sets.nulls])
        clusters = sets.cluster[sets.nulls][nulls]
        weights = conformal.shared_weights(clusters) if shared else None
        n_null = np.unique(clusters).size if shared else nulls.size
        if odds is not None:
            weights = conformal.shared_weights(clusters) * odds[sets.nulls][nulls]
            n_null = (
                int(effective_number(np.bincount(clusters, weights)))
                if nulls.size
                else 0
            )
        if targets.size:
            yield _Bucket(targets, nulls, weights, n_null)


class Odds(NamedTuple):
    """Odds of each text, or of its group, of being audited; 1 on average over the nulls."""

    of_rows: Floats  # of the table; NaN where there is no blind score, or no set
    n_null: int  # independent nulls: texts, or groups where texts share them
    n_effective: float
    auc: float  # of a second classifier, targets against weighted nulls
    lack: str | None  # why there can be no answer with these weights

    def own(self, rows: Ints) -> Floats:
        return np.full(rows.size, np.nan) if self.lack else self.of_rows[rows]


class TargetTest:
    """Tests of each target, prepared once for all attacks."""

    # Where texts share a cluster, their p-values depend on each other in unknown ways,
    # and q-values are Benjamini-Yekutieli's, whatever the plan says. With ``odds``
    # q-values are those of `weighted_q_values` where these are proved to hold.

    adjustment: conformal.Adjustment
    n_null: int  # independent nulls of the bucket that has the most

    def __init__(
        self,
        sets: comparison.ComparisonSets,
        plan: DecisionRule,
        odds: Odds | None = None,
    ) -> None:
        dependent = sets.share_clusters(sets.targets, sets.nulls)
        self.adjustment = "by" if dependent else plan.adjustment
        self._method = (
            "conformal_groups" if sets.share_clusters(sets.nulls) else "conformal"
        )
        self._own, self._lack, of_rows = np.ones(sets.targets.size), None, None
        if odds is not None:
            of_rows, self._lack = odds.of_rows, odds.lack or conformal.NO_WEIGHT
            self._own = odds.own(sets.targets)
            sets = replace(sets, nulls=sets.nulls[~np.isnan(of_rows[sets.nulls])])
            self._method = f"weighted_{self._method}"
        self._sets, self._plan = sets, plan
        self._buckets = list(_length_buckets(sets, plan.length_edges, of_rows))
        if odds is not None and len(self._buckets) > 1:
            self.adjustment = "by"
        self._selects = odds is not None and self.adjustment == "bh"
        self._total = sum(bucket.total for bucket in self._buckets)
        self.n_null = max((bucket.n_null for bucket in self._buckets), default=0)
        random = plan.ties == "random" and odds is None
        self._draws = conformal.tie_draws(sets.target_id, plan.seed) if random else None

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        """Yield verdicts on every target in the table's order, in parts, at least one frame."""
        rows = self._sets.targets
        scores, (p, n_null) = found.scores[rows], self.p_values(found.scores)
        if self._selects:
            names, plan = self._sets.target_id, self._plan
            q = conformal.weighted_q_values(
                scores, p, self._own, self._total, plan.q, names, plan.seed
            )
        else:
            q = conformal.q_values(p, self.adjustment)
        columns: dict[str, pl.Series | Floats] = {
            "key": self._sets.target_id[rows],
            "score": scores,
            "n_null": n_null,
            "p_value": p,
            "q_value": q,
            "sensitivity_bound": conformal.sensitivity_bound(p),
            "reason": self._reasons(scores, p),
        }
        for start in range(0, max(rows.size, 1), _ROWS_AT_ONCE):
            part = {
                name: column[start : start + _ROWS_AT_ONCE]
                for name, column in columns.items()
            }
            yield verdict_rows(
                len(part["key"]),
                attack=found.attack,
                level="target",
                planned=found.is_planned(self._plan, "target"),
                adjustment="wcs" if self._selects else self.adjustment,
                method=self._method,
                **part,
            )

    def p_values(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return the p-value of each target, and how many independent nulls it rests on."""
        p, n_null = (
            np.full(self._sets.targets.size, np.nan),
            np.zeros(self._sets.targets.size),
        )
        draws = self._draws
        for bucket in self._buckets:
            targets, nulls = (
                self._sets.targets[bucket.targets],
                self._sets.nulls[bucket.nulls],
            )
            p[bucket.targets] = conformal.p_values(
                scores[targets],
                scores[nulls],
                weights=bucket.weights,
                score_weights=self._own[bucket.targets],
                ties=(
                    None
                    if draws is None
                    else conformal.TieDraws(draws[targets], draws[nulls])
                ),
            )
            n_null[bucket.targets] = bucket.n_null
        return p, n_null

    def _reasons(self, scores: Floats, p: Floats) -> pl.Series:
        columns = {"score": scores, "weight": self._own, "p": p}
        lost = pl.DataFrame(
            {name: np.isnan(column) for name, column in columns.items()}
        )
        unknown = (
            "the target's number of words is unknown, so it is in no bucket of lengths"
        )
        return lost.select(
            pl.when("score")
            .then(pl.lit("the target has no score"))
            .when("weight")
            .then(pl.lit(self._lack))
            .when("p")
            .then(pl.lit(unknown))
        ).to_series()


_NO_ODDS_OF_AUTHORS = "several texts are by one author, and authors cannot be weighted"


class GroupTest:
    """Tests of each group and of the collection, prepared once for all attacks."""

    # A group is a cluster: a ``group``, else a document. Null groups with too few
    # windows are left out, for their number is known before scores are seen; audited
    # ones with too few have no p-value and stay in the number of tests.

    def __init__(
        self,
        sets: comparison.ComparisonSets,
        plan: DecisionRule,
        odds: Odds | None = None,
    ) -> None:
        self.n_windows = comparison.windows_per_group(sets, plan)
        self.groups = comparison.cut_units(
            sets, sets.targets, self.n_windows, plan.seed
        )
        self.nulls = comparison.cut_units(sets, sets.nulls, self.n_windows, plan.seed)
        self._plan = plan
        self._names = sets.clusters[self.groups.cluster].with_columns(
            level=pl.col("level").replace({"target": "document"})
        )
        self._own, self._weights, self._lack = (
            np.ones(self.groups.sizes.size),
            None,
            None,
        )
        self._n_null, self._adjustment = (
            int(self.nulls.usable.sum()),
            str(plan.adjustment),
        )
        self._method = f"conformal_{plan.statistic}_of_{self.n_windows}"
        if odds is not None:
            self._own[self.groups.usable] = odds.own(self.groups.windows[:, 0])
            self._weights = np.nan_to_num(odds.of_rows[self.nulls.windows[:, 0]])
            self._lack, self._n_null = (
                odds.lack or conformal.NO_WEIGHT,
                int(odds.n_effective),
            )
            self._adjustment = "wcs" if plan.adjustment == "bh" else "by"
            self._method = f"weighted_{self._method}"
        self._together = comparison.independent_units(
            sets, (sets.targets, sets.nulls), self.n_windows, plan.seed
        )
        self.ties = None
        if plan.ties == "random" and odds is None:
            nulls = sets.clusters[self.nulls.cluster[self.nulls.usable]]
            groups = self._names.filter(self.groups.usable)
            self.ties = conformal.TieDraws(
                *(
                    conformal.tie_draws(
                        (f"{level} {key}" for level, key in names.iter_rows()),
                        plan.seed,
                    )
                    for names in (groups, nulls)
                )
            )

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        groups, plan = self.groups, self._plan
        scores = np.full(groups.sizes.size, np.nan)
        scores[groups.usable] = groups.statistics(found.scores, plan)
        nulls = self.nulls.statistics(found.scores, plan)
        p = conformal.p_values(
            scores, nulls, weights=self._weights, score_weights=self._own
        )
        if self.ties is not None:
            p[groups.usable] = conformal.p_values(
                scores[groups.usable], nulls, ties=self.ties
            )
        if self._weights is None or plan.adjustment == "by":
            q = conformal.q_values(p, plan.adjustment)
        else:
            total, names = float(self._weights.sum()), self._names["key"]
            q = conformal.weighted_q_values(
                scores, p, self._own, total, plan.q, names, plan.seed
            )
        yield verdict_rows(
            scores.size,
            attack=found.attack,
            level=self._names["level"],
            key=self._names["key"],
            planned=found.is_planned(plan, "group"),
            score=scores,
            n_null=self._n_null,
            p_value=p,
            q_value=q,
            adjustment=self._adjustment,
            sensitivity_bound=conformal.sensitivity_bound(p),
            method=self._method,
            reason=self._reasons(scores),
        )
        yield self._collection(found, scores[groups.usable], nulls)

    def _collection(
        self, found: AttackScores, scores: Floats, nulls: Floats
    ) -> pl.DataFrame:
        test, reason, odds, n_null, unit = None, None, None, self._n_null, ""
        if self._weights is not None:
            odds = np.concatenate([self._own[self.groups.usable], self._weights])
            reason = None if (odds > 0).all() else self._lack
        if self._together.by_author:
            reason = self._together.reason or (
                None if odds is None else _NO_ODDS_OF_AUTHORS
            )
            units = self._together.units
            scores, nulls = (
                of_set.statistics(found.scores, self._plan) for of_set in units
            )
            n_null, unit = nulls.size, "authors_"
        if reason is None and not (scores.size and nulls.size):
            reason = (
                f"no {'audited' if nulls.size else 'null'} group has {self.n_windows}"
                " windows"
            )
        if reason is None:
            test = comparison.collection_test(scores, nulls, self._plan.seed, odds)
        return verdict_rows(
            1,
            attack=found.attack,
            level="collection",
            planned=found.is_planned(self._plan, "collection"),
            score=test and test.score,
            n_null=n_null,
            p_value=test and test.p_value,
            method=test and f"{unit}{test.method}",
            reason=reason,
        )

    def _reasons(self, scores: Floats) -> list[str | None]:
        unscored, few = (
            "one of the group's windows has no score",
            self.groups.why_unusable(),
        )
        lost = zip(few, np.isnan(scores), np.isnan(self._own), strict=True)
        return [
            reason or (unscored if no_score else self._lack if no_weight else None)
            for reason, no_score, no_weight in lost
        ]


# What the planned test can show at best.

_BOOK = r"\.(txt|epub|x?html?)$"  # a book's group is the name of its file
_NAMED = 5  # as many as a user may hope for


def planned_power(targets: pl.LazyFrame, plan: DecisionRule) -> Power | None:
    sets = comparison.read_comparison_sets(targets, with_names=plan.level != "target")
    if not (sets.targets.size and sets.nulls.size):
        return None
    n_windows = comparison.windows_per_group(sets, plan)
    groups, nulls = (
        np.unique(sets.cluster[rows], return_counts=True)[1] >= n_windows
        for rows in (sets.targets, sets.nulls)
    )
    n_groups, n_null = int(groups.sum()), int(nulls.sum())
    unit = "text"
    if plan.level == "target":
        test = TargetTest(sets, plan)
        best = np.ones(sets.target_id.len())
        best[sets.nulls] = 0
        found = power_from_p_values(
            test.p_values(best)[0], test.n_null, plan.q, test.adjustment
        )
        independent = not (
            plan.length_edges or sets.share_clusters(sets.targets, sets.nulls)
        )
    else:
        names = sets.clusters[np.unique(sets.cluster[sets.targets])]
        unit = "book" if names["key"].str.contains(_BOOK).all() else "group"
        unit = "document" if (names["level"] != "group").all() else unit
        smallest = np.where(groups, least_p(n_null, plan.q, plan.adjustment), np.nan)
        found = power_from_p_values(smallest, n_null, plan.q, plan.adjustment)
        independent = n_null > 0
    together = comparison.independent_units(
        sets,
        (sets.targets, sets.nulls),
        n_windows if plan.level != "target" else 1,
        plan.seed,
    )
    if together.by_author:
        independent = False
        n_groups, n_null = (int(of_set.usable.sum()) for of_set in together.units)
        n_groups = 0 if together.reason else n_groups
        if plan.level == "collection":
            unit, n_tests = "author", together.units[0].sizes.size
            found = replace(found, n_tests=n_tests, n_usable=n_groups, n_null=n_null)
    return replace(
        found,
        unit=unit,
        together=1 / comparison.n_orders(n_groups, n_null),
        for_bound=(
            needed_for_bound(found.n_tests, int(found.n_null)) if independent else None
        ),
    )


def power_findings(targets: pl.LazyFrame, plan: DecisionRule) -> pl.DataFrame:
    """Rows of check ``power`` about the planned level; none without targets or nulls."""
    # With ``nulls_needed`` nulls ``n_named`` that beat all of them are reported, or a
    # collection's p-value can be 0.05.
    found = planned_power(targets, plan)
    if found is None:
        return finding_rows("power")
    bucketed = plan.level == "target" and plan.length_edges
    possible = {True: "possible", False: "impossible"}
    rows: list[tuple[str, float | None, str | None]] = [
        ("n_tests", found.n_tests, found.unit),
        ("n_usable", found.n_usable, None),
        ("n_null", found.n_null, "of_one_length" if bucketed else None),
        ("together", found.together, possible[found.together <= LEVEL]),
    ]
    wanted: int | None = None
    if plan.level == "collection":
        if found.n_usable:
            wanted = next(
                n
                for n in count(1)
                if comparison.n_orders(found.n_usable, n) * LEVEL >= 1
            )
    else:
        named = min(_NAMED, found.n_usable)
        named = 1 if found.needed and found.needed <= named else named
        if named:
            wanted = nulls_to_name(named, found.n_tests, plan.q, found.adjustment)
        rows += [
            ("smallest_p", found.smallest_p, None),
            ("q", plan.q, found.adjustment),
            ("needed", found.needed, possible[found.needed is not None]),
            ("for_bound", found.for_bound, possible[found.for_bound is not None]),
            ("n_named", named, None),
        ]
    rows.append(("nulls_needed", wanted, None))
    made = ({"statistic": name, "value": n, "verdict": said} for name, n, said in rows)
    return finding_rows("power", made, subject=plan.level)


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
    plan: DecisionRule,
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
    from scipy.special import ndtri
    from sklearn.metrics import roc_auc_score

    keys = pl.DataFrame({"target_id": sets.target_id})
    shares = keys.join(blind, on="target_id", how="left", maintain_order="left").drop(
        "target_id"
    )
    rows = np.concatenate([sets.targets, sets.nulls])
    scores, audited = (
        ndtri(shares.to_numpy()[rows].astype(np.float64)),
        np.isin(rows, sets.targets),
    )
    key = 2 * sets.cluster[rows] + audited if groups else np.arange(rows.size)
    known = ~np.isnan(scores).any(axis=1)
    units, first, unit, sizes = np.unique(
        key[known], return_index=True, return_inverse=True, return_counts=True
    )
    seen = np.column_stack(
        [np.bincount(unit, column) / sizes for column in scores[known].T]
    )
    seen /= np.maximum(seen.std(axis=0), 1e-9)
    label = audited[known][first]
    _, began, cluster = np.unique(
        sets.cluster[rows][known][first], return_index=True, return_inverse=True
    )
    # Folds must not depend on the clusters' names
    cluster = began.argsort().argsort()[cluster]
    rng = np.random.default_rng(plan.seed)
    folds = deal_folds(label, cluster, n_folds=_N_FOLDS, generator=rng)
    odds = np.exp(_log_odds(seen, label, folds))
    odds /= odds[~label].mean()
    weight = np.where(label, (~label).sum() / label.sum(), odds)
    again = _log_odds(np.hstack([seen, seen**2]), label, folds, weight)
    auc = float(roc_auc_score(label, again, sample_weight=weight))
    of_nulls = np.bincount(
        cluster[~label], odds[~label] * conformal.shared_weights(cluster[~label])
    )
    n_effective = effective_number(of_nulls)
    place = np.minimum(units.searchsorted(key), units.size - 1)
    of_rows = np.full(sets.target_id.len(), np.nan)
    of_rows[rows] = np.where(units[place] == key, odds[place], np.nan)
    n_tests = np.unique(key[audited]).size
    by = not groups and sets.share_clusters(sets.targets, sets.nulls)
    lack = _lack(n_effective, auc, n_tests, plan, by=by)
    return Odds(of_rows, np.unique(cluster[~label]).size, n_effective, auc, lack)


def _log_odds(
    seen: Floats, label: Flags, folds: Folds, weight: Floats | None = None
) -> Floats:
    from sklearn import config_context
    from sklearn.linear_model import LogisticRegression

    odds, model = np.empty(label.size), LogisticRegression(solver="newton-cholesky")
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for fold in range(folds.n_folds):
            test = folds.fold_of_text == fold
            of_train = None if weight is None else weight[~test]
            odds[test] = model.fit(
                seen[~test], label[~test], of_train
            ).decision_function(seen[test])
    return odds


def _lack(
    n_effective: float, auc: float, n_tests: int, plan: DecisionRule, *, by: bool
) -> str | None:
    if plan.adjustment == "e-bh":
        return "groups that are asked in rounds cannot be weighted"
    if plan.level == "collection":
        can_report = bool(is_enough(n_effective))
    else:
        adjustment = "by" if by else plan.adjustment
        can_report = (
            compute_power(n_tests, n_effective, plan.q, adjustment).needed is not None
        )
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
    targets: pl.LazyFrame, blind: pl.DataFrame, found: pl.DataFrame, plan: DecisionRule
) -> pl.DataFrame:
    """Rows of check ``weights`` about the planned level; none unless targets were compared."""
    baseline = found.filter(
        check="blind_baseline", subject="targets", statistic="roc_auc"
    )
    verdict = baseline["verdict"]
    if verdict.is_empty():
        return finding_rows("weights")
    if verdict[0] != "separable" and plain_difference(found) is None:
        row = {"statistic": "n_effective", "verdict": "not_needed"}
        return finding_rows("weights", [row], subject=plan.level)
    odds = weigh(
        comparison.read_comparison_sets(targets),
        blind,
        plan,
        groups=plan.level != "target",
    )
    main = {
        "statistic": "n_effective",
        "value": odds.n_effective,
        "verdict": "no_overlap" if odds.lack else "used",
        "reason": odds.lack,
    }
    rows = [main, *number_rows({"n_null": odds.n_null, "roc_auc": odds.auc})]
    return finding_rows("weights", rows, subject=plan.level)


# Canaries: published texts drawn by lot from committed sets, so that the null is exact.


def canary_p_value(published: float, controls: Floats) -> float:
    """p-value of one set: (1 + controls that score as high) / (1 + controls); NaN if unscored."""
    # The draw alone makes it valid. An unscored control (NaN) counts as higher.
    if np.isnan(published):
        return float("nan")
    return float((1 + np.count_nonzero(~(controls < published))) / (1 + controls.size))


_MOST_SUMS = 1 << 16


def aligned_ranks(sets: Sequence[tuple[float, Floats]]) -> list[Floats]:
    """Rank the texts of all sets together, each less the mean of its set; ties share a mean rank.

    The published text of a set comes first. Hodges and Lehmann (1962), "Rank methods
    for combination of independent experiments": sets that differ more from within weigh
    more, and of pairs it is Wilcoxon's signed-rank test. An unscored published text has
    the lowest rank, unscored controls the highest.
    """
    from scipy.stats import rankdata

    values = []
    for published, controls in sets:
        own = np.append(published, controls)
        known = own[~np.isnan(own)]
        lost = np.where(np.arange(own.size) == 0, -np.inf, np.inf)
        values.append(
            np.where(np.isnan(own), lost, own - (known.mean() if known.size else 0))
        )
    ends = np.cumsum([own.size for own in values])[:-1]
    # Rounded, so that differences that are equal but for the last digits are ties.
    return list(np.split(rankdata(np.round(np.concatenate(values), 9)), ends))


def rank_sum_p_value(sets: Sequence[Floats]) -> float:
    """p-value of all committed sets together: the sum of the published texts' ranks, exact."""
    # Given which scores each set has, its published text is equally likely to have any
    # of them, whatever happens in other sets, so the distribution of the sum is the
    # convolution of theirs. This is the published texts' rank among all draws that
    # could have been. Where there are too many sums, ranks are made coarser, by the
    # same steps for all texts.
    largest = 2 * sum(float(ranks.max()) for ranks in sets)
    step = max(1.0, largest / _MOST_SUMS)
    distribution, observed = np.ones(1), 0
    for ranks in sets:
        whole = (2 * ranks / step).astype(np.int64)
        whole -= whole.min()
        observed += int(whole[0])
        sums = np.zeros(distribution.size + int(whole.max()))
        for rank, n in zip(*np.unique(whole, return_counts=True), strict=True):
            sums[rank : rank + distribution.size] += n / ranks.size * distribution
        distribution = sums
    return float(min(1.0, distribution[observed:].sum()))


def canary_test(sets: comparison.ComparisonSets, plan: DecisionRule) -> _Test:
    rows = np.concatenate([sets.published, sets.controls])
    names: list[str] = []
    places: list[tuple[int, Ints]] = []
    for cluster in np.unique(sets.cluster[rows]):
        published, controls = (
            rows[sets.cluster[rows] == cluster]
            for rows in (sets.published, sets.controls)
        )
        name = sets.clusters["key"][int(cluster)]
        if published.size != 1 or not controls.size:
            raise RequestError(
                f"the canary set {name!r} has {published.size} published texts and"
                f" {controls.size} unpublished controls; give one published text and"
                " all its controls, each as one target"
            )
        names.append(name)
        places.append((int(published[0]), controls))

    def test(found: AttackScores) -> Iterator[pl.DataFrame]:
        scores = [
            (found.scores[one], found.scores[controls]) for one, controls in places
        ]
        p = np.array([canary_p_value(*of_set) for of_set in scores])
        same: dict[str, Any] = {"attack": found.attack, "versus": "controls"}
        same["planned"] = found.is_planned(plan)
        n_null = [controls.size for _, controls in places]
        yield verdict_rows(
            len(names),
            **same,
            level="group",
            key=names,
            score=np.array([published for published, _ in scores]),
            n_null=n_null,
            p_value=p,
            method="canary_rank",
            reason=[
                "the published text has no score" if np.isnan(one) else None
                for one in p
            ],
        )
        if len(names) > 1:
            yield verdict_rows(
                1,
                **same,
                level="collection",
                n_null=sum(n_null),
                p_value=rank_sum_p_value(aligned_ranks(scores)),
                method=f"canary_rank_sum_of_{len(names)}",
            )

    return test


_NO_PLACEBO = "the reference model has no answers that the primary attack can score"
NO_NULL = "no text is known to be outside the training data: give non-members"


def verdicts(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    plan: DecisionRule,
    *,
    blind_warns: bool = False,
    blind: pl.DataFrame | None = None,
) -> Iterator[pl.DataFrame]:
    """Test every target, group, collection and set of canaries by every attack."""
    # By ``blind`` scores the nulls are weighted, and there is no contamination rate.
    # Memory holds the keys of all rows and the scores of one attack.
    if plan.primary not in attacks:
        raise SettingsError(
            f"the primary attack {plan.primary!r} is not computed; name one of"
            f" {list(attacks)}"
        )
    sets = comparison.read_comparison_sets(scores, with_names=plan.level != "target")
    tests = list(_tests(sets, plan, blind, blind_warns=blind_warns))
    yield verdict_rows(0)
    for attack in attacks:
        found = AttackScores(
            attack=attack, scores=read_finite(scores, attack, sets.target_id.len())
        )
        for test in tests:
            yield from test(found)


def placebo_findings(
    scores: pl.LazyFrame,
    plan: DecisionRule,
    reported: pl.DataFrame,
    blind: pl.DataFrame | None,
) -> pl.DataFrame:
    """Rows of check ``placebo``: what the planned test finds on the reference model's scores."""
    # Verdict of ``n_reported``, or of ``collection`` where the plan is about it:
    # ``as_many`` if at least half as many are reported as ``reported`` says of the
    # audited model, and any; or if p is at most q.
    name = f"placebo_of_{plan.primary}"
    if name not in scores.collect_schema():
        return finding_rows("placebo")
    if scores.select(pl.col(name).count()).collect().item() == 0:
        lost = {"subject": plan.level, "statistic": "n_reported", "reason": _NO_PLACEBO}
        return finding_rows("placebo", [lost])
    own = replace(plan, primary=name)
    made = pl.concat(verdicts(scores, [name], own, blind=blind)).lazy()
    of = made.filter(
        pl.col("estimate").is_null(), level="collection", versus="non_members"
    )
    p = (of.select("p_value").collect()["p_value"].to_list() or [None])[0]
    found = reported_findings(made, own)
    counts = [
        dict(rows.select("statistic", "value").iter_rows()).get("n_reported", 0)
        for rows in (found, reported)
    ]
    many = counts[0] > 0 and 2 * counts[0] >= counts[1]
    if plan.level == "collection":
        many = p is not None and p <= plan.q
    row: dict[str, object] = {
        "subject": plan.level,
        "statistic": "collection",
        "p_value": p,
    }
    main = pl.col("statistic") == (
        "collection" if plan.level == "collection" else "n_reported"
    )
    return pl.concat([found, finding_rows("placebo", [row])]).with_columns(
        check=pl.lit("placebo"),
        verdict=pl.when(main)
        .then(pl.lit("as_many" if many else "fewer"))
        .otherwise("verdict"),
    )


def _tests(
    sets: comparison.ComparisonSets,
    plan: DecisionRule,
    blind: pl.DataFrame | None,
    *,
    blind_warns: bool,
) -> Iterator[_Test]:
    # Whatever else there is was made for groups asked alike
    if plan.adjustment == "e-bh":
        yield RoundsTest(sets, plan).rows
        return
    if sets.targets.size and sets.nulls.size:

        def odds(*, groups: bool) -> Odds | None:
            return None if blind is None else weigh(sets, blind, plan, groups=groups)

        yield TargetTest(sets, plan, odds(groups=False)).rows
        if comparison.tests_groups(sets, plan):
            yield GroupTest(sets, plan, odds(groups=True)).rows
        if blind is None:
            yield ContaminationTest(sets, plan, blind_warns=blind_warns).rows
    elif sets.targets.size:
        lack: dict[str, Any] = {"level": "collection", "planned": False, "n_null": 0}
        yield lambda found: [
            verdict_rows(1, attack=found.attack, reason=NO_NULL, **lack)
        ]
    if sets.published.size + sets.controls.size:
        yield canary_test(sets, plan)
