"""What is found about all attacks together, and about all texts together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.learned import COMBINATION
from mia_batch.attacks.prefix_shots import CODEC
from mia_batch.inference.codec import codec_findings
from mia_batch.inference.combination import combination_findings
from mia_batch.inference.dataset_inference import infer_dataset
from mia_batch.inference.findings import role_counts
from mia_batch.schemas import Findings, Verdicts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia_batch.attacks import Attack
    from mia_batch.inference.plan import VerdictPlan

__all__ = ["OF_SETS", "set_answers"]

OF_SETS = ("combination", "codec", "dataset_inference")
"""Names of the checks."""


def set_answers(
    scores: pl.LazyFrame,
    attacks: Sequence[Attack],
    plan: VerdictPlan,
    found: pl.DataFrame,
    *,
    told_apart: bool,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return verdicts and findings; ``found`` are those made before scores.

    ``told_apart``: the sets can be told apart without the model, and that closes dataset inference.
    Dataset inference is made where the run is about all texts together.
    """
    names = {attack.name for attack in attacks}
    verdicts: list[pl.DataFrame] = [Verdicts.create_empty()]
    findings: list[pl.DataFrame] = [Findings.create_empty()]
    has_nulls = bool(role_counts(found)["n_nulls"])
    if COMBINATION in names:
        findings.append(combination_findings(scores))
    if CODEC in names and has_nulls:
        findings.append(codec_findings(scores))
    weighed = [attack.name for attack in attacks if attack.evidence != "scores"]
    if plan.level == "collection" and has_nulls and len(weighed) > 1:
        inferred = infer_dataset(scores, weighed, plan, told_apart=told_apart)
        verdicts.append(inferred.verdict())
        findings.append(inferred.findings())
    return pl.concat(verdicts), pl.concat(findings)
