"""A sweep: one audit over values of one setting or two, as papers do for their ablations."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import click

from mia_batch.cli.help import TopicCommand
from mia_batch.cli.options import (
    Decorator,
    given,
    observing,
    option,
    settings_options,
)
from mia_batch.errors import RequestError, SettingsError
from mia_batch.extras.study.frame import (
    audited,
    check_folder,
    figures_of,
    folder_name,
    publish,
    study_out,
)
from mia_batch.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from mia_batch.observer import Observer

Values = dict[str, str]
"""What differs at one place of a sweep, by setting."""
_NEVER = {"out", "fpr", "config", "shard", "workers", "ray", "retry_failed", "report"}
_EXTENDED = ("samples", "probes", "token_points", "max_windows_per_document")
"""Settings whose largest value is asked for in one run; with fewer the first ones count."""
_MOST_SETTINGS = 2


def over_option(text: str) -> Decorator:
    return option("over", str, "NAME=V,V", text, multiple=True, required=True, callback=_overs)


def _overs(
    _context: click.Context, _option: click.Parameter, given: Sequence[str]
) -> dict[str, list[str]]:
    """Read ``--over`` as values by name."""
    found: dict[str, list[str]] = {}
    for each in given:
        flag, _, listed = each.partition("=")
        name = flag.strip().lstrip("-").replace("-", "_")
        values = list(dict.fromkeys(value.strip() for value in listed.split(",") if value.strip()))
        if not name or not values:
            raise click.BadParameter(f"{each!r} does not read NAME=VALUE,VALUE")
        if name in found:
            raise click.BadParameter(f"{name} is there twice; list all its values in one")
        found[name] = values
    if len(found) > _MOST_SETTINGS:
        raise click.BadParameter(f"{len(found)} settings are too many for one table; vary two")
    return found


@click.command("sweep", cls=TopicCommand)
@over_option(
    "A setting by its flag's name, and its values, such as prefix-ratio=0.25,0.5,0.75; at most two."
)
@study_out
@settings_options(without=("out", "shard"))
def sweep(*, over: dict[str, list[str]], out: Path, **options: object) -> None:
    """Audit one labelled corpus with each value of a setting, or of two, and compare the AUC.

    Of --over samples=1,2,5,10 the largest number is asked for once, and the first ones of it are
    scored. A value that an audit refuses is a row with the reason.
    """
    for name in over:
        _check(name)
    base = given(options)
    if both := sorted(over.keys() & base.keys()):
        raise click.UsageError(f"--{both[0].replace('_', '-')} is in --over as well; leave one out")
    points = [dict(zip(over, each, strict=True)) for each in product(*over.values())]
    check_folder(out)
    with observing() as observer:
        table = swept(out, base, points, observer)
    x, *by = sorted(over, key=lambda name: -len(over[name]))
    publish(out, table, [*over], x=x, by=by, every="attacks" in base)


def _check(name: str) -> None:
    field = Settings.model_fields.get(name)
    if field is None:
        from difflib import get_close_matches

        near = get_close_matches(name, Settings.model_fields, n=1)
        hint = f"did you mean {near[0].replace('_', '-')}?" if near else "`mia-batch help` has all"
        raise click.UsageError(f"--over {name.replace('_', '-')}: there is no such setting; {hint}")
    if name in _NEVER or any(kind in str(field.annotation) for kind in ("tuple", "dict")):
        why = "; one run has all attacks that --attacks names" if name == "attacks" else ""
        raise click.UsageError(f"--over {name.replace('_', '-')}: a sweep cannot vary it{why}")


def swept(
    out: Path, base: Mapping[str, Any], points: Sequence[Values], observer: Observer
) -> pl.DataFrame:
    """Audit at each point, and lay out the figures; raise if every one is refused."""
    import polars as pl

    rows, refused = dict[int, pl.DataFrame](), dict[int, str]()
    for values, folder, is_figure in _in_order(points):
        at = points.index(values)
        try:
            found = audited(out / folder, {**base, **values}, observer)
            if is_figure:
                rows[at] = figures_of(found)
        except RequestError as error:
            refused[at] = " ".join(str(error).split())
            observer.stage(f"{_words(values)} is refused: {error}")
    if not rows:
        raise SettingsError(f"no value can be audited: {refused[0]}")
    none = {at: pl.DataFrame({"metric": "roc_auc", "reason": why}) for at, why in refused.items()}
    parts = [
        part.select(*(pl.lit(value).alias(name) for name, value in points[at].items()), pl.all())
        for at, part in sorted((none | rows).items())
    ]
    table = pl.concat(parts, how="diagonal_relaxed")
    numbers = table.select(pl.col(*points[0]).cast(pl.Float64, strict=False))
    return table.with_columns(each for each in numbers if not each.null_count())


def _in_order(points: Sequence[Values]) -> Iterator[tuple[Values, str, bool]]:
    """Yield values with the folder of their run, and whether their figures are wanted then.

    Of a run that several share, the largest come first, which asks for everything, and once more
    last, so that it is left as their audit leaves it.
    """
    shared: dict[str, list[Values]] = {}
    for values in points:
        own = {name: value for name, value in values.items() if name not in _EXTENDED}
        shared.setdefault(folder_name(own), []).append(values)
    for folder, some in shared.items():
        *fewer, most = sorted(some, key=lambda values: [_number(values, n) for n in _EXTENDED])
        yield most, folder, True
        yield from ((values, folder, True) for values in fewer)
        if fewer:
            yield most, folder, False


def _number(values: Values, name: str) -> float:
    try:
        return float(values.get(name, 0))
    except ValueError:
        return -1  # its audit says what is wrong with it


def _words(values: Values) -> str:
    return ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items())
