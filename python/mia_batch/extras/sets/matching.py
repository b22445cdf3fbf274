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
_THROWN = ThrownAway.create_empty()


def thrown(
    documents: pl.DataFrame, reason: str, **more: pl.Series | pl.Expr
) -> pl.DataFrame:
    rows = documents.select(
        "document_id", "member", reason=pl.lit(reason)
    ).with_columns(**more)
    typed = rows.cast({name: _THROWN.schema[name] for name in rows.columns})
    return pl.concat([_THROWN, typed], how="diagonal")


def read_labelled(
    path: Path | str,
    names: ColumnNames,
    further: dict[str, str | None],
    *,
    cutoff: date | None,
    gap_days: int,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read documents with ``member``, ``n_words`` and ``further`` columns; what is thrown away."""
    rows = _read(path, names, further).with_row_index("row", offset=1)
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
        date=_dates(rows, further["date"], path),
        n_words=count_words("text").fill_null(0),
    )
    near, unknown = pl.lit(value=False), "membership unknown"
    if cutoff is not None:
        gap, unknown = timedelta(days=gap_days), "undated"
        rows = rows.with_columns(member=pl.col("date") < cutoff)
        near = pl.col("date").is_between(cutoff - gap, cutoff + gap, closed="left")
    faults = {
        "no text": pl.col("n_words") == 0,
        unknown: pl.col("member").is_null(),
        "near the cutoff": near,
    }
    away, rows = [], rows.drop("row")
    for reason, fault in faults.items():
        is_wrong = fault.fill_null(value=False)
        away.append(thrown(rows.filter(is_wrong), reason))
        rows = rows.filter(~is_wrong)
    rows, copies = _without_copies(rows)
    return rows, pl.concat([*away, copies])


def _read(
    path: Path | str, names: ColumnNames, further: dict[str, str | None]
) -> pl.DataFrame:
    documents = read_documents(path, names).documents
    present, columns = documents.collect_schema().names(), {}
    for part, name in further.items():
        if name is not None and name not in present:
            raise CorpusError(
                f"{path} has no column {name!r}; name the {part} with --{part}-column"
            )
        columns[part] = pl.lit(None, pl.String) if name is None else pl.col(name)
    wanted = documents.select("document_id", "text", "member", "group", **columns)
    strings = pl.col("source", "paraphrase").cast(pl.String)
    return wanted.with_columns(strings).collect(engine="streaming")


def _dates(rows: pl.DataFrame, name: str | None, path: Path | str) -> pl.Series:
    found = rows["date"]
    if found.dtype.is_temporal():
        return found.cast(pl.Date)
    text = found.cast(pl.String)
    dates = text.str.head(10).str.to_date("%Y-%m-%d", strict=False)
    wrong = text.is_not_null() & (text != "") & dates.is_null()
    if (row := wrong.arg_max()) is not None and wrong[row]:
        raise CorpusError(
            f"{path}, document {row + 1}: column {name!r} is {text[row]!r}, no date;"
            " write dates as 2023-01-31, or leave them empty"
        )
    return dates


def _without_copies(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Take away copies: of members before non-members, of longer documents before shorter ones."""
    # So a non-member that stands in a member goes: its words were there before the
    # cutoff.
    ordered = rows.with_row_index("place").sort(
        ~pl.col("member"), -pl.col("n_words").cast(pl.Int64), maintain_order=True
    )
    is_copy = pl.Series(
        Passages().find_copies(ordered["text"].to_list()), dtype=pl.Boolean
    )
    is_copy |= ~ordered["text"].is_first_distinct()
    kept, copies = ordered.filter(~is_copy), ordered.filter(is_copy)
    shared = shared_runs(
        copies["text"].str.to_lowercase(),
        kept["text"].str.to_lowercase(),
        run_words=_RUN_WORDS,
        words="unicode",
    )
    other = kept["document_id"].gather(shared["other"])
    away = thrown(copies, "copy of another document", other_document=other)
    return kept.sort("place").drop("place"), away


MOST_DOCUMENTS = 1000
"""Of a class, that are compared at one length: more cost time and show no smaller differences."""

_MOST_WINDOWS = 4  # of a document, that are compared


def cut(
    documents: pl.DataFrame, length: int, seed: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Cut documents into texts, ``target``, of ``length`` words; also give what goes."""
    is_short = pl.col("n_words") < length
    enough = documents.filter(~is_short)
    chosen = enough.filter(
        (pl.col("document_id").hash(seed).rank("ordinal") <= MOST_DOCUMENTS).over(
            "member"
        )
    )
    too_many = enough.join(chosen, on="document_id", how="anti")
    away = [
        thrown(documents.filter(is_short), "too short", length=pl.lit(length)),
        thrown(too_many, "more documents than are compared", length=pl.lit(length)),
    ]
    rows = [
        (document, start, words_of(text, start, length))
        for document, text in chosen["document_id", "text"].iter_rows()
        for start in _starts(document, text, length, seed)
    ]
    types = {"document_id": pl.String, "from_word": pl.UInt32, "target": pl.String}
    found = pl.DataFrame(rows, schema=types, orient="row")
    texts = found.join(
        chosen.drop("text"), on="document_id", how="left", maintain_order="left"
    )
    named = pl.format("{}/{}", "document_id", "from_word")
    return texts.with_columns(target_id=named), pl.concat(away)


def _starts(document: str, text: str, length: int, seed: int) -> list[int]:
    (words,) = find_words([text], "whitespace")
    found = list(word_windows(len(words.starts), length, None)) or [range(length)]
    later = choose_windows(
        len(found) - 1, _MOST_WINDOWS - 1, seed, build_document_identity(document)
    )
    return [
        found[place].start for place in (0, *(1 + index for index in sorted(later)))
    ]


def words_of(text: str | None, start: int, length: int) -> str | None:
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
    seen: pl.DataFrame  # the columns of `seen_of_texts`


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
    classifiers = blind.build_classifiers(texts.seen)
    position = _cross_fitted(classifiers, texts, generator) / _CALIPERS[:3]
    rows = np.arange(texts.label.size)
    pairs = _pair(position, rows, texts)
    for _ in range(_MOST_ROUNDS):
        stays = np.isin(texts.document, texts.document[pairs.ravel()])
        rows, away = np.flatnonzero(stays), np.flatnonzero(~stays)
        if np.unique(texts.label[away]).size < 2 or not pairs.size:
            break
        learnt = np.zeros(texts.label.size)
        scores = _scores(classifiers, texts.label, away, rows)
        learnt[rows] = _shares(_mean_of_words(scores, classifiers))
        paired = pairs.ravel()
        # Half a standard deviation above the AUC of a score that means nothing is
        # chance.
        if roc_auc(texts.label[paired], learnt[paired]) <= 0.5 + 0.5 / np.sqrt(
            6 * len(pairs)
        ):
            break
        pairs = _pair(np.column_stack([position, learnt / _CALIPERS[3]]), rows, texts)
    return pairs


def _cross_fitted(
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
        fold = folds.fold_of_text
        for each in range(_N_FOLDS):
            train, test = np.flatnonzero(fold != each), np.flatnonzero(fold == each)
            total[test] += _scores(classifiers, texts.label, train, test)
    names = list(classifiers)
    alone = [
        total[:, names.index(name)] for name in ("blind_year_v1", "blind_surface_v1")
    ]
    return np.column_stack(
        [*map(_shares, (_mean_of_words(total, classifiers), *alone))]
    )


def _scores(
    classifiers: Mapping[str, blind.Classifier],
    label: Flags,
    train: Codes,
    test: Codes,
) -> Floats:
    """Score texts by every classifier, a column each, of mean 0 and deviation 1."""
    learnt = label[train][:, None]
    scores = np.hstack([each(train, test, learnt) for each in classifiers.values()])
    deviation = scores.std(axis=0)
    return np.asarray(
        (scores - scores.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    )


def _mean_of_words(
    scores: Floats, classifiers: Mapping[str, blind.Classifier]
) -> Floats:
    return np.asarray(scores[:, [name in _WORDS for name in classifiers]].mean(axis=1))


def _shares(values: Floats) -> Floats:
    """Share of the texts that score lower, ties one half."""
    from scipy.stats import rankdata

    return np.asarray((rankdata(values.round(9)) - 0.5) / values.size)


def _pair(position: Floats, rows: Codes, texts: Candidates) -> Codes:
    """Pair as many documents as can be within a distance of 1, and of such choices the nearest."""
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    members, others = rows[texts.label[rows]], rows[~texts.label[rows]]
    if not (members.size and others.size):
        return np.empty((0, 2), np.intp)
    distance = cdist(position[members], position[others], "chebyshev")
    distance[texts.source[members][:, None] != texts.source[others]] = _FORBIDDEN
    distance[distance > 1] = _FORBIDDEN
    first, of_member = np.unique(texts.document[members], return_inverse=True)
    second, of_other = np.unique(texts.document[others], return_inverse=True)
    # Of all texts of two documents the nearest two: the last to be written.
    nearest_last = np.argsort(-distance, axis=None, kind="stable")
    row, column = np.unravel_index(nearest_last, distance.shape)
    cost = np.full((first.size, second.size), _FORBIDDEN)
    best = np.zeros((first.size, second.size), np.intp)
    cost[of_member[row], of_other[column]] = distance[row, column]
    best[of_member[row], of_other[column]] = nearest_last
    a, b = linear_sum_assignment(cost)
    allowed = cost[a, b] < _FORBIDDEN
    row, column = np.unravel_index(best[a, b][allowed], distance.shape)
    return np.column_stack([members[row], others[column]])


EXCLUDED_ABOVE: Final = 0.60
LEAST_PAIRS: Final = 46
"""With fewer, an AUC above 0.60 is not excluded even where the AUC found is 1/2.

The deviation of an AUC of 1/2 of n members and n non-members is 1 / sqrt(6 n), and
1.645 of it, which a one-sided limit of confidence 0.95 adds, are 0.10 at n = 45.1.
"""

_SEPARABLE_ABOVE = 0.55  # as in the blind baseline
_N_TREES = 200
_LEAST_TO_LEARN = 10


class Tested(NamedTuple):
    """What a test found; ``strongest``: the classifier of the highest upper limit."""

    rows: list[dict[str, Any]]  # of the tests table, without length, setting and stage
    verdict: blind.BlindVerdict | None = None  # as of `BlindBaseline`
    upper: float | None = (
        None  # one-sided limit, confidence 0.95, of every classifier's AUC
    )

    @property
    def strongest(self) -> dict[str, Any] | None:
        found = [row for row in self.rows if row.get("roc_auc") is not None]
        best = max(found, key=lambda row: row["high"], default=None)
        return best and {
            name: best[name] for name in ("classifier", "roc_auc", "low", "high")
        }


def ask_within(texts: pl.DataFrame, seed: int) -> Tested:
    found = blind.blind_baseline(texts.lazy(), seed=seed)
    names = {"attack": "classifier", "value": "roc_auc"}
    kept = ["attack", "value", "low", "high", "n_members", "n_nonmembers", "reason"]
    rows = (
        found.metrics.select(kept)
        .rename(names)
        .with_columns(learnt_from=pl.lit("the set"))
    )
    return Tested(rows.to_dicts(), found.verdict, found.upper)


def ask_outside(texts: pl.DataFrame, held_out: pl.DataFrame, seed: int) -> Tested:
    """Train classifiers on documents that had no part in the matching; try each on the set."""
    # What matching leaves is a selection, and held-out documents have none of its
    # traces: so these figures are of new readers. A forest over words is one that the
    # matching does not use.
    member = texts["member"].to_numpy()
    same: dict[str, Any] = {"learnt_from": "held out", "n_members": int(member.sum())}
    same["n_nonmembers"] = member.size - same["n_members"]
    learnt = int(held_out["member"].sum())
    if min(learnt, held_out.height - learnt) < _LEAST_TO_LEARN:
        reason = f"fewer than {_LEAST_TO_LEARN} texts of a class were held out"
        return Tested([same | {"classifier": "blind_forest_v1", "reason": reason}])
    scores = _outside_scores(texts, held_out, seed)
    rows, firm, uppers = [], [], []
    for name, score in scores.items():
        sides = score[member], score[~member]
        interval, auc = auc_interval(*sides), roc_auc(member, score)
        figures = {"roc_auc": auc, "low": interval.low, "high": interval.high}
        rows.append(same | {"classifier": name} | figures)
        firm_low = auc_interval(*sides, confidence=1 - 0.1 / len(scores)).low
        firm.append(firm_low if auc > _SEPARABLE_ABOVE else 0.0)
        uppers.append(auc_interval(*sides, confidence=0.90).high)
    verdict: blind.BlindVerdict = "undecided"
    if max(firm) > 0.5:
        verdict = "separable"
    elif max(uppers) <= EXCLUDED_ABOVE:
        verdict = "not separable"
    return Tested(rows, verdict, max(uppers))


def _outside_scores(
    texts: pl.DataFrame, held_out: pl.DataFrame, seed: int
) -> dict[str, np.ndarray]:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.feature_extraction.text import CountVectorizer

    both = pl.concat([frame.select("target", "member") for frame in (held_out, texts)])
    label, n_learnt = both["member"].to_numpy(), held_out.height
    train, test = np.arange(n_learnt), np.arange(n_learnt, both.height)
    scores = {
        name: classifier(train, test, label[train][:, None])[:, 0].round(9)
        for name, classifier in blind.build_classifiers(
            both.select(blind.seen_of_texts())
        ).items()
    }
    words = CountVectorizer(binary=True, token_pattern=r"(?u)\w+", min_df=2)
    forest = RandomForestClassifier(
        _N_TREES,
        min_samples_leaf=2,
        class_weight="balanced",
        random_state=seed,
        n_jobs=1,
    )
    forest.fit(words.fit_transform(held_out["target"].to_list()), label[train])
    trees = forest.predict_proba(words.transform(texts["target"].to_list()))[:, 1]
    return scores | {"blind_forest_v1": trees}


# Share of the documents that tests a set that was matched, and is never in it
_HELD_OUT = 1 / 3

_COLUMNS = BuiltTexts.create_empty().schema


@dataclass(slots=True)
class MadeSets:
    """What was made, length by length."""

    # Of each, what the tests say
    sets: list[dict[str, Any]] = field(default_factory=list)
    # By name; none is empty
    texts: dict[str, pl.DataFrame] = field(default_factory=dict)
    tests: list[dict[str, Any]] = field(default_factory=list)
    away: list[pl.DataFrame] = field(default_factory=list)
    # Matching, by length
    before: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    def add(self, tested: Tested, length: int, setting: str, stage: str) -> Tested:
        of = {"length": length, "setting": setting, "stage": stage}
        self.tests += [of | row for row in tested.rows]
        return tested


def build_length(
    made: MadeSets,
    documents: pl.DataFrame,
    length: int,
    *,
    settings: Sequence[str],
    repair: bool,
    seed: int,
) -> None:
    texts, too_short = cut(documents, length, seed)
    made.away.append(too_short)
    texts = texts.with_columns(
        group_given=pl.col("group"), cluster=cluster_name(texts.columns)
    )
    first = texts.filter(from_word=0)
    members = int(first["member"].sum())
    nonmembers = first.height - members
    what = f"has {members:,} members and {nonmembers:,} non-members"
    if min(members, nonmembers) < LEAST_PAIRS:
        return _refuse(made, length, first, what)
    before = made.add(ask_within(first, seed), length, "original", "before")
    made.before[length] = before.strongest
    if repair and before.verdict != "not separable":
        held_out = texts.filter(_is_held_out(first, seed))
        made.away.append(_away(held_out, "held out to test the set", length))
        texts = texts.join(held_out, on="document_id", how="anti")
        ranks = pl.col("document_id", "cluster", "source").fill_null("").rank("dense")
        numbered = texts.select(ranks.cast(pl.Int64) - 1)
        document, cluster, source = (column.to_numpy() for column in numbered)
        member, seen = texts["member"].to_numpy(), texts.select(blind.seen_of_texts())
        candidates = Candidates(member, document, cluster, source, seen)
        pairs = match(candidates, np.random.default_rng(seed))
        if len(pairs) < LEAST_PAIRS:
            what += (
                "; a third is held out to test the set, and matching leaves"
                f" {len(pairs)} pairs"
            )
            what += " of the others"
            return _refuse(made, length, texts.filter(from_word=0), what)
        chosen = texts[pairs.ravel()].with_columns(
            pair=pl.Series(np.repeat(np.arange(1, len(pairs) + 1), 2), dtype=pl.UInt32)
        )
        chosen = chosen.with_columns(
            group=pl.coalesce("group", pl.format("pair {}", "pair"))
        )
    else:
        chosen, held_out = (
            first.with_columns(pair=pl.lit(None, pl.UInt32)),
            texts.clear(),
        )
    rest = texts.join(chosen, on="document_id", how="anti")
    made.away.append(_away(rest, "nothing alike in the other class", length))
    for setting in settings:
        _build(made, length, setting, chosen, held_out, seed)
    return None


def _is_held_out(documents: pl.DataFrame, seed: int) -> pl.Expr:
    of = documents.select(
        "document_id", "member", cluster=cluster_name(documents.columns)
    )
    clusters = of.unique("cluster", maintain_order=True).sample(
        fraction=1, shuffle=True, seed=seed
    )
    place = pl.int_range(pl.len()).over("member")
    drawn = clusters.filter(place < _HELD_OUT * pl.len().over("member"))
    return pl.col("document_id").is_in(
        of.join(drawn, on="cluster", how="semi")["document_id"].implode()
    )


def _away(texts: pl.DataFrame, reason: str, length: int) -> pl.DataFrame:
    return thrown(
        texts.unique("document_id", maintain_order=True), reason, length=pl.lit(length)
    )


def _refuse(made: MadeSets, length: int, first: pl.DataFrame, what: str) -> None:
    made.refused[length] = (
        f"{length} words: the input {what}; with fewer than {LEAST_PAIRS} of each no"
        " test can exclude that they differ without a model"
    )
    made.away.append(_away(first, "set refused", length))


def _build(
    made: MadeSets,
    length: int,
    setting: str,
    chosen: pl.DataFrame,
    held_out: pl.DataFrame,
    seed: int,
) -> None:
    was_matched = held_out.height > 0
    if setting == "paraphrased":
        chosen, held_out = (_paraphrased(each, length) for each in (chosen, held_out))
        held_out = held_out.filter(pl.col("target").is_not_null())
        whole = pl.col("target").is_not_null()
        if chosen["pair"].is_not_null().all():  # its partner goes with it
            whole = whole.all().over("pair")
        of = {"length": pl.lit(length), "setting": pl.lit(setting)}
        made.away.append(
            thrown(chosen.filter(~whole), "no paraphrase of this length", **of)
        )
        chosen = chosen.filter(whole)
    members = int(chosen["member"].sum())
    found: dict[str, Any] = {
        "length": length,
        "setting": setting,
        "members": 0,
        "nonmembers": 0,
    }
    found["before"] = made.before[length]
    found |= dict.fromkeys(("after", "outside", "upper", "verdict"))
    made.sets.append(found)
    if min(members, chosen.height - members) < LEAST_PAIRS:
        return
    # Whole pairs where there are more than the blind baseline looks at.
    few = chosen.filter(
        pl.col("pair").is_null() | (pl.col("pair") <= blind.MAX_TEXTS_PER_CLASS)
    )
    tests = {"after": made.add(ask_within(few, seed + 1), length, setting, "after")}
    if was_matched:
        outside = ask_outside(chosen, held_out, seed)
        tests["outside"] = made.add(outside, length, setting, "after")
    # What stands before is equal in a pair and tells nothing
    if setting == "concatenated":
        chosen = _after_contexts(chosen, held_out, seed)
    verdicts = {tested.verdict for tested in tests.values()}
    worse: blind.BlindVerdict = (
        "not separable" if verdicts == {"not separable"} else "undecided"
    )
    found["verdict"] = "separable" if "separable" in verdicts else worse
    found["upper"] = max(
        (t.upper for t in tests.values() if t.upper is not None), default=None
    )
    found |= {name: tested.strongest for name, tested in tests.items()}
    if chosen.height:
        found |= {"members": members, "nonmembers": chosen.height - members}
        made.texts[f"{setting}-{length}"] = _as_table(chosen, length, setting)


def _paraphrased(texts: pl.DataFrame, length: int) -> pl.DataFrame:
    """Take the same words of the paraphrases; null where they are too short."""
    spans = texts.select("paraphrase", "from_word").iter_rows()
    targets = [words_of(text, start, length) for text, start in spans]
    return texts.with_columns(target=pl.Series(targets, dtype=pl.String))


def _after_contexts(
    chosen: pl.DataFrame, held_out: pl.DataFrame, seed: int
) -> pl.DataFrame:
    """Put a text of a held-out non-member before each text, the same for both of a pair."""
    contexts = held_out.filter(~pl.col("member"), from_word=0)["target"]
    if contexts.is_empty():
        return chosen.clear()
    order = contexts.sample(fraction=1, shuffle=True, seed=seed)
    place = chosen.select((pl.col("pair") - 1) % order.len()).to_series()
    return chosen.with_columns(target=order.gather(place) + "\n\n" + chosen["target"])


def _as_table(chosen: pl.DataFrame, length: int, setting: str) -> pl.DataFrame:
    table = chosen.with_columns(
        from_document="document_id",
        document_id=pl.format(f"{{}}/{setting}-{length}", "document_id"),
        text="target",
        length=pl.lit(length),
        setting=pl.lit(setting),
    )
    typed = table.select(pl.col(name).cast(kind) for name, kind in _COLUMNS.items())
    return typed.sort("pair", "document_id", "member")
