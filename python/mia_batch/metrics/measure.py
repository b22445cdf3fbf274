"""A labelled run: what attacks tell of the labels, and what can be told without the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.diagnostics.blind.baseline import BlindBaseline, blind_baseline
from mia_batch.diagnostics.duplicates import NearDuplicates, near_duplicates
from mia_batch.diagnostics.unscored import UnevenScores, find_uneven_scores
from mia_batch.metrics.clusters import find_clusters
from mia_batch.metrics.evaluate import evaluate
from mia_batch.metrics.quintiles import fifth_aucs
from mia_batch.schemas import Metrics, Scores
from mia_batch.stats.difference import auc_difference
from mia_batch.targets.clusters import cluster_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.targets.plan import Preset

__all__ = ["Measured", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the labels of a run show.

    Attributes
    ----------
    metrics
        The metrics table.
    blind
        What can be told without the model; null where the labels are not of both classes.
    duplicates
        Texts that both classes have; null likewise.
    unscored
        Attacks that score one class less often than the other; null where there are none.
    """

    metrics: pl.DataFrame
    blind: BlindBaseline | None = None
    duplicates: NearDuplicates | None = None
    unscored: UnevenScores | None = None


def measure(
    scores: pl.LazyFrame,
    targets: pl.LazyFrame,
    attacks: Sequence[str],
    *,
    preset: Preset,
    slice_by: Sequence[str],
    primary: str,
    seed: int,
    unscored: pl.LazyFrame | None = None,
) -> Measured:
    """Measure attacks, and classifiers that never see the model, on the same labels.

    Parameters
    ----------
    scores
        The scores table.
    targets
        The targets table, for its texts.
    attacks
        Names of the attacks.
    preset
        ``samia`` adds the authors' metrics.
    slice_by
        Columns by whose values the targets are measured apart.
    primary
        The attack that is compared with each other one.
    seed
        Of resamples, folds and permutations.
    unscored
        The unscored table, for the reasons of missing scores; null where there is none.

    Returns
    -------
    Measured
        The metrics of attacks; then of blind classifiers, of each attack less the strongest of
        them (``versus``), and of each attack within fifths of its score.

    Raises
    ------
    RequestError
        If a column to slice by is missing or has too many values.
    """
    counts = pl.col("role").is_in(["target", "non_member"]) & pl.col("member").is_not_null()
    n_classes = scores.filter(counts).select(pl.col("member").n_unique()).collect().item()
    if n_classes == 0:
        return Measured(metrics=Metrics.create_empty())
    metrics = evaluate(
        scores, attacks, preset=preset, slice_by=slice_by, primary=primary, seed=seed
    )
    if n_classes == 1:
        return Measured(metrics=metrics)
    labelled = targets.filter(counts)
    blind = blind_baseline(labelled, seed=seed)
    facts = [*_rows_beside_blind(scores, attacks, blind)]
    beside = pl.DataFrame(facts, schema=metrics.schema)
    primary_first = sorted(attacks, key=lambda attack: attack != primary)
    return Measured(
        metrics=pl.concat([metrics, blind.metrics, beside]),
        blind=blind,
        duplicates=near_duplicates(labelled),
        unscored=find_uneven_scores(scores, counts, primary_first, unscored=unscored),
    )


def _rows_beside_blind(
    scores: pl.LazyFrame, attacks: Sequence[str], blind: BlindBaseline
) -> Iterator[dict[str, Any]]:
    """Compare each attack with the strongest blind classifier, on the texts that this one saw."""
    if blind.strongest is None:
        return
    seen = blind.scores.lazy().select("target_id", blind=blind.strongest)
    keys = [name for name in Scores.column_names() if name in scores.collect_schema()]
    # Named while all rows are there: a document without a name begins with its first window.
    own = scores.with_columns(group=cluster_names(scores)).select(*keys, *attacks)
    both = own.join(seen, on="target_id", maintain_order="left").collect(engine="streaming")
    member, told = both["member"].to_numpy(), both["blind"].to_numpy()
    cluster = find_clusters(both.lazy(), pl.lit(value=True), attacks)
    for attack in attacks:
        score = both[attack].fill_null(float("nan")).to_numpy()
        made = auc_difference(member, score, told, cluster=cluster)
        compared = {"attack": attack, "versus": blind.strongest, "slice": "all"}
        yield compared | made.row(both.height)
        for fifth in fifth_aucs(member, score, told, cluster):
            yield {
                "attack": attack,
                "slice": fifth.slice,
                "metric": "roc_auc",
                "value": fifth.value,
                **(asdict(fifth.interval) if fifth.interval else {}),
                "reason": fifth.reason,
                "n_members": fifth.n_members,
                "n_nonmembers": fifth.n_nonmembers,
                "n_unscored": fifth.n_unscored,
            }
