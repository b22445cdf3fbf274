"""Shares of a population of which some were drawn without replacement, and their intervals."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from mia_batch.stats.intervals import CONFIDENCE, Interval

_ERROR = (1 - CONFIDENCE) / 2


class Stratum(NamedTuple):
    """What was drawn of one part of a population, such as a source of documents."""

    n_total: int
    n_drawn: int  # at least 1
    n_hits: int  # of those drawn


def hypergeometric_interval(stratum: Stratum) -> Interval:
    """Compute the exact interval of the share of hits among all, where one part was drawn from.

    With K hits among N, those among n drawn are hypergeometric. The limits are the smallest
    and the largest K under which so many, or so few, come with a probability above 2.5 %:
    Buonaccorsi (1987), "A note on confidence intervals for proportions in finite
    populations".
    """
    from scipy.stats import hypergeom

    total, drawn, hits = stratum

    def allows_as_many(n_total_hits: int) -> bool:
        return bool(hypergeom.sf(hits - 1, total, n_total_hits, drawn) > _ERROR)

    def allows_as_few_no_more(n_total_hits: int) -> bool:
        return not hypergeom.cdf(hits, total, n_total_hits, drawn) > _ERROR

    # So many hits are there for sure, and so many others
    possible = range(hits, total - (drawn - hits) + 1)
    fewest = possible[bisect_left(possible, True, key=allows_as_many)]
    most = possible[bisect_left(possible, True, key=allows_as_few_no_more) - 1]
    return Interval(fewest / total, most / total, CONFIDENCE, "hypergeometric")


def share_interval(strata: Sequence[Stratum]) -> Interval:
    r"""Compute an interval of the share of hits in a population from what was drawn of its parts.

    Of one part it is `hypergeometric_interval`. Of several, with y the weighted share,
    \(w_i = N_i / (N n_i)\) the weight of a hit in part i, \(v = \sum w_i^2 x_i\) and w the
    largest weight, the limits are

    .. math:: \frac{v}{2y} \chi^2_{2 y^2 / v}(0.025), \quad
        \frac{v + w^2}{2 (y + w)} \chi^2_{2 (y + w)^2 / (v + w^2)}(0.975)

    Fay and Feuer (1997), "Confidence intervals for directly standardized rates: a method
    based on the gamma distribution", equations 1 and 3. They are those of Poisson counts,
    which vary more than counts of a draw, so that shares far from 0 get wider intervals.
    Parts that were drawn as a whole have no error.
    """
    from scipy.stats import chi2

    if len(strata) == 1:
        return hypergeometric_interval(strata[0])
    total = sum(stratum.n_total for stratum in strata)
    certain = 0.0
    share = 0.0
    variance = 0.0
    largest_weight = 0.0
    for stratum in strata:
        weight = stratum.n_total / (total * stratum.n_drawn)
        if stratum.n_drawn == stratum.n_total:
            certain += stratum.n_hits * weight
            continue
        share += stratum.n_hits * weight
        variance += stratum.n_hits * weight**2
        largest_weight = max(largest_weight, weight)
    low = 0.0
    high = 0.0
    if share:
        scale = variance / (2 * share)
        low = scale * chi2.ppf(_ERROR, 2 * share**2 / variance)
    if largest_weight:
        share += largest_weight
        variance += largest_weight**2
        high = variance / (2 * share) * chi2.isf(_ERROR, 2 * share**2 / variance)
    high = min(certain + float(high), 1.0)
    return Interval(certain + float(low), high, CONFIDENCE, "fay_feuer")


def weighted_share(strata: Sequence[Stratum]) -> float:
    """Return the share of hits in a population, each part by its size: Cochran (1977), 5.3."""
    total = sum(stratum.n_total for stratum in strata)
    n_hits = sum(
        stratum.n_total * stratum.n_hits / stratum.n_drawn for stratum in strata
    )
    return n_hits / total


class DomainStratum(NamedTuple):
    """What was drawn of one part of a population, where the share is about some of it."""

    n_total: int
    n_drawn: int  # at least 1
    n_domain: int  # of those drawn, so many the share is about
    n_hits: int  # of these


class DomainShare(NamedTuple):
    """The share of hits in a domain of a population, and how it varies from draw to draw."""

    share: float
    variance: float
    size: float  # of the domain in the population, an estimate


def estimate_domain_share(strata: Sequence[DomainStratum]) -> DomainShare:
    r"""Estimate a share that is about some of the population, such as texts of enough words.

    It is the combined ratio of two sums, \(\hat R = \sum N_h \bar y_h / \sum N_h \bar x_h\)
    with y = 1 for a hit and x = 1 in the domain, whose variance is about

    .. math:: \frac{1}{\hat X^2} \sum_h N_h^2 (1 - n_h / N_h) \frac{s_h^2}{n_h}

    with \(s_h^2\) that of \(y - \hat R x\) among those drawn: Cochran (1977), "Sampling
    Techniques", section 6.11. For \(s_h^2\) a hit and another are added to those drawn of
    each part, so that it is never 0. The domain has at least one document.
    """
    n_hits = 0.0
    size = 0.0
    for total, drawn, domain, hits in strata:
        n_hits += total * hits / drawn
        size += total * domain / drawn
    share = n_hits / size
    variance = 0.0
    for total, drawn, domain, hits in strata:
        n_above = hits + 1
        n_others = domain - hits + 1
        residuals = n_above * (1 - share) - n_others * share
        squares = n_above * (1 - share) ** 2 + n_others * share**2
        spread = (squares - residuals**2 / (drawn + 2)) / (drawn + 1)
        variance += total**2 * (1 - drawn / total) * spread / drawn
    return DomainShare(share, variance / size**2, size)
