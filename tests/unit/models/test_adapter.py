from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from mia_batch.errors import SettingsError
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import (
    base_of,
    check_model,
    identify_model,
    read_adapter,
    tokenizer_source,
)
from tests.adapters import VIRTUAL_TOKENS, save_adapter
from tests.checkpoints import CONTEXT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def base(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(checkpoint, tmp_path / "base")


@pytest.fixture
def lora(base: Path, tmp_path: Path) -> Path:
    return save_adapter(tmp_path / "lora", base)


def describe(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_adapter_names_its_base_and_what_it_tunes(base: Path, lora: Path):
    assert base_of(str(base)) is None
    assert base_of("some/model") is None
    assert base_of(str(lora)) == str(base)
    found = read_adapter(str(lora))
    assert found is not None
    assert (found.kind, found.rank, found.virtual_tokens, found.extras) == ("LORA", 4, 0, ())
    assert found.modules == ("down_proj", "q_proj", "v_proj")
    describe(lora, rank_pattern={"q_proj": 32}, use_dora=True, revision="v1")
    found = read_adapter(str(lora))
    assert found is not None
    assert (found.rank, found.extras, found.base_revision) == (32, ("use_dora",), "v1")


def test_an_adapter_and_its_base_are_checked(lora: Path):
    check_model(str(lora))


def test_the_tokenizer_beside_an_adapter_is_its_own_else_the_base_s(base: Path, lora: Path):
    assert tokenizer_source(str(lora), None) == (str(lora), None)
    own = Tokenizer.load(str(lora))
    (base / "tokenizer.json").unlink()
    check_model(str(lora))
    (lora / "tokenizer.json").rename(base / "tokenizer.json")
    assert tokenizer_source(str(lora), None) == (str(base), None)
    check_model(str(lora))
    assert Tokenizer.load(str(lora)).digest == own.digest
    (base / "tokenizer.json").unlink()
    with pytest.raises(SettingsError, match=r"lora' is an adapter of .*base'.* has no tokenizer"):
        check_model(str(lora))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "LOHA"}, "is of kind LOHA; known are LORA, IA3, PREFIX_TUNING"),
        ({"task_type": "SEQ_CLS"}, "has the task type SEQ_CLS; give one that was tuned for CAUS"),
        ({"alora_invocation_tokens": [1]}, "is an activated LoRA.*; give a plain LoRA"),
        ({"base_model_name_or_path": None}, "names no base_model_name_or_path.*; save the adapter"),
        (
            {"base_model_name_or_path": "./none"},
            r"'./none', which .*does not exist; set base_model",
        ),
        ({"r": "four"}, "adapter_config.json of .* cannot be read .*; save the adapter again"),
    ],
)
def test_what_no_engine_could_ask_gets_one_sentence(
    lora: Path, changes: dict[str, Any], words: str
):
    describe(lora, **changes)
    with pytest.raises(SettingsError, match=f"^setting 'model': .*{words}"):
        check_model(str(lora))


@pytest.mark.parametrize("content", ["", "[1]", "{}", "\xff"])
def test_a_description_that_cannot_be_read_is_named(lora: Path, content: str):
    (lora / "adapter_config.json").write_text(content, encoding="latin-1")
    with pytest.raises(SettingsError, match=r"'model': adapter_config.json of .* cannot be read"):
        check_model(str(lora))


def test_missing_weights_are_named_on_either_side(base: Path, lora: Path):
    (lora / "adapter_model.safetensors").rename(lora / "elsewhere")
    with pytest.raises(SettingsError, match=r"lora' has no adapter's weights \(adapter_model.safe"):
        check_model(str(lora))
    (lora / "elsewhere").rename(lora / "adapter_model.safetensors")
    (base / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match=r"is an adapter of .* cannot be used: .*no weights"):
        check_model(str(lora))


def test_an_adapter_of_an_adapter_is_refused(lora: Path, tmp_path: Path):
    other = shutil.copytree(lora, tmp_path / "other")
    describe(other, base_model_name_or_path=str(lora))
    with pytest.raises(SettingsError, match="is an adapter itself; merge one of them"):
        check_model(str(other))


def test_an_adapter_is_another_model_when_it_or_its_base_changes(base: Path, lora: Path):
    first = identify_model(str(lora), None)
    assert first.max_model_len == CONTEXT
    assert identify_model(str(lora), None) == first
    assert first.digest != identify_model(str(base), None).digest
    found = {first.digest}
    for folder, name in ((lora, "adapter_model.safetensors"), (base, "model.safetensors")):
        whole = bytearray((folder / name).read_bytes())
        whole[-1] ^= 1
        (folder / name).write_bytes(whole)
        found.add(identify_model(str(lora), None).digest)
    assert len(found) == 3


def test_virtual_tokens_shorten_the_context(base: Path, tmp_path: Path):
    prefix = save_adapter(tmp_path / "prefix", base, "prefix")
    assert identify_model(str(prefix), None).max_model_len == CONTEXT - VIRTUAL_TOKENS
