"""What a set of texts shows as a whole: CoDeC, all scores combined, dataset inference."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from mia_batch.attacks.attack import CODEC
from mia_batch.inference import comparison
from mia_batch.inference.conformal import tie_draws
from mia_batch.inference.estimates import Flagged, fewest_members
from mia_batch.inference.findings import (
    DecisionRule,
    finding_rows,
    number_rows,
    read_rows,
    score_batches,
    verdict_rows,
)
from mia_batch.schemas import Findings
from mia_batch.stats import Flags, Floats, Ints, intervals
from mia_batch.tables import read_finite, read_numbers

Row = dict[str, object]


def codec_findings(scores: pl.LazyFrame) -> pl.DataFrame:
    """Rows of check ``codec``: the ``share`` of the targets, and of the non-members as control.

    Zawalski et al. (2025), arXiv:2510.27055, the CoDeC score of a data set; with
    Clopper and Pearson's interval, where texts share groups of their
    `independent_number`.
    """
    sets = comparison.read_comparison_sets(scores)
    falls = read_finite(scores, CODEC, sets.target_id.len())

    def share(rows: Ints) -> Row:
        scored = rows[~np.isnan(falls[rows])]
        if not scored.size:
            return {"reason": "no text of the set has a score"}
        share, cluster = float(falls[scored].mean()), sets.cluster[scored]
        effective = intervals.effective_number(
            np.unique(cluster, return_counts=True)[1]
        )
        if sets.share_clusters(scored) and not intervals.is_enough(effective):
            return {"value": share, "reason": intervals.few(effective)}
        n = intervals.independent_number(falls[scored] == 1, cluster)
        interval = intervals.clopper_pearson(share * n, n)
        return {"value": share, "low": interval.low, "high": interval.high}

    of = (("targets", sets.targets), ("non-members", sets.nulls))
    return finding_rows(
        "codec", ({"subject": k, **share(v)} for k, v in of), statistic="share"
    )


# One score of each text from all its scores, learned from texts of known membership.

_N_FOLDS = 5
_FEWEST = 10  # clusters of each class
_DECIMALS = (
    9  # beyond them, scores of equal texts may differ with their places in a matrix
)


class _Teachers(NamedTuple):
    """The texts that are learned from."""

    rows: Ints  # of the scores table, ascending
    label: Flags  # known members true
    source: Literal["calibration", "all", "too_few"]  # too few: of clusters of a class


def combine(scores: pl.LazyFrame, attacks: Sequence[str], *, seed: int) -> Floats:
    """Learn to tell members by all attacks' scores, and score every text by what others taught.

    Where the calibration data have both classes, they alone are learned from. Otherwise
    known members are, against all other targets and non-members. Clusters are dealt to
    five folds, and a text is scored by the model of the other four, so that no text is
    scored by what its group has taught. P-values stay valid, because non-members and a
    target that is no member can change places: neither have taught, or both have as the
    same class.

    In nats, one per row: half the sum of the log-odds by a logistic regression and by
    gradient-boosted trees; NaN where all scores are missing, and throughout where a
    class has texts of fewer than 10 clusters. Marandon, Lei, Mary and Roquain (2024),
    arXiv:2208.06685; cross-fitting by group: Chernozhukov et al. (2018),
    arXiv:1608.00060, definition 3.1.
    """
    from threadpoolctl import threadpool_limits

    sets = comparison.read_comparison_sets(scores)
    combined = np.full(sets.target_id.len(), np.nan)
    teachers = _find_teachers(scores, sets)
    if teachers.source == "too_few":
        return combined
    # Clusters of teachers are dealt to folds evenly, each other one by a draw of its
    # own.
    names = (f"{level} {key}" for level, key in sets.clusters.iter_rows())
    fold_of = (tie_draws(names, seed) * _N_FOLDS).astype(np.int64)
    clusters, which = np.unique(sets.cluster[teachers.rows], return_inverse=True)
    generator = np.random.default_rng(seed)
    dealt = intervals.deal_folds(
        teachers.label, which, n_folds=_N_FOLDS, generator=generator
    )
    fold_of[clusters] = dealt.fold
    folds = fold_of[sets.cluster]
    taught = read_rows(scores, attacks, teachers.rows)
    with threadpool_limits(1):  # sums of several threads differ in the last bit
        models = []
        for fold in range(_N_FOLDS):
            others = folds[teachers.rows] != fold
            models.append(_Model(taught[others], teachers.label[others]))
        for start, part in score_batches(scores, attacks):
            of_part = slice(start, start + len(part))
            there = ~np.isnan(part).all(axis=1)
            for fold, model in enumerate(models):
                own = there & (folds[of_part] == fold)
                if own.any():
                    combined[of_part][own] = model.log_odds(part[own])
    return combined.round(_DECIMALS)


def combination_findings(scores: pl.LazyFrame) -> pl.DataFrame:
    """Rows of check ``combination``: from how many texts was learned, and which."""
    sets = comparison.read_comparison_sets(scores)
    teachers = _find_teachers(scores, sets)
    counts = {"n_members": teachers.label.sum(), "n_others": (~teachers.label).sum()}
    return finding_rows("combination", number_rows(counts, verdict=teachers.source))


def _find_teachers(scores: pl.LazyFrame, sets: comparison.ComparisonSets) -> _Teachers:
    classes = [sets.calibration_nonmembers, sets.calibration_members]
    calibrated = all(rows.size for rows in classes)
    if not calibrated:
        size = sets.target_id.len()
        is_member = read_numbers(
            scores, pl.col("member").fill_null(value=False), size, np.bool_
        )
        rows = np.concatenate([sets.targets, sets.nulls, *classes])
        classes = [rows[~is_member[rows]], rows[is_member[rows]]]
    rows = np.concatenate(classes)
    order = rows.argsort()
    label = np.repeat([False, True], [of_class.size for of_class in classes])
    enough = all(
        np.unique(sets.cluster[of_class]).size >= _FEWEST for of_class in classes
    )
    source: Literal["calibration", "all"] = "calibration" if calibrated else "all"
    return _Teachers(rows[order], label[order], source if enough else "too_few")


class _Model:
    """A linear model, which few texts suffice for, and trees, which see what is not linear."""

    def __init__(self, scores: Floats, label: Flags) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.impute import SimpleImputer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        linear = make_pipeline(
            SimpleImputer(strategy="median"),
            StandardScaler(),
            LogisticRegression(C=0.1, max_iter=1000),
        )
        trees = HistGradientBoostingClassifier(
            max_iter=60,
            max_leaf_nodes=7,
            min_samples_leaf=10,
            early_stopping=False,
            random_state=0,
        )
        self._empty = np.isnan(scores).all(axis=0)
        self._models = [
            model.fit(self._without_empty(scores), label) for model in (linear, trees)
        ]

    def log_odds(self, scores: Floats) -> Floats:
        known = self._without_empty(scores)
        return np.asarray(
            np.mean([m.decision_function(known) for m in self._models], axis=0)
        )

    def _without_empty(self, scores: Floats) -> Floats:
        """Make attacks that none of the teachers has a score of say the same of every text."""
        return np.where(self._empty, 0.0, scores)


# Whether a set of texts is known better than texts outside, by all attacks together.

DATASET_INFERENCE = "dataset_inference_v1"  # name of the answer in the verdicts table

_MOST = 5_000  # groups of a set in each half
_CLIP = 4.0  # standard deviations
_PENALTY = 10.0
_SEPARABLE = (
    "targets and non-members can be distinguished without the model, so a difference of"
    " their scores is no evidence of memory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInference:
    """What the test has found; ``test`` is None where ``reason`` says why."""

    n_learned: int  # groups of both sets
    n_tested: tuple[int, int] = (0, 0)  # groups of targets, and of non-members
    test: comparison.CollectionTest | None = None
    paper_p_value: float | None = None
    weights: dict[str, float] = field(default_factory=dict)
    reason: str | None = None

    def verdict(self) -> pl.DataFrame:
        test = self.test
        return verdict_rows(
            1,
            attack=DATASET_INFERENCE,
            level="collection",
            planned=False,
            score=test and test.score,
            n_null=self.n_tested[1],
            p_value=test and test.p_value,
            method=test and f"split_{test.method}",
            reason=self.reason,
        )

    def findings(self) -> pl.DataFrame:
        """Rows of check ``dataset_inference``; ``paper`` is the p-value of the paper's own form."""
        n_targets, n_null = self.n_tested
        counts = {"n_learned": self.n_learned, "n_targets": n_targets, "n_null": n_null}
        p_values = {
            "permutation": self.test and self.test.p_value,
            "paper": self.paper_p_value,
        }
        rows = number_rows(counts)
        for name, p_value in p_values.items():
            rows.append({"statistic": name, "p_value": p_value, "reason": self.reason})
        for attack, weight in self.weights.items():
            rows += number_rows({"weight": weight}, subject=attack)
        return finding_rows("dataset_inference", rows)


def infer_dataset(
    scores: pl.LazyFrame, attacks: Sequence[str], plan: DecisionRule, *, separable: bool
) -> DatasetInference:
    """Learn weights of attacks on half of the groups, and test on the other half.

    Each group goes to a half by lot. On the first a linear model learns to tell targets
    from non-members; on the second `collection_test` asks whether groups of targets
    rank higher by it. Unlike those of Maini, Jia, Papernot and Dziedzic (2024),
    arXiv:2406.06443, section 5, weights are not negative: a set on which attacks score
    *lower* is no less different, and would count as trained on. Nor are windows of one
    group taken as independent.
    """
    from scipy.stats import ttest_ind
    from sklearn.linear_model import LogisticRegression, Ridge

    sets = comparison.read_comparison_sets(scores)
    together = comparison.independent_units(
        sets,
        (sets.targets, sets.nulls),
        comparison.windows_per_group(sets, plan),
        plan.seed,
    )
    halves = _halves(sets, together.units, plan)
    sizes = [[len(half) for half in of_set] for of_set in halves]
    n_learned, n_tested = sizes[0][0] + sizes[1][0], (sizes[0][1], sizes[1][1])
    fewest = min(min(of_set) for of_set in sizes)
    if separable or together.reason or fewest < _FEWEST:
        few = (
            f"one half of a set has {fewest} groups of enough windows, {_FEWEST} are"
            " needed"
        )
        reason = _SEPARABLE if separable else together.reason or few
        return DatasetInference(n_learned=n_learned, reason=reason)
    learned, tested = ([of_set[half] for of_set in halves] for half in (0, 1))
    known, asked = (
        read_rows(scores, attacks, np.concatenate([rows.ravel() for rows in half]))
        for half in (learned, tested)
    )
    label = np.repeat([True, False], [rows.size for rows in learned])
    known, asked = _standard(known, known), _standard(asked, known)
    weights: Floats = Ridge(alpha=_PENALTY, positive=True).fit(known, label).coef_
    n_windows = tested[0].shape[1]
    statistics = comparison.summarise(
        (asked @ weights).reshape(-1, n_windows), plan.statistic
    )
    targets, nulls = np.split(statistics, [n_tested[0]])
    # The paper's own: Welch's one-sided test over windows, by weights of either sign.
    odds = LogisticRegression(max_iter=1000).fit(known, label).decision_function(asked)
    sides = np.split(odds, [n_tested[0] * n_windows])
    return DatasetInference(
        n_learned=n_learned,
        n_tested=n_tested,
        test=comparison.collection_test(targets, nulls, plan.seed),
        paper_p_value=float(
            ttest_ind(*sides, equal_var=False, alternative="greater").pvalue
        ),
        weights=dict(zip(attacks, weights.tolist(), strict=True)),
    )


def _halves(
    sets: comparison.ComparisonSets,
    units_of_sets: Sequence[comparison.ComparedUnits],
    plan: DecisionRule,
) -> list[tuple[Ints, Ints]]:
    """Return of targets and of non-members the windows of both halves, a line per unit."""
    # An author has the name of its first group, and goes to a half with all of its
    # books.
    names = (f"half {level} {key}" for level, key in sets.clusters.iter_rows())
    first = tie_draws(names, plan.seed) < 1 / 2
    halves = []
    for units in units_of_sets:
        learns = first[units.cluster[units.usable]]
        halves.append((units.windows[learns][:_MOST], units.windows[~learns][:_MOST]))
    return halves


def _standard(scores: Floats, known: Floats) -> Floats:
    """Standardise by what is ``known``, outliers clipped; 0 where a score is missing."""
    there = ~np.isnan(known)
    n = there.sum(axis=0).clip(1)
    mean = np.where(there, known, 0.0).sum(axis=0) / n
    deviation = np.sqrt(np.where(there, (known - mean) ** 2, 0.0).sum(axis=0) / n)
    standard = (np.nan_to_num(scores, nan=0.0) - mean) / np.where(
        deviation > 0, deviation, 1.0
    )
    return np.where(np.isnan(scores), 0.0, standard.clip(-_CLIP, _CLIP))


# What few books allow: so many of the highest at least, and all attacks together.

FEW_BOOKS = ("top", "max_t")  # names of the checks

_RANKS = (1, 2, 3, 5, 10, 20, 50, 100)
_NULLS_PER_RANK = (
    8  # fewer find less where few are far above, more where many are little above
)
_MOST_PERMUTED = 2_000  # units of each set that are permuted
_CHANGED = "attacks were added or left out since the plan was recorded"


class Top(NamedTuple):
    """Of the ``of_top`` highest units at least so many are members."""

    at_least: int
    of_top: int
    rank: int  # of the null unit that they lie above


class MaxT(NamedTuple):
    """Rank sums of attacks, standardised, with p-values adjusted for their number."""

    statistics: Floats
    p_values: Floats
    n_orders: int


def top_bound(targets: Floats, n_targets: int, nulls: Floats) -> Top:
    """Bound from below how many of the highest units are members, for some numbers of highest."""
    # For each rank k of `_ranks`, F of the ``n_targets`` lie above the k-th largest
    # null, and M of these are members at least, by `fewest_members` with the error of 5
    # % shared equally. All hold at once; returned is the largest M, of equal ones that
    # with the smallest F.
    ranks = _ranks(nulls.size)
    highest = np.sort(np.nan_to_num(nulls, nan=np.inf))[::-1]
    confidence = 1 - (1 - intervals.CONFIDENCE) / len(ranks)
    found = []
    for rank in ranks:
        flagged = Flagged(int(np.count_nonzero(targets > highest[rank - 1])), n_targets)
        fewest = fewest_members(
            flagged, n_null=nulls.size, rank=rank, confidence=confidence
        )
        found.append(Top(fewest, int(flagged.above), rank))
    return max(found, key=lambda top: (top.at_least, -top.of_top))


def _ranks(n_null: int) -> list[int]:
    return [rank for rank in _RANKS if rank == 1 or rank * _NULLS_PER_RANK <= n_null]


def needed_for_bound(n_targets: int, n_null: int) -> int | None:
    """Return how many targets must lie above every null for a `top_bound` of 1, if any number."""
    from scipy.stats import betabinom

    error = (1 - intervals.CONFIDENCE) / len(_ranks(n_null))
    needed = 1 + int(betabinom.isf(error, n_targets, 1, n_null))
    return needed if needed <= n_targets else None


def max_t(groups: Floats, nulls: Floats, seed: int) -> MaxT:
    r"""Test by several attacks whether G groups rank higher together than K null groups.

    Each line of ``groups`` and ``nulls`` is an attack. In each of the `permuted_sums`
    the sum S of an attack's G ranks \(r\) becomes

    .. math:: t = \frac{S - G (G + K + 1) / 2}{\sqrt{s_r^2 \, G K / (G + K)}}

    with the ranks' variance \(s_r^2\); 0 where all are equal. P-values are those of the
    step-down maxT: Westfall and Young (1993), "Resampling-Based Multiple Testing",
    algorithm 4.1.
    """
    ranks = np.array(
        [comparison.pooled_ranks(*attack) for attack in zip(groups, nulls, strict=True)]
    )
    (n_groups, n_null), size = (groups.shape[1], nulls.shape[1]), ranks.shape[1]
    sums, _ = comparison.permuted_sums(ranks, n_groups, seed)
    spread = np.sqrt(ranks.var(axis=1, ddof=1) * n_groups * n_null / size)
    t = (sums - n_groups * (size + 1) / 2) / np.where(spread > 0, spread, 1)
    order = np.argsort(-t[0], kind="stable")
    largest = np.maximum.accumulate(t[:, order[::-1]], axis=1)[:, ::-1]
    p_values = np.empty(order.size)
    p_values[order] = np.maximum.accumulate((largest >= t[0, order]).mean(axis=0))
    return MaxT(t[0], p_values, len(t))


def few_books_findings(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    plan: DecisionRule,
    planned: Collection[str] | None,
) -> pl.DataFrame:
    """Rows of checks ``top``, by the primary attack, and ``max_t``, by all that have scores."""
    # With other attacks than those ``planned`` ``max_t`` is ``exploratory``.
    sets = comparison.read_comparison_sets(scores, with_names=plan.level != "target")
    if not (sets.targets.size and sets.nulls.size):
        return Findings.create_empty()
    grouped = comparison.tests_groups(sets, plan)
    n_windows = comparison.windows_per_group(sets, plan) if grouped else 1
    together = comparison.independent_units(
        sets, (sets.targets, sets.nulls), n_windows, plan.seed
    )
    units = together.units
    levels = ["text"]
    if grouped and not together.by_author:
        levels = sets.clusters[units[0].cluster]["level"].to_list()
    noun = next((level for level in ("group", "text") if level in levels), "document")
    noun = "author" if together.by_author else noun
    score = read_finite(scores, plan.primary, sets.target_id.len())
    own, null = (of_set.statistics(score, plan) for of_set in units)
    reason = None if null.size else f"no null {noun} has {n_windows} windows"
    reason = together.reason or reason
    if plan.length_edges and not grouped:
        reason = "texts are compared with those of their own length alone"
    top = None if reason else top_bound(own, units[0].sizes.size, null)
    stands_out = top is not None and top.at_least > 0
    main: Row = {
        "statistic": "at_least",
        "value": top and top.at_least,
        "reason": reason,
    }
    found = [main | {"verdict": top and ("some" if stands_out else "none")}]
    if top is not None and stands_out:
        found += number_rows({"of_top": top.of_top, "rank": top.rank})
    counts = {
        "n_tests": units[0].sizes.size,
        "n_null": null.size,
        "confidence": intervals.CONFIDENCE,
    }
    made = [finding_rows("top", [*found, *number_rows(counts)], subject=noun)]
    if own.size and null.size and together.reason is None:
        made.append(_max_t_findings(scores, attacks, plan, planned, units, noun))
    return pl.concat(made)


def _max_t_findings(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    plan: DecisionRule,
    planned: Collection[str] | None,
    units: Sequence[comparison.ComparedUnits],
    noun: str,
) -> pl.DataFrame:
    rng = np.random.default_rng(plan.seed)
    chosen = [
        of_set.windows[np.sort(rng.permutation(len(of_set.windows))[:_MOST_PERMUTED])]
        for of_set in units
    ]
    read = read_rows(
        scores, attacks, np.concatenate([lines.ravel() for lines in chosen])
    )
    windows = read.T.reshape(len(attacks), -1, chosen[0].shape[1])
    values = comparison.summarise(windows, plan.statistic)
    scored = np.asarray(~np.isnan(values).all(axis=1))
    names = [name for name, there in zip(attacks, scored, strict=True) if there]
    if len(names) < 2:
        return Findings.create_empty()
    sizes = [len(of_set) for of_set in chosen]
    groups, nulls = np.split(values[scored], sizes[:1], axis=1)
    found = max_t(groups, nulls, plan.seed)
    as_planned = planned is not None and {*planned} == {*attacks}
    all_together = {
        "subject": names[found.statistics.argmax()],
        "statistic": "largest",
        "value": found.statistics.max(),
        "p_value": found.p_values.min(),
        "verdict": "as_planned" if as_planned else "exploratory",
        "reason": None if as_planned or planned is None else _CHANGED,
    }
    counts = {"n_attacks": len(names), "n_orders": found.n_orders}
    counts |= {"n_tests": sizes[0], "n_null": sizes[1]}
    of_attacks = [
        {"subject": name, "statistic": "rank_sum", "value": t, "p_value": p}
        for name, t, p in zip(names, found.statistics, found.p_values, strict=True)
    ]
    return finding_rows(
        "max_t", [all_together, *number_rows(counts, subject=noun), *of_attacks]
    )
