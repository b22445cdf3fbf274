"""An engine in a process of its own, and the source of answers that it is on this side of its pipe.

It works whatever the caller has imported before, from a script without a main guard and
from a notebook, and reading, decoding and writing go on at the same time.
"""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from operator import attrgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from shutil import which
from threading import Thread
from typing import Any, Self, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from mia_batch.errors import (
    EngineError,
    MiaBatchError,
    RequestError,
    describe_error,
    find_first_error,
)
from mia_batch.evidence.engines.registry import can_turn, engine_types, load_engine
from mia_batch.evidence.request import Answer, Engine, EngineInfo, EngineSpec, Request
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import check_weights, weights_source

# Which cross the pipe in a quarter of a request's time
_values = attrgetter(*Request.__slots__)
_SECONDS_TO_CLOSE = 10.0
_SECONDS_TO_DIE = 5.0


class EngineProcess:
    """A running engine, used as a context manager."""

    # One thread may submit while another reads results.

    def __init__(self, spec: EngineSpec, *, log: Path) -> None:
        self.spec = spec
        # Hears of tokens as they come
        self.on_tokens: Callable[[int], None] = lambda _: None
        self._log = log
        self._start()

    def restart(self) -> None:
        """Start again an engine that has ended; what was in flight is lost."""
        if not self._connection.closed:
            self._end()
        self._start()

    def _start(self) -> None:
        self._failure: MiaBatchError | None = None
        self._connection, theirs = Pipe()
        with theirs:
            self._process = _spawn(theirs, self._log)
        self._exit = os.pidfd_open(self._process.pid)
        try:
            self._introduce(self.spec)
            spec = self.spec
            if not Path(
                weights_source(spec.model, None)[0]
            ).is_dir():  # else they were checked
                check_weights(spec.model, spec.revision, spec.kind)
        except BaseException:
            self._end()
            raise

    def turn_to(self, spec: EngineSpec) -> None:
        """Answer as another model, if that is one for which `can_turn` is true."""
        self._introduce(spec.model)
        self.spec = spec

    def _introduce(self, message: EngineSpec | str) -> None:
        self._send(message)
        self._wait(None)
        self.info = cast("EngineInfo", self._receive())

    def submit(self, *requests: Request) -> None:
        if self._failure is not None:
            raise self._failure
        self._send([_values(each) for each in requests])

    def results(self, timeout: float | None = None) -> list[Answer]:
        """Complete answers: at least one, except where the time (seconds) passed before."""
        if self._failure is not None:
            raise self._failure
        results: list[Answer] = []
        try:
            while self._wait(0.0 if results else timeout):
                message = self._receive()
                if isinstance(message, int):
                    self.on_tokens(message)
                else:
                    results += cast("list[Answer]", message)
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
            deadline = time.monotonic() + _SECONDS_TO_CLOSE
            while self._connection.poll(max(0.0, deadline - time.monotonic())):
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

    def _send(self, message: EngineSpec | str | list[tuple[Any, ...]]) -> None:
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
    """Start a worker in a group of its own, which no Ctrl-C from the terminal reaches."""
    # It has this process's module path, as with multiprocessing.
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from mia_batch.evidence.process"
        f" import main; main({connection.fileno()}, {os.getpid()}, {str(log)!r})"
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
            "the engine's process was killed, most likely because the machine ran out"
            " of memory; take a smaller dtype, or a smaller max_model_len or"
            " max_num_seqs through --engine-arg"
        )
    ending = f"ended with exit code {code}"
    if code is not None and code < 0:
        ending = f"was ended by {signal.Signals(-code).name}"
    lines = log.read_text(errors="replace").split("\n")
    last = next(
        (line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing"
    )
    return f"the engine's process {ending} ({last}); the whole log is in {log}"


# Of the former enough to sort by length among
_TEXTS_IN_FLIGHT = {
    "logprobs": 512,
    "fills": 16,
}
_STEPS_IN_FLIGHT = 32  # of an engine that decodes all sequences it has room for
_FEWEST_STEPS, _MOST_STEPS = 4, 16  # that an answer counts as


@dataclass(slots=True)
class _Open:
    """A text on its way: which engine requests its strides are, and what came of them."""

    request: Request
    token_ids: list[int]
    bos: bool
    strides: dict[int, tuple[int, int]] = field(default_factory=dict)
    done: dict[int, Answer] = field(default_factory=dict)


class LocalSource:
    """A started engine and its model's tokenizer, which fills do without."""

    # With ``strides``, texts longer than the context are asked about in pieces of the
    # context's length, none of which sees another; else they are refused.

    def __init__(
        self,
        engine: EngineProcess,
        tokenizer: Tokenizer | None,
        *,
        strides: bool = False,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._strides = strides
        self._kind = engine.spec.kind
        self._steps = _MOST_STEPS
        self._ids = count()  # of the strides of texts
        self._open: dict[int, _Open] = {}  # by the number of a stride
        # Of each request, by its number, the tokens of its prompt and of the answer so
        # far.
        self._prompts: dict[int, tuple[list[int], list[int]]] = {}
        self._refused: list[Answer] = []

    def has_room(self, *, requests: int, samples: int) -> bool:
        """Keep the engine's queue full: of short answers more are on their way, or many texts."""
        if self._kind == "samples":
            return (
                samples * self._steps
                < _STEPS_IN_FLIGHT * self._engine.info.max_sequences
            )
        return requests < max(
            _TEXTS_IN_FLIGHT[self._kind], 2 * self._engine.info.max_sequences
        )

    def submit(self, *requests: Request) -> None:
        """Queue requests of one kind; prompts get their tokens."""
        if self._kind == "logprobs":
            requests = tuple(
                stride for each in requests for stride in self._strides_of(each)
            )
        elif self._kind == "samples" and self._tokenizer is not None:
            for each in requests:
                ids = (
                    each.context_ids
                    or self._tokenizer.encode_prompts([each.context])[0]
                )
                each.context_ids = ids
                partial = each.partial.token_ids if each.partial else None
                self._prompts[each.request_id] = ids, partial or []
            requests = tuple(each.rest() for each in requests)
            self._steps = min(max(requests[-1].max_tokens, _FEWEST_STEPS), _MOST_STEPS)
        if requests:
            self._engine.submit(*requests)

    def results(self, timeout: float | None = None) -> list[Answer]:
        complete, self._refused = self._refused, []
        while not complete:
            for answer in self._engine.results(timeout):
                if self._kind != "logprobs":
                    complete.append(self._decoded(answer))
                    continue
                opened = self._open.pop(answer.request_id)
                opened.done[answer.request_id] = answer
                if len(opened.done) == len(opened.strides):
                    complete.append(_joined(opened))
            if timeout is not None:
                break
        return complete

    def listen(self, on_tokens: Callable[[int], None]) -> None:
        """Name who hears of tokens that are decoded before their answers are complete."""
        self._engine.on_tokens = on_tokens

    def restart(self) -> None:
        self._engine.restart()
        self._open.clear()
        self._prompts.clear()
        self._refused.clear()

    def _decoded(self, answer: Answer) -> Answer:
        asked = self._prompts.pop(answer.request_id, None)
        if self._tokenizer is not None and asked is not None:
            prompt, partial = asked
            ids = [partial + (given.token_ids or []) for given in answer.continuations]
            answer.resumed = bool(partial)
            answer.prompt, texts = self._tokenizer.decode_candidates(prompt, ids)
            for given, text, own in zip(answer.continuations, texts, ids, strict=True):
                given.text, given.token_ids, given.n_tokens = text, own, len(own)
        return answer

    def _strides_of(self, request: Request) -> Iterator[Request]:
        """Yield what the engine is asked about a text, or refuse it."""
        if self._tokenizer is None:
            self._refuse(request, "there is no tokenizer to cut the text into tokens")
            return
        special, context, text = self._tokenizer.encode_after(
            request.context, request.text
        )
        if request.context_tokens is not None:
            context = context[
                len(context) - min(len(context), request.context_tokens) :
            ]
        wanted = request.text_tokens
        if len(text) < (wanted or 0):
            why = f"the text has {len(text)} tokens, fewer than the {wanted} wanted"
            self._refuse(request, why, asked=False)
            return
        before, text = special + context, text[:wanted]
        limit, n_tokens = self._engine.info.max_model_len, len(before) + len(text)
        room, why_no_answers = limit - len(before), request.why_no_answers(text)
        in_strides = self._strides and not context and room > 0
        if why_no_answers is not None:
            self._refuse(request, why_no_answers)
        elif not text:
            self._refuse(request, "the text has no token")
        elif n_tokens == 1:
            self._refuse(request, "the text has one token, and nothing precedes it")
        elif len(text) > room and not in_strides:
            more = (
                ""
                if context or self._strides
                else "; --long-texts stride reads it in pieces"
            )
            why = (
                f"the text has {n_tokens} tokens with what precedes it, the context"
                f" {limit}{more}"
            )
            self._refuse(request, why)
        else:
            yield from self._strided(_Open(request, text, bool(special)), before, room)

    def _strided(
        self, opened: _Open, before: list[int], room: int
    ) -> Iterator[Request]:
        request, text = opened.request, opened.token_ids
        for start in range(0, len(text), room):
            piece = text[start : start + room]
            if len(before) + len(piece) > 1:
                unscored = int(not before)  # nothing precedes the first token
                number = next(self._ids)
                opened.strides[number] = (start + unscored, start + len(piece))
                self._open[number] = opened
                ids = {"context_ids": before or piece[:1], "text_ids": piece[unscored:]}
                seed = request.seed + start  # so that no two pieces have the same noise
                read: dict[str, Any] = {
                    "request_id": number,
                    "context": "",
                    "text": "",
                    **ids,
                }
                yield replace(request, **read, seed=seed)

    def _refuse(self, request: Request, why: str, *, asked: bool = True) -> None:
        self._refused.append(request.failed(why, passes=0, asked=asked))


def _joined(opened: _Open) -> Answer:
    request, answers = opened.request, opened.done.values()
    passes = sum(each.passes for each in answers if each.error is None)
    if (
        error := next((each.error for each in answers if each.error), None)
    ) is not None:
        return request.failed(error, passes=passes)
    n_tokens = len(opened.token_ids)
    tokens: dict[str, NDArray[Any]] = {
        "token_ids": np.array(opened.token_ids, np.uint32)
    }
    for number, answer in opened.done.items():
        for name, values in (answer.tokens or {}).items():
            # Where nothing precedes the token
            unscored = 0 if name == "rank" else np.nan
            whole = np.full(n_tokens, unscored, values.dtype)
            tokens.setdefault(name, whole)[slice(*opened.strides[number])] = values
    return Answer(
        request_id=request.request_id, tokens=tokens, bos=opened.bos, passes=passes
    )


class KeptEngine:
    """At most one engine, which has nothing to do; must be closed."""

    def __init__(self) -> None:
        self._engine: EngineProcess | None = None

    def serves(self, spec: EngineSpec) -> bool:
        return self._engine is not None and can_turn(self._engine.spec, spec)

    @contextmanager
    def borrowed(
        self, spec: EngineSpec, log: Path, *, keep: bool
    ) -> Iterator[EngineProcess]:
        """Turn the engine to a model, or start one; ``keep`` it afterwards unless that failed."""
        engine = None
        if self._engine is not None and self.serves(spec):
            with suppress(EngineError):  # starting another says what is wrong
                self._engine.turn_to(spec)
                engine, self._engine = self._engine, None
        if engine is None:
            self.close()
            engine = EngineProcess(spec, log=log)
        with ExitStack() as ends:
            yield ends.enter_context(engine)
            if keep:
                ends.pop_all()
                self._engine = engine

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


# The engine's own process: requests come in over a pipe, results go out. It ends when
# the pipe closes or the parent dies, whatever the engine is doing.

_PARENT_CHECK_SECONDS = 1.0
_SECONDS_BETWEEN_COUNTS = 0.5
_COMPILERS = ("g++", "clang++")
# vLLM, of an error in its own processes
_CAUSE_IN_LOG = (
    "root cause above",
    "trace (above)",
)

_Requests: TypeAlias = "SimpleQueue[list[tuple[Any, ...]] | str | None]"
"""The values of requests; a model to turn to; None = no more."""
_Answers: TypeAlias = "SimpleQueue[object]"


def main(descriptor: int, parent: int, log: str) -> None:
    log_start = Path(log).stat().st_size
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    connection = Connection(descriptor)
    spec: EngineSpec = connection.recv()
    _set_environment(spec)
    Thread(target=end_with_parent, args=(parent,), daemon=True).start()
    requests: _Requests = SimpleQueue()
    Thread(target=_receive, args=(connection, requests), daemon=True).start()
    answers: _Answers = SimpleQueue()
    sender = Thread(target=_send, args=(connection, answers), daemon=True)
    sender.start()
    try:
        engine = load_engine(spec)
        answers.put(engine.info)
        _serve(engine, requests, answers)
        engine.close()
    except RequestError as error:
        answers.put(error)
    except Exception as error:
        answers.put(_explain(error, spec.engine, log, log_start))
        traceback.print_exc()
    answers.put(None)
    sender.join()
    sys.stdout.flush()
    sys.stderr.flush()
    # What the libraries do at exit takes seconds and frees nothing that is not freed
    os._exit(0)


def _set_environment(spec: EngineSpec) -> None:
    """Set what the engine's libraries read when they are imported; the user's own values stay."""
    wanted = {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if on_cpu := engine_types()[spec.engine].on_cpu():
        wanted["OMP_NUM_THREADS"] = (
            "1"  # more threads spin against each other and other processes
        )
    slow = on_cpu and spec.engine_args.get("enforce_eager", True)
    if slow or (spec.kind == "logprobs" and not any(map(which, _COMPILERS))):
        wanted["TORCH_COMPILE_DISABLE"] = (
            "1"  # vLLM would compile what finds ranks, for nothing
        )
    if spec.tensor_parallel_size == 1:
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def end_with_parent(parent: int) -> None:
    """End this process group once the parent is gone, even if a copy of the pipe lives on."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    _end_group()


def _receive(connection: Connection, requests: _Requests) -> None:
    """Empty the pipe at all times, so that the parent never waits to send."""
    try:
        while (request := connection.recv()) is not None:
            requests.put(request)
    except (EOFError, OSError):
        _end_group()
    requests.put(None)


def _send(connection: Connection, answers: _Answers) -> None:
    """Send what is ready, so that the engine never waits for the parent to read."""
    try:
        while (answer := answers.get()) is not None:
            connection.send(answer)
    except OSError:
        _end_group()


def _end_group() -> None:
    os.killpg(0, signal.SIGKILL)


def _explain(error: Exception, engine: str, log: str, log_start: int) -> EngineError:
    cause = str(error)
    if not isinstance(error, EngineError):
        cause = f"the {engine} engine stopped ({describe_error(error)})"
    if any(words in str(error.__cause__) for words in _CAUSE_IN_LOG):
        written = Path(log).read_bytes()[log_start:].decode(errors="replace")
        cause = f"{cause}: {find_first_error(written)}"
    return EngineError(f"{cause}; the engine's log is {log}")


def _serve(engine: Engine, requests: _Requests, answers: _Answers) -> None:
    """Feed the engine and pass its results on, until the parent says that all is done."""
    teller = _Teller(answers)
    if hasattr(engine, "tell"):
        engine.tell = teller.add
    open_requests = 0
    while True:
        for message in _waiting(requests, block=open_requests == 0):
            if message is None:
                return
            if isinstance(message, str):
                engine.turn_to(message)  # type: ignore[attr-defined] # of those that can
                answers.put(engine.info)
                continue
            for values in message:
                engine.submit(
                    Request(**dict(zip(Request.__slots__, values, strict=True)))
                )
            open_requests += len(message)
        if results := engine.step():
            open_requests -= len(results)
            teller.pass_on()  # else its tokens would count twice
            answers.put(results)


class _Teller:
    """Adds up the tokens that an engine decodes, and passes them on twice a second."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers
        self._n_tokens, self._last_time = 0, time.monotonic()

    def add(self, n_tokens: int) -> None:
        self._n_tokens += n_tokens
        if time.monotonic() - self._last_time >= _SECONDS_BETWEEN_COUNTS:
            self.pass_on()

    def pass_on(self) -> None:
        if self._n_tokens:
            self._answers.put(self._n_tokens)
        self._n_tokens, self._last_time = 0, time.monotonic()


def _waiting(
    requests: _Requests, *, block: bool
) -> list[list[tuple[Any, ...]] | str | None]:
    """Everything that has arrived; with ``block`` at least one."""
    waiting = [requests.get()] if block else []
    try:
        while True:
            waiting.append(requests.get_nowait())
    except Empty:
        return waiting
