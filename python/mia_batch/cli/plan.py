"""``mia-batch plan``: how many comparison texts a design needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mia_batch.cli.options import NumberRange, console_of, given, settings_options, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.inference.conformal import Adjustment
    from mia_batch.inference.power import AuditOutcome, Design, Power
    from mia_batch.settings import Settings


_OFTEN = 0.8  # share of audits in which a test should find what is there


@click.command("plan")
@click.option("--asked", type=click.IntRange(1), metavar="N", help="Texts, or groups, asked about.")
@click.option(
    "--members",
    required=True,
    type=click.IntRange(1),
    metavar="N",
    help="Of these in the training data, as assumed.",
)
@click.option(
    "--effect",
    type=NumberRange(0, 20),
    metavar="X",
    help="How much higher they score, in standard deviations between texts, or between groups.",
)
@click.option(
    "--auc",
    type=NumberRange(0.5, 1, max_open=True),
    metavar="X",
    help="The same as an AUC, instead of --effect.",
)
@click.option(
    "--comparison",
    callback=whole_numbers,
    metavar="N,N",
    help="Numbers of comparison texts, or groups, to try.  [default: 10, 20, 40, ...]",
)
@settings_options(
    *("input", "non_members", "config", "level", "q", "adjustment", "windows_per_group"),
    *("max_windows_per_document", "group_column", "seed"),
)
def plan(
    *,
    asked: int | None,
    members: int,
    effect: float | None,
    auc: float | None,
    comparison: list[int] | None,
    **options: object,
) -> None:
    """Say what an audit would find with so many comparison texts, and how many it needs.

    Audits of made-up scores are tested as real ones are. No model is needed; with --input and
    --non-members their texts or groups are counted.
    """
    from mia_batch.inference.power import Design, area_of, effect_of, simulate
    from mia_batch.settings import load_settings

    if effect is None and auc is not None:
        effect = effect_of(auc)
    elif effect is None or auc is not None:
        raise click.UsageError("give either --effect or --auc: how well members stand out")
    if asked is not None and options["input"] is not None:
        raise click.UsageError("give either --asked or --input, whose texts are counted")
    named = {"model": "planned", "non_members_known": "planned"}
    if asked is not None:
        named["input"] = "planned"
    settings = load_settings(named | given(options), use_config=asked is None)
    unit = "text" if settings.level == "target" else "group"
    adjustment: Adjustment = settings.adjustment
    if asked is None:
        power = _power_of_files(settings)
        asked, unit, adjustment = power.n_tests, power.unit, power.adjustment
        comparison = comparison or [max(1, power.n_null) * 2**doubled for doubled in range(6)]
    design = Design(
        asked=asked, members=members, effect=effect, q=settings.q, adjustment=adjustment
    )
    found = []
    for n_null in comparison or design.sizes():
        found.append(simulate(design, n_null, seed=settings.seed))
        if comparison is None and _is_enough(found[-1], design, settings.level):
            break
    console = console_of(stderr=False)
    console.print(
        f"{asked:,} {unit}s are asked about. Assumed: {members:,} of them are in the training data "
        f"and score {effect:.2f} standard deviations higher (AUC {area_of(effect):.3f}).",
        highlight=False,
    )
    console.print(_table(found, design, unit))
    for sentence in _answers(found, design, unit, settings.level):
        console.print(sentence, highlight=False)


def _power_of_files(settings: Settings) -> Power:
    """Count the units of files as an audit does."""
    from mia_batch.errors import SettingsError
    from mia_batch.inference.power import planned_power
    from mia_batch.pipeline.context import verdict_plan
    from mia_batch.pipeline.corpora import open_corpora, with_windows

    if settings.stop_when_decided:
        raise SettingsError("setting 'stop_when_decided' cannot be planned for yet; leave it out")
    settings = with_windows(settings)
    targets = open_corpora(settings).targets(settings)
    power = planned_power(targets, verdict_plan(settings, [settings.primary or "planned"]))
    if power is None:
        raise SettingsError("there are no non-members to count; give --non-members, or --asked")
    return power


def _is_enough(found: AuditOutcome, design: Design, level: str) -> bool:
    if level == "collection":
        return found.together >= _OFTEN
    return found.named >= design.members / 2


def _table(found: Sequence[AuditOutcome], design: Design, unit: str) -> Any:  # noqa: ANN401 - rich
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in (
        *(f"comparison {unit}s", f"named, of {design.members}", "any named in"),
        *("false on the list", "at least (median)", "all together, p <= 0.05"),
    ):
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(
            f"{each.n_null:,}",
            f"{each.named:.1f}",
            f"{each.any_named:.0%}",
            f"{each.false:.1%}",
            f"{each.at_least:.0f}",
            f"{each.together:.0%}",
        )
    return table


def _answers(found: Sequence[AuditOutcome], design: Design, unit: str, level: str) -> Iterator[str]:
    """Say how many are needed, or that none of these numbers are enough."""
    nulls, n = f"comparison {unit}s", f"{design.members:,}"
    enough = next((each for each in found if _is_enough(each, design, level)), None)
    whole = next((each for each in found if _is_enough(each, design, "collection")), None)
    if level != "collection" and enough is not None:
        yield f"Give {enough.n_null:,} {nulls}: on average {enough.named:.1f} of the {n} are named."
    elif level != "collection":
        most = max(found, key=lambda each: each.named)
        yield (
            f"None of these numbers names half of the {n}: {most.n_null:,} {nulls} name "
            f"{most.named:.1f} on average."
        )
    if whole is not None:
        yield (
            f"For one answer about all together (--level collection) give {whole.n_null:,}: "
            f"{whole.together:.0%} of audits have p <= 0.05."
        )
    elif level == "collection":
        most = max(found, key=lambda each: each.together)
        yield (
            f"None of these numbers is enough for all together: with {most.n_null:,} {nulls} "
            f"{most.together:.0%} of audits have p <= 0.05."
        )
