"""Sentences of a run, rendered from rows of metrics, verdicts and findings."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

import polars as pl

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
from mia_batch.inference.memory import VERBATIM_WORDS

Say = Callable[["RunResults"], Iterable[str]]
_NAMES_SHOWN = 3
_MOST_NAMED = 12
_LEVEL = 0.05
# The AUC of a wrong sign; texts of each class in a quintile
_WRONG_WAY, _FEWEST = (
    0.4,
    5,
)
_MOST_CHARACTERS = 200
_ACTING = (
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
_PLACES = ("occurrences", "documents", "near_documents")
_ADJUSTMENTS = {
    "bh": "Benjamini-Hochberg",
    "by": "Benjamini-Yekutieli",
    "e-bh": "e-BH",
    "wcs": "weighted conformalized selection",
}


def facts(
    findings: pl.DataFrame, check: str, **equal: str
) -> dict[str, dict[str, Any]]:
    """Find the rows of a check by statistic, of which each has one."""
    rows = findings.filter(check=check, **equal).iter_rows(named=True)
    return {row["statistic"]: row for row in rows}


def _subject(of: dict[str, dict[str, Any]]) -> str:
    return next((str(row["subject"]) for row in of.values()), "")


def listed(names: Sequence[str], most: int = _NAMES_SHOWN) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


# Whether texts give themselves away without the model.

_GATES = {  # why comparisons with non-members are withheld, or in doubt, by the verdict of the gate
    "withheld": (
        "No answer: the audited texts and the comparison texts can be distinguished"
        " without the model ({found}), so a high score may come from another difference"
        " between them. p-values, lists, bounds and estimates are withheld. Give"
        " comparison texts of the same kind and time (mia-batch build-set matches"
        " them), or --exploratory to print the numbers as exploratory."
    ),
    "weighted": (
        "The answer rests on weights: the audited texts and the comparison texts can be"
        " distinguished without the model ({found}). Bounds and estimates cannot be"
        " weighted and are withheld."
    ),
    "exploratory": (
        "Exploratory: the audited texts and the comparison texts can be distinguished"
        " without the model ({found}). What follows may come from another difference"
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

_LABELS = {  # what the blind baseline makes of labels, by its verdict
    None: (
        "It could not be checked whether members and non-members differ without the"
        " model ({reason}): attack figures alone are no evidence of memory."
    ),
    "separable": (
        "Members and non-members differ without the model ({found}): attack figures are"
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


def blind_row(findings: pl.DataFrame, subject: str) -> dict[str, Any] | None:
    """Find what the blind baseline made of a label, with the ``strongest`` classifier."""
    of = facts(findings, "blind_baseline", subject=subject)
    if not of:
        return None
    row, strongest = of["roc_auc"], of.get("strongest", {}).get("verdict")
    said = {"strongest": strongest, "excluded": excluded(row["high"])}
    if row["value"] is not None:
        said["found"] = (
            f"AUC {row['value']:.2f} by {strongest}, p = {row['p_value']:.3f}"
        )
    plain = plain_difference(findings) if subject == "targets" else None
    if plain is not None and row["verdict"] != "separable":
        by = f"by {plain['subject']} alone, p = {plain['p_value']:.3g}"
        said |= {"found": f"AUC {plain['value']:.2f} {by}", "plain": plain["subject"]}
    return row | said


def excluded(above: float | None) -> str:
    """Say which AUC is the highest that is not excluded: None and 1.00 exclude none."""
    limit = f"{1 if above is None else above:.2f}"
    return (
        "too few texts to exclude any AUC"
        if limit == "1.00"
        else f"AUC at most {limit}"
    )


def gate_sentence(findings: pl.DataFrame) -> Iterator[str]:
    # A service that changed has a sentence of its own, and leaves nothing to be in
    # doubt about.
    verdict, row = blind_verdict(findings), blind_row(findings, "targets")
    if gate_verdict(findings) == "changed" and verdict != "withheld":
        return
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
            "Classifiers that see only the texts do not tell targets from non-members:"
            f" an AUC above {row['high']:.2f} is ruled out with 95 % confidence (0.50"
            " is guessing)."
        )


# Whether a service changed while it was asked.


def change_sentence(findings: pl.DataFrame) -> Iterator[str]:
    if (change := change_of_service(findings)) is None:
        return
    first = f"{change[:1].upper()}{change[1:]}, so the scores are of no single model."
    if gate_verdict(findings) == "exploratory":
        yield f"{first} What follows is exploratory and no evidence of training."
        return
    if blind_row(findings, "members") is not None:
        first += (
            " An AUC is that of all versions together: where the order of asking was"
            " drawn by lot, a change draws it towards 0.50 and gives no false sign of"
            " memory."
        )
    yield (
        f"{first} p-values, lists, bounds and estimates are withheld. Ask again under"
        " another --out, by the name of a version that stays where the service has"
        " one, or give --anyway to print the numbers as exploratory."
    )


def versions_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say why several versions of a service turn no answer, where they do not."""
    row = facts(findings, "order").get("n_versions")
    if row is None or row["verdict"] not in ("few", "in_turn"):
        return
    others, total = f"{row['low']:,.0f}", f"{row['high']:,.0f}"
    alike = "by lot they fall on audited and comparison texts alike"
    if row["verdict"] == "few":
        yield (
            f"{others} of {total} answers came from another version of the service than"
            f" the others: {alike}, and move no p-value by more than about 0.01."
        )
    else:
        yield (
            f"The service answered by {row['value']:,.0f} versions in turn, whenever"
            f" and whatever it was asked ({others} of {total} answers came from others"
            f" than the most frequent): {alike}. The comparison holds, and the answer"
            " is about all versions together."
        )


# Copies, books, other runs, answers.


def duplicates_sentence(findings: pl.DataFrame, subject: str) -> Iterator[str]:
    """Count texts of a set that stand in the non-members, and the other way round, if any do."""
    found, said, any_concerned = findings.filter(check="duplicates"), [], False
    for side, name in {subject: subject, f"not {subject}": "non-members"}.items():
        of = dict(found.filter(subject=side).select("statistic", "value").iter_rows())
        any_concerned |= bool(of.get("n_concerned"))
        if of.get("share") is None:
            said.append(f"no {name} of 8 words to compare")
            continue
        more = of["n_left_out"]
        left_out = f" ({more:,.0f} more not compared)" if more else ""
        counts = f"{of['n_concerned']:,.0f} of {of['n_compared']:,.0f} {name}"
        said.append(f"{counts}, {of['share']:.1%}{left_out}")
    if any_concerned:
        example = found.filter(subject=subject, statistic="example")["reason"][0]
        yield (
            "Near-duplicates (a run of 13 words, or 70% of the runs of 8 words, stands"
            f" in the other set): {', '.join(said)}; {example}."
        )


def copies_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Warn of texts of both labels, and of copies that count as independent unless they are few."""
    if of := facts(findings, "duplicates", subject="labels"):
        n = of["n_both"]["value"]
        yield (
            f"{n:,.0f} {'text is' if n == 1 else 'texts are'} labelled member in one"
            " row and non-member in another, word for word: one of the labels is"
            " wrong, and figures of attacks are nearer to chance. Leave these texts"
            " out, or correct the labels."
        )
    found = facts(findings, "duplicates", subject="texts")
    if found["n_copies"]["verdict"] == "many":
        yield (
            f"{found['n_copies']['value']:,.0f} of {found['n_texts']['value']:,.0f}"
            " texts stand in another group or document, too, word for word: their"
            " errors move together, but intervals and p-values count them as"
            " independent. Give copies the same group, or keep one of each."
        )


def undeclared_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say which texts look like parts of one book although no group says so."""
    found = findings.filter(pl.col("verdict") != "apart", check="undeclared_books")
    for row in found.iter_rows(named=True):
        one = row["verdict"] == "one_group"
        count = (
            "They count as one group" if one else "Each counts as an independent text"
        )
        yield (
            f"The {row['subject']} look like parts of one book, or of a few:"
            f" neighbouring rows are {row['value']:.2f} times as alike as rows at"
            f" random (p = {row['p_value']:.3g}). {count}: give a column `group` that"
            " says which belong together, with a value of its own for each text that"
            " stands alone."
        )


def near_copies_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say how many comparison texts are copies of others, and that such texts count once."""
    if of := facts(findings, "near_copies"):
        n = {name: row["value"] for name, row in of.items()}
        yield (
            f"{n['n_copies']:,.0f} of {n['n_texts']:,.0f} comparison texts are near"
            f" copies of each other, in {_counted(n['n_groups'], 'group')} (a third or"
            " more of their runs of 3 words in common). Each group counts as one"
            " comparison text, and classifiers that never see the model learn and are"
            " tested on whole groups."
        )


def author_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say that authors are compared instead of books, or that it is unknown who wrote them."""
    main = facts(findings.filter(pl.col("subject").is_null()), "authors").get("n_books")
    if main is None or main["verdict"] == "apart":
        return
    audited, others = (
        {
            name: row["value"]
            for name, row in facts(findings, "authors", subject=subject).items()
        }
        for subject in ("targets", "non_members")
    )
    if main["verdict"] == "withheld":
        yield (
            f"What all texts show together is withheld: {main['reason']}. Texts by one"
            " author move together, so that they count once together."
        )
    elif main["verdict"] == "unknown":
        yield (
            f"The authors of {audited['n_unknown']:,.0f} of"
            f" {audited['n_clusters']:,.0f} audited and {others['n_unknown']:,.0f} of"
            f" {others['n_clusters']:,.0f} comparison texts are unknown. If several are"
            " by one author, p-values of all texts together and bounds are too small,"
            " because texts by one author move together: name authors in the files'"
            " metadata or with --author-column."
        )
    else:
        yield from _by_author(audited, others, main["value"])


def _by_author(
    audited: Mapping[str, float], others: Mapping[str, float], n_books: float
) -> Iterator[str]:
    unknown = audited["n_unknown"] + others["n_unknown"]
    left_out = (
        f" {unknown:,.0f} more by unknown authors are left out there."
        if unknown
        else ""
    )
    n_audited, n_others = (
        of_set["n_clusters"] - of_set["n_unknown"] for of_set in (audited, others)
    )
    yield (
        f"Texts by one author count once together: {n_audited:,.0f} audited texts or"
        f" books are by {_counted(audited['n_authors'], 'author')}, {n_others:,.0f}"
        f" comparison ones by {others['n_authors']:,.0f}. P-values of all together and"
        f" bounds compare authors, each by {n_books:,.0f} of its texts or books, drawn"
        f" by lot before scores were seen.{left_out}"
    )
    if audited["n_authors"] == 1:
        yield (
            "All audited texts are by one author. This audit cannot know whether the"
            " model remembers these texts, or has learnt how this author writes from"
            " others: only comparison texts by the same author could tell, and one"
            f" author among {others['n_authors']:,.0f} has no p-value below"
            f" {1 / (others['n_authors'] + 1):.2g} for all texts together."
        )


def earlier_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Name the other runs of the same texts and model, which p-values of the answer count."""
    rows = findings.filter(check="earlier_runs", statistic="primary").rows(named=True)
    if not rows:
        return
    unplanned = ("primary unknown, unknown", "stopped before its plan was made")
    plans = (
        f"{row['subject']} (primary {row['verdict']})".replace(*unplanned)
        for row in rows
    )
    n, (runs, are) = len(rows), ("run", "is") if len(rows) == 1 else ("runs", "are")
    yield (
        f"{n:,} other {runs} of these texts and this model {are} known:"
        f" {listed([*plans])}. The best of several runs looks better than it is:"
        " p-values and q-values of this attempt are multiplied by"
        f" {Attempts(n + 1).factor:,}, and bounds and rates of members are withheld."
    )


def chance_sentences(findings: pl.DataFrame) -> Iterator[str]:
    for row in findings.filter(check="chance", verdict="no_better").iter_rows(
        named=True
    ):
        yield (
            f"The {row['subject']} model predicts these texts no better than chance"
            f" ({row['value']:.1f} nats a token, chance {row['high']:.1f}): its scores"
            " mean nothing unless the texts are random themselves. Check that it is"
            " trained, and its tokenizer."
        )


def start_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say which model reads texts better with a start token, or without, than its tokenizer."""
    for row in findings.filter(check="start_token").iter_rows(named=True):
        own, other, token = row["value"], row["high"], repr(row["reason"])
        if row["statistic"] == "nats_per_token":
            figures = f"a loss of {-other:.2f} nats a token instead of {-own:.2f}"
        else:
            figures = f"{other:.0%} of next tokens right instead of {own:.0%}"
        if row["verdict"] == "added":
            how = (
                f"after its start token {token}",
                "does not add: it was added to every prompt",
            )
        else:
            how = (
                f"without the start token {token}",
                "adds: it was left out of every prompt",
            )
        yield (
            f"The {row['subject']} model reads these texts better {how[0]} ({figures}),"
            f" which its tokenizer {how[1]} and text."
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


def worn(layers: Iterable[tuple[str, str | None]]) -> str:
    """Name what stands around answers, by kind and text."""
    named = [
        f"{_LAYERS[kind]} ({text[:_MOST_CHARACTERS]!r})" if text else _LAYERS[kind]
        for kind, text in layers
    ]
    return ", ".join(named)


def dress_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what stood around the continuations and was taken off, and what was not."""
    of = facts(findings, "dress", subject="target")
    if not of:
        return
    n = of["n_prompts"]["value"]
    layers = findings.filter(check="dress", statistic="taken_off").select(
        "subject", "reason"
    )
    if layers.height:
        yield (
            f"The answers to {of['n_dressed']['value']:,.0f} of {n:,.0f} prompts that"
            " were looked at have more than a continuation:"
            f" {worn(layers.iter_rows())}. One rule takes it off all answers before"
            " they are compared; the table of samples keeps both forms."
        )
    if (why := why_not_continued(findings)) is not None:
        yield (
            f"{_sentence(why)} No area, p-value or estimate is given. Take another"
            " model, a completions endpoint, or another --chat-instruction."
        )
        return
    left = {"begin alike": "n_alike", "repeat the end of the prompt": "n_repeating"}
    for what, name in left.items():
        if count := of[name]["value"]:
            yield (
                f"The answers to {count:,.0f} of {n:,.0f} prompts {what}, and are"
                " scored so."
            )


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."


def answers_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what kinds of answers came where not all were texts, and what may have acted on them."""
    acting = pl.col("verdict") != "honoured", pl.col("subject").is_in(_ACTING)
    unsure = findings.filter(*acting, check="endpoint")["subject"]
    if len(unsure):
        yield (
            f"The endpoint accepts no neutral value of {', '.join(unsure)}. Its own"
            " value may change every answer, and the same model may answer otherwise"
            " elsewhere."
        )
    for view, rows in findings.filter(check="answers").group_by(
        "subject", maintain_order=True
    ):
        counts = dict(rows.select("statistic", "value").iter_rows())
        n_cut = counts.pop("cut")
        if counts.keys() != {"text"}:
            parts = [
                f"{n:,.0f} {_ANSWERS.get(kind, kind)}" for kind, n in counts.items()
            ]
            cut = (
                f"; {n_cut:,.0f} were cut before the reference's length"
                if n_cut
                else ""
            )
            yield (
                f"Of {sum(counts.values()):,.0f} samples ({view[0]}):"
                f" {', '.join(parts)}{cut}."
            )
    for kind, verb in (
        ("filtered", "The provider filtered"),
        ("refusal", "The model refused"),
    ):
        found = findings.filter(check="held_back", statistic=kind)
        for row in found.iter_rows(named=True):
            p_value = row["p_value"]
            by_chance = "" if p_value is None else f" (p = {p_value:.3g})"
            evidence = (
                "" if p_value is None else " That difference is evidence by itself."
            )
            yield (
                f"{verb} answers about {row['subject']} and non-members unequally"
                f" often: shares differ by {row['value']:.1%}{by_chance}.{evidence}"
                " Scores rest on the other answers alone."
            )


# Labelled runs.


def uneven_sentence(findings: pl.DataFrame) -> Iterator[str]:
    found = findings.filter(check="uneven_scores")
    if found.is_empty():
        return
    most, others = (
        found.filter(verdict=each)["subject"].to_list() for each in ("most", "more")
    )
    too = f" Uneven, too: {listed(others)}." if others else ""
    kinds = findings.filter(check="answers")["statistic"]
    # Classed answers would be the same again
    mends = kinds.is_empty() or "failed" in kinds
    again = "Ask again for what failed (--retry-failed), leave" if mends else "Leave"
    parts = []
    for name in ("members", "non-members"):
        of = facts(findings, "uneven_scores", subject=name)
        missing, n, share = (
            of["n_unscored"],
            of["n_texts"]["value"],
            of["share"]["value"],
        )
        mostly = f"; mostly: {missing['reason']}" if missing["reason"] else ""
        parts.append(
            f"{missing['value']:,.0f} of {n:,.0f} {name} ({share:.1%}{mostly})"
        )
    yield (
        f"Scores by {listed(most)} are missing more often in one class: for"
        f" {' and '.join(parts)}.{too} AUC and other metrics then describe a selected"
        f" subset, and may show how it was selected instead of memory. {again} such"
        " texts out of both classes by a rule that does not ask the model, or rest the"
        " answer on an attack that scores both."
    )


def labelled_sentences(
    metrics: pl.DataFrame, findings: pl.DataFrame, primary: str
) -> Iterator[str]:
    """Say what labels show; nothing where labels are not of both classes."""
    blind = blind_row(findings, "members")
    if blind is None:
        return
    strongest = blind["strongest"]
    in_quintile = pl.col("slice").str.starts_with("blind quintile")
    enough = pl.min_horizontal("n_members", "n_nonmembers") >= _FEWEST
    quintiles = metrics.filter(in_quintile, metric="roc_auc", attack=primary)
    values = quintiles.select(pl.when(enough).then("value")).to_series()
    if blind["verdict"] != "not separable" and values.count() > 1:
        shown = ", ".join("-" if value is None else f"{value:.2f}" for value in values)
        yield f"{primary}: AUC within quintiles of the score of {strongest}: {shown}."
    low = metrics.filter(pl.col("high") < _WRONG_WAY, metric="roc_auc", slice="all")[
        "attack"
    ]
    if turned := [name for name in low if not name.startswith("blind_")]:
        yield (
            f"Members score lower than non-members by {listed(turned)}. A higher score"
            " has to mean a member: if the attack is yours, turn its sign."
        )
    bounds = metrics.filter(pl.col("low").is_not_null(), metric="roc_auc_simultaneous")
    if bounds.height > 1:
        best = bounds.sort("low", descending=True).row(0, named=True)
        where = "" if best["slice"] == "all" else f" on {best['slice']}"
        tried = (
            f"{bounds.height:,} attacks and slices, corrected for trying all of them"
        )
        said = (
            f"Best of {tried}: {best['attack']}{where}, AUC at least {best['low']:.2f}."
        )
        yield (
            said
            if best["low"] > 0.5
            else f"None of {tried}, is shown to be better than chance."
        )
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
    learned = findings.filter(check="combination")
    if learned.height:
        counts = dict(learned.select("statistic", "value").iter_rows())
        yield _COMBINATIONS.get(learned["verdict"][0], _COMBINATIONS["all"]).format(
            **counts
        )
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
            f"Less likely after the shots than alone (CoDeC): {' and '.join(shares)},"
            " 95 % intervals. Only a difference of the two may come from training."
        )


def _dataset_inference(of: dict[str, dict[str, Any]]) -> str:
    p, reason = of["permutation"]["p_value"], of["permutation"]["reason"]
    if p is None:
        return f"All attacks together (dataset inference): no p-value ({reason})."
    n = {name: of[name]["value"] for name in ("n_learned", "n_targets", "n_null")}
    return (
        f"All attacks together (dataset inference, learned on {n['n_learned']:,.0f}"
        f" groups, tested on {n['n_targets']:,.0f} others against {n['n_null']:,.0f}"
        f" outside the training data): p = {p:.3g}, exploratory; by the paper's own"
        " form, which takes texts of a group for independent, p ="
        f" {of['paper']['p_value']:.3g}. Both suppose that the sets differ in nothing"
        " but training."
    )


# What the test can show, and whether it was planned.


def power_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what the planned test can show at best, and what would allow more."""
    of = facts(findings, "power")
    if not of:
        return
    value = {name: row["value"] for name, row in of.items()}
    unit, wanted = of["n_tests"]["verdict"], value["nulls_needed"]
    asked, lone = _counted(value["n_tests"], unit), value["n_tests"] == 1
    compared, q = (
        _counted(value["n_null"], f"comparison {unit}"),
        f"q = {value.get('q', 0):g}",
    )
    more = f"give at least {wanted or 0:,.0f}"
    if wanted is None:
        yield (
            f"None of your {asked} can be compared: windows are too few, or lengths"
            " unknown."
        )
        return
    if _subject(of) == "collection":
        least = (
            f"p-value of your {asked} together can be {value['together']:.2g} at best"
        )
        if of["together"]["verdict"] == "possible":
            yield f"With {compared} the {least}."
        else:
            yield (
                f"With {compared} nothing can be shown at 0.05, for the {least}:"
                f" {more}."
            )
        return
    if of["n_null"]["verdict"] == "of_one_length":
        compared, more = f"at most {compared} of one length", f"{more} of each length"
    named = ("one", "two", "three", "four", "five")[int(value["n_named"]) - 1]
    more = f"to name {'it' if lone else f'{named} of them'}, {more}"
    if of["together"]["verdict"] == "possible":
        more += ", or ask --level collection"
    if (needed := value["needed"]) is None:
        none = f"your {unit} cannot" if lone else f"none of your {asked} can"
        yield f"With {compared} {none} be named at {q}, whatever the scores; {more}."
    elif needed == 1:
        one = f"your {unit}" if lone else f"a single one of your {asked}"
        yield f"With {compared} {one} can be named, if it stands out."
    else:
        yield (
            f"With {compared} single {unit}s can be named only if {needed:,.0f} of your"
            f" {value['n_tests']:,.0f} stand out; {more}."
        )
    if needed is not None:
        yield (
            f"A {unit} stands out where it scores higher than every comparison {unit}:"
            f" its p-value is then {value['smallest_p']:.2g}. The named ones form a"
            f" list at {q} ({_ADJUSTMENTS[of['q']['verdict']]})."
        )
    if value["for_bound"] is not None:
        yield (
            f"If {value['for_bound']:,.0f} of your {asked} score higher than every"
            f" comparison {unit}, at least one of them stands out beyond chance (95 %"
            " confidence)."
        )


def _counted(n: float, what: str) -> str:
    return f"{n:,.0f} {what}{'' if n == 1 else 's'}"


def plan_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say that answers are exploratory; nothing where they are those that were planned."""
    rows = findings.filter(check="plan")
    main = next(rows.filter(statistic="n_changed").iter_rows(named=True), None)
    if main is None or main["verdict"] == "as_planned":
        return
    if main["verdict"] == "late":
        yield f"These answers are exploratory: {main['reason']}."
        return
    changed = rows.filter(statistic="changed")["subject"]
    others = f" Changed since: {', '.join(changed)}." if len(changed) else ""
    yield (
        "These answers are exploratory: scores had been made before they were asked"
        " for. The plan made before is in run.json (primary attack"
        f" {main['subject']}).{others}"
    )


def later_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Name the attacks that were added to the planned ones."""
    if names := findings.filter(check="later")["subject"].to_list():
        are = "is" if len(names) == 1 else "are"
        yield (
            f"{listed(names)} {are} exploratory: scores by"
            f" {'it' if are == 'is' else 'them'} were added after the first scores. The"
            " answer does not rest on them."
        )


def lodged_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say whether the audit is the one of the plan lodged; nothing where none was."""
    rows = findings.filter(check="lodged")
    for row in rows.filter(statistic="n_differences").iter_rows(named=True):
        late = f"; {row['reason']}" if row["reason"] else ""
        if row["verdict"] == "equal":
            yield (
                "The audit is equal to the plan lodged (SHA-256"
                f" {row['subject']}){late}."
            )
            continue
        each = "; ".join(rows.filter(statistic="difference")["reason"])
        yield (
            f"The audit differs from the plan lodged (SHA-256 {row['subject']}{late})."
            f" {each}."
        )


def null_audit_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say how often audits of texts outside the training data alone report any."""
    of = facts(findings, "null_audits")
    if (found := of.get("share_reporting")) is None:
        return
    if found["value"] is None:
        yield f"The rates were not validated on these non-members: {found['reason']}."
        return
    n, noun = (
        {name: row["value"] for name, row in of.items()},
        _noun(findings, _subject(of)),
    )
    more = ": more than was promised" if found["verdict"] == "too_often" else ""
    yield (
        f"Non-members were audited {n['n_audits']:,.0f} times, {n['n_tests']:,.0f}"
        f" drawn at random against {n['n_null']:,.0f} others. {found['value']:.1%} of"
        f" these audits report any {noun} ({found['low']:.1%} to {found['high']:.1%};"
        f" at most {n['q']:.1%} are promised){more}; {n['share_below_fpr']:.1%} of"
        f" their p-values are at most {n['fpr']:g}. That checks the procedure on these"
        " scores, not whether the audited texts are like the non-members."
    )


def weights_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say how many non-members count where they are weighted, or why they cannot be."""
    of = facts(findings, "weights")
    main = of.get("n_effective", {})
    if main.get("verdict") == "used":
        yield (
            "Comparison texts are weighted by how much they are like the audited ones:"
            f" {of['n_null']['value']:,.0f} of them count as {main['value']:.1f}."
            " p-values then hold if the two sets differ only in training and in what"
            " the blind classifiers have learned to see."
        )
    elif main.get("verdict") == "no_overlap":
        yield f"Weights do not help: {main['reason']}."


_PLACEBOS = {
    "as_many": (
        "The same test on the reference model {}: what is found on the audited model is"
        " no evidence of its memory."
    ),
    "fewer": "The same test on the reference model (which cannot know these texts) {}.",
}


def placebo_sentence(findings: pl.DataFrame, *verdicts: str) -> Iterator[str]:
    """Say what the same test finds on the reference model, if that is ``as_many``, or ``fewer``."""
    of = facts(findings, "placebo")
    level, reason = _subject(of), of.get("n_reported", {}).get("reason")
    if reason is not None and "fewer" in verdicts:
        yield f"The same test was not made on the reference model: {reason}."
    main = of.get("collection" if level == "collection" else "n_reported")
    if main is None or main["verdict"] not in verdicts:
        return
    smallest, p = of.get("smallest_q", {}).get("value"), main["p_value"]
    if level != "collection":
        least = "" if smallest is None else f" (smallest q {smallest:.2g})"
        noun = _noun(findings, level)
        found = (
            f"reports {main['value']:,.0f} of {of['n_tests']['value']:,.0f}"
            f" {noun}s{least}"
        )
    else:
        found = (
            "has no p-value"
            if p is None
            else f"has p = {p:.3g} for all groups together"
        )
    yield _PLACEBOS[main["verdict"]].format(found)


# What p-values and estimates show of the attack that the answer rests on.


def unlabelled_sentences(
    verdicts: pl.LazyFrame, findings: pl.DataFrame, plan: DecisionRule
) -> Iterator[str]:
    own = verdicts.filter(attack=plan.primary)
    given, top = ([*say(findings, own, plan)] for say in (_reported, _top))
    listed_any = findings.filter(
        pl.col("value") > 0, check="reported", statistic="n_reported"
    )
    given = (top + given if listed_any.is_empty() else given + top) + [
        *_stopping(findings)
    ]
    whole = own.filter(level="collection").collect()
    tests, rates = (
        whole.filter(pl.col("estimate").is_null() == test) for test in (True, False)
    )
    tests, asked = tests.filter(versus="non_members"), plan.level == "collection"
    of_all = f"All {_noun(findings, 'group')}s together"
    given += [*_of_all(tests, plan, of_all, asked=asked), *_max_t(findings)]
    yield from given
    compared = own.filter(versus="non_members").select((pl.col("n_null") > 0).any())
    if given and compared.collect(engine="streaming").item():
        yield f"The null: {plan.null_set.rstrip('.')}."
    for row in rates.iter_rows(named=True):
        said = None
        if row["value"] is not None:
            interval = f"interval {row['low']:.0%} to {row['high']:.0%}"
            said = f"{row['value']:.0%}, {100 * row['confidence']:g} % {interval}"
        elif row["low"] is not None and row["method"] != "beta_binomial":
            between = f"between {row['low']:.0%} and {row['high']:.0%}"
            said = (
                f"{between} at {100 * row['confidence']:g} % confidence;"
                f" {row['reason']}"
            )
        elif row["low"]:
            said = (
                f"at least {row['low']:.0%} at {100 * row['confidence']:g} % confidence"
            )
        if said:
            yield f"Share of members among the targets: {said} ({row['assumption']})."
        if row["value"] is not None and row["method"] == "fieller":
            yield _wrong_calibration_labels(row["low"], row["high"])


# What wrong labels do to a figure.

_WRONG = (0.02, 0.05)  # shares of labels


def _wrong_calibration_labels(low: float, high: float) -> str:
    """Say which shares of members are possible if some calibration labels are wrong.

    If a share e1 of the labelled members and e0 of the non-members have the other's
    law, FPR and TPR become FPR + e0 (TPR - FPR) and TPR - e1 (TPR - FPR), so that the
    share is e0 + (1 - e0 - e1) times the one that is shown: Rogan and Gladen (1978),
    with each label's own errors.
    """
    ranges = [f"{(1 - e) * low:.0%} to {e + (1 - e) * high:.0%}" for e in _WRONG]
    return (
        "That interval does not count wrong labels: if up to 2 % of the calibration"
        f" labels of one kind are wrong, it is {ranges[0]}; if up to 5 % are,"
        f" {ranges[1]}."
    )


def wrong_labels_sentence(metrics: pl.DataFrame, primary: str) -> Iterator[str]:
    """Say which AUC the figure stands for if some labels are wrong.

    If a share e of the labels of each class is wrong by chance, the AUC is 1/2 + (1 - 2
    e) (A - 1/2) instead of A, and with wrong labels in one class alone 1/2 + (1 - e) (A
    - 1/2).
    """
    of = {"metric": "roc_auc", "attack": primary, "slice": "all"}
    row = next(metrics.filter(**of).iter_rows(named=True), None)
    if row is None or row["value"] is None:
        return
    ranges = []
    for e in _WRONG:
        ends = (0.5 + (row["value"] - 0.5) / (1 - times * e) for times in (1, 2))
        least, most = sorted(min(max(end, 0.0), 1.0) for end in ends)
        ranges.append(
            f"{least:.2f}" if most - least < 0.005 else f"{least:.2f} to {most:.2f}"
        )
    yield (
        "If 2 % of the labels of one class or both are wrong by chance, an AUC of"
        f" {row['value']:.2f} stands for {ranges[0]}; if 5 % are, for {ranges[1]}. The"
        " TPR at an FPR of 1 % can then be anything above what is shown, because"
        " wrongly labelled members alone may fill that FPR. Intervals do not count"
        " wrong labels."
    )


def canary_sentences(verdicts: pl.LazyFrame, plan: DecisionRule) -> Iterator[str]:
    rows = verdicts.filter(
        attack=plan.primary, level="collection", versus="controls"
    ).collect()
    yield from _of_all(rows, plan, "All canaries", asked=True)


def _of_all(
    rows: pl.DataFrame, plan: DecisionRule, what: str, *, asked: bool
) -> Iterator[str]:
    """Give the answer about a whole collection, or say why there is none if it was asked for."""
    later = "" if asked else f"; exploratory, the plan is about each {plan.level}"
    for row in rows.iter_rows(named=True):
        if row["p_value"] is not None:
            yield (
                f"{what}, by {row['attack']}: p = {row['p_value']:.3g}"
                f" ({row['method']}{later})."
            )
        elif asked:
            yield f"{what}, by {row['attack']}: no p-value ({row['reason']})."


def _reported(
    findings: pl.DataFrame, verdicts: pl.LazyFrame, plan: DecisionRule
) -> Iterator[str]:
    """Say what is reported at the planned level, and name it unless it is texts."""
    rows = facts(findings, "reported")
    if not rows:
        return
    n, level = {name: row["value"] for name, row in rows.items()}, _subject(rows)
    q, kind = n["q"], f"{_noun(findings, level)}s"
    how = (
        f"{plan.primary}, {_ADJUSTMENTS[rows['q']['verdict']]}, against"
        f" {n['n_null']:,.0f} independent units outside the training data"
    )
    if n["n_reported"]:
        yield (
            f"{n['n_reported']:,.0f} of {n['n_tests']:,.0f} {kind} are reported at q = "
            f"{q:g} ({how}). On average at most {100 * q:g} % of such a list are false."
        )
        if level == "group":
            yield f"Reported: {_highest(verdicts, int(n['n_reported']))}."
    else:
        least = (
            ""
            if n["smallest_q"] is None
            else f"; the smallest q is {n['smallest_q']:.2g}"
        )
        yield (
            f"None of {n['n_tests']:,.0f} {kind} is reported at q = {q:g}"
            f" ({how}){least}. That is no evidence of absence."
        )
    if lost := n["n_without_p"]:
        reason = rows["n_without_p"]["reason"]
        yield f"{_have(lost, kind)} no p-value, mostly because {reason}."
    if alone := n["n_without_null"]:
        yield (
            f"{_have(alone, kind)} nothing to be compared with and cannot be reported."
        )


def _have(n: float, kind: str) -> str:
    return f"{n:,.0f} {kind} have" if n != 1 else f"1 {kind.removesuffix('s')} has"


def _noun(findings: pl.DataFrame, level: str) -> str:
    """Call the groups of a run what they are, such as books."""
    units = findings.filter(check="power", subject="group", statistic="n_tests")[
        "verdict"
    ]
    return units[0] if level == "group" and len(units) else level


def _highest(verdicts: pl.LazyFrame, n: int) -> str:
    level = pl.col("level").cast(pl.String)
    groups = verdicts.filter(level.is_in(["document", "group"]), versus="non_members")
    ordered = groups.sort("score", "key", descending=[True, False], nulls_last=True)
    return listed(ordered.head(n).collect()["key"].to_list(), _MOST_NAMED)


def _top(
    findings: pl.DataFrame, verdicts: pl.LazyFrame, plan: DecisionRule
) -> Iterator[str]:
    """Say how many of the highest are members at least, and name them unless they are texts."""
    rows = facts(findings, "top")
    if not rows or not rows["at_least"]["value"]:
        return
    noun = _noun(findings, _subject(rows))
    fewest, of_top, n_null = (
        int(rows[name]["value"]) for name in ("at_least", "of_top", "n_null")
    )
    what = f"{'All' if fewest == of_top else f'At least {fewest:,} of the'} {of_top:,} "
    what = (
        f"The highest-scoring {noun}"
        if of_top == 1
        else f"{what}highest-scoring {noun}s"
    )
    named = "" if noun in ("text", "author") else f": {_highest(verdicts, of_top)}"
    if fewest < of_top:
        which = "which one it is" if fewest == 1 else f"which {fewest:,} they are"
        named += f". The bound does not say {which}"
    yield (
        f"{what} {'stands' if fewest == 1 else 'stand'} out beyond chance from"
        f" {n_null:,} {noun}s outside the training data"
        f" ({100 * rows['confidence']['value']:g} % confidence, {plan.primary}){named}."
    )


def _max_t(findings: pl.DataFrame) -> Iterator[str]:
    of = facts(findings, "max_t")
    if (found := of.get("largest")) is not None:
        n_attacks, noun = (
            of["n_attacks"]["value"],
            _noun(findings, of["n_attacks"]["subject"]),
        )
        whole = "" if noun == "text" else "whole "
        later = "; exploratory" if found["verdict"] == "exploratory" else ""
        reason = f", as {found['reason']}" if found["reason"] else ""
        yield (
            f"All {n_attacks:,.0f} attacks together (largest rank sum, {whole}{noun}s"
            f" permuted{later}{reason}): p = {found['p_value']:.3g}, strongest:"
            f" {found['subject']}."
        )


def _stopping(findings: pl.DataFrame) -> Iterator[str]:
    n = {name: row["value"] for name, row in facts(findings, "e_values").items()}
    if not n:
        return
    noun = _noun(findings, "group")
    spared = (n["n_planned"] - n["n_asked"]) / n["n_planned"]
    yield (
        f"{spared:.0%} of the {n['n_planned']:,.0f} planned windows were not asked:"
        f" each {noun} was asked, in at most {n['n_rounds']:,.0f} rounds, until it was"
        " reported or no longer could be. The promised rate of false reports holds"
        " wherever the rounds are stopped."
    )
    if undecided := n["n_undecided"]:
        kind = f"{noun}s"
        yield (
            f"{_have(undecided, kind)} no answer yet; further windows can still give"
            " one."
        )


# The yardstick, and what came out word for word.


def yardstick_sentences(findings: pl.DataFrame, plan: DecisionRule) -> Iterator[str]:
    """Say what came out, and what scored high, of the passages of each level."""
    rows = findings.filter(check="yardstick")
    if back := _counts(rows, "n_given_back", "n_continued"):
        yield (
            "Passages of the yardstick that the model gives back under these settings"
            f" (20 words in a row, or all that follow): {back}."
        )
    if above := _counts(rows, "n_above", "n_scored"):
        yield (
            f"Passages of the yardstick that score above {1 - plan.fpr:.0%} of the"
            f" texts outside the training data ({plan.primary}): {above}."
        )


def _counts(rows: pl.DataFrame, hits: str, of: str) -> str:
    found = rows.filter(statistic=hits).select("subject", hits="value")
    both = found.join(rows.filter(statistic=of), on="subject", maintain_order="left")
    each = both.select("subject", "hits", "value").iter_rows()
    return "; ".join(f"{level}: {n:,.0f} of {total:,.0f}" for level, n, total in each)


def absence_sentences(findings: pl.DataFrame, plan: DecisionRule) -> Iterator[str]:
    """Say with which probability one text or group more would have been named."""
    rows = findings.filter(check="absence")
    what = "text" if plan.level == "target" else _noun(findings, "group")
    say = "{subject}: {value:.2f} ({low:.2f} to {high:.2f})".format_map
    if found := [*map(say, rows.drop_nulls("value").iter_rows(named=True))]:
        yield (
            f"This audit would have reported one more {what} with the following"
            " probability (95 % interval), if it had been learnt as well as the"
            f" yardstick's passages of that level: {'; '.join(found)}. That holds if"
            " these passages are like each other, and like the audited texts in all"
            " but what was learnt."
        )
    for row in rows.filter(pl.col("value").is_null()).iter_rows(named=True):
        yield (
            f"It is unknown how likely this audit reports a {what} that was learnt as"
            f" well as {row['subject']}: {row['reason']}."
        )


def dose_sentences(findings: pl.DataFrame, plan: DecisionRule) -> Iterator[str]:
    """Say about how often groups were learnt, or of how many texts more than never can be said."""
    rows = findings.filter(check="dose")
    for reason in rows.filter(pl.col("subject").is_null())["reason"].to_list():
        yield f"It is unknown how often the texts were learnt: {reason!s}."
    found = rows.drop_nulls("value").sort("value", "subject", descending=[True, False])
    if found.is_empty():
        return
    said = f"{found['low'].count():,} of {found.height:,} texts more than 0 times"
    if plan.level != "target":
        each = []
        for subject, value, *limits in found.select(
            "subject", "value", "low", "high"
        ).iter_rows():
            words = zip(("more than", "less than"), limits, strict=True)
            given = " and ".join(
                f"{word} {n:,.0f}" for word, n in words if n is not None
            )
            each.append(
                f"{subject} about {value:,.0f} times ({given or 'without limits'})"
            )
        said = "; ".join(each[:_MOST_NAMED])
    yield (
        "How often texts were learnt, by the ladder of the yardstick and"
        f" {plan.primary}: {said}. The limits hold with 95 % confidence for each text"
        " or group by itself, if scores rise with copies, and if the ladder's texts"
        " differ from the audited ones in copies alone."
    )


def verbatim_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what came out word for word, with the longest passage and what chance gives."""
    rows = findings.filter(check="verbatim")
    counts = {
        subject[0]: dict(of.select("statistic", "value").iter_rows())
        for subject, of in rows.group_by("subject", maintain_order=True)
    }
    own = counts.get("targets", {})
    n, n_walked = int(own.get("n_verbatim", 0)), int(own.get("n_walked", 0))
    longest = next(rows.filter(statistic="longest").iter_rows(named=True), None)
    if not (n + n_walked and longest):
        return
    n_words = f"{longest['value']:,.0f} words"
    whole = rows.filter(statistic="of_words")["value"].sum()
    if n_cut := max(whole - longest["value"], 0):
        n_words += f", without {n_cut:,.0f} of stretches that could be foreseen"
    passage = " ".join(str(longest["reason"]).split())
    if len(passage) > _MOST_CHARACTERS:
        passage = f"{passage[:_MOST_CHARACTERS]}..."
    chosen = "n_highest" in own
    said = (
        [_share(own, "texts of highest scores" if chosen else "texts asked about")]
        if n
        else []
    )
    named = rows.filter(statistic="document")["subject"].to_list()
    if said and own["n_units"] < own["n_texts"]:
        said[0] += f" ({listed(named, _MOST_NAMED)})"
    if n_walked:
        said.append(
            f"{n_walked:,} more passages when the model is followed through the"
            " documents"
        )
    yield (
        f"Word for word (at least {VERBATIM_WORDS} words in a row) the model gives"
        " back "
        f"{' and '.join(said)}. The longest passage, of {longest['subject']}, has "
        f'{n_words}: "{passage}"'
    )
    if n_foreseen := own.get("foreseen_words_out"):
        yield (
            f"Of {own['run_words_out']:,.0f} words in a row that its answers give back,"
            f" {n_foreseen:,.0f} could be foreseen by who has read what stands before."
        )
    yield _by_chance(counts, rows.filter(statistic="fisher")["p_value"])


def foreseen_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say of how many texts no more came out than could be copied or foreseen."""
    counts = facts(findings, "verbatim", subject="targets")
    value = {name: row["value"] or 0 for name, row in counts.items()}
    if n := value.get("n_copied"):
        yield (
            f"Answers about {_counted(n, 'text')} repeat {VERBATIM_WORDS} words or more"
            " of the given prefix, which may be copied without knowing the text: they"
            " do not count."
        )
    if n := value.get("n_foreseen"):
        yield (
            f"Answers about {_counted(n, 'text')} go on as anyone could who has read"
            " what stands before, by counting, by a table's rows or by repeating:"
            f" {value['foreseen_words']:,.0f} of {value['run_words']:,.0f} words in a"
            " row could be foreseen, so they do not count as word for word."
        )


def known_sentence(row: Mapping[str, Any]) -> str:
    """Say where a passage stands in the known corpus, from its row of the table ``known``."""
    n, documents, near = (row[f"n_{name}"] for name in _PLACES)
    if row["reason"] is not None:
        return (
            "It is unknown where its passage stands in the known corpus:"
            f" {row['reason']}."
        )
    if not n:
        some = (
            f"; {near:,} documents have {VERBATIM_WORDS} words of it in a row"
            if near
            else ""
        )
        return f"No document of the known corpus has its whole passage{some}."
    held = (
        "documents, which were not all counted"
        if documents is None
        else f"{documents:,} documents"
    )
    where = row["document"] if documents == 1 else f"{held}, first in {row['document']}"
    times = "once" if n == 1 else f"{n:,} times"
    return f"The passage that came out stands {times} in the known corpus, in {where}."


def _share(counts: dict[str, float], what: str) -> str:
    texts = f"{counts['n_verbatim']:,.0f} of {counts['n_texts']:,.0f} {what}"
    if counts["n_units"] == counts["n_texts"]:
        return texts
    return (
        f"{texts}, in {counts['n_units_verbatim']:,.0f} of {counts['n_units']:,.0f}"
        " documents"
    )


def _by_chance(counts: dict[str, dict[str, float]], fisher: pl.Series) -> str:
    """Say how often as much comes out where there is nothing to remember."""
    said = []
    if (others := counts.get("non_members", {})).get("n_texts"):
        chosen = " of highest scores" if "n_highest" in counts["targets"] else ""
        said.append(_share(others, f"comparison texts{chosen} come out"))
    for control, name in _CONTROLS.items():
        n = counts.get(control, {})
        if n.get("passages"):
            said.append(f"{n['repeated']:,.0f} of {n['passages']:,.0f} passages {name}")
    if not said:
        how = "give --non-members, or ask with --controls"
        return f"How often chance gives as much was not measured: {how}."
    more = ""
    if fisher.null_count():
        more = (
            " (no p-value, because the two sets can be distinguished without the model)"
        )
    elif len(fisher):
        more = f" (Fisher's exact test: p = {fisher[0]:.2g})"
        if fisher[0] > _LEVEL:
            more += ", so these counts alone do not tell the two apart"
    return f"For comparison: {'; '.join(said)}{more}."


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
    plan: DecisionRule

    def __post_init__(self) -> None:
        """Let nothing pass that the gate withholds, whatever the tables of a run hold."""
        object.__setattr__(self, "findings", apply_gate(self.findings))
        if is_closed(self.findings):
            reason = str(why_withheld(self.findings))
            changed = gate_verdict(self.findings) == "changed"
            verdicts = withhold(self.verdicts, reason, all_sets=changed)
            object.__setattr__(self, "verdicts", verdicts)

    def allows(self) -> dict[str, bool]:
        """Say which comparisons the run allows, by the names that `CONCLUSIONS` has for them."""
        roles, gate = role_counts(self.findings), gate_verdict(self.findings)
        labels = not self.findings.filter(
            check="blind_baseline", subject="members"
        ).is_empty()
        targets, nulls = bool(roles["n_unknown"]), bool(roles["n_nulls"])
        canaries, compares = bool(roles["n_canaries"]), targets and nulls
        compares = compares and not is_closed(self.findings)
        if why_not_continued(self.findings) is not None:
            labels = targets = nulls = canaries = compares = False
        return {
            "always": True,
            "labels": labels,
            "canaries": canaries,
            "targets and non-members": targets and nulls,
            "targets alone": targets and not (nulls or canaries),
            "any comparison": labels or nulls or canaries,
            "open gate": gate == "open",
            "comparison of targets": compares,
            "comparison without weights": compares and gate != "weighted",
        }


def one_sided_sentence(known: RunResults) -> Iterator[str]:
    """Say that all texts have the same label, so that nothing is compared."""
    of = {"metric": "roc_auc", "attack": known.plan.primary, "slice": "all"}
    counts = known.metrics.filter(**of).select("n_members", "n_nonmembers").rows()
    roles, (n_members, n_others) = (
        role_counts(known.findings),
        counts[0] if counts else (0, 0),
    )
    label, other, more = (
        "members",
        "non-members",
        "leave the labels out and give --non-members",
    )
    if n_others and not n_members:
        label, other, more = other, label, "texts without a label to ask about"
    elif n_others or not n_members or roles["n_nulls"]:
        return
    if not roles["n_unknown"]:
        yield (
            f"All texts are labelled as {label}, so that there is nothing to compare"
            f" them with: add texts that are labelled as {other}, or {more}."
        )


def _of(say: Callable[..., Iterable[str]], *more: object) -> Say:
    return lambda known: say(known.findings, *more)


def _planned(say: Callable[..., Iterable[str]]) -> Say:
    return lambda known: say(known.findings, known.plan)


# Doubts come before what they are about, and what came out word for word before all
# estimates.
CONCLUSIONS: Final[tuple[tuple[str, Say], ...]] = (
    ("always", _of(change_sentence)),
    ("always", _of(start_sentences)),
    ("always", _of(chance_sentences)),
    ("always", _of(dress_sentences)),
    ("always", _of(verbatim_sentences)),
    ("always", _of(foreseen_sentences)),
    ("always", _of(gate_sentence)),
    ("always", _of(weights_sentence)),
    ("always", _of(placebo_sentence, "as_many")),
    ("always", _of(undeclared_sentences)),
    ("targets and non-members", _of(near_copies_sentence)),
    ("comparison of targets", _of(author_sentence)),
    ("always", _of(earlier_sentences)),
    ("always", one_sided_sentence),
    ("labels", _of(label_sentence)),
    ("always", _of(plan_sentence)),
    ("always", _of(later_sentence)),
    ("always", _of(lodged_sentence)),
    ("always", _of(answers_sentences)),
    ("always", _of(versions_sentence)),
    ("labels", _of(uneven_sentence)),
    (
        "labels",
        lambda known: labelled_sentences(
            known.metrics, known.findings, known.plan.primary
        ),
    ),
    ("labels", lambda known: wrong_labels_sentence(known.metrics, known.plan.primary)),
    (
        "comparison of targets",
        lambda known: unlabelled_sentences(known.verdicts, known.findings, known.plan),
    ),
    ("always", _of(placebo_sentence, "fewer")),
    ("comparison of targets", _planned(absence_sentences)),
    ("always", _planned(yardstick_sentences)),
    ("always", _planned(dose_sentences)),
    ("canaries", lambda known: canary_sentences(known.verdicts, known.plan)),
    ("always", _of(set_sentences)),
    (
        "comparison without weights",
        lambda known: islice(power_sentences(known.findings), 1),
    ),
    ("comparison of targets", _of(null_audit_sentence)),
    ("open gate", _of(exchangeability_sentence)),
    ("targets and non-members", _of(duplicates_sentence, "targets")),
    ("targets alone", lambda _: [_NO_NULL]),
    ("any comparison", _of(copies_sentence)),
)
"""Each conclusion in its order: what the run must allow, and the sentences."""


CHECKS: Final[Mapping[str, tuple[str, Say, str]]] = {
    "What this audit could have found": (
        "comparison without weights",
        lambda known: chain(
            power_sentences(known.findings),
            absence_sentences(known.findings, known.plan),
        ),
        "Not worked out: that needs texts of unknown membership, and --non-members.",
    ),
    "Placebo: the same test on another model": (
        "always",
        _of(placebo_sentence, "as_many", "fewer"),
        (
            "Not made: that needs a model which did not see the texts; give"
            " --reference-model."
        ),
    ),
    "Positive control: texts that models are known to remember": (
        "always",
        _planned(yardstick_sentences),
        "Not asked: the run has no passages of the yardstick; give --yardstick.",
    ),
    "Audits of comparison texts alone": (
        "comparison of targets",
        _of(null_audit_sentence),
        "Not made: that needs texts of unknown membership, and --non-members.",
    ),
    "How often chance gives as much, word for word": (
        "always",
        lambda known: islice(verbatim_sentences(known.findings), 1, 2),
        "Not counted: no passage was looked for, or none came out.",
    ),
}
"""What tells how sure a run is, by name: what the run must allow, sentences, and why none."""


def checks(known: RunResults) -> dict[str, list[str]]:
    """Say how sure a run is, check by check; a check that was not made says so."""
    allows = known.allows()
    return {
        name: [*(say(known) if allows[needed] else ())] or [missing]
        for name, (needed, say, missing) in CHECKS.items()
    }


def preflight_sentences(findings: pl.DataFrame) -> Iterator[str]:
    differences = (label_sentence, gate_sentence, weights_sentence)
    dependence = (undeclared_sentences, near_copies_sentence)
    for say in (*differences, *dependence):
        yield from say(findings)
    yield from duplicates_sentence(findings, "targets")
    yield from () if is_closed(findings) else power_sentences(findings)


def sentences(known: RunResults) -> Iterator[str]:
    allows = known.allows()
    yield from chain.from_iterable(
        say(known) for needed, say in CONCLUSIONS if allows[needed]
    )
