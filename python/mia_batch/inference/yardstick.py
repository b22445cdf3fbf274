"""The yardstick: what an audit finds of texts that are known to a known degree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
_DRAWS = 200  # of what the passages may be
_BOOKS_OF_DRAW = 100
_FEWEST = 5  # scored passages of a level, from which a probability is given


def sort_levels(levels: Iterable[str]) -> list[str]:
    """Order levels, the least known first: numbers, or those of the classics."""
    names = list(levels)
    if {*names} <= {*_LEVELS}:
        return sorted(names, key=_LEVELS.index)
    try:
        return sorted(names, key=float)
    except ValueError as error:
        raise CorpusError(
            f"yardstick: column level holds {sorted(names)}; give numbers, such as how "
            f"often a text was copied, or {', '.join(map(repr, _LEVELS))}"
        ) from error


def yardstick_findings(
    scores: pl.LazyFrame,
    rule: DecisionRule,
    runs: pl.DataFrame,
    *,
    tested: bool = True,
) -> pl.DataFrame:
    """Rows of checks ``yardstick`` and ``absence`` by level, the best known first; the primary's.

    ``runs`` has ``target_id``, ``reference_words`` and ``longest_words`` of each text
    of the yardstick, the last null where it was not continued. ``given_back``: the
    share of which 20 words in a row, or the whole reference, came out; ``above``: that
    above the `null_threshold`; ``roc_auc`` is against the least known level. Limits of
    Clopper and Pearson take passages for independent.
    """
    # A further column may be called row, too
    rows = scores.select("role", "target_id", "group").with_row_index("row")
    texts = rows.filter(pl.col("role") == "yardstick").drop("role")
    texts = texts.join(runs.lazy(), on="target_id", how="left").sort("row")
    passages = texts.collect()
    with_names = rule.level != "target"
    sets = comparison.read_comparison_sets(scores, with_names=with_names)
    values = read_finite(scores, rule.primary, sets.target_id.len())
    nulls = values[sets.nulls]
    names = sort_levels(passages["group"].unique())[::-1]
    levels = {name: passages.filter(group=name) for name in names}
    level_rows = {
        name: level["row"].to_numpy().astype(np.int64) for name, level in levels.items()
    }
    tables = [finding_rows("yardstick")]
    for name, level in levels.items():
        is_least = name == names[-1]
        reference = np.empty(0) if is_least else values[level_rows[names[-1]]]
        level_scores = values[level_rows[name]]
        finding = _level_rows(level, level_scores, nulls, reference, rule.fpr)
        tables.append(finding_rows("yardstick", finding, subject=name))
    has_targets = sets.targets.size > 0
    has_nulls = sets.nulls.size > 0
    passage_rows = dict(level_rows)
    if sets.published.size:
        passage_rows["canaries"] = sets.published
    can_compare = has_targets and has_nulls and rule.level != "collection"
    if tested and passage_rows and can_compare:
        tables.append(_absence_findings(sets, values, rule, passage_rows))
    is_ladder = len(names) > 1 and not {*names} & {*_LEVELS}
    if is_ladder and has_targets and (tested or not has_nulls):
        ladder = np.concatenate([level_rows[name] for name in names])
        sizes = [level_rows[name].size for name in names]
        copies = np.repeat([float(name) for name in names], sizes)
        doses = _dose_rows(
            sets,
            values,
            rule,
            copies,
            values[ladder],
        )
        tables.append(finding_rows("dose", doses))
    return pl.concat(tables)


def _absence_findings(
    sets: comparison.ComparisonSets,
    values: Floats,
    rule: DecisionRule,
    passage_rows: Mapping[str, Ints],
) -> pl.DataFrame:
    naming = Naming(sets, values, rule)
    rows = [
        {"subject": name, **naming.row(rows_of_name)}
        for name, rows_of_name in passage_rows.items()
    ]
    return finding_rows("absence", rows, statistic="named", verdict=rule.level)


def _level_rows(
    level: pl.DataFrame,
    scores: Floats,
    nulls: Floats,
    reference: Floats,
    fpr: float,
) -> Iterator[_Row]:
    scored = scores[~np.isnan(scores)]
    reference = reference[~np.isnan(reference)]
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
    if scored.size and reference.size:
        is_member = np.arange(scored.size + reference.size) < scored.size
        limits = auc_interval(scored, reference)
        yield {
            "statistic": "roc_auc",
            "value": roc_auc(is_member, np.append(scored, reference)),
            "low": limits.low,
            "high": limits.high,
        }


def _share(hits: int, n: int) -> _Row:
    limits = clopper_pearson(hits, n)
    return {
        "value": hits / n,
        "low": limits.low,
        "high": limits.high,
    }


class Naming:
    """With which probability one book more, learnt like some passages, would have been named.

    The book is one more test with the real ones: of as many windows as the rule
    compares, each drawn from the passages' scores, independently. The limits are about
    the passages, which are few: each of 200 draws weights them by Rubin's (1981)
    Bayesian bootstrap, with one more that nobody saw, of the lowest score that there is
    for the lower limit, of the highest one for the upper limit. Of a book of one window
    that is the interval of Clopper and Pearson (1934), which is taken then.
    """

    def __init__(
        self,
        sets: comparison.ComparisonSets,
        values: Floats,
        rule: DecisionRule,
    ) -> None:
        self._sets = sets
        self._values = values
        self._rule = rule
        if rule.level == "target":
            test = TargetTest(sets, rule)
            self._nulls = values[sets.nulls]
            self._n_null = test.n_null
            self._n_windows = 1
            self._p_values, _ = test.p_values(values)
            self._adjustment = test.adjustment
            return
        groups = GroupTest(sets, rule)
        self._nulls = groups.nulls.statistics(values, rule)
        self._n_null = self._nulls.size
        self._n_windows = groups.n_windows
        self._adjustment = rule.adjustment
        usable = groups.groups.usable
        audited = groups.groups.statistics(values, rule)
        self._p_values = np.full(usable.size, np.nan)
        self._p_values[usable] = p_values(audited, self._nulls)

    def row(self, rows: Ints) -> _Row:
        """Return probability and limits of passages, so far as they have scores."""
        rule = self._rule
        values = self._values
        scored = rows[~np.isnan(values[rows])]
        if scored.size < _FEWEST:
            reason = f"{scored.size} passages have a score, {_FEWEST} are needed"
            return {"reason": reason}
        if rule.level == "target":
            test = TargetTest(replace(self._sets, targets=scored), rule)
            return self._share_of_texts(test.p_values(values)[0])
        if self._n_windows == 1:
            return self._share_of_texts(p_values(values[scored], self._nulls))
        n = self._nulls.size + 1
        rank = round(n * self._largest_named(np.arange(1, n + 1) / n))
        if not rank:
            return {
                "value": 0.0,
                "low": 0.0,
                "high": 0.0,
            }
        nulls = np.nan_to_num(self._nulls, nan=np.inf)
        ascending = np.sort(np.append(nulls, -np.inf))
        return naming_probability(
            values[scored],
            float(ascending[-rank]),
            self._n_windows,
            rule.statistic,
            np.random.default_rng(rule.seed),
        )

    def _share_of_texts(self, p: Floats) -> _Row:
        limit = self._largest_named(np.unique(p[~np.isnan(p)]))
        smallest = np.array([1 / (self._n_null + 1)])
        if not limit and not self._largest_named(smallest):
            return {
                "value": 0.0,
                "low": 0.0,
                "high": 0.0,
            }
        return _share(int(np.count_nonzero(p <= limit)), p.size)

    def _largest_named(self, p: Floats) -> float:
        """Find the largest of ascending p-values that is named with the real tests, or 0."""
        low = 0
        high = p.size
        while low < high:
            middle = (low + high) // 2
            with_one_more = np.append(self._p_values, p[middle])
            if q_values(with_one_more, self._adjustment)[-1] <= self._rule.q:
                low = middle + 1
            else:
                high = middle
        return float(p[low - 1]) if low else 0.0


def naming_probability(
    scores: Floats,
    bound: float,
    n_windows: int,
    statistic: Statistic,
    rng: np.random.Generator,
) -> _Row:
    """Simulate books of windows with such scores: how often their statistic is above ``bound``."""

    def simulate(
        weights: Floats,
        window_scores: Floats,
        n_books: int,
    ) -> float:
        draws = rng.random((n_books, n_windows))
        places = weights.cumsum().searchsorted(draws)
        windows = window_scores[np.minimum(places, window_scores.size - 1)]
        return float(np.mean(comparison.summarise(windows, statistic) > bound))

    below = min(scores.min(), bound)
    above = np.nextafter(max(scores.max(), bound), np.inf)
    limits = []
    for unseen, level in ((below, 0.025), (above, 0.975)):
        with_unseen = np.append(scores, unseen)
        all_weights = rng.dirichlet(np.ones(with_unseen.size), _DRAWS)
        shares = [
            simulate(weights, with_unseen, _BOOKS_OF_DRAW) for weights in all_weights
        ]
        limits.append(np.quantile(shares, level))
    equal_weights = np.full(scores.size, 1 / scores.size)
    value = simulate(equal_weights, scores, _BOOKS)
    return {
        "value": value,
        "low": min(limits[0], value),
        "high": max(limits[1], value),
    }


# Dose: how often texts were learnt, where the yardstick is a ladder: its levels are
# numbers.

_TAIL = 0.025
_MOST_DOSED = 1_000


def dose(
    scores: Floats,
    copies: Floats,
    ladder_scores: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Return how often texts with ``scores`` were learnt, from a ladder with known ``copies``.

    Returns about how many copies, a lower limit and an upper one; NaN where there is
    none. The value is where the isotonic regression of the ``ladder_scores`` on
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

    levels, level, sizes = np.unique(copies, return_inverse=True, return_counts=True)
    is_scored = ~np.isnan(ladder_scores)
    n_scored = np.bincount(level, is_scored)
    has_scores = n_scored > 0
    n_scored = n_scored[has_scores]
    sums = np.bincount(level[is_scored], ladder_scores[is_scored], levels.size)
    means = sums[has_scores] / n_scored
    isotonic = isotonic_regression(means, sample_weight=n_scored)
    fitted, block = np.unique(isotonic, return_inverse=True)
    log_levels = np.bincount(block, np.log1p(levels[has_scores]))
    logs = log_levels / np.bincount(block)
    value = np.expm1(np.interp(scores, fitted, logs))
    n_needed = round(1 / _TAIL) - 1
    low, high = np.full((2, scores.size), np.nan)
    for limit, sign in ((low, 1), (high, -1)):
        is_refuted = ~np.isnan(scores)
        for place in range(levels.size)[::sign]:
            # Of the level and of those beyond, the nearest first
            n_texts = sizes[place:] if sign > 0 else sizes[: place + 1][::-1]
            n_levels = int(np.searchsorted(n_texts.cumsum(), n_needed))
            distance = sign * (level - place)
            in_pool = (distance >= 0) & (distance <= min(n_levels, n_texts.size - 1))
            p = p_values(sign * scores, sign * ladder_scores[in_pool])
            is_refuted = is_refuted & (p <= _TAIL)
            limit[is_refuted] = levels[place]
    return value, low, high


def _dose_rows(
    sets: comparison.ComparisonSets,
    values: Floats,
    rule: DecisionRule,
    copies: Floats,
    ladder_scores: Floats,
) -> Iterator[_Row]:
    """Build the dose of each audited text, or of each group from its statistic.

    The limits of a group are those of a single text with its mean, which is less
    certain.
    """
    if rule.level == "target":
        scores = values[sets.targets]
        keys = sets.target_id[sets.targets].to_list()
    else:
        n_windows = comparison.windows_per_group(sets, rule)
        units = comparison.cut_units(sets, sets.targets, n_windows, rule.seed)
        scores = units.statistics(values, rule)
        keys = sets.clusters["key"][units.cluster[units.usable]].to_list()
    reason = None
    if rule.level != "target" and rule.statistic == "maximum":
        reason = (
            "the highest of many windows is compared with single texts; take"
            " --statistic mean"
        )
    elif scores.size > _MOST_DOSED:
        reason = f"more than {_MOST_DOSED:,} texts; ask --level group"
    elif np.isnan(ladder_scores).all():
        reason = "no text of the ladder has a score"
    if reason is not None:
        yield {"statistic": "copies", "reason": reason}
        return
    doses = dose(scores, copies, ladder_scores)
    for key, value, low, high in zip(keys, *doses, strict=True):
        yield {
            "subject": key,
            "statistic": "copies",
            "reason": "no score" if np.isnan(value) else None,
            "value": _none_if_nan(value),
            "low": _none_if_nan(low),
            "high": _none_if_nan(high),
        }


def _none_if_nan(number: float) -> float | None:
    return None if np.isnan(number) else number


# Null audits: how often the planned test reports texts that are known to be outside.

_AUDITS = 200
_MOST = 10_000  # texts, or groups
_CHECK = "null_audits"
_SPLITS = "the interval is about the draw of the splits alone, which share their texts"


def null_audit_findings(scores: pl.LazyFrame, rule: DecisionRule) -> pl.DataFrame:
    """Rows of check ``null_audits``: 200 audits of texts that are all known to be outside.

    Each takes whole clusters of non-members at random for the audited ones: as many as
    there are audited, at most half, and only so many that something can be reported.
    ``share_reporting`` is the share of audits that report any, with Clopper and
    Pearson's interval: verdict ``as_promised``, or ``too_often`` where it lies above q.
    ``share_below_fpr``: of their tests, those with a p-value of at most the rule's fpr.
    """
    with_names = rule.level != "target"
    sets = comparison.read_comparison_sets(scores, with_names=with_names)
    if not (sets.targets.size and sets.nulls.size):
        return finding_rows(_CHECK)
    reason = "the plan is about all groups together, which have one p-value"
    if rule.level != "collection":
        score = read_finite(scores, rule.primary, sets.target_id.len())
        prepare = _prepare_texts if rule.level == "target" else _prepare_groups
        audit = prepare(sets, score, rule)
        n_units = min(audit.n_units, max(2, _MOST // audit.size))
        n_tests = min(audit.n_audited, n_units // 2)
        while n_tests:
            n_null = n_units - n_tests
            power = compute_power(
                n_tests * audit.size,
                n_null,
                rule.q,
                audit.adjustment,
            )
            if power.needed is not None:
                outcomes = _run_audits(audit, n_tests, n_units, rule)
                return audit_rows(rule, n_tests, n_null, outcomes)
            n_tests //= 2
        reason = (
            f"{n_units:,} independent units outside the training data are too few: with"
            f" some of them audited, none could be reported at q = {rule.q:g}"
        )
    row = {"statistic": "share_reporting", "reason": reason}
    return finding_rows(_CHECK, [row], subject=rule.level)


def _run_audits(
    audit: _Audit,
    n_tests: int,
    n_units: int,
    rule: DecisionRule,
) -> list[tuple[bool, float]]:
    rng = np.random.default_rng(rule.seed)
    outcomes = []
    for _ in range(_AUDITS):
        units = rng.choice(audit.n_units, n_units, replace=False)
        p = audit.p_values(units[:n_tests], units[n_tests:])
        n_reported = np.sum(q_values(p, audit.adjustment) <= rule.q)
        outcomes.append((bool(n_reported), float((p <= rule.fpr).mean())))
    return outcomes


class _Audit(NamedTuple):
    """How to audit some of the units of nulls against others."""

    n_units: int
    size: int  # texts, or groups, of a unit
    n_audited: int  # units that are really audited
    adjustment: Adjustment
    p_values: Callable[[Ints, Ints], Floats]


def _prepare_texts(
    sets: comparison.ComparisonSets,
    scores: Floats,
    rule: DecisionRule,
) -> _Audit:
    units, unit = np.unique(sets.cluster[sets.nulls], return_inverse=True)

    def test_units(audited: Ints, nulls: Ints) -> Floats:
        audited_rows = sets.nulls[np.isin(unit, audited)]
        rows = np.concatenate([audited_rows, sets.nulls[np.isin(unit, nulls)]])
        split_sets = replace(
            sets,
            target_id=sets.target_id.gather(rows),
            n_words=sets.n_words.gather(rows),
            cluster=sets.cluster[rows],
            targets=np.arange(audited_rows.size),
            nulls=np.arange(audited_rows.size, rows.size),
        )
        return TargetTest(split_sets, rule).p_values(scores[rows])[0]

    is_dependent = sets.share_clusters(sets.targets, sets.nulls)
    return _Audit(
        n_units=units.size,
        size=max(1, unit.size // units.size),
        n_audited=np.unique(sets.cluster[sets.targets]).size,
        adjustment="by" if is_dependent else rule.adjustment,
        p_values=test_units,
    )


def _prepare_groups(
    sets: comparison.ComparisonSets,
    scores: Floats,
    rule: DecisionRule,
) -> _Audit:
    test = GroupTest(sets, rule)
    statistics = test.nulls.statistics(scores, rule)

    def test_units(audited: Ints, nulls: Ints) -> Floats:
        ties = None
        if test.ties is not None:
            draws = test.ties.nulls
            ties = TieDraws(draws[audited], draws[nulls])
        return p_values(statistics[audited], statistics[nulls], ties=ties)

    return _Audit(
        n_units=statistics.size,
        size=1,
        n_audited=test.groups.sizes.size,
        adjustment=rule.adjustment,
        p_values=test_units,
    )


def audit_rows(
    rule: DecisionRule,
    n_tests: int,
    n_null: int,
    outcomes: list[tuple[bool, float]],
) -> pl.DataFrame:
    """Build findings from whether each audit reports any, and its share of small p-values."""
    n_audits = len(outcomes)
    n_reporting = sum(any_reported for any_reported, _ in outcomes)
    share = _share(n_reporting, n_audits)
    main = {
        "statistic": "share_reporting",
        "reason": _SPLITS,
        "verdict": "too_often" if share["low"] > rule.q else "as_promised",
        **share,
    }
    counts = {
        "n_audits": n_audits,
        "n_tests": n_tests,
        "n_null": n_null,
        "q": rule.q,
    }
    shares = {
        "fpr": rule.fpr,
        "share_below_fpr": sum(share for _, share in outcomes) / n_audits,
    }
    rows = [*number_rows(counts), main, *number_rows(shares)]
    return finding_rows(_CHECK, rows, subject=rule.level)
