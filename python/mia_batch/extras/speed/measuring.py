"""Measures each way in turns until the time is over, and forecasts what so many texts take."""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from mia_batch.errors import SettingsError
from mia_batch.evidence.engines import registry
from mia_batch.evidence.request import EvidenceKind
from mia_batch.extras.speed import ways
from mia_batch.extras.speed.machine import count_cores, describe_machine
from mia_batch.extras.speed.texts import Texts, make_toy, write_texts
from mia_batch.extras.speed.ways import FEWEST_AUDITED, RIVALS, Row
from mia_batch.models.formats import find_format
from mia_batch.models.weights import check_model
from mia_batch.observer import Observer

MOST_REPEATS = 5
_FEWEST_FORECAST = 32
_MOST_AUDITED = 512
_TEXTS_OF_FORECAST = 1_000_000  # where the texts are nobody's
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
_LEFT = {"sampling": 0.55, "pairs": 0.45, "log-probabilities": 0.25, "audit": 0.0}
"""Share of all the time that is left after each part when it is first measured."""


class Point(NamedTuple):
    """A model, and what its engine is given: what differs between points of a curve."""

    place: str
    model: str  # as rows name it
    engine: str = "auto"
    batch_size: int | None = None
    tensor_parallel_size: int = 1
    no_model: str | None = None  # why there is none
    is_toy: bool = False

    def describe(self) -> Row:
        return {
            "model": self.model,
            "weights_mb": _measure_weights(self.place),
            "batch_size": self.batch_size,
            "tensor_parallel_size": self.tensor_parallel_size,
        }


class Way(NamedTuple):
    """One thing that is measured, again and again."""

    part: str
    label: str
    function: str  # of `ways`
    arguments: Row
    reason: str | None = None  # why it cannot be measured


class Forecast(NamedTuple):
    """What is to be forecast."""

    n_texts: int
    gpu_hour_price: float | None


class _Meter:
    """Measures one way after the other, as long as there is time."""

    def __init__(self, folder: str, minutes: float, observer: Observer) -> None:
        self.minutes = minutes
        self._round, self._n_measured = 1, 0
        self._folder, self._observer = folder, observer
        self._deadline = time.monotonic() + 60 * minutes
        self._durations: dict[tuple[Point, str, str], float] = {}

    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def repeat(
        self, measure: Callable[[], Iterator[tuple[Point, Row]]]
    ) -> Iterator[tuple[Point, Row]]:
        """Iterate over the rows of each round, until there is time for nothing in one of them."""
        for number in range(1, MOST_REPEATS + 1):
            self._round, self._n_measured = number, 0
            for point, row in measure():
                yield point, row | {"repeat": number}
            if not self._n_measured:
                return

    def measure(self, point: Point, way: Way, seconds: float) -> Row | None:
        """Return figures, or why there are none; None where no time is left to repeat them."""
        key = point, way.part, way.label
        if self._round > 1:
            seconds = self.seconds_left()
            if self._durations.get(key, float("inf")) > seconds:
                return None
        if seconds < 1:
            return {"reason": "no time was left for it; give more --minutes"}
        if way.reason is not None:
            return {"reason": way.reason}
        self._show(point, way, seconds)
        start = time.monotonic()
        figures = ways.run_in_process(
            way.function,
            seconds,
            folder=self._folder,
            model=point.place,
            **way.arguments,
        )
        duration = time.monotonic() - start
        if "reason" not in figures:
            self._durations[key] = duration
            self._n_measured += 1
        elif self._round > 1 and duration >= seconds:
            return None
        return figures

    def _show(self, point: Point, way: Way, seconds: float) -> None:
        words = [way.label]
        if point.batch_size is not None:
            words.append(f"{point.model}, batches of {point.batch_size}")
        if self._round > 1:
            words.append(f"repeat {self._round}")
        self._observer.stage(f"{way.part}: {', '.join(words)}, at most {seconds:.0f} s")
        self._observer.step(f"measuring {way.part}")


def bench(
    *,
    models: Sequence[str] = (),
    input: str | None = None,  # noqa: A002 - the setting's name
    dataset: str | None = None,
    texts: int | None = None,
    engine: str = "auto",
    batch_sizes: Sequence[int] = (),
    gpus: Sequence[int] = (),
    gpu_hour_price: float | None = None,
    minutes: float,
    observer: Observer,
) -> Iterator[Row]:
    """Measure in turns; a row has one figure of one repeat, or a reason, and what it is of.

    Several models, and batch sizes or numbers of GPUs, are points of curves.
    """
    names = _name_models(models)
    if registry.find_missing_package("transformers", "torch", "transformers") is None:
        for model in models:
            check_model(model)
    with TemporaryDirectory(prefix="mia-batch-bench-") as folder:
        measured_texts = write_texts(
            Path(folder), input, dataset, counts_all=texts is None
        )
        observer.step("cutting the texts, and making a model where none is given")
        no_model = None
        try:
            places = names or {make_toy(Path(folder)): "toy"}
        except SettingsError as error:  # pairs of texts need no model
            places, no_model = {"": "toy"}, str(error)
        choices = product(places.items(), batch_sizes or (None,), gpus or (1,))
        points = [
            Point(*place, engine, batch_size, n_gpus, no_model, not models)
            for place, batch_size, n_gpus in choices
        ]
        labels = {
            "texts": len(measured_texts.lengths),
            "characters": sum(measured_texts.lengths),
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
            **describe_machine(),
        }
        meter = _Meter(folder, minutes, observer)
        work: _Curves | _WholeBench = _Curves(meter, points)
        if len(points) == 1 and not batch_sizes and not gpus:
            n_texts = texts or measured_texts.n_all or _TEXTS_OF_FORECAST
            forecast = Forecast(n_texts, gpu_hour_price)
            work = _WholeBench(meter, points[0], measured_texts, forecast)
        for point, row in meter.repeat(work.measure):
            yield row | point.describe() | labels


def _name_models(models: Sequence[str]) -> dict[str, str]:
    """Return by place the last names of models, by which rows tell them apart."""
    names = [Path(model).name for model in models]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise SettingsError(
            f"model= names {repeated!r} twice, and figures would not tell which; give"
            " each model once, and one of two with the same name by a link"
        )
    places = [
        str(Path(model).absolute()) if Path(model).exists() else model
        for model in models
    ]
    return dict(zip(places, names, strict=True))


def _measure_weights(model: str) -> float | None:
    """Return the size of a model's files of weights; None where they are not on this disk."""
    if not model:
        return None
    paths = find_format(model).find_files(model)
    sizes = [path.stat().st_size for path in paths if path.suffix in _WEIGHTS]
    return sum(sizes) / 1e6 if sizes else None


def _choose_engine(kind: EvidenceKind, point: Point) -> tuple[str, str | None]:
    """Return the engine that an audit would take, or why there is none."""
    if point.no_model is not None:
        return "any engine", point.no_model
    try:
        engine, _ = registry.choose_engine(
            point.engine,
            kind,
            frozenset(),
            model=point.place,
            gpus=point.tensor_parallel_size,
        )
    except SettingsError as error:
        return "any engine", str(error)
    return engine, None


def _build_engine_way(
    part: str, kind: EvidenceKind, point: Point, function: str, **arguments: Any
) -> Way:
    engine, reason = _choose_engine(kind, point)
    fields = {
        "engine": engine,
        "batch_size": point.batch_size,
        "tensor_parallel_size": point.tensor_parallel_size,
    }
    return Way(part, f"mia-batch by {engine}", function, fields | arguments, reason)


class _Curves:
    """Samples and log-probabilities at each of several points."""

    def __init__(self, meter: _Meter, points: Sequence[Point]) -> None:
        self._meter = meter
        limit = {"seconds": 5 * meter.minutes / len(points)}
        self._steps = []
        for point in points:
            sampling = _build_engine_way(
                "sampling", "samples", point, "sample", **limit
            )
            scoring = _build_engine_way(
                "log-probabilities", "logprobs", point, "score_texts", **limit
            )
            self._steps += [(point, sampling), (point, scoring)]

    def measure(self) -> Iterator[tuple[Point, Row]]:
        for n_measured, (point, way) in enumerate(self._steps):
            share = self._meter.seconds_left() / (len(self._steps) - n_measured)
            figures = self._meter.measure(point, way, share)
            if figures is not None:
                for row in _build_speed_rows(way, figures, {}):
                    yield point, row


class _WholeBench:
    """All parts of a bench at one point; the first round says how many texts are audited."""

    def __init__(
        self, meter: _Meter, point: Point, texts: Texts, forecast: Forecast
    ) -> None:
        self._meter, self._point = meter, point
        self._texts, self._forecast = texts, forecast
        self._steps = [*_list_ways(point, meter.minutes)]
        self._n_audited = 0

    def measure(self) -> Iterator[tuple[Point, Row]]:
        for row in self._measure_rows():
            yield self._point, row

    def _measure_rows(self) -> Iterator[Row]:
        ours_by_part: dict[str, Row] = {}
        for way in self._steps:
            figures = self._measure_way(way)
            if figures is None:
                continue
            if way.label.startswith("mia-batch"):
                ours_by_part.setdefault(way.part, figures)
            ours = figures.get("ours", ours_by_part.get(way.part, {}))
            yield from _build_speed_rows(way, figures, ours)
        self._n_audited = self._n_audited or self._choose_n_audited(ours_by_part)
        n = self._n_audited
        labelled = self._texts.has_classes and not self._point.is_toy
        arguments = {
            "n": n,
            "labelled": labelled,  # a toy has seen none of them
            "engine": self._point.engine,
        }
        way = Way(
            "audit",
            f"{n} texts, end to end",
            "small_audit",
            arguments,
            self._point.no_model,
        )
        figures = self._measure_way(way)
        if figures is not None:
            yield from _build_audit_rows(way, figures, n)
            yield from self._build_forecast(figures, n)

    def _measure_way(self, way: Way) -> Row | None:
        reserved = 60 * self._meter.minutes * _LEFT[way.part]
        seconds = self._meter.seconds_left() - reserved
        return self._meter.measure(self._point, way, seconds)

    def _choose_n_audited(self, ours_by_part: dict[str, Row]) -> int:
        """Return how many texts there is time for, as a power of two: other runs take as many."""
        # An audit asks about a text faster than mia-batch sampled it
        sampled = ours_by_part.get("sampling", {})
        prompts_per_second = sampled.get("prompts", 0) / sampled.get("seconds", 1)
        n_affordable = int(6 * self._meter.minutes * prompts_per_second)
        # Fewer than a forecast needs are audited where there will be none
        fewest = FEWEST_AUDITED if self._point.is_toy else _FEWEST_FORECAST
        n = min(max(n_affordable, fewest), _MOST_AUDITED)
        return min(1 << (n.bit_length() - 1), len(self._texts.lengths))

    def _build_forecast(self, figures: Row, n: int) -> Iterator[Row]:
        """Iterate over rows of a forecast by an audit of the first ``n`` texts."""
        part = "forecast", f"{self._forecast.n_texts:,} texts"
        reason = None
        if self._point.is_toy:
            reason = "a toy's speed says nothing about your model; give --model"
        elif "reason" in figures:
            reason = f"the small audit has no figures: {figures['reason']}"
        elif n < _FEWEST_FORECAST:
            reason = (
                f"{n} texts are too few to forecast from, {_FEWEST_FORECAST} are"
                " needed; give an --input of more texts"
            )
        if reason is not None:
            yield _build_row(*part, reason=reason)
            return
        lengths = self._texts.lengths
        times_longer = fmean(lengths) / fmean(lengths[:n])
        seconds = forecast_seconds(figures, n, self._forecast.n_texts, times_longer)
        yield _build_row(*part, "hours", seconds / 3600)
        price = self._forecast.gpu_hour_price
        if price is not None:
            yield _build_row(*part, "price", seconds / 3600 * price)


def forecast_seconds(
    figures: Row, n: int, n_texts: int, times_longer: float = 1.0
) -> float:
    """Forecast an audit: its start, what each text takes, and what the strongest take."""
    asking, continuing = figures["asking"], figures["continuing"]
    start = figures["seconds"] - asking - continuing
    most = figures["most_continued"]
    if most:
        continuing *= min(n_texts, most) / min(n, most)
    return float(start + asking * times_longer * n_texts / n + continuing)


def _list_ways(point: Point, minutes: float) -> Iterator[Way]:
    """Iterate over the ways of all parts but the audit; of each mia-batch comes first."""
    limit: Row = {"seconds": minutes}  # starts, and what is under way then, take longer
    no_model = point.no_model
    yield _build_engine_way("sampling", "samples", point, "sample", **limit)
    yield Way("sampling", "vLLM alone", "sample_by_vllm", {}, no_model)
    yield Way(
        "sampling", "transformers alone", "sample_by_transformers", limit, no_model
    )
    powers_of_two = [2**i for i in range(count_cores().bit_length())]
    for threads in sorted({*powers_of_two, count_cores()}):
        label = f"mia-batch, threads: {threads}"
        yield Way("pairs", label, "compare", {"threads": threads})
    for rival in RIVALS:
        yield Way("pairs", rival, "compare", {"threads": 1, "rival": rival})
    scorers: dict[str, Row] = {
        "mia-batch by transformers": {"engine": "transformers"},
        "a bare loop of transformers": {"bare": True},
    }
    for label, arguments in scorers.items():
        yield Way(
            "log-probabilities", label, "score_texts", arguments | limit, no_model
        )


def _build_speed_rows(way: Way, figures: Row, ours: Row) -> Iterator[Row]:
    """Iterate over counts a second, and of a rival how many times as fast mia-batch is."""
    if "reason" in figures:
        yield _build_row(way.part, way.label, reason=figures["reason"])
        return
    units = [unit for unit in ("tokens", "prompts", "pairs") if unit in figures]
    speeds = [figures[unit] / figures["seconds"] for unit in units]
    for unit, speed in zip(units, speeds, strict=True):
        yield _build_row(way.part, way.label, f"{unit}_per_second", speed)
    if units[0] in ours and not way.label.startswith("mia-batch"):
        our_speed = ours[units[0]] / ours["seconds"]
        times = our_speed / speeds[0]
        yield _build_row(way.part, way.label, "mia_batch_times_as_fast", times)


def _build_row(
    part: str,
    way: str,
    figure: str | None = None,
    value: float | None = None,
    *,
    reason: str | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Row:
    return {
        "part": part,
        "way": way,
        "figure": figure,
        "value": value,
        "low": low,
        "high": high,
        "reason": reason,
    }


def _build_audit_rows(way: Way, figures: Row, n: int) -> Iterator[Row]:
    """Iterate over rows of an audit of ``n`` texts and of its attacks."""
    audit = way.part, way.label
    if not figures.get("asking", 1):
        figures["reason"] = "the model could be asked about no text"
    if "reason" in figures:
        yield _build_row(*audit, reason=figures["reason"])
        return
    yield _build_row(*audit, "texts_per_hour", 3600 * n / figures["asking"])
    yield _build_row(*audit, "seconds_with_start", figures["seconds"])
    yield _build_row(*audit, "peak_mb", figures["peak_mb"])
    for attack in figures.get("attacks", ()):
        yield from _build_attack_rows(attack)
    if not figures.get("attacks"):
        yield _build_row(
            "attacks", "all", reason="give --model, and --input with labelled texts"
        )


def _build_attack_rows(attack: Row) -> Iterator[Row]:
    names = _ATTACK_FIGURES[:1] if attack["is_blind"] else _ATTACK_FIGURES
    for name, figure, absence in names:
        value = attack[name]
        row = _build_row(
            "attacks",
            attack["attack"],
            figure,
            value,
            reason=absence if value is None else None,
        )
        if name == "auc":
            row |= {"low": attack["low"], "high": attack["high"]}
        yield row


_ATTACK_FIGURES = (
    ("auc", "auc", "too few texts have a score"),
    ("tpr_1", "tpr_at_1_percent", "there are too few non-members"),
    ("tokens", "tokens_a_text", "none are decoded"),
    ("seconds", "seconds_a_text_with_start", "nothing is asked"),
)
"""Columns of the table of attacks, what they are called here, and why one can be missing."""
