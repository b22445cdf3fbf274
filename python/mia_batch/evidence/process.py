"""An engine in a process of its own, and the source of answers on this side of its pipe.

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
from itertools import chain, count
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

# The values alone cross the pipe in a quarter of the time that a request takes
_request_values = attrgetter(*Request.__slots__)
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
        self._connection, worker_end = Pipe()
        with worker_end:
            self._process = _spawn(worker_end, self._log)
        self._exit = os.pidfd_open(self._process.pid)
        try:
            self._introduce(self.spec)
            spec = self.spec
            source, _ = weights_source(spec.model, None)
            if not Path(source).exists():  # else they were checked
                check_weights(spec.model, spec.revision, spec.kind)
        except BaseException:
            self._end()
            raise

    def turn_to(self, spec: EngineSpec) -> None:
        """Answer as another model or kind, if that is one for which `can_turn` is true."""
        self._introduce(spec if spec.kind != self.spec.kind else spec.model)
        self.spec = spec

    def _introduce(self, message: EngineSpec | str) -> None:
        self._send(message)
        self._wait(None)
        self.info = cast("EngineInfo", self._receive())

    def submit(self, *requests: Request) -> None:
        if self._failure is not None:
            raise self._failure
        self._send([_request_values(request) for request in requests])

    def results(self, timeout: float | None = None) -> list[Answer]:
        """Wait for answers: at least one, except where the time (seconds) passed before."""
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
                message = self._connection.recv()
                if isinstance(message, MiaBatchError):
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
    text = log.read_text(errors="replace")
    # Where Python was when the process was ended says less than what came before
    text = text.partition("Fatal Python error")[0] or text
    lines = text.split("\n")
    messages = [line.strip() for line in lines if line.strip()]
    last = messages[-1] if messages else "it wrote nothing"
    return f"the engine's process {ending} ({last}); the whole log is in {log}"


# Requests on their way: of texts that are read enough to sort by length among
_TEXTS_IN_FLIGHT = {"logprobs": 512, "fills": 16}
_STEPS_IN_FLIGHT = 32  # of an engine that decodes all sequences it has room for
_FEWEST_STEPS, _MOST_STEPS = 4, 16  # that an answer counts as


@dataclass(slots=True)
class _OpenText:
    """A text on its way to the engine, in strides."""

    request: Request
    token_ids: list[int]
    bos: bool
    # By the number of a stride, the tokens of the text that it scores
    strides: dict[int, tuple[int, int]] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)


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
        self._open: dict[int, _OpenText] = {}  # by the number of a stride
        # Of each request, by its number, the tokens of its prompt and of the answer so
        # far.
        self._prompts: dict[int, tuple[list[int], list[int]]] = {}
        self._refused: list[Answer] = []

    def has_room(self, *, requests: int, samples: int) -> bool:
        """Keep the engine's queue full: of short answers more are on their way, or many texts."""
        max_sequences = self._engine.info.max_sequences
        if self._kind == "samples":
            return samples * self._steps < _STEPS_IN_FLIGHT * max_sequences
        return requests < max(_TEXTS_IN_FLIGHT[self._kind], 2 * max_sequences)

    def submit(self, *requests: Request) -> None:
        """Queue requests of one kind; prompts get their tokens."""
        if self._kind == "logprobs":
            requests = tuple(chain.from_iterable(map(self._build_strides, requests)))
        elif self._kind == "samples" and self._tokenizer is not None:
            for request in requests:
                ids = request.context_ids
                ids = ids or self._tokenizer.encode_prompts([request.context])[0]
                request.context_ids = ids
                partial = request.partial.token_ids if request.partial else None
                self._prompts[request.request_id] = ids, partial or []
            requests = tuple(request.rest() for request in requests)
            self._steps = min(max(requests[-1].max_tokens, _FEWEST_STEPS), _MOST_STEPS)
        if requests:
            self._engine.submit(*requests)

    def results(self, timeout: float | None = None) -> list[Answer]:
        complete = self._refused
        self._refused = []
        while not complete:
            for answer in self._engine.results(timeout):
                if self._kind != "logprobs":
                    complete.append(self._decode(answer))
                    continue
                text = self._open.pop(answer.request_id)
                text.answers[answer.request_id] = answer
                if len(text.answers) == len(text.strides):
                    complete.append(_join_strides(text))
            if timeout is not None:
                break
        return complete

    def listen(self, on_tokens: Callable[[int], None]) -> None:
        """Set who hears of tokens that are decoded before their answers are complete."""
        self._engine.on_tokens = on_tokens

    def restart(self) -> None:
        self._engine.restart()
        self._open.clear()
        self._prompts.clear()
        self._refused.clear()

    def _decode(self, answer: Answer) -> Answer:
        """Add the texts to an answer, each with the answer so far."""
        prompt, partial = self._prompts.pop(answer.request_id, (None, []))
        if self._tokenizer is None or prompt is None:
            return answer
        parts = answer.continuations
        token_ids = [partial + (part.token_ids or []) for part in parts]
        answer.resumed = bool(partial)
        answer.prompt, texts = self._tokenizer.decode_candidates(prompt, token_ids)
        for part, text, ids in zip(parts, texts, token_ids, strict=True):
            part.text = text
            part.token_ids = ids
            part.n_tokens = len(ids)
        return answer

    def _build_strides(self, request: Request) -> Iterator[Request]:
        """Iterate over what the engine is asked about a text, or refuse it."""
        if self._tokenizer is None:
            self._refuse(request, "there is no tokenizer to cut the text into tokens")
            return
        special, context, text = self._tokenizer.encode_after(
            request.context, request.text
        )
        if request.context_tokens is not None:
            n_cut = max(0, len(context) - request.context_tokens)
            context = context[n_cut:]
        n_wanted = request.text_tokens
        if n_wanted is not None and len(text) < n_wanted:
            reason = (
                f"the text has {len(text)} tokens, fewer than the {n_wanted} wanted"
            )
            self._refuse(request, reason, is_eligible=False)
            return
        text = text[:n_wanted]
        obstacle = self._why_unreadable(request, special, context, text)
        if obstacle is not None:
            self._refuse(request, obstacle)
        else:
            yield from self._cut(
                _OpenText(request, text, bool(special)), special + context
            )

    def _why_unreadable(
        self, request: Request, special: list[int], context: list[int], text: list[int]
    ) -> str | None:
        reason = request.why_no_answers(text)
        if reason is not None:
            return reason
        if not text:
            return "the text has no token"
        n_before = len(special) + len(context)
        n_tokens = n_before + len(text)
        if n_tokens == 1:
            return "the text has one token, and nothing precedes it"
        limit = self._engine.info.max_model_len
        in_strides = self._strides and not context and limit > n_before
        if n_tokens <= limit or in_strides:
            return None
        way_out = "; --long-texts stride reads it in pieces"
        if context or self._strides:
            way_out = ""
        return (
            f"the text has {n_tokens} tokens with what precedes it, the context"
            f" {limit}{way_out}"
        )

    def _cut(self, text: _OpenText, context: list[int]) -> Iterator[Request]:
        """Cut a text into strides, each with the same context before it."""
        request = text.request
        room = self._engine.info.max_model_len - len(context)
        for start in range(0, len(text.token_ids), room):
            piece = text.token_ids[start : start + room]
            if len(context) + len(piece) > 1:
                unscored = int(not context)  # nothing precedes the first token
                number = next(self._ids)
                text.strides[number] = (start + unscored, start + len(piece))
                self._open[number] = text
                yield replace(
                    request,
                    request_id=number,
                    context="",
                    text="",
                    context_ids=context or piece[:1],
                    text_ids=piece[unscored:],
                    seed=request.seed + start,  # so that no two have the same noise
                )

    def _refuse(
        self, request: Request, reason: str, *, is_eligible: bool = True
    ) -> None:
        answer = request.failed(reason, passes=0, is_eligible=is_eligible)
        self._refused.append(answer)


def _join_strides(text: _OpenText) -> Answer:
    """Build the answer about a text from those about its strides."""
    request = text.request
    answers = text.answers.values()
    passes = sum(answer.passes for answer in answers if answer.error is None)
    errors = [answer.error for answer in answers if answer.error]
    if errors:
        return request.failed(errors[0], passes=passes)
    n_tokens = len(text.token_ids)
    token_ids = np.array(text.token_ids, np.uint32)
    tokens: dict[str, NDArray[Any]] = {"token_ids": token_ids}
    for number, answer in text.answers.items():
        start, end = text.strides[number]
        for name, values in (answer.tokens or {}).items():
            if name not in tokens:
                # Where nothing precedes the token
                unscored = 0 if name == "rank" else np.nan
                tokens[name] = np.full(n_tokens, unscored, values.dtype)
            tokens[name][start:end] = values
    return Answer(
        request_id=request.request_id, tokens=tokens, bos=text.bos, passes=passes
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
                engine = self._engine
                self._engine = None
        if engine is None:
            self.close()
            engine = EngineProcess(spec, log=log)
        with ExitStack() as ends:
            yield ends.enter_context(engine)
            if keep:
                ends.pop_all()
                self._engine = engine

    def close(self) -> None:
        engine = self._engine
        self._engine = None
        if engine is not None:
            engine.close()


# The engine's own process: requests come in over a pipe, results go out. It ends when
# the pipe closes or the parent dies, whatever the engine is doing.

_PARENT_CHECK_SECONDS = 1.0
_SECONDS_BETWEEN_COUNTS = 0.5
_COMPILERS = ("g++", "clang++")
# vLLM, of an error in its own processes
_CAUSE_IN_LOG = ("root cause above", "trace (above)")

_Message: TypeAlias = "list[tuple[Any, ...]] | EngineSpec | str | None"
"""The values of requests; a specification or a model to turn to; None = no more."""
_Requests: TypeAlias = "SimpleQueue[_Message]"
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
        _serve(engine, requests, answers).close()
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
    defaults = {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    on_cpu = engine_types()[spec.engine].on_cpu()
    if on_cpu:
        # More threads spin against each other and other processes
        defaults["OMP_NUM_THREADS"] = "1"
    slow = on_cpu and spec.engine_args.get("enforce_eager", True)
    if slow or (spec.kind == "logprobs" and not any(map(which, _COMPILERS))):
        # Else vLLM compiles what finds ranks, for nothing
        defaults["TORCH_COMPILE_DISABLE"] = "1"
    if spec.tensor_parallel_size == 1:
        defaults["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def end_with_parent(parent: int) -> None:
    """End this process group once the parent is gone, even if a copy of the pipe lives on."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    _end_group()


def _receive(connection: Connection, requests: _Requests) -> None:
    """Empty the pipe at all times, so that the parent never waits to send."""
    try:
        for message in iter(connection.recv, None):
            requests.put(message)
    except (EOFError, OSError):
        _end_group()
    requests.put(None)


def _send(connection: Connection, answers: _Answers) -> None:
    """Send what is ready, so that the engine never waits for the parent to read."""
    try:
        for answer in iter(answers.get, None):
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
        tail = Path(log).read_bytes()[log_start:].decode(errors="replace")
        cause = f"{cause}: {find_first_error(tail)}"
    return EngineError(f"{cause}; the engine's log is {log}")


def _serve(engine: Engine, requests: _Requests, answers: _Answers) -> Engine:
    """Feed the engine and pass its results on, until the parent says that all is done."""
    token_count = _TokenCount(answers)
    if hasattr(engine, "tell"):
        engine.tell = token_count.add
    n_open = 0
    while True:
        for message in _take_all(requests, block=n_open == 0):
            if message is None:
                return engine
            if isinstance(message, EngineSpec):
                engine = engine.turn_to_samples(message)  # type: ignore[attr-defined] # likewise
                engine.tell = token_count.add  # type: ignore[attr-defined]
                answers.put(engine.info)
                continue
            if isinstance(message, str):
                engine.turn_to(message)  # type: ignore[attr-defined] # of those that can
                answers.put(engine.info)
                continue
            for values in message:
                fields = zip(Request.__slots__, values, strict=True)
                engine.submit(Request(**dict(fields)))
            n_open += len(message)
        results = engine.step()
        if results:
            n_open -= len(results)
            token_count.pass_on()  # else its tokens would count twice
            answers.put(results)


class _TokenCount:
    """Adds up the tokens that an engine decodes, and passes them on twice a second."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers
        self._n_tokens = 0
        self._last_time = time.monotonic()

    def add(self, n_tokens: int) -> None:
        self._n_tokens += n_tokens
        if time.monotonic() - self._last_time >= _SECONDS_BETWEEN_COUNTS:
            self.pass_on()

    def pass_on(self) -> None:
        if self._n_tokens:
            self._answers.put(self._n_tokens)
        self._n_tokens = 0
        self._last_time = time.monotonic()


def _take_all(requests: _Requests, *, block: bool) -> list[_Message]:
    """Collect everything that has arrived; with ``block`` wait for at least one."""
    messages = [requests.get()] if block else []
    try:
        while True:
            messages.append(requests.get_nowait())
    except Empty:
        return messages
