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

    def share_row(rows: Ints) -> Row:
        scored = rows[~np.isnan(falls[rows])]
        if not scored.size:
            return {"reason": "no text of the set has a score"}
        share = float(falls[scored].mean())
        cluster = sets.cluster[scored]
        sizes = np.unique(cluster, return_counts=True)[1]
        n_effective = intervals.effective_number(sizes)
        if sets.share_clusters(scored) and not intervals.is_enough(n_effective):
            return {"value": share, "reason": intervals.too_few(n_effective)}
        n = intervals.independent_number(falls[scored] == 1, cluster)
        interval = intervals.clopper_pearson(share * n, n)
        return {
            "value": share,
            "low": interval.low,
            "high": interval.high,
        }

    rows = [
        {"subject": "targets", **share_row(sets.targets)},
        {"subject": "non-members", **share_row(sets.nulls)},
    ]
    return finding_rows("codec", rows, statistic="share")


# One score of each text from all its scores, learned from texts of known membership.

_N_FOLDS = 5
_FEWEST = 10  # clusters of each class
# Beyond them, scores of equal texts may differ with their places in a matrix
_DECIMALS = 9

_Source = Literal["calibration", "all", "too_few"]


class _Teachers(NamedTuple):
    """The texts that are learned from."""

    rows: Ints  # of the scores table, ascending
    label: Flags  # known members true
    source: _Source  # too few: of clusters of a class


def combine(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    *,
    seed: int,
) -> Floats:
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
    cluster_folds = (tie_draws(names, seed) * _N_FOLDS).astype(np.int64)
    clusters, index = np.unique(sets.cluster[teachers.rows], return_inverse=True)
    generator = np.random.default_rng(seed)
    dealt = intervals.deal_folds(
        teachers.label,
        index,
        n_folds=_N_FOLDS,
        generator=generator,
    )
    cluster_folds[clusters] = dealt.fold
    folds = cluster_folds[sets.cluster]
    teacher_folds = folds[teachers.rows]
    teacher_scores = read_rows(scores, attacks, teachers.rows)
    with threadpool_limits(1):  # sums of several threads differ in the last bit
        models = []
        for fold in range(_N_FOLDS):
            teaches = teacher_folds != fold
            models.append(_Model(teacher_scores[teaches], teachers.label[teaches]))
        for start, batch in score_batches(scores, attacks):
            stretch = slice(start, start + len(batch))
            has_score = ~np.isnan(batch).all(axis=1)
            for fold, model in enumerate(models):
                in_fold = has_score & (folds[stretch] == fold)
                if in_fold.any():
                    combined[stretch][in_fold] = model.log_odds(batch[in_fold])
    return combined.round(_DECIMALS)


def combination_findings(scores: pl.LazyFrame) -> pl.DataFrame:
    """Rows of check ``combination``: from how many texts was learned, and which."""
    sets = comparison.read_comparison_sets(scores)
    teachers = _find_teachers(scores, sets)
    counts = {"n_members": teachers.label.sum(), "n_others": (~teachers.label).sum()}
    return finding_rows("combination", number_rows(counts, verdict=teachers.source))


def _find_teachers(scores: pl.LazyFrame, sets: comparison.ComparisonSets) -> _Teachers:
    classes = [sets.calibration_nonmembers, sets.calibration_members]
    source: _Source = "calibration"
    if not all(rows.size for rows in classes):
        source = "all"
        member = pl.col("member").fill_null(value=False)
        is_member = read_numbers(
            scores,
            member,
            sets.target_id.len(),
            np.bool_,
        )
        rows = np.concatenate([sets.targets, sets.nulls, *classes])
        classes = [rows[~is_member[rows]], rows[is_member[rows]]]
    for class_rows in classes:
        if np.unique(sets.cluster[class_rows]).size < _FEWEST:
            source = "too_few"
    rows = np.concatenate(classes)
    order = rows.argsort()
    label = np.repeat([False, True], [class_rows.size for class_rows in classes])
    return _Teachers(rows[order], label[order], source)


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
        self._is_empty = np.isnan(scores).all(axis=0)
        filled = self._fill_empty(scores)
        self._models = [model.fit(filled, label) for model in (linear, trees)]

    def log_odds(self, scores: Floats) -> Floats:
        filled = self._fill_empty(scores)
        log_odds = [model.decision_function(filled) for model in self._models]
        return np.asarray(np.mean(log_odds, axis=0))

    def _fill_empty(self, scores: Floats) -> Floats:
        """Set attacks that no teacher has a score of to the same for every text."""
        return np.where(self._is_empty, 0.0, scores)


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
        counts = {
            "n_learned": self.n_learned,
            "n_targets": n_targets,
            "n_null": n_null,
        }
        p_values = {
            "permutation": self.test and self.test.p_value,
            "paper": self.paper_p_value,
        }
        rows = number_rows(counts)
        for name, p_value in p_values.items():
            rows.append(
                {
                    "statistic": name,
                    "p_value": p_value,
                    "reason": self.reason,
                }
            )
        for attack, weight in self.weights.items():
            rows += number_rows({"weight": weight}, subject=attack)
        return finding_rows("dataset_inference", rows)


def infer_dataset(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    rule: DecisionRule,
    *,
    separable: bool,
) -> DatasetInference:
    """Learn weights of attacks on half of the groups, and test on the other half.

    Each group goes to a half by lot. On the first a linear model learns to tell targets
    from non-members; on the second `collection_test` asks whether groups of targets
    rank higher by it. Unlike those of Maini, Jia, Papernot and Dziedzic (2024),
    arXiv:2406.06443, section 5, weights are not negative: a set on which attacks score
    *lower* is no less different, and would count as trained on. Nor are windows of one
    group taken as independent.
    """
    from sklearn.linear_model import Ridge

    sets = comparison.read_comparison_sets(scores)
    independent = comparison.independent_units(
        sets,
        (sets.targets, sets.nulls),
        comparison.windows_per_group(sets, rule),
        rule.seed,
    )
    halves = _split_units(sets, independent.units, rule)
    learned = [half for half, _ in halves]
    tested = [half for _, half in halves]
    n_learned = sum(len(half) for half in learned)
    n_targets, n_null = (len(half) for half in tested)
    fewest = min(len(half) for half in [*learned, *tested])
    if separable or independent.reason or fewest < _FEWEST:
        reason = _SEPARABLE if separable else independent.reason
        too_few = (
            f"one half of a set has {fewest} groups of enough windows, {_FEWEST} are"
            " needed"
        )
        return DatasetInference(n_learned=n_learned, reason=reason or too_few)
    learned_scores = read_rows(scores, attacks, _concatenate_rows(learned))
    tested_scores = read_rows(scores, attacks, _concatenate_rows(tested))
    label = np.repeat([True, False], [half.size for half in learned])
    features = _standardise(learned_scores, learned_scores)
    tested_features = _standardise(tested_scores, learned_scores)
    weights: Floats = Ridge(alpha=_PENALTY, positive=True).fit(features, label).coef_
    n_windows = tested[0].shape[1]
    windows = (tested_features @ weights).reshape(-1, n_windows)
    statistics = comparison.summarise(windows, rule.statistic)
    targets, nulls = np.split(statistics, [n_targets])
    return DatasetInference(
        n_learned=n_learned,
        n_tested=(n_targets, n_null),
        test=comparison.collection_test(targets, nulls, rule.seed),
        paper_p_value=_paper_p_value(
            features,
            label,
            tested_features,
            n_targets * n_windows,
        ),
        weights=dict(zip(attacks, weights.tolist(), strict=True)),
    )


def _paper_p_value(
    features: Floats,
    label: Flags,
    tested_features: Floats,
    n_target_windows: int,
) -> float:
    """Test as the paper does: by Welch over windows, by weights of either sign."""
    from scipy.stats import ttest_ind
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(features, label)
    log_odds = model.decision_function(tested_features)
    sides = np.split(log_odds, [n_target_windows])
    welch = ttest_ind(*sides, equal_var=False, alternative="greater")
    return float(welch.pvalue)


def _split_units(
    sets: comparison.ComparisonSets,
    units_of_sets: Sequence[comparison.ComparedUnits],
    rule: DecisionRule,
) -> list[tuple[Ints, Ints]]:
    """Return of targets and of non-members the windows of both halves, a line per unit."""
    # An author has the name of its first group, and goes to a half with all of its
    # books.
    names = (f"half {level} {key}" for level, key in sets.clusters.iter_rows())
    is_learned = tie_draws(names, rule.seed) < 1 / 2
    halves = []
    for units in units_of_sets:
        learns = is_learned[units.cluster[units.usable]]
        learned = units.windows[learns]
        tested = units.windows[~learns]
        halves.append((learned[:_MOST], tested[:_MOST]))
    return halves


def _concatenate_rows(windows: Sequence[Ints]) -> Ints:
    return np.concatenate([rows.ravel() for rows in windows])


def _standardise(scores: Floats, reference: Floats) -> Floats:
    """Standardise by the ``reference``, outliers clipped; 0 where a score is missing."""
    has_score = ~np.isnan(reference)
    n = has_score.sum(axis=0).clip(1)
    mean = np.where(has_score, reference, 0.0).sum(axis=0) / n
    squares = np.where(has_score, (reference - mean) ** 2, 0.0)
    deviation = np.sqrt(squares.sum(axis=0) / n)
    divisor = np.where(deviation > 0, deviation, 1.0)
    standard = (np.nan_to_num(scores, nan=0.0) - mean) / divisor
    return np.where(np.isnan(scores), 0.0, standard.clip(-_CLIP, _CLIP))


# What few books allow: so many of the highest at least, and all attacks together.

FEW_BOOKS = ("top", "max_t")  # names of the checks

_RANKS = (1, 2, 3, 5, 10, 20, 50, 100)
# Fewer find less where few are far above, more where many are little above
_NULLS_PER_RANK = 8
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


def top_bound(
    targets: Floats,
    n_targets: int,
    nulls: Floats,
) -> Top:
    """Bound from below how many of the highest units are members."""
    # For each rank k of `_ranks`, F of the ``n_targets`` lie above the k-th largest
    # null, and M of these are members at least, by `fewest_members` with the error of 5
    # % shared equally. All hold at once; returned is the largest M, of equal ones that
    # with the smallest F.
    ranks = _ranks(nulls.size)
    highest = np.sort(np.nan_to_num(nulls, nan=np.inf))[::-1]
    confidence = 1 - (1 - intervals.CONFIDENCE) / len(ranks)
    tops = []
    for rank in ranks:
        n_above = int(np.count_nonzero(targets > highest[rank - 1]))
        fewest = fewest_members(
            Flagged(n_above, n_targets),
            n_null=nulls.size,
            rank=rank,
            confidence=confidence,
        )
        tops.append(Top(fewest, n_above, rank))
    return max(tops, key=lambda top: (top.at_least, -top.of_top))


def _ranks(n_null: int) -> list[int]:
    return [rank for rank in _RANKS if rank == 1 or rank * _NULLS_PER_RANK <= n_null]


def needed_for_bound(n_targets: int, n_null: int) -> int | None:
    """Return how many targets must lie above every null for a `top_bound` of 1."""
    from scipy.stats import betabinom

    error = (1 - intervals.CONFIDENCE) / len(_ranks(n_null))
    needed = 1 + int(
        betabinom.isf(
            error,
            n_targets,
            1,
            n_null,
        )
    )
    return needed if needed <= n_targets else None


def max_t(
    groups: Floats,
    nulls: Floats,
    seed: int,
    lengths: Floats | None = None,
) -> MaxT:
    r"""Test by several attacks whether G groups rank higher together than K null groups.

    Each line of ``groups`` and ``nulls`` is an attack. With ``lengths`` of the groups
    and the null groups, what longer texts score higher is taken out first: ranks are of
    the residuals of ranks by a line through the ranks of the lengths, fitted to both
    sets alike. So the level holds exactly where scores and lengths can change places
    together; where lengths differ, as far as a line fits (Freedman and Lane 1983,
    doi:10.1080/07350015.1983.10509354). In each of the `permuted_sums` the sum S of an
    attack's G ranks \(r\) becomes

    .. math:: t = \frac{S - G (G + K + 1) / 2}{\sqrt{s_r^2 \, G K / (G + K)}}

    with the ranks' variance \(s_r^2\); 0 where all are equal. P-values are those of the
    step-down maxT: Westfall and Young (1993), "Resampling-Based Multiple Testing",
    algorithm 4.1.
    """
    pairs = zip(groups, nulls, strict=True)
    ranks = np.array([comparison.pooled_ranks(*attack) for attack in pairs])
    if lengths is not None:
        ranks = _ranks_at_one_length(ranks, lengths)
    n_groups = groups.shape[1]
    n_null = nulls.shape[1]
    n_units = ranks.shape[1]
    sums, _ = comparison.permuted_sums(ranks, n_groups, seed)
    variance = ranks.var(axis=1, ddof=1)
    spread = np.sqrt(variance * n_groups * n_null / n_units)
    expected = n_groups * (n_units + 1) / 2
    t = (sums - expected) / np.where(spread > 0, spread, 1)
    order = np.argsort(-t[0], kind="stable")
    largest = np.maximum.accumulate(t[:, order[::-1]], axis=1)[:, ::-1]
    shares = (largest >= t[0, order]).mean(axis=0)
    p_values = np.empty(order.size)
    p_values[order] = np.maximum.accumulate(shares)
    return MaxT(t[0], p_values, len(t))


def _ranks_at_one_length(ranks: Floats, lengths: Floats) -> Floats:
    """Rank residuals of each attack's ranks; ``ranks`` themselves if lengths are equal."""
    from scipy.stats import rankdata

    centred = rankdata(lengths) - (lengths.size + 1) / 2
    squares = float(centred @ centred)
    if squares == 0:
        return ranks
    slopes = ranks @ centred / squares
    residuals = np.round(ranks - slopes[:, None] * centred, _DECIMALS)
    return np.asarray(rankdata(residuals, axis=1), np.float64)


def few_books_findings(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    rule: DecisionRule,
    planned: Collection[str] | None,
) -> pl.DataFrame:
    """Rows of checks ``top``, by the primary attack, and ``max_t``, by all that have scores."""
    # With other attacks than those ``planned`` ``max_t`` is ``exploratory``.
    with_names = rule.level != "target"
    sets = comparison.read_comparison_sets(scores, with_names=with_names)
    if not (sets.targets.size and sets.nulls.size):
        return Findings.create_empty()
    has_groups = comparison.tests_groups(sets, rule)
    n_windows = comparison.windows_per_group(sets, rule) if has_groups else 1
    independent = comparison.independent_units(
        sets,
        (sets.targets, sets.nulls),
        n_windows,
        rule.seed,
    )
    units = independent.units
    noun = _unit_noun(sets, independent, has_groups=has_groups)
    score = read_finite(scores, rule.primary, sets.target_id.len())
    target_scores = units[0].statistics(score, rule)
    null_scores = units[1].statistics(score, rule)
    reason = independent.reason
    if reason is None and not null_scores.size:
        reason = f"no null {noun} has {n_windows} windows"
    if rule.length_edges and not has_groups:
        reason = "texts are compared with those of their own length alone"
    n_tests = units[0].sizes.size
    top = None if reason else top_bound(target_scores, n_tests, null_scores)
    rows: list[Row] = [{"statistic": "at_least", "reason": reason}]
    if top is not None:
        rows[0]["value"] = top.at_least
        rows[0]["verdict"] = "some" if top.at_least > 0 else "none"
        if top.at_least > 0:
            rows += number_rows({"of_top": top.of_top, "rank": top.rank})
    counts = {
        "n_tests": n_tests,
        "n_null": null_scores.size,
        "confidence": intervals.CONFIDENCE,
    }
    tables = [finding_rows("top", [*rows, *number_rows(counts)], subject=noun)]
    if target_scores.size and null_scores.size and independent.reason is None:
        tables.append(
            _max_t_findings(
                scores,
                attacks,
                rule,
                planned,
                units,
                noun,
                sets.n_words.cast(pl.Float64).to_numpy(),
            )
        )
    return pl.concat(tables)


def _unit_noun(
    sets: comparison.ComparisonSets,
    independent: comparison.IndependentUnits,
    *,
    has_groups: bool,
) -> str:
    if independent.by_author:
        return "author"
    if not has_groups:
        return "text"
    levels = sets.clusters[independent.units[0].cluster]["level"].to_list()
    return next((level for level in ("group", "text") if level in levels), "document")


def _max_t_findings(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    rule: DecisionRule,
    planned: Collection[str] | None,
    units: Sequence[comparison.ComparedUnits],
    noun: str,
    n_words: Floats,
) -> pl.DataFrame:
    # Of an unknown length nothing can be taken out, so that scores stay as they are.
    rng = np.random.default_rng(rule.seed)
    windows_of_sets = []
    for set_units in units:
        lines = rng.permutation(len(set_units.windows))[:_MOST_PERMUTED]
        windows_of_sets.append(set_units.windows[np.sort(lines)])
    compared = _concatenate_rows(windows_of_sets)
    values = read_rows(scores, attacks, compared)
    n_windows = windows_of_sets[0].shape[1]
    lengths = n_words[compared].reshape(-1, n_windows).mean(axis=1)
    has_lengths = not np.isnan(lengths).any()
    windows = values.T.reshape(len(attacks), -1, n_windows)
    statistics = comparison.summarise(windows, rule.statistic)
    is_scored = np.asarray(~np.isnan(statistics).all(axis=1))
    names = [
        name for name, has_score in zip(attacks, is_scored, strict=True) if has_score
    ]
    if len(names) < 2:
        return Findings.create_empty()
    n_tests, n_null = (len(windows) for windows in windows_of_sets)
    groups, nulls = np.split(statistics[is_scored], [n_tests], axis=1)
    test = max_t(groups, nulls, rule.seed, lengths if has_lengths else None)
    as_planned = planned is not None and {*planned} == {*attacks}
    largest = {
        "subject": names[test.statistics.argmax()],
        "statistic": "largest",
        "value": test.statistics.max(),
        "p_value": test.p_values.min(),
        "verdict": "as_planned" if as_planned else "exploratory",
        "reason": None if as_planned or planned is None else _CHANGED,
    }
    counts = {
        "n_attacks": len(names),
        "n_orders": test.n_orders,
        "n_tests": n_tests,
        "n_null": n_null,
    }
    rank_sums = [
        {
            "subject": name,
            "statistic": "rank_sum",
            "value": statistic,
            "p_value": p_value,
        }
        for name, statistic, p_value in zip(
            names,
            test.statistics,
            test.p_values,
            strict=True,
        )
    ]
    rows = [largest, *number_rows(counts, subject=noun), *rank_sums]
    return finding_rows("max_t", rows)
