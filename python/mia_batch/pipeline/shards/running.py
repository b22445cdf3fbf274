"""Shards: processes, on one machine or many, that each work on some blocks of one run."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from mia_batch.pipeline.manifest import Manifest
from mia_batch.pipeline.stages.logprobs import LogprobsStage
from mia_batch.pipeline.stages.prompts import FillsStage, PromptsStage
from mia_batch.pipeline.stages.samples import SamplesStage
from mia_batch.pipeline.stages.stage import damage_set_aside, repair
from mia_batch.pipeline.stages.targets import TargetsStage
from mia_batch.pipeline.stages.verdicts import PreflightStage
from mia_batch.pipeline.times import run_timed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mia_batch.evidence.shard import Shard
    from mia_batch.pipeline.context import Audit
    from mia_batch.pipeline.stages.stage import Stage

__all__ = ["run_shard", "take_up"]

_OF_ALL = (TargetsStage, PreflightStage, PromptsStage)
"""Stages whose tables all shards need; the first makes them."""


def take_up(audit: Audit, stages: Sequence[Stage]) -> None:
    """Go on from what lies in a folder that is held: repair it, and take in this request."""
    audit.manifest = Manifest.of(audit.run.folder) or audit.manifest  # another may have been here
    for sentence in [] if audit.has_others else repair(stages):
        audit.observer.stage(sentence)
    audit.request()


def run_shard(audit: Audit, shard: Shard, stages: Sequence[Stage]) -> None:
    """Collect the evidence of a shard's blocks, and stop before what needs those of all.

    What all shards need is made by one while the others wait for their turn. Nothing that another
    may read is removed or set aside while it is at work: the manifest is written in turns, too,
    and each save takes in what the others have stored.
    """
    of_all = [stage for stage in stages if isinstance(stage, _OF_ALL)]
    asked = [stage for stage in stages if isinstance(stage, SamplesStage | LogprobsStage)]
    fills = [stage for stage in stages if isinstance(stage, FillsStage)]
    with audit.run.shared(shard, audit.observer.stage) as turn, damage_set_aside(stages):
        audit.turn = turn
        take_up(audit, stages)
        _take(audit, [(stage, stage.prepare) for stage in stages])
        _take(audit, [(stage, stage.run) for stage in of_all])
        turn.release()
        _take(audit, [(stage, stage.run) for stage in (*fills, *asked)])
        work = reduce(add, (stage.answered() for stage in asked))
        audit.observer.stage(
            f"shard {shard} is complete, and of all shards {work.done:,} of "
            f"{work.done + work.left:,} prompts; the command without --shard merges and scores"
        )


def _take(audit: Audit, steps: list[tuple[Stage, Callable[[], None]]]) -> None:
    """Take steps, and store what they found unless the run is finished still."""
    run_timed(audit, steps)
    if not audit.manifest.custody:
        audit.save()
