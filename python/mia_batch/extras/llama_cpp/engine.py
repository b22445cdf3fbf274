"""The llama.cpp engine: texts read and continued side by side, each by itself.

On a CPU the numbers of a text are the same to the bit whatever else is read at the time.
llama.cpp takes other ways through its arithmetic for few rows, and its fast attention another one
for many rows of one text; so calls have a multiple of 8 rows, filled up with rows that are thrown
away, and where attention is the fast one at most 32 of one text. Models that keep a running state
instead of keys and values cannot take rows back, and are read as they are.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from llama_cpp import llama_cpp as library
from numpy.typing import NDArray

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines import registry
from mia_batch.evidence.engines.logits import (
    SeededSampler,
    complete_columns,
    score_tokens,
)
from mia_batch.evidence.repetition import LoopDetector
from mia_batch.evidence.request import (
    Answer,
    Continuation,
    Engine,
    EngineInfo,
    EngineSpec,
    Request,
)
from mia_batch.extras.llama_cpp import check_settings
from mia_batch.extras.llama_cpp.header import find_files, read_header
from mia_batch.extras.llama_cpp.library import VERSION, Model, Rows, Streams

_STREAMS = 16
_ROWS_TOGETHER = 8  # a call's rows are a multiple of this
_ROWS_OF_A_TEXT = 32  # of one text in a call, where attention is llama.cpp's fast one
_MOST_ROWS = 512
_SHARE_OF_MEMORY = 0.5  # of what is free, for keys and values
_SHORTEST_STREAM = 1024  # tokens; longer streams are made once a text needs them
_MOST_SCORED = 256  # tokens of all requests about a text, unless it is longer itself
_DEFAULT_CONTEXT = 2048  # of models whose header names none
_CPU = torch.device("cpu")


def start(spec: EngineSpec) -> Engine:
    if spec.kind == "samples":
        return LlamaCppSamples(spec)
    return LlamaCppLogprobs(spec)


@dataclass(slots=True, eq=False)
class _Reading:
    """A text to read once, for all requests whose tokens begin it."""

    token_ids: list[int]
    requests: list[Request]
    n_read: int = 0
    # By position, the requests that need the logits after the token there
    wanted: dict[int, list[Request]] = field(default_factory=dict)

    def add(self, request: Request, token_ids: list[int]) -> bool:
        """Add a request if one of both texts begins the other."""
        whole, beginning = self.token_ids, token_ids
        if len(whole) < len(beginning):
            whole, beginning = beginning, whole
        scored = [*self.requests, request]
        n_scored = sum(len(each.text_ids or ()) for each in scored)
        is_too_much = n_scored > max(len(whole), _MOST_SCORED)
        if is_too_much or whole[: len(beginning)] != beginning:
            return False
        self.token_ids = whole
        self.requests.append(request)
        return True

    def place_requests(self) -> None:
        self.wanted = {}
        for request in self.requests:
            last_of_context = len(request.context_ids or ()) - 1
            places = range(last_of_context, last_of_context + 1)
            if request.kind == "logprobs" and not request.question:
                places = range(last_of_context, len(_find_ids(request)) - 1)
            for place in places:
                self.wanted.setdefault(place, []).append(request)


def _find_ids(request: Request) -> list[int]:
    return [*(request.context_ids or ()), *(request.text_ids or ())]


def _fits(n_tokens: int, length: int) -> bool:
    """Check that a stream has room for a text, and for the rows behind it that fill up a call."""
    return n_tokens + _ROWS_TOGETHER <= length


class _TextReader:
    """A GGUF model that reads texts side by side."""

    _fewest_streams: int
    # Whether attention is computed in float32 on a CPU: log-probabilities of models
    # that are not quantised are then those of other libraries, and twice the memory is
    # taken
    _has_exact_attention: bool
    # Uses the logits after some tokens of a text that is in a stream
    _take_logits: Callable[[int, _Reading, list[int], NDArray[np.float32]], None]
    # Hears that the text in a stream has been read
    _finish: Callable[[int, _Reading], None]

    def __init__(self, spec: EngineSpec) -> None:
        check_settings(spec)
        self._spec = spec
        arguments = spec.engine_args
        (path, *_) = find_files(spec.model)
        header = read_header(path)
        gpu_layers = int(arguments.get("n_gpu_layers", -1))
        has_gpu = library.llama_supports_gpu_offload()
        self._on_cpu = gpu_layers == 0 or not has_gpu
        self._model = Model(path, gpu_layers=gpu_layers)
        if not self._model.is_causal:
            raise SettingsError(
                f"model: {spec.model!r} is no causal language model"
                f" ({header.architecture}); give one"
            )
        context = header.context or _DEFAULT_CONTEXT
        self._context = int(arguments.get("max_model_len", context))
        if self._context > context:
            raise SettingsError(
                f"engine_arg: max_model_len is above the model's context of {context}"
            )
        self._n_threads = int(arguments.get("n_threads", torch.get_num_threads()))
        self._most_streams = int(arguments.get("max_num_seqs", _STREAMS))
        self._token_bytes = header.cache_bytes
        n_rows = registry.logits_bytes(spec, None) // (4 * self._model.n_tokens)
        n_rows = min(max(n_rows, _ROWS_OF_A_TEXT), _MOST_ROWS)
        self._n_rows = n_rows - n_rows % _ROWS_TOGETHER
        self._rows_of_a_text = self._n_rows
        if self._on_cpu and not self._has_exact_attention:
            self._rows_of_a_text = _ROWS_OF_A_TEXT
        self._fills_up = self._on_cpu and self._model.may_cut
        self._opened_streams: Streams | None = None
        self._readings: deque[_Reading] = deque()
        self._unfinished: dict[int, _Reading] = {}  # that are being read, by stream
        self._answers: list[Answer] = []
        self.tell: Callable[[int], None] = lambda _: None
        self.info = EngineInfo(
            engine="llama-cpp",
            version=VERSION,
            device="cpu" if self._on_cpu else "gpu",
            dtype=header.quantisation,
            max_model_len=self._context,
            max_sequences=self._most_streams,
        )
        self._check()

    def _check(self) -> None:
        """Check that what has been opened is causal and finite, see `registry.check_health`."""
        logprobs = []
        for text in registry.health_check_texts(self._model.n_tokens, self._context):
            streams = self._open_streams(len(text))
            rows = Rows()
            self._add_rows(rows, 0, 0, text, [True] * len(text))
            logits = self._read_rows(streams, rows)[: len(text) - 1]
            streams.cut(0, 0)
            ids = torch.tensor(text[1:])
            scores = score_tokens(
                torch.from_numpy(logits), ids, frozenset(), self._spec.decoding
            )
            logprobs.append(scores["logprob"].numpy())
        if not np.isfinite(logprobs).all():
            raise SettingsError(
                f"model: {self._spec.model!r} gives log-probabilities that are not"
                " finite numbers; give another file of the model"
            )
        registry.check_health(self._spec.model, None, self.info.dtype, logprobs)

    def submit(self, request: Request) -> None:
        reason = registry.why_impossible(request, self._context, self._model.n_tokens)
        if reason is None and request.noise:
            reason = "engine llama-cpp cannot compute noise on embeddings"
        if reason is not None:
            self._answers.append(request.failed(reason))
            return
        ids = _find_ids(request)
        last = self._readings[-1] if self._readings else None
        if last is None or not self._model.may_cut or not last.add(request, ids):
            self._readings.append(_Reading(ids, [request]))

    def close(self) -> None:
        if self._opened_streams is not None:
            self._opened_streams.close()
        self._model.close()

    def _pass_on_answers(self) -> list[Answer]:
        complete = self._answers
        self._answers = []
        return complete

    def _open_streams(self, length: int) -> Streams:
        """Return streams for texts of such a length; longer ones replace those before."""
        streams = self._opened_streams
        if streams is not None and _fits(length, streams.length):
            return streams
        room = _SHORTEST_STREAM
        while not _fits(length, room):
            room *= 2
        if streams is not None:
            streams.close()
            self._opened_streams = None
        has_exact_attention = self._has_exact_attention and self._on_cpu
        stream_bytes = self._token_bytes * room * (2 if has_exact_attention else 1)
        free_bytes = int(registry.available_memory() * _SHARE_OF_MEMORY)
        n_streams = min(self._most_streams, free_bytes // stream_bytes, self._n_rows)
        if n_streams < self._fewest_streams:
            raise EngineError(
                f"{self._fewest_streams} texts of {length:,} tokens need"
                f" {self._fewest_streams * stream_bytes >> 20:,} MiB for their keys and"
                f" values, and {free_bytes >> 20:,} MiB may be taken; set a smaller"
                " max_model_len through --engine-arg"
            )
        self._opened_streams = Streams(
            self._model,
            # A power of two, so that their rows make up whole calls
            n_streams=1 << (n_streams.bit_length() - 1),
            length=room,
            n_rows=self._n_rows,
            n_threads=self._n_threads,
            has_exact_attention=has_exact_attention,
        )
        return self._opened_streams

    def _begin(self, streams: Streams, stream: int, reading: _Reading) -> None:
        reading.place_requests()
        streams.cut(stream, 0)
        self._unfinished[stream] = reading

    def _read_on(self, streams: Streams) -> None:
        """Read the next tokens of the texts that are being read, in one call."""
        rows = Rows()
        places: dict[int, list[int]] = {}
        for stream, reading in self._unfinished.items():
            part = reading.token_ids[reading.n_read :][: self._rows_of_a_text]
            if len(rows.tokens) + self._fill(len(part)) > self._n_rows:
                break
            numbers = range(reading.n_read, reading.n_read + len(part))
            wanted = [place in reading.wanted for place in numbers]
            self._add_rows(rows, stream, reading.n_read, part, wanted)
            places[stream] = [place for place in numbers if place in reading.wanted]
            reading.n_read += len(part)
        logits = self._read_rows(streams, rows)
        for stream, wanted_places in places.items():
            reading = self._unfinished.pop(stream)
            if self._fills_up:
                streams.cut(stream, reading.n_read)
            n_wanted = len(wanted_places)
            if n_wanted:
                self._take_logits(stream, reading, wanted_places, logits[:n_wanted])
                logits = logits[n_wanted:]
            if reading.n_read == len(reading.token_ids):
                self._finish(stream, reading)
            else:  # behind those that had no room in this call
                self._unfinished[stream] = reading

    def _read_rows(self, streams: Streams, rows: Rows) -> NDArray[np.float32]:
        """Read rows, and return the logits of those wanted, which are filled up as rows are."""
        n_more = self._fill(sum(rows.wanted)) - sum(rows.wanted)
        if n_more == 0:
            return streams.read(rows)
        is_wanted = rows.wanted
        unwanted = [row for row, wanted in enumerate(is_wanted) if not wanted]
        rows.wanted = is_wanted.copy()
        for row in unwanted[:n_more]:
            rows.wanted[row] = True
        logits = streams.read(rows)
        kept = [row for row, wanted in enumerate(rows.wanted) if wanted]
        return logits[[is_wanted[row] for row in kept]]

    def _fill(self, n_rows: int) -> int:
        if not self._fills_up:
            return n_rows
        return -(-n_rows // _ROWS_TOGETHER) * _ROWS_TOGETHER

    def _add_rows(
        self,
        rows: Rows,
        stream: int,
        first: int,
        token_ids: list[int],
        wanted: list[bool],
    ) -> None:
        """Add rows of a text, and behind them those that fill up, of which nothing is wanted."""
        n_more = self._fill(len(token_ids)) - len(token_ids)
        rows.add(stream, first, token_ids + [0] * n_more, wanted + [False] * n_more)


class LlamaCppLogprobs(_TextReader):
    """Log-probabilities of texts, each of which is read once for all that is asked of it."""

    _fewest_streams = 1
    _has_exact_attention = True

    def __init__(self, spec: EngineSpec) -> None:
        self._columns = complete_columns(spec.columns)
        # By request, the scores of its tokens in parts
        self._parts: dict[int, list[dict[str, NDArray[Any]]]] = defaultdict(list)
        super().__init__(spec)

    def step(self) -> list[Answer]:
        if not self._answers:
            streams = self._take_texts()
            if streams is not None:
                self._read_on(streams)
        return self._pass_on_answers()

    def _take_texts(self) -> Streams | None:
        """Give each free stream a text, and return the streams; None where no text is left."""
        streams = self._opened_streams
        if self._readings and not self._unfinished:
            longest = max(len(reading.token_ids) for reading in self._readings)
            streams = self._open_streams(longest)
        if streams is None:
            return None
        for stream in range(streams.n_streams):
            is_free = stream not in self._unfinished
            if not (is_free and self._readings):
                continue
            # The streams may have been made for shorter texts
            if _fits(len(self._readings[0].token_ids), streams.length):
                self._begin(streams, stream, self._readings.popleft())
        return streams if self._unfinished else None

    @torch.inference_mode()
    def _take_logits(
        self,
        stream: int,  # noqa: ARG002 - continuations start from it
        reading: _Reading,
        places: list[int],
        logits: NDArray[np.float32],
    ) -> None:
        columns: frozenset[str] = frozenset()
        for request in reading.requests:
            columns |= self._columns & complete_columns(request.columns)
        row_numbers: list[int] = []
        token_ids: list[int] = []
        owners: list[tuple[int, int]] = []
        for row, place in enumerate(places):
            for request in reading.wanted[place]:
                ids = request.text_ids or []
                if not request.question:
                    ids = [ids[place + 1 - len(request.context_ids or ())]]
                owners.append((request.request_id, len(ids)))
                row_numbers += [row] * len(ids)
                token_ids += ids
        is_each_once = row_numbers == [*range(len(logits))]
        wanted_logits = logits if is_each_once else logits[row_numbers]
        scores = score_tokens(
            torch.from_numpy(wanted_logits),
            torch.tensor(token_ids),
            columns,
            self._spec.decoding,
        )
        values = {name: column.numpy() for name, column in scores.items()}
        start = 0
        for owner, n_tokens in owners:
            end = start + n_tokens
            part = {name: column[start:end] for name, column in values.items()}
            self._parts[owner].append(part)
            start = end

    def _finish(
        self,
        stream: int,  # noqa: ARG002 - continuations start from it
        reading: _Reading,
    ) -> None:
        """Answer all that was asked about a text; the first answer counts its pass."""
        for number, request in enumerate(reading.requests):
            parts = self._parts.pop(request.request_id)
            columns = self._columns & complete_columns(request.columns)
            tokens = {}
            for name in ("logprob", *columns):
                column = np.concatenate([part[name] for part in parts])
                tokens[name] = column.astype(np.uint32) if name == "rank" else column
            answer = registry.text_answer(request, tokens, passes=int(number == 0))
            self._answers.append(answer)


@dataclass(slots=True, eq=False)
class _Sequence:
    """One continuation as far as it has been decoded."""

    request: Request
    number: int
    max_tokens: int
    sampler: SeededSampler
    loop: LoopDetector | None
    n_prompt: int
    token_ids: list[int] = field(default_factory=list)


class LlamaCppSamples(_TextReader):
    """Continuations, each drawn with its own seeded generator."""

    # A stream holds a prompt from which continuations start, or one continuation.

    _fewest_streams = 2
    _has_exact_attention = False

    def __init__(self, spec: EngineSpec) -> None:
        self._running: dict[int, _Sequence] = {}  # by stream
        self._lengths: dict[int, int] = {}  # tokens in the streams of prompts
        self._waiting: dict[int, list[_Sequence]] = {}  # by the stream of their prompt
        self._outputs: dict[int, dict[int, Continuation]] = defaultdict(dict)
        super().__init__(spec)
        self._ends = self._model.find_ends()

    def step(self) -> list[Answer]:
        if not self._answers:
            streams = self._take_prompts()
            if streams is not None and self._unfinished:
                self._read_on(streams)
            elif streams is not None:
                self._start_waiting(streams)
                if self._running:
                    self._decode(streams)
        return self._pass_on_answers()

    def _take_prompts(self) -> Streams | None:
        """Begin prompts for which, and for what follows them, there are free streams."""
        streams = self._opened_streams
        if self._waiting or self._unfinished or not self._readings:
            return streams
        longest = max(map(self._find_length, self._readings))
        is_short = streams is not None and not _fits(longest, streams.length)
        if is_short and self._running:
            return streams
        streams = self._open_streams(longest)
        free_streams = [n for n in range(streams.n_streams) if n not in self._running]
        n_needed = 0
        for stream in free_streams:
            if not self._readings:
                break
            n_needed += max(1, self._count_further(self._readings[0]))
            is_full = n_needed > len(free_streams)
            if is_full and (self._unfinished or self._running):
                break
            self._begin(streams, stream, self._readings.popleft())
        return streams

    def _finish(self, stream: int, reading: _Reading) -> None:
        if stream in self._waiting:
            self._lengths[stream] = len(reading.token_ids)
        elif self._opened_streams is not None:
            self._opened_streams.cut(stream, 0)

    def _find_length(self, reading: _Reading) -> int:
        """Return the tokens that the longest continuation of a text's prompts may have."""
        longest = max(
            len(request.context_ids or ()) + request.max_tokens
            for request in reading.requests
        )
        return min(longest, self._context)

    def _count_further(self, reading: _Reading) -> int:
        """Count the continuations that go on after their first token."""
        return sum(each.n for each in reading.requests if each.max_tokens > 1)

    def _take_logits(
        self,
        stream: int,
        reading: _Reading,
        places: list[int],
        logits: NDArray[np.float32],
    ) -> None:
        for place, row in zip(places, logits, strict=True):
            for request in reading.wanted[place]:
                for number in range(request.n):
                    sequence = self._build_sequence(request, number)
                    if not self._advance(sequence, row):
                        self._waiting.setdefault(stream, []).append(sequence)

    def _build_sequence(self, request: Request, number: int) -> _Sequence:
        seed = None if request.greedy else request.seed + number
        n_prompt = len(request.context_ids or ())
        return _Sequence(
            request=request,
            number=number,
            max_tokens=min(request.max_tokens, self._context - n_prompt),
            sampler=SeededSampler(self._spec.decoding, [seed], _CPU, [request.nudge]),
            loop=registry.build_loop_detector(request),
            n_prompt=n_prompt,
        )

    @torch.inference_mode()
    def _advance(self, sequence: _Sequence, logits: NDArray[np.float32]) -> bool:
        """Draw a continuation's next token; True where it was the last."""
        row = torch.from_numpy(logits[None].copy())
        token = int(sequence.sampler.draw(row)[0])
        sequence.token_ids.append(token)
        self.tell(1)
        is_last = token in self._ends or len(sequence.token_ids) == sequence.max_tokens
        is_loop = sequence.loop is not None and sequence.loop.add(token)
        if not (is_last or is_loop):
            return False
        request = sequence.request
        continuation = registry.cut_at_end(
            sequence.token_ids,
            self._ends,
            sequence.max_tokens,
            registry.build_loop_detector(request),
        )
        outputs = self._outputs[request.request_id]
        outputs[sequence.number] = continuation
        if len(outputs) == request.n:
            del self._outputs[request.request_id]
            continuations = [outputs[number] for number in range(request.n)]
            answer = Answer(request_id=request.request_id, continuations=continuations)
            self._answers.append(answer)
        return True

    def _start_waiting(self, streams: Streams) -> None:
        """Give continuations a stream each: a copy of their prompt's, the last one that itself."""
        for source, sequences in [*self._waiting.items()]:
            taken = {*self._running, *self._waiting}
            free = [n for n in range(streams.n_streams) if n not in taken]
            while free and len(sequences) > 1:
                sequence = sequences.pop()
                stream = free.pop()
                streams.copy(source, stream)
                self._cut_to_prompt(streams, stream, sequence)
                self._running[stream] = sequence
            if len(sequences) == 1:
                del self._waiting[source], self._lengths[source]
                self._cut_to_prompt(streams, source, sequences[0])
                self._running[source] = sequences[0]

    def _cut_to_prompt(
        self, streams: Streams, stream: int, sequence: _Sequence
    ) -> None:
        if self._model.may_cut:
            streams.cut(stream, sequence.n_prompt)

    def _decode(self, streams: Streams) -> None:
        """Decode one token of each continuation that runs."""
        rows = Rows()
        running = [*self._running.items()]
        n_each = 1
        idle: list[int] = []
        if self._fills_up:
            n_carriers = min(_ROWS_TOGETHER, streams.n_streams)
            while n_carriers < len(running):
                n_carriers *= 2
            n_each = max(1, _ROWS_TOGETHER // n_carriers)
            others = [n for n in range(streams.n_streams) if n not in self._running]
            idle = others[: n_carriers - len(running)]
        unwanted = [False] * (n_each - 1)
        zeros = [0] * (n_each - 1)
        lengths: dict[int, int] = {}
        for stream, sequence in running:
            place = sequence.n_prompt + len(sequence.token_ids) - 1
            tokens = [sequence.token_ids[-1], *zeros]
            rows.add(stream, place, tokens, [True, *unwanted])
            lengths[stream] = place + 1
        for stream in idle:
            lengths[stream] = self._lengths.get(stream, 0)
            rows.add(stream, lengths[stream], [0, *zeros], [False, *unwanted])
        logits = self._read_rows(streams, rows)
        if self._fills_up:
            for stream, length in lengths.items():
                streams.cut(stream, length)
        for (stream, sequence), row in zip(running, logits, strict=True):
            if self._advance(sequence, row):
                del self._running[stream]
                streams.cut(stream, 0)
