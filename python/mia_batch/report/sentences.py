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


def blind_row(findings: pl.DataFrame, subject: str) -> dict[str, Any] | None:
    """Find what the blind baseline made of a label, with the ``strongest`` classifier."""
    of = findings.filter(check="blind_baseline", subject=subject)
    if of.is_empty():
        return None
    row = of.filter(statistic="roc_auc").row(0, named=True)
    names = of.filter(statistic="strongest")["verdict"]
    row["strongest"] = names[0] if len(names) else None
    if row["value"] is not None:
        row["found"] = f"AUC {row['value']:.2f} by {names[0]}, p = {row['p_value']:.3f}"
    return row


def excluded(above: float | None) -> str:
    """Say which differences are excluded: those of a higher AUC, None and 1.00 exclude none."""
    limit = f"{1 if above is None else above:.2f}"
    if limit == "1.00":
        return "too few texts to exclude any difference"
    return f"differences above AUC {limit} are excluded"


def exchangeability_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say how unlike targets and non-members can be; never that they are exchangeable."""
    row = blind_row(findings, "targets")
    if row is None:
        return
    yield (
        "Classifiers that see only the texts do not tell targets from non-members: an AUC above "
        f"{row['high']:.2f} is ruled out with 95 % confidence (0.50 is guessing)."
    )


def gate_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say why comparisons with non-members are withheld, or in doubt."""
    verdict, row = gate_verdict(findings), blind_row(findings, "targets")
    if verdict is None or row is None:
        return
    sets = "the audited texts and the comparison texts"
    holds = "what follows holds only if they differ in nothing but training"
    if verdict == "withheld":
        yield (
            f"No answer: {sets} can be told apart without the model ({row['found']}), so a high "
            "score may come from what else they differ in. p-values, lists, bounds and estimates "
            "are withheld. Give comparison texts of the same kind and time (mia-batch build-set "
            "matches them), or --exploratory to print the numbers, marked as such."
        )
    elif verdict == "weighted":
        yield (
            f"The answer rests on weights: {sets} can be told apart without the model "
            f"({row['found']}). Bounds and estimates, which would not be weighted, are withheld."
        )
    elif verdict == "exploratory":
        yield (
            f"Exploratory: {sets} can be told apart without the model ({row['found']}), so what "
            "follows may come from what else they differ in, and is no evidence of training."
        )
    elif verdict == "doubtful" and row["verdict"] is None:
        yield f"Nobody checked whether {sets} differ ({row['reason']}): {holds}."
    elif verdict == "doubtful":
        yield (
            f"Whether {sets} can be told apart without the model is undecided (an AUC up to "
            f"{row['high']:.2f} is not excluded): {holds}."
        )


def duplicates_sentence(
    findings: pl.DataFrame, subject: str, names: tuple[str, str]
) -> Iterator[str]:
    """Count texts of each set that stand in the other; nothing where there are none."""
    found = findings.filter(check="duplicates")
    sets = [
        dict(found.filter(subject=name).select("statistic", "value").iter_rows())
        for name in (subject, f"not {subject}")
    ]
    if not sum(of.get("n_concerned", 0) for of in sets):
        return
    examples = found.filter(subject=subject, statistic="example")["reason"]
    first, second = (_of_set(of, name) for of, name in zip(sets, names, strict=True))
    yield (
        "Near-duplicates (a run of 13 words or 70% of the runs of 8 words are in the other set): "
        f"{first}, {second}; {examples[0]}."
    )


def _of_set(counts: dict[str, Any], name: str) -> str:
    if counts["share"] is None:
        return f"no {name} of 8 words to compare"
    more = counts["n_left_out"]
    left_out = f" ({more:,.0f} more not compared)" if more else ""
    of = f"{counts['n_concerned']:,.0f} of {counts['n_compared']:,.0f} {name}"
    return f"{of}, {counts['share']:.1%}{left_out}"


def copies_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Warn of copies that count as independent; nothing where they are few."""
    rows = findings.filter(check="duplicates", subject="texts").rows(named=True)
    found = {row["statistic"]: row for row in rows}
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
    """Name the models that predict the texts no better than chance."""
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
    )["subject"].to_list()
    if unsure:
        yield (
            f"The endpoint takes no neutral value of {', '.join(unsure)}: what it sets itself may "
            "change every answer, and a model asked elsewhere may answer otherwise."
        )
    for view, rows in findings.filter(check="answers").group_by("subject", maintain_order=True):
        counts = dict(rows.select("statistic", "value").iter_rows())
        n_cut = counts.pop("cut")
        if counts.keys() == {"text"}:
            continue
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
        row = {r["statistic"]: r for r in found.filter(subject=name).rows(named=True)}
        reason = row["n_unscored"]["reason"]
        mostly = f"; mostly: {reason}" if reason else ""
        parts.append(
            f"{row['n_unscored']['value']:,.0f} of {row['n_texts']['value']:,.0f} {name} "
            f"({row['share']['value']:.1%}{mostly})"
        )
    yield (
        f"Members and non-members do not lack scores alike: no score by {listed(most)} for "
        f"{' and '.join(parts)}.{too} AUC and other metrics then describe a selected subset, and "
        f"may show how it was selected instead of memory. {again} such texts out of both classes "
        "by a rule that does not ask the model, or rest the answer on an attack that scores both."
    )


def listed(names: Sequence[str], most: int = _NAMES_SHOWN) -> str:
    """Name the first ones, and count the others."""
    shown = ", ".join(names[:most])
    more = len(names) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def label_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say whether labels can be told apart without the model."""
    blind = blind_row(findings, "members")
    if blind is not None:
        yield _blind_warning(blind) or (
            f"These labels could not be told apart without the model: {excluded(blind['high'])}."
        )


def labelled_sentences(
    metrics: pl.DataFrame, findings: pl.DataFrame, primary: str
) -> Iterator[str]:
    """Say what labels show; nothing where labels are not of both classes."""
    blind = blind_row(findings, "members")
    if blind is None:
        return
    warning = _blind_warning(blind)
    figures = metrics.filter(slice="all", attack=primary)
    for row in figures.filter(metric="roc_auc").iter_rows(named=True):
        if row["value"] is not None:
            yield f"{primary}: AUC {_figure(row)}."
    leads = figures.filter(
        pl.col("versus") == pl.lit(blind["strongest"], pl.String), metric="roc_auc_difference"
    )
    for row in leads.iter_rows(named=True):
        if row["value"] is not None:
            strongest = blind["strongest"]
            yield f"{primary} less {strongest}, which never sees the model: {_figure(row)}."
    quintiles = metrics.filter(
        pl.col("slice").str.starts_with("blind quintile"), metric="roc_auc", attack=primary
    )
    if warning and quintiles.height:
        values = ["-" if value is None else f"{value:.2f}" for value in quintiles["value"]]
        yield (
            f"{primary}: AUC within quintiles of the score of {blind['strongest']}: "
            f"{', '.join(values)}."
        )
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


def _blind_warning(row: dict[str, Any]) -> str | None:
    end = "attack figures are not evidence of memory"
    if row["verdict"] is None:
        return (
            "Whether these labels can be told apart without the model is unknown "
            f"({row['reason']}): attack figures alone are no evidence of memory."
        )
    if row["verdict"] == "separable":
        return f"These labels can be told apart without the model ({row['found']}): {end}."
    if row["verdict"] == "undecided":
        return (
            "Whether these labels can be told apart without the model is undecided (an AUC up to "
            f"{row['high']:.2f} is not excluded): what an attack is worth is its lead over "
            f"{row['strongest']}, which never sees the model."
        )
    return None


def _figure(row: dict[str, Any]) -> str:
    if row["low"] is None or row["high"] is None:
        return f"{row['value']:.3f}, without an interval ({row['reason']})"
    return f"{row['value']:.3f}, 95 % interval {row['low']:.3f} to {row['high']:.3f}"


_COLOUR = "#2a6f97"
_TEACHERS = (
    ("known members", "other texts"),
    ("calibration members", "calibration non-members"),
)


def draw_differences(comparisons: pl.DataFrame) -> str:
    """Draw the mean difference of each run to the first, by set, with its interval, as SVG."""
    from vl_convert import vegalite_to_svg  # what altair calls, which takes a second to load

    rows = comparisons.filter(statistic="mean_difference", level="set").select(
        pl.col("set").cast(pl.String).str.replace("_", "-"),
        "run",
        pl.col("value", "low", "high").round(6),
    )
    versus = comparisons["versus"].drop_nulls()[0]
    title = f"mean difference of {comparisons['attack'][0]} to {versus}"
    nominal = {"type": "nominal", "title": None, "sort": None}
    number = {"type": "quantitative"}
    run = {"field": "run", "axis": {"labelLimit": 300}, **nominal}
    zero = {"type": "rule", "color": "#888", "strokeDash": [4, 3]}
    line = {"type": "rule", "color": _COLOUR, "strokeWidth": 2}
    point = {"type": "point", "color": _COLOUR, "filled": True, "size": 60, "opacity": 1}
    limits = {"x": {"field": "low", "title": title, **number}, "x2": {"field": "high"}, "y": run}
    value = {"x": {"field": "value", **number}, "y": run}
    layers = ((zero, {"x": {"datum": 0}}), (line, limits), (point, value))
    drawn = [{"mark": mark, "encoding": encoding} for mark, encoding in layers]
    chart = {
        "data": {"values": rows.to_dicts()},
        "facet": {"row": {"field": "set", **nominal}},
        "spec": {"layer": drawn, "width": 480, "height": {"step": 28}},
    }
    return vegalite_to_svg(chart)


def set_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what the combination was learned from, and what dataset inference and CoDeC show."""
    yield from _combination(findings.filter(check="combination"))
    yield from _dataset_inference(
        findings.filter(pl.col("subject").is_null(), check="dataset_inference")
    )
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


def _combination(rows: pl.DataFrame) -> Iterator[str]:
    if rows.is_empty():
        return
    n, verdict = dict(rows.select("statistic", "value").iter_rows()), rows["verdict"][0]
    if verdict == "too_few":
        yield (
            "combination_v1 has no scores: there are texts of fewer than 10 groups of each class "
            "to learn from."
        )
        return
    known, others = _TEACHERS[verdict == "calibration"]
    yield (
        f"combination_v1 was learned from {n['n_members']:,.0f} {known} and "
        f"{n['n_others']:,.0f} {others}, for each text from those of other groups alone."
    )


def _dataset_inference(rows: pl.DataFrame) -> Iterator[str]:
    if rows.is_empty():
        return
    facts = {row["statistic"]: row for row in rows.iter_rows(named=True)}
    what, found = "All attacks together (dataset inference", facts["permutation"]
    if found["p_value"] is None:
        yield f"{what}): no p-value ({found['reason']})."
        return
    n = {name: facts[name]["value"] for name in ("n_learned", "n_targets", "n_null")}
    yield (
        f"{what}, learned on {n['n_learned']:,.0f} groups, tested on {n['n_targets']:,.0f} others "
        f"against {n['n_null']:,.0f} outside the training data): p = {found['p_value']:.3g}, "
        "exploratory; by the paper's own form, which takes texts of a group for independent, "
        f"p = {facts['paper']['p_value']:.3g}. Both suppose that the sets differ in nothing but "
        "training."
    )
