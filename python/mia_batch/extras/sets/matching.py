"""Documents with a membership, and their sets of one length: tested, matched, tested again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.diagnostics import blind
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.kernels import count_words, shared_runs
from mia_batch.schemas import BuiltTexts, ThrownAway
from mia_batch.stats import Codes, Flags, Floats
from mia_batch.stats.intervals import auc_interval, deal_folds, roc_auc
from mia_batch.targets import (
    Passages,
    build_document_identity,
    choose_windows,
    cluster_name,
    find_words,
    word_windows,
)

# Documents with a membership, by a cutoff of dates or by labels, and their texts of one
# length.

_RUN_WORDS = 8
_THROWN_AWAY = ThrownAway.create_empty()


def build_thrown_away(
    documents: pl.DataFrame, reason: str, **columns: pl.Series | pl.Expr
) -> pl.DataFrame:
    rows = documents.select("document_id", "member", reason=pl.lit(reason))
    rows = rows.with_columns(**columns)
    rows = rows.cast({name: _THROWN_AWAY.schema[name] for name in rows.columns})
    return pl.concat([_THROWN_AWAY, rows], how="diagonal")


def read_labelled(
    path: Path | str,
    names: ColumnNames,
    further_columns: dict[str, str | None],
    *,
    cutoff: date | None,
    gap_days: int,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read documents with ``member``, ``n_words`` and further columns; and what is thrown away."""
    rows = _read(path, names, further_columns).with_row_index("row", offset=1)
    has_labels = rows["member"].is_not_null().any()
    if cutoff is None and not has_labels:
        raise SettingsError(
            f"{path} does not say who is a member; give --cutoff and dates, or a column"
            " of labels"
        )
    if cutoff is not None and has_labels:
        raise SettingsError(
            f"{path} has labels, and a cutoff is given; give one or the other"
        )
    rows = rows.with_columns(
        pl.coalesce("document_id", pl.format("row {}", "row")),
        date=_parse_dates(rows, further_columns["date"], path),
        n_words=count_words("text").fill_null(0),
    )
    is_near = pl.lit(value=False)
    no_membership = "membership unknown"
    if cutoff is not None:
        gap = timedelta(days=gap_days)
        no_membership = "undated"
        rows = rows.with_columns(member=pl.col("date") < cutoff)
        is_near = pl.col("date").is_between(cutoff - gap, cutoff + gap, closed="left")
    faults = {
        "no text": pl.col("n_words") == 0,
        no_membership: pl.col("member").is_null(),
        "near the cutoff": is_near,
    }
    rows = rows.drop("row")
    thrown_away = []
    for reason, fault in faults.items():
        is_wrong = fault.fill_null(value=False)
        thrown_away.append(build_thrown_away(rows.filter(is_wrong), reason))
        rows = rows.filter(~is_wrong)
    rows, copies = _separate_copies(rows)
    return rows, pl.concat([*thrown_away, copies])


def _read(
    path: Path | str, names: ColumnNames, further_columns: dict[str, str | None]
) -> pl.DataFrame:
    documents = read_documents(path, names).documents
    present = documents.collect_schema().names()
    columns = {}
    for column, name in further_columns.items():
        if name is not None and name not in present:
            raise CorpusError(
                f"{path} has no column {name!r}; name the {column} with"
                f" --{column}-column"
            )
        columns[column] = pl.lit(None, pl.String) if name is None else pl.col(name)
    rows = documents.select("document_id", "text", "member", "group", **columns)
    rows = rows.with_columns(pl.col("source", "paraphrase").cast(pl.String))
    return rows.collect(engine="streaming")


def _parse_dates(rows: pl.DataFrame, name: str | None, path: Path | str) -> pl.Series:
    if rows["date"].dtype.is_temporal():
        return rows["date"].cast(pl.Date)
    texts = rows["date"].cast(pl.String)
    dates = texts.str.head(10).str.to_date("%Y-%m-%d", strict=False)
    is_wrong = texts.is_not_null() & (texts != "") & dates.is_null()
    row = is_wrong.arg_max()
    if row is not None and is_wrong[row]:
        raise CorpusError(
            f"{path}, document {row + 1}: column {name!r} is {texts[row]!r}, no date;"
            " write dates as 2023-01-31, or leave them empty"
        )
    return dates


def _separate_copies(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Separate copies: of members before non-members, of longer documents before shorter ones."""
    # So a non-member that stands in a member goes: its words were there before the
    # cutoff.
    ordered = rows.with_row_index("place").sort(
        ~pl.col("member"), -pl.col("n_words").cast(pl.Int64), maintain_order=True
    )
    copied = Passages().find_copies(ordered["text"].to_list())
    is_copy = pl.Series(copied, dtype=pl.Boolean)
    is_copy |= ~ordered["text"].is_first_distinct()
    originals = ordered.filter(~is_copy)
    copies = ordered.filter(is_copy)
    shared = shared_runs(
        copies["text"].str.to_lowercase(),
        originals["text"].str.to_lowercase(),
        run_words=_RUN_WORDS,
        words="unicode",
    )
    original_ids = originals["document_id"].gather(shared["other"])
    thrown_away = build_thrown_away(
        copies, "copy of another document", other_document=original_ids
    )
    return originals.sort("place").drop("place"), thrown_away


MOST_DOCUMENTS = 1000
"""Of a class, that are compared at one length: more cost time and show no smaller differences."""

_MOST_WINDOWS = 4  # of a document, that are compared


def cut_texts(
    documents: pl.DataFrame, length: int, seed: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Cut documents into texts, ``target``, of ``length`` words; and what is thrown away."""
    is_short = pl.col("n_words") < length
    long_enough = documents.filter(~is_short)
    rank = pl.col("document_id").hash(seed).rank("ordinal")
    compared = long_enough.filter((rank <= MOST_DOCUMENTS).over("member"))
    too_many = long_enough.join(compared, on="document_id", how="anti")
    words = pl.lit(length)
    thrown_away = [
        build_thrown_away(documents.filter(is_short), "too short", length=words),
        build_thrown_away(too_many, "more documents than are compared", length=words),
    ]
    rows: list[tuple[str, int, str | None]] = []
    for document_id, text in compared["document_id", "text"].iter_rows():
        starts = _choose_starts(document_id, text, length, seed)
        rows.extend(
            (document_id, start, slice_words(text, start, length)) for start in starts
        )
    schema = {
        "document_id": pl.String,
        "from_word": pl.UInt32,
        "target": pl.String,
    }
    texts = pl.DataFrame(rows, schema=schema, orient="row").join(
        compared.drop("text"),
        on="document_id",
        how="left",
        maintain_order="left",
    )
    target_id = pl.format("{}/{}", "document_id", "from_word")
    return texts.with_columns(target_id=target_id), pl.concat(thrown_away)


def _choose_starts(
    document_id: str,
    text: str,
    length: int,
    seed: int,
) -> list[int]:
    """Return the first words of a document's texts, that of its beginning first."""
    (words,) = find_words([text], "whitespace")
    spans = list(word_windows(len(words.starts), length, None)) or [range(length)]
    later = choose_windows(
        len(spans) - 1, _MOST_WINDOWS - 1, seed, build_document_identity(document_id)
    )
    starts = [spans[index + 1].start for index in sorted(later)]
    return [spans[0].start, *starts]


def slice_words(text: str | None, start: int, length: int) -> str | None:
    """Return words ``start`` and following; None where there are too few."""
    (words,) = find_words([text or ""], "whitespace")
    if text is None or len(words.starts) < start + length:
        return None
    return text[int(words.starts[start]) : int(words.ends[start + length - 1])]


# Pairs of members and non-members that classifiers do not tell apart.

_N_FOLDS = 5
_N_DEALS = 3  # divisions into folds whose scores are averaged

_MOST_ROUNDS = 8
_WORDS = ("blind_naive_bayes_v1", "blind_logistic_v1", "blind_ngrams_v1")
_CALIPERS = (0.10, 0.25, 0.30, 0.10)
"""How far a pair may be apart, as a share of all texts: in the mean score of the classifiers of
words, in that of the year and of the surface, and in that of those trained on what was thrown away.
"""
_FORBIDDEN = 1e3


class Candidates(NamedTuple):
    """Texts to choose from; arrays have an entry per text."""

    label: Flags
    document: Codes
    cluster: Codes  # texts of one are never on both sides of a fold
    source: Codes  # a pair is of one source
    features: pl.DataFrame  # what classifiers see


def match(texts: Candidates, generator: np.random.Generator) -> Codes:
    """Pair members with non-members; rows of the result are pairs of row numbers, members first.

    The first round compares cross-fitted scores: of each text by classifiers that were
    trained on other clusters. These alone fool themselves. A member stays because its
    classifier was misled by a non-member like it, and the other way round, so that
    within what stays classifiers are wrong more often than right, while new ones are
    not. Each further round therefore trains on all that was thrown away so far, which
    holds no document that stays, and gives up pairs that those scores tell apart, until
    they do no better than chance. A document is in one pair at most.

    References
    ----------
    Matching on an estimated probability: Rosenbaum and Rubin (1983), "The central role of the
    propensity score". Cross-fitting: Chernozhukov et al. (2018), "Double/debiased machine
    learning".
    """
    classifiers = blind.build_classifiers(texts.features)
    positions = _cross_fit(classifiers, texts, generator) / _CALIPERS[:3]
    rows = np.arange(texts.label.size)
    pairs = _pair(positions, rows, texts)
    for _ in range(_MOST_ROUNDS):
        stays = np.isin(texts.document, texts.document[pairs.ravel()])
        rows = np.flatnonzero(stays)
        thrown_away = np.flatnonzero(~stays)
        if np.unique(texts.label[thrown_away]).size < 2 or not pairs.size:
            break
        scores = _score(classifiers, texts.label, thrown_away, rows)
        learnt = np.zeros(texts.label.size)
        learnt[rows] = _rank_shares(_average_words(scores, classifiers))
        paired = pairs.ravel()
        # Half a standard deviation above the AUC of a score that means nothing is
        # chance.
        chance = 0.5 + 0.5 / np.sqrt(6 * len(pairs))
        if roc_auc(texts.label[paired], learnt[paired]) <= chance:
            break
        with_learnt = np.column_stack([positions, learnt / _CALIPERS[3]])
        pairs = _pair(with_learnt, rows, texts)
    return pairs


def _cross_fit(
    classifiers: Mapping[str, blind.Classifier],
    texts: Candidates,
    generator: np.random.Generator,
) -> Floats:
    """Place each text by words, year and surface, as a share of all texts."""
    total = np.zeros((texts.label.size, len(classifiers)))
    for _ in range(_N_DEALS):
        folds = deal_folds(
            texts.label, texts.cluster, n_folds=_N_FOLDS, generator=generator
        )
        for fold in range(_N_FOLDS):
            is_tested = folds.fold_of_text == fold
            train, test = np.flatnonzero(~is_tested), np.flatnonzero(is_tested)
            total[test] += _score(classifiers, texts.label, train, test)
    names = list(classifiers)
    year, surface = (
        total[:, names.index(name)] for name in ("blind_year_v1", "blind_surface_v1")
    )
    columns = _average_words(total, classifiers), year, surface
    return np.column_stack([_rank_shares(column) for column in columns])


def _score(
    classifiers: Mapping[str, blind.Classifier],
    label: Flags,
    train: Codes,
    test: Codes,
) -> Floats:
    """Score texts by every classifier, a column each, of mean 0 and deviation 1."""
    train_label = label[train][:, None]
    columns = [score(train, test, train_label) for score in classifiers.values()]
    scores = np.hstack(columns)
    deviation = scores.std(axis=0)
    divisor = np.where(deviation > 0, deviation, 1)
    return np.asarray((scores - scores.mean(axis=0)) / divisor)


def _average_words(
    scores: Floats, classifiers: Mapping[str, blind.Classifier]
) -> Floats:
    """Average the scores of the classifiers of words."""
    reads_words = [name in _WORDS for name in classifiers]
    return np.asarray(scores[:, reads_words].mean(axis=1))


def _rank_shares(values: Floats) -> Floats:
    """Return the share of the texts that score lower, ties one half."""
    from scipy.stats import rankdata

    return np.asarray((rankdata(values.round(9)) - 0.5) / values.size)


def _pair(positions: Floats, rows: Codes, texts: Candidates) -> Codes:
    """Pair as many documents as can be within a distance of 1, and of such choices the nearest."""
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    is_member = texts.label[rows]
    members, nonmembers = rows[is_member], rows[~is_member]
    if not (members.size and nonmembers.size):
        return np.empty((0, 2), np.intp)
    distance = cdist(positions[members], positions[nonmembers], "chebyshev")
    is_foreign = texts.source[members][:, None] != texts.source[nonmembers]
    distance[is_foreign] = _FORBIDDEN
    distance[distance > 1] = _FORBIDDEN
    first, first_code = np.unique(texts.document[members], return_inverse=True)
    second, second_code = np.unique(texts.document[nonmembers], return_inverse=True)
    # Of all texts of two documents the nearest two: the last to be written.
    nearest_last = np.argsort(-distance, axis=None, kind="stable")
    row, column = np.unravel_index(nearest_last, distance.shape)
    documents = first_code[row], second_code[column]
    cost = np.full((first.size, second.size), _FORBIDDEN)
    cost[documents] = distance[row, column]
    nearest = np.zeros((first.size, second.size), np.intp)
    nearest[documents] = nearest_last
    assigned = linear_sum_assignment(cost)
    is_allowed = cost[assigned] < _FORBIDDEN
    row, column = np.unravel_index(nearest[assigned][is_allowed], distance.shape)
    return np.column_stack([members[row], nonmembers[column]])


EXCLUDED_ABOVE: Final = 0.60
LEAST_PAIRS: Final = 46
"""With fewer, an AUC above 0.60 is not excluded even where the AUC found is 1/2.

The deviation of an AUC of 1/2 of n members and n non-members is 1 / sqrt(6 n), and
1.645 of it, which a one-sided limit of confidence 0.95 adds, are 0.10 at n = 45.1.
"""

_SEPARABLE_ABOVE = 0.55  # as in the blind baseline
_N_TREES = 200
_LEAST_TO_LEARN = 10


class BlindTest(NamedTuple):
    """How well classifiers that never see a model tell the classes of a set apart."""

    rows: list[dict[str, Any]]  # of the tests table, without length, setting and stage
    verdict: blind.BlindVerdict | None = None  # as of `BlindBaseline`
    # One-sided limit, confidence 0.95, of every classifier's AUC
    upper: float | None = None

    @property
    def strongest(self) -> dict[str, Any] | None:
        """The classifier of the highest upper limit."""
        measured = [row for row in self.rows if row.get("roc_auc") is not None]
        if not measured:
            return None
        row = max(measured, key=lambda row: row["high"])
        return {name: row[name] for name in ("classifier", "roc_auc", "low", "high")}


def check_within(texts: pl.DataFrame, seed: int) -> BlindTest:
    """Test a set by classifiers that are trained on other texts of it."""
    baseline = blind.blind_baseline(texts.lazy(), seed=seed)
    rows = baseline.metrics.select(
        "low",
        "high",
        "n_members",
        "n_nonmembers",
        "reason",
        classifier="attack",
        roc_auc="value",
        learnt_from=pl.lit("the set"),
    )
    return BlindTest(rows.to_dicts(), baseline.verdict, baseline.upper)


def check_outside(texts: pl.DataFrame, held_out: pl.DataFrame, seed: int) -> BlindTest:
    """Test a set by classifiers that are trained on documents that had no part in the matching."""
    # What matching leaves is a selection, and held-out documents have none of its
    # traces: so these figures are of new readers. A forest over words is one that the
    # matching does not use.
    is_member = texts["member"].to_numpy()
    n_members = int(is_member.sum())
    labels: dict[str, Any] = {
        "learnt_from": "held out",
        "n_members": n_members,
        "n_nonmembers": is_member.size - n_members,
    }
    n_learnt = int(held_out["member"].sum())
    if min(n_learnt, held_out.height - n_learnt) < _LEAST_TO_LEARN:
        reason = f"fewer than {_LEAST_TO_LEARN} texts of a class were held out"
        row = labels | {"classifier": "blind_forest_v1", "reason": reason}
        return BlindTest([row])
    scores = _score_outside(texts, held_out, seed)
    rows, firm_lows, uppers = [], [], []
    for name, score in scores.items():
        sides = score[is_member], score[~is_member]
        interval = auc_interval(*sides)
        auc = roc_auc(is_member, score)
        figures = {
            "roc_auc": auc,
            "low": interval.low,
            "high": interval.high,
        }
        rows.append(labels | {"classifier": name} | figures)
        firm_low = auc_interval(*sides, confidence=1 - 0.1 / len(scores)).low
        firm_lows.append(firm_low if auc > _SEPARABLE_ABOVE else 0.0)
        uppers.append(auc_interval(*sides, confidence=0.90).high)
    verdict: blind.BlindVerdict = "undecided"
    if max(firm_lows) > 0.5:
        verdict = "separable"
    elif max(uppers) <= EXCLUDED_ABOVE:
        verdict = "not separable"
    return BlindTest(rows, verdict, max(uppers))


def _score_outside(
    texts: pl.DataFrame, held_out: pl.DataFrame, seed: int
) -> dict[str, np.ndarray]:
    """Score texts by classifiers that are trained on the held-out ones."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.feature_extraction.text import CountVectorizer

    joined = pl.concat(
        [frame.select("target", "member") for frame in (held_out, texts)]
    )
    train = np.arange(held_out.height)
    test = np.arange(held_out.height, joined.height)
    train_label = joined["member"].to_numpy()[train]
    features = joined.select(blind.text_features())
    scores = {}
    for name, score in blind.build_classifiers(features).items():
        scores[name] = score(train, test, train_label[:, None])[:, 0].round(9)
    words = CountVectorizer(binary=True, token_pattern=r"(?u)\w+", min_df=2)
    forest = RandomForestClassifier(
        _N_TREES,
        min_samples_leaf=2,
        class_weight="balanced",
        random_state=seed,
        n_jobs=1,
    )
    forest.fit(words.fit_transform(held_out["target"].to_list()), train_label)
    counts = words.transform(texts["target"].to_list())
    scores["blind_forest_v1"] = forest.predict_proba(counts)[:, 1]
    return scores


# Share of the documents that tests a set that was matched, and is never in it
_HELD_OUT = 1 / 3

_COLUMNS = BuiltTexts.create_empty().schema


@dataclass(slots=True)
class SetResults:
    """The sets and their tests, length by length."""

    sets: list[dict[str, Any]] = field(default_factory=list)  # rows of the summary
    # By name; none is empty
    texts: dict[str, pl.DataFrame] = field(default_factory=dict)
    tests: list[dict[str, Any]] = field(default_factory=list)  # rows of the table
    thrown_away: list[pl.DataFrame] = field(default_factory=list)
    # By length: the strongest classifier, and why there is no set
    before_matching: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)

    def add_test(
        self, test: BlindTest, length: int, setting: str, stage: str
    ) -> BlindTest:
        labels = {"length": length, "setting": setting, "stage": stage}
        self.tests += [labels | row for row in test.rows]
        return test

    def throw_away(
        self,
        texts: pl.DataFrame,
        reason: str,
        length: int,
    ) -> None:
        documents = texts.unique("document_id", maintain_order=True)
        self.thrown_away.append(
            build_thrown_away(documents, reason, length=pl.lit(length))
        )

    def refuse(
        self,
        length: int,
        texts: pl.DataFrame,
        counts: str,
    ) -> None:
        self.refusals[length] = (
            f"{length} words: the input {counts}; with fewer than {LEAST_PAIRS} of each"
            " no test can exclude that they differ without a model"
        )
        self.throw_away(texts, "set refused", length)


def build_length(
    results: SetResults,
    documents: pl.DataFrame,
    length: int,
    *,
    settings: Sequence[str],
    repair: bool,
    seed: int,
) -> None:
    """Build the sets of one length: tested, matched where they can be told apart, tested again."""
    texts, left_out = cut_texts(documents, length, seed)
    results.thrown_away.append(left_out)
    texts = texts.with_columns(
        group_given=pl.col("group"), cluster=cluster_name(texts.columns)
    )
    first_texts = texts.filter(from_word=0)
    n_members = int(first_texts["member"].sum())
    n_nonmembers = first_texts.height - n_members
    counts = f"has {n_members:,} members and {n_nonmembers:,} non-members"
    if min(n_members, n_nonmembers) < LEAST_PAIRS:
        results.refuse(length, first_texts, counts)
        return
    test = check_within(first_texts, seed)
    results.add_test(test, length, "original", "before")
    results.before_matching[length] = test.strongest
    held_out = texts.clear()
    if repair and test.verdict != "not separable":
        held_out = texts.filter(_is_held_out(first_texts, seed))
        results.throw_away(held_out, "held out to test the set", length)
        texts = texts.join(held_out, on="document_id", how="anti")
        set_texts = _choose_pairs(texts, seed)
        n_pairs = set_texts.height // 2
        if n_pairs < LEAST_PAIRS:
            counts += (
                "; a third is held out to test the set, and matching leaves"
                f" {n_pairs} pairs of the others"
            )
            results.refuse(length, texts.filter(from_word=0), counts)
            return
    else:
        set_texts = first_texts.with_columns(pair=pl.lit(None, pl.UInt32))
    unmatched = texts.join(set_texts, on="document_id", how="anti")
    results.throw_away(unmatched, "nothing alike in the other class", length)
    for setting in settings:
        _build_setting(results, length, setting, set_texts, held_out, seed)


def _is_held_out(documents: pl.DataFrame, seed: int) -> pl.Expr:
    """Draw the clusters of documents that test the set."""
    members = documents.select(
        "document_id", "member", cluster=cluster_name(documents.columns)
    )
    clusters = members.unique("cluster", maintain_order=True)
    shuffled = clusters.sample(fraction=1, shuffle=True, seed=seed)
    place = pl.int_range(pl.len()).over("member")
    drawn_clusters = shuffled.filter(place < _HELD_OUT * pl.len().over("member"))
    held_out = members.join(drawn_clusters, on="cluster", how="semi")["document_id"]
    return pl.col("document_id").is_in(held_out.implode())


def _choose_pairs(texts: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Match texts; return those that have a partner, the two of a pair one after the other."""
    ranks = pl.col("document_id", "cluster", "source").fill_null("").rank("dense")
    codes = texts.select(ranks.cast(pl.Int64) - 1)
    candidates = Candidates(
        label=texts["member"].to_numpy(),
        document=codes["document_id"].to_numpy(),
        cluster=codes["cluster"].to_numpy(),
        source=codes["source"].to_numpy(),
        features=texts.select(blind.text_features()),
    )
    pairs = match(candidates, np.random.default_rng(seed))
    numbers = np.repeat(np.arange(1, len(pairs) + 1), 2)
    set_texts = texts[pairs.ravel()]
    set_texts = set_texts.with_columns(pair=pl.Series(numbers, dtype=pl.UInt32))
    pair_name = pl.format("pair {}", "pair")
    return set_texts.with_columns(group=pl.coalesce("group", pair_name))


def _build_setting(
    results: SetResults,
    length: int,
    setting: str,
    set_texts: pl.DataFrame,
    held_out: pl.DataFrame,
    seed: int,
) -> None:
    """Build and test one set of the texts that were chosen."""
    was_matched = held_out.height > 0
    if setting == "paraphrased":
        set_texts, thrown_away = _paraphrase_pairs(set_texts, length)
        results.thrown_away.append(thrown_away)
        held_out = _paraphrase(held_out, length)
        held_out = held_out.filter(pl.col("target").is_not_null())
    n_members = int(set_texts["member"].sum())
    n_nonmembers = set_texts.height - n_members
    row: dict[str, Any] = {
        "length": length,
        "setting": setting,
        "members": 0,
        "nonmembers": 0,
        "before": results.before_matching[length],
        "after": None,
        "outside": None,
        "upper": None,
        "verdict": None,
    }
    results.sets.append(row)
    if min(n_members, n_nonmembers) < LEAST_PAIRS:
        return
    # Whole pairs where there are more than the blind baseline looks at.
    in_baseline = pl.col("pair").is_null() | (
        pl.col("pair") <= blind.MAX_TEXTS_PER_CLASS
    )
    tests = {"after": check_within(set_texts.filter(in_baseline), seed + 1)}
    if was_matched:
        tests["outside"] = check_outside(set_texts, held_out, seed)
    for name, test in tests.items():
        results.add_test(test, length, setting, "after")
        row[name] = test.strongest
    row["upper"] = max(
        (test.upper for test in tests.values() if test.upper is not None), default=None
    )
    row["verdict"] = _choose_worst({test.verdict for test in tests.values()})
    # What stands before is equal in a pair and tells nothing
    if setting == "concatenated":
        set_texts = _add_contexts(set_texts, held_out, seed)
    if set_texts.height:
        row |= {"members": n_members, "nonmembers": n_nonmembers}
        results.texts[f"{setting}-{length}"] = _build_table(set_texts, length, setting)


def _choose_worst(
    verdicts: set[blind.BlindVerdict | None],
) -> blind.BlindVerdict:
    if "separable" in verdicts:
        return "separable"
    return "not separable" if verdicts == {"not separable"} else "undecided"


def _paraphrase_pairs(
    set_texts: pl.DataFrame, length: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Replace texts by their paraphrases; and what is thrown away for want of one."""
    set_texts = _paraphrase(set_texts, length)
    has_paraphrase = pl.col("target").is_not_null()
    if set_texts["pair"].is_not_null().all():  # its partner goes with it
        has_paraphrase = has_paraphrase.all().over("pair")
    thrown_away = build_thrown_away(
        set_texts.filter(~has_paraphrase),
        "no paraphrase of this length",
        length=pl.lit(length),
        setting=pl.lit("paraphrased"),
    )
    return set_texts.filter(has_paraphrase), thrown_away


def _paraphrase(texts: pl.DataFrame, length: int) -> pl.DataFrame:
    """Replace texts by the same words of their paraphrases; null where they are too short."""
    spans = texts.select("paraphrase", "from_word").iter_rows()
    targets = [slice_words(text, start, length) for text, start in spans]
    return texts.with_columns(target=pl.Series(targets, dtype=pl.String))


def _add_contexts(
    set_texts: pl.DataFrame, held_out: pl.DataFrame, seed: int
) -> pl.DataFrame:
    """Put a text of a held-out non-member before each text, the same for both of a pair."""
    contexts = held_out.filter(~pl.col("member"), from_word=0)["target"]
    if contexts.is_empty():
        return set_texts.clear()
    shuffled = contexts.sample(fraction=1, shuffle=True, seed=seed)
    place = set_texts.select((pl.col("pair") - 1) % shuffled.len()).to_series()
    targets = shuffled.gather(place) + "\n\n" + set_texts["target"]
    return set_texts.with_columns(target=targets)


def _build_table(set_texts: pl.DataFrame, length: int, setting: str) -> pl.DataFrame:
    table = set_texts.with_columns(
        from_document="document_id",
        document_id=pl.format(f"{{}}/{setting}-{length}", "document_id"),
        text="target",
        length=pl.lit(length),
        setting=pl.lit(setting),
    )
    typed = table.select(pl.col(name).cast(kind) for name, kind in _COLUMNS.items())
    return typed.sort("pair", "document_id", "member")
