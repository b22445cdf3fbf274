"""The client of an endpoint: requests out, answers in, each in the journal before it counts."""

import asyncio
import json
import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mia_batch.errors import EngineError, MiaBatchError, SettingsError, describe_error
from mia_batch.evidence.endpoint import wire
from mia_batch.evidence.endpoint.batch import (
    POSTPONED,
    BatchFiles,
    PostponedError,
    read_time,
)
from mia_batch.evidence.endpoint.cutting import ReadingLimit
from mia_batch.evidence.endpoint.journal import BatchRequest, Journal
from mia_batch.evidence.endpoint.lanes import Lanes
from mia_batch.evidence.endpoint.transport import RefusedError, RequestRunner
from mia_batch.evidence.request import Answer, Continuation, EvidenceKind, Request
from mia_batch.models.tokens import Tokenizer


def identify(request: Request, sample_identity: Mapping[str, object]) -> bytes:
    """Digest all that decides what the answer is; the ``request_id`` does not."""
    question = [request.kind, request.key, request.context + request.text]
    draw = [request.seed, request.n, request.max_tokens]
    if request.greedy:
        draw.append(True)
    text = json.dumps([dict(sample_identity), question, draw], sort_keys=True)
    return blake2b(text.encode(), digest_size=16, person=b"mia-journal").digest()


_PROMPT_PARTS = 4  # of a request's key: target, model, view, and number of the prompt
# Prompts that were cut, if they are most: then it is better to stop and change that
_FEWEST_CUT = 16
_MOST_REQUESTS = 4096  # submitted, however many texts fill the slots of a server


@dataclass(frozen=True, slots=True)
class _Job:
    """A request, and the answers to it that are in the journal."""

    request: Request
    identity: bytes
    continuations: dict[int, Continuation]

    @property
    def missing(self) -> list[int]:
        return [i for i in range(self.request.n) if i not in self.continuations]


class Endpoint:
    """A source that has probed its endpoint; made by :meth:`open`, used as a context manager."""

    # One thread may submit while another reads results. All else happens in the event
    # loop of a thread of its own, which puts answers into the queue of results and, at
    # most once and last, the exception that ends the run.

    capabilities: wire.Capabilities  # what the endpoint was found to honour
    _runner: RequestRunner
    _identity: dict[str, object]

    def __init__(
        self,
        request_format: wire.RequestFormat,
        kind: EvidenceKind,
        tokenizer: Tokenizer | None,
        batch: BatchFiles | None = None,
    ) -> None:
        self._batch = batch
        self._format = request_format
        self._settings = request_format.settings
        self._kind = kind
        self._tokenizer = tokenizer
        self._waiting: Lanes[_Job] = Lanes()
        self._running: set[asyncio.Task[None]] = set()
        self._end_error: MiaBatchError | None = None  # no request is sent any more
        self._reading = ReadingLimit()
        self._check_lock = asyncio.Lock()
        # Answers to prompts that were cut, and to those that were not
        self._n_cut = self._n_whole = 0
        self._results: queue.SimpleQueue[Answer | MiaBatchError] = queue.SimpleQueue()
        self._failure: MiaBatchError | None = None  # the same, as `results` has seen it
        self._stack = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._work, name="endpoint", daemon=True)

    @classmethod
    def open(
        cls,
        settings: wire.ClientSettings,
        *,
        kind: EvidenceKind = "samples",
        journal: Path,
        tokenizer: Tokenizer | None = None,
        at_points: bool = False,
        nudges: bool = False,
        batch: BatchFiles | None = None,
        rng: Random | None = None,
    ) -> Self:
        """Connect to an endpoint and learn what it honours."""
        # With ``at_points`` the prompt need not be echoed; with ``nudges`` it is found
        # out whether the logit of a token can be raised. With a ``batch`` nothing
        # further is sent: what its files do not answer is written into them.
        if find_spec("httpx") is None:
            raise SettingsError("engine: openai needs httpx; install mia-batch[openai]")
        request_format = _request_format(settings, kind, tokenizer, at_points=at_points)
        endpoint = cls(request_format, kind, tokenizer, batch)
        endpoint._thread.start()
        starting = endpoint._start(journal, rng or Random(), nudges=nudges)
        try:
            asyncio.run_coroutine_threadsafe(starting, endpoint._loop).result()
        except BaseException as error:
            endpoint.close()
            if isinstance(error, MiaBatchError) or not isinstance(error, Exception):
                raise
            msg = f"the client of the endpoint cannot start ({describe_error(error)})"
            raise EngineError(msg) from None
        return endpoint

    @property
    def repeats(self) -> bool:
        """True where the same prompt and seed give the same continuation again."""
        return self.capabilities.seed == "honoured" or not self.capabilities.varied

    @property
    def money_left(self) -> float | None:
        """What may still be spent; None without a limit."""
        return self._runner.ledger.left

    def has_room(self, *, requests: int, samples: int) -> bool:  # noqa: ARG002 - of the protocol
        """Keep so many requests submitted that the client never waits for the next."""
        if requests < 2 * self._settings.max_concurrency:
            return True
        n_slots = self.capabilities.prompt_slots
        if n_slots is None or requests >= _MOST_REQUESTS:
            return False
        # Requests of one text wait for each other, so it takes more texts
        return len(self._waiting) < 2 * n_slots

    def settle_repeated_prompts(self, *, repeats_prompt: bool) -> None:
        """Read answers as the run's first ones were, of a model that repeats prompts at times."""
        dialect = replace(self._format.dialect, repeats_prompt=repeats_prompt)
        self._format = replace(self._format, dialect=dialect)
        self._runner.request_format = self._format
        self.capabilities = replace(self.capabilities, dialect=dialect)
        self._identity = self._settings.sample_identity(self.capabilities)

    def submit(self, *requests: Request) -> None:
        try:
            sendable: list[Request] = []
            for prepared in map(self._prepare, requests):
                if isinstance(prepared, Answer):
                    self._results.put(prepared)
                else:
                    sendable.append(prepared)
            self._loop.call_soon_threadsafe(self._accept, sendable)
        except RuntimeError:
            raise EngineError(
                "the client of the endpoint has been closed; open another"
            ) from None

    def results(self, timeout: float | None = None) -> list[Answer]:
        """Wait for answers, which are journalled then; see `AnswerSource.results`."""
        results: list[Answer] = []
        with suppress(queue.Empty):
            while self._failure is None:
                item = self._results.get(timeout=0.0 if results else timeout)
                if isinstance(item, MiaBatchError):
                    self._failure = item
                else:
                    results.append(item)
        if self._failure is not None and not results:
            raise self._failure
        return results

    def close(self) -> None:
        """End the client at once; answers on their way are lost, journalled ones are not."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, request: Request) -> Request | Answer:
        """Cut the context; return an answer with the reason where it cannot be sent."""
        if request.kind != self._kind:
            error = f"the endpoint was opened for {self._kind}, not for {request.kind}"
        elif self._kind == "logprobs" and not request.text:
            error = "the text has no token"
        elif request.partial is not None:
            return self._format.rest(request)
        elif isinstance(self._format, wire.NextToken):
            return self._format.prepare(request)
        elif request.context_tokens is None or not request.context:
            return request
        elif self._tokenizer is None:
            error = "the context cannot be cut without its tokens; give --tokenizer"
        else:
            end = self._tokenizer.keep_last(request.context, request.context_tokens)
            return replace(request, context=end)
        return request.failed(error, passes=0)

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
            runner.run(self._stack.aclose())

    async def _start(self, journal_path: Path, rng: Random, *, nudges: bool) -> None:
        from mia_batch.evidence.endpoint.probe import Probe

        journal = self._stack.enter_context(Journal(journal_path))
        if self._batch is not None:
            journal.follow_files()
        self._runner = RequestRunner(self._format, journal, rng)
        self._stack.push_async_callback(self._runner.transport.aclose)
        probe = Probe(self._runner)
        self.capabilities = await probe.run()
        if nudges and self._tokenizer is not None:
            support = await probe.nudge(self._tokenizer)
            self.capabilities = replace(self.capabilities, nudge=support)
        self._runner.probing = False
        self._format = self._runner.request_format
        self._identity = self._settings.sample_identity(self.capabilities)
        self._stack.push_async_callback(self._cancel)

    async def _cancel(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _accept(self, requests: list[Request]) -> None:
        for request in requests:
            if self._end_error is None:
                self._add(request)
        self._send_waiting()

    def _add(self, request: Request) -> None:
        fields = self._format.fields(request, self.capabilities)
        identity = identify(request, self._identity | fields)
        try:
            job = _Job(request, identity, self._runner.journal.find(identity))
        except EngineError as error:
            self._end(error)
            return
        if job.missing:
            # Elsewhere each request has a lane of its own
            lane = str(request.request_id)
            if self.capabilities.prompt_slots is not None:
                lane = _text_name(request)
            self._waiting.put(lane, len(request.context) + len(request.text), job)
        else:
            self._put_answer(job)

    def _send_waiting(self) -> None:
        while len(self._running) < self._limit:
            next_job = self._waiting.take()
            if next_job is None:
                return
            lane, job = next_job
            task = asyncio.create_task(self._run(job))
            self._running.add(task)
            task.add_done_callback(partial(self._end_task, lane))

    @property
    def _limit(self) -> int:
        """Most requests in flight; a text beyond the server's slots would take another's."""
        limit = self._runner.concurrency.limit
        n_slots = self.capabilities.prompt_slots
        return limit if n_slots is None else min(limit, n_slots)

    def _end_task(self, lane: str, task: asyncio.Task[None]) -> None:
        self._running.remove(task)
        self._waiting.end(lane)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, MiaBatchError):
            error = EngineError(
                f"the client of the endpoint has failed ({describe_error(error)})"
            )
        if error is not None or self._end_error is not None:
            self._end(error or self._end_error)
        else:
            self._send_waiting()

    def _end(self, error: MiaBatchError | None) -> None:
        """Send no more requests; the error comes after the answers to those in flight."""
        self._waiting.clear()
        self._end_error = self._end_error or error
        if self._end_error is not None and not self._running:
            self._results.put(self._end_error)

    async def _run(self, job: _Job) -> None:
        refusal = None
        try:
            if self._batch is not None:
                refusal = await self._exchange(job, self._batch)
            else:
                await self._runner.complete(
                    self._build_next(job),
                    partial(self._take, job),
                    check=self._refuse_cut,
                )
        except PostponedError:
            self._results.put(job.request.postponed(POSTPONED))
            return
        except RefusedError as error:
            refusal = _describe_refusal(error)
        if refusal is not None:
            self._results.put(job.request.failed(refusal))
        else:
            self._put_answer(job)

    def _build_next(self, job: _Job) -> wire.WireRequest:
        """Build the request for the first samples that are missing."""
        return self._build_request(job, *self._choose_samples(job.missing))

    def _choose_samples(self, missing: Sequence[int]) -> tuple[int, int]:
        """Return the first sample that is missing, and how many to ask for from there on."""
        first = missing[0]
        n = 1
        if self.capabilities.n == "honoured":
            # All that follow without a gap, of which each takes a slot
            n = sum(index == first + i for i, index in enumerate(missing))
            n = min(n, self.capabilities.prompt_slots or n)
        return first, n

    def _build_request(self, job: _Job, first: int, n: int) -> wire.WireRequest:
        request = job.request
        fields = self.capabilities.sampling_fields(
            n=n,
            seed=request.seed + first,
            top_k=self._settings.top_k,
        )
        if request.greedy and self.capabilities.greedy != "refused":
            fields["temperature"] = 0.0
        fields |= self._format.fields(request, self.capabilities)
        return self._format.write(
            self._format.prompt(request),
            fields,
            n=n,
            max_tokens=request.max_tokens,
            first=first,
        )

    def _take(
        self, job: _Job, sent: wire.WireRequest, choices: wire.Choices
    ) -> wire.WireRequest | None:
        """Store what came, and return the request for what is still missing."""
        self._keep(job, sent, choices)
        return self._build_next(job) if job.missing else None

    def _keep(
        self,
        job: _Job,
        sent: wire.WireRequest,
        choices: wire.Choices,
        batch: BatchRequest | None = None,
    ) -> None:
        continuations = {
            sent.first + index: continuation
            for index, continuation in choices.continuations.items()
        }
        if choices.is_prompt_filtered:  # so are those that are still to be asked for
            continuations = dict.fromkeys(job.missing, choices.continuations[0])
        self._runner.journal.record(
            job.identity,
            continuations,
            choices.tokens or sent.limit,
            sent=choices.sent_at,
            system_fingerprint=choices.system_fingerprint,
            prompt=":".join(job.request.key.split(":")[:_PROMPT_PARTS]),
            served_model=choices.served_model,
            batch=batch,
        )
        job.continuations.update(continuations)

    async def _exchange(self, job: _Job, files: BatchFiles) -> str | None:
        """Take what files answer, and write what is left; return why there will be no answer."""
        journal = self._runner.journal
        for written in journal.find_batches(job.identity):
            reply = files.find(written)
            if reply is not None:
                await self._take_reply(job, written, reply, files)
        missing = job.missing
        for written in journal.find_batches(job.identity):
            if written.refusal is not None and missing:
                return written.refusal
        while missing:
            first, n = self._choose_samples(missing)
            sent = self._build_request(job, first, n)
            opened = journal.open_batch(job.identity, first, n)
            files.write(opened, sent, self._format.path)
            missing = missing[n:]
        if job.missing:
            raise PostponedError
        return None

    async def _take_reply(
        self, job: _Job, written: BatchRequest, reply: wire.Reply, files: BatchFiles
    ) -> None:
        journal = self._runner.journal
        sent = self._build_request(job, written.first, written.n)
        choices = self._runner.read(reply, sent)
        refusal = None
        if choices is None:
            error = files.read_failure(written, reply)
            refusal = None if error is None else _describe_refusal(error)
        else:
            choices = replace(choices, sent_at=read_time(choices.document))
            files.count_answer(written, choices.problem)
            try:
                await self._refuse_cut(sent, choices, written)
            except RefusedError as error:
                refusal = _describe_refusal(error)
            else:
                self._keep(job, sent, choices, written)
        if refusal is not None:
            journal.refuse_batch(written, refusal)

    async def _refuse_cut(
        self,
        sent: wire.WireRequest,
        choices: wire.Choices,
        batch: BatchRequest | None = None,
    ) -> None:
        """Refuse the answer to a prompt of which the endpoint has read a part."""
        reading = self._reading
        usage = wire.read_usage(choices.document)
        n_tokens = usage.prompt if usage is not None else None
        if choices.is_prompt_filtered:
            return
        if reading.needs_check(n_tokens, sent.prompt):
            async with self._check_lock:
                # Another answer may have settled it meanwhile
                if usage is not None and reading.needs_check(n_tokens, sent.prompt):
                    await self._check_reading(sent, usage.prompt)
        if not reading.is_cut(n_tokens):
            self._n_whole += 1
            return
        self._n_cut += 1
        self._runner.journal.record(b"", {}, choices.tokens or sent.limit, batch=batch)
        if self._n_cut >= _FEWEST_CUT and self._n_cut > self._n_whole:
            raise EngineError(
                f"the endpoint {self._settings.base_url} cuts most prompts:"
                f" {reading.describe()}, and give the same command again; no answer is"
                " lost"
            )
        raise RefusedError(None, reading.describe(), is_json=True, unusable=True)

    async def _check_reading(self, sent: wire.WireRequest, n_tokens: int) -> None:
        """Send a prompt twice in one, and compare the counts of its tokens."""
        mark = f"{self._runner.rng.getrandbits(32):08x}"
        doubled = f"{mark} {sent.prompt}\n{sent.prompt}"
        request = self._format.rewrite(sent, doubled)

        def take(request: wire.WireRequest, choices: wire.Choices) -> None:
            self._runner.journal.record(b"", {}, choices.tokens or request.limit)

        try:
            choices = await self._runner.complete(request, take)
        except RefusedError as error:
            # All but the length was taken before. Else the next answer is checked
            if error.status is not None and 400 <= error.status < 500:
                self._reading.accept_all()
            return
        usage = wire.read_usage(choices.document)
        self._reading.compare(n_tokens, usage.prompt if usage is not None else None)

    def _put_answer(self, job: _Job) -> None:
        in_order = [job.continuations[i] for i in range(job.request.n)]
        answer = self._format.answer(job.request, in_order, self.capabilities)
        beginning = job.request.partial
        if beginning is not None:
            answer.continuations = [_join(beginning, rest) for rest in in_order]
            answer.resumed = True
        self._results.put(answer)


def _describe_refusal(error: RefusedError) -> str:
    verb = "gave no usable answer" if error.status is None else "refused the request"
    return f"the endpoint {verb}: {error}"


def _text_name(request: Request) -> str:
    """Return the name of the text that a request is about: its prompts begin alike."""
    return request.key.partition(":")[0]


def _join(beginning: Continuation, rest: Continuation) -> Continuation:
    """Put an answer so far before what follows it, unless that is missing."""
    n_tokens = (beginning.n_tokens or 0) + (rest.n_tokens or 0)
    if rest.text is None or beginning.text is None:
        return replace(rest, n_tokens=n_tokens)
    return replace(
        rest,
        text=beginning.text + rest.text,
        n_tokens=n_tokens,
        answer=rest.answer if beginning.answer in (None, "text") else beginning.answer,
    )


def _request_format(
    settings: wire.ClientSettings,
    kind: EvidenceKind,
    tokenizer: Tokenizer | None,
    *,
    at_points: bool,
) -> wire.RequestFormat:
    """Choose the format in which an endpoint is asked; refuse what no endpoint can do."""
    if at_points and tokenizer is None:
        raise SettingsError(
            "tokenizer= is missing: log-probabilities at points need the true"
            " token's id"
        )
    if at_points and tokenizer is not None:
        # The most likely token is drawn: any other would be listed in addition to
        # those.
        greedy = replace(settings, temperature=0.0, top_k=0, top_p=1.0)
        next_token = wire.NextChatToken if settings.chat else wire.NextToken
        return next_token(greedy, tokenizer)
    if kind == "samples":
        return wire.Chat(settings) if settings.chat else wire.RequestFormat(settings)
    if kind != "logprobs":
        raise SettingsError(f"engine: openai gives samples and logprobs, but no {kind}")
    if settings.chat:
        raise SettingsError(
            "chat: a chat endpoint gives no log-probabilities of a prompt; take a "
            "completions endpoint that echoes, or engine transformers or vllm"
        )
    # How tokens are drawn plays no part.
    return wire.Echo(replace(settings, temperature=1.0, top_k=0, top_p=1.0))


# Embeddings of texts from an endpoint's ``/embeddings``, within every limit of its
# client.


class _Embeddings(wire.RequestFormat):
    """Texts go out together, and each comes back as one vector."""

    path = "/embeddings"

    def ask(self, texts: Sequence[str]) -> wire.WireRequest:
        payload: dict[str, object] = {
            "model": self.settings.model,
            "input": list(texts),
            "encoding_format": "float",
        }
        n_bytes = sum(len(text.encode()) for text in texts)
        n_tokens = wire.most_prompt_tokens(
            self.settings,
            prompt_bytes=n_bytes,
            prompts=len(texts),
        )
        limit = wire.Tokens(n_tokens, 0)
        return wire.WireRequest(payload, n=len(texts), first=0, limit=limit)

    def read(self, body: bytes, request: wire.WireRequest) -> wire.Choices:
        document: dict[str, Any] = wire.decode_object(body) or {}
        vectors = read_vectors(document, request.n)
        return wire.Choices(
            continuations={},
            tokens=wire.read_usage(document),
            problem=vectors if isinstance(vectors, str) else None,
            document=document,
        )


def read_vectors(document: dict[str, Any], n: int) -> NDArray[np.float32] | str:
    """Read the vectors of ``n`` texts from a reply, by their index; a text says what is wrong."""
    try:
        rows = document["data"]
        by_index = {int(row["index"]): row["embedding"] for row in rows}
        vectors = np.array([by_index[i] for i in range(n)], np.float32)
    except (KeyError, TypeError, ValueError, OverflowError):
        return f"it has no embedding of one length for each of {n} texts"
    is_matrix = vectors.ndim == 2 and len(rows) == n
    if not is_matrix or not np.isfinite(vectors).all():
        return f"it has no embedding of finite numbers for each of {n} texts"
    return vectors


def embed_at(
    settings: wire.ClientSettings,
    blocks: Sequence[Sequence[str]],
    journal_path: Path,
    take: Callable[[int, list[NDArray[np.float32] | str]], None],
    *,
    rng: Random | None = None,
) -> None:
    """Ask for the embeddings of blocks of texts, a request a block, many at once."""
    # Texts of a block that is refused are asked for one by one.

    async def run() -> None:
        numbers = iter(range(len(blocks)))

        async def work(numbers: Iterable[int]) -> None:
            for number in numbers:
                take(number, await _embed(runner, blocks[number]))

        with Journal(journal_path) as journal:
            runner = RequestRunner(_Embeddings(settings), journal, rng or Random())
            async with aclosing(runner.transport):
                # Alone: what is wrong with all is found once
                await work(islice(numbers, 1))
                async with asyncio.TaskGroup() as group:
                    for _ in range(settings.max_concurrency):
                        group.create_task(work(numbers))

    try:
        asyncio.run(run())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _embed(
    runner: RequestRunner, texts: Sequence[str]
) -> list[NDArray[np.float32] | str]:
    """Ask for some texts at once, and for each alone where the endpoint refuses them so."""

    def take(request: wire.WireRequest, choices: wire.Choices) -> None:
        runner.journal.record(b"", {}, choices.tokens or request.limit)

    try:
        request = _Embeddings(runner.request_format.settings).ask(texts)
        choices = await runner.complete(request, take)
    except RefusedError as error:
        if len(texts) == 1:
            return [f"the endpoint gives no embedding ({error})"]
        vectors: list[NDArray[np.float32] | str] = []
        for text in texts:
            vectors += await _embed(runner, [text])
        return vectors
    return [*read_vectors(choices.document, len(texts))]  # else it would be a problem
