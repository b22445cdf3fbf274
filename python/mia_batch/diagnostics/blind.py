"""How well the labels can be distinguished without the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias
from warnings import catch_warnings, simplefilter

import numpy as np
import polars as pl

from mia_batch.diagnostics.plain import PlainDifference, plain_differences, plain_ranks
from mia_batch.kernels import count_words, zlib_size
from mia_batch.schemas import Metrics
from mia_batch.stats import Codes, Flags, Floats, intervals
from mia_batch.targets import cluster_names

if TYPE_CHECKING:
    from scipy.sparse import csr_array


# Classifiers that see texts and labels but never the model. Every one learns from many
# sets of labels at once, because permuted labels leave the texts as they are. A higher
# score means "more likely a member".

_TOLERANCE = 0.01  # of the logistic regression: a tighter one takes longer, moves no AUC by 0.001

Classifier: TypeAlias = Callable[[Codes, Codes, Flags], Floats]
"""Scores the rows named second, once for each column of labels, the classes of the first rows."""


def naive_bayes(counts: csr_array, train: Codes, test: Codes, labels: Flags) -> Floats:
    """Log-likelihood ratio of multinomial naive Bayes with add-one smoothing, without the prior."""
    # scikit-learn's MultinomialNB, so that one matrix product serves every set of
    # labels.
    seen = counts[train].T
    smoothed = (seen @ of_class.astype(float) + 1 for of_class in (labels, ~labels))
    members, others = (np.log(words / words.sum(axis=0)) for words in smoothed)
    ratio: Floats = counts[test] @ (members - others)
    return ratio


def logistic(values: csr_array, train: Codes, test: Codes, labels: Flags) -> Floats:
    """Log-odds of logistic regression with an L2 penalty of weight 1."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    seen, unseen = values[train], values[test]
    model = LogisticRegression(
        solver="liblinear", dual=True, tol=_TOLERANCE, random_state=0
    )
    with catch_warnings():  # after 100 rounds it is a classifier like any other
        simplefilter("ignore", ConvergenceWarning)
        odds = [model.fit(seen, label).decision_function(unseen) for label in labels.T]
    return np.column_stack(odds)


def ridge(
    similarity: Floats, penalty: float, train: Codes, test: Codes, labels: Flags
) -> Floats:
    """Predicted class less its mean, from a positive semi-definite similarity of texts."""
    from sklearn.kernel_ridge import KernelRidge

    alpha = penalty * max(float(similarity.diagonal().mean()), 1.0)
    model = KernelRidge(alpha=alpha, kernel="precomputed")
    model.fit(similarity[np.ix_(train, train)], labels - labels.mean(axis=0))
    scores: Floats = model.predict(similarity[np.ix_(test, train)])
    return scores


def direction(value: Floats, train: Codes, test: Codes, labels: Flags) -> Floats:
    """One number of each text, times -1 where its AUC is below 1/2."""
    from scipy.stats import rankdata

    above_mean = rankdata(value[train]) - (train.size + 1) / 2
    return np.outer(value[test], np.where(above_mean @ labels >= 0, 1.0, -1.0))


# The texts of the blind baseline: which ones, and what the classifiers see of them.

# Of more texts the upper limit, 0.56 on average where there is no difference, hardly
# falls.
MAX_TEXTS_PER_CLASS = 500
MAX_CHARACTERS = (
    10_000  # in which words and n-grams are counted; other classifiers see all
)
_ROWS_AT_ONCE = 32_768


class BlindTexts(NamedTuple):
    """Texts of both classes, in the order of their ``target_id``."""

    # ``target_id``, ``label``, ``text`` (its beginning), ``year`` and ``surface`` (a
    # struct)
    frame: pl.DataFrame
    cluster: Codes  # of each text, from 0 without gaps
    n_labelled: int  # texts with a label, whether used or not

    @property
    def label(self) -> Flags:
        return self.frame["label"].to_numpy()


def read_texts(texts: pl.LazyFrame, label: str) -> BlindTexts:
    """Choose at most ``MAX_TEXTS_PER_CLASS`` texts of each class, and read them."""
    # Of each cluster the first text by ``target_id`` (a hash, so an order that means
    # nothing) is taken, then of each the second, and so on: as many clusters as can be,
    # as evenly as can be.
    keys = texts.select(
        "target_id",
        label=pl.col(label),
        cluster=cluster_names(texts),
        null=pl.col("target").is_null(),
    ).filter(pl.col("label").is_not_null())
    chosen, n_labelled = keys.clear().collect().drop("null"), 0
    # What a batch and those before it leave out, later ones cannot bring back: they
    # only add texts that come earlier, or in a later place of their cluster.
    for batch in keys.collect_batches(chunk_size=_ROWS_AT_ONCE, maintain_order=True):
        n_labelled += batch.height
        known = batch.filter(~pl.col("null")).drop("null")
        place = pl.int_range(pl.len()).over("label", "cluster", order_by="target_id")
        ranked = (
            pl.concat([chosen, known])
            .with_columns(place=place)
            .sort("place", "target_id")
        )
        chosen = ranked.group_by("label").head(MAX_TEXTS_PER_CLASS)
        chosen = chosen.select("target_id", "label", "cluster").sort("target_id")
    wanted = texts.filter(pl.col("target_id").is_in(chosen["target_id"].implode()))
    seen = wanted.select("target_id", *seen_of_texts()).collect(engine="streaming")
    frame = chosen.drop("cluster").join(seen, on="target_id", maintain_order="left")
    cluster = (chosen["cluster"].rank("dense").to_numpy() - 1).astype(np.intp)
    return BlindTexts(frame, cluster, n_labelled)


def seen_of_texts() -> list[pl.Expr]:
    """Take from each ``target`` what the classifiers see: ``text``, ``year`` and ``surface``."""
    text = pl.col("target")
    years = text.str.extract_all("(19|20)[0-9][0-9]").list.eval(
        pl.element().cast(pl.Int32)
    )
    length, n_bytes = text.str.len_chars() + 1, text.str.len_bytes() + 1
    shares = {
        "punctuation": r"[^\w\s]",
        "commas": ",",
        "digits": "[0-9]",
        "numbers": r"[0-9]+",
        "capitals": r"\p{Lu}",
        "spaces": r"\s",
        "lines": "\n",
    }
    surface = pl.struct(
        length.log().alias("characters"),
        (count_words("target") + 1).log().alias("words"),
        (n_bytes / length).alias("bytes"),
        (zlib_size("target") / n_bytes).alias("zlib"),
        *(
            (text.str.count_matches(kind) / length).alias(name)
            for name, kind in shares.items()
        ),
    )
    # The largest number that may be one
    year = years.list.max().fill_null(0).alias("year")
    return [text.str.head(MAX_CHARACTERS).alias("text"), year, surface.alias("surface")]


def build_classifiers(seen: pl.DataFrame) -> Mapping[str, partial[Floats]]:
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.preprocessing import StandardScaler

    words = _counts(seen["text"], token_pattern=r"(?u)\w+")
    grams = _counts(seen["text"], analyzer="char_wb", ngram_range=(3, 5)).sign()
    # Gaussian similarity of standardised numbers, so that no direction is taken for
    # granted.
    numbers = StandardScaler().fit_transform(seen["surface"].struct.unnest().to_numpy())
    surface = rbf_kernel(numbers, gamma=0.5 / numbers.shape[1])
    return {
        "blind_naive_bayes_v1": partial(naive_bayes, words),
        "blind_logistic_v1": partial(logistic, words.sign()),
        "blind_ngrams_v1": partial(ridge, (grams @ grams.T).toarray(), 0.05),
        "blind_surface_v1": partial(ridge, surface, 1.0),
        "blind_year_v1": partial(direction, -seen["year"].to_numpy().astype(float)),
    }


def _counts(texts: pl.Series, **options: object) -> csr_array:
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(dtype=np.float64, **options)
    # It refuses texts without any word
    counts = vectorizer.fit_transform([*texts, "word"])
    return csr_array(counts)[:-1]


# Classifiers tried on folds they were not trained on, for true and for permuted labels.

_SETS_AT_ONCE = (
    50  # of labels that a classifier learns together: bounds naive Bayes' memory
)
_DECIMALS = (
    9  # beyond them, scores of equal texts may differ with their places in a matrix
)


class Outcome(NamedTuple):
    """How well a classifier tells the classes apart on texts it was not trained on."""

    label: Flags  # class of each text
    # share of the texts of its fold that score below a text, ties and itself one half:
    # in (0, 1), comparable across folds
    score: Floats
    auc: float  # of the score
    permuted: Floats  # the same under each permutation of the labels, with everything learned anew

    def interval(self, confidence: float = 0.95) -> intervals.Interval:
        """Interval of the AUC to expect of such a classifier, trained on as many texts.

        Learning adds to the error of an AUC, and so do clusters: the limits of `auc_interval` move
        away from the AUC by the ratio of its standard deviation on the permutations to that of
        independent texts and a fixed score, at least 1. Lehmann (1975), "Nonparametrics", section
        1.4; Bengio and Grandvalet (2004), "No unbiased estimator of the variance of K-fold
        cross-validation".
        """
        members, nonmembers = self.score[self.label], self.score[~self.label]
        plain = intervals.auc_interval(members, nonmembers, confidence=confidence)
        spread = float(np.sqrt(np.mean((self.permuted - 0.5) ** 2)))
        # The deviation of a fixed score's AUC, members drawn at random; 0 if constant.
        n, n_members = self.score.size, members.size
        ties = np.unique(self.score, return_counts=True)[1]
        untied = n + 1 - (ties**3 - ties).sum() / (n * (n - 1))
        expected = float(np.sqrt(max(untied, 0.0) / (12 * n_members * (n - n_members))))
        wider = max(1.0, spread / expected) if expected else 1.0
        low = max(0.0, self.auc - wider * (self.auc - plain.low))
        high = min(1.0, self.auc + wider * (plain.high - self.auc))
        return intervals.Interval(low, high, confidence, f"{plain.method}_permuted")


def cross_validate(
    classifiers: Mapping[str, Classifier],
    label: Flags,
    folds: intervals.Folds,
    *,
    n_permutations: int,
    generator: np.random.Generator,
) -> dict[str, Outcome]:
    """Score each fold by classifiers trained on the others, for true and for permuted labels."""
    from sklearn import config_context
    from threadpoolctl import threadpool_limits

    drawn = [
        intervals.permute_labels(label, folds, generator) for _ in range(n_permutations)
    ]
    labels = np.column_stack([label, *drawn])
    # One thread, because sums of several differ in the last bit, and because the
    # matrices are small; checks of a thousand small fits would take longer than the
    # fits.
    with (
        threadpool_limits(1),
        config_context(assume_finite=True, skip_parameter_validation=True),
    ):
        outcomes = {}
        for name, model in classifiers.items():
            pieces = np.array_split(
                labels, -(-labels.shape[1] // _SETS_AT_ONCE), axis=1
            )
            shares = np.hstack([_held_out(model, piece, folds) for piece in pieces])
            auc, *permuted = map(intervals.roc_auc, labels.T, shares.T)
            outcomes[name] = Outcome(label, shares[:, 0], auc, np.array(permuted))
        return outcomes


def _held_out(classifier: Classifier, labels: Flags, folds: intervals.Folds) -> Floats:
    from scipy.stats import rankdata

    shares, fold_of_text = np.empty(labels.shape), folds.fold_of_text
    for fold in range(folds.n_folds):
        test, train = (
            np.flatnonzero(fold_of_text == fold),
            np.flatnonzero(fold_of_text != fold),
        )
        scores = classifier(train, test, labels[train]).round(_DECIMALS)
        shares[test] = (rankdata(scores, axis=0) - 0.5) / test.size
    return shares


# Can the labels be distinguished without the model? Then attack figures are no evidence
# of memory.

BlindVerdict: TypeAlias = Literal["separable", "not separable", "undecided"]
"""Whether labels can be predicted without the model; ``undecided`` warns as ``separable`` does."""

BLIND_CLASSIFIERS: Final = (
    "blind_naive_bayes_v1",
    "blind_logistic_v1",
    "blind_ngrams_v1",
    "blind_surface_v1",
    "blind_year_v1",
)

_N_PERMUTATIONS, _N_FOLDS, _LEVEL = 199, 5, 0.05
_SEPARABLE_ABOVE, _EXCLUDED_ABOVE = 0.55, 0.60


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the outcomes of all classifiers say together; None where there are no outcomes."""

    strongest: str | None = None  # name of the classifier with the highest AUC
    auc: float | None = None  # that AUC
    # share of permutations of the labels by cluster, the true labels included, under
    # which some classifier has so high an AUC; each learns anew
    p_value: float | None = None
    upper: float | None = (
        None  # limit for every classifier's expected AUC at once, confidence 0.95
    )
    # ``separable``: p <= 0.05 and AUC > 0.55; else ``not separable``: upper <= 0.60
    verdict: BlindVerdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindBaseline(Judgement):
    """What classifiers that never see the model make of the labels."""

    metrics: pl.DataFrame  # ``roc_auc`` of each classifier, or a reason
    # Of each text used: ``target_id``, and `Outcome.score` by classifier
    scores: pl.DataFrame
    reason: str | None = None  # why there is no verdict
    plain: Sequence[PlainDifference] = ()  # what single numbers tell of the labels


def blind_baseline(
    texts: pl.LazyFrame, *, label: str = "member", seed: int = 0
) -> BlindBaseline:
    """Try to tell labels apart without the model.

    Classifiers are cross-validated in five folds of whole clusters, and their scores
    replaced by ranks within each fold, because folds of other training texts have other
    scales. The p-value permutes labels by cluster within folds 199 times, and compares
    the highest AUC of all classifiers. Rows without a label are left out, null texts
    are counted, too.

    Das, Zhang and Tramèr (2024), arXiv:2406.16201. Permutation: Ojala and Garriga
    (2010), test 1.
    """
    chosen = read_texts(texts, label)
    if any(
        np.unique(chosen.cluster[chosen.label == side]).size < _N_FOLDS
        for side in (0, 1)
    ):
        reason = f"each class needs {_N_FOLDS} groups; a text without a group is one"
        lost = [{"attack": name, "reason": reason} for name in BLIND_CLASSIFIERS]
        schema = {"target_id": pl.String()} | dict.fromkeys(
            BLIND_CLASSIFIERS, pl.Float64()
        )
        none = pl.DataFrame(schema=schema)
        return BlindBaseline(metrics=_metrics(chosen, lost), scores=none, reason=reason)
    generator = np.random.default_rng(seed)
    folds = intervals.deal_folds(
        chosen.label, chosen.cluster, n_folds=_N_FOLDS, generator=generator
    )
    outcomes = cross_validate(
        build_classifiers(chosen.frame),
        chosen.label,
        folds,
        n_permutations=_N_PERMUTATIONS,
        generator=generator,
    )
    rows = [
        {"attack": name, "value": outcome.auc, **outcome.interval()._asdict()}
        for name, outcome in outcomes.items()
    ]
    shares = {name: pl.Series(outcome.score) for name, outcome in outcomes.items()}
    plain = plain_differences(chosen.frame, chosen.label, chosen.cluster)
    ranks = {
        name: pl.Series(values)
        for name, values in plain_ranks(chosen.frame, plain).items()
    }
    return BlindBaseline(
        metrics=_metrics(chosen, rows),
        scores=chosen.frame.select("target_id", **shares, **ranks),
        plain=plain,
        **asdict(judge(outcomes)),
    )


def judge(outcomes: Mapping[str, Outcome]) -> Judgement:
    """Judge the strongest classifier by the permutations and limits of all.

    The largest of several limits holds for all: Berger (1982), "Multiparameter
    hypothesis testing".
    """
    strongest = max(outcomes, key=lambda name: outcomes[name].auc)
    auc = outcomes[strongest].auc
    highest = np.max([outcome.permuted for outcome in outcomes.values()], axis=0)
    p_value = float((1 + (highest >= auc).sum()) / (1 + highest.size))
    # Limits of 0.90 on both sides are limits of 0.95 on one.
    upper = max(outcome.interval(confidence=0.90).high for outcome in outcomes.values())
    verdict: BlindVerdict = "not separable" if upper <= _EXCLUDED_ABOVE else "undecided"
    if p_value <= _LEVEL and auc > _SEPARABLE_ABOVE:
        verdict = "separable"
    return Judgement(
        strongest=strongest, auc=auc, p_value=p_value, upper=upper, verdict=verdict
    )


def _metrics(chosen: BlindTexts, rows: Iterable[Mapping[str, object]]) -> pl.DataFrame:
    n_members = int(chosen.label.sum())
    same = {
        "slice": "all",
        "metric": "roc_auc",
        "n_members": n_members,
        "n_nonmembers": chosen.frame.height - n_members,
        "n_unscored": chosen.n_labelled - chosen.frame.height,
    }
    return pl.DataFrame(
        [{**same, **row} for row in rows], schema=Metrics.create_empty().schema
    )
