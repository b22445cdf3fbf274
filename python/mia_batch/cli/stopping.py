"""SIGINT and SIGTERM: an orderly end within seconds, whatever the main thread is doing.

Python runs signal handlers in the main thread, between two of its own instructions, and one query
of Polars can hold it for minutes. So a thread is woken by the signal itself, and ends the process
where the main thread does not. Nothing is lost: what is on disk is whole at any time, and the
engine's process ends with its parent.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from socket import socketpair
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["Stopping", "command_line"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SECONDS_TO_END = 5.0
_SECONDS_OF_ONE_STOP = 0.3  # timeout(1), make and others pass a signal on that came already
_SHOW_CURSOR = "\x1b[?25h"


class Stopping:
    """Ends the process on the first signal in an orderly way, on the second at once.

    Parameters
    ----------
    command
        The command line that goes on, as arguments; the message shows it as it is at that time.
    """

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._asked = False
        self._woken, self._waker = socketpair()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to signals; the first one raises `KeyboardInterrupt` in the main thread.

        After a signal the process ends with status 1, once the command that goes on was shown.

        Yields
        ------
        None
            While the program works.
        """
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
