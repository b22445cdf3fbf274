"""Tokens of GGUF models, as llama.cpp cuts and joins them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path

from mia_batch.errors import EngineError, RequestError, SettingsError
from mia_batch.extras.llama_cpp.header import find_files, read_header
from mia_batch.extras.llama_cpp.library import Model
from mia_batch.models.chat import ChatTemplate

_SAMPLE = (
    "A b\n\n  caf\N{LATIN SMALL LETTER E WITH ACUTE}\N{EM DASH}\t\N{CJK RADICAL SUN}1"
)
"""A text that a tokenizer must give back."""


def load_codec(model: str, revision: str | None, setting: str) -> LlamaCppCodec:  # noqa: ARG001 - as of every form
    """Open the vocabulary of a GGUF model, without its weights."""
    (path, *_) = find_files(model)
    read_header(path)  # llama.cpp ends the process where it is broken
    try:
        codec = LlamaCppCodec(path)
    except EngineError as error:
        raise SettingsError(f"{setting}: {error}") from error
    try:
        codec.encode_spans(_SAMPLE)
    except RequestError as error:
        raise SettingsError(
            f"{setting}: the tokenizer of {str(path)!r} changes texts, so that tokens"
            " and text cannot be aligned; give a checkpoint of the model"
        ) from error
    return codec


class LlamaCppCodec:
    """llama.cpp's tokenizer of one model, as a `Codec`."""

    def __init__(self, path: Path, *, reads_marks: bool = False) -> None:
        self._path = path
        # Whether a special token that a text spells out is this token, not text
        self._reads_marks = reads_marks
        self._model = Model(path, with_weights=False)
        self.digest = read_header(path).tokenizer_digest
        self.start = self._model.start
        self.start_text = ""
        if self.start is not None:
            piece = self._model.piece(self.start, with_special=True)
            self.start_text = piece.decode(errors="replace")
        self.end = self._model.end
        self.size = self._model.n_tokens
        self.finds_spans = True
        # Whether a space is put before a text, as SentencePiece does
        bare_ids = self._model.tokenize("a", add_special_tokens=False)
        pieces = [self._model.piece(token) for token in bare_ids]
        self._adds_space = b"".join(pieces) == b" a"

    def __reduce__(self) -> tuple[Callable[..., LlamaCppCodec], tuple[Path]]:
        # Workers elsewhere open the file anew
        build = partial(LlamaCppCodec, reads_marks=self._reads_marks)
        return build, (self._path,)

    @property
    def chat_template(self) -> ChatTemplate | None:
        header = read_header(self._path)
        source = header.values.get("tokenizer.chat_template")
        if not isinstance(source, str):
            return None
        tokens = {"bos_token": self.start, "eos_token": self.end}
        return ChatTemplate(
            source=source,
            tokens={
                name: self._model.piece(token, with_special=True).decode()
                for name, token in tokens.items()
                if token is not None
            },
        )

    def reading_marks(self) -> LlamaCppCodec:
        return LlamaCppCodec(self._path, reads_marks=True)

    @cached_property
    def _pieces(self) -> list[bytes]:
        return [self._model.piece(token) for token in range(self.size)]

    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool
    ) -> list[list[int]]:
        return [
            self._model.tokenize(
                text,
                add_special_tokens=add_special_tokens,
                reads_marks=self._reads_marks,
            )
            for text in texts
        ]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return token ids, and where each begins and ends in a text, in characters.

        Raises `RequestError` if the tokens joined are not the text.
        """
        (ids,) = self.encode([text], add_special_tokens=False)
        pieces = [self._pieces[token] for token in ids]
        if self._reads_marks:
            pieces = [
                piece or self._model.piece(token, with_special=True)
                for token, piece in zip(ids, pieces, strict=True)
            ]
        encoded = text.encode()
        n_added = int(self._adds_space and bool(text))
        if b"".join(pieces) != b" " * n_added + encoded:
            raise RequestError("the model's tokenizer changes the text")
        ends = [max(0, end - n_added) for end in accumulate(map(len, pieces))]
        starts = [0, *ends][:-1]
        if len(encoded) == len(text):
            return ids, list(zip(starts, ends, strict=True))
        # A token that begins within a character begins with it, and ends after it
        character_starts = [
            *accumulate((len(sign.encode()) for sign in text), initial=0)
        ]
        character_of_byte: list[int] = []
        for character, start in enumerate(character_starts[:-1]):
            character_of_byte += [character] * (character_starts[character + 1] - start)
        character_of_byte.append(len(text))
        spans = []
        for start, end in zip(starts, ends, strict=True):
            last = (
                character_of_byte[end - 1] + 1
                if end > start
                else character_of_byte[start]
            )
            spans.append((character_of_byte[start], last))
        return ids, spans

    def decode(
        self, ids: list[list[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        texts = []
        for tokens in ids:
            pieces = [
                self._pieces[token]
                or self._model.piece(token, with_special=not skip_special_tokens)
                for token in tokens
            ]
            joined = b"".join(pieces)
            if self._adds_space:
                joined = joined.removeprefix(b" ")
            texts.append(joined.decode(errors="replace"))
        return texts

    def find_bytes(self) -> dict[int, bytes]:
        return {} if self._adds_space else dict(enumerate(self._pieces))
