"""How well labels can be predicted without the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias
from warnings import catch_warnings, simplefilter

import numpy as np
import polars as pl

from mia_batch.corpus.conversations import CONVERSATION
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

# Of the logistic regression: a tighter one takes longer, moves no AUC by 0.001
_TOLERANCE = 0.01

Classifier: TypeAlias = Callable[[Codes, Codes, Flags], Floats]
"""Learns from rows (first) and scores rows (second), for each column of labels.

Labels are the classes of the first rows.
"""


def naive_bayes(
    counts: csr_array,
    train: Codes,
    test: Codes,
    labels: Flags,
) -> Floats:
    """Compute the log-likelihood ratio of multinomial naive Bayes, without the prior.

    Smoothing adds one to each count.
    """
    # scikit-learn's MultinomialNB, so that one matrix product serves every set of
    # labels.
    train_counts = counts[train].T
    of_members = train_counts @ labels.astype(float) + 1
    of_nonmembers = train_counts @ (~labels).astype(float) + 1
    log_member = np.log(of_members / of_members.sum(axis=0))
    log_nonmember = np.log(of_nonmembers / of_nonmembers.sum(axis=0))
    ratio: Floats = counts[test] @ (log_member - log_nonmember)
    return ratio


def logistic(
    values: csr_array,
    train: Codes,
    test: Codes,
    labels: Flags,
) -> Floats:
    """Compute the log-odds of logistic regression with an L2 penalty of weight 1."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(
        solver="liblinear", dual=True, tol=_TOLERANCE, random_state=0
    )
    train_values = values[train]
    test_values = values[test]
    log_odds = []
    with catch_warnings():  # after 100 rounds it is a classifier like any other
        simplefilter("ignore", ConvergenceWarning)
        for label in labels.T:
            model.fit(train_values, label)
            log_odds.append(model.decision_function(test_values))
    return np.column_stack(log_odds)


def ridge(
    similarity: Floats,
    penalty: float,
    train: Codes,
    test: Codes,
    labels: Flags,
) -> Floats:
    """Predict the class less its mean by kernel ridge regression.

    ``similarity`` of texts is positive semi-definite.
    """
    from sklearn.kernel_ridge import KernelRidge

    alpha = penalty * max(float(similarity.diagonal().mean()), 1.0)
    model = KernelRidge(alpha=alpha, kernel="precomputed")
    model.fit(similarity[np.ix_(train, train)], labels - labels.mean(axis=0))
    scores: Floats = model.predict(similarity[np.ix_(test, train)])
    return scores


def direction(
    value: Floats,
    train: Codes,
    test: Codes,
    labels: Flags,
) -> Floats:
    """Return one number of each text, times -1 where its AUC is below 1/2."""
    from scipy.stats import rankdata

    above_mean = rankdata(value[train]) - (train.size + 1) / 2
    sign = np.where(above_mean @ labels >= 0, 1.0, -1.0)
    return np.outer(value[test], sign)


# The texts of the blind baseline, and what the classifiers see of them.

# Of more texts the upper limit, 0.56 on average where there is no difference, hardly
# falls.
MAX_TEXTS_PER_CLASS = 500
# In which words and n-grams are counted; other classifiers see all
MAX_CHARACTERS = 10_000
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
    all_keys = texts.select(
        "target_id",
        label=pl.col(label),
        cluster=cluster_names(texts),
        is_null=pl.col("target").is_null(),
    ).filter(pl.col("label").is_not_null())
    keys = all_keys.clear().collect().drop("is_null")
    n_labelled = 0
    # What a batch and those before it leave out, later ones cannot bring back: they
    # only add texts that come earlier, or in a later place of their cluster.
    for batch in all_keys.collect_batches(
        chunk_size=_ROWS_AT_ONCE, maintain_order=True
    ):
        n_labelled += batch.height
        with_text = batch.filter(~pl.col("is_null")).drop("is_null")
        place = pl.int_range(pl.len()).over("label", "cluster", order_by="target_id")
        ranked = pl.concat([keys, with_text]).with_columns(place=place)
        in_order = ranked.sort("place", "target_id")
        firsts = in_order.group_by("label").head(MAX_TEXTS_PER_CLASS)
        keys = firsts.select("target_id", "label", "cluster").sort("target_id")
    is_kept = pl.col("target_id").is_in(keys["target_id"].implode())
    seen = _join_conversations(texts.filter(is_kept))
    features = seen.select("target_id", *text_features())
    frame = keys.drop("cluster").join(
        features.collect(engine="streaming"), on="target_id", maintain_order="left"
    )
    cluster = (keys["cluster"].rank("dense").to_numpy() - 1).astype(np.intp)
    return BlindTexts(frame, cluster, n_labelled)


def _join_conversations(texts: pl.LazyFrame) -> pl.LazyFrame:
    """Put before an answer what came before it, since the model reads it, too."""
    if CONVERSATION not in texts.collect_schema():
        return texts
    whole = pl.concat_str(CONVERSATION, "target", separator="\n")
    return texts.with_columns(target=pl.coalesce(whole, "target"))


def text_features() -> list[pl.Expr]:
    """Build what classifiers see of a ``target``: ``text``, ``year`` and ``surface``."""
    text = pl.col("target")
    length = text.str.len_chars() + 1
    n_bytes = text.str.len_bytes() + 1
    patterns = {
        "punctuation": r"[^\w\s]",
        "commas": ",",
        "digits": "[0-9]",
        "numbers": r"[0-9]+",
        "capitals": r"\p{Lu}",
        "spaces": r"\s",
        "lines": "\n",
    }
    shares = [
        (text.str.count_matches(pattern) / length).alias(name)
        for name, pattern in patterns.items()
    ]
    surface = pl.struct(
        length.log().alias("characters"),
        (count_words("target") + 1).log().alias("words"),
        (n_bytes / length).alias("bytes"),
        (zlib_size("target") / n_bytes).alias("zlib"),
        *shares,
    )
    numbers = text.str.extract_all("(19|20)[0-9][0-9]")
    years = numbers.list.eval(pl.element().cast(pl.Int32))
    return [
        text.str.head(MAX_CHARACTERS).alias("text"),
        years.list.max().fill_null(0).alias("year"),
        surface.alias("surface"),
    ]


def build_classifiers(features: pl.DataFrame) -> Mapping[str, partial[Floats]]:
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.preprocessing import StandardScaler

    words = _counts(features["text"], token_pattern=r"(?u)\w+")
    grams = _counts(features["text"], analyzer="char_wb", ngram_range=(3, 5)).sign()
    similarity_of_grams = (grams @ grams.T).toarray()
    # Gaussian similarity of standardised numbers, so that no direction is taken for
    # granted.
    surface = features["surface"].struct.unnest().to_numpy()
    numbers = StandardScaler().fit_transform(surface)
    similarity_of_surface = rbf_kernel(numbers, gamma=0.5 / numbers.shape[1])
    year = features["year"].to_numpy().astype(float)
    return {
        "blind_naive_bayes_v1": partial(naive_bayes, words),
        "blind_logistic_v1": partial(logistic, words.sign()),
        "blind_ngrams_v1": partial(ridge, similarity_of_grams, 0.05),
        "blind_surface_v1": partial(ridge, similarity_of_surface, 1.0),
        "blind_year_v1": partial(direction, -year),
    }


def _counts(texts: pl.Series, **options: object) -> csr_array:
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(dtype=np.float64, **options)
    # It refuses texts without any word
    counts = vectorizer.fit_transform([*texts, "word"])
    return csr_array(counts)[:-1]


# Classifiers score folds that they did not learn from, for true and permuted labels.

# Sets of labels that a classifier learns together: bounds naive Bayes' memory
_SETS_AT_ONCE = 50
# Beyond them, scores of equal texts may differ with their places in a matrix
_DECIMALS = 9


class Outcome(NamedTuple):
    """How well a classifier separates the classes on texts it was not trained on."""

    label: Flags  # class of each text
    # share of the texts of its fold that score below a text, ties and itself one half:
    # in (0, 1), comparable across folds
    score: Floats
    auc: float  # of the score
    # AUC under each permutation of the labels, with everything learned anew
    permuted: Floats

    def interval(self, confidence: float = 0.95) -> intervals.Interval:
        """Compute an interval of the AUC to expect of such a classifier.

        It is trained on as many texts.

        Learning adds to the error of an AUC, and so do clusters: the limits of
        `auc_interval` move away from the AUC by the ratio of its standard deviation on
        the permutations to that of independent texts and a fixed score, at least 1.
        Lehmann (1975), "Nonparametrics", section 1.4; Bengio and Grandvalet (2004), "No
        unbiased estimator of the variance of K-fold cross-validation".
        """
        members = self.score[self.label]
        nonmembers = self.score[~self.label]
        plain = intervals.auc_interval(members, nonmembers, confidence=confidence)
        error = float(np.sqrt(np.mean((self.permuted - 0.5) ** 2)))
        # The deviation of a fixed score's AUC, members drawn at random; 0 if constant.
        n = self.score.size
        ties = np.unique(self.score, return_counts=True)[1]
        untied = n + 1 - (ties**3 - ties).sum() / (n * (n - 1))
        n_pairs = members.size * (n - members.size)
        expected_error = float(np.sqrt(max(untied, 0.0) / (12 * n_pairs)))
        widening = max(1.0, error / expected_error) if expected_error else 1.0
        low = max(0.0, self.auc - widening * (self.auc - plain.low))
        high = min(1.0, self.auc + widening * (plain.high - self.auc))
        return intervals.Interval(low, high, confidence, f"{plain.method}_permuted")


def cross_validate(
    classifiers: Mapping[str, Classifier],
    label: Flags,
    folds: intervals.Folds,
    *,
    n_permutations: int,
    generator: np.random.Generator,
) -> dict[str, Outcome]:
    """Score each fold by classifiers of the rest, for true and for permuted labels."""
    from sklearn import config_context
    from threadpoolctl import threadpool_limits

    permuted_labels = [
        intervals.permute_labels(label, folds, generator) for _ in range(n_permutations)
    ]
    labels = np.column_stack([label, *permuted_labels])
    n_batches = -(-labels.shape[1] // _SETS_AT_ONCE)
    batches = np.array_split(labels, n_batches, axis=1)
    # One thread, because sums of several differ in the last bit, and because the
    # matrices are small; checks of a thousand small fits would take longer than the
    # fits.
    with (
        threadpool_limits(1),
        config_context(assume_finite=True, skip_parameter_validation=True),
    ):
        outcomes = {}
        for name, classifier in classifiers.items():
            shares = np.hstack(
                [_held_out(classifier, batch, folds) for batch in batches]
            )
            auc, *permuted_auc = map(intervals.roc_auc, labels.T, shares.T)
            outcomes[name] = Outcome(
                label=label,
                score=shares[:, 0],
                auc=auc,
                permuted=np.array(permuted_auc),
            )
        return outcomes


def _held_out(
    classifier: Classifier,
    labels: Flags,
    folds: intervals.Folds,
) -> Floats:
    """Score each fold by a classifier of the rest, as shares of texts that score lower."""
    from scipy.stats import rankdata

    shares = np.empty(labels.shape)
    fold_of_text = folds.fold_of_text
    for fold in range(folds.n_folds):
        test = np.flatnonzero(fold_of_text == fold)
        train = np.flatnonzero(fold_of_text != fold)
        scores = classifier(train, test, labels[train]).round(_DECIMALS)
        shares[test] = (rankdata(scores, axis=0) - 0.5) / test.size
    return shares


# Where labels can be predicted without the model, attack figures are no evidence of
# memory.

BlindVerdict: TypeAlias = Literal["separable", "not separable", "undecided"]
"""Whether labels can be predicted without the model; ``undecided`` warns, too."""

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
    """Conclusion from the outcomes of all classifiers; None without outcomes."""

    strongest: str | None = None  # name of the classifier with the highest AUC
    auc: float | None = None  # that AUC
    # share of permutations of the labels by cluster, the true labels included, under
    # which some classifier has so high an AUC; each learns anew
    p_value: float | None = None
    # limit for every classifier's expected AUC at once, confidence 0.95
    upper: float | None = None
    # ``separable``: p <= 0.05 and AUC > 0.55; else ``not separable``: upper <= 0.60
    verdict: BlindVerdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindBaseline(Judgement):
    """What classifiers that never see the model predict of the labels."""

    metrics: pl.DataFrame  # ``roc_auc`` of each classifier, or a reason
    # Of each text used: ``target_id``, and `Outcome.score` by classifier
    scores: pl.DataFrame
    reason: str | None = None  # why there is no verdict
    plain: Sequence[PlainDifference] = ()  # of single numbers between the labels


def blind_baseline(
    texts: pl.LazyFrame,
    *,
    label: str = "member",
    seed: int = 0,
) -> BlindBaseline:
    """Try to predict labels without the model.

    Classifiers are cross-validated in five folds of whole clusters, and their scores
    replaced by ranks within each fold, because folds of other training texts have other
    scales. The p-value permutes labels by cluster within folds 199 times, and compares
    the highest AUC of all classifiers. Rows without a label are left out, null texts
    are counted, too.

    Das, Zhang and Tramèr (2024), arXiv:2406.16201. Permutation: Ojala and Garriga
    (2010), test 1.
    """
    blind_texts = read_texts(texts, label)
    n_clusters = [
        np.unique(blind_texts.cluster[blind_texts.label == side]).size
        for side in (0, 1)
    ]
    if min(n_clusters) < _N_FOLDS:
        return _no_baseline(blind_texts)
    generator = np.random.default_rng(seed)
    folds = intervals.deal_folds(
        blind_texts.label, blind_texts.cluster, n_folds=_N_FOLDS, generator=generator
    )
    outcomes = cross_validate(
        build_classifiers(blind_texts.frame),
        blind_texts.label,
        folds,
        n_permutations=_N_PERMUTATIONS,
        generator=generator,
    )
    rows = [
        {"attack": name, "value": outcome.auc, **outcome.interval()._asdict()}
        for name, outcome in outcomes.items()
    ]
    plain = plain_differences(blind_texts.frame, blind_texts.label, blind_texts.cluster)
    columns = {name: outcome.score for name, outcome in outcomes.items()}
    columns |= plain_ranks(blind_texts.frame, plain)
    scores = {name: pl.Series(values) for name, values in columns.items()}
    return BlindBaseline(
        metrics=_metrics(blind_texts, rows),
        scores=blind_texts.frame.select("target_id", **scores),
        plain=plain,
        **asdict(judge(outcomes)),
    )


def _no_baseline(blind_texts: BlindTexts) -> BlindBaseline:
    """Build the answer where a class has too few clusters."""
    reason = f"each class needs {_N_FOLDS} groups; a text without a group is one"
    rows = [{"attack": name, "reason": reason} for name in BLIND_CLASSIFIERS]
    scores = pl.DataFrame(
        schema={
            "target_id": pl.String(),
            **dict.fromkeys(BLIND_CLASSIFIERS, pl.Float64()),
        }
    )
    return BlindBaseline(
        metrics=_metrics(blind_texts, rows), scores=scores, reason=reason
    )


def judge(outcomes: Mapping[str, Outcome]) -> Judgement:
    """Judge the strongest classifier by the permutations and limits of all.

    The largest of several limits holds for all: Berger (1982), "Multiparameter
    hypothesis testing".
    """
    strongest = max(outcomes, key=lambda name: outcomes[name].auc)
    auc = outcomes[strongest].auc
    permuted = [outcome.permuted for outcome in outcomes.values()]
    highest = np.max(permuted, axis=0)
    p_value = float((1 + (highest >= auc).sum()) / (1 + highest.size))
    # Limits of 0.90 on both sides are limits of 0.95 on one.
    upper = max(outcome.interval(confidence=0.90).high for outcome in outcomes.values())
    verdict: BlindVerdict = "undecided"
    if p_value <= _LEVEL and auc > _SEPARABLE_ABOVE:
        verdict = "separable"
    elif upper <= _EXCLUDED_ABOVE:
        verdict = "not separable"
    return Judgement(
        strongest=strongest,
        auc=auc,
        p_value=p_value,
        upper=upper,
        verdict=verdict,
    )


def _metrics(
    blind_texts: BlindTexts, rows: Iterable[Mapping[str, object]]
) -> pl.DataFrame:
    """Build rows of the metrics table."""
    n_members = int(blind_texts.label.sum())
    common = {
        "slice": "all",
        "metric": "roc_auc",
        "n_members": n_members,
        "n_nonmembers": blind_texts.frame.height - n_members,
        "n_unscored": blind_texts.n_labelled - blind_texts.frame.height,
    }
    schema = Metrics.create_empty().schema
    return pl.DataFrame([{**common, **row} for row in rows], schema=schema)
