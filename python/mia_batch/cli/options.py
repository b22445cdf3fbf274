"""Options made from settings, numbers of the command line, and the console."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from functools import reduce
from itertools import repeat
from math import isnan
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any, Literal, TypeAlias, get_args, get_origin

import click
from click import Context, Parameter
from pydantic.fields import FieldInfo
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mia_batch.cli.help import SettingOption
from mia_batch.observer import Observer, WorkerState
from mia_batch.places import parse_place
from mia_batch.recipes import recipe_field
from mia_batch.settings import NO_YARDSTICK, PARTS, Mark, Part, Settings, spelled

Decorator: TypeAlias = "Callable[[Callable[..., Any]], Callable[..., Any]]"

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
ABOVE_0 = click.IntRange(min=1)


def option(
    name: str, kind: Any, metavar: str | None, text: str, **more: Any
) -> Decorator:
    """Add an option, whose value goes by the option's name, or by the one in ``dest``."""
    named = (f"--{name.replace('_', '-')}", more.pop("dest", name.replace("-", "_")))
    return click.option(*named, type=kind, metavar=metavar, help=text, **more)


_SEED = click.IntRange(0, 2**31)
seed_option = option("seed", _SEED, None, "Seed of everything random.", default=0)


def path_option(name: str, text: str, *, is_place: bool = False) -> Decorator:
    """Add an option that must name a file or folder, or with ``is_place`` the address of a run."""
    kind, metavar = (
        parse_place if is_place else PATH,
        "FOLDER" if name == "out" else "PATH",
    )
    return option(name, kind, metavar, text, required=True)


def column_options(*usual: str, **columns: str | None) -> Decorator:
    """Add options for the names of columns, with their help; ``usual`` ones are their defaults."""
    said = {
        name: f"Column of the {name.replace('_', ' ')}." for name in (*usual, *columns)
    }
    said |= {name: text for name, text in columns.items() if text}
    defaults = dict(zip(usual, usual, strict=True))
    return all_of(
        option(f"{name}_column", str, "COLUMN", text, default=defaults.get(name))
        for name, text in said.items()
    )


def all_of(options: Iterable[Decorator]) -> Decorator:
    return lambda command: reduce(
        lambda made, add: add(made), [*options][::-1], command
    )


def as_typed(message: str) -> str:
    """Name settings as on the command line, where a message has ``samples=``."""
    return spelled(
        message, {name: f"--{name.replace('_', '-')}" for name in Settings.model_fields}
    )


def given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, ())}


def take(options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return given({name: options.pop(name) for name in names if name in options})


class NumberRange(click.FloatRange):
    """Numbers in a range, where click takes ``nan`` for one of any range."""

    def convert(
        self, value: float, param: Parameter | None, ctx: Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        return number


def _speed(
    context: Context, option: Parameter, value: str | None
) -> float | str | None:
    if value is None or value == "probe":
        return "probe" if value else None
    return float(NumberRange(min=0, min_open=True).convert(value, option, context))  # type: ignore[arg-type]


speed_option = option(
    *("tokens-per-second", str, "X|probe"),
    "Speed of the model, from which --dry-run tells how long it takes; `probe` measures"
    " it with a few texts.",
    callback=_speed,
)


def whole_numbers(
    _context: Context, _option: Parameter, value: str | None
) -> list[int] | None:
    if value is None:
        return None
    with suppress(ValueError):
        if min(numbers := [int(part) for part in value.split(",")]) >= 1:
            return numbers
    raise click.BadParameter(f"{value!r} is no list of whole numbers such as 32,64")


_REPEATABLE = ("engine_arg", "base_url")
_KINDS = {int: "N", float: "X", Path: "FOLDER"}
_METAVARS = dict.fromkeys(Settings.marked(Mark.PATH), "PATH")
_METAVARS |= dict.fromkeys(Settings.marked(Mark.MODEL), "MODEL")
_METAVARS |= dict.fromkeys(
    ("chat_instruction", "non_members_known", "plan_lodged"), "TEXT"
)
_METAVARS |= {
    "out": "FOLDER",
    "engine_arg": "KEY=VALUE",
    "shard": "I/N",
    "base_url": "URL",
}
_METAVARS |= {"workers": "N|auto", "ray": "ADDRESS", "yardstick": "PATH|default|none"}


def settings_options(
    *names: str | type[Part], without: Iterable[str] = ()
) -> Decorator:
    """Add an option for each setting, or for those that are named, or are of the parts named.

    Values are validated with all others, not one by one.
    """
    return all_of(
        _option(name, field, part, usual=bool(names) or Mark.USUAL in field.metadata)
        for part in PARTS
        for name, field in part.model_fields.items()
        if name not in without and (not names or name in names or part in names)
    )


def recipe_options(recipe: str, *names: str, **defaults: str) -> Decorator:
    """Add options for fields of `Recipe`, None where they are not given.

    The help says the default of a recipe, or where it is another the text in
    ``defaults``.
    """

    def of_recipe(name: str) -> Decorator:
        field = recipe_field(name, recipe)
        kinds = [*_parts(field.annotation)]
        bounds = {
            key: value for each in field.metadata for key, value in asdict(each).items()
        }
        ends: dict[str, Any] = {
            "min": bounds.get("ge", bounds.get("gt")),
            "max": bounds.get("le"),
        }
        kind: click.ParamType[Any] = click.Choice(
            [str(each) for each in get_args(kinds[0])]
        )
        if int in kinds:
            kind = click.IntRange(**ends)
        elif float in kinds:
            kind = NumberRange(**ends, min_open="gt" in bounds)
        other = f"{field.description}  [default: {defaults.get(name)}]"
        return option(name, kind, None, other if name in defaults else _help(field))

    return all_of(map(of_recipe, (*names, *defaults)))


def _option(name: str, field: FieldInfo, part: type[Part], *, usual: bool) -> Decorator:
    how: dict[str, Any] = {
        "cls": SettingOption,
        "topic": part.table or "main",
        "usual": usual,
    }
    if field.annotation is bool:
        flag = name.replace("_", "-")
        both = f"--{flag}/--no-{flag}"
        return click.option(both, name, default=None, help=field.description, **how)
    how["multiple"] = name in _REPEATABLE
    add = option(name, None, _metavar(name, field), _help(field), **how)
    if name != "yardstick":
        return add
    switch = click.option("--no-yardstick", name, flag_value=NO_YARDSTICK, hidden=True)
    return lambda command: switch(add(command))


def _metavar(name: str, field: FieldInfo) -> str:
    if name in _METAVARS or name.endswith("_column"):
        return _METAVARS.get(name, "COLUMN")
    parts = list(_parts(field.annotation))
    if literals := [part for part in parts if get_origin(part) is Literal]:
        return "|".join(str(each) for part in literals for each in get_args(part))
    kinds = (
        metavar
        for kind, metavar in _KINDS.items()
        if any(part is kind for part in parts)
    )
    metavar = next(kinds, "NAME")
    return (
        f"{metavar},..."
        if any(get_origin(part) is tuple for part in parts)
        else metavar
    )


def _parts(
    annotation: Any,
) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    if (
        field.is_required()
        or field.default in (None, ())
        or field.default_factory
        or "[" in text
    ):
        return text
    return f"{text}  [default: {field.default}]"


def console_of(*, stderr: bool) -> Console:
    """Open standard output or error; 120 characters wide where it is no terminal."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = 120
    return console


def figure(value: float | None) -> str:
    """Write a figure with three decimals, or so that what is not 0 does not look like it."""
    if value is None:
        return "-"
    return f"{value:.1g}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"


def limits(row: Mapping[str, Any]) -> str:
    return (
        "-" if row["low"] is None else f"{figure(row['low'])} to {figure(row['high'])}"
    )


def plain(value: object) -> Text:
    """Show a value as it is: no markup, and nothing that a terminal would obey."""
    return Text(
        "".join(letter if letter.isprintable() else "\ufffd" for letter in str(value))
    )


def say(*sentences: object) -> None:
    for sentence in sentences:
        console_of(stderr=False).print(plain(sentence), soft_wrap=True)


def table_of(
    *headings: str,
    right: Collection[str] = (),
    rows: Iterable[Iterable[object]] = (),
    **options: Any,
) -> Table:
    """Lay rows out without lines; without headings the table has none."""
    table = Table(
        **{"box": None, "pad_edge": False, "show_header": bool(headings), **options}
    )
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    for row in rows:
        table.add_row(*map(plain, row))
    return table


def cut(value: object, most: int) -> Text:
    """Show the beginning of a value, in as many columns of the terminal."""
    cell = plain(value)
    cell.truncate(most, overflow="ellipsis")
    return cell


def fitted_table(
    columns: Mapping[str, Sequence[object]],
    fitted: str,
    width: int,
    styles: Iterable[str] = (),
    **options: Any,
) -> Table:
    """Lay columns out, a line for each row; what one of them has is cut to the width left to it."""
    cells = {name: [*map(plain, values)] for name, values in columns.items()}
    widths = {
        name: max(len(name), *(each.cell_len for each in cells[name])) + 2
        for name in cells
    }
    left = max(_LEAST_FITTED, width - sum(widths.values()) + widths[fitted])
    cells[fitted] = [cut(each, left) for each in cells[fitted]]
    table = table_of(*columns, **options)
    rows = zip(*cells.values(), strict=True)
    for row, style in zip(rows, styles or repeat(""), strict=False):
        table.add_row(*row, style=style)
    for column in table.columns:
        column.no_wrap = True
    return table


_SECONDS_BETWEEN_LINES = 60.0
_SECONDS_BEFORE_A_SPINNER = 1.0
_SECONDS_OF_A_LOOK = 0.5
_WIDTH_OF_ALL = 80
_WIDTH_OF_TOKENS = 110
_LEAST_FITTED = 24


class ConsoleObserver(Observer):
    """Shows each stage with the time that it took, and the progress of engines.

    A terminal gets a live bar or a spinner, anything else a line a minute, and one
    where an engine's work ends. `still` is called all the time, whatever the run does.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._stage_began: float | None = None
        self._spoke = self._step_began = time.monotonic()
        self._step = "starting"
        self._what = ""  # what an engine works at; "" where none does
        self._bar: _Bar | None = None
        self._spinner: Live | None = None
        self._lock = RLock()  # `still` is called by another thread

    def stage(self, sentence: str) -> None:
        with self._lock:
            self.ended()
            self._say(as_typed(sentence))
            self._stage_began = time.monotonic()

    def step(self, doing: str) -> None:
        self._step, self._step_began = doing, time.monotonic()

    def stop_spinner(self) -> None:
        with self._lock:
            if self._spinner is not None:
                self._spinner.stop()
            self._spinner = None

    def ended(self) -> None:
        with self._lock:
            self.stop_spinner()
            began, self._stage_began = self._stage_began, None
            if began is not None and (seconds := time.monotonic() - began) >= 0.1:
                self._say(f"  took {seconds:.1f} s", style="dim")

    def still(self) -> None:
        """Say what is being done if nothing has been said for a while."""
        with self._lock:
            now = time.monotonic()
            doing = f"{self._step}, {timedelta(seconds=round(now - self._step_began))}"
            if self._bar is not None:
                return
            if self._spinner is not None:
                self._spinner.update(Spinner("dots", plain(doing)))
            elif self._is_live and now - self._spoke >= _SECONDS_BEFORE_A_SPINNER:
                how: dict[str, Any] = {"transient": True, "redirect_stdout": False}
                self._spinner = Live(
                    Spinner("dots", plain(doing)), console=self._console, **how
                )
                self._spinner.start()
            elif not self._is_live and now - self._spoke >= _SECONDS_BETWEEN_LINES:
                self._print_line() if self._what else self._say(f"still {doing}")

    def working(self, what: str, *, done: int, total: int, unit: str) -> None:
        with self._lock:
            self.ended()
            self._stage_began = self._began = time.monotonic()
            self._what, self._total, self._tokens = what, total, 0
            self._before = self._done = done
            self._unit = unit if total == 1 else f"{unit}s"
            if not self._is_live:
                return
            columns = [MofNCompleteColumn(), TextColumn(f"{self._unit},")]
            left = [TextColumn("{task.fields[left]} left")]
            if self._console.width >= _WIDTH_OF_ALL:
                tokens = (
                    "{task.fields[tokens]}"
                    if self._console.width >= _WIDTH_OF_TOKENS
                    else ""
                )
                speed = TextColumn(f"{tokens}{{task.fields[speed]}},")
                columns = [TextColumn(what), BarColumn(), *columns, speed]
            self._bar = _Bar(*columns, *left, console=self._console)
            self._task = self._bar.add_task(
                what, total=total, completed=done, **self._pace
            )
            self._bar.start()

    def worked(self, units: int, tokens: int) -> None:
        if not self._what:
            return
        self._done += units
        self._tokens += tokens
        if self._bar is not None:
            self._bar.update(self._task, advance=units, **self._pace)

    def at_work(self, workers: Sequence[WorkerState]) -> None:
        if self._bar is not None:
            self._bar.workers = workers

    def work_ended(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            elif self._what:
                self._print_line()
            self._what, self._bar = "", None
            self._spoke = time.monotonic()

    @property
    def _pace(self) -> dict[str, Any]:
        """Say how much there is, how fast it goes, and how long it takes at that pace."""
        # Some work, such as filling gaps, counts no tokens. While nothing is completed,
        # tokens go on and the time that is left grows.
        seconds = max(time.monotonic() - self._began, 1e-9)
        completed, more = self._done - self._before, self._total - self._done
        n, unit, tokens = completed, self._unit, ""
        if self._tokens:
            n, unit, tokens = self._tokens, "tokens", f"{self._tokens:,} tokens, "
        speed = n / seconds
        left = (
            timedelta(seconds=round(seconds * more / completed))
            if completed
            else "-:--:--"
        )
        return {
            "tokens": tokens if more else "",
            "speed": f"{speed:,.{int(speed < 10)}f} {unit}/s",
            "left": str(left),
        }

    def _print_line(self) -> None:
        pace, done = (
            self._pace,
            f"{self._what}: {self._done:,} of {self._total:,} {self._unit}",
        )
        self._say(
            f"{done}, {pace['tokens']}{pace['speed']}, {pace['left']} left",
            soft_wrap=True,
        )

    def _say(self, sentence: str, **how: Any) -> None:
        self._console.print(Text(sentence), **how)
        self._spoke = time.monotonic()


@contextmanager
def observing() -> Iterator[ConsoleObserver]:
    """Show on standard error what is done, and in the end how long it took."""
    observer, over = ConsoleObserver(console_of(stderr=True)), Event()

    def watch() -> None:
        while not over.wait(_SECONDS_OF_A_LOOK):
            with suppress(OSError, ValueError):  # nobody reads
                observer.still()

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield observer
        observer.ended()
    finally:
        over.set()
        watcher.join()
        observer.stop_spinner()


class _Bar(Progress):
    workers: Sequence[WorkerState] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if len(self.workers) > 1:
            right = ("blocks done", "tokens/s")
            rows = (
                (each.name, each.state, f"{each.blocks:,}", f"{each.speed:,.0f}")
                for each in self.workers
            )
            yield table_of(
                "worker", "does", *right, right=right, rows=rows, pad_edge=True
            )
