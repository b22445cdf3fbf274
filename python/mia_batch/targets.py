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

from mia_batch.corpus.conversations import CONVERSATION, find_question
from mia_batch.errors import SettingsError
from mia_batch.kernels import WordRule, word_spans
from mia_batch.schemas import CHAPTERS, Documents, Targets
from mia_batch.tables import RowIndex, check, generate, in_batches, read_numbers, scan

__all__ = ["Ordinals", "Windowing", "build_targets"]


Keys: TypeAlias = NDArray[np.uint64]


@lru_cache(maxsize=16)
def choose_windows(
    n_windows: int,
    n_chosen: int,
    seed: int,
    identity: bytes,
) -> frozenset[int]:
    """Choose some of the windows 0, ..., ``n_windows`` - 1 of the document of this identity.

    The points of van der Corput (1935) in [0, 1), turned by an amount that seed and
    identity decide, are taken in order, each for the window that it falls into. So
    every choice is spread evenly and within each larger one, and every window is as
    likely as any other.
    """
    if n_chosen >= n_windows:
        return frozenset(range(n_windows))
    key = f"{seed}:".encode() + identity
    digest = blake2b(key, digest_size=8, person=b"windows").digest()
    turn = int.from_bytes(digest, "little")
    windows: set[int] = set()
    indices = count()
    while len(windows) < n_chosen:
        reversed_bits = f"{next(indices):064b}"[::-1]
        point = (int(reversed_bits, 2) + turn) % (1 << 64)
        windows.add(point * n_windows >> 64)
    return frozenset(windows)


class _Counts:
    """How often each key came, in sorted runs."""

    # A run is merged with its neighbour before it outgrows it, so that n keys cost O(n
    # log n) time.

    def __init__(self, dtype: type[np.unsignedinteger[Any]]) -> None:
        self.runs: list[tuple[Keys, NDArray[Any]]] = []
        self._dtype = dtype

    def find(self, unique: Keys) -> NDArray[np.int64]:
        total = np.zeros(unique.size, np.int64)
        for keys, counts in self.runs:
            places = np.minimum(np.searchsorted(keys, unique), keys.size - 1)
            total += np.where(keys[places] == unique, counts[places], 0)
        return total

    def add(self, unique: Keys, counts: NDArray[Any]) -> None:
        if unique.size:
            self.runs.append((unique, counts.astype(self._dtype)))
        while len(self.runs) > 1:
            last_keys, last_counts = zip(*self.runs[-2:], strict=True)
            if last_keys[0].size >= 2 * last_keys[1].size:
                return
            keys = np.concatenate(last_keys)
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
            first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
            counts = np.concatenate(last_counts)[order]
            totals = np.add.reduceat(counts, first, dtype=self._dtype)
            self.runs[-2:] = [(keys[first], totals)]


class Ordinals:
    """Numbers equal keys 0, 1, 2 ... in the order in which they come; a key costs 12 bytes."""

    def __init__(self) -> None:
        self._counts = _Counts(np.uint32)

    def number(self, keys: Keys) -> NDArray[np.int64]:
        """Return how many equal keys came before each, in this call or earlier ones."""
        unique, inverse, counts = np.unique(
            keys, return_inverse=True, return_counts=True
        )
        order = np.argsort(inverse, kind="stable")
        first = np.cumsum(counts) - counts
        # First the rank among equals of this call
        numbers = np.empty(inverse.size, np.int64)
        numbers[order] = np.arange(inverse.size) - np.repeat(first, counts)
        numbers += self._counts.find(unique)[inverse]
        self._counts.add(unique, counts)
        return numbers


_RUN_WORDS = 8
# Of a text's runs; Chowdhery et al. (2022), arXiv:2204.02311, section 8
_COPIED_SHARE = 0.7
_LEAST_RUNS = 4  # of fewer nothing is said
_MOST_HASHES = 1 << 24  # of runs, 9 bytes each
_TEXTS_AT_ONCE = 1024
_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Passages:
    """Finds texts of which at least 70 % of the runs of 8 words were in earlier ones."""

    # Words are what stands between punctuation and white space, in lower case. Runs of
    # small hash are compared, of half as small ones whenever more than 16 million are
    # held.

    def __init__(self) -> None:
        self._counts = _Counts(np.uint8)
        self._largest = (1 << 64) - 1
        self._n_texts = 0

    def find_copies(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Return whether each text is a copy of texts before it, here or in earlier calls."""
        results = [np.empty(0, np.bool_)]
        while texts:
            # Fewer runs are held from a text on that depends on no call.
            n_texts = _TEXTS_AT_ONCE - self._n_texts % _TEXTS_AT_ONCE
            results.append(self._compare(texts[:n_texts]))
            texts = texts[n_texts:]
            if self._n_texts % _TEXTS_AT_ONCE == 0:
                while self.n_hashes > _MOST_HASHES:
                    self._drop_larger_half()
        return np.concatenate(results)

    @property
    def n_hashes(self) -> int:
        return sum(hashes.size for hashes, _ in self._counts.runs)

    def _drop_larger_half(self) -> None:
        self._largest >>= 1
        runs = []
        for hashes, counts in self._counts.runs:
            end = np.searchsorted(hashes, np.uint64(self._largest), "right")
            if end:
                runs.append((hashes[:end], counts[:end]))
        self._counts.runs = runs

    def _compare(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        self._n_texts += len(texts)
        text_numbers, hashes = _hash_runs(texts)
        is_small = hashes <= np.uint64(self._largest)
        text_numbers = text_numbers[is_small]
        unique, first, inverse = np.unique(
            hashes[is_small], return_index=True, return_inverse=True
        )
        came_earlier = self._counts.find(unique) > 0
        new = unique[~came_earlier]
        self._counts.add(new, np.ones(new.size))
        first_texts = text_numbers[first][inverse]
        is_repeated = came_earlier[inverse] | (first_texts < text_numbers)
        n_runs = np.bincount(text_numbers, minlength=len(texts))
        n_repeated = np.bincount(text_numbers[is_repeated], minlength=len(texts))
        return (n_runs >= _LEAST_RUNS) & (n_repeated >= _COPIED_SHARE * n_runs)


def _hash_runs(
    texts: Sequence[str],
) -> tuple[NDArray[np.int64], Keys]:
    """Return for each run of words its text's number, and a hash, the same everywhere."""
    words = [
        [crc32(word.encode()) for word in _WORD.findall(text.lower())] for text in texts
    ]
    n_words = [len(text_words) for text_words in words]
    text_numbers = np.repeat(np.arange(len(words)), n_words)
    word_hashes = np.array([*chain.from_iterable(words)], np.uint64)
    n_runs = max(word_hashes.size - _RUN_WORDS + 1, 0)
    hashes = np.zeros(n_runs, np.uint64)
    for place in range(_RUN_WORDS):
        hashes = hashes * _FACTOR + word_hashes[place : place + n_runs]
    for shift in (30, 27, 31):  # so that small hashes are a random choice
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * _FACTOR
    hashes ^= hashes >> np.uint64(32)
    first = text_numbers[:n_runs]
    last = text_numbers[word_hashes.size - n_runs :]
    is_within = first == last
    return first[is_within], hashes[is_within]


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
        fault = next(self._find_faults(), None)
        if fault is not None:
            raise SettingsError(fault)

    @property
    def window(self) -> int | None:
        """Words or characters of a window."""
        if self.window_words is None:
            return self.window_characters
        return self.window_words

    def _find_faults(self) -> Iterator[str]:
        words = self.window_words
        characters = self.window_characters
        length = self.text_length
        if not 0 < self.prefix_ratio < 1:
            yield f"prefix_ratio is {self.prefix_ratio}; it must lie between 0 and 1"
        counts = {name: getattr(self, name) for name in _COUNTS}
        for name, value in counts.items():
            if value is not None and value < 1:
                yield f"{name} is {value}; it must be at least 1"
        for name in ("stride", "max_windows_per_document"):
            if counts[name] is not None and self.window is None:
                yield (
                    f"{name} is {counts[name]} without window_words; set"
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
        if length is None:
            return
        if self.preset != "samia":
            yield f"text_length is {length} without preset samia; leave it out"
        if words not in (None, length):
            yield (
                f"text_length is {length} but window_words is {words}; make them equal"
            )
        if characters is not None:
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

    def select(self, words: range) -> Self:
        """Return some consecutive words, of the text that begins with the first of them."""
        starts = self.starts[words.start : words.stop]
        ends = self.ends[words.start : words.stop]
        return type(self)(starts - starts[0], ends - starts[0])


def split_at_word(
    target: str,
    words: Words,
    ratio: float,
    may_cut: MayCut | None = None,
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
    end = int(words.ends[n_prefix - 1])
    if may_cut is not None:
        end = _find_nearest_end(words, n_prefix, may_cut(target)) or end
    return Split(target, target[:end], target[end:], n_words)


def _find_nearest_end(
    words: Words,
    n_prefix: int,
    is_allowed: Callable[[int], bool],
) -> int | None:
    """Find the allowed end of a word that is nearest to the prefix's; None without one."""
    first = max(1, n_prefix - MOST_MOVED)
    last = min(len(words.ends) - 1, n_prefix + MOST_MOVED)  # the reference has a word
    for n_words in sorted(range(first, last + 1), key=lambda n: abs(n - n_prefix)):
        end = int(words.ends[n_words - 1])
        if is_allowed(end):
            return end
    return None


def find_pauses(text: str) -> Callable[[int], bool]:
    """Return a function that lets a prompt end where no letter or digit follows.

    It serves where nobody knows the tokens. Any end of a word between spaces is such a
    place; scripts without spaces are cut before a mark.
    """
    return lambda place: not text[place : place + 1].isalnum()


def split_samia(
    target: str,
    n_words: int,
    ratio: float,
    text_length: int | None,
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


def build_user_split(
    prefix: str,
    reference: str,
    words: Words,
) -> Split:
    """Return the user's own prefix and reference; ``words`` are those of both together."""
    target = prefix + reference
    n_words = len(words.starts)
    n_prefix = len(prefix)
    if n_words == 0:
        return Split(target, n_words=0, reason=EMPTY_TEXT)
    if words.starts[0] >= n_prefix or words.ends[-1] <= n_prefix:
        return Split(target, n_words=n_words, reason=WORDLESS_PART)
    return Split(target, prefix, reference, n_words)


def find_words(texts: Sequence[str], rule: WordRule) -> Iterator[Words]:
    """Find the words of each text; they have no surrogates and are some megabytes together."""
    column = pl.Series("text", texts, pl.String).to_frame()
    spans = column.select(word_spans("text", words=rule)).unnest("text")
    starts, ends = (
        spans[name].explode(empty_as_null=False).to_numpy() for name in spans.columns
    )
    n_words = spans["starts"].list.len().to_numpy()
    bounds = np.concatenate(([0], n_words.cumsum(dtype=np.int64)))
    for first, last in pairwise(bounds.tolist()):
        yield Words(starts[first:last], ends[first:last])


def cut_documents(
    texts: Iterable[str | None],
    prefixes: Iterable[str | None],
    references: Iterable[str | None],
    windowing: Windowing,
) -> Iterator[Iterator[Split]]:
    """Iterate over each document's targets: its own prefix and reference, or windows."""
    rows = list(zip(texts, prefixes, references, strict=True))
    whole_texts = [
        text or "" if prefix is None or reference is None else prefix + reference
        for text, prefix, reference in rows
    ]
    rule = "whitespace" if windowing.preset == "samia" else windowing.words
    words_of_texts = find_words(whole_texts, rule)
    for row, text, words in zip(rows, whole_texts, words_of_texts, strict=True):
        match row:
            case (_, str(prefix), str(reference)):
                yield iter([build_user_split(prefix, reference, words)])
            case (None, _, _):
                yield iter([Split(None, reason=NULL_TEXT, start=None)])
            case _:
                yield _split_windows(text, words, windowing)


def cut_answers(
    answers: Iterable[str | None],
    conversations: Iterable[str | None],
    rule: WordRule,
) -> Iterator[Iterator[Split]]:
    """Iterate over each answer of a conversation: all of it is asked for, after a question."""
    rows = list(zip(answers, conversations, strict=True))
    words_of_answers = find_words([answer or "" for answer, _ in rows], rule)
    for (answer, conversation), words in zip(rows, words_of_answers, strict=True):
        n_words = len(words.starts)
        if answer is None:
            split = Split(None, reason=NULL_TEXT, start=None)
        elif not n_words:
            split = Split(answer, n_words=0, reason=EMPTY_TEXT)
        else:
            question = "" if conversation is None else find_question(conversation)
            split = Split(answer, question, answer, n_words)
        yield iter([split])


def _split_windows(
    text: str,
    words: Words,
    windowing: Windowing,
) -> Iterator[Split]:
    """Iterate over the windows of a text, each split; a single one is the text to its ends."""
    n_words = len(words.starts)
    stride = windowing.stride
    if windowing.window_characters is None:
        windows = list(word_windows(n_words, windowing.window_words, stride))
    else:
        windows = list(character_windows(words, windowing.window_characters, stride))
    for window in windows:
        start = 0
        target = text
        window_words = words
        if len(window) < n_words:
            start = int(words.starts[window.start])
            target = text[start : int(words.ends[window.stop - 1])]
            window_words = words.select(window)
        if windowing.preset == "samia":
            split = split_samia(
                target,
                len(window_words.starts),
                windowing.prefix_ratio,
                windowing.text_length,
            )
        else:
            split = split_at_word(
                target, window_words, windowing.prefix_ratio, windowing.may_cut
            )
        yield split._replace(start=start, n_windows=len(windows))


def word_windows(
    n_words: int,
    window_words: int | None,
    stride: int | None,
) -> Iterator[range]:
    """Cut a document into full windows of words; a shorter one, or any with None, is one."""
    # They start every ``stride`` words (None: ``window_words``); words after the last
    # are left out.
    if window_words is None or n_words <= window_words:
        yield range(n_words)
        return
    for start in range(0, n_words - window_words + 1, stride or window_words):
        yield range(start, start + window_words)


def character_windows(
    words: Words,
    size: int,
    stride: int | None,
) -> Iterator[range]:
    """Cut a document into windows of whole words that have at most ``size`` characters."""
    # A document of at most that many, its outer whitespace left out, is one window. In
    # a longer one room for a window begins every ``stride`` characters (None: with the
    # next word) as long as it is full; the window is all words inside, or the first
    # alone where that is too long.
    starts = words.starts
    ends = words.ends
    n_words = len(starts)
    if not n_words or ends[-1] - starts[0] <= size:
        yield range(n_words)
        return
    begin = int(starts[0])
    previous = range(0)
    while begin <= min(starts[-1], ends[-1] - size):
        first = int(np.searchsorted(starts, begin))
        last = int(np.searchsorted(ends, begin + size, side="right"))
        window = range(first, max(last, first + 1))
        if window != previous:
            yield window
            previous = window
        if stride is None and window.stop == n_words:
            return
        begin = begin + stride if stride else int(starts[window.stop])


def compute_text_digest(text: str | None) -> bytes:
    if text is None:
        return blake2b(b"", digest_size=16, person=b"null").digest()
    return blake2b(text.encode(), digest_size=16, person=b"text").digest()


def build_document_identity(document_id: str) -> bytes:
    return b"document_id" + document_id.encode()


def build_text_identity(digest: bytes, ordinal: int) -> bytes:
    return b"text" + digest + ordinal.to_bytes(8, "little")


def compute_target_id(
    identity: bytes,
    window_index: int,
    target: str | None,
) -> str:
    """Return the name of a target, 32 hexadecimal digits."""
    # BLAKE2b of three little-endian unsigned 64-bit numbers (bytes of the identity,
    # window index, bytes of the text plus 1, or 0 for None), the identity and the text.
    # The lengths come first so that different parts never give the same bytes.
    content = b"" if target is None else target.encode()
    n_content = 0 if target is None else len(content) + 1
    head = pack("<QQQ", len(identity), window_index, n_content)
    return blake2b(head + identity + content, digest_size=16).hexdigest()


_PIECE_BYTES = 2 << 20  # of text at a time, in and out


class _Row(NamedTuple):
    """A target, before it is a row of a table."""

    document: int  # its number in the piece
    window_index: int
    target_id: str
    split: Split


def build_targets(
    documents: pl.LazyFrame,
    windowing: Windowing,
    *,
    role: str = "target",
) -> pl.LazyFrame:
    """Cut documents into targets.

    Parameters
    ----------
    documents
        A table of the schema `Documents`; further columns pass through.
    windowing
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
    check(documents, Documents, name="documents")
    types = documents.collect_schema()
    further = {
        name: types[name] for name in types if name not in Documents.column_names()
    }
    if further.get("chapters") == CHAPTERS:
        further["window_chapter"] = pl.String()
        del further["chapters"]
    schema = pl.Schema({**Targets.create_empty().schema, **further})

    def build_frames(_names: list[str] | None) -> Iterator[pl.DataFrame]:
        ordinals = Ordinals()
        copies = _Copies(windowing)
        for batch in documents.collect_batches(maintain_order=True):
            _refuse(batch, windowing)
            for piece in _cut_batch(batch):
                identities = _list_identities(piece, ordinals)
                for rows in _list_rows(piece, identities, windowing):
                    if role == "target":
                        copies.mark(rows)
                    chosen_rows = _choose_rows(rows, identities, windowing)
                    if chosen_rows:
                        yield _build_frame(chosen_rows, piece, schema, role)

    return generate(schema, build_frames)


def _choose_rows(
    rows: list[_Row], identities: list[bytes], windowing: Windowing
) -> list[_Row]:
    max_windows = windowing.max_windows_per_document
    if max_windows is None:
        return rows
    chosen_rows = []
    for row in rows:
        identity = identities[row.document]
        n_windows = row.split.n_windows
        windows = choose_windows(n_windows, max_windows, windowing.seed, identity)
        if row.window_index in windows:
            chosen_rows.append(row)
    return chosen_rows


def _refuse(batch: pl.DataFrame, windowing: Windowing) -> None:
    if windowing.window is not None and batch["prefix"].is_not_null().any():
        raise SettingsError(
            "a window is set but the corpus has its own prefix and reference; "
            "leave out one or the other"
        )
    if windowing.max_windows_per_document is None:
        return
    # Nothing would hold the windows of a nameless document together once some are
    # missing.
    is_nameless = pl.all_horizontal(pl.col("document_id", "group").is_null())
    if batch.select(is_nameless.any()).item():
        raise SettingsError(
            "max_windows_per_document is set but a document has neither document_id nor"
            " group; give documents one of them"
        )


def _cut_batch(batch: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Cut a batch into slices of a few megabytes, or of one document."""
    sizes = pl.sum_horizontal(pl.col("text", "prefix", "reference").str.len_bytes())
    ends = (sizes + 1).cast(pl.Int64).cum_sum()
    pieces = batch.select(ends // _PIECE_BYTES).to_series()
    start = 0
    for length in pieces.rle().struct.field("len"):
        yield batch.slice(start, length)
        start += length


def _list_identities(piece: pl.DataFrame, ordinals: Ordinals) -> list[bytes]:
    """Return the identity of each document; those without an identifier are counted."""
    anonymous = piece.filter(pl.col("document_id").is_null())
    digests = [compute_text_digest(text) for text in _list_named_texts(anonymous)]
    numbers = ordinals.number(_list_keys(digests)).tolist()
    identities = map(build_text_identity, digests, numbers)
    return [
        next(identities)
        if document_id is None
        else build_document_identity(document_id)
        for document_id in piece["document_id"]
    ]


def _list_named_texts(documents: pl.DataFrame) -> pl.Series:
    """Return what names a document: its text, of an answer with what came before it."""
    if CONVERSATION not in documents.columns:
        return documents["text"]
    whole = pl.concat_str(CONVERSATION, "text", separator="\n")
    return documents.select(pl.coalesce(whole, "text")).to_series()


def _list_keys(digests: Iterable[bytes]) -> Keys:
    return np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")


def _list_rows(
    piece: pl.DataFrame,
    identities: list[bytes],
    windowing: Windowing,
) -> Iterator[list[_Row]]:
    """Iterate over the windows of a piece, a few megabytes of text at a time."""

    def build_rows() -> Iterator[_Row]:
        documents = cut_documents(
            piece["text"], piece["prefix"], piece["reference"], windowing
        )
        if CONVERSATION in piece.columns:
            documents = cut_answers(piece["text"], piece[CONVERSATION], windowing.words)
        for document, splits in enumerate(documents):
            identity = identities[document]
            for index, split in enumerate(splits):
                name = compute_target_id(identity, index, split.target)
                yield _Row(document, index, name, split)

    return in_batches(
        build_rows(), lambda row: len(row.split.target or ""), _PIECE_BYTES
    )


class _Copies:
    """Takes the text from windows that came before; a document of one target has none."""

    def __init__(self, windowing: Windowing) -> None:
        self._equal = Ordinals()
        stride = windowing.stride
        overlap = stride is not None and stride < (windowing.window or 0)
        # Overlapping ones are alike as it is
        self._alike = None if overlap else Passages()

    def mark(self, rows: list[_Row]) -> None:
        """Put the reason in place of each text that is a copy."""
        windows = [place for place, row in enumerate(rows) if row.split.n_windows > 1]
        texts = [
            " ".join((rows[place].split.target or "").split()) for place in windows
        ]
        keys = _list_keys(compute_text_digest(text) for text in texts)
        is_copy = self._equal.number(keys) > 0
        if self._alike is not None:
            is_copy |= self._alike.find_copies(texts)
        for place in np.array(windows, np.int64)[is_copy].tolist():
            row = rows[place]
            # Its place is left: what it says is asked elsewhere.
            copy = Split(
                None,
                reason=COPY,
                start=row.split.start,
                n_windows=row.split.n_windows,
            )
            rows[place] = row._replace(split=copy)


def _build_frame(
    rows: list[_Row],
    piece: pl.DataFrame,
    schema: pl.Schema,
    role: str,
) -> pl.DataFrame:
    documents, window_indices, names, splits = zip(*rows, strict=True)
    columns = dict(zip(Split._fields, zip(*splits, strict=True), strict=True))
    columns |= {"target_id": names, "window_index": window_indices}
    targets = pl.DataFrame(columns, schema_overrides=schema)
    further = piece.drop("text", "prefix", "reference")[list(documents)]
    if "chapters" not in schema and "chapters" in piece.columns:
        chapters = piece["chapters"].to_list()
        headings = [_find_chapter(chapters[row.document], row.split) for row in rows]
        window_chapter = pl.Series(headings, dtype=pl.String)
        further = further.with_columns(window_chapter=window_chapter)
    is_copy = pl.col("reason").eq_missing(pl.lit(COPY))
    roles = pl.when(is_copy).then(pl.lit("copy")).otherwise(pl.lit(role))
    table = pl.concat([targets, further], how="horizontal")
    return table.with_columns(role=roles.cast(schema["role"])).select(schema.names())


def _find_chapter(
    chapters: Sequence[Mapping[str, Any]] | None, window: Split
) -> str | None:
    """Return the chapter that the middle of a window is in."""
    chapters = chapters or []
    middle = (window.start or 0) + len(window.target or "") // 2
    n_started = bisect_right(chapters, middle, key=itemgetter("start"))
    return chapters[n_started - 1]["heading"] if n_started else None


# Windows of one document
_ROLE = pl.col("role").cast(pl.String).replace("copy", "target")
_LEVELS = {"group": "group", "document": "document_id"}


def cluster_name(columns: Collection[str]) -> pl.Expr:
    """Return the cluster of each text: its group, else its document, else the text itself."""
    # A document without an identifier is the texts from one ``window_index`` of 0 to
    # the next.
    text = pl.col("target_id") if "target_id" in columns else pl.int_range(pl.len())
    if "window_index" in columns:
        first_text = pl.when(pl.col("window_index") == 0).then(text).forward_fill()
        text = pl.coalesce(first_text, text)
    names = [
        pl.format(f"{level} {{}}", name)
        for level, name in _LEVELS.items()
        if name in columns
    ]
    return pl.coalesce(*names, pl.format("target {}", text))


def cluster_names(table: pl.LazyFrame) -> pl.Expr:
    """Return the cluster of each text of a table, as `cluster_name` does."""
    columns = table.collect_schema().names()
    has_name = [
        pl.col(name).is_not_null() for name in _LEVELS.values() if name in columns
    ]
    all_named = pl.any_horizontal(has_name).all() if has_name else pl.lit(value=False)
    if table.select(all_named).collect(engine="streaming").item():
        columns = [name for name in columns if name != "window_index"]
    return cluster_name(columns)


def document_numbers(targets: pl.LazyFrame) -> NDArray[np.int32]:
    """Return the number of every row's document, from 0 in the table's order."""
    # Texts of other roles are other documents, whatever their ``document_id``.
    keys = targets.select("role", "document_id", "window_index", "target_id")
    name = pl.format("{} {}", _ROLE, cluster_names(keys))
    n_rows = keys.select(pl.len()).collect(engine="streaming").item()
    hashes = read_numbers(keys, name.hash(), n_rows, np.uint64)
    is_first = np.append(False, hashes[1:] != hashes[:-1])[:n_rows]
    return is_first.cumsum(dtype=np.int32)


def build_target_owner() -> pl.Expr:
    """Return what a target belongs to, as `build_document_owner` does of its document."""
    place = (pl.col("window_index") == 0).cum_sum().over(_ROLE)
    return build_document_owner(_ROLE, place)


def build_document_owner(
    role: str | pl.Expr, place: str | pl.Expr = "place"
) -> pl.Expr:
    """Return what a document belongs to: its group, else itself, by its name or its place."""
    # Places are counted from 1 among the documents of a role.
    role = pl.lit(role) if isinstance(role, str) else role
    return pl.coalesce(
        pl.format("group {}", "group"),
        pl.format("{} document {}", role, "document_id"),
        pl.format("{} number {}", role, place),
    )


_ROWS_AT_ONCE = 8192  # a row group of the file
_MOST_PIECES = 2  # that are held; a part of a run may reach over the end of one


class TargetLookup:
    """Looks targets up by name; those of parts that follow each other are read once."""

    # Only where a target is not where it is looked for, the names of all are read, 12
    # bytes a target.

    def __init__(self, targets: Path, columns: list[str]) -> None:
        self._targets = scan(targets, Targets)
        self._columns = columns
        self._piece: Callable[[int], pl.DataFrame] = lru_cache(_MOST_PIECES)(
            self._read_piece
        )
        self._reading = Lock()  # threads that follow each other need the same

    def find(self, names: pl.Series, places: Iterable[range]) -> pl.DataFrame:
        """Find targets, looking first at some rows of the table; several threads may ask."""
        wanted_names = names.rle().struct.field("value")
        nearby = self._read_rows(places)
        if wanted_names.is_in(nearby["target_id"].implode()).all():
            return nearby
        with self._reading:
            index = self._index
        rows = np.sort(index.find(wanted_names)[1])
        ends = np.flatnonzero(np.diff(rows // _ROWS_AT_ONCE)) + 1
        runs = [run.tolist() for run in np.split(rows, ends) if run.size]
        return self._read_rows(range(run[0], run[-1] + 1) for run in runs)

    def _read_rows(self, places: Iterable[range]) -> pl.DataFrame:
        frames = []
        for place in places:
            start = place.start
            while start < place.stop:
                piece, first = divmod(start, _ROWS_AT_ONCE)
                rows = self._get_piece(piece).slice(first, place.stop - start)
                frames.append(rows)
                start = (piece + 1) * _ROWS_AT_ONCE
        if not frames:
            frames = [self._get_piece(0).clear()]
        # In one chunk: of several, a join would copy every text.
        return pl.concat(frames, rechunk=True)

    def _get_piece(self, piece: int) -> pl.DataFrame:
        with self._reading:
            return self._piece(piece)

    @cached_property
    def _index(self) -> RowIndex:
        return RowIndex(self._targets.select("target_id"))

    def _read_piece(self, piece: int) -> pl.DataFrame:
        rows = self._targets.slice(piece * _ROWS_AT_ONCE, _ROWS_AT_ONCE)
        return rows.select(self._columns).collect()
