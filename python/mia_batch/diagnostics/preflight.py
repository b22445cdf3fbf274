"""What texts show before any model is asked: copies, undeclared books, blind classifiers."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.diagnostics.blind import BlindBaseline, blind_baseline
from mia_batch.diagnostics.plain import PLAIN_COLUMN
from mia_batch.kernels import pair_features, shared_runs, word_spans
from mia_batch.schemas import Findings, Metrics
from mia_batch.stats import Codes, Flags, Ints
from mia_batch.tables import read_numbers
from mia_batch.targets import cluster_names

_Row = dict[str, object]
_Hashes = NDArray[np.uint64]

MAX_TEXTS_PER_SIDE = 10_000  # more are left out; so many of 128 words take about 50 MB
# Runs of 13 words: Brown et al. (2020), arXiv:2005.14165, appendix C. 70 % of runs of 8
# words: Chowdhery et al. (2022), arXiv:2204.02311, section 8.
_LONG_RUN_WORDS, _SHORT_RUN_WORDS, _HIGH_OVERLAP = 13, 8, 0.7
_N_EXAMPLES = 5


class SideDuplicates(NamedTuple):
    """What the texts of one side have in common with those of the other."""

    n_texts: int  # texts compared
    n_left_out: int  # texts beyond the most that are compared
    n_short: int  # texts of fewer than 8 words, which show nothing
    n_long_run: int  # texts with a run of 13 words that is in the other side
    # texts with at least 70 % of their runs of 8 words in the other side
    n_high_overlap: int
    n_concerned: int  # texts with either
    examples: list[
        tuple[str, str]
    ]  # their names, with that of a text of the other side

    @property
    def share(self) -> float | None:
        """Share of the texts that are long enough."""
        n_compared = self.n_texts - self.n_short
        return self.n_concerned / n_compared if n_compared else None


def near_duplicates(
    texts: pl.LazyFrame, *, label: str = "member"
) -> tuple[SideDuplicates, SideDuplicates]:
    """Compare the texts of both classes: label true first, then label false."""
    # Words are those of UAX #29, in lower case; of too many texts the first by
    # ``target_id`` count.
    labelled = texts.filter(pl.col(label).is_not_null(), pl.col("target").is_not_null())
    sizes = labelled.group_by(label).len().collect(engine="streaming")
    counts = dict(sizes.iter_rows())
    first = _read_side(labelled.filter(pl.col(label)))
    second = _read_side(labelled.filter(~pl.col(label)))
    return (
        _compare(first, second, counts.get(True, 0)),
        _compare(second, first, counts.get(False, 0)),
    )


def count_copies(texts: pl.LazyFrame) -> tuple[int, int]:
    """Count texts, and those that are in another cluster byte for byte.

    They are compared by hashes of 64 bits.
    """
    clusters = texts.with_columns(cluster=cluster_names(texts))
    hashes = (
        clusters.filter(pl.col("target").is_not_null())
        .select(pl.col("target").hash(), pl.col("cluster").hash())
        .collect(engine="streaming")
    )
    text, cluster = (column.to_numpy() for column in hashes)
    if not text.size:
        return 0, 0
    order = np.lexsort((cluster, text))
    text, cluster = text[order], cluster[order]
    is_same = text[1:] == text[:-1]
    is_first = np.append(True, ~is_same)
    is_elsewhere = np.append(False, is_same & (cluster[1:] != cluster[:-1]))
    starts = np.flatnonzero(is_first)
    sizes = np.diff(np.append(starts, text.size))
    is_copied = np.logical_or.reduceat(is_elsewhere, starts)
    return text.size, int(sizes[is_copied].sum())


def _read_side(texts: pl.LazyFrame) -> pl.DataFrame:
    """Read the first texts by ``target_id``, in lower case, with their names."""
    keys = texts.select("target_id").bottom_k(MAX_TEXTS_PER_SIDE, by="target_id")
    firsts = keys.collect(engine="streaming").to_series()
    compared = texts.filter(pl.col("target_id").is_in(firsts.implode()))
    schema = compared.collect_schema()
    names = [name for name in ("document_id", "target_id") if name in schema]
    lower = compared.select(
        "target_id",
        pl.col("target").str.to_lowercase(),
        name=pl.coalesce(names),
    )
    return lower.collect(engine="streaming").sort("target_id")


def _compare(
    texts: pl.DataFrame,
    other_side: pl.DataFrame,
    n_texts: int,
) -> SideDuplicates:
    long, short = (
        shared_runs(
            texts["target"],
            other_side["target"],
            run_words=n_words,
            words="unicode",
        )
        for n_words in (_LONG_RUN_WORDS, _SHORT_RUN_WORDS)
    )
    has_long_run = long["shared"] > 0
    least_shared = _HIGH_OVERLAP * short["runs"]
    has_high_overlap = (short["shared"] > 0) & (short["shared"] >= least_shared)
    is_concerned = has_long_run | has_high_overlap
    # Where no long run is shared, a short one is.
    other_row = long["other"].fill_null(short["other"])
    rows = other_row.filter(is_concerned).head(_N_EXAMPLES)
    names = texts["name"].filter(is_concerned).head(_N_EXAMPLES)
    other_names = other_side["name"].gather(rows)
    return SideDuplicates(
        n_texts=texts.height,
        n_left_out=n_texts - texts.height,
        n_short=int((short["runs"] == 0).sum()),
        n_long_run=int(has_long_run.sum()),
        n_high_overlap=int(has_high_overlap.sum()),
        n_concerned=int(is_concerned.sum()),
        examples=[*zip(names, other_names, strict=True)],
    )


# Texts that look like parts of one book although no group says so.

# The group of non-members that look like parts of one book
UNDECLARED = "undeclared book"

_MOST_TEXTS, _MOST_CHARACTERS, _LEAST_TEXTS = 1_000, 2_000, 20
_N_PERMUTATIONS, _LEVEL, _LEAST_RATIO = 999, 0.01, 1.15
_TARGET = pl.col("role") == "target"


class Likeness(NamedTuple):
    """How alike neighbouring rows are."""

    ratio: float  # of their mean similarity to that of rows at random
    p_value: float

    @property
    def is_one_book(self) -> bool:
        """Whether neighbours are more alike than chance, and by a margin."""
        return self.p_value <= _LEVEL and self.ratio >= _LEAST_RATIO


def likeness(texts: Sequence[str]) -> Likeness | None:
    """Compare the likeness of neighbouring rows with 999 orders of the rows.

    It is the cosine of sublinear tf-idf.
    """
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    if len(texts) < _LEAST_TEXTS:
        return None
    vectorizer = HashingVectorizer(
        n_features=1 << 16,
        token_pattern=r"[^\W\d_]{3,}",
        norm=None,
        alternate_sign=False,
    )
    counts = vectorizer.transform(texts)
    weights = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    similarity = (weights @ weights.T).toarray()
    of_neighbours = np.diag(similarity, 1).mean()
    rng = np.random.default_rng(0)
    means = []
    for _ in range(_N_PERMUTATIONS):
        order = rng.permutation(len(texts))
        means.append(similarity[order[:-1], order[1:]].mean())
    by_chance = np.array(means)
    n_as_high = (by_chance >= of_neighbours - 1e-12).sum()
    p_value = (1 + n_as_high) / (1 + _N_PERMUTATIONS)
    ratio = of_neighbours / max(by_chance.mean(), 1e-9)
    return Likeness(float(ratio), float(p_value))


def asked_texts(targets: pl.LazyFrame) -> pl.Expr:
    """Label targets that are compared with nulls true, and the nulls false."""
    is_null = pl.col("role") == "non_member"
    if not _has(targets, is_null):
        is_null = _TARGET & ~pl.col("member")
    null_label = pl.when(is_null).then(pl.lit(value=False))
    return null_label.when(_TARGET).then(pl.lit(value=True))


def with_undeclared(targets: pl.LazyFrame) -> pl.LazyFrame:
    """Group non-members without a group where they look like parts of one book."""
    alike = _measure_likeness(targets).get("non-members")
    if alike is None or not alike.is_one_book:
        return targets
    is_undeclared = _is_loose() & ~asked_texts(targets)
    group = pl.when(is_undeclared).then(pl.lit(UNDECLARED)).otherwise("group")
    return targets.with_columns(group=group)


def undeclared_rows(targets: pl.LazyFrame) -> Iterator[_Row]:
    """Build rows of check ``undeclared_books``, about texts without a group."""
    has_grouped = _has(targets, pl.col("group") == UNDECLARED)
    for subject, alike in _measure_likeness(targets).items():
        if alike is None:
            continue
        verdict = "apart"
        if alike.is_one_book:
            is_grouped = has_grouped and subject == "non-members"
            verdict = "one_group" if is_grouped else "one_book"
        yield {
            "check": "undeclared_books",
            "statistic": "likeness_of_neighbours",
            "subject": subject,
            "value": alike.ratio,
            "p_value": alike.p_value,
            "verdict": verdict,
        }


def _measure_likeness(targets: pl.LazyFrame) -> dict[str, Likeness | None]:
    """Measure the first non-members and the first targets, where these are compared."""
    is_unknown = _TARGET & pl.col("member").is_null()
    if not _has(targets, is_unknown):
        return {}
    sets = {"non-members": ~asked_texts(targets), "targets": is_unknown}
    alike = {}
    for subject, is_of_set in sets.items():
        has_text = pl.col("target").is_not_null()
        texts = targets.filter(is_of_set, _is_loose(), has_text).head(_MOST_TEXTS)
        beginnings = texts.select(pl.col("target").str.head(_MOST_CHARACTERS))
        column = beginnings.collect(engine="streaming")["target"]
        alike[subject] = likeness(column.to_list())
    return alike


def _is_loose() -> pl.Expr:
    """Return whether neither a group nor windows of its document go with a text."""
    has_no_group = pl.col("group").is_null() | (pl.col("group") == UNDECLARED)
    return has_no_group & (pl.col("n_windows") == 1)


# What the texts show before any model is asked.

_MANY_COPIES = 0.01  # share of texts from which copies are warned of
_SCHEMA = Findings.create_empty().schema
_LABELLED = (
    pl.col("role").is_in(["target", "non_member"]) & pl.col("member").is_not_null()
)


class Preflight(NamedTuple):
    """Findings, and the blind classifiers' scores and metrics of members and non-members."""

    findings: pl.DataFrame
    blind_scores: pl.DataFrame  # empty without two sets to compare
    blind_metrics: pl.DataFrame


def check_targets(targets: pl.LazyFrame, *, seed: int) -> Preflight:
    """Check the texts before any model is asked."""
    scores = pl.DataFrame(schema={"target_id": pl.String})
    metrics: pl.DataFrame = Metrics.create_empty()
    rows: list[_Row] = []
    member = pl.when(_LABELLED).then("member")
    if _has(targets, member, ~member):
        labelled = targets.filter(_LABELLED)
        blind = blind_baseline(labelled, seed=seed)
        scores = blind.scores.select(pl.exclude(f"^{PLAIN_COLUMN}.*$"))
        metrics = blind.metrics
        rows += _blind_rows("members", blind)
        rows += _duplicate_rows("members", near_duplicates(labelled))
        rows += _both_labels_rows(labelled)
    compared = targets.with_columns(asked=asked_texts(targets))
    is_asked = pl.col("asked")
    is_unknown = _TARGET & pl.col("member").is_null()
    if _has(compared, is_asked, ~is_asked, is_unknown):
        blind = blind_baseline(compared, label="asked", seed=seed)
        target_scores = blind.scores.rename(
            lambda name: name.replace("blind", "targets_blind")
        )
        scores = scores.join(target_scores, on="target_id", how="full", coalesce=True)
        rows += _blind_rows("targets", blind)
        rows += _plain_rows(blind)
        rows += _duplicate_rows("targets", near_duplicates(compared, label="asked"))
    calibration = targets.filter(role="calibration")
    if _has(calibration, pl.col("member")):
        rows += _blind_rows("calibration", blind_baseline(calibration, seed=seed))
    rows += _copies_rows(targets.filter(pl.col("role") != "yardstick"))
    rows += undeclared_rows(targets)
    return Preflight(pl.DataFrame(rows, schema=_SCHEMA), scores, metrics)


def _has(table: pl.LazyFrame, *kinds: pl.Expr) -> bool:
    """Return whether a table has rows of each kind."""
    has_kind = [kind.any().alias(str(number)) for number, kind in enumerate(kinds)]
    return all(table.select(has_kind).collect(engine="streaming").row(0))


def _both_labels_rows(labelled: pl.LazyFrame) -> Iterator[_Row]:
    """Count texts that are labelled as members and as non-members."""
    texts = labelled.drop_nulls("target")
    hashes = texts.select("member", hash=pl.col("target").hash()).collect(
        engine="streaming"
    )
    members = hashes.filter(member=True)["hash"].to_numpy()
    nonmembers = hashes.filter(member=False)["hash"].to_numpy()
    n_both = np.intersect1d(members, nonmembers).size
    if n_both:
        yield {
            "check": "duplicates",
            "subject": "labels",
            "statistic": "n_both",
            "value": n_both,
        }


def _copies_rows(texts: pl.LazyFrame) -> Iterator[_Row]:
    n_texts, n_copies = count_copies(texts)
    is_many = n_copies >= max(1, _MANY_COPIES * n_texts)
    row = {"check": "duplicates", "subject": "texts"}
    yield row | {
        "statistic": "n_copies",
        "value": n_copies,
        "verdict": "many" if is_many else "few",
    }
    yield row | {"statistic": "n_texts", "value": n_texts}


def _blind_rows(subject: str, blind: BlindBaseline) -> Iterator[_Row]:
    row = {"check": "blind_baseline", "subject": subject}
    yield {
        **row,
        "statistic": "roc_auc",
        "value": blind.auc,
        "high": blind.upper,
        "p_value": blind.p_value,
        "verdict": blind.verdict,
        "reason": blind.reason,
    }
    if blind.strongest is not None:
        yield {
            **row,
            "statistic": "strongest",
            "value": blind.auc,
            "verdict": blind.strongest,
        }


def _plain_rows(blind: BlindBaseline) -> Iterator[_Row]:
    for difference in blind.plain:
        yield {
            "check": "plain_differences",
            "subject": difference.name,
            "statistic": "roc_auc",
            "value": difference.auc,
            "p_value": difference.p_value,
            "verdict": "differs" if difference.differs else "alike",
        }


def _duplicate_rows(
    subject: str, sides: tuple[SideDuplicates, SideDuplicates]
) -> Iterator[_Row]:
    row: _Row = {"check": "duplicates"}
    for name, side in zip((subject, f"not {subject}"), sides, strict=True):
        counts = {
            "n_concerned": side.n_concerned,
            "n_compared": side.n_texts - side.n_short,
            "n_left_out": side.n_left_out,
            "share": side.share,
        }
        for statistic, value in counts.items():
            yield row | {"subject": name, "statistic": statistic, "value": value}
    examples = [*sides[0].examples, *sides[1].examples]
    if examples:
        text, other_text = examples[0]
        reason = f"for example {text} has words of {other_text}"
        yield row | {"subject": subject, "statistic": "example", "reason": reason}


# Passages that are in several documents.

RUN_WORDS = 20  # words in a row that two documents must share
_TOO_SHORT = f"the passage has fewer than {RUN_WORDS} words"
_NO_OTHER = "there is no document of another group"
_NOWHERE = f"no other document has {RUN_WORDS} words in a row of it"
_PASSAGES_AT_ONCE = 4096
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_INVERSE = pow(_BASE, -1, 1 << 64)


def find_elsewhere(passages: pl.DataFrame, documents: pl.LazyFrame) -> pl.DataFrame:
    """Find the first document of another owner that has 20 words in a row of a passage."""
    # Documents are read once, a batch at a time; runs are looked up by hashes of 64
    # bits and then compared. Memory: some 70 bytes per word of the passages.
    texts = passages["passage"].str.to_lowercase()
    owners = passages["owner"].to_numpy()
    hashes, rows = hash_runs(texts)
    is_long = np.isin(np.arange(texts.len()), rows)
    matches: dict[int, tuple[str, int]] = {}
    searched: set[int] = set()  # two owners are enough
    for batch in documents.drop_nulls("text").collect_batches(maintain_order=True):
        searched |= {*batch["owner"].unique().head(2)}
        lower = batch.select(pl.col("text").str.to_lowercase(), "owner", "name")
        for text, owner, name, near in _sharing(lower, texts, hashes, rows):
            foreign = near[owners[near] != owner].tolist()
            unmatched = [row for row in foreign if row not in matches]
            n_words = _longest_blocks(texts.gather(unmatched), text)
            for row, n_shared in zip(unmatched, n_words, strict=True):
                if n_shared >= RUN_WORDS:
                    matches[row] = (name, n_shared)
    has_other = np.array([bool(searched - {owner}) for owner in owners.tolist()], bool)
    answers = pl.DataFrame(
        [matches.get(row, (None, None)) for row in range(is_long.size)],
        {"name": pl.String, "longest_words": pl.UInt32},
        orient="row",
    )
    reasons = np.where(has_other, _NOWHERE, _NO_OTHER)
    reasons = np.where(is_long, reasons, _TOO_SHORT)
    is_found = pl.col("longest_words").is_not_null()
    return answers.with_columns(
        common=pl.when(pl.Series(is_long & has_other)).then(is_found),
        reason=pl.when(~is_found).then(pl.Series(reasons, dtype=pl.String)),
    )


def _longest_blocks(passages: pl.Series, document: str) -> pl.Series:
    """Count the words of the longest run that each passage shares with a document."""
    features = pair_features("passage", "document", words="unicode", groups=["blocks"])
    pairs = pl.DataFrame({"passage": passages}).with_columns(document=pl.lit(document))
    return pairs.select(features.struct.field("longest_block_words")).to_series()


def count_documents(passages: pl.Series, documents: pl.LazyFrame) -> pl.DataFrame:
    """Count the documents, of ``text`` and ``name``, that hold each passage whole."""
    texts = passages.str.to_lowercase()
    hashes, rows = hash_runs(texts)
    is_long = {*rows.tolist()}
    padded_passages = {row: _pad_words(texts[row]) for row in is_long}
    no_document: dict[str, Any] = {
        "n_documents": 0,
        "n_occurrences": 0,
        "document": None,
        "n_near_documents": 0,
    }
    counts_of_row: dict[int, dict[str, Any]] = {}
    for batch in documents.drop_nulls("text").collect_batches(maintain_order=True):
        lower = batch.select(pl.col("text").str.to_lowercase(), "name")
        for text, name, near in _sharing(lower, texts, hashes, rows):
            padded_text = _pad_words(text)
            for row in near.tolist():
                counts = counts_of_row.setdefault(row, {**no_document})
                counts["n_near_documents"] += 1
                n_occurrences = padded_text.count(padded_passages[row])
                if n_occurrences:
                    counts["document"] = counts["document"] or name
                    counts["n_documents"] += 1
                    counts["n_occurrences"] += n_occurrences
    too_short = dict.fromkeys(no_document) | {"reason": _TOO_SHORT}
    answers: list[dict[str, Any]] = []
    for row in range(texts.len()):
        if row in is_long:
            answers.append({"reason": None, **counts_of_row.get(row, no_document)})
        else:
            answers.append(too_short)
    schema = {
        "n_documents": pl.UInt64,
        "n_occurrences": pl.UInt64,
        "n_near_documents": pl.UInt64,
        "document": pl.String,
        "reason": pl.String,
    }
    return pl.DataFrame(answers, schema=schema)


def _sharing(
    documents: pl.DataFrame,
    texts: pl.Series,
    hashes: _Hashes,
    rows: Ints,
) -> Iterator[tuple[Any, ...]]:
    """Iterate over documents that share a run with texts, and the rows of these."""
    runs = shared_runs(documents["text"], texts, run_words=RUN_WORDS, words="unicode")
    for document in documents.filter(runs["shared"] > 0).iter_rows():
        document_hashes, _ = _run_hashes(document[0])
        places = _find_hashes(hashes, document_hashes)
        yield *document, np.unique(rows[places])


def _pad_words(text: str) -> str:
    """Put spaces around each word, so that what is found in a text is whole words."""
    spans = pl.select(word_spans(pl.lit(text), words="unicode")).to_series().struct
    starts = spans.field("starts")[0]
    ends = spans.field("ends")[0]
    return "".join(
        f" {text[start:end]} " for start, end in zip(starts, ends, strict=True)
    )


def hash_runs(texts: pl.Series, run_words: int = RUN_WORDS) -> tuple[_Hashes, Ints]:
    """Hash the runs of all passages, in order, and find the passage of each."""
    chunks = [(np.zeros(0, np.uint64), np.zeros(0, np.int64))]
    for start in range(0, texts.len(), _PASSAGES_AT_ONCE):
        chunk = texts.slice(start, _PASSAGES_AT_ONCE)
        hashes, word_starts = _run_hashes("\n".join(chunk), run_words)
        ends = np.cumsum(chunk.str.len_chars().to_numpy().astype(np.int64) + 1)
        row_of_word = np.searchsorted(ends, word_starts, side="right")
        first_row = row_of_word[: hashes.size]
        last_row = row_of_word[row_of_word.size - hashes.size :]
        is_within = first_row == last_row
        chunks.append((hashes[is_within], start + first_row[is_within]))
    all_hashes, all_rows = (
        np.concatenate(arrays) for arrays in zip(*chunks, strict=True)
    )
    order = np.argsort(all_hashes)
    return all_hashes[order], all_rows[order]


def _find_hashes(ordered: _Hashes, hashes: _Hashes) -> Ints:
    """Find the places of hashes, each as often as it is there."""
    distinct = np.unique(hashes)
    first = np.searchsorted(ordered, distinct, "left")
    end = np.searchsorted(ordered, distinct, "right")
    sizes = end - first
    starts = np.cumsum(sizes) - sizes
    place_in_run = np.arange(sizes.sum()) - np.repeat(starts, sizes)
    places: Ints = np.repeat(first, sizes) + place_in_run
    return places


def _run_hashes(text: str, run_words: int = RUN_WORDS) -> tuple[_Hashes, Ints]:
    """Hash each run of words, and find where each word starts.

    Hashes of letters make those of words, and these make those of runs.
    """
    spans = pl.select(word_spans(pl.lit(text), words="unicode")).to_series().struct
    starts, ends = (
        spans.field(name).explode(empty_as_null=False).to_numpy().astype(np.int64)
        for name in ("starts", "ends")
    )
    letters = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    terms = letters * _powers(_BASE, letters.size)
    sums = np.append(np.uint64(0), np.cumsum(terms))
    shifts = _powers(_INVERSE, letters.size + 1)[starts]
    words = (sums[ends] - sums[starts]) * shifts
    n_runs = max(words.size - run_words + 1, 0)
    hashes = np.zeros(n_runs, np.uint64)
    for place in range(run_words):
        word = words[place : place + n_runs]
        mixed = word ^ (word >> np.uint64(29))
        hashes = hashes * np.uint64(_BASE) + mixed
    return hashes, starts


def _powers(base: int, n: int) -> _Hashes:
    powers = np.full(n, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)


# Scores that one class misses more often than the other: the rest is a selection.

_SIGNIFICANT = 0.01
_LEAST_DIFFERENCE = 0.01  # a smaller one moves no figure, however sure it is


def count_reasons(rows: pl.LazyFrame) -> dict[str, int]:
    """Count targets by reason, the most frequent first.

    Reasons that differ in their numbers alone count as one, without the numbers.
    """
    shape = pl.col("reason").str.replace_all(r"\d+(?:[,.]\d+)*", "…")
    is_several = pl.col("reason").n_unique() > 1
    first_reason = pl.col("reason").first()
    counts = (
        rows.group_by(shape=shape)
        .agg(
            reason=pl.when(is_several).then(shape.first()).otherwise(first_reason),
            n=pl.col("target_id").n_unique(),
        )
        .sort("n", "reason", descending=[True, False])
        .select("reason", "n")
        .collect(engine="streaming")
    )
    return dict(counts.iter_rows())


class UnevenScores(NamedTuple):
    """Attacks that score one class less often; pairs are of members and non-members."""

    # Those of the largest difference; they miss scores of the same texts
    attacks: tuple[str, ...]
    n_texts: tuple[int, int]
    n_unscored: tuple[int, int]
    # Fisher's exact test of these, two-sided, times the number of tests; at most 1
    p_value: float
    reasons: tuple[str | None, str | None] = (None, None)  # the most frequent ones
    further_attacks: tuple[str, ...] = ()  # that score the classes unevenly, too

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of the texts that have no score."""
        of_members = self.n_unscored[0] / self.n_texts[0]
        of_nonmembers = self.n_unscored[1] / self.n_texts[1]
        return of_members, of_nonmembers

    @property
    def difference(self) -> float:
        return abs(self.shares[0] - self.shares[1])


def uneven_findings(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    unscored: pl.LazyFrame,
) -> pl.DataFrame:
    """Build rows of check ``uneven_scores`` about attacks and classes.

    Attacks are ``most`` or ``more`` uneven.
    """
    is_target = pl.col("role").is_in(["target", "non_member"])
    counts = is_target & pl.col("member").is_not_null()
    n_classes = scores.filter(counts).select(pl.col("member").n_unique())
    uneven = None
    if n_classes.collect().item() == 2:
        uneven = find_uneven_scores(scores, counts, attacks, unscored=unscored)
    rows: list[_Row] = []
    if uneven is not None:
        rows += [
            {
                "subject": name,
                "statistic": "difference",
                "verdict": "most",
                "value": uneven.difference,
                "p_value": uneven.p_value,
            }
            for name in uneven.attacks
        ]
        rows += [
            {"subject": name, "statistic": "difference", "verdict": "more"}
            for name in uneven.further_attacks
        ]
        rows += class_rows(uneven)
    check = {"check": "uneven_scores"}
    return pl.DataFrame([check | row for row in rows], schema=_SCHEMA)


def class_rows(
    uneven: UnevenScores, names: tuple[str, str] = ("members", "non-members")
) -> list[_Row]:
    """Build rows of findings, less the check, about both classes."""
    rows: list[_Row] = []
    for number, name in enumerate(names):
        row = {"subject": name}
        rows += [
            {
                **row,
                "statistic": "n_unscored",
                "value": uneven.n_unscored[number],
                "reason": uneven.reasons[number],
            },
            {**row, "statistic": "n_texts", "value": uneven.n_texts[number]},
            {**row, "statistic": "share", "value": uneven.shares[number]},
        ]
    return rows


def find_uneven_scores(
    scores: pl.LazyFrame,
    counts: pl.Expr,
    attacks: Sequence[str],
    *,
    unscored: pl.LazyFrame | None = None,
) -> UnevenScores | None:
    """Find attacks that score one class less often than the other, beyond chance."""
    labelled = scores.with_columns(cluster=cluster_names(scores)).filter(counts)
    groups = _group_by_missing(labelled, attacks)
    if not groups:
        return None
    hashes = labelled.select("member", pl.col("cluster").hash()).collect(
        engine="streaming"
    )
    member = hashes["member"].to_numpy()
    _, cluster = np.unique(hashes["cluster"].to_numpy(), return_inverse=True)
    uneven = []
    for packed, names in groups.items():
        missing = np.unpackbits(np.frombuffer(packed, np.uint8), count=member.size)
        test = _test_missing(tuple(names), missing, member, cluster)
        test = test._replace(p_value=min(1.0, len(groups) * test.p_value))
        is_large = test.difference >= _LEAST_DIFFERENCE
        if is_large and test.p_value <= _SIGNIFICANT:
            uneven.append(test)
    if not uneven:
        return None
    strongest, *rest = sorted(uneven, key=lambda test: -test.difference)
    reasons = {}
    if unscored is not None:
        reasons = _frequent_reasons(labelled, unscored, strongest.attacks[0])
    return strongest._replace(
        reasons=(reasons.get(True), reasons.get(False)),
        further_attacks=tuple(chain.from_iterable(test.attacks for test in rest)),
    )


def _group_by_missing(
    labelled: pl.LazyFrame, attacks: Sequence[str]
) -> dict[bytes, list[str]]:
    """Group attacks by the texts that they miss, one bit for each text.

    Attacks that miss the same texts are one test; those that miss none are left out.
    """
    is_missing = {
        attack: ~pl.col(attack).is_finite().fill_null(value=False) for attack in attacks
    }
    sums = [missing.sum().alias(name) for name, missing in is_missing.items()]
    counts = labelled.select(pl.len(), *sums).collect(engine="streaming")
    n_texts, *n_missing = counts.row(0)
    groups: dict[bytes, list[str]] = {}
    for attack, n in zip(attacks, n_missing, strict=True):
        if n:
            flags = read_numbers(labelled, is_missing[attack], n_texts, np.bool_)
            groups.setdefault(np.packbits(flags).tobytes(), []).append(attack)
    return groups


def _test_missing(
    attacks: tuple[str, ...],
    missing: NDArray[np.uint8],
    member: Flags,
    cluster: Codes,
) -> UnevenScores:
    """Test counts divided by the design effect, for clusters are missed together.

    Rao & Scott (1992), "A simple method for the analysis of clustered binary data".
    """
    from scipy.stats import fisher_exact

    n_texts = int(member.sum()), int((~member).sum())
    n_missing = int(missing[member].sum()), int(missing[~member].sum())
    table = np.array(
        [
            [n_missing[0], n_texts[0] - n_missing[0]],
            [n_missing[1], n_texts[1] - n_missing[1]],
        ]
    )
    # Variance of the classes' difference by clusters, over that by texts, as if they
    # missed alike.
    terms = (member - member.mean()) * (missing - missing.mean())
    by_texts = float(np.square(terms).sum())
    by_clusters = float(np.square(np.bincount(cluster, terms)).sum())
    effect = max(1.0, by_clusters / by_texts) if by_texts else 1.0
    effective_table = np.rint(table / effect).astype(np.int64)
    p_value = float(fisher_exact(effective_table).pvalue)
    return UnevenScores(attacks, n_texts, n_missing, p_value)


def _frequent_reasons(
    labelled: pl.LazyFrame,
    unscored: pl.LazyFrame,
    attack: str,
) -> dict[bool, str]:
    """Find the most frequent reason of each class, of several the first by alphabet."""
    of_attack = unscored.filter(attack=attack).select("target_id", "reason")
    reasons = (
        labelled.select("target_id", "member")
        .join(of_attack, on="target_id")
        .group_by("member")
        .agg(pl.col("reason").mode().sort().first())
        .collect(engine="streaming")
    )
    return dict(reasons.iter_rows())


# A model was trained where it foresees texts better than guessing.

_MARGIN = 0.1  # nats that luck gains before any training
_ERROR_RATE = 0.01  # share of untrained models that are taken for trained ones
# Nats, and tokens, of a text whose loss is no accident
_SURE_GAIN, _SURE_TOKENS = 1.0, 20


def test_chance(texts: pl.DataFrame, chance: float) -> tuple[float | None, bool]:
    """Test whether a model's loss is below ``chance`` by more than a margin, in nats a token.

    Each row of ``texts``, with lists ``logprob`` and ``token_ids``, counts once, by
    Student's test of one side over their mean gains; the p-value is null of a single
    text, which is held against the margin alone. Tokens that repeat the one before are
    left out: with tied embeddings a model foresees them before it is trained. One long
    text that is foreseen well suffices, whatever the others are.
    """
    from scipy.stats import ttest_1samp

    gains: list[float] = []
    is_sure = False
    for logprobs, tokens in texts.select("logprob", "token_ids").iter_rows():
        values = np.array(logprobs, np.float64)
        # Of endpoints nobody knows the tokens
        ids = np.arange(values.size) if tokens is None else np.array(tokens)
        repeats = np.append(False, ids[1:] == ids[:-1])
        counted_values = values[np.isfinite(values) & ~repeats]
        if counted_values.size:
            gain = chance + float(counted_values.mean())
            gains.append(gain)
            is_sure |= counted_values.size >= _SURE_TOKENS and gain > _SURE_GAIN
    if len(gains) > 1 and np.ptp(gains) > 0:
        test = ttest_1samp(gains, _MARGIN, alternative="greater")
        p_value = float(test.pvalue)
        return p_value, is_sure or p_value <= _ERROR_RATE
    is_first_above = bool(gains) and gains[0] > _MARGIN
    return None, is_sure or is_first_above
