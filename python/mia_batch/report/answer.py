"""The answer of a run: one sentence, its books by strength of evidence, its attacks, best first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from mia_batch.attacks import Attack
from mia_batch.inference.attempts import Attempts
from mia_batch.inference.findings import (
    change_of_service,
    gate_verdict,
    is_closed,
    why_not_continued,
)
from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.report.sentences import RunResults, blind_row, facts, listed

ANSWERS = {  # what is said of a book, by the verdict of the roll-up, the strongest evidence first
    "comes_out": "comes out word for word",
    "known_better": "stands out",
    "above_all": "above all comparison texts, which are too few",
    "nothing_found": "nothing found",
    "cannot_tell": "cannot be judged",
}
STRIP = 24  # stretches of a book's strip
_SHADES = "▁▂▃▄▅▆▇█"
_NAMED = 5
_SHORT_REASON = 160  # characters


def answer(known: RunResults, rollup: pl.DataFrame, *, books: bool) -> str:
    """Answer the question that the run was made for in one sentence, or begin with ``No answer``.

    What makes an answer doubtful follows it in `mia_batch.report.sentences`. The
    ``rollup`` is empty where no document has two windows; ``books``: documents are
    called so.
    """
    broken = known.findings.filter(
        check="chance", subject="target", verdict="no_better"
    )
    if broken.height:
        why = (
            "the model predicts these texts no better than chance, so its scores mean"
            " nothing"
        )
        return f"No answer: {why}."
    if (no_text := why_not_continued(known.findings)) is not None:
        return f"No answer: {no_text}."
    if (change := change_of_service(known.findings)) is not None:
        return _of_changed(known, change, _answer(known, rollup, books=books))
    return _answer(known, rollup, books=books)


def _of_changed(known: RunResults, change: str, said: str) -> str:
    """Say first that the service changed; then what can be said all the same."""
    if gate_verdict(known.findings) == "exploratory":
        return f"{_capital(change)}; exploratory: {_small(said)}"
    if known.allows()["labels"] or said.lower().startswith("no answer"):
        return f"No answer: {change}."
    return f"{_capital(change)}: {_small(said)}"


def _answer(known: RunResults, rollup: pl.DataFrame, *, books: bool) -> str:
    allows, units = known.allows(), _units(rollup)
    if allows["labels"] and not allows["targets and non-members"]:
        said = _labelled(known)
    elif units.height:
        noun = "book" if books else str(units["level"][0])
        said = _of_units(known, units, noun, compared=allows["targets and non-members"])
    else:
        said = _of_texts(known, allows)
    if allows["comparison of targets"] and not said.startswith("No answer"):
        said = f"{said[:-1]}{_attempts(known.findings)}."
    if doubts := [*_doubts(known)]:
        said = f"{said[:-1]}; in doubt, because {' and '.join(doubts)}."
    departures = [*_departures(known.findings)]
    if departures and not said.startswith("No answer"):
        return f"{said[:-1]}; exploratory: {' and '.join(departures)}."
    return said


def _departures(findings: pl.DataFrame) -> Iterator[str]:
    """Say how the answer is another one than the one that was planned."""
    if {*findings.filter(check="plan")["verdict"]} & {"late", "changed"}:
        yield "this was asked for or changed after scores had been made"
    if "differs" in findings.filter(check="lodged")["verdict"]:
        yield "the audit differs from the plan lodged"


def _attempts(findings: pl.DataFrame) -> str:
    """Say how many attempts p-values and lists count; nothing where this is the only one."""
    n = findings.filter(check="earlier_runs", statistic="primary").height
    others = "1 other run" if n == 1 else f"{n:,} other runs"
    if not n:
        return ""
    factor = Attempts(n + 1).factor
    return (
        f"; {others} of these texts with this model counted: p and q are {factor:,}"
        " times as large"
    )


def _doubts(known: RunResults) -> Iterator[str]:
    """Say what else could explain that texts stand out; nothing where none are said to."""
    rows = known.findings
    counts = pl.col("check").is_in(["reported", "top"]), pl.col("value") > 0
    found = rows.filter(*counts, pl.col("statistic").is_in(["n_reported", "at_least"]))
    if known.plan.level != "collection" and found.is_empty():
        return
    if rows.filter(check="placebo", verdict="as_many").height:
        yield "the reference model, which cannot know these texts, gives as much"
    if gate_verdict(rows) in ("doubtful", "weighted"):
        yield "training may not be the only difference from the comparison texts"
    share = (
        facts(rows, "duplicates", subject="targets").get("share", {}).get("value") or 0
    )
    if share >= 0.05:
        yield f"{share:.0%} of the texts stand in the comparison texts, too"


def _labelled(known: RunResults) -> str:
    """Say whether the attack that was planned beats what the texts tell without the model."""
    primary, blind = known.plan.primary, blind_row(known.findings, "members") or {}
    all_texts = known.metrics.filter(slice="all", attack=primary)
    auc = next(all_texts.filter(metric="roc_auc").iter_rows(named=True), {})
    if (why_none := _why_no_area(primary, auc)) is not None:
        return why_none
    reached = f"{primary} tells members from non-members with AUC {_interval(auc)}"
    is_lead = pl.col("versus") == pl.lit(blind.get("strongest"), pl.String)
    leads = all_texts.filter(is_lead, metric="roc_auc_difference")
    lead = next(leads.iter_rows(named=True), {})
    if blind.get("verdict") == "separable":
        more = "" if lead.get("value") is None else f", {_interval(lead)} more"
        return (
            "No answer about memory: a classifier that never sees the model tells"
            f" members from non-members, too (AUC {blind['value']:.2f}), and {primary}"
            f" may see the same: its AUC is {_interval(auc)}{more}."
        )
    if lead.get("low") is None:
        if auc.get("low") is not None and auc["low"] <= 0.5:
            return f"No sign of memory: {reached}, which chance explains."
        reason = lead.get("reason") or blind.get("reason") or "there are too few texts"
        return (
            f"{_capital(reached)}; it is unknown whether that is memory, because it"
            " could not be compared with classifiers that never see the model"
            f" ({reason})."
        )
    than = "the best classifier that never sees the model"
    more = f"{_interval(lead)} more than {than}"
    if lead["low"] > 0:
        return f"The model remembers members: {reached}, {more}."
    if (best := _best_of_all(known, blind.get("high"))) is not None:
        return f"The model remembers members, by {best}; the primary attack {reached}."
    if lead["value"] < 0:
        turned = {"value": -lead["value"], "low": -lead["high"], "high": -lead["low"]}
        return f"No sign of memory: {reached}, {_interval(turned)} less than {than}."
    return f"No sign of memory: {reached}, {more}, which chance explains."


def _why_no_area(primary: str, auc: Mapping[str, Any]) -> str | None:
    """Say why the area of an attack means nothing: it has none, or points the other way."""
    if auc.get("value") is None:
        reason = auc.get("reason") or "no text has a score"
        return f"No answer: {primary} has no AUC ({reason})."
    if auc.get("high") is None or auc["high"] >= 0.5:
        return None
    return (
        f"No answer: {primary} points the other way, AUC {_interval(auc)}: members"
        " score lower than non-members. Are the labels swapped? If they are right,"
        " this is no sign of memory."
    )


def _best_of_all(known: RunResults, blind_at_most: float | None) -> str | None:
    """Name the attack that beats what texts tell alone even when all that were tried count."""
    bounds = known.metrics.filter(
        pl.col("low").is_not_null(), metric="roc_auc_simultaneous"
    )
    best = (
        bounds.filter(slice="all")
        .sort("low", descending=True, maintain_order=True)
        .head(1)
    )
    if (
        best.is_empty()
        or blind_at_most is None
        or best["low"][0] <= max(blind_at_most, 0.5)
    ):
        return None
    return (
        f"{best['attack'][0]}: AUC at least {best['low'][0]:.2f} (95 % confidence,"
        f" corrected for trying {bounds.height:,} attacks and slices), where"
        f" classifiers that never see the model have at most {blind_at_most:.2f}"
    )


def _units(rollup: pl.DataFrame) -> pl.DataFrame:
    """Take groups, and the documents that are in none of them; without groups the documents."""
    if rollup.is_empty():
        return rollup
    groups, documents = rollup.filter(level="group"), rollup.filter(level="document")
    if groups.height and "group" in rollup.columns:
        within = pl.col("group").is_in(groups["key"].implode())
        documents = documents.filter(~within.fill_null(value=False))
    return pl.concat([groups, documents])


def _of_units(
    known: RunResults, units: pl.DataFrame, noun: str, *, compared: bool
) -> str:
    """Count books by their answer; name those that come out or stand out."""
    n, total = dict(units["verdict"].value_counts().iter_rows()), units.height
    one, parts = f"the {noun}" if total == 1 else None, []
    longest = units.select(
        pl.max_horizontal("longest_words", "extracted_words").max()
    ).item()
    beyond = {
        "comes_out": (
            f"come{{}} out word for word, at most {longest or 0:,} words in a row"
        )
    }
    if known.plan.level != "collection":
        beyond["known_better"] = _beyond(known, noun)
    for verdict, out in beyond.items():
        if count := n.get(verdict, 0):
            names = listed(_titles(_by_strength(units.filter(verdict=verdict))), _NAMED)
            parts.append(
                f"{one or f'{count:,}'} {out.format('s' * (count == 1))} ({names})"
            )
    sampled = units["longest_words"].count() + units["extracted_words"].count() > 0
    highest = facts(known.findings, "verbatim", subject="targets").get("n_highest")
    none = (
        f"{one} does not come out word for word"
        if one
        else "none comes out word for word"
    )
    if highest is not None:
        windows = f"{highest['value']:,.0f} windows of highest scores"
        none = f"none of the {windows} comes out word for word"
    if canaries := known.allows()["canaries"]:
        parts.append(_of_collection(known, "controls", "the canaries"))
    if compared and is_closed(known.findings):
        apart = f"{noun}s and comparison {noun}s can be distinguished without the model"
        if gate_verdict(known.findings) == "changed":
            apart = "its scores are of no single model"
        none = (
            f"{none}, and there is no other answer:"
            if sampled
            else "there is no answer:"
        )
        others = "there is no other answer" if one else "the others have no answer"
        parts.append(f"{f'{others}, because' if parts else none} {apart}")
    elif compared and known.plan.level == "collection":
        parts.append(_of_collection(known, "non_members", f"the {noun}s together"))
    elif compared:
        parts += _top(known, noun) if not n.get("known_better") else []
        parts += _unnamed(known, units, noun, found=bool(parts))
    elif not canaries:
        left = total - n.get("comes_out", 0)
        parts += [] if parts or not sampled else [none]
        without = "cannot be judged without comparison texts (add --non-members FOLDER)"
        ranked = _titles(_by_strength(units.filter(pl.col("verdict") != "comes_out")))[
            :3
        ]
        order = f"; of these, {ranked[0]} scores highest" if left > 1 else ""
        if left > 3:
            order = (
                f"; of these, {ranked[0]}, {ranked[1]} and {ranked[2]} score highest"
            )
        who = f"{left:,}" if not one else "it" if parts else one
        parts += [f"{who} {without}{order}"] if left else []
    return _capital(f"{'' if one else f'Of {total:,} {noun}s, '}{'; '.join(parts)}.")


def _beyond(known: RunResults, noun: str) -> str:
    """Say beyond what the ones that are named stand out, and how false such lists are."""
    of = facts(known.findings, "reported")
    n, q = of.get("n_null", {}).get("value"), known.plan.q
    exploratory = (
        gate_verdict(known.findings) == "exploratory" or known.plan.level != "group"
    )
    against = f" from {n:,.0f} comparison {noun}s" if n and not exploratory else ""
    late = ", exploratory" if exploratory else ""
    false = f"at most {100 * q:g} % are false on average"
    return f"stand{{}} out{against}, in a list of which {false}{late}"


def _top(known: RunResults, noun: str) -> list[str]:
    """Say how many of the highest stand out at least, where none can be named."""
    of = facts(known.findings, "top")
    if not of or not (fewest := of["at_least"]["value"]):
        return []
    highest, sure = of["of_top"]["value"], of["confidence"]["value"]
    noun = "author" if of["at_least"]["subject"] == "author" else noun
    which = f"at least {fewest:,.0f} of the {highest:,.0f} highest-scoring {noun}s"
    if highest == 1:
        which = f"the highest-scoring {noun}"
    verb = _verb("stand", fewest)
    return [f"{which} {verb} out beyond chance ({100 * sure:g} % confidence)"]


def _unnamed(
    known: RunResults, units: pl.DataFrame, noun: str, *, found: bool
) -> list[str]:
    n, top = (
        dict(units["verdict"].value_counts().iter_rows()),
        facts(known.findings, "top"),
    )
    one, parts = f"the {noun}" if units.height == 1 else None, []
    if above := n.get("above_all", 0):
        who = f"{one or f'{above:,}'} {_verb('score', above)}"
        parts.append(f"{who} above every comparison {noun}, but these are too few")
    if unknown := n.get("cannot_tell", 0):
        reasons = (
            units.filter(verdict="cannot_tell")["reason"].drop_nulls().mode().sort()
        )
        reason = f": {reasons[0][:_SHORT_REASON]}" if len(reasons) else ""
        parts.append(f"{one or f'{unknown:,}'} cannot be judged{reason}")
    is_top = bool(top) and top["at_least"]["value"] and not n.get("known_better")
    is_top = is_top and top["at_least"]["subject"] != "author"
    others = units.height - int(top["of_top"]["value"] if is_top else 0)
    if nothing := min(n.get("nothing_found", 0), others):
        if not (found or parts):
            if one:
                return [
                    f"{one} does not stand out, which does not show that it was not"
                    " learnt"
                ]
            return ["none stands out, which does not show that they were not learnt"]
        parts.append(
            f"nothing was found on {'the other ' if is_top else ''}{nothing:,}"
        )
    return parts


def _of_texts(known: RunResults, allows: Mapping[str, bool]) -> str:
    plan, level = known.plan, known.plan.level
    verbatim, parts = facts(known.findings, "verbatim", subject="targets"), []
    if verbatim and (n := verbatim["n_verbatim"]["value"]):
        texts = f"{verbatim['n_texts']['value']:,.0f} texts"
        texts += " of highest scores" if "n_highest" in verbatim else ""
        parts.append(f"{n:,.0f} of {texts} {_verb('come', n)} out word for word")
    if allows["comparison of targets"] and level == "collection":
        parts.append(_of_collection(known, "non_members", "the texts together"))
    elif allows["comparison of targets"] and (of := facts(known.findings, "reported")):
        n, total = of["n_reported"]["value"], of["n_tests"]["value"]
        against = f"{of['n_null']['value'] or 0:,.0f} comparison texts"
        kind = "text" if level == "target" else "group"
        out = f"of {total:,.0f} {kind}s {_verb('stand', n or 1)} out from {against}"
        false = f"in a list of which at most {100 * plan.q:g} % are false on average"
        none = f"none {out}, which does not show that they were not learnt"
        if top := _top(known, kind):
            none = f"{top[0]}; none of {total:,.0f} {kind}s can be named {false}"
        parts.append(f"{n:,.0f} {out}, {false}" if n else none)
    elif allows["targets and non-members"]:
        parts.append("no other answer" if parts else "no answer")
        apart = "texts and comparison texts can be distinguished without the model"
        if gate_verdict(known.findings) == "changed":
            apart = "the scores are of no single model"
        parts[-1] += f", because {apart}"
    if allows["canaries"]:
        parts.append(_of_collection(known, "controls", "the canaries"))
    if not parts and allows["any comparison"]:
        parts.append("no answer: all texts are known not to be in the training data")
    elif not parts or allows["targets alone"]:
        parts.append(
            "scores only rank your texts; add --non-members FOLDER to get an answer"
        )
    return f"{_capital('; '.join(parts))}."


def _of_collection(known: RunResults, versus: str, what: str) -> str:
    asked = {"attack": known.plan.primary, "level": "collection", "versus": versus}
    rows = known.verdicts.filter(pl.col("estimate").is_null(), **asked)
    what = f"{what}, by {known.plan.primary}"
    row = next(rows.head(1).collect(engine="streaming").iter_rows(named=True), {})
    if row.get("p_value") is None:
        return f"no answer about {what} ({row.get('reason') or 'nothing was compared'})"
    p = row["p_value"]
    shown = (
        "score higher than chance explains"
        if p <= known.plan.q
        else "show no sign of memory"
    )
    return f"{what}, {shown} (p = {p:.3g})"


def _verb(verb: str, n: float) -> str:
    return verb + "s" * (n == 1)


def _capital(text: str) -> str:
    """Begin a sentence, unless it begins with a name that has digits or underscores."""
    first = text.split(" ", 1)[0]
    return text if "_" in first else text[:1].upper() + text[1:]


def _small(text: str) -> str:
    """Go on with what began a sentence, unless it begins with a name."""
    first = text.split(" ", 1)[0]
    return text if "_" in first else text[:1].lower() + text[1:]


def _interval(row: Mapping[str, Any]) -> str:
    value = f"{row['value']:.2f}"
    if row.get("low") is None or row.get("high") is None:
        return f"{value} (no interval: {row['reason']})" if row.get("reason") else value
    return f"{value} (95 % CI {row['low']:.2f} to {row['high']:.2f})"


# The table of books.


def audited_books(tables: Mapping[str, pl.LazyFrame]) -> pl.DataFrame:
    """Lay out what was audited, the strongest evidence first; comparison documents follow.

    A row for each group, and each document that is in none, else each document:
    ``level`` (``outside`` for comparison documents), ``key``, ``title``, ``n_asked``
    and ``n_windows``, ``strip`` (24 numbers in [0, 1] from first to last page: the
    share of other documents' comparison texts that score lower; null where nothing was
    asked), ``verdict`` and ``answer``, why there is no p-value (``reason``),
    ``p_value``, ``q_value``, ``share``, ``share_low`` and ``share_high`` (of windows
    that the model was trained on, 95 %), ``share_verbatim``, ``longest_words`` and
    ``longest_target_id`` (the longest run that an answer repeats). Null means not
    measured. Empty where no document has two windows.
    """
    rollup = (
        tables["rollup"].collect(engine="streaming")
        if "rollup" in tables
        else pl.DataFrame()
    )
    if rollup.is_empty():
        return pl.DataFrame(schema=_BOOKS)
    units = _by_strength(_units(rollup))
    rows = pl.concat([units, _by_strength(rollup.filter(level="outside"))])
    strips = _strips(tables["curves"]) if "curves" in tables else {}
    documents = rows.select(pl.when(pl.col("level") != "group").then("key")).to_series()
    rows = rows.with_columns(
        title=pl.Series(_titles(rows), dtype=pl.String),
        strip=pl.Series([strips.get(key) for key in documents], dtype=_BOOKS["strip"]),
        answer=pl.when(pl.col("level") != "outside").then(
            pl.col("verdict").cast(pl.String).replace_strict(ANSWERS)
        ),
        share="contamination",
        share_low="contamination_low",
        share_high="contamination_high",
        longest_words=pl.max_horizontal("longest_words", "extracted_words"),
    )
    return rows.select(pl.col(name).cast(dtype) for name, dtype in _BOOKS.items())


_NUMBERS = ("p_value", "q_value", "share", "share_low", "share_high", "share_verbatim")
_BOOKS: dict[str, Any] = {
    **dict.fromkeys(("level", "key", "title"), pl.String),
    **dict.fromkeys(("n_asked", "n_windows"), pl.UInt32),
    "strip": pl.List(pl.Float64),
    **dict.fromkeys(("verdict", "answer", "reason"), pl.String),
    **dict.fromkeys(_NUMBERS, pl.Float64),
    "longest_words": pl.UInt32,
    "longest_target_id": pl.String,
}


def _by_strength(rows: pl.DataFrame) -> pl.DataFrame:
    order = (
        pl.col("verdict")
        .cast(pl.String)
        .replace_strict({v: i for i, v in enumerate(ANSWERS)})
    )
    longest = pl.max_horizontal("longest_words", "extracted_words")
    verbatim = pl.when(longest >= VERBATIM_WORDS).then(longest)
    keys = [order, verbatim, pl.col("p_value"), pl.col("mean"), pl.col("key")]
    return rows.sort(
        keys, descending=[False, True, False, True, False], nulls_last=True
    )


def _titles(rows: pl.DataFrame) -> list[str]:
    title = pl.coalesce("title", "key") if "title" in rows.columns else pl.col("key")
    return rows.select(title.cast(pl.String)).to_series().to_list()


def _strips(curves: pl.LazyFrame) -> dict[str, list[float | None]]:
    points = curves.filter(curve="strip").select("subject", "x", "y", "n")
    found = {}
    for (subject,), rows in points.collect(engine="streaming").group_by("subject"):
        starts = rows.sort("x")
        at = [
            int((starts["x"] <= (place + 0.5) / STRIP).sum()) - 1
            for place in range(STRIP)
        ]
        known = starts.select(pl.when(pl.col("n") > 0).then("y")).to_series()
        found[str(subject)] = [known[place] if place >= 0 else None for place in at]
    return found


def shaded(strip: Sequence[float | None] | None) -> str:
    """Draw a strip as 24 characters, the higher the more evidence; a dot where nothing is known."""
    return "".join(
        (
            "·"
            if value is None
            else _SHADES[min(int(value * len(_SHADES)), len(_SHADES) - 1)]
        )
        for value in strip or ()
    )


# The table of attacks.

_FPRS = {"tpr_1": 0.01, "tpr_01": 0.001}


def attack_rows(
    tables: Mapping[str, pl.LazyFrame],
    attacks: Sequence[Attack],
    seconds: Mapping[str, float] | None = None,
    passes: Mapping[str, int] | None = None,
) -> pl.DataFrame:
    """Lay out the figures of each attack where the truth is known, the best first.

    ``attack``, ``is_blind`` (a classifier that never sees the model; they come last),
    ``is_later`` (added to the planned ones; they come after these), ``auc`` with its 95
    % interval ``low`` and ``high``, ``tpr_1`` and ``tpr_01`` (TPR at 1 % and 0.1 % FPR,
    null where there are too few non-members), ``lead`` (AUC less that of the strongest
    classifier that never sees the model), the limits of all three (``tpr_1_low``, ...),
    ``tokens`` (decoded for a text by one of ``attacks``, null where none are),
    ``seconds`` (of asking, a text, by the ``seconds`` of each stage in ``times`` of
    ``run.json``, shared out by tokens and by ``passes``; null where unknown). Empty
    without labels.
    """
    metrics = tables["metrics"].filter(slice="all").collect(engine="streaming")
    own = metrics.filter(pl.col("versus").is_null())
    blind = (
        tables["blind_metrics"]
        .select("attack")
        .collect(engine="streaming")["attack"]
        .implode()
    )
    leads = metrics.filter(pl.col("versus").is_in(blind), metric="roc_auc_difference")
    more = [leads.select("attack", lead="value", lead_low="low", lead_high="high")]
    for name, fpr in _FPRS.items():
        of = own.filter((pl.col("fpr") - fpr).abs() < fpr / 10, metric="tpr_at_fpr")
        limits = {f"{name}_{end}": end for end in ("low", "high")}
        more.append(of.select("attack", **{name: "value"}, **limits))
    rows = own.filter(metric="roc_auc").select("attack", "low", "high", auc="value")
    for each in (*more, _costs(tables, attacks, seconds or {}, passes or {})):
        first = each.unique("attack", keep="first")
        rows = rows.join(first, on="attack", how="left", maintain_order="left")
    if rows["auc"].count() == 0:  # no label of one of the classes
        rows = rows.clear()
    later = pl.Series([], dtype=pl.String)
    if "findings" in tables:
        later = (
            tables["findings"]
            .filter(check="later")
            .collect(engine="streaming")["subject"]
        )
    is_later = pl.col("attack").is_in(later.implode())
    rows = rows.with_columns(is_blind=pl.col("attack").is_in(blind), is_later=is_later)
    best = rows.sort("auc", descending=True, nulls_last=True, maintain_order=True)
    ordered = best.sort("is_blind", "is_later", maintain_order=True)
    return ordered.select(pl.col(name).cast(dtype) for name, dtype in _ATTACKS.items())


_LIMITED = [
    f"{name}{end}" for name in (*_FPRS, "lead") for end in ("", "_low", "_high")
]
_FIGURES = ("auc", "low", "high", *_LIMITED)
_ATTACKS: dict[str, Any] = {
    "attack": pl.String,
    "is_blind": pl.Boolean,
    "is_later": pl.Boolean,
}
_ATTACKS |= dict.fromkeys((*_FIGURES, "tokens", "seconds"), pl.Float64)


def _costs(
    tables: Mapping[str, pl.LazyFrame],
    attacks: Sequence[Attack],
    seconds: Mapping[str, float],
    passes: Mapping[str, int],
) -> pl.DataFrame:
    """Tokens decoded and seconds of asking a text: its share, by tokens or by forward passes."""
    of_view: dict[tuple[str, str], tuple[int, int]] = {}
    if "samples" in tables:
        key = [pl.col(name).cast(pl.String) for name in ("model", "view")]
        counts = [pl.col("n_tokens").sum(), pl.col("target_id").n_unique()]
        found = tables["samples"].group_by(key).agg(counts).collect(engine="streaming")
        of_view = {
            (model, view): (drawn, n) for model, view, drawn, n in found.iter_rows()
        }
    decoded: dict[str, int] = {}
    for (model, _), (drawn, _) in of_view.items():
        decoded[model] = decoded.get(model, 0) + drawn
    n_texts = tables["scores"].select(pl.len()).collect(engine="streaming").item()
    rows = []
    for attack in attacks:
        tokens, took, read = 0.0, 0.0, attack.list_reads("logprobs")
        for model in {model for model, _ in read}:
            all_passes = sum(
                n for view, n in passes.items() if view.startswith(f"{model} ")
            )
            own = sum(
                passes.get(" ".join(view), 0) for view in read if view[0] == model
            )
            took += seconds.get(f"logprobs of {model}", 0.0) * (
                own / all_passes if own else 1.0
            )
        for view in attack.list_reads("samples"):
            drawn, n = of_view.get(view, (0, 0))
            tokens += drawn / max(n, 1)
            share = drawn / max(decoded.get(view[0], 0), 1)
            took += share * seconds.get(f"samples of {view[0]}", 0.0)
        each = took / n_texts if n_texts else None
        rows.append(
            {"attack": attack.name, "tokens": tokens or None, "seconds": each or None}
        )
    return pl.DataFrame(
        rows, {name: _ATTACKS[name] for name in ("attack", "tokens", "seconds")}
    )
