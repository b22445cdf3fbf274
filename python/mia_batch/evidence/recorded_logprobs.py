"""Log-probabilities that another program computed: a file of one row a text, looked up by text."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path
from reprlib import repr as brief
from shutil import rmtree
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.corpus.documents import Fault, faulty_rows
from mia_batch.corpus.files import FORMATS, Reading, Source, find_files
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.evidence.request import Answer, Request
from mia_batch.evidence.token_texts import MINUS_INFINITY, join_tokens
from mia_batch.models.tokens import Tokenizer
from mia_batch.tables import system_errors

_LISTS: dict[str, tuple[tuple[str, ...], pl.DataType, str]] = {
    "tokens": (("tokens", "token_texts"), pl.String(), "strings"),
    "token_ids": (("token_ids", "input_ids"), pl.Int64(), "whole numbers"),
    "logprob": (("logprob", "logprobs", "token_logprobs"), pl.Float64(), "numbers"),
    "vocabulary_mean": (("vocabulary_mean", "mean"), pl.Float64(), "numbers"),
    "vocabulary_variance": (
        ("vocabulary_variance", "variance"),
        pl.Float64(),
        "numbers",
    ),
    "rank": (("rank", "ranks"), pl.Int64(), "whole numbers"),
    "top_logprob": (("top_logprob", "top"), pl.Float64(), "numbers"),
}
"""Columns of lists, one entry a token: their names, and what they hold."""
_OTHERS: dict[str, tuple[pl.DataType, str]] = {
    "text": (pl.String(), "strings"),
    "target_id": (pl.String(), "strings"),
    "model": (pl.String(), "strings"),
    "bos": (pl.Boolean(), "booleans"),
}
"""Further columns that are read where they are there."""

_STORED: dict[str, type[np.generic]] = {
    "logprob": np.float32,
    "vocabulary_mean": np.float32,
    "vocabulary_variance": np.float32,
    "top_logprob": np.float32,
    "rank": np.uint32,
    "token_ids": np.uint32,
}
"""Columns that attacks read, as they are stored while a run reads them."""

_MOST_ABOVE_ZERO = 1e-3
"""By which rounding may lift a log-probability above 0, nats."""
_MOST_DIFFERENCE = 0.01
"""Between two rows of one text that count as the same, nats."""
_SHOWN_CHARACTERS = 40
TEXT_VIEW = "text"
"""The view whose texts the targets themselves are."""
_AT_ONCE = 256
"""Texts that are looked up together."""
NO_ROW = "the file of log-probabilities has no row of this text"
_START = re.compile(r"<[^\s<>]{1,64}>|\[[A-Z]{1,16}\]|")
"""What a start token is written as; some programs write it as an empty text."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """What a file held, and what was used of it."""

    rows: int = 0  # with log-probabilities
    matched: int = 0  # texts that were asked about and have a row
    missing: int = 0  # texts that were asked about and have none
    repeated: int = 0  # rows of a text that an earlier row gives already
    unused: int = 0  # rows of no text that was asked about


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobRecording:
    """A file of log-probabilities: Parquet or JSON Lines, a folder or a glob of them.

    ``names`` are the columns of the file by what they hold.
    """

    setting: str
    source: Source
    names: Mapping[str, str]
    schema: pl.Schema

    @classmethod
    def open(cls, location: str, setting: str) -> LogprobRecording:
        """Find the files and their columns; rows are checked once they are read."""
        source = find_files(location)
        source.refuse_unreadable()
        if source.kind not in ("columnar", "jsonl"):
            kind = source.files[0].path.suffix.lstrip(".")
            raise CorpusError(
                f"{location} is {kind}, which has no lists; give Parquet or JSON Lines"
            )
        raw = FORMATS[source.kind].read_schema(source.files, Reading())
        names: dict[str, str] = {}
        schema = dict(raw)
        for part, (aliases, item, kind) in _LISTS.items():
            name = next((alias for alias in aliases if alias in raw), None)
            if name is not None and raw[name] != pl.Null:
                _check_list(location, name, raw[name], item, kind)
                names[part] = name
                schema[name] = pl.List(item)
        for part, (dtype, kind) in _OTHERS.items():
            if raw.get(part, pl.Null) != pl.Null:
                if raw[part] != dtype:
                    raise CorpusError(
                        f"{location}: column {part!r} holds {raw[part]}; it must hold"
                        f" {kind}"
                    )
                names[part] = part
        recording = cls(
            setting=setting, source=source, names=names, schema=pl.Schema(schema)
        )
        recording._check_columns(raw)
        return recording

    def _check_columns(self, raw: pl.Schema) -> None:
        present = ", ".join(map(repr, raw)) or "none"
        if "logprob" not in self.names:
            raise CorpusError(
                f"{self.source.location} has no column 'logprobs' with lists of"
                f" log-probabilities; its columns are {present}"
            )
        if "tokens" not in self.names and "token_ids" not in self.names:
            raise CorpusError(
                f"{self.source.location} has no column 'tokens' or 'token_ids', so"
                " nobody can tell which text its log-probabilities are of; its columns"
                f" are {present}"
            )

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the logprobs table that it gives."""
        return frozenset(_STORED).intersection(self.names)

    @property
    def needs_tokenizer(self) -> bool:
        """Whether tokens are ids alone."""
        return "tokens" not in self.names

    def describe(self) -> Iterator[tuple[str, str]]:
        """Iterate over the label and the text of each line of a summary."""
        yield self.setting, f"{self.source.location}, with {self._list_columns()}"

    def _list_columns(self) -> str:
        return ", ".join(name for part, name in self.names.items() if part in _STORED)

    @contextmanager
    def opened(
        self, folder: Path, tokenizer: Tokenizer | None
    ) -> Iterator[LogprobSource]:
        """Check all rows, and open what answers from them; ``folder`` is there meanwhile."""
        if self.needs_tokenizer and tokenizer is None:
            raise SettingsError(
                f"{self.setting}: {self.source.location} has token ids without their"
                " texts; give tokenizer= with the model's tokenizer, or a column"
                " 'tokens'"
            )
        with system_errors(folder):
            if folder.exists():
                rmtree(folder)
            folder.mkdir(parents=True)
        try:
            yield _Storing(self, folder, tokenizer).store()
        finally:
            rmtree(folder)

    def find_place(self, row: int) -> str:
        """Return where a row is, as a user counts."""
        places = FORMATS[self.source.kind].places(self.source.files, Reading())
        return next(islice(places, row, None))

    def list_texts(self, row: int) -> list[str]:
        """Return the texts that the tokens of a row can be, as far as they are texts."""
        n_before = 0
        for frame in self.read_frames():
            if row < n_before + frame.height:
                values = frame.row(row - n_before, named=True)
                return join_tokens(list(map(str, values.get("tokens", ()))))
            n_before += frame.height
        raise IndexError(row)

    def use_own_names(self, sentence: str) -> str:
        """Name a column in a sentence as the file does."""
        for part, name in self.names.items():
            if sentence.startswith(f"column {part!r}"):
                return sentence.replace(repr(part), repr(name), 1)
        return sentence

    def read_frames(self) -> Iterator[pl.DataFrame]:
        """Iterate over the rows, with columns named by what they hold."""
        names = list(self.names.values())
        parts = {name: part for part, name in self.names.items()}
        frames = FORMATS[self.source.kind].read_rows(
            self.source.files, self.schema, names, Reading()
        )
        for frame in frames:
            yield frame.rename(parts)


def _check_list(
    location: str, name: str, dtype: pl.DataType, item: pl.DataType, kind: str
) -> None:
    inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else None
    is_right = inner is not None and (
        inner == item
        or (item.is_numeric() and (inner.is_numeric() or inner == pl.Null))
    )
    # JSON's nested values have their type only once they are read
    if not is_right and dtype != pl.Object:
        raise CorpusError(
            f"{location}: column {name!r} holds {dtype}; it must hold a list of {kind}"
            " in each row"
        )


# Reading: every row is checked before the first text is asked about.


def _list_faults(names: Mapping[str, str]) -> Iterator[Fault]:
    """Iterate over the rules of a row, each with the end of its refusal."""
    lists = [part for part in _LISTS if part in names]
    n_tokens = pl.col("logprob").list.len()
    for part in lists:
        yield Fault(
            pl.col(part).list.len().ne_missing(n_tokens),
            part,
            ": as many entries are needed as there are log-probabilities; give one for"
            " each token, null where nothing precedes it",
        )
    after_first = pl.element().slice(1)
    for part in lists:
        if part in ("tokens", "token_ids"):
            is_wrong = pl.col(part).list.eval(pl.element().is_null().any())
        else:
            is_wrong = pl.col(part).list.eval(after_first.is_null().any())
        yield Fault(
            is_wrong.list.first(), part, ": only the first token may have no number"
        )
    yield _bad_number(
        "logprob",
        (pl.element() > _MOST_ABOVE_ZERO)
        | (pl.element() <= MINUS_INFINITY)
        | ~pl.element().is_finite(),
        "not natural log-probabilities of tokens, which are finite and at most 0",
    )
    rules = {
        "token_ids": (
            (pl.element() < 0) | (pl.element() >= 2**32),
            "not token ids, which are at least 0",
        ),
        "rank": (
            (pl.element() < 1) | (pl.element() >= 2**32),
            "not ranks, which count from 1",
        ),
        "vocabulary_mean": (
            (pl.element() > _MOST_ABOVE_ZERO) | ~pl.element().is_finite(),
            "not means of log-probabilities, which are finite and at most 0",
        ),
        "vocabulary_variance": (
            (pl.element() < 0) | ~pl.element().is_finite(),
            "not variances, which are finite and at least 0",
        ),
    }
    for part, (is_wrong, rest) in rules.items():
        if part in names:
            yield _bad_number(part, is_wrong, rest)
    if "top_logprob" in names:
        advantage = (pl.col("top_logprob") - pl.col("logprob")).list.min()
        yield Fault(
            advantage < -_MOST_ABOVE_ZERO,
            "top_logprob",
            ", in which a token is likelier than the likeliest one",
        )


def _bad_number(part: str, is_wrong: pl.Expr, rest: str) -> Fault:
    return Fault(pl.col(part).list.eval(is_wrong.any()).list.first(), part, f", {rest}")


@dataclass(slots=True)
class _Index:
    """What is kept in memory of a file: where the numbers of each text are."""

    # Arrays of numbers: a list of as many would take four times the memory.

    lengths: array[int] = field(default_factory=lambda: array("Q"))  # of stored rows
    file_rows: array[int] = field(default_factory=lambda: array("Q"))
    # Of each text that a row may be of: its hash, the row, and whether the row's first
    # token is a start token
    hashes: array[int] = field(default_factory=lambda: array("Q"))
    rows: array[int] = field(default_factory=lambda: array("Q"))
    starts: array[int] = field(default_factory=lambda: array("B"))
    # Of each stored row, the hash of the target that it names, if it names one
    targets: array[int] = field(default_factory=lambda: array("Q"))


class _Storing:
    """Reads a file once: checks each row, and stores its numbers after those of earlier rows."""

    def __init__(
        self, recording: LogprobRecording, folder: Path, tokenizer: Tokenizer | None
    ) -> None:
        self._recording = recording
        self._folder = folder
        self._tokenizer = tokenizer
        self._first_row = 0  # of the frame that is read
        self._index = _Index()
        self._model: str | None = None

    def store(self) -> LogprobSource:
        """Read all rows, and return what answers from them."""
        paths = {part: self._folder / part for part in self._recording.columns}
        with system_errors(self._folder), ExitStack() as stack:
            files = {
                part: stack.enter_context(path.open("wb"))
                for part, path in paths.items()
            }
            for frame in self._recording.read_frames():
                self._check(frame)
                self._store_frame(frame, files)
                self._first_row += frame.height
        if not self._index.lengths:
            raise CorpusError(
                f"{self._recording.source.location} has no log-probabilities; give a"
                " file with those of one text at least"
            )
        return LogprobSource(self._recording, paths, self._index)

    def _refuse(self, position: int, sentence: str) -> CorpusError:
        place = self._recording.find_place(self._first_row + position)
        return CorpusError(f"{place}: {sentence}")

    def _check(self, frame: pl.DataFrame) -> None:
        """Refuse the first row of a frame that breaks a rule; rows without numbers are left out."""
        has_numbers = frame["logprob"].is_not_null()
        rows = frame.filter(has_numbers)
        positions = has_numbers.arg_true()
        faults = list(_list_faults(self._recording.names))
        for row, fault in faulty_rows(rows, faults):
            raise self._refuse(positions[row], self._recording.use_own_names(fault))
        if "model" not in frame.columns:
            return
        for position, model in zip(positions, rows["model"], strict=True):
            self._model = self._model or model
            if model != self._model:
                raise self._refuse(
                    position,
                    f"column 'model' is {model!r}, and {self._model!r} in rows before;"
                    " give a file for each model",
                )

    def _store_frame(self, frame: pl.DataFrame, files: Mapping[str, BinaryIO]) -> None:
        index = self._index
        has_numbers = frame["logprob"].list.len().fill_null(0) > 0
        rows = frame.filter(has_numbers)
        first_stored = len(index.lengths)
        texts: list[str] = []
        numbered = zip(has_numbers.arg_true(), rows.iter_rows(named=True), strict=True)
        for stored_row, (position, values) in enumerate(numbered, first_stored):
            for text, is_after_start in self._find_texts(position, values):
                texts.append(text)
                index.rows.append(stored_row)
                index.starts.append(is_after_start)
            index.lengths.append(len(values["logprob"]))
            index.file_rows.append(self._first_row + position)
        index.hashes.frombytes(_hash(texts).tobytes())
        if "target_id" in rows.columns:
            names = rows["target_id"].fill_null("").to_list()
            index.targets.frombytes(_hash(names).tobytes())
        for part, file in files.items():
            dtype = _STORED[part]
            unscored = np.nan if np.issubdtype(dtype, np.floating) else 0
            numbers = rows[part].explode().fill_null(unscored).to_numpy()
            file.write(numbers.astype(dtype).tobytes())

    def _find_texts(
        self, position: int, values: Mapping[str, Any]
    ) -> list[tuple[str, bool]]:
        """Return texts that a row may be of, and whether its first token only starts each.

        A row that has its ``text`` is of that one, or refused.
        """
        candidates = self._list_candidates(values)
        if not candidates:
            raise self._refuse(
                position,
                "its token ids are not those into which tokenizer= cuts their text;"
                " give the tokenizer of the model",
            )
        text = values.get("text")
        if text is None:
            return candidates
        matching = [candidate for candidate in candidates if candidate[0] == text]
        if not matching:
            joined_texts = [candidate[0] for candidate in candidates]
            raise self._refuse(position, describe_difference(joined_texts, text))
        return matching[:1]

    def _list_candidates(self, values: Mapping[str, Any]) -> list[tuple[str, bool]]:
        tokens: list[Any] = values.get("tokens", values.get("token_ids"))
        join: Callable[[list[Any]], list[str]] = join_tokens
        first = tokens[0]
        if "tokens" not in values and self._tokenizer is not None:
            join = self._tokenizer.join_ids
            first = self._tokenizer.token_text(first)
        # A start token has no number, because nothing precedes it; some write 0
        is_start = not values["logprob"][0] and _START.fullmatch(first) is not None
        if is_start and not first:
            return [(text, True) for text in join(tokens[1:])]
        candidates = [(text, False) for text in join(tokens)]
        if is_start:
            candidates += [(text, True) for text in join(tokens[1:])]
        return candidates


def _hash(texts: list[str]) -> NDArray[np.uint64]:
    return pl.Series(texts, dtype=pl.String).hash().to_numpy()


def describe_difference(joined_texts: list[str], text: str) -> str:
    """Return where the tokens of a row part from its text, as a sentence.

    Of the texts that the tokens can be, the one that goes furthest with it is shown.
    """
    lengths = [_count_equal(joined, text) for joined in joined_texts]
    n_equal = max(lengths)
    joined = joined_texts[lengths.index(n_equal)]
    end = n_equal + _SHOWN_CHARACTERS
    return (
        f"its tokens put together are not its text: from character {n_equal + 1} on"
        f" they are {joined[n_equal:end]!r}, and the text has {text[n_equal:end]!r};"
        " give all tokens of the text, as they are in it"
    )


def _count_equal(joined: str, text: str) -> int:
    """Count the characters that two texts begin with alike."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(joined, text, strict=False))
    return sum(1 for _ in pairs)


# Answering.


class _Entry(NamedTuple):
    """Where the numbers of a text are: the stored row, and whether its first token is left out."""

    row: int
    skips_first: bool


class LogprobSource:
    """Answers requests for log-probabilities of whole texts, from a file that was checked."""

    def __init__(
        self, recording: LogprobRecording, paths: Mapping[str, Path], index: _Index
    ) -> None:
        self._recording = recording
        self._numbers = {
            part: np.memmap(path, _STORED[part], mode="r")
            for part, path in paths.items()
        }
        lengths = np.frombuffer(index.lengths, np.uint64)
        self._ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._file_rows = np.frombuffer(index.file_rows, np.uint64)
        hashes = np.frombuffer(index.hashes, np.uint64)
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._rows = np.frombuffer(index.rows, np.uint64)[order]
        self._skips_first = np.frombuffer(index.starts, np.bool_)[order]
        targets = np.frombuffer(index.targets, np.uint64)
        self._order_of_targets = np.argsort(targets, kind="stable")
        self._targets = targets[self._order_of_targets]
        self._is_used = np.zeros(lengths.size, np.bool_)
        self._answers: list[Answer] = []
        self._counts = Counts(rows=lengths.size)

    @property
    def counts(self) -> Counts:
        """What the file held, and what was used of it by now."""
        n_unused = int(np.count_nonzero(~self._is_used))
        return replace(self._counts, unused=n_unused)

    def check_texts(self, frames: Iterable[pl.DataFrame]) -> None:
        """Refuse a file of other texts, or one that reads texts in two ways.

        Frames have ``target_id``, ``view`` and ``text`` of what will be asked about.
        """
        n_matched: dict[str, int] = {}  # by view
        first_texts: dict[str, str] = {}
        row_by_start: dict[bool, int] = {}
        for frame in frames:
            entries = self._find_entries(frame["text"].to_list())
            for entry, (target_id, view, text) in zip(
                entries, frame.iter_rows(), strict=True
            ):
                first_texts.setdefault(view, text)
                n_matched.setdefault(view, 0)
                if entry is not None:
                    n_matched[view] += 1
                    row_by_start.setdefault(self._is_after_start(entry), entry.row)
                elif view == TEXT_VIEW:
                    self._check_target(target_id, text)
        for view, n in n_matched.items():
            if not n:
                self._refuse_view(view, first_texts[view])
        if len(row_by_start) > 1:
            raise SettingsError(
                f"{self._find_place(row_by_start[True])}: the first token of the text"
                f" has a log-probability, and {self._find_place(row_by_start[False])}:"
                " it has none; have all texts read after a start token, or all without"
            )

    def _refuse_view(self, view: str, text: str) -> NoReturn:
        raise SettingsError(
            f"{self._recording.setting}= is of other texts: no row of"
            f" {self._recording.source.location} is of a text of view {view!r}, of which"
            f" the first is {brief(text)}; --texts-to FILE writes all texts that are to"
            " be read by the other program"
        )

    def _check_target(self, target_id: str, text: str) -> None:
        """Refuse a row that names a target and has other tokens than its text."""
        name = _hash([target_id])[0]
        place = np.searchsorted(self._targets, name)
        if place == self._targets.size or self._targets[place] != name:
            return
        file_row = int(self._file_rows[self._order_of_targets[place]])
        raise CorpusError(
            f"{self._recording.find_place(file_row)}:"
            f" {describe_difference(self._recording.list_texts(file_row), text)}"
        )

    def _find_place(self, row: int) -> str:
        return self._recording.find_place(int(self._file_rows[row]))

    def _find_entries(self, texts: list[str]) -> list[_Entry | None]:
        """Return where the numbers of each text are; None where the file has none."""
        hashes = _hash(texts)
        firsts = np.searchsorted(self._hashes, hashes, side="left").tolist()
        ends = np.searchsorted(self._hashes, hashes, side="right").tolist()
        entries: list[_Entry | None] = []
        for first, end in zip(firsts, ends, strict=True):
            entry = None
            if first < end:
                entry = self._get_entry(first)
            entries.append(entry)
            for place in range(first + 1, end):
                self._check_repeated(self._get_entry(first), self._get_entry(place))
        return entries

    def _get_entry(self, place: int) -> _Entry:
        return _Entry(int(self._rows[place]), bool(self._skips_first[place]))

    def _check_repeated(self, entry: _Entry, repeated: _Entry) -> None:
        """Refuse two rows that give one text other log-probabilities."""
        numbers = self._get("logprob", entry)
        repeated_numbers = self._get("logprob", repeated)
        is_equal = numbers.size == repeated_numbers.size and np.allclose(
            numbers, repeated_numbers, rtol=0, atol=_MOST_DIFFERENCE, equal_nan=True
        )
        if not is_equal:
            raise CorpusError(
                f"{self._find_place(entry.row)} and {self._find_place(repeated.row)}"
                " give one text two different series of log-probabilities; give one row"
                " for each text"
            )
        if not self._is_used[repeated.row]:
            self._is_used[repeated.row] = True
            self._counts.repeated += 1

    def _get(self, part: str, entry: _Entry) -> NDArray[np.generic]:
        start = self._ends[entry.row] + entry.skips_first
        return self._numbers[part][start : self._ends[entry.row + 1]]

    def _is_after_start(self, entry: _Entry) -> bool:
        """Return whether the first token has a number; some programs write 0 for none."""
        numbers = self._get("logprob", entry)
        return bool(numbers.size and numbers[0] < 0)

    # As an `AnswerSource`.

    def has_room(self, *, requests: int, samples: int) -> bool:
        """Return whether so few are in flight that more may be submitted."""
        return requests + samples < _AT_ONCE

    def submit(self, *requests: Request) -> None:
        entries = self._find_entries([request.text for request in requests])
        for request, entry in zip(requests, entries, strict=True):
            self._answers.append(self._answer(request, entry))

    def results(self, timeout: float | None = None) -> list[Answer]:  # noqa: ARG002 - nothing is waited for
        answers, self._answers = self._answers, []
        return answers

    def _answer(self, request: Request, entry: _Entry | None) -> Answer:
        if entry is None:
            self._counts.missing += 1
            return request.failed(NO_ROW, passes=0)
        self._counts.matched += 1
        self._is_used[entry.row] = True
        has_start = self._is_after_start(entry)
        tokens = {part: self._get(part, entry).copy() for part in self._numbers}
        if not has_start:
            for part, numbers in tokens.items():
                if part != "token_ids" and numbers.size:
                    numbers[0] = 0 if part == "rank" else np.nan
        if not np.isfinite(tokens["logprob"]).any():
            return request.failed("the text has no token that something precedes")
        np.minimum(tokens["logprob"], 0, out=tokens["logprob"])
        return Answer(
            request_id=request.request_id, tokens=tokens, bos=has_start, passes=0
        )
