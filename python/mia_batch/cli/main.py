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
    build_table,
    observing,
    open_console,
    option,
    select_given,
    settings_options,
    speed_option,
    whole_numbers,
)
from mia_batch.errors import MiaBatchError, RequestError, RunFolderError, SettingsError
from mia_batch.places import find_working_copy, is_url, mirrored, parse_place
from mia_batch.settings import Settings, load_settings, nested

if TYPE_CHECKING:
    from types import FrameType

    from polars import DataFrame

    from mia_batch.inference.conformal import Adjustment
    from mia_batch.inference.power import AuditOutcome, Design, Power
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.dry_run import Speed
    from mia_batch.pipeline.results import Format
    from mia_batch.report.masking import Masking, TextPolicy
    from mia_batch.report.paper import Blind, Names


# SIGINT, SIGTERM and SIGHUP: an orderly end within seconds, whatever the main thread is doing.
#
# Python runs signal handlers in the main thread, between two of its own instructions, and one
# query of Polars can hold it for minutes. So a thread is woken by the signal itself, and ends the
# process where the main thread does not. Nothing is lost: what is on disk is whole at any time,
# and the engine's process ends with its parent.

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SECONDS_TO_END = 5.0
# timeout(1), make and others pass on a signal that came already
_SECONDS_OF_ONE_STOP = 0.3
_SHOW_CURSOR = "\x1b[?25h"


class Stopping:
    """Ends the process with status 1: on the first signal in an orderly way, on the second at once.

    The command line that goes on is shown as it is at that time.
    """

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._is_asked = False
        self._receiver, self._sender = socketpair()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to signals; the first one raises `KeyboardInterrupt` in the main thread."""
        self._sender.setblocking(False)
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            # Of nohup
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        Thread(target=self._watch, daemon=True).start()
        try:
            yield
        except BaseException:  # libraries turn the interrupt into errors of their own
            if not self._is_asked:
                raise
            self._end()

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._is_asked:
            self._is_asked = True
            raise KeyboardInterrupt

    def _watch(self) -> NoReturn:
        """Let the main thread end by itself for seconds after the first signal, then end it."""
        self._receiver.recv(1)
        sleep(_SECONDS_OF_ONE_STOP)
        while select([self._receiver], [], [], 0.0)[0]:
            self._receiver.recv(1)
        select([self._receiver], [], [], _SECONDS_TO_END)
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
    name = Path(script).name
    if name == "__main__.py":
        return list(sys.orig_argv)
    path = shutil.which(name)
    is_in_path = path is not None and Path(path).resolve() == Path(script).resolve()
    return [name if is_in_path else script, *sys.argv[1:]]


def main() -> None:
    """Run ``mia-batch``; exit 0 when done, 2 on a wrong request, 1 on anything else."""
    _prepare_streams()
    _check_memory_limit()
    arguments = command_line()
    with Stopping(arguments).listening():
        try:
            status = command.main(standalone_mode=False, obj=arguments)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(2)
        except click.ClickException as error:
            _fail(_usage_sentence(error), 2)
        except MiaBatchError as error:
            message = str(error)
            # Addresses as they were given, not their working copies
            for address in filter(is_url, sys.argv):
                message = message.replace(str(find_working_copy(address)), address)
            _fail(as_typed(message), 2 if isinstance(error, RequestError) else 1)
        except OSError as error:
            _fail(_system_sentence(error), 1)
        except MemoryError:
            _fail(f"the memory was not enough{_limit_sentence()}", 1)
    sys.exit(status if isinstance(status, int) else 0)


def _prepare_streams() -> None:
    """Open closed standard streams, or a file would get their numbers; let any text be printed."""
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
        needed = f"{_LEAST_ADDRESS_SPACE >> 10:,} KiB of address space"
        _fail(
            f"mia-batch needs at least {needed}, more with a model{_limit_sentence()}",
            1,
        )


def _limit_sentence() -> str:
    """Return the end of a sentence on the limit that a shell or a scheduler has set."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return "; use a machine with more, or fewer texts at a time"
    return (
        f"; the limit of this shell is {limit >> 10:,} KiB: raise it with `ulimit -v`"
    )


def _usage_sentence(error: click.ClickException) -> str:
    """Return what is wrong with what was typed and, where that has no way out, where to look."""
    problem = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        problem = f"there is no option {error.option_name}"
        other = helping.find_other_tool(error.option_name)
        near = get_close_matches(error.option_name, error.possibilities or (), 1, 0.75)
        if other is not None:
            problem += f"; {other}"
        elif near:
            problem += f"; did you mean {near[0]}?"
    if ";" in problem or "?" in problem:
        return problem
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "mia-batch"
    return f"{problem}; `{path} -h` says what it takes"


def _system_sentence(error: OSError) -> str:
    """Return what the system refused, mostly output: stages describe failures of files."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the working directory has been deleted; change to one that exists"
    place = f" ({error.filename})" if error.filename else ""
    return f"the system refused to read or write{place}: {error.strerror or error}"


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
    settings = select_given(options)
    subcommand = context.invoked_subcommand
    if subcommand is not None:
        if settings or dry_run:
            raise click.UsageError(
                f"{subcommand} takes its own options, after its name"
            )
        return
    if not settings and not dry_run and len(sys.argv) == 1:
        click.echo(helping.overview(context), nl=False)
        return
    _audit(settings, dry_run=dry_run, speed=tokens_per_second)


def _audit(options: dict[str, Any], *, dry_run: bool, speed: Speed) -> None:
    if speed is not None and not dry_run:
        raise click.UsageError("--tokens-per-second is about --dry-run; give that, too")
    settings = load_settings(options)
    if settings.texts_to is not None:
        _write_texts(settings)
        return
    if not dry_run:
        audit_and_show(settings)
        return
    from mia_batch.cli.show import show_plan
    from mia_batch.pipeline import plan

    rows: list[tuple[str, str]] = []
    try:
        with observing() as observer:
            rows.extend(plan(settings, speed=speed, observer=observer, write=True))
    finally:  # before a refusal, the rows that could be computed are shown
        if rows:
            show_plan(rows, settings, open_console(stderr=False))


def _write_texts(settings: Settings) -> None:
    from mia_batch.pipeline.dry_run import write_needed_texts

    with observing() as observer:
        n_texts = write_needed_texts(settings, observer)
    noun = "text" if n_texts == 1 else "texts"
    click.echo(
        f"wrote {n_texts:,} {noun} to {settings.texts_to}; give their log-probabilities"
        " with --logprobs-from"
    )


_params = [
    click.Argument(["texts"], metavar="[INPUT]", nargs=-1, type=parse_place),
    *(parameter for parameter in command.params if parameter.name != "version"),
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
    settings = select_given(options)
    if len(texts) + ("input" in settings) > 1:
        raise click.UsageError(
            "give one INPUT, and the model with --model; of several files their folder,"
            " or a glob in quotes"
        )
    settings |= select_given({"input": next(iter(texts), None)})
    _audit(settings, dry_run=dry_run, speed=tokens_per_second)


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
    if settings.shard is not None or not run.manifest.custody:
        return
    show_run(run, open_console(stderr=False))
    allowed, failed = settings.max_failed, run.manifest.failed
    excess = f"more than --max-failed ({allowed:g}) allows"
    if failed["targets"] > allowed * failed["of"]:
        way_out = "asking again would bring the same answers"
        if failed["again"]:
            way_out = "the same command with --retry-failed tries them again"
        counts = f"{failed['targets']:,} of {failed['of']:,}"
        _fail(f"{counts} texts have failed samples, {excess}; {way_out}", 1)
    _fail_worthless(run)


def _fail_worthless(run: Run) -> None:
    from mia_batch.inference.findings import why_not_continued

    attacks = run.manifest.made["scores"]["attacks"]
    if not any(run["scores"][name].count() for name in attacks):
        _fail("no text has a score (reasons above)", 1)
    by_chance = run["findings"].filter(
        check="chance", subject="target", verdict="no_better"
    )
    is_worthless = by_chance.height or why_not_continued(run["findings"]) is not None
    if is_worthless and not run.manifest.settings["anyway"]:
        _fail("the scores mean nothing (reason above); --anyway ends with 0", 1)


_RUN_KEYWORDS: dict[str, Any] = {
    "type": parse_place,
    "shell_complete": helping.complete_runs,
}
_run_argument = click.argument("place", metavar="RUN", **_RUN_KEYWORDS)


_PLAIN_ERRORS = (
    MiaBatchError,
    OSError,
    click.ClickException,
    click.exceptions.Exit,
    KeyboardInterrupt,
    SystemExit,
    MemoryError,
)
"""Exceptions that say themselves what is wrong."""


def _reads_runs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse in a sentence where a run that mia-batch did not write cannot be read."""

    @wraps(function)
    def guarded(**options: Any) -> Any:
        try:
            return function(**options)
        except _PLAIN_ERRORS:
            raise
        except BaseException as error:  # a panic of Rust is no Exception
            from mia_batch.errors import describe_error

            frames = traceback.extract_tb(error.__traceback__)
            last = [frame for frame in frames if "mia_batch" in frame.filename][-1]
            line = f"{Path(last.filename).name} line {last.lineno}"
            places = options.get("places") or [options["place"]]
            raise RunFolderError(
                f"{' or '.join(map(str, places))} cannot be read: run.json or a table"
                f" is not as mia-batch writes it ({describe_error(error)}, {line});"
                " `mia-batch verify` says which file has changed"
            ) from error

    return guarded


def _runs_argument(metavar: str) -> Decorator:
    return click.argument(
        "places", metavar=metavar, nargs=-1, required=True, **_RUN_KEYWORDS
    )


@command.command("score")
@_run_argument
@settings_options(
    "attacks",
    "attacks_from",
    "combine",
    "primary",
    "samples",
    "rarity_from",
    "level",
    "q",
    "exploratory",
    "fpr",
    "slice_by",
    "replace",
)
@_reads_runs
def score(place: Path | str, **options: object) -> None:
    """Score a finished run with further attacks, in seconds and without a model.

    Their scores are added and marked as later ones; the planned attack still answers.
    """
    from mia_batch.cli.show import show_run
    from mia_batch.pipeline import rescore

    with observing() as observer:
        run = rescore(place, observer=observer, **nested(select_given(options)))
    show_run(run, open_console(stderr=False))
    _fail_worthless(run)


@command.command("attacks")
@click.argument(
    "name", metavar="[NAME]", required=False, shell_complete=helping.complete_attacks
)
def attacks(name: str | None) -> None:
    """List the families of attacks, or show one: formula, source, what it needs and costs."""
    from mia_batch.attacks import get, names, resolve
    from mia_batch.cli.show import show_attack, show_attacks

    console = open_console(stderr=False)
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
        show_sets(named_sets().values(), open_console(stderr=False))
    else:
        show_set(find_set(name), open_console(stderr=False))


_HOW_TO_ASK = ("base_url", "api_key_env", "engine_arg")


@command.command("verify")
@_run_argument
@option(
    "input", parse_place, "PATH", "Where inputs lie by now; repeatable.", multiple=True
)
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
    from mia_batch.pipeline.lodged_plan import compare_lodged_plan
    from mia_batch.pipeline.results import choose_samples
    from mia_batch.report.masking import MASKED

    checked = verify(place, options.pop("input"))
    show_checked(checked, open_console(stderr=False))
    if checked.faults:
        return 1
    run = Run(place)
    is_equal = True
    lodged = compare_lodged_plan(run, plan)
    if lodged is not None:
        is_equal = show_lodged(*lodged, open_console(stderr=False))
    if second is not None:
        from mia_batch.second import compare

        lines, is_same = compare(run.folder, second, seed)
        is_equal &= is_same
        click.echo("\n".join(lines))
    status = 0
    if again is not None:
        samples = choose_samples(run, again, seed)
        status = _draw_again(run, samples, options, MASKED)
    return max(int(not is_equal), status)


_texts_option = option(
    "texts",
    click.Choice(["all", "few-words", "none"]),
    None,
    "What is shown of passages: all; their first words; or none, but lengths and hashes."
    " Numbers stay.",
    default="all",
)
_unmask_option = click.option(
    "--unmask",
    is_flag=True,
    help="Show e-mail addresses, telephone numbers, keys, accounts and cards in texts and names.",
)


@command.command("show")
@click.argument("place", metavar="[RUN]", default=Path("runs"), **_RUN_KEYWORDS)
@click.argument("passage", required=False)
@click.option(
    "--again", is_flag=True, help="Draw its samples again with the model, and compare."
)
@click.option("--scores", is_flag=True, help="Print the scores of all attacks.")
@_texts_option
@_unmask_option
@settings_options(*_HOW_TO_ASK)
@_reads_runs
def show(
    place: Path | str,
    passage: str | None,
    *,
    again: bool,
    scores: bool,
    texts: TextPolicy,
    unmask: bool,
    **options: object,
) -> int:
    """List the strongest passages of a run, or show a document, or one of its passages.

    Without RUN, or of a folder of runs, it lists them with their answers. PASSAGE is a
    number of the list of passages, a document ("moby_dick"), of which the longest
    stretch that came out is shown, a document and a window ("moby_dick window 12"), or
    the beginning of a target_id.
    """
    from mia_batch.cli.book import show_book
    from mia_batch.cli.show import (
        find_document,
        find_target,
        show_answers,
        show_passages,
        show_runs,
        show_scores,
        show_target,
    )
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.custody import refuse_changed
    from mia_batch.pipeline.listing import list_runs
    from mia_batch.pipeline.stages.questions import read_answers
    from mia_batch.report.masking import Masking

    console = open_console(stderr=False)
    if (
        passage is None
        and isinstance(place, Path)
        and not (place / "run.json").exists()
    ):
        listed = list_runs(place)
        if listed:
            show_runs(listed, console)
            return 0
    run = Run(place)
    masking = Masking(texts, unmask)
    refuse_changed(run)
    if passage is None:
        if again:
            raise click.UsageError("--again needs a PASSAGE")
        show_passages(run, console, masking)
        return 0
    windows = None if again else find_document(run, passage)
    if windows is not None:
        show_book(run, windows, console, masking)
        return 0
    target = find_target(run, passage)
    answers = read_answers(run, target)
    show_target(run, target, console, masking)
    show_answers(answers, target, run, console, masking)
    show_scores(run, target, console, all_scores=scores)
    return _draw_again(run, answers, options, masking) if again else 0


def _draw_again(
    run: Run, samples: DataFrame, options: dict[str, object], masking: Masking
) -> int:
    """Return 0 if all samples are drawn again as they were, else 1."""
    from mia_batch.cli.show import show_agreement
    from mia_batch.pipeline.results import draw_again

    with observing() as observer:
        redrawn = draw_again(run, samples, observer, **select_given(options))
    return int(not show_agreement(redrawn, open_console(stderr=False), masking))


@command.command("report")
@_runs_argument("RUN...")
@option(
    "format",
    click.Choice(["html", "md", "json", "csv", "latex"]),
    None,
    "A page; or to paste: the answer and table of documents, clauses (json), or attacks"
    " (latex).",
    dest="kind",
    default="html",
)
@_texts_option
@option(
    "document",
    str,
    "NAME",
    "One page about this document alone, such as for its author.",
)
@_unmask_option
@option(
    "out",
    FILE,
    "FILE",
    "Where it goes.  [default: report.html in RUN, or with other texts"
    " report-none.html and so on; other formats are printed]",
)
@_reads_runs
def report(
    places: Sequence[Path | str],
    *,
    kind: Format,
    texts: TextPolicy,
    document: str | None,
    unmask: bool,
    out: Path | None,
) -> None:
    """Render the report of a finished run from its tables.

    Of several runs: a table of documents by models, as html, md or csv.
    """
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.custody import refuse_changed
    from mia_batch.pipeline.results import compare_models, render_report
    from mia_batch.report.masking import Masking

    runs = [Run(place) for place in places]
    for run in runs:
        refuse_changed(run)
    masking = Masking(texts, unmask)
    if len(runs) > 1:
        if document is not None or kind in ("json", "latex"):
            raise click.UsageError(
                "of several runs there is a table of documents by models, as html, md or"
                " csv; give one run"
            )
        _write_or_print("report", compare_models(runs, kind, masking), out)
        return
    (run,) = runs
    if document is not None:
        _report_document(places[0], run, kind, masking, document, out)
    elif kind == "html" and out is None:
        _report_in_run(places[0], run, masking)
    else:
        _write_or_print("report", render_report(run, kind, masking), out)


def _report_document(
    place: Path | str,
    run: Run,
    kind: Format,
    masking: Masking,
    document: str,
    out: Path | None,
) -> None:
    from mia_batch.pipeline.folder import AuditFolder
    from mia_batch.pipeline.results import collect_contents, write_shared_report
    from mia_batch.report.html import render_document

    if kind != "html":
        raise click.UsageError("--document makes a page; leave --format out")
    if out is not None:
        page = render_document(collect_contents(run, masking), document)
        _write_or_print("report", page, out)
        return
    with mirrored(place), AuditFolder(run.folder).held():
        click.echo(f"report: {write_shared_report(run, masking, document)}")


def _report_in_run(place: Path | str, run: Run, masking: Masking) -> None:
    from mia_batch.pipeline.folder import AuditFolder
    from mia_batch.pipeline.results import (
        check_finished,
        write_report,
        write_shared_report,
    )
    from mia_batch.report.masking import MASKED

    check_finished(run)  # only a run's folder is held
    with mirrored(place), AuditFolder(run.folder).held():
        is_usual = masking == MASKED
        path = write_report(run) if is_usual else write_shared_report(run, masking)
        click.echo(f"report: {path}")


def _write_or_print(title: str, text: str, path: Path | None) -> None:
    from mia_batch.tables import write_text

    if path is None:
        click.echo(text, nl=False)
        return
    write_text(path, text)
    click.echo(f"{title}: {path}")


@command.command("table")
@_runs_argument("RUN...")
@option(
    "format",
    click.Choice(["md", "latex", "csv", "html"]),
    None,
    "Markdown, LaTeX with booktabs, CSV or HTML.",
    dest="kind",
    default="md",
)
@option(
    "names",
    click.Choice(["paper", "registry"]),
    None,
    "Attacks as papers call them, or as --attacks does; csv has the latter.",
    default="paper",
)
@option(
    "blind",
    click.Choice(["best", "all", "none"]),
    None,
    "Which classifiers that see the texts alone have a row.",
    default="best",
)
@option(
    "figures",
    str,
    "NAME,...",
    "Of auc, tpr_5, tpr_1, tpr_01 (TPR at an FPR of 5, 1 and 0.1 %) and fpr_95 (FPR at a"
    " TPR of 95 %); csv has all.",
    default="auc,tpr_1,tpr_01",
)
@option("out", FILE, "FILE", "Where it goes.")
@_reads_runs
def table(
    places: Sequence[Path | str],
    kind: str,
    names: Names,
    blind: Blind,
    figures: str,
    out: Path | None,
) -> None:
    """Write the table of a paper: attacks by data sets and models, with intervals.

    An AUC is bold where its interval lies above those of all other attacks. Runs that
    differ in their seed alone are averaged.
    """
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.custody import refuse_changed
    from mia_batch.pipeline.results import build_table

    runs = [Run(place) for place in places]
    for run in runs:
        refuse_changed(run)
    chosen = [name.strip() for name in figures.split(",")]
    _write_or_print("table", build_table(runs, kind, names, blind, chosen), out)


_SUFFIXES = {"out": (".parquet", ".csv"), "plot": (".svg",)}


def _check_suffix(
    _: click.Context, option: click.Parameter, path: Path | None
) -> Path | None:
    suffixes = _SUFFIXES[str(option.name)]
    if path is None or path.suffix in suffixes:
        return path
    raise click.BadParameter(
        f"{path} must end in {' or '.join(suffixes)}", param=option
    )


@command.command("compare")
@_runs_argument("RUN RUN...")
@option(
    "attack",
    str,
    "NAME",
    "Whose scores.  [default: the primary attack]",
    shell_complete=helping.complete_attacks,
)
@option(
    "retrained",
    parse_place,
    "RUN",
    "Run of a model that never saw the texts: how much has unlearning removed?",
)
@option(
    "learnt",
    parse_place,
    "RUN",
    "Run of a reference model that learnt the texts, after those of the audited model"
    " and of the reference model: does the audited one rank texts as if it never saw"
    " them?",
)
@option(
    "out", PATH, "FILE", "Write the table as .parquet or .csv.", callback=_check_suffix
)
@option(
    "plot",
    PATH,
    "FILE",
    "Draw the mean differences with their intervals, as .svg.",
    callback=_check_suffix,
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
    from mia_batch.pipeline import Run
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
    show_comparisons(table, open_console(stderr=False), [Run(run) for run in places])


_OFTEN = 0.8  # share of audits in which a test should find what is there


@command.command("plan")
@option("asked", ABOVE_0, "N", "Texts, or groups, asked about.", dest="n_asked")
@option(
    "members", ABOVE_0, "N", "Of these in the training data, as assumed.", required=True
)
@option(
    "effect",
    NumberRange(0, 20),
    "X",
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
    "comparison",
    str,
    "N,N",
    "Numbers of comparison texts, or groups, to try.  [default: 10, 20, 40, ...]",
    callback=whole_numbers,
)
@settings_options(
    "input",
    "non_members",
    "config",
    "level",
    "q",
    "adjustment",
    "windows_per_group",
    "max_windows_per_document",
    "group_column",
    "seed",
)
def plan(
    *,
    n_asked: int | None,
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
    from mia_batch.inference.power import Design, compute_effect, simulate

    if effect is None and auc is not None:
        effect = compute_effect(auc)
    elif effect is None or auc is not None:
        raise click.UsageError(
            "give either --effect or --auc: how well members stand out"
        )
    if n_asked is not None and options["input"] is not None:
        raise click.UsageError(
            "give either --asked or --input, whose texts are counted"
        )
    placeholders = {"model": "planned", "non_members_known": "planned"}
    if n_asked is not None:
        placeholders["input"] = "planned"
    values = placeholders | select_given(options)
    settings = load_settings(values, use_config=n_asked is None)
    unit = "text" if settings.level == "target" else "group"
    adjustment: Adjustment = settings.adjustment
    if n_asked is None:
        power = _compute_power(settings)
        n_asked, unit, adjustment = power.n_tests, power.unit, power.adjustment
        n_null = max(1, power.n_null)
        comparison = comparison or [n_null * 2**doublings for doublings in range(6)]
    design = Design(
        n_units=n_asked,
        members=members,
        effect=effect,
        q=settings.q,
        adjustment=adjustment,
    )
    outcomes = []
    for n_null in comparison or design.sizes():
        outcome = simulate(design, n_null, seed=settings.seed)
        outcomes.append(outcome)
        if comparison is None and _is_enough(outcome, design, settings.level):
            break
    _show_power(outcomes, design, unit, settings.level)


def _compute_power(settings: Settings) -> Power:
    from mia_batch.inference.verdicts import planned_power
    from mia_batch.pipeline.corpora import open_corpora
    from mia_batch.pipeline.request import build_decision_rule, fill_windows

    if settings.stop_when_decided:
        raise SettingsError(
            "stop_when_decided= cannot be planned for yet; leave it out"
        )
    settings = fill_windows(settings)
    targets = open_corpora(settings).targets(settings, cuts_prompts=False)
    rule = build_decision_rule(settings, [settings.primary or "planned"])
    power = planned_power(targets, rule)
    if power is None:
        raise SettingsError(
            "there are no non-members to count; give --non-members, or --asked"
        )
    return power


def _is_enough(outcome: AuditOutcome, design: Design, level: str) -> bool:
    if level == "collection":
        return outcome.together >= _OFTEN
    return outcome.named >= design.members / 2


def _show_power(
    outcomes: Sequence[AuditOutcome], design: Design, unit: str, level: str
) -> None:
    from mia_batch.inference.power import compute_area

    console = open_console(stderr=False)
    members, nulls = design.members, f"comparison {unit}s"
    console.print(
        f"{design.n_units:,} {unit}s are asked about. Assumed: {members:,} of them are in"
        f" the training data and score {design.effect:.2f} standard deviations higher"
        f" (AUC {compute_area(design.effect):.3f})."
    )
    columns = {
        nulls: "{0.n_null:,}",
        f"named, of {members}": "{0.named:.1f}",
        "any named in": "{0.any_named:.0%}",
        "false on the list": "{0.false:.1%}",
        "at least (median)": "{0.at_least:.0f}",
        "all together, p <= 0.05": "{0.together:.0%}",
    }
    rows = [[form.format(row) for form in columns.values()] for row in outcomes]
    console.print(build_table(*columns, right=columns, rows=rows))
    if level != "collection":
        console.print(_named_sentence(outcomes, design, nulls, level))
    enough = [row for row in outcomes if _is_enough(row, design, "collection")]
    if enough:
        first = enough[0]
        console.print(
            "For one answer about all together (--level collection) give"
            f" {first.n_null:,}: {first.together:.0%} of audits have p <= 0.05."
        )
    elif level == "collection":
        best = max(outcomes, key=lambda row: row.together)
        console.print(
            "None of these numbers is enough for all together: with"
            f" {best.n_null:,} {nulls} {best.together:.0%} of audits have p <= 0.05."
        )


def _named_sentence(
    outcomes: Sequence[AuditOutcome], design: Design, nulls: str, level: str
) -> str:
    """Return how many comparison texts it takes to name half of the members."""
    members = design.members
    for outcome in outcomes:
        if _is_enough(outcome, design, level):
            result = f"on average {outcome.named:.1f} of the {members:,} are named"
            return f"Give {outcome.n_null:,} {nulls}: {result}."
    best = max(outcomes, key=lambda outcome: outcome.named)
    return (
        f"None of these numbers names half of the {members:,}: {best.n_null:,} {nulls}"
        f" name {best.named:.1f} on average."
    )
