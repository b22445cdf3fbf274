"""Targets: documents are cut into windows, each into prefix and reference, and named by hashes."""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import chain, count, pairwise
from operator import itemgetter
from pathlib import Path
from struct import pack
from threading import Lock
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias
from zlib import crc32

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.errors import SettingsError
from mia_batch.kernels import WordRule, word_spans
from mia_batch.schemas import CHAPTERS, Documents, Targets
from mia_batch.tables import RowIndex, check, generate, in_batches, read_numbers, scan

__all__ = ["Ordinals", "Windowing", "build_targets"]


@lru_cache(maxsize=16)
def choose_windows(
    n_windows: int, most: int, seed: int, identity: bytes
) -> frozenset[int]:
    """Choose ``most`` of the windows 0, ..., ``n_windows`` - 1 of the document of this identity.

    The points of van der Corput (1935) in [0, 1), turned by an amount that seed and
    identity decide, are taken in order, each for the window that it falls into. So
    every choice is spread evenly and within each larger one, and every window is as
    likely as any other.
    """
    if most >= n_windows:
        return frozenset(range(n_windows))
    key = f"{seed}:".encode() + identity
    turn = int.from_bytes(
        blake2b(key, digest_size=8, person=b"windows").digest(), "little"
    )
    chosen: set[int] = set()
    indices = count()
    while len(chosen) < most:
        point = (int(f"{next(indices):064b}"[::-1], 2) + turn) % (1 << 64)
        chosen.add(point * n_windows >> 64)
    return frozenset(chosen)


class _Counts:
    """How often each key came, in sorted runs."""

    # A run is merged with its neighbour before it outgrows it, so that n keys cost O(n
    # log n) time.

    def __init__(self, dtype: type[np.unsignedinteger[Any]]) -> None:
        self.runs: list[tuple[NDArray[np.uint64], NDArray[Any]]] = []
        self._dtype = dtype

    def of(self, unique: NDArray[np.uint64]) -> NDArray[np.int64]:
        found = np.zeros(unique.size, np.int64)
        for keys, counts in self.runs:
            places = np.minimum(np.searchsorted(keys, unique), keys.size - 1)
            found += np.where(keys[places] == unique, counts[places], 0)
        return found

    def add(self, unique: NDArray[np.uint64], counts: NDArray[Any]) -> None:
        if unique.size:
            self.runs.append((unique, counts.astype(self._dtype)))
        while len(self.runs) > 1 and self.runs[-2][0].size < 2 * self.runs[-1][0].size:
            keys, counts = (
                np.concatenate(each) for each in zip(*self.runs[-2:], strict=True)
            )
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
            first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
            summed = np.add.reduceat(counts[order], first, dtype=self._dtype)
            self.runs[-2:] = [(keys[first], summed)]


class Ordinals:
    """Numbers equal keys 0, 1, 2 ... in the order in which they come; a key costs 12 bytes."""

    def __init__(self) -> None:
        self._counts = _Counts(np.uint32)

    def number(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return for each key how many equal ones came before it, in this call or earlier ones."""
        unique, inverse, counts = np.unique(
            keys, return_inverse=True, return_counts=True
        )
        order = np.argsort(inverse, kind="stable")
        # First the rank among equals of this call
        numbers = np.empty(inverse.size, np.int64)
        numbers[order] = np.arange(inverse.size) - np.repeat(
            np.cumsum(counts) - counts, counts
        )
        numbers += self._counts.of(unique)[inverse]
        self._counts.add(unique, counts)
        return numbers


_RUN_WORDS = 8
_COPIED_SHARE = (
    0.7  # of a text's runs; Chowdhery et al. (2022), arXiv:2204.02311, section 8
)
_LEAST_RUNS = 4  # of fewer nothing is said
_MOST_KEPT = 1 << 24  # hashes of runs, 9 bytes each
_TEXTS_AT_ONCE = 1024
_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Passages:
    """Tells texts of which at least 70 % of the runs of 8 words were in earlier ones together."""

    # Words are what stands between punctuation and white space, in lower case. Runs of
    # small hash are compared, of half as small ones whenever more than 16 million are
    # kept.

    def __init__(self) -> None:
        self._kept = _Counts(np.uint8)
        self._largest = (1 << 64) - 1
        self._n_texts = 0

    def are_copies(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Return for each text whether it is one, of texts before it here or in earlier calls."""
        found = [np.empty(0, np.bool_)]
        while texts:
            # Fewer runs are kept from a text on that depends on no call.
            n_texts = _TEXTS_AT_ONCE - self._n_texts % _TEXTS_AT_ONCE
            found.append(self._compare(texts[:n_texts]))
            texts = texts[n_texts:]
            while self._n_texts % _TEXTS_AT_ONCE == 0 and self.n_kept > _MOST_KEPT:
                self._largest >>= 1
                most = np.uint64(self._largest)
                ends = (
                    np.searchsorted(keys, most, "right") for keys, _ in self._kept.runs
                )
                runs = zip(self._kept.runs, ends, strict=True)
                self._kept.runs = [
                    (keys[:end], ones[:end]) for (keys, ones), end in runs if end
                ]
        return np.concatenate(found)

    @property
    def n_kept(self) -> int:
        return sum(keys.size for keys, _ in self._kept.runs)

    def _compare(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        self._n_texts += len(texts)
        texts_of, hashes = _runs(texts)
        is_small = hashes <= np.uint64(self._largest)
        texts_of, hashes = texts_of[is_small], hashes[is_small]
        unique, first, inverse = np.unique(
            hashes, return_index=True, return_inverse=True
        )
        is_known = self._kept.of(unique) > 0
        new = unique[~is_known]
        self._kept.add(new, np.ones(new.size))
        seen = is_known[inverse] | (texts_of[first][inverse] < texts_of)
        n_runs = np.bincount(texts_of, minlength=len(texts))
        n_seen = np.bincount(texts_of[seen], minlength=len(texts))
        return (n_runs >= _LEAST_RUNS) & (n_seen >= _COPIED_SHARE * n_runs)


def _runs(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return for each run of words which text it is of, and a hash, the same on every machine."""
    words = [
        [crc32(word.encode()) for word in _WORD.findall(text.lower())] for text in texts
    ]
    text_of = np.repeat(np.arange(len(words)), [len(each) for each in words])
    numbers = np.array([*chain.from_iterable(words)], np.uint64)
    n_runs = max(numbers.size - _RUN_WORDS + 1, 0)
    hashes = np.zeros(n_runs, np.uint64)
    for place in range(_RUN_WORDS):
        hashes = hashes * _FACTOR + numbers[place : place + n_runs]
    for shift in (30, 27, 31):  # so that small hashes are a random choice
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * _FACTOR
    hashes ^= hashes >> np.uint64(32)
    first, last = text_of[:n_runs], text_of[numbers.size - n_runs :]
    return first[first == last], hashes[first == last]


Preset = Literal["default", "matched", "samia", "min-k", "spv"]
MayCut: TypeAlias = Callable[[str], Callable[[int], bool]]

MOST_MOVED = 16  # words that a cut moves to a place where a prompt may end

_COUNTS = (
    "window_words",
    "window_characters",
    "stride",
    "max_windows_per_document",
    "text_length",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowing:
    """How documents are cut into targets.

    Attributes
    ----------
    prefix_ratio
        Share of the words that the prefix gets, between 0 and 1: ``int(n_words *
        prefix_ratio)``.
    words
        What a word is: a word rule of `mia_batch.kernels`. The preset ``samia`` counts
        and cuts by ``whitespace`` whatever stands here.
    window_words
        Words of a window; None = the whole document is one target.
    window_characters
        The same in characters: as many whole words as it has room for.
    stride
        Words or characters from the start of a window to the start of the next; None =
        a window's.
    max_windows_per_document
        Most windows of a document that are targets: an evenly spread choice, which a
        larger number adds to; None = all.
    seed
        Decides the choice, together with the document and nothing else.
    preset
        ``default`` cuts so that prefix and reference join to the target; ``samia`` cuts
        as the authors' code does.
    text_length
        Nominal number of words of a text, for ``samia`` only; None = each text's own.
    may_cut
        Given a text, says of each place in it, in characters, whether a prompt may end
        there; None = anywhere. Preset ``samia`` does not ask.

    Raises
    ------
    SettingsError
        If a value is out of range or two contradict each other.
    """

    prefix_ratio: float = 0.5
    words: WordRule = "whitespace"
    window_words: int | None = None
    window_characters: int | None = None
    stride: int | None = None
    max_windows_per_document: int | None = None
    seed: int = 0
    preset: Preset = "default"
    text_length: int | None = None
    may_cut: MayCut | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if (fault := next(self._faults(), None)) is not None:
            raise SettingsError(fault)

    @property
    def window(self) -> int | None:
        """Words or characters of a window."""
        return (
            self.window_characters if self.window_words is None else self.window_words
        )

    def _faults(self) -> Iterator[str]:
        words, characters, length = (
            self.window_words,
            self.window_characters,
            self.text_length,
        )
        if not 0 < self.prefix_ratio < 1:
            yield f"prefix_ratio is {self.prefix_ratio}; it must lie between 0 and 1"
        given = {
            name: value
            for name in _COUNTS
            if (value := getattr(self, name)) is not None
        }
        for name, value in given.items():
            if value < 1:
                yield f"{name} is {value}; it must be at least 1"
        for name in ("stride", "max_windows_per_document"):
            if name in given and self.window is None:
                yield (
                    f"{name} is {given[name]} without window_words; set"
                    " window_words too"
                )
        if words is not None and characters is not None:
            yield (
                f"window_words is {words} and window_characters is {characters}; "
                "leave out one of them"
            )
        if words is not None and not 0 < int(words * self.prefix_ratio) < words:
            yield (
                f"window_words is {words}, too few to split with prefix_ratio "
                f"{self.prefix_ratio}; make windows longer"
            )
        if length is not None and self.preset != "samia":
            yield f"text_length is {length} without preset samia; leave it out"
        if length is not None and words not in (None, length):
            yield (
                f"text_length is {length} but window_words is {words}; make them equal"
            )
        if length is not None and characters is not None:
            yield (
                "text_length is in words; set window_words instead of window_characters"
            )


# Why a target cannot be sampled.

NULL_TEXT: Final = "the text is null"
EMPTY_TEXT: Final = "the text has no words"
TOO_SHORT: Final = (
    "the text has too few words to split: its prefix or its reference would have none"
)
WORDLESS_PART: Final = "the given prefix or reference has no word"
NO_REFERENCE: Final = (
    "the text is shorter than the cut of the samia preset: nothing is left to compare"
)
COPY: Final = "the same passage as in earlier windows"


class Split(NamedTuple):
    """A target with its prefix and reference, or with the reason why it has none."""

    target: str | None
    prefix: str | None = None
    reference: str | None = None
    n_words: int | None = None
    reason: str | None = None
    start: int | None = 0
    n_windows: int = 1


class Words(NamedTuple):
    """The words of one text: their first characters, and those after their last ones."""

    starts: NDArray[np.uint32]
    ends: NDArray[np.uint32]

    def part(self, words: range) -> Self:
        """Return some consecutive words, at least one, of the text that begins with the first."""
        starts = self.starts[words.start : words.stop]
        return type(self)(
            starts - starts[0], self.ends[words.start : words.stop] - starts[0]
        )


def split_at_word(
    target: str, words: Words, ratio: float, may_cut: MayCut | None = None
) -> Split:
    """Split after the first ``int(n_words * ratio)`` words; both parts join to the target.

    Where no prompt may end there, the nearest of 16 words to both sides that may be
    one's last is.
    """
    # What stands between the last word of the prefix and the next one belongs to the
    # reference.
    n_words = len(words.ends)
    n_prefix = int(n_words * ratio)
    if not 0 < n_prefix < n_words:
        return Split(
            target, n_words=n_words, reason=TOO_SHORT if n_words else EMPTY_TEXT
        )
    cut = int(words.ends[n_prefix - 1])
    if may_cut is not None:
        cut = _nearest(words, n_prefix, may_cut(target)) or cut
    return Split(target, target[:cut], target[cut:], n_words)


def _nearest(
    words: Words, n_prefix: int, is_allowed: Callable[[int], bool]
) -> int | None:
    """Find the allowed end of a word that is nearest to that of the prefix; None without one."""
    most = len(words.ends) - 1  # the reference has a word
    near = range(max(1, n_prefix - MOST_MOVED), min(most, n_prefix + MOST_MOVED) + 1)
    ends = (
        int(words.ends[n - 1]) for n in sorted(near, key=lambda n: abs(n - n_prefix))
    )
    return next((end for end in ends if is_allowed(end)), None)


def at_pauses(text: str) -> Callable[[int], bool]:
    """Let a prompt end where no letter or digit follows, for tokens that nobody knows.

    That is any end of a word between spaces; scripts without spaces are cut before a
    mark.
    """
    return lambda place: not text[place : place + 1].isalnum()


def split_samia(
    target: str, n_words: int, ratio: float, text_length: int | None
) -> Split:
    """Split as the authors of SaMIA do.

    The prefix is the first ``int(n_words * ratio)`` words of ``target.split()``, the
    reference the words of ``target.split(" ")`` that are not empty, less the first
    ``round(text_length * 0.5)``, whatever the ratio; both are joined by single spaces.
    Without ``text_length``, ``n_words`` takes its place. Source: Kaneko et al.,
    "Sampling-based pseudo-likelihood for membership inference attacks" (2024), and the
    authors' code, which differs from the paper in these rules.
    """
    n_prefix = int(n_words * ratio)
    prefix = " ".join(target.split(maxsplit=n_prefix)[:n_prefix])
    if not prefix:
        return Split(
            target, n_words=n_words, reason=TOO_SHORT if n_words else EMPTY_TEXT
        )
    n_cut = round((text_length or n_words) * 0.5)
    reference = " ".join([word for word in target.split(" ") if word][n_cut:])
    if not reference:
        return Split(target, n_words=n_words, reason=NO_REFERENCE)
    return Split(target, prefix, reference, n_words)


def split_as_given(prefix: str, reference: str, words: Words) -> Split:
    """Take the user's own parts as they are; ``words`` are those of ``prefix + reference``."""
    target, n_words, cut = prefix + reference, len(words.starts), len(prefix)
    if n_words == 0:
        return Split(target, n_words=0, reason=EMPTY_TEXT)
    if words.starts[0] >= cut or words.ends[-1] <= cut:
        return Split(target, n_words=n_words, reason=WORDLESS_PART)
    return Split(target, prefix, reference, n_words)


def find_words(texts: Sequence[str], rule: WordRule) -> Iterator[Words]:
    """Find the words of each text; texts have no surrogates and are some megabytes together."""
    column = pl.Series("text", texts, pl.String).to_frame()
    spans = column.select(word_spans("text", words=rule)).unnest("text")
    starts, ends = (
        spans[name].explode(empty_as_null=False).to_numpy() for name in spans.columns
    )
    bounds = np.concatenate(
        ([0], spans["starts"].list.len().to_numpy().cumsum(dtype=np.int64))
    )
    for first, last in pairwise(bounds.tolist()):
        yield Words(starts[first:last], ends[first:last])


def cut_documents(
    texts: Iterable[str | None],
    prefixes: Iterable[str | None],
    references: Iterable[str | None],
    plan: Windowing,
) -> Iterator[Iterator[Split]]:
    """Yield each document's targets, at least one; given prefix and reference are its only one."""
    rows = list(zip(texts, prefixes, references, strict=True))
    whole = [
        text or "" if prefix is None or reference is None else prefix + reference
        for text, prefix, reference in rows
    ]
    rule = "whitespace" if plan.preset == "samia" else plan.words
    for row, text, words in zip(rows, whole, find_words(whole, rule), strict=True):
        match row:
            case (_, str(prefix), str(reference)):
                yield iter([split_as_given(prefix, reference, words)])
            case (None, _, _):
                yield iter([Split(None, reason=NULL_TEXT, start=None)])
            case _:
                yield _cut(text, words, plan)


def _cut(text: str, words: Words, plan: Windowing) -> Iterator[Split]:
    """Yield the windows of a text, each split; a single one is the text to its ends."""
    n_words = len(words.starts)
    if plan.window_characters is None:
        cut = list(windows(n_words, plan.window_words, plan.stride))
    else:
        cut = list(character_windows(words, plan.window_characters, plan.stride))
    for window in cut:
        begin, target, inside = 0, text, words
        if len(window) < n_words:
            begin, end = (
                int(words.starts[window.start]),
                int(words.ends[window.stop - 1]),
            )
            target, inside = text[begin:end], words.part(window)
        if plan.preset == "samia":
            split = split_samia(
                target, len(inside.starts), plan.prefix_ratio, plan.text_length
            )
        else:
            split = split_at_word(target, inside, plan.prefix_ratio, plan.may_cut)
        yield split._replace(start=begin, n_windows=len(cut))


def windows(
    n_words: int, window_words: int | None, stride: int | None
) -> Iterator[range]:
    """Cut a document into full windows of words; a shorter one, or any with None, is one."""
    # They start every ``stride`` words (None: ``window_words``); words after the last
    # are left out.
    if window_words is None or n_words <= window_words:
        yield range(n_words)
        return
    for start in range(0, n_words - window_words + 1, stride or window_words):
        yield range(start, start + window_words)


def character_windows(words: Words, size: int, stride: int | None) -> Iterator[range]:
    """Cut a document into windows of whole words that have at most ``size`` characters."""
    # A document of at most that many, its outer whitespace left out, is one window. In
    # a longer one room for a window begins every ``stride`` characters (None: with the
    # next word) as long as it is full; the window is all words inside, or the first
    # alone where that is too long.
    starts, ends, n_words = words.starts, words.ends, len(words.starts)
    if not n_words or ends[-1] - starts[0] <= size:
        yield range(n_words)
        return
    begin, before = int(starts[0]), range(0)
    while begin <= min(starts[-1], ends[-1] - size):
        first = int(np.searchsorted(starts, begin))
        last = int(np.searchsorted(ends, begin + size, side="right"))
        window = range(first, max(last, first + 1))
        if window != before:
            yield window
            before = window
        if stride is None and window.stop == n_words:
            return
        begin = begin + stride if stride else int(starts[window.stop])


def text_digest(text: str | None) -> bytes:
    content, kind = (b"", b"null") if text is None else (text.encode(), b"text")
    return blake2b(content, digest_size=16, person=kind).digest()


def from_document_id(document_id: str) -> bytes:
    return b"document_id" + document_id.encode()


def from_text(digest: bytes, ordinal: int) -> bytes:
    return b"text" + digest + ordinal.to_bytes(8, "little")


def target_id(identity: bytes, window_index: int, target: str | None) -> str:
    """Return the name of a target, 32 hexadecimal digits."""
    # BLAKE2b of three little-endian unsigned 64-bit numbers (bytes of the identity,
    # window index, bytes of the text plus 1, or 0 for None), the identity and the text.
    # The lengths come first so that different parts never give the same bytes.
    content = b"" if target is None else target.encode()
    n_content = 0 if target is None else len(content) + 1
    head = pack("<QQQ", len(identity), window_index, n_content)
    return blake2b(head + identity + content, digest_size=16).hexdigest()


_PIECE_BYTES = 2 << 20  # of text at a time, in and out
_Row = tuple[int, int, str, Split]  # document, window_index, target_id


def build_targets(
    documents: pl.LazyFrame, plan: Windowing, *, role: str = "target"
) -> pl.LazyFrame:
    """Cut documents into targets.

    Parameters
    ----------
    documents
        A table of the schema `Documents`; further columns pass through.
    plan
        How to cut.
    role
        Why these texts are there, one of `Role`.

    Returns
    -------
    LazyFrame
        The columns of `Targets`, then the further ones, with the ``window_chapter`` in
        place of the ``chapters`` of a document; rows in the order of the documents,
        then of their windows. Every document has at least one row; what cannot be split
        has null for prefix and reference, and a reason. Windows of role ``target`` that
        repeat earlier ones (are equal to one, white space aside, or have at least 70 %
        of their runs of 8 words in them) have the role ``copy``, a reason and no text.
        It is built anew, in batches, each time it is collected.

    Raises
    ------
    SchemaMismatchError
        If ``documents`` is no documents table.
    SettingsError
        When collected, if windows are asked for and a document has its own prefix and
        reference, or some windows of a document that has neither identifier nor group.
    """
    check(documents, Documents, what="documents")
    types = documents.collect_schema()
    further = {
        name: types[name] for name in types if name not in Documents.column_names()
    }
    if further.get("chapters") == CHAPTERS:
        further["window_chapter"] = pl.String()
        del further["chapters"]
    schema = pl.Schema({**Targets.create_empty().schema, **further})
    most = plan.max_windows_per_document

    def is_chosen(identity: bytes, row: _Row) -> bool:
        n_windows = row[3].n_windows
        return most is None or row[1] in choose_windows(
            n_windows, most, plan.seed, identity
        )

    def frames(_names: list[str] | None) -> Iterator[pl.DataFrame]:
        ordinals, copies = Ordinals(), _Copies(plan)
        for batch in documents.collect_batches(maintain_order=True):
            _refuse(batch, plan)
            for piece in _pieces(batch):
                names = _identities(piece, ordinals)
                for rows in _rows(piece, names, plan):
                    if role == "target":
                        copies.mark(rows)
                    if chosen := [row for row in rows if is_chosen(names[row[0]], row)]:
                        yield _frame(chosen, piece, schema, role)

    return generate(schema, frames)


def _refuse(batch: pl.DataFrame, plan: Windowing) -> None:
    if plan.window is not None and batch["prefix"].is_not_null().any():
        raise SettingsError(
            "a window is set but the corpus has its own prefix and reference; "
            "leave out one or the other"
        )
    # Nothing would hold the windows of a nameless document together once some are
    # missing.
    nameless = pl.all_horizontal(pl.col("document_id", "group").is_null()).any()
    if plan.max_windows_per_document is not None and batch.select(nameless).item():
        raise SettingsError(
            "max_windows_per_document is set but a document has neither document_id nor"
            " group; give documents one of them"
        )


def _pieces(batch: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Cut a batch into slices of a few megabytes, or of one document."""
    sizes = pl.sum_horizontal(pl.col("text", "prefix", "reference").str.len_bytes())
    ends = batch.select(
        (sizes + 1).cast(pl.Int64).cum_sum() // _PIECE_BYTES
    ).to_series()
    start = 0
    for length in ends.rle().struct.field("len"):
        yield batch.slice(start, length)
        start += length


def _identities(piece: pl.DataFrame, ordinals: Ordinals) -> list[bytes]:
    """Return the identity of each document; those without an identifier are counted."""
    digests = [
        text_digest(text)
        for text in piece.filter(pl.col("document_id").is_null())["text"]
    ]
    keys = np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")
    anonymous = map(from_text, digests, ordinals.number(keys).tolist())
    return [
        next(anonymous) if document_id is None else from_document_id(document_id)
        for document_id in piece["document_id"]
    ]


def _rows(
    piece: pl.DataFrame, identities: list[bytes], plan: Windowing
) -> Iterator[list[_Row]]:
    """Return all windows of a piece, a few megabytes of text at a time."""
    cut = cut_documents(piece["text"], piece["prefix"], piece["reference"], plan)
    rows = (
        (
            document,
            window_index,
            target_id(identities[document], window_index, split.target),
            split,
        )
        for document, splits in enumerate(cut)
        for window_index, split in enumerate(splits)
    )
    return in_batches(rows, lambda row: len(row[3].target or ""), _PIECE_BYTES)


class _Copies:
    """Takes the text from windows that came before; a document that is one target is no window."""

    def __init__(self, plan: Windowing) -> None:
        self._equal = Ordinals()
        overlap = plan.stride is not None and plan.stride < (plan.window or 0)
        # Overlapping ones are alike as it is
        self._alike = None if overlap else Passages()

    def mark(self, rows: list[_Row]) -> None:
        """Put the reason in place of each text that is a copy."""
        windows = [place for place, row in enumerate(rows) if row[3].n_windows > 1]
        texts = [" ".join((rows[place][3].target or "").split()) for place in windows]
        keys = np.frombuffer(b"".join(text_digest(text)[:8] for text in texts), "<u8")
        is_copy = self._equal.number(keys) > 0
        if self._alike is not None:
            is_copy |= self._alike.are_copies(texts)
        for place in np.array(windows, np.int64)[is_copy].tolist():
            *named, split = rows[place]
            # Its place is left: what it says is asked elsewhere.
            copy = Split(
                None, reason=COPY, start=split.start, n_windows=split.n_windows
            )
            rows[place] = (*named, copy)


def _frame(
    rows: list[_Row], piece: pl.DataFrame, schema: pl.Schema, role: str
) -> pl.DataFrame:
    documents, window_indices, names, splits = zip(*rows, strict=True)
    ours = dict(zip(Split._fields, zip(*splits, strict=True), strict=True))
    ours |= {"target_id": names, "window_index": window_indices}
    built = pl.DataFrame(ours, schema_overrides=schema)
    kept = piece.drop("text", "prefix", "reference")[list(documents)]
    if "chapters" not in schema and "chapters" in piece.columns:
        chapters = piece["chapters"].to_list()
        named = [_chapter(chapters[row[0]], row[3]) for row in rows]
        kept = kept.with_columns(window_chapter=pl.Series(named, dtype=pl.String))
    is_copy = pl.col("reason").eq_missing(pl.lit(COPY))
    roles = (
        pl.when(is_copy)
        .then(pl.lit("copy"))
        .otherwise(pl.lit(role))
        .cast(schema["role"])
    )
    made = pl.concat([built, kept], how="horizontal")
    return made.with_columns(role=roles).select(schema.names())


def _chapter(chapters: Sequence[Mapping[str, Any]] | None, window: Split) -> str | None:
    """Name the chapter that the middle of a window is in."""
    middle = (window.start or 0) + len(window.target or "") // 2
    begun = bisect_right(chapters or [], middle, key=itemgetter("start"))
    return chapters[begun - 1]["heading"] if chapters and begun else None


# Windows of one document
_ROLE = pl.col("role").cast(pl.String).replace("copy", "target")
_LEVELS = {"group": "group", "document": "document_id"}


def cluster_name(columns: Collection[str]) -> pl.Expr:
    """Name the cluster of each text: its group, else its document, else the text itself."""
    # A document without an identifier is the texts from one ``window_index`` of 0 to
    # the next.
    text = pl.col("target_id") if "target_id" in columns else pl.int_range(pl.len())
    if "window_index" in columns:
        text = pl.coalesce(
            pl.when(pl.col("window_index") == 0).then(text).forward_fill(), text
        )
    named = [
        pl.format(f"{level} {{}}", name)
        for level, name in _LEVELS.items()
        if name in columns
    ]
    return pl.coalesce(*named, pl.format("target {}", text))


def cluster_names(table: pl.LazyFrame) -> pl.Expr:
    """Name the cluster of each text of a table, as `cluster_name` does."""
    columns = table.collect_schema().names()
    named = [pl.col(name).is_not_null() for name in _LEVELS.values() if name in columns]
    everywhere = pl.any_horizontal(named).all() if named else pl.lit(value=False)
    if table.select(everywhere).collect(engine="streaming").item():
        columns = [name for name in columns if name != "window_index"]
    return cluster_name(columns)


def document_numbers(targets: pl.LazyFrame) -> NDArray[np.int32]:
    """Tell the document of every row by its number, from 0 in the table's order."""
    # Texts of other roles are other documents, whatever their ``document_id``.
    keys = targets.select("role", "document_id", "window_index", "target_id")
    name = pl.format("{} {}", _ROLE, cluster_names(keys))
    size = int(keys.select(pl.len()).collect(engine="streaming").item())
    hashes = read_numbers(keys, name.hash(), size, np.uint64)
    begins = np.append(False, hashes[1:] != hashes[:-1])[:size]
    return begins.cumsum(dtype=np.int32)


def owner_of_targets() -> pl.Expr:
    """Name what a target belongs to, as `owner_of_documents` does of its document."""
    return owner_of_documents(
        _ROLE, (pl.col("window_index") == 0).cum_sum().over(_ROLE)
    )


def owner_of_documents(role: str | pl.Expr, place: str | pl.Expr = "place") -> pl.Expr:
    """Name what a document belongs to: its group, else itself, by its name or its place."""
    # Places are counted from 1 among the documents of a role.
    role = pl.lit(role) if isinstance(role, str) else role
    return pl.coalesce(
        pl.format("group {}", "group"),
        pl.format("{} document {}", role, "document_id"),
        pl.format("{} number {}", role, place),
    )


_ROWS_AT_ONCE = 8192  # a row group of the file
_PIECES_HELD = 2  # a part of a run may reach over the end of one


class TargetLookup:
    """Looks targets up by name; those of parts that follow each other are read once."""

    # Only where a target is not where it is looked for, the names of all are read, 12
    # bytes a target.

    def __init__(self, targets: Path, columns: list[str]) -> None:
        self._targets = scan(targets, Targets)
        self._columns = columns
        self._piece: Callable[[int], pl.DataFrame] = lru_cache(_PIECES_HELD)(self._read)
        self._reading = Lock()  # threads that follow each other need the same

    def of(self, names: pl.Series, places: Iterable[range]) -> pl.DataFrame:
        """Find targets, looking first at some rows of the table; several threads may ask."""
        named = names.rle().struct.field("value")
        found = self._rows(places)
        if named.is_in(found["target_id"].implode()).all():
            return found
        with self._reading:
            index = self._index
        rows = np.sort(index.find(named)[1])
        ends = np.flatnonzero(np.diff(rows // _ROWS_AT_ONCE)) + 1
        near = (part for part in np.split(rows, ends) if part.size)
        return self._rows(range(int(part[0]), int(part[-1]) + 1) for part in near)

    def _rows(self, places: Iterable[range]) -> pl.DataFrame:
        found = []
        for place in places:
            start = place.start
            while start < place.stop:
                piece, first = divmod(start, _ROWS_AT_ONCE)
                found.append(self._held(piece).slice(first, place.stop - start))
                start = (piece + 1) * _ROWS_AT_ONCE
        # In one chunk: of several, a join would copy every text.
        return pl.concat(found or [self._held(0).clear()], rechunk=True)

    def _held(self, piece: int) -> pl.DataFrame:
        with self._reading:
            return self._piece(piece)

    @cached_property
    def _index(self) -> RowIndex:
        return RowIndex(self._targets.select("target_id"))

    def _read(self, piece: int) -> pl.DataFrame:
        rows = self._targets.slice(piece * _ROWS_AT_ONCE, _ROWS_AT_ONCE)
        return rows.select(self._columns).collect()
