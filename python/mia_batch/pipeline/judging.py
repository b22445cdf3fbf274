"""From scores to what may be concluded: metrics, verdicts, and the sentences that lead them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import polars as pl

from mia_batch import tables
from mia_batch.diagnostics.blind.baseline import blind_baseline
from mia_batch.diagnostics.copies import find_copies
from mia_batch.diagnostics.duplicates import near_duplicates
from mia_batch.diagnostics.languages import language_difference
from mia_batch.errors import SettingsError
from mia_batch.inference.foresight import foresee_power, length_difference
from mia_batch.inference.plan import VerdictPlan
from mia_batch.inference.verdicts import verdicts
from mia_batch.metrics.measure import measure
from mia_batch.pipeline.redrawing import sampling_error
from mia_batch.report.conclusions import conclude_labelled, conclude_unlabelled
from mia_batch.schemas import Metrics, Scores, Targets, Unscored, Verdicts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.attacks import Attack
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.run import Run
    from mia_batch.settings import Settings

__all__ = ["fix_plan", "foresee", "judge", "plan_verdicts"]

_PRIMARY = ("samia_matched_v1", "min_k_plus_plus_20_v1")
_TARGET = pl.col("role") == "target"
_NULL = pl.col("role") == "non_member"
_CANARY = pl.col("role") == "canary"
_ASKED = _TARGET & pl.col("member").is_null()
_NO_NULL = (
    "No text is known to be outside the training data, so these scores rank texts and show nothing "
    "of any one of them: give setting 'non_members'."
)
_LABELLED_FALSE = "texts of the input that are labelled member = false"


def plan_verdicts(settings: Settings, attacks: list[Attack]) -> VerdictPlan:
    """Say what the run is to decide and how.

    Parameters
    ----------
    settings
        The settings.
    attacks
        What is computed.

    Returns
    -------
    VerdictPlan
        The plan. The primary attack is the one asked for, else the first of `samia_matched_v1` and
        `min_k_plus_plus_20_v1` that is computed, else the first attack.

    Raises
    ------
    SettingsError
        If the attack asked for is not among those computed.
    """
    names = [attack.name for attack in attacks]
    primary = settings.primary or next((name for name in _PRIMARY if name in names), names[0])
    if primary not in names:
        msg = f"setting 'primary' is {primary!r}, which is not computed; name it in 'attacks' too"
        raise SettingsError(msg)
    return VerdictPlan(
        primary=primary,
        level=settings.level,
        null_set=settings.non_members_known or _LABELLED_FALSE,
        q=settings.q,
        adjustment=settings.adjustment,
        ties=settings.ties,
        statistic=settings.statistic,
        windows_per_group=settings.windows_per_group,
        length_edges=settings.length_edges,
        fpr=settings.fpr,
        seed=settings.seed,
    )


def fix_plan(settings: Settings, plan: VerdictPlan, manifest: Manifest, run: Run) -> None:
    """Record the plan before the first score is made; what comes later is exploratory.

    Parameters
    ----------
    settings
        How many samples there are.
    plan
        What is to be decided.
    manifest
        The run's manifest. Beside the plan it is told which texts and samples it rests on
        (``rests_on``), null where there were scores before any plan.
    run
        The run, held.
    """
    if not manifest.plan:
        seen = run.scores_path.exists()
        rests_on = None if seen else _rests_on(settings, manifest)
        manifest.plan = asdict(plan) | {"sha256": plan.digest(), "rests_on": rests_on}
        manifest.write(run)


def _rests_on(settings: Settings, manifest: Manifest) -> dict[str, int | str]:
    """Say which texts, by their SHA-256, and how many samples: others may change any answer."""
    helping: dict[str, str] = manifest.input["helping"]
    return {"samples": settings.samples, "input": manifest.input["sha256"], **helping}


def _unplanned(settings: Settings, plan: VerdictPlan, manifest: Manifest) -> str | None:
    """Say why answers are exploratory; null where they are those that were planned."""
    made = manifest.plan.get("rests_on")
    if made is None:
        return "These answers are exploratory: scores had been made before any plan was recorded."
    now = _rests_on(settings, manifest)
    changed = sorted(name for name in made.keys() | now.keys() if made.get(name) != now.get(name))
    if not changed and plan.digest() == manifest.plan["sha256"]:
        return None
    others = f" Changed since: {', '.join(changed)}." if changed else ""
    return (
        "These answers are exploratory: scores had been made before they were asked for. The "
        f"plan made before is in run.json (primary attack {manifest.plan['primary']}).{others}"
    )


def foresee(targets: pl.LazyFrame, plan: VerdictPlan) -> tuple[str, ...]:
    """Say before the run what it can show at best.

    Parameters
    ----------
    targets
        The targets table.
    plan
        What is to be decided.

    Returns
    -------
    tuple of str
        Sentences; none where nothing is known to be outside the training data.
    """
    if not (_has_null(targets) and _has(targets, _ASKED)):
        return ()
    keys = targets.select(name for name in Scores.column_names() if name in Targets.column_names())
    power = foresee_power(keys.collect(engine="streaming").lazy(), plan)
    return () if power is None else power.sentences


def judge(settings: Settings, attacks: list[Attack], manifest: Manifest, run: Run) -> None:
    """Write metrics and verdicts, and record what may be concluded from them.

    Parameters
    ----------
    settings
        How the answer is given.
    attacks
        What was computed.
    manifest
        The run's manifest; conclusions are put in it, and it is left to the caller to store.
    run
        The run, held, with scores and the reasons of missing ones.
    """
    plan = plan_verdicts(settings, attacks)
    unplanned = _unplanned(settings, plan, manifest)
    names = [attack.name for attack in attacks]
    scores = tables.scan(run.scores_path, Scores)
    targets = tables.scan(run.targets_path, Targets)
    measured = measure(
        scores,
        targets,
        names,
        preset=settings.preset,
        slice_by=settings.slice_by,
        primary=plan.primary,
        seed=settings.seed,
        unscored=tables.scan(run.unscored_path, Unscored),
    )
    tables.sink(measured.metrics, run.metrics_path, Metrics)
    made = _verdicts(settings, attacks, plan, run)
    if unplanned:
        made = (rows.with_columns(planned=False) for rows in made)
    tables.sink_frames(made, run.verdicts_path, Verdicts)
    sentences = [*conclude_labelled(measured, plan.primary)]
    null = _has_null(scores)
    asked = _has(scores, _ASKED)
    if (null and asked) or _has(scores, _CANARY):
        sentences += conclude_unlabelled(tables.scan(run.verdicts_path, Verdicts), plan)
    if asked:
        sentences += _exchangeability(targets, settings.seed) if null else [_NO_NULL]
    if sentences and (copied := find_copies(targets).warning) is not None:
        sentences.append(copied)
    if unplanned:
        warns = measured.blind is not None and measured.blind.warning is not None
        sentences.insert(int(warns), unplanned)  # nothing comes before the blind baseline's warning
    manifest.conclusions = sentences


def _verdicts(
    settings: Settings, attacks: list[Attack], plan: VerdictPlan, run: Run
) -> Iterator[pl.DataFrame]:
    """Yield the verdicts table, the primary attack's targets with their sampling error."""
    scores = tables.scan(run.scores_path, Scores)
    null = _has_null(scores)
    yield Verdicts.create_empty()
    if not (null or _has(scores, _CANARY)):
        return
    primary = next(attack for attack in attacks if attack.name == plan.primary)
    errors = None
    if null and primary.evidence == "samples":
        errors, flips = sampling_error(settings, primary, plan, run)
        yield flips
    warns = _calibration_fails(tables.scan(run.targets_path, Targets), settings.seed)
    names = [attack.name for attack in attacks]
    for rows in verdicts(scores, names, plan, blind_warns=warns):
        yield rows if errors is None else _with_errors(rows, errors, plan.primary)


def _with_errors(rows: pl.DataFrame, errors: pl.DataFrame, primary: str) -> pl.DataFrame:
    found = rows.select("key").join(
        errors, left_on="key", right_on="target_id", how="left", maintain_order="left"
    )
    own = (pl.col("attack") == primary) & (pl.col("level") == "target")
    return rows.with_columns(standard_error=pl.when(own).then(found["standard_error"]))


def _has(table: pl.LazyFrame, which: pl.Expr) -> bool:
    return bool(table.select(which.any()).collect(engine="streaming").item())


def _has_null(table: pl.LazyFrame) -> bool:
    """Whether there are texts outside the training data, and others to compare with them."""
    return _has(table, _NULL | (_TARGET & ~pl.col("member")))


def _calibration_fails(targets: pl.LazyFrame, seed: int) -> bool:
    """Whether the calibration labels can be told apart without the model."""
    calibration = targets.filter(role="calibration")
    if not _has(calibration, pl.col("member")):
        return False
    return blind_baseline(calibration, seed=seed).verdict == "separable"


def _exchangeability(targets: pl.LazyFrame, seed: int) -> Iterator[str]:
    """Say how unlike targets and non-members are, by what no model made."""
    null = _NULL if _has(targets, _NULL) else _TARGET & ~pl.col("member")
    asked = pl.when(null).then(pl.lit(value=False)).when(_TARGET).then(pl.lit(value=True))
    compared = targets.with_columns(asked=asked)
    yield blind_baseline(compared, label="asked", seed=seed).exchangeability
    lengths = length_difference(targets)
    if lengths is not None:
        yield f"{lengths.sentence[0].upper()}{lengths.sentence[1:]}."
    languages = language_difference(compared, label="asked", seed=seed)
    if languages is not None:
        yield languages.sentence
    found = near_duplicates(compared, label="asked", names=("targets", "non-members"))
    if found.first.n_concerned + found.second.n_concerned:
        yield found.sentence
