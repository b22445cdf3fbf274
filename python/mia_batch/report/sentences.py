"""Sentences about checks, labelled runs and sets, from rows of findings and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.inference.findings import gate_verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_NAMES_SHOWN = 3
_ACTING = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
_ANSWERS = {
    "text": "texts",
    "thought_removed": "texts after thoughts, which were taken off",
    "prompt_removed": "texts after the prompt, which was taken off",
    "prompt_repeated": "that begin with the prompt",
    "thinking": "thoughts without an answer",
    "refusal": "refusals",
    "not_asked": "not asked for",
}


def facts(findings: pl.DataFrame, check: str, **equal: str) -> dict[str, dict[str, Any]]:
    """Find the rows of a check by statistic, of which each has one."""
    rows = findings.filter(check=check, **equal).iter_rows(named=True)
    return {row["statistic"]: row for row in rows}


def listed(names: Sequence[str], most: int = _NAMES_SHOWN) -> str:
    """Name the first ones, and count the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


# Whether texts give themselves away without the model.

_GATES = {
    "withheld": (
        "No answer: the audited texts and the comparison texts can be told apart without the model "
        "({found}), so a high score may come from what else they differ in. p-values, lists, "
        "bounds and estimates are withheld. Give comparison texts of the same kind and time "
        "(mia-batch build-set matches them), or --exploratory to print the numbers, marked as such."
    ),
    "weighted": (
        "The answer rests on weights: the audited texts and the comparison texts can be told apart "
        "without the model ({found}). Bounds and estimates, which would not be weighted, are "
        "withheld."
    ),
    "exploratory": (
        "Exploratory: the audited texts and the comparison texts can be told apart without the "
        "model ({found}), so what follows may come from what else they differ in, and is no "
        "evidence of training."
    ),
    "not checked": (
        "Nobody checked whether the audited texts and the comparison texts differ ({reason}): what "
        "follows holds only if they differ in nothing but training."
    ),
    "doubtful": (
        "Whether the audited texts and the comparison texts can be told apart without the model is "
        "undecided (an AUC up to {high:.2f} is not excluded): what follows holds only if they "
        "differ in nothing but training."
    ),
}
"""Why comparisons with non-members are withheld, or in doubt, by the verdict of the gate."""

_LABELS = {
    None: (
        "Whether these labels can be told apart without the model is unknown ({reason}): attack "
        "figures alone are no evidence of memory."
    ),
    "separable": (
        "These labels can be told apart without the model ({found}): attack figures are not "
        "evidence of memory."
    ),
    "undecided": (
        "Whether these labels can be told apart without the model is undecided (an AUC up to "
        "{high:.2f} is not excluded): what an attack is worth is its lead over {strongest}, which "
        "never sees the model."
    ),
    "not separable": "These labels could not be told apart without the model: {excluded}.",
}
"""What the blind baseline makes of labels, by its verdict."""


def blind_row(findings: pl.DataFrame, subject: str) -> dict[str, Any] | None:
    """Find what the blind baseline made of a label, with the ``strongest`` classifier."""
    of = facts(findings, "blind_baseline", subject=subject)
    if not of:
        return None
    row, strongest = of["roc_auc"], of.get("strongest", {}).get("verdict")
    said = {"strongest": strongest, "excluded": excluded(row["high"])}
    if row["value"] is not None:
        said["found"] = f"AUC {row['value']:.2f} by {strongest}, p = {row['p_value']:.3f}"
    return row | said


def excluded(above: float | None) -> str:
    """Say which differences are excluded: those of a higher AUC, None and 1.00 exclude none."""
    limit = f"{1 if above is None else above:.2f}"
    if limit == "1.00":
        return "too few texts to exclude any difference"
    return f"differences above AUC {limit} are excluded"


def gate_sentence(findings: pl.DataFrame) -> Iterator[str]:
    verdict, row = gate_verdict(findings), blind_row(findings, "targets")
    if row is not None and verdict in _GATES:
        unknown = verdict == "doubtful" and row["verdict"] is None
        yield _GATES["not checked" if unknown else verdict].format(**row)


def label_sentence(findings: pl.DataFrame) -> Iterator[str]:
    if (row := blind_row(findings, "members")) is not None:
        yield _LABELS[row["verdict"]].format(**row)


def exchangeability_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say how unlike targets and non-members can be; never that they are exchangeable."""
    if (row := blind_row(findings, "targets")) is not None:
        yield (
            "Classifiers that see only the texts do not tell targets from non-members: an AUC "
            f"above {row['high']:.2f} is ruled out with 95 % confidence (0.50 is guessing)."
        )


# Copies, books, other runs, answers.


def duplicates_sentence(
    findings: pl.DataFrame, subject: str, names: tuple[str, str]
) -> Iterator[str]:
    """Count texts of each set that stand in the other; nothing where there are none."""
    found, both = findings.filter(check="duplicates"), []
    for side, name in zip((subject, f"not {subject}"), names, strict=True):
        of = dict(found.filter(subject=side).select("statistic", "value").iter_rows())
        both.append((of, name))
    if not sum(of.get("n_concerned", 0) for of, _ in both):
        return
    said = []
    for of, name in both:
        if of["share"] is None:
            said.append(f"no {name} of 8 words to compare")
            continue
        more = of["n_left_out"]
        left_out = f" ({more:,.0f} more not compared)" if more else ""
        counts = f"{of['n_concerned']:,.0f} of {of['n_compared']:,.0f} {name}"
        said.append(f"{counts}, {of['share']:.1%}{left_out}")
    example = found.filter(subject=subject, statistic="example")["reason"][0]
    yield (
        "Near-duplicates (a run of 13 words or 70% of the runs of 8 words are in the other set): "
        f"{', '.join(said)}; {example}."
    )


def copies_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Warn of copies that count as independent; nothing where they are few."""
    found = facts(findings, "duplicates", subject="texts")
    if found["n_copies"]["verdict"] == "many":
        yield (
            f"{found['n_copies']['value']:,.0f} of {found['n_texts']['value']:,.0f} texts stand in "
            "another group or document, too, word for word: their errors move together, but "
            "intervals and p-values count them as independent. Give copies the same group, or keep "
            "one of each."
        )


def undeclared_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say which texts look like parts of one book although no group says so."""
    found = findings.filter(pl.col("verdict") != "apart", check="undeclared_books")
    for row in found.iter_rows(named=True):
        one = row["verdict"] == "one_group"
        count = "They count as one group" if one else "Each counts as an independent text"
        yield (
            f"The {row['subject']} look like parts of one book, or of a few: neighbouring rows "
            f"are {row['value']:.2f} times as alike as rows at random (p = {row['p_value']:.3g}). "
            f"{count}: give a column `group` that says which belong "
            "together, with a value of its own for each text that stands alone."
        )


def earlier_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Name the other runs of the same texts and model, which no p-value counts."""
    rows = findings.filter(check="earlier_runs", statistic="primary").rows(named=True)
    if not rows:
        return
    names = [f"{row['subject']} (primary {row['verdict']})" for row in rows]
    n, (runs, are) = len(rows), ("run", "is") if len(rows) == 1 else ("runs", "are")
    yield (
        f"{n:,} other {runs} of these texts and this model {are} next to this one: "
        f"{listed(names)}. Each was another try, and p-values and q-values count none of them: "
        f"multiplied by {n + 1:,} (Bonferroni) they do."
    )


def chance_sentences(findings: pl.DataFrame) -> Iterator[str]:
    for row in findings.filter(check="chance", verdict="no_better").iter_rows(named=True):
        yield (
            f"The {row['subject']} model predicts these texts no better than chance "
            f"({row['value']:.1f} nats a token, chance {row['high']:.1f}): its scores mean nothing "
            "unless the texts are random themselves. Check that it is trained, and its tokenizer."
        )


def answers_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what kinds of answers came where not all were texts, and what may have acted on them."""
    unsure = findings.filter(
        pl.col("verdict") != "honoured", pl.col("subject").is_in(_ACTING), check="endpoint"
    )["subject"]
    if len(unsure):
        yield (
            f"The endpoint takes no neutral value of {', '.join(unsure)}: what it sets itself may "
            "change every answer, and a model asked elsewhere may answer otherwise."
        )
    for view, rows in findings.filter(check="answers").group_by("subject", maintain_order=True):
        counts = dict(rows.select("statistic", "value").iter_rows())
        n_cut = counts.pop("cut")
        if counts.keys() != {"text"}:
            parts = [f"{n:,.0f} {_ANSWERS.get(kind, kind)}" for kind, n in counts.items()]
            cut = f"; {n_cut:,.0f} were cut before the reference's length" if n_cut else ""
            yield f"Of {sum(counts.values()):,.0f} samples ({view[0]}): {', '.join(parts)}{cut}."
    for kind, verb in (("filtered", "The provider filtered"), ("refusal", "The model refused")):
        found = findings.filter(check="held_back", statistic=kind)
        for row in found.iter_rows(named=True):
            yield (
                f"{verb} answers about {row['subject']} and non-members unequally often: shares "
                f"differ by {row['value']:.1%} (p = {row['p_value']:.3g}). What is held back is "
                "evidence by itself, and scores are those of what was let through."
            )


# Labelled runs.


def uneven_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Warn of attacks that score one class less often than the other."""
    found = findings.filter(check="uneven_scores")
    if found.is_empty():
        return
    most, others = (
        found.filter(verdict=verdict)["subject"].to_list() for verdict in ("most", "more")
    )
    too = f" Uneven, too: {listed(others)}." if others else ""
    kinds = findings.filter(check="answers")["statistic"]
    mends = kinds.is_empty() or "failed" in kinds  # classed answers would be the same again
    again = "Ask again for what failed (--retry-failed), leave" if mends else "Leave"
    parts = []
    for name in ("members", "non-members"):
        of = facts(findings, "uneven_scores", subject=name)
        missing, n, share = of["n_unscored"], of["n_texts"]["value"], of["share"]["value"]
        mostly = f"; mostly: {missing['reason']}" if missing["reason"] else ""
        parts.append(f"{missing['value']:,.0f} of {n:,.0f} {name} ({share:.1%}{mostly})")
    yield (
        f"Members and non-members do not lack scores alike: no score by {listed(most)} for "
        f"{' and '.join(parts)}.{too} AUC and other metrics then describe a selected subset, and "
        f"may show how it was selected instead of memory. {again} such texts out of both classes "
        "by a rule that does not ask the model, or rest the answer on an attack that scores both."
    )


def labelled_sentences(
    metrics: pl.DataFrame, findings: pl.DataFrame, primary: str
) -> Iterator[str]:
    """Say what labels show; nothing where labels are not of both classes."""
    blind = blind_row(findings, "members")
    if blind is None:
        return
    strongest = blind["strongest"]
    figures = metrics.filter(pl.col("value").is_not_null(), slice="all", attack=primary)
    for row in figures.filter(metric="roc_auc").iter_rows(named=True):
        yield f"{primary}: AUC {_figure(row)}."
    versus = pl.col("versus") == pl.lit(strongest, pl.String)
    for row in figures.filter(versus, metric="roc_auc_difference").iter_rows(named=True):
        yield f"{primary} less {strongest}, which never sees the model: {_figure(row)}."
    quintiles = metrics.filter(
        pl.col("slice").str.starts_with("blind quintile"), metric="roc_auc", attack=primary
    )["value"]
    if blind["verdict"] != "not separable" and len(quintiles):
        values = ", ".join("-" if value is None else f"{value:.2f}" for value in quintiles)
        yield f"{primary}: AUC within quintiles of the score of {strongest}: {values}."
    bounds = metrics.filter(pl.col("low").is_not_null(), metric="roc_auc_simultaneous")
    if bounds.height > 1:
        best = bounds.sort("low", descending=True).row(0, named=True)
        where = "" if best["slice"] == "all" else f" on {best['slice']}"
        yield (
            f"Of {bounds.height:,} attacks and slices tried, {best['attack']}{where} has the "
            "highest lower bound that holds for all at once: AUC at least "
            f"{best['low']:.3f}."
        )
    yield from duplicates_sentence(findings, "members", ("members", "non-members"))


def _figure(row: dict[str, Any]) -> str:
    if row["low"] is None or row["high"] is None:
        return f"{row['value']:.3f}, without an interval ({row['reason']})"
    return f"{row['value']:.3f}, 95 % interval {row['low']:.3f} to {row['high']:.3f}"


# Sets: what the combination was learned from, what dataset inference and CoDeC show.

_COMBINATIONS = {
    "too_few": (
        "combination_v1 has no scores: there are texts of fewer than 10 groups of each class to "
        "learn from."
    ),
    "calibration": (
        "combination_v1 was learned from {n_members:,.0f} calibration members and {n_others:,.0f} "
        "calibration non-members, for each text from those of other groups alone."
    ),
    "all": (
        "combination_v1 was learned from {n_members:,.0f} known members and {n_others:,.0f} other "
        "texts, for each text from those of other groups alone."
    ),
}


def set_sentences(findings: pl.DataFrame) -> Iterator[str]:
    learned = findings.filter(check="combination")
    if learned.height:
        counts = dict(learned.select("statistic", "value").iter_rows())
        yield _COMBINATIONS.get(learned["verdict"][0], _COMBINATIONS["all"]).format(**counts)
    own = findings.filter(pl.col("subject").is_null())
    if of := facts(own, "dataset_inference"):
        yield _dataset_inference(of)
    shares = []
    for row in findings.filter(check="codec").drop_nulls("value").iter_rows(named=True):
        interval = f"no interval: {row['reason']}"
        if row["low"] is not None:
            interval = f"{row['low']:.0%} to {row['high']:.0%}"
        shares.append(f"{row['value']:.0%} of the {row['subject']} ({interval})")
    if shares:
        yield (
            f"Less likely after the shots than alone (CoDeC): {' and '.join(shares)}, 95 % "
            "intervals. Only a difference of the two may come from training."
        )


def _dataset_inference(of: dict[str, dict[str, Any]]) -> str:
    p, reason = of["permutation"]["p_value"], of["permutation"]["reason"]
    if p is None:
        return f"All attacks together (dataset inference): no p-value ({reason})."
    n = {name: of[name]["value"] for name in ("n_learned", "n_targets", "n_null")}
    return (
        f"All attacks together (dataset inference, learned on {n['n_learned']:,.0f} groups, tested "
        f"on {n['n_targets']:,.0f} others against {n['n_null']:,.0f} outside the training data): "
        f"p = {p:.3g}, exploratory; by the paper's own form, which takes texts of a group for "
        f"independent, p = {of['paper']['p_value']:.3g}. Both suppose that the sets differ in "
        "nothing but training."
    )
