"""Intervals of areas, rates, means, ratios and differences of dependent texts."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from mia_batch.stats import Codes, Flags, Floats, Ints

# Texts that depend on each other: what they are worth, dealt to folds and permuted
# together.

# With a smaller effective number, nobody knows enough of how clusters differ
_FEWEST = 4
_ROUNDING = 1e-12


def effective_number(sizes: NDArray[np.integer[Any]]) -> float:
    """Count the clusters of one size that would be worth as much.

    Kish (1965), "Survey Sampling".
    """
    n_squared = float(sizes.sum()) ** 2
    return n_squared / float(np.square(sizes, dtype=np.float64).sum())


def is_enough(effective: Any) -> Any:
    """Return whether so many clusters of one size are enough for an interval."""
    return effective > _FEWEST - _ROUNDING


def too_few(effective: float, scope: str = "") -> str:
    """Return why there is no interval of so many clusters of one size."""
    return (
        f"an interval needs {_FEWEST} independent groups of texts of one size{scope},"
        f" these are worth {effective:.3g}"
    )


def design_effect(values: Floats, cluster: Ints) -> float:
    r"""Factor by which the variance of a mean grows because values of a cluster are alike.

    .. math:: 1 + (m - 1) \rho, \; \rho = (B - W) / (B + (n_0 - 1) W), \; n_0 = (N - m) / (k - 1)

    m: mean size of the cluster that a value is in; B, W: mean squares between the k
    clusters and within them, of N values. At least 1. Kish (1965), section 5.4; Donner
    (1986), "A review of inference procedures for the intraclass correlation
    coefficient".
    """
    _, code, sizes = np.unique(cluster, return_inverse=True, return_counts=True)
    n = values.size
    n_clusters = sizes.size
    if n_clusters < 2 or n_clusters == n:
        return 1.0
    means = np.bincount(code, values) / sizes
    squares_between = (sizes * (means - values.mean()) ** 2).sum()
    squares_within = ((values - means[code]) ** 2).sum()
    between = float(squares_between / (n_clusters - 1))
    within = float(squares_within / (n - n_clusters))
    mean_size = float((sizes**2).sum() / n)
    spread = between + ((n - mean_size) / (n_clusters - 1) - 1) * within
    if not spread:
        return 1.0
    return max(1.0, 1 + (mean_size - 1) * (between - within) / spread)


class Folds(NamedTuple):
    """A division of clusters into folds, all numbered from 0."""

    cluster: Codes  # of each text
    fold: Codes  # of each cluster
    n_folds: int  # at least 2

    @property
    def fold_of_text(self) -> Codes:
        return self.fold[self.cluster]


def deal_folds(
    label: Flags,
    cluster: Codes,
    *,
    n_folds: int,
    generator: np.random.Generator,
) -> Folds:
    """Deal shuffled clusters to the folds in turn: all false, then mixed, then all true."""
    # So two clusters of a class come to different folds, and labels may be permuted
    # within folds. scikit-learn's StratifiedGroupKFold looks at sizes and labels
    # together, so that divisions are not equally likely and permuted labels no null.
    share = np.bincount(cluster, label) / np.bincount(cluster)
    kind = np.sign(share) + (share == 1)
    fold = np.empty(share.size, dtype=np.intp)
    fold[_shuffled(kind, generator)] = np.arange(share.size) % n_folds
    return Folds(cluster, fold, n_folds)


def permute_labels(
    label: Flags,
    folds: Folds,
    generator: np.random.Generator,
) -> Flags:
    """Give each cluster the share of true labels of another one of its fold and kind."""
    # Which of its texts are true is drawn anew. A share that makes no whole number of
    # texts is rounded at random, to at least one text of each class.
    size = np.bincount(folds.cluster)
    share = np.bincount(folds.cluster, label) / size
    is_mixed = (share > 0) & (share < 1)
    stratum = 2 * folds.fold + is_mixed
    permuted_share = np.empty_like(share)
    in_stratum_order = np.argsort(stratum, kind="stable")
    permuted_share[in_stratum_order] = share[_shuffled(stratum, generator)]
    n_expected = permuted_share * size
    n_rounded = np.floor(n_expected + generator.random(share.size))
    n_true = np.where(is_mixed, np.clip(n_rounded, 1, size - 1), n_expected)
    order = _shuffled(folds.cluster, generator)
    first = np.cumsum(size) - size
    place_in_cluster = np.empty_like(order)
    place_in_cluster[order] = np.arange(order.size) - np.repeat(first, size)
    return place_in_cluster < n_true[folds.cluster]


def _shuffled(key: NDArray[np.generic], generator: np.random.Generator) -> Codes:
    """Return an order that sorts by the key and is random among equals."""
    order: Codes = np.lexsort((generator.random(key.size), key))
    return order


# ROC curves, and intervals of their areas, of rates, of means and of ratios.
#
# Members are the positive class and a higher score means "more likely a member". Both
# classes must be present and scores finite.

CONFIDENCE = 0.95
_AT_ONCE = 65_536  # scores whose placements are in memory together


class OperatingPoint(NamedTuple):
    """One point of a ROC curve."""

    # Predicted member if ``score >= threshold``; infinite where nothing is
    threshold: float
    fpr: float  # share of non-members predicted members, in [0, 1]
    tpr: float  # share of members predicted members, in [0, 1]


class RocCurve(NamedTuple):
    """Every point of a ROC curve, in 8 bytes a score: rising scores of each class."""

    members: Floats
    nonmembers: Floats

    @property
    def threshold(self) -> Floats:
        """Infinity, then every distinct score, falling."""
        scores = np.unique(np.concatenate([self.members, self.nonmembers]))
        return np.append(scores, np.inf)[::-1]

    @property
    def fpr(self) -> Floats:
        """False-positive rate at each threshold, in [0, 1], rising."""
        return _share_from(self.nonmembers, self.threshold)

    @property
    def tpr(self) -> Floats:
        """True-positive rate at each threshold, in [0, 1], rising."""
        return _share_from(self.members, self.threshold)

    @property
    def area(self) -> float:
        """Probability that a member outscores a non-member, ties one half; in [0, 1]."""
        n_won = 0.0  # pairs of a member and a non-member
        for start in range(0, self.members.size, _AT_ONCE):
            members = self.members[start : start + _AT_ONCE]
            n_won += _n_beaten(members, self.nonmembers).sum()
        return float(n_won / (self.members.size * self.nonmembers.size))

    def point(self, threshold: float) -> OperatingPoint:
        """Compute FPR and TPR at a threshold."""
        fpr = float(_share_from(self.nonmembers, threshold))
        tpr = float(_share_from(self.members, threshold))
        return OperatingPoint(threshold, fpr, tpr)

    def at_fpr(self, budget: float) -> OperatingPoint:
        """Find the largest TPR whose empirical FPR is **at most** the budget."""
        # Neither interpolated nor nearest. Where no score can be flagged within the
        # budget, the threshold is infinite.
        n = self.nonmembers.size
        counts = range(n + 1)
        n_flagged = bisect_right(counts, budget, key=lambda count: count / n) - 1
        n_spared = n - n_flagged
        classes = (self.members, self.nonmembers)
        if n_spared == 0:
            return self.point(float(min(scores[0] for scores in classes)))
        highest_spared = self.nonmembers[n_spared - 1]
        threshold = np.inf
        for scores in classes:
            n_below = scores.searchsorted(highest_spared, side="right")
            if n_below < scores.size:
                threshold = min(threshold, scores[n_below])
        return self.point(float(threshold))

    def widest_gap(self) -> OperatingPoint:
        """Find the point with the largest TPR less FPR."""
        threshold = self.threshold[np.argmax(self.tpr - self.fpr)]
        return self.point(float(threshold))


def roc_curve(member: Flags, score: Floats) -> RocCurve:
    return RocCurve(np.sort(score[member]), np.sort(score[~member]))


def roc_auc(member: Flags, score: Floats) -> float:
    return roc_curve(member, score).area


def _n_beaten(scores: Floats, opponents: Floats) -> Floats:
    """Count for each score the rising opponents below it, ties one half."""
    n_below = opponents.searchsorted(scores, side="left")
    n_not_above = opponents.searchsorted(scores, side="right")
    return (n_below + n_not_above) / 2


def _share_from(scores: Floats, threshold: float | Floats) -> Floats:
    """Compute the share of rising scores that reach a threshold."""
    n_below = scores.searchsorted(threshold, side="left")
    return (scores.size - n_below) / scores.size


class AucEstimate(NamedTuple):
    """A ROC AUC and an estimate of its error."""

    value: float  # in [0, 1]
    variance: float  # 0 where undefined (a single text or cluster of a class)
    # members and non-members; where texts are clustered, `effective_number` of their
    # clusters
    sizes: tuple[float, float]
    clustered: bool  # whether texts share clusters

    @property
    def reason(self) -> str | None:
        """Why there can be no interval; None where there can."""
        if self.n_groups is None or is_enough(self.n_groups):
            return None
        return too_few(self.n_groups, " in each class")

    @property
    def n_groups(self) -> float | None:
        """Effective number of clusters in the class that has fewer.

        None of independent texts.
        """
        return min(self.sizes) if self.clustered else None

    def quantile(self, z: float) -> float:
        """Return Student's quantile, of ``n_groups - 1`` degrees of freedom.

        It takes the place of a normal quantile; of independent texts it is equal.
        """
        if self.n_groups is None:
            return z
        from scipy.stats import norm, t

        return float(t.isf(norm.sf(z), self.n_groups - 1))


def estimate_auc(
    member: Flags,
    score: Floats,
    cluster: NDArray[np.int32] | None = None,
) -> tuple[AucEstimate, Floats]:
    """Compute a ROC AUC and the influence of each text, or of each cluster by its code.

    The sum of the influences' squares estimates the AUC's variance, the sum of their
    products with those of another AUC over the same texts their covariance. Independent
    texts: DeLong, DeLong and Clarke-Pearson (1988), "Comparing the areas under two or
    more correlated receiver operating characteristic curves", equations 4 to 6.
    Clusters: Obuchowski (1997), "Nonparametric analysis of clustered ROC curve data",
    section 2, with 1 / (1 - w) of a cluster with the share w of a class's texts in
    place of K / (K - 1): Bell and McCaffrey (2002), "Bias reduction in standard errors
    for linear regression with multi-stage samples". Of clusters of one size they are
    equal.
    """
    curve = roc_curve(member, score)
    value = curve.area
    codes = np.arange(member.size, dtype=np.int32) if cluster is None else cluster
    influence = np.zeros(int(codes.max()) + 1)
    sizes = []
    for rows, opponents, sign, mean in (
        (np.flatnonzero(member), curve.nonmembers, 1, value),
        (np.flatnonzero(~member), curve.members, -1, 1 - value),
    ):
        n = rows.size
        counts = np.zeros(influence.size, np.int32)
        np.add.at(counts, codes[rows], 1)
        sizes.append(effective_number(counts))
        class_influence = np.zeros_like(influence)
        for start in range(0, n, _AT_ONCE):
            chunk = rows[start : start + _AT_ONCE]
            n_beaten = _n_beaten(score[chunk], opponents)
            placement = n_beaten / opponents.size - mean
            np.add.at(class_influence, codes[chunk], placement / n)
        other_share = np.maximum(1 - counts / n, 1 / n)
        influence += sign * class_influence / np.sqrt(other_share)
    if min(sizes) == 1:  # a class is one text or cluster
        influence[:] = 0
    estimate = AucEstimate(
        value=value,
        variance=float(influence @ influence),
        sizes=(sizes[0], sizes[1]),
        clustered=cluster is not None,
    )
    return estimate, influence


# Confidence intervals for the area under a ROC curve.

_DELONG_WITHIN = (0.05, 0.95)  # outside, simulation gives DeLong too low a coverage


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float  # above ``low``
    confidence: float  # nominal coverage, in (0, 1)
    method: str  # how it was computed


_GROUP_METHODS = {"delong_logit": "group_logit_t", "newcombe_5": "newcombe_5_groups"}


def auc_interval(
    members: Floats,
    nonmembers: Floats,
    *,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Compute an interval of the ROC AUC of independent texts."""
    score = np.concatenate([members, nonmembers])
    is_member = np.arange(score.size) < members.size
    estimate, _ = estimate_auc(is_member, score)
    # Only of clusters there can be too few.
    return cast("Interval", estimate_interval(estimate, confidence=confidence))


def estimate_interval(
    estimate: AucEstimate, *, confidence: float = CONFIDENCE
) -> Interval | None:
    """Compute an interval of a ROC AUC by `auc_limits`.

    Of clusters by Student's t, and None below 4.
    """
    if estimate.reason:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    low, high, method = auc_limits(
        estimate.value, estimate.variance, estimate.sizes, estimate.quantile(z)
    )
    if estimate.n_groups is not None:
        method = _GROUP_METHODS[method]
    return Interval(low, high, confidence, method)


def auc_limits(
    auc: float,
    variance: float,
    sizes: tuple[float, float],
    quantile: float,
) -> tuple[float, float, str]:
    """Compute limits of a ROC AUC so many standard errors away, and their method.

    Their width is never zero. DeLong's variance on the logit scale where the AUC lies
    from 0.05 to 0.95; beyond, and where that variance is 0 or undefined: Newcombe
    (2006), "Confidence intervals for an effect size measure based on the Mann-Whitney
    statistic. Part 2", method 5.
    """
    from scipy.special import expit, logit

    if variance > 0 and is_middling(auc):
        half_width = quantile * variance**0.5 / (auc * (1 - auc))
        low = float(expit(logit(auc) - half_width))
        high = float(expit(logit(auc) + half_width))
        return low, high, "delong_logit"
    low = _newcombe_low(auc, *sizes, quantile)
    low_of_rest = _newcombe_low(1 - auc, *sizes, quantile)
    return low, 1 - low_of_rest, "newcombe_5"


def is_middling(auc: float) -> bool:
    """Return whether an AUC is far enough from 0 and 1 for limits from its variance."""
    return _DELONG_WITHIN[0] <= auc <= _DELONG_WITHIN[1]


def _newcombe_low(
    auc: float,
    n1: float,
    n0: float,
    z: float,
) -> float:
    """Find the smallest AUC whose own standard error, times z, reaches the observed one."""
    from scipy.optimize import brentq

    if not auc:
        return 0.0
    # Hanley and McNeil's error, with the numbers of both classes replaced by their
    # mean, so that the interval mirrors when the classes change places.
    extra = (n1 + n0) / 2 - 1

    def gap(low: float) -> float:
        spread = 1 + extra * ((1 - low) / (2 - low) + low / (1 + low))
        return (auc - low) ** 2 - z**2 * low * (1 - low) * spread / (n1 * n0)

    return float(brentq(gap, 0.0, min(auc, 1 - 1e-12), xtol=1e-12))


# Confidence intervals for rates: at a false-positive budget, and at a threshold that
# other data fixed.

# Where fewer groups have flagged texts, or unflagged ones, nobody knows how they differ
_FEWEST_GROUPS = 5


def independent_number(flagged: Flags, cluster: NDArray[np.integer[Any]]) -> float:
    """Count the independent texts whose share would be as certain as of these clusters.

    Texts by the `design_effect`, and by the square of how much wider Student's t is
    than the normal: Korn and Graubard (1998), "Confidence intervals for proportions
    with small expected number of positive counts estimated from survey data", section
    2. Where fewer than 5 clusters have flagged texts, or unflagged ones, at most the
    `effective_number`.
    """
    from scipy.stats import norm, t

    _, codes, sizes = np.unique(cluster, return_inverse=True, return_counts=True)
    if sizes.size == flagged.size:
        return float(flagged.size)
    effective = effective_number(sizes)
    n = flagged.size / design_effect(flagged.astype(np.float64), codes)
    n_flagged = np.bincount(codes, flagged)
    n_with_flagged = (n_flagged > 0).sum()
    n_with_unflagged = (n_flagged < sizes).sum()
    if min(n_with_flagged, n_with_unflagged) < min(_FEWEST_GROUPS, sizes.size):
        n = min(n, effective)
    widening = float(t.isf(0.025, effective - 1) / norm.isf(0.025))
    return float(max(n / widening**2, 1.0))


def tpr_interval(
    curve: RocCurve,
    budget: float,
    tpr: float,
    sizes: tuple[float, float],
) -> Interval:
    """Compute an interval of the TPR at a false-positive budget, whatever the scores.

    The TPR errs because the members are few, within Clopper-Pearson limits, and because
    the threshold is estimated: two order statistics of the non-members enclose the one
    whose FPR is the budget, David and Nagaraja (2003), "Order statistics", section 7.1.
    Both are joined as by Zou and Donner (2008), "Construction of confidence limits
    about effect measures: a general approach", equations 1 and 2. ``sizes``:
    independent members and non-members.
    """
    from scipy.stats import binom

    error, n = (1 - CONFIDENCE) / 2, int(sizes[1])
    n_observed = curve.nonmembers.size
    rank_above = int(binom.isf(error, n, 1 - budget)) + 1
    rank_below = int(binom.ppf(error, n, 1 - budget))
    lowest_tpr = 0.0
    if rank_above <= n:
        lowest_tpr = _share_above(curve, -(-rank_above * n_observed // n))
    highest_tpr = _share_above(curve, rank_below * n_observed // n)
    of_members = clopper_pearson(tpr * sizes[0], sizes[0])
    below = np.hypot(tpr - of_members.low, max(tpr - lowest_tpr, 0.0))
    above = np.hypot(of_members.high - tpr, max(highest_tpr - tpr, 0.0))
    low = tpr - float(below)
    high = tpr + float(above)
    return Interval(max(low, 0.0), min(high, 1.0), CONFIDENCE, "order_statistics")


def _share_above(curve: RocCurve, rank: int) -> float:
    """Compute the share of members above the non-member of a rank from the lowest."""
    if rank < 1:
        return 1.0
    nonmember = curve.nonmembers[rank - 1]
    n_not_above = curve.members.searchsorted(nonmember, side="right")
    return float(1 - n_not_above / curve.members.size)


def threshold_fpr_interval(n: float, budget: float) -> Interval:
    """Compute the range of the true FPR of a threshold from so many non-members.

    With k = floor(n FPR) flagged, Beta(k + 1, n - k) for scores without ties: David and
    Nagaraja (2003), section 2.3; Vovk (2012), "Conditional validity of inductive
    conformal predictors".
    """
    from scipy.stats import beta

    k = int(int(n) * budget * (1 + 1e-12))
    low, high = beta.interval(CONFIDENCE, k + 1, int(n) - k)
    return Interval(float(low), float(high), CONFIDENCE, "beta")


def clopper_pearson(hits: float, n: float) -> Interval:
    """Compute an interval of a rate: Clopper and Pearson (1934)."""
    from scipy.stats import beta

    error = (1 - CONFIDENCE) / 2
    # A parameter of 0 makes them NaN, where the limit is 0 or 1
    beta_low = beta.ppf(error, hits, n - hits + 1)
    beta_high = beta.isf(error, hits + 1, n - hits)
    low = float(np.nan_to_num(beta_low, nan=0.0))
    high = float(np.nan_to_num(beta_high, nan=1.0))
    return Interval(low, high, CONFIDENCE, "clopper_pearson")


# Means of paired differences, with errors that move together within clusters.


class Means(NamedTuple):
    """Means of some numbers of each text, by unit."""

    value: Floats  # a row for each unit and a column for each number
    # estimated from clusters; 0 where all clusters agree, or there is one
    covariance: Floats
    n: Ints  # texts of each unit
    n_clusters: Ints
    effective: Floats  # `effective_number` of clusters, at most ``n_clusters``

    @property
    def enough(self) -> Flags:
        """Whether the clusters of a unit are enough for an interval."""
        return np.asarray(is_enough(self.effective))

    def half_widths(self) -> Floats:
        """Compute half of each interval, by Student's t; NaN where the data allow none."""
        from scipy.stats import t

        errors, freedom = self._errors()
        return np.asarray(t.ppf((1 + CONFIDENCE) / 2, freedom) * errors)

    def p_values(self) -> Floats:
        """Compute two-sided p-values of a mean of 0; NaN where there is no interval."""
        from scipy.stats import t

        errors, freedom = self._errors()
        return np.asarray(2 * t.sf(np.abs(self.value / errors), freedom))

    def _errors(self) -> tuple[Floats, Floats]:
        """Return standard errors and degrees of freedom; NaN where there are none."""
        variance = np.diagonal(self.covariance, axis1=1, axis2=2)
        errors = np.sqrt(np.where(variance > 0, variance, np.nan))
        freedom = np.where(self.enough, self.effective - 1, np.nan)[:, None]
        return errors, freedom


def cluster_means(
    values: Floats,
    unit: Codes,
    cluster: Codes,
) -> Means:
    r"""Average numbers over the texts of each unit, with a covariance from whole clusters.

    With \(n_k\) texts and the sum \(s_k\) in cluster k, and n texts, the mean is
    \(\bar s = \sum s_k / n\) and its variance

    .. math:: \sum_k \frac{(s_k - n_k \bar s)^2}{1 - n_k / n} / n^2

    Cochran (1977), "Sampling techniques", section 6.3, for the ratio of sums; Bell and
    McCaffrey (2002), for the denominator.
    """
    n_codes = int(cluster.max()) + 1
    pairs, code, size = np.unique(
        unit * n_codes + cluster, return_inverse=True, return_counts=True
    )
    owner = pairs // n_codes  # the unit that a cluster's texts are of
    n = np.bincount(owner, size)
    n_clusters = np.bincount(owner)
    sums = _sum_columns(values, code)
    mean = _sum_columns(sums, owner) / n[:, None]
    gaps = sums - size[:, None] * mean[owner]
    highest = np.abs(values).max(axis=0)
    gaps[np.abs(gaps) <= _ROUNDING * size[:, None] * highest] = 0
    products = gaps[:, :, None] * gaps[:, None, :]
    other_share = np.maximum(1 - size / n[owner], 1 / n[owner])
    products /= other_share[:, None, None]
    covariance = np.zeros((n.size, *products.shape[1:]))
    np.add.at(covariance, owner, products)
    covariance /= n[:, None, None] ** 2
    effective = n**2 / np.bincount(owner, size.astype(np.float64) ** 2)
    return Means(
        value=mean,
        covariance=covariance,
        n=n.astype(np.int64),
        n_clusters=n_clusters,
        effective=effective,
    )


def _sum_columns(values: Floats, code: Codes) -> Floats:
    """Sum the rows of each code."""
    return np.stack([np.bincount(code, column) for column in values.T], axis=1)


class Ratio(NamedTuple):
    """A ratio, or the reason why value or interval is missing."""

    value: float | None = None
    interval: Interval | None = None
    reason: str | None = None


def removed_share(
    gaps: Floats,
    covariance: Floats,
    effective: float,
) -> Ratio:
    r"""Compute the share of a difference that unlearning has removed: Fieller (1954).

    ``gaps`` are the means x of before - after and y of before - retrained, over
    ``effective`` independent clusters. The interval holds every share \(\rho\) with
    \((x - \rho y)^2 \le t^2 (v_x - 2 \rho c + \rho^2 v_y)\). It is not clipped: below 0
    unlearning made it worse, above 1 it went further than the retrained model.
    """
    from scipy.stats import t

    if not is_enough(effective):
        return Ratio(reason=too_few(effective))
    (x, y), ((v_x, c), (_, v_y)) = gaps.tolist(), covariance.tolist()
    t_squared = float(t.ppf((1 + CONFIDENCE) / 2, effective - 1)) ** 2
    if y * y <= t_squared * v_y:
        return Ratio(
            reason="the runs before and of the retrained model cannot be distinguished"
        )
    if y < 0:
        return Ratio(
            reason="the run before does not score above that of the retrained model"
        )
    # Limits are the roots of a rho^2 - 2 b rho + rest
    a = y * y - t_squared * v_y
    b = x * y - t_squared * c
    rest = x * x - t_squared * v_x
    spread = max(b * b - a * rest, 0.0) ** 0.5
    if spread <= 1e-9 * abs(a):
        reason = "the same share is removed everywhere, so that its spread is unknown"
        return Ratio(value=x / y, reason=reason)
    low = (b - spread) / a
    high = (b + spread) / a
    return Ratio(x / y, Interval(low, high, CONFIDENCE, "fieller"))


# Ratios of sums over texts, such as micro precision, with errors from whole clusters.

_GROUPS_AGREE = "all groups of texts agree, so that the spread is unknown"
_NOTHING = "there is nothing to take a share of"


def ratio_of_sums(sums: Floats, cluster: Codes) -> Ratio:
    r"""Divide sums over texts, with an interval in [0, 1] for a ratio that lies there.

    The error of the ratio \(R = \sum a_i / \sum b_i\) is that of the mean of \((a_i - R
    b_i) / \bar b\) over whole clusters, and the interval is symmetric in its logit, by
    Student's t. ``sums`` has a row of numerators and one of denominators, which are not
    smaller. Cochran (1977), "Sampling techniques", sections 2.11 and 6.3.
    """
    if not sums[1].any():
        return Ratio(reason=_NOTHING)
    value = float(sums[0].sum() / sums[1].sum())
    half_width = _half_width(_influence(sums), cluster)
    if isinstance(half_width, str):
        return Ratio(value=value, reason=half_width)
    if not 0 < value < 1:
        return Ratio(value=value, reason=_GROUPS_AGREE)
    from scipy.special import expit, logit

    middle = logit(value)
    logit_width = half_width / (value * (1 - value))
    low = float(expit(middle - logit_width))
    high = float(expit(middle + logit_width))
    return Ratio(value, Interval(low, high, CONFIDENCE, "ratio_logit_t"))


def ratio_difference(
    first: Floats,
    second: Floats,
    cluster: Codes,
) -> Ratio:
    """Subtract a second ratio of sums from a first, with an interval; texts are paired."""
    if not first[1].any() or not second[1].any():
        return Ratio(reason=_NOTHING)
    first_ratio = first[0].sum() / first[1].sum()
    second_ratio = second[0].sum() / second[1].sum()
    value = float(first_ratio - second_ratio)
    half_width = _half_width(_influence(first) - _influence(second), cluster)
    if isinstance(half_width, str):
        return Ratio(value=value, reason=half_width)
    low = value - half_width
    high = value + half_width
    return Ratio(value, Interval(low, high, CONFIDENCE, "ratio_difference_t"))


def _influence(sums: Floats) -> Floats:
    numerators, denominators = sums
    ratio = numerators.sum() / denominators.sum()
    return np.asarray((numerators - ratio * denominators) / denominators.mean())


def _half_width(influence: Floats, cluster: Codes) -> float | str:
    """Compute half of the interval of a mean, or return why there is none."""
    one_unit = np.zeros(len(influence), np.intp)
    means = cluster_means(influence[:, None], one_unit, cluster)
    if not means.enough[0]:
        return too_few(float(means.effective[0]))
    half_width = float(means.half_widths()[0, 0])
    return half_width if np.isfinite(half_width) else _GROUPS_AGREE


# Differences of areas, paired by text, and bounds of many areas that hold all at once.

# Normal quantiles between which p-values are looked for: beyond, p is 1, or taken as
# 1e-15.
_NEAREST, _FARTHEST = 0.01, 8.0


class Difference(NamedTuple):
    """AUC of one score less that of another, on the texts that have both."""

    n_members: int  # that have both scores
    n_nonmembers: int
    value: float | None = None  # in [-1, 1]; None where a class has no text
    interval: Interval | None = None  # None where the data cannot support one
    # two-sided, of equal areas: above 1 - confidence where the interval holds 0
    p_value: float | None = None
    reason: str | None = None  # why value or interval is None

    def row(self, n_texts: int) -> dict[str, Any]:
        """Build a row of the metrics table, less attack and slice."""
        return {
            "metric": "roc_auc_difference",
            "value": self.value,
            **(self.interval._asdict() if self.interval else {}),
            "reason": self.reason,
            "n_members": self.n_members,
            "n_nonmembers": self.n_nonmembers,
            "n_unscored": n_texts - self.n_members - self.n_nonmembers,
        }


def auc_difference(
    member: Flags,
    first: Floats,
    second: Floats,
    *,
    cluster: NDArray[np.int32] | None = None,
    confidence: float = CONFIDENCE,
) -> Difference:
    """Compare two scores of the same texts by their ROC AUC.

    Texts without both scores are left out. Normal limits by the covariance of both
    areas where these lie from 0.05 to 0.95: DeLong, DeLong and Clarke-Pearson (1988),
    equation 7; Obuchowski (1997). Beyond, and where both rank alike, the limits of each
    area, joined as if their errors were independent: wide, but never of zero width, Zou
    and Donner (2008), equation 7.
    """
    has_both = np.isfinite(first) & np.isfinite(second)
    member = member[has_both]
    if cluster is not None:
        cluster = cluster[has_both]
    sizes = int(member.sum()), int(np.count_nonzero(~member))
    if 0 in sizes:
        return Difference(*sizes, reason="a class has no text that has both scores")
    first_area, first_influence = estimate_auc(member, first[has_both], cluster)
    second_area, second_influence = estimate_auc(member, second[has_both], cluster)
    value = first_area.value - second_area.value
    if first_area.reason:
        return Difference(*sizes, value=value, reason=first_area.reason)
    gaps = first_influence - second_influence
    variance = float(gaps @ gaps)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    low, high, method = _limits(first_area, second_area, variance, z)
    interval = Interval(max(-1.0, low), min(1.0, high), confidence, method)
    p_value = _p_value(first_area, second_area, variance)
    return Difference(*sizes, value, interval, p_value)


def _p_value(
    first: AucEstimate,
    second: AucEstimate,
    variance: float,
) -> float:
    """Find the level at which a limit of the interval is 0."""
    from scipy.optimize import brentq

    def distance_from_0(z: float) -> float:
        """Compute how far the nearer limit is from 0, at so many standard errors."""
        low, high, _ = _limits(first, second, variance, z)
        return low if first.value > second.value else -high

    if distance_from_0(_NEAREST) <= 0:
        return 1.0
    z = _FARTHEST
    if distance_from_0(_FARTHEST) <= 0:
        z = float(brentq(distance_from_0, _NEAREST, _FARTHEST, xtol=1e-9))
    return 2 * NormalDist().cdf(-z)


def _limits(
    first: AucEstimate,
    second: AucEstimate,
    variance: float,
    z: float,
) -> tuple[float, float, str]:
    """Compute limits at a normal quantile, and their method; they may pass -1 and 1."""
    quantile = first.quantile(z)
    value = first.value - second.value
    if variance > 0 and is_middling(first.value) and is_middling(second.value):
        half_width = quantile * variance**0.5
        method = "delong_paired" if first.n_groups is None else "cluster_paired_t"
        return value - half_width, value + half_width, method
    (low_1, high_1), (low_2, high_2) = (
        auc_limits(area.value, area.variance, area.sizes, quantile)[:2]
        for area in (first, second)
    )
    below = np.hypot(first.value - low_1, high_2 - second.value)
    above = np.hypot(high_1 - first.value, second.value - low_2)
    return value - float(below), value + float(above), "mover"


# Sums that the errors of an area are kept in: correlations are then known to 0.02
N_BLOCKS = 2_048
# Draws of the largest error; the quantile, of which three digits are kept, is then
# known to 0.03
_N_DRAWS, _DRAWS_AT_ONCE = 5_000, 1_000


class AucResult(NamedTuple):
    """One area of many, an attack's on a slice."""

    estimate: AucEstimate
    # influences of the texts or clusters, in sums over blocks of them that are the same
    # for all
    errors: Floats
    counts: dict[str, int]  # numbers of targets, columns of the metrics table


def simultaneous_bounds(
    results: Mapping[tuple[str, str], AucResult], *, seed: int = 0
) -> dict[tuple[str, str], Interval | None]:
    """Bound areas from below so that all bounds hold together.

    None below 4 groups of a class. The quantile of the largest studentised error over
    all areas (max-t), by a multiplier bootstrap of their influences, takes the place of
    the normal one in each area's own limit; at least Bonferroni's where an area has no
    variance. Chernozhukov, Chetverikov and Kato (2013), "Gaussian approximations and
    multiplier bootstrap"; Hothorn et al. (2008), section 3.
    """
    bounded = [result for result in results.values() if not result.estimate.reason]
    quantile = _quantile(bounded, len(results), seed)
    method = f"max_t over {len(results)}"
    bounds: dict[tuple[str, str], Interval | None] = dict.fromkeys(results)
    for key, result in results.items():
        area = result.estimate
        if not area.reason:
            low, _, _ = auc_limits(
                area.value, area.variance, area.sizes, area.quantile(quantile)
            )
            bounds[key] = Interval(low, 1.0, CONFIDENCE, method)
    return bounds


def _quantile(
    results: Sequence[AucResult],
    n_areas: int,
    seed: int,
) -> float:
    """Find how many standard errors the largest error of all areas keeps within."""
    bonferroni = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / max(n_areas, 1))
    varied = [
        result.errors
        for result in results
        if result.estimate.variance > 0 and result.errors.any()
    ]
    if not varied:
        return bonferroni
    errors = np.stack(varied)
    errors /= np.linalg.norm(errors, axis=1, keepdims=True)
    # The same products in no more columns than rows
    errors = np.linalg.qr(errors.T).R.T
    n_columns = errors.shape[1]
    rng = np.random.default_rng(seed)
    largest = []
    for _ in range(_N_DRAWS // _DRAWS_AT_ONCE):
        multipliers = rng.normal(size=(n_columns, _DRAWS_AT_ONCE))
        largest.append((errors @ multipliers).max(axis=0))
    quantile = float(np.quantile(np.concatenate(largest), CONFIDENCE))
    quantile = round(quantile, 3)
    if len(varied) < len(results):
        quantile = max(quantile, bonferroni)
    return quantile


def holm(p_values: Floats) -> Floats:
    """Adjust p-values by Holm (1979); a missing one (NaN) counts as 1, and as a test."""
    is_missing = np.isnan(p_values)
    filled = np.where(is_missing, 1.0, p_values)
    order = np.argsort(filled, kind="stable")
    n_left = np.arange(filled.size, 0, -1)
    steps = np.maximum.accumulate(filled[order] * n_left)
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(steps, 1.0)
    return np.where(is_missing, np.nan, adjusted)
