"""What the texts show before any model is asked: copies, undeclared books, blind classifiers."""

from collections.abc import Iterator, Sequence
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
    n_short: int  # texts of fewer than 8 words, which nothing is said about
    n_long_run: int  # texts with a run of 13 words that is in the other side
    n_high_overlap: (
        int  # texts with at least 70 % of their runs of 8 words in the other side
    )
    n_concerned: int  # texts with either
    # Their names, with that of a text of the other side
    examples: list[tuple[str, str]]

    @property
    def share(self) -> float | None:
        n_compared = self.n_texts - self.n_short
        return self.n_concerned / n_compared if n_compared else None


def near_duplicates(
    texts: pl.LazyFrame, *, label: str = "member"
) -> tuple[SideDuplicates, SideDuplicates]:
    """Find texts of each class that are in the other, too: label true first, then label false."""
    # Words are those of UAX #29, in lower case; of too many texts the first by
    # ``target_id`` count.
    known = texts.filter(pl.col(label).is_not_null(), pl.col("target").is_not_null())
    counts = dict(known.group_by(label).len().collect(engine="streaming").iter_rows())
    first, second = (_read(known, side) for side in (pl.col(label), ~pl.col(label)))
    return (
        _compare(first, second, counts.get(True, 0)),
        _compare(second, first, counts.get(False, 0)),
    )


def count_copies(texts: pl.LazyFrame) -> tuple[int, int]:
    """Count texts, and those that are in another cluster byte for byte (by 64-bit hashes)."""
    clusters = texts.with_columns(cluster=cluster_names(texts))
    known = clusters.filter(pl.col("target").is_not_null())
    hashes = known.select(pl.col("target").hash(), pl.col("cluster").hash())
    text, cluster = (column.to_numpy() for column in hashes.collect(engine="streaming"))
    if not text.size:
        return 0, 0
    order = np.lexsort((cluster, text))
    text, cluster = text[order], cluster[order]
    is_same = text[1:] == text[:-1]
    starts = np.flatnonzero(np.append(True, ~is_same))
    is_elsewhere = np.append(False, is_same & (cluster[1:] != cluster[:-1]))
    sizes = np.diff(np.append(starts, text.size))
    return text.size, int(sizes[np.logical_or.reduceat(is_elsewhere, starts)].sum())


def _read(texts: pl.LazyFrame, side: pl.Expr) -> pl.DataFrame:
    known = texts.filter(side)
    keys = known.select("target_id").bottom_k(MAX_TEXTS_PER_SIDE, by="target_id")
    firsts = keys.collect(engine="streaming").to_series()
    wanted = known.filter(pl.col("target_id").is_in(firsts.implode()))
    schema = wanted.collect_schema()
    names = [name for name in ("document_id", "target_id") if name in schema]
    lower = wanted.select(
        "target_id", pl.col("target").str.to_lowercase(), name=pl.coalesce(names)
    )
    return lower.collect(engine="streaming").sort("target_id")


def _compare(texts: pl.DataFrame, others: pl.DataFrame, n_known: int) -> SideDuplicates:
    long, short = (
        shared_runs(
            texts["target"], others["target"], run_words=n_words, words="unicode"
        )
        for n_words in (_LONG_RUN_WORDS, _SHORT_RUN_WORDS)
    )
    long_run = long["shared"] > 0
    high_overlap = (short["shared"] > 0) & (
        short["shared"] >= _HIGH_OVERLAP * short["runs"]
    )
    concerned = long_run | high_overlap
    # Where no long run is shared, a short one is.
    places = long["other"].fill_null(short["other"])
    own, places = (
        each.filter(concerned).head(_N_EXAMPLES) for each in (texts["name"], places)
    )
    examples = [*zip(own, others["name"].gather(places), strict=True)]
    flags = (short["runs"] == 0, long_run, high_overlap, concerned)
    n_short, n_long, n_high, n_concerned = (int(each.sum()) for each in flags)
    n_left_out = n_known - texts.height
    return SideDuplicates(
        texts.height, n_left_out, n_short, n_long, n_high, n_concerned, examples
    )


# Texts that look like parts of one book although no group says so.

UNDECLARED = (  # the group of non-members that look like parts of one book
    "undeclared book"
)

_MOST_TEXTS, _MOST_CHARACTERS, _LEAST_TEXTS = 1_000, 2_000, 20
_PERMUTATIONS, _LEVEL, _MORE_ALIKE = 999, 0.01, 1.15
_TARGET = pl.col("role") == "target"


class Likeness(NamedTuple):
    """Mean similarity of neighbouring rows over that of rows at random, and its p-value."""

    ratio: float
    p_value: float

    @property
    def of_one_book(self) -> bool:
        """Whether neighbours are more alike than chance, and by a margin."""
        return self.p_value <= _LEVEL and self.ratio >= _MORE_ALIKE


def likeness(texts: Sequence[str]) -> Likeness | None:
    """Compare the cosine (sublinear tf-idf) of neighbouring rows with 999 orders of the rows."""
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    if len(texts) < _LEAST_TEXTS:
        return None
    words = HashingVectorizer(
        n_features=1 << 16,
        token_pattern=r"[^\W\d_]{3,}",
        norm=None,
        alternate_sign=False,
    )
    weighed = TfidfTransformer(sublinear_tf=True).fit_transform(words.transform(texts))
    alike = (weighed @ weighed.T).toarray()
    neighbours, rng = np.diag(alike, 1).mean(), np.random.default_rng(0)
    orders = (rng.permutation(len(texts)) for _ in range(_PERMUTATIONS))
    chance = np.array([alike[order[:-1], order[1:]].mean() for order in orders])
    p_value = (1 + (chance >= neighbours - 1e-12).sum()) / (1 + _PERMUTATIONS)
    return Likeness(float(neighbours / max(chance.mean(), 1e-9)), float(p_value))


def asked_texts(targets: pl.LazyFrame) -> pl.Expr:
    """Label targets that are compared with nulls true, and the nulls false."""
    non_member = pl.col("role") == "non_member"
    null = non_member if _has(targets, non_member) else _TARGET & ~pl.col("member")
    return (
        pl.when(null).then(pl.lit(value=False)).when(_TARGET).then(pl.lit(value=True))
    )


def with_undeclared(targets: pl.LazyFrame) -> pl.LazyFrame:
    found = _look(targets).get("non-members")
    if found is None or not found.of_one_book:
        return targets
    group = (
        pl.when(_loose() & ~asked_texts(targets))
        .then(pl.lit(UNDECLARED))
        .otherwise("group")
    )
    return targets.with_columns(group=group)


def undeclared_rows(targets: pl.LazyFrame) -> Iterator[_Row]:
    """Rows of check ``undeclared_books`` about non-members and targets without a group."""
    any_grouped = _has(targets, pl.col("group") == UNDECLARED)
    for subject, found in _look(targets).items():
        if found is not None:
            grouped = any_grouped and subject == "non-members"
            verdict = (
                ("one_group" if grouped else "one_book")
                if found.of_one_book
                else "apart"
            )
            row = {"check": "undeclared_books", "statistic": "likeness_of_neighbours"}
            figures = {
                "value": found.ratio,
                "p_value": found.p_value,
                "verdict": verdict,
            }
            yield row | {"subject": subject} | figures


def _look(targets: pl.LazyFrame) -> dict[str, Likeness | None]:
    """Look at the first non-members and targets where these are compared with those."""
    unknown = _TARGET & pl.col("member").is_null()
    if not _has(targets, unknown):
        return {}
    found = {}
    for subject, which in (
        ("non-members", ~asked_texts(targets)),
        ("targets", unknown),
    ):
        texts = targets.filter(which, _loose(), pl.col("target").is_not_null()).head(
            _MOST_TEXTS
        )
        begin = texts.select(pl.col("target").str.head(_MOST_CHARACTERS))
        found[subject] = likeness(begin.collect(engine="streaming")["target"].to_list())
    return found


def _loose() -> pl.Expr:
    """Whether nothing says what a text belongs to: neither group nor windows of its document."""
    no_group = pl.col("group").is_null() | (pl.col("group") == UNDECLARED)
    return no_group & (pl.col("n_windows") == 1)


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
    scores = pl.DataFrame(schema={"target_id": pl.String})
    metrics: pl.DataFrame = Metrics.create_empty()
    rows: list[_Row] = []
    member = pl.when(_LABELLED).then("member")
    if _has(targets, member, ~member):
        labelled = targets.filter(_LABELLED)
        blind = blind_baseline(labelled, seed=seed)
        scores, metrics = (
            blind.scores.select(pl.exclude(f"^{PLAIN_COLUMN}.*$")),
            blind.metrics,
        )
        rows += _blind_rows("members", blind)
        rows += _duplicate_rows("members", near_duplicates(labelled))
        hashes = labelled.drop_nulls("target").select(
            "member", hash=pl.col("target").hash()
        )
        known = hashes.collect(engine="streaming")
        members, others = (
            known.filter(member=side)["hash"].to_numpy() for side in (True, False)
        )
        if n_both := np.intersect1d(members, others).size:
            of = {"check": "duplicates", "subject": "labels", "statistic": "n_both"}
            rows.append(of | {"value": n_both})
    asked = targets.with_columns(asked=asked_texts(targets))
    label = pl.col("asked")
    if _has(asked, label, ~label, _TARGET & pl.col("member").is_null()):
        blind = blind_baseline(asked, label="asked", seed=seed)
        of_targets = blind.scores.rename(
            lambda name: name.replace("blind", "targets_blind")
        )
        scores = scores.join(of_targets, on="target_id", how="full", coalesce=True)
        rows += _blind_rows("targets", blind)
        rows += _plain_rows(blind)
        rows += _duplicate_rows("targets", near_duplicates(asked, label="asked"))
    calibration = targets.filter(role="calibration")
    if _has(calibration, pl.col("member")):
        rows += _blind_rows("calibration", blind_baseline(calibration, seed=seed))
    n_texts, n_copies = count_copies(targets.filter(pl.col("role") != "yardstick"))
    many = "many" if n_copies >= max(1, _MANY_COPIES * n_texts) else "few"
    of = {"check": "duplicates", "subject": "texts"}
    rows.append(of | {"statistic": "n_copies", "value": n_copies, "verdict": many})
    rows.append(of | {"statistic": "n_texts", "value": n_texts})
    rows += undeclared_rows(targets)
    return Preflight(pl.DataFrame(rows, schema=_SCHEMA), scores, metrics)


def _has(table: pl.LazyFrame, *kinds: pl.Expr) -> bool:
    each = (which.any().alias(str(place)) for place, which in enumerate(kinds))
    return all(table.select(each).collect(engine="streaming").row(0))


def _blind_rows(subject: str, blind: BlindBaseline) -> Iterator[_Row]:
    of = {"check": "blind_baseline", "subject": subject}
    figures = {"value": blind.auc, "high": blind.upper, "p_value": blind.p_value}
    said = {"verdict": blind.verdict, "reason": blind.reason}
    yield {**of, "statistic": "roc_auc", **figures, **said}
    if blind.strongest is not None:
        yield of | {
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
    subject: str, found: tuple[SideDuplicates, SideDuplicates]
) -> Iterator[_Row]:
    of: _Row = {"check": "duplicates"}
    for name, side in zip((subject, f"not {subject}"), found, strict=True):
        counts = {
            "n_concerned": side.n_concerned,
            "n_compared": side.n_texts - side.n_short,
            "n_left_out": side.n_left_out,
            "share": side.share,
        }
        for statistic, value in counts.items():
            yield of | {"subject": name, "statistic": statistic, "value": value}
    for text, other in (*found[0].examples, *found[1].examples)[:1]:
        reason = f"for example {text} has words of {other}"
        yield of | {"subject": subject, "statistic": "example", "reason": reason}


# Passages that stand in several documents.

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
    texts, owners = passages["passage"].str.to_lowercase(), passages["owner"].to_numpy()
    hashes, rows = hash_runs(texts)
    is_long = np.isin(np.arange(texts.len()), rows)
    found: dict[int, tuple[str, int]] = {}
    searched: set[int] = set()  # two owners are enough
    blocks = pair_features("passage", "document", words="unicode", groups=["blocks"])
    for batch in documents.drop_nulls("text").collect_batches(maintain_order=True):
        searched |= {*batch["owner"].unique().head(2)}
        lower = batch.select(pl.col("text").str.to_lowercase(), "owner", "name")
        for text, owner, name, near in _sharing(lower, texts, hashes, rows):
            others = [
                row for row in near[owners[near] != owner].tolist() if row not in found
            ]
            pairs = pl.DataFrame({"passage": texts.gather(others)}).with_columns(
                document=pl.lit(text)
            )
            longest = pairs.select(
                blocks.struct.field("longest_block_words")
            ).to_series()
            for row, words in zip(others, longest, strict=True):
                if words >= RUN_WORDS:
                    found[row] = (name, words)
    has_other = np.array([bool(searched - {owner}) for owner in owners.tolist()], bool)
    named = [found.get(row, (None, None)) for row in range(is_long.size)]
    answers = pl.DataFrame(
        named, {"name": pl.String, "longest_words": pl.UInt32}, orient="row"
    )
    reasons = np.where(is_long, np.where(has_other, _NOWHERE, _NO_OTHER), _TOO_SHORT)
    is_found = pl.col("longest_words").is_not_null()
    return answers.with_columns(
        common=pl.when(pl.Series(is_long & has_other)).then(is_found),
        reason=pl.when(~is_found).then(pl.Series(reasons, dtype=pl.String)),
    )


def count_in(passages: pl.Series, documents: pl.LazyFrame) -> pl.DataFrame:
    """Count the documents, of ``text`` and ``name``, that hold each passage whole."""
    texts = passages.str.to_lowercase()
    hashes, rows = hash_runs(texts)
    is_long, found = {*rows.tolist()}, dict[int, dict[str, Any]]()
    wanted = {row: _apart(texts[row]) for row in is_long}
    whole = {
        "n_documents": 0,
        "n_occurrences": 0,
        "document": None,
        "n_near_documents": 0,
    }
    for batch in documents.drop_nulls("text").collect_batches(maintain_order=True):
        lower = batch.select(pl.col("text").str.to_lowercase(), "name")
        for text, name, near in _sharing(lower, texts, hashes, rows):
            words = _apart(text)
            for row in near.tolist():
                counts = found.setdefault(row, {**whole})
                counts["n_near_documents"] += 1
                if n := words.count(wanted[row]):
                    counts["document"] = counts["document"] or name
                    counts["n_documents"] += 1
                    counts["n_occurrences"] += n
    short = dict.fromkeys(whole) | {"reason": _TOO_SHORT}
    answers = [
        {"reason": None, **found.get(row, whole)} if row in is_long else short
        for row in range(texts.len())
    ]
    counts = dict.fromkeys(
        ("n_documents", "n_occurrences", "n_near_documents"), pl.UInt64
    )
    return pl.DataFrame(
        answers, schema={**counts, "document": pl.String, "reason": pl.String}
    )


def _sharing(
    documents: pl.DataFrame, texts: pl.Series, hashes: _Hashes, rows: Ints
) -> Iterator[tuple[Any, ...]]:
    """Yield documents, their text first, that share a run with texts, and the rows of these."""
    runs = shared_runs(documents["text"], texts, run_words=RUN_WORDS, words="unicode")
    for row in documents.filter(runs["shared"] > 0).iter_rows():
        yield *row, np.unique(rows[_places(hashes, _run_hashes(row[0])[0])])


def _apart(text: str) -> str:
    """Put each word between spaces of its own: what stands within another stands there whole."""
    spans = pl.select(word_spans(pl.lit(text), words="unicode")).to_series().struct
    starts, ends = (spans.field(name)[0] for name in ("starts", "ends"))
    return "".join(
        f" {text[start:end]} " for start, end in zip(starts, ends, strict=True)
    )


def hash_runs(texts: pl.Series, run_words: int = RUN_WORDS) -> tuple[_Hashes, Ints]:
    """Hash the runs of all passages, in order, and say of each which passage it is of."""
    parts = [(np.zeros(0, np.uint64), np.zeros(0, np.int64))]
    for start in range(0, texts.len(), _PASSAGES_AT_ONCE):
        some = texts.slice(start, _PASSAGES_AT_ONCE)
        found, starts = _run_hashes("\n".join(some), run_words)
        ends = np.cumsum(some.str.len_chars().to_numpy().astype(np.int64) + 1)
        of_words = np.searchsorted(ends, starts, side="right")
        first, last = of_words[: found.size], of_words[of_words.size - found.size :]
        parts.append((found[first == last], start + first[first == last]))
    hashes, rows = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(hashes)
    return hashes[order], rows[order]


def _places(ordered: _Hashes, wanted: _Hashes) -> Ints:
    wanted = np.unique(wanted)
    first, last = (np.searchsorted(ordered, wanted, side) for side in ("left", "right"))
    sizes = last - first
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    places: Ints = np.repeat(first, sizes) + within
    return places


def _run_hashes(text: str, run_words: int = RUN_WORDS) -> tuple[_Hashes, Ints]:
    """Hash each run of words, and say where each word starts; letters make words, words runs."""
    spans = pl.select(word_spans(pl.lit(text), words="unicode")).to_series().struct
    starts, ends = (
        spans.field(name).explode(empty_as_null=False).to_numpy().astype(np.int64)
        for name in ("starts", "ends")
    )
    letters = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    sums = np.append(np.uint64(0), np.cumsum(letters * _powers(_BASE, letters.size)))
    words = (sums[ends] - sums[starts]) * _powers(_INVERSE, letters.size + 1)[starts]
    n_runs = max(words.size - run_words + 1, 0)
    hashes = np.zeros(n_runs, np.uint64)
    for place in range(run_words):
        word = words[place : place + n_runs]
        hashes = hashes * np.uint64(_BASE) + (word ^ (word >> np.uint64(29)))
    return hashes, starts


def _powers(base: int, n: int) -> _Hashes:
    powers = np.full(n, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)


# Scores that one class misses more often than the other: what is left to measure is
# selected.

_SIGNIFICANT = 0.01
_WORTH_SAYING = 0.01  # a smaller difference moves no figure, however sure it is


def count_reasons(rows: pl.LazyFrame) -> dict[str, int]:
    # Reasons that differ in their numbers alone count as one, without the numbers.
    shape = pl.col("reason").str.replace_all(r"\d+(?:[,.]\d+)*", "…")
    several = pl.col("reason").n_unique() > 1
    return dict(
        rows.group_by(shape=shape)
        .agg(
            reason=pl.when(several)
            .then(shape.first())
            .otherwise(pl.col("reason").first()),
            n=pl.col("target_id").n_unique(),
        )
        .sort("n", "reason", descending=[True, False])
        .select("reason", "n")
        .collect(engine="streaming")
        .iter_rows()
    )


class UnevenScores(NamedTuple):
    """Attacks that score one class less often than the other; pairs are members, non-members."""

    # Those of the largest difference; they miss scores of the same texts
    attacks: tuple[str, ...]
    n_texts: tuple[int, int]
    n_unscored: tuple[int, int]
    # Fisher's exact test of these, two-sided, times the number of tests made; at most 1
    p_value: float
    reasons: tuple[str | None, str | None] = (None, None)  # the most frequent ones
    others: tuple[str, ...] = ()  # further attacks that score the classes unevenly

    @property
    def shares(self) -> tuple[float, float]:
        return (
            self.n_unscored[0] / self.n_texts[0],
            self.n_unscored[1] / self.n_texts[1],
        )

    @property
    def difference(self) -> float:
        return abs(self.shares[0] - self.shares[1])


def uneven_findings(
    scores: pl.LazyFrame, attacks: Sequence[str], unscored: pl.LazyFrame
) -> pl.DataFrame:
    """Rows of check ``uneven_scores`` about attacks (``most`` or ``more`` uneven) and classes."""
    counts = (
        pl.col("role").is_in(["target", "non_member"]) & pl.col("member").is_not_null()
    )
    classes = scores.filter(counts).select(pl.col("member").n_unique()).collect().item()
    found = (
        find_uneven_scores(scores, counts, attacks, unscored=unscored)
        if classes == 2
        else None
    )
    rows: list[dict[str, object]] = []
    if found is not None:
        most = {"verdict": "most", "value": found.difference, "p_value": found.p_value}
        rows = [
            {"subject": name, "statistic": "difference"} | most
            for name in found.attacks
        ]
        for name in found.others:
            rows.append({"subject": name, "statistic": "difference", "verdict": "more"})
        rows += class_rows(found)
    of = {"check": "uneven_scores"}
    return pl.DataFrame(
        [of | row for row in rows], schema=Findings.create_empty().schema
    )


def class_rows(
    found: UnevenScores, names: tuple[str, str] = ("members", "non-members")
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for which, name in enumerate(names):
        figures = {
            "n_unscored": found.n_unscored[which],
            "n_texts": found.n_texts[which],
            "share": found.shares[which],
        }
        rows += [
            {"subject": name, "statistic": each, "value": figures[each]}
            for each in figures
        ]
        rows[-3]["reason"] = found.reasons[which]
    return rows


def find_uneven_scores(
    scores: pl.LazyFrame,
    counts: pl.Expr,
    attacks: Sequence[str],
    *,
    unscored: pl.LazyFrame | None = None,
) -> UnevenScores | None:
    """Find attacks that score one class less often than the other, beyond what chance does."""
    # Attacks that miss scores of the same texts are one test.
    labelled = scores.with_columns(cluster=cluster_names(scores)).filter(counts)
    lost = {
        attack: ~pl.col(attack).is_finite().fill_null(value=False) for attack in attacks
    }
    counted = labelled.select(
        pl.len(), *(lost[name].sum().alias(name) for name in lost)
    )
    n_texts, *n_lost = counted.collect(engine="streaming").row(0)
    alike: dict[
        bytes, list[str]
    ] = {}  # attacks by what they miss, one bit for each text
    for attack, n in zip(attacks, n_lost, strict=True):
        if n:
            bits = np.packbits(read_numbers(labelled, lost[attack], n_texts, np.bool_))
            alike.setdefault(bits.tobytes(), []).append(attack)
    if not alike:
        return None
    hashes = labelled.select("member", pl.col("cluster").hash()).collect(
        engine="streaming"
    )
    member = hashes["member"].to_numpy()
    cluster = np.unique(hashes["cluster"].to_numpy(), return_inverse=True)[1]
    tests = []
    for packed, names in alike.items():
        missing = np.unpackbits(np.frombuffer(packed, np.uint8), count=member.size)
        tests.append(_unscored_compare(tuple(names), missing, member, cluster))
    adjusted = [
        one._replace(p_value=min(1.0, len(tests) * one.p_value)) for one in tests
    ]
    uneven = [
        one
        for one in sorted(adjusted, key=lambda one: -one.difference)
        if one.difference >= _WORTH_SAYING and one.p_value <= _SIGNIFICANT
    ]
    if not uneven:
        return None
    most, *others = uneven
    named = {} if unscored is None else _reasons(labelled, unscored, most.attacks[0])
    return most._replace(
        reasons=(named.get(True), named.get(False)),
        others=tuple(name for one in others for name in one.attacks),
    )


def _unscored_compare(
    attacks: tuple[str, ...], lost: NDArray[np.uint8], member: Flags, cluster: Codes
) -> UnevenScores:
    """Test counts divided by the design effect, for texts of one cluster are lost together.

    Rao & Scott (1992), "A simple method for the analysis of clustered binary data".
    """
    from scipy.stats import fisher_exact

    n_texts = int(member.sum()), int((~member).sum())
    n_lost = int(lost[member].sum()), int(lost[~member].sum())
    table = np.array([[k, n - k] for k, n in zip(n_lost, n_texts, strict=True)])
    # Variance of the classes' difference by clusters, over that by texts, as if they
    # missed alike.
    terms = (member - member.mean()) * (lost - lost.mean())
    of_texts = float(np.square(terms).sum())
    of_clusters = float(np.square(np.bincount(cluster, terms)).sum())
    effect = max(1.0, of_clusters / of_texts) if of_texts else 1.0
    p_value = float(fisher_exact(np.rint(table / effect).astype(np.int64)).pvalue)
    return UnevenScores(attacks, n_texts, n_lost, p_value)


def _reasons(
    labelled: pl.LazyFrame, unscored: pl.LazyFrame, attack: str
) -> dict[bool, str]:
    """Most frequent reason of each class, the first in the alphabet of several."""
    of_attack = unscored.filter(attack=attack).select("target_id", "reason")
    found = (
        labelled.select("target_id", "member")
        .join(of_attack, on="target_id")
        .group_by("member")
        .agg(pl.col("reason").mode().sort().first())
        .collect(engine="streaming")
    )
    return dict(found.iter_rows())


# Whether a model was trained: whether it foresees texts better than guessing.

_MARGIN = 0.1  # nats that luck gives before any training
_ERROR_RATE = 0.01  # share of untrained models that are taken for trained ones
_KNOWN, _LONG = 1.0, 20  # nats, and tokens, of a text whose loss is no accident


def test_chance(texts: pl.DataFrame, chance: float) -> tuple[float | None, bool]:
    """Test whether a model's loss is below ``chance`` by more than a margin, in nats a token.

    Each row of ``texts``, with lists ``logprob`` and ``token_ids``, counts once, by
    Student's test of one side over their mean gains; the p-value is null of a single
    text, which is held against the margin alone. Tokens that repeat the one before are
    left out: with tied embeddings a model foresees them before it is trained. One long
    text that is foreseen well suffices, whatever the others are.
    """
    from scipy.stats import ttest_1samp

    gains, is_known = list[float](), False
    for logprobs, tokens in texts.select("logprob", "token_ids").iter_rows():
        values = np.array(logprobs, np.float64)
        # Endpoints tell none
        ids = np.arange(values.size) if tokens is None else np.array(tokens)
        repeats = np.append(False, ids[1:] == ids[:-1])
        counted = values[np.isfinite(values) & ~repeats]
        if counted.size:
            gains.append(chance + float(counted.mean()))
            is_known |= counted.size >= _LONG and gains[-1] > _KNOWN
    p_value = None
    if len(gains) > 1 and np.ptp(gains) > 0:
        p_value = float(ttest_1samp(gains, _MARGIN, alternative="greater").pvalue)
        return p_value, is_known or p_value <= _ERROR_RATE
    return None, is_known or (gains != [] and gains[0] > _MARGIN)
