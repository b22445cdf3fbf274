"""What came out word for word: a finding that needs no list of comparison texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.inference.controls import VERBATIM_WORDS
from mia_batch.report.checks import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

__all__ = ["verbatim_sentences"]

_LEVEL = 0.05
_MOST_CHARACTERS = 200
_MOST_NAMED = 12


def verbatim_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what came out word for word, with the longest passage and what chance gives."""
    rows = findings.filter(check="verbatim")
    counts = {
        subject[0]: dict(of.select("statistic", "value").iter_rows())
        for subject, of in rows.group_by("subject", maintain_order=True)
    }
    own = counts.get("targets", {})
    n, n_walked = int(own.get("n_verbatim", 0)), int(own.get("n_walked", 0))
    longest = rows.filter(statistic="longest").rows(named=True)
    if not (n + n_walked and longest):
        return
    how = f"at least {VERBATIM_WORDS} words in a row"
    passage = " ".join(str(longest[0]["reason"]).split())
    if len(passage) > _MOST_CHARACTERS:
        passage = f"{passage[:_MOST_CHARACTERS]}..."
    said = [_share(own, "asked about")] if n else []
    named = rows.filter(statistic="document")["subject"].to_list()
    if said and own["n_units"] < own["n_texts"]:
        said[0] += f" ({listed(named, _MOST_NAMED)})"
    if n_walked:
        said.append(f"{n_walked:,} more passages when the model is followed through the documents")
    yield (
        f"Word for word ({how}) the model gives back {' and '.join(said)}. The longest passage, of "
        f'{longest[0]["subject"]}, has {longest[0]["value"]:,.0f} words: "{passage}"'
    )
    yield from _chance(counts, rows.filter(statistic="fisher")["p_value"])


def _share(counts: dict[str, float], what: str) -> str:
    texts = f"{counts['n_verbatim']:,.0f} of {counts['n_texts']:,.0f} texts {what}"
    if counts["n_units"] == counts["n_texts"]:
        return texts
    return f"{texts}, in {counts['n_units_verbatim']:,.0f} of {counts['n_units']:,.0f} documents"


def _chance(counts: dict[str, dict[str, float]], fisher: pl.Series) -> Iterator[str]:
    """Say how often as much comes out where there is nothing to remember."""
    said = []
    if (others := counts.get("non_members", {})).get("n_texts"):
        said.append(f"{_share(others, 'to compare with')} come out so")
    for control, name in _CONTROLS.items():
        n = counts.get(control, {})
        if n.get("passages"):
            said.append(f"{n['repeated']:,.0f} of {n['passages']:,.0f} passages {name}")
    if not said:
        yield (
            "How often chance gives as much was not measured: give --non-members, or ask with "
            "--controls."
        )
        return
    more = ""
    if len(fisher):
        more = f" (Fisher's exact test: p = {fisher[0]:.2g})"
        if fisher[0] > _LEVEL:
            more += ", so these counts alone do not tell the two apart"
    yield f"To compare: {'; '.join(said)}{more}."


_CONTROLS = {
    "unrelated_prefix": "come after an unrelated prefix, too",
    "reference_model": "come from the reference model, too",
    "other_document": "stand in another document, too",
}
