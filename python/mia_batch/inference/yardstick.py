"""The yardstick: what an audit finds of texts that are known to a known degree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from mia_batch.errors import CorpusError
from mia_batch.inference import comparison
from mia_batch.inference.conformal import Adjustment, TieDraws, p_values, q_values
from mia_batch.inference.estimates import null_threshold
from mia_batch.inference.findings import (
    DecisionRule,
    Statistic,
    finding_rows,
    number_rows,
)
from mia_batch.inference.power import compute_power
from mia_batch.inference.verdicts import GroupTest, TargetTest
from mia_batch.stats import Floats, Ints
from mia_batch.stats.intervals import auc_interval, clopper_pearson, roc_auc
from mia_batch.tables import read_finite

_Row = dict[str, Any]


YARDSTICK_CHECKS = ("yardstick", "absence", "dose")  # names of the checks
_WORDS_GIVEN_BACK = 20
_LEVELS = ("rarely copied", "well known", "most copied")
_BOOKS = 4_000  # simulated for the probability
_DRAWS, _BOOKS_OF_DRAW = 200, 100  # of what the passages may be, and books of each
_FEWEST = 5  # scored passages of a level, from which a probability is given


def sort_levels(levels: Iterable[str]) -> list[str]:
    """Order levels, the least known first: numbers, or those of the classics."""
    named = list(levels)
    if {*named} <= {*_LEVELS}:
        return sorted(named, key=_LEVELS.index)
    try:
        return sorted(named, key=float)
    except ValueError as error:
        raise CorpusError(
            f"yardstick: column level holds {sorted(named)}; give numbers, such as how "
            f"often a text was copied, or {', '.join(map(repr, _LEVELS))}"
        ) from error


def yardstick_findings(
    scores: pl.LazyFrame, plan: DecisionRule, runs: pl.DataFrame, *, tested: bool = True
) -> pl.DataFrame:
    """Rows of checks ``yardstick`` and ``absence`` by level, the best known first; the primary's.

    ``runs`` has ``target_id``, ``reference_words`` and ``longest_words`` of each text
    of the yardstick, the last null where it was not continued. ``given_back``: the
    share of which 20 words in a row, or the whole reference, came out; ``above``: that
    above the `null_threshold`; ``roc_auc`` is against the least known level. Limits of
    Clopper and Pearson take passages for independent.
    """
    is_own = pl.col("role") == "yardstick"
    # A further column may be called row, too
    table = scores.select("role", "target_id", "group")
    keys = table.with_row_index("row").filter(is_own).drop("role")
    own = keys.join(runs.lazy(), on="target_id", how="left").sort("row").collect()
    sets = comparison.read_comparison_sets(scores, with_names=plan.level != "target")
    values = read_finite(scores, plan.primary, sets.target_id.len())
    names = sort_levels(own["group"].unique())[::-1]
    levels = {name: own.filter(group=name) for name in names}
    rows = {
        name: level["row"].to_numpy().astype(np.int64) for name, level in levels.items()
    }
    nulls, found = values[sets.nulls], list[pl.DataFrame]()
    for name, level in levels.items():
        least = values[rows[names[-1]]] if name != names[-1] else np.empty(0)
        made = _level_rows(level, values[rows[name]], nulls, least, plan.fpr)
        found.append(finding_rows("yardstick", made, subject=name))
    if sets.published.size:
        rows["canaries"] = sets.published
    if (
        tested
        and rows
        and sets.targets.size
        and sets.nulls.size
        and plan.level != "collection"
    ):
        naming = Naming(sets, values, plan)
        named = ({"subject": name, **naming.row(at)} for name, at in rows.items())
        found.append(
            finding_rows("absence", named, statistic="named", verdict=plan.level)
        )
    numbered = len(names) > 1 and not {*names} & {*_LEVELS}
    if numbered and sets.targets.size and (tested or not sets.nulls.size):
        ladder = np.concatenate([rows[name] for name in names])
        copies = np.repeat(
            [float(name) for name in names], [rows[name].size for name in names]
        )
        found.append(
            finding_rows("dose", _dose_rows(sets, values, plan, copies, values[ladder]))
        )
    return pl.concat([finding_rows("yardstick"), *found])


def _level_rows(
    level: pl.DataFrame, scores: Floats, nulls: Floats, least: Floats, fpr: float
) -> Iterator[_Row]:
    scored, least = scores[~np.isnan(scores)], least[~np.isnan(least)]
    yield from number_rows({"n": level.height, "n_scored": scored.size})
    continued = level.drop_nulls("longest_words")
    if continued.height:
        enough = pl.min_horizontal("reference_words", pl.lit(_WORDS_GIVEN_BACK))
        n = continued.filter(pl.col("longest_words") >= enough).height
        yield from number_rows({"n_continued": continued.height, "n_given_back": n})
        yield {"statistic": "given_back", **_share(n, continued.height)}
    if nulls.size and scored.size:
        n = int(np.count_nonzero(scored > null_threshold(nulls, fpr)[1]))
        yield from number_rows({"n_above": n})
        yield {"statistic": "above", **_share(n, scored.size)}
    if scored.size and least.size:
        member = np.arange(scored.size + least.size) < scored.size
        value, limits = (
            roc_auc(member, np.append(scored, least)),
            auc_interval(scored, least),
        )
        yield {
            "statistic": "roc_auc",
            "value": value,
            "low": limits.low,
            "high": limits.high,
        }


def _share(hits: int, n: int) -> _Row:
    limits = clopper_pearson(hits, n)
    return {"value": hits / n, "low": limits.low, "high": limits.high}


class Naming:
    """With which probability one book more, learnt like some passages, would have been named.

    The book is one more test with the real ones: of as many windows as the plan
    compares, each drawn from the passages' scores, independently. The limits are about
    the passages, which are few: each of 200 draws weights them by Rubin's (1981)
    Bayesian bootstrap, with one more that nobody saw, of the lowest score that there is
    for the lower limit, of the highest one for the upper limit. Of a book of one window
    that is the interval of Clopper and Pearson (1934), which is taken then.
    """

    def __init__(
        self, sets: comparison.ComparisonSets, values: Floats, plan: DecisionRule
    ) -> None:
        self._sets, self._values, self._plan = sets, values, plan
        if plan.level == "target":
            test = TargetTest(sets, plan)
            self._nulls, self._n_null, self._n_windows = (
                values[sets.nulls],
                test.n_null,
                1,
            )
            self._tests, self._adjustment = test.p_values(values)[0], test.adjustment
            return
        groups = GroupTest(sets, plan)
        self._nulls = groups.nulls.statistics(values, plan)
        self._n_null, self._n_windows = self._nulls.size, groups.n_windows
        self._tests, self._adjustment = (
            np.full(groups.groups.sizes.size, np.nan),
            plan.adjustment,
        )
        audited = groups.groups.statistics(values, plan)
        self._tests[groups.groups.usable] = p_values(audited, self._nulls)

    def row(self, places: Ints) -> _Row:
        """Give probability and limits of passages, by their rows; those without a score are out."""
        values = self._values
        scored = places[~np.isnan(values[places])]
        if scored.size < _FEWEST:
            return {
                "reason": f"{scored.size} passages have a score, {_FEWEST} are needed"
            }
        if self._plan.level == "target":
            texts = TargetTest(replace(self._sets, targets=scored), self._plan)
            return self._of_texts(texts.p_values(values)[0])
        if self._n_windows == 1:
            return self._of_texts(p_values(values[scored], self._nulls))
        n = self._nulls.size + 1
        rank = round(n * self._largest(np.arange(1, n + 1) / n))
        if not rank:
            return {"value": 0.0, "low": 0.0, "high": 0.0}
        highest = np.sort(np.append(np.nan_to_num(self._nulls, nan=np.inf), -np.inf))
        bound, rng = float(highest[-rank]), np.random.default_rng(self._plan.seed)
        return naming_probability(
            values[scored], bound, self._n_windows, self._plan.statistic, rng
        )

    def _of_texts(self, p: Floats) -> _Row:
        limit = self._largest(np.unique(p[~np.isnan(p)]))
        if not limit and not self._largest(np.array([1 / (self._n_null + 1)])):
            return {"value": 0.0, "low": 0.0, "high": 0.0}
        return _share(int(np.count_nonzero(p <= limit)), p.size)

    def _largest(self, p: Floats) -> float:
        """Find the largest of ascending p-values that is named with the real tests, or 0."""
        low, high = 0, p.size
        while low < high:
            middle = (low + high) // 2
            q = q_values(np.append(self._tests, p[middle]), self._adjustment)[-1]
            low, high = (middle + 1, high) if q <= self._plan.q else (low, middle)
        return float(p[low - 1]) if low else 0.0


def naming_probability(
    scores: Floats,
    bound: float,
    n_windows: int,
    statistic: Statistic,
    rng: np.random.Generator,
) -> _Row:
    """Simulate books of windows with such scores: how often their statistic is above ``bound``."""

    def share(weights: Floats, of: Floats, n: int) -> float:
        chosen = np.minimum(
            weights.cumsum().searchsorted(rng.random((n, n_windows))), of.size - 1
        )
        return float(np.mean(comparison.summarise(of[chosen], statistic) > bound))

    above, below = (
        np.nextafter(max(scores.max(), bound), np.inf),
        min(scores.min(), bound),
    )
    limits = []
    for unseen, level in ((below, 0.025), (above, 0.975)):
        of = np.append(scores, unseen)
        weights = rng.dirichlet(np.ones(of.size), _DRAWS)
        limits.append(
            np.quantile([share(each, of, _BOOKS_OF_DRAW) for each in weights], level)
        )
    value = share(np.full(scores.size, 1 / scores.size), scores, _BOOKS)
    return {"value": value, "low": min(limits[0], value), "high": max(limits[1], value)}


# Dose: how often texts were learnt, where the yardstick is a ladder: its levels are
# numbers.

_TAIL = 0.025
_MOST_DOSED = 1_000


def dose(scores: Floats, copies: Floats, of: Floats) -> tuple[Floats, Floats, Floats]:
    """Say how often texts with ``scores`` were learnt, from a ladder: texts with known ``copies``.

    Returns about how many copies, a lower limit and an upper one; NaN where there is
    none. The value is where the isotonic regression of the ladder's scores ``of`` on
    their copies reaches the score, between levels by log (1 + copies). The limits are
    the highest level that is refuted from below, all lower ones being refuted, and the
    lowest refuted from above, each by a conformal p-value of at most 0.025: that of the
    score among the texts of the level and, where they are too few, of the next levels
    on the other side of it. If scores rise with copies (stochastically) and a text is
    exchangeable with the ladder's of its own dose, the limits hold for it with 95 %,
    whatever the distributions: to err, the first level beyond the truth must be
    refuted.
    """
    from sklearn.isotonic import isotonic_regression

    levels, which, sizes = np.unique(copies, return_inverse=True, return_counts=True)
    known = ~np.isnan(of)
    n = np.bincount(which, known)
    means = np.bincount(which[known], of[known], levels.size)[n > 0] / n[n > 0]
    fitted, block = np.unique(
        isotonic_regression(means, sample_weight=n[n > 0]), return_inverse=True
    )
    logs = np.bincount(block, np.log1p(levels[n > 0])) / np.bincount(block)
    value = np.expm1(np.interp(scores, fitted, logs))
    needed = round(1 / _TAIL) - 1
    low, high = np.full((2, scores.size), np.nan)
    for limit, sign, order in ((low, 1, 1), (high, -1, -1)):
        refuted = ~np.isnan(scores)
        for place in range(levels.size)[::order]:
            n_up = sizes[place:] if order > 0 else sizes[: place + 1][::-1]
            last = min(int(np.searchsorted(n_up.cumsum(), needed)), n_up.size - 1)
            pool = (order * (which - place) >= 0) & (order * (which - place) <= last)
            refuted = refuted & (p_values(sign * scores, sign * of[pool]) <= _TAIL)
            limit[refuted] = levels[place]
    return value, low, high


def _dose_rows(
    sets: comparison.ComparisonSets,
    values: Floats,
    plan: DecisionRule,
    copies: Floats,
    of: Floats,
) -> Iterator[_Row]:
    """Give the dose of each audited text, or of each group from its statistic.

    The limits of a group are those of a single text with its mean, which is less
    certain.
    """
    if plan.level == "target":
        scores, keys = values[sets.targets], sets.target_id[sets.targets].to_list()
    else:
        units = comparison.cut_units(
            sets, sets.targets, comparison.windows_per_group(sets, plan), plan.seed
        )
        scores = units.statistics(values, plan)
        keys = sets.clusters["key"][units.cluster[units.usable]].to_list()
    why = "no text of the ladder has a score" if np.isnan(of).all() else None
    if plan.level != "target" and plan.statistic == "maximum":
        why = (
            "the highest of many windows is compared with single texts; take"
            " --statistic mean"
        )
    elif scores.size > _MOST_DOSED:
        why = f"more than {_MOST_DOSED:,} texts; ask --level group"
    if why is not None:
        yield {"statistic": "copies", "reason": why}
        return
    names = "value", "low", "high"
    for key, *found in zip(keys, *dose(scores, copies, of), strict=True):
        numbers = {
            name: None if np.isnan(n) else n
            for name, n in zip(names, found, strict=True)
        }
        reason = "no score" if np.isnan(found[0]) else None
        yield {"subject": key, "statistic": "copies", "reason": reason, **numbers}


# Null audits: how often the planned test reports texts that are known to be outside.

_AUDITS = 200
_MOST = 10_000  # texts, or groups
_CHECK = "null_audits"
_SPLITS = "the interval is about the draw of the splits alone, which share their texts"


def null_audit_findings(scores: pl.LazyFrame, plan: DecisionRule) -> pl.DataFrame:
    """Rows of check ``null_audits``: 200 audits of texts that are all known to be outside.

    Each takes whole clusters of non-members at random for the audited ones: as many as
    there are audited, at most half, and only so many that something can be reported.
    ``share_reporting`` is the share of audits that report any, with Clopper and
    Pearson's interval: verdict ``as_promised``, or ``too_often`` where it lies above q.
    ``share_below_fpr``: of their tests, those with a p-value of at most the plan's fpr.
    """
    sets = comparison.read_comparison_sets(scores, with_names=plan.level != "target")
    if not (sets.targets.size and sets.nulls.size):
        return finding_rows(_CHECK)
    why = "the plan is about all groups together, which have one p-value"
    if plan.level != "collection":
        score = read_finite(scores, plan.primary, sets.target_id.len())
        audit = (_of_texts if plan.level == "target" else _of_groups)(sets, score, plan)
        n_units = min(audit.n_units, max(2, _MOST // audit.size))
        n_tests = min(audit.n_audited, n_units // 2)
        while n_tests:
            n, n_null = n_tests * audit.size, n_units - n_tests
            if compute_power(n, n_null, plan.q, audit.adjustment).needed is not None:
                return audit_rows(
                    plan, n_tests, n_null, _audits(audit, n_tests, n_units, plan)
                )
            n_tests //= 2
        why = (
            f"{n_units:,} independent units outside the training data are too few: with"
            f" some of them audited, none could be reported at q = {plan.q:g}"
        )
    lost = {"statistic": "share_reporting", "reason": why}
    return finding_rows(_CHECK, [lost], subject=plan.level)


def _audits(
    audit: _Audit, n_tests: int, n_units: int, plan: DecisionRule
) -> list[tuple[bool, float]]:
    rng = np.random.default_rng(plan.seed)
    drawn = (rng.choice(audit.n_units, n_units, replace=False) for _ in range(_AUDITS))
    p = [audit.p_values(units[:n_tests], units[n_tests:]) for units in drawn]
    n_reported = (np.sum(q_values(each, audit.adjustment) <= plan.q) for each in p)
    shares = (float((each <= plan.fpr).mean()) for each in p)
    return [*zip(map(bool, n_reported), shares, strict=True)]


class _Audit(NamedTuple):
    """How to audit some of the units of nulls against others."""

    n_units: int
    size: int  # texts, or groups, of a unit
    n_audited: int  # units that are really audited
    adjustment: Adjustment
    p_values: Callable[[Ints, Ints], Floats]


def _of_texts(
    sets: comparison.ComparisonSets, scores: Floats, plan: DecisionRule
) -> _Audit:
    units, which = np.unique(sets.cluster[sets.nulls], return_inverse=True)

    def p(audited: Ints, nulls: Ints) -> Floats:
        chosen = [sets.nulls[np.isin(which, of)] for of in (audited, nulls)]
        rows, n_audited = np.concatenate(chosen), chosen[0].size
        own = replace(
            sets,
            target_id=sets.target_id.gather(rows),
            n_words=sets.n_words.gather(rows),
            cluster=sets.cluster[rows],
            targets=np.arange(n_audited),
            nulls=np.arange(n_audited, rows.size),
        )
        return TargetTest(own, plan).p_values(scores[rows])[0]

    dependent = sets.share_clusters(sets.targets, sets.nulls)
    adjustment: Adjustment = "by" if dependent else plan.adjustment
    n_audited = np.unique(sets.cluster[sets.targets]).size
    return _Audit(
        units.size, max(1, which.size // units.size), n_audited, adjustment, p
    )


def _of_groups(
    sets: comparison.ComparisonSets, scores: Floats, plan: DecisionRule
) -> _Audit:
    test = GroupTest(sets, plan)
    found, draws = test.nulls.statistics(scores, plan), test.ties and test.ties.nulls

    def p(audited: Ints, nulls: Ints) -> Floats:
        ties = None if draws is None else TieDraws(draws[audited], draws[nulls])
        return p_values(found[audited], found[nulls], ties=ties)

    return _Audit(found.size, 1, test.groups.sizes.size, plan.adjustment, p)


def audit_rows(
    plan: DecisionRule, n_tests: int, n_null: int, made: list[tuple[bool, float]]
) -> pl.DataFrame:
    """Of each audit ``made`` has whether it reports any, and its share of small p-values."""
    main: _Row = {"statistic": "share_reporting", "reason": _SPLITS}
    main |= _share(sum(any_reported for any_reported, _ in made), len(made))
    main["verdict"] = "too_often" if main["low"] > plan.q else "as_promised"
    before = {"n_audits": len(made), "n_tests": n_tests, "n_null": n_null, "q": plan.q}
    after = {
        "fpr": plan.fpr,
        "share_below_fpr": sum(share for _, share in made) / len(made),
    }
    rows = [*number_rows(before), main, *number_rows(after)]
    return finding_rows(_CHECK, rows, subject=plan.level)
