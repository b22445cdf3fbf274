"""Sentences of a run, rendered from rows of metrics, verdicts and findings."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import polars as pl

from mia_batch.attacks.attack import MEASURED, OWN_ANSWERS
from mia_batch.inference.attempts import Attempts
from mia_batch.inference.findings import (
    DecisionRule,
    apply_gate,
    blind_verdict,
    change_of_service,
    gate_verdict,
    is_closed,
    plain_difference,
    role_counts,
    why_not_continued,
    why_withheld,
    withhold,
)
from mia_batch.inference.known_share import DRAW
from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.report.drawn import draw_sentences

Row = dict[str, Any]
Writer = Callable[["RunResults"], Iterable[str]]
_N_NAMED = 3
_N_NAMED_AT_MOST = 12
_SIGNIFICANT_P = 0.05
_AUC_OF_A_WRONG_SIGN = 0.4
_LEAST_OF_A_QUINTILE = 5  # texts of each class
_MOST_CHARACTERS = 200
_SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
_ANSWERS = {
    "text": "texts",
    "thought_removed": "texts after thoughts, which were taken off",
    "prompt_removed": "texts after the prompt, which was taken off",
    "prompt_repeated": "that are the prompt and nothing more",
    "thinking": "thoughts without an answer",
    "refusal": "refusals",
    "not_asked": "not asked for",
}

_CONTROLS = {
    "unrelated_prefix": "come after an unrelated prefix, too",
    "reference_model": "come from the reference model, too",
    "other_document": "stand in another document, too",
}
_ADJUSTMENTS = {
    "bh": "Benjamini-Hochberg",
    "by": "Benjamini-Yekutieli",
    "e-bh": "e-BH",
    "wcs": "weighted conformalized selection",
}


def find_rows(findings: pl.DataFrame, check: str, **equal: str) -> dict[str, Row]:
    """Return the rows of a check by statistic, of which each has one."""
    rows = findings.filter(check=check, **equal)
    return {row["statistic"]: row for row in rows.iter_rows(named=True)}


def find_values(findings: pl.DataFrame, check: str, **equal: str) -> dict[str, Any]:
    """Return the values of a check by statistic."""
    return _read_values(findings.filter(check=check, **equal))


def _read_values(rows: pl.DataFrame) -> dict[str, Any]:
    return dict(rows.select("statistic", "value").iter_rows())


def _find_subject(rows: Mapping[str, Row]) -> str:
    return next((str(row["subject"]) for row in rows.values()), "")


# Words.


def list_names(names: Sequence[str], n_shown: int = _N_NAMED) -> str:
    head = ", ".join(names[:n_shown])
    n_hidden = len(names) - n_shown
    if n_hidden == 1:  # its name is as short as its count
        return ", ".join(names)
    return f"{head} and {n_hidden:,} more" if n_hidden > 0 else head


def write_count(n: float, noun: str) -> str:
    return f"{n:,.0f} {noun}" if n == 1 else f"{n:,.0f} {noun}s"


_SINGULAR = {"are": "is", "have": "has"}


def conjugate(verb: str, n: float) -> str:
    """Return the form of a verb that goes with a count, such as ``stands`` with 1."""
    return _SINGULAR.get(verb, f"{verb}s") if n == 1 else verb


def capitalize(clause: str) -> str:
    """Begin a sentence, unless it begins with a name that has underscores."""
    first_word = clause.split(" ", 1)[0]
    return clause if "_" in first_word else clause[:1].upper() + clause[1:]


# Whether texts give themselves away without the model.

# Why comparisons with non-members are withheld, or in doubt, by the verdict of the gate
_GATES = {
    "withheld": (
        "No answer: the audited texts and the comparison texts can be distinguished"
        " without the model ({evidence}), so a high score may come from another difference"
        " between them. p-values, lists, bounds and estimates are withheld. Give"
        " comparison texts of the same kind and time (mia-batch build-set matches"
        " them), or --exploratory to print the numbers as exploratory."
    ),
    "weighted": (
        "The answer rests on weights: the audited texts and the comparison texts can be"
        " distinguished without the model ({evidence}). Bounds and estimates cannot be"
        " weighted and are withheld."
    ),
    "exploratory": (
        "Exploratory: the audited texts and the comparison texts can be distinguished"
        " without the model ({evidence}). What follows may come from another difference"
        " between them, so it is no evidence of training."
    ),
    "not checked": (
        "It was not checked whether the audited texts differ from the comparison texts"
        " ({reason}). What follows holds only if training is their only difference."
    ),
    "doubtful": (
        "Whether the audited texts and the comparison texts can be distinguished"
        " without the model is undecided (an AUC up to {high:.2f} is not excluded)."
        " What follows holds only if training is their only difference."
    ),
}

# What the blind baseline makes of labels, by its verdict
_LABELS = {
    None: (
        "It could not be checked whether members and non-members differ without the"
        " model ({reason}): attack figures alone are no evidence of memory."
    ),
    "separable": (
        "Members and non-members differ without the model ({evidence}): attack figures are"
        " no evidence of memory."
    ),
    "undecided": (
        "Members and non-members may differ without the model (an AUC up to {high:.2f}"
        " is not excluded). Judge an attack by how far its AUC is above that of"
        " {strongest}, which never sees the model."
    ),
    "not separable": (
        "Members and non-members look alike to classifiers that never see the model"
        " ({excluded})."
    ),
}


def find_blind_row(findings: pl.DataFrame, subject: str) -> Row | None:
    """Return what the blind baseline made of a label, with the ``strongest`` classifier."""
    rows = find_rows(findings, "blind_baseline", subject=subject)
    if not rows:
        return None
    row = rows["roc_auc"]
    strongest = rows.get("strongest", {}).get("verdict")
    row |= {"strongest": strongest, "excluded": describe_excluded(row["high"])}
    if row["value"] is not None:
        row["evidence"] = (
            f"AUC {row['value']:.2f} by {strongest}, p = {row['p_value']:.3f}"
        )
    plain = plain_difference(findings) if subject == "targets" else None
    if plain is not None and row["verdict"] != "separable":
        row["evidence"] = (
            f"AUC {plain['value']:.2f} by {plain['subject']} alone,"
            f" p = {plain['p_value']:.3g}"
        )
    return row


def describe_excluded(highest_auc: float | None) -> str:
    """Write which AUC is the highest not excluded: None and 1.00 exclude none."""
    limit = "1.00" if highest_auc is None else f"{highest_auc:.2f}"
    if limit == "1.00":
        return "too few texts to exclude any AUC"
    return f"AUC at most {limit}"


def gate_sentence(findings: pl.DataFrame) -> Iterator[str]:
    verdict = blind_verdict(findings)
    # A service that changed has a sentence of its own, and leaves nothing to be in
    # doubt about.
    if gate_verdict(findings) == "changed" and verdict != "withheld":
        return
    row = find_blind_row(findings, "targets")
    if row is None or verdict not in _GATES:
        return
    is_unchecked = verdict == "doubtful" and row["verdict"] is None
    yield _GATES["not checked" if is_unchecked else verdict].format(**row)


def label_sentence(findings: pl.DataFrame) -> Iterator[str]:
    row = find_blind_row(findings, "members")
    if row is not None:
        yield _LABELS[row["verdict"]].format(**row)


def exchangeability_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Write how unlike targets and non-members can be; never that they are exchangeable."""
    row = find_blind_row(findings, "targets")
    if row is not None:
        yield (
            "Classifiers that see only the texts do not tell targets from non-members:"
            f" an AUC above {row['high']:.2f} is ruled out with 95 % confidence (0.50"
            " is guessing)."
        )


# Whether a service changed while it was asked.


def change_sentence(findings: pl.DataFrame) -> Iterator[str]:
    change = change_of_service(findings)
    if change is None:
        return
    intro = f"{capitalize(change)}, so the scores are of no single model."
    if gate_verdict(findings) == "exploratory":
        yield f"{intro} What follows is exploratory and no evidence of training."
        return
    if find_blind_row(findings, "members") is not None:
        intro += (
            " An AUC is that of all versions together: where the order of asking was"
            " drawn by lot, a change draws it towards 0.50 and gives no false sign of"
            " memory."
        )
    yield (
        f"{intro} p-values, lists, bounds and estimates are withheld. Ask again under"
        " another --out, by the name of a version that stays where the service has"
        " one, or give --anyway to print the numbers as exploratory."
    )


def versions_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Write why several versions of a service turn no answer, where they do not."""
    row = find_rows(findings, "order").get("n_versions")
    if row is None or row["verdict"] not in ("few", "in_turn"):
        return
    rarer = f"{row['low']:,.0f} of {row['high']:,.0f} answers came from"
    alike = "by lot they fall on audited and comparison texts alike"
    if row["verdict"] == "few":
        yield (
            f"{rarer} another version of the service than the others: {alike}, and move"
            " no p-value by more than about 0.01."
        )
    else:
        yield (
            f"The service answered by {row['value']:,.0f} versions in turn, whenever"
            f" and whatever it was asked ({rarer} others than the most frequent):"
            f" {alike}. The comparison holds, and the answer is about all versions"
            " together."
        )


# Copies, books, other runs, answers.


def duplicates_sentence(findings: pl.DataFrame, subject: str) -> Iterator[str]:
    """Count texts of a set that stand in the non-members, and the reverse, if any do."""
    shares = []
    any_concerned = False
    for side, noun in ((subject, subject), (f"not {subject}", "non-members")):
        value = find_values(findings, "duplicates", subject=side)
        any_concerned |= bool(value.get("n_concerned"))
        if value.get("share") is None:
            shares.append(f"no {noun} of 8 words to compare")
            continue
        counts = f"{value['n_concerned']:,.0f} of {value['n_compared']:,.0f} {noun}"
        n_left_out = value["n_left_out"]
        left_out = f" ({n_left_out:,.0f} more not compared)" if n_left_out else ""
        shares.append(f"{counts}, {value['share']:.1%}{left_out}")
    if any_concerned:
        example = find_rows(findings, "duplicates", subject=subject)["example"]
        yield (
            "Near-duplicates (a run of 13 words, or 70% of the runs of 8 words, stands"
            f" in the other set): {', '.join(shares)}; {example['reason']}."
        )


def copies_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Warn of texts of both labels, and of many copies that count as independent."""
    n_both = find_values(findings, "duplicates", subject="labels").get("n_both")
    if n_both is not None:
        yield (
            f"{write_count(n_both, 'text')} {conjugate('are', n_both)} labelled member"
            " in one row and non-member in another, word for word: one of the labels"
            " is wrong, and figures of attacks are nearer to chance. Leave these texts"
            " out, or correct the labels."
        )
    rows = find_rows(findings, "duplicates", subject="texts")
    if rows["n_copies"]["verdict"] == "many":
        yield (
            f"{rows['n_copies']['value']:,.0f} of {rows['n_texts']['value']:,.0f}"
            " texts stand in another group or document, too, word for word: their"
            " errors move together, but intervals and p-values count them as"
            " independent. Give copies the same group, or keep one of each."
        )


def undeclared_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Write which texts look like parts of one book although no group says so."""
    rows = findings.filter(pl.col("verdict") != "apart", check="undeclared_books")
    for row in rows.iter_rows(named=True):
        count = "Each counts as an independent text"
        if row["verdict"] == "one_group":
            count = "They count as one group"
        yield (
            f"The {row['subject']} look like parts of one book, or of a few:"
            f" neighbouring rows are {row['value']:.2f} times as alike as rows at"
            f" random (p = {row['p_value']:.3g}). {count}: give a column `group` that"
            " says which belong together, with a value of its own for each text that"
            " stands alone."
        )


def near_copies_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Write how many comparison texts are copies of others, which count once."""
    value = find_values(findings, "near_copies")
    if value:
        yield (
            f"{value['n_copies']:,.0f} of {value['n_texts']:,.0f} comparison texts are"
            f" near copies of each other, in {write_count(value['n_groups'], 'group')}"
            " (a third or more of their runs of 3 words in common). Each group counts"
            " as one comparison text, and classifiers that never see the model learn"
            " and are tested on whole groups."
        )


def author_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Write that authors are compared instead of books, or that authors are unknown."""
    of_both_sets = findings.filter(pl.col("subject").is_null())
    n_books = find_rows(of_both_sets, "authors").get("n_books")
    if n_books is None or n_books["verdict"] == "apart":
        return
    audited = find_values(findings, "authors", subject="targets")
    compared = find_values(findings, "authors", subject="non_members")
    if n_books["verdict"] == "withheld":
        yield (
            f"What all texts show together is withheld: {n_books['reason']}. Texts by"
            " one author move together, so that they count once together."
        )
    elif n_books["verdict"] == "unknown":
        yield (
            f"The authors of {audited['n_unknown']:,.0f} of"
            f" {audited['n_clusters']:,.0f} audited and {compared['n_unknown']:,.0f} of"
            f" {compared['n_clusters']:,.0f} comparison texts are unknown. If several"
            " are by one author, p-values of all texts together and bounds are too"
            " small, because texts by one author move together: name authors in the"
            " files' metadata or with --author-column."
        )
    else:
        yield from _write_compared_authors(audited, compared, n_books["value"])


def _write_compared_authors(
    audited: Mapping[str, float], compared: Mapping[str, float], n_books: float
) -> Iterator[str]:
    n_unknown = audited["n_unknown"] + compared["n_unknown"]
    left_out = ""
    if n_unknown:
        left_out = f" {n_unknown:,.0f} more by unknown authors are left out there."
    n_audited = audited["n_clusters"] - audited["n_unknown"]
    n_compared = compared["n_clusters"] - compared["n_unknown"]
    n_authors = compared["n_authors"]
    yield (
        f"Texts by one author count once together: {n_audited:,.0f} audited texts or"
        f" books are by {write_count(audited['n_authors'], 'author')},"
        f" {n_compared:,.0f} comparison ones by {n_authors:,.0f}. P-values of all"
        f" together and bounds compare authors, each by {n_books:,.0f} of its texts or"
        f" books, drawn by lot before scores were seen.{left_out}"
    )
    if audited["n_authors"] == 1:
        yield (
            "All audited texts are by one author. This audit cannot know whether the"
            " model remembers these texts, or has learnt how this author writes from"
            " others: only comparison texts by the same author could tell, and one"
            f" author among {n_authors:,.0f} has no p-value below"
            f" {1 / (n_authors + 1):.2g} for all texts together."
        )


def find_other_runs(findings: pl.DataFrame) -> list[Row]:
    """Return a row for each other run of the same texts and model."""
    rows = findings.filter(check="earlier_runs", statistic="primary")
    return rows.rows(named=True)


def earlier_sentences(
    findings: pl.DataFrame, *, compares: bool = True
) -> Iterator[str]:
    """Write which other runs of the same texts and model there are; p-values count them."""
    runs = find_other_runs(findings)
    if not runs:
        return
    unplanned = ("primary unknown, unknown", "stopped before its plan was made")
    plans = [f"{run['subject']} (primary {run['verdict']})" for run in runs]
    plans = [plan.replace(*unplanned) for plan in plans]
    n = len(runs)
    consequence = ""
    if compares:
        consequence = (
            ": p-values and q-values of this attempt are multiplied by"
            f" {Attempts(n + 1).factor:,}, and bounds and rates of members are withheld"
        )
    yield (
        f"{write_count(n, 'other run')} of these texts and this model"
        f" {conjugate('are', n)} known: {list_names(plans)}. The best of several runs"
        f" looks better than it is{consequence}."
    )


def chance_sentences(findings: pl.DataFrame) -> Iterator[str]:
    rows = findings.filter(check="chance", verdict="no_better")
    for row in rows.iter_rows(named=True):
        yield (
            f"The {row['subject']} model predicts these texts no better than chance"
            f" ({row['value']:.1f} nats a token, chance {row['high']:.1f}): its scores"
            " mean nothing unless the texts are random themselves. Check that it is"
            " trained, and its tokenizer."
        )


def start_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Write which model reads texts better with a start token, or without one."""
    for row in findings.filter(check="start_token").iter_rows(named=True):
        default, changed = row["value"], row["high"]
        if row["statistic"] == "nats_per_token":
            figures = f"a loss of {-changed:.2f} nats a token instead of {-default:.2f}"
        else:
            figures = f"{changed:.0%} of next tokens right instead of {default:.0%}"
        token = repr(row["reason"])
        change = f"without the start token {token}"
        habit = "adds: it was left out of every prompt"
        if row["verdict"] == "added":
            change = f"after its start token {token}"
            habit = "does not add: it was added to every prompt"
        yield (
            f"The {row['subject']} model reads these texts better {change} ({figures}),"
            f" which its tokenizer {habit} and text."
        )


def quantisation_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Write which models are quantised, and for what the answer therefore holds."""
    for row in findings.filter(check="quantisation").iter_rows(named=True):
        yield (
            f"The {row['subject']} model is a file quantised to {row['reason']}, which"
            " is a model of its own: what is said here holds for this file, not for"
            " another quantisation or the weights that it was made of."
        )


_LAYERS = {
    "thoughts": "thoughts",
    "fence": "a code fence",
    "echo": "the end of the prompt, said again",
    "lead": "a lead-in",
    "close": "a closing remark",
    "line": "a first line that ends with a colon",
    "dots": "three dots",
    "mark": "a bullet or heading mark",
    "quote": "quotation marks",
}


def describe_layers(layers: Iterable[tuple[str, str | None]]) -> str:
    """Write what stands around answers, by kind and text."""
    descriptions = []
    for kind, text in layers:
        quoted = f" ({text[:_MOST_CHARACTERS]!r})" if text else ""
        descriptions.append(f"{_LAYERS[kind]}{quoted}")
    return ", ".join(descriptions)


def dress_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Write what stood around the continuations and was taken off, and what was not."""
    value = find_values(findings, "dress", subject="target")
    if not value:
        return
    n_prompts = f"{value['n_prompts']:,.0f} prompts"
    layers = findings.filter(check="dress", statistic="taken_off")
    if layers.height:
        around = describe_layers(layers.select("subject", "reason").iter_rows())
        yield (
            f"The answers to {value['n_dressed']:,.0f} of {n_prompts} that were looked"
            f" at have more than a continuation: {around}. One rule takes it off all"
            " answers before they are compared; the table of samples keeps both forms."
        )
    fault = why_not_continued(findings)
    if fault is not None:
        yield (
            f"{capitalize(fault)}. No area, p-value or estimate is given. Take another"
            " model, a completions endpoint, or another --chat-instruction."
        )
        return
    faults = {"begin alike": "n_alike", "repeat the end of the prompt": "n_repeating"}
    for clause, name in faults.items():
        n = value[name]
        if n:
            yield f"The answers to {n:,.0f} of {n_prompts} {clause}, and are scored so."


def answers_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Write which answers were no texts, and what may have acted on answers."""
    is_ignored = pl.col("verdict") != "honoured"
    is_sampling = pl.col("subject").is_in(_SAMPLING_FIELDS)
    ignored = findings.filter(is_ignored, is_sampling, check="endpoint")["subject"]
    if len(ignored):
        yield (
            f"The endpoint accepts no neutral value of {', '.join(ignored)}. Its own"
            " value may change every answer, and the same model may answer otherwise"
            " elsewhere."
        )
    answers = findings.filter(check="answers")
    for (view,), rows in answers.group_by("subject", maintain_order=True):
        counts = _read_values(rows)
        n_short = counts.pop("cut")
        if counts.keys() == {"text"}:
            continue
        kinds = [f"{n:,.0f} {_ANSWERS.get(kind, kind)}" for kind, n in counts.items()]
        short = ""
        if n_short:
            short = f"; {n_short:,.0f} were cut before the reference's length"
        yield (
            f"Of {sum(counts.values()):,.0f} samples ({view}): {', '.join(kinds)}"
            f"{short}."
        )
    yield from _write_held_back(findings, "filtered", "The provider filtered")
    yield from _write_held_back(findings, "refusal", "The model refused")


def _write_held_back(findings: pl.DataFrame, kind: str, subject: str) -> Iterator[str]:
    """Write which sets of texts the provider, or the model, answers less often about."""
    rows = findings.filter(check="held_back", statistic=kind)
    for row in rows.iter_rows(named=True):
        p_value = evidence = ""
        if row["p_value"] is not None:
            p_value = f" (p = {row['p_value']:.3g})"
            evidence = " That difference is evidence by itself."
        yield (
            f"{subject} answers about {row['subject']} and non-members unequally"
            f" often: shares differ by {row['value']:.1%}{p_value}.{evidence}"
            " Scores rest on the other answers alone."
        )


# Labelled runs.


def uneven_sentence(findings: pl.DataFrame) -> Iterator[str]:
    uneven = findings.filter(check="uneven_scores")
    if uneven.is_empty():
        return
    most_uneven = uneven.filter(verdict="most")["subject"].to_list()
    less_uneven = uneven.filter(verdict="more")["subject"].to_list()
    too = f" Uneven, too: {list_names(less_uneven)}." if less_uneven else ""
    kinds = findings.filter(check="answers")["statistic"]
    remedy = "Leave"
    # Classed answers would be the same again
    if kinds.is_empty() or "failed" in kinds:
        remedy = "Ask again for what failed (--retry-failed), leave"
    shares = []
    for name in ("members", "non-members"):
        rows = find_rows(findings, "uneven_scores", subject=name)
        missing = rows["n_unscored"]
        reason = f"; mostly: {missing['reason']}" if missing["reason"] else ""
        shares.append(
            f"{missing['value']:,.0f} of {rows['n_texts']['value']:,.0f} {name}"
            f" ({rows['share']['value']:.1%}{reason})"
        )
    yield (
        f"Scores by {list_names(most_uneven)} are missing more often in one class: for"
        f" {' and '.join(shares)}.{too} AUC and other metrics then describe a selected"
        f" subset, and may show how it was selected instead of memory. {remedy} such"
        " texts out of both classes by a rule that does not ask the model, or rest the"
        " answer on an attack that scores both."
    )


def find_auc(metrics: pl.DataFrame, attack: str) -> Row | None:
    rows = metrics.filter(metric="roc_auc", slice="all", attack=attack)
    return next(rows.iter_rows(named=True), None)


def find_simultaneous_bounds(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return the lower limits of AUC that hold for all attacks and slices together."""
    is_known = pl.col("low").is_not_null()
    return metrics.filter(is_known, metric="roc_auc_simultaneous")


def labelled_sentences(
    metrics: pl.DataFrame, findings: pl.DataFrame, primary: str
) -> Iterator[str]:
    """Write what labels show; nothing where labels are not of both classes."""
    blind = find_blind_row(findings, "members")
    if blind is None:
        return
    in_quintile = pl.col("slice").str.starts_with("blind quintile")
    n_of_a_class = pl.min_horizontal("n_members", "n_nonmembers")
    aucs = metrics.filter(in_quintile, metric="roc_auc", attack=primary).select(
        pl.when(n_of_a_class >= _LEAST_OF_A_QUINTILE).then("value")
    )["value"]
    if blind["verdict"] != "not separable" and aucs.count() > 1:
        figures = ["-" if auc is None else f"{auc:.2f}" for auc in aucs]
        yield (
            f"{primary}: AUC within quintiles of the score of {blind['strongest']}:"
            f" {', '.join(figures)}."
        )
    is_turned = pl.col("high") < _AUC_OF_A_WRONG_SIGN
    is_blind = pl.col("attack").str.starts_with("blind_")
    turned = metrics.filter(is_turned, ~is_blind, metric="roc_auc", slice="all")
    if turned.height:
        yield (
            "Members score lower than non-members by"
            f" {list_names(turned['attack'].to_list())}. A higher score has to mean a"
            " member: if the attack is yours, turn its sign."
        )
    bounds = find_simultaneous_bounds(metrics)
    if bounds.height > 1:
        best = bounds.sort("low", descending=True).row(0, named=True)
        part = "" if best["slice"] == "all" else f" on {best['slice']}"
        trials = (
            f"{bounds.height:,} attacks and slices, corrected for trying all of them"
        )
        if best["low"] > 0.5:
            bound = f"{best['attack']}{part}, AUC at least {best['low']:.2f}"
            yield f"Best of {trials}: {bound}."
        else:
            yield f"None of {trials}, is shown to be better than chance."
    yield from duplicates_sentence(findings, "members")


# Sets: what the combination was learned from, what dataset inference and CoDeC show.

_COMBINATIONS = {
    "too_few": (
        "combination_v1 has no scores: there are texts of fewer than 10 groups of each"
        " class to learn from."
    ),
    "calibration": (
        "combination_v1 was learned from {n_members:,.0f} calibration members and"
        " {n_others:,.0f} calibration non-members, for each text from those of other"
        " groups alone."
    ),
    "all": (
        "combination_v1 was learned from {n_members:,.0f} known members and"
        " {n_others:,.0f} other texts, for each text from those of other groups alone."
    ),
}


def set_sentences(findings: pl.DataFrame) -> Iterator[str]:
    combination = findings.filter(check="combination")
    if combination.height:
        verdict = combination["verdict"][0]
        sentence = _COMBINATIONS.get(verdict, _COMBINATIONS["all"])
        yield sentence.format(**_read_values(combination))
    of_both_sets = findings.filter(pl.col("subject").is_null())
    tests = find_rows(of_both_sets, "dataset_inference")
    if tests:
        yield _write_dataset_inference(tests)
    shares = []
    for row in findings.filter(check="codec").drop_nulls("value").iter_rows(named=True):
        interval = f"no interval: {row['reason']}"
        if row["low"] is not None:
            interval = f"{row['low']:.0%} to {row['high']:.0%}"
        shares.append(f"{row['value']:.0%} of the {row['subject']} ({interval})")
    if shares:
        yield (
            f"Less likely after the shots than alone (CoDeC): {' and '.join(shares)},"
            " 95 % intervals. Only a difference of the two may come from training."
        )


def _write_dataset_inference(rows: Mapping[str, Row]) -> str:
    test = rows["permutation"]
    if test["p_value"] is None:
        reason = test["reason"]
        return f"All attacks together (dataset inference): no p-value ({reason})."
    n = {name: row["value"] for name, row in rows.items()}
    return (
        f"All attacks together (dataset inference, learned on {n['n_learned']:,.0f}"
        f" groups, tested on {n['n_targets']:,.0f} others against {n['n_null']:,.0f}"
        f" outside the training data): p = {test['p_value']:.3g}, exploratory; by the"
        " paper's own form, which takes texts of a group for independent, p ="
        f" {rows['paper']['p_value']:.3g}. Both suppose that the sets differ in nothing"
        " but training."
    )


# What the test can show, and whether it was planned.


def power_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Write what the planned test can show at best, and what would allow more."""
    rows = find_rows(findings, "power")
    if not rows:
        return
    value = {name: row["value"] for name, row in rows.items()}
    unit = rows["n_tests"]["verdict"]
    audited = write_count(value["n_tests"], unit)
    compared = write_count(value["n_null"], f"comparison {unit}")
    if value["nulls_needed"] is None:
        yield (
            f"None of your {audited} can be compared: windows are too few, or lengths"
            " unknown."
        )
        return
    remedy = f"give at least {value['nulls_needed']:,.0f}"
    is_possible_together = rows["together"]["verdict"] == "possible"
    if _find_subject(rows) == "collection":
        best_p_value = (
            f"p-value of your {audited} together can be {value['together']:.2g} at best"
        )
        if is_possible_together:
            yield f"With {compared} the {best_p_value}."
        else:
            yield (
                f"With {compared} nothing can be shown at 0.05, for the {best_p_value}:"
                f" {remedy}."
            )
        return
    if rows["n_null"]["verdict"] == "of_one_length":
        compared = f"at most {compared} of one length"
        remedy += " of each length"
    if is_possible_together:
        remedy += ", or ask --level collection"
    yield from _write_power_of_list(rows, value, compared, remedy)
    if value["for_bound"] is not None:
        yield (
            f"If {value['for_bound']:,.0f} of your {audited} score higher than every"
            f" comparison {unit}, at least one of them stands out beyond chance (95 %"
            " confidence)."
        )


def _write_power_of_list(
    rows: Mapping[str, Row], value: Mapping[str, Any], compared: str, remedy: str
) -> Iterator[str]:
    """Write how many units have to stand out so that any of them can be named."""
    unit = rows["n_tests"]["verdict"]
    audited = write_count(value["n_tests"], unit)
    is_alone = value["n_tests"] == 1
    q = f"q = {value['q']:g}"
    number = ("one", "two", "three", "four", "five")[int(value["n_named"]) - 1]
    single = "it" if is_alone else f"{number} of them"
    remedy = f"to name {single}, {remedy}"
    needed = value["needed"]
    if needed is None:
        cannot = f"your {unit} cannot" if is_alone else f"none of your {audited} can"
        yield f"With {compared} {cannot} be named at {q}, whatever the scores; {remedy}."
        return
    if needed == 1:
        single = f"your {unit}" if is_alone else f"a single one of your {audited}"
        yield f"With {compared} {single} can be named, if it stands out."
    else:
        yield (
            f"With {compared} single {unit}s can be named only if {needed:,.0f} of your"
            f" {value['n_tests']:,.0f} stand out; {remedy}."
        )
    yield (
        f"A {unit} stands out where it scores higher than every comparison {unit}:"
        f" its p-value is then {value['smallest_p']:.2g}. The named ones form a"
        f" list at {q} ({_ADJUSTMENTS[rows['q']['verdict']]})."
    )


def plan_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Write that answers are exploratory; nothing where they were planned."""
    plan = find_rows(findings, "plan").get("n_changed")
    if plan is None or plan["verdict"] == "as_planned":
        return
    if plan["verdict"] == "late":
        yield f"These answers are exploratory: {plan['reason']}."
        return
    names = findings.filter(check="plan", statistic="changed")["subject"]
    changed = f" Changed since: {', '.join(names)}." if len(names) else ""
    yield (
        "These answers are exploratory: scores had been made before they were asked"
        " for. The plan made before is in run.json (primary attack"
        f" {plan['subject']}).{changed}"
    )


def later_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Write which attacks were added to the planned ones."""
    names = findings.filter(check="later")["subject"].to_list()
    if names:
        pronoun = "it" if len(names) == 1 else "them"
        yield (
            f"{list_names(names)} {conjugate('are', len(names))} exploratory: scores by"
            f" {pronoun} were added after the first scores. The answer does not rest on"
            " them."
        )


def lodged_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Write whether the audit is the one of the plan lodged; nothing where none was."""
    rows = findings.filter(check="lodged")
    for row in rows.filter(statistic="n_differences").iter_rows(named=True):
        late = f"; {row['reason']}" if row["reason"] else ""
        digest = row["subject"]
        if row["verdict"] == "equal":
            yield f"The audit is equal to the plan lodged (SHA-256 {digest}){late}."
            continue
        differences = "; ".join(rows.filter(statistic="difference")["reason"])
        yield (
            f"The audit differs from the plan lodged (SHA-256 {digest}{late})."
            f" {differences}."
        )


def null_audit_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Write how often audits of texts outside the training data alone report any."""
    rows = find_rows(findings, "null_audits")
    if "share_reporting" not in rows:
        return
    share = rows["share_reporting"]
    if share["value"] is None:
        yield f"The rates were not validated on these non-members: {share['reason']}."
        return
    n = {name: row["value"] for name, row in rows.items()}
    noun = _find_noun(findings, _find_subject(rows))
    excess = ": more than was promised" if share["verdict"] == "too_often" else ""
    yield (
        f"Non-members were audited {n['n_audits']:,.0f} times, {n['n_tests']:,.0f}"
        f" drawn at random against {n['n_null']:,.0f} others. {share['value']:.1%} of"
        f" these audits report any {noun} ({share['low']:.1%} to {share['high']:.1%};"
        f" at most {n['q']:.1%} are promised){excess}; {n['share_below_fpr']:.1%} of"
        f" their p-values are at most {n['fpr']:g}. That checks the procedure on these"
        " scores, not whether the audited texts are like the non-members."
    )


def weights_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Write how many non-members count where they are weighted, or why they cannot be."""
    rows = find_rows(findings, "weights")
    weighted = rows.get("n_effective", {})
    if weighted.get("verdict") == "used":
        yield (
            "Comparison texts are weighted by how much they are like the audited ones:"
            f" {rows['n_null']['value']:,.0f} of them count as {weighted['value']:.1f}."
            " p-values then hold if the two sets differ only in training and in what"
            " the blind classifiers have learned to see."
        )
    elif weighted.get("verdict") == "no_overlap":
        yield f"Weights do not help: {weighted['reason']}."


_PLACEBOS = {
    "as_many": (
        "The same test on the reference model {}: what is found on the audited model is"
        " no evidence of its memory."
    ),
    "fewer": "The same test on the reference model (which cannot know these texts) {}.",
}


def find_placebo(findings: pl.DataFrame) -> Row | None:
    """Return the row whose verdict is that of the test on the reference model."""
    rows = find_rows(findings, "placebo")
    is_collection = _find_subject(rows) == "collection"
    return rows.get("collection" if is_collection else "n_reported")


def placebo_sentence(findings: pl.DataFrame, *verdicts: str) -> Iterator[str]:
    """Write what the same test finds on the reference model, if it is of these verdicts.

    The verdict is ``as_many``, or ``fewer``; where there is none, the reason for that
    counts as ``fewer``.
    """
    rows = find_rows(findings, "placebo")
    reason = rows.get("n_reported", {}).get("reason")
    if reason is not None and "fewer" in verdicts:
        yield f"The same test was not made on the reference model: {reason}."
    placebo = find_placebo(findings)
    if placebo is None or placebo["verdict"] not in verdicts:
        return
    if placebo["subject"] == "collection":
        result = "has no p-value"
        if placebo["p_value"] is not None:
            result = f"has p = {placebo['p_value']:.3g} for all groups together"
    else:
        noun = _find_noun(findings, placebo["subject"])
        q = rows.get("smallest_q", {}).get("value")
        smallest_q = "" if q is None else f" (smallest q {q:.2g})"
        result = (
            f"reports {placebo['value']:,.0f} of {rows['n_tests']['value']:,.0f}"
            f" {noun}s{smallest_q}"
        )
    yield _PLACEBOS[placebo["verdict"]].format(result)


# What p-values and estimates show of the attack that the answer rests on.


def unlabelled_sentences(
    verdicts: pl.LazyFrame, findings: pl.DataFrame, rule: DecisionRule
) -> Iterator[str]:
    verdicts = verdicts.filter(attack=rule.primary)
    reported = [*_write_reported(findings, verdicts, rule)]
    top = [*_write_top(findings, verdicts, rule)]
    any_reported = find_values(findings, "reported").get("n_reported")
    results = reported + top if any_reported else top + reported
    results += _write_stopping(findings)
    of_all = verdicts.filter(level="collection").collect()
    is_test = pl.col("estimate").is_null()
    results += _write_collection(
        of_all.filter(is_test, versus="non_members"),
        rule,
        f"All {_find_noun(findings, 'group')}s together",
        planned=rule.level == "collection",
    )
    results += _write_max_t(findings)
    yield from results
    compared = verdicts.filter(versus="non_members").select(
        (pl.col("n_null") > 0).any()
    )
    if results and compared.collect(engine="streaming").item():
        yield f"The null: {rule.null_set.rstrip('.')}."
    texts = "targets"
    if findings.filter(check=DRAW).height:
        texts = "documents drawn, which need not be that of all"
    for row in of_all.filter(~is_test).iter_rows(named=True):
        share = _write_share(row)
        if share:
            yield f"Share of members among the {texts}: {share} ({row['assumption']})."
        if row["value"] is not None and row["method"] == "fieller":
            yield _write_wrong_calibration_labels(row["low"], row["high"])


def _write_share(row: Row) -> str | None:
    """Write an estimate with its interval, or the limits that are all there is."""
    if row["value"] is None and row["low"] is None:
        return None
    low = f"{row['low']:.0%}"
    confidence = f"{100 * row['confidence']:g} %"
    if row["value"] is not None:
        return f"{row['value']:.0%}, {confidence} interval {low} to {row['high']:.0%}"
    if row["method"] != "beta_binomial":
        return (
            f"between {low} and {row['high']:.0%} at {confidence} confidence;"
            f" {row['reason']}"
        )
    return f"at least {low} at {confidence} confidence" if row["low"] else None


# What wrong labels do to a figure.

_WRONG_SHARES = (0.02, 0.05)


def _write_wrong_calibration_labels(low: float, high: float) -> str:
    """Write which shares of members are possible if some calibration labels are wrong.

    If a share e1 of the labelled members and e0 of the non-members have the other's
    law, FPR and TPR become FPR + e0 (TPR - FPR) and TPR - e1 (TPR - FPR), so that the
    share is e0 + (1 - e0 - e1) times the one that is shown: Rogan and Gladen (1978),
    with each label's own errors.
    """
    ranges = [f"{(1 - e) * low:.0%} to {e + (1 - e) * high:.0%}" for e in _WRONG_SHARES]
    return (
        "That interval does not count wrong labels: if up to 2 % of the calibration"
        f" labels of one kind are wrong, it is {ranges[0]}; if up to 5 % are,"
        f" {ranges[1]}."
    )


def wrong_labels_sentence(metrics: pl.DataFrame, primary: str) -> Iterator[str]:
    """Write which AUC the figure stands for if some labels are wrong.

    If a share e of the labels of each class is wrong by chance, the AUC is 1/2 + (1 - 2
    e) (A - 1/2) instead of A, and with wrong labels in one class alone 1/2 + (1 - e) (A
    - 1/2).
    """
    auc = find_auc(metrics, primary)
    if auc is None or auc["value"] is None:
        return
    ranges = []
    for e in _WRONG_SHARES:
        of_one_class = 0.5 + (auc["value"] - 0.5) / (1 - e)
        of_both = 0.5 + (auc["value"] - 0.5) / (1 - 2 * e)
        low, high = sorted(min(max(end, 0.0), 1.0) for end in (of_one_class, of_both))
        is_one_figure = high - low < 0.005
        ranges.append(f"{low:.2f}" if is_one_figure else f"{low:.2f} to {high:.2f}")
    yield (
        "If 2 % of the labels of one class or both are wrong by chance, an AUC of"
        f" {auc['value']:.2f} stands for {ranges[0]}; if 5 % are, for {ranges[1]}. The"
        " TPR at an FPR of 1 % can then be anything above what is shown, because"
        " wrongly labelled members alone may fill that FPR. Intervals do not count"
        " wrong labels."
    )


def find_collection_tests(
    verdicts: pl.LazyFrame, attack: str, versus: str
) -> pl.DataFrame:
    """Return the test of all texts together against one set, where there is one."""
    is_test = pl.col("estimate").is_null()
    rows = verdicts.filter(is_test, attack=attack, level="collection", versus=versus)
    return rows.collect(engine="streaming")


def canary_sentences(verdicts: pl.LazyFrame, rule: DecisionRule) -> Iterator[str]:
    tests = find_collection_tests(verdicts, rule.primary, "controls")
    yield from _write_collection(tests, rule, "All canaries", planned=True)


def write_unplanned(level: str) -> str:
    """Write why a p-value of all together is no planned answer."""
    noun = "text" if level == "target" else level
    return f"the answer that was planned is one for each {noun}, not one for all"


def _write_collection(
    tests: pl.DataFrame, rule: DecisionRule, subject: str, *, planned: bool
) -> Iterator[str]:
    """Write the answer about a whole collection, or why one that was planned is none."""
    later = "" if planned else f"; exploratory: {write_unplanned(rule.level)}"
    for test in tests.iter_rows(named=True):
        p_value = test["p_value"]
        if p_value is not None:
            result = f"p = {p_value:.3g} ({test['method']}{later})"
            yield f"{subject}, by {test['attack']}: {result}."
        elif planned:
            yield f"{subject}, by {test['attack']}: no p-value ({test['reason']})."


def _write_reported(
    findings: pl.DataFrame, verdicts: pl.LazyFrame, rule: DecisionRule
) -> Iterator[str]:
    """Write what is reported at the planned level, and name it unless it is texts."""
    rows = find_rows(findings, "reported")
    if not rows:
        return
    n = {name: row["value"] for name, row in rows.items()}
    level = _find_subject(rows)
    noun = _find_noun(findings, level)
    method = (
        f"{rule.primary}, {_ADJUSTMENTS[rows['q']['verdict']]}, against"
        f" {n['n_null']:,.0f} independent units outside the training data"
    )
    if n["n_reported"]:
        yield (
            f"{n['n_reported']:,.0f} of {n['n_tests']:,.0f} {noun}s are reported at q ="
            f" {n['q']:g} ({method}). On average at most {100 * n['q']:g} % of such a"
            " list are false."
        )
        if level == "group":
            yield f"Reported: {_name_highest(verdicts, int(n['n_reported']))}."
    else:
        smallest_q = ""
        if n["smallest_q"] is not None:
            smallest_q = f"; the smallest q is {n['smallest_q']:.2g}"
        yield (
            f"None of {n['n_tests']:,.0f} {noun}s is reported at q = {n['q']:g}"
            f" ({method}){smallest_q}. That is no evidence of absence."
        )
    if n["n_without_p"]:
        yield (
            f"{_write_have(n['n_without_p'], noun)} no p-value, mostly because"
            f" {rows['n_without_p']['reason']}."
        )
    if n["n_without_null"]:
        yield (
            f"{_write_have(n['n_without_null'], noun)} nothing to be compared with and cannot"
            " be reported."
        )


def _write_have(n: float, noun: str) -> str:
    return f"{write_count(n, noun)} {conjugate('have', n)}"


def _find_noun(findings: pl.DataFrame, level: str) -> str:
    """Return what the groups of a run are called, such as books."""
    rows = find_rows(findings, "power", subject="group")
    if level == "group" and "n_tests" in rows:
        return str(rows["n_tests"]["verdict"])
    return level


def _name_highest(verdicts: pl.LazyFrame, n: int) -> str:
    level = pl.col("level").cast(pl.String)
    groups = verdicts.filter(level.is_in(["document", "group"]), versus="non_members")
    ordered = groups.sort("score", "key", descending=[True, False], nulls_last=True)
    keys = ordered.head(n).collect()["key"].to_list()
    return list_names(keys, _N_NAMED_AT_MOST)


class TopBound(NamedTuple):
    """How many of the highest-scoring texts, or groups, are members at least."""

    level: str
    n_members: int
    n_highest: int
    n_null: int
    confidence: float

    def describe(self, noun: str) -> str:
        if self.n_highest == 1:
            return f"the highest-scoring {noun}"
        return (
            f"at least {self.n_members:,} of the {self.n_highest:,} highest-scoring"
            f" {noun}s"
        )


def find_top_bound(findings: pl.DataFrame) -> TopBound | None:
    rows = find_rows(findings, "top")
    if not rows or not rows["at_least"]["value"]:
        return None
    n = {name: row["value"] for name, row in rows.items()}
    return TopBound(
        level=rows["at_least"]["subject"],
        n_members=int(n["at_least"]),
        n_highest=int(n["of_top"]),
        n_null=int(n["n_null"]),
        confidence=n["confidence"],
    )


def _write_top(
    findings: pl.DataFrame, verdicts: pl.LazyFrame, rule: DecisionRule
) -> Iterator[str]:
    """Write how many of the highest are members, and name them unless they are texts."""
    bound = find_top_bound(findings)
    if bound is None:
        return
    noun = _find_noun(findings, bound.level)
    subject = bound.describe(noun)
    if bound.n_members == bound.n_highest > 1:
        subject = f"all {bound.n_highest:,} highest-scoring {noun}s"
    names = ""
    if noun not in ("text", "author"):
        names = f": {_name_highest(verdicts, bound.n_highest)}"
    if bound.n_members < bound.n_highest:
        single = bound.n_members == 1
        unsaid = "which one it is" if single else f"which {bound.n_members:,} they are"
        names += f". The bound does not say {unsaid}"
    yield (
        f"{capitalize(subject)} {conjugate('stand', bound.n_members)} out beyond chance"
        f" from {bound.n_null:,} {noun}s outside the training data"
        f" ({100 * bound.confidence:g} % confidence, {rule.primary}){names}."
    )


def _write_max_t(findings: pl.DataFrame) -> Iterator[str]:
    rows = find_rows(findings, "max_t")
    if "largest" not in rows:
        return
    largest, n_attacks = rows["largest"], rows["n_attacks"]
    noun = _find_noun(findings, n_attacks["subject"])
    whole = "" if noun == "text" else "whole "
    later = "; exploratory" if largest["verdict"] == "exploratory" else ""
    reason = f", as {largest['reason']}" if largest["reason"] else ""
    yield (
        f"All {n_attacks['value']:,.0f} attacks together (largest rank sum,"
        f" {whole}{noun}s permuted{later}{reason}): p = {largest['p_value']:.3g},"
        f" strongest: {largest['subject']}."
    )


def _write_stopping(findings: pl.DataFrame) -> Iterator[str]:
    n = find_values(findings, "e_values")
    if not n:
        return
    noun = _find_noun(findings, "group")
    spared = (n["n_planned"] - n["n_asked"]) / n["n_planned"]
    yield (
        f"{spared:.0%} of the {n['n_planned']:,.0f} planned windows were not asked:"
        f" each {noun} was asked, in at most {n['n_rounds']:,.0f} rounds, until it was"
        " reported or no longer could be. The promised rate of false reports holds"
        " wherever the rounds are stopped."
    )
    if n["n_undecided"]:
        yield (
            f"{_write_have(n['n_undecided'], noun)} no answer yet; further windows can still"
            " give one."
        )


# The yardstick, and what came out word for word.


def yardstick_sentences(findings: pl.DataFrame, rule: DecisionRule) -> Iterator[str]:
    """Write what came out, and what scored high, of the passages of each level."""
    rows = findings.filter(check="yardstick")
    given_back = _write_hits(rows, "n_given_back", "n_continued")
    if given_back:
        yield (
            "Passages of the yardstick that the model gives back under these settings"
            f" (20 words in a row, or all that follow): {given_back}."
        )
    above = _write_hits(rows, "n_above", "n_scored")
    if above:
        yield (
            f"Passages of the yardstick that score above {1 - rule.fpr:.0%} of the"
            f" texts outside the training data ({rule.primary}): {above}."
        )


def _write_hits(rows: pl.DataFrame, hits: str, trials: str) -> str:
    levels = rows.filter(statistic=hits).select("subject", hits="value")
    totals = rows.filter(statistic=trials).select("subject", total="value")
    joined = levels.join(totals, on="subject", maintain_order="left")
    return "; ".join(
        f"{level}: {n:,.0f} of {total:,.0f}" for level, n, total in joined.iter_rows()
    )


def absence_sentences(findings: pl.DataFrame, rule: DecisionRule) -> Iterator[str]:
    """Write with which probability one text or group more would have been named."""
    rows = findings.filter(check="absence")
    noun = "text" if rule.level == "target" else _find_noun(findings, "group")
    write = "{subject}: {value:.2f} ({low:.2f} to {high:.2f})".format_map
    levels = [*map(write, rows.drop_nulls("value").iter_rows(named=True))]
    if levels:
        yield (
            f"This audit would have reported one more {noun} with the following"
            " probability (95 % interval), if it had been learnt as well as the"
            f" yardstick's passages of that level: {'; '.join(levels)}. That holds if"
            " these passages are like each other, and like the audited texts in all"
            " but what was learnt."
        )
    for row in rows.filter(pl.col("value").is_null()).iter_rows(named=True):
        yield (
            f"It is unknown how likely this audit reports a {noun} that was learnt as"
            f" well as {row['subject']}: {row['reason']}."
        )


def dose_sentences(findings: pl.DataFrame, rule: DecisionRule) -> Iterator[str]:
    """Write about how often groups were learnt, or how many texts more than never."""
    rows = findings.filter(check="dose")
    for reason in rows.filter(pl.col("subject").is_null())["reason"].to_list():
        yield f"It is unknown how often the texts were learnt: {reason!s}."
    doses = rows.drop_nulls("value").sort("value", "subject", descending=[True, False])
    if doses.is_empty():
        return
    if rule.level == "target":
        n_above = doses["low"].count()
        estimates = f"{n_above:,} of {doses.height:,} texts more than 0 times"
    else:
        highest = doses.head(_N_NAMED_AT_MOST)
        estimates = "; ".join(map(_write_dose, highest.iter_rows(named=True)))
    yield (
        "How often texts were learnt, by the ladder of the yardstick and"
        f" {rule.primary}: {estimates}. The limits hold with 95 % confidence for each"
        " text or group by itself, if scores rise with copies, and if the ladder's"
        " texts differ from the audited ones in copies alone."
    )


def _write_dose(row: Row) -> str:
    limits = []
    if row["low"] is not None:
        limits.append(f"more than {row['low']:,.0f}")
    if row["high"] is not None:
        limits.append(f"less than {row['high']:,.0f}")
    within = " and ".join(limits) or "without limits"
    return f"{row['subject']} about {row['value']:,.0f} times ({within})"


def verbatim_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Write what came out word for word, the longest passage and what chance gives."""
    rows = findings.filter(check="verbatim")
    counts = {
        subject: _read_values(of_subject)
        for (subject,), of_subject in rows.group_by("subject", maintain_order=True)
    }
    targets = counts.get("targets", {})
    n_verbatim = int(targets.get("n_verbatim", 0))
    n_walked = int(targets.get("n_walked", 0))
    longest = next(rows.filter(statistic="longest").iter_rows(named=True), None)
    if not (n_verbatim + n_walked and longest):
        return
    results = []
    if n_verbatim:
        ranked = "n_highest" in targets
        texts = "texts of highest scores" if ranked else "texts asked about"
        share = _write_verbatim_share(targets, texts)
        if targets["n_units"] < targets["n_texts"]:
            documents = rows.filter(statistic="document")["subject"].to_list()
            share += f" ({list_names(documents, _N_NAMED_AT_MOST)})"
        results.append(share)
    if n_walked:
        results.append(
            f"{n_walked:,} more passages when the model is followed through the"
            " documents"
        )
    n_words = f"{longest['value']:,.0f} words"
    n_with_gaps = rows.filter(statistic="of_words")["value"].sum()
    n_cut = max(n_with_gaps - longest["value"], 0)
    if n_cut:
        n_words += f", without {n_cut:,.0f} of stretches that could be foreseen"
    passage = " ".join(str(longest["reason"]).split())
    if len(passage) > _MOST_CHARACTERS:
        passage = f"{passage[:_MOST_CHARACTERS]}..."
    yield (
        f"Word for word (at least {VERBATIM_WORDS} words in a row) the model gives"
        " back "
        f"{' and '.join(results)}. The longest passage, of {longest['subject']}, has "
        f'{n_words}: "{passage}"'
    )
    n_foreseen = targets.get("foreseen_words_out")
    if n_foreseen:
        yield (
            f"Of {targets['run_words_out']:,.0f} words in a row that its answers give"
            f" back, {n_foreseen:,.0f} could be foreseen by who has read what stands"
            " before."
        )
    yield _write_verbatim_by_chance(counts, rows.filter(statistic="fisher")["p_value"])


def foreseen_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Write of how many texts no more came out than could be copied or foreseen."""
    value = find_values(findings, "verbatim", subject="targets")
    n_copied = value.get("n_copied")
    if n_copied:
        yield (
            f"Answers about {write_count(n_copied, 'text')} repeat {VERBATIM_WORDS}"
            " words or more of the given prefix, which may be copied without knowing"
            " the text: they do not count."
        )
    n_foreseen = value.get("n_foreseen")
    if n_foreseen:
        yield (
            f"Answers about {write_count(n_foreseen, 'text')} go on as anyone could who"
            " has read what stands before, by counting, by a table's rows or by"
            f" repeating: {value['foreseen_words'] or 0:,.0f} of"
            f" {value['run_words'] or 0:,.0f} words in a row could be foreseen, so they"
            " do not count as word for word."
        )


def continued_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Write which texts of highest scores were not continued, and what that would cost."""
    rows = find_rows(findings, "continued")
    if not rows or not role_counts(findings)["n_unknown"]:
        return
    n_continued, n_highest = rows["n_continued"]["value"], rows["n_highest"]["value"]
    cost = rows["n_continued"]["reason"]
    if rows["n_continued"]["verdict"] == "not_asked":
        yield (
            "No text was continued, so it is not known whether any comes out word for"
            f" word: --continue-strongest {n_highest:,.0f} asks, for {cost}."
        )
        return
    number = f"{n_continued:,.0f}" if n_continued else "None"
    yield (
        f"{number} of the {write_count(n_highest, 'text')} of highest scores"
        f" {'was' if n_continued <= 1 else 'were'} continued, because --max-cost leaves"
        f" no more: a higher one continues the others, for {cost}."
    )


def known_sentence(row: Mapping[str, Any]) -> str:
    """Write where a passage stands in the known corpus, from its row of table ``known``."""
    if row["reason"] is not None:
        return (
            "It is unknown where its passage stands in the known corpus:"
            f" {row['reason']}."
        )
    n, n_documents = row["n_occurrences"], row["n_documents"]
    n_near = row["n_near_documents"]
    if not n:
        near = ""
        if n_near:
            near = f"; {n_near:,} documents have {VERBATIM_WORDS} words of it in a row"
        return f"No document of the known corpus has its whole passage{near}."
    times = "once" if n == 1 else f"{n:,} times"
    place = row["document"]
    if n_documents is None:
        place = f"documents, which were not all counted, first in {place}"
    elif n_documents != 1:
        place = f"{n_documents:,} documents, first in {place}"
    return f"The passage that came out stands {times} in the known corpus, in {place}."


def _write_verbatim_share(counts: Mapping[str, float], noun: str) -> str:
    texts = f"{counts['n_verbatim']:,.0f} of {counts['n_texts']:,.0f} {noun}"
    if counts["n_units"] == counts["n_texts"]:
        return texts
    return (
        f"{texts}, in {counts['n_units_verbatim']:,.0f} of {counts['n_units']:,.0f}"
        " documents"
    )


def _write_verbatim_by_chance(
    counts: Mapping[object, Mapping[str, float]], fisher: pl.Series
) -> str:
    """Write how often as much comes out where there is nothing to remember."""
    results = []
    non_members = counts.get("non_members", {})
    if non_members.get("n_texts"):
        ranked = " of highest scores" if "n_highest" in counts["targets"] else ""
        noun = f"comparison texts{ranked} come out"
        results.append(_write_verbatim_share(non_members, noun))
    for control, clause in _CONTROLS.items():
        n = counts.get(control, {})
        if n.get("passages"):
            results.append(
                f"{n['repeated']:,.0f} of {n['passages']:,.0f} passages {clause}"
            )
    if not results:
        remedy = "give --non-members, or ask with --controls"
        return f"How often chance gives as much was not measured: {remedy}."
    test = ""
    if fisher.null_count():
        test = (
            " (no p-value, because the two sets can be distinguished without the model)"
        )
    elif len(fisher):
        test = f" (Fisher's exact test: p = {fisher[0]:.2g})"
        if fisher[0] > _SIGNIFICANT_P:
            test += ", so these counts alone do not tell the two apart"
    return f"For comparison: {'; '.join(results)}{test}."


# What may be concluded from a run.

_NO_NULL = (
    "Without comparison texts the scores only rank your texts, and a high score alone"
    " shows nothing: add --non-members FOLDER to get an answer for each."
)


@dataclass(frozen=True, slots=True)
class RunResults:
    """What sentences are made from."""

    metrics: pl.DataFrame
    verdicts: pl.LazyFrame
    findings: pl.DataFrame
    rule: DecisionRule

    def __post_init__(self) -> None:
        """Let nothing pass that the gate withholds, whatever the tables of a run hold."""
        object.__setattr__(self, "findings", apply_gate(self.findings))
        if is_closed(self.findings):
            reason = str(why_withheld(self.findings))
            changed = gate_verdict(self.findings) == "changed"
            verdicts = withhold(self.verdicts, reason, all_sets=changed)
            object.__setattr__(self, "verdicts", verdicts)

    def allowed_comparisons(self) -> dict[str, bool]:
        """Return which comparisons the run allows, by their names in `CONCLUSIONS`."""
        roles = role_counts(self.findings)
        continues = why_not_continued(self.findings) is None
        has_labels = continues and bool(
            find_rows(self.findings, "blind_baseline", subject="members")
        )
        has_targets = continues and bool(roles["n_unknown"])
        has_nulls = continues and bool(roles["n_nulls"])
        has_canaries = continues and bool(roles["n_canaries"])
        has_both_sets = has_targets and has_nulls
        gate = gate_verdict(self.findings)
        compares = has_both_sets and not is_closed(self.findings)
        return {
            "always": True,
            "labels": has_labels,
            "canaries": has_canaries,
            "targets and non-members": has_both_sets,
            "targets alone": has_targets and not (has_nulls or has_canaries),
            "any comparison": has_labels or has_nulls or has_canaries,
            "open gate": gate == "open",
            "comparison of targets": compares,
            "comparison without weights": compares and gate != "weighted",
        }


def one_sided_sentence(results: RunResults) -> Iterator[str]:
    """Write that all texts have the same label, so that nothing is compared."""
    auc = find_auc(results.metrics, results.rule.primary) or {}
    n_members, n_others = auc.get("n_members"), auc.get("n_nonmembers")
    roles = role_counts(results.findings)
    if n_others and not n_members:
        label, missing = "non-members", "members"
        remedy = "texts without a label to ask about"
    elif n_members and not n_others and not roles["n_nulls"]:
        label, missing = "members", "non-members"
        remedy = "leave the labels out and give --non-members"
    else:
        return
    if not roles["n_unknown"]:
        yield (
            f"All texts are labelled as {label}, so that there is nothing to compare"
            f" them with: add texts that are labelled as {missing}, or {remedy}."
        )


def _write_earlier(results: RunResults) -> Iterator[str]:
    compares = results.allowed_comparisons()["any comparison"]
    return earlier_sentences(results.findings, compares=compares)


def _from_findings(write: Callable[..., Iterable[str]], *options: str) -> Writer:
    return lambda results: write(results.findings, *options)


def _by_rule(write: Callable[..., Iterable[str]]) -> Writer:
    return lambda results: write(results.findings, results.rule)


def own_answers_sentence(results: RunResults) -> Iterator[str]:
    """Write what a score of the model's own answers cannot tell apart."""
    name = results.rule.primary
    if name not in OWN_ANSWERS:
        return
    yield (
        f"{name} reads answers that the model gave, and none of yours: it is high where"
        " training by reinforcement rewarded this prompt, and also where the answer was"
        " learnt from texts before, or where there is one way to answer. Only prompts of"
        " the same kind that are known to be outside the training can tell these apart."
    )
    if name in MEASURED:
        yield f"{name} found {MEASURED[name]}."


# Doubts come before what they are about, and what came out word for word before all
# estimates.
CONCLUSIONS: Final[tuple[tuple[str, Writer], ...]] = (
    ("always", _from_findings(change_sentence)),
    ("always", _from_findings(draw_sentences)),
    ("always", _from_findings(start_sentences)),
    ("always", _from_findings(quantisation_sentences)),
    ("always", _from_findings(chance_sentences)),
    ("always", _from_findings(dress_sentences)),
    ("always", _from_findings(verbatim_sentences)),
    ("always", _from_findings(foreseen_sentences)),
    ("always", _from_findings(continued_sentence)),
    ("always", _from_findings(gate_sentence)),
    ("always", _from_findings(weights_sentence)),
    ("always", _from_findings(placebo_sentence, "as_many")),
    ("always", _from_findings(undeclared_sentences)),
    ("targets and non-members", _from_findings(near_copies_sentence)),
    ("comparison of targets", _from_findings(author_sentence)),
    (
        "always",
        _write_earlier,
    ),
    ("always", one_sided_sentence),
    ("always", own_answers_sentence),
    ("labels", _from_findings(label_sentence)),
    ("always", _from_findings(plan_sentence)),
    ("always", _from_findings(later_sentence)),
    ("always", _from_findings(lodged_sentence)),
    ("always", _from_findings(answers_sentences)),
    ("always", _from_findings(versions_sentence)),
    ("labels", _from_findings(uneven_sentence)),
    (
        "labels",
        lambda results: labelled_sentences(
            results.metrics, results.findings, results.rule.primary
        ),
    ),
    (
        "labels",
        lambda results: wrong_labels_sentence(results.metrics, results.rule.primary),
    ),
    (
        "comparison of targets",
        lambda results: unlabelled_sentences(
            results.verdicts, results.findings, results.rule
        ),
    ),
    ("always", _from_findings(placebo_sentence, "fewer")),
    ("comparison of targets", _by_rule(absence_sentences)),
    ("always", _by_rule(yardstick_sentences)),
    ("always", _by_rule(dose_sentences)),
    ("canaries", lambda results: canary_sentences(results.verdicts, results.rule)),
    ("always", _from_findings(set_sentences)),
    (
        "comparison without weights",
        lambda results: islice(power_sentences(results.findings), 1),
    ),
    ("comparison of targets", _from_findings(null_audit_sentence)),
    ("open gate", _from_findings(exchangeability_sentence)),
    ("targets and non-members", _from_findings(duplicates_sentence, "targets")),
    ("targets alone", lambda _: [_NO_NULL]),
    ("any comparison", _from_findings(copies_sentence)),
)
"""Each conclusion in its order: the comparison it needs, and what writes its sentences."""


POWER = "What this audit could have found"
CHECKS: Final[Mapping[str, tuple[str, Writer, str]]] = {
    "How often it was tried": (
        "always",
        _write_earlier,
        (
            "No other run of these texts and this model is known, neither next to this"
            " one nor in the journal of runs. Runs on other machines are not known."
        ),
    ),
    POWER: (
        "comparison without weights",
        lambda results: chain(
            power_sentences(results.findings),
            absence_sentences(results.findings, results.rule),
        ),
        "Not worked out: that needs texts of unknown membership, and --non-members.",
    ),
    "Placebo: the same test on another model": (
        "always",
        _from_findings(placebo_sentence, "as_many", "fewer"),
        (
            "Not made: that needs a model which did not see the texts; give"
            " --reference-model."
        ),
    ),
    "Positive control: texts that models are known to remember": (
        "always",
        _by_rule(yardstick_sentences),
        "Not asked: the run has no passages of the yardstick; give --yardstick.",
    ),
    "Audits of comparison texts alone": (
        "comparison of targets",
        _from_findings(null_audit_sentence),
        "Not made: that needs texts of unknown membership, and --non-members.",
    ),
    "How often chance gives as much, word for word": (
        "always",
        lambda results: islice(verbatim_sentences(results.findings), 1, 2),
        "Not counted: no passage was looked for, or none came out.",
    ),
}
"""How sure a run is, by name: the comparison it needs, its writer, and why it is missing."""


def checks(results: RunResults) -> dict[str, list[str]]:
    """Return how sure a run is, check by check; a check that was not made says so."""
    allowed = results.allowed_comparisons()
    lines_by_check = {}
    for name, (comparison, write, missing) in CHECKS.items():
        lines = [*write(results)] if allowed[comparison] else []
        lines_by_check[name] = lines or [missing]
    return lines_by_check


def preflight_sentences(findings: pl.DataFrame) -> Iterator[str]:
    differences = (label_sentence, gate_sentence, weights_sentence)
    dependence = (undeclared_sentences, near_copies_sentence)
    for write in (*differences, *dependence):
        yield from write(findings)
    yield from duplicates_sentence(findings, "targets")
    if not is_closed(findings):
        yield from power_sentences(findings)


def sentences(results: RunResults) -> Iterator[str]:
    allowed = results.allowed_comparisons()
    for comparison, write in CONCLUSIONS:
        if allowed[comparison]:
            yield from write(results)
