"""An engine in a process of its own, and the source of answers that it is on this side of its pipe.

It works whatever the caller has imported before, from a script without a main guard and from a
notebook, and reading, decoding and writing go on beside it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from mia_batch.errors import EngineError, MiaBatchError
from mia_batch.evidence.engines.registry import can_turn
from mia_batch.evidence.request import Answer, EngineInfo, EngineSpec, Request
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import check_weights, weights_source

_SECONDS_TO_CLOSE = 10.0
_SECONDS_TO_DIE = 5.0


class EngineProcess:
    """A running engine; made by :meth:`start`, used as a context manager.

    One thread may submit while another reads results. ``log`` is where the engine's libraries
    write.
    """

    info: EngineInfo  # what the started engine says of itself
    _process: subprocess.Popen[bytes]
    _connection: Connection
    _exit: int

    def __init__(self, spec: EngineSpec, log: Path) -> None:
        self.spec = spec  # what it was started with, or turned to
        self._log = log
        self._failure: MiaBatchError | None = None

    @classmethod
    def start(cls, spec: EngineSpec, *, log: Path) -> Self:
        """Start an engine and wait until it is ready; ``log`` is appended to.

        Raises `SettingsError` if a setting cannot be followed by the engine, `EngineError` if the
        engine cannot start.
        """
        engine = cls(spec, log)
        engine._start()
        return engine

    def restart(self) -> None:
        """Start again an engine that has ended; what was in flight is lost. Raises as `start`."""
        if not self._connection.closed:
            self._end()
        self._failure = None
        self._start()

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = _spawn(theirs, self._log)
        self._exit = os.pidfd_open(self._process.pid)
        try:
            self._introduce(self.spec)
            spec = self.spec
            if not Path(weights_source(spec.model, None)[0]).is_dir():  # a hub had its files before
                check_weights(spec.model, spec.revision, spec.kind)
        except BaseException:
            self._end()
            raise

    def turn_to(self, spec: EngineSpec) -> None:
        """Answer as another model, if that is one for which `can_turn` is true.

        Nothing may be in flight. Raises `EngineError` if its weights cannot be loaded.
        """
        self._introduce(spec.model)
        self.spec = spec

    def _introduce(self, message: EngineSpec | str) -> None:
        self._send(message)
        self._wait(None)
        self.info = cast("EngineInfo", self._receive())

    def submit(self, request: Request) -> None:
        if self._failure is not None:
            raise self._failure
        self._send(request)

    def results(self, timeout: float | None = None) -> list[Answer]:
        """Answers that are complete: at least one, except where the time (seconds) passed before.

        Raises `EngineError` if the engine has stopped; what was finished before comes first.
        """
        if self._failure is not None:
            raise self._failure
        results: list[Answer] = []
        try:
            while self._wait(0.0 if results else timeout):
                results.extend(cast("list[Answer]", self._receive()))
        except MiaBatchError as error:
            self._failure = error
            if not results:  # what was finished before comes first
                raise
        return results

    def close(self) -> None:
        """End the engine; within seconds, by force where it must be."""
        if self._connection.closed:
            return
        try:
            self._connection.send(None)
            deadline = monotonic() + _SECONDS_TO_CLOSE
            while self._connection.poll(max(0.0, deadline - monotonic())):
                self._connection.recv()  # results that nobody waits for
        except (OSError, EOFError):
            pass  # it has ended
        finally:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif not self._connection.closed:
            self._end()  # nobody waits for what it still does

    def _send(self, message: EngineSpec | Request | str) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._why_ended() from error

    def _wait(self, timeout: float | None) -> bool:
        """Wait for a message; the end of the worker is an error, even if a child of it lives on."""
        if self._connection.closed:
            raise self._why_ended()
        ready = wait([self._connection, self._exit], timeout)
        if ready and self._connection not in ready:
            raise self._why_ended()
        return bool(ready)

    def _receive(self) -> object:
        try:
            message = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._why_ended() from error
        if isinstance(message, MiaBatchError):
            raise message
        return message

    def _why_ended(self) -> MiaBatchError:
        if self._connection.closed:
            return EngineError("the engine has been closed; start another")
        with suppress(EOFError, OSError):
            while self._connection.poll(0.0):
                if isinstance(message := self._connection.recv(), MiaBatchError):
                    return message
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_DIE)
        return EngineError(_explain_exit(self._process.poll(), self._log))

    def _end(self) -> None:
        """Leave nothing behind: neither the process nor what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        os.close(self._exit)


def _spawn(connection: Connection, log: Path) -> subprocess.Popen[bytes]:
    """Start a worker in a group of its own, which no Ctrl-C from the terminal reaches.

    It has this process's module path, as with multiprocessing.
    """
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from mia_batch.evidence.worker import main; "
        f"main({connection.fileno()}, {os.getpid()}, {str(log)!r})"
    )
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", code],
            pass_fds=[connection.fileno()],
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _explain_exit(code: int | None, log: Path) -> str:
    if code == -signal.SIGKILL:
        return (
            "the engine's process was killed, most likely because the machine ran out of memory; "
            "take a smaller dtype, or a smaller max_model_len or max_num_seqs through --engine-arg"
        )
    if code is not None and code < 0:
        ending = f"was ended by {signal.Signals(-code).name}"
    else:
        ending = f"ended with exit code {code}"
    lines = log.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
    return f"the engine's process {ending} ({last}); the whole log is in {log}"


_TEXTS_IN_FLIGHT = {"logprobs": 512, "fills": 16}  # of the former enough to sort by length among


@dataclass(slots=True)
class _Open:
    """A request on its way: which engine requests its strides are, and what came of them."""

    request: Request
    prompt_ids: list[int] = field(default_factory=list)
    text_ids: list[int] = field(default_factory=list)
    bos: bool = False
    strides: dict[int, tuple[int, int]] = field(default_factory=dict)
    done: dict[int, Answer] = field(default_factory=dict)
    error: str | None = None


class LocalSource:
    """A started engine and its model's tokenizer, which fills do without.

    With ``strides``, texts longer than the context are asked about in pieces of the context's
    length, none of which sees another; else they are refused.
    """

    def __init__(
        self, engine: EngineProcess, tokenizer: Tokenizer | None, *, strides: bool = False
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._strides = strides
        self._ids = count()
        self._open: dict[int, _Open] = {}
        self._refused: list[Answer] = []
        self._kind = "samples"

    def has_room(self, *, requests: int, samples: int) -> bool:
        """Keep twice as many sequences in flight as the engine decodes at once, or many texts."""
        if self._kind == "samples":
            return samples < 2 * self._engine.info.max_sequences
        return requests < _TEXTS_IN_FLIGHT[self._kind]

    def submit(self, request: Request) -> None:
        self._kind = request.kind
        if request.kind == "logprobs":
            self._submit_text(request)
            return
        opened = _Open(request)
        sent = request
        if request.kind == "samples" and self._tokenizer is not None:
            opened.prompt_ids = (
                request.context_ids or (self._tokenizer.encode_prompts([request.context])[0])
            )
            sent = replace(request, context="", context_ids=opened.prompt_ids)
        self._send(opened, sent, (0, 0))

    def results(self, timeout: float | None = None) -> list[Answer]:
        complete, self._refused = self._refused, []
        while not complete:
            for answer in self._engine.results(timeout):
                opened = self._open.pop(answer.request_id)
                if opened.request.kind == "logprobs":
                    complete += _strides_done(opened, answer)
                else:
                    complete.append(self._decoded(opened, answer))
            if timeout is not None:
                break
        return complete

    def restart(self) -> None:
        self._engine.restart()
        self._open.clear()
        self._refused.clear()

    def _send(self, opened: _Open, request: Request, span: tuple[int, int]) -> None:
        number = next(self._ids)
        opened.strides[number] = span
        self._open[number] = opened
        self._engine.submit(replace(request, request_id=number))

    def _decoded(self, opened: _Open, answer: Answer) -> Answer:
        numbered = replace(answer, request_id=opened.request.request_id)
        if self._tokenizer is None or answer.error is not None or opened.request.kind == "fills":
            return numbered
        ids = [given.token_ids or [] for given in answer.continuations]
        prompt, texts = self._tokenizer.decode_candidates(opened.prompt_ids, ids)
        decoded = [
            replace(given, text=text, n_tokens=len(own))
            for given, text, own in zip(answer.continuations, texts, ids, strict=True)
        ]
        return replace(numbered, continuations=decoded, prompt=prompt)

    def _submit_text(self, request: Request) -> None:
        if self._tokenizer is None:
            error = "there is no tokenizer to cut the text into tokens"
            self._refused.append(request.failed(error, passes=0))
            return
        special, context, text = self._tokenizer.encode_after(request.context, request.text)
        if request.context_tokens is not None:
            context = context[len(context) - min(len(context), request.context_tokens) :]
        if len(text) < (request.text_tokens or 0):
            error = f"the text has {len(text)} tokens, fewer than the {request.text_tokens} wanted"
            self._refused.append(request.failed(error, passes=0, asked=False))
            return
        text = text[: request.text_tokens]
        before = special + context
        room = self._engine.info.max_model_len - len(before)
        why, n_tokens = request.why_no_answers(text), len(before) + len(text)
        in_strides = self._strides and not context and room > 0
        if why is None and not text:
            why = "the text has no token"
        elif why is None and n_tokens == 1:
            why = "the text has one token, and nothing precedes it"
        elif why is None and len(text) > room and not in_strides:
            limit = self._engine.info.max_model_len
            why = f"the text has {n_tokens} tokens with what precedes it, the context {limit}"
        if why is not None:
            self._refused.append(request.failed(why, passes=0))
            return
        opened = _Open(request, text_ids=text, bos=bool(special))
        for start in range(0, len(text), room):
            piece = text[start : start + room]
            if len(before) + len(piece) > 1:
                unscored = int(not before)  # nothing precedes the first token
                sent = Request(
                    request_id=0,
                    kind="logprobs",
                    context_ids=before or piece[:1],
                    text_ids=piece[unscored:],
                    columns=request.columns,
                    noise=request.noise,
                    question=request.question,
                    seed=request.seed + start,  # so that no two pieces have the same noise
                )
                self._send(opened, sent, (start + unscored, start + len(piece)))


def _strides_done(opened: _Open, answer: Answer) -> list[Answer]:
    """Take in one stride; the whole answer once all are there."""
    opened.error = opened.error or answer.error
    opened.done[answer.request_id] = answer
    if len(opened.done) < len(opened.strides):
        return []
    number = opened.request.request_id
    passes = sum(each.error is None for each in opened.done.values())
    if opened.error is not None:
        return [opened.request.failed(opened.error, passes=passes)]
    tokens: dict[str, NDArray[Any]] = {"token_ids": np.array(opened.text_ids, np.uint32)}
    for stride, done in opened.done.items():
        for name, values in (done.tokens or {}).items():
            unscored = 0 if name == "rank" else np.nan  # where nothing precedes the token
            whole = np.full(len(opened.text_ids), unscored, values.dtype)
            tokens.setdefault(name, whole)[slice(*opened.strides[stride])] = values
    return [Answer(request_id=number, tokens=tokens, bos=opened.bos, passes=passes)]


class KeptEngine:
    """At most one engine, which has nothing to do; must be closed."""

    def __init__(self) -> None:
        self._engine: EngineProcess | None = None

    def serves(self, spec: EngineSpec) -> bool:
        return self._engine is not None and can_turn(self._engine.spec, spec)

    @contextmanager
    def lent(self, spec: EngineSpec, log: Path, *, keep: bool) -> Iterator[EngineProcess]:
        """Turn the engine to a model, or start one; ``keep`` it afterwards unless that failed."""
        engine = None
        if self._engine is not None and self.serves(spec):
            with suppress(EngineError):  # starting another says what is wrong
                self._engine.turn_to(spec)
                engine, self._engine = self._engine, None
        if engine is None:
            self.close()
            engine = EngineProcess.start(spec, log=log)
        with ExitStack() as ends:
            yield ends.enter_context(engine)
            if keep:
                ends.pop_all()
                self._engine = engine

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
