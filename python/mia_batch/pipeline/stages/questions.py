"""The questions of a run: every view in one table, and what was answered to them."""

from dataclasses import replace
from typing import Any

import polars as pl

from mia_batch.evidence import parts
from mia_batch.evidence.request import EvidenceKind
from mia_batch.observer import Observer
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.folder import PARTS, RunFolder
from mia_batch.pipeline.request import AuditRequest, build_decision_rule
from mia_batch.prompts import sample_seed
from mia_batch.settings import stored_settings
from mia_batch.views import SHADOW, RunModel, View, build_view


def list_views(audit: Audit, kind: EvidenceKind | None = None) -> list[View]:
    """Return the views that attacks read, of one kind of evidence or all; model by model."""
    shadows = [f"{SHADOW}-{number}" for number in range(audit.settings.shadows or 0)]
    kinds: tuple[EvidenceKind, ...] = (
        ("samples", "logprobs") if kind is None else (kind,)
    )
    reads = dict.fromkeys(
        (each, view)
        for attack in audit.attacks_and_placebo
        for kind in kinds
        for model, view in attack.reads_of(kind)
        # A name for all shadow models stands for each of them.
        for each in (shadows if model == SHADOW else [model])
    )
    return [
        build_view(audit.settings, *key)
        for key in sorted(reads, key=lambda key: key[0] != "target")
    ]


def list_models(audit: Audit) -> list[str]:
    """Name the models that attacks read, and the target and the reference in any case."""
    read = (view.model for view in list_views(audit))
    return list(dict.fromkeys(("target", "reference", *read)))


def _parts(audit: Audit, table: str, view: View, block_targets: int) -> parts.Parts:
    return parts.Parts(
        folder=audit.run.path(table),
        schema=PARTS[table],
        model=view.model,
        view=view.name,
        block_targets=block_targets,
        unit=view.type.prompt_unit,
    )


def prompt_parts(audit: Audit, view: View) -> parts.Parts:
    """Name the parts of a view's prompts, which models that the run makes share with the target."""
    size = parts.LOGPROB_BLOCK_TARGETS if view.filled else parts.TARGETS_AT_ONCE
    own = _parts(audit, "prompts", view, size)
    return (
        replace(own, model="target")
        if RunModel.parse(view.model).is_trained_here
        else own
    )


def sample_parts(audit: Audit, view: View, table: str = "samples") -> parts.Parts:
    """Name the parts of a view's samples; those of the features have the same names."""
    recorded = audit.settings.samples_from is not None
    size = parts.RECORDED_BLOCK_TARGETS if recorded else parts.BLOCK_TARGETS
    return _parts(audit, table, view, size)


def logprob_parts(audit: Audit, view: View) -> parts.Parts:
    return _parts(audit, "logprobs", view, parts.LOGPROB_BLOCK_TARGETS)


# What a run's models answered about some targets, and what they were asked.

# What names a sample
SAMPLE = [
    "target_id",
    "model",
    "view",
    "view_index",
    "sample_index",
]
_ASKED = {"cut": pl.UInt32, "context": pl.String, "text": pl.String, "seed": pl.UInt64}


def reopen_audit(
    run: RunFolder,
    observer: Observer | None = None,
    work: RunFolder | None = None,
    **changed: Any,
) -> Audit:
    manifest = run.manifest
    settings = stored_settings(manifest.settings, **changed)
    rule = build_decision_rule(settings, [settings.primary or "planned"])
    request = AuditRequest(settings, (), rule)
    return Audit(request, work or run, observer or Observer(), manifest)


def read_prompts(run: RunFolder, view: View, targets: pl.DataFrame) -> pl.DataFrame:
    of_view = (pl.col("model") == view.model) & (pl.col("view") == view.name)
    wanted = of_view & pl.col("target_id").is_in(targets["target_id"].implode())
    prompts = run.scan("prompts").filter(wanted, pl.col("reason").is_null())
    columns = ["target_id", "document_id", *view.columns]
    return view.resolve(prompts.collect(engine="streaming"), targets.select(columns))


def read_answers(run: RunFolder, targets: pl.DataFrame) -> pl.DataFrame:
    """Open the samples of some targets with what was asked: ``cut``, ``context``, ``text``."""
    # ``seed`` is null where the answer was recorded, or is the most likely one.
    audit = reopen_audit(run)
    own = pl.col("target_id").is_in(targets["target_id"].implode())
    samples = run.scan("samples").filter(own).collect(engine="streaming")
    asked = [pl.DataFrame(schema={**samples.select(SAMPLE[:-1]).schema, **_ASKED})]
    for model, name in (
        samples.select("model", "view").unique(maintain_order=True).iter_rows()
    ):
        view = build_view(audit.settings, model, name)
        prompts = read_prompts(run, view, targets).with_columns(
            model=pl.lit(model), view=pl.lit(name)
        )
        keys = prompts.select("target_id", "view_index").iter_rows()
        seeds = [
            sample_seed(audit.settings.seed, key, name, index) for key, index in keys
        ]
        drawn = not view.greedy and audit.manifest.evidence["engine"] != "replay"
        seed = pl.Series(seeds if drawn else [None] * len(seeds), dtype=pl.UInt64)
        asked.append(prompts.with_columns(seed=seed).select(asked[0].columns))
    answers = samples.join(pl.concat(asked), on=SAMPLE[:-1], how="left")
    return answers.with_columns(pl.col("seed") + pl.col("sample_index")).sort(SAMPLE)
