"""Temporary."""

from __future__ import annotations

from mia_batch import tables
from mia_batch.errors import SettingsError
from mia_batch.inference.plan import VerdictPlan
from mia_batch.pipeline.stage import Stage
from mia_batch.schemas import Findings, Metrics, Verdicts

_PRIMARY = ("samia_matched_v1", "min_k_plus_plus_20_v1")


def verdict_plan(settings, names):

    primary = settings.primary or next((name for name in _PRIMARY if name in names), names[0])
    if primary not in names:
        msg = f"setting 'primary' is {primary!r}, which is not computed; name it in 'attacks' too"
        raise SettingsError(msg)
    return VerdictPlan(
        primary=primary,
        level=settings.level,
        null_set=settings.non_members_known or "x",
        q=settings.q,
        adjustment=settings.adjustment,
        ties=settings.ties,
        statistic=settings.statistic,
        windows_per_group=settings.windows_per_group,
        length_edges=settings.length_edges,
        fpr=settings.fpr,
        seed=settings.seed,
    )


class PreflightStage(Stage):
    name = "preflight"

    def files(self):
        return []

    def run(self):
        tables.sink(Findings.create_empty(), self.audit.run.path("findings"), Findings)


class VerdictsStage(Stage):
    name = "verdicts"

    def files(self):
        return []

    def run(self):
        tables.sink(Metrics.create_empty(), self.audit.run.path("metrics"), Metrics)
        tables.sink(Verdicts.create_empty(), self.audit.run.path("verdicts"), Verdicts)


def conclusions(run):
    return []
