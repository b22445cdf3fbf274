"""What a run's models answered about some targets, beside what they were asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.observer import Observer
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.stages.views import view_of
from mia_batch.prompts.seeds import sample_seed
from mia_batch.settings import stored_settings

if TYPE_CHECKING:
    from mia_batch.pipeline.run import Run
    from mia_batch.prompts.view import View

__all__ = ["SAMPLE", "answers_of", "prompts_of", "taken_up"]

SAMPLE = ["target_id", "model", "view", "view_index", "sample_index"]
"""What names a sample."""
_ASKED = {"cut": pl.UInt32, "context": pl.String, "text": pl.String, "seed": pl.UInt64}


def taken_up(
    run: Run,
    observer: Observer | None = None,
    work: Run | None = None,
    **changed: Any,  # noqa: ANN401 - settings
) -> Audit:
    """Take up a run to look at its evidence; what is written goes to ``work``."""
    manifest = run.manifest
    settings = stored_settings(manifest.settings, **changed)
    return Audit(settings, observer or Observer(), [], None, work or run, manifest)


def prompts_of(run: Run, view: View, targets: pl.DataFrame) -> pl.DataFrame:
    """Open the prompts of a view about some targets, with their ``context`` and ``text``."""
    of_view = (pl.col("model") == view.model) & (pl.col("view") == view.name)
    wanted = of_view & pl.col("target_id").is_in(targets["target_id"].implode())
    prompts = run.scan("prompts").filter(wanted, pl.col("reason").is_null())
    columns = ["target_id", "document_id", *view.columns]
    return view.resolve(prompts.collect(engine="streaming"), targets.select(columns))


def answers_of(run: Run, targets: pl.DataFrame) -> pl.DataFrame:
    """Open the samples of some targets with what was asked.

    To the columns of the samples table come ``cut``, ``context`` and ``text`` of the prompt, and
    ``seed`` (UInt64), null where the answer was recorded, or is the most likely one.
    """
    audit = taken_up(run)
    own = pl.col("target_id").is_in(targets["target_id"].implode())
    samples = run.scan("samples").filter(own).collect(engine="streaming")
    asked = [pl.DataFrame(schema={**samples.select(SAMPLE[:-1]).schema, **_ASKED})]
    for model, name in samples.select("model", "view").unique(maintain_order=True).iter_rows():
        view = view_of(audit, model, name)
        prompts = prompts_of(run, view, targets).with_columns(
            model=pl.lit(model), view=pl.lit(name)
        )
        keys = prompts.select("target_id", "view_index").iter_rows()
        seeds = [sample_seed(audit.settings.seed, key, name, index) for key, index in keys]
        drawn = not view.greedy and audit.manifest.evidence["engine"] != "replay"
        seed = pl.Series(seeds if drawn else [None] * len(seeds), dtype=pl.UInt64)
        asked.append(prompts.with_columns(seed=seed).select(asked[0].columns))
    answers = samples.join(pl.concat(asked), on=SAMPLE[:-1], how="left")
    return answers.with_columns(pl.col("seed") + pl.col("sample_index")).sort(SAMPLE)
