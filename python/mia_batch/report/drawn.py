"""Sentences about documents that were drawn of a corpus, and about the shares of all of them."""

from collections.abc import Iterator, Mapping
from math import ceil, floor, log10
from typing import Any

import polars as pl

from mia_batch.inference.known_share import (
    DRAW,
    KNOWN_SHARE,
    SHARES,
    VERBATIM_SHARE,
)
from mia_batch.inference.memory import VERBATIM_WORDS

Row = Mapping[str, Any]

_NO_SOURCE = "without a value"
_MEANINGS = {
    "fieller": (
        "Known to the model means in the training data: it is assumed that known documents"
        " score as high as the calibration members, and the others as the calibration"
        " non-members. The interval covers the draw and the error of these rates."
    ),
    "beta_binomial": (
        "Known to the model means in the training data: it is assumed that documents that"
        " were not score as the comparison texts do. The lower bound covers the draw and"
        " the error of the threshold; why there is no more: {reason}."
    ),
}
_OUT = (
    "A document comes out word for word where an answer, asked as in this run, repeats at"
    f" least {VERBATIM_WORDS} words of it in a row."
)
_ALONE = (
    "The interval of each value holds by itself with 95 % confidence, not all of them"
    " together."
)


def write_share(findings: pl.DataFrame) -> str | None:
    """Write what share of all documents is known, or comes out; None where nothing is said."""
    n_documents = _find_value(findings, DRAW, "n_documents")
    if n_documents is None:
        return None
    n_drawn = _find_value(findings, DRAW, "n_drawn") or 0
    n_compared = _find_value(findings, KNOWN_SHARE, "n_compared")
    noun = f"these {n_documents:,.0f} documents"
    drawn = f"{n_drawn:,.0f} drawn"
    row = _find_share(findings, KNOWN_SHARE)
    if row is not None:
        if n_compared is not None and n_compared < n_drawn:
            drawn = f"{drawn}, {n_compared:,.0f} of them long enough to be compared"
            if row["verdict"] == "fieller":
                noun = f"those of {noun} that are long enough"
        return f"{_write_known(row, noun, drawn)}."
    row = _find_share(findings, VERBATIM_SHARE)
    if row is not None:
        return f"{_write_out(row, noun, drawn)}."
    return None


def write_missing_share(findings: pl.DataFrame) -> str | None:
    """Write that nothing is said of the documents that were not drawn, if there are any."""
    n_documents = _find_value(findings, DRAW, "n_documents")
    if n_documents is None:
        return None
    n_drawn = _find_value(findings, DRAW, "n_drawn")
    return (
        f"What share of the {n_documents:,.0f} documents is known, of which"
        f" {n_drawn:,.0f} were drawn, is not said."
    )


def compares_scores(findings: pl.DataFrame) -> bool:
    """Return whether the share is one by scores, and not of what comes out."""
    return _find_share(findings, KNOWN_SHARE) is not None


_SHARES: dict[str, Any] = {
    "check": pl.String,
    "source": pl.String,
    **dict.fromkeys(("n_documents", "n_drawn"), pl.Int64),
    **dict.fromkeys(("share", "low", "high"), pl.Float64),
    **dict.fromkeys(("method", "reason"), pl.String),
}


def list_shares(findings: pl.DataFrame) -> pl.DataFrame:
    """Return the shares of a corpus of which documents were drawn, and of its sources.

    ``check`` (``known_share`` or ``verbatim_share``: of documents of which a passage
    came out), ``source`` (null in the row of all documents, and for documents without
    one), ``n_documents``, ``n_drawn``, ``share`` (null where there are limits alone) with
    its 95 % limits ``low`` and ``high``, ``method`` of the known share (``fieller``, or
    ``beta_binomial`` for a lower bound) and why numbers are null (``reason``). Rows of a
    check begin with that of all documents. Empty where nothing was drawn.
    """
    rows = []
    for check in (KNOWN_SHARE, VERBATIM_SHARE):
        shares = findings.filter(pl.col("statistic").is_in(SHARES), check=check)
        for row in shares.iter_rows(named=True):
            n_documents, n_drawn = _find_sizes(findings, row)
            rows.append(
                {
                    "check": check,
                    "source": row["subject"],
                    "n_documents": n_documents,
                    "n_drawn": n_drawn,
                    "share": row["value"],
                    "low": row["low"],
                    "high": row["high"],
                    "method": row["verdict"],
                    "reason": row["reason"],
                }
            )
    return pl.DataFrame(rows, schema=_SHARES)


def _find_sizes(findings: pl.DataFrame, row: Row) -> tuple[int, int]:
    """Return how many documents the row of a share is about, and how many were drawn."""
    ending = "_of_source" if row["statistic"] == "share_of_source" else ""
    is_about = pl.col("subject").eq_missing(pl.lit(row["subject"], pl.String))
    rows = findings.filter(is_about, check=DRAW)
    values = dict(rows.select("statistic", "value").iter_rows())
    return int(values[f"n_documents{ending}"]), int(values[f"n_drawn{ending}"])


def draw_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Write what was drawn, what the shares mean, and those of each source."""
    n_documents = _find_value(findings, DRAW, "n_documents")
    if n_documents is None:
        return
    n_drawn = _find_value(findings, DRAW, "n_drawn")
    by = findings.filter(check=DRAW, statistic="by")["verdict"]
    of_sources = f", so many of each value of {by[0]!r}" if len(by) else ""
    yield (
        f"{n_drawn:,.0f} of {n_documents:,.0f} documents were drawn by lot{of_sources}:"
        " what follows of single documents is about these."
    )
    row = _find_share(findings, KNOWN_SHARE)
    if row is None:
        missing = findings.filter(check=KNOWN_SHARE, statistic="share")["reason"]
        if len(missing):
            yield (
                f"Scores do not say what share of the {n_documents:,.0f} documents the"
                f" model knows: {missing[0]}."
            )
    else:
        yield _MEANINGS[row["verdict"]].format(reason=row["reason"])
        yield from _list_sources(findings, KNOWN_SHARE)
    row = _find_share(findings, VERBATIM_SHARE)
    if row is not None:
        share = _write_out(row, f"the {n_documents:,.0f} documents", "drawn as above")
        yield f"{share}. {_OUT}"
        yield from _list_sources(findings, VERBATIM_SHARE)


def _list_sources(findings: pl.DataFrame, check: str) -> Iterator[str]:
    """Write a line for each source."""
    rows = findings.filter(check=check, statistic="share_of_source")
    if rows.is_empty():
        return
    by = findings.filter(check=DRAW, statistic="by")["verdict"][0]
    write = _write_known if check == KNOWN_SHARE else _write_out
    yield _ALONE
    for row in rows.iter_rows(named=True):
        name = _NO_SOURCE if row["subject"] is None else f"= {row['subject']}"
        n_documents, n_drawn = _find_sizes(findings, row)
        noun = f"the {n_documents:,} documents"
        drawn = f"{n_drawn:,} drawn"
        if row["low"] is None:
            yield f"{by} {name}: no share of {noun} ({drawn}): {row['reason']}."
            continue
        clause = write(row, noun, drawn)
        yield f"{by} {name}: {clause[:1].lower()}{clause[1:]}."


def _find_value(findings: pl.DataFrame, check: str, statistic: str) -> float | None:
    values = findings.filter(check=check, statistic=statistic)["value"]
    return values[0] if len(values) else None


def _find_share(findings: pl.DataFrame, check: str) -> Row | None:
    """Return the row of the share of all documents, if it has limits."""
    rows = findings.filter(pl.col("low").is_not_null(), check=check, statistic="share")
    return next(rows.iter_rows(named=True), None)


def _write_known(row: Row, noun: str, drawn: str) -> str:
    known = f"of {noun} are known to the model"
    low, high = _write_limits(row)
    if row["value"] is not None:
        value = write_percent(row["value"])
        return f"About {value} % {known} (95 % CI {low} to {high}; {drawn})"
    if row["verdict"] == "fieller":
        return (
            f"Between {low} and {high} % {known} (95 % confidence; {drawn};"
            f" {row['reason']})"
        )
    if row["low"]:
        return f"At least {low} % {known} (95 % confidence; {drawn})"
    return f"It is not shown that any of {noun} is known to the model ({drawn})"


def _write_out(row: Row, noun: str, drawn: str) -> str:
    low, high = _write_limits(row)
    out = f"of {noun} come out word for word"
    if row["value"] == 0:
        return (
            f"At most {high} % {out}, and none of those drawn does (95 % confidence;"
            f" {drawn})"
        )
    if row["value"] is not None:
        value = write_percent(row["value"])
        return f"About {value} % {out} (95 % CI {low} to {high}; {drawn})"
    if row["high"] is not None and row["high"] < 1:
        return (
            f"Between {low} and {high} % {out} (95 % confidence; {drawn};"
            f" {row['reason']})"
        )
    return f"At least {low} % {out} (95 % confidence; {drawn}; {row['reason']})"


def _write_limits(row: Row) -> tuple[str, str]:
    """Write both limits, rounded outwards."""
    return (
        write_percent(row["low"], floor),
        write_percent(1.0 if row["high"] is None else row["high"], ceil),
    )


def write_percent(share: float, rounding: Any = round) -> str:
    """Write a share in percent with two digits that say something, three from 10 % on."""
    percent = 100 * share
    if percent <= 0:
        return "0"
    digits = max(1, 1 - floor(log10(percent)))
    rounded = rounding(round(percent * 10**digits, 6)) / 10**digits
    return f"{min(rounded, 100.0):.{digits}f}"
