"""Batch files: requests as lines of JSON, and their answers, which come in files in any order."""

from __future__ import annotations

import glob
import json
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from mia_batch.errors import EngineError, MiaBatchError, SettingsError
from mia_batch.evidence.endpoint import wire
from mia_batch.evidence.endpoint.journal import BatchRequest, Journal
from mia_batch.evidence.endpoint.transport import (
    RefusedError,
    choose_next_step,
    concerns_all,
)
from mia_batch.tables import (
    has_too_many_values,
    remove_unfinished,
    sync_folder,
    system_errors,
    temporary_path,
)

POSTPONED = "the request is left to a batch service"


class PostponedError(Exception):
    """A request is left to a batch service."""


class RequestsLeftError(MiaBatchError):
    """The run cannot go on before requests that are left to a batch service are answered."""


# What a line is called, so that its answer finds its place.

_ID = re.compile(r"mia-([0-9a-f]{32})-([0-9]{1,7})-([0-9]{1,7})-([0-9]{1,7})")


def build_custom_id(request: BatchRequest) -> str:
    """Name an attempt at a request: by the digest of all that decides its answer, and samples."""
    digest = request.request.hex()
    return f"mia-{digest}-{request.first}-{request.n}-{request.attempt}"


def parse_custom_id(custom_id: object) -> BatchRequest | None:
    match = _ID.fullmatch(custom_id) if isinstance(custom_id, str) else None
    if match is None:
        return None
    digest, first, n, attempt = match.groups()
    return BatchRequest(bytes.fromhex(digest), int(first), int(n), int(attempt))


# Lines out.

# What OpenAI takes, and others too: requests and bytes of a file
_MOST_REQUESTS = 50_000
_MOST_BYTES = 200_000_000
_REQUEST_FILES = re.compile(r"requests-[0-9]{4}\.jsonl")
_VERSION = "/v1"  # under which services name their addresses in files
_NOT_IN_FILES = ("stream", "stream_options")


def write_line(custom_id: str, path: str, payload: dict[str, object]) -> bytes:
    """Write a request as a line: no key, no header, and nothing that would stream."""
    body = {name: payload[name] for name in payload if name not in _NOT_IN_FILES}
    line = {
        "custom_id": custom_id,
        "method": "POST",
        "url": _VERSION + path,
        "body": body,
    }
    # In ASCII: some readers end lines at other marks of Unicode, too
    text = json.dumps(line, separators=(",", ":"), allow_nan=False)
    return f"{text}\n".encode()


class RequestFiles:
    """The files of requests in a folder, which replace those of before at the end, all at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._temporary: list[Path] = []
        self._stream: IO[bytes] | None = None
        self._n_requests = self._n_bytes = 0  # of the last file
        with system_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(folder)

    def refuse_others(self, is_of_run: Callable[[BatchRequest], bool]) -> None:
        """Refuse a folder with requests of another run, which would be removed."""
        for path in self._list():
            with system_errors(path), path.open("rb") as stream:
                line = wire.decode_object(stream.readline(_LONGEST_LINE)) or {}
            request = parse_custom_id(line.get("custom_id"))
            if request is None or not is_of_run(request):
                raise SettingsError(
                    f"requests_to= is {str(self._folder)!r}, and {path.name} in it is"
                    " not of this run; name another folder"
                )

    def write(self, line: bytes) -> None:
        is_full = (
            self._n_requests == _MOST_REQUESTS
            or self._n_bytes + len(line) > _MOST_BYTES
        )
        with system_errors(self._folder):
            if self._stream is None or is_full:
                self._end_file()
                path = temporary_path(self._name(len(self._temporary)))
                self._temporary.append(path)
                self._stream = path.open("wb")
            self._stream.write(line)
        self._n_requests += 1
        self._n_bytes += len(line)

    def finish(self) -> list[Path]:
        """Put the files in place, and remove those of before; return their paths."""
        older = self._list()
        paths = [self._name(number) for number in range(len(self._temporary))]
        with system_errors(self._folder):
            self._end_file()
            for path, temporary in zip(paths, self._temporary, strict=True):
                temporary.replace(path)
            for path in older:
                if path not in paths:
                    path.unlink()
            sync_folder(self._folder)
        self._temporary = []
        return paths

    def close(self) -> None:
        """Leave no file that is not finished."""
        with suppress(OSError):
            self._end_file()
        for path in self._temporary:
            with suppress(OSError):
                path.unlink()

    def _end_file(self) -> None:
        stream, self._stream = self._stream, None
        self._n_requests = self._n_bytes = 0
        if stream is not None:
            stream.close()

    def _name(self, number: int) -> Path:
        return self._folder / f"requests-{number + 1:04d}.jsonl"

    def _list(self) -> list[Path]:
        return [
            path
            for path in sorted(self._folder.glob("requests-*.jsonl"))
            if _REQUEST_FILES.fullmatch(path.name) and path.is_file()
        ]


# Lines in.

_LONGEST_LINE = 32 << 20  # bytes; no honest answer is as long
_CHUNK = 1 << 20
_MARK = b"\xef\xbb\xbf"  # that some editors put before a text


class Line(NamedTuple):
    """A line of a file, as it stands there; without ``content`` where that is too long."""

    number: int
    start: int
    content: bytes | None


def read_lines(path: Path) -> Iterator[Line]:
    """Iterate over the lines of a file that are not blank, in bounded memory."""
    with _reading(path), path.open("rb") as stream:
        start = 0
        contents = iter(partial(stream.readline, _LONGEST_LINE + 1), b"")
        for number, first_part in enumerate(contents, start=1):
            content = first_part
            n_bytes = len(content)
            is_too_long = n_bytes > _LONGEST_LINE
            while is_too_long and content and not content.endswith(b"\n"):
                content = stream.readline(_CHUNK)
                n_bytes += len(content)
            bare = content.removeprefix(_MARK)
            if is_too_long or bare.strip():
                yield Line(number, start, None if is_too_long else bare)
            start += n_bytes


class FileAnswer(NamedTuple):
    """What a line says: of which request, and how the service answered that."""

    custom_id: object
    status: int
    body: object

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def reply(self) -> wire.Reply:
        body = self.body if isinstance(self.body, str) else json.dumps(self.body)
        content = body.encode(errors="replace")
        return wire.Reply(status=self.status, headers={}, body=content)

    @property
    def digest(self) -> bytes:
        """Digest the choices, which two answers to one request may not have alike."""
        body = self.body
        choices = body.get("choices") if isinstance(body, dict) else body
        return blake2b(json.dumps(choices).encode(), digest_size=16).digest()


def parse_answer(content: bytes) -> FileAnswer | None:
    """Read a line of an answer; None if it is none."""
    document = None
    if not has_too_many_values(content):
        document = wire.decode_object(content)
    if document is None or not {"response", "error"} & document.keys():
        return None
    response: Any = document.get("response")
    error: Any = document.get("error")
    status, body = None, None
    if isinstance(response, dict):
        status = response.get("status_code")
        body = response.get("body", response if "choices" in response else None)
    if body is None:
        body = error if isinstance(error, dict) and "error" in error else None
        body = body or {"error": error or "the service gives no answer"}
    if type(status) is not int:
        # Without a status: what has choices is an answer, and else it may come yet
        status = 200 if isinstance(body, dict) and "choices" in body else 500
    return FileAnswer(document.get("custom_id"), status, body)


def find_answer_files(places: Iterable[str]) -> list[Path]:
    """Find the files of answers, each once; in a folder all of JSON Lines but its requests."""
    paths: dict[Path, Path] = {}
    for place in places:
        path = Path(place).expanduser()
        if path.is_dir():
            candidates = sorted(path.glob("*.jsonl"))
        elif path.exists():
            candidates = [path]
        else:
            matches = map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207 - Path.glob takes no absolute pattern
            candidates = [match for match in matches if match.is_file()]
        is_named = candidates == [path]
        files = [
            file
            for file in candidates
            if is_named or not _REQUEST_FILES.fullmatch(file.name)
        ]
        if not all(file.is_file() for file in files):
            raise SettingsError(f"answers_from= is {place!r}, which is no file")
        if not files:
            raise SettingsError(
                f"answers_from= is {place!r}, where there are no answers; give the file"
                " that the service gave back, or a folder of such .jsonl files"
            )
        paths |= {file.resolve(): file for file in files}
    return [*paths.values()]


_INDEX = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE answers (
    request BLOB, first INTEGER, n INTEGER, attempt INTEGER,
    file INTEGER, line INTEGER, start INTEGER,
    is_good INTEGER, digest BLOB, is_read INTEGER DEFAULT 0,
    PRIMARY KEY (request, first, n, attempt)
) WITHOUT ROWID;
"""
_OF_REQUEST = "WHERE request = ? AND first = ? AND n = ? AND attempt = ?"


_MOST_CAUSES = 3  # of failures that are said


def describe_count(n: int, noun: str) -> str:
    """Return the beginning of a sentence about ``n`` of something."""
    return f"1 {noun} is" if n == 1 else f"{n:,} {noun}s are"


@dataclass(slots=True)
class AnswerCounts:
    """What became of lines of answers."""

    accepted: int = 0
    earlier: int = 0  # taken by an earlier call
    twice: int = 0
    conflicting: int = 0  # of these, with another answer
    unusable: int = 0
    refused: int = 0
    unread: int = 0  # of requests that are not asked now
    set_aside: int = 0  # that are no lines of answers
    again: Counter[str] = field(default_factory=Counter)  # by what failed
    # The first place of each kind that has one
    places: dict[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """Iterate over sentences on what came, each with its first place."""
        if self.accepted:
            yield f"{describe_count(self.accepted, 'answer')} taken from files"
        if self.earlier:
            yield (
                f"{describe_count(self.earlier, 'line')} passed over, because an earlier"
                " call has taken the answers"
            )
        if self.twice:
            yield (
                f"{describe_count(self.twice, 'line')} passed over, because another"
                " answers the same request; the first answer counts, and"
                f" {self.conflicting:,} of them say something else"
                f"{self._first('twice')}"
            )
        if self.refused:
            yield f"{describe_count(self.refused, 'request')} refused{self._first('refused')}"
        if self.unusable:
            yield (
                f"{describe_count(self.unusable, 'answer')} less than was asked for; the"
                f" rest is asked again{self._first('unusable')}"
            )
        for sentence, n in self.again.most_common(_MOST_CAUSES):
            yield f"{describe_count(n, 'request')} asked again after a failure: {sentence}"
        if self.unread:
            yield (
                f"{describe_count(self.unread, 'answer')} to requests that the run does not"
                f" ask now{self._first('unread')}"
            )
        if self.set_aside:
            yield (
                f"{describe_count(self.set_aside, 'line')} set aside as no whole line of an"
                f" answer{self._first('set_aside')}"
            )

    def _first(self, kind: str) -> str:
        return f"; the first is {self.places[kind]}" if kind in self.places else ""


class AnswerFiles:
    """Answers in files, found by their requests; in memory is none of them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.counts = AnswerCounts()
        self._paths = paths
        # In a file of the system's, where there are many
        self._index = sqlite3.connect("", check_same_thread=False)
        self._index.executescript(_INDEX)

    def read(self, journal: Journal) -> None:
        """Look at every line; refuse a file with answers to what the run has not asked."""
        for number, path in enumerate(self._paths):
            n_lines = n_answers = 0
            for line in read_lines(path):
                n_lines += 1
                place = f"{path} line {line.number}"
                answer = parse_answer(line.content) if line.content else None
                if answer is None:
                    self._set_aside(line, place)
                    continue
                n_answers += 1
                request = _check_request(answer.custom_id, place, journal)
                self._add(request, answer, (number, line.number, line.start), place)
            if n_lines and not n_answers:
                raise SettingsError(
                    f"answers_from: {path} has no line of an answer; give the file that"
                    " the service gave back"
                )

    def _set_aside(self, line: Line, place: str) -> None:
        document = wire.decode_object(line.content) if line.content else None
        if document is not None and {"custom_id", "body"} <= document.keys():
            raise SettingsError(
                f"answers_from: {place} is a request and no answer; give the file that"
                " the service gave back"
            )
        self._count("set_aside", place)

    def _add(
        self,
        request: BatchRequest | None,
        answer: FileAnswer,
        position: tuple[int, int, int],
        place: str,
    ) -> None:
        """Note where an answer stands; one that is good takes the place of a failure."""
        if request is None:
            self.counts.earlier += 1
            return
        key = _list_key(request)
        indexed = self._index.execute(
            f"SELECT is_good, digest FROM answers {_OF_REQUEST}", key
        ).fetchone()
        if indexed is not None:
            self._count("twice", place)
            is_other = answer.is_good and (1, answer.digest) != indexed
            self.counts.conflicting += bool(indexed[0] and is_other)
            if indexed[0] or not answer.is_good:
                return
        values = (*key, *position, answer.is_good, answer.digest)
        self._index.execute(
            "REPLACE INTO answers (request, first, n, attempt, file, line, start,"
            " is_good, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        )

    def find(self, request: BatchRequest) -> FileAnswer | None:
        """Return what a file says of the attempt at a request that is open."""
        position = self._find_position(request)
        if position is None:
            return None
        file, line, start = position
        path = self._paths[file]
        key = _list_key(request)
        self._index.execute(f"UPDATE answers SET is_read = 1 {_OF_REQUEST}", key)
        with _reading(path), path.open("rb") as stream:
            stream.seek(start)
            content = stream.readline(_LONGEST_LINE + 1)
        answer = parse_answer(content.removeprefix(_MARK))
        if answer is None or answer.custom_id != build_custom_id(request):
            raise EngineError(
                f"{path} line {line} has changed while it was read; give the same"
                " command again"
            )
        return answer

    def _find_position(self, request: BatchRequest) -> tuple[int, int, int] | None:
        """Return file, line and first byte of the answer to a request."""
        query = f"SELECT file, line, start FROM answers {_OF_REQUEST}"
        position: tuple[int, int, int] | None
        position = self._index.execute(query, _list_key(request)).fetchone()
        return position

    def count(self, kind: str, request: BatchRequest) -> None:
        """Count the answer to a request as one of its kind."""
        position = self._find_position(request)
        if position is not None:
            self._count(kind, f"{self._paths[position[0]]} line {position[1]}")

    def count_unread(self) -> None:
        """Count the answers that nothing asked for."""
        unread = "FROM answers WHERE NOT is_read"
        query = f"SELECT count(*), min(file), min(line) {unread}"
        self.counts.unread, file, number = self._index.execute(query).fetchone()
        if self.counts.unread:
            self.counts.places["unread"] = f"{self._paths[file]} line {number}"

    def _count(self, kind: str, place: str) -> None:
        setattr(self.counts, kind, getattr(self.counts, kind) + 1)
        self.counts.places.setdefault(kind, place)

    def close(self) -> None:
        self._index.close()


def _list_key(request: BatchRequest) -> tuple[bytes, int, int, int]:
    return request.request, request.first, request.n, request.attempt


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"answers_from: {path} cannot be read: {error.strerror or error}; give"
            " files that can be"
        ) from error


def _check_request(
    custom_id: object, place: str, journal: Journal
) -> BatchRequest | None:
    """Return the request that a line answers, None where that is answered; refuse others."""
    request = parse_custom_id(custom_id)
    written = None
    if request is not None:
        written = journal.find_batch(request.request, request.first, request.n)
    if request is None or written is None or request.attempt > written.attempt:
        excerpt = wire.shorten(str(custom_id))
        way_out = "leave this file out"
        if not journal.has_batches():
            way_out = "give requests_to= first: the same settings write the same"
        raise SettingsError(
            f"answers_from: {place} answers {excerpt!r}, which this run has not asked"
            f" with these settings; {way_out}"
        )
    return request if request.attempt == written.attempt else None


_EARLIEST = 1_577_836_800  # 2020: a time before it is no time of an answer
_SECONDS_A_DAY = 86_400


def read_time(document: dict[str, Any]) -> str | None:
    """Read when a service made an answer; None where it does not say."""
    created: Any = document.get("created")
    if type(created) not in (int, float):
        return None
    seconds = float(created)
    if not _EARLIEST <= seconds <= time.time() + _SECONDS_A_DAY:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class BatchFiles:
    """What a run's requests are written to instead of being sent, and answered from."""

    # ``gathers``: further requests may follow before the run stops for the answers.

    def __init__(
        self,
        settings: wire.ClientSettings,
        requests_to: Path | None,
        answers_from: Sequence[str],
        journal_path: Path,
        *,
        forgets_refusals: bool = False,
    ) -> None:
        self.gathers = False
        self.n_left = 0
        self.n_beyond = 0  # of these, beyond the most that the run may cost
        self.most_tokens = wire.NO_TOKENS  # of those that were written
        self._settings = settings
        self._stack = ExitStack()
        with ExitStack() as stack, Journal(journal_path) as journal:
            self._spent = journal.spent()
            self._batch_spent = journal.spent(by_batch=True)
            self._answers = AnswerFiles(find_answer_files(answers_from))
            stack.enter_context(closing(self._answers))
            self._answers.read(journal)
            self._requests: RequestFiles | None = None
            if requests_to is not None:
                self._requests = RequestFiles(requests_to)
                stack.enter_context(closing(self._requests))
                self._requests.refuse_others(
                    lambda request: (
                        journal.find_batch(request.request, request.first, request.n)
                        is not None
                    )
                )
            if forgets_refusals:
                journal.forget_refusals()
            self._stack = stack.pop_all()

    @property
    def counts(self) -> AnswerCounts:
        return self._answers.counts

    def find(self, request: BatchRequest) -> wire.Reply | None:
        """Return what a file has for the attempt at a request that is open."""
        answer = self._answers.find(request)
        return None if answer is None else answer.reply

    def count_answer(self, request: BatchRequest, problem: str | None) -> None:
        """Count an answer, also one that is of no use or has less than was asked for."""
        self.counts.accepted += 1
        if problem is not None:
            self._answers.count("unusable", request)

    def read_failure(
        self, request: BatchRequest, reply: wire.Reply
    ) -> RefusedError | None:
        """Read why a request is refused; None where it is to be asked again."""
        refusal = wire.read_refusal(reply, self._settings)
        now = datetime.now(UTC)
        following = choose_next_step(reply.status, {}, refusal.codes, now, last=False)
        if following.step != "give_up" or concerns_all(reply.status):
            self.counts.again[refusal.sentence] += 1
            return None
        self._answers.count("refused", request)
        return RefusedError(reply.status, refusal.sentence, is_json=refusal.is_json)

    def write(self, request: BatchRequest, sent: wire.WireRequest, path: str) -> None:
        """Leave a request to a batch service."""
        self.n_left += 1
        if self._requests is None:
            return
        most_tokens = self.most_tokens.plus(sent.limit)
        in_batches = self._batch_spent.plus(most_tokens)
        cost = wire.money(self._settings, self._spent, in_batches)
        limit = self._settings.max_cost
        if limit is not None and cost is not None and cost > limit:
            self.n_beyond += 1
            return
        self.most_tokens = most_tokens
        line = write_line(build_custom_id(request), path, sent.payload)
        self._requests.write(line)

    def stop_if_left(self) -> None:
        """Stop the run where requests are left, unless further ones may follow."""
        if self.n_left and not self.gathers:
            raise RequestsLeftError

    def finish(self) -> list[Path]:
        """Put the files of requests in place; return their paths."""
        self._answers.count_unread()
        return self._requests.finish() if self._requests is not None else []

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
