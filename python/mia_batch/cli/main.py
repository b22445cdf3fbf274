"""The command ``mia-batch`` itself, which ends in order when it is stopped."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from select import select
from socket import socketpair
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mia_batch.cli import help as helping
from mia_batch.cli.options import (
    ABOVE_0,
    FILE,
    PATH,
    Decorator,
    NumberRange,
    as_typed,
    console_of,
    given,
    observing,
    option,
    settings_options,
    speed_option,
    table_of,
    whole_numbers,
)
from mia_batch.errors import MiaBatchError, RequestError, RunFolderError, SettingsError
from mia_batch.places import copy_of, is_url, mirrored, place_of
from mia_batch.settings import Settings, load_settings, nested

if TYPE_CHECKING:
    from types import FrameType

    from polars import DataFrame

    from mia_batch.inference.conformal import Adjustment
    from mia_batch.inference.power import AuditOutcome, Design, Power
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.dry_run import Speed
    from mia_batch.pipeline.results import Format


# SIGINT, SIGTERM and SIGHUP: an orderly end within seconds, whatever the main thread is doing.
#
# Python runs signal handlers in the main thread, between two of its own instructions, and one
# query of Polars can hold it for minutes. So a thread is woken by the signal itself, and ends the
# process where the main thread does not. Nothing is lost: what is on disk is whole at any time,
# and the engine's process ends with its parent.

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SECONDS_TO_END = 5.0
_SECONDS_OF_ONE_STOP = (
    0.3  # timeout(1), make and others pass a signal on that came already
)
_SHOW_CURSOR = "\x1b[?25h"


class Stopping:
    """Ends the process with status 1: on the first signal in an orderly way, on the second at once.

    The command line that goes on is shown as it is at that time.
    """

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._asked = False
        self._woken, self._waker = socketpair()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to signals; the first one raises `KeyboardInterrupt` in the main thread."""
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            # Of nohup
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        Thread(target=self._watch, daemon=True).start()
        try:
            yield
        except BaseException:  # libraries turn the interrupt into errors of their own
            if not self._asked:
                raise
            self._end()

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._asked:
            self._asked = True
            raise KeyboardInterrupt

    def _watch(self) -> NoReturn:
        """Give the main thread some seconds after the first signal, and none after the second."""
        self._woken.recv(1)
        sleep(_SECONDS_OF_ONE_STOP)
        while select([self._woken], [], [], 0.0)[0]:
            self._woken.recv(1)
        select([self._woken], [], [], _SECONDS_TO_END)
        self._end()

    def _end(self) -> NoReturn:
        """Write past Python's buffers, which the main thread may hold, and wait for nothing."""
        text = (
            "mia-batch: stopped; what is complete is kept, and this goes on from"
            f" there:\n  {shlex.join(self._command)}\n"
        )
        with suppress(OSError):  # nobody reads
            os.write(2, os.fsencode(_SHOW_CURSOR + text if os.isatty(2) else text))
        os._exit(1)


def command_line() -> list[str]:
    """Return the arguments that start this program as it was started, to be typed again."""
    script = sys.argv[0]
    if Path(script).name == "__main__.py":
        return list(sys.orig_argv)
    found = shutil.which(name := Path(script).name)
    in_path = found is not None and Path(found).resolve() == Path(script).resolve()
    return [name if in_path else script, *sys.argv[1:]]


def main() -> None:
    """Run ``mia-batch``; exit 0 when done, 2 on a wrong request, 1 on anything else."""
    _prepare_streams()
    _check_memory_limit()
    goes_on = command_line()
    with Stopping(goes_on).listening():
        try:
            status = command.main(standalone_mode=False, obj=goes_on)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(2)
        except click.ClickException as error:
            _fail(_usage_sentence(error), 2)
        except MiaBatchError as error:
            message = str(error)
            for address in filter(
                is_url, sys.argv
            ):  # as it was given, not its working copy
                message = message.replace(str(copy_of(address)), address)
            _fail(as_typed(message), 2 if isinstance(error, RequestError) else 1)
        except OSError as error:
            _fail(_system_sentence(error), 1)
        except MemoryError:
            _fail(f"the memory was not enough{_limit_sentence()}", 1)
    sys.exit(status if isinstance(status, int) else 0)


def _prepare_streams() -> None:
    """Take the numbers of closed streams, or a file would get one; let any text be printed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


# With less, libraries fail or hang while they are imported
_LEAST_ADDRESS_SPACE = 1536 << 20


def _check_memory_limit() -> None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESS_SPACE:
        least = (
            f"mia-batch needs at least {_LEAST_ADDRESS_SPACE >> 10:,} KiB of address"
            " space"
        )
        _fail(f"{least}, more with a model{_limit_sentence()}", 1)


def _limit_sentence() -> str:
    """Name the limit that a shell or a scheduler has set, if there is one."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return "; use a machine with more, or fewer texts at a time"
    return (
        f"; the limit of this shell is {limit >> 10:,} KiB: raise it with `ulimit -v`"
    )


def _usage_sentence(error: click.ClickException) -> str:
    """Say what is wrong with what was typed and, where that names no way out, what describes it."""
    what, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption):
        near = get_close_matches(error.option_name, error.possibilities or (), 1, 0.7)
        what = f"there is no option {error.option_name}"
        what += "".join(f"; did you mean {each}?" for each in near)
    if ";" in what or "?" in what:
        return what
    return (
        f"{what}; `{context.command_path if context else 'mia-batch'} -h` says what it"
        " takes"
    )


def _system_sentence(error: OSError) -> str:
    """Say what the system refused: of files the stages speak themselves, so it is mostly output."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the working directory has been deleted; change to one that exists"
    where = f" ({error.filename})" if error.filename else ""
    return f"the system refused to read or write{where}: {error.strerror or error}"


def _fail(message: str, status: int) -> NoReturn:
    for line in message.splitlines():
        click.echo(f"mia-batch: {line}", err=True)
    sys.exit(status)


_CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "show_default": True,
}


@click.group(
    cls=helping.TopicGroup, invoke_without_command=True, context_settings=_CONTEXT
)
@settings_options()
@click.option(
    "--dry-run", is_flag=True, help="Say what would be asked, and ask nothing."
)
@speed_option
@helping.short_help_option
@click.version_option(package_name="mia-batch")
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    dry_run: bool,
    tokens_per_second: Speed,
    **options: object,
) -> None:
    """Say which texts a language model remembers; the same command again goes on.

    `mia-batch audit INPUT` and `mia-batch --input INPUT` are the same.
    """
    chosen = given(options)
    if (named := context.invoked_subcommand) is not None:
        if chosen or dry_run:
            raise click.UsageError(f"{named} takes its own options, after its name")
        return
    if not chosen and not dry_run and len(sys.argv) == 1:
        click.echo(helping.overview(context), nl=False)
        return
    _audit(chosen, dry_run=dry_run, speed=tokens_per_second)


def _audit(chosen: dict[str, Any], *, dry_run: bool, speed: Speed) -> None:
    if speed is not None and not dry_run:
        raise click.UsageError("--tokens-per-second is about --dry-run; give that, too")
    settings = load_settings(chosen)
    if not dry_run:
        audit_and_show(settings)
        return
    from mia_batch.cli.show import show_plan
    from mia_batch.pipeline import plan

    rows: list[tuple[str, str]] = []
    try:
        with observing() as observer:
            rows.extend(plan(settings, speed=speed, observer=observer, write=True))
    finally:  # of a refusal, what is known by then comes before it
        if rows:
            show_plan(rows, settings, console_of(stderr=False))


_params = [
    click.Argument(["texts"], metavar="[INPUT]", nargs=-1, type=PATH),
    *(each for each in command.params if each.name != "version"),
]


@command.command("audit", cls=helping.TopicCommand, params=_params)
def audit(
    *,
    texts: tuple[str, ...],
    dry_run: bool,
    tokens_per_second: Speed,
    **options: object,
) -> None:
    """Ask a model about the texts of INPUT, and say which ones it remembers.

    INPUT is a file, a folder or a glob of texts. The same command again goes on where
    it stopped.
    """
    chosen = given(options)
    if len(texts) + ("input" in chosen) > 1:
        raise click.UsageError(
            "give one INPUT, and the model with --model; of several files their folder,"
            " or a glob in quotes"
        )
    _audit(
        chosen | given({"input": next(iter(texts), None)}),
        dry_run=dry_run,
        speed=tokens_per_second,
    )


@command.command("help", context_settings={"ignore_unknown_options": True})
@click.argument(
    "about", metavar="[TOPIC]", nargs=-1, shell_complete=helping.complete_help
)
@click.pass_context
def help_(context: click.Context, /, about: tuple[str, ...]) -> None:
    """Describe a command, a topic of settings or a setting; without TOPIC list them."""
    click.echo(command.about(context.find_root(), " ".join(about)).rstrip())


def audit_and_show(settings: Settings) -> None:
    """Audit and show the result; exit 1 where too many targets have failed."""
    from mia_batch.cli.show import show_run
    from mia_batch.pipeline import run_audit

    with observing() as observer:
        run = run_audit(settings, observer)
    if settings.shard is not None:
        return
    show_run(run, console_of(stderr=False))
    most, failed = settings.max_failed, run.manifest.failed
    more = f"more than --max-failed ({most:g}) allows"
    set_aside = run.manifest.input.get("n_set_aside", 0)
    n = run.manifest.input["n_documents"] + set_aside
    if set_aside > most * n:
        what = f"{set_aside:,} of {n:,} files or rows of the input could not be read"
        where = "reasons above and in the table set_aside"
        _fail(f"{what} and were set aside ({where}), {more}", 1)
    if failed["targets"] > most * failed["of"]:
        again = "asking again would bring the same answers"
        if failed["again"]:
            again = "the same command with --retry-failed tries them again"
        what = f"{failed['targets']:,} of {failed['of']:,} texts have failed samples"
        _fail(f"{what}, {more}; {again}", 1)
    _fail_worthless(run)


def _fail_worthless(run: Run) -> None:
    from mia_batch.inference.findings import why_not_continued

    if not any(
        run["scores"][name].count() for name in run.manifest.made["scores"]["attacks"]
    ):
        _fail("no text has a score (reasons above)", 1)
    chance = run["findings"].filter(
        check="chance", subject="target", verdict="no_better"
    )
    is_worthless = chance.height or why_not_continued(run["findings"]) is not None
    if is_worthless and not run.manifest.settings["anyway"]:
        _fail("the scores mean nothing (reason above); --anyway ends with 0", 1)


_a_run: dict[str, Any] = {"type": place_of, "shell_complete": helping.complete_runs}
_run_argument = click.argument("place", metavar="RUN", **_a_run)


_MEANT = (
    *(MiaBatchError, OSError, click.ClickException, click.exceptions.Exit),
    *(KeyboardInterrupt, SystemExit, MemoryError),
)
"""Exceptions that say themselves what is wrong."""


def _reads_runs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Say in a sentence where a run that mia-batch did not write cannot be read."""

    @wraps(function)
    def guarded(**options: Any) -> Any:
        try:
            return function(**options)
        except _MEANT:
            raise
        except BaseException as error:  # a panic of Rust is no Exception
            from mia_batch.errors import describe_error

            frames = traceback.extract_tb(error.__traceback__)
            last = [frame for frame in frames if "mia_batch" in frame.filename][-1]
            where = f"{describe_error(error)}, {Path(last.filename).name} line {last.lineno}"
            places = options.get("places") or [options["place"]]
            raise RunFolderError(
                f"{' or '.join(map(str, places))} cannot be read: run.json or a table"
                f" is not as mia-batch writes it ({where}); `mia-batch verify` says"
                " which file has changed"
            ) from error

    return guarded


def _runs_argument(metavar: str) -> Decorator:
    return click.argument("places", metavar=metavar, nargs=-1, required=True, **_a_run)


@command.command("score")
@_run_argument
@settings_options(
    *(
        "attacks",
        "attacks_from",
        "combine",
        "primary",
        "samples",
        "rarity_from",
        "level",
        "q",
    ),
    *("exploratory", "fpr", "slice_by", "replace"),
)
@_reads_runs
def score(place: Path | str, **options: object) -> None:
    """Score a finished run with further attacks, in seconds and without a model.

    Their scores are added and marked as later ones; the planned attack still answers.
    """
    from mia_batch.cli.show import show_run
    from mia_batch.pipeline import rescore

    with observing() as observer:
        scored = rescore(place, observer=observer, **nested(given(options)))
    show_run(scored, console_of(stderr=False))
    _fail_worthless(scored)


@command.command("attacks")
@click.argument(
    "name", metavar="[NAME]", required=False, shell_complete=helping.complete_attacks
)
def attacks(name: str | None) -> None:
    """List the families of attacks, or show one: formula, source, what it needs and costs."""
    from mia_batch.attacks import get, names, resolve
    from mia_batch.cli.show import show_attack, show_attacks

    console = console_of(stderr=False)
    if name is None:
        show_attacks(names(), console)
    else:
        show_attack(get(resolve(name)[0]), console)


@command.command("datasets")
@click.argument("name", required=False)
def datasets(name: str | None) -> None:
    """List the data sets that --dataset knows by name, or show one: where, licence, labels."""
    from mia_batch.cli.show import show_set, show_sets
    from mia_batch.known import find_set, named_sets

    if name is None:
        show_sets(named_sets().values(), console_of(stderr=False))
    else:
        show_set(find_set(name), console_of(stderr=False))


_HOW_TO_ASK = ("base_url", "api_key_env", "engine_arg")


@command.command("verify")
@_run_argument
@option("input", PATH, "PATH", "Where inputs lie by now; repeatable.", multiple=True)
@option(
    "again",
    ABOVE_0,
    "N",
    "Draw N of the run's samples again with its model, and compare.",
)
@option("second", ABOVE_0, "N", "Recompute N of its numbers by a second program.")
@click.option("--seed", default=0, help="Seed of the choice of samples and numbers.")
@option(
    "plan",
    FILE,
    "FILE",
    "Compare the run with this plan.  [default: the one it was made by]",
)
@settings_options(*_HOW_TO_ASK)
@_reads_runs
def verify(
    place: Path | str,
    *,
    again: int | None,
    second: int | None,
    seed: int,
    plan: Path | None,
    **options: Any,
) -> int:
    """Compare every byte of a finished run and its inputs with what was recorded.

    Exit 0 if nothing has changed, the run is equal to the plan lodged, if any, all
    samples that are drawn again agree, and all numbers that are recomputed are equal,
    else 1.
    """
    from mia_batch.cli.show import show_checked, show_lodged
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.custody import verify
    from mia_batch.pipeline.lodged_plan import lodged_differences
    from mia_batch.pipeline.results import choose_samples

    checked = verify(place, options.pop("input"))
    show_checked(checked, console_of(stderr=False))
    if checked.faults:
        return 1
    run, is_equal = Run(place), True
    if (lodged := lodged_differences(run, plan)) is not None:
        is_equal = show_lodged(*lodged, console_of(stderr=False))
    if second is not None:
        from mia_batch.second import compare

        lines, is_same = compare(run.folder, second, seed)
        is_equal &= is_same
        click.echo("\n".join(lines))
    differs = (
        0
        if again is None
        else _draw_again(run, choose_samples(run, again, seed), options)
    )
    return max(int(not is_equal), differs)


@command.command("show")
@_run_argument
@click.argument("passage", required=False)
@click.option(
    "--again", is_flag=True, help="Draw its samples again with the model, and compare."
)
@settings_options(*_HOW_TO_ASK)
@_reads_runs
def show(
    place: Path | str, passage: str | None, *, again: bool, **options: object
) -> int:
    """List the strongest passages of a run, or show what the model answered about one.

    PASSAGE is a number of that list, a document and a window ("moby_dick window 12"),
    or the beginning of a target_id.
    """
    from mia_batch.cli.show import find_target, show_answers, show_passages, show_target
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.custody import refuse_changed
    from mia_batch.pipeline.stages.questions import read_answers

    run, console = Run(place), console_of(stderr=False)
    refuse_changed(run)
    if passage is None:
        if again:
            raise click.UsageError("--again needs a PASSAGE")
        show_passages(run, console)
        return 0
    target = find_target(run, passage)
    answers = read_answers(run, target)
    show_target(run, target, console)
    show_answers(answers, target, run, console)
    return _draw_again(run, answers, options) if again else 0


def _draw_again(run: Run, samples: DataFrame, options: dict[str, object]) -> int:
    """Return 0 if all samples are drawn again as they were, else 1."""
    from mia_batch.cli.show import show_agreement
    from mia_batch.pipeline.results import draw_again

    with observing() as observer:
        drawn = draw_again(run, samples, observer, **given(options))
    return int(not show_agreement(drawn, console_of(stderr=False)))


@command.command("report")
@_run_argument
@option(
    *("format", click.Choice(["html", "md", "json", "csv", "latex"]), None),
    "A page; or to paste: the answer and table of documents, clauses (json), or attacks"
    " (latex).",
    dest="kind",
    default="html",
)
@option(
    "out",
    FILE,
    "FILE",
    "Where it goes.  [default: report.html in RUN; others are printed]",
)
@_reads_runs
def report(place: Path | str, kind: Format, out: Path | None) -> None:
    """Render the report of a finished run from its tables."""
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.custody import refuse_changed
    from mia_batch.pipeline.results import finished, report_of, write_report

    run = Run(place)
    refuse_changed(run)
    if kind == "html" and out is None:
        finished(run)  # only a run's folder is held
        with mirrored(place), run.held():
            click.echo(f"report: {write_report(run)}")
    else:
        _give("report", report_of(run, kind), out)


def _give(what: str, text: str, out: Path | None) -> None:
    from mia_batch.tables import write_text

    if out is not None:
        write_text(out, text)
    click.echo(text if out is None else f"{what}: {out}", nl=out is not None)


@command.command("table")
@_runs_argument("RUN...")
@option(
    *("format", click.Choice(["md", "latex", "csv", "html"]), None),
    "Markdown, LaTeX with booktabs, CSV or HTML.",
    dest="kind",
    default="md",
)
@option("out", FILE, "FILE", "Where it goes.")
@_reads_runs
def table(places: Sequence[Path | str], kind: str, out: Path | None) -> None:
    """Write the table of a paper: attacks by data sets and models, with intervals.

    An AUC is bold where its interval lies above those of all other attacks. Runs that
    differ in their seed alone are averaged.
    """
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.custody import refuse_changed
    from mia_batch.pipeline.results import table_of

    runs = [Run(place) for place in places]
    for run in runs:
        refuse_changed(run)
    _give("table", table_of(runs, kind), out)


_SUFFIXES = {"out": (".parquet", ".csv"), "plot": (".svg",)}


def _with_suffix(
    _: click.Context, option: click.Parameter, path: Path | None
) -> Path | None:
    allowed = _SUFFIXES[str(option.name)]
    if path is None or path.suffix in allowed:
        return path
    raise click.BadParameter(f"{path} must end in {' or '.join(allowed)}", param=option)


@command.command("compare")
@_runs_argument("RUN RUN...")
@option(
    *("attack", str, "NAME", "Whose scores.  [default: the primary attack]"),
    shell_complete=helping.complete_attacks,
)
@option(
    *("retrained", place_of, "RUN"),
    "Run of a model that never saw the texts: how much has unlearning removed?",
)
@option(
    *("learnt", place_of, "RUN"),
    "Run of a reference model that learnt the texts, after those of the audited model"
    " and of the reference model: does the audited one rank texts as if it never saw"
    " them?",
)
@option(
    "out", PATH, "FILE", "Write the table as .parquet or .csv.", callback=_with_suffix
)
@option(
    *("plot", PATH, "FILE", "Draw the mean differences with their intervals, as .svg."),
    callback=_with_suffix,
)
@_reads_runs
def compare(
    places: Sequence[Path | str],
    attack: str | None,
    retrained: Path | str | None,
    learnt: Path | str | None,
    out: Path | None,
    plot: Path | None,
) -> None:
    """Compare runs of one corpus with the first: several models, or before and after unlearning.

    Differences are paired by target, each run less the first, with 95 % intervals and
    two-sided p-values, adjusted for all runs and sets that are compared.
    """
    from mia_batch.cli.show import show_comparisons
    from mia_batch.pipeline import compare as compare_runs
    from mia_batch.report.html.plots import draw_differences
    from mia_batch.report.names import as_csv
    from mia_batch.schemas import Comparisons
    from mia_batch.tables import sink, write_text

    table = compare_runs(places, attack, retrained, learnt)
    if out is not None and out.suffix == ".csv":
        write_text(out, as_csv(table))
    elif out is not None:
        sink(table, out, Comparisons)
    if plot is not None:
        write_text(plot, draw_differences(table))
    show_comparisons(table, console_of(stderr=False))


_OFTEN = 0.8  # share of audits in which a test should find what is there


@command.command("plan")
@option("asked", ABOVE_0, "N", "Texts, or groups, asked about.")
@option(
    "members", ABOVE_0, "N", "Of these in the training data, as assumed.", required=True
)
@option(
    *("effect", NumberRange(0, 20), "X"),
    "How much higher they score, in standard deviations between texts, or between"
    " groups.",
)
@option(
    "auc",
    NumberRange(0.5, 1, max_open=True),
    "X",
    "The same as an AUC, instead of --effect.",
)
@option(
    *("comparison", str, "N,N"),
    "Numbers of comparison texts, or groups, to try.  [default: 10, 20, 40, ...]",
    callback=whole_numbers,
)
@settings_options(
    *(
        "input",
        "non_members",
        "config",
        "level",
        "q",
        "adjustment",
        "windows_per_group",
    ),
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
    from mia_batch.inference.power import Design, effect_of, simulate

    if effect is None and auc is not None:
        effect = effect_of(auc)
    elif effect is None or auc is not None:
        raise click.UsageError(
            "give either --effect or --auc: how well members stand out"
        )
    if asked is not None and options["input"] is not None:
        raise click.UsageError(
            "give either --asked or --input, whose texts are counted"
        )
    named = {"model": "planned", "non_members_known": "planned"}
    if asked is not None:
        named["input"] = "planned"
    settings = load_settings(named | given(options), use_config=asked is None)
    unit = "text" if settings.level == "target" else "group"
    adjustment: Adjustment = settings.adjustment
    if asked is None:
        power = _power_of_files(settings)
        asked, unit, adjustment = power.n_tests, power.unit, power.adjustment
        comparison = comparison or [
            max(1, power.n_null) * 2**doubled for doubled in range(6)
        ]
    design = Design(
        asked=asked, members=members, effect=effect, q=settings.q, adjustment=adjustment
    )
    found = []
    for n_null in comparison or design.sizes():
        found.append(simulate(design, n_null, seed=settings.seed))
        if comparison is None and _is_enough(found[-1], design, settings.level):
            break
    _show_power(found, design, unit, settings.level)


def _power_of_files(settings: Settings) -> Power:
    from mia_batch.inference.verdicts import planned_power
    from mia_batch.pipeline.context import verdict_plan
    from mia_batch.pipeline.corpora import open_corpora, with_windows

    if settings.stop_when_decided:
        raise SettingsError(
            "stop_when_decided= cannot be planned for yet; leave it out"
        )
    settings = with_windows(settings)
    # Cutting prompts needs a model
    uncut = settings.model_copy(update={"evidence": "logprobs"})
    targets = open_corpora(settings).targets(uncut)
    power = planned_power(
        targets, verdict_plan(settings, [settings.primary or "planned"])
    )
    if power is None:
        raise SettingsError(
            "there are no non-members to count; give --non-members, or --asked"
        )
    return power


def _is_enough(found: AuditOutcome, design: Design, level: str) -> bool:
    if level == "collection":
        return found.together >= _OFTEN
    return found.named >= design.members / 2


def _show_power(
    found: Sequence[AuditOutcome], design: Design, unit: str, level: str
) -> None:
    from mia_batch.inference.power import area_of

    console, members, nulls = (
        console_of(stderr=False),
        design.members,
        f"comparison {unit}s",
    )
    console.print(
        f"{design.asked:,} {unit}s are asked about. Assumed: {members:,} of them are in"
        f" the training data and score {design.effect:.2f} standard deviations higher"
        f" (AUC {area_of(design.effect):.3f})."
    )
    columns = {
        nulls: "{0.n_null:,}",
        f"named, of {members}": "{0.named:.1f}",
        "any named in": "{0.any_named:.0%}",
        "false on the list": "{0.false:.1%}",
        "at least (median)": "{0.at_least:.0f}",
        "all together, p <= 0.05": "{0.together:.0%}",
    }
    rows = ([form.format(each) for form in columns.values()] for each in found)
    console.print(table_of(*columns, right=columns, rows=rows))
    if level != "collection":
        best = max(found, key=lambda each: each.named)
        enough = next((each for each in found if _is_enough(each, design, level)), None)
        said = f"None of these numbers names half of the {members:,}"
        said += f": {best.n_null:,} {nulls} name {best.named:.1f} on average."
        if enough is not None:
            named = f"on average {enough.named:.1f} of the {members:,} are named"
            said = f"Give {enough.n_null:,} {nulls}: {named}."
        console.print(said)
    whole = next(
        (each for each in found if _is_enough(each, design, "collection")), None
    )
    if whole is None and level != "collection":
        return
    best = whole or max(found, key=lambda each: each.together)
    said = (
        f"None of these numbers is enough for all together: with {best.n_null:,}"
        f" {nulls}"
    )
    if whole is not None:
        said = (
            "For one answer about all together (--level collection) give"
            f" {best.n_null:,}:"
        )
    console.print(f"{said} {best.together:.0%} of audits have p <= 0.05.")
