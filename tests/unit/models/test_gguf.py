"""Headers of GGUF files, whole, broken and hostile; models as files, folders and parts."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.errors import SettingsError
from mia_batch.extras.llama_cpp import header
from mia_batch.models.formats import CHECKPOINT, find_format
from tests.checkpoints import CONTEXT
from tests.gguf_files import find_smollm2, save_gguf


@pytest.fixture(scope="module")
def gguf(checkpoint, tmp_path_factory):
    return save_gguf(checkpoint, tmp_path_factory.mktemp("gguf") / "model.gguf", "Q8_0")


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def file_of(
    keys: dict[str, bytes] | None = None,
    n_keys: int | None = None,
    n_tensors: int = 0,
    version: int = 3,
) -> bytes:
    """Bytes of a file with no tensor; keys have the bytes of their type and value."""
    keys = keys or {}
    start = b"GGUF" + struct.pack(
        "<IQQ", version, n_tensors, len(keys) if n_keys is None else n_keys
    )
    return start + b"".join(text(key) + value for key, value in keys.items())


def test_a_header_says_what_the_checkpoint_has(gguf, checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    read = header.read_header(gguf)
    assert (read.architecture, read.quantisation, read.context) == (
        "llama",
        "Q8_0",
        CONTEXT,
    )
    # Keys and values of 2 layers, 1 head each of 32 numbers, 2 bytes a number
    assert (config["num_hidden_layers"], config["num_key_value_heads"]) == (2, 1)
    assert read.cache_bytes == 2 * 2 * 2 * 32
    assert read.data_end == gguf.stat().st_size
    assert find_format(str(gguf)).name == "GGUF files"
    assert find_format(str(gguf)).find_files(str(gguf)) == [gguf]


def test_a_real_header_is_read_and_its_file_is_whole():
    path = find_smollm2()
    read = header.read_header(path)
    assert (read.architecture, read.quantisation, read.context) == (
        "llama",
        "Q4_1",
        8192,
    )
    assert read.cache_bytes == 2 * 30 * 3 * (64 + 64)
    assert 0 <= path.stat().st_size - read.data_end < 32
    assert header.identify(str(path)).max_model_len == 8192


def test_a_file_that_names_no_quantisation_has_that_of_most_numbers(gguf, tmp_path):
    path = tmp_path / "model.gguf"
    content = gguf.read_bytes()
    path.write_bytes(content.replace(b"general.file_type", b"general.file_kind", 1))
    assert header.read_header(path).quantisation == "Q8_0"


def test_another_file_is_another_model(gguf, checkpoint, tmp_path):
    other = save_gguf(checkpoint, tmp_path / "model.gguf", "Q4_0")
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(gguf.read_bytes())
    digests = [header.identify(str(path)).digest for path in (gguf, renamed, other)]
    assert digests[0] == digests[1] != digests[2]
    read = [header.read_header(path) for path in (gguf, other)]
    assert read[0].tokenizer_digest == read[1].tokenizer_digest


def test_a_file_that_ends_early_is_refused_wherever_it_ends(gguf, tmp_path):
    content = gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (1, 3, 4, 10, 30, 200, 5000, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(SettingsError, match="copy it again"):
            header.identify(str(cut))
    cut.write_bytes(b"")
    with pytest.raises(SettingsError, match="no whole GGUF file"):
        header.identify(str(cut))


@given(st.data())
def test_no_byte_makes_another_error_than_a_sentence(gguf, tmp_path_factory, data):
    content = bytearray(gguf.read_bytes()[:3000])
    for place in data.draw(st.lists(st.integers(0, 400), min_size=1, max_size=6)):
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("flipped") / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="copy it again"):
        header.identify(str(path))


HUGE = 2**62
BROKEN = {
    "another kind": (b"PK\x03\x04" + bytes(40), "does not begin with GGUF"),
    "another version": (file_of(version=9), "its version is 9"),
    "keys without end": (file_of(n_keys=HUGE), "names 0 tensors and 4,611"),
    "tensors without end": (file_of(n_tensors=HUGE), "tensors and 0 keys"),
    "a long text": (
        file_of({"a": struct.pack("<IQ", 8, HUGE)}),
        "ends within its header",
    ),
    "a long list": (
        file_of({"a": struct.pack("<IIQ", 9, 4, HUGE)}),
        "ends within its header",
    ),
    "a long list of texts": (
        file_of({"a": struct.pack("<IIQ", 9, 8, HUGE)}),
        "ends within its header",
    ),
    "a list of lists": (
        file_of({"a": struct.pack("<IIQ", 9, 9, 1)}),
        "unknown type 9",
    ),
    "an unknown type": (file_of({"a": struct.pack("<I", 77)}), "unknown type 77"),
    "no alignment": (
        file_of({"general.alignment": struct.pack("<II", 4, 0)}),
        "its alignment is 0",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_header_is_refused_with_its_reason(tmp_path, case):
    content, reason = BROKEN[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=reason):
        header.read_header(path)


def test_a_folder_has_one_model_or_the_parts_of_one(gguf, tmp_path):
    content = gguf.read_bytes()
    folder = tmp_path / "model"
    folder.mkdir()
    assert find_format(str(folder)) is CHECKPOINT
    names = [f"m-{part:05}-of-00003.gguf" for part in (1, 2, 3)]
    for name in names[:2]:
        (folder / name).write_bytes(content)
    for model in (folder, folder / names[0]):
        with pytest.raises(SettingsError, match=r"1 of the 3 parts .*m-00003-of-00003"):
            header.identify(str(model))
    (folder / names[2]).write_bytes(content)
    parts = [folder / name for name in names]
    assert header.find_files(str(folder)) == header.find_files(str(parts[0])) == parts
    (folder / "other.gguf").write_bytes(content)
    with pytest.raises(SettingsError, match=r"has 2 GGUF models .*name one of them"):
        header.identify(str(folder))
    (folder / "config.json").write_text("{}")
    assert find_format(str(folder)) is CHECKPOINT


@pytest.mark.parametrize("n_layers", [0, 2001, 2**31])
def test_layers_that_no_model_has_are_refused(gguf, tmp_path, n_layers):
    """llama.cpp ends its process over them."""
    content = gguf.read_bytes()
    key = b"llama.block_count"
    value = content.index(key) + len(key) + 4  # behind its type
    path = tmp_path / "model.gguf"
    changed = struct.pack("<I", n_layers)
    path.write_bytes(content[:value] + changed + content[value + 4 :])
    with pytest.raises(SettingsError, match=rf"names {n_layers:,} layers, as no model"):
        header.identify(str(path))


def test_a_revision_is_refused(gguf):
    with pytest.raises(SettingsError, match=r"revision: .* is a GGUF file"):
        header.identify(str(gguf), "main")


def test_what_a_file_is_needs_no_library(gguf, tmp_path):
    assert find_format(str(gguf)).matches(str(gguf))
    assert not find_format(str(gguf)).matches(str(Path(gguf).with_suffix(".bin")))
    assert find_format(__file__) is CHECKPOINT
    blob = tmp_path / "sha256-0123"  # as Ollama names them
    blob.write_bytes(gguf.read_bytes())
    assert find_format(str(blob)).name == "GGUF files"
    assert header.identify(str(blob)).digest == header.identify(str(gguf)).digest
    source = Path(header.__file__).read_text()
    assert "import llama_cpp" not in source
