"""Passages that came out of the target model word for word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.attack import CONTINUATION
from mia_batch.attacks.terms import among
from mia_batch.evidence.parts import scan_parts
from mia_batch.inference.controls import VERBATIM_WORDS
from mia_batch.inference.verbatim import verbatim_runs
from mia_batch.kernels import word_spans
from mia_batch.schemas import Prompts
from mia_batch.targets.clusters import owner_of_targets

if TYPE_CHECKING:
    from mia_batch.pipeline.context import Audit

__all__ = ["passages_of"]


def passages_of(audit: Audit) -> pl.DataFrame:
    """Find what came out: one row per target, in the targets' order.

    ``target_id``, ``target_row``, ``owner`` (a hash of its group, else document), ``view`` that
    asks for it as a control, ``text`` that is asked for, null where it is the target's own
    reference, and ``passage``. Continuations come first; where only a walk came out, its first
    words are the passage.
    """
    continued, walked = _continued(audit), _walked(audit)
    walked = walked.join(continued, on="target_id", how="anti")
    rows = pl.concat([continued, walked])
    own = (
        audit.run.scan("targets")
        .with_row_index("target_row")
        .select("target_id", "target_row", "role", owner=owner_of_targets().hash())
        .filter(pl.col("role") == "target")
        .drop("role")
        .join(rows.lazy(), on="target_id", maintain_order="left")
    )
    return own.collect(engine="streaming").sort("target_row")


def _continued(audit: Audit) -> pl.DataFrame:
    """Find the longest run of the best continuation of each target, where it is long enough."""
    run = audit.run
    targets = run.scan("targets")
    found = verbatim_runs(targets, run.scan("features"), audit.settings.continuations)
    best = found.with_row_index("row").filter(pl.col("longest_words") >= VERBATIM_WORDS)
    key = ["target_id", "sample_index"]
    if best.is_empty():
        return _laid_out(pl.DataFrame(schema=dict.fromkeys(("target_id", "passage"), pl.String)))
    named = (
        targets.select("target_id", "reference")
        .with_row_index("row")
        .join(best.lazy(), on="row", maintain_order="left")
    )
    start, length = "longest_block_chars_start", "longest_block_chars"
    places = run.scan("features").filter(among([CONTINUATION])).select(*key, start, length)
    passage = pl.col("reference").str.slice(pl.col(start), pl.col(length))
    runs = named.join(places, on=key).select("target_id", passage=passage)
    return _laid_out(runs.collect(engine="streaming"))


def _walked(audit: Audit) -> pl.DataFrame:
    """Take of each stretch that came out as much as was asked for in its first round."""
    run = audit.run
    empty = pl.DataFrame(schema=dict.fromkeys(("target_id", "passage", "text"), pl.String))
    if not run.path("extraction").exists():
        return _laid_out(empty, "walk_control")
    length = pl.col("end") - pl.col("start")
    long = run.scan("extraction").filter(pl.col("n_words") >= VERBATIM_WORDS)
    long = long.sort("n_words", descending=True).unique("target_id", keep="first")
    asked = scan_parts(run.path("prompts"), Prompts, ("target", "walk")).filter(view_index=0)
    starts = word_spans("text", words=audit.settings.word_rule).struct.field("starts")
    passage = pl.col("text").str.slice(starts.list.first(), pl.col("length"))
    stretches = long.select("target_id", length=length).join(asked, on="target_id")
    found = stretches.select("target_id", "text", passage=passage).collect(engine="streaming")
    return _laid_out(found, "walk_control")


def _laid_out(found: pl.DataFrame, view: str = "control") -> pl.DataFrame:
    text = "text" if "text" in found.columns else pl.lit(None, pl.String)
    return found.select("target_id", "passage", text=text, view=pl.lit(view))
