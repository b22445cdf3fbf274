"""llama.cpp's functions by llama-cpp-python: models, streams of tokens, logits."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as library
from numpy.typing import NDArray

from mia_batch.errors import EngineError

VERSION: str = llama_cpp.__version__
_ERROR_LEVEL = 4  # of ggml's messages
_LONGEST_PIECE = 256  # bytes of a token; longer ones are asked for again


class _Log:
    """Keeps llama.cpp's errors, the first of which says most, and nothing else that it says."""

    def __init__(self) -> None:
        self._errors: list[str] = []

    def write(self, level: int, text: bytes, _user_data: object) -> None:
        if level == _ERROR_LEVEL:
            self._errors.append(text.decode(errors="replace").strip())

    def take_reason(self) -> str:
        """Return the first error since the last call."""
        reason = self._errors[0] if self._errors else "it gives no reason"
        self._errors.clear()
        return reason


_LOG = _Log()
_log_callback = library.llama_log_callback(_LOG.write)  # kept, as llama.cpp calls it
library.llama_log_set(_log_callback, None)
library.llama_backend_init()


class Model:
    """A GGUF file that llama.cpp has opened: its vocabulary, and its weights unless left out."""

    def __init__(
        self, path: Path, *, with_weights: bool = True, gpu_layers: int = -1
    ) -> None:
        parameters = library.llama_model_default_params()
        parameters.vocab_only = not with_weights
        parameters.n_gpu_layers = gpu_layers
        self.pointer = library.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self.pointer:
            raise EngineError(
                f"llama.cpp cannot open {str(path)!r} ({_LOG.take_reason()});"
                " give a file that this version of llama-cpp-python knows, or install a"
                " newer one"
            )
        self._vocabulary = library.llama_model_get_vocab(self.pointer)
        self.n_tokens: int = library.llama_vocab_n_tokens(self._vocabulary)

    @property
    def may_cut(self) -> bool:
        """Whether a stream's last tokens can be taken back; not of recurrent models."""
        is_recurrent = library.llama_model_is_recurrent(self.pointer)
        return not (is_recurrent or library.llama_model_is_hybrid(self.pointer))

    @property
    def is_causal(self) -> bool:
        """Whether it is a decoder alone."""
        has_encoder = library.llama_model_has_encoder(self.pointer)
        is_decoder = library.llama_model_has_decoder(self.pointer)
        return bool(is_decoder) and not has_encoder

    @property
    def start(self) -> int | None:
        return _token_or_none(library.llama_vocab_bos(self._vocabulary))

    @property
    def end(self) -> int | None:
        return _token_or_none(library.llama_vocab_eos(self._vocabulary))

    def find_ends(self) -> frozenset[int]:
        """Return every token that ends a text or an answer."""
        is_end = library.llama_vocab_is_eog
        tokens = range(self.n_tokens)
        return frozenset(token for token in tokens if is_end(self._vocabulary, token))

    def tokenize(
        self, text: str, *, add_special_tokens: bool, reads_marks: bool = False
    ) -> list[int]:
        """Return the tokens of a text; special ones that it spells out with ``reads_marks``."""
        encoded = text.encode()
        room = len(encoded) + 8
        while True:
            tokens = (ctypes.c_int32 * room)()
            n_tokens = library.llama_tokenize(
                self._vocabulary,
                encoded,
                len(encoded),
                tokens,
                room,
                add_special_tokens,
                reads_marks,
            )
            if n_tokens >= 0:
                return list(tokens[:n_tokens])
            room = -n_tokens

    def piece(self, token: int, *, with_special: bool = False) -> bytes:
        """Return the bytes of a token within a text; of a special one none, unless wanted."""
        room = _LONGEST_PIECE
        while True:
            buffer = ctypes.create_string_buffer(room)
            n_bytes = library.llama_token_to_piece(
                self._vocabulary, token, buffer, room, 0, with_special
            )
            if n_bytes >= 0:
                return buffer.raw[:n_bytes]
            room = -n_bytes

    def close(self) -> None:
        library.llama_model_free(self.pointer)


def _token_or_none(token: int) -> int | None:
    return None if token < 0 else int(token)


@dataclass(slots=True)
class Rows:
    """Tokens that one call reads, with their places, and of which logits are wanted."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    wanted: list[bool] = field(default_factory=list)

    def add(
        self,
        stream: int,
        first_position: int,
        tokens: Sequence[int],
        wanted: Sequence[bool],
    ) -> None:
        self.tokens += tokens
        self.positions += range(first_position, first_position + len(tokens))
        self.streams += [stream] * len(tokens)
        self.wanted += wanted


class Streams:
    """Room for the tokens of several texts that are read side by side, each by itself."""

    def __init__(
        self,
        model: Model,
        *,
        n_streams: int,
        length: int,
        n_rows: int,
        n_threads: int,
        has_exact_attention: bool,
    ) -> None:
        parameters = library.llama_context_default_params()
        parameters.n_ctx = n_streams * length
        parameters.n_seq_max = n_streams
        parameters.n_batch = parameters.n_ubatch = n_rows
        if hasattr(parameters, "n_outputs_max"):
            parameters.n_outputs_max = n_rows
        parameters.n_threads = parameters.n_threads_batch = n_threads
        # Else a text's numbers depend on the others that are read meanwhile
        parameters.kv_unified = False
        if has_exact_attention:
            parameters.type_k = parameters.type_v = library.GGML_TYPE_F32
            parameters.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.n_streams = n_streams
        self.length = length
        self._n_tokens = model.n_tokens
        self._pointer = library.llama_init_from_model(model.pointer, parameters)
        if not self._pointer:
            raise EngineError(
                f"llama.cpp cannot make room for {n_streams} texts of {length:,} tokens"
                f" ({_LOG.take_reason()}); set a smaller max_model_len or"
                " max_num_seqs through --engine-arg"
            )
        self._memory = library.llama_get_memory(self._pointer)
        self._tokens = np.zeros(n_rows, np.int32)
        self._positions = np.zeros(n_rows, np.int32)
        self._stream_counts = np.ones(n_rows, np.int32)
        self._streams = np.zeros(n_rows, np.int32)
        item = self._streams.itemsize
        self._stream_places = np.arange(n_rows, dtype=np.uint64) * item
        self._stream_places += np.uint64(self._streams.ctypes.data)
        self._wanted = np.zeros(n_rows, np.int8)
        self._batch = library.llama_batch()
        arrays: dict[str, NDArray[Any]] = {
            "token": self._tokens,
            "pos": self._positions,
            "n_seq_id": self._stream_counts,
            "seq_id": self._stream_places,
            "logits": self._wanted,
        }
        field_types: dict[str, Any] = {
            name: field_type for name, field_type, *_ in library.llama_batch._fields_
        }
        for name, values in arrays.items():
            address = ctypes.cast(values.ctypes.data, field_types[name])
            setattr(self._batch, name, address)

    def read(self, rows: Rows) -> NDArray[np.float32]:
        """Read rows; returns the logits of those wanted, which the next call overwrites."""
        n_rows = len(rows.tokens)
        self._tokens[:n_rows] = rows.tokens
        self._positions[:n_rows] = rows.positions
        self._streams[:n_rows] = rows.streams
        self._wanted[:n_rows] = rows.wanted
        self._batch.n_tokens = n_rows
        code = library.llama_decode(self._pointer, self._batch)
        if code != 0:
            raise EngineError(
                f"llama.cpp stopped with code {code} ({_LOG.take_reason()});"
                " set a smaller max_model_len or max_num_seqs through --engine-arg"
            )
        n_wanted = int(self._wanted[:n_rows].sum())
        if n_wanted == 0:
            return np.empty((0, self._n_tokens), np.float32)
        pointer: Any = library.llama_get_logits(self._pointer)
        return np.ctypeslib.as_array(pointer, (n_wanted, self._n_tokens))

    def cut(self, stream: int, length: int) -> None:
        """Forget what a stream holds beyond so many tokens."""
        library.llama_memory_seq_rm(self._memory, stream, length, -1)

    def copy(self, source: int, target: int) -> None:
        """Let a stream hold what another does."""
        library.llama_memory_seq_rm(self._memory, target, -1, -1)
        library.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def close(self) -> None:
        library.llama_free(self._pointer)
