"""Options made from settings, numbers of the command line, and the console."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from itertools import repeat
from math import isnan
from pathlib import Path, PurePosixPath
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
from mia_batch.observer import Observer, Pace, WorkerState
from mia_batch.places import parse_place
from mia_batch.recipes import recipe_field
from mia_batch.settings import (
    FLAGS,
    GROUPS,
    NO_YARDSTICK,
    Mark,
    Settings,
    SettingsGroup,
    spell_settings,
)

Decorator: TypeAlias = "Callable[[Callable[..., Any]], Callable[..., Any]]"

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
ABOVE_0 = click.IntRange(min=1)


def option(
    name: str, kind: Any, metavar: str | None, text: str, **keywords: Any
) -> Decorator:
    """Add an option, whose value goes by the option's name, or by the one in ``dest``."""
    flag = f"--{name.replace('_', '-')}"
    parameter = keywords.pop("dest", name.replace("-", "_"))
    return click.option(
        flag, parameter, type=kind, metavar=metavar, help=text, **keywords
    )


_SEED = click.IntRange(0, 2**31)
seed_option = option("seed", _SEED, None, "Seed of everything random.", default=0)
models_option = option(
    *("model", str, "MODEL", "Model to ask; repeat it to compare."),
    required=True,
    multiple=True,
    dest="models",
)


def path_option(name: str, text: str, *, is_place: bool = False) -> Decorator:
    """Add an option that must name a file or folder, or with ``is_place`` the address of a run."""
    kind = parse_place if is_place else PATH
    metavar = "FOLDER" if name == "out" else "PATH"
    return option(name, kind, metavar, text, required=True)


def default_folder_option(command: str, text: str) -> Decorator:
    """Add the option of a command's folder, which `choose_folder` chooses where it is left out."""
    shown = f"{text}  [default: runs/FILE-{command}]"
    return option("out", PATH, "FOLDER", shown)


def choose_folder(out: Path | None, file: str, command: str) -> Path:
    name = PurePosixPath(file.rstrip("/")).name or "texts"
    return out or Path("runs") / f"{name}-{command}"


def column_options(*usual: str, **columns: str | None) -> Decorator:
    """Add options for the names of columns, with their help; ``usual`` ones are their defaults."""
    texts = {
        name: f"Column of the {name.replace('_', ' ')}." for name in (*usual, *columns)
    }
    texts |= {name: text for name, text in columns.items() if text}
    defaults = dict(zip(usual, usual, strict=True))
    return combine_options(
        option(f"{name}_column", str, "COLUMN", text, default=defaults.get(name))
        for name, text in texts.items()
    )


def combine_options(options: Iterable[Decorator]) -> Decorator:
    decorators = [*options]

    def add_all(command: Callable[..., Any]) -> Callable[..., Any]:
        for add in reversed(decorators):
            command = add(command)
        return command

    return add_all


def as_typed(message: str) -> str:
    """Write settings as on the command line, where a message has ``samples=``."""
    return spell_settings(message, FLAGS)


def select_given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, ())}


def take(options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return select_given({name: options.pop(name) for name in names if name in options})


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
        return value
    return float(NumberRange(min=0, min_open=True).convert(value, option, context))  # type: ignore[arg-type]


speed_option = option(
    "tokens-per-second",
    str,
    "X|probe",
    "Speed from which --dry-run tells the time; `probe` measures it with a few texts.",
    callback=_speed,
)


def whole_numbers(
    _context: Context, _option: Parameter, value: str | None
) -> list[int] | None:
    if value is None:
        return None
    with suppress(ValueError):
        numbers = [int(digits) for digits in value.split(",")]
        if min(numbers) >= 1:
            return numbers
    raise click.BadParameter(f"{value!r} is no list of whole numbers such as 32,64")


_REPEATABLE = ("engine_arg", "base_url", "answers_from")
_KINDS = {int: "N", float: "X", Path: "FOLDER"}
_METAVARS = dict.fromkeys(Settings.marked(Mark.PATH), "PATH")
_METAVARS |= dict.fromkeys(Settings.marked(Mark.MODEL), "MODEL")
_METAVARS |= dict.fromkeys(
    ("chat_instruction", "non_members_known", "plan_lodged"), "TEXT"
)
_METAVARS |= {
    "out": "FOLDER",
    "requests_to": "FOLDER",
    "answers_from": "PATH",
    "engine_arg": "KEY=VALUE",
    "shard": "I/N",
    "base_url": "URL",
}
_METAVARS |= {"workers": "N|auto", "ray": "ADDRESS", "yardstick": "PATH|default|none"}


def settings_options(
    *names: str | type[SettingsGroup], without: Iterable[str] = ()
) -> Decorator:
    """Add an option for each setting, or for those that are named, or are of the groups named.

    Values are validated with all others, not one by one.
    """
    options = list[Decorator]()
    for group in GROUPS:
        for name, field in group.model_fields.items():
            is_selected = not names or name in names or group in names
            if is_selected and name not in without:
                is_usual = bool(names) or Mark.USUAL in field.metadata
                options.append(_build_option(name, field, group, usual=is_usual))
    return combine_options(options)


def recipe_options(recipe: str, *names: str, **defaults: str) -> Decorator:
    """Add options for fields of `Recipe`, None where they are not given.

    The help says the default of a recipe, or where it is another the text in
    ``defaults``.
    """

    def build_option(name: str) -> Decorator:
        field = recipe_field(name, recipe)
        types = [*_nested_types(field.annotation)]
        bounds: dict[str, Any] = {}
        for bound in field.metadata:
            bounds |= asdict(bound)
        minimum = bounds.get("ge", bounds.get("gt"))
        maximum = bounds.get("le")
        kind: click.ParamType[Any]
        if int in types:
            kind = click.IntRange(minimum, maximum)
        elif float in types:
            kind = NumberRange(minimum, maximum, min_open="gt" in bounds)
        else:
            kind = click.Choice([str(choice) for choice in get_args(types[0])])
        text = _help(field)
        if name in defaults:
            text = f"{field.description}  [default: {defaults[name]}]"
        return option(name, kind, None, text)

    return combine_options(map(build_option, (*names, *defaults)))


_SWITCHES = {
    "yardstick": ("--no-yardstick", NO_YARDSTICK),
    "conversations": ("--as-text", "text"),
}
"""Flags that stand for one value of a setting."""


def _build_option(
    name: str, field: FieldInfo, group: type[SettingsGroup], *, usual: bool
) -> Decorator:
    keywords: dict[str, Any] = {
        "cls": SettingOption,
        "topic": group.table or "main",
        "usual": usual,
    }
    if field.annotation is bool:
        flag = name.replace("_", "-")
        switches = f"--{flag}/--no-{flag}"
        text = field.description
        return click.option(switches, name, default=None, help=text, **keywords)
    keywords["multiple"] = name in _REPEATABLE
    add = option(name, None, _metavar(name, field), _help(field), **keywords)
    if name not in _SWITCHES:
        return add
    flag, value = _SWITCHES[name]
    switch = click.option(flag, name, flag_value=value, hidden=True)
    return lambda command: switch(add(command))


def _metavar(name: str, field: FieldInfo) -> str:
    if name in _METAVARS or name.endswith("_column"):
        return _METAVARS.get(name, "COLUMN")
    types = list(_nested_types(field.annotation))
    choices = list[str]()
    for literal in types:
        if get_origin(literal) is Literal:
            choices += map(str, get_args(literal))
    if choices:
        return "|".join(choices)
    metavars = (metavar for kind, metavar in _KINDS.items() if kind in types)
    metavar = next(metavars, "NAME")
    is_list = any(get_origin(type_) is tuple for type_ in types)
    return f"{metavar},..." if is_list else metavar


def _nested_types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _nested_types(argument)


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    has_default = field.default not in (None, ()) and not field.default_factory
    if field.is_required() or not has_default or "[" in text:
        return text
    return f"{text}  [default: {field.default}]"


def open_console(*, stderr: bool) -> Console:
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
    if row["low"] is None:
        return "-"
    return f"{figure(row['low'])} to {figure(row['high'])}"


def plain(value: object) -> Text:
    """Show a value as it is: no markup, and nothing that a terminal would obey."""
    letters = (letter if letter.isprintable() else "\ufffd" for letter in str(value))
    return Text("".join(letters))


def say(*sentences: object) -> None:
    for sentence in sentences:
        open_console(stderr=False).print(plain(sentence), soft_wrap=True)


def build_table(
    *headings: str,
    right: Collection[str] = (),
    rows: Iterable[Iterable[object]] = (),
    **options: Any,
) -> Table:
    """Lay rows out without lines; without headings the table has none."""
    defaults = {"box": None, "pad_edge": False, "show_header": bool(headings)}
    table = Table(**{**defaults, **options})
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    for row in rows:
        table.add_row(*map(plain, row))
    return table


def cut_cell(value: object, width: int) -> Text:
    """Show the beginning of a value, in as many columns of the terminal."""
    cell = plain(value)
    cell.truncate(width, overflow="ellipsis")
    return cell


def cut_middle(value: object, width: int) -> Text:
    """Show both ends of a value, such as of a name, in as many columns of the terminal."""
    from mia_batch.report.names import cut_middle as cut_name

    return Text(cut_name(plain(value).plain, width))


_LEAST_FITTED = 24


def measure_columns(columns: Mapping[str, Sequence[object]]) -> int:
    """Return how many columns of the terminal these take, with two between them."""
    return sum(
        2 + max(len(name), *(plain(value).cell_len for value in values))
        for name, values in columns.items()
    )


def fit_table(
    columns: Mapping[str, Sequence[object]],
    fitted: str,
    width: int,
    styles: Iterable[str] = (),
    cut: Callable[[object, int], Text] = cut_cell,
    least: int = _LEAST_FITTED,
    **options: Any,
) -> Table:
    """Lay columns out, a line for each row; what one of them has is cut to the width left to it."""
    cells = {name: [*map(plain, values)] for name, values in columns.items()}
    others = {name: column for name, column in cells.items() if name != fitted}
    fitted_width = max(least, width - measure_columns(others))
    cells[fitted] = [cut(cell, fitted_width) for cell in cells[fitted]]
    table = build_table(*columns, **options)
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


class ConsoleObserver(Observer):
    """Shows each stage with the time that it took, and the progress of engines.

    A terminal gets a live bar or a spinner, anything else a line a minute, and one
    where an engine's work ends. `still` is called all the time, whatever the run does.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._stage_start: float | None = None
        self._last_line_time = self._step_start = time.monotonic()
        self._step = "starting"
        self._work = ""  # what an engine works at; "" where none does
        self._bar: _Bar | None = None
        self._spinner: Live | None = None
        self._lock = RLock()  # `still` is called by another thread

    def stage(self, sentence: str) -> None:
        with self._lock:
            self.ended()
            self._print(as_typed(sentence))
            self._stage_start = time.monotonic()

    def step(self, doing: str) -> None:
        self._step = doing
        self._step_start = time.monotonic()

    def stop_spinner(self) -> None:
        with self._lock:
            if self._spinner is not None:
                self._spinner.stop()
            self._spinner = None

    def ended(self) -> None:
        with self._lock:
            self.stop_spinner()
            start, self._stage_start = self._stage_start, None
            if start is None:
                return
            seconds = time.monotonic() - start
            if seconds >= 0.1:
                self._print(f"  took {seconds:.1f} s", style="dim")

    def still(self) -> None:
        """Print what is being done if nothing has been printed for a while."""
        with self._lock:
            now = time.monotonic()
            silence = now - self._last_line_time
            step_time = timedelta(seconds=round(now - self._step_start))
            doing = f"{self._step}, {step_time}"
            if self._bar is not None:
                return
            if self._spinner is not None:
                self._spinner.update(Spinner("dots", plain(doing)))
            elif self._is_live and silence >= _SECONDS_BEFORE_A_SPINNER:
                self._spinner = Live(
                    Spinner("dots", plain(doing)),
                    console=self._console,
                    transient=True,
                    redirect_stdout=False,
                )
                self._spinner.start()
            elif not self._is_live and silence >= _SECONDS_BETWEEN_LINES:
                if self._work:
                    self._print_progress()
                else:
                    self._print(f"still {doing}")

    def working(self, what: str, *, done: int, total: int, unit: str) -> None:
        with self._lock:
            self.ended()
            self._stage_start = self._work_start = time.monotonic()
            self._work = what
            self._total, self._n_done = total, done
            self._pace = Pace(total - done)
            self._unit = unit if total == 1 else f"{unit}s"
            if self._is_live:
                self._start_bar()

    def _start_bar(self) -> None:
        columns = [MofNCompleteColumn(), TextColumn(f"{self._unit},")]
        if self._console.width >= _WIDTH_OF_ALL:
            is_wide = self._console.width >= _WIDTH_OF_TOKENS
            tokens = "{task.fields[tokens]}" if is_wide else ""
            speed = TextColumn(f"{tokens}{{task.fields[speed]}},")
            columns = [TextColumn(self._work), BarColumn(), *columns, speed]
        time_left = TextColumn("{task.fields[left]} left")
        self._bar = _Bar(*columns, time_left, console=self._console)
        self._task = self._bar.add_task(
            self._work, total=self._total, completed=self._n_done, **self._write_pace()
        )
        self._bar.start()

    def expects(self, tokens: int) -> None:
        self._pace.n_expected_tokens = tokens

    def worked(self, units: int, tokens: int) -> None:
        if not self._work:
            return
        self._n_done += units
        self._pace.add(units, tokens)
        if self._bar is not None:
            self._bar.update(self._task, advance=units, **self._write_pace())

    def at_work(self, workers: Sequence[WorkerState]) -> None:
        if self._bar is not None:
            self._bar.workers = workers

    def work_ended(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            elif self._work:
                self._print_progress()
            self._work = ""
            self._bar = None
            self._last_line_time = time.monotonic()

    def _write_pace(self) -> dict[str, Any]:
        """Write how much there is, how fast it goes, and how long it takes at that pace."""
        # Some work, such as filling gaps, counts no tokens.
        seconds = max(time.monotonic() - self._work_start, 1e-9)
        n, unit, tokens = self._pace.n_units, self._unit, ""
        if self._pace.n_tokens:
            n, unit = self._pace.n_tokens, "tokens"
            tokens = f"{n:,} tokens, "
        speed = n / seconds
        time_left = "-:--:--"
        seconds_left = self._pace.compute_seconds_left(seconds)
        if seconds_left is not None:
            time_left = str(timedelta(seconds=round(seconds_left)))
        return {
            "tokens": tokens if self._n_done < self._total else "",
            "speed": f"{speed:,.{int(speed < 10)}f} {unit}/s",
            "left": time_left,
        }

    def _print_progress(self) -> None:
        pace = self._write_pace()
        counts = f"{self._work}: {self._n_done:,} of {self._total:,} {self._unit}"
        speed = f"{pace['tokens']}{pace['speed']}"
        self._print(f"{counts}, {speed}, {pace['left']} left", soft_wrap=True)

    def _print(self, sentence: str, **options: Any) -> None:
        self._console.print(Text(sentence), **options)
        self._last_line_time = time.monotonic()


@contextmanager
def observing() -> Iterator[ConsoleObserver]:
    """Show on standard error what is done, and in the end how long it took."""
    observer = ConsoleObserver(open_console(stderr=True))
    has_ended = Event()

    def watch() -> None:
        while not has_ended.wait(_SECONDS_OF_A_LOOK):
            with suppress(OSError, ValueError):  # nobody reads
                observer.still()

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield observer
        observer.ended()
    finally:
        has_ended.set()
        watcher.join()
        observer.stop_spinner()


class _Bar(Progress):
    """A progress bar, below it what each of several workers does."""

    workers: Sequence[WorkerState] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if len(self.workers) > 1:
            numbers = ("blocks done", "tokens/s")
            headings = ("worker", "does", *numbers)
            table = build_table(*headings, right=numbers, pad_edge=True)
            for worker in self.workers:
                blocks, speed = f"{worker.blocks:,}", f"{worker.speed:,.0f}"
                cells = (worker.name, worker.state, blocks, speed)
                table.add_row(*map(plain, cells))
            yield table
