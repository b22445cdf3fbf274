"""Intervals of areas, rates, means, ratios and differences, for texts that depend on each other."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from mia_batch.stats import Codes, Flags, Floats, Ints

# Texts that depend on each other: what they are worth, dealt to folds and permuted
# together.

_FEWEST = 4  # a smaller effective number tells too little of how clusters differ for any interval
_ROUNDING = 1e-12


def effective_number(sizes: NDArray[np.integer[Any]]) -> float:
    """Clusters that there would be were they of one size: Kish (1965), "Survey Sampling"."""
    return float(sizes.sum()) ** 2 / float(np.square(sizes, dtype=np.float64).sum())


def is_enough(effective: Any) -> Any:
    """Whether clusters are worth enough of one size for an interval."""
    return effective > _FEWEST - _ROUNDING


def few(effective: float, where: str = "") -> str:
    return (
        f"an interval needs {_FEWEST} independent groups of texts of one size{where},"
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
    _, number, sizes = np.unique(cluster, return_inverse=True, return_counts=True)
    n, k = values.size, sizes.size
    if k < 2 or k == n:
        return 1.0
    means = np.bincount(number, values) / sizes
    between = float((sizes * (means - values.mean()) ** 2).sum() / (k - 1))
    within = float(((values - means[number]) ** 2).sum() / (n - k))
    size = float((sizes**2).sum() / n)
    spread = between + ((n - size) / (k - 1) - 1) * within
    return max(1.0, 1 + (size - 1) * (between - within) / spread) if spread else 1.0


class Folds(NamedTuple):
    """A division of clusters into folds, all numbered from 0."""

    cluster: Codes  # of each text
    fold: Codes  # of each cluster
    n_folds: int  # at least 2

    @property
    def fold_of_text(self) -> Codes:
        return self.fold[self.cluster]


def deal_folds(
    label: Flags, cluster: Codes, *, n_folds: int, generator: np.random.Generator
) -> Folds:
    """Deal shuffled clusters to the folds in turn: first all false, then mixed, then all true."""
    # So two clusters of a class come to different folds, and labels may be permuted
    # within folds. scikit-learn's StratifiedGroupKFold looks at sizes and labels
    # together, so that divisions are not equally likely and permuted labels no null.
    share = np.bincount(cluster, label) / np.bincount(cluster)
    kind = np.sign(share) + (share == 1)
    fold = np.empty(share.size, dtype=np.intp)
    fold[_shuffled(kind, generator)] = np.arange(share.size) % n_folds
    return Folds(cluster, fold, n_folds)


def permute_labels(label: Flags, folds: Folds, generator: np.random.Generator) -> Flags:
    """Give each cluster the share of true labels of another one of its fold and kind."""
    # Which of its texts are true is drawn anew. A share that gives no whole number of
    # texts is rounded at random, to at least one text of each class.
    size = np.bincount(folds.cluster)
    share = np.bincount(folds.cluster, label) / size
    mixed = (share > 0) & (share < 1)
    block = 2 * folds.fold + mixed
    drawn = np.empty_like(share)
    drawn[np.argsort(block, kind="stable")] = share[_shuffled(block, generator)]
    n_true = np.floor(drawn * size + generator.random(share.size))
    n_true = np.where(mixed, np.clip(n_true, 1, size - 1), drawn * size)
    order = _shuffled(folds.cluster, generator)
    position = np.empty_like(order)
    position[order] = np.arange(order.size) - np.repeat(np.cumsum(size) - size, size)
    return position < n_true[folds.cluster]


def _shuffled(key: NDArray[np.generic], generator: np.random.Generator) -> Codes:
    """Order that sorts by the key and is random among equals."""
    order: Codes = np.lexsort((generator.random(key.size), key))
    return order


# ROC curves, and intervals of their areas, of rates, of means and of ratios.
#
# Members are the positive class and a higher score means "more likely a member". Both classes must
# be present and scores finite.

CONFIDENCE = 0.95
_AT_ONCE = 65_536  # scores whose placements are in memory together


class OperatingPoint(NamedTuple):
    """One point of a ROC curve."""

    threshold: (
        float  # predicted member if ``score >= threshold``; infinite where nothing is
    )
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
        parts = (
            self.members[at : at + _AT_ONCE]
            for at in range(0, self.members.size, _AT_ONCE)
        )
        won = sum(_n_beaten(part, self.nonmembers).sum() for part in parts)
        return float(won / (self.members.size * self.nonmembers.size))

    def point(self, threshold: float) -> OperatingPoint:
        fpr, tpr = (
            float(_share_from(of, threshold)) for of in (self.nonmembers, self.members)
        )
        return OperatingPoint(threshold, fpr, tpr)

    def at_fpr(self, budget: float) -> OperatingPoint:
        """Point of the largest TPR whose empirical FPR is **at most** the budget."""
        # Neither interpolated nor nearest. Where no score can be flagged within the
        # budget, the threshold is infinite.
        n = self.nonmembers.size
        spared = (
            n - bisect_right(range(n + 1), budget, key=lambda flagged: flagged / n) + 1
        )
        classes = (self.members, self.nonmembers)
        if spared == 0:
            return self.point(float(min(scores[0] for scores in classes)))
        highest = self.nonmembers[spared - 1]
        above = [
            scores[scores.searchsorted(highest, side="right") :] for scores in classes
        ]
        lowest = min((scores[0] for scores in above if scores.size), default=np.inf)
        return self.point(float(lowest))

    def widest_gap(self) -> OperatingPoint:
        return self.point(float(self.threshold[np.argmax(self.tpr - self.fpr)]))


def roc_curve(member: Flags, score: Floats) -> RocCurve:
    return RocCurve(np.sort(score[member]), np.sort(score[~member]))


def roc_auc(member: Flags, score: Floats) -> float:
    return roc_curve(member, score).area


def _n_beaten(scores: Floats, others: Floats) -> Floats:
    """Count for each score the others below it, ties one half."""
    below, not_above = (
        others.searchsorted(scores, side=side) for side in ("left", "right")
    )
    return (below + not_above) / 2


def _share_from(scores: Floats, threshold: float | Floats) -> Floats:
    """Share of rising scores that reach a threshold."""
    return (scores.size - scores.searchsorted(threshold, side="left")) / scores.size


class AucEstimate(NamedTuple):
    """A ROC AUC and what is known of its error."""

    value: float  # in [0, 1]
    variance: float  # 0 where undefined (a single text or cluster of a class)
    # members and non-members; where texts are clustered, `effective_number` of their
    # clusters
    sizes: tuple[float, float]
    clustered: bool  # whether texts share clusters

    @property
    def lack(self) -> str | None:
        if self.n_groups is None or is_enough(self.n_groups):
            return None
        return few(self.n_groups, " in each class")

    @property
    def n_groups(self) -> float | None:
        """Effective number of clusters of the class that has fewer; None of independent texts."""
        return min(self.sizes) if self.clustered else None

    def quantile(self, z: float) -> float:
        """Student's quantile, of ``n_groups - 1`` degrees of freedom, for a normal one."""
        if self.n_groups is None:
            return z
        from scipy.stats import norm, t

        return float(t.isf(norm.sf(z), self.n_groups - 1))


def estimate_auc(
    member: Flags, score: Floats, cluster: NDArray[np.int32] | None = None
) -> tuple[AucEstimate, Floats]:
    """Compute a ROC AUC and the influence of each text, or of each cluster in the order of codes.

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
    for rows, others, sign, mean in (
        (np.flatnonzero(member), curve.nonmembers, 1, value),
        (np.flatnonzero(~member), curve.members, -1, 1 - value),
    ):
        counts = np.zeros(influence.size, np.int32)
        np.add.at(counts, codes[rows], 1)
        sizes.append(effective_number(counts))
        own = np.zeros_like(influence)
        for start in range(0, rows.size, _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            placement = _n_beaten(score[part], others) / others.size - mean
            np.add.at(own, codes[part], placement / rows.size)
        influence += (
            sign * own / np.sqrt(np.maximum(1 - counts / rows.size, 1 / rows.size))
        )
    if min(sizes) == 1:  # a class is one text or cluster
        influence[:] = 0
    estimate = AucEstimate(
        value, float(influence @ influence), (sizes[0], sizes[1]), cluster is not None
    )
    return estimate, influence


# Confidence intervals for the area under a ROC curve.

_DELONG_WITHIN = (0.05, 0.95)  # outside, simulation gives DeLong too low a coverage


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float  # above ``low``
    confidence: float  # nominal coverage, in (0, 1)
    method: str  # how it was made


def auc_interval(
    members: Floats, nonmembers: Floats, *, confidence: float = CONFIDENCE
) -> Interval:
    score = np.concatenate([members, nonmembers])
    estimate, _ = estimate_auc(np.arange(score.size) < members.size, score)
    # Only of clusters there can be too few.
    return cast("Interval", estimate_interval(estimate, confidence=confidence))


def estimate_interval(
    estimate: AucEstimate, *, confidence: float = CONFIDENCE
) -> Interval | None:
    """Interval of a ROC AUC by `auc_limits`; of clusters by Student's t, and none below 4."""
    if estimate.lack:
        return None
    quantile = estimate.quantile(NormalDist().inv_cdf((1 + confidence) / 2))
    low, high, method = auc_limits(
        estimate.value, estimate.variance, estimate.sizes, quantile
    )
    if estimate.n_groups is not None:
        method = {"delong_logit": "group_logit_t", "newcombe_5": "newcombe_5_groups"}[
            method
        ]
    return Interval(low, high, confidence, method)


def auc_limits(
    auc: float, variance: float, sizes: tuple[float, float], quantile: float
) -> tuple[float, float, str]:
    """Limits of a ROC AUC so many standard errors away, and their method; never of zero width.

    DeLong's variance on the logit scale where the AUC lies from 0.05 to 0.95; beyond,
    and where that variance is 0 or undefined: Newcombe (2006), "Confidence intervals
    for an effect size measure based on the Mann-Whitney statistic. Part 2", method 5.
    """
    from scipy.special import expit, logit

    if variance > 0 and is_middling(auc):
        half = quantile * variance**0.5 / (auc * (1 - auc))
        return (
            float(expit(logit(auc) - half)),
            float(expit(logit(auc) + half)),
            "delong_logit",
        )
    low, below = (_newcombe_low(area, *sizes, quantile) for area in (auc, 1 - auc))
    return low, 1 - below, "newcombe_5"


def is_middling(auc: float) -> bool:
    """Whether an AUC is far enough from 0 and 1 for limits from its estimated variance."""
    return _DELONG_WITHIN[0] <= auc <= _DELONG_WITHIN[1]


def _newcombe_low(auc: float, n1: float, n0: float, z: float) -> float:
    """Smallest AUC that is z standard errors, as they were of it, below the one observed."""
    from scipy.optimize import brentq

    # Hanley and McNeil's error, with the numbers of both classes replaced by their
    # mean, so that the interval mirrors when the classes change places.
    extra = (n1 + n0) / 2 - 1

    def gap(tried: float) -> float:
        spread = 1 + extra * ((1 - tried) / (2 - tried) + tried / (1 + tried))
        return (auc - tried) ** 2 - z**2 * tried * (1 - tried) * spread / (n1 * n0)

    return float(brentq(gap, 0.0, min(auc, 1 - 1e-12), xtol=1e-12)) if auc else 0.0


# Confidence intervals for rates: at a false-positive budget, and at a threshold fixed
# before.

_FEWEST_GROUPS = (
    5  # where fewer have flagged texts, or others, how much groups differ is unknown
)


def independent_number(flagged: Flags, cluster: NDArray[np.integer[Any]]) -> float:
    """Count the independent texts of which a share would be as well known as of these clusters.

    Texts by the `design_effect`, and by the square of how much wider Student's t is
    than the normal: Korn and Graubard (1998), "Confidence intervals for proportions
    with small expected number of positive counts estimated from survey data", section
    2. Where fewer than 5 clusters have flagged texts, or others, at most the
    `effective_number`.
    """
    from scipy.stats import norm, t

    _, codes, sizes = np.unique(cluster, return_inverse=True, return_counts=True)
    if sizes.size == flagged.size:
        return float(flagged.size)
    effective = effective_number(sizes)
    n = flagged.size / design_effect(flagged.astype(np.float64), codes)
    n_flagged = np.bincount(codes, flagged)
    if min((n_flagged > 0).sum(), (n_flagged < sizes).sum()) < min(
        _FEWEST_GROUPS, sizes.size
    ):
        n = min(n, effective)
    wider = float(t.isf(0.025, effective - 1) / norm.isf(0.025))
    return float(max(n / wider**2, 1.0))


def tpr_interval(
    curve: RocCurve, budget: float, tpr: float, sizes: tuple[float, float]
) -> Interval:
    """Interval of the TPR at a false-positive budget, for any distribution of scores.

    The TPR errs because the members are few, within Clopper-Pearson limits, and because
    the threshold is estimated: two order statistics of the non-members enclose the one
    whose FPR is the budget, David and Nagaraja (2003), "Order statistics", section 7.1.
    Both are joined as by Zou and Donner (2008), "Construction of confidence limits
    about effect measures: a general approach", equations 1 and 2. ``sizes``:
    independent members and non-members.
    """
    from scipy.stats import binom

    error, n = (1 - CONFIDENCE) / 2, int(sizes[1])
    there = curve.nonmembers.size
    above = int(binom.isf(error, n, 1 - budget)) + 1
    below = int(binom.ppf(error, n, 1 - budget))
    least = 0.0 if above > n else _share_above(curve, -(-above * there // n))
    most = _share_above(curve, below * there // n)
    of_members = clopper_pearson(tpr * sizes[0], sizes[0])
    low = tpr - float(np.hypot(tpr - of_members.low, max(tpr - least, 0.0)))
    high = tpr + float(np.hypot(of_members.high - tpr, max(most - tpr, 0.0)))
    return Interval(max(low, 0.0), min(high, 1.0), CONFIDENCE, "order_statistics")


def _share_above(curve: RocCurve, rank: int) -> float:
    """Share of members above the non-member of a rank, counted from the lowest."""
    if rank < 1:
        return 1.0
    spared = curve.nonmembers[rank - 1]
    return float(
        1 - curve.members.searchsorted(spared, side="right") / curve.members.size
    )


def threshold_fpr_interval(n: float, budget: float) -> Interval:
    """Range of the true FPR of a threshold that spends a budget on so many non-members.

    With k = floor(n FPR) flagged, Beta(k + 1, n - k) for scores without ties: David and
    Nagaraja (2003), section 2.3; Vovk (2012), "Conditional validity of inductive
    conformal predictors".
    """
    from scipy.stats import beta

    k = int(int(n) * budget * (1 + 1e-12))
    low, high = beta.interval(CONFIDENCE, k + 1, int(n) - k)
    return Interval(float(low), float(high), CONFIDENCE, "beta")


def clopper_pearson(hits: float, n: float) -> Interval:
    """Interval of a rate at a threshold fixed on other data: Clopper and Pearson (1934)."""
    from scipy.stats import beta

    error = (
        1 - CONFIDENCE
    ) / 2  # a parameter of 0 gives NaN, where the limit is 0 or 1
    low = float(np.nan_to_num(beta.ppf(error, hits, n - hits + 1), nan=0.0))
    high = float(np.nan_to_num(beta.isf(error, hits + 1, n - hits), nan=1.0))
    return Interval(low, high, CONFIDENCE, "clopper_pearson")


# Means of paired differences, with errors that move together within clusters.


class Means(NamedTuple):
    """Means of some numbers of each text, by unit."""

    value: Floats  # a row for each unit and a column for each number
    covariance: (
        Floats  # estimated from clusters; 0 where all clusters agree, or there is one
    )
    n: Ints  # texts of each unit
    n_clusters: Ints
    effective: Floats  # `effective_number` of clusters, at most ``n_clusters``

    @property
    def enough(self) -> Flags:
        return np.asarray(is_enough(self.effective))

    def half_widths(self) -> Floats:
        """Half of each interval, by Student's t; NaN where the data support none."""
        return self._by_t()[0]

    def p_values(self) -> Floats:
        """Two-sided, of a mean of 0, by the same t; NaN where there is no interval."""
        return self._by_t()[1]

    def _by_t(self) -> tuple[Floats, Floats]:
        from scipy.stats import t

        variance = np.diagonal(self.covariance, axis1=1, axis2=2)
        errors = np.sqrt(np.where(variance > 0, variance, np.nan))
        freedom = np.where(self.enough, self.effective - 1, np.nan)[:, None]
        half = np.asarray(t.ppf((1 + CONFIDENCE) / 2, freedom) * errors)
        return half, np.asarray(2 * t.sf(np.abs(self.value / errors), freedom))


def cluster_means(values: Floats, unit: Codes, cluster: Codes) -> Means:
    r"""Average numbers over the texts of each unit, with a covariance from whole clusters.

    With \(n_k\) texts and the sum \(s_k\) in cluster k, and n texts, the mean is
    \(\bar s = \sum s_k / n\) and its variance

    .. math:: \sum_k \frac{(s_k - n_k \bar s)^2}{1 - n_k / n} / n^2

    Cochran (1977), "Sampling techniques", section 6.3, for the ratio of sums; Bell and
    McCaffrey (2002), for the denominator.
    """
    width = int(cluster.max()) + 1
    pairs, code, size = np.unique(
        unit * width + cluster, return_inverse=True, return_counts=True
    )
    owner = pairs // width
    n, n_clusters = np.bincount(owner, size), np.bincount(owner)
    sums = np.stack([np.bincount(code, column) for column in values.T], axis=1)
    mean = (
        np.stack([np.bincount(owner, column) for column in sums.T], axis=1) / n[:, None]
    )
    gaps = sums - size[:, None] * mean[owner]
    gaps[np.abs(gaps) <= _ROUNDING * size[:, None] * np.abs(values).max(axis=0)] = 0
    products = gaps[:, :, None] * gaps[:, None, :]
    products /= np.maximum(1 - size / n[owner], 1 / n[owner])[:, None, None]
    covariance = np.zeros((n.size, *products.shape[1:]))
    np.add.at(covariance, owner, products)
    covariance /= n[:, None, None] ** 2
    effective = n**2 / np.bincount(owner, size.astype(np.float64) ** 2)
    return Means(mean, covariance, n.astype(np.int64), n_clusters, effective)


class Ratio(NamedTuple):
    """A ratio, or the reason why value or interval is missing."""

    value: float | None = None
    interval: Interval | None = None
    reason: str | None = None


def removed_share(gaps: Floats, covariance: Floats, effective: float) -> Ratio:
    r"""Share of a difference that unlearning has removed: Fieller (1954).

    ``gaps`` are the means x of before - after and y of before - retrained, over
    ``effective`` independent clusters. The interval holds every share \(\rho\) with
    \((x - \rho y)^2 \le t^2 (v_x - 2 \rho c + \rho^2 v_y)\). It is not clipped: below 0
    unlearning made it worse, above 1 it went further than the retrained model.
    """
    from scipy.stats import t

    if not is_enough(effective):
        return Ratio(reason=few(effective))
    (x, y), ((v_x, c), (_, v_y)) = gaps.tolist(), covariance.tolist()
    squared = float(t.ppf((1 + CONFIDENCE) / 2, effective - 1)) ** 2
    if y * y <= squared * v_y:
        return Ratio(
            reason="the runs before and of the retrained model cannot be distinguished"
        )
    if y < 0:
        return Ratio(
            reason="the run before does not score above that of the retrained model"
        )
    a, b, rest = y * y - squared * v_y, x * y - squared * c, x * x - squared * v_x
    spread = max(b * b - a * rest, 0.0) ** 0.5
    if spread <= 1e-9 * abs(a):
        reason = "the same share is removed everywhere, so that its spread is unknown"
        return Ratio(value=x / y, reason=reason)
    low, high = (b - spread) / a, (b + spread) / a
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
    half = _half(_influence(sums), cluster)
    if isinstance(half, str):
        return Ratio(value=value, reason=half)
    if not 0 < value < 1:
        return Ratio(value=value, reason=_GROUPS_AGREE)
    from scipy.special import expit, logit

    middle, wide = logit(value), half / (value * (1 - value))
    low, high = float(expit(middle - wide)), float(expit(middle + wide))
    return Ratio(value, Interval(low, high, CONFIDENCE, "ratio_logit_t"))


def ratio_difference(one: Floats, other: Floats, cluster: Codes) -> Ratio:
    """Subtract a ratio of sums over the same texts from another, with an interval of the pair."""
    if not one[1].any() or not other[1].any():
        return Ratio(reason=_NOTHING)
    value = float(one[0].sum() / one[1].sum() - other[0].sum() / other[1].sum())
    half = _half(_influence(one) - _influence(other), cluster)
    if isinstance(half, str):
        return Ratio(value=value, reason=half)
    return Ratio(
        value, Interval(value - half, value + half, CONFIDENCE, "ratio_difference_t")
    )


def _influence(sums: Floats) -> Floats:
    above, below = sums
    ratio = above.sum() / below.sum()
    return np.asarray((above - ratio * below) / below.mean())


def _half(influence: Floats, cluster: Codes) -> float | str:
    means = cluster_means(
        influence[:, None], np.zeros(len(influence), np.intp), cluster
    )
    if not means.enough[0]:
        return few(float(means.effective[0]))
    half = float(means.half_widths()[0, 0])
    return half if np.isfinite(half) else _GROUPS_AGREE


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
    """Compare two scores of the same texts by their ROC AUC; texts without both are left out.

    Normal limits by the covariance of both areas where these lie from 0.05 to 0.95:
    DeLong, DeLong and Clarke-Pearson (1988), equation 7; Obuchowski (1997). Beyond, and
    where both rank alike, the limits of each area, joined as if their errors were
    independent: wide, but never of zero width, Zou and Donner (2008), equation 7.
    """
    both = np.isfinite(first) & np.isfinite(second)
    member, first, second = member[both], first[both], second[both]
    cluster = None if cluster is None else cluster[both]
    sizes = int(member.sum()), int(np.count_nonzero(~member))
    if 0 in sizes:
        return Difference(*sizes, reason="a class has no text that has both scores")
    area_1, influence_1 = estimate_auc(member, first, cluster)
    area_2, influence_2 = estimate_auc(member, second, cluster)
    gaps, value = influence_1 - influence_2, area_1.value - area_2.value
    if area_1.lack:
        return Difference(*sizes, value=value, reason=area_1.lack)
    variance = float(gaps @ gaps)
    low, high, method = _limits(
        area_1, area_2, variance, NormalDist().inv_cdf((1 + confidence) / 2)
    )
    interval = Interval(max(-1.0, low), min(1.0, high), confidence, method)
    return Difference(*sizes, value, interval, _p_value(area_1, area_2, variance))


def _p_value(first: AucEstimate, second: AucEstimate, variance: float) -> float:
    """Two-sided p-value: the level at which a limit of the interval is 0."""
    from scipy.optimize import brentq

    def left(z: float) -> float:
        """How far the nearer limit, at so many standard errors, is from 0."""
        low, high, _ = _limits(first, second, variance, z)
        return low if first.value > second.value else -high

    if left(_NEAREST) <= 0:
        return 1.0
    z = (
        _FARTHEST
        if left(_FARTHEST) > 0
        else float(brentq(left, _NEAREST, _FARTHEST, xtol=1e-9))
    )
    return 2 * NormalDist().cdf(-z)


def _limits(
    first: AucEstimate, second: AucEstimate, variance: float, z: float
) -> tuple[float, float, str]:
    """Limits at a normal quantile, and how they were made; they may lie beyond -1 and 1."""
    quantile = first.quantile(z)
    value = first.value - second.value
    if variance > 0 and is_middling(first.value) and is_middling(second.value):
        half = quantile * variance**0.5
        method = "delong_paired" if first.n_groups is None else "cluster_paired_t"
        return value - half, value + half, method
    (low_1, high_1), (low_2, high_2) = (
        auc_limits(area.value, area.variance, area.sizes, quantile)[:2]
        for area in (first, second)
    )
    below = np.hypot(first.value - low_1, high_2 - second.value)
    above = np.hypot(high_1 - first.value, second.value - low_2)
    return value - float(below), value + float(above), "mover"


N_BLOCKS = (
    2_048  # sums that the errors of an area are kept in: correlations are known to 0.02
)
# Draws of the largest error; the quantile, of which three digits are kept, is known to
# 0.03.
_N_DRAWN, _DRAWN_AT_ONCE = 5_000, 1_000


class AucResult(NamedTuple):
    """One area of many, an attack's on a slice."""

    estimate: AucEstimate
    # influences of the texts or clusters, in sums over blocks of them that are the same
    # for all
    errors: Floats
    counts: dict[str, int]  # numbers of targets, columns of the metrics table


def simultaneous_bounds(
    tried: Mapping[tuple[str, str], AucResult], *, seed: int = 0
) -> dict[tuple[str, str], Interval | None]:
    """Bound areas from below so that all bounds hold together; None below 4 groups of a class.

    The quantile of the largest studentised error over all areas (max-t), by a
    multiplier bootstrap of their influences, takes the place of the normal one in each
    area's own limit; at least Bonferroni's where an area has no variance. Chernozhukov,
    Chetverikov and Kato (2013), "Gaussian approximations and multiplier bootstrap";
    Hothorn et al. (2008), section 3.
    """
    quantile = _quantile(
        [one for one in tried.values() if not one.estimate.lack], len(tried), seed
    )
    method = f"max_t over {len(tried)}"
    bounds: dict[tuple[str, str], Interval | None] = dict.fromkeys(tried)
    for key, one in tried.items():
        area = one.estimate
        if not area.lack:
            limits = auc_limits(
                area.value, area.variance, area.sizes, area.quantile(quantile)
            )
            bounds[key] = Interval(limits[0], 1.0, CONFIDENCE, method)
    return bounds


def _quantile(tried: Sequence[AucResult], n_tried: int, seed: int) -> float:
    """Find how many standard errors the largest error of all areas keeps within."""
    bonferroni = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / max(n_tried, 1))
    varied = [
        one.errors for one in tried if one.estimate.variance > 0 and one.errors.any()
    ]
    if not varied:
        return bonferroni
    errors = np.stack(varied)
    errors /= np.linalg.norm(errors, axis=1, keepdims=True)
    errors = np.linalg.qr(
        errors.T
    ).R.T  # the same products in no more columns than rows
    rng = np.random.default_rng(seed)
    largest = [
        (errors @ rng.normal(size=(errors.shape[1], _DRAWN_AT_ONCE))).max(axis=0)
        for _ in range(_N_DRAWN // _DRAWN_AT_ONCE)
    ]
    quantile = round(float(np.quantile(np.concatenate(largest), CONFIDENCE)), 3)
    return quantile if len(varied) == len(tried) else max(quantile, bonferroni)


def holm(p: Floats) -> Floats:
    """Adjust p-values by Holm (1979); a missing one (NaN) counts as 1, and as a test."""
    known = np.where(np.isnan(p), 1.0, p)
    order = np.argsort(known, kind="stable")
    adjusted = np.empty_like(p)
    steps = np.maximum.accumulate(known[order] * np.arange(p.size, 0, -1))
    adjusted[order] = np.minimum(steps, 1.0)
    return np.where(np.isnan(p), np.nan, adjusted)
