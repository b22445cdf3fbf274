"""Headers of GGUF files: which model a file holds, and whether the file is whole.

The layout is that of ggml's docs/gguf.md. Nothing here opens llama.cpp, which ends the whole
process where a file is broken.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from mia_batch.errors import SettingsError
from mia_batch.models.weights import MOST_LAYERS, ModelIdentity, hash_ends

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Types of values that are one number each, as `struct` names them."""

_MOST_KEYS = 65_536
_MOST_TENSORS = 1_000_000
_MOST_DIMENSIONS = 4
_LONGEST_ARRAY_KEPT = 1_024  # of numbers, such as one for each layer
_ALIGNMENT = 32  # of the tensors' data, unless the header names another

_TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""Name, numbers of a block and its bytes, by ggml's type of a tensor; others are not checked."""

_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}
"""Quantisations by ``general.file_type``, as llama.cpp names them."""

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_FILES_OF_CHECKPOINT = ("config.json", "adapter_config.json")


@dataclass(slots=True, kw_only=True)
class Header:
    """What the header of a file says.

    ``values`` has the numbers and short texts by key, lists of numbers up to 1,024; the
    lists of the vocabulary count in ``tokenizer_digest`` alone.
    """

    values: dict[str, Any] = field(default_factory=dict)
    tokenizer_digest: str = ""
    most_common_type: str = "unknown"  # of its tensors' numbers
    data_end: int = 0  # bytes that the file must have at least

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", "unknown"))

    @property
    def quantisation(self) -> str:
        file_type = self.values.get("general.file_type")
        if file_type not in _FILE_TYPES:
            return self.most_common_type
        return _FILE_TYPES[file_type]

    @property
    def context(self) -> int | None:
        return self._number("context_length")

    @property
    def n_layers(self) -> int:
        return self._number("block_count") or 0

    def _number(self, name: str) -> int | None:
        """Return a number of the architecture; of one for each layer, the largest."""
        value = self.values.get(f"{self.architecture}.{name}")
        if isinstance(value, list):
            value = max(value, default=None)
        return value if isinstance(value, int) and value > 0 else None

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values for one token, as halves."""
        n_heads = self._number("attention.head_count") or 1
        head_size = (self._number("embedding_length") or n_heads) // n_heads
        key_size = self._number("attention.key_length") or head_size
        value_size = self._number("attention.value_length") or head_size
        kv_heads = self._number("attention.head_count_kv") or n_heads
        return 2 * self.n_layers * kv_heads * (key_size + value_size)


def find_files(model: str) -> list[Path]:
    """List the files of a GGUF model: one, or all parts of it.

    Raises `SettingsError` if a folder has several models, or a part is missing.
    """
    path = Path(model)
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        starts = [file for file in files if _part_number(file) in (None, 1)]
        if len(starts) > 1:
            names = ", ".join(file.name for file in starts[:4])
            raise SettingsError(
                f"model: the folder {model!r} has {len(starts)} GGUF models ({names});"
                " name one of them"
            )
        if not starts:  # parts without the first, which the next line says
            return _find_parts(files[0])
        path = starts[0]
    return _find_parts(path)


def _part_number(path: Path) -> int | None:
    match = _PART.search(path.name)
    return int(match[1]) if match else None


def _find_parts(path: Path) -> list[Path]:
    match = _PART.search(path.name)
    if match is None or not path.is_file():
        return [path]
    n_parts = int(match[2])
    stem = path.name[: match.start()]
    names = [f"{stem}-{part:05}-of-{n_parts:05}.gguf" for part in range(1, n_parts + 1)]
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise SettingsError(
            f"model: {len(missing)} of the {n_parts} parts of {str(path)!r} are missing,"
            f" such as {missing[0]}; copy them into its folder"
        )
    return [path.with_name(name) for name in names]


def is_gguf(model: str) -> bool:
    """Check whether a model is a GGUF file, or a folder with such files and no checkpoint."""
    path = Path(model)
    if path.is_dir():
        is_checkpoint = any((path / name).exists() for name in _FILES_OF_CHECKPOINT)
        return not is_checkpoint and any(path.glob("*.gguf"))
    if not path.is_file():
        return False
    if path.suffix == ".gguf":
        return True
    with path.open("rb") as file:  # Ollama's files have no ending
        return file.read(len(_MAGIC)) == _MAGIC


def identify(
    model: str,
    revision: str | None = None,
    purpose: str = "",  # noqa: ARG001 - as of every form
) -> ModelIdentity:
    """Check that a GGUF model is whole, and return which one it is."""
    if revision is not None:
        raise SettingsError(
            f"revision: {model!r} is a GGUF file, which has none; leave the setting out"
        )
    digest = sha256()
    headers = []
    for file in find_files(model):
        header = read_header(file)
        headers.append(header)
        size = file.stat().st_size
        if size < header.data_end:
            raise SettingsError(
                f"model: {str(file)!r} has {size:,} bytes, and its header says"
                f" {header.data_end:,}; copy it again"
            )
        hash_ends(file, digest)
    first = headers[0]
    if not 0 < first.n_layers <= MOST_LAYERS:
        raise SettingsError(
            f"model: the header of {model!r} names {first.n_layers:,} layers, as no model"
            " has; copy it again, or give another"
        )
    context = first.context
    return ModelIdentity(digest=digest.hexdigest(), max_model_len=context)


def read_header(path: Path) -> Header:
    """Read a file's header; raises `SettingsError` where it is broken."""
    try:
        with (
            path.open("rb") as file,
            mmap(file.fileno(), 0, access=ACCESS_READ) as data,
        ):
            return _Reader(data).read()
    except (OSError, ValueError, struct.error) as error:
        raise SettingsError(
            f"model: {str(path)!r} is no whole GGUF file ({error}); copy it again, or"
            " give another"
        ) from error


class _Reader:
    """Reads a header from its first byte to its last."""

    def __init__(self, data: mmap) -> None:
        self._data = data
        self._place = 0

    def read(self) -> Header:
        if self._take(4) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version, n_tensors, n_keys = self._unpack("IQQ")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}; known are 2 and 3")
        if n_tensors > _MOST_TENSORS or n_keys > _MOST_KEYS:
            raise ValueError(f"it names {n_tensors:,} tensors and {n_keys:,} keys")
        header = Header()
        vocabulary = sha256()
        for _ in range(n_keys):
            start = self._place
            key = self._read_text()
            value = self._read_value(*self._unpack("I"))
            if value is not None:
                header.values[key] = value
            if key.startswith("tokenizer.ggml."):
                vocabulary.update(self._data[start : self._place])
        header.tokenizer_digest = vocabulary.hexdigest()
        n_numbers: Counter[str] = Counter()
        ends = [self._read_tensor(n_numbers) for _ in range(n_tensors)]
        for name, _ in n_numbers.most_common(1):
            header.most_common_type = name
        alignment = header.values.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"its alignment is {alignment}")
        data_start = -(-self._place // alignment) * alignment
        header.data_end = data_start + max(ends, default=0)
        return header

    def _take(self, n_bytes: int) -> bytes:
        end = self._place + n_bytes
        if end > len(self._data):
            raise ValueError("it ends within its header")
        taken = self._data[self._place : end]
        self._place = end
        return taken

    def _unpack(self, types: str) -> tuple[Any, ...]:
        layout = f"<{types}"
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def _read_text(self) -> str:
        (length,) = self._unpack("Q")
        return self._take(length).decode(errors="replace")

    def _read_value(self, value_type: int) -> Any:
        """Read a value; of a long array, None."""
        if value_type == _STRING:
            return self._read_text()
        if value_type != _ARRAY:
            return self._unpack(self._find_scalar(value_type))[0]
        item_type, length = self._unpack("IQ")
        if item_type == _STRING:
            self._skip_texts(length)
            return None
        scalar = self._find_scalar(item_type)
        if length > _LONGEST_ARRAY_KEPT:
            self._take_nothing(length * struct.calcsize(scalar))
            return None
        return list(self._unpack(f"{length}{scalar}"))

    def _find_scalar(self, value_type: int) -> str:
        if value_type not in _SCALARS:
            raise ValueError(f"it has a value of the unknown type {value_type}")
        return _SCALARS[value_type]

    def _take_nothing(self, n_bytes: int) -> None:
        self._place += n_bytes
        if self._place > len(self._data):
            raise ValueError("it ends within its header")

    def _skip_texts(self, n_texts: int) -> None:
        """Skip so many texts; a vocabulary has hundreds of thousands."""
        unpack_length = struct.Struct("<Q").unpack_from
        place = self._place
        end = len(self._data) - 8
        for _ in range(n_texts):
            if place > end:
                raise ValueError("it ends within its header")
            place += 8 + unpack_length(self._data, place)[0]
        self._place = place
        self._take_nothing(0)

    def _read_tensor(self, n_numbers_by_type: Counter[str]) -> int:
        """Count a tensor's numbers; return where its data ends, from where all data starts."""
        self._read_text()
        (n_dimensions,) = self._unpack("I")
        if n_dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"it has a tensor of {n_dimensions} dimensions")
        n_numbers = 1
        for length in self._unpack(f"{n_dimensions}Q"):
            n_numbers *= length
        tensor_type, offset = self._unpack("IQ")
        unknown_type = (f"type {tensor_type}", 1, 0)
        name, block, block_bytes = _TENSOR_TYPES.get(tensor_type, unknown_type)
        n_numbers_by_type[name] += n_numbers
        return int(offset + -(-n_numbers // block) * block_bytes)
