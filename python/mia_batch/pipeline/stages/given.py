"""What the model was given of the texts, and what kinds of answers came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.diagnostics.unscored import class_rows, find_uneven_scores
from mia_batch.inference.findings import finding_rows
from mia_batch.kernels import count_words
from mia_batch.pipeline.answers import prompts_of
from mia_batch.pipeline.stages.views import views_of

if TYPE_CHECKING:
    from mia_batch.pipeline.context import Audit
    from mia_batch.prompts.view import View

__all__ = ["GIVEN", "given_findings"]

GIVEN = ("prompts", "endpoint", "answers", "held_back", "chance")
"""Checks of these rows."""
_MOST = 1_000  # texts
_HELD_BACK = ("filtered", "refusal")


def given_findings(audit: Audit) -> pl.DataFrame:
    """Rows about what was given and what came back, see `GIVEN`."""
    checks = (_prompts, _endpoint, _answers, _held_back, _chance)
    return pl.concat([check(audit) for check in checks])


def _endpoint(audit: Audit) -> pl.DataFrame:
    """Rows of check ``endpoint``: whether it honours the fields that act on the draw."""
    said = audit.manifest.engines.get("samples of target", {}).get("capabilities", {})
    honours = {"n": said.get("n"), "seed": said.get("seed"), "top_k": said.get("top_k")}
    honours |= {"temperature 0": said.get("greedy"), **said.get("neutral", {})}
    honours |= dict.fromkeys(said.get("dialect", {}).get("withdrawn", ()), "refused")
    return finding_rows(
        "endpoint",
        (
            {"subject": name, "statistic": "honour", "verdict": word}
            for name, word in honours.items()
            if word is not None
        ),
    )


def _answers(audit: Audit) -> pl.DataFrame:
    """Rows of check ``answers``: how many answers of each kind came to each kind of prompt.

    ``failed`` ones have no answer; those ``cut`` ended before their reference's length.
    """
    samples = audit.run.scan("samples").filter(pl.col("model") == "target")
    kind = pl.col("answer").cast(pl.String).fill_null("failed")
    recorded = pl.col("answer").is_null() & pl.col("reason").is_null()
    counted = (
        samples.filter(~recorded)
        .group_by("view", kind=kind)
        .agg(n=pl.len(), cut=pl.col("short").sum(), reason=pl.col("reason").mode().min())
        .sort("view", "n", "kind", descending=[False, True, False])
        .collect(engine="streaming")
    )
    rows = [
        {"subject": row["view"], "statistic": row["kind"], "value": row["n"]}
        | {"reason": row["reason"]}
        for row in counted.iter_rows(named=True)
    ]
    cut = counted.group_by("view", maintain_order=True).agg(pl.col("cut").sum())
    rows += [
        {"subject": view, "statistic": "cut", "value": value, "reason": None}
        for view, value in cut.iter_rows()
    ]
    return finding_rows("answers", rows)


def _chance(audit: Audit) -> pl.DataFrame:
    """Rows of check ``chance``: the loss of each model here, beside that of guessing (``high``)."""
    engines = audit.manifest.engines.items()
    named = {name.removeprefix("logprobs of "): engine.get("chance") for name, engine in engines}
    chances = {model: chance for model, chance in named.items() if chance is not None}
    read = audit.run.scan("logprobs").filter(pl.col("model").is_in([*chances]), view="text")
    losses = read.group_by("model").agg(-pl.col("logprob").explode().mean()).sort("model")
    rows: list[dict[str, object]] = []
    for model, loss in losses.collect(engine="streaming").iter_rows():
        if loss is not None:
            verdict = "better" if loss < chances[model] else "no_better"
            row = {"statistic": "nats_per_token", "value": loss, "high": chances[model]}
            rows.append({"subject": model, "verdict": verdict, **row})
    return finding_rows("chance", rows)


def _held_back(audit: Audit) -> pl.DataFrame:
    """Rows of check ``held_back``: answers ``filtered`` or refused more often about one class.

    Texts of unknown membership are compared with the non-members, as ``targets``.
    """
    samples = audit.run.scan("samples").filter(pl.col("model") == "target")
    targets = audit.run.scan("targets").filter(pl.col("role").is_in(["target", "non_member"]))
    own, member = pl.col("role") == "target", pl.col("member")
    unknown, classes = (
        targets.select((own & member.is_null()).any(), classes=member.fill_null(own).n_unique())
        .collect(engine="streaming")
        .row(0)
    )
    name = "targets" if unknown else "members"
    labelled = targets.with_columns(member=member.fill_null(own))
    rows: list[dict[str, object]] = []
    for kind in _HELD_BACK if classes == 2 else ():
        held = samples.filter(pl.col("answer") == kind).select("target_id", held=True).unique()
        if held.limit(1).collect().is_empty():
            continue
        told = labelled.join(held, on="target_id", how="left", maintain_order="left")
        told = told.with_columns(pl.when(pl.col("held").is_null()).then(0.0).alias(kind))
        found = find_uneven_scores(told, pl.lit(value=True), [kind])
        if found is not None:
            of = {"statistic": kind, "value": found.difference, "p_value": found.p_value}
            rows += [of | {"subject": name}, *class_rows(found, (name, "non-members"))]
    return finding_rows("held_back", rows)


def _prompts(audit: Audit) -> pl.DataFrame:
    """Rows of check ``prompts``: words given to the target model, by kind of prompt.

    Of the first 1,000 audited texts by ``target_id``. Verdict ``prefix_of_work``, or in a chat
    ``instruction_and_prefix``, as the prompt's class; of questions ``question_and_text``, with the
    number of all answers, and of those that name no label or several.
    """
    run, chat = audit.run, audit.settings.chat
    asked = run.scan("targets").filter(pl.col("reason").is_null(), role="target")
    some = asked.bottom_k(_MOST, by="target_id").collect(engine="streaming")
    rows: list[dict[str, object]] = []
    for view in views_of(audit, "samples"):
        prompts = prompts_of(run, view, some) if view.model == "target" else some.clear()
        if prompts.is_empty():
            continue
        words = prompts.select(count_words("context", words=audit.settings.word_rule)).to_series()
        kind = "instruction_and_prefix" if chat else "prefix_of_work"
        kind = "question_and_text" if view.question else kind
        figures = {
            "n_prompts": words.len(),
            "words_given_mean": words.mean(),
            "words_given_least": words.min(),
            "words_given_most": words.max(),
            **(_answered(audit, view) if view.question else {}),
        }
        rows += [
            {"subject": view.name, "statistic": name, "value": value, "verdict": kind}
            for name, value in figures.items()
        ]
    return finding_rows("prompts", rows)


def _answered(audit: Audit, view: View) -> dict[str, object]:
    """Count the answers to questions, and tell of those that cannot be read."""
    answers = audit.run.scan("features").filter(
        pl.col("words_candidate").is_not_null(), model=view.model, view=view.name
    )
    counts = answers.select(n_answers=pl.len(), n_unread=pl.col("choice").null_count())
    found = counts.collect(engine="streaming").row(0, named=True)
    if found["n_unread"]:
        audit.observer.stage(
            f"{found['n_unread']:,} of {found['n_answers']:,} answers name no label, or several; "
            "they are left out"
        )
    return found
