"""Ratios of figures to those of an earlier file, with intervals over the repeats."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, variance
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from mia_batch.errors import SettingsError
from mia_batch.extras.speed.ways import Row
from mia_batch.tables import has_too_many_values

FEWEST_REPEATS = 3
"""Of two, Welch's intervals cover less than they promise where the larger spread has fewer."""

_MOST_BYTES = 16 << 20
_SHARES = ("auc", "tpr_at_1_percent")  # whose ratio has no meaning
_MACHINE = {"cpu": "processor", "cores": "number of cores", "gpus": "GPUs"}
_ASKED = {"model": "model", "texts": "number of texts", "characters": "length of texts"}


class Ratio(NamedTuple):
    """A ratio of two rates and its 95 % interval, or the reason why one is missing."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


class Figure(NamedTuple):
    """What a figure is of; a run has one of each kind, repeated."""

    part: str
    way: str
    figure: str
    model: str  # "" where a run has one model
    batch_size: int | None
    tensor_parallel_size: int

    @property
    def label(self) -> str:
        """The way, and what is special about its point."""
        label = f"{self.model}: {self.way}" if self.model else self.way
        if self.batch_size is not None:
            label += f", batches of {self.batch_size}"
        if self.tensor_parallel_size > 1:
            label += f", {self.tensor_parallel_size} GPUs"
        return label


def compare_rates(new: Sequence[float], old: Sequence[float]) -> Ratio:
    """Divide two rates by their geometric means, with an interval over their repeats.

    Welch's interval of the difference of two means, of logarithms: with the variances
    ``v`` of the means, Student's quantile has ``(v_new + v_old)^2 / (v_new^2 / (n_new -
    1) + v_old^2 / (n_old - 1))`` degrees of freedom (Welch 1947, "The generalization of
    'Student's' problem when several different population variances are involved"). It
    says what repeats in the same hours differ by, not what hours or machines do.
    """
    new_logs = [math.log(value) for value in new]
    old_logs = [math.log(value) for value in old]
    difference = fmean(new_logs) - fmean(old_logs)
    ratio = Ratio(math.exp(difference))
    if min(len(new), len(old)) < FEWEST_REPEATS:
        return ratio._replace(
            reason=f"no interval, measured {len(new)} x now and {len(old)} x before,"
            f" where {FEWEST_REPEATS} x are needed (more --minutes)"
        )
    variances = [
        variance(logs) / len(logs) if len(set(logs)) > 1 else 0.0
        for logs in (new_logs, old_logs)
    ]
    if sum(variances) == 0:
        return ratio._replace(reason="no interval, since the repeats do not differ")
    from scipy.stats import t

    weights = [
        spread**2 / (len(logs) - 1)
        for spread, logs in zip(variances, (new_logs, old_logs), strict=True)
    ]
    freedom = sum(variances) ** 2 / sum(weights)
    half_width = float(t.isf(0.025, freedom)) * math.sqrt(sum(variances))
    return ratio._replace(
        low=math.exp(difference - half_width), high=math.exp(difference + half_width)
    )


class _Line(BaseModel):
    """A figure of one repeat, or the reason why there is none."""

    model_config = ConfigDict(allow_inf_nan=False, extra="forbid")

    part: str
    way: str
    figure: str | None
    value: float | None
    low: float | None
    high: float | None
    reason: str | None
    repeat: int
    model: str
    weights_mb: float | None
    batch_size: int | None
    tensor_parallel_size: int
    texts: int
    characters: int
    taken: str
    cpu: str
    cores: int
    gpus: list[str]
    versions: dict[str, str]


def read_runs(path: Path) -> list[list[Row]]:
    """Read what `mia-batch bench --json` wrote, run by run; refuse what it did not write."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read ({error.strerror}); give a file that `mia-batch"
            " bench --json` wrote"
        ) from None
    if len(content) > _MOST_BYTES:
        raise SettingsError(
            f"{path} is larger than {_MOST_BYTES >> 20} MiB; give the lines of one run"
        )
    runs: dict[str, list[Row]] = {}
    for number, line in enumerate(content.splitlines(), 1):
        row = _parse_line(line, f"{path}, line {number}")
        runs.setdefault(row["taken"], []).append(row)
    if not runs:
        raise SettingsError(
            f"{path} is empty; give a file that `mia-batch bench --json` wrote"
        )
    return [*runs.values()]


def _parse_line(line: bytes, place: str) -> Row:
    problem = "it has too many values"
    if not has_too_many_values(line):
        try:
            return _Line.model_validate_json(line).model_dump()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            problem = f"{where}: {first['msg']}" if where else first["msg"]
    raise SettingsError(
        f"{place}, is no line of `mia-batch bench --json` ({problem}); measure again"
        " with this version, or remove the line"
    )


def identify(rows: Sequence[Row]) -> list[Figure]:
    """Return what each row of a run is of."""
    has_models = len({row["model"] for row in rows}) > 1
    return [
        Figure(
            row["part"],
            row["way"],
            row["figure"] or "",
            row["model"] if has_models else "",
            row["batch_size"],
            row["tensor_parallel_size"],
        )
        for row in rows
    ]


def group_values(rows: Sequence[Row]) -> dict[Figure, list[float]]:
    """Return the values of all repeats of each figure of a run."""
    values: dict[Figure, list[float]] = {}
    for row, figure in zip(rows, identify(rows), strict=True):
        if row["value"] is not None:
            values.setdefault(figure, []).append(row["value"])
    return values


def compute_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, which ratios are made of, or of what may be 0 the other."""
    if min(values) <= 0:
        return fmean(values)
    return math.exp(fmean(math.log(value) for value in values))


def compare_figure(figure: str, new: Sequence[float], old: Sequence[float]) -> Ratio:
    if figure in _SHARES:
        return Ratio(reason="no ratio, since it is no rate")
    if min(*new, *old) <= 0:
        return Ratio(reason="no ratio, since a value is 0")
    return compare_rates(new, old)


def describe_differences(new: Row, old: Row) -> Iterator[str]:
    """Iterate over what else differs between two runs, before their ratios are read."""
    for field, noun in _MACHINE.items():
        if new[field] != old[field]:
            yield (
                f"other {noun}: {_write(new[field])}, before {_write(old[field])}: the"
                " ratios compare machines, not versions"
            )
    for field, noun in _ASKED.items():
        if new[field] != old[field]:
            yield (
                f"other {noun}: {_write(new[field])}, before {_write(old[field])}: the"
                " ratios compare what was asked, not versions"
            )
    versions = new["versions"], old["versions"]
    for package in sorted({*versions[0], *versions[1]}):
        now, before = (version.get(package, "none") for version in versions)
        if now != before:
            yield f"other version of {package}: {now}, before {before}"


def _write(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
