"""The command ``mia-batch`` itself, which ends in order when it is stopped."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from select import select
from socket import socketpair
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mia_batch.cli.options import (
    TopicGroup,
    console_of,
    given,
    observing,
    settings_options,
)
from mia_batch.cli.plan import plan as plan_design
from mia_batch.cli.runs import compare, report, show, verify
from mia_batch.errors import MiaBatchError, RequestError
from mia_batch.places import copy_of, is_url, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from mia_batch.pipeline import Run


# SIGINT and SIGTERM: an orderly end within seconds, whatever the main thread is doing.
#
# Python runs signal handlers in the main thread, between two of its own instructions, and one
# query of Polars can hold it for minutes. So a thread is woken by the signal itself, and ends the
# process where the main thread does not. Nothing is lost: what is on disk is whole at any time,
# and the engine's process ends with its parent.

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SECONDS_TO_END = 5.0
_SECONDS_OF_ONE_STOP = 0.3  # timeout(1), make and others pass a signal on that came already
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
            "mia-batch: stopped; what is complete is kept, and this goes on from there:\n"
            f"  {shlex.join(self._command)}\n"
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


_EPILOG = """\b
Examples:
  mia-batch --input corpus.parquet --model MODEL
  mia-batch --input books/ --model MODEL --max-windows-per-document 50
  mia-batch --input books/ --model MODEL --out RUN --shard 3/8
  mia-batch score runs/corpus-MODEL --attacks-from mine.py
  mia-batch report runs/corpus-MODEL --format md
  mia-batch show runs/corpus-MODEL TARGET_ID
  mia-batch verify runs/corpus-MODEL
  mia-batch finetune --base MODEL --data texts.parquet --out TUNED
  mia-batch invert --data texts.parquet --embedder MODEL --out INVERTED
  mia-batch paraphrase --input passages.parquet --model MODEL --out PARAPHRASED
  mia-batch plan --asked 27 --members 10 --auc 0.95 --level group
  mia-batch build-set --documents dated.parquet --cutoff 2023-01-01 --out SETS
  mia-batch privacy --base MODEL --data texts.parquet --task generation --out PRIVACY
  mia-batch compare runs/corpus-BEFORE runs/corpus-AFTER --retrained runs/corpus-RETRAINED
  mia-batch attacks
  mia-batch demo
"""


def main() -> None:
    """Run ``mia-batch``; exit 0 when done, 2 on a wrong request, 1 on anything else."""
    _prepare_streams()
    goes_on = command_line()
    with Stopping(goes_on).listening():
        try:
            status = command.main(standalone_mode=False, obj=goes_on)
        except click.ClickException as error:
            error.show()
            sys.exit(2)
        except MiaBatchError as error:
            _fail(_with_addresses(str(error)), 2 if isinstance(error, RequestError) else 1)
        except OSError as error:
            _fail(_system_sentence(error), 1)
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


def _system_sentence(error: OSError) -> str:
    """Say what the system refused: of files the stages speak themselves, so it is mostly output."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the working directory has been deleted; change to one that exists"
    where = f" ({error.filename})" if error.filename else ""
    return f"the system refused to read or write{where}: {error.strerror or error}"


def _with_addresses(message: str) -> str:
    """Name runs in a store as they were given, not by their working copies."""
    for address in filter(is_url, sys.argv):
        message = message.replace(str(copy_of(address)), address)
    return message


def _fail(message: str, status: int) -> NoReturn:
    for line in message.splitlines():
        click.echo(f"mia-batch: {line}", err=True)
    sys.exit(status)


@click.group(
    cls=TopicGroup,
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"show_default": True},
)
@settings_options()
@click.option("--dry-run", is_flag=True, help="Show settings, targets and decode budget; stop.")
@click.version_option(package_name="mia-batch")
@click.pass_context
def command(context: click.Context, /, *, dry_run: bool, **options: object) -> None:
    """Audit which texts a language model remembers.

    Sample the model's continuations of the corpus' texts, compare them with the true ones, and say
    which texts the model remembers. The same command again goes on where the run stopped.
    """
    chosen = given(options)
    if context.invoked_subcommand is not None:
        if chosen or dry_run:
            raise click.UsageError(
                f"{context.invoked_subcommand} takes its own options, after its name"
            )
        return
    if not chosen and not dry_run and len(sys.argv) == 1:
        click.echo(context.get_help())
        return
    from mia_batch.settings import load_settings

    settings = load_settings(chosen)
    if dry_run:
        from mia_batch.cli.show import show_plan
        from mia_batch.pipeline import plan

        show_plan(plan(settings), settings, console_of(stderr=False))
        return
    audit_and_show(settings)


def audit_and_show(settings: Any) -> None:  # noqa: ANN401 - Settings is imported at use
    """Audit and show the result; exit 1 where too many targets have failed."""
    from mia_batch.pipeline import run_audit

    with observing() as observer:
        run = run_audit(settings, observer)
    if settings.shard is not None:
        return
    _show(run)
    set_aside = run.manifest.input.get("n_set_aside", 0)
    n = run.manifest.input["n_documents"] + set_aside
    if set_aside > settings.max_failed * n:
        _fail(
            f"{set_aside:,} of {n:,} files or rows of the input could not be read and were set "
            f"aside (reasons above and in the table set_aside), more than --max-failed "
            f"({settings.max_failed:g}) allows",
            1,
        )
    failed = run.manifest.failed
    if not failed["of"]:
        _fail("no text of the input could be asked about (reasons above)", 1)
    if failed["targets"] > settings.max_failed * failed["of"]:
        again = "; the same command with --retry-failed tries them again"
        _fail(
            f"{failed['targets']:,} of {failed['of']:,} targets have failed samples, more than "
            f"setting 'max_failed' ({settings.max_failed:g}) allows"
            + (again if failed["again"] else "; asking again would bring the same answers"),
            1,
        )


def _show(run: Run) -> None:
    from mia_batch.cli.show import show_run

    show_run(run, console_of(stderr=False))


@command.command("score")
@click.argument("run", type=place_of, metavar="RUN")
@settings_options(
    *("attacks", "attacks_from", "combine", "primary", "samples", "rarity_from", "level", "q"),
    *("exploratory", "fpr", "slice_by"),
)
def score(run: Path | str, **options: object) -> None:
    """Score a finished run with other attacks, in seconds and without a model."""
    from mia_batch.pipeline import rescore
    from mia_batch.settings import nested

    with observing() as observer:
        scored = rescore(run, observer=observer, **nested(given(options)))
    _show(scored)


@command.command("attacks")
@click.argument("name", required=False)
def attacks(name: str | None) -> None:
    """List the attacks, a line for each family, or show one: formula, source, what it needs."""
    from mia_batch.attacks import get, names
    from mia_batch.cli.show import show_attack, show_attacks

    if name is None:
        show_attacks(map(get, names()), console_of(stderr=False))
    else:
        show_attack(get(name), console_of(stderr=False))


for other in (compare, plan_design, report, show, verify):
    command.add_command(other)
