"""What is said of sets that were built: rows of a summary, and sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mia_batch.building.testing import EXCLUDED_ABOVE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from mia_batch.building.one_length import OneLength

__all__ = ["as_markdown", "sentence_of", "summarise"]

_HEADS = ("set", "members", "non-members", "blind AUC before", "after", "from outside", "verdict")

_LEGEND = """Each figure is of the classifier with the highest upper limit, with its 95 % interval.
Before: on the first words of every document. After: cross-validated within the set, pairs kept
together; matching biases this figure downwards. From outside: by classifiers trained on documents
that were drawn at random and had no part in the matching. The verdict is the worse of both."""


def summarise(made: Sequence[OneLength], away: pl.DataFrame) -> dict[str, Any]:
    """Give a row for each set, refusals, sentences, and how many documents went for what."""
    counts = away.group_by("length", "reason").len().sort("length", "reason", nulls_last=False)
    return {
        "sets": [row for each in made for row in _sets(each)],
        "refused": {str(each.length): each.refused for each in made if each.refused is not None},
        "sentences": [sentence_of(each) for each in made],
        "thrown_away": counts.to_dicts(),
    }


def sentence_of(made: OneLength) -> str:
    """Say of one length what its sets can carry."""
    if made.refused is not None:
        before = _strongest(made.tests, "original", "before", "the set")
        found = "" if before is None else f"; before, the blind AUC is {_figure(before)}"
        return made.refused + found
    return " ".join(_sentence(made, row) for row in _sets(made))


def _sentence(made: OneLength, row: dict[str, Any]) -> str:
    what = f"{made.length} words, {row['setting']}:"
    if not row["members"]:
        return f"{what} no set, because too few texts have it."
    kept = f"{what} {row['members']:,} members, {row['nonmembers']:,} non-members;"
    figures = f"blind AUC {_figure(row['before'])} before"
    if row["after"] is not None:
        figures += f" and {_figure(row['after'])} after"
    if row["outside"] is not None:
        figures += f", {_figure(row['outside'])} to classifiers trained on held-out documents"
    if row["verdict"] == "not separable":
        end = (
            f"An attack's AUC above {EXCLUDED_ABOVE:.2f} on it is not explained by what these "
            "classifiers see; smaller ones may be."
        )
    else:
        how = "can be" if row["verdict"] == "separable" else "may be"
        end = f"It can carry no conclusion: its classes {how} told apart without a model."
    return f"{kept} {figures}. {end}"


def _sets(made: OneLength) -> list[dict[str, Any]]:
    rows = []
    for built in made.built:
        members = int(built.texts["member"].sum())
        rows.append(
            {
                "length": made.length,
                "setting": built.setting,
                "members": members,
                "nonmembers": built.texts.height - members,
                "before": _strongest(made.tests, "original", "before", "the set"),
                "after": _strongest(made.tests, built.setting, "after", "the set"),
                "outside": _strongest(made.tests, built.setting, "after", "held out"),
                "upper": built.upper,
                "verdict": built.verdict,
            }
        )
    return rows


def _strongest(
    tests: Sequence[dict[str, Any]], setting: str, stage: str, learnt_from: str
) -> dict[str, Any] | None:
    wanted = {"setting": setting, "stage": stage, "learnt_from": learnt_from}
    found = [
        {name: row[name] for name in ("classifier", "roc_auc", "low", "high")}
        for row in tests
        if row.items() >= wanted.items() and row.get("roc_auc") is not None
    ]
    return max(found, key=lambda row: row["high"], default=None)


def _figure(row: dict[str, Any]) -> str:
    return f"{row['roc_auc']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def as_markdown(summary: dict[str, Any]) -> str:
    """Write the summary as a page."""
    lines = ["# What these sets can carry", ""]
    for sentence in summary["sentences"]:
        lines += [sentence, ""]
    lines += [_row(_HEADS), _row(["---"] * len(_HEADS))]
    for row in summary["sets"]:
        figures = [row[name] and _figure(row[name]) for name in ("before", "after", "outside")]
        shown = [f"{row['setting']}-{row['length']}", row["members"], row["nonmembers"], *figures]
        lines.append(_row([*shown, row["verdict"]]))
    lines += ["", _LEGEND, ""]
    lines += [_row(["length", "thrown away because", "documents"]), _row(["---"] * 3)]
    for row in summary["thrown_away"]:
        lines.append(_row([row["length"] or "all", row["reason"], row["len"]]))
    return "\n".join([*lines, ""])


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join("-" if cell is None else str(cell) for cell in cells) + " |"
