"""What share of a corpus the model knows, where documents were drawn of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from mia_batch.corpus.drawing import DrawnSource
from mia_batch.inference.comparison import (
    ComparedUnits,
    ComparisonSets,
    cut_units,
    read_comparison_sets,
    windows_per_group,
)
from mia_batch.inference.estimates import (
    FEW_MISSING,
    FEWEST_GROUPS,
    Contamination,
    Flagged,
    contamination_rate,
    fewest_members,
    null_rank,
    null_threshold,
    widen_for_missing,
)
from mia_batch.inference.findings import (
    DecisionRule,
    finding_rows,
    number_rows,
    read_rows,
)
from mia_batch.inference.memory import VERBATIM_WORDS, common_targets
from mia_batch.schemas import Controls
from mia_batch.stats import Flags, Floats, Ints
from mia_batch.stats.drawn import (
    DomainStratum,
    Stratum,
    estimate_domain_share,
    share_interval,
    weighted_share,
)
from mia_batch.stats.intervals import CONFIDENCE, design_effect
from mia_batch.targets import document_numbers

DRAW = "draw"
KNOWN_SHARE = "known_share"
VERBATIM_SHARE = "verbatim_share"
"""Names of checks: what was drawn, and the shares that follow from it."""
SHARES = ("share", "share_of_source")
"""Statistics that are shares, of all documents and of one source."""

_MOST_BOUNDED = 10_000
_NO_COMPARISON = (
    "without comparison texts they only rank documents (add --non-members FOLDER)"
)
_ARE_LABELLED = "documents are labelled, so that the corpus is no unlabelled one"
_FEW_DRAWN = "{} documents drawn that can be compared are too few, {} are needed"


def draw_findings(draw: Mapping[str, Any] | None) -> pl.DataFrame:
    """Rows of check ``draw``: how many documents there are, and were drawn, of each source.

    ``by``: the column of sources, as verdict; none where all are one.
    """
    if not draw:
        return finding_rows(DRAW)
    rows = number_rows({name: draw[name] for name in ("n_documents", "n_drawn")})
    if draw["column"] is not None:
        rows.append({"statistic": "by", "verdict": draw["column"]})
        for name, n_documents, n_drawn in draw["sources"]:
            rows += number_rows(
                {"n_documents_of_source": n_documents, "n_drawn_of_source": n_drawn},
                subject=name,
            )
    return finding_rows(DRAW, rows)


@dataclass(frozen=True, slots=True)
class DrawnSources:
    """What the rows of check ``draw`` say; no sources where nothing was drawn."""

    column: str | None
    sources: tuple[DrawnSource, ...]

    @classmethod
    def read(cls, findings: pl.DataFrame) -> "DrawnSources":
        rows = findings.filter(check=DRAW)
        if rows.is_empty():
            return cls(None, ())
        columns = rows.filter(statistic="by")["verdict"]
        ending = "_of_source" if len(columns) else ""
        counts: dict[str | None, dict[str, int]] = {}
        for name, statistic, value in rows.select(
            "subject", "statistic", "value"
        ).iter_rows():
            counts.setdefault(name, {})[statistic] = int(value or 0)
        sources = [
            DrawnSource(
                name, numbers[f"n_documents{ending}"], numbers[f"n_drawn{ending}"]
            )
            for name, numbers in counts.items()
            if f"n_documents{ending}" in numbers
        ]
        sources.sort(key=lambda source: (source.name is None, source.name or ""))
        return cls(columns[0] if len(columns) else None, tuple(sources))


class _Documents:
    """The documents of the input, each with the number of its source, by their rows."""

    def __init__(self, targets: pl.LazyFrame, drawn: DrawnSources) -> None:
        source = pl.lit(None, pl.String)
        if drawn.column is not None:
            source = pl.col(drawn.column).cast(pl.String)
        keys = targets.select(
            pl.col("role").cast(pl.String),
            "member",
            "target_id",
            is_askable=pl.col("reason").is_null(),
            source=source,
        ).collect(engine="streaming")
        self.target_id = keys["target_id"]
        self.is_askable: Flags = keys["is_askable"].to_numpy()
        self.number: Ints = document_numbers(targets).astype(np.int64)
        is_input = keys["role"].is_in(["target", "copy"])
        self.has_labels = keys.filter(is_input)["member"].count() > 0
        self._sources = drawn.sources
        numbers = {source.name: n for n, source in enumerate(drawn.sources)}
        names = keys.filter(is_input)["source"].to_list()
        self.input_rows: Ints = is_input.arg_true().to_numpy().astype(np.int64)
        self._source = np.zeros(keys.height, np.int64)
        self._source[self.input_rows] = [numbers.get(name, -1) for name in names]

    def count(self, documents: Ints) -> Ints:
        """Count documents of each source, given one row of each."""
        sources = self._source[documents]
        counted = sources[sources >= 0]
        return np.bincount(counted, minlength=len(self._sources)).astype(np.int64)


def known_share_findings(
    targets: pl.LazyFrame,
    scores: pl.LazyFrame,
    rule: DecisionRule,
    findings: pl.DataFrame,
    *,
    blind_warns: bool,
) -> pl.DataFrame:
    """Rows of check ``known_share``: of all documents, and of each source by itself.

    With labelled calibration data the share is `contamination_rate` of the documents of
    the corpus, from which those drawn are a sample, and verdict ``fieller``. Without, it
    is a lower bound, verdict ``beta_binomial``: at 97.5 % confidence at least so many
    documents of all are above the threshold (`share_interval`), and given so many, at
    least so many of them are members (`contamination_bound`); both hold with 95 %. A
    document counts by as many of its windows as others; one that has fewer, or none that
    can be asked about, is not among those that a share is about, and a lower bound
    counts it as not known.
    """
    drawn = DrawnSources.read(findings)
    if not drawn.sources:
        return finding_rows(KNOWN_SHARE)
    documents = _Documents(targets, drawn)
    shares = _Shares(documents, drawn, scores, rule, blind_warns=blind_warns)
    return finding_rows(KNOWN_SHARE, shares.rows())


@dataclass(frozen=True, slots=True)
class _Set:
    """The documents of one set: their statistics, NaN where unscored, and what they share."""

    rows: Ints  # the first window of each
    statistics: Floats

    def fill(self, value: float | None) -> "_Set":
        """Give unscored documents a statistic; None leaves them out."""
        is_scored = ~np.isnan(self.statistics)
        if value is None:
            return _Set(self.rows[is_scored], self.statistics[is_scored])
        return _Set(self.rows, np.where(is_scored, self.statistics, value))

    def count_missing(self) -> int:
        return int(np.isnan(self.statistics).sum())


# Of drawn documents, calibration non-members and members: what unscored ones would be
_EXTREMES = ((-np.inf, np.inf, np.inf), (np.inf, -np.inf, -np.inf))


class _Shares:
    """Estimates of the share of members in the population, and in each of its sources."""

    def __init__(
        self,
        documents: _Documents,
        drawn: DrawnSources,
        scores: pl.LazyFrame,
        rule: DecisionRule,
        *,
        blind_warns: bool,
    ) -> None:
        self._documents = documents
        self._sources = drawn.sources
        self._blind_warns = blind_warns
        self._fpr = rule.fpr
        self._clusters = read_comparison_sets(scores, with_names=False)
        sets = self._select_askable()
        self._reason = self._find_reason(sets)
        if self._reason is None:
            n_windows = windows_per_group(sets, rule)
            row_sets = (
                sets.targets,
                sets.nulls,
                sets.calibration_nonmembers,
                sets.calibration_members,
            )
            values = read_rows(scores, [rule.primary], np.arange(len(sets.cluster)))
            units = [cut_units(sets, rows, n_windows, rule.seed) for rows in row_sets]
            self._targets, self._nulls, *self._calibration = [
                _summarise(of_set, values[:, 0], rule) for of_set in units
            ]
            self._compare_nulls()

    def _select_askable(self) -> ComparisonSets:
        """Return the sets by document, less windows that cannot be asked about."""
        is_askable = self._documents.is_askable

        def select(rows: Ints) -> Ints:
            return rows[is_askable[rows]]

        sets = self._clusters
        return replace(
            sets,
            cluster=self._documents.number,
            targets=select(sets.targets),
            nulls=select(sets.nulls),
            calibration_nonmembers=select(sets.calibration_nonmembers),
            calibration_members=select(sets.calibration_members),
        )

    def _find_reason(self, sets: ComparisonSets) -> str | None:
        """Return why nothing can be said of all documents."""
        if self._documents.has_labels:
            return _ARE_LABELLED
        if not self._clusters.nulls.size:
            return _NO_COMPARISON
        reason = self._why_too_few("comparison documents", sets.nulls)
        if reason is not None:
            return reason
        if not sets.targets.size:
            return "no document that was drawn can be asked about"
        return None

    def _why_too_few(self, name: str, rows: Ints) -> str | None:
        """Return why texts cannot stand for others: there are too few, or too few groups."""
        n = np.unique(self._clusters.cluster[rows]).size
        if n >= FEWEST_GROUPS:
            return None
        return f"{n} {name}, or groups of them, are too few, {FEWEST_GROUPS} are needed"

    def _compare_nulls(self) -> None:
        nulls = self._nulls
        self._threshold = null_threshold(nulls.statistics, self._fpr)[1]
        n_null = nulls.rows.size / self._find_effect(nulls.fill(np.inf))
        self._n_null = max(int(n_null), 1)
        self._rank = null_rank(self._n_null, self._fpr)

    def _is_above(self, documents: _Set) -> Flags:
        return documents.statistics > self._threshold

    def _find_effect(self, documents: _Set) -> float:
        """Return by how much groups or authors of comparison documents make them worth less."""
        is_above = self._is_above(documents).astype(np.float64)
        effects = [design_effect(is_above, self._clusters.cluster[documents.rows])]
        if self._clusters.author.size:
            author = self._clusters.author[documents.rows].copy()
            # Documents of unknown authors count one by one
            author[author < 0] = -1 - np.arange((author < 0).sum())
            effects.append(design_effect(is_above, author))
        return max(effects)

    def rows(self) -> Iterator[dict[str, object]]:
        if self._reason is not None:
            yield {"statistic": "share", "reason": self._reason}
            return
        n_scored = self._targets.rows.size - self._targets.count_missing()
        yield from number_rows(
            {
                "n_compared": self._targets.rows.size,
                "n_scored": n_scored,
                "n_above": int(self._is_above(self._targets).sum()),
                "n_null": self._nulls.rows.size,
            }
        )
        indices = range(len(self._sources))
        yield _build_row("share", None, self._estimate(indices))
        if len(self._sources) > 1:
            for index in indices:
                estimate = self._estimate([index])
                name = self._sources[index].name
                yield _build_row("share_of_source", name, estimate)

    def _estimate(self, indices: Sequence[int]) -> Contamination:
        """Estimate the share of members in some sources together."""
        n_compared = self._documents.count(self._targets.rows)[list(indices)].sum()
        n_drawn = sum(self._sources[index].n_drawn for index in indices)
        n_documents = sum(self._sources[index].n_documents for index in indices)
        if n_compared < FEWEST_GROUPS and n_drawn < n_documents:
            reason = _FEW_DRAWN.format(n_compared, FEWEST_GROUPS)
            return Contamination(method="none", reason=reason)
        if not n_compared:
            reason = "no document can be compared"
            return Contamination(method="none", reason=reason)
        why_no_rate = self._why_no_rate()
        if why_no_rate is None:
            rate = self._estimate_rate(indices)
            if rate.low is not None:
                return rate
            why_no_rate = str(rate.reason)
        return self._bound(indices)._replace(reason=why_no_rate)

    def _why_no_rate(self) -> str | None:
        names = ("calibration non-members", "calibration members")
        if not any(documents.rows.size for documents in self._calibration):
            return "without calibration data there is a lower bound alone"
        for name, documents in zip(names, self._calibration, strict=True):
            reason = self._why_too_few(name, documents.fill(None).rows)
            if reason is not None:
                return reason
        return None

    def _estimate_rate(self, indices: Sequence[int]) -> Contamination:
        estimate = self._compute_rate(indices, (None, None, None))
        sets = (self._targets, *self._calibration)
        n_missing = [documents.count_missing() for documents in sets]
        if not any(n_missing):
            return estimate
        return widen_for_missing(
            estimate,
            *(self._compute_rate(indices, extreme) for extreme in _EXTREMES),
            n_missing=n_missing,
            sizes=[documents.rows.size for documents in sets],
        )

    def _compute_rate(
        self, indices: Sequence[int], filling: Sequence[float | None]
    ) -> Contamination:
        """Compute a rate, given what unscored documents of each set would be."""
        targets, *calibration = (
            documents.fill(value)
            for documents, value in zip(
                (self._targets, *self._calibration), filling, strict=True
            )
        )
        n_domain = self._documents.count(targets.rows)
        n_above = self._documents.count(targets.rows[self._is_above(targets)])
        strata = [
            DomainStratum(
                self._sources[index].n_documents,
                self._sources[index].n_drawn,
                int(n_domain[index]),
                int(n_above[index]),
            )
            for index in indices
        ]
        if not any(stratum.n_domain for stratum in strata):
            return Contamination(method="fieller", reason="no document has a score")
        estimate = estimate_domain_share(strata)
        rates = []
        largest_effect = 1.0
        for documents in calibration:
            effect = self._find_effect(documents)
            largest_effect = max(largest_effect, effect)
            n_flagged = float(self._is_above(documents).sum())
            rates.append(Flagged(n_flagged / effect, documents.rows.size / effect))
        n_independent = max(estimate.size / largest_effect, 1.0)
        return contamination_rate(
            Flagged(estimate.share * n_independent, n_independent),
            *rates,
            blind_warns=self._blind_warns,
            drawing_variance=estimate.variance,
        )

    def _bound(self, indices: Sequence[int]) -> Contamination:
        n_above = self._documents.count(
            self._targets.rows[self._is_above(self._targets)]
        )
        strata = [
            Stratum(
                self._sources[index].n_documents,
                self._sources[index].n_drawn,
                int(n_above[index]),
            )
            for index in indices
        ]
        share_above = share_interval(strata).low
        # Fewer documents vary more, so that the bound is a little lower
        n = min(sum(stratum.n_total for stratum in strata), _MOST_BOUNDED)
        fewest = fewest_members(
            Flagged(int(share_above * n + 1e-9), n),
            n_null=self._n_null,
            rank=self._rank,
            confidence=(1 + CONFIDENCE) / 2,
        )
        return Contamination(method="beta_binomial", low=fewest / n, high=1.0)


def _summarise(units: ComparedUnits, scores: Floats, rule: DecisionRule) -> _Set:
    if not units.windows.size:
        return _Set(np.empty(0, np.int64), np.empty(0))
    return _Set(units.windows[:, 0], units.statistics(scores, rule))


def _build_row(
    statistic: str, subject: str | None, estimate: Contamination
) -> dict[str, object]:
    return {
        "statistic": statistic,
        "subject": subject,
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "verdict": None if estimate.low is None else estimate.method,
        "reason": estimate.reason,
    }


# Documents of which a passage came out word for word.


def verbatim_share_findings(
    targets: pl.LazyFrame,
    runs: pl.DataFrame,
    controls: pl.DataFrame | None,
    findings: pl.DataFrame,
    *,
    all_continued: bool,
) -> pl.DataFrame:
    """Rows of check ``verbatim_share``: of documents of which a passage came out.

    The interval is `share_interval` of the documents drawn. Those of which not every
    window has an answer count as not out for the lower limit, and as out for the upper
    one. Unless ``all_continued``, texts of the highest scores alone were, so that there is
    a lower limit alone.
    """
    drawn = DrawnSources.read(findings)
    if not drawn.sources or runs["longest_words"].count() == 0:
        return finding_rows(VERBATIM_SHARE)
    documents = _Documents(targets, drawn)
    if controls is None:
        controls = Controls.create_empty()
    common = common_targets(controls.lazy())
    is_own = ~documents.target_id.is_in(common.implode()).to_numpy()
    longest = runs["longest_words"].fill_null(0).to_numpy()
    is_out = (longest >= VERBATIM_WORDS) & is_own
    is_open = documents.is_askable & runs["longest_words"].is_null().to_numpy()
    rows = documents.input_rows
    out = _find_first(documents.number, rows[is_out[rows]])
    out_or_open = _find_first(documents.number, rows[(is_out | is_open)[rows]])
    n_out = documents.count(out)
    n_most = documents.count(out_or_open)

    def build_row(
        statistic: str, name: str | None, chosen: Sequence[int]
    ) -> dict[str, object]:
        def select(counts: Ints) -> list[Stratum]:
            return [
                Stratum(*drawn.sources[index][1:], int(counts[index]))
                for index in chosen
            ]

        row = _build_verbatim_row(select(n_out), select(n_most))
        if not all_continued:
            low = row["low"] or None  # of 0 nothing follows
            high = low and 1.0
            reason = "windows of the highest scores alone were continued"
            row = {"low": low, "high": high, "reason": reason}
        return {"statistic": statistic, "subject": name, **row}

    indices = range(len(drawn.sources))
    share_rows = [build_row("share", None, indices)]
    share_rows += number_rows({"n_out": int(n_out.sum())})
    if len(drawn.sources) > 1:
        for index in indices:
            name = drawn.sources[index].name
            share_rows.append(build_row("share_of_source", name, [index]))
    return finding_rows(VERBATIM_SHARE, share_rows)


def _find_first(numbers: Ints, rows: Ints) -> Ints:
    """Return one row of each document that some rows are of."""
    return rows[np.unique(numbers[rows], return_index=True)[1]]


def _build_verbatim_row(
    strata: Sequence[Stratum], most: Sequence[Stratum]
) -> dict[str, object]:
    """Build a row's numbers, given what came out and what may have at most."""
    value: float | None = weighted_share(strata)
    reason: str | None = None
    n_open = sum(stratum.n_hits for stratum in most)
    n_open -= sum(stratum.n_hits for stratum in strata)
    n_drawn = sum(stratum.n_drawn for stratum in strata)
    if n_open > FEW_MISSING * n_drawn:
        value = None
        reason = f"{n_open:,} of {n_drawn:,} documents have windows without an answer"
    return {
        "value": value,
        "low": share_interval(strata).low,
        "high": share_interval(most).high,
        "reason": reason,
    }
