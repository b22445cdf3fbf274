"""How much of the texts the model was given: prompt simplicity as a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.inference.findings import finding_rows
from mia_batch.kernels import count_words
from mia_batch.pipeline.answers import prompts_of
from mia_batch.pipeline.stages.views import views_of

if TYPE_CHECKING:
    from mia_batch.pipeline.context import Audit
    from mia_batch.prompts.view import View

__all__ = ["given_findings"]

_MOST = 1_000  # texts


def given_findings(audit: Audit) -> pl.DataFrame:
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
