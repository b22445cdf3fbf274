"""The questions of a run: every view in one table, and what was answered to them."""

from dataclasses import replace
from typing import Any

import polars as pl

from mia_batch.evidence import parts
from mia_batch.evidence.request import EvidenceKind
from mia_batch.observer import Observer
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.folder import PARTS, AuditFolder, RunFolder
from mia_batch.pipeline.request import AuditRequest, build_decision_rule
from mia_batch.prompts import sample_seed
from mia_batch.settings import stored_settings
from mia_batch.views import REFERENCE, SHADOW, TARGET, RunModel, View, build_view


def list_views(audit: Audit, kind: EvidenceKind | None = None) -> list[View]:
    """List the views that attacks read, of one kind of evidence or all; model by model."""
    shadows = [RunModel.shadow(number) for number in range(audit.settings.shadows or 0)]
    kinds: tuple[EvidenceKind, ...] = ("samples", "logprobs")
    if kind is not None:
        kinds = (kind,)
    keys: dict[tuple[RunModel, str], None] = {}
    for attack in audit.attacks_and_placebo:
        for evidence in kinds:
            for model, view in attack.list_reads(evidence):
                # A name for all shadow models stands for each of them.
                models = shadows if model == SHADOW else [RunModel(model)]
                keys.update(dict.fromkeys((name, view) for name in models))
    ordered = sorted(keys, key=lambda key: key[0] != TARGET)
    return [build_view(audit.settings, *key) for key in ordered]


def list_models(audit: Audit) -> list[RunModel]:
    """List the models that attacks read, and the target and the reference in any case."""
    models = (view.model for view in list_views(audit))
    return list(dict.fromkeys((TARGET, REFERENCE, *models)))


def _build_parts(
    audit: Audit, table: str, view: View, block_targets: int
) -> parts.Parts:
    return parts.Parts(
        folder=audit.run.path(table),
        schema=PARTS[table],
        model=view.model,
        view=view.name,
        block_targets=block_targets,
        unit=view.type.prompt_unit,
    )


def prompt_parts(audit: Audit, view: View) -> parts.Parts:
    """Return the parts of a view's prompts; models that the run makes share the target's."""
    size = parts.LOGPROB_BLOCK_TARGETS if view.filled else parts.TARGETS_AT_ONCE
    prompts = _build_parts(audit, "prompts", view, size)
    if view.model.is_trained_here:
        return replace(prompts, model=TARGET)
    return prompts


def sample_parts(audit: Audit, view: View, table: str = "samples") -> parts.Parts:
    """Return the parts of a view's samples; those of the features have the same names."""
    recorded = audit.settings.samples_from is not None
    size = parts.RECORDED_BLOCK_TARGETS if recorded else parts.BLOCK_TARGETS
    return _build_parts(audit, table, view, size)


def logprob_parts(audit: Audit, view: View) -> parts.Parts:
    """Return the parts of a view's log-probabilities."""
    return _build_parts(audit, "logprobs", view, parts.LOGPROB_BLOCK_TARGETS)


# What a run's models answered about some targets, and what they were asked.

# What names a prompt, and a sample
_PROMPT = ["target_id", "model", "view", "view_index"]
SAMPLE = [*_PROMPT, "sample_index"]
_ASKED = {"cut": pl.UInt32, "context": pl.String, "text": pl.String, "seed": pl.UInt64}


def reopen_audit(
    run: RunFolder,
    observer: Observer | None = None,
    work: AuditFolder | None = None,
    **changed: Any,
) -> Audit:
    """Return the audit of a run that exists, with some settings changed."""
    settings = stored_settings(run.manifest.settings, **changed)
    rule = build_decision_rule(settings, [settings.primary or "planned"])
    request = AuditRequest(settings, (), rule)
    work = work or AuditFolder(run.folder)
    return Audit(request, work, observer or Observer(), run.manifest)


def read_prompts(run: RunFolder, view: View, targets: pl.DataFrame) -> pl.DataFrame:
    """Read the prompts of a view about some targets, with their texts."""
    is_of_view = (pl.col("model") == view.model) & (pl.col("view") == view.name)
    is_of_target = pl.col("target_id").is_in(targets["target_id"].implode())
    prompts = run.scan("prompts").filter(
        is_of_view & is_of_target, pl.col("reason").is_null()
    )
    columns = ["target_id", "document_id", *view.columns]
    return view.resolve(prompts.collect(engine="streaming"), targets.select(columns))


def read_answers(run: RunFolder, targets: pl.DataFrame) -> pl.DataFrame:
    """Read the samples of some targets with what was asked: ``cut``, ``context``, ``text``."""
    # ``seed`` is null where the answer was recorded, or is the most likely one.
    audit = reopen_audit(run)
    is_of_target = pl.col("target_id").is_in(targets["target_id"].implode())
    samples = run.scan("samples").filter(is_of_target).collect(engine="streaming")
    schema: dict[str, Any] = {**samples.select(_PROMPT).schema, **_ASKED}
    tables = [pl.DataFrame(schema=schema)]
    views = samples.select("model", "view").unique(maintain_order=True)
    for model, name in views.iter_rows():
        view = build_view(audit.settings, model, name)
        prompts = read_prompts(run, view, targets).with_columns(
            model=pl.lit(model), view=pl.lit(name)
        )
        keys = prompts.select("target_id", "view_index").iter_rows()
        seeds: list[int | None] = [
            sample_seed(audit.settings.seed, key, name, index) for key, index in keys
        ]
        if view.greedy or audit.manifest.source == "recording":
            seeds = [None] * len(seeds)
        seed = pl.Series(seeds, dtype=pl.UInt64)
        tables.append(prompts.with_columns(seed=seed).select(list(schema)))
    answers = samples.join(pl.concat(tables), on=_PROMPT, how="left")
    return answers.with_columns(pl.col("seed") + pl.col("sample_index")).sort(SAMPLE)
